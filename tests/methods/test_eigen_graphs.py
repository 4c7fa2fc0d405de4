"""Smallest eigenvalues of graph Laplacians whose factors fill in: singular, so no iteration may stand for their inverse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co


def expander(n: int, degree: int) -> sp.csr_array:
    """The normalised Laplacian of a graph of random edges, and a ring that connects it."""
    rng = np.random.default_rng(0)
    rows = np.concatenate([np.repeat(np.arange(n), degree // 2), np.arange(n)])
    columns = np.concatenate([rng.integers(n, size=n * (degree // 2)), (np.arange(n) + 1) % n])
    W = sp.csr_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))
    W = sp.csr_array(((W + W.T) > 0).astype(float))
    W.setdiag(0)
    scale = sp.diags_array(1 / np.sqrt(W.sum(axis=1)))
    return sp.csr_array(sp.eye_array(n) - scale @ W @ scale)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_the_lower_end_of_a_singular_laplacian_that_fills_in_is_found_by_products(backend: str) -> None:
    S = expander(1500, 24)
    A = co.PSD(co.Sparse(S)).to(backend=backend)
    assert "inv_filling_sparse" in co.explain(co.inv, A).rules
    with co.testing.forbid_dense(300_000):
        (values, V), info = co.eig(A, 4, "SA", info=True)
    V = A.xp.to_numpy(V.to_dense())
    values = A.xp.to_numpy(values)
    assert info.status is co.Status.SUCCESS and info.matvecs < 1000
    assert np.abs(values - np.linalg.eigvalsh(S.toarray())[:4]).max() < 1e-7
    assert np.linalg.norm(S @ V - V * values) < 1e-6
