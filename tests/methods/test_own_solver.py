"""A solver of a user's own: one step, and it works as those of the library do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.methods import Iterative


@dataclass(frozen=True)
class Richardson(Iterative):
    """x ← x + ω (b - A x)."""

    omega: float = 0.25

    def advance(self, ops: Any, s: Any) -> Any:
        s.x = ops.axpy(self.omega, s.r, s.x)  # x = x + ω r
        s.r = ops.axpy(-self.omega, ops.multiply(s.r), s.r)  # r = r - ω A r
        return s


MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 5.0]])
SIDES = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]])


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("columns", [1, 2])
def test_one_step_makes_a_solver(framework: str, columns: int) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    b = SIDES[:, 0] if columns == 1 else SIDES
    x, info = co.solve(co.Dense(xp.asarray(MATRIX)), xp.asarray(b), Richardson(), info=True)
    np.testing.assert_allclose(xp.to_numpy(x), np.linalg.solve(MATRIX, b), rtol=1e-6)
    assert info.method == "Richardson" and not info.failed and info.iterations > 5


def test_it_is_differentiated_by_the_equation() -> None:
    torch = pytest.importorskip("torch")
    M = torch.tensor(MATRIX, requires_grad=True)
    co.solve(co.Dense(M), torch.tensor(SIDES[:, 0]), Richardson(tol=1e-12)).sum().backward()
    x, w = np.linalg.solve(MATRIX, SIDES[:, 0]), np.linalg.solve(MATRIX.T, np.ones(3))
    np.testing.assert_allclose(M.grad.numpy(), -np.outer(w, x), rtol=1e-8)


def test_where_it_diverges_the_status_says_so() -> None:
    with pytest.warns(co.ConvergenceWarning):
        co.solve(co.Dense(MATRIX), SIDES[:, 0], Richardson(omega=1.0, max_iters=30))
