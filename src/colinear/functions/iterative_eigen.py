"""Some eigenpairs by iteration: when that is the better way, on which operator to run it, and how its answer is judged.

The extreme eigenvalues are found by products with A. Those nearest to zero, or to a shift, are the extreme ones of the inverse:
where structure makes that cheap the method runs on it. The answer is judged with A itself: its residuals are recomputed, whatever the
recurrence believes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array
from ..dispatch import Cost
from ..info import Info, MethodError, Status, planning, recording, report
from ..methods import LOBPCG, SVRG, Arnoldi, Auto, Lanczos, Method, PowerIteration
from ..methods.arnoldi import arnoldi
from ..methods.iteration import Progress, progress_bar
from ..methods.krylov import pick
from ..methods.lanczos import Pairs, lanczos
from ..methods.lobpcg import lobpcg
from ..methods.power_iteration import power_iteration
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.identity import ScaledIdentity
from ..operators.sparse import Sparse
from ..properties import POSITIVE_SEMIDEFINITE, STIEFEL
from ._factorise import is_half, narrow, quiet, seen
from ._spectral import by_key
from .inverse import LARGEST_DENSE, inv
from .sampled_subspaces import DIVERGED, sampled_pairs

SMALLEST = 400  # rows from which iterating may pay
DIFFERENTIABLE = 1500  # rows up to which derivatives are wanted more than speed: the dense way has all of them
STEPS = 8  # bases that a run is expected to fill, for the choice
PENALTY = 3  # on the expected cost of a run: it is a guess, and the dense way is certain
FILL = 40_000_000  # entries of triangular factors that are affordable
POWER_STEPS = 6  # products for the norm of A where the run is on its inverse
LARGE = 1000  # rows from which a factorisation pays for the outermost eigenvalues
EDGE = 0.25  # of the width of the outermost Ritz values, by which the shift is beyond them
FLOOR = 100  # roundings below which no tolerance is met


# ---------------------------------------------------------------------------------------------------- the choice


def is_affordable(A: LinearOperator) -> bool:
    """Whether the matrix may be formed: it is stored, or small."""
    return isinstance(A, Dense) or A.shape[-1] <= LARGEST_DENSE


def automatic(A: LinearOperator, k: int, which: str, method: Auto, is_hermitian: bool) -> Method | None:
    """The method that `Auto` iterates by; None for the dense way, which is for small matrices and for most of the spectrum."""
    n = A.shape[-1]
    chosen: Any = (Lanczos if is_hermitian else Arnoldi)(tol=method.tol, max_iters=method.max_iters)
    affordable = is_affordable(A)
    if k == 0 or n < SMALLEST or (5 * k > n and affordable):
        return None
    watched = any(A.xp.is_traced(leaf) or A.xp.is_differentiated(leaf) for leaf in A.leaves() if backends.is_array(leaf))
    if affordable and n <= DIFFERENTIABLE and watched:
        return None
    if not affordable:
        if 2 * k > n:
            raise MethodError(
                f"eig: {k} eigenpairs of an operator of {n}x{n} need its matrix, which is too large to be formed unasked. "
                f"Ask for fewer, or use eig(Dense(A.to_dense()))."
            )
        return chosen
    return chosen if PENALTY * cost(A, k, chosen).flops < dense_flops(A, is_hermitian) else None


def dense_flops(A: LinearOperator, is_hermitian: bool) -> float:
    n = A.shape[-1]
    form = 0.0 if isinstance(A, Dense) else n * A.flops
    return math.prod(A.batch_shape) * (9.0 if is_hermitian else 25.0) * n**3 + form


def cost(A: LinearOperator, k: int, method: Any) -> Cost:
    """What a run is expected to cost; its memory is sure."""
    n, batch = A.shape[-1], math.prod(A.batch_shape)
    if isinstance(method, SVRG):
        return Cost(batch * k * method.typical(n, n) * A.flops, 8.0 * batch * n * 5 * k)
    m = method.size(n, k)
    steps = STEPS * m
    return Cost(batch * steps * (A.flops + 8.0 * m * n), 8.0 * batch * n * (m + k + 3))


# ---------------------------------------------------------------------------------------------------- inverses


class Shifted(NamedTuple):
    """(A - shift I)^-1."""

    inverse: LinearOperator
    shift: float


def cheap_inverse(A: LinearOperator, shift: float | None) -> Shifted | None:
    """The inverse of A, or of A less a shift, where structure makes it cheap; None where nothing does.

    Of a singular A, and if none is asked for, the inverse at a small shift, below the spectrum if A is positive.
    """
    if planning():
        return None
    if shift is not None:
        inverse = _inverse(shifted(A, shift))
        return None if inverse is None else Shifted(inverse, shift)
    inverse = _inverse(A)
    if inverse is not None:
        return Shifted(inverse, 0.0)
    if not _is_cheap(A):
        return None
    xp = A.xp
    p = xp.ones((A.shape[-1], 1), dtype=A.dtype, device=A._context.device)
    size = seen(xp, xp.max(xp.abs(A @ p)))
    shift = -math.sqrt(xp.eps(A.dtype)) * float(size) if size is not None and np.isfinite(size) else 0.0
    inverse = _inverse(shifted(A, shift)) if shift else None
    return None if inverse is None else Shifted(inverse, shift)


def beyond_the_edge(A: LinearOperator, k: int, which: str, method: Any) -> Shifted | None:
    """The inverse at a shift just outside the spectrum, on the side where the wanted eigenvalues are: those nearest to it.

    A short run finds the edge. Only for large sparse matrices whose eigenvalues there are real, as far as that run can see: of complex
    ones the nearest need not be the outermost.
    """
    xp, n = A.xp, A.shape[-1]
    if n < LARGE or A.batch_shape or not isinstance(A, Sparse) or xp.is_traced(A.data) or not _is_cheap(A):
        return None
    generators = xp.split(xp.generator(method.seed))
    start, noise = (xp.normal(g, (n,), dtype=A.dtype, device=A._context.device) for g in generators)
    m = method.size(n, k)
    with quiet(xp):
        edge = arnoldi(xp, A.__matmul__, start, noise, k, which, m=m, tol=1e-3, max_matvecs=3 * m, again=False)
    values, size = seen(xp, edge.values), seen(xp, edge.size)
    width = float(np.ptp(values.real))
    if not np.isfinite(values).all() or np.abs(values.imag).max() > 1e-2 * width or width <= 1e-6 * float(size):
        return None
    outer = values.real.min() if which == "SR" else values.real.max()
    shift = float(outer - EDGE * width if which == "SR" else outer + EDGE * width)
    inverse = _inverse(shifted(A, shift))
    return None if inverse is None else Shifted(inverse, shift)


def shifted(A: LinearOperator, shift: float) -> LinearOperator:
    """A - shift I."""
    return A + ScaledIdentity(-shift, A.shape[-1]) if shift else A


def _inverse(A: LinearOperator) -> LinearOperator | None:
    if not _is_cheap(A):
        return None
    with quiet(A.xp):
        inverse, info = inv(A, info=True)
    return None if info.failed is True or info.status == Status.FELL_BACK else inverse


def _is_cheap(A: LinearOperator) -> bool:
    """Whether the inverse of A comes of structure, or of few enough numbers."""
    from .inverse_sparse_sums import added

    rule = inv.find(A)
    if rule.is_base:
        return isinstance(A, Dense)
    if rule.name == "inv_sum_of_sparse":
        A = added(A)
    if isinstance(A, Sparse):
        return envelope(A) <= FILL
    plan = inv.explain(A)
    dense = any(step.rule in ("Cholesky", "LDL", "LU", "QR") for step in plan.walk())
    return not dense or A.shape[-1] <= LARGEST_DENSE


def envelope(A: Any) -> float:
    """How many entries lie inside the envelope of a sparse matrix, rows and columns in the order of Cuthill and McKee: the factors
    have no more there, and in the order that is used mostly fewer."""
    memo = A.structure.memo
    if "envelope" not in memo:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        structure = A.structure
        n = structure.shape[0]
        graph = csr_array((np.ones(structure.nnz, np.int8), structure.columns, structure.indptr), shape=structure.shape)
        order = reverse_cuthill_mckee(graph + graph.T, symmetric_mode=True)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        rows, columns = place[structure.rows], place[structure.columns]
        first = np.arange(n)
        np.minimum.at(first, np.maximum(rows, columns), np.minimum(rows, columns))
        memo["envelope"] = float(2 * (np.arange(n) - first).sum() + n)
    return memo["envelope"]


# ---------------------------------------------------------------------------------------------------- the run


class Found(NamedTuple):
    """Eigenpairs as `eig` returns them, (*batch, k) and (*batch, n, k), and how good they are."""

    values: Array
    vectors: Array
    residual: Array
    matvecs: Any
    cycles: Any
    done: Any
    finite: Any
    stopped: bool


def iterated(A: LinearOperator, k: int, which: str, method: Any, is_hermitian: bool) -> tuple[Found, Status | Array]:
    """The pairs that `which` names, by this method, and the status."""
    xp = A.xp
    fixed = A._map(lambda leaf: xp.stop_gradient(leaf) if backends.is_array(leaf) else leaf)
    if isinstance(method, SVRG):
        return _sampled(xp, sampled_pairs(fixed, k, which, method))
    which = {"LR": "LA", "SR": "SA"}.get(which, which) if is_hermitian else which
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    if positive and which in ("LM", "SM"):
        which = which[0] + "A"
    shift = getattr(method, "shift", None)
    if shift is not None and which not in ("SM", "SA"):
        raise ValueError(f"eig: which={which!r} with a shift; use which='SM', the pairs nearest to it.")
    nearest = shift is not None or which == "SM" or (which == "SA" and positive)
    inverse = cheap_inverse(fixed, shift) if nearest and hasattr(method, "shift") else None
    _check(method, k, which)
    if isinstance(method, Arnoldi) and which in ("LR", "SR"):
        inverse = beyond_the_edge(fixed, k, which, method)
    if shift is not None and inverse is None:
        raise MethodError(f"eig: no cheap inverse of A - shift I is known, and {method.name}(shift=) needs one.")
    if method.callback is not None or method.progress:
        if xp.is_traced(next(fixed.leaves(), 0)):
            raise MethodError(
                f"eig: {method.name} cannot call back from inside a traced program; leave out callback and progress."
            )
    program = _program(xp.name, method.without_arrays(), k, which, None if inverse is None else inverse.shift, is_hermitian)
    n, batch, dtype = A.shape[-1], A.batch_shape, xp.float32 if is_half(xp, A.dtype) else A.dtype
    generators = xp.split(xp.generator(method.seed))
    start, noise = (xp.normal(g, (*batch, n), dtype=dtype, device=A._context.device) for g in generators)
    if method.x0 is not None:
        start = _given_start(xp, A, method, dtype)
    from ..preconditioners import as_preconditioner  # which is made of functions, so it comes after them

    with recording(), quiet(xp):
        M = as_preconditioner(getattr(method, "preconditioner", None), fixed)
        found = program(fixed, fixed if inverse is None else inverse.inverse, M, start, noise)
    return found, _status(xp, found, method.tolerance(xp, A.dtype))


def _sampled(xp: Any, run: Any) -> tuple[Found, Status | Array]:
    """A run of SVRG, which has judged its answer by A itself."""
    size = xp.where(run.norm > 0, run.norm, 1)
    status = run.status if xp.is_traced(run.status) else Status(int(run.status))
    finite = run.status != int(Status.NONFINITE)
    found = Found(run.values, run.vectors, run.residual / size, run.matvecs, run.epochs, run.status == 0, finite, False)
    return found, status


def _check(method: Any, k: int, which: str) -> None:
    if isinstance(method, LOBPCG) and which not in ("LA", "SA"):
        raise MethodError(
            f"eig: LOBPCG finds the ends of the spectrum, which='LA' or 'SA', not {which!r} of an operator of any sign."
        )
    if isinstance(method, PowerIteration) and (k != 1 or which[0] != "L"):
        raise MethodError("eig: PowerIteration finds one eigenvalue, the largest in magnitude: k=1, which='LM'.")


def _given_start(xp: Any, A: LinearOperator, method: Any, dtype: Any) -> Array:
    x0 = xp.asarray(method.x0, dtype=dtype, device=A._context.device)
    if x0.shape[-1] != A.shape[-1] or x0.ndim > len(A.batch_shape) + 1:
        raise ValueError(f"eig: x0 has shape {tuple(x0.shape)}; it must be (*batch, {A.shape[-1]}).")
    return xp.broadcast_to(x0, (*A.batch_shape, A.shape[-1]))


def _status(xp: Any, found: Found, tol: float) -> Any:
    """A `Status`, or an array of its value under tracing."""
    right = xp.all(found.residual <= tol)
    poor = int(Status.STAGNATION if tol < FLOOR * xp.eps(found.residual.dtype) else Status.INACCURATE)
    late = pick(xp, found.stopped, int(Status.STOPPED), int(Status.MAX_ITERATIONS))
    status = pick(xp, right, int(Status.SUCCESS), pick(xp, found.done, poor, late))
    status = pick(xp, found.finite, status, int(Status.NONFINITE))
    return status if xp.name == "jax" and xp.is_traced(status) else Status(int(status))


@functools.lru_cache(maxsize=256)
def _program(name: str, method: Any, k: int, which: str, shift: float | None, is_hermitian: bool) -> Callable[..., Found]:
    """The run as a function of operators and arrays alone: compiled by JAX once for each structure and shape."""
    xp = backends.get(name)

    def run(A: LinearOperator, B: LinearOperator, M: LinearOperator | None, start: Array, noise: Array) -> Found:
        if isinstance(method, (LOBPCG, PowerIteration)):
            pairs = _simple(xp, method, B, M, start, noise, k, which)
        else:
            pairs = _krylov(xp, method, B, start, noise, k, which if shift is None else "LM", shift is not None)
        V = xp.matrix_transpose(pairs.vectors)
        if is_hermitian:  # orthonormal to the last digit: V (V^H V)^(-1/2), of which this is the first step
            V = 1.5 * V - 0.5 * xp.matmul(V, xp.matmul(xp.conj(xp.matrix_transpose(V)), V))
        AV = A @ V
        values = xp.vecdot(V, AV, axis=-2)
        values = xp.real(values) if is_hermitian else values
        size = pairs.size if shift is None else _size(xp, A, noise)
        residual = xp.vector_norm(AV - V * values[..., None, :], axis=-2) / xp.where(size == 0, 1, size)[..., None]
        order = (
            xp.argsort(values, axis=-1, stable=True)
            if is_hermitian
            else by_key(xp, values - (shift or 0) if which == "SM" else values, which)
        )
        values, residual = (xp.take_along_axis(x, order, axis=-1) for x in (values, residual))
        V = xp.take_along_axis(V, xp.broadcast_to(order[..., None, :], V.shape), axis=-1)
        matvecs = pairs.matvecs + k + (0 if shift is None else POWER_STEPS)
        return Found(values, V, residual, matvecs, pairs.cycles, pairs.done, pairs.finite, pairs.stopped)

    return run if method.callback is not None or method.progress else xp.jit(run)


def _size(xp: Any, A: LinearOperator, x: Array) -> Array:
    """The norm of A from below, by a few powers."""
    size = xp.vector_norm(x, axis=-1)
    for _ in range(POWER_STEPS):
        x = (A @ (x / xp.where(size == 0, 1, size)[..., None])[..., None])[..., 0]
        size = xp.vector_norm(x, axis=-1)
    return size


def _krylov(xp: Any, method: Any, B: Any, start: Array, noise: Array, k: int, which: str, inverse: bool) -> Pairs:
    if start.ndim > 1 and isinstance(method, Arnoldi):
        return _one_by_one(xp, method, B, start, noise, k, which, inverse)
    n = start.shape[-1]
    m = method.size(n, k)
    return (lanczos if isinstance(method, Lanczos) else arnoldi)(
        xp,
        B.__matmul__,
        start,
        noise,
        k,
        which,
        m=m,
        tol=method.tolerance(xp, start.dtype),
        max_matvecs=method.limit(n, m),
        householder=method.orthogonalisation == "householder",
        again=method.repeated,
        relative=inverse,
        watch=watcher(method, k),
    )


def _one_by_one(xp: Any, method: Any, B: Any, start: Array, noise: Array, *rest: Any) -> Pairs:
    """The elements of a batch, one after the other."""
    batch = start.shape[:-1]
    runs: list[Any] = [_krylov(xp, method, B[i], start[i], noise[i], *rest) for i in np.ndindex(*batch)]
    values, vectors, size = (
        xp.reshape(xp.stack([run[i] for run in runs], axis=0), (*batch, *runs[0][i].shape)) for i in range(3)
    )
    matvecs, cycles = (sum(run[i] for run in runs) for i in (3, 4))
    done, finite = (functools.reduce(lambda a, b: a & b, [run[i] for run in runs]) for i in (5, 6))
    return Pairs(values, vectors, size, matvecs, cycles, done, finite, any(run.stopped for run in runs))


def _simple(xp: Any, method: Any, B: Any, M: Any, start: Array, noise: Array, k: int, which: str) -> Pairs:
    n = start.shape[-1]
    size, tol, watch = method.size(n, k), method.tolerance(xp, start.dtype), watcher(method, k)
    limit = method.limit(n, max(size, 50))
    if isinstance(method, PowerIteration):
        return power_iteration(xp, B.__matmul__, start, tol=tol, max_matvecs=limit, watch=watch)
    precondition = None if M is None else M.__matmul__
    largest = which == "LA"
    return lobpcg(xp, B.__matmul__, precondition, start, noise, k, largest, block=size, tol=tol, max_matvecs=limit, watch=watch)


def watcher(method: Any, k: int) -> Callable[[Any], bool] | None:
    """What a run calls after each cycle, if someone looks on."""
    if method.callback is None and not method.progress:
        return None
    bar = progress_bar(method.name) if method.progress else None

    def watch(state: Any) -> bool:
        residual: Any = state.residual[..., :k]
        if bar is not None:
            bar(int(state.matvecs), residual)
            if state.done:
                bar(None, None)
        if method.callback is None:
            return False
        vectors = lambda: state.V[..., :k, :]  # noqa: E731
        return bool(method.callback(Progress(int(state.matvecs), residual, vectors)))

    return watch


# ---------------------------------------------------------------------------------------------------- for `eig`


def iterative_pairs(
    A: LinearOperator, k: int, which: str, method: Any, is_hermitian: bool, otherwise: Callable[[], Any] | None
) -> tuple[Array, LinearOperator]:
    """Eigenpairs as `eig` returns them. Where the run fails, and there is one, `otherwise()` is returned."""
    xp = A.xp
    found, status = iterated(A, k, which, method, is_hermitian)
    if otherwise is not None and isinstance(status, Status) and status.is_failure and status is not Status.NONFINITE:
        report(
            Info(
                Status.FELL_BACK,
                matvecs=found.matvecs,
                message=f"{method.name} failed ({status.name}); the dense way gave the answer",
            )
        )
        return otherwise()
    tol = method.tolerance(xp, A.dtype)
    converged = found.residual <= tol
    report(
        Info(
            status,
            converged=converged,
            iterations=found.cycles,
            matvecs=found.matvecs,
            residual=found.residual,
            method=method.name,
            message=_message(xp, found, status, converged, is_hermitian),
        )
    )
    values, V = found.values, found.vectors
    leaves = [leaf for leaf in A.leaves() if backends.is_array(leaf)]
    if leaves and xp.is_differentiated(*leaves):
        moving = xp.vecdot(V, A @ V, axis=-2)  # dλ = v^H dA v of a self-adjoint A
        values = xp.real(moving) if is_hermitian else constant(xp, values, moving, "eigenvalues")
        V = constant(xp, V, moving, "eigenvectors")
    vectors = Dense(narrow(xp, V, A.dtype))
    return narrow(xp, values, A.dtype), vectors._claim(STIEFEL) if is_hermitian else vectors


def _message(xp: Any, found: Found, status: Any, converged: Array, is_hermitian: bool) -> str:
    if status is Status.NONFINITE:
        return f"at iteration {int(found.matvecs) - converged.shape[-1]}"
    if status is Status.BREAKDOWN:
        return DIVERGED
    if status is Status.INACCURATE and is_hermitian:
        return "A is not self-adjoint, as was claimed"
    if isinstance(status, Status) and status.is_failure:
        return f"{int(seen(xp, converged).sum())} of {converged.shape[-1]} pairs have converged"
    return ""


def constant(xp: Any, x: Array, values: Array, what: str) -> Array:
    """x, which depends on what `values` depend on, but of which no derivative can be taken: it is an error, or NaN in JAX, never 0."""

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"eig: the derivative of {what} found by iteration is not available. Use Eigh() or Eig().")

    def unknown(primals: Any, tangents: Any, output: Array) -> Array:
        return xp.astype(math.nan * xp.sum(tangents[1]), output.dtype) + 0 * output

    return xp.custom_derivative(lambda x, values: x + 0, jvp=unknown if xp.name == "jax" else refuse, vjp=refuse)(x, values)
