"""Householder reflections, I - 2 v v^H / (v^H v)."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, UNITARY
from .base import LinearOperator, conjugate_leaves
from .context import as_array


class Householder(LinearOperator):
    """The reflection `I - 2 v v^H / (v^H v)`; v need not be normalised, and v = 0 gives the identity. A product costs O(n).

    Parameters
    ----------
    v : array, (*batch, n)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Householder(np.array([3.0, 0.0])) @ np.array([1.0, 2.0])
    array([-1.,  2.])
    """

    v: Array

    def __new__(cls, v: Any) -> Any:
        return cls._of(as_array(v, "Householder: v", min_ndim=1))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.v.shape, self.v.shape[-1])

    def _infer(self) -> int:
        return SELF_ADJOINT | UNITARY

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        return self.conj()

    def _adjoint(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        if 0 in self.v.shape or 0 in X.shape:
            xp = namespace_of(X)
            return xp.zeros((*self.v.shape[:-1], 1, 1), dtype=self.v.dtype, device=xp.device_of(X)) + X
        xp = namespace_of(X)
        w, squared = self._scaled()
        along = xp.sum(xp.conj(w) * X, axis=-2, keepdims=True)  # w^H X
        return X - w * (2 * along / squared)

    def _scaled(self) -> tuple[Array, Array]:
        """v as columns, scaled to entries of at most 1 so that v^H v cannot overflow, and its v^H v: 1 where v = 0."""
        xp = self.xp
        v = self.v[..., :, None]
        # The reflection does not depend on the scale, so neither does its derivative.
        largest = xp.stop_gradient(xp.max(xp.abs(v), axis=-2, keepdims=True))
        one = xp.ones((), dtype=largest.dtype, device=xp.device_of(v))
        w = v / xp.where(largest > 0, largest, one)
        squared = xp.sum(xp.real(xp.conj(w) * w), axis=-2, keepdims=True)
        return w, xp.where(largest > 0, squared, one)

    @property
    def _flops(self) -> float:
        return 4.0 * self.v.shape[-1]
