"""A^-1 b and log det A together: from one factorisation, or from one run of conjugate gradients
with random vectors beside b."""

from __future__ import annotations

import math
from functools import partial, reduce
from typing import Any, NamedTuple

from ...autodiff.implicit import equation
from ...backends import Array, is_array, namespace_of, program
from ...dispatch import Choice, Cost, function
from ...errors import MethodError, ShapeError
from ...factors.inverse import Inverse
from ...factors.iterated import one_of_each, solve_for_derivative
from ...info import Info, recording, report
from ...methods import CG, SLQ, Auto, Cholesky, Method, fitting
from ...methods.loop import show
from ...methods.quadrature import LOOSEST, Solved, cg_quadrature
from ...methods.sampling import DEFAULT_PROBES, standard_error
from ...operators import Kernel, LinearOperator, Sum
from ...operators.autograd import make_ready
from ...operators.context import broadcast_batches, kind_of
from ...operators.kernel import how_kernels_multiply
from ...operators.neutral import placed_beside
from ...operators.sparse_algebra import DIAGONAL
from ...operators.tree import inside_out
from ...preconditioners import Nystrom, RPCholesky
from ...preconditioners.base import reads_columns
from ...properties import SELF_ADJOINT
from ...rates import share_of_memory
from ...status import Status, combine
from ..common import filled, ignore_float_errors, ones_beside, square_size, to_result_dtype
from ..determinant import logdet, needs_estimate, slogdet
from ..matrix_functions.spectra import LOG
from ..solve import right_side, solve
from ..solve.auto import iterated, iterates
from ..solve.inverse import inv
from .control import Known, controlled, trace_of_preconditioned
from .estimators import announce, computing_dtype, is_traced, meets, report_estimate
from .quadrature import prepared, with_slope
from .quadrature_run import HOST, gauss, on_host, traced_gauss

ROWS = 1000  # of T that are kept, where they are as many as there were steps
TRACED_ROWS = 128  # and where they cannot be counted
CONTROL = 1 << 20  # the random numbers of the control variate: those after so many blocks


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
    # the determinant is out of reach: of the matrix as a whole, and by rules
    is_free = isinstance(chosen, Auto) and needs_estimate(A, chosen) and slogdet.find(A).is_base
    if is_free or isinstance(chosen, SLQ):
        found = SLQ(tol=chosen.tol, preconditioner=usual(A)) if is_free else chosen
        cost = Cost(50.0 * found.most * A.flops, 48.0 * found.most * A.shape[-1])
        like = lambda: (b, filled(A, 0.0, *A.batch_shape))
        why = f"conjugate gradients with random vectors{how_kernels_multiply(A)}"

        def run() -> tuple[Array, Array]:
            if is_free:
                announce("solve_and_logdet", A, found.name)
            return fused(A, b, found)

        return Choice(run, "SLQ", cost, why, like)
    found_rule, name = inv.find(A, (method,)), "solution_and_logarithm"
    each = lambda: (solve(A, b, method), logdet(A, method))
    if not found_rule.is_base or iterates(A, method):
        return Choice(each, name, why="each by the structure of A")

    def both() -> tuple[Array, Array]:
        inverse = inv.using(found_rule, A, method)
        if isinstance(inverse, Inverse) and hasattr(inverse.factor, "slogdet"):
            return inverse @ b, -logdet(inverse)
        return each()

    def like_both() -> tuple[Array, Array]:
        inv.using(found_rule, A, method)
        return b, filled(A, 0.0, *A.batch_shape)

    why = "both from one factorisation: A has no structure"
    return Choice(both, name, why=why, like=like_both)


solve_and_logdet = function(
    "solve_and_logdet", base=solution_and_logarithm, examples={"b": ones_beside}, rewrites=inv
)


# The rank of a kernel's preconditioner. It takes some 4 n r^2 flops to make, and the steps fall about
# as r^-0.7; a product with 20 columns takes some 100 n^2. Both take as long at r = c sqrt(n) with c
# between 15 and 25, on a host and on an H200 alike; and a larger rank has the smaller variance.
RANK_BY_ROOT = 20
SHARE_OF_FACTORS = 1 / 4  # of the memory, that the two factors may take
USUAL_ROWS = 1000  # above which there is one
LEAST_RANK, MOST_RANK = 100, 500  # where columns are found by products alone


def usual(A: LinearOperator) -> Any:
    """The preconditioner that `Auto` gives SLQ: of a kernel with noise, whose eigenvalues fall off,
    by part of its Cholesky factor; else none."""
    terms = A.operands if isinstance(A, Sum) else ()
    kernels = [term for term in terms if any(isinstance(p, Kernel) for p in inside_out(term))]
    flat = [term for term in terms if isinstance(term, DIAGONAL)]
    n = A.shape[-1]
    if not (len(kernels) == len(flat) == 1 and len(terms) == 2 and n > USUAL_ROWS):
        return None
    room = share_of_memory(A, SHARE_OF_FACTORS, 2.0**31) / (2 * A.dtype.itemsize * n)
    rank = max(1, min(round(RANK_BY_ROOT * math.sqrt(n)), n // 4, int(room)))
    if reads_columns(kernels[0]):
        return RPCholesky(rank)
    return Nystrom(max(LEAST_RANK, min(MOST_RANK, n // 100)))


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
    b = right_side("solve_and_logdet", A, b)
    b = b.to_dense() if isinstance(b, LinearOperator) else b
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
    shape, device = (*A.batch_shape, A.shape[-1], 0), A._context.device
    return differentiable(A, A.xp.zeros(shape, dtype=computing_dtype(A), device=device), method)[1]


class Block(NamedTuple):
    """What one run gives: X = A^-1 B, Y = A^-1 R, for the columns of R the quadratic forms with the
    logarithm and with M A itself, which of them are good, what the quadrature may have cost, and
    (as numbers without derivatives) the statuses, steps and residuals."""

    R: Array
    X: Array
    Y: Array
    forms: Array
    others: Array
    good: Array
    rest: Any
    status: Array
    steps: Any
    residual: Array


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
    if 0 in A.shape:
        zero = filled(A, 0.0, *A.batch_shape)
        report(Info(error=zero, matvecs=0, method="SLQ"))
        return B, zero
    M, directions, logarithm = prepared(fixed, method)
    tol = math.sqrt(xp.eps(computing_dtype(A)))
    limit = method.max_iters or max(10 * A.shape[-1], 100)
    gen, count = xp.generator(method.seed), B.shape[-1]
    adaptive = method.tol is not None and not (is_traced(A, method.seed) or xp.is_traced(B))
    most = method.most if adaptive else method.probes or DEFAULT_PROBES
    width = min(most, DEFAULT_PROBES) if adaptive else most
    known = trace_of_preconditioned(fixed, M, xp.fold_in(gen, CONTROL), width)
    blocks: list[Block] = []
    drawn = 0
    while True:  # the first block solves A X = B too
        R = directions(xp.fold_in(gen, len(blocks)), min(width, most - drawn))
        right = xp.stop_gradient(B[..., : 0 if blocks else count])
        blocks.append(_run(fixed, M, right, R, tol, limit))
        drawn += R.shape[-1]
        show(partial("{} random vectors, of {} at most".format, drawn, most))
        mean, error = _averaged(xp, blocks, known)
        met = meets(xp, method, mean + logarithm, error, drawn)
        status = reduce(xp.maximum, (xp.max(block.status) for block in blocks))
        if not adaptive or bool(met) or drawn >= most or bool(status >= int(Status.BREAKDOWN)):
            break
    if not xp.is_traced(
        mean
    ):  # the forms were waited for: a failure is known, and runs nothing again
        status, *residuals = xp.fetch([status, *(xp.max(block.residual) for block in blocks)])
        # what the solution has reached in single precision is enough for its derivative
        if not xp.is_functional:
            tol = max(tol, min(LOOSEST * tol, 2 * float(max(residuals))))
    X, value = _attached(A, M, B, mean, blocks, tol, limit)
    first, steps = blocks[0], reduce(xp.maximum, (xp.asarray(block.steps) for block in blocks))
    matvecs = (count + drawn) * first.steps + (known.products if known else 0)
    status = combine([status])
    if isinstance(status, Status):
        steps, matvecs = int(steps), int(matvecs)
    residual = first.residual[..., :count] if count else None
    report_estimate(xp, method, error, met, matvecs, status, iterations=steps, residual=residual)
    return to_result_dtype(xp, X, A.dtype), to_result_dtype(xp, value + logarithm, A.dtype)


def _run(
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
    R: Array,
    tol: float,
    limit: int,
) -> Block:
    xp, count = A.xp, B.shape[-1]
    dtype = xp.result_type(B.dtype, R.dtype)
    together = xp.concat([xp.astype(B, dtype), xp.astype(R, dtype)], axis=-1)
    if not (xp.is_functional or xp.is_traced(together)):
        together = one_of_each(xp, A, together)
    traced = is_traced(A) or xp.is_traced(together)
    rows = min(limit, TRACED_ROWS if traced else ROWS)
    with ignore_float_errors(xp):
        solved: Solved = program(xp.name, _quadrature, tol, limit, rows)(A, M, together)
        forms, rest = _quadratic_forms(xp, solved, count, traced)
    good = xp.logical_and(xp.isfinite(forms), solved.status[..., count:] < int(Status.BREAKDOWN))
    X, Y = solved.X[..., :count], solved.X[..., count:]
    # What rounding leaves is good enough for the random vectors; an answer meets the tolerance or
    # says that it does not.
    own, residual = solved.status[..., :count], solved.residual
    is_rough = (own == int(Status.SUCCESS)) & (residual[..., :count] > tol)
    own = xp.where(is_rough, int(Status.STAGNATION), own)
    status = xp.concat([own, solved.status[..., count:]], axis=-1)
    others = solved.alpha[0, ..., count:] * solved.length[..., count:]
    return Block(
        R=R,
        X=X,
        Y=Y,
        forms=forms,
        others=others,
        good=good,
        rest=rest,
        status=status,
        steps=solved.steps,
        residual=residual,
    )


def _averaged(xp: Any, blocks: list[Block], known: Known | None) -> tuple[Array, Array]:
    """The mean of all good quadratic forms, log det M A, and its standard error."""
    forms, others, good = (
        xp.concat([getattr(block, name) for block in blocks], axis=-1)
        for name in ("forms", "others", "good")
    )
    used = xp.sum(xp.astype(good, forms.dtype), axis=-1)
    if known is None:
        mean = xp.sum(xp.where(good, forms, 0), axis=-1) / xp.where(used > 0, used, math.nan)
        spread = xp.sum(xp.where(good, (forms - mean[..., None]) ** 2, 0), axis=-1)
        error = standard_error(xp, used, spread)
    else:
        mean, error = controlled(xp, forms, others, good, known)
        mean = xp.where(used > 0, mean, math.nan)
    return mean, xp.sqrt(error**2 + blocks[0].rest ** 2)


def _attached(
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
    mean: Array,
    blocks: list[Block],
    tol: float,
    limit: int,
) -> tuple[Array, Array]:
    """X and log det M A, which are known, with their derivatives.

    X and all Y have those of A [X Y] = [B R]. The derivative of the logarithm is the mean of Re y^H
    dA M r.
    """
    xp, X = A.xp, blocks[0].X
    if not xp.is_differentiated(B, *A.arrays()):
        return X, mean
    Z = xp.concat([X, *(block.Y for block in blocks)], axis=-1)
    R = xp.astype(xp.concat([block.R for block in blocks], axis=-1), Z.dtype)
    solution = Solution._of(A, M, xp.stop_gradient(B), Z, tol, limit)
    solved = equation(
        solution,
        Solution._matmat,
        first=lambda _, arrays: (solution.with_arrays(arrays).Z + 0,),
    )
    Z = solved(xp.concat([xp.astype(B, Z.dtype), R], axis=-1), solution.arrays())
    count = X.shape[-1]
    V = R if M is None else xp.astype(M @ R, Z.dtype)
    return Z[..., :count], with_slope(A, mean, Z[..., count:], V)


def _quadrature(
    xp: Any,
    tol: float,
    limit: int,
    rows: int,
    A: LinearOperator,
    M: LinearOperator | None,
    B: Array,
) -> Solved:
    multiply = make_ready(A).__matmul__
    apply = None if M is None else make_ready(M).__matmul__
    with recording():
        return cg_quadrature(xp, multiply, apply, B, tol=tol, max_iters=limit, rows=rows)


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
    values, *_ = gauss(HOST, a, b, lengths, LOG, n, xp.eps(length.dtype))
    return xp.asarray(values, **kind_of(length)), 0.0
