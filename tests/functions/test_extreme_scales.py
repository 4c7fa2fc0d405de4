"""Matrices of very small or large numbers: scaling A must not matter, as squares of its entries may vanish or overflow."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import NAMES as FRAMEWORKS
from support.frameworks import host

import colinear as co
from colinear.errors import ConvergenceWarning

SCALES = {"float32": (1e-30, 1e30), "float64": (1e-160, 1e160)}
CASES = [(dtype, scale) for dtype, scales in SCALES.items() for scale in scales]


def array_of(framework, values, dtype):
    return co.backends.get(framework).asarray(np.asarray(values).astype(dtype))


@pytest.fixture
def matrices():
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    definite = (Q * np.linspace(1, 1.4, 5)) @ Q.T
    return {
        "definite": definite,
        "indefinite": (Q * np.array([-1, 1.1, 1.2, -1.3, 1.4])) @ Q.T,
        "general": definite + 0.1 * rng.standard_normal((5, 5)),
    }


@pytest.mark.parametrize(("dtype", "scale"), CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_norms_neither_vanish_nor_overflow(framework, dtype, scale, matrices):
    xp, M = co.backends.get(framework), matrices["general"]
    X = array_of(framework, M * scale, dtype)
    for axis in (-2, (-2, -1), None):
        expected = np.linalg.vector_norm(M, axis=axis)
        np.testing.assert_allclose(
            host(xp.vector_norm(X, axis=axis)).astype(float) / scale, expected, rtol=1e-5
        )
    assert xp.vector_norm(X, axis=-2, keepdims=True).shape == (1, 5)
    assert float(xp.vector_norm(0 * X)) == 0
    assert np.isinf(host(xp.vector_norm(array_of(framework, [np.inf, 1.0], dtype))))


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128"])
@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "jax"])
def test_norms_of_subnormal_numbers_are_numbers(framework, dtype):
    xp, least = co.backends.get(framework), float(np.finfo(dtype).tiny) / 4
    X = array_of(framework, least * np.array([[3.0, 0.0], [4.0, 1.0]]), dtype)  # which JAX flushes
    np.testing.assert_allclose(host(xp.vector_norm(X, axis=-2)) / least, [5, 1], rtol=1e-4)


@pytest.mark.parametrize("framework", [name for name in FRAMEWORKS if name != "jax"])
def test_singular_values_of_complex_numbers_beside_subnormal_roundings_are_right(framework):
    noise = 1e-35 * np.random.default_rng(0).standard_normal((5, 5))
    _, info = co.svd(array_of(framework, noise - 2 * np.eye(5), "complex64"), info=True)
    assert info.status is co.Status.SUCCESS


@pytest.mark.parametrize(("dtype", "scale"), CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_eigenvalues_keep_their_scale(framework, dtype, scale):
    M = np.array([[1.0, 2.0], [3.0, 5.0]])
    (values, _), info = co.eig(co.Dense(array_of(framework, M * scale, dtype)), info=True)
    assert info.status is co.Status.SUCCESS
    np.testing.assert_allclose(np.sort(host(values).real) / scale, np.linalg.eigvals(M), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "scale"), CASES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_batches_of_eigenvalues_have_a_scale_each(framework, dtype, scale):
    M = np.array([[1.0, 2.0], [3.0, 5.0]])
    values = host(
        co.backends.get(framework).eigvals(array_of(framework, np.stack([M, M * scale]), dtype))
    )
    for row, factor in zip(values, (1.0, scale), strict=True):
        np.testing.assert_allclose(np.sort(row.real) / factor, np.linalg.eigvals(M), rtol=1e-5)


def cases_of_solvers():
    for dtype, scales in {"float32": (1e-25, 1e25), "float64": (1e-200, 1e200)}.items():
        for scale in scales:
            for framework in FRAMEWORKS:
                if framework != "jax" or scale == 1e-25:  # JAX compiles each of them
                    yield framework, dtype, scale


@pytest.mark.parametrize(("framework", "dtype", "scale"), list(cases_of_solvers()))
@pytest.mark.parametrize("columns", [1, 2])
def test_iterations_do_not_depend_on_the_scale_of_the_operator(
    framework, dtype, scale, columns, matrices
):
    if framework == "jax" and columns == 2:
        pytest.skip("JAX has one path for both")
    methods = {
        "CG": "definite",
        "MINRES": "indefinite",
        "GMRES": "general",
        "BiCGSTAB": "general",
        "LSQR": "general",
    }
    right = np.ones((5, columns))
    right[0] = 2
    b = array_of(framework, right[:, 0] if columns == 1 else right, dtype)
    for method, kind in methods.items():
        if framework == "jax" and method not in ("GMRES", "LSQR"):
            continue
        M = matrices[kind]
        A = co.Dense(array_of(framework, M * scale, dtype))
        A = co.PD(A) if kind == "definite" else co.SelfAdjoint(A) if kind == "indefinite" else A
        function = co.lstsq if method == "LSQR" else co.solve
        x, info = function(A, b, method=getattr(co, method)(), info=True)
        assert info.status is co.Status.SUCCESS, method
        expected = np.linalg.solve(M, right)
        np.testing.assert_allclose(
            host(x).astype(float).reshape(5, -1) * scale,
            expected,
            rtol=1e-2,
            atol=1e-2,
            err_msg=method,
        )


@pytest.mark.parametrize("method", [co.LSQR(), co.LSMR()])
def test_least_squares_of_a_tiny_operator_are_not_zero(method):
    A = (np.arange(12.0).reshape(6, 2) * 1e-25).astype(np.float32)
    x = co.lstsq(A, np.ones(6, np.float32), method=method)
    np.testing.assert_allclose(
        x * np.float32(1e-25), np.linalg.lstsq(A * 1e25, np.ones(6))[0], rtol=1e-2
    )


@pytest.mark.parametrize("scale", [1e22, 1e-25])
def test_functions_by_krylov_say_where_squares_of_norms_are_out_of_range(scale):
    M = np.array([[2.76, -1.53], [-1.53, 1.34]])
    A = co.Dense((scale * M).astype(np.float32))
    b = np.ones(2, np.float32)
    with pytest.warns(ConvergenceWarning, match="INACCURATE"):
        co.sqrt(A, co.Krylov()) @ b
    by_matrix = co.sqrt(A) @ b
    np.testing.assert_allclose(by_matrix, np.sqrt(scale) * (co.sqrt(M) @ b), rtol=1e-5)
