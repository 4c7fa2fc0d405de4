"""Stochastic Lanczos quadrature: log-determinants and traces of functions of self-adjoint A,
their derivatives and error bars."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, is_array
from ...errors import DerivativeWarning, MethodError
from ...factors.function import FunctionOf
from ...factors.inverse import Inverse
from ...factors.iterated import one_of_each
from ...info import Info, recording, report
from ...methods import SLQ
from ...methods.quadrature import combined
from ...methods.sampling import (
    DEFAULT_PROBES,
    FEWEST,
    MOST_PROBES,
    Mean,
    averaged,
    draw,
    standard_error,
)
from ...operators import Diagonal, LinearOperator, LowRank, Sum
from ...operators.autograd_products import directional, pullback
from ...operators.sparse_algebra import DIAGONAL
from ...preconditioners import as_preconditioner
from ...properties import SELF_ADJOINT
from ...status import Status, combine, deliver, failed
from ..common import filled, ignore_float_errors, in_context, report_all, to_result_dtype
from ..matrix_functions.spectra import LOG, Scalar, closed_over, refuse_derivative
from .estimators import computing_dtype, is_traced, missed_tolerance
from .quadrature_run import HOST, on_host, quadrature, traced_quadrature

ROOM = 1 << 24  # numbers in a block of random vectors
IDENTITY = Scalar("trace", lambda xp, x: x, principal=False)


# --------------------------------------------------------------------------------------------------


def function_inside(A: LinearOperator) -> Any:
    """The function f, a `Scalar`, if the operator is f(B) of a self-adjoint B known by products;
    else None."""
    if isinstance(A, FunctionOf) and A.A.properties & SELF_ADJOINT:
        return getattr(A.evaluate, "f", None)
    return None


def trace_by_quadrature(A: LinearOperator, method: SLQ) -> Array:
    """tr A for self-adjoint A; of f(B), by quadrature in B."""
    f = function_inside(A)
    if method.quadrature != "gauss" or method.preconditioner is not None:
        raise MethodError(
            "trace: SLQ's bounds and preconditioners are for logdet alone. Use SLQ() without them."
        )
    B = A.A if f is not None else A  # type: ignore[attr-defined]
    if not B.properties & SELF_ADJOINT:
        raise MethodError(
            "trace: SLQ is for self-adjoint A, which this is not known to be. Say SelfAdjoint(A), "
            "or use XTrace()."
        )
    return A.xp.astype(run(B, method, f or IDENTITY), A.dtype)


def logarithm_by_quadrature(A: LinearOperator, method: SLQ) -> Array:
    """log det A for positive definite A."""
    if not A.properties & SELF_ADJOINT:
        raise MethodError(
            "slogdet: SLQ is for positive definite A, which this is not known to be. Say PSD(A), "
            "use logdet(A.H @ A, SLQ()) / 2 for log|det A| of any other, or LU()."
        )
    return run(A, method, LOG)


# --------------------------------------------------------------------------------------------------


def run(A: LinearOperator, method: SLQ, f: Scalar) -> Array:
    """tr f(A) as the mean over random vectors in blocks; reports how it went."""
    hidden = closed_over(f, A)
    if not hidden:
        return _run(A, method, f, is_traced(A, method.seed))
    # before the run: there JAX notices that a derivative is asked for
    zero = refuse_derivative(A, hidden, "SLQ()")
    return zero + _run(A, method, f, is_traced(A, method.seed) or any(map(A.xp.is_traced, hidden)))


def _run(A: LinearOperator, method: SLQ, f: Scalar, traced: bool) -> Array:
    xp, batch = A.xp, A.batch_shape
    if 0 in A.shape:
        report(Info(error=filled(A, 0.0, *batch), matvecs=0, method="SLQ"))
        return filled(A, 0.0, *batch)
    leaves = A.arrays()
    is_recorded = xp.is_differentiated(*leaves)
    if f is LOG and method.quadrature == "gauss" and (traced or is_recorded):
        from .solve_and_logdet import differentiable_logdet

        # under jit a derivative may yet be asked for: it is what takes most of the time
        is_later = method.preconditioner is None and not is_array(method.seed)
        if not (xp.is_functional and is_later) or _is_recorded_now(A):
            return differentiable_logdet(A, method)
        value = _mean(A.detach(), method, f, traced)[0]
        return _differentiable_later(A, value, lambda A: differentiable_logdet(A, method))
    if not is_recorded:
        return _mean(A, method, f, traced)[0]
    if method.quadrature != "gauss":
        bound = _mean(A.detach(), method, f, traced)[0]
        what, instead = "logdet: a bound by SLQ", 'quadrature="gauss", or Cholesky()'
        return autodiff.refused(xp, bound, leaves, what, instead)
    return _differentiable_trace(A, *_mean(A.detach(), method, f, traced, slope_of(f)))


def _mean(
    A: LinearOperator, method: SLQ, f: Scalar, traced: bool, slope: Any = None
) -> tuple[Any, ...]:
    """tr f(A); and for its derivative, if `slope` is f', the random vectors R, f'(A) R and how
    small its last coefficients are."""
    xp, n, batch, most = A.xp, A.shape[-1], A.batch_shape, method.most
    M, directions, logarithm = prepared(A, method)
    gen = xp.generator(method.seed)
    if traced:
        R = directions(
            xp.fold_in(gen, 0), min(most, MOST_PROBES if method.probes else DEFAULT_PROBES)
        )
        R = R if xp.is_functional or xp.is_traced(R) else one_of_each(xp, A, R)
        return traced_quadrature(A, M, R, method, f, logarithm, slope)
    width = max(1, min(most, ROOM // (n * math.prod(batch))))
    if method.tol is not None:
        width = min(width, FEWEST * 2)
    real = xp.real_dtype(computing_dtype(A))
    array = functools.partial(xp.asarray, dtype=real, device=A._context.device)
    zero = np.zeros(batch)
    known, rest, runs, kept = on_host(xp, logarithm), zero, [], []

    def sample(block: int, k: int) -> tuple[Any, Any, int]:
        nonlocal rest
        R = directions(xp.fold_in(gen, block), k)
        found = quadrature(A, M, R, method, f, slope)
        if slope is not None:
            kept.append((R, combined(xp, A.__matmul__, R, array(found.column)), array(found.tail)))
        rest = np.maximum(rest, np.abs(np.mean(found.rest, axis=-1)))
        runs.append(found)
        return found.values + np.expand_dims(known, -1), np.isfinite(found.values), found.status

    with ignore_float_errors(xp), np.errstate(all="ignore"):
        state, met = averaged(
            HOST,
            sample,
            Mean(zero, zero, zero, 0, 0, 0),
            most=most,
            width=width,
            event=0,
            tol=method.tol,
            confidence=method.confidence,
            reach=math.inf,
            traced=False,
        )
        error = standard_error(HOST, state.count, state.spread)
    error = np.where(state.count > 1, np.sqrt(error**2 + rest**2), np.inf)
    value, status = np.where(state.count > 0, state.mean, np.nan), Status(state.status)
    matvecs = sum(found.values.shape[-1] * found.steps for found in runs)
    if status is Status.SINGULAR:
        value = np.full(batch, -np.inf if f is LOG else np.inf)
    message = ""
    if status is Status.NOT_POSITIVE_DEFINITE:
        message = "a Ritz value is negative, where the function is not real"
    elif Status.SUCCESS < status < Status.BREAKDOWN:
        message = "products with A, which is applied by an iteration, have failed"
    elif status is Status.SUCCESS and not all(found.converged for found in runs):
        message = "the quadrature has not converged; raise max_iters, or use a preconditioner"
    elif status is Status.SUCCESS and not met:
        message = missed_tolerance(method)
    if status is Status.SUCCESS and message:
        status = Status.MAX_ITERATIONS
    details: Any = {"iterations": matvecs // state.drawn, "method": "SLQ", "message": message}
    report(Info(status, error=array(error), matvecs=matvecs, **details))
    value = to_result_dtype(xp, array(value), A.dtype)
    return (value, *(xp.concat(each, axis=-1) for each in zip(*kept)))


# Derivatives of traces by stochastic quadrature: d tr f(A) = tr(f'(A) dA), from the random vectors
# that gave the trace.
#
# With E[z z^H] = I the mean of Re (f'(A) z)^H dA z is unbiased, and f'(A) z ≈ |z| V f'(T) e_1 is a
# combination of the vectors of the Lanczos run from z, whose T is known from the value. No basis
# is kept: the run is made once more and its vectors are added up as they come.


LOOSE = (
    "trace: SLQ's run is too short for this derivative: f'(A) z has not converged. Raise max_iters."
)


def slope_of(f: Scalar) -> Any:
    """f' as a function `(xp, x)` of real numbers, by the framework's own derivative."""

    def slope(xp: Any, x: Array) -> Array:
        return xp.jvp(lambda y: f.of(xp, y), x, 1 + 0 * x)[1]

    return slope


def _differentiable_trace(
    A: LinearOperator, value: Array, Z: Array, Y: Array, tail: Array
) -> Array:
    """tr f(A), which is `value`, with its derivative, from random vectors Z and Y = f'(A) Z, where
    `tail` says how small the last coefficients of f'(A) z are, relative to all of them.

    Derivatives of second order are refused.
    """
    xp = A.xp

    def hold(Y: Array, arrays: Any, tail: Array) -> Array:
        xp.warn_later(xp.any(tail > math.sqrt(xp.eps(Z.dtype))), LOOSE, category=DerivativeWarning)
        what = "trace: the first derivative by SLQ"
        return autodiff.refused(xp, Y, arrays, what, "Eigh(), or logdet(A, SLQ())")

    return with_slope(A, value, Y, Z, hold, tail)


def _is_recorded_now(A: LinearOperator) -> bool:
    """Whether JAX records derivatives already, rather than trace a program that may be differentiated
    when it is done."""
    held = ((x, A.xp.stop_gradient(x)) for x in A.arrays() if A.xp.is_traced(x))
    return any(type(x) is not type(still) for x, still in held)


def _differentiable_later(A: LinearOperator, value: Array, f: Any) -> Array:
    """`value`, whose derivative is that of f(A), which runs where one is asked for; for JAX."""
    xp = A.xp

    def push(primals: tuple, tangents: tuple, output: Array) -> Array:
        def again(arrays: tuple) -> Array:
            with recording() as reports:
                found = f(A.with_arrays(arrays))
            status = combine([info._status for info in reports])
            message = "This was a run for a derivative."
            info = Info(status, function="logdet", method="SLQ", message=message)
            return deliver(info, "warn", found)

        return xp.jvp(again, tuple(primals[1:]), tuple(tangents[1:]))[1]

    later = xp.custom_derivative(lambda value, *_: value + 0, jvp=push)
    return later(value, *A.arrays())


def with_slope(
    A: LinearOperator,
    value: Array,
    Y: Array,
    V: Array,
    hold: Callable[..., Array] = lambda Y, arrays: Y,
    *more: Array,
) -> Array:
    """`value`, whose derivative is the mean of Re y^H dA v over the columns y of Y and v of V.

    `hold(Y, arrays, *more)` is Y as the derivative takes it.
    """
    xp, count = A.xp, 3 + len(more)

    def push(primals: tuple, tangents: tuple, output: Array) -> Array:
        _, Y, V, *others = primals
        more, arrays = others[: count - 3], others[count - 3 :]
        moved = directional(A.with_arrays(arrays), lambda A: A @ V, tangents[count:])[1]
        slopes = xp.real(xp.vecdot(hold(Y, arrays, *more), moved, axis=-2))
        return xp.astype(xp.mean(slopes, axis=-1), output.dtype)

    def pull(primals: tuple, output: Array, g: Array) -> tuple:
        _, Y, V, *others = primals
        more, arrays = others[: count - 3], others[count - 3 :]
        share = xp.astype(xp.real(g) / Y.shape[-1], Y.dtype)[..., None, None]
        pulled = pullback(A.with_arrays(arrays), lambda A: A @ V, share * hold(Y, arrays, *more))
        return *(None,) * count, *pulled

    slope = xp.custom_derivative(lambda value, *_: value + 0, jvp=push, vjp=pull)
    return slope(value, Y, V, *more, *A.arrays())


# Where the runs of stochastic quadrature start: random vectors, for a preconditioner M = P^-1 of
# the distribution of P^1/2 w.


def sampled(
    A: LinearOperator, M: LinearOperator
) -> tuple[Callable[[Any, tuple[int, ...]], Array], Array]:
    """For M = P^-1: a function that draws vectors P^1/2 w, w standard normal, and log det P."""
    xp = A.xp
    dtype = computing_dtype(A)
    normal = functools.partial(xp.normal, dtype=dtype, device=A._context.device)
    if isinstance(M, Diagonal):
        root = xp.sqrt(1 / xp.real(M.d))
        return lambda gen, shape: root[..., :, None] * normal(gen, shape), -determinant.logdet(M)
    P = M.A if isinstance(M, Inverse) else None
    terms = P.operands if isinstance(P, Sum) else ()
    low = [t for t in terms if isinstance(t, LowRank) and t.V is None and t.core is None]
    flat = [t for t in terms if isinstance(t, DIAGONAL)]
    if P is None or len(low) != 1 or len(flat) != 1 or len(terms) != 2:
        raise MethodError(
            f"SLQ: the preconditioner {type(M).__name__} has no known determinant. Use Jacobi(), "
            "RPCholesky(rank), PivotedCholesky(rank) or Nystrom(rank)."
        )
    root, U = xp.sqrt(xp.real(diagonal.diag(in_context(flat[0], A)))), xp.astype(low[0].U, dtype)

    def drawn(gen: Any, shape: tuple[int, ...]) -> Array:
        inner = (*shape[:-2], U.shape[-1], shape[-1])
        first, second = xp.fold_in(gen, 0), xp.fold_in(gen, 1)
        return xp.matmul(U, normal(first, inner)) + root[..., :, None] * normal(second, shape)

    return drawn, -determinant.logdet(M)


def prepared(
    A: LinearOperator, method: SLQ
) -> tuple[LinearOperator | None, Callable[[Any, int], Array], Any]:
    """The preconditioner M, a function that draws so many start vectors, and log det M^-1."""
    xp, device, shape = A.xp, A._context.device, (*A.batch_shape, A.shape[-1])
    if method.preconditioner is None:
        work, kind = computing_dtype(A), method.distribution
        plain = lambda gen, k: draw(xp, gen, kind, (*shape, k), work, device)
        return None, plain, 0.0
    M = as_preconditioner(method.preconditioner, A)
    assert M is not None
    with recording() as reports:
        make, logarithm = sampled(A, M)
    report_all([info for info in reports if failed(info._status) is not False])

    def directions(gen: Any, k: int) -> Array:
        # Uniform directions: the length of w tells nothing, and would add to the variance.
        R = make(gen, (*shape, k))
        length = xp.sqrt(xp.real(xp.vecdot(R, M @ R, axis=-2)))
        return R * xp.astype(math.sqrt(shape[-1]) / length, R.dtype)[..., None, :]

    return M, directions, logarithm


# These ask for quadrature.
from .. import determinant, diagonal
