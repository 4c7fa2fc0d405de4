"""A^-1 b and log det A together: from one factorisation, or from one run of conjugate gradients
with random vectors beside b."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

from ...autodiff.implicit import equation
from ...backends import Array, is_array, namespace_of, program
from ...dispatch import Choice, Cost, function
from ...errors import MethodError, ShapeError
from ...factors.inverse import Inverse
from ...factors.iterated import solve_for_derivative
from ...info import Info, recording, report
from ...methods import CG, SLQ, Auto, Cholesky, Method, fitting
from ...methods.quadrature import Solved, cg_quadrature
from ...methods.sampling import DEFAULT_PROBES, quantile
from ...operators import LinearOperator
from ...operators.context import as_array, broadcast_batches
from ...operators.neutral import placed_beside
from ...properties import SELF_ADJOINT
from ...status import Status, combine, first_failure
from ..common import filled, ignore_float_errors, is_half, ones_beside, square_size, to_result_dtype
from ..determinant import logdet, needs_estimate, slogdet
from ..matrix_functions.spectra import LOG
from ..solve import solve
from ..solve.auto import iterated, iterates
from ..solve.inverse import inv
from .estimators import announce, is_traced
from .quadrature import one_of_each, prepared, with_slope
from .quadrature_run import HOST, gauss, on_host, traced_gauss

ROWS = 1000  # of T that are kept, where they are as many as there were steps
TRACED_ROWS = 128  # and where they cannot be counted


def solution_and_logarithm(A: LinearOperator, b: Any, method: Method | None = None) -> Choice:
    """x = A^-1 b and log|det A|, as the likelihood of a Gaussian process needs them.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    b : array, (n,) or (*batch, n, k)
    method : Auto, Cholesky or SLQ, optional
        `Auto` shares one factorisation where A has no structure. `SLQ` takes A positive definite:
        one run of conjugate gradients on b and random vectors together gives x, the logarithm with
        its standard error (`info.error`), and what the gradient needs: tr(A^-1 dA) is estimated
        from the same vectors.

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
    if A.is_neutral and is_array(b):
        A = placed_beside(A, b)
    chosen = fitting("solve_and_logdet", method, Cholesky, SLQ)
    is_free = isinstance(chosen, Auto) and _estimates(A, chosen)
    if is_free or isinstance(chosen, SLQ):
        found = SLQ(tol=chosen.tol) if is_free else chosen
        cost = Cost(50.0 * found.most * A.flops, 48.0 * found.most * A.shape[-1])
        like = lambda: (b, filled(A, 0.0, *A.batch_shape))
        why = "conjugate gradients with random vectors"
        return Choice(lambda: _fused(A, b, found, is_free), "SLQ", cost, why, like)
    found_rule = inv.find(A, (method,))
    name = "solution_and_logarithm"
    if not found_rule.is_base or iterates(A, method):
        why = "each by the structure of A"
        return Choice(lambda: (solve(A, b, method), logdet(A, method)), name, None, why)

    def like_factored() -> tuple[Array, Array]:
        inv.using(found_rule, A, method)
        return b, filled(A, 0.0, *A.batch_shape)

    why = "both from one factorisation: A has no structure"
    return Choice(lambda: _factored(A, b, found_rule, method), name, None, why, like_factored)


def _fused(A: LinearOperator, b: Any, method: SLQ, is_free: bool) -> tuple[Array, Array]:
    if is_free:
        announce("solve_and_logdet", A, method.name)
    return fused(A, b, method)


def _factored(A: LinearOperator, b: Any, found: Any, method: Method | None) -> tuple[Array, Array]:
    inverse = inv.using(found, A, method)
    if isinstance(inverse, Inverse) and hasattr(inverse.factor, "slogdet"):
        return inverse @ b, -logdet(inverse)
    return solve(A, b, method), logdet(A, method)


def _estimates(A: LinearOperator, method: Any) -> bool:
    """Whether the determinant is out of reach: of the matrix as a whole, and by rules."""
    return needs_estimate(A, method) and slogdet.find(A).is_base


solve_and_logdet = function(
    "solve_and_logdet", base=solution_and_logarithm, examples={"b": ones_beside}, rewrites=inv
)


# --------------------------------------------------------------------------------------------------


class Solution(LinearOperator):
    """A^-1 of a self-adjoint A by conjugate gradients, with the solution Z = A^-1 [B R] that one
    run has found."""

    A: LinearOperator
    M: LinearOperator | None
    B: Array
    Z: Array
    tol: float
    limit: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _adjoint(self) -> LinearOperator:
        return self

    def _matmat(self, G: Array) -> Array:
        """A^-1 G for a derivative. It starts from what is known: of the cotangent of b^H A^-1 b,
        which is b, the solution is x."""
        xp, B, x0 = namespace_of(G), self.B, 0 * G
        if B.shape[-1] == 1:
            size = xp.sum(xp.abs(B) ** 2, axis=-2, keepdims=True)
            along = xp.sum(xp.conj(B) * G, axis=-2, keepdims=True) / xp.where(
                size > 0, xp.astype(size, G.dtype), 1
            )
            x0 = self.Z[..., :1] * along
        return solve_for_derivative(
            iterated(self.A, CG(tol=self.tol, preconditioner=self.M, x0=x0, max_iters=self.limit)),
            G,
        )


def fused(A: LinearOperator, b: Any, method: SLQ) -> tuple[Array, Array]:
    """x and log det A by one run; differentiable in A and b."""
    b = as_array(b, "solve_and_logdet", xp=A.xp)
    if b.shape[0 if b.ndim == 1 else -2] != A.shape[-1]:
        raise ShapeError(
            f"solve_and_logdet: A is {A.shape[-2]}x{A.shape[-1]} and b is {tuple(b.shape)}; it "
            f"needs {A.shape[-1]} rows."
        )
    B = b[:, None] if b.ndim == 1 else b
    batch = broadcast_batches(A.batch_shape, B.shape[:-2])
    if batch != A.batch_shape:
        raise ShapeError(
            f"solve_and_logdet: b has the batch shape {tuple(B.shape[:-2])}, A {A.batch_shape}; A "
            "must have it too."
        )
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
    """A^-1 B and log det A: d(A^-1 B) = A^-1 (dB - dA X), and d log det A = mean of Re (A^-1
    r)^H dA M r."""
    if not A.properties & SELF_ADJOINT:
        raise MethodError(
            "SLQ: for positive definite A, which this is not known to be. Say PSD(A)."
        )
    if method.quadrature != "gauss":
        raise MethodError(
            'SLQ: bounds are for logdet without derivatives; use quadrature="gauss" here.'
        )
    xp, fixed = A.xp, A.detach()
    M, directions, logarithm = prepared(fixed, method)
    tol = math.sqrt(xp.eps(xp.float32 if is_half(xp, A.dtype) else A.dtype))
    limit = method.max_iters or max(10 * A.shape[-1], 100)
    gen, count = xp.generator(method.seed), B.shape[-1]
    adaptive = method.tol is not None and not (is_traced(A, method.seed) or xp.is_traced(B))
    most = method.most if adaptive else method.probes or DEFAULT_PROBES
    width = min(most, DEFAULT_PROBES) if adaptive else most
    blocks: list[Block] = []
    while True:  # the first block solves A X = B too
        R = directions(
            xp.fold_in(gen, len(blocks)), min(width, most - sum(block.probes for block in blocks))
        )
        right = B[..., : 0 if blocks else count]
        found = _run(fixed, M, xp.stop_gradient(right), R, tol, limit, method.seed)
        blocks.append(Block(R.shape[-1], *_attached(A, M, right, R, found, tol, limit)))
        pool = _pooled(xp, blocks, logarithm, method)
        if (
            not adaptive
            or bool(pool.met)
            or pool.probes >= most
            or bool(xp.max(pool.status) >= int(Status.BREAKDOWN))
        ):
            break
    residual = blocks[0].residual[..., :count]
    _tell(A, pool, residual, (count + pool.probes) * xp.max(blocks[0].steps))
    return to_result_dtype(xp, blocks[0].X, A.dtype), to_result_dtype(xp, pool.value, A.dtype)


def _attached(
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
    R: Array,
    found: tuple[Array, ...],
    tol: float,
    limit: int,
) -> tuple[Array, ...]:
    """What `_run` has found, X, log det M A, Y = A^-1 R and numbers, with the derivatives of the
    first three.

    X and Y have those of A [X Y] = [B R]. The derivative of the logarithm is the mean of Re y^H dA
    M r.
    """
    xp, (X, mean, Y, *numbers) = A.xp, found
    if not xp.is_differentiated(B, *A.arrays()):
        return found
    count = X.shape[-1]
    solution = Solution._of(A, M, xp.stop_gradient(B), xp.concat([X, Y], axis=-1), tol, limit)
    solved = equation(
        solution,
        Solution._matmat,
        first=lambda _, *arrays: (solution.with_arrays(arrays).Z + 0,),
    )
    Z = solved(
        xp.concat([xp.astype(B, Y.dtype), xp.astype(R, Y.dtype)], axis=-1), solution.arrays()
    )

    V = xp.astype(R if M is None else M @ R, Y.dtype)
    X, Y = Z[..., :count], Z[..., count:]
    return X, with_slope(A, mean, Y, V), Y, *numbers


def _run(
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
    R: Array,
    tol: float,
    limit: int,
    seed: Any,
) -> tuple[Array, ...]:
    """X, log det M A, A^-1 R, the standard error, and (as numbers without derivatives) the
    statuses, steps and residuals."""
    xp = A.xp
    traced = is_traced(A, seed) or xp.is_traced(B) or xp.is_traced(R)
    rows = min(limit, TRACED_ROWS if traced else ROWS)
    count = B.shape[-1]
    together = xp.concat(
        [xp.astype(B, xp.result_type(B.dtype, R.dtype)), xp.astype(R, B.dtype)], axis=-1
    )
    together = one_of_each(A, together)
    with ignore_float_errors(xp):
        solved: Solved = program(xp.name, _quadrature, tol, limit, rows)(A, M, together)
        forms, rest = _quadratic_forms(xp, solved, count, traced)
    good = xp.logical_and(xp.isfinite(forms), solved.status[..., count:] < int(Status.BREAKDOWN))
    used = xp.sum(xp.astype(good, forms.dtype), axis=-1)
    mean = xp.sum(xp.where(good, forms, 0), axis=-1) / xp.where(used > 0, used, math.nan)
    spread = xp.sum(xp.where(good, (forms - mean[..., None]) ** 2, 0), axis=-1)
    error = xp.sqrt(spread / xp.where(used > 1, used * (used - 1), 1) + rest**2) + xp.where(
        used > 1, 0, math.inf
    )
    real = forms.dtype
    numbers = (xp.astype(solved.status, real), 0 * used + solved.steps, solved.residual)
    return solved.X[..., :count], mean, solved.X[..., count:], error, *numbers


def _quadrature(
    xp: Any,
    tol: float,
    limit: int,
    rows: int,
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
) -> Solved:
    apply = None if M is None else M.__matmul__
    with recording():
        return cg_quadrature(xp, A.__matmul__, apply, B, tol=tol, max_iters=limit, rows=rows)


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


def _pooled(xp: Any, blocks: list[Block], logarithm: Any, method: SLQ) -> Pooled:
    """What all runs give together."""
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


def _quadratic_forms(xp: Any, solved: Solved, count: int, traced: bool) -> tuple[Array, Any]:
    """r^H M^1/2 log(M^1/2 A M^1/2) M^1/2 r for each random vector, (*batch, probes), and what
    rows that were not kept may have cost."""
    alpha, beta, length = (x[..., count:] for x in (solved.alpha, solved.beta, solved.length))
    n = solved.X.shape[-2]
    if traced:
        value, less, *_ = traced_gauss(xp, alpha, beta, length, LOG, n)
        return value, xp.mean(value - less, axis=-1)
    j = max(1, min(int(solved.steps), alpha.shape[0]))
    a, b, lengths = on_host(xp, alpha)[:j], on_host(xp, beta)[:j], on_host(xp, length)
    values, *_ = gauss(HOST, a, b, lengths, LOG, partial(LOG.of, HOST), n, xp.eps(length.dtype))
    return xp.asarray(values, dtype=length.dtype, device=xp.device_of(length)), 0.0


def _tell(A: Any, found: Pooled, residual: Array, matvecs: Any) -> None:
    """Report on log det A by all runs together, and on the residuals of the solution."""
    xp, steps, message = A.xp, found.steps, ""
    missed = first_failure(xp, (found.met, Status.MAX_ITERATIONS))
    status = combine([missed, xp.astype(found.status, xp.asarray(0).dtype)])
    if isinstance(status, Status):
        steps, matvecs = int(steps), int(matvecs)
        if status is missed is not Status.SUCCESS:
            message = "the confidence interval did not shrink to the tolerance; raise probes or tol"
    shown = xp.stop_gradient(residual) if residual.shape[-1] else None
    report(
        Info(
            status,
            iterations=steps,
            matvecs=matvecs,
            residual=shown,
            error=found.error,
            method="SLQ",
            message=message,
        )
    )
