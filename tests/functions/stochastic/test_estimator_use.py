"""Estimators as they are called: seeds, tolerances, exact answers where those cost no more, compositions, frameworks, bad input."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.testing import count_matvecs, forbid_dense

TRACE = [
    co.Hutchinson(20),
    co.Hutchinson(20, "sphere"),
    co.HutchPP(21),
    co.XTrace(20),
    co.XNysTrace(20),
]
DIAGONAL = [co.Hutchinson(20), co.HutchPP(21), co.XDiag(20)]


def named(method: Any) -> str:
    return str(method.name)


def positive(n: int = 50, seed: int = 0) -> np.ndarray:
    G = np.random.default_rng(seed).standard_normal((n, n))
    return G @ G.T / n


def free(A: np.ndarray) -> co.LinearOperator:
    return co.opaque(co.PSD(A))


# ---------------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize("method", TRACE, ids=named)
def test_a_seed_gives_the_same_answer_and_another_seed_another(method: Any) -> None:
    from dataclasses import replace

    A = free(positive())
    one, again, other = (co.trace(A, replace(method, seed=s)) for s in (3, 3, 4))
    assert one == again != other


def test_generators_of_every_framework_are_seeds_and_move_on() -> None:
    import jax
    import torch

    A = free(positive())
    streams = [
        np.random.default_rng,
        np.random.RandomState,
        lambda s: torch.Generator().manual_seed(s),
    ]
    for make in streams:
        for target in ("numpy", "torch", *(("jax",) if make is streams[0] else ())):
            B, generator = A.to(backend=target), make(5)
            first, second = (float(co.trace(B, co.Hutchinson(4, seed=generator))) for _ in range(2))
            assert first != second
            assert first == float(co.trace(B, co.Hutchinson(4, seed=make(5))))
    key = jax.random.key(1)
    for target in ("numpy", "jax"):
        first, second = (
            float(co.trace(A.to(backend=target), co.Hutchinson(4, seed=key))) for _ in range(2)
        )
        assert first == second


def test_factors_of_a_product_have_independent_random_vectors() -> None:
    """With the same vectors for both, E[t^2] = tr(A)^2 + Var(t) would be the mean."""
    A = np.broadcast_to(positive(6), (3000, 6, 6)).copy()
    B = co.Dense(A)
    found = co.trace(co.Kronecker(B, B), co.Hutchinson(1, "gaussian"))
    exact = np.trace(A[0]) ** 2
    assert abs(found.mean() - exact) <= 4 * found.std() / np.sqrt(3000)
    assert 2 * (A[0] ** 2).sum() > 8 * found.std() / np.sqrt(3000)  # the bias would have been seen


# ---------------------------------------------------------------------------------------------------- exact where that costs no more


@pytest.mark.parametrize(
    "method", [co.Hutchinson(), co.HutchPP(), co.XTrace(), co.XNysTrace()], ids=named
)
def test_small_operators_are_done_exactly(method: Any) -> None:
    A = positive(10)
    value, info = co.trace(free(A), method, info=True)
    assert abs(value - np.trace(A)) < 1e-12 and info.error == 0 and "exact" in info.message


def test_a_tolerance_that_needs_n_products_gets_n_products() -> None:
    A = positive(40)
    with count_matvecs() as counter:
        value, info = co.trace(free(A), co.Hutchinson(tol=1e-8), info=True)
    assert abs(value - np.trace(A)) < 1e-12 and info.error == 0
    assert counter.matvecs <= 40 + 16


@pytest.mark.parametrize("method", [co.HutchPP(30), co.XTrace(20), co.XNysTrace(10)], ids=named)
def test_traces_of_low_rank_are_exact_and_say_so(method: Any) -> None:
    U = np.random.default_rng(0).standard_normal((300, 4))
    value, info = co.trace(co.opaque(co.LowRank(U)), method, info=True)
    exact = (U**2).sum()
    assert abs(value - exact) < 1e-8 * exact and info.error < 1e-8 * exact


def test_diagonals_of_low_rank_are_exact_and_say_so() -> None:
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((2, 300, 3))
    A = co.MatrixFree(
        lambda X: U @ (V.T @ X), (300, 300), dtype=float, rmatmat=lambda X: V @ (U.T @ X)
    )
    for method in (co.XDiag(10), co.HutchPP(12)):
        value, info = co.diag(A, method, info=True)
        assert np.allclose(value, (U * V).sum(1), atol=1e-9) and np.max(info.error) < 1e-9


def test_zero_and_empty_operators() -> None:
    for method in TRACE:
        value, info = co.trace(co.opaque(co.PSD(co.Zero(60, 60))), method, info=True)
        assert abs(value) < 1e-11 and info.error < 1e-11
        assert co.trace(np.zeros((0, 0)), method) == 0


# ---------------------------------------------------------------------------------------------------- tolerances


def test_vectors_are_drawn_until_the_interval_is_small_enough() -> None:
    n = 2000
    d = np.linspace(1, 2, n)
    A = co.opaque(co.Diagonal(d) + co.LowRank(np.ones((n, 1)) / n**0.5))
    for tol in (0.01, 0.002):
        value, info = co.trace(A, co.Hutchinson(distribution="gaussian", tol=tol), info=True)
        assert info.converged and 1.95 * info.error <= tol * value
        assert abs(value - d.sum() - 1) <= 2 * tol * value
    value, info = co.trace(A, co.XTrace(tol=1e-3), info=True)
    assert info.converged and abs(value - d.sum() - 1) <= 3e-3 * value


def test_a_tolerance_that_is_not_met_fails_the_status() -> None:
    A = free(positive(400))
    for method in (co.Hutchinson(50, tol=1e-6), co.XTrace(50, tol=1e-6), co.HutchPP(60, tol=1e-6)):
        value, info = co.trace(A, method, info=True)
        assert info.status is co.Status.MAX_ITERATIONS and np.isfinite(value)
        with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS.*tol = 1e-06"):
            co.trace(A, method)
    with pytest.warns(co.ConvergenceWarning):
        co.diag(A, co.Hutchinson(50, tol=1e-6))


# ---------------------------------------------------------------------------------------------------- structure


def test_the_method_is_used_at_the_leaves_even_where_the_answer_is_known() -> None:
    A = positive()
    assert abs(co.trace(A, co.Hutchinson(4)) - np.trace(A)) > 1e-6
    assert co.explain(co.trace, A, method=co.Hutchinson(4)).rules == ["Hutchinson"]
    kronecker = co.Kronecker(positive(4), positive(5))
    assert co.explain(co.trace, kronecker, method=co.XTrace(8)).rules == [
        "trace_kronecker",
        "XTrace",
        "XTrace",
    ]
    assert co.explain(co.diag, 2.0 * co.Dense(A), method=co.XDiag(8)).rules == [
        "diag_scaled",
        "XDiag",
    ]
    assert (
        co.explain(
            co.logdet, co.Kronecker(co.PSD(positive(4)), co.PSD(positive(5))), method=co.SLQ()
        ).rules[-1]
        == "SLQ"
    )


def test_compositions_carry_the_standard_error() -> None:
    A, B = positive(40), positive(50, 1)
    parts = [co.trace(free(M), co.Hutchinson(20, seed=7), info=True) for M in (A, B)]
    value, info = co.trace(-3.0 * free(A), co.Hutchinson(20, seed=7), info=True)
    assert np.isclose(value, -3 * parts[0][0]) and np.isclose(info.error, 3 * parts[0][1].error)
    runs = [
        co.trace(co.BlockDiag(free(A), free(B)), co.Hutchinson(20, seed=s), info=True)
        for s in range(60)
    ]
    spread = np.std([v for v, _ in runs])
    assert 0.7 < np.mean([i.error for _, i in runs]) / spread < 1.4
    runs = [
        co.trace(co.Kronecker(free(A), free(B)), co.Hutchinson(20, seed=s), info=True)
        for s in range(60)
    ]
    assert 0.7 < np.mean([i.error for _, i in runs]) / np.std([v for v, _ in runs]) < 1.4
    diagonal, info = co.diag(co.Kronecker(free(A), free(B)), co.Hutchinson(20), info=True)
    assert diagonal.shape == info.error.shape == (2000,)
    diagonal, info = co.diag(co.BlockDiag(free(A), free(B)).H, co.XDiag(20), info=True)
    assert diagonal.shape == info.error.shape == (90,)


def test_nothing_is_formed_and_a_probe_is_one_product() -> None:
    A = free(positive(300))
    with forbid_dense(300 * 60), count_matvecs() as counter:
        co.trace(A, co.Hutchinson(20))
    assert counter.matvecs == 20
    for method, products in ((co.XTrace(20), 20), (co.XNysTrace(20), 20), (co.HutchPP(21), 21)):
        with count_matvecs() as counter:
            _, info = co.trace(A, method, info=True)
        assert counter.matvecs == products == info.matvecs


def test_terms_of_a_long_sum_are_taken_in_blocks() -> None:
    rng = np.random.default_rng(0)
    # what all columns share makes the others' estimate bad
    X = rng.standard_normal((3000, 20)) + 2 * rng.standard_normal((3000, 1))
    A = co.Dense(X).T @ co.Dense(X) / 3000
    exact = (X**2).mean(0)
    shared, doubly = (co.diag(A, co.Hutchinson(10, per_term=p)) for p in (False, True))
    assert np.linalg.norm(doubly - exact) < 0.2 * np.linalg.norm(shared - exact)
    sparse = co.Sparse(
        __import__("scipy.sparse").sparse.random_array((500, 20), density=0.2, rng=0).tocsr()
    )
    found, info = co.diag(sparse.T @ sparse, co.Hutchinson(200, batch_size=7), info=True)
    assert (abs(found - co.diag(sparse.T @ sparse)) <= 5 * info.error + 1e-12).all()


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_terms_have_vectors_of_their_own_in_every_framework(name: str) -> None:
    xp, rng = backends.get(name), np.random.default_rng(0)
    X, stack = rng.standard_normal((40, 12)), rng.standard_normal((9, 12, 12))
    D = co.Dense(xp.asarray(X))
    # rows of a product of such are found by products
    circulant = co.Circulant(xp.asarray(rng.standard_normal(12)))
    sums = [
        D.H @ D / 40 + 0.5 * co.Identity(12),
        co.BatchSum(co.Dense(xp.asarray(stack))),
        co.LowRank(xp.asarray(X.T), core=xp.asarray(np.eye(40))),
        co.Dense(xp.asarray(stack[0]))
        + co.Dense(xp.asarray(stack[1]))
        + co.Dense(xp.asarray(stack[2])),
        circulant @ co.Dense(xp.asarray(stack[0])),
    ]
    for A in sums if name != "jax" else sums[:2]:
        for size in (1, 2) if name != "jax" else (2,):
            value, info = co.diag(A, co.Hutchinson(60, batch_size=size), info=True)
            exact = np.diag(xp.to_numpy(A.to_dense()))
            assert (
                abs(xp.to_numpy(value) - exact) <= 5 * xp.to_numpy(info.error) + 1e-9
            ).all() and not info.failed


class Steps(co.LinearOperator):
    """A sum of a user's own: the ones of the first k rows and columns, for k = 1, 2, ..., n."""

    size: int
    weights: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, self.size)

    def _matmat(self, X: Any) -> Any:
        heads = np.cumsum(X, axis=0) * self.weights[:, None]
        return np.cumsum(heads[::-1], axis=0)[::-1]

    @property
    def _term_count(self) -> int:
        return self.size

    def _some_terms(self, indices: Any, weights: Any) -> Any:
        return Steps(self.size, np.bincount(indices, weights, self.size))


def test_sums_of_a_users_own_have_terms_too() -> None:
    A = Steps(20, np.ones(20))
    exact = np.arange(20, 0, -1)
    shared, own = (co.diag(A, co.Hutchinson(200, per_term=p), info=True) for p in (False, True))
    for value, info in (shared, own):
        assert (abs(value - exact) <= 5 * info.error).all()
    assert np.linalg.norm(own[1].error) < 0.6 * np.linalg.norm(shared[1].error)


def test_auto_is_exact_where_it_can_and_says_where_it_cannot() -> None:
    A = positive(60)
    assert abs(co.trace(free(A)) - np.trace(A)) < 1e-12
    n = 400_000
    d = np.linspace(1, 2, n)
    large = co.MatrixFree(lambda X: d[:, None] * X, (n, n), dtype=float)
    assert co.explain(co.trace, large).rules == ["XTrace"]
    with pytest.warns(co.ApproximationWarning, match="trace.*out of reach.*Auto\\(exact=True\\)"):
        value = co.trace(large, co.Auto(tol=0.01))
    assert abs(value - d.sum()) < 0.01 * d.sum()
    with pytest.warns(co.ApproximationWarning, match="diag"):
        assert np.allclose(co.diag(large), d)  # signs give diagonal matrices exactly
    assert "products" in co.explain(co.diag, large, method=co.Auto(exact=True)).rules


# ---------------------------------------------------------------------------------------------------- bad input


def test_what_is_no_number_of_probes_is_refused() -> None:
    for bad in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="probes is"):
            co.Hutchinson(bad)
    with pytest.raises(ValueError, match="at least 4"):
        co.XTrace(3)
    with pytest.raises(ValueError, match="distribution is 'normal'"):
        co.Hutchinson(distribution="normal")
    with pytest.raises(ValueError, match=r"confidence is 1\.5"):
        co.Hutchinson(confidence=1.5)
    with pytest.raises(ValueError, match="tol is 0"):
        co.Hutchinson(tol=0)
    with pytest.raises(TypeError, match="seed is None"):
        co.Hutchinson(seed=None)
    with pytest.raises(ValueError, match="seed is -1"):
        co.SLQ(seed=-1)


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    A = positive()
    with pytest.raises(ValueError, match="batch_size is 9 and A is a sum of 3 terms"):
        co.trace(co.BatchSum(co.Dense(np.ones((3, 4, 4)))), co.Hutchinson(batch_size=9))
    with pytest.raises(co.MethodError, match="need a sum"):
        co.trace(A, co.Hutchinson(10, per_term=True))
    with pytest.raises(co.MethodError, match=r"Say PSD\(A\)"):
        co.trace(co.Dense(A + np.triu(A)), co.XNysTrace(10))
    with pytest.raises(co.MethodError, match="XDiag"):
        co.trace(A, co.XDiag(10))
    with pytest.raises(co.MethodError, match="does not apply"):
        co.solve(A, np.ones(50), co.Hutchinson())
    with pytest.raises(co.ShapeError):
        co.trace(np.ones((3, 4)), co.Hutchinson())
    with pytest.raises(co.ShapeError, match="square"):
        co.diag(np.ones((3, 4)), co.Hutchinson())


def test_a_single_probe_has_no_known_error() -> None:
    _, info = co.trace(free(positive()), co.Hutchinson(1), info=True)
    assert np.isinf(info.error)


def test_a_probe_that_fails_fails_the_status_and_is_not_averaged_in() -> None:
    A = positive(40)

    def multiply(X: np.ndarray) -> np.ndarray:
        Y = A @ X
        Y[:, X[0] > 0] = np.nan  # about half of the vectors
        return Y

    broken = co.MatrixFree(multiply, (40, 40), dtype=float)
    value, info = co.trace(broken, co.Hutchinson(60), info=True)
    assert info.status is co.Status.NONFINITE and info.failed
    assert abs(value - np.trace(A)) <= 5 * info.error  # from those that worked
    with pytest.warns(co.ConvergenceWarning, match="NONFINITE"):
        co.trace(broken, co.Hutchinson(60))
    for method in (co.XTrace(20), co.HutchPP(21)):
        value, info = co.trace(broken, method, info=True)
        assert info.failed and np.isnan(value)


def test_an_inner_solve_that_fails_fails_the_status() -> None:
    A = co.PSD(np.diag(np.logspace(0, 8, 60)) + 1.0)
    inverse = co.inv(co.opaque(A), co.CG(max_iters=5))
    _, info = co.trace(inverse, co.Hutchinson(40), info=True)
    assert info.status is co.Status.MAX_ITERATIONS
    good = co.inv(co.opaque(co.PSD(positive(60) + np.eye(60))), co.CG(tol=1e-10))
    value, info = co.trace(good, co.Hutchinson(40), info=True)
    assert (
        not info.failed
        and abs(value - np.trace(np.linalg.inv(positive(60) + np.eye(60)))) <= 5 * info.error
    )


def test_an_indefinite_operator_said_to_be_positive_is_noticed() -> None:
    A = co.opaque(co.PSD(co.Diagonal(np.linspace(-1, 1, 100))))
    _, info = co.trace(A, co.XNysTrace(20), info=True)
    assert info.status is co.Status.NOT_POSITIVE_DEFINITE


# ---------------------------------------------------------------------------------------------------- frameworks


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_every_framework_and_dtype(name: str, dtype: str) -> None:
    if name == "jax" and dtype in ("float32", "complex128"):
        return  # each compiles anew: two dtypes stand for all, and the methods take turns
    traces, diagonals = TRACE, DIAGONAL
    if name == "jax":
        traces, diagonals = (
            (TRACE[3:4], DIAGONAL[:1]) if dtype == "complex64" else (TRACE[2:5:2], DIAGONAL[2:])
        )
    xp = backends.get(name)
    rng = np.random.default_rng(0)
    G = rng.standard_normal((40, 40)) + (
        1j * rng.standard_normal((40, 40)) if dtype.startswith("c") else 0
    )
    M = G @ G.conj().T / 40
    A = co.opaque(co.PSD(co.Dense(xp.asarray(M.astype(dtype)))))
    for method in traces:
        value, info = co.trace(A, method, info=True)
        assert xp.dtype_name(value.dtype) == dtype and backends.namespace_of(value) is xp
        assert (
            abs(complex(xp.to_numpy(value)) - np.trace(M))
            <= 6 * float(xp.to_numpy(info.error)) + 1e-3
        )
    for method in diagonals:
        value, info = co.diag(A, method, info=True)
        assert xp.dtype_name(value.dtype) == dtype
        assert (abs(xp.to_numpy(value) - np.diag(M)) <= 8 * xp.to_numpy(info.error) + 1e-3).all()


def test_half_precision_is_summed_in_single() -> None:
    A = co.opaque(co.Dense(np.eye(200, dtype=np.float16) * np.float16(100)))
    value = co.trace(A, co.Hutchinson(10))
    assert value.dtype == np.float16 and value == np.float16(20000)


def test_under_jit_with_a_key_and_with_a_tolerance() -> None:
    import jax
    import jax.numpy as jnp

    M = positive(64)

    def run(matrix: Any, key: Any) -> Any:
        A = co.opaque(co.PSD(matrix))
        fixed = co.trace(A, co.Hutchinson(30, seed=key), info=True)
        met = co.trace(A, co.Hutchinson(4000, tol=0.05, seed=key), info=True)
        missed = co.trace(A, co.Hutchinson(40, tol=1e-7, seed=key), info=True)
        exact = co.trace(A, co.Hutchinson(tol=1e-7, seed=key), info=True)
        return fixed, met, missed, exact

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fixed, met, missed, exact = jax.jit(run)(jnp.asarray(M), jax.random.key(0))
    eager = co.trace(co.opaque(co.PSD(jnp.asarray(M))), co.Hutchinson(30, seed=jax.random.key(0)))
    assert np.allclose(fixed[0], eager)
    assert met[1].status == co.Status.SUCCESS and 1.95 * met[1].error <= 0.05 * met[0]
    assert missed[1].status == co.Status.MAX_ITERATIONS
    assert np.allclose(exact[0], np.trace(M)) and exact[1].error == 0


def test_gradients_flow_through_the_products() -> None:
    import torch

    d = torch.linspace(1, 2, 60, dtype=torch.float64, requires_grad=True)
    value = co.trace(co.opaque(co.Diagonal(d)), co.Hutchinson(10))
    (gradient,) = torch.autograd.grad(value, d)
    assert torch.allclose(gradient, torch.ones_like(d))


def test_batches_have_vectors_of_their_own() -> None:
    M = np.broadcast_to(positive(40), (2, 3, 40, 40)).copy()
    for method in TRACE:
        value, info = co.trace(co.opaque(co.PSD(M)), method, info=True)
        assert value.shape == info.error.shape == (2, 3)
        assert len(np.unique(value)) == 6
