"""Least squares by bidiagonalisation: LSQR (Paige and Saunders 1982), for any m x n A, with a preconditioner on the right.

In exact arithmetic conjugate gradients on A^H A x = A^H b, without its squared condition in the answer. Of all solutions it gives the
one of smallest norm (if started at zero and not preconditioned). |r| falls from step to step.

Differs from the reference: blocks of right sides, each column stopped on its own; damping as rows below A; the true residual, and the
true A^H r, decide (`solve_in_cycles`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .bidiagonalisation import Recurrence, bidiagonalise, least_squares, quotient, rotated, rotation, unit
from .iteration import NOBODY, Cycles, Ended, Loop, Outcome, Watch, divide, first_of


class State(NamedTuple):
    X: Array
    U: Array
    V: Array
    W: Array  # the direction of search
    alpha: Array
    rho: Array  # what the rotation has left on the diagonal
    phi: Array  # |r|
    norm: Array  # of A, by Frobenius, squared
    size: Array
    status: Array
    iterations: Array
    iteration: Any


def lsqr(
    xp: Any,
    multiply: Any,
    adjoint: Any,
    B: Array,
    *,
    columns: int,
    tol: float,
    max_iters: int,
    damping: float = 0.0,
    consistent: bool = False,
    precondition: Any = None,
    precondition_adjoint: Any = None,
    X0: Array | None = None,
    watch: Watch = NOBODY,
) -> Outcome:
    """Minimise |B - A X|^2 + |damping X|^2.

    Parameters
    ----------
    multiply, adjoint : callable
        A X and A^H X.
    columns : int
        Of A.
    tol : float
        It ends when |r| <= tol |b| or |A^H r| <= tol |A| |r|.
    consistent : bool
        Whether only the first of these is success.
    """

    def make_cycle(multiply: Any, adjoint: Any) -> Any:
        def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
            phi, U = unit(xp, s.R)
            alpha, V = unit(xp, adjoint(U))
            status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(alpha)), int(Status.NONFINITE)), (alpha == 0, 0))
            first = State(
                s.X, U, V, V, alpha, alpha, phi, xp.maximum(alpha**2, s.norm**2), phi**2, status, s.iterations, s.iteration
            )
            state, history, stopped = loop.run(
                lambda state: step(xp, multiply, adjoint, tol, state), first, s.history, lambda state: state.X
            )
            products = 2 * (state.iteration - s.iteration) + 2
            norm = xp.sqrt(state.norm)
            return Ended(state.X, state.status, state.iterations, state.iteration, products, history, stopped, norm)

        return cycle

    return least_squares(
        xp,
        make_cycle,
        recurrence,
        multiply,
        adjoint,
        B,
        columns=columns,
        damping=damping,
        consistent=consistent,
        tol=tol,
        max_iters=max_iters,
        precondition=precondition,
        precondition_adjoint=precondition_adjoint,
        X0=X0,
        watch=watch,
    )


def step(xp: Any, multiply: Any, adjoint: Any, tol: float, s: State) -> State:
    """One iteration for all columns that run: one more row and column of the bidiagonal matrix, and a rotation."""
    column = lambda x: x[..., None, :]  # noqa: E731  (a number for each column)
    beta, U, alpha, V = bidiagonalise(xp, multiply, adjoint, s.U, s.V, s.alpha)
    status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(alpha + beta)), int(Status.NONFINITE)))
    going = status == s.status
    c, sine, rho = rotation(xp, s.rho, beta)
    going = going & (s.status < 0)
    theta, phi = sine * alpha, c * s.phi
    X = s.X + xp.where(column(going), column(divide(xp, phi, rho)) * s.W, 0)
    W = V - column(divide(xp, theta, rho)) * s.W
    left = sine * s.phi  # |r|
    norm = xp.where(going, s.norm + alpha**2 + beta**2, s.norm)
    size = xp.where(going, left**2, s.size)
    small = (left <= tol) | (xp.abs(c) * alpha <= tol * xp.sqrt(norm))  # |A^H r| = |r| α |c|
    status = first_of(xp, status, (small | (alpha == 0) | (beta == 0), int(Status.SUCCESS)))
    moved = s.iterations + (s.status < 0)
    return State(X, U, V, W, alpha, -c * alpha, left, norm, size, status, moved, s.iteration + 1)


def recurrence(xp: Any, x: Array, v: Array, phi: float, rho: float) -> Recurrence:
    """What `step` makes of β and α, for one vector, written over x: see `one_vector`. At first φ and ρ are β and α."""
    w, size, slope = xp.copy(v), phi, 0.0
    while True:
        beta, alpha = yield size, slope
        c, sine, rho = rotated(rho, beta)
        xp.axpy(quotient(c * phi, rho), w, x)
        xp.xpby(v, -quotient(sine * alpha, rho), w)
        phi = size = sine * phi
        rho = -c * alpha
        slope = size * abs(rho)  # |A^H r| = |r| α |c|
