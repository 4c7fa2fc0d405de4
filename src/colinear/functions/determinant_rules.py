"""Determinants of low rank and by Fourier transforms, and what the rules of `slogdet` share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..autodiff.determinants import is_polynomial
from ..backends import Array
from ..dispatch import rule
from ..operators.base import LinearOperator
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.factors import slogdet_of_diagonal
from ..operators.fft import FFT
from ..operators.householder import Householder
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.zero import Zero
from ._arrays import quiet, seen, square_size
from ._values import report_leaves, reports_nonfinite
from .determinant import NEED, one, real_sign, report_logarithm, slogdet
from .diagonal_rules import has_thin_waist
from .inverse_families import periodic_kernel, rank_is_below_size, wraps_around

Determinant = tuple[Array, Array]


def singular(A: LinearOperator) -> Determinant:
    """0 and -inf; 1 and 0 for the empty matrix."""
    sign, logarithm = one(A)
    return (0 * sign, logarithm - math.inf) if A.shape[-1] else (sign, logarithm)


def from_values(A: LinearOperator, values: Array) -> Determinant:
    """From the eigenvalues: complex ones perhaps, though A is real."""
    with quiet(A.xp):
        return from_sign(A, *slogdet_of_diagonal(A.xp, values))


def from_sign(A: LinearOperator, sign: Array, logarithm: Array) -> Determinant:
    """From a sign, complex perhaps though A is real, and a logarithm."""
    xp = A.xp
    with quiet(xp):
        report_logarithm(xp, logarithm)
        if not A.is_complex and xp.is_complex(sign):
            sign = real_sign(xp, sign)  # a product of pairs of conjugates is real but for rounding
        return xp.astype(sign, A.dtype), xp.astype(logarithm, xp.real_dtype(A.dtype))


def from_host(A: LinearOperator, found: Any) -> Determinant:
    """Signs and logarithms computed on the host, as arrays of A's framework."""
    empty = [np.ones(A.batch_shape)] * 2  # of an empty batch
    sign, logarithm = [np.reshape(np.asarray(x), A.batch_shape) for x in zip(*found, strict=True)] or empty
    xp, device = A.xp, A._context.device
    logarithm = xp.asarray(logarithm, dtype=xp.real_dtype(A.dtype), device=device)
    report_logarithm(xp, logarithm)
    return xp.asarray(sign, dtype=A.dtype, device=device), logarithm


def rows_of(A: LinearOperator, *arrays: Array) -> list[Any]:
    """Arrays (*batch, ...) on the host, by elements of A's batch: a list of tuples."""
    count, host = math.prod(A.batch_shape), [np.asarray(seen(A.xp, x)) for x in arrays]
    wide = [np.broadcast_to(x, (*A.batch_shape, x.shape[-1])).reshape(count, x.shape[-1]) for x in host]
    return list(zip(*wide, strict=True))


# ---------------------------------------------------------------------------------------------------- known determinants


@rule(slogdet, Zero)
def slogdet_zero(A: Any, method: Any) -> Determinant:
    """det 0 = 0"""
    square_size("slogdet", A, NEED, "")
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
    """det F = (-1)^b (-i)^c i^d, for eigenvalues -1, -i and i that occur (n+2)/4, (n+1)/4 and (n-1)/4 times, rounded down"""
    total, quarters = A.shape[-1], 0
    for n in A.grid:
        quarters += (2 * ((n + 2) // 4) - (n + 1) // 4 + max(n - 1, 0) // 4) * (total // n if n else 0)
    sign, logarithm = one(A)
    return sign * 1j ** (-quarters % 4 if A.inverse else quarters % 4), logarithm


@rule(slogdet, LowRank, when=rank_is_below_size)
@rule(slogdet, Product, when=has_thin_waist)
def slogdet_of_low_rank(A: Any, method: Any) -> Determinant:
    """det(U C V^H) = 0 where the rank is below n"""
    report_leaves(A)
    square_size("slogdet", A, NEED, "")
    return singular(A)


# ---------------------------------------------------------------------------------------------------- Fourier


@rule(slogdet, Circulant)
def slogdet_circulant(A: Any, method: Any) -> Determinant:
    """det C = ∏ (F c)_k, the product of the symbol"""
    return one(A) if 0 in A.shape else _product_of_symbol(A, A.col, A.shape[-1:])


@rule(slogdet, Convolution, when=wraps_around)
def slogdet_convolution(A: Any, method: Any) -> Determinant:
    """det K = ∏ (F k)_j, the product of the symbol over the grid"""
    return one(A) if 0 in A.shape else _product_of_symbol(A, periodic_kernel(A), A.grid)


def _product_of_symbol(A: Any, column: Array, grid: tuple[int, ...]) -> Determinant:
    """Of a real column half of the symbol is enough: the other half is conjugate to it, but for frequencies 0 and n / 2."""
    xp, axes, batch = A.xp, tuple(range(-len(grid), 0)), A.batch_shape
    if A.is_complex or is_polynomial():  # |z| of a pair of conjugates has no derivative at zero
        return from_values(A, xp.reshape(xp.fftn(column, axes=axes), (*batch, A.shape[-1])))
    half, n = xp.rfftn(column, axes=axes), grid[-1]
    paired, alone = half[..., 1 : (n + 1) // 2], [half[..., :1], half[..., n // 2 :]][: 2 - n % 2]
    sign, logarithm = from_values(A, xp.reshape(xp.concat(alone, axis=-1), (*batch, -1)))
    if paired.shape[-1]:
        size = xp.reshape(xp.abs(paired), (*batch, -1))
        positive, twice = slogdet_of_diagonal(xp, size)
        report_logarithm(xp, twice)
        sign, logarithm = sign * positive, logarithm + 2 * twice
    return spread(A, (sign, logarithm))


def spread(A: LinearOperator, determinant: Determinant) -> Determinant:
    """Of A's batch shape and dtype, which blocks that decide nothing may have given it."""
    xp, (sign, logarithm) = A.xp, determinant
    logarithm = xp.astype(xp.broadcast_to(logarithm, A.batch_shape), xp.real_dtype(A.dtype))
    return xp.astype(xp.broadcast_to(sign, A.batch_shape), A.dtype), logarithm
