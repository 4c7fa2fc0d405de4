"""`A[key]` is what `A.to_dense()[key]` is, or an operator that multiplies like it."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear.testing import check_operator

rng = np.random.default_rng(0)


def operators(batch=()):
    a, b = rng.standard_normal((*batch, 2, 3)), rng.standard_normal((*batch, 3, 2))
    yield co.Dense(rng.standard_normal((*batch, 6, 6)))
    yield co.Kronecker(co.Dense(a), co.Dense(b))
    yield co.opaque(co.Diagonal(rng.standard_normal((*batch, 6)))) + co.LowRank(
        rng.standard_normal((*batch, 6, 2))
    )


mask = np.array([True, False, True, True, False, False])
KEYS = [
    (0, 0), (-1, 2), (5, -6), 0, -1, (slice(None), 2), (..., 3), (2, ...), slice(1, 4), slice(None, None, -2), (slice(4, 1, -1), slice(0, 0)),
    [0, 2, 2], (slice(None), [1, 1, 0]), mask, (slice(None), mask), ([0, 1], [2, -3]), ([[0], [1]], [[1, 2]]), ([[0, 1]], [[1], [2]]),
    np.ix_([0, 3], [5, 1, 1]), np.ix_(mask, mask), (3, [1, 2]), (mask, 1), (0, slice(2, 5)), ([1], 2), (np.int64(2), np.array(3)),
    [], ([], []), (slice(None), slice(None)), ..., (range(1, 4), slice(None)),
]  # fmt: skip
BATCH_KEYS = [
    0, -1, slice(1, 3), [0, 2, 0], np.array([True, False, True]), (0, 1), (slice(0, 2), 1, 2), (..., 0, 0), (1, slice(2, 5), 3),
    (1, [0, 1], [2, 3]), (..., [0, 1], slice(2)),
]  # fmt: skip
WRONG_KEYS = [
    6, -7, (0, 6), [0, 9], (0, 0, 0), 1.5, None, "a", (True, 0), (..., ...), np.ones(3, bool), np.ones((3, 3), bool), [[0, 1]],
]  # fmt: skip


def numpys(key):
    """The same key in NumPy's terms: ranges and empty lists as integers."""
    if isinstance(key, tuple):
        return tuple(map(numpys, key))
    return (
        np.asarray(key, int)
        if isinstance(key, range) or (isinstance(key, list) and not key)
        else key
    )


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(key):
    for A in operators():
        ours, theirs = A[key], A.to_dense()[numpys(key)]
        if isinstance(ours, co.LinearOperator):
            ours = ours.to_dense()
        assert np.shape(ours) == np.shape(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", BATCH_KEYS, ids=str)
def test_leading_keys_index_the_batch(key):
    for A in operators((3,)):
        ours = A[key]
        if isinstance(ours, co.LinearOperator):
            check_operator(ours)
            ours = ours.to_dense()
        np.testing.assert_allclose(ours, A.to_dense()[key], rtol=1e-12, atol=1e-12)


def test_batch_elements_keep_their_family():
    A = co.Kronecker(co.Diagonal(np.ones((3, 2))), co.Dense(np.ones((2, 2)))) + 0.5 * co.Identity(4)
    assert A[1].shape == (4, 4) and type(A[1]) is type(A)


def test_batch_of_an_unknown_family_is_indexed_by_multiplying():
    A = co.opaque(co.Dense(rng.standard_normal((3, 2, 4))))
    for key in (0, slice(1, 3), [2, 0, 2], slice(0, 1)):
        check_operator(A[key], A.to_dense()[key])


@pytest.mark.parametrize("key", WRONG_KEYS, ids=str)
def test_keys_that_do_not_fit_are_index_errors(key):
    for A in operators():
        with pytest.raises(IndexError):
            A[key]


def test_out_of_range_names_the_size():
    with pytest.raises(IndexError, match="index 9 is out of bounds for axis -1 with size 6"):
        next(operators())[0, 9]


def test_slices_of_simple_families_stay_simple():
    assert isinstance(co.Dense(np.eye(4))[1:, :2], co.Dense)
    assert isinstance(co.Diagonal(np.ones(4))[1:3, 1:3], co.Diagonal)
    assert isinstance(co.Identity(4)[:2, :2], co.Identity)
    assert isinstance(co.Zero(4, 5)[:2, [0, 0]], co.Zero)
    assert isinstance(co.LowRank(np.ones((4, 1)))[:2], co.LowRank)
    T = co.Toeplitz(np.arange(5.0))
    assert T[:, :] is T
    assert T[1:][:, ::2].operands == (T,)


def test_principal_submatrices_keep_what_they_keep():
    A = co.PD(co.Toeplitz([3.0, 1.0, 0.0, 0.0]))
    assert A[:2, :2].isa(co.PD) and A[[0, 3], :][:, [0, 3]].isa(co.PD)
    assert A[np.ix_([0, 0], [0, 0])].isa(co.PSD) and not A[np.ix_([0, 0], [0, 0])].isa(co.PD)
    assert not A[:2, 1:3].isa(co.SelfAdjoint)
    Q = co.Unitary(co.Permutation([1, 0, 2]))
    assert Q[:, :2].isa(co.Stiefel) and not Q[:2, :].isa(co.Stiefel)


def test_diagonal_by_pairs_never_builds_the_matrix():
    n = 3000
    A = co.Kronecker(co.Diagonal(np.arange(50.0)), co.Diagonal(np.arange(60.0))) + co.Zero(n, n)
    i = np.arange(0, n, 100)
    np.testing.assert_allclose(A[i, i], np.kron(np.arange(50.0), np.arange(60.0))[i])


def test_traced_indices_work_under_jit():
    jax = pytest.importorskip("jax")
    dense = rng.standard_normal((4, 4))
    A = co.Dense(dense).to("jax")
    assert np.allclose(jax.jit(lambda A, i: A[i, i])(A, 2), dense[2, 2])
    assert np.allclose(jax.jit(lambda A, i: (A[i] @ A[:, i], A[i, :]))(A, -1)[1], dense[-1])
    picked = jax.jit(lambda A, i: co.opaque(A)[i] @ jax.numpy.eye(4))(A, np.array([3, -4]))
    assert np.allclose(picked, dense[[3, 0]])
