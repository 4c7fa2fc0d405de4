"""JAX's strict modes: no dtype is promoted and no rank raised unless we say so.

Whole projects run in them (`jax_numpy_dtype_promotion="strict"`, `jax_numpy_rank_promotion="raise"`), so every function must.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import colinear as co

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")
BCOO = pytest.importorskip("jax.experimental.sparse").BCOO

N = 4
RNG = np.random.default_rng(0)
# float32, where JAX's default is float64
GENERAL = (RNG.standard_normal((N, N)) / 4 + 2 * np.eye(N)).astype(np.float32)
DEFINITE = GENERAL @ GENERAL.T
SMALL = DEFINITE[:2, :2]


@contextlib.contextmanager
def strict() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def sparse() -> Any:
    matrix = (
        np.diag(np.float32([4, 4, 4, 5]))
        + np.eye(N, k=1, dtype=np.float32)
        + np.eye(N, k=-1, dtype=np.float32)
    )
    return co.PD(co.Sparse(BCOO.fromdense(jnp.asarray(matrix))))


def matrix_free() -> Any:
    M = jnp.asarray(DEFINITE)
    return co.PD(
        co.MatrixFree(lambda X: M @ X, (N, N), dtype=M.dtype, rmatmat=lambda X: M.T @ X, like=M)
    )


def row(*numbers: float) -> Any:
    return jnp.asarray(np.float32(numbers))


OPERATORS: dict[str, Callable[[], Any]] = {
    "Dense": lambda: co.Dense(jnp.asarray(GENERAL)),
    "PD": lambda: co.PD(co.Dense(jnp.asarray(DEFINITE))),
    "Batch": lambda: co.PD(
        co.Dense(jnp.asarray(np.stack([DEFINITE, DEFINITE + np.eye(N, dtype=np.float32)])))
    ),
    "Complex": lambda: co.Dense(jnp.asarray(GENERAL + 1j * GENERAL.T)),
    "Diagonal": lambda: co.Diagonal(row(1, 2, 3, 4)),
    "Triangular": lambda: co.Triangular(jnp.asarray(np.tril(GENERAL))),
    "Tridiagonal": lambda: co.PD(co.Tridiagonal(row(1, 1, 1), row(4, 4, 4, 5), row(1, 1, 1))),
    "Toeplitz": lambda: co.Toeplitz(row(4, 1, 0, 0.5)),
    "Circulant": lambda: co.Circulant(row(4, 1, 0, 0.5)),
    "Sparse": sparse,
    "MatrixFree": matrix_free,
    "LowRank": lambda: co.Diagonal(row(1, 2, 3, 4)) + co.LowRank(jnp.asarray(GENERAL[:, :1])),
    "Kronecker": lambda: (
        co.Kronecker(co.PD(jnp.asarray(SMALL)), co.PD(jnp.asarray(SMALL))) + 0.5 * co.Identity(N)
    ),
    "KroneckerSum": lambda: co.KroneckerSum(co.PD(jnp.asarray(SMALL)), co.PD(jnp.asarray(SMALL))),
    "BlockDiag": lambda: co.BlockDiag(co.Dense(jnp.asarray(SMALL)), co.Dense(jnp.asarray(SMALL))),
}


def right_side(A: Any) -> Any:
    return jnp.ones(N, A.dtype)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {  # of all operators
    "matmul": lambda A: A @ right_side(A),
    "solve": lambda A: co.solve(A, right_side(A)),
    "logdet": lambda A: co.slogdet(A)[1],
    "diag": lambda A: co.diag(co.inv(A)),
    "trace": lambda A: co.trace(A),
    "norm": lambda A: co.norm(A),
}
SLOWER: dict[str, Callable[[Any], Any]] = {  # of a few: JAX compiles each
    "LU": lambda A: co.solve(A, right_side(A), method=co.LU()),
    "CG": lambda A: co.solve(
        co.PD(A + A.H), right_side(A), method=co.CG(preconditioner=co.Jacobi())
    ),
    "GMRES": lambda A: co.solve(A, right_side(A), method=co.GMRES()),
    "BiCGSTAB": lambda A: co.solve(A, right_side(A), method=co.BiCGSTAB()),
    "MINRES": lambda A: co.solve(co.SelfAdjoint(A.H + A), right_side(A), method=co.MINRES()),
    "LSMR": lambda A: co.lstsq(A, right_side(A), method=co.LSMR()),
    "lstsq": lambda A: co.lstsq(A, right_side(A)),
    "SLQ": lambda A: co.logdet(co.PD(A + A.H), method=co.SLQ(probes=2, seed=0)),
    "Hutchinson": lambda A: co.trace(A, method=co.Hutchinson(probes=3, seed=0)),
    "eig": lambda A: co.eig(A)[0],
    "Lanczos": lambda A: co.eig(co.SelfAdjoint(A.H + A), 1, method=co.Lanczos(seed=0))[0],
    "svd": lambda A: co.svd(A)[1],
    "exp": lambda A: co.exp(A) @ right_side(A),
    "sqrt": lambda A: co.sqrt(A) @ right_side(A),
    "Krylov": lambda A: co.exp(A, method=co.Krylov()) @ right_side(A),
    "qr": lambda A: co.qr(A)[1].to_dense(),
}
FEW = ("Toeplitz",)  # by its transforms it meets complex numbers too


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_run_in_strict_modes(function: str, operator: str) -> None:
    with strict():
        answer = FUNCTIONS[function](OPERATORS[operator]())
    assert np.isfinite(np.asarray(answer)).all()


@pytest.mark.parametrize("operator", FEW)
@pytest.mark.parametrize("function", SLOWER)
def test_methods_run_in_strict_modes(function: str, operator: str) -> None:
    with strict():
        answer = SLOWER[function](OPERATORS[operator]())
    assert np.isfinite(np.asarray(answer)).all()


@pytest.mark.parametrize("operator", ["Dense", "Kronecker"])
def test_gradients_are_found_in_strict_modes(operator: str) -> None:
    A = OPERATORS[operator]()

    def loss(c: Any) -> Any:
        return co.slogdet(c * A)[1] + jnp.sum(co.solve(c * A, right_side(A)))

    with strict():
        answer = jax.jit(jax.grad(loss))(jnp.ones((), A.dtype))
    assert np.isfinite(np.asarray(answer)).all()


def test_a_number_of_python_does_not_widen_an_iteration() -> None:
    A = co.PD(jnp.asarray(DEFINITE)) + 0.5 * co.Identity(N)
    assert co.solve(A + A.H, right_side(A), method=co.CG()).dtype == jnp.float32


def test_the_modes_of_the_user_are_as_they_were_after_a_call() -> None:
    with strict():
        co.solve(OPERATORS["Diagonal"](), jnp.ones(N, jnp.float32))
        assert jax.config.jax_numpy_dtype_promotion == "strict"
        assert jax.config.jax_numpy_rank_promotion == "raise"
