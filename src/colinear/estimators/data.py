"""What the estimators share: data that may be an operator, its columns centred without being changed,
signs, and the names that scikit-learn has for solvers."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from ..errors import BackendError, DtypeError, ShapeError
from ..methods import Method
from ..operators import Dense, LinearOperator, LowRank, as_operator

# what scikit-learn checks of all data
CHECKS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}


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


def seed_of(random_state: Any) -> int:
    """The seed of a method from what scikit-learn takes: a number is itself, None is the default 0, a
    generator is drawn from."""
    if random_state is None:
        return 0
    if isinstance(random_state, numbers.Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def method_of(
    estimator: Any, name: str, solvers: dict[Any, Callable[[], Method | None]]
) -> Method | None:
    """The method that the estimator's parameter `name` stands for, or its `method`, of which only one
    can be given. `solvers`: what makes the method for each value; that of the first is `method`."""
    value = getattr(estimator, name)
    who = type(estimator).__name__
    if not any(value is known or value == known for known in solvers):
        known = ", ".join(map(repr, solvers))
        raise ValueError(f"{who}: {name} is {value!r}; it must be one of {known}.")
    if value == next(iter(solvers)):
        return estimator.method
    if estimator.method is not None:
        raise ValueError(
            f"{who}: {name}={value!r} and method={estimator.method!r} were given; one of them says "
            "how to compute. Leave the other out."
        )
    return solvers[value]()
