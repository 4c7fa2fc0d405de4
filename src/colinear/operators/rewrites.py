"""The same operator in a family that knows more: sums and products of sparse matrices are sparse,
of Toeplitz matrices Toeplitz, and so on.

`simplify` is a function with rules as any other. Where only the base case of a function is left for
an operator, and `simplify` has a rule for it, the function is asked again for what that rule makes
of it (`dispatch.py`), so that every function knows all of these. A rule may change how an operator
is stored, never what it is: properties are kept, and derivatives flow from the same arrays.
Patterns of sparse matrices are structure, known under tracing too.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import function, rule
from ..dispatch.patterns import arrange
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .banded import Banded, Tridiagonal, is_narrow, pad_end
from .base import LinearOperator
from .batch import BatchSum
from .block import BlockDiag
from .context import kind_of
from .convolution import Convolution, of_spectrum, periodic_spectrum
from .diagonal import Diagonal, Identity, ScaledIdentity, scalar_of
from .divided import common_spread
from .kronecker import Kronecker, KroneckerSum, differing_factors, kronecker_terms
from .lowrank import LowRank
from .product import Product
from .scaled import Scaled, beside, unscaled
from .sparse import Sparse
from .sparse_algebra import (
    BAND,
    DIAGONAL,
    SHIFT,
    as_sparse,
    ask,
    assemble,
    evaluate,
    generators,
    is_sparse,
    join,
    multiply_out,
    times,
)
from .sum import Sum
from .toeplitz import Circulant, Toeplitz
from .transposed import are_adjoint
from .tree import Shape

TOEPLITZ = Toeplitz | Circulant | SHIFT
DEFINITE = SELF_ADJOINT | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE

SMALL_ROWS = 32  # of a matrix that is not worth being sparse
NARROW_KERNEL = 32  # entries of a kernel up to which its matrix counts as banded, or sparse
LARGE_GRID = 1000  # points of a grid from which its matrix is sparse
SCATTERED_BAND = 32  # numbers in a band, for each that is stored, from which it counts as sparse


def unchanged(A: LinearOperator) -> LinearOperator:
    """The same operator in a family that knows more of it, such as one sparse matrix for a sum of
    sparse matrices.

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


def rewrite(pattern: Any, **options: Any) -> Callable[[Any], Any]:
    """Decorate a rule of `simplify`: what it makes of A has the properties that A has."""

    def register(write: Callable[[Any], LinearOperator]) -> Callable[[Any], LinearOperator]:
        @functools.wraps(write)
        def keep(A: Any) -> LinearOperator:
            return write(A)._claim(A.properties)

        return rule(simplify, pattern, **options)(keep)

    return register


# what decides where the terms of a sum match several rules, of which the guard of one alone can hold
flops = operator.attrgetter("flops")


# --------------------------------------------------------------------------------------------------


@rewrite(Scaled[Circulant | Convolution])
def multiple_of_kernel(A: Any) -> LinearOperator:
    """c C has the column, or the kernel, of C times c"""
    c, C = unscaled(A)
    if isinstance(C, Circulant):
        return Circulant._of(times(c, C.col), C.spread)
    kernel = times(c, C.kernel, len(C.grid))
    return Convolution._of(kernel, C.grid, C.boundary, C.origin, C.spread)


@rewrite(Scaled[BlockDiag | KroneckerSum])
def multiple_of_parts(A: Any) -> LinearOperator:
    """c diag(A, B) = diag(c A, c B), and c (A ⊕ B) = c A ⊕ c B"""
    return type(A.A)(*(Scaled(A.scalar, part) for part in A.A.operands))


def inner_simplifies(A: Any) -> bool:
    """Whether what is scaled is of a family that knows more."""
    return not simplify.find(A.A).is_base


@rewrite(Scaled, when=inner_simplifies)
def multiple_of_simplified(A: Any) -> LinearOperator:
    """c A of an A in a family that knows more"""
    return Scaled(A.scalar, ask(simplify, A.A))


def are_few_terms(A: Any) -> bool:
    """Whether the ranks of the terms together are below the size."""
    return A.terms * min(A.A.U.shape[-1], A.A._right.shape[-1]) < min(A.shape[-2:])


@rewrite(BatchSum[LowRank], when=are_few_terms)
def sum_of_low_ranks(A: Any) -> LinearOperator:
    """Σ_i U_i C_i V_i^H is of low rank: all factors side by side"""
    L = A.A
    if L.V is None and L.core is None:
        return LowRank._of(L._beside(L.U, A.axis), None, None)
    left = L.U if L.core is None else A.xp.matmul(L.U, L.core)
    return LowRank._of(L._beside(left, A.axis), L._beside(L._right, A.axis), None)


# --------------------------------------------------------------------------------------------------


def is_line(A: Any) -> bool:
    """Whether A is a convolution of a line with zeros around it, on one device."""
    is_bounded = isinstance(A, Convolution) and A.boundary == "zero" and A.spread is None
    return is_bounded and len(A.grid) == 1 and A.grid[0] > 0


@rewrite(Convolution, when=is_line)
def matrix_of_line(A: Any) -> LinearOperator:
    """A convolution of a line with zeros around it is a Toeplitz matrix, and banded if its
    kernel is short"""
    kernel, (origin,) = A._fitted()
    n, size = A.shape[-1], kernel.shape[-1]
    if size > NARROW_KERNEL:
        return Toeplitz._of(_column(A), _row(A))
    lines = [
        A.xp.broadcast_to(kernel[..., j : j + 1], (*A.batch_shape, n - abs(origin - j)))
        for j in range(size)
    ]
    return _tidy(Banded._of(tuple(lines), tuple(range(origin, origin - size, -1)), n, n))


def _column(T: Any) -> Array:
    if not isinstance(T, Convolution):
        return T.col
    kernel, (origin,) = T._fitted()  # T[i, j] = kernel[i - j + origin]
    return pad_end(T.xp, kernel[..., origin:], T.shape[-1:], (-1,))


def _row(T: Any) -> Array:
    if isinstance(T, Toeplitz):
        return T.xp.conj(T.col) if T.row is None else T.row
    return _column(T.T)


def are_on_one_grid(A: Any) -> bool:
    """Whether each term is a convolution, all of one grid and boundary, a multiple of one, or of
    I."""
    inner = [B for _, B in map(unscaled, A.operands) if not isinstance(B, SHIFT)]
    first = inner[0]
    return all(
        isinstance(B, Convolution) and (B.grid, B.boundary) == (first.grid, first.boundary)
        for B in inner
    )


@rewrite(Sum[Convolution | Scaled[Convolution], ...], when=are_on_one_grid, cost=flops)
def sum_of_convolutions(A: Any) -> LinearOperator:
    """Kernels on one grid add up, and c I has the kernel c δ"""
    xp, parts = A.xp, [unscaled(term) for term in A.operands]
    C = next(B for _, B in parts if isinstance(B, Convolution))
    d = len(C.grid)
    dot = xp.ones((1,) * d, **kind_of(A))
    kernels = [
        (times(scalar_of(B), dot, d), (0,) * d)
        if isinstance(B, SHIFT)
        else (times(c, B.kernel, d), B.origin)
        for c, B in parts
    ]
    before, after = np.max([_reach(*each) for each in kernels], axis=0).tolist()

    def widen(kernel: Array, origin: Shape) -> Array:
        for axis, (b, a) in enumerate(zip(*_reach(kernel, origin)), -d):
            kernel = xp.pad(kernel, before[axis] - b, after[axis] - a, axis)
        return kernel

    kernel = sum(widen(*each) for each in kernels)
    return Convolution._of(kernel, C.grid, C.boundary, tuple(before), C.spread)


def _reach(kernel: Array, origin: Shape) -> tuple[Shape, list[int]]:
    """How many entries of a kernel stand before its origin, and how many behind it, in each
    dimension."""
    sizes = kernel.shape[kernel.ndim - len(origin) :]
    return origin, [size - 1 - o for size, o in zip(sizes, origin)]


def are_toeplitz(A: Any) -> bool:
    """Whether A is square and each term a Toeplitz matrix, a multiple of one, or of I."""
    inner = (unscaled(term)[1] for term in A.operands)
    return A.shape[-1] == A.shape[-2] and all(isinstance(B, TOEPLITZ) or is_line(B) for B in inner)


CONSTANT: Any = Toeplitz | Circulant | Scaled[Toeplitz | Circulant]


@rewrite(Sum[CONSTANT, ...], when=are_toeplitz, cost=flops)
def sum_of_toeplitz(A: Any) -> LinearOperator:
    """S + T is a Toeplitz matrix as S and T are, circulant if both are"""
    xp, shape, parts = A.xp, A.shape[:-1], [unscaled(term) for term in A.operands]
    first = xp.asarray(
        np.arange(shape[-1]) == 0, dtype=xp.real_dtype(A.dtype), device=A._context.device
    )  # of I

    def add(line: Callable[[Any], Array]) -> Array:
        lines = [
            times(scalar_of(T), first) if isinstance(T, SHIFT) else times(c, line(T))
            for c, T in parts
        ]
        total = functools.reduce(operator.add, lines)
        return total if total.shape == shape else xp.broadcast_to(total, shape)

    spread = common_spread(T for _, T in parts)
    if not any(isinstance(T, Toeplitz | Convolution) for _, T in parts):
        return Circulant._of(add(_column), spread)
    is_mirrored = A.properties & SELF_ADJOINT and all(
        isinstance(T, SHIFT) or getattr(T, "row", T) is None for _, T in parts
    )
    return Toeplitz._of(add(_column), None if is_mirrored else add(_row), spread)


def is_sparse_on_grid(A: Any) -> bool:
    """Whether the grid has several dimensions, many points and zeros around it, and is not cut over
    a mesh, and the kernel few entries, not traced."""
    return (
        math.prod(A._sizes) <= NARROW_KERNEL
        and A.boundary == "zero"
        and A.shape[-1] > LARGE_GRID
        and len(A.grid) > 1
        and A.spread is None
        and not A.xp.is_traced(A.kernel)
    )


@rewrite(Convolution, when=is_sparse_on_grid)
def sparse_of_convolution(A: Any) -> LinearOperator:
    """A convolution by a small kernel, with zeros around the grid, is a sparse matrix: A[i, l] =
    kernel[i - l + origin]"""
    xp, (kernel, origins) = A.xp, A._fitted()
    points, entries, values = np.arange(A.shape[-1]).reshape(A.grid), [], []
    for j in np.ndindex(*kernel.shape[-len(A.grid) :]):
        # i - l
        steps = [(index - origin, n) for index, origin, n in zip(j, origins, A.grid)]
        places = [
            points[tuple(slice(max(0, s * k), n + min(0, s * k)) for k, n in steps)].ravel()
            for s in (1, -1)
        ]
        entries.append(places)
        value = kernel[(..., *j, None)]
        values.append(xp.broadcast_to(value, (*A.batch_shape, len(places[0]))))
    return assemble(values, join(entries, A.shape[-2:]), A)


# --------------------------------------------------------------------------------------------------


def _periodic_grids(A: Any) -> set[Any]:
    """The grids of the circulants and periodic convolutions that A is a polynomial of; None among
    them stands for anything else."""
    return {
        B.shape[-1:]
        if isinstance(B, Circulant)
        else B.grid
        if isinstance(B, Convolution) and B.boundary == "wrap"
        else None
        for B in generators(A)
    }


def is_periodic(A: Any) -> bool:
    """Whether A is made of circulants and periodic convolutions on one grid, and multiples of I."""
    grids = _periodic_grids(A)
    return 0 not in A.shape and len(grids) == 1 and None not in grids


@rewrite(Sum | Product, when=is_periodic)
def circulant_of_circulants(A: Any) -> LinearOperator:
    """Sums and products of circulants are circulant: their eigenvalues add up and multiply"""
    (grid,), known = _periodic_grids(A), list[tuple[Any, Array]]()

    def eigenvalues(C: Any) -> Array:
        for B, values in known:
            if B is C or are_adjoint(B, C):
                return values if B is C else A.xp.conj(values)
        known.append((C, periodic_spectrum(C.to(dtype=A.dtype))[0]))
        return known[-1][1]

    values = evaluate(A, eigenvalues, len(grid))
    return of_spectrum(A, values, grid, common_spread(generators(A)))


# --------------------------------------------------------------------------------------------------


def are_of_one_partition(A: Any) -> bool:
    """Whether the terms are diagonal, or have square blocks of the same sizes."""
    sizes = [
        [block.shape[-2:] for block in term.operands]
        for term in A.operands
        if not isinstance(term, DIAGONAL)
    ]
    return all(each == sizes[0] for each in sizes) and all(m == n for m, n in sizes[0])


@rewrite(Sum[BlockDiag, BlockDiag | DIAGONAL], when=are_of_one_partition)
def sum_of_block_diagonals(A: Any) -> LinearOperator:
    """diag(A, B) + diag(C, D) = diag(A + C, B + D); blocks are definite where the whole is"""
    whole = next(term for term in A.operands if isinstance(term, BlockDiag))
    sizes = [block.shape[-1] for block in whole.operands]
    columns = zip(*(_blocks(term, sizes, A) for term in A.operands))
    return BlockDiag(*(Sum(*blocks)._claim(A.properties & DEFINITE) for blocks in columns))


def _blocks(term: Any, sizes: list[int], A: LinearOperator) -> Any:
    """The blocks of a term: a multiple of I remains one, which more rules know."""
    if isinstance(term, BlockDiag):
        return term.operands
    if isinstance(term, Diagonal):
        return [
            Diagonal(term.d[..., stop - size : stop])
            for size, stop in zip(sizes, np.cumsum(sizes).tolist())
        ]
    return [
        ScaledIdentity(scalar_of(term), size, like=None if A.is_neutral else A) for size in sizes
    ]


# --------------------------------------------------------------------------------------------------


KRONECKER: Any = Kronecker | Scaled[Kronecker]


def share_factors(A: Any) -> bool:
    """Whether the terms are Kronecker products that have all factors but one in common."""
    places = differing_factors(A)
    return places is not None and len(places) <= 1


@rewrite(Sum[KRONECKER, KRONECKER, ...], when=share_factors, cost=flops)
def sum_of_kroneckers(A: Any) -> LinearOperator:
    """A ⊗ B + A ⊗ C = A ⊗ (B + C)"""
    (at,), terms = differing_factors(A) or [-1], kronecker_terms(A)
    factors = list(terms[0][1])
    factors[at] = Sum(*(Scaled(c, own[at]) for c, own in terms))
    return Kronecker(*factors)


def _places_beside_identities(A: Any) -> list[list[int]]:
    """The places of the factors that are not I, in each Kronecker product."""
    return [
        [i for i, factor in enumerate(factors) if not isinstance(factor, Identity)]
        for _, factors in kronecker_terms(A)
    ]


def are_beside_identities(A: Any) -> bool:
    """Whether each Kronecker product has one factor that is not I, and each place such a factor;
    all factors square and of the same sizes."""
    sizes = [[factor.shape[-2:] for factor in factors] for _, factors in kronecker_terms(A)]
    if any(each != sizes[0] for each in sizes) or any(m != n for m, n in sizes[0]):
        return False
    places = _places_beside_identities(A)
    return all(len(own) == 1 for own in places) and len(set(map(tuple, places))) == len(sizes[0])


@rewrite(Sum[KRONECKER, KRONECKER, ...], when=are_beside_identities, cost=flops)
def sum_beside_identities(A: Any) -> LinearOperator:
    """a A ⊗ I + b I ⊗ B + C = a A ⊕ b B + C"""
    terms = list(zip(_places_beside_identities(A), kronecker_terms(A)))
    parts = [
        Sum(*(Scaled(c, factors[i]) for (place,), (c, factors) in terms if place == i))
        for i in range(len(terms[0][1][1]))
    ]
    rest = [term for term in A.operands if not isinstance(unscaled(term)[1], Kronecker)]
    return Sum(KroneckerSum(*parts), *rest)


# --------------------------------------------------------------------------------------------------


@rewrite(Sum[Tridiagonal, DIAGONAL])
def sum_with_diagonal(A: Any) -> LinearOperator:
    """T + D is tridiagonal as T is"""
    T, D = arrange(A, Tridiagonal, DIAGONAL)
    d = D.d if isinstance(D, Diagonal) else beside(scalar_of(D))
    return Tridiagonal._of(T.lower, T.diag + d, T.upper)


@rewrite(Sum[Sparse | BAND, Sparse | BAND | DIAGONAL])
@rewrite(Sum, when=is_sparse)
def sum_of_sparse(A: Any) -> LinearOperator:
    """A + B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))


@rewrite(Product, when=is_sparse)
def product_of_sparse(A: Any) -> LinearOperator:
    """A B is sparse as A and B are, or of one band if they are"""
    return _tidy(ask(multiply_out, A, A))


def has_terms_that_simplify(A: Any) -> bool:
    """Whether some term is of a family that knows more. Products stay: to multiply by two may be
    faster than by one."""
    inner = (term for term in A.operands if not isinstance(unscaled(term)[1], Product))
    return any(not simplify.find(term).is_base for term in inner)


@rewrite(Sum, when=has_terms_that_simplify)
def sum_of_simplified(A: Any) -> LinearOperator:
    """A + B of terms in families that know more"""
    terms = (
        term if isinstance(unscaled(term)[1], Product) else ask(simplify, term)
        for term in A.operands
    )
    return Sum(*terms)


def is_scattered(A: Any) -> bool:
    """Whether A is square and of few diagonals so far apart that the band between them is mostly
    empty, not traced."""
    stored, width = sum(d.shape[-1] for d in A.diagonals), max(A.offsets) - min(A.offsets) + 1
    is_wide = width * A.n > SCATTERED_BAND * stored or not is_narrow(A)
    return (
        A.m == A.n > SMALL_ROWS
        and is_wide
        and 4 * stored <= A.n**2
        and not any(map(A.xp.is_traced, A.diagonals))
    )


def is_compact(A: Any) -> bool:
    """Whether A is square, and elimination within its band the cheapest there is."""
    return is_narrow(A) and not is_scattered(A)


@rewrite(Banded, when=is_scattered)
def sparse_of_scattered(A: Any) -> LinearOperator:
    """Diagonals that are far apart, as of a periodic band, are a sparse matrix"""
    return as_sparse(A)


def _tidy(A: Any) -> LinearOperator:
    """A matrix of diagonals as one of the families of three diagonals or one, if it has no more."""
    if not isinstance(A, Banded) or A.m != A.n or not set(A.offsets) <= {-1, 0, 1}:
        return A
    if A.offsets == (0,):
        return Diagonal._of(*A.diagonals)
    lines = dict(zip(A.offsets, A.diagonals))
    return Tridiagonal._of(
        *(lines[k] if k in lines else A.xp.zeros((A.n - abs(k),), **kind_of(A)) for k in (-1, 0, 1))
    )
