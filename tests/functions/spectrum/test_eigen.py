"""Iterative eigenvalues: all members of clusters, honest residuals, and as few products as ARPACK."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import colinear as co
from colinear import backends
from colinear.status import Status

DATA = Path(
    os.environ.get("COLINEAR_DATA", Path(__file__).resolve().parents[4] / "shared" / "data")
)
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="the folder of real matrices is not there"
)

SPECTRA = {
    "separated": np.arange(1.0, 121.0),
    "clustered": np.r_[np.linspace(0, 1, 112), 5 + 1e-9 * np.arange(4), 7.0],
    "repeated": np.r_[np.linspace(0, 0.5, 110), np.full(3, 0.9), np.ones(5)],
    "identity": np.ones(80),
    "zero": np.zeros(80),
    "rank 4": np.r_[np.zeros(90), 1.0, 2.0, 2.0, 3.0],
    "graded": 10.0 ** -np.arange(60),
    "both signs": np.r_[-np.arange(1.0, 61.0), np.arange(1.0, 62.0)],
}


def hermitian(rng: np.random.Generator, values: np.ndarray, dtype: Any = np.float64) -> np.ndarray:
    n = len(values)
    G = rng.standard_normal((n, n)) + (
        1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else 0
    )
    Q = np.linalg.qr(G)[0]
    A = (Q * values) @ Q.conj().T
    return ((A + A.conj().T) / 2).astype(dtype)


def best(values: np.ndarray, k: int, which: str) -> np.ndarray:
    key = np.abs(values) if which[1] == "M" else values
    order = np.argsort(-key if which[0] == "L" else key, kind="stable")
    return np.sort(values[order[:k]])


def check_pairs(A: np.ndarray, values: Any, vectors: Any, info: Any, tol: float = 2e-8) -> None:
    """k pairs, orthonormal, with residuals as reported."""
    w, V = np.asarray(values), np.asarray(vectors.to_dense())
    size = max(np.linalg.norm(A, 2), 1e-300)
    assert np.abs(V.conj().T @ V - np.eye(V.shape[1])).max() < 1e-12
    assert np.linalg.norm(A @ V - V * w, axis=0).max() <= tol * size
    assert info.converged.shape == w.shape and bool(info.converged.all())
    assert info.residual.shape == w.shape


@pytest.mark.parametrize(
    "method",
    [co.Lanczos(), co.Lanczos(orthogonalisation="householder"), co.LOBPCG()],
    ids=["gs", "hh", "lobpcg"],
)
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("which", ["LA", "SA"])
def test_all_members_of_the_wanted_end_are_found(
    method: Any, name: str, which: str, rng: np.random.Generator
) -> None:
    A = hermitian(rng, SPECTRA[name])
    (values, vectors), info = co.eig(A, 7, which, method, info=True)
    check_pairs(A, values, vectors, info)
    np.testing.assert_allclose(
        values, best(SPECTRA[name], 7, which), atol=1e-7 * np.abs(SPECTRA[name]).max()
    )
    assert info.method == method.name and info.matvecs > 0 and info.iterations > 0
    assert vectors.isa(co.Stiefel)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_every_dtype_is_kept(backend: str, dtype: str, rng: np.random.Generator) -> None:
    xp = backends.get(backend)
    A = hermitian(rng, SPECTRA["both signs"], dtype)
    (values, vectors), info = co.eig(xp.asarray(A), 4, "LM", co.Lanczos(), info=True)
    assert info.status == Status.SUCCESS
    assert vectors.dtype == getattr(xp, dtype) and values.dtype == xp.real_dtype(vectors.dtype)
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(
        np.sort(np.abs(xp.to_numpy(values))), [59, 60, 60, 61], rtol=100 * eps
    )


def test_jax_runs_one_program_and_does_not_trace_again(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    traces = []

    def multiply(X: Any, d: Any) -> Any:
        traces.append(1)
        return d[:, None] * X

    d = jax.numpy.asarray(SPECTRA["repeated"])
    operator = co.SelfAdjoint(co.MatrixFree(multiply, (118, 118), parameters=(d,)))
    (values, _), info = co.eig(operator, 6, "LA", co.Lanczos(), info=True)
    np.testing.assert_allclose(values, best(SPECTRA["repeated"], 6, "LA"), atol=1e-9)
    assert bool(info.converged.all())
    count = len(traces)
    again = co.SelfAdjoint(co.MatrixFree(multiply, (118, 118), parameters=(2 * d,)))
    np.testing.assert_allclose(co.eig(again, 6, "LA", co.Lanczos())[0], 2 * values, atol=1e-8)
    assert len(traces) == count
    assert float(
        jax.grad(
            lambda c: co.eig(
                co.SelfAdjoint(co.Dense(c * jax.numpy.diag(d))), 1, "LA", co.Lanczos()
            )[0][0]
        )(1.0)
    ) == (pytest.approx(1.0))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_batches_advance_together(backend: str, rng: np.random.Generator) -> None:
    xp = backends.get(backend)
    A = np.stack(
        [hermitian(rng, SPECTRA["repeated"]), hermitian(rng, SPECTRA["repeated"][::-1] * 2)]
    )[:, None]
    values, vectors = co.eig(xp.asarray(A), 6, "LA", co.Lanczos())
    assert tuple(values.shape) == (2, 1, 6) and vectors.shape == (2, 1, 118, 6)
    np.testing.assert_allclose(
        xp.to_numpy(values)[1, 0], 2 * best(SPECTRA["repeated"], 6, "LA"), atol=1e-7
    )


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_tiny_operators_and_all_of_the_spectrum(n: int, rng: np.random.Generator) -> None:
    A = hermitian(rng, np.arange(1.0, n + 1))
    for k in {1, max(1, n - 1), n}:
        np.testing.assert_allclose(
            co.eig(A, k, "LA", co.Lanczos())[0], np.arange(n - k + 1.0, n + 1), atol=1e-10
        )
        np.testing.assert_allclose(
            np.sort(co.eig(A, k, "LM", co.Arnoldi())[0].real),
            np.arange(n - k + 1.0, n + 1),
            atol=1e-10,
        )


def test_more_pairs_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="has 3 eigenvalues"):
        co.eig(np.eye(3), 4, "LM", co.Lanczos())


def test_nan_in_a_product_stops_at_once() -> None:
    calls = []

    def multiply(X: Any) -> Any:
        calls.append(1)
        return X * (np.nan if len(calls) == 5 else np.arange(600.0)[:, None])

    A = co.SelfAdjoint(co.MatrixFree(multiply, (600, 600), dtype=float))
    _, info = co.eig(A, 3, "LA", co.Lanczos(), info=True)
    assert info.status == Status.NONFINITE and "at iteration 5" in info.message
    assert len(calls) <= 7


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_nan_stops_arnoldi_too(backend: str) -> None:
    xp, calls = backends.get(backend), []
    d = xp.asarray(np.arange(600.0))[:, None]

    def multiply(X: Any) -> Any:
        calls.append(1)
        return X * float("nan") if len(calls) == 5 else X * d

    _, info = co.eig(
        co.MatrixFree(multiply, (600, 600), dtype=xp.float64, like=d),
        3,
        "LM",
        co.Arnoldi(),
        info=True,
    )
    assert info.status == Status.NONFINITE and "at iteration 5" in info.message and len(calls) <= 6


def test_too_few_iterations_and_a_tolerance_below_rounding_are_flagged() -> None:
    A = co.opaque(co.Diagonal(np.arange(2000.0)))
    _, info = co.eig(A, 4, "SA", co.Lanczos(max_iters=30), info=True)
    assert info.status == Status.MAX_ITERATIONS and not info.converged.all()
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        co.eig(A, 4, "SA", co.Lanczos(max_iters=30))
    _, info = co.eig(A, 4, "LA", co.Lanczos(tol=1e-19), info=True)
    assert info.status == Status.STAGNATION and info.residual.max() < 1e-13


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("n", [6, 30, 60])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_residuals_of_a_few_roundings_can_be_had(framework: str, n: int, dtype: Any) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        M = rng.standard_normal((n, n)) + (
            1j * rng.standard_normal((n, n)) if dtype is np.complex128 else 0
        )
        H, xp = M @ M.conj().T, backends.get(framework)
        A = co.opaque(co.SelfAdjoint(co.Dense(xp.asarray(H))))
        (values, vectors), info = co.eig(A, 2, "LM", co.Lanczos(tol=1e-15), info=True)
        w, V = xp.to_numpy(values), xp.to_numpy(vectors.to_dense())
        assert np.linalg.norm(H @ V - V * w, axis=0).max() <= 5e-15 * np.linalg.norm(H, 2)
        assert info.status in (Status.SUCCESS, Status.STAGNATION)
        assert (info.status == Status.SUCCESS) == bool(info.converged.all())


def test_lobpcg_with_a_block_that_spans_the_space_stays_accurate(rng: np.random.Generator) -> None:
    A = hermitian(rng, np.arange(1.0, 7.0))
    (values, vectors), info = co.eig(A, 2, "LA", co.LOBPCG(tol=1e-15), info=True)
    V = vectors.to_dense()
    assert np.abs(A @ V - V * values).max() < 1e-13 and not info.status == Status.MAX_ITERATIONS


def test_what_is_not_self_adjoint_is_noticed(rng: np.random.Generator) -> None:
    for k in (3, 60):
        _, info = co.eig(
            rng.standard_normal((60, 60)), k, "LA", co.Lanczos(max_iters=2000), info=True
        )
        assert info.failed and not info.converged.all()


def test_a_callback_sees_residuals_and_may_stop() -> None:
    seen = []

    def callback(progress: Any) -> bool:
        seen.append((progress.iteration, progress.residual.max()))
        return len(seen) == 2

    A = co.opaque(co.Diagonal(np.arange(2000.0)))
    _, info = co.eig(A, 3, "SA", co.Lanczos(callback=callback), info=True)
    assert info.status == Status.STOPPED and len(seen) == 2 and seen[1][0] > seen[0][0]


@pytest.mark.parametrize("which", ["LA", "SA", "LM"])
def test_as_few_products_as_arpack(which: str) -> None:
    d = np.r_[np.linspace(0, 1, 1500) ** 2, 1.05, 1.1, 1.2, -0.05, -0.1, -0.2]
    counts = [0, 0]

    def arpack(x: np.ndarray) -> np.ndarray:
        counts[0] += 1
        return d * x

    def ours(X: np.ndarray) -> np.ndarray:
        counts[1] += X.shape[1]
        return d[:, None] * X

    n = len(d)
    A, B = (
        sla.LinearOperator((n, n), matvec=arpack, dtype=float),
        co.SelfAdjoint(co.MatrixFree(ours, (n, n), dtype=float)),
    )
    sla.eigsh(A, 3, which=which, v0=np.ones(n))
    co.eig(B, 3, which, co.Lanczos())
    assert counts[1] <= counts[0]  # each at its own defaults
    counts[:] = 0, 0
    sla.eigsh(A, 3, which=which, tol=1e-8, v0=np.ones(n))
    co.eig(B, 3, which, co.Lanczos(tol=1e-8, basis=20, repeated=False))
    # with as many vectors, and without the second look that finds repeated eigenvalues
    assert counts[1] <= 1.1 * counts[0]


@pytest.mark.parametrize("which", ["LM", "LR", "SR"])
def test_as_few_products_as_arpack_for_nonsymmetric_operators(which: str) -> None:
    S = sp.csr_array(
        laplacian(25) + 0.4 * sp.diags_array([np.ones(624), -np.ones(624)], offsets=[1, -1])
    )
    counts = [0, 0]

    def arpack(x: np.ndarray) -> np.ndarray:
        counts[0] += 1
        return S @ x

    def ours(X: np.ndarray) -> np.ndarray:
        counts[1] += X.shape[1]
        return S @ X

    theirs = sla.eigs(
        sla.LinearOperator(S.shape, matvec=arpack, dtype=float), 4, which=which, v0=np.ones(625)
    )[0]
    A = co.MatrixFree(ours, S.shape, dtype=float)
    counts[1] = 0  # the constructor may call the function, to find what it closes over
    (values, _), info = co.eig(A, 4, which, co.Arnoldi(), info=True)
    assert info.status == Status.SUCCESS and counts[1] <= counts[0]
    # the four complex vectors of the last check arrive as eight real columns
    assert info.matvecs == counts[1] - 4
    np.testing.assert_allclose(np.sort(np.real(values)), np.sort(theirs.real), rtol=1e-5)


@pytest.mark.parametrize("k", [1, 4, 10])
def test_memory_is_3k_plus_20_vectors(k: int) -> None:
    import tracemalloc

    n = 100_000
    A = co.opaque(co.Diagonal(np.r_[np.linspace(0, 1, n - k), 2.0 + np.arange(k)]))
    co.eig(co.opaque(co.Diagonal(np.arange(500.0))), k, "LA", co.Lanczos())
    tracemalloc.start()
    co.eig(A, k, "LA", co.Lanczos())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= (3 * k + 20) * n * 8


# ---------------------------------------------------------------------------------------------------- inverses and choices


def laplacian(n: int) -> sp.csr_array:
    T = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(T, sp.eye_array(n)) + sp.kron(sp.eye_array(n), T))


def test_smallest_and_interior_pairs_go_through_the_inverse() -> None:
    L = laplacian(40)
    w = 2 - 2 * np.cos(np.pi * np.arange(1, 41) / 41)
    exact = np.sort((w[:, None] + w).ravel())
    A = co.PSD(co.Sparse(L))
    (values, _), info = co.eig(A, 6, "SA", info=True)
    np.testing.assert_allclose(values, exact[:6], rtol=1e-9)
    assert info.matvecs < 150 and info.method == "Lanczos"
    (values, _), info = co.eig(A, 5, "SM", co.Lanczos(shift=3.0001), info=True)
    np.testing.assert_allclose(
        values, np.sort(exact[np.argsort(np.abs(exact - 3.0001))[:5]]), rtol=1e-9
    )
    (values, _), info = co.eig(
        co.SelfAdjoint(co.Sparse(L - 3.0001 * sp.eye_array(1600))), 5, "SM", info=True
    )
    np.testing.assert_allclose(
        values + 3.0001, np.sort(exact[np.argsort(np.abs(exact - 3.0001))[:5]]), rtol=1e-9
    )
    singular = co.PSD(co.Sparse(sp.csr_array(L - sp.diags_array(np.asarray(L.sum(1)).ravel()))))
    assert abs(co.eigmin(singular)) < 1e-12


INSIDE = {
    "gap": np.r_[-np.linspace(0.3, 10, 2000), np.linspace(0.35, 10, 2000)],
    "symmetric": np.r_[-np.linspace(0.3, 10, 2000), np.linspace(0.3, 10, 2000)],
    "repeated": np.r_[np.linspace(-3, 5, 1000), np.full(4, 0.0013)],
    "zero": np.zeros(500),
}


@pytest.mark.parametrize("name", INSIDE)
def test_pairs_inside_the_spectrum_need_products_alone(name: str) -> None:
    d = INSIDE[name]
    (values, vectors), info = co.eig(co.opaque(co.Diagonal(d)), 4, "SM", co.Lanczos(), info=True)
    np.testing.assert_allclose(np.sort(np.abs(values)), np.sort(np.abs(d))[:4], atol=1e-7)
    V = vectors.to_dense()
    assert (
        info.status == Status.SUCCESS
        and info.converged.all()
        and np.abs(V.T @ V - np.eye(4)).max() < 1e-12
    )
    assert np.abs(d[:, None] * V - V * values).max() < 1e-6


def test_a_reflection_has_no_pair_nearer_to_zero_than_another_and_says_so() -> None:
    # every vector is an eigenvector of A^2
    A = co.opaque(co.Diagonal(np.r_[-np.ones(250), np.ones(250)]))
    (values, vectors), info = co.eig(A, 4, "SM", co.Lanczos(), info=True)
    V = vectors.to_dense()
    assert info.failed or np.abs(A @ V - V * values).max() < 1e-7


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_pairs_near_a_shift_need_no_inverse(backend: str) -> None:
    xp = backends.get(backend)
    d = np.stack([np.linspace(-1, 3, 700), np.linspace(-2, 1, 700) ** 3])
    A = co.opaque(co.Diagonal(xp.asarray(d)))
    (values, _), info = co.eig(A, 3, "SM", co.Lanczos(shift=0.4321), info=True)
    exact = np.stack([np.sort(row[np.argsort(np.abs(row - 0.4321))[:3]]) for row in d])
    np.testing.assert_allclose(xp.to_numpy(values), exact, atol=1e-7)
    assert info.status == Status.SUCCESS and tuple(info.residual.shape) == (2, 3)


def test_smallest_pairs_that_converge_slowly_are_left_to_a_polynomial() -> None:
    d = np.r_[np.linspace(0, 1, 1500) ** 2, 1.05, 1.1, 1.2, -0.05, -0.1, -0.2]
    (values, _), info = co.eig(co.opaque(co.Diagonal(d)), 8, "SA", co.Lanczos(), info=True)
    np.testing.assert_allclose(values, np.sort(d)[:8], atol=1e-9)
    assert info.status == Status.SUCCESS and info.matvecs < 12_000  # ARPACK takes 90 000
    hard = co.eig(
        co.opaque(co.PSD(co.Diagonal(np.linspace(1e-4, 1, 3000) ** 4))),
        4,
        "SM",
        co.Lanczos(max_iters=3000),
        info=True,
    )[1]
    assert hard.status == Status.MAX_ITERATIONS and hard.matvecs < 4000


def test_pairs_inside_a_nonsymmetric_spectrum_are_dense_or_flagged(
    rng: np.random.Generator,
) -> None:
    G = rng.standard_normal((450, 450))
    A = co.MatrixFree(lambda X: G @ X, (450, 450), dtype=float)
    for which in ("SM", "SI"):
        assert co.explain(co.eig, A, 3, which).rules == ["Eig"]
    values, _ = co.eig(A, 3, "SM")
    np.testing.assert_allclose(np.abs(values), np.sort(np.abs(np.linalg.eigvals(G)))[:3], rtol=1e-8)
    _, info = co.eig(A, 3, "SM", co.Arnoldi(max_iters=2000), info=True)
    assert info.failed
    with pytest.raises(co.MethodError, match="no cheap inverse"):
        co.eig(A, 3, "SM", co.Arnoldi(shift=1.0))


def test_a_shift_by_the_identity_does_not_ask_for_all_pairs() -> None:
    d = np.arange(12_000.0)
    values, _ = co.eig(co.opaque(co.Diagonal(d)) - 9000 * co.Identity(12_000), 2, "LM")
    np.testing.assert_allclose(values, [-9000, -8999])


def test_zeros_of_small_components_spare_the_large_one() -> None:
    L = laplacian(25)
    L = sp.csr_array(L - sp.diags_array(np.asarray(L.sum(1)).ravel()))
    S = sp.csr_array(sp.block_diag([L, *[np.array([[1.0, -1.0], [-1.0, 1.0]])] * 9]))
    (values, _), info = co.eig(co.PSD(co.Sparse(S)), 8, "SA", info=True)
    np.testing.assert_allclose(values, np.zeros(8), atol=1e-15)
    assert len(info.children) == 1 and info.children[0].method == "Eigh"
    assert len(co.eig(co.PSD(co.Sparse(S)), 10, "SA", info=True)[1].children) == 2


def test_components_of_a_graph_are_found_each() -> None:
    L = laplacian(25)
    L = sp.csr_array(L - sp.diags_array(np.asarray(L.sum(1)).ravel()))
    A = co.PSD(
        co.Sparse(
            sp.csr_array(
                sp.block_diag([L, *[np.array([[1.0, -1.0], [-1.0, 1.0]])] * 9, np.zeros((2, 2))])
            )
        )
    )
    (values, vectors), info = co.eig(A, 12, "SA", info=True)
    np.testing.assert_allclose(values, np.zeros(12), atol=1e-10)
    V = vectors.to_dense()
    assert np.abs(A @ V).max() < 1e-7 and np.abs(V.T @ V - np.eye(12)).max() < 1e-10
    assert info.residual.shape == (12,) and info.converged.all() and info.rule == "eig_components"
    assert "eig_components" in co.explain(co.eig, A, 12, "SA").rules


def test_auto_iterates_for_few_pairs_of_large_operators_only(rng: np.random.Generator) -> None:
    D = co.opaque(co.Diagonal(np.arange(20_000.0)))
    assert co.explain(co.eig, D, 3, "LA").rules == ["Lanczos"]
    assert co.explain(co.eig, np.triu(np.ones((50, 50))), 3).rules == ["Eig"]
    assert co.explain(
        co.eig, co.MatrixFree(lambda X: X, (20_000, 20_000), dtype=float), 3, "LR"
    ).rules == ["Arnoldi"]
    np.testing.assert_allclose(co.eigmax(D), 19_999.0)
    with pytest.raises(co.TooLargeError):  # all of them need the matrix
        co.eig(co.opaque(co.Diagonal(np.arange(40_000.0))))
    A = rng.standard_normal((600, 600))
    np.testing.assert_allclose(
        np.abs(co.eig(A, 3)[0]), np.sort(np.abs(np.linalg.eigvals(A)))[::-1][:3], rtol=1e-7
    )


def test_half_precision_neither_overflows_nor_fails(rng: np.random.Generator) -> None:
    for xp, name in (
        (backends.get("numpy"), "float16"),
        (backends.get("torch"), "bfloat16"),
        (backends.get("torch"), "float16"),
    ):
        A = xp.astype(
            xp.asarray(hermitian(rng, np.r_[np.linspace(0, 30000, 100), 50000.0])),
            getattr(xp, name),
        )
        for method in (co.Lanczos(), co.Arnoldi(), co.LOBPCG()):
            values, vectors = co.eig(
                co.SelfAdjoint(A), 2, "LM" if isinstance(method, co.Arnoldi) else "LA", method
            )
            largest = np.abs(xp.to_numpy(xp.astype(xp.abs(values), xp.float32))).max()
            assert (
                abs(largest - 50000) < 600
                and np.isfinite(xp.to_numpy(xp.astype(vectors.to_dense(), xp.complex64))).all()
            )


# ---------------------------------------------------------------------------------------------------- Arnoldi


@pytest.mark.parametrize("which", ["LM", "LR", "SR", "SM", "LI"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_arnoldi_agrees_with_lapack(
    which: str, backend: str, kind: str, rng: np.random.Generator
) -> None:
    xp = backends.get(backend)
    A = rng.standard_normal((150, 150)) + (
        1j * rng.standard_normal((150, 150)) if kind == "complex" else 0
    )
    (values, vectors), info = co.eig(xp.asarray(A), 6, which, co.Arnoldi(), info=True)
    exact = np.linalg.eigvals(A)
    part = {"M": np.abs, "R": np.real, "I": lambda x: np.abs(np.imag(x))}[which[1]]
    key = np.sort(part(exact))[:6] if which[0] == "S" else np.sort(part(exact))[::-1][:6]
    w, V = xp.to_numpy(values), xp.to_numpy(vectors.to_dense())
    np.testing.assert_allclose(part(w), key, rtol=1e-6, atol=1e-6)
    assert np.linalg.norm(A @ V - V * w, axis=0).max() < 1e-6 and bool(info.converged.all())


def test_arnoldi_of_defective_normal_and_degenerate_matrices(rng: np.random.Generator) -> None:
    J = np.diag(np.r_[np.full(4, 2.0), np.linspace(0, 1, 100)])
    J[0, 1] = J[2, 3] = 1
    (values, _), info = co.eig(J, 4, "LM", co.Arnoldi(), info=True)
    assert np.abs(values - 2).max() < 1e-6 and info.residual.max() < 1e-7
    P = np.roll(np.eye(60), 1, axis=0)
    turn = np.exp(2j * np.pi / 60)
    assert np.abs(co.eig(P, 3, "LR", co.Arnoldi())[0] - [1, turn, turn.conj()]).max() < 1e-7
    for A in (np.eye(50), np.zeros((50, 50)), np.outer(np.ones(50), np.arange(50.0))):
        values, _ = co.eig(A, 3, "LM", co.Arnoldi())
        np.testing.assert_allclose(
            np.abs(values),
            np.sort(np.abs(np.linalg.eigvals(A)))[::-1][:3],
            atol=1e-9 * (1 + np.abs(A).max()),
        )
    values, _ = co.eig(J, 2, "LM", co.Arnoldi(orthogonalisation="householder"))
    assert np.abs(values - 2).max() < 1e-6


def test_arnoldi_of_batches_and_in_jax(rng: np.random.Generator) -> None:
    jnp = pytest.importorskip("jax.numpy")
    A = rng.standard_normal((2, 60, 60)) + np.diag(np.r_[40.0, 30.0, np.zeros(58)])
    exact = -np.sort(-np.abs(np.linalg.eigvals(A)), axis=-1)[:, :2]
    np.testing.assert_allclose(np.abs(co.eig(A, 2, "LM", co.Arnoldi())[0]), exact, rtol=1e-7)
    np.testing.assert_allclose(
        np.abs(co.eig(jnp.asarray(A[0]), 2, "LM", co.Arnoldi())[0]), exact[0], rtol=1e-7
    )


def test_power_iteration_finds_the_largest_or_says_that_there_is_none() -> None:
    (values, _), info = co.eig(np.diag([1.0, 2.0, -5.0]), 1, "LM", co.PowerIteration(), info=True)
    assert abs(values[0] + 5) < 1e-7 and info.converged.all()
    _, info = co.eig(
        np.array([[0.0, 1.0], [-1.0, 0.0]]), 1, "LM", co.PowerIteration(max_iters=100), info=True
    )
    assert info.status == Status.MAX_ITERATIONS
    with pytest.raises(co.MethodError, match="one eigenvalue"):
        co.eig(np.eye(3), 2, "LM", co.PowerIteration())


def test_a_preconditioner_saves_products() -> None:
    L = laplacian(30)
    A = co.PSD(co.Sparse(L))
    plain = co.eig(co.opaque(A), 3, "SA", co.LOBPCG(), info=True)
    helped = co.eig(co.opaque(A), 3, "SA", co.LOBPCG(preconditioner=lambda _: co.inv(A)), info=True)
    np.testing.assert_allclose(plain[0][0], helped[0][0], rtol=1e-9)
    assert helped[1].matvecs * 3 < plain[1].matvecs
    with pytest.raises(co.ShapeError, match="preconditioner is 2x2"):
        co.eig(A, 3, "SA", co.LOBPCG(preconditioner=np.eye(2)))


def test_methods_are_pickled_and_compared_by_value() -> None:
    import pickle

    for method in (
        co.Lanczos(shift=2.0),
        co.Arnoldi(basis=9),
        co.LOBPCG(),
        co.PowerIteration(),
        co.GolubKahan(),
        co.RandomizedSVD(),
    ):
        assert pickle.loads(pickle.dumps(method)) == method and hash(method) == hash(
            pickle.loads(pickle.dumps(method))
        )


def test_transformations_map_a_run_or_say_why_not(rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    torch = pytest.importorskip("torch")
    A = np.stack([hermitian(rng, np.arange(40.0)), hermitian(rng, -np.arange(40.0))])

    def largest(M: Any) -> Any:
        return co.eig(co.SelfAdjoint(co.Dense(M)), 2, "LA", co.Lanczos(repeated=False))[0]

    np.testing.assert_allclose(
        jax.vmap(largest)(jax.numpy.asarray(A)), [[38, 39], [-1, 0]], atol=1e-4
    )
    with pytest.raises(co.MethodError, match="whole batch"):
        torch.func.vmap(largest)(torch.tensor(A))


def test_options_are_checked() -> None:
    for wrong in ({"basis": 1}, {"max_iters": 0}, {"tol": -1.0}, {"orthogonalisation": "hope"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            co.Lanczos(**wrong)
    with pytest.raises(ValueError, match="self-adjoint"):
        co.eig(np.eye(3), 1, "LA", co.Arnoldi())
    with pytest.raises(ValueError, match="real eigenvalues"):
        co.eig(np.eye(3), 1, "LI", co.Lanczos())
    with pytest.raises(co.MethodError, match="LOBPCG"):
        co.eig(np.diag([-1.0, 1.0, 2.0]), 1, "LM", co.LOBPCG())


# ---------------------------------------------------------------------------------------------------- real matrices


@needs_data
def test_repeated_eigenvalues_of_mhd4800b() -> None:
    from scipy.io import mmread

    M = mmread(DATA / "mhd4800b.mtx.gz").tocsr()
    for A in (co.PSD(co.Sparse(M)), co.opaque(co.PSD(co.Sparse(M)))):
        (values, _), info = co.eig(A, 8, "LA", info=True)
        np.testing.assert_allclose(
            values, [1, 1, 1, 1, 1, 2.1962685, 2.1962685, 2.1962686], atol=1e-6
        )
        assert info.converged.all()


@needs_data
def test_smallest_eigenvalue_of_a_stiffness_matrix() -> None:
    from scipy.io import mmread

    A = co.PSD(co.Sparse(mmread(DATA / "1138_bus.mtx.gz").tocsr()))
    assert float(co.eigmin(A)) == pytest.approx(0.00351686, rel=1e-4)
    assert float(co.eigmax(A)) == pytest.approx(30148.79442, rel=1e-8)


@needs_data
@pytest.mark.parametrize("name", ["west0479", "orsirr_1"])
def test_unsymmetric_matrices_agree_with_arpack(name: str) -> None:
    from scipy.io import mmread

    S = mmread(DATA / f"{name}.mtx.gz").tocsr()
    ours = co.eig(co.Sparse(S), 4, "LM", co.Arnoldi())[0]
    np.testing.assert_allclose(
        np.abs(ours), np.sort(np.abs(sla.eigs(S, 4, v0=np.ones(S.shape[0]))[0]))[::-1], rtol=1e-6
    )
