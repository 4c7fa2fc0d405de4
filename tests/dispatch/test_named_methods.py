"""A named method runs on parts only if each is known to have what it needs; else on the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status, backends

RNG = np.random.default_rng(0)
M = RNG.standard_normal((12, 12)) + 6 * np.eye(12)
S = M @ M.T
J = np.array([[0.0, 2.0], [-2.0, 0.0]])  # skew, so that J ⊗ J is symmetric


def gram(X: Any) -> co.LinearOperator:
    """X^H X, which is known to be positive semidefinite."""
    D = co.Dense(X)
    return D.H @ D


# Operators that are positive definite, by what is known of them, of factors that are not.
WHOLES: dict[str, Callable[[Any], Any]] = {
    "gram": lambda a: gram(a(M)),
    "scaled": lambda a: co.PD(-1.0 * co.Dense(a(-S))),
    "kronecker": lambda a: co.PD(co.Kronecker(a(-S[:3, :3]), a(-S[:4, :4]))),
    "known self-adjoint": lambda a: co.PD(
        co.Kronecker(co.SelfAdjoint(a(-S[:3, :3])), co.SelfAdjoint(a(-S[:4, :4])))
    ),
    "nested": lambda a: co.Kronecker(co.PD(a(S[:2, :2])), gram(a(M[:6, :6]))),
    "blocks": lambda a: co.BlockDiag(
        co.PD(co.Kronecker(a(-S[:2, :2]), a(-S[:3, :3]))), co.PD(-1.0 * co.Dense(a(-S[:6, :6])))
    ),
    "transposed": lambda a: co.PD(co.Kronecker(a(-S[:3, :3]), a(-S[:4, :4])).T),
    "blocks known as a whole": lambda a: co.PD(
        co.BlockDiag(-1.0 * co.Dense(a(-S[:6, :6])), a(S[:6, :6]))
    ),
    "low rank": lambda a: co.PD(
        co.Diagonal(a(np.full(12, 3.0))) + co.LowRank(a(M[:, :2]), a(0.1 * M[:, :2]))
    ),
}
SOLVERS = [co.CG(tol=1e-10), co.MINRES(tol=1e-10), co.Cholesky(), co.LDL()]
FRAMEWORKS = ["numpy", "torch"]


def made(name: str, framework: str) -> tuple[Any, np.ndarray]:
    xp = backends.get(framework)
    A = WHOLES[name](xp.asarray)
    return A, xp.to_numpy(A.to_dense())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", SOLVERS, ids=lambda m: m.name)
@pytest.mark.parametrize("name", WHOLES)
def test_systems_are_solved_whatever_the_factors_are(
    name: str, method: Any, framework: str
) -> None:
    A, dense = made(name, framework)
    b = np.arange(1.0, 13.0)
    x, info = co.solve(A, A.xp.asarray(b), method, info=True)
    assert info.status is Status.SUCCESS
    np.testing.assert_allclose(A.xp.to_numpy(x), np.linalg.solve(dense, b), rtol=1e-7, atol=1e-7)
    inverse, info = co.inv(A, method, info=True)
    assert info.status is Status.SUCCESS
    np.testing.assert_allclose(
        A.xp.to_numpy(inverse @ A.xp.asarray(b)), np.linalg.solve(dense, b), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("method", [co.Cholesky(), co.LDL()], ids=lambda m: m.name)
@pytest.mark.parametrize("name", WHOLES)
def test_determinants_are_right_whatever_the_factors_are(
    name: str, method: Any, framework: str
) -> None:
    A, dense = made(name, framework)
    for f, exact in ((co.logdet, np.linalg.slogdet(dense)[1]), (co.det, np.linalg.det(dense))):
        value, info = f(A, method, info=True)
        assert info.status is Status.SUCCESS
        assert float(value) == pytest.approx(exact, rel=1e-9)
    x, value = co.solve_and_logdet(A, A.xp.asarray(np.ones(12)), co.Cholesky())
    np.testing.assert_allclose(dense @ A.xp.to_numpy(x), np.ones(12), atol=1e-8)
    assert float(value) == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-9)


def test_jax_solves_and_differentiates_on_the_whole() -> None:
    jax = pytest.importorskip("jax")
    A, dense = made("gram", "jax")
    b = A.xp.asarray(np.ones(12))
    exact = np.linalg.solve(dense, np.ones(12))
    np.testing.assert_allclose(
        jax.jit(lambda A: co.solve(A, b, co.CG(tol=1e-12)))(A), exact, atol=1e-8
    )
    slope = jax.grad(lambda X: co.logdet(gram(X), co.Cholesky()))(A.xp.asarray(M))
    np.testing.assert_allclose(slope, 2 * np.linalg.inv(M).T, atol=1e-8)


@pytest.mark.parametrize(
    "name",
    ["scaled", "kronecker", "known self-adjoint", "nested", "blocks", "blocks known as a whole"],
)
def test_quadrature_estimates_the_whole_where_parts_are_not_positive(name: str) -> None:
    A, dense = made(name, "numpy")
    exact = np.linalg.slogdet(dense)[1]
    value, info = co.logdet(A, co.SLQ(probes=100), info=True)
    assert abs(value - exact) <= 5 * info.error + 1e-6
    value, info = co.trace(A, co.XNysTrace(probes=12), info=True)
    assert value == pytest.approx(np.trace(dense), rel=1e-6)


def test_the_spectrum_of_a_symmetric_product_of_skew_factors_is_that_of_the_whole() -> None:
    A = co.Kronecker(J, J)  # nothing is known of it: the word of the user is taken, for the whole
    exact = np.linalg.eigvalsh(A.to_dense())
    for method, k, which in (
        (co.Eigh(), None, "LM"),
        (co.Lanczos(), 2, "LA"),
        (co.LOBPCG(), 2, "LA"),
    ):
        (values, _), info = co.eig(A, k, which, method, info=True)
        assert info.status is Status.SUCCESS
        np.testing.assert_allclose(values, exact if k is None else exact[-k:], atol=1e-7)
    np.testing.assert_allclose(
        co.exp(A, co.Eigh()).to_dense(), co.exp(co.Dense(A.to_dense())).to_dense(), atol=1e-10
    )
    assert co.eigmax(A, method=co.Lanczos()) == pytest.approx(exact[-1])


def test_factors_known_to_be_what_the_method_needs_are_solved_one_by_one() -> None:
    A = co.Kronecker(co.PD(S[:3, :3]), co.PD(S[:4, :4]))
    for method in (co.CG(), co.Cholesky(), co.MINRES()):
        assert co.explain(co.inv, A, method).rules == ["inv_kronecker", method.name, method.name]
    rules = co.explain(co.slogdet, A, co.SLQ()).rules
    assert rules[0] == "slogdet_kronecker"
    assert rules.count("SLQ") >= 2
    inner = co.explain(co.inv, made("nested", "numpy")[0], co.Cholesky())
    assert inner.rules == ["inv_kronecker", "Cholesky", "Cholesky"]


def test_parts_that_never_use_the_method_do_not_forbid_a_split() -> None:
    A = co.Kronecker(co.PD(S[:3, :3]), co.Diagonal([1.0, -2.0]))
    assert co.explain(co.inv, A, co.Cholesky()).rules == [
        "inv_kronecker",
        "Cholesky",
        "inv_diagonal",
    ]
    x, info = co.solve(A, np.ones(6), co.Cholesky(), info=True)
    np.testing.assert_allclose(A @ x, np.ones(6), atol=1e-10)
    assert info.status is Status.SUCCESS


def test_a_method_that_needs_nothing_runs_on_every_factor() -> None:
    A = co.Dense(M) @ co.Dense(M.T)
    for method in (co.LU(), co.QR(), co.GMRES()):
        assert co.explain(co.inv, A, method).rules == ["inv_product", method.name, method.name]


def test_blocks_are_what_the_whole_is_also_by_the_word_of_the_user() -> None:
    A = co.BlockDiag(S[:3, :3], S[:4, :4])  # nothing is known of it
    assert co.explain(co.inv, A, co.Cholesky()).rules == [
        "inv_block_diagonal",
        "Cholesky",
        "Cholesky",
    ]
    assert co.explain(co.inv, co.Dense(M).T, co.LDL()).rules in (["LDL"], ["inv_turned", "LDL"])
    np.testing.assert_allclose(A @ co.solve(A, np.ones(7), co.CG(tol=1e-12)), np.ones(7), atol=1e-8)


def test_explain_says_what_runs_and_why_the_rule_does_not() -> None:
    A, _ = made("gram", "numpy")
    plan = co.explain(co.inv, A, co.Cholesky())
    assert plan.rules == ["Cholesky"]
    assert (
        "inv_product",
        "Cholesky needs parts that are known to be PSD, and Dense is not",
    ) in plan.rejected
    plan = co.explain(
        co.inv, co.PD(co.Tridiagonal(-np.ones(4), 3 * np.ones(5), -np.ones(4))), co.CG()
    )
    assert plan.rules == ["CG"]
    assert plan.rejected[0] == ("inv_tridiagonal", "CG was asked for, which only multiplies by A")
    plan = co.explain(co.trace, co.Dense(M) + co.Dense(S), co.Hutchinson())
    assert ("trace_sum", "it has no standard error, which Hutchinson gives") in plan.rejected


def test_a_compiled_torch_program_goes_the_same_way() -> None:
    torch = pytest.importorskip("torch")
    A, dense = made("kronecker", "torch")
    b = torch.ones(12, dtype=torch.float64)
    solve = torch.compile(
        lambda A, b: co.solve(A, b, co.Cholesky()), fullgraph=True, backend="eager"
    )
    np.testing.assert_allclose(solve(A, b).numpy(), np.linalg.solve(dense, np.ones(12)), atol=1e-9)


def test_a_factorisation_that_broke_down_says_that_the_whole_is_not_positive() -> None:
    for A in (
        -1.0 * co.Dense(S[:6, :6]),
        co.Kronecker(S[:2, :2], -S[:3, :3]),
        co.Dense(M[:6, :6]) @ co.Dense(-M[:6, :6].T),
    ):
        for f in (
            lambda A: co.solve(A, np.ones(6), co.Cholesky(), info=True),
            lambda A: co.logdet(A, co.Cholesky(), info=True),
        ):
            assert f(A)[1].status is Status.NOT_POSITIVE_DEFINITE
    # of a part that uses no method
    singular = co.Kronecker(co.Diagonal([1.0, 0.0]), co.PD(S[:3, :3]))
    assert co.solve(singular, np.ones(6), co.Cholesky(), info=True)[1].status is Status.SINGULAR


def test_reports_of_parts_that_were_tried_first_are_dropped() -> None:
    # fails as a part, before the other factor shows that the split is not allowed
    singular = co.PD(np.diag([1.0, 0.0]))
    A = co.Kronecker(co.Kronecker(singular, co.Dense(-S[:2, :2])), co.PD(S[:2, :2]))
    _, info = co.slogdet(co.PD(A), co.Cholesky(), info=True)
    assert [child.rule for child in info.children] == []
    assert info.status is Status.NOT_POSITIVE_DEFINITE


def test_a_call_inside_a_split_by_another_method_is_no_part_of_it() -> None:
    """A user's own product may solve with what it likes, while a rule splits."""
    inner = co.Dense(S)  # nothing is known of it

    def multiply(X: np.ndarray) -> np.ndarray:
        return S @ (S @ co.solve(inner, X, co.CG(tol=1e-13)))

    A = co.Kronecker(co.PD(co.MatrixFree(multiply, (12, 12), dtype=float)), co.PD(S[:2, :2]))
    x = co.solve(A, np.ones(24), co.CG(tol=1e-9))
    np.testing.assert_allclose(np.kron(S, S[:2, :2]) @ x, np.ones(24), atol=1e-6)


# ---------------------------------------------------------------------------------------------------- what methods say of A


def test_eig_of_a_self_adjoint_operator_is_real_and_ascending_by_every_method() -> None:
    for xp in (backends.get("numpy"), backends.get("torch")):
        A = co.PSD(xp.asarray(np.diag([2.0, 1.0, 3.0])))
        for method in (co.Eig(), co.Arnoldi(), co.Eigh(), co.Lanczos()):
            values, V = co.eig(A, 3, "LM", method)
            np.testing.assert_allclose(xp.to_numpy(values), [1.0, 2.0, 3.0], atol=1e-9)
            assert not xp.is_complex(values)
            assert V.isa(co.Stiefel)


@pytest.mark.parametrize("method", [co.LDL(), co.Cholesky()], ids=lambda m: m.name)
def test_a_determinant_from_one_triangle_is_no_success_where_the_other_differs(method: Any) -> None:
    cyclic = np.roll(np.eye(3), 1, axis=1)  # whose lower triangle is that of a singular matrix
    for xp in (backends.get("numpy"), backends.get("torch"), backends.get("jax")):
        for matrix in (M[:3, :3], cyclic):
            for f in (co.logdet, co.slogdet, co.det):
                _, info = f(co.Dense(xp.asarray(matrix)), method, info=True)
                assert info.status in (Status.INACCURATE, Status.NOT_POSITIVE_DEFINITE)


def test_ldl_has_the_determinants_of_indefinite_and_of_singular_matrices() -> None:
    H = M + M.T - 13 * np.eye(12)
    value, info = co.det(co.Dense(H), co.LDL(), info=True)
    assert value == pytest.approx(np.linalg.det(H), rel=1e-9)
    assert info.status is Status.SUCCESS
    value, info = co.logdet(co.Dense(np.ones((2, 2))), co.LDL(), info=True)
    assert value == -np.inf
    assert info.status is Status.SUCCESS


def test_a_false_claim_is_noticed_inside_a_compiled_determinant() -> None:
    jax = pytest.importorskip("jax")
    # the lower triangle is that of a positive definite matrix
    matrix = np.tril(S[:3, :3]) + np.triu(S[:3, :3], 1) * 0.5
    found = jax.jit(lambda X: co.logdet(co.PD(X)))(jax.numpy.asarray(matrix))
    assert float(found) == pytest.approx(np.linalg.slogdet(matrix)[1])


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_determinants_keep_the_precision(framework: str) -> None:
    xp = backends.get(framework)
    for name in ("float32", "complex64")[: 1 if framework == "jax" else 2]:
        X = xp.asarray(S[:3, :3].astype(name))
        for A in (co.Dense(X), co.PSD(X), co.Kronecker(X, X), co.Diagonal(X[0]))[
            : 1 if framework == "jax" else 4
        ]:
            assert co.det(A).dtype == X.dtype
            sign, logarithm = co.slogdet(A)
            assert (sign.dtype, logarithm.dtype) == (X.dtype, xp.float32)


def test_a_misspelt_keyword_is_told_what_it_resembles():
    A, b = co.Dense(np.eye(2)), np.ones(2)
    with pytest.raises(TypeError, match=r"'metod'. Did you mean 'method'\?"):
        co.solve(A, b, metod=co.CG())
    with pytest.raises(TypeError, match=r"argument 'zzz'\.$"):
        co.solve(A, b, zzz=1)


def test_the_methods_that_an_error_lists_can_be_made():
    with pytest.raises(co.MethodError) as caught:
        co.solve(co.Dense(np.eye(2)), np.ones(2), 3)
    names = re.findall(r"(\w+)\(\)", str(caught.value).partition("Use one of")[2])
    assert len(names) > 20
    assert not set(names) & {"Method", "Iterative", "Spectral", "Stochastic"}
    for name in names:
        getattr(co, name)
