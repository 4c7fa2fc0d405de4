"""Linear systems: the inverse applied, and the residual of the whole system looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, namespace_of, without_zeros
from ...dispatch import Choice, Cost, Rule, algorithm_of, function, why_whole
from ...errors import ShapeError
from ...factors.inverse import Implicit, Inverse
from ...factors.iterated import Attempts, Iterated
from ...factors.runs import multiplies_by_iteration, with_runs
from ...info import Info, counts, is_detailed, recording, report, reported, worst_status
from ...methods import Auto, Method
from ...methods.base import AUTO
from ...operators import Dense, LinearOperator, MatrixFree, Scaled, Sparse
from ...operators.context import broadcast_batches, records_derivatives
from ...operators.neutral import placed_beside
from ...operators.shown import as_sum_of_lines
from ...properties import UNITARY
from ...status import Status, failed, first_failure, is_unseen, take_for_granted
from ..common import (
    have_failed,
    host_value,
    ignore_float_errors,
    is_stored,
    is_vector,
    ones_beside,
    report_all,
    seen_value,
    square_size,
    to_computing_dtype,
    to_result_dtype,
)
from .auto import (
    can_be_watched,
    is_automatic,
    is_iterative,
    iterated,
    leave_to_residual,
    starting_point,
    with_tolerance_for_parts,
)
from .cost import dense_work, sparse_work
from .elimination import is_recorded_and_seen
from .families import eliminate_sparse, inv_assembled, is_assembled, is_sparse_and_seen
from .inverse import (
    REFINEMENTS,
    are_small,
    column_norms,
    factor_at_once,
    factorise,
    inv,
    is_factored_at_once,
    squares,
)
from .trials import SPARSE_TRIAL, TRIAL, attempt, products_to_try, solve_by_trial

NEED = "a linear system"


def solve_by_inverse(A: LinearOperator, b: Any, method: Method | None = None) -> Any:
    """Solve A x = b.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    b : array or operator
        One vector (n,), columns (*batch, n, k), or an operator, for which the answer is one.
    method : optional
        As for `inv`. The tolerance is that of the relative residual |b - A x| / |b| of the whole
        system, for each column.

    Returns
    -------
    array or LinearOperator

    Notes
    -----
    The same as `inv(A) @ b`, followed by one product that gives the true residual, or by a proof
    that it is small enough where one is cheaper (then `info=True` still computes it). Where it
    misses the tolerance the answer is refined, then another factorisation is tried (dense base
    case), and if that does not help the status says so.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([9.0, 8.0]))
    array([2., 3.])
    """
    m, n = A.shape[-2:]
    if m != n:
        square_size("solve", A, NEED, "Use lstsq(A, b).")
    b = right_side("solve", A, b)
    if isinstance(b, LinearOperator):
        return Choice(lambda: inv(A, method) @ b, "inverse", why="X = A^-1 B")
    A = placed_beside(A, b) if A._context.backend is None else A
    system = System.of(A, b, method)
    if isinstance(A, Sparse) and _is_tried_first(system):
        fill: Callable[[], Cost] = partial(sparse_work, A)
        return attempt(A, fill, TRIAL, lambda: _by_trial(system, None, TRIAL, fill), lambda: b)
    found = inv.find(A, (method,))
    if found.is_base and method is None and is_factored_at_once(A, system.B):
        return Choice(lambda: _at_once(system, found), "LU")
    is_free = method is None or isinstance(method, Auto)
    is_formed = isinstance(A, Dense) and is_stored(A)
    trial = _trial(system, found) if is_free and not is_formed else None
    if trial is not None:
        work, most = trial
        return attempt(A, work, most, lambda: _by_trial(system, found, most, work), lambda: b)
    return _without_trial(system, found)


def _at_once(s: System, found: Rule) -> Any:
    factored = factor_at_once(s.A, s.B)
    return _without_trial(s, found) if factored is None else s.answer(factored[2][:, :-1])


class System(NamedTuple):
    """A x = b, with the right sides as columns B in the precision to compute with, and how the
    answer is given: of this dtype, to this tolerance, by this method."""

    A: LinearOperator
    b: Array
    method: Any
    xp: Any
    B: Array
    dtype: Any

    @staticmethod
    def of(A: LinearOperator, b: Array, method: Method | None = None) -> System:
        """The system with these right sides."""
        xp, dtype = A.xp, b.dtype
        if A._context.backend is None:
            xp = namespace_of(b)
        elif dtype is not A.dtype:
            dtype = xp.result_type(A.dtype, dtype)
        B = b[:, None] if b.ndim == 1 else b
        B = to_computing_dtype(xp, B) if B.dtype.itemsize == 2 else B
        return System(A, b, method, xp, B, dtype)

    @property
    def is_vector(self) -> bool:
        return bool(self.b.ndim == 1)

    @property
    def tol(self) -> float:
        """The tolerance of the method."""
        return (self.method or AUTO).tolerance(self.xp, self.dtype)

    def answer(self, X: Array) -> Array:
        """The solution of the shape and precision that belong to b."""
        if self.dtype.itemsize == 2:
            X = to_result_dtype(self.xp, X, self.dtype)
        return X[..., 0] if self.b.ndim == 1 else X

    def residual(self, X: Array) -> Array:
        """B - A X"""
        return self.B - self.A @ X

    def status(self, residual: Array) -> Any:
        """SUCCESS, INACCURATE or NONFINITE by the relative residual; an array where that is not to
        be seen."""
        finite = self.xp.isfinite(residual), Status.NONFINITE
        return first_failure(self.xp, finite, (residual <= self.tol, Status.INACCURATE))


def _without_trial(s: System, found: Rule) -> Choice:
    """The choice where iterations are not tried, or have been tried: a factorisation, or a rule
    of `inv`, which is `found`."""
    A, method = s.A, s.method
    iterates = method is not None and (is_iterative(method) or is_applied(s, found))
    is_placed = A._context.backend is not None
    if found.is_base and is_placed and not (iterates or A.properties & UNITARY):
        return factorise("solve", A, s.B, method, lambda found: s.answer(found.X), lambda: s.b)

    def like() -> Array:
        inv.using(found, A, method)
        return s.b

    run = _by_iteration if iterates else _by_rules
    why = "x = A^-1 b, then the residual |b - A x|"
    return Choice(partial(run, s, found), "inverse", None, why, like)


def is_applied(s: System, found: Rule) -> bool:
    """Whether a method from outside solves with A itself."""
    if algorithm_of(s.method, "inv") is None:
        return False
    return found.is_base or bool(why_whole(found, s.method, s.A))


def _by_rules(s: System, found: Rule) -> Array:
    """The solution by a rule of `inv`, whose judgement of the inverse is left to the residual."""
    A, xp = s.A, s.A.xp
    with ignore_float_errors(s.xp):
        if xp.hides_values and is_recorded_and_seen(A):  # a residual says nothing of derivatives
            return apply_inverse(s, inv.using(found, A, s.method))
        with recording(detailed=True) as reports, leave_to_residual() as left_out:
            inverse = inv.using(found, A, s.method)
        is_recorded = left_out and not xp.is_compiling() and records_derivatives(A)
        if is_recorded and inverse.dtype == A.dtype and not multiplies_by_iteration(inverse):
            # dx = A^-1 (db - dA x): a part of condition κ costs eps κ of it, not eps κ^2 as by the
            # derivative of the formula
            inverse = Inverse._of(A, Implicit._of(A, inverse, None))
        if not (left_out and have_failed(reports)):
            report_all(reports)
        return apply_inverse(s, inverse, reports, bool(left_out))


def _by_iteration(s: System, found: Rule) -> Array:
    """The solution by an iterative method that was named: on A itself, or inside a rule that
    splits A."""
    A, method = s.A, s.method
    if found.is_base or found.direct or (method.runs_on is not None and method.runs_on(A)):
        inverse = inv.using(found, A, method).factor
    else:
        X = _in_parts(s, found)
        if X is not None:
            return s.answer(X)
        inverse = iterated(A, method)
    X, info = inverse.run(s.B, s.is_vector, s.dtype)
    report(info)
    return s.answer(X)


def right_side(function: str, A: LinearOperator, b: Any) -> Any:
    """b as an array or operator that A's rows fit."""
    if not ((type(b) is np.ndarray and b.dtype is A._usual_dtype) or isinstance(b, LinearOperator)):
        b = A._right_side(b)
    shape, (m, n) = tuple(b.shape), A.shape[-2:]
    if not shape or shape[0 if len(shape) == 1 else -2] != m:
        raise ShapeError(f"{function}: A is {m}x{n}, so b needs {m} rows; its shape is {shape}.")
    if len(shape) > 2:
        broadcast_batches(A.batch_shape, shape[:-2], what=function)
    return b


def apply_inverse(
    s: System,
    inverse: LinearOperator,
    reports: Sequence[Info] = (),
    is_unjudged: bool = False,
) -> Array:
    """The solution by this inverse, refined while that helps; reports its residual, unless a bound
    shows that it is small.

    `reports`: those of the inverse. `is_unjudged`: whether its judgement was left to the residual;
    then `inv` finds a better one if need be.
    """
    xp, B, tol = s.xp, s.B, s.tol
    if isinstance(inverse, Inverse) and isinstance(inverse.factor, Attempts):
        # which looks at the residual of the whole
        return s.answer(inverse.factor._solve(B, s.is_vector))
    count, is_bad = len(reported()), have_failed(reports)
    X = inverse @ B
    if 0 in X.shape and not is_bad:
        report(Info(residual=column_norms(xp, B)))
        return s.answer(X)
    is_sound = not xp.is_traced(X) and not is_bad
    is_plain = is_sound and not is_detailed()
    bound = inverse._residual_bound(X, B) if is_sound and not is_unseen(X) else None
    is_bounded = bound is not None and bound <= tol
    if is_plain and (is_bounded or _is_bounded_later(inverse, X, B, tol)):
        return s.answer(X)
    R = s.residual(X)
    if is_plain and not xp.is_traced(R) and are_small(xp, R, B, tol):
        return s.answer(X)
    X, residual = _improved(s, inverse, X, R, bound)
    if is_unjudged and (is_bad or failed(s.status(residual)) is True):
        inverse = inv(s.A, s.method)  # judged by itself, and mended where that can be done
        X = inverse @ B
        X, residual = _improved(s, inverse, X, s.residual(X))
    told = worst_status([*reports, *reported()[count:]])
    report(Info(_blamed(s, s.status(residual), told), residual=residual))
    return s.answer(X)


def _is_bounded_later(inverse: Any, X: Array, B: Array, tol: float) -> bool:
    """Whether the bound of the residual is taken to be small, on a device; in double precision
    only, where it often is."""
    xp = namespace_of(X)
    if not xp.is_on_device(X) or xp.eps(X.dtype) > 1e-10 or not is_unseen(X):
        return False
    parts = getattr(inverse, "_parts_of_bound", lambda X, B: None)(X, B)
    test = partial(_bound_is_small, tol, xp.eps(X.dtype))
    return parts is not None and take_for_granted(test, *parts)


def _bound_is_small(tol: float, eps: float, least: Any, x: Any, b: Any) -> bool:
    """The bound of `bound_by_norm`, by 1 / |A|, |x| and |b|"""
    is_safe = (least > 0) & (b > 1e-100) & np.isfinite(b)
    return bool(np.all(is_safe & (100 * eps * (1 + x / (least * b)) <= tol)))


def _blamed(s: System, status: Any, told: Any) -> Any:
    """NaN and infinity that are in neither A nor b come from dividing by zero: A is singular (under
    tracing, if b has none).

    `told`: what the inverse has reported. A factorisation that broke down because A is not positive
    definite has left NaN, which say nothing more.
    """
    xp, B, broke = s.xp, s.B, told == int(Status.NOT_POSITIVE_DEFINITE)
    if isinstance(status, Status):
        is_caused = status is Status.NONFINITE and bool(
            xp.all(xp.isfinite(B) & xp.isfinite(s.A @ B))
        )
        cause = Status.NOT_POSITIVE_DEFINITE if broke is True else Status.SINGULAR
        return cause if is_caused else status
    finite = xp.all(xp.max(xp.abs(B), axis=-2) < float("inf"))  # which the norm of B has computed
    divided = (status == int(Status.NONFINITE)) & finite
    if isinstance(broke, bool):
        broke = xp.asarray(broke, device=xp.device_of(B))
    return xp.where(
        divided, xp.where(broke, int(Status.NOT_POSITIVE_DEFINITE), int(Status.SINGULAR)), status
    )


def _improved(
    s: System,
    inverse: Any,
    X: Array,
    R: Array,
    bound: float | None = None,
    rough: Callable[[float], LinearOperator] | None = None,
) -> tuple[Array, Array]:
    """X refined while that helps, and its relative residual; R = B - A X. `rough(tol)`: the inverse
    to a tolerance, if less accuracy costs less.

    Where the residual is a hundredth of its `bound`, x solves a system that differs from A by
    rounding: refining in this precision gains a factor of two or three, which is too little if the
    tolerance is missed by more.
    """
    xp, B, tol = s.xp, s.B, s.tol
    residual = relative_residual(xp, R, B)
    seen = seen_value(xp, residual)
    if seen is None:
        return X, residual
    worst = seen.max(initial=0)
    if bound is not None and 4 * tol < worst <= bound / 100:
        return X, residual
    for _ in range(REFINEMENTS):
        if not tol < worst < 1:  # accurate, or beyond repair
            break
        better = X + (inverse if rough is None else rough(tol / worst)) @ R  # x + A^-1 r
        R = s.residual(better)
        refined = relative_residual(xp, R, B)
        largest = host_value(xp, refined).max()
        if not largest < worst:
            break
        X, residual, worst = better, refined, largest
    return X, residual


def _is_tried_first(s: System) -> bool:
    """Whether some steps of CG cost less than to see how a large sparse matrix would fill in."""
    A = s.A
    if A.shape[-1] < SPARSE_TRIAL or not is_automatic(s.method):
        return False
    is_tried = is_sparse_and_seen(A) and can_be_watched(A, s.B)
    return is_tried and as_sum_of_lines(A) is None


def _trial(s: System, found: Rule) -> tuple[Callable[[], Cost], int | None] | None:
    """The work of a factorisation, if it is asked for, and how many products are tried before it
    (None: any number); None if none are."""
    A = s.A
    if found.is_base and not A.properties & UNITARY:
        work = partial(dense_work, A)
    elif found.direct and isinstance(A, Sparse) and as_sum_of_lines(A) is None:
        work = partial(sparse_work, A)
    else:
        return None
    most = products_to_try(A, work, s.B)
    return None if most == 0 else (work, most)


def _by_trial(s: System, found: Rule | None, most: int | None, work: Callable[[], Cost]) -> Any:
    """The solution by iterations if they converge in as many products; else as if none had been
    tried."""
    result = solve_by_trial(s, most, work)
    if result is not None:
        report(result[1])
        return s.answer(result[0])
    if found is None or (isinstance(s.A, Sparse) and not found.is_base):
        with ignore_float_errors(s.xp):
            return apply_inverse(s, eliminate_sparse(s.A, s.method))
    if isinstance(s.A, MatrixFree) and is_assembled(s.A, s.method):
        return apply_inverse(s, inv_assembled(s.A, s.method))
    return _without_trial(s, found)


def _in_parts(s: System, found: Rule) -> Array | None:
    """Solve through the rules of `inv` with an iterative method inside them; the residual of the
    whole decides, not that of a part. None where `inv` runs the method on A itself."""
    A, xp, method, tol = s.A, s.xp, s.method, s.tol
    with recording(detailed=True) as reports, ignore_float_errors(xp):
        inverse = inv.using(found, A, with_tolerance_for_parts(method, A, 2))
        if isinstance(inverse, Inverse) and inverse.A is A and isinstance(inverse.factor, Iterated):
            return None  # the parts are not what the method needs
        goal = 0.9 * tol if tol > 100 * xp.eps(s.dtype) else 0.0
        X = _as_one_run(inverse, goal, starting_point(A, method)) @ s.B
        # what is left of the residual need only fall to the tolerance
        parts_to = lambda tol: with_tolerance_for_parts(replace(method, tol=tol / 2), A, 2).tol
        rough = lambda tol: _to_tolerance(inverse, parts_to(tol))
        X, residual = _improved(s, inverse, X, s.residual(X), None, rough)
    status = s.status(residual)
    parts = [
        info for info in reports if info.iterations is not None or failed(info._status) is not False
    ]
    if status is not Status.SUCCESS and isinstance(status, Status):
        worst = worst_status(parts)
        status = worst if failed(worst) is True else status
    details: Any = {"method": method.name, "children": tuple(parts)}
    report(Info(status, residual <= tol, residual=residual, **counts(parts), **details))
    return X


def _as_one_run(inverse: LinearOperator, tol: float, x0: Array | None) -> LinearOperator:
    """The inverse to this tolerance, from x0, where it is one run on the whole (a multiple, or a
    sum that was merged): no errors add up."""
    if isinstance(inverse, Scaled):
        start = None if x0 is None else x0 / inverse.scalar
        return Scaled(inverse.scalar, _as_one_run(inverse.A, tol, start))
    return with_runs(inverse, lambda run: _to_tolerance(run, tol)._replace(x0=x0))


def _to_tolerance(inverse: Any, tol: float) -> Any:
    """The same inverse, whose iterations end at this tolerance if theirs is tighter."""
    if "operands" in inverse._fields:
        parts = tuple(_to_tolerance(part, tol) for part in inverse.operands)
        return inverse._replace(operands=parts)
    looser = lambda method: replace(method, tol=max(tol, method.tol))
    return with_runs(inverse, lambda run: run._replace(method=looser(run.method)))


def relative_residual(xp: Any, R: Array, B: Array) -> Array:
    """|r| / |b| for each column; a right side of zero counts as one of size 1."""
    if xp.is_traced(R):  # one scale for both, by which squares do not vanish: fewer kernels
        R, B = xp.stop_gradient(R), xp.stop_gradient(B)
        largest = xp.max(xp.abs(B), axis=-2, keepdims=True)
        scale = xp.where((largest > 0) & (largest < float("inf")), largest, 1)
        r, b = squares(xp, R / scale), squares(xp, B / scale)
        return xp.sqrt(r / without_zeros(xp, b))
    return column_norms(xp, R) / without_zeros(xp, column_norms(xp, B))


solve = function(
    "solve",
    base=solve_by_inverse,
    examples={"b": ones_beside},
    forwards=True,
    rewrites=inv,
    one_column=is_vector,
)

# The rules register themselves with `inv` and `solve`.
from . import compositions, kronecker, rules  # noqa: E402, F401
