"""The inverse of families: known, by substitution, by Fourier transforms, along bands."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import rule
from ..info import Info, Status, report
from ..operators.banded import Banded, band_widths, natural_length
from ..operators.base import LinearOperator
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.diagonal import Diagonal
from ..operators.factors import TriangularFactor
from ..operators.fft import FFT
from ..operators.fourier import pad_end
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.projection import Projection
from ..operators.rewrites import is_compact
from ..operators.sine import Sine
from ..operators.structured_factors import (
    BandedFactor,
    FourierFactor,
    TridiagonalFactor,
)
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ._arrays import quiet, square_size
from ._elimination import is_left_to_residual
from ._residuals import MARGIN, column_norms, probe
from ._values import reciprocal, reciprocal_spectrum, report_status, report_values, reports_nonfinite
from .inverse import inv, kept


@rule(inv, Identity)
def inv_identity(A: Any, method: Any) -> LinearOperator:
    """I^-1 = I"""
    return A


@rule(inv, ScaledIdentity)
def inv_scaled_identity(A: Any, method: Any) -> LinearOperator:
    """(c I)^-1 = c^-1 I"""
    return kept(A, A._replace(c=reciprocal(A.c)))


@rule(inv, Diagonal)
def inv_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(d)^-1 = diag(1 / d)"""
    return kept(A, Diagonal._of(reciprocal(A.d)))


@rule(inv, Permutation)
def inv_permutation(A: Any, method: Any) -> LinearOperator:
    """P^-1 = P^T"""
    return A.T


@rule(inv, FFT | Sine | Householder)
@reports_nonfinite
def inv_transform(A: Any, method: Any) -> LinearOperator:
    """Q^-1 = Q^H"""
    return A.H


@rule(inv, Projection)
@reports_nonfinite
def inv_projection(A: Any, method: Any) -> LinearOperator:
    """Q Q^H is its own pseudoinverse, and singular unless Q is square"""
    n, rank = A.Q.shape[-2:]
    if rank < n:
        report(Info(Status.SINGULAR, message=f"a projection of rank {rank}, smaller than {n}"))
    return A


def rank_is_below_size(A: Any) -> bool:
    """Whether the factors are too narrow for an invertible matrix."""
    return A.shape[-1] == A.shape[-2] and min(A.U.shape[-1], (A.U if A.V is None else A.V).shape[-1]) < A.shape[-1]


@rule(inv, LowRank, when=rank_is_below_size)
def inv_low_rank(A: Any, method: Any) -> LinearOperator:
    """U C V^H of a rank below n is singular: its pseudoinverse, and a status that says so"""
    from .least_squares import pinv

    report(Info(Status.SINGULAR, message=f"its rank is at most {A.U.shape[-1]}, smaller than {A.shape[-1]}"))
    return pinv(A)


@rule(inv, Triangular)
@reports_nonfinite
def inv_triangular(A: Any, method: Any) -> LinearOperator:
    """T^-1 b by substitution"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    if not A.unit:
        report_values(A.xp, A.xp.diagonal(A.A))
    return Inverse(A, TriangularFactor._of(A.A, A.lower, A.unit, "N"))


def wraps_around(A: Any) -> bool:
    """Whether the boundary is periodic."""
    return bool(A.boundary == "wrap")


@rule(inv, Circulant)
def inv_circulant(A: Any, method: Any) -> LinearOperator:
    """C^-1 = F^-1 diag(1 / F c) F, by fast Fourier transforms"""
    return _by_fourier(A, A.col, A.shape[-1:]) if A.shape[-1] else A


@rule(inv, Convolution, when=wraps_around)
def inv_convolution(A: Any, method: Any) -> LinearOperator:
    """C^-1 = F^-1 diag(1 / F k) F, by fast Fourier transforms over the grid"""
    return A if 0 in A.grid else _by_fourier(A, periodic_kernel(A), A.grid)


def periodic_kernel(A: Any) -> Array:
    """The first column of a periodic convolution, as a grid: its transform gives the eigenvalues."""
    kernel, origin = A._fitted()
    axes = tuple(range(-len(A.grid), 0))
    return A.xp.roll(pad_end(A.xp, kernel, A.grid, axes), tuple(-o for o in origin), axis=axes)


def _by_fourier(A: Any, column: Array, grid: tuple[int, ...]) -> LinearOperator:
    xp, real, axes = A.xp, not A.is_complex, tuple(range(-len(grid), 0))
    symbol = (xp.rfftn if real else xp.fftn)(column, axes=axes)
    frequencies = xp.reshape(symbol, (*A.batch_shape, -1))
    return Inverse(A, FourierFactor._of(xp.reshape(reciprocal_spectrum(xp, frequencies), symbol.shape), tuple(grid), real))


@rule(inv, Tridiagonal, direct=True)
def inv_tridiagonal(A: Any, method: Any) -> LinearOperator:
    """T^-1 b by elimination along three diagonals, in linear time"""
    factor = TridiagonalFactor._of(A.lower, A.diag, A.upper)
    return judged_by_growth("inv_tridiagonal", A, factor, (A.lower, A.diag, A.upper))


@rule(inv, Banded, when=is_compact, direct=True)
def inv_banded(A: Any, method: Any) -> LinearOperator:
    """B^-1 b by elimination within the band"""
    return judged_by_growth("inv_banded", A, _banded_factor(A), A.diagonals)


def _banded_factor(A: Any) -> LinearOperator:
    xp, (lower, upper), n = A.xp, band_widths(A), A.n
    by_offset = dict(zip(A.offsets, A.diagonals))

    def row(k: int) -> Array:  # the k-th diagonal by columns: ab[u - k, j] = A[j - k, j]
        d = by_offset.get(k)
        zeros = [xp.zeros(size, dtype=A.dtype, device=A._context.device) for size in (max(k, 0), n)]
        if d is None:
            return xp.broadcast_to(zeros[1], (*A.batch_shape, n))
        d = xp.broadcast_to(d, (*A.batch_shape, natural_length(k, n, n)))
        before = xp.broadcast_to(zeros[0], (*A.batch_shape, max(k, 0)))
        after = xp.zeros((*A.batch_shape, n - max(k, 0) - d.shape[-1]), dtype=A.dtype, device=A._context.device)
        return xp.concat([before, xp.astype(d, A.dtype), after], axis=-1)

    return BandedFactor._of(xp.stack([row(k) for k in range(upper, -lower - 1, -1)], axis=-2), (lower, upper))


def judged_by_growth(rule: str, A: LinearOperator, factor: LinearOperator, entries: Any) -> LinearOperator:
    """The inverse by `factor`, found by this rule; reports if it grows, unless that is left to the residual of a solve."""
    if not is_left_to_residual(rule):
        report_growth(A, factor, entries)
    return Inverse(A, factor)


def report_growth(A: LinearOperator, factor: LinearOperator, entries: Any) -> Array:
    """Report SINGULAR where A^-1 applied to a vector without structure grows as the inverse of a singular matrix does.

    `entries`: arrays that hold the entries of A. Returns the growth, 1 where A is singular to working accuracy.
    """
    xp, n = A.xp, A.shape[-1]
    if 0 in A.shape:
        return xp.zeros(())
    with quiet(xp):
        p = xp.astype(probe(xp, n, A.dtype, A._context.device), A.dtype)
        x = factor._matmat(p)
        largest = xp.max(xp.stack([xp.max(xp.abs(e)) for e in entries if 0 not in e.shape]))
        growth = MARGIN * n * xp.eps(A.dtype) * largest * column_norms(xp, x)[..., 0] / xp.vector_norm(p)
        status = xp.where(growth < 1, int(Status.SUCCESS), int(Status.SINGULAR))
        report_status(xp, xp.where(xp.isfinite(largest), status, int(Status.NONFINITE)))
    return growth
