"""A^-1 b, log det A and their derivatives from one run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import gp
from colinear.functions.stochastic.control import Known, controlled, trace_of_preconditioned
from colinear.functions.stochastic.solve_and_logdet import usual
from colinear.preconditioners import as_preconditioner
from colinear.testing import count_matvecs

rng = np.random.default_rng(0)
POINTS = rng.standard_normal((40, 2))
SQUARES = ((POINTS[:, None] - POINTS) ** 2).sum(-1)
Y = rng.standard_normal(40)
NOISE = 0.3


def matrix(length: float) -> np.ndarray:
    return np.exp(-SQUARES / (2 * length**2)) + NOISE * np.eye(40)


def operator(length: float = 1.0) -> co.LinearOperator:
    return co.PSD(co.Dense(matrix(length) - NOISE * np.eye(40))) + NOISE * co.Identity(40)


def likelihood(length: float) -> float:
    A = matrix(length)
    return float(Y @ np.linalg.solve(A, Y) + np.linalg.slogdet(A)[1]) / 2


def slope(length: float, h: float = 1e-5) -> float:
    return (likelihood(length + h) - likelihood(length - h)) / (2 * h)


@pytest.mark.parametrize(
    "preconditioner",
    [None, co.PivotedCholesky(8), co.RPCholesky(8), co.Nystrom(8)],
    ids=["none", "cholesky", "random pivots", "nystrom"],
)
def test_one_run_gives_both(preconditioner: Any) -> None:
    A = operator()
    (x, value), info = co.solve_and_logdet(
        A, Y, co.SLQ(100, preconditioner=preconditioner), info=True
    )
    assert np.linalg.norm(A @ x - Y) <= 2e-8 * np.linalg.norm(Y) and not info.failed
    assert abs(value - np.linalg.slogdet(matrix(1.0))[1]) <= 4 * info.error
    assert np.max(info.residual) <= 2e-8 and info.iterations < 60


def test_auto_shares_one_factorisation() -> None:
    A = co.PSD(matrix(1.0))
    x, value = co.solve_and_logdet(A, np.stack([Y, 2 * Y], 1))
    assert np.allclose(matrix(1.0) @ x[:, 1], 2 * Y) and np.isclose(
        value, np.linalg.slogdet(matrix(1.0))[1]
    )
    structured = co.Kronecker(co.PSD(matrix(1.0)), co.PSD(np.eye(2) * 3))
    x, value = co.solve_and_logdet(structured, np.ones(80))
    assert np.allclose(structured @ x, 1) and np.isclose(
        value, np.linalg.slogdet(structured.to_dense())[1]
    )
    rules = co.explain(co.solve_and_logdet, structured).rules
    assert any("kronecker" in name for name in rules), rules


def test_torch_gradients_come_from_the_same_vectors_without_another_solve() -> None:
    import torch

    squares, y = torch.tensor(SQUARES), torch.tensor(Y)

    def loss(length: Any, method: Any) -> Any:
        A = torch.exp(-squares / (2 * length**2)) + NOISE * torch.eye(40, dtype=torch.float64)
        x, value = co.solve_and_logdet(co.PSD(A), y, method)
        return (x @ y + value) / 2

    length = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    value = loss(length, co.SLQ(4000))
    with count_matvecs() as counter:
        (gradient,) = torch.autograd.grad(value, length)
    assert abs(value.item() - likelihood(1.0)) < 0.5
    assert abs(gradient.item() - slope(1.0)) < 0.05 * abs(slope(1.0)) + 0.5
    assert counter.products <= 6  # the adjoint solve of b starts from x, which is its answer
    exact = loss(length, None)
    (gradient,) = torch.autograd.grad(exact, length)
    assert np.isclose(gradient.item(), slope(1.0), rtol=1e-5)


def test_second_derivatives_are_right_too() -> None:
    import torch

    squares = torch.tensor(SQUARES)

    def value(length: Any) -> Any:
        A = torch.exp(-squares / (2 * length**2)) + NOISE * torch.eye(40, dtype=torch.float64)
        return co.logdet(co.opaque(co.PSD(A)), co.SLQ(3000))

    length = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(value(length), length, create_graph=True)
    (second,) = torch.autograd.grad(first, length)
    exact = [np.linalg.slogdet(matrix(e))[1] for e in (0.99, 1.0, 1.01)]
    curvature = (exact[0] - 2 * exact[1] + exact[2]) / 1e-4
    assert abs(second.item() - curvature) < 0.1 * abs(curvature)


def test_the_gradient_is_the_derivative_of_the_mean_over_the_same_vectors() -> None:
    """tr(A^-1 dA) by the vectors: for A = c B with known B the derivative of n log c is n / c whatever they are."""
    import torch

    B = torch.tensor(matrix(1.0))
    c = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = co.logdet(co.opaque(co.PSD(c * B)), co.SLQ(5))
    (gradient,) = torch.autograd.grad(value, c)
    assert abs(gradient.item() - 40 / 2.0) < 1e-6
    untracked = co.logdet(co.opaque(co.PSD(2.0 * B)), co.SLQ(5))
    assert abs(value.item() - untracked.item()) < 1e-4


def test_jax_gradients_in_one_program() -> None:
    import jax
    import jax.numpy as jnp

    def loss(length: Any, key: Any) -> Any:
        A = jnp.exp(-SQUARES / (2 * length**2)) + NOISE * jnp.eye(40)
        (x, value), info = co.solve_and_logdet(
            co.PSD(A), jnp.asarray(Y), co.SLQ(1000, seed=key), info=True
        )
        return (x @ Y + value) / 2, info

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, info), gradient = run(1.0, jax.random.key(0))
    assert info.status == 0 and abs(value - likelihood(1.0)) < 4 * info.error
    assert abs(gradient - slope(1.0)) < 0.1 * abs(slope(1.0)) + 0.5


def test_forward_mode_of_jax_follows_b_alone() -> None:
    import jax
    import jax.numpy as jnp

    A = co.opaque(co.PSD(co.Dense(jnp.asarray(matrix(1.0)))))
    f = lambda b: co.solve_and_logdet(A, b, co.SLQ(5))[0]
    moved = jax.jvp(f, (jnp.asarray(Y),), (jnp.asarray(Y[::-1]),))[1]
    np.testing.assert_allclose(moved, np.linalg.solve(matrix(1.0), Y[::-1]), rtol=1e-5)


def test_failures_are_told() -> None:
    bad = co.opaque(co.PSD(co.Dense(np.diag(np.linspace(-1, 1, 40)))))
    _, info = co.solve_and_logdet(bad, Y, co.SLQ(10), info=True)
    assert info.status is co.Status.NOT_POSITIVE_DEFINITE
    bad = co.PSD(matrix(1.0) - np.eye(40))
    (_, value), info = co.solve_and_logdet(
        bad, Y, co.SLQ(10, preconditioner=co.RPCholesky(4)), info=True
    )
    assert info.failed and np.isnan(value) and info.error == np.inf
    hard = co.opaque(co.PSD(co.Diagonal(np.logspace(-8, 8, 40))))
    with pytest.warns(co.ConvergenceWarning):
        co.solve_and_logdet(hard, Y, co.SLQ(10, max_iters=10))
    with pytest.raises(co.ShapeError, match="needs 40 rows"):
        co.solve_and_logdet(operator(), np.ones(3), co.SLQ())
    with pytest.raises(co.MethodError, match=r"Say PSD\(A\)"):
        co.solve_and_logdet(co.opaque(co.Dense(np.triu(matrix(1.0)))), Y, co.SLQ())
    with pytest.raises(co.ShapeError, match="square"):
        co.solve_and_logdet(np.ones((3, 4)), np.ones(3))


@pytest.mark.parametrize("shape", [(0, 0), (0, 4, 4), (2, 0, 0)])
@pytest.mark.parametrize("preconditioner", [None, co.RPCholesky(2)])
def test_nothing_has_a_determinant_of_one(shape: tuple[int, ...], preconditioner: Any) -> None:
    A = co.PSD(np.zeros(shape)) + co.Identity(shape[-1])
    method = co.SLQ(preconditioner=preconditioner)
    (x, value), info = co.solve_and_logdet(A, np.ones((*shape[:-1], 3)), method, info=True)
    assert x.shape == (*shape[:-1], 3) and value.shape == info.error.shape == shape[:-2]
    assert not info.failed and not value.any()


def test_a_kernel_of_no_points_is_solved_and_explained() -> None:
    K = co.PSD(co.Kernel(lambda x, y: x @ y.T, np.zeros((0, 2)))) + co.Identity(0)
    for method in (None, co.SLQ()):
        assert co.solve_and_logdet(K, np.ones(0), method)[1] == 0
        assert "0x0" in str(co.explain(co.solve_and_logdet, K, b=np.ones(0), method=method))
    assert "0x0" in str(co.explain(co.solve, K))


def test_batches_of_operators() -> None:
    A = co.PSD(np.stack([matrix(0.5), matrix(1.0), matrix(2.0)]))
    (x, value), info = co.solve_and_logdet(co.opaque(A), np.ones((3, 40, 2)), co.SLQ(60), info=True)
    assert x.shape == (3, 40, 2) and value.shape == info.error.shape == (3,)
    assert np.allclose(A.A @ x, 1, atol=1e-6)
    assert (abs(value - np.linalg.slogdet(A.A)[1]) <= 4 * info.error).all()


def test_solutions_in_single_precision_are_refined_and_judged_by_the_tolerance() -> None:
    n = 400
    Q, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((n, n)))
    M = (Q * np.geomspace(0.05, 3000, n)) @ Q.T
    M = (M + M.T) / 2
    A = co.opaque(co.PD(co.Dense(M.astype(np.float32))))
    b = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    (x, logarithm), info = co.solve_and_logdet(A, b, co.SLQ(20, max_iters=4000), info=True)
    tol = np.finfo(np.float32).eps ** 0.5
    residual = np.linalg.norm(b - M @ x) / np.linalg.norm(b)
    assert residual <= 10 * tol
    assert info.status is (co.Status.SUCCESS if residual <= tol else co.Status.STAGNATION)
    assert abs(logarithm - np.linalg.slogdet(M)[1]) <= 5 * info.error + 1


def test_kernels_with_noise_are_preconditioned_by_auto() -> None:
    def k(X: Any, Y: Any) -> Any:
        return np.exp(-((X[:, None] - Y[None]) ** 2).sum(-1))

    X = np.zeros((20_000, 2))
    K = co.PSD(co.Kernel(k, X))
    assert usual(K + 0.1 * co.Identity(20_000)) == co.RPCholesky(2828)
    assert usual(2.0 * K + co.Diagonal(np.ones(20_000))) == co.RPCholesky(2828)
    assert usual(K) is None
    few = co.PSD(co.Kernel(k, X[:500]))
    assert usual(few + 0.1 * co.Identity(500)) is None


def test_the_usual_rank_is_bounded_by_the_size_and_the_memory() -> None:
    def of(n: int) -> Any:
        K = co.PSD(co.Kernel(gp.rbf, np.zeros((n, 1)), parameters=(1.0, 1.0)))
        return usual(K + 0.1 * co.Identity(n))

    assert of(2000).rank == 500 and 1 <= of(4_000_000).rank < 40_000
    assert usual(co.PSD(np.eye(2000)) + 0.1 * co.Identity(2000)) is None
    K = co.PSD(co.Kernel(gp.rbf, np.zeros((2000, 1)), parameters=(1.0, 1.0)))
    by_products = co.opaque(K) + 0.1 * co.Identity(2000)
    assert usual(co.PSD(by_products)) in (None, co.Nystrom(100))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_what_the_preconditioner_tells_of_the_trace_makes_the_error_smaller(framework: str) -> None:
    X = np.random.default_rng(3).standard_normal((300, 4))
    A = co.PSD(co.Dense(gp.rbf(X, X, 2.0, 1.0))) + 0.1 * co.Identity(300)
    exact = np.linalg.slogdet(A.to_dense())[1]
    A = A.to(backend=framework)
    y, errors, estimated = A.xp.ones((300,), dtype=A.dtype), [], []
    for seed in range(12):
        method = co.SLQ(20, preconditioner=co.RPCholesky(60), seed=seed)
        (_, value), info = co.solve_and_logdet(A, y, method, info=True)
        errors.append(float(value) - exact)
        estimated.append(float(info.error))
    plain = co.SLQ(20, preconditioner=co.Nystrom(60))  # whose trace is not known
    error = float(co.solve_and_logdet(A, y, plain, info=True)[1].error)
    root_mean_square = np.sqrt(np.mean(np.square(errors)))
    assert root_mean_square < 0.6 * error and np.mean(estimated) < 0.6 * error
    assert 0.4 < root_mean_square / np.mean(estimated) < 2


def test_a_small_rank_has_an_exact_trace() -> None:
    X = np.random.default_rng(3).standard_normal((200, 1))
    A = co.PSD(co.Dense(gp.rbf(X, X, 2.0, 1.0))) + 0.1 * co.Identity(200)
    M = as_preconditioner(co.RPCholesky(5), A)
    known = trace_of_preconditioned(A, M, A.xp.generator(0), 20)
    assert known.variance == 0 and known.products == 5
    assert abs(known.mean - np.trace(M.to_dense() @ A.to_dense())) < 1e-8
    many = trace_of_preconditioned(
        A, as_preconditioner(co.RPCholesky(100), A), A.xp.generator(0), 20
    )
    exact = np.trace(co.RPCholesky(100)(A).to_dense() @ A.to_dense())
    assert abs(many.mean - exact) <= 4 * np.sqrt(many.variance) + 1e-8


@pytest.mark.parametrize("probes", [8, 32])
@pytest.mark.parametrize("outliers", [1, 20])
def test_a_known_trace_promises_no_smaller_an_error_than_the_vectors_show(
    probes: int, outliers: int
) -> None:
    # as many sets of vectors as it takes to see the deviations
    draw = np.random.default_rng(0)
    values = 1 + draw.exponential(0.5, 300)
    values[:outliers] = draw.uniform(10, 100, outliers)
    squares = draw.standard_normal((1000, probes, 300)) ** 2
    squares *= 300 / squares.sum(-1, keepdims=True)
    forms, others = squares @ np.log(values), squares @ values
    exact = np.log(values).sum()
    known = Known(np.full(1000, values.sum()), np.zeros(1000), 0)
    mean, error = controlled(co.backends.get("numpy"), forms, others, np.isfinite(forms), known)
    plain = forms.std(axis=-1, ddof=1) / np.sqrt(probes)
    deviations = (np.std((x - exact) / e) for x, e in ((mean, error), (forms.mean(-1), plain)))
    assert next(deviations) <= 1.05 * next(deviations)
    assert np.std(mean - exact) < np.std(forms.mean(-1) - exact)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_preconditioner_in_half_precision_leaves_the_run_in_single(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    K = torch.as_tensor(np.exp(-SQUARES / 2)).to(getattr(torch, dtype))
    A = co.PSD(K) + 0.25 * co.Identity(40)
    exact = np.linalg.slogdet(K.double().numpy() + 0.25 * np.eye(40))[1]
    rounding = 40 * float(torch.finfo(K.dtype).eps)
    for preconditioner in (co.Jacobi(), co.RPCholesky(8), co.Nystrom(8)):
        method = co.SLQ(preconditioner=preconditioner)
        (x, value), info = co.solve_and_logdet(A, torch.ones(40, dtype=K.dtype), method, info=True)
        alone, other = co.logdet(A, method, info=True)
        assert not info.failed and not other.failed and x.dtype == value.dtype == K.dtype
        assert abs(float(value) - exact) <= 4 * float(info.error) + rounding
        assert abs(float(alone) - exact) <= 4 * float(other.error) + rounding
