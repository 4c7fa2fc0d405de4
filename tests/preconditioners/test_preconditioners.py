"""Preconditioners: each approximates A^-1 as its theory says, is an operator in every sense, and refuses what does not fit."""

from __future__ import annotations

import gzip
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import scipy.sparse.linalg

import colinear as co
from colinear import backends
from colinear.preconditioners import as_preconditioner
from colinear.testing import check_operator, count_matvecs, forbid_dense

FRAMEWORKS = ("numpy", "torch", "jax")


def line(n: int, dtype: Any = np.float64) -> Any:
    """The second difference: tridiagonal and positive definite."""
    return (
        scipy.sparse.diags_array(
            [[-1.0] * (n - 1), [2.0] * n, [-1.0] * (n - 1)], offsets=[-1, 0, 1]
        )
        .astype(dtype)
        .tocsr()
    )


def grid(m: int) -> Any:
    """The five-point Laplacian on m x m points."""
    L, I = line(m), scipy.sparse.eye_array(m)
    return scipy.sparse.csr_array(scipy.sparse.kron(L, I) + scipy.sparse.kron(I, L))


def spd(
    rng: np.random.Generator, n: int, dtype: Any = np.float64, batch: tuple[int, ...] = ()
) -> np.ndarray:
    G = rng.standard_normal((*batch, n, n))
    if np.dtype(dtype).kind == "c":
        G = G + 1j * rng.standard_normal((*batch, n, n))
    return (G @ np.conj(np.swapaxes(G, -1, -2)) / n + np.eye(n)).astype(dtype)


def gaussian(X: Any, Y: Any) -> Any:
    xp = backends.namespace_of(X)
    return xp.exp(-xp.sum((X[:, None] - Y[None]) ** 2, axis=-1))


def to(A: Any, framework: str) -> Any:
    return co.as_operator(A).to(backend=framework)


def host(x: Any) -> np.ndarray:
    x = x.to_dense() if isinstance(x, co.LinearOperator) else x
    return np.asarray(backends.namespace_of(x).to_numpy(x))


def iterations(A: Any, M: Any = None, tol: float = 1e-8) -> int:
    """Of SciPy's CG with our operators."""
    b, counted = np.random.default_rng(0).standard_normal(A.shape[-1]), []
    operators = [None if B is None else co.as_operator(B).to_scipy() for B in (A, M)]
    x, status = scipy.sparse.linalg.cg(
        operators[0], b, rtol=tol, M=operators[1], callback=counted.append
    )
    assert status == 0 and np.linalg.norm(A @ x - b) <= 10 * tol * np.linalg.norm(b)
    return len(counted)


FACTORIES = {
    "Jacobi": co.Jacobi(),
    "BlockJacobi": co.BlockJacobi(block_size=3),
    "BlockJacobi, given": co.BlockJacobi(blocks=[[0, 7, 3], [1, 2], [4, 5, 6]]),
    "ILU": co.ILU(),
    "IC": co.IC(),
    "IC, threshold": co.IC(drop_tol=1e-2),
    "PivotedCholesky": co.PivotedCholesky(3),
    "RPCholesky": co.RPCholesky(3),
    "RPCholesky, blocks": co.RPCholesky(3, block=2),
    "Nystrom": co.Nystrom(3),
    "Chebyshev": co.Chebyshev(4),
}
POSITIVE = [name for name in FACTORIES if name != "ILU"]
TRACEABLE = [name for name in FACTORIES if name not in ("ILU", "IC", "IC, threshold")]


# ------------------------------------------------------------------ all of them are operators


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("dtype", [np.float64, np.complex64], ids=["float64", "complex64"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=["one", "batch"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_preconditioner_is_an_operator_of_the_dtype_and_framework_of_the_matrix(
    rng: np.random.Generator, name: str, dtype: Any, batch: tuple[int, ...], framework: str
) -> None:
    A = to(co.PD(spd(rng, 8, dtype, batch)), framework)
    M = FACTORIES[name](A)
    assert M.shape == A.shape and M.dtype == A.dtype and M.backend == framework
    assert M.isa(co.PD) == (name in POSITIVE)
    check_operator(M, tol=1e-4 if dtype == np.complex64 else 1e-10)
    if name in POSITIVE:
        assert np.linalg.eigvalsh(host(M)).min() > 0
    better = np.linalg.cond(host(M) @ host(A)) < 1.5 * np.linalg.cond(host(A))
    assert np.all(better)


@pytest.mark.parametrize("name", TRACEABLE)
def test_a_preconditioner_is_made_and_applied_under_jit_and_vmap(
    rng: np.random.Generator, name: str
) -> None:
    import jax

    factory = FACTORIES[name] if name != "Chebyshev" else co.Chebyshev(4, bounds=(0.5, 6.0))
    low = rng.standard_normal((2, 8, 2)).astype(np.float32)
    A = low @ np.swapaxes(low, -1, -2)

    def applied(matrix: Any) -> Any:
        M = factory(co.PSD(co.Dense(matrix)) + 0.5 * co.Identity(8))
        return M @ M.xp.ones((8, 1), dtype=M.dtype)

    got = jax.jit(jax.vmap(applied))(jax.numpy.asarray(A))
    assert got.dtype == np.float32
    np.testing.assert_allclose(
        np.asarray(got), np.stack([applied(each) for each in A]), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize("name", ["Jacobi", "Nystrom"])
def test_a_preconditioner_of_jax_is_an_operator(rng: np.random.Generator, name: str) -> None:
    check_operator(FACTORIES[name](to(co.PD(spd(rng, 8, np.complex128)), "jax")), tol=1e-10)


@pytest.mark.parametrize("name", ["ILU", "IC"])
def test_factors_of_the_host_are_applied_under_jit_and_in_derivatives(name: str) -> None:
    import jax
    import torch

    M = FACTORIES[name](to(co.PD(co.Sparse(line(6))), "jax"))
    x = jax.numpy.arange(6.0)
    wanted = host(M) @ np.arange(6.0)
    np.testing.assert_allclose(np.asarray(jax.jit(lambda M, x: M @ x)(M, x)), wanted)
    np.testing.assert_allclose(
        np.asarray(jax.grad(lambda x: (M @ x)[2])(x)), host(M)[2], atol=1e-12
    )
    T = FACTORIES[name](to(co.PD(co.Sparse(line(6))), "torch"))
    y = torch.arange(6.0, dtype=torch.float64, requires_grad=True)
    (T @ y)[2].backward()
    np.testing.assert_allclose(y.grad.numpy(), host(T)[2], atol=1e-12)
    with pytest.raises(co.BackendError, match=rf"{name}.*Make the preconditioner outside"):
        jax.jit(lambda A: FACTORIES[name](A) @ x)(to(co.PD(co.Sparse(line(6))), "jax"))


@pytest.mark.parametrize(
    "name",
    [
        "Jacobi",
        "BlockJacobi",
        "PivotedCholesky",
        "RPCholesky, blocks",
        "Nystrom",
        "Chebyshev",
    ],
)
def test_derivatives_go_through_a_preconditioner_that_is_not_made_on_the_host(
    rng: np.random.Generator, name: str
) -> None:
    import torch

    factory = FACTORIES[name] if name != "Chebyshev" else co.Chebyshev(4, bounds=(0.5, 6.0))
    A, E = spd(rng, 8), spd(rng, 8)

    def value(t: Any) -> Any:
        return (
            factory(co.PD(co.Dense(torch.as_tensor(A) + t * torch.as_tensor(E))))
            @ torch.ones(8, dtype=torch.float64)
        ).sum()

    t = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    value(t).backward()
    h = 1e-5
    finite = (value(torch.tensor(h)) - value(torch.tensor(-h))).item() / (2 * h)
    assert abs(t.grad.item() - finite) <= 1e-5 * max(1, abs(finite))


@pytest.mark.parametrize("name", ["ILU", "IC", "IC, threshold"])
def test_factors_of_the_host_survive_pickling(rng: np.random.Generator, name: str) -> None:
    M = FACTORIES[name](co.PD(co.Sparse(line(8))))
    np.testing.assert_allclose(host(pickle.loads(pickle.dumps(M))), host(M))


# ------------------------------------------------------------------ each does what its theory says


def test_jacobi_is_the_inverse_of_the_diagonal_and_reads_it_without_a_product() -> None:
    A = co.PSD(co.Sparse(grid(30)))
    with count_matvecs(A) as count:
        M = co.Jacobi()(A)
    assert count.matvecs == 0 and isinstance(M, co.Diagonal)
    np.testing.assert_allclose(host(M.d), 0.25)


def test_jacobi_copes_with_zeros_and_negative_numbers_and_lets_nan_be_seen() -> None:
    indefinite = co.SelfAdjoint(np.diag([4.0, 0.0, -2.0]))
    np.testing.assert_allclose(co.Jacobi()(indefinite).d, [0.25, 0.25, 0.5])
    np.testing.assert_allclose(co.Jacobi()(np.array([[-2.0, 1.0], [3.0, 0.0]])).d, [-0.5, 0.5])
    np.testing.assert_allclose(co.Jacobi()(co.PSD(np.zeros((2, 2)))).d, 1.0)
    assert np.isnan(co.Jacobi()(co.PSD(np.diag([1.0, np.nan]))).d[1])


def test_jacobi_undoes_a_bad_scaling() -> None:
    scale = scipy.sparse.diags_array(10.0 ** np.linspace(-3, 3, 100))
    A = co.PSD(
        co.Sparse(scipy.sparse.csr_array(scale @ (line(100) + scipy.sparse.eye_array(100)) @ scale))
    )
    assert iterations(A, co.Jacobi()(A), tol=1e-6) < 40


@pytest.mark.parametrize("kind", ["dense", "sparse", "kernel", "sum", "low rank", "opaque"])
def test_block_jacobi_inverts_the_diagonal_blocks_of_every_kind_of_operator(
    rng: np.random.Generator, kind: str
) -> None:
    n = 10
    K = co.PSD(co.Kernel(gaussian, rng.standard_normal((n, 2))))
    A = {
        "dense": co.PSD(spd(rng, n)),
        "sparse": co.PSD(co.Sparse(line(n))),
        "kernel": K,
        "sum": K
        + 0.1 * co.Identity(n)
        + co.PSD(co.Diagonal(np.arange(1.0, n + 1)))
        + 2.0 * co.PSD(co.Sparse(line(n))),
        "low rank": co.LowRank(rng.standard_normal((n, 4))),
        "opaque": co.opaque(co.PSD(spd(rng, n))),
    }[kind]
    matrix, wanted = host(A), np.zeros((n, n))
    for block in (range(4), range(4, 8), range(8, 10)):
        wanted[np.ix_(block, block)] = np.linalg.inv(matrix[np.ix_(block, block)])
    M = co.BlockJacobi(4)(A)
    np.testing.assert_allclose(host(M), wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())


def test_block_jacobi_never_forms_a_sparse_or_a_kernel_matrix() -> None:
    n = 5000
    with forbid_dense(60 * n):
        A = co.PSD(co.Sparse(line(n)))
        co.BlockJacobi(50)(A) @ np.ones(n)
        K = co.PSD(co.Kernel(gaussian, np.linspace(0, 100, n)[:, None])) + 0.1 * co.Identity(n)
        co.BlockJacobi(50)(K) @ np.ones(n)


def test_block_jacobi_of_an_indefinite_or_singular_matrix_is_definite_and_finite(
    rng: np.random.Generator,
) -> None:
    G = rng.standard_normal((6, 6))
    M = co.BlockJacobi(3)(co.SelfAdjoint(G + G.T))
    assert M.isa(co.PD) and np.linalg.eigvalsh(host(M)).min() > 0
    assert np.isfinite(host(co.BlockJacobi(2)(co.PSD(np.diag([1.0, 0.0, 0.0, 0.0]))))).all()
    assert np.isfinite(host(co.BlockJacobi(2)(np.kron(np.eye(2), [[0.0, 1.0], [0.0, 0.0]])))).all()


def test_ilu_without_dropping_is_the_inverse(rng: np.random.Generator) -> None:
    S = scipy.sparse.random_array((60, 60), density=0.1, rng=rng) + 3 * scipy.sparse.eye_array(60)
    M = co.ILU(drop_tol=0, fill=100)(co.Sparse(S))
    np.testing.assert_allclose(host(M) @ S.toarray(), np.eye(60), atol=1e-10)


def test_ilu_makes_gmres_converge_where_it_did_not(rng: np.random.Generator) -> None:
    m = 30
    wind = scipy.sparse.diags_array([[-1.0] * (m * m - 1), [1.0] * (m * m)], offsets=[-1, 0])
    A = co.Sparse(scipy.sparse.csr_array(grid(m) + 5 * wind))
    counts = []
    for M in (None, co.ILU()(A).to_scipy()):
        counted: list[Any] = []
        options = {
            "rtol": 1e-8,
            "restart": 20,
            "maxiter": 20,
            "callback": counted.append,
            "callback_type": "pr_norm",
        }
        scipy.sparse.linalg.gmres(A.to_scipy(), np.ones(m * m), M=M, **options)
        counts.append(len(counted))
    assert 4 * counts[1] < counts[0]


def test_ilu_of_a_matrix_without_a_diagonal_and_of_a_singular_one() -> None:
    swap = co.Sparse(scipy.sparse.csr_array([[0.0, 1.0], [1.0, 0.0]]))
    np.testing.assert_allclose(host(co.ILU()(swap)), [[0, 1], [1, 0]], atol=1e-12)
    assert np.isfinite(
        host(co.ILU()(co.Sparse(scipy.sparse.csr_array([[1.0, 1.0], [1.0, 1.0]]))))
    ).all()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_incomplete_cholesky_without_fill_is_exact_where_there_is_none(dtype: Any) -> None:
    S = line(40, dtype) + scipy.sparse.eye_array(40)
    if dtype == np.complex128:
        phases = scipy.sparse.diags_array(np.exp(1j * np.arange(40)))
        S = scipy.sparse.csr_array(phases @ S @ phases.conj())
    M = co.IC()(co.PSD(co.Sparse(S)))
    np.testing.assert_allclose(host(M) @ S.toarray(), np.eye(40), atol=1e-10)


def test_incomplete_cholesky_without_fill_agrees_with_the_matrix_on_its_pattern() -> None:
    S = grid(7)
    product = np.linalg.inv(host(co.IC()(co.PSD(co.Sparse(S)))))
    rows, columns = S.nonzero()
    np.testing.assert_allclose(product[rows, columns], S.toarray()[rows, columns], atol=1e-10)
    assert np.abs(product - S.toarray()).max() > 1e-2


def test_incomplete_cholesky_shifts_where_it_breaks_down() -> None:
    # Kershaw's matrix: positive definite, and IC(0) meets a negative pivot.
    S = scipy.sparse.csr_array([[3.0, -2, 0, 2], [-2, 3, -2, 0], [0, -2, 3, -2], [2, 0, -2, 3]])
    assert np.linalg.eigvalsh(S.toarray()).min() > 0
    M = co.IC()(co.PSD(co.Sparse(S)))
    assert np.linalg.eigvalsh(host(M)).min() > 0
    with pytest.raises(co.MethodError, match="diagonal entry that is not positive"):
        co.IC()(co.PSD(co.Sparse(scipy.sparse.csr_array([[1.0, 0.0], [0.0, -1.0]]))))


def test_incomplete_cholesky_saves_iterations_and_a_smaller_threshold_more() -> None:
    A = co.PSD(co.Sparse(grid(40)))
    plain, none, some = (iterations(A, M) for M in (None, co.IC()(A), co.IC(drop_tol=1e-3)(A)))
    assert none < plain / 2 and some < none / 2


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_low_rank_preconditioners_are_exact_for_low_rank_plus_noise(
    rng: np.random.Generator, framework: str
) -> None:
    n, r = 30, 4
    U = rng.standard_normal((n, r))
    K = to(co.PSD(U @ U.T), framework)
    noises = 0.3 * co.Identity(n), co.PD(to(co.Diagonal(rng.uniform(0.5, 1, n)), framework))
    for noise in noises if framework != "jax" else noises[:1]:
        A = K + noise
        for factory in (co.PivotedCholesky(r), co.Nystrom(r + 1))[: 1 if framework == "jax" else 2]:
            M = factory(A)
            np.testing.assert_allclose(host(M) @ host(A), np.eye(n), atol=1e-7)
            wanted = -np.linalg.slogdet(host(A))[1]
            assert abs(float(co.logdet(M)) - wanted) < 1e-6 * abs(wanted)


def test_pivoted_cholesky_of_full_rank_is_the_inverse_and_of_a_lower_one_finite(
    rng: np.random.Generator,
) -> None:
    A = spd(rng, 6, np.complex128)
    np.testing.assert_allclose(
        host(co.PivotedCholesky(6, shift=1e-8)(co.PSD(A))) @ A, np.eye(6), atol=1e-5
    )
    low = co.PSD(np.ones((6, 6)))
    assert (
        np.isfinite(host(co.PivotedCholesky(4)(low))).all()
        and np.isfinite(host(co.Nystrom(4)(low))).all()
    )
    assert np.isfinite(host(co.PivotedCholesky(4)(co.PSD(np.zeros((6, 6)))))).all()


def test_pivoted_cholesky_reads_rank_rows_of_a_kernel_and_forms_nothing() -> None:
    n, seen = 3000, []

    def k(X: Any, Y: Any) -> Any:
        seen.append(X.shape[0] * Y.shape[0])
        return gaussian(X, Y)

    A = co.PSD(co.Kernel(k, np.linspace(0, 3, n)[:, None])) + 1e-2 * co.Identity(n)
    seen.clear()
    with forbid_dense(40 * n):
        M = co.PivotedCholesky(10)(A)
    assert sum(seen) < 60 * n  # the diagonal is read in blocks of pairs
    assert iterations(A, M, 1e-6) <= 5 < iterations(A, None, 1e-6)


def test_nystrom_makes_the_condition_of_a_kernel_matrix_that_of_the_rest(
    rng: np.random.Generator,
) -> None:
    A = co.PSD(gaussian(*[np.linspace(0, 4, 80)[:, None]] * 2)) + 1e-4 * co.Identity(80)
    M = co.Nystrom(25)(A)
    values = np.linalg.eigvals(host(M) @ host(A)).real
    assert values.max() / values.min() < 30 < np.linalg.cond(host(A)) / 1e3
    again = host(co.Nystrom(25)(A))
    np.testing.assert_array_equal(host(M), again)
    assert np.abs(host(co.Nystrom(25, seed=1)(A)) - again).max() > 0


@pytest.mark.parametrize("degree", [0, 1, 5])
def test_chebyshev_has_the_residual_of_chebyshevs_polynomial(degree: int) -> None:
    low, high = 0.5, 4.0
    values = np.linspace(low, high, 30)
    with count_matvecs() as count:
        p = co.Chebyshev(degree, bounds=(low, high))(co.PSD(co.Diagonal(values))) @ np.ones(30)
    T = np.polynomial.chebyshev.Chebyshev([0] * (degree + 1) + [1])
    wanted = T((high + low - 2 * values) / (high - low)) / T((high + low) / (high - low))
    np.testing.assert_allclose(1 - values * p, wanted, atol=1e-12)
    assert count.products == 1 and co.Chebyshev(degree)(
        co.PSD(co.Diagonal(values))
    ).flops < 30 * 8 * (degree + 1)


def test_chebyshev_finds_the_interval_and_saves_iterations() -> None:
    A = co.PSD(co.Sparse(grid(30)))
    M = co.Chebyshev(10)(A)
    largest = np.linalg.eigvalsh(host(A)).max()
    assert largest <= float(M.high) < 1.2 * largest
    assert iterations(A, M) < iterations(A) / 4
    for easy in (co.PSD(np.eye(4)), co.PSD(2 * np.ones((1, 1))), co.PSD(np.zeros((3, 3)))):
        assert np.isfinite(host(co.Chebyshev(3)(easy))).all()
    np.testing.assert_allclose(
        host(co.Chebyshev(6)(co.PSD(3 * np.eye(4)))), np.eye(4) / 3, rtol=1e-3
    )


# ------------------------------------------------------------------ multigrid


@pytest.mark.parametrize("kind", ["smoothed_aggregation", "ruge_stuben"])
def test_multigrid_needs_as_many_iterations_on_every_grid(kind: str) -> None:
    pytest.importorskip("pyamg")
    counts = []
    for m in (30, 60, 120):
        A = co.PSD(co.Sparse(grid(m)))
        counts.append(iterations(A, co.AMG(kind)(A)))
    assert max(counts) <= min(counts) + 4 and max(counts) < 20


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_multigrid_is_an_operator_of_the_framework(framework: str) -> None:
    pytest.importorskip("pyamg")
    A = to(co.PSD(co.Sparse(grid(5))), framework)
    M = co.AMG(max_coarse=5)(A)
    assert M.backend == framework and M.isa(co.PD) and len(M.matrices) >= 1
    if framework != "jax":
        check_operator(M, tol=1e-10)
    else:
        import jax

        x = jax.numpy.arange(25.0)
        np.testing.assert_allclose(
            np.asarray(jax.jit(lambda M, x: M @ x)(M, x)),
            host(co.AMG(max_coarse=5)(co.PSD(co.Sparse(grid(5)))) @ np.arange(25.0)),
        )
    assert np.linalg.eigvalsh(host(M)).min() > 0


def test_multigrid_of_complex_nonsymmetric_and_small_matrices() -> None:
    pytest.importorskip("pyamg")
    phases = scipy.sparse.diags_array(np.exp(1j * np.arange(36)))
    hermitian = scipy.sparse.csr_array(phases @ grid(6) @ phases.conj())
    M = co.AMG(max_coarse=6)(co.PSD(co.Sparse(hermitian)))
    check_operator(M, tol=1e-10)
    np.testing.assert_allclose(host(M), host(M).conj().T, atol=1e-12)
    wind = scipy.sparse.diags_array([[-1.0] * 35, [1.0] * 36], offsets=[-1, 0])
    N = co.AMG(max_coarse=6)(co.Sparse(scipy.sparse.csr_array(grid(6) + 0.2 * wind)))
    check_operator(N, tol=1e-10)
    assert not N.isa(co.SelfAdjoint)
    np.testing.assert_allclose(
        host(co.AMG()(co.PSD(co.Sparse(line(4))))) @ line(4).toarray(), np.eye(4), atol=1e-12
    )


def test_multigrid_leaves_numpys_random_state_alone_and_is_reproducible() -> None:
    pytest.importorskip("pyamg")
    A = co.PSD(co.Sparse(grid(20)))
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    first = co.AMG()(A) @ np.ones(400)
    assert np.random.rand() == expected
    np.testing.assert_array_equal(first, co.AMG()(A) @ np.ones(400))


# ------------------------------------------------------------------ what `preconditioner=` takes


def test_anything_that_approximates_the_inverse_is_a_preconditioner() -> None:
    A, b = co.PSD(np.diag([2.0, 4.0])), np.ones(2)
    assert as_preconditioner(None, A) is None
    for M in (
        co.Jacobi(),
        co.Diagonal([0.5, 0.25]),
        np.diag([0.5, 0.25]),
        lambda A: co.inv(A),
        scipy.sparse.csr_array(np.diag([0.5, 0.25])),
    ):
        np.testing.assert_allclose(as_preconditioner(M, A) @ b, [0.5, 0.25])
    single = as_preconditioner(np.diag([0.5, 0.25]).astype(np.float32), A)
    assert single.dtype == np.float64
    assert isinstance(as_preconditioner(co.Identity(2), A), co.Identity)


def test_a_preconditioner_that_does_not_fit_is_refused_with_a_reason() -> None:
    import torch

    A = co.PSD(np.eye(3))
    with pytest.raises(co.ShapeError, match="2x2 and A is 3x3"):
        as_preconditioner(np.eye(2), A)
    with pytest.raises(co.ShapeError, match="batch"):
        as_preconditioner(np.ones((2, 3, 3)), co.PSD(np.stack([np.eye(3)] * 4)))
    with pytest.raises(co.BackendError, match="torch"):
        as_preconditioner(torch.eye(3, dtype=torch.float64), A)
    with pytest.raises(co.DtypeError, match="complex"):
        as_preconditioner(1j * np.eye(3), A)
    with pytest.raises(TypeError, match=r"Jacobi\(\)"):
        as_preconditioner(co.Jacobi, A)
    with pytest.raises(TypeError, match="gave None"):
        as_preconditioner(lambda A: None, A)
    with pytest.raises(co.DtypeError, match="string"):
        as_preconditioner("jacobi", A)


def test_factories_refuse_what_they_are_not_for() -> None:
    for factory in FACTORIES.values():
        with pytest.raises(co.ShapeError, match="2x3"):
            factory(np.ones((2, 3)))
    for factory in (co.PivotedCholesky(1), co.Nystrom(1), co.Chebyshev(1), co.IC()):
        with pytest.raises(co.MethodError, match=r"Say PSD\(A\)"):
            factory(np.eye(3))
    for factory in (co.ILU(), co.IC()):
        with pytest.raises(co.MethodError, match="sparse"):
            factory(co.opaque(co.PSD(np.eye(3))))
    for wrong in (
        lambda: co.PivotedCholesky(0),
        lambda: co.Nystrom(2.5),
        lambda: co.Nystrom(2, shift=-1.0),
        lambda: co.Chebyshev(-1),
        lambda: co.Chebyshev(3, bounds=(2.0, 1.0)),
        lambda: co.ILU(fill=0),
        lambda: co.IC(drop_tol=-1.0),
        lambda: co.BlockJacobi(0),
        lambda: co.BlockJacobi(blocks=[[0, 1], [1, 2]])(np.eye(3)),
        lambda: co.AMG(kind="magic"),
    ):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(TypeError, match="block_size"):
        co.BlockJacobi()


def test_factories_are_compared_by_value_and_hash() -> None:
    assert co.Nystrom(5) == co.Nystrom(5) != co.Nystrom(6)
    assert (
        len({co.Jacobi(), co.Jacobi(), co.BlockJacobi(3), co.BlockJacobi(blocks=[[0], [1]])}) == 3
    )


# ------------------------------------------------------------------ in the methods


def test_every_preconditioner_serves_every_method_that_fits_it() -> None:
    A, b = co.PSD(co.Sparse(grid(12))), np.random.default_rng(1).standard_normal(144)
    hidden = co.opaque(A)
    plain = co.solve(hidden, b, co.CG(tol=1e-10), info=True)[1].iterations
    for name, factory in FACTORIES.items():
        if name == "BlockJacobi, given":
            continue
        M = factory(A)
        for method in (
            (co.CG, co.MINRES, co.GMRES, co.BiCGSTAB)
            if name in POSITIVE
            else (co.GMRES, co.BiCGSTAB)
        ):
            x, info = co.solve(hidden, b, method(tol=1e-10, preconditioner=M), info=True)
            assert info.status == co.Status.SUCCESS, (name, method)
            assert np.linalg.norm(A @ x - b) <= 1.01e-10 * np.linalg.norm(b)
            if method is co.CG:
                assert info.iterations <= 1.3 * plain


@pytest.mark.parametrize("name", ["Jacobi", "BlockJacobi", "IC", "Nystrom"])
def test_gradients_of_a_preconditioned_solve_are_those_of_the_solve(name: str) -> None:
    import torch

    A, b = co.Sparse(line(8) + scipy.sparse.eye_array(8)), torch.arange(8.0, dtype=torch.float64)

    def gradient(method: Any) -> np.ndarray:
        data = torch.tensor(A.data, requires_grad=True)
        (co.solve(co.PSD(co.Sparse.from_parts(data, A.structure)), b, method) ** 2).sum().backward()
        return data.grad.numpy()

    got = gradient(co.CG(tol=1e-12, preconditioner=FACTORIES[name]))
    np.testing.assert_allclose(got, gradient(co.LU()), rtol=1e-8)


def test_host_factors_of_equal_matrices_are_equal_so_that_programs_are_compiled_once() -> None:
    for factory in (co.ILU(), co.IC(), co.IC(drop_tol=1e-2)):
        first, second, other = (
            factory(co.PSD(co.Sparse(c * line(8)))).solver for c in (1.0, 1.0, 2.0)
        )
        assert (
            first is not second
            and first == second
            and hash(first) == hash(second)
            and first != other
        )


def test_empty_and_nonfinite_operators() -> None:
    for name, factory in FACTORIES.items():
        if name != "BlockJacobi, given":
            assert factory(co.PSD(np.zeros((0, 0)))).shape == (0, 0)
    for factory in (co.ILU(), co.IC()):
        with pytest.raises(co.MethodError, match="NaN"):
            factory(co.PSD(co.Sparse(scipy.sparse.csr_array(np.diag([1.0, np.nan])))))


def test_a_plan_does_not_make_the_preconditioner_and_the_info_does_not_tell_of_it() -> None:
    A = co.PSD(co.Sparse(line(8)))
    assert "CG" in str(co.explain(co.solve, A, method=co.CG(preconditioner=co.IC())))
    info = co.solve(A, np.ones(8), co.CG(preconditioner=co.IC()), info=True)[1]
    assert info.status == co.Status.SUCCESS and "as_sparse" not in str(info)


DATA = Path(
    os.environ.get("COLINEAR_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data"
)


@pytest.mark.parametrize(
    ("name", "factory", "most"),
    [
        ("1138_bus", co.IC(), 250),
        ("1138_bus", co.IC(drop_tol=1e-3), 20),
        ("bcsstk15", co.IC(drop_tol=1e-3), 40),
        ("mhd4800b", co.Jacobi(), 100),
        ("orsirr_1", co.ILU(), 20),
        ("west0479", co.ILU(), 20),
    ],
)
def test_real_matrices_are_solved_in_few_iterations(name: str, factory: Any, most: int) -> None:
    path = DATA / f"{name}.mtx.gz"
    if not path.exists():
        pytest.skip("the real matrices are not here; COLINEAR_DATA may name their folder")
    with gzip.open(path) as file:
        S = scipy.sparse.csr_array(scipy.io.mmread(file))
    general = isinstance(factory, co.ILU)
    A = co.Sparse(S) if general else co.PSD(co.Sparse(S))
    method = (co.GMRES if general else co.CG)(tol=1e-8, preconditioner=factory)
    info = co.solve(
        co.opaque(A), S @ np.ones(S.shape[0]), replace(method, preconditioner=factory(A)), info=True
    )[1]
    assert info.status == co.Status.SUCCESS and info.iterations <= most
