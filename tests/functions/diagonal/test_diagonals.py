"""The rules of `diag` and `trace`: each against the dense answer, that it fired, and that nothing large is formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.settings import SETTINGS, Maker, both

import colinear as co
from colinear import backends
from colinear.status import Status
from colinear.testing import forbid_dense


def inner(X: Any, Y: Any) -> Any:
    return X @ Y.T


DIAG: dict[str, Callable[[Maker], Any]] = {
    "diag_dense": lambda r: co.Dense(r(3, 4)),
    "diag_permutation": lambda r: co.Permutation([0, 2, 1, 3], like=r(1)),
    "diag_zero": lambda r: co.Zero(3, 2, like=r(1)),
    "diag_tridiagonal": lambda r: co.Tridiagonal(r(3, batched=False), r(4), r(3)),
    "diag_banded": lambda r: co.Banded([r(3), r(4, batched=False)], [1, 0], (4, 4)),
    "diag_toeplitz": lambda r: co.Toeplitz(r(4), r(3)),
    "diag_convolution": lambda r: co.Convolution(r(3, 5), (2, 3), centered=True),
    "diag_fft": lambda r: co.FFT((3, 4), like=r(1)).H,
    "diag_householder": lambda r: co.Householder(r(4)),
    "diag_projection": lambda r: co.Projection(r.stiefel(4, 2)),
    "diag_low_rank": lambda r: co.LowRank(r(4, 2), r(5, 2)),
    "diag_sparse": lambda r: r.sparse(4, 3),
    "diag_kernel": lambda r: co.Kernel(inner, r(40, 2), r(35, 2)),
    "diag_hadamard": lambda r: co.Hadamard(co.Dense(r(4, 4)), co.Toeplitz(r(4), r(4))),
    "diag_batch_sum": lambda r: co.BatchSum(co.LowRank(r(3, 4, 2)), -1),
    "diag_kronecker_sum": lambda r: co.KroneckerSum(
        co.Dense(r(2, 2)), co.Toeplitz(r(3), r(3)), co.Identity(2)
    ),
    "diag_rectangular_block_diagonal": lambda r: co.BlockDiag(
        co.Dense(r(2, 3)), co.Toeplitz(r(4), r(2))
    ),
    "diag_block": lambda r: co.Block(
        [[r(3, 2), co.Toeplitz(r(3), r(4))], [r(1, 2), None], [r(2, 2), r.sparse(2, 4)]]
    ),
    "diag_sliced": lambda r: co.Sliced(co.Toeplitz(r(5), r(5)), [3, 1, 1], [3, 1, 1]),
    "diag_turned, transpose": lambda r: co.Transpose._of(co.Dense(r(3, 3)) + co.Toeplitz(r(3))),
    "diag_turned, adjoint": lambda r: co.Adjoint._of(co.Dense(r(3, 3)) + co.Toeplitz(r(3))),
    "diag_thin_product": lambda r: co.Dense(r(5, 2)) @ co.Toeplitz(r(2), r(2)) @ co.Dense(r(2, 4)),
    "diag_dense_product": lambda r: co.Dense(r(3, 4)) @ co.Dense(r(4, 4)),
    "diag_sparse_product": lambda r: r.sparse(4, 5) @ r.sparse(5, 3),
    "diag_sparse_dense_product": lambda r: r.sparse(4, 5) @ co.Dense(r(5, 3)),
    "diag_dense_sparse_product": lambda r: co.Dense(r(4, 5)) @ r.sparse(5, 3),
    "diag_of_scaled_rows": lambda r: co.Diagonal(r(4)) @ co.Toeplitz(r(4), r(3)),
    "diag_of_scaled_columns": lambda r: co.Toeplitz(r(4), r(3)) @ co.Diagonal(r(3)),
    "diag_product_with_low_rank": lambda r: (
        co.Toeplitz(r(4), r(4)) @ co.LowRank(r(4, 1), r(3, 2), r(1, 2))
    ),
    "diag_of_diagonalised": lambda r: co.Dense(r(3, 4)) @ co.Diagonal(r(4)) @ co.Dense(r(4, 3)),
    "diag_of_diagonalised_kronecker": lambda r: (
        co.Kronecker(r(2, 3), r(3, 2)) @ co.Diagonal(r(6)) @ co.Kronecker(r(3, 2), r(2, 3))
    ),
}
INVERSE: dict[str, Callable[[Maker], Any]] = {
    "diag_inverse_triangular": lambda r: co.Triangular(r(3, 3)),
    "diag_inverse_tridiagonal": lambda r: co.Tridiagonal(r(4), r(5) + 4, r(4)),
    "diag_inverse_circulant": lambda r: co.Circulant(r(5)),
    "diag_spectral_inverse": lambda r: co.Kronecker(r(2, 2), r(3, 3)) + 5.0 * co.Identity(6),
}
TRACE: dict[str, Callable[[Maker], Any]] = {
    "trace_kronecker": lambda r: co.Kronecker(r(2, 2), r(3, 3)),
    "trace_kronecker_sum": lambda r: co.KroneckerSum(co.Dense(r(2, 2)), r(3, 3)),
    "trace_sum": lambda r: co.Dense(r(3, 3)) + co.Diagonal(r(3)),
    "trace_scaled": lambda r: 2.0 * co.Dense(r(3, 3)),
    "trace_block_diagonal": lambda r: co.BlockDiag(r(2, 2), r(3, 3)),
    "trace_batch_sum": lambda r: co.BatchSum(co.LowRank(r(3, 4, 2)), -1),
    "trace_turned, transpose": lambda r: co.Transpose._of(co.Dense(r(3, 3)) + co.Toeplitz(r(3))),
    "trace_turned, conjugate": lambda r: co.Conjugate._of(co.Dense(r(3, 3)) + co.Toeplitz(r(3))),
    "trace_projection": lambda r: co.Projection(r.stiefel(4, 2)),
    "trace_low_rank": lambda r: co.LowRank(r(4, 2), r(4, 3), r(2, 3)),
    "trace_rotated_product": lambda r: (
        co.Dense(r(5, 2)) @ co.Toeplitz(r(2), r(2)) @ co.Dense(r(2, 5))
    ),
    "trace_similarity": lambda r: (
        (Q := co.Unitary(r.stiefel(3, 3))) @ co.Toeplitz(r(3), r(3)) @ Q.H
    ),
}


def agree(found: Any, expected: Any, A: Any) -> None:
    """Same numbers, dtype and framework as the dense answer."""
    xp = A.xp
    assert tuple(found.shape) == tuple(expected.shape)
    assert found.dtype == A.dtype and backends.namespace_of(found) in (xp, None)
    tol = 2000 * xp.eps(A.dtype)
    found, expected = np.asarray(xp.to_numpy(found)), np.asarray(expected)
    np.testing.assert_allclose(
        found, expected, rtol=tol, atol=tol * max(1, np.abs(expected).max(initial=0))
    )


@pytest.mark.parametrize("rule", DIAG)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_diagonal_is_that_of_the_matrix(rule, name):
    for setting in (s for s in SETTINGS if s[0] == name):
        A, found, dense = both(co.diag, DIAG[rule], setting)
        agree(found, np.diagonal(dense, 0, -2, -1), A)
        if name != "jax":
            assert rule.split(",")[0] in co.explain(co.diag, A).rules


@pytest.mark.parametrize("rule", INVERSE)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_diagonal_of_the_inverse_is_that_of_the_inverse_matrix(rule, name):
    for setting in (s for s in SETTINGS if s[0] == name and s[1:] != ("float32", (2,))):
        A, found, dense = both(lambda A: co.diag(co.inv(A)), INVERSE[rule], setting)
        agree(found, np.diagonal(np.linalg.inv(dense), 0, -2, -1), A)
        if name != "jax":
            assert rule in co.explain(co.diag, co.inv(A)).rules


@pytest.mark.parametrize("rule", TRACE)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_trace_is_that_of_the_matrix(rule, name):
    for setting in (s for s in SETTINGS if s[0] == name):
        A, found, dense = both(co.trace, TRACE[rule], setting)
        agree(found, np.trace(dense, 0, -2, -1), A)
        if name != "jax":
            assert rule.split(",")[0] in co.explain(co.trace, A).rules


def test_rules_are_unambiguous():
    assert co.check_rules(co.diag) == co.check_rules(co.trace) == []


# ---------------------------------------------------------------------------------------------------- at size


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_large_diagonals_form_no_matrix(name):
    n = 1500
    r = Maker(name, "float64", ())
    D, thin = co.Diagonal(r(n) ** 2 + 1), r(n, 5)
    T = co.Tridiagonal(r(n - 1), r(n) + 6, r(n - 1))
    large = [
        T,
        co.Toeplitz(r(n)) * co.LowRank(thin),
        co.KroneckerSum(r(30, 30), r(50, 50)),
        co.Kernel(inner, r(n, 3)),
        co.Block([[T, co.Toeplitz(r(n))], [co.Diagonal(r(n)), D]]),
        D @ co.Toeplitz(r(n)) @ D,
        co.Toeplitz(r(n)) @ co.LowRank(thin),
        r.sparse(200, 200) @ r.sparse(200, 200),
        co.inv(D + co.LowRank(thin)),
        co.inv(co.KroneckerSum(r.spd(30), r.spd(50))),
        co.inv(co.Kronecker(r.spd(30), r.spd(50)) + co.Identity(n)),
        co.inv(co.BlockDiag(r.spd(30), co.Diagonal(r(n)))),
    ]
    probes = np.random.default_rng(1).integers(0, 200, 5)
    for A in large:
        with forbid_dense(limit=40 * n):
            found = co.diag(A)
            co.trace(A)
        for i in probes:
            np.testing.assert_allclose(
                A.xp.to_numpy(found)[i], A.xp.to_numpy(A[:, int(i)])[i], rtol=1e-8, atol=1e-8
            )


def test_base_case_holds_a_bounded_block(rng):
    for name in ("numpy", "torch"):
        xp = backends.get(name)
        weights = xp.asarray(rng.standard_normal(5000))
        A = co.MatrixFree(
            lambda X, w=weights: w[:, None] * X, (5000, 5000), dtype=xp.float64, like=weights
        )
        with forbid_dense(limit=2**20):
            np.testing.assert_allclose(xp.to_numpy(co.diag(A)), xp.to_numpy(weights))
    tall = co.opaque(co.Toeplitz(rng.standard_normal((2, 3000)), rng.standard_normal((2, 400))))
    np.testing.assert_allclose(
        co.diag(tall), np.broadcast_to(tall.A.col[:, :1], (2, 400)), atol=1e-12
    )


# ---------------------------------------------------------------------------------------------------- the diagonal of an inverse


def test_tridiagonal_inverse_survives_zero_leading_minors(rng):
    n = 7
    # θ_1 = θ_3 = 0
    T = co.Tridiagonal(np.ones(n), np.where(np.arange(n + 1) == 3, 2.0, 0.0), np.full(n, 2.0))
    A = co.Inverse(T, co.inv(T.to_dense()))
    np.testing.assert_allclose(co.diag(A), np.diag(np.linalg.inv(T.to_dense())), atol=1e-14)


def test_tridiagonal_inverse_is_accurate_for_long_and_graded_ones(rng):
    n = 2000
    A = co.Tridiagonal(-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1))
    i = np.arange(1, n + 1)
    np.testing.assert_allclose(co.diag(co.Inverse(A, A)), i * (n + 1 - i) / (n + 1), rtol=1e-8)
    scale = 10.0 ** rng.uniform(-40, 40, 60)  # minors beyond the range of floats
    graded = co.Tridiagonal(
        0.1 * np.sqrt(scale[1:] * scale[:-1]), scale, 0.1 * np.sqrt(scale[1:] * scale[:-1])
    )
    balanced = np.eye(60) + 0.1 * (np.eye(60, k=1) + np.eye(60, k=-1))
    np.testing.assert_allclose(
        co.diag(co.Inverse(graded, graded)), np.diag(np.linalg.inv(balanced)) / scale, rtol=1e-12
    )


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_diagonal_of_a_long_inverse_is_as_accurate_as_its_condition_allows(name):
    """Condition 1.6e8: 4e-8. Values, in torch and JAX also where derivatives are recorded, and these derivatives."""
    pytest.importorskip(name)
    xp, n = backends.get(name), 20_000
    i, N = np.arange(1.0, n + 1), n + 1.0
    # (T^-1)_ij = i (N - j) / N
    off, d, wanted = (xp.asarray(-np.ones(n - 1)), xp.asarray(np.full(n, 2.0)), i * (N - i) / N)
    T = co.PD(co.Tridiagonal(off, d, off))
    if name != "jax":
        np.testing.assert_allclose(xp.to_numpy(co.diag(co.inv(T))), wanted, rtol=4e-8)
        np.testing.assert_allclose(float(co.trace(co.inv(T))), wanted.sum(), rtol=4e-8)
    if name == "numpy":
        band = co.PD(co.Banded([off, d, off], [-1, 0, 1]))
        np.testing.assert_allclose(co.diag(co.inv(band)), wanted, rtol=4e-8)
        return
    value, pull = xp.vjp(lambda d: xp.sum(co.diag(co.Inverse(co.Tridiagonal(off, d, off), T))), d)
    squares = (
        (N - i) ** 2 * np.cumsum(i**2)
        + i**2 * np.cumsum((N - i)[::-1] ** 2)[::-1]
        - i**2 * (N - i) ** 2
    )
    np.testing.assert_allclose(xp.to_numpy(value), wanted.sum(), rtol=4e-8)
    # -Σ_j (T^-1)_ij^2
    np.testing.assert_allclose(xp.to_numpy(pull(xp.asarray(1.0))), -squares / N**2, rtol=1e-7)


@pytest.mark.parametrize(("name", "first"), [("torch", 0.0), ("torch", 3.0), ("jax", 0.0)])
def test_derivatives_of_the_diagonal_of_a_tridiagonal_inverse(name, first, rng):
    """Also where a pivot is zero, and under vmap."""
    pytest.importorskip(name)
    xp = backends.get(name)
    lower, upper = (rng.standard_normal((2, 4)) for _ in "ab")
    d = np.concatenate([np.full((2, 1), first), rng.standard_normal((2, 4)) + 3], axis=-1)
    inverse = np.linalg.inv(co.Tridiagonal(lower, d, upper).to_dense())
    wanted = -np.sum(inverse * np.swapaxes(inverse, -1, -2), axis=-1)
    low, main, up = map(xp.asarray, (lower, d, upper))

    def total(d, low, up):
        return xp.sum(co.diag(co.Inverse(co.Tridiagonal(low, d, up), co.Identity(5))))

    if name == "torch":
        np.testing.assert_allclose(
            xp.vjp(lambda d: total(d, low, up), main)[1](xp.asarray(1.0)), wanted, atol=1e-10
        )
    one_by_one = xp.vmap(
        lambda d, low, up: xp.vjp(lambda d: total(d, low, up), d)[1](xp.asarray(1.0))
    )(main, low, up)
    np.testing.assert_allclose(xp.to_numpy(one_by_one), wanted, atol=1e-10)


def test_tridiagonal_inverse_of_extreme_scale():
    A = co.Tridiagonal([1e-200], [2e-200, 2e-200], [1e-200])
    np.testing.assert_allclose(co.diag(co.inv(A)), [2e200 / 3, 2e200 / 3])


def test_singular_tridiagonal_is_reported():
    T = co.Tridiagonal(np.ones(1), np.ones(2), np.ones(1))
    _, info = co.diag(co.Inverse(T, co.Identity(2)), info=True)
    assert info.status is Status.SINGULAR


# ---------------------------------------------------------------------------------------------------- transformations


def test_diagonals_under_jit_and_derivatives():
    import jax
    import torch

    r = Maker("jax", "float64", ())
    T = co.Tridiagonal(r(4), r(5) + 4, r(4))
    products = co.Dense(r(4, 3)) @ co.Dense(r(3, 4))
    found = jax.jit(lambda T, P: (co.diag(co.Inverse(T, T)), co.trace(P)))(T, products)
    np.testing.assert_allclose(
        found[0], np.diag(np.linalg.inv(np.asarray(T.to_dense()))), rtol=1e-10
    )
    np.testing.assert_allclose(found[1], np.trace(np.asarray(products.to_dense())), rtol=1e-10)
    t = Maker("torch", "float64", ())
    lower, d, upper = t(4), t(5) + 4, t(4)

    def total(d: Any) -> Any:
        T = co.Tridiagonal(lower, d, upper)
        return co.trace(co.Inverse(T, T))

    inverse = torch.linalg.inv(co.Tridiagonal(lower, d, upper).to_dense())
    np.testing.assert_allclose(
        torch.func.grad(total)(d), -torch.diagonal(inverse @ inverse), rtol=1e-9
    )


def test_bad_input_is_refused():
    with pytest.raises(co.ShapeError, match="trace: A is 3x2"):
        co.trace(co.LowRank(np.ones((3, 1)), np.ones((2, 1))))
    with pytest.raises(co.MethodError):
        co.diag(co.Dense(np.ones((3, 3))) @ co.Dense(np.ones((3, 3))), co.LU())
