"""Stochastic Lanczos quadrature: log-determinants and traces of functions of self-adjoint A, with error bars."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, is_array
from ..info import Info, MethodError, Status, recording, report
from ..methods import SLQ
from ..methods.averaging import FEWEST, Mean, merged, ratio_to_goal, standard_error
from ..methods.gauss import first_column, nodes_and_weights, relative_tail, with_node
from ..methods.slq import Runs, advance, combined, start
from ..operators.base import LinearOperator
from ..operators.function_of import FunctionOf
from ..properties import SELF_ADJOINT
from ._arrays import is_half, narrow, quiet
from .estimators import is_traced
from .quadrature_starts import one_of_each, prepared
from .quadrature_traced import traced_quadrature
from .scalar_functions import LOG, Scalar

STEPS = 500  # of Lanczos, unless told
LOOK = 4  # steps between two looks at least
GROWTH = 1.25  # and the ratio of the places of two looks
SHARE = 0.05  # of the standard error that the quadrature may add
SLOWEST = 0.98  # ratio of two differences from which convergence is no longer believed
ROOM = 1 << 24  # numbers in a block of random vectors
IDENTITY = Scalar("trace", lambda xp, x: x, principal=False)


class Found(NamedTuple):
    """Estimates of z^H f(A) z, one for each random vector, on the host: what they are, how far they are off, and what went wrong."""

    values: Any  # (*batch, k)
    rest: Any  # of the quadrature, estimated
    status: Status
    steps: int
    converged: bool
    column: Any = None  # f'(T) e_1, (steps, *batch, k), if a derivative is asked for
    tail: Any = None


# ---------------------------------------------------------------------------------------------------- what is asked


def function_inside(A: LinearOperator) -> Any:
    """The function f, a `Scalar`, if the operator is f(B) of a self-adjoint B known by products; else None."""
    if isinstance(A, FunctionOf) and isinstance(A.evaluate, functools.partial) and A.A.properties & SELF_ADJOINT:
        return A.evaluate.args[0]
    return None


def trace_by_quadrature(A: LinearOperator, method: SLQ) -> Array:
    """tr A for self-adjoint A; of f(B), by quadrature in B."""
    f = function_inside(A)
    if method.quadrature != "gauss" or method.preconditioner is not None:
        raise MethodError("trace: SLQ's bounds and preconditioners are for logdet alone. Use SLQ() without them.")
    B = A.A if f is not None else A  # type: ignore[attr-defined]
    if not B.properties & SELF_ADJOINT:
        raise MethodError("trace: SLQ is for self-adjoint A, which this is not known to be. Say SelfAdjoint(A), or use XTrace().")
    return A.xp.astype(run(B, method, f or IDENTITY), A.dtype)


def logarithm_by_quadrature(A: LinearOperator, method: SLQ) -> Array:
    """log det A for positive definite A."""
    if not A.properties & SELF_ADJOINT:
        raise MethodError(
            "slogdet: SLQ is for positive definite A, which this is not known to be. Say PSD(A), use logdet(A.H @ A, SLQ()) / 2 for "
            "log|det A| of any other, or LU()."
        )
    return run(A, method, LOG)


# ---------------------------------------------------------------------------------------------------- the run


def run(A: LinearOperator, method: SLQ, f: Scalar) -> Array:
    """tr f(A) as the mean over random vectors in blocks; reports how it went."""
    xp, batch = A.xp, A.batch_shape
    real = xp.real_dtype(xp.float32 if is_half(xp, A.dtype) else A.dtype)
    if 0 in A.shape:
        report(Info(error=xp.zeros(batch, dtype=real), matvecs=0, method="SLQ"))
        return xp.zeros(batch, dtype=xp.real_dtype(A.dtype), device=A._context.device)
    traced = is_traced(A, method.seed)
    leaves = [leaf for leaf in A.leaves() if is_array(leaf)]
    if f is LOG and method.quadrature == "gauss" and xp.name != "numpy" and (traced or xp.is_differentiated(*leaves)):
        from .solve_and_logdet import differentiable_logdet

        return differentiable_logdet(A, method)
    if xp.name == "numpy" or not xp.is_differentiated(*leaves):
        return _mean(A, method, f, traced)[0]
    if method.quadrature != "gauss":
        return _refusing(A, method, f, traced)
    from .quadrature_derivatives import differentiable_trace, slope_of

    return differentiable_trace(A, method, lambda A: _mean(A, method, f, traced, slope_of(f)))


def _refusing(A: LinearOperator, method: SLQ, f: Scalar, traced: bool) -> Array:
    """A value without derivatives: asking for them is an error, and no silent zero."""
    xp = A.xp

    def no_derivative(primals: Any, tangents: Any, output: Any) -> Any:
        raise NotImplementedError('SLQ: bounds have no derivatives; logdet has, with quadrature="gauss".')

    leaves, told = [leaf for leaf in A.leaves() if is_array(leaf)], []

    def value(*arrays: Array) -> tuple[Array, ...]:
        given = iter(arrays)
        with recording() as reports:  # what is traced inside comes out as a value, or not at all
            found = _mean(A._map(lambda leaf: next(given) if is_array(leaf) else leaf), method, f, traced)[0]
        info = reports[-1]
        told.append(info.replace(status=0, converged=True, error=None))
        status = info._status if is_array(info._status) else xp.asarray(int(info._status), device=A._context.device)
        return found, info.error, xp.astype(status, info.error.dtype)

    found, error, status = xp.custom_derivative(value, jvp=no_derivative)(*leaves)
    worst: Any = xp.astype(status, xp.asarray(0).dtype) if xp.is_traced(status) else Status(int(status))
    report(told[-1].replace(status=worst, converged=worst < int(Status.STOPPED), error=xp.stop_gradient(error)))
    return found


def _mean(A: LinearOperator, method: SLQ, f: Scalar, traced: bool, slope: Any = None) -> tuple[Any, ...]:
    """tr f(A); and for its derivative, if `slope` is f', the random vectors R, f'(A) R and how small its last coefficients are."""
    xp, n, batch, most = A.xp, A.shape[-1], A.batch_shape, method.most
    M, directions, logarithm = prepared(A, method)
    gen = xp.generator(method.seed)
    if traced:
        R = one_of_each(A, directions(xp.fold_in(gen, 0), min(most, 10_000 if method.probes else 32)))
        return traced_quadrature(A, M, R, method, f, logarithm, slope)
    width = max(1, min(most, ROOM // (n * math.prod(batch)), FEWEST * 2 if method.tol is not None else most))
    host, real = backends.get("numpy"), xp.real_dtype(xp.float32 if is_half(xp, A.dtype) else A.dtype)
    array = functools.partial(xp.asarray, dtype=real, device=A._context.device)
    state = Mean(np.zeros(batch), np.zeros(batch), np.zeros(batch), 0, 0, 0)
    rest, status, matvecs, converged, met = np.zeros(batch), Status.SUCCESS, 0, True, False
    kept: list[tuple[Any, ...]] = []
    with quiet(xp), np.errstate(all="ignore"):
        while state.drawn < most:
            k = min(width, most - state.drawn)
            R = directions(xp.fold_in(gen, state.block), k)
            found = quadrature(A, M, R, method, f, slope)
            if slope is not None:
                kept.append((R, combined(xp, A.__matmul__, R, array(found.column)), array(found.tail)))
            state = merged(host, state, found.values, np.isfinite(found.values), int(found.status), 0)
            rest = np.maximum(rest, np.abs(np.mean(found.rest, axis=-1)))
            status, converged = max(status, found.status), converged and found.converged
            matvecs += k * found.steps
            whole = state._replace(mean=state.mean + _seen(xp, logarithm))
            met = method.tol is not None and bool((ratio_to_goal(host, whole, method.tol, method.confidence, 0) <= 1).all())
            if (met and state.drawn >= min(FEWEST, most)) or status >= Status.BREAKDOWN:
                break
        error = standard_error(host, state.count, state.spread)
    error = np.where(state.count > 1, np.sqrt(error**2 + rest**2), np.inf)
    value = np.where(state.count > 0, state.mean, np.nan) + _seen(xp, logarithm)
    if status is Status.SINGULAR:
        value = np.full(batch, -np.inf if f is LOG else np.inf)
    if status is Status.SUCCESS and (not converged or (method.tol is not None and not met)):
        status = Status.MAX_ITERATIONS
    message = _message(status, method, converged)
    report(Info(status, error=array(error), matvecs=matvecs, iterations=matvecs // state.drawn, method="SLQ", message=message))
    value = narrow(xp, array(value), A.dtype)
    return (value, *(xp.concat(each, axis=-1) for each in zip(*kept)))


def _seen(xp: Any, x: Any) -> Any:
    return x if not is_array(x) else np.asarray(xp.to_numpy(x), dtype=float)


def _message(status: Status, method: SLQ, converged: bool) -> str:
    if status is Status.NOT_POSITIVE_DEFINITE:
        return "a Ritz value is negative, where the function is not real"
    if status is Status.MAX_ITERATIONS:
        if not converged:
            return "the quadrature has not converged; raise max_iters, or use a preconditioner"
        return f"the confidence interval did not shrink to tol = {method.tol:g}; raise probes or tol"
    return ""


def quadrature(A: LinearOperator, M: LinearOperator | None, R: Array, method: SLQ, f: Scalar, slope: Any = None) -> Found:
    """z^H f(A) z for each column of R, in steps until the differences between looks say that it has converged.

    With `slope`, that is f', also until f'(A) z has: that takes about twice as many.
    """
    xp, n = A.xp, A.shape[-1]
    limit = method.max_iters or STEPS
    program = _program(xp.name)
    runs, length = program.start(M, R)
    lengths = _seen(xp, length)
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
        alphas.append(_seen(xp, alpha).reshape(steps, -1))
        betas.append(_seen(xp, beta).reshape(steps, -1))
        j += steps
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
        return None if A is None else A.__matmul__

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
