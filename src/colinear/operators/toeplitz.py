"""Toeplitz and circulant matrices and convolutions on a grid, multiplied by fast Fourier
transforms."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC
from ..status import state
from .banded import pad_with_zeros
from .base import LinearOperator
from .context import as_array, as_arrays, broadcast_batches, kind_of, spread, zero_product
from .fused import fuse_stencil
from .tree import Shape, conjugate_leaves
from .unitary import circular_convolution, convolution_flops, good_length, grid_sizes, pad_end

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
        return Toeplitz._of(self._joined(self.col[..., :1], self.row[..., 1:]), self.col)

    def _matmat(self, X: Array) -> Array:
        m, n = self.shape[-2:]
        if m == 0 or n == 0:
            return zero_product(self, X)
        # (T x)[i] = sum_j diagonals[n - 1 + i - j] x[j]: rows n-1 to n+m-2 of a convolution, long
        # enough that what wraps around misses them.
        product = circular_convolution(self._diagonals(), X, (good_length(m + n - 1),))
        return product[..., n - 1 : n - 1 + m, :]

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
        return _gather(self, self._diagonals(), which)

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

    def __new__(cls, col: Any) -> Circulant:
        return cls._of(as_array(col, "Circulant: col", min_ndim=1))

    @property
    def shape(self) -> Shape:
        return (*self.col.shape, self.col.shape[-1])

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        # The first row: col[-k mod n].
        return Circulant._of(self.xp.roll(self.xp.flip(self.col, axis=-1), 1, axis=-1))

    def _matmat(self, X: Array) -> Array:
        n = self.shape[-1]
        if not n:
            return zero_product(self, X)
        spectrum = _known_spectrum(self)
        if spectrum is not None and not self.is_complex and self.xp.is_complex(X):
            spectrum = None  # half of it, which is not enough
        return circular_convolution(self.col, X, (n,), spectrum)

    def _to_dense(self) -> Array:
        n = self.shape[-1]
        return _gather(self, self.col, (np.arange(n)[:, None] - np.arange(n)) % max(n, 1))

    @property
    def _flops(self) -> float:
        return convolution_flops(self.col.shape[-1:], real=not self.is_complex)


# Convolution with a kernel on a grid of any number of dimensions, same size out as in.


# Up to this many entries a kernel is applied by shifted sums: about the cost of the transforms, and
# exact for stencils.
DIRECT_ENTRIES = 16


class Convolution(LinearOperator, init=False):
    """Convolution on a grid: `out[i] = sum_j kernel[j] x[i - j + origin]` in every dimension, same
    size out as in.

    Vectors are grids flattened in row-major order. Kernels of up to 16 entries are applied by
    shifted sums, O(n) each; larger ones by fast Fourier transforms, O(n log n).

    Parameters
    ----------
    kernel : array, (*batch, *sizes)
        May be larger than the grid: it is then wrapped around ("wrap") or reaches only into zeros
        ("zero").
    shape : int or tuple of int
        The sizes of the grid, one for each dimension of the kernel. They are the attribute `grid`
        (`shape` is the matrix's).
    boundary : "wrap" or "zero"
        x outside the grid: periodic, or zero.
    centered : bool
        The kernel's origin is its index 0 in every dimension; with `centered=True` its middle,
        index `(size - 1) // 2`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> second_difference = co.Convolution(np.array([1.0, -2.0, 1.0]), 4, boundary="zero", centered=True)
    >>> second_difference @ np.array([0.0, 1.0, 4.0, 9.0])
    array([  1.,   2.,   2., -14.])
    """

    kernel: Array
    grid: Shape
    boundary: str
    origin: tuple[
        int, ...
        # the kernel's index that multiplies x[i]: flipped with the kernel, so transposes stay in
        # the family
    ]

    def __new__(
        cls, kernel: Any, shape: Any, boundary: str = "wrap", centered: bool = False
    ) -> Convolution:
        grid = grid_sizes(shape, "Convolution")
        kernel = as_array(kernel, "Convolution: kernel")
        if boundary not in ("wrap", "zero"):
            raise ValueError(f'Convolution: boundary must be "wrap" or "zero", not {boundary!r}.')
        given = tuple(kernel.shape)
        if len(given) < len(grid):
            raise ShapeError(
                f"Convolution: a grid of {len(grid)} dimensions needs a kernel of as many; its "
                f"shape is {given}."
            )
        sizes = given[-len(grid) :]
        if 0 in sizes:
            raise ShapeError(f"Convolution: the kernel is empty, its shape is {given}.")
        origin = tuple((int(size) - 1) // 2 if centered else 0 for size in sizes)
        return cls._of(kernel, grid, boundary, origin)

    @property
    def shape(self) -> Shape:
        n = math.prod(self.grid)
        return (*self.kernel.shape[: -len(self.grid)], n, n)

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        # A[i, l] = kernel[i - l + origin], so A[l, i] is the flipped kernel at i - l + (size - 1 -
        # origin).
        axes = tuple(range(-len(self.grid), 0))
        origin = tuple(size - 1 - o for size, o in zip(self._sizes, self.origin))
        kernel = self.xp.flip(self.kernel, axis=axes)
        return Convolution._of(kernel, self.grid, self.boundary, origin)

    @property
    def _sizes(self) -> Shape:
        """The sizes of the kernel, without its batch."""
        return tuple(self.kernel.shape[-len(self.grid) :])

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        n, k = X.shape[-2:]
        batch = broadcast_batches(self.shape[:-2], X.shape[:-2])
        if n == 0 or k == 0:
            return zero_product(self, X)
        kernel, origin = self._fitted()
        fitted = Convolution._of(kernel, self.grid, self.boundary, origin)
        x = xp.reshape(X, (*X.shape[:-2], *self.grid, k))
        is_small = math.prod(fitted._sizes) <= DIRECT_ENTRIES
        out = (_shifted_sums if is_small else _by_transforms)(xp, fitted, x)
        return xp.reshape(out, (*batch, n, k))

    def _prepare(self, is_planned: bool) -> Any:
        is_small = math.prod(self._sizes) <= DIRECT_ENTRIES
        return fuse_stencil(self, is_planned) if is_small else self

    def _fitted(self) -> tuple[Array, Shape]:
        """The kernel cut to what a point of the grid can reach, or wrapped onto the grid, and
        its origin."""
        kernel, origins = self.kernel, []
        for axis, (n, origin, size) in enumerate(
            zip(self.grid, self.origin, self._sizes), -len(self.grid)
        ):
            if self.boundary == "zero":  # |j - origin| < n
                low, high = max(0, origin - n + 1), min(size, origin + n)
                kernel, origin = _cut(kernel, axis, low, high), origin - low
            elif size > n:
                kernel = pad_with_zeros(self.xp, kernel, 0, -size % n, axis)
                rounds = range(0, kernel.shape[axis], n)
                kernel = sum(_cut(kernel, axis, start, start + n) for start in rounds)
                origin %= n
            origins.append(origin)
        return kernel, tuple(origins)

    def _to_dense(self) -> Array:
        xp = self.xp
        if 0 in self.grid:
            return xp.zeros(self.shape, **kind_of(self))
        kernel, origins = self._fitted()
        d = len(self.grid)
        batch, sizes = kernel.shape[:-d], kernel.shape[-d:]
        count, places = math.prod(sizes), np.zeros((1, 1), np.int64)
        # Kronecker-like: one dimension at a time; negative beyond the kernel
        for n, size, origin in zip(self.grid, sizes, origins):
            j = np.arange(n)[:, None] - np.arange(n) + origin
            if self.boundary == "wrap":
                j %= n
            j = np.where((j >= 0) & (j < size), j, -count)
            table = places[:, None, :, None] * size + j[:, None, :]
            places = table.reshape(len(places) * n, -1)
        # behind the kernel stands the zero that entries beyond it take
        entries = pad_with_zeros(xp, xp.reshape(kernel, (*batch, count)), 0, 1, axis=-1)
        return _gather(self, entries, np.where(places < 0, count, places))

    @property
    def _flops(self) -> float:
        count = math.prod(self._sizes)
        if count <= DIRECT_ENTRIES:
            return 2.0 * count * math.prod(self.grid)
        return convolution_flops(self._lengths(), real=not self.is_complex)

    def _lengths(self) -> Shape:
        """Of the transforms: the grid's own, or just enough that what wraps around misses the rows
        origin to origin + n - 1."""
        if self.boundary == "wrap":
            return self.grid
        return tuple(
            good_length(n + min(max(size - 1 - o, o), max(n - 1, 0)))
            for n, size, o in zip(self.grid, self._sizes, self.origin)
        )

    def _expression(self) -> str:
        kernel, grid = ("x".join(map(str, sizes)) for sizes in (self._sizes, self.grid))
        return f"Convolution({kernel} kernel on {grid}, {self.boundary})"


def periodic_column(A: Any) -> tuple[Array, Shape]:
    """The first column of a periodic convolution, as a grid, and this grid: the transform of the
    column gives the eigenvalues."""
    if isinstance(A, Circulant):
        return A.col, A.shape[-1:]
    kernel, origin = A._fitted()
    axes = tuple(range(-len(A.grid), 0))
    column = pad_end(A.xp, kernel, A.grid, axes)
    if any(origin):
        column = A.xp.roll(column, tuple(-o for o in origin), axis=axes)
    return column, A.grid


def periodic_spectrum(A: Any) -> tuple[Array, Shape]:
    """The transform of the first column of a periodic convolution, of a real one half of it, and
    the grid."""
    column, grid = periodic_column(A)
    if (known := _known_spectrum(A)) is not None:
        return known, grid
    transform = A.xp.fftn if A.is_complex else A.xp.rfftn
    return transform(column, axes=tuple(range(-len(grid), 0))), grid


def of_spectrum(A: Any, values: Array, grid: Shape) -> Any:
    """A as a circulant, or a periodic convolution, that has these eigenvalues; the call that is
    under way knows them."""
    xp, axes = A.xp, tuple(range(-len(grid), 0))
    values = xp.broadcast_to(values, (*A.batch_shape, *values.shape[-len(grid) :]))
    column = xp.ifftn(values, axes=axes) if A.is_complex else xp.irfftn(values, grid, axes=axes)
    column, origin = xp.astype(column, A.dtype), (0,) * len(grid)
    C = Convolution._of(column, grid, "wrap", origin) if len(grid) > 1 else Circulant._of(column)
    C = C._claim(A.properties)
    if state.call is None:
        state.call = object()
    C.__dict__["_spectrum"] = state.call, values
    return C


def _known_spectrum(A: Any) -> Array | None:
    """The spectrum from which the call that is under way has made A; outside of the call arrays may
    have changed."""
    call, values = A.__dict__.get("_spectrum", (None, None))
    return values if state.current is not None and call is state.call else None


def _gather(A: LinearOperator, values: Array, which: np.ndarray) -> Array:
    """The matrix whose entries are these of the values, which lie along the last axis."""
    xp = A.xp
    if not which.size:
        return xp.zeros(A.shape, **kind_of(A))
    places = xp.asarray(which.reshape(-1), device=A._context.device)
    return xp.reshape(xp.take(values, places, axis=-1), A.shape)


def _shifted_sums(xp: Any, A: Convolution, x: Array) -> Array:
    """sum_j kernel[j] padded[i + size - 1 - j], x padded at both ends by what the kernel
    reaches."""
    grid, sizes = A.grid, A._sizes
    d = len(grid)
    for axis, (n, size, o) in enumerate(zip(grid, sizes, A.origin), -1 - d):
        before, after = size - 1 - o, o
        if A.boundary == "zero":
            x = pad_with_zeros(xp, x, before, after, axis)
        else:
            ends = _cut(x, axis, n - before, n), x, _cut(x, axis, 0, after)
            x = xp.concat([end for end in ends if end.shape[axis]], axis=axis)
    out = None
    for j in product(*map(range, sizes)):
        window = tuple(slice(size - 1 - i, size - 1 - i + n) for n, size, i in zip(grid, sizes, j))
        term = A.kernel[(..., *j)][(..., *(None,) * (d + 1))] * x[(..., *window, slice(None))]
        out = term if out is None else out + term
    return out


def _by_transforms(xp: Any, A: Convolution, x: Array) -> Array:
    full = circular_convolution(A.kernel, x, A._lengths())
    if A.boundary == "zero":
        window = (slice(o, o + n) for n, o in zip(A.grid, A.origin))
        return full[(..., *window, slice(None))]
    axes = tuple(range(-1 - len(A.grid), -1))
    return xp.roll(full, tuple(-o for o in A.origin), axis=axes) if any(A.origin) else full


def _cut(x: Array, axis: int, low: int, high: int) -> Array:
    """x[low:high] along a negative axis."""
    return x[(..., slice(low, high), *(slice(None),) * (-axis - 1))]
