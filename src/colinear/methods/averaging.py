"""Means of independent samples with their standard errors, drawn in blocks: a fixed number, or until a tolerance is met.

The mean and the sum of squares about it are merged block by block (Chan, Golub and LeVeque 1983). Samples that failed are left out,
and counted in the status.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

from .. import backends
from ..backends import Array
from ..info import Status

FEWEST = 16  # samples before a standard error is believed


class Mean(NamedTuple):
    """What the samples so far say."""

    count: Array  # (*batch,), those that did not fail
    mean: Array  # (*batch, *event)
    spread: Array  # the sum of |x - mean|^2, of the same shape
    status: Any  # the worst so far, a number
    drawn: Any  # all of them
    block: Any


Sample = Callable[[Any, int], tuple[Array, Array, Any]]


def quantile(confidence: float, freedom: Any) -> Any:
    """Student's t: |t| is below this with the given probability (by the expansion of Cornish and Fisher)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def standard_error(xp: Any, count: Array, spread: Array, event: int = 0) -> Array:
    """Of the mean of so many samples, infinite for a single one; `event` dimensions of the spread follow those of the count."""
    count = count[(..., *(None,) * event)]
    known = count > 1
    error = xp.sqrt(spread / xp.where(known, count * (count - 1), 1))
    return xp.where(known, error, math.inf)


def ratio_to_goal(xp: Any, s: Mean, tol: float, confidence: float, event: int) -> Array:
    """The half width of the confidence interval over tol times the estimate: at most 1 if the tolerance is met."""
    error = standard_error(xp, s.count, s.spread, event)
    size = xp.abs(s.mean)
    if event:
        error, size = (xp.sqrt(xp.sum(x**2, axis=-1)) for x in (error, size))
    half = quantile(confidence, xp.where(s.count > 1, s.count - 1, 1)) * error
    return xp.where(half == 0, 0, half / xp.where(size > 0, tol * size, 1e-300))


def merged(xp: Any, s: Mean, X: Array, good: Array, status: Any, event: int) -> Mean:
    """With a block of samples, X of shape (*batch, *event, width), of which those marked good are counted."""
    count, mean, spread = compiled(xp.name, _numbers, event)(s.count, s.mean, s.spread, X, good)
    return Mean(
        count, mean, spread, worse(xp, s.status, status), s.drawn + X.shape[-1], s.block + 1
    )


def _numbers(
    xp: Any, event: int, count: Array, mean: Array, spread: Array, X: Array, good: Array
) -> tuple[Array, ...]:
    mask, wide = good[(..., *(None,) * event, slice(None))], (..., *(None,) * event)
    new = xp.sum(xp.astype(good, spread.dtype), axis=-1)
    total = count + new
    center = xp.sum(xp.where(mask, X, 0), axis=-1) / xp.where(new > 0, new, 1)[wide]
    inside = xp.sum(xp.where(mask, xp.abs(X - center[..., None]) ** 2, 0), axis=-1)
    step, share = center - mean, (new / xp.where(total > 0, total, 1))[wide]
    return total, mean + step * share, spread + inside + xp.abs(step) ** 2 * count[wide] * share


@functools.lru_cache(maxsize=64)
def compiled(name: str, f: Any, *static: Any) -> Any:
    """`f(xp, *static, ...)` of arrays alone, in JAX one program instead of dozens."""
    xp = backends.get(name)
    return xp.jit(functools.partial(f, xp, *static))


def worse(xp: Any, a: Any, b: Any) -> Any:
    """The larger of two statuses, numbers or traced."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    a, b = (xp.asarray(int(x)) if isinstance(x, int) else x for x in (a, b))
    return xp.maximum(a, b)


def averaged(
    xp: Any,
    sample: Sample,
    first: Mean,
    *,
    most: int,
    width: int,
    event: int,
    tol: float | None,
    confidence: float,
    reach: float,
    traced: bool,
) -> tuple[Mean, Any]:
    """The mean of samples, and whether it meets the tolerance.

    Parameters
    ----------
    sample : callable
        `sample(i, width)`: the i-th block, (*batch, *event, width), which of them worked, and the worst status.
    first : Mean
        Of no samples.
    most, width : int
        Samples at most, and in a block.
    event : int
        0 for numbers, 1 for vectors.
    tol : float, optional
        Drawn are `most` if it is None.
    reach : int
        So many products would give the exact answer: a run that is seen to need more ends.
    """
    state = first
    if tol is None:
        for start in range(0, most, width):
            state = merged(xp, state, *sample(state.block, min(width, most - start)), event)
        return state, True
    width = min(width, most)

    def step(s: Mean) -> Mean:
        return merged(xp, s, *sample(s.block, width), event)

    def is_open(s: Mean) -> Any:
        ratio = ratio_to_goal(xp, s, tol, confidence, event)
        ratio = xp.where(s.count >= min(FEWEST, most), ratio, 2)
        hopeless = xp.logical_and(s.count >= min(FEWEST, most), ratio**2 * s.count > reach)
        return xp.any(xp.logical_and(ratio > 1, xp.logical_not(hopeless)))

    def going(s: Mean) -> Any:
        return (
            xp.logical_and(is_open(s), s.drawn + width <= most)
            if traced
            else s.drawn + width <= most and bool(is_open(s))
        )

    if traced:
        begin = first._replace(status=xp.asarray(0), drawn=xp.asarray(0), block=xp.asarray(0))
        state = xp.while_loop(going, step, begin)
    else:
        while going(state) or state.drawn == 0:
            state = step(state)
    met = xp.all(ratio_to_goal(xp, state, tol, confidence, event) <= 1)
    return state, met if traced else bool(met)


def worst_of(xp: Any, good: Array) -> Any:
    """SUCCESS or NONFINITE, as a number where it can be seen."""
    fine = xp.all(good)
    if xp.is_traced(fine):
        return xp.where(fine, int(Status.SUCCESS), int(Status.NONFINITE))
    return int(Status.SUCCESS) if bool(fine) else int(Status.NONFINITE)
