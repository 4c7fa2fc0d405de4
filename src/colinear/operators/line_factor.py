"""The inverse of a power of A ⊕ B for tridiagonal A, B of constant diagonals: transforms along the lines of B, elimination across.

Half of the transforms that diagonalising both would take (Hockney 1965). In NumPy only, whose loops run over rows.
"""

from __future__ import annotations

import numpy as np

from ..backends import Array
from .base import LinearOperator
from .bounds import bound_by_norm
from .sine import sine_transform


class LineFactor(LinearOperator):
    """(S^-1 L^-H D^-1 L^-1 S)^power, where L D L^H factors A + λ I for every eigenvalue λ of B at once.

    Attributes
    ----------
    multipliers : array, (m - 1, n)
        The diagonal below the main one of L.
    pivots : array, (m, n)
    power : int
    norm : float
        At least that of (A ⊕ B)^power.
    """

    multipliers: Array
    pivots: Array
    power: int
    norm: float

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        return bound_by_norm(self.norm, X, B)

    @property
    def shape(self) -> tuple[int, ...]:
        size = self.pivots.shape[0] * self.pivots.shape[1]
        return (size, size)

    def _matmat(self, X: Array) -> Array:
        m, n = self.pivots.shape
        batch, k = X.shape[:-2], X.shape[-1]
        grid = np.reshape(X, (*batch, m, n, k)).astype(np.result_type(X, self.pivots), copy=False)
        Y = sine_transform(grid, (-2,))
        for _ in range(self.power):
            self._eliminate(Y)
        return np.reshape(sine_transform(Y, (-2,), overwrite=True), X.shape)

    _rmatmat = _matmat  # it is real and symmetric

    def _transpose(self) -> LinearOperator:
        return self

    def _eliminate(self, Y: Array) -> None:
        """In place."""
        rows, multipliers = np.moveaxis(Y, -3, 0), self.multipliers[..., None]
        product = np.empty(rows.shape[1:], Y.dtype)
        for i in range(1, len(rows)):
            np.multiply(multipliers[i - 1], rows[i - 1], out=product)
            rows[i] -= product
        Y /= self.pivots[..., None]
        for i in range(len(rows) - 2, -1, -1):
            np.multiply(multipliers[i], rows[i + 1], out=product)
            rows[i] -= product

    @property
    def _flops(self) -> float:
        return 60.0 * self.shape[-1]
