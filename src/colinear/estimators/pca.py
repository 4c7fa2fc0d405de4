"""Principal components of data that may be an operator."""

from __future__ import annotations

import numbers
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..functions import eig, norm, svd
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..properties import PSD
from .inputs import as_data, centred, column_means, rows_of_positive_peak


class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Principal components: the directions of greatest variance of the rows of X, by the singular vectors of X - 1 mean^T.

    Parameters
    ----------
    n_components : int, optional
        How many; as many as there are if not given.
    whiten : bool
        Whether the transformed data is divided by its standard deviations.
    method : Method, optional
        For `svd`: `RandomizedSVD(seed=0)`, say. By default what `explain(svd, X, n_components)` tells.

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
    X may be an array, a SciPy sparse matrix or any operator: a sparse or structured one is centred by a term of rank one, so it is never
    formed where `svd` need not. Arrays of n x d with few components cost O(n d^2).

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

    def __init__(self, n_components: int | None = None, *, whiten: bool = False, method: Method | None = None):
        self.n_components = n_components
        self.whiten = whiten
        self.method = method

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of X, (n_samples, n_features): an array, a sparse matrix or an operator. y is ignored."""
        X = as_data(self, X, reset=True, at_least=2)
        n, d = X.shape
        k = self._wanted(n, d)
        self.mean_ = column_means(X)
        s, rows, squares = self._decomposed(centred(X, self.mean_), k)
        self.components_ = rows_of_positive_peak(np.ascontiguousarray(rows))
        self.singular_values_ = s
        self.explained_variance_ = s**2 / (n - 1)
        total = squares / (n - 1)
        with np.errstate(invalid="ignore"):  # of data that does not vary at all: NaN, as scikit-learn has it
            self.explained_variance_ratio_ = self.explained_variance_ / np.asarray(total, s.dtype)
        rest = min(n, d) - k
        self.noise_variance_ = max(0.0, total - float(self.explained_variance_.sum())) / rest if rest else 0.0
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
        """k singular values and right singular vectors, as rows, of centred data, and the sum of all squares."""
        n, d = C.shape
        if isinstance(C, Dense) and self.method is None and n >= 2 * d:
            # One pass over a tall matrix. Squares of singular values are right to eps times the largest square: good enough for
            # those that are not too small beside it.
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
                f"PCA: n_components is {k!r}; for data of {n} x {d} it must be an integer from 1 to {min(n, d)}, or None."
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
