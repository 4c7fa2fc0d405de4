"""Solves whose rules go by eigenvectors of parts of A: the solution has derivatives also where eigenvalues of the parts repeat."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co

RNG = np.random.default_rng(0)
u = RNG.normal(size=(3, 1))
Q = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
PARTS = u @ u.T, (Q * np.array([1.0, 1.0, 2.0, 2.0])) @ Q.T  # zero twice; each eigenvalue twice
RIGHT = RNG.normal(size=12)


def shifted(A, B):
    return co.Kronecker(co.PSD(co.Dense(A)), co.PSD(co.Dense(B))) + 0.5 * co.Identity(12)


def summed(A, B):
    return co.KroneckerSum(co.PSD(co.Dense(A)), co.PD(co.Dense(B)))


def two_products(A, B):
    return co.Kronecker(co.PSD(co.Dense(A)), co.PSD(co.Dense(B))) + 0.5 * co.Kronecker(
        co.PD(co.Dense(A @ A + A.new_ones(3).diag())), co.PD(co.Dense(B))
    )


def in_blocks(A, B):
    return co.BlockDiag(shifted(A, B), 2 * co.Identity(12))


DENSE = {
    shifted: lambda xp, A, B: xp.kron(A, B) + 0.5 * xp.eye(12),
    summed: lambda xp, A, B: xp.kron(A, xp.eye(4)) + xp.kron(xp.eye(3), B),
    two_products: lambda xp, A, B: xp.kron(A, B) + 0.5 * xp.kron(A @ A + xp.eye(3), B),
}


def of_structure(make, A, B, b):
    operator = make((A + A.T) / 2, (B + B.T) / 2)
    return (co.solve(operator, b) ** 2).sum()


def of_matrix(make, xp, A, B, b):
    return (xp.linalg.solve(DENSE[make](xp, (A + A.T) / 2, (B + B.T) / 2), b) ** 2).sum()


@pytest.mark.parametrize("make", [shifted, summed, two_products])
def test_in_torch_to_second_order(make):
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    try:
        A, B, b = (torch.tensor(x, requires_grad=True) for x in (*PARTS, RIGHT))
        direction = [torch.tensor(RNG.normal(size=x.shape)) for x in (A, B, b)]
        found = []
        for f in (lambda *x: of_structure(make, *x), lambda *x: of_matrix(make, torch, *x)):
            first = torch.autograd.grad(f(A, B, b), (A, B, b), create_graph=True)
            along = sum((g * d).sum() for g, d in zip(first, direction))
            found.append([*first, *torch.autograd.grad(along, (A, B, b))])
            found[-1].append(torch.func.jvp(f, tuple(x.detach() for x in (A, B, b)), tuple(direction))[1])
        for ours, theirs in zip(*found):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    finally:
        torch.set_default_dtype(torch.float32)


def test_in_jax_under_jit_and_to_second_order():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    arrays = tuple(jnp.asarray(x) for x in (*PARTS, RIGHT))
    direction = tuple(jnp.asarray(RNG.normal(size=x.shape)) for x in arrays)
    found = []
    for f in (lambda *x: of_structure(shifted, *x), lambda *x: of_matrix(shifted, jnp, *x)):
        gradient = jax.grad(f, (0, 1, 2))
        found.append(jax.jit(lambda x, d, g=gradient: jax.jvp(g, x, d))(arrays, direction))
    for ours, theirs in zip(*(jax.tree.leaves(x) for x in found)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_a_rule_above_the_one_by_eigenvectors_does_not_matter():
    torch = pytest.importorskip("torch")
    A, B, b = (torch.tensor(x, requires_grad=True) for x in (*PARTS, RIGHT))
    both = torch.cat([b, b])
    x = co.solve(in_blocks(A, B), both)
    (x[:12] ** 2).sum().backward()
    expected = torch.autograd.grad((co.solve(shifted(A, B), b) ** 2).sum(), (A, B))
    for leaf, gradient in zip((A, B), expected):
        assert torch.isfinite(leaf.grad).all()
        torch.testing.assert_close(leaf.grad, gradient)
