"""A matrix of three diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array
from ..info import ShapeError
from .banded import dense_of_diagonals, multiply_diagonals
from .base import LinearOperator, conjugate_leaves
from .context import as_arrays, broadcast_batches
from .memo import memo

_OFFSETS = (-1, 0, 1)


class Tridiagonal(LinearOperator):
    """The square matrix with these three diagonals. A product costs 6 n flops, a solve O(n).

    Parameters
    ----------
    lower : array of shape (*batch, n - 1)
    diag : array of shape (*batch, n)
    upper : array of shape (*batch, n - 1)
        Batch shapes broadcast.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Tridiagonal([-1, -1], [2, 2, 2], [-1, -1])
    >>> A @ np.ones(3)
    array([1., 0., 1.])
    """

    lower: Array
    diag: Array
    upper: Array

    def __new__(cls, lower: Any, diag: Any, upper: Any) -> Tridiagonal:
        lower, diag, upper = as_arrays("Tridiagonal", lower, diag, upper, min_ndim=1)
        beside = max(diag.shape[-1] - 1, 0)
        if lower.shape[-1] != beside or upper.shape[-1] != beside:
            name, d = ("upper", upper) if lower.shape[-1] == beside else ("lower", lower)
            raise ShapeError(
                f"Tridiagonal: diag has length {diag.shape[-1]}, so {name} must have length {beside}; got {d.shape[-1]}."
            )
        if not lower.ndim == diag.ndim == upper.ndim == 1:
            broadcast_batches(lower.shape[:-1], diag.shape[:-1], upper.shape[:-1], what="Tridiagonal")
        return cls._of(lower, diag, upper)

    @memo
    def shape(self) -> tuple[int, ...]:
        n = self.diag.shape[-1]
        return (*broadcast_batches(self.lower.shape[:-1], self.diag.shape[:-1], self.upper.shape[:-1]), n, n)

    def _transpose(self) -> LinearOperator:
        return Tridiagonal._of(self.upper, self.diag, self.lower)

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return multiply_diagonals((self.lower, self.diag, self.upper), _OFFSETS, self.diag.shape[-1], X)

    def _right_matmat(self, X: Array, total: Any = None) -> Array:
        """X A^T, added to `total`, in place, if that is given."""
        if len(self.shape) > 2 or not isinstance(X, np.ndarray):
            product = LinearOperator._right_matmat(self, X)
            return product if total is None else total + product
        dtype = np.result_type(X, self.lower, self.diag, self.upper)
        Y = np.zeros(X.shape, dtype) if total is None or total.dtype != dtype else total
        block = max(1, 2**14 // max(1, X.shape[-1]))  # rows, so that the products stay in the cache
        for start in range(0, X.shape[-2], block):
            x, y = X[..., start : start + block, :], Y[..., start : start + block, :]
            y += x * self.diag
            y[..., 1:] += x[..., :-1] * self.lower
            y[..., :-1] += x[..., 1:] * self.upper
        return Y if total is None or total is Y else total + Y

    def _to_dense(self) -> Array:
        return dense_of_diagonals(self, (self.lower, self.diag, self.upper), _OFFSETS)

    @property
    def _flops(self) -> float:
        return 6.0 * self.diag.shape[-1]
