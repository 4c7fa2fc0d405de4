"""Stabilised biconjugate gradients (van der Vorst 1992) for any square A, with a preconditioner M ≈ A^-1 on the right.

Two products an iteration and nine vectors, whatever the number of iterations. It may break down: then it begins again from the true
residual, with a new shadow residual, as long as that helps.

Differs from the reference: blocks of right sides, each column stopped on its own; the true residual decides (`solve_in_cycles`).
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .iteration import (
    NOBODY,
    RESTART,
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

GROWTH = 1e16  # of |r|^2, from which rounding leaves nothing of what was gained


class State(NamedTuple):
    X: Array
    R: Array
    shadow: Array
    P: Array
    V: Array
    rho: Array  # shadow^H r
    alpha: Array
    omega: Array
    least: Array  # |r|^2 at the start of the cycle
    size: Array
    status: Array
    iterations: Array
    iteration: Any


def bicgstab(
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
    """Solve A X = B. The arguments are those of `cg`."""
    apply = precondition or (lambda X: X)

    def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
        goal = xp.maximum(tol**2 + 0 * s.size, (xp.eps(B.dtype) * s.size) ** 2)
        if is_one_vector(xp, s.R) and xp.peek(s.size) is not None:
            ended = one_vector(loop, multiply, apply, s, float(goal[0]))
            if ended is not None:
                return ended
        one = xp.astype(0 * s.size + 1, B.dtype)
        size = s.size**2
        first = State(s.X, s.R, s.R, 0 * s.R, 0 * s.R, one, one, one, size, size, s.status, s.iterations, s.iteration)
        state, history, stopped = loop.run(
            lambda state: step(xp, multiply, apply, goal, state), first, s.history, lambda state: state.X
        )
        products = 2 * (state.iteration - s.iteration)
        return Ended(state.X, state.status, state.iterations, state.iteration, products, history, stopped)

    return solve_in_cycles(xp, cycle, multiply, B, X0, tol=tol, max_iters=max_iters, watch=watch)


def step(xp: Any, multiply: Any, apply: Any, goal: Array, s: State) -> State:
    """One iteration for all columns that run: half a step of biconjugate gradients, half a step of steepest descent."""
    column = lambda x: x[..., None, :]  # noqa: E731  (a number for each column)
    eps = xp.eps(s.R.dtype)
    rho = inner(xp, s.shadow, s.R)
    lost = xp.abs(rho) <= eps * xp.sqrt(s.least * s.size)
    status = first_of(xp, s.status, (lost | (s.size > GROWTH * s.least), RESTART))
    beta = divide(xp, rho, s.rho) * divide(xp, s.alpha, s.omega)
    P = xp.where(column(status == RUNNING), s.R + column(beta) * (s.P - column(s.omega) * s.V), 0)
    MP = apply(P)
    V = multiply(MP)
    slope = inner(xp, s.shadow, V)
    status = first_of(xp, status, (xp.logical_not(xp.isfinite(xp.abs(slope))), int(Status.NONFINITE)), (slope == 0, RESTART))
    alpha = xp.where(status == RUNNING, divide(xp, rho, slope), 0)
    S = s.R - column(alpha) * V
    MS = apply(S)
    T = multiply(MS)
    length = squared(xp, T)
    status = first_of(xp, status, (xp.logical_not(xp.isfinite(length)), int(Status.NONFINITE)))
    going = status == RUNNING
    omega = xp.where(going, divide(xp, inner(xp, T, S), xp.astype(length, T.dtype)), 0)
    X = s.X + xp.where(column(going), column(alpha) * MP + column(omega) * MS, 0)
    R = xp.where(column(going), S - column(omega) * T, s.R)
    size = xp.where(going, squared(xp, R), s.size)
    status = first_of(xp, status, (size <= goal, int(Status.SUCCESS)), (omega == 0, RESTART))
    moved = s.iterations + (s.status == RUNNING)
    return State(X, R, s.shadow, P, V, rho, alpha, omega, s.least, size, status, moved, s.iteration + 1)


def one_vector(loop: Loop, multiply: Any, apply: Any, s: Cycles, goal: float) -> Ended | None:
    """The same recurrence for one right side where arrays can be written over: numbers are Python's.

    A step of `step` costs 100 us in NumPy beyond its products, one of these 15. None if derivatives of the products are recorded.
    """
    xp, watched = loop.xp, not loop.watch.is_idle
    axpy, xpby = xp.axpy, xp.xpby
    dot: Any = (lambda x, y: complex(xp.vecdot(x, y))) if xp.is_complex(s.R) else xp.dot_real
    x, r = xp.copy(s.X[:, 0]), xp.copy(s.R[:, 0])
    shadow, p, v = xp.copy(r), 0 * r, 0 * r
    rho_old: Any = 1.0
    alpha: Any = 1.0
    omega: Any = 1.0
    least = size = xp.dot_real(r, r)
    iteration, products, status, stopped = s.iteration, 0, RUNNING, False
    while status == RUNNING and iteration < loop.limit:
        rho = dot(shadow, r)
        iteration += 1
        if abs(rho) <= xp.eps(r.dtype) * math.sqrt(least * size) or size > GROWTH * least:
            status = RESTART
            break
        axpy(-omega, v, p)
        xpby(r, (rho / rho_old) * (alpha / omega), p)
        Mp = apply(p)
        v = multiply(Mp)
        if is_recorded(v):
            return None
        slope = dot(shadow, v)
        products += 1
        if slope == 0 or not cmath.isfinite(slope):
            status = RESTART if slope == 0 else int(Status.NONFINITE)
            break
        alpha = rho / slope
        axpy(-alpha, v, r)
        Mr = apply(r)
        t = multiply(Mr)
        length = xp.dot_real(t, t)
        products += 1
        if not math.isfinite(length):
            status = int(Status.NONFINITE)
            break
        omega = dot(t, r) / length if length else 0.0
        axpy(alpha, Mp, x)
        axpy(omega, Mr, x)
        axpy(-omega, t, r)
        size = xp.dot_real(r, r)
        if watched and loop.shows(iteration, size, x, lambda x: x[:, None]):
            stopped = True
            break
        if size <= goal:
            status = int(Status.SUCCESS)
        elif omega == 0:
            status = RESTART
        rho_old = rho
    return Ended(x[:, None], 0 * s.status + status, s.iterations + iteration - s.iteration, iteration, products, None, stopped)
