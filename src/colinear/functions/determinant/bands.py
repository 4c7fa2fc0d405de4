"""Determinants by elimination along bands and on the host, and in closed form for the sine
transform."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ...autodiff.determinants import is_polynomial, slogdet_of_diagonal
from ...backends import Array
from ...dispatch import Cost, rule
from ...factors.host import slogdet_on_host
from ...factors.structured import levels_on_device
from ...methods.cyclic_reduction import pivots
from ...methods.structured import (
    banded_slogdet,
    sparse_slogdet,
    toeplitz_slogdet,
    tridiagonal_slogdet,
)
from ...operators import (
    Banded,
    Diagonal,
    LinearOperator,
    Product,
    Sine,
    Sparse,
    Toeplitz,
    Tridiagonal,
)
from ...operators.context import kind_of
from ...operators.rewrites import is_compact
from ...properties import POSITIVE_SEMIDEFINITE
from ..common import is_square, reaches_host, real_or_complex, to_computing_dtype, values_are_seen
from ..diagonal import diag
from ..diagonal.bands import last_minor
from ..solve.cost import sparse_work
from ..solve.elimination import report_fallback
from ..solve.families import SMALL_SPARSE
from . import (
    Determinant,
    in_dtype_of,
    one,
    report_determinant,
    sign_and_logarithm,
    slogdet,
)
from .rules import by_tables, from_host, rows_of

# Determinants by elimination on the host: of tridiagonal, banded, sparse and Toeplitz matrices.
# More rules of `slogdet`.
#
# Under tracing, and where derivatives are recorded, the base case takes them; tridiagonal and
# sparse ones have rules for that too.


SPARSE = 10  # times as many entries as are stored a matrix must have to count as sparse there
LARGE_TOEPLITZ = 512  # rows from which elimination of displacements is faster than LU


@rule(slogdet, Tridiagonal, when=values_are_seen, like=one)
def slogdet_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = ± ∏ u_ii for T = P L U, elimination along three diagonals"""
    xp = A.xp
    if (levels := levels_on_device(A)) is not None:
        # in double precision, since what a pivot is off by counts n times
        wide = xp.result_type(A.dtype, xp.float64)
        lower, diag, upper = (xp.astype(d, wide) for d in A.diagonals)
        found = slogdet_of_diagonal(xp, pivots(xp, lower, diag, upper, levels))
        return report_determinant(xp, *in_dtype_of(A, *found))
    return by_tables(A, tridiagonal_slogdet, A.lower, A.diag, A.upper)


@rule(slogdet, Tridiagonal)
def slogdet_traced_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = θ_n, θ_i = d_i θ_(i-1) - l_(i-1) u_(i-1) θ_(i-2): a product of n matrices of 2 x 2"""
    if not A.shape[-1]:
        return one(A)
    minor, logarithm = last_minor(A.xp, A.xp.broadcast_to(A.diag, A.shape[:-1]), A.lower * A.upper)
    sign, last = report_determinant(A.xp, *slogdet_of_diagonal(A.xp, minor[..., None]))
    return sign, last + logarithm


def is_narrow_and_seen(A: Any) -> bool:
    """Whether A is square, elimination within its band cheaper than of the whole matrix, and its
    numbers can be seen."""
    return is_compact(A) and values_are_seen(A)


@rule(slogdet, Banded, when=is_narrow_and_seen, like=one)
def slogdet_banded(A: Any, method: Any) -> Determinant:
    """det B = ± ∏ u_ii for B = P L U, elimination within the band"""
    return by_tables(A, lambda *tables: banded_slogdet(tables, A.offsets, A.n), *A.diagonals)


def is_sparse_on_host(A: Any) -> bool:
    """Whether A is square, and its numbers can be seen; or a program reaches the host, where
    derivatives of elimination are cheaper than those of a dense matrix."""
    if not is_square(A) or values_are_seen(A):
        return is_square(A)
    xp, n = A.xp, A.shape[-1]
    is_sparse = n >= SMALL_SPARSE and SPARSE * A.nnz <= n * n
    return is_sparse and not is_polynomial() and reaches_host(xp, A.data)


@rule(slogdet, Sparse, when=is_sparse_on_host, cost=sparse_work, like=one)
def slogdet_sparse(A: Any, method: Any) -> Determinant:
    """det S = ± ∏ u_ii for P S Q = L U, which stay sparse"""
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    if not A.shape[-1]:
        return one(A)
    if values_are_seen(A):
        rows = rows_of(A, A.data)
        return from_host(A, [sparse_slogdet(data, A.structure, positive) for (data,) in rows])
    data = to_computing_dtype(A.xp, A.data)
    found = slogdet_on_host(A._replace(data=data), positive)
    return report_determinant(A.xp, *in_dtype_of(A, *found))


def is_large_and_seen(A: LinearOperator) -> bool:
    """Whether A is square, so large that the dense factorisation is slower, and its numbers can
    be seen."""
    return is_square(A) and A.shape[-1] >= LARGE_TOEPLITZ and values_are_seen(A)


@rule(
    slogdet,
    Toeplitz,
    when=is_large_and_seen,
    cost=lambda A: Cost(
        40.0 * A.shape[-1] * math.prod(A.shape[:-1]), 160.0 * math.prod(A.shape[:-1])
    ),
    like=one,
)
def slogdet_toeplitz(A: Any, method: Any) -> Any:
    """det T = det C det D for C = F T D F^H, which is like Cauchy's matrix: pivoted elimination
    of its displacement, O(n^2)"""
    row = A.xp.conj(A.col) if A.row is None else A.row
    found = [toeplitz_slogdet(*each) for each in rows_of(A, A.col, row)]
    if all(reliable for *_, reliable in found):
        return from_host(A, [determinant for *determinant, _ in found])
    report_fallback("the displacement grew during its elimination")
    return sign_and_logarithm(A, method)


# Rules for the sine transform and for what it diagonalises: entries and determinants in closed
# form.


@rule(diag, Sine)
def diag_sine(A: Any, method: Any) -> Array:
    """diag(S)_j = (2 / (n + 1))^1/2 sin(π j^2 / (n + 1)), a Kronecker product over the grid"""
    # j^2 mod 2 (n + 1) in integers, so that the angles are small and exact
    lines = [
        np.sin(np.pi * (np.arange(1, n + 1) ** 2 % (2 * n + 2)) / (n + 1)) * math.sqrt(2 / (n + 1))
        for n in A.grid
    ]
    return A.xp.asarray(reduce(np.kron, lines), **kind_of(A))


@rule(slogdet, Sine)
def slogdet_sine(A: Any, method: Any) -> Determinant:
    """det S = (-1)^((n - t) / 2): its eigenvalues are 1 and -1, and its trace t is the product
    of n_i mod 2 over the grid"""
    trace = math.prod(size % 2 for size in A.grid)
    sign, logarithm = one(A)
    return sign * (-1) ** ((A.shape[-1] - trace) // 2), logarithm


@rule(diag, Product[Sine, Diagonal, Sine])
def diag_of_sines(A: Any, method: Any) -> Array:
    """diag(S diag(d) S)_j = Σ_k d_k (1 - cos(2π j k / (n + 1))) / (n + 1), a Fourier transform
    along each axis of the grid"""
    S, D, R = A.operands
    if S.grid != R.grid or 0 in A.shape:
        return diag.base(A, method)
    xp, batch = A.xp, A.batch_shape
    values = xp.reshape(xp.astype(D.d, A.dtype), (*batch, *S.grid))
    for axis in range(-len(S.grid), 0):
        line = xp.moveaxis(values, axis, -1)
        zero = xp.zeros((*line.shape[:-1], 1), **kind_of(line))
        padded = xp.concat([zero, line], axis=-1)
        # exactly real for real d but for rounding
        cosines = 0.5 * (xp.fft(padded) + xp.ifft(padded) * padded.shape[-1])
        cosines = real_or_complex(cosines, line.dtype)
        values = xp.moveaxis((cosines[..., :1] - cosines[..., 1:]) / padded.shape[-1], -1, axis)
    return xp.reshape(values, (*batch, A.shape[-1]))
