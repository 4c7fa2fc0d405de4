"""One recurrence, several kinds of vectors: a single vector on the host, a block, a traced program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colinear import Status, backends
from colinear.methods import CG, LSMR, LSQR, MINRES, BiCGSTAB, iterate
from colinear.methods.iterate import Products
from colinear.methods.lsqr import for_least_squares
from colinear.methods.vectors import Code, Columns, Single, status_of

SQUARE = {
    "cg": CG(),
    "single": CG(single_reduction=True),
    "minres": MINRES(),
    "bicgstab": BiCGSTAB(),
}
TALL = {"lsqr": LSQR(), "lsmr": LSMR(), "cgls": for_least_squares(CG())}


def run(xp: Any, name: str, A: np.ndarray, B: np.ndarray, **options: Any) -> Any:
    A, B = xp.asarray(A), xp.asarray(B)
    A_adjoint = xp.conj(xp.matrix_transpose(A))
    common = {"tol": 1e-9, "max_iters": 200, **options}
    products = Products(lambda X: A @ X, lambda X: A_adjoint @ X, columns=A.shape[-1])
    return (SQUARE | TALL)[name].algorithm(xp, products, B, **common)


def problem(name: str, is_complex: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    M = rng.standard_normal((12, 12)) + is_complex * 1j * rng.standard_normal((12, 12))
    B = rng.standard_normal((12, 2)) + is_complex * 1j * rng.standard_normal((12, 2))
    if name in ("cg", "single"):
        return M @ M.conj().T + 12 * np.eye(12), B
    if name == "minres":
        return M + M.conj().T + 0.5 * np.eye(12), B
    return (M + 12 * np.eye(12), B) if name == "bicgstab" else (M[:, :7], B)


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", [*SQUARE, *TALL])
def test_a_vector_alone_takes_the_steps_that_it_takes_in_a_block(
    name: str, framework: str, is_complex: bool
) -> None:
    xp = backends.get(framework)
    A, B = problem(name, is_complex)
    block = run(xp, name, A, B)
    for i in range(2):
        alone = run(xp, name, A, B[:, i : i + 1])
        assert int(alone.status[0]) == int(block.status[i]) == int(Status.SUCCESS)
        assert abs(int(alone.iterations[0]) - int(block.iterations[i])) <= 1
        np.testing.assert_allclose(
            xp.to_numpy(alone.X)[:, 0], xp.to_numpy(block.X)[:, i], rtol=1e-6, atol=1e-8
        )


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", [*SQUARE, *TALL])
def test_a_large_block_is_written_over_and_nothing_of_the_users(
    name: str, framework: str, monkeypatch: Any
) -> None:
    xp = backends.get(framework)
    A, B = problem(name, True)
    expected, X0 = run(xp, name, A, B), np.full((A.shape[1], 2), 0.5 + 0j)
    monkeypatch.setattr(iterate, "LARGE_BLOCK_NUMBERS", 0)
    b, x0 = xp.asarray(B.copy()), xp.asarray(X0.copy())
    found = run(xp, name, A, b, X0=x0)
    np.testing.assert_array_equal(xp.to_numpy(b), B)
    np.testing.assert_array_equal(xp.to_numpy(x0), X0)
    np.testing.assert_allclose(xp.to_numpy(found.X), xp.to_numpy(expected.X), rtol=1e-6, atol=1e-8)
    assert int(found.status.max()) == 0


@pytest.mark.parametrize("name", [*SQUARE, *TALL])
def test_a_product_that_is_not_finite_ends_a_vector_and_its_column_alike(name: str) -> None:
    xp = backends.get("numpy")
    A, B = problem(name, False)
    A = A.copy()
    A[0, 0] = np.nan
    with np.errstate(all="ignore"):
        alone, block = run(xp, name, A, B[:, :1]), run(xp, name, A, B)
    assert (
        status_of(int(alone.status[0])) == status_of(int(block.status[0])) == int(Status.NONFINITE)
    )


def test_the_operations_on_a_vector_and_on_a_column_agree() -> None:
    xp = backends.get("numpy")
    one, many = Single(xp, np.dtype(float)), Columns(xp, np.dtype(float))
    x, y = np.arange(3.0), np.ones(3)
    X, Y = x[:, None], y[:, None]
    assert one.dot(x, y) == many.dot(X, Y)[0]
    np.testing.assert_array_equal(
        many.axpy(np.array([2.0]), X, Y)[:, 0], one.axpy(2.0, x, y.copy())
    )
    np.testing.assert_array_equal(
        many.xpby(X, np.array([2.0]), Y)[:, 0], one.xpby(x, 2.0, y.copy())
    )
    assert one.ratio(1.0, 0.0) == many.ratio(np.array([1.0]), np.array([0.0]))[0] == 0
    assert one.rotation(3.0, 4.0) == tuple(
        float(a[0]) for a in many.rotation(np.array([3.0]), np.array([4.0]))
    )
    for value in (1.0, 0.0, -1.0, np.inf, np.nan):
        codes = many.positive(np.array([Code.RUNNING]), np.array([value]), (7, 9))
        assert one.positive(Code.RUNNING, value, (7, 9)) == codes[0]
