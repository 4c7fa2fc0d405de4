"""Finite differences on lines and grids, and restrictions: bands, circulants, their Kronecker
products and sums, and slices of the identity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..errors import BackendError, DtypeError, ShapeError
from ..operators import (
    Banded,
    Circulant,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Tridiagonal,
    vstack,
)
from ..operators.banded import natural_length
from ..operators.context import given_context
from ..operators.diagonal import size
from ..operators.unitary import grid_sizes
from ..properties import PD, PSD

#: What stands beyond the ends of a line: zeros, the other end, the mirror image (x[-1] = x[0]), or
#: nothing, so that only the rows are kept in which the whole stencil fits.
BOUNDARIES = ("zero", "wrap", "reflect", "none")

STENCILS = {
    "forward": {0: -1.0, 1: 1.0},
    "backward": {-1: -1.0, 0: 1.0},
    "centered": {-1: -0.5, 1: 0.5},
}


def difference(
    n: int,
    stencil: Mapping[int, float],
    boundary: str = "zero",
    spacing: Any = 1.0,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The matrix of a stencil along a line: y[i] = Σ_k stencil[k] x[i + k] / spacing.

    Parameters
    ----------
    n : int
        How many points the line has.
    stencil : dict of int to float
        The weight of the neighbour k places on.
    boundary : {"zero", "wrap", "reflect", "none"}
        What stands beyond the ends: zeros, the other end, the mirror image (x[-1] = x[0]), or
        nothing. With "none" the rows in which the stencil does not fit are left out.
    spacing : number or array
        What the weights are divided by. An array is a leaf, so gradients reach it, and its shape is
        the batch of the operator.
    like : array, operator or framework's name, optional
        Whose framework, dtype and device to take: those of `spacing` if it is an array, else
        NumPy's.
    dtype : optional

    Returns
    -------
    Circulant with "wrap"; else Tridiagonal or Banded, (m, n), a few operations an entry.

    Examples
    --------
    >>> from colinear import signals
    >>> signals.difference(4, {-1: 1.0, 0: -2.0, 1: 1.0}, "none").to_dense()
    array([[ 1., -2.,  1.,  0.],
           [ 0.,  1., -2.,  1.]])
    """
    return _stencil_matrix("difference", n, stencil, boundary, spacing, like, dtype)


def first_derivative(
    n: int,
    kind: str = "centered",
    boundary: str = "zero",
    spacing: Any = 1.0,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The first derivative along a line of n points, by differences.

    Parameters
    ----------
    n : int
    kind : {"centered", "forward", "backward"}
        (x[i+1] - x[i-1]) / 2, x[i+1] - x[i] or x[i] - x[i-1], divided by the spacing.
    boundary, spacing, like, dtype
        As in `difference`.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> signals.first_derivative(4, "forward", "none") @ np.array([0.0, 1.0, 4.0, 9.0])
    array([1., 3., 5.])
    """
    if kind not in STENCILS:
        raise ValueError(f"first_derivative: kind is {kind!r}; expected one of {list(STENCILS)}.")
    return _stencil_matrix("first_derivative", n, STENCILS[kind], boundary, spacing, like, dtype)


def second_derivative(
    n: int, boundary: str = "zero", spacing: Any = 1.0, *, like: Any = None, dtype: Any = None
) -> Any:
    """The second derivative along a line, (x[i-1] - 2 x[i] + x[i+1]) / spacing².

    Its negative is known to be positive semidefinite, with "zero" definite.

    Parameters
    ----------
    n, boundary, spacing, like, dtype
        As in `difference`.

    Examples
    --------
    >>> from colinear import signals
    >>> -signals.second_derivative(3, "reflect")
    <Tridiagonal 3x3 float64 numpy [PSD]>
    """
    return -_minus_second("second_derivative", n, boundary, spacing, like, dtype)


def along_axis(A: Any, shape: Any, axis: int) -> Any:
    """I ⊗ A ⊗ I: the operator of a line, applied along one axis of a grid.

    Parameters
    ----------
    A : LinearOperator
        With as many columns as the grid has points along the axis.
    shape : tuple of int
        Of the grid, whose points are counted in C order: `x = grid.ravel()`.
    axis : int

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> D = signals.first_derivative(3, "forward", "none")
    >>> signals.along_axis(D, (2, 3), axis=1) @ np.array([0.0, 1.0, 3.0, 0.0, 2.0, 6.0])
    array([1., 2., 2., 4.])
    """
    grid = grid_sizes(shape, "along_axis")
    if not -len(grid) <= axis < len(grid):
        raise ShapeError(f"along_axis: axis {axis} of a grid of {len(grid)} dimensions.")
    axis %= len(grid)
    if A.shape[-1] != grid[axis]:
        raise ShapeError(
            f"along_axis: A has {A.shape[-1]} columns; the grid {grid} has {grid[axis]} points "
            f"along axis {axis}."
        )
    sides = math.prod(grid[:axis]), math.prod(grid[axis + 1 :])
    before, after = ([Identity(points)] if points > 1 else [] for points in sides)
    return Kronecker(*before, A, *after)


def gradient(
    shape: Any,
    kind: str = "forward",
    boundary: Any = "reflect",
    spacing: Any = 1.0,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The gradient on a grid: the first derivatives along all axes, one below the other.

    With forward or backward differences and "wrap" or "reflect", G^H G = -Δ, which is
    `-laplacian(shape, boundary)`: ask for it where you solve, since it is a Kronecker sum.

    Parameters
    ----------
    shape : tuple of int
        Of the grid, counted in C order.
    kind, like, dtype
        As in `first_derivative`.
    boundary, spacing
        As in `difference`; a tuple has one for each axis.

    Returns
    -------
    Block of Kronecker products, (d n, n): `(G @ x.ravel()).reshape(d, *shape)`, but with "none",
    where each derivative has a size of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> G = signals.gradient((3, 4))
    >>> (G @ np.add.outer(10.0 * np.arange(3), np.arange(4)).ravel()).reshape(2, 3, 4)[:, 0, 0]
    array([10.,  1.])
    """
    grid = grid_sizes(shape, "gradient")
    sides = zip(grid, _for_each(boundary, grid), _for_each(spacing, grid))
    lines = [
        first_derivative(n, kind, edge, step, like=like, dtype=dtype) for n, edge, step in sides
    ]
    return vstack([along_axis(D, grid, axis) for axis, D in enumerate(lines)])


def divergence(
    shape: Any,
    kind: str = "forward",
    boundary: Any = "reflect",
    spacing: Any = 1.0,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The divergence that belongs to `gradient` with the same arguments: minus its adjoint.

    Examples
    --------
    >>> from colinear import signals
    >>> signals.divergence((3, 4)).shape
    (12, 24)
    """
    return -gradient(shape, kind, boundary, spacing, like=like, dtype=dtype).H


def laplacian(
    shape: Any,
    boundary: Any = "zero",
    spacing: Any = 1.0,
    *,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """The Laplacian Δ on a grid: the Kronecker sum of the second derivatives along all axes.

    -Δ is known to be positive semidefinite; it is definite where one boundary is "zero". Systems
    with it, or with c I - Δ, are solved by sines ("zero"), Fourier transforms ("wrap") or the
    eigenvectors of the lines ("reflect").

    Parameters
    ----------
    shape : tuple of int
        Of the grid, counted in C order.
    boundary : {"zero", "wrap", "reflect"}, or a tuple with one for each axis
    spacing : number or array, or a tuple with one for each axis
    like, dtype
        As in `difference`.

    Examples
    --------
    >>> from colinear import signals
    >>> -signals.laplacian((3, 4))
    <KroneckerSum 12x12 float64 numpy [PD]: Tridiagonal(3x3) ⊕ Tridiagonal(4x4)>
    """
    grid = grid_sizes(shape, "laplacian")
    edges, steps = _for_each(boundary, grid), _for_each(spacing, grid)
    if "none" in edges:
        raise ValueError(
            'laplacian: boundary "none" leaves out rows, and a Laplacian is square. Use "reflect".'
        )
    lines = [
        _minus_second("laplacian", n, edge, step, like, dtype)
        for n, edge, step in zip(grid, edges, steps)
    ]
    return -KroneckerSum(*lines)


def restriction(shape: Any, where: Any, *, like: Any = None, dtype: Any = None) -> Any:
    """The rows of the identity that pick some points of a grid: R @ x = x[where].

    Its adjoint puts values back into a field of zeros, and has orthonormal columns.

    Parameters
    ----------
    shape : int or tuple of int
        Of the grid, counted in C order.
    where : array
        Booleans of the shape of the grid, or the numbers of the points.
    like, dtype : optional
        As in `Identity`: without them R takes framework and dtype from what it meets.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import signals
    >>> R = signals.restriction(4, [True, False, False, True])
    >>> R @ np.array([5.0, 6.0, 7.0, 8.0])
    array([5., 8.])
    >>> R.H @ np.array([1.0, 2.0])
    array([1., 0., 0., 2.])
    """
    grid = grid_sizes(shape, "restriction")
    rows = on_host("restriction", "where", where)
    if rows.dtype == bool:
        if rows.shape != grid:
            raise ShapeError(f"restriction: the mask is {rows.shape}, the grid {grid}.")
        rows = np.flatnonzero(rows)
    return Identity(math.prod(grid), like=like, dtype=dtype)[rows, :]


# ------------------------------------------------------------------------------------- lines


def _minus_second(
    what: str, n: int, boundary: str, spacing: Any, like: Any, dtype: Any
) -> LinearOperator:
    """-∂², with what is known of its sign."""
    weights = {-1: -1.0, 0: 2.0, 1: -1.0}
    T = _stencil_matrix(what, n, weights, boundary, spacing, like, dtype, order=2)
    if boundary == "none":
        return T
    return PD(T) if boundary == "zero" else PSD(T)


def _stencil_matrix(
    what: str,
    n: int,
    stencil: Mapping[int, float],
    boundary: str,
    spacing: Any,
    like: Any,
    dtype: Any,
    order: int = 1,
) -> LinearOperator:
    """What `difference` returns, with the spacing to this power; `what` is the function that a user
    has called."""
    n = size(n, what)
    if boundary not in BOUNDARIES:
        raise ValueError(f"{what}: boundary is {boundary!r}; expected one of {list(BOUNDARIES)}.")
    if not stencil or not all(isinstance(k, int | np.integer) for k in stencil):
        raise ValueError(f"{what}: a stencil has weights at whole places, not {stencil!r}.")
    if not all(np.isreal(weight) and np.isfinite(weight) for weight in stencil.values()):
        raise ValueError(f"{what}: the weights of a stencil are real and finite, not {stencil!r}.")
    below, above = max(0, -min(stencil)), max(0, max(stencil))
    least = {"none": below + above + 1, "reflect": max(1, below, above)}.get(boundary, 1)
    if n < least:
        raise ShapeError(
            f'{what}: a line of {n} points; this stencil with boundary "{boundary}" needs {least}.'
        )
    if boundary == "wrap":
        column = np.zeros(n)
        for k, weight in stencil.items():
            column[-k % n] += weight  # C[i, i + k]
        return Circulant(*_divided(what, [column], spacing, order, like, dtype))
    bands, m = _bands(n, stencil, boundary)
    values = _divided(what, list(bands.values()), spacing, order, like, dtype)
    if m == n and set(bands) == {-1, 0, 1}:
        return Tridiagonal(*(values[list(bands).index(k)] for k in (-1, 0, 1)))
    return Banded(values, tuple(bands), (m, n))


def _bands(
    n: int, stencil: Mapping[int, float], boundary: str
) -> tuple[dict[int, np.ndarray], int]:
    """The diagonals by their offsets, and the number of rows."""
    if boundary == "none":
        skipped = max(0, -min(stencil))  # rows at the beginning
        m = n - skipped - max(0, max(stencil))
        return {k + skipped: np.full(m, float(weight)) for k, weight in stencil.items()}, m
    bands: dict[int, np.ndarray] = {}

    def band(k: int) -> np.ndarray:
        return bands.setdefault(k, np.zeros(natural_length(k, n, n)))

    # a tridiagonal matrix has its rules, and a matrix without diagonals none
    if set(stencil) == {-1, 1} or min(map(abs, stencil)) >= n:
        band(0)
    for k, weight in stencil.items():
        if abs(k) < n:
            band(k)[:] += weight
        if boundary == "zero":
            continue
        # what falls off at an end comes back as its mirror image: -1 - j is j, and n + j is n - 1 - j
        for row in (*range(min(-k, n)), *range(max(n - k, 0), n)):
            column = -1 - (row + k) if row + k < 0 else 2 * n - 1 - (row + k)
            band(column - row)[min(row, column)] += weight
    return bands, n


def _divided(
    what: str, hosts: list[np.ndarray], spacing: Any, order: int, like: Any, dtype: Any
) -> list[Array]:
    """These arrays divided by a power of the spacing, in the framework asked for."""
    own = namespace_of(spacing)
    context = given_context(what, spacing if like is None and own is not None else like, dtype)
    xp = backends.get(context.backend or "numpy")
    kind = {
        "dtype": xp.default_float() if context.dtype is None else context.dtype,
        "device": context.device,
    }
    if own is None:
        scale = _inverse_power(what, spacing, order, xp.eps(kind["dtype"]))
        return [xp.asarray(host * scale, **kind) for host in hosts]
    if own.is_complex(spacing):
        raise DtypeError(f"{what}: the spacing is complex; it must be real.")
    if own is not xp:
        spacing = xp.asarray(on_host(what, "spacing", spacing), **kind)
    divisor = xp.astype(spacing, kind["dtype"])[..., None] ** order
    return [xp.asarray(host, **kind) / divisor for host in hosts]


def _inverse_power(what: str, spacing: Any, order: int, eps: float) -> float:
    """spacing^-order, if the dtype of this precision holds it: a matrix of zeros or infinities
    would not be what its annotations say."""
    range_end = 1e4 if eps > 1e-6 else 1e37 if eps > 1e-10 else 1e300
    try:
        scale = float(spacing) ** -order
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        scale = math.nan
    if not 1 / range_end < abs(scale) < range_end:  # not a number, too
        raise ValueError(
            f"{what}: the spacing is {spacing!r}; it must be a number other than zero, and its "
            f"power {-order} must not leave the range of the dtype."
        )
    return scale


def on_host(what: str, named: str, given: Any) -> np.ndarray:
    """An argument whose values decide the structure, as NumPy's array; an error where they cannot
    be seen or a derivative with respect to them is recorded, which would be lost in silence."""
    xp = namespace_of(given)
    if xp is None:
        return np.asarray(given)
    is_watched = xp.is_floating(given) and xp.is_differentiated(given)
    if is_watched or xp.is_traced(given):
        raise BackendError(
            f"{what}: the values of `{named}` are read when the operator is made, so they cannot be "
            "traced or differentiated. Make the operator outside of jit, vmap and grad, or give "
            f"`{named}` as NumPy's array."
        )
    return xp.to_numpy(given)


def _for_each(given: Any, grid: tuple[int, ...]) -> tuple[Any, ...]:
    """A choice for each axis: a tuple or a list has one for each, anything else is that of all."""
    each = tuple(given) if isinstance(given, tuple | list) else (given,) * len(grid)
    if len(each) != len(grid):
        raise ShapeError(
            f"{len(each)} boundaries or spacings for a grid of {len(grid)} dimensions."
        )
    return each
