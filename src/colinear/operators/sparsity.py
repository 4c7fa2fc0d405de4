"""Where the entries of a sparse matrix stand: structure that is hashed, compared and kept apart from their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..info import ShapeError


class SparseStructure:
    """The pattern of a sparse matrix: compressed rows, sorted, each entry once.

    Static and hashable by content, so that it is seen under `jit` and two matrices of one pattern share a trace. All arrays are
    read-only NumPy arrays on the host; `memo` holds what a framework derives from them.

    Attributes
    ----------
    indptr : (m + 1,)
        Row i has the entries indptr[i], ..., indptr[i + 1] - 1.
    columns, rows : (nnz,)
        Of each entry.
    order : (nnz,), optional
        In the transpose of a structure: which of its entries each one was.
    """

    __slots__ = ("_hash", "_rows", "_transposed", "columns", "indptr", "memo", "order", "shape")

    def __init__(self, indptr: Any, columns: Any, shape: tuple[int, int], order: Any = None):
        self.shape = (int(shape[0]), int(shape[1]))
        small = max(*self.shape, len(columns)) < 2**31  # as SciPy: half the memory, and no conversion there
        self.indptr = _frozen(indptr, np.int32 if small else np.int64)
        self.columns = _frozen(columns, np.int32 if small else np.int64)
        self._rows: Any = None
        self.order = None if order is None else _frozen(order, np.int64)
        self.memo: dict[Any, Any] = {}
        self._hash: int | None = None
        self._transposed: SparseStructure | None = None

    @property
    def nnz(self) -> int:
        return len(self.columns)

    @property
    def rows(self) -> Any:
        if self._rows is None:
            self._rows = _frozen(np.repeat(np.arange(self.shape[0]), np.diff(self.indptr)), self.columns.dtype)
        return self._rows

    @property
    def transposed(self) -> SparseStructure:
        """The pattern of the transpose; the transpose's values are `data[..., order]`, with the `order` found there."""
        if self._transposed is None:
            order = np.argsort(self.columns, kind="stable")  # by column, and within one by row
            flipped = SparseStructure(_starts(self.columns, self.shape[1]), self.rows[order], self.shape[::-1], order)
            back = SparseStructure(self.indptr, self.columns, self.shape, np.argsort(order))
            back.memo, back._transposed, flipped._transposed = self.memo, flipped, back
            self._transposed = flipped
        return self._transposed

    @property
    def is_symmetric(self) -> bool:
        """Whether the transpose has its entries in the same places."""
        found = self.memo.get("symmetric")
        if found is None:
            other = self.transposed
            found = np.array_equal(self.indptr, other.indptr) and np.array_equal(self.columns, other.columns)
            self.memo["symmetric"] = found
        return bool(found)

    @property
    def is_triangular(self) -> bool:
        """Whether nothing stands above the diagonal, or nothing below it."""
        found = self.memo.get("triangular")
        if found is None:
            rows, columns = self.rows, self.columns
            found = self.memo["triangular"] = bool(np.all(columns <= rows) or np.all(columns >= rows))
        return found

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, SparseStructure)
            and self.shape == other.shape
            and self.nnz == other.nnz
            and hash(self) == hash(other)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.columns, other.columns)
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.shape, self.indptr.tobytes(), self.columns.tobytes()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseStructure, (self.indptr, self.columns, self.shape, self.order)

    def __repr__(self) -> str:
        return f"SparseStructure({self.shape[0]}x{self.shape[1]}, nnz={self.nnz})"


def _frozen(values: Any, dtype: Any) -> Any:
    """A read-only array of ours: the caller's must stay writable, so it is copied unless it is already one."""
    if isinstance(values, np.ndarray) and values.dtype == dtype and not values.flags.writeable:
        return values
    values = np.array(values, dtype)
    values.setflags(write=False)
    return values


def _starts(rows: Any, m: int) -> Any:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=m))])


def from_coordinates(rows: Any, columns: Any, shape: tuple[int, int]) -> tuple[SparseStructure, Any]:
    """The structure of entries in any order, and the place in it of each (None: its own); where places repeat, values add up."""
    rows, columns = np.asarray(rows), np.asarray(columns)
    m, n = shape
    if len(rows) and (rows.min() < 0 or columns.min() < 0 or rows.max() >= m or columns.max() >= n):
        raise ShapeError(f"Sparse: there are indices outside the {m}x{n} matrix.")
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
    structure = SparseStructure(_starts(rows[is_first], m), columns[is_first], shape)
    places = np.empty(len(order), np.int64)
    places[order] = np.cumsum(is_first) - 1
    is_identity = is_first.all() and bool((order[1:] > order[:-1]).all())
    return structure, None if is_identity else places
