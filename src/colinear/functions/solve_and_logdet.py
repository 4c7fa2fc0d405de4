"""A^-1 b and log det A together: from one factorisation, or from one run of conjugate gradients with random vectors beside b."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, is_array
from ..dispatch import Cost, function
from ..info import Info, MethodError, ShapeError, Status, planning, recording, report
from ..methods import CG, SLQ, Auto, Cholesky, Method, fitting
from ..methods.averaging import quantile
from ..methods.cg_quadrature import Solved, cg_quadrature
from ..methods.gauss import nodes_and_weights, traced_nodes_and_weights
from ..operators.base import LinearOperator
from ..operators.context import as_array, broadcast_batches
from ..operators.inverse import Inverse
from ..properties import SELF_ADJOINT
from ._arrays import is_half, narrow, quiet, square_size
from .automatic import iterates
from .determinant import logdet, needs_estimate, slogdet
from .estimators import announce, is_traced
from .inverse import inv
from .iterative import iterated
from .quadrature_starts import prepared
from .solve import solve

ROWS = 1000  # of T that are kept, where they are as many as there were steps
TRACED_ROWS = 128  # and where they cannot be counted


def solution_and_logarithm(A: LinearOperator, b: Any, method: Method | None = None) -> tuple[Array, Array]:
    """x = A^-1 b and log|det A|, as the likelihood of a Gaussian process needs them.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    b : array, (n,) or (*batch, n, k)
    method : Auto, Cholesky or SLQ, optional
        `Auto` shares one factorisation where A has no structure. `SLQ` takes A positive definite: one run of conjugate gradients on b
        and random vectors together gives x, the logarithm with its standard error (`info.error`), and what the gradient needs:
        tr(A^-1 dA) is estimated from the same vectors.

    Returns
    -------
    x : array
        Of the shape of b.
    logdet : array, (*batch,)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> K = co.PSD(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> x, logarithm = co.solve_and_logdet(K, np.array([1.0, 1.0]))
    >>> x.round(12), float(logarithm.round(12)) == round(float(np.log(3.0)), 12)
    (array([0.33333333, 0.33333333]), True)
    """
    square_size("solve_and_logdet", A, "a determinant", "Use lstsq(A, b).")
    chosen = fitting("solve_and_logdet", method, Cholesky, SLQ)
    if isinstance(chosen, Auto) and _estimates(A, chosen):
        chosen = SLQ(tol=chosen.tol)
        announce("solve_and_logdet", A, chosen.name)
    if isinstance(chosen, SLQ):
        return fused(A, b, chosen)
    if inv.find(A).is_base and not planning():
        inverse = inv(A, method)
        if isinstance(inverse, Inverse) and hasattr(inverse.factor, "slogdet"):
            return inverse @ b, -logdet(inverse)
    return solve(A, b, method), logdet(A, method)


def _estimates(A: LinearOperator, method: Any) -> bool:
    """Whether the determinant is out of reach: of the matrix as a whole, and by rules."""
    return needs_estimate(A, method) and slogdet.find(A).is_base


def _choose(A: LinearOperator, b: Any, method: Method | None) -> tuple[str, Cost | None, str]:
    chosen = fitting("solve_and_logdet", method, Cholesky, SLQ)
    if isinstance(chosen, SLQ) or _estimates(A, chosen):
        found = chosen if isinstance(chosen, SLQ) else SLQ()
        return (
            "SLQ",
            Cost(50.0 * found.most * A.flops, 48.0 * found.most * A.shape[-1]),
            "conjugate gradients with random vectors",
        )
    if inv.find(A).is_base and not iterates(A, method):
        inv(A, method)
        return "solution_and_logarithm", None, "both from one factorisation: A has no structure"
    solve(A, b, method), logdet(A, method)
    return "solution_and_logarithm", None, "each by the structure of A"


def _stand_in(A: LinearOperator, b: Any) -> tuple[Array, Array]:
    return b, A.xp.zeros(A.batch_shape, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def _example(A: LinearOperator) -> Array:
    return A.xp.ones((A.shape[-1],), dtype=A.dtype, device=A._context.device)


solve_and_logdet = function(
    "solve_and_logdet", base=solution_and_logarithm, stand_in=_stand_in, choose=_choose, examples={"b": _example}
)


# ---------------------------------------------------------------------------------------------------- one run for all


class Problem(NamedTuple):
    """What is held fixed while A and b vary: the preconditioner, random vectors R, M R, and log det M^-1."""

    M: LinearOperator | None
    R: Array
    C: Array
    logarithm: Any
    method: SLQ
    tol: float
    limit: int


def fused(A: LinearOperator, b: Any, method: SLQ) -> tuple[Array, Array]:
    """x and log det A by one run; differentiable in A and b."""
    b = as_array(b, "solve_and_logdet", xp=A.xp)
    if b.shape[0 if b.ndim == 1 else -2] != A.shape[-1]:
        raise ShapeError(
            f"solve_and_logdet: A is {A.shape[-2]}x{A.shape[-1]} and b is {tuple(b.shape)}; it needs {A.shape[-1]} rows."
        )
    B = b[:, None] if b.ndim == 1 else b
    batch = broadcast_batches(A.batch_shape, B.shape[:-2])
    if batch != A.batch_shape:
        raise ShapeError(f"solve_and_logdet: b has the batch shape {tuple(B.shape[:-2])}, A {A.batch_shape}; A must have it too.")
    xp = A.xp
    B = xp.astype(xp.broadcast_to(B, (*batch, *B.shape[-2:])), xp.result_type(A.dtype, B.dtype))
    X, logarithm = differentiable(A, B, method)
    return X[..., 0] if b.ndim == 1 else X, logarithm


def differentiable_logdet(A: LinearOperator, method: SLQ) -> Array:
    """log det A, whose derivative tr(A^-1 dA) comes from the same random vectors."""
    work = A.xp.float32 if is_half(A.xp, A.dtype) else A.dtype
    B = A.xp.zeros((*A.batch_shape, A.shape[-1], 0), dtype=work, device=A._context.device)
    return differentiable(A, B, method)[1]


def differentiable(A: LinearOperator, B: Array, method: SLQ) -> tuple[Array, Array]:
    """A^-1 B and log det A: d(A^-1 B) = A^-1 (dB - dA X), and d log det A = mean of Re (A^-1 r)^H dA M r."""
    if not A.properties & SELF_ADJOINT:
        raise MethodError("SLQ: for positive definite A, which this is not known to be. Say PSD(A).")
    if method.quadrature != "gauss":
        raise MethodError('SLQ: bounds are for logdet without derivatives; use quadrature="gauss" here.')
    xp, count = A.xp, B.shape[-1]
    fixed = A._map(lambda leaf: xp.stop_gradient(leaf) if is_array(leaf) else leaf)
    M, directions, logarithm = prepared(fixed, method)
    probes = method.probes or 32
    R = directions(xp.fold_in(xp.generator(method.seed), 0), probes)  # as without derivatives
    tol = math.sqrt(xp.eps(R.dtype))
    problem = Problem(M, R, R if M is None else M @ R, logarithm, method, tol, method.max_iters or max(10 * A.shape[-1], 100))
    places = [leaf for leaf in A.leaves() if is_array(leaf)]

    def rebuilt(arrays: Any) -> LinearOperator:
        given = iter(arrays)
        return A._map(lambda leaf: next(given) if is_array(leaf) else leaf)

    def value(*arrays: Array) -> tuple[Array, ...]:
        return _run(rebuilt(arrays[:-1]), arrays[-1], problem)

    def solve_with(arrays: Any, G: Array, x0: Array | None = None) -> Array:
        inverse = iterated(rebuilt(arrays), CG(tol=tol, preconditioner=M, x0=x0, max_iters=problem.limit))
        if xp.name != "jax":
            return inverse @ G  # a failure is warned of where the derivative is computed
        with recording():  # tracers mean nothing outside the rule
            return inverse @ G

    def jvp(primals: Any, tangents: Any, output: Any) -> Any:
        X, Y = output[0], output[2]
        V = xp.concat([X, Y, xp.astype(problem.C, Y.dtype)], axis=-1)
        moved = xp.jvp(lambda arrays: rebuilt(arrays) @ V, tuple(primals[:-1]), tuple(tangents[:-1]))[1]
        right = xp.concat([tangents[-1] - moved[..., :count], -moved[..., count : count + probes]], axis=-1)
        solved = solve_with(primals[:-1], right)
        slope = xp.sum(xp.real(xp.vecdot(Y, moved[..., count + probes :], axis=-2)), axis=-1) / probes
        return solved[..., :count], slope, solved[..., count:], *(0 * x for x in output[3:])

    def vjp(primals: Any, output: Any, cotangents: Any) -> Any:
        X, Y = output[0], output[2]
        G = xp.concat([cotangents[0], cotangents[2]], axis=-1)
        S = solve_with(primals[:-1], G, _guess(xp, primals[-1], X, G))
        slope = (cotangents[1] / probes)[..., None, None]
        pulled = xp.concat([-S, xp.astype(slope, Y.dtype) * Y], axis=-1)
        V = xp.concat([X, Y, xp.astype(problem.C, Y.dtype)], axis=-1)
        return *xp.vjp(lambda arrays: rebuilt(arrays) @ V, tuple(primals[:-1]))[1](pulled), S[..., :count]

    run = value if xp.name == "numpy" else xp.custom_derivative(value, jvp=jvp, vjp=vjp)
    X, logarithms, _, error, status, steps, residual = run(*places, B)
    _tell(A, method, logarithms, error, status, steps, residual[..., :count], count + probes)
    return narrow(xp, X, A.dtype), narrow(xp, logarithms, A.dtype)


def _guess(xp: Any, B: Array, X: Array, G: Array) -> Array:
    """Where to start the adjoint solve: of the cotangent of b^H A^-1 b, which is b, the solution is there already."""
    if B.shape[-1] != 1:
        return 0 * G
    size = xp.sum(xp.abs(B) ** 2, axis=-2, keepdims=True)
    along = xp.sum(xp.conj(B) * G, axis=-2, keepdims=True) / xp.where(size > 0, xp.astype(size, G.dtype), 1)
    return xp.stop_gradient(X * along)


def _run(A: LinearOperator, B: Array, problem: Problem) -> tuple[Array, ...]:
    """X, log det A, A^-1 R, the standard error, and (as numbers without derivatives) the statuses, steps and residuals."""
    xp, method = A.xp, problem.method
    traced = is_traced(A, method.seed) or xp.is_traced(B) or xp.is_traced(problem.R)
    rows = min(problem.limit, TRACED_ROWS if traced else ROWS)
    count = B.shape[-1]
    together = xp.concat([xp.astype(B, xp.result_type(B.dtype, problem.R.dtype)), xp.astype(problem.R, B.dtype)], axis=-1)
    with quiet(xp):
        solved: Solved = _program(xp.name, problem.tol, problem.limit, rows)(A, problem.M, together)
        forms, rest = _forms(xp, solved, count, traced)
    good = xp.logical_and(xp.isfinite(forms), solved.status[..., count:] < int(Status.BREAKDOWN))
    used = xp.sum(xp.astype(good, forms.dtype), axis=-1)
    mean = xp.sum(xp.where(good, forms, 0), axis=-1) / xp.where(used > 0, used, math.nan)
    spread = xp.sum(xp.where(good, (forms - mean[..., None]) ** 2, 0), axis=-1)
    error = xp.sqrt(spread / xp.where(used > 1, used * (used - 1), 1) + rest**2) + xp.where(used > 1, 0, math.inf)
    real = forms.dtype
    numbers = (xp.astype(solved.status, real), 0 * used + solved.steps, solved.residual)
    return solved.X[..., :count], mean + problem.logarithm, solved.X[..., count:], error, *numbers


@functools.lru_cache(maxsize=64)
def _program(name: str, tol: float, limit: int, rows: int) -> Any:
    """The run as a function of operators and arrays alone: compiled by JAX once for each structure and shape."""
    xp = backends.get(name)

    def run(A: LinearOperator, M: LinearOperator | None, B: Array) -> Solved:
        apply = None if M is None else M.__matmul__
        with recording():
            return cg_quadrature(xp, A.__matmul__, apply, B, tol=tol, max_iters=limit, rows=rows)

    return xp.jit(run)


def _forms(xp: Any, solved: Solved, count: int, traced: bool) -> tuple[Array, Any]:
    """r^H M^1/2 log(M^1/2 A M^1/2) M^1/2 r for each random vector, (*batch, probes), and what rows that were not kept may have cost."""
    alpha, beta, length = solved.alpha[..., count:], solved.beta[..., count:], solved.length[..., count:]
    if traced:
        ended = xp.cumsum(xp.astype(beta == 0, beta.dtype), axis=0) - xp.astype(beta == 0, beta.dtype) > 0
        alpha, found = xp.where(ended, alpha[:1], alpha), []
        for j in (3 * len(alpha) // 4, len(alpha)):
            nodes, weights = traced_nodes_and_weights(xp, alpha[: max(1, j)], beta[: max(1, j)])
            found.append(length * xp.sum(weights * xp.log(xp.where(nodes > 0, nodes, 1)), axis=-1))
        return found[1], xp.mean(found[1] - found[0], axis=-1)
    j = max(1, min(int(solved.steps), alpha.shape[0]))
    a, b = (np.asarray(xp.to_numpy(x), float)[:j].reshape(j, -1) for x in (alpha, beta))
    ended = np.cumsum(b == 0, axis=0) - (b == 0) > 0
    fine = np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)
    nodes, weights = nodes_and_weights(np.where(fine, np.where(ended, a[0], a), 1.0), np.where(fine, b, 0.0))
    with np.errstate(all="ignore"):
        means = np.sum(weights * np.log(nodes), axis=-1)
    means = np.where(fine, means, np.nan).reshape(tuple(length.shape))
    return length * xp.asarray(means, dtype=length.dtype, device=xp.device_of(length)), 0.0


def _tell(A: Any, method: SLQ, value: Array, error: Array, status: Array, steps: Any, residual: Array, columns: int) -> None:
    xp = A.xp
    worst: Any = xp.max(status)
    met: Any = True
    if method.tol is not None:
        met = xp.all(quantile(method.confidence, (method.probes or 32) - 1 or 1) * error <= method.tol * xp.abs(value))
    count = xp.max(steps)
    if xp.is_traced(worst):
        worst = xp.where(met, worst, xp.maximum(worst, int(Status.MAX_ITERATIONS) + 0 * worst))
        worst = xp.astype(worst, xp.asarray(0).dtype)
    else:
        worst = Status(int(worst))
        count = int(count)
        if not bool(met):
            worst = max(worst, Status.MAX_ITERATIONS)
    stop = xp.stop_gradient
    shown = stop(residual) if residual.shape[-1] else None
    report(Info(worst, error=stop(error), iterations=count, matvecs=count * columns, residual=shown, method="SLQ"))
