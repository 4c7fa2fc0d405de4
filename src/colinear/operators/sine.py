"""The orthogonal sine transform over a grid: the eigenvectors of tridiagonal Toeplitz matrices, so of Laplacians."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, SYMMETRIC, UNITARY
from .base import LinearOperator
from .context import Context, given_context
from .fft import grid_sizes
from .fourier import fourier_flops
from .identity import promoted
from .memo import memo


class Sine(LinearOperator):
    """The discrete sine transform (of the first kind) of a grid that is flattened in row-major order, scaled to be orthogonal.

    In one dimension its entries are `sqrt(2 / (n + 1)) sin(π j k / (n + 1))` for j, k = 1, ..., n: it is symmetric and its own
    inverse, and `Sine(n) @ x` is `scipy.fft.dst(x, type=1, norm="ortho")`. It holds no numbers, so it takes framework, dtype and
    device from what it multiplies. A product costs O(n log n).

    Parameters
    ----------
    shape : int or tuple of int
        The sizes of the grid. They are the attribute `grid` (`shape` is the matrix's).
    like, dtype : optional
        As for `Identity`: whose framework, dtype and device to take.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> S = co.Sine(3)
    >>> (S @ co.Tridiagonal([-1, -1], [2, 2, 2], [-1, -1]) @ S).to_dense().diagonal().round(4)
    array([0.5858, 2.    , 3.4142])
    """

    grid: tuple[int, ...]
    context: Context

    def __new__(cls, shape: Any, *, like: Any = None, dtype: Any = None) -> Any:
        return cls._of(grid_sizes(shape, "Sine"), given_context("Sine", like, dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        n = math.prod(self.grid)
        return (n, n)

    @memo
    def _context(self) -> Context:
        return self.context

    def _infer(self) -> int:
        return UNITARY | SYMMETRIC | SELF_ADJOINT  # its entries are real, whatever its dtype

    def _transpose(self) -> LinearOperator:
        return self

    _adjoint = _conj = _transpose

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        values = xp.reshape(X, (*X.shape[:-2], *self.grid, X.shape[-1]))
        return xp.reshape(sine_transform(values, range(-1 - len(self.grid), -1)), X.shape)

    _rmatmat = _matmat

    def _right_matmat(self, X: Array) -> Array:
        """X S, without moving axes."""
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        values = xp.reshape(X, (*X.shape[:-1], *self.grid))
        return xp.reshape(sine_transform(values, range(-len(self.grid), 0)), X.shape)

    @property
    def _flops(self) -> float:
        return sum(fourier_flops((2 * size + 2,), real=True) * math.prod(self.grid) / max(size, 1) for size in self.grid)

    def _expression(self) -> str:
        return f"Sine({'x'.join(map(str, self.grid))})"


def sine_transform(x: Array, axes: Sequence[int], overwrite: bool = False) -> Array:
    """Along each axis y_k = sqrt(2 / (n + 1)) sum_j sin(π j k / (n + 1)) x_j. `overwrite`: whether x may be, in NumPy."""
    xp = namespace_of(x)
    if 0 in x.shape:
        return x
    if xp.name == "numpy":
        from scipy.fft import dstn  # whose import takes longer than all of our operators

        y = dstn(x, type=1, norm="ortho", axes=tuple(axes), overwrite_x=overwrite)
        return y if y.dtype == x.dtype else y.astype(x.dtype)  # half precision
    for axis in axes:
        x = _by_odd_extension(xp, x, axis)
    return x


def _by_odd_extension(xp: Any, x: Array, axis: int) -> Array:
    """One axis, by Fourier's transform of [0, x, 0, -x reversed]: that of an odd sequence is -2i times that of its half in sines."""
    x = xp.moveaxis(x, axis, -1)
    n = x.shape[-1]
    zero = xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, device=xp.device_of(x))
    odd = xp.concat([zero, x, zero, -xp.flip(x, axis=-1)], axis=-1)
    y = 0.5j * xp.fft(odd) if xp.is_complex(x) else xp.astype(-0.5 * xp.imag(xp.rfftn(odd, (-1,))), x.dtype)
    return xp.moveaxis(math.sqrt(2 / (n + 1)) * y[..., 1 : n + 1], -1, axis)
