"""What a Gaussian process predicts at new points, given observations."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..backends import Array
from ..functions import diag, inv
from ..functions.automatic import iterates
from ..info import ShapeError
from ..methods import Cholesky, Method
from ..operators.base import LinearOperator
from ..operators.convert import as_operator
from ..operators.dense import Dense
from ..properties import PSD
from .likelihood import checked_observations, differentiable_inverse, of_framework
from .roots import sample


class Posterior(NamedTuple):
    """The distribution of function values at new points: its mean at once, its variances, covariance and samples when asked for.

    A tuple of arrays and operators, so `jit` and `vmap` return it like any other result. Made by `posterior`.
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
        """The diagonal of the covariance, (*batch, m): of the function. Add the variance of the noise for that of an observation.

        Rounding can leave a variance below zero where the observations determine the value: such a one is given as zero.
        """
        xp = self.inverse.xp
        found = diag(self.K_star_star) - diag(self._explained())
        return xp.maximum(found, 0 * found)

    def sample(self, count: int | None = None, *, seed: Any = 0) -> Array:
        """Functions at the new points: one, (*batch, m), or `count` of them as columns. It forms the m x m covariance."""
        mean = self.mean
        return sample(self.covariance, count, seed=seed, mean=mean if count is None or mean.ndim > 1 else mean[..., None])

    def _explained(self) -> LinearOperator:
        """K*^T K^-1 K*: what the observations tell. Of a dense K* the solves are done now, once, for all its columns together."""
        if isinstance(self.K_star, Dense):
            return self.K_star.T @ Dense(self.inverse @ self.K_star.A)
        return self.K_star.T @ self.inverse @ self.K_star

    def __repr__(self) -> str:
        return f"<Posterior of {'x'.join(map(str, self.mean.shape))}: mean, variance, covariance, sample>"


def posterior(
    K: Any, K_star: Any, K_star_star: Any, y: Any, *, mean: Any = 0.0, mean_star: Any = 0.0, method: Method | None = None
) -> Posterior:
    """The Gaussian process at new points: mean m* + K*^T K^-1 (y - m), covariance K** - K*^T K^-1 K*.

    Parameters
    ----------
    K : operator or array, (*batch, n, n)
        The covariance of the observations with each other, noise included.
    K_star : operator or array, (*batch, n, m)
        That of the observations (rows) with the values at the new points (columns).
    K_star_star : operator or array, (*batch, m, m)
        That of the new values with each other, without noise. Its diagonal is enough for the variances: `Diagonal(d)`.
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
    One factorisation, or decomposition by structure, serves all. With a dense K the mean costs O(n^3 + n m), the variances O(n^2 m). With
    K = A ⊗ B + c I and K* = C ⊗ D no product is formed; nor with K = D + U U^T and K* = LowRank(U, V).

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear import gp
    >>> X, X_new = np.linspace(0, 6, 40)[:, None], np.array([[1.0], [9.0]])
    >>> K = co.PSD(gp.rbf(X)) + 1e-4 * co.Identity(40)
    >>> found = gp.posterior(K, gp.rbf(X, X_new), gp.rbf(X_new), np.sin(X[:, 0]))
    >>> bool(abs(found.mean[0] - np.sin(1.0)) < 1e-3), (found.variance.round(2) + 0).tolist()  # known inside, unknown outside
    (True, [0.0, 1.0])
    """
    K, K_star, K_star_star = (as_operator(A) for A in (K, K_star, K_star_star))
    difference = checked_observations("posterior", K, y, mean)
    n, m = K.shape[-1], K_star_star.shape[-1]
    if tuple(K_star.shape[-2:]) != (n, m):
        transposed = " Give its transpose." if tuple(K_star.shape[-2:]) == (m, n) else ""
        raise ShapeError(
            f"posterior: K is {n}x{n} and K_star_star {m}x{m}, so K_star must be {n}x{m}: observations in rows, new points in columns. "
            f"It is {'x'.join(map(str, K_star.shape[-2:]))}.{transposed}"
        )
    if K_star_star.shape[-2] != m:
        raise ShapeError(f"posterior: K_star_star is {K_star_star.shape[-2]}x{m}; the covariance of new values is square.")
    K = PSD(K)
    structured = not inv.find(K).is_base
    by_columns = structured and isinstance(K_star, Dense)
    # Without structure by Cholesky, which tells if K is no covariance; another factorisation would give variances below zero.
    factorised = Cholesky() if method is None and not structured and not iterates(K, None) else method
    inverse = inv(K.detach() if by_columns else K, factorised)
    solver = differentiable_inverse(K, inverse, difference) if structured else inverse
    predicted = K_star.T @ (solver @ difference) + of_framework("posterior", mean_star, K)
    # A structured K* wants the structure of the inverse too, which then is differentiated as it was found.
    return Posterior(predicted, K_star_star, K_star, solver if by_columns else inverse)
