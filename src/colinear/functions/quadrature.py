"""Stochastic Lanczos quadrature: log-determinants and traces of functions of self-adjoint A, with error bars."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, is_array
from ..info import Info, MethodError, Status, recording, report
from ..methods import SLQ
from ..methods.quadrature import combined
from ..methods.sampling import FEWEST, Mean, merged, ratio_to_goal, standard_error
from ..operators.base import LinearOperator
from ..operators.function_of import FunctionOf
from ..properties import SELF_ADJOINT
from ._arrays import is_half, narrow, quiet
from .estimators import is_traced
from .quadrature_run import on_host, quadrature
from .quadrature_starts import one_of_each, prepared
from .quadrature_traced import traced_quadrature
from .scalar_functions import LOG, Scalar, closed_over, refuse_derivative

ROOM = 1 << 24  # numbers in a block of random vectors
IDENTITY = Scalar("trace", lambda xp, x: x, principal=False)


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
    hidden = closed_over(f, A)
    if not hidden:
        return _run(A, method, f, is_traced(A, method.seed))
    zero = refuse_derivative(A, hidden, "SLQ()")  # before the run: there JAX notices that a derivative is asked for
    return zero + _run(A, method, f, is_traced(A, method.seed) or any(map(A.xp.is_traced, hidden)))


def _run(A: LinearOperator, method: SLQ, f: Scalar, traced: bool) -> Array:
    xp, batch = A.xp, A.batch_shape
    real = xp.real_dtype(xp.float32 if is_half(xp, A.dtype) else A.dtype)
    if 0 in A.shape:
        report(Info(error=xp.zeros(batch, dtype=real), matvecs=0, method="SLQ"))
        return xp.zeros(batch, dtype=xp.real_dtype(A.dtype), device=A._context.device)
    leaves = A.arrays()
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

    leaves, told = A.arrays(), []

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
            whole = state._replace(mean=state.mean + on_host(xp, logarithm))
            met = method.tol is not None and bool((ratio_to_goal(host, whole, method.tol, method.confidence, 0) <= 1).all())
            if (met and state.drawn >= min(FEWEST, most)) or status >= Status.BREAKDOWN:
                break
        error = standard_error(host, state.count, state.spread)
    error = np.where(state.count > 1, np.sqrt(error**2 + rest**2), np.inf)
    value = np.where(state.count > 0, state.mean, np.nan) + on_host(xp, logarithm)
    if status is Status.SINGULAR:
        value = np.full(batch, -np.inf if f is LOG else np.inf)
    message = _message(status, method, converged, met)
    if status is Status.SUCCESS and message:
        status = Status.MAX_ITERATIONS
    report(Info(status, error=array(error), matvecs=matvecs, iterations=matvecs // state.drawn, method="SLQ", message=message))
    value = narrow(xp, array(value), A.dtype)
    return (value, *(xp.concat(each, axis=-1) for each in zip(*kept)))


def _message(status: Status, method: SLQ, converged: bool, met: bool) -> str:
    """What went wrong, if anything did."""
    if status is Status.NOT_POSITIVE_DEFINITE:
        return "a Ritz value is negative, where the function is not real"
    if Status.SUCCESS < status < Status.BREAKDOWN:
        return "products with A, which is applied by an iteration, have failed"
    if status is Status.SUCCESS and not converged:
        return "the quadrature has not converged; raise max_iters, or use a preconditioner"
    if status is Status.SUCCESS and method.tol is not None and not met:
        return f"the confidence interval did not shrink to tol = {method.tol:g}; raise probes or tol"
    return ""
