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
def test_auto_never_forms_a_large_sparse_rectangular_matrix(
    shape: tuple[int, int], framework: str
) -> None:
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


def test_a_program_of_jax_factors_where_its_iterations_were_not_enough() -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    S, b = rng.standard_normal((1100, 1050)) * np.logspace(0, -5, 1050), rng.standard_normal(1100)

    @jax.jit
    def solved(S: Any, b: Any) -> Any:
        A = co.MatrixFree(lambda X: S @ X, S.shape, dtype=S.dtype, like=S)
        x, info = co.lstsq(A, b, info=True)
        return x, info._status, info.matvecs

    x, status, products = solved(S, b)
    assert int(status) == Status.SUCCESS
    assert 0 < int(products) < 1050  # which were tried first
    exact = np.linalg.lstsq(S, b)[0]
    assert np.linalg.norm(x - exact) <= 1e-8 * np.linalg.norm(exact)


def test_a_matrix_free_operator_beyond_memory_is_iterated_with() -> None:
    m, n = 40_000, 20_000
    d = np.linspace(1, 3, n)
    A = co.MatrixFree(
        lambda X: np.concatenate([d[:, None] * X, X]),
        (m, n),
        dtype=np.float64,
        rmatmat=lambda Y: d[:, None] * Y[:n] + Y[n:],
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
def test_columns_of_a_batch_of_rectangular_matrices_converge_on_their_own(
    method: Any, framework: str
) -> None:
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


# ----------------------------------------------------------------------------------- one right side, and blocks


def both(A: Any, b: Any, method: Any, function: Any = co.lstsq) -> tuple[Any, Any, Any, Any]:
    """x and how it went, by the recurrence of one vector, and by that of blocks: two columns, equal."""
    b = A.xp.asarray(b)
    x, info = function(A, b, method, info=True, on_failure="ignore")
    X, told = function(A, A.xp.stack([b, b], axis=-1), method, info=True, on_failure="ignore")
    return A.xp.to_numpy(x), info, A.xp.to_numpy(X)[:, 0], told


def assert_alike(x: Any, info: Any, X: Any, told: Any, accuracy: float = 1e-10) -> None:
    assert info.status is told.status
    assert info.iterations == told.iterations
    assert info.matvecs * 2 == told.matvecs
    assert info.history.dtype == told.history.dtype
    np.testing.assert_allclose(
        np.asarray(info.history), np.asarray(told.history)[:, 0], rtol=accuracy, atol=accuracy / 100
    )
    np.testing.assert_allclose(x, X, atol=accuracy * np.abs(X).max())


def problem(dtype: str, consistent: bool, shape: tuple[int, int] = (60, 40)) -> tuple[Any, Any]:
    """Of so small a condition that no rounding is magnified."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: (
        rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)
    )
    A = (draw(*shape) + 40 * np.eye(*shape)).astype(dtype)
    return A, (A @ draw(shape[1]) if consistent else draw(shape[0])).astype(dtype)


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("damping", [0.0, 2.0])
@pytest.mark.parametrize("consistent", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32", "complex64"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("method", [co.LSQR, co.LSMR])
def test_one_right_side_goes_the_way_of_a_column_of_a_block(
    method: Any, framework: str, dtype: str, consistent: bool, damping: float, preconditioned: bool
) -> None:
    pytest.importorskip(framework)
    matrix, b = problem(dtype, consistent)
    A = co.opaque(co.Dense(matrix).to(backend=framework))
    tol, accuracy = (1e-4, 1e-5) if dtype in ("float32", "complex64") else (1e-11, 1e-10)
    M = A.xp.asarray(np.diag(np.linspace(0.8, 1.2, 40)).astype(dtype)) if preconditioned else None
    for most, status in ((None, Status.SUCCESS), (4, Status.MAX_ITERATIONS)):
        found = both(A, b, method(tol=tol, max_iters=most, damping=damping, preconditioner=M))
        assert_alike(*found, accuracy=accuracy)
        assert found[1].status is status


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("method", [co.LSQR, co.LSMR])
def test_one_right_side_ends_as_a_column_of_a_block_does(method: Any, framework: str) -> None:
    """Several cycles, from a guess, at once, wide, without a solution, and with numbers that are none."""
    pytest.importorskip(framework)
    matrix, b = problem("float64", False)
    wide, c = problem("float64", True, (40, 60))
    A, W, E = (
        co.opaque(co.Dense(each).to(backend=framework)) for each in (matrix, wide, np.eye(60, 40))
    )
    assert_alike(*both(A, b, method(tol=1e-9, x0=A.xp.asarray(np.ones(40)))))
    assert_alike(*both(W, c, method(tol=1e-11)))
    first = np.eye(60)[0]
    for right in (first, 0 * first, first[::-1].copy(), first + first[::-1]):
        assert_alike(*both(E, right, method(tol=1e-11)))
    singular, at = np.eye(60), np.arange(60)
    singular[0, 0] = 0
    found = both(
        co.opaque(co.Dense(singular).to(backend=framework)),
        np.ones(60),
        method(tol=1e-10),
        co.solve,
    )
    assert found[1].status is Status.SINGULAR
    assert_alike(*found)
    # many cycles, which have but their end in common
    hard = np.logspace(0, 7, 60)[:, None] * np.cos(np.outer(at, at + 0.5))
    x, info, X, told = both(
        co.opaque(co.Dense(hard).to(backend=framework)),
        np.ones(60),
        method(tol=1e-15, max_iters=3000),
    )
    assert info.status is told.status
    xp = A.xp
    for late in (0, 5):  # products before there is a number that is none
        calls: list[int] = []

        def broken(X: Any, late: int = late, calls: list[int] = calls) -> Any:
            calls.append(1)
            return xp.asarray(matrix) @ X * (float("nan") if len(calls) > late else 1.0)

        results = []
        for right in (b, np.stack([b, b], axis=-1)):
            calls.clear()
            F = co.MatrixFree(
                broken, (60, 40), dtype=xp.float64, rmatmat=lambda X: xp.asarray(matrix.T) @ X
            )
            results.append(
                co.lstsq(F, xp.asarray(right), method(tol=1e-11), info=True, on_failure="ignore")
            )
        (x, info), (X, told) = results
        assert info.status is Status.NONFINITE
        assert_alike(xp.to_numpy(x), info, xp.to_numpy(X)[:, 0], told)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("method", [co.LSQR, co.LSMR])
def test_a_callback_sees_and_stops_one_right_side_as_it_does_a_block(
    method: Any, framework: str
) -> None:
    pytest.importorskip(framework)
    matrix, b = problem("float64", False)
    A = co.opaque(co.Dense(matrix).to(backend=framework))
    for last in (5, 10_000):
        seen: list[Any] = []

        def callback(progress: Any, seen: list[Any] = seen, last: int = last) -> bool:
            assert progress.residual.dtype == A.dtype
            seen.append(
                (
                    progress.iteration,
                    float(progress.residual[0]),
                    np.reshape(A.xp.to_numpy(progress.x), (40, -1))[:, 0],
                )
            )
            return progress.iteration == last

        found = both(A, b, method(tol=1e-11, callback=callback))
        assert_alike(*found)
        assert found[1].status is (Status.STOPPED if last == 5 else Status.SUCCESS)
        half = len(seen) // 2
        assert half == found[1].iterations
        for (i, r, x), (j, s, y) in zip(seen[:half], seen[half:], strict=True):
            assert i == j
            assert r == pytest.approx(s, abs=1e-10)
            np.testing.assert_allclose(x, y, atol=1e-10)


@pytest.mark.parametrize("method", [co.LSQR, co.LSMR])
def test_parameters_that_a_function_holds_have_gradients_through_the_iteration(method: Any) -> None:
    torch = pytest.importorskip("torch")
    matrix, b = problem("float64", False)
    W = torch.tensor(matrix, requires_grad=True)
    A = co.MatrixFree(lambda X: W @ X, (60, 40), dtype=torch.float64, rmatmat=lambda X: W.mH @ X)
    co.lstsq(A, torch.tensor(b), method(tol=1e-13)).sum().backward()
    D = torch.tensor(matrix, requires_grad=True)
    co.lstsq(co.Dense(D), torch.tensor(b)).sum().backward()
    torch.testing.assert_close(W.grad, D.grad, atol=1e-8, rtol=1e-6)
