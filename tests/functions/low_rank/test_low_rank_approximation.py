"""Randomised low-rank approximations: how good they are, that they say so, and that they compose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.errors import MethodError, ShapeError
from colinear.status import Status

POINTS = np.linspace(0, 1, 60)[:, None]
KERNEL = np.exp(-20 * (POINTS - POINTS.T) ** 2)
SLOW = (
    np.diag(1.0 / np.arange(1, 41))
    @ np.linalg.qr(np.random.default_rng(0).standard_normal((40, 40)))[0]
)
TALL = np.random.default_rng(1).standard_normal((50, 5)) @ np.random.default_rng(2).standard_normal(
    (5, 40)
)
POSITIVE = {"nystrom": co.nystrom, "rp_cholesky": co.rp_cholesky}
ANY = {"interpolative": co.interpolative, "cur": co.cur}


def operator(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def best(A: Any, rank: int) -> float:
    """The error of the best approximation."""
    s = np.linalg.svd(A, compute_uv=False)
    return float(np.linalg.norm(s[rank:]) / np.linalg.norm(s))


def error(A: Any, B: Any) -> float:
    return float(np.linalg.norm(A - B) / np.linalg.norm(A))


# ---------------------------------------------------------------------------------------------------- how good they are


@pytest.mark.parametrize("name", POSITIVE)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_positive_ones_are_near_the_best_and_below(name: str, dtype: Any) -> None:
    A = (
        KERNEL.astype(dtype)
        if np.dtype(dtype).kind != "c"
        else KERNEL * np.exp(1j * (POINTS - POINTS.T))
    )
    for backend in ("numpy", "torch"):
        xp = backends.get(backend)
        B, info = POSITIVE[name](co.PSD(xp.asarray(A)), rank=10, info=True)
        assert (
            isinstance(B, co.LowRank)
            and B.isa(co.PSD)
            and B.U.shape[-1] == 10
            and info.status == Status.SUCCESS
        )
        dense = xp.to_numpy(B.to_dense())
        assert dense.dtype == A.dtype and error(A, dense) < 30 * best(A, 10)
        assert np.linalg.eigvalsh(A - dense).min() > -1e-4 if dtype == np.float32 else -1e-10


def test_the_pivots_of_a_kernel_read_columns_alone() -> None:
    K = co.PSD(co.Kernel(lambda x, y: np.exp(-20 * (x - y.T) ** 2), POINTS))
    with co.testing.forbid_dense(60 * 12):
        B, info = co.rp_cholesky(K, 10, info=True)
    trace = np.trace(KERNEL - B.to_dense()) / np.trace(KERNEL)
    assert float(info.error) == pytest.approx(trace)  # known, not estimated


def test_pivots_are_drawn_by_the_diagonal_that_remains() -> None:
    A = co.PSD(co.Dense(np.diag([6.0, 3.0, 1.0, 0.0])))
    first = [int(np.argmax(co.rp_cholesky(A, 1, seed=seed).U[:, 0])) for seed in range(600)]
    counts = np.bincount(first, minlength=4)
    # Within 4 standard deviations of 600 p.
    assert counts[3] == 0 and (np.abs(counts[:3] - 600 * np.array([0.6, 0.3, 0.1])) < 4 * 12).all()


@pytest.mark.parametrize("name", ANY)
def test_own_rows_and_columns_span_an_exact_rank(name: str) -> None:
    # 9: more than there is
    for backend, rank in (("numpy", 5), ("torch", 5), ("numpy", 9), ("torch", 9)):
        xp = backends.get(backend)
        result, info = ANY[name](xp.asarray(TALL), rank, info=True)
        assert error(TALL, xp.to_numpy(result[0].to_dense())) < 1e-12 and float(info.error) < 1e-12
    columns = xp.to_numpy(result[-1])
    np.testing.assert_allclose(xp.to_numpy(result[0].U), TALL[:, columns])
    if name == "cur":
        np.testing.assert_allclose(xp.to_numpy(result[0].V), TALL[xp.to_numpy(result[1])].T)


def test_interpolation_is_exact_in_its_columns_and_near_the_best_elsewhere() -> None:
    B, columns = co.interpolative(SLOW, 20)
    np.testing.assert_allclose(B.to_dense()[:, columns], SLOW[:, columns], atol=1e-12)
    assert error(SLOW, B.to_dense()) < 10 * best(SLOW, 20)


def test_a_range_to_a_tolerance_has_the_rank_it_needs() -> None:
    for tol in (1e-1, 1e-2):
        for seed in range(10):
            Q, info = co.range_finder(
                SLOW, tol=tol, block=4, power_iterations=1, seed=seed, info=True
            )
            needed = next(rank for rank in range(41) if best(SLOW, rank) <= tol)
            Q = Q.to_dense()
            assert (
                error(SLOW, Q @ (Q.T @ SLOW)) <= tol
                and Q.shape[1] <= 1.5 * needed + 8
                and info.status == Status.SUCCESS
            )
    Q = co.range_finder(TALL, tol=1e-6, block=2)
    assert Q.shape == (50, 6) and Q.isa(co.Stiefel)
    assert np.abs(Q.to_dense().T @ Q.to_dense() - np.eye(6)).max() < 1e-12


def test_a_range_that_misses_its_tolerance_says_so() -> None:
    assert (
        co.range_finder(SLOW, rank=8, tol=1e-6, block=4, info=True)[1].status == Status.INACCURATE
    )
    assert co.range_finder(TALL, tol=1e-18, info=True)[1].status == Status.STAGNATION
    assert co.range_finder(SLOW, tol=1e-12, info=True)[0].shape == (40, 40)


@pytest.mark.parametrize("name", ["nystrom", "interpolative", "cur", "range_finder"])
def test_the_estimated_error_is_that_of_the_whole(name: str) -> None:
    A = co.PSD(KERNEL) if name == "nystrom" else SLOW
    ratios = []
    for seed in range(20):
        result, info = getattr(co, name)(A, 8, seed=seed, info=True)
        B = operator(result).to_dense()
        dense = KERNEL if name == "nystrom" else SLOW
        ratios.append(
            float(info.error) / error(dense, B @ (B.T @ dense) if name == "range_finder" else B)
        )
    assert 0.8 < np.mean(ratios) < 1.25


# ---------------------------------------------------------------------------------------------------- how they compose


def test_approximations_compose_with_rules() -> None:
    K = co.PSD(KERNEL)
    A = co.nystrom(K, 12) + 0.5 * co.Identity(60)
    assert "woodbury" in co.explain(co.solve, A).rules
    np.testing.assert_allclose(
        co.solve(A, np.ones(60)), np.linalg.solve(A.to_dense(), np.ones(60)), atol=1e-8
    )
    low, _, _ = co.cur(TALL, 5)
    assert co.rank(low) == 5
    Q = co.range_finder(TALL, 5)
    np.testing.assert_allclose(
        (co.Projection(Q.to_dense()) @ co.Dense(TALL)).to_dense(), TALL, atol=1e-10
    )


def test_batches_are_approximated_each() -> None:
    both = np.stack([KERNEL, 2 * KERNEL[::-1, ::-1]])
    for f in (co.nystrom, co.rp_cholesky):
        B, info = f(co.PSD(co.Dense(both)), 10, info=True)
        assert (
            B.shape == (2, 60, 60) and info.error.shape == (2,) and error(both, B.to_dense()) < 1e-2
        )
    low, rows, columns = co.cur(np.stack([TALL, TALL[::-1]]), 5)
    assert (
        rows.shape == columns.shape == (2, 5)
        and error(np.stack([TALL, TALL[::-1]]), low.to_dense()) < 1e-12
    )


def test_jax_compiles_them() -> None:
    jax = pytest.importorskip("jax")
    xp = backends.get("jax")
    B = jax.jit(lambda A: co.rp_cholesky(co.PSD(A), 10))(xp.asarray(KERNEL))
    assert error(KERNEL, np.asarray(B.to_dense())) < 1e-2
    C, rows, _ = jax.jit(lambda A: co.cur(A, 5))(xp.asarray(TALL))
    assert error(TALL, np.asarray(C.to_dense())) < 1e-10 and rows.shape == (5,)
    with pytest.raises(co.BackendError, match="Give a rank"):
        jax.jit(lambda A: co.range_finder(A, tol=0.1))(xp.asarray(TALL))


def test_a_derivative_reaches_the_operator() -> None:
    torch = pytest.importorskip("torch")
    length = torch.tensor(20.0, dtype=torch.float64, requires_grad=True)
    x = torch.tensor(POINTS)
    B = co.nystrom(co.PSD(torch.exp(-length * (x - x.T) ** 2)), 12)
    assert torch.isfinite(torch.autograd.grad(co.trace(B), length)[0])


# ---------------------------------------------------------------------------------------------------- bad input


def test_bad_ranks_and_operators_say_what_to_do() -> None:
    K = co.PSD(KERNEL)
    for f in (co.nystrom, co.rp_cholesky, co.range_finder, co.interpolative, co.cur):
        for rank in (0, -1, 61, 2.5):
            with pytest.raises(ValueError, match="rank"):
                f(K, rank)
    for f in POSITIVE.values():
        with pytest.raises(MethodError, match=r"PSD\(A\)"):
            f(KERNEL, 3)
        with pytest.raises(ShapeError, match="cur"):
            f(TALL, 3)
    with pytest.raises(ValueError, match="rank, or the tol"):
        co.range_finder(TALL)
    with pytest.raises(ValueError, match="tol"):
        co.range_finder(TALL, tol=-1.0)


def test_nan_is_reported() -> None:
    broken = KERNEL.copy()
    broken[3, 3] = np.nan
    for f in (co.nystrom, co.rp_cholesky):
        assert f(co.PSD(broken), 4, info=True)[1].status == Status.NONFINITE
    assert co.range_finder(broken, tol=0.1, info=True)[1].status == Status.NONFINITE


def test_zero_is_approximated_by_zero() -> None:
    zero = np.zeros((6, 6))
    for f in (co.nystrom, co.rp_cholesky):
        assert np.abs(f(co.PSD(zero), 2).to_dense()).max() < 1e-25
    assert (
        not co.cur(zero, 2)[0].to_dense().any()
        and not co.interpolative(zero, 2)[0].to_dense().any()
    )
    assert co.range_finder(zero, tol=0.1).shape[0] == 6


def test_an_indefinite_operator_said_to_be_positive_is_noticed() -> None:
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((30, 30)))[0]
    for matrix in ((Q * np.linspace(-1, 1, 30)) @ Q.T, np.array([[1.0, 2.0], [2.0, 1.0]])):
        for approximate in (co.nystrom, co.rp_cholesky):
            with pytest.warns(co.ConvergenceWarning, match="POSITIVE|NaN"):
                approximate(co.PSD(matrix), 2)
            assert approximate(co.PSD(matrix), 2, info=True)[1].failed


@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_products_that_fail_fail_the_approximation(name: str) -> None:
    xp = backends.get(name)
    hard = co.opaque(co.PSD(co.Diagonal(xp.asarray(np.logspace(0, 6, 30)))))
    inverse = co.opaque(co.PSD(co.inv(hard, co.CG(max_iters=4))))
    assert co.nystrom(inverse, 3, info=True)[1].status is co.Status.MAX_ITERATIONS


@pytest.mark.parametrize("rank", [5, 300])
@pytest.mark.parametrize("zeros", [1, 300])
def test_columns_beside_a_zero_diagonal_show_that_an_operator_is_indefinite(
    rank: int, zeros: int
) -> None:
    x = np.linspace(0, 1, 300)
    K = np.exp(-abs(x[:, None] - x))
    singular = K.copy()
    singular[:zeros] = singular[:, :zeros] = 0
    assert not co.rp_cholesky(co.PSD(singular), rank, info=True)[1].failed
    K[range(zeros), range(zeros)] = 0
    _, info = co.rp_cholesky(co.PSD(K), rank, info=True)
    assert info.status is co.Status.NOT_POSITIVE_DEFINITE
