"""SVRG, and the minibatches of sums that it draws from."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.errors import ConvergenceWarning, MethodError
from colinear.operators.terms import minibatch, term_count
from colinear.status import Status

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((12, 4))
MORE = RNG.standard_normal((6, 4))
SQUARES = RNG.standard_normal((12, 4, 4))
BATCHED = RNG.standard_normal((2, 12, 3, 4, 4))
CALLS: list[int] = []


def gram(xp: Any, X: Any) -> Any:
    X = co.Dense(xp.asarray(X))
    return X.H @ X


def gram_of(X: Any) -> Any:
    return X.H @ X


def sparse(xp: Any, matrix: Any) -> Any:
    return co.Sparse(scipy.sparse.csr_array(matrix)).to(backend=xp.name)


def sums(xp: Any) -> dict[str, Any]:
    a = xp.asarray
    kernel = co.Kernel(
        lambda x, y: xp.exp(-xp.sum((x[:, None] - y[None]) ** 2, axis=-1)), a(ROWS), a(MORE)
    )
    return {
        "Gram": gram(xp, ROWS),
        "Gram, complex": gram(xp, ROWS * (1 + 1j)),
        "scaled and shifted": gram(xp, ROWS) / 12 + 0.3 * co.Identity(4),
        "weighted Gram": co.Dense(a(ROWS)).H
        @ co.Diagonal(a(np.arange(1.0, 13.0)))
        @ co.Dense(a(ROWS)),
        "Gram of a kernel": kernel.H @ kernel,
        "Gram of a sparse matrix": gram_of(sparse(xp, ROWS * (ROWS > 0))),
        "Gram of a complex sparse matrix": gram_of(sparse(xp, ROWS * (ROWS > 0) * (1 + 1j))),
        "two Grams and a matrix": gram(xp, ROWS) + gram(xp, MORE) + co.Dense(a(SQUARES[0])),
        "product": co.Dense(a(ROWS.T * 2)) @ co.Dense(a(ROWS)),
        "low rank": co.LowRank(a(ROWS.T)) + 2 * co.Identity(4),
        "BatchSum of LowRank": co.BatchSum(co.LowRank(a(ROWS[:, :, None]))),
        "BatchSum of Dense": co.BatchSum(co.Dense(a(SQUARES))) + co.Identity(4),
        "BatchSum, batched": co.BatchSum(co.Dense(a(BATCHED)), axis=1),
        "Sum": co.Sum(*(co.Dense(a(S)) for S in SQUARES)),
    }


# ---------------------------------------------------------------------------------------------------- minibatches


@pytest.mark.parametrize("name", list(sums(backends.get("numpy"))))
def test_minibatches_of_all_terms_average_to_the_sum(name: str) -> None:
    for backend in ("numpy", "torch"):
        xp = backends.get(backend)
        A = sums(xp)[name]
        n = term_count(A)
        parts = [
            minibatch(A, xp.asarray(p))
            for p in np.random.default_rng(1).permutation(n).reshape(-1, 3)
        ]
        assert n in (12, 18) and all(part.shape == A.shape for part in parts)
        V = xp.asarray(np.random.default_rng(2).standard_normal((A.shape[-1], 2)))
        for side in ("A", "H"):
            product = sum(
                xp.to_numpy((part.H if side == "H" else part) @ V) for part in parts
            ) / len(parts)
            np.testing.assert_allclose(
                product, xp.to_numpy((A.H if side == "H" else A) @ V), atol=1e-12
            )


def test_minibatches_compile_with_traced_indices() -> None:
    jax = pytest.importorskip("jax")
    xp = backends.get("jax")
    for name in ("Sum", "BatchSum of LowRank", "Gram of a sparse matrix"):
        A = sums(xp)[name]
        V, indices = xp.asarray(ROWS[:4]), np.array([3, 7, 7])
        compiled = jax.jit(lambda A, i, V: minibatch(A, i) @ V)(A, xp.asarray(indices), V)
        np.testing.assert_allclose(
            compiled, minibatch(sums(backends.get("numpy"))[name], indices) @ ROWS[:4], atol=1e-12
        )


def test_a_minibatch_costs_its_share_of_a_product() -> None:
    A = gram(backends.get("numpy"), RNG.standard_normal((1000, 4)))
    assert minibatch(A, np.arange(10)).flops == pytest.approx(A.flops / 100)


def test_a_sum_of_operators_multiplies_only_those_drawn() -> None:
    terms = [co.Dense(S) for S in SQUARES]
    some = minibatch(co.Sum(*terms), np.array([2, 5]))
    with co.testing.count_matvecs(terms[2]) as drawn, co.testing.count_matvecs(terms[3]) as other:
        some @ np.ones(4)
    assert (drawn.products, other.products) == (1, 0)


class PerSample(co.LinearOperator):
    """A user's own factor: one row for each sample, made when it is multiplied."""

    samples: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.samples.shape[0], 5)

    def _matmat(self, X: Any) -> Any:
        CALLS.append(self.samples.shape[0])
        return np.cos(self.samples[:, None] * np.arange(1, 6)) @ X

    def _rmatmat(self, X: Any) -> Any:
        return np.cos(self.samples[:, None] * np.arange(1, 6)).T @ X

    def _rows(self, indices: Any) -> Any:
        return PerSample(self.samples[indices])


def test_an_operator_of_a_users_own_joins_by_its_rows() -> None:
    J = PerSample(np.random.default_rng(0).uniform(0, 6, 640))
    A = J.H @ J / 640 + 0.1 * co.Identity(5)
    CALLS.clear()
    x = co.solve(A, np.ones(5), co.SVRG(batch_size=20))
    np.testing.assert_allclose(A @ x, np.ones(5), atol=1e-6)
    assert CALLS.count(20) > 30 * CALLS.count(640)


# ---------------------------------------------------------------------------------------------------- linear systems


def problem(xp: Any, n: int = 600, d: int = 6, dtype: Any = np.float64) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, d)) * np.linspace(0.7, 1.5, d)
    b = rng.standard_normal((d, 2))
    if np.dtype(dtype).kind == "c":
        X, b = X + 1j * rng.standard_normal((n, d)), b * (1 + 1j)
    X = co.Dense(xp.asarray(X.astype(dtype)))
    return X.H @ X / n + 0.1 * co.Identity(d), xp.asarray(b.astype(dtype))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 10},
        {"averaging": True},
        {"momentum": 0.3},
        {"step": 0.1},
        {"preconditioner": co.Jacobi()},
    ],
    ids=str,
)
def test_a_positive_sum_is_solved_to_the_tolerance(options: Any) -> None:
    xp = backends.get("numpy" if len(str(options)) % 2 else "torch")
    A, b = problem(xp)
    x, info = co.solve(A, b, co.SVRG(**options), info=True)
    residual = np.linalg.norm(xp.to_numpy(b - A @ x), axis=0) / np.linalg.norm(
        xp.to_numpy(b), axis=0
    )
    assert info.status == Status.SUCCESS and residual.max() <= 1.5e-8
    np.testing.assert_allclose(xp.to_numpy(info.residual), residual, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_dtypes_are_kept(dtype: Any) -> None:
    A, b = problem(backends.get("numpy"), dtype=dtype)
    x = co.solve(A, b, co.SVRG())
    assert x.dtype == dtype and np.linalg.norm(A @ x - b) <= 4 * np.sqrt(
        np.finfo(dtype).eps
    ) * np.linalg.norm(b)


def test_a_solve_in_jax_is_one_compiled_loop_with_a_key_that_is_traced() -> None:
    jax = pytest.importorskip("jax")
    xp = backends.get("jax")
    A, b = problem(xp, 300)
    solve = jax.jit(lambda A, b, key: co.solve(A, b, co.SVRG(seed=key), info=True))
    (x, info), (again, _), (other, _) = (solve(A, b, jax.random.key(seed)) for seed in (0, 0, 1))
    assert int(info.status) == 0 and np.linalg.norm(A @ x - b) < 1e-7 * np.linalg.norm(b)
    assert np.array_equal(x, again) and not np.array_equal(x, other)
    slope = jax.grad(
        lambda A: co.solve(A, b, co.SVRG(seed=jax.random.key(0))).sum(), allow_int=True
    )(A)
    assert all(np.isfinite(leaf).all() for leaf in slope.leaves() if hasattr(leaf, "shape"))


def test_seeds_decide() -> None:
    A, b = problem(backends.get("numpy"))
    first, second, other = (co.solve(A, b, co.SVRG(seed=seed)) for seed in (1, 1, 2))
    assert np.array_equal(first, second) and not np.array_equal(first, other)


def test_an_epoch_costs_two_passes() -> None:
    A, b = problem(backends.get("numpy"))
    with co.testing.count_matvecs(A) as full:
        _, info = co.solve(A, b[:, 0], co.SVRG(batch_size=20), info=True)
    setup = 4 * 8 * 20 / 600
    assert full.matvecs == info.iterations  # one true residual at each anchor
    assert 2 * info.iterations <= info.matvecs <= np.ceil(2.1 * info.iterations + setup) + 1


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_general_systems_go_through_the_normal_equations(backend: str) -> None:
    xp, rng = backends.get(backend), np.random.default_rng(0)
    rows = xp.asarray(rng.standard_normal((8, 8)) / 4 + 2 * np.eye(8))  # the rows are the terms
    terms = co.BatchSum(co.Dense(xp.asarray(rng.standard_normal((200, 6, 6)) / 4 + np.eye(6))))
    indefinite = co.SelfAdjoint(
        co.Dense(xp.asarray(np.diag([1.0, -2.0, 3.0])))
        + co.Dense(xp.asarray(np.diag([2.0, -1.0, 1.0])))
    )
    for A in (rows, terms, indefinite):
        A = co.as_operator(A)
        b = xp.asarray(rng.standard_normal(A.shape[-1]))
        x, info = co.solve(A, b, co.SVRG(), info=True)
        assert info.status == Status.SUCCESS and np.linalg.norm(
            xp.to_numpy(A @ x - b)
        ) <= 1e-7 * np.linalg.norm(xp.to_numpy(b))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_least_squares_go_by_minibatches_of_rows(backend: str) -> None:
    xp, rng = backends.get(backend), np.random.default_rng(1)
    X, y = (
        rng.standard_normal((200, 5)) * (rng.random((200, 5)) < 0.5),
        rng.standard_normal((200, 2)),
    )
    deficient = np.concatenate([X, X[:, :1]], axis=1)  # of all solutions the one of smallest norm
    for A, dense in (
        (co.Dense(xp.asarray(X)), X),
        (sparse(xp, X), X),
        (co.Dense(xp.asarray(deficient)), deficient),
    ):
        w, info = co.lstsq(A, xp.asarray(y), co.SVRG(tol=1e-9), info=True)
        exact = np.linalg.lstsq(dense, y)[0]
        np.testing.assert_allclose(xp.to_numpy(w), exact, atol=1e-7)
        residual = np.linalg.norm(y - dense @ exact, axis=0) / np.linalg.norm(y, axis=0)
        np.testing.assert_allclose(xp.to_numpy(info.residual), residual, atol=1e-6)
        assert info.status == Status.SUCCESS and "SVRG" in str(
            co.explain(co.lstsq, A, method=co.SVRG())
        )


def test_rows_of_very_different_lengths_are_not_filled_up() -> None:
    lengths = np.r_[1000, np.ones(999, int)]
    uneven = scipy.sparse.csr_array(
        (np.ones(1999), np.r_[np.arange(1000), np.zeros(999, int)], np.r_[0, np.cumsum(lengths)])
    )
    S = co.Sparse(uneven)
    with pytest.raises(MethodError, match="not a sum of terms"):
        co.solve(S.H @ S + co.Identity(1000), np.ones(1000), co.SVRG())


def test_sums_are_not_split_by_rules_and_other_structure_is() -> None:
    A, b = problem(backends.get("numpy"))
    assert co.solve(A, b, co.SVRG(), info=True)[1].method == "SVRG"
    both = co.BlockDiag(A, 2.0 * A)
    x, info = co.solve(both, np.ones(12), co.SVRG(), info=True)
    assert "SVRG" in str(info) and np.linalg.norm(both @ x - 1) < 1e-6
    np.testing.assert_allclose(
        co.inv(A, co.SVRG()) @ b, np.linalg.solve(A.to_dense(), b), atol=1e-6
    )
    for f, arguments in ((co.solve, ()), (co.eig, (1, "LA")), (co.nullspace, ())):
        assert "SVRG" in str(co.explain(f, A, *arguments, method=co.SVRG()))


def test_the_derivative_does_not_pass_through_the_epochs() -> None:
    torch = pytest.importorskip("torch")
    X = torch.tensor(RNG.standard_normal((60, 3)), requires_grad=True)
    b = torch.ones(3, dtype=torch.float64)

    def loss(method: Any) -> Any:
        D = co.Dense(X)
        return torch.autograd.grad(
            (co.solve(D.H @ D / 60 + co.Identity(3), b, method) ** 2).sum(), X
        )[0]

    np.testing.assert_allclose(loss(co.SVRG(tol=1e-10)), loss(co.CG(tol=1e-10)), atol=1e-8)


def test_vmap_solves_each() -> None:
    torch = pytest.importorskip("torch")
    X, b = RNG.standard_normal((2, 60, 3)), RNG.standard_normal((2, 3))

    def solve(X: Any, b: Any) -> Any:
        D = co.Dense(X)
        return co.solve(D.H @ D / 60 + co.Identity(3), b, co.SVRG())

    found = torch.func.vmap(solve)(torch.tensor(X), torch.tensor(b))
    exact = [np.linalg.solve(x.T @ x / 60 + np.eye(3), c) for x, c in zip(X, b, strict=True)]
    np.testing.assert_allclose(found, exact, atol=1e-7)


def test_a_batch_of_sums_is_solved_at_once() -> None:
    terms = RNG.standard_normal((3, 100, 4, 1))
    A = co.BatchSum(co.LowRank(terms), axis=1) / 100 + co.Identity(4)
    x, info = co.solve(A, np.ones((3, 4, 1)), co.SVRG(), info=True)
    assert info.status == Status.SUCCESS and np.abs(A @ x - 1).max() < 1e-6


def test_a_callback_sees_each_anchor_and_may_stop() -> None:
    A, b = problem(backends.get("numpy"))
    seen: list[float] = []

    def watch(progress: Any) -> bool:
        seen.append(float(progress.residual.max()))
        return progress.iteration == 3

    _, info = co.solve(A, b, co.SVRG(callback=watch), info=True)
    assert info.status == Status.STOPPED and len(seen) == 3 and seen[-1] < seen[0]
    assert info.history.shape == (4, 2)


# ---------------------------------------------------------------------------------------------------- subspaces


def spectrum(n: int = 500, d: int = 8) -> Any:
    rng = np.random.default_rng(5)
    return (
        rng.standard_normal((n, d))
        * np.r_[np.linspace(0.2, 1.2, d - 2), 2.5, 3.0]
        @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    )


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_eigenvectors_at_either_end(backend: str) -> None:
    pytest.importorskip(backend)
    xp, X = backends.get(backend), spectrum()
    A = gram(xp, X) / len(X)
    exact = np.linalg.eigvalsh(X.T @ X / len(X))
    for k, which in ((2, "LA"),) if backend == "jax" else ((1, "LM"), (2, "LA"), (1, "SA")):
        (values, vectors), info = co.eig(A, k, which, co.SVRG(), info=True)
        assert info.status == Status.SUCCESS and vectors.isa(co.Stiefel) and info.method == "SVRG"
        np.testing.assert_allclose(
            xp.to_numpy(values), exact[-k:] if which[0] == "L" else exact[:k], atol=1e-9
        )
        V = xp.to_numpy(vectors.to_dense())
        assert np.abs(X.T @ (X @ V) / len(X) - V * xp.to_numpy(values)).max() <= 2e-8 * exact[-1]
    if backend == "numpy":
        assert float(co.eigmax(A, method=co.SVRG())) == pytest.approx(exact[-1])


def test_fewer_passes_than_power_iteration_where_eigenvalues_are_near() -> None:
    X = spectrum(4000)
    A = gram(backends.get("numpy"), X) / len(X)
    passes = [
        co.eig(A, 1, "LM", method, info=True)[1].matvecs
        for method in (co.SVRG(), co.PowerIteration())
    ]
    assert 2 * passes[0] < passes[1]


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_null_spaces_of_any_size_are_found(backend: str) -> None:
    xp, rng = backends.get(backend), np.random.default_rng(6)
    for rank, n in ((4, 6), (2, 12), (5, 5)):  # the second needs more vectors than it starts with
        M = (
            np.linalg.qr(rng.standard_normal((60, rank)))[0]
            @ np.linalg.qr(rng.standard_normal((n, rank)))[0].T
        )
        for A in (xp.asarray(M), gram(xp, M)):
            N, info = co.nullspace(A, method=co.SVRG(), info=True)
            assert N.shape == (n, n - rank) and N.isa(co.Stiefel) and info.status == Status.SUCCESS
            # |M w|^2 = w^H M^H M w <= tol for the Gram
            assert np.abs(M @ xp.to_numpy(N.to_dense())).max(initial=0) < 2e-4


# ---------------------------------------------------------------------------------------------------- bad input


def test_a_step_that_diverges_is_reported() -> None:
    for backend, step in itertools.product(("numpy", "torch"), (5.0, 1e8)):
        A, b = problem(backends.get(backend))
        x, info = co.solve(A, b, co.SVRG(step=step), info=True)
        assert info.status == Status.BREAKDOWN and "step is too large" in info.message
        assert np.isfinite(backends.get(backend).to_numpy(x)).all()
    with pytest.warns(ConvergenceWarning, match="diverged"):
        co.solve(A, b, co.SVRG(step=5.0))


def test_indefinite_sums_that_claim_to_be_positive_are_reported() -> None:
    terms = co.PSD(co.BatchSum(co.Dense(np.broadcast_to(np.diag([1.0, -1.0]), (64, 2, 2)).copy())))
    _, info = co.solve(terms, np.ones(2), co.SVRG(), info=True)
    assert info.status in (Status.NOT_POSITIVE_DEFINITE, Status.BREAKDOWN)


def test_nan_is_reported() -> None:
    X = co.Dense(np.where(np.arange(40).reshape(20, 2) == 7, np.nan, 1.0))
    A = X.H @ X + co.Identity(2)
    assert co.solve(A, np.ones(2), co.SVRG(), info=True)[1].failed
    assert co.eig(A, 1, "LA", co.SVRG(), info=True)[1].status == Status.NONFINITE
    assert co.solve(
        co.Identity(2) + gram(backends.get("numpy"), ROWS[:, :2]),
        np.array([1, np.nan]),
        co.SVRG(),
        info=True,
    )[1].failed


def test_a_zero_right_side_gives_zero() -> None:
    A, _ = problem(backends.get("numpy"))
    assert not co.solve(A, np.zeros(6), co.SVRG()).any()
    assert co.solve(A, np.zeros((6, 0)), co.SVRG()).shape == (6, 0)


def test_bad_input_says_what_to_do() -> None:
    A, b = problem(backends.get("numpy"))
    with pytest.raises(ValueError, match=r"batch_size is 601, and the sum has 600 terms"):
        co.solve(A, b, co.SVRG(batch_size=601))
    with pytest.raises(MethodError, match=r"is not a sum of terms.*BatchSum"):
        co.solve(co.PSD(np.eye(3)), np.ones(3), co.SVRG())
    with pytest.raises(MethodError, match="self-adjoint"):
        co.eig(co.BatchSum(co.Dense(SQUARES)), 1, "LM", co.SVRG())
    with pytest.raises(MethodError, match="ends of the spectrum"):
        co.eig(
            co.SelfAdjoint(co.BatchSum(co.Dense(SQUARES + SQUARES.swapaxes(1, 2)))),
            1,
            "SM",
            co.SVRG(),
        )
    with pytest.raises(MethodError, match="preconditioner"):
        co.eig(A, 1, "LA", co.SVRG(preconditioner=co.Jacobi()))
    for options in ({"momentum": 0.5}, {"averaging": True}):
        with pytest.raises(MethodError, match="for linear systems"):
            co.eig(A, 1, "LA", co.SVRG(**options))  # type: ignore[arg-type]
    with pytest.raises(MethodError, match="terms cannot be taken"):
        co.solve(
            co.BatchSum(co.MatrixFree(lambda X: X, (50, 3, 3), dtype=np.float64)),
            np.ones(3),
            co.SVRG(),
        )
    for options in (
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"step": -1.0},
        {"momentum": 1.0},
        {"precision": "float32"},
        {"tol": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            co.SVRG(**options)  # type: ignore[arg-type]


def test_seeds_are_integers_keys_or_generators() -> None:
    A, b = problem(backends.get("numpy"))
    generator = np.random.default_rng(0)
    first, second = (co.solve(A, b, co.SVRG(seed=generator)) for _ in range(2))
    assert not np.array_equal(first, second)  # it moved on
    assert np.array_equal(first, co.solve(A, b, co.SVRG(seed=np.random.default_rng(0))))
    with pytest.raises(TypeError, match="seed"):
        co.SVRG(seed=0.5)
