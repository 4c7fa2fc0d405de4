"""The Lanczos runs of stochastic quadrature: where values can be seen, inside a traced program,
and within conjugate gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, get, is_array, program
from ...errors import MethodError
from ...info import recording
from ...methods import SLQ
from ...methods.loop import show
from ...methods.quadrature import (
    Runs,
    advance,
    combined,
    first_column,
    nodes_and_weights,
    relative_tail,
    start,
    with_node,
)
from ...operators import LinearOperator
from ...operators.autograd import linearised
from ...status import Status, first_failure
from ..common import to_result_dtype
from ..matrix_functions.spectra import Scalar
from .estimators import mean_and_error, meets, report_estimate

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
    xp, limit, eps = A.xp, method.max_iters or STEPS, A.xp.eps(R.dtype)
    if f.name == "apply":
        f = replace(f, of=partial(_of_user, xp, f))
    runs, length = program(xp.name, _begin)(M, R)
    length = on_host(xp, length)
    alphas: list[Any] = []
    betas: list[Any] = []
    before = difference = column = tail = None
    j, look, status, converged = 0, LOOK, Status.SUCCESS, False
    while j < limit:
        steps = min(LOOK, limit - j)
        runs, alpha, beta = program(xp.name, _advance, steps)(A, M, runs)
        alphas.append(on_host(xp, alpha))
        betas.append(on_host(xp, beta))
        j += steps
        show(partial("step {} of {} at most".format, j, limit))
        alive = np.asarray(xp.to_numpy(runs.alive))
        if j < look and j < limit and alive.any() and np.isfinite(betas[-1]).all():
            continue
        look = max(j + LOOK, int(GROWTH * j))
        a, b = np.concatenate(alphas), np.concatenate(betas)
        values, _, worst = gauss(HOST, a, b, length, f, A.shape[-1], eps, method)
        status = max(status, Status(int(runs.status)), worst)
        if slope is not None:
            column = _column(xp, a, b, f, slope)
            tail = np.where(alive, relative_tail(np, column), 0)
        if status >= Status.BREAKDOWN:
            rest = np.zeros(length.shape)
            break
        if before is None:
            rest = np.where(alive, np.inf, 0)
        else:
            now = rest = np.abs(values - before)
            if difference is not None:  # the rest of a geometric series
                ratio = np.minimum(now / np.where(difference > 0, difference, 1), SLOWEST)
                rest = now * ratio / (1 - ratio)
            rest, difference = np.where((now == 0) | ~alive, 0, rest), now
        before = values
        spread = np.std(values, axis=-1) / math.sqrt(values.shape[-1])
        share = math.sqrt(eps) if method.tol is None else SHARE * method.tol
        goal = np.maximum(SHARE * spread, share * np.abs(np.mean(values, axis=-1)))
        if (np.mean(rest, axis=-1) <= goal).all():
            converged = True
            if tail is None or (tail <= math.sqrt(eps)).all():
                break
    return Found(values, rest, status, j, converged, column, tail)


def _column(xp: Any, a: Any, b: Any, f: Scalar, slope: Any) -> Any:
    """f'(T) e_1 for each run, (steps, *runs)."""

    def of(nodes: Any) -> Any:
        nodes = xp.asarray(_inside(HOST, f, nodes), dtype=xp.float64)
        return np.asarray(xp.to_numpy(slope(xp, nodes)))

    a, b = (np.where(np.isfinite(x), x, y) for x, y in ((a, 1.0), (b, 0.0)))
    return first_column(HOST, _decoupled(HOST, a, b), b, of)


def _of_user(xp: Any, f: Scalar, _: Any, nodes: Any) -> Any:
    """A user's function on the host: it takes the arrays of its own framework."""
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


def gauss(
    xp: Any,
    alpha: Array,
    beta: Array,
    length: Array,
    f: Scalar,
    n: int,
    eps: float,
    method: SLQ | None = None,
    after: Any = None,
) -> tuple[Array, Array, Any]:
    """|z|^2 Σ_i w_i f(θ_i) for each run, NaN where it fails; the nodes θ; and the worst status.

    It is computed on the host, where `xp` is NumPy's, or in a traced program.

    Parameters
    ----------
    alpha, beta : arrays, (steps, *runs)
    length : array, (*runs)
        |z|^2
    f : Scalar
    n, eps
        The size of A, and the rounding of its products.
    method : SLQ, optional
        With the interval of a bound.
    after : array, optional
        Other nodes of the same program, which are computed first.
    """
    good = xp.all(xp.logical_and(xp.isfinite(alpha), xp.isfinite(beta)), axis=0)
    alpha, beta = xp.where(good, _decoupled(xp, alpha, beta), 1), xp.where(good, beta, 0)
    if method is not None and method.interval is not None and method.quadrature != "gauss":
        inside, after = _holds(xp, method.interval, alpha, beta, eps, after)
        good = xp.logical_and(good, inside)  # else it is no bound
        alpha, beta = with_node(xp, alpha, beta, method.interval[method.quadrature != "lower"])
    finite, positive, regular = xp.all(good), True, True
    nodes, weights = nodes_and_weights(xp, alpha, beta, after)
    if f.principal:  # it may be real for positive numbers only
        least = xp.min(xp.where(weights > 1e-30, nodes, math.inf), axis=-1)
        floor = 10 * eps * xp.max(xp.abs(nodes), axis=-1)
        is_positive = least >= -floor * math.sqrt(n)
        good, positive = xp.logical_and(good, is_positive), xp.all(is_positive)
        regular = xp.all(least > floor) if f.pole else True
    numbers = f.of(xp, _inside(xp, f, nodes, int(f.pole)))
    values = length * xp.sum(xp.where(weights > 0, weights * numbers, 0), axis=-1)
    values = xp.where(good, values, math.nan)
    status = first_failure(
        xp,
        (finite, Status.NONFINITE),
        (positive, Status.NOT_POSITIVE_DEFINITE),
        (regular, Status.SINGULAR),
        (xp.all(xp.isfinite(values)), Status.NONFINITE),
    )
    return values, nodes, status


def _holds(
    xp: Any, interval: tuple[float, float], alpha: Array, beta: Array, eps: float, after: Any
) -> tuple[Array, Array]:
    """Whether all Ritz values of each run, which lie between eigenvalues, lie in the interval that
    is said to hold these, and the Ritz values. An error where one is seen to be outside."""
    nodes, weights = nodes_and_weights(xp, alpha, beta, after)
    slack = 100 * eps * xp.max(xp.abs(nodes), axis=-1, keepdims=True)
    outside = xp.logical_or(nodes < interval[0] - slack, nodes > interval[1] + slack)
    outside = xp.logical_and(outside, weights > eps)
    if xp is HOST and outside.any():
        seen = nodes[weights > eps]
        raise ValueError(
            f"SLQ: interval is {interval!r}, and A has eigenvalues outside of it: some from "
            f"{seen.min():.4g} to {seen.max():.4g}. "
            "Give one that holds them all; what it gives is no bound otherwise."
        )
    return xp.logical_not(xp.any(outside, axis=-1)), nodes


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
    runs, length = _begin(xp, M, R)
    runs, alpha, beta = _advance(xp, m, A, M, runs)
    value, less, nodes, worst = traced_gauss(xp, alpha, beta, length, f, A.shape[-1], method)
    k = R.shape[-1]
    mean, error = mean_and_error(xp, value)
    error = xp.sqrt(error**2 + (mean - xp.mean(less, axis=-1)) ** 2)
    mean = mean + logarithm
    met = meets(xp, method, mean, error, k)
    report_estimate(xp, method, error, met, m * k, worst, runs.status, iterations=m)
    if slope is None:
        return to_result_dtype(xp, mean, A.dtype), R, R, 0 * length
    of = lambda nodes: slope(xp, _inside(xp, f, nodes))
    column = first_column(xp, _decoupled(xp, alpha, beta), beta, of, nodes)
    tail = xp.where(runs.alive, relative_tail(xp, column), 0)
    return to_result_dtype(xp, mean, A.dtype), R, combined(xp, A.__matmul__, R, column), tail


def traced_gauss(
    xp: Any, alpha: Array, beta: Array, length: Array, f: Scalar, n: int, method: SLQ | None = None
) -> tuple[Array, Array, Array, Any]:
    """The quadratures by all steps and, for comparison, by three quarters of them; the nodes, and
    the worst status."""
    values, nodes, m = [], None, len(alpha)
    for j in (max(1, 3 * m // 4), m):
        given = alpha[:j], beta[:j], length, f, n, xp.eps(alpha.dtype)
        value, nodes, status = gauss(xp, *given, method, nodes)
        values.append(value)
    return values[1], values[0], nodes, status


def _inside(xp: Any, f: Scalar, nodes: Array, other: float = 1) -> Array:
    """Nodes as f takes them: a function that is real for positive numbers only must see `other`
    ones in the place of others (the status says so already)."""
    return xp.where(nodes > 0, nodes, other) if f.principal else nodes
