"""A diagonal matrix."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..properties import SYMMETRIC
from .base import LinearOperator, conjugate_leaves
from .context import as_array
from .memo import memo


class Diagonal(LinearOperator):
    """diag(d). A product costs n flops.

    Parameters
    ----------
    d : array of shape (*batch, n)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Diagonal([1.0, 2.0]) @ np.array([3.0, 4.0])
    array([3., 8.])
    """

    d: Array

    def __new__(cls, d: Any) -> Diagonal:
        return cls._of(as_array(d, "Diagonal", min_ndim=1))

    @memo
    def shape(self) -> tuple[int, ...]:
        shape = self.d.shape
        return (*shape, shape[-1])

    def _infer(self) -> int:
        return SYMMETRIC  # and so self-adjoint, if real

    def _transpose(self) -> LinearOperator:
        return self

    _adjoint = _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return self.d[..., None] * X

    def _matvec(self, x: Array) -> Array:
        return self.d * x

    def _to_dense(self) -> Array:
        return self.xp.make_diagonal(self.d)

    @property
    def _flops(self) -> float:
        return self.d.shape[-1]

    def _expression(self) -> str:
        return f"Diagonal({'x'.join(map(str, self.d.shape))})"
