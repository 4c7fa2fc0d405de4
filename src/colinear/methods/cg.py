"""Conjugate gradients (Hestenes and Stiefel 1952) for positive definite A, with a positive definite
preconditioner M ≈ A^-1.

The preconditioner is applied as if split, M = E E^H: the iterates are those of CG on E^H A E, which
needs E nowhere. The residual that is looked at is b - A x itself, not the preconditioned one.

Differs from the reference: blocks of right sides, each column stopped on its own; p^H A p <= 0 and
r^H M r <= 0 are noticed, since they show that A or M is not positive definite; the true residual
decides (`solve_in_cycles`). Vectors: x, r, p, A p, M r and b; in the form with a single
reduction A M r too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..backends import Array
from ..properties import POSITIVE_SEMIDEFINITE
from .base import Iterative
from .iterate import CycleStart, Outcome, Products, Recurrence, ResidualState, solve_in_cycles
from .vectors import OPERATOR, PRECONDITIONER, RUNNING

INFINITY = float("inf")


class CGState(ResidualState):
    p: Array
    rho: Any  # r^H M r of the step before
    alpha: Any  # the step length


def begin(ops: Any, s: CycleStart) -> CGState:
    """The state before the first step: as if r^H M r had been infinite before it, so that nothing
    of p remains."""
    size = ops.number(s.size)
    rho = ops.constant(INFINITY, size)
    return CGState.start(ops, s, ops.over(s.X), p=ops.own(s.R), rho=rho, alpha=size)


def step(ops: Any, s: Any) -> Any:
    """One iteration.

    It begins with the new direction, so that a compiler may write each vector over the old one:
    were p made at the end, while A p and x still need the one before, it would be copied in every
    step.
    """
    if ops.precondition is None:
        z, rho = s.r, s.size  # ρ = r^H r
    else:
        z = ops.precondition(s.r)  # z = M r
        rho = ops.dot(s.r, z)  # ρ = r^H M r
        s.status = ops.positive(s.status, rho, PRECONDITIONER)
        if ops.ended(s.status):
            return s
    s.p = p = ops.xpby(z, ops.ratio(rho, s.rho), s.p)  # p = z + (ρ / ρ') p
    s.rho = rho
    q = ops.multiply(p)  # q = A p
    curvature = ops.dot(p, q)  # p^H A p
    s.status = ops.positive(s.status, curvature, OPERATOR)
    on = s.status == RUNNING
    s.alpha = alpha = ops.ratio(rho, curvature)  # α = ρ / p^H A p
    # x = x + α p, r = r - α q, |r|^2
    s.x, s.r, s.size = ops.descend(alpha, p, q, s.x, s.r, on)
    s.status = ops.reached(s.status, s.size)
    return s


class SingleReductionState(ResidualState):
    p: Array
    q: Array  # A p
    z: Any  # M r; None where there is no M, for r
    w: Array  # A M r
    rho: Any  # r^H M r
    delta: Any  # z^H A z
    before: Any  # r^H M r of the step before
    alpha: Any  # the step length


def begin_single(ops: Any, s: CycleStart) -> SingleReductionState:
    """The state before the first step of the form with one reduction; see `begin`."""
    state = SingleReductionState.start(ops, s, ops.over(s.X), p=ops.own(s.R), q=ops.own(s.R))
    state.alpha, state.before = state.size, ops.constant(INFINITY, state.size)
    return measured(ops, state)


def measured(ops: Any, s: Any) -> Any:
    """The state with the product that the next step needs, and all its inner products at once."""
    r = s.r
    s.z = s.w = None  # their memory is free again
    if ops.precondition is None:
        s.w = w = ops.multiply(r)  # w = A r
        s.size, s.delta = ops.dots((r, r), (r, w))  # |r|^2, δ = r^H A r
        s.rho = s.size  # ρ = r^H r
    else:
        s.z = z = ops.precondition(r)  # z = M r
        s.w = w = ops.multiply(z)  # w = A z
        s.size, s.rho, s.delta = ops.dots((r, r), (r, z), (z, w))  # ρ = r^H z, δ = z^H A z
    s.status = ops.reached(s.status, s.size)
    s.status = ops.positive(s.status, s.rho, PRECONDITIONER)
    s.status = ops.positive(s.status, s.delta, OPERATOR)
    return s


def step_single(ops: Any, s: Any) -> Any:
    """One iteration with one reduction (Chronopoulos and Gear 1989): A p and p^H A p follow
    recurrences too,

        A p = A z + (ρ / ρ') A p',    p^H A p = z^H A z - (ρ / ρ')^2 p'^H A p'.
    """
    beta = ops.ratio(s.rho, s.before)  # β = ρ / ρ'
    s.p = ops.xpby(s.r if s.z is None else s.z, beta, s.p)  # p = z + β p
    s.q = ops.xpby(s.w, beta, s.q)  # A p = w + β A p
    taken = beta * ops.ratio(s.rho, s.alpha)  # β^2 p'^H A p' = β ρ / α'
    curvature = s.delta - taken  # p^H A p
    # of which too few digits are left where both are alike: seldom
    is_vague = curvature <= math.sqrt(ops.root_eps) * (s.delta + taken)
    curvature = ops.where_any(is_vague, lambda _: ops.dot(s.p, s.q), curvature)
    s.status = ops.positive(s.status, curvature, OPERATOR)
    if ops.ended(s.status):
        return s
    on = s.status == RUNNING
    s.before = s.rho
    s.alpha = alpha = ops.ratio(s.rho, curvature)  # α = ρ / p^H A p
    s.x = ops.axpy(alpha, s.p, s.x, on)  # x = x + α p
    s.r = ops.axpy(-alpha, s.q, s.r, on)  # r = r - α A p
    return measured(ops, s)


SINGLE_REDUCTION = Recurrence(begin_single, step_single, at_first=1)


@dataclass(frozen=True)
class CG(Iterative):
    """Conjugate gradients, for positive definite A. One product an iteration, six vectors;
    preconditioned as if split.

    The preconditioner must be positive definite too. Where A or M shows that it is not, the status
    is NOT_POSITIVE_DEFINITE. `lstsq` and `pinv` take any A: they run it on the normal equations A^H
    A x = A^H b, written with the residual b - A x (CGLS), and judge it as `LSQR`. A preconditioner
    is then one of A^H A.

    Parameters
    ----------
    single_reduction : bool
        Whether all inner products of an iteration are made at once (Chronopoulos and Gear 1989), for
        meshes of many devices, where each sum over them is waited for. It takes one product more in
        a run, and one more vector. `lstsq` and `pinv` do without.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(np.array([[4.0, 1.0], [1.0, 3.0]])))
    >>> x, info = co.solve(A, np.array([1.0, 2.0]), co.CG(tol=1e-12), info=True)
    >>> info.iterations, bool(info.converged.all())
    (2, True)
    """

    single_reduction: bool = False

    needs = POSITIVE_SEMIDEFINITE
    splits_preconditioner = True
    recurrence = Recurrence(begin, step, on_device=True)

    def working_vectors(self, n: int) -> int:
        return self.vectors + self.single_reduction

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        recurrence = SINGLE_REDUCTION if self.single_reduction else self.recurrence
        return solve_in_cycles(xp, recurrence.cycle, products, B, **options)
