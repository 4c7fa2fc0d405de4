"""What the estimators share: data that may be an operator, its columns centred without being changed, and signs."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from ..info import BackendError, DtypeError, ShapeError
from ..operators.base import LinearOperator
from ..operators.convert import as_operator
from ..operators.dense import Dense
from ..operators.lowrank import LowRank


def as_data(estimator: Any, X: Any, *, reset: bool, at_least: int = 1) -> LinearOperator:
    """Data, one sample in each row, as an operator of NumPy; arrays and sparse matrices pass scikit-learn's validation."""
    if not isinstance(X, LinearOperator):
        dtypes = [np.float64, np.float32]
        return as_operator(
            validate_data(estimator, X, reset=reset, accept_sparse="csr", dtype=dtypes, ensure_min_samples=at_least)
        )
    name = type(estimator).__name__
    if X.backend != "numpy":
        raise BackendError(f"{name}: X is an operator of {X.backend}; scikit-learn's world is NumPy. Give X.to(backend='numpy').")
    if X.xp.is_complex(X.dtype):
        raise DtypeError(f"{name}: X is {X.dtype}; complex data is not supported.")
    if len(X.shape) != 2:
        raise ShapeError(
            f"{name}: X has the shape {tuple(X.shape)}; one matrix of samples is expected, without batch dimensions."
        )
    if reset:
        estimator.n_features_in_ = X.shape[1]
    elif X.shape[1] != estimator.n_features_in_:
        raise ValueError(f"X has {X.shape[1]} features, but {name} is expecting {estimator.n_features_in_} features as input")
    return X


def centred(X: LinearOperator, mean: np.ndarray) -> LinearOperator:
    """X - 1 mean^T: a matrix of that, or X with a term of rank one, so that what is sparse or structured stays so."""
    if isinstance(X, Dense):
        return Dense(X.A - mean)
    ones = np.ones((X.shape[0], 1), X.dtype)
    return X + LowRank(ones, -mean[:, None])


def column_means(X: LinearOperator, weights: np.ndarray | None = None) -> np.ndarray:
    """The mean of each column, weighted or not."""
    weights = np.ones(X.shape[0], X.dtype) if weights is None else weights.astype(X.dtype)
    return np.asarray(X.T @ (weights / weights.sum()))


def rows_of_positive_peak(vectors: np.ndarray) -> np.ndarray:
    """Rows, each with the sign that makes its largest entry positive: an eigenvector has none of its own."""
    peaks = np.take_along_axis(vectors, np.abs(vectors).argmax(axis=1)[:, None], axis=1)
    return vectors * np.where(peaks < 0, -1, 1).astype(vectors.dtype)
