"""Toeplitz and circulant matrices, multiplied by fast Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, SYMMETRIC
from ..status import state
from .base import LinearOperator
from .context import (
    as_array,
    as_arrays,
    broadcast_batches,
    kind_of,
    spread,
    zero_product,
)
from .divided import (
    Spread,
    is_divided,
    prepared,
)
from .tree import Shape, conjugate_leaves
from .unitary import circular_convolution, convolution_flops, good_length


def prepare_divided(A: Any, is_planned: bool) -> Any:
    """A with the transform of its kernel, where a mesh divides its products; else A itself."""
    return A if is_planned or not is_divided(A, A.xp) else prepared(A)


def grid_of_line(n: int, p: int, rows: int) -> tuple[Shape, Shape]:
    """A line as a grid with a row for each of p devices, and the lengths of its transforms."""
    return (p, n // p), (rows, good_length(2 * (n // p)))


# Toeplitz matrices: constant along every diagonal, multiplied by fast Fourier transforms.


class Toeplitz(LinearOperator, init=False):
    """The matrix with `T[i, j] = col[i - j]` on and below the diagonal and `row[j - i]` above it.

    A product with a vector costs O((m + n) log(m + n)).

    Parameters
    ----------
    col : array, (*batch, m)
        The first column.
    row : array, (*batch, n), optional
        The first row. `row[0]` is ignored in favour of `col[0]`. Without it the matrix is
        Hermitian: `row = conj(col)`, as `scipy.linalg.toeplitz` has it.

    Notes
    -----
    A complex `col` alone whose first entry is not real has `row = conj(col)` too, as in SciPy, and
    so is not Hermitian. Where that entry cannot be seen (under jit, on a GPU) nothing is inferred:
    say `SelfAdjoint(Toeplitz(col))`.

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
    spread: Spread | None = None  # the mesh, and its axis, over which rows are divided

    def __new__(cls, col: Any, row: Any = None) -> Toeplitz:
        if row is None or row is col:
            col = as_array(col, "Toeplitz: col", min_ndim=1)
            xp = namespace_of(col)
            if not xp.is_complex(col) or col.shape[-1] == 0:
                return cls._of(col, None)
            if row is not None:
                return cls._of(col, col)._claim(SYMMETRIC)
            corner = xp.peek(col[..., 0])  # is the diagonal known to be real?
            is_hermitian = corner is not None and not np.any(np.imag(corner))
            return cls._of(col, None if is_hermitian else xp.conj(col))
        col, row = as_arrays("Toeplitz", col, row, min_ndim=1)
        broadcast_batches(col.shape[:-1], row.shape[:-1], what="Toeplitz: col and row")
        return cls._of(col, row)

    @property
    def shape(self) -> Shape:
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
        column = self._joined(self.col[..., :1], self.row[..., 1:])
        return Toeplitz._of(column, self.col, self.spread)

    def _matmat(self, X: Array) -> Array:
        m, n = self.shape[-2:]
        if m == 0 or n == 0:
            return zero_product(self, X)
        if is_divided(self, self.xp):
            return prepared(self)._matmat(X)
        # (T x)[i] = sum_j diagonals[n - 1 + i - j] x[j]: rows n-1 to n+m-2 of a convolution, long
        # enough that what wraps around misses them.
        product = circular_convolution(self._diagonals(), X, (good_length(m + n - 1),))
        return product[..., n - 1 : n - 1 + m, :]

    _prepare = prepare_divided

    def _divided_grid(self, p: int) -> tuple[Shape, Shape]:
        return grid_of_line(self.shape[-1], p, 2 * p)

    def _divided_kernel(self, lengths: Shape) -> tuple[Array, ...]:
        above = self._diagonals()[..., : self.shape[-1] - 1]
        return self.col, self.xp.pad(above, 1, 0, -1)  # entries 0 to n - 1, and -n to -1

    def _diagonals(self) -> Array:
        """The value of each diagonal, from the upper right corner to the lower left one:
        (*batch, n - 1 + m)."""
        row = self.xp.conj(self.col) if self.row is None else self.row
        return self._joined(self.xp.flip(row[..., 1:], axis=-1), self.col)

    def _joined(self, *parts: Array) -> Array:
        """Parts of row and column, (*batch, length), one behind the other."""
        return self.xp.concat([spread(part, self.shape[:-2], 1) for part in parts], axis=-1)

    def _to_dense(self) -> Array:
        m, n = self.shape[-2:]
        which = np.arange(m)[:, None] - np.arange(n) + (n - 1)
        return entries_at(self, self._diagonals(), which)

    @property
    def _flops(self) -> float:
        m, n = self.shape[-2:]
        return convolution_flops((good_length(max(m + n - 1, 1)),), real=not self.is_complex)


# Circulant matrices: each column is the one before, rotated by one; diagonal in the Fourier basis.


class Circulant(LinearOperator, init=False):
    """The square matrix with `C[i, j] = col[(i - j) mod n]`. A product with a vector costs O(n log
    n).

    Parameters
    ----------
    col : array, (*batch, n)
        The first column.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Circulant(np.array([1.0, 2.0, 3.0])).to_dense()
    array([[1., 3., 2.],
           [2., 1., 3.],
           [3., 2., 1.]])
    """

    col: Array
    spread: Spread | None = None  # the mesh, and its axis, over which rows are divided

    def __new__(cls, col: Any) -> Circulant:
        return cls._of(as_array(col, "Circulant: col", min_ndim=1))

    @property
    def shape(self) -> Shape:
        return (*self.col.shape, self.col.shape[-1])

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        # The first row: col[-k mod n].
        row = self.xp.roll(self.xp.flip(self.col, axis=-1), 1, axis=-1)
        return Circulant._of(row, self.spread)

    def _matmat(self, X: Array) -> Array:
        n = self.shape[-1]
        if not n:
            return zero_product(self, X)
        if is_divided(self, self.xp):
            return prepared(self)._matmat(X)
        spectrum = known_spectrum(self)
        if spectrum is not None and not self.is_complex and self.xp.is_complex(X):
            spectrum = None  # half of it, which is not enough
        return circular_convolution(self.col, X, (n,), spectrum)

    _prepare = prepare_divided

    def _divided_grid(self, p: int) -> tuple[Shape, Shape]:
        return grid_of_line(self.shape[-1], p, p)

    def _divided_kernel(self, lengths: Shape) -> tuple[Array, ...]:
        return (self.col,)

    def _to_dense(self) -> Array:
        n = self.shape[-1]
        return entries_at(self, self.col, (np.arange(n)[:, None] - np.arange(n)) % max(n, 1))

    @property
    def _flops(self) -> float:
        return convolution_flops(self.col.shape[-1:], real=not self.is_complex)


def entries_at(A: LinearOperator, values: Array, which: np.ndarray) -> Array:
    """The matrix whose entries are these of the values, which lie along the last axis."""
    xp = A.xp
    if not which.size:
        return xp.zeros(A.shape, **kind_of(A))
    places = xp.asarray(which.reshape(-1), device=A._context.device)
    return xp.reshape(xp.take(values, places, axis=-1), A.shape)


def known_spectrum(A: Any) -> Array | None:
    """The spectrum that the call under way has found of A, or made A from; outside of the call
    arrays may have changed."""
    call, values = A.__dict__.get("_spectrum", (None, None))
    return values if state.current is not None and call is state.call else None


def keep_spectrum(A: Any, values: Array) -> Array:
    """The spectrum of A, remembered for the rest of the call where neither programs nor derivatives
    are made of what is computed."""
    xp = A.xp
    if not (xp.is_compiling() or xp.is_traced(values) or xp.is_differentiated(values)):
        if state.call is None:
            state.call = object()
        A.__dict__["_spectrum"] = state.call, values
    return values
