"""Stochastic Lanczos quadrature: z^H f(A) z from the coefficients of a Lanczos run, many runs at
once.

    β_{j+1} u_{j+1} = A p_j - α_j u_j - β_j u_{j-1},   p_j = M u_j,   α_j = p_j^H A p_j,

and β_{j+1} is the M-norm of the right side. No basis is kept: v_1^H f(A) v_1 needs the coefficients
alone. With M = P^-1 this is Lanczos on P^-1/2 A P^-1/2, started from P^-1/2 r, which needs P^1/2
nowhere. Rounding makes the vectors lose their orthogonality and repeats eigenvalues of T; the
quadrature does not suffer from it (Knizhnerman 1996), so nothing is orthogonalised. β = 0 is an
invariant subspace: that run is exact, and stands still.

T is the tridiagonal matrix of a run started from v. Its eigenvalues θ_i are the nodes, the squares
of the first components of its eigenvectors the weights: Σ_i w_i f(θ_i) ≈ v^H f(A) v / v^H v (Golub
and Meurant 2010). For f = log, whose even derivatives are negative and odd ones positive, Gauss's
rule is an upper bound, Radau's with a node at or below all eigenvalues a lower one, at or above all
an upper one.

`cg_quadrature` finds solutions and quadratures by one run of conjugate gradients. For step lengths
a_j and ratios b_j = |r_{j+1}|^2 / |r_j|^2 (in the norm of M), T has α_j = 1 / a_j + b_{j-1} /
a_{j-1} on its diagonal and β_j = sqrt(b_j) / a_j beside it (after Lanczos 1952): r^H f(A) r = |r|^2
e_1^T f(T) e_1. Gardner, Pleiss, Bindel, Weinberger and Wilson (2018) run it on a block of a right
side and random vectors: a Gaussian likelihood and its gradient. A column that has converged stands
still; the rows of T behind its end are decoupled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array, places_like, positive_or_one, zeros_like
from ..properties import POSITIVE_SEMIDEFINITE
from ..status import Status
from . import cg
from .base import SHOWN, check_choice, check_integer
from .basis import count_of, pick, put
from .iterate import multiplied
from .loop import NO_MONITOR, Loop
from .sampling import Stochastic, heard
from .vectors import (
    RUNNING,
    STAGNATION,
    SUCCESS,
    Columns,
    LinearMap,
    State,
    column_norms,
    final_code,
    status_of,
)  # fmt: skip

SMALL = 20  # roundings, of the size of A, up to which a remainder counts as zero
DENSE = 48  # steps up to which the eigenvalues of all runs are found together, as dense matrices
SAFETY = 0.5  # of the tolerance at which the recurrence stops, so that the true residual meets it


QUADRATURES = ("gauss", "lower", "upper")


@dataclass(frozen=True)
class SLQ(Stochastic):
    """Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017): log-determinants and traces of
    f(A) for self-adjoint A.

    z^H f(A) z is the integral of f over a measure for which Lanczos, started from z, gives the
    Gauss quadrature. All random vectors run together, a block product for each step. No basis is
    kept: five blocks of n x probes numbers.

    Parameters
    ----------
    probes : int, optional
        How many random vectors; default 32. With `tol` the most of them.
    max_iters : int, optional
        The most steps of Lanczos; default 500. It ends where the quadrature is seen to have
        converged.
    distribution : {"rademacher", "gaussian", "sphere"}
    tol : float, optional
        The relative error to reach, as for the other estimators.
    confidence, seed, progress
        See the other estimators.
    preconditioner : operator or factory, optional
        M = P^-1 with a known determinant, such as `Jacobi()`, `RPCholesky(rank)`,
        `PivotedCholesky(rank)` or `Nystrom(rank)`: log det A = log det P + tr log(P^-1/2 A
        P^-1/2), of which the last part is small and has a small variance.
    quadrature : {"gauss", "lower", "upper"}
        "lower" and "upper" give bounds of the mean of z^H log(A) z: Gauss and Radau's, with a node
        at an end of `interval`.
    interval : (float, float), optional
        Bounds of the eigenvalues of A (of M A, if preconditioned), for these.

    Notes
    -----
    `info.error` is the standard error over the probes, and the error of the quadrature, if that is
    larger. A Ritz value that is not positive shows that A is not positive definite: the status says
    so. With `RPCholesky` or `PivotedCholesky` the trace of M A, which is then known better, corrects
    the mean of `solve_and_logdet`, and of determinants with derivatives: a control variate.
    Derivatives of log-determinants, tr(A^-1 dA), and of traces of f(A), tr(f'(A) dA), are estimated
    from the same random vectors.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(co.Diagonal(np.linspace(1.0, 2.0, 1000))))
    >>> value, info = co.logdet(A, co.SLQ(probes=20), info=True)
    >>> bool(abs(value - np.log(np.linspace(1.0, 2.0, 1000)).sum()) <= 4 * info.error + 1e-6)
    True
    """

    probes: int | None = None
    max_iters: int | None = None
    distribution: str = "rademacher"
    tol: float | None = None
    confidence: float = 0.95
    preconditioner: Any = field(default=None, compare=False)
    quadrature: str = "gauss"
    interval: tuple[float, float] | None = None
    seed: Any = field(default=0, compare=False)
    progress: bool = SHOWN

    needs = POSITIVE_SEMIDEFINITE

    def __post_init__(self) -> None:
        super().__post_init__()
        interval = self.interval
        check_integer(self, "max_iters", 1, "a positive integer")
        check_choice(self, "quadrature", QUADRATURES)
        if interval is not None and not (len(interval) == 2 and interval[0] < interval[1]):
            raise ValueError(
                f"SLQ: interval is {interval!r}; it must be (low, high), low below high."
            )
        if self.quadrature == "lower" and interval is None:
            raise ValueError(
                "SLQ: a lower bound needs an interval (low, high) that holds the eigenvalues."
            )


class Runs(State):
    """Where the runs stand; columns are runs, (*batch, n, k)."""

    U: Array
    before: Array  # u_{j-1}
    P: Array | None  # M u; None without a preconditioner: a loop would copy what it carries twice
    beta: Array  # (*batch, k)
    size: Array  # the largest of the coefficients so far
    alive: Array  # whether a run goes on
    status: Any  # the worst that A, if it is applied by a method, has said of its products


def start(xp: Any, R: Array, precondition: LinearMap | None) -> tuple[Runs, Array]:
    """Runs from the columns r of R, and r^H M r."""
    P = R if precondition is None else precondition(R)
    length = xp.real(xp.vecdot(R, P, axis=-2))
    scale = _beside(xp, 1 / xp.sqrt(positive_or_one(xp, length)), R)
    U, zero = R * scale, 0 * length
    return Runs(
        U=U,
        before=0 * U,
        P=None if precondition is None else P * scale,
        beta=zero,
        size=zero,
        alive=length > 0,
        status=count_of(xp, 0),
    ), length


def advance(
    xp: Any,
    multiply: LinearMap,
    precondition: LinearMap | None,
    runs: Runs,
    steps: int,
) -> tuple[Runs, Array, Array]:
    """So many steps more: the runs, and the coefficients α and β, (steps, *batch, k), of each.
    Those of a run that has ended are zero."""
    empty = zeros_like(xp, runs.beta, (steps, *runs.beta.shape))

    def body(i: Any, found: Any) -> Any:
        s, alphas, betas = found
        alpha = step(xp, multiply, precondition, s)
        return s, put(xp, alphas, i, alpha), put(xp, betas, i, s.beta)

    return xp.fori_loop(steps, body, (runs, empty, xp.copy(empty)))


def combined(xp: Any, multiply: LinearMap, R: Array, weights: Array, steps: Any = None) -> Array:
    """Σ_j w_j u_j for the vectors of the runs from R, made once more, and weights (steps, *batch,
    k), f(T) e_1: that is f(A) R. There are fewer `steps` than weights where these end in zeros."""
    runs, length = start(xp, R, None)

    def body(i: Any, found: Any) -> Any:
        s, total = found
        total = total + _beside(xp, weights[i], R) * s.U
        step(xp, multiply, None, s)
        return s, total

    end = (weights.shape[0] if steps is None else steps) - 1
    last, total = xp.fori_loop(end, body, (runs, 0 * R))
    total = total + _beside(xp, weights[end], R) * last.U  # which needs no further product
    return total * _beside(xp, xp.sqrt(length), R)


def step(xp: Any, multiply: Any, precondition: Any, s: Runs) -> Array:
    """One step of all runs; their α. The vectors before the last are written over, where the
    framework can."""
    P = s.U if s.P is None else s.P
    W, s.status = heard(xp, multiply, P, s.status)
    alpha = xp.real(xp.column_dot(P, W))
    if xp.is_traced(W):  # torch.func.vmap writes nothing in place
        W = W - s.U * _beside(xp, alpha, W) - s.before * _beside(xp, s.beta, W)
    else:
        W = xp.three_term(W, xp.astype(alpha, W.dtype), s.U, xp.astype(s.beta, W.dtype), s.before)
    V = W if precondition is None else precondition(W)
    square = xp.real(xp.column_dot(W, V))
    beta = xp.sqrt(xp.where(square > 0, square, 0))
    s.size = xp.maximum(s.size, abs(alpha) + beta)
    # Not finite stays so: the run goes on, and is seen.
    alive = s.alive & ~(beta <= SMALL * xp.eps(W.dtype) * s.size)
    alpha = xp.where(s.alive, alpha, 0)
    s.beta, s.alive = xp.where(alive, beta, 0), alive
    scale = _beside(xp, xp.where(alive, 1 / xp.where(alive, beta, 1), 0), W)
    s.P = None if precondition is None else V * scale
    s.before, s.U = s.U, multiplied(xp, W, scale)
    return alpha


def _beside(xp: Any, x: Array, like: Array) -> Array:
    """Numbers of the runs as factors of their vectors."""
    return xp.astype(x, like.dtype)[..., None, :]


def with_node(xp: Any, alpha: Any, beta: Any, node: float) -> tuple[Any, Any]:
    """The coefficients, alpha (j, *runs) and beta (j, *runs), of the rule with one more node, at a
    given place.

    α_{j+1} = node + β_j^2 / d_j with d_i = α_i - node - β_{i-1}^2 / d_{i-1}: Golub (1973).
    """
    before = 0 * alpha[0]  # β_{i-1}^2 / d_{i-1}
    for a, b in zip(alpha, beta):
        d = a - node - before
        before = b**2 / xp.where(d == 0, 1e-300, d)
    last = xp.where(beta[-1] == 0, alpha[0], node + before)
    return xp.concat([alpha, last[None]], axis=0), xp.concat([beta, 0 * beta[-1:]], axis=0)


def nodes_and_weights(xp: Any, alpha: Array, beta: Array, after: Any = None) -> tuple[Array, Array]:
    """Nodes and weights, (*runs, j), from alpha (j, *runs) and beta (at least j - 1, *runs).

    `after`: other nodes of the same program, which are computed first.
    """
    j, *runs = alpha.shape
    if xp.name != "numpy" or j <= DENSE:
        nodes, vectors = _eigenpairs(xp, alpha, beta, after)
        return nodes, vectors[..., 0, :] ** 2
    from scipy.linalg import eigh_tridiagonal

    nodes, weights = np.empty((2, *runs, j))
    for run in np.ndindex(*runs):
        diagonal, beside = alpha[:, *run], beta[: j - 1, *run]
        nodes[run], vectors = eigh_tridiagonal(diagonal, beside, check_finite=False)
        weights[run] = vectors[0] ** 2
    return nodes, weights


def first_column(xp: Any, alpha: Array, beta: Array, of: Any, after: Any = None) -> Array:
    """f(T) e_1 for each run, (j, *runs); `of(nodes)` gives f of an array of nodes, (*runs, j)."""
    nodes, vectors = _eigenpairs(xp, alpha, beta, after)
    terms = vectors * (of(nodes) * vectors[..., 0, :])[..., None, :]
    return xp.moveaxis(xp.sum(terms, axis=-1), -1, 0)


def relative_tail(xp: Any, column: Any, steps: Any = None) -> Any:
    """How small the last two numbers of f(T) e_1, of so many steps, are beside all of them, for
    each run: the run is long enough if they are."""
    square = abs(column) ** 2
    last = square[-2:] if steps is None else xp.take(square, steps - 1 - xp.arange(2), axis=0)
    return xp.sqrt(xp.sum(last, axis=0) / positive_or_one(xp, xp.sum(square, axis=0)))


def _eigenpairs(xp: Any, alpha: Array, beta: Array, after: Any) -> tuple[Array, Array]:
    """Those of the matrices T, which are not known before `after` is.

    jaxlib computes the eigenpairs of a batch with threads of a pool and waits for them in another
    of these threads. Two batches at once on two cores wait for each other for ever.
    """
    if after is not None and xp.is_functional:
        size = xp.sum(after)
        alpha = alpha + 0 * xp.where(xp.isfinite(size), size, 1)
    a, b = xp.moveaxis(alpha, 0, -1), xp.moveaxis(beta, 0, -1)
    i = places_like(xp, a)
    lower = xp.where(i[:, None] == i + 1, b[..., None, :], 0)
    return xp.eigh(xp.make_diagonal(a) + lower + xp.matrix_transpose(lower))


REFINEMENTS = 3  # of a solution whose true residual is not what the recurrence says
QUICK_ROWS = 30_000  # of a matrix on a device, with which a product is as quick as a look
QUICK_STEPS = 4  # of these, between two looks


ROUNDING = 8.0  # times eps |A| |x|, that a product A x may be wrong by
LOOSEST = 10.0  # times the tolerance, a residual of rounding that is still good enough


def attainable(xp: Any, multiply: LinearMap, X: Array, scale: Array, tol: float) -> Array:
    """The relative residual that each column of X is allowed: the tolerance, or what the rounding
    of the product A x alone leaves, up to ten times as much."""
    W = X
    for _ in range(2):  # |A|, from below
        W = multiply(W / positive_or_one(xp, column_norms(xp, W))[..., None, :])
    norm = xp.max(column_norms(xp, W), axis=-1, keepdims=True)
    rounding = ROUNDING * xp.eps(X.dtype) * norm * column_norms(xp, X) / scale
    return xp.maximum(xp.minimum(rounding, LOOSEST * tol + 0 * rounding), tol + 0 * rounding)


class QuadratureState(cg.CGState):
    inverse: Array  # 1 / a
    length: Array  # r^H M r of the first step
    diagonal: Array  # (rows, *batch, k), of T
    beside: Array
    j: Any
    heard: Any  # the worst that A, if it is applied by a method, has said of its products


class Solved(NamedTuple):
    """A^-1 B, the coefficients, |b|^2 in the norm of M, how each column ended, the steps, and the
    true residuals, relative."""

    X: Array
    alpha: Array
    beta: Array
    length: Array
    status: Array
    steps: Any
    residual: Array


def cg_quadrature(
    xp: Any,
    multiply: LinearMap,
    precondition: LinearMap | None,
    B: Array,
    *,
    tol: float,
    max_iters: int,
    rows: int,
) -> Solved:
    """Solve A X = B for positive definite A, and keep the coefficients of the first `rows` steps,
    for each column of B."""
    size = column_norms(xp, B)
    goal, in_place = (SAFETY * tol * size) ** 2, not xp.is_traced(B) or xp.is_functional
    # Where a product is no longer than a look at the values, a look for several of them
    waits = in_place and xp.is_on_device(B) and B.shape[-2] <= QUICK_ROWS
    ops = Columns(xp, B.dtype, goal=goal, in_place=in_place)
    ops.every = QUICK_STEPS if waits else 1
    empty = zeros_like(xp, size, (rows, *size.shape))

    def step(ops: Columns, s: QuadratureState) -> QuadratureState:
        def product(P: Array) -> Array:
            W, s.heard = heard(xp, multiply, P, s.heard)
            return W

        ops.take(product, None, precondition)
        before, ran = s.rho, s.status == RUNNING
        cg.step(ops, s)
        s.length = pick(xp, s.j == 0, s.rho, s.length)
        on = ran & (s.status <= SUCCESS)  # those that still run or have just arrived
        b = ops.ratio(s.rho, before)
        inverse = ops.ratio(1.0, s.alpha)
        if xp.is_functional or s.j < rows:  # JAX drops what is put outside
            s.diagonal = put(xp, s.diagonal, s.j, xp.where(on, inverse + b * s.inverse, 0))
        # before the first step b is zero, and so is the last row
        if xp.is_functional or s.j <= rows:
            s.beside = put(xp, s.beside, s.j - 1, xp.where(on, b**0.5 * s.inverse, 0))
        s.inverse = inverse
        s.j = s.j + 1
        return s

    first = QuadratureState(
        x=0 * B,
        r=ops.own(B),
        p=0 * B,
        rho=float("inf") + 0 * size,
        alpha=0 * size,
        size=size**2,
        status=xp.where(size == 0, SUCCESS, RUNNING),
        inverse=0 * size,
        length=0 * size,
        diagonal=empty,
        beside=xp.copy(empty),
        j=count_of(xp, 0),
        heard=count_of(xp, 0),
    )
    loop = Loop(xp, NO_MONITOR, max_iters, size)
    s = loop.run(step, ops, loop.begin(first.status, size, first), lambda state: state.x).state
    scale, left = positive_or_one(xp, size), B - multiply(s.x)
    residual = column_norms(xp, left) / scale
    status = status_of(final_code(xp, s.status, False))
    allowed: Any = tol
    is_seen = not (xp.is_functional or xp.is_traced(residual))
    if is_seen and bool(xp.any((status == SUCCESS) & (residual > tol))):
        # The recurrence has lost sight of the residual, as long runs in single precision do: what
        # is left of it is solved for anew. The coefficients are those of the first run.
        allowed = attainable(xp, multiply, s.x, scale, tol)
        ops.take(multiply, None, precondition)
        for _ in range(REFINEMENTS):
            is_short = (status == SUCCESS) & (residual > allowed)
            if not bool(xp.any(is_short)):
                break
            again = cg.CGState(
                x=0 * left,
                r=ops.own(left),
                p=0 * left,
                rho=float("inf") + 0 * size,
                alpha=0 * size,
                size=(residual * scale) ** 2,
                status=xp.where(is_short, RUNNING, SUCCESS),
            )
            begun = loop.begin(again.status, size, again)
            more = loop.run(cg.step, ops, begun, lambda state: state.x).state.x
            s.x = s.x + xp.where(is_short[..., None, :], more, 0)
            before, left = residual, B - multiply(s.x)
            residual = column_norms(xp, left) / scale
            if not bool(xp.any(is_short & (residual < before))):
                break
    status = xp.where((status == SUCCESS) & (residual > allowed), STAGNATION, status)
    status = xp.where(xp.isfinite(residual), status, int(Status.NONFINITE))
    status = xp.maximum(status, s.heard)
    return Solved(
        X=s.x,
        alpha=s.diagonal,
        beta=s.beside,
        length=s.length,
        status=status,
        steps=s.j,
        residual=residual,
    )
