"""What `Auto` tries before a factorisation: the fast term of a sum as preconditioner, and CG for as
long as it promises to end first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear import rates
from colinear.factors.iterated import Attempts
from colinear.functions.solve import cost, near, trials
from colinear.functions.solve.auto import iterated
from colinear.operators.shown import assembled

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
    scale = sp.diags_array(1 + 0.1 * rng.random(n))  # no Kronecker sum, which has a rule
    A = co.Sparse(sp.csr_array(scale @ poisson(m) @ scale))
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


# ------------------------------------------------------------------ multigrid and incomplete factors


def rough_grid(m: int) -> Any:
    """A grid with conductances that differ by factors of a hundred: CG takes a thousand steps."""
    rng, points = np.random.default_rng(0), np.arange(m * m).reshape(m, m)
    pairs = [(points[:, :-1], points[:, 1:]), (points[:-1], points[1:])]
    i, j = (np.concatenate([pair[k].ravel() for pair in pairs]) for k in (0, 1))
    W = sp.coo_array((np.exp(1.5 * rng.standard_normal(len(i))), (i, j)), shape=(m * m, m * m))
    W = sp.csr_array(W + W.T)
    return sp.csr_array(sp.diags_array(W.sum(0) + (np.arange(m * m) < m)) - W)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_multigrid_follows_where_cg_would_take_longer(backend: str) -> None:
    pytest.importorskip("pyamg")
    A = co.Sparse(rough_grid(130)).to(backend)
    b = A.xp.asarray(np.random.default_rng(1).standard_normal(16_900))
    assert "CG with AMG is cheaper than 400 steps" in str(co.explain(co.solve, A, b))
    _, info = co.solve(A, b, info=True)
    assert "CG was dropped (STOPPED) at the residual" in info.message
    assert "CG with AMG gave the answer" in info.message
    assert solved(A, b)[1] < 250


def test_without_pyamg_it_is_left_out_and_that_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(trials, "multigrid_is_installed", lambda: False)
    A, b = co.Sparse(rough_grid(70)), np.ones(4900)
    assert "PyAMG is not installed" in str(co.explain(co.solve, A, b))
    _, info = co.solve(A, b, info=True)
    assert "CG was dropped" in info.children[0].message
    solved(A, b)


def test_what_multigrid_does_not_solve_goes_on_without_it(monkeypatch: Any) -> None:
    pytest.importorskip("pyamg")
    useless = lambda self, A: co.PD(co.Diagonal(np.geomspace(1, 1e8, A.shape[-1])))
    monkeypatch.setattr(co.AMG, "__call__", useless)
    A, b = co.Sparse(rough_grid(130)), np.random.default_rng(1).standard_normal(16_900)
    _, info = co.solve(A, b, info=True)
    assert "CG with AMG was dropped" in info.children[0].message
    solved(A, b)


def test_derivatives_of_what_a_trial_found() -> None:
    torch = pytest.importorskip("torch")
    S, rng = co.Sparse(rough_grid(66)).to("torch"), np.random.default_rng(0)
    b, c = (torch.from_numpy(rng.standard_normal(66**2)).requires_grad_() for _ in "bc")
    gradients = []
    for method in (co.Auto(tol=1e-11), co.LU()):
        d = torch.full((66**2,), 0.01, dtype=torch.float64, requires_grad=True)
        x = co.solve(co.PD(S + co.Diagonal(d)), b, method)
        gradients.append(torch.autograd.grad(x @ c, (d, b)))
    for found, wanted in zip(*gradients):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-7)


def test_incomplete_factors_follow_gmres_where_no_factors_fit(monkeypatch: Any) -> None:
    monkeypatch.setattr(rates, "share_of_memory", lambda *_: 1e5)
    m = 60
    S = poisson(m) + sp.diags_array([np.full(m * m - 1, 0.4)], offsets=[1])
    S = sp.csr_array(S + 1e-3 * sp.diags_array(np.arange(m * m) % 7.0))
    A, b = co.Sparse(S), np.random.default_rng(0).standard_normal(m * m)
    monkeypatch.setattr(trials, "ILU_AFTER", 40)
    assert "GMRES with ILU follows after 40 steps" in str(co.explain(co.solve, A, b))
    x, info = co.solve(A, b, info=True)
    assert info.message.endswith("GMRES with ILU gave the answer")
    assert info.matvecs < 100
    assert np.linalg.norm(S @ x - b) <= 2e-8 * np.linalg.norm(b)


# ------------------------------------------------------------------------------- what is near


def near_cases() -> dict[str, Any]:
    rng = np.random.default_rng(0)

    def positive(m: int) -> Any:
        G = rng.standard_normal((m, m))
        return co.PSD(G @ G.T / m + 0.2 * np.eye(m))

    K = [[positive(m) for m in (40, 30)] for _ in range(3)]
    d = co.PSD(co.Diagonal(0.1 + 0.1 * rng.random(1200)))
    bump = np.exp(-(np.linspace(-4, 4, 9) ** 2))
    T = co.PSD(co.Toeplitz(1 / (1.0 + np.arange(1200)) ** 1.1))
    grid = co.PSD(co.Convolution(np.multiply.outer(bump, bump), (40, 30), "zero", centered=True))
    weak = [co.opaque(co.Dense(0.02 * rng.standard_normal((90, 90)))) for _ in range(36)]
    strong = [co.Dense(rng.standard_normal((90, 90)) + 20 * np.eye(90)) for _ in range(6)]
    rows = [[strong[i] if i == j else weak[6 * i + j] for j in range(6)] for i in range(6)]
    return {
        "Kronecker products": sum((c * co.Kronecker(*F) for c, F in zip((1, 0.3, 0.1), K))),
        "Toeplitz": T + d,
        "Convolution": grid + d,
        "Block": co.Block(rows),
    }


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", near_cases())
def test_what_is_near_and_inverted_by_a_rule_preconditions(
    name: str, backend: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(rates, "share_of_memory", lambda *_: 1e6)  # so that no matrix is formed
    A = near_cases()[name].to(backend)
    b = A.xp.asarray(np.random.default_rng(1).standard_normal(A.shape[-1]))
    assert "preconditioned by the inverse of" in str(co.explain(co.solve, A, b))
    products = solved(A, b)[1]
    plain = co.solve(A, b, co.GMRES(), info=True)[1].matvecs
    assert products < 0.7 * plain


def test_the_nearest_kronecker_product_is_nearest() -> None:
    rng = np.random.default_rng(0)
    F = [[rng.standard_normal((m, m)) for m in (4, 3)] for _ in range(3)]
    A = sum(co.Kronecker(*map(co.Dense, each)) for each in F) + 2 * co.Identity(12)
    found = near.nearest_kronecker(A).to_dense()
    # rearranged (Van Loan and Pitsianis 1993), the nearest is of rank one: its singular value
    R = A.to_dense().reshape(4, 3, 4, 3).transpose(0, 2, 1, 3).reshape(16, 9)
    s = np.linalg.svd(R, compute_uv=False)
    np.testing.assert_allclose(
        np.linalg.norm(A.to_dense() - found), np.sqrt((s[1:] ** 2).sum()), rtol=1e-4
    )


def test_a_kernel_too_large_to_form_is_preconditioned(monkeypatch: Any) -> None:
    monkeypatch.setattr(rates, "share_of_memory", lambda *_: 1e5)
    rng, n = np.random.default_rng(0), 300

    def gauss(x: Any, y: Any) -> Any:
        return np.exp(-((x[..., :, None, :] - y[..., None, :, :]) ** 2).sum(-1))

    A = co.PSD(co.Kernel(gauss, rng.random((n, 2)))) + 1e-3 * co.Identity(n)
    b = rng.standard_normal(n)
    assert "preconditioned by PivotedCholesky(35)" in str(co.explain(co.solve, A, b))
    _, info = co.solve(A, b, info=True)
    assert not info.failed
    assert info.matvecs < 12


# ------------------------------------------------------------------------ sparse sums of lines


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sizes", [(40, 30), (12, 11, 10)])
def test_entries_show_a_kronecker_sum_of_lines(sizes: Any, backend: str) -> None:
    rng, S = np.random.default_rng(0), sp.csr_array((1, 1))
    for m in sizes:
        T = line(m) * (1 + rng.random()) + sp.diags_array(rng.random(m))
        S = sp.kron(S, sp.eye_array(m)) + sp.kron(sp.eye_array(S.shape[0]), T)
    S = sp.csr_array(S)
    A, b = co.Sparse(S).to(backend), rng.standard_normal(S.shape[0])
    assert "inv_kronecker_sum" in co.explain(co.inv, A).rules
    assert "inv_kronecker_sum" in co.explain(co.solve, A, A.xp.asarray(b)).rules
    x = co.solve(A, A.xp.asarray(b))
    np.testing.assert_allclose(S @ A.xp.to_numpy(x), b, atol=1e-9)


def test_what_is_no_sum_of_lines_or_singular_is_not_taken_for_one() -> None:
    m = 40
    free = line(m).tolil()
    free[0, 0] = free[m - 1, m - 1] = 1.0  # of Neumann: singular
    others = [
        sp.csr_array(sp.kronsum(free.tocsr(), free.tocsr())),
        poisson(m) - 0.1 * sp.eye_array(m * m),
    ]
    for place in (0, 7, 500, 4000):
        S = poisson(m)
        S.data[place] *= 1 + 1e-9
        others.append(S)
    for S in others:
        assert "inv_kronecker_sum" not in co.explain(co.inv, co.Sparse(sp.csr_array(S))).rules


def test_derivatives_of_a_sum_of_lines_are_those_of_the_sparse_matrix() -> None:
    torch = pytest.importorskip("torch")
    S, rng = co.Sparse(poisson(35)).to("torch"), np.random.default_rng(0)
    b, c = (torch.from_numpy(rng.standard_normal(35**2)) for _ in "bc")
    gradients = []
    for method in (None, co.LU()):
        data = S.data.clone().requires_grad_()
        x = co.solve(co.Sparse.from_parts(data, S.structure), b, method)
        gradients.append(torch.autograd.grad(x @ c, data)[0])
    np.testing.assert_allclose(*gradients, rtol=1e-8, atol=1e-10)


def test_refining_asks_the_parts_for_what_is_left() -> None:
    A, b = co.PSD(co.Sparse(poisson(100))), np.random.default_rng(0).standard_normal(10_000)
    _, info = co.solve(A @ A, b, co.CG(tol=1e-8), info=True)
    assert not info.failed
    first, second, *again = (part.iterations for part in info.children)
    assert sum(again) < (first + second) / 2


def test_a_traced_program_does_not_form_a_large_matrix_by_products() -> None:
    jax = pytest.importorskip("jax")
    plans: list[Any] = []
    order = np.random.default_rng(0).permutation(8000)  # on many diagonals

    def step(x: Any) -> Any:
        J = co.Jacobian(lambda x: 3 * x + x[order % x.size][: x.size] * x / 4, x)
        plans.append(co.explain(co.solve, J, x).rules)
        return co.solve(J, x)

    point = jax.numpy.linspace(0.1, 1.0, 8000)
    x = jax.jit(step)(point)
    assert plans[0] == ["GMRES"]
    J = co.Jacobian(lambda x: 3 * x + x[order % x.size][: x.size] * x / 4, point)
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


def test_a_program_fills_in_a_matrix_whose_diagonals_were_seen_elsewhere() -> None:
    jax = pytest.importorskip("jax")
    xp, rng = co.backends.get("jax"), np.random.default_rng(0)
    u, v, b = (xp.asarray(rng.standard_normal(1024)) for _ in range(3))
    scale, plans = xp.asarray(1.5), []

    def solution(u: Any, scale: Any) -> Any:
        J = co.Jacobian(lambda u: scale * reaction(xp, u), u)
        plans.append(co.explain(co.solve, J, b).rules)
        with co.testing.forbid_dense(1e6):
            x, info = co.solve(J, b, info=True)
        return x, info.status, info.matvecs

    (x, status, matvecs), push = jax.jit(
        lambda u, scale: (
            solution(u, scale),
            jax.jvp(lambda u: solution(u, scale)[0], (u,), (v,))[1],
        )
    )(u, scale)
    assert plans[0][1:] == ["inv_assembled"]
    assert status == co.Status.SUCCESS and matvecs <= 4
    exact = lambda u: co.solve(co.Jacobian(lambda u: scale * reaction(xp, u), u), b)
    np.testing.assert_allclose(x, exact(u), rtol=1e-8)
    difference = (exact(u + 1e-5 * v) - exact(u - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose(push, difference, rtol=1e-4, atol=1e-6)
    many = jax.jit(jax.vmap(lambda u: solution(u, scale)[0]))(xp.stack([u, v]))
    np.testing.assert_allclose(many, xp.stack([exact(u), exact(v)]), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("far", [0.1, 30.0])
def test_a_program_that_meets_other_diagonals_than_expected_gives_no_wrong_answer(
    far: float,
) -> None:
    jax = pytest.importorskip("jax")
    jnp, rng = jax.numpy, np.random.default_rng(0)
    u, b = (jnp.asarray(rng.standard_normal(1024)) for _ in range(2))

    def f(u: Any, c: Any) -> Any:
        coupled = jnp.where(c > 10, far * u[::-1], 0 * u)  # nothing that stands for c is so large
        return 4 * u + u**3 + jnp.roll(u, 1) + coupled

    def solution(u: Any, c: Any) -> Any:
        return co.solve(co.Jacobian(lambda u: f(u, c), u), b, info=True)

    x, info = jax.jit(solution)(u, 11.0)
    residual = jnp.linalg.norm(b - jax.jvp(lambda u: f(u, 11.0), (u,), (x,))[1])
    tol = np.sqrt(np.finfo(float).eps)
    assert (info.status == co.Status.SUCCESS) == (residual <= tol * jnp.linalg.norm(b))
    if far < 1:
        assert info.status == co.Status.SUCCESS


def test_a_program_whose_matrix_is_singular_says_so_or_solves_it() -> None:
    jax = pytest.importorskip("jax")
    jnp, rng = jax.numpy, np.random.default_rng(0)
    u, b = (jnp.asarray(rng.standard_normal(1024)) for _ in range(2))
    f = lambda u, c: 2 * u - jnp.roll(u, 1) - jnp.roll(u, -1) + c * u  # of a ring
    solve = jax.jit(lambda u, c, b: co.solve(co.Jacobian(lambda u: f(u, c), u), b, info=True))
    for right in (b, b - jnp.mean(b), 0 * b):
        for c in (0.0, -4.0):
            x, info = solve(u, c, right)
            residual = jnp.linalg.norm(right - f(x, c)) / jnp.linalg.norm(b)
            is_solved = bool(residual <= 1.1 * np.sqrt(np.finfo(float).eps))
            assert info.status != co.Status.SUCCESS or is_solved


def test_a_program_knows_the_diagonals_of_both_branches_of_an_upwind_scheme() -> None:
    jax = pytest.importorskip("jax")
    jnp, rng = jax.numpy, np.random.default_rng(0)
    u, b = (jnp.asarray(rng.standard_normal(1024)) for _ in range(2))

    def f(u: Any) -> Any:
        slope = jnp.where(u > 0, u - jnp.roll(u, 1), jnp.roll(u, -1) - u)
        return 5 * u + u * slope

    def solution(u: Any) -> Any:
        J = co.Jacobian(f, u)
        return co.solve(J, b, info=True), co.inv(J).H @ b

    (x, info), y = jax.jit(solution)(u)
    assert info.status == co.Status.SUCCESS and info.matvecs <= 4
    J = np.asarray(jax.jacfwd(f)(u))
    np.testing.assert_allclose(J @ x, b, atol=1e-8)
    np.testing.assert_allclose(J.T @ y, b, atol=1e-8)


def test_a_singular_matrix_among_many_of_a_program_leaves_the_others_their_factors() -> None:
    jax = pytest.importorskip("jax")
    jnp, rng = jax.numpy, np.random.default_rng(0)
    u, b = jnp.ones(1024, jnp.complex64), rng.standard_normal(1024).astype(np.complex64)
    line = lambda u: (2 - 0.5j) * u - jnp.roll(u, 1) - jnp.roll(u, -1) * 1.001
    solve = lambda c: co.solve(co.Jacobian(lambda u: c * line(u), u), b, info=True)
    c = jnp.asarray([1, 0, 2], jnp.complex64)
    x, info = jax.jit(jax.vmap(solve))(c)
    statuses = [co.Status(int(status)) for status in info.status]
    assert statuses[0] == statuses[2] == co.Status.SUCCESS and statuses[1] > co.Status.SUCCESS
    assert max(info.matvecs) <= 4
    for i in (0, 2):
        np.testing.assert_allclose(c[i] * line(x[i]), b, atol=1e-3)


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


def test_an_iteration_that_is_given_up_after_others_failed_gives_no_answer():
    """After GMRES and CG had failed, MINRES was stopped by its patience, and its x, at a residual of 0.2,
    was returned as that of a fallback: silently wrong."""
    m, q = 30, 15
    x = np.arange(q) - q // 2
    kernel = np.exp(-(x[:, None] ** 2 + x**2) / 12.5)  # cut off, which leaves it indefinite
    d = 10.0 ** np.random.default_rng(0).uniform(-4, 0, m * m)
    blur = co.Convolution(kernel, (m, m), boundary="zero", centered=True)
    A, b = co.PD(blur + co.Diagonal(d)), np.ones(m * m)
    x, info = co.solve(A, b, info=True)
    assert np.linalg.norm(A @ x - b) < 1e-7 * np.linalg.norm(b) or info.failed
    assert np.all(info.converged) or info.failed


def test_attempts_of_which_the_last_was_stopped_say_so():
    A = co.opaque(co.Diagonal(np.r_[-1.0, np.linspace(1, 1e4, 299)]))
    stopped = co.MINRES(callback=lambda progress: progress.iteration >= 3)
    both = Attempts._of((iterated(A, co.CG()), iterated(A, stopped)))
    _, info = both.run(np.ones((300, 1)), True)
    assert info.status is co.Status.STOPPED
    assert not np.any(info.converged)
    assert "CG failed (NOT_POSITIVE_DEFINITE)" in info.message
