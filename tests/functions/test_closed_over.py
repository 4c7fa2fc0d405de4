"""A program of JAX that closes over an operator traces what it computes from it, though its values can be seen: no rule may ask for them."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co

jax = pytest.importorskip("jax")


def operators():
    rng = np.random.default_rng(0)
    G = rng.standard_normal((6, 6))
    S, M = co.PSD(G @ G.T + np.eye(6)), co.Dense(G + 4 * np.eye(6))
    line = co.PSD(co.Tridiagonal(-np.ones(5), np.full(6, 2.0), -np.ones(5)))
    made = {
        "a matrix": M,
        "a positive matrix": S,
        "a multiple": co.Scaled(2.0, M),
        "a line": line,
        "a band": co.Banded([np.full(12, 4.0), np.ones(11), np.ones(10)], (0, 1, -2)),
        "a triangle": co.Triangular(np.tril(G) + 4 * np.eye(6)),
        "a circulant": co.Circulant(np.r_[4.0, np.ones(5) / 6]),
        "a Toeplitz matrix": co.Toeplitz(np.r_[4.0, np.ones(39) / 40]),
        "a Kronecker product": co.Kronecker(S, M),
        "a grid": co.KroneckerSum(line, line),
        "blocks": co.BlockDiag(S, M),
        "a product": co.Product(S, M),
        "a correction": co.LowRank(G[:, :2]) + co.Diagonal(np.arange(1.0, 7.0)),
    }
    return {name: A.to(backend="jax") for name, A in made.items()}


def arrays(x):
    if isinstance(x, co.LinearOperator):
        return [leaf for leaf in x.leaves() if hasattr(leaf, "shape")]
    return [leaf for part in x for leaf in arrays(part)] if isinstance(x, tuple) else [x]


FUNCTIONS = [
    co.inv,
    co.eig,
    co.svd,
    co.pinv,
    co.diag,
    co.slogdet,
    co.exp,
    co.sqrt,
    co.lu,
    co.qr,
    co.norm,
    co.rank,
]


@pytest.mark.parametrize("name", operators())
def test_every_function_can_be_traced(name):
    A = operators()[name]
    b = np.arange(1.0, A.shape[-1] + 1)
    jax.eval_shape(
        lambda b: [co.solve(A, b), co.lstsq(A, b), *(x for f in FUNCTIONS for x in arrays(f(A)))], b
    )


def test_constant_diagonals_are_seen_inside_a_program():
    grid = operators()["a grid"]
    program = jax.make_jaxpr(lambda b: co.solve(grid, b))(np.ones(36))
    assert "eigh" not in str(program)
    x = jax.jit(lambda b: co.solve(grid, b))(np.arange(36.0))
    np.testing.assert_allclose(
        grid @ x, np.arange(36.0), atol=1e-3 if x.dtype == np.float32 else 1e-10
    )
