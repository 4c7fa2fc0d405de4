"""Derivatives of traces and log-determinants by quadrature, and quadrature under torch.func.vmap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co

VALUES = np.linspace(0.4, 2.0, 40)


def turned(values: np.ndarray, seed: int = 0, imaginary: complex = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    G = rng.standard_normal((2, len(values), len(values)))
    Q = np.linalg.qr(G[0] + imaginary * G[1])[0]
    return (Q * values) @ Q.conj().T


def free(matrix: Any) -> co.LinearOperator:
    return co.opaque(co.PSD(matrix))


FUNCTIONS = {
    "exp": lambda A: co.exp(A, co.Krylov()),
    "sqrt": lambda A: co.sqrt(A, co.Krylov()),
    "isqrt": lambda A: co.isqrt(A, co.Krylov()),
    "power": lambda A: co.power(A, 3, co.Krylov()),
    "trace": lambda A: A,
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_the_derivative_is_that_of_the_mean_over_the_same_vectors(name: str) -> None:
    """Where dA commutes with A, as for A = c B, z^H f'(A) dA z is the derivative of z^H f(A) z itself."""
    torch = pytest.importorskip("torch")
    for imaginary in (0, 1j):
        B = torch.tensor(turned(VALUES, imaginary=imaginary))

        def value(c: Any, B: Any = B) -> Any:
            return co.trace(FUNCTIONS[name](free(c * B)), co.SLQ(5, max_iters=60)).real

        c = torch.tensor(1.2, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(value(c), c)
        with torch.no_grad():
            slope = (value(c + 1e-4) - value(c - 1e-4)) / 2e-4
        # the values are quadratures, to a share of their errors
        assert abs(gradient.item() - slope.item()) < 1e-4 * abs(slope.item())
        forward = torch.func.jvp(value, (c.detach(),), (torch.ones((), dtype=torch.float64),))[1]
        assert abs(forward.item() - gradient.item()) < 1e-9 * abs(slope.item())


def test_the_gradient_of_a_trace_estimates_the_derivative_of_the_function() -> None:
    """d tr f(A) / dA = f'(A) for symmetric A, each entry within its error."""
    torch = pytest.importorskip("torch")
    matrix, probes = turned(VALUES), 4000
    A = torch.tensor(matrix, requires_grad=True)
    value = co.trace(co.apply(torch.tanh, free(A), co.Krylov()), co.SLQ(probes))
    (gradient,) = torch.autograd.grad(value, A)
    exact = turned(1 - np.tanh(VALUES) ** 2)
    size = np.sqrt((exact**2).sum() / probes / 40)  # of the entries of mean(f'(A) z z^T)
    assert abs(gradient.numpy() - exact).max() < 8 * size
    assert abs(np.trace(gradient.numpy() - exact)) < 5 * np.sqrt(2 * (exact**2).sum() / probes)


def test_jax_gradients_of_traces_in_one_program() -> None:
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

    B = jnp.asarray(turned(VALUES))

    def value(c: Any, key: Any) -> Any:
        return co.trace(co.exp(free(c * B), co.Krylov()), co.SLQ(4, max_iters=20, seed=key))

    run, key = jax.jit(jax.value_and_grad(value)), jax.random.key(3)
    _, gradient = run(1.2, key)
    slope = (run(1.2 + 1e-5, key)[0] - run(1.2 - 1e-5, key)[0]) / 2e-5
    assert abs(gradient - slope) < 1e-6 * abs(slope)


def test_a_derivative_from_too_short_a_run_warns() -> None:
    torch = pytest.importorskip("torch")
    A = torch.tensor(turned(np.logspace(-6, 2, 40)), requires_grad=True)
    value, info = co.trace(co.sqrt(free(A), co.Krylov()), co.SLQ(5, max_iters=8), info=True)
    assert info.status is co.Status.MAX_ITERATIONS
    with pytest.warns(co.DerivativeWarning, match="too short"):
        torch.autograd.grad(value, A)


def test_what_has_no_derivative_says_so_instead_of_giving_zero() -> None:
    torch = pytest.importorskip("torch")
    A = torch.tensor(turned(VALUES), requires_grad=True)
    bound = co.logdet(free(A), co.SLQ(5, quadrature="lower", interval=(0.3, 2.1)))
    with pytest.raises(NotImplementedError, match="a bound by SLQ has no derivative"):
        torch.autograd.grad(bound, A)
    value = co.trace(co.exp(free(A), co.Krylov()), co.SLQ(5))
    (first,) = torch.autograd.grad(value, A, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivative by SLQ"):
        torch.autograd.grad(first.sum(), A)


def test_vectors_are_drawn_until_the_tolerance_is_met_also_for_derivatives() -> None:
    torch = pytest.importorskip("torch")
    matrix = turned(VALUES * 4)
    A = torch.tensor(matrix, requires_grad=True)
    value, info = co.logdet(free(A), co.SLQ(tol=0.02), info=True)
    assert (
        info.converged and 1.95 * info.error <= 0.02 * value and info.matvecs > 32 * info.iterations
    )
    assert abs(value.item() - np.log(VALUES * 4).sum()) < 4 * info.error
    (gradient,) = torch.autograd.grad(value, A)
    exact = np.linalg.inv(matrix)
    assert abs(np.trace(gradient.numpy() - exact)) < 0.1 * np.trace(exact)
    (x, _), info = co.solve_and_logdet(free(matrix), np.ones(40), co.SLQ(tol=0.02), info=True)
    assert info.converged and np.allclose(matrix @ x, 1, atol=1e-6)
    _, info = co.solve_and_logdet(free(matrix), np.ones(40), co.SLQ(20, tol=1e-6), info=True)
    assert info.status is co.Status.MAX_ITERATIONS and "tolerance" in info.message


def test_torch_vmap_gives_what_each_gives() -> None:
    torch = pytest.importorskip("torch")
    stack = torch.tensor(np.stack([turned(VALUES, 1), turned(VALUES * 2, 2)]))
    functions = [
        lambda M: co.logdet(free(M), co.SLQ(6)),
        lambda M: co.trace(co.exp(free(M), co.Krylov()), co.SLQ(6, max_iters=30)),
        lambda M: co.solve_and_logdet(free(M), torch.ones(40, dtype=torch.float64), co.SLQ(6))[
            0
        ].sum(),
    ]
    for f in functions:
        each = [torch.func.grad_and_value(f)(M) for M in stack]
        gradients, values = torch.func.vmap(torch.func.grad_and_value(f))(stack)
        np.testing.assert_allclose(values, [float(value) for _, value in each], rtol=1e-6)
        np.testing.assert_allclose(
            gradients, np.stack([gradient for gradient, _ in each]), atol=1e-6
        )
    bounds = torch.func.vmap(
        lambda M: co.logdet(free(M), co.SLQ(6, quadrature="upper", interval=(0.3, 5.0)))
    )(stack)
    assert torch.isfinite(bounds).all()
