"""Some eigenpairs by iteration: on which operator, how one run goes, and how its answer is
judged."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Number, Real
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, eye_like, inner_products, positive_or_one, program, without_zeros
from ...errors import MethodError
from ...factors.runs import check_inner_failures
from ...info import Info, recording, report
from ...methods import LOBPCG, SVRG, Arnoldi, Lanczos, PowerIteration, Spectral
from ...methods.arnoldi import arnoldi
from ...methods.basis import Pairs, every
from ...methods.filtered import filtered
from ...methods.lanczos import lanczos
from ...methods.lobpcg import lobpcg
from ...methods.loop import Progress, progress_bar
from ...methods.power_iteration import power_iteration
from ...operators import LinearOperator
from ...operators.autograd import make_ready
from ...operators.context import has_traced
from ...properties import POSITIVE_SEMIDEFINITE
from ...status import Status, first_failure, known_status, state
from ..common import (
    host_value,
    ignore_float_errors,
    is_half,
)
from .order import Asked, by_key, take_columns
from .shift_invert import (
    DIVERGED,
    Shifted,
    assembled,
    beyond,
    cheap_inverse,
    edge_of,
    inverse_at,
    random_starts,
    sampled_pairs,
)

# One run of an iterative eigenvalue method, as a function of operators and arrays: compiled by JAX
# once for each structure.


PATIENCE = 20  # bases filled by A alone, before a polynomial of it is used
# times as many products are allowed inside a polynomial, where nothing is orthogonalised
CHEAPER = 6
COLUMNS = 4  # multiplied at a time, to judge pairs
POWER_STEPS = 6  # products for the norm of A where the run is on its inverse


class Found(NamedTuple):
    """Eigenpairs as `eig` returns them, (*batch, k) and (*batch, n, k), and how good they are."""

    values: Array
    vectors: Array
    residual: Array
    matvecs: Any
    iterations: Any
    done: Any
    finite: Any
    stopped: bool


def program_of(function: str, A: LinearOperator, run: Any, method: Any, *static: Any) -> Any:
    """A run as a function of operators and arrays, compiled by JAX unless someone is called from
    it."""
    xp = A.xp
    is_traced = xp.is_traced(next(A.leaves(), 0))
    if not isinstance(method, Spectral):
        return program(xp.name, run, method, *static)
    if state.display is not None and not (xp.is_functional or is_traced):
        method = replace(method, progress=True)
    if method.callback is None and not method.progress:
        return program(xp.name, run, method, *static)
    if is_traced:
        raise MethodError(
            f"{function}: {method.name} cannot call back from inside a traced program; leave out "
            "callback and progress."
        )
    return functools.partial(run, xp, method, *static)


def _run(
    xp: Any,
    method: Any,
    k: int,
    which: str,
    is_inverse: bool,
    is_hermitian: bool,
    A: LinearOperator,
    B: LinearOperator,
    M: LinearOperator | None,
    start: Array,
    noise: Array,
) -> Found:
    """One run. `is_inverse` says whether it is on the inverse B of A less a shift, whose largest
    pairs are those that `which` names."""
    shift = getattr(method, "shift", None) or 0.0
    A, B = (make_ready(A),) * 2 if A is B else (make_ready(A), make_ready(B))
    if isinstance(method, (LOBPCG, PowerIteration)):
        pairs = _simple(xp, method, B, M, start, noise, k, which)
    else:
        pairs = _krylov(xp, method, B, start, noise, k, "LM" if is_inverse else which, is_inverse)
    V = xp.matrix_transpose(pairs.vectors)
    pairs = pairs._replace(vectors=None)  # so that they can go
    # orthonormal to the last digit: V (V^H V)^(-1/2), of which this is the first step
    if is_hermitian:
        G = inner_products(xp, V, V)
        V = xp.matmul(V, 1.5 * eye_like(xp, V) - 0.5 * G)
    values, residual = _quotients(xp, A, V, is_hermitian)
    size = norm_from_below(xp, A, noise[..., None]) if is_inverse else pairs.size
    residual = residual / without_zeros(xp, size)[..., None]
    # no vector was found
    residual = xp.where(xp.vector_norm(V, axis=-2) > 0.5, residual, 1 + 0 * residual)
    if is_hermitian:
        order = xp.argsort(values, axis=-1, stable=True)
    else:
        order = by_key(xp, values - shift if shift else values, which)
    values, residual = (xp.take_along_axis(x, order, axis=-1) for x in (values, residual))
    matvecs = pairs.matvecs + k + (POWER_STEPS if is_inverse else 0)
    return Found(values, take_columns(xp, V, order), residual, matvecs, *pairs[4:])


def _quotients(xp: Any, A: LinearOperator, V: Array, is_hermitian: bool) -> tuple[Array, Array]:
    """The Rayleigh quotients v^H A v and |A v - λ v| of the columns of V, a few at a time:
    products may take memory of their own."""
    k = V.shape[-1]
    width = k if xp.name == "jax" else COLUMNS
    values, residuals = [], []
    for i in range(0, k, width):
        X = V[..., i : i + width]
        AX = A @ X
        quotients = xp.vecdot(X, AX, axis=-2)
        values.append(xp.real(quotients) if is_hermitian else quotients)
        residuals.append(xp.vector_norm(AX - X * values[-1][..., None, :], axis=-2))
    return xp.concat(values, axis=-1), xp.concat(residuals, axis=-1)


def norm_from_below(
    xp: Any, A: LinearOperator, x: Array, back: LinearOperator | None = None
) -> Array:
    """|A| from below, (*batch,), by a few powers of A, or of `back` A, from the column x."""
    for _ in range(POWER_STEPS):
        x = A @ (x / without_zeros(xp, xp.vector_norm(x, axis=-2))[..., None, :])
        size = xp.vector_norm(x, axis=-2)[..., 0]
        x = x if back is None else back @ x
    return size


def _krylov(
    xp: Any, method: Any, B: Any, start: Array, noise: Array, k: int, which: str, inverse: bool
) -> Pairs:
    if start.ndim > 1 and isinstance(method, Arnoldi):
        return _one_by_one(xp, method, B, start, noise, k, which, inverse)
    n = start.shape[-1]
    m = method.size(n, k)
    limit = method.limit(n, m)
    most = limit * (CHEAPER if method.max_iters is None else 1)
    shift = 0.0 if inverse else method.shift or 0.0
    options: Any = {
        "m": m,
        "tol": method.tolerance(xp, start.dtype),
        "householder": method.orthogonalisation == "householder",
        "again": method.repeated,
        "watch": watcher(method, k),
    }

    def run(algorithm: Any, start: Array, most: Any, **more: Any) -> Pairs:
        vectors = start, noise, k, which
        return algorithm(xp, B.__matmul__, *vectors, max_iters=most, **options, **more)

    if isinstance(method, Arnoldi):
        return run(arnoldi, start, limit, shift=shift, relative=inverse)
    if which == "SM" and m < n:  # inside the spectrum
        return run(filtered, start, most, shift=shift)
    if which != "SA" or inverse or xp.name == "jax" or limit <= PATIENCE * m:
        return run(lanczos, start, limit, shift=shift, relative=inverse)
    pairs = run(lanczos, start, limit, patience=PATIENCE * m)
    if pairs.done or pairs.stopped or not pairs.finite:
        return pairs
    start = xp.sum(pairs.vectors, axis=-2)
    more = run(filtered, start, most - pairs.iterations, shift=None)
    return _after(more, pairs)


def _after(second: Any, first: Any) -> Any:
    """A run with the counts of the one before it."""
    return second._replace(
        matvecs=first.matvecs + second.matvecs, iterations=first.iterations + second.iterations
    )


def _one_by_one(xp: Any, method: Any, B: Any, start: Array, noise: Array, *rest: Any) -> Pairs:
    """The elements of a batch, one after the other."""
    batch = start.shape[:-1]
    runs = [_krylov(xp, method, B[i], start[i], noise[i], *rest) for i in np.ndindex(*batch)]
    each: Any = Pairs._make(zip(*runs))  # what all runs have found, by fields
    together = lambda x: xp.reshape(xp.stack(x, axis=0), (*batch, *x[0].shape))
    everywhere = functools.partial(functools.reduce, operator.and_)
    return Pairs(
        values=together(each.values),
        vectors=together(each.vectors),
        size=together(each.size),
        matvecs=sum(each.matvecs),
        iterations=sum(each.iterations),
        done=everywhere(each.done),
        finite=everywhere(each.finite),
        stopped=any(each.stopped),
    )


def _simple(
    xp: Any, method: Any, B: Any, M: Any, start: Array, noise: Array, k: int, which: str
) -> Pairs:
    n = start.shape[-1]
    size = method.size(n, k)
    tol, limit = method.tolerance(xp, start.dtype), method.limit(n, size)
    options: Any = {"tol": tol, "max_iters": limit, "watch": watcher(method, k)}
    if isinstance(method, PowerIteration):
        return power_iteration(xp, B.__matmul__, start, **options)
    precondition = None if M is None else M.__matmul__
    largest = which == "LA"
    return lobpcg(xp, B.__matmul__, precondition, start, noise, k, largest, block=size, **options)


def watcher(method: Any, k: int) -> Callable[[Any], bool] | None:
    """What a run calls after each cycle, if someone looks on."""
    if method.callback is None and not method.progress:
        return None
    bar = progress_bar(method.name) if method.progress else None

    def watch(state: Any) -> bool:
        residual: Any = state.residual[..., :k]
        if bar is not None:
            bar(int(state.iterations), residual)
            if state.done:
                bar(None, None)
        if method.callback is None:
            return False
        vectors = lambda: state.V[..., :k, :]
        return bool(method.callback(Progress(int(state.iterations), residual, vectors)))

    return watch


# Some eigenpairs by iteration: on which operator to run it, and how its answer is judged.
#
# The extreme eigenvalues are found by products with A. Those nearest to zero, or to a shift, are
# the extreme ones of the inverse: where structure makes that cheap the method runs on it. The
# answer is judged with A itself: its residuals are recomputed, whatever the recurrence believes.


FLOOR = 100  # roundings below which no tolerance is met


def _iterated(asked: Asked) -> tuple[Found, Any, list[Info]]:
    """The pairs that are asked for, the status, and what was reported on the way."""
    A, k, which, is_hermitian, _, method = asked
    xp, fixed = A.xp, A.detach()
    tol = method.tolerance(xp, A.dtype)
    if isinstance(method, SVRG):
        return (*_sampled(xp, sampled_pairs(fixed, k, which, method)), [])
    shift = getattr(method, "shift", None)
    if shift is not None and which != "SM":
        raise ValueError(
            f"eig: which={which!r} with a shift; use which='SM', the pairs nearest to it."
        )
    which = {"LR": "LA", "SR": "SA"}.get(which, which) if is_hermitian else which
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    if positive and shift is None and which in ("LM", "SM"):
        which = which[0] + "A"
    _check(method, k, which)
    if shift is not None or which[0] == "S" or which == "LR":
        fixed = assembled(fixed)  # its inverse is cheaper than that of the sum
    # else the basis spans the space: no pair can be missed
    is_partial = isinstance(method, Arnoldi) and method.size(asked.n, k) < asked.n
    edge = inverse = None
    if shift is not None:
        inverse = inverse_at(fixed, shift, form=is_partial)
        if inverse is None and is_partial:
            raise MethodError(
                "eig: no cheap inverse of A - shift I is known, which Arnoldi(shift=) needs: the "
                "pairs nearest to a number inside the spectrum of an operator that is not self-"
                "adjoint cannot be found from products alone. Use eig(Dense(A.to_dense()), ...) "
                "if the matrix fits into memory."
            )
    elif (which == "SM" or (which == "SA" and positive)) and hasattr(method, "shift"):
        inverse = cheap_inverse(fixed)
    elif isinstance(method, Arnoldi) and which in ("LR", "SR"):
        edge = edge_of(fixed, k, which, method)
        inverse = None if edge is None else beyond(fixed, edge, far=False)
    dtype = xp.float32 if is_half(xp, A.dtype) else A.dtype
    if isinstance(shift, Number) and not isinstance(shift, Real):
        dtype = xp.complex_dtype(dtype)
    start, noise = random_starts(A, method, dtype)
    if method.x0 is not None:
        start = _given_start(xp, A, method, dtype)
    from ...preconditioners import as_preconditioner  # made of functions, so it comes after them

    with recording() as dropped, ignore_float_errors(xp):
        M = as_preconditioner(getattr(method, "preconditioner", None), fixed)

        def run(inverse: Shifted | None) -> Found:
            options = k, which, inverse is not None, is_hermitian
            run = program_of("eig", fixed, _run, method.without_arrays(), *options)
            return run(fixed, fixed if inverse is None else inverse.inverse, M, start, noise)

        found = run(inverse)
        if edge and inverse and edge.is_beyond(host_value(xp, found.values), inverse.shift.real):
            inverse = beyond(fixed, edge, far=True)
            found = _after(run(inverse), found)
    done = found.done
    if inverse is None and is_partial and which in ("SM", "SI"):
        # Ritz values inside the spectrum may be anything: nothing says that none is nearer
        done = False
    elif inverse is not None and inverse.failed is not False:
        done = done & ~inverse.failed  # pairs of what is no inverse may not be the nearest
    # pairs that are right may not be the ones asked for, unless the run came to its end
    right = every(xp, found.residual <= tol)
    right = right & done if isinstance(method, (Lanczos, Arnoldi)) else right
    ended = done, found.finite, found.stopped
    return found, status_of_run(xp, right, ended, tol, dtype), dropped


def _sampled(xp: Any, run: Any) -> tuple[Found, Status | Array]:
    """A run of SVRG, which has judged its answer by A itself."""
    residual = run.residual / positive_or_one(xp, run.norm)
    ended = run.status == 0, run.status != int(Status.NONFINITE), False
    found = Found(run.values, run.vectors, residual, run.matvecs, run.epochs, *ended)
    return found, known_status(xp, run.status)


def check_visible(function: str, A: LinearOperator, method: str) -> None:
    """An error inside torch.func.vmap or torch.compile, where a run cannot see whether it has
    converged."""
    if A.xp.name == "torch" and has_traced(A):
        raise MethodError(
            f"{function}: {method} looks at values, which torch.func.vmap and torch.compile hide. "
            "Give it the whole batch, "
            f"as an operator of shape (*batch, n, n), or use the dense method."
        )


def _check(method: Any, k: int, which: str) -> None:
    if isinstance(method, LOBPCG) and which not in ("LA", "SA"):
        raise MethodError(
            f"eig: LOBPCG finds the ends of the spectrum, which='LA' or 'SA', not {which!r} of an "
            "operator of any sign."
        )
    if isinstance(method, PowerIteration) and (k != 1 or which[0] != "L"):
        raise MethodError(
            "eig: PowerIteration finds one eigenvalue, the largest in magnitude: k=1, which='LM'."
        )


def _given_start(xp: Any, A: LinearOperator, method: Any, dtype: Any) -> Array:
    x0 = xp.asarray(method.x0, dtype=dtype, device=A._context.device)
    if x0.shape[-1] != A.shape[-1] or x0.ndim > len(A.batch_shape) + 1:
        raise ValueError(
            f"eig: x0 has shape {tuple(x0.shape)}; it must be (*batch, {A.shape[-1]})."
        )
    return xp.broadcast_to(x0, (*A.batch_shape, A.shape[-1]))


def status_of_run(xp: Any, right: Any, ended: Sequence[Any], tol: float, dtype: Any) -> Any:
    """A `Status`, or an array of its value under tracing, of a run that ended so: whether it was
    done, is finite, and was stopped."""
    done, finite, stopped = ended
    poor = Status.STAGNATION if tol < FLOOR * xp.eps(dtype) else Status.INACCURATE
    return first_failure(
        xp,
        (finite, Status.NONFINITE),
        (right | done | stopped, Status.MAX_ITERATIONS),
        (right | done, Status.STOPPED),
        (right, poor),
    )


# --------------------------------------------------------------------------------------------------


def report_run(info: Info, otherwise: Any) -> bool:
    """Report a run; or, where it has failed and there is another way, that this is taken. Whether
    it is."""
    status = info._status
    failed = isinstance(status, Status) and status.is_failure and status is not Status.NONFINITE
    if otherwise is None or not failed:
        report(info)
        return False
    message = f"{info.method} failed ({status.name}); another way gave the answer"
    report(Info(Status.FELL_BACK, matvecs=info.matvecs, message=message))
    return True


def iterative_pairs(
    asked: Asked, otherwise: Callable[[], Any] | None
) -> tuple[Array, LinearOperator]:
    """Eigenpairs as `eig` returns them. Where the run fails, and there is one, `otherwise()` is
    returned."""
    A, method, xp = asked.A, asked.chosen, asked.A.xp
    check_visible("eig", A, method.name)
    found, status, dropped = _iterated(asked)
    converged = found.residual <= method.tolerance(xp, A.dtype)
    message = _message(asked, found, status, converged)
    counts = found.iterations, found.matvecs
    info = Info(status, converged, *counts, found.residual, method=method.name, message=message)
    info = check_inner_failures(info, A, xp.stop_gradient(found.vectors), dropped)
    if report_run(info, otherwise) and otherwise is not None:
        return otherwise()
    return asked.attached(found.values, found.vectors)


def _message(asked: Asked, found: Found, status: Any, converged: Array) -> str:
    xp, method = asked.A.xp, asked.chosen
    has_shift = bool(getattr(method, "shift", None))
    if status is Status.NONFINITE:
        return f"at iteration {int(found.matvecs) - converged.shape[-1]}"
    if status is Status.BREAKDOWN:
        return DIVERGED
    if status is Status.INACCURATE and asked.is_hermitian:
        is_lost = "A is lost in the roundings of a shift that is far larger than it, or "
        return f"{is_lost if has_shift else ''}A is not self-adjoint, as was claimed"
    if not isinstance(status, Status) or not status.is_failure:
        return ""
    count = int(host_value(xp, converged).sum())
    if count == math.prod(converged.shape):
        return (
            "the pairs are right, but whether they are the ones that were asked for is not certain"
        )
    message = f"{count} of {converged.shape[-1]} pairs have converged"
    is_short = status is Status.MAX_ITERATIONS and isinstance(method, Spectral)
    return f"{message}; {method.advice}" if is_short else message
