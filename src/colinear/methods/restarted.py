"""What the Krylov methods with restarts share: the request, the state, and the driver of a run.

A cycle fills the basis to m vectors, A V = V H + beta v e_m^H, solves the small problem, and keeps
the best p vectors and v: in that basis H has one full row below, and the recurrence goes on from
there (Wu and Simon 2000; Stewart 2001; Baglama and Reichel 2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, places_like, without_zeros, zeros_like
from .basis import (
    SAFETY,
    SMALL,
    all_finite,
    count_of,
    direction,
    every,
    fill,
    fresh,
    norm,
    pick,
    plain,
    put,
    put_row,
    reflectors,
    rotate,
    run_cycles,
    smaller,
    take_columns,
    waits_for_looks,
    wanted,
    within,
)
from .replay import Fills
from .vectors import LinearMap

FEWEST = 4  # steps between two looks at the pairs
LOOK = 8  # steps after which a run that looks again looks at what it has found
COUNTS = ("j", "kept", "looked", "iterations", "cycles", "draws")
SMALL_PARTS = ("H", "values", "Y", "P", "residual", "beta", "size", "excess", "found")


class Request(NamedTuple):
    """What is asked of a run.

    Attributes
    ----------
    k, which, m
        How many pairs, which, and the size of the basis, k < m <= n or k = m = n.
    tol : float
        Of the residual relative to the norm of A.
    max_iters : int
        The most steps, each of which adds a vector to the basis.
    patience : int
        The steps after which the run ends as soon as the basis is full.
    shift : number
        From which "SM" and "LM" take distances.
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

    k: int
    which: str
    m: int
    tol: float = 0.0
    max_iters: Any = math.inf
    patience: Any = math.inf
    shift: complex = 0.0
    householder: bool = False
    again: bool = True
    relative: bool = False
    watch: Callable[[Any], Any] | None = None


class KrylovState(NamedTuple):
    """Where a run stands. Counts are numbers in NumPy and torch, arrays in JAX."""

    V: Array  # (*lanes, m + 1, n), the basis
    U: Any  # its reflectors, if it has any; of Golub-Kahan the left basis
    H: Array  # (*lanes, m + 1, m), A in the basis; of Lanczos the lower triangle
    values: Array  # (*lanes, m), Ritz values, the wanted first
    Y: Array  # (*lanes, m, m), their vectors in the basis
    P: Array  # the same, but of Golub-Kahan the left ones: the last row gives the residuals
    residual: Array  # (*lanes, m), estimated
    beta: Array  # (*lanes,), of the last step
    size: Array  # (*lanes,), of A as seen so far
    excess: Array  # the largest residual of a wanted pair, in those that are asked for
    ahead: Any  # how many steps it will take to reach that, if the residual falls as it did
    found: Array  # (*lanes, k), the scores when the run began to look again
    looked: Any  # the steps when it did; 0 before
    again: Any  # whether it does now
    j: Any  # rows of V that are complete, less one
    kept: Any  # rows that the last restart kept
    # how many vectors are to be orthogonalised whatever is known of them, where that is not all of
    # them
    due: Any
    iterations: Any
    cycles: Any
    draws: Any  # random directions used
    done: Any
    finite: Any

    @property
    def matvecs(self) -> Any:
        """The products with A so far: one for each step."""
        return self.iterations


class Restarted:
    """A run of a Krylov method that restarts: what Lanczos, Arnoldi and Golub-Kahan share.

    A cycle fills the basis, A V = V H + beta v e_m^H, solves the small problem, judges what it
    found, and restarts in a basis of the best p vectors and v, where H has one full row below.

    The basis of a run on a device stays there. The small problem is solved on the host (`small`),
    in NumPy: each cycle reads H once, and is waited for once. Its steps are replayed (`Fills`).

    Parameters
    ----------
    xp : module
        The backend.
    multiply : callable
        A X for X of shape (*lanes, n, 1).
    start, noise : arrays, (*lanes, n)
        Where to begin, and random numbers from which further directions are taken.
    k, which, **options
        See `Request`.
    """

    departure: ClassVar[float] = 1  # times its residual: how far a Ritz value is from an eigenvalue
    looks_early: ClassVar[bool] = False  # whether pairs of a basis that is not full are judged

    def __init__(
        self,
        xp: Any,
        multiply: LinearMap,
        start: Array,
        noise: Array,
        k: int,
        which: str,
        **options: Any,
    ):
        self.xp, self.multiply, self.start, self.noise = xp, multiply, start, noise
        self.small = xp  # the namespace of all of a state but its vectors
        self._fills: Any = None
        self.ask = Request(k, which, **options)
        # the basis spans everything: one cycle finds all there is
        self.is_whole = self.ask.m >= start.shape[-1] or k == 0
        self._is_hopeful = False  # whether no step is taken to meet an invariant subspace

    def step(self, s: KrylovState) -> KrylovState:
        """One more vector."""
        raise NotImplementedError

    def solve(self, H: Array) -> tuple[Array, ...]:
        """The eigenvalues of the small matrix, and vectors of norm 1, right and left."""
        raise NotImplementedError

    def subspace(self, s: KrylovState, p: Any) -> tuple[Array, Array, Array]:
        """Orthonormal Q whose first p columns belong to the best p values, A in the basis V Q, and
        the last row of Q, or of the left vectors: here Y, in which A is diagonal."""
        values = self.small.make_diagonal(self.small.astype(s.values, s.H.dtype))
        return s.Y, values, s.P[..., s.j - 1, :]

    def add(
        self, s: KrylovState, v: Array, beta: Array, size: Array, U: Array, H: Array
    ) -> KrylovState:
        """The state with one more vector v of the basis, of which A v_j has beta; A is of this
        size."""
        xp, j = self.xp, s.j + 1
        return s._replace(
            V=put_row(xp, s.V, j, v),
            U=U,
            H=put(xp, H, (..., j, s.j), xp.astype(beta, H.dtype)),
            beta=beta,
            size=size,
            j=j,
            iterations=s.iterations + 1,
        )

    def initial(self) -> KrylovState:
        """The state before the first step."""
        xp, start, k, m = self.xp, self.start, self.ask.k, self.ask.m
        *lanes, n = start.shape
        V = zeros_like(xp, start, (*lanes, m + 1, n))
        V = put_row(xp, V, 0, start / norm(xp, start)[..., None])
        H, residual = (zeros_like(xp, x, (*lanes, m + 1, m)) for x in (start, xp.real(start)))
        residual = residual[..., 0, :]
        return KrylovState(
            V=V,
            U=reflectors(xp, V, 1) if self.ask.householder else None,
            H=H,
            values=residual,
            Y=H[..., :m, :],
            P=H[..., :m, :],
            residual=residual,
            beta=residual[..., 0],
            size=residual[..., 0],
            excess=xp.max(residual) + math.inf,
            found=residual[..., :k],
            due=count_of(xp, 1),
            ahead=count_of(xp, m),
            **{name: count_of(xp, 0) for name in COUNTS},
            again=count_of(xp, False),
            done=count_of(xp, False),
            finite=count_of(xp, True),
        )

    def run(self) -> tuple[KrylovState, bool]:
        """The last state, and whether the run was stopped."""
        xp, ask, watch = self.xp, self.ask, self.ask.watch

        def going(s: KrylovState) -> Any:
            left = (s.iterations < ask.max_iters) & (s.iterations < ask.patience)
            return (s.done ^ True) & s.finite & left & (not self.is_whole or s.cycles == 0)

        first = self.initial()
        if not waits_for_looks(xp, first.size):
            return run_cycles(xp, going, self.cycle, first, watch)
        seen = xp.fetch([getattr(first, name) for name in SMALL_PARTS])
        first = first._replace(**dict(zip(SMALL_PARTS, seen)))
        self.small, self._fills = backends.get("numpy"), Fills(xp, xp.device_of(self.start))
        look = watch and (lambda s: watch(self.placed(s)))
        with np.errstate(all="ignore"):
            return run_cycles(xp, going, self.cycle, first, look)

    def placed(self, s: KrylovState) -> KrylovState:
        """The state with all of it beside the basis."""
        return s._replace(**{name: self.beside(getattr(s, name)) for name in SMALL_PARTS})

    def beside(self, x: Array) -> Array:
        """A small array on the device of the basis."""
        if self.small is self.xp:
            return x
        return self.xp.asarray(x, device=self.xp.device_of(self.start))

    def cycle(self, s: KrylovState) -> KrylovState:
        """Fill the basis, judge what is in it, and restart if it is full or the run at an end."""
        m, most = self.ask.m, self.ask.max_iters
        grown = self.judge(self.project(self.grow(s)), s.j)
        is_due = (grown.j >= m) | grown.done | grown.again | (grown.iterations >= most)
        return self.xp.cond(is_due, self.restart, lambda s: s, grown)

    def stop(self, s: KrylovState) -> Any:
        """Where to look at the pairs next: when the basis is full, or before that when they may
        have converged or no step is left."""
        xp, m, steps = self.xp, self.ask.m, self.ask.max_iters - s.iterations
        if self.looks_early:
            steps = smaller(xp, steps, pick(xp, s.looked > 0, LOOK, s.ahead))
        return smaller(xp, s.j + steps, m)

    def grow(self, s: KrylovState) -> KrylovState:
        """Fill the basis as far as numbers are finite.

        On a device each step would orthogonalise a random vector, since only the device knows whether
        it is needed: two thirds of the work. So it is taken not to be, and the steps are made once
        more, over the same rows, where one of them met an invariant subspace after all.
        """
        xp, stop = self.xp, self.stop(s)
        if self.small is xp:
            return fill(xp, self.step, s, stop)
        self._is_hopeful = True
        # reflectors are made anew at each restart
        key = None if self.ask.householder else (s.j, s.kept, stop)
        grown = self._filled(s, stop, key)
        self._is_hopeful = False
        least = SMALL * self.small.eps(s.H.dtype) * grown.size[..., None]
        met = [(abs(x[..., s.j : stop]) <= least).any() for x in self.lengths(grown.H)]
        return self._filled(s, stop, None) if any(met) else grown

    def _filled(self, s: KrylovState, stop: int, key: Any) -> KrylovState:
        """The state with a basis filled to `stop` on a device, its H, beta and size on the host;
        `key` names steps that may be replayed."""

        def steps(H: Array, beta: Array, size: Array) -> list[Array]:
            begun = s._replace(H=H, beta=beta, size=size)
            grown = fill(self.xp, self.step, begun, stop)  # which writes into the basis
            return [grown.H, grown.beta, grown.size]

        H, beta, size = self._fills(key, steps, [s.H, s.beta, s.size])
        iterations = s.iterations + stop - s.j
        return s._replace(H=H, beta=beta, size=size, j=stop, iterations=iterations)

    def lengths(self, H: Array) -> tuple[Array, ...]:
        """Entries of H that are rounding where a step met an invariant subspace."""
        return (self.small.diagonal(H, -1),)

    def random(self, noise: Array, s: KrylovState) -> Callable[[], Array] | None:
        """Gives the random vector of a step, from many made beforehand; None where it is taken not
        to be needed."""
        if self._is_hopeful:
            return None
        return partial(fresh, self.xp, noise, s.draws + s.j)

    def score(self, values: Array) -> Array:
        """A score of each value, the smaller the better."""
        return wanted(self.small, values, self.ask.which, self.ask.shift)

    def project(self, s: KrylovState) -> KrylovState:
        """Rayleigh and Ritz: H Y = Y diag(values), and |A V y - theta V y| = beta |y_m|."""
        xp = self.small
        inside, H = places_like(xp, s.H) < s.j, s.H[..., :-1, :]
        # outside, what is no eigenvalue of A
        far = xp.where(xp.isfinite(s.size), 3 * s.size + 1, 1)[..., None]
        H = xp.where(xp.isfinite(H), H, 0)
        values, *vectors = self.solve(within(xp, H, inside, xp.astype(far, H.dtype)))
        outside = xp.where(inside[:, None], 0, vectors[0])
        score = xp.where(xp.vector_norm(outside, axis=-2) > 0.5, math.inf, self.score(values))
        order = xp.argsort(score, axis=-1, stable=True)
        Y, P = (take_columns(xp, X, order) for X in (vectors[0], vectors[-1]))
        residual = s.beta[..., None] * abs(P[..., s.j - 1, :])
        values = xp.take_along_axis(values, order, axis=-1)
        return s._replace(values=values, Y=Y, P=P, residual=residual)

    def judge(self, s: KrylovState, begun: Any) -> KrylovState:
        """Whether the wanted pairs are known to be the best; if they have but converged, begin to
        look again. The cycle began with the row `begun`."""
        xp, ask, k, eps = self.small, self.ask, self.ask.k, self.small.eps(s.H.dtype)
        # The size that is kept is that of products alone: Ritz values of an A that is not
        # self-adjoint, as was claimed, may be anything.
        known = xp.where(places_like(xp, s.H) < s.j, abs(s.values), 0)
        size = xp.maximum(s.size, xp.max(known, axis=-1))[..., None]
        against = xp.maximum(abs(s.values), eps ** (2 / 3) * size) if ask.relative else size
        target = SAFETY * max(ask.tol, 2 * eps) * against
        close = s.residual <= target
        converged = every(xp, close[..., :k]) & (self.looks_early or s.j >= ask.m)
        excess = s.residual / without_zeros(xp, target)
        excess = xp.max(xp.where(places_like(xp, excess) < k, excess, 0))
        s = s._replace(
            cycles=s.cycles + 1,
            finite=all_finite(xp, s.size),
            excess=excess,
            ahead=steps_ahead(xp, s.excess, excess, s.j - begun, ask.m),
        )
        if self.is_whole or not ask.again:
            return s._replace(done=converged)
        score = self.score(s.values)
        far = score[..., k] - score[..., k - 1] > self.departure * s.residual[..., k]
        # the next pair is surely none of the wanted
        is_none = every(xp, close[..., k] | far)
        # as when the look began
        same = every(xp, abs(score[..., :k] - s.found) <= ask.tol * s.size[..., None])
        looking, tired = s.looked > 0, s.iterations >= 2 * s.looked
        again = converged & ((looking ^ True) | ((same ^ True) & is_none))
        return s._replace(
            done=converged & looking & same & (is_none | tired),
            again=again,
            found=pick(xp, again, score[..., :k], s.found),
            looked=pick(xp, again, s.iterations, s.looked),
        )

    def count_kept(self, s: KrylovState) -> Any:
        """How many vectors a restart keeps: the wanted ones, and more the closer these are."""
        xp, k, m = self.small, self.ask.k, self.ask.m
        little = math.sqrt(xp.eps(s.H.dtype)) * s.size[..., None]
        near = xp.sum(s.residual[..., :k] <= little, axis=-1)
        more = max(0, min((m - k) // 4, m - 2 - k))
        p = plain(xp, xp.minimum(k + more + xp.min(near) // 2, max(k, m - 2)))
        return pick(xp, s.again | s.done, k, p)

    def restart(self, s: KrylovState) -> KrylovState:
        """The best p vectors, and behind them the last vector of the basis; or the k wanted ones
        and a random vector, coupled to nothing, to look again."""
        xp, small, p = self.xp, self.small, self.count_kept(s)
        Q, S, row = self.subspace(s, p)
        inside = places_like(small, S) < p
        S = small.where(inside[:, None] & inside, S, 0)
        row = small.where(inside & (s.again ^ True), s.beta[..., None] * row, 0)
        H = small.concat([S, 0 * S[..., :1, :]], axis=-2)
        w = s.V[..., s.j, :]
        V = rotate(xp, s.V, self.beside(Q), p, s.j)
        orthogonal = lambda w: direction(xp, V, None, w, p)[0]
        if xp.is_functional or s.again:
            # random numbers without a name: they are freed when they have been used
            other = orthogonal(xp.astype(fresh(xp, self.noise, s.draws), w.dtype))
            w = pick(xp, s.again, other, w)
        V = put_row(xp, V, p, orthogonal(w))
        return s._replace(
            V=V,
            U=reflectors(xp, V, p + 1) if self.ask.householder else s.U,
            H=put_row(small, H, p, small.astype(row, H.dtype)),
            j=p,
            kept=p,
            draws=s.draws + self.ask.m,
        )


def steps_ahead(xp: Any, before: Array, now: Array, steps: Any, m: int) -> Any:
    """How many steps a residual needs to fall to 1, by how it fell from `before` to `now` in these
    `steps`; m where that is more."""
    falls = (now > 1) & (now < before) & xp.isfinite(before)
    rate = xp.log(xp.where(falls, before / now, 2.0))
    needed = xp.minimum(steps * xp.log(xp.where(falls, now, 2.0)) / rate, m)
    needed = xp.where(falls, xp.maximum(1 + needed, FEWEST), m)
    return plain(xp, xp.astype(needed, xp.asarray(m).dtype))
