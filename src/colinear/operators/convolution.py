"""Convolutions on a grid of any number of dimensions, and what they share with circulants: the
transform of the first column has the eigenvalues."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..status import state
from .banded import pad_end
from .base import LinearOperator
from .context import as_array, as_one_block, broadcast_batches, given_context, kind_of, zero_product
from .divided import Spread, by_rows, can_transform, is_divided, parts_of, prepared, with_halos
from .fused import fuse_stencil
from .toeplitz import (
    Circulant,
    entries_at,
    grid_of_line,
    keep_spectrum,
    known_spectrum,
    prepare_divided,
)
from .tree import Shape, conjugate_leaves
from .unitary import FFT, circular_convolution, convolution_flops, good_length, grid_sizes

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
    # the kernel's index that multiplies x[i]: flipped with the kernel, so transposes stay in the
    # family
    origin: Shape
    spread: Spread | None = None  # the mesh, and its axis, over which the grid's rows are divided

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
        return self._replace(kernel=kernel, origin=origin)

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
        fitted = Convolution._of(kernel, self.grid, self.boundary, origin, self.spread)
        if is_divided(self, xp):
            return fitted._divided(X)
        x = xp.reshape(X, (*X.shape[:-2], *self.grid, k))
        spectrum = known_spectrum(self)
        if spectrum is not None and xp.is_on_device(X) and self.is_complex == xp.is_complex(X):
            # three launches, and a sum of shifted grids takes two for each entry of the kernel
            out = circular_convolution(kernel, x, self.grid, spectrum)
            return xp.reshape(out, (*batch, n, k))
        is_small = math.prod(fitted._sizes) <= DIRECT_ENTRIES
        out = (_shifted_sums if is_small else _by_transforms)(xp, fitted, x)
        return xp.reshape(out, (*batch, n, k))

    def _prepare(self, is_planned: bool) -> Any:
        if is_divided(self, self.xp):
            return self if self.has_halos else prepare_divided(self, is_planned)
        is_small = math.prod(self._sizes) <= DIRECT_ENTRIES
        return fuse_stencil(self, is_planned) if is_small else self

    @property
    def halos(self) -> tuple[int, int]:
        """How many rows of the grid before a row, and how many behind it, the kernel reaches."""
        kernel, origin = self._fitted()
        size = kernel.shape[-len(self.grid)]
        return size - 1 - origin[0], origin[0]

    @property
    def has_halos(self) -> bool:
        """Whether its rows are divided, and the kernel reaches no further than the next device."""
        return self.spread is not None and max(self.halos) <= self.grid[0] // parts_of(self.spread)

    def _divided(self, X: Array) -> Array:
        """The product with a fitted kernel, of which each device of a mesh makes its rows."""
        if not self.has_halos:
            return prepared(self)._matmat(X)
        multiply = backends.program(self.backend, _multiply_with_halos)
        return as_one_block(lambda X: multiply(self, X), X) if X.ndim > 2 else multiply(self, X)

    def _divided_grid(self, p: int) -> tuple[Shape, Shape]:
        is_periodic = self.boundary == "wrap"
        if len(self.grid) == 1:
            return grid_of_line(self.grid[0], p, p if is_periodic else 2 * p)
        if is_periodic:
            return self.grid, self.grid
        first, *others = self._lengths()
        return self.grid, (p * good_length(-(-first // p)), *others)

    def _divided_kernel(self, lengths: Shape) -> tuple[Array, ...]:
        xp, d, (kernel, origin) = self.xp, len(self.grid), self._fitted()
        if d > 1 or self.boundary == "wrap":
            axes, sizes = tuple(range(-d, 0)), lengths if d > 1 else self.grid
            kernel = xp.roll(pad_end(xp, kernel, sizes, axes), tuple(-o for o in origin), axis=axes)
        else:
            (n,), (o,) = self.grid, origin
            after = pad_end(xp, kernel[o:], (n,), (-1,))
            before = xp.pad(kernel[:o], n - o, 0, -1)
            return after, before
        return (kernel,)

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
                kernel = self.xp.pad(kernel, 0, -size % n, axis)
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
        entries = xp.pad(xp.reshape(kernel, (*batch, count)), 0, 1, axis=-1)
        return entries_at(self, entries, np.where(places < 0, count, places))

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
    if (known := known_spectrum(A)) is not None:
        return known, A.shape[-1:] if isinstance(A, Circulant) else A.grid
    column, grid = periodic_column(A)
    if not is_divided(A, A.xp):
        transform = A.xp.fftn if A.is_complex else A.xp.rfftn
        return keep_spectrum(A, transform(column, axes=tuple(range(-len(grid), 0)))), grid
    values = transform_on_grid(A, column, grid)
    return values if A.is_complex else values[..., : grid[-1] // 2 + 1], grid


def transform_on_grid(A: Any, x: Array, grid: Shape, inverse: bool = False) -> Array:
    """The Fourier transform of x, (*batch, *grid), which the devices of a mesh share where they
    share the products of A, and its size permits it."""
    xp, axes, n = A.xp, tuple(range(-len(grid), 0)), math.prod(grid)
    if not is_divided(A, xp) or not can_transform(grid, parts_of(A.spread)):
        return xp.ifftn(x, axes=axes) if inverse else xp.fftn(x, axes=axes)
    F = FFT._of(grid, inverse, given_context("FFT", x, None), A.spread)
    y = F._matmat(xp.reshape(x, (n, 1)))
    return xp.reshape(y, grid) * (1 / math.sqrt(n) if inverse else math.sqrt(n))


def periodic(A: Any, column: Array, grid: Shape) -> Any:
    """The operator of A's family, a circulant or a periodic convolution, that has this first column;
    divided as A is."""
    if isinstance(A, Circulant):
        return Circulant._of(column, A.spread)
    return Convolution._of(column, grid, "wrap", (0,) * len(grid), A.spread)


def of_spectrum(A: Any, values: Array, grid: Shape, spread: Spread | None) -> Any:
    """A as a circulant, or a periodic convolution, that has these eigenvalues; the call that is
    under way knows them."""
    xp, axes = A.xp, tuple(range(-len(grid), 0))
    values = xp.broadcast_to(values, (*A.batch_shape, *values.shape[-len(grid) :]))
    column = xp.ifftn(values, axes=axes) if A.is_complex else xp.irfftn(values, grid, axes=axes)
    column, origin = xp.astype(column, A.dtype), (0,) * len(grid)
    C = (
        Convolution._of(column, grid, "wrap", origin, spread)
        if len(grid) > 1
        else Circulant._of(column, spread)
    )
    C = C._claim(A.properties)
    if state.call is None:
        state.call = object()
    C.__dict__["_spectrum"] = state.call, values
    return C


def _multiply_with_halos(xp: Any, A: Convolution, X: Array) -> Array:
    """The convolution with a fitted kernel on a grid whose rows are cut: devices exchange the rows
    that the kernel reaches."""
    _, *others = A.grid
    (before, after), points = A.halos, math.prod(others)

    def local(on_mesh: Any, axis: str, cut: Any, kernel: Array) -> Array:
        (X,) = cut
        rows, wraps = X.shape[0] // points, A.boundary == "wrap"
        X = with_halos(on_mesh, axis, X, before * points, after * points, wraps)
        x = xp.reshape(X, (rows + before + after, *others, X.shape[-1]))
        own = Convolution._of(kernel, (rows, *others), A.boundary, A.origin)
        is_small = math.prod(A._sizes) <= DIRECT_ENTRIES
        out = (_shifted_sums if is_small else _by_transforms)(xp, own, x, has_halos=True)
        return xp.reshape(out, (rows * points, X.shape[-1]))

    return by_rows(local, A.spread, (X,), A.kernel)


def _shifted_sums(xp: Any, A: Convolution, x: Array, has_halos: bool = False) -> Array:
    """sum_j kernel[j] padded[i + size - 1 - j], x padded at both ends by what the kernel
    reaches. With halos the first axis of x is so already."""
    grid, sizes = A.grid, A._sizes
    d = len(grid)
    for axis, (n, size, o) in enumerate(zip(grid, sizes, A.origin), -1 - d):
        before, after = size - 1 - o, o
        if has_halos and axis == -1 - d:
            continue
        if A.boundary == "zero":
            x = xp.pad(x, before, after, axis)
        else:
            ends = _cut(x, axis, n - before, n), x, _cut(x, axis, 0, after)
            x = xp.concat([end for end in ends if end.shape[axis]], axis=axis)
    out = None
    for j in product(*map(range, sizes)):
        window = tuple(slice(size - 1 - i, size - 1 - i + n) for n, size, i in zip(grid, sizes, j))
        term = A.kernel[(..., *j)][(..., *(None,) * (d + 1))] * x[(..., *window, slice(None))]
        out = term if out is None else out + term
    return out


def _by_transforms(xp: Any, A: Convolution, x: Array, has_halos: bool = False) -> Array:
    """The convolution by Fourier transforms. With halos x has more rows than the grid, those that
    the kernel reaches."""
    lengths, origin = A._lengths(), A.origin
    if has_halos:  # what wraps around misses the rows of the grid
        lengths = (good_length(x.shape[-1 - len(A.grid)]), *lengths[1:])
        origin = (A._sizes[0] - 1, *origin[1:])
    full = circular_convolution(A.kernel, x, lengths)
    if A.boundary == "wrap" and any(origin):
        axes = tuple(range(-1 - len(A.grid), -1))
        full, origin = xp.roll(full, tuple(-o for o in origin), axis=axes), (0,) * len(origin)
    window = (slice(o, o + n) for n, o in zip(A.grid, origin))
    return full[(..., *window, slice(None))]


def _cut(x: Array, axis: int, low: int, high: int) -> Array:
    """x[low:high] along a negative axis."""
    return x[(..., slice(low, high), *(slice(None),) * (-axis - 1))]
