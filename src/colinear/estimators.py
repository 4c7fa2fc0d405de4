"""Estimators of scikit-learn's kind that take operators where scikit-learn takes matrices; `pip
install 'colinear[sklearn]'`.

A convenience outside the core, which `import colinear` does not load. Each is a page: the model as
an operator, one call of `svd`, `solve` or `eig`, and scikit-learn's conventions around it, which
its own checks test.
"""

from __future__ import annotations

import numbers
import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np

from .errors import BackendError, ColinearWarning, DtypeError, ShapeError
from .functions import diag, eig, lstsq, norm, solve, svd
from .methods import Method
from .operators import Dense, Diagonal, Identity, LinearOperator, LowRank, as_operator
from .properties import PSD, SelfAdjoint

try:
    import sklearn  # noqa: F401
    from sklearn.base import (
        BaseEstimator,
        ClassNamePrefixFeaturesOutMixin,
        MultiOutputMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.neighbors import kneighbors_graph
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_array,
        check_consistent_length,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "colinear.estimators needs scikit-learn: pip install 'colinear[sklearn]'", name=error.name
    ) from error

__all__ = ["PCA", "Ridge", "SpectralEmbedding"]

AFFINITIES = ("nearest_neighbors", "rbf", "precomputed")
# what scikit-learn checks of all data
CHECKS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


# What the estimators share: data that may be an operator, its columns centred without being
# changed, and signs.


def as_data(estimator: Any, X: Any, *, reset: bool, at_least: int = 1) -> LinearOperator:
    """Data, one sample in each row, as an operator of NumPy; arrays and sparse matrices pass
    scikit-learn's validation."""
    if not isinstance(X, LinearOperator):
        return as_operator(
            validate_data(estimator, X, reset=reset, ensure_min_samples=at_least, **CHECKS)
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


def check_count(estimator: Any, k: Any, most: int, of: str, more: str = "") -> None:
    """Refuse a number of components that is none from 1 to `most`."""
    is_whole = isinstance(k, numbers.Integral) and not isinstance(k, bool)
    if not is_whole or not 1 <= k <= most:
        raise ValueError(
            f"{type(estimator).__name__}: n_components is {k!r}; for {of} it must be an integer "
            f"from 1 to {most}{more}."
        )


class SparseInput(BaseEstimator):
    """An estimator that tells scikit-learn that it takes sparse matrices."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


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


@dataclass(eq=False, repr=False)
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, SparseInput):
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

    n_components: int | None = None
    _: KW_ONLY
    whiten: bool = False
    method: Method | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of X, (n_samples, n_features): an array, a sparse matrix or an
        operator. y is ignored."""
        X = as_data(self, X, reset=True, at_least=2)
        n, d = X.shape
        k = min(n, d) if self.n_components is None else self.n_components
        check_count(self, k, min(n, d), f"data of {n} x {d}", ", or None")
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


# Ridge regression on data that may be an operator.


@dataclass(eq=False, repr=False)
class Ridge(MultiOutputMixin, RegressorMixin, SparseInput):
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

    alpha: float = 1.0
    _: KW_ONLY
    fit_intercept: bool = True
    method: Method | None = None

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
        C, r = X, y
        if self.fit_intercept:
            mean = column_means(X, weights)
            target = np.average(y, axis=0, weights=weights).astype(y.dtype)
            C, r = centred(X, mean), y - target
        if weights is not None:  # rows times the square roots of their weights
            root = np.sqrt(weights)
            C, r = Diagonal(root) @ C, (r.T * root).T
        if self.alpha == 0:
            w = lstsq(C, r, self.method)
        else:
            w = solve(C.T @ C + float(self.alpha) * Identity(X.shape[1]), C.T @ r, self.method)
        self.coef_: np.ndarray = w.T
        self.intercept_: float | np.ndarray = target - mean @ w if self.fit_intercept else 0.0
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
            X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, **CHECKS)
            X = as_operator(X)  # validated: a second time it would have lost its feature names
        y = column_or_1d(y, warn=True) if y.ndim == 1 else y
        return X, np.asarray(y, X.dtype)


# Spectral embedding of samples, or of a graph whose affinities may be an operator.


@dataclass(eq=False, repr=False)
class SpectralEmbedding(SparseInput):
    """Points such that what is strongly connected is near: eigenvectors of the smallest eigenvalues
    of the normalised graph Laplacian.

    The Laplacian is I - D^-1/2 W D^-1/2 for affinities W and degrees D; the coordinates are D^-1/2
    v for its eigenvectors v but the first.

    Parameters
    ----------
    n_components : int
        The dimension of the points.
    affinity : {"nearest_neighbors", "rbf", "precomputed"}
        How W comes from X: 1 for neighbours, half for those that are so in one direction;
        exp(-gamma |x - y|^2); or X is W.
    gamma : float, optional
        For "rbf"; 1 / n_features if not given.
    n_neighbors : int, optional
        For "nearest_neighbors"; a tenth of the samples if not given.
    method : Method, optional
        For `eig`: `LOBPCG(preconditioner=AMG())`, say. By default what `explain(eig, L, k, "SA")`
        tells.

    Attributes
    ----------
    embedding_ : array, (n_samples, n_components)
        The largest entry of each column is positive.
    eigenvalues_ : array, (n_components + 1,)
        Of the Laplacian, the first of which is 0.
    affinity_matrix_ : LinearOperator
        W without the diagonal, which is no connection.
    n_features_in_ : int

    Notes
    -----
    With "precomputed", X may be an array, a sparse matrix or any self-adjoint operator, such as
    `Kernel(k, points)`, whose matrix is never stored. Each iteration then costs a product with W.

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear.estimators import SpectralEmbedding
    >>> half = co.Dense(np.ones((50, 50)))
    >>> W = co.BlockDiag(half, half) + co.LowRank(np.full((100, 1), 0.1))  # two cliques, weakly connected
    >>> side = SpectralEmbedding(n_components=1, affinity="precomputed").fit(W).embedding_[:, 0] > 0
    >>> len(set(side[:50])), len(set(side[50:])), bool(side[0] != side[50])
    (1, 1, True)
    """

    n_components: int = 2
    _: KW_ONLY
    affinity: str = "nearest_neighbors"
    gamma: float | None = None
    n_neighbors: int | None = None
    method: Method | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Embed the rows of X, (n_samples, n_features), or the nodes of the graph X, (n_samples,
        n_samples). y is ignored."""
        W = self._affinities(X)
        n, k = W.shape[0], self.n_components
        check_count(self, k, n - 1, f"{n} samples")
        self.affinity_matrix_ = W
        degrees = np.asarray(W @ np.ones(n, W.dtype))
        if degrees.min() < 0:
            raise ValueError(
                "SpectralEmbedding: a node's affinities have a negative sum; affinities must not "
                "be negative."
            )
        scale = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 1)
        D = Diagonal(scale.astype(W.dtype))
        L = PSD(Identity(n, like=degrees) - D @ W @ D)
        self.eigenvalues_, vectors = eig(L, k + 1, "SA", self.method)
        if self.eigenvalues_[1] < n * np.finfo(W.dtype).eps:
            warnings.warn(
                "SpectralEmbedding: the graph is not connected, so the embedding tells its parts "
                "and little of their insides. "
                "Embed each part by itself, or connect them with more neighbours.",
                ColinearWarning,
                stacklevel=2,
            )
        points = rows_of_positive_peak(vectors.to_dense().T * scale)
        self.embedding_ = np.ascontiguousarray(points[1:].T)
        return self

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """The embedding of X, (n_samples, n_components)."""
        return self.fit(X).embedding_

    def _affinities(self, X: Any) -> LinearOperator:
        """W, self-adjoint and without its diagonal."""
        if self.affinity not in AFFINITIES:
            raise ValueError(
                f"SpectralEmbedding: affinity is {self.affinity!r}; it must be one of "
                f"{', '.join(map(repr, AFFINITIES))}."
            )
        if self.affinity == "precomputed":
            W = as_data(self, X, reset=True, at_least=2)
            if W.shape[0] != W.shape[1]:
                raise ShapeError(
                    "SpectralEmbedding: precomputed affinities must be square, X is "
                    f"{W.shape[0]}x{W.shape[1]}."
                )
        else:
            if isinstance(X, LinearOperator):
                raise TypeError(
                    'SpectralEmbedding: X is an operator; only affinity="precomputed" takes one, as the affinities.'
                )
            X = validate_data(self, X, ensure_min_samples=2, **CHECKS)
            W = as_operator(
                self._neighbours(X)
                if self.affinity == "nearest_neighbors"
                else rbf_kernel(X, gamma=self.gamma)
            )
        return SelfAdjoint(W - Diagonal(diag(W)))

    def _neighbours(self, X: Any) -> Any:
        count = self.n_neighbors if self.n_neighbors is not None else max(X.shape[0] // 10, 1)
        graph = kneighbors_graph(X, min(count, X.shape[0]), include_self=True)
        return (0.5 * (graph + graph.T)).astype(X.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == "precomputed"
        return tags
