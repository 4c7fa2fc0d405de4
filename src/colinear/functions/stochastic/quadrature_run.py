"""The Lanczos runs of stochastic quadrature: where values can be seen, inside a traced program,
and within conjugate gradients."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, get, is_array, program
from ...errors import MethodError
from ...info import Info, recording, report
from ...methods import SLQ
from ...methods.quadrature import (
    Runs,
    Solved,
    advance,
    combined,
    first_column,
    nodes_and_weights,
    relative_tail,
    start,
    traced_first_column,
    traced_nodes_and_weights,
    with_node,
)
from ...methods.sampling import quantile
from ...operators import LinearOperator
from ...operators.autograd import linearised
from ...status import Status, combine
from ..common import first_failure, to_result_dtype
from ..matrix_functions.scalars import LOG, Scalar

# The Lanczos runs of stochastic quadrature where values can be seen: as many steps as it takes,
# looked at now and then on the host.


HOST = get("numpy")
STEPS = 500  # of Lanczos, unless told
LOOK = 4  # steps between two looks at least
GROWTH = 1.25  # and the ratio of the places of two looks
SHARE = 0.05  # of the standard error that the quadrature may add
SLOWEST = 0.98  # ratio of two differences from which convergence is no longer believed


class Found(NamedTuple):
    """Estimates of z^H f(A) z, one for each random vector, on the host: what they are, how far
    they are off, and what went wrong."""

    values: Any  # (*batch, k)
    rest: Any  # of the quadrature, estimated
    status: Status
    steps: int
    converged: bool
    column: Any = None  # f'(T) e_1, (steps, *batch, k), if a derivative is asked for
    tail: Any = None


def on_host(xp: Any, x: Any) -> Any:
    """An array as one of NumPy's, of double precision; a number as it is."""
    return x if not is_array(x) else np.asarray(xp.to_numpy(x), dtype=float)


def quadrature(
    A: LinearOperator, M: LinearOperator | None, R: Array, method: SLQ, f: Scalar, slope: Any = None
) -> Found:
    """z^H f(A) z for each column of R, in steps until the differences between looks say that it has
    converged.

    With `slope`, that is f', also until f'(A) z has: that takes about twice as many.
    """
    xp, n = A.xp, A.shape[-1]
    limit = method.max_iters or STEPS
    runs, length = program(xp.name, _begin)(M, R)
    lengths = on_host(xp, length)
    shape = lengths.shape
    alphas: list[Any] = []
    betas: list[Any] = []
    values = before = difference = None
    rest = np.full(shape, np.inf)
    j, look, status, converged = 0, LOOK, Status.SUCCESS, False
    column = tail = None
    eps = xp.eps(R.dtype)
    while j < limit:
        steps = min(LOOK, limit - j)
        runs, alpha, beta = program(xp.name, _advance, steps)(A, M, runs)
        alphas.append(on_host(xp, alpha).reshape(steps, -1))
        betas.append(on_host(xp, beta).reshape(steps, -1))
        j += steps
        status = max(status, Status(int(runs.status)))
        alive = np.asarray(xp.to_numpy(runs.alive))
        if j < look and j < limit and alive.any() and np.isfinite(betas[-1]).all():
            continue
        look = max(j + LOOK, int(GROWTH * j))
        a, b = np.concatenate(alphas), np.concatenate(betas)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            bad = ~(np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)).reshape(shape)
            a, b = np.where(np.isfinite(a), a, 1.0), np.where(np.isfinite(b), b, 0.0)
            status = Status.NONFINITE
        else:
            bad = np.zeros(shape, bool)
        values, worst, failing = _values(xp, a, b, method, f, eps, n)
        values = np.where(bad | failing.reshape(shape), np.nan, values.reshape(shape) * lengths)
        status = max(status, worst)
        if status < Status.BREAKDOWN and not np.isfinite(values).all():
            status = Status.NONFINITE
        if slope is not None:
            column = _column(xp, a, b, f, slope).reshape(j, *shape)
            tail = np.where(alive, relative_tail(np, column), 0)
        if status >= Status.BREAKDOWN:
            rest = np.zeros(shape)
            break
        if before is not None:
            now = np.abs(values - before)
            ratio = (
                SLOWEST
                if difference is None
                else np.minimum(now / np.where(difference > 0, difference, 1), SLOWEST)
            )
            rest = now * ratio / (1 - ratio) if difference is not None else np.maximum(now, 0)
            rest = np.where((now == 0) | ~alive, 0, rest)
            difference = now
        else:
            rest = np.where(alive, np.inf, 0)
        before = values
        spread = (
            np.std(values, axis=-1) / math.sqrt(max(1, shape[-1]))
            if shape[-1] > 1
            else 0 * values[..., 0]
        )
        mean = np.mean(values, axis=-1)
        goal = np.maximum(
            SHARE * spread,
            (math.sqrt(eps) if method.tol is None else SHARE * method.tol) * np.abs(mean),
        )
        if (np.mean(rest, axis=-1) <= goal).all():
            converged = True
            if tail is None or (tail <= math.sqrt(eps)).all():
                break
    return Found(values, rest, status, j, converged, column, tail)


def _column(xp: Any, a: Any, b: Any, f: Scalar, slope: Any) -> Any:
    """f'(T) e_1 for each run, (steps, runs)."""

    def of(nodes: Any) -> Any:
        nodes = xp.asarray(_inside(HOST, f, nodes), dtype=xp.float64)
        return np.asarray(xp.to_numpy(slope(xp, nodes)))

    return first_column(_decoupled(HOST, a, b), b, of)


def _values(
    xp: Any, a: Any, b: Any, method: SLQ, f: Scalar, eps: float, n: int
) -> tuple[Any, Status, Any]:
    """Σ_i w_i f(θ_i) for each run; the worst status of them, and which have failed: f may be
    real for positive numbers only."""
    a = _decoupled(HOST, a, b)
    if method.interval is not None and method.quadrature != "gauss":
        _checked_interval(method.interval, a, b, eps)
        a, b = with_node(HOST, a, b, method.interval[method.quadrature != "lower"])
    nodes, weights = nodes_and_weights(a, b)
    failing, status = np.zeros(len(nodes), bool), Status.SUCCESS
    if f.principal:
        size = np.abs(nodes).max(axis=-1)
        least = np.where(weights > 1e-30, nodes, np.inf).min(axis=-1)
        floor = 10 * eps * size
        failing = least < -floor * math.sqrt(n)
        if failing.any():
            status = Status.NOT_POSITIVE_DEFINITE
        elif f.pole and (least <= floor).any():
            status = Status.SINGULAR
        nodes = np.where(nodes > 0, nodes, 1 if f.pole else 0)
    numbers = _of_user(xp, f, nodes) if f.name == "apply" else f.of(HOST, nodes)
    return np.sum(np.where(weights > 0, weights * numbers, 0), axis=-1), status, failing


def _checked_interval(interval: tuple[float, float], a: Any, b: Any, eps: float) -> None:
    """An error if a Ritz value, which lies between eigenvalues, lies outside of the interval
    that is said to hold them all."""
    nodes, weights = nodes_and_weights(a, b)
    nodes = nodes[weights > eps]
    slack = 100 * eps * np.abs(nodes).max(initial=0)
    if (
        nodes.min(initial=np.inf) < interval[0] - slack
        or nodes.max(initial=-np.inf) > interval[1] + slack
    ):
        raise ValueError(
            f"SLQ: interval is {interval!r}, and A has eigenvalues outside of it: some from "
            f"{nodes.min():.4g} to {nodes.max():.4g}. "
            "Give one that holds them all; what it gives is no bound otherwise."
        )


def _of_user(xp: Any, f: Scalar, nodes: Any) -> Any:
    """A user's function is one of the arrays of his framework."""
    found = np.asarray(xp.to_numpy(f.of(xp, xp.asarray(nodes, dtype=xp.default_float()))))
    if np.iscomplexobj(found):
        raise MethodError(
            "trace: SLQ is for functions that are real on the spectrum. Use XTrace()."
        )
    return found


def _product(A: LinearOperator | None) -> Any:
    return None if A is None else linearised(A).__matmul__


def _begin(xp: Any, M: LinearOperator | None, R: Array) -> Any:
    """The start of the runs, a program in JAX."""
    return start(xp, R, _product(M))


def _advance(xp: Any, steps: int, A: LinearOperator, M: LinearOperator | None, runs: Runs) -> Any:
    """Some steps of the runs, a program in JAX."""
    with recording():
        return advance(xp, _product(A), _product(M), runs, steps)


def _decoupled(xp: Any, alpha: Array, beta: Array) -> Array:
    """alpha (steps, ...) with the first of a run in the rows behind its end: decoupled from the
    others, of weight zero, and no other eigenvalue."""
    ends = xp.astype(beta == 0, beta.dtype)
    return xp.where(xp.cumsum(ends, axis=0) - ends > 0, alpha[:1], alpha)


# Stochastic quadrature inside a traced program, where no value can be seen and the number of steps
# is fixed.


TRACED_STEPS = 64


def traced_quadrature(
    A: Any, M: Any, R: Array, method: SLQ, f: Scalar, logarithm: Any, slope: Any = None
) -> tuple[Array, Array, Array, Array]:
    """tr f(A) from runs that start at the columns of R: so many steps, and three quarters of them
    for comparison.

    And R, f'(A) R and how small its last coefficients are, for derivatives, if `slope` is f'.
    """
    xp = A.xp
    m = method.max_iters or TRACED_STEPS
    runs, length = start(xp, R, None if M is None else M.__matmul__)
    runs, alpha, beta = advance(xp, A.__matmul__, None if M is None else M.__matmul__, runs, m)
    alpha = _decoupled(xp, alpha, beta)
    values, inside, nodes = [], None, None
    for j in (max(1, 3 * m // 4), m):
        a, b = alpha[:j], beta[:j]
        if method.interval is not None and method.quadrature != "gauss":
            inside, nodes = _holds(xp, method.interval, a, b, nodes)
            a, b = with_node(xp, a, b, method.interval[method.quadrature != "lower"])
        nodes, weights = traced_nodes_and_weights(xp, a, b, nodes)
        values.append(length * xp.sum(weights * f.of(xp, nodes), axis=-1))
        if inside is not None:
            values[-1] = xp.where(inside, values[-1], math.nan)  # no bound
    value, k = values[-1], R.shape[-1]
    mean = xp.mean(value, axis=-1)
    rest = xp.abs(mean - xp.mean(values[0], axis=-1))
    spread = xp.sum((value - mean[..., None]) ** 2, axis=-1)
    error = xp.sqrt(spread / max(1, k * (k - 1)) + rest**2) if k > 1 else spread + math.inf
    mean, met = mean + logarithm, True
    if method.tol is not None:
        size = method.tol * xp.abs(mean)
        met = xp.all(quantile(method.confidence, max(1, k - 1)) * error <= size)
    finite = xp.all(xp.isfinite(value)), Status.NONFINITE
    status = combine([first_failure(xp, finite, (met, Status.MAX_ITERATIONS)), runs.status])
    report(Info(status, error=error, matvecs=m * k, iterations=m, method="SLQ"))
    if slope is None:
        return to_result_dtype(xp, mean, A.dtype), R, R, 0 * length
    of = lambda nodes: slope(xp, _inside(xp, f, nodes))
    column = traced_first_column(xp, alpha, beta, of, nodes)
    tail = xp.where(runs.alive, relative_tail(xp, column), 0)
    return to_result_dtype(xp, mean, A.dtype), R, combined(xp, A.__matmul__, R, column), tail


def _inside(xp: Any, f: Scalar, nodes: Array) -> Array:
    """Nodes as f takes them: a function that is real for positive numbers only must not see
    others (the value says so already)."""
    return xp.where(nodes > 0, nodes, 1) if f.principal else nodes


def _holds(
    xp: Any, interval: tuple[float, float], alpha: Array, beta: Array, after: Any
) -> tuple[Array, Array]:
    """Whether all Ritz values of each run lie in the interval that is said to hold the
    eigenvalues, and these values."""
    nodes, weights = traced_nodes_and_weights(xp, alpha, beta, after)
    slack = 100 * xp.eps(nodes.dtype) * xp.max(xp.abs(nodes), axis=-1, keepdims=True)
    outside = xp.logical_or(nodes < interval[0] - slack, nodes > interval[1] + slack)
    counts = xp.logical_and(outside, weights > xp.eps(nodes.dtype))
    return xp.logical_not(xp.any(counts, axis=-1)), nodes


# What the runs of `solve_and_logdet` add up to: quadratures from the coefficients of conjugate
# gradients, pooled over blocks of vectors.


class Block(NamedTuple):
    """What one run gives; see `_run`."""

    probes: int
    X: Array
    mean: Array
    Y: Array
    error: Array
    status: Array
    steps: Array
    residual: Array


class Pooled(NamedTuple):
    """What all runs give: log det A, its standard error, whether that is small enough, and how
    they went."""

    probes: int
    value: Array
    error: Array
    met: Any
    status: Array
    steps: Array


def pooled(xp: Any, blocks: list[Block], logarithm: Any, method: SLQ) -> Pooled:
    counts, total = [block.probes for block in blocks], sum(block.probes for block in blocks)
    value = reduce(add, (block.mean * (k / total) for k, block in zip(counts, blocks)))
    error = xp.stop_gradient(blocks[0].error)
    if len(blocks) > 1:  # the squares within blocks, and between them
        still = [xp.stop_gradient(block.mean - value) for block in blocks]
        squares = (
            k * (k - 1) * xp.stop_gradient(b.error) ** 2 + k * d**2
            for k, b, d in zip(counts, blocks, still)
        )
        error = xp.sqrt(reduce(add, squares) / (total * (total - 1)))
    value, met = value + logarithm, True
    if method.tol is not None:
        met = xp.all(
            quantile(method.confidence, max(1, total - 1)) * error
            <= method.tol * xp.abs(xp.stop_gradient(value))
        )
    status, steps = (
        reduce(xp.maximum, (xp.max(x) for x in each))
        for each in zip(*((b.status, b.steps) for b in blocks))
    )
    return Pooled(total, value, error, met, status, steps)


def quadratic_forms(xp: Any, solved: Solved, count: int, traced: bool) -> tuple[Array, Any]:
    """r^H M^1/2 log(M^1/2 A M^1/2) M^1/2 r for each random vector, (*batch, probes), and what
    rows that were not kept may have cost."""
    alpha, beta, length = (x[..., count:] for x in (solved.alpha, solved.beta, solved.length))
    if traced:
        alpha, found, nodes = _decoupled(xp, alpha, beta), [], None
        for j in (max(1, 3 * len(alpha) // 4), len(alpha)):
            nodes, weights = traced_nodes_and_weights(xp, alpha[:j], beta[:j], nodes)
            found.append(length * xp.sum(weights * xp.log(_inside(xp, LOG, nodes)), axis=-1))
        return found[1], xp.mean(found[1] - found[0], axis=-1)
    j = max(1, min(int(solved.steps), alpha.shape[0]))
    a, b = (on_host(xp, x)[:j].reshape(j, -1) for x in (alpha, beta))
    fine = np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)
    a, b = np.where(fine, _decoupled(HOST, a, b), 1.0), np.where(fine, b, 0.0)
    nodes, weights = nodes_and_weights(a, b)
    with np.errstate(all="ignore"):
        means = np.sum(weights * np.log(nodes), axis=-1)
    means = np.where(fine, means, np.nan).reshape(tuple(length.shape))
    return length * xp.asarray(means, dtype=length.dtype, device=xp.device_of(length)), 0.0


def tell(A: Any, found: Pooled, residual: Array, matvecs: Any) -> None:
    """Report on log det A by all runs together, and on the residuals of the solution."""
    xp, steps, message = A.xp, found.steps, ""
    missed = first_failure(xp, (found.met, Status.MAX_ITERATIONS))
    status = combine([missed, xp.astype(found.status, xp.asarray(0).dtype)])
    if isinstance(status, Status):
        steps, matvecs = int(steps), int(matvecs)
        if status is missed is not Status.SUCCESS:
            message = "the confidence interval did not shrink to the tolerance; raise probes or tol"
    shown = xp.stop_gradient(residual) if residual.shape[-1] else None
    counts, names = (steps, matvecs, shown), {"method": "SLQ", "message": message}
    report(Info(status, None, *counts, error=found.error, **names))
