"""Principal components and ridge regression on data that may be an operator."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from ..errors import BackendError, DtypeError, ShapeError
from ..functions import eig, lstsq, norm, solve, svd
from ..methods import Method
from ..operators import Dense, Diagonal, Identity, LinearOperator, LowRank, as_operator
from ..properties import PSD

# What the estimators share: data that may be an operator, its columns centred without being
# changed, and signs.


def as_data(estimator: Any, X: Any, *, reset: bool, at_least: int = 1) -> LinearOperator:
    """Data, one sample in each row, as an operator of NumPy; arrays and sparse matrices pass
    scikit-learn's validation."""
    if not isinstance(X, LinearOperator):
        dtypes = [np.float64, np.float32]
        return as_operator(
            validate_data(
                estimator,
                X,
                reset=reset,
                accept_sparse="csr",
                dtype=dtypes,
                ensure_min_samples=at_least,
            )
        )
    name = type(estimator).__name__
    if X.backend != "numpy":
        raise BackendError(
            f"{name}: X is an operator of {X.backend}; scikit-learn's world is NumPy. Give "
            "X.to(backend='numpy')."
        )
    if X.xp.is_complex(X.dtype):
        raise DtypeError(f"{name}: X is {X.dtype}; complex data is not supported.")
    if len(X.shape) != 2:
        raise ShapeError(
            f"{name}: X has the shape {tuple(X.shape)}; one matrix of samples is expected, "
            "without batch dimensions."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1]
    elif X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has {X.shape[1]} features, but {name} is expecting {estimator.n_features_in_} "
            "features as input"
        )
    return X


def centred(X: LinearOperator, mean: np.ndarray) -> LinearOperator:
    """X - 1 mean^T: a matrix of that, or X with a term of rank one, so that what is sparse or
    structured stays so."""
    if isinstance(X, Dense):
        return Dense(X.A - mean)
    ones = np.ones((X.shape[0], 1), X.dtype)
    return X + LowRank(ones, -mean[:, None])


def column_means(X: LinearOperator, weights: np.ndarray | None = None) -> np.ndarray:
    """The mean of each column, weighted or not."""
    weights = np.ones(X.shape[0], X.dtype) if weights is None else weights.astype(X.dtype)
    return np.asarray(X.T @ (weights / weights.sum()))


def rows_of_positive_peak(vectors: np.ndarray) -> np.ndarray:
    """Rows, each with the sign that makes its largest entry positive: an eigenvector has none of
    its own."""
    peaks = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1)
    return vectors * np.where(peaks < 0, -1, 1).astype(vectors.dtype)


# Principal components of data that may be an operator.


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components: the directions of greatest variance of the rows of X, by the singular
    vectors of X - 1 mean^T.

    Parameters
    ----------
    n_components : int, optional
        How many; as many as there are if not given.
    whiten : bool
        Whether the transformed data is divided by its standard deviations.
    method : Method, optional
        For `svd`: `RandomizedSVD(seed=0)`, say. By default what `explain(svd, X, n_components)`
        tells.

    Attributes
    ----------
    components_ : array, (n_components, n_features)
        One direction in each row, by falling variance; the largest entry of each is positive.
    explained_variance_, explained_variance_ratio_, singular_values_ : array, (n_components,)
    mean_ : array, (n_features,)
    noise_variance_ : float
        The mean variance of the directions that were left out.
    n_components_, n_samples_, n_features_in_ : int

    Notes
    -----
    X may be an array, a SciPy sparse matrix or any operator: a sparse or structured one is centred
    by a term of rank one, so it is never formed where `svd` need not. Arrays of n x d with few
    components cost O(n d^2).

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear.estimators import PCA
    >>> scores, loadings = np.random.default_rng(0).standard_normal((2, 500, 3))
    >>> X = co.LowRank(scores * [9, 3, 1], loadings)  # 500 x 500, of rank 3
    >>> PCA(n_components=2).fit_transform(X).shape
    (500, 2)
    """

    def __init__(
        self, n_components: int | None = None, *, whiten: bool = False, method: Method | None = None
    ):
        self.n_components = n_components
        self.whiten = whiten
        self.method = method

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of X, (n_samples, n_features): an array, a sparse matrix or an
        operator. y is ignored."""
        X = as_data(self, X, reset=True, at_least=2)
        n, d = X.shape
        k = self._wanted(n, d)
        self.mean_ = column_means(X)
        s, rows, squares = self._decomposed(centred(X, self.mean_), k)
        self.components_ = rows_of_positive_peak(np.ascontiguousarray(rows))
        self.singular_values_ = s
        self.explained_variance_ = s**2 / (n - 1)
        total = squares / (n - 1)
        # of data that does not vary at all: NaN, as scikit-learn has it
        with np.errstate(invalid="ignore"):
            self.explained_variance_ratio_ = self.explained_variance_ / np.asarray(total, s.dtype)
        rest = min(n, d) - k
        self.noise_variance_ = (
            max(0.0, total - float(self.explained_variance_.sum())) / rest if rest else 0.0
        )
        self.n_components_, self.n_samples_ = k, n
        return self

    def transform(self, X: Any) -> np.ndarray:
        """The coordinates of the rows of X along the components, (n_samples, n_components)."""
        check_is_fitted(self)
        X = as_data(self, X, reset=False)
        along = np.asarray(X @ self.components_.T) - self.mean_ @ self.components_.T
        return along / self._deviations() if self.whiten else along

    def inverse_transform(self, X: Any) -> np.ndarray:
        """The points that have these coordinates, (n_samples, n_features)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, skip_check_array=True)
        X = np.asarray(X, self.components_.dtype)
        return (X * self._deviations() if self.whiten else X) @ self.components_ + self.mean_

    def _decomposed(self, C: LinearOperator, k: int) -> tuple[np.ndarray, np.ndarray, float]:
        """k singular values and right singular vectors, as rows, of centred data, and the sum of
        all squares."""
        n, d = C.shape
        if isinstance(C, Dense) and self.method is None and n >= 2 * d:
            # One pass over a tall matrix. Squares of singular values are right to eps times the
            # largest square: good enough for those that are not too small beside it.
            G = C.A.T @ C.A
            values, V = eig(PSD(G), k, "LA")
            if values[0] > np.sqrt(np.finfo(G.dtype).eps) * values[-1]:
                return np.sqrt(values[::-1]), V.to_dense().T[::-1], float(np.trace(G))
        _, s, V = svd(C, None if k == min(n, d) else k, self.method)
        return s[:k], V.to_dense().T[:k], float(norm(C)) ** 2

    def _wanted(self, n: int, d: int) -> int:
        k = min(n, d) if self.n_components is None else self.n_components
        if not isinstance(k, numbers.Integral) or isinstance(k, bool) or not 1 <= k <= min(n, d):
            raise ValueError(
                f"PCA: n_components is {k!r}; for data of {n} x {d} it must be an integer from 1 "
                f"to {min(n, d)}, or None."
            )
        return int(k)

    def _deviations(self) -> np.ndarray:
        """Standard deviations, of which none may be zero to divide by."""
        deviations = np.sqrt(self.explained_variance_)
        return np.maximum(deviations, np.finfo(deviations.dtype).eps)

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


# Ridge regression on data that may be an operator.


class Ridge(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear regression with a penalty: w of least |y - X w - c|^2 + alpha |w|^2, by (X^T X + alpha
    I) w = X^T y of centred data.

    Parameters
    ----------
    alpha : float
        The penalty, not negative. With 0 it is least squares: the solution of least norm.
    fit_intercept : bool
        Whether there is a constant c, which is not penalised; otherwise it is 0.
    method : Method, optional
        For `solve`: `CG(tol=1e-4)`, say. By default what `explain(solve, X.T @ X + alpha *
        Identity(d))` tells.

    Attributes
    ----------
    coef_ : array, (n_features,) or (n_targets, n_features)
    intercept_ : float or array, (n_targets,)
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

    coef_: np.ndarray
    intercept_: float | np.ndarray

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, method: Method | None = None
    ):
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.method = method

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Find the coefficients from X, (n_samples, n_features), and y, (n_samples,) or
        (n_samples, n_targets)."""
        if not isinstance(self.alpha, numbers.Real) or not self.alpha >= 0:
            raise ValueError(
                f"Ridge: alpha is {self.alpha!r}; it must be a number that is not negative."
            )
        X, y = self._data(X, y)
        weights = (
            None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        )
        if weights is not None and weights.min() < 0:
            raise ValueError("Ridge: a sample weight is negative.")
        if self.fit_intercept:
            mean, target = (
                column_means(X, weights),
                np.average(y, axis=0, weights=weights).astype(y.dtype),
            )
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
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=dtypes, multi_output=True, y_numeric=True
            )
            X = as_operator(X)  # validated: a second time it would have lost its feature names
        y = column_or_1d(y, warn=True) if y.ndim == 1 else y
        return X, np.asarray(y, X.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
