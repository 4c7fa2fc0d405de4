"""Every function knows the normal form of sums, convolutions and scattered bands: at n = 20 000 nothing dense is formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

I = co.Identity
N = 20_000
LIMIT = 8 * 10**6  # numbers; the matrix has 4 * 10^8
GRID = (1000, 20)
STENCIL = np.array([[0.0, -1, 0], [-1, 5, -1], [0, -1, 0]])


def put(name: str, x: Any) -> Any:
    return backends.get(name).asarray(np.asarray(x, np.float64))


def tridiagonal(name: str, n: int = N) -> Any:
    return co.Tridiagonal(
        *(put(name, np.full(k, c)) for k, c in ((n - 1, -1), (n, 3), (n - 1, -1)))
    )


def banded(name: str, *offsets: int) -> Any:
    lines = [put(name, np.full(N - abs(k), -1.0 if k else 6.0)) for k in offsets]
    return co.Banded(lines, offsets, (N, N))


def sparse(name: str, seed: int) -> Any:
    """6 I + R + R^T with entries of R near the diagonal, so that the factors stay sparse."""
    rng = np.random.default_rng(seed)
    rows = np.unique(rng.integers(0, N - 20, N // 2))
    R = sp.coo_array(
        (rng.standard_normal(len(rows)) / 5, (rows, rows + rng.integers(1, 20, len(rows)))),
        shape=(N, N),
    ).tocsr()
    S = co.Sparse((R + R.T + 6 * sp.eye_array(N)).tocsr())
    return co.Sparse.from_parts(put(name, S.data), S.structure)


def definite(name: str, n: int, seed: int) -> Any:
    M = np.random.default_rng(seed).standard_normal((n, n))
    return co.PD(co.Dense(put(name, M @ M.T / n + np.eye(n))))


def blocks(name: str, seed: int) -> Any:
    return co.BlockDiag(*(definite(name, 100, 200 * seed + i) for i in range(N // 100)))


def kroneckers(name: str) -> Any:
    A = definite(name, 200, 0)
    return co.Kronecker(A, definite(name, 100, 1)) + 2 * co.Kronecker(A, definite(name, 100, 2))


def toeplitz(name: str, power: float) -> Any:
    return co.Toeplitz(put(name, np.r_[4.0, np.arange(2.0, N + 1) ** -power]))


def convolution(name: str, kernel: Any, grid: Any) -> Any:
    return co.Convolution(put(name, kernel), grid, boundary="zero", centered=True)


def low_ranks(name: str) -> Any:
    return co.BatchSum(co.LowRank(put(name, np.random.default_rng(0).standard_normal((5, N, 2)))))


# The sum, and the family that it is one of.
SUMS: dict[str, tuple[Callable[[str], Any], type]] = {
    "sparse and sparse": (lambda name: sparse(name, 0) + sparse(name, 1), co.Sparse),
    "sparse and its adjoint": (lambda name: (S := sparse(name, 0)) + S.H, co.Sparse),
    "sparse and banded": (lambda name: sparse(name, 0) + tridiagonal(name), co.Sparse),
    "banded and diagonal": (
        lambda name: banded(name, 0, 2, -2) + co.Diagonal(put(name, np.linspace(1, 2, N))),
        co.Banded,
    ),
    "banded and tridiagonal": (lambda name: banded(name, 0, 2, -2) + tridiagonal(name), co.Banded),
    "scattered bands": (
        lambda name: banded(name, 0, N - 1, 1 - N) + banded(name, 0, 1, -1),
        co.Banded,
    ),
    "blocks and blocks": (lambda name: blocks(name, 0) + blocks(name, 1), co.BlockDiag),
    "blocks and diagonal": (
        lambda name: blocks(name, 0) + co.Diagonal(put(name, np.linspace(1, 2, N))),
        co.BlockDiag,
    ),
    "equal Kronecker factors": (kroneckers, co.Kronecker),
    "beside identities": (
        lambda name: (
            co.Kronecker(definite(name, 200, 0), I(100))
            + co.Kronecker(I(200), definite(name, 100, 1))
        ),
        co.KroneckerSum,
    ),
    "Toeplitz and Toeplitz": (
        lambda name: toeplitz(name, 2) + 0.5 * toeplitz(name, 3),
        co.Toeplitz,
    ),
    "convolution of a line": (
        lambda name: convolution(name, [-1.0, -0.5, 5.0, -0.5, -1.0], N),
        co.Banded,
    ),
    "convolution of a grid": (lambda name: convolution(name, STENCIL, GRID), co.Sparse),
    "terms of low rank": (
        lambda name: low_ranks(name) + co.Diagonal(put(name, np.linspace(1, 2, N))),
        co.Sum,
    ),
}
# by a factorisation of its structure
ELIMINATED = [case for case in SUMS if not case.startswith(("Toeplitz", "terms", "beside"))]
x = np.cos(np.arange(N))


def make(case: str, name: str = "numpy") -> Any:
    return co.PD(SUMS[case][0](name))


def host(y: Any) -> Any:
    return np.asarray(y.detach() if hasattr(y, "detach") else y)


@pytest.mark.parametrize("case", SUMS)
def test_what_a_sum_is(case):
    A = make(case)
    assert type(co.simplify(A)) is SUMS[case][1]
    assert co.simplify(A).properties == A.properties


@pytest.mark.parametrize("case", SUMS)
def test_solve_inverse_determinant_diagonal_and_trace(case):
    A = make(case)
    with forbid_dense(LIMIT):
        for y in (co.solve(A, x), co.inv(A) @ x):
            np.testing.assert_allclose(A @ y, x, atol=1e-5)
        d = co.diag(A)
        np.testing.assert_allclose(d[::5000], [A[i, i] for i in range(0, N, 5000)])
        np.testing.assert_allclose(co.trace(A), d.sum())
        if case.startswith("Toeplitz"):  # O(n^2): half a minute
            assert co.explain(co.logdet, A).rules[-1] == "slogdet_toeplitz"
            return
        sign, logarithm = co.slogdet(A)
        assert sign == 1 and logarithm <= np.log(d).sum() + 1e-6  # Hadamard's bound
        np.testing.assert_allclose(logarithm, co.logdet(A))


@pytest.mark.parametrize("case", ELIMINATED)
def test_triangular_factors_reproduce_the_matrix(case):
    A = make(case)
    with forbid_dense(LIMIT):
        L = co.cholesky(A)
        np.testing.assert_allclose(L @ (L.H @ x), A @ x, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(2 * np.log(co.diag(L)).sum(), co.logdet(A), rtol=1e-9)
        P, L, U = co.lu(A)
        np.testing.assert_allclose(P @ (L @ (U @ x)), A @ x, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(np.log(np.abs(co.diag(U))).sum(), co.logdet(A), rtol=1e-9)
        assert not np.any(L[0, 1:300] @ np.eye(299)) and not np.any(U[300:, 0])


@pytest.mark.parametrize("case", SUMS)
def test_functions_of_the_matrix_are_products(case):
    A = make(case)
    with forbid_dense(LIMIT):
        root = co.sqrt(A)
        np.testing.assert_allclose(root @ (root @ x), A @ x, rtol=1e-4, atol=1e-4)
        B = 1e-3 * A
        np.testing.assert_allclose(co.exp(B) @ (co.exp(-1 * B) @ x), x, atol=1e-5)


@pytest.mark.parametrize(
    "case", ["equal Kronecker factors", "beside identities", "blocks and blocks"]
)
def test_all_eigenvalues_follow_from_the_parts(case):
    A = make(case)
    with forbid_dense(LIMIT):
        values, V = co.eig(A)
        np.testing.assert_allclose(np.sum(values), co.trace(A))
        np.testing.assert_allclose(np.log(values).sum(), co.logdet(A))
        np.testing.assert_allclose(V @ (values * (V.H @ x)), A @ x, rtol=1e-8, atol=1e-8)
        if case.startswith("beside"):
            return
        Q, R = co.qr(A)
        np.testing.assert_allclose(Q @ (R @ x), A @ x, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "case",
    ["sparse and sparse", "sparse and banded", "equal Kronecker factors", "blocks and diagonal"],
)
def test_outer_eigenvalues_and_norms(case):
    A = make(case)
    with forbid_dense(LIMIT):
        largest = co.eig(A, 1, "LM")[0][0]
        np.testing.assert_allclose(co.svd(A, 1)[1][0], largest, rtol=1e-6)
        np.testing.assert_allclose(co.norm(A, 2), largest, rtol=1e-6)
        np.testing.assert_allclose(
            co.norm(A) ** 2, co.trace(A.H @ A) if "sparse" in case else co.norm(A) ** 2
        )
        assert co.norm(A, 1) >= largest


@pytest.mark.parametrize(
    "case",
    [
        "sparse and banded",
        "banded and diagonal",
        "equal Kronecker factors",
        "convolution of a grid",
    ],
)
def test_in_torch(case):
    pytest.importorskip("torch")
    A, B = make(case), make(case, "torch")
    with forbid_dense(LIMIT):
        np.testing.assert_allclose(host(co.logdet(B)), co.logdet(A))
        y = put("torch", x)
        np.testing.assert_allclose(host(B @ co.solve(B, y)), x, atol=1e-5)
        L = co.cholesky(B)
        np.testing.assert_allclose(host(L @ (L.H @ y)), A @ x, rtol=1e-9, atol=1e-9)


def test_in_jax():
    pytest.importorskip("jax")
    A, B = make("sparse and banded"), make("sparse and banded", "jax")
    assert type(co.simplify(make("equal Kronecker factors", "jax"))) is co.Kronecker
    with forbid_dense(LIMIT):
        np.testing.assert_allclose(host(co.logdet(B)), co.logdet(A))
        L, M = co.cholesky(A), co.cholesky(B)
        np.testing.assert_allclose(host(M.data), L.data)


# ---------------------------------------------------------------------------------------------------- how it shows


@pytest.mark.parametrize(
    ("case", "function", "rules"),
    [
        ("sparse and banded", co.cholesky, ["sum_of_sparse", "cholesky_sparse"]),
        ("convolution of a line", co.lu, ["matrix_of_line", "lu_banded"]),
        ("convolution of a grid", co.slogdet, ["sparse_of_convolution", "slogdet_sparse"]),
        ("scattered bands", co.lu, ["sum_of_sparse", "sparse_of_scattered", "lu_sparse"]),
        ("beside identities", co.eig, ["eig_polynomial_of_factors", "Eigh", "Eigh"]),
        ("terms of low rank", co.inv, ["sum_of_simplified", "woodbury"]),
    ],
)
def test_the_plan_prints_each_step(case, function, rules):
    assert co.explain(function, make(case)).rules[: len(rules)] == rules


def test_one_factor_of_many_terms_is_added():
    rng = np.random.default_rng(0)
    A, B, C = (rng.standard_normal((3, 3)) for _ in range(3))
    P, Q = (rng.standard_normal((3, 2)) for _ in range(2))
    K = co.Kronecker(A, P, B) - 2 * co.Kronecker(A, Q, B) + co.Kronecker(A, P + Q, B)
    found = co.simplify(K)
    assert type(found) is co.Kronecker and len(found.operands) == 3
    np.testing.assert_allclose(found.to_dense(), K.to_dense(), atol=1e-12)
    for other in (
        co.Kronecker(A, B) + co.Kronecker(B, A),
        co.Kronecker(A, B) + co.Kronecker(A.copy(), C.copy() @ C),
    ):
        assert co.simplify(other) is other  # factors are compared by identity, never by value


def test_kernels_on_one_grid_are_added():
    rng = np.random.default_rng(0)
    for boundary in ("wrap", "zero"):
        first = co.Convolution(
            rng.standard_normal((3, 2)), (4, 5), boundary=boundary, centered=True
        )
        second = co.Convolution(rng.standard_normal((2, 5)), (4, 5), boundary=boundary)
        A = first + 0.5 * second - 2 * I(20)
        assert type(co.simplify(A)) is co.Convolution
        np.testing.assert_allclose(co.simplify(A).to_dense(), A.to_dense(), atol=1e-12)
        np.testing.assert_allclose(co.det(A), np.linalg.det(A.to_dense()))


def test_claims_of_nested_products_and_blocks_are_kept():
    rng = np.random.default_rng(0)
    A, B = (co.Dense(rng.standard_normal((2, 2))) for _ in range(2))
    D = co.PD(co.Diagonal([1.0, 2.0]))
    for compose in (co.Kronecker, co.KroneckerSum, co.BlockDiag):
        inner = co.PD(compose(A, B))
        whole = compose(D, inner)
        assert len(whole.operands) == 3 and whole.isa(co.PD)
        assert not compose(co.Dense(rng.standard_normal((2, 2))), inner).isa(co.PD)
    assert co.Kronecker(2 * co.Unitary(co.Kronecker(A, B)), D).isa(co.Unitary) is False


# ---------------------------------------------------------------------------------------------------- sparse triangular factors


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_sparse_factors_of_a_batch(dtype):
    n, rng = 600, np.random.default_rng(0)
    R = sp.random_array((n, n), density=0.3 / n, format="csr", rng=rng)
    S = co.Sparse((R + R.T + sp.eye_array(n)).tocsr())
    upper = S.structure.rows < S.structure.columns
    data = rng.standard_normal((2, S.nnz)) + (
        1j * rng.standard_normal((2, S.nnz)) if dtype is np.complex128 else 0
    )
    A = co.Sparse.from_parts(np.where(upper, data, 0).astype(dtype), S.structure)
    A = co.simplify(co.simplify(A + A.H) + 9 * I(n))
    tol = 50 * np.finfo(dtype).eps
    L, M = co.cholesky(A), A.to_dense()
    assert type(L) is co.Sparse and L.dtype == dtype
    np.testing.assert_allclose((L @ L.H).to_dense(), M, atol=tol)
    np.testing.assert_allclose(L.to_dense(), np.linalg.cholesky(M), atol=tol)
    B = co.simplify(A - 8.9 * I(n))  # indefinite, with pivots off the diagonal
    P, L, U = co.lu(B)
    assert type(L) is type(U) is co.Sparse
    np.testing.assert_allclose(P.to_dense() @ L.to_dense() @ U.to_dense(), B.to_dense(), atol=tol)
    assert np.all(np.abs(L.data) <= np.sqrt(2) + tol)  # pivots are the largest in |re| + |im|
    assert np.all(np.triu(L.to_dense(), 1) == 0) and np.all(np.tril(U.to_dense(), -1) == 0)
    _, info = co.cholesky(B, info=True)
    assert info.failed and np.all(np.asarray(info.status) == co.Status.NOT_POSITIVE_DEFINITE)


def test_a_singular_sparse_matrix_is_factored_as_a_whole():
    S = sp.lil_array((600, 600))
    S.setdiag(2.0)
    S[3, 3] = 0
    P, L, U = co.lu(co.Sparse(S.tocsr()))
    np.testing.assert_allclose((P @ L @ U).to_dense(), S.toarray())


def test_sparse_factors_of_what_is_not_a_number_carry_a_status():
    S = sp.diags_array(
        [np.full(599, -1.0), np.full(600, 3.0), np.full(599, -1.0)], offsets=[-1, 0, 1]
    ).tocsr()
    A = co.Sparse(S)
    for value in (np.nan, np.inf):
        B = co.Sparse.from_parts(np.where(np.arange(A.nnz) == 7, value, A.data), A.structure)
        for function in (co.cholesky, co.lu):
            _, info = function(B, info=True)
            assert info.status == co.Status.NONFINITE


def test_a_zero_that_is_stored_on_one_side_only_does_no_harm():
    S = sp.diags_array(
        [np.full(599, -1.0), np.full(600, 3.0), np.full(599, -1.0)], offsets=[-1, 0, 1]
    ).tocoo()
    rows, columns, data = (np.append(x, y) for x, y in ((S.row, 9), (S.col, 2), (S.data, 0.0)))
    A = co.Sparse(sp.coo_array((data, (rows, columns)), shape=S.shape).tocsr())
    L, info = co.cholesky(A, info=True)
    assert not info.failed and type(L) is co.Sparse
    np.testing.assert_allclose((L @ L.H).to_dense(), S.toarray(), atol=1e-12)
    skew = co.Sparse((S.tocsr() + sp.coo_array(([0.5], ([9], [2])), shape=S.shape)).tocsr())
    assert co.cholesky(skew, info=True)[1].status == co.Status.NOT_POSITIVE_DEFINITE


def test_a_factor_that_fills_in_is_refused_where_its_matrix_is_too_large():
    n = 60_000
    row = sp.coo_array(
        (np.full(n - 1, 1e-3), (np.zeros(n - 1, int), np.arange(1, n))), shape=(n, n)
    )
    # an arrow: the first step fills in everything
    A = co.PD(co.Sparse((row + row.T + sp.eye_array(n)).tocsr()))
    with forbid_dense(10**8):
        for function in (co.cholesky, co.lu, co.qr, co.eig):
            with pytest.raises(co.TooLargeError):
                function(A + I(n))
