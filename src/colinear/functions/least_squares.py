"""Least squares and the pseudoinverse."""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff
from ..backends import Array, namespace_of
from ..dispatch import Cost, function
from ..info import Info, Status, combine, planning, report
from ..methods import CG, LSMR, LSQR, QR, SVD, SVRG, Method, RandomizedSVD, fitting
from ..methods.lsqr import for_least_squares
from ..operators.base import LinearOperator, placed_beside
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.inverse import Inverse
from ..operators.known_inverse import KnownInverse
from ..operators.product import Product
from ..operators.zero import Zero
from ._arrays import dense, is_detailed, is_half, is_vector, is_watched, narrow, quiet, seen, wide
from ._residuals import MARGIN
from .automatic import choose_least_squares, has_adjoint, is_automatic, least_squares_by_trial, lsmr_for
from .cost import MEMORY, least_squares_work
from .iterative import choose as choose_iteration
from .iterative import is_iterative, iterated
from .kronecker_functions import factored
from .singular import cutoff, svd
from .solve import relative_residual, right_side


def pseudoinverse(A: LinearOperator, rtol: float | None = None, method: Method | None = None) -> LinearOperator:
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
    About 20 m n min(m, n) flops, and 2 (m + n) min(m, n) for each product: the n x m matrix is not formed. Where A does not fit into
    memory each product is a run of LSMR.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.pinv(np.array([[2.0], [0.0]])).to_dense()
    array([[0.5, 0. ]])
    """
    xp, rtol = A.xp, checked_rtol("pinv", rtol)
    chosen = for_least_squares(fitting("pinv", method, *PSEUDOINVERSE))
    if is_iterative(chosen):
        return iterated(A, chosen, consistent=False)
    if isinstance(chosen, RandomizedSVD):
        return _by_samples(A, rtol, chosen)
    if _iterates(A, method) and least_squares_work(A).memory > MEMORY:
        return Zero(A.shape[-1], A.shape[-2], like=A) if planning() else iterated(A, lsmr_for(A, method), consistent=False)
    watched = any(is_watched(xp, leaf) for leaf in A.leaves() if namespace_of(leaf) is not None)
    if watched and not planning() and 0 not in A.shape and (known := _with_derivative(xp, A, rtol, chosen)) is not None:
        return known
    U, s, V = svd(A, None, chosen)
    if U.is_complex and not A.is_complex:  # in a Fourier basis, say, where the product would be complex too
        U, s, V = svd(Dense(A.to_dense()), None, method)
    return Product(V, Diagonal(inverted(xp, s, s > cutoff(xp, s, A, rtol))), U.H)


def _by_samples(A: LinearOperator, rtol: Any, method: RandomizedSVD) -> LinearOperator:
    """V Σ^+ U^H from triplets found by random vectors.

    An error e of a triplet moves 1 / s by e / s^2, so each triplet is judged by its own s.
    """
    xp, k = A.xp, None if method.rank is None else min(method.rank, *A.shape[-2:])
    (U, s, V), info = svd(A, k, method, info=True)
    kept = s > cutoff(xp, s, A, rtol)
    if info.residual is not None and s.shape[-1]:
        with quiet(xp):
            held = xp.stop_gradient(s)
            own = xp.where(kept, info.residual * held[..., :1] / xp.where(kept, held, 1), 0)  # |A v - s u| / s
        missed = xp.where(xp.all(own <= method.tolerance(xp, A.dtype)), int(Status.SUCCESS), int(Status.INACCURATE))
        visible = seen(xp, missed)
        worst = combine([info._status, missed if visible is None else Status(int(visible))])
        info = info.replace(status=worst, residual=own, converged=own <= method.tolerance(xp, A.dtype))
    report(info.replace(function="", rule=""))
    return Product(V, Diagonal(inverted(xp, s, kept)), U.H)


def _with_derivative(xp: Any, A: LinearOperator, rtol: Any, method: Method) -> LinearOperator | None:
    """A^+ with its derivative, which is known also where singular values repeat or are zero; None where only their vectors' is."""
    if not A.batch_shape and not svd.find(A).is_base and (parts := factored(A)) is not None:
        least = cutoff(xp, xp.max(xp.abs(parts.spectrum()), axis=-1, keepdims=True), A, rtol)[..., 0]
        return parts.function(lambda x, least: inverted(xp, x, xp.abs(x) > least), least)
    M = xp.stop_gradient(dense(A)) if svd.find(A).is_base else None
    held = Dense(M) if M is not None else A._map(lambda x: x if namespace_of(x) is None else xp.stop_gradient(x))
    U, s, V = svd(held, None, method)
    kept = s > cutoff(xp, s, A, rtol)
    inverse = Product(V, Diagonal(inverted(xp, s, kept)), U.H)
    known = known_pseudoinverse(A, inverse)
    visible = seen(xp, kept)
    if known is None and A.shape[-1] == A.shape[-2] and visible is not None and visible.all() and inverse.dtype == A.dtype:
        return Inverse._of(A, KnownInverse._of(A, inverse, None))  # A^+ = A^-1
    return known


def known_pseudoinverse(A: LinearOperator, inverse: LinearOperator) -> LinearOperator | None:
    """A^+, which is there as `inverse`, with its derivative, if a matrix of its size is among its factors anyway; else None."""
    xp, least = A.xp, min(A.shape[-2:])
    if not any(isinstance(factor, Dense) and min(factor.shape[-2:]) >= least for factor in inverse.operands or (inverse,)):
        return None
    return Dense(narrow(xp, autodiff.pseudoinverse(xp, dense(A), dense(inverse)), A.dtype))


def checked_rtol(function: str, rtol: Any) -> Any:
    """A relative size below which singular values count as zero, or an error."""
    if rtol is not None and not rtol >= 0:
        raise ValueError(f"{function}: rtol is {rtol!r}; it must not be negative.")
    return rtol


def inverted(xp: Any, s: Array, kept: Array) -> Array:
    """1 / s where kept and zero elsewhere; NaN stays."""
    return xp.where(kept, 1 / xp.where(kept, s, 1), xp.where(xp.isnan(s), s, 0 * s))


def _pinv_choose(A: LinearOperator, rtol: Any, method: Method | None) -> tuple[str, Any, str]:
    chosen_method = for_least_squares(fitting("pinv", method, *PSEUDOINVERSE))
    if is_iterative(chosen_method):
        return choose_iteration(A, chosen_method)
    if isinstance(chosen_method, RandomizedSVD):
        return "RandomizedSVD", None, "asked for: A^+ = V Σ^+ U^H from random vectors"
    if _iterates(A, method) and least_squares_work(A).memory > MEMORY and (chosen := choose_least_squares(A)) is not None:
        return chosen
    return "SVD", None, "A^+ = V Σ^+ U^H"


def _iterates(A: LinearOperator, method: Method | None) -> bool:
    """Whether `Auto` may iterate with A: no rule knows more of it."""
    return is_automatic(method) and 0 not in A.shape and has_adjoint(A) and pinv.find(A).is_base and svd.find(A).is_base


PSEUDOINVERSE = (SVD, RandomizedSVD, CG, LSQR, LSMR)  # the methods of `pinv`
LSTSQ = (SVD, QR, CG, LSQR, LSMR, SVRG)  # and of `lstsq`


def suits_any(A: LinearOperator, method: Method) -> bool:
    """Whether the method is for A: all are here, CG too, which runs on the normal equations."""
    return True


pinv = function("pinv", base=pseudoinverse, choose=_pinv_choose, suits=suits_any)


# ---------------------------------------------------------------------------------------------------- lstsq


def minimum_norm_solution(A: LinearOperator, b: Any, method: Method | None = None) -> Any:
    """The x of smallest norm among those that minimise |b - A x|.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    b : array or operator
        One vector (m,), columns (*batch, m, k), or an operator, for which the answer is one.
    method : Auto, SVD, QR, CG, LSQR, LSMR or SVRG, optional
        `QR` is faster and takes A to have full rank (it reports if that is not so, and then gives a basic solution).
        `CG` runs on the normal equations, with the residual b - A x itself (CGLS), and ends when
        `LSQR` does.
        `SVRG` takes minibatches of the rows of A and solves A^H A x = A^H b, until |A^H r| <= tol |A^H b|.

    Notes
    -----
    `info.residual` is |b - A x| / |b|, which need not be small; a rank below min(m, n) is in `info.message`.
    Large sparse and matrix-free operators, which no rule knows more of, are not formed: `Auto` multiplies by them (LSMR) as long as
    that is likely to be cheaper, until |A^H r| <= tol |A| |r|, with a tol of eps^(3/4) unless one is asked for.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0])).round(12)
    array([2.])
    """
    chosen = for_least_squares(fitting("lstsq", method, *LSTSQ))
    b = right_side("lstsq", A, b, A.shape[-2])
    if is_iterative(chosen) and not isinstance(b, LinearOperator):
        return _by_iteration(A, b, chosen)
    if isinstance(b, LinearOperator):
        return pinv(A, None, None if isinstance(chosen, QR) else method) @ b
    if A.is_neutral:  # it takes framework and precision from b
        A = placed_beside(A, b)
    xp = A.xp
    if planning():
        if not (_iterates(A, method) and choose_least_squares(A) is not None):
            pinv(A, None, None if isinstance(chosen, QR) else method)
        return xp.zeros((*A.batch_shape, A.shape[-1], *b.shape[-1:]), dtype=A.dtype)[..., 0 if b.ndim == 1 else slice(None)]
    vector, dtype = b.ndim == 1, xp.result_type(A.dtype, b.dtype)
    B = wide(xp, b[:, None] if vector else b)
    if is_automatic(method):
        tried = least_squares_by_trial(A, B, method, vector) if _iterates(A, method) else None
        if tried is not None:
            report(tried[1])
            X = narrow(xp, tried[0], dtype)
            return X[..., 0] if vector else X
        with quiet(xp):
            found = _by_triangle(xp, A, B)
        if found is not None:
            return found[..., 0] if vector else found
    with quiet(xp):
        X, full, message = _by_qr(xp, A, B) if isinstance(chosen, QR) else _by_pseudoinverse(xp, A, B, method)
        residual = relative_residual(xp, B - A @ X, B)
        status = xp.where(full, int(Status.SUCCESS), int(Status.SINGULAR))[..., None]
        status = xp.where(xp.logical_or(xp.isfinite(residual), xp.logical_not(full)[..., None]), status, int(Status.NONFINITE))
    values = seen(xp, status)
    report(
        Info(
            status if values is None else Status(int(values.max(initial=0))),
            residual=residual,
            method=chosen.name,
            message=message,
        )
    )
    X = narrow(xp, X, dtype)
    return X[..., 0] if vector else X


def _by_iteration(A: LinearOperator, b: Any, method: Any) -> Any:
    """A^+ b by CG, LSQR, LSMR or SVRG: nothing is factored."""
    vector = b.ndim == 1
    if planning():
        return A.xp.zeros((*A.batch_shape, A.shape[-1], *b.shape[-1:]), dtype=A.dtype)[..., 0 if vector else slice(None)]
    B = b[:, None] if vector else b
    if isinstance(method, SVRG) and 0 not in A.shape:
        # From zero all steps stay in the range of A^H, so that of all solutions it is the one of smallest norm.
        X, told = iterated(A.H @ A, method).run(A.H @ B, vector)
        residual = relative_residual(A.xp, B - A @ X, B)
        for info in told:
            report(info.replace(residual=A.xp.stop_gradient(residual[..., 0] if vector else residual)))
    else:
        X = iterated(A, method, consistent=False).solve(B, vector)
    return X[..., 0] if vector else X


def _by_pseudoinverse(xp: Any, A: LinearOperator, B: Array, method: Method | None) -> tuple[Array, Array, str]:
    """A^+ B, whether all is well (of any rank), and a word about the rank."""
    fine = xp.ones(A.batch_shape, dtype=xp.bool, device=xp.device_of(B))
    if not pinv.find(A).is_base or is_watched(xp, dense(A)):
        return pinv(A, None, method) @ B, fine, ""
    Q: Any = None
    if svd.find(A).is_base and A.shape[-2] > A.shape[-1]:  # A = Q R first: long singular vectors are not needed
        Q, R = xp.qr(dense(A))
        U, s, V = svd(Dense(R), None, method)
    else:
        U, s, V = svd(A, None, method)
    kept = s > cutoff(xp, s, A)
    visible, message = seen(xp, kept), ""
    if visible is not None and not visible.all():
        ranks = visible.sum(-1)
        message = f"the rank is {ranks if ranks.ndim else int(ranks)} of {min(A.shape[-2:])}: the solution of smallest norm"
    B = B if Q is None else xp.matmul(xp.conj(xp.matrix_transpose(Q)), B)
    return V @ (inverted(xp, s, kept)[..., None] * (U.H @ B)), fine, message


def _by_triangle(xp: Any, A: LinearOperator, B: Array) -> Array | None:
    """R^-1 Q^H b for a tall A = Q R of full rank, without Q; None where that is not sure, or more than the answer is asked for.

    [A b] = Q [R c; 0 d] gives x = R^-1 c. Each singular value of A is at least 1 / |R^-1|_F, and the largest at most |R|_F, so
    the rank is full where |R|_F |R^-1|_F is well below the reciprocal of the cutoff.
    """
    (m, n), k = A.shape[-2:], B.shape[-1]
    if is_detailed() or not m > n > 0 or not 0 < 4 * k <= n + 3 or not pinv.find(A).is_base or not svd.find(A).is_base:
        return None
    M = dense(A)
    if M.dtype != B.dtype or M.shape[:-2] != B.shape[:-2] or is_half(xp, A.dtype) or is_watched(xp, M) or is_watched(xp, B):
        return None
    triangle = xp.qr_triangle(xp.concat([M, B], axis=-1))
    R = triangle[..., :n, :n]
    inverse = xp.solve_triangular(R, xp.eye(n, dtype=M.dtype, device=xp.device_of(M)), lower=False)
    condition = xp.vector_norm(R, axis=(-2, -1)) * xp.vector_norm(inverse, axis=(-2, -1))
    if not bool(xp.all(MARGIN * m * xp.eps(M.dtype) * condition < 1)):
        return None
    X = xp.solve_triangular(R, triangle[..., :n, n:], lower=False)
    return X if bool(xp.all(xp.isfinite(X))) else None


def _by_qr(xp: Any, A: LinearOperator, B: Array) -> tuple[Array, Array, str]:
    """From A = Q R (tall), x = R^-1 Q^H b; from A^H = Q R (wide), x = Q R^-H b, the solution of smallest norm."""
    M, (m, n) = dense(A), A.shape[-2:]
    tall = m >= n
    Q, R = autodiff.qr(xp, M if tall else xp.conj(xp.matrix_transpose(M)))
    d = xp.abs(xp.diagonal(R))
    full = xp.all(d > max(m, n) * xp.eps(M.dtype) * (xp.max(d, axis=-1, keepdims=True) if min(m, n) else d), axis=-1)
    visible = seen(xp, full)
    message = "" if visible is None or visible.all() else "A does not have full rank, which QR needs; use SVD()"
    if tall:
        return xp.solve_triangular(R, xp.matmul(xp.conj(xp.matrix_transpose(Q)), B), lower=False), full, message
    return xp.matmul(Q, xp.solve_triangular(R, B, lower=False, adjoint=True)), full, message


def _lstsq_choose(A: LinearOperator, b: Any, method: Method | None) -> tuple[str, Cost | None, str]:
    chosen = for_least_squares(fitting("lstsq", method, *LSTSQ))
    if is_iterative(chosen):
        return choose_iteration(A, chosen)
    if isinstance(chosen, QR):
        m, n = max(A.shape[-2:]), min(A.shape[-2:])
        return "QR", Cost(2.0 * math.prod(A.batch_shape) * m * n * n, 8.0 * math.prod(A.shape)), "asked for"
    if _iterates(A, method) and (iteration := choose_least_squares(A)) is not None:
        return iteration
    return "pseudoinverse", None, "x = A^+ b"


def _example(A: LinearOperator) -> Array:
    return A.xp.ones((A.shape[-2],), dtype=A.dtype, device=A._context.device)


lstsq = function(
    "lstsq",
    base=minimum_norm_solution,
    choose=_lstsq_choose,
    examples={"b": _example},
    suits=suits_any,
    rewrites=pinv,
    one_column=is_vector,
)
