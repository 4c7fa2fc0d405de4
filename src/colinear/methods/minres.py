"""Minimal residuals (Paige and Saunders 1975) for self-adjoint A, definite or not, with a positive definite preconditioner M ≈ |A|^-1.

The preconditioner is applied as if split, M = E E^H: what falls from step to step is the norm of E^H r. Of singular A with a
consistent right side it gives the solution of smallest norm (if started at zero). Where the right side is not consistent it stops as
soon as A r = 0, with the status SINGULAR and a solution of least squares.

Differs from the reference: blocks of right sides, each column stopped on its own; |r| itself is followed also where there is a
preconditioner, r_k = s_k^2 r_k-1 + η_k c_k v_k+1; the true residual decides (`solve_in_cycles`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .iteration import (
    NOBODY,
    PRECONDITIONER,
    RUNNING,
    Cycles,
    Ended,
    Loop,
    Outcome,
    Watch,
    divide,
    first_of,
    inner,
    is_one_vector,
    is_recorded,
    solve_in_cycles,
    squared,
)

INDEFINITE, NONFINITE = PRECONDITIONER + int(Status.NOT_POSITIVE_DEFINITE), int(Status.NONFINITE)


class State(NamedTuple):
    X: Array
    R: Array  # the residual, kept where there is a preconditioner
    V_old: Array  # Lanczos vectors, not normalised: A z = gamma_old v_old + delta v + gamma_new v_new
    V: Array
    Z: Array  # M v
    W_old: Array  # directions of search
    W: Array
    gamma_old: Array
    gamma: Array  # |v| in the norm of M
    c_old: Array  # the last two rotations
    s_old: Array
    c: Array
    s: Array
    eta: Array  # the residual in the norm of M, with its sign
    norm: Array  # of A, estimated
    size: Array
    status: Array
    iterations: Array
    iteration: Any


def minres(
    xp: Any,
    multiply: Callable[[Array], Array],
    B: Array,
    *,
    tol: float,
    max_iters: int,
    precondition: Callable[[Array], Array] | None = None,
    X0: Array | None = None,
    watch: Watch = NOBODY,
) -> Outcome:
    """Solve A X = B for self-adjoint A. The arguments are those of `cg`."""

    def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
        goal = xp.maximum(tol**2 + 0 * s.size, (xp.eps(B.dtype) * s.size) ** 2)
        if is_one_vector(xp, s.R) and xp.peek(s.size) is not None:
            ended = one_vector(loop, multiply, precondition, s, float(goal[0]))
            if ended is not None:
                return ended
        first = initial(xp, precondition, s)
        state, history, stopped = loop.run(
            lambda state: step(xp, multiply, precondition, goal, state), first, s.history, lambda state: state.X
        )
        products = state.iteration - s.iteration
        return Ended(state.X, state.status, state.iterations, state.iteration, products, history, stopped)

    return solve_in_cycles(xp, cycle, multiply, B, X0, tol=tol, max_iters=max_iters, watch=watch)


def initial(xp: Any, precondition: Any, s: Cycles) -> State:
    Z = s.R if precondition is None else precondition(s.R)
    rho = xp.real(inner(xp, s.R, Z))
    broken = xp.logical_not(xp.isfinite(rho))
    status = first_of(xp, s.status, (broken, PRECONDITIONER + NONFINITE), (rho <= 0, INDEFINITE))
    gamma = xp.sqrt(xp.where(status == RUNNING, rho, 0))
    none, zero, one = 0 * s.R, 0 * gamma, 0 * gamma + 1
    return State(
        s.X,
        s.R,
        none,
        s.R,
        Z,
        none,
        none,
        one,
        gamma,
        one,
        zero,
        one,
        zero,
        gamma,
        zero,
        s.size**2,
        status,
        s.iterations,
        s.iteration,
    )


def step(xp: Any, multiply: Any, precondition: Any, goal: Array, s: State) -> State:
    """One iteration for all columns that run: a step of Lanczos, a rotation, a step along w."""
    column = lambda x: x[..., None, :]  # noqa: E731  (a number for each column)
    # Lanczos
    Z = s.Z * column(divide(xp, 1 + 0 * s.gamma, s.gamma))
    AZ = multiply(Z)
    delta = xp.real(inner(xp, Z, AZ))
    V = AZ - column(divide(xp, delta, s.gamma)) * s.V - column(divide(xp, s.gamma, s.gamma_old)) * s.V_old
    MV = V if precondition is None else precondition(V)
    rho = xp.real(inner(xp, V, MV))
    status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(delta + rho)), NONFINITE), (rho < 0, INDEFINITE))
    going = status == RUNNING
    gamma = xp.sqrt(xp.where(going, rho, 0))
    # the next column of the triangular factor, and the rotation that makes it so
    a0 = s.c * delta - s.c_old * s.s * s.gamma
    a1 = xp.sqrt(a0**2 + gamma**2)
    a2 = s.s * delta + s.c_old * s.c * s.gamma
    a3 = s.s_old * s.gamma
    norm = xp.maximum(s.norm, xp.sqrt(delta**2 + gamma**2))
    # |A r| = |η| sqrt(a0^2 + (c γ)^2): nothing is left of the residual in the range of A, as far as the recurrence can tell; from
    # here on x would only grow along the null space.
    vanished = xp.sqrt(a0**2 + (s.c * gamma) ** 2) <= xp.eps(V.dtype) ** 0.5 * norm
    status = first_of(xp, status, (vanished, int(Status.SINGULAR)))
    going = status == RUNNING
    c, sine = divide(xp, a0, a1), divide(xp, gamma, a1)
    W = (Z - column(a3) * s.W_old - column(a2) * s.W) * column(divide(xp, 1 + 0 * a1, a1))
    X = s.X + xp.where(column(going), column(c * s.eta) * W, 0)
    eta = -sine * s.eta
    if precondition is None:
        R, size = s.R, eta**2
    else:
        R = column(sine**2) * s.R + column(divide(xp, eta * c, gamma)) * V
        size = squared(xp, R)
    status = first_of(xp, status, ((size <= goal) | (eta == 0), int(Status.SUCCESS)))
    moved = s.iterations + (s.status == RUNNING)
    size = xp.where(going, size, s.size)
    # V of a column that is done is zero, and so is all that comes after.
    V, MV = (xp.where(column(status == RUNNING), x, 0) for x in (V, MV))
    return State(X, R, s.V, V, MV, s.W, W, s.gamma, gamma, s.c, s.s, c, sine, eta, norm, size, status, moved, s.iteration + 1)


def one_vector(loop: Loop, multiply: Any, precondition: Any, s: Cycles, goal: float) -> Ended | None:
    """The same recurrence for one right side where arrays can be written over: numbers are Python's.

    A step of `step` costs 100 us in NumPy beyond its products, one of these 10. None if derivatives of the products are recorded.
    """
    xp, watched = loop.xp, not loop.watch.is_idle
    axpy, xpby, dot = xp.axpy, xp.xpby, xp.dot_real
    x, r = xp.copy(s.X[:, 0]), xp.copy(s.R[:, 0])  # the residual is kept where there is a preconditioner
    v, v_old, w, w_old = xp.copy(r), 0 * r, 0 * r, 0 * r
    z = v if precondition is None else precondition(v)
    rho, small = dot(v, z), xp.eps(r.dtype) ** 0.5
    iteration, status, stopped = s.iteration, RUNNING, False
    if not 0 < rho < math.inf:
        status = INDEFINITE if rho <= 0 else PRECONDITIONER + NONFINITE
    gamma = eta = math.sqrt(rho) if status == RUNNING else 0.0
    gamma_old, c_old, s_old, c, sine, norm = 1.0, 1.0, 0.0, 1.0, 0.0, 0.0
    while status == RUNNING and iteration < loop.limit:
        z = z * (1 / gamma)
        Az = multiply(z)
        if is_recorded(Az):
            return None
        iteration += 1
        delta = dot(z, Az)
        v, v_old = xpby(Az, -gamma / gamma_old, v_old), v
        axpy(-delta / gamma, v_old, v)
        del Az
        Mv = v if precondition is None else precondition(v)
        rho = dot(v, Mv)
        if not (0 <= rho < math.inf and math.isfinite(delta)):
            status = INDEFINITE if rho < 0 and math.isfinite(delta) else NONFINITE
            break
        gamma_old, gamma = gamma, math.sqrt(rho)
        a0 = c * delta - c_old * sine * gamma_old
        a1, a2, a3 = math.hypot(a0, gamma), sine * delta + c_old * c * gamma_old, s_old * gamma_old
        norm = max(norm, math.hypot(delta, gamma))
        if math.hypot(a0, c * gamma) <= small * norm:  # A r = 0, as far as the recurrence can tell
            status = int(Status.SINGULAR)
            break
        c_old, s_old, c, sine = c, sine, a0 / a1, gamma / a1
        w, w_old = xpby(z, -a3, w_old), w
        axpy(-a2, w_old, w)
        w *= 1 / a1
        axpy(c * eta, w, x)
        eta *= -sine
        size = eta * eta
        if precondition is not None:
            r *= sine * sine
            if gamma:
                axpy(eta * c / gamma, v, r)
            size = dot(r, r)
        if watched and loop.shows(iteration, size, x, lambda x: x[:, None]):
            stopped = True
            break
        if size <= goal or eta == 0:
            status = int(Status.SUCCESS)
        z = Mv
    made = iteration - s.iteration
    return Ended(x[:, None], 0 * s.status + status, s.iterations + made, iteration, made, None, stopped)
