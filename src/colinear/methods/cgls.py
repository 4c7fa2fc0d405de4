"""Conjugate gradients on the normal equations A^H A x = A^H b, for least squares.

CGLS (Hestenes and Stiefel 1952, section 10). It is written with the residual r = b - A x of the problem
itself, not with that of the normal equations: A^H A is nowhere multiplied by x. So the condition is
squared in the number of steps, but not in the answer, and in exact arithmetic the iterates are those
of LSQR (Björck, Elfving and Strakoš 1998). Started from zero, and without a preconditioner, it gives
the solution of smallest norm.

Differs from the reference: blocks of right sides, each column stopped on its own; a preconditioner
M ≈ (A^H A)^-1, positive definite; the true residual, and the true A^H r, decide (`solve_in_cycles`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .cg import of_preconditioner
from .iteration import (
    NOBODY,
    RUNNING,
    Cycles,
    Ended,
    Loop,
    Outcome,
    Watch,
    column_norms,
    divide,
    first_of,
    inner,
    solve_in_cycles,
    squared,
)

INFINITY = float("inf")
SUCCESS, NONFINITE = int(Status.SUCCESS), int(Status.NONFINITE)


class State(NamedTuple):
    X: Array
    R: Array  # b - A x
    P: Array  # the direction of search
    rho: Array  # s^H M s of the step before, s = A^H r
    curve: Array  # 1 / α of the step before
    norm: Array  # of A, squared: by Frobenius, as LSQR has it, or from below if preconditioned
    size: Array  # |r|^2
    status: Array
    iterations: Array
    iteration: Any


def cgls(
    xp: Any,
    multiply: Any,
    adjoint: Any,
    B: Array,
    *,
    columns: int,
    tol: float,
    max_iters: int,
    consistent: bool = False,
    precondition: Any = None,
    X0: Array | None = None,
    watch: Watch = NOBODY,
) -> Outcome:
    """Minimise |B - A X|.

    Parameters
    ----------
    multiply, adjoint, precondition : callable
        A X, A^H X and M X.
    columns : int
        Of A.
    tol : float
        It ends when |r| <= tol |b| or |A^H r| <= tol |A| |r|.
    consistent : bool
        Whether only the first of these is success.
    """

    def optimality(X: Array, R: Array, norm: Array) -> Array:
        return divide(xp, column_norms(xp, adjoint(R)), norm * column_norms(xp, R))

    def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
        first = State(
            X=s.X,
            R=s.R,
            P=0 * s.X,
            rho=INFINITY + 0 * s.size,
            curve=0 * s.size,
            norm=s.norm**2,
            size=s.size**2,
            status=s.status,
            iterations=s.iterations,
            iteration=s.iteration,
        )
        state, history, stopped = loop.run(
            lambda state: step(xp, multiply, adjoint, precondition, tol, state), first, s.history, lambda state: state.X
        )
        made = state.iteration - s.iteration
        norm = xp.sqrt(state.norm)
        return Ended(state.X, state.status, state.iterations, state.iteration, 2 * made, history, stopped, norm)

    return solve_in_cycles(
        xp,
        cycle,
        multiply,
        B,
        X0,
        tol=tol,
        max_iters=max_iters,
        watch=watch,
        columns=columns,
        optimality=optimality,
        consistent=consistent,
    )


def step(xp: Any, multiply: Any, adjoint: Any, precondition: Any, tol: float, s: State) -> State:
    """One iteration for all columns that run."""
    column = lambda x: x[..., None, :]  # noqa: E731  (a number for each column)
    S = adjoint(s.R)  # s = A^H r
    slope = squared(xp, S)  # |A^H r|^2, at most |A|^2 |r|^2
    norm = xp.maximum(s.norm, divide(xp, slope, s.size))
    Z = S if precondition is None else precondition(S)  # z = M s
    rho = slope if precondition is None else xp.real(inner(xp, S, Z))  # ρ = s^H M s
    broken = xp.logical_not(xp.isfinite(slope))
    status = first_of(xp, s.status, (broken, NONFINITE), (slope <= tol**2 * norm * s.size, SUCCESS))
    status = status if precondition is None else first_of(xp, status, *of_preconditioner(xp, rho))
    beta = xp.where(status == RUNNING, divide(xp, rho, s.rho), 0)
    P = Z + column(beta) * s.P  # p = z + (ρ / ρ') p
    Q = multiply(P)  # q = A p
    curvature = squared(xp, Q)  # |A p|^2 = p^H A^H A p
    status = first_of(xp, status, (xp.logical_not(xp.isfinite(curvature)), NONFINITE), (curvature == 0, SUCCESS))
    runs = status == RUNNING
    curve = divide(xp, curvature, rho)  # 1 / α
    if precondition is None:  # 1/α + β/α' is on the diagonal of B^H B for the bidiagonal B of LSQR
        norm = xp.where(runs, s.norm + curve + beta * s.curve, norm)
    else:
        norm = xp.where(runs, xp.maximum(norm, divide(xp, curvature, squared(xp, P))), norm)
    alpha = column(xp.where(runs, divide(xp, rho, curvature), 0))
    X = s.X + xp.where(column(runs), alpha * P, 0)  # x = x + α p
    R = xp.where(column(runs), s.R - alpha * Q, s.R)  # r = r - α q
    left = squared(xp, R)
    status = first_of(xp, status, (left <= tol**2, SUCCESS))
    ran = s.status == RUNNING
    return State(
        X=X,
        R=R,
        P=P,
        rho=rho,
        curve=curve,
        norm=xp.where(ran, norm, s.norm),
        size=xp.where(ran, left, s.size),
        status=status,
        iterations=s.iterations + ran,
        iteration=s.iteration + 1,
    )
