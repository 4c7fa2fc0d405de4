"""The rules of `svd`, `pinv`, `lstsq`, `rank`, `cond`, `norm` and `nullspace`: each against the dense answer, that it fired, that nothing
large is formed, and what bad input gives."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.errors import ShapeError
from colinear.operators.sparse import from_coordinates
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
# JAX compiles each operation for each shape, which is slow, so all of a test is compiled at once: and is traced.
TRACED = [("jax", "float32", (2,)), ("jax", "complex128", ())]
ORDERS = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


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

    @property
    def unit(self) -> complex:
        return 1j if self.dtype.kind == "c" else -1.0

    def stiefel(self, n: int, r: int) -> Any:
        return co.Stiefel(self.xp.qr(self(n, r))[0])

    def low(self, m: int, n: int, r: int) -> Any:
        return self.xp.matmul(self(m, r), self(r, n))

    def hermitian(self, n: int) -> Any:
        G = self(n, n)
        return co.SelfAdjoint(G + self.xp.conj(self.xp.matrix_transpose(G)))

    def sparse(self, m: int, n: int) -> co.Sparse:
        structure, _ = from_coordinates(*(self.rng.random((m, n)) < 0.5).nonzero(), (m, n))
        return co.Sparse.from_parts(self(structure.nnz), structure)

    def opaque(self, m: int, n: int) -> co.LinearOperator:
        """An operator whose transposes are nothing but that."""
        xp, M = self.xp, self(m, n)
        return co.MatrixFree(
            lambda X: xp.matmul(M, X),
            (*self.batch, m, n),
            dtype=M.dtype,
            rmatmat=lambda Y: xp.matmul(xp.conj(xp.matrix_transpose(M)), Y),
            like=M,
        )

    def with_zeros(self, n: int) -> Any:
        return self(n) * self.xp.asarray((np.arange(n) % 2).astype(self.dtype))


def host(x: Any) -> np.ndarray:
    x = x.to_dense() if isinstance(x, co.LinearOperator) else x
    xp = backends.namespace_of(x)
    return np.asarray(x if xp is None else xp.to_numpy(x))


def adjoint(M: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(M, -1, -2))


def close(got: Any, wanted: Any, tol: float) -> None:
    got, wanted = host(got), np.asarray(wanted)
    got = np.broadcast_to(got, wanted.shape)
    np.testing.assert_allclose(
        got, wanted, rtol=tol, atol=tol * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    )


def quietly(f: Callable[..., Any], *arguments: Any) -> Any:
    result, info = f(*arguments, info=True)
    assert not np.any(host(info.failed)), info
    return result


def compiled(f: Callable[[Any], Any], makers: Makers, r: Maker) -> list[tuple[np.ndarray, Any]]:
    """The matrices of all operators, and f of them, from one program."""
    jax = pytest.importorskip("jax")
    operators = [make(r) for make in makers.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = jax.jit(lambda operators: [(A.to_dense(), f(A)) for A in operators])(operators)
    return [(host(M), jax.tree.map(host, result)) for M, result in found]


Makers = dict[str, Callable[[Maker], Any]]


def name_of(rule: str) -> str:
    """The name of a rule that stands before a comma and the case of it that is meant."""
    return rule.split(",")[0]


# ---------------------------------------------------------------------------------------------------- svd

SVD: Makers = {
    "svd_orthonormal": lambda r: r.stiefel(5, 3),
    "svd_zero": lambda r: co.Zero(3, 4, like=r(1)),
    "svd_scaled_identity": lambda r: co.ScaledIdentity(r()[()] if r.batch else -2.5, 3, like=r(1)),
    "svd_diagonal": lambda r: co.Diagonal(r.with_zeros(5)),
    "svd_circulant": lambda r: co.Circulant(r(4)),
    "svd_projection": lambda r: co.Projection(r.stiefel(4, 2).A),
    "svd_low_rank": lambda r: co.LowRank(r(6, 2), r(4, 3, batched=False), r(2, 3)),
    "svd_scaled": lambda r: co.Scaled(2 * r.unit, co.Dense(r(4, 3))),
    "svd_orthonormal_times": lambda r: co.Product(r.stiefel(6, 2), co.Dense(r(2, 4))),
    "svd_times_orthonormal": lambda r: co.Product(co.Dense(r(3, 4)), co.Permutation([2, 0, 3, 1])),
    "svd_kronecker": lambda r: co.Kronecker(r(3, 2), r(2, 3, batched=False)),
    "svd_block_diagonal": lambda r: co.BlockDiag(r(3, 2), co.Identity(1), r(1, 2, batched=False)),
    "svd_inverse": lambda r: co.inv(co.Dense(r(3, 3))),
    "svd_self_adjoint": lambda r: co.KroneckerSum(r.hermitian(2), r.hermitian(3)),
    "svd_turned, adjoint": lambda r: co.Adjoint._of(r.opaque(3, 2)),
    "svd_turned, transpose": lambda r: co.Transpose._of(r.opaque(3, 2)),
    "svd_turned, conjugate": lambda r: co.Conjugate._of(r.opaque(3, 2)),
}


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_decomposition_is_sorted_orthonormal_and_reassembles(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    for rule, make in SVD.items():
        r = Maker(name, dtype, batch)
        A = make(r)
        M = host(A)
        count = min(M.shape[-2:])
        assert name_of(rule) in co.explain(co.svd, A).rules, rule
        wanted = np.linalg.svd(M, compute_uv=False)
        for k in (None, 1):
            U, s, V = quietly(co.svd, A, k)
            size = count if k is None else k
            assert U.shape[-2:] == (M.shape[-2], size) and V.shape[-2:] == (M.shape[-1], size), rule
            assert U.isa(co.Stiefel) and V.isa(co.Stiefel), rule
            assert host(s).dtype == np.empty(0, dtype).real.dtype, rule
            close(s, wanted[..., :size], r.tol)
            U, V = host(U), host(V)
            scale = max(1.0, wanted.max(initial=0.0))
            close(M @ V, U * host(s)[..., None, :], r.tol * scale)
            for Q in (U, V):
                close(
                    adjoint(Q) @ Q,
                    np.broadcast_to(np.eye(size), (*Q.shape[:-2], size, size)),
                    r.tol,
                )
            if k is None:
                close((U * host(s)[..., None, :]) @ adjoint(V), M, r.tol * scale)


@pytest.mark.parametrize("name,dtype,batch", TRACED)
def test_every_decomposition_can_be_traced(name: str, dtype: str, batch: tuple[int, ...]) -> None:
    def triplets(A: Any) -> Any:
        U, s, V = co.svd(A)
        return U.to_dense(), s, V.to_dense()

    r = Maker(name, dtype, batch)
    for M, (U, s, V) in compiled(triplets, SVD, r):
        scale = max(1.0, s.max(initial=0.0))
        close((U * s[..., None, :]) @ adjoint(V), M, r.tol * scale)
        close(s, np.linalg.svd(M, compute_uv=False), r.tol * scale)


def test_both_sides_of_a_product_are_peeled_off(rng: np.random.Generator) -> None:
    Q, P = (co.Stiefel(np.linalg.qr(rng.standard_normal((n, 3)))[0]) for n in (6, 5))
    A = co.Product(Q, co.Diagonal([3.0, -1.0, 2.0]), P.H)
    assert co.explain(co.svd, A).rules == [
        "svd_orthonormal_times",
        "svd_times_orthonormal",
        "svd_diagonal",
    ]
    U, s, V = co.svd(A)
    close(s, [3.0, 2.0, 1.0, 0.0, 0.0], 1e-12)
    close((host(U) * s) @ host(V).T, host(A), 1e-12)


def test_no_decomposition_builds_the_matrix(rng: np.random.Generator) -> None:
    large = {
        "Kronecker": co.Kronecker(
            rng.standard_normal((40, 30)), rng.standard_normal((30, 40)), co.Identity(5)
        ),
        "BlockDiag": co.BlockDiag(*(rng.standard_normal((10, 12)) for _ in range(100))),
        "LowRank": co.LowRank(rng.standard_normal((2000, 3)), rng.standard_normal((1500, 3))),
        "Diagonal": co.Diagonal(rng.standard_normal(3000)),
        "Circulant": co.Circulant(rng.standard_normal(3000)),
    }
    for A in large.values():
        with forbid_dense(1e5):
            for k in (None, 3):
                U, s, V = co.svd(A, k)
                x = rng.standard_normal(s.shape[-1])
                y = U @ (s * x)
                assert np.linalg.norm(A @ (V @ x) - y) <= 1e-10 * np.linalg.norm(y)
            assert int(co.rank(A)) >= 3 and float(co.norm(A, 2)) == pytest.approx(float(s[0]))


def test_equal_dense_blocks_are_decomposed_at_once() -> None:
    for name in ("numpy", "torch"):
        r = Maker(name, "complex128", ())
        A = co.BlockDiag(*(r(3, 2) for _ in range(5)))
        (U, s, V), info = co.svd(A, info=True)
        assert len(info.children) == 1
        close((host(U) * host(s)) @ adjoint(host(V)), host(A), 1e-12)
        close(s, np.linalg.svd(host(A), compute_uv=False), 1e-12)
        close(co.pinv(A), np.linalg.pinv(host(A)), 1e-10)
        close(co.norm(A, 2), host(s)[0], 1e-12)


def test_only_as_many_triplets_of_the_parts_are_found_as_can_matter(
    rng: np.random.Generator,
) -> None:
    with forbid_dense(3e4):  # 100 x 100 factors, of which 2 triplets are wanted
        _, s, _ = co.svd(co.Kronecker(*(rng.standard_normal((100, 100)) for _ in range(3))), 2)
    assert s.shape == (2,)


def test_k_is_checked_by_every_rule() -> None:
    for make in SVD.values():
        A = make(Maker("numpy", "float64", ()))
        for k in (min(A.shape) + 1, -1, 1.5):
            with pytest.raises(ValueError, match="svd: k is"):
                co.svd(A, k)


# ---------------------------------------------------------------------------------------------------- pinv and lstsq

PINV: Makers = {
    "pinv_isometry, orthonormal": lambda r: r.stiefel(5, 3),
    "pinv_isometry, zero": lambda r: co.Zero(2, 3, like=r(1)),
    "pinv_isometry, projection": lambda r: co.Projection(r.stiefel(4, 2).A),
    "pinv_diagonal": lambda r: co.Diagonal(r.with_zeros(4)),
    "pinv_scaled_identity": lambda r: co.ScaledIdentity(0.0, 3, like=r(1)),
    "pinv_circulant": lambda r: co.Circulant(r.xp.ones((*r.batch, 4), dtype=r(1).dtype)),
    "pinv_low_rank": lambda r: co.LowRank(r(6, 2), r(4, 2, batched=False)),
    "pinv_kronecker": lambda r: co.Kronecker(r.low(3, 3, 2), r(2, 3, batched=False)),
    "pinv_block_diagonal": lambda r: co.BlockDiag(
        r.low(3, 3, 2), co.Identity(1), r(1, 2, batched=False)
    ),
    "pinv_orthonormal_times": lambda r: co.Product(r.stiefel(5, 3), co.Dense(r.low(3, 4, 2))),
    "pinv_times_orthonormal": lambda r: co.Product(
        co.Dense(r.low(3, 4, 2)), co.Permutation([2, 0, 3, 1])
    ),
    "pinv_scaled": lambda r: co.Scaled(2 * r.unit, co.Dense(r.low(4, 3, 2))),
    "pinv_inverse": lambda r: co.inv(co.Dense(r(3, 3))),
    "pinv_nonsingular": lambda r: co.LowRank(r(5, 1)) + co.Diagonal(r.xp.abs(r(5)) + 1),
    "pinv_turned, adjoint": lambda r: co.Adjoint._of(r.opaque(3, 2)),
    "pinv_turned, transpose": lambda r: co.Transpose._of(r.opaque(3, 2)),
    "pinv_turned, conjugate": lambda r: co.Conjugate._of(r.opaque(3, 2)),
}


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_pseudoinverse_is_moore_and_penrose_s(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    for rule, make in PINV.items():
        r = Maker(name, dtype, batch)
        A = make(r)
        M = host(A).astype(np.complex128)
        assert name_of(rule) in co.explain(co.pinv, A).rules, rule
        wanted = np.linalg.pinv(M, rcond=r.tol)
        close(quietly(co.pinv, A), wanted, r.tol * max(1.0, np.abs(wanted).max()))
        b = r(M.shape[-2], 2, batched=False)
        close(
            quietly(co.lstsq, A, b), wanted @ host(b), 10 * r.tol * max(1.0, np.abs(wanted).max())
        )


@pytest.mark.parametrize("name,dtype,batch", TRACED)
def test_every_pseudoinverse_can_be_traced(name: str, dtype: str, batch: tuple[int, ...]) -> None:
    r = Maker(name, dtype, batch)
    for M, P in compiled(lambda A: co.pinv(A).to_dense(), PINV, r):
        wanted = np.linalg.pinv(M.astype(np.complex128), rcond=r.tol)
        close(P, wanted, 5 * r.tol * max(1.0, np.abs(wanted).max()) ** 2)


def test_the_product_rule_is_not_applied_where_it_fails(rng: np.random.Generator) -> None:
    A, B = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))
    D = np.diag([1.0, 2.0, 3.0, 4.0])
    for factors in ((D, A), (A, B), (A, B, B.T)):
        whole = co.Product(*map(co.Dense, factors))
        close(co.pinv(whole), np.linalg.pinv(host(whole)), 1e-9)
    D = co.Product(co.Diagonal([1.0, 2.0, 3.0, 4.0]), co.Dense(A))
    close(co.pinv(D), np.linalg.pinv(host(D)), 1e-9)


def test_real_operators_have_real_pseudoinverses_though_fourier_s_basis_is_complex(
    rng: np.random.Generator,
) -> None:
    C = co.Circulant(rng.standard_normal(3))
    K = co.Convolution(rng.standard_normal((2, 2)), (2, 3))
    for A in (
        C,
        K,
        co.BlockDiag(C, rng.standard_normal((2, 1))),
        co.Kronecker(C, rng.standard_normal((2, 1))),
    ):
        for rtol in (None, 1e-10):
            P = co.pinv(A, rtol)
            assert P.dtype == np.float64
            close(P, np.linalg.pinv(host(A)), 1e-9)
        assert co.lstsq(A, np.ones(A.shape[-2])).dtype == np.float64


def test_singular_sums_have_pseudoinverses_too() -> None:
    u = np.array([[1.0], [0.0], [0.0]])
    # diag(0, 2, 4)
    singular = co.Diagonal([1.0, 2.0, 4.0]) + co.LowRank(u, core=np.array([[-1.0]]))
    assert "pinv_nonsingular" in co.explain(co.pinv, singular).rules
    close(quietly(co.pinv, singular), np.diag([0.0, 0.5, 0.25]), 1e-12)


def test_negligible_is_measured_by_the_largest_of_all_blocks_and_by_rtol() -> None:
    A = co.BlockDiag(np.eye(2), 1e-20 * np.ones((1, 1)))
    close(co.pinv(A), np.diag([1.0, 1.0, 0.0]), 0)
    for B in (
        co.Kronecker(np.diag([1.0, 1e-3]), np.diag([1.0, 1e-3])),
        co.BlockDiag(np.diag([1.0, 1e-3]), [[1e-6]]),
    ):
        close(co.pinv(B, 1e-4), np.linalg.pinv(host(B), rcond=1e-4), 1e-9)
    for make in PINV.values():
        with pytest.raises(ValueError, match="rtol"):
            co.pinv(make(Maker("numpy", "float64", ())), -1.0)


STACKS: Makers = {
    "inv_shifted_kronecker": lambda r: co.vstack(
        co.Kronecker(r(3, 2), r(2, 3, batched=False)), co.ScaledIdentity(0.5, 6, like=r(1))
    ),
    "woodbury": lambda r: co.vstack(co.Dense(r(2, 9)), co.Diagonal(r.xp.abs(r(9)) + 1)),
    "dense": lambda r: co.vstack(co.Dense(r(5, 3)), co.Identity(3)),
}


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_stacked_systems_are_regularised_least_squares(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    for rule, make in STACKS.items():
        r = Maker(name, dtype, batch)
        A = make(r)
        rules = co.explain(co.lstsq, A).rules
        if (
            rule == "dense"
        ):  # R shows the full rank of one matrix; a batch goes by its singular values
            assert set(rules) == {"SVD" if batch else "QR"}
        else:
            assert rule in rules and "lstsq_regularised" in rules
        b = r(A.shape[-2], 2, batched=False)
        x, info = co.lstsq(A, b, info=True)
        assert not np.any(host(info.failed))
        wanted = np.linalg.pinv(host(A)) @ host(b)
        close(x, wanted, 10 * r.tol)
        close(co.lstsq(A, b[:, 0]), wanted[..., 0], 10 * r.tol)


def test_stacked_systems_can_be_traced() -> None:
    r = Maker("jax", "complex128", ())
    for M, x in compiled(
        lambda A: co.lstsq(A, r.xp.ones((A.shape[-2],), dtype=A.dtype)), STACKS, r
    ):
        close(x, np.linalg.pinv(M) @ np.ones(M.shape[-2]), 1e-9)


def test_a_ridge_too_small_for_normal_equations_falls_back(rng: np.random.Generator) -> None:
    A = co.vstack(np.vander(np.linspace(0.1, 1, 4), 9), co.ScaledIdentity(1e-9, 9))
    b = rng.standard_normal(13)
    x = co.lstsq(A, b)
    M = host(A)
    assert np.linalg.norm(M.T @ (b - M @ x)) <= 1e-6 * np.linalg.norm(b)
    assert np.linalg.norm(b - M @ x) <= (1 + 1e-6) * np.linalg.norm(
        b - M @ np.linalg.lstsq(M, b, rcond=None)[0]
    )


def test_least_squares_of_structured_operators_build_nothing(rng: np.random.Generator) -> None:
    A = co.Kronecker(rng.standard_normal((60, 40)), rng.standard_normal((50, 40)))
    b = rng.standard_normal(3000)
    with forbid_dense(2e4):
        for B, c in (
            (A, b),
            (co.vstack(A, 0.3 * co.Identity(1600)), np.concatenate([b, np.zeros(1600)])),
        ):
            x = co.lstsq(B, c)
            assert np.linalg.norm(B.H @ (c - B @ x)) <= 1e-8 * np.linalg.norm(B.H @ c)


# ---------------------------------------------------------------------------------------------------- norm, rank, cond

NORM: Makers = {
    "norm_zero": lambda r: co.Zero(3, 4, like=r(1)),
    "norm_diagonal": lambda r: co.Diagonal(r(4)),
    "norm_diagonal, permutation": lambda r: co.Permutation([2, 0, 1], like=r(1)),
    "norm_orthonormal": lambda r: r.stiefel(5, 3),
    "norm_projection": lambda r: co.Projection(r.stiefel(4, 2).A),
    "norm_by_entries": lambda r: co.Toeplitz(r(4), r(3, batched=False)),
    "norm_low_rank": lambda r: co.LowRank(r(5, 2), r(4, 2, batched=False)),
    "norm_scaled": lambda r: co.Scaled(2 * r.unit, co.Dense(r(4, 3))),
    "norm_kronecker": lambda r: co.Kronecker(r(3, 2), r(2, 3, batched=False)),
    "norm_block_diagonal": lambda r: co.BlockDiag(r(3, 2), co.Identity(1), r(1, 2, batched=False)),
    "norm_orthonormal_product": lambda r: co.Product(r.stiefel(5, 3), co.Dense(r(3, 2))),
    "norm_sum": lambda r: co.Diagonal(r(5)) + co.LowRank(r(5, 2)),
    "norm_turned, adjoint": lambda r: co.Adjoint._of(r.opaque(3, 2)),
    "norm_turned, conjugate": lambda r: co.Conjugate._of(r.opaque(3, 2)),
}
ENTRIES: Makers = {
    "Sparse": lambda r: r.sparse(5, 4),
    "Banded": lambda r: co.Banded([r(3), r(4, batched=False)], [2, -1]),
    "Tridiagonal": lambda r: co.Tridiagonal(r(3), r(4), r(3, batched=False)),
    "Circulant": lambda r: co.Circulant(r(5)),
    "Toeplitz": lambda r: co.Toeplitz(r.xp.real(r(5))),
}


def check_norms(A: Any, r: Maker, orders: Any) -> None:
    M = host(A)
    for order in orders:
        got = quietly(co.norm, A, order)
        close(got, np.linalg.norm(M, order, axis=(-2, -1)), r.tol)
        assert host(got).dtype == np.empty(0, r.dtype).real.dtype


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_norm_agrees_with_numpy(name: str, dtype: str, batch: tuple[int, ...]) -> None:
    for rule, make in NORM.items():
        r = Maker(name, dtype, batch)
        A = make(r)
        assert name_of(rule) in co.explain(co.norm, A).rules, rule
        check_norms(A, r, ORDERS)
        close(co.rank(A), np.linalg.matrix_rank(host(A).astype(np.complex128), rtol=r.tol), 0)
    for make in ENTRIES.values():
        r = Maker(name, dtype, batch)
        assert co.explain(co.norm, make(r)).rules == ["norm_by_entries"]
        check_norms(make(r), r, ORDERS)


@pytest.mark.parametrize("name,dtype,batch", TRACED)
def test_every_norm_can_be_traced(name: str, dtype: str, batch: tuple[int, ...]) -> None:
    r = Maker(name, dtype, batch)
    for M, sizes in compiled(
        lambda A: [co.norm(A, order) for order in ("fro", 1)], NORM | ENTRIES, r
    ):
        for order, size in zip(("fro", 1), sizes):
            close(size, np.linalg.norm(M, order, axis=(-2, -1)), r.tol)


def test_condition_numbers_of_kronecker_products_multiply(rng: np.random.Generator) -> None:
    A = co.Kronecker(rng.standard_normal((3, 3)), rng.standard_normal((2, 2)))
    for order in ORDERS:
        close(co.cond(A, order), np.linalg.cond(host(A), order), 1e-9)
    assert "cond_kronecker" in co.explain(co.cond, A).rules
    assert (
        np.isinf(co.cond(co.Kronecker(np.zeros((2, 2)), np.eye(2))))
        and int(co.rank(co.Kronecker(np.ones((2, 2)), np.eye(3)))) == 3
    )
    close(
        co.norm(co.Kronecker(rng.standard_normal((3, 1)), rng.standard_normal((1, 3))), -2), 0.0, 0
    )
    assert int(co.rank(co.Kronecker(np.diag([1.0, 1e-3]), np.diag([1.0, 1e-3])), tol=1e-4)) == 3


def test_norms_neither_overflow_nor_cancel() -> None:
    for scale in (1e200, 1e-200):
        for A in (
            co.Toeplitz(np.full(3, scale)),
            co.Diagonal(np.full(9, scale)),
            co.Circulant(np.full(3, scale)),
        ):
            close(co.norm(A) / scale, 3.0, 1e-12)
    u = np.ones((4, 1)) / 2
    A = co.LowRank(u) - co.LowRank(u) + co.Diagonal(np.full(4, 1e-9))
    close(co.norm(A) / 2e-9, 1.0, 1e-6)
    B = co.Toeplitz(np.ones(4)) - co.LowRank(np.ones((4, 1)))
    assert float(co.norm(B)) <= 1e-12


def test_norms_of_large_operators_need_no_matrix(rng: np.random.Generator) -> None:
    d = rng.standard_normal(4000)
    with forbid_dense(1e5):
        for A in (
            co.Toeplitz(d),
            co.Circulant(d),
            co.Tridiagonal(d[1:], d, d[1:]),
            co.LowRank(d[:, None]) + co.Diagonal(d),
        ):
            co.norm(A)
        for A in (co.Toeplitz(d), co.Circulant(d), co.Tridiagonal(d[1:], d, d[1:])):
            co.norm(A, 1), co.norm(A, math.inf)
        K = co.Kronecker(rng.standard_normal((50, 50)), rng.standard_normal((60, 60)))
        [co.norm(K, order) for order in ORDERS], co.cond(K), co.rank(K)


# ---------------------------------------------------------------------------------------------------- nullspace


def permutations(r: Any) -> list[Any]:
    return [co.Permutation(p, like=r(1)) for p in ([1, 0, 2], [1, 2, 0])]


NULL: Makers = {
    "nullspace_orthonormal": lambda r: r.stiefel(5, 3),
    "nullspace_zero": lambda r: co.Zero(2, 3, like=r(1)),
    "nullspace_diagonal": lambda r: co.Diagonal(r.with_zeros(5)),
    "nullspace_projection": lambda r: co.Projection(r.stiefel(4, 2).A),
    "nullspace_low_rank": lambda r: co.LowRank(r(3, 2), r(5, 2, batched=False)),
    "nullspace_scaled": lambda r: co.Scaled(2 * r.unit, co.Dense(r(2, 3))),
    "nullspace_of_injective_times": lambda r: co.Product(r.stiefel(5, 2), co.Dense(r(2, 4))),
    "nullspace_of_times_unitary": lambda r: co.Product(
        co.Dense(r(2, 4)), co.Permutation([2, 0, 3, 1])
    ),
    "nullspace_kronecker": lambda r: co.Kronecker(
        r.low(3, 3, 2), r(2, 3, batched=False), co.Identity(2)
    ),
    "nullspace_block_diagonal": lambda r: co.BlockDiag(
        r.low(3, 3, 2), co.Identity(1), r(1, 2, batched=False)
    ),
    "nullspace_stack": lambda r: co.vstack(
        r.low(3, 6, 1), co.Kronecker(r(1, 2, batched=False), r(1, 3)), co.Zero(1, 6)
    ),
    "nullspace_orbits": lambda r: co.vstack(
        *(co.Kronecker(P, P) - co.Identity(9) for P in permutations(r))
    ),
    "nullspace_conjugate": lambda r: co.Conjugate._of(r.opaque(2, 3)),
}


@pytest.mark.parametrize("name,dtype,batch", SETTINGS)
def test_every_null_space_is_complete_orthonormal_and_null(
    name: str, dtype: str, batch: tuple[int, ...]
) -> None:
    for rule, make in NULL.items():
        r = Maker(name, dtype, batch)
        A = make(r)
        M = host(A)
        assert rule in co.explain(co.nullspace, A).rules, rule
        N = quietly(co.nullspace, A)
        n = M.shape[-1]
        nullity = n - int(np.linalg.matrix_rank(M.astype(np.complex128), rtol=r.tol).max())
        assert N.shape[-2:] == (n, nullity) and N.isa(co.Stiefel), rule
        basis = host(N)
        close(
            adjoint(basis) @ basis,
            np.broadcast_to(np.eye(nullity), (*basis.shape[:-2], nullity, nullity)),
            r.tol,
        )
        close(M @ basis, np.zeros((*M.shape[:-1], nullity)), 10 * r.tol)


def test_null_spaces_are_found_in_jax_too() -> None:
    r = Maker("jax", "float32", (2,))
    for rule in ("nullspace_diagonal", "nullspace_kronecker"):
        A = NULL[rule](r)
        N = co.nullspace(A)
        close(host(A) @ host(N), np.zeros((*A.shape[:-1], N.shape[-1])), 10 * r.tol)


def test_constraints_met_already_do_not_shrink_the_intersection(rng: np.random.Generator) -> None:
    C = rng.standard_normal((2, 6))
    N = co.nullspace(co.vstack(C, 3 * C, C[:1], 1e-18 * rng.standard_normal((2, 6))))
    assert N.shape == (6, 4)
    close(C @ host(N), np.zeros((2, 4)), 1e-12)
    assert co.nullspace(co.vstack(C, np.eye(6))).shape == (6, 0)
    assert co.nullspace(co.BlockDiag(C, 1e-18 * C)).shape == (12, 10)


def test_vectors_that_a_group_leaves_as_they_are_cost_no_svd() -> None:
    """S(5) has Bell(r) orbits on the entries of a tensor of rank r <= 5."""
    swap, cycle = co.Permutation([1, 0, 2, 3, 4]), co.Permutation([1, 2, 3, 4, 0])
    with forbid_dense(1000):
        for r, bell in ((2, 2), (3, 5), (4, 15), (5, 52)):
            N = co.nullspace(
                co.vstack(*(co.Kronecker(*[P] * r) - co.Identity(5**r) for P in (swap, cycle)))
            )
            assert N.shape == (5**r, bell)
    one = co.Kronecker(cycle, co.Identity(2)) - co.Identity(10)
    assert co.explain(co.nullspace, one).rules == ["nullspace_orbits"] and co.nullspace(
        one
    ).shape == (10, 2)
    assert co.nullspace(one, rtol=0.99).shape[-1] > 2  # then more counts as zero
    # cycle x = 2 x: another matter
    turned = co.vstack(swap - co.Identity(5), cycle - 2 * co.Identity(5))
    assert co.explain(co.nullspace, turned).rules[0] == "nullspace_stack" and co.nullspace(
        turned
    ).shape == (5, 0)


def test_the_null_space_of_a_kronecker_product_stays_one(rng: np.random.Generator) -> None:
    A, B = (
        rng.standard_normal((n, r)) @ rng.standard_normal((r, n)) for n, r in ((50, 30), (40, 10))
    )
    with forbid_dense(1e5):
        N = co.nullspace(co.Kronecker(A, B))
        x = N @ rng.standard_normal(N.shape[-1])
        assert N.shape == (2000, 1700) and np.linalg.norm(
            co.Kronecker(A, B) @ x
        ) <= 1e-9 * np.linalg.norm(x)


def test_null_spaces_of_batches_must_agree_in_size() -> None:
    with pytest.raises(ShapeError, match="dimensions from 0 to 1"):
        co.nullspace(co.Diagonal([[1.0, 1.0], [1.0, 0.0]]))
    same = co.nullspace(co.Diagonal([[0.0, 1.0], [1.0, 0.0]]))
    close(np.abs(host(same)), [[[1.0], [0.0]], [[0.0], [1.0]]], 0)
    for make in NULL.values():
        with pytest.raises(ValueError, match="rtol"):
            co.nullspace(make(Maker("numpy", "float64", ())), -1.0)


# ---------------------------------------------------------------------------------------------------- bad input, tracing


def test_nan_is_reported_and_named_by_the_part() -> None:
    bad = np.full((2, 2), np.nan)
    for A in (
        co.Kronecker(np.eye(2), bad),
        co.BlockDiag(np.eye(2), bad),
        co.Scaled(2.0, co.Dense(bad)),
    ):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            info = co.svd(A, info=True)[1]
            assert info.status is Status.NONFINITE and any(
                child.status is Status.NONFINITE for child in info.children
            )
            assert co.norm(A, info=True)[1].status is Status.NONFINITE


def test_decompositions_pass_through_jit_grad_and_vmap() -> None:
    jax = pytest.importorskip("jax")
    A, B = (np.random.default_rng(0).standard_normal((3, 2)) for _ in range(2))

    def values(A: Any, B: Any) -> Any:
        U, s, V = co.svd(co.Kronecker(A, B))
        return (
            s,
            U.to_dense() @ jax.numpy.diag(s) @ V.to_dense().T,
            co.pinv(co.BlockDiag(A, B)).to_dense(),
            co.norm(co.LowRank(A, B)),
        )

    s, whole, pseudo, size = jax.jit(values)(A, B)
    close(s, np.linalg.svd(np.kron(A, B), compute_uv=False), 1e-9)
    close(whole, np.kron(A, B), 1e-9)
    close(pseudo, np.linalg.pinv(host(co.BlockDiag(A, B))), 1e-9)
    close(size, np.linalg.norm(A @ B.T), 1e-9)
    gradient = jax.grad(lambda A: co.norm(co.Kronecker(A, jax.numpy.asarray(B)), 2))(A)
    u, _, vh = np.linalg.svd(A)
    close(gradient, np.outer(u[:, 0], vh[0]) * np.linalg.norm(B, 2), 1e-8)


def test_torch_differentiates_through_the_rules() -> None:
    torch = pytest.importorskip("torch")
    d = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    (co.svd(co.Diagonal(d))[1] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    close(d.grad, [1.0, -3.0, 2.0], 1e-12)
    x = torch.linspace(1, 2, 8, dtype=torch.float64).reshape(2, 4)
    batched = torch.func.vmap(lambda d: co.svd(co.Diagonal(d), 2)[1])(x)
    close(batched, np.sort(x.numpy(), axis=-1)[:, ::-1][:, :2], 1e-12)


def test_the_rules_are_unambiguous() -> None:
    for function in (co.svd, co.pinv, co.lstsq, co.rank, co.cond, co.norm, co.nullspace):
        assert co.check_rules(function) == []


def test_the_null_space_of_a_block_that_stands_there_many_times_is_found_once():
    block = co.vstack(
        [
            co.Permutation(np.roll(np.arange(6), 1)) - co.Identity(6),
            co.Permutation(np.arange(6)[::-1]) - co.Identity(6),
        ]
    )
    A = co.BlockDiag(*[block] * 50, co.Dense(np.ones((2, 2))), *[co.Zero(1, 2)] * 3)
    Q = co.nullspace(A)
    assert Q.shape == (308, 50 + 1 + 6)
    assert len({id(part) for part in Q.operands}) <= 3
    D = Q.to_dense()
    assert np.abs(A.to_dense() @ D).max() < 1e-13
    assert np.abs(D.T @ D - np.eye(57)).max() < 1e-13
