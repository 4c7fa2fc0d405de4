"""Methods from outside that are no `Iterative`: an algorithm of their own for a function, judged and
differentiated as ours are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import colinear as co
from colinear import backends
from colinear.methods import Method

FRAMEWORKS = ["numpy", "torch", "jax"]
RANDOM = np.random.default_rng(0).normal(size=(7, 7))
MATRIX = RANDOM + 7 * np.eye(7)
SYMMETRIC = RANDOM + RANDOM.T


@dataclass(frozen=True)
class Elimination(Method):
    """A direct solver: SciPy's LU, or least squares by its QR."""

    tol: float | None = None
    prepared = 0  # how often it was

    on_host = True

    def inv(self, A: Any) -> Any:
        type(self).prepared += 1
        factors = scipy.linalg.lu_factor(A.to_dense())
        return lambda B: scipy.linalg.lu_solve(factors, B)

    def pinv(self, A: Any) -> Any:
        M = A.to_dense()
        return lambda B: scipy.linalg.lstsq(M, B)[0]


@dataclass(frozen=True)
class JacobiSweeps(Method):
    """All eigenpairs of a symmetric matrix by plane rotations (Jacobi 1846)."""

    tol: float | None = None
    sweeps: int = 12

    on_host = True
    needs = co.SelfAdjoint.mask

    def eig(self, A: Any, k: int, which: str) -> Any:
        M, V = A.to_dense().copy(), np.eye(A.shape[-1])
        for _ in range(self.sweeps):
            for p, q in zip(*np.triu_indices(len(M), 1)):
                angle = 0.5 * np.arctan2(2 * M[p, q], M[q, q] - M[p, p])
                c, s = np.cos(angle), np.sin(angle)
                turn = np.array([[c, s], [-s, c]])
                M[:, [p, q]] = M[:, [p, q]] @ turn
                M[[p, q]] = turn.T @ M[[p, q]]
                V[:, [p, q]] = V[:, [p, q]] @ turn
        order = np.argsort(np.diag(M))
        chosen = order[-k:] if which[0] == "L" else order[:k]
        return np.diag(M)[chosen], V[:, chosen]

    def svd(self, A: Any, k: int) -> Any:
        U, s, Vh = np.linalg.svd(A.to_dense())
        return U[:, :k], s[:k], Vh[:k].T


@dataclass(frozen=True)
class Wrong(Method):
    """An algorithm whose answers are wrong."""

    tol: float | None = None

    def inv(self, A: Any) -> Any:
        return lambda B: 0.5 * B

    def eig(self, A: Any, k: int, which: str) -> Any:
        return A.xp.ones((k,)), A.xp.eye(A.shape[-1])[:, :k]

    def trace(self, A: Any) -> Any:
        return 42.0


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("columns", [1, 2])
def test_a_direct_solver_from_outside(framework: str, columns: int) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    b = RANDOM[:, 0] if columns == 1 else RANDOM[:, :2]
    A = co.Dense(xp.asarray(MATRIX))
    x, info = co.solve(A, xp.asarray(b), Elimination(), info=True)
    assert type(x) is type(A.A)
    np.testing.assert_allclose(xp.to_numpy(x), np.linalg.solve(MATRIX, b), rtol=1e-9)
    assert info.method == "Elimination" and xp.to_numpy(xp.max(info.residual)) < 1e-12


def test_no_right_side_has_no_solution() -> None:
    assert co.solve(co.Dense(MATRIX), RANDOM[:, :0], Elimination()).shape == (len(MATRIX), 0)


def test_it_is_prepared_once_for_many_right_sides() -> None:
    before = Elimination.prepared
    inverse = co.inv(co.Dense(MATRIX), Elimination())
    for b in RANDOM:
        np.testing.assert_allclose(MATRIX @ (inverse @ b), b, atol=1e-10)
    assert Elimination.prepared == before + 1
    np.testing.assert_allclose(inverse.T @ RANDOM[0], np.linalg.solve(MATRIX.T, RANDOM[0]))


def test_rules_split_first_and_plans_name_it() -> None:
    A = co.Kronecker(co.Dense(MATRIX), co.Diagonal(np.arange(1.0, 3.0)))
    x = co.solve(A, np.ones(14), Elimination())
    np.testing.assert_allclose(A @ x, np.ones(14), atol=1e-10)
    assert "Elimination" in str(co.explain(co.solve, A, method=Elimination()))
    S = co.Sparse(scipy.sparse.csr_array(MATRIX))  # whose own factorisation gives way
    x, info = co.solve(S, np.ones(7), Elimination(), info=True)
    assert "Elimination" in str(info) and np.allclose(MATRIX @ x, 1)


def test_least_squares_by_its_pseudoinverse() -> None:
    A, b = np.random.default_rng(1).normal(size=(9, 4)), np.arange(9.0)
    x, info = co.lstsq(A, b, Elimination(), info=True)
    np.testing.assert_allclose(x, np.linalg.lstsq(A, b)[0], rtol=1e-9)
    assert info.method == "Elimination" and info.converged
    np.testing.assert_allclose(co.pinv(A, None, Elimination()) @ b, x)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("which", ["LA", "SA"])
def test_eigenpairs_from_outside(framework: str, which: str) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    A = co.SelfAdjoint(co.Dense(xp.asarray(SYMMETRIC)))
    (values, V), info = co.eig(A, 3, which, JacobiSweeps(), info=True)
    known = np.linalg.eigvalsh(SYMMETRIC)
    expected = known[-3:] if which == "LA" else known[:3]
    np.testing.assert_allclose(xp.to_numpy(values), expected, rtol=1e-9)
    assert V.isa(co.Stiefel) and info.method == "JacobiSweeps" and not info.failed
    assert np.isclose(float(co.eigmax(A, method=JacobiSweeps())), known[-1])
    s = co.svd(A, 2, JacobiSweeps())[1]
    np.testing.assert_allclose(xp.to_numpy(s), np.linalg.svd(SYMMETRIC)[1][:2])


def test_derivatives_are_those_of_the_equation() -> None:
    torch = pytest.importorskip("torch")
    M = torch.tensor(MATRIX, requires_grad=True)
    co.solve(co.Dense(M), torch.ones(7, dtype=M.dtype), Elimination()).sum().backward()
    x, w = np.linalg.solve(MATRIX, np.ones(7)), np.linalg.solve(MATRIX.T, np.ones(7))
    np.testing.assert_allclose(M.grad.numpy(), -np.outer(w, x), rtol=1e-8)
    M = torch.tensor(SYMMETRIC, requires_grad=True)
    values, _ = co.eig(co.SelfAdjoint(co.Dense(M)), 2, "LA", JacobiSweeps())
    values.sum().backward()
    known = np.linalg.eigh(SYMMETRIC)[1][:, -2:]
    np.testing.assert_allclose(M.grad.numpy(), known @ known.T, atol=1e-8)


def test_derivatives_and_programs_in_jax() -> None:
    jax = pytest.importorskip("jax")

    def loss(M: Any) -> Any:
        return co.solve(co.Dense(M), jax.numpy.ones(7), Elimination()).sum()

    x, w = np.linalg.solve(MATRIX, np.ones(7)), np.linalg.solve(MATRIX.T, np.ones(7))
    np.testing.assert_allclose(jax.jit(loss)(MATRIX), x.sum(), rtol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(MATRIX), -np.outer(w, x), rtol=1e-4)
    with pytest.raises(co.MethodError, match="jit and vmap hide"):
        jax.jit(lambda M: co.eig(co.SelfAdjoint(co.Dense(M)), 1, "LA", JacobiSweeps()))(SYMMETRIC)


def test_wrong_answers_are_not_believed() -> None:
    with pytest.warns(co.ConvergenceWarning, match="INACCURATE"):
        co.solve(MATRIX, np.ones(7), Wrong())
    with pytest.warns(co.ConvergenceWarning, match="INACCURATE"):
        co.eig(co.SelfAdjoint(SYMMETRIC), 2, "LA", Wrong())


def test_other_functions_take_its_answer() -> None:
    assert co.trace(MATRIX, Wrong()) == 42.0
    assert co.trace(2 * co.Dense(MATRIX), Wrong()) == 84.0  # a rule splits first


def test_a_function_that_it_does_not_serve_says_what_would() -> None:
    with pytest.raises(co.MethodError, match=r"Wrong\(\) does not apply here"):
        co.svd(MATRIX, 2, Wrong())
    with pytest.raises(co.MethodError, match="slogdet"):
        co.logdet(MATRIX, Wrong())


def test_an_algorithm_that_gives_the_wrong_shapes() -> None:
    class Misshapen(Wrong):
        def inv(self, A: Any) -> Any:
            return lambda B: B[:2]

        def eig(self, A: Any, k: int, which: str) -> Any:
            return np.ones(k), np.ones((k, k))

    class NoFunction(Wrong):
        def inv(self, A: Any) -> Any:
            return 3

    with pytest.raises(co.ShapeError, match=r"shape \(7, 1\), it gave \(2, 1\)"):
        co.solve(MATRIX, np.ones(7), Misshapen())
    with pytest.raises(co.ShapeError, match=r"\(2,\), \(7, 2\)"):
        co.eig(MATRIX, 2, method=Misshapen())
    with pytest.raises(co.MethodError, match="gave int"):
        co.inv(MATRIX, NoFunction())
