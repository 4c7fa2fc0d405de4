"""Pairs nearest to a shift: the same ones whatever is known of the operator, its size, its framework and its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status

FRAMEWORKS = ["numpy", "torch", "jax"]
D = np.array([-3.0, -1.0, 0.1, 2.0, 5.0])
Q = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 5)))[0]
S = (Q * D) @ Q.T


def put(framework: str, x: Any) -> Any:
    xp = backends.get(framework)
    return xp.asarray(x, dtype=xp.float64)


@pytest.fixture(autouse=True)
def _double() -> Any:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield


def operators(framework: str) -> dict[str, co.LinearOperator]:
    """Self-adjoint operators that rules would split, or of which they know the spectrum."""
    M, d = put(framework, S), put(framework, D)
    A, ones = co.SelfAdjoint(co.Dense(M)), put(framework, np.ones(4))
    return {
        "dense": A,
        "hidden": co.opaque(A),
        "diagonal": co.Diagonal(d),
        "constant bands": co.SelfAdjoint(
            co.Tridiagonal(ones, put(framework, np.full(5, 2.0)), ones)
        ),
        "projection": co.Projection(put(framework, Q[:, :2])),
        "reflection": co.Householder(put(framework, Q[:, 0])),
        "low rank": co.SelfAdjoint(
            co.LowRank(put(framework, Q[:, :2]), None, put(framework, np.diag([2.0, 3.0])))
        ),
        "multiple": -2.0 * A,
        "shifted": A + 3.0 * co.Identity(5),
        "blocks": co.BlockDiag(A, co.Diagonal(d + 0.3)),
        "inverse": co.inv(A),
        "kronecker": co.Kronecker(A, A),
        "kronecker sum": co.KroneckerSum(A, A),
        "kronecker sum and diagonal": co.KroneckerSum(A, A)
        + co.Diagonal(put(framework, np.arange(25.0))),
    }


def nearest(values: np.ndarray, shift: complex, k: int) -> np.ndarray:
    return np.sort(np.abs(values - shift))[:k]


CASES = [("numpy", name) for name in operators("numpy")] + [
    ("torch", name) for name in ("dense", "kronecker", "blocks")
]


@pytest.mark.parametrize(("framework", "name"), CASES)
@pytest.mark.parametrize("method", [co.Lanczos, co.Arnoldi])
def test_a_shift_is_the_number_from_which_distances_are_taken(
    framework: str, method: Any, name: str
) -> None:
    A = operators(framework)[name]
    xp = backends.get(framework)
    exact = np.linalg.eigvalsh(xp.to_numpy(A.to_dense()))
    for shift in (1.9, -0.4):
        (values, V), info = co.eig(A, 2, "SM", method(shift=shift), info=True)
        w = xp.to_numpy(values)
        np.testing.assert_allclose(np.sort(np.abs(w - shift)), nearest(exact, shift, 2), atol=1e-9)
        assert (
            info.status == Status.SUCCESS
            and float(xp.max(xp.abs(A @ V.to_dense() - V.to_dense() * values))) < 1e-8
        )


def test_a_shift_of_a_composition_is_kept_inside_of_jit() -> None:
    jax = pytest.importorskip("jax")

    @jax.jit
    def run(M: Any, d: Any) -> Any:
        A = co.SelfAdjoint(co.KroneckerSum(co.SelfAdjoint(M), co.SelfAdjoint(M)) + co.Diagonal(d))
        (values, _), info = co.eig(A, 1, "SM", co.Lanczos(shift=1.9), info=True)
        return values, info.status

    values, status = run(put("jax", S), jax.numpy.arange(25.0))
    K = np.kron(S, np.eye(5)) + np.kron(np.eye(5), S) + np.diag(np.arange(25.0))
    np.testing.assert_allclose(
        np.abs(values - 1.9), nearest(np.linalg.eigvalsh(K), 1.9, 1), atol=1e-9
    )
    assert int(status) == int(Status.SUCCESS)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_stored_matrix_is_factored_at_a_real_or_complex_shift(framework: str) -> None:
    M = np.random.default_rng(1).standard_normal((40, 40))
    A, exact = co.Dense(put(framework, M)), np.linalg.eigvals(M)
    xp = backends.get(framework)
    for shift in (1.0, 0.5 + 2.0j) if framework != "jax" else (0.5 + 2.0j,):
        (values, _), info = co.eig(A, 2, "SM", co.Arnoldi(shift=shift), info=True)
        np.testing.assert_allclose(
            np.abs(xp.to_numpy(values) - shift), nearest(exact, shift, 2), atol=1e-9
        )
        assert info.status == Status.SUCCESS and info.iterations < 60


def test_a_general_composition_is_formed_for_its_inverse_and_a_function_is_not() -> None:
    rng = np.random.default_rng(2)
    B, C = (rng.standard_normal((6, 6)) for _ in range(2))
    A = co.KroneckerSum(co.Dense(B), co.Dense(C)) + co.Diagonal(rng.standard_normal(36))
    (values, _), info = co.eig(A, 2, "SM", co.Arnoldi(shift=1.0), info=True)
    np.testing.assert_allclose(
        np.abs(values - 1.0), nearest(np.linalg.eigvals(A.to_dense()), 1.0, 2), atol=1e-9
    )
    assert info.status == Status.SUCCESS
    with pytest.raises(co.MethodError, match=r"no cheap inverse.*to_dense"):
        co.eig(co.opaque(A), 2, "SM", co.Arnoldi(shift=1.0))


@pytest.mark.parametrize("method", [co.Lanczos, co.Arnoldi])
def test_a_shift_may_be_an_eigenvalue(method: Any) -> None:
    d = np.arange(60.0)
    for A in (co.Diagonal(d), co.SelfAdjoint(co.Dense(np.diag(d)))):
        (values, _), info = co.eig(A, 1, "SM", method(shift=7.0), info=True)
        assert abs(values[0] - 7.0) < 1e-9 and info.status == Status.SUCCESS


def test_a_shift_is_checked() -> None:
    with pytest.raises(ValueError, match="shift is 1j; it must be a real number"):
        co.Lanczos(shift=1j)
    with pytest.raises(ValueError, match="shift is 'two'; it must be a number"):
        co.Arnoldi(shift="two")
    A = co.PSD(co.Diagonal(np.arange(4.0)))
    for which in ("SA", "LM"):
        with pytest.raises(ValueError, match="use which='SM'"):
            co.eig(A, 1, which, co.Lanczos(shift=2.0))
    assert co.explain(co.eig, A, 1, "SM", co.Lanczos(shift=2.0)).rules == ["Lanczos"]
