"""The log marginal likelihood of observations under a Gaussian process."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import Choice, function
from ..functions import inv, logdet, slogdet, solve_and_logdet
from ..functions._arrays import ones_beside, square_size
from ..functions._values import report_status
from ..functions.determinant import needs_estimate
from ..info import BackendError, DtypeError, ShapeError, Status, recording, report
from ..methods import SLQ, Auto, Cholesky, Method
from ..operators.base import LinearOperator
from ..operators.implicit import Implicit
from ..properties import PSD


def of_framework(name: str, x: Any, K: LinearOperator) -> Array:
    """Numbers and lists as an array like those of K, and integers in its dtype; arrays of another framework are refused."""
    if namespace_of(x) is None:
        return K.xp.asarray(x, dtype=K.dtype, device=K._context.device)
    if namespace_of(x) is not K.xp:
        raise BackendError(f"{name}: K is of {K.backend}, and an array was given that is of {namespace_of(x).name}.")
    return x if K.xp.is_floating(x) else K.xp.astype(x, K.dtype)


def checked_observations(name: str, K: LinearOperator, y: Any, mean: Any) -> Array:
    """y - mean, or an error that says what does not fit."""
    n = square_size(name, K, "a covariance", "Give the covariance of the observations with each other, noise included.")
    if K.xp.is_complex(K.dtype):
        raise DtypeError(
            f"{name}: K is {K.xp.dtype_name(K.dtype)}; a Gaussian process here is real. Give K.real or a real covariance."
        )
    y = of_framework(name, y, K)
    axis = -1 if y.ndim == 1 else -2
    if y.ndim == 0 or y.shape[axis] != n:
        raise ShapeError(f"{name}: K is {n}x{n} and y has the shape {tuple(y.shape)}; it must be ({n},) or (*batch, {n}, k).")
    return y - of_framework(name, mean, K)


def gaussian_log_density(K: LinearOperator, y: Any, mean: Any = 0.0, method: Method | None = None) -> Choice:
    """log p(y) = -(y - m)^T K^-1 (y - m) / 2 - log det K / 2 - n log(2 π) / 2: how likely the observations are.

    Parameters
    ----------
    K : operator or array, (*batch, n, n)
        The covariance of the observations, noise included. It need not be annotated: a covariance is positive semidefinite.
    y : array, (n,) or (*batch, n, k)
        One set of observations, or k independent ones, each in a column.
    mean : number or array
        The mean of y, of its shape or a number.
    method : Auto, Cholesky or SLQ, optional
        As for `solve_and_logdet`: by default exact, from one factorisation or by the structure of K; `SLQ` estimates.

    Returns
    -------
    array, (*batch,) or (*batch, k)
        Differentiable in the leaves of K, in y and in the mean.

    Notes
    -----
    The cost of one solve and one log-determinant. A K that turns out not to be positive definite is a failure
    (`NOT_POSITIVE_DEFINITE`), since log|det K| would be the logarithm of nothing that exists.

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear import gp
    >>> K = co.Kronecker(co.PSD([[2.0, 1.0], [1.0, 2.0]]), co.PSD(np.eye(3))) + 0.5 * co.Identity(6)
    >>> float(gp.log_marginal_likelihood(K, np.ones(6)).round(4))
    -8.8581
    """
    difference = checked_observations("log_marginal_likelihood", K, y, mean)
    why = "-(y^T K^-1 y + log det K + n log 2π) / 2"
    return Choice(
        lambda: _density(K, difference, method), "gaussian_log_density", None, why, lambda: _density_like(K, difference, method)
    )


def _density(K: LinearOperator, difference: Array, method: Method | None) -> Array:
    xp, vector = namespace_of(difference), difference.ndim == 1
    with recording(detailed=True) as reports:
        x, logarithm = solution_and_logarithm(PSD(K), difference, method)
    quadratic = xp.sum(difference * x, axis=-1 if vector else -2)
    _report_definiteness(xp, reports, quadratic)
    if not vector:
        logarithm = logarithm[..., None]
    return -(quadratic + logarithm + K.shape[-1] * math.log(2 * math.pi)) / 2


def solution_and_logarithm(K: LinearOperator, y: Array, method: Method | None) -> tuple[Array, Array]:
    """K^-1 y and log det K, both by the structure of K, or from one factorisation where it has none."""
    if inv.find(K).is_base:
        # The determinant needs a factorisation, so the solution takes it too, where `Auto` would iterate for the solution alone.
        direct = method is None and slogdet.find(K).is_base and not needs_estimate(K, Auto())
        return solve_and_logdet(K, y, Cholesky() if direct else method)
    if isinstance(method, SLQ) or not is_differentiated(K, y):
        return solve_and_logdet(K, y, method)
    return differentiable_inverse(K, inv(K.detach(), method), y) @ y, logdet(K, method)


def differentiable_inverse(K: LinearOperator, inverse: LinearOperator, *others: Array) -> LinearOperator:
    """An inverse found by a rule, differentiated by the equation K x = y where derivatives are recorded.

    Some rules find the inverse by the eigenvectors of parts of K, which have no derivative where eigenvalues repeat, as those of a
    covariance do near zero. The solution has one all the same, and it takes no more than the inverse that is there already.
    """
    return Implicit._of(K, inverse, None) if is_differentiated(K, *others) else inverse


def is_differentiated(K: LinearOperator, *others: Array) -> bool:
    return bool(K.xp.is_differentiated(*others, *K.arrays()))


def _report_definiteness(xp: Any, reports: list[Any], quadratic: Array) -> None:
    """Pass on what was reported, with the remedy; that Cholesky had to give way to another, or x^T K^-1 x < 0, is a failure here."""
    negative = xp.any(quadratic < 0)
    for info in reports:
        status = xp.asarray(info._status)
        negative = negative | xp.any((status == int(Status.FELL_BACK)) | (status == int(Status.NOT_POSITIVE_DEFINITE)))
    status = xp.where(negative, int(Status.NOT_POSITIVE_DEFINITE), int(Status.SUCCESS))
    report_status(
        xp, status, message="The covariance has an eigenvalue that is not positive: add noise, a multiple of the identity."
    )
    for info in reports:
        report(info)


def _density_like(K: LinearOperator, y: Array, method: Method | None) -> Array:
    solution_and_logarithm(PSD(K), y, method)
    batch = K.batch_shape if y.ndim == 1 else (*K.batch_shape, y.shape[-1])
    return K.xp.zeros(batch, dtype=K.dtype, device=K._context.device)


log_marginal_likelihood = function(
    "log_marginal_likelihood",
    base=gaussian_log_density,
    examples={"y": ones_beside},
    rewrites=inv,
)
