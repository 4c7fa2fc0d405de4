"""Spectral embedding of samples, or of a graph whose affinities may be an operator."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

import numpy as np
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import kneighbors_graph
from sklearn.utils.validation import validate_data

from ..errors import ColinearWarning, ShapeError
from ..functions import diag, eig
from ..methods import LOBPCG, Lanczos, Method
from ..operators import Diagonal, Identity, LinearOperator, as_operator
from ..preconditioners import AMG
from ..properties import PSD, SelfAdjoint
from .data import (
    CHECKS,
    SparseInput,
    as_data,
    check_count,
    method_of,
    rows_of_positive_peak,
    seed_of,
)

AFFINITIES = ("nearest_neighbors", "rbf", "precomputed")


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
    eigen_solver : {None, "arpack", "lobpcg", "amg"}
        The same by scikit-learn's names: `Lanczos()`, `LOBPCG()`, `LOBPCG(preconditioner=AMG())`.
    random_state : int or RandomState, optional
        The seed of these; 0 if not given.
    n_jobs : int, optional
        For the search of neighbours.

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
    eigen_solver: str | None = None
    random_state: Any = None
    n_jobs: int | None = None

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
        seed = seed_of(self.random_state)
        method = method_of(
            self,
            "eigen_solver",
            {
                None: lambda: None,
                "arpack": lambda: Lanczos(seed=seed),
                "lobpcg": lambda: LOBPCG(seed=seed),
                "amg": lambda: LOBPCG(seed=seed, preconditioner=AMG()),
            },
        )
        self.eigenvalues_, vectors = eig(L, k + 1, "SA", method)
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
        graph = kneighbors_graph(X, min(count, X.shape[0]), include_self=True, n_jobs=self.n_jobs)
        return (0.5 * (graph + graph.T)).astype(X.dtype)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.affinity == "precomputed"
        return tags
