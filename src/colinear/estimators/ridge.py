"""Ridge regression on data that may be an operator."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ..functions import lstsq, solve, svd
from ..info import Info, report
from ..methods import CG, LSQR, SVD, Cholesky, Method
from ..operators import Diagonal, Identity, LinearOperator, as_operator
from .data import CHECKS, SparseInput, as_data, centred, column_means, method_of


@dataclass(eq=False, repr=False)
class Ridge(MultiOutputMixin, RegressorMixin, SparseInput):
    """Linear regression with a penalty: w of least |y - X w - c|^2 + alpha |w|^2, by (X^T X + alpha
    I) w = X^T y of centred data.

    Parameters
    ----------
    alpha : float or array, (n_targets,)
        The penalty, not negative, or one for each target. With 0 it is least squares: the solution of
        least norm.
    fit_intercept : bool
        Whether there is a constant c, which is not penalised; otherwise it is 0.
    method : Method, optional
        For `solve`: `CG(tol=1e-4)`, say. By default what `explain(solve, X.T @ X + alpha *
        Identity(d))` tells.
    solver : {"auto", "cholesky", "svd", "lsqr", "sparse_cg"}
        The same by scikit-learn's names: `Cholesky()` and `CG()` for the normal equations, `SVD()` and
        `LSQR()` for X itself.
    max_iter, tol : optional
        The most iterations, and the tolerance, of "lsqr" and "sparse_cg"; those of the methods if not
        given.
    random_state : optional
        Taken for the sake of programs that give it; none of these solvers is random.

    Attributes
    ----------
    coef_ : array, (n_features,) or (n_targets, n_features)
    intercept_ : float or array, (n_targets,)
    n_iter_ : int
        The iterations; 1 of a factorisation.
    n_features_in_ : int

    Notes
    -----
    X may be an array, a SciPy sparse matrix or any operator. The normal equations are an operator
    too: an array of n x d costs O(n d min(n, d)), since a wide one is solved by the matrix
    inversion lemma; large sparse or structured ones are iterated with.

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear.estimators import Ridge
    >>> X = co.Kronecker(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]), np.eye(100))  # 300 samples, 200 features
    >>> model = Ridge(alpha=1e-6, fit_intercept=False).fit(X, X @ np.ones(200))
    >>> bool(np.allclose(model.coef_, 1, atol=1e-4))
    True
    """

    alpha: Any = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    method: Method | None = None
    solver: str = "auto"
    max_iter: int | None = None
    tol: float | None = None
    random_state: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the coefficients from X, (n_samples, n_features), and y, (n_samples,) or
        (n_samples, n_targets)."""
        X, y = self._data(X, y)
        alphas = self._penalties(1 if y.ndim == 1 else y.shape[1])
        method = method_of(
            self,
            "solver",
            {
                "auto": lambda: None,
                "cholesky": Cholesky,
                "svd": SVD,
                "lsqr": lambda: LSQR(tol=self.tol, max_iters=self.max_iter),
                "sparse_cg": lambda: CG(tol=self.tol, max_iters=self.max_iter),
            },
        )
        weights = (
            None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        )
        if weights is not None and weights.min() < 0:
            raise ValueError("Ridge: a sample weight is negative.")
        C, r = X, y
        if self.fit_intercept:
            mean = column_means(X, weights)
            target = np.average(y, axis=0, weights=weights).astype(y.dtype)
            C, r = centred(X, mean), y - target
        if weights is not None:  # rows times the square roots of their weights
            root = np.sqrt(weights)
            C, r = Diagonal(root) @ C, (r.T * root).T
        columns = r if r.ndim == 2 else r[:, None]
        w, self.n_iter_ = np.empty((X.shape[1], columns.shape[1]), X.dtype), 1
        for alpha in np.unique(alphas):  # targets of one penalty at once
            same = alphas == alpha
            w[:, same], info = _coefficients(C, columns[:, same], float(alpha), method)
            self.n_iter_ = max(self.n_iter_, int(info.iterations or 1))
            report(info)
        w = w if r.ndim == 2 else w[:, 0]
        self.coef_: np.ndarray = w.T
        self.intercept_: float | np.ndarray = target - mean @ w if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> np.ndarray:
        """X coef_^T + intercept_, (n_samples,) or (n_samples, n_targets)."""
        check_is_fitted(self)
        return np.asarray(as_data(self, X, reset=False) @ self.coef_.T) + self.intercept_

    def _penalties(self, targets: int) -> np.ndarray:
        """The penalty of each target."""
        try:
            alphas = np.asarray(self.alpha, np.float64)
        except (TypeError, ValueError):
            alphas = np.array(np.nan)
        if alphas.ndim > 1 or not np.all(alphas >= 0) or isinstance(self.alpha, str | bool):
            raise ValueError(
                f"Ridge: alpha is {self.alpha!r}; it must be a number that is not negative, or one "
                "for each target."
            )
        if alphas.ndim == 1 and alphas.size not in (1, targets):
            raise ValueError(
                f"Ridge: alpha has {alphas.size} penalties, and y has {targets} targets. Give one "
                "penalty, or one for each target."
            )
        return np.broadcast_to(alphas, (targets,))

    def _data(self, X: Any, y: Any) -> tuple[LinearOperator, np.ndarray]:
        if isinstance(X, LinearOperator):
            X = as_data(self, X, reset=True)
            y = check_array(y, ensure_2d=False, dtype=X.dtype, input_name="y")
            check_consistent_length(X.to_scipy(), y)
        else:
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, **CHECKS)
            X = as_operator(X)  # validated: a second time it would have lost its feature names
        y = column_or_1d(y, warn=True) if y.ndim == 1 else y
        return X, np.asarray(y, X.dtype)


def _coefficients(
    C: LinearOperator, r: np.ndarray, alpha: float, method: Method | None
) -> tuple[np.ndarray, Info]:
    """w of least |r - C w|^2 + alpha |w|^2, by columns, and how it was found."""
    if isinstance(method, SVD) and alpha:
        # w = V diag(s / (s^2 + alpha)) U^T r
        (U, s, V), info = svd(C, method=method, info=True)
        return np.asarray(V @ (Diagonal(s / (s**2 + alpha)) @ (U.T @ r))), info
    if isinstance(method, LSQR):
        damped = replace(method, damping=float(np.sqrt(alpha)))
        return lstsq(C, r, damped, info=True)
    if alpha == 0:
        return lstsq(C, r, None if isinstance(method, Cholesky) else method, info=True)
    return solve(C.T @ C + alpha * Identity(C.shape[1]), C.T @ r, method, info=True)
