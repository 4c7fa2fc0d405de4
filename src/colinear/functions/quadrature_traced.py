"""Stochastic quadrature inside a traced program, where no value can be seen and the number of steps is fixed."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array
from ..info import Info, Status, report
from ..methods import SLQ
from ..methods.quadrature import advance, combined, relative_tail, start, traced_first_column, traced_nodes_and_weights, with_node
from ..methods.sampling import quantile, worse
from ._arrays import narrow
from .scalar_functions import Scalar

STEPS = 64


def traced_quadrature(
    A: Any, M: Any, R: Array, method: SLQ, f: Scalar, logarithm: Any, slope: Any = None
) -> tuple[Array, Array, Array, Array]:
    """tr f(A) from runs that start at the columns of R: so many steps, and three quarters of them for comparison.

    And R, f'(A) R and how small its last coefficients are, for derivatives, if `slope` is f'.
    """
    xp = A.xp
    m = method.max_iters or STEPS
    runs, length = start(xp, R, None if M is None else M.__matmul__)
    runs, alpha, beta = advance(xp, A.__matmul__, None if M is None else M.__matmul__, runs, m)
    ended = xp.cumsum(xp.astype(beta == 0, beta.dtype), axis=0) - xp.astype(beta == 0, beta.dtype) > 0
    alpha = xp.where(ended, alpha[:1], alpha)
    values, inside = [], None
    for j in (max(1, 3 * m // 4), m):
        a, b = alpha[:j], beta[:j]
        if method.interval is not None and method.quadrature != "gauss":
            inside = _holds(xp, method.interval, a, b)
            a, b = with_node(xp, a, b, method.interval[0 if method.quadrature == "lower" else 1])
        nodes, weights = traced_nodes_and_weights(xp, a, b)
        values.append(length * xp.sum(weights * f.of(xp, nodes), axis=-1))
        if inside is not None:
            values[-1] = xp.where(inside, values[-1], math.nan)  # no bound
    value, k = values[-1], R.shape[-1]
    mean = xp.mean(value, axis=-1)
    rest = xp.abs(mean - xp.mean(values[0], axis=-1))
    spread = xp.sum((value - mean[..., None]) ** 2, axis=-1)
    error = xp.sqrt(spread / max(1, k * (k - 1)) + rest**2) if k > 1 else spread + math.inf
    status = worse(xp, xp.where(xp.all(xp.isfinite(value)), int(Status.SUCCESS), int(Status.NONFINITE)), runs.status)
    mean = mean + logarithm
    if method.tol is not None:
        met = xp.all(quantile(method.confidence, max(1, k - 1)) * error <= method.tol * xp.abs(mean))
        status = xp.where(met, status, xp.maximum(status, int(Status.MAX_ITERATIONS) + 0 * status))
    report(Info(status, error=error, matvecs=m * k, iterations=m, method="SLQ"))
    if slope is None:
        return narrow(xp, mean, A.dtype), R, R, 0 * length
    column = traced_first_column(xp, alpha, beta, lambda nodes: slope(xp, _inside(xp, f, nodes)))
    tail = xp.where(runs.alive, relative_tail(xp, column), 0)
    return narrow(xp, mean, A.dtype), R, combined(xp, A.__matmul__, R, column), tail


def _inside(xp: Any, f: Scalar, nodes: Array) -> Array:
    """Nodes as f takes them: a function that is real for positive numbers only must not see others (the value says so already)."""
    return xp.where(nodes > 0, nodes, 1) if f.principal else nodes


def _holds(xp: Any, interval: tuple[float, float], alpha: Array, beta: Array) -> Array:
    """Whether all Ritz values of each run lie in the interval that is said to hold the eigenvalues."""
    nodes, weights = traced_nodes_and_weights(xp, alpha, beta)
    slack = 100 * xp.eps(nodes.dtype) * xp.max(xp.abs(nodes), axis=-1, keepdims=True)
    outside = xp.logical_or(nodes < interval[0] - slack, nodes > interval[1] + slack)
    return xp.logical_not(xp.any(xp.logical_and(outside, weights > xp.eps(nodes.dtype)), axis=-1))
