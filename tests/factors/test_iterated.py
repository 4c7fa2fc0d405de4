"""Iterations with derivatives of functions: many products are made by a sparse matrix."""

from __future__ import annotations

import pytest

import colinear as co
from colinear.factors import iterated

torch = pytest.importorskip("torch")
N = 1200  # rows, from which on a matrix is assembled


def of_neighbours(x):
    """A discretised equation, of which each entry sees its neighbours."""
    padded = torch.nn.functional.pad(x, (1, 1))
    return 2.001 * x - padded[2:] - padded[:-2] + 0.001 * x**3


def of_all(x):
    """The same, plus the mean: a Jacobian with no zeros."""
    return of_neighbours(x) + x.mean()


@pytest.mark.parametrize(("f", "is_sparse"), [(of_neighbours, True), (of_all, False)])
def test_many_products_with_a_jacobian_are_made_by_a_sparse_matrix_if_there_is_one(
    f, is_sparse, monkeypatch
):
    found = []

    def assembled(A):
        found.append(iterated_assembled(A))
        return found[-1]

    iterated_assembled = iterated.assembled
    monkeypatch.setattr(iterated, "assembled", assembled)
    generator = torch.Generator().manual_seed(0)
    x, b = torch.randn(2, N, generator=generator, dtype=torch.float64)
    J = co.Jacobian(f, x)
    y = co.solve(J, b, co.GMRES(tol=1e-9, restart=100))
    residual = torch.func.jacrev(f)(x) @ y - b
    assert [S is not None for S in found] == [is_sparse]
    assert torch.linalg.vector_norm(residual) <= 1.01e-9 * torch.linalg.vector_norm(b)


def test_few_products_with_a_jacobian_assemble_nothing(monkeypatch):
    monkeypatch.setattr(iterated, "assembled", lambda A: pytest.fail("a matrix was assembled"))
    x = torch.zeros(N, dtype=torch.float64)
    y = co.solve(co.Jacobian(lambda x: 2 * x + x**2, x), torch.ones_like(x), co.GMRES(tol=1e-9))
    assert torch.allclose(y, torch.full_like(x, 0.5))
