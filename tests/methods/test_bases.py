"""Bases stay orthonormal and their coefficients right, though norms come of squares already known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from colinear import backends
from colinear.methods.basis import extend, orthogonalise_to_first

ROWS, N = 6, 50
EPS = 2.0**-52


def basis(framework: str, is_complex: bool) -> tuple[Any, np.ndarray, np.ndarray]:
    """A basis of so many rows and room for one more, and a unit vector outside."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, ROWS + 1)) + is_complex * 1j * rng.normal(size=(N, ROWS + 1))
    Q = np.linalg.qr(X)[0].T
    return backends.get(framework), np.r_[Q[:ROWS], np.zeros((1, N))], Q[ROWS]


@pytest.mark.parametrize("is_complex", [False, True], ids=["real", "complex"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("outside", [1.0, 1e-3, 1e-7, 1e-11])
@pytest.mark.parametrize("is_far", [False, True])
def test_the_norm_of_what_is_left_is_right_however_little_that_is(
    framework: str, outside: float, is_far: bool, is_complex: bool
) -> None:
    xp, V, v = basis(framework, is_complex)
    inside = np.arange(1.0, ROWS + 1) if is_far else outside * np.full(ROWS, 0.5)
    w = inside @ V[:ROWS] + outside * v
    random = lambda: pytest.fail("nothing was lost")
    if framework == "jax":  # which traces the branch that is not taken
        random = lambda: xp.asarray(v)
    h, length, found, _, size = extend(
        xp, xp.asarray(V), None, xp.asarray(w), ROWS, xp.asarray(1e-6), random, is_far=is_far
    )
    np.testing.assert_allclose(xp.to_numpy(h)[:ROWS], inside, rtol=1e-12, atol=20 * EPS)
    rounding = 100 * EPS * np.linalg.norm(inside) / outside
    np.testing.assert_allclose(float(length), outside, rtol=rounding + 10 * EPS)
    found = xp.to_numpy(found)
    np.testing.assert_allclose(np.linalg.norm(found), 1, rtol=10 * EPS)
    most = 20 * EPS if is_far else rounding + 20 * EPS
    assert np.abs(V.conj() @ found).max() < most
    assert float(size) == pytest.approx(np.linalg.norm(w) if is_far else 1e-6)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_vector_in_the_span_gives_way_to_a_random_one(framework: str) -> None:
    xp, V, v = basis(framework, False)
    w = np.arange(1.0, ROWS + 1) @ V[:ROWS]
    random = lambda: xp.asarray(v + 3 * V[0])
    _, length, found, *_ = extend(
        xp, xp.asarray(V), None, xp.asarray(w), ROWS, xp.asarray(1.0), random, is_far=True
    )
    assert float(length) == 0
    np.testing.assert_allclose(abs(xp.to_numpy(found) @ v), 1, rtol=1e-14)


@pytest.mark.parametrize("passes", [1, 2])
def test_lanes_of_which_some_lose_most_are_told_apart(passes: int) -> None:
    xp, V, v = basis("numpy", False)
    W = np.stack([v, V[0] + 1e-8 * v, V[0] + v])
    rest, h, square, left = orthogonalise_to_first(xp, np.stack([V] * 3), ROWS, W, passes=passes)
    np.testing.assert_allclose(square, [1, 1, 2], rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(rest, axis=-1), [1, 1e-8, 1], rtol=1e-6)
    # one pass took almost all of the second one, the second pass of it nothing
    np.testing.assert_allclose(left, [1, 1e-16 if passes == 2 else 0, 1], rtol=1e-6)
    np.testing.assert_allclose(h[:, 0], [0, 1, 1], atol=1e-14)
