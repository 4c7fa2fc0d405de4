"""Lanczos with thick restart (Wu and Simon 2000) for the extreme eigenpairs of self-adjoint A.

A cycle fills the basis to m vectors, A V = V T + beta v e_m^H, solves the small problem T y = theta y, and keeps the best p Ritz
vectors and v: in that basis T is an arrow, and the recurrence goes on behind it as before.

Differs from the paper:
- The basis stays orthogonal: each vector is orthogonalised along the recurrence, and then again against all of the basis, by
  Gram and Schmidt or by Householder reflections. Where the host sees the numbers, the second pass is left out while a bound on
  what it would find stays below eps^(3/4), and well below the tolerance (after Simon 1984): that is most steps, and half of the
  time. What a pass takes away is missing from T, so that no residual can be smaller than that.
- beta = 0 is an invariant subspace, no failure: a random direction follows, coupled to nothing.
- A Krylov space holds one vector of each eigenspace, so repeated eigenvalues would be missed. When all k pairs have converged the
  run looks again: it keeps them alone and goes on from a random direction, until the next pair is seen to be none of the wanted.
- Batches advance together, and restart together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from .krylov import SMALL, count_of, direction, expand, fresh, norm, pick, plain, put, reflectors, rotate, smaller
from .lanczos_alone import grown

FEWEST = 4  # steps between two looks at the pairs
LOOK = 8  # steps after which a run that looks again looks at what it has found
Score = Callable[[Array], Array]  # of Ritz values: the smaller, the better
SAFETY = 0.5  # of the tolerance at which estimates stop the run, so that the true residuals meet it


class State(NamedTuple):
    """Where a run stands. Counts are numbers in NumPy and torch, arrays in JAX."""

    V: Array  # (*lanes, m + 1, n), the basis
    U: Array | None  # its reflectors
    T: Array  # (*lanes, m, m), the lower triangle of the projected operator
    beta: Array  # (*lanes,), of the last step
    size: Array  # (*lanes,), of A as seen so far
    due: Any  # how many vectors are to be orthogonalised whatever is known of them, where that is not all of them
    j: Any  # rows of V that are complete, less one
    kept: Any  # rows that the last restart kept
    values: Array  # (*lanes, m), Ritz values, the wanted first
    Y: Array  # (*lanes, m, m), their vectors in the basis
    residual: Array  # (*lanes, m), estimated
    converged: Array  # (*lanes, m)
    found: Array  # (*lanes, k), the values when the run began to look again
    looked: Any  # the matvecs when it did; 0 before
    again: Any  # whether it does now
    matvecs: Any
    cycles: Any
    draws: Any  # random directions used
    done: Any
    finite: Any
    excess: Any  # the largest residual of a wanted pair, in those that are asked for
    ahead: Any  # how many steps it will take to reach that, if the residual falls as it did

    @property
    def iterations(self) -> Any:
        """The steps so far: each makes one product."""
        return self.matvecs


class Pairs(NamedTuple):
    """Eigenpairs by rows: values (*lanes, k), vectors (*lanes, k, n), how the run ended."""

    values: Array
    vectors: Array
    size: Array
    matvecs: Any
    iterations: Any  # in the unit of `max_iters`
    done: Any
    finite: Any
    stopped: bool = False


def wanted(xp: Any, values: Array, which: str, shift: complex = 0.0) -> Array:
    """A score of each value, the smaller the better; "SM" and "LM" go by the distance from the shift."""
    values = values - shift if shift else values
    values = xp.abs(values) if which[1] == "M" else xp.abs(xp.imag(values)) if which[1] == "I" else xp.real(values)
    return -values if which[0] == "L" else values


def lanczos(
    xp: Any,
    multiply: Callable[[Array], Array],
    start: Array,
    noise: Array,
    k: int,
    which: str,
    *,
    m: int,
    tol: float,
    max_iters: Any,
    patience: Any = math.inf,
    shift: float = 0.0,
    householder: bool = False,
    again: bool = True,
    relative: bool = False,
    watch: Callable[[State], Any] | None = None,
) -> Pairs:
    """The k eigenpairs of self-adjoint A that `which` names.

    Parameters
    ----------
    xp : module
        The backend.
    multiply : callable
        A X for X of shape (*lanes, n, 1).
    start, noise : arrays, (*lanes, n)
        Where to begin, and random numbers from which further directions are taken.
    k, which, m
        How many, which, and the size of the basis, k < m <= n or k = m = n.
    tol : float
        Of the residual relative to the norm of A.
    max_iters : int
        The most steps, each of which makes one product.
    patience : int
        The steps after which the run ends as soon as the basis is full.
    shift : float
        The number from which "SM" and "LM" take distances.
    householder : bool
        Whether to orthogonalise by reflections.
    again : bool
        Whether to look again for members of repeated eigenvalues.
    relative : bool
        Whether each residual is held against its own eigenvalue instead of the norm of A, as an inverse needs it.
    watch : callable, optional
        Called after each cycle with the state; stops the run if it returns True. Not under tracing.
    """
    is_whole = m >= start.shape[-1] or k == 0  # the basis spans everything: one cycle finds all there is
    stopped = False

    def score(values: Array) -> Array:
        return wanted(xp, values, which, shift)

    def cycle(state: State) -> State:
        begun = state.j
        stop = _stop(xp, state, m, max_iters)
        state = _projected(xp, _grown(xp, multiply, noise, state, stop, m, tol), k, score, m, tol, relative, begun)
        converged = plain(xp, xp.all(state.converged[..., :k]))
        state = state._replace(done=converged) if is_whole or not again else _judged(xp, state, converged, k, score, tol)
        is_due = (state.j >= m) | state.done | state.again | (state.matvecs >= max_iters)
        return xp.cond(is_due, lambda s: _restarted(xp, noise, s, k, m), lambda s: s, state)

    def going(state: State) -> Any:
        return (
            (state.done ^ True)
            & state.finite
            & (state.matvecs < max_iters)
            & (state.matvecs < patience)
            & (not is_whole or state.cycles == 0)
            & (not stopped)
        )

    state = _initial(xp, start, k, m, householder)
    if watch is None:
        state = xp.while_loop(going, cycle, state)
    else:
        one = xp.jit(cycle)
        while going(state):
            state = one(state)
            stopped = bool(watch(state))
    vectors = xp.copy(state.V[..., :k, :])  # so that the basis can go
    ended = state.matvecs, state.iterations, state.done, state.finite, stopped
    return Pairs(state.values[..., :k], vectors, state.size, *ended)


# ---------------------------------------------------------------------------------------------------- the parts of a cycle


def _initial(xp: Any, start: Array, k: int, m: int, householder: bool) -> State:
    lanes, n, device = start.shape[:-1], start.shape[-1], xp.device_of(start)
    real = xp.real_dtype(start.dtype)
    V = xp.zeros((*lanes, m + 1, n), dtype=start.dtype, device=device)
    V = put(xp, V, (..., 0, slice(None)), start / xp.vector_norm(start, axis=-1)[..., None])
    T = xp.zeros((*lanes, m, m), dtype=start.dtype, device=device)
    zero = xp.zeros(lanes, dtype=real, device=device)
    values = xp.zeros((*lanes, m), dtype=real, device=device)
    j, kept, looked, matvecs, cycles, draws, again, done = (count_of(xp, c) for c in (0, 0, 0, 0, 0, 0, False, False))
    U = reflectors(xp, V, 1) if householder else None
    finite = count_of(xp, True)
    return State(
        V,
        U,
        T,
        zero,
        zero,
        count_of(xp, 1),
        j,
        kept,
        values,
        T,
        values,
        values > 0,
        values[..., :k],
        looked,
        again,
        matvecs,
        cycles,
        draws,
        done,
        finite,
        math.inf if xp.name != "jax" else xp.max(zero) + math.inf,
        count_of(xp, m),
    )


def _stop(xp: Any, s: State, m: int, max_iters: Any) -> Any:
    """Where to look at the pairs next: when the basis is full, or before that when they may have converged or no step is left."""
    ahead, left = pick(xp, s.looked > 0, LOOK, s.ahead), max_iters - s.matvecs
    return smaller(xp, s.j + smaller(xp, ahead, left), m)


def _grown(xp: Any, multiply: Callable[[Array], Array], noise: Array, state: State, stop: Any, m: int, tol: float) -> State:
    """The basis filled to `stop`, or as far as numbers are finite."""
    if state.V.ndim == 2 and state.U is None and xp.name != "jax" and xp.peek(state.size) is not None:
        return grown(xp, multiply, noise, state, stop, m, tol)
    look = xp.name != "torch" or not state.V.is_cuda  # looking would wait for the GPU

    def going(s: State) -> Any:
        return (s.j < stop) & (plain(xp, xp.all(xp.isfinite(s.size))) if look else True)

    return xp.while_loop(going, lambda s: _step(xp, multiply, noise, s, m), state)


def _step(xp: Any, multiply: Callable[[Array], Array], noise: Array, s: State, m: int) -> State:
    """One more vector: A v_j = sum_i T_ij v_i + beta v_j+1, where T_ij is known for i < j."""
    V, T, j = s.V, s.T, s.j
    v = V[..., j, :]
    w = multiply(v[..., None])[..., 0]
    size = xp.maximum(s.size, norm(xp, w))
    if xp.name == "jax":
        w = w - expand(xp, xp.conj(T[..., j, :]), V[..., :m, :])
    elif j > 0:
        first = 0 if j == s.kept else j - 1  # the arrow has neighbours everywhere, what follows it only the one before
        w = w - expand(xp, xp.conj(T[..., j, first:j]), V[..., first:j, :])
    alpha = xp.real(xp.vecdot(v, w))
    w = w - alpha[..., None] * v
    length = norm(xp, w)
    small = length <= SMALL * xp.eps(w.dtype) * size
    if xp.name != "numpy" or small.any():
        w = xp.where(small[..., None], fresh(xp, noise, s.draws + j), w)
    v, beta, U = direction(xp, V, s.U, w, j + 1)
    beta = xp.where(small, 0 * beta, beta)
    V = put(xp, V, (..., j + 1, slice(None)), v)
    T = put(xp, T, (..., j, j), xp.astype(alpha, T.dtype))
    if xp.name == "jax" or j + 1 < m:  # JAX drops what is put outside
        T = put(xp, T, (..., j + 1, j), xp.astype(beta, T.dtype))
    return s._replace(V=V, U=U, T=T, beta=beta, size=size, j=j + 1, matvecs=s.matvecs + 1)


def _projected(xp: Any, s: State, k: int, scores: Score, m: int, tol: float, relative: bool, begun: Any) -> State:
    """Rayleigh and Ritz: T Y = Y diag(values), and |A V y - theta V y| = beta |y_m|."""
    inside = xp.arange(m, device=xp.device_of(s.T)) < s.j
    lower = xp.where(inside[:, None], xp.tril(s.T, -1), 0 * s.T)
    diagonal = xp.where(inside, xp.real(xp.diagonal(s.T)), 3 * s.size[..., None] + 1)  # outside, what is no eigenvalue of A
    values, Y = xp.eigh(xp.make_diagonal(xp.astype(diagonal, s.T.dtype)) + lower + xp.conj(xp.matrix_transpose(lower)))
    score = xp.where(values > 2 * s.size[..., None] + 0.5, math.inf, scores(values))
    order = xp.argsort(score, axis=-1, stable=True)
    values = xp.take_along_axis(values, order, axis=-1)
    Y = xp.take_along_axis(Y, xp.broadcast_to(order[..., None, :], Y.shape), axis=-1)
    residual = s.beta[..., None] * xp.abs(Y[..., s.j - 1, :])
    size = xp.maximum(s.size, xp.max(xp.where(inside, xp.abs(values), 0 * values), axis=-1))
    eps = xp.eps(s.V.dtype)
    against = xp.maximum(xp.abs(values), eps ** (2 / 3) * size[..., None]) if relative else size[..., None]
    target = SAFETY * max(tol, 2 * eps) * against + 0 * residual
    converged = residual <= target
    finite = plain(xp, xp.all(xp.isfinite(s.size)))
    excess = plain(xp, xp.max(residual[..., :k] / xp.where(target[..., :k] == 0, 1, target[..., :k])))
    ahead = steps_ahead(xp, s.excess, excess, s.j - begun, m)
    # The size that is kept is that of products alone: Ritz values of an A that is not self-adjoint may be anything.
    return s._replace(
        values=values,
        Y=Y,
        residual=residual,
        converged=converged,
        cycles=s.cycles + 1,
        finite=finite,
        excess=excess,
        ahead=ahead,
    )


def steps_ahead(xp: Any, before: Any, now: Any, steps: Any, m: int) -> Any:
    """How many steps a residual needs to fall to 1, by how it fell from `before` to `now` in these `steps`; m where that is more."""
    if xp.name != "jax":
        if not 1 < now < before < math.inf:
            return m
        return min(m, max(FEWEST, math.ceil(steps * math.log(now) / math.log(before / now))))
    falls = (now > 1) & (now < before) & xp.isfinite(before)
    rate = xp.log(xp.where(falls, before / now, 2.0))
    needed = xp.minimum(steps * xp.log(xp.where(falls, now, 2.0)) / rate, m)
    return xp.where(falls, xp.maximum(1 + xp.astype(needed, xp.asarray(m).dtype), FEWEST), m)


def _judged(xp: Any, s: State, converged: Any, k: int, scores: Score, tol: float) -> State:
    """Whether the k pairs are known to be the best; if they have but converged, begin to look again."""
    score = scores(s.values)
    far = score[..., k] - score[..., k - 1] > s.residual[..., k]
    is_none = plain(xp, xp.all(xp.logical_or(s.converged[..., k], far)))  # the next pair is none of the wanted, surely
    same = plain(xp, xp.all(xp.abs(s.values[..., :k] - s.found) <= tol * s.size[..., None]))  # as when the look began
    looking, tired = s.looked > 0, s.matvecs >= 2 * s.looked
    done = converged & looking & same & (is_none | tired)
    again = converged & ((looking ^ True) | ((same ^ True) & is_none))
    found = pick(xp, again, s.values[..., :k], s.found)
    return s._replace(done=done, again=again, found=found, looked=pick(xp, again, s.matvecs, s.looked))


def _restarted(xp: Any, noise: Array, s: State, k: int, m: int) -> State:
    """The best p Ritz vectors, and behind them the last vector of the basis; or the k wanted ones and a random vector."""
    j = s.j
    near = xp.min(xp.sum(s.residual[..., :k] <= math.sqrt(xp.eps(s.V.dtype)) * s.size[..., None], axis=-1))
    more = max(0, min((m - k) // 4, m - 2 - k))
    p = pick(xp, s.again | s.done, k, plain(xp, xp.minimum(k + more + near // 2, max(k, m - 2))))
    V = rotate(xp, s.V, s.Y, p, j)
    kept = xp.arange(m, device=xp.device_of(V)) < p
    T = xp.make_diagonal(xp.astype(xp.where(kept, s.values, 0 * s.values), V.dtype))
    arrow = s.beta[..., None] * s.Y[..., j - 1, :]
    if xp.name == "jax" or p < m:
        T = put(xp, T, (..., p, slice(None)), xp.where(kept, pick(xp, s.again, 0 * arrow, arrow), 0 * arrow))
    if xp.name == "jax" or s.again:
        last = direction(xp, V, None, direction(xp, V, None, fresh(xp, noise, s.draws), p)[0], p)[0]
        V = put(xp, V, (..., p, slice(None)), pick(xp, s.again, last, V[..., p, :]))
    else:
        V = put(xp, V, (..., p, slice(None)), direction(xp, V, None, V[..., p, :], p)[0])
    U = s.U if s.U is None else reflectors(xp, V, p + 1)
    return s._replace(V=V, U=U, T=T, j=p, kept=p, draws=s.draws + m)
