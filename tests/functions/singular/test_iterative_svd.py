"""Some singular triplets: by bidiagonalisation, from random vectors, and through the Gram matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status
from colinear.testing import forbid_dense

RNG = np.random.default_rng(3)
MATRICES = {
    "tall": RNG.standard_normal((120, 80)),
    "wide": RNG.standard_normal((60, 150)),
    "complex": RNG.standard_normal((70, 90)) + 1j * RNG.standard_normal((70, 90)),
    "repeated": np.diag(np.r_[np.full(4, 3.0), np.linspace(0, 1, 100)]),
    "identity": np.eye(60, 40),
    "zero": np.zeros((60, 40)),
    "rank one": np.outer(np.arange(60.0), np.ones(40)),
    "tiny": RNG.standard_normal((7, 5)),
    "batch": RNG.standard_normal((2, 3, 50, 40)),
}


def adjoint(X: np.ndarray) -> np.ndarray:
    return X.swapaxes(-1, -2).conj()


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_bidiagonalisation_finds_all_members(name: str, backend: str) -> None:
    xp, A = backends.get(backend), MATRICES[name]
    (U, s, V), info = co.svd(xp.asarray(A), 5, co.GolubKahan(), info=True)
    assert U.isa(co.Stiefel) and V.isa(co.Stiefel)
    U, s, V = (xp.to_numpy(x) for x in (U.to_dense(), s, V.to_dense()))
    size = np.linalg.svd(A, compute_uv=False).max() + 1e-300
    np.testing.assert_allclose(s, np.linalg.svd(A, compute_uv=False)[..., :5], atol=1e-7 * size)
    assert (
        np.abs(A @ V - U * s[..., None, :]).max() <= 1e-7 * size
        and np.abs(adjoint(A) @ U - V * s[..., None, :]).max() <= 1e-7 * size
    )
    assert (
        np.abs(adjoint(U) @ U - np.eye(5)).max() < 1e-10
        and np.abs(adjoint(V) @ V - np.eye(5)).max() < 1e-10
    )
    assert (
        info.status == Status.SUCCESS
        and bool(info.converged.all())
        and info.residual.shape == s.shape
    )


def test_bidiagonalisation_in_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    A = MATRICES["repeated"].astype(np.float32)
    _, s, _ = co.svd(jnp.asarray(A), 5, co.GolubKahan())
    assert s.dtype == jnp.float32
    np.testing.assert_allclose(s, [3, 3, 3, 3, 1], atol=1e-5)


SHAPES = [(8, 10), (10, 8), (9, 9), (3, 50), (1, 6)]


@pytest.mark.parametrize(
    ("backend", "shape"), [*((b, s) for b in ("numpy", "torch") for s in SHAPES), ("jax", (8, 10))]
)
def test_bases_that_span_the_smaller_space_find_all_triplets(
    backend: str, shape: tuple[int, int]
) -> None:
    xp, full = (
        backends.get(backend),
        np.random.default_rng(0).standard_normal(shape).astype(np.float32),
    )
    for A in (full, np.outer(full[:, 0], full[0])):
        for k in {1, min(shape)} if backend != "jax" else {min(shape)}:
            (U, s, V), info = co.svd(co.Dense(xp.asarray(A)), k, co.GolubKahan(tol=1e-5), info=True)
            U, s, V = (xp.to_numpy(x) for x in (U.to_dense(), s, V.to_dense()))
            np.testing.assert_allclose(s, np.linalg.svd(A)[1][:k], atol=1e-5)
            assert info.status == Status.SUCCESS and info.iterations <= min(shape)
            assert max(np.abs(X.T @ X - np.eye(k)).max() for X in (U, V)) < 1e-5


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_random_vectors_find_a_low_rank_and_say_how_well(
    backend: str, rng: np.random.Generator
) -> None:
    xp = backends.get(backend)
    A = rng.standard_normal((90, 12)) @ rng.standard_normal((12, 70))
    (U, s, V), info = co.svd(xp.asarray(A), 12, co.RandomizedSVD(), info=True)
    np.testing.assert_allclose(xp.to_numpy((U @ co.Diagonal(s) @ V.H).to_dense()), A, atol=1e-10)
    assert float(info.error) < 1e-12 and float(info.residual.max()) < 1e-12
    noisy = A + rng.standard_normal(A.shape)
    (U, s, V), info = co.svd(xp.asarray(noisy), 12, co.RandomizedSVD(), info=True)
    error = np.linalg.norm(
        noisy - xp.to_numpy((U @ co.Diagonal(s) @ V.H).to_dense())
    ) / np.linalg.norm(noisy)
    assert error / 2 < float(info.error) < 2 * error
    assert (
        co.svd(xp.asarray(noisy), 12, co.RandomizedSVD(tol=1e-9), info=True)[1].status
        == Status.INACCURATE
    )


def test_few_components_of_tall_data_go_through_the_gram_matrix_unless_that_is_inaccurate(
    rng: np.random.Generator,
) -> None:
    A = rng.standard_normal((3000, 20)) * np.logspace(0, -1, 20)
    for B in (A, A.T, A[None] + 1j * A[None]):
        (U, s, V), info = co.svd(B, 4, info=True)
        assert info.method == "Gram" and info.residual.max() < 1e-10
        np.testing.assert_allclose(s, np.linalg.svd(B, compute_uv=False)[..., :4], rtol=1e-12)
        U, V = U.to_dense(), V.to_dense()
        assert (
            np.abs(B @ V - U * s[..., None, :]).max() < 1e-9
            and np.abs(adjoint(U) @ U - np.eye(4)).max() < 1e-10
        )
    steep = rng.standard_normal((3000, 20)) * np.logspace(0, -14, 20)
    (U, s, _), info = co.svd(steep, 9, info=True)
    assert info.method == "SVD"
    U = U.to_dense()
    assert np.abs(U.T @ U - np.eye(9)).max() < 1e-12


def test_auto_iterates_on_large_sparse_matrices() -> None:
    import scipy.sparse as sp
    import scipy.sparse.linalg as sla

    S = sp.random_array((9000, 7000), density=1e-3, rng=np.random.default_rng(0))
    (_, s, _), info = co.svd(co.Sparse(S), 4, info=True)
    np.testing.assert_allclose(s, np.sort(sla.svds(S, 4)[1])[::-1], rtol=1e-7)
    assert info.method == "GolubKahan" and info.matvecs > 0


def test_triplets_of_a_product_that_fails_are_flagged() -> None:
    A = co.MatrixFree(lambda X: X * np.nan, (500, 500), dtype=float, rmatmat=lambda X: X * np.nan)
    assert co.svd(A, 2, co.GolubKahan(), info=True)[1].status == Status.NONFINITE
    B = co.opaque(co.Diagonal(np.linspace(0, 1, 3000)))
    assert co.svd(B, 4, co.GolubKahan(max_iters=60), info=True)[1].status == Status.MAX_ITERATIONS
    with pytest.raises(ValueError, match="singular values"):
        co.svd(np.eye(3), 4, co.GolubKahan())


def test_the_gradient_of_a_singular_value(rng: np.random.Generator) -> None:
    torch: Any = pytest.importorskip("torch")
    A = torch.tensor(rng.standard_normal((60, 50)), requires_grad=True)
    _, s, _ = co.svd(A, 1, co.GolubKahan(tol=1e-12))
    s.sum().backward()
    u, v = (np.linalg.svd(A.detach().numpy())[i] for i in (0, 2))
    np.testing.assert_allclose(A.grad.numpy(), np.outer(u[:, 0], v[0]), atol=1e-7)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_centred_matrix_goes_by_its_gram_matrix(backend: str, dtype: str) -> None:
    """X - 1 μ^T, and its adjoint, are never formed."""
    xp, m, n = backends.get(backend), 400, 12
    X = RNG.standard_normal((m, n)) * np.linspace(1, 3, n) + 5
    X = (X + 1j * RNG.standard_normal((m, n)) if dtype == "complex128" else X).astype(dtype)
    mean = X.mean(0)
    U, s, Vh = np.linalg.svd(X - mean, full_matrices=False)
    exact = (U[:, :3] * s[:3]) @ Vh[:3]
    mean = xp.asarray(mean.conj()[:, None])
    A = co.Dense(xp.asarray(X)) - co.LowRank(xp.asarray(np.ones((m, 1), dtype)), mean)
    for B, whole in ((A, exact), (A.H, exact.conj().T)):
        with forbid_dense(m * n - 1):
            (U, values, V), info = co.svd(B, 3, info=True)
        assert info.method == "Gram"
        np.testing.assert_allclose(xp.to_numpy(values), s[:3], rtol=1e-10)
        U, V = (xp.to_numpy(x.to_dense()) for x in (U, V))
        np.testing.assert_allclose((U * s[:3]) @ V.conj().T, whole, atol=1e-9)


def test_centring_that_cancels_is_not_left_to_the_gram_matrix() -> None:
    X = RNG.standard_normal((400, 12)) + 1e6
    A = co.Dense(X) - co.LowRank(np.ones((400, 1)), X.mean(0)[:, None])
    (_, s, _), info = co.svd(A, 3, info=True)
    assert info.method == "SVD"
    np.testing.assert_allclose(s, np.linalg.svd(X - X.mean(0))[1][:3], rtol=1e-8)
