"""Estimators against their formulas: means and variances over thousands of independent runs, which a batch is."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co

RUNS = 4000


def batch(matrix: np.ndarray, runs: int = RUNS) -> co.LinearOperator:
    """The same matrix many times: each has random vectors of its own."""
    return co.Dense(np.broadcast_to(matrix, (runs, *matrix.shape)).copy())


def symmetric(n: int, seed: int = 0) -> np.ndarray:
    G = np.random.default_rng(seed).standard_normal((n, n))
    return (G + G.T) / 2


def agrees(samples: np.ndarray, mean: complex, variance: float) -> None:
    """The mean lies within four standard errors, and the variance within 12 %: a wrong constant does not pass."""
    size = np.sqrt(variance / len(samples))
    assert abs(samples.mean() - mean) <= 4 * size + 1e-12
    assert abs(samples.var() - variance) <= 0.12 * variance + 1e-20


def frobenius(A: np.ndarray) -> float:
    return float((np.abs(A) ** 2).sum())


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian", "sphere"])
def test_trace_is_unbiased_with_the_variance_of_the_formula(distribution: str) -> None:
    n, probes = 6, 5
    A = symmetric(n)
    variance = {
        "rademacher": 2 * (frobenius(A) - (np.diag(A) ** 2).sum()),
        "gaussian": 2 * frobenius(A),
        "sphere": 2 * n / (n + 2) * (frobenius(A) - np.trace(A) ** 2 / n),
    }[distribution]
    found, info = co.trace(batch(A), co.Hutchinson(probes, distribution), info=True)
    agrees(found, np.trace(A), variance / probes)
    assert abs((info.error**2).mean() - variance / probes) <= 0.1 * variance / probes


def test_complex_hermitian_traces_have_half_the_variance() -> None:
    rng = np.random.default_rng(1)
    G = rng.standard_normal((5, 5)) + 1j * rng.standard_normal((5, 5))
    A = (G + G.conj().T) / 2
    agrees(co.trace(batch(A), co.Hutchinson(4, "gaussian")), np.trace(A), frobenius(A) / 4)
    agrees(
        co.trace(batch(A), co.Hutchinson(4)),
        np.trace(A),
        (frobenius(A) - (np.abs(np.diag(A)) ** 2).sum()) / 4,
    )


def test_nonsymmetric_matrices_count_by_their_symmetric_part() -> None:
    A = np.random.default_rng(2).standard_normal((6, 6))
    S = (A + A.T) / 2
    agrees(co.trace(batch(A), co.Hutchinson(3, "gaussian")), np.trace(A), 2 * frobenius(S) / 3)


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian"])
def test_each_entry_of_the_diagonal_has_the_variance_of_the_formula(distribution: str) -> None:
    A = symmetric(5, 3)
    found, info = co.diag(batch(A), co.Hutchinson(4, distribution), info=True)
    rows = (A**2).sum(1)
    variance = rows - np.diag(A) ** 2 if distribution == "rademacher" else rows + np.diag(A) ** 2
    for i in range(5):
        agrees(found[:, i], A[i, i], variance[i] / 4)
    assert info.error.shape == found.shape


def terms(m: int, n: int, seed: int = 4) -> np.ndarray:
    return np.stack([symmetric(n, seed + i) for i in range(m)])


def test_doubly_stochastic_variance_is_the_sum_over_terms() -> None:
    """The paper: Var = 2/(m n) tr(mean of A_i^2) for the mean of m terms with n Gaussian probes."""
    m, n, probes = 8, 4, 2
    T = terms(m, n)
    A = co.BatchSum(co.Dense(np.broadcast_to(T, (RUNS, m, n, n)).copy()), axis=1) / m
    expected = 2 / (m * probes) * np.trace(np.mean(T @ T, axis=0))
    found, info = co.trace(A, co.Hutchinson(probes, "gaussian", per_term=True), info=True)
    agrees(found, np.trace(T.mean(0)), expected)
    shared = co.trace(A, co.Hutchinson(probes, "gaussian"))
    agrees(shared, np.trace(T.mean(0)), 2 / probes * frobenius(T.mean(0)))
    assert abs((info.error**2).mean() - expected) <= 0.1 * expected


def test_minibatches_of_terms_share_a_vector() -> None:
    m, n, size = 6, 4, 2
    T = terms(m, n)
    A = co.BatchSum(co.Dense(np.broadcast_to(T, (RUNS, m, n, n)).copy()), axis=1)
    groups = T.reshape(m // size, size, n, n).sum(1)
    expected = sum(2 * frobenius(g) for g in groups)
    agrees(co.trace(A, co.Hutchinson(1, "gaussian", batch_size=size)), np.trace(T.sum(0)), expected)
    several = co.Sum(*(batch(t) for t in T))
    agrees(
        co.trace(several, co.Hutchinson(1, "gaussian", batch_size=size)),
        np.trace(T.sum(0)),
        expected,
    )


@pytest.mark.parametrize("size", [1, 3])
def test_gram_products_and_low_rank_are_sums_over_rows(size: int) -> None:
    """7 rows do not divide by 3: the last group is smaller."""
    X = np.random.default_rng(5).standard_normal((7, 4))
    wide = co.Dense(np.broadcast_to(X, (RUNS, 7, 4)).copy())
    groups = [X[i : i + size].T @ X[i : i + size] for i in range(0, 7, size)]
    expected = sum(2 * (frobenius(g) - (np.diag(g) ** 2).sum()) for g in groups)
    method = co.Hutchinson(1, batch_size=size)
    agrees(co.trace(wide.T @ wide, method), np.trace(X.T @ X), expected)
    low_rank = co.LowRank(np.broadcast_to(X.T, (RUNS, 4, 7)).copy())
    agrees(co.trace(low_rank, method), np.trace(X.T @ X), expected)
    diagonal = co.diag(wide.T @ wide, method)
    agrees(diagonal[:, 1], (X.T @ X)[1, 1], sum((g[1] ** 2).sum() - g[1, 1] ** 2 for g in groups))


def test_what_stands_beside_the_terms_is_a_term_of_its_own() -> None:
    """Of X^T X / 7 + 3 I the rows of X are the terms, as they are for SVRG; signs give the shift exactly."""
    X = np.random.default_rng(5).standard_normal((7, 4))
    wide = co.Dense(np.broadcast_to(X, (RUNS, 7, 4)).copy())
    A = wide.T @ wide / 7 + 3 * co.Identity(4)
    rows = [np.outer(x, x) / 7 for x in X]
    expected = sum(2 * (frobenius(g) - (np.diag(g) ** 2).sum()) for g in rows)
    agrees(co.trace(A, co.Hutchinson(1, per_term=True)), np.trace(X.T @ X) / 7 + 12, expected)
    weights = np.arange(1.0, 8.0)
    weighted = wide.T @ co.Diagonal(weights) @ wide
    expected = sum(
        w**2 * 2 * 49 * (frobenius(g) - (np.diag(g) ** 2).sum()) for w, g in zip(weights, rows)
    )
    agrees(
        co.trace(weighted, co.Hutchinson(1, per_term=True)),
        (weights[:, None] * X**2).sum(),
        expected,
    )


@pytest.mark.parametrize(
    "method", [co.HutchPP(9), co.XTrace(8), co.XNysTrace(5)], ids=lambda m: m.name
)
def test_range_finding_estimators_are_unbiased(method: co.HutchPP) -> None:
    lam = np.linspace(1, 4, 12) ** 2
    Q = np.linalg.qr(np.random.default_rng(6).standard_normal((12, 12)))[0]
    found = co.trace(co.PSD(batch((Q * lam) @ Q.T)), method)
    assert abs(found.mean() - lam.sum()) <= 4 * found.std() / np.sqrt(RUNS)


def test_xdiag_is_unbiased_entry_by_entry() -> None:
    A = symmetric(10, 7) @ symmetric(10, 8)
    found = co.diag(batch(A), co.XDiag(8))
    assert (abs(found.mean(0) - np.diag(A)) <= 4.5 * found.std(0) / np.sqrt(RUNS)).all()


def spectrum(kind: str, n: int) -> np.ndarray:
    return {
        "flat": np.linspace(1, 3, n),
        "polynomial": np.arange(1.0, n + 1) ** -2,
        "slow": np.arange(1.0, n + 1) ** -0.5,
    }[kind]


COVERED = [
    co.Hutchinson(30),
    co.Hutchinson(60, "gaussian"),
    co.HutchPP(60),
    co.XTrace(40),
    co.XNysTrace(24),
]


@pytest.mark.parametrize("kind", ["flat", "polynomial", "slow"])
@pytest.mark.parametrize(
    "method", COVERED, ids=lambda m: f"{m.name}-{getattr(m, 'distribution', '')}"
)
def test_intervals_of_95_percent_cover_as_often(method: co.Hutchinson, kind: str) -> None:
    n, runs = 80, 500
    lam = spectrum(kind, n)
    Q = np.linalg.qr(np.random.default_rng(9).standard_normal((n, n)))[0]
    found, info = co.trace(co.PSD(batch((Q * lam) @ Q.T, runs)), method, info=True)
    covered = (abs(found - lam.sum()) <= 1.96 * info.error).mean()
    assert 0.90 <= covered <= 0.99, covered


def test_intervals_of_diagonals_cover_as_often() -> None:
    n, runs = 40, 200
    lam = spectrum("slow", n)
    Q = np.linalg.qr(np.random.default_rng(9).standard_normal((n, n)))[0]
    A = (Q * lam) @ Q.T
    for method in (co.Hutchinson(30), co.HutchPP(60), co.XDiag(30)):
        found, info = co.diag(batch(A, runs), method, info=True)
        covered = (abs(found - np.diag(A)) <= 1.96 * info.error).mean()
        assert 0.90 <= covered <= 0.99, (method, covered)


def test_xtrace_falls_as_published_and_hutchinson_does_not() -> None:
    """For eigenvalues 0.7^i: about as the best approximation of rank probes / 2 leaves, 0.7^(probes / 2)."""
    n, runs = 200, 8
    lam = 0.7 ** np.arange(n)
    Q = np.linalg.qr(np.random.default_rng(10).standard_normal((n, n)))[0]
    A = co.PSD(batch((Q * lam) @ Q.T, runs))
    exact = lam.sum()
    errors = {
        k: float(np.sqrt(((co.trace(A, co.XTrace(k)) - exact) ** 2).mean()) / exact)
        for k in (20, 40, 60, 80)
    }
    for k in (20, 40, 60):
        # ten vectors more: a factor of 35, less a little
        assert errors[k + 20] <= 0.7**10 * 4 * errors[k]
        assert errors[k] <= 10 * 0.7 ** (k / 2)
    nystrom = float(np.sqrt(((co.trace(A, co.XNysTrace(40)) - exact) ** 2).mean()) / exact)
    assert nystrom <= 10 * 0.7**40
    plain = float(np.sqrt(((co.trace(A, co.Hutchinson(80)) - exact) ** 2).mean()) / exact)
    assert plain > 1e3 * errors[80]
