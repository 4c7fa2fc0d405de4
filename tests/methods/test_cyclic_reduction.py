"""Tridiagonal systems by cyclic reduction, and on a device by it or by the host."""

from __future__ import annotations

import importlib
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.synchronisations import counted, pretended

import colinear as co
from colinear import backends
from colinear.factors import structured
from colinear.methods.cyclic_reduction import dominance, levels_of, pivots, solve

EPS = np.finfo(float).eps


def dominated(n: int, ratio: float, is_complex: bool = False) -> list[Any]:
    """Diagonals with this largest ratio of a row's other entries to the diagonal one."""
    rng = np.random.default_rng(n)
    lower, upper = (rng.uniform(-1, 1, n - 1) for _ in range(2))
    if is_complex:
        lower = lower * np.exp(2j * np.pi * rng.random(n - 1))
    rows = np.abs(np.append(0, lower)) + np.abs(np.append(upper, 0))
    return [lower, rows / ratio * rng.choice([-1, 1], n) + (n == 1), upper]


def matrix(lower: Any, diag: Any, upper: Any) -> Any:
    return np.diag(diag) + np.diag(lower, -1) + np.diag(upper, 1)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_solutions_and_determinants_are_those_of_elimination(
    framework: str, is_complex: bool
) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    solution, pivoted = partial(solve, xp), partial(pivots, xp)
    if framework == "jax":  # compiled as one each, because each of their many operations would be
        jax = importlib.import_module("jax")
        solution, pivoted = jax.jit(solution, static_argnums=4), jax.jit(pivoted, static_argnums=3)
    for n in (1, 2, 3, 8, 9, 63, 200):
        for ratio in (1.0, 0.9, 0.3, 1e-20):
            rows = dominated(n, ratio, is_complex)
            T, B = matrix(*rows), np.random.default_rng(0).standard_normal((n, 2))
            given = list(map(xp.asarray, rows))
            eps = xp.eps(given[1].dtype)
            found = [float(x) for x in dominance(xp, *given)] if n > 1 else [0.0]
            assert found[0] == pytest.approx(ratio if n > 1 else 0, rel=1e-4, abs=1e-4)
            levels = levels_of(n, ratio, eps)
            assert levels <= int(np.log2(n))
            X = xp.to_numpy(solution(*given, xp.asarray(B), levels))
            size = np.abs(T).max() * np.abs(X).max() + np.abs(B).max()
            assert np.abs(B - T @ X).max() <= 50 * eps * size
            sign, logarithm = np.linalg.slogdet(T)
            values = xp.to_numpy(pivoted(*given, levels))
            assert np.log(np.abs(values)).sum() == pytest.approx(logarithm, rel=200 * eps, abs=1e-4)
            assert np.prod(values / np.abs(values)) == pytest.approx(sign, abs=1e-4)


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structured, "FEWEST_ROWS", 100)


@pytest.mark.parametrize("columns", [(), (2,), (3, 2)])
def test_a_device_reduces_what_is_dominated(few_rows: None, columns: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.as_tensor(x) for x in dominated(300, 0.8)]
    shape = (*columns[:-1], 300, *columns[-1:]) if columns else (300,)
    b = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    lower, diag, upper = rows
    dominated_by_rows = co.Tridiagonal(lower, diag, upper)
    neither = co.Tridiagonal(lower, 0.1 * diag, upper)
    for T in (dominated_by_rows, dominated_by_rows.T, neither):
        expected = co.solve(T, b), co.inv(T).T @ b, *co.slogdet(T)
        with pretended(), counted() as looks:
            found = co.solve(T, b)
            assert len(looks) <= 3
            found = found, co.inv(T).T @ b, *co.slogdet(T)
        for x, y in zip(found, expected):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


def test_a_device_says_where_a_dominated_matrix_is_singular(few_rows: None) -> None:
    torch = pytest.importorskip("torch")
    n = 257
    diag = 2 * torch.ones(n, dtype=torch.float64)
    diag[0] = diag[-1] = 1  # of a line with free ends
    T = co.Tridiagonal(-torch.ones(n - 1).double(), diag, -torch.ones(n - 1).double())
    for name, call in {"solve": lambda: co.solve(T, diag), "inv": lambda: co.inv(T)}.items():
        with pretended(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert any(name in str(each.message) for each in caught)
    with pretended():
        assert co.logdet(T) < -25


def test_gradients_on_a_device_are_those_of_the_host(few_rows: None) -> None:
    torch = pytest.importorskip("torch")

    def gradient() -> Any:
        rows = [torch.as_tensor(x).requires_grad_() for x in dominated(150, 0.7)]
        T = co.Tridiagonal(*rows)
        (co.solve(T, torch.ones(150).double()).sum() + co.logdet(T)).backward()
        return [x.grad for x in rows]

    expected = gradient()
    with pretended():
        for x, y in zip(gradient(), expected):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize("family", ["tridiagonal", "banded"])
def test_determinants_in_single_precision_are_right_to_single_precision(family: str) -> None:
    n = 2**15
    ones = np.ones(n, np.float32)
    rows = [-ones[1:], 2 * ones, -ones[1:]]
    T = co.Tridiagonal(*rows)
    if family == "banded":
        T = co.Banded([*rows, 0 * ones[2:]], [-1, 0, 1, 2])
    assert co.logdet(T) == pytest.approx(np.log(n + 1), rel=1e-5)


@pytest.mark.parametrize("ratio", [1e-7, 1e-2])
def test_right_sides_finer_than_the_matrix_are_solved_to_their_own_precision(
    few_rows: None, ratio: float
) -> None:
    torch = pytest.importorskip("torch")
    T = co.Tridiagonal(*(torch.as_tensor(x).float() for x in dominated(300, ratio)))
    b = torch.ones(300, dtype=torch.float64)
    with pretended():
        x = co.inv(T) @ b
    assert torch.linalg.vector_norm(T @ x - b) <= 1e-14 * torch.linalg.vector_norm(b)
