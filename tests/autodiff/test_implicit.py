"""`Implicit` and `Equation`: solutions are differentiated by their equation, and JAX traces an iteration no more often than it must."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.factors.inverse import Implicit
from colinear.operators.autograd_products import directional, pullback

RNG = np.random.default_rng(0)
M, D, B = RNG.standard_normal((5, 3)), RNG.standard_normal((5, 3)), RNG.standard_normal((5, 2))


def numerical(f: Any, h: float = 1e-6) -> float:
    return float((f(h) - f(-h)) / (2 * h))


@pytest.mark.parametrize("transposed", [False, True])
def test_least_squares_are_differentiated_by_the_equation(transposed: bool) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    M0, D0 = (M.T, D.T) if transposed else (M, D)
    b = B[: M0.shape[0]]
    expected = numerical(lambda t: np.sum((np.linalg.pinv(M0 + t * D0) @ b) ** 3))

    def value(xp: Any, A: Any, b: Any) -> Any:
        return xp.sum((Implicit._of(co.Dense(A), co.Dense(fixed), None) @ b) ** 3)

    fixed: Any = torch.tensor(np.linalg.pinv(M0))
    A = torch.tensor(M0, requires_grad=True)
    value(torch, A, torch.tensor(b)).backward()
    assert np.isclose(np.sum(A.grad.numpy() * D0), expected, rtol=1e-7)
    fixed = jax.numpy.asarray(np.linalg.pinv(M0))
    gradient = jax.grad(lambda A: value(jax.numpy, A, b))(jax.numpy.asarray(M0))
    assert np.isclose(np.sum(gradient * D0), expected, rtol=1e-7)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_an_operator_is_taken_apart_and_put_together(framework: str) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    A = co.Dense(xp.asarray(M)) + co.LowRank(xp.asarray(M), xp.asarray(D[:3]))
    arrays = A.arrays()
    assert len(arrays) == 3 and A.with_arrays(arrays) is A
    doubled = A.with_arrays([2 * x for x in arrays])
    assert np.allclose(xp.to_numpy(doubled.to_dense()), 2 * M + 4 * M @ D[:3].T)
    assert np.array_equal(xp.to_numpy(A.detach().to_dense()), xp.to_numpy(A.to_dense()))


def test_detached_operators_have_no_derivatives() -> None:
    torch = pytest.importorskip("torch")
    A = co.Dense(torch.tensor(M, requires_grad=True))
    assert A.to_dense().requires_grad and not A.detach().to_dense().requires_grad


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_derivatives_along_the_arrays_of_an_operator(framework: str) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    x, G = xp.asarray(B[:3]), xp.asarray(RNG.standard_normal((5, 2)))
    A, way = co.Dense(xp.asarray(M)), xp.asarray(D)
    value, moved = directional(A, lambda A: A @ x, [way])
    assert np.allclose(xp.to_numpy(value), M @ B[:3]) and np.allclose(xp.to_numpy(moved), D @ B[:3])
    (back,) = pullback(A, lambda A: A @ x, G)
    assert np.isclose(float(xp.sum(back * way)), float(xp.sum(G * moved)))


def test_jax_traces_the_recurrence_of_a_solve_once_and_of_its_gradient_twice(
    monkeypatch: Any,
) -> None:
    jax = pytest.importorskip("jax")
    own, calls = co.CG.algorithm, []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return own(*arguments, **options)

    monkeypatch.setattr(co.CG, "algorithm", counted)
    A, b = jax.numpy.asarray(M.T @ M), jax.numpy.ones(3)

    def solve(A: Any, b: Any) -> Any:
        return jax.numpy.sum(co.solve(co.opaque(co.PSD(co.Dense(A))), b, co.CG(tol=1e-11)))

    jax.jit(solve)(A, b)
    assert len(calls) == 1
    calls.clear()
    gradient = jax.jit(jax.grad(solve))(2 * A, b)
    assert len(calls) <= 2
    inverse = np.linalg.inv(2 * M.T @ M)
    assert np.allclose(gradient, -np.outer(inverse @ b, inverse @ b), rtol=1e-6)
