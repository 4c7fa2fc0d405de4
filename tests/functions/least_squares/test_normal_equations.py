"""Least squares and the pseudoinverse by CG, on the normal equations, and the pseudoinverse from random vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status, backends

SHAPES = [(20, 8), (8, 20), (10, 10)]


def matrix(shape: tuple[int, int], kind: str = "f", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal(shape)
    return X + 1j * rng.standard_normal(shape) if kind == "c" else X


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["f", "c"])
@pytest.mark.parametrize("shape", SHAPES)
def test_cg_finds_the_solution_of_least_squares(
    shape: tuple[int, int], kind: str, framework: str
) -> None:
    xp, X = backends.get(framework), matrix(shape, kind)
    A = co.opaque(co.Dense(xp.asarray(X)))
    for b in (matrix((shape[0], 1), kind, 1)[:, 0], matrix((shape[0], 3), kind, 2)):
        x, info = co.lstsq(A, xp.asarray(b), co.CG(tol=1e-12), info=True)
        exact = np.linalg.pinv(X) @ b
        np.testing.assert_allclose(xp.to_numpy(x), exact, atol=1e-9)
        assert info.method == "CG"
        assert info.status is Status.SUCCESS
        residual = np.linalg.norm(b - X @ exact, axis=0) / np.linalg.norm(b, axis=0)
        np.testing.assert_allclose(
            xp.to_numpy(info.residual), np.reshape(residual, np.shape(info.residual)), atol=1e-9
        )
        pseudoinverse = co.pinv(A, method=co.CG(tol=1e-12))
        np.testing.assert_allclose(xp.to_numpy(pseudoinverse @ xp.asarray(b)), exact, atol=1e-9)
    np.testing.assert_allclose(
        xp.to_numpy(pseudoinverse.H @ xp.asarray(np.ones(shape[1]))),
        np.linalg.pinv(X).conj().T @ np.ones(shape[1]),
        atol=1e-9,
    )


def test_cg_gives_the_solution_of_smallest_norm_of_singular_problems() -> None:
    X = matrix((20, 4)) @ matrix((4, 12))
    b = np.ones(20)
    x, info = co.lstsq(X, b, co.CG(tol=1e-12), info=True)
    np.testing.assert_allclose(x, np.linalg.pinv(X, rcond=1e-10) @ b, atol=1e-9)
    assert info.status is Status.SUCCESS


def test_cg_is_as_accurate_as_lsqr_although_the_equations_are_squared() -> None:
    U, V = (np.linalg.qr(matrix(shape))[0] for shape in ((60, 20), (20, 20)))
    X = U @ np.diag(np.logspace(0, -5, 20)) @ V.T
    b = np.ones(60)
    exact = np.linalg.lstsq(X, b)[0]
    for method in (co.CG(tol=1e-11, max_iters=2000), co.LSQR(tol=1e-11, max_iters=2000)):
        x, info = co.lstsq(X, b, method, info=True)
        assert info.status is Status.SUCCESS
        # by A^H A itself: nothing would be right
        np.testing.assert_allclose(x, exact, rtol=1e-4, atol=1e-6 * np.abs(exact).max())


def test_a_run_that_is_too_short_is_no_success() -> None:
    X = matrix((40, 30))
    with pytest.warns(co.ConvergenceWarning):
        co.lstsq(X, np.ones(40), co.CG(max_iters=2))
    _, info = co.lstsq(X, np.ones(40), co.CG(max_iters=2), info=True)
    assert info.status is Status.MAX_ITERATIONS


def test_a_preconditioner_of_cg_is_one_of_the_normal_equations() -> None:
    X = matrix((60, 30)) * np.logspace(0, 4, 30)
    b = np.ones(60)
    exact = np.linalg.lstsq(X, b)[0]
    counts = []
    for M in (None, co.Jacobi(), co.Diagonal(1 / np.sum(X**2, axis=0))):
        x, info = co.lstsq(
            X, b, co.CG(tol=1e-12, max_iters=3000, preconditioner=M), info=True, on_failure="ignore"
        )
        counts.append(info.iterations)
        if M is not None:
            assert info.status is Status.SUCCESS
            np.testing.assert_allclose(x, exact, rtol=1e-6)
    assert max(counts[1:]) < counts[0] / 4


def test_a_preconditioner_that_is_not_positive_is_named() -> None:
    X = matrix((6, 3))
    _, info = co.lstsq(
        X, np.ones(6), co.CG(preconditioner=-1.0 * co.Identity(3)), info=True, on_failure="ignore"
    )
    assert info.status is Status.NOT_POSITIVE_DEFINITE
    assert "preconditioner" in info.message


def test_an_answer_of_cg_is_a_start_for_cg() -> None:
    X, b = matrix((20, 8)), np.ones(20)
    x = co.lstsq(X, b, co.CG(tol=1e-12))
    _, info = co.lstsq(X, b, co.CG(x0=x), info=True)
    assert info.iterations <= 2


@pytest.mark.parametrize("shape", [(6, 3), (3, 6)])
def test_derivatives_of_least_squares_by_cg_in_torch(shape: tuple[int, int]) -> None:
    torch = pytest.importorskip("torch")
    A, b = (torch.tensor(matrix(s), requires_grad=True) for s in (shape, (shape[0], 1)))
    weights = torch.arange(1.0, shape[1] + 1, dtype=torch.float64)
    for M in (None, co.Jacobi() if shape[0] > shape[1] else None):
        x = co.lstsq(co.Dense(A), b[:, 0], co.CG(tol=1e-13, preconditioner=M))
        y = co.pinv(co.Dense(A), method=co.CG(tol=1e-13, preconditioner=M)) @ b[:, 0]
        exact = torch.autograd.grad(weights @ (torch.linalg.pinv(A) @ b[:, 0]), (A, b))
        for z in (x, y):
            for found, right in zip(torch.autograd.grad(weights @ z, (A, b)), exact, strict=True):
                torch.testing.assert_close(found, right, atol=1e-8, rtol=1e-8)


def test_least_squares_by_cg_in_a_compiled_program_and_its_derivative() -> None:
    jax = pytest.importorskip("jax")
    X, b = jax.numpy.asarray(matrix((6, 3))), jax.numpy.ones(6)

    def loss(X: Any) -> Any:
        return jax.numpy.sum(co.lstsq(co.Dense(X), b, co.CG(tol=1e-13)) ** 2)

    value, slope = jax.jit(jax.value_and_grad(loss))(X)
    exact = jax.value_and_grad(lambda X: jax.numpy.sum((jax.numpy.linalg.pinv(X) @ b) ** 2))(X)
    np.testing.assert_allclose(value, exact[0], rtol=1e-9)
    np.testing.assert_allclose(slope, exact[1], atol=1e-8)


def test_cg_runs_on_every_kronecker_factor_of_a_pseudoinverse() -> None:
    A = co.Kronecker(matrix((4, 3)), matrix((3, 5)))
    b = np.arange(12.0)
    np.testing.assert_allclose(
        co.pinv(A, method=co.CG(tol=1e-12)) @ b, np.linalg.pinv(A.to_dense()) @ b, atol=1e-8
    )


# ---------------------------------------------------------------------------------------------------- from random vectors


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_pseudoinverse_from_random_vectors_is_that_of_the_truncated_decomposition(
    framework: str,
) -> None:
    xp = backends.get(framework)
    X = matrix((30, 4)) @ matrix((4, 20), seed=1)
    P, info = co.pinv(xp.asarray(X), method=co.RandomizedSVD(rank=4), info=True)
    np.testing.assert_allclose(
        xp.to_numpy(P.to_dense()), np.linalg.pinv(X, rcond=1e-10), atol=1e-10
    )
    assert info.status is Status.SUCCESS
    U, s, Vh = np.linalg.svd(X)
    P, info = co.pinv(xp.asarray(X), method=co.RandomizedSVD(rank=2), info=True)
    np.testing.assert_allclose(xp.to_numpy(P.to_dense()), Vh[:2].T / s[:2] @ U[:, :2].T, atol=1e-10)
    assert float(info.error) > 1e-3  # it is not the pseudoinverse of A itself, which this says


def test_triplets_that_were_not_found_make_no_pseudoinverse() -> None:
    X = matrix((300, 300))
    with pytest.warns(co.ConvergenceWarning, match="INACCURATE"):
        co.pinv(X, method=co.RandomizedSVD(rank=10, power_iterations=0))
    # whose last triplets are right to sqrt(eps) |A|, and 1 / s is not
    small = np.diag(np.logspace(0, -12, 100))
    _, info = co.pinv(
        small,
        method=co.RandomizedSVD(rank=60, oversampling=2, power_iterations=0),
        info=True,
        on_failure="ignore",
    )
    assert info.status is Status.INACCURATE


def test_all_triplets_from_random_vectors_are_the_pseudoinverse() -> None:
    X = matrix((9, 6))
    np.testing.assert_allclose(
        co.pinv(X, method=co.RandomizedSVD()).to_dense(), np.linalg.pinv(X), atol=1e-10
    )


def test_a_rank_is_that_of_the_whole_not_of_its_factors() -> None:
    A = co.Kronecker(np.diag([3.0, 1.0]), np.diag([5.0, 2.0]))
    P = co.pinv(A, method=co.RandomizedSVD(rank=2)).to_dense()
    np.testing.assert_allclose(P, np.diag([1 / 15, 1 / 6, 0, 0]), atol=1e-12)
    assert co.explain(co.pinv, A, method=co.RandomizedSVD(rank=2)).rules == [
        "RandomizedSVD",
        "RandomizedSVD",
    ]


@pytest.mark.parametrize("rank", [0, -1, 2.0])
def test_a_rank_that_is_none_is_refused(rank: Any) -> None:
    with pytest.raises(ValueError, match="rank is"):
        co.RandomizedSVD(rank=rank)


def test_the_derivative_of_a_truncated_pseudoinverse_is_that_of_its_triplets() -> None:
    torch = pytest.importorskip("torch")
    A = torch.tensor(matrix((8, 5)), requires_grad=True)
    (found,) = torch.autograd.grad(co.pinv(A, method=co.RandomizedSVD(rank=2)).to_dense().sum(), A)
    U, s, Vh = torch.linalg.svd(A, full_matrices=False)
    (exact,) = torch.autograd.grad((Vh[:2].T @ torch.diag(1 / s[:2]) @ U[:, :2].T).sum(), A)
    torch.testing.assert_close(found, exact, atol=1e-8, rtol=1e-8)


# ---------------------------------------------------------------------------------------------------- nothing to solve

EMPTY = [(3, 0), (0, 3), (0, 0)]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("shape", EMPTY)
def test_least_squares_without_rows_or_columns_have_zero_for_an_answer(
    shape: tuple[int, int], framework: str
) -> None:
    xp = backends.get(framework)
    methods = (
        (co.CG(), co.LSQR(), co.LSMR(), co.SVRG()) if framework != "jax" else (co.CG(), co.LSMR())
    )
    for A in (
        co.Dense(xp.zeros(shape, dtype=xp.float64)),
        co.Zero(*shape, like=xp.ones(1, dtype=xp.float64)),
    ):
        for method in methods:
            for b in (
                xp.ones((shape[0],), dtype=xp.float64),
                xp.ones((shape[0], 2), dtype=xp.float64),
            ):
                x, info = co.lstsq(A, b, method, info=True)
                assert info.status is Status.SUCCESS
                assert tuple(x.shape) == (shape[1], *b.shape[1:])
                assert not xp.to_numpy(x).any()
                if not isinstance(method, co.SVRG):
                    assert tuple((co.pinv(A, method=method) @ b).shape) == tuple(x.shape)


def test_systems_without_unknowns_are_solved_by_every_method() -> None:
    A = co.Dense(np.zeros((0, 0)))
    for method in (
        co.CG(),
        co.MINRES(),
        co.GMRES(),
        co.BiCGSTAB(),
        co.LSQR(),
        co.LSMR(),
        co.SVRG(),
    ):
        for b in (np.ones(0), np.ones((0, 2))):
            x, info = co.solve(A, b, method, info=True)
            assert info.status is Status.SUCCESS
            assert x.shape == b.shape == (co.inv(A, method) @ b).shape
