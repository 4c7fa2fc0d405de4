"""The estimators pass scikit-learn's own checks, agree with its estimators, and take operators without forming them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

pytest.importorskip(
    "sklearn", reason="the estimators need scikit-learn: pip install 'colinear[sklearn]'"
)

import sklearn.decomposition
import sklearn.linear_model
import sklearn.manifold
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

import colinear as co
from colinear.estimators import PCA, Ridge, SpectralEmbedding
from colinear.testing import count_matvecs, forbid_dense


# A tenth of the few samples of a check are too few neighbours to connect them; scikit-learn's embedding warns there too.
@pytest.mark.filterwarnings("ignore:SpectralEmbedding. the graph is not connected")
@parametrize_with_checks([PCA(n_components=1), Ridge(), SpectralEmbedding(n_components=1)])
def test_the_checks_of_scikit_learn_pass(estimator, check):
    check(estimator)


def forms(X):
    """The same data as an array, sparse, and as operators without and with structure."""
    return (
        X,
        sp.csr_array(X),
        co.opaque(co.Dense(X)),
        co.Diagonal(np.ones(len(X))) @ co.Sparse(sp.csr_array(X)),
    )


# ---------------------------------------------------------------------------------------------------- PCA


@pytest.mark.parametrize(("shape", "k"), [((40, 6), None), ((40, 6), 3), ((5, 12), 2)])
def test_principal_components_are_those_of_scikit_learn(shape, k, rng):
    X = rng.standard_normal(shape) * rng.uniform(0.1, 3, shape[1]) + 5
    theirs = sklearn.decomposition.PCA(k, svd_solver="full").fit(X)
    new = rng.standard_normal((7, shape[1]))
    for given in forms(X):
        ours = PCA(k).fit(given)
        # the last direction of centred wide data is arbitrary
        r = ours.n_components_ - (k is None and shape[0] <= shape[1])
        np.testing.assert_allclose(ours.components_[:r], theirs.components_[:r], atol=1e-8)
        np.testing.assert_allclose(ours.transform(new), theirs.transform(new), atol=1e-7)
        for name in (
            "explained_variance_",
            "explained_variance_ratio_",
            "singular_values_",
            "mean_",
            "noise_variance_",
        ):
            np.testing.assert_allclose(
                getattr(ours, name), getattr(theirs, name), atol=1e-8, err_msg=name
            )
        assert (ours.n_components_, ours.n_samples_) == (theirs.n_components_, theirs.n_samples_)


def test_small_components_are_as_accurate_as_those_of_a_singular_value_decomposition(rng):
    # squares of the last are below the rounding of those of the first
    X = rng.standard_normal((60, 4)) * [
        1,
        1e-2,
        1e-5,
        1e-7,
    ]
    theirs = sklearn.decomposition.PCA(svd_solver="full").fit(X)
    ours = PCA().fit(X)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-7)
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=1e-7)


def test_whitened_coordinates_have_unit_variance_and_can_be_inverted(rng):
    X = rng.standard_normal((50, 4)) @ rng.standard_normal((4, 4)) + 1
    model = PCA(whiten=True)
    scores = model.fit_transform(X)
    np.testing.assert_allclose(np.cov(scores.T), np.eye(4), atol=1e-10)
    np.testing.assert_allclose(model.inverse_transform(scores), X, atol=1e-10)


def test_components_of_a_structured_operator_never_form_it(rng):
    U, V = rng.standard_normal((2, 3000, 3))
    with forbid_dense(3000 * 60):
        model = PCA(2).fit(co.LowRank(U * [5, 2, 1], V))
    # a small one, for the signs and scales
    dense = sklearn.decomposition.PCA(2, svd_solver="full").fit(U[:200] * [5, 2, 1] @ V[:50].T)
    small = PCA(2).fit(co.LowRank(U[:200] * [5, 2, 1], V[:50]))
    np.testing.assert_allclose(small.components_, dense.components_, atol=1e-8)
    assert model.components_.shape == (2, 3000)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.99, 1 - 1e-12])
@pytest.mark.parametrize("shape", [(60, 8), (7, 20)])
def test_a_share_of_the_variance_gives_as_many_components_as_scikit_learn(share, shape, rng):
    X = rng.standard_normal(shape) * rng.uniform(0.1, 3, shape[1])
    theirs = sklearn.decomposition.PCA(share, svd_solver="full").fit(X)
    for given in forms(X):
        ours = PCA(n_components=share).fit(given)
        assert ours.n_components_ == theirs.n_components_
        np.testing.assert_allclose(ours.noise_variance_, theirs.noise_variance_, atol=1e-8)
        np.testing.assert_allclose(
            ours.explained_variance_ratio_, theirs.explained_variance_ratio_, atol=1e-8
        )


def test_data_without_variance_has_one_component_for_any_share():
    assert PCA(0.9).fit(np.ones((5, 3))).n_components_ == 1


@pytest.mark.parametrize("solver", ["full", "arpack", "randomized"])
def test_the_solvers_of_components_by_scikit_learns_names(solver, rng):
    X = rng.standard_normal((60, 20)) * np.logspace(0, -3, 20)
    theirs = sklearn.decomposition.PCA(3, svd_solver=solver, random_state=1).fit(X)
    ours = PCA(3, svd_solver=solver, random_state=1).fit(X)
    np.testing.assert_allclose(ours.components_, theirs.components_, atol=2e-3)
    np.testing.assert_allclose(ours.singular_values_, theirs.singular_values_, rtol=1e-3)
    again = PCA(3, svd_solver=solver, random_state=1).fit(X)
    np.testing.assert_array_equal(ours.components_, again.components_)
    PCA(3, svd_solver=solver, random_state=np.random.RandomState(3)).fit(X)


# ---------------------------------------------------------------------------------------------------- ridge


@pytest.mark.parametrize("shape", [(40, 6), (8, 30)])
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_coefficients_are_those_of_scikit_learn(shape, intercept, rng):
    X, Y, weights = (
        rng.standard_normal(shape) + 1,
        rng.standard_normal((shape[0], 2)) + 3,
        rng.uniform(0.5, 2, shape[0]),
    )
    for y in (Y[:, 0], Y):
        for w in (None, weights):
            theirs = sklearn.linear_model.Ridge(0.3, fit_intercept=intercept, solver="svd").fit(
                X, y, w
            )
            for given in forms(X):
                ours = Ridge(0.3, fit_intercept=intercept).fit(given, y, w)
                np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
                np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-7)
                np.testing.assert_allclose(ours.predict(given), theirs.predict(X), atol=1e-6)


@pytest.mark.parametrize("alpha", [[0.1, 3.0, 0.1], np.array([2.0]), np.float32(0.5), 2])
@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_has_a_penalty_for_each_target_as_scikit_learn(alpha, intercept, rng):
    X, Y = rng.standard_normal((40, 6)) + 1, rng.standard_normal((40, 3)) + 3
    weights = rng.uniform(0.5, 2, 40)
    given = np.asarray(alpha, float) if isinstance(alpha, list) else alpha
    theirs = sklearn.linear_model.Ridge(given, fit_intercept=intercept, solver="svd").fit(
        X, Y, weights
    )
    for form in forms(X):
        ours = Ridge(alpha, fit_intercept=intercept).fit(form, Y, weights)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-7)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-7)


@pytest.mark.parametrize("solver", ["auto", "cholesky", "svd", "lsqr", "sparse_cg"])
@pytest.mark.parametrize("shape", [(40, 6), (8, 30)])
def test_the_solvers_of_ridge_by_scikit_learns_names(solver, shape, rng):
    X, Y = rng.standard_normal(shape), rng.standard_normal((shape[0], 2))
    options = {"solver": solver, "tol": 1e-10, "max_iter": 500, "random_state": 0}
    theirs = sklearn.linear_model.Ridge(0.3, **options).fit(X, Y)
    for alpha in (0.3, [0.3, 0.3], [0.3, 0.5]):
        ours = Ridge(alpha, **options).fit(X, Y)
        np.testing.assert_allclose(ours.coef_[0], theirs.coef_[0], atol=1e-6)
        assert "solver" in ours.get_params()


def test_an_iteration_that_ends_too_early_warns_and_is_counted(rng):
    X, y = rng.standard_normal((40, 30)), rng.standard_normal(40)
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        assert Ridge(1e-6, solver="sparse_cg", max_iter=3).fit(X, y).n_iter_ == 3
    assert Ridge().fit(X, y).n_iter_ == 1


@pytest.mark.parametrize("solver", ["cholesky", "svd", "lsqr", "sparse_cg"])
def test_every_solver_of_ridge_without_a_penalty_is_least_squares(solver, rng):
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    theirs = sklearn.linear_model.LinearRegression().fit(X, y)
    ours = Ridge(alpha=0, solver=solver, tol=1e-12).fit(X, y)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-8)


def test_ridge_without_a_penalty_is_least_squares(rng):
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    theirs = sklearn.linear_model.LinearRegression().fit(X, y)
    np.testing.assert_allclose(Ridge(alpha=0).fit(X, y).coef_, theirs.coef_, atol=1e-10)


def test_ridge_takes_the_method_it_is_given(rng):
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    direct, iterated = (
        Ridge().fit(X, y),
        Ridge(method=co.CG(tol=1e-10)).fit(co.opaque(co.Dense(X)), y),
    )
    np.testing.assert_allclose(direct.coef_, iterated.coef_, atol=1e-8)


def test_ridge_on_sparse_data_takes_few_products(rng):
    """Not one for each feature, as to form the normal equations, or to have their diagonal for a preconditioner."""
    X = sp.random_array((4000, 1500), density=0.01, rng=0, format="csr")
    with count_matvecs() as counter:
        Ridge(1.0).fit(X, rng.standard_normal(4000))
    assert counter.matvecs < 1000, counter


# ---------------------------------------------------------------------------------------------------- embedding


def blobs(rng):
    return np.concatenate([rng.standard_normal((20, 2)) + shift for shift in (0, 3)])


@pytest.mark.parametrize("affinity", ["nearest_neighbors", "rbf"])
def test_the_embedding_is_that_of_scikit_learn(affinity, rng):
    X = blobs(rng)
    options = {"affinity": affinity, "n_neighbors": 12}
    theirs = sklearn.manifold.SpectralEmbedding(2, random_state=0, **options).fit_transform(X)
    ours = SpectralEmbedding(2, **options).fit_transform(X)
    np.testing.assert_allclose(ours, theirs, atol=1e-7)


@pytest.mark.parametrize("solver", ["arpack", "lobpcg", "amg"])
def test_the_solvers_of_the_embedding_by_scikit_learns_names(solver, rng):
    if solver == "amg":
        pytest.importorskip("pyamg")
    X = np.concatenate([blobs(rng)] * 3) + 0.1 * rng.standard_normal((120, 2))
    options = {"affinity": "rbf", "n_jobs": 1}
    theirs = SpectralEmbedding(2, **options).fit(X)
    ours = SpectralEmbedding(2, eigen_solver=solver, random_state=3, **options).fit(X)
    np.testing.assert_allclose(ours.eigenvalues_, theirs.eigenvalues_, atol=1e-6)
    np.testing.assert_allclose(ours.embedding_, theirs.embedding_, atol=1e-4)


def test_precomputed_affinities_may_be_a_matrix_or_any_operator(rng):
    X = blobs(rng)

    def affinity(X, Y):
        return np.exp(-((X[:, None] - Y) ** 2).sum(-1) / 4)

    W = affinity(X, X)
    theirs = sklearn.manifold.SpectralEmbedding(
        2, affinity="precomputed", random_state=0
    ).fit_transform(W)
    for given in (W, sp.csr_array(W), co.Kernel(affinity, X), co.opaque(co.Dense(W))):
        model = SpectralEmbedding(2, affinity="precomputed").fit(given)
        np.testing.assert_allclose(model.embedding_, theirs, atol=1e-6)
        assert abs(model.eigenvalues_[0]) < 1e-8


def test_parts_that_are_not_connected_are_announced():
    W = co.BlockDiag(co.Dense(np.ones((5, 5))), co.Dense(np.ones((5, 5))))
    with pytest.warns(co.ColinearWarning, match="not connected"):
        SpectralEmbedding(1, affinity="precomputed").fit(W)


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("estimator", "X", "error", "message"),
    [
        (PCA(7), np.ones((4, 9)), ValueError, "an integer from 1 to 4"),
        (PCA(1.5), np.ones((4, 9)), ValueError, "n_components is 1.5.* a share of the variance"),
        (PCA(0.0), np.ones((4, 9)), ValueError, "n_components is 0.0"),
        (PCA("mle"), np.ones((4, 9)), ValueError, "n_components is 'mle'"),
        (PCA(2, svd_solver="magic"), np.ones((4, 9)), ValueError, "'full', 'arpack', 'randomized'"),
        (
            PCA(2, svd_solver="full", method=co.SVD()),
            np.ones((4, 9)),
            ValueError,
            "Leave the other",
        ),
        (Ridge(solver="saga"), np.ones((4, 2)), ValueError, "solver is 'saga'; .* 'sparse_cg'"),
        (Ridge([1.0, 2.0]), np.ones((4, 2)), ValueError, "2 penalties, and y has 1 targets"),
        (Ridge("strong"), np.ones((4, 2)), ValueError, "one for each target"),
        (Ridge([[1.0]]), np.ones((4, 2)), ValueError, "one for each target"),
        (
            SpectralEmbedding(1, eigen_solver="arnoldi"),
            np.ones((4, 2)),
            ValueError,
            "'lobpcg', 'amg'",
        ),
        (PCA(), co.Dense(torch.ones(4, 2)), co.BackendError, "operator of torch"),
        (PCA(), co.Dense(np.ones((4, 2), complex)), co.DtypeError, "complex"),
        (PCA(), co.Dense(np.ones((3, 4, 2))), co.ShapeError, "without batch dimensions"),
        (Ridge(-1.0), np.ones((4, 2)), ValueError, "not negative"),
        (Ridge(), co.Dense(np.ones((5, 2))), ValueError, "inconsistent numbers of samples"),
        (SpectralEmbedding(affinity="cosine"), np.ones((4, 2)), ValueError, "nearest_neighbors"),
        (SpectralEmbedding(), co.Dense(np.ones((4, 2))), TypeError, "precomputed"),
        (
            SpectralEmbedding(affinity="precomputed"),
            np.ones((4, 2)),
            co.ShapeError,
            "must be square",
        ),
        (SpectralEmbedding(4), np.ones((4, 2)), ValueError, "from 1 to 3"),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(estimator, X, error, message):
    with pytest.raises(error, match=message):
        estimator.fit(X, np.ones(4))


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("colinear.estimators")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"colinear\[sklearn\]"):
        importlib.import_module("colinear.estimators")


def test_where_scikit_learn_was_never_imported_the_error_says_the_same():
    code = "import sys; sys.modules['sklearn'] = None; import colinear.estimators"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install 'colinear[sklearn]'" in done.stderr


def test_operators_of_another_width_are_refused(rng):
    model = PCA(1).fit(rng.standard_normal((5, 3)))
    with pytest.raises(ValueError, match="X has 4 features"):
        model.transform(co.Dense(np.ones((2, 4))))


# ---------------------------------------------------------------------------------------------------- tables with names


class Frame:
    """A table with names, as pandas has them."""

    def __init__(self, values, names):
        self.values, self.names, self.shape = values, names, values.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __len__(self):
        return len(self.values)


@pytest.mark.parametrize(
    "make",
    [Ridge, lambda: PCA(n_components=1), lambda: SpectralEmbedding(n_components=1, affinity="rbf")],
)
def test_names_of_features_are_kept_without_a_warning(make, monkeypatch):
    names = lambda X: np.array(X.names, dtype=object) if isinstance(X, Frame) else None
    monkeypatch.setattr("sklearn.utils.validation._get_feature_names", names)
    X = Frame(np.random.default_rng(0).standard_normal((12, 2)), ["height", "width"])
    model = make().fit(X, np.arange(12.0))
    assert list(model.feature_names_in_) == ["height", "width"]
    if hasattr(model, "predict"):
        model.predict(X)
