"""The same operator in a family that knows more: sums and products of sparse matrices are sparse, of Toeplitz matrices
Toeplitz, and so on.

`simplify` is a function with rules as any other. Where only the base case of a function is left for an operator, and
`simplify` has a rule for it, the function is asked again for what that rule makes of it (`dispatch.py`), so that every
function knows all of these. A rule may change how an operator is stored, never what it is: properties are kept, and
derivatives flow from the same arrays. Patterns of sparse matrices are structure, known under tracing too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import Function, arrange, function, rule, set_simplify
from ..info import MethodError
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .banded import Banded, is_narrow, natural_length, pad_with_zeros
from .base import LinearOperator
from .batch_sum import BatchSum
from .block import BlockDiag
from .circulant import Circulant
from .context import broadcast_batches
from .convolution import Convolution
from .diagonal import Diagonal
from .fields import Index
from .fourier import pad_end
from .identity import Identity, ScaledIdentity, scalar_of
from .kronecker import Kronecker, KroneckerSum
from .lowrank import LowRank
from .permutation import Permutation
from .product import Product
from .scaled import Scaled, beside
from .sparse import Sparse
from .sparsity import from_coordinates
from .sum import Sum
from .toeplitz import Toeplitz
from .tridiagonal import Tridiagonal

SHIFT = ScaledIdentity | Identity
DIAGONAL = Diagonal | SHIFT
BAND = Tridiagonal | Banded
TOEPLITZ = Toeplitz | Circulant | SHIFT
DEFINITE = SELF_ADJOINT | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE

LARGEST_FILL = 64  # products of entries that multiplying out may take, for each entry of the factors
SMALL_ROWS = 32  # of a matrix that is not worth being sparse
NARROW_KERNEL = 32  # entries of a kernel up to which its matrix counts as banded, or sparse
LARGE_GRID = 1000  # points of a grid from which its matrix is sparse
SCATTERED_BAND = 32  # numbers within a band, for each that is stored, from which it counts as sparse


def unchanged(A: LinearOperator) -> LinearOperator:
    """The same operator in a family that knows more of it, such as one sparse matrix for a sum of sparse matrices.

    Parameters
    ----------
    A : operator

    Returns
    -------
    LinearOperator
        A itself where no rule applies.

    Examples
    --------
    >>> import colinear as co
    >>> A = co.Tridiagonal([1.0, 1.0], [2.0, 2.0, 2.0], [1.0, 1.0])
    >>> co.simplify(A + co.Diagonal([1.0, 2.0, 3.0]))
    <Tridiagonal 3x3 float64 numpy>
    """
    return A


simplify = function("simplify", base=unchanged, rewrites=False)
set_simplify(simplify)


def ask(f: Function, A: LinearOperator, *arguments: Any) -> Any:
    """f(A, ...) without a line in the plans of `explain`."""
    return f.find(A).implementation(A, *arguments)


def flops(A: LinearOperator) -> float:
    """What decides where the terms of a sum match several rules, of which the guard of one alone can hold."""
    return A.flops


# ---------------------------------------------------------------------------------------------------- scalars and diagonals


def unscaled(A: Any) -> tuple[Any, Any]:
    """c and B of A = c B, None and A where A is no multiple."""
    return (A.scalar, A.A) if isinstance(A, Scaled) else (None, A)


def times(scalar: Any, x: Array, axes: int = 1) -> Array:
    """c x for x with so many axes behind those of its batch and a number c, None for 1, or one for each of a batch."""
    return x if scalar is None else beside(scalar, axes) * x


def diagonal_of(D: Any, A: LinearOperator) -> Array:
    """The diagonal of D, a multiple of I perhaps, as an array of A's framework."""
    if isinstance(D, Diagonal):
        return D.d
    return times(scalar_of(D), A.xp.ones((D.shape[-1],), dtype=A.dtype, device=A._context.device))


# ---------------------------------------------------------------------------------------------------- parts


def has_parts_that_simplify(A: Any) -> bool:
    """Whether some operand is of a family that knows more."""
    return any(not simplify.find(operand).is_base for operand in A.operands)


@rule(simplify, Scaled[Circulant | Convolution])  # type: ignore[misc]
def multiple_of_kernel(A: Any) -> LinearOperator:
    """c C has the column, or the kernel, of C times c"""
    c, C = unscaled(A)
    if isinstance(C, Circulant):
        return Circulant._of(times(c, C.col))._claim(A.properties)
    return Convolution._of(times(c, C.kernel, len(C.grid)), C.grid, C.boundary, C.origin)._claim(A.properties)


@rule(simplify, Scaled[BlockDiag | KroneckerSum])  # type: ignore[misc]
def multiple_of_parts(A: Any) -> LinearOperator:
    """c diag(A, B) = diag(c A, c B), and c (A ⊕ B) = c A ⊕ c B"""
    return type(A.A)(*(Scaled(A.scalar, part) for part in A.A.operands))._claim(A.properties)


@rule(simplify, Scaled, when=has_parts_that_simplify)
def multiple_of_simplified(A: Any) -> LinearOperator:
    """c A of an A in a family that knows more"""
    return Scaled(A.scalar, ask(simplify, A.A))._claim(A.properties)


def are_few_terms(A: Any) -> bool:
    """Whether the ranks of the terms together are below the size."""
    return A.terms * min(A.A.U.shape[-1], (A.A.U if A.A.V is None else A.A.V).shape[-1]) < min(A.shape[-2:])


@rule(simplify, BatchSum[LowRank], when=are_few_terms)  # type: ignore[misc]
def sum_of_low_ranks(A: Any) -> LinearOperator:
    """Σ_i U_i C_i V_i^H is of low rank: all factors side by side"""
    xp, (U, V, core) = A.xp, (A.A.U, A.A.V, A.A.core)
    left, right = U if core is None else xp.matmul(U, core), None if V is None and core is None else U if V is None else V
    return LowRank._of(*(None if x is None else A.A._beside(x, A.axis) for x in (left, right)), None)._claim(A.properties)


# ---------------------------------------------------------------------------------------------------- Toeplitz, convolutions


def is_line(A: Any) -> bool:
    """Whether A is a convolution of a line with zeros around it."""
    return isinstance(A, Convolution) and len(A.grid) == 1 and A.boundary == "zero" and A.grid[0] > 0


@rule(simplify, Convolution, when=is_line)
def matrix_of_line(A: Any) -> LinearOperator:
    """A convolution of a line with zeros around it is a Toeplitz matrix, and banded if its kernel is short"""
    kernel, (origin,) = A._fitted()
    n, size = A.shape[-1], kernel.shape[-1]
    if size > NARROW_KERNEL:
        return Toeplitz._of(_column(A), _row(A))._claim(A.properties)
    lines = [A.xp.broadcast_to(kernel[..., j : j + 1], (*A.batch_shape, n - abs(origin - j))) for j in range(size)]
    return _tidy(Banded._of(tuple(lines), tuple(range(origin, origin - size, -1)), n, n))._claim(A.properties)


def _column(T: Any) -> Array:
    if not isinstance(T, Convolution):
        return T.col
    kernel, (origin,) = T._fitted()  # T[i, j] = kernel[i - j + origin]
    return pad_end(T.xp, kernel[..., origin:], T.shape[-1:], (-1,))


def _row(T: Any) -> Array:
    if isinstance(T, Toeplitz):
        return T.xp.conj(T.col) if T.row is None else T.row
    if isinstance(T, Circulant):
        return T.xp.roll(T.xp.flip(T.col, axis=-1), 1, axis=-1)
    return _column(T.T)


def are_on_one_grid(A: Any) -> bool:
    """Whether each term is a convolution, all of one grid and boundary, a multiple of one, or of I."""
    inner = [B for _, B in map(unscaled, A.operands) if not isinstance(B, SHIFT)]
    first = inner[0]
    return all(isinstance(B, Convolution) and (B.grid, B.boundary) == (first.grid, first.boundary) for B in inner)


@rule(simplify, Sum[Convolution | Scaled[Convolution], ...], when=are_on_one_grid, cost=flops)  # type: ignore[misc]
def sum_of_convolutions(A: Any) -> LinearOperator:
    """Kernels on one grid add up, and c I has the kernel c δ"""
    xp, parts = A.xp, [unscaled(term) for term in A.operands]
    C = next(B for _, B in parts if isinstance(B, Convolution))
    d = len(C.grid)
    dot = xp.ones((1,) * d, dtype=A.dtype, device=A._context.device)
    kernels = [
        (times(scalar_of(B), dot, d), (0,) * d) if isinstance(B, SHIFT) else (times(c, B.kernel, d), B.origin) for c, B in parts
    ]
    before, after = ([max(reach) for reach in zip(*reaches)] for reaches in zip(*(_reach(k, o) for k, o in kernels)))

    def widen(kernel: Array, origin: tuple[int, ...]) -> Array:
        for axis, (b, a) in enumerate(zip(*_reach(kernel, origin)), -d):
            kernel = pad_with_zeros(xp, kernel, before[axis] - b, after[axis] - a, axis)
        return kernel

    return Convolution._of(sum(widen(*each) for each in kernels), C.grid, C.boundary, tuple(before))._claim(A.properties)


def _reach(kernel: Array, origin: tuple[int, ...]) -> tuple[tuple[int, ...], list[int]]:
    """How many entries of a kernel stand before its origin, and how many behind it, in each dimension."""
    sizes = kernel.shape[kernel.ndim - len(origin) :]
    return origin, [size - 1 - o for size, o in zip(sizes, origin, strict=True)]


def are_toeplitz(A: Any) -> bool:
    """Whether A is square and each term a Toeplitz matrix, a multiple of one, or of I."""
    inner = (unscaled(term)[1] for term in A.operands)
    return A.shape[-1] == A.shape[-2] and all(isinstance(B, TOEPLITZ) or is_line(B) for B in inner)


@rule(simplify, Sum[Toeplitz | Circulant | Scaled[Toeplitz | Circulant], ...], when=are_toeplitz, cost=flops)  # type: ignore[misc]
def sum_of_toeplitz(A: Any) -> LinearOperator:
    """S + T is a Toeplitz matrix as S and T are, circulant if both are"""
    xp, shape, parts = A.xp, A.shape[:-1], [unscaled(term) for term in A.operands]
    first = xp.asarray(np.arange(shape[-1]) == 0, dtype=xp.real_dtype(A.dtype), device=A._context.device)  # of I

    def add(line: Callable[[Any], Array]) -> Array:
        lines = [times(scalar_of(T), first) if isinstance(T, SHIFT) else times(c, line(T)) for c, T in parts]
        return xp.broadcast_to(reduce(operator.add, lines), shape)

    if not any(isinstance(T, Toeplitz | Convolution) for _, T in parts):
        return Circulant._of(add(_column))._claim(A.properties)
    is_mirrored = A.properties & SELF_ADJOINT and all(isinstance(T, SHIFT) or getattr(T, "row", T) is None for _, T in parts)
    return Toeplitz._of(add(_column), None if is_mirrored else add(_row))._claim(A.properties)


def is_sparse_on_grid(A: Any) -> bool:
    """Whether the grid has several dimensions, many points and zeros around it, and the kernel few entries, not traced."""
    few = math.prod(A.kernel.shape[-len(A.grid) :]) <= NARROW_KERNEL
    return few and A.boundary == "zero" and A.shape[-1] > LARGE_GRID and len(A.grid) > 1 and not A.xp.is_traced(A.kernel)


@rule(simplify, Convolution, when=is_sparse_on_grid)
def sparse_of_convolution(A: Any) -> LinearOperator:
    """A convolution by a small kernel, with zeros around the grid, is a sparse matrix: A[i, l] = kernel[i - l + origin]"""
    xp, (kernel, origins) = A.xp, A._fitted()
    points, entries = np.arange(A.shape[-1]).reshape(A.grid), []
    for j in np.ndindex(*kernel.shape[-len(A.grid) :]):
        steps = [(index - origin, n) for index, origin, n in zip(j, origins, A.grid, strict=True)]  # i - l
        rows, columns = (points[tuple(slice(max(0, s * k), n + min(0, s * k)) for k, n in steps)].ravel() for s in (1, -1))
        entries.append((rows, columns, xp.broadcast_to(kernel[(..., *j)][..., None], (*A.batch_shape, len(rows)))))
    return _assemble(entries, _join(entries, A.shape[-2:]), A)._claim(A.properties)


# ---------------------------------------------------------------------------------------------------- blocks


def are_of_one_partition(A: Any) -> bool:
    """Whether the terms are diagonal, or have square blocks of the same sizes."""
    sizes = [[block.shape[-2:] for block in term.operands] for term in A.operands if not isinstance(term, DIAGONAL)]
    return all(each == sizes[0] for each in sizes) and all(m == n for m, n in sizes[0])


@rule(simplify, Sum[BlockDiag, BlockDiag | DIAGONAL], when=are_of_one_partition)  # type: ignore[misc]
def sum_of_block_diagonals(A: Any) -> LinearOperator:
    """diag(A, B) + diag(C, D) = diag(A + C, B + D); blocks are definite where the whole is"""
    sizes = [block.shape[-1] for block in next(term for term in A.operands if isinstance(term, BlockDiag)).operands]
    columns = zip(*(_blocks(term, sizes, A) for term in A.operands))
    return BlockDiag(*(Sum(*blocks)._claim(A.properties & DEFINITE) for blocks in columns))._claim(A.properties)


def _blocks(term: Any, sizes: list[int], A: LinearOperator) -> Any:
    """The blocks of a term: a multiple of I remains one, which more rules know."""
    if isinstance(term, BlockDiag):
        return term.operands
    if isinstance(term, Diagonal):
        return [Diagonal(term.d[..., stop - size : stop]) for size, stop in zip(sizes, np.cumsum(sizes).tolist())]
    return [ScaledIdentity(scalar_of(term), size, like=None if A.is_neutral else A) for size in sizes]


# ---------------------------------------------------------------------------------------------------- Kronecker products


def are_same(A: LinearOperator, B: LinearOperator) -> bool:
    """Whether A = B is known, because they are one operator or hold the same arrays (never by comparing numbers)."""
    if A is B:
        return True
    if type(A) is not type(B) or A.operands or A.shape != B.shape or A._flatten()[1][:2] != B._flatten()[1][:2]:
        return False
    return all(x is y for x, y in zip(A.leaves(), B.leaves(), strict=True))


def kronecker_terms(A: Any) -> list[tuple[Any, tuple[LinearOperator, ...]]]:
    """The scalar and the factors of each term that is a multiple of a Kronecker product."""
    return [(1.0 if c is None else c, B.operands) for c, B in map(unscaled, A.operands) if isinstance(B, Kronecker)]


def _differing(A: Any) -> list[int] | None:
    """The places where the factors of the terms are not the same; None where the terms do not fit."""
    terms = [factors for _, factors in kronecker_terms(A)]
    sizes = [[factor.shape for factor in factors] for factors in terms]
    if len(terms) < len(A.operands) or any(each != sizes[0] for each in sizes):
        return None
    return [i for i, (first, *rest) in enumerate(zip(*terms)) if not all(are_same(first, other) for other in rest)]


KRONECKER: Any = Kronecker | Scaled[Kronecker]  # type: ignore[misc]


def share_factors(A: Any) -> bool:
    """Whether the terms are Kronecker products that have all factors but one in common."""
    places = _differing(A)
    return places is not None and len(places) <= 1


@rule(simplify, Sum[KRONECKER, KRONECKER, ...], when=share_factors, cost=flops)  # type: ignore[misc]
def sum_of_kroneckers(A: Any) -> LinearOperator:
    """A ⊗ B + A ⊗ C = A ⊗ (B + C)"""
    (at,), terms = _differing(A) or [-1], kronecker_terms(A)
    factors = list(terms[0][1])
    factors[at] = Sum(*(Scaled(c, own[at]) for c, own in terms))
    return Kronecker(*factors)._claim(A.properties)


def are_beside_identities(A: Any) -> bool:
    """Whether each term has one factor that is not I, each in a place of its own."""
    terms = kronecker_terms(A)
    if _differing(A) is None or any(isinstance(term, Scaled) for term in A.operands):
        return False
    places = [[i for i, factor in enumerate(factors) if not isinstance(factor, Identity)] for _, factors in terms]
    return sorted(places) == [[i] for i in range(len(terms[0][1]))]


@rule(simplify, Sum[Kronecker, Kronecker, ...], when=are_beside_identities, cost=flops)  # type: ignore[misc]
def sum_beside_identities(A: Any) -> LinearOperator:
    """A ⊗ I + I ⊗ B = A ⊕ B"""
    columns = zip(*(factors for _, factors in kronecker_terms(A)))
    return KroneckerSum(*(next(B for B in own if not isinstance(B, Identity)) for own in columns))._claim(A.properties)


# ---------------------------------------------------------------------------------------------------- sparse and banded


def is_sparse(A: LinearOperator) -> bool:
    """Whether A is made of sparse and banded matrices alone, and multiplying out keeps it so."""
    return not A.is_neutral and ask(count_entries, A, np.ones(A.shape[-1])) is not None


@rule(simplify, Sum[Tridiagonal, DIAGONAL])  # type: ignore[misc]
def sum_with_diagonal(A: Any) -> LinearOperator:
    """T + D is tridiagonal as T is"""
    T, D = arrange(A, Tridiagonal, DIAGONAL)
    d = D.d if isinstance(D, Diagonal) else beside(scalar_of(D))
    return Tridiagonal._of(T.lower, T.diag + d, T.upper)._claim(A.properties)


@rule(simplify, Sum[Sparse | BAND, Sparse | BAND | DIAGONAL])  # type: ignore[misc]
@rule(simplify, Sum, when=is_sparse)
def sum_of_sparse(A: Any) -> LinearOperator:
    """A + B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))._claim(A.properties)


@rule(simplify, Product, when=is_sparse)
def product_of_sparse(A: Any) -> LinearOperator:
    """A B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))._claim(A.properties)


@rule(simplify, Sum, when=has_parts_that_simplify)
def sum_of_simplified(A: Any) -> LinearOperator:
    """A + B of terms in families that know more"""
    return Sum(*(ask(simplify, term) for term in A.operands))._claim(A.properties)


def is_scattered(A: Any) -> bool:
    """Whether A is square and of few diagonals so far apart that the band between them is mostly empty, not traced."""
    stored, width = sum(d.shape[-1] for d in A.diagonals), max(A.offsets) - min(A.offsets) + 1
    is_wide = width * A.n > SCATTERED_BAND * stored or not is_narrow(A)
    return A.m == A.n > SMALL_ROWS and is_wide and 4 * stored <= A.n**2 and not any(map(A.xp.is_traced, A.diagonals))


def is_compact(A: Any) -> bool:
    """Whether A is square, and elimination within its band the cheapest there is."""
    return is_narrow(A) and not is_scattered(A)


@rule(simplify, Banded, when=is_scattered)
def sparse_of_scattered(A: Any) -> LinearOperator:
    """Diagonals that are far apart, as of a periodic band, are a sparse matrix"""
    return as_sparse(A)._claim(A.properties)


def _tidy(A: Any) -> LinearOperator:
    """A matrix of diagonals as one of the families of three diagonals or one, if it has no more."""
    if not isinstance(A, Banded) or A.m != A.n or not set(A.offsets) <= {-1, 0, 1}:
        return A
    lines = dict(zip(A.offsets, A.diagonals))
    if set(lines) == {0}:
        return Diagonal._of(lines[0])
    like = {"dtype": A.dtype, "device": A._context.device}
    lower, diag, upper = (lines[k] if k in lines else A.xp.zeros((A.n - abs(k),), **like) for k in (-1, 0, 1))
    return Tridiagonal._of(lower, diag, upper)


# How many entries there are


def no_pattern(A: LinearOperator, weights: Any) -> Any:
    """|A| w, where |A| has ones in the places where A may have entries; None where A shows no such places.

    With w = 1 it is a bound on the number of entries of each row, for products too.
    """
    return None


count_entries = function("count_entries", base=no_pattern, rewrites=False)


def is_known(A: Any) -> bool:
    """Whether the permutation is one, and not traced."""
    return isinstance(A.perm, Index) and not A.batch_shape


@rule(count_entries, Permutation, when=is_known)
@rule(count_entries, Sparse | BAND | DIAGONAL)
def entries_of_matrix(A: Any, weights: Any) -> Any:
    """Sums over the stored places"""
    entries = _coordinates(ask(multiply_out, A, A))
    return sum(np.bincount(rows, weights[columns], minlength=A.shape[-2]) for rows, columns, _ in entries)


@rule(count_entries, Scaled)
def entries_of_multiple(A: Any, weights: Any) -> Any:
    """|c A| w = |A| w"""
    return ask(count_entries, A.A, weights)


@rule(count_entries, Sum)
def entries_of_sum(A: Any, weights: Any) -> Any:
    """|A + B| w <= |A| w + |B| w"""
    if any(count_entries.find(term).is_base for term in A.operands):
        return None
    found = [ask(count_entries, term, weights) for term in A.operands]
    return None if any(each is None for each in found) else sum(found)


@rule(count_entries, Product)
def entries_of_product(A: Any, weights: Any) -> Any:
    """|A B| w <= |A| (|B| w), if that is few enough"""
    stored = [ask(count_entries, factor, np.ones(factor.shape[-1])) for factor in A.operands]
    if any(each is None for each in stored):
        return None
    filled, found = (
        reduce(lambda w, factor: ask(count_entries, factor, w), reversed(A.operands), w) for w in (np.ones(A.shape[-1]), weights)
    )
    m, n = A.shape[-2:]
    return found if filled.sum() <= min(LARGEST_FILL * sum(map(np.sum, stored)), m * n // 4) else None


# The entries


def refuse(A: LinearOperator, whole: LinearOperator) -> Any:
    """A tree of sparse and banded matrices as one, `Banded` where all are; neutral ones join the framework of the whole."""
    raise MethodError(
        f"the entries of a sparse matrix are needed, and {A!r} does not show them. Use Sparse(S), or a preconditioner that asks for "
        "products alone: Nystrom(rank), Chebyshev(degree)."
    )


multiply_out = function("multiply_out", base=refuse, rewrites=False)


@rule(multiply_out, Sparse | Banded)
def itself(A: Any, whole: LinearOperator) -> Any:
    """A"""
    return A


@rule(multiply_out, Tridiagonal)
def band_of_tridiagonal(A: Any, whole: LinearOperator) -> Any:
    """Three diagonals"""
    return Banded._of((A.lower, A.diag, A.upper), (-1, 0, 1), *A.shape[-2:])


@rule(multiply_out, DIAGONAL)
def band_of_diagonal(A: Any, whole: LinearOperator) -> Any:
    """One diagonal"""
    return Banded._of((diagonal_of(A, whole),), (0,), *A.shape[-2:])


@rule(multiply_out, Permutation)
def sparse_of_permutation(A: Any, whole: LinearOperator) -> Any:
    """One entry in each row"""
    ones = whole.xp.ones((A.shape[-1],), dtype=whole.dtype, device=whole._context.device)
    entries = [(np.arange(A.shape[-1]), A.perm.host, ones)]
    return _assemble(entries, _join(entries, A.shape[-2:]), whole)


@rule(multiply_out, Scaled)
def entries_times_scalar(A: Any, whole: LinearOperator) -> Any:
    """(c A)_ij = c A_ij"""
    inner = ask(multiply_out, A.A, whole)
    if isinstance(inner, Sparse):
        return Sparse._of(times(A.scalar, inner.data), inner.structure)
    return Banded._of(tuple([times(A.scalar, d) for d in inner.diagonals]), inner.offsets, inner.m, inner.n)


@rule(multiply_out, Sum)
def add_entries(A: Any, whole: LinearOperator) -> Any:
    """(A + B)_ij = A_ij + B_ij"""
    parts = [ask(multiply_out, term, whole) for term in A.operands]
    if any(isinstance(part, Sparse) for part in parts):
        return _add_sparse(parts, whole)
    by_offset: dict[int, Array] = {}
    for part in parts:
        for k, d in zip(part.offsets, part.diagonals):
            by_offset[k] = by_offset[k] + d if k in by_offset else d
    return Banded._of(tuple(by_offset.values()), tuple(by_offset), *A.shape[-2:])


@rule(multiply_out, Product)
def multiply_entries(A: Any, whole: LinearOperator) -> Any:
    """(A B)_ij = Σ_k A_ik B_kj over the places of both"""

    def multiply(left: Any, right: Any) -> Any:
        if isinstance(left, Banded) and isinstance(right, Banded):
            return _multiply_bands(left, right)
        return _multiply_sparse(whole, *(as_sparse(part, whole) for part in (left, right)))

    return reduce(multiply, [ask(multiply_out, factor, whole) for factor in A.operands])


def as_sparse(A: LinearOperator, whole: LinearOperator | None = None) -> Any:
    """A tree of sparse and banded matrices as one sparse matrix, in the framework of the whole."""
    whole = A if whole is None else whole
    found = ask(multiply_out, A, whole)
    return found if isinstance(found, Sparse) else _add_sparse([found], whole)


def _coordinates(A: Any) -> list[tuple[Any, Any, Array]]:
    """Rows, columns and values of the entries, in one part or diagonal by diagonal."""
    if isinstance(A, Sparse):
        return [(A.structure.rows, A.structure.columns, A.data)]
    return [(*(max(0, s * k) + np.arange(d.shape[-1]) for s in (-1, 1)), d) for k, d in zip(A.offsets, A.diagonals)]


def _add_sparse(parts: list[Any], whole: LinearOperator) -> Any:
    """The sum of sparse and banded matrices; where entries come to stand is remembered."""
    key = [part.structure if isinstance(part, Sparse) else part.offsets for part in parts]
    memo: dict[Any, Any] = next((part.structure.memo for part in parts if isinstance(part, Sparse)), {})
    entries = [entry for part in parts for entry in _coordinates(part)]
    known, found = memo.get("sum", (None, None))
    if known != key:
        found = _join(entries, parts[0].shape[-2:])
        memo["sum"] = key, found
    return _assemble(entries, found, whole)


def _join(entries: list[tuple[Any, Any, Array]], shape: Any) -> Any:
    """The structure of all entries, and their places in it."""
    rows, columns = (np.concatenate([entry[i] for entry in entries]) for i in (0, 1))
    return from_coordinates(rows, columns, shape)


def _assemble(entries: list[tuple[Any, Any, Array]], found: Any, whole: LinearOperator) -> Any:
    """The sparse matrix of entries (rows, columns, values of shape (*batch, count)) in these places, those in one place added."""
    xp, batch, (structure, places) = whole.xp, broadcast_batches(*(tuple(x.shape[:-1]) for *_, x in entries)), found
    data = [xp.astype(xp.broadcast_to(x, (*batch, x.shape[-1])), whole.dtype) for *_, x in entries]
    values = xp.concat(data, axis=-1)
    if places is None:
        return Sparse._of(values, structure)
    if structure.nnz == len(places):
        return Sparse._of(xp.take(values, np.argsort(places), axis=-1), structure)
    empty = xp.zeros((*batch, structure.nnz), dtype=values.dtype, device=xp.device_of(values))
    return Sparse._of(xp.scatter_add(empty, places, values, axis=-1), structure)


def _multiply_sparse(whole: LinearOperator, A: Sparse, B: Sparse) -> Any:
    """Every entry A_ik times every entry of row k of B."""
    first, second, xp = A.structure, B.structure, whole.xp
    counts = np.diff(second.indptr)[first.columns]  # how many entries of B each entry of A meets
    left = np.repeat(np.arange(first.nnz), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    right = np.repeat(second.indptr[first.columns], counts) + within
    products = xp.take(A.data, left, axis=-1) * xp.take(B.data, right, axis=-1)
    entries = [(first.rows[left], second.columns[right], products)]
    return _assemble(entries, _join(entries, (A.shape[-2], B.shape[-1])), whole)


def _multiply_bands(A: Banded, B: Banded) -> Banded:
    """(A B)_(i,i+k) = Σ_(p+q=k) A_(i,i+p) B_(i+p,i+k)"""
    xp, m, n, inner = A.xp, A.m, B.n, A.n
    by_offset: dict[int, Array] = {}
    for (p, a), (q, b) in product(zip(A.offsets, A.diagonals), zip(B.offsets, B.diagonals)):
        k = p + q
        low, high = max(0, -p, -k), min(m, inner - p, n - k)  # the rows where both have entries
        if low >= high:
            continue
        a = a[..., low - max(0, -p) : high - max(0, -p)]
        b = b[..., low + p - max(0, -q) : high + p - max(0, -q)]
        top = max(0, -k)
        term = pad_with_zeros(xp, a * b, low - top, top + natural_length(k, m, n) - high, axis=-1)
        by_offset[k] = by_offset[k] + term if k in by_offset else term
    if not by_offset:
        batch = broadcast_batches(A.batch_shape, B.batch_shape)
        by_offset[0] = xp.zeros((*batch, natural_length(0, m, n)), dtype=A.dtype, device=A._context.device)
    return Banded._of(tuple(by_offset.values()), tuple(by_offset), m, n)
