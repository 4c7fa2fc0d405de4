"""Quadrature from the coefficients of Lanczos (Golub and Meurant 2010): Gauss's, and Radau's with a node at one end of the spectrum.

T is the tridiagonal matrix of a run started from v. Its eigenvalues θ_i are the nodes, the squares of the first components of its
eigenvectors the weights: Σ_i w_i f(θ_i) ≈ v^H f(A) v / v^H v. For f = log, whose even derivatives are negative and odd ones positive,
Gauss's rule is an upper bound, Radau's with a node at or below all eigenvalues a lower one, at or above all an upper one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array

DENSE = 48  # steps up to which the eigenvalues of all runs are found together, as dense matrices


def with_node(alpha: Any, beta: Any, node: float) -> tuple[Any, Any]:
    """The coefficients, alpha (j, runs) and beta (j, runs), of the rule with one more node, at a given place.

    α_{j+1} = node + β_j^2 / d_j with d_i = α_i - node - β_{i-1}^2 / d_{i-1}: Golub (1973).
    """
    d = alpha[0] - node
    for i in range(1, len(alpha)):
        d = alpha[i] - node - beta[i - 1] ** 2 / np.where(d == 0, 1e-300, d)
    last = node + beta[-1] ** 2 / np.where(d == 0, 1e-300, d)
    return np.concatenate([alpha, np.where(beta[-1] == 0, alpha[0], last)[None]]), beta


def nodes_and_weights(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Nodes and weights, (runs, j), on the host from alpha (j, runs) and beta (at least j - 1, runs)."""
    j, runs = alpha.shape
    if j <= DENSE:
        T = np.zeros((runs, j, j))
        at = np.arange(j)
        T[:, at, at] = alpha.T
        T[:, at[1:], at[:-1]] = beta[: j - 1].T
        nodes, vectors = np.linalg.eigh(T)
        return nodes, vectors[:, 0, :] ** 2
    from scipy.linalg import eigh_tridiagonal

    nodes, weights = np.empty((runs, j)), np.empty((runs, j))
    for i in range(runs):
        nodes[i], vectors = eigh_tridiagonal(alpha[:, i], beta[: j - 1, i], check_finite=False)
        weights[i] = vectors[0] ** 2
    return nodes, weights


def traced_nodes_and_weights(xp: Any, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """The same inside a traced program, for alpha and beta of shape (m, *lanes): (*lanes, m)."""
    a, b = xp.moveaxis(alpha, 0, -1), xp.moveaxis(beta, 0, -1)
    i = xp.arange(a.shape[-1], device=xp.device_of(a))
    lower = xp.where(i[:, None] == i + 1, b[..., None, :], 0)
    nodes, vectors = xp.eigh(xp.make_diagonal(a) + lower + xp.matrix_transpose(lower))
    return nodes, vectors[..., 0, :] ** 2
