"""Some rows of a sparse matrix, whose indices may be traced: what minibatches of S^H S are made of.

Rows are filled up to the length of the longest, so that shapes do not depend on which rows are taken. That pays as long as their lengths
are alike.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from .base import LinearOperator
from .context import Context
from .fields import Index

WASTE = 8  # times the entries that filled-up rows may hold


class SparseRows(LinearOperator):
    """Rows of a sparse matrix: `values` and their `columns`, (*batch, b, l) and (b, l); filled up with zeros."""

    values: Array
    columns: Array
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.width)

    @property
    def _context(self) -> Context:
        xp = namespace_of(self.values)
        return Context(xp.name, self.values.dtype, xp.device_of(self.values))

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        taken = xp.take(X, xp.reshape(self.columns, (-1,)), axis=-2)
        taken = xp.reshape(taken, (*X.shape[:-2], *self.columns.shape, X.shape[-1]))
        return xp.sum(self.values[..., None] * taken, axis=-2)

    def _rmatmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        terms = xp.conj(self.values)[..., None] * X[..., None, :]  # (*batch, b, l, k)
        k, device, columns = X.shape[-1], xp.device_of(X), xp.reshape(self.columns, (-1,))
        if terms.ndim == 3:  # NumPy and torch add to single numbers several times as fast as to rows
            each = xp.reshape(columns[:, None] * k + xp.arange(k, device=device), (-1,))
            sums = xp.scatter_add(xp.zeros((self.width * k,), dtype=terms.dtype, device=device), each, xp.reshape(terms, (-1,)))
            return xp.reshape(sums, (self.width, k))
        terms = xp.reshape(terms, (*terms.shape[:-3], -1, k))
        empty = xp.zeros((*terms.shape[:-2], self.width, k), dtype=terms.dtype, device=device)
        return xp.scatter_add(empty, columns, terms, axis=-2)

    def _to_dense(self) -> Array:
        xp = self.xp
        eye = xp.eye(self.shape[-2], dtype=self.values.dtype, device=xp.device_of(self.values))
        return xp.conj(xp.matrix_transpose(self._rmatmat(eye)))

    @property
    def _flops(self) -> float:
        return 2.0 * self.values.shape[-2] * self.values.shape[-1]


def rows_are_alike(structure: Any) -> bool:
    """Whether filling up all rows to the longest wastes little."""
    if not structure.nnz:
        return False
    return bool(structure.shape[0] * np.diff(structure.indptr).max() <= WASTE * structure.nnz)


def taken_rows(data: Array, structure: Any, indices: Array) -> SparseRows:
    """The rows of these indices."""
    xp = namespace_of(data)
    places, columns, filled = _padded(structure)
    device = xp.device_of(data)
    where, columns, filled = (xp.take(xp.asarray(x.on(xp, device)), indices, axis=0) for x in (places, columns, filled))
    flat = xp.take(data, xp.reshape(where, (-1,)), axis=-1)
    values = xp.reshape(flat, (*data.shape[:-1], *where.shape)) * xp.astype(filled, data.dtype)
    return SparseRows._of(values, columns, structure.shape[1])


def _padded(structure: Any) -> tuple[Index, Index, Index]:
    """For each row the places of its entries, their columns, and 1 or, behind its end, 0; (m, l)."""
    found = structure.memo.get("padded rows")
    if found is None:
        lengths = np.diff(structure.indptr)
        steps = np.arange(lengths.max())
        filled = steps < lengths[:, None]
        places = np.where(filled, np.asarray(structure.indptr)[:-1, None] + steps, 0)
        found = structure.memo["padded rows"] = (Index(places), Index(structure.columns[places] * filled), Index(filled))
    return found
