"""Linear systems: the inverse applied, and the residual of the whole system looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import function
from ..info import Info, ShapeError, Status, combine, failed, is_detailed, planning, recording, report, reported, total
from ..methods import Auto, Iterative, Method
from ..operators.attempts import Attempts
from ..operators.base import LinearOperator, placed_beside
from ..operators.context import broadcast_batches
from ..operators.dense import Dense
from ..operators.inverse import Inverse
from ..operators.iterative import Iterated
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..properties import UNITARY
from ..resolution import Rule
from ._arrays import is_vector, narrow, quiet, seen, square_size, wide
from ._elimination import is_recorded_and_seen, leave_to_residual
from ._factorise import REFINEMENTS, solution
from ._residuals import are_small, column_norms
from .automatic import choose as choose_attempt
from .automatic import examined, is_automatic, solve_by_trial
from .cost import Work, dense_work, sparse_work, worthwhile
from .inverse import inv
from .inverse_on_host import inv_sparse
from .iterative import is_iterative, iterated, starting_point, tightened

NEED = "a linear system"


def solve_by_inverse(A: LinearOperator, b: Any, method: Method | None = None) -> Any:
    """Solve A x = b.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    b : array or operator
        One vector (n,), columns (*batch, n, k), or an operator, for which the answer is one.
    method : optional
        As for `inv`. The tolerance is that of the relative residual |b - A x| / |b| of the whole system, for each column.

    Returns
    -------
    array or LinearOperator

    Notes
    -----
    The same as `inv(A) @ b`, followed by one product that gives the true residual, or by a proof that it is small enough where
    one is cheaper (then `info=True` still computes it). Where it misses the tolerance
    the answer is refined, then another factorisation is tried (dense base case), and if that does not help the status says so.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([9.0, 8.0]))
    array([2., 3.])
    """
    return structured_solve(A, b, method)


def structured_solve(
    A: LinearOperator,
    b: Any,
    method: Method | None,
    inverse: LinearOperator | None = None,
    checked: bool = False,
    is_right: Callable[[Array, Array, float], bool] | None = None,
) -> Any:
    """`inverse`: that of A, if it is there; `checked`: whether it has been looked at if A is singular; `is_right(X, B, tol)`: a
    proof that the residual is small enough, where there is one that costs less than a look at it (its `is_final`, if it has one,
    says that too little is gained by refining)."""
    n = square_size("solve", A, NEED, "Use lstsq(A, b).")
    b = right_side("solve", A, b, n)
    if isinstance(b, LinearOperator):
        return inv(A, method) @ b
    if planning():
        if _trial(A, method) is None:
            inv(A, method)
        return b
    if A.is_neutral and inverse is None:
        A = placed_beside(A, b)
    xp = A.xp if not A.is_neutral else namespace_of(b)
    vector = b.ndim == 1
    B = wide(xp, b[:, None] if vector else b)
    dtype = xp.result_type(A.dtype, b.dtype) if not A.is_neutral else b.dtype
    if inverse is None and is_iterative(method):
        X = None if runs_whole(A, method) else _in_parts(xp, A, B, method, dtype)  # type: ignore[arg-type]
        X = iterated(A, method).solve(B, vector, dtype) if X is None else X  # type: ignore[arg-type]
    elif inverse is None and (X := _tried(A, inv.find(A), B, method, vector)) is not None:
        pass
    elif inv.find(A).is_base and not A.is_neutral and not A.properties & UNITARY:
        X = solution("solve", A, B, method).X
    else:
        with quiet(xp):
            if isinstance(A, Sparse) and inverse is None and _trial(A, method) is not None:
                inverse, checked = inv_sparse(A, method), True  # iterations have been tried
            X = _refined(xp, A, B, method, dtype, vector, inverse, checked, is_right)
    X = narrow(xp, X, dtype)
    return X[..., 0] if vector else X


def runs_whole(A: LinearOperator, method: Any) -> bool:
    """Whether an iterative method that the user named is run on A itself: no rule splits it."""
    if isinstance(A, Sparse) and not A.properties & UNITARY:
        return True  # its rules all eliminate, and the guards of some would look at the pattern first
    found = inv.find(A)
    return found.is_base or found.direct or (method.runs_on is not None and method.runs_on(A))


def right_side(function: str, A: LinearOperator, b: Any, rows: int) -> Any:
    """b as an array or operator that A's rows fit."""
    if not isinstance(b, LinearOperator):
        b = A._right_side(b)
    shape = tuple(b.shape)
    if not shape or shape[0 if len(shape) == 1 else -2] != rows:
        m, n = A.shape[-2:]
        raise ShapeError(f"{function}: A is {m}x{n}, so b needs {rows} rows; its shape is {shape}.")
    if len(shape) > 2:
        broadcast_batches(A.batch_shape, shape[:-2], what=function)
    return b


def _refined(
    xp: Any,
    A: LinearOperator,
    B: Array,
    method: Method | None,
    dtype: Any,
    vector: bool,
    given: LinearOperator | None,
    checked: bool,
    is_right: Callable[[Array, Array, float], bool] | None,
) -> Array:
    """Solve through the rules of `inv`, refining while that helps."""
    tol = (method or Auto()).tolerance(xp, dtype)
    count = len(reported())
    inverse, reports, left_out = (given, [], []) if given is not None else _unjudged_inverse(A, method)
    is_bad = any(failed(info._status) is True for info in reports)
    if not is_bad or not left_out:
        for info in reports:
            report(info)
    if isinstance(inverse, Inverse) and isinstance(inverse.factor, Attempts):
        return inverse.factor.solve(B, vector)  # which has looked at the residual of the whole
    X = inverse @ B
    plain = not is_detailed() and not xp.is_traced(X) and 0 not in X.shape and not is_bad
    if plain and is_right is not None and is_right(X, B, tol):
        return X
    R = B - A @ X
    if plain and not xp.is_traced(R) and are_small(xp, R, B, tol):
        return X
    if given is not None and not checked:
        inverse = inv(A, method)  # which reports if A is singular
    is_final = getattr(is_right, "is_final", None)
    if is_final is not None and not xp.is_traced(X) and is_final(X, R, B, tol):
        residual = relative_residual(xp, R, B)
    else:
        X, residual = _improved(xp, A, inverse, X, R, B, tol)
    if left_out and (is_bad or failed(residual_status(xp, residual, tol)) is True):
        inverse = inv(A, method)  # judged by itself, and mended where that can be done
        X = inverse @ B
        X, residual = _improved(xp, A, inverse, X, B - A @ X, B, tol)
    told = combine(info._status for info in reported()[count:])
    report(Info(_blamed(xp, A, B, residual_status(xp, residual, tol), told), residual=residual))
    return X


def _unjudged_inverse(A: LinearOperator, method: Method | None) -> tuple[Any, list[Info], list[str]]:
    """The inverse, what was reported of it, and the rules that left it to the residual to judge it."""
    if is_recorded_and_seen(A):
        return inv(A, method), [], []  # a residual says nothing of derivatives
    with recording(detailed=True) as reports, leave_to_residual() as left_out:
        inverse = inv(A, method)
    return inverse, reports, left_out


def _blamed(xp: Any, A: LinearOperator, B: Array, status: Any, told: Any) -> Any:
    """NaN and infinity that are in neither A nor b come from dividing by zero: A is singular (under tracing, if b has none).

    `told`: what the inverse has reported. A factorisation that broke down because A is not positive
    definite has left NaN, which say nothing more.
    """
    broke = told == int(Status.NOT_POSITIVE_DEFINITE)
    if status is Status.NONFINITE:
        cause = Status.NOT_POSITIVE_DEFINITE if broke is True else Status.SINGULAR
        return cause if bool(xp.all(xp.isfinite(B))) and bool(xp.all(xp.isfinite(A @ B))) else status
    if isinstance(status, Status):
        return status
    divided = xp.logical_and(status == int(Status.NONFINITE), xp.all(xp.isfinite(B)))
    if isinstance(broke, bool):
        broke = xp.asarray(broke, device=xp.device_of(B))
    return xp.where(divided, xp.where(broke, int(Status.NOT_POSITIVE_DEFINITE), int(Status.SINGULAR)), status)


def _improved(xp: Any, A: LinearOperator, inverse: Any, X: Array, R: Array, B: Array, tol: float) -> tuple[Array, Array]:
    """X refined while that helps, and its relative residual."""
    residual = relative_residual(xp, R, B)
    worst = seen(xp, residual)
    for _ in range(REFINEMENTS):
        if worst is None or not worst.size or not tol < worst.max() < 1:  # traced, accurate, or beyond repair
            break
        better = X + inverse @ R
        R = B - A @ better
        refined = relative_residual(xp, R, B)
        if not seen(xp, refined).max() < worst.max():
            break
        X, residual, worst = better, refined, seen(xp, refined)
    return X, residual


def _trial(A: LinearOperator, method: Method | None) -> tuple[Work, int | None] | None:
    """The work of a factorisation, and how many products are tried before it (None: any number); None if none are."""
    found = inv.find(A)
    if not is_automatic(method) or (found.is_base and A.properties & UNITARY):
        return None
    if found.is_base or (found.direct and isinstance(A, Sparse)):
        work = sparse_work(A) if isinstance(A, Sparse) and not found.is_base else dense_work(A)
        most = worthwhile(examined(A), work)
        return None if most == 0 else (work, most)
    return None


def _tried(A: LinearOperator, found: Rule, B: Array, method: Method | None, vector: bool) -> Array | None:
    """A^-1 B by iterations where those are likely to be cheaper than a factorisation, and have converged; else None.

    `found`: the rule of `inv` for A.
    """
    if isinstance(A, Dense):
        return None  # the matrix is there
    if found.is_base and not A.properties & UNITARY:
        result = solve_by_trial(A, B, method, vector, lambda: dense_work(A))
    elif found.direct and isinstance(A, Sparse):
        result = solve_by_trial(A, B, method, vector, lambda: sparse_work(A))
    else:
        return None
    if result is None:
        return None
    report(result[1])
    return result[0]


def _in_parts(xp: Any, A: LinearOperator, B: Array, method: Iterative, dtype: Any) -> Array | None:
    """Solve through the rules of `inv` with an iterative method inside them; the residual of the
    whole decides, not that of a part. None where `inv` runs the method on A itself."""
    tol = method.tolerance(xp, dtype)
    with recording(detailed=True) as found, quiet(xp):
        inverse = inv(A, tightened(method, A, 2))
        if isinstance(inverse, Inverse) and inverse.A is A and isinstance(inverse.factor, Iterated):
            return None  # the parts are not what the method needs
        X = _as_one_run(inverse, 0.9 * tol if tol > 100 * xp.eps(dtype) else 0.0, starting_point(A, method)) @ B
        X, residual = _improved(xp, A, inverse, X, B - A @ X, B, tol)
    status = residual_status(xp, residual, tol)
    parts = [info for info in found if info.iterations is not None or failed(info._status) is not False]
    if status is not Status.SUCCESS and isinstance(status, Status):
        worst = combine(info._status for info in parts)
        status = worst if failed(worst) is True else status
    report(
        Info(
            status,
            converged=residual <= tol,
            iterations=total(info.iterations for info in parts),
            matvecs=total(info.matvecs for info in parts),
            residual=residual,
            method=method.name,
            children=tuple(parts),
        )
    )
    return X


def _as_one_run(inverse: LinearOperator, tol: float, x0: Array | None) -> LinearOperator:
    """The inverse to this tolerance, from x0, where it is one run on the whole (a multiple, or a sum that was merged): no errors add up."""
    if isinstance(inverse, Iterated):
        return inverse._replace(method=replace(inverse.method, tol=max(tol, inverse.method.tol)), x0=x0)
    if isinstance(inverse, Inverse):
        return inverse._replace(factor=_as_one_run(inverse.factor, tol, x0))
    if isinstance(inverse, Scaled):
        return Scaled(inverse.scalar, _as_one_run(inverse.A, tol, None if x0 is None else x0 / inverse.scalar))
    return inverse


def relative_residual(xp: Any, R: Array, B: Array) -> Array:
    """|r| / |b| for each column; a right side of zero counts as one of size 1."""
    if 0 in R.shape:
        return xp.zeros((*R.shape[:-2], R.shape[-1]), dtype=xp.real_dtype(R.dtype), device=xp.device_of(R))
    size = column_norms(xp, B)
    return column_norms(xp, R) / xp.where(size == 0, 1, size)


def residual_status(xp: Any, residual: Array, tol: float) -> Any:
    """SUCCESS, INACCURATE or NONFINITE; an array under tracing."""
    values = seen(xp, residual)
    if values is None:
        status = xp.where(residual <= tol, int(Status.SUCCESS), int(Status.INACCURATE))
        return xp.max(xp.where(xp.isfinite(residual), status, int(Status.NONFINITE)))
    if not values.size or (largest := values.max()) <= tol:
        return Status.SUCCESS
    return Status.INACCURATE if largest < float("inf") else Status.NONFINITE


def _example(A: LinearOperator) -> Array:
    return A.xp.ones((A.shape[-2],), dtype=A.dtype, device=A._context.device)


def _choose(A: LinearOperator, b: Any, method: Method | None) -> tuple[str, Any, str]:
    trial = _trial(A, method)
    if trial is not None:
        name, cost, why = choose_attempt(A, *trial)
        most = "" if trial[1] is None else f", which comes next if {trial[1]} products are not enough"
        return name, cost, why + most
    return "inverse", None, "x = A^-1 b, then the residual |b - A x|"


solve = function(
    "solve",
    base=solve_by_inverse,
    choose=_choose,
    examples={"b": _example},
    forwards=True,
    rewrites=inv,
    one_column=is_vector,
)
