"""Samples whose mean is the trace or the diagonal (Hutchinson 1989; Bekas, Kokiopoulou and Saad 2007), and the range that Hutch++ takes out.

For z with E[z z^H] = I: E[z^H A z] = tr A, E[conj(z) * A z] = diag A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array


def samples(xp: Any, Z: Array, Y: Array, diagonal: bool) -> Array:
    """conj(z) * A z for each column, (*batch, n, k), or its sum z^H A z, (*batch, k); single precision at least."""
    if getattr(Y.dtype, "itemsize", 4) == 2:
        Z, Y = xp.astype(Z, xp.float32), xp.astype(Y, xp.float32)
    if diagonal:
        return xp.conj(Z) * Y
    return xp.vecdot(xp.astype(Z, Y.dtype), Y, axis=-2)


def outside(xp: Any, Q: Array, X: Array) -> Array:
    """(I - Q Q^H) X."""
    return X - xp.matmul(Q, xp.matmul(xp.conj(xp.matrix_transpose(Q)), X))


def range_part(xp: Any, Q: Array, of_range: Callable[[Array], Array], diagonal: bool) -> Array:
    """tr(Q^H A Q) from `of_range` X -> A X, or diag(Q Q^H A) from X -> A^H X."""
    Y = of_range(Q)
    if diagonal:
        return xp.sum(Q * xp.conj(Y), axis=-1)
    return xp.sum(xp.conj(Q) * Y, axis=(-2, -1))
