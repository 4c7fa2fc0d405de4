"""Singular parts of a composition: the status says so and names the part, whichever way the solve takes, and nothing is called NaN that
is a division by zero."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status

GOOD, BAD = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([[1.0, 2.0], [2.0, 4.0]])
LAST = np.eye(8)[:, :1]
GRID = co.SelfAdjoint(np.diag([-1.0, 0.5, 1.0]))
NEUMANN = co.Tridiagonal(-np.ones(5), np.r_[1.0, np.full(4, 2.0), 1.0], -np.ones(5))

NAMED = {
    "factor 2 of 2": co.Kronecker(GOOD, BAD),
    "factor 1 of 2": co.Product(co.Dense(BAD), co.Dense(GOOD)),
    "block 2 of 3": co.BlockDiag(GOOD, BAD, co.Diagonal([1.0])),
    "block 3 of 4": co.BlockDiag(GOOD, GOOD, BAD, GOOD),
    "factor 1 of 2; In block 2 of 2": co.Kronecker(co.BlockDiag(GOOD, BAD), GOOD),
    "capacitance": co.Identity(8) + co.LowRank(LAST, -LAST),
    "On the range of Q": co.Projection(np.eye(8)[:, :2]) - co.Identity(8),
}
SINGULAR = NAMED | {
    "a zero in a diagonal factor": co.Kronecker(co.Diagonal([1.0, 0.0]), GOOD),
    "a scalar of zero": co.Scaled(0.0, co.Dense(GOOD)),
    "a grid": co.KroneckerSum(GRID, GRID),
    "a shifted grid": co.KroneckerSum(GRID, GRID) - 1.5 * co.Identity(9),
    "a grid with free ends": co.KroneckerSum(NEUMANN, NEUMANN),
    "a band": NEUMANN,
    "a periodic band": co.Circulant([2.0, -1.0, 0.0, -1.0]),
    "a shifted kronecker": co.Kronecker(GRID, GRID) + co.Identity(9),
    "a block": co.Block([[GOOD, GOOD], [GOOD, GOOD]]),
    "thin factors": co.Kronecker(np.ones((2, 3)), np.ones((3, 2))),
    "a similarity": co.Product(
        U := co.Unitary(np.eye(2)[::-1].copy()), co.Diagonal([1.0, -1.0]), U.H
    )
    + co.Identity(2),
}


@pytest.mark.parametrize("what", SINGULAR)
def test_a_singular_part_is_called_singular(what):
    A = SINGULAR[what]
    _, info = co.inv(A, info=True)
    assert info.status is Status.SINGULAR
    _, info = co.solve(A, np.arange(1.0, A.shape[-1] + 1), info=True)
    assert info.status is Status.SINGULAR
    sign, logarithm = co.slogdet(A)
    assert logarithm < -30 or (what == "a grid with free ends" and np.isfinite(logarithm)), sign


@pytest.mark.parametrize("what", NAMED)
def test_the_warning_names_the_part(what):
    A = NAMED[what]
    for call in (lambda: co.inv(A), lambda: co.solve(A, np.ones(A.shape[-1]))):
        with pytest.warns(co.ConvergenceWarning, match=f"SINGULAR.*{what}"):
            call()


def test_nan_in_the_data_is_not_called_singular():
    with np.errstate(all="ignore"):
        for A, b in (
            (co.Kronecker(co.Diagonal([1.0, np.nan]), GOOD), np.ones(4)),
            (co.Kronecker(GOOD, GOOD), np.full(4, np.nan)),
        ):
            assert co.solve(A, b, info=True)[1].status is Status.NONFINITE


def test_under_jit_a_division_by_zero_is_singular_too():
    pytest.importorskip("jax")
    xp = backends.get("jax")
    A = co.KroneckerSum(GRID, GRID).to(backend="jax")
    solve = xp.jit(lambda A, b: co.solve(A, b, info=True)[1].status)
    assert int(solve(A, xp.ones(9))) == Status.SINGULAR
    assert int(solve(A, xp.full(9, float("nan")))) == Status.NONFINITE


def test_a_singular_core_is_no_singular_sum():
    A = co.Identity(8) + co.LowRank(np.eye(8)[:, :2], np.eye(8)[:, :2], np.zeros((2, 2)))
    x, info = co.solve(A, np.arange(8.0), info=True)
    assert info.status is Status.SUCCESS
    np.testing.assert_allclose(x, np.arange(8.0))


def test_a_correction_of_a_singular_operator_falls_back_to_the_whole():
    A = NEUMANN + co.LowRank(np.ones((6, 1)))
    x, info = co.solve(A, np.arange(6.0), info=True)
    assert info.status is Status.FELL_BACK
    np.testing.assert_allclose(A @ x, np.arange(6.0), atol=1e-12)
