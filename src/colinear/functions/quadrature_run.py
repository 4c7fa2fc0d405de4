"""The Lanczos runs of stochastic quadrature where values can be seen: as many steps as it takes, looked at now and then on the host."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, is_array
from ..info import MethodError, Status, recording
from ..methods import SLQ
from ..methods.quadrature import Runs, advance, first_column, nodes_and_weights, relative_tail, start, with_node
from ..operators.autograd import linearised
from ..operators.base import LinearOperator
from .scalar_functions import Scalar

STEPS = 500  # of Lanczos, unless told
LOOK = 4  # steps between two looks at least
GROWTH = 1.25  # and the ratio of the places of two looks
SHARE = 0.05  # of the standard error that the quadrature may add
SLOWEST = 0.98  # ratio of two differences from which convergence is no longer believed


class Found(NamedTuple):
    """Estimates of z^H f(A) z, one for each random vector, on the host: what they are, how far they are off, and what went wrong."""

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


def quadrature(A: LinearOperator, M: LinearOperator | None, R: Array, method: SLQ, f: Scalar, slope: Any = None) -> Found:
    """z^H f(A) z for each column of R, in steps until the differences between looks say that it has converged.

    With `slope`, that is f', also until f'(A) z has: that takes about twice as many.
    """
    xp, n = A.xp, A.shape[-1]
    limit = method.max_iters or STEPS
    program = _program(xp.name)
    runs, length = program.start(M, R)
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
        runs, alpha, beta = program.advance(A, M, runs, steps)
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
            ratio = SLOWEST if difference is None else np.minimum(now / np.where(difference > 0, difference, 1), SLOWEST)
            rest = now * ratio / (1 - ratio) if difference is not None else np.maximum(now, 0)
            rest = np.where((now == 0) | ~alive, 0, rest)
            difference = now
        else:
            rest = np.where(alive, np.inf, 0)
        before = values
        spread = np.std(values, axis=-1) / math.sqrt(max(1, shape[-1])) if shape[-1] > 1 else 0 * values[..., 0]
        mean = np.mean(values, axis=-1)
        goal = np.maximum(SHARE * spread, (math.sqrt(eps) if method.tol is None else SHARE * method.tol) * np.abs(mean))
        if (np.mean(rest, axis=-1) <= goal).all():
            converged = True
            if tail is None or (tail <= math.sqrt(eps)).all():
                break
    return Found(values, rest, status, j, converged, column, tail)


def _column(xp: Any, a: Any, b: Any, f: Scalar, slope: Any) -> Any:
    """f'(T) e_1 for each run, (steps, runs)."""
    ended = np.cumsum(b == 0, axis=0) - (b == 0) > 0

    def of(nodes: Any) -> Any:
        nodes = np.where(nodes > 0, nodes, 1) if f.principal else nodes  # others have failed the status
        return np.asarray(xp.to_numpy(slope(xp, xp.asarray(nodes, dtype=xp.float64))))

    return first_column(np.where(ended, a[0], a), b, of)


def _values(xp: Any, a: Any, b: Any, method: SLQ, f: Scalar, eps: float, n: int) -> tuple[Any, Status, Any]:
    """Σ_i w_i f(θ_i) for each run; the worst status of them, and which have failed: f may be real for positive numbers only."""
    ended = np.cumsum(b == 0, axis=0) - (b == 0) > 0  # rows behind the end of a run: decoupled, and of weight zero
    a = np.where(ended, a[0], a)
    if method.interval is not None and method.quadrature != "gauss":
        _checked_interval(method.interval, a, b, eps)
        a, b = with_node(backends.get("numpy"), a, b, method.interval[0 if method.quadrature == "lower" else 1])
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
    numbers = _of_user(xp, f, nodes) if f.name == "apply" else f.of(backends.get("numpy"), nodes)
    return np.sum(np.where(weights > 0, weights * numbers, 0), axis=-1), status, failing


def _checked_interval(interval: tuple[float, float], a: Any, b: Any, eps: float) -> None:
    """An error if a Ritz value, which lies between eigenvalues, lies outside of the interval that is said to hold them all."""
    nodes, weights = nodes_and_weights(a, b)
    nodes = nodes[weights > eps]
    slack = 100 * eps * np.abs(nodes).max(initial=0)
    if nodes.min(initial=np.inf) < interval[0] - slack or nodes.max(initial=-np.inf) > interval[1] + slack:
        raise ValueError(
            f"SLQ: interval is {interval!r}, and A has eigenvalues outside of it: some from {nodes.min():.4g} to {nodes.max():.4g}. "
            "Give one that holds them all; what it gives is no bound otherwise."
        )


def _of_user(xp: Any, f: Scalar, nodes: Any) -> Any:
    """A user's function is one of the arrays of his framework."""
    found = np.asarray(xp.to_numpy(f.of(xp, xp.asarray(nodes, dtype=xp.default_float()))))
    if np.iscomplexobj(found):
        raise MethodError("trace: SLQ is for functions that are real on the spectrum. Use XTrace().")
    return found


class _Program(NamedTuple):
    start: Any
    advance: Any


@functools.lru_cache(maxsize=3)
def _program(name: str) -> _Program:
    """The two parts of a run as functions of operators and arrays: compiled by JAX once for each structure and shape."""
    xp = backends.get(name)

    def product(A: LinearOperator | None) -> Any:
        return None if A is None else linearised(A).__matmul__

    def begin(M: LinearOperator | None, R: Array) -> Any:
        return start(xp, R, product(M))

    def go_on(A: LinearOperator, M: LinearOperator | None, runs: Runs, steps: int = LOOK) -> Any:
        with recording():
            return advance(xp, product(A), product(M), runs, steps)

    if name != "jax":
        return _Program(begin, go_on)
    programs: dict[int, Any] = {}

    def compiled(A: Any, M: Any, runs: Runs, steps: int) -> Any:
        if steps not in programs:
            programs[steps] = xp.jit(functools.partial(go_on, steps=steps))
        return programs[steps](A, M, runs)

    return _Program(xp.jit(begin), compiled)
