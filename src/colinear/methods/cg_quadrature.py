"""Conjugate gradients that keep the coefficients of the Lanczos runs inside them: solutions and
quadratures from one run.

For step lengths a_j and ratios b_j = |r_{j+1}|^2 / |r_j|^2 (in the norm of M), T has
α_j = 1 / a_j + b_{j-1} / a_{j-1} on its diagonal and β_j = sqrt(b_j) / a_j beside it (Golub and
Meurant 2010, after Lanczos 1952): r^H f(A) r = |r|^2 e_1^T f(T) e_1. Gardner, Pleiss, Bindel,
Weinberger and Wilson (2018) run it on a block of a right side and random vectors: a Gaussian
likelihood and its gradient.

A column that has converged stands still; the rows of T behind its end are decoupled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from ..info import Status
from . import cg
from .krylov import count_of, pick, put
from .loop import Loop
from .probes import heard, no_failure
from .vectors import (
    RUNNING,
    STAGNATION,
    SUCCESS,
    Columns,
    State,
    column_norms,
    final_code,
    status_of,
)
from .watching import NOBODY

SAFETY = 0.5  # of the tolerance at which the recurrence stops, so that the true residual meets it


class QuadratureState(State):
    x: Array
    r: Array
    p: Array
    rho: Array  # r^H M r, (*batch, k)
    alpha: Array  # the step length a
    size: Array
    status: Array
    inverse: Array  # 1 / a
    length: Array  # r^H M r of the first step
    diagonal: Array  # (rows, *batch, k), of T
    beside: Array
    j: Any
    heard: Any  # the worst that A, if it is applied by a method, has said of its products


class Solved(NamedTuple):
    """A^-1 B, the coefficients, |b|^2 in the norm of M, how each column ended, the steps, and the
    true residuals, relative."""

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
    """Solve A X = B for positive definite A, and keep the coefficients of the first `rows` steps, for
    each column of B."""
    size = column_norms(xp, B)
    ops = Columns(xp, B.dtype, goal=(SAFETY * tol * size) ** 2, in_place=True)
    empty = xp.zeros((rows, *size.shape), dtype=size.dtype, device=xp.device_of(B))

    def step(ops: Columns, s: QuadratureState) -> QuadratureState:
        def product(P: Array) -> Array:
            W, s.heard = heard(xp, multiply, P, s.heard)
            return W

        ops.take(product, None, precondition)
        before, ran = s.rho, s.status == RUNNING
        cg.step(ops, s)
        s.length = pick(xp, s.j == 0, s.rho, s.length)
        on = ran & ((s.status == RUNNING) | (s.status == SUCCESS))
        b = ops.ratio(s.rho, before)
        inverse = ops.ratio(1.0, s.alpha)
        if xp.name == "jax" or s.j < rows:  # JAX drops what is put outside
            s.diagonal = put(xp, s.diagonal, s.j, xp.where(on, inverse + b * s.inverse, 0))
        if (
            xp.name == "jax" or s.j <= rows
        ):  # before the first step b is zero, and so is the last row
            s.beside = put(xp, s.beside, s.j - 1, xp.where(on, b**0.5 * s.inverse, 0))
        s.inverse = inverse
        s.j = s.j + 1
        return s

    first = QuadratureState(
        x=0 * B,
        r=ops.own(B),
        p=0 * B,
        rho=float("inf") + 0 * size,
        alpha=0 * size,
        size=size**2,
        status=xp.where(size == 0, SUCCESS, RUNNING),
        inverse=0 * size,
        length=0 * size,
        diagonal=empty,
        beside=xp.copy(empty),
        j=count_of(xp, 0),
        heard=no_failure(xp),
    )
    loop = Loop(xp, NOBODY, max_iters, size)
    s = loop.run(step, ops, first, lambda state: state.x).state
    residual = column_norms(xp, B - multiply(s.x)) / xp.where(size > 0, size, 1)
    status = status_of(final_code(xp, s.status, False))
    status = xp.where((status == SUCCESS) & (residual > tol), STAGNATION, status)
    status = xp.where(xp.isfinite(residual), status, int(Status.NONFINITE))
    status = xp.maximum(status, s.heard + 0 * status)
    return Solved(
        X=s.x,
        alpha=s.diagonal,
        beta=s.beside,
        length=s.length,
        status=status,
        steps=s.j,
        residual=residual,
    )
