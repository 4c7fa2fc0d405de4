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

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ..backends import Array, adjoint, places_like, without_zeros, zeros_like
from .arnoldi import ArnoldiRun
from .basis import (
    SMALL,
    all_finite,
    expand,
    extend,
    fresh,
    norm,
    normalised,
    orthogonalise,
    project,
    put,
    put_row,
    rows,
    widen,
    within,
)  # fmt: skip
from .krylov_function import Coefficients, Product, converge, leading
from .restarted import KrylovState
from .vectors import LinearMap, State

# S, C, T to the corner of f([S C; 0 T]), as X e^s, and by how much of its norm X may be wrong
Corner = Callable[[Array, Array, Array], tuple[Array, Array, Array]]


class Factors(NamedTuple):
    """W V^H, the cotangent of A, for each lane: rows of W and V, (*lanes, m, n), and how good it
    is."""

    W: Array
    V: Array
    error: Array
    steps: Any
    done: Any
    finite: Any


def space(
    xp: Any, multiply: LinearMap, start: Array, noise: Array, m: int
) -> tuple[KrylovState, Callable[[KrylovState], KrylovState]]:
    """A Krylov space before its first step, and its step; `multiply` takes X of shape (*lanes, n)
    to such."""
    run = ArnoldiRun(xp, lambda X: multiply(X[..., 0])[..., None], start, noise, 1, "LM", m=m)
    return run.initial(), run.step


def is_closed(xp: Any, s: KrylovState) -> Array:
    """Whether an invariant subspace was met, (*lanes,)."""
    beside = xp.diagonal(s.H, offset=-1)  # |w| of each step
    return xp.any((beside == 0) & (places_like(xp, beside) < s.j), axis=-1)


def square(xp: Any, H: Array, j: Any, corner: Array | None = None) -> Array:
    """The leading part of H that is filled; in JAX of full size, with its first diagonal entry, or
    that of `corner`, behind, where f is surely defined."""
    T = leading(xp, H, j)
    first = (T if corner is None else corner)[..., 0, :1]
    return within(xp, T, places_like(xp, T) < j, first)


# ---------------------------------------------------------------------------------------- backwards


class Pair(NamedTuple):
    """The two bases of the backward way."""

    right: KrylovState  # V, from b
    left: KrylovState  # U, from g

    @property
    def j(self) -> Any:
        """The steps so far."""
        return self.right.j

    @property
    def size(self) -> Array:
        """The size of A as seen so far."""
        return self.right.size + self.left.size


def adjoint_factors(
    xp: Any,
    multiply: LinearMap,
    multiply_adjoint: LinearMap,
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
    right, step_right = space(xp, multiply, start, noise, m)
    left, step_left = space(xp, multiply_adjoint, cotangent, noise, m)

    def step(s: Pair) -> Pair:
        return Pair(step_right(s.right), step_left(s.left))

    def coefficients(s: Pair) -> Coefficients:
        T, S = (square(xp, run.H, s.j) for run in s)
        C = put(xp, 0 * S, (..., 0, 0), 1 + 0 * S[..., 0, 0])
        X, scale, doubt = corner(S, C, adjoint(xp, T))
        X = xp.matrix_transpose(widen(xp, xp.matrix_transpose(widen(xp, X, m)), m))
        flat = xp.reshape(X, (*X.shape[:-2], m * m))
        closed = is_closed(xp, s.right) & is_closed(xp, s.left)
        return Coefficients(flat, scale, 0 * scale, doubt, closed | (s.j >= n))

    run = converge(xp, Pair(right, left), step, coefficients, m=m, tol=tol, weight=weight)
    X = xp.reshape(run.found.values, (*start.shape[:-1], m, m))
    inside = places_like(xp, X) < run.state.j
    X = xp.where(inside[:, None] & inside, X, 0)
    X = X * (weight * xp.exp(run.found.scale))[..., None, None]
    V, U = (space.V[..., :m, :] for space in run.state)
    W = xp.matmul(xp.matrix_transpose(X), xp.astype(U, xp.result_type(U.dtype, X.dtype)))
    return Factors(W, V, run.error, 2 * run.state.j, run.done, all_finite(xp, W))


# ----------------------------------------------------------------------------------------- forwards


class Triangle(State):
    """The two bases of the forward way after j steps: j + 1 vectors in V, j in U."""

    lower: KrylovState  # V, from b
    U: Array  # (*lanes, m, n)
    AU: Array  # (*lanes, m, n), A U
    EV: Array  # (*lanes, m, n), dA V
    S: Array  # (*lanes, m, m), U^H A U
    C: Array  # (*lanes, m, m), U^H dA V
    # (*lanes, m + 1, 2 m + 1), the Arnoldi vectors (U a, V c) of the block triangle, as (a, c)
    G: Array
    moved: Array  # (*lanes,), of dA as seen so far
    closed: Array

    @property
    def j(self) -> Any:
        """The steps so far."""
        return self.lower.j

    @property
    def size(self) -> Array:
        """The size of A and dA as seen so far."""
        return self.lower.size + self.moved


def tangent_times(
    xp: Any,
    multiply: LinearMap,
    move: LinearMap,
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
    *lanes, n = start.shape
    m = min(m, n)
    lower, grown = space(xp, multiply, start, noise, m)
    U, AU, EV = (zeros_like(xp, start, (*lanes, m, n)) for _ in range(3))
    S, C = (zeros_like(xp, start, (*lanes, m, m)) for _ in range(2))
    G = zeros_like(xp, start, (*lanes, m + 1, 2 * m + 1))
    G = put(xp, G, (..., 0, m), 1 + G[..., 0, 0])
    moved = 0 * lower.size
    state = Triangle(lower=lower, U=U, AU=AU, EV=EV, S=S, C=C, G=G, moved=moved, closed=moved > 0)

    def with_both(X: Array, j: Any, row: Array, column: Array) -> Array:
        return put(xp, put_row(xp, X, j, row), (..., slice(None), j), column)

    def step(s: Triangle) -> Triangle:
        j, v, g = s.j, s.lower.V[..., s.j, :], s.G[..., s.j, :]
        a, c = g[..., :m], g[..., m : 2 * m]
        s.lower = grown(s.lower)
        e = move(v)
        s.moved = xp.maximum(s.moved, norm(xp, e))
        s.EV = put_row(xp, s.EV, j, e)
        t = expand(xp, a, s.AU) + expand(xp, c, s.EV)  # A U a + dA V c
        h, length, u, *_ = extend(
            xp, s.U, None, t, j, s.size, partial(fresh, xp, noise, j), is_far=True
        )
        s.U = put_row(xp, s.U, j, u)
        w = multiply(u)
        s.AU = put_row(xp, s.AU, j, w)
        s.S = with_both(s.S, j, xp.conj(project(xp, s.AU, u)), project(xp, s.U, w))
        s.C = with_both(s.C, j, xp.conj(project(xp, s.EV, u)), project(xp, s.U, e))
        above = widen(xp, h, m)
        here = places_like(xp, above) == j
        above = xp.where(here, xp.astype(length, h.dtype)[..., None], above)
        below = xp.matmul(s.lower.H, c[..., None])[..., 0]  # A V c = V_+ H c
        rest = xp.concat([above, below], axis=-1)
        for _ in range(2):
            rest = orthogonalise(xp, rows(xp, s.G, j + 1), rest)[0]
        following, left = normalised(xp, rest)
        ended = left <= SMALL * xp.eps(rest.dtype) * s.size
        # Where that space is closed its vectors have nothing to add: zero, and random vectors in U
        # and V do no harm.
        s.G = put_row(xp, s.G, j + 1, xp.where(ended[..., None], 0, following))
        s.closed = s.closed | ended
        return s

    def coefficients(s: Triangle) -> Coefficients:
        T, S = square(xp, s.lower.H, s.j), square(xp, s.S, s.j, s.lower.H)
        X, scale, doubt = corner(S, s.C[..., : S.shape[-1], : S.shape[-1]], T)
        whole, column = xp.vector_norm(X, axis=(-2, -1)), norm(xp, X[..., 0])
        doubt = xp.where(doubt > 0, doubt * whole / without_zeros(xp, column), 0)
        still = s.moved == 0  # dA is zero as far as it can be seen
        is_exact = s.closed | (still & is_closed(xp, s.lower)) | (s.j >= n)
        return Coefficients(widen(xp, X[..., 0], m), scale, whole, doubt, is_exact)

    run = converge(xp, state, step, coefficients, m=m, tol=tol, weight=weight)
    X = run.combine(xp, run.state.U, weight)
    return Product(X, run.error, 3 * run.state.j, run.done, all_finite(xp, X))
