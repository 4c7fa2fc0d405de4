"""Polynomials of Kronecker products and sums with common self-adjoint factors: diagonal in the eigenvectors of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

I = co.Identity
FRAMEWORKS = ["numpy", "torch", "jax"]


def line(xp: Any, n: int) -> Any:
    ones = np.ones(n)
    return co.Tridiagonal(*map(xp.asarray, (-ones[1:], 2 * ones, -ones[1:])))


def full(xp: Any, n: int, dtype: Any = np.float64) -> Any:
    rng = np.random.default_rng(n)
    M = rng.standard_normal((n, n))
    M = M + 1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else M
    return co.Dense(xp.asarray((M @ M.conj().T / n + np.eye(n)).astype(dtype)))


SPELLINGS = {
    "K K + K + 2 I": lambda X, Y, n: (K := co.KroneckerSum(X, Y)) @ K + K + 2.0 * I(n),
    "K K + K": lambda X, Y, n: (K := co.KroneckerSum(X, Y)) @ K + K,
    "P P + P": lambda X, Y, n: (P := co.Kronecker(X, Y)) @ P + P,
    "P P + 3 P + I": lambda X, Y, n: (P := co.Kronecker(X, Y)) @ P + 3 * P + I(n),
    "made twice": lambda X, Y, n: (
        2 * co.KroneckerSum(X, Y) @ co.KroneckerSum(X, Y) + co.KroneckerSum(X, Y)
    ),
    "P + K": lambda X, Y, n: co.Kronecker(X, Y) + co.KroneckerSum(X, Y) + I(n),
    "powers of factors": lambda X, Y, n: (
        co.Kronecker(X @ X + I(X.shape[0]), Y)
        + co.Kronecker(X, 2 * Y @ Y)
        + co.Kronecker(X, I(Y.shape[0]))
    ),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("spelled", SPELLINGS)
def test_a_polynomial_is_inverted_in_the_eigenvectors_of_the_factors(spelled, name):
    pytest.importorskip(name)
    xp = backends.get(name)
    for X, Y in ((line(xp, 6), full(xp, 5)), (full(xp, 4, np.complex128), line(xp, 6))):
        n = X.shape[-1] * Y.shape[-1]
        A = SPELLINGS[spelled](X, Y, n)
        M, b = np.asarray(A.to_dense()), np.random.default_rng(1).standard_normal(n)
        assert co.explain(co.inv, A).rules[0] == "inv_polynomial_of_factors"
        assert co.explain(co.slogdet, A).rules[0] == "slogdet_polynomial_of_factors"
        assert "eig_polynomial_of_factors" in co.explain(co.eig, A).rules
        B = xp.asarray(b.astype(M.dtype))
        with forbid_dense(n * n):
            x, info = co.solve(A, B, info=True)
            values, vectors = co.eig(A)
            logdet = float(co.logdet(A))
        assert not info.failed
        np.testing.assert_allclose(np.asarray(x), np.linalg.solve(M, b), rtol=1e-8)
        np.testing.assert_allclose(logdet, np.linalg.slogdet(M)[1], rtol=1e-10)
        V, w = np.asarray(vectors.to_dense()), np.asarray(values)
        np.testing.assert_allclose(M @ V, V * w, atol=1e-9 * np.abs(w).max())


def test_what_does_not_commute_is_no_polynomial():
    X, Y, Z = full(np_, 4), line(np_, 5), line(np_, 5)
    K = co.KroneckerSum(X, Y)
    skew = co.Tridiagonal(np.ones(4), np.ones(5), 2 * np.ones(4))
    others = [
        K @ co.KroneckerSum(X, Z) + I(20),
        K @ K + co.Diagonal(np.arange(20.0)),
        K @ K + co.Kronecker(Y, X),
        co.KroneckerSum(X, skew) @ co.KroneckerSum(X, skew) + K,
    ]
    for A in others:
        assert "inv_polynomial_of_factors" not in co.explain(co.inv, A).rules


np_ = backends.get("numpy")


def test_the_gradient_of_a_polynomial_is_that_of_its_matrix():
    torch = pytest.importorskip("torch")
    xp = backends.get("torch")
    Y, b = full(xp, 4), torch.linspace(1, 2, 16, dtype=torch.float64)
    M = Y.A.clone().requires_grad_()

    def polynomial(M: Any) -> Any:
        K = co.KroneckerSum(M, M)  # whose eigenvalues repeat
        return K @ K + K + I(16)

    A = polynomial(M)
    for found, wanted in (
        (co.solve(A, b).sum(), torch.linalg.solve(A.to_dense(), b).sum()),
        (co.logdet(A), torch.linalg.slogdet(A.to_dense())[1]),
    ):
        torch.testing.assert_close(found, wanted)
        g, h = (torch.autograd.grad(x, M, retain_graph=True)[0] for x in (found, wanted))
        torch.testing.assert_close(g, h)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_real_factors_with_complex_eigenvectors_give_real_answers(framework: str) -> None:
    xp = backends.get(framework)
    C = co.Circulant(xp.asarray(np.array([4.0, 1.0, 0.0, 1.0])))
    S = co.PSD(xp.asarray(np.array([[3.0, 0.5], [0.5, 2.0]])))
    b = np.arange(8.0)
    for K in (co.KroneckerSum(C, S), co.Kronecker(C, S) + 0.5 * I(8)):
        exact = np.linalg.inv(xp.to_numpy(K.to_dense()))
        inverse = co.inv(K)
        found = [
            (co.solve(K, xp.asarray(b)), exact @ b),
            (co.diag(inverse), np.diag(exact)),
            (inverse.T @ xp.asarray(b), exact @ b),
            (inverse.to_dense(), exact),
            (co.logdet(inverse), np.linalg.slogdet(exact)[1]),
        ]
        for got, wanted in found:
            assert not xp.is_complex(got)
            np.testing.assert_allclose(xp.to_numpy(got), wanted, atol=1e-12)
        by_parts = inverse @ xp.asarray(b * (1 + 2j))
        np.testing.assert_allclose(xp.to_numpy(by_parts), exact @ b * (1 + 2j), atol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_small_eigenvalues_that_are_known_are_no_zeros(framework: str) -> None:
    pytest.importorskip(framework)
    n, xp = 1200, backends.get(framework)
    line = [
        xp.asarray(x.astype(np.float32)) for x in (-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1))
    ]
    T = co.Tridiagonal(*line)
    A = co.KroneckerSum(T, T)  # of condition 6e5, and MARGIN eps = 1.2e-6
    b = np.random.default_rng(0).standard_normal(n * n).astype(np.float32)
    _, info = co.solve(A, xp.asarray(b), info=True)
    assert info.status is co.Status.SUCCESS
    assert float(info.residual) < 3e-4
    # a smooth x, rounded to single precision, has no smaller residual than this
    x, info = co.solve(A, xp.asarray(np.ones(n * n, np.float32)), info=True)
    assert info.status is co.Status.INACCURATE
    wide = co.Tridiagonal(*(np.asarray(xp.to_numpy(d), float) for d in line))
    exact = co.solve(co.KroneckerSum(wide, wide), np.ones(n * n))
    assert np.linalg.norm(xp.to_numpy(x) - exact) <= 1e-5 * np.linalg.norm(exact)
