"""f(A) b from a Krylov space (Saad 1992; Hochbruck and Lubich 1997): f(A) b = |b| V f(T) e_1,
nearly.

The small f(T) is that of Lanczos or Arnoldi after j steps. Its coefficients in the orthonormal V
are compared with those of some steps before: where the differences fall geometrically, the error
left is the rest of that series. An invariant subspace makes the answer exact. The coefficients come
as c e^s, so that an exponential neither overflows nor vanishes on the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..backends import Array, adjoint, places_like, without_zeros, zeros_like
from .arnoldi import ArnoldiRun
from .base import SHOWN, Method, check_integer
from .basis import (
    SMALL,
    all_finite,
    by_size,
    count_of,
    every,
    expand,
    fill,
    larger,
    norm,
    rows,
    smaller,
    widen,
    within,
)
from .lanczos import LanczosRun
from .loop import show
from .restarted import KrylovState
from .vectors import LinearMap

LOOK = 8  # steps between two looks at the error
# the exponent by which coefficients of two looks may differ: what is more is no convergence
MOST = 80.0
# ratio of two differences below which it is not believed to go on like that: often a plateau
# follows
FASTEST = 0.3
NOISE = 20  # roundings of the numbers that an answer is the sum of, below which it counts as zero
SLOWEST = 0.98  # ratio of two differences from which convergence is no longer believed


@dataclass(frozen=True)
class Krylov(Method):
    """f(A) b from the Krylov space of A and b: Lanczos for self-adjoint A, Arnoldi for others.
    `exp(A, Krylov())` is an operator whose products run it.

    Parameters
    ----------
    tol : float, optional
        Of the error of each column, estimated, relative to its norm; default sqrt(eps) of the
        dtype.
    max_iters : int, optional
        The most iterations, each of one product with A for every column, and the most vectors that
        are kept for a column; default 200. An exponential for which these are too few is then taken
        in parts, exp(A) = exp(A/s)^s, each of so many.
    seed : int
        Of the random numbers.
    progress : bool
        Whether to show on standard error what is under way, from the third second on.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.linspace(-1.0, 0.0, 1000)))
    >>> y = co.exp(A, co.Krylov()) @ np.ones(1000)
    >>> bool(np.allclose(y, np.exp(np.linspace(-1.0, 0.0, 1000)), atol=1e-6))
    True
    """

    tol: float | None = None
    max_iters: int | None = None
    seed: int = 0
    progress: bool = SHOWN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")


class Product(NamedTuple):
    """f(A) b for each lane, (*lanes, n), and how good it is."""

    X: Array
    error: Array
    steps: Any
    done: Any
    finite: Any
    doubt: Any = 0.0  # of the error, what more steps cannot reduce; infinite where f has no value


# Between which squares are exact enough, in double and in single precision.
SINGLE = 1e-10
LEAST_NORM, GREATEST_NORM = (1e-146, 4e-16), (1e153, 6e18)


def function_times(
    xp: Any,
    multiply: LinearMap,
    start: Array,
    noise: Array,
    small: Callable[[Array], tuple[Array, Array, Array]],
    *,
    m: int,
    tol: float,
    hermitian: bool,
    has_pole: bool = False,
) -> Product:
    """f(A) b for vectors b, `start` of shape (*lanes, n), none of them zero.

    Parameters
    ----------
    multiply : callable
        A X for X of shape (*lanes, n, 1).
    small : callable
        The first column c e^s of f(T) for T of shape (*lanes, j, j): c and s, (*lanes, j) and
        (*lanes,); and by how much of its norm c may be wrong, (*lanes,): infinite where f(T) does
        not exist.
    m : int
        The most steps.
    hermitian : bool
        Lanczos, with lanes; else Arnoldi, for one vector.
    has_pole : bool
        Whether f has no value at zero.
    """
    n = start.shape[-1]
    m = min(m, n)
    run = (LanczosRun if hermitian else ArnoldiRun)(xp, multiply, start, noise, 1, "LM", m=m)

    def coefficients(s: KrylovState) -> Coefficients:
        def of_leading(size: int) -> Coefficients:
            T, is_closed = _small_matrix(xp, s, s.H[..., :size, :size], hermitian, has_pole)
            c, scale, doubt = small(T)
            is_exact = is_closed | (s.beta <= SMALL * xp.eps(start.dtype) * s.size)
            return Coefficients(widen(xp, c, m), scale, 0 * scale, doubt, is_exact | (s.j >= n))

        return by_size(xp, larger(xp, s.j, 1), m, of_leading)

    # f that has vanished wherever it was looked at says nothing
    last = converge(xp, run.initial(), run.step, coefficients, m=m, tol=tol, vanished=1.0)
    X = last.combine(xp, last.state.V[..., :m, :], norm(xp, start))
    finite = all_finite(xp, X)
    # Norms are of squares. Where these vanish or overflow, what was taken for a closed space is none.
    largest, eps = xp.max(xp.abs(last.state.H), axis=(-2, -1)), xp.eps(start.dtype)
    low, high = LEAST_NORM[eps > SINGLE], GREATEST_NORM[eps > SINGLE]
    is_ordinary = ((largest > low) & (largest < high)) | (largest == 0)
    error, doubt = (xp.where(is_ordinary, x, 1.0) for x in (last.error, last.found.doubt))
    done = last.done & every(xp, is_ordinary)
    return Product(X, error, last.state.j, done, finite, doubt)


# ------------------------------------------------------------------------------------- convergence


class Coefficients(NamedTuple):
    """The coefficients of an answer in orthonormal bases, (*lanes, p), times e^scale."""

    values: Array
    scale: Array  # (*lanes,)
    rounding: Array  # (*lanes,), of the size of the numbers that they are sums of
    doubt: Array  # (*lanes,), by how much of their norm they are wrong, whatever the bases
    is_exact: Array  # (*lanes,), whether more steps would change nothing


class Converging(NamedTuple):
    """A run between two looks."""

    state: Any
    found: Coefficients
    difference: Array  # (*lanes,), to the coefficients of the look before
    error: Array  # (*lanes,), estimated, relative
    done: Any

    def combine(self, xp: Any, V: Array, size: Array) -> Array:
        """The sum of the rows of V by the coefficients, for start vectors of this size."""
        V = rows(xp, V, self.state.j)
        c = self.found.values[..., : V.shape[-2]]
        # the vector behind the last step is there too, and has no coefficient
        c = xp.where(places_like(xp, c) < self.state.j, c, 0)
        X = expand(xp, c, xp.astype(V, xp.result_type(c.dtype, V.dtype)))
        return X * (size * xp.exp(self.found.scale))[..., None]


def converge(
    xp: Any,
    state: Any,
    step: Callable[[Any], Any],
    coefficients: Callable[[Any], Coefficients],
    *,
    m: int,
    tol: float,
    weight: Array | None = None,
    vanished: float = 0.0,
) -> Converging:
    """Make steps, at most m, until the coefficients have converged: relative to their norm, or to
    the rounding of what they are sums of.

    Lanes of no weight need not converge. `vanished` is added to the error of coefficients that are
    all zero.
    """
    first = coefficients(state)  # for its shapes
    nothing = Coefficients(*(zeros_like(xp, x, x.shape) for x in first))
    endless = nothing.scale + math.inf
    run = Converging(state, nothing, endless, endless, count_of(xp, False))

    def look(r: Converging) -> Converging:
        state = fill(xp, step, r.state, smaller(xp, r.state.j + LOOK, m))
        if not xp.is_functional:
            show(partial("Krylov: step {} of {} at most".format, state.j, m))
        found = coefficients(state)
        c, scale, rounding, doubt, is_exact = found
        shift = xp.exp(xp.minimum(r.found.scale - scale, MOST))
        difference, size = norm(xp, c - r.found.values * shift[..., None]), norm(xp, c)
        rest = rest_of_series(xp, difference, r.difference, shift)
        error = rest / without_zeros(xp, size) + xp.where(size == 0, vanished, 0)
        is_rounding = rest <= NOISE * xp.eps(c.dtype) * rounding
        settled = is_rounding & xp.isfinite(r.difference) & (size > 0 if vanished else True)
        error = xp.where(is_exact | settled, 0, error)
        error = xp.maximum(error, doubt)
        error = error if weight is None else xp.where(weight == 0, 0, error)
        return Converging(state, found, difference, error, every(xp, error <= tol))

    def going(r: Converging) -> Any:
        return (r.done ^ True) & (r.state.j < m) & all_finite(xp, r.state.size)

    return xp.while_loop(going, look, run)


def rest_of_series(xp: Any, difference: Array, before: Array, grown: Array) -> Array:
    """What is left of a series by the last difference and the one before, times `grown`: that of a
    geometric one."""
    ratio = difference / xp.where(before == 0, 1, before * grown)
    ratio = xp.where(ratio < SLOWEST, xp.maximum(ratio, FASTEST), SLOWEST)
    return xp.where(xp.isfinite(before), difference * ratio / (1 - ratio), difference)


def _small_matrix(
    xp: Any, run: KrylovState, T: Array, hermitian: bool, has_pole: bool
) -> tuple[Array, Array]:
    """T, a leading part of `run.H`, as far as vectors belong to the Krylov space of b, and whether
    that ended: at an invariant subspace.

    What follows that end is coupled to nothing, so it changes nothing of f(T) e_1 unless it
    overflows or has no value. In lanes that end early, and in JAX behind the last step, T00 stands
    on the diagonal, where f is surely defined; or the size of A, if T00 is at the pole that f has
    at zero.
    """
    if hermitian:
        T = xp.tril(T) + adjoint(xp, xp.tril(T, -1))
    places = places_like(xp, T)
    ends = xp.cumsum(xp.astype(xp.diagonal(T, offset=-1) == 0, run.size.dtype), axis=-1)  # so far
    ends = xp.concat([0 * run.size[..., None], ends], axis=-1)
    inside = (ends == 0) & (places < run.j)
    is_closed = xp.any((ends > 0) & (places < run.j), axis=-1)
    if not xp.is_functional and not hermitian:
        count = max(1, int(xp.sum(inside)))
        return T[:count, :count], is_closed
    filling = T[..., 0, :1]
    if has_pole:
        size = run.size[..., None]
        is_near = abs(filling) <= math.sqrt(xp.eps(T.dtype)) * size
        filling = xp.where(is_near, xp.astype(size, T.dtype), filling)
    return within(xp, T, inside, filling), is_closed


def leading(xp: Any, H: Array, j: Any) -> Array:
    """The leading part of H as far as it is filled; in JAX all of it that is square."""
    end = H.shape[-1] if xp.is_functional else max(j, 1)
    return H[..., :end, :end]
