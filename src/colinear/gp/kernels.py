"""Covariances of points that depend on their distance alone, k(x, y) = v φ(|x - y|^2 / length^2).

Each is a function of two sets of points that gives a matrix. `Kernel(rbf, X, parameters=(length,
variance))` is the same as an operator, which does not store the matrix; on a CUDA device it does not
even write it, since the function carries its profile φ as `rbf.radial`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any, NamedTuple, TypeVar

from ..backends import Array, namespace_of
from ..errors import DtypeError, ShapeError
from ..operators.context import as_arrays

F = TypeVar("F", bound=Callable)


class Radial(NamedTuple):
    """What makes a function of two sets of points one of their distances.

    Attributes
    ----------
    name : str
        For errors.
    profile : callable
        `profile(q, *shape)`, φ of an array of squared distances, element by element.
    embed : callable, optional
        `embed(P, *shape)`, points in place of P, before they are divided by the length; it takes
        the parameters that would be those of the profile.
    is_smooth : bool
        Whether φ has a derivative at 0. Of one that has none, rounding in the distance of equal
        points would show: distances are then summed by differences.
    """

    name: str
    profile: Callable
    embed: Callable | None = None
    is_smooth: bool = True

    def placed(
        self, X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0, *shape: Any
    ) -> tuple[Array, Array | None, Any, tuple]:
        """Points whose distances φ is given (None for Y if that was), the factor of φ, and its
        parameters."""
        points = _checked(self.name, X, Y, length)
        if self.embed is not None:
            points, shape = tuple(self.embed(P, *shape) for P in points), ()
        xp = namespace_of(points[0])
        if 0 not in points[-1].shape:
            # near the origin, where |x|^2 + |y|^2 - 2 x·y loses least
            middle = xp.stop_gradient(xp.mean(points[-1], axis=-2, keepdims=True))
            points = tuple(P - middle for P in points)
        X, *rest = (P / length for P in points)
        return X, rest[0] if rest else None, variance, shape

    def diagonal(self, X: Any, *parameters: Any) -> Array:
        """The covariances of points with themselves, v φ(0)."""
        X, _, variance, shape = self.placed(X, None, *parameters)
        return variance * self.profile(0 * X[..., 0], *shape)

    def matrix(self, X: Any, Y: Any, *parameters: Any) -> Array:
        """The matrix of the covariance."""
        X, Y, variance, shape = self.placed(X, Y, *parameters)
        distances = _squared_distances if self.is_smooth else _squared_differences
        return variance * self.profile(distances(X, X if Y is None else Y), *shape)


def _checked(name: str, X: Any, Y: Any, length: Any) -> tuple[Array, ...]:
    """The points as floats, or an error that says what is wrong with them."""
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
    return tuple(points)


def _squared_distances(X: Array, Y: Array) -> Array:
    """|x_i - y_j|^2 by one product of matrices, |x|^2 + |y|^2 - 2 x·y. Its rounding is that of
    numbers as large as the whole cloud's extent, squared."""
    xp = namespace_of(X)
    x, y = (xp.sum(P * P, axis=-1) for P in (X, Y))
    found = x[..., :, None] + y[..., None, :] - 2 * xp.matmul(X, xp.matrix_transpose(Y))
    # rounding below zero goes, the derivative stays
    return found - xp.stop_gradient(xp.minimum(found, 0 * found))


def _squared_differences(X: Array, Y: Array) -> Array:
    """|x_i - y_j|^2 coordinate by coordinate: zero for equal points."""
    if X.shape[-1] == 0:
        return _squared_distances(X, Y)
    found: Any = 0
    for c in range(X.shape[-1]):
        found = found + (X[..., :, None, c] - Y[..., None, :, c]) ** 2
    return found


def _radial(profile: Callable, embed: Callable | None = None, is_smooth: bool = True) -> Any:
    """A decorator that gives a function of points the profile by which products are fused."""

    def decorate(kernel: F) -> F:
        kernel.radial = Radial(kernel.__name__, profile, embed, is_smooth)  # type: ignore[attr-defined]
        return kernel

    return decorate


def _matrix(kernel: Any, X: Any, Y: Any, *parameters: Any) -> Array:
    return kernel.radial.matrix(X, Y, *parameters)


def _with_series(q: Array, far: Callable[[Array], Array], near: Callable[[Array], Array]) -> Array:
    """A function of the distance √q that is smooth in q at 0, where the derivative of √q is not:
    there by its series."""
    xp = namespace_of(q)
    small = q < xp.eps(q.dtype)
    return xp.where(small, near(q), far(xp.sqrt(xp.where(small, 1 + 0 * q, q))))


# Profiles. -------------------------------------------------------------------------------------


def _gaussian(q: Array) -> Array:
    return namespace_of(q).exp(-q / 2)


def _exponential(q: Array) -> Array:
    """exp(-√q), with the slope 0 at 0, which is the mean of those to both sides."""
    xp, zero = namespace_of(q), q == 0
    return xp.where(zero, 1 + 0 * q, xp.exp(-xp.sqrt(xp.where(zero, 1 + 0 * q, q))))


def _matern32(q: Array) -> Array:
    exp = namespace_of(q).exp
    return _with_series(3 * q, lambda a: (1 + a) * exp(-a), lambda q: 1 - q / 2)


def _matern52(q: Array) -> Array:
    exp = namespace_of(q).exp
    return _with_series(
        5 * q, lambda a: (1 + a + a * a / 3) * exp(-a), lambda q: 1 - q / 6 + q * q / 24
    )


def _rational(q: Array, alpha: Any = 1.0) -> Array:
    """(1 + q / 2α)^-α, by α log(1 + z)."""
    xp = namespace_of(q)
    z = q / (2 * alpha)
    u = 1 + z
    # log(1 + z) for small z: what rounding made of 1 + z is divided out again (Kahan)
    kept = xp.where(u == 1, 1 + 0 * z, z / xp.where(u == 1, 1 + 0 * u, u - 1))
    logarithm = xp.where(u == 1, z, xp.log(u) * xp.stop_gradient(kept))
    return xp.exp(-alpha * logarithm)


def _on_circles(P: Array, period: Any = 1.0) -> Array:
    """Points on circles, whose chords |x - y|^2 are 4 sin^2(π (x - y) / period)."""
    xp = namespace_of(P)
    angle = 2 * pi * (P / period)
    return xp.concat([xp.cos(angle), xp.sin(angle)], axis=-1)


# Covariances. ----------------------------------------------------------------------------------


@_radial(_gaussian)
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
    return _matrix(rbf, X, Y, length, variance)


@_radial(_exponential, is_smooth=False)
def matern12(X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0) -> Array:
    """Matérn's covariance with ν = 1/2, v exp(-|x - y| / length): of functions that are continuous,
    without derivatives.

    Parameters and result are those of `rbf`. Distances are summed coordinate by coordinate, d
    passes over the matrix, so that equal points have distance zero.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.matern12(np.array([[0.0], [1.0]])).round(4)
    array([[1.    , 0.3679],
           [0.3679, 1.    ]])
    """
    return _matrix(matern12, X, Y, length, variance)


@_radial(_matern32)
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
    return _matrix(matern32, X, Y, length, variance)


@_radial(_matern52)
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
    return _matrix(matern52, X, Y, length, variance)


@_radial(_rational)
def rational_quadratic(
    X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0, alpha: Any = 1.0
) -> Array:
    """The rational quadratic covariance, v (1 + r^2 / 2α)^-α, r = |x - y| / length: a mixture of
    Gaussian covariances of many lengths, the Gaussian one for large α.

    Parameters, result and cost are those of `rbf`; alpha is positive.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.rational_quadratic(np.array([[0.0], [1.0]]), alpha=2.0).round(4)
    array([[1.  , 0.64],
           [0.64, 1.  ]])
    """
    if isinstance(alpha, int | float) and not alpha > 0:
        raise ValueError(f"rational_quadratic: alpha is {alpha}; it must be positive.")
    return _matrix(rational_quadratic, X, Y, length, variance, alpha)


@_radial(_gaussian, _on_circles)
def periodic(
    X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0, period: Any = 1.0
) -> Array:
    """The periodic covariance, v exp(-2 Σ_c sin^2(π (x_c - y_c) / period) / length^2): of functions
    that repeat.

    Parameters, result and cost are those of `rbf`; `length` is a number, and measures the sine;
    period is positive, (d,) for one in each coordinate.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> gp.periodic(np.array([[0.0], [0.5], [1.0]])).round(4)
    array([[1.    , 0.1353, 1.    ],
           [0.1353, 1.    , 0.1353],
           [1.    , 0.1353, 1.    ]])
    """
    if isinstance(period, int | float) and not period > 0:
        raise ValueError(f"periodic: the period is {period}; it must be positive.")
    return _matrix(periodic, X, Y, length, variance, period)


def radial(profile: Callable) -> Callable:
    """A covariance v φ(|x - y|^2 / length^2) of a profile φ of your own.

    Parameters
    ----------
    profile : callable
        `profile(q, *shape)` gives φ of an array of squared distances, element by element, in the
        framework of the points.

    Returns
    -------
    callable
        `k(X, Y=None, length=1.0, variance=1.0, *shape)`, a function like `rbf`, for `Kernel` too.
        Its distances are summed by differences, since a profile may have a slope of √q at 0.

    Notes
    -----
    On a CUDA device torch and JAX trace a profile made of their elementwise functions, and `Kernel`
    then multiplies without writing the matrix. Any other profile is multiplied by blocks.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import gp
    >>> cauchy = gp.radial(lambda q: 1 / (1 + q))
    >>> cauchy(np.array([[0.0], [1.0]]), None, 2.0)
    array([[1. , 0.8],
           [0.8, 1. ]])
    """
    if not callable(profile):
        raise TypeError(
            "radial: give a function of squared distances, profile(q, *shape), not "
            f"{type(profile).__name__}."
        )

    def kernel(X: Any, Y: Any = None, length: Any = 1.0, variance: Any = 1.0, *shape: Any) -> Array:
        return form.matrix(X, Y, length, variance, *shape)

    kernel.__name__ = str(getattr(profile, "__name__", type(profile).__name__))
    form = Radial(kernel.__name__, profile, None, False)
    kernel.radial = form  # type: ignore[attr-defined]
    return kernel
