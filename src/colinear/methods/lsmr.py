"""Least squares by bidiagonalisation: LSMR (Fong and Saunders 2011), for any m x n A, with a preconditioner on the right.

In exact arithmetic MINRES on A^H A x = A^H b: |A^H r| falls from step to step, so that it may be stopped early with more confidence than
LSQR. Of all solutions it gives the one of smallest norm (if started at zero and not preconditioned).

Differs from the reference: blocks of right sides, each column stopped on its own; damping as rows below A; the true residual, and the
true A^H r, decide (`solve_in_cycles`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .bidiagonalisation import Recurrence, bidiagonalise, least_squares, quotient, rotated, rotation, unit
from .iteration import NOBODY, Cycles, Ended, Loop, Outcome, Watch, divide, first_of


class State(NamedTuple):
    X: Array
    U: Array
    V: Array
    D: Array  # the vectors h and h̄ of the paper
    D_bar: Array
    alpha: Array
    alpha_bar: Array
    rho: Array
    rho_bar: Array
    c_bar: Array
    s_bar: Array
    zeta: Array
    zeta_bar: Array  # |A^H r|, with its sign
    beta_dots: tuple[Array, Array]  # β̇ and β̈: of these and of τ the norm of r is made
    rho_dot: Array
    theta: Array
    tau: Array
    norm: Array  # of A, by Frobenius, squared
    size: Array
    status: Array
    iterations: Array
    iteration: Any


def lsmr(
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
    """Minimise |B - A X|^2 + |damping X|^2. The arguments are those of `lsqr`."""

    def make_cycle(multiply: Any, adjoint: Any) -> Any:
        def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
            beta, U = unit(xp, s.R)
            alpha, V = unit(xp, adjoint(U))
            status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(alpha)), int(Status.NONFINITE)), (alpha == 0, 0))
            zero, one = 0 * beta, 0 * beta + 1
            first = State(
                X=s.X,
                U=U,
                V=V,
                D=V,
                D_bar=0 * V,
                alpha=alpha,
                alpha_bar=alpha,
                rho=one,
                rho_bar=one,
                c_bar=one,
                s_bar=zero,
                zeta=zero,
                zeta_bar=alpha * beta,
                beta_dots=(zero, beta),
                rho_dot=one,
                theta=zero,
                tau=zero,
                norm=xp.maximum(alpha**2, s.norm**2),
                size=beta**2,
                status=status,
                iterations=s.iterations,
                iteration=s.iteration,
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
    """One iteration for all columns that run: one more row and column of the bidiagonal matrix, and two rotations."""
    column = lambda x: x[..., None, :]  # noqa: E731  (a number for each column)
    beta, U, alpha, V = bidiagonalise(xp, multiply, adjoint, s.U, s.V, s.alpha)
    status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(alpha + beta)), int(Status.NONFINITE)))
    going = (status == s.status) & (s.status < 0)
    c, sine, rho = rotation(xp, s.alpha_bar, beta)  # the first rotation makes the bidiagonal matrix triangular
    theta_new, alpha_bar = sine * alpha, c * alpha
    theta_bar = s.s_bar * rho  # the second one its product with itself
    c_bar, s_bar, rho_bar = rotation(xp, s.c_bar * rho, theta_new)
    zeta, zeta_bar = c_bar * s.zeta_bar, -s_bar * s.zeta_bar
    D_bar = s.D - column(divide(xp, theta_bar * rho, s.rho * s.rho_bar)) * s.D_bar
    X = s.X + xp.where(column(going), column(divide(xp, zeta, rho * rho_bar)) * D_bar, 0)
    D = V - column(divide(xp, theta_new, rho)) * s.D
    # |r|, section 5.1
    beta_hat, beta_double = c * s.beta_dots[1], -sine * s.beta_dots[1]
    c_tilde, s_tilde, rho_tilde = rotation(xp, s.rho_dot, theta_bar)
    theta, rho_dot = s_tilde * rho_bar, c_tilde * rho_bar
    beta_single = -s_tilde * s.beta_dots[0] + c_tilde * beta_hat
    tau = divide(xp, s.zeta - s.theta * s.tau, rho_tilde)
    tau_dot = divide(xp, zeta - theta * tau, rho_dot)
    norm = xp.where(going, s.norm + alpha**2 + beta**2, s.norm)
    size = xp.where(going, (beta_single - tau_dot) ** 2 + beta_double**2, s.size)
    small = (xp.sqrt(size) <= tol) | (xp.abs(zeta_bar) <= tol * xp.sqrt(norm * size))
    status = first_of(xp, status, (small | (alpha == 0) | (beta == 0), int(Status.SUCCESS)))
    return State(
        X=X,
        U=U,
        V=V,
        D=D,
        D_bar=D_bar,
        alpha=alpha,
        alpha_bar=alpha_bar,
        rho=rho,
        rho_bar=rho_bar,
        c_bar=c_bar,
        s_bar=s_bar,
        zeta=zeta,
        zeta_bar=zeta_bar,
        beta_dots=(beta_single, beta_double),
        rho_dot=rho_dot,
        theta=theta,
        tau=tau,
        norm=norm,
        size=size,
        status=status,
        iterations=s.iterations + (s.status < 0),
        iteration=s.iteration + 1,
    )


def recurrence(xp: Any, x: Array, v: Array, beta: float, alpha: float) -> Recurrence:
    """What `step` makes of β and α, for one vector, written over x: see `one_vector`."""
    d, d_bar = xp.copy(v), 0 * v
    alpha_bar, zeta_bar, beta_double, size = alpha, alpha * beta, beta, beta
    rho = rho_bar = c_bar = rho_dot = 1.0
    s_bar = zeta = beta_single = theta = tau = 0.0
    while True:
        beta, alpha = yield size, abs(zeta_bar)
        before, zeta_before = rho * rho_bar, zeta
        c, sine, rho = rotated(alpha_bar, beta)
        theta_new, alpha_bar = sine * alpha, c * alpha
        theta_bar = s_bar * rho
        c_bar, s_bar, rho_bar = rotated(c_bar * rho, theta_new)
        zeta, zeta_bar = c_bar * zeta_bar, -s_bar * zeta_bar
        xp.xpby(d, -quotient(theta_bar * rho, before), d_bar)
        xp.axpy(quotient(zeta, rho * rho_bar), d_bar, x)
        xp.xpby(v, -quotient(theta_new, rho), d)
        beta_hat, beta_double = c * beta_double, -sine * beta_double
        c_tilde, s_tilde, rho_tilde = rotated(rho_dot, theta_bar)
        tau = quotient(zeta_before - theta * tau, rho_tilde)
        theta, rho_dot = s_tilde * rho_bar, c_tilde * rho_bar
        beta_single = -s_tilde * beta_single + c_tilde * beta_hat
        size = math.hypot(beta_single - quotient(zeta - theta * tau, rho_dot), beta_double)
