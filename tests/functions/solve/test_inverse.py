"""The rules of `inv` and `solve`: each against the dense inverse, with its transposes, that it fired, at size, and on bad input."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.errors import ConvergenceWarning
from colinear.status import Status
from colinear.testing import forbid_dense

I = co.Identity


class Maker:
    """Random arrays of one framework, dtype and batch shape."""

    def __init__(self, name: str, dtype: Any, batch: tuple[int, ...], seed: int = 0):
        self.xp, self.dtype, self.batch, self.random = (
            backends.get(name),
            np.dtype(dtype),
            batch,
            np.random.default_rng(seed),
        )

    def host(self, *shape: int, batched: bool = True) -> np.ndarray:
        shape = (*self.batch, *shape) if batched else shape
        x = self.random.standard_normal(shape)
        return (
            x + 1j * self.random.standard_normal(shape) if self.dtype.kind == "c" else x
        ).astype(self.dtype)

    def put(self, x: Any) -> Any:
        return self.xp.asarray(np.asarray(x, self.dtype))

    def __call__(self, *shape: int, batched: bool = True) -> Any:
        return self.put(self.host(*shape, batched=batched))

    def away(self, *shape: int, by: float = 4.0) -> Any:
        """Numbers away from zero."""
        return self.put(self.host(*shape) / 2 + by)

    def spd(self, n: int) -> Any:
        G = self.host(n, n)
        return co.PSD(self.put(G @ np.conj(np.swapaxes(G, -1, -2)) / n + np.eye(n)))

    def herm(self, n: int) -> Any:
        return co.SelfAdjoint(self.put(self.xp.to_numpy(self.spd(n).A) - 2 * np.eye(n)))

    def stiefel(self, n: int, k: int) -> Any:
        return self.put(np.linalg.qr(self.host(n, k))[0])

    def positive(self, n: int) -> Any:
        return co.PSD(co.Diagonal(self.put(np.abs(self.host(n)) + 1)))

    def tridiagonal(self, n: int) -> Any:
        return co.Tridiagonal(self(n - 1, batched=False), self.away(n), self(n - 1))

    def toeplitz(self, n: int, hermitian: bool = False) -> Any:
        fade = np.exp(-np.arange(n) / 3) / 2
        col, row = self.host(n) * fade, self.host(n) * fade
        col[..., 0] = 4
        return (
            co.Toeplitz(self.put(col)) if hermitian else co.Toeplitz(self.put(col), self.put(row))
        )

    def sparse(self, n: int) -> Any:
        S = (scipy.sparse.random(n, n, 0.1, random_state=0) + scipy.sparse.eye_array(n)).tocsr()
        structure = co.Sparse(S).structure
        values = self.host(structure.nnz) / 4
        values[..., structure.rows == structure.columns] += 4
        return co.Sparse.from_parts(self.put(values), structure)


def similarity(r: Maker) -> Any:
    Q = co.Unitary(r.stiefel(5, 5))
    return Q @ co.Diagonal(r.away(5)) @ Q.H + 2 * I(5)


def product(r: Maker) -> Any:
    X = co.Dense(r(8, 2))
    return X @ X.H


def saddle(r: Maker) -> Any:
    B = co.Dense(r(5, 2))
    return co.Block([[r.spd(5), B], [B.H, None]])


def jordan(r: Maker) -> Any:
    return r.put(2 * np.eye(4) + np.diag(np.ones(3), 1))


RULES: dict[str, Callable[[Maker], Any]] = {
    # known inverses
    "inv_permutation": lambda r: co.Permutation([2, 0, 1], like=r(1)),
    "inv_transform": lambda r: co.Householder(r(5)),
    "inv_triangular": lambda r: co.Triangular(r(4, 4) + 4 * r.put(np.eye(4))),
    "inv_circulant": lambda r: co.Circulant(r(7)),
    "inv_convolution": lambda r: co.Convolution(r(2, 3), (3, 4), centered=True),
    "inv_convolution larger than the grid": lambda r: co.Convolution(r(5, 3), (3, 4)),
    "inv_tridiagonal": lambda r: r.tridiagonal(6),
    "inv_banded": lambda r: co.Banded([r(8), r.away(10, by=5.0), r(9, batched=False)], [-2, 0, 1]),
    "inv_toeplitz": lambda r: r.toeplitz(40),
    "inv_toeplitz hermitian": lambda r: r.toeplitz(40, hermitian=True),
    "inv_toeplitz of a band": lambda r: co.Toeplitz(
        r.put(np.r_[4, -1, np.zeros(38)]), r.put(np.r_[4, 1, 0.5, np.zeros(37)])
    ),
    "matrix_of_line": lambda r: co.Convolution(r.put([0.5, 4, 1]), 40, "zero", centered=True),
    "inv_sparse": lambda r: r.sparse(12),
    "sparse_of_scattered": lambda r: co.Banded(
        [r.away(40), r(39), r(39), r(1), r(1)], [0, 1, -1, 39, -39]
    ),
    # compositions
    "inv_scaled": lambda r: co.Scaled(r.away(), co.Circulant(r(5))),
    "inv_product": lambda r: co.Circulant(r(5)) @ co.Diagonal(r.away(5)),
    "inv_kronecker": lambda r: co.Kronecker(co.Circulant(r(3)), r.spd(2)),
    "inv_block_diagonal": lambda r: co.BlockDiag(co.Circulant(r(3)), r.spd(2)),
    "inv_alike_blocks": lambda r: co.BlockDiag(*(r(3, 3) for _ in range(4))),
    # sums
    "woodbury": lambda r: co.LowRank(r(8, 2), r(8, 3), r(2, 3)) + co.Diagonal(r.away(8)),
    "woodbury of a shift": lambda r: co.LowRank(r(8, 2)) + 2 * I(8),
    "woodbury_with_zeros": lambda r: (
        co.LowRank(r(8, 2)) + co.Diagonal(r.put(np.r_[0, np.arange(1, 8)]))
    ),
    "kailath": lambda r: co.LowRank(r(8, 2), r(8, 2)) + r.tridiagonal(8),
    "kailath of a product": lambda r: product(r) + r.tridiagonal(8) + I(8),
    "kailath of a projection": lambda r: co.Projection(r.stiefel(8, 2)) + r.positive(8),
    "kailath of a multiple": lambda r: 2 * co.Projection(r.stiefel(8, 2)) + r.positive(8),
    "sum_of_simplified": lambda r: (
        co.BatchSum(co.LowRank(r(3, 8, 1), r(3, 8, 1), r(3, 1, 1)), -1) + r.positive(8)
    ),
    "kailath and a Kronecker product": lambda r: (
        co.LowRank(r(6, 1)) + co.Kronecker(r.spd(2), r.spd(3)) + I(6)
    ),
    "inv_shifted_projection": lambda r: 3 * co.Projection(r.stiefel(6, 2)) + 2 * I(6),
    "inv_shifted_multiple": lambda r: 3 * co.Kronecker(r.spd(2), r.spd(3)) + 2 * I(6),
    "sum_of_toeplitz circulant and shift": lambda r: co.Circulant(r(5)) + 9 * I(5),
    "sum_of_convolutions": lambda r: co.Convolution(r(2, 2), (2, 3), centered=True) + 9 * I(6),
    "sum_with_diagonal": lambda r: r.tridiagonal(6) + co.Diagonal(r(6)),
    "sum_of_sparse banded": lambda r: co.Banded([r(7), r(6)], [1, -2]) + co.Diagonal(r.away(8)),
    "sum_of_sparse and diagonal": lambda r: r.sparse(12) + co.Diagonal(r.away(12)),
    "sum_of_block_diagonals and diagonal": lambda r: (
        co.BlockDiag(r.spd(2), r.tridiagonal(3)) + co.Diagonal(r.away(5))
    ),
    "sum_of_sparse": lambda r: r.sparse(12) + 0.1 * r.tridiagonal(12) + co.Diagonal(r.away(12)),
    "sum_of_sparse multiple": lambda r: 0.5 * r.sparse(12) + co.Diagonal(r.away(12)),
    "sum_of_sparse bands": lambda r: (
        r.tridiagonal(12) + 0.1 * co.Banded([r(10), r(11), r(12)], [2, -1, 0]) + 3 * I(12)
    ),
    "sum_of_toeplitz": lambda r: r.toeplitz(40) + 0.1 * co.Circulant(r(40)) + I(40),
    "sum_of_toeplitz circulant": lambda r: 2 * co.Circulant(r(6)) + co.Circulant(r(6)),
    "sum_of_block_diagonals": lambda r: (
        co.BlockDiag(r.spd(2), r.spd(3)) + co.BlockDiag(r.spd(2), r.tridiagonal(3))
    ),
    "inv_shifted_similarity": similarity,
    "inv_shifted_kronecker": lambda r: co.KroneckerSum(r.spd(2), r.herm(3)) + 5 * I(6),
    "inv_kronecker_sum": lambda r: co.KroneckerSum(r.spd(2), r.spd(3)),
    "inv_shifted_kronecker_by_eigenvectors": lambda r: co.Kronecker(r(2, 2), r(3, 3)) + 5 * I(6),
    "inv_kronecker_sum_by_eigenvectors": lambda r: co.KroneckerSum(
        r(2, 2), r(3, 3) + 5 * r.put(np.eye(3))
    ),
    "inv_two_kroneckers": lambda r: (
        2 * co.Kronecker(r.herm(2), r.spd(3)) + co.Kronecker(r.spd(2), r.positive(3))
    ),
    "inv_kronecker_pencil": lambda r: (
        co.Kronecker(r(2, 2), r(3, 3)) + co.Kronecker(r.positive(2), co.Diagonal(r.away(3)))
    ),
    # blocks
    "inv_block": lambda r: co.Block([[co.Diagonal(r.away(5)), r(5, 2)], [r(2, 5), r(2, 2)]]),
    "inv_block last corner": lambda r: co.Block([[r(2, 2), r(2, 5)], [r(5, 2), r.tridiagonal(5)]]),
    "inv_block saddle": saddle,
    "inv_block triangular": lambda r: co.Block([[r.spd(2), None], [r(3, 2), r.spd(3)]]),
    "inv_block off the diagonal": lambda r: co.Block([[None, r.spd(3)], [r.spd(3), r(3, 3)]]),
    "inv_block arrow": lambda r: co.Block(
        [
            [r(2, 2), r(2, 3), r(2, 4)],
            [r(3, 2), r.positive(3), None],
            [r(4, 2), None, r.positive(4)],
        ]
    ),
}
ALL = (np.float32, np.float64, np.complex64, np.complex128)
SETTINGS = [
    (name, dtype, batch) for name in ("numpy", "torch") for dtype in ALL for batch in ((), (2,))
]
# In JAX each operation of each case is compiled, which takes seconds: those cases whose code differs from one framework to another.
IN_JAX = {
    np.float32: ("inv_circulant", "inv_sparse"),
    np.complex128: ("inv_toeplitz", "inv_kronecker_sum_by_eigenvectors", "inv_two_kroneckers"),
}
SETTINGS += [("jax", np.float32, (2,)), ("jax", np.complex128, ())]


def host(x: Any) -> np.ndarray:
    x = x.to_dense() if isinstance(x, co.LinearOperator) else x
    xp = backends.namespace_of(x)
    return np.asarray(x) if xp is None else xp.to_numpy(x)


def close(x: Any, y: Any, tol: float) -> None:
    x, y = host(x), host(y)
    assert x.shape == y.shape, (x.shape, y.shape)
    assert np.abs(x - y).max(initial=0.0) <= tol * max(1.0, float(np.abs(y).max(initial=0.0)))


@pytest.mark.parametrize(
    ("name", "dtype", "batch"), SETTINGS, ids=lambda x: getattr(x, "__name__", str(x))
)
def test_every_rule_gives_the_dense_inverse_and_its_transposes(name, dtype, batch):
    tol = 2e-3 if np.finfo(dtype).eps > 1e-10 else 1e-9
    for case, make in RULES.items():
        if name == "jax" and case not in IN_JAX[dtype]:
            continue
        r = Maker(name, dtype, batch)
        A = make(r)
        M = host(A).astype(np.complex128 if dtype in (np.complex64, np.complex128) else np.float64)
        wanted = np.linalg.inv(M)
        inverse = co.inv(A, on_failure="raise")
        assert inverse.dtype == A.dtype and inverse.device == A.device, case
        close(inverse, wanted, tol)
        b = r(A.shape[-1], 2)
        close(inverse.H @ b, np.conj(np.swapaxes(wanted, -1, -2)) @ host(b), tol)
        if name != "jax":
            close(inverse.T @ b, np.swapaxes(wanted, -1, -2) @ host(b), tol)
            close(inverse.conj() @ b, np.conj(wanted) @ host(b), tol)
        x = co.solve(A, b, on_failure="raise")
        assert x.dtype == b.dtype, case
        close(x, wanted @ host(b), tol)


@pytest.mark.parametrize("case", RULES)
def test_every_rule_fires_and_its_result_can_be_pickled_and_multiplied_by_other_dtypes(case):
    for dtype in (np.float64, np.complex128):
        r = Maker("numpy", dtype, ())
        A = RULES[case](r)
        assert case.partition(" ")[0] in co.explain(co.inv, A).rules
        inverse = pickle.loads(pickle.dumps(co.inv(A)))
        b = np.random.default_rng(1).standard_normal((A.shape[-1], 2)) * (1 + 1j)
        close(inverse @ b, np.linalg.solve(host(A), b), 1e-9)
        close(inverse @ b.real, np.linalg.solve(host(A), b.real), 1e-9)
        assert (inverse @ b.real).dtype == A.dtype
        assert inverse.properties & A.properties == A.properties


def test_no_two_rules_are_ambiguous():
    assert co.check_rules(co.inv) == co.check_rules(co.solve) == []


# Q is known to be orthonormal and S to be self-adjoint, so the gradients are those along such matrices.
CONSTRAINED = ("inv_shifted_projection", "inv_block saddle", "inv_two_kroneckers")


@pytest.mark.parametrize(
    "case", [case for case in RULES if "toeplitz" not in case and case not in CONSTRAINED]
)
def test_every_rule_is_differentiable_in_torch(case):
    torch = pytest.importorskip("torch")
    A = RULES[case](Maker("torch", np.float64, ()))
    leaves = [leaf for leaf in A.leaves() if torch.is_tensor(leaf) and leaf.is_floating_point()]
    if not leaves:
        return
    b = torch.linspace(0.5, 1.5, A.shape[-1], dtype=torch.float64)

    def loss(*values):
        given = iter(values)
        moved = A._map(
            lambda leaf: next(given) if torch.is_tensor(leaf) and leaf.is_floating_point() else leaf
        )
        return (co.inv(moved) @ b).sum()

    def dense_loss(*values):
        given = iter(values)
        moved = A._map(
            lambda leaf: next(given) if torch.is_tensor(leaf) and leaf.is_floating_point() else leaf
        )
        return torch.linalg.solve(moved.to_dense(), b).sum()

    inputs = [leaf.clone().requires_grad_() for leaf in leaves]
    got = torch.autograd.grad(loss(*inputs), inputs, allow_unused=True)
    wanted = torch.autograd.grad(dense_loss(*inputs), inputs, allow_unused=True)
    # then so are the gradients
    symmetric = {"Cholesky", "LDL", "Eigh"} & set(co.explain(co.inv, A).rules)
    for g, w in zip(got, wanted):
        if w is None:
            continue
        g = torch.zeros_like(w) if g is None else g
        if symmetric and w.ndim == 2 and w.shape[0] == w.shape[1]:
            g, w = g + g.T, w + w.T
        close(g, w, 1e-7)


def test_toeplitz_and_sparse_inverses_have_first_and_second_derivatives_though_their_factors_have_none():
    torch = pytest.importorskip("torch")
    r = Maker("torch", np.float64, ())
    S, T, band = r.sparse(12), r.toeplitz(33), RULES["inv_toeplitz of a band"](r)
    b = r(12, 2)

    def sparse(data, b):
        return co.inv(co.Sparse.from_parts(data, S.structure)) @ b

    def toeplitz(col, row, b):
        return (co.inv(co.Toeplitz(col, row)) @ b)[:3]

    S_data, b = S.data.requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradcheck(sparse, (S_data, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(sparse, (S_data, b), fast_mode=True)
    for A in (T, band):
        inputs = (
            A.col.requires_grad_(),
            A.row.requires_grad_(),
            r(A.shape[-1], 1).requires_grad_(),
        )
        assert torch.autograd.gradcheck(toeplitz, inputs, fast_mode=True)
    inputs = tuple(x.detach()[:33].clone().requires_grad_() for x in (T.col, T.row, r(33, 1)))
    assert torch.autograd.gradgradcheck(toeplitz, inputs, fast_mode=True)


def test_inverses_made_on_the_host_pass_into_jit_vmap_and_both_modes_of_derivatives_in_jax():
    jax = pytest.importorskip("jax")
    r = Maker("jax", np.float64, ())
    for A in (r.sparse(12), r.toeplitz(33)):
        inverse, wanted, b = co.inv(A), np.linalg.inv(host(A)), r(A.shape[-1], 2)
        close(jax.jit(lambda I, b: I @ b)(inverse, b), wanted @ host(b), 1e-9)
        close(jax.vmap(inverse.__matmul__)(b.T), (wanted @ host(b)).T, 1e-9)
        close(jax.vjp(inverse.__matmul__, b)[1](b)[0], wanted.T @ host(b), 1e-9)
        close(jax.jvp(inverse.__matmul__, (b,), (b,))[1], wanted @ host(b), 1e-9)


def test_a_large_toeplitz_system_is_solved_under_jit_without_its_matrix():
    jax = pytest.importorskip("jax")
    n = 2500
    col, b = 1 / (1 + np.arange(n)) ** 1.5, np.cos(np.arange(n))

    def solve(col, b):
        return co.solve(co.Toeplitz(col, col / 2), b, info=True)

    with forbid_dense(1e5):
        x, info = jax.jit(solve)(backends.get("jax").asarray(col), backends.get("jax").asarray(b))
    close(x, scipy.linalg.solve_toeplitz((col, np.r_[col[0], col[1:] / 2]), b), 1e-9)
    assert int(info.status) == Status.SUCCESS


def test_under_jit_the_rules_that_need_no_values_are_taken_and_agree():
    jax = pytest.importorskip("jax")
    r = Maker("jax", np.float64, ())
    for case in ("kailath", "inv_block"):
        A = RULES[case](r)
        b = r(A.shape[-1])
        x, info = jax.jit(lambda A, b: co.solve(A, b, info=True))(A, b)
        close(x, np.linalg.solve(host(A), host(b)), 1e-9)
        assert int(info.status) == Status.SUCCESS


# ---------------------------------------------------------------------------------------------------- size


def large() -> dict[str, Any]:
    n, r = 4000, np.random.default_rng(0).standard_normal
    fade = 1 / (1 + np.arange(n)) ** 1.5
    return {
        "woodbury": co.LowRank(r((n, 3))) + co.Diagonal(1 + r(n) ** 2),
        "woodbury_with_zeros": co.LowRank(r((n, 3)))
        + co.Diagonal(np.where(np.arange(n) < 2, 0.0, 1.0 + r(n) ** 2)),
        "kailath": co.LowRank(r((n, 3))) + co.Circulant(fade),
        "inv_shifted_projection": co.Projection(np.linalg.qr(r((n, 2)))[0]) + I(n),
        "inv_circulant": co.Circulant(fade),
        "inv_tridiagonal": co.Tridiagonal(r(n - 1), 5 + r(n) ** 2, r(n - 1)),
        "inv_banded": co.Banded([9 + r(n), r(n - 3)], [0, -3]),
        "inv_toeplitz": co.Toeplitz(fade + (np.arange(n) == 0), fade / 2),
        "inv_sparse": co.Sparse(
            scipy.sparse.diags_array([4.0 + r(n) ** 2, r(n - 50)], offsets=[0, 50]).tocsr()
        ),
        "inv_block": co.Block([[co.Diagonal(1 + r(n) ** 2), r((n, 2))], [r((2, n)), r((2, 2))]]),
        "inv_block arrow": co.Block(
            [
                [r((2, 2)), r((2, n)), r((2, n))],
                [r((n, 2)), co.Diagonal(1 + r(n) ** 2), None],
                [r((n, 2)), None, co.Circulant(fade)],
            ]
        ),
        "inv_two_kroneckers": co.Kronecker(spd(60), spd(70))
        + co.Kronecker(co.Diagonal(1 + r(60) ** 2), I(70)),
        "inv_kronecker_sum_by_eigenvectors": co.KroneckerSum(
            r((60, 60)), r((70, 70)) + 20 * np.eye(70)
        ),
    }


def spd(n: int) -> Any:
    G = np.random.default_rng(n).standard_normal((n, n))
    return co.PSD(G @ G.T / n + np.eye(n))


def test_nothing_larger_than_the_input_is_made_at_size():
    for case, A in large().items():
        b = np.random.default_rng(1).standard_normal(A.shape[-1])
        with forbid_dense(1e5):
            _, info = co.solve(A, b, info=True)
        assert info.status is Status.SUCCESS and float(np.max(info.residual)) < 1e-9, (case, info)


# ---------------------------------------------------------------------------------------------------- bad input


def test_singular_parts_are_named():
    n, r = 6, np.random.default_rng(0).standard_normal
    e, zero = np.eye(n)[:, :1], co.Diagonal([0.0, 1.0])
    ones = co.Diagonal([1.0, 1.0])
    cases = [
        (co.Kronecker(spd(2), co.Circulant(np.ones(3))), "factor 2 of 2"),
        (co.BlockDiag(spd(2), zero), "block 2 of 2"),
        (
            co.BlockDiag(*(np.zeros((2, 2)) if i == 2 else np.eye(2) for i in range(4))),
            "block 3 of 4",
        ),
        (co.Product(np.zeros((2, 2)), spd(2)), "factor 1 of 2"),
        (co.LowRank(e, -e) + I(n), "capacitance"),
        (co.Projection(e) - I(n), "range of Q"),
        (co.Projection(e), "rank 1"),
        (co.LowRank(r((n, 2))), "rank"),
        (co.BatchSum(co.LowRank(r((3, n, 1)))), "rank"),
        (co.Block([[ones, ones], [ones, ones]]), "Schur complement"),
        (co.LowRank(r((7000, 2))) + co.Diagonal(np.zeros(7000)), "low-rank"),
        (co.Sparse(scipy.sparse.csr_array(([1.0], ([0], [0])), shape=(7000, 7000))), "pivot"),
    ]
    for A, name in cases:
        with pytest.warns(ConvergenceWarning, match=name) as caught:
            co.inv(A)
        assert any("SINGULAR" in str(warning.message) for warning in caught), A
        with pytest.raises(co.ConvergenceError):
            co.inv(A, on_failure="raise")


def test_singular_matrices_of_every_family_are_reported():
    z = np.zeros(40)
    laplacian = np.r_[2.0, -1.0, np.zeros(38)]
    periodic = laplacian.copy()
    periodic[-1] = -1
    for A in (
        co.Circulant(periodic),
        co.Convolution(np.array([-1.0, 2.0, -1.0]), 40, centered=True),
        co.Tridiagonal([0.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0]),
        co.Tridiagonal(-np.ones(9), np.r_[1.0, 2 * np.ones(8), 1.0], -np.ones(9)),
        co.Banded([np.ones(39)], [1], (40, 40)),
        co.Toeplitz(np.ones(40)),
        co.Toeplitz(z + 1, z + 1),
        co.Sparse(scipy.sparse.csr_array(np.diag(np.r_[0.0, np.ones(9)]))),
        co.KroneckerSum(np.diag([1.0, 2.0]) + np.eye(2, k=1), np.diag([-1.0, 3.0])),
        co.Kronecker(np.diag([1.0, 2.0]), np.eye(2) + np.eye(2, k=1)) - I(4),
    ):
        _, info = co.inv(A, info=True)
        assert info.failed, A


def test_a_singular_block_or_term_gives_way_to_another_route():
    r = np.random.default_rng(0).standard_normal
    for A, status in (
        (
            co.Block(
                [[co.Diagonal([0.0, 1.0, 1.0]), r((3, 3))], [r((3, 3)), co.Diagonal(1 + r(3) ** 2)]]
            ),
            Status.SUCCESS,
        ),
        (
            co.LowRank(r((6, 2)))
            + co.Tridiagonal(np.zeros(5), np.r_[0.0, np.ones(5)], np.zeros(5)),
            Status.FELL_BACK,
        ),
        (
            co.Kronecker(r((2, 2)), r((3, 3))) + co.Kronecker(co.Diagonal([0.0, 1.0]), r((3, 3))),
            Status.FELL_BACK,
        ),
        (
            co.Toeplitz(np.eye(40)[1], np.eye(40)[1]),
            Status.SUCCESS,
        ),  # its diagonal is zero: Levinson's recursion fails
        (
            co.PSD(co.Sparse(scipy.sparse.csr_array(np.kron(np.eye(5), [[0.0, 1.0], [1.0, 0.0]])))),
            Status.SUCCESS,
        ),  # a false claim
    ):
        inverse, info = co.inv(A, info=True)
        assert info.status is status, (A, info)
        close(inverse, np.linalg.inv(host(A)), 1e-9)


def test_defective_factors_are_solved_by_schur_forms():
    for dtype in (np.float64, np.complex128):
        r = Maker("numpy", dtype, ())
        A = co.KroneckerSum(jordan(r), jordan(r))
        inverse, info = co.inv(A, info=True)
        assert info.status is Status.SUCCESS and type(inverse.factor).__name__ == "SchurFactor"
        for image in (lambda X: X, lambda X: X.T, lambda X: X.H, lambda X: X.conj()):
            close(image(inverse), image(co.Dense(np.linalg.inv(host(A)))), 1e-9)


@pytest.mark.parametrize("name, terms", [("numpy", 3), ("torch", 2), ("jax", 2)])
def test_defective_factors_are_solved_by_schur_forms_everywhere(name, terms):
    for dtype in (np.float64, np.complex128)[name == "jax" :]:
        r = Maker(name, dtype, ())
        A = co.KroneckerSum(*[jordan(r)] * terms)
        for B in (A, A + co.ScaledIdentity(0.5, A.shape[-1]))[name == "jax" :]:
            inverse, info = co.inv(B, info=True)
            assert info.status is Status.SUCCESS and type(inverse.factor).__name__ == "SchurFactor"
            for image in (lambda X: X, lambda X: X.T, lambda X: X.H, lambda X: X.conj())[
                : 1 if name == "jax" else 4
            ]:
                close(image(inverse), image(co.Dense(np.linalg.inv(host(B)))), 1e-9)


def test_non_finite_values_are_reported():
    bad = np.r_[np.nan, np.ones(39)]
    S = scipy.sparse.diags_array(bad).tocsr()
    for A in (
        co.Circulant(bad),
        co.Tridiagonal(np.ones(39), bad, np.ones(39)),
        co.Toeplitz(bad),
        co.Sparse(S),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, info = co.inv(A, info=True)
        assert info.failed, A


def test_matrices_without_rows_have_themselves_for_an_inverse():
    empty = np.zeros(0)
    for A in (
        co.Circulant(empty),
        co.Tridiagonal(empty, empty, empty),
        co.Toeplitz(empty),
        co.Convolution(np.ones(2), 0),
    ):
        assert co.inv(A).shape == (0, 0)


def test_wide_corrections_and_full_bands_are_left_to_the_dense_factorisation():
    r = np.random.default_rng(0).standard_normal
    for A in (
        co.LowRank(r((6, 5))) + co.Diagonal(r(6)),
        co.LowRank(r((6, 1))) + r((6, 6)),
        co.Banded([r(6), r(1), r(1)], [0, 5, -5]),
        co.Block([[r((2, 2)), r((2, 2))], [r((2, 2)), r((2, 2))]]),
        co.Kronecker(r((2, 3)), r((3, 2))) + I(6),
    ):
        assert co.explain(co.inv, A).rules in (["LU"], ["LDL"]), A
        close(co.inv(A), np.linalg.inv(host(A)), 1e-9)


def test_what_is_known_of_a_shifted_multiple_is_known_of_its_parts_under_tracing():
    """Numbers become arrays that cannot be seen; a factory that needs positive definite operators must not be told less for it."""
    import jax
    import jax.numpy as jnp

    def solved(X, shift):
        A = X.T @ X
        assert (0.5 * co.PSD(A)).isa(co.PSD) and not (-0.5 * co.PSD(A)).isa(co.PSD)
        M = co.PSD(co.opaque(co.PSD(A)) / 5 + shift * co.Identity(3))
        return co.solve(M, jnp.ones(3), co.CG(preconditioner=co.Nystrom(2)), info=True)[0]

    # traced, which is enough: not compiled
    assert jax.eval_shape(solved, jnp.ones((5, 3)), jnp.asarray(0.1)).shape == (3,)


def test_shifted_blocks_of_kronecker_products_stay_kronecker_products():
    """The damped curvature of a Kronecker-factored optimiser: a multiple of I in each block, not a diagonal, which no rule knows."""
    rng = np.random.default_rng(0)
    factors = [co.PSD(X @ X.T) for X in (rng.standard_normal((n, n)) for n in (40, 30, 20, 50))]
    A = co.BlockDiag(co.Kronecker(*factors[:2]), co.Kronecker(*factors[2:])) + 0.1 * co.Identity(
        2200
    )
    assert co.explain(co.inv, A).rules.count("inv_shifted_kronecker") == 2
    b = rng.standard_normal(2200)
    with forbid_dense(10_000):
        x = co.solve(A, b)
        co.logdet(A)
    assert np.linalg.norm(A @ x - b) < 1e-8 * np.linalg.norm(b)
