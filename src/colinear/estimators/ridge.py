"""Ridge regression on data that may be an operator."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ..functions import lstsq, solve
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.convert import as_operator
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity
from .inputs import as_data, centred, column_means


class Ridge(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression with a penalty: w of least |y - X w - c|^2 + alpha |w|^2, by (X^T X + alpha I) w = X^T y of centred data.

    Parameters
    ----------
    alpha : float
        The penalty, not negative. With 0 it is least squares: the solution of least norm.
    fit_intercept : bool
        Whether there is a constant c, which is not penalised; otherwise it is 0.
    method : Method, optional
        For `solve`: `CG(tol=1e-4)`, say. By default what `explain(solve, X.T @ X + alpha * Identity(d))` tells.

    Attributes
    ----------
    coef_ : array, (n_features,) or (n_targets, n_features)
    intercept_ : float or array, (n_targets,)
    n_features_in_ : int

    Notes
    -----
    X may be an array, a SciPy sparse matrix or any operator. The normal equations are an operator too:
    an array of n x d costs O(n d min(n, d)), since a wide one is solved by the matrix inversion lemma; large sparse or
    structured ones are iterated with.

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

    coef_: np.ndarray
    intercept_: float | np.ndarray

    def __init__(self, alpha: float = 1.0, *, fit_intercept: bool = True, method: Method | None = None):
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.method = method

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the coefficients from X, (n_samples, n_features), and y, (n_samples,) or (n_samples, n_targets)."""
        if not isinstance(self.alpha, numbers.Real) or not self.alpha >= 0:
            raise ValueError(f"Ridge: alpha is {self.alpha!r}; it must be a number that is not negative.")
        X, y = self._data(X, y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        if weights is not None and weights.min() < 0:
            raise ValueError("Ridge: a sample weight is negative.")
        if self.fit_intercept:
            mean, target = column_means(X, weights), np.average(y, axis=0, weights=weights).astype(y.dtype)
            C, r = centred(X, mean), y - target
        else:
            C, r = X, y
        if weights is not None:  # rows times the square roots of their weights
            root = np.sqrt(weights)
            C, r = Diagonal(root) @ C, (r.T * root).T
        if self.alpha == 0:
            w = lstsq(C, r, self.method)
        else:
            w = solve(C.T @ C + float(self.alpha) * Identity(X.shape[1]), C.T @ r, self.method)
        self.coef_ = w.T
        self.intercept_ = target - mean @ w if self.fit_intercept else 0.0
        return self

    def predict(self, X: Any) -> np.ndarray:
        """X coef_^T + intercept_, (n_samples,) or (n_samples, n_targets)."""
        check_is_fitted(self)
        return np.asarray(as_data(self, X, reset=False) @ self.coef_.T) + self.intercept_

    def _data(self, X: Any, y: Any) -> tuple[LinearOperator, np.ndarray]:
        if isinstance(X, LinearOperator):
            X = as_data(self, X, reset=True)
            y = check_array(y, ensure_2d=False, dtype=X.dtype, input_name="y")
            check_consistent_length(X.to_scipy(), y)
        else:
            dtypes = [np.float64, np.float32]
            X, y = validate_data(self, X, y, accept_sparse="csr", dtype=dtypes, multi_output=True, y_numeric=True)
            X = as_operator(X)  # validated: a second time it would have lost its feature names
        y = column_or_1d(y, warn=True) if y.ndim == 1 else y
        return X, np.asarray(y, X.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
