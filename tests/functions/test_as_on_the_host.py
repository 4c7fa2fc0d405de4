"""What a device must not change: where a quick way that is taken for granted there is not the right
one, the call is run again and goes the way of the host. Empty operators go either way."""

from __future__ import annotations

import numpy as np
import pytest
from support.frameworks import host
from support.synchronisations import pretended

import colinear as co

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(8)
S = (lambda G: G @ G.T + np.eye(4))(RNG.standard_normal((4, 4)))
T = np.tril(RNG.standard_normal((4, 4)))


def dense(found):
    if isinstance(found, tuple):
        return [x for part in found for x in dense(part)]
    return [host(found.to_dense() if isinstance(found, co.LinearOperator) else found)]


def check_same(make, f):
    """f of the operator that `make(asarray)` makes is the same in NumPy and on a device."""
    wanted, info = f(make(np.asarray))
    with pretended():
        found, told = f(make(lambda x: torch.tensor(np.asarray(x))))
        assert told.status.is_failure == info.status.is_failure
        for x, y in zip(dense(found), dense(wanted), strict=True):
            assert x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("zeros", [[1], [0, 2], []])
def test_lu_of_a_triangle_with_zeros_on_its_diagonal_is_pivoted_on_a_device_too(zeros):
    triangle = T.copy()
    triangle[zeros, zeros] = 0
    check_same(lambda a: co.Triangular(a(triangle), lower=True), lambda A: co.lu(A, info=True))


def test_lu_of_a_batch_of_triangles_some_with_zeros_is_that_of_each():
    triangles = np.stack([T, T])
    triangles[1, 2, 2] = 0
    check_same(lambda a: co.Triangular(a(triangles), lower=True), lambda A: co.lu(A, info=True))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_cholesky_of_a_multiple_whose_sign_is_on_a_device(sign):
    make = lambda a: co.Scaled(a(2 * sign), co.Dense(a(sign * S)))
    check_same(make, lambda A: co.cholesky(A, info=True))


@pytest.mark.parametrize("shift", [-100.0, 0.5])
def test_exponential_of_a_shift_so_large_that_its_own_vanishes(shift):
    make = lambda a: co.ScaledIdentity(a(shift), 4) + co.Dense(a(T - shift * np.eye(4)))
    check_same(make, lambda A: co.exp(A, info=True))


EMPTY = {
    "reflection": lambda a: co.Householder(a(np.ones(0))),
    "inverse": lambda a: co.inv(co.Dense(a(np.ones((2, 0, 0))))),
    "tridiagonal": lambda a: co.PSD(co.Tridiagonal(*(a(np.ones(0)) for _ in range(3)))),
    "low rank": lambda a: co.Diagonal(a(np.ones(0))) + co.LowRank(a(np.ones((0, 2)))),
    "circulants": lambda a: co.Circulant(a(np.ones((0, 3)))),
    "bands": lambda a: co.Tridiagonal(*(a(np.ones((0, n))) for n in (4, 5, 4))),
    "sums": lambda a: (
        co.Dense(a(np.ones((0, 5, 5)))) + co.Tridiagonal(*(a(np.ones((0, n))) for n in (4, 5, 4)))
    ),
}
FUNCTIONS = {
    "solve": lambda A: co.solve(A, A.xp.ones((A.shape[-2], 2), dtype=A.dtype), info=True),
    "inv": lambda A: co.inv(A, info=True),
    "qr": lambda A: co.qr(A, info=True),
    "exp": lambda A: co.exp(A, info=True),
    "log": lambda A: co.log(A, info=True),
    "power": lambda A: co.power(A, 0.5, info=True),
    "slogdet": lambda A: co.slogdet(A, info=True),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("name", EMPTY)
def test_functions_of_operators_without_entries_succeed(name, function):
    check_same(EMPTY[name], FUNCTIONS[function])
    assert not FUNCTIONS[function](EMPTY[name](np.asarray))[1].status.is_failure


@pytest.mark.parametrize("size", [1e30, 1e-30])
@pytest.mark.parametrize("shape", [(3, 3), (1, 1), (40, 3)])
def test_singular_values_in_single_precision_are_judged_at_every_scale(size, shape):
    A = torch.tensor((size * RNG.standard_normal(shape)).astype(np.float32))
    with pretended():
        (_, s, _), info = co.svd(A, info=True)
        assert info.status is co.Status.SUCCESS
        assert float(info.residual.max()) < 1e-5
    wanted = np.linalg.svd(A.numpy().astype(np.float64), compute_uv=False)
    np.testing.assert_allclose(s.numpy(), wanted, rtol=1e-5)


def blocks(asarray, corner):
    B, C, D = (co.Dense(asarray(part.copy())) for part in (T, T.T, corner))
    return co.Block([[co.Diagonal(asarray(np.diag(S).copy())), B], [C, D]])


@pytest.mark.parametrize("function", ["slogdet", "logdet", "det", "inv"])
@pytest.mark.parametrize("is_singular", [False, True])
def test_what_is_eliminated_in_a_deferred_block_is_right_or_said_to_fail(function, is_singular):
    corner = T.T @ np.diag(1 / np.diag(S)) @ T if is_singular else S
    wanted, info = getattr(co, function)(blocks(np.asarray, corner), info=True, on_failure="ignore")
    with pretended():
        with co.deferred():
            A = blocks(torch.tensor, corner)
            found, told = getattr(co, function)(A, info=True, on_failure="ignore")
        if not told.status.is_failure:
            assert not info.status.is_failure
            for x, y in zip(dense(found), dense(wanted), strict=True):
                np.testing.assert_allclose(x, y, rtol=1e-8)


def test_empty_diagonals_are_inverted_in_a_deferred_block():
    with pretended(), co.deferred():
        A = co.Diagonal(torch.ones((0, 5), dtype=torch.float64))
        assert co.inv(A).shape == (0, 5, 5)
        assert co.solve(A, torch.ones((0, 5, 2), dtype=torch.float64)).shape == (0, 5, 2)
