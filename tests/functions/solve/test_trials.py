"""What `Auto` tries before a factorisation: the fast term of a sum as preconditioner, and CG for as
long as it promises to end first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear.functions.solve import cost
from colinear.operators.sparse_algebra import assembled

BACKENDS = ["numpy", "torch", "jax"]


def line(m: int) -> Any:
    return sp.diags_array(
        [[-1.0] * (m - 1), [2.0] * m, [-1.0] * (m - 1)], offsets=[-1, 0, 1], shape=(m, m)
    )


def tridiagonal(m: int) -> Any:
    return co.Tridiagonal(-np.ones(m - 1), 2 * np.ones(m), -np.ones(m - 1))


def poisson(m: int) -> Any:
    return sp.csr_array(sp.kronsum(line(m), line(m)))


def solved(A: Any, b: Any) -> Any:
    """The solution, and the products with A."""
    xp = A.xp
    with co.testing.forbid_dense(1e6), co.testing.count_matvecs(A) as count:
        x, info = co.solve(A, b, info=True)
    assert not info.failed
    residual = np.linalg.norm(xp.to_numpy(b) - xp.to_numpy(A @ x))
    assert residual <= 2e-8 * np.linalg.norm(xp.to_numpy(b))
    return xp.to_numpy(x), count.matvecs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_fast_term_preconditions_a_kronecker_sum_with_a_diagonal(
    backend: str, sign: float
) -> None:
    m, rng = 12, np.random.default_rng(0)
    T, k, b = tridiagonal(m), 0.2 + 0.1 * rng.random(m**3), rng.standard_normal(m**3)
    A = (co.KroneckerSum(T, T, T) + sign * co.Diagonal(k)).to(backend)
    b = A.xp.asarray(b)
    plan = co.explain(co.solve, A, b)
    assert "preconditioned by the inverse of" in str(plan)
    x, products = solved(A, b)
    assert products < 20
    S = sp.kronsum(sp.kronsum(line(m), line(m)), line(m)) + sign * sp.diags_array(k)
    np.testing.assert_allclose(x, sp.linalg.spsolve(S.tocsc(), A.xp.to_numpy(b)), atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_positive_fast_term_is_taken_by_cg(backend: str) -> None:
    rng, m = np.random.default_rng(0), 40
    T = co.PD(tridiagonal(m))
    A = (co.KroneckerSum(T, T) + co.PSD(co.Diagonal(rng.random(m * m)))).to(backend)
    b = A.xp.asarray(rng.standard_normal(m * m))
    assert co.explain(co.solve, A, b).rules[0] == "CG"
    assert solved(A, b)[1] < 25


@pytest.mark.parametrize("backend", BACKENDS)
def test_circulants_and_complex_terms_precondition(backend: str) -> None:
    rng, n = np.random.default_rng(1), 1500
    column = np.exp(-np.arange(n) / 5.0) + 0j
    column[0] = 8.0 + 1j
    A = (co.Circulant(column) + co.Diagonal(rng.random(n) + 0j)).to(backend)
    b = A.xp.asarray(rng.standard_normal((n, 2)) + 0j)
    assert "preconditioned" in str(co.explain(co.solve, A, b))
    assert solved(A, b)[1] < 60


def test_where_the_fast_term_is_not_near_others_follow() -> None:
    rng, m = np.random.default_rng(0), 35
    T = tridiagonal(m)
    d = 10.0 ** rng.uniform(-3, 5, m * m)
    A = co.KroneckerSum(T, T) + co.Diagonal(d)
    b = rng.standard_normal(m * m)
    x = co.solve(A, b)  # warnings are errors
    S = sp.kronsum(line(m), line(m)) + sp.diags_array(d)
    np.testing.assert_allclose(S @ x, b, atol=1e-6)


def test_a_singular_fast_term_is_no_preconditioner() -> None:
    m, rng = 30, np.random.default_rng(0)
    N = co.Tridiagonal(-np.ones(m - 1), np.r_[1.0, 2 * np.ones(m - 2), 1.0], -np.ones(m - 1))
    d = np.zeros(m * m)
    d[0], d[1] = 1.0, -1.0  # the mean is zero, and so is an eigenvalue of the term
    A = co.KroneckerSum(N, N) + co.Diagonal(d)
    b = rng.standard_normal(m * m)
    x, info = co.solve(A, b, info=True)
    assert info.failed or np.linalg.norm(A @ x - b) <= 2e-8 * np.linalg.norm(b)


def test_derivatives_go_through_the_sum_and_not_the_preconditioner() -> None:
    torch = pytest.importorskip("torch")
    m, rng = 12, np.random.default_rng(0)
    T, b = tridiagonal(m).to("torch"), torch.from_numpy(rng.standard_normal(m * m))
    d = torch.from_numpy(rng.random(m * m)).requires_grad_()
    K = co.KroneckerSum(T, T)
    x = co.solve(K + co.Diagonal(d), b, co.Auto(tol=1e-12))
    (found,) = torch.autograd.grad((x * x).sum(), d)
    matrix = K.to_dense() + torch.diag(d)
    y = torch.linalg.solve(matrix, b)
    (wanted,) = torch.autograd.grad((y * y).sum(), d)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("shift", ["diagonal", "identity", "none"])
def test_cg_goes_on_from_its_trial_while_it_promises_to_end_first(backend: str, shift: str) -> None:
    m, rng = 70, np.random.default_rng(0)
    n = m * m
    A = co.Sparse(poisson(m))
    added = {"diagonal": co.Diagonal(0.1 + rng.random(n)), "identity": 0.1 * co.Identity(n)}
    A = (A + added[shift] if shift in added else A).to(backend)
    b = A.xp.asarray(rng.standard_normal(n))
    x, info = co.solve(A, b, info=True)
    assert next(each.method for each in (info, *info.children) if each.method) == "CG"
    wanted, alone = co.solve(A, b, co.CG(), info=True)
    assert int(info.matvecs) <= int(alone.matvecs) + 5, "no step is made twice"
    np.testing.assert_allclose(A.xp.to_numpy(x), A.xp.to_numpy(wanted), atol=1e-5)


def test_the_fill_is_not_estimated_where_a_few_steps_are_enough(monkeypatch: Any) -> None:
    def forbidden(structure: Any) -> Any:
        raise AssertionError("the fill was estimated")

    n = 5000
    S = sp.csr_array(
        sp.diags_array([[1.0] * (n - 7), [9.0] * n, [1.0] * (n - 7)], offsets=[-7, 0, 7])
    )
    monkeypatch.setattr(cost, "estimated_fill", forbidden)
    x, info = co.solve(co.Sparse(S), np.ones(n), info=True)
    assert not info.failed
    np.testing.assert_allclose(S @ x, 1.0, atol=1e-6)


def test_a_hopeless_trial_is_given_up_for_elimination() -> None:
    n = 5000
    S = sp.csr_array(line(n) @ line(n) @ line(n))  # of condition 10^20
    S = sp.csr_array(S + 1e-9 * sp.eye_array(n))
    b = np.random.default_rng(0).standard_normal(n)
    with co.testing.count_matvecs() as count:
        x, info = co.solve(co.Sparse(S), b, info=True)
    assert count.matvecs < 600
    assert info.failed or np.linalg.norm(S @ x - b) <= 2e-8 * np.linalg.norm(b)


def test_a_traced_program_does_not_form_a_large_matrix_by_products() -> None:
    jax = pytest.importorskip("jax")
    plans: list[Any] = []

    def step(x: Any) -> Any:
        J = co.Jacobian(lambda x: 3 * x + jax.numpy.roll(x, 1) * x, x)
        plans.append(co.explain(co.solve, J, x).rules)
        return co.solve(J, x)

    point = jax.numpy.linspace(0.1, 1.0, 8000)
    x = jax.jit(step)(point)
    assert plans[0] == ["GMRES"]
    J = co.Jacobian(lambda x: 3 * x + jax.numpy.roll(x, 1) * x, point)
    np.testing.assert_allclose(np.asarray(J @ x), np.asarray(point), rtol=1e-3)
    jax.jit(step)(point[:300])
    assert plans[1] == ["LU"], "a small one is formed"


# ------------------------------------------------------------------- assembled from few products


def reaction(xp: Any, u: Any) -> Any:
    """A reaction and diffusion on a periodic grid of 32 x 32 points, as a function of all values."""
    u = xp.reshape(u, (32, 32))
    near = sum(xp.roll(u, shift, axis) for shift in (1, -1) for axis in (0, 1))
    return xp.reshape(4.1 * u + u**3 - near, (-1,))


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *(("torch", dtype) for dtype in ("float32", "float64", "complex64", "complex128")),
        ("jax", "float64"),
    ],
)
def test_a_jacobian_with_few_diagonals_is_assembled_from_few_products(
    backend: str, dtype: str
) -> None:
    xp, rng = co.backends.get(backend), np.random.default_rng(0)
    u, b = (xp.asarray(rng.standard_normal(1024), dtype=getattr(xp, dtype)) for _ in range(2))
    J = co.Jacobian(lambda u: reaction(xp, u), u)
    assert "inv_assembled" in co.explain(co.solve, J, b).rules
    assert "inv_assembled" not in co.explain(co.solve, J, b, co.GMRES()).rules
    with co.testing.forbid_dense(1e6), co.testing.count_matvecs(J) as count:
        x, info = co.solve(J, b, info=True)
    assert not info.failed
    # the diagonals that reach around the grid are found in a second round
    assert count.matvecs < 80
    residual = np.linalg.norm(xp.to_numpy(b - J @ x)) / np.linalg.norm(xp.to_numpy(b))
    assert residual <= 100 * xp.eps(b.dtype)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_derivatives_of_a_solve_with_an_assembled_jacobian(backend: str) -> None:
    xp, rng = co.backends.get(backend), np.random.default_rng(0)
    u, b = (xp.asarray(rng.standard_normal(1024)) for _ in range(2))
    value = lambda u: xp.sum(co.solve(co.Jacobian(lambda u: reaction(xp, u), u), b))
    direction = xp.asarray(rng.standard_normal(1024))
    slope = float(xp.sum(xp.vjp(value, u)[1](xp.ones(())) * direction))
    step = 1e-5
    difference = (value(u + step * direction) - value(u - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, float(difference), rtol=1e-6)


def test_products_that_no_few_diagonals_give_are_not_assembled() -> None:
    n, rng = 1024, np.random.default_rng(0)
    D, order = rng.standard_normal((n, 2)), rng.permutation(n)
    spike = np.zeros((n, 1))
    spike[n // 3] = 1e-6
    for multiply in (
        lambda X: X + D @ (D.T @ X),  # full
        lambda X: 3 * X + X[order],  # on many diagonals
        lambda X: X + spike * X[:1],  # one small entry apart
    ):
        assert assembled(co.MatrixFree(multiply, (n, n), dtype=float)) is None


def test_a_matrix_free_operator_on_which_iterations_fail_is_assembled() -> None:
    m, rng = 50, np.random.default_rng(0)
    k, b = np.exp(2 * rng.standard_normal((m, m, 1))), rng.standard_normal(m * m)

    def multiply(X: Any) -> Any:  # uneven diffusion and a wind
        u = np.zeros((m + 2, m + 2, X.shape[-1]))
        u[1:-1, 1:-1] = X.reshape(m, m, -1)
        north, south, west, east = u[:-2, 1:-1], u[2:, 1:-1], u[1:-1, :-2], u[1:-1, 2:]
        return (k * (4 * u[1:-1, 1:-1] - 1.9 * north - 0.1 * south - west - east)).reshape(
            m * m, -1
        )

    A = co.MatrixFree(multiply, (m * m, m * m), dtype=float)
    with co.testing.forbid_dense(1e6):
        x, info = co.solve(A, b, info=True)
    assert not info.failed and info.method != "GMRES"
    assert np.linalg.norm(A @ x - b) <= 1e-10 * np.linalg.norm(b)


def test_a_singular_jacobian_is_iterated_with() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    u, b = (torch.from_numpy(rng.standard_normal(1024)) for _ in range(2))
    J = co.Jacobian(lambda u: reaction(co.backends.get("torch"), u) - 0.1 * u - u**3, u)
    b = b - b.mean()  # so that there is a solution
    x, info = co.solve(J, b, info=True)
    assert not info.failed
    assert torch.linalg.vector_norm(J @ x - b) <= 1e-7 * torch.linalg.vector_norm(b)
