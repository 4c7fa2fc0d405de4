"""What becomes of an inverse or a determinant that was found by inverting a part.

Woodbury's formula inverts one term of a sum, block elimination one block of a grid. Such a part may
be nearly singular although the whole is well-conditioned, and then the rest is lost by
cancellation. One mechanism serves all these rules:

- `judged`: an inverse is tried on one vector. Where it fails, it is refined, or the matrix is factored
  as a whole. A solve looks at its own residual, so it leaves the judgement out
  (`leave_to_residual`) until that residual is bad.
- `weak_entries`, `strengthened`: pivoting across the terms of D + U C V^H. Small entries of D are
  exchanged for larger ones, and the difference joins the low-rank term. That is exact algebra.
- `condition`: an estimate of |A| |A^-1|, for determinants, which show no residual.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...backends import Array, positive_or_one
from ...dispatch import Choice, check_part, perform
from ...factors.dense import probe_of
from ...factors.runs import multiplies_by_iteration
from ...info import Info, recording, report
from ...operators import (
    Diagonal,
    Identity,
    LinearOperator,
    LowRank,
    Product,
    Scaled,
    ScaledIdentity,
    Sum,
)
from ...operators.context import records_derivatives
from ...operators.sparse_algebra import SHIFT
from ...status import Status, failed, first_failure, is_unseen, take_for_granted
from ..common import (
    MARGIN,
    have_failed,
    host_value,
    ignore_float_errors,
    largest_rank,
    low_rank_sides,
    report_all,
    report_failure,
    seen_value,
    to_computing_dtype,
)
from .auto import is_iterative, is_left_to_residual
from .inverse import (
    REFINEMENTS,
    are_small,
    column_norms,
    fits_as_a_whole,
    inverse,
    squares,
)

# ------------------------------------------------------------------------------- the judgement


def judged(
    rule: Callable[[Any, Any], LinearOperator] | None = None,
    *,
    is_final: bool = False,
    unless: Callable[[Any], bool] | None = None,
) -> Any:
    """Judge the inverse that a rule of `inv` finds by inverting a part, and replace a bad one.

    `is_final`: the part that the rule inverts is known to be good, so that a part found to be
    singular means a singular whole. `unless`: for which operators there is nothing to judge.
    """
    if rule is None:
        return functools.partial(judged, is_final=is_final, unless=unless)

    @functools.wraps(rule)
    def judge(A: Any, method: Any) -> Any:
        if 0 in A.shape or (unless is not None and unless(A)) or is_left_to_residual(A):
            return rule(A, method)
        if is_iterative(method):
            check_part(A, method)
            # of which each product knows its residual; those of the parts do not
            return inverse(A, method)
        return Choice(lambda: found_and_judged(A, method), like=lambda: rule(A, method))

    def found_and_judged(A: Any, method: Any) -> LinearOperator:
        """The inverse that the rule finds if it is right, else a better one; reports what is to be
        said of it."""
        with recording(detailed=True) as reports, ignore_float_errors(A.xp):
            found = perform(rule(A, method))
        is_bad = have_failed(reports)
        if is_bad and not is_final:
            why = next(info.message for info in reports if failed(info._status) is True)
            return dense_fallback(A, method, reports, why or "a part could not be inverted")
        # products that are iterations (Auto's, of a large part) report on themselves
        if is_bad or multiplies_by_iteration(found):
            return report_all(reports, found)
        status = verdict(A, found)
        if not isinstance(status, Status):
            report(Info(status))
        if not isinstance(status, Status) or status is Status.SUCCESS:
            return report_all(reports, found)
        if status is Status.SINGULAR and is_final:
            why = "the inverse grows as that of a singular operator does"
            return report_all([*reports, Info(status, message=why)], found)
        why = "an ill-conditioned part was inverted, which spoils the inverse of the whole"
        return dense_fallback(A, method, [*reports, Info(status, message=why)], why, found)

    return judge


def is_recorded_and_seen(A: LinearOperator) -> bool:
    """Whether derivatives of what is computed from A are recorded, and its values can be seen."""
    arrays = A.arrays()
    return bool(A.xp.is_differentiated(*arrays)) and not any(
        A.xp.is_traced(A.xp.stop_gradient(x)) for x in arrays
    )


def _tolerance(A: LinearOperator) -> float:
    """The relative error that is let pass. A part of condition κ costs eps κ, and a derivative
    eps κ^2: at most eps^1/3."""
    return float(A.xp.eps(A.dtype) ** (2 / 3 if records_derivatives(A) else 1 / 2))


def verdict(A: LinearOperator, X: LinearOperator) -> Any:
    """The status of X in place of A^-1, by the probe p and x = X p.

    The error of x is that of one step of refinement, X (p - A x). It may be what the dtype leaves
    of a matrix of this condition, or a rounding error of a matrix of any condition.
    """
    xp, n, eps = A.xp, A.shape[-1], A.xp.eps(A.dtype)
    held = lambda Y: to_computing_dtype(xp, xp.stop_gradient(Y))
    with ignore_float_errors(xp):
        p = probe_of(A)
        x = held(X @ p)
        p = xp.broadcast_to(held(p), x.shape)
        image = held(A @ x)
        r = p - image  # r = p - A x
        # many right answers miss this; on a device the whole judgement is asked at once
        if not is_unseen(r) and are_small(xp, r, p, eps**0.75):
            return Status.SUCCESS
        vectors = p, x, r, image, held(X @ r), held(A @ p)
        sizes = (column_norms(xp, Y)[..., 0] for Y in vectors)
        p_size, x_size, r_size, image_size, error, p_image_size = sizes
        scale = xp.where(x_size == 0, math.inf, x_size)  # A^-1 p is not zero
        norm = xp.maximum(image_size / scale, p_image_size / p_size)  # at most |A|
        # |A^-1 p| / |p| is |A^-1| / sqrt(n) or so for a p without structure.
        growth = MARGIN * math.sqrt(n) * eps * norm * scale / p_size
        backward = r_size / (norm * x_size + p_size)
        error = error / scale
        regular = growth < 0.1
        is_right = (error <= _tolerance(A)) | ((error <= growth) & regular)
        is_right = is_right & (backward <= math.sqrt(eps))
        conditions = (is_right | regular, Status.SINGULAR), (is_right, Status.INACCURATE)
        return first_failure(xp, *conditions)


def dense_fallback(
    A: LinearOperator,
    method: Any,
    reports: list[Info],
    why: str,
    found: LinearOperator | None = None,
) -> LinearOperator:
    """The inverse from the matrix, or by the iteration that was asked for, where a rule's own way
    failed with these reports.

    If the matrix is too large, what the rule `found` is refined. If that fails too, the reports of
    the rule are passed on: they name the part that failed.
    """
    if fits_as_a_whole(A) or is_iterative(method):
        with recording(detailed=True) as others:
            whole = perform(inverse(A, method))
        told = reports if have_failed(others) else [Info(Status.FELL_BACK, message=why)]
        return report_all([*told, *others], whole)
    refined = None if found is None else _refined(A, found)
    if refined is not None:
        report(Info(Status.FELL_BACK, message=f"{why}; it was refined"))
        return refined
    report_all(reports)
    return ScaledIdentity(math.nan, A.shape[-1], like=A) if found is None else found


def _refined(A: LinearOperator, X: LinearOperator) -> LinearOperator | None:
    """X + X (I - A X), as iterative refinement does it, once or twice; None where that does not
    help."""
    I = Identity(A.shape[-1])
    for _ in range(REFINEMENTS):
        X = Sum(X, Product(X, Sum(I, Scaled(-1.0, Product(A, X)))))
        if verdict(A, X) is Status.SUCCESS:
            return X
    return None


def condition(A: LinearOperator, A_inverse: LinearOperator) -> Array:
    """An estimate of |A| |A^-1|, the largest of a batch: from the images of a probe, or from the
    diagonal."""
    xp = A.xp
    if 0 in A.shape or isinstance(A, SHIFT):
        return xp.ones(())
    with ignore_float_errors(xp):
        if isinstance(A, Diagonal):
            size = xp.abs(xp.stop_gradient(A.d))
            return _finite(xp, xp.max(xp.max(size, axis=-1) / xp.min(size, axis=-1)))
        return _finite(xp, xp.max(_sizes(A) * _sizes(A_inverse)))


def growth(A: LinearOperator, W: Array, U: Array) -> Array:
    """An estimate of |A| |A^-1 U| / |U| for W = A^-1 U, the largest of a batch: what is lost by
    cancellation."""
    xp = A.xp
    if 0 in W.shape:
        return xp.ones(())
    with ignore_float_errors(xp):
        sizes = _norms(xp, U)
        return _finite(xp, size_of(A) * xp.max(_norms(xp, W) / positive_or_one(xp, sizes)))


def size_of(A: LinearOperator) -> Array:
    """An estimate of |A|, the largest of a batch: from the image of a probe."""
    with ignore_float_errors(A.xp):
        return A.xp.max(_sizes(A))


def _sizes(A: LinearOperator) -> Array:
    """An estimate of |A| for each matrix of a batch."""
    p = probe_of(A)
    return _norms(A.xp, A @ p) / _norms(A.xp, p)


def _norms(xp: Any, X: Array) -> Array:
    """The norm of each column, infinite where squares overflow."""
    return xp.sqrt(squares(xp, to_computing_dtype(xp, xp.stop_gradient(X))))


def _finite(xp: Any, x: Array) -> Array:
    """x, infinite where it is not a number."""
    return xp.where(xp.isfinite(x), x, math.inf)


def is_spoilt(A: LinearOperator, spoilt: Array) -> bool:
    """Whether so many units of rounding are seen to exceed the tolerance."""
    values = seen_value(A.xp, spoilt)
    return values is not None and not bool(np.all(A.xp.eps(A.dtype) * values <= _tolerance(A)))


def report_fallback(message: str) -> None:
    """Report that the whole matrix is factored, and why."""
    report(Info(Status.FELL_BACK, method="LU", message=message))


def settle_determinant(
    A: LinearOperator, found: Any, spoilt: Array, whole: Callable[[], Any]
) -> Any:
    """The sign and logarithm that were found if at most `spoilt` units of rounding do not matter,
    else those of the matrix.

    If the matrix is too large, or values cannot be seen, the status says so.
    """
    xp, eps = A.xp, A.xp.eps(A.dtype)
    size = xp.abs(xp.stop_gradient(found[1]))
    size = xp.where((size > 1) & (size < math.inf), size, 1)
    # nothing can be mended there, only reported
    tol = math.sqrt(eps) if xp.is_traced(spoilt) else _tolerance(A)
    is_good = eps * spoilt <= tol * size
    visible = seen_value(xp, is_good)
    why = "an ill-conditioned part was divided by, which spoils the determinant of the whole"
    if visible is not None and not np.all(visible) and fits_as_a_whole(A):
        report_fallback(why)
        return perform(whole())
    report_failure(xp, (is_good, Status.INACCURATE), message=why)
    return found


# ------------------------------------------------------------------------------- pivoting across te
#
# D + U C V^H with a small d_i: Woodbury's formula forms 1 / d_i and subtracts nearly all of it
# again. With r columns, some vector of the r + 1 coordinates of the smallest |d| is in the kernel
# of V^H, so |A^-1| >= 1 / q for the (r + 1)-th smallest |d|, q: entries of size q do no harm. Nor
# does d_i where row i of U C V^H, of the size σ_i = |(U C)_i| |V_i|, is no larger. So d_i is weak
# if it is far below min(σ_i, q). It is exchanged for s_i = min(σ_i, q), and with the unit vectors E
# of such rows
#
#     D + U C V^H = D' + [U E] diag(C, D_E - S) [V E]^H.


WEAK = 1 / 4  # |d_i| < eps^WEAK s_i: then at most eps^3/4 is lost by the others


def weak_entries(low_rank: Any, D: Any) -> Any:
    """The rows of weak entries of D, in any matrix of a batch; none if values cannot be seen."""
    values = seen_value(D.xp, D.d) if isinstance(D, Diagonal) else None
    if values is None or not values.size:
        return ()
    size = np.abs(values)
    smallest, largest = size.min(axis=-1), size.max(axis=-1)
    is_level = (smallest >= D.xp.eps(D.dtype) ** WEAK * largest) & (smallest > 0)
    if np.all(is_level):  # no entry is far below the largest
        return ()
    weak = host_value(D.xp, _weakness(D, low_rank, WEAK)[0])
    return np.flatnonzero(np.any(np.reshape(weak, (-1, D.shape[-1])), axis=0))


def _weakness(D: Any, low_rank: Any, power: float) -> tuple[Array, Array]:
    """Whether each entry of D is below eps^power s_i, and what it may be exchanged for."""
    xp = D.xp
    size, s, rank = xp.abs(xp.stop_gradient(D.d)), _row_sizes(low_rank), largest_rank(low_rank)
    if rank < size.shape[-1]:
        s = xp.minimum(s, xp.sort(size, axis=-1)[..., rank : rank + 1])  # q
    weak = (size < xp.eps(D.dtype) ** power * s) | (size == 0)
    largest = xp.max(size, axis=-1, keepdims=True)
    return weak, xp.where(s > 0, s, positive_or_one(xp, largest))


def _row_sizes(low_rank: Any) -> Array:
    """σ_i = |u_i| |v_i|, of the rows of U C and V."""
    xp, (U, V) = low_rank.xp, low_rank_sides(low_rank)
    first = xp.vector_norm(xp.stop_gradient(U), axis=-1)
    return first * (first if V is U else xp.vector_norm(xp.stop_gradient(V), axis=-1))


def strengthened(low_rank: Any, D: Any) -> tuple[Any, Any]:
    """The same sum with the weak entries of D exchanged, if there are any: a low-rank term and D'."""
    rows = weak_entries(low_rank, D)
    if not len(rows):
        return low_rank, D
    xp, device = D.xp, D._context.device
    weak, s = _weakness(D, low_rank, WEAK)
    filled = xp.where(weak, xp.astype(s, D.dtype), D.d)  # D'
    E = np.arange(D.shape[-1])[:, None] == rows
    # D_E - S
    core = xp.make_diagonal(xp.take(D.d - filled, xp.asarray(rows, device=device), axis=-1))
    moved = LowRank(xp.asarray(E, dtype=core.dtype, device=device), None, core)
    return Sum(low_rank, moved), Diagonal(filled)


def report_weak_entries(low_rank: Any, D: Any) -> None:
    """Report entries of D too weak for a derivative to be right, where values cannot be seen and
    nothing is exchanged."""
    xp = D.xp
    if not isinstance(D, Diagonal) or 0 in D.d.shape or not any(map(is_unseen, (D.d, low_rank.U))):
        return
    power, size = 1 / 3, xp.abs(xp.stop_gradient(D.d))
    may_be = xp.any((size < xp.eps(D.dtype) ** power * _row_sizes(low_rank)) | (size == 0))
    if take_for_granted(lambda may_be: not may_be, may_be):
        return  # else the call is run again, and the entries are exchanged
    some = lambda: xp.any(_weakness(D, low_rank, power)[0])  # which sorts
    weak = xp.cond(may_be, some, lambda: may_be) if xp.is_functional else some()
    why = "entries of the diagonal are too small beside the low-rank term for the determinant lemma"
    report_failure(xp, (~weak, Status.INACCURATE), message=why)
