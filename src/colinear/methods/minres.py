"""Minimal residuals (Paige and Saunders 1975) for self-adjoint A, definite or not, with a positive
definite preconditioner M ≈ |A|^-1.

The preconditioner is applied as if split, M = E E^H: what falls from step to step is the norm of
E^H r. Of singular A with a consistent right side it gives the solution of smallest norm (if started
at zero). Where the right side is not consistent it stops as soon as A r = 0, with the status
SINGULAR and a solution of least squares.

Differs from the reference: blocks of right sides, each column stopped on its own; |r| itself is
followed also where there is a preconditioner, r_k = s_k^2 r_k-1 + η_k c_k v_k+1; the true residual
decides (`solve_in_cycles`).
"""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..properties import SELF_ADJOINT
from .base import Iterative
from .iterate import CycleStart, Recurrence, ResidualState
from .vectors import (
    NONFINITE,
    PRECONDITIONER,
    PRECONDITIONER_INDEFINITE,
    RUNNING,
    SINGULAR,
    SUCCESS,
)  # fmt: skip


class MINRESState(ResidualState):
    # Lanczos vectors, not normalised: A z = gamma_old v_old + delta v + gamma_new v_new
    v_old: Array
    v: Array
    z: Array  # M v
    w_old: Array  # directions of search
    w: Array
    gamma_old: Any
    gamma: Any  # |v| in the norm of M
    c_old: Any  # the last two rotations
    s_old: Any
    c: Any
    s: Any
    eta: Any  # the residual in the norm of M, with its sign
    norm: Any  # of A, estimated


def begin(ops: Any, s: CycleStart) -> MINRESState:
    """The state before the first step."""
    state: Any = MINRESState.start(ops, s, ops.own(s.X), v=ops.own(s.R))
    v, zero = state.v, 0 * state.r
    state.z = v if ops.precondition is None else ops.precondition(v)  # z = M v
    rho = ops.dot(v, state.z)
    state.status = ops.positive(state.status, rho, PRECONDITIONER)
    state.gamma = state.eta = ops.root(ops.where(state.status == RUNNING, rho, 0.0))
    state.v_old, state.w_old, state.w = zero, ops.copy(zero), ops.copy(zero)
    state.gamma_old = state.c_old = state.c = ops.constant(1.0, rho)
    state.s_old = state.s = state.norm = ops.constant(0.0, rho)
    return state


def step(ops: Any, s: MINRESState) -> MINRESState:
    """One iteration: a step of Lanczos, a rotation, a step along w."""
    gamma_old, c, sine, precondition = s.gamma, s.c, s.s, ops.precondition
    # Lanczos
    z = ops.scaled(ops.ratio(1.0, gamma_old), s.z)  # z = M v / γ
    q = ops.multiply(z)
    delta = ops.dot(z, q)  # δ = z^H A z
    v = ops.xpby(q, -ops.ratio(gamma_old, s.gamma_old), s.v_old)  # v = A z - (γ / γ') v'
    v = ops.axpy(-ops.ratio(delta, gamma_old), s.v, v)  # v = v - (δ / γ) v
    Mv = v if precondition is None else precondition(v)
    rho = ops.dot(v, Mv)
    broken = ops.infinite(delta + rho)
    status = ops.first(s.status, broken, NONFINITE, rho < 0, PRECONDITIONER_INDEFINITE)
    gamma = ops.root(ops.where(status == RUNNING, rho, 0.0))  # γ = |v|
    # the next column of the triangular factor
    a0 = c * delta - s.c_old * sine * gamma_old
    a2 = sine * delta + s.c_old * c * gamma_old
    a3 = s.s_old * gamma_old
    s.norm = norm = ops.larger(s.norm, ops.hypot(delta, gamma))
    # |A r| = |η| sqrt(a0^2 + (c γ)^2): nothing is left of the residual in the range of A, as far as
    # the recurrence can tell; from here on x would only grow along the null space.
    vanished = ops.hypot(a0, c * gamma) <= ops.root_eps * norm
    s.status = status = ops.first(status, vanished, SINGULAR)
    if ops.ended(status):
        return s
    on = status == RUNNING
    s.gamma_old, s.gamma, s.c_old, s.s_old = gamma_old, gamma, c, sine
    c, sine, a1 = ops.rotation(a0, gamma)  # the rotation that makes it so
    s.c, s.s = c, sine
    w = ops.xpby(z, -a3, s.w_old)  # w = z - a3 w''
    w = ops.axpy(-a2, s.w, w)  # w = w - a2 w'
    s.w_old, s.w = s.w, ops.scale(ops.ratio(1.0, a1), w)  # w = w / a1
    s.x = ops.axpy(c * s.eta, s.w, s.x, on)  # x = x + c η w
    s.eta = eta = -sine * s.eta
    size = eta * eta
    if precondition is not None:
        r = ops.scale(sine * sine, s.r)  # r = s^2 r + (η c / γ) v
        s.r = ops.axpy(ops.ratio(eta * c, gamma), v, r)
        size = ops.dot(s.r, s.r)
    s.size = ops.where(on, size, s.size)
    s.status = status = ops.first(status, (size <= ops.goal) | (eta == 0), SUCCESS)
    # v of a column that is done is zero, and so is all that comes after.
    runs = status == RUNNING
    s.v_old, s.v = s.v, ops.cleared(v, runs)
    s.z = s.v if precondition is None else ops.cleared(Mv, runs)
    return s


class MINRES(Iterative):
    """Minimal residuals, for self-adjoint A, definite or not. One product an iteration;
    preconditioned as if split.

    The preconditioner must be positive definite. Of singular A with a consistent right side it
    gives the solution of smallest norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.SelfAdjoint(np.array([[0.0, 2.0], [2.0, 0.0]]))
    >>> co.solve(A, np.array([2.0, 4.0]), co.MINRES()).round(6)
    array([2., 1.])
    """

    needs = SELF_ADJOINT
    splits_preconditioner = True
    vectors = 11
    recurrence = Recurrence(begin, step)
