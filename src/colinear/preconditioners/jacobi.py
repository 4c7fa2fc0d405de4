"""Jacobi's preconditioner: the inverse of the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..backends import Array
from ..functions._arrays import quiet
from ..functions.diagonal import diag
from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..properties import PD, SELF_ADJOINT
from .interface import Preconditioner


@dataclass(frozen=True)
class Jacobi(Preconditioner):
    """diag(A)^-1: makes the rows of a badly scaled A comparable. A product costs n.

    The diagonal is read off where a rule knows it, and costs n products with a matrix-free A. Of a self-adjoint A absolute values
    are taken, so that what it gives is positive definite whatever A is. Where the diagonal is zero, the inverse of its largest
    entry stands.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> M = co.Jacobi()(co.PSD([[4.0, 1.0], [1.0, 2.0]]))
    >>> M @ np.ones(2), M.isa(co.PD)
    (array([0.25, 0.5 ]), True)
    """

    def _make(self, A: Any) -> LinearOperator:
        d = diag(A)
        if not A.properties & SELF_ADJOINT:
            return Diagonal(1 / _without_zeros(A.xp, d))
        return PD(Diagonal(A.xp.astype(1 / _without_zeros(A.xp, A.xp.abs(d)), A.dtype)))


def _without_zeros(xp: Any, d: Array) -> Array:
    """d with the largest absolute value in place of what has no finite reciprocal (1 if that is zero too). NaN stays, to be seen."""
    size = xp.abs(d)
    largest = xp.max(size, axis=-1, keepdims=True) if d.shape[-1] else size
    with quiet(xp):
        usable = xp.logical_or(xp.isfinite(1 / size), xp.isnan(size))
    return xp.where(usable, d, xp.astype(xp.where(largest > 0, largest, 1), d.dtype))
