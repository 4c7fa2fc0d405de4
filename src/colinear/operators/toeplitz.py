"""Toeplitz matrices: constant along every diagonal, multiplied by fast Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, SYMMETRIC
from .base import LinearOperator, conjugate_leaves
from .context import as_array, as_arrays, broadcast_batches
from .fourier import circular_convolution, convolution_flops, good_length


class Toeplitz(LinearOperator):
    """The matrix with `T[i, j] = col[i - j]` on and below the diagonal and `row[j - i]` above it.

    A product with a vector costs O((m + n) log(m + n)).

    Parameters
    ----------
    col : array, (*batch, m)
        The first column.
    row : array, (*batch, n), optional
        The first row. `row[0]` is ignored in favour of `col[0]`. Without it the matrix is Hermitian: `row = conj(col)`, as
        `scipy.linalg.toeplitz` has it.

    Notes
    -----
    A complex `col` alone whose first entry is not real has `row = conj(col)` too, as in SciPy, and so is not Hermitian. Where
    that entry cannot be seen (under jit, on a GPU) nothing is inferred: say `SelfAdjoint(Toeplitz(col))`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Toeplitz(np.array([2.0, -1.0, 0.0])).to_dense()
    array([[ 2., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  2.]])
    """

    col: Array
    row: Array | None

    def __new__(cls, col: Any, row: Any = None) -> Any:
        if row is None or row is col:
            col = as_array(col, "Toeplitz: col", min_ndim=1)
            xp = namespace_of(col)
            if row is not None and xp.is_complex(col):
                return cls._of(col, col)._claim(SYMMETRIC)
            return cls._of(col, None if _is_hermitian(xp, col) else xp.conj(col))
        col, row = as_arrays("Toeplitz", col, row, min_ndim=1)
        broadcast_batches(col.shape[:-1], row.shape[:-1], what="Toeplitz: col and row")
        return cls._of(col, row)

    @property
    def shape(self) -> tuple[int, ...]:
        m = self.col.shape[-1]
        if self.row is None:
            return (*self.col.shape, m)
        return (*broadcast_batches(self.col.shape[:-1], self.row.shape[:-1]), m, self.row.shape[-1])

    def _infer(self) -> int:
        return SELF_ADJOINT if self.row is None else 0

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        if self.row is None:
            return self._conj()
        if 0 in self.shape[-2:]:
            return Toeplitz._of(self.row, self.col)
        xp, batch = self.xp, self.shape[:-2]
        corner, rest = self.col[..., :1], self.row[..., 1:]
        first = [xp.broadcast_to(part, (*batch, part.shape[-1])) for part in (corner, rest)]
        return Toeplitz._of(xp.concat(first, axis=-1), self.col)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        m, n = self.shape[-2:]
        if m == 0 or n == 0:
            batch = broadcast_batches(self.shape[:-2], X.shape[:-2])
            return xp.zeros((*batch, m, X.shape[-1]), dtype=xp.result_type(self.dtype, X.dtype), device=xp.device_of(X))
        # (T x)[i] = sum_j diagonals[n - 1 + i - j] x[j]: rows n-1 to n+m-2 of a convolution, long enough that what wraps
        # around misses them.
        product = circular_convolution(xp, self._diagonals(), X, (good_length(m + n - 1),))
        return product[..., n - 1 : n - 1 + m, :]

    def _diagonals(self) -> Array:
        """The value of each diagonal, from the upper right corner to the lower left one: (*batch, n - 1 + m)."""
        xp, batch = self.xp, self.shape[:-2]
        row = xp.conj(self.col) if self.row is None else self.row
        parts = [xp.broadcast_to(part, (*batch, part.shape[-1])) for part in (xp.flip(row[..., 1:], axis=-1), self.col)]
        return xp.concat(parts, axis=-1)

    def _to_dense(self) -> Array:
        xp = self.xp
        m, n = self.shape[-2:]
        if m == 0 or n == 0:
            return xp.zeros(self.shape, dtype=self.dtype, device=self._context.device)
        which = np.arange(m)[:, None] - np.arange(n) + (n - 1)
        entries = xp.take(self._diagonals(), xp.asarray(which.reshape(-1), device=self._context.device), axis=-1)
        return xp.reshape(entries, self.shape)

    @property
    def _flops(self) -> float:
        m, n = self.shape[-2:]
        return convolution_flops((good_length(max(m + n - 1, 1)),), real=not self.is_complex)


def _is_hermitian(xp: Any, col: Array) -> bool:
    """Whether conj(col) as the row gives a Hermitian matrix: is the diagonal known to be real?"""
    if not xp.is_complex(col) or col.shape[-1] == 0:
        return True
    corner = xp.peek(col[..., 0])
    return corner is not None and not np.any(np.imag(corner))
