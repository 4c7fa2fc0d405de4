"""The iterative methods for linear systems: every answer is accurate, or says that it is not."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_array
from support.zoo import ZOO, accepts

import colinear as co
from colinear import Status

METHODS = {
    "CG": co.CG,
    "CG, one reduction": functools.partial(co.CG, single_reduction=True),
    "MINRES": co.MINRES,
    "GMRES": co.GMRES,
    "BiCGSTAB": co.BiCGSTAB,
    "LSQR": co.LSQR,
    "LSMR": co.LSMR,
}
SELF_ADJOINT = ("CG", "CG, one reduction", "MINRES")
SQUARE = (*SELF_ADJOINT, "GMRES", "BiCGSTAB")
PAIRS = [
    (name, method) for name, make in ZOO.items() for method in METHODS if accepts(method, make())
]
TOL = 1e-8


def array(framework: str, x: Any, dtype: Any = None) -> Any:
    x = np.asarray(x, dtype)
    if framework == "torch":
        return pytest.importorskip("torch").tensor(x)
    if framework == "jax":
        return pytest.importorskip("jax.numpy").asarray(x)
    return x


def run(name: str, method: str, framework: str) -> None:
    problem = ZOO[name]()
    A, b = problem.A, problem.b
    x0 = None if problem.x0 is None else array(framework, problem.x0)
    square = A.shape[0] == A.shape[1]
    f = co.solve if square else co.lstsq
    X, info = f(
        co.opaque(array(framework, A)),
        array(framework, b),
        METHODS[method](tol=TOL, x0=x0),
        info=True,
    )
    X = np.asarray(X)
    size = np.abs(b).max()  # squares of tiny numbers vanish
    R, norms = (b - A @ X) / size, np.linalg.norm(b / size, axis=0)
    residual = np.linalg.norm(R, axis=0) / np.where(norms == 0, 1, norms)
    np.testing.assert_allclose(np.asarray(info.residual), residual, rtol=1e-3, atol=1e-13)
    if square:
        assert (residual[np.asarray(info.converged)] <= 1.01 * TOL).all(), (
            "what is said to have converged has"
        )
        assert info.failed == (not (residual <= TOL).all())
        if problem.easy and problem.consistent:
            assert not info.failed, info
        if not problem.consistent:
            assert info.failed
    else:
        assert not info.failed, info
        best = np.linalg.pinv(A) @ b
        np.testing.assert_allclose(X, best, atol=1e-5 * np.abs(best).max())
    if name == "exact_guess" and method not in ("LSQR", "LSMR"):
        assert info.iterations == 0


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_answer_is_accurate_or_flagged(name: str, method: str) -> None:
    run(name, method, "numpy")


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_every_answer_is_accurate_or_flagged_in_torch(name: str, method: str) -> None:
    pytest.importorskip("torch")
    run(name, method, "torch")


@pytest.mark.parametrize("method", METHODS)
def test_every_answer_is_accurate_or_flagged_in_jax(method: str) -> None:
    """All problems of one shape share a compiled program, so they are taken together."""
    pytest.importorskip("jax")
    for name, accepted in PAIRS:
        A = ZOO[name]().A
        usual = A.shape == (24, 24) and A.dtype == float and name != "exact_guess"
        other = {"CG": "complex_hermitian", "GMRES": "exact_guess", "LSMR": "overdetermined"}.get(
            method
        )
        if accepted == method and (usual or name == other):
            run(name, method, "jax")


def spd(n: int = 30, seed: int = 0) -> Any:
    Q = np.random.default_rng(seed).standard_normal((n, n))
    return Q @ Q.T + n * np.eye(n)


# ---------------------------------------------------------------------------------------------------- columns, batches, starts


@pytest.mark.parametrize("method", SQUARE)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_columns_of_a_batch_converge_on_their_own(method: str, framework: str) -> None:
    A = np.stack([spd(), np.eye(30)])
    B = np.random.default_rng(1).standard_normal((2, 30, 3))
    X, info = co.solve(
        co.opaque(array(framework, A)), array(framework, B), METHODS[method](tol=1e-10), info=True
    )
    np.testing.assert_allclose(A @ np.asarray(X), B, atol=1e-7)
    assert np.asarray(info.residual).shape == (2, 3)
    assert np.asarray(info.history).shape == (info.iterations + 1, 2, 3)
    assert (np.asarray(info.history)[1, 1] < 1e-10).all(), "the identity took one step"


def test_a_column_that_is_done_no_longer_moves() -> None:
    A, seen = np.diag([1.0, 2.0, 3.0, 4.0]), []
    B = np.array([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])  # the first is an eigenvector
    co.solve(co.opaque(A), B, co.CG(tol=1e-12, callback=lambda p: seen.append(np.array(p.x[:, 0]))))
    assert len(seen) > 2
    assert all((x == seen[0]).all() for x in seen)


@pytest.mark.parametrize("method", METHODS)
def test_a_warm_start_saves_iterations(method: str) -> None:
    A, b = spd(), np.ones(30)
    near = np.linalg.solve(A, b) * (1 + 1e-6)
    cold = co.solve(co.opaque(A), b, METHODS[method](), info=True)[1]
    warm = co.solve(co.opaque(A), b, METHODS[method](x0=near), info=True)[1]
    assert warm.iterations < cold.iterations
    assert warm.status is Status.SUCCESS


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("how", ["plain", "preconditioned", "complex", "single", "stopped"])
@pytest.mark.parametrize("method", SQUARE)
def test_one_vector_goes_the_way_of_a_block(method: str, how: str, framework: str) -> None:
    """One right side has a path of its own on the host; two equal ones have not."""
    n = 60
    rng = np.random.default_rng(3)
    N = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if how == "complex" else 0)
    A = N @ N.conj().T / n + np.diag(np.linspace(1, 30, n))
    A = A if method in SELF_ADJOINT else A + np.triu(N) / 4
    A = A.astype(np.float32) if how == "single" else A
    b = rng.standard_normal(n).astype(A.dtype)
    M = (
        co.Diagonal(array(framework, (1 / np.diag(A).real).astype(A.dtype)))
        if how == "preconditioned"
        else None
    )
    seen: list[Any] = []

    def look(progress: Any) -> bool:
        seen.append(np.asarray(progress.x))
        return progress.iteration == 7

    options = {"callback": look} if how == "stopped" else {}
    solver = METHODS[method](tol=1e-4 if how == "single" else 1e-10, preconditioner=M, **options)
    operator = co.opaque(
        co.PD(array(framework, A)) if method in SELF_ADJOINT else array(framework, A)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", co.ConvergenceWarning)
        x, one = co.solve(operator, array(framework, b), solver, info=True)
        X, two = co.solve(operator, array(framework, np.stack([b, b], 1)), solver, info=True)
    tol = 1e-3 if how == "single" else 1e-8
    assert one.status is two.status
    assert abs(one.iterations - np.max(np.asarray(two.iterations))) <= 1
    if how == "stopped":
        np.testing.assert_allclose(seen[6], seen[-1][:, 0], rtol=1e-8, atol=1e-10)
        assert one.status is Status.STOPPED and one.iterations == 7
    np.testing.assert_allclose(np.asarray(x), np.asarray(X)[:, 0], rtol=tol, atol=tol)
    first, second = (
        np.asarray(info.history).reshape(len(info.history), -1)[:, 0] for info in (one, two)
    )
    many = min(len(first), len(second)) // 2
    np.testing.assert_allclose(first[:many], second[:many], rtol=1e-3)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("kind", ["merged sum", "multiple"])
def test_one_run_inside_a_rule_is_that_of_the_whole(kind: str, framework: str) -> None:
    """It keeps the tolerance and the start: there are no parts whose errors add up."""
    S, d, b = (
        csr_array(spd(300) + np.diag(np.logspace(0, 5, 300))),
        np.ones(300),
        array(framework, np.ones(300)),
    )
    L = co.Sparse(S).to(backend=framework)
    A = (
        co.PD(L + co.Diagonal(array(framework, d)))
        if kind == "merged sum"
        else co.PD(3.0 * co.opaque(L))
    )
    whole = co.PD(co.opaque(A))
    expected = co.solve(whole, b, co.CG(tol=TOL), info=True)[1].iterations
    x, info = co.solve(A, b, co.CG(tol=TOL), info=True)
    assert expected <= info.iterations <= 1.05 * expected
    warm = co.solve(A, b, co.CG(tol=TOL, x0=x), info=True)[1]
    assert warm.iterations == 0 and warm.status is Status.SUCCESS
    with pytest.raises(co.ShapeError, match="x0 needs 300 rows"):
        co.solve(A, b, co.CG(x0=x[:-1]))


@pytest.mark.parametrize("method", METHODS)
def test_a_preconditioner_saves_iterations_in_every_form(method: str) -> None:
    A = spd(40) + np.diag(np.logspace(0, 5, 40))
    M = np.diag(1 / np.diag(A))
    options = {"tol": 1e-9, "max_iters": 2000}
    plain = co.solve(co.opaque(A), np.ones(40), METHODS[method](**options), info=True)[1]
    for form in (co.Diagonal(np.diag(M)), M, lambda A: co.Diagonal(1 / co.diag(A))):
        x, info = co.solve(
            co.opaque(A), np.ones(40), METHODS[method](preconditioner=form, **options), info=True
        )
        assert info.status is Status.SUCCESS
        assert info.iterations < plain.iterations
        assert np.linalg.norm(A @ x - 1) <= 1.01e-9 * np.sqrt(40)


@pytest.mark.parametrize("method", METHODS)
def test_matvecs_are_counted(method: str) -> None:
    A = co.opaque(spd())
    with co.testing.count_matvecs(A) as count:
        info = co.solve(A, np.ones(30), METHODS[method](), info=True)[1]
    assert count.matvecs + count.adjoint_matvecs >= info.matvecs >= info.iterations


# ---------------------------------------------------------------------------------------------------- failure


@pytest.mark.parametrize("method", METHODS)
def test_running_out_of_iterations_is_said(method: str) -> None:
    A = np.diag(np.logspace(0, 6, 50))
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        co.solve(co.opaque(A), np.ones(50), METHODS[method](max_iters=3))
    info = co.solve(co.opaque(A), np.ones(50), METHODS[method](max_iters=3), info=True)[1]
    assert info.iterations == 3
    assert not info.converged.any()


@pytest.mark.parametrize("columns", [1, 2])
def test_cg_notices_that_an_operator_is_not_positive_definite(columns: int) -> None:
    A = np.diag([1.0, 2.0, -1.0])
    info = co.solve(co.opaque(co.PSD(A)), np.ones((3, columns)), co.CG(), info=True)[1]
    assert info.status is Status.NOT_POSITIVE_DEFINITE
    assert "the operator" in info.message


@pytest.mark.parametrize("method", ["CG", "MINRES"])
@pytest.mark.parametrize("columns", [1, 2])
def test_an_indefinite_preconditioner_is_noticed(method: str, columns: int) -> None:
    M = co.Diagonal(np.array([1.0, -5.0, 1.0]))
    info = co.solve(
        co.opaque(spd(3)), np.ones((3, columns)), METHODS[method](preconditioner=M), info=True
    )[1]
    assert info.status is Status.NOT_POSITIVE_DEFINITE
    assert "preconditioner" in info.message


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("columns", [1, 2])
def test_nan_of_a_product_stops_at_once_and_names_the_iteration(method: str, columns: int) -> None:
    A, calls = spd(), []

    def product(X: Any) -> Any:
        calls.append(1)
        return A @ X if len(calls) < 6 else np.nan * X

    F = co.MatrixFree(product, (30, 30), dtype=np.float64, rmatmat=product)
    _X, info = co.solve(F, np.ones((30, columns)), METHODS[method](tol=1e-14), info=True)
    assert info.status is Status.NONFINITE
    assert len(calls) <= 9
    assert f"iteration {info.iterations}" in info.message


@pytest.mark.parametrize("method", SQUARE)
@pytest.mark.parametrize("columns", [1, 2])
def test_a_tolerance_below_the_precision_stops_at_the_floor(method: str, columns: int) -> None:
    A = spd().astype(np.float32)
    X, info = co.solve(
        co.opaque(A), np.ones((30, columns), np.float32), METHODS[method](tol=1e-30), info=True
    )
    assert info.status is Status.STAGNATION
    assert info.iterations < 300
    assert (info.residual < 1e-5).all()
    assert X.dtype == np.float32


def test_a_lost_residual_is_found_again() -> None:
    """The residual of the recurrence and the true one part in single precision; what is said to be reached is."""
    A = np.diag(np.logspace(0, 5, 60)).astype(np.float32)
    X, info = co.solve(co.opaque(A), np.ones(60, np.float32), co.CG(tol=2e-6), info=True)
    true = np.linalg.norm(A.astype(float) @ X - 1) / np.sqrt(60)
    assert true <= 3e-6 if info.status is Status.SUCCESS else info.failed


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="max_iters is -1"):
        co.CG(max_iters=-1)
    with pytest.raises(ValueError, match="restart is 0"):
        co.GMRES(restart=0)
    with pytest.raises(ValueError, match="tol is 0"):
        co.MINRES(tol=0)
    with pytest.raises(co.ShapeError, match="preconditioner"):
        co.solve(co.opaque(spd(4)), np.ones(4), co.CG(preconditioner=np.eye(3)))
    with pytest.raises(co.ShapeError, match="x0 needs 4 rows"):
        co.solve(co.opaque(spd(4)), np.ones(4), co.CG(x0=np.ones(3)))
    with pytest.raises(co.ShapeError, match="lstsq"):
        co.solve(np.ones((3, 4)), np.ones(3), co.CG())
    with pytest.raises(co.MethodError, match="MINRES"):
        co.lstsq(np.ones((3, 4)), np.ones(3), co.MINRES())


# ---------------------------------------------------------------------------------------------------- structure and methods


def test_a_method_runs_inside_each_factor() -> None:
    A, B = co.opaque(co.PD(spd(4))), co.opaque(co.PD(spd(5)))
    b = np.ones(20)
    with co.testing.count_matvecs(A) as a, co.testing.count_matvecs(B) as c:
        x, info = co.solve(co.Kronecker(A, B), b, co.CG(tol=1e-9), info=True)
    assert a.matvecs
    assert c.matvecs
    assert len(info.children) >= 2
    assert {child.method for child in info.children} == {"CG"}
    assert np.linalg.norm(co.Kronecker(A, B) @ x - b) <= 1e-9 * np.linalg.norm(b)
    assert co.solve(co.opaque(co.Kronecker(A, B)), b, co.CG(), info=True)[1].method == "CG"


def test_the_whole_keeps_the_tolerance_where_parts_are_ill_conditioned() -> None:
    A, B = np.diag(np.logspace(0, 4, 10)), np.diag(np.logspace(-3, 3, 10))
    b = np.random.default_rng(0).standard_normal(100)
    x, info = co.solve(
        co.Kronecker(co.opaque(co.PD(A)), co.opaque(co.PD(B))), b, co.CG(tol=1e-8), info=True
    )
    true = np.linalg.norm(np.kron(A, B) @ x - b) / np.linalg.norm(b)
    assert info.failed or true <= 1e-8
    assert float(info.residual.max()) == pytest.approx(true, rel=1e-2)


@pytest.mark.parametrize(
    "make",
    [
        lambda S: co.Sparse(S),
        lambda S: co.Tridiagonal(-np.ones(99), 2.1 * np.ones(100), -np.ones(99)),
        lambda S: co.Banded([-np.ones(99), 2.1 * np.ones(100), -np.ones(99)], [-1, 0, 1]),
        lambda S: co.Toeplitz(np.r_[2.1, -1.0, np.zeros(98)]),
        lambda S: co.Dense(S.toarray()),
    ],
)
def test_a_leaf_is_iterated_with_where_the_user_says_so(make: Any) -> None:
    import scipy.sparse

    S = scipy.sparse.diags_array(
        [-np.ones(99), 2.1 * np.ones(100), -np.ones(99)], offsets=[-1, 0, 1]
    ).tocsr()
    A = make(S)
    x, info = co.solve(A, np.ones(100), co.CG(tol=1e-10), info=True)
    assert info.method == "CG"
    assert info.iterations
    np.testing.assert_allclose(A @ x, 1, atol=1e-8)
    assert "CG" in co.explain(co.solve, A, method=co.CG()).rules


def test_inv_runs_the_method_at_each_product() -> None:
    A = spd()
    inverse = co.inv(co.opaque(A), co.CG(tol=1e-11))
    np.testing.assert_allclose(inverse @ np.ones(30), np.linalg.solve(A, np.ones(30)), rtol=1e-8)
    np.testing.assert_allclose(inverse.H @ np.eye(30), np.linalg.inv(A), atol=1e-9)
    general = np.random.default_rng(0).standard_normal((12, 12)) + 5 * np.eye(12) + 1j * np.eye(12)
    inverse = co.inv(co.opaque(general), co.GMRES(tol=1e-11))
    np.testing.assert_allclose(inverse.T @ np.eye(12), np.linalg.inv(general).T, atol=1e-8)
    np.testing.assert_allclose(
        inverse.conj() @ np.eye(12), np.linalg.inv(general).conj(), atol=1e-8
    )
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        co.inv(co.opaque(A), co.CG(tol=1e-11, max_iters=2)) @ np.ones(30)


def test_damping_is_that_of_the_normal_equations() -> None:
    A, b = np.random.default_rng(0).standard_normal((30, 12)), np.ones(30)
    exact = np.linalg.solve(A.T @ A + 9 * np.eye(12), A.T @ b)
    for method in (co.LSQR, co.LSMR):
        np.testing.assert_allclose(co.lstsq(A, b, method(tol=1e-12, damping=3.0)), exact, rtol=1e-8)
    np.testing.assert_allclose(
        co.pinv(co.opaque(A), method=co.LSMR(tol=1e-12)) @ b, np.linalg.pinv(A) @ b, rtol=1e-8
    )


def test_gmres_restarts_and_counts_products() -> None:
    A = np.random.default_rng(0).standard_normal((60, 60)) / 12 + 3 * np.eye(60)
    _x, info = co.solve(co.opaque(A), np.ones(60), co.GMRES(tol=1e-10, restart=4), info=True)
    assert info.status is Status.SUCCESS
    assert info.iterations > 4
    with co.testing.count_matvecs() as count:
        co.solve(co.opaque(A), np.ones(60), co.GMRES(tol=1e-10, restart=4, max_iters=9), info=True)
    assert count.products <= 9 + 4


# ---------------------------------------------------------------------------------------------------- precision and frameworks


def test_jax_compiles_a_solve_once() -> None:
    jax = pytest.importorskip("jax")
    traced = []

    def product(X: Any, A: Any) -> Any:
        traced.append(1)
        return A @ X

    A = jax.numpy.asarray(spd())
    for scale in (1.0, 2.0, 3.0):
        F = co.PSD(co.MatrixFree(product, (30, 30), parameters=(scale * A,)))
        x = co.solve(F, jax.numpy.ones(30), co.CG(tol=1e-10))
        np.testing.assert_allclose(scale * A @ x, 1, atol=1e-8)
        if scale == 1.0:
            first = len(traced)
    assert len(traced) == first


def test_jax_transforms_pass_through() -> None:
    jax = pytest.importorskip("jax")
    A, b = jax.numpy.asarray(spd(12)), jax.numpy.ones(12)

    def f(A: Any, b: Any) -> Any:
        x, info = co.solve(co.opaque(co.PSD(A)), b, co.CG(tol=1e-12), info=True)
        return x.sum(), info

    (_, info), grad = jax.jit(jax.value_and_grad(f, has_aux=True))(A, b)
    x = np.linalg.solve(A, b)
    np.testing.assert_allclose(grad, -np.outer(x, x), atol=1e-10)
    assert int(info.iterations) > 0
    assert bool(info.converged.all())
    batch = jax.vmap(lambda b: co.solve(co.opaque(A), b, co.CG(tol=1e-12)))(jax.numpy.eye(12))
    np.testing.assert_allclose(batch, np.linalg.inv(A), atol=1e-9)


def test_torch_gradients_do_not_go_through_the_iterations() -> None:
    torch = pytest.importorskip("torch")
    A, b = (
        torch.tensor(spd(12), requires_grad=True),
        torch.ones(12, dtype=torch.float64, requires_grad=True),
    )
    co.solve(co.opaque(A), b, co.CG(tol=1e-12)).sum().backward()
    x = np.linalg.solve(A.detach(), b.detach())
    np.testing.assert_allclose(A.grad, -np.outer(x, x), atol=1e-12)
    np.testing.assert_allclose(b.grad, x, atol=1e-12)
    f = torch.func.vmap(lambda A: co.solve(co.opaque(A), b.detach(), co.CG()))
    assert f(torch.stack([A.detach(), 2 * A.detach()])).shape == (2, 12)


# ---------------------------------------------------------------------------------------------------- Auto


def diagonal_in_disguise(d: Any) -> Any:
    return co.MatrixFree(
        lambda X: d[:, None] * X,
        (len(d), len(d)),
        dtype=np.float64,
        rmatmat=lambda X: d[:, None] * X,
        like="numpy",
    )


def test_auto_never_forms_a_large_matrix() -> None:
    n = 20_000
    with co.testing.forbid_dense(1e7):
        for A, name in (
            (co.PSD(diagonal_in_disguise(np.linspace(1, 10, n))), "CG"),
            (
                co.SelfAdjoint(
                    diagonal_in_disguise(np.linspace(1, 10, n) * (-1.0) ** np.arange(n))
                ),
                "MINRES",
            ),
            (diagonal_in_disguise(np.linspace(1, 10, n)), "GMRES"),
        ):
            x, info = co.solve(A, np.ones(n), info=True)
            assert info.method == name
            assert info.status is Status.SUCCESS
            assert np.linalg.norm(A @ x - 1) <= 2e-8 * np.sqrt(n)
            assert name in co.explain(co.solve, A).rules
            assert name in co.explain(co.inv, A).rules
            np.testing.assert_allclose(A @ (co.inv(A) @ np.ones(n)), 1, atol=1e-5)


def test_auto_goes_on_with_minres_where_a_claim_was_wrong() -> None:
    A = co.PSD(diagonal_in_disguise(np.linspace(1, 10, 20_000) * (-1.0) ** np.arange(20_000)))
    _x, info = co.solve(A, np.ones(20_000), info=True)
    assert info.status is Status.FELL_BACK
    assert "CG failed (NOT_POSITIVE_DEFINITE)" in info.message
    assert info.method == "MINRES"


def test_auto_factors_what_is_small_and_says_why() -> None:
    A = co.PSD(diagonal_in_disguise(np.linspace(1, 10, 20)))
    info = co.solve(A, np.ones(20), info=True)[1]
    assert info.method == "Cholesky"
    assert "Cholesky" in co.explain(co.inv, A).rules


def test_auto_estimates_fill_before_it_eliminates() -> None:
    import scipy.sparse

    n = 6000
    random = scipy.sparse.random_array((n, n), density=8 / n, rng=np.random.default_rng(0))
    # an expander: its factors are nearly full
    S = (random + random.T + 30 * scipy.sparse.eye_array(n)).tocsr()
    A = co.PSD(co.Sparse(S))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, info = co.solve(A, np.ones(n), info=True)
    assert info.method == "CG"
    assert np.linalg.norm(S @ x - 1) <= 2e-8 * np.sqrt(n)
    assert "inv_filling_sparse" in co.explain(co.inv, A).rules
    band = scipy.sparse.diags_array(
        [-np.ones(n - 1), 4 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    ).tocsr()
    assert "inv_sparse" in co.explain(co.inv, co.PSD(co.Sparse(band))).rules
