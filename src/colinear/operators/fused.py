"""Matrices of a few diagonals laid out for an iteration, where a device multiplies by all of them in
one pass over memory."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from typing import Any

import numpy as np

from ..backends import Array, namespace_of, zeros_like
from .base import LinearOperator
from .tree import MOST_DIAGONALS, Shape

FEWEST_ROWS = 1 << 17  # of a matrix, beside whose products the layout and the kernel do not count


def is_fused(A: Any, array: Array, rows: int) -> bool:
    """Whether products with A, of an iteration that is not differentiated, are one pass where it
    is. `array` is one of A's."""
    xp = namespace_of(array)
    return (
        rows >= FEWEST_ROWS
        and xp.fuses_diagonals(array)
        and not (xp.name == "torch" and xp.is_differentiated(*A.arrays()))
    )


class FusedDiagonals(LinearOperator):
    """The operator A in the layout of its framework: `parts` are what `diagonals_matmul` takes."""

    A: LinearOperator
    parts: tuple[Array, ...]
    offsets: Shape

    @property
    def shape(self) -> Shape:
        return self.A.shape

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        A: Any = self.A.T
        return A._prepare(False)

    def _conj(self) -> LinearOperator:
        A: Any = self.A.conj()
        return A._prepare(False)

    def _matmat(self, X: Array) -> Array:
        return self.xp.diagonals_matmul(self.parts, self.offsets, X)

    _matvec = _matmat

    def _to_dense(self) -> Array:
        return self.A.to_dense()

    @property
    def _flops(self) -> float:
        return self.A.flops


def fuse_band(A: Any, is_planned: bool) -> Any:
    """A matrix of diagonals laid out for an iteration; A itself where that is of no use."""
    xp, m, offsets = A.xp, A.shape[-2], A.offsets
    if is_planned or len(A.shape) > 2 or len(offsets) > MOST_DIAGONALS:
        return A
    if not is_fused(A, A.diagonals[0], m):
        return A
    row = xp.arange(m, device=xp.device_of(A.diagonals[0]))
    rows: list[Array] = []
    bits: Any = 0
    for d, (k, diagonal) in enumerate(zip(offsets, A.diagonals)):
        first, last = max(0, -k), max(0, -k) + diagonal.shape[-1]
        before, after = (zeros_like(xp, diagonal, (size,)) for size in (first, m - last))
        rows.append(xp.astype(xp.concat([before, diagonal, after], axis=0), A.dtype))
        bits = bits + xp.where((row >= first) & (row < last), 1 << d, 0)
    values = xp.stack(rows)
    return FusedDiagonals._of(A, xp.lay_out(values, bits), tuple(offsets))


def fuse_stencil(A: Any, is_planned: bool) -> Any:
    """A convolution by a small kernel as diagonals with one entry each; A itself where that is of
    no use. XLA fuses shifted sums by itself."""
    xp, d = A.xp, len(A.grid)
    if is_planned or xp.is_functional or A.kernel.ndim > d:
        return A
    if not is_fused(A, A.kernel, math.prod(A.grid)):
        return A
    kernel, origin = A._fitted()
    sides = [
        _reaches(xp, A.boundary, n, size, o, xp.device_of(kernel))
        for n, size, o in zip(A.grid, kernel.shape, origin)
    ]
    bits: Any = 0
    offsets: list[int] = []
    places: list[int] = []
    for choice in itertools.product(*sides):  # of an entry, and of a way around the grid, by axis
        entry, step = 0, 0
        for (j, s, _), n, size in zip(choice, A.grid, kernel.shape):
            entry, step = entry * size + j, step * n + s
        masks = [
            xp.reshape(mask, (-1, *(1,) * (d - 1 - axis)))
            for axis, (_, _, mask) in enumerate(choice)
        ]
        has = xp.reshape(functools.reduce(operator.and_, masks), (-1,))
        bits = bits + xp.where(has, 1 << len(offsets), 0)
        offsets.append(step)
        places.append(entry)
    if len(offsets) > MOST_DIAGONALS:
        return A
    entries = xp.take(xp.reshape(kernel, (-1, 1)), np.asarray(places), axis=0)
    return FusedDiagonals._of(A, xp.lay_out(entries, bits), tuple(offsets))


def _reaches(xp: Any, boundary: str, n: int, size: int, origin: int, device: Any) -> Any:
    """Along one axis: an entry of the kernel, the step to the point that it multiplies, and for
    which points this is one of the grid; where the grid is periodic, the steps around it too."""
    i, found = xp.arange(n, device=device), []
    for j in range(size):
        for around in (0,) if boundary == "zero" else (0, n, -n):
            step = origin - j + around
            if -n < step < n:
                found.append((j, step, (i + step >= 0) & (i + step < n)))
    return found
