"""Iterations on operators whose products are iterations: a failure inside is a failure of the answer."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear import backends

N = 60


def inverse(framework: str, max_iters: int | None) -> co.LinearOperator:
    """The inverse of a diagonal operator, of condition 1000, by CG; five steps are far too few."""
    d = backends.get(framework).asarray(np.linspace(1.0, 1e3, N))
    return co.opaque(
        co.inv(co.opaque(co.PD(co.Diagonal(d))), co.CG(max_iters=max_iters, tol=1e-11))
    )


def answers(framework: str, max_iters: int | None):
    A, b = (
        inverse(framework, max_iters),
        backends.get(framework).asarray(np.random.default_rng(0).normal(size=N)),
    )
    yield co.solve(co.PD(A), b, co.CG(tol=1e-6), info=True)[1]
    if framework == "jax":  # the same way for all, and slow to compile
        return
    yield co.lstsq(A, b, co.LSMR(tol=1e-6, max_iters=200), info=True)[1]
    yield co.eig(co.PD(A), 2, "LM", co.Lanczos(tol=1e-6), info=True)[1]
    yield co.svd(A, 1, co.GolubKahan(tol=1e-6), info=True)[1]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_product_that_failed_fails_the_answer(framework: str) -> None:
    for info in answers(framework, 5):
        assert bool(info.failed), info


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_products_that_converge_do_no_harm(framework: str) -> None:
    for info in answers(framework, None):
        assert not info.failed, info


def test_the_message_says_that_it_was_a_product() -> None:
    info = co.solve(
        co.PD(inverse("numpy", 5)), np.ones(N), co.CG(tol=1e-6, max_iters=500), info=True
    )[1]
    assert "a product with A, which is CG itself, failed (MAX_ITERATIONS)" in info.message
    assert not np.any(info.converged)


def test_a_solve_inside_of_a_users_product_is_heard() -> None:
    D = co.opaque(co.PD(co.Diagonal(np.linspace(1.0, 1e3, N))))

    def multiply(X: np.ndarray) -> np.ndarray:
        return co.solve(D, X, co.CG(max_iters=5))

    A = co.PD(co.MatrixFree(multiply, (N, N), dtype=np.float64, rmatmat=multiply))
    assert co.solve(A, np.ones(N), co.CG(tol=1e-6), info=True)[1].failed


def test_a_preconditioner_that_fails_does_no_harm() -> None:
    d = np.linspace(1.0, 1e3, N)
    rough = co.inv(co.opaque(co.PD(co.Diagonal(d))), co.CG(tol=1e-18))  # stagnates
    x, info = co.solve(
        co.opaque(co.Diagonal(d)), np.ones(N), co.GMRES(preconditioner=rough), info=True
    )
    assert not info.failed, info
    np.testing.assert_allclose(d * x, 1, rtol=1e-6)


def test_no_product_is_spent_where_nothing_can_fail() -> None:
    A = co.opaque(co.PD(co.Diagonal(np.linspace(1.0, 2.0, N))))
    info = co.solve(A, np.ones(N), co.CG(), info=True)[1]
    with co.testing.count_matvecs(A) as counter:
        co.solve(A, np.ones(N), co.CG())
    assert counter.matvecs == info.matvecs
