"""`detect`: planted structure is found and used, near misses are not claimed, and the residual is the true one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear.methods.sparse_direct import SparseLU

N = 60
rng = np.random.default_rng(0)
DENSE = rng.standard_normal((N, N))
LAPLACE = 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)
P, Q = rng.permutation(N), rng.permutation(N)
U, V = rng.standard_normal((N, 3)), rng.standard_normal((N, 3))
POSITIVE = 1 + rng.random(N)
BLOCKS = co.BlockDiag(DENSE[:20, :20], LAPLACE[:30, :30], np.diag(POSITIVE[:10])).to_dense()
TRIANGLE = np.tril(DENSE) + 10 * np.eye(N)
GRID = np.kron(LAPLACE[:8, :8], np.eye(9)) + np.kron(np.eye(8), 3 * LAPLACE[:9, :9])
SMOOTH6, SMOOTH10 = (
    np.exp(-((np.arange(n)[:, None] - np.arange(n)) ** 2) / 3.0)
    + 0.1 * np.outer(range(n), range(n))
    for n in (6, 10)
)
B4, B15 = DENSE[:4, :4], DENSE[:15, :15]

# The matrix, the name of what is found, and a rule or method that a solve with it uses.
PLANTED: dict[str, tuple[Any, str, str]] = {
    "identity": (np.eye(N), "identity", "solve_by_entries"),
    "scaled identity": (3 * np.eye(N), "scaled identity", "solve_by_entries"),
    "diagonal": (np.diag(POSITIVE), "diagonal", "solve_by_entries"),
    "tridiagonal": (LAPLACE, "tridiagonal", "inv_tridiagonal"),
    "banded": (np.triu(np.tril(DENSE, 2), -2) + 9 * np.eye(N), "banded", "inv_banded"),
    "lower": (TRIANGLE, "lower triangular", "inv_triangular"),
    "upper": (TRIANGLE.T, "upper triangular", "inv_triangular"),
    "permuted triangle": (TRIANGLE[P][:, Q], "permuted triangular", "inv_triangular"),
    "similar triangle": (TRIANGLE[P][:, P], "permuted triangular", "inv_triangular"),
    "permutation": (np.eye(N)[P], "permutation", "solve_by_entries"),
    "scaled permutation": (
        POSITIVE[:, None] * np.eye(N)[P],
        "scaled permutation",
        "inv_permutation",
    ),
    "circulant": (co.Circulant(POSITIVE).to_dense(), "circulant", "inv_circulant"),
    "toeplitz": (co.Toeplitz(POSITIVE, DENSE[0]).to_dense(), "Toeplitz", "toeplitz"),
    "blocks": (BLOCKS, "block diagonal", "inv_block_diag"),
    "permuted blocks": (BLOCKS[P][:, P], "permuted block diagonal", "inv_block_diag"),
    "blocks permuted apart": (BLOCKS[P][:, Q], "permuted block diagonal", "inv_block_diag"),
    "low rank plus diagonal": (U @ V.T + np.diag(POSITIVE), "low rank plus diagonal", "woodbury"),
    "kronecker": (np.kron(B4, B15), "Kronecker product", "inv_kronecker"),
    "three factors": (
        np.kron(np.kron(B4, DENSE[:3, :3]), DENSE[:5, :5]),
        "Kronecker product",
        "inv_kronecker",
    ),
    "repeated block": (np.kron(np.eye(4), B15), "Kronecker product", "inv_kronecker"),
    "kronecker sum": (GRID, "Kronecker sum", "solve_by_lines"),
    "noisy grid": (
        np.kron(SMOOTH6, SMOOTH10) + 0.3 * np.eye(N),
        "Kronecker product plus identity",
        "kronecker",
    ),
    "convolution": (
        co.Convolution(rng.standard_normal((3, 4)), (6, 10)).to_dense(),
        "periodic convolution",
        "convolution",
    ),
    "dense": (DENSE, "dense", "LU"),
    "self-adjoint": (DENSE + DENSE.T, "dense", "LDL"),
    "definite": (DENSE @ DENSE.T + np.eye(N), "dense", "Cholesky"),
}


def uses(plan: Any, part_of_a_name: str) -> bool:
    return any(part_of_a_name in rule for rule in plan.rules)


@pytest.mark.parametrize("key", PLANTED)
def test_planted_structure_is_found_and_its_rule_is_used(key: str) -> None:
    A, name, rule = PLANTED[key]
    found, info = co.detect(A, info=True)
    assert info.rule == name, str(info)
    np.testing.assert_allclose(found.to_dense(), A, rtol=0, atol=1e-13 * np.linalg.norm(A))
    assert info.residual == pytest.approx(
        np.linalg.norm(found.to_dense() - A) / np.linalg.norm(A), abs=1e-16
    )
    assert uses(co.explain(co.solve, found), rule), str(co.explain(co.solve, found))
    b = np.ones(len(A))
    np.testing.assert_allclose(A @ co.solve(found, b), b, atol=1e-6)


@pytest.mark.parametrize("key", [key for key, (_, name, _) in PLANTED.items() if name != "dense"])
def test_a_disturbed_structure_is_not_claimed_unless_the_tolerance_allows_it(key: str) -> None:
    A = PLANTED[key][0]
    disturbed = A + 1e-9 * np.random.default_rng(5).standard_normal(A.shape)
    found, info = co.detect(disturbed, info=True)
    assert isinstance(found, co.Dense) and info.residual == 0
    near, info = co.detect(disturbed, tol=1e-6, info=True)
    assert not isinstance(near, co.Dense)
    true = np.linalg.norm(near.to_dense() - disturbed) / np.linalg.norm(disturbed)
    assert 0 < true <= 1e-6
    assert info.residual == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize(
    "key", ["tridiagonal", "circulant", "toeplitz", "lower", "kronecker", "permutation"]
)
def test_one_entry_that_is_off_is_a_near_miss(key: str) -> None:
    A, name, _ = PLANTED[key]
    spoilt = A.copy()
    spoilt[7, 41] += 1e-5
    _, info = co.detect(spoilt, info=True)
    assert info.rule != name
    assert info.residual <= 1e-13


def test_small_rows_are_not_lost_in_the_rounding_of_large_ones() -> None:
    scale = np.where(np.arange(N) < 30, 1.0, 1e-18)
    A = scale[:, None] * DENSE * scale + np.outer(scale * U[:, 0], scale * V[:, 0])
    # of rank one, but for what is too small to be seen beside it
    A[:30, :30] = np.outer(U[:30, 0], V[:30, 0])
    found = co.detect(A)
    small = np.s_[30:, 30:]
    np.testing.assert_allclose(found.to_dense()[small], A[small], rtol=1e-8)


def test_what_overflows_is_left_alone() -> None:
    A = np.full((20, 20), 1e308) + np.diag(np.full(20, 7e307))
    found, info = co.detect(A, info=True)
    assert isinstance(found, co.Dense) and "scale it" in info.message
    huge = co.detect((np.kron(LAPLACE, B4) * 1e25).astype(np.float32))  # whose squares overflow
    assert "Tridiagonal(60x60) ⊗ Dense(4x4)" in repr(huge)


def test_a_tiny_entry_is_not_zero() -> None:
    A = LAPLACE.copy()
    A[0, -1] = 1e-200  # whose square is zero
    found = co.detect(A)
    assert not isinstance(found, co.Tridiagonal)
    np.testing.assert_array_equal(found.to_dense(), A)


@pytest.mark.parametrize(
    ("A", "kind"),
    [
        (U @ V.T, "LowRank(60x60, rank 3)"),
        (U @ U.T, "[PSD]: LowRank(60x60, rank 3)"),
        (U @ np.diag([1.0, -1.0, 2.0]) @ U.T, "[SelfAdjoint]: LowRank(60x60, rank 3)"),
        (U @ U.T + 0.5 * np.eye(N), "[PD]: LowRank(60x60, rank 3) + 0.5 I"),
        (np.kron(DENSE[:6, :5], DENSE[:3, :7]), "Dense(6x5) ⊗ Dense(3x7)"),
        (np.zeros((5, 4)), "Zero 5x4"),
        (np.linalg.qr(DENSE)[0], "Dense 60x60 float64 numpy [Unitary]"),
        (np.kron(np.kron(np.eye(6), B4), np.eye(3)), "Identity(6) ⊗ Dense(4x4) ⊗ Identity(3)"),
        (np.outer(U[:, 0], V[:40, 0]), "LowRank(60x40, rank 1)"),
    ],
)
def test_what_is_found_reads_as_what_it_is(A: Any, kind: str) -> None:
    assert kind in repr(co.detect(A))


def test_definiteness_is_claimed_only_where_it_is_proven() -> None:
    values = np.linspace(-1e-9, 1, N)
    vectors = np.linalg.qr(DENSE)[0]
    indefinite = vectors @ np.diag(values) @ vectors.T
    indefinite = (indefinite + indefinite.T) / 2
    assert co.detect(indefinite).isa(co.SelfAdjoint) and not co.detect(indefinite).isa(co.PSD)
    singular = LAPLACE.copy()
    # the Laplacian of a path, whose diagonal dominates, but not strictly
    singular[0, 0] = singular[-1, -1] = 1
    assert co.detect(singular).isa(co.PSD) and not co.detect(singular).isa(co.PD)
    assert co.detect(LAPLACE).isa(co.PD)
    assert not co.detect(-LAPLACE).isa(co.PSD)
    complex_symmetric = DENSE + DENSE.T + 1j * np.eye(N)
    assert co.detect(complex_symmetric).isa(co.Symmetric) and not co.detect(complex_symmetric).isa(
        co.SelfAdjoint
    )
    hermitian = DENSE + DENSE.T + 1j * (DENSE - DENSE.T)
    assert co.detect(hermitian).isa(co.SelfAdjoint) and not co.detect(hermitian).isa(co.Symmetric)


# ------------------------------------------------------------------ sparse


def laplacian(n: int) -> Any:
    return sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))


def big_sparse() -> dict[str, tuple[Any, str]]:
    """Matrices of 2,500 to 10,000 rows, which would be 50 to 800 MB."""
    n = 2500
    T = laplacian(50)
    order = np.random.default_rng(1).permutation(n)
    # which makes it connected
    column = sp.csr_array((np.ones(n), (np.arange(n), np.zeros(n, int))), shape=(n, n))
    lower = sp.csr_array(
        sp.tril(sp.random_array((n, n), density=1e-3, rng=1), -1) + sp.eye_array(n) + column
    )
    blocks = sp.block_diag(
        [laplacian(1500), sp.csr_array(DENSE), sp.eye_array(n - 1500 - N)], format="csr"
    )
    ring = sp.csr_array(
        laplacian(n) - sp.csr_array(([1.0, 1.0], ([0, n - 1], [n - 1, 0])), shape=(n, n))
    )
    shift = sp.csr_array((np.ones(50), (np.arange(50), (np.arange(50) + 1) % 50)), shape=(50, 50))
    torus = (
        sp.kron(shift, shift)
        + 2 * sp.kron(shift.T, sp.eye_array(50))
        + 5 * sp.kron(sp.eye_array(50), shift @ shift)
    )
    return {
        "tridiagonal": (laplacian(10_000), "tridiagonal"),
        "grid": (sp.kronsum(T, T), "Kronecker sum"),
        "space": (
            sp.kronsum(sp.kronsum(laplacian(13), laplacian(14)), laplacian(15)),
            "Kronecker sum",
        ),
        "kronecker": (
            sp.kron(laplacian(50), sp.csr_array(np.tril(DENSE[:50, :50]))),
            "Kronecker product",
        ),
        "ring": (ring, "circulant"),
        "torus": (sp.csr_array(torus), "periodic convolution"),
        "banded": (
            sp.diags_array([1.0, 5.0, 2.0, 1.0], offsets=[-2, 0, 1, 2], shape=(n, n)),
            "banded",
        ),
        "permutation": (sp.eye_array(n, format="csr")[order], "permutation"),
        "blocks": (blocks[order][:, order], "permuted block diagonal"),
        "repeated": (sp.kron(sp.eye_array(500), DENSE[:5, :5], format="csr"), "Kronecker product"),
        "triangle": (lower[order][:, order[::-1]], "permuted triangular"),
        "nothing": (sp.random_array((n, n), density=2e-3, rng=2, format="csr"), "sparse"),
    }


@pytest.mark.parametrize("key", big_sparse())
def test_large_sparse_matrices_are_searched_without_being_formed(key: str) -> None:
    S, name = big_sparse()[key]
    with co.testing.forbid_dense(2**20 + 1):
        found, info = co.detect(S, info=True)
    assert info.rule == name, str(info)
    x = np.random.default_rng(0).standard_normal(S.shape[1])
    np.testing.assert_allclose(found @ x, S @ x, atol=1e-10)
    assert info.residual <= 1e-15


def test_the_grid_that_was_found_is_solved_by_its_own_rule() -> None:
    T = laplacian(60)
    found = co.detect(sp.kronsum(T, T))
    assert "solve_by_lines" in co.explain(co.solve, found).rules or uses(
        co.explain(co.solve, found), "eigenvectors"
    )
    x, info = co.solve(found, np.ones(3600), info=True)
    assert info.status is co.Status.SUCCESS
    np.testing.assert_allclose(sp.kronsum(T, T) @ x, 1, atol=1e-9)


def test_a_sparse_triangle_is_solved_by_substitution_whatever_its_order() -> None:
    S, _ = big_sparse()["triangle"]
    found = co.detect(S)
    plan = co.explain(co.solve, found)
    assert uses(plan, "inv_sparse") and plan.cost.flops < 100 * S.nnz
    x, info = co.solve(found, np.ones(S.shape[0]), info=True)
    assert info.status is co.Status.SUCCESS
    np.testing.assert_allclose(S @ x, 1, atol=1e-8)
    triangle = found.operands[1]
    factors = SparseLU(
        triangle.data, triangle.structure.indptr, triangle.structure.columns, False
    ).factors
    stored = factors.L.nnz + factors.U.nnz - S.shape[0]  # L has ones on its diagonal
    assert stored == S.nnz, "nothing fills in"
    for form, A in (("N", triangle.S), ("T", triangle.S.T), ("H", triangle.S.T)):
        np.testing.assert_allclose(A @ factors.solve(np.ones(S.shape[0]), form), 1, atol=1e-8)
    sign, logarithm = co.slogdet(triangle)
    assert sign == 1 and logarithm == pytest.approx(np.log(2))  # of the one 2 on a diagonal of ones


def test_the_given_sparse_matrix_stays_as_it_is() -> None:
    # with a zero and a place given twice
    S = sp.csr_array(([1.0, 0.0, 2.0, 3.0], ([0, 0, 1, 1], [0, 1, 0, 0])), shape=(2, 2))
    before = S.data.copy(), S.indices.copy()
    found = co.detect(S)
    np.testing.assert_array_equal(found.to_dense(), [[1.0, 0.0], [5.0, 0.0]])
    assert all(np.array_equal(x, y) for x, y in zip(before, (S.data, S.indices)))


def test_a_dense_matrix_of_few_entries_becomes_sparse() -> None:
    S = sp.random_array((300, 300), density=0.004, rng=3).toarray() + np.diag(1 + rng.random(300))
    found = co.detect(S)
    assert isinstance(found, co.Sparse) or "Sparse" in repr(found), repr(found)


# ------------------------------------------------------------------ what is given, and what is refused


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_other_frameworks_get_their_own_arrays_back(framework: str) -> None:
    module = pytest.importorskip("torch" if framework == "torch" else "jax.numpy")
    A = np.kron(LAPLACE[:6, :6], B4).astype(np.float32)
    found = co.detect(module.asarray(A))
    assert found.backend == framework and "Tridiagonal(6x6) ⊗ Dense(4x4)" in repr(found)
    assert "float32" in str(found.dtype)
    np.testing.assert_allclose(np.asarray(found.to_dense()), A, atol=1e-5)
    np.testing.assert_array_equal(
        np.asarray(
            co.detect(module.asarray(np.eye(5, dtype=np.float32)[[1, 2, 3, 4, 0]])).to_dense()
        )[0, 1],
        1,
    )


def test_half_precision_is_judged_by_its_own_rounding() -> None:
    torch = pytest.importorskip("torch")
    A = torch.asarray(np.outer(U[:, 0], V[:, 0])).to(torch.bfloat16)
    found, info = co.detect(A, info=True)
    assert isinstance(found, co.LowRank) and found.dtype == torch.bfloat16
    assert 0 < info.residual < 0.05


def test_traced_values_are_refused_in_words() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(co.BackendError, match="outside of the transformation"):
        jax.jit(lambda A: co.detect(A) @ A[0])(np.eye(3, dtype=np.float32))
    torch = pytest.importorskip("torch")
    with pytest.raises(co.BackendError, match="detach"):
        co.detect(torch.eye(3, requires_grad=True))


def refused() -> list[tuple[Callable[[], Any], type[Exception], str]]:
    bad = np.eye(4)
    bad[1, 2] = np.nan
    return [
        (lambda: co.detect(bad), ValueError, "1 entries of A are NaN"),
        (lambda: co.detect(sp.csr_array(bad)), ValueError, "NaN or infinite"),
        (lambda: co.detect(np.zeros((2, 3, 3))), co.ShapeError, "batch shape"),
        (lambda: co.detect(np.eye(3), tol=-1.0), ValueError, "between 0 and 1"),
        (lambda: co.detect(np.eye(3), tol="small"), ValueError, "between 0 and 1"),
        (lambda: co.detect(np.ones(3)), co.ShapeError, "two dimensions"),
    ]


@pytest.mark.parametrize("case", range(6))
def test_bad_input_is_refused_in_words(case: int) -> None:
    call, error, words = refused()[case]
    with pytest.raises(error, match=words):
        call()


def test_the_parts_of_a_composed_operator_are_searched() -> None:
    A = co.Dense(LAPLACE) + co.LowRank(U)
    found, info = co.detect(A, info=True)
    assert repr(found).endswith("Tridiagonal(60x60) + LowRank(60x60, rank 3)>")
    assert info.residual == 0 and [child.rule for child in info.children] == [
        "tridiagonal",
        "as it is",
    ]
    plain = co.LowRank(U)
    assert co.detect(plain) is plain
    nested = co.Block([[np.eye(3), np.ones((3, 2))], [None, np.diag([1.0, 2.0])]])
    assert isinstance(co.detect(nested).blocks[0][0], co.Identity)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (1, 1), (1, 5), (5, 1), (2, 2)])
def test_small_and_empty_matrices(shape: tuple[int, int]) -> None:
    A = np.arange(1.0, 1 + shape[0] * shape[1]).reshape(shape)
    found = co.detect(A)
    assert found.shape == shape
    np.testing.assert_allclose(found.to_dense(), A)


def test_rows_and_columns_of_zeros_are_set_apart() -> None:
    A = np.zeros((70, 65))
    A[np.ix_(range(5, 35), range(30))] = DENSE[:30, :30]
    A[np.ix_(range(36, 66), range(31, 61))] = DENSE[30:, 30:]
    found = co.detect(A)
    assert "BlockDiag" in repr(found)
    np.testing.assert_array_equal(found.to_dense(), A)
    np.testing.assert_allclose(found @ np.ones(65), A.sum(axis=1))


def test_the_report_says_what_was_found_and_what_was_tried() -> None:
    _, info = co.detect(BLOCKS[P][:, P], info=True)
    text = str(info)
    assert "permuted block diagonal" in text and "3 blocks, the largest of 30x30" in text
    assert "not Toeplitz: the entries of a diagonal differ" in text
    assert {child.rule for child in info.children} == {"dense", "diagonal"}
    assert info.status is co.Status.SUCCESS
