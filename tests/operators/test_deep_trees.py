"""Trees of a thousand levels: no walk over them ends in a RecursionError."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import colinear as co


def nested(levels):
    """A = (... ((A_0 / 2 + D) / 2 + D) ...), which no constructor flattens, and its matrix."""
    A, matrix = co.Dense(np.eye(2)), np.eye(2)
    for _ in range(levels // 2):
        A, matrix = co.opaque(0.5 * A) + co.Diagonal([1.0, 2.0]), 0.5 * matrix + np.diag([1.0, 2.0])
    return A, matrix


@pytest.mark.parametrize("levels", [400, 1000])
def test_deep_compositions_multiply_and_solve(levels):
    A, matrix = nested(levels)
    limit = sys.getrecursionlimit()
    x = np.array([1.0, -1.0])
    assert np.allclose(A @ x, matrix @ x) and np.allclose(A.H @ x, matrix @ x)
    assert np.allclose(A.to_dense(), matrix) and A.flops > 0
    assert np.allclose(matrix @ co.solve(A, x), x)
    assert np.allclose(co.logdet(A), np.linalg.slogdet(matrix)[1])
    assert sys.getrecursionlimit() == limit


def test_an_operator_that_multiplies_by_itself_is_an_error():
    class Endless(co.LinearOperator):
        n: int

        @property
        def shape(self):
            return (self.n, self.n)

        def _matmat(self, X):
            return self @ X

    with pytest.raises(RecursionError):
        Endless(2) @ np.ones(2)


def test_plans_of_deep_trees_are_walked_without_recursion_and_name_them_shortly():
    A = co.Dense(2 * np.eye(2))
    for _ in range(400):
        A = co.Kronecker(co.BlockDiag(A, np.eye(1)), np.eye(1))
    plan = co.explain(co.logdet, A)
    assert plan.rules.count("slogdet_block_diagonal") == 400
    assert max(len(part.expression) for part in plan.walk()) < 5000
