"""The Lanczos runs of stochastic quadrature: where values can be seen, inside a traced program,
and within conjugate gradients."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, get, is_array, program, zeros_like
from ...errors import MethodError
from ...info import recording
from ...methods import SLQ
from ...methods.basis import by_size, put
from ...methods.loop import show
from ...methods.quadrature import (
    Runs,
    advance,
    combined,
    first_column,
    nodes_and_weights,
    relative_tail,
    start,
    step,
    with_node,
)
from ...operators import LinearOperator
from ...operators.autograd import make_ready
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
    if not xp.is_functional:  # whose programs do so each for itself
        A, M = make_ready(A), make_ready(M)
    runs, length = program(xp.name, _begin)(M, R)
    length = on_host(xp, length)
    alphas: list[Any] = []
    betas: list[Any] = []
    column = tail = None
    before = difference = np.full(length.shape, np.inf)
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
        rest, difference = remaining(np, values, before, difference, alive)
        before = values
        if is_settled(np, method, values, rest, eps).all():
            converged = True
            if tail is None or (tail <= math.sqrt(eps)).all():
                break
    return Found(values, rest, status, j, converged, column, tail)


def remaining(xp: Any, values: Any, before: Any, difference: Any, alive: Any) -> tuple[Any, Any]:
    """What is left of each quadrature, the rest of a geometric series by the last two differences;
    and the last one. Before the first look all are infinite."""
    now = abs(values - before)
    ratio = xp.minimum(now / xp.where(difference > 0, difference, 1), SLOWEST)
    rest = xp.where(xp.isfinite(difference), now * ratio / (1 - ratio), now)
    return xp.where((now == 0) | ~alive, 0, rest), now


def is_settled(xp: Any, method: SLQ, values: Any, rest: Any, eps: float) -> Any:
    """Whether what is left is small beside the standard error, or beside the mean."""
    mean = xp.mean(values, axis=-1)
    spread = xp.sqrt(xp.mean((values - mean[..., None]) ** 2, axis=-1) / values.shape[-1])
    share = math.sqrt(eps) if method.tol is None else SHARE * method.tol
    return xp.mean(rest, axis=-1) <= xp.maximum(SHARE * spread, share * abs(mean))


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
    return None if A is None else make_ready(A).__matmul__


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


# Stochastic quadrature inside a traced program, where no value can be seen: JAX looks at the
# quadrature in the loop; for torch.func.vmap the number of steps is fixed.


TRACED_STEPS = 64  # that are made, in torch
MOST_TRACED_STEPS = 160  # of a loop that ends where the quadrature has converged
FIRST_LOOK, TRACED_GROWTH = 8, 1.5  # fewer looks than on the host: one costs as much as many steps


class Looked(NamedTuple):
    """A traced run between two looks."""

    runs: Runs
    alpha: Array  # (most, *batch, k); zero from j on
    beta: Array
    j: Any
    values: Array
    difference: Array
    rest: Array
    column: Array  # f'(T) e_1, (most, *batch, k), if a derivative is asked for
    status: Any
    converged: Any


def traced_quadrature(
    A: Any, M: Any, R: Array, method: SLQ, f: Scalar, logarithm: Any, slope: Any = None
) -> tuple[Array, Array, Array, Array]:
    """tr f(A) from runs that start at the columns of R.

    And R, f'(A) R and how small its last coefficients are, for derivatives, if `slope` is f'.
    """
    xp = A.xp
    runs, length = _begin(xp, M, R)
    of = None if slope is None else lambda nodes: slope(xp, _inside(xp, f, nodes))
    if xp.is_functional and method.quadrature == "gauss":
        s = _until_converged(A, M, runs, length, method, f, of)
        runs, m, value, rest, column = s.runs, s.j, s.values, s.rest, s.column
        unsettled = xp.where(s.converged, int(Status.SUCCESS), int(Status.MAX_ITERATIONS))
        worst = xp.maximum(s.status, unsettled)
    else:
        m = method.max_iters or TRACED_STEPS
        runs, alpha, beta = _advance(xp, m, A, M, runs)
        value, less, nodes, worst = traced_gauss(xp, alpha, beta, length, f, A.shape[-1], method)
        rest, column = value - less, None
        if of is not None:
            column = first_column(xp, _decoupled(xp, alpha, beta), beta, of, nodes)
    k = R.shape[-1]
    mean, error = mean_and_error(xp, value)
    error = xp.sqrt(error**2 + xp.mean(rest, axis=-1) ** 2)
    mean = mean + logarithm
    met = meets(xp, method, mean, error, k)
    report_estimate(xp, method, error, met, m * k, worst, runs.status, iterations=m)
    if of is None:
        return to_result_dtype(xp, mean, A.dtype), R, R, 0 * length
    tail = xp.where(runs.alive, relative_tail(xp, column, m), 0)
    return to_result_dtype(xp, mean, A.dtype), R, combined(xp, A.__matmul__, R, column, m), tail


def _until_converged(
    A: Any, M: Any, runs: Runs, length: Array, method: SLQ, f: Scalar, of: Any
) -> Looked:
    """As many steps as `quadrature` makes, in a program of JAX."""
    xp, eps, multiply, precondition = A.xp, A.xp.eps(length.dtype), _product(A), _product(M)
    most = method.max_iters or MOST_TRACED_STEPS
    empty = zeros_like(xp, length, (most, *length.shape))

    def advanced(s: Looked) -> Looked:
        runs = copy(s.runs)
        alpha = put(xp, s.alpha, s.j, step(xp, multiply, precondition, runs))
        beta = put(xp, s.beta, s.j, runs.beta)
        return s._replace(runs=runs, alpha=alpha, beta=beta, j=s.j + 1)

    def look(s: Looked) -> Looked:
        stop = xp.maximum(FIRST_LOOK, xp.astype(TRACED_GROWTH * s.j, s.j.dtype))
        with recording():
            s = xp.while_loop(lambda t: t.j < xp.minimum(stop, most), advanced, s)
        ended = put(xp, s.beta, s.j - 1, 0 * length)  # T without what comes after it

        def of_leading(size: int) -> tuple:
            a, b = s.alpha[:size], ended[:size]
            values, nodes, worst = gauss(xp, a, b, length, f, A.shape[-1], eps)
            if of is None:
                return values, xp.asarray(worst, dtype=s.status.dtype), empty
            column = first_column(xp, _decoupled(xp, a, b), b, of, nodes)
            column = xp.concat([column, empty[size:]], axis=0)
            return values, xp.asarray(worst, dtype=s.status.dtype), column

        values, worst, column = by_size(xp, s.j, most, of_leading)
        alive, status = s.runs.alive, xp.maximum(s.status, worst)
        rest, difference = remaining(xp, values, s.values, s.difference, alive)
        is_done = is_settled(xp, method, values, rest, eps)
        if of is not None:
            tail = xp.where(alive, relative_tail(xp, column, s.j), 0)
            is_done = is_done & xp.all(tail <= math.sqrt(eps))
        found = {"values": values, "difference": difference, "rest": rest, "column": column}
        return s._replace(**found, status=status, converged=xp.all(is_done))

    def goes_on(s: Looked) -> Any:
        return ~s.converged & (s.j < most) & (s.status < int(Status.BREAKDOWN))

    endless, none = length + math.inf, xp.asarray(0)
    first = Looked(
        runs=runs,
        alpha=empty,
        beta=empty,
        j=none,
        values=endless,
        difference=endless,
        rest=endless,
        column=empty,
        status=none,
        converged=none > 0,
    )
    return xp.while_loop(goes_on, look, first)


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
