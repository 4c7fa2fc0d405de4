"""What `explain` says of memory, and what `Auto` decides by."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg

import colinear as co
from colinear.functions.solve.cost import estimated_fill

METHODS = (co.CG, co.MINRES, co.GMRES, co.BiCGSTAB, co.LSQR, co.LSMR)


def grid(m: int) -> Any:
    line, identity = (
        sp.diags_array([[-1.0] * (m - 1), [2.0] * m, [-1.0] * (m - 1)], offsets=[-1, 0, 1]),
        sp.eye_array(m),
    )
    return sp.csr_array(sp.kron(line, identity) + sp.kron(identity, line))


def most_memory(work: Any) -> float:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def leaf(plan: Any) -> Any:
    return list(plan.walk())[-1]


@pytest.mark.parametrize("method", METHODS)
def test_an_iteration_takes_the_memory_that_explain_says(method: Any) -> None:
    n = 40_000
    A = co.opaque(co.PSD(co.Diagonal(np.linspace(1, 100, n))))
    chosen = method(tol=1e-14, max_iters=32)
    said = leaf(co.explain(co.solve, A, method=chosen)).cost.memory
    assert said == chosen.working_vectors(n) * n * 8
    solve = lambda: co.solve(A, np.ones(n), chosen, on_failure="ignore")
    solve()  # what is made but once is no part of it
    assert 0.6 * said < most_memory(solve) < 1.1 * said


def test_memory_grows_with_precision_batch_and_restart() -> None:
    def memory(A: Any, method: Any) -> float:
        return leaf(co.explain(co.solve, A, method=method)).cost.memory

    A = co.opaque(co.Dense(np.eye(300)))
    assert memory(A, co.GMRES(restart=50)) == 58 * 300 * 8
    assert memory(A, co.GMRES(restart=10)) == 18 * 300 * 8
    assert memory(co.opaque(co.Dense(np.eye(20))), co.GMRES()) == 28 * 20 * 8, (
        "a basis has no more vectors than there are"
    )
    assert memory(co.opaque(co.Dense(np.eye(300, dtype=np.float32))), co.CG()) == 6 * 300 * 4
    assert memory(co.opaque(co.Dense(np.stack([np.eye(300)] * 3))), co.CG()) == 3 * 6 * 300 * 8
    assert "6 vectors" in str(co.explain(co.solve, A, method=co.CG()))


@pytest.mark.parametrize("method", [None, co.Cholesky(), co.LU(), co.LDL(), co.QR()])
def test_a_factorisation_keeps_a_matrix(method: Any) -> None:
    for dtype, itemsize in ((np.float64, 8), (np.float32, 4), (np.complex128, 16)):
        A = co.PSD(co.Dense(np.eye(50, dtype=dtype)))
        assert leaf(co.explain(co.inv, A, method=method)).cost.memory == 50 * 50 * itemsize
        assert leaf(co.explain(co.logdet, A)).cost.memory == 50 * 50 * itemsize


@pytest.mark.parametrize(
    ("S", "factor"),
    [
        (grid(40), 2.0),
        (
            sp.csr_array(
                sp.diags_array([[1.0] * 1999, [4.0] * 2000, [1.0] * 1999], offsets=[-1, 0, 1])
            ),
            2.0,
        ),
        (
            sp.csr_array(
                sp.random_array((800, 800), density=0.01, rng=np.random.default_rng(0))
                + 30 * sp.eye_array(800)
            ),
            4.0,
        ),
    ],
)
def test_fill_is_estimated_before_it_happens(S: Any, factor: float) -> None:
    true = scipy.sparse.linalg.splu(
        S.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}
    ).nnz
    entries, flops = estimated_fill(co.Sparse(S).structure)
    assert true / factor <= entries <= true * factor
    assert flops >= entries
    for function in (co.inv, co.logdet):
        plan = leaf(co.explain(function, co.PSD(co.Sparse(S))))
        if "sparse" in plan.rule:
            assert (
                plan.cost.memory == pytest.approx(12 * entries) or plan.rule == "inv_filling_sparse"
            )


def test_explain_estimates_without_doing_the_work(monkeypatch: Any) -> None:
    def forbidden(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("it factored")

    monkeypatch.setattr(scipy.sparse.linalg, "splu", forbidden)
    assert co.explain(co.solve, co.Sparse(grid(30))).cost.memory > 0
    assert co.explain(co.logdet, co.Sparse(grid(30))).cost.memory > 0


def test_sparse_logdet_is_exact() -> None:
    S = grid(30)
    for A in (co.Sparse(S), co.PSD(co.Sparse(S))):
        with co.testing.forbid_dense(1e5):
            value, info = co.logdet(A, info=True)
        assert "slogdet_sparse" in co.explain(co.logdet, A).rules
        np.testing.assert_allclose(value, np.linalg.slogdet(S.toarray())[1], rtol=1e-12)
        assert not info.failed
    sign, logabs = co.slogdet(co.Sparse(sp.csr_array(-S[:7, :7])))
    np.testing.assert_allclose((sign, logabs), np.linalg.slogdet(-S[:7, :7].toarray()), rtol=1e-12)


def gaussian(X: Any, Y: Any) -> Any:
    distance = ((X[:, None] - Y[None]) ** 2).sum(-1)
    return 1 / (1 + distance)  # of any framework


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_kernel_is_formed_in_one_pass_and_factored(backend: str) -> None:
    n, xp = 400, co.backends.get(backend)
    rng = np.random.default_rng(0)
    K = co.PSD(co.Kernel(gaussian, xp.asarray(rng.standard_normal((n, 2)))))
    b = xp.asarray(rng.standard_normal(n))
    for A in (
        K + 0.1 * co.Identity(n),
        K * K + 0.1 * co.Identity(n),
        2.0 * K + K * K + 0.1 * co.Identity(n),
    ):
        assert co.explain(co.solve, A, b).rules == ["Cholesky"]
        with co.testing.count_matvecs(A) as counter:
            x = co.solve(A, b)
        assert counter.matvecs <= 1, "the residual"
        np.testing.assert_allclose(
            xp.to_numpy(x), np.linalg.solve(xp.to_numpy(A.to_dense()), xp.to_numpy(b)), rtol=1e-6
        )


def test_what_a_matrix_costs_to_form_is_asked_of_the_operator() -> None:
    K = co.Kernel(gaussian, np.zeros((100, 2)))
    assert co.Dense(np.eye(100)).dense_flops == 0
    assert K.dense_flops == K.flops
    assert (K * K + K).dense_flops < 10 * K.flops
    hidden = co.MatrixFree(lambda X: X, (100, 100), dtype=np.float64)
    assert hidden.dense_flops == 100 * hidden.flops


def test_a_matrix_larger_than_the_memory_is_not_formed() -> None:
    K = co.Kernel(gaussian, np.zeros((10_000_000, 2)))
    with pytest.raises(co.TooLargeError, match="this machine has"):
        K.to_dense()
