"""Stabilised biconjugate gradients (van der Vorst 1992) for any square A, with a preconditioner
M ≈ A^-1 on the right.

Two products an iteration and nine vectors, whatever the number of iterations. It may break down:
then it begins again from the true residual, with a new shadow residual, as long as that helps.

Differs from the reference: blocks of right sides, each column stopped on its own; the true residual
decides (`solve_in_cycles`).
"""

from __future__ import annotations

from typing import Any

from ..backends import Array
from .base import Iterative
from .iterate import CycleStart, Recurrence, ResidualState
from .vectors import NONFINITE, RESTART, RUNNING, SUCCESS

GROWTH = 1e16  # of |r|^2, from which rounding leaves nothing of what was gained


class BiCGSTABState(ResidualState):
    shadow: Array
    p: Array
    q: Array  # A M p
    rho: Any  # shadow^H r
    alpha: Any
    omega: Any
    least: Any  # |r|^2 at the start of the cycle


def begin(ops: Any, s: CycleStart) -> BiCGSTABState:
    """The state before the first step."""
    state: Any = BiCGSTABState.start(ops, s, ops.own(s.X), shadow=ops.own(s.R))
    state.p, state.q = 0 * state.r, 0 * state.r
    state.rho = state.alpha = state.omega = ops.scalar(ops.constant(1.0, state.size), state.r)
    state.least = state.size
    return state


def step(ops: Any, s: BiCGSTABState) -> BiCGSTABState:
    """One iteration: half a step of biconjugate gradients, half a step of steepest descent."""
    r, shadow, M = s.r, s.shadow, ops.precondition
    rho = ops.inner(shadow, r)
    lost = abs(rho) <= ops.eps * ops.root(s.least * s.size)
    s.status = status = ops.first(s.status, lost | (s.size > GROWTH * s.least), RESTART)
    if ops.ended(status):
        return s
    beta = ops.ratio(rho, s.rho) * ops.ratio(s.alpha, s.omega)
    p = ops.axpy(-s.omega, s.q, s.p)  # p = p - ω q
    p = ops.cleared(ops.xpby(r, beta, p), status == RUNNING)  # p = r + β p
    Mp = p if M is None else M(p)
    q = ops.multiply(Mp)  # q = A M p
    slope = ops.inner(shadow, q)
    s.status = status = ops.first(status, ops.infinite(abs(slope)), NONFINITE, slope == 0, RESTART)
    if ops.ended(status):
        return s
    alpha = ops.ratio(rho, slope)
    s.p, s.q, s.rho, s.alpha = p, q, rho, alpha
    r = ops.axpy(-alpha, q, r, status == RUNNING)  # r = r - α q
    Mr = r if M is None else M(r)
    t = ops.multiply(Mr)  # t = A M r
    length = ops.dot(t, t)
    s.status = status = ops.first(status, ops.infinite(length), NONFINITE)
    if ops.ended(status):
        return s
    on = status == RUNNING
    s.omega = omega = ops.ratio(ops.inner(t, r), length)  # ω = t^H r / |t|^2
    x = ops.axpy(alpha, Mp, s.x, on)  # x = x + α M p
    s.x = ops.axpy(omega, Mr, x, on)  # x = x + ω M r
    s.r = r = ops.axpy(-omega, t, r, on)  # r = r - ω t
    s.size = size = ops.where(on, ops.dot(r, r), s.size)
    s.status = ops.first(status, size <= ops.goal, SUCCESS, omega == 0, RESTART)
    return s


class BiCGSTAB(Iterative):
    """Stabilised biconjugate gradients, for any square A. Two products an iteration and few
    vectors; preconditioned on the right.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([3.0, 0.0]), co.BiCGSTAB()).round(6)
    array([1., 1.])
    """

    vectors = 10
    recurrence = Recurrence(begin, step, products=2)
