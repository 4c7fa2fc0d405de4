"""Orthonormal columns as a chain of small unitary matrices, each acting on the last rows of the one before: Q of a banded A = Q R."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..properties import STIEFEL, UNITARY
from .base import LinearOperator, conjugate_leaves
from .context import broadcast_batches
from .fourier import pad_end


class UnitaryChain(LinearOperator):
    """The first n columns of Q_1 Q_2 ... Q_c, where Q_i acts on w rows from row (i - 1)(w - overlap) on, cut to m rows.

    A product costs 2 c w^2 flops for each column, one matrix of the chain after the other.

    Attributes
    ----------
    blocks : array, (*batch, c, w, w)
    overlap : int
        How many rows neighbours share.
    m, n : int
        The size. Rows past the chain are zero.
    """

    blocks: Array
    overlap: int
    m: int
    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.blocks.shape[:-3], self.m, self.n)

    def _infer(self) -> int:
        return UNITARY if self.m == self.n else STIEFEL

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        """Q_1 (Q_2 (... (Q_c X))): what Q_i leaves in its first rows goes to the one before it."""
        xp, blocks, lapping = namespace_of(X), self.blocks, self.overlap

        def step(carry: Array, Q: Array, rows: Array) -> tuple[Array, Array]:
            Y = xp.matmul(Q, xp.concat([rows, carry], axis=-2))
            return Y[..., :lapping, :], Y[..., lapping:, :]

        X = self._spread(xp, X)
        split = X.shape[-2] - lapping
        carry, done = self._run(xp, step, X[..., split:, :], blocks, X[..., :split, :], reverse=True)
        return self._cut(xp, xp.concat([carry, done], axis=-2), self.m)

    def _rmatmat(self, X: Array) -> Array:
        """Q_c^H (... (Q_1^H X)): what Q_i^H leaves in its last rows goes to the next."""
        xp, lapping = namespace_of(X), self.overlap
        split = self.blocks.shape[-1] - lapping

        def step(carry: Array, Q: Array, rows: Array) -> tuple[Array, Array]:
            Y = xp.matmul(Q, xp.concat([carry, rows], axis=-2))
            return Y[..., split:, :], Y[..., :split, :]

        X = self._spread(xp, X)
        adjoints = xp.conj(xp.matrix_transpose(self.blocks))
        carry, done = self._run(xp, step, X[..., :lapping, :], adjoints, X[..., lapping:, :], reverse=False)
        return self._cut(xp, xp.concat([done, carry], axis=-2), self.n)

    def _spread(self, xp: Any, X: Array) -> Array:
        """X in the dtype and batch of the result, with as many rows as the chain."""
        count, width = self.blocks.shape[-3:-1]
        X = xp.astype(X, xp.result_type(X.dtype, self.blocks.dtype))
        X = xp.broadcast_to(X, (*broadcast_batches(self.shape[:-2], X.shape[:-2]), *X.shape[-2:]))
        return self._cut(xp, X, count * (width - self.overlap) + self.overlap)

    def _cut(self, xp: Any, X: Array, rows: int) -> Array:
        return X[..., :rows, :] if rows <= X.shape[-2] else pad_end(xp, X, (rows,), (-2,))

    def _run(self, xp: Any, step: Any, carry: Array, blocks: Array, X: Array, reverse: bool) -> tuple[Array, Array]:
        """The recurrence over the chain: the last carry, and the rows that are done."""
        count, k = blocks.shape[-3], X.shape[-1]
        each = blocks.shape[-1] - self.overlap
        parts = xp.moveaxis(xp.reshape(X, (*X.shape[:-2], count, each, k)), -3, 0)

        def both(carry: Array, Q: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
            carry, done = step(carry, Q, rows)
            return carry, (carry, done)

        carries, done = xp.scan(both, carry, xp.moveaxis(blocks, -3, 0), parts, reverse=reverse)
        done = xp.moveaxis(done, 0, -3)
        return carries[0 if reverse else -1], xp.reshape(done, (*done.shape[:-3], count * each, k))

    @property
    def _flops(self) -> float:
        count, width = self.blocks.shape[-3:-1]
        return 2.0 * count * width**2
