"""What iterative methods say of bad input: every failure is named, none is passed over."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status

FRAMEWORKS = ("numpy", "torch", "jax")
METHODS = {
    "CG": co.CG,
    "CG, one reduction": functools.partial(co.CG, single_reduction=True),
    "MINRES": co.MINRES,
    "GMRES": co.GMRES,
    "BiCGSTAB": co.BiCGSTAB,
    "LSQR": co.LSQR,
    "LSMR": co.LSMR,
}


def definite(n: int = 20) -> Any:
    Q = np.random.default_rng(0).standard_normal((n, n))
    return Q @ Q.T + n * np.eye(n)


def on(framework: str, x: Any) -> Any:
    pytest.importorskip(framework)
    return co.backends.get(framework).asarray(x)


# ---------------------------------------------------------------------------------------------------- where to start


def test_a_start_of_another_framework_or_kind_is_refused() -> None:
    A, b = co.opaque(definite()), np.ones(20)
    with pytest.raises(co.DtypeError, match="x0 is complex"):
        co.solve(A, b, co.CG(x0=1j * b))
    with pytest.raises(
        co.ShapeError, match=r"x0 has the shape \(20, 2\), and the answer \(20, 3\)"
    ):
        co.solve(A, np.ones((20, 3)), co.CG(x0=np.ones((20, 2))))
    with pytest.raises(co.ShapeError, match="x0 needs 20 rows"):
        co.solve(A, b, co.CG(x0=np.ones(19)))
    with pytest.raises(co.BackendError, match="x0 is an array of torch and A a numpy operator"):
        co.solve(A, b, co.CG(x0=on("torch", b)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_start_serves_all_columns_and_each_may_have_its_own(framework: str) -> None:
    S = definite()
    A, B = co.opaque(on(framework, S)), np.random.default_rng(1).standard_normal((20, 2))
    exact = np.linalg.solve(S, B)
    info = co.solve(A, on(framework, B), co.CG(tol=1e-8, x0=on(framework, exact)), info=True)[1]
    assert info.iterations == 0
    X, info = co.solve(
        A, on(framework, B), co.CG(tol=1e-8, x0=on(framework, exact[:, 0])), info=True
    )
    np.testing.assert_allclose(np.asarray(X), exact, atol=1e-7)
    assert np.asarray(info.history)[0, 0] < 1e-12 < np.asarray(info.history)[0, 1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["b", "x0"])
def test_nan_in_what_was_given_is_said_before_the_first_iteration(method: str, where: str) -> None:
    bad = np.where(np.arange(20) == 3, np.nan, 1.0)
    b, x0 = (bad, None) if where == "b" else (np.ones(20), bad)
    info = co.solve(co.opaque(definite()), b, METHODS[method](x0=x0), info=True)[1]
    assert info.status is Status.NONFINITE
    assert info.iterations == 0
    assert "right side or in A x0" in info.message


# ---------------------------------------------------------------------------------------------------- products and preconditioners


@pytest.mark.parametrize("method", METHODS)
def test_nan_of_a_product_stops_torch_at_once(method: str) -> None:
    S, calls = on("torch", definite()), []

    def product(X: Any) -> Any:
        calls.append(1)
        return S @ X if len(calls) < 6 else float("nan") * X

    A = co.MatrixFree(product, (20, 20), like=S, rmatmat=product)
    info = co.solve(A, on("torch", np.ones((20, 2))), METHODS[method](tol=1e-14), info=True)[1]
    assert info.status is Status.NONFINITE
    assert len(calls) <= 9
    assert f"iteration {info.iterations}" in info.message


def test_nan_of_a_product_stops_a_compiled_program() -> None:
    jax = pytest.importorskip("jax")
    S = definite()
    S[7, 7] = np.nan
    A = co.opaque(co.PSD(on("jax", S)))
    info = co.solve(A, jax.numpy.ones(20), co.CG(), info=True)[1]
    assert info.status is Status.NONFINITE
    assert info.message == "NaN or infinity from the operator in iteration 1"
    traced = jax.jit(lambda A, b: co.solve(A, b, co.CG(), info=True)[1])(A, jax.numpy.ones(20))
    assert (traced.status, int(traced.iterations)) == (Status.NONFINITE, 1)


def test_a_compiled_solve_takes_right_sides_of_any_scale_but_an_infinite_one() -> None:
    jax = pytest.importorskip("jax")
    A = co.opaque(co.PD(co.Dense(jax.numpy.asarray([[2, 1], [1, 3]], "float32"))))

    @jax.jit
    def solve(b: Any) -> Any:
        _, info = co.solve(A, b, co.CG(), info=True)
        return co.solve(A, b, co.CG(), on_failure="ignore"), info._status

    for scale in (1e-36, 1e-25, 1.0, 1e25, 1e37):
        x, status = solve(jax.numpy.asarray([3 * scale, 4 * scale], "float32"))
        np.testing.assert_allclose(x / scale, [1, 1], rtol=1e-3)
        assert status == Status.SUCCESS
    x, status = solve(jax.numpy.asarray([3e38, 3e38], "float32"))  # whose norm is beyond float32
    assert status == Status.NONFINITE and not np.isfinite(x).any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("columns", [1, 2])
def test_nan_of_a_preconditioner_is_noticed_and_named(method: str, columns: int) -> None:
    M = co.Diagonal(np.where(np.arange(20) == 3, np.nan, 1.0))
    info = co.solve(
        co.opaque(definite()), np.ones((20, columns)), METHODS[method](preconditioner=M), info=True
    )[1]
    assert info.status is Status.NONFINITE
    assert "preconditioner" in info.message


@pytest.mark.parametrize("method", METHODS)
def test_a_singular_preconditioner_does_not_pass_for_an_answer(method: str) -> None:
    M = co.Diagonal(np.where(np.arange(20) < 10, 0.0, 1.0))
    x, info = co.solve(
        co.opaque(definite()), np.ones(20), METHODS[method](preconditioner=M), info=True
    )
    assert info.failed or np.linalg.norm(definite() @ x - 1) <= 1e-7


def test_preconditioners_that_do_not_fit_are_refused() -> None:
    A, b = co.opaque(definite()), np.ones(20)
    for M, error, words in (
        (np.eye(3), co.ShapeError, "preconditioner is 3x3 and A is 20x20"),
        (np.eye(20, 21), co.ShapeError, "preconditioner is 20x21"),
        (1j * np.eye(20), co.DtypeError, "complex and A is real"),
        (co.Jacobi, TypeError, r"give an instance of it, such as Jacobi\(\)"),
        (lambda A: "no operator", TypeError, "expected an operator"),
        (on("torch", np.eye(20)), co.BackendError, "torch operator and A a numpy one"),
    ):
        with pytest.raises(error, match=words):
            co.solve(A, b, co.CG(preconditioner=M))
    tall = co.opaque(np.ones((20, 3)))
    with pytest.raises(co.ShapeError, match="3x3"):
        co.lstsq(tall, b, co.LSQR(preconditioner=np.eye(20)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_operator_that_is_not_definite_and_a_preconditioner_that_is_not_are_told_apart(
    framework: str,
) -> None:
    pytest.importorskip(framework)
    good, bad = np.linspace(1, 2, 20), np.where(np.arange(20) == 3, -1.0, 1.0)
    for d, m, words in (
        (bad, good, "the operator showed"),
        (good, bad - 0.9, "the preconditioner showed"),
    ):
        A, M = (co.Diagonal(on(framework, each)) for each in (d, m))
        info = co.solve(
            co.opaque(A), on(framework, np.ones(20)), co.CG(tol=1e-12, preconditioner=M), info=True
        )[1]
        assert info.status is Status.NOT_POSITIVE_DEFINITE
        assert words in info.message


# ---------------------------------------------------------------------------------------------------- tolerances and options


@pytest.mark.parametrize("method", METHODS)
def test_a_tolerance_below_the_dtype_ends_at_its_floor(method: str) -> None:
    S = definite().astype(np.float32)
    x, info = co.solve(co.opaque(S), np.ones(20, np.float32), METHODS[method](tol=1e-30), info=True)
    assert info.status is Status.STAGNATION
    assert info.iterations < 200
    assert np.linalg.norm(S.astype(float) @ x - 1) <= 1e-5 * np.sqrt(20)
    with pytest.warns(co.ConvergenceWarning, match=r"STAGNATION.*wider dtype"):
        co.solve(co.opaque(S), np.ones(20, np.float32), METHODS[method](tol=1e-30))


def test_options_that_mean_nothing_are_refused() -> None:
    for options, words in (
        ({"tol": "small"}, "tol is 'small'"),
        ({"tol": float("nan")}, "tol is nan"),
        ({"max_iters": 3.0}, "max_iters is 3.0"),
        ({"precision": "float8"}, "precision is 'float8'"),
    ):
        with pytest.raises(ValueError, match=words):
            co.CG(**options)
    with pytest.raises(ValueError, match="damping is -1"):
        co.LSMR(damping=-1)
    with pytest.raises(co.MethodError, match=r"Write GMRES\(\)"):
        co.solve(definite(), np.ones(20), co.GMRES)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_to_solve_is_solved(method: str) -> None:
    for A, b in (
        (np.zeros((0, 0)), np.zeros(0)),
        (np.eye(3), np.zeros((3, 0))),
        (np.zeros((0, 3, 3)), np.zeros((0, 3, 1))),
        (np.eye(3), np.zeros(3)),
    ):
        x, info = co.solve(co.opaque(A), b, METHODS[method](), info=True)
        assert x.shape == b.shape
        assert not info.failed
        assert info.iterations == 0


def test_no_iterations_are_no_answer() -> None:
    x, info = co.solve(co.opaque(definite()), np.ones(20), co.CG(max_iters=0), info=True)
    assert info.status is Status.MAX_ITERATIONS
    assert (x == 0).all()
    with pytest.raises(co.ConvergenceError, match="MAX_ITERATIONS") as raised:
        co.solve(co.opaque(definite()), np.ones(20), co.CG(max_iters=0), on_failure="raise")
    assert raised.value.info.iterations == 0
