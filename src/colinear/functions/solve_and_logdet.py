"""A^-1 b and log det A together: from one factorisation, or from one run of conjugate gradients with random vectors beside b."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from .. import backends
from ..backends import Array, is_array
from ..dispatch import Cost, function
from ..info import MethodError, ShapeError, Status, planning, recording
from ..methods import CG, SLQ, Auto, Cholesky, Method, fitting
from ..methods.quadrature import Solved, cg_quadrature
from ..methods.sampling import DEFAULT_PROBES
from ..operators.base import LinearOperator, placed_beside
from ..operators.context import as_array, broadcast_batches
from ..operators.inverse import Inverse
from ..properties import SELF_ADJOINT
from ._arrays import is_half, narrow, quiet, square_size
from .automatic import iterates
from .determinant import logdet, needs_estimate, slogdet
from .estimators import announce, is_traced
from .inverse import inv
from .iterative import iterated
from .quadrature_fused import Block, pooled, quadratic_forms, tell
from .quadrature_starts import one_of_each, prepared
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
    if A.is_neutral and is_array(b):
        A = placed_beside(A, b)
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
    "solve_and_logdet", base=solution_and_logarithm, stand_in=_stand_in, choose=_choose, examples={"b": _example}, rewrites=inv
)


# ---------------------------------------------------------------------------------------------------- one run for all


class Problem(NamedTuple):
    """How the run is made; what it is made of are arrays, which its derivatives are told."""

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
    xp = A.xp
    fixed = A._map(lambda leaf: xp.stop_gradient(leaf) if is_array(leaf) else leaf)
    M, directions, logarithm = prepared(fixed, method)
    tol = math.sqrt(xp.eps(xp.float32 if is_half(xp, A.dtype) else A.dtype))
    problem = Problem(method, tol, method.max_iters or max(10 * A.shape[-1], 100))
    places = [leaf for leaf in A.leaves() if is_array(leaf)]
    held = [] if M is None else [leaf for leaf in M.leaves() if is_array(leaf)]
    own = len(places)

    def operator(arrays: Any) -> LinearOperator:
        given = iter(arrays)
        return A._map(lambda leaf: next(given) if is_array(leaf) else leaf)

    def preconditioner(arrays: Any) -> LinearOperator | None:
        given = iter(arrays[own : own + len(held)])
        return None if M is None else M._map(lambda leaf: next(given) if is_array(leaf) else leaf)

    def value(*arrays: Array) -> tuple[Array, ...]:
        return _run(operator(arrays[:own]), preconditioner(arrays), arrays[-2], arrays[-1], problem)

    def solve_with(arrays: Any, G: Array, x0: Array | None = None) -> Array:
        chosen = CG(tol=tol, preconditioner=preconditioner(arrays), x0=x0, max_iters=problem.limit)
        return iterated(operator(arrays[:own]), chosen).solve_for_derivative(G)  # a failure is warned of there

    def multiplied(primals: Any, output: Any) -> Array:
        """X, A^-1 R and M R, side by side: what dA multiplies."""
        M, R = preconditioner(primals), primals[-1]
        return xp.concat([output[0], output[2], xp.astype(R if M is None else M @ R, output[2].dtype)], axis=-1)

    def jvp(primals: Any, tangents: Any, output: Any) -> Any:
        V, Y = multiplied(primals, output), output[2]
        count, probes = output[0].shape[-1], Y.shape[-1]
        moved = xp.jvp(lambda arrays: operator(arrays) @ V, tuple(primals[:own]), tuple(tangents[:own]))[1]
        right = xp.concat([tangents[-2] - moved[..., :count], -moved[..., count : count + probes]], axis=-1)
        solved = solve_with(primals, right)
        slope = xp.sum(xp.real(xp.vecdot(Y, moved[..., count + probes :], axis=-2)), axis=-1) / probes
        return solved[..., :count], slope, solved[..., count:], *(0 * x for x in output[3:])

    def vjp(primals: Any, output: Any, cotangents: Any) -> Any:
        X, Y = output[0], output[2]
        G = xp.concat([cotangents[0], cotangents[2]], axis=-1)
        S = solve_with(primals, G, _guess(xp, primals[-2], X, G))
        slope = (cotangents[1] / Y.shape[-1])[..., None, None]
        pulled = xp.concat([-S, xp.astype(slope, Y.dtype) * Y], axis=-1)
        V = multiplied(primals, output)
        found = xp.vjp(lambda arrays: operator(arrays) @ V, tuple(primals[:own]))[1](pulled)
        return *found, *(None for _ in held), S[..., : X.shape[-1]], None

    run = value if xp.name == "numpy" else xp.custom_derivative(value, jvp=jvp, vjp=vjp)
    gen, count = xp.generator(method.seed), B.shape[-1]
    adaptive = method.tol is not None and not (is_traced(A, method.seed) or xp.is_traced(B))
    most = method.most if adaptive else method.probes or DEFAULT_PROBES
    width = min(most, DEFAULT_PROBES) if adaptive else most
    blocks: list[Block] = []
    while True:  # the first block solves A X = B too
        R = directions(xp.fold_in(gen, len(blocks)), min(width, most - sum(block.probes for block in blocks)))
        blocks.append(Block(R.shape[-1], *run(*places, *held, B[..., : 0 if blocks else count], R)))
        found = pooled(xp, blocks, logarithm, method)
        if not adaptive or bool(found.met) or found.probes >= most or bool(xp.max(found.status) >= int(Status.BREAKDOWN)):
            break
    residual = blocks[0].residual[..., :count]
    tell(A, found, residual, (count + found.probes) * xp.max(blocks[0].steps))
    return narrow(xp, blocks[0].X, A.dtype), narrow(xp, found.value, A.dtype)


def _guess(xp: Any, B: Array, X: Array, G: Array) -> Array:
    """Where to start the adjoint solve: of the cotangent of b^H A^-1 b, which is b, the solution is there already."""
    if B.shape[-1] != 1:
        return 0 * G
    size = xp.sum(xp.abs(B) ** 2, axis=-2, keepdims=True)
    along = xp.sum(xp.conj(B) * G, axis=-2, keepdims=True) / xp.where(size > 0, xp.astype(size, G.dtype), 1)
    return xp.stop_gradient(X * along)


def _run(A: LinearOperator, M: LinearOperator | None, B: Array, R: Array, problem: Problem) -> tuple[Array, ...]:
    """X, log det M A, A^-1 R, the standard error, and (as numbers without derivatives) the statuses, steps and residuals."""
    xp, method = A.xp, problem.method
    traced = is_traced(A, method.seed) or xp.is_traced(B) or xp.is_traced(R)
    rows = min(problem.limit, TRACED_ROWS if traced else ROWS)
    count = B.shape[-1]
    together = xp.concat([xp.astype(B, xp.result_type(B.dtype, R.dtype)), xp.astype(R, B.dtype)], axis=-1)
    together = one_of_each(A, together)
    with quiet(xp):
        solved: Solved = _program(xp.name, problem.tol, problem.limit, rows)(A, M, together)
        forms, rest = quadratic_forms(xp, solved, count, traced)
    good = xp.logical_and(xp.isfinite(forms), solved.status[..., count:] < int(Status.BREAKDOWN))
    used = xp.sum(xp.astype(good, forms.dtype), axis=-1)
    mean = xp.sum(xp.where(good, forms, 0), axis=-1) / xp.where(used > 0, used, math.nan)
    spread = xp.sum(xp.where(good, (forms - mean[..., None]) ** 2, 0), axis=-1)
    error = xp.sqrt(spread / xp.where(used > 1, used * (used - 1), 1) + rest**2) + xp.where(used > 1, 0, math.inf)
    real = forms.dtype
    numbers = (xp.astype(solved.status, real), 0 * used + solved.steps, solved.residual)
    return solved.X[..., :count], mean, solved.X[..., count:], error, *numbers


@functools.lru_cache(maxsize=64)
def _program(name: str, tol: float, limit: int, rows: int) -> Any:
    """The run as a function of operators and arrays alone: compiled by JAX once for each structure and shape."""
    xp = backends.get(name)

    def run(A: LinearOperator, M: LinearOperator | None, B: Array) -> Solved:
        apply = None if M is None else M.__matmul__
        with recording():
            return cg_quadrature(xp, A.__matmul__, apply, B, tol=tol, max_iters=limit, rows=rows)

    return xp.jit(run)
