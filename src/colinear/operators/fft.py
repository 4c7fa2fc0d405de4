"""The unitary discrete Fourier transform over a grid."""

from __future__ import annotations

import math
from typing import Any

from .. import backends
from ..backends import Array, namespace_of
from ..info import ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC, UNITARY
from .base import LinearOperator
from .context import Context, given_context
from .fourier import fourier_flops
from .identity import promoted
from .memo import memo


class FFT(LinearOperator):
    """The discrete Fourier transform of a grid that is flattened in row-major order, scaled to be unitary.

    `FFT(n) @ x` is `numpy.fft.fft(x, norm="ortho")`. It holds no numbers, so it takes framework, precision and device from what
    it multiplies; the result is complex. Alone it is NumPy's, complex128. A product costs O(n log n).

    Parameters
    ----------
    shape : int or tuple of int
        The sizes of the grid. They are the attribute `grid` (`shape` is the matrix's).
    like, dtype : optional
        As for `Identity`: whose framework, precision and device to take.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> F = co.FFT((2, 3))
    >>> F.shape, F.isa(co.Unitary)
    ((6, 6), True)
    """

    grid: tuple[int, ...]
    inverse: bool
    context: Context

    def __new__(cls, shape: Any, *, like: Any = None, dtype: Any = None) -> Any:
        return cls._of(grid_sizes(shape, "FFT"), False, given_context("FFT", like, dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        n = math.prod(self.grid)
        return (n, n)

    @memo
    def _context(self) -> Context:
        backend, dtype, device = self.context
        if dtype is None or dtype is complex:
            return Context(backend, complex, device)  # complex, of the precision of what it meets
        return Context(backend, backends.get(backend or "numpy").complex_dtype(dtype), device)

    def _infer(self) -> int:
        # Entries exp(-2 pi i j k / n): symmetric, and real where no side is longer than 2.
        return UNITARY | SYMMETRIC | (SELF_ADJOINT if all(size <= 2 for size in self.grid) else 0)

    def _adjoint(self) -> LinearOperator:
        return FFT._of(self.grid, not self.inverse, self.context)

    _conj = _adjoint

    def _transpose(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        n = self.shape[-1]
        if X.shape[-2] == 0 or X.shape[-1] == 0:
            return xp.astype(X, xp.complex_dtype(X.dtype))
        values = xp.reshape(X, (*X.shape[:-2], *self.grid, X.shape[-1]))
        axes = tuple(range(-1 - len(self.grid), -1))
        transformed = xp.ifftn(values, axes=axes) * math.sqrt(n) if self.inverse else xp.fftn(values, axes=axes) / math.sqrt(n)
        return xp.reshape(transformed, X.shape)

    @property
    def _flops(self) -> float:
        return fourier_flops(self.grid, real=False)

    def _expression(self) -> str:
        return f"FFT({'x'.join(map(str, self.grid))}){'.H' if self.inverse else ''}"


def grid_sizes(shape: Any, what: str) -> tuple[int, ...]:
    """The sizes of a grid, given as a number or a tuple of numbers."""
    try:
        sizes = tuple(int(size) for size in shape) if hasattr(shape, "__iter__") else (int(shape),)
        wrong = sizes != tuple(shape) if hasattr(shape, "__iter__") else sizes[0] != shape
    except (TypeError, ValueError):
        wrong, sizes = True, ()
    if wrong or not sizes or min(sizes) < 0:
        raise ShapeError(f"{what}: the grid's shape must be an integer or a tuple of integers, none negative; it is {shape!r}.")
    return sizes
