"""Least squares and the pseudoinverse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, adjoint, eye_like, inner_products
from ...dispatch import Choice, function, perform
from ...factors.inverse import Implicit, Inverse
from ...info import Info, is_detailed, report
from ...methods import CG, LSMR, LSQR, QR, SVD, SVRG, Method, RandomizedSVD, fitting
from ...methods.lsqr import for_least_squares
from ...operators import Dense, Diagonal, LinearOperator, Product, Zero
from ...operators.context import kind_of
from ...operators.neutral import placed_beside
from ...operators.streamed import is_triangle_small, triangle_by_rows
from ...status import Status, combine, first_failure, is_unseen, take_for_granted
from ..common import (
    MARGIN,
    dense,
    host_value,
    ignore_float_errors,
    is_half,
    is_square,
    is_traced_or_differentiated,
    is_vector,
    ones_beside,
    seen_value,
    smaller_side,
    to_result_dtype,
    values_are_seen,
    with_status,
)
from ..matrix_functions.krylov import or_formed
from ..matrix_functions.spectra import factored
from ..orthonormal import are_tall_on_device, qr_of_columns
from ..singular import cutoff, svd
from ..solve import System, relative_residual, right_side
from ..solve.auto import (
    apply_method,
    has_adjoint,
    is_automatic,
    is_iterative,
    iterate,
    iterated,
    try_least_squares,
)
from ..solve.cost import least_squares_work, matrix_cost, memory_to_form
from ..solve.inverse import rough_norms


def pseudoinverse(
    A: LinearOperator, rtol: float | None = None, method: Method | None = None
) -> Choice:
    """The Moore-Penrose pseudoinverse A^+ = V Σ^+ U^H, as an operator that keeps these factors.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rtol : float, optional
        Singular values up to `rtol` times the largest count as zero; default max(m, n) eps.
    method : Auto, SVD, RandomizedSVD, CG, LSQR or LSMR, optional
        `CG` runs on the normal equations. `RandomizedSVD(rank=k)` gives the pseudoinverse of the
        approximation of A by k singular triplets, by all of them if no rank is given; the status is
        INACCURATE where a triplet is not found to `tol` (default sqrt(eps)) of its singular value.

    Returns
    -------
    LinearOperator, (*batch, n, m)
        `pinv(A) @ b` is the minimum-norm solution of least squares.

    Notes
    -----
    About 20 m n min(m, n) flops, and 2 (m + n) min(m, n) for each product: the n x m matrix is not
    formed. Where A does not fit into memory each product is a run of LSMR.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.pinv(np.array([[2.0], [0.0]])).to_dense()
    array([[0.5, 0. ]])
    """
    checked_rtol("pinv", rtol)
    chosen: Any = for_least_squares(fitting("pinv", method, *PSEUDOINVERSE))
    like = lambda: Zero(A.shape[-1], A.shape[-2], like=A)
    if is_iterative(chosen):
        return iterate(A, chosen, lambda: iterated(A, chosen, consistent=False), like)
    if isinstance(chosen, RandomizedSVD):
        why = "asked for: A^+ = V Σ^+ U^H from random vectors"
        return Choice(lambda: _by_samples(A, rtol, chosen), "RandomizedSVD", None, why)
    if _iterates(A, method) and least_squares_work(A).memory > memory_to_form(A):
        iterate_all = lambda lsmr, most: iterated(A, lsmr, consistent=False)
        if (iteration := try_least_squares(A, method, (), 1, iterate_all, like)) is not None:
            return iteration
    plain = partial(_from_triplets, A, rtol, chosen, method)
    is_hidden = 0 not in A.shape and not values_are_seen(A)
    run = partial(_with_derivative, A, rtol, chosen, plain) if is_hidden else plain
    return Choice(run, "SVD", None, "A^+ = V Σ^+ U^H", plain)


def _from_triplets(
    A: LinearOperator, rtol: Any, chosen: Method, method: Method | None
) -> LinearOperator:
    xp = A.xp
    U, s, V = svd(A, None, chosen)
    # in a Fourier basis, say, where the product would be complex too
    if U.is_complex and not A.is_complex:
        U, s, V = svd(Dense(A.to_dense()), None, method)
    return Product(V, Diagonal(inverted(xp, s, s > cutoff(A, s, rtol))), U.H)


def _by_samples(A: LinearOperator, rtol: Any, method: RandomizedSVD) -> LinearOperator:
    """V Σ^+ U^H from triplets found by random vectors.

    An error e of a triplet moves 1 / s by e / s^2, so each triplet is judged by its own s.
    """
    xp, k = A.xp, None if method.rank is None else min(method.rank, *A.shape[-2:])
    (U, s, V), info = svd(A, k, method, info=True)
    kept = s > cutoff(A, s, rtol)
    if info.residual is not None and s.shape[-1]:
        with ignore_float_errors(xp):
            held = xp.stop_gradient(s)
            # |A v - s u| / s
            own = xp.where(kept, info.residual * held[..., :1] / xp.where(kept, held, 1), 0)
        converged = own <= method.tolerance(xp, A.dtype)
        missed = first_failure(xp, (converged, Status.INACCURATE))
        status = combine([info._status, missed])
        info = info.replace(status=status, residual=own, converged=converged)
    report(info.replace(function="", rule=""))
    return Product(V, Diagonal(inverted(xp, s, kept)), U.H)


def _with_derivative(
    A: LinearOperator, rtol: Any, method: Method, otherwise: Callable[[], LinearOperator]
) -> LinearOperator:
    """A^+ with its derivative, which is known also where singular values repeat or are zero;
    else that of their vectors."""
    xp = A.xp
    if not A.batch_shape and not svd.find(A).is_base and (parts := factored(A)) is not None:
        least = cutoff(A, xp.abs(parts.spectrum()), rtol)[..., 0]
        return parts.function(lambda x, least: inverted(xp, x, xp.abs(x) > least), least)
    M = xp.stop_gradient(dense(A)) if svd.find(A).is_base else None
    held = Dense(M) if M is not None else A.detach()
    U, s, V = svd(held, None, method)
    kept = s > cutoff(A, s, rtol)
    inverse = Product(V, Diagonal(inverted(xp, s, kept)), U.H)
    known = known_pseudoinverse(A, inverse)
    if known is not None:
        return known
    visible = host_value(xp, kept)
    is_regular = is_square(A) and visible is not None and visible.all()
    if is_regular and inverse.dtype == A.dtype:
        return Inverse._of(A, Implicit._of(A, inverse, None))  # A^+ = A^-1
    return otherwise()


def known_pseudoinverse(A: LinearOperator, inverse: LinearOperator) -> LinearOperator | None:
    """A^+, which is there as `inverse`, with its derivative, if a matrix of its size is among
    its factors anyway; else None."""
    xp, least = A.xp, smaller_side(A)
    factors = inverse.operands or (inverse,)
    if not any(isinstance(B, Dense) and smaller_side(B) >= least for B in factors):
        return None
    return Dense(to_result_dtype(xp, autodiff.pseudoinverse(xp, dense(A), dense(inverse)), A.dtype))


def checked_rtol(function: str, rtol: Any) -> Any:
    """A relative size below which singular values count as zero, or an error."""
    if rtol is not None and not rtol >= 0:
        raise ValueError(f"{function}: rtol is {rtol!r}; it must not be negative.")
    return rtol


def inverted(xp: Any, s: Array, kept: Array) -> Array:
    """1 / s where kept and zero elsewhere; NaN stays."""
    return xp.where(kept, 1 / xp.where(kept, s, 1), xp.where(xp.isnan(s), s, 0 * s))


def _iterates(A: LinearOperator, method: Method | None) -> bool:
    """Whether `Auto` may iterate with A: no rule knows more of it."""
    return (
        is_automatic(method)
        and 0 not in A.shape
        and has_adjoint(A)
        and pinv.find(A).is_base
        and svd.find(A).is_base
    )


PSEUDOINVERSE = (SVD, RandomizedSVD, CG, LSQR, LSMR)  # the methods of `pinv`
LSTSQ = (SVD, QR, CG, LSQR, LSMR, SVRG)  # and of `lstsq`


def suits_any(A: LinearOperator, method: Method) -> bool:
    """Whether the method is for A: all are here, CG too, which runs on the normal equations."""
    return True


def pinv_by_method(algorithm: Any, A: LinearOperator, rtol: Any, method: Method) -> Choice:
    """The pseudoinverse by the own algorithm of a method from outside."""
    return apply_method(A, method, "pinv", lambda applied: applied)


pinv = function("pinv", base=pseudoinverse, suits=suits_any, by_method=pinv_by_method)


# --------------------------------------------------------------------------------------------------


def minimum_norm_solution(A: LinearOperator, b: Any, method: Method | None = None) -> Choice:
    """The x of smallest norm among those that minimise |b - A x|.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    b : array or operator
        One vector (m,), columns (*batch, m, k), or an operator, for which the answer is one.
    method : Auto, SVD, QR, CG, LSQR, LSMR or SVRG, optional
        `QR` is faster and takes A to have full rank (it reports if that is not so, and then gives a
        basic solution). `CG` runs on the normal equations, with the residual b - A x itself (CGLS),
        and ends when `LSQR` does. `SVRG` takes minibatches of the rows of A and solves A^H A x =
        A^H b, until |A^H r| <= tol |A^H b|.

    Notes
    -----
    `info.residual` is |b - A x| / |b|, which need not be small; a rank below min(m, n) is in
    `info.message`. Large sparse and matrix-free operators, which no rule knows more of, are not
    formed: `Auto` multiplies by them (LSMR) as long as that is likely to be cheaper, until |A^H r|
    <= tol |A| |r|, with a tol of eps^(3/4) unless one is asked for.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0])).round(12)
    array([2.])
    """
    chosen: Any = for_least_squares(fitting("lstsq", method, *LSTSQ))
    b = right_side("lstsq", A, b)
    if isinstance(b, LinearOperator):
        inverse = lambda: pinv(A, None, None if isinstance(chosen, QR) else method)
        return Choice(lambda: inverse() @ b, "pseudoinverse", None, "X = A^+ B")
    A = placed_beside(A, b) if A.is_neutral else A  # it takes framework and precision from b
    if is_iterative(chosen):
        return iterate(A, chosen, lambda: _by_iteration(A, b, chosen), partial(solution_like, A, b))
    s = System.of(A, b)
    if _iterates(A, method):
        like = partial(solution_like, A, b)
        run = lambda lsmr, most: _by_trial(A, s, lsmr, most, method, chosen)
        iteration = try_least_squares(A, method, (s.B,), s.B.shape[-1], run, like)
        if iteration is not None:
            return _by_rows(A, s, iteration)
    return _without_trial(A, s, method, chosen)


def solution_like(A: LinearOperator, b: Array) -> Array:
    """Zeros of the shape of the solution of least squares with the right sides b."""
    batch = A.batch_shape if b.ndim < 3 else b.shape[:-2]
    columns = b.shape[1:] if b.ndim < 3 else b.shape[-1:]
    return A.xp.zeros((*batch, A.shape[-1], *columns), **kind_of(A))


def _by_trial(
    A: LinearOperator, s: System, lsmr: LSMR, most: int | None, method: Method | None, chosen: Any
) -> Any:
    """The solution by LSMR if it converges in as many products, else from a factorisation."""
    X, info = iterated(A, lsmr, consistent=False).run(s.B, s.is_vector)
    if most is not None and A.xp.is_traced(info._status):
        by_matrix = lambda: perform(_without_trial(A, s, method, chosen))
        return or_formed(A.xp, [info], s.answer(X), by_matrix)
    if most is None or info.status is Status.NONFINITE or not info.failed:
        report(info)
        return s.answer(X)
    return _without_trial(A, s, method, chosen)


def _without_trial(A: LinearOperator, s: System, method: Method | None, chosen: Any) -> Choice:
    """The choice where iterations are not tried, or have been tried."""
    like = partial(solution_like, A, s.b)
    qr_cost = matrix_cost(A, 2.0, 8.0)

    def choice(name: str, why: str, solution: Solution, asked: Any) -> Choice:
        def like_asked() -> Array:
            asked(A, None, method)
            return like()

        return Choice(lambda: _judged(A, s, chosen, solution), name, None, why, like_asked)

    if isinstance(chosen, QR):
        return Choice(lambda: _judged(A, s, chosen, _by_qr), "QR", qr_cost, "asked for", like)
    by_triplets = choice("SVD", "x = V Σ^+ U^H b", partial(_by_triplets, method), svd)
    has_rules = not (pinv.find(A).is_base and svd.find(A).is_base)
    by_qr: Any = None
    if _fits_triangle(A, s):
        by_qr = lambda: _by_triangle(A, s, by_triplets.run)
    elif _is_tall_in_program(A, s):
        by_qr = lambda: _by_qr_or_pseudoinverse(A, s, method, chosen)
    if by_qr is not None and is_automatic(method) and not has_rules:
        why = "A is tall: x = R^-1 Q^H b for A = Q R, if R shows that its rank is full"
        return Choice(by_qr, "QR", qr_cost, why, like)
    if has_rules or not values_are_seen(A):
        solution = lambda A, B: (pinv(A, None, method) @ B, None, "")
        return choice("pseudoinverse", "x = A^+ b", solution, pinv)
    return by_triplets


# `solution(A, B)`: A^+ B, whether the rank is full (None if any will do), and a word about the rank
Solution = Callable[[LinearOperator, Array], tuple[Array, Array | None, str]]


def _judged(A: LinearOperator, s: System, chosen: Method, solution: Solution) -> Array:
    """The solution that `solution(A, B)` finds; reports its residual."""
    xp, B = s.xp, s.B
    with ignore_float_errors(xp):
        X, full, message = solution(A, B)
        residual = relative_residual(xp, B - A @ X, B)
    is_full, fine = full is None or full[..., None], xp.isfinite(residual)
    status = first_failure(xp, (is_full, Status.SINGULAR), (fine, Status.NONFINITE))
    report(Info(status, residual=residual, method=chosen.name, message=message))
    return s.answer(X)


def _by_iteration(A: LinearOperator, b: Any, method: Any) -> Any:
    """A^+ b by CG, LSQR, LSMR or SVRG: nothing is factored."""
    vector = b.ndim == 1
    B = b[:, None] if vector else b
    if not isinstance(method, SVRG) or 0 in A.shape:
        X = iterated(A, method, consistent=False)._solve(B, vector)
        return X[..., 0] if vector else X
    # All steps from zero stay in the range of A^H: this solution is the one of smallest norm.
    X, info = iterated(A.H @ A, method).run(A.H @ B, vector)
    residual = A.xp.stop_gradient(relative_residual(A.xp, B - A @ X, B))
    X, residual = (X[..., 0], residual[..., 0]) if vector else (X, residual)
    report(info.replace(residual=residual))
    return X


def _by_triplets(method: Method | None, A: LinearOperator, B: Array) -> tuple[Array, None, str]:
    """V Σ^+ U^H B, and a word about the rank."""
    xp, Q = A.xp, None
    if A.shape[-2] > A.shape[-1]:  # A = Q R first: long singular vectors are not needed
        Q, R = qr_of_columns(xp, dense(A))
        U, s, V = svd(Dense(R), None, method)
    else:
        U, s, V = svd(A, None, method)
    kept = s > cutoff(A, s)
    visible, message = host_value(xp, kept) if is_detailed() else None, ""
    if visible is not None and not visible.all():
        ranks = visible.sum(-1)
        known, full = ranks if ranks.ndim else int(ranks), smaller_side(A)
        message = f"the rank is {known} of {full}: the solution of smallest norm"
    B = B if Q is None else inner_products(xp, Q, B)
    return V @ (inverted(xp, s, kept)[..., None] * (U.H @ B)), None, message


def _by_rows(A: LinearOperator, s: System, iteration: Choice) -> Choice:
    """The iteration, or R of A = Q R by blocks of rows where A is tall and not in memory."""
    if not (is_triangle_small(A) and _fits_triangle(A, s)):
        return iteration
    run = lambda: _by_triangle(A, s, lambda: perform(iteration))
    return Choice(run, "QR", None, "R of A = Q R, by blocks of rows", iteration.like)


def _fits_triangle(A: LinearOperator, s: System) -> bool:
    """Whether [A b] may be factored without Q: A is tall, and b has few columns."""
    (m, n), k, xp = A.shape[-2:], s.B.shape[-1], s.xp
    if not m > n > 0 or not 0 < 4 * k <= n + 3 or is_half(xp, A.dtype):
        return False
    return (
        A.dtype == s.B.dtype
        and A.batch_shape == s.B.shape[:-2]
        and values_are_seen(A)
        and not is_traced_or_differentiated(xp, s.B)
    )


def _by_triangle(A: LinearOperator, s: System, otherwise: Callable[[], Array]) -> Array:
    """R^-1 Q^H b for a tall A = Q R of full rank; `otherwise()` where it may not be full.

    [A b] = Q [R c; 0 d] gives x = R^-1 c without Q, and |b - A x| = |d|. The singular values of A
    lie between 1 / |R^-1|_F and |R|_F, so the rank is full where |R|_F |R^-1|_F is well below the
    reciprocal of the cutoff.
    """
    xp, (m, n), is_streamed = s.xp, A.shape[-2:], is_triangle_small(A)
    has_full_rank = partial(_has_full_rank, MARGIN * m * xp.eps(A.dtype))
    with ignore_float_errors(xp):
        if is_streamed or not are_tall_on_device(xp, dense(A)):
            whole = lambda: xp.qr_triangle(xp.concat([dense(A), s.B], axis=-1))
            triangle = triangle_by_rows(A, s.B) if is_streamed else whole()
            R, image, rest = triangle[..., :n, :n], triangle[..., :n, n:], triangle[..., n:, n:]
        else:
            Q, R = qr_of_columns(xp, dense(A))
            image, rest = inner_products(xp, Q, s.B), None
        inverse = xp.solve_triangular(R, eye_like(xp, R), lower=False)
        X = xp.solve_triangular(R, image, lower=False)
        if is_unseen(R):
            sizes = [rough_norms(xp, Y, -2, -1) for Y in (R, inverse, X)]
            is_full = take_for_granted(has_full_rank, *sizes)
        else:
            norms = (xp.vector_norm(Y, axis=(-2, -1)) for Y in (R, inverse, X))
            is_full = has_full_rank(*(host_value(xp, size) for size in norms))
        if not is_full:
            return otherwise()
        if is_detailed():
            rest = s.B - A @ X if rest is None else rest
            residual = relative_residual(xp, rest, s.B)
            report(Info(Status.SUCCESS, residual=residual, method="QR"))
        return s.answer(X)


def _is_tall_in_program(A: LinearOperator, s: System) -> bool:
    """Whether A is tall and stored, and a program decides whether its rank is full."""
    (m, n), xp = A.shape[-2:], s.xp
    is_traced = isinstance(A, Dense) and xp.is_functional and xp.is_traced(A.A)
    return is_traced and m > n > 0 and not is_half(xp, A.dtype) and 0 not in s.B.shape


def _by_qr_or_pseudoinverse(
    A: LinearOperator, s: System, method: Method | None, chosen: Method
) -> Array:
    """In a program: from A = Q R where R shows that the rank is full, as in `_by_triangle`; else
    by A^+, which costs three times as much."""
    xp, B, limit = s.xp, s.B, MARGIN * A.shape[-2] * s.xp.eps(A.dtype)
    Q, R = autodiff.qr(xp, dense(A))
    fixed = xp.stop_gradient(R)
    inverse = xp.solve_triangular(fixed, eye_like(xp, fixed), lower=False)
    size = partial(xp.vector_norm, axis=(-2, -1))

    def by_qr() -> tuple[Array, Array]:
        X = xp.solve_triangular(R, inner_products(xp, Q, B), lower=False)
        return X, xp.asarray(0, dtype=np.int32)

    is_full = xp.all(limit * size(fixed) * size(inverse) < 1)
    by_pseudoinverse = lambda: with_status(xp, lambda: pinv(A, None, method) @ B)
    X, status = xp.cond(is_full, by_qr, by_pseudoinverse)
    residual = relative_residual(xp, B - A @ X, B)
    status = xp.where(xp.all(xp.isfinite(residual)), status, int(Status.NONFINITE))
    report(Info(status, residual=residual, method=chosen.name))
    return s.answer(X)


def _has_full_rank(factor: float, size: Any, inverse_size: Any, x: Any) -> bool:
    """Whether the condition shows that, and the answer is finite."""
    with np.errstate(all="ignore"):
        return bool(np.all((factor * size * inverse_size < 1) & np.isfinite(x)))


def _by_qr(A: LinearOperator, B: Array) -> tuple[Array, Array, str]:
    """From A = Q R (tall), x = R^-1 Q^H b; from A^H = Q R (wide), x = Q R^-H b, the solution of
    smallest norm."""
    xp, M, (m, n) = A.xp, dense(A), A.shape[-2:]
    tall = m >= n
    Q, R = qr_of_columns(xp, M if tall else adjoint(xp, M))
    d = xp.abs(xp.diagonal(R))
    largest = xp.max(d, axis=-1, keepdims=True) if min(m, n) else d
    full = xp.all(d > max(m, n) * xp.eps(M.dtype) * largest, axis=-1)
    seen = seen_value(xp, full)
    is_full = seen is None or seen.all()
    message = "" if is_full else "A does not have full rank, which QR needs; use SVD()"
    if tall:
        X = xp.solve_triangular(R, inner_products(xp, Q, B), lower=False)
    else:
        X = xp.matmul(Q, xp.solve_triangular(R, B, lower=False, adjoint=True))
    return X, full, message


def _by_method(algorithm: Any, A: LinearOperator, b: Any, method: Method) -> Any:
    """The solution by the own algorithm for `pinv` of a method from outside."""
    b = right_side("lstsq", A, b)
    if isinstance(b, LinearOperator):
        return Choice(lambda: pinv(A, None, method) @ b, "pseudoinverse", None, "X = A^+ B")
    s = System.of(placed_beside(A, b) if A.is_neutral else A, b)

    def finish(applied: Any) -> Array:
        X, info = applied.run(s.B, s.is_vector)
        return report(info, s.answer(X))

    like = partial(solution_like, s.A, b)
    return apply_method(s.A, method, "pinv", finish)._replace(like=like)


lstsq = function(
    "lstsq",
    base=minimum_norm_solution,
    examples={"b": ones_beside},
    suits=suits_any,
    by_method=_by_method,
    rewrites=pinv,
    one_column=is_vector,
)
