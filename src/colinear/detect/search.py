"""The search: every finder in turn, each result compared with the matrix, the cheapest kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from ..functions.solve.cost import dense_work, least_squares_work, sparse_work
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
from ..properties import SELF_ADJOINT, STIEFEL
from .claims import claims, is_orthonormal
from .factors import (
    kronecker,
    kronecker_plus_identity,
    kronecker_sum,
    low_rank,
    low_rank_plus_diagonal,
)
from .matrix import Found, Matrix, entries_at, norm
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
INDIRECT = 8.0  # flops that wait for memory, in those of a dense factorisation


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
    if isinstance(A, (Product, BlockDiag)):
        return sum(OPERAND + cost(part) for part in A.operands)
    if isinstance(A, Kronecker):
        return sum(OPERAND + cost(part) for part in A.operands) + INDIRECT * A.flops
    if isinstance(A, KroneckerSum):
        return sum(OPERAND + _spectral(part) for part in A.operands) + 2 * INDIRECT * A.flops
    if isinstance(A, Sum):
        return _cost_of_sum(A)
    if m != n:
        return least_squares_work(A).work
    if isinstance(A, Toeplitz):
        return INDIRECT * 4 * n * n
    if isinstance(A, Banded):
        lower, upper = max(0, -min(A.offsets)), max(0, *A.offsets)
        return min(INDIRECT * 2 * n * (lower + 1) * (lower + upper + 1), _formed(A))
    if isinstance(A, Sparse):
        return min(sparse_work(A).work, _formed(A))
    return _formed(A)


def _cost_of_sum(A: Sum) -> float:
    """Low rank plus diagonal by the matrix inversion lemma, a Kronecker product plus c I by the
    eigenvectors of its factors."""
    if any(isinstance(part, LowRank) for part in A.operands):
        return OPERAND + sum(map(cost, A.operands))
    products = [part for part in A.operands if isinstance(part, Kronecker)]
    if products:
        return (
            sum(OPERAND + _spectral(part) for part in products[0].operands) + 2 * INDIRECT * A.flops
        )
    return _formed(A)


def _formed(A: LinearOperator) -> float:
    """A dense factorisation, and a solve with its factors."""
    return dense_work(A).work + INDIRECT * 2 * A.shape[-1] ** 2


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
    return _relative(M, _difference(M, A))


def fits(M: Matrix, A: LinearOperator, tol: float) -> tuple[float, bool]:
    """The residual, and whether it is small enough: at most `tol`, or for exact structure (`tol` 0)
    what rounding explains.

    Rounding is that of each entry, which is small in rows and columns of small entries: a matrix
    whose rows are of very different sizes is not to lose the small ones.
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
    allowed = np.maximum(
        of_rows[entries.row] / M.norm * of_columns[entries.col],
        np.abs(entries_at(M, entries.row, entries.col)),
    )
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
    """Whether A x is M x for a random x, but for what is `allowed` and the rounding of
    transforms."""
    n = M.shape[1]
    x = np.random.default_rng(1).standard_normal(n).astype(M.like.real.dtype).astype(M.dtype)
    wanted = (M.S if M.dense is None else M.dense) @ x
    limit = (allowed + 1e3 * M.eps * (1 + np.log2(n + 1))) * M.norm * norm(x)
    return bool(norm(A @ x - wanted) <= limit)


def sparse_entries(A: Any) -> Any:
    """A as a SciPy matrix of compressed rows, by parts; parts of other families, which are
    small, by their dense form."""
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
    """The matrix of a periodic convolution of two dimensions, with a kernel as large as the
    grid."""
    from scipy.sparse import csr_array

    places, n = np.nonzero(kernel), grid[0] * grid[1]
    columns = np.tile(np.arange(n), len(places[0]))
    shifts = [np.repeat(axis, n) for axis in places]
    rows = (columns // grid[1] + shifts[0]) % grid[0] * grid[1] + (
        columns % grid[1] + shifts[1]
    ) % grid[1]
    return csr_array((np.repeat(kernel[places], n), (rows, columns)), shape=(n, n))


def _repeated(values: Any, shifts: Any, shape: tuple[int, int], wraps: bool) -> Any:
    """The matrix with values[k] wherever i - j = shifts[k], of a circulant one modulo the number
    of rows."""
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


# The search: every finder in turn, each result compared with the matrix, the cheapest kept.


FINAL = ("zero", "diagonal", "permutation", "tridiagonal")  # nothing is cheaper
OF_ZEROS = (
    *FINAL,
    "triangular",
    "banded",
    "triangular up to permutations",
    "block diagonal",
    "a Kronecker sum",
)  # which need zeros
SPARSE = 0.25  # the part of the entries up to which a dense matrix may be better as a sparse one
OBVIOUS = ("not square", "too small to matter")  # reasons that need not be told
BETTER = 0.9  # how much cheaper something more complicated must be

Finder = Callable[[Matrix, float], "Found | str"]


def finders() -> list[tuple[str, Finder]]:
    """By name, the simple and cheap ones first."""

    def inside(finder: Any) -> Finder:  # one that searches the parts that it finds
        return lambda M, tol: finder(M, tol, search)

    return [
        ("zero", zero),
        ("diagonal", diagonal),
        ("permutation", permutation),
        ("tridiagonal", tridiagonal),
        ("circulant", circulant),
        ("triangular", triangular),
        ("banded", banded),
        ("Toeplitz", toeplitz),
        ("a Kronecker product", inside(kronecker)),
        ("a Kronecker sum", inside(kronecker_sum)),
        ("a Kronecker product plus c I", inside(kronecker_plus_identity)),
        ("a periodic convolution", block_circulant),
        ("triangular up to permutations", permuted_triangular),
        ("block diagonal", inside(components)),
        ("of low rank", low_rank),
        ("of low rank plus diagonal", low_rank_plus_diagonal),
    ]


def search(M: Matrix, tol: float) -> Found:
    """The cheapest structure that M has, to a relative residual of `tol`; 0 for exactly (but for
    rounding, in products)."""
    if 0 in M.shape:
        return Found("empty", Zero(*M.shape, like=M.like))
    best, tried = unstructured(M), ["no entry is zero"] if M.is_full else []
    price = cost(best.operator._claim(SELF_ADJOINT if M.is_hermitian else 0))
    allowed = max(tol, M.rounding)
    enough = INDIRECT * M.nnz / 2  # a few times what it takes to read the matrix
    for name, finder in finders():
        if price <= enough:
            break
        if M.is_full and tol == 0 and name in OF_ZEROS and min(M.shape) > 1:
            continue
        try:
            found = finder(M, tol)
        except np.linalg.LinAlgError:  # an iteration inside that did not converge
            found = "it could not be computed"
        if isinstance(found, str):
            if found not in OBVIOUS:
                tried.append(f"not {name}: {found}")
            continue
        apart, agrees = fits(M, found.operator, tol)
        if not agrees or not multiplies_alike(M, found.operator, allowed):
            large = "in small rows" if apart <= allowed else f"of {apart:.1e}"
            tried.append(f"not {name}: there would be a residual {large}")
            continue
        found_price = cost(found.operator)
        if found_price >= BETTER * price and name not in FINAL:
            tried.append(f"{found.name}, which does not pay")
            continue
        if best.parts or best.name not in ("dense", "sparse"):
            tried.append(f"{best.name}, which costs more")
        best, price = replace(found, residual=apart), found_price
        if name in FINAL:
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
            own, apart = entries(M, A), 0.0
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
    A = M.S if M.dense is None else M.dense
    half = A - A.conj().T
    apart = norm(half if M.dense is not None else half.data) / 2 / M.norm
    return (M, 0.0) if apart > tol / 2 else (symmetric_part(M), apart)


def symmetric_part(M: Matrix) -> Matrix:
    """(A + A^H) / 2"""
    A = M.S if M.dense is None else M.dense
    return Matrix.of(((A + A.conj().T) / 2).astype(M.dtype), M.eps)
