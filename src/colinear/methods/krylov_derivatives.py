"""The derivatives of f(A) b from Krylov spaces, both ways, by products with A, dA and A^H.

L(A, E) is the derivative of f at A along E. It stands in the corner of f of a block triangle,
    f([A E])   [f(A) L(A, E)]
     ([0 A]) = [ 0    f(A)  ],
and its adjoint, applied to the cotangent g b^H of a product f(A) b, in the corner of f of
[A^H g b^H; 0 A^H]. Both are projected:

    backwards   A^H U ≈ U S from g, A V ≈ V T from b:
                U X V^H, with X in the corner of f([S |g||b| e e^T; 0 T^H])
                (Kandolf, Koskela, Relton and Schweitzer 2021)
    forwards    V from b, and U that holds the upper halves of the Krylov space of [A E; 0 A] and
                (0, b), so that the projection [U^H A U  U^H E V; 0  V^H A V] is a block triangle
                again.

The corners are taken by divided differences between the eigenvalues of the two diagonal blocks, or
by algorithms that need no eigenvectors; f of the projection as a whole would have every eigenvalue
twice, and hardly two eigenvectors for them.

U of the forward way is built as in TOAR (Lu, Su and Bai 2016): the Arnoldi vectors of the block
triangle are (U a, V c), and a and c are orthonormal as one vector; products with the columns of U
and V are kept, so that each step makes one product with dA and two with A.

Convergence is judged as for f(A) b, by how the coefficients in orthonormal bases differ from look
to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from .basis import (
    SMALL,
    count_of,
    expand,
    fresh,
    may_be_set,
    norm,
    orthogonalise,
    plain,
    project,
    put,
    rows,
    smaller,
)
from .krylov_function import LOOK, MOST, Product, rest_of_series
from .vectors import LinearMap

Multiply = LinearMap  # X of shape (*lanes, n) to such


# S, C, T to the corner of f([S C; 0 T]), as X e^s, and by how much of its norm X may be wrong
Corner = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


NOISE = 20  # roundings of the numbers that an answer is the sum of, below which it counts as zero


class Space(NamedTuple):
    """An orthonormal basis by rows, and A in it: A V_j = sum_i H_ij V_i."""

    V: Array  # (*lanes, m + 1, n)
    H: Array  # (*lanes, m + 1, m)
    size: Array  # (*lanes,), of A as seen so far
    closed: Array  # (*lanes,), whether an invariant subspace was met


class Judged(NamedTuple):
    """A run between two looks."""

    state: Any
    j: Any
    found: Array  # coefficients, (*lanes, p), times e^scale
    scale: Array
    difference: Array
    error: Array
    done: Any


class Factors(NamedTuple):
    """W V^H, the cotangent of A, for each lane: rows of W and V, (*lanes, m, n), and how good it
    is."""

    W: Array
    V: Array
    error: Array
    steps: Any
    done: Any
    finite: Any


# ---------------------------------------------------------------------------------------- both ways


def begin(xp: Any, start: Array, m: int) -> Space:
    lanes, n, place = (
        start.shape[:-1],
        start.shape[-1],
        {"dtype": start.dtype, "device": xp.device_of(start)},
    )
    V = put(
        xp,
        xp.zeros((*lanes, m + 1, n), **place),
        (..., 0, slice(None)),
        start / norm(xp, start)[..., None],
    )
    size = 0 * norm(xp, start)
    return Space(V, xp.zeros((*lanes, m + 1, m), **place), size, size > 0)


def extended(
    xp: Any, V: Array, w: Array, count: Any, size: Array, noise: Array
) -> tuple[Array, Array, Array, Array]:
    """The coefficients of w along the first rows of V, `count` of them and all that V has room for,
    the part of w that is left: its norm and direction, a random one where nothing is left; and
    whether that is so."""
    w, h = orthogonalise(xp, rows(xp, V, 0, count), w)
    w, more = orthogonalise(xp, rows(xp, V, 0, count), w)
    h = _wide(xp, h + more, V.shape[-2])
    length = norm(xp, w)
    small = length <= SMALL * xp.eps(w.dtype) * size
    if may_be_set(xp, small):
        random = xp.astype(fresh(xp, noise, count), w.dtype)
        for _ in range(2):
            random = orthogonalise(xp, rows(xp, V, 0, count), random)[0]
            left = norm(xp, random)
            random = random / xp.where(left == 0, 1, left)[..., None]
        w = xp.where(small[..., None], random, w)
    unit = norm(xp, w)
    return (
        h,
        xp.where(small, 0 * length, length),
        w / xp.where(unit == 0, 1, unit)[..., None],
        small,
    )


def _wide(xp: Any, h: Array, count: int) -> Array:
    if h.shape[-1] == count:
        return h
    return xp.concat(
        [h, xp.zeros((*h.shape[:-1], count - h.shape[-1]), dtype=h.dtype, device=xp.device_of(h))],
        axis=-1,
    )


def grown(xp: Any, multiply: Multiply, s: Space, j: Any, noise: Array) -> Space:
    """One step of Arnoldi."""
    w = multiply(s.V[..., j, :])
    size = xp.maximum(s.size, norm(xp, w))
    h, length, v, small = extended(xp, s.V, w, j + 1, size, noise)
    place = xp.arange(h.shape[-1], device=xp.device_of(h)) == j + 1
    h = xp.where(place, xp.astype(length, h.dtype)[..., None], h)
    V = put(xp, s.V, (..., j + 1, slice(None)), v)
    return Space(V, put(xp, s.H, (..., slice(None), j), h), size, xp.logical_or(s.closed, small))


def square(xp: Any, H: Array, j: Any, corner: Array | None = None) -> Array:
    """The leading part of H that is filled; in JAX of full size, with its first diagonal entry
    behind, where f is surely defined."""
    m = H.shape[-1]
    if not xp.is_functional:
        return H[..., :j, :j]
    inside = xp.arange(m) < j
    H = H[..., :m, :]
    first = (H if corner is None else corner)[..., 0, :1]
    H = xp.where(inside[:, None] & inside[None, :], H, 0 * H)
    return H + xp.make_diagonal(xp.where(inside, 0 * first, first))


def judged(
    xp: Any,
    state: Any,
    step: Callable[[Any, Any], Any],
    small: Callable[[Any, Any], tuple[Array, Array, Array, Array]],
    sizes: Callable[[Any], Array],
    exact: Callable[[Any, Any], Array],
    weight: Array,
    *,
    m: int,
    tol: float,
) -> Judged:
    """Steps, `state = step(state, j)`, until coefficients `small(state, j)`, (*lanes, p) times e^s,
    have converged: relative to their norm, or to the rounding of what they are the sum of, which is
    given too, with what they are wrong by at least. Lanes of no weight need not."""
    first, scale, *_ = small(state, 1)
    none = xp.zeros(first.shape[:-1], dtype=xp.real_dtype(first.dtype), device=xp.device_of(first))
    width = first.shape[-1] if xp.is_functional else 0
    empty = xp.zeros((*first.shape[:-1], width), dtype=first.dtype, device=xp.device_of(first))
    run = Judged(
        state=state,
        j=count_of(xp, 0),
        found=empty,
        scale=0 * scale,
        difference=none + math.inf,
        error=none + math.inf,
        done=count_of(xp, False),
    )

    def look(r: Judged) -> Judged:
        stop = smaller(xp, r.j + LOOK, m)
        state, j = xp.while_loop(
            lambda s: (s[1] < stop) & plain(xp, xp.all(xp.isfinite(sizes(s[0])))),
            lambda s: (step(*s), s[1] + 1),
            (r.state, r.j),
        )
        c, scale, rounding, doubt = small(state, j)
        before = r.found if xp.is_functional else _wide(xp, r.found, c.shape[-1])
        shift = xp.exp(xp.minimum(r.scale - scale, MOST + 0 * scale))
        difference, size = norm(xp, c - before * shift[..., None]), norm(xp, c)
        rest = rest_of_series(xp, difference, r.difference, shift)
        error = rest / xp.where(size == 0, 1, size)
        known = xp.logical_or(
            exact(state, j),
            (rest <= NOISE * xp.eps(c.dtype) * rounding) & xp.isfinite(r.difference),
        )
        error = xp.where(
            weight == 0, 0 * error, xp.maximum(xp.where(known, 0 * error, error), doubt)
        )
        return Judged(
            state=state,
            j=j,
            found=c,
            scale=scale,
            difference=difference,
            error=error,
            done=plain(xp, xp.all(error <= tol)),
        )

    def going(r: Judged) -> Any:
        return (r.done ^ True) & (r.j < m) & plain(xp, xp.all(xp.isfinite(sizes(r.state))))

    return xp.while_loop(going, look, run)


# ---------------------------------------------------------------------------------------- backwards


def adjoint_factors(
    xp: Any,
    multiply: Multiply,
    multiply_adjoint: Multiply,
    start: Array,
    cotangent: Array,
    weight: Array,
    noise: Array,
    corner: Corner,
    *,
    m: int,
    tol: float,
) -> Factors:
    """The cotangent of A in f(A) b, for b and g, `start` and `cotangent`, of shape (*lanes, n),
    none of them zero.

    `corner(S, C, T)` is that of conj(f(conj(.))); the answer is for weight = |g||b|, (*lanes,),
    which may be zero.
    """
    n = start.shape[-1]
    m = min(m, n)

    def step(s: tuple[Space, Space], j: Any) -> tuple[Space, Space]:
        return grown(xp, multiply, s[0], j, noise), grown(xp, multiply_adjoint, s[1], j, noise)

    def small(s: tuple[Space, Space], j: Any) -> tuple[Array, Array, Array, Array]:
        T, S = (square(xp, space.H, j) for space in s)
        place = xp.arange(S.shape[-1], device=xp.device_of(S)) == 0
        C = xp.astype(place[:, None] & place[None, :], S.dtype) + 0 * S
        X, scale, doubt = corner(S, C, xp.conj(xp.matrix_transpose(T)))
        flat = xp.reshape(_padded(xp, X, m), (*X.shape[:-2], m * m))
        return flat, scale, 0 * scale, doubt

    def exact(s: tuple[Space, Space], j: Any) -> Array:
        closed = xp.logical_and(s[0].closed, s[1].closed)
        return closed if n > m else xp.logical_or(closed, j + 0 * s[0].size >= n)

    spaces = begin(xp, start, m), begin(xp, cotangent, m)
    run = judged(
        xp,
        spaces,
        step,
        small,
        lambda s: xp.maximum(s[0].size, s[1].size),
        exact,
        weight,
        m=m,
        tol=tol,
    )
    X = xp.reshape(run.found, (*run.found.shape[:-1], m, m))
    if xp.is_functional:
        inside = xp.arange(m) < run.j
        X = xp.where(inside[:, None] & inside[None, :], X, 0 * X)
    X = X * (weight * xp.exp(run.scale))[..., None, None]
    V, U = (space.V[..., :m, :] for space in run.state)
    W = xp.matmul(xp.matrix_transpose(X), xp.astype(U, xp.result_type(U.dtype, X.dtype)))
    return Factors(W, V, run.error, 2 * run.j, run.done, plain(xp, xp.all(xp.isfinite(W))))


def _padded(xp: Any, X: Array, m: int) -> Array:
    """X in the corner of an m x m matrix."""
    j = X.shape[-1]
    if j == m:
        return X
    right = xp.zeros((*X.shape[:-1], m - j), dtype=X.dtype, device=xp.device_of(X))
    below = xp.zeros((*X.shape[:-2], m - j, m), dtype=X.dtype, device=xp.device_of(X))
    return xp.concat([xp.concat([X, right], axis=-1), below], axis=-2)


# ----------------------------------------------------------------------------------------- forwards


class Pair(NamedTuple):
    """The two bases of the forward way after j steps: j + 1 vectors in V, j in U."""

    lower: Space  # V, from b
    U: Array  # (*lanes, m, n)
    AU: Array  # (*lanes, m, n), A U
    EV: Array  # (*lanes, m, n), dA V
    S: Array  # (*lanes, m, m), U^H A U
    C: Array  # (*lanes, m, m), U^H dA V
    # (*lanes, m + 1, 2 m + 1), the Arnoldi vectors (U a, V c) of the block triangle, as (a, c)
    G: Array
    moved: Array  # (*lanes,), of dA as seen so far
    closed: Array


def tangent_times(
    xp: Any,
    multiply: Multiply,
    move: Multiply,
    start: Array,
    weight: Array,
    noise: Array,
    corner: Corner,
    *,
    m: int,
    tol: float,
) -> Product:
    """L(A, dA) b for b, `start` of shape (*lanes, n), of the norms `weight`; none of `start` is
    zero. `move` is the product with dA."""
    lanes, n = start.shape[:-1], start.shape[-1]
    m = min(m, n)
    place = {"dtype": start.dtype, "device": xp.device_of(start)}
    wide, tall = xp.zeros((*lanes, m, n), **place), xp.zeros((*lanes, m, m), **place)
    G = xp.zeros((*lanes, m + 1, 2 * m + 1), **place)
    G = put(xp, G, (..., 0, m), xp.ones(lanes, **place))
    lower = begin(xp, start, m)
    U, AU, EV = (xp.copy(wide) for _ in range(3))
    state = Pair(
        lower=lower,
        U=U,
        AU=AU,
        EV=EV,
        S=tall,
        C=xp.copy(tall),
        G=G,
        moved=0 * lower.size,
        closed=lower.closed,
    )

    def step(s: Pair, j: Any) -> Pair:
        v, g = s.lower.V[..., j, :], s.G[..., j, :]
        lower = grown(xp, multiply, s.lower, j, noise)
        e = move(v)
        moved = xp.maximum(s.moved, norm(xp, e))
        EV = put(xp, s.EV, (..., j, slice(None)), e)
        t = expand(xp, g[..., :m], s.AU) + expand(xp, g[..., m : 2 * m], EV)  # A U a + dA V c
        h, length, u, _ = extended(xp, s.U, t, j, lower.size + moved, noise)
        U = put(xp, s.U, (..., j, slice(None)), u)
        w = multiply(u)
        AU = put(xp, s.AU, (..., j, slice(None)), w)
        S = put(
            xp,
            put(xp, s.S, (..., j, slice(None)), xp.conj(project(xp, AU, u))),
            (..., slice(None), j),
            project(xp, U, w),
        )
        C = put(
            xp,
            put(xp, s.C, (..., j, slice(None)), xp.conj(project(xp, EV, u))),
            (..., slice(None), j),
            project(xp, U, e),
        )
        here = xp.arange(m, device=xp.device_of(h)) == j
        above = xp.where(here, xp.astype(length, h.dtype)[..., None], h)
        below = xp.matmul(lower.H, g[..., m : 2 * m, None])[..., 0]  # A V c = V_+ H c
        a = xp.concat([above, below], axis=-1)
        for _ in range(2):
            a = orthogonalise(xp, rows(xp, s.G, 0, j + 1), a)[0]
        left = norm(xp, a)
        ended = left <= SMALL * xp.eps(a.dtype) * (lower.size + moved)
        # Where that space is closed its vectors have nothing to add: zero, and random vectors in U
        # and V do no harm.
        a = xp.where(ended[..., None], 0 * a, a / xp.where(left == 0, 1, left)[..., None])
        G = put(xp, s.G, (..., j + 1, slice(None)), a)
        return Pair(
            lower=lower,
            U=U,
            AU=AU,
            EV=EV,
            S=S,
            C=C,
            G=G,
            moved=moved,
            closed=xp.logical_or(s.closed, ended),
        )

    def small(s: Pair, j: Any) -> tuple[Array, Array, Array, Array]:
        T, S = square(xp, s.lower.H, j), square(xp, s.S, j, s.lower.H)
        C = s.C[..., :j, :j] if not xp.is_functional else s.C
        X, scale, doubt = corner(S, C, T)
        whole, column = (
            norm(xp, xp.reshape(X, (*X.shape[:-2], X.shape[-1] ** 2))),
            norm(xp, X[..., :, 0]),
        )
        doubt = xp.where(doubt > 0, doubt * whole / xp.where(column == 0, 1, column), 0 * doubt)
        return X[..., :, 0], scale, whole, doubt

    def exact(s: Pair, j: Any) -> Array:
        still = s.moved == 0  # dA is zero as far as it can be seen
        closed = xp.logical_or(s.closed, xp.logical_and(still, s.lower.closed))
        return closed if n > m else xp.logical_or(closed, j + 0 * s.moved >= n)

    run = judged(
        xp, state, step, small, lambda s: s.lower.size + s.moved, exact, weight, m=m, tol=tol
    )
    c = (
        run.found
        if not xp.is_functional
        else xp.where(xp.arange(m) < run.j, run.found, 0 * run.found)
    )
    U = run.state.U[..., : c.shape[-1], :]
    X = (
        expand(xp, c, xp.astype(U, xp.result_type(c.dtype, U.dtype)))
        * (weight * xp.exp(run.scale))[..., None]
    )
    return Product(X, run.error, 3 * run.j, run.done, plain(xp, xp.all(xp.isfinite(X))))
