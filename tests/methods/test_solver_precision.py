"""Half precision, refinement, and programs that are compiled."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

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
SQUARE = ("CG", "CG, one reduction", "MINRES", "GMRES", "BiCGSTAB")


def definite(n: int = 30) -> Any:
    Q = np.random.default_rng(0).standard_normal((n, n))
    return Q @ Q.T + n * np.eye(n)


def on(framework: str, x: Any, dtype: str = "float64") -> Any:
    pytest.importorskip(framework)
    xp = co.backends.get(framework)
    return xp.astype(xp.asarray(x), getattr(xp, dtype))


def host(x: Any) -> Any:
    return np.asarray(co.backends.namespace_of(x).to_numpy(x), float)


# ---------------------------------------------------------------------------------------------------- half precision

HALF = [("numpy", "float16"), ("torch", "float16"), ("torch", "bfloat16")]


@pytest.mark.parametrize(("framework", "dtype"), HALF)
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_neither_overflows_nor_stops(
    method: str, framework: str, dtype: str
) -> None:
    # entries near 8000: their squares are out of range
    A = on(framework, definite(40) * 100, dtype)
    b = on(framework, np.full(40, 1000.0), dtype)
    x, info = co.solve(co.opaque(A), b, METHODS[method](), info=True)
    assert x.dtype == A.dtype
    assert not info.failed
    assert np.linalg.norm(host(A) @ host(x) - 1000) <= 0.02 * 1000 * np.sqrt(40)


@pytest.mark.parametrize(("dtype", "method"), [("bfloat16", "CG"), ("float16", "GMRES")])
def test_half_precision_neither_overflows_nor_stops_in_jax(dtype: str, method: str) -> None:
    A, b = on("jax", definite(40) * 100, dtype), on("jax", np.full(40, 1000.0), dtype)
    x, info = co.solve(co.opaque(A), b, METHODS[method](), info=True)
    assert x.dtype == A.dtype
    assert not info.failed
    assert np.linalg.norm(host(A) @ host(x) - 1000) <= 0.02 * 1000 * np.sqrt(40)


@pytest.mark.parametrize("scale", [1e-5, 1.0, 6e4])
def test_half_precision_holds_for_right_sides_of_any_size(scale: float) -> None:
    """|b|^2 of these is out of the range of float16, or below it (Maddox, Potapczynski and Wilson 2022, section 4)."""
    A, b = definite(40).astype(np.float16), np.full(40, scale, np.float16)
    x, info = co.solve(co.opaque(co.PSD(A)), b, co.CG(), info=True)
    true = np.linalg.norm(A.astype(float) @ x.astype(float) - b) / np.linalg.norm(b.astype(float))
    assert true == pytest.approx(info.residual.max(), rel=1e-2), (
        "the residual is that of the answer as it is given, rounded"
    )
    assert info.status is (Status.SUCCESS if scale >= 1 else Status.STAGNATION), (
        "x has no place in float16 where it is so small"
    )
    assert true <= 0.03 or info.failed


@pytest.mark.parametrize(("framework", "dtype"), HALF)
def test_auto_solves_in_half_precision(framework: str, dtype: str) -> None:
    A, b = on(framework, definite(), dtype), on(framework, np.ones(30), dtype)
    x, info = co.solve(co.PSD(A), b, info=True)
    assert x.dtype == A.dtype
    assert not info.failed
    assert np.linalg.norm(host(A) @ host(x) - 1) <= 0.05 * np.sqrt(30)


# ---------------------------------------------------------------------------------------------------- refinement


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("method", SQUARE)
def test_low_precision_is_refined_to_full_accuracy(
    method: str, framework: str, precision: str
) -> None:
    if (framework, precision) == ("numpy", "bfloat16"):
        pytest.skip("NumPy has no bfloat16")
    A = definite()
    options = {"tol": 1e-13, "precision": precision}
    X, info = co.solve(
        co.opaque(on(framework, A)),
        on(framework, np.ones((30, 2))),
        METHODS[method](**options),
        info=True,
    )
    assert info.status is Status.SUCCESS
    assert np.linalg.norm(A @ host(X) - 1) <= 1.1e-13 * np.sqrt(60)


def test_low_precision_is_refined_in_a_compiled_program() -> None:
    jax = pytest.importorskip("jax")
    A, b = on("jax", definite()), on("jax", np.ones(30))
    solve = jax.jit(
        lambda A, b: co.solve(
            co.opaque(co.PSD(A)), b, co.CG(tol=1e-12, precision="bfloat16"), info=True
        )
    )
    x, info = solve(A, b)
    assert bool(info.converged.all())
    assert np.linalg.norm(host(A) @ host(x) - 1) <= 1.1e-12 * np.sqrt(30)


def test_the_work_of_refinement_is_in_low_precision() -> None:
    seen: list[Any] = []

    def product(X: Any, d: Any) -> Any:
        seen.append(np.dtype(d.dtype).name)
        return d[:, None] * X.astype(d.dtype)

    A = co.PSD(co.MatrixFree(product, (40, 40), parameters=(np.linspace(1, 9, 40),)))
    info = co.solve(A, np.ones(40), co.CG(tol=1e-12, precision="float32"), info=True)[1]
    assert info.status is Status.SUCCESS
    assert seen.count("float64") < seen.count("float32") / 2


def test_what_is_too_ill_conditioned_for_the_low_precision_says_so() -> None:
    A = np.diag(np.logspace(0, 12, 40))
    x, info = co.solve(
        co.opaque(co.PSD(A)),
        np.ones(40),
        co.CG(tol=1e-13, precision="float16", max_iters=200),
        info=True,
    )
    true = np.linalg.norm(A @ x - 1) / np.sqrt(40)
    assert info.failed or true <= 1.01e-13


# ---------------------------------------------------------------------------------------------------- LDL


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [
        ("numpy", "float64"),
        ("numpy", "complex128"),
        ("torch", "float64"),
        ("torch", "complex128"),
        ("jax", "complex128"),
    ],
)
def test_ldl_solves_indefinite_systems(framework: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(
        rng.standard_normal((9, 9))
        + (1j * rng.standard_normal((9, 9)) if dtype == "complex128" else 0)
    )[0]
    S = (Q * np.array([-3.0, -2, -1, 1, 2, 3, 4, 5, 6])) @ Q.conj().T
    S = (S + S.conj().T) / 2
    x, info = co.solve(
        co.SelfAdjoint(on(framework, S, dtype)),
        on(framework, np.ones(9), dtype),
        co.LDL(),
        info=True,
    )
    assert info.method == "LDL"
    assert info.status is Status.SUCCESS
    np.testing.assert_allclose(S @ co.backends.get(framework).to_numpy(x), 1, atol=1e-12)
    assert "LDL" in co.explain(co.inv, co.SelfAdjoint(on(framework, S, dtype))).rules, (
        "and Auto takes it too"
    )


# ---------------------------------------------------------------------------------------------------- compiled programs


@pytest.mark.parametrize(("method", "options"), [("CG", {}), ("GMRES", {"restart": 2})])
def test_a_fixed_number_of_iterations_compiles_in_torch(
    method: str, options: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    A, b = on("torch", definite(8)), on("torch", np.ones((8, 2)))
    chosen = METHODS[method](max_iters=4, **options)
    solve = torch.compile(
        lambda A, b: co.solve(co.opaque(co.PSD(A)), b, chosen), fullgraph=True, backend="eager"
    )
    expected = co.solve(co.opaque(co.PSD(A)), b, chosen, on_failure="ignore")
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        answer = solve(A, b)
    np.testing.assert_allclose(host(answer), host(expected), atol=1e-6)


@pytest.mark.parametrize("method", [co.CG, co.GMRES])
def test_in_jax_the_whole_solve_is_one_loop_and_no_call_of_the_host(method: Any) -> None:
    jax = pytest.importorskip("jax")
    A, b = on("jax", definite()), on("jax", np.ones(30))

    def program(max_iters: int) -> Any:
        solve = lambda A, b: co.solve(
            co.opaque(co.PSD(A)), b, method(max_iters=max_iters), info=True
        )[0]
        return jax.make_jaxpr(solve)(A, b)

    short, long = program(100), program(900)
    loops = [
        str(equation) for equation in equations(short.jaxpr) if equation.primitive.name == "while"
    ]
    assert loops
    assert not any("callback" in loop for loop in loops)
    assert abs(len(str(long)) - len(str(short))) < 0.01 * len(str(short)), (
        "the steps are not written out"
    )


def equations(program: Any) -> Any:
    """All equations of a program of JAX's, those of programs inside it too."""
    for equation in program.eqns:
        yield equation
        for inner in equation.params.values():
            for part in inner if isinstance(inner, tuple) else (inner,):
                part = getattr(part, "jaxpr", part)
                if hasattr(part, "eqns"):
                    yield from equations(part)


def test_in_jax_a_batch_of_operators_and_right_sides_is_mapped_over() -> None:
    jax = pytest.importorskip("jax")
    A = np.stack([definite(12), np.eye(12), 5 * definite(12)])
    B = np.random.default_rng(1).standard_normal((3, 12, 2))
    B[1, :, 1] = 0

    def solve(A: Any, B: Any) -> Any:
        return co.solve(co.opaque(co.PSD(A)), B, co.CG(tol=1e-10), info=True)

    X, info = jax.vmap(solve)(on("jax", A), on("jax", B))
    np.testing.assert_allclose(A @ host(X), B, atol=1e-8)
    assert info.converged.shape == info.residual.shape == (3, 2)
    assert bool(info.converged.all())


# ---------------------------------------------------------------------------------------------------- refinement in double


def spread_out(dtype: str, condition: float = 1e5, n: int = 120) -> Any:
    """A dense definite matrix and a right side of which single precision loses the answer on the way, but can hold it."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    M = (Q * np.geomspace(1, condition, n)) @ Q.T
    return ((M + M.T) / 2).astype(dtype), rng.normal(size=(n, 2)).astype(dtype)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("method", ["CG", "MINRES"])
def test_a_run_in_single_precision_that_stagnates_is_refined(
    method: str, dtype: str, framework: str
) -> None:
    pytest.importorskip(framework)
    xp, (M, B) = co.backends.get(framework), spread_out(dtype)
    A = co.opaque(co.PSD(co.Dense(M))).to(backend=framework)
    x, info = co.solve(A, xp.asarray(B), METHODS[method](max_iters=5000), info=True)
    assert xp.dtype_name(x.dtype) == dtype
    assert "refined" in info.message
    X = xp.to_numpy(x).astype(complex)
    residual = np.linalg.norm(M.astype(complex) @ X - B, axis=0) / np.linalg.norm(B, axis=0)
    assert residual.max() <= 3.5e-4
    np.testing.assert_allclose(xp.to_numpy(info.residual), residual, rtol=1e-3)


def test_what_single_precision_cannot_hold_is_still_called_stagnation() -> None:
    M, B = spread_out("float32", condition=1e6)
    A = co.opaque(co.PSD(co.Dense(M)))
    x, info = co.solve(A, B[:, 0], co.CG(max_iters=20_000), info=True)
    assert info.status is Status.STAGNATION
    assert "double precision" in info.message
    residual = np.linalg.norm(M.astype(float) @ x - B[:, 0]) / np.linalg.norm(B[:, 0])
    assert residual > 3.5e-4
    assert float(info.residual) == pytest.approx(residual, rel=1e-2)


def test_the_refined_answer_has_its_derivatives() -> None:
    torch = pytest.importorskip("torch")
    M, B = spread_out("float32")
    m, b = torch.tensor(M, requires_grad=True), torch.tensor(B[:, 0], requires_grad=True)
    x, info = co.solve(co.opaque(co.PSD(co.Dense(m))), b, co.CG(max_iters=5000), info=True)
    assert not info.failed
    x.sum().backward()
    expected = np.linalg.solve(M.astype(float), np.ones(len(M)))
    error = np.linalg.norm(b.grad.numpy() - expected) / np.linalg.norm(expected)
    assert error < 2e-2


def test_functions_of_users_are_not_asked_for_another_precision() -> None:
    M, B = spread_out("float32")
    seen: set[Any] = set()

    def multiply(X: Any) -> Any:
        seen.add(X.dtype)
        return M @ X

    A = co.PSD(co.MatrixFree(multiply, M.shape, rmatmat=multiply, like=M))
    with pytest.warns(co.ConvergenceWarning, match="STAGNATION"):
        co.solve(A, B[:, 0], co.CG(max_iters=5000))
    assert seen == {np.dtype("float32")}
