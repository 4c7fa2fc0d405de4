"""The log marginal likelihood of observations, and what a Gaussian process predicts at new
points."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..backends import Array, namespace_of
from ..dispatch import Choice, function
from ..errors import DtypeError, ShapeError
from ..factors.inverse import Implicit
from ..functions import diag, inv, logdet, slogdet, solve_and_logdet
from ..functions.common import filled, ones_beside, report_all, report_failure, square_size
from ..functions.determinant import needs_estimate
from ..functions.solve.auto import iterates
from ..info import recording
from ..methods import SLQ, Auto, Cholesky, Method
from ..operators import Dense, LinearOperator, as_operator
from ..properties import PSD
from ..status import Status
from .covariances import of_framework, sample

# The log marginal likelihood of observations under a Gaussian process.


def checked_observations(name: str, K: LinearOperator, y: Any, mean: Any) -> Array:
    """y - mean, or an error that says what does not fit."""
    n = square_size(
        name,
        K,
        "a covariance",
        "Give the covariance of the observations with each other, noise included.",
    )
    if K.xp.is_complex(K.dtype):
        raise DtypeError(
            f"{name}: K is {K.xp.dtype_name(K.dtype)}; a Gaussian process here is real. Give "
            "K.real or a real covariance."
        )
    y = of_framework(name, y, K)
    axis = -1 if y.ndim == 1 else -2
    if y.ndim == 0 or y.shape[axis] != n:
        raise ShapeError(
            f"{name}: K is {n}x{n} and y has the shape {tuple(y.shape)}; it must be ({n},) or "
            f"(*batch, {n}, k)."
        )
    return y - of_framework(name, mean, K)


def gaussian_log_density(
    K: LinearOperator, y: Any, mean: Any = 0.0, method: Method | None = None
) -> Choice:
    """log p(y) = -(y - m)^T K^-1 (y - m) / 2 - log det K / 2 - n log(2 π) / 2: how likely the
    observations are.

    Parameters
    ----------
    K : operator or array, (*batch, n, n)
        The covariance of the observations, noise included. It need not be annotated: a covariance
        is positive semidefinite.
    y : array, (n,) or (*batch, n, k)
        One set of observations, or k independent ones, each in a column.
    mean : number or array
        The mean of y, of its shape or a number.
    method : Auto, Cholesky or SLQ, optional
        As for `solve_and_logdet`: by default exact, from one factorisation or by the structure of
        K; `SLQ` estimates.

    Returns
    -------
    array, (*batch,) or (*batch, k)
        Differentiable in the leaves of K, in y and in the mean.

    Notes
    -----
    The cost of one solve and one log-determinant. A K that turns out not to be positive definite is
    a failure (`NOT_POSITIVE_DEFINITE`), since log|det K| would be the logarithm of nothing that
    exists.

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
        lambda: _density(K, difference, method),
        "gaussian_log_density",
        None,
        why,
        lambda: _density_like(K, difference, method),
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


def solution_and_logarithm(
    K: LinearOperator, y: Array, method: Method | None
) -> tuple[Array, Array]:
    """K^-1 y and log det K, both by the structure of K, or from one factorisation where it has
    none."""
    if inv.find(K).is_base:
        # The determinant needs a factorisation, so the solution takes it too, where `Auto` would
        # iterate for the solution alone.
        direct = method is None and slogdet.find(K).is_base and not needs_estimate(K, Auto())
        return solve_and_logdet(K, y, Cholesky() if direct else method)
    if isinstance(method, SLQ) or not is_differentiated(K, y):
        return solve_and_logdet(K, y, method)
    return differentiable_inverse(K, inv(K.detach(), method), y) @ y, logdet(K, method)


def differentiable_inverse(
    K: LinearOperator, inverse: LinearOperator, *others: Array
) -> LinearOperator:
    """An inverse found by a rule, differentiated by the equation K x = y where derivatives are
    recorded.

    Some rules find the inverse by the eigenvectors of parts of K, which have no derivative where
    eigenvalues repeat, as those of a covariance do near zero. The solution has one all the same,
    and it takes no more than the inverse that is there already.
    """
    return Implicit._of(K, inverse, None) if is_differentiated(K, *others) else inverse


def is_differentiated(K: LinearOperator, *others: Array) -> bool:
    return bool(K.xp.is_differentiated(*others, *K.arrays()))


def _report_definiteness(xp: Any, reports: list[Any], quadratic: Array) -> None:
    """Pass on what was reported, with the remedy; that Cholesky had to give way to another, or
    x^T K^-1 x < 0, is a failure here."""
    indefinite = int(Status.NOT_POSITIVE_DEFINITE)
    negative = xp.any(quadratic < 0)
    for info in reports:
        status = xp.asarray(info._status)
        negative = negative | xp.any((status == int(Status.FELL_BACK)) | (status == indefinite))
    why = "The covariance has an eigenvalue that is not positive: add noise, a multiple of the identity."
    condition = xp.logical_not(negative), Status.NOT_POSITIVE_DEFINITE
    report_failure(xp, condition, message=why)
    report_all(reports)


def _density_like(K: LinearOperator, y: Array, method: Method | None) -> Array:
    solution_and_logarithm(PSD(K), y, method)
    batch = K.batch_shape if y.ndim == 1 else (*K.batch_shape, y.shape[-1])
    return filled(K, 0, *batch)


log_marginal_likelihood = function(
    "log_marginal_likelihood",
    base=gaussian_log_density,
    examples={"y": ones_beside},
    rewrites=inv,
)


# What a Gaussian process predicts at new points, given observations.


class Posterior(NamedTuple):
    """The distribution of function values at new points: its mean at once, its variances,
    covariance and samples when asked for.

    A tuple of arrays and operators, so `jit` and `vmap` return it like any other result. Made by
    `posterior`.
    """

    mean: Array
    K_star_star: LinearOperator
    K_star: LinearOperator
    inverse: LinearOperator

    @property
    def covariance(self) -> LinearOperator:
        """K** - K*^T K^-1 K*, an operator; (*batch, m, m)."""
        return PSD(self.K_star_star - self._explained())

    @property
    def variance(self) -> Array:
        """The diagonal of the covariance, (*batch, m): of the function. Add the variance of the
        noise for that of an observation.

        Rounding can leave a variance below zero where the observations determine the value: such a
        one is given as zero.
        """
        xp = self.inverse.xp
        found = diag(self.K_star_star) - diag(self._explained())
        return xp.maximum(found, 0 * found)

    def sample(self, count: int | None = None, *, seed: Any = 0) -> Array:
        """Functions at the new points: one, (*batch, m), or `count` of them as columns. It forms
        the m x m covariance."""
        mean = self.mean if count is None or self.mean.ndim > 1 else self.mean[..., None]
        return sample(self.covariance, count, seed=seed, mean=mean)

    def _explained(self) -> LinearOperator:
        """K*^T K^-1 K*: what the observations tell. Of a dense K* the solves are done now, once,
        for all its columns together."""
        if isinstance(self.K_star, Dense):
            return self.K_star.T @ Dense(self.inverse @ self.K_star.A)
        return self.K_star.T @ self.inverse @ self.K_star

    def __repr__(self) -> str:
        return (
            f"<Posterior of {'x'.join(map(str, self.mean.shape))}: mean, variance, covariance, "
            "sample>"
        )


def posterior(
    K: Any,
    K_star: Any,
    K_star_star: Any,
    y: Any,
    *,
    mean: Any = 0.0,
    mean_star: Any = 0.0,
    method: Method | None = None,
) -> Posterior:
    """The Gaussian process at new points: mean m* + K*^T K^-1 (y - m), covariance K** - K*^T K^-1
    K*.

    Parameters
    ----------
    K : operator or array, (*batch, n, n)
        The covariance of the observations with each other, noise included.
    K_star : operator or array, (*batch, n, m)
        That of the observations (rows) with the values at the new points (columns).
    K_star_star : operator or array, (*batch, m, m)
        That of the new values with each other, without noise. Its diagonal is enough for the
        variances: `Diagonal(d)`.
    y : array, (n,) or (*batch, n, k)
    mean, mean_star : number or array
        The mean before observations, of y and of the new values.
    method : Method, optional
        For the inverse of K; by default what `explain(inv, K)` says.

    Returns
    -------
    Posterior
        With `mean`, (m,) or (*batch, m, k), `variance`, `covariance` and `sample(count, seed=0)`.

    Notes
    -----
    One factorisation, or decomposition by structure, serves all. With a dense K the mean costs
    O(n^3 + n m), the variances O(n^2 m). With K = A ⊗ B + c I and K* = C ⊗ D no product is formed;
    nor with K = D + U U^T and K* = LowRank(U, V).

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear import gp
    >>> X, X_new = np.linspace(0, 6, 40)[:, None], np.array([[1.0], [9.0]])
    >>> K = co.PSD(gp.rbf(X)) + 1e-4 * co.Identity(40)
    >>> found = gp.posterior(K, gp.rbf(X, X_new), gp.rbf(X_new), np.sin(X[:, 0]))
    >>> bool(abs(found.mean[0] - np.sin(1.0)) < 1e-3), (found.variance.round(2) + 0).tolist()
    (True, [0.0, 1.0])
    """
    K, K_star, K_star_star = (as_operator(A) for A in (K, K_star, K_star_star))
    difference = checked_observations("posterior", K, y, mean)
    n, m = K.shape[-1], K_star_star.shape[-1]
    if tuple(K_star.shape[-2:]) != (n, m):
        transposed = " Give its transpose." if tuple(K_star.shape[-2:]) == (m, n) else ""
        raise ShapeError(
            f"posterior: K is {n}x{n} and K_star_star {m}x{m}, so K_star must be {n}x{m}: "
            "observations in rows, new points in columns. "
            f"It is {'x'.join(map(str, K_star.shape[-2:]))}.{transposed}"
        )
    if K_star_star.shape[-2] != m:
        raise ShapeError(
            f"posterior: K_star_star is {K_star_star.shape[-2]}x{m}; the covariance of new values "
            "is square."
        )
    K = PSD(K)
    structured = not inv.find(K).is_base
    by_columns = structured and isinstance(K_star, Dense)
    # Without structure by Cholesky, which tells if K is no covariance; another factorisation would
    # give variances below zero.
    factorised = (
        Cholesky() if method is None and not structured and not iterates(K, None) else method
    )
    inverse = inv(K.detach() if by_columns else K, factorised)
    solver = differentiable_inverse(K, inverse, difference) if structured else inverse
    predicted = K_star.T @ (solver @ difference) + of_framework("posterior", mean_star, K)
    # A structured K* wants the structure of the inverse too, which then is differentiated as it was
    # found.
    return Posterior(predicted, K_star_star, K_star, solver if by_columns else inverse)
