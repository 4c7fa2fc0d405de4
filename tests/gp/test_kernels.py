"""Covariances of the distance are their formulas in every framework, and carry the profile that products are fused by."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import colinear as co
from colinear import gp
from colinear.errors import ShapeError

FRAMEWORKS = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}


def squares(X, Y, lengths):
    return (((X[:, None] - Y) / lengths) ** 2).sum(-1)


FORMULAS = {
    "matern12": lambda X, Y, l, v: v * np.exp(-np.sqrt(squares(X, Y, l))),
    "rational_quadratic": lambda X, Y, l, v, a=1.7: v * (1 + squares(X, Y, l) / (2 * a)) ** -a,
    "periodic": lambda X, Y, l, v, p=1.7: (
        v * np.exp(-2 * (np.sin(np.pi * (X[:, None] - Y) / p) ** 2 / l**2).sum(-1))
    ),
}


def shape_of(name):
    return () if name == "matern12" else (1.7,)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", FORMULAS)
def test_covariances_are_their_formulas(framework, name, rng):
    X, Y = 3 + rng.normal(size=(6, 2)), 3 + rng.normal(size=(4, 2))
    length, variance = 0.8 if name == "periodic" else np.array([0.5, 2.0]), 1.3
    make, kernel = FRAMEWORKS[framework], getattr(gp, name)
    found = kernel(
        make(X),
        make(Y),
        make(length) if np.ndim(length) else length,
        variance,
        *shape_of(name),
    )
    np.testing.assert_allclose(found, FORMULAS[name](X, Y, length, variance), rtol=1e-10)


@pytest.mark.parametrize("name", ["matern12", "rational_quadratic", "periodic"])
def test_derivatives_are_those_of_differences(name, rng):
    X = torch.as_tensor(rng.normal(size=(5, 2))).requires_grad_()
    Y = torch.as_tensor(rng.normal(size=(4, 2))).requires_grad_()
    numbers = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.9, 1.2)]
    numbers += [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in shape_of(name)]
    assert torch.autograd.gradcheck(getattr(gp, name), (X, Y, *numbers))


def test_the_rational_quadratic_covariance_tends_to_the_gaussian_one(rng):
    X = rng.normal(size=(30, 3)).astype(np.float32)
    found = gp.rational_quadratic(X, alpha=1e6)
    np.testing.assert_allclose(found, gp.rbf(X), atol=1e-5)


def test_equal_points_have_distance_zero_where_the_profile_has_a_cusp(rng):
    X = (100 + rng.normal(size=(40, 12))).astype(np.float32)
    np.testing.assert_array_equal(np.diagonal(gp.matern12(X)), 1)
    slope = jax.grad(lambda X: gp.matern12(X).sum())(jnp.asarray(X))
    assert np.isfinite(slope).all()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_profile_of_ones_own_is_a_covariance(framework, rng):
    X, make = rng.normal(size=(7, 3)), FRAMEWORKS[framework]
    xp = {"numpy": np, "torch": torch, "jax": jnp}[framework]
    kernel = gp.radial(lambda q, a: xp.exp(-q / 2) * xp.cos(a * q))
    expected = 2 * np.exp(-squares(X, X, 1.5) / 2) * np.cos(0.3 * squares(X, X, 1.5))
    np.testing.assert_allclose(kernel(make(X), None, 1.5, 2.0, 0.3), expected, atol=1e-12)
    parameters = (make(np.array(1.5)), make(np.array(2.0)), make(np.array(0.3)))
    K = co.Kernel(kernel, make(X), parameters=parameters)
    np.testing.assert_allclose(K @ make(np.ones(7)), expected @ np.ones(7), atol=1e-12)


ALL = ["rbf", "matern12", "matern32", "matern52", "rational_quadratic", "periodic"]


@pytest.mark.parametrize("name", ALL)
def test_a_kernel_knows_its_diagonal_from_the_profile(name, rng):
    X = rng.normal(size=(20, 2))
    K = co.Kernel(getattr(gp, name), X, parameters=(np.array(0.7), np.array(1.9)))
    np.testing.assert_allclose(co.diag(K), 1.9)
    np.testing.assert_allclose(co.diag(K.T), 1.9)
    Y = rng.normal(size=(20, 2))
    K = co.Kernel(getattr(gp, name), X, Y, parameters=(np.array(0.7), np.array(1.9)))
    np.testing.assert_allclose(co.diag(K), np.diagonal(K.to_dense()))
    lengths = np.array([0.5, 1.0, 2.0])[:, None, None]  # a batch of parameters
    K = co.Kernel(getattr(gp, name), X, parameters=(lengths,))
    np.testing.assert_allclose(co.diag(K), np.ones((3, 20)))


def test_wrong_arguments_are_refused():
    X = np.zeros((3, 2))
    with pytest.raises(TypeError, match="function of squared distances"):
        gp.radial(3)
    with pytest.raises(ValueError, match="alpha is -1"):
        gp.rational_quadratic(X, alpha=-1)
    with pytest.raises(ValueError, match="period is 0"):
        gp.periodic(X, period=0)
    with pytest.raises(ValueError, match="length scale is -1"):
        gp.matern12(X, length=-1)
    with pytest.raises(ShapeError, match="coordinates"):
        gp.periodic(X, np.zeros((3, 1)))
