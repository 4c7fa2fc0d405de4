"""The diagonal of the inverse of a tridiagonal matrix T, by pivots from both ends.

    (T^-1)_ii = 1 / (p_i + q_i - t_ii)
    p_i = t_ii - s_(i-1) / p_(i-1)      the pivots of elimination from above
    q_i = t_ii - s_i / q_(i+1)          those from below, with s_i = t_(i,i+1) t_(i+1,i)

Each recurrence is exact for numbers s that differ by a few roundings, however small a pivot is, so the
error is what the condition number allows. The doublings of `_minors.py` have no such bound: at n = 20,000
they lose two digits more. They serve torch where values cannot be seen or a pivot is nearly zero.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ..backends import Array
from ._arrays import is_watched, quiet, seen, wide
from ._minors import leading_minors
from ._values import report_values

FEW_MATRICES = 16  # eliminated one by one: Python's numbers are quicker than short arrays
SMALLEST_PIVOT = 1e-300  # of a matrix whose largest entry is 1
SAFE_PIVOT = 1e-4  # of such a matrix: above it the pivots have derivatives


def inverse_diagonal(xp: Any, lower: Array, d: Array, upper: Array) -> Array:
    """Compute diag(T^-1); the main diagonal d has the batch shape of the whole."""
    d = wide(xp, d)
    scale = xp.stop_gradient(reduce(xp.maximum, [_largest(xp, x) for x in (lower, d, upper)]))
    scale = xp.where(xp.logical_and(scale > 0, xp.isfinite(scale)), scale, 1)[..., None]
    d, s = d / scale, (lower / scale) * (upper / scale)  # so that s does not over- or underflow
    s = xp.astype(xp.broadcast_to(s, (*d.shape[:-1], s.shape[-1])), d.dtype)
    if not (is_watched(xp, d) or is_watched(xp, s)):
        numerator, denominator = 1, xp.asarray(sum(_on_host(xp, d, s)), dtype=d.dtype, device=xp.device_of(d)) - d
    elif xp.name == "jax":
        numerator, denominator = _quotient(d, *_scan(xp, d, s), *_scan(xp, d, s, reverse=True))
    else:
        numerator, denominator = _differentiable_quotient(xp, d, s)
    report_values(xp, denominator)
    with quiet(xp):
        return numerator / denominator / scale


def _largest(xp: Any, x: Array) -> Array:
    nothing = xp.zeros((*x.shape[:-1], 1), dtype=xp.real_dtype(x.dtype), device=xp.device_of(x))
    return xp.max(xp.concat([nothing, xp.abs(x)], axis=-1), axis=-1)


def _quotient(d: Array, a: Array, b: Array, e: Array, f: Array) -> tuple[Array, Array]:
    """1 / (p + q - d) for p = a / b and q = e / f, as numerator and denominator: b and f may be zero."""
    return b * f, a * f + e * b - d * b * f


# ------------------------------------------------------------------------------------ on the host


def _on_host(xp: Any, d: Array, s: Array) -> tuple[Any, Any]:
    """The pivots p and q in double precision."""
    d, s = seen(xp, d), seen(xp, s)
    kind = np.complex128 if np.iscomplexobj(d) or np.iscomplexobj(s) else np.float64
    n = d.shape[-1]
    count = d.size // n if n else 0
    d, s, shape = np.asarray(d, kind).reshape(count, n), np.asarray(s, kind).reshape(count, max(n - 1, 0)), d.shape
    with np.errstate(all="ignore"):
        if count > FEW_MATRICES:
            p, q = _pivots_of_many(d, s), _pivots_of_many(d[:, ::-1], s[:, ::-1])[:, ::-1]
        else:
            pairs = list(zip(d.tolist(), s.tolist()))
            p = np.array([_pivots(x, y) for x, y in pairs], kind)
            q = np.array([_pivots(x[::-1], y[::-1])[::-1] for x, y in pairs], kind)
    return p.reshape(shape), q.reshape(shape)


def _pivots(d: list[Any], s: list[Any]) -> list[Any]:
    """p_i = d_i - s_(i-1) / p_(i-1), where a zero is divided by as if it were a very small number."""
    pivots, p = [], 1.0
    for x, y in zip(d, [0.0, *s]):
        p = x - y / (p if p != 0 else SMALLEST_PIVOT)
        pivots.append(p)
    return pivots


def _pivots_of_many(d: Any, s: Any) -> Any:
    """The same of many matrices at once."""
    p = np.array(d)
    for i in range(1, d.shape[-1]):
        before = p[:, i - 1]
        p[:, i] -= s[:, i - 1] / np.where(before != 0, before, SMALLEST_PIVOT)
    return p


# ------------------------------------------------------------------------------------ traced and differentiated


def _scan(xp: Any, d: Array, s: Array, reverse: bool = False) -> tuple[Array, Array]:
    """Numerators and denominators of the pivots: leading minors (θ_i, θ_(i-1)), up to a factor of each pair."""
    like = {"dtype": d.dtype, "device": xp.device_of(d)}
    nothing, one = (xp.full((*d.shape[:-1], 1), float(x), **like) for x in (0, 1))
    before = xp.concat([s, nothing] if reverse else [nothing, s], axis=-1)[..., : d.shape[-1]]

    def step(minors: Any, x: Array, y: Array) -> Any:
        a, b = x * minors[0] - y * minors[1], minors[0]  # θ_i = d_i θ_(i-1) - s_(i-1) θ_(i-2)
        size = xp.stop_gradient(xp.maximum(xp.abs(a), xp.abs(b)))
        size = xp.where(size > 0, size, 1)
        return (a / size, b / size), (a / size, b / size)

    rows = (xp.moveaxis(x, -1, 0) for x in (d, before))
    a, b = xp.scan(step, (one[..., 0], nothing[..., 0]), *rows, reverse=reverse)
    return xp.moveaxis(a, 0, -1), xp.moveaxis(b, 0, -1)


def _differentiable_quotient(xp: Any, d: Array, s: Array) -> tuple[Any, Array]:
    """The same in torch, where a loop over the rows would be slow: pivots from the host, and their derivatives."""

    def flip(x: Array) -> Array:
        return xp.flip(x, axis=-1)

    p = None
    if not (xp.is_traced(d) or xp.is_traced(s)):
        known = _on_host(xp, xp.stop_gradient(d), xp.stop_gradient(s))
        p, q = (xp.asarray(x, dtype=d.dtype, device=xp.device_of(d)) for x in known)
        if min(float(np.abs(x).min(initial=1)) for x in known) > SAFE_PIVOT:
            return 1, _with_derivatives(xp, d, s, p) + flip(_with_derivatives(xp, flip(d), flip(s), flip(q))) - d
    from_below = map(flip, leading_minors(xp, flip(d), flip(s)))
    numerator, denominator = _quotient(d, *leading_minors(xp, d, s), *from_below)
    if p is not None:  # the derivatives are those of the minors, the value is that of the pivots
        numerator = numerator + xp.stop_gradient(denominator / (p + q - d) - numerator)
    return numerator, denominator


def _with_derivatives(xp: Any, d: Array, s: Array, p: Array) -> Array:
    """Pivots that are constants, as functions of d and s.

    A step of Newton's method for d_i - s_(i-1) / p_(i-1) - p_i = 0 does not move the value, and gives it the
    first derivatives; a second step gives those up to the third.
    """
    ones = xp.ones(d.shape, dtype=d.dtype, device=xp.device_of(d))
    for _ in range(2):
        before = p[..., :-1]
        residual = d - p - xp.concat([0 * d[..., :1], s / before], axis=-1)
        p = p + xp.solve_tridiagonal(-s / before**2, ones, 0 * s, residual[..., None])[..., 0]
    return p
