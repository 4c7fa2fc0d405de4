"""The entries of an operator that was found, to be compared with those of the matrix: of large sparse ones without forming it."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.toeplitz import Toeplitz
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from .matrix import Matrix, entries_at, norm

UNEVEN = 64.0  # how much larger than on average rounding may be in one entry


def residual(M: Matrix, A: LinearOperator) -> float:
    """|A - M| / |M| in the Frobenius norm."""
    return _relative(M, _difference(M, A))


def fits(M: Matrix, A: LinearOperator, tol: float) -> tuple[float, bool]:
    """The residual, and whether it is small enough: at most `tol`, or for exact structure (`tol` 0) what rounding explains.

    Rounding is that of each entry, which is small in rows and columns of small entries: a matrix whose rows are of very different sizes
    is not to lose the small ones.
    """
    apart = _difference(M, A)
    found = _relative(M, apart)
    if tol > 0 or not 0 < found <= M.rounding:
        return found, found <= max(tol, M.rounding)
    of_rows, of_columns = M.sizes
    if M.dense is not None:
        allowed = np.maximum(np.multiply.outer(of_rows / M.norm, of_columns), np.abs(M.dense))
        return found, bool(np.all(np.abs(apart) <= UNEVEN * M.rounding * allowed))
    entries = apart.tocoo()
    allowed = np.maximum(of_rows[entries.row] / M.norm * of_columns[entries.col], np.abs(entries_at(M, entries.row, entries.col)))
    return found, bool(np.all(np.abs(entries.data) <= UNEVEN * M.rounding * allowed))


def _difference(M: Matrix, A: LinearOperator) -> Any:
    return A._dense() - M.dense if M.dense is not None else sparse_entries(A) - M.S


def _relative(M: Matrix, apart: Any) -> float:
    found = norm(apart if isinstance(apart, np.ndarray) else apart.data)
    return found / M.norm if M.norm else found


def entries(M: Matrix, A: LinearOperator) -> Matrix:
    """Those of A, in the form that M has."""
    return Matrix.of(A._dense() if M.dense is not None else sparse_entries(A), M.eps)


def multiplies_alike(M: Matrix, A: LinearOperator, allowed: float) -> bool:
    """Whether A x is M x for a random x, but for what is `allowed` and the rounding of transforms."""
    n = M.shape[1]
    x = np.random.default_rng(1).standard_normal(n).astype(M.like.real.dtype).astype(M.dtype)
    wanted = (M.S if M.dense is None else M.dense) @ x
    limit = (allowed + 1e3 * M.eps * (1 + np.log2(n + 1))) * M.norm * norm(x)
    return bool(norm(A @ x - wanted) <= limit)


def sparse_entries(A: Any) -> Any:
    """A as a SciPy matrix of compressed rows, by parts; parts of other families, which are small, by their dense form."""
    from scipy import sparse

    csr = sparse.csr_array
    (m, n), parts = A.shape, A.operands
    if isinstance(A, Sparse):
        return csr((A.data, A.structure.columns, A.structure.indptr), shape=(m, n))
    if isinstance(A, Zero):
        return csr((m, n), dtype=A.dtype)
    if isinstance(A, (Identity, ScaledIdentity)):
        return csr(sparse.diags_array(np.full(n, 1.0 if isinstance(A, Identity) else A.c, A.dtype)))
    if isinstance(A, Diagonal):
        return csr(sparse.diags_array(A.d))
    if isinstance(A, Permutation):
        return csr((np.ones(n, A.dtype), A.perm.host, np.arange(n + 1)), shape=(n, n))
    if isinstance(A, Tridiagonal):
        return csr(sparse.diags_array([A.lower, A.diag, A.upper], offsets=[-1, 0, 1]))
    if isinstance(A, Banded):
        return csr(sparse.diags_array(list(A.diagonals), offsets=list(A.offsets), shape=(m, n)))
    if isinstance(A, Scaled):
        return A.scalar * sparse_entries(A.A)
    if isinstance(A, Product):
        return reduce(lambda S, T: S @ T, map(sparse_entries, parts))
    if isinstance(A, BlockDiag):
        return csr(sparse.block_diag([sparse_entries(part) for part in parts], format="csr"))
    if isinstance(A, Kronecker):
        return reduce(lambda S, T: csr(sparse.kron(S, T, "csr")), map(sparse_entries, parts))
    if isinstance(A, KroneckerSum):
        return reduce(_kronecker_sum, map(sparse_entries, parts))
    if isinstance(A, Circulant):
        return _repeated(A.col, np.arange(n), (n, n), wraps=True)
    if isinstance(A, Convolution):
        return _convolution(A.kernel, A.grid)
    if isinstance(A, Toeplitz):
        return _repeated(A._diagonals(), np.arange(1 - n, m), (m, n), wraps=False)
    return csr(A._dense())


def _kronecker_sum(S: Any, T: Any) -> Any:
    from scipy import sparse

    eyes = [sparse.eye_array(each.shape[0], dtype=each.dtype) for each in (S, T)]
    return sparse.csr_array(sparse.kron(S, eyes[1], "csr") + sparse.kron(eyes[0], T, "csr"))


def _convolution(kernel: Any, grid: tuple[int, ...]) -> Any:
    """The matrix of a periodic convolution of two dimensions, with a kernel as large as the grid."""
    from scipy.sparse import csr_array

    places, n = np.nonzero(kernel), grid[0] * grid[1]
    columns = np.tile(np.arange(n), len(places[0]))
    shifts = [np.repeat(axis, n) for axis in places]
    rows = (columns // grid[1] + shifts[0]) % grid[0] * grid[1] + (columns % grid[1] + shifts[1]) % grid[1]
    return csr_array((np.repeat(kernel[places], n), (rows, columns)), shape=(n, n))


def _repeated(values: Any, shifts: Any, shape: tuple[int, int], wraps: bool) -> Any:
    """The matrix with values[k] wherever i - j = shifts[k], of a circulant one modulo the number of rows."""
    from scipy.sparse import csr_array

    m, n = shape
    there = np.flatnonzero(values)
    columns = np.repeat(np.arange(n), len(there))
    rows = columns + np.tile(shifts[there], n)
    data = np.tile(values[there], n)
    if wraps:
        rows = rows % m
    inside = (rows >= 0) & (rows < m)
    return csr_array((data[inside], (rows[inside], columns[inside])), shape=shape)
