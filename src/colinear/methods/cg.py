"""Conjugate gradients (Hestenes and Stiefel 1952) for positive definite A, with a positive definite preconditioner M ≈ A^-1.

The preconditioner is applied as if split, M = E E^H: the iterates are those of CG on E^H A E, which needs E nowhere. The residual that
is looked at is b - A x itself, not the preconditioned one.

Differs from the reference: blocks of right sides, each column stopped on its own; p^H A p <= 0 and r^H M r <= 0 are noticed, since
they show that A or M is not positive definite; the true residual decides (`solve_in_cycles`). Vectors: x, r, p, A p, M r and b.
"""

from __future__ import annotations

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
from .loop import LOOK_EVERY

INFINITY = float("inf")
TINY = 1e-37  # beside which no number of any precision counts, but zero
SUCCESS, INDEFINITE, NONFINITE = int(Status.SUCCESS), int(Status.NOT_POSITIVE_DEFINITE), int(Status.NONFINITE)


class State(NamedTuple):
    X: Array
    R: Array
    P: Array
    rho: Array  # r^H M r of the step before
    size: Array  # |r|^2
    status: Array
    iterations: Array
    iteration: Any


def cg(
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
    """Solve A X = B for positive definite A.

    Parameters
    ----------
    multiply, precondition : callable
        A X and M X, for one vector (n,) or a block (*batch, n, k).
    B : array, (*batch, n, k)
    tol : float
        The relative residual |b - A x| / |b| to reach, for each column.
    max_iters : int
    X0 : array, optional
        Where to start; zero if not given.
    """

    def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
        # A residual that has fallen by eps within one cycle is no longer that of x.
        goal = xp.maximum(tol**2 + 0 * s.size, (xp.eps(B.dtype) * s.size) ** 2)
        if is_one_vector(xp, s.R):
            ended = None
            if xp.peek(s.size) is not None:
                ended = one_vector(loop, multiply, precondition, s, float(goal[0]))
            elif watch.callback is None and not watch.progress:
                ended = one_vector_on_device(loop, multiply, precondition, s, goal[0])
            if ended is not None:
                return ended
        state, history, stopped = loop.run(
            lambda state: step(xp, multiply, precondition, goal, state), initial(xp, s), s.history, lambda state: state.X
        )
        products = state.iteration - s.iteration
        return Ended(state.X, state.status, state.iterations, state.iteration, products, history, stopped)

    return solve_in_cycles(xp, cycle, multiply, B, X0, tol=tol, max_iters=max_iters, watch=watch)


def initial(xp: Any, s: Cycles) -> State:
    """Before the first step: as if the direction before it were zero, with r^H M r infinite."""
    return State(s.X, s.R, 0 * s.R, INFINITY + 0 * s.size, s.size**2, s.status, s.iterations, s.iteration)


def step(xp: Any, multiply: Any, precondition: Any, goal: Array, s: State) -> State:
    """One iteration for all columns that run.

    It begins with the new direction, so that a compiler may write each vector over the old one: were p made at the end, while A p and x
    still need the one before, it would be copied in every step.
    """
    Z = s.R if precondition is None else precondition(s.R)
    rho = s.size if precondition is None else xp.real(inner(xp, s.R, Z))  # r^H M r
    status = first_of(xp, s.status, *of_preconditioner(xp, rho))
    P = Z + xp.where(status == RUNNING, divide(xp, rho, s.rho), 0)[..., None, :] * s.P
    Q = multiply(P)
    curvature = xp.real(inner(xp, P, Q))  # p^H A p
    status = first_of(xp, status, (xp.logical_not(xp.isfinite(curvature)), NONFINITE), (curvature <= 0, INDEFINITE))
    runs = status == RUNNING
    alpha = xp.where(runs, divide(xp, rho, curvature), 0)[..., None, :]
    X = s.X + alpha * P
    R = xp.where(runs[..., None, :], s.R - alpha * Q, s.R)
    size = squared(xp, R)
    status = first_of(xp, status, (size <= goal, SUCCESS))
    ran = s.status == RUNNING
    return State(X, R, P, rho, xp.where(ran, size, s.size), status, s.iterations + ran, s.iteration + 1)


def of_preconditioner(xp: Any, rho: Array) -> tuple[tuple[Array, int], ...]:
    """The cases in which r^H M r shows that M is at fault."""
    broken = xp.logical_not(xp.isfinite(rho))
    return (broken, PRECONDITIONER + NONFINITE), (rho <= 0, PRECONDITIONER + INDEFINITE)


def one_vector(loop: Loop, multiply: Any, precondition: Any, s: Cycles, goal: float) -> Ended | None:
    """The same recurrence for one right side where arrays can be written over: numbers are Python's, and nothing is allocated.

    A step of `step` costs 40 us in NumPy beyond its products, one of these 5. None if derivatives of the products are recorded.
    """
    xp, watched = loop.xp, not loop.watch.is_idle
    axpy, xpby, dot = xp.axpy, xp.xpby, xp.dot_real
    x, r = s.X[:, 0], xp.copy(s.R[:, 0])
    iteration, status, stopped = s.iteration, RUNNING, False
    z = r if precondition is None else precondition(r)
    p = xp.copy(z)
    size = dot(r, r)
    rho = size if precondition is None else dot(r, z)
    while iteration < loop.limit:
        if not 0 < rho < INFINITY:
            status = PRECONDITIONER + (INDEFINITE if rho <= 0 else NONFINITE)
            break
        q = multiply(p)
        if is_recorded(q):
            return None
        iteration += 1
        curvature = dot(p, q)
        if not 0 < curvature < INFINITY:
            status = INDEFINITE if curvature <= 0 else NONFINITE
            break
        alpha = rho / curvature
        axpy(alpha, p, x)
        axpy(-alpha, q, r)
        del q
        size = dot(r, r)
        if watched and loop.shows(iteration, size, x, lambda x: x[:, None]):
            stopped = True
            break
        if size <= goal:
            status = SUCCESS
            break
        before = rho
        if precondition is None:
            rho = size
        else:
            z = precondition(r)
            rho = dot(r, z)
        xpby(z, rho / before, p)
    made = iteration - s.iteration
    return Ended(s.X, 0 * s.status + status, s.iterations + made, iteration, made, None, stopped)


def one_vector_on_device(loop: Loop, multiply: Any, precondition: Any, s: Cycles, goal: Array) -> Ended | None:
    """The same for a device whose values are waited for: numbers stay there, and it is asked now and then whether it is done.

    A few launches a step are all that its numbers may cost, so between two looks nothing is frozen: steps too many make x better still.
    Zero by zero, which comes of an exact answer, is kept at zero by TINY. A curvature that was not positive is remembered; what that, or
    a product that is not finite, has done to x since the cycle began is thrown away.
    """
    xp = loop.xp
    axpy, dot = xp.axpy, xp.dot_real
    x, r = xp.copy(s.X[:, 0]), xp.copy(s.R[:, 0])
    z = r if precondition is None else precondition(r)
    p = xp.copy(z)
    size = dot(r, r)
    rho = size if precondition is None else dot(r, z)
    least = curvature = xp.ones((), dtype=size.dtype, device=xp.device_of(size))
    made, status, limit, sizes = 0, _reason(1.0, float(rho), float(size), float(goal)), loop.limit - s.iteration, []
    while status == RUNNING and made < limit:
        for _ in range(min(LOOK_EVERY, limit - made)):
            q = multiply(p)
            if is_recorded(q):
                return None
            curvature = dot(p, q)
            least = xp.where(curvature < least, curvature, least)
            alpha = rho / (curvature + TINY)
            axpy(alpha, p, x)
            axpy(-alpha, q, r)
            size = dot(r, r)
            z = r if precondition is None else precondition(r)
            rho, before = (size if precondition is None else dot(r, z)), rho
            p *= rho / (before + TINY)
            p += z
            if loop.watch.record:
                sizes.append(size)
        made += min(LOOK_EVERY, limit - made)
        status = _reason(float(least), float(rho), float(size), float(goal))
    loop.seen += [xp.sqrt(size)[None] for size in sizes]
    X = x[:, None] if status in (SUCCESS, RUNNING) else s.X
    return Ended(X, 0 * s.status + status, s.iterations + made, s.iteration + made, made, None, False)


def _reason(least: float, rho: float, size: float, goal: float) -> int:
    """Why a run has ended: by the least p^H A p, the last r^H M r and |r|^2. RUNNING if it has not."""
    if size <= goal:
        return SUCCESS
    if least <= 0:
        return INDEFINITE
    if not size < INFINITY:
        return NONFINITE
    return RUNNING if 0 < rho < INFINITY else PRECONDITIONER + (INDEFINITE if rho <= 0 else NONFINITE)
