"""Random trees of operators against the matrices they stand for: what no one thought of writing down."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from support.registry import BACKENDS

import colinear as co
from colinear.testing import check_operator, operators

EXAMPLES = {"numpy": 300, "torch": 100, "jax": 5}  # each new shape is compiled in JAX
DTYPES = ("float64", "complex128")


def host(A):
    x = A.to_dense() if isinstance(A, co.LinearOperator) else A
    xp = co.backends.namespace_of(x)
    return np.asarray(x if xp is None else xp.to_numpy(x))


def size(dense):
    return max(1.0, np.abs(dense).max())


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_tree_is_its_matrix(backend):
    @settings(max_examples=EXAMPLES[backend])
    @given(operators(backend=backend, dtype=DTYPES, depth=3))
    def check(pair):
        check_operator(*pair, tol=1e-10)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_solve_of_random_tree_has_the_residual_it_reports(backend):
    @settings(max_examples=EXAMPLES[backend])
    @given(operators(backend=backend, dtype=DTYPES, depth=3, square=True))
    def check(pair):
        A, dense = pair
        b = np.cos(np.arange(dense.shape[-1])).astype(host(A).dtype)
        x, info = co.solve(A, A.xp.asarray(b), info=True)
        x = host(x)
        if np.linalg.cond(dense) < 1e6:
            assert not info.failed, info
        if not info.failed:
            assert np.linalg.norm(dense @ x - b) <= 1e-6 * np.linalg.norm(b)
        elif np.linalg.cond(dense) > 1e14:
            assert info.failed or np.allclose(dense @ x, b)

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalars_of_random_tree_are_those_of_its_matrix(backend):
    @settings(max_examples=EXAMPLES[backend])
    @given(operators(backend=backend, dtype=DTYPES, depth=3, square=True))
    def check(pair):
        A, dense = pair
        n, scale = dense.shape[-1], size(dense)
        assert np.allclose(host(co.trace(A)), np.trace(dense), atol=1e-9 * n * scale)
        assert np.allclose(host(co.diag(A)), np.diagonal(dense), atol=1e-9 * scale)
        assert np.allclose(host(co.norm(A)), np.linalg.norm(dense), rtol=1e-9, atol=1e-9)
        volume = max(1.0, np.prod(np.linalg.norm(dense, axis=-1)))
        assert abs(host(co.det(A)) - np.linalg.det(dense)) <= 1e-8 * volume
        if np.linalg.cond(dense) < 1e8:
            sign, logarithm = co.slogdet(A)
            wanted = np.linalg.slogdet(dense)
            assert np.allclose(host(sign), wanted.sign, atol=1e-6) and np.allclose(
                host(logarithm), wanted.logabsdet, atol=1e-6
            )

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_eigenpairs_and_exponential_of_random_tree_are_those_of_its_matrix(backend):
    @settings(max_examples=max(5, EXAMPLES[backend] // 3))
    @given(operators(backend=backend, dtype=DTYPES, depth=2, square=True))
    def check(pair):
        A, dense = pair
        (values, vectors), _ = co.eig(A, info=True)
        w, V = host(values), host(vectors)
        assert np.allclose(dense @ V, V * w, atol=1e-7 * size(dense))
        if np.linalg.norm(dense, 2) < 20:
            wanted = scipy.linalg.expm(dense)
            assert np.allclose(host(co.exp(A)), wanted, atol=1e-8 * size(wanted))

    check()


@pytest.mark.parametrize("backend", BACKENDS)
def test_least_squares_of_random_tree_is_that_of_its_matrix(backend):
    @settings(max_examples=max(5, EXAMPLES[backend] // 3))
    @given(operators(backend=backend, dtype=DTYPES, depth=2))
    def check(pair):
        A, dense = pair
        b = np.cos(np.arange(dense.shape[-2])).astype(host(A).dtype)
        x, info = co.lstsq(A, A.xp.asarray(b), info=True)
        best = np.linalg.lstsq(dense, b, rcond=None)[0]
        if not info.failed:
            assert np.linalg.norm(dense @ host(x) - b) <= np.linalg.norm(dense @ best - b) + 1e-6

    check()
