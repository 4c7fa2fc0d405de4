"""Linear algebra for the NumPy backend: LAPACK for one matrix, and for many whichever loop is
shorter.

Nothing here raises on values: a factorisation that fails, or NaN in the input, shows as NaN in the
answer. SciPy's submodules are reached as `scipy.linalg`, which imports them at first use: `import
colinear` stays fast.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy

from .. import factorising, shared
from ..shared import (
    _lapack,
    _nan_on_failure,
    _over_batch,
    by_columns,
    cholesky_or_nan,
    common,
    half,
    lu_parity,
    lu_substitute,
)

Array = Any

MIRRORED = 128  # rows of a block of a triangle that is copied into the other
# rows from which LAPACK, called for each matrix of a batch, outruns steps taken for all of them
# together
LARGE = 32


# Cholesky, LU, LDL
# -------------------------------------------------------------------------------------------------


@half
def cholesky(A: Array) -> tuple[Array, Array]:
    """Factor Hermitian A = L L^H (its lower triangle is read). Returns L and ok; L is NaN where
    A is not positive definite."""
    if A.ndim > 2 and A.shape[-1] >= LARGE and A.size:
        return _cholesky_each(A)
    if A.ndim > 2:
        try:
            L = np.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return _over_batch(2)(cholesky)(A)
    elif A.size == 0:
        return A.copy(), np.True_
    else:
        # The lower triangle of A in C order is the upper one of conj(A) in Fortran order: U^H U =
        # conj(A), so L = U^T.
        U, failure = _lapack("potrf", A.dtype.char)(A.T, lower=0, clean=1)
        L = U.T
        if failure or not np.isfinite(L.trace()):  # OpenBLAS lets NaN through
            return np.full_like(L, np.nan), np.False_
        return L, np.True_
    ok: Any = np.isfinite(np.diagonal(L, 0, -2, -1)).all(-1)
    return (L if ok.all() else np.where(ok[..., None, None], L, np.nan).astype(A.dtype)), ok


def _cholesky_each(A: Array) -> tuple[Array, Array]:
    """Factor matrix by matrix, in place: NumPy's own loop copies each into the other order and
    back."""
    L = np.array(A, order="C")
    ok = np.empty(A.shape[:-2], bool)
    potrf = _lapack("potrf", A.dtype.char)
    for i in np.ndindex(ok.shape):
        # U^H U = conj(A), U = L^T as above
        ok[i] = potrf(L[i].T, lower=0, clean=1, overwrite_a=1)[1] == 0
    ok &= np.isfinite(np.diagonal(L, 0, -2, -1)).all(-1)
    L[~ok] = np.nan
    return L, ok


@half
def cholesky_solve(L: Array, B: Array) -> Array:
    """Solve A X = B from `cholesky(A)`; B is (*batch, n, k)."""
    L, B = common(L, B)
    if B.size and L.ndim == B.ndim == 2:
        return _potrs(L, B)
    if 0 in B.shape or L.ndim == 2 or L.shape[-1] < LARGE:
        return shared.cholesky_solve(L, B)
    return _over_batch(2, 2)(_potrs)(L, B)


@half
@_over_batch(2)
def cholesky_inverse(L: Array) -> Array:
    """A^-1 as a matrix from `cholesky(A)`, n^3 / 3 multiplications: two thirds of what
    triangular solves for the identity take."""
    if not L.size:
        return L.copy()
    # The lower triangle of L in C order is the U of conj(A) = U^H U in Fortran order, whose inverse
    # is the transpose of A^-1.
    T = _lapack("potri", L.dtype.char)(np.ascontiguousarray(L).T, lower=0)[0].T
    n = len(T)
    # the upper triangle from the lower, block by block: a transpose that stays in the cache
    for i in range(0, n, MIRRORED):
        j = min(i + MIRRORED, n)
        block = np.tril(T[i:j, i:j])
        T[i:j, i:j] = block + np.tril(block, -1).conj().T
        T[i:j, j:] = T[j:, i:j].conj().T
    return T


def _potrs(L: Array, B: Array) -> Array:
    potrs = _lapack("potrs", B.dtype.char)
    if L.flags.f_contiguous:
        return potrs(L, B, lower=1)[0]
    if B.dtype.kind == "f":  # C order: L^T is there uncopied, the U of A = U^T U
        return potrs(L.T, B, lower=0)[0]
    # and for complex numbers that of conj(A) = U^H U
    return potrs(L.T, B.conj(), lower=0)[0].conj()


@half
def lu_factor(A: Array) -> tuple[Array, Array]:
    """Factor A = P L U with partial pivoting. Returns L and U in one array, and the row swaps
    (from 0) as in LAPACK."""
    if A.size == 0:
        return A.copy(), np.zeros((*A.shape[:-2], min(A.shape[-2:])), np.int32)
    if A.ndim == 2:
        return _lapack("getrf", A.dtype.char)(A)[:2]
    if A.size // (A.shape[-2] * A.shape[-1]) > A.shape[-1] and A.shape[-1] < LARGE:
        return _lu_together(A)
    # in LAPACK's order, to be factored in place
    LU = np.matrix_transpose(np.array(np.matrix_transpose(A), order="C"))
    pivots = np.empty((*A.shape[:-2], min(A.shape[-2:])), np.int32)
    getrf = _lapack("getrf", A.dtype.char)
    for i in np.ndindex(A.shape[:-2]):
        pivots[i] = getrf(LU[i], overwrite_a=1)[1]
    return LU, pivots


def _lu_together(A: Array) -> tuple[Array, Array]:
    """Eliminate one column of all matrices at a time."""
    m, n = A.shape[-2:]
    LU = A.reshape(-1, m, n).copy()
    which = np.arange(len(LU))
    pivots = np.empty((len(LU), min(m, n)), np.int32)
    for j in range(min(m, n)):
        pivots[:, j] = j + np.abs(LU[:, j:, j]).argmax(1)
        LU[which, pivots[:, j]], LU[:, j] = LU[:, j].copy(), LU[which, pivots[:, j]]
        pivot = LU[:, j, j, None]
        LU[:, j + 1 :, j] /= np.where(pivot == 0, 1, pivot)
        LU[:, j + 1 :, j + 1 :] -= LU[:, j + 1 :, j, None] * LU[:, j, None, j + 1 :]
    return LU.reshape(A.shape), pivots.reshape(*A.shape[:-2], min(m, n))


@half
def lu_solve(LU: Array, pivots: Array, B: Array, adjoint: bool = False) -> Array:
    """Solve A X = B or A^H X = B from `lu_factor(A)`; B is (*batch, n, k)."""
    LU, B = common(LU, B)
    if LU.ndim == B.ndim == 2:
        if B.size == 0:
            return B.copy()
        return _lapack("getrs", B.dtype.char)(LU, pivots, B, trans=2 * adjoint)[0]
    if LU.shape[-1] >= LARGE:
        return _over_batch(2, 1, 2)(lu_solve)(LU, pivots, B, adjoint)
    return lu_substitute(LU, pivots, B, adjoint)


@factorising
def lu_factor_and_solve(A: Array, B: Array) -> tuple[Array, Array, Array]:
    """`lu_factor(A)` and the solution of A X = B, of one matrix that LAPACK takes: a call less."""
    LU, pivots, X, failure = _lapack("gesv", A.dtype.char)(A, B)
    # of a pivot that is zero LAPACK leaves X undone
    return LU, pivots, lu_solve(LU, pivots, B) if failure else X


def solves(A: Array, X: Array, B: Array, tol: float, limit: float) -> bool:
    """Whether |b - A x| <= tol |b| for each column, and limit |A| |x| < |b| for the last, surely.

    For few columns and one dtype: BLAS is quicker there than NumPy, does not overflow nor warn.
    """
    norm, gemm = _norm_and_product(B.dtype.char)
    # BLAS reads columns: a matrix of rows is its transpose, and is not copied
    M, is_turned = (A, 0) if A.flags.f_contiguous else (A.T, 1)
    if not are_below(gemm(-1.0, M, X, 1.0, B, trans_a=is_turned), B, tol):
        return False
    size = norm(A.ravel("K"))
    return size > 1e-15 and limit * size * norm(X[:, -1]) < norm(B[:, -1])


def are_below(R: Array, B: Array, tol: float) -> bool:
    """Whether |r| <= tol |b| for each of few columns, of one dtype that BLAS has; false too where
    tol |b| is so small or so large that it means nothing."""
    norm, (n, k), b = _norm_and_product(B.dtype.char)[0], B.shape, B.ravel()
    # the j-th column is every k-th number from the j-th on, or n of those stored by columns
    r, start, step = (R.ravel("K"), n, 1) if R.flags.f_contiguous else (R.ravel(), 1, k)
    for j in range(k):
        size = tol * norm(b, n, j, k)
        if not (norm(r, n, j * start, step) <= size and 1e-15 < size < 1e15):
            return False
    return True


@functools.cache
def _norm_and_product(character: str) -> tuple[Any, Any]:
    norms = {"f": "snrm2", "d": "dnrm2", "F": "scnrm2", "D": "dznrm2"}  # all are real
    return getattr(scipy.linalg.blas, norms[character]), _lapack("gemm", character, "blas")


def lu_permutation(pivots: Array, n: int) -> Array:
    """Turn row swaps into a permutation, A[perm] = L U."""
    perm = np.broadcast_to(np.arange(n), (*pivots.shape[:-1], n)).copy()
    for j in range(pivots.shape[-1]):
        swap = pivots[..., j, None].astype(np.intp)
        moved = np.take_along_axis(perm, swap, -1)
        np.put_along_axis(perm, swap, perm[..., j, None], -1)
        perm[..., j, None] = moved
    return perm


has_ldl = True  # whether `ldl_solve` takes LAPACK's L D L^H; all take eigenvectors


@half
@_over_batch(2)
def ldl_factor(A: Array) -> tuple[Array, ...]:
    """Factor Hermitian A, definite or not, stably; what it returns is for `ldl_solve` and
    `ldl_slogdet`.

    Here Bunch and Kaufman's L D L^H as LAPACK packs it: D has blocks of size 1 and 2, those of size
    2 where pivots < 0.
    """
    if A.size == 0:
        return A.copy(), np.zeros(0, np.int32)
    kind = "hetrf" if A.dtype.kind == "c" else "sytrf"
    work, _ = _lapack(kind + "_lwork", A.dtype.char)(len(A), lower=1)
    return _lapack(kind, A.dtype.char)(A, lower=1, lwork=int(work.real))[:2]


@half
def ldl_solve(packed: Array, pivots: Array, B: Array) -> Array:
    """Solve A X = B from `ldl_factor(A)`; B is (*batch, n, k)."""
    is_packed = pivots.dtype.kind == "i"
    return (_packed_solve if is_packed else shared.eigen_solve)(packed, pivots, B)


@_over_batch(2, 1, 2)
def _packed_solve(packed: Array, pivots: Array, B: Array) -> Array:
    packed, B = common(packed, B)
    if B.size == 0:
        return B.copy()
    kind = "hetrs" if packed.dtype.kind == "c" else "sytrs"
    return _lapack(kind, packed.dtype.char)(packed, pivots, B, lower=1)[0]


# log 0 = -inf is the answer for a singular A
ldl_slogdet = np.errstate(divide="ignore")(shared.ldl_slogdet)


# orthogonal and spectral
# -------------------------------------------------------------------------------------------


@half
def qr(A: Array) -> tuple[Array, Array]:
    """Factor A = Q R, reduced."""
    if A.ndim > 2 or A.size == 0:
        return np.linalg.qr(A)
    # LAPACK at once: NumPy's way there copies twice
    work, _ = _lapack("geqrf_lwork", A.dtype.char)(*A.shape)
    reflectors, scales, *_ = _lapack("geqrf", A.dtype.char)(
        np.array(A, order="F"), lwork=int(work.real), overwrite_a=1
    )
    k = len(scales)
    form = _lapack("ungqr" if A.dtype.kind == "c" else "orgqr", A.dtype.char)
    work = form(reflectors[:, :k], scales, lwork=-1)[1]
    R = np.triu(reflectors[:k])
    Q = form(reflectors[:, :k], scales, lwork=int(work[0].real), overwrite_a=1)[0]
    return Q, R


@half
def qr_triangle(A: Array) -> Array:
    """R of A = Q R, without Q."""
    return np.linalg.qr(A, "r")


@half
@_over_batch(2)
def qr_pivoted(A: Array) -> tuple[Array, Array, Array]:
    """Factor A[:, perm] = Q R (reduced), |diag R| falling: the rank shows."""
    Q, R, perm = scipy.linalg.qr(A, mode="economic", pivoting=True, check_finite=False)
    return Q, R, perm.astype(np.intp)


# of Hermitian A: eigenvalues, ascending, and orthonormal eigenvectors; eigenvalues alone
eigh, eigvalsh = (half(_nan_on_failure(f)) for f in (np.linalg.eigh, np.linalg.eigvalsh))


@half
@_nan_on_failure
def eig(A: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of any square A, always complex."""
    values, vectors = np.linalg.eig(A)
    dtype = np.result_type(A.dtype, np.complex64)
    return values.astype(dtype), vectors.astype(dtype)


@half
@_nan_on_failure
def eigvals(A: Array) -> Array:
    """Eigenvalues of any square A, always complex."""
    return np.linalg.eigvals(A).astype(np.result_type(A.dtype, np.complex64))


@half
@_nan_on_failure
def svd(A: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Factor A = U diag(s) V^H. Returns U, s, V^H."""
    return tuple(np.linalg.svd(A, full_matrices))  # type: ignore[return-value]


@half
@_nan_on_failure
def expm(A: Array) -> Array:
    """The matrix exponential."""
    return scipy.linalg.expm(A) if A.size else A.copy()


# triangular and banded solves
# --------------------------------------------------------------------------------------


@half
def solve_triangular(
    A: Array,
    B: Array,
    lower: bool = True,
    unit_diagonal: bool = False,
    adjoint: bool = False,
) -> Array:
    """Solve A X = B or A^H X = B for triangular A; B is (*batch, n, k). The other
    triangle is not read."""
    A, B = common(A, B)
    if adjoint and B.dtype.kind == "c":  # A^H X = B is A^T conj(X) = conj(B)
        return solve_triangular(A.mT, B.conj(), not lower, unit_diagonal).conj()
    if adjoint:
        A, lower = A.mT, not lower
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    if B.size == 0 or 0 in batch:
        return np.zeros((*batch, *B.shape[-2:]), B.dtype)
    if A.ndim == 2 and B.ndim > 2:
        return by_columns(lambda B: _trsm(A, B, lower, unit_diagonal), B)
    if A.ndim == 2:
        return _trsm(A, B, lower, unit_diagonal)
    if np.prod(batch) > A.shape[-1] and A.shape[-1] < LARGE:
        return _substitute_together(A, B, lower, unit_diagonal)
    return _over_batch(2, 2)(_trsm)(A, B, lower, unit_diagonal)


def _trsm(A: Array, B: Array, lower: bool, unit: bool) -> Array:
    # BLAS, not LAPACK's trtrs: a zero on the diagonal then gives infinities, as in the other
    # frameworks.
    trsm = _lapack("trsm", B.dtype.char, "blas")
    if A.flags.f_contiguous:
        return trsm(1, A, B, lower=lower, diag=unit)
    return trsm(1, A.T, B, lower=not lower, trans_a=1, diag=unit)  # C order: A^T, uncopied


def _substitute_together(A: Array, B: Array, lower: bool, unit: bool) -> Array:
    """Substitute one row of all systems at a time."""
    n = A.shape[-1]
    batch = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    X = np.array(np.broadcast_to(B, (*batch, *B.shape[-2:])))
    with np.errstate(divide="ignore", invalid="ignore"):
        for i in range(n) if lower else range(n - 1, -1, -1):
            known = slice(0, i) if lower else slice(i + 1, n)
            X[..., i, :] -= (A[..., i, None, known] @ X[..., known, :])[..., 0, :]
            if not unit:
                X[..., i, :] /= A[..., i, i, None]
    return X


@half
def solve_tridiagonal(lower: Array, diag: Array, upper: Array, B: Array) -> Array:
    """Solve a tridiagonal system, with pivoting: diagonals (*batch, n-1), (*batch, n), (*batch,
    n-1), B (*batch, n, k).

    A batch is one long system whose parts are not coupled. NaN where the matrix is exactly
    singular.
    """
    given = lower, diag, upper, B = common(lower, diag, upper, B)
    batch = np.broadcast_shapes(lower.shape[:-1], diag.shape[:-1], upper.shape[:-1], B.shape[:-2])
    if batch:
        B = np.broadcast_to(B, (*batch, *B.shape[-2:]))
        joined = np.zeros((3, *batch, B.shape[-2]), B.dtype)
        joined[0, ..., :-1], joined[1], joined[2, ..., :-1] = lower, diag, upper
        below, diag, above = joined.reshape(3, -1)
        lower, upper = below[:-1], above[:-1]
    if B.size == 0:
        return B.copy()
    if diag.size == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            return B / diag
    *_, X, failure = _lapack("gtsv", B.dtype.char)(lower, diag, upper, B.reshape(-1, B.shape[-1]))
    if failure and batch:
        return _over_batch(1, 1, 1, 2)(solve_tridiagonal)(*given)
    return np.full_like(B, np.nan) if failure else X.reshape(B.shape)


@half
def solve_banded(ab: Array, widths: tuple[int, int], B: Array) -> Array:
    """Solve a banded system, with pivoting: ab[..., u + i - j, j] = A[..., i, j], ab (*batch,
    l+u+1, n), B (*batch, n, k).

    widths is (l, u), the numbers of diagonals below and above the main one. NaN where the matrix is
    exactly singular.
    """
    l, u = widths
    if l == u == 1:
        return solve_tridiagonal(ab[..., 2, :-1], ab[..., 1, :], ab[..., 0, 1:], B)
    ab, B = common(ab, B)
    batch = np.broadcast_shapes(ab.shape[:-2], B.shape[:-2])
    n, k = B.shape[-2:]
    if B.size == 0 or 0 in batch:
        return np.zeros((*batch, n, k), B.dtype)
    ab, B = np.broadcast_to(ab, (*batch, l + u + 1, n)), np.broadcast_to(B, (*batch, n, k))
    row = np.arange(l + u + 1)[:, None] - u + np.arange(n)
    # what stands outside a matrix would couple it to its neighbour
    inside = np.where((row >= 0) & (row < n), ab, 0)
    work = np.zeros((2 * l + u + 1, n * (B.size // (n * k))), B.dtype, order="F")
    work[l:] = np.moveaxis(inside, -2, 0).reshape(l + u + 1, -1)
    _, _, X, failure = _lapack("gbsv", B.dtype.char)(l, u, work, B.reshape(-1, k), overwrite_ab=1)
    if failure and batch:
        return _over_batch(2, 2)(lambda ab, B: solve_banded(ab, widths, B))(ab, B)
    return np.full_like(B, np.nan) if failure else X.reshape(B.shape)
