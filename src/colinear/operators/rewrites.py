"""The same operator in a family that knows more: sums and products of sparse matrices are sparse, of Toeplitz matrices
Toeplitz, and so on.

`simplify` is a function with rules as any other. Where only the base case of a function is left for an operator, and
`simplify` has a rule for it, the function is asked again for what that rule makes of it (`dispatch.py`), so that every
function knows all of these. A rule may change how an operator is stored, never what it is: properties are kept, and
derivatives flow from the same arrays. Patterns of sparse matrices are structure, known under tracing too.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import Function, arrange, function, rule, set_simplify
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .banded import Banded, natural_length, pad_with_zeros
from .base import LinearOperator
from .block import BlockDiag
from .circulant import Circulant
from .context import broadcast_batches
from .convolution import Convolution
from .diagonal import Diagonal
from .fields import Index
from .identity import Identity, ScaledIdentity
from .permutation import Permutation
from .product import Product
from .scaled import Scaled
from .sparse import Sparse
from .sparsity import from_coordinates
from .sum import Sum
from .toeplitz import Toeplitz
from .tridiagonal import Tridiagonal

SHIFT = ScaledIdentity | Identity
DIAGONAL = Diagonal | SHIFT
LARGEST_FILL = 64  # products of entries that multiplying out may take, for each entry of the factors


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


# ------------------------------------------------------------------------------------ a diagonal is added

TAKES_SHIFT = Circulant | Convolution | Toeplitz
TAKES_DIAGONAL = Tridiagonal | Banded | Sparse | BlockDiag
DEFINITE = SELF_ADJOINT | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


def parts_are_square(A: LinearOperator) -> bool:
    """Whether the sum and the blocks that a diagonal is added to are square."""
    blocks = [block for term in A.operands for block in (term, *(term.operands if isinstance(term, BlockDiag) else ()))]
    return all(block.shape[-1] == block.shape[-2] for block in blocks)


@rule(simplify, Sum[TAKES_SHIFT, SHIFT] | Sum[TAKES_DIAGONAL, DIAGONAL], when=parts_are_square)  # type: ignore[misc]
def sum_with_diagonal(A: Any) -> LinearOperator:
    """A + D is of A's own kind: tridiagonal, circulant, block diagonal, ..."""
    whole, D = arrange(A, TAKES_SHIFT | TAKES_DIAGONAL, DIAGONAL)
    value = scalar_of(D) if isinstance(whole, TAKES_SHIFT) else D
    return _ADD[type(whole)](whole, value, A)._claim(A.properties)


def scalar_of(shift: Any) -> Any:
    """c of c I"""
    return shift.c if isinstance(shift, ScaledIdentity) else 1.0


def diagonal_of(D: Any, A: LinearOperator) -> Array:
    """The diagonal of D, a multiple of I perhaps, as an array of A's framework."""
    if isinstance(D, Diagonal):
        return D.d
    ones = A.xp.ones((D.shape[-1],), dtype=A.dtype, device=A._context.device)
    return times(scalar_of(D), ones)


def times(scalar: Any, x: Array) -> Array:
    """c x for vectors x and a number c, or one for each of a batch."""
    return x if scalar is None else (scalar[..., None] if getattr(scalar, "ndim", 0) else scalar) * x


def _at_start(xp: Any, x: Array, c: Any) -> Array:
    """x with c added to its first entry."""
    place = xp.asarray(np.arange(x.shape[-1]) == 0, dtype=xp.real_dtype(x.dtype), device=xp.device_of(x))
    return x + times(c, place)


def _add_to_convolution(C: Any, c: Any, A: LinearOperator) -> LinearOperator:
    xp = A.xp
    place = np.zeros(C.kernel.shape[-len(C.grid) :])
    place[C.origin] = 1
    c = c[(..., *(None,) * len(C.grid))] if getattr(c, "ndim", 0) else c
    delta = xp.asarray(place, dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return Convolution._of(C.kernel + c * delta, C.grid, C.boundary, C.origin)


def _add_to_toeplitz(T: Any, c: Any, A: LinearOperator) -> LinearOperator:
    row = A.xp.conj(T.col) if T.row is None and not A.properties & SELF_ADJOINT else T.row
    return Toeplitz._of(_at_start(A.xp, T.col, c), row)


def _add_to_banded(B: Any, D: Any, A: LinearOperator) -> LinearOperator:
    d, at = diagonal_of(D, A), B.offsets.index(0) if 0 in B.offsets else None
    if at is None:
        return Banded._of((*B.diagonals, A.xp.astype(d, A.dtype)), (*B.offsets, 0), B.m, B.n)
    return Banded._of((*B.diagonals[:at], B.diagonals[at] + d, *B.diagonals[at + 1 :]), B.offsets, B.m, B.n)


def _add_to_sparse(S: Any, D: Any, A: LinearOperator) -> LinearOperator:
    xp = A.xp
    joined, places = S.structure.with_diagonal()
    parts = [xp.astype(xp.broadcast_to(x, (*A.batch_shape, x.shape[-1])), A.dtype) for x in (S.data, diagonal_of(D, A))]
    return _scattered(xp, xp.concat(parts, axis=-1), joined, places)


def _add_to_blocks(B: Any, D: Any, A: LinearOperator) -> LinearOperator:
    """Each block with its part of D: a multiple of I remains one, which more rules know. Blocks are definite where the whole is."""
    blocks, start = [], 0
    for block in B.operands:
        stop = start + block.shape[-1]
        if isinstance(D, Diagonal):
            own: LinearOperator = Diagonal(D.d[..., start:stop])
        else:
            own = ScaledIdentity(scalar_of(D), stop - start, like=None if A.is_neutral else A)
        blocks.append(Sum(block, own)._claim(A.properties & DEFINITE))
        start = stop
    return BlockDiag(*blocks)


_ADD: dict[type, Any] = {
    Circulant: lambda C, c, A: Circulant._of(_at_start(A.xp, C.col, c)),
    Convolution: _add_to_convolution,
    Toeplitz: _add_to_toeplitz,
    Tridiagonal: lambda T, D, A: Tridiagonal._of(T.lower, T.diag + diagonal_of(D, A), T.upper),
    Banded: _add_to_banded,
    Sparse: _add_to_sparse,
    BlockDiag: _add_to_blocks,
}


# ------------------------------------------------------------------------------------ Toeplitz, blocks

T_: Any = Circulant | Toeplitz | Scaled[Circulant | Toeplitz]  # type: ignore[misc]


def is_square(A: LinearOperator) -> bool:
    """Whether the sum is square."""
    return A.shape[-1] == A.shape[-2]


@rule(simplify, Sum[T_, T_] | Sum[T_, T_, T_ | SHIFT], when=is_square)  # type: ignore[misc]
def sum_of_toeplitz(A: Any) -> LinearOperator:
    """S + T is a Toeplitz matrix as S and T are, circulant if both are"""
    terms = [(term.scalar, term.A) if isinstance(term, Scaled) else (None, term) for term in A.operands]
    shifts = [term for _, term in terms if isinstance(term, SHIFT)]
    lines = [[times(scalar, x) for x in _column_and_row(term)] for scalar, term in terms if not isinstance(term, SHIFT)]
    column, row = (sum(rest, first) for first, *rest in zip(*lines))
    is_circulant = all(isinstance(term, (Circulant, *SHIFT.__args__)) for _, term in terms)
    whole = Circulant(column) if is_circulant else Toeplitz(*(A.xp.broadcast_to(x, A.shape[:-1]) for x in (column, row)))
    return Sum(whole, *shifts)._claim(A.properties)


def _column_and_row(T: Any) -> tuple[Array, Array]:
    xp = T.xp
    if isinstance(T, Circulant):
        return T.col, xp.roll(xp.flip(T.col, axis=-1), 1, axis=-1)
    return T.col, xp.conj(T.col) if T.row is None else T.row


def partitions_agree(A: Any) -> bool:
    """Whether the blocks of the two terms are square and of the same sizes."""
    first, second = ([block.shape[-2:] for block in term.operands] for term in A.operands)
    return first == second and all(m == n for m, n in first)


@rule(simplify, Sum[BlockDiag, BlockDiag], when=partitions_agree)  # type: ignore[misc]
def sum_of_block_diagonals(A: Any) -> LinearOperator:
    """diag(A, B) + diag(C, D) = diag(A + C, B + D)"""
    first, second = (term.operands for term in A.operands)
    return BlockDiag(*map(Sum, first, second))._claim(A.properties)


# ------------------------------------------------------------------------------------ sparse and banded


def is_sparse(A: LinearOperator) -> bool:
    """Whether A is made of sparse and banded matrices alone, and multiplying out keeps it so."""
    return not A.is_neutral and ask(count_entries, A, np.ones(A.shape[-1], np.int64)) is not None


@rule(simplify, Sum, when=is_sparse)
def sum_of_sparse(A: Any) -> LinearOperator:
    """A + B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))._claim(A.properties)


@rule(simplify, Product, when=is_sparse)
def product_of_sparse(A: Any) -> LinearOperator:
    """A B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))._claim(A.properties)


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


def ask(f: Function, A: LinearOperator, *arguments: Any) -> Any:
    """f(A, ...) without a line in the plans of `explain`."""
    return f.find(A).implementation(A, *arguments)


# How many entries there are

BAND = Tridiagonal | Banded


def no_pattern(A: LinearOperator, weights: Any) -> Any:
    """|A| w, where |A| has ones in the places where A may have entries; None where A shows no such places.

    With w = 1 it is a bound on the number of entries of each row, for products too.
    """
    return None


count_entries = function("count_entries", base=no_pattern, rewrites=False)


@rule(count_entries, Sparse)
def entries_of_sparse(A: Any, weights: Any) -> Any:
    """Sums over the stored places"""
    found = np.bincount(A.structure.rows, weights[A.structure.columns], minlength=A.shape[-2])
    return found.astype(np.int64)


@rule(count_entries, BAND)
def entries_of_band(A: Any, weights: Any) -> Any:
    """Sums over the stored diagonals"""
    total = np.zeros(A.shape[-2], np.int64)
    for k, d in _lines(A):
        row, length = max(0, -k), d.shape[-1]
        total[row : row + length] += weights[row + k : row + k + length]
    return total


@rule(count_entries, DIAGONAL)
def entries_of_diagonal(A: Any, weights: Any) -> Any:
    """I w = w"""
    return weights


def is_known(A: Any) -> bool:
    """Whether the permutation is one, and not traced."""
    return isinstance(A.perm, Index) and not A.batch_shape


@rule(count_entries, Permutation, when=is_known)
def entries_of_permutation(A: Any, weights: Any) -> Any:
    """P w"""
    return weights[A.perm.host]


@rule(count_entries, Scaled)
def entries_of_multiple(A: Any, weights: Any) -> Any:
    """|c A| w = |A| w"""
    return ask(count_entries, A.A, weights)


@rule(count_entries, Sum)
def entries_of_sum(A: Any, weights: Any) -> Any:
    """|A + B| w <= |A| w + |B| w"""
    total = 0
    for term in A.operands:
        if (found := ask(count_entries, term, weights)) is None:
            return None
        total = total + found
    return total


@rule(count_entries, Product)
def entries_of_product(A: Any, weights: Any) -> Any:
    """|A B| w <= |A| (|B| w), if that is few enough"""
    stored = 0
    for factor in A.operands:
        own = ask(count_entries, factor, np.ones(factor.shape[-1], np.int64))
        if own is None:
            return None
        stored += int(own.sum())
    filled, found = (
        reduce(lambda w, factor: ask(count_entries, factor, w), reversed(A.operands), w)
        for w in (np.ones(A.shape[-1], np.int64), weights)
    )
    m, n = A.shape[-2:]
    return found if int(filled.sum()) <= min(LARGEST_FILL * stored, m * n // 4) else None


# The entries


def refuse(A: LinearOperator, whole: LinearOperator) -> Any:
    """A tree of sparse and banded matrices as one, `Banded` where all are; neutral ones join the framework of the whole."""
    raise TypeError(f"multiply_out: {A!r} is not made of sparse and banded matrices.")


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
    structure, _ = from_coordinates(np.arange(A.shape[-1]), A.perm.host, A.shape[-2:])
    return Sparse._of(whole.xp.ones((A.shape[-1],), dtype=whole.dtype, device=whole._context.device), structure)


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
        return _multiply_sparse(whole, *(_add_sparse([part], whole) for part in (left, right)))

    return reduce(multiply, [ask(multiply_out, factor, whole) for factor in A.operands])


def _lines(A: Any) -> list[tuple[int, Array]]:
    """The diagonals of a banded matrix by offset."""
    if isinstance(A, Tridiagonal):
        return [(-1, A.lower), (0, A.diag), (1, A.upper)]
    return list(zip(A.offsets, A.diagonals))


def _add_sparse(parts: list[Any], whole: LinearOperator) -> Sparse:
    if len(parts) == 1 and isinstance(parts[0], Sparse):
        return parts[0]
    entries = [entry for part in parts for entry in _coordinates(part)]
    rows, columns = (np.concatenate([entry[i] for entry in entries]) for i in (0, 1))
    xp, batch = whole.xp, broadcast_batches(*(tuple(entry[2].shape[:-1]) for entry in entries))
    data = [xp.astype(xp.broadcast_to(x, (*batch, x.shape[-1])), whole.dtype) for _, _, x in entries]
    return _scattered(xp, xp.concat(data, axis=-1), *from_coordinates(rows, columns, parts[0].shape[-2:]))


def _coordinates(A: Any) -> list[tuple[Any, Any, Array]]:
    """Rows, columns and values of the entries, in one part or diagonal by diagonal."""
    if isinstance(A, Sparse):
        return [(A.structure.rows, A.structure.columns, A.data)]
    return [(max(0, -k) + np.arange(d.shape[-1]), max(0, k) + np.arange(d.shape[-1]), d) for k, d in _lines(A)]


def _scattered(xp: Any, values: Array, structure: Any, places: Any) -> Sparse:
    """The sparse matrix of values (*batch, count) at these of its places, those in one place added."""
    if places is None:
        return Sparse._of(values, structure)
    device = xp.device_of(values)
    empty = xp.zeros((*values.shape[:-1], structure.nnz), dtype=values.dtype, device=device)
    return Sparse._of(xp.scatter_add(empty, places, values, axis=-1), structure)


def _multiply_sparse(whole: LinearOperator, A: Sparse, B: Sparse) -> Sparse:
    """Every entry A_ik times every entry of row k of B."""
    first, second, xp = A.structure, B.structure, whole.xp
    counts = np.diff(second.indptr)[first.columns]  # how many entries of B each entry of A meets
    left = np.repeat(np.arange(first.nnz), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    right = np.repeat(second.indptr[first.columns], counts) + within
    products = xp.take(A.data, left, axis=-1) * xp.take(B.data, right, axis=-1)
    shape = (A.shape[-2], B.shape[-1])
    return _scattered(xp, products, *from_coordinates(first.rows[left], second.columns[right], shape))


def _multiply_bands(A: Banded, B: Banded) -> Banded:
    """(A B)_(i,i+k) = Σ_(p+q=k) A_(i,i+p) B_(i+p,i+k)"""
    xp, m, n, inner = A.xp, A.m, B.n, A.n
    by_offset: dict[int, Array] = {}
    for (p, a), (q, b) in product(_lines(A), _lines(B)):
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
