"""Gaussian processes: the likelihood, predictions and samples are those of the dense formulas, and structure is used."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import torch

import colinear as co
from colinear import gp
from colinear.testing import forbid_dense

FRAMEWORKS = {"numpy": np.asarray, "torch": torch.as_tensor, "jax": jnp.asarray}


def points(rng, n=12, d=2):
    return rng.standard_normal((n, d))


def structures(rng):
    """Covariances of 12 observations, noise included, with those of 6 new values, without; and the rule that the solve must take."""
    X, Z = points(rng, 4), points(rng, 2)
    T = np.array([[2.0, 0.5, 0.1], [0.5, 1.0, 0.3], [0.1, 0.3, 1.5]])
    noise = 0.1 * co.Identity(12)
    old, new = (co.Kronecker(co.PSD(T), co.PSD(gp.rbf(P))) for P in (X, Z))
    yield "inv_shifted_kronecker", old + noise, co.Kronecker(T, gp.rbf(X, Z)), new
    U, V = points(rng, 12, 3), points(rng, 6, 3)
    yield (
        "woodbury",
        co.LowRank(U) + co.Diagonal(rng.uniform(0.1, 0.2, 12)),
        co.LowRank(U, V),
        co.LowRank(V),
    )


def dense_structure(rng):
    X, Z = points(rng), points(rng, 6)
    return co.PSD(gp.rbf(X)) + 0.1 * co.Identity(12), co.Dense(gp.rbf(X, Z)), co.PSD(gp.rbf(Z))


# ---------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_kernels_are_their_formulas_in_every_framework(framework, rng):
    X, Y, lengths = 3 + points(rng, 5), 3 + points(rng, 4), np.array([0.5, 2.0])
    make = FRAMEWORKS[framework]
    r = np.sqrt((((X[:, None] - Y) / lengths) ** 2).sum(-1))
    a, b = np.sqrt(3) * r, np.sqrt(5) * r
    expected = {
        gp.rbf: np.exp(-(r**2) / 2),
        gp.matern32: (1 + a) * np.exp(-a),
        gp.matern52: (1 + b + b**2 / 3) * np.exp(-b),
    }
    for kernel, values in expected.items():
        kernel = jax.jit(kernel) if framework == "jax" else kernel
        np.testing.assert_allclose(
            np.asarray(kernel(make(X), make(Y), make(lengths), 1.5)), 1.5 * values, atol=1e-14
        )
        np.testing.assert_allclose(np.diagonal(np.asarray(kernel(make(X)))), 1, atol=1e-14)
        batched = kernel(make(np.stack([X, X + 1])), make(Y), make(lengths))
        assert tuple(batched.shape) == (2, 5, 4)
        np.testing.assert_allclose(np.asarray(batched)[0], values, atol=1e-14)
        assert (
            kernel(make(X.astype(np.float32)), length=0.5).dtype == make(X.astype(np.float32)).dtype
        )


@pytest.mark.parametrize(
    ("kernel", "curvature"), [(gp.rbf, 1.0), (gp.matern32, 3.0), (gp.matern52, 5 / 3)]
)
def test_kernels_have_their_derivatives_where_points_coincide(kernel, curvature):
    x = jnp.array([0.3, -0.2])

    def k(y):
        return kernel(x[None], y[None])[0, 0]

    slope, bend = jax.jit(lambda y: (jax.grad(k)(y), jax.hessian(k)(y)))(x)
    np.testing.assert_allclose(slope, 0, atol=1e-12)
    np.testing.assert_allclose(bend, -curvature * np.eye(2), atol=1e-6)


def test_a_kernel_serves_the_matrix_free_operator_too(rng):
    X = points(rng)
    K = co.Kernel(gp.matern52, X, parameters=(np.array(0.7), np.array(2.0)), block=5)
    np.testing.assert_allclose(K.to_dense(), gp.matern52(X, X, 0.7, 2.0), atol=1e-14)


def test_kernels_refuse_what_they_cannot_mean(rng):
    with pytest.raises(co.ShapeError, match=r"x\[:, None\]"):
        gp.rbf(np.ones(3))
    with pytest.raises(co.ShapeError, match="2 coordinates, those of Y 3"):
        gp.rbf(np.ones((4, 2)), np.ones((4, 3)))
    with pytest.raises(ValueError, match="must be positive"):
        gp.matern32(np.ones((4, 2)), length=0.0)
    with pytest.raises(co.DtypeError, match="complex"):
        gp.rbf(np.ones((4, 2), complex))


# ---------------------------------------------------------------------------------------------------- likelihood


def log_density(K, y, mean=0.0):
    return scipy.stats.multivariate_normal.logpdf(y, np.full(len(y), mean), K.to_dense())


def test_the_likelihood_is_that_of_the_normal_distribution(rng):
    y = rng.standard_normal(12)
    for K in (dense_structure(rng)[0], *(K for _, K, _, _ in structures(rng))):
        assert float(gp.log_marginal_likelihood(K, y, mean=0.5)) == pytest.approx(
            log_density(K, y, 0.5), abs=1e-10
        )
        columns = gp.log_marginal_likelihood(K, np.stack([y, 2 * y], axis=1))
        np.testing.assert_allclose(columns, [log_density(K, y), log_density(K, 2 * y)], atol=1e-10)


def test_the_likelihood_of_structured_covariances_never_forms_them(rng):
    for rule, K, _, _ in structures(rng):
        assert rule in co.explain(gp.log_marginal_likelihood, K).rules
        with forbid_dense(100):
            gp.log_marginal_likelihood(K, np.ones(12))


def test_the_likelihood_of_a_large_structured_covariance_is_exact(rng):
    # 12 GB as a matrix; an estimate would warn
    U, y = (points(rng, 40_000, 2), rng.standard_normal(40_000))
    inner = np.eye(2) + U.T @ U / 0.1
    quadratic = (y @ y - (U.T @ y) @ np.linalg.solve(inner, U.T @ y) / 0.1) / 0.1
    expected = -(quadratic + 40_000 * np.log(0.2 * np.pi) + np.linalg.slogdet(inner)[1]) / 2
    assert float(
        gp.log_marginal_likelihood(co.LowRank(U) + 0.1 * co.Identity(40_000), y)
    ) == pytest.approx(expected, rel=1e-10)


def test_the_plan_without_structure_is_the_one_factorisation_that_is_made(rng):
    X = points(rng, 2000)
    for K in (co.PSD(np.eye(2000)), co.Kernel(gp.rbf, X)):  # where solve alone would iterate
        plan = co.explain(gp.log_marginal_likelihood, K + 0.1 * co.Identity(2000))
        assert plan.rules[2:] == ["Cholesky"]


def test_a_batch_of_covariances_gives_a_batch_of_likelihoods(rng):
    X, y = points(rng), rng.standard_normal(12)
    stack = np.stack([gp.rbf(X, length=length) + 0.1 * np.eye(12) for length in (0.5, 2.0)])
    expected = [log_density(co.Dense(K), y) for K in stack]
    np.testing.assert_allclose(gp.log_marginal_likelihood(stack, y), expected, atol=1e-10)


def test_the_likelihood_differentiates_in_torch_and_jax_alike(rng):
    X, y, theta = points(rng), rng.standard_normal(12), np.log([0.8, 1.5, 0.2])

    def likelihood(theta, X, y, exp):
        length, variance, noise = exp(theta)
        return gp.log_marginal_likelihood(
            co.PSD(gp.matern32(X, None, length, variance)) + noise * co.Identity(12), y, 0.3
        )

    gradients = jax.jit(jax.grad(lambda *given: likelihood(*given, jnp.exp), argnums=(0, 1, 2)))(
        theta, X, y
    )
    leaves = [torch.tensor(a, requires_grad=True) for a in (theta, X, y)]
    likelihood(*leaves, torch.exp).backward()
    for ours, theirs in zip(gradients, leaves, strict=True):
        np.testing.assert_allclose(ours, theirs.grad, rtol=1e-9, atol=1e-10)
    for i, step in enumerate(1e-6 * np.eye(3)):
        difference = likelihood(theta + step, X, y, np.exp) - likelihood(theta - step, X, y, np.exp)
        assert float(gradients[0][i]) == pytest.approx(difference / 2e-6, rel=1e-6)


def test_the_likelihood_differentiates_where_eigenvalues_repeat(rng):
    """Of a Kronecker product with noise, by the eigenvectors of its factors, which have no derivative there."""
    given = (
        points(rng, 5),
        np.array([0.7, 0.1]),
        np.diag([2.0, 1.0, 1.0, 1.0]),
        rng.standard_normal(20),
    )

    def likelihood(X, theta, task, y, dense=False):
        K = co.Kronecker(co.PSD(task), co.PSD(gp.rbf(X, None, theta[0]))) + theta[1] * co.Identity(
            20
        )
        return gp.log_marginal_likelihood(K.to_dense() if dense else K, y)

    def gradients(dense):
        leaves = [torch.tensor(a, requires_grad=True) for a in given]
        likelihood(*leaves, dense=dense).backward()
        return [leaf.grad.numpy() for leaf in leaves]

    expected = gradients(dense=True)
    compiled = jax.jit(jax.grad(likelihood, argnums=(0, 1, 2, 3)))(*map(jnp.asarray, given))
    for found in (gradients(dense=False), compiled):
        for ours, theirs in zip(found, expected, strict=True):
            if ours.shape == (4, 4):  # only symmetric changes of a covariance have a meaning
                ours, theirs = ours + ours.T, theirs + theirs.T
            np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)
    X, theta, task, y = map(torch.tensor, given)
    second = [
        torch.func.hessian(lambda theta, d=dense: likelihood(X, theta, task, y, dense=d))(theta)
        for dense in (True, False)
    ]
    np.testing.assert_allclose(second[0], second[1], rtol=1e-7)


def test_predictions_differentiate_where_eigenvalues_repeat(rng):
    task, X, K_star, y = (
        np.diag([2.0, 1.0, 1.0]),
        points(rng, 4),
        rng.standard_normal((12, 2)),
        rng.standard_normal(12),
    )

    def gradients(dense):
        leaf = torch.tensor(task, requires_grad=True)
        K = co.Kronecker(co.PSD(leaf), co.PSD(gp.rbf(torch.tensor(X)))) + 0.5 * co.Identity(12)
        found = gp.posterior(
            K.to_dense() if dense else K,
            torch.tensor(K_star),
            50 * torch.eye(2, dtype=torch.float64),
            torch.tensor(y),
        )
        (found.mean.sum() + found.variance.sum()).backward()
        return leaf.grad + leaf.grad.T

    torch.testing.assert_close(gradients(dense=False), gradients(dense=True))


def test_an_indefinite_covariance_is_a_failure_and_no_likelihood():
    # y^T K^-1 y > 0: Cholesky alone sees it
    K, y = (np.diag([1.0, -1.0, 2.0]), np.array([2.0, 0.1, 0.1]))
    with pytest.warns(co.ConvergenceWarning, match=r"NOT_POSITIVE_DEFINITE.*add noise"):
        gp.log_marginal_likelihood(K, y)
    _, info = gp.log_marginal_likelihood(K, y, info=True)
    assert info.status == co.Status.NOT_POSITIVE_DEFINITE


def test_observations_that_do_not_fit_are_refused():
    with pytest.raises(co.ShapeError, match=r"3x3 and y has the shape \(4,\)"):
        gp.log_marginal_likelihood(np.eye(3), np.ones(4))
    with pytest.raises(co.ShapeError, match="square"):
        gp.log_marginal_likelihood(np.ones((3, 4)), np.ones(3))
    with pytest.raises(co.DtypeError, match="complex128"):
        gp.log_marginal_likelihood(np.eye(3) * 1j, np.ones(3))
    with pytest.raises(co.BackendError, match="of numpy"):
        gp.log_marginal_likelihood(np.eye(3), torch.ones(3))


def test_integers_and_numbers_keep_the_precision_of_the_covariance():
    expected = log_density(co.Identity(2), [1.0, 2.0], 0.3)
    # torch takes Python numbers for float32, in which 0.3 is another number
    for y in ([1, 2], torch.tensor([1, 2])):
        found = gp.log_marginal_likelihood(torch.eye(2, dtype=torch.float64), y, mean=0.3)
        assert float(found) == pytest.approx(expected, abs=1e-12)


# ---------------------------------------------------------------------------------------------------- posterior


def test_the_posterior_is_that_of_the_dense_formulas(rng):
    y = rng.standard_normal(12)
    for K, cross, new in (dense_structure(rng), *(rest for _, *rest in structures(rng))):
        found = gp.posterior(K, cross, new, y, mean=0.2, mean_star=0.1)
        weights = np.linalg.solve(K.to_dense(), cross.to_dense())
        covariance = new.to_dense() - cross.to_dense().T @ weights
        np.testing.assert_allclose(found.mean, 0.1 + weights.T @ (y - 0.2), atol=1e-10)
        np.testing.assert_allclose(found.covariance.to_dense(), covariance, atol=1e-10)
        np.testing.assert_allclose(found.variance, np.diagonal(covariance), atol=1e-10)
        assert gp.posterior(K, cross, new, np.stack([y, y], axis=1)).mean.shape == (6, 2)


def test_the_variances_of_structured_covariances_never_form_them(rng):
    for _, K, cross, new in structures(rng):
        with forbid_dense(100):
            assert gp.posterior(K, cross, new, np.ones(12)).variance.shape == (6,)


def test_variances_are_never_negative():
    X = np.linspace(0, 1, 30)[:, None]
    # the variances are below the rounding of their terms
    K = gp.rbf(X, length=2.0) + 1e-13 * np.eye(30)
    assert gp.posterior(K, K, K, X[:, 0]).variance.min() >= 0


def test_a_matrix_that_is_no_covariance_predicts_nothing():
    with pytest.warns(co.ConvergenceWarning, match="NOT_POSITIVE_DEFINITE"):
        found = gp.posterior(np.diag([1.0, -1.0]), np.ones((2, 1)), np.ones((1, 1)), np.ones(2))
    assert np.isnan(found.mean).all()


def test_the_posterior_passes_through_jit_and_agrees_with_torch(rng):
    X, Z, y = points(rng), points(rng, 3), rng.standard_normal(12)

    def predict(X, Z, y):
        K = co.PSD(gp.rbf(X)) + 0.1 * co.Identity(12)
        return gp.posterior(K, gp.rbf(X, Z), gp.rbf(Z), y)

    expected = predict(X, Z, y)
    compiled = jax.jit(predict)(*map(jnp.asarray, (X, Z, y)))
    in_torch = predict(*map(torch.as_tensor, (X, Z, y)))
    for found in (compiled, in_torch):
        np.testing.assert_allclose(found.mean, expected.mean, atol=1e-12)
        np.testing.assert_allclose(found.variance, expected.variance, atol=1e-12)


def test_predicted_means_differentiate_where_eigenvalues_repeat(rng):
    given = points(rng, 4), points(rng, 2)

    def total(X, Z, dense):
        K = co.Kronecker(
            co.PSD(torch.eye(3, dtype=torch.float64)), co.PSD(gp.rbf(X))
        ) + 0.1 * co.Identity(12)
        cross = co.Kronecker(torch.eye(3, dtype=torch.float64), gp.rbf(X, Z))
        K, cross = (co.as_operator(A.to_dense()) if dense else A for A in (K, cross))
        return (
            gp.posterior(K, cross, co.Identity(6), torch.arange(12.0, dtype=torch.float64))
            .mean.square()
            .sum()
        )

    gradients = []
    for dense in (False, True):
        leaves = [torch.tensor(a, requires_grad=True) for a in given]
        total(*leaves, dense).backward()
        gradients.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_batch_of_parameters_by_vmap(rng):
    X, y = points(rng), rng.standard_normal(12)

    def likelihood(length, X, y):
        return gp.log_marginal_likelihood(
            co.PSD(gp.rbf(X, None, length)) + 0.1 * co.Identity(12), y
        )

    lengths = [0.5, 1.0, 2.0]
    expected = [float(likelihood(length, X, y)) for length in lengths]
    mapped = jax.jit(jax.vmap(likelihood, in_axes=(0, None, None)))(jnp.array(lengths), X, y)
    np.testing.assert_allclose(mapped, expected, rtol=1e-10)
    leaf = torch.tensor(lengths, dtype=torch.float64)
    in_torch = torch.func.vmap(likelihood, in_dims=(0, None, None))(
        leaf, torch.tensor(X), torch.tensor(y)
    )
    np.testing.assert_allclose(in_torch, expected, rtol=1e-10)


def test_single_precision_stays_single(rng):
    X, y = points(rng).astype(np.float32), rng.standard_normal(12).astype(np.float32)
    K = co.PSD(gp.matern52(X, length=0.7)) + 0.1 * co.Identity(12)
    found = gp.posterior(K, gp.matern52(X, X[:3], 0.7), gp.matern52(X[:3], length=0.7), y)
    given = (
        gp.log_marginal_likelihood(K, y),
        found.mean,
        found.variance,
        found.sample(),
        gp.sample(K, 2),
    )
    assert {np.asarray(x).dtype for x in given} == {np.dtype(np.float32)}


def test_a_transposed_cross_covariance_is_refused_with_the_remedy(rng):
    K, cross, new = dense_structure(rng)
    with pytest.raises(co.ShapeError, match=r"must be 12x6.*Give its transpose"):
        gp.posterior(K, cross.T, new, np.ones(12))


# ---------------------------------------------------------------------------------------------------- samples


def test_roots_multiply_to_the_covariance_and_keep_its_structure(rng):
    cases = [
        *(
            (K, rules)
            for (_, K, _, _), rules in zip(
                structures(rng), ("root_of_kronecker", "root_of_low_rank"), strict=True
            )
        ),
        (co.BlockDiag(co.PSD(np.eye(2) + 1), co.LowRank(points(rng, 4, 1))), "root_of_blocks"),
    ]
    for K, rule in cases:
        assert rule in co.explain(gp.covariance_root, K).rules
        with forbid_dense(K.shape[-1] ** 2 - 1):
            R = gp.covariance_root(K)
        np.testing.assert_allclose((R @ R.H).to_dense(), K.to_dense(), atol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_samples_have_the_covariance_and_repeat_with_their_seed(framework):
    make = FRAMEWORKS[framework]
    K = co.PSD(co.Dense(make(np.array([[1.0, 0.8], [0.8, 1.0]])))) + 0.1 * co.Identity(2)
    drawn = np.asarray(gp.sample(K, 20_000, seed=3, mean=make(np.array([[1.0], [2.0]]))))
    np.testing.assert_allclose(np.cov(drawn), K.to_dense(), atol=0.04)
    np.testing.assert_allclose(drawn.mean(axis=1), [1, 2], atol=0.04)
    np.testing.assert_array_equal(
        np.asarray(gp.sample(K, seed=5)), np.asarray(gp.sample(K, seed=5))
    )
    assert gp.sample(K).shape == (2,)


def test_singular_covariances_and_posteriors_can_be_sampled(rng):
    K, cross, new = dense_structure(rng)
    found = gp.posterior(K, cross, new, np.ones(12))
    drawn = found.sample(4000, seed=1)
    np.testing.assert_allclose(np.cov(drawn), found.covariance.to_dense(), atol=0.06)
    assert found.sample().shape == (6,)
    flat = gp.sample(co.PSD(np.ones((3, 3))), 5)  # rank one: all values the same
    np.testing.assert_allclose(flat - flat[0], 0, atol=1e-7)
    with pytest.raises(TypeError, match="seed is None"):
        gp.sample(new, seed=None)
