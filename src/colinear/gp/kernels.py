"""Covariances of points that depend on their distance alone, as matrices; `Kernel(rbf, X,
parameters=(length, variance))` never stores one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array, namespace_of
from ..errors import DtypeError, ShapeError
from ..operators.context import as_arrays


def squared_distances(name: str, X: Any, Y: Any, length: Any) -> Array:
    """|x_i - y_j|^2, of points divided by the length scale, by one product of matrices.

    |x - y|^2 = |x|^2 + |y|^2 - 2 x·y cancels for points far from the origin, so they are moved
    there first: what is left of the rounding is that of numbers as large as the whole cloud's
    extent, squared.
    """
    points = as_arrays(name, X) if Y is None else as_arrays(name, X, Y)
    for P in points:
        if P.ndim < 2:
            raise ShapeError(
                f"{name}: points must be (*batch, points, d), a shape is {tuple(P.shape)}. For "
                "numbers: x[:, None]."
            )
    if points[0].shape[-1] != points[-1].shape[-1]:
        raise ShapeError(
            f"{name}: the points of X have {points[0].shape[-1]} coordinates, those of Y "
            f"{points[-1].shape[-1]}."
        )
    xp = namespace_of(points[0])
    if any(xp.is_complex(P) for P in points):
        raise DtypeError(
            f"{name}: the points are complex; distances are of real points. Give real and "
            "imaginary parts as coordinates."
        )
    if isinstance(length, int | float) and not length > 0:
        raise ValueError(f"{name}: the length scale is {length}; it must be positive.")
    if not xp.is_floating(points[0]):
        points = tuple(xp.astype(P, xp.default_float()) for P in points)
    if 0 not in points[-1].shape:
        middle = xp.stop_gradient(xp.mean(points[-1], axis=-2, keepdims=True))
        points = tuple(P - middle for P in points)
    points = tuple(P / length for P in points)
    X, Y = points[0], points[-1]
    squares = [xp.sum(P * P, axis=-1) for P in (X, Y)]
    found = (
        squares[0][..., :, None]
        + squares[1][..., None, :]
        - 2 * xp.matmul(X, xp.matrix_transpose(Y))
    )
    # rounding below zero goes, the derivative stays
    return found - xp.stop_gradient(xp.minimum(found, 0 * found))


def _with_series(q: Array, far: Callable[[Array], Array], near: Callable[[Array], Array]) -> Array:
    """A function of the distance √q that is smooth in q at 0, where the derivative of √q is not:
    there by its series."""
    xp = namespace_of(q)
    small = q < xp.eps(q.dtype)
    return xp.where(small, near(q), far(xp.sqrt(xp.where(small, 1 + 0 * q, q))))


def rbf(X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0) -> Array:
    """The Gaussian covariance, v exp(-r^2 / 2), r = |x - y| / length: of functions with all
    derivatives.

    Parameters
    ----------
    X : array, (*batch, m, d)
        Points, one in each row.
    Y : array, (*batch, n, d), optional
        X if not given.
    length : number or array
        The distance over which the function varies; (d,) for one in each coordinate.
    variance : number or array

    Returns
    -------
    array, (*batch, m, n)
        Of the framework of X. Differentiable in the points and both parameters. Nothing is
        annotated: say `PSD(rbf(X))`.

    Notes
    -----
    O(m n d) operations, most of them in one product of matrices. The error of a squared distance is
    that of the largest one in the cloud of points times the accuracy of the dtype; in float32, with
    lengths far below the cloud's size, prefer float64.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.rbf(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    """
    q = squared_distances("rbf", X, Y, length)
    return variance * namespace_of(q).exp(-q / 2)


def matern32(X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0) -> Array:
    """Matérn's covariance with ν = 3/2, v (1 + a) exp(-a), a = √3 |x - y| / length: of functions
    with one derivative.

    Parameters, result and cost are those of `rbf`.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.matern32(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.4834],
           [0.4834, 1.    ]])
    """
    q = 3 * squared_distances("matern32", X, Y, length)
    exp = namespace_of(q).exp
    return variance * _with_series(q, lambda a: (1 + a) * exp(-a), lambda q: 1 - q / 2)


def matern52(X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0) -> Array:
    """Matérn's covariance with ν = 5/2, v (1 + a + a^2/3) exp(-a), a = √5 |x - y| / length: of
    functions with two derivatives.

    Parameters, result and cost are those of `rbf`.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.matern52(np.array([[0.0], [1.0]])).round(4)
    array([[1.   , 0.524],
           [0.524, 1.   ]])
    """
    q = 5 * squared_distances("matern52", X, Y, length)
    exp = namespace_of(q).exp
    return variance * _with_series(
        q, lambda a: (1 + a + a * a / 3) * exp(-a), lambda q: 1 - q / 6 + q * q / 24
    )
