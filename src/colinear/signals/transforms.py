"""Wavelets, the Radon transform and the Fourier transform at any points: products of sparse
matrices, Fourier transforms, slices and diagonals."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.sparse
import scipy.special

from .. import backends
from ..backends import Array, namespace_of
from ..errors import DtypeError, ShapeError
from ..factors.inverse import multiply_on_host
from ..operators import (
    FFT,
    BlockDiag,
    Diagonal,
    Identity,
    Kronecker,
    MatrixFree,
    Permutation,
    Sparse,
)
from ..operators.context import Context, given_context
from ..operators.diagonal import size
from ..operators.unitary import grid_sizes
from ..properties import Unitary
from .differences import on_host

# ---------------------------------------------------------------------------------- wavelets


class Filters(NamedTuple):
    """The two filters of a wavelet's analysis, and whether they make an orthogonal matrix."""

    low: np.ndarray
    high: np.ndarray
    are_orthogonal: bool


def wavelet(
    shape: Any,
    filters: Any = "haar",
    levels: int | None = None,
    kind: str = "pyramid",
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The periodic wavelet transform of a grid, a product of sparse matrices: O(n) operations.

    Orthogonal wavelets make a unitary operator: its inverse is its adjoint, and the rules know it.

    Parameters
    ----------
    shape : int or tuple of int
        Of the grid, counted in C order. `2**levels` must divide every side.
    filters : str or array
        A name that PyWavelets knows ("db4", "sym8", "bior2.2"; `pip install 'colinear[signals]'`),
        or the low-pass filter of an orthogonal wavelet. "haar" needs no package.
    levels : int, optional
        How often the grid is halved; as often as the filter fits if not given.
    kind : {"pyramid", "separable"}
        On a grid of several dimensions: all axes are halved together (what images are compressed
        by), or each axis is transformed to its end, which is a Kronecker product.
    like, dtype : optional
        Whose framework and device to take; NumPy's, and float64, if not given.

    Returns
    -------
    (n, n) operator whose coefficients lie as in PyWavelets with `mode="periodization"`:
    `wavedec` on a line, `coeffs_to_array(wavedecn(...))` and `fswavedecn(...).coeffs` on a grid.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> W = signals.wavelet(8, "haar")
    >>> (W @ np.ones(8)).round(4)
    array([2.8284, 0.    , 0.    , 0.    , 0.    , 0.    , 0.    , 0.    ])
    """
    grid = grid_sizes(shape, "wavelet")
    bank, context = _filters(filters), given_context("wavelet", like, dtype)
    if kind not in ("pyramid", "separable"):
        raise ValueError(f'wavelet: kind is {kind!r}; expected "pyramid" or "separable".')
    if levels is None:
        levels = min(_levels_that_fit(n, len(bank.low)) for n in grid)
    levels = size(levels, "wavelet")
    if any(n == 0 or n % 2**levels for n in grid):
        raise ShapeError(
            f"wavelet: {levels} levels on the grid {grid}; every side must be a multiple of "
            f"{2**levels}."
        )
    if kind == "separable":
        return Kronecker(*(_pyramid((n,), bank, levels, context) for n in grid))
    return _pyramid(grid, bank, levels, context)


def _filters(given: Any) -> Filters:
    if isinstance(given, str) and given != "haar":
        try:
            import pywt
        except ImportError as error:
            raise ImportError(
                f"wavelet: {given!r} needs PyWavelets: pip install 'colinear[signals]'. Without it, "
                'use "haar" or give the low-pass filter as an array.',
                name="pywt",
            ) from error
        known = pywt.Wavelet(given)
        return Filters(np.array(known.dec_lo), np.array(known.dec_hi), bool(known.orthogonal))
    low = np.full(2, math.sqrt(0.5)) if isinstance(given, str) else np.asarray(given, np.float64)
    overlaps = [low[: low.size - k] @ low[k:] for k in range(0, low.size, 2)]
    if low.ndim != 1 or low.size % 2 or not np.allclose(overlaps, np.eye(1, len(overlaps))):
        raise ValueError(
            "wavelet: the filter is not one of an orthogonal wavelet: its length must be even, and "
            "its shifts by even numbers orthonormal."
        )
    return Filters(low, low[::-1] * (-1.0) ** np.arange(1, low.size + 1), True)


def _levels_that_fit(n: int, length: int) -> int:
    """How often a line can be halved, the last time where it is as long as the filter."""
    levels = 0
    while n and n % 2 == 0 and n >= length:
        n, levels = n // 2, levels + 1
    return levels


def _pyramid(grid: tuple[int, ...], bank: Filters, levels: int, context: Context) -> Any:
    """W = P^T (W' ⊕ I) P (S ⊗ ... ⊗ S): split every axis, gather the coarse corner, and go on
    with it."""
    n = math.prod(grid)
    if not levels:
        return Identity(n, like=context)
    split = Kronecker(*(_split(side, bank, context) for side in grid))
    if levels == 1:
        return split
    coarse = tuple(side // 2 for side in grid)
    again = _pyramid(coarse, bank, levels - 1, context)
    step = BlockDiag(again, Identity(n - math.prod(coarse), like=context))
    if len(grid) == 1:
        return step @ split
    corner = np.zeros(grid, bool)
    corner[tuple(map(slice, coarse))] = True
    P = Permutation(np.argsort(~corner.ravel(), kind="stable"), like=context)
    return P.T @ step @ P @ split


def _split(n: int, bank: Filters, context: Context) -> Any:
    """One level on a line: the even shifts of the low-pass filter above those of the high-pass
    filter, y[i] = Σ_j f[j] x[2 i + length/2 - j]."""
    half, length = n // 2, len(bank.low)
    columns = (2 * np.arange(half)[:, None] + length // 2 - np.arange(length)) % n
    rows = np.repeat(np.arange(n), length)
    values = np.concatenate([np.tile(bank.low, half), np.tile(bank.high, half)])
    S = _sparse(rows, np.tile(columns.ravel(), 2), values, (n, n), context)
    return Unitary(S) if bank.are_orthogonal else S


# ------------------------------------------------------------------------------------- Radon


def radon(
    shape: tuple[int, int],
    angles: Any,
    detectors: int | None = None,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The Radon transform of an image: its integrals along parallel lines, as a sparse matrix.

    By Joseph's method (1982): along a line the image is interpolated linearly between the two
    nearest pixels of each column, or of each row where the line is steep.

    Parameters
    ----------
    shape : (rows, columns)
        Of the image, whose pixels have width 1; x grows with the column and y falls with the row,
        and the origin is in the middle.
    angles : array
        In radians, of the normals: the line is x cos θ + y sin θ = s. At 0 the columns are summed.
    detectors : int, optional
        How many s there are for each angle, 1 apart and symmetric; as many as the diagonal is long
        if not given.
    like, dtype : optional
        Whose framework and device to take; NumPy's, and float64, if not given.

    Returns
    -------
    Sparse, (angles · detectors, rows · columns), with about 2 · max(shape) entries a line:
    `(R @ image.ravel()).reshape(len(angles), detectors)`.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> R = signals.radon((3, 3), [0.0], detectors=3)
    >>> R @ np.arange(9.0)
    array([ 9., 12., 15.])
    """
    grid = grid_sizes(shape, "radon")
    if len(grid) != 2 or 0 in grid:
        raise ShapeError(f"radon: expected the shape of an image, (rows, columns), not {shape!r}.")
    theta = np.atleast_1d(on_host("radon", "angles", angles).astype(np.float64))
    if theta.ndim != 1 or not np.all(np.isfinite(theta)):
        raise ValueError("radon: angles must be a line of finite numbers, in radians.")
    count = math.ceil(math.hypot(*grid)) if detectors is None else size(detectors, "radon")
    context = given_context("radon", _whose(angles, like), dtype)
    s = np.arange(count) - (count - 1) / 2
    parts = [_joseph(grid, each, s) for each in theta]
    empty = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    rows, columns, values = map(np.concatenate, zip(*(parts or [empty])))
    first = np.repeat(np.arange(len(parts)) * count, [len(part[0]) for part in parts])
    sizes = theta.size * count, math.prod(grid)
    return _sparse(rows + first if parts else rows, columns, values, sizes, context)


def _joseph(
    grid: tuple[int, int], angle: float, s: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of one angle: lines, pixels and weights."""
    height, width = grid
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = np.arange(width) - (width - 1) / 2, (height - 1) / 2 - np.arange(height)
    is_flat = abs(sine) >= abs(cosine)  # the line crosses every column
    if is_flat:
        place = (height - 1) / 2 - (s[:, None] - x * cosine) / sine  # of the row, a fraction
        across = np.broadcast_to(np.arange(width), place.shape)
    else:
        place = (s[:, None] - y * sine) / cosine + (width - 1) / 2  # of the column
        across = np.broadcast_to(np.arange(height), place.shape)
    low = np.floor(place).astype(np.int64)
    line = np.broadcast_to(np.arange(len(s))[:, None], place.shape)
    length = 1 / max(abs(sine), abs(cosine))
    parts = []
    for near, weight in ((low, 1 - (place - low)), (low + 1, place - low)):
        inside = (near >= 0) & (near < (height if is_flat else width)) & (weight > 0)
        pixel = near * width + across if is_flat else across * width + near
        parts.append((line[inside], pixel[inside], length * weight[inside]))
    return tuple(map(np.concatenate, zip(*parts)))  # type: ignore[return-value]


# ------------------------------------------------------- the Fourier transform at any points

#: The relative error of a sum that comes from the rounding of a point, for each k: a quarter of
#: π eps, the mean over the k of a side.
POINT_ERROR = math.pi / 4 * np.finfo(np.float64).eps


def nufft(
    points: Any,
    shape: Any,
    tol: float | None = None,
    by: str = "operators",
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The Fourier sums of a grid of coefficients at any points: (A f)_j = Σ_k f_k exp(-i k·x_j).

    The k of a side of n are -(n // 2), ..., (n - 1) // 2, in this order, and the adjoint is the
    transform back. Nothing is normalised. To the tolerance, A is a product of a diagonal, a Fourier
    transform of twice the size of which some columns are taken, and a sparse matrix that
    interpolates by Kaiser and Bessel's window.

    Parameters
    ----------
    points : array, (m,) or (m, d)
        In radians; everything has the period 2π. They are read on the host: points that are
        traced or have gradients are an error.
    shape : int or tuple of int
        Of the grid of coefficients, d sides, counted in C order.
    tol : float, optional
        The error of A f, relative to the norm of A times that of f. Default: 1e-9 in double
        precision, 1e-5 in single. 1e-13 and 1e-6 are the least; the phase k·x is rounded, so on a
        side of n points it is 2e-16 n if that is more.
    by : {"operators", "finufft"}
        With "finufft" the package of that name multiplies, on the host
        (`pip install 'colinear[signals]'`): it stores nothing and is faster from some 10^5 points
        on, but no rule sees inside.
    like, dtype : optional
        Whose framework and device to take: those of the points if not given. The dtype is complex.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> A = signals.nufft([0.0, np.pi], 4)
    >>> (A @ np.array([1.0, 2.0, 3.0, 4.0])).real.round(6)
    array([10., -2.])
    """
    grid, x = grid_sizes(shape, "nufft"), on_host("nufft", "points", points).astype(np.float64)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[1] != len(grid) or 0 in grid:
        raise ShapeError(
            f"nufft: points of shape {x.shape} and the grid {grid}; expected (m, d) points for d "
            "sides, none of them empty."
        )
    if not np.all(np.isfinite(x)):
        raise ValueError("nufft: there are points that are not finite.")
    context = _complex_context(given_context("nufft", _whose(points, like), dtype))
    xp = backends.get(context.backend or "numpy")
    is_single = xp.eps(context.dtype) > 1e-10
    default, least = (1e-5, 1e-6) if is_single else (1e-9, 1e-13)
    tol = default if tol is None else float(tol)
    least = max(least, sum(grid) * POINT_ERROR)
    if not least <= tol < 1:
        raise ValueError(
            f"nufft: tol is {tol:g}; {xp.dtype_name(context.dtype)} gives {least:.0e} at best on "
            f"the grid {grid}."
        )
    x = _within_period(x)
    if by == "finufft":
        return _by_finufft(x, grid, tol, context)
    if by != "operators":
        raise ValueError(f'nufft: by is {by!r}; expected "operators" or "finufft".')
    width = math.ceil(-math.log10(tol)) + 2
    sides = [_Side.of(n, width) for n in grid]
    fine = tuple(side.fine for side in sides)
    scale, columns = np.ones(1), np.zeros(1, np.int64)
    rows = np.arange(len(x))[:, None]
    cells, weights = np.zeros((len(x), 1), np.int64), np.ones((len(x), 1))
    for side, coordinate in zip(sides, x.T):
        scale = np.multiply.outer(scale, side.scale).ravel()
        columns = np.add.outer(columns * side.fine, side.modes % side.fine).ravel()
        near, weight = side.interpolate(coordinate)
        cells = _outer_rows(np.add, cells * side.fine, near)
        weights = _outer_rows(np.multiply, weights, weight)
    real = context._replace(dtype=xp.real_dtype(context.dtype))
    rows = np.broadcast_to(rows, cells.shape).ravel()
    sizes = len(x), math.prod(fine)
    gridded = _sparse(rows, cells.ravel(), weights.ravel(), sizes, real)
    # our transform is unitary, the sum is not
    scale = xp.asarray(scale * math.sqrt(math.prod(fine)), dtype=real.dtype, device=real.device)
    return gridded @ FFT(fine, like=context)[:, columns] @ Diagonal(scale)


def _within_period(x: np.ndarray) -> np.ndarray:
    """x less a multiple of 2π, within [-π, π], as if 2π were not rounded: the error is one of the
    result, not of x."""
    rounded, rest = 2 * math.pi, 2.4492935982947064e-16  # 2π = rounded + rest
    near = np.fmod(x, rounded)  # without error
    near = np.where(np.abs(near) > math.pi, near - np.copysign(rounded, near), near)
    return near - np.rint((x - near) / rounded) * rest


def _outer_rows(combine: np.ufunc, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Every number of a row of the left with every one of the same row of the right."""
    return combine(left[:, :, None], right[:, None, :]).reshape(
        len(left), left.shape[1] * right.shape[1]
    )


class _Side(NamedTuple):
    """One side of the grid: σ times as fine, with the window φ(t) = I₀(β √(1 - (2t/w)²)), |t| <= w/2.

    By Poisson's sum, Σ_m φ(u - m) exp(-2πi k m / M) = exp(-2πi k u / M) φ^(2πk / M), but for aliases
    of relative size exp(-π w √(1 - 1/σ)); φ^(ξ) = w sinh(r) / r with r² = β² - (w ξ / 2)². This β is
    near to the best (Beatty, Nishimura and Pauly 2005).
    """

    fine: int  # M
    width: int  # w
    beta: float
    modes: np.ndarray  # k

    @classmethod
    def of(cls, n: int, width: int) -> _Side:
        fine = scipy.fft.next_fast_len(max(2 * n, 2 * width))
        sigma = fine / n
        beta = math.pi * math.sqrt((width / sigma * (sigma - 0.5)) ** 2 - 0.8)
        return cls(fine, width, beta, np.arange(n) - n // 2)

    @property
    def scale(self) -> np.ndarray:
        """1 / φ^(2πk / M), both windows divided by their largest value."""
        root = np.sqrt(self.beta**2 - (math.pi * self.width * self.modes / self.fine) ** 2)
        # sinh(r) / I0(β) without overflow
        sinh = (np.exp(root - self.beta) - np.exp(-root - self.beta)) / 2
        return root * scipy.special.i0e(self.beta) / (self.width * sinh)

    def interpolate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The w cells near each point, and the window there."""
        u = (x / (2 * math.pi) % 1) * self.fine
        first = np.ceil(u - self.width / 2).astype(np.int64)
        cells = first[:, None] + np.arange(self.width)
        t = 2 * (u[:, None] - cells) / self.width
        root = np.sqrt(np.maximum(1 - t * t, 0))
        window = scipy.special.i0e(self.beta * root) * np.exp(self.beta * (root - 1))
        return cells % self.fine, window / scipy.special.i0e(self.beta)


@dataclass(frozen=True, eq=False)
class Nonuniform:
    """The same sums by FINUFFT. `form` is which of A, A^T, A^H and its conjugate multiplies; blocks
    have as many rows as the larger side of A, since the host gives back what it was given."""

    points: np.ndarray
    grid: tuple[int, ...]
    tol: float
    form: str = "N"
    __name__ = "finufft"

    def __call__(self, X: Array) -> Array:
        xp = namespace_of(X)
        return multiply_on_host(self, self.form, xp.astype(X, xp.complex_dtype(X.dtype)))

    def solve(self, X: np.ndarray, form: str) -> np.ndarray:
        import finufft

        m, n, d = len(self.points), math.prod(self.grid), len(self.grid)
        # in double precision always: points rounded to single would be off by n eps radians
        vectors = np.moveaxis(X, -1, -2).reshape(-1, X.shape[-2]).astype(np.complex128)
        out = np.zeros_like(vectors)
        where = list(np.ascontiguousarray(self.points.T))
        # its eps is met on average, not by the worst f
        options = {"eps": self.tol / 10, "isign": -1 if form in "NT" else 1}
        if len(vectors) and form in "NC":
            modes = np.ascontiguousarray(vectors[:, :n]).reshape(-1, *self.grid)
            out[:, :m] = getattr(finufft, f"nufft{d}d2")(*where, modes, **options)
        elif len(vectors):
            strengths = np.ascontiguousarray(vectors[:, :m])
            found = getattr(finufft, f"nufft{d}d1")(*where, strengths, self.grid, **options)
            out[:, :n] = found.reshape(len(vectors), n)
        columns = out.reshape(*X.shape[:-2], X.shape[-1], X.shape[-2])
        return np.moveaxis(columns, -1, -2)


def _by_finufft(x: np.ndarray, grid: tuple[int, ...], tol: float, context: Context) -> Any:
    try:
        import finufft  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "nufft: by=\"finufft\" needs that package: pip install 'colinear[signals]'. "
            'by="operators" needs nothing.',
            name="finufft",
        ) from error
    if len(grid) > 3:
        raise ShapeError(f"nufft: FINUFFT has up to three dimensions; the grid is {grid}.")
    m, n = len(x), math.prod(grid)
    multiply, larger = Nonuniform(x, grid, tol), max(m, n)
    back: Callable = replace(multiply, form="H")
    return MatrixFree(multiply, (larger, larger), rmatmat=back, like=context)[:m, :n]


# -------------------------------------------------------------------------------------- shared


def _sparse(
    rows: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    sizes: tuple[int, int],
    context: Context,
) -> Any:
    """A sparse matrix of these entries, in the framework, the dtype and on the device asked for."""
    S = Sparse(scipy.sparse.coo_array((values, (rows, columns)), shape=sizes))
    backend, dtype, device = context
    if backend is None and dtype is None:
        return S
    return S.to(backend=backend or "numpy", dtype=dtype, device=device)


def _whose(given: Any, like: Any) -> Any:
    """What says framework and device: `like`, else the array that was given."""
    return given if like is None and namespace_of(given) is not None else like


def _complex_context(context: Context) -> Context:
    """The same with a complex dtype, double precision where none is known."""
    xp = backends.get(context.backend or "numpy")
    dtype = xp.default_float() if context.dtype is None else context.dtype
    if xp.dtype_name(dtype) in ("float16", "bfloat16"):
        raise DtypeError("nufft: half precision has no complex numbers. Use float32.")
    return context._replace(backend=xp.name, dtype=xp.complex_dtype(dtype))
