"""Stochastic Lanczos quadrature: log-determinants and traces of functions of self-adjoint A, with error bars."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, is_array
from ..info import Info, MethodError, Status, failed, recording, report
from ..methods import SLQ
from ..methods.averaging import FEWEST, Mean, merged, ratio_to_goal, standard_error
from ..methods.gauss import nodes_and_weights, traced_nodes_and_weights, with_node
from ..methods.probes import draw
from ..methods.slq import Runs, advance, start
from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..operators.function_of import FunctionOf
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.sum import Sum
from ..properties import SELF_ADJOINT
from ._factorise import is_half, narrow, quiet
from ._values import place
from .estimators import is_traced
from .scalar_functions import LOG, Scalar

STEPS = 500  # of Lanczos, unless told
TRACED_STEPS = 64  # where values cannot be seen, and the run cannot end early
LOOK = 8  # steps between two looks at least
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


# ---------------------------------------------------------------------------------------------------- preconditioners


def sampled(A: LinearOperator, M: LinearOperator) -> tuple[Callable[[Any, tuple[int, ...]], Array], Array]:
    """For M = P^-1: a function that draws vectors P^1/2 w, w standard normal, and log det P."""
    from .determinant import logdet

    xp, device = A.xp, A._context.device
    if isinstance(M, Diagonal):
        root = xp.sqrt(1 / xp.real(M.d))
        return lambda gen, shape: root[..., :, None] * xp.normal(gen, shape, dtype=A.dtype, device=device), -logdet(M)
    P = M.A if isinstance(M, Inverse) else None
    terms = P.operands if isinstance(P, Sum) else ()
    low = [t for t in terms if isinstance(t, LowRank) and t.V is None and t.core is None]
    flat = [t for t in terms if isinstance(t, (Diagonal, ScaledIdentity, Identity))]
    if P is None or len(low) != 1 or len(flat) != 1 or len(terms) != 2:
        raise MethodError(
            f"SLQ: the preconditioner {type(M).__name__} has no known determinant. Use Jacobi(), PivotedCholesky(rank) or Nystrom(rank)."
        )
    from .diagonal import diag

    root, U = xp.sqrt(xp.real(diag(place(flat[0], A)))), low[0].U

    def drawn(gen: Any, shape: tuple[int, ...]) -> Array:
        inner = (*shape[:-2], U.shape[-1], shape[-1])
        first, second = xp.fold_in(gen, 0), xp.fold_in(gen, 1)
        W = xp.normal(first, inner, dtype=A.dtype, device=device)
        return xp.matmul(U, W) + root[..., :, None] * xp.normal(second, shape, dtype=A.dtype, device=device)

    return drawn, logdet(place(P, A))


def prepared(A: LinearOperator, method: SLQ) -> tuple[LinearOperator | None, Callable[[Any, int], Array], Any]:
    """The preconditioner M, a function that draws so many start vectors, and log det M^-1."""
    from ..preconditioners import as_preconditioner

    xp, device, shape = A.xp, A._context.device, (*A.batch_shape, A.shape[-1])
    work = xp.float32 if is_half(xp, A.dtype) else A.dtype
    if method.preconditioner is None:
        return None, lambda gen, k: draw(xp, gen, method.distribution, (*shape, k), work, device), 0.0
    M = as_preconditioner(method.preconditioner, A)
    assert M is not None
    with recording() as reports:
        make, logarithm = sampled(A, M)
    for info in reports:
        if failed(info._status) is not False:
            report(info)

    def directions(gen: Any, k: int) -> Array:
        # Uniform directions: the length of w tells nothing, and would add to the variance.
        R = make(gen, (*shape, k))
        length = xp.sqrt(xp.real(xp.vecdot(R, M @ R, axis=-2)))
        return R * xp.astype(math.sqrt(shape[-1]) / length, R.dtype)[..., None, :]

    return M, directions, logarithm


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
    if xp.name != "numpy" and xp.is_differentiated(*leaves):
        return _refusing(A, method, f, traced)
    return _mean(A, method, f, traced)


def _refusing(A: LinearOperator, method: SLQ, f: Scalar, traced: bool) -> Array:
    """A value without derivatives: asking for them is an error, and no silent zero."""
    xp = A.xp

    def no_derivative(primals: Any, tangents: Any, output: Any) -> Any:
        raise NotImplementedError("SLQ: traces of f(A) and bounds have no derivatives; logdet has. Use Eigh(), or a smaller A.")

    leaves = [leaf for leaf in A.leaves() if is_array(leaf)]

    def value(*arrays: Array) -> Array:
        given = iter(arrays)
        return _mean(A._map(lambda leaf: next(given) if is_array(leaf) else leaf), method, f, traced)

    return xp.custom_derivative(value, jvp=no_derivative)(*leaves)


def _mean(A: LinearOperator, method: SLQ, f: Scalar, traced: bool) -> Array:
    xp, n, batch, most = A.xp, A.shape[-1], A.batch_shape, method.most
    M, directions, logarithm = prepared(A, method)
    gen = xp.generator(method.seed)
    if traced:
        return _traced(A, M, directions(gen, min(most, 10_000 if method.probes else 32)), method, f, logarithm)
    width = max(1, min(most, ROOM // (n * math.prod(batch)), FEWEST * 2 if method.tol is not None else most))
    host = backends.get("numpy")
    state = Mean(np.zeros(batch), np.zeros(batch), np.zeros(batch), 0, 0, 0)
    rest, status, matvecs, converged, met = np.zeros(batch), Status.SUCCESS, 0, True, False
    with quiet(xp), np.errstate(all="ignore"):
        while state.drawn < most:
            k = min(width, most - state.drawn)
            R = directions(xp.fold_in(gen, state.block), k)
            found = quadrature(A, M, R, method, f)
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
    real = xp.real_dtype(xp.float32 if is_half(xp, A.dtype) else A.dtype)
    array = functools.partial(xp.asarray, dtype=real, device=A._context.device)
    report(Info(status, error=array(error), matvecs=matvecs, iterations=matvecs // state.drawn, method="SLQ", message=message))
    return narrow(xp, array(value), A.dtype)


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


def quadrature(A: LinearOperator, M: LinearOperator | None, R: Array, method: SLQ, f: Scalar) -> Found:
    """z^H f(A) z for each column of R, in steps until the differences between looks say that it has converged."""
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
            break
    return Found(values, rest, status, j, converged)


def _values(xp: Any, a: Any, b: Any, method: SLQ, f: Scalar, eps: float, n: int) -> tuple[Any, Status, Any]:
    """Σ_i w_i f(θ_i) for each run; the worst status of them, and which have failed: f may be real for positive numbers only."""
    ended = np.cumsum(b == 0, axis=0) - (b == 0) > 0  # rows behind the end of a run: decoupled, and of weight zero
    a = np.where(ended, a[0], a)
    if method.interval is not None and method.quadrature != "gauss":
        a, b = with_node(a, b, method.interval[0 if method.quadrature == "lower" else 1])
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


def _traced(A: Any, M: Any, R: Array, method: SLQ, f: Scalar, logarithm: Any) -> Array:
    """The same inside a traced program: a fixed number of steps, and the quadrature of three quarters of them for comparison."""
    xp = A.xp
    m = method.max_iters or TRACED_STEPS
    runs, length = start(xp, R, None if M is None else M.__matmul__)
    runs, alpha, beta = advance(xp, A.__matmul__, None if M is None else M.__matmul__, runs, m)
    ended = xp.cumsum(xp.astype(beta == 0, beta.dtype), axis=0) - xp.astype(beta == 0, beta.dtype) > 0
    alpha = xp.where(ended, alpha[:1], alpha)
    values = []
    for j in (max(1, 3 * m // 4), m):
        nodes, weights = traced_nodes_and_weights(xp, alpha[:j], beta[:j])
        values.append(length * xp.sum(weights * f.of(xp, nodes), axis=-1))
    value, k = values[-1], R.shape[-1]
    mean = xp.mean(value, axis=-1)
    rest = xp.abs(mean - xp.mean(values[0], axis=-1))
    spread = xp.sum((value - mean[..., None]) ** 2, axis=-1)
    error = xp.sqrt(spread / max(1, k * (k - 1)) + rest**2) if k > 1 else spread + math.inf
    status = xp.where(xp.all(xp.isfinite(value)), int(Status.SUCCESS), int(Status.NONFINITE))
    report(Info(status, error=error, matvecs=m * k, iterations=m, method="SLQ"))
    return narrow(xp, mean + logarithm, A.dtype)


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
