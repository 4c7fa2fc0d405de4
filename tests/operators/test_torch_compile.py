"""`torch.compile(fullgraph=True)` sees through operators, and multiplies from the right side."""

from __future__ import annotations

import pytest

import colinear as co

torch = pytest.importorskip("torch")


def compiled(f):
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="eager")


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, generator=generator, dtype=torch.float64) for size in ((3, 3), (3,), (3, 2))]


def test_the_sides_of_a_product_are_not_swapped(parts):
    a, x, X = parts
    A = co.Dense(a)
    torch.testing.assert_close(compiled(lambda A, x: A @ x)(A, x), a @ x)
    torch.testing.assert_close(compiled(lambda A, x: x @ A)(A, x), x @ a)
    torch.testing.assert_close(compiled(lambda A, x: torch.matmul(A, x))(A, X), a @ X)
    torch.testing.assert_close(compiled(lambda A, x: torch.matmul(x, A))(A, x), x @ a)


def test_differences_with_tensors_keep_their_sign(parts):
    a = parts[0]
    B = torch.eye(3, dtype=a.dtype)
    torch.testing.assert_close(compiled(lambda A, B: (A - B).to_dense())(co.Dense(a), B), a - B)
    torch.testing.assert_close(compiled(lambda A, B: (B - A).to_dense())(co.Dense(a), B), B - a)


def test_operators_can_be_built_inside(parts):
    a, x, _ = parts

    def f(a, x):
        A = 2.0 * co.Kronecker(co.Dense(a), co.Identity(2)) + co.Diagonal(torch.ones(6, dtype=a.dtype))
        return A @ torch.cat([x, x])

    torch.testing.assert_close(compiled(f)(a, x), f(a, x))
