"""Matrices that are not in memory: files mapped into it, and arrays that are computed or read a
chunk at a time. Products stream over blocks, and nothing is copied whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..backends import Array
from ..errors import DtypeError, ShapeError
from .base import LinearOperator
from .context import Context, as_one_block, given_context
from .tree import Shape, memo

TALL = 4  # rows to a column from which a triangle is found by blocks of rows
BLOCK_BYTES = 2**24  # of a matrix that is read at a time, where nobody has chosen chunks


def multiply_by_blocks(A: Any, X: Any) -> Any:
    """A X in NumPy for a large matrix, block by block where BLAS would copy all of it: of another
    dtype than X, or neither stored by rows nor by columns."""
    if A.dtype == X.dtype and (A.ndim > 2 or A.flags.forc):
        return np.matmul(A, X)
    if A.ndim == 2 < X.ndim:
        return as_one_block(lambda X: multiply_by_blocks(A, X), X)
    if A.ndim > 2 and X.ndim == 1:
        return multiply_by_blocks(A, X[:, None])[..., 0]
    dtype = np.result_type(A, X)
    if A.ndim > 2:
        batch = np.broadcast_shapes(A.shape[:-2], X.shape[:-2])
        A, X = (np.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (A, X))
        found = np.empty((*batch, A.shape[-2], X.shape[-1]), dtype)
        for place in np.ndindex(*batch):
            found[place] = multiply_by_blocks(A[place], X[place])
        return found
    X = X.astype(dtype, copy=False)
    m, n = A.shape
    if A.strides[0] < A.strides[1]:  # it lies by columns
        Y = np.zeros((m, *X.shape[1:]), dtype)
        for columns in _ranges(n, m * dtype.itemsize):
            Y += np.matmul(A[:, columns].astype(dtype, copy=False), X[columns])
        return Y
    Y = np.empty((m, *X.shape[1:]), dtype)
    for rows in _ranges(m, n * dtype.itemsize):
        Y[rows] = np.matmul(A[rows].astype(dtype, copy=False), X)
    return Y


def _ranges(count: int, size: int) -> Iterator[slice]:
    """The numbers below `count` in runs that take `BLOCK_BYTES` at `size` bytes each."""
    step = max(1, BLOCK_BYTES // max(1, size))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def row_blocks(A: Any) -> Iterator[tuple[tuple[slice, ...], Array]]:
    """Blocks of a matrix with their places along every dimension: chunks, or some rows at a time,
    that is some columns where it lies by columns."""
    if isinstance(A, Streamed):
        for places in A.source.blocks():
            yield places, A.source.read(places)
        return
    every = (slice(None),) * (A.A.ndim - 2)
    m, n = A.shape[-2:]
    is_by_columns = A.A.strides[-2] < A.A.strides[-1]
    count, others = (n, m) if is_by_columns else (m, n)
    for run in _ranges(count, A.A.itemsize * others * math.prod(A.batch_shape)):
        places = (*every, slice(None), run) if is_by_columns else (*every, run, slice(None))
        yield places, A.A[places]


def triangle_by_rows(A: Any, B: Any = None) -> Array:
    """R of the QR factorisation of a tall matrix, or of [A B], from some of its rows at a time: each
    block is factored below the R of those before it."""
    m, n = A.shape[-2:]
    width = n if B is None else n + B.shape[-1]
    dtype = A.dtype if B is None else np.result_type(A.dtype, B.dtype)
    R: Any = np.zeros((0, width), dtype)
    step = max(width, BLOCK_BYTES // (4 * width * dtype.itemsize))
    for i in range(0, m, step):
        rows = slice(i, min(i + step, m))
        whole = rows, slice(None)
        block = A.source.read(whole) if isinstance(A, Streamed) else A.A[whole]
        block = block if B is None else np.concatenate([block, B[rows]], axis=1)
        R = np.linalg.qr(np.concatenate([R, block]), mode="r")
    return R


def is_triangle_small(A: Any) -> bool:
    """Whether A is a tall matrix that is not in memory, and the triangle of its QR factorisation
    is small."""
    m, n = A.shape[-2:]
    is_single = isinstance(getattr(A, "A", None), np.ndarray) or isinstance(A, Streamed)
    is_tall = not A.batch_shape and m >= TALL * n > 0 and n * n * 8 <= BLOCK_BYTES
    return is_single and is_tall and A.dtype.itemsize >= 4 and A._is_out_of_core


def is_lazy(x: Any) -> bool:
    """Whether x is an array that is computed or read a chunk at a time, of Dask, Zarr or HDF5."""
    return all(hasattr(x, name) for name in ("chunks", "shape", "dtype", "__getitem__"))


class Source:
    """An array of Dask, Zarr or HDF5, and the chunks in which it is read. Compared by identity."""

    def __init__(self, array: Any):
        self.array = array
        self.shape = tuple(int(size) for size in array.shape)
        self.edges = [_edges(*each) for each in zip(self.shape, self._chunks())]

    def _chunks(self) -> Sequence[Any]:
        chunks = self.array.chunks
        if chunks is not None:
            return tuple(chunks)
        numbers = max(1, BLOCK_BYTES // self.array.dtype.itemsize)
        rows = max(1, numbers // max(1, self.shape[-1]))
        return (*(1,) * (len(self.shape) - 2), rows, min(numbers, self.shape[-1]))

    def blocks(self) -> Iterator[tuple[slice, ...]]:
        """The places of all chunks, along every dimension."""
        return itertools.product(*self.edges)

    def read(self, places: tuple[slice, ...]) -> np.ndarray:
        """The numbers in these places."""
        block = np.asarray(self.array[places])
        return block if block.dtype.kind in "fc" else block.astype(np.float64)


def _edges(size: int, chunks: Any) -> list[slice]:
    """The runs of the chunks along a dimension: all of their sizes are given, or the one size."""
    if not hasattr(chunks, "__iter__"):
        return [slice(i, min(i + chunks, size)) for i in range(0, size, max(1, chunks))]
    if any(each != each for each in chunks):
        raise ShapeError(
            "as_operator: the sizes of the chunks are not known. Call x.compute_chunk_sizes() "
            "first."
        )
    ends = list(itertools.accumulate(chunks, initial=0))
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


class Streamed(LinearOperator):
    """The operator of a matrix, or of a stack of matrices, that is read or computed a chunk at a
    time: an array of Dask, Zarr or HDF5. What `as_operator` and `Dense` make of one.

    A product reads every chunk once, 2 m n flops, and takes the memory of one chunk; so does one
    with the adjoint. It belongs to NumPy, and has no derivatives with respect to its entries.
    """

    source: Any
    context: Context

    _is_lazy = True

    @property
    def shape(self) -> Shape:
        return self.source.shape

    @memo
    def _context(self) -> Context:
        return self.context

    def _matmat(self, X: Array) -> Array:
        return self._accumulated(X, adjoint=False)

    def _rmatmat(self, X: Array) -> Array:
        return self._accumulated(X, adjoint=True)

    def _accumulated(self, X: Array, adjoint: bool) -> Array:
        (*batch, m, n), k = self.shape, X.shape[-1]
        outside = np.broadcast_shapes(tuple(batch), X.shape[:-2])
        X = np.broadcast_to(X, (*outside, *X.shape[-2:]))
        Y = np.zeros((*outside, n if adjoint else m, k), np.result_type(self.dtype, X.dtype))
        for places in self.source.blocks():
            *outer, rows, columns = places
            block = self.source.read(places)
            if adjoint:
                block, rows, columns = np.conj(np.swapaxes(block, -1, -2)), columns, rows
            # what broadcasts is one matrix for all of its places
            outer = (slice(None) if size == 1 else each for each, size in zip(outer, batch))
            inside = (..., *outer)
            Y[(*inside, rows, slice(None))] += np.matmul(block, X[(*inside, columns, slice(None))])
        return Y

    def _summed_matmat(self, X: Array, axis: int) -> Array:
        batch = self.shape[:-2]
        if len(batch) != 1 or X.ndim > 3 or (X.ndim == 3 and X.shape[0] != 1):
            return LinearOperator._summed_matmat(self, X, axis)
        X = X[0] if X.ndim == 3 else X
        Y = np.zeros((self.shape[-2], X.shape[-1]), np.result_type(self.dtype, X.dtype))
        for places in self.source.blocks():
            _, rows, columns = places
            Y[rows] += np.matmul(self.source.read(places), X[columns]).sum(0)
        return Y

    def main_diagonal(self) -> Array:
        """The main diagonal, of which the chunks that it meets are read."""
        m, n = self.shape[-2:]
        found = np.zeros((*self.shape[:-2], min(m, n)), self.dtype)
        for places in self.source.blocks():
            *outer, rows, columns = places
            first, last = max(rows.start, columns.start), min(rows.stop, columns.stop)
            if first < last:
                inside = (*outer, slice(first, last), slice(first, last))
                block = self.source.read(inside)
                found[(*outer, slice(first, last))] = np.diagonal(block, axis1=-2, axis2=-1)
        return found

    def _to_dense(self) -> Array:
        found = np.empty(self.shape, self.dtype)
        for places in self.source.blocks():
            found[places] = self.source.read(places)
        return found

    def _expression(self) -> str:
        kind = type(self.source.array)
        name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
        return f"Streamed({name}, {'x'.join(map(str, self.shape))})"


def streamed(x: Any, what: str = "as_operator") -> LinearOperator:
    """A lazy array of at least two dimensions as an operator."""
    if len(x.shape) < 2:
        raise ShapeError(
            f"{what}: expected a matrix of at least two dimensions, not an array of "
            f"{len(x.shape)}. Read it, np.asarray(x), and use Diagonal(d) or x[:, None]."
        )
    if np.dtype(x.dtype).kind not in "fciub":
        raise DtypeError(f"{what}: the array has dtype {x.dtype}; expected numbers.")
    dtype = np.dtype(x.dtype) if np.dtype(x.dtype).kind in "fc" else np.dtype(np.float64)
    return Streamed._of(Source(x), given_context(what, "numpy", dtype))
