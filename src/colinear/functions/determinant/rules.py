"""The rules of `slogdet` for families and compositions, and what all its rules share."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...autodiff.determinants import is_polynomial, slogdet_of_diagonal
from ...backends import Array
from ...dispatch import rule
from ...factors.dense import LUFactor
from ...factors.function import RealPart
from ...factors.inverse import Inverse, known_determinant
from ...factors.structured import SpectralFactor, StackedBlocks
from ...methods.structured import parity
from ...operators import (
    FFT,
    Adjoint,
    BlockDiag,
    Circulant,
    Conjugate,
    Convolution,
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
    Sum,
    Transpose,
    Triangular,
    Zero,
)
from ...operators.context import kind_of
from ...operators.convolution import periodic_column, periodic_spectrum
from ...operators.sparse_algebra import DIAGONAL, diagonal_of
from ...operators.tree import Index
from ...properties import UNITARY, Unitary
from ..common import (
    array_like,
    ignore_float_errors,
    in_context,
    once_each,
    operands_in_context,
    report_leaves,
    reports_nonfinite,
)
from ..diagonal.rules import has_thin_waist
from ..solve.elimination import report_weak_entries, strengthened, weak_entries
from ..solve.families import rank_is_below_size, wraps_around
from ..solve.inverse import all_square, inv
from ..solve.sums import capacitance_of_diagonal, low_rank_and_diagonal, rank_of, shift_is_zero
from ..spectrum.rules import is_similarity
from ..stochastic.estimators import is_stochastic, powers_of_estimates
from . import (
    Determinant,
    check_square,
    in_dtype_of,
    logdet,
    multiplied,
    one,
    real_sign,
    reciprocal_determinant,
    report_determinant,
    slogdet,
    slogdet_of_power,
)

# Determinants of low rank and by Fourier transforms, and what the rules of `slogdet` share.


def singular(A: LinearOperator) -> Determinant:
    """0 and -inf; 1 and 0 for the empty matrix."""
    sign, logarithm = one(A)
    return (0 * sign, logarithm - math.inf) if A.shape[-1] else (sign, logarithm)


def from_values(A: LinearOperator, values: Array) -> Determinant:
    """From the eigenvalues: complex ones perhaps, though A is real."""
    with ignore_float_errors(A.xp):
        return from_sign(A, *slogdet_of_diagonal(A.xp, values))


def from_sign(A: LinearOperator, sign: Array, logarithm: Array) -> Determinant:
    """From a sign, complex perhaps though A is real, and a logarithm."""
    xp = A.xp
    report_determinant(xp, sign, logarithm)
    if xp.is_complex(sign) and not A.is_complex:
        sign = real_sign(xp, sign)  # a product of pairs of conjugates is real but for rounding
    return xp.astype(sign, A.dtype), xp.astype(logarithm, xp.real_dtype(A.dtype))


def by_tables(A: LinearOperator, slogdet_of: Callable[..., Any], *arrays: Array) -> Determinant:
    """What `slogdet_of` computes on the host from tables of these arrays, with a row for each
    matrix of a batch: of all at once, or of each alone where one that is not finite spoils others."""
    if 0 in A.shape:
        return one(A)
    tables = _tables(A, arrays)
    sign, logarithm = slogdet_of(*tables)
    if not np.isnan(logarithm).any():
        return from_host(A, np.stack(np.broadcast_arrays(sign, logarithm), axis=-1))
    rows = range(math.prod(A.batch_shape))
    return from_host(A, [slogdet_of(*[x[i : i + 1] for x in tables]) for i in rows])


def from_host(A: LinearOperator, found: Any) -> Determinant:
    """Signs and logarithms computed on the host, as arrays of A's framework."""
    xp, pairs = A.xp, np.reshape(np.asarray(found), (*A.batch_shape, 2))
    logarithm = array_like(A, pairs[..., 1])
    return report_determinant(xp, array_like(A, pairs[..., 0]), xp.real(logarithm))


def rows_of(A: LinearOperator, *arrays: Array) -> list[Any]:
    """Arrays (*batch, ...) on the host, by elements of A's batch: a list of tuples."""
    return list(zip(*_tables(A, arrays), strict=True))


def _tables(A: LinearOperator, arrays: Any) -> list[Any]:
    """Arrays (*batch, n) on the host, with a row for each element of A's batch."""
    count, host = math.prod(A.batch_shape), [np.asarray(x) for x in A.xp.fetch(arrays)]
    return [
        np.broadcast_to(x, (*A.batch_shape, x.shape[-1])).reshape(count, x.shape[-1]) for x in host
    ]


# --------------------------------------------------------------------------------------------------


@rule(slogdet, Zero)
def slogdet_zero(A: Any, method: Any) -> Determinant:
    """det 0 = 0"""
    return singular(A)


@rule(slogdet, Projection)
@reports_nonfinite
def slogdet_projection(A: Any, method: Any) -> Determinant:
    """det(Q Q^H) = 0, or 1 if Q is square"""
    return singular(A) if A.Q.shape[-1] < A.shape[-1] else one(A)


@rule(slogdet, Householder)
@reports_nonfinite
def slogdet_householder(A: Any, method: Any) -> Determinant:
    """det(I - 2 v v^H / v^H v) = -1"""
    sign, logarithm = one(A)
    reflects = A.xp.any(A.v != 0, axis=-1)  # v = 0 gives the identity
    return A.xp.where(reflects, -sign, sign), logarithm


@rule(slogdet, FFT)
def slogdet_fft(A: Any, method: Any) -> Determinant:
    """det F = (-1)^b (-i)^c i^d, for eigenvalues -1, -i and i that occur (n+2)/4, (n+1)/4 and
    (n-1)/4 times, rounded down"""
    total, quarters = A.shape[-1], 0
    for n in A.grid:
        quarters += (2 * ((n + 2) // 4) - (n + 1) // 4 + max(n - 1, 0) // 4) * (
            total // n if n else 0
        )
    sign, logarithm = one(A)
    return sign * 1j ** (-quarters % 4 if A.inverse else quarters % 4), logarithm


@rule(slogdet, LowRank, when=rank_is_below_size)
@rule(slogdet, Product, when=has_thin_waist)
def slogdet_of_low_rank(A: Any, method: Any) -> Determinant:
    """det(U C V^H) = 0 where the rank is below n"""
    report_leaves(A)
    return singular(A)


# --------------------------------------------------------------------------------------------------


@rule(slogdet, Circulant)
@rule(slogdet, Convolution, when=wraps_around, name="slogdet_convolution")
def slogdet_circulant(A: Any, method: Any) -> Determinant:
    """det C = ∏ (F c)_k, the product of the symbol over the grid"""
    if 0 in A.shape:
        return one(A)
    xp, batch, (column, grid) = A.xp, A.batch_shape, periodic_column(A)
    axes = tuple(range(-len(grid), 0))
    if A.is_complex or is_polynomial():  # |z| of a pair of conjugates has no derivative at zero
        return from_values(A, xp.reshape(xp.fftn(column, axes=axes), (*batch, A.shape[-1])))
    # Of a real column half of the symbol is enough: the other half is conjugate to it, but for
    # frequencies 0 and n / 2.
    half, n = periodic_spectrum(A)[0], grid[-1]
    paired, alone = half[..., 1 : (n + 1) // 2], [half[..., :1], half[..., n // 2 :]][: 2 - n % 2]
    sign, logarithm = from_values(A, xp.reshape(xp.concat(alone, axis=-1), (*batch, -1)))
    if paired.shape[-1]:
        size = xp.reshape(xp.abs(paired), (*batch, -1))
        positive, twice = report_determinant(xp, *slogdet_of_diagonal(xp, size))
        sign, logarithm = sign * positive, logarithm + 2 * twice
    return spread(A, (sign, logarithm))


def spread(A: LinearOperator, determinant: Determinant) -> Determinant:
    """Of A's batch shape and dtype, which blocks that decide nothing may have given it."""
    xp, (sign, logarithm) = A.xp, determinant
    logarithm = xp.astype(xp.broadcast_to(logarithm, A.batch_shape), xp.real_dtype(A.dtype))
    return xp.astype(xp.broadcast_to(sign, A.batch_shape), A.dtype), logarithm


# Determinants that are known, or read off a diagonal: more rules of `slogdet`.


@rule(slogdet, Identity)
def slogdet_identity(A: Any, method: Any) -> Determinant:
    """det I = 1"""
    return one(A)


@rule(slogdet, ScaledIdentity)
def slogdet_scaled_identity(A: Any, method: Any) -> Determinant:
    """det(c I) = c^n"""
    return report_determinant(A.xp, *slogdet_of_power(A, A.c))


@rule(slogdet, Diagonal)
def slogdet_diagonal(A: Any, method: Any) -> Determinant:
    """det diag(d) = ∏ d_i"""
    return report_determinant(A.xp, *slogdet_of_diagonal(A.xp, A.d))


@rule(slogdet, Triangular)
@reports_nonfinite
def slogdet_triangular(A: Any, method: Any) -> Determinant:
    """det T = ∏ t_ii"""
    check_square("slogdet", A)
    if A.unit:
        return one(A)
    return report_determinant(A.xp, *slogdet_of_diagonal(A.xp, A.xp.diagonal(A.A)))


@rule(slogdet, Permutation)
def slogdet_permutation(A: Any, method: Any) -> Determinant:
    """det P = (-1)^(n - cycles)"""
    positive, zero = one(A)
    if isinstance(A.perm, Index):
        parities = [parity(p) for p in A.perm.host.reshape(math.prod(A.batch_shape), A.shape[-1])]
        sign = A.xp.asarray(np.reshape(np.asarray(parities), A.batch_shape), **kind_of(A))
    else:  # traced, so its cycles cannot be counted: its matrix is factored
        sign, _ = LUFactor._of(*A.xp.lu_factor(A.to_dense())).slogdet()
    return positive * sign, zero


# Determinants of compositions from those of their operands: more rules of `slogdet`.


@rule(slogdet, Scaled, estimates=True)
@reports_nonfinite
def slogdet_scaled(A: Any, method: Any) -> Determinant:
    """det(c A) = c^n det A"""
    check_square("slogdet", A)
    power, whole = slogdet_of_power(A, A.scalar), slogdet(A.A, method)
    return power[0] * whole[0], power[1] + whole[1]


def from_parts(A: LinearOperator, method: Any, powers: list[int] | None = None) -> Determinant:
    """The product of powers of the operands' determinants; with its standard error, where these
    are estimated."""
    parts = operands_in_context(A)
    if is_stochastic(method):
        return powers_of_estimates(A, logdet, parts, method, powers or [1] * len(parts))
    return multiplied(once_each(lambda part: slogdet(part, method), parts), powers)


@rule(slogdet, Product, when=all_square)
def slogdet_product(A: Any, method: Any) -> Determinant:
    """det(A B) = det A det B, both square"""
    return from_parts(A, method)


@rule(slogdet, BlockDiag, when=all_square, estimates=True, hereditary=True)
def slogdet_block_diagonal(A: Any, method: Any) -> Determinant:
    """det diag(A, B) = det A det B, both square"""
    if not is_stochastic(method) and (blocks := A.stack()) is not None:
        return _of_blocks(A.xp, *slogdet(blocks, method))
    return from_parts(A, method)


@rule(slogdet, Kronecker, when=all_square, estimates=True)
def slogdet_kronecker(A: Any, method: Any) -> Determinant:
    """det(A ⊗ B) = det(A)^n det(B)^m for A of m x m and B of n x n"""
    n = A.shape[-1]
    return from_parts(A, method, [n // B.shape[-1] for B in A.operands]) if n else one(A)


@rule(slogdet, Transpose | Adjoint | Conjugate, estimates=True, hereditary=True)
def slogdet_turned(A: Any, method: Any) -> Determinant:
    """det A^T = det A, and det A^H = det conj(A) = conj(det A)"""
    sign, logarithm = slogdet(A.A, method)
    return sign if isinstance(A, Transpose) else A.xp.conj(sign), logarithm


@rule(slogdet, RealPart)
def slogdet_real_part(A: Any, method: Any) -> Determinant:
    """det A, real, of a real A that is held as complex factors"""
    sign, logarithm = slogdet(A.A, method)
    return A.xp.real(sign), logarithm


def determinant_of_factored(A: Any) -> Callable[[], Determinant] | None:
    """What gives the determinant of the operator that an `Inverse` is that of, from the factors
    that it keeps; None if they do not tell."""
    xp, factor = A.xp, A.factor
    if isinstance(factor, Identity):
        return partial(one, A)
    # V diag(1 / λ) V^-1; eigenvalues that repeat have no derivative, though their product has one
    if isinstance(factor, SpectralFactor) and not xp.is_differentiated(factor.d):
        return lambda: from_sign(A, *reciprocal_determinant(xp, *slogdet_of_diagonal(xp, factor.d)))
    if isinstance(factor, StackedBlocks) and isinstance(factor.A, Inverse):
        each = determinant_of_factored(factor.A)
        return None if each is None else lambda: _of_blocks(xp, *each())
    return known_determinant(factor)


def _of_blocks(xp: Any, sign: Array, logarithm: Array) -> Determinant:
    """From those of the blocks, along the last axis."""
    return xp.prod(sign, axis=-1), xp.sum(logarithm, axis=-1)


@rule(slogdet, Inverse, hereditary=True)
def slogdet_inverse(A: Any, method: Any) -> Determinant:
    """det A^-1 = 1 / det A, from the factorisation that is there"""
    known = determinant_of_factored(A)
    with ignore_float_errors(A.xp):
        found = slogdet(A.A, method) if known is None else known()
        return reciprocal_determinant(A.xp, *in_dtype_of(A, *found))


def diagonal_can_be_divided_by(A: LinearOperator) -> bool:
    """Whether the entries of D too small to be divided by, and the rank, are together below the
    size.

    Where the rank alone is not, all of D may be small although A is well-conditioned, and the lemma
    saves nothing.
    """
    low_rank, D = low_rank_and_diagonal(A)
    rank = rank_of(low_rank)
    return (
        rank < A.shape[-1]
        and not shift_is_zero(D)
        and rank + len(weak_entries(low_rank, D)) < A.shape[-1]
    )


@rule(slogdet, Sum[LowRank, DIAGONAL], when=diagonal_can_be_divided_by)
def determinant_lemma(A: Any, method: Any) -> Determinant:
    """det(D + U C V^H) = det D det(I + C V^H D^-1 U), after an exchange of entries of D that are
    nearly zero"""
    low_rank, D = strengthened(*low_rank_and_diagonal(A))
    report_weak_entries(low_rank, D)
    K = capacitance_of_diagonal(low_rank, D, diagonal_of(inv(D, method), low_rank))
    return multiplied([slogdet(K, method), slogdet(in_context(D, A), method)])


# Determinants of unitary operators and of what is similar to a simpler operator.


@rule(slogdet, Product[LinearOperator, ..., LinearOperator], when=is_similarity)
def slogdet_similarity(A: Any, method: Any) -> Determinant:
    """det(V A V^-1) = det A, for unitary V and V^-1 = V^H too"""
    return spread(A, slogdet(in_context(Product(*A.operands[1:-1]), A), method))


@rule(logdet, Unitary)
@rule(logdet, Unitary[Product])
@reports_nonfinite
def logdet_unitary(A: Any, method: Any) -> Array:
    """log |det Q| = 0"""
    return one(A)[1]


def has_unitary_factor(A: LinearOperator) -> bool:
    """Whether the factors are square, and some of them unitary."""
    return all_square(A) and any(factor.properties & UNITARY for factor in A.operands)


@rule(logdet, Product, when=has_unitary_factor)
def logdet_of_rest(A: Any, method: Any) -> Array:
    """log |det(Q A)| = log |det A| for unitary Q"""
    if is_similarity(A):
        return slogdet_similarity(A, method)[1]
    rest = [factor for factor in operands_in_context(A) if not factor.properties & UNITARY]
    total = logdet(Product(*rest), method) if rest else logdet_unitary(A, method)
    return spread(A, (A.xp.ones(()), total))[1]
