"""Dense solves, inverses and determinants are differentiated through A, to any order, and the factors are constants."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import colinear as co
from colinear import backends
from colinear.factors.dense import CholeskyFactor
from colinear.factors.inverse import Implicit

RNG = np.random.default_rng(0)
T0 = 0.1


def matrices(kind: str, is_complex: bool, n: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A(t) = first + t second + 0.3 t^2 first, and right sides."""
    M, N, b = (
        RNG.standard_normal(shape) + is_complex * 1j * RNG.standard_normal(shape)
        for shape in ((n, n), (n, n), (n, 2))
    )
    if not is_complex:
        M, N, b = M.real, N.real, b.real
    if kind == "positive":
        return M @ M.conj().T + n * np.eye(n), N + N.conj().T, b
    return M + 3 * np.eye(n), N, b


def loss(xp, solve, slogdet, inverse, claim, t, first, second, b):
    """Of one number t, so that all modes and orders can be compared; it uses all three functions, and the sign."""
    A = claim(first + t * second + 0.3 * t * t * first)
    sign, logarithm = slogdet(A)
    return (
        (abs(solve(A, b * (1 + t))) ** 2).sum()
        + logarithm**2
        + abs(sign + 0.3)
        + (abs(inverse(A) - 1) ** 2).sum()
    )


def expected(data: tuple) -> list[float]:
    """By the dense graph of torch, backwards twice."""
    L, arrays = torch.linalg, tuple(map(torch.tensor, data))
    t = torch.tensor(T0, dtype=torch.float64, requires_grad=True)
    value = loss(torch, L.solve, L.slogdet, L.inv, lambda A: A, t, *arrays)
    (first,) = torch.autograd.grad(value, t, create_graph=True)
    return [value.item(), first.item(), torch.autograd.grad(first, t)[0].item()]


def ours(xp, kind, data):
    claim = co.PSD if kind == "positive" else co.Dense
    return lambda t: loss(xp, co.solve, co.slogdet, lambda A: co.inv(A).to_dense(), claim, t, *data)


def test_jax_derivatives_agree_in_all_modes() -> None:
    data = matrices("positive", False)
    value, first, second = expected(data)
    f = ours(jnp, "positive", tuple(map(jnp.array, data)))

    @jax.jit  # one program: compiling is what takes the time
    def everything(t):
        return f(t), jax.grad(f)(t), jax.grad(jax.grad(f))(t), jax.jvp(jax.grad(f), (t,), (1.0,))[1]

    assert np.allclose(everything(T0), [value, first, second, second], rtol=1e-10)


@pytest.mark.parametrize(("kind", "is_complex"), [("positive", False), ("general", True)])
def test_torch_derivatives_agree_in_all_modes(kind: str, is_complex: bool) -> None:
    data = matrices(kind, is_complex)
    value, first, second = expected(data)
    f, F = ours(torch, kind, tuple(map(torch.tensor, data))), torch.func
    t = torch.tensor(T0, dtype=torch.float64, requires_grad=True)
    (once,) = torch.autograd.grad(f(t), t, create_graph=True)
    (twice,) = torch.autograd.grad(once, t)
    t = t.detach()
    found = [
        f(t),
        once.detach(),
        twice,
        F.grad(f)(t),
        F.jvp(f, (t,), (torch.ones_like(t),))[1],
        F.hessian(f)(t),
        F.jacfwd(F.jacfwd(f))(t),
    ]
    assert np.allclose(found, [value, first, second, first, first, second, second], rtol=1e-10)
    assert np.allclose(F.vmap(F.grad(f))(torch.stack([t, t])), first, rtol=1e-10)


def test_the_factor_is_kept_constant() -> None:
    M = torch.tensor([[2.0, 1.0], [1.0, 2.0]], requires_grad=True)
    factor = co.inv(co.PD(co.Dense(M))).factor
    assert isinstance(factor, Implicit) and isinstance(factor.solver, CholeskyFactor)
    assert factor.A.A is M and not factor.solver.L.requires_grad


def test_a_gradient_is_summed_over_batches_that_were_broadcast() -> None:
    A = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64, requires_grad=True)
    B = torch.ones(3, 2, 1, dtype=torch.float64)
    co.solve(co.PD(co.Dense(A)), B).sum().backward()
    batched, A.grad = A.grad, None
    (3 * co.solve(co.PD(co.Dense(A)), B[0]).sum()).backward()
    assert torch.allclose(batched, A.grad)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", [(5, 5), (2, 3, 3), (0, 0), (300, 300)])
def test_the_inverse_from_a_cholesky_factor(framework: str, shape: tuple[int, ...]) -> None:
    xp = backends.get(framework)
    M = RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)
    A = M @ np.swapaxes(M.conj(), -1, -2) + shape[-1] * np.eye(shape[-1])
    found = xp.to_numpy(xp.cholesky_inverse(xp.cholesky(xp.asarray(A))[0]))
    assert np.allclose(found, np.linalg.inv(A), atol=1e-12)
