"""A control variate for log-determinants: tr(M A), which is known better than random vectors tell.

For M = P^-1 and P = F F^H + D the vectors v of a run give v^H B v beside v^H log(B) v, where B =
P^-1/2 A P^-1/2, and with a good preconditioner most of the one's deviation is that of the other.
The mean of v^H B v is tr(M A). With M = D^-1 - W W^H and the rest E = A - P, which is small,

    tr(M A) = n + tr(M E) = n + Σ_i E_ii / d_i - tr(W^H E W),

of which the diagonal is known, and the last trace is estimated from vectors W g: one product each,
where a run takes as many as it has steps.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...backends import Array, without_zeros
from ...factors.inverse import Inverse
from ...factors.structured import CorrectedDiagonal
from ...operators import LinearOperator
from ...preconditioners.base import reads_columns, split_shift
from ..diagonal import diag

PER_PROBE = 4  # vectors W g for each random vector of a run
FEWEST = 8  # runs that a regression is made of


class Known(NamedTuple):
    """A mean, (*batch,), with the square of its standard error, and the products it took."""

    mean: Array
    variance: Array
    products: int


def trace_of_preconditioned(
    A: LinearOperator, M: LinearOperator | None, generator: Any, probes: int
) -> Known | None:
    """tr(M A), where M is the inverse of a diagonal and a low rank, and the diagonal of A can be
    read; else None."""
    if not (isinstance(M, Inverse) and isinstance(M.factor, CorrectedDiagonal)):
        return None
    if probes < FEWEST or not reads_columns(split_shift(A)[0]):
        return None
    xp, W, P = A.xp, M.factor.W, M.A
    rank = W.shape[-1]
    count = min(PER_PROBE * probes, rank)
    if count < rank:
        shape = (*W.shape[:-2], rank, count)
        W = xp.matmul(W, xp.rademacher(generator, shape, dtype=W.dtype, device=xp.device_of(W)))
    rest = xp.real(xp.vecdot(W, A @ W - P @ W, axis=-2))  # y^H E y
    whole = xp.sum((xp.real(diag(A)) - xp.real(diag(P))) * xp.real(M.factor.d), axis=-1)
    total, variance = xp.sum(rest, axis=-1), 0 * whole
    if count < rank:
        mean = total / count
        spread = xp.sum((rest - mean[..., None]) ** 2, axis=-1)
        total, variance = mean, spread / (count * (count - 1))
    return Known(A.shape[-1] + whole - total, variance, count)


def controlled(
    xp: Any, forms: Array, others: Array, good: Array, known: Known
) -> tuple[Array, Array]:
    """The mean of the good `forms`, (*batch, probes), and its standard error, by regression on
    `others` beside them, whose mean is known.

    The slope comes from the same probes and makes what is left of them small, most of all where one
    has much weight h in it. So each is taken as it would be left by the slope of the others, e / (1 -
    h): HC3 (MacKinnon and White 1985).
    """
    used = without_zeros(xp, xp.sum(xp.astype(good, forms.dtype), axis=-1))

    def centred(x: Array) -> tuple[Array, Array]:
        mean = xp.sum(xp.where(good, x, 0), axis=-1) / used
        return mean, xp.where(good, x - mean[..., None], 0)

    (mean, f), (other, q) = centred(forms), centred(others)
    # the slope that makes the variance of the whole least
    size = xp.sum(q * q, axis=-1) + used * (used - 1) * known.variance
    slope = xp.sum(f * q, axis=-1) / without_zeros(xp, size)
    # what is not finite, which products of the run need not be, corrects nothing
    is_known = xp.isfinite(known.mean) & xp.isfinite(slope)
    slope, away = xp.where(is_known, slope, 0), xp.where(is_known, other - known.mean, 0)
    share = q / without_zeros(xp, size)[..., None]
    left = f - slope[..., None] * q  # e
    left = left / xp.maximum(1 - 1 / used[..., None] - share * q, xp.eps(q.dtype) ** 0.5)
    variance = xp.sum(((1 / used[..., None] - away[..., None] * share) * left) ** 2, axis=-1)
    variance = variance + xp.where(is_known, slope**2 * known.variance, 0)
    return mean - slope * away, xp.sqrt(xp.where(used > 2, variance, math.inf))
