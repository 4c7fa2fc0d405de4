"""Determinants of families and of compositions: more rules of `slogdet`.

Banded, sparse and large Toeplitz matrices are factored on the host, where their values can be seen; under tracing, and where
derivatives are recorded, the base case takes them (tridiagonal ones have a rule for that too).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import Cost, rule
from ..info import Info, Status, failed, planning, report
from ..methods.determinants import banded_slogdet, sparse_slogdet, toeplitz_slogdet, tridiagonal_slogdet
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.block import Block
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.factors import slogdet_of_diagonal
from ..operators.fft import FFT
from ..operators.householder import Householder
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ._factorise import is_watched, quiet, seen, square_size
from ._minors import last_minor
from ._values import place
from .cost import sparse_work
from .determinant import NEED, multiplied, one, report_logarithm, sign_and_logarithm, slogdet
from .diagonal_rules import has_thin_waist
from .inverse import band_is_narrow, inv, periodic_kernel, rank_is_below_size, wraps_around

LARGE_TOEPLITZ = 512  # rows from which elimination of displacements is faster than LU

Determinant = tuple[Array, Array]


def singular(A: LinearOperator) -> Determinant:
    """0 and -inf; 1 and 0 for the empty matrix."""
    sign, logarithm = one(A)
    return (0 * sign, logarithm - math.inf) if A.shape[-1] else (sign, logarithm)


def from_values(A: LinearOperator, values: Array) -> Determinant:
    """From the eigenvalues: complex ones perhaps, though A is real."""
    xp = A.xp
    with quiet(xp):
        sign, logarithm = slogdet_of_diagonal(xp, values)
        report_logarithm(xp, logarithm)
        if not A.is_complex and xp.is_complex(sign):
            sign = xp.sign(xp.real(sign))  # a product of pairs of conjugates is real but for rounding
        return xp.astype(sign, A.dtype), xp.astype(logarithm, xp.real_dtype(A.dtype))


def from_host(A: LinearOperator, found: Any) -> Determinant:
    """Signs and logarithms computed on the host, as arrays of A's framework."""
    empty = [np.ones(A.batch_shape)] * 2  # of an empty batch
    sign, logarithm = [np.reshape(np.asarray(x), A.batch_shape) for x in zip(*found, strict=True)] or empty
    xp, device = A.xp, A._context.device
    logarithm = xp.asarray(logarithm, dtype=xp.real_dtype(A.dtype), device=device)
    report_logarithm(xp, logarithm)
    return xp.asarray(sign, dtype=A.dtype, device=device), logarithm


def values_are_seen(A: LinearOperator) -> bool:
    """Whether its numbers can be seen, and no derivatives are recorded."""
    return not any(is_watched(A.xp, leaf) for leaf in A.leaves() if hasattr(leaf, "shape"))


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
def slogdet_projection(A: Any, method: Any) -> Determinant:
    """det(Q Q^H) = 0, or 1 if Q is square"""
    return singular(A) if A.Q.shape[-1] < A.shape[-1] else one(A)


@rule(slogdet, Householder)
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
    square_size("slogdet", A, NEED, "")
    return singular(A)


def terms_are_few(A: Any) -> bool:
    """Whether all terms together have a rank below n."""
    rank = min(A.A.U.shape[-1], (A.A.U if A.A.V is None else A.A.V).shape[-1])
    return A.shape[-1] == A.shape[-2] and A.terms * rank < A.shape[-1]


@rule(slogdet, BatchSum[LowRank], when=terms_are_few)  # type: ignore[misc]
def slogdet_of_few_terms(A: Any, method: Any) -> Determinant:
    """det(Σ_i U_i V_i^H) = 0 where the ranks add up to less than n"""
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
    if A.is_complex:
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


def is_one_dimensional(A: Any) -> bool:
    """Whether the grid has one dimension."""
    return len(A.grid) == 1 and 0 not in A.shape


@rule(slogdet, Convolution, when=is_one_dimensional)
def slogdet_banded_convolution(A: Any, method: Any) -> Determinant:
    """A convolution bounded by zeros is banded, and Toeplitz"""
    kernel, (origin,) = A._fitted()
    diagonals = [kernel[..., j : j + 1] for j in range(kernel.shape[-1])]
    offsets = [origin - j for j in range(kernel.shape[-1])]
    return slogdet(Banded(diagonals, offsets, (A.shape[-1], A.shape[-1])), method)


# ---------------------------------------------------------------------------------------------------- bands


@rule(slogdet, Tridiagonal, when=values_are_seen)
def slogdet_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = ± ∏ u_ii for T = P L U, elimination along three diagonals"""
    if planning() or not A.shape[-1]:
        return one(A)
    return from_host(A, [tridiagonal_slogdet(*row) for row in rows_of(A, A.lower, A.diag, A.upper)])


@rule(slogdet, Tridiagonal)
def slogdet_traced_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = θ_n, θ_i = d_i θ_(i-1) - l_(i-1) u_(i-1) θ_(i-2): a product of n matrices of 2 x 2"""
    if not A.shape[-1]:
        return one(A)
    minor, logarithm = last_minor(A.xp, A.xp.broadcast_to(A.diag, A.shape[:-1]), A.lower * A.upper)
    sign, last = slogdet_of_diagonal(A.xp, minor[..., None])
    report_logarithm(A.xp, last)
    return sign, last + logarithm


def is_narrow_and_seen(A: Any) -> bool:
    """Whether A is square, elimination within its band cheaper than of the whole matrix, and its numbers can be seen."""
    return band_is_narrow(A) and values_are_seen(A)


@rule(slogdet, Banded, when=is_narrow_and_seen)
def slogdet_banded(A: Any, method: Any) -> Determinant:
    """det B = ± ∏ u_ii for B = P L U, elimination within the band"""
    return one(A) if planning() else from_host(A, [banded_slogdet(row, A.offsets, A.n) for row in rows_of(A, *A.diagonals)])


def is_square_and_seen(A: LinearOperator) -> bool:
    """Whether A is square and its numbers can be seen."""
    return A.shape[-1] == A.shape[-2] and values_are_seen(A)


@rule(slogdet, Sparse, when=is_square_and_seen, cost=lambda A: Cost(*sparse_work(A)[::2]))
def slogdet_sparse(A: Any, method: Any) -> Determinant:
    """det S = ± ∏ u_ii for P S Q = L U, which stay sparse"""
    if planning() or not A.shape[-1]:
        return one(A)
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    return from_host(A, [sparse_slogdet(row, A.structure, positive) for (row,) in rows_of(A, A.data)])


def is_large_and_seen(A: LinearOperator) -> bool:
    """Whether A is square, so large that the dense factorisation is slower, and its numbers can be seen."""
    return A.shape[-1] == A.shape[-2] >= LARGE_TOEPLITZ and values_are_seen(A)


@rule(slogdet, Toeplitz, when=is_large_and_seen)
def slogdet_toeplitz(A: Any, method: Any) -> Determinant:
    """det T = det C det D for C = F T D F^H, which is like Cauchy's matrix: pivoted elimination of its displacement, O(n^2)"""
    if planning():
        return one(A)
    row = A.xp.conj(A.col) if A.row is None else A.row
    found = [toeplitz_slogdet(*each) for each in rows_of(A, A.col, row)]
    if all(reliable for _, _, reliable in found):
        return from_host(A, [(sign, logarithm) for sign, logarithm, _ in found])
    report(Info(Status.FELL_BACK, method="LU", message="the displacement grew during its elimination"))
    return sign_and_logarithm(A, method)


# ---------------------------------------------------------------------------------------------------- blocks


def diagonal_blocks_are_square(A: Any) -> bool:
    """Whether there are as many rows as columns of blocks, and those on the diagonal are square."""
    size = len(A.blocks)
    return all(len(row) == size for row in A.blocks) and all(
        A.blocks[i][i].shape[-1] == A.blocks[i][i].shape[-2] for i in range(size)
    )


def is_block_triangular(A: Any) -> bool:
    """Whether the blocks on the diagonal are square, and those above it or those below it zero."""
    size = range(len(A.blocks))
    return diagonal_blocks_are_square(A) and any(
        all(isinstance(A.blocks[i][j], Zero) for i in size for j in size if (i < j if above else i > j))
        for above in (True, False)
    )


@rule(slogdet, Block, when=is_block_triangular)
def slogdet_block_triangular(A: Any, method: Any) -> Determinant:
    """det [A B; 0 D] = det A det D"""
    blocks = [place(row[i], A) for i, row in enumerate(A.blocks)]
    return spread(A, multiplied([slogdet(block, method) for block in blocks], [1] * len(blocks)))


@rule(slogdet, Block, when=diagonal_blocks_are_square)
def slogdet_block(A: Any, method: Any) -> Determinant:
    """det [A B; C D] = det A det(D - C A^-1 B), the block A being the one that is cheapest to eliminate"""
    size = range(len(A.blocks))
    for k in sorted((k for k in size if not isinstance(A.blocks[k][k], Zero)), key=partial(_elimination_cost, A)):
        corner = place(A.blocks[k][k], A)
        inverse, info = inv(corner, method, info=True)
        if failed(info._status) is True:
            continue  # a singular block does not make the whole singular
        report(info)
        rest = [i for i in size if i != k]
        complement = [[_complement(A, inverse, i, j, k) for j in rest] for i in rest]
        S = complement[0][0] if len(rest) == 1 else Block(complement)
        S = S._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
        # A dense block has been factored already.
        first = _reciprocal(A, slogdet(inverse)) if isinstance(inverse, Inverse) else slogdet(corner, method)
        return spread(A, multiplied([first, slogdet(S, method)], [1, 1]))
    return sign_and_logarithm(A, method)


def _elimination_cost(A: Any, k: int) -> float:
    corner, rest = A.blocks[k][k], A.shape[-1] - A.blocks[k][k].shape[-1]
    own = float(corner.shape[-1]) ** 3 if inv.find(corner).is_base else 0.0
    return own + rest * corner.flops + float(rest) ** 3


def _complement(A: Any, inverse: LinearOperator, i: int, j: int, k: int) -> LinearOperator:
    """D - C A^-1 B"""
    D, C, B = (place(A.blocks[row][column], A) for row, column in ((i, j), (i, k), (k, j)))
    return D if isinstance(C, Zero) or isinstance(B, Zero) else Sum(D, Scaled(-1.0, Product(C, inverse, B)))


def _reciprocal(A: LinearOperator, determinant: Determinant) -> Determinant:
    return A.xp.conj(determinant[0]), -determinant[1]


def spread(A: LinearOperator, determinant: Determinant) -> Determinant:
    """Of A's batch shape and dtype, which blocks that decide nothing may have given it."""
    xp, (sign, logarithm) = A.xp, determinant
    logarithm = xp.astype(xp.broadcast_to(logarithm, A.batch_shape), xp.real_dtype(A.dtype))
    return xp.astype(xp.broadcast_to(sign, A.batch_shape), A.dtype), logarithm
