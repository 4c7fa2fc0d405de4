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
from ..operators.divided import Spread, by_rows, with_halos
from ..operators.sparse import SparseRows, SparseStructure, from_coordinates
from ..operators.tree import memo

WASTE = 4  # times the entries that rows of equal length may hold


class RowSparse(LinearOperator, init=False):
    """A square sparse matrix whose rows, filled up to one length, are cut over the devices of a
    mesh: what `shard` makes of `Sparse` and `Banded`.

    A product exchanges with the two neighbours the entries of x that few diagonals reach, or else
    gathers x. Its adjoint sends as much.
    """

    data: Array  # (l, n) values by diagonals, padded with zeros; or (n, l) by rows
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

    @property
    def halos(self) -> tuple[int, int]:
        """How many rows of x before a row, and how many behind it, the diagonals reach."""
        return max(0, -self.offsets[0]), max(0, self.offsets[-1])  # type: ignore[index]

    @property
    def width(self) -> int:
        """How many values are stored of each row."""
        return int(self.data.shape[1 if self.offsets is None else 0])

    def placed(self, place: Any, spread: Spread | None) -> Any:
        """The same with its values where `place` says."""
        dimension = -2 if self.offsets is None else -1
        return self._replace(data=place.cut(self.data, dimension), spread=spread)

    def as_sparse(self) -> Any:
        """The sparse matrix."""
        xp, where = self.xp, _places(self.structure, self.offsets, self.width)
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
    return A.data[A.offsets.index(0)]


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
    shape = (n, width) if offsets is None else (width, n)
    return RowSparse._of(xp.reshape(filled, shape), structure, offsets, None)


def _places(structure: SparseStructure, offsets: Any, width: int) -> Any:
    """Where each entry of a sparse matrix stands in the flat data of its rows."""
    rows = structure.rows.astype(np.int64)
    if offsets is None:
        return rows * width + np.arange(structure.nnz) - np.asarray(structure.indptr)[rows]
    return np.searchsorted(offsets, structure.columns - rows) * structure.shape[0] + rows


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

    def by_gathering(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        data, columns, X = cut
        return SparseRows._of(data, columns, A.shape[1]) @ on_mesh.gather_rows(X, axis)

    if A.offsets is None:
        columns = A.structure.padded[1].on(xp)
        return by_rows(by_gathering, A.spread, (A.data, columns, X), ())

    above, below = A.halos

    def by_halos(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        *diagonals, X = cut
        m = X.shape[0]

        def product(near: Array, first: int, start: int, stop: int) -> Array:
            """Rows of A X, of which `near` has the rows of X that are needed, from `first` on."""
            at = slice(start, stop)
            near_rows = (near[start + k - first : stop + k - first] for k in A.offsets)
            terms = (d[at] * x for d, x in zip(diagonals, near_rows))
            return sum(terms, start=next(terms))

        if above + below > m:
            return product(with_halos(on_mesh, axis, X, above, below), -above, 0, m)
        # most rows wait for no neighbour, and no copy of X is made for them
        before = with_halos(on_mesh, axis, X, above, 0)[: 2 * above + below]
        behind = with_halos(on_mesh, axis, X, 0, below)[m - above - below :]
        parts = (
            product(before, -above, 0, above),
            product(X, 0, above, m - below),
            product(behind, m - above - below, m - below, m),
        )
        return xp.concat(parts, axis=0)

    lines = tuple(A.data[j][:, None] for j in range(A.width))
    return by_rows(by_halos, A.spread, (*lines, X), ())
