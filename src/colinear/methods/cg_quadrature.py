"""Conjugate gradients that keep the coefficients of the Lanczos runs inside them: solutions and quadratures from one run.

For step lengths a_j and ratios b_j = |r_{j+1}|^2 / |r_j|^2 (in the norm of M), T has α_j = 1 / a_j + b_{j-1} / a_{j-1} on its diagonal and
β_j = sqrt(b_j) / a_j beside it (Golub and Meurant 2010, after Lanczos 1952): r^H f(A) r = |r|^2 e_1^T f(T) e_1. Gardner, Pleiss, Bindel,
Weinberger and Wilson (2018) run it on a block of a right side and random vectors: a Gaussian likelihood and its gradient.

A column that has converged stands still; the rows of T behind its end are decoupled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from .krylov import plain, put
from .probes import heard, no_failure
from .slq import times

SAFETY = 0.5  # of the tolerance at which the recurrence stops, so that the true residual meets it


class State(NamedTuple):
    X: Array
    R: Array
    P: Array
    rho: Array  # r^H M r, (*batch, k)
    before: Array  # b / a of the step before
    running: Array
    broken: Array  # whether p^H A p <= 0 was met
    alpha: Array  # (m, *batch, k)
    beta: Array
    j: Any
    heard: Any  # the worst that A, if it is applied by a method, has said of its products


class Solved(NamedTuple):
    """A^-1 B, the coefficients, |b|^2 in the norm of M, how each column ended, the steps, and the true residuals, relative."""

    X: Array
    alpha: Array
    beta: Array
    length: Array
    status: Array
    steps: Any
    residual: Array


def cg_quadrature(
    xp: Any,
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array] | None,
    B: Array,
    *,
    tol: float,
    max_iters: int,
    rows: int,
) -> Solved:
    """Solve A X = B for positive definite A, and keep the coefficients of the first `rows` steps, for each column of B."""
    apply = precondition or (lambda R: R)
    lanes, device = (*B.shape[:-2], B.shape[-1]), xp.device_of(B)
    size = xp.vector_norm(B, axis=-2)
    Z = apply(B)
    rho = xp.real(xp.column_dot(B, Z))
    empty = xp.zeros((rows, *lanes), dtype=rho.dtype, device=device)
    ready, copies = xp.logical_and(rho > 0, size > 0), (xp.copy(B), xp.copy(Z))
    start = State(0 * B, *copies, rho, 0 * rho, ready, rho < 0, empty, xp.copy(empty), 0, no_failure(xp))
    if xp.name == "jax":
        start = start._replace(j=xp.asarray(0))

    def going(s: State) -> Any:
        more = xp.any(s.running)
        return (more if xp.is_traced(more) else plain(xp, more)) & (s.j < max_iters)

    def step(s: State) -> State:
        W, worst = heard(xp, multiply, s.P, s.heard)
        curvature = xp.real(xp.column_dot(s.P, W))
        broken = xp.logical_and(s.running, curvature <= 0)
        on = xp.logical_and(s.running, xp.logical_not(broken))
        a = xp.where(on, s.rho / xp.where(on, curvature, 1), 0)  # NaN stays
        X, R = added(xp, s.X, a, s.P), added(xp, s.R, -a, W)
        Z = apply(R)
        rho = xp.real(xp.column_dot(R, Z))
        square = rho if precondition is None else xp.real(xp.column_dot(R, R))
        running = xp.logical_and(on, square > (SAFETY * tol * size) ** 2)
        running = xp.logical_and(running, xp.isfinite(rho))
        b = xp.where(on, rho / xp.where(on, s.rho, 1), 0)
        inverse = xp.where(on, 1 / xp.where(on, a, 1), 0)
        alpha = inverse + s.before
        beta = xp.where(running, xp.sqrt(xp.maximum(b, 0 * b)) * inverse, 0)
        alphas, betas = s.alpha, s.beta
        if xp.name == "jax" or s.j < rows:  # JAX drops what is put outside
            alphas = put(xp, alphas, s.j, xp.where(on, alpha, 0))
            betas = put(xp, betas, s.j, beta)
        P = added(xp, times(xp, s.P, _wide(xp, b, W)), None, Z)
        return State(
            X,
            R,
            P,
            xp.where(on, rho, s.rho),
            b * inverse,
            running,
            xp.logical_or(s.broken, broken),
            alphas,
            betas,
            s.j + 1,
            worst,
        )

    s = xp.while_loop(going, step, start)
    residual = xp.vector_norm(B - multiply(s.X), axis=-2) / xp.where(size > 0, size, 1)
    status = xp.where(residual <= tol, int(Status.SUCCESS), int(Status.STAGNATION))
    status = xp.where(s.running, int(Status.MAX_ITERATIONS), status)
    status = xp.where(s.broken, int(Status.NOT_POSITIVE_DEFINITE), status)
    status = xp.where(xp.isfinite(residual), status, int(Status.NONFINITE))
    status = xp.maximum(status, s.heard + 0 * status)
    return Solved(s.X, s.alpha, s.beta, rho, status, s.j, residual)


def added(xp: Any, Y: Array, a: Array | None, X: Array) -> Array:
    """Y + X diag(a), or Y + X, written over Y where that can be."""
    term = X if a is None else _wide(xp, a, X)
    if xp.name == "jax" or xp.is_traced(Y):
        return Y + (X if a is None else term * X)
    if xp.name == "torch" and a is not None:
        return xp.axpy(term, X, Y)  # without an array for the product
    Y += X if a is None else term * X
    return Y


def _wide(xp: Any, x: Array, like: Array) -> Array:
    return xp.astype(x, like.dtype)[..., None, :]
