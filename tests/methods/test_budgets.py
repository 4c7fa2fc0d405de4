"""`max_iters` and `info.iterations` have one unit for each method, and a run that ends early names the parameter that helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status

HARD = np.arange(3000.0)


@pytest.mark.parametrize("budget", [1, 5, 50])
@pytest.mark.parametrize(
    "method",
    [
        co.Lanczos,
        lambda **options: co.Lanczos(orthogonalisation="householder", **options),
        co.Arnoldi,
        co.LOBPCG,
        co.PowerIteration,
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_run_for_eigenvalues_ends_after_as_many_iterations_as_are_allowed(
    framework: str, method: Any, budget: int
) -> None:
    xp, chosen = backends.get(framework), method(max_iters=budget, tol=1e-12)
    A, power = (
        co.opaque(co.PSD(co.Diagonal(xp.asarray(HARD)))),
        isinstance(chosen, co.PowerIteration),
    )
    _, info = co.eig(A, 1 if power else 2, "LM", chosen, info=True)
    products = 6 if isinstance(chosen, co.LOBPCG) else 1
    assert info.status == Status.MAX_ITERATIONS and info.iterations == budget
    # and one for each pair, to judge it
    assert info.matvecs == products * budget + (1 if power else 2)


@pytest.mark.parametrize("budget", [1, 5, 25, 60])
def test_a_step_of_bidiagonalisation_makes_two_products(budget: int) -> None:
    _, info = co.svd(co.opaque(co.Diagonal(HARD)), 4, co.GolubKahan(max_iters=budget), info=True)
    assert (
        info.status == Status.MAX_ITERATIONS
        and info.iterations == budget
        and info.matvecs == 2 * budget + 8
    )


def test_budgets_are_kept_in_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    A = co.opaque(co.Diagonal(jnp.asarray(HARD[:300], dtype=jnp.float32)))
    _, info = co.eig(A, 2, "LA", co.Lanczos(max_iters=20, tol=1e-6), info=True)
    assert info.status == Status.MAX_ITERATIONS and info.iterations == 20


def test_default_budgets_allow_as_many_products_as_before() -> None:
    for n, k in ((30, 2), (3000, 4)):
        most = max(10 * n, 2000)
        assert co.Lanczos().limit(n, co.Lanczos().size(n, k)) >= max(10 * n, 40 * (2 * k + 14))
        assert (
            co.LOBPCG().limit(n, k + 4) * (k + 4) >= most
            and co.PowerIteration().limit(n, 1) >= most
        )
        assert 2 * co.GolubKahan().limit(n, 2 * k + 14) >= max(10 * n, 80 * (2 * k + 14))


def test_callbacks_count_in_the_same_unit() -> None:
    seen: list[int] = []
    A = co.opaque(co.PSD(co.Diagonal(HARD)))
    co.eig(
        A,
        2,
        "LA",
        co.LOBPCG(max_iters=7, callback=lambda p: seen.append(p.iteration)),
        on_failure="ignore",
    )
    assert seen == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_gmres_that_stagnates_at_its_restart_names_it(framework: str) -> None:
    xp = backends.get(framework)
    cycle = xp.asarray(np.roll(np.eye(300), 1, 0).astype(np.float32))
    A, b = co.opaque(co.Dense(cycle)), xp.asarray(np.eye(300, dtype=np.float32)[0])
    _, info = co.solve(A, b, co.GMRES(max_iters=1000), info=True)
    assert (
        info.status == Status.STAGNATION
        and "after 30 vectors" in info.message
        and "restart=" in info.message
    )
    if framework == "numpy":
        with pytest.warns(co.ConvergenceWarning, match=r"STAGNATION.*raise restart="):
            co.solve(A, b, co.GMRES(max_iters=1000))
        assert (
            co.solve(A, b, co.GMRES(max_iters=1000, restart=300), info=True)[1].status
            == Status.SUCCESS
        )
        assert not co.solve(A, b, co.GMRES(restart=300, tol=1e-30), info=True)[1].message, (
            "that is the accuracy of the dtype"
        )


@pytest.mark.parametrize(
    ("run", "parameter"),
    [
        (lambda A: co.eig(A, 2, "LA", co.Lanczos(max_iters=30)), "basis="),
        (lambda A: co.eig(A, 2, "LA", co.LOBPCG(max_iters=3)), "preconditioner="),
        (lambda A: co.svd(A, 2, co.GolubKahan(max_iters=5)), "basis="),
        (lambda A: co.svd(A, 2, co.RandomizedSVD(tol=1e-8)), "power_iterations="),
    ],
)
def test_a_run_that_is_too_short_names_the_parameter_of_its_method(
    run: Any, parameter: str
) -> None:
    with pytest.warns(co.ConvergenceWarning, match=parameter):
        run(co.opaque(co.PSD(co.Diagonal(HARD))))
