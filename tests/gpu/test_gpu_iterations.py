"""Iterations on a CUDA device: products by diagonals in one pass, steps that are replayed, refinement of single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from support.devices import cuda, on_device

import colinear as co
from colinear import backends
from colinear.operators.autograd import make_ready
from colinear.operators.fused import FusedDiagonals

pytestmark = pytest.mark.gpu
SIDE = 400  # of a grid: its matrix has more rows than `fused.FEWEST_ROWS`


def laplacian(values: Any = None) -> Any:
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(SIDE, SIDE))
    S = scipy.sparse.csr_array(scipy.sparse.kronsum(line, line))
    if values is not None:
        S.data = values.normal(size=S.nnz)
    return S


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("dtype, tol", [("float32", 1e-6), ("float64", 1e-14)])
@pytest.mark.parametrize("constant", [True, False])
def test_products_by_diagonals_are_those_of_the_matrix(
    framework: str, dtype: str, tol: float, constant: bool
) -> None:
    device, xp, rng = cuda(framework), backends.get(framework), np.random.default_rng(0)
    S = laplacian(None if constant else rng)
    A = co.Sparse(S).to(backend=framework, device=device, dtype=dtype)
    B = make_ready(A)
    assert isinstance(B, FusedDiagonals)
    for shape in ((SIDE**2,), (SIDE**2, 3), (2, SIDE**2, 2)):
        X = rng.normal(size=shape)
        x = xp.astype(on_device(framework, X), getattr(xp, dtype))
        for M, T in ((B, S), (B.H, S.T)):
            Y = np.stack([T @ each for each in X]) if X.ndim == 3 else T @ X
            found = xp.to_numpy(M @ x)
            assert np.linalg.norm(found - Y) <= tol * np.linalg.norm(Y)


@pytest.mark.parametrize("boundary", ["zero", "wrap"])
def test_stencils_of_other_operators_are_fused_too(boundary: str) -> None:
    torch, device = pytest.importorskip("torch"), cuda("torch")
    g = torch.Generator(device).manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device, dtype=torch.float64)
    n = SIDE**2
    for A in (
        co.Convolution(normal(3, 3), (SIDE, SIDE), boundary, centered=True),
        co.Tridiagonal(normal(n - 1), normal(n), normal(n - 1)),
        co.Banded([normal(n - 5), normal(n), normal(n - 1)], [5, 0, -1]),
    ):
        B, X = make_ready(A), normal(n, 2)
        assert isinstance(B, FusedDiagonals)
        for C, D in ((A, B), (A.H, B.H)):
            torch.testing.assert_close(D @ X, C @ X, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(D @ X[:, 0], C @ X[:, 0], rtol=1e-12, atol=1e-12)


METHODS = [co.CG, co.MINRES, co.BiCGSTAB, co.LSQR, co.LSMR]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("columns", [None, 2])
def test_replayed_steps_are_those_of_python(
    method: Any, columns: int | None, monkeypatch: Any
) -> None:
    torch, device, xp = pytest.importorskip("torch"), cuda("torch"), backends.get("torch")
    d = torch.logspace(0, 5, 3000, device=device, dtype=torch.float64)
    A = co.opaque(co.PSD(co.Diagonal(d)))
    b = torch.ones(
        *(3000, columns)[: 1 if columns is None else 2], device=device, dtype=torch.float64
    )
    call = co.lstsq if method in (co.LSQR, co.LSMR) else co.solve
    record, made = xp.record, []

    def counted(*arguments: Any) -> Any:
        made.append(record(*arguments))
        return made[-1]

    run = lambda: call(A, b, method(tol=1e-14, max_iters=100), info=True, on_failure="ignore")
    monkeypatch.setattr(xp, "record", counted)
    x, info = run()
    assert made and all(made)
    monkeypatch.setattr(xp, "record", lambda *arguments: None)
    y, expected = run()
    assert info.iterations == expected.iterations
    torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(info.history, expected.history, rtol=1e-3, atol=1e-12)


BASES = [
    co.Lanczos(basis=12),
    co.Lanczos(basis=12, orthogonalisation="householder"),
    co.Arnoldi(basis=12),
    co.GolubKahan(basis=12),
]


@pytest.mark.parametrize("method", BASES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_replayed_bases_are_those_of_python(
    method: Any, batch: tuple[int, ...], monkeypatch: Any
) -> None:
    torch, device, xp = pytest.importorskip("torch"), cuda("torch"), backends.get("torch")
    g = torch.Generator(device).manual_seed(0)
    A = torch.randn(*batch, 600, 600, generator=g, device=device, dtype=torch.float64)
    A = co.opaque(co.SelfAdjoint(co.Dense(A + A.mT)))
    record, made = xp.record, []

    def counted(*arguments: Any) -> Any:
        made.append(record(*arguments))
        return made[-1]

    def run() -> Any:
        if isinstance(method, co.GolubKahan):
            return co.svd(A, 3, method)[1:]
        return co.eig(A, 3, "LM", method)

    monkeypatch.setattr(xp, "record", counted)
    values, vectors = run()
    assert all(made)
    assert bool(made) == (getattr(method, "orthogonalisation", "") != "householder")
    monkeypatch.setattr(xp, "record", lambda *arguments: None)
    expected, others = run()
    torch.testing.assert_close(values, expected, rtol=1e-9, atol=0)
    overlap = torch.linalg.vecdot(vectors.to_dense(), others.to_dense(), dim=-2).abs()
    torch.testing.assert_close(overlap, torch.ones_like(overlap), rtol=0, atol=1e-6)


def test_a_product_that_waits_is_not_recorded_and_leaves_torch_in_order() -> None:
    torch, device = pytest.importorskip("torch"), cuda("torch")
    d = torch.logspace(0, 4, 500, device=device, dtype=torch.float64)

    def waits(X: Any) -> Any:
        torch.cuda.synchronize()  # which no operation of torch's shows
        return (d if X.ndim == 1 else d[:, None]) * X

    def looks(X: Any) -> Any:
        return waits(X) if float(X.sum()) != 0.5 else X

    for multiply in (waits, looks):
        A = co.PSD(co.MatrixFree(multiply, (500, 500), rmatmat=multiply, like=d))
        b = torch.ones(500, device=device, dtype=torch.float64)
        x, info = co.solve(A, b, co.CG(tol=1e-10), info=True)
        assert not info.failed
        torch.testing.assert_close(d * x, b, rtol=1e-8, atol=1e-8)
        torch.randn(3, device=device)
        graph, y = torch.cuda.CUDAGraph(), torch.zeros(3, device=device)
        with torch.cuda.graph(graph):
            y += 1
        graph.replay()
        assert y.tolist() == [1.0, 1.0, 1.0]


def test_an_indefinite_operator_is_noticed_in_replayed_steps() -> None:
    torch, device = pytest.importorskip("torch"), cuda("torch")
    d = torch.logspace(0, 4, 400, device=device, dtype=torch.float64)
    d[0], b = -1.0, torch.ones(400, device=device, dtype=torch.float64)
    b[0] = 1e-9
    A = co.opaque(co.PSD(co.Diagonal(d)))
    info = co.solve(A, b, co.CG(tol=1e-12, max_iters=20_000), info=True, on_failure="ignore")[1]
    assert info.status is co.Status.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_single_precision_that_stagnates_is_refined(framework: str) -> None:
    device, xp = cuda(framework), backends.get(framework)
    S = laplacian()
    A = co.opaque(co.PSD(co.Sparse(S))).to(backend=framework, device=device, dtype="float32")
    B = np.random.default_rng(0).normal(size=SIDE**2)
    b = xp.astype(on_device(framework, B), xp.float32)
    x, info = co.solve(A, b, co.CG(tol=2e-5), info=True, on_failure="ignore")
    residual = np.linalg.norm(S @ xp.to_numpy(x).astype(float) - xp.to_numpy(b)) / np.linalg.norm(B)
    assert abs(float(info.residual) - residual) <= 0.05 * residual
    assert info.failed == (residual > 2e-5)
    assert x.dtype == b.dtype


def test_the_diagonals_of_a_tridiagonal_factor_show_its_symmetry() -> None:
    torch, device = pytest.importorskip("torch"), cuda("torch")
    ones = torch.ones(60, device=device, dtype=torch.float64)
    A = co.Tridiagonal(-ones[1:], 2 * ones, -ones[1:])
    b = torch.ones(3600, device=device, dtype=torch.float64)
    K = co.KroneckerSum(A, A)
    assert "inv_kronecker_sum" in co.explain(co.solve, K, b).rules
    x, info = co.solve(K, b, info=True)
    assert not info.failed
    torch.testing.assert_close(K @ x, b, rtol=1e-9, atol=1e-9)
