"""Eigenvalues that were missed or dearly found: of singular matrices whose factors fill in, and repeated ones of a nonsymmetric matrix."""

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
def test_the_lower_end_of_a_singular_laplacian_that_fills_in_is_found_by_products(
    backend: str,
) -> None:
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


def hydrogen(m: int) -> sp.csr_array:
    """-Δ/2 - 1/r on m^3 points of all space, x = tan(u) in each dimension: nonsymmetric, three energies are alike."""
    h = np.pi / m
    u = -np.pi / 2 + h * (np.arange(m) + 0.5)
    c, s, ones = np.cos(u), np.sin(u), np.ones(m - 1)
    second = sp.diags_array([ones, np.full(m, -2.0), ones], offsets=[-1, 0, 1]) / h**2
    first = sp.diags_array([-ones, ones], offsets=[-1, 1]) / (2 * h)
    line, one = (
        sp.diags_array(c**4) @ second - sp.diags_array(2 * s * c**3) @ first,
        sp.eye_array(m),
    )
    laplacian = (
        sp.kron(sp.kron(line, one), one)
        + sp.kron(sp.kron(one, line), one)
        + sp.kron(sp.kron(one, one), line)
    )
    r = np.sqrt(sum(x**2 for x in np.meshgrid(*[np.tan(u)] * 3, indexing="ij")))
    return sp.csr_array(-0.5 * laplacian - sp.diags_array(1 / r.reshape(-1)))


@pytest.mark.parametrize("seed", [3, 8])
def test_no_copy_of_a_repeated_energy_is_missed(seed: int) -> None:
    """Seed 8 gave a higher energy in place of the third copy, as a success."""
    H = hydrogen(8)
    values = co.eig(co.Sparse(H), 5, "SR", co.Arnoldi(tol=1e-6, seed=seed))[0]
    assert np.abs(values - np.sort(np.linalg.eigvals(H.toarray()).real)[:5]).max() < 1e-5


def laplacian(m: int) -> sp.csr_array:
    line = sp.diags_array([-np.ones(m - 1), np.full(m, 2.0), -np.ones(m - 1)], offsets=[-1, 0, 1])
    return sp.csr_array(sp.kron(line, sp.eye_array(m)) + sp.kron(sp.eye_array(m), line))


@pytest.mark.parametrize("scale", [1e-200, 1e-150, 1.0, 1e150, 1e200])
@pytest.mark.parametrize("of_preconditioner", [None, 1.0, 1e-200, 1e200])
def test_lobpcg_finds_pairs_whatever_the_scale(
    scale: float, of_preconditioner: float | None
) -> None:
    S = laplacian(12)
    M = None
    if of_preconditioner is not None:
        M = co.Diagonal(
            np.linspace(0.2, 0.3, 144) * np.clip(of_preconditioner / scale, 1e-250, 1e250)
        )
    A = co.opaque(co.SelfAdjoint(co.Sparse(S * scale)))
    (values, _), info = co.eig(A, 3, "SA", co.LOBPCG(preconditioner=M), info=True)
    assert info.status is co.Status.SUCCESS
    expected = np.linalg.eigvalsh(S.toarray())[:3]
    np.testing.assert_allclose(values / scale, expected, rtol=1e-10)


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_lobpcg_reaches_residuals_near_the_rounding_of_the_products(
    backend: str, preconditioned: bool
) -> None:
    S = laplacian(12)
    A = co.opaque(co.PSD(co.Sparse(S).to(backend=backend)))
    inverse = co.Dense(np.linalg.inv(S.toarray())).to(backend=backend) if preconditioned else None
    method = co.LOBPCG(tol=1e-13, preconditioner=inverse)
    (values, V), info = co.eig(A, 3, "SA", method, info=True)
    values, V = (A.xp.to_numpy(x) for x in (values, V.to_dense()))
    assert info.status is co.Status.SUCCESS
    assert np.linalg.norm(S @ V - V * values, axis=0).max() < 2e-13 * 8
    assert np.abs(V.T @ V - np.eye(3)).max() < 1e-14


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_lobpcg_keeps_the_pairs_of_a_matrix_that_others_of_its_batch_outlast(
    backend: str, dtype: str, rng: np.random.Generator
) -> None:
    """Directions that were not there came back as roundings, and values of 0 with them."""
    n = 200
    spectra = np.linspace(1, 2, n), np.arange(1.0, n + 1) ** 2, np.repeat(np.arange(1.0, 51), 4)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    A = np.stack([(Q * d) @ Q.T for d in spectra]).astype(dtype)
    A = co.opaque(co.SelfAdjoint(co.Dense(A))).to(backend=backend)
    method = co.LOBPCG(max_iters=60)
    (values, _), info = co.eig(A, 3, "SA", method, info=True, on_failure="ignore")
    np.testing.assert_allclose(A.xp.to_numpy(values)[2], 1, atol=1e-5)
    assert float(A.xp.max(info.residual[2])) < 3e-4
