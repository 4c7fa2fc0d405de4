"""Principal components of data that may be an operator."""

from __future__ import annotations

import numbers
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..functions import eig, norm, svd
from ..methods import SVD, GolubKahan, Method, RandomizedSVD
from ..operators import Dense, LinearOperator
from ..properties import PSD
from .data import (
    SparseInput,
    as_data,
    centred,
    check_count,
    column_means,
    method_of,
    rows_of_positive_peak,
    seed_of,
)


@dataclass(eq=False, repr=False)
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SparseInput):
    """Principal components: the directions of greatest variance of the rows of X, by the singular
    vectors of X - 1 mean^T.

    Parameters
    ----------
    n_components : int or float, optional
        How many; as many as there are if not given. Of a number between 0 and 1 as many as explain
        more than this share of the variance, for which all are computed.
    whiten : bool
        Whether the transformed data is divided by its standard deviations.
    method : Method, optional
        For `svd`: `RandomizedSVD(seed=0)`, say. By default what `explain(svd, X, n_components)`
        tells.
    svd_solver : {"auto", "full", "arpack", "randomized"}
        The same by scikit-learn's names: `SVD()`, `GolubKahan()`, `RandomizedSVD()`.
    random_state : int or RandomState, optional
        The seed of "arpack" and "randomized"; 0 if not given.

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

    n_components: float | None = None
    _: KW_ONLY
    whiten: bool = False
    method: Method | None = None
    svd_solver: str = "auto"
    random_state: Any = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of X, (n_samples, n_features): an array, a sparse matrix or an
        operator. y is ignored."""
        X = as_data(self, X, reset=True, at_least=2)
        n, d = X.shape
        share = self._share()
        k: Any = min(n, d) if self.n_components is None or share else self.n_components
        more = ", a share of the variance between 0 and 1, or None"
        check_count(self, k, min(n, d), f"data of {n} x {d}", more)
        method = method_of(
            self,
            "svd_solver",
            {
                "auto": lambda: None,
                "full": SVD,
                "arpack": lambda: GolubKahan(seed=seed_of(self.random_state)),
                "randomized": lambda: RandomizedSVD(seed=seed_of(self.random_state)),
            },
        )
        self.mean_ = column_means(X)
        s, rows, squares = self._decomposed(centred(X, self.mean_), k, method)
        if share:
            explained = np.cumsum(s**2 / squares) if squares else np.ones(len(s))
            k = min(int(np.searchsorted(explained, share, side="right")) + 1, k)
            s, rows = s[:k], rows[:k]
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
        self.n_components_, self.n_samples_ = int(k), n
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

    def _share(self) -> float:
        """The share of the variance that is asked for; 0 where a number of components is."""
        share = self.n_components
        is_share = isinstance(share, numbers.Real) and not isinstance(share, numbers.Integral)
        return float(share) if is_share and 0 < share < 1 else 0.0  # type: ignore[operator, arg-type]

    def _decomposed(
        self, C: LinearOperator, k: int, method: Method | None
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """k singular values and right singular vectors, as rows, of centred data, and the sum of
        all squares."""
        n, d = C.shape
        if isinstance(C, Dense) and method is None and n >= 2 * d:
            # One pass over a tall matrix. Squares of singular values are right to eps times the
            # largest square: good enough for those that are not too small beside it.
            G = C.A.T @ C.A
            values, V = eig(PSD(G), k, "LA")
            if values[0] > np.sqrt(np.finfo(G.dtype).eps) * values[-1]:
                return np.sqrt(values[::-1]), V.to_dense().T[::-1], float(np.trace(G))
        _, s, V = svd(C, None if k == min(n, d) else k, method)
        return s[:k], V.to_dense().T[:k], float(norm(C)) ** 2

    def _deviations(self) -> np.ndarray:
        """Standard deviations, of which none may be zero to divide by."""
        deviations = np.sqrt(self.explained_variance_)
        return np.maximum(deviations, np.finfo(deviations.dtype).eps)

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
