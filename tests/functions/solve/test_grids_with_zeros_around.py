"""Convolutions of grids with zeros around them: no transform diagonalises them, but the matrix is never formed."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.functions.solve.near import fast_form
from colinear.operators.rewrites import sparse_of_convolution
from colinear.testing import forbid_dense

LAPLACE = np.array([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]])
BLUR = np.exp(-np.add.outer(np.arange(-6, 7) ** 2, np.arange(-6, 7) ** 2) / 9.0) + np.eye(
    1, 169, 84
).reshape(13, 13)


def solved(A, b, most):
    xp = A.xp
    with forbid_dense(100 * A.shape[-1]):
        x, info = co.solve(A, b, info=True)
    assert not info.failed
    residual = np.linalg.norm(xp.to_numpy(A @ x - b)) / np.linalg.norm(xp.to_numpy(b))
    assert residual <= most
    return info


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_self_adjoint_ones_take_few_steps_of_conjugate_gradients(backend):
    xp, rng = backends.get(backend), np.random.default_rng(0)
    A = co.Convolution(xp.asarray(LAPLACE), (40, 40), boundary="zero", centered=True)
    assert co.explain(co.solve, A).rules[0] == "solve_convolution_with_zeros"
    info = solved(A, xp.asarray(rng.standard_normal(1600)), 2e-8)
    assert int(info.iterations) <= 45  # without the periodic one: 84


def test_others_too():
    rng = np.random.default_rng(1)
    solved(
        co.Convolution(BLUR, (40, 40), boundary="zero", centered=True),
        rng.standard_normal((1600, 2)),
        2e-8,
    )
    uneven = rng.standard_normal((3, 2, 2))
    uneven[0, 0, 0] += 9
    solved(
        co.Convolution(uneven, (11, 12, 13), boundary="zero"),
        rng.standard_normal(11 * 12 * 13),
        2e-8,
    )
    # sparse elimination takes over where the iterations give up
    indefinite = LAPLACE - np.diag([0.0, 1.1, 0.0])
    solved(
        co.Convolution(indefinite, (40, 40), boundary="zero", centered=True),
        rng.standard_normal(1600),
        2e-8,
    )


def test_small_kernels_are_sparse_matrices():
    rng = np.random.default_rng(2)
    for size, grid, centered in (
        ((3, 3), (5, 6), True),
        ((2, 3), (4, 4), False),
        ((9, 2), (4, 5), True),
        ((2, 2, 3), (3, 4, 5), True),
    ):
        for batch in ((), (2,)):
            A = co.Convolution(
                rng.standard_normal((*batch, *size)), grid, boundary="zero", centered=centered
            )
            np.testing.assert_allclose(sparse_of_convolution(A).to_dense(), A.to_dense())
    A = co.Convolution(LAPLACE, (40, 40), boundary="zero", centered=True)
    assert co.explain(co.inv, A).rules[0] == "sparse_of_convolution"
    values = 2 - 2 * np.cos(np.pi * np.arange(1, 41) / 41)
    with forbid_dense(100 * 1600):
        x = rng.standard_normal(1600)
        np.testing.assert_allclose(A @ (co.inv(A) @ x), x, atol=1e-9)
        np.testing.assert_allclose(co.logdet(A), np.log(np.add.outer(values, values)).sum())


def test_the_periodic_one_is_the_nearest():
    rng = np.random.default_rng(3)
    A = co.Convolution(rng.standard_normal((3, 4)), (5, 6), boundary="zero", centered=True)
    M, C = A.to_dense().reshape(5, 6, 5, 6), fast_form(A).to_dense()
    first = np.zeros((5, 6))  # the mean of M over each of its periodic diagonals
    for i, j, k, l in np.ndindex(M.shape):
        first[(i - k) % 5, (j - l) % 6] += M[i, j, k, l] / 30
    np.testing.assert_allclose(C[:, 0].reshape(5, 6), first, atol=1e-14)


def test_products_with_large_kernels_are_few_transforms():
    A = co.Convolution(np.ones((40, 40)), (64, 64), boundary="zero")
    with forbid_dense(10 * 64 * 64):
        y = A @ np.ones(64 * 64)
    assert y[-1] == pytest.approx(1600) and A.flops < 1e7  # 2 * 40^2 * 64^2 = 1.3e7 by sums
