"""Circulant matrices: each column is the one before, rotated by one; diagonal in the Fourier basis."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from .base import LinearOperator, conjugate_leaves
from .context import as_array, broadcast_batches
from .fourier import circular_convolution, convolution_flops


class Circulant(LinearOperator):
    """The square matrix with `C[i, j] = col[(i - j) mod n]`. A product with a vector costs O(n log n).

    Parameters
    ----------
    col : array, (*batch, n)
        The first column.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Circulant(np.array([1.0, 2.0, 3.0])).to_dense()
    array([[1., 3., 2.],
           [2., 1., 3.],
           [3., 2., 1.]])
    """

    col: Array

    def __new__(cls, col: Any) -> Any:
        return cls._of(as_array(col, "Circulant: col", min_ndim=1))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.col.shape, self.col.shape[-1])

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        # The first row: col[-k mod n].
        return Circulant._of(self.xp.roll(self.xp.flip(self.col, axis=-1), 1, axis=-1))

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        n = self.shape[-1]
        if n == 0:
            batch = broadcast_batches(self.shape[:-2], X.shape[:-2])
            return xp.zeros((*batch, 0, X.shape[-1]), dtype=xp.result_type(self.dtype, X.dtype), device=xp.device_of(X))
        return circular_convolution(xp, self.col, X, (n,))

    def _to_dense(self) -> Array:
        xp = self.xp
        n = self.shape[-1]
        if n == 0:
            return xp.zeros(self.shape, dtype=self.dtype, device=self._context.device)
        which = (np.arange(n)[:, None] - np.arange(n)) % n
        entries = xp.take(self.col, xp.asarray(which.reshape(-1), device=self._context.device), axis=-1)
        return xp.reshape(entries, self.shape)

    @property
    def _flops(self) -> float:
        return convolution_flops(self.col.shape[-1:], real=not self.is_complex)
