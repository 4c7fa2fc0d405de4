"""PETSc and SLEPc as methods; skipped where they are missing, but for what is said then."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.distributed.petsc import assembled

IS_THERE = all(map(importlib.util.find_spec, ("petsc4py", "slepc4py")))
needs_petsc = pytest.mark.skipif(not IS_THERE, reason="petsc4py or slepc4py is not there")
IS_COMPLEX = False
if IS_THERE:
    from petsc4py import PETSc as petsc

    IS_COMPLEX = np.dtype(petsc.ScalarType).kind == "c"
needs_complex = pytest.mark.skipif(not IS_COMPLEX, reason="no PETSc of complex numbers")
SIDE = 12
N = SIDE * SIDE


def poisson(n: int = SIDE) -> Any:
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    eye = scipy.sparse.eye_array(n)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocsr()


GRID = poisson()
b = np.random.default_rng(0).normal(size=N)
LINE = np.full(N, 2.5), np.full(N - 1, -1.0)

CASES: dict[str, tuple[Any, Any]] = {
    "sparse, CG and GAMG": (lambda: co.PSD(co.Sparse(GRID)), lambda: co.PETSc("cg", "gamg")),
    "sparse, by itself": (lambda: co.PSD(co.Sparse(GRID)), lambda: co.PETSc()),
    "sparse, LU": (lambda: co.Sparse(GRID + 0.1 * GRID @ GRID), lambda: co.PETSc("preonly", "lu")),
    "not symmetric": (
        lambda: co.Sparse(GRID + scipy.sparse.eye_array(N, k=1)),
        lambda: co.PETSc("gmres", "ilu"),
    ),
    "self-adjoint": (
        lambda: co.SelfAdjoint(co.Sparse(GRID - 0.3 * scipy.sparse.eye_array(N))),
        lambda: co.PETSc(tol=1e-7),
    ),
    "tridiagonal": (
        lambda: co.Tridiagonal(LINE[1], LINE[0], LINE[1]),
        lambda: co.PETSc("bcgs", "jacobi"),
    ),
    "banded": (lambda: co.Banded([LINE[0], LINE[1][1:]], [0, 2]), lambda: co.PETSc("gmres")),
    "block": (
        lambda: co.Block(
            [
                [co.Sparse(GRID[:60, :60]), co.Sparse(GRID[:60, 60:])],
                [None, co.Sparse(GRID[60:, 60:])],
            ]
        ),
        lambda: co.PETSc("gmres", "ilu"),
    ),
    "blocks along the diagonal": (
        lambda: co.BlockDiag(co.Sparse(GRID[:70, :70]), co.Diagonal(np.arange(1.0, N - 69))),
        lambda: co.PETSc("cg", "icc"),
    ),
    "sum": (lambda: 2 * co.Sparse(GRID) + co.Identity(N), lambda: co.PETSc("cg", "gamg")),
    "shell": (
        lambda: co.PSD(co.MatrixFree(lambda X: GRID @ X, (N, N), rmatmat=lambda X: GRID.T @ X)),
        lambda: co.PETSc("cg"),
    ),
    "dense, as a shell": (lambda: co.Dense(GRID.toarray()), lambda: co.PETSc("gmres", tol=1e-9)),
}


@needs_petsc
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [1, 2])
def test_systems(name: str, columns: int) -> None:
    make, method = CASES[name]
    A, B = make(), b if columns == 1 else np.stack([b, b**2], -1)
    x, info = co.solve(A, B, method(), info=True)
    M = A.to_dense()
    tol = method().tol or 1.5e-8
    residual = np.linalg.norm(M @ x - B, axis=0) / np.linalg.norm(B, axis=0)
    assert np.all(residual <= tol)
    assert not info.failed and info.method == "PETSc"
    np.testing.assert_allclose(info.residual, residual, rtol=1e-3, atol=1e-15)
    assert info.iterations >= 1


@needs_petsc
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_other_frameworks_through_the_host(framework: str) -> None:
    pytest.importorskip(framework)
    xp = backends.get(framework)
    A = co.PSD(co.Sparse(GRID)).to(framework, dtype="float32")
    x = co.solve(A, xp.asarray(b.astype(np.float32)), co.PETSc("cg", "gamg"))
    assert type(x) is type(A.data)
    np.testing.assert_allclose(
        xp.to_numpy(x), scipy.sparse.linalg.spsolve(GRID, b), rtol=2e-2, atol=1e-3
    )
    d = xp.asarray(np.arange(1.0, 6.0, dtype=np.float32))
    shell = co.PSD(co.MatrixFree(lambda X, d: d[:, None] * X, (5, 5), parameters=(d,)))
    x = co.solve(shell, xp.ones((5,), dtype=d.dtype), co.PETSc("cg"))
    np.testing.assert_allclose(xp.to_numpy(x), 1 / np.arange(1.0, 6.0), rtol=1e-4)


@needs_petsc
def test_derivatives_are_those_of_the_equation() -> None:
    torch = pytest.importorskip("torch")
    diagonal = torch.full((N,), 4.0, dtype=torch.float64, requires_grad=True)
    off = torch.full((N - 1,), -1.0, dtype=torch.float64)
    right = torch.tensor(b, requires_grad=True)
    A = co.PSD(co.Tridiagonal(off, diagonal, off))
    co.solve(A, right, co.PETSc("cg", "jacobi", tol=1e-12)).sum().backward()
    M = A.to_dense().detach().numpy()
    x, w = np.linalg.solve(M, b), np.linalg.solve(M.T, np.ones(N))
    np.testing.assert_allclose(diagonal.grad.numpy(), -w * x, rtol=1e-8)
    np.testing.assert_allclose(right.grad.numpy(), w, rtol=1e-8)


@needs_petsc
def test_failures_have_a_status() -> None:
    A = co.PSD(co.Sparse(poisson(30)))
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        co.solve(A, np.ones(900), co.PETSc("cg", "none", max_iters=3))
    _, info = co.solve(A, np.ones(900), co.PETSc("cg", "none", max_iters=3), info=True)
    assert info.status is co.Status.MAX_ITERATIONS and info.residual > 1e-3 and "-3" in info.message
    indefinite = co.PSD(co.Sparse(scipy.sparse.diags_array([np.r_[-1.0, np.ones(9)]], offsets=[0])))
    _, info = co.solve(indefinite, np.ones(10), co.PETSc("cg", "none"), info=True)
    assert info.status in (co.Status.NOT_POSITIVE_DEFINITE, co.Status.SUCCESS)
    singular = co.Sparse(scipy.sparse.csr_array(np.ones((3, 3))))
    _, info = co.solve(singular, np.arange(3.0), co.PETSc("preonly", "lu"), info=True)
    assert info.failed


@needs_petsc
def test_bad_input_is_refused() -> None:
    A = co.PSD(co.Sparse(GRID))
    with pytest.raises(co.MethodError, match="PETSc failed"):
        co.solve(A, b, co.PETSc("no such method"))
    with pytest.raises(co.ShapeError, match="batch shape"):
        co.solve(co.Dense(np.stack([np.eye(3)] * 2)), np.ones((2, 3, 1)), co.PETSc())
    if not IS_COMPLEX:
        with pytest.raises(co.DtypeError, match="built for real"):
            co.solve(co.Sparse(GRID * 1j), b, co.PETSc())
    with pytest.raises(TypeError, match="ksp is 3"):
        co.PETSc(ksp=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options"):
        co.PETSc(options=3)
    with pytest.raises(co.MethodError, match="does not apply"):
        co.eig(A, 2, method=co.PETSc())


def of_rows(S: Any) -> Any:
    from colinear.distributed.petsc import matrix_of_rows

    return matrix_of_rows(S)


def by_function(S: Any) -> Any:
    multiply, adjoint = (lambda X: S.toarray() @ X), (lambda X: S.conj().T.toarray() @ X)
    return co.MatrixFree(multiply, S.shape, rmatmat=adjoint, dtype=S.dtype)


@needs_petsc
@pytest.mark.parametrize("make", [co.Sparse, of_rows, by_function])
@pytest.mark.parametrize("shape", [(N,), (N, 0), (2, N, 3)], ids=["vector", "none", "batch"])
def test_real_operators_take_complex_right_sides_and_batches(make: Any, shape: Any) -> None:
    rng = np.random.default_rng(1)
    B = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    A = co.PSD(make(GRID))
    for right in (B, B.real):
        X = co.solve(A, right, co.PETSc("cg", "none", tol=1e-10))
        assert X.dtype == right.dtype
        np.testing.assert_allclose(GRID.toarray() @ X, right, atol=1e-8)
        np.testing.assert_allclose(A @ right, GRID.toarray() @ right, atol=1e-12)
        np.testing.assert_allclose(A.H @ right, GRID.toarray() @ right, atol=1e-12)


@needs_complex
@pytest.mark.parametrize("make", [co.Sparse, of_rows, by_function])
def test_hermitian_operators(make: Any) -> None:
    turn = scipy.sparse.diags_array([np.full(N - 1, 0.3j)], offsets=[1])
    S = (GRID + turn + turn.conj().T + scipy.sparse.eye_array(N)).tocsr()
    A, right = co.PSD(make(S)), b + 1j
    np.testing.assert_allclose(S @ co.solve(A, right, co.PETSc("cg", "none")), right, atol=1e-6)
    np.testing.assert_allclose(A.T @ right, S.T @ right, atol=1e-12)
    values, V = co.eig(A, 3, "LA", co.SLEPc())
    np.testing.assert_allclose(values, np.linalg.eigvalsh(S.toarray())[-3:], rtol=1e-8)
    np.testing.assert_allclose(S @ V.to_dense(), V.to_dense() * values, atol=1e-6)


@needs_petsc
def test_options_reach_the_solver() -> None:
    A = co.PSD(co.Sparse(GRID))
    method = co.PETSc(options={"ksp_type": "cg", "pc_type": "jacobi"})
    x = co.solve(A, b, method)
    assert np.allclose(GRID @ x, b, atol=1e-6) and hash(method) == hash(method)
    assert "PETSc" in str(co.explain(co.solve, A, method=method))


@needs_petsc
@pytest.mark.parametrize("which", ["LA", "SA", "SM", "LM"])
@pytest.mark.parametrize("kind", ["sparse", "shell"])
def test_eigenpairs(which: str, kind: str) -> None:
    A = co.PSD(co.Sparse(GRID))
    if kind == "shell":
        A = co.PSD(co.MatrixFree(lambda X: GRID @ X, (N, N), rmatmat=lambda X: GRID @ X))
    (values, V), info = co.eig(A, 3, which, co.SLEPc(), info=True)
    known = np.linalg.eigvalsh(GRID.toarray())
    np.testing.assert_allclose(values, known[-3:] if which[0] == "L" else known[:3], rtol=1e-8)
    assert not info.failed and info.method == "SLEPc" and np.max(info.residual) < 1.5e-8
    assert V.isa(co.Stiefel)


@needs_petsc
def test_eigenpairs_of_a_matrix_that_is_not_symmetric() -> None:
    M = GRID + 0.5 * scipy.sparse.eye_array(N, k=1) - 0.5 * scipy.sparse.eye_array(N, k=-1)
    values, V = co.eig(co.Sparse(M), 4, "LM", co.SLEPc())
    known = np.linalg.eigvals(M.toarray())
    known = known[np.argsort(-np.abs(known))][:4]
    np.testing.assert_allclose(np.sort(np.abs(values)), np.sort(np.abs(known)), rtol=1e-6)
    np.testing.assert_allclose(M @ V.to_dense(), V.to_dense() * values, atol=1e-6)


@needs_petsc
def test_singular_triplets() -> None:
    S = scipy.sparse.random_array((80, 50), density=0.2, rng=np.random.default_rng(0)).tocsr()
    (U, s, V), info = co.svd(co.Sparse(S), 3, co.SLEPc(), info=True)
    np.testing.assert_allclose(s, np.linalg.svd(S.toarray())[1][:3], rtol=1e-8)
    assert not info.failed
    np.testing.assert_allclose(S @ V.to_dense(), U.to_dense() * s, atol=1e-7)


@needs_petsc
def test_too_few_iterations_of_slepc_have_a_status() -> None:
    A = co.PSD(co.Sparse(poisson(30)))
    _, info = co.eig(A, 6, "LA", co.SLEPc(max_iters=1, basis=7), info=True)
    assert info.status is co.Status.MAX_ITERATIONS and "have converged" in info.message


def test_what_is_assembled() -> None:
    for make, _ in CASES.values():
        A = make()
        S = assembled(A)
        if S is not None:
            np.testing.assert_allclose(S.toarray(), A.to_dense())


@pytest.mark.skipif(IS_THERE, reason="petsc4py is there")
@pytest.mark.parametrize(
    "ask", [lambda A: co.solve(A, b, co.PETSc()), lambda A: co.eig(A, 2, method=co.SLEPc())]
)
def test_where_they_are_missing_the_error_says_how_to_get_them(ask: Any) -> None:
    with pytest.raises(ImportError, match=r"colinear\[petsc\]"):
        ask(co.PSD(co.Sparse(GRID)))


@needs_petsc
@pytest.mark.skipif(shutil.which("mpiexec") is None, reason="mpiexec is not there")
def test_two_processes() -> None:
    script = Path(__file__).with_name("petsc_on_two.py")
    command = ["mpiexec", "-n", "2", sys.executable, str(script)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(co.__file__).parents[1]), *sys.path]),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all right on 2") == 2, done.stdout
