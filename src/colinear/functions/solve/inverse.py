"""The inverse, as an operator that keeps its factorisation: its base case, the dense factorisations
of `inv`, `solve` and the determinants, how an answer is judged, and what follows if one fails."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, get
from ...backends.numpy.linalg import lu_factor_and_solve, solves
from ...dispatch import Choice, Cost, function, perform
from ...factors.dense import (
    FEW,
    MAKE,
    LUFactor,
    are_small,
    cholesky_or_lu,
    column_norms,
    mirrored,
    probe,
    probe_norm,
    reproduces,
    rough_norms,
    sizes_of_columns,
    squares,
    status_by_norms,
    status_of_growth,
)
from ...factors.inverse import Implicit, Inverse, differentiable
from ...factors.runs import multiplies_by_iteration
from ...info import Info, is_detailed, report, state
from ...methods import LDL, LU, QR, Auto, Cholesky, Method, fitting
from ...methods.base import AUTO
from ...operators import Dense, LinearOperator, ScaledIdentity
from ...operators.context import records_derivatives
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY
from ...status import Status, first_failure, is_unseen, take_for_granted
from ..common import (
    MARGIN,
    UNCHANGED,
    dense,
    host_value,
    identity_like,
    ignore_float_errors,
    itemsize,
    may_be_positive,
    report_arrays,
    square_size,
    values_are_seen,
)
from .auto import apply_method, is_iterative, iterate, iterated, iterates
from .cost import dense_work, largest_dense, matrix_cost, why_first
from .trials import attempt, attempts

# --------------------------------------------------------------------------------------------------


# Dense factorisations for `inv`, `solve` and the determinants: which one, how its answer is
# judged, and what to do when it fails.
#
# positive semidefinite Cholesky -> LDL -> LU -> QR self-adjoint LDL -> LU -> QR any other LU -> QR
#
# An answer is judged with the matrix itself, which costs one product: by the residual of the right
# sides, and by one more right side, a probe, whose solution grows as A^-1 does. So data that
# contradict an annotation are noticed (Cholesky and LDL read one triangle only), and so are a
# pivot growth that spoils LU and a matrix that is singular to working accuracy.
#
# Under tracing values cannot be seen, so nothing is retried: the annotations choose, Cholesky
# gives way to LU inside the program, and the status is computed with the answer.


REFINEMENTS = 2  # steps of iterative refinement before another factorisation is tried


class Solution(NamedTuple):
    """X of A X = B, and the factor of A that it was found by."""

    factor: LinearOperator
    X: Array


# --------------------------------------------------------------------------------------------------


def candidates(A: LinearOperator, method: Method) -> list[str]:
    """The factorisations to try, in order. LDL has no derivative, and on a device eigenvectors take
    its place; LU gives the same answer."""
    is_plain = values_are_seen(A)
    if not isinstance(method, Auto):
        return [method.name if is_plain or not isinstance(method, LDL) else "LU"]
    names = ["LU", "QR"]
    is_far = A.xp.hides_values and any(map(A.xp.is_on_device, A.arrays()))
    if A.properties & SELF_ADJOINT and is_plain and not is_far:
        names.insert(0, "LDL")
    if A.properties & POSITIVE_SEMIDEFINITE or may_be_positive(A):
        names.insert(0, "Cholesky")
    return names


def factorise(
    function: str,
    A: LinearOperator,
    B: Array | None,
    method: Method | None,
    finish: Callable[[Solution], Any],
    like: Callable[[], Any],
) -> Choice:
    """The choice of a factorisation of A, from whose solution for the columns of B `finish`
    makes the result."""
    chosen = AUTO if method is None else fitting(function, method, *FACTORISATIONS)
    names = candidates(A, chosen)
    cost = functools.partial(factorisation_cost, A, names[0])
    why = why_first(A, names[0]) if isinstance(chosen, Auto) else "asked for"
    return Choice(lambda: finish(_solution(A, B, chosen, names)), names[0], cost, why, like)


FACTORISATIONS = (Cholesky, LDL, LU, QR)
_FLOPS = {"Cholesky": 1 / 3, "LDL": 1 / 3, "LU": 2 / 3, "QR": 4 / 3}


def factorisation_cost(A: LinearOperator, name: str) -> Cost:
    """What it costs to factor the matrix, in place, by the factorisation of this name."""
    return matrix_cost(A, _FLOPS[name], float(itemsize(A)), name)


ONE_TRIANGLE = {
    name: f"{name} reads the lower triangle alone, and A is not self-adjoint"
    for name in ("Cholesky", "LDL")
}
_BROKEN = {"Cholesky": Status.NOT_POSITIVE_DEFINITE, "QR": Status.SINGULAR}


# --------------------------------------------------------------------------------------------------


def _with_probe(xp: Any, B: Array | None, A: Array) -> Array:
    p = probe(xp, A.shape[-1], A.dtype if B is None else B.dtype, xp.device_of(A))
    if B is None:
        return p
    if B.ndim == 2 and xp.hides_values:  # by columns, as torch's solves take and give them
        p, B = map(xp.matrix_transpose, (p, B))
        return xp.matrix_transpose(xp.concat([B, p], axis=-2))
    return xp.concat([B, p if B.ndim == 2 else xp.broadcast_to(p, (*B.shape[:-1], 1))], axis=-1)


# JAX runs programs of fewer than 1000 flops at once, others in a thread of their own (10 us). So the
# residual of the probe is looked at only where no other is looked at.


def _judge(
    xp: Any, A: Array, B: Array, tol: float, name: str, broken: Any, X: Array
) -> tuple[Any, Array, Array]:
    """The status of X in A X = B, whose last column is the probe, the relative residuals of the
    other columns, and the backward errors of all that was looked at.

    `broken`: which factorisations of this name broke down, None if that shows as NaN in X.
    """
    A, B, X = map(xp.stop_gradient, (A, B, X))
    eps, n, count = xp.eps(A.dtype), A.shape[-1], B.shape[-1] - 1
    largest, x = xp.max(xp.abs(A), axis=(-2, -1)), column_norms(xp, X)
    # |A^-1 p| / |p| is |A^-1| / sqrt(n) or so for a p without structure: where this exceeds 1, A is
    # singular to working accuracy.
    growth = MARGIN * n * eps / probe_norm(n) * largest * x[..., -1]
    is_whole = xp.isfinite(growth) if broken is None else ~broken
    residual, backward, most, fine = x[..., :0], x[..., :0], largest, True
    if count or state.left_out is None or not is_unseen(X):
        columns = slice(count or None)  # the right sides, the probe if there are none
        B, X, x = B[..., columns], X[..., columns], x[..., columns]
        r, b = column_norms(xp, B - xp.matmul(A, X)), column_norms(xp, B)
        residual = (r / xp.where(b == 0, 1, b))[..., :count]
        backward = r / (n * largest[..., None] * x + b)
        fine = xp.all(residual <= tol if count else backward <= math.sqrt(eps), axis=-1)
        most = xp.maximum(largest, xp.max(b, axis=-1))
    status = first_failure(
        xp,
        (xp.isfinite(most), Status.NONFINITE),
        (is_whole, _BROKEN.get(name, Status.SINGULAR)),
        (growth < 1, Status.SINGULAR),
        (fine, Status.INACCURATE),
    )
    return status, residual, backward


def _is_plainly_right(xp: Any, A: Array, B: Array, X: Array, tol: float, broken: Status) -> bool:
    """A sufficient test of what `_judge` looks at, cheap, and passed by most answers. `broken`: what
    NaN in X mean."""
    n, eps = A.shape[-1], xp.eps(A.dtype)
    # the last column is the probe, whose solution grows as A^-1 does: see `_judge`
    limit, ratio = MARGIN * n * eps, min(tol, math.sqrt(eps))
    is_one = A.ndim == X.ndim == 2 and X.shape[-1] <= FEW
    if is_one and not xp.hides_values and A.dtype is B.dtype is X.dtype:
        return solves(A, X, B, ratio, limit)
    A = xp.stop_gradient(A)
    if xp.is_on_device(X) and is_unseen(X):
        limit, size = limit / probe_norm(n), rough_norms(xp, A, -2, -1)
        test: Any = functools.partial(status_by_norms, limit, eps, tol, broken)
        if state.left_out is None:
            R = xp.add_product(B, A, X, -1)
            norms = size, rough_norms(xp, X), rough_norms(xp, R), *sizes_of_columns(xp, B)
        else:  # the residual of the whole is asked for too: only the growth of A^-1 is left
            test = functools.partial(status_of_growth, limit, broken)
            norms = rough_norms(xp, X[..., -1], -1), size
        return take_for_granted(test, *norms, failure=broken)
    if not are_small(xp, B - xp.matmul(A, X), B, ratio):
        return False
    size = xp.sum(squares(xp, A, axis=-1), axis=-1)  # |A|_F^2
    growth = limit**2 * size * squares(xp, X[..., -1], axis=-1)
    return bool(xp.all((growth < squares(xp, B[..., -1], axis=-1)) & (size > 1e-30)))


def solution(A: LinearOperator, B: Array | None, method: Method | None) -> Solution:
    """The solution of A X = B by the chain of factorisations; reports how it went."""
    chosen = fitting("solve", method, *FACTORISATIONS)
    return _solution(A, B, chosen, candidates(A, chosen))


def _solution(A: LinearOperator, B: Array | None, chosen: Method, names: list[str]) -> Solution:
    """Factor A by these, in order, and solve for the columns of B (the probe alone if it is
    None); reports how it went."""
    xp, matrix = A.xp, dense(A)
    if 0 in matrix.shape:
        factor = LUFactor._of(*xp.lu_factor(matrix))
        X = matrix[..., :0] if B is None else factor @ B
        report(Info(method="LU"))
        return Solution(factor, X)
    dtype = A.dtype
    if B is not None and B.dtype is not dtype:
        dtype = xp.result_type(dtype, B.dtype)
    tol, own, is_traced = chosen.tolerance(xp, dtype), xp, False
    if xp.hides_values:
        given: Sequence[Array] = (matrix,) if B is None else (matrix, B)
        is_traced = any(map(xp.is_traced, given))
        if B is not None or "LDL" not in names:  # whose factors each framework keeps in its own way
            xp, given = _nearest(xp, given)
        matrix, B = given if B is not None else (*given, None)
    first, info, is_right, sides = None, None, False, _with_probe(xp, B, matrix)
    if not is_traced and names[0] != "QR" and not is_detailed():
        broken = _BROKEN.get(names[0], Status.SINGULAR)
        is_one = sides.ndim == matrix.ndim == 2  # LAPACK does not warn of infinities
        with UNCHANGED if is_one else ignore_float_errors(xp):
            first = _factored(xp, names[0], matrix, sides, MAKE[names[0]])
            is_right = _is_plainly_right(xp, matrix, sides, first[2], tol, broken)
    if is_right:
        factor, _, X = first  # type: ignore[misc]
    else:
        with ignore_float_errors(xp):
            is_free = isinstance(chosen, Auto)
            factor, X, info = _first_right(xp, matrix, sides, tol, names, is_traced, is_free, first)
    X = X[..., :-1]
    if own is not xp:
        put = functools.partial(own.asarray, device=A._context.device)
        factor, X = factor if B is not None else factor._map(put), put(X)
        info = info and info.replace(residual=put(info.residual))
    if info is not None:
        report(info if B is not None else info.replace(residual=None))
    return Solution(factor, X)


SMALL_AT_ONCE = 128  # rows of a matrix that is factored before more is written down of the choice


def is_factored_at_once(A: LinearOperator, B: Array | None = None) -> bool:
    """Whether A is a small matrix of NumPy's of which nothing is known, the right sides are few, and
    no more is asked for than the answer."""
    current, matrix = state.current, A.A if type(A) is Dense else None
    if type(matrix) is not np.ndarray or A.properties or matrix.ndim > 2:
        return False
    if current is None or current.is_detailed or current.planner:
        return False
    dtype = matrix.dtype
    if not 0 < len(matrix) <= SMALL_AT_ONCE or dtype.itemsize == 2:  # LAPACK has no half precision
        return False
    return B is None or (B.ndim == 2 and B.shape[1] < FEW and B.dtype is dtype)


def factor_at_once(A: Any, B: Array | None = None) -> tuple[Array, Array, Array] | None:
    """L and U, the row swaps, and X of A X = B with one more column, where X is plainly right; None
    elsewhere, where the chain of factorisations does better or says what is wrong."""
    xp, matrix = A.xp, A.A
    n, dtype = len(matrix), matrix.dtype
    sides, eps = probe(xp, n, dtype, "cpu"), xp.eps(dtype)
    if B is not None:
        sides = np.concatenate((B, sides), axis=1)
    LU, pivots, X = lu_factor_and_solve(matrix, sides)
    is_right = solves(matrix, X, sides, math.sqrt(eps), MARGIN * n * eps)
    return (LU, pivots, X) if is_right else None


SMALL_ON_HOST = 4096  # entries of a matrix that NumPy factors before a framework has begun


def _nearest(xp: Any, arrays: Sequence[Array]) -> tuple[Any, Sequence[Array]]:
    """Small arrays as NumPy's, with NumPy, where that costs nothing and no derivatives are
    recorded; else as they are."""
    if math.prod(arrays[0].shape) > SMALL_ON_HOST or xp.is_differentiated(*arrays):
        return xp, arrays
    views = [xp.peek(x) for x in arrays]
    return (xp, arrays) if any(x is None for x in views) else (get("numpy"), views)


def _factored(xp: Any, name: str, A: Array, B: Array, make: Any) -> tuple[Any, Any, Array]:
    """The factor of A, where it broke down, and the solution for B."""
    if name == "LU" and not xp.hides_values and A.ndim == B.ndim == 2 and A.dtype is B.dtype:
        LU, pivots, X = lu_factor_and_solve(A, B)
        return LUFactor._of(LU, pivots), None, X
    is_plain = name == "QR" or not xp.hides_values
    factor, broken = make(xp, A) if is_plain else differentiable(xp, make, A)
    return factor, broken, factor._matmat(B)


def _first_right(
    xp: Any,
    A: Array,
    B: Array,
    tol: float,
    names: list[str],
    is_traced: bool,
    is_free: bool,
    first: Any,
) -> tuple[LinearOperator, Array, Info]:
    """The factor and solution by the first of these factorisations that is right, else by the best,
    and what is to be reported; under tracing those of the first. `first`: what the first of them
    gave, if it was tried."""
    failures: list[str] = []
    best: Any = None
    while names:
        name, names = names[0], names[1:]
        make = cholesky_or_lu if is_traced and is_free and name == "Cholesky" else MAKE[name]
        factor, broken, X = first or _factored(xp, name, A, B, make)
        first = None
        taken = name if make is MAKE[name] else "LU"  # which fails for a singular matrix alone
        judge = functools.partial(_judge, xp, A, B, tol, taken, broken)
        status, residual, backward = judge(X)
        if not isinstance(status, Status):
            residual = residual if is_detailed() else None
            return factor, X, Info(status, residual=residual, method=name)
        for _ in range(REFINEMENTS):
            if status != Status.INACCURATE or B.shape[-1] == 1:
                break
            better = X + factor._matmat(B - xp.matmul(A, X))  # x + A^-1 r
            refined = judge(better)
            if not host_value(xp, refined[1]).max() < host_value(xp, residual).max():
                break
            X, (status, residual, backward) = better, refined
        if best is None or status <= best[2].status or name == "QR":
            best = factor, X, Info(status, residual=residual, method=name)
        if status in (Status.SUCCESS, Status.NONFINITE):
            break
        failures.append(f"{name} failed ({status.name})")
        rounding = 10 * A.shape[-1] * xp.eps(A.dtype)
        if status is Status.SINGULAR or (host_value(xp, backward) <= rounding).all():
            names = names[-1:]  # QR at once, which shows the rank: the others would find the same
    factor, X, info = best
    message = ", ".join(failures[:-1])
    if info.status is Status.SUCCESS and failures:
        why = f"{', '.join(failures)}; {info.method} gave the answer"
        return factor, X, info.replace(status=Status.FELL_BACK, message=why)
    if info.status.is_failure and info.method in ONE_TRIANGLE:
        held = xp.stop_gradient(A)
        is_mirrored = host_value(xp, reproduces(xp, held, mirrored(xp, held))).all()
        message = message if is_mirrored else ONE_TRIANGLE[info.method]
    return factor, X, info.replace(message=message)


# --------------------------------------------------------------------------------------------------


def inverse(A: LinearOperator, method: Method | None = None) -> Choice:
    """The inverse of a square operator, as an operator that holds its factorisation.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Cholesky, LDL, LU, QR or one from outside, optional
        Of the dense base case. `Auto` takes Cholesky, LDL or LU by what is known of A, and falls
        back along that list and to QR with column pivoting where one fails.

    Returns
    -------
    LinearOperator
        Multiplying by it solves a system. One factorisation serves all right sides, transposes too.
        Of a singular A the status is SINGULAR, and the operator gives basic solutions of least
        squares.

    Notes
    -----
    The base case costs n^3 / 3 (Cholesky, LDL), 2 n^3 / 3 (LU) or 4 n^3 / 3 (QR) flops, and 2 n^2
    for each product.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> A_inverse @ np.array([2.0, 4.0])
    array([1., 1.])
    """
    check_square(A)
    if method is None and is_factored_at_once(A):
        return Choice(lambda: _inverse_at_once(A), "LU")
    like = lambda: Inverse(A, identity_like(A))
    if is_iterative(method):
        return iterate(A, method, lambda: Inverse(A, iterated(A, method)), like)  # type: ignore[arg-type]
    if A.properties & UNITARY:
        return Choice(
            functools.partial(_adjoint, A), "adjoint", 0.0, "A is unitary: A^-1 = A^H", lambda: A.H
        )
    if iterates(A, method):
        work = functools.partial(dense_work, A)
        return attempt(A, work, None, lambda: Inverse(A, attempts(A, method)), like)
    return factorise("inv", A, None, method, lambda found: Inverse(A, found.factor), like)


def _inverse_at_once(A: LinearOperator) -> Any:
    found = factor_at_once(A)
    if found is None:
        return factorise("inv", A, None, None, lambda found: Inverse(A, found.factor), lambda: A)
    return Inverse(A, LUFactor._of(*found[:2]))


# an error where A has no inverse because of its shape
check_square = functools.partial(square_size, "inv", need="an inverse", instead="Use pinv(A).")


def fits_as_a_whole(A: LinearOperator) -> bool:
    """Whether the matrix is small enough to be formed where a rule's own way fails."""
    return math.prod(A.shape) <= largest_dense(A) ** 2


def no_inverse(A: LinearOperator, info: Info) -> LinearOperator:
    """NaN in place of an inverse that was not found; reports why."""
    report(info)
    return ScaledIdentity(math.nan, A.shape[-1], like=A)


def _adjoint(A: LinearOperator) -> LinearOperator:
    report_arrays(A)
    return A.H  # known, so nothing is computed


def inverse_by_method(algorithm: Any, A: LinearOperator, method: Method) -> Choice:
    """The inverse by the own algorithm of a method from outside."""
    check_square(A)
    return apply_method(A, method, "inv", lambda applied: Inverse(A, applied))


inv = function("inv", base=inverse, by_method=inverse_by_method)


def all_square(A: LinearOperator) -> bool:
    """Whether every operand is square."""
    for operand in A.operands:  # `all` would take a frame for each
        if operand.shape[-1] != operand.shape[-2]:
            return False
    return True


def kept(A: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """The inverse, with what was claimed of A: each of the six properties passes to it."""
    return inverse._claim(A._claims) if A._claims else inverse


def by_equation(
    found: Callable[[Any, Any], LinearOperator],
) -> Callable[[Any, Any], LinearOperator]:
    """Decorate `found(A, method)`, an inverse by eigenvectors, to have the derivative of A x = b
    where derivatives are recorded.

    Eigenvectors have no derivative where eigenvalues repeat, and a useless one where they almost
    do, or are almost parallel.
    """

    @functools.wraps(found)
    def inverse_of(A: Any, method: Any) -> Any:
        xp = A.xp
        if xp.is_compiling() or not records_derivatives(A):
            return found(A, method)
        return Choice(lambda: implicit(A, method), like=lambda: found(A, method))

    def implicit(A: Any, method: Any) -> Any:
        inverse = perform(found(A.detach(), method))
        # iterations have that derivative anyway
        if inverse.dtype != A.dtype or multiplies_by_iteration(inverse):
            return found(A, method)
        return Inverse._of(A, Implicit._of(A, inverse, found))

    return inverse_of


inv.implicit = by_equation
