"""RPCholesky: blocks of random pivots, and the inverse of a diagonal and a low rank together in single precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import gp
from colinear.preconditioners.low_rank import factor_by_blocks
from colinear.testing import forbid_dense

FRAMEWORKS = "numpy", "torch", "jax"


def to(x: Any, framework: str) -> Any:
    return co.Dense(x).to(backend=framework).A


def host(x: Any) -> Any:
    return np.asarray(x.to_dense() if isinstance(x, co.LinearOperator) else x)


def points(n: int, d: int = 3) -> Any:
    return np.random.default_rng(0).standard_normal((n, d))


def kernel(n: int, framework: str = "numpy", dtype: Any = np.float64, length: float = 1.5) -> Any:
    K = co.Kernel(gp.rbf, to(points(n).astype(dtype), framework), parameters=(length, 1.0))
    return co.PSD(K)


def condition(M: Any, A: Any) -> float:
    values = np.linalg.eigvals(host(M).astype(np.float64) @ host(A).astype(np.float64)).real
    return float(values.max() / values.min())


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("block", [None, 1, 7, 100])
def test_it_makes_the_condition_that_of_the_rest(framework: str, block: int | None) -> None:
    if framework == "jax" and block == 1:
        pytest.skip("each of sixty blocks is compiled: see the factor by blocks of one column")
    A = kernel(150, framework) + 0.01 * co.Identity(150)
    M = co.RPCholesky(60, block)(A)
    assert M.isa(co.PD) and condition(M, A) < 40 < condition(co.Identity(150), A) / 50
    wanted = -np.linalg.slogdet(host(M.A))[1]
    assert abs(float(co.logdet(M)) - wanted) < 1e-8 * abs(wanted)


@pytest.mark.parametrize("rank, block", [(40, 8), (6, 1)])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_factor_agrees_with_the_matrix_in_its_pivots_and_is_below_it(
    framework: str, rank: int, block: int
) -> None:
    K = kernel(100, framework)
    F, remaining, lowest = factor_by_blocks(K, rank, block, 0)
    rest = host(K) - host(F) @ host(F).T
    assert np.linalg.eigvalsh(rest).min() > -1e-12 and float(lowest) > -1e-12
    np.testing.assert_allclose(np.diag(rest), host(remaining), atol=1e-12)
    assert (np.diag(rest) < 1e-12).sum() >= rank  # the pivots
    again = factor_by_blocks(K, rank, block, 0)[0]
    np.testing.assert_array_equal(host(F), host(again))
    assert np.abs(host(F) - host(factor_by_blocks(K, rank, block, 1)[0])).max() > 0


def test_under_jit_and_vmap_it_is_the_same() -> None:
    import jax
    import torch

    A = kernel(60, "jax") + 0.1 * co.Identity(60)
    x = to(np.ones((60, 1)), "jax")
    there = jax.jit(lambda A: co.RPCholesky(20)(A) @ x)(A)
    np.testing.assert_allclose(host(there), host(co.RPCholesky(20)(A) @ x), atol=1e-10)
    stack = torch.as_tensor(np.stack([host(A), 2 * host(A)]))
    product = lambda matrix: (
        co.RPCholesky(20, shift=0.1)(co.PSD(co.Dense(matrix))) @ torch.ones(60, dtype=torch.float64)
    )
    each = torch.stack([product(matrix) for matrix in stack])
    np.testing.assert_allclose(torch.func.vmap(product)(stack), each, atol=1e-9)


def test_a_batch_draws_pivots_of_its_own_for_each_matrix() -> None:
    matrices = np.stack([host(kernel(50)), host(kernel(50, length=0.5))])
    M = co.RPCholesky(25, shift=0.1)(co.PSD(co.Dense(matrices)))
    assert M.shape == (2, 50, 50)
    for each, matrix in zip(host(M), matrices):
        alone = host(co.RPCholesky(25, shift=0.1)(co.PSD(co.Dense(matrix))))
        np.testing.assert_allclose(each, alone, atol=1e-9)


@pytest.mark.parametrize("factory", [co.RPCholesky, co.PivotedCholesky, co.Nystrom])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_matrix_with_a_batch_of_noises_has_a_batch_of_preconditioners(
    factory: Any, framework: str
) -> None:
    K, d = kernel(20, framework), to(np.random.default_rng(0).uniform(0.5, 1, (3, 20)), framework)
    for noise in (co.Diagonal, lambda d: co.Scaled(d[..., 0], co.Identity(20))):
        M = factory(10)(co.PSD(K + noise(d)))
        alone = [factory(10)(co.PSD(K + noise(each))) for each in d]
        np.testing.assert_allclose(host(M), np.stack(list(map(host, alone))), atol=1e-4)
        logarithms = list(map(co.logdet, alone))
        np.testing.assert_allclose(np.asarray(co.logdet(M)), logarithms, atol=1e-4)


def test_repeated_points_outliers_and_low_ranks_do_no_harm() -> None:
    x = np.concatenate([np.zeros((80, 2)), points(40, 2), [[1e3, 1e3]]])
    A = co.PSD(co.Kernel(gp.rbf, x, parameters=(1.0, 1.0))) + 0.01 * co.Identity(121)
    assert condition(co.RPCholesky(90)(A), A) < 1.5
    for K in (np.ones((6, 6)), np.zeros((6, 6)), np.diag([1.0, 0, 0, 0, 0, 0])):
        M = co.RPCholesky(4, block=2)(co.PSD(K))
        assert np.isfinite(host(M)).all() and np.linalg.eigvalsh(host(M)).min() > 0
    F, _, lowest = factor_by_blocks(co.SelfAdjoint(np.diag([1.0, -1.0])), 2, 2, 0)
    assert np.isfinite(F).all() and lowest < 0


def test_it_reads_rank_columns_of_a_kernel_in_blocks_and_forms_nothing() -> None:
    n, seen = 3000, []

    def k(X: Any, Y: Any) -> Any:
        seen.append((X.shape[0], Y.shape[0]))
        return np.exp(-((X - Y.T) ** 2))

    A = co.PSD(co.Kernel(k, np.linspace(0, 3, n)[:, None])) + 1e-2 * co.Identity(n)
    seen.clear()
    with forbid_dense(60 * n):
        co.RPCholesky(20, block=5)(A)
    assert [sizes for sizes in seen if n in sizes] == [(n, 5)] * 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-9])
def test_in_single_precision_the_determinant_and_the_inverse_are_those_of_what_it_is(
    framework: str, noise: float
) -> None:
    n = 500
    A = kernel(n, framework, np.float32, length=4.0) + noise * co.Identity(n)
    M = co.RPCholesky(120)(A)
    assert host(M).dtype == np.float32
    P = M.A.operands[0].U, co.diag(M.A.operands[1])
    U, d = (host(x).astype(np.float64) for x in P)
    exact = U @ U.T + np.diag(d)
    wanted = -np.linalg.slogdet(exact)[1]
    assert abs(float(co.logdet(M)) - wanted) < 2e-6 * abs(wanted)
    assert_multiplies_as_an_inverse(M, exact, 1e-4)
    assert np.linalg.norm(host(M) - np.linalg.inv(exact)) < 1e-6 * np.linalg.norm(host(M))
    assert d.min() >= noise * 0.999 and (noise < 1e-6 or d.max() < noise * 1.001)


def assert_multiplies_as_an_inverse(M: Any, exact: np.ndarray, tolerance: float) -> None:
    """v^H M v is 1 / λ for every eigenvector of the exact matrix, down to the smallest: rounded, M is
    positive still."""
    values, V = np.linalg.eigh(exact)
    MV = host(M @ M.xp.asarray(V.astype(np.float32))).astype(np.float64)
    forms = (V * MV).sum(axis=0) * values
    assert abs(forms - 1).max() < tolerance, (forms.min(), forms.max(), values[-1] / values[0])


def test_without_double_precision_jax_finds_the_determinant_by_qr() -> None:
    import jax

    with jax.enable_x64(False) if hasattr(jax, "enable_x64") else jax.experimental.disable_x64():
        n = 500
        A = kernel(n, "jax", np.float32, length=4.0) + 1e-3 * co.Identity(n)
        M = co.RPCholesky(120)(A)
        U, d = (host(x).astype(np.float64) for x in (M.A.operands[0].U, co.diag(M.A.operands[1])))
        wanted = -np.linalg.slogdet(U @ U.T + np.diag(d))[1]
        assert abs(float(co.logdet(M)) - wanted) < 2e-5 * abs(wanted)
        assert_multiplies_as_an_inverse(M, U @ U.T + np.diag(d), 1e-2)


def test_on_a_device_nothing_waits_for_a_value() -> None:
    from support.synchronisations import counted, pretended

    A = kernel(400, "torch", np.float32) + 0.1 * co.Identity(400)
    with pretended(), counted() as looks:
        co.RPCholesky(100)(A)
    assert looks == []


def test_what_it_refuses() -> None:
    for wrong in (
        lambda: co.RPCholesky(0),
        lambda: co.RPCholesky(5, block=0),
        lambda: co.RPCholesky(5, shift=0.0),
    ):
        with pytest.raises(ValueError, match="RPCholesky"):
            wrong()
    with pytest.raises(co.MethodError, match=r"Say PSD\(A\)"):
        co.RPCholesky(1)(np.eye(3))
    assert co.RPCholesky(5) == co.RPCholesky(5) != co.RPCholesky(5, seed=1)
