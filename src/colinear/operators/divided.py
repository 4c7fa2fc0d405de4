"""Convolutions and Fourier transforms of grids that are cut over the devices of a mesh.

Each device has some rows of the grid's first axis and all of its other axes. A kernel that reaches
no further than the next device needs some rows of the neighbours, a halo. For a larger one each
device transforms the axes that it has whole; then the devices exchange frequencies of these axes
for rows, so that each has all rows of its share of the frequencies, and transforms the first axis.
There the kernel multiplies, and the same way leads back: two exchanges of all with all.

A line of n = p c points counts as a grid of p rows, one for each device, and c columns: a Toeplitz
matrix has p x p blocks of size c, T[d, e] = T_(d - e), which are Toeplitz matrices themselves. So
the sum over e is a convolution along the first axis, and a product with each T_r one along the
second, of twice its length so that what wraps around misses the rows. (The transform of the line
itself would take twice as many exchanges.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .. import backends
from ..backends import Array, namespace_of
from .banded import pad_end
from .base import LinearOperator
from .context import Context, as_one_block, kind_of
from .tree import Shape, memo

Spread = tuple[Any, str]  # a mesh of devices, and the axis of it over which rows are divided


def is_divided(A: Any, xp: Any) -> bool:
    """Whether products of A with arrays of this framework are divided over a mesh of it."""
    return A.spread is not None and backends.mesh_module(A.spread[0]).__package__ == xp.__name__


def common_spread(parts: Iterable[Any]) -> Spread | None:
    """The mesh over which the first of these that is divided is divided."""
    return next((s for A in parts if (s := getattr(A, "spread", None)) is not None), None)


def parts_of(spread: Spread) -> int:
    """The number of devices over which work is divided."""
    mesh, axis = spread
    return int(backends.mesh_module(mesh).axis_sizes(mesh)[axis])


def by_rows(f: Callable[..., Array], spread: Any, cut: tuple[Array, ...], whole: Any) -> Array:
    """`f(on_mesh, axis, cut, whole)` on each device, of its rows of the matrices in `cut`."""
    mesh, axis = spread
    on_mesh: Any = backends.mesh_module(mesh)
    local = lambda cut, whole: f(on_mesh, axis, cut, whole)
    return on_mesh.apply_by_rows(local, mesh, axis, cut, whole)


def with_halos(
    on_mesh: Any, axis: str, X: Array, before: int, after: int, wraps: bool = False
) -> Array:
    """The rows of a device between the last rows of the device before and the first of the one
    behind; around the grid, or zeros outside of it."""
    parts = [X]
    if before:
        parts.insert(0, on_mesh.shift_rows(X[X.shape[0] - before :], axis, 1, wraps))
    if after:
        parts.append(on_mesh.shift_rows(X[:after], axis, -1, wraps))
    return namespace_of(X).concat(parts, axis=0)


# Transforms of a grid whose rows are cut, on one device.


def _exchanged(on_mesh: Any, axis: str, p: int, x: Array, lengths: Shape, real: bool) -> Array:
    """The transform along all axes but the first of a grid that is padded with zeros to `lengths`:
    of its rows here, (rows, *others, k), to all rows at a share of the frequencies, (all rows, F,
    k)."""
    xp, others = namespace_of(x), lengths[1:]
    axes = tuple(range(1, len(lengths)))
    transform = xp.rfftn if real else xp.fftn
    x = transform(pad_end(xp, x, others, axes), axes=axes)
    x = xp.reshape(x, (x.shape[0], -1, x.shape[-1]))
    x = pad_end(xp, x, (-(-x.shape[1] // p) * p,), (1,))
    return on_mesh.exchange(x, axis, 1, 0)


def _along_rows(x: Array, lengths: Shape) -> Array:
    """The transform along the first axis, padded with zeros to its length."""
    xp = namespace_of(x)
    return xp.fftn(pad_end(xp, x, lengths[:1], (0,)), axes=(0,))


def _from_frequencies(
    on_mesh: Any, axis: str, y: Array, lengths: Shape, rows: int, real: bool
) -> Array:
    """The rows here, of the first `rows` of a grid, from its transform as above."""
    xp, others = namespace_of(y), lengths[1:]
    axes = tuple(range(1, len(lengths)))
    half = (*others[:-1], others[-1] // 2 + 1) if real else others
    y = on_mesh.exchange(xp.ifftn(y, axes=(0,))[:rows], axis, 0, 1)
    y = xp.reshape(y[:, : math.prod(half)], (y.shape[0], *half, y.shape[-1]))
    return xp.irfftn(y, others, axes=axes) if real else xp.ifftn(y, axes=axes)


def share_of_frequencies(lengths: Shape, p: int, real: bool) -> int:
    """How many frequencies of all axes but the first each of p devices has."""
    others = (*lengths[1:-1], lengths[-1] // 2 + 1) if real else lengths[1:]
    return -(-math.prod(others) // p)


# Convolutions by transforms.


class DividedConvolution(LinearOperator):
    """The convolution A of a grid by the transform of its kernel, which is cut over the devices of
    a mesh as the vectors are: a product exchanges their frequencies twice.

    `spectrum` has a row for each frequency of all axes but the first, and a column for each of the
    first.
    """

    A: LinearOperator
    spectrum: Array
    grid: Shape
    lengths: Shape  # to which the grid is padded
    spread: Spread

    @property
    def shape(self) -> Shape:
        return self.A.shape

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        return prepared(self.A.T)

    def _conj(self) -> LinearOperator:
        return prepared(self.A.conj())

    def _matmat(self, X: Array) -> Array:
        xp, k = namespace_of(X), X.shape[-1]
        if not self.is_complex and xp.is_complex(X):
            Y = self._matmat(xp.concat([xp.real(X), xp.imag(X)], axis=-1))
            return Y[..., :k] + 1j * Y[..., k:]
        multiply = backends.program(self.backend, _multiply)
        return as_one_block(lambda X: multiply(self, X), X) if X.ndim > 2 else multiply(self, X)

    def _to_dense(self) -> Array:
        return self.A._to_dense()

    @property
    def _flops(self) -> float:
        return self.A.flops


def prepared(A: Any) -> DividedConvolution:
    """A with the transform of its kernel, for many products."""
    spectrum = backends.program(A.backend, _spectrum)(A)
    return DividedConvolution._of(A, spectrum, *divided_sizes(A), A.spread)


def divided_sizes(A: Any) -> tuple[Shape, Shape]:
    """The grid of A as it is cut, and the lengths of the transforms."""
    return A._divided_grid(parts_of(A.spread))


def _spectrum(xp: Any, A: Any) -> Array:
    """The transform of the kernel of A, cut by the frequencies of all axes but the first."""
    _, lengths = divided_sizes(A)
    real, p = not A.is_complex, parts_of(A.spread)
    kernels = A._divided_kernel(lengths)
    is_line = kernels[0].ndim == 1

    def transform(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        rows = _blocks_of_line(on_mesh, axis, cut, lengths[1]) if is_line else cut
        rows = (xp.reshape(each, (-1, *lengths[1:], 1)) for each in rows)
        parts = [_exchanged(on_mesh, axis, p, each, lengths, real) for each in rows]
        return _along_rows(xp.concat(parts, axis=0), lengths)[..., 0].T

    count = p if is_line else lengths[0]
    cut = tuple(xp.reshape(kernel, (count, -1)) for kernel in kernels)
    return by_rows(transform, A.spread, cut, ())


def _blocks_of_line(on_mesh: Any, axis: str, cut: Any, length: int) -> list[Array]:
    """The rows here of the kernel of a grid with one row for each of p devices, from that of a line
    of n points: with c = n / p, K[r, s] = kernel[r c + s] for -c < s < c, s counted from the end
    where it is negative.

    `cut` has the entries 0 to n - 1 and, unless the line is periodic, those from -n to -1.
    """
    xp = namespace_of(cut[0])
    ends = [on_mesh.shift_rows(x, axis, 1, True) for x in cut]
    if len(cut) > 1:  # before entry 0 stands entry -1
        is_first = on_mesh.place_along(axis) == 0
        ends = [xp.where(is_first, other, own) for own, other in zip(ends, ends[::-1])]
    gap = xp.zeros((1, length - 2 * cut[0].shape[1]), **kind_of(cut[0]))
    return [xp.concat([x, gap, end], axis=1) for x, end in zip(cut, ends)]


def _multiply(xp: Any, A: DividedConvolution, X: Array) -> Array:
    """F^-1 (F kernel * F X) of a grid whose rows are cut."""
    dtype = xp.result_type(A.dtype, X.dtype)
    (grid, lengths), p, real = (A.grid, A.lengths), parts_of(A.spread), not A.is_complex

    def local(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        spectrum, X = cut
        x = xp.reshape(X, (-1, *grid[1:], X.shape[-1]))
        y = _along_rows(_exchanged(on_mesh, axis, p, x, lengths, real), lengths)
        y = _from_frequencies(on_mesh, axis, spectrum.T[..., None] * y, lengths, grid[0], real)
        y = y[(slice(None), *(slice(n) for n in grid[1:]))]
        return xp.reshape(y, X.shape)

    return xp.astype(by_rows(local, A.spread, (A.spectrum, X), ()), dtype)


# The Fourier transform itself, whose frequencies are wanted in their order.


def factors_of_line(n: int, p: int) -> tuple[int, int] | None:
    """n as a product of two multiples of p, as equal as they can be; None where p^2 does not divide
    n."""
    if n % (p * p):
        return None
    rest = n // (p * p)
    first = max(d for d in range(1, math.isqrt(rest) + 1) if rest % d == 0)
    return p * first, p * (rest // first)


def can_transform(grid: Shape, p: int) -> bool:
    """Whether p devices can share a Fourier transform of this grid."""
    if 0 in grid:
        return False
    return factors_of_line(*grid, p) is not None if len(grid) == 1 else grid[0] % p == 0


def fourier_on_mesh(xp: Any, grid: Shape, inverse: bool, spread: Spread, X: Array) -> Array:
    """The unitary Fourier transform of grids whose rows are cut, in the usual order.

    Of a line of n = a b points, x[i b + j], in two steps with twiddle factors between: y[k, j] =
    w_n^(j k) Σ_i w_a^(i k) x[i b + j], and X[k + a l] = Σ_j w_b^(j l) y[k, j].
    """
    p, n = parts_of(spread), math.prod(grid)
    flip = xp.conj if inverse else lambda x: x  # F^-1 x = conj(F conj(x))

    def of_line(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        (X,), (a, b) = cut, factors_of_line(n, p) or (n, 1)
        x = xp.reshape(X, (a // p, b, -1))
        y = xp.fftn(on_mesh.exchange(x, axis, 1, 0), axes=(0,))
        first = on_mesh.place_along(axis) * (b // p)
        counted = partial(xp.arange, device=xp.device_of(y))
        turns = counted(a)[:, None] * (first + counted(b // p)) % n
        turns = xp.where(2 * turns > n, turns - n, turns)  # small angles are more exact
        angles = xp.astype(turns, xp.real_dtype(y.dtype)) * (-2 * math.pi / n)
        y = y * xp.astype(xp.exp(1j * angles), y.dtype)[..., None]
        y = xp.fftn(on_mesh.exchange(y, axis, 0, 1), axes=(1,))
        y = on_mesh.exchange(y, axis, 1, 0)
        return xp.reshape(xp.moveaxis(y, 1, 0), X.shape)

    def of_grid(on_mesh: Any, axis: str, cut: Any, whole: Any) -> Array:
        (X,) = cut
        x = xp.reshape(X, (-1, *grid[1:], X.shape[-1]))
        y = _along_rows(_exchanged(on_mesh, axis, p, x, grid, False), grid)
        y = on_mesh.exchange(y, axis, 0, 1)[:, : n // grid[0]]
        return xp.reshape(y, X.shape)

    local = of_line if len(grid) == 1 else of_grid
    return flip(by_rows(local, spread, (flip(X),), ())) / math.sqrt(n)
