"""Operators that hold no floats take framework, dtype and device from what they meet, also through functions and compositions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status

N = 3
P = co.Permutation([1, 2, 0])
NEUTRAL: dict[str, Any] = {
    "identity": co.Identity(N),
    "multiple of I": co.ScaledIdentity(2.0, N),
    "complex multiple of I": co.ScaledIdentity(2.0j, N),
    "permutation": P,
    "zero": co.Zero(N, N),
    "sum": P + 3 * co.Identity(N),
    "multiple": -2.0 * P,
    "hadamard": P * co.Identity(N),
    "block": co.BlockDiag(co.Identity(1), co.Permutation([1, 0])),
    "kronecker": co.Kronecker(P, co.Identity(1)),
    "kronecker sum": co.KroneckerSum(P, 3 * co.Identity(1)),
}
OPERATORS = ("inv", "pinv", "exp", "sqrt")
FRAMEWORKS = [
    ("numpy", "float32"),
    ("torch", "float32"),
    ("torch", "complex64"),
    ("jax", "float32"),
]


def quietly(f: Any, *arguments: Any) -> Any:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return f(*arguments)


def meets(xp: Any, dtype: str, x: Any, wanted: np.ndarray, what: Any) -> None:
    """x is of the framework and precision, and has these values."""
    assert backends.namespace_of(x) is xp, what
    assert xp.real_dtype(x.dtype) == xp.real_dtype(xp.dtype_from(dtype)), what
    np.testing.assert_allclose(xp.to_numpy(x), wanted, atol=1e-5, rtol=1e-5, err_msg=str(what))


@pytest.mark.parametrize(("name", "dtype"), FRAMEWORKS)
@pytest.mark.parametrize("case", NEUTRAL)
def test_functions_of_neutral_operators_meet_every_framework(case, name, dtype):
    if name == "jax" and case not in ("permutation", "sum"):
        pytest.skip("each operation is compiled")
    pytest.importorskip(name)
    xp, A = backends.get(name), NEUTRAL[case]
    assert A.is_neutral
    x = xp.asarray(np.arange(1.0, N + 1), dtype=xp.dtype_from(dtype))
    values, M = np.arange(1.0, N + 1), A.to_dense()
    meets(xp, dtype, A @ x, M @ values, case)
    is_singular = np.linalg.matrix_rank(M) < N
    for f in OPERATORS:
        B = quietly(getattr(co, f), A)
        with np.errstate(all="ignore"):
            matrix = B.to_dense()
        if not np.isfinite(matrix).all():
            continue
        assert B.is_neutral, (f, B)
        for C, reference in (
            (B, matrix),
            (B.H, matrix.conj().T),
            (2 * B, 2 * matrix),
            (B + A, matrix + M),
            (B @ A, matrix @ M),
        ):
            meets(xp, dtype, quietly(C.__matmul__, x), reference @ values, (f, C))
    solution, info = quietly(lambda: co.solve(A, x, info=True))
    if is_singular:
        assert info.status is Status.SINGULAR
    else:
        meets(xp, dtype, solution, np.linalg.solve(M, values), "solve")
        meets(
            xp,
            dtype,
            quietly(co.solve_and_logdet, A, x)[0],
            np.linalg.solve(M, values),
            "solve_and_logdet",
        )
    meets(xp, dtype, quietly(co.lstsq, A, x), np.linalg.lstsq(M, values, rcond=None)[0], "lstsq")


def test_a_function_of_a_neutral_operator_leaves_the_dtype_of_its_neighbours():
    D = co.Dense(np.eye(N, dtype=np.float32))
    for B in (
        co.exp(co.Identity(N)),
        co.exp(P),
        co.inv(P + 3 * co.Identity(N)),
        co.pinv(co.Zero(N, N)),
    ):
        for whole in (D + B, D @ B, co.Kronecker(D, B), co.BlockDiag(D, B)):
            assert whole.dtype == whole.to_dense().dtype == np.float32, whole
    assert co.exp(co.Identity(N, dtype="float64")).dtype == np.float64
    assert (co.exp(co.Identity(N, dtype="float64")) @ np.ones(N, np.float32)).dtype == np.float64


def test_what_the_user_gave_keeps_its_framework():
    D = co.Dense(np.eye(N, dtype=np.float32))
    assert not co.solve(P, D).is_neutral
    assert co.solve(P, D).dtype == np.float32


def test_derivatives_flow_through_neutral_operators():
    torch = pytest.importorskip("torch")
    x = torch.ones(N, dtype=torch.float64, requires_grad=True)
    for A in (P * co.Identity(N), co.exp(P), co.inv(P + 3 * co.Identity(N))):
        g = torch.autograd.grad((A @ x).sum(), x)[0]
        np.testing.assert_allclose(g, A.to_dense().sum(axis=0), atol=1e-12)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_like_is_kept_where_an_operand_is_dropped(name):
    pytest.importorskip(name)
    xp = backends.get(name)
    t = xp.asarray(np.ones(N), dtype=xp.float32)
    for A in (
        co.Zero(N, N, like=t) + co.Identity(N),
        co.Identity(N) + co.Zero(N, N, like=t),
        P @ co.Identity(N, like=t),
        co.Identity(N, like=t) @ P,
        co.Zero(N, N, like=t) @ P,
        co.Identity(N, like=t) * P,
        2 * co.Identity(N, like=t) @ P,
    ):
        assert (A.backend, A.dtype) == (name, xp.float32), A
        assert backends.namespace_of(A.to_dense()) is xp


def test_an_array_that_is_changed_changes_the_triangle_everywhere():
    for lower in (True, False):
        M = np.arange(1.0, 10).reshape(3, 3)
        T = co.Triangular(M, lower=lower)
        T @ np.ones(3), T.to_dense(), T.H @ np.ones(3)
        M[:] = -M
        wanted = np.tril(M) if lower else np.triu(M)
        np.testing.assert_allclose(T.to_dense(), wanted)
        np.testing.assert_allclose(T @ np.ones(3), wanted.sum(axis=1))
        np.testing.assert_allclose(T @ np.eye(3), wanted)
        np.testing.assert_allclose(T.H @ np.ones(3), wanted.sum(axis=0))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128", "float16"])
@pytest.mark.parametrize("order", "CF")
def test_triangular_products_read_one_half(dtype, order, rng):
    for lower in (True, False):
        for unit in (True, False):
            M = np.array(rng.standard_normal((4, 4)), dtype=dtype, order=order)
            other = np.triu_indices(4, 0 if unit else 1)
            M[other if lower else other[::-1]] = np.nan
            T = co.Triangular(M, lower=lower, unit=unit)
            wanted = T.to_dense()
            assert np.isfinite(wanted).all()
            for shape in ((4,), (4, 3), (4, 0), (2, 4, 3)):
                X = rng.standard_normal(shape).astype(dtype)
                Y = T @ X
                assert Y.dtype == X.dtype
                np.testing.assert_allclose(Y, wanted @ X, atol=1e-2 if dtype == "float16" else 1e-5)
