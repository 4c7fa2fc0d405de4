"""Sparse matrices: their values are data, differentiable; where they stand is structure."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np

from ..backends import Array, adjoint, namespace_of
from ..errors import BackendError, DtypeError, ShapeError
from .banded import scatter_dense
from .base import LinearOperator
from .context import as_array, check_dtype, kind_of
from .fused import FEWEST_ROWS, FusedDiagonals, is_fused
from .tree import MOST_DIAGONALS, Index, Shape, conjugate_leaves, memo, on_host

LOOKED_AT = 4096  # entries, which show that most matrices have more diagonals


class SparseStructure:
    """The pattern of a sparse matrix: compressed rows, sorted, each entry once.

    Static and hashable by content, so that it is seen under `jit` and two matrices of one pattern
    share a trace. All arrays are read-only NumPy arrays on the host; `memo` holds what a framework
    derives from them.

    Attributes
    ----------
    indptr : (m + 1,)
        Row i has the entries indptr[i], ..., indptr[i + 1] - 1.
    columns, rows : (nnz,)
        Of each entry.
    order : (nnz,), optional
        In the transpose of a structure: which of its entries each one was.
    """

    def __init__(self, indptr: Any, columns: Any, shape: tuple[int, int], order: Any = None):
        self.shape = (int(shape[0]), int(shape[1]))
        # as SciPy: half the memory, and no conversion there
        dtype = np.int32 if max(*self.shape, len(columns)) < 2**31 else np.int64
        self.indptr, self.columns = _frozen(indptr, dtype), _frozen(columns, dtype)
        self.order = None if order is None else _frozen(order, np.int64)
        self.memo: dict[Any, Any] = {}

    @property
    def nnz(self) -> int:
        return len(self.columns)

    @memo
    def rows(self) -> Any:
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.indptr))
        return _frozen(rows, self.columns.dtype)

    @memo
    def transposed(self) -> SparseStructure:
        """The pattern of the transpose; the transpose's values are `data[..., order]`, with the
        `order` found there."""
        order = np.argsort(self.columns, kind="stable")  # by column, and within one by row
        flipped = SparseStructure(
            _starts(self.columns, self.shape[1]), self.rows[order], self.shape[::-1], order
        )
        back = SparseStructure(self.indptr, self.columns, self.shape, np.argsort(order))
        back.__dict__.update(memo=self.memo, transposed=flipped)
        flipped.__dict__["transposed"] = back
        return flipped

    @memo
    def is_symmetric(self) -> bool:
        """Whether the transpose has its entries in the same places."""
        return self == self.transposed

    @memo
    def is_triangular(self) -> bool:
        """Whether nothing stands above the diagonal, or nothing below it."""
        rows, columns = self.rows, self.columns
        return bool(np.all(columns <= rows) or np.all(columns >= rows))

    @memo
    def padded(self) -> tuple[Index, Index, Index]:
        """For each row the places of its entries, their columns, and 1 or, behind its end, 0; (m,
        l)."""
        lengths = np.diff(self.indptr)
        steps = np.arange(lengths.max())
        filled = steps < lengths[:, None]
        places = np.where(filled, np.asarray(self.indptr)[:-1, None] + steps, 0)
        return Index(places), Index(self.columns[places] * filled), Index(filled)

    @memo
    def diagonals(self) -> tuple[Shape, Any, Any] | None:
        """The diagonals that have all entries, if they are few and mostly full: their offsets; the
        place of each entry among the diagonals by rows, end to end; and for each row a number with
        a bit for each diagonal that has an entry there. None of other matrices."""
        (m, n), limit = self.shape, MOST_DIAGONALS
        head = self.columns[:LOOKED_AT] - self.rows[:LOOKED_AT]
        if not self.nnz or len(np.unique(head)) > limit:
            return None
        steps = self.columns - self.rows + np.int32(m - 1)
        occurs = np.zeros(m + n - 1, bool)
        occurs[steps] = True
        (offsets,) = np.nonzero(occurs)
        if len(offsets) > min(limit, 2 * self.nnz / m):
            return None
        which = np.zeros(len(occurs), np.int8)
        which[offsets] = np.arange(len(offsets))
        d = which[steps]
        # sums of few powers of two are exact
        bits = np.bincount(self.rows, np.left_shift(1, d, dtype=np.int64), m)
        places = d.astype(np.int64) * m + self.rows
        kind = np.uint8 if len(offsets) <= 8 else np.int32
        return tuple(int(k) - m + 1 for k in offsets), places, bits.astype(kind)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, SparseStructure)
            and self.shape == other.shape
            and self.nnz == other.nnz
            and hash(self) == hash(other)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.columns, other.columns)
        )

    @memo
    def _hash(self) -> int:
        return hash((self.shape, self.indptr.tobytes(), self.columns.tobytes()))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseStructure, (self.indptr, self.columns, self.shape, self.order)

    def __repr__(self) -> str:
        return f"SparseStructure({self.shape[0]}x{self.shape[1]}, nnz={self.nnz})"


def _frozen(values: Any, dtype: Any) -> Any:
    """A read-only array of ours: the caller's must stay writable, so it is copied unless it is
    already one."""
    if isinstance(values, np.ndarray) and values.dtype == dtype and not values.flags.writeable:
        return values
    values = np.array(values, dtype)
    values.setflags(write=False)
    return values


def _starts(rows: Any, m: int) -> Any:
    return np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=m))])


def from_coordinates(
    rows: Any, columns: Any, shape: tuple[int, int]
) -> tuple[SparseStructure, Any]:
    """The structure of entries in any order, and the place in it of each (None: its own); where
    places repeat, values add up."""
    rows, columns = np.asarray(rows), np.asarray(columns)
    m, n = shape
    if len(rows) and (rows.min() < 0 or columns.min() < 0 or rows.max() >= m or columns.max() >= n):
        raise ShapeError(f"Sparse: there are indices outside the {m}x{n} matrix.")
    entries, places = np.unique(rows.astype(np.int64) * n + columns, return_inverse=True)
    structure = SparseStructure(_starts(entries // max(n, 1), m), entries % max(n, 1), shape)
    is_identity = np.array_equal(places, np.arange(len(entries)))
    return structure, None if is_identity else places


# A sparse matrix: its values are data, differentiable; where they stand is structure.


class Sparse(LinearOperator, init=False):
    """The operator of a sparse matrix of SciPy, torch or JAX. A product costs 2 nnz flops.

    Entries are sorted by rows, and those given twice are summed. In torch and JAX gradients flow
    from the values that were given, as far as the framework keeps track of them. Matrices of a
    batch share one pattern, the union of theirs.

    Parameters
    ----------
    S : scipy.sparse array or matrix, torch COO, CSR or CSC tensor, jax BCOO or BCSR

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> A = co.Sparse(scipy.sparse.csr_array([[0.0, 2.0], [3.0, 0.0]]))
    >>> A @ np.array([1.0, 1.0])
    array([2., 3.])
    """

    data: Array
    structure: SparseStructure

    def __new__(cls, S: Any) -> Sparse:
        if isinstance(S, LinearOperator):
            raise DtypeError(
                f"Sparse: expected a sparse matrix, got the operator {type(S).__name__}."
            )
        data, structure = _read(S)
        return cls.from_parts(data, structure)

    @classmethod
    def from_parts(cls, data: Any, structure: SparseStructure) -> Sparse:
        """The sparse matrix of these values, (*batch, nnz), in the order of the structure."""
        data = as_array(data, "Sparse", min_ndim=1)
        if data.shape[-1] != structure.nnz:
            raise ShapeError(f"Sparse: {data.shape[-1]} values for {structure.nnz} places.")
        return cls._of(data, structure)

    @memo
    def shape(self) -> Shape:
        return (*self.data.shape[:-1], *self.structure.shape)

    @property
    def nnz(self) -> int:
        """The number of places stored, zeros among them counted."""
        return self.structure.nnz

    @property
    def S(self) -> Any:
        """The matrix in the framework's own format: scipy CSR, torch CSR, jax BCOO."""
        return self.xp.sparse_array(self.data, self.structure)

    def _transpose(self) -> LinearOperator:
        flipped = self.structure.transposed
        return Sparse._of(self.xp.take(self.data, flipped.order, axis=-1), flipped)

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return self.xp.sparse_matmul(self.data, self.structure, X)

    def _matvec(self, x: Array) -> Array:
        if self.data.ndim == 1 and self._context.backend == "numpy":
            return self.xp.sparse_matmul(self.data, self.structure, x)
        return self.xp.sparse_matmul(self.data, self.structure, x[:, None])[..., 0]

    def _prepare(self, is_planned: bool) -> LinearOperator:
        """The diagonals laid out for an iteration, where the device multiplies by them in one
        pass."""
        data, structure = self.data, self.structure
        if is_planned or data.ndim > 1 or structure.shape[0] < FEWEST_ROWS:
            return self
        if not is_fused(self, data, structure.shape[0]):
            return self
        if (found := structure.diagonals) is None:
            return self
        parts = self.xp.sparse_diagonals(data, structure)
        return FusedDiagonals._of(self, parts, found[0])

    @property
    def _has_rows(self) -> bool:
        """Whether filling up all rows to the longest wastes little."""
        structure = self.structure
        if not structure.nnz:
            return False
        return bool(structure.shape[0] * np.diff(structure.indptr).max() <= WASTE * structure.nnz)

    def _rows(self, indices: Array) -> LinearOperator:
        data, structure = self.data, self.structure
        xp = namespace_of(data)
        where, columns, filled = (
            xp.take(xp.asarray(x.on(xp, xp.device_of(data))), indices, axis=0)
            for x in structure.padded
        )
        flat = xp.take(data, xp.reshape(where, (-1,)), axis=-1)
        values = xp.reshape(flat, (*data.shape[:-1], *where.shape)) * xp.astype(filled, data.dtype)
        return SparseRows._of(values, columns, structure.shape[1])

    def _to_dense(self) -> Array:
        structure = self.structure
        places = structure.rows.astype(np.int64) * structure.shape[1] + structure.columns
        return scatter_dense(self, self.data, places)

    @property
    def _flops(self) -> float:
        return 2.0 * self.structure.nnz

    def _expression(self) -> str:
        return f"Sparse({'x'.join(map(str, self.shape))}, nnz={self.structure.nnz})"


# ---------------------------------------------------------------------- reading the frameworks' for


Read = tuple[Array, SparseStructure]


def _read(S: Any) -> Read:
    scipy_sparse = sys.modules.get("scipy.sparse")  # an object of SciPy's has loaded it
    if scipy_sparse is not None and scipy_sparse.issparse(S):
        return _read_scipy(S)
    if type(S).__name__ in ("BCOO", "BCSR") and type(S).__module__.startswith("jax."):
        return _read_jax(S)
    layout = str(getattr(S, "layout", ""))
    if layout == "torch.sparse_coo":
        return _read_torch_coo(S)
    if layout in ("torch.sparse_csr", "torch.sparse_csc"):
        return _read_torch_compressed(S, is_by_rows=layout.endswith("csr"))
    if layout in ("torch.sparse_bsr", "torch.sparse_bsc"):
        raise BackendError(
            f"Sparse: torch's blocked layout {layout} is not supported. Use S.to_sparse_csr()."
        )
    if namespace_of(S) is not None:
        raise DtypeError(
            f"Sparse: expected a sparse matrix, got a dense array of shape {tuple(S.shape)}. Use "
            "Dense(A)."
        )
    raise DtypeError(
        f"Sparse: expected a sparse matrix of SciPy, torch or JAX, not {type(S).__name__}."
    )


def _read_scipy(S: Any) -> Read:
    if S.ndim != 2:
        raise ShapeError(f"Sparse: the array has shape {S.shape}; expected a matrix.")
    check_dtype("Sparse", S.dtype)
    rows = S.tocsr()
    if not rows.has_canonical_format:
        rows = rows.copy() if rows is S else rows  # the user's matrix stays as it is
        rows.sum_duplicates()
    return rows.data, SparseStructure(rows.indptr, rows.indices, rows.shape)


def _read_jax(S: Any) -> Read:
    if S.n_dense or S.n_sparse != 2:
        raise ShapeError(
            f"Sparse: a {type(S).__name__} array with {S.n_sparse} sparse and {S.n_dense} dense "
            "dimensions; expected 2 and none."
        )
    indices = _host(S.indices)
    if type(S).__name__ == "BCOO":
        rows, columns = indices[..., 0], indices[..., 1]
    else:
        columns = indices
        rows = _uncompressed(_host(S.indptr), columns.shape[-1], padding=S.shape[-2])
    return _assemble(S.data, rows, columns, S.shape)


def _read_torch_coo(S: Any) -> Read:
    if S.dense_dim() or S.sparse_dim() < 2:
        kinds = f"{S.sparse_dim()} sparse and {S.dense_dim()} dense dimensions"
        raise ShapeError(f"Sparse: a tensor with {kinds}; expected a sparse matrix.")
    S = S.coalesce()  # the values of one that is not have no graph
    values = S.values().clone()  # as a view of a sparse tensor they would break torch.compile
    *outer, rows, columns = _host(S.indices())
    if not outer:
        return _assemble(values, rows, columns, S.shape)
    return _scatter(values, np.ravel_multi_index(outer, S.shape[:-2]), rows, columns, S.shape)


def _read_torch_compressed(S: Any, is_by_rows: bool) -> Read:
    if S.dense_dim():
        raise ShapeError(f"Sparse: a tensor with {S.dense_dim()} dense dimensions; expected none.")
    if is_by_rows:
        columns = _host(S.col_indices())
        rows = _uncompressed(_host(S.crow_indices()), columns.shape[-1])
    else:
        rows = _host(S.row_indices())
        columns = _uncompressed(_host(S.ccol_indices()), rows.shape[-1])
    return _assemble(S.values().clone(), rows, columns, S.shape)


def _host(indices: Any) -> Any:
    if namespace_of(indices).is_traced(indices):
        raise BackendError(
            "Sparse: the indices are traced, and the pattern of a sparse matrix must be known. "
            "Make Sparse(S) outside the "
            "transformation and pass the operator in: its values are leaves, its pattern is static."
        )
    return on_host(indices)


def _uncompressed(starts: Any, count: int, padding: int = 0) -> Any:
    """Row (or column) numbers of compressed ones, (*batch, count); what lies behind the last row
    gets the number `padding`."""
    flat = starts.reshape(-1, starts.shape[-1])
    numbers = [np.repeat(np.arange(flat.shape[-1] - 1), np.diff(each)) for each in flat]
    padded = [np.concatenate([each, np.full(count - len(each), padding)]) for each in numbers]
    return np.reshape(padded, (*starts.shape[:-1], count))


def _assemble(data: Any, rows: Any, columns: Any, shape: Any) -> Read:
    """Values (*batch, count) at coordinates of the same shape (or without batch), sorted and
    summed; `shape` is that of the operator."""
    data = as_array(data, "Sparse")
    xp, batch, (m, n), count = namespace_of(data), shape[:-2], shape[-2:], rows.shape[-1]
    patterns = np.stack([rows, columns]).reshape(2, math.prod(rows.shape[:-1]), count)
    if (patterns != patterns[:, :1]).any():
        outer = np.repeat(np.arange(math.prod(batch)), count)
        rows, columns = (np.broadcast_to(x, (*batch, count)).reshape(-1) for x in (rows, columns))
        values = xp.reshape(xp.broadcast_to(data, (*batch, count)), (-1,))
        return _scatter(values, outer, rows, columns, shape)
    rows, columns = patterns[:, 0] if patterns.size else np.zeros((2, 0), int)
    is_inside = (rows < m) & (columns < n)  # JAX pads with indices that are not
    if not is_inside.all():
        rows, columns = rows[is_inside], columns[is_inside]
        data = xp.take(data, np.flatnonzero(is_inside), axis=-1)
    structure, places = from_coordinates(rows, columns, (m, n))
    return collected(xp, data, structure, places), structure


def collected(xp: Any, data: Array, structure: SparseStructure, places: Any) -> Array:
    """Values (*batch, count) in the places that were found for them, those in one place added."""
    if places is None:
        return data
    if structure.nnz == len(places):
        return xp.take(data, np.argsort(places), axis=-1)
    empty = xp.zeros((*data.shape[:-1], structure.nnz), **kind_of(data))
    return xp.scatter_add(empty, places, data, axis=-1)


def _scatter(values: Any, outer: Any, rows: Any, columns: Any, shape: Any) -> Read:
    """A batch of matrices of different patterns, as one of their union: `outer` is the matrix of
    each value."""
    values = as_array(values, "Sparse")
    xp, batch, (m, n) = namespace_of(values), shape[:-2], shape[-2:]
    is_inside = (rows < m) & (columns < n)
    structure, places = from_coordinates(rows[is_inside], columns[is_inside], (m, n))
    places = np.arange(structure.nnz) if places is None else places
    flat = xp.zeros((math.prod(batch) * structure.nnz,), **kind_of(values))
    inside = xp.take(values, np.flatnonzero(is_inside))
    data = xp.scatter_add(flat, outer[is_inside] * structure.nnz + places, inside)
    return xp.reshape(data, (*batch, structure.nnz)), structure


# Some rows of a sparse matrix, whose indices may be traced: what minibatches of S^H S are made of.
#
# Rows are filled up to the length of the longest, so that shapes do not depend on which rows are
# taken. That pays as long as their lengths are alike.


WASTE = 8  # times the entries that filled-up rows may hold


class SparseRows(LinearOperator):
    """Rows of a sparse matrix: `values` and their `columns`, (*batch, b, l) and (b, l); filled
    up with zeros."""

    values: Array
    columns: Array
    width: int

    @property
    def shape(self) -> Shape:
        return (*self.values.shape[:-1], self.width)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        taken = xp.take(X, xp.reshape(self.columns, (-1,)), axis=-2)
        taken = xp.reshape(taken, (*X.shape[:-2], *self.columns.shape, X.shape[-1]))
        return xp.sum(self.values[..., None] * taken, axis=-2)

    def _rmatmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        terms = xp.conj(self.values)[..., None] * X[..., None, :]  # (*batch, b, l, k)
        # NumPy and torch add to single numbers several times as fast as to rows
        batch, k, device = terms.shape[:-3], X.shape[-1], xp.device_of(X)
        each = xp.reshape(self.columns[..., None] * k + xp.arange(k, device=device), (-1,))
        empty = xp.zeros((*batch, self.width * k), dtype=terms.dtype, device=device)
        terms = xp.reshape(terms, (*batch, each.shape[0]))
        return xp.reshape(xp.scatter_add(empty, each, terms, axis=-1), (*batch, self.width, k))

    def _to_dense(self) -> Array:
        xp, eye = self.xp, self.xp.eye(self.shape[-2], **kind_of(self.values))
        return adjoint(xp, self._rmatmat(eye))

    @property
    def _flops(self) -> float:
        return 2.0 * self.values.shape[-2] * self.values.shape[-1]
