"""Lanczos with thick restart (Wu and Simon 2000) for the extreme eigenpairs of self-adjoint A.

A cycle fills the basis to m vectors, A V = V T + beta v e_m^H, solves the small problem T y = theta
y, and keeps the best p Ritz vectors and v: in that basis T is an arrow, and the recurrence goes on
behind it as before.

Differs from the paper:
- The basis stays orthogonal: each vector is orthogonalised along the recurrence, and then again
  against all of the basis, by Gram and Schmidt or by Householder reflections. Where the host sees
  the numbers of one vector, the second pass is left out while a bound on what it would find
  (`Drift`, after Simon 1984) stays below eps^(3/4), and well below the tolerance: that is most
  steps, and half of the time. What a pass takes away is missing from T, so that no residual can be
  smaller than that.
- beta = 0 is an invariant subspace, no failure: a random direction follows, coupled to nothing.
- A Krylov space holds one vector of each eigenspace, so repeated eigenvalues would be missed. When
  all k pairs have converged the run looks again: it keeps them alone and goes on from a random
  direction, until the next pair is seen to be none of the wanted.
- Batches advance together, and restart together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..backends import Array
from ..properties import SELF_ADJOINT
from .base import Spectral
from .basis import (
    SAFETY,
    SMALL,
    Pairs,
    count_kept,
    count_of,
    counts,
    direction,
    expand,
    fill,
    fresh,
    judge,
    may_be_set,
    orthogonalise,
    pairs_of,
    pick,
    plain,
    put,
    reflectors,
    rotate,
    run_cycles,
    smaller,
    wanted,
    with_random_row,
)
from .vectors import Columns, LinearMap, Single

FEWEST = 4  # steps between two looks at the pairs
LOOK = 8  # steps after which a run that looks again looks at what it has found
Score = LinearMap  # of Ritz values: the smaller, the better
SLACK = 0.75  # power of eps up to which the basis may lose orthogonality between two passes
# of the tolerance up to which it may: what a pass takes away is an error of the recurrence
SHARE = 1e-3


@dataclass(frozen=True)
class Lanczos(Spectral):
    """Lanczos with thick restart (Wu and Simon 2000), for some eigenpairs of self-adjoint A.

    An iteration is a step: one product with A, or with its inverse, and one more vector in the
    basis. Inside Chebyshev polynomials every product with A is one, and the run makes as many as
    fill two bases in any case.

    Parameters
    ----------
    basis : int, optional
        How many vectors the basis holds; default 2 k + 14. More take fewer products, and more
        memory.
    orthogonalisation : {"gram-schmidt", "householder"}
        How the basis is kept orthogonal. Reflections take twice the memory.
    repeated : bool
        Whether to look, once k pairs have converged, for further members of repeated eigenvalues: a
        Krylov space holds one vector of each eigenspace, and ARPACK returns what that finds.
    shift : float, optional
        Find the pairs nearest to it; `which` must be "SM". Through (A - shift I)^-1 where A is a
        stored matrix or structure makes that cheap, else by Chebyshev polynomials of A, which take
        many more products: those nearest to zero of an A of either sign too. Then the default of
        `max_iters` is six times as large.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.arange(1000.0)))
    >>> values, vectors = co.eig(A, 2, "LA", co.Lanczos())
    >>> values.round(6)
    array([998., 999.])
    """

    basis: int | None = None
    orthogonalisation: str = "gram-schmidt"
    repeated: bool = True
    shift: float | None = None

    needs: ClassVar[int] = SELF_ADJOINT
    shift_type: ClassVar[Any] = Real


class LanczosState(NamedTuple):
    """Where a run stands. Counts are numbers in NumPy and torch, arrays in JAX."""

    V: Array  # (*lanes, m + 1, n), the basis
    U: Array | None  # its reflectors
    T: Array  # (*lanes, m, m), the lower triangle of the projected operator
    beta: Array  # (*lanes,), of the last step
    size: Array  # (*lanes,), of A as seen so far
    # how many vectors are to be orthogonalised whatever is known of them, where that is not all of
    # them
    due: Any
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


def lanczos(
    xp: Any,
    multiply: LinearMap,
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
    watch: Callable[[LanczosState], Any] | None = None,
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
        Whether each residual is held against its own eigenvalue instead of the norm of A, as an
        inverse needs it.
    watch : callable, optional
        Called after each cycle with the state; stops the run if it returns True. Not under tracing.
    """
    # the basis spans everything: one cycle finds all there is
    is_whole = m >= start.shape[-1] or k == 0

    def score(values: Array) -> Array:
        return wanted(xp, values, which, shift)

    def cycle(s: LanczosState) -> LanczosState:
        begun = s.j
        s = _grown(xp, multiply, noise, s, _stop(xp, s, m, max_iters), m, tol)
        s = _projected(xp, s, k, score, m, tol, relative, begun)
        converged = plain(xp, xp.all(s.converged[..., :k]))
        s = s._replace(done=converged) if is_whole or not again else judged(s, converged)
        is_due = (s.j >= m) | s.done | s.again | (s.matvecs >= max_iters)
        return xp.cond(is_due, lambda s: _restarted(xp, noise, s, k, m), lambda s: s, s)

    def judged(s: LanczosState, converged: Any) -> LanczosState:
        values, scores = s.values[..., :k], score(s.values)
        far = scores[..., k] - scores[..., k - 1] > s.residual[..., k]
        same = xp.abs(values - s.found) <= tol * s.size[..., None]
        return judge(xp, s, converged, xp.logical_or(s.converged[..., k], far), same, values)

    def going(s: LanczosState) -> Any:
        left = (s.matvecs < max_iters) & (s.matvecs < patience) & (not is_whole or s.cycles == 0)
        return (s.done ^ True) & s.finite & left

    s, stopped = run_cycles(xp, going, cycle, _initial(xp, start, k, m, householder), watch)
    # so that the basis can go
    return pairs_of(s, s.values[..., :k], xp.copy(s.V[..., :k, :]), stopped)


# ----------------------------------------------------------------------------- the parts of a cycle


def _initial(xp: Any, start: Array, k: int, m: int, householder: bool) -> LanczosState:
    lanes, n, device = start.shape[:-1], start.shape[-1], xp.device_of(start)
    real = xp.real_dtype(start.dtype)
    V = xp.zeros((*lanes, m + 1, n), dtype=start.dtype, device=device)
    V = put(xp, V, (..., 0, slice(None)), start / xp.vector_norm(start, axis=-1)[..., None])
    T = xp.zeros((*lanes, m, m), dtype=start.dtype, device=device)
    zero = xp.zeros(lanes, dtype=real, device=device)
    values = xp.zeros((*lanes, m), dtype=real, device=device)
    return LanczosState(
        V=V,
        U=reflectors(xp, V, 1) if householder else None,
        T=T,
        beta=zero,
        size=zero,
        due=count_of(xp, 1),
        kept=count_of(xp, 0),
        values=values,
        Y=T,
        residual=values,
        converged=values > 0,
        found=values[..., :k],
        excess=math.inf if not xp.is_functional else xp.max(zero) + math.inf,
        ahead=count_of(xp, m),
        **counts(xp),
    )


def _stop(xp: Any, s: LanczosState, m: int, max_iters: Any) -> Any:
    """Where to look at the pairs next: when the basis is full, or before that when they may have
    converged or no step is left."""
    ahead, left = pick(xp, s.looked > 0, LOOK, s.ahead), max_iters - s.matvecs
    return smaller(xp, s.j + smaller(xp, ahead, left), m)


def _grown(
    xp: Any,
    multiply: LinearMap,
    noise: Array,
    s: LanczosState,
    stop: Any,
    m: int,
    tol: float,
) -> LanczosState:
    """The state with the basis filled to `stop`, or as far as numbers are finite."""
    if s.V.ndim == 2 and s.U is None and not xp.is_functional and xp.peek(s.size) is not None:
        return _grown_alone(xp, multiply, noise, s, stop, m, tol)
    return fill(xp, lambda s: _step(xp, multiply, noise, s, m), s, stop)


def _recur(
    ops: Any, multiply: Any, s: LanczosState, j: Any, beta: Any, size: Any, m: int
) -> tuple[Array, Any, Any, Any, Any]:
    """The three-term recurrence, A v_j = sum_i T_ij v_i + w, where T_ij is known for i < j.

    Returns w, T_jj, |w|, the size of A as seen so far, and whether w is zero beside that.
    """
    xp, V, T = ops.xp, s.V, s.T
    v = V[..., j, :]
    w = multiply(v[..., None])[..., 0]
    size = ops.larger(size, ops.norm(w))
    if xp.is_functional:
        w = w - expand(xp, xp.conj(T[..., j, :]), V[..., :m, :])
    elif j == s.kept:  # the arrow has neighbours everywhere, what follows it only the one before
        w = w - expand(xp, xp.conj(T[..., j, :j]), V[..., :j, :]) if j else xp.copy(w)
    else:
        w = w - ops.scaled(beta, V[..., j - 1, :])  # w = A v_j - β v_j-1
    alpha = ops.dot(v, w)  # α = v_j^H w
    w = ops.axpy(-alpha, v, w)  # w = w - α v_j
    length = ops.norm(w)
    return w, alpha, length, size, length <= SMALL * ops.eps * size


def _step(xp: Any, multiply: LinearMap, noise: Array, s: LanczosState, m: int) -> LanczosState:
    """One more vector, in all lanes."""
    ops, j = Columns(xp, s.V.dtype, axis=-1), s.j
    w, alpha, _, size, small = _recur(ops, multiply, s, j, s.beta, s.size, m)
    if may_be_set(xp, small):
        w = xp.where(small[..., None], fresh(xp, noise, s.draws + j), w)
    v, beta, U = direction(xp, s.V, s.U, w, j + 1)
    beta = xp.where(small, 0 * beta, beta)
    V = put(xp, s.V, (..., j + 1, slice(None)), v)
    T = put(xp, s.T, (..., j, j), xp.astype(alpha, s.T.dtype))
    if xp.is_functional or j + 1 < m:  # JAX drops what is put outside
        T = put(xp, T, (..., j + 1, j), xp.astype(beta, T.dtype))
    return s._replace(V=V, U=U, T=T, beta=beta, size=size, j=j + 1, matvecs=s.matvecs + 1)


def _grown_alone(
    xp: Any,
    multiply: LinearMap,
    noise: Array,
    s: LanczosState,
    stop: Any,
    m: int,
    tol: float,
) -> LanczosState:
    """`_grown` for one vector whose numbers can be seen: they are Python's, and vectors are
    orthogonalised when due.

    A pass over the basis, which is most of the time of a step where products are cheap, is made
    only when an inner product has grown to eps^(3/4), or to a small part of the tolerance; and then
    for two vectors in turn, or the one before would spoil the next.
    """
    ops, V, T, j, due = Single(xp, s.V.dtype), s.V, s.T, s.j, s.due
    size, beta, eps = float(s.size), float(s.beta), ops.eps
    drift, allowed = Drift(xp.to_numpy(T), eps), min(eps**SLACK, SHARE * tol)
    while j < stop and math.isfinite(size):
        w, alpha, length, size, small = _recur(ops, multiply, s, j, beta, size, m)
        # A run that looks again has dropped the residuals of what it keeps, of which the recurrence
        # knows nothing.
        if due > 0 or s.looked or small or not drift.after(j, alpha, beta, length, size) < allowed:
            w = orthogonalise(xp, V[: j + 1], fresh(xp, noise, s.draws + j) if small else w)[0]
            length = ops.norm(w)
            drift.clear()
            due = due - 1 if due else 1
        V[j + 1] = w * ops.ratio(1.0, length)
        del w  # a vector less while the next is made
        beta = 0.0 if small else length
        T[j, j] = alpha
        if j + 1 < m:
            T[j + 1, j] = beta
        drift.step(j, alpha, beta)
        j += 1
    device = xp.device_of(V)
    beta, size = (xp.asarray(x, dtype=s.size.dtype, device=device) for x in (beta, size))
    # What is known of the inner products is not kept between two calls: the first two vectors of
    # the next are orthogonalised.
    return s._replace(beta=beta, size=size, due=2, j=j, matvecs=s.matvecs + j - s.j)


class Drift:
    """Estimates of the inner products of the last two vectors with those before.

    The recurrence alone loses orthogonality, as Ritz vectors converge. How much is lost is known
    without looking: the inner products ω_j = V^H v_j obey the recurrence themselves (Simon 1984),

        β_j ω_j+1 = T ω_j - α_j ω_j - β_j-1 ω_j-1 + rounding.
    """

    def __init__(self, T: np.ndarray, eps: float):
        self.T = np.tril(T) + np.tril(T, -1).conj().T
        self.eps = eps
        m = len(T)
        self.before, self.last, self.following = (np.full(m + 1, eps, T.dtype) for _ in range(3))

    def after(self, j: int, alpha: float, beta: float, length: float, size: float) -> float:
        """The largest inner product of the vector after v_j, of this norm before it is normalised,
        with the others."""
        self.last[j] = 1
        if j:
            self.before[j - 1] = 1
        found = self.T[:j, :j] @ self.last[:j] - alpha * self.last[:j] - beta * self.before[:j]
        if j:
            found[j - 1] += self.T[j, j - 1]
        found /= length
        rounding = 2 * self.eps * size / length
        self.following[:j] = found + np.where(found.real < 0, -rounding, rounding)
        self.following[j] = rounding
        return float(np.abs(self.following[: j + 1]).max())

    def clear(self) -> None:
        """The vector was orthogonalised."""
        self.following[:] = self.eps

    def step(self, j: int, alpha: float, beta: float) -> None:
        self.before, self.last, self.following = self.last, self.following, self.before
        self.T[j, j] = alpha
        if j + 1 < len(self.T):
            self.T[j + 1, j] = self.T[j, j + 1] = beta


def _projected(
    xp: Any, s: LanczosState, k: int, scores: Score, m: int, tol: float, relative: bool, begun: Any
) -> LanczosState:
    """Rayleigh and Ritz: T Y = Y diag(values), and |A V y - theta V y| = beta |y_m|."""
    inside = xp.arange(m, device=xp.device_of(s.T)) < s.j
    lower = xp.where(inside[:, None], xp.tril(s.T, -1), 0 * s.T)
    # outside, what is no eigenvalue of A
    diagonal = xp.where(inside, xp.real(xp.diagonal(s.T)), 3 * s.size[..., None] + 1)
    values, Y = xp.eigh(
        xp.make_diagonal(xp.astype(diagonal, s.T.dtype))
        + lower
        + xp.conj(xp.matrix_transpose(lower))
    )
    score = xp.where(values > 2 * s.size[..., None] + 0.5, math.inf, scores(values))
    order = xp.argsort(score, axis=-1, stable=True)
    values = xp.take_along_axis(values, order, axis=-1)
    Y = xp.take_along_axis(Y, xp.broadcast_to(order[..., None, :], Y.shape), axis=-1)
    residual = s.beta[..., None] * xp.abs(Y[..., s.j - 1, :])
    size = xp.maximum(s.size, xp.max(xp.where(inside, xp.abs(values), 0 * values), axis=-1))
    eps = xp.eps(s.V.dtype)
    against = (
        xp.maximum(xp.abs(values), eps ** (2 / 3) * size[..., None])
        if relative
        else size[..., None]
    )
    target = SAFETY * max(tol, 2 * eps) * against + 0 * residual
    converged = residual <= target
    finite = plain(xp, xp.all(xp.isfinite(s.size)))
    excess = plain(
        xp, xp.max(residual[..., :k] / xp.where(target[..., :k] == 0, 1, target[..., :k]))
    )
    ahead = steps_ahead(xp, s.excess, excess, s.j - begun, m)
    # The size that is kept is that of products alone: Ritz values of an A that is not self-adjoint
    # may be anything.
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
    """How many steps a residual needs to fall to 1, by how it fell from `before` to `now` in these
    `steps`; m where that is more."""
    if not xp.is_functional:
        if not 1 < now < before < math.inf:
            return m
        return min(m, max(FEWEST, math.ceil(steps * math.log(now) / math.log(before / now))))
    falls = (now > 1) & (now < before) & xp.isfinite(before)
    rate = xp.log(xp.where(falls, before / now, 2.0))
    needed = xp.minimum(steps * xp.log(xp.where(falls, now, 2.0)) / rate, m)
    return xp.where(falls, xp.maximum(1 + xp.astype(needed, xp.asarray(m).dtype), FEWEST), m)


def _restarted(xp: Any, noise: Array, s: LanczosState, k: int, m: int) -> LanczosState:
    """The best p Ritz vectors, and behind them the last vector of the basis; or the k wanted ones
    and a random vector."""
    j, p = s.j, count_kept(xp, s, k, m)
    V = rotate(xp, s.V, s.Y, p, j)
    kept = xp.arange(m, device=xp.device_of(V)) < p
    T = xp.make_diagonal(xp.astype(xp.where(kept, s.values, 0 * s.values), V.dtype))
    arrow = s.beta[..., None] * s.Y[..., j - 1, :]
    if xp.is_functional or p < m:
        T = put(
            xp,
            T,
            (..., p, slice(None)),
            xp.where(kept, pick(xp, s.again, 0 * arrow, arrow), 0 * arrow),
        )
    if not xp.is_functional and not s.again:
        V = put(xp, V, (..., p, slice(None)), direction(xp, V, None, V[..., p, :], p)[0])
    V = with_random_row(xp, V, noise, s, p)
    U = s.U if s.U is None else reflectors(xp, V, p + 1)
    return s._replace(V=V, U=U, T=T, j=p, kept=p, draws=s.draws + m)
