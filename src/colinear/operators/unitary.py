"""Unitary operators: the Fourier and sine transforms over a grid, and permutations."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, is_array, namespace_of
from ..errors import DtypeError, ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC, UNITARY
from .banded import pad_end
from .base import LinearOperator
from .context import (
    Context,
    as_one_block,
    broadcast_batches,
    common_context,
    given_context,
    promoted,
    spread,
    told_by_number,
)
from .divided import Spread, fourier_on_mesh, is_divided
from .tree import Index, Shape, index_or_array, itself, memo, placed

# Convolution by fast Fourier transforms: what Toeplitz, Circulant and Convolution share.


def good_length(n: int) -> int:
    """The least length >= n with no prime factor above 5: fast in pocketfft, MKL, cuFFT and XLA
    alike.

    SciPy has it, but its import takes longer than all of our operators, and torch.compile cannot
    look into it.
    """
    best = 1 << max(n - 1, 0).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            # 5^a 3^b, and the twos that are missing
            best = min(best, odd << max(-(-n // odd) - 1, 0).bit_length())
            odd *= 3
        fives *= 5
    return best


def circular_convolution(
    kernel: Array, X: Array, lengths: Sequence[int], spectrum: Array | None = None
) -> Array:
    """The circular convolution of columns of grids with a kernel, both padded with zeros to
    `lengths`.

    kernel : (*batch, *sizes), X : (*batch, *grid, k) -> (*batch, *lengths, k). Real input takes
    real transforms, half the work, and gives real output of the promoted dtype. `spectrum` is the
    transform of the kernel, where it is known.
    """
    xp = namespace_of(X)
    dtype = xp.result_type(kernel.dtype, X.dtype)
    axes = tuple(range(-1 - len(lengths), -1))
    transform = xp.fftn if xp.is_complex(dtype) else xp.rfftn
    if spectrum is None:
        kernel = pad_end(xp, kernel[..., None], lengths, axes)
        spectrum = transform(kernel, axes=axes)[..., 0]
    product = spectrum[..., None] * transform(pad_end(xp, X, lengths, axes), axes=axes)
    if xp.is_complex(dtype):
        return xp.astype(xp.ifftn(product, axes=axes), dtype)
    return xp.astype(xp.irfftn(product, tuple(lengths), axes=axes), dtype)


def fourier_flops(lengths: Sequence[int], real: bool) -> float:
    """Of one transform, by the usual count 5 n log2(n) for complex numbers and half of it for
    real ones."""
    n = math.prod(lengths)
    return (2.5 if real else 5.0) * n * math.log2(max(n, 2))


def convolution_flops(lengths: Sequence[int], real: bool) -> float:
    """Of one circular convolution: the transforms of kernel, vector and product, and the
    product."""
    return 3 * fourier_flops(lengths, real) + (3.0 if real else 6.0) * math.prod(lengths)


# Bounds of the residual |b - A x| / |b| of a stable way to find x = A^-1 b, which cost less than a
# product with A. With u the unit roundoff and a small c, to first order in u (Higham, Accuracy and
# Stability of Numerical Algorithms, 2002): for transforms, and elimination without growth,
# |b - A x| <= c u (|b| + |A| |x|), with c = 200. That of elimination with row exchanges is in
# banded.py.


def bound_by_norm(norm: float, X: Array, B: Array) -> float | None:
    """The bound for transforms and elimination without growth, from |A|; None where b is zero or
    not finite."""
    xp = namespace_of(X)
    x, b = (xp.sqrt(xp.real(xp.vecdot(Y, Y, axis=-2))) for Y in (X, B))
    if not bool(xp.all((b > 1e-100) & xp.isfinite(b))):
        return None
    return float(100 * xp.eps(X.dtype) * xp.max(1 + norm * x / b))


# of operators on vectors that are grids, flattened
grid_shape: Any = property(lambda self: (math.prod(self.grid),) * 2)


# The unitary discrete Fourier transform over a grid.


class FFT(LinearOperator, init=False):
    """The discrete Fourier transform of a grid that is flattened in row-major order, scaled to be
    unitary.

    `FFT(n) @ x` is `numpy.fft.fft(x, norm="ortho")`. It holds no numbers, so it takes framework,
    precision and device from what it multiplies; the result is complex. Alone it is NumPy's,
    complex128. A product costs O(n log n).

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

    grid: Shape
    inverse: bool
    context: Context
    spread: Spread | None = None  # the mesh, and its axis, over which the grid's rows are divided

    def __new__(cls, shape: Any, *, like: Any = None, dtype: Any = None) -> FFT:
        return cls._of(grid_sizes(shape, "FFT"), False, given_context("FFT", like, dtype))

    shape = grid_shape

    @memo
    def _context(self) -> Context:
        # complex, of the precision of what it meets unless that is told
        return told_by_number(self.context, complex)

    def _infer(self) -> int:
        # Entries exp(-2 pi i j k / n): symmetric, and real where no side is longer than 2.
        return UNITARY | SYMMETRIC | (SELF_ADJOINT if all(size <= 2 for size in self.grid) else 0)

    def _conj(self) -> LinearOperator:
        return self._replace(inverse=not self.inverse)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        n = self.shape[-1]
        if X.shape[-2] == 0 or X.shape[-1] == 0:
            return xp.astype(X, xp.complex_dtype(X.dtype))
        if is_divided(self, xp):
            return self._divided(xp.astype(X, xp.complex_dtype(X.dtype)))
        values = xp.reshape(X, (*X.shape[:-2], *self.grid, X.shape[-1]))
        axes = tuple(range(-1 - len(self.grid), -1))
        transformed = (
            xp.ifftn(values, axes=axes) * math.sqrt(n)
            if self.inverse
            else xp.fftn(values, axes=axes) / math.sqrt(n)
        )
        return xp.reshape(transformed, X.shape)

    def _divided(self, X: Array) -> Array:
        if X.ndim > 2:
            return as_one_block(self._divided, X)
        parts = self.grid, self.inverse, self.spread
        return backends.program(namespace_of(X).name, fourier_on_mesh, *parts)(X)

    @property
    def _flops(self) -> float:
        return fourier_flops(self.grid, real=False)

    def _expression(self) -> str:
        return f"FFT({'x'.join(map(str, self.grid))}){'.H' if self.inverse else ''}"


def grid_sizes(shape: Any, what: str) -> Shape:
    """The sizes of a grid, given as a number or a tuple of numbers."""
    try:
        given = tuple(shape) if hasattr(shape, "__iter__") else (shape,)
        sizes = tuple(map(int, given))
        is_wrong = sizes != given
    except (TypeError, ValueError):
        is_wrong, sizes = True, ()
    if is_wrong or not sizes or min(sizes) < 0:
        raise ShapeError(
            f"{what}: the grid's shape must be an integer or a tuple of integers, none negative; "
            f"it is {shape!r}."
        )
    return sizes


# The orthogonal sine transform over a grid: the eigenvectors of tridiagonal Toeplitz matrices, so
# of Laplacians.


class Sine(LinearOperator, init=False):
    """The discrete sine transform (of the first kind) of a grid that is flattened in row-major
    order, scaled to be orthogonal.

    In one dimension its entries are `sqrt(2 / (n + 1)) sin(π j k / (n + 1))` for j, k = 1, ..., n:
    it is symmetric and its own inverse, and `Sine(n) @ x` is `scipy.fft.dst(x, type=1,
    norm="ortho")`. It holds no numbers, so it takes framework, dtype and device from what it
    multiplies. A product costs O(n log n).

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

    grid: Shape
    context: Context

    def __new__(cls, shape: Any, *, like: Any = None, dtype: Any = None) -> Sine:
        return cls._of(grid_sizes(shape, "Sine"), given_context("Sine", like, dtype))

    shape = grid_shape

    _implied = UNITARY | SYMMETRIC | SELF_ADJOINT  # its entries are real, whatever its dtype

    _conj = itself

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        values = xp.reshape(X, (*X.shape[:-2], *self.grid, X.shape[-1]))
        return xp.reshape(sine_transform(values, range(-1 - len(self.grid), -1)), X.shape)

    def _right_matmat(self, X: Array) -> Array:
        """X S, without moving axes."""
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        values = xp.reshape(X, (*X.shape[:-1], *self.grid))
        return xp.reshape(sine_transform(values, range(-len(self.grid), 0)), X.shape)

    @property
    def _flops(self) -> float:
        return sum(
            fourier_flops((2 * size + 2,), real=True) * math.prod(self.grid) / max(size, 1)
            for size in self.grid
        )

    def _expression(self) -> str:
        return f"Sine({'x'.join(map(str, self.grid))})"


LONGEST_SINES = 512  # rows up to which products with the matrix beat a slow transform
LARGEST_RADIX = 64  # prime factors above it make a transform slow


@functools.cache
def _is_slow_length(n: int) -> bool:
    """Whether 2 (n + 1), the length of the Fourier transform, has a large prime factor, but the
    matrix of sines is small."""
    rest = n + 1
    for factor in range(2, LARGEST_RADIX):
        while rest % factor == 0:
            rest //= factor
    return rest > 1 and n <= LONGEST_SINES


@functools.lru_cache(maxsize=8)
def _sines(n: int) -> Any:
    """sqrt(2 / (n + 1)) sin(π j k / (n + 1)), with angles of at most a turn."""
    j = np.arange(1, n + 1)
    return math.sqrt(2 / (n + 1)) * np.sin(np.outer(j, j) % (2 * n + 2) * (np.pi / (n + 1)))


def sine_transform(x: Array, axes: Sequence[int], overwrite: bool = False) -> Array:
    """Along each axis y_k = sqrt(2 / (n + 1)) sum_j sin(π j k / (n + 1)) x_j. `overwrite`:
    whether x may be, in NumPy."""
    xp = namespace_of(x)
    if 0 in x.shape:
        return x
    if xp.name == "numpy":
        from scipy.fft import dstn  # whose import takes longer than all of our operators

        slow = [axis for axis in axes if _is_slow_length(x.shape[axis])]
        fast = tuple([axis for axis in axes if axis not in slow])
        y = dstn(x, type=1, norm="ortho", axes=fast, overwrite_x=overwrite) if fast else x
        for axis in slow:
            y = np.moveaxis(np.matmul(np.moveaxis(y, axis, -1), _sines(y.shape[axis])), -1, axis)
        return y if y.dtype == x.dtype else y.astype(x.dtype)  # half precision
    if xp.is_complex(x):  # one complex transform is no faster, and some of XLA's programs fail
        return sine_transform(xp.real(x), axes) + 1j * sine_transform(xp.imag(x), axes)
    # The imaginary part of the Fourier transform of [0, x, 0, ..., 0], 2 (n + 1) numbers, is minus
    # the sum of sines.
    y, scale = x, 1.0
    for axis in axes:
        n = x.shape[axis]
        padded = xp.pad(xp.moveaxis(y, axis, -1), 1, n + 1, -1)
        y = xp.moveaxis(xp.imag(xp.rfftn(padded, axes=(-1,)))[..., 1 : n + 1], -1, axis)
        scale *= -math.sqrt(2 / (n + 1))
    return xp.astype(scale * y, x.dtype)


# A permutation of coordinates.


SMALL = 64  # entries that Python sorts faster than NumPy starts to


class Permutation(LinearOperator, init=False):
    """P with `P @ x == x[perm]`: row i of P is row perm[i] of the identity. Its transpose is its
    inverse.

    The permutation is structure, not data: known under `jit`, and no leaf of the tree. Only where
    it is itself traced is it an array, and then it cannot be checked.

    Parameters
    ----------
    perm : integers of shape (*batch, n)
        Each of 0, ..., n - 1 once.
    like, dtype : optional
        As for `Identity`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> P = co.Permutation([2, 0, 1])
    >>> P @ np.array([10.0, 11.0, 12.0])
    array([12., 10., 11.])
    >>> P.T @ (P @ np.array([10.0, 11.0, 12.0]))
    array([10., 11., 12.])
    """

    perm: Index | Array
    context: Context

    def __new__(cls, perm: Any, *, like: Any = None, dtype: Any = None) -> Permutation:
        if not isinstance(perm, Index):
            try:
                perm = index_or_array(perm, "Permutation")
            except (TypeError, ValueError) as error:
                if isinstance(error, ShapeError):
                    raise
                raise DtypeError(
                    f"Permutation: expected an array of integers, got {type(perm).__name__}."
                ) from error
        is_seen = isinstance(perm, Index)
        given = perm.host if is_seen else perm
        if not is_seen and namespace_of(perm).is_floating(perm):
            raise ShapeError(f"Permutation: indices must be integers, not {perm.dtype}.")
        if given.ndim < 1:
            raise ShapeError("Permutation: expected at least one dimension, got a single number.")
        if is_seen and not _is_permutation(given):
            raise ShapeError(
                f"Permutation: perm must hold each of 0, ..., {given.shape[-1] - 1} once."
            )
        return cls._of(perm, given_context("Permutation", like, dtype))

    @property
    def shape(self) -> Shape:
        shape = self.perm.host.shape if isinstance(self.perm, Index) else tuple(self.perm.shape)
        return (*shape, shape[-1])

    _implied = UNITARY

    def _transpose(self) -> LinearOperator:
        return Permutation._of(self._inverse, self.context)

    _adjoint = _transpose

    @memo
    def _inverse(self) -> Any:
        perm = self.perm
        return (
            Index(np.argsort(perm.host, -1))
            if isinstance(perm, Index)
            else namespace_of(perm).argsort(perm)
        )

    def compose(self, other: Permutation) -> Permutation:
        """The product P Q as one permutation: (P Q x)[i] = x[q[p[i]]]."""
        perms = self.perm, other.perm
        traced = [perm for perm in perms if is_array(perm)]
        xp = namespace_of(traced[0]) if traced else backends.get("numpy")
        p, q = (perm.on(xp) if isinstance(perm, Index) else perm for perm in perms)
        shape = (*broadcast_batches(p.shape[:-1], q.shape[:-1]), p.shape[-1])
        p, q = xp.broadcast_to(p, shape), xp.broadcast_to(q, shape)
        composed: Any = xp.take_along_axis(q, p, axis=-1)
        return Permutation._of(
            composed if traced else Index(composed), common_context("Permutation", (self, other))
        )

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        perm = placed(self.perm, xp, X)
        if perm.ndim == 1:
            return xp.take(X, perm, axis=-2)
        batch = broadcast_batches(perm.shape[:-1], X.shape[:-2])
        X = spread(X, batch)
        return xp.take_along_axis(X, xp.broadcast_to(perm[..., None], X.shape), axis=-2)

    def _matvec(self, x: Array) -> Array:
        x = promoted(x, self.context.dtype)
        # batched: x[perm] is, too
        return x[placed(self.perm, namespace_of(x), x)]

    def _to_dense(self) -> Array:
        xp = self.xp if isinstance(self.perm, Index) else namespace_of(self.perm)
        _, dtype, device = self._context
        return self._matmat(
            xp.eye(self.shape[-1], dtype=dtype or xp.default_float(), device=device)
        )

    _flops = 0.0

    def _expression(self) -> str:
        return f"Permutation({'x'.join(map(str, self.shape[:-1]))})"


def _is_permutation(given: Any) -> bool:
    """Whether each row holds each of 0, ..., n - 1 once."""
    n = given.shape[-1]
    if given.shape == (n,) and n <= SMALL:
        return sorted(given.tolist()) == list(range(n))
    return bool((np.sort(given, -1) == np.arange(n)).all())
