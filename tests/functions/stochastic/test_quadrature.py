"""Stochastic Lanczos quadrature: log-determinants, traces of f(A), bounds, preconditioners, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

NODES = np.linspace(0.5, 8.0, 60)


def turned(values: np.ndarray, seed: int = 0) -> np.ndarray:
    Q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    return (Q * values) @ Q.T


def free(A: np.ndarray) -> co.LinearOperator:
    return co.opaque(co.PSD(A))


def logarithm(A: np.ndarray) -> float:
    return float(np.linalg.slogdet(A)[1])


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_multiples_of_the_identity_are_exact(name: str) -> None:
    """Every vector spans an invariant subspace: the recurrence breaks down at once."""
    xp = backends.get(name)
    A = co.opaque(co.PSD(co.Diagonal(xp.asarray(np.full(40, 2.0)))))
    value, info = co.logdet(A, co.SLQ(4), info=True)
    assert (
        abs(float(value) - 40 * np.log(2)) < 1e-12 and float(info.error) < 1e-12 and not info.failed
    )


def test_few_distinct_eigenvalues_are_exact_for_each_vector() -> None:
    d = np.repeat([1.0, 3.0, 10.0], 20)
    value = co.logdet(co.opaque(co.PSD(co.Diagonal(d))), co.SLQ(3))
    assert abs(value - np.log(d).sum()) < 1e-10  # signs are exact for diagonal matrices


def test_values_lie_within_their_error_bars_as_often_as_they_say() -> None:
    A = turned(NODES)
    batch = co.opaque(co.PSD(np.broadcast_to(A, (300, 60, 60)).copy()))
    value, info = co.logdet(batch, co.SLQ(30), info=True)
    covered = (abs(value - np.log(NODES).sum()) <= 1.96 * info.error).mean()
    assert 0.90 <= covered <= 0.99
    assert abs(value.mean() - np.log(NODES).sum()) <= 4 * value.std() / np.sqrt(300)
    assert 0.9 <= np.sqrt((info.error**2).mean()) / value.std() <= 1.1


def test_determinants_below_one_have_negative_logarithms() -> None:
    A = turned(NODES / 20)
    value, info = co.logdet(free(A), co.SLQ(100), info=True)
    assert value < 0 and abs(value - logarithm(A)) <= 4 * info.error
    sign, same = co.slogdet(free(A), co.SLQ(100))
    assert sign == 1 and same == value


def test_vectors_are_drawn_until_the_tolerance_is_met() -> None:
    A = turned(NODES)
    value, info = co.logdet(free(A), co.SLQ(tol=0.02), info=True)
    assert info.converged and 1.95 * info.error <= 0.02 * abs(value)
    assert abs(value - logarithm(A)) <= 0.04 * abs(value)
    _, info = co.logdet(free(A), co.SLQ(20, tol=1e-6), info=True)
    assert info.status is co.Status.MAX_ITERATIONS


def test_a_quadrature_that_has_not_converged_says_so() -> None:
    A = turned(np.logspace(-6, 2, 60))
    with pytest.warns(co.ConvergenceWarning, match="quadrature has not converged"):
        co.logdet(free(A), co.SLQ(10, max_iters=16))
    _, info = co.logdet(free(A), co.SLQ(10), info=True)
    assert not info.failed


@pytest.mark.parametrize("steps", [3, 5, 8])
def test_radau_and_gauss_enclose_the_quadratic_forms(steps: int) -> None:
    """The exact mean of z^H log(A) z over the same vectors lies between the bounds, and the bounds close in."""
    A = turned(NODES)
    values, vectors = np.linalg.eigh(A)
    exact = co.trace(free((vectors * np.log(values)) @ vectors.T), co.Hutchinson(6))
    bounds = {}
    for quadrature in ("lower", "upper", "gauss"):
        method = co.SLQ(6, max_iters=steps, quadrature=quadrature, interval=(0.5, 8.0))
        bounds[quadrature], _ = co.logdet(free(A), method, info=True)
    without = co.logdet(
        free(A), co.SLQ(6, max_iters=steps, quadrature="upper"), on_failure="ignore"
    )
    assert bounds["lower"] < exact < bounds["upper"] and exact < bounds["gauss"]
    assert without == bounds["gauss"]
    assert bounds["upper"] - bounds["lower"] < 60 * 0.5**steps * 4


@pytest.mark.parametrize(
    "make",
    [co.Jacobi(), co.PivotedCholesky(20), co.RPCholesky(20), co.Nystrom(20)],
    ids=lambda m: type(m).__name__,
)
def test_a_preconditioner_leaves_a_remainder_of_small_variance(make: Any) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 2))
    scale = np.diag(np.logspace(-1, 1, 150)) if isinstance(make, co.Jacobi) else np.eye(150)
    K = scale @ np.exp(-((X[:, None] - X) ** 2).sum(-1) / 2) @ scale
    noise = 0.1 * np.diag(scale) ** 2
    A = co.PSD(co.Dense(K)) + co.PSD(co.Diagonal(noise))
    exact = logarithm(K + np.diag(noise))
    plain, preconditioned = (
        co.logdet(co.opaque(A) if m is None else A, co.SLQ(30, preconditioner=m), info=True)
        for m in (None, make)
    )
    for value, info in (plain, preconditioned):
        assert abs(value - exact) <= 4 * info.error and not info.failed
    if isinstance(make, co.Jacobi):  # which takes the scales out, and those cost steps
        assert preconditioned[1].iterations < 0.3 * plain[1].iterations
    else:
        assert (
            preconditioned[1].error < 0.6 * plain[1].error
            and preconditioned[1].iterations <= plain[1].iterations
        )


def test_preconditioners_without_a_determinant_are_refused() -> None:
    with pytest.raises(co.MethodError, match="no known determinant"):
        co.logdet(free(turned(NODES)), co.SLQ(preconditioner=np.eye(60)))


def test_traces_of_functions_by_quadrature() -> None:
    A = turned(NODES / 8)
    for f, exact in ((co.exp, np.exp), (co.sqrt, np.sqrt), (co.log, np.log)):
        value, info = co.trace(f(co.opaque(co.PSD(A)), co.Krylov()), co.SLQ(100), info=True)
        assert abs(value - exact(NODES / 8).sum()) <= 4 * info.error and info.method == "SLQ"
    value, info = co.trace(
        co.apply(np.tanh, co.opaque(co.PSD(A)), co.Krylov()), co.SLQ(100), info=True
    )
    assert abs(value - np.tanh(NODES / 8).sum()) <= 4 * info.error
    indefinite = co.opaque(co.SelfAdjoint(turned(np.linspace(-1, 1, 60))))
    value, info = co.trace(co.exp(indefinite, co.Krylov()), co.SLQ(100), info=True)
    assert abs(value - np.exp(np.linspace(-1, 1, 60)).sum()) <= 4 * info.error
    value, info = co.trace(indefinite, co.SLQ(100), info=True)
    assert abs(value) <= 4 * info.error


def test_nothing_is_kept_but_a_few_blocks() -> None:
    A = free(turned(np.linspace(1, 2, 400)))
    with forbid_dense(400 * 10 + 10_000):
        value = co.logdet(A, co.SLQ(10))
    assert abs(value - np.log(np.linspace(1, 2, 400)).sum()) < 5


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_negative_and_zero_eigenvalues_are_statuses_and_never_silent(name: str) -> None:
    xp = backends.get(name)
    for values, status in (
        (np.linspace(-1, 2, 50), "NOT_POSITIVE_DEFINITE"),
        (np.linspace(0, 2, 50), "SINGULAR"),
    ):
        A = co.opaque(co.PSD(co.Dense(xp.asarray(turned(values)))))
        value, info = co.logdet(A, co.SLQ(20), info=True)
        assert info.status.name == status
        assert np.isneginf(float(value)) if status == "SINGULAR" else np.isnan(float(value))
        with pytest.warns(co.ConvergenceWarning, match=status):
            co.logdet(A, co.SLQ(20))
        with pytest.raises(co.ConvergenceError):
            co.logdet(A, co.SLQ(20), on_failure="raise")
    A = co.opaque(co.PSD(co.Diagonal(xp.asarray(np.array([1.0, np.nan, 2.0])))))
    assert co.logdet(A, co.SLQ(5), info=True)[1].status is co.Status.NONFINITE


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_products_that_fail_inside_the_runs_are_heard(name: str) -> None:
    """A is an inverse by iterations that end too early: the quadrature of what it gives instead converges very well."""
    xp = backends.get(name)
    hard = co.opaque(co.PSD(co.Diagonal(xp.asarray(np.logspace(0, 6, 40)))))
    inverse = co.opaque(co.PSD(co.inv(hard, co.CG(max_iters=4))))
    _, info = co.trace(co.exp(inverse, co.Krylov()), co.SLQ(10), info=True)
    assert info.status is co.Status.MAX_ITERATIONS and "products with A" in info.message
    if name != "jax":
        easy = co.opaque(
            co.PSD(co.inv(co.opaque(co.PSD(co.Dense(xp.asarray(turned(NODES))))), co.CG(tol=1e-10)))
        )
        value, info = co.logdet(easy, co.SLQ(50), info=True)
        assert not info.failed and abs(float(value) + np.log(NODES).sum()) <= 4 * info.error


def test_vectors_whose_products_fail_are_left_out() -> None:
    A = turned(NODES)

    def multiply(X: np.ndarray) -> np.ndarray:
        return np.where(X[0] > 0, np.nan, A @ X)

    value, info = co.logdet(
        co.PSD(co.MatrixFree(multiply, (60, 60), dtype=float, rmatmat=multiply)),
        co.SLQ(60),
        info=True,
    )
    assert info.status is co.Status.NONFINITE and (
        np.isnan(value) or abs(value - np.log(NODES).sum()) <= 5 * info.error
    )


def test_complex_hermitian_operators_are_right_and_others_refused() -> None:
    rng = np.random.default_rng(0)
    G = rng.standard_normal((50, 50)) + 1j * rng.standard_normal((50, 50))
    A = G @ G.conj().T / 50 + np.eye(50)
    value, info = co.logdet(free(A), co.SLQ(100), info=True)
    assert value.dtype == np.float64 and abs(value - logarithm(A)) <= 4 * info.error
    with pytest.raises(co.MethodError, match=r"Say PSD\(A\)"):
        co.logdet(co.opaque(co.Dense(G)), co.SLQ())
    B = co.opaque(co.Dense(G))
    half, info = co.logdet(B.H @ B, co.SLQ(200), info=True)
    assert abs(half / 2 - logarithm(G)) <= 4 * info.error + 0.5
    with pytest.raises(co.MethodError, match=r"XTrace\(\)"):
        co.trace(co.opaque(co.Dense(G)), co.SLQ())


def test_an_interval_that_does_not_hold_the_spectrum_is_noticed() -> None:
    for interval in ((1.0, 9.0), (0.1, 7.0)):
        with pytest.raises(ValueError, match="eigenvalues outside of it"):
            co.logdet(free(turned(NODES)), co.SLQ(6, quadrature="lower", interval=interval))


def test_arguments_that_make_no_sense_are_refused() -> None:
    for bad, match in (
        ({"probes": 0}, "probes is 0"),
        ({"max_iters": 0}, "max_iters is 0"),
        ({"quadrature": "simpson"}, "quadrature is 'simpson'"),
        ({"quadrature": "lower"}, "needs an interval"),
        ({"interval": (2.0, 1.0)}, "low below high"),
    ):
        with pytest.raises(ValueError, match=match):
            co.SLQ(**bad)
    with pytest.raises(co.MethodError, match="logdet alone"):
        co.trace(co.exp(free(turned(NODES)), co.Krylov()), co.SLQ(preconditioner=co.Jacobi()))


# ---------------------------------------------------------------------------------------------------- structure, frameworks


def test_determinants_of_compositions_add_up_with_their_errors() -> None:
    A, B = turned(NODES[:40]), turned(NODES[:30], 1)
    exact = 30 * logarithm(A) + 40 * logarithm(B)
    value, info = co.logdet(co.Kronecker(free(A), free(B)), co.SLQ(60), info=True)
    assert abs(value - exact) <= 4 * info.error
    value, info = co.logdet(co.BlockDiag(free(A), free(B)), co.SLQ(60), info=True)
    assert abs(value - logarithm(A) - logarithm(B)) <= 4 * info.error
    value, info = co.logdet(3.0 * free(A), co.SLQ(60), info=True)
    assert abs(value - logarithm(A) - 40 * np.log(3)) <= 4 * info.error


def test_auto_estimates_where_the_matrix_does_not_fit_and_says_so() -> None:
    n = 20_000
    d = np.linspace(1.0, 2.0, n)
    A = co.PSD(co.MatrixFree(lambda X: d[:, None] * X, (n, n), dtype=float))
    assert co.explain(co.logdet, A).rules[-1] == "SLQ"
    with pytest.warns(co.ApproximationWarning, match="out of reach"):
        value = co.logdet(A)
    assert abs(value - np.log(d).sum()) < 1e-3


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch", "float32"), ("numpy", "float32"), ("jax", "float64"), ("torch", "complex128")],
)
def test_frameworks_and_dtypes(name: str, dtype: str) -> None:
    xp = backends.get(name)
    A = turned(NODES)
    value, info = co.logdet(
        co.opaque(co.PSD(co.Dense(xp.asarray(A.astype(dtype))))), co.SLQ(50), info=True
    )
    assert xp.dtype_name(value.dtype) == dtype.replace("complex128", "float64")
    assert abs(float(value) - logarithm(A)) <= 4 * float(info.error)


def test_bounds_and_traces_of_functions_under_jit() -> None:
    import jax
    import jax.numpy as jnp

    A = turned(NODES / 4)

    def run(matrix: Any) -> Any:
        B = co.opaque(co.PSD(matrix))
        bounds = [
            co.logdet(
                B, co.SLQ(6, max_iters=5, quadrature=q, interval=(0.125, 2.0)), on_failure="ignore"
            )
            for q in ("lower", "upper")
        ]
        wrong = co.logdet(
            B, co.SLQ(6, max_iters=5, quadrature="lower", interval=(1.0, 2.0)), info=True
        )
        return bounds, co.trace(co.exp(B, co.Krylov()), co.SLQ(60, max_iters=12), info=True), wrong

    (low, high), (value, info), wrong = jax.jit(run)(jnp.asarray(A))
    assert np.isnan(wrong[0]) and wrong[1].status == co.Status.NONFINITE
    assert low < high < low + 20
    eager = co.logdet(
        co.opaque(co.PSD(jnp.asarray(A))),
        co.SLQ(6, max_iters=5, quadrature="lower", interval=(0.125, 2.0)),
        on_failure="ignore",
    )
    assert np.isclose(low, eager)
    assert abs(value - np.exp(NODES / 4).sum()) <= 4 * info.error and info.status == 0


def test_under_jit_a_run_ends_where_it_does_elsewhere() -> None:
    jax = pytest.importorskip("jax")
    n = 200
    d = np.linspace(1.0, 3.0, n)
    logdet = lambda d: co.logdet(co.opaque(co.PSD(co.Diagonal(d))), co.SLQ(probes=8), info=True)
    info = logdet(d)[1]
    traced, steps = jax.jit(lambda d: (lambda x, info: (x, info.iterations))(*logdet(d)))(d)
    assert int(steps) <= 1.5 * info.iterations
    np.testing.assert_allclose(traced, np.log(d).sum(), atol=4 * float(info.error) + 1e-3)
    # a program that is differentiated when it is done solves for the derivative then
    slope = jax.grad(jax.jit(lambda c: logdet(c * d)[0]))(1.0)
    np.testing.assert_allclose(slope, n, rtol=1e-3)
