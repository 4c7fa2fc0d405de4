"""Solves whose residual is bounded instead of computed: the bounds hold, and where they do not suffice nothing is hidden."""

from __future__ import annotations

import sys
import warnings
from typing import Any
from unittest import mock

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.backends import numpy as xp
from colinear.errors import ConvergenceWarning
from colinear.functions import common as _values
from colinear.functions import least_squares
from colinear.functions.solve import compositions as inverse_blocks
from colinear.functions.solve import rules as solve_rules
from colinear.operators import banded
from colinear.status import Status
from colinear.testing import count_matvecs, forbid_dense

FRAMEWORKS = ("numpy", "torch", "jax")
KINDS = [
    ("numpy", np.float64),
    ("numpy", np.complex128),
    ("torch", np.complex128),
    ("jax", np.float64),
]


def spd(rng, n, dtype=np.float64):
    G = rng.standard_normal((n, n))
    G = G + 1j * rng.standard_normal((n, n)) if np.dtype(dtype).kind == "c" else G
    return (G @ G.conj().T / n + np.eye(n)).astype(dtype)


def right_side(rng, shape, dtype=np.float64):
    b = rng.standard_normal(shape)
    return (b + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else b).astype(dtype)


def relative_residual(A, x, b):
    return np.linalg.norm(b - A @ x) / np.linalg.norm(b)


@pytest.fixture
def no_product_with_the_whole(monkeypatch):
    """Fails where the way of `solve.py` is taken."""

    def refuse(*_, **__):
        raise AssertionError("the residual of the whole was computed")

    monkeypatch.setattr(solve_rules, "apply_inverse", refuse)
    monkeypatch.setattr(solve_rules, "solve_by_inverse", refuse)


# ---------------------------------------------------------------------------------------------------- Kronecker products


@pytest.mark.parametrize(("framework", "dtype"), KINDS)
def test_kronecker_solves_by_certified_inverses_are_right(
    framework, dtype, no_product_with_the_whole
):
    rng, target = np.random.default_rng(0), backends.get(framework)
    matrices = [spd(rng, n, dtype) for n in (20, 25, 30)]
    b = right_side(rng, 20 * 25 * 30, dtype)
    A = co.Kronecker(*(co.PSD(co.Dense(target.asarray(M))) for M in matrices))
    x = target.to_numpy(co.solve(A, target.asarray(b)))
    assert x.dtype == dtype
    assert relative_residual(co.Kronecker(*matrices), x, b) < 1e-12


def test_kronecker_bound_is_above_the_residual_and_above_the_condition():
    rng = np.random.default_rng(1)
    for exponent in (0, 2, 4):
        Q, _ = np.linalg.qr(rng.standard_normal((30, 30)))
        M = Q * np.logspace(0, -exponent, 30) @ Q.T
        A, b = co.Kronecker(M, M, M), rng.standard_normal(30**3)
        W = np.linalg.inv(M)
        bound = solve_rules._bound(xp, A.operands, [W] * 3)
        found = relative_residual(A, co.Kronecker(W, W, W) @ b, b)
        assert found <= bound
        assert bound <= 1e7 * max(found, 1e-16)  # not uselessly far above


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kronecker_of_ill_conditioned_factors_is_accurate_or_says_so(dtype):
    rng = np.random.default_rng(2)
    Q, _ = np.linalg.qr(rng.standard_normal((24, 24)))
    M = (Q * np.logspace(0, -5, 24) @ Q.T).astype(dtype)
    A, b = co.Kronecker(M, M, M), rng.standard_normal(24**3).astype(dtype)
    _, info = co.solve(A, b, info=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plain = co.solve(A, b)
    tol = np.sqrt(np.finfo(dtype).eps)
    assert relative_residual(A, plain, b) <= 1.01 * tol or caught
    assert bool(caught) == info.status.is_failure


def test_kronecker_with_a_singular_factor_or_a_right_side_of_nan_is_not_called_right():
    rng = np.random.default_rng(3)
    M, b = spd(rng, 22), rng.standard_normal(22**3)
    singular = M.copy()
    singular[0] = singular[1]
    with pytest.warns(ConvergenceWarning, match="factor 2"):
        co.solve(co.Kronecker(M, singular, M), b)
    b[7] = np.nan
    with pytest.warns(ConvergenceWarning):
        co.solve(co.Kronecker(M, M, M), b)


def test_kronecker_batches_of_factors_and_of_right_sides_broadcast(no_product_with_the_whole):
    rng = np.random.default_rng(4)
    first, second = np.stack([spd(rng, 12), spd(rng, 12)]), spd(rng, 30)
    A, B = co.Kronecker(first, second), rng.standard_normal((2, 360, 20))
    X = co.solve(A, B)
    assert np.allclose(A.to_dense() @ X, B)


# ---------------------------------------------------------------------------------------------------- blocks along a diagonal


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("size", "dtype"), [(4, np.float32), (40, np.complex128)])
def test_alike_blocks_are_solved_together(framework, size, dtype, no_product_with_the_whole):
    rng, target = np.random.default_rng(5), backends.get(framework)
    matrices = [spd(rng, size, dtype) for _ in range(7)]
    B = right_side(rng, (7 * size, 2), dtype)
    A = co.BlockDiag(*(co.PSD(co.Dense(target.asarray(M))) for M in matrices))
    X = target.to_numpy(co.solve(A, target.asarray(B)))
    expected = np.concatenate(
        [np.linalg.solve(M, part) for M, part in zip(matrices, np.split(B, 7))]
    )
    assert X.dtype == dtype
    assert np.allclose(X, expected, rtol=1e-4 if dtype == np.float32 else 1e-10)


def test_blocks_that_do_not_fit_the_cache_together_are_solved_in_groups(
    monkeypatch, no_product_with_the_whole
):
    monkeypatch.setattr(_values, "CACHED", 3 * 5 * 5 * 8)
    rng = np.random.default_rng(6)
    A = co.BlockDiag(*(rng.standard_normal((5, 5)) for _ in range(8)))
    b = rng.standard_normal((3, 40, 2))
    assert np.allclose(A.to_dense() @ co.solve(A, b), b)


def test_a_singular_block_is_named_and_a_right_side_of_zeros_is_solved():
    rng = np.random.default_rng(7)
    matrices = [spd(rng, 6) for _ in range(5)]
    b = rng.standard_normal(30)
    b[6:12] = 0
    assert np.allclose(co.BlockDiag(*matrices).to_dense() @ co.solve(co.BlockDiag(*matrices), b), b)
    matrices[3][0] = matrices[3][1]
    with pytest.warns(ConvergenceWarning, match="block 4 of 5"):
        co.solve(co.BlockDiag(*matrices), b)


# ---------------------------------------------------------------------------------------------------- three diagonals


def test_tridiagonal_bound_is_far_above_the_residual(monkeypatch):
    """Small diagonals make every step exchange rows; graded and random ones mix."""
    monkeypatch.setattr(banded, "LARGE_TRIDIAGONAL", 0)
    rng, n, known = np.random.default_rng(8), 4000, 0
    ones, random = np.ones(n - 1), rng.standard_normal(n - 1)
    for diag, upper in (
        (np.full(n, 0.5), ones),
        (rng.standard_normal(n), random),
        (np.full(n, 2.0), ones),
        (np.logspace(-3, 6, n), random),
    ):
        A, B = co.Tridiagonal(ones, diag, upper), rng.standard_normal((n, 1))
        inverse = co.inv(A, on_failure="ignore")
        X = inverse @ B
        bound = inverse._residual_bound(X, B)
        known += bound is not None
        assert bound is None or bound > 5 * np.linalg.norm(B - A @ X) / np.linalg.norm(B)
    assert known > 1  # where squares would mislead there is none


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tridiagonal_solves_need_no_product_where_the_bound_suffices(framework, monkeypatch):
    monkeypatch.setattr(banded, "LARGE_TRIDIAGONAL", 0)
    rng, n, target = np.random.default_rng(9), 200, backends.get(framework)
    lower, diag, upper = (
        rng.standard_normal(n - 1),
        rng.standard_normal(n) + 4,
        rng.standard_normal(n - 1),
    )
    T = co.Tridiagonal(*(target.asarray(d) for d in (lower, diag, upper)))
    b = rng.standard_normal(n)
    with count_matvecs(T) as count:
        x = co.solve(T, target.asarray(b))
    assert np.allclose(np.linalg.solve(target.to_numpy(T.to_dense()), b), target.to_numpy(x))
    assert count.matvecs == 0


def test_singular_and_nonfinite_tridiagonal_systems_are_reported():
    ones = np.ones(5)
    with pytest.warns(ConvergenceWarning):
        co.solve(co.Tridiagonal(np.zeros(4), np.r_[ones[:4], 0.0], np.zeros(4)), ones)
    with pytest.warns(ConvergenceWarning):
        co.solve(co.Tridiagonal(ones[:4], 4 * ones, ones[:4]), np.r_[ones[:4], np.nan])


# ---------------------------------------------------------------------------------------------------- squares by halves


@pytest.mark.parametrize(("framework", "dtype"), KINDS)
def test_woodbury_with_a_positive_diagonal_takes_its_root(framework, dtype):
    rng, target = np.random.default_rng(10), backends.get(framework)
    U, d = right_side(rng, (30, 3), dtype), rng.uniform(0.5, 2, 30).astype(dtype)
    b = right_side(rng, 30, dtype)
    for D in (
        co.Diagonal(target.asarray(d.real)),
        0.5 * co.Identity(30),
        co.Identity(30),
        co.Diagonal(target.asarray(-d.real)),
    ):
        A = D + co.LowRank(target.asarray(U))
        x = target.to_numpy(co.solve(A, target.asarray(b)))
        assert np.allclose(target.to_numpy(A.to_dense()) @ x, b)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_transposed_view_is_known_to_be_the_mirror_image(sign):
    rng = np.random.default_rng(11)
    B, d, b = rng.standard_normal((20, 4)), sign * rng.uniform(1, 2, 20), rng.standard_normal(24)
    assert inverse_blocks._are_mirrored(co.Dense(B), co.Dense(B.T))
    assert not inverse_blocks._are_mirrored(co.Dense(B), co.Dense(B[::-1].T))
    assert not inverse_blocks._are_mirrored(co.Dense(B), co.Dense(2 * B.T))
    for corner in (B.T, 2 * B.T):
        A = co.Block(
            [
                [co.Diagonal(d), co.Dense(B)],
                [co.Dense(corner), co.Dense(rng.standard_normal((4, 4)))],
            ]
        )
        assert np.allclose(A.to_dense() @ co.solve(A, b), b)
        assert np.allclose(co.logdet(A), np.linalg.slogdet(A.to_dense())[1])


# ---------------------------------------------------------------------------------------------------- batches of large matrices


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_factorisations_of_many_large_matrices_agree_with_those_of_each(dtype):
    rng, n = np.random.default_rng(12), 35
    A = np.stack([spd(rng, n, dtype) for _ in range(4)]).reshape(2, 2, n, n)
    A[1, 0] = -A[1, 0]  # not positive definite
    B = right_side(rng, (2, 1, n, 3), dtype)
    L, ok = xp.cholesky(A)
    assert ok.tolist() == [[True, True], [False, True]]
    assert np.isnan(L[1, 0]).all()
    tol = 1e-3 if dtype == np.float32 else 1e-10
    X = xp.cholesky_solve(L, B)
    assert np.allclose((A @ X)[ok], np.broadcast_to(B, X.shape)[ok], atol=tol)
    assert np.array_equal(L[ok], np.tril(L[ok]))
    G = right_side(rng, (40, n, n), dtype)
    C = right_side(rng, (n, 2), dtype)
    factors = xp.lu_factor(G)
    for options, M in (({}, G), ({"adjoint": True}, G.mT.conj())):
        X = xp.lu_solve(*factors, C, **options)
        # some of the forty are ill-conditioned: what LU promises is a small backward error
        size = np.linalg.norm(M, axis=(-2, -1)) * np.linalg.norm(X, axis=(-2, -1))
        residual = np.linalg.norm(M @ X - C, axis=(-2, -1))
        assert np.all(residual < n * np.finfo(dtype).eps * size)


# ---------------------------------------------------------------------------------------------------- least squares


@pytest.mark.parametrize(("framework", "dtype"), KINDS)
def test_tall_least_squares_of_full_rank_needs_neither_q_nor_singular_values(
    framework, dtype, monkeypatch
):
    monkeypatch.setattr(least_squares, "_judged", None)  # what both go through
    rng, target = np.random.default_rng(13), backends.get(framework)
    A, b = right_side(rng, (40, 5), dtype), right_side(rng, 40, dtype)
    x = target.to_numpy(co.lstsq(target.asarray(A), target.asarray(b)))
    assert np.allclose(x, np.linalg.lstsq(A, b)[0])


def test_tall_least_squares_of_doubtful_rank_is_left_to_the_singular_values():
    rng = np.random.default_rng(14)
    A, b = rng.standard_normal((40, 5)), rng.standard_normal(40)
    A[:, 4] = A[:, 3]
    assert np.allclose(co.lstsq(A, b), np.linalg.lstsq(A, b)[0])
    assert np.allclose(co.lstsq(0 * A, b), 0)
    batch = np.stack([A, rng.standard_normal((40, 5))])
    X = co.lstsq(batch, np.stack([b, b])[..., None])
    assert np.allclose(X[1, :, 0], np.linalg.lstsq(batch[1], b)[0])


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (2, 6, 4)])
def test_qr_and_its_triangle_alone_agree_with_numpy(dtype, shape):
    A = right_side(np.random.default_rng(15), shape, dtype)
    Q, R = xp.qr(A)
    expected = np.linalg.qr(A)
    tol = 1e-5 if dtype == np.float32 else 1e-12
    assert np.allclose(Q, expected.Q, atol=tol)
    assert np.allclose(R, expected.R, atol=tol)
    assert np.allclose(xp.qr_triangle(A), expected.R, atol=tol)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_tridiagonal_cholesky_on_the_host_is_right_and_refuses_what_is_not_positive(dtype):
    rng, n = np.random.default_rng(16), 9
    lower, diag = right_side(rng, n - 1, dtype), np.full(n, 6, dtype)
    A = co.Tridiagonal(lower, diag, lower.conj())
    L = co.cholesky(A)
    assert L.dtype == dtype
    assert np.allclose(L.to_dense() @ L.to_dense().conj().T, A.to_dense(), atol=1e-5)
    for wrong in (
        co.Tridiagonal(lower, -diag, lower.conj()),
        co.Tridiagonal(lower, diag, 2 * lower.conj()),
    ):
        with pytest.warns(ConvergenceWarning, match="NOT_POSITIVE_DEFINITE"):
            co.cholesky(wrong)


# ---------------------------------------------------------------------------------------------------- tiny systems


def test_tiny_kronecker_products_are_solved_as_matrices_and_failures_still_name_the_factor():
    rng = np.random.default_rng(17)
    P, Q, b = spd(rng, 2), spd(rng, 3), rng.standard_normal((6, 2))
    assert np.allclose(
        co.solve(co.Kronecker(co.PSD(P), co.PSD(Q)), b), np.linalg.solve(np.kron(P, Q), b)
    )
    with pytest.warns(ConvergenceWarning, match="factor 2"):
        co.solve(co.Kronecker(P, np.ones((3, 3))), b)
    _, info = co.solve(co.Kronecker(P, Q), b, info=True)
    assert info.residual.max() < 1e-14
    assert len(info.children) == 1  # the inverse, factor by factor


def test_tiny_kronecker_products_with_scales_far_from_one_are_solved():
    P, Q = 1e-120 * np.eye(2), np.array([[2.0, 1.0], [1.0, 2.0]])
    x = co.solve(co.Kronecker(P, Q), np.ones(4))
    assert np.allclose(x, np.full(4, 1e120 / 3))


@pytest.mark.parametrize("framework", FRAMEWORKS[:2])
def test_diagonal_systems_are_divided_and_zeros_reported(framework):
    target = backends.get(framework)
    d, B = target.asarray(np.array([[1.0, 2.0], [4.0, 8.0]])), target.asarray(np.ones((2, 2, 3)))
    X = target.to_numpy(co.solve(co.Diagonal(d), B))
    assert np.allclose(X, (1 / target.to_numpy(d))[..., None] * np.ones((2, 2, 3)))
    with pytest.warns(ConvergenceWarning, match="SINGULAR"):
        co.solve(co.Diagonal(target.asarray(np.array([1.0, 0.0]))), target.asarray(np.ones(2)))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_large_toeplitz_systems_are_iterated_with_once(backend):
    xp, n, rng = backends.get(backend), 1100, np.random.default_rng(0)
    for dtype, tol in (("float64", 1e-10), ("float32", 3e-4), ("complex128", 1e-10)):
        col, row = (0.5 ** np.arange(n) * (1 + 0.1 * rng.standard_normal(n)) for _ in range(2))
        col, row = col + np.eye(1, n)[0], np.r_[col[0] + 1, row[1:]]
        factor = 1 + 0.1j if dtype == "complex128" else 1
        parts = [(factor * x).astype(dtype) for x in (col, row, rng.standard_normal(n))]
        T, b = co.Toeplitz(*map(xp.asarray, parts[:2])), xp.asarray(parts[2])
        assert co.explain(co.solve, T).rules[0] == "solve_toeplitz"
        with (
            forbid_dense(20 * n),
            mock.patch("colinear.functions.solve.families.columns_of_inverse") as inverse,
        ):
            x, info = co.solve(T, b, info=True)
        assert not inverse.called and info.converged and x.dtype == b.dtype
        residual = np.linalg.norm(xp.to_numpy(T @ x - b)) / np.linalg.norm(parts[2])
        assert residual <= tol and float(info.residual.max()) <= tol


def test_toeplitz_systems_that_iterations_do_not_solve_take_the_inverse():
    n = 1100
    T = co.Toeplitz(np.abs(np.linspace(-1, 1, n)))  # indefinite and ill-conditioned
    b = np.ones(n)
    x, info = co.solve(T, b, info=True)
    assert info.failed or np.linalg.norm(T @ x - b) <= 1e-6 * np.linalg.norm(b)
    B = np.eye(n)[:, :3]  # a matrix of right sides
    good = co.Toeplitz(0.5 ** np.arange(n))
    np.testing.assert_allclose(good @ co.solve(good, B), B, atol=1e-9)


@pytest.mark.parametrize("backend", FRAMEWORKS)
def test_small_corrections_of_a_diagonal_agree_with_the_matrix(backend):
    framework, rng, n = backends.get(backend), np.random.default_rng(5), 12
    quick = backend == "jax"  # where each operation on a new shape is compiled

    def put(*shape, dtype="float64"):
        return framework.asarray(right_side(rng, shape, np.dtype(dtype)).astype(dtype))

    for dtype, tol in (("float64", 1e-11), ("complex64", 1e-3))[: 1 if quick else 2]:
        U, V, core = put(n, 2, dtype=dtype), put(n, 3, dtype=dtype), put(2, 3, dtype=dtype)
        D, I = co.Diagonal(put(n, dtype=dtype) + 5), co.Identity(n)
        sums = (
            co.LowRank(U, V, core) + D,
            co.LowRank(U) + D,
            co.LowRank(U) + 2.5 * I,
            co.LowRank(U) + I,
        )
        sides = (put(n, dtype=dtype), put(n, 4, dtype=dtype), put(2, n, 1, dtype=dtype))
        for A in sums[: 1 if quick else 4]:
            assert co.explain(co.solve, A).rules[0] == "woodbury"
            for b in sides[: 1 if quick else 3]:
                x = co.solve(A, b)
                assert x.shape == b.shape and x.dtype == b.dtype
                np.testing.assert_allclose(
                    framework.to_numpy(A @ x), framework.to_numpy(b), atol=tol
                )


def test_a_small_correction_that_makes_a_diagonal_singular_is_named():
    A = co.Diagonal(np.arange(1.0, 9.0)) + co.LowRank(np.eye(8)[:, 1:2], -2 * np.eye(8)[:, 1:2])
    with pytest.warns(ConvergenceWarning, match=r"SINGULAR.*capacitance"):
        co.solve(A, np.ones(8))


# ------------------------------------------------------------------ small systems


SMALL_DTYPES = ("float32", "float64", "complex64", "complex128")


def small_system(dtype: str, columns: tuple[int, ...] = (), n: int = 4) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    A, b = rng.normal(size=(n, n)) + 3 * np.eye(n), rng.normal(size=(n, *columns))
    if dtype.startswith("c"):
        A, b = A + 1j * rng.normal(size=A.shape), b + 1j * rng.normal(size=b.shape)
    return A.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("dtype", SMALL_DTYPES)
@pytest.mark.parametrize("columns", [(), (1,), (3,), (7,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_small_systems_are_solved_in_every_dtype_and_order(dtype, columns, order):
    A, b = small_system(dtype, columns)
    A, b = np.asarray(A, order=order), np.asarray(b, order=order)
    kept = A.copy(), b.copy()
    x = co.solve(A, b)
    assert x.dtype == A.dtype and x.shape == b.shape
    assert np.linalg.norm(A @ x - b) <= 100 * np.finfo(A.dtype).eps * np.linalg.norm(b)
    assert np.array_equal(A, kept[0]) and np.array_equal(b, kept[1])  # LAPACK wrote over nothing


@pytest.mark.parametrize("scale", [1e-200, 1e-12, 1.0, 1e12, 1e200])
def test_the_scale_of_a_small_system_does_not_matter(scale):
    A, b = small_system("float64")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no overflow is warned of either
        for left, right in ((scale, 1.0), (1.0, scale), (scale, scale)):
            x = co.solve(left * A, right * b)
            assert np.allclose(x * (left / right), np.linalg.solve(A, b), rtol=1e-10)


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (lambda A: np.where(np.arange(4) == 2, A[:, :1], A), Status.SINGULAR),  # equal columns
        (lambda A: np.where(np.arange(4) == 2, 0, A), Status.SINGULAR),  # a pivot of zero
        (lambda A: np.where(np.eye(4) > 0, np.nan, A), Status.NONFINITE),
        (lambda A: np.where(np.eye(4) > 0, np.inf, A), Status.NONFINITE),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_small_system_without_a_solution_is_flagged_in_all_frameworks(framework, spoil, status):
    xp = backends.get(pytest.importorskip(framework).__name__.partition(".")[0])
    A, b = small_system("float64")
    A, b = xp.asarray(spoil(A)), xp.asarray(b)
    with pytest.warns(ConvergenceWarning, match=status.name):
        co.solve(A, b)
    assert co.solve(A, b, info=True)[1].status == status
    if framework == "jax":
        import jax

        assert jax.jit(lambda A, b: co.solve(A, b, info=True)[1].status)(A, b) == int(status)


@pytest.mark.parametrize("claim", [lambda A: A, co.SelfAdjoint, co.PSD])
def test_small_matrices_of_torch_are_factored_by_numpy_and_belong_to_torch(claim):
    torch = pytest.importorskip("torch")
    G = np.random.default_rng(0).normal(size=(5, 5))
    matrix, b = torch.asarray(G @ G.T + np.eye(5)), torch.ones(5, dtype=torch.float64)
    A = claim(matrix)
    x, info = co.solve(A, b, info=True)
    inverse = co.inv(A)
    for found in (co.solve(A, b), x, inverse @ b):
        assert isinstance(found, torch.Tensor) and torch.allclose(matrix @ found, b)
    assert isinstance(info.residual, torch.Tensor) and info.residual < 1e-12
    assert all(isinstance(leaf, torch.Tensor) for leaf in inverse.leaves())
    assert torch.allclose(co.logdet(A), torch.logdet(matrix))
    recorded = matrix.clone().requires_grad_()
    co.solve(claim(recorded), b).sum().backward()
    assert torch.isfinite(recorded.grad).all() and recorded.grad.abs().max() > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda A, d: co.Kronecker(A, A),
        lambda A, d: co.Diagonal(d) + co.LowRank(A[:, :1]),
        lambda A, d: co.Dense(A),
    ],
)
def test_compiled_small_solves_say_what_is_wrong(make):
    jax = pytest.importorskip("jax")
    A, d = small_system("float64")
    n = make(A, d).shape[-1]
    b = np.arange(1.0, n + 1)
    program = jax.jit(lambda A, d, b: co.solve(make(A, d), b, info=True)[1].status)
    assert program(A, np.abs(d) + 1, b) == 0
    assert program(A, np.abs(d) + 1, np.full(n, np.nan)) == int(Status.NONFINITE)
    assert program(0 * A, 0 * d, b) >= int(Status.SINGULAR)


SMALL_CALLS = {  # frames of Python, in colinear alone, of a small problem that is built and solved
    "numpy diagonal": 18,
    "numpy dense": 26,
    "torch diagonal": 24,
    "torch dense": 56,
}


@pytest.mark.parametrize("name", SMALL_CALLS)
def test_a_small_problem_takes_few_frames(name, monkeypatch):
    monkeypatch.setattr("colinear.dispatch.calls.LENDERS", frozenset({"jax", "torch"}))
    framework, family = name.split()
    put = np.asarray if framework == "numpy" else pytest.importorskip("torch").asarray
    A = put(np.array([[4.0, 1.0], [2.0, 3.0]]))
    A, b = (A[0] if family == "diagonal" else A), put(np.ones(2))
    build = co.Diagonal if family == "diagonal" else co.Dense
    count = 0

    def count_ours(frame, event, _):
        nonlocal count
        count += event == "call" and "colinear" in frame.f_code.co_filename

    for profile in (None, count_ours):  # what is found once is there the second time
        sys.setprofile(profile)
        try:
            co.solve(build(A), b)
        finally:
            sys.setprofile(None)
    assert count <= SMALL_CALLS[name]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("spoil", ["singular", "nearly", "nan", "inf", "nan in b"])
def test_a_small_matrix_that_is_factored_at_once_is_judged_all_the_same(dtype, spoil):
    rng = np.random.default_rng(3)
    A, b = rng.normal(size=(4, 4)).astype(dtype), np.ones(4, dtype)
    if spoil in ("singular", "nearly"):
        A[3] = A[0] + A[1]
        A[3, 3] += np.finfo(dtype).eps if spoil == "nearly" else 0
    elif spoil == "nan in b":
        b[1] = np.nan
    else:
        A[1, 2] = float(spoil)
    with pytest.warns(ConvergenceWarning):
        co.solve(A, b)
    if spoil != "nan in b":
        with pytest.warns(ConvergenceWarning):
            co.inv(A)
