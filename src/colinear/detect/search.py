"""The search: every finder in turn, each result compared with the matrix, the cheapest kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from ..dispatch import Cost
from ..functions.solve.cost import dense_work, estimated_fill, least_squares_work
from ..methods.loop import show
from ..operators import (
    Banded,
    BlockDiag,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    Toeplitz,
    Triangular,
    Tridiagonal,
    Zero,
)
from ..operators.sparse_algebra import as_sparse, multiply_out
from ..properties import SELF_ADJOINT, STIEFEL
from .factors import (
    kronecker,
    kronecker_plus_identity,
    kronecker_sum,
    low_rank,
    low_rank_plus_diagonal,
)
from .matrix import Found, Matrix, claims, is_orthonormal, kronecker_sum_of, norm
from .shapes import (
    banded,
    block_circulant,
    circulant,
    components,
    diagonal,
    permutation,
    permuted_triangular,
    toeplitz,
    triangular,
    tridiagonal,
    zero,
)

# What a structure is worth: the flops of solving with it, by which the search chooses.


# for each part of a composition: so much that none is made of what has a few rows only
OPERAND = 200.0
# in flops of a dense factorisation, and the same on every machine, so that all find the same:
INDIRECT = 8.0  # a flop that waits for memory
FILLED = 2000.0  # an entry of sparse factors


def cost(A: Any) -> float:
    """The flops of a solve with A, of a least squares problem if it is not square, in those of a
    dense factorisation."""
    (m, n), size = A.shape, float(max(A.shape))
    if isinstance(A, (Identity, ScaledIdentity, Diagonal, Zero)):
        return size
    if isinstance(A, Permutation):
        return INDIRECT * 2 * size
    if isinstance(A, Tridiagonal):
        return INDIRECT * 8 * n
    if isinstance(A, (Circulant, Convolution)):
        return INDIRECT * 10 * n * math.log2(n + 1)
    if isinstance(A, Triangular):
        return INDIRECT * n * n / 2
    if isinstance(A, LowRank):
        return OPERAND + 4 * size * A.U.shape[-1] ** 2
    if isinstance(A, Scaled):
        return size + cost(A.A)
    if isinstance(A, (Product, BlockDiag, Kronecker)):
        beside = INDIRECT * A.flops if isinstance(A, Kronecker) else 0.0
        return sum(OPERAND + cost(part) for part in A.operands) + beside
    if isinstance(A, KroneckerSum):
        return _cost_by_eigenvectors(A, A.operands)
    if isinstance(A, Sum):
        return _cost_of_sum(A)
    if m != n:
        return _with_forming(A, least_squares_work(A))
    if isinstance(A, Toeplitz):
        return INDIRECT * 4 * n * n
    if isinstance(A, Banded):
        lower, upper = max(0, -min(A.offsets)), max(0, *A.offsets)
        return min(INDIRECT * 2 * n * (lower + 1) * (lower + upper + 1), _formed(A))
    if isinstance(A, Sparse):
        # the fill is estimated as of a grid; what is scattered at random has far less
        entries, flops = estimated_fill(A.structure)
        return min((INDIRECT / 2 * flops + FILLED * entries) / 2, _formed(A))
    return _formed(A)


def _with_forming(A: LinearOperator, cost: Cost) -> float:
    """The flops of a factorisation, where those of forming the matrix count as in blocks."""
    return cost.flops + (INDIRECT / 2 - 1) * A.dense_flops


def _cost_of_sum(A: Sum) -> float:
    """Low rank plus diagonal by the matrix inversion lemma, a Kronecker product plus c I by the
    eigenvectors of its factors."""
    if any(isinstance(part, LowRank) for part in A.operands):
        return OPERAND + sum(map(cost, A.operands))
    for part in A.operands:
        if isinstance(part, Kronecker):
            return _cost_by_eigenvectors(A, part.operands)
    return _formed(A)


def _cost_by_eigenvectors(A: LinearOperator, parts: Sequence[LinearOperator]) -> float:
    return sum(OPERAND + _spectral(part) for part in parts) + 2 * INDIRECT * A.flops


def _formed(A: LinearOperator) -> float:
    """A dense factorisation, and a solve with its factors."""
    return _with_forming(A, dense_work(A)) + INDIRECT * 2 * A.shape[-1] ** 2


def _spectral(A: LinearOperator) -> float:
    """The eigenvectors of a term of a Kronecker sum: known, if it is tridiagonal of constant
    diagonals, or circulant."""
    n = float(A.shape[-1])
    if isinstance(A, (Identity, ScaledIdentity, Diagonal, Circulant)):
        return INDIRECT * 10 * n * math.log2(n + 1)
    if isinstance(A, Tridiagonal):
        return INDIRECT * 10 * n * n
    if isinstance(A, (KroneckerSum, Kronecker)):
        return sum(map(_spectral, A.operands))
    return 25 * n**3


# The entries of an operator that was found, to be compared with those of the matrix: of large
# sparse ones without forming it.


UNEVEN = 64.0  # how much larger than on average rounding may be in one entry


def residual(M: Matrix, A: LinearOperator) -> float:
    """|A - M| / |M| in the Frobenius norm."""
    return norm(_entries(M, A) - M.matrix) / (M.norm or 1.0)


def fits(M: Matrix, A: LinearOperator, tol: float) -> tuple[float, bool]:
    """The residual, and whether it is small enough: at most `tol`, or for exact structure (`tol` 0)
    what rounding explains.

    Rounding is that of each entry, which is small in rows and columns of small entries: a matrix
    whose rows are of very different sizes is not to lose the small ones.
    """
    apart = _entries(M, A) - M.matrix
    found = norm(apart) / (M.norm or 1.0)
    if tol > 0 or not 0 < found <= M.rounding:
        return found, found <= max(tol, M.rounding)
    of_rows, of_columns = M.sizes
    if M.dense is not None:
        wanted, sizes = M.dense, np.multiply.outer(of_rows / M.norm, of_columns)
    else:
        entries = apart.tocoo()
        rows, columns, apart = entries.row, entries.col, entries.data
        wanted, sizes = M.at(rows, columns), of_rows[rows] / M.norm * of_columns[columns]
    allowed = UNEVEN * M.rounding * np.maximum(sizes, np.abs(wanted))
    return found, bool(np.all(np.abs(apart) <= allowed))


def _entries(M: Matrix, A: LinearOperator) -> Any:
    """Those of A, in the form that M has."""
    return A._dense() if M.dense is not None else sparse_entries(A, A)


def multiplies_alike(M: Matrix, A: LinearOperator, allowed: float) -> bool:
    """Whether A x is M x for a random x, but for what is `allowed` and the rounding of
    transforms."""
    n = M.shape[1]
    x = np.random.default_rng(1).standard_normal(n).astype(M.like.real.dtype).astype(M.dtype)
    limit = (allowed + 1e3 * M.eps * (1 + np.log2(n + 1))) * M.norm * norm(x)
    return norm(A @ x - M.matrix @ x) <= limit


def sparse_entries(A: Any, whole: LinearOperator) -> Any:
    """A as a SciPy matrix of compressed rows, by parts; parts of other families, which are
    small, by their dense form."""
    from scipy import sparse

    csr, (m, n) = sparse.csr_array, A.shape
    parts = [sparse_entries(part, whole) for part in A.operands]
    if isinstance(A, Scaled):
        return A.scalar * parts[0]
    if isinstance(A, Product):
        return reduce(lambda S, T: S @ T, parts)
    if isinstance(A, BlockDiag):
        return csr(sparse.block_diag(parts, format="csr"))
    if isinstance(A, Kronecker):
        return reduce(lambda S, T: csr(sparse.kron(S, T, "csr")), parts)
    if isinstance(A, KroneckerSum):
        return reduce(kronecker_sum_of, parts)
    if isinstance(A, (Circulant, Convolution)):
        kernel, grid = (A.col, (n,)) if isinstance(A, Circulant) else (A.kernel, A.grid)
        return _convolution(kernel, grid)
    if isinstance(A, Toeplitz):
        values = A._diagonals()
        there = np.flatnonzero(values)
        return csr(sparse.diags_array(values[there, None], offsets=n - 1 - there, shape=(m, n)))
    return csr(A._dense()) if multiply_out.find(A).is_base else as_sparse(A, whole).S


def _convolution(kernel: Any, grid: tuple[int, ...]) -> Any:
    """The matrix of a periodic convolution with a kernel as large as the grid."""
    from scipy.sparse import csr_array

    places, n = np.nonzero(kernel), math.prod(grid)
    columns = np.tile(np.arange(n), len(places[0]))
    moved = [at + np.repeat(shift, n) for at, shift in zip(np.unravel_index(columns, grid), places)]
    rows = np.ravel_multi_index(moved, grid, mode="wrap")
    return csr_array((np.repeat(kernel[places], n), (rows, columns)), shape=(n, n))


# The search: every finder in turn, each result compared with the matrix, the cheapest kept.


SPARSE = 0.25  # the part of the entries up to which a dense matrix may be better as a sparse one
BETTER = 0.9  # how much cheaper something more complicated must be


class Finder(NamedTuple):
    """What finds a structure, and the matrices that it is for.

    Attributes
    ----------
    name : str
        Of what it looks for.
    find : callable
        `find(M, tol)`, and `search` where it searches the parts that it finds.
    least_rows : int
        The fewest rows, and columns, of a matrix for which the structure means something.
    is_square, needs_zeros : bool
        Whether it is one of square matrices, or of those with zeros.
    is_dense : bool
        Whether it is looked for only where the matrix is written down.
    is_final : bool
        Whether nothing is cheaper.
    has_parts : bool
        Whether it has parts that are searched in their turn.
    """

    name: str
    find: Callable[..., Found | str]
    least_rows: int = 0
    is_square: bool = True
    needs_zeros: bool = False
    is_dense: bool = False
    is_final: bool = False
    has_parts: bool = False

    def suits(self, M: Matrix, tol: float) -> bool:
        """Whether it is worth a look."""
        m, n = M.shape
        if (self.is_square and m != n) or min(m, n) < self.least_rows:
            return False
        return not (self.needs_zeros and M.is_full and tol == 0 and min(m, n) > 1)

    def __call__(self, M: Matrix, tol: float) -> Found | str:
        if self.is_dense and M.dense is None:
            return "not looked for in a large sparse matrix"
        try:
            return self.find(M, tol, search) if self.has_parts else self.find(M, tol)
        except np.linalg.LinAlgError:  # an iteration inside that did not converge
            return "it could not be computed"


# the simple and cheap ones first
FINDERS = (
    Finder("zero", zero, is_square=False, needs_zeros=True, is_final=True),
    Finder("diagonal", diagonal, needs_zeros=True, is_final=True),
    Finder("permutation", permutation, needs_zeros=True, is_final=True),
    Finder("tridiagonal", tridiagonal, 4, needs_zeros=True, is_final=True),
    Finder("circulant", circulant, 4),
    Finder("triangular", triangular, needs_zeros=True),
    Finder("banded", banded, is_square=False, needs_zeros=True),
    Finder("Toeplitz", toeplitz, 4, is_square=False),
    Finder("a Kronecker product", kronecker, is_square=False, has_parts=True),
    Finder("a Kronecker sum", kronecker_sum, needs_zeros=True, has_parts=True),
    Finder(
        "a Kronecker product plus c I", kronecker_plus_identity, 9, is_dense=True, has_parts=True
    ),
    Finder("a periodic convolution", block_circulant, 16),
    Finder("triangular up to permutations", permuted_triangular, needs_zeros=True),
    Finder("block diagonal", components, is_square=False, needs_zeros=True, has_parts=True),
    Finder("of low rank", low_rank, 12, is_square=False, is_dense=True),
    Finder("of low rank plus diagonal", low_rank_plus_diagonal, 24, is_dense=True),
)


def search(M: Matrix, tol: float) -> Found:
    """The cheapest structure that M has, to a relative residual of `tol`; 0 for exactly (but for
    rounding, in products)."""
    if 0 in M.shape:
        return Found("empty", Zero(*M.shape, like=M.like))
    best, tried = unstructured(M), ["no entry is zero"] if M.is_full else []
    price = cost(best.operator._claim(SELF_ADJOINT if M.is_hermitian else 0))
    allowed = max(tol, M.rounding)
    enough = INDIRECT * M.nnz / 2  # a few times what it takes to read the matrix
    for finder in FINDERS:
        if price <= enough:
            break
        if not finder.suits(M, tol):
            continue
        show(partial("whether it is {}".format, finder.name))
        found = finder(M, tol)
        if isinstance(found, str):
            tried.append(f"not {finder.name}: {found}")
            continue
        apart, agrees = fits(M, found.operator, tol)
        if not agrees or not multiplies_alike(M, found.operator, allowed):
            large = "in small rows" if apart <= allowed else f"of {apart:.1e}"
            tried.append(f"not {finder.name}: there would be a residual {large}")
            continue
        found_price = cost(found.operator)
        if found_price >= BETTER * price and not finder.is_final:
            tried.append(f"{found.name}, which does not pay")
            continue
        if best.parts or best.name not in ("dense", "sparse"):
            tried.append(f"{best.name}, which costs more")
        best, price = replace(found, residual=apart), found_price
        if finder.is_final:
            break
    return annotated(M, replace(best, tried=tuple(tried)))


def unstructured(M: Matrix) -> Found:
    """The matrix as it is, sparse where that is cheaper to solve with."""
    m, n = M.shape
    if M.dense is not None and M.density > SPARSE:
        return Found("dense", Dense(M.dense))
    as_sparse = Sparse(M.S)
    if M.dense is not None and not cost(as_sparse) < BETTER * cost(Dense(M.dense)):
        return Found("dense", Dense(M.dense))
    return Found("sparse", as_sparse, f"{M.nnz} of {m * n} entries are not zero")


def annotated(M: Matrix, found: Found) -> Found:
    """With the properties that the entries show: those of M, where the operator is M but for
    rounding, else its own."""
    A, apart = found.operator, found.residual
    if M.is_square and M.nnz:
        own = M
        if apart > M.rounding:
            own, apart = Matrix.of(_entries(M, A), M.eps), 0.0
            # it is, but for the rounding of its entries
            if A.properties & SELF_ADJOINT and not own.is_hermitian:
                own, apart = symmetric_part(own), M.rounding
        A = A._claim(claims(A, own, apart))
    if found.name == "dense" and is_orthonormal(M):
        A = A._claim(STIEFEL)
    return replace(found, operator=A)


def symmetrised(M: Matrix, tol: float) -> tuple[Matrix, float]:
    """The self-adjoint matrix nearest to M if it is near enough, and how far it is."""
    if tol == 0 or not M.is_square or M.is_hermitian or not M.nnz:
        return M, 0.0
    apart = norm(M.matrix - M.matrix.conj().T) / 2 / M.norm
    return (M, 0.0) if apart > tol / 2 else (symmetric_part(M), apart)


def symmetric_part(M: Matrix) -> Matrix:
    """(A + A^H) / 2"""
    return Matrix.of(((M.matrix + M.matrix.conj().T) / 2).astype(M.dtype), M.eps)
