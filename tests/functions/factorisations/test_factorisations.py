"""The rules of `cholesky`, `lu` and `qr`: each against its defining equations, that it fired, that it is cheap, and bad input."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status
from colinear.testing import forbid_dense

SETTINGS = [
    ("numpy", dtype, batch)
    for dtype in ("float32", "float64", "complex64", "complex128")
    for batch in ((), (2,))
]
SETTINGS += [
    ("torch", "float32", (2,)),
    ("torch", "float64", ()),
    ("torch", "complex64", ()),
    ("torch", "complex128", (2,)),
]
SETTINGS += [("jax", "float32", (2,)), ("jax", "complex128", ())]


class Maker:
    """Random arrays of one framework, dtype and batch shape."""

    def __init__(self, name: str, dtype: str, batch: tuple[int, ...]):
        self.xp, self.batch, self.rng = backends.get(name), batch, np.random.default_rng(0)
        self.dtype = np.dtype(dtype)
        self.tol = 2000 * float(np.finfo(self.dtype).eps)

    def __call__(self, *shape: int, batched: bool = True) -> Any:
        shape = (*self.batch, *shape) if batched else shape
        x = self.rng.standard_normal(shape)
        if self.dtype.kind == "c":
            x = x + 1j * self.rng.standard_normal(shape)
        return self.xp.asarray(x.astype(self.dtype))

    def stiefel(self, n: int, r: int) -> Any:
        return co.Stiefel(self.xp.qr(self(n, r))[0])

    def positive(self, *shape: int, above: float = 1.0) -> Any:
        return self.xp.astype(self.xp.abs(self(*shape)) + above, self(1).dtype)

    def definite(self, n: int) -> Any:
        G = self(n, n)
        return self.xp.matmul(G, self.xp.conj(self.xp.matrix_transpose(G))) + self.xp.eye(
            n, dtype=G.dtype
        )

    def tridiagonal(self, n: int) -> co.Tridiagonal:
        e = self(n - 1)
        return co.Tridiagonal(e, self.positive(n, above=10.0), self.xp.conj(e))

    def banded(self, n: int) -> co.Banded:
        e = self(n - 2)
        return co.Banded([self.positive(n, above=10.0), e, self.xp.conj(e)], [0, 2, -2])


def host(x: Any) -> np.ndarray:
    x = x.to_dense() if isinstance(x, co.LinearOperator) else x
    xp = backends.namespace_of(x)
    return np.asarray(x if xp is None else xp.to_numpy(x))


def adjoint(M: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(M, -1, -2))


def close(got: Any, wanted: Any, tol: float) -> None:
    wanted = np.asarray(wanted)
    got = np.broadcast_to(host(got), wanted.shape)
    np.testing.assert_allclose(
        got, wanted, rtol=tol, atol=tol * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    )


def factors(
    function: Any, makers: dict[str, Callable[[Maker], Any]], r: Maker
) -> list[tuple[str, np.ndarray, list[np.ndarray]]]:
    """Of each operator its rule, which must have fired, its matrix and the factors; in JAX from one program, which is traced."""
    operators = {rule: make(r) for rule, make in makers.items()}
    for rule, A in operators.items():
        assert rule.split(",")[0] in co.explain(function, A).rules, rule

    def run(operators: Any) -> Any:
        found = [function(A) for A in operators]
        return [
            [x.to_dense() for x in (result if isinstance(result, tuple) else (result,))]
            for result in found
        ]

    if r.xp.name == "jax":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = r.xp.jit(run)(list(operators.values()))
    else:
        found = run(operators.values())
    return [
        (rule, host(A), [host(x) for x in result])
        for (rule, A), result in zip(operators.items(), found)
    ]


Makers = dict[str, Callable[[Maker], Any]]

CHOLESKY: Makers = {
    "cholesky_identity": lambda r: co.Identity(3, like=r(1)),
    "cholesky_scaled_identity": lambda r: co.ScaledIdentity(2.0, 3, like=r(1)),
    "cholesky_diagonal": lambda r: co.Diagonal(r.positive(3)),
    "cholesky_scaled": lambda r: co.Scaled(2.5, co.Dense(r.definite(3))),
    "cholesky_conjugate": lambda r: co.Conjugate._of(co.Dense(r.definite(3))),
    "cholesky_block_diagonal": lambda r: co.BlockDiag(r.definite(2), co.Identity(1), r.definite(2)),
    "cholesky_kronecker": lambda r: co.Kronecker(co.PSD(r.definite(2)), co.PSD(r.definite(3))),
    "cholesky_tridiagonal": lambda r: r.tridiagonal(6),
    "cholesky_banded": lambda r: r.banded(6),
}
LU: Makers = {
    "lu_diagonal": lambda r: co.Diagonal(r(3)),
    "lu_permutation": lambda r: co.Permutation([2, 0, 1], like=r(1)),
    "lu_triangular": lambda r: co.Triangular(r(3, 3)),
    "lu_scaled": lambda r: co.Scaled(-2.0, co.Dense(r(3, 4))),
    "lu_conjugate": lambda r: co.Conjugate._of(co.Dense(r(3, 3))),
    "lu_by_operands, kronecker": lambda r: co.Kronecker(r(2, 2), r(3, 3, batched=False)),
    "lu_by_operands, blocks": lambda r: co.BlockDiag(
        r(2, 2), co.Identity(1), r(2, 2, batched=False)
    ),
}
QR: Makers = {
    "qr_orthonormal": lambda r: r.stiefel(4, 2),
    "qr_diagonal": lambda r: co.Diagonal(r(3)),
    "qr_triangular, scaled identity": lambda r: co.ScaledIdentity(-2.0, 3, like=r(1)),
    "qr_triangular": lambda r: co.Triangular(r(3, 3), lower=False),
    "qr_scaled": lambda r: co.Scaled(-2.0, co.Dense(r(3, 4))),
    "qr_conjugate": lambda r: co.Conjugate._of(co.Dense(r(3, 2))),
    "qr_by_operands, kronecker": lambda r: co.Kronecker(r(2, 3), r(2, 2, batched=False)),
    "qr_by_operands, blocks": lambda r: co.BlockDiag(
        r(3, 2), co.Identity(1), r(2, 1, batched=False)
    ),
    "qr_orthonormal_times": lambda r: co.Product(r.stiefel(5, 3), co.Dense(r(3, 2))),
    "qr_low_rank": lambda r: co.LowRank(r(5, 2), r(4, 2, batched=False)),
}


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_cholesky_factor_is_the_lower_triangle_of_positive_diagonal(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    r = Maker(name, dtype, batch)
    for rule, M, (L,) in factors(co.cholesky, CHOLESKY, r):
        assert L.dtype == M.dtype and np.all(np.triu(L, 1) == 0), rule
        close(L, np.linalg.cholesky(M), r.tol)


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_lu_is_a_permutation_a_unit_lower_and_an_upper_triangle(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    r = Maker(name, dtype, batch)
    for rule, M, (P, L, U) in factors(co.lu, LU, r):
        close(P @ L @ U, M, r.tol)
        assert np.all(np.triu(L, 1) == 0) and np.all(np.tril(U, -1) == 0), rule
        assert (
            np.all(np.diagonal(L, axis1=-2, axis2=-1) == 1)
            and np.all(P.sum(-1) == 1)
            and set(np.unique(P)) <= {0, 1}
        ), rule


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_qr_has_orthonormal_columns_and_an_upper_triangle(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    r = Maker(name, dtype, batch)
    for rule, M, (Q, R) in factors(co.qr, QR, r):
        k = min(M.shape[-2:])
        assert Q.shape[-2:] == (M.shape[-2], k) and R.shape[-2:] == (k, M.shape[-1]), rule
        close(Q @ R, M, r.tol)
        close(adjoint(Q) @ Q, np.broadcast_to(np.eye(k), (*Q.shape[:-2], k, k)), r.tol)
        assert np.all(np.tril(R, -1) == 0), rule


def test_the_factors_of_q_are_known_to_be_orthonormal() -> None:
    for make in QR.values():
        assert co.qr(make(Maker("numpy", "complex128", ())))[0].isa(co.Stiefel)


def test_factors_of_structured_operators_build_nothing(rng: np.random.Generator) -> None:
    n = 50_000
    with forbid_dense(2e5):
        T = co.Tridiagonal(-np.ones(n - 1), np.full(n, 2.1), -np.ones(n - 1))
        B = co.Banded([np.full(n, 9.0), -np.ones(n - 3), -np.ones(n - 3)], [0, 3, -3])
        for A in (T, B):
            L, x = co.cholesky(A), rng.standard_normal(n)
            assert np.linalg.norm(L @ (L.H @ x) - A @ x) <= 1e-12 * np.linalg.norm(x) * 9
        S = [co.PSD(np.eye(100) + np.ones((100, 100))) for _ in range(2)]
        K = co.Kronecker(*S)
        x = rng.standard_normal(10_000)
        for product in (
            co.Product(co.cholesky(K), co.cholesky(K).H),
            co.Product(*co.lu(K)),
            co.Product(*co.qr(K)),
        ):
            assert np.linalg.norm(product @ x - K @ x) <= 1e-9 * np.linalg.norm(K @ x)


def test_what_is_not_positive_definite_is_said_so() -> None:
    one = np.eye(2)
    wrong = {
        "a negative scalar": co.ScaledIdentity(-1.0, 3),
        "a negative entry": co.Diagonal([1.0, -1.0]),
        "a complex entry": co.Diagonal([1.0, 1.0j]),
        "a negative factor": co.Kronecker(one, -one),
        "a negative block": co.BlockDiag(one, -one),
        "a negative multiple": co.Scaled(-1.0, co.Dense(one)),
        "an indefinite tridiagonal": co.Tridiagonal([1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0]),
        "an unsymmetric tridiagonal": co.Tridiagonal([1.0, 1.0], [9.0, 9.0, 9.0], [2.0, 1.0]),
        "an indefinite band": co.Banded([[1.0, 1.0, 1.0], [2.0], [2.0]], [0, 2, -2]),
        "an unsymmetric band": co.Banded([[9.0, 9.0, 9.0], [2.0]], [0, 2]),
    }
    for what, A in wrong.items():
        L, info = co.cholesky(A, info=True)
        assert info.status is Status.NOT_POSITIVE_DEFINITE, what
        with np.errstate(all="ignore"):
            assert np.isnan(host(L)).any(), what
        with pytest.warns(co.ConvergenceWarning):
            co.cholesky(A)


def test_two_negative_factors_make_a_positive_product(rng: np.random.Generator) -> None:
    G, F = rng.standard_normal((3, 3)), rng.standard_normal((2, 2))
    A, B = G @ G.T + np.eye(3), F @ F.T + np.eye(2)
    for c, d in ((-1.0, -1.0), (1j, -1j)):
        close(co.cholesky(co.Kronecker(c * A, d * B)), np.linalg.cholesky(np.kron(A, B)), 1e-9)


def test_a_lower_triangle_with_a_zero_is_pivoted() -> None:
    P, L, U = co.lu(co.Triangular(np.array([[0.0, 0.0], [1.0, 0.0]])))
    close(host(P) @ host(L) @ host(U), [[0.0, 0.0], [1.0, 0.0]], 0)


def test_torch_differentiates_the_tridiagonal_factor() -> None:
    torch = pytest.importorskip("torch")
    d = torch.tensor([4.0, 5.0, 6.0], dtype=torch.float64, requires_grad=True)
    e = torch.tensor([1.0, 2.0], dtype=torch.float64)
    # half of the logarithm of the determinant
    torch.log(co.diag(co.cholesky(co.Tridiagonal(e, d, e)))).sum().backward()
    inverse = np.linalg.inv(host(co.Tridiagonal(e, d.detach(), e)))
    close(d.grad, np.diagonal(inverse) / 2, 1e-10)


def test_jax_compiles_the_gradient_of_a_banded_orthogonal_factor() -> None:
    jax = pytest.importorskip("jax")
    e, d = jax.numpy.array([1.0, 2.0, 0.5]), jax.numpy.array([4.0, 5.0, 6.0, 3.0])

    def logdet(d: Any) -> Any:  # of which R has the absolute value
        _, R = co.qr(co.Tridiagonal(e, d, e))
        return jax.numpy.log(abs(co.diag(R))).sum()

    inverse = np.linalg.inv(host(co.Tridiagonal(e, d, e)))
    close(jax.jit(jax.grad(logdet))(d), np.diagonal(inverse), 1e-5)


def test_the_rules_are_unambiguous() -> None:
    for function in (co.cholesky, co.lu, co.qr):
        assert co.check_rules(function) == []
