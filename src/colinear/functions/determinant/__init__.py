"""Determinants. All rules are those of `slogdet`; `logdet` and `det` are read off it."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add, mul
from typing import Any

from ...autodiff import determinants
from ...autodiff.determinants import slogdet_of_diagonal
from ...backends import Array, namespace_of
from ...dispatch import Choice, Cost, function, rule
from ...errors import DerivativeWarning
from ...factors.dense import MAKE, cholesky_or_lu, is_of
from ...factors.inverse import differentiable
from ...methods import LDL, LU, SLQ, Auto, Cholesky, Method, fitting
from ...operators import Dense, Diagonal, LinearOperator, ScaledIdentity, Triangular
from ...operators.context import kind_of, records_derivatives
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status
from ..common import (
    dense,
    filled,
    ignore_float_errors,
    may_be_positive,
    passes,
    report_failure,
    report_finite,
    reports_nonfinite,
    seen_value,
    square_size,
    to_result_dtype,
)
from ..diagonal import diag
from ..solve.cost import is_too_large, why_first
from ..solve.elimination import fits_as_a_whole, report_fallback
from ..solve.inverse import ONE_TRIANGLE, factorisation_cost
from ..stochastic.estimators import announce
from ..stochastic.quadrature import logarithm_by_quadrature

NO_DERIVATIVE = "{}: A is singular, and log|det A| has no derivative there."


Determinant = tuple[Array, Array]  # its sign, and the logarithm of its absolute value


def check_square(function: str, A: LinearOperator) -> None:
    """Raise an error if A is not square."""
    square_size(function, A, "a determinant", "Its singular values are svd(A)[1].")


def sign_and_logarithm(A: LinearOperator, method: Method | None = None) -> Choice:
    """The sign of the determinant and the logarithm of its absolute value, det A = sign
    exp(logabsdet).

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Cholesky, LDL, LU or SLQ, optional
        Of the base case. `Auto` takes Cholesky for positive semidefinite A, else LU; for a positive
        semidefinite A too large to be formed it estimates by SLQ, with an ApproximationWarning, and
        `info.error` is the standard error.

    Returns
    -------
    sign : array, (*batch)
        1, -1 or 0; a number of modulus 1, or 0, for complex A.
    logabsdet : array, (*batch)
        Real; -inf for a singular A, as in NumPy.

    Notes
    -----
    n^3 / 3 flops by Cholesky, 2 n^3 / 3 by LU.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> sign, logabsdet = co.slogdet(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> float(sign), float(np.exp(logabsdet))
    (-1.0, 2.0)
    """
    check_square("slogdet", A)
    chosen = fitting("slogdet", method, Cholesky, LDL, LU, SLQ)
    is_free, like = isinstance(chosen, Auto), partial(one, A)
    if isinstance(chosen, SLQ) or needs_estimate(A, chosen):
        found = SLQ(tol=chosen.tol) if is_free else chosen
        reason = "the matrix would not fit into memory" if is_free else "asked for"
        why = f"{reason}; Lanczos from random vectors"
        work = Cost(found.most * 50 * A.flops, 40.0 * A.shape[-1] * found.most)
        return Choice(lambda: _by_quadrature(A, found, is_free), "SLQ", work, why, like)
    name, why = chosen.name, "asked for"
    if is_free:
        is_tried = A.properties & POSITIVE_SEMIDEFINITE or may_be_positive(A)
        name, why = "LU", "A is not known to be positive semidefinite"
        if is_tried:
            name, why = "Cholesky", why_first(A, "Cholesky")
    cost = partial(factorisation_cost, A, name)
    return Choice(lambda: _by_factor(A, name, is_free), name, cost, why, like)


def _by_quadrature(A: LinearOperator, method: SLQ, is_free: bool) -> Determinant:
    if is_free:
        announce("logdet", A, method.name)
    logarithm = logarithm_by_quadrature(A, method)
    return A.xp.ones(A.batch_shape, **kind_of(A)), logarithm


def _by_factor(A: LinearOperator, name: str, is_free: bool) -> Determinant:
    xp, M = A.xp, dense(A)
    with ignore_float_errors(xp):
        if determinants.is_polynomial():
            found = _factor(xp, xp.stop_gradient(M), name, is_free).slogdet()
            sign, logarithm = determinants.polynomial(xp, M, *found)
        else:
            factor, *_ = differentiable(xp, lambda xp, M: (_factor(xp, M, name, is_free),), M)
            sign, logarithm = factor.slogdet()
    if A.properties & SELF_ADJOINT and A.is_complex:
        # the product of the pivots' phases is real but for rounding
        sign = xp.astype(real_sign(xp, sign), sign.dtype)
    report_finite(xp, M)
    return in_dtype_of(A, sign, logarithm)


def in_dtype_of(A: LinearOperator, sign: Array, logarithm: Array) -> Determinant:
    """Both in the precision of A, if that is half."""
    return to_result_dtype(A.xp, sign, A.dtype), to_result_dtype(A.xp, logarithm, A.dtype)


def needs_estimate(A: LinearOperator, method: Any) -> bool:
    """Whether `Auto` leaves it to SLQ: the matrix of a positive semidefinite A does not fit into
    memory."""
    return (
        bool(A.properties & POSITIVE_SEMIDEFINITE)
        and not getattr(method, "exact", True)
        and is_too_large(A)
    )


def _factor(xp: Any, M: Array, name: str, is_free: bool) -> Any:
    """The factorisation by the method; where one from the lower triangle does not reproduce M,
    the status says so, and `Auto` takes LU."""
    name = name if M.shape[-1] else "LU"
    if is_free and name == "Cholesky" and xp.is_traced(M):
        return cholesky_or_lu(xp, M)[0]
    factor, _ = MAKE[name](xp, M)
    right = is_of(xp, name, factor, M)
    if right is None:
        return factor
    seen = seen_value(xp, right) if is_free else None
    if seen is not None and not seen.all():
        report_fallback("Cholesky failed: A is not positive definite")
        return MAKE["LU"](xp, M)[0]
    wrong, message = Status.NOT_POSITIVE_DEFINITE, ""
    if name == "LDL":
        wrong, message = Status.INACCURATE, ONE_TRIANGLE[name]
    report_failure(xp, (right, wrong), method=name, message=message)
    return factor


def report_determinant(xp: Any, sign: Array, logarithm: Array) -> Determinant:
    """Return sign and logarithm, and report their status: -inf is the logarithm of a singular operator's
    determinant; NaN and inf are those of no finite matrix."""
    held, is_right = xp.stop_gradient(logarithm), lambda values: (values < math.inf).all()
    if not passes(xp, is_right, held, Status.NONFINITE):
        report_failure(xp, (held < math.inf, Status.NONFINITE))
    return sign, logarithm


slogdet = function("slogdet", base=sign_and_logarithm)


# --------------------------------------------------------------------------------------------------


def one(A: LinearOperator) -> Determinant:
    """1 and its logarithm, of A's batch shape."""
    check_square("slogdet", A)
    return A.xp.ones(A.batch_shape, **kind_of(A)), filled(A, 0.0, *A.batch_shape)


def slogdet_of_power(A: LinearOperator, c: Any) -> Determinant:
    """Sign and logarithm of c^n, of c's batch shape."""
    xp, n = A.xp, A.shape[-1]
    if namespace_of(c) is None:
        c = xp.asarray(c, **kind_of(A))
    with ignore_float_errors(xp):
        sign, logarithm = slogdet_of_diagonal(namespace_of(c), c[..., None])
    return sign**n, n * logarithm if n else filled(A, 0.0, *logarithm.shape)


def real_sign(xp: Any, sign: Array) -> Array:
    """The sign of a determinant that is real but for rounding."""
    return xp.real(sign) if determinants.is_polynomial() else xp.sign(xp.real(sign))


def reciprocal_determinant(xp: Any, sign: Array, logarithm: Array) -> Determinant:
    """1 / det A"""
    return 1 / sign if determinants.is_polynomial() else xp.conj(sign), -logarithm


def multiplied(parts: list[Determinant], powers: list[int] | None = None) -> Determinant:
    """Sign and logarithm of a product of determinants, or of powers of them."""
    powers = powers or [1] * len(parts)
    sign = reduce(mul, (s**p for (s, _), p in zip(parts, powers)))
    return sign, reduce(add, (logarithm * p for (_, logarithm), p in zip(parts, powers)))


# --------------------------------------------------------------------------------------------------


def logarithm_of_determinant(A: LinearOperator, method: Method | None = None) -> Array:
    """log|det A|, real; -inf for a singular operator.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : optional
        As for `slogdet`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> float(co.logdet(co.ScaledIdentity(np.e, 3)))
    3.0
    """
    check_square("logdet", A)
    with determinants.polynomials(False):
        _, logarithm = slogdet(A, method)
    if lacks_derivative(A.xp, logarithm):
        A.xp.warn_later(True, NO_DERIVATIVE.format("logdet"), category=DerivativeWarning)
    return logarithm


def determinant(A: LinearOperator, method: Method | None = None) -> Array:
    """The determinant. Use `slogdet` where it might overflow.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : optional
        As for `slogdet`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> float(co.det(co.Diagonal([2.0, 3.0])).round(12))
    6.0
    """
    check_square("det", A)
    xp = A.xp
    is_recorded = records_derivatives(A) and not xp.is_compiling()
    with determinants.polynomials(bool(is_recorded)):
        sign, logarithm = slogdet(A, method)
    if lacks_derivative(xp, logarithm):
        if fits_as_a_whole(A):
            return det_dense(Dense(dense(A)), None)
        xp.warn_later(True, NO_DERIVATIVE.format("det"), category=DerivativeWarning)
    with ignore_float_errors(xp):
        return sign * xp.exp(logarithm)


def lacks_derivative(xp: Any, logarithm: Array) -> bool:
    """Whether derivatives of log|det A| are recorded, and some A is seen to be singular: there
    are none."""
    if not xp.is_differentiated(logarithm):
        return False
    are_regular = lambda values: (values != -math.inf).all()
    return passes(xp, are_regular, xp.stop_gradient(logarithm)) is False


logdet = function("logdet", base=logarithm_of_determinant, forwards=True, rewrites=False)
det = function("det", base=determinant, forwards=True, rewrites=False)


@rule(det, Dense)
def det_dense(A: Any, method: Any) -> Any:
    """det A = ± ∏ u_ii for A = P L U: without a detour over logarithms, which would cost digits

    and which have no derivative where A is singular, as the determinant has."""
    check_square("det", A)
    if method is not None and not isinstance(method, Auto | LU):
        return determinant(A, method)
    return Choice(lambda: _product_of_pivots(A), like=lambda: one(A)[0])


def _product_of_pivots(A: Any) -> Array:
    xp, M = A.xp, dense(A)
    with ignore_float_errors(xp):
        product = determinants.det(xp, M)
        report_finite(xp, M)
    return to_result_dtype(xp, product, A.dtype)


@rule(det, Diagonal | Triangular | ScaledIdentity)
@reports_nonfinite
def det_by_diagonal(A: Any, method: Any) -> Array:
    """det T = ∏ t_ii: without a detour over logarithms, which would cost digits"""
    check_square("det", A)
    xp, d = A.xp, diag(A, method)
    with ignore_float_errors(xp):
        return xp.prod(d, axis=-1)


# The rules register themselves with `slogdet`.
from . import bands, sums  # noqa: E402, F401
