"""Operators whose matrix is too large to form: computed by products, or refused with what to do instead."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from support.frameworks import NAMES, arrays

import colinear as co
from colinear.testing import forbid_dense

N = 40_000


def free() -> co.LinearOperator:
    return co.PSD(co.MatrixFree(lambda X: 3 * X, (N, N), dtype=float))


def graded(smallest: float) -> co.LinearOperator:
    d = np.random.default_rng(0).uniform(1, 2, 20_000)
    d[[0, 1, -1]] = smallest, 5e-3, 120.0
    return co.Sparse(
        scipy.sparse.diags_array([d, np.full(d.size - 1, 1e-9)], offsets=[0, 1]).tocsr()
    )


@pytest.mark.parametrize(
    "function", [co.cholesky, co.lu, co.qr, co.nullspace, co.rank, co.pinv, co.eig, co.svd]
)
def test_what_needs_the_matrix_is_refused_with_a_remedy(function):
    with pytest.raises(co.TooLargeError, match=r"11.9 GiB.*Dense\(A.to_dense\(\)\)"):
        function(free())


def test_all_eigenpairs_are_found_where_the_matrix_fits(monkeypatch):
    from colinear.functions.spectrum import order as eigen_choice

    # rows from which Auto does not form a matrix to find a few pairs or triplets
    monkeypatch.setattr(eigen_choice, "largest_dense", lambda A: 100)
    d = np.linspace(1.0, 2.0, 450)
    A = co.PSD(co.MatrixFree(lambda X: d[:, None] * X, (450, 450), dtype=float))
    np.testing.assert_allclose(co.eig(A)[0], d)
    np.testing.assert_allclose(co.eig(A, 300, "LA")[0], d[150:])
    np.testing.assert_allclose(co.svd(A)[1], d[::-1])
    assert co.explain(co.eig, A).rules == ["Eigh"]
    assert co.explain(co.eig, A, 4).rules == ["Lanczos"]


@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize("order", ["fro", 1, -1, np.inf, -np.inf])
def test_norms_of_entries_are_taken_by_blocks_of_columns(framework, order, rng):
    M = rng.standard_normal((900, 1300))
    A = co.opaque(co.Dense(arrays(framework)[0].asarray(M)))
    with forbid_dense(1300**2 - 1):
        found = co.norm(A, order)
    assert float(found) == pytest.approx(np.linalg.norm(M, order), rel=1e-12)


def test_extreme_singular_values_of_large_operators_are_found_by_iteration():
    A = graded(1e-3)
    with forbid_dense(200 * N):
        assert co.norm(A, 2) == pytest.approx(120, rel=1e-10)
        assert co.norm(A, -2) == pytest.approx(1e-3, rel=1e-8)
        assert co.cond(A) == pytest.approx(1.2e5, rel=1e-8)
        assert co.cond(free()) == pytest.approx(1, rel=1e-10)


def test_the_condition_number_of_a_large_singular_operator_is_infinite():
    assert co.cond(graded(0.0)) == np.inf


def test_a_smallest_singular_value_from_solves_that_failed_is_flagged(monkeypatch):
    from colinear.functions import singular

    wrong = co.opaque(co.ScaledIdentity(0.5, N))  # where 1 / 3 would be right
    monkeypatch.setattr(singular, "inv", lambda A, info: (wrong, co.Info(co.Status.SUCCESS)))
    assert co.norm(free(), -2, info=True)[1].status is co.Status.INACCURATE
