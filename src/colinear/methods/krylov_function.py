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
from typing import Any, NamedTuple

from ..backends import Array
from . import arnoldi, lanczos
from .base import Method, check_integer
from .basis import SMALL, count_of, expand, fill, norm, plain, smaller
from .vectors import LinearMap

LOOK = 8  # steps between two looks at the error
# the exponent by which coefficients of two looks may differ: what is more is no convergence
MOST = 80.0
# ratio of two differences below which it is not believed to go on like that: often a plateau
# follows
FASTEST = 0.3
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")


class FunctionState(NamedTuple):
    """A Krylov run, and the coefficients of the answer in its basis."""

    run: Any
    coefficients: Array  # (*lanes, m), times e^scale
    scale: Array  # (*lanes,)
    difference: Array  # (*lanes,), to those of the look before
    error: Array  # (*lanes,), estimated, relative
    doubt: Array  # (*lanes,), of that what f of the small matrix is wrong by, whatever the space
    done: Any


class Product(NamedTuple):
    """f(A) b for each lane, (*lanes, n), and how good it is."""

    X: Array
    error: Array
    steps: Any
    done: Any
    finite: Any
    doubt: Any = 0.0  # of the error, what more steps cannot reduce; infinite where f has no value


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
    method: Any = lanczos if hermitian else arnoldi
    n = start.shape[-1]
    m = min(m, n)
    run = method._initial(xp, start, 1, m, False)
    # for its dtype
    first, *_ = small(_small_matrix(xp, run._replace(j=1), m, hermitian, has_pole)[0])
    zeros = 0 * norm(xp, start)
    wide = xp.zeros((*start.shape[:-1], m), dtype=first.dtype, device=xp.device_of(start))
    state = FunctionState(
        run=run,
        coefficients=wide,
        scale=zeros,
        difference=zeros + math.inf,
        error=zeros + math.inf,
        doubt=zeros,
        done=count_of(xp, False),
    )

    def look(s: FunctionState) -> FunctionState:
        stop = smaller(xp, s.run.j + LOOK, m)
        run = fill(xp, lambda r: method._step(xp, multiply, noise, r, m), s.run, stop)
        T, is_closed = _small_matrix(xp, run, m, hermitian, has_pole)
        c, scale, doubt = small(T)
        c = _padded(xp, c, m)
        grown = xp.exp(xp.minimum(s.scale - scale, MOST + 0 * scale))
        difference, size = norm(xp, c - s.coefficients * grown[..., None]), norm(xp, c)
        rest = rest_of_series(xp, difference, s.difference, grown)
        error = rest / xp.where(size == 0, 1, size)
        exact = xp.logical_or(is_closed, run.beta <= SMALL * xp.eps(start.dtype) * run.size)
        exact = xp.logical_or(
            exact,
            xp.logical_or(
                (difference == 0) & (size > 0), exact & False if n > m else run.j + 0 * exact >= n
            ),
        )
        # f has vanished wherever it was looked at: nothing is known
        error = xp.where(size > 0, error, 1 + 0 * error)
        error = xp.maximum(xp.where(exact, 0 * error, error), doubt)
        return FunctionState(
            run=run,
            coefficients=c,
            scale=scale,
            difference=difference,
            error=error,
            doubt=doubt,
            done=plain(xp, xp.all(error <= tol)),
        )

    def going(s: FunctionState) -> Any:
        return (s.done ^ True) & (s.run.j < m) & plain(xp, xp.all(xp.isfinite(s.run.size)))

    state = xp.while_loop(going, look, state)
    c, used = state.coefficients, m if xp.is_functional else state.run.j
    if xp.is_functional:  # the vector behind the last step is there too, and has no coefficient
        c = xp.where(xp.arange(m) < state.run.j, c, 0 * c)
    V = state.run.V[..., :used, :]
    X = expand(xp, c[..., :used], xp.astype(V, xp.result_type(c.dtype, V.dtype)))
    X = X * (norm(xp, start) * xp.exp(state.scale))[..., None]
    return Product(
        X,
        state.error,
        state.run.matvecs,
        state.done,
        plain(xp, xp.all(xp.isfinite(X))),
        state.doubt,
    )


def rest_of_series(xp: Any, difference: Array, before: Array, grown: Array) -> Array:
    """What is left of a series by the last difference and the one before, times `grown`: that of a
    geometric one."""
    ratio = difference / xp.where(before == 0, 1, before * grown)
    ratio = xp.where(ratio < SLOWEST, xp.maximum(ratio, FASTEST + 0 * ratio), SLOWEST + 0 * ratio)
    return xp.where(xp.isfinite(before), difference * ratio / (1 - ratio), difference)


def _small_matrix(
    xp: Any, run: Any, m: int, hermitian: bool, has_pole: bool
) -> tuple[Array, Array]:
    """T or H as far as vectors belong to the Krylov space of b, and whether that ended: at an
    invariant subspace.

    What follows that end is coupled to nothing, so it changes nothing of f(T) e_1 unless it
    overflows or has no value. In lanes that end early, and in JAX behind the last step, T00 stands
    on the diagonal, where f is surely defined; or the size of A, if T00 is at the pole that f has
    at zero.
    """
    T = run.T if hermitian else run.H
    if hermitian:
        lower = xp.tril(T, -1)
        T = xp.tril(T) + xp.conj(xp.matrix_transpose(lower))
    T = T if xp.is_functional else T[..., : run.j, : run.j]
    places = xp.arange(T.shape[-1], device=xp.device_of(T))
    ends = xp.cumsum(xp.astype(xp.diagonal(T, offset=-1) == 0, run.size.dtype), axis=-1)  # so far
    ends = xp.concat([0 * run.size[..., None], ends], axis=-1)
    inside = (ends == 0) & (places < run.j)
    is_closed = xp.any((ends > 0) & (places < run.j), axis=-1)
    if not xp.is_functional and not bool(xp.any(is_closed)):
        return T, is_closed
    if not xp.is_functional and not hermitian:
        count = int(xp.sum(inside))
        return T[:count, :count], is_closed
    filling = T[..., 0, :1]
    if has_pole:
        size = run.size[..., None]
        is_near = xp.abs(filling) <= math.sqrt(xp.eps(T.dtype)) * size
        filling = xp.where(is_near, xp.astype(size, T.dtype), filling)
    T = xp.where(inside[..., :, None] & inside[..., None, :], T, 0 * T)
    return T + xp.make_diagonal(xp.where(inside, 0 * filling, filling)), is_closed


def _padded(xp: Any, c: Array, m: int) -> Array:
    if c.shape[-1] == m:
        return c
    zeros = xp.zeros((*c.shape[:-1], m - c.shape[-1]), dtype=c.dtype, device=xp.device_of(c))
    return xp.concat([c, zeros], axis=-1)
