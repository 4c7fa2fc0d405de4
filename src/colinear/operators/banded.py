"""Matrices of a few diagonals, and of three."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, ClassVar

import numpy as np

from ..backends import Array, mesh_module, namespace_of
from ..errors import ShapeError
from .base import LinearOperator
from .context import as_arrays, broadcast_batches, concat_batches, spread
from .diagonal import size
from .fused import fuse_band
from .tree import Shape, conjugate_leaves, memo

# A matrix of a few diagonals.


class Banded(LinearOperator, init=False):
    """The matrix with these diagonals, as `scipy.sparse.diags_array` builds it. A product costs 2
    flops per stored number.

    Parameters
    ----------
    diagonals : sequence of arrays of shape (*batch, length)
        Each of its natural length: min(m, n - k) above the main diagonal, min(m + k, n) below.
        Where `shape` is given, one number fills its diagonal. Batch shapes broadcast.
    offsets : sequence of int
        k > 0 above the main diagonal, k < 0 below; each once.
    shape : (m, n), optional
        Default: the square matrix that the first diagonal fits.

    Examples
    --------
    >>> import colinear as co
    >>> co.Banded([[1.0, 2.0], [9.0]], [0, 1]).to_dense()
    array([[1., 9.],
           [0., 2.]])
    """

    diagonals: tuple[Array, ...]
    offsets: Shape
    m: int
    n: int

    def __new__(cls, diagonals: Any, offsets: Any, shape: tuple[int, int] | None = None) -> Banded:
        try:
            offsets = tuple(map(index, offsets))
        except TypeError as error:
            raise ShapeError(
                f"Banded: offsets must be a sequence of integers, not {offsets!r}."
            ) from error
        if isinstance(diagonals, (int, float, complex, str)) or getattr(diagonals, "ndim", 1) == 0:
            raise ShapeError("Banded: expected a sequence of diagonals, one for each offset.")
        if len(diagonals) != len(offsets):
            raise ShapeError(
                f"Banded: {len(diagonals)} diagonals and {len(offsets)} offsets; expected as many "
                "of each."
            )
        if not offsets:
            raise ShapeError("Banded: expected at least one diagonal. Use Zero(m, n) for none.")
        if len(set(offsets)) != len(offsets):
            raise ShapeError(
                f"Banded: the offsets {offsets} repeat; add the diagonals that share one."
            )
        arrays = as_arrays("Banded", *diagonals, min_ndim=0 if shape is not None else 1)
        m, n = _two(shape) if shape is not None else (arrays[0].shape[-1] + abs(offsets[0]),) * 2
        lengths = [natural_length(k, m, n) for k in offsets]
        if shape is not None:
            arrays = tuple(map(_spread, arrays, lengths))
        for d, k, length in zip(arrays, offsets, lengths):
            if d.shape[-1] != length:
                raise ShapeError(
                    f"Banded: the diagonal at offset {k} of a {m}x{n} matrix has length {length}; "
                    f"got {d.shape[-1]}."
                )
        broadcast_batches(*[d.shape[:-1] for d in arrays], what="Banded")
        return cls._of(arrays, offsets, m, n)

    @memo
    def shape(self) -> Shape:
        return (*broadcast_batches(*(d.shape[:-1] for d in self.diagonals)), self.m, self.n)

    def _transpose(self) -> LinearOperator:
        # a diagonal's length stays
        return Banded._of(self.diagonals, tuple(-k for k in self.offsets), self.n, self.m)

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        """Y[i] = sum over k of d_k[i] X[i + k], where d_k counts by rows."""
        xp, offsets, (m, n) = namespace_of(X), self.offsets, self.shape[-2:]
        if xp.name == "numpy":
            return _accumulate(self.diagonals, offsets, m, X)
        is_plain = 0 in offsets and m == n and not xp.is_functional
        if is_plain and _may_add_in_place(xp, self.diagonals, X):
            return _add_in_place(xp, self.diagonals, offsets, X)
        above, below = max(0, -min(offsets)), max(0, m + max(offsets) - n)
        padded = xp.pad(X, above, below, axis=-2)
        total = None
        for d, k in zip(self.diagonals, offsets):
            row = min(m, max(0, -k))
            by_rows = xp.pad(d, row, m - row - d.shape[-1], axis=-1)
            term = by_rows[..., None] * padded[..., above + k : above + k + m, :]
            total = term if total is None else total + term
        return total

    _prepare = fuse_band

    def _to_dense(self) -> Array:
        n, xp = self.shape[-1], self.xp
        places = [
            max(0, -k) * n + max(0, k) + (n + 1) * np.arange(d.shape[-1])
            for d, k in zip(self.diagonals, self.offsets)
        ]
        values = [xp.astype(spread(d, self.batch_shape, 1), self.dtype) for d in self.diagonals]
        return scatter_dense(self, xp.concat(values, axis=-1), np.concatenate(places))

    @property
    def _flops(self) -> float:
        return 2.0 * sum(d.shape[-1] for d in self.diagonals)

    def _expression(self) -> str:
        ks = self.offsets
        which = str(list(ks)) if len(ks) <= 5 else f"{len(ks)} in {min(ks)}..{max(ks)}"
        return f"Banded({'x'.join(map(str, self.shape))}, offsets {which})"


# ---------------------------------------------------------------------- checks


def _two(shape: Any) -> tuple[int, int]:
    try:
        m, n = shape
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"Banded: shape={shape!r}; expected (m, n). Batch dimensions are those of the "
            "diagonals."
        ) from error
    return size(m, "Banded"), size(n, "Banded")


def natural_length(k: int, m: int, n: int) -> int:
    """How many entries the k-th diagonal of an m x n matrix has."""
    return max(0, min(m + min(k, 0), n - max(k, 0)))


def band_widths(A: Any) -> tuple[int, int]:
    """How many diagonals there are below and above the main one."""
    return max(0, -min(A.offsets)), max(0, *A.offsets)


def is_narrow(A: Any) -> bool:
    """Whether A is square, and elimination within its band cheaper than of the whole matrix."""
    lower, upper = band_widths(A)
    return A.m == A.n and 3 * (lower + 1) * (lower + upper) < A.n**2


def _spread(d: Array, length: int) -> Array:
    """One number fills its diagonal."""
    if d.ndim == 0 or (d.shape[-1] == 1 and length != 1):
        return namespace_of(d).broadcast_to(d, (*d.shape[:-1], length))
    return d


# ---------------------------------------------------------------------- what all matrices of diagon


def _accumulate(diagonals: Sequence[Array], offsets: Sequence[int], m: int, X: Array) -> Array:
    """The same where one may add in place: no padding, and in blocks of rows, so that the
    products stay in the cache."""
    batch = broadcast_batches(X.shape[:-2], *(d.shape[:-1] for d in diagonals))
    Y = np.zeros((*batch, m, X.shape[-1]), np.result_type(X, *diagonals))
    block = max(1, 2**15 * m // max(1, Y.size))
    for start in range(0, m, block):
        for d, k in zip(diagonals, offsets):
            first = max(0, -k)  # the row where the diagonal begins
            low, high = max(start, first), min(start + block, first + d.shape[-1])
            if low < high:
                Y[..., low:high, :] += (
                    d[..., low - first : high - first, None] * X[..., low + k : high + k, :]
                )
    return Y


def _may_add_in_place(xp: Any, diagonals: Sequence[Array], X: Array) -> bool:
    """Whether products may be written into: these of a matrix alone, in one dtype, on one device,
    whose derivatives nobody wants."""
    if xp.is_compiling() or xp.is_differentiated(X, *diagonals):
        return False
    is_plain = all(d.ndim == 1 and d.dtype is X.dtype for d in diagonals)
    return is_plain and mesh_module(xp.device_of(X)) is None


def _add_in_place(xp: Any, diagonals: Sequence[Array], offsets: Sequence[int], X: Array) -> Array:
    """The product with a square matrix that has a main diagonal: an operation for each diagonal."""
    by_offset = dict(zip(offsets, diagonals))
    Y = by_offset.pop(0)[:, None] * X
    for k, d in by_offset.items():
        first, count = max(0, -k), d.shape[-1]
        xp.axpy(
            d[:, None], X[..., first + k : first + k + count, :], Y[..., first : first + count, :]
        )
    return Y


def pad_end(xp: Any, x: Array, lengths: Sequence[int], axes: Sequence[int]) -> Array:
    """`x` with zeros after its end along each axis, up to the lengths."""
    for axis, length in zip(axes, lengths):
        x = xp.pad(x, 0, length - x.shape[axis], axis)
    return x


def block_diagonal(xp: Any, blocks: Sequence[Array]) -> Array:
    """The matrix with these blocks along its diagonal."""
    width, rows, before = sum(block.shape[-1] for block in blocks), [], 0
    for block in blocks:
        after = width - before - block.shape[-1]
        rows.append(xp.pad(block, before, after, axis=-1))
        before += block.shape[-1]
    return concat_batches(xp, rows, axis=-2)


def scatter_dense(A: LinearOperator, values: Array, places: Any) -> Array:
    """The matrix of A's shape with these values at these places of its rows laid end to end."""
    xp, (m, n) = A.xp, A.shape[-2:]
    flat = xp.zeros((*A.batch_shape, m * n), dtype=A.dtype, device=xp.device_of(values))
    return xp.reshape(xp.set_at(flat, (..., places), values), A.shape)


# A matrix of three diagonals.


class Tridiagonal(LinearOperator, init=False):
    """The square matrix with these three diagonals. A product costs 6 n flops, a solve O(n).

    Parameters
    ----------
    lower : array of shape (*batch, n - 1)
    diag : array of shape (*batch, n)
    upper : array of shape (*batch, n - 1)
        Batch shapes broadcast.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Tridiagonal([-1, -1], [2, 2, 2], [-1, -1])
    >>> A @ np.ones(3)
    array([1., 0., 1.])
    """

    offsets: ClassVar[Shape] = (-1, 0, 1)
    lower: Array
    diag: Array
    upper: Array

    def __new__(cls, lower: Any, diag: Any, upper: Any) -> Tridiagonal:
        lower, diag, upper = as_arrays("Tridiagonal", lower, diag, upper, min_ndim=1)
        beside = max(diag.shape[-1] - 1, 0)
        for name, d in (("lower", lower), ("upper", upper)):
            if d.shape[-1] != beside:
                raise ShapeError(
                    f"Tridiagonal: diag has length {diag.shape[-1]}, so {name} must have length "
                    f"{beside}; got {d.shape[-1]}."
                )
        self = cls._of(lower, diag, upper)
        if not lower.ndim == diag.ndim == upper.ndim == 1:
            self.shape  # noqa: B018  (batches that do not fit are refused here)
        return self

    @memo
    def shape(self) -> Shape:
        n = self.diag.shape[-1]
        batches = (d.shape[:-1] for d in self.diagonals)
        return (*broadcast_batches(*batches, what="Tridiagonal"), n, n)

    def _transpose(self) -> LinearOperator:
        return Tridiagonal._of(self.upper, self.diag, self.lower)

    _conj = conjugate_leaves

    @property
    def diagonals(self) -> tuple[Array, ...]:
        """The three diagonals, from below."""
        return self.lower, self.diag, self.upper

    _matmat, _to_dense, _prepare = Banded._matmat, Banded._to_dense, fuse_band

    @property
    def _flops(self) -> float:
        return 6.0 * self.diag.shape[-1]


def multiply_both_ways(A: Tridiagonal, B: Tridiagonal, X: np.ndarray) -> np.ndarray:
    """A X + X B^T in NumPy, for no batch of A and B: in blocks of rows, so that all ten products
    and sums stay in the cache."""
    m, n = X.shape[-2:]
    Y = np.empty(X.shape, np.result_type(X, *A.diagonals, *B.diagonals))
    block = max(1, 2**14 // max(1, n))
    for start in range(0, m, block):
        stop = min(start + block, m)
        x, y = X[..., start:stop, :], Y[..., start:stop, :]
        np.multiply(x, A.diag[start:stop, None] + B.diag, out=y)
        y[..., 1:] += x[..., :-1] * B.lower
        y[..., :-1] += x[..., 1:] * B.upper
        low, high = max(start, 1), min(stop, m - 1)
        y[..., low - start :, :] += (
            A.lower[low - 1 : stop - 1, None] * X[..., low - 1 : stop - 1, :]
        )
        y[..., : high - start, :] += A.upper[start:high, None] * X[..., start + 1 : high + 1, :]
    return Y


# A bound of the residual |b - A x| / |b| that costs less than a product with A, with u the unit
# roundoff and a small c, to first order in u (see unitary.py).
#
# Elimination with row exchanges of a tridiagonal A: each row that occurs on the way has at most three
# entries, sums of two of those of A nearby, and is an equation that x satisfies, so its right side is
# no larger than those entries times those of x that they meet. A step rounds a few such numbers, and
# what it commits reaches the equations of A with multipliers of size 1 at most, two of them. Summed
# over the steps, with l, d and u the diagonals,
#
#     |b - A x|_2 <= |b - A x|_1 <= c u (|l| + |d| + |u|)^T |x| <= c u (|l|_2 + |d|_2 + |u|_2) |x|_2.
#
# Counting operations gives c < 100 in real numbers, a few times that in complex ones; it is taken as
# 1000.


LARGE_TRIDIAGONAL = 10_000  # rows from which the bound costs less than the product that it saves


def bound_of_tridiagonal(diagonals: tuple[Array, ...], X: Array, B: Array) -> float | None:
    """The bound for elimination along three diagonals; None where squares might mislead, or
    where A is small."""
    xp = namespace_of(X)
    if X.shape[-2] < LARGE_TRIDIAGONAL:
        return None
    # of which the norm is a lower bound of |b| that costs less
    part = B[..., : -(-B.shape[-2] // 16), :]
    x, b = (xp.real(xp.vecdot(Y, Y, axis=-2)) for Y in (X, part))
    # (|l| + |d| + |u|)^2 is no larger
    a = 3 * sum(xp.real(xp.vecdot(d, d, axis=-1))[..., None] for d in diagonals)
    if not all(bool(xp.all((s > 1e-30) & (s < 1e30))) for s in (a, x, b)):
        return None
    return float(500 * xp.eps(X.dtype) * xp.sqrt(xp.max(a * x / b)))
