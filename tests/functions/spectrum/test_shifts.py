"""Pairs nearest to a shift: the same ones whatever is known of the operator, its size, its framework and its inverse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import colinear as co
from colinear import backends
from colinear.operators.sparse_algebra import as_sparse
from colinear.status import Status
from colinear.testing import forbid_dense

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
        (values, V), info = co.eig(A, 2, "SM", method(shift=shift, tol=1e-10), info=True)
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


# Kronecker sums with a diagonal, and sparse matrices that fill in.


def atom(backend: str, m: int = 21) -> Any:
    """A Kronecker sum of tridiagonal matrices, none self-adjoint but similar to such, less a
    diagonal."""
    T = co.Tridiagonal(-np.linspace(1, 2, m - 1), np.full(m, 3.0), -np.linspace(2, 1, m - 1))
    H = co.KroneckerSum(T, T) - co.Diagonal(5 / (1 + np.arange(m * m) % 17))
    return H.to(backend=backend)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_kronecker_sum_with_a_diagonal_is_inverted_as_sparse(backend: str) -> None:
    A, xp = atom(backend), backends.get(backend)
    exact = np.sort(np.linalg.eigvals(xp.to_numpy(A.to_dense())).real)
    np.testing.assert_array_equal(xp.to_numpy(as_sparse(A).to_dense()), xp.to_numpy(A.to_dense()))
    with forbid_dense(200 * 441):
        (values, _), info = co.eig(A, 3, "SM", co.Arnoldi(shift=exact[0] - 0.1), info=True)
    assert info.converged.all() and info.matvecs < 100
    np.testing.assert_allclose(np.sort(xp.to_numpy(values).real), exact[:3], atol=1e-6)


def test_shifts_of_kronecker_sums_compile() -> None:
    jax = pytest.importorskip("jax")
    A = atom("jax")
    f = jax.jit(lambda A: co.eig(A, 2, "SM", co.Arnoldi(shift=-3.0))[0])
    g = co.eig(A, 2, "SM", co.Arnoldi(shift=-3.0))[0]
    np.testing.assert_allclose(np.sort(f(A).real), np.sort(g.real), atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_lowest_pairs_of_a_filling_matrix_by_its_diagonal(backend: str) -> None:
    n = 3000
    steps = [2**i for i in range(11)]
    S = sp.diags_array([np.ones(n - i) for i in steps], offsets=steps, shape=(n, n))
    S = sp.csr_array(S + S.T + sp.diags_array(25.0 + np.arange(n) ** 1.5))
    A = co.PSD(co.Sparse(S)).to(backend=backend)
    assert co.explain(co.eig, A, 2, "SM").rules == ["LOBPCG"]
    (values, V), info = co.eig(A, 2, "SM", info=True)
    xp = backends.get(backend)
    values, V = xp.to_numpy(values), xp.to_numpy(V.to_dense())
    assert info.matvecs < 300
    np.testing.assert_allclose(S @ V, V * values, atol=1e-2)
    exact = sla.eigsh(S, 2, sigma=0, return_eigenvectors=False)
    np.testing.assert_allclose(values, np.sort(exact), rtol=1e-6)


def test_a_preconditioner_for_the_whole_is_not_handed_to_the_rest_of_a_shift():
    """One for I - W is none for -W, which has no inverse that is near to it: the iteration failed."""
    rng = np.random.default_rng(0)
    M = rng.uniform(0, 1, (150, 150))
    W = M + M.T
    scale = 1 / np.sqrt(W.sum(axis=1))
    A = co.Identity(150) - co.SelfAdjoint(scale[:, None] * W * scale)
    wanted = np.linalg.eigvalsh(A.to_dense())[:3]
    for preconditioner in (co.Jacobi(), co.PSD(np.linalg.inv(A.to_dense() + 1e-3 * np.eye(150)))):
        method = co.LOBPCG(preconditioner=preconditioner)
        (values, _), info = co.eig(A, 3, "SA", method, info=True)
        assert np.all(info.converged)
        np.testing.assert_allclose(values, wanted, atol=1e-6)
        assert co.explain(co.eig, A, 3, "SA", method).rules == ["LOBPCG"]
    assert co.explain(co.eig, A, 3, "SA", co.LOBPCG()).rules[0] == "eig_shifted"
