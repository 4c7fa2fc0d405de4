"""f(A) as an operator whose products run a Krylov method: where `Krylov()` is asked for, where A is
too large to be formed, and where few columns come cheaper so."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import autodiff
from ...autodiff.krylov import Dual
from ...backends import Array, eye_like, namespace_of, program
from ...dispatch import Cost
from ...dispatch.resolution import perform
from ...errors import MethodError
from ...factors.function import FunctionOf
from ...info import Info, planning, recording, report, worst_status
from ...methods import Auto, Krylov, Method
from ...methods.basis import larger, plain
from ...methods.krylov_function import function_times
from ...operators import Dense, LinearOperator, Scaled
from ...operators.autograd import make_ready
from ...operators.autograd_products import pullback
from ...operators.context import kind_of
from ...operators.matrixfree import by_real_parts
from ...operators.rewrites import rewrite
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import FIRST_FAILURE, Status, combine, deliver, first_failure, known_status
from .. import matrix_functions
from ..common import (
    host_value,
    ignore_float_errors,
    real_or_complex,
    report_all,
    to_result_dtype,
    with_status,
)
from ..solve.cost import products_cost
from ..spectrum.order import is_affordable
from .krylov_derivatives import (
    along_program,
    back_program,
    by_rows,
    part_of,
    perturbed,
    relative_change,
    ritz_values,
    starts_of,
)
from .spectra import TYPICAL_STEPS, closed_over, is_worth, refuse_derivative

STEPS = 200  # the most of a run, unless told
HALVINGS = 10  # of an exponent that is too large for one run
MOVED = 0.125  # roundings of the largest Ritz value by which the others are wrong, as measured
ZERO = 10  # roundings of the largest Ritz value up to which another is zero
CUT = 16  # roundings of the largest entry up to which an eigenvalue is on the negative axis
LOST = 1e-6  # of a product that is said to be real, the imaginary part that is lost with a status
COMPLEX = "f is complex on the spectrum of A, and the product of a real A is kept real: give A as a complex operator"
ROOM = 30_000_000  # numbers in the bases of the columns that are run together


def krylov_operator(A: LinearOperator, f: Any, method: Method) -> LinearOperator:
    """f(A) for a `Scalar` f of `matrix_functions`."""
    hermitian = bool(A.properties & SELF_ADJOINT)
    positive = hermitian and bool(A.properties & POSITIVE_SEMIDEFINITE)
    chosen = method if isinstance(method, Krylov) else Krylov(tol=method.tol)
    is_complex = A.is_complex or (f.principal and not positive)
    becomes_complex, mirrored = is_complex and not A.is_complex, f.name != "apply" or hermitian
    evaluate = KrylovFunction(f, chosen, is_complex)
    form = None if isinstance(method, Krylov) or not is_affordable(A) else Formed(f)
    function = FunctionOf._of(A, evaluate, f.name, becomes_complex, mirrored, form)
    if not hermitian or (f.principal and not positive):
        return function
    return function._claim(f.claims)


@dataclass(frozen=True)
class Formed:
    """f(A) with a matrix, for a `Scalar` f."""

    f: Any

    def __call__(self, A: LinearOperator) -> LinearOperator:
        return perform(matrix_functions.by_matrix(A, self.f, Auto()))


def may_be_formed(A: Any) -> bool:
    """Whether f(A) is an operator that may have a matrix."""
    return A.form is not None


@rewrite(FunctionOf, when=may_be_formed)
def matrix_of_function(A: Any) -> LinearOperator:
    """f(A) as a matrix, of which more is known than of its products"""
    return Dense(A.xp.eye(A.shape[-1], **kind_of(A))) if planning() else A.formed()


def cost(A: LinearOperator, method: Any) -> Cost:
    """Of one product with f(A)."""
    n, steps = A.shape[-1], min(TYPICAL_STEPS, getattr(method, "max_iters", None) or STEPS)
    return products_cost(A, steps, 4.0 * steps * n, 8.0 * steps * n)


@dataclass(frozen=True)
class KrylovFunction:
    """f(A) X for a `Scalar` f, and the maps of `autodiff.krylov`, of which failures are warned of:
    the answer itself is there already."""

    f: Any
    method: Krylov
    is_complex: bool

    @property
    def name(self) -> str:
        return str(self.f.name)

    def __call__(
        self, A: LinearOperator, X: Array, formed: Callable[[], LinearOperator] | None = None
    ) -> Array:
        """f(A) X; by `formed()`, f(A) with a matrix, if that may be made, where X has many columns,
        where a run cannot see what it needs, and where it fails."""
        if formed is None or 0 in X.shape:
            return self.run(A, X)
        xp = namespace_of(X)
        is_hidden = xp.name == "torch" and any(map(xp.is_traced, (X, *A.arrays())))
        if is_hidden or xp.is_compiling() or not is_worth(A, X.shape[-1]):
            return formed() @ X
        with recording(detailed=True) as reports:
            Y = self.run(A, X)
        status = worst_status(reports)
        seen = status if isinstance(status, Status) else host_value(xp, status)
        if seen is None:
            return or_formed(xp, reports, Y, lambda: formed() @ X)
        if int(seen) < FIRST_FAILURE or int(seen) == Status.NONFINITE:
            report_all(reports)
            return Y
        message = f"Krylov failed ({Status(int(seen)).name}); the matrix gave the answer"
        report(
            Info(Status.FELL_BACK, matvecs=sum(info.matvecs for info in reports), message=message)
        )
        return formed() @ X

    def run(self, A: LinearOperator, X: Array) -> Array:
        """f(A) X by a run; reports how it went."""
        xp, leaves = namespace_of(X), A.arrays()
        if xp.is_compiling():
            raise MethodError(
                f"{self.name}: Krylov looks at values, which torch.compile hides. Call it outside "
                "of what is compiled."
            )
        batch = A.batch_shape if X.ndim == 2 else X.shape[:-2]
        dtype = xp.result_type(X.dtype, A.dtype)
        out = xp.complex_dtype(dtype) if self.is_complex else dtype
        X = xp.broadcast_to(X, (*batch, *X.shape[-2:]))
        if 0 in X.shape:
            return xp.astype(X, out)
        if xp.is_complex(X) and not A.is_complex:
            # In real arithmetic Ritz values on a cut stay there. In complex arithmetic rounding
            # would move each to a side of its own.
            return by_real_parts(functools.partial(self.run, A), X)
        hidden = closed_over(self.f, A)
        # else torch records the run itself
        if hidden and (xp.name == "jax" or xp.is_differentiated(X, *leaves)):
            X = X + xp.astype(refuse_derivative(A, hidden, "Krylov()"), X.dtype)
        # under vmap: one after the other
        if xp.name == "torch" and any(xp.is_traced(x) for x in (X, *leaves)):
            return autodiff.krylov_product(self, A, xp.astype(X, out), None)
        held = xp.astype(xp.stop_gradient(X), dtype)
        # a product may be made long after the function was called
        is_shown = self.method.progress and not xp.is_compiling()
        with self.method.watching() if is_shown else contextlib.nullcontext():
            result, error, steps, status, parts = self.product(A.detach(), held)
        tol, message = self.method.tolerance(xp, dtype), ""
        if xp.is_complex(result) and not xp.is_complex(out):  # which is cut off
            lost = xp.max(xp.abs(xp.imag(result))) > max(tol, LOST) * xp.max(xp.abs(result))
            status = combine([status, first_failure(xp, (xp.logical_not(lost), Status.INACCURATE))])
            message = COMPLEX if not xp.is_traced(lost) and bool(lost) else ""
            result = xp.real(result)
        iterations = steps // X.shape[-1] if isinstance(steps, int) else None
        details: Any = {"method": "Krylov", "message": message}
        status = known_status(xp, status)
        report(Info(status, error <= tol, iterations, matvecs=steps, error=error, **details))
        result = xp.astype(result, out)
        if not xp.is_differentiated(X, *leaves):
            return result
        X, B = xp.astype(X, out), part_of(A, parts)
        for _ in range(parts - 1):  # an exponential taken in parts is differentiated so
            X = autodiff.krylov_product(self, B, X, None)
        return autodiff.krylov_product(self, B, X, result)

    def product(self, A: LinearOperator, X: Array) -> tuple[Array, Array, Any, Any, int]:
        """f(A) X, its estimated error, the products with A, the worst status, and in how many parts
        an exponential was taken."""
        xp, m = namespace_of(X), min(A.shape[-1], self.method.max_iters or STEPS)
        tol = self.method.tolerance(xp, X.dtype)
        groups, errors, steps, statuses, most = [], [], 0, [], 1
        for group in _groups(A, X, m):
            count = 0
            # exp(A) X = exp(A/s) ... exp(A/s) X, with s doubled until one part converges
            for parts in self.partitions():
                method = replace(self.method, tol=tol / parts)
                run, B = program(xp.name, _program, self.f, method, m), part_of(A, parts)
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
        Y, error = xp.concat(groups, axis=-1), xp.concat(errors, axis=-1)
        return Y, error, steps, combine(statuses), most

    def partitions(self) -> list[int]:
        """In how many parts an exponential may be taken, where the steps are too few for one."""
        is_free = self.name == "exp" and self.method.max_iters is None
        return [2**i for i in range(HALVINGS + 1 if is_free else 1)]

    def times(self, A: LinearOperator, X: Array, transposed: bool = False) -> Array:
        """f(A) X, or f(A^T) X."""
        *found, _ = self.product(A.T if transposed else A, X)
        return real_or_complex(self._reported(*found), X.dtype)

    def along(self, A: LinearOperator, moved: tuple, X: Array, transposed: bool = False) -> Array:
        """L(A, dA) X, or L(A^T, dA^T) X."""
        xp, (m, columns), groups = namespace_of(X), self._columns(A, X), []
        for (group,) in columns:
            parts, run, found = self._run(along_program, (m, transposed), A, moved, group)
            Y = self._reported(*found)
            B = part_of(A.T if transposed else A, parts)
            for _ in range(parts - 1):  # d(e^B e^B x) = e^B d(e^B x) + L(B, dB) e^B x
                group = self.times(B, group)
                Y = self.times(B, Y) + self._reported(*run(A, moved, group))
            groups.append(Y)
        return real_or_complex(xp.concat(groups, axis=-1), X.dtype)

    def back(self, A: LinearOperator, X: Array, G: Array) -> tuple[Array, ...]:
        """What G, a cotangent of f(A) X, is for the leaves of A that move."""
        xp, (m, columns), pulled = namespace_of(X), self._columns(A, X, G), []
        for part, cotangent in columns:
            parts, run, (W, V, *ended) = self._run(back_program, (m,), A, part, cotangent)
            B, left = part_of(A, parts), [cotangent]
            for _ in range(parts - 1):  # of y = e^B ... e^B x, each factor has its own x and g
                left.append(xp.conj(self.times(B, xp.conj(left[-1]), transposed=True)))
            for i, g in enumerate(reversed(left)):
                if parts > 1:
                    W, V, *ended = run(A, part, g)
                    part = self.times(B, part) if i < parts - 1 else part
                W = self._reported(W, *ended)
                product = functools.partial(_part_times, parts, V, W.dtype)
                pulled.append([x for x in pullback(A, product, W) if x is not None])
        return tuple(functools.reduce(operator.add, each) for each in zip(*pulled, strict=True))

    def _columns(self, A: LinearOperator, *blocks: Array) -> tuple[int, Any]:
        """The most steps of a run for derivatives, which converge a little later, and the columns
        of the blocks in groups: four bases are kept for each."""
        if isinstance(A, Dual) and self.name == "apply":
            raise NotImplementedError(
                "apply: products by Krylov() have no second derivatives with respect to A, since "
                "nothing is known of f but its values. "
                "Use Eigh(), or exp, log, sqrt, isqrt or power."
            )
        m = min(A.shape[-1], self.method.max_iters or STEPS + STEPS // 2)
        return m, zip(*(_groups(A, X, 4 * m) for X in blocks), strict=True)

    def _run(self, f: Any, static: tuple, A: LinearOperator, *arrays: Any) -> tuple[int, Any, Any]:
        """A run in as few parts as it takes: how many, the run as a program, and what it found."""
        for parts in self.partitions():
            run = program(A.xp.name, f, self, parts, *static)
            found = run(A, *arrays)
            if not ran_out(A.xp, found[-1]):
                break
        return parts, run, found

    def _reported(self, Y: Array, error: Array, steps: Any, status: Any) -> Array:
        """Y, a product for a derivative, which warns if it failed."""
        status = known_status(namespace_of(Y), status)
        details: Any = {"method": "Krylov", "message": "This was a product for a derivative."}
        info = Info(status, matvecs=steps, error=error, function=self.name, **details)
        return deliver(info, "warn", Y)


def or_formed(xp: Any, reports: list[Info], Y: Array, formed: Callable[[], Array]) -> Array:
    """Y of a run with these reports, or `formed()`, found with the matrix, where their status, which
    a program has yet to see, is a failure."""
    status = xp.asarray(worst_status(reports), dtype=np.int32)
    by_matrix = lambda: with_status(xp, lambda: xp.astype(formed(), Y.dtype))
    Y, status = xp.cond(status >= int(FIRST_FAILURE), by_matrix, lambda: (Y, status))
    matvecs = sum(info.matvecs for info in reports)
    report(Info(status, matvecs=matvecs, method=reports[0].method))
    return Y


def _groups(A: LinearOperator, X: Array, vectors: int) -> list[Array]:
    """The columns of X in groups for which there is room, with so many vectors for each."""
    width = max(1, ROOM // (vectors * A.shape[-1] * math.prod(X.shape[:-2])))
    return [X[..., i : i + width] for i in range(0, X.shape[-1], width)]


def _part_times(parts: int, V: Array, dtype: Any, A: LinearOperator) -> Array:
    return namespace_of(V).astype(part_of(A, parts) @ V, dtype)


def ran_out(xp: Any, status: Any) -> bool:
    """Whether a run is seen to have ended for want of steps."""
    return known_status(xp, status) is Status.MAX_ITERATIONS


def _program(xp: Any, f: Any, method: Krylov, m: int, A: LinearOperator, X: Array) -> Any:
    """One run, a program in JAX."""
    A = make_ready(A)
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
    worst = worst_status(reports)
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
