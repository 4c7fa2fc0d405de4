"""Sums and products as polynomials of what they are made of; trees of sparse and banded matrices as
one matrix: how many entries it would have, and which.

`simplify` (rewrites.py) asks here, and preconditioners that are made of entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import function, rule
from ..dispatch.functions import Function
from ..errors import MethodError
from .banded import Banded, Tridiagonal, natural_length
from .base import LinearOperator
from .context import broadcast_batches, kind_of, spread
from .diagonal import Diagonal, Identity, ScaledIdentity, scalar_of
from .kronecker import KroneckerSum
from .product import Product
from .scaled import Scaled, beside
from .sparse import Sparse, collected, from_coordinates
from .sum import Sum
from .tree import Index
from .unitary import Permutation

SHIFT = ScaledIdentity | Identity
DIAGONAL = Diagonal | SHIFT
BAND = Tridiagonal | Banded
# products of entries that multiplying out may take, for each entry of the factors
LARGEST_FILL = 64


def ask(f: Function, A: LinearOperator, *arguments: Any) -> Any:
    """f(A, ...) without a line in the plans of `explain`."""
    return f.find(A).implementation(A, *arguments)


def times(scalar: Any, x: Array, axes: int = 1) -> Array:
    """c x for x with so many axes behind those of its batch and a number c, None for 1, or one
    for each of a batch."""
    return x if scalar is None else beside(scalar, axes) * x


def generators(A: Any) -> Iterator[Any]:
    """The operators of which A is a polynomial: those inside its sums, products and multiples,
    without multiples of I."""
    if isinstance(A, Sum | Product | Scaled):
        for operand in A.operands:
            yield from generators(operand)
    elif not isinstance(A, SHIFT):
        yield A


def evaluate(A: Any, at: Callable[[Any], Array], axes: int = 1) -> Any:
    """p(x) for A = p(B), p a polynomial of generators B that commute and x = at(B), with so many
    axes behind those of its batch: the eigenvalues of A if these are those of B."""
    if isinstance(A, SHIFT):
        return beside(scalar_of(A), axes)
    if isinstance(A, Scaled):
        return beside(A.scalar, axes) * evaluate(A.A, at, axes)
    if isinstance(A, Sum | Product):
        combine = add if isinstance(A, Sum) else mul
        return reduce(combine, [evaluate(operand, at, axes) for operand in A.operands])
    return at(A)


def diagonal_of(D: Any, A: LinearOperator) -> Array:
    """The diagonal of D, a multiple of I perhaps, as an array of A's framework."""
    if isinstance(D, Diagonal):
        return D.d
    return times(scalar_of(D), A.xp.ones((D.shape[-1],), **kind_of(A)))


def is_sparse(A: LinearOperator) -> bool:
    """Whether A is made of sparse and banded matrices alone, and multiplying out keeps it so."""
    if A.is_neutral or any(count_entries.find(B).is_base for B in generators(A)):
        return False
    return ask(count_entries, A, np.ones(A.shape[-1])) is not None


# --------------------------------------------------------------------------------------------------


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
    entries = coordinates(ask(multiply_out, A, A))
    return sum(
        np.bincount(rows, weights[columns], minlength=A.shape[-2]) for rows, columns in entries
    )


@rule(count_entries, Scaled)
def entries_of_multiple(A: Any, weights: Any) -> Any:
    """|c A| w = |A| w"""
    return ask(count_entries, A.A, weights)


@rule(count_entries, Sum)
def entries_of_sum(A: Any, weights: Any) -> Any:
    """|A + B| w <= |A| w + |B| w"""
    found = [ask(count_entries, term, weights) for term in A.operands]
    return None if any(each is None for each in found) else sum(found)


@rule(count_entries, Product)
def entries_of_product(A: Any, weights: Any) -> Any:
    """|A B| w <= |A| (|B| w), if that is few enough"""
    stored = [ask(count_entries, factor, np.ones(factor.shape[-1])) for factor in A.operands]
    if any(each is None for each in stored):
        return None
    m, n = A.shape[-2:]
    filled, found = (
        reduce(lambda w, factor: ask(count_entries, factor, w), reversed(A.operands), w)
        for w in (np.ones(n), weights)
    )
    few = min(LARGEST_FILL * sum(map(np.sum, stored)), m * n // 4)
    return found if filled.sum() <= few else None


# --------------------------------------------------------------------------------------------------


def refuse(A: LinearOperator, whole: LinearOperator) -> Any:
    """A tree of sparse and banded matrices as one, `Banded` where all are; neutral ones join the
    framework of the whole."""
    raise MethodError(
        f"the entries of a sparse matrix are needed, and {A!r} does not show them. Use Sparse(S), "
        "or a preconditioner that asks for products alone: Nystrom(rank), Chebyshev(degree)."
    )


multiply_out = function("multiply_out", base=refuse, rewrites=False)


@rule(multiply_out, Sparse | Banded)
def itself(A: Any, whole: LinearOperator) -> Any:
    """A"""
    return A


@rule(multiply_out, Tridiagonal)
def band_of_tridiagonal(A: Any, whole: LinearOperator) -> Any:
    """Three diagonals"""
    return Banded._of(A.diagonals, A.offsets, *A.shape[-2:])


@rule(multiply_out, DIAGONAL)
def band_of_diagonal(A: Any, whole: LinearOperator) -> Any:
    """One diagonal"""
    return Banded._of((diagonal_of(A, whole),), (0,), *A.shape[-2:])


@rule(multiply_out, Permutation)
def sparse_of_permutation(A: Any, whole: LinearOperator) -> Any:
    """One entry in each row"""
    structure, _ = from_coordinates(np.arange(A.shape[-1]), A.perm.host, A.shape[-2:])
    return Sparse._of(whole.xp.ones((A.shape[-1],), **kind_of(whole)), structure)


@rule(multiply_out, Scaled)
def entries_times_scalar(A: Any, whole: LinearOperator) -> Any:
    """(c A)_ij = c A_ij"""
    inner = ask(multiply_out, A.A, whole)
    if isinstance(inner, Sparse):
        return Sparse._of(times(A.scalar, inner.data), inner.structure)
    diagonals = tuple([times(A.scalar, d) for d in inner.diagonals])
    return Banded._of(diagonals, inner.offsets, inner.m, inner.n)


@rule(multiply_out, Sum)
def add_entries(A: Any, whole: LinearOperator) -> Any:
    """(A + B)_ij = A_ij + B_ij"""
    parts = [ask(multiply_out, term, whole) for term in A.operands]
    if any(isinstance(part, Sparse) for part in parts):
        return _add_sparse(parts, whole)
    lines = (line for part in parts for line in zip(part.offsets, part.diagonals))
    return _add_diagonals(lines, *A.shape[-2:])


@rule(multiply_out, KroneckerSum)
def entries_of_kronecker_sum(A: Any, whole: LinearOperator) -> Any:
    """A ⊕ B = A ⊗ I + I ⊗ B"""
    values, entries, sizes = [], [], [factor.shape[-1] for factor in A.operands]
    for i, factor in enumerate(A.operands):
        B = ask(multiply_out, factor, whole)
        rows, columns = map(np.concatenate, zip(*coordinates(B)))
        before, n, after = math.prod(sizes[:i]), sizes[i], math.prod(sizes[i + 1 :])
        outer = n * after * np.arange(before)[:, None, None] + np.arange(after)
        entries.append(tuple((outer + after * at[:, None]).ravel() for at in (rows, columns)))
        data = whole.xp.concat([whole.xp.astype(x, whole.dtype) for x in B.leaves()], axis=-1)
        lanes = whole.xp.broadcast_to(data[:, None], (before, len(rows), after))
        values.append(whole.xp.reshape(lanes, (-1,)))
    return assemble(values, join(entries, A.shape[-2:]), whole)


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


def coordinates(A: Any) -> list[tuple[Any, Any]]:
    """Rows and columns of the entries, in one part or diagonal by diagonal."""
    if isinstance(A, Sparse):
        return [(A.structure.rows, A.structure.columns)]
    places = [(k, np.arange(d.shape[-1])) for k, d in zip(A.offsets, A.diagonals)]
    return [(max(0, -k) + i, max(0, k) + i) for k, i in places]


def _add_sparse(parts: list[Any], whole: LinearOperator) -> Any:
    """The sum of sparse and banded matrices; where entries come to stand is remembered."""
    structures = [part.structure for part in parts if isinstance(part, Sparse)]
    key = [part.structure if isinstance(part, Sparse) else part.offsets for part in parts]
    memo: dict[Any, Any] = structures[0].memo if structures else {}
    known, found = memo.get("sum", (None, None))
    if known != key:
        found = join([entry for part in parts for entry in coordinates(part)], parts[0].shape[-2:])
        memo["sum"] = key, found
    return assemble([x for part in parts for x in part.leaves()], found, whole)


def join(entries: Iterable[Any], shape: Any) -> Any:
    """The structure of all entries (rows, columns), and their places in it."""
    rows, columns = map(np.concatenate, zip(*entries))
    return from_coordinates(rows, columns, shape)


def assemble(values: list[Array], found: Any, whole: LinearOperator) -> Any:
    """The sparse matrix of values (*batch, count) in the places that were found, those in one
    place added."""
    xp, (structure, places) = whole.xp, found
    batch = broadcast_batches(*(tuple(x.shape[:-1]) for x in values))
    data = xp.concat([xp.astype(spread(x, batch, 1), whole.dtype) for x in values], axis=-1)
    return Sparse._of(collected(xp, data, structure, places), structure)


def _multiply_sparse(whole: LinearOperator, A: Sparse, B: Sparse) -> Any:
    """Every entry A_ik times every entry of row k of B."""
    first, second, xp = A.structure, B.structure, whole.xp
    counts = np.diff(second.indptr)[first.columns]  # how many entries of B each entry of A meets
    left = np.repeat(np.arange(first.nnz), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    right = np.repeat(second.indptr[first.columns], counts) + within
    products = xp.take(A.data, left, axis=-1) * xp.take(B.data, right, axis=-1)
    places = from_coordinates(first.rows[left], second.columns[right], (A.shape[-2], B.shape[-1]))
    return assemble([products], places, whole)


def _multiply_bands(A: Banded, B: Banded) -> Banded:
    """(A B)_(i,i+k) = Σ_(p+q=k) A_(i,i+p) B_(i+p,i+k)"""
    xp, m, n, inner = A.xp, A.m, B.n, A.n
    lines: list[tuple[int, Array]] = []
    for (p, a), (q, b) in product(zip(A.offsets, A.diagonals), zip(B.offsets, B.diagonals)):
        k = p + q
        low, high = max(0, -p, -k), min(m, inner - p, n - k)  # the rows where both have entries
        if low >= high:
            continue
        a = a[..., low - max(0, -p) : high - max(0, -p)]
        b = b[..., low + p - max(0, -q) : high + p - max(0, -q)]
        top = max(0, -k)
        term = xp.pad(a * b, low - top, top + natural_length(k, m, n) - high, axis=-1)
        lines.append((k, term))
    if not lines:
        batch = broadcast_batches(A.batch_shape, B.batch_shape)
        lines.append((0, xp.zeros((*batch, natural_length(0, m, n)), **kind_of(A))))
    return _add_diagonals(lines, m, n)


def _add_diagonals(lines: Iterable[tuple[int, Array]], m: int, n: int) -> Banded:
    """The matrix of these offsets and diagonals, those of one offset added."""
    by_offset: dict[int, Array] = {}
    for k, d in lines:
        by_offset[k] = by_offset[k] + d if k in by_offset else d
    return Banded._of(tuple(by_offset.values()), tuple(by_offset), m, n)
