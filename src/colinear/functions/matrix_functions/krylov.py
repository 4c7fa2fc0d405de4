"""f(A) as an operator whose products run a Krylov method: for A too large to be formed, and
where `Krylov()` is asked for."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import replace
from typing import Any

import numpy as np

from ... import autodiff, backends
from ...backends import Array, eye_like, program
from ...dispatch import Cost
from ...errors import MethodError
from ...factors.function import FunctionOf
from ...info import Info, recording, report
from ...methods import Auto, Krylov, Method
from ...methods.basis import larger, plain
from ...methods.krylov_function import function_times
from ...operators import Dense, LinearOperator, Scaled
from ...operators.autograd import linearised
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import FIRST_FAILURE, Status, combine, first_failure, known_status
from .. import matrix_functions
from ..common import ignore_float_errors, to_result_dtype
from ..solve.inverse import LARGEST_DENSE
from .krylov_derivatives import (
    KrylovRuns,
    by_rows,
    partitions,
    perturbed,
    relative_change,
    ritz_values,
    starts_of,
)
from .spectra import closed_over, refuse_derivative

STEPS = 200  # the most of a run, unless told
MOVED = 0.125  # roundings of the largest Ritz value by which the others are wrong, as measured
ZERO = 10  # roundings of the largest Ritz value up to which another is zero
CUT = 16  # roundings of the largest entry up to which an eigenvalue is on the negative axis
LOST = 1e-6  # of a product that is said to be real, the imaginary part that is lost with a status
COMPLEX = "f is complex on the spectrum of A, and the product of a real A is kept real: give A as a complex operator"
ROOM = 30_000_000  # numbers in the bases of the columns that are run together


def runs_krylov(A: LinearOperator, method: Method) -> bool:
    """Whether f(A) is left to products: it is asked for, or A is too large to be formed."""
    if isinstance(method, Krylov):
        return True
    return isinstance(method, Auto) and A.shape[-1] > LARGEST_DENSE and not isinstance(A, Dense)


def krylov_operator(A: LinearOperator, f: Any, method: Method) -> LinearOperator:
    """f(A) for a `Scalar` f of `matrix_functions`."""
    hermitian = bool(A.properties & SELF_ADJOINT)
    positive = hermitian and bool(A.properties & POSITIVE_SEMIDEFINITE)
    chosen = method if isinstance(method, Krylov) else Krylov(tol=method.tol)
    is_complex = A.is_complex or (f.principal and not positive)
    evaluate = functools.partial(_evaluate, f, chosen, is_complex)
    becomes_complex, mirrored = is_complex and not A.is_complex, f.name != "apply" or hermitian
    function = FunctionOf._of(A, evaluate, f.name, becomes_complex, mirrored)
    if not hermitian or (f.principal and not positive):
        return function
    return function._claim(f.claims)


def cost(A: LinearOperator, method: Any) -> Cost:
    """Of one product with f(A)."""
    n, steps = A.shape[-1], getattr(method, "max_iters", None) or STEPS
    return Cost(steps * (A.flops + 4.0 * steps * n), 8.0 * steps * n)


def _evaluate(f: Any, method: Krylov, is_complex: bool, A: LinearOperator, X: Array) -> Array:
    """f(A) X, columns in groups for which there is room; reports how it went."""
    xp = backends.namespace_of(X)
    leaves = A.arrays()
    if xp.is_compiling():
        raise MethodError(
            f"{f.name}: Krylov looks at values, which torch.compile hides. Call it outside of "
            "what is compiled."
        )
    batch = A.batch_shape if X.ndim == 2 else X.shape[:-2]
    dtype = xp.result_type(X.dtype, A.dtype)
    out = xp.complex_dtype(dtype) if is_complex else dtype
    if 0 in X.shape:
        return xp.zeros((*batch, *X.shape[-2:]), dtype=out, device=xp.device_of(X))
    X = xp.broadcast_to(X, (*batch, *X.shape[-2:]))
    if xp.is_complex(X) and not A.is_complex:
        # In real arithmetic Ritz values on a cut stay there. In complex arithmetic rounding would
        # move each to a side of its own.
        k = X.shape[-1]
        Y = _evaluate(f, method, is_complex, A, xp.concat([xp.real(X), xp.imag(X)], axis=-1))
        return Y[..., :k] + 1j * Y[..., k:]
    runs, hidden = KrylovRuns(f, method), closed_over(f, A)
    # else torch records the run itself
    if hidden and (xp.name == "jax" or xp.is_differentiated(X, *leaves)):
        X = X + xp.astype(refuse_derivative(A, hidden, "Krylov()"), X.dtype)
    # under vmap: one after the other
    if xp.name == "torch" and any(xp.is_traced(x) for x in (X, *leaves)):
        return autodiff.krylov_product(runs, A, xp.astype(X, out), None)
    held = xp.astype(xp.stop_gradient(X), dtype)
    result, error, steps, status, parts = _product(xp, f, method, A.detach(), held)
    tol, message = method.tolerance(xp, dtype), ""
    if xp.is_complex(result) and not xp.is_complex(out):  # which is cut off
        lost = xp.max(xp.abs(xp.imag(result))) > max(tol, LOST) * xp.max(xp.abs(result))
        status = combine([status, first_failure(xp, (xp.logical_not(lost), Status.INACCURATE))])
        message = COMPLEX if not xp.is_traced(lost) and bool(lost) else ""
        result = xp.real(result)
    iterations = steps // X.shape[-1] if isinstance(steps, int) else None
    report(
        Info(
            known_status(xp, status),
            error <= tol,
            iterations,
            matvecs=steps,
            error=error,
            method="Krylov",
            message=message,
        )
    )
    result = xp.astype(result, out)
    if not xp.is_differentiated(X, *leaves):
        return result
    X, B = xp.astype(X, out), part_of(A, parts)
    for _ in range(parts - 1):  # an exponential taken in parts is differentiated so
        X = autodiff.krylov_product(runs, B, X, None)
    return autodiff.krylov_product(runs, B, X, result)


def _product(
    xp: Any, f: Any, method: Krylov, A: LinearOperator, X: Array
) -> tuple[Array, Array, Any, Any, int]:
    """f(A) X, its estimated error, the products with A, the worst status, and in how many parts
    an exponential was taken."""
    m, width = _sizes(A, X, method)
    tol = method.tolerance(xp, X.dtype)
    groups, errors, steps, statuses, most = [], [], 0, [], 1
    for i in range(0, X.shape[-1], width):
        group, count = X[..., i : i + width], 0
        # exp(A) X = exp(A/s) ... exp(A/s) X, with s doubled until one part converges
        for parts in partitions(f, method):
            run = program(xp.name, _program, f, replace(method, tol=tol / parts), m)
            B = part_of(A, parts)
            Y, error, more, status = run(B, group)
            count = count + more
            if not ran_out(xp, status) if parts == 1 else int(status) == Status.SUCCESS:
                break
        else:
            parts = 1
        # errors of parts add up; where they would shrink, that is on the safe side
        for _ in range(parts - 1):
            Y, rest, more, again = run(B, Y)
            error, count, status = error + rest, count + more, combine([status, again])
        most = max(most, parts)
        groups.append(Y)
        errors.append(error)
        statuses.append(status)
        steps = steps + count * group.shape[-1]
    return xp.concat(groups, axis=-1), xp.concat(errors, axis=-1), steps, combine(statuses), most


def part_of(A: LinearOperator, parts: int) -> LinearOperator:
    """A / parts."""
    return A if parts == 1 else (1 / parts) * A


def _sizes(A: LinearOperator, X: Array, method: Krylov) -> tuple[int, int]:
    """The most steps of a run, and how many columns there is room for."""
    m = min(A.shape[-1], method.max_iters or STEPS)
    return m, max(1, ROOM // (m * A.shape[-1] * math.prod(X.shape[:-2])))


def ran_out(xp: Any, status: Any) -> bool:
    """Whether a run is seen to have ended for want of steps."""
    return known_status(xp, status) is Status.MAX_ITERATIONS


def _program(xp: Any, f: Any, method: Krylov, m: int, A: LinearOperator, X: Array) -> Any:
    """One run, a program in JAX."""
    A = linearised(A)
    (start,), noise, (size,), tol = starts_of(xp, method, X)
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    options: Any = {"m": m, "tol": tol, "has_pole": f.pole}
    with ignore_float_errors(xp):
        A, c = _turned(A)
        if A.properties & SELF_ADJOINT:
            small = functools.partial(_of_hermitian, xp, f, positive, c)
            multiply = by_rows(xp, A.__matmul__)
            each = lambda X: multiply(X[..., 0])[..., None]
            found = function_times(xp, each, start, noise, small, hermitian=True, **options)
        else:
            found = _one_by_one(xp, A, start, noise, f, options)
    Y, error, steps, done, _, doubt = found
    given = size != 0  # NaN is
    Y = xp.where(given[..., None], Y, 0)  # whatever the run from a random vector found
    done = done | plain(xp, xp.all((error <= tol) | xp.logical_not(given)))
    doubtful = plain(xp, xp.any(given & xp.logical_not(doubt <= tol)))
    status = first_failure(
        xp,
        (xp.all(xp.logical_not(given) | (doubt != math.inf)), Status.SINGULAR),
        (xp.all(xp.isfinite(Y)), Status.NONFINITE),
        (done | doubtful, Status.MAX_ITERATIONS),
        (done, Status.INACCURATE),
    )
    return (
        to_result_dtype(xp, xp.matrix_transpose(Y), X.dtype),
        xp.where(given, error, 0 * size),
        steps,
        status,
    )


def _turned(A: LinearOperator) -> tuple[LinearOperator, Any]:
    """B and c of A = c B with B self-adjoint and A not, as in exp(-i t H): Lanczos serves there
    too. Else A and None."""
    if (
        isinstance(A, Scaled)
        and A.A.properties & SELF_ADJOINT
        and not A.properties & SELF_ADJOINT
        and not A.A.is_complex
        and not getattr(A.scalar, "ndim", 0)
    ):
        return A.A, A.scalar
    return A, None


def _one_by_one(xp: Any, A: Any, start: Array, noise: Array, f: Any, options: Any) -> Any:
    """Arnoldi for each column of each element of a batch."""
    lanes, runs = start.shape[:-1], []
    small = functools.partial(_of_general, xp, f)
    for place in np.ndindex(*lanes):
        multiply = (A[place[:-1]] if len(place) > 1 else A).__matmul__
        given = start[place], noise[place]
        runs.append(function_times(xp, multiply, *given, small, hermitian=False, **options))
    together = {}
    for name in ("X", "error", "doubt"):
        arrays = [getattr(run, name) for run in runs]
        together[name] = xp.reshape(xp.stack(arrays, axis=0), (*lanes, *arrays[0].shape))
    return runs[0]._replace(
        **together,
        steps=functools.reduce(functools.partial(larger, xp), [run.steps for run in runs]),
        done=functools.reduce(operator.and_, [run.done for run in runs]),
    )


# --------------------------------------------------------------------------------------------------


def _of_hermitian(xp: Any, f: Any, positive: bool, c: Any, T: Array) -> tuple[Array, Array, Array]:
    """The first column of f(T) = Q f(Λ) Q^H, or of f(c T), as a column times e^s.

    It is as good as f is where Ritz values move by a part of a rounding of the largest: near a pole
    that is little.
    """
    values, Q = xp.eigh(T)
    if c is not None:
        values = c * values
        Q = xp.astype(Q, values.dtype)
    (values,), scale = ritz_values(xp, f, positive, int(f.pole), values)
    weights = f.of(xp, values) * xp.conj(Q[..., 0, :])
    doubt = _doubt_near_pole(xp, f, values, weights, Q[..., 0, :]) if f.pole else 0 * scale
    return xp.matmul(Q, weights[..., None])[..., 0], scale, doubt


def _doubt_near_pole(xp: Any, f: Any, values: Array, weights: Array, first: Array) -> Array:
    """The relative change of f(T) e_1 if all Ritz values move as they do by rounding; infinite
    if one that counts cannot be told from zero."""
    eps, size = xp.eps(values.dtype), xp.abs(values)
    largest = xp.max(size, axis=-1, keepdims=True)
    moved = f.of(xp, values + xp.astype(MOVED * eps * largest, values.dtype)) * xp.conj(first)
    zero = xp.any((size <= ZERO * eps * largest) & (xp.abs(first) > math.sqrt(eps)), axis=-1)
    doubt = relative_change(xp, weights, moved, 1)
    return xp.where(xp.logical_or(zero, doubt != doubt), math.inf, doubt)


def _of_general(xp: Any, f: Any, H: Array) -> tuple[Array, Array, Array]:
    """The first column of f(H), as c e^s, by the dense algorithm of each function, which needs
    no eigenvectors and judges itself. Those of other f do: what they are worth shows when H is
    moved by a few roundings."""
    scale = doubt = 0 * xp.real(H[..., 0, 0])
    if f.name == "exp":
        scale = xp.max(xp.real(xp.eigvals(H)), axis=-1)
        H = H - xp.astype(scale, H.dtype)[..., None, None] * eye_like(xp, H)
    if f.name == "exp" or (f.name in ("log", "sqrt", "isqrt") and xp.name != "jax"):
        dense = getattr(matrix_functions, f.name)
        with recording() as reports:
            column = dense(Dense(_above_cut(xp, H) if f.principal else H)).to_dense()[..., :, 0]
        doubt = doubt + _doubt_of(xp, reports)
    else:
        column = _by_eigenvectors(xp, f, H)
        doubt = relative_change(xp, column, _by_eigenvectors(xp, f, perturbed(xp, H)), 1)
        if f.mirrored and not xp.is_complex(H):
            column = xp.real(column)
    if f.principal or f.name == "apply":
        column = xp.astype(column, xp.complex_dtype(column.dtype))
    return column, scale, doubt


def _doubt_of(xp: Any, reports: list[Info]) -> Any:
    """What the status of a dense function says of its result: nothing is wrong, all may be, or
    there is none."""
    worst = combine([info._status for info in reports])
    if not isinstance(worst, Status):  # it cannot be seen yet
        doubt = xp.where(worst >= int(FIRST_FAILURE), 1.0, 0.0)
        return xp.where(worst == int(Status.SINGULAR), math.inf, doubt)
    if worst is Status.SINGULAR:
        return math.inf
    return float(worst.is_failure)


def _above_cut(xp: Any, H: Array) -> Array:
    """A complex H, moved by a few roundings if eigenvalues are within that of the negative axis,
    so that all of these are above it."""
    if not xp.is_complex(H):  # whose real eigenvalues are real to the last digit
        return H
    values, step = xp.eigvals(H), CUT * xp.eps(H.dtype) * xp.max(xp.abs(H))
    if not bool(xp.any((xp.abs(xp.imag(values)) <= step) & (xp.real(values) < -step))):
        return H
    return H + 2j * step * eye_like(xp, H)


def _by_eigenvectors(xp: Any, f: Any, H: Array) -> Array:
    values, V = xp.eig(H)
    if f.principal:  # within rounding of the cut they are on it, and so above it
        flat = (xp.abs(xp.imag(values)) <= CUT * xp.eps(H.dtype) * xp.max(xp.abs(values))) & (
            xp.real(values) < 0
        )
        values = xp.where(flat, xp.astype(xp.real(values), values.dtype), values)
    unit = eye_like(xp, V)[:, :1]
    return xp.matmul(V, f.of(xp, values)[..., None] * xp.lu_solve(*xp.lu_factor(V), unit))[..., 0]
