"""The determinant of a Hermitian matrix from LAPACK's packed L D L^H (sytrf, hetrf), for the backends that have it."""

from __future__ import annotations

from typing import Any


def packed_slogdet(xp: Any, packed: Any, pivots: Any) -> tuple[Any, Any]:
    """Sign and log|det|: D has blocks of size 1, and of size 2 where two pivots < 0 stand together."""
    d = xp.real(xp.diagonal(packed))
    paired = pivots < 0
    first = xp.logical_and(paired, xp.cumsum(xp.astype(paired, pivots.dtype), axis=-1) % 2 == 1)
    below = xp.concat([xp.abs(xp.diagonal(packed, -1)), d[..., :1]], axis=-1)
    # det [[a, e*], [e, c]] = |e|^2 ((a/|e|) (c/|e|) - 1); |e| is the scale of its block, so nothing overflows.
    scale = xp.where(first, below, 1)
    pair = (d / scale) * (xp.roll(d, -1, axis=-1) / scale) - 1
    value = xp.where(paired, xp.where(first, pair, 1), d)
    return xp.prod(xp.sign(value), axis=-1), xp.sum(xp.log(xp.abs(value)) + 2 * xp.log(scale), axis=-1)
