"""The rules of `norm`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from itertools import combinations
from operator import mul
from typing import Any

from ...backends import Array, inner_products, positive_or_one
from ...dispatch import rule
from ...operators import (
    FFT,
    Adjoint,
    Banded,
    BlockDiag,
    Circulant,
    Conjugate,
    Dense,
    Diagonal,
    Householder,
    Identity,
    Kronecker,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sine,
    Sliced,
    Sparse,
    Sum,
    Toeplitz,
    Transpose,
    Tridiagonal,
    Zero,
    simplify,
)
from ...operators.context import has_traced, records_derivatives
from ...operators.diagonal import scalar_of
from ...properties import Stiefel
from ..common import (
    filled,
    ignore_float_errors,
    operands_in_context,
    passes,
    report_finite,
    reports_nonfinite,
    smaller_side,
)
from ..diagonal import diag
from ..spectrum.rules import two_factors
from . import ORDERS, checked_order, extreme, frobenius, norm, root
from .rules import (
    compressed,
    left_factor_is_orthonormal,
    right_factor_is_orthonormal,
)

SPECTRAL = ("fro", "nuc", 2, -2)  # the norms that singular values give
Implementation = Callable[[Any, Any, Any], Array]


def norm_rule(
    pattern: Any, when: Any = None, of: tuple[Any, ...] = ORDERS
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of `norm` for the norms `of`; the others are left to the base case."""

    def register(implementation: Implementation) -> Implementation:
        def size(A: Any, ord: Any, method: Any) -> Array:
            if checked_order("norm", ord) not in of:
                return norm.base(A, ord, method)
            return implementation(A, ord, method)

        size.__doc__ = implementation.__doc__
        rule(norm, pattern, when=when, name=implementation.__name__)(size)
        return implementation

    return register


@norm_rule(Zero)
def norm_zero(A: Any, order: Any, method: Any) -> Array:
    """|0| = 0"""
    return filled(A, 0.0)


@norm_rule(Diagonal | Identity | ScaledIdentity | Permutation)
@reports_nonfinite
def norm_diagonal(A: Any, order: Any, method: Any) -> Array:
    """|diag(d)| in every norm is a norm of d: the largest, the smallest, the sum or the root of squares; so of c P"""
    if isinstance(A, Diagonal):
        return _norm_of_entries(A.xp, A.d, order)
    return _norm_of_entries(A.xp, filled(A, 1.0, *A.shape[:-1]), order) * abs(scalar_of(A))


def _norm_of_entries(xp: Any, entries: Array, order: Any) -> Array:
    """Of a matrix with at most one entry, one of these, in each row and column."""
    if order == "fro" and entries.shape[-1]:
        return frobenius(xp, entries[..., None])
    sizes = xp.abs(entries)
    if order in ("nuc", "fro") or not sizes.shape[-1]:
        return xp.sum(sizes, axis=-1)
    return extreme(xp, sizes, order)


@norm_rule(
    Stiefel[Dense | FFT | Sine | Householder | Product | Kronecker | BlockDiag | Scaled | Sliced],
    of=SPECTRAL,
)
@reports_nonfinite
def norm_orthonormal(A: Any, order: Any, method: Any) -> Array:
    """|Q| is n^1/2 (Frobenius), n (nuclear) or 1 (largest and smallest singular value) for the n columns of Q"""
    return _norm_of_ones(A, A.shape[-1], order)


@norm_rule(Projection, of=("fro", "nuc"))
@reports_nonfinite
def norm_projection(A: Any, order: Any, method: Any) -> Array:
    """|Q Q^H| is r^1/2 (Frobenius) or r (nuclear) for the r columns of Q"""
    return _norm_of_ones(A, A.Q.shape[-1], order)


def _norm_of_ones(A: LinearOperator, count: int, order: Any) -> Array:
    """The norm of as many singular values that are 1."""
    return _norm_of_entries(A.xp, filled(A, 1.0, *A.batch_shape, count), order)


# --------------------------------------------------------------------------------------------------


ENTRYWISE = ("fro", 1, -1, math.inf, -math.inf)


def has_entries(A: LinearOperator) -> bool:
    """Whether A has rows and columns, and stores some of its entries."""
    return 0 not in A.shape[-2:] and any(0 not in getattr(leaf, "shape", ()) for leaf in A.leaves())


@norm_rule(Sparse | Banded | Tridiagonal | Toeplitz | Circulant, when=has_entries, of=ENTRYWISE)
def norm_by_entries(A: Any, order: Any, method: Any) -> Array:
    """|A|_F^2 = 1^T |A|^2 1, |A|_1 = max 1^T |A|, |A|_inf = max |A| 1, where |A| and |A|^2 by
    entries have A's structure"""
    xp = A.xp
    if isinstance(A, Toeplitz) and order in (-1, -math.inf):
        # sums by Fourier transforms are right beside the largest only
        return norm.base(A, order, method)
    ones = filled(A, 1.0, A.shape[-2 if order in (1, -1) else -1], 1)
    with ignore_float_errors(xp):
        if order != "fro":
            sizes = A._map(xp.abs)
            sums = ((sizes.T if abs(order) == 1 else sizes) @ ones)[..., 0]
            result = extreme(xp, sums, order)
        else:
            held = map(xp.stop_gradient, A.leaves())
            largest = reduce(
                xp.maximum,
                (xp.max(xp.abs(leaf), axis=-1, keepdims=True) for leaf in held if leaf.shape[-1]),
            )
            scale = positive_or_one(xp, largest)
            squares = A._map(lambda leaf: (xp.abs(leaf) / scale) ** 2)
            result = scale[..., 0] * root(xp, xp.sum(squares @ ones, axis=(-2, -1)))
    report_finite(xp, result)
    return result


@norm_rule(LowRank, of=("fro",))
def norm_low_rank(A: Any, order: Any, method: Any) -> Array:
    """|U C V^H|_F = |R C S^H|_F for U = Q R, V = P S"""
    is_followed = records_derivatives(A)
    size = norm(Dense(compressed(A.detach() if is_followed else A)[1]), order, method)
    return _with_derivative_of_square(A.xp, A, size) if is_followed else size


def _with_derivative_of_square(xp: Any, A: Any, size: Array) -> Array:
    """|X Y^H|_F, which is `size`, with the derivative of its square tr(X^H X Y^H Y): Q and R have
    none where rank is lost.

    Of a zero matrix it is taken to be zero, as that of the norm of a vector.
    """
    grams, unit = [], size
    for B in two_factors(A):  # by parts of the largest entry, lest squares overflow
        largest = xp.max(xp.abs(xp.stop_gradient(B)), axis=(-2, -1))
        scale = positive_or_one(xp, largest)
        B, unit = B / scale[..., None, None], unit / scale
        grams.append(inner_products(xp, B, B))
    square = xp.real(xp.sum(grams[0] * xp.matrix_transpose(grams[1]), axis=(-2, -1)))
    return size * xp.sqrt(1 + (square - xp.stop_gradient(square)) / xp.where(unit > 0, unit**2, 1))


# --------------------------------------------------------------------------------------------------


@norm_rule(Scaled)
@reports_nonfinite
def norm_scaled(A: Any, order: Any, method: Any) -> Array:
    """|c A| = |c| |A|"""
    return norm(operands_in_context(A)[0], order, method) * abs(A.scalar)


@norm_rule(Transpose | Adjoint | Conjugate)
def norm_turned(A: Any, order: Any, method: Any) -> Array:
    """|conj(A)| = |A| = |A^T|, but row sums of A^T are column sums of A"""
    swapped = {1: math.inf, -1: -math.inf, math.inf: 1, -math.inf: -1}
    kept = isinstance(A, Conjugate) or order not in swapped
    return norm(A.A, order if kept else swapped[order], method)


@norm_rule(Kronecker)
def norm_kronecker(A: Any, order: Any, method: Any) -> Array:
    """|A ⊗ B| = |A| |B|, in every norm; the smallest singular value is 0 where tall factors meet wide ones"""
    factors = operands_in_context(A)
    smallest = math.prod(smaller_side(factor) for factor in factors)
    if order == -2 and smaller_side(A) > smallest:
        return filled(A, 0.0, *A.batch_shape)
    return reduce(mul, (norm(factor, order, method) for factor in factors))


ALL_BUT_SMALLEST = tuple(order for order in ORDERS if order != -2)


def blocks_have_entries(A: LinearOperator) -> bool:
    """Whether every block has rows and columns."""
    return all(0 not in block.shape[-2:] for block in A.operands)


@norm_rule(BlockDiag, when=blocks_have_entries, of=ALL_BUT_SMALLEST)
def norm_block_diagonal(A: Any, order: Any, method: Any) -> Array:
    """|diag(A, B)| is (|A|^2 + |B|^2)^1/2 (Frobenius), |A| + |B| (nuclear) or the larger of both"""
    if order in ("nuc", 2) and all(isinstance(block, Dense) for block in A.operands):
        return norm.base(A, order, method)  # `svd` decomposes them at once
    xp = A.xp
    if (blocks := A.stack()) is not None:
        return _norm_of_entries(xp, norm(blocks, order, method), order)
    sizes = [xp.asarray(norm(block, order, method)) for block in operands_in_context(A)]
    sizes = [xp.broadcast_to(size, A.batch_shape) for size in sizes]
    return _norm_of_entries(xp, xp.stack(sizes, axis=-1), order)


def keeps_its_norm(A: LinearOperator) -> bool:
    """Whether the first factor has orthonormal columns or the last one orthonormal rows."""
    return left_factor_is_orthonormal(A) or right_factor_is_orthonormal(A)


@norm_rule(Product, when=keeps_its_norm, of=("fro", "nuc", 2))
def norm_orthonormal_product(A: Any, order: Any, method: Any) -> Array:
    """|Q A P^H| = |A| for Q^H Q = I, P^H P = I in the norms that singular values give"""
    factors = operands_in_context(A)
    inner = Product(*(factors[1:] if left_factor_is_orthonormal(A) else factors[:-1]))
    return A.xp.broadcast_to(norm(inner, order, method), A.batch_shape)


def has_cheap_inner_products(A: LinearOperator) -> bool:
    """Whether the traces of all products of two terms follow from rules, values can be seen, and
    the sum is no single matrix."""
    if not simplify.find(A).is_base:
        return False
    if has_traced(A) or any(norm.find(B).is_base for B in A.operands):
        return False
    return not any(diag.find(B.H @ C).is_base for B, C in combinations(A.operands, 2))


@norm_rule(Sum, when=has_cheap_inner_products, of=("fro",))
def norm_sum(A: Any, order: Any, method: Any) -> Array:
    """|A + B|_F^2 = |A|_F^2 + 2 Re trace(A^H B) + |B|_F^2, unless they cancel"""
    xp, terms = A.xp, operands_in_context(A)
    sizes = [norm(term, "fro", method) for term in terms]
    total = sum(size**2 for size in sizes)
    cross = [xp.real(xp.sum(diag(B.H @ C), axis=-1)) for B, C in combinations(terms, 2)]
    square = total + 2 * sum(cross)
    is_kept = square > total * 1e-2  # but for two digits, so one of the norm
    if passes(xp, lambda is_kept: is_kept.all(), is_kept):
        return root(xp, square)
    return norm.base(A, order, method)
