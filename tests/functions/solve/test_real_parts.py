"""Real operators that are held as complex factors give real answers."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import NAMES as FRAMEWORKS

import colinear as co
from colinear import backends


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_inverses_and_determinants_of_what_complex_eigenvectors_give_are_real(
    framework: str,
) -> None:
    xp = backends.get(framework)
    column, ones = xp.asarray(np.array([2.0, 0.5, 0.1, 0.5])), xp.asarray(np.ones(7))
    A = co.inv(co.KroneckerSum(co.Circulant(column), co.Identity(2)))  # Re (V diag(φ) V^H)
    T = co.Tridiagonal(ones, xp.asarray(np.full(8, 4.0)), ones)
    b = xp.asarray(np.arange(1.0, 9.0))
    u = co.LowRank(b[:, None])
    for B in (A, A @ T, A @ T + u):
        M = xp.to_numpy(B.to_dense())
        assert B.dtype == b.dtype == co.inv(B).dtype
        sign, logarithm = map(xp.to_numpy, co.slogdet(B))
        x, found = map(xp.to_numpy, co.solve_and_logdet(B, b))
        assert not np.iscomplexobj(sign) and not np.iscomplexobj(x)
        np.testing.assert_allclose(x, np.linalg.solve(M, np.arange(1.0, 9.0)), rtol=1e-10)
        np.testing.assert_allclose(xp.to_numpy(co.inv(B).to_dense()) @ M, np.eye(8), atol=1e-10)
        np.testing.assert_allclose((sign, logarithm), np.linalg.slogdet(M), rtol=1e-10)
        np.testing.assert_allclose(found, logarithm, rtol=1e-10)
