"""Operators V A V^-1 and their shifts: solved, and their determinants found, by those of A."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

BACKENDS = ["numpy", "torch", "jax"]


def made(backend, n=8):
    """Products V A V^-1."""
    rng, xp = np.random.default_rng(0), backends.get(backend)
    M = rng.standard_normal((n, n))
    values, vectors = co.eig(xp.asarray(M))
    ascending, Q = co.eig(co.SelfAdjoint(xp.asarray(M + M.T)))
    return {
        "eigenvectors": co.Product(vectors, co.Diagonal(values), co.inv(vectors)),
        "orthonormal ones": co.Product(Q, co.Diagonal(ascending), Q.H),
        "a circulant": co.Product(Q, co.Circulant(xp.asarray(rng.standard_normal(n))), Q.H),
        "several factors": co.Product(Q, co.Dense(xp.asarray(M)), co.Diagonal(ascending), Q.H),
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_shifts_are_solved_in_the_middle(backend):
    xp = backends.get(backend)
    several = made(backend)
    # what compiles is not what is tested
    for name in list(several)[:1] if backend == "jax" else several:
        A = several[name]
        shifted = A + 2.5 * co.Identity(8)
        assert co.explain(co.inv, shifted).rule == "inv_shifted_similarity", name
        assert co.explain(co.slogdet, shifted).rule == "slogdet_shifted_similarity", name
        assert co.explain(co.slogdet, A).rule == "slogdet_similarity", name
        b = np.arange(1.0, 9.0)
        for B in (A, shifted):
            M = xp.to_numpy(B.to_dense())
            x = co.solve(B, xp.asarray(b.astype(M.dtype)))
            np.testing.assert_allclose(
                xp.to_numpy(x), np.linalg.solve(M, b), atol=1e-9, err_msg=name
            )
            np.testing.assert_allclose(
                [complex(s) for s in co.slogdet(B)], np.linalg.slogdet(M), atol=1e-9, err_msg=name
            )


def test_a_known_eigendecomposition_is_used_again():
    n = 2000
    Q = co.Unitary(co.Householder(np.random.default_rng(1).standard_normal(n)))
    A = co.Product(Q, co.Diagonal(np.arange(1.0, n + 1)), Q.H)
    with forbid_dense(n * 10):
        for c in (1.0, 2.0, 3.0):
            assert np.isfinite(co.logdet(A + c * co.Identity(n)))
            x = co.solve(A + c * co.Identity(n), np.ones(n))
            np.testing.assert_allclose(A @ x + c * x, np.ones(n), atol=1e-9)


def test_outer_factors_that_are_not_inverse_are_not_taken_for_such():
    rng = np.random.default_rng(2)
    Q, P = (co.Unitary(np.linalg.qr(rng.standard_normal((5, 5)))[0]) for _ in range(2))
    for outer in ((Q, P.H), (Q, Q), (co.Dense(Q.A), co.Dense(Q.A).H * 1.0)):
        A = co.Product(outer[0], co.Diagonal(np.arange(1.0, 6.0)), outer[1])
        assert co.slogdet.find(A).name != "slogdet_similarity"
        np.testing.assert_allclose(co.slogdet(A), np.linalg.slogdet(A.to_dense()), atol=1e-12)


def test_unitary_factors_do_not_count_in_the_logarithm():
    rng = np.random.default_rng(3)
    Q = co.Unitary(np.linalg.qr(rng.standard_normal((6, 6)))[0])
    D = co.Diagonal(np.arange(1.0, 7.0))
    with forbid_dense(10):
        assert co.logdet(Q) == 0 and co.logdet(co.Product(Q, Q)) == 0
        np.testing.assert_allclose(co.logdet(co.Product(Q, D)), np.log(720.0))
        np.testing.assert_allclose(co.logdet(co.Product(Q, D, Q, D)), 2 * np.log(720.0))


def test_a_few_eigenpairs_of_the_fourier_transform_need_no_matrix():
    for n in (64, 65, 66, 67):
        for F in (co.FFT((n,)), co.FFT((n,)).H):
            for which in ("LM", "SM", "LR", "SR"):
                values, V = co.eig(F, 2, which)
                np.testing.assert_allclose(values, co.eig(F, None, which)[0][:2], atol=1e-12)
                np.testing.assert_allclose(F @ V.to_dense(), V.to_dense() * values, atol=1e-13)
                np.testing.assert_allclose(V.H @ V.to_dense(), np.eye(2), atol=1e-13)
    n = 2**14
    with forbid_dense(4 * n):
        value, vector = co.eigmax(co.FFT((n,)), vector=True)
        np.testing.assert_allclose(co.FFT((n,)) @ vector, value * vector, atol=1e-12)
        C = co.Convolution(
            np.array([[0.0, -1.0, 0.0], [-1.0, 4.5, -1.0], [0.0, -1.0, 0.0]]),
            (128, 128),
            centered=True,
        )
        value, vector = co.eigmin(C, vector=True)
        np.testing.assert_allclose(C @ vector, value * vector, atol=1e-12)
    assert value == pytest.approx(0.5)
