"""Least squares by LSQR and LSMR, named and chosen by `Auto`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear import Status


def tall(m: int, n: int, seed: int = 0) -> Any:
    random = sp.random_array((m, n), density=4 / n, rng=np.random.default_rng(seed))
    return sp.csr_array(random + sp.eye_array(m, n) * 3)


@pytest.mark.parametrize("shape", [(3000, 500), (500, 3000)])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_auto_never_forms_a_large_sparse_rectangular_matrix(shape: tuple[int, int], framework: str) -> None:
    pytest.importorskip(framework)
    S = tall(*shape)
    A, b = co.Sparse(S).to(backend=framework), np.random.default_rng(1).standard_normal(shape[0])
    with co.testing.forbid_dense(1e6):
        x, info = co.lstsq(A, A.xp.asarray(b), info=True)
    x = A.xp.to_numpy(x)
    assert info.method == "LSMR"
    assert info.status is Status.SUCCESS
    assert co.explain(co.lstsq, A).rules == ["LSMR"]
    exact = np.linalg.lstsq(S.toarray(), b)[0]
    assert np.linalg.norm(x - exact) <= 1e-8 * np.linalg.norm(exact)


def test_auto_factors_where_iterations_are_not_enough() -> None:
    S = tall(3000, 500).toarray() * np.logspace(0, 7, 500)  # columns of very different size
    A = co.MatrixFree(lambda X: S @ X, S.shape, dtype=np.float64, rmatmat=lambda X: S.T @ X)
    b = np.ones(3000)
    x, info = co.lstsq(A, b, info=True)
    assert info.method != "LSMR"
    assert not info.failed
    exact = np.linalg.lstsq(S, b)[0]
    np.testing.assert_allclose(S @ x, S @ exact, atol=1e-6)


def test_a_matrix_free_operator_beyond_memory_is_iterated_with() -> None:
    m, n = 40_000, 20_000
    d = np.linspace(1, 3, n)
    A = co.MatrixFree(
        lambda X: np.concatenate([d[:, None] * X, X]), (m, n), dtype=np.float64, rmatmat=lambda Y: d[:, None] * Y[:n] + Y[n:]
    )
    b = np.concatenate([np.ones(n), np.zeros(n)])
    with co.testing.forbid_dense(1e7):
        x, info = co.lstsq(A, b, info=True)
        assert info.method == "LSMR"
        np.testing.assert_allclose(x, d / (d**2 + 1), rtol=1e-9)
        pseudoinverse = co.pinv(A)
        assert co.explain(co.pinv, A).rules == ["LSMR"]
        np.testing.assert_allclose(pseudoinverse @ b, x, rtol=1e-9)


def test_auto_passes_on_its_tolerance_and_its_iterations() -> None:
    A, b = co.Sparse(tall(3000, 500)), np.ones(3000)
    loose, tight = (co.lstsq(A, b, co.Auto(tol=tol), info=True)[1] for tol in (1e-2, 1e-10))
    assert loose.iterations < tight.iterations
    info = co.lstsq(A, b, co.Auto(max_iters=2), info=True)[1]
    assert not info.failed, "a factorisation comes next"


def test_small_and_dense_matrices_are_factored() -> None:
    assert "LSMR" not in co.explain(co.lstsq, np.ones((3000, 500))).rules
    assert "LSMR" not in co.explain(co.lstsq, co.Sparse(tall(30, 10))).rules


def test_jax_multiplies_by_what_does_not_fit_into_memory() -> None:
    jax = pytest.importorskip("jax")
    S = tall(40_000, 8000)
    A = co.Sparse(S).to(backend="jax")
    x, info = jax.jit(lambda A, b: co.lstsq(A, b, info=True))(A, jax.numpy.ones(40_000))
    assert bool(info.converged.all())
    assert np.linalg.norm(S.T @ (1 - S @ np.asarray(x))) <= 1e-8 * np.sqrt(40_000)


def test_torch_gradients_are_not_lost_to_an_iteration() -> None:
    torch = pytest.importorskip("torch")
    A = co.Sparse(tall(600, 100)).to(backend="torch")
    b = torch.ones(600, dtype=torch.float64, requires_grad=True)
    co.lstsq(A, b).sum().backward()
    assert torch.isfinite(b.grad).all()
    assert b.grad.abs().sum() > 0


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("method", [co.LSQR, co.LSMR])
def test_columns_of_a_batch_of_rectangular_matrices_converge_on_their_own(method: Any, framework: str) -> None:
    pytest.importorskip(framework)
    rng = np.random.default_rng(0)
    A = np.stack([rng.standard_normal((20, 6)), np.eye(20, 6)])
    B = rng.standard_normal((2, 20, 3))
    B[0, :, 2] = 0
    operator = co.opaque(co.Dense(A).to(backend=framework))
    X, info = co.lstsq(operator, operator.xp.asarray(B), method(tol=1e-12), info=True)
    np.testing.assert_allclose(operator.xp.to_numpy(X), np.linalg.pinv(A) @ B, atol=1e-9)
    assert operator.xp.to_numpy(info.converged).shape == (2, 3)
    assert operator.xp.to_numpy(info.converged).all()
    history = operator.xp.to_numpy(info.history)
    assert (history[1, 1] == history[-1, 1]).all(), "the identity took one step"
