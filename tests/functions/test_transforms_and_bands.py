"""Rules for the Fourier and sine transforms, unitary matrices, bands and periodic operators: each against the dense answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

BACKENDS = ("numpy", "torch", "jax")


def check_unitary_pairs(A, tol=1e-12):
    xp = A.xp
    values, vectors = co.eig(A)
    M, w, V = (xp.to_numpy(x) for x in (A.to_dense(), values, vectors.to_dense()))
    np.testing.assert_allclose(M @ V, V * w[..., None, :], atol=tol)
    np.testing.assert_allclose(
        np.swapaxes(V, -1, -2).conj() @ V, np.broadcast_to(np.eye(V.shape[-1]), V.shape), atol=tol
    )
    return w


@pytest.mark.parametrize("grid", [1, 2, 3, 4, 5, 8, 13, (4, 3)])
def test_fft_has_fourth_roots_of_unity_and_orthonormal_eigenvectors(grid):
    for F in (co.FFT(grid), co.FFT(grid).H):
        w = check_unitary_pairs(F)
        np.testing.assert_allclose(w**4, 1, atol=1e-12)
        np.testing.assert_allclose(np.prod(w), co.det(F), atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unitary_matrices_have_orthonormal_eigenvectors_even_of_repeated_values(backend):
    xp, rng = backends.get(backend), np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((6, 6)) + 1j * rng.standard_normal((6, 6)))[0]
    repeated = Q @ np.diag([1, 1, 1, 1j, 1j, -1]) @ Q.conj().T
    A = co.Unitary(xp.asarray(repeated))
    assert co.explain(co.eig, A).rules == ["eig_unitary"]
    np.testing.assert_allclose(check_unitary_pairs(A), [1, 1, 1, 1j, 1j, -1], atol=1e-12)
    assert not co.eig(co.Unitary(xp.asarray(2 * rng.standard_normal((4, 4)))), info=True)[
        1
    ].converged


def test_permutations_of_a_batch_have_their_own_cycles():
    P = co.Permutation(np.array([[1, 2, 0, 4, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4, 0]]))
    check_unitary_pairs(P)


@pytest.mark.parametrize("grid", [1, 2, 3, 4, (2, 3), (3, 3, 5), (4, 2)])
def test_sine_rules_agree_with_the_matrix(grid):
    S = co.Sine(grid)
    M = S.to_dense()
    n = len(M)
    np.testing.assert_allclose(M @ M, np.eye(n), atol=1e-12)
    np.testing.assert_allclose(co.diag(S), np.diag(M), atol=1e-12)
    assert co.det(S) == pytest.approx(np.linalg.det(M))
    assert co.norm(S, 2) == 1 and co.inv(S) is S
    for d in (np.arange(1.0, n + 1), np.arange(n) + 1j):
        A = co.Product(S, co.Diagonal(d), S)
        assert co.explain(co.diag, A).rules == ["diag_of_sines"]
        np.testing.assert_allclose(co.diag(A), np.diag(M @ np.diag(d) @ M), atol=1e-12)


def test_diagonal_and_trace_of_the_inverse_laplacian_never_form_it():
    n = 60
    T = co.PSD(co.Tridiagonal(-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)))
    inverse = co.inv(co.KroneckerSum(T, T))
    with forbid_dense(n * n):
        d, t = co.diag(inverse), co.trace(inverse)
    assert t == pytest.approx(d.sum())
    assert d[n + 1] == pytest.approx((inverse @ np.eye(n * n)[n + 1])[n + 1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("offsets", [(0,), (-1, 0, 1), (-2, -1, 0, 1), (0, 1, 2), (-3, 0, 2)])
def test_lu_stays_in_the_band(backend, offsets):
    xp, rng, n = backends.get(backend), np.random.default_rng(1), 12
    for dtype, batch in (
        ("float64", ()),
        ("float64", (2, 3)),
        ("complex64", ()),
        ("complex64", (2,)),
    ):
        factor = 1 + 1j if dtype == "complex64" else 1
        diagonals = [
            (rng.standard_normal((*batch, n - abs(k))) * factor).astype(dtype) for k in offsets
        ]
        A = co.Banded([xp.asarray(d) for d in diagonals], offsets, (n, n))
        assert co.explain(co.lu, A).rules == ["lu_banded"]
        P, L, U = co.lu(A)
        p, lower, upper, whole = (xp.to_numpy(B.to_dense()) for B in (P, L, U, A))
        tol = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(p @ lower @ upper, whole, atol=tol)
        np.testing.assert_allclose(np.diagonal(lower, axis1=-2, axis2=-1), 1)
        assert (
            not np.triu(lower, 1).any()
            and not np.tril(upper, -1).any()
            and np.abs(lower).max() < 1.5
        )
        assert L.dtype == U.dtype == A.dtype


def test_lu_of_a_long_tridiagonal_holds_a_few_diagonals():
    rng, n = np.random.default_rng(2), 20_000
    T = co.Tridiagonal(
        rng.standard_normal(n - 1), rng.standard_normal(n), rng.standard_normal(n - 1)
    )
    with forbid_dense(n):
        P, L, U = co.lu(T)
        x = rng.standard_normal(n)
        np.testing.assert_allclose(P @ (L @ (U @ x)), T @ x, atol=1e-11)
    dominant = co.Tridiagonal(np.ones(9), np.full(10, 4.0), np.ones(9))
    P, L, _ = co.lu(dominant)
    assert isinstance(P, co.Identity) and isinstance(L, co.Banded)


@pytest.mark.parametrize("offsets", [(0,), (-1, 0, 1), (-2, 0, 1), (0, 2), (-3, -1, 0, 2)])
def test_diagonal_of_the_inverse_of_a_band_by_block_elimination(offsets):
    rng, n = np.random.default_rng(4), 29
    for scale in (4.0, 4.0j):
        diagonals = [rng.standard_normal(n - abs(k)) + scale * (k == 0) for k in offsets]
        A = co.inv(co.Banded(diagonals, offsets, (n, n)))
        assert co.explain(co.diag, A).rules == ["diag_inverse_banded"]
        np.testing.assert_allclose(co.diag(A), np.diag(np.linalg.inv(A.A.to_dense())), rtol=1e-9)


def test_diagonal_of_the_inverse_of_a_band_that_needs_pivots_is_right_too():
    n = 20  # all main minors of odd order vanish
    A = co.inv(
        co.Banded(
            [np.ones(n - 1), np.full(n, 1e-12), np.ones(n - 1), np.full(n - 2, 0.1)],
            [-1, 0, 1, 2],
            (n, n),
        )
    )
    np.testing.assert_allclose(co.diag(A), np.diag(np.linalg.inv(A.A.to_dense())), atol=1e-9)


PERIODIC = [
    co.Circulant(np.array([2.0, -1, 0, 0, 0, -1])),
    co.Circulant(np.array([1.0, 0, 1, 0])),
    co.Circulant(np.array([1, 0, 1j, 0, 1, 0])),
    co.Circulant(np.array([1.0, 0, 0])),
    co.Convolution(np.array([[0, -1.0, 0], [-1, 4, -1], [0, -1, 0]]), (4, 6), centered=True),
    co.Convolution(np.array([[1.0, 0, 1], [0, 0, 0], [1, 0, 1]]), (4, 4), centered=True),
]


@pytest.mark.parametrize("A", PERIODIC)
def test_null_space_of_a_periodic_operator_is_made_of_waves(A):
    N = co.nullspace(A)
    assert co.explain(co.nullspace, A).rules == ["nullspace_circulant"]
    assert N.shape == co.nullspace(co.Dense(A.to_dense())).shape and N.dtype == A.dtype
    np.testing.assert_allclose(A.to_dense() @ N.to_dense(), 0, atol=1e-12)
    np.testing.assert_allclose(
        N.to_dense().conj().T @ N.to_dense(), np.eye(N.shape[-1]), atol=1e-12
    )


class Plain(co.LinearOperator):
    """An operator that has no transposes of its own, so that they are wrappers."""

    A: Any

    @property
    def shape(self):
        return tuple(self.A.shape)

    def _matmat(self, X):
        return self.A @ X

    def _rmatmat(self, X):
        return np.conj(self.A).T @ X


@pytest.mark.parametrize("kind", [co.Adjoint, co.Transpose])
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_null_space_of_an_adjoint_completes_the_range(kind, rank):
    rng = np.random.default_rng(3)
    M = (rng.standard_normal((6, rank)) + 1j) @ (rng.standard_normal((rank, 3)) - 1j)
    A = Plain(M).H if kind is co.Adjoint else Plain(M).T
    assert isinstance(A, kind) and "nullspace_adjoint" in co.explain(co.nullspace, A).rules
    N = co.nullspace(A)
    assert N.shape == (6, 6 - rank)
    np.testing.assert_allclose(A.to_dense() @ N.to_dense(), 0, atol=1e-12)
