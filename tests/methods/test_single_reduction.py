"""CG whose inner products are made at once takes the steps of CG, and says no more than it knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status, backends

SINGLE = {"single_reduction": True}


def problem(condition: float, n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    return (Q * np.geomspace(1 / condition, 1, n)) @ Q.T, rng.normal(size=n)


# Of the worst condition CG takes five steps for each row, since rounding costs it most of them: of one
# problem it decides by how many the two differ, so their steps are those of some together.
@pytest.mark.parametrize("condition, problems", [(1e1, 1), (1e3, 1), (1e5, 8)])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_it_takes_the_steps_of_cg_and_one_product_more(
    framework: str, condition: float, problems: int, preconditioned: bool
) -> None:
    xp = backends.get(framework)
    M = co.Diagonal(xp.asarray(np.linspace(1.0, 2.0, 60))) if preconditioned else None
    options = {"tol": 1e-8, "preconditioner": M, "max_iters": 5000}
    steps = np.zeros(2)
    for seed in range(problems):
        A, b = map(xp.asarray, problem(condition, seed=seed))
        A = co.opaque(co.PSD(co.Dense(A)))
        x, usual = co.solve(A, b, co.CG(**options), info=True)
        y, info = co.solve(A, b, co.CG(**options, **SINGLE), info=True)
        assert info.status is Status.SUCCESS
        steps += int(usual.iterations), int(info.iterations)
        assert int(info.matvecs) - int(info.iterations) == 1 + (
            int(usual.matvecs) - int(usual.iterations)
        )
        np.testing.assert_allclose(xp.to_numpy(y), xp.to_numpy(x), atol=1e-6 * condition)
    assert abs(steps[1] - steps[0]) <= problems + 0.1 * steps[0]


def test_it_is_as_accurate_as_cg_where_rounding_is_all_that_is_left() -> None:
    A, b = problem(1e4)
    A = co.opaque(co.PSD(A))
    usual, info = (
        co.solve(A, b, co.CG(tol=1e-16, max_iters=5000, **options), info=True)[1]
        for options in ({}, SINGLE)
    )
    assert info.status is usual.status is Status.STAGNATION
    assert info.residual < 4 * usual.residual


@pytest.mark.parametrize(
    "values", [[-1.0, 1, 1, 2], [-0.1, 0.2, 0.5, 1, 3], [1.0, 2, 3, -1e-3], [-1.0, -2, -3]]
)
def test_an_indefinite_operator_is_told(values: list[float]) -> None:
    A = co.opaque(co.PSD(np.diag(values)))
    for columns in ((), (2,)):
        info = co.solve(A, np.ones((len(values), *columns)), co.CG(**SINGLE), info=True)[1]
        assert info.status is Status.NOT_POSITIVE_DEFINITE


def test_an_indefinite_preconditioner_is_told() -> None:
    A, b = problem(10.0)
    info = co.solve(
        co.opaque(co.PSD(A)), b, co.CG(preconditioner=-np.eye(60), **SINGLE), info=True
    )[1]
    assert info.status is Status.NOT_POSITIVE_DEFINITE and "the preconditioner" in info.message


def test_a_singular_system_without_a_solution_fails() -> None:
    A = co.opaque(co.PSD(np.diag(np.r_[0.0, np.linspace(1, 9, 20)])))
    assert co.solve(A, np.ones(21), co.CG(tol=1e-8, **SINGLE), info=True)[1].failed


def test_it_differentiates_and_maps_in_jax() -> None:
    jax = pytest.importorskip("jax")
    A, b = problem(10.0)
    solve = lambda b: co.solve(co.opaque(co.PSD(A_)), b, co.CG(tol=1e-10, **SINGLE))
    A_ = jax.numpy.asarray(A)
    B = np.stack([b, 2 * b, b**2])
    found = jax.jit(jax.vmap(solve))(jax.numpy.asarray(B))
    np.testing.assert_allclose(found, np.linalg.solve(A, B.T).T, atol=1e-6)
    slope = jax.grad(lambda b: (solve(b) ** 2).sum())(jax.numpy.asarray(b))
    np.testing.assert_allclose(
        slope, 2 * np.linalg.solve(A, np.linalg.solve(A, b)), rtol=1e-5, atol=1e-5
    )


def test_it_differentiates_in_torch() -> None:
    torch = pytest.importorskip("torch")
    A, b = problem(10.0)
    leaf = torch.tensor(A, requires_grad=True)
    x = co.solve(co.opaque(co.PSD(leaf)), torch.tensor(b), co.CG(tol=1e-10, **SINGLE))
    x.sum().backward()
    inverse = np.linalg.inv(A)
    expected = -np.outer(inverse @ np.ones(60), inverse @ b)
    np.testing.assert_allclose(leaf.grad.numpy(), expected, atol=1e-5)


def test_least_squares_leave_it_aside() -> None:
    A, b = np.random.default_rng(0).normal(size=(9, 3)), np.ones(9)
    x: Any = co.lstsq(A, b, co.CG(tol=1e-10, **SINGLE))
    np.testing.assert_allclose(x, np.linalg.lstsq(A, b)[0], atol=1e-8)
