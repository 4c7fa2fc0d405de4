"""Estimates, sums, approximations and derivatives on a CUDA device: they stay there, and agree with the host. `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from support.devices import is_there, on_device

import colinear as co
from colinear import backends

pytestmark = pytest.mark.gpu
both = pytest.mark.parametrize("framework", ["torch", "jax"])


def spectrum(n, least=1.0, largest=50.0):
    Q, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(n, n)))
    return (Q * np.linspace(least, largest, n)) @ Q.T


@both
@pytest.mark.parametrize(
    "method",
    [co.Hutchinson(200), co.HutchPP(120), co.XTrace(80), co.XNysTrace(80)],
    ids=lambda m: m.name,
)
def test_traces_are_estimated_on_the_device(framework, method):
    xp, M = backends.get(framework), spectrum(150)
    value, info = co.trace(co.opaque(co.PSD(co.Dense(on_device(framework, M)))), method, info=True)
    assert is_there(framework, value) and is_there(framework, info.error)
    assert abs(float(xp.to_numpy(value)) - np.trace(M)) <= 5 * float(xp.to_numpy(info.error)) + 1e-8


@both
def test_diagonals_are_estimated_on_the_device(framework):
    xp, M = backends.get(framework), spectrum(100)
    A = co.opaque(co.Dense(on_device(framework, M)))
    for method in (co.Hutchinson(2000), co.XDiag(90)):
        d, info = co.diag(A, method, info=True)
        assert is_there(framework, d)
        assert (
            np.linalg.norm(xp.to_numpy(d) - np.diag(M))
            <= 2 * np.linalg.norm(xp.to_numpy(info.error)) + 1e-8
        )


@both
def test_the_doubly_stochastic_estimate_runs_on_the_device(framework):
    xp, X = backends.get(framework), np.random.default_rng(0).normal(size=(40, 12, 12))
    d, info = co.diag(
        co.BatchSum(co.Dense(on_device(framework, X))), co.Hutchinson(400, per_term=True), info=True
    )
    assert is_there(framework, d)
    assert np.linalg.norm(xp.to_numpy(d) - np.diag(X.sum(0))) <= 3 * np.linalg.norm(
        xp.to_numpy(info.error)
    )


@both
def test_log_determinants_by_quadrature_on_the_device(framework):
    xp, M = backends.get(framework), spectrum(200)
    A, b = co.opaque(co.PD(co.Dense(on_device(framework, M)))), np.ones(200)
    value, info = co.logdet(A, co.SLQ(probes=40), info=True)
    exact = np.linalg.slogdet(M)[1]
    assert is_there(framework, value)
    assert (
        abs(float(xp.to_numpy(value)) - exact) <= 5 * float(xp.to_numpy(info.error)) + 1e-6 * exact
    )
    x, logarithm = co.solve_and_logdet(A, on_device(framework, b), co.SLQ(probes=40))
    assert is_there(framework, x) and is_there(framework, logarithm)
    np.testing.assert_allclose(M @ xp.to_numpy(x), b, atol=1e-5)


@both
def test_svrg_solves_a_sum_on_the_device(framework):
    xp, rng = backends.get(framework), np.random.default_rng(0)
    X = rng.normal(size=(500, 10))
    A = co.Dense(on_device(framework, X))
    S, b = A.H @ A, rng.normal(size=10)
    x, info = co.solve(S, on_device(framework, b), co.SVRG(batch_size=50, tol=1e-6), info=True)
    assert is_there(framework, x)
    assert not info.failed, info
    np.testing.assert_allclose(X.T @ X @ xp.to_numpy(x), b, atol=1e-4 * np.linalg.norm(b))


@both
def test_low_rank_approximations_stay_on_the_device(framework):
    xp, rng = backends.get(framework), np.random.default_rng(0)
    F = rng.normal(size=(80, 6))
    A = co.PSD(co.Dense(on_device(framework, F @ F.T)))
    for approximation in (
        co.nystrom(A, 12),
        co.rp_cholesky(A, 8),
        co.range_finder(A, 10),
        co.interpolative(A, 8),
        co.cur(A, 8),
    ):
        found = approximation[0] if isinstance(approximation, tuple) else approximation
        Y = found @ on_device(framework, np.ones((found.shape[-1], 1)))
        assert is_there(framework, Y)
        assert np.isfinite(xp.to_numpy(Y)).all()


def loss_of(A, b):
    return (b * co.solve(A, b)).sum() + co.logdet(A)


@both
def test_gradients_on_the_device_are_those_of_the_host(framework):
    rng = np.random.default_rng(0)
    d, U, b = rng.uniform(1, 2, 40), rng.normal(size=(40, 3)), rng.normal(size=40)
    dense_inverse = np.linalg.inv(np.diag(d) + U @ U.T)
    expected = np.diag(dense_inverse) - (dense_inverse @ b) ** 2
    if framework == "torch":
        leaf = on_device("torch", d).requires_grad_()
        loss_of(
            co.Diagonal(leaf) + co.LowRank(on_device("torch", U)), on_device("torch", b)
        ).backward()
        found = leaf.grad
    else:
        import jax

        A = co.Diagonal(on_device("jax", d)) + co.LowRank(on_device("jax", U))
        found = jax.jit(jax.grad(loss_of))(A, on_device("jax", b)).operands[0].d
    assert is_there(framework, found)
    np.testing.assert_allclose(backends.get(framework).to_numpy(found), expected, rtol=1e-8)


@both
def test_gradients_of_iterations_on_the_device(framework):
    M, b = spectrum(60), np.ones(60)
    expected = -np.outer(np.linalg.solve(M, b), np.linalg.solve(M, b))

    def value(A, b):
        return (b * co.solve(co.opaque(co.PD(co.Dense(A))), b, co.CG(tol=1e-12))).sum()

    if framework == "torch":
        leaf = on_device("torch", M).requires_grad_()
        value(leaf, on_device("torch", b)).backward()
        found = leaf.grad
    else:
        import jax

        found = jax.grad(value)(on_device("jax", M), on_device("jax", b))
    assert is_there(framework, found)
    symmetric = backends.get(framework).to_numpy(found)
    np.testing.assert_allclose((symmetric + symmetric.T) / 2, expected, rtol=1e-6, atol=1e-10)


@both
def test_gradients_of_functions_of_kronecker_products_on_the_device(framework):
    """Where eigenvalues of the factors repeat; beside differences on the host."""
    A, b, step = np.diag([1.0, 1.0, 2.0]), np.linspace(-1, 1, 9), 1e-6

    def exact(A):
        C = np.kron(A, A) + 0.5 * np.eye(9)
        values, V = np.linalg.eigh(C)
        return b @ (V * np.sqrt(values)) @ V.T @ b + (np.diag(np.linalg.inv(C)) ** 2).sum()

    expected = np.zeros((3, 3))
    for i, j in np.ndindex(3, 3):
        E = np.zeros((3, 3))
        E[i, j] = E[j, i] = step if i == j else step / 2
        expected[i, j] = (exact(A + E) - exact(A - E)) / (2 * step)

    def value(A, b):
        factor = co.PD(co.Dense((A + A.T) / 2))
        C = co.PD(co.Kronecker(factor, factor) + 0.5 * co.Identity(9))
        return (b * (co.sqrt(C) @ b)).sum() + (co.diag(co.inv(C)) ** 2).sum()

    if framework == "torch":
        leaf = on_device("torch", A).requires_grad_()
        value(leaf, on_device("torch", b)).backward()
        found = leaf.grad
    else:
        import jax

        found = jax.jit(jax.grad(value))(on_device("jax", A), on_device("jax", b))
    assert is_there(framework, found)
    np.testing.assert_allclose(
        backends.get(framework).to_numpy(found), expected, rtol=1e-6, atol=1e-8
    )
