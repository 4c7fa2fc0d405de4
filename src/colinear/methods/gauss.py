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


def with_node(xp: Any, alpha: Any, beta: Any, node: float) -> tuple[Any, Any]:
    """The coefficients, alpha (j, *runs) and beta (j, *runs), of the rule with one more node, at a given place.

    α_{j+1} = node + β_j^2 / d_j with d_i = α_i - node - β_{i-1}^2 / d_{i-1}: Golub (1973).
    """
    d = alpha[0] - node
    for i in range(1, len(alpha)):
        d = alpha[i] - node - beta[i - 1] ** 2 / xp.where(d == 0, 1e-300, d)
    last = node + beta[-1] ** 2 / xp.where(d == 0, 1e-300, d)
    last = xp.where(beta[-1] == 0, alpha[0], last)
    return xp.concat([alpha, last[None]], axis=0), xp.concat([beta, 0 * beta[-1:]], axis=0)


def nodes_and_weights(alpha: Any, beta: Any) -> tuple[Any, Any]:
    """Nodes and weights, (runs, j), on the host from alpha (j, runs) and beta (at least j - 1, runs)."""
    j, runs = alpha.shape
    if j <= DENSE:
        nodes, vectors = np.linalg.eigh(_matrices(alpha, beta))
        return nodes, vectors[:, 0, :] ** 2
    from scipy.linalg import eigh_tridiagonal

    nodes, weights = np.empty((runs, j)), np.empty((runs, j))
    for i in range(runs):
        nodes[i], vectors = eigh_tridiagonal(alpha[:, i], beta[: j - 1, i], check_finite=False)
        weights[i] = vectors[0] ** 2
    return nodes, weights


def first_column(alpha: Any, beta: Any, of: Any) -> Any:
    """f(T) e_1 for each run, (j, runs), on the host; `of(nodes)` gives f of an array of nodes, (runs, j)."""
    T = _matrices(alpha, beta)
    nodes, vectors = np.linalg.eigh(T)
    return np.einsum("rji,ri,ri->jr", vectors, of(nodes), vectors[:, 0, :])


def _matrices(alpha: Any, beta: Any) -> Any:
    """T of each run, (runs, j, j), its lower half."""
    j, runs = alpha.shape
    T = np.zeros((runs, j, j))
    at = np.arange(j)
    T[:, at, at] = alpha.T
    T[:, at[1:], at[:-1]] = beta[: j - 1].T
    return T


def traced_first_column(xp: Any, alpha: Array, beta: Array, of: Any) -> Array:
    """The same inside a traced program, (m, *lanes)."""
    nodes, vectors = _traced_eigh(xp, alpha, beta)
    return xp.moveaxis(
        xp.sum(vectors * (of(nodes) * vectors[..., 0, :])[..., None, :], axis=-1), -1, 0
    )


def relative_tail(xp: Any, column: Any) -> Any:
    """How small the last two numbers of f(T) e_1 are beside all of them, for each run: the run is long enough if they are."""
    size = xp.sum(xp.abs(column) ** 2, axis=0)
    return xp.sqrt(xp.sum(xp.abs(column[-2:]) ** 2, axis=0) / xp.where(size > 0, size, 1))


def traced_nodes_and_weights(xp: Any, alpha: Array, beta: Array) -> tuple[Array, Array]:
    """The same inside a traced program, for alpha and beta of shape (m, *lanes): (*lanes, m)."""
    nodes, vectors = _traced_eigh(xp, alpha, beta)
    return nodes, vectors[..., 0, :] ** 2


def _traced_eigh(xp: Any, alpha: Array, beta: Array) -> tuple[Array, Array]:
    a, b = xp.moveaxis(alpha, 0, -1), xp.moveaxis(beta, 0, -1)
    i = xp.arange(a.shape[-1], device=xp.device_of(a))
    lower = xp.where(i[:, None] == i + 1, b[..., None, :], 0)
    return xp.eigh(xp.make_diagonal(a) + lower + xp.matrix_transpose(lower))
