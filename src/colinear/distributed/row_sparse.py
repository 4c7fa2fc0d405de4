"""A sparse matrix by blocks of rows, one block for each device."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..dispatch import rule
from ..functions import diag
from ..operators import LinearOperator, Sparse
from ..operators.banded import natural_length
from ..operators.context import as_one_block, kind_of
from ..operators.divided import Spread, with_halos
from ..operators.sparse import SparseRows, SparseStructure, from_coordinates
from ..operators.tree import memo

WASTE = 4  # times the entries that rows of equal length may hold


class RowSparse(LinearOperator, init=False):
    """A square sparse matrix whose rows, filled up to one length, are cut over the devices of a
    mesh: what `shard` makes of `Sparse` and `Banded`.

    A product exchanges with the two neighbours the entries of x that few diagonals reach, or else
    gathers x. Its adjoint sends as much.
    """

    data: Array  # (n, l): the values of each row, by diagonals or in the order of its columns
    structure: SparseStructure  # of the sparse matrix
    offsets: tuple[int, ...] | None  # of the diagonals; None where x is gathered
    spread: Spread | None

    @memo
    def shape(self) -> tuple[int, ...]:
        return self.structure.shape

    def _matmat(self, X: Array) -> Array:
        if self._context.backend == "numpy":  # which has no meshes
            return self.as_sparse() @ X
        multiply = backends.program(self.backend, _multiply_on_mesh)
        if X.ndim > 2:
            return as_one_block(lambda X: multiply(self, X), X)
        return multiply(self, X)

    def as_sparse(self) -> Any:
        """The sparse matrix."""
        xp, where = self.xp, _places(self.structure, self.offsets, self.data.shape[1])
        return Sparse._of(xp.take(xp.reshape(self.data, (-1,)), where, axis=0), self.structure)

    def _to_dense(self) -> Array:
        return self.as_sparse()._dense()

    @property
    def _flops(self) -> float:
        return 2.0 * self.data.shape[0] * self.data.shape[1]

    def _expression(self) -> str:
        how = "halos" if self.offsets else "by rows"
        return f"RowSparse({'x'.join(map(str, self.shape))}, nnz={self.structure.nnz}, {how})"


@rule(diag, RowSparse)
def diag_row_sparse(A: Any, method: Any) -> Any:
    """diag(A): the main diagonal, where it is stored by itself"""
    if A.offsets is None:
        return diag(A.as_sparse(), method)
    if 0 not in A.offsets:
        return A.xp.zeros((A.shape[0],), **kind_of(A))
    return A.data[:, A.offsets.index(0)]


def rows_of(A: Any, parts: int) -> RowSparse | None:
    """A sparse or banded matrix by rows, for so many devices; None where rows of equal length
    would hold many times as many entries."""
    data, structure = (A.data, A.structure) if isinstance(A, Sparse) else _entries(A)
    n, xp = structure.shape[0], namespace_of(data)
    longest = int(np.diff(structure.indptr).max(initial=0))
    offsets: Any = tuple(np.unique(structure.columns.astype(np.int64) - structure.rows).tolist())
    reach = max(map(abs, offsets), default=0)
    if reach > n // parts or n * len(offsets) > WASTE * structure.nnz:
        offsets = None
        if n * longest > WASTE * structure.nnz:
            return None
    if not structure.nnz:
        return None
    width = longest if offsets is None else len(offsets)
    empty = xp.zeros((n * width,), **kind_of(data))
    filled = xp.scatter_add(empty, _places(structure, offsets, width), data)
    return RowSparse._of(xp.reshape(filled, (n, width)), structure, offsets, None)


def _places(structure: SparseStructure, offsets: Any, width: int) -> Any:
    """Where each entry of a sparse matrix stands in the flat data of its rows."""
    rows = structure.rows.astype(np.int64)
    if offsets is None:
        return rows * width + np.arange(structure.nnz) - np.asarray(structure.indptr)[rows]
    return rows * width + np.searchsorted(offsets, structure.columns - rows)


def _entries(A: Any) -> tuple[Array, SparseStructure]:
    """The values of a banded matrix, and where they stand."""
    m, n = A.shape
    lengths = [natural_length(k, m, n) for k in A.offsets]
    rows = np.concatenate([max(0, -k) + np.arange(s) for k, s in zip(A.offsets, lengths)])
    columns = rows + np.repeat(A.offsets, lengths)
    structure, places = from_coordinates(rows, columns, (m, n))
    data = A.xp.concat(list(A.diagonals), axis=-1)
    return data if places is None else A.xp.take(data, np.argsort(places), axis=0), structure


def _multiply_on_mesh(xp: Any, A: Any, X: Array) -> Array:
    """A X, of which each device makes its rows."""
    mesh, axis = A.spread
    on_mesh: Any = backends.mesh_module(mesh)

    def by_halos(cut: Any, whole: Any) -> Array:
        (data, X), offsets = cut, A.offsets
        above, below = max(0, -min(offsets)), max(0, max(offsets))
        near, m = with_halos(on_mesh, axis, X, above, below), X.shape[0]
        terms = (data[:, j, None] * near[above + k : above + k + m] for j, k in enumerate(offsets))
        return sum(terms, start=next(terms))

    def by_gathering(cut: Any, whole: Any) -> Array:
        data, columns, X = cut
        return SparseRows._of(data, columns, A.shape[1]) @ on_mesh.gather_rows(X, axis)

    if A.offsets is not None:
        return on_mesh.apply_by_rows(by_halos, mesh, axis, (A.data, X), ())
    columns = A.structure.padded[1].on(xp)
    return on_mesh.apply_by_rows(by_gathering, mesh, axis, (A.data, columns, X), ())
