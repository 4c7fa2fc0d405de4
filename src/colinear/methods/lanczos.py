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
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..backends import Array, adjoint
from ..properties import SELF_ADJOINT
from .base import Spectral
from .basis import SMALL, Pairs, expand, extend, fresh, orthogonalise, pairs_of, put
from .restarted import KrylovState, Restarted
from .vectors import Columns, LinearMap, Single

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

    needs = SELF_ADJOINT
    shift_type = Real


class LanczosRun(Restarted):
    """A run of Lanczos."""

    looks_early = True

    def grow(self, s: KrylovState) -> KrylovState:
        xp = self.xp
        is_seen = self.small is xp and not xp.is_functional and xp.peek(s.size) is not None
        if is_seen and s.V.ndim == 2 and s.U is None:
            return self._grow_alone(s)
        return super().grow(s)

    def step(self, s: KrylovState) -> KrylovState:
        xp, j = self.xp, s.j
        ops = Columns(xp, s.V.dtype, axis=-1, in_place=self.small is not xp)
        w, alpha, size = self._recur(ops, s, j, s.beta, s.size)
        random = self.random(self.noise, s)
        _, beta, v, U, _ = extend(xp, s.V, s.U, w, j + 1, size, random)
        H = put(xp, s.H, (..., j, j), xp.astype(alpha, s.H.dtype))
        return self.add(s, v, beta, size, U, H)

    def _recur(
        self, ops: Any, s: KrylovState, j: Any, beta: Any, size: Any
    ) -> tuple[Array, Any, Any]:
        """The three-term recurrence, A v_j = sum_i T_ij v_i + w, where T_ij is known for i < j.

        Returns w, T_jj, and the size of A as seen so far.
        """
        xp, V, T = ops.xp, s.V, s.H
        v = V[..., j, :]
        Av = self.multiply(v[..., None])[..., 0]

        def from_arrow(w: Array) -> Array:
            known = self.ask.m if xp.is_functional else j
            return w - expand(xp, xp.conj(T[..., j, :known]), V[..., :known, :])

        def from_neighbour(w: Array) -> Array:
            return w - ops.scaled(beta, V[..., j - 1, :])  # w = A v_j - β v_j-1

        # the arrow has neighbours everywhere, what follows it only one
        w = xp.cond(j == s.kept, from_arrow, from_neighbour, Av)
        square, alpha = ops.dots((Av, Av), (v, w))  # |A v_j|^2, α = v_j^H w
        size = ops.larger(size, ops.root(square))
        return ops.axpy(-alpha, v, w), alpha, size  # w = w - α v_j

    def _grow_alone(self, s: KrylovState) -> KrylovState:
        """Fill the basis with vectors whose numbers can be seen: they are Python's, and vectors are
        orthogonalised when due.

        A pass over the basis, which is most of the time of a step where products are cheap, is made
        only when an inner product has grown to eps^(3/4), or to a small part of the tolerance; and
        then for two vectors in turn, or the one before would spoil the next.
        """
        xp, V, T, j, due, stop = self.xp, s.V, s.H, s.j, s.due, self.stop(s)
        ops = Single(xp, V.dtype)
        size, beta, eps = float(s.size), float(s.beta), ops.eps
        drift, allowed = Drift(xp.to_numpy(T[:-1]), eps), min(eps**SLACK, SHARE * self.ask.tol)
        while j < stop and math.isfinite(size):
            w, alpha, size = self._recur(ops, s, j, beta, size)
            length = ops.norm(w)
            is_small = length <= SMALL * eps * size
            # A run that looks again has dropped the residuals of what it keeps, of which the
            # recurrence knows nothing.
            is_due = due > 0 or s.looked or is_small
            if is_due or not drift.after(j, alpha, beta, length, size) < allowed:
                w = fresh(xp, self.noise, s.draws + j) if is_small else w
                w = orthogonalise(xp, V[: j + 1], w)[0]
                length = ops.norm(w)
                drift.clear()
                due = due - 1 if due else 1
            V[j + 1] = w * ops.ratio(1.0, length)
            del w  # a vector less while the next is made
            beta = 0.0 if is_small else length
            T[j, j], T[j + 1, j] = alpha, beta
            drift.step(j, alpha, beta)
            j += 1
        device = xp.device_of(V)
        beta, size = (xp.asarray(x, dtype=s.size.dtype, device=device) for x in (beta, size))
        # What is known of the inner products is not kept between two calls: the first two vectors
        # of the next are orthogonalised.
        steps = s.iterations + j - s.j
        return s._replace(beta=beta, size=size, due=2, j=j, iterations=steps)

    def solve(self, H: Array) -> tuple[Array, Array]:
        """T Y = Y diag(values), T known by its lower triangle"""
        xp, lower = self.small, self.small.tril(H, -1)
        diagonal = xp.astype(xp.real(xp.diagonal(H)), H.dtype)
        return xp.eigh(xp.make_diagonal(diagonal) + lower + adjoint(xp, lower))


def lanczos(xp: Any, *parameters: Any, **options: Any) -> Pairs:
    """The k eigenpairs of self-adjoint A that `which` names; see `Restarted` for the parameters."""
    run = LanczosRun(xp, *parameters, **options)
    s, stopped = run.run()
    s, k = run.placed(s), run.ask.k
    # so that the basis can go
    return pairs_of(s, s.values[..., :k], xp.copy(s.V[..., :k, :]), stopped)


def ritz_values(
    xp: Any, multiply: LinearMap, start: Array, noise: Array, steps: int
) -> tuple[Array, Array, Array]:
    """The Ritz values of some steps, falling, their residuals, and the largest product that was
    seen: the largest sum of a value and its residual bounds the spectrum, as a rule (Zhou and Li
    2011)."""
    run = LanczosRun(xp, multiply, start, noise, 1, "LA", m=steps)
    s = run.project(xp.fori_loop(steps, lambda _, s: run.step(s), run.initial()))
    return s.values, s.residual, s.size


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
