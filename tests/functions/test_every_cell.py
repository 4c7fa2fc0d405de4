"""Each function with each operator that it should know a fast algorithm for: a rule fires, whatever the base case could do."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import colinear as co

N = 36
rng = np.random.default_rng(0)


def definite(n):
    G = rng.standard_normal((n, n))
    return co.PSD(G @ G.T / n + np.eye(n))


def square(n):
    return co.Dense(rng.standard_normal((n, n)) + 3 * np.eye(n))


def positive(n):
    return co.Diagonal(rng.uniform(1, 2, n))


U, COLUMN = rng.standard_normal((N, 2)), np.r_[4.0, rng.standard_normal(N - 1) / N]
Q = np.linalg.qr(rng.standard_normal((N, N)))[0]
UNITARY, TALL = co.Unitary(Q), co.Stiefel(Q[:, :3])
SHIFT = co.ScaledIdentity(2.0, N)
LINE = co.PSD(co.Tridiagonal(-np.ones(N - 1), np.full(N, 2.0), -np.ones(N - 1)))
VALUES, VECTORS = co.eig(square(N))
KERNEL = np.array([[5.0, 0.3], [0.2, 0.1]])
TERMS = co.BatchSum(co.LowRank(rng.standard_normal((3, N, 1))))

OPERATORS = {
    "identity": co.Identity(N),
    "scaled identity": SHIFT,
    "diagonal": positive(N),
    "scaled": co.Scaled(2.0, definite(N)),
    "permutation": co.Permutation(rng.permutation(N)),
    "unitary": UNITARY,
    "stiefel": TALL,
    "triangular": co.Triangular(np.tril(rng.standard_normal((N, N))) + 3 * np.eye(N)),
    "tridiagonal": co.Tridiagonal(
        rng.standard_normal(N - 1), 4 + rng.standard_normal(N), rng.standard_normal(N - 1)
    ),
    "line": LINE,
    "banded": co.Banded(
        [rng.standard_normal(N - abs(k)) + 9 * (k == 0) for k in (-2, 0, 1)], (-2, 0, 1)
    ),
    "circulant": co.Circulant(COLUMN),
    "convolution": co.Convolution(KERNEL, (6, 6)),
    "convolution of a line": co.Convolution(KERNEL[0], (N,), boundary="zero"),
    "toeplitz": co.Toeplitz(COLUMN, np.r_[4.0, COLUMN[:0:-1]]),
    "hermitian toeplitz": co.Toeplitz(COLUMN),
    "fft": co.FFT((N,)),
    "householder": co.Householder(rng.standard_normal(N)),
    "projection": co.Projection(Q[:, :3]),
    "shifted projection": co.Projection(Q[:, :3]) + SHIFT,
    "kronecker": co.Kronecker(square(6), square(6)),
    "positive kronecker": co.Kronecker(definite(6), definite(6)),
    "rectangular kronecker": co.Kronecker(rng.standard_normal((3, 2)), rng.standard_normal((2, 4))),
    "kronecker sum": co.KroneckerSum(definite(6), definite(6)),
    "any kronecker sum": co.KroneckerSum(square(6), square(6)),
    "shifted kronecker": co.Kronecker(definite(6), definite(6)) + SHIFT,
    "any shifted kronecker": co.Kronecker(square(6), square(6)) + SHIFT,
    "two kroneckers": co.Kronecker(definite(6), definite(6))
    + co.Kronecker(positive(6), positive(6)),
    "shifted grid": co.KroneckerSum(definite(6), definite(6)) + SHIFT,
    "product": co.Product(square(N), square(N)),
    "square": co.Product(*[definite(N)] * 2),
    "low rank": co.LowRank(U),
    "low rank + diagonal": co.LowRank(U) + positive(N),
    "low rank + line": co.LowRank(U) + LINE,
    "low rank + kronecker": co.LowRank(U) + co.Kronecker(definite(6), definite(6)),
    "rank one": co.LowRank(U[:, :1]) + LINE,
    "low ranks + diagonal": co.LowRank(U) + co.LowRank(U[:, :1], U[:, 1:]) + positive(N),
    "shifted low rank": co.LowRank(U) + SHIFT,
    "terms": TERMS,
    "terms + diagonal": TERMS + positive(N),
    "block diagonal": co.BlockDiag(square(6), definite(8)),
    "positive blocks": co.BlockDiag(definite(6), definite(8)),
    "block triangle": co.Block([[square(6), square(6)], [co.Zero(6, 6), square(6)]]),
    "2 x 2 block": co.Block([[positive(6), square(6)], [square(6), square(6)]]),
    "3 x 3 block": co.Block(
        [
            [square(4), co.Zero(4, 4), square(4)],
            [co.Zero(4, 4), positive(4), square(4)],
            [square(4)] * 3,
        ]
    ),
    "stack": co.vstack(square(6), square(6)),
    "sparse": co.Sparse(
        scipy.sparse.random_array((N, N), density=0.05, rng=0).tocsr()
        + 4 * scipy.sparse.eye_array(N).tocsr()
    ),
    "shifted": definite(N) + SHIFT,
    "inverse": co.inv(definite(N)),
    "Q A Q^H": co.Product(UNITARY, square(N), UNITARY.H),
    "Q D Q^H": co.Product(UNITARY, positive(N), UNITARY.H),
    "Q D Q^H + c I": co.Product(UNITARY, positive(N), UNITARY.H) + SHIFT,
    "V D V^-1 + c I": co.Product(VECTORS, co.Diagonal(VALUES), co.inv(VECTORS)) + SHIFT,
    "Q A": co.Product(TALL, square(3)),
    "sum": square(N) + LINE,
    "product with a diagonal": co.Product(square(N), positive(N)),
    "hadamard": co.Hadamard(square(N), square(N)),
    "kernel": co.Kernel(
        lambda x, y: np.exp(-((x[:, None] - y[None]) ** 2).sum(-1)), rng.standard_normal((N, 2))
    ),
    "batch sum": co.BatchSum(co.Dense(rng.standard_normal((3, N, N)))),
    "sliced": LINE[1:5, 1:5],
    "inverse of low rank + diagonal": co.inv(co.LowRank(U) + positive(N)),
    "inverse of a line": co.inv(LINE),
    "inverse of a kronecker": co.inv(co.Kronecker(definite(6), definite(6))),
    "inverse of blocks": co.inv(co.BlockDiag(definite(6), definite(8))),
}
MADE = {"transpose": co.Transpose, "adjoint": co.Adjoint, "conjugate": co.Conjugate}
OPERATORS |= {name: kind._of(square(N)) for name, kind in MADE.items()}

KNOWN_FUNCTIONS = "diagonal, scaled identity, permutation, circulant, convolution, block diagonal, shifted low rank, triangular, Q D Q^H"
PARTS = "diagonal, permutation, unitary, Q A, kronecker, rectangular kronecker, block diagonal, low rank, scaled, transpose"
CELLS = {
    co.inv: """identity, scaled identity, diagonal, scaled, permutation, triangular, tridiagonal, line, banded, circulant, convolution,
        convolution of a line, toeplitz, hermitian toeplitz, fft, householder, shifted projection, kronecker, kronecker sum,
        any kronecker sum, shifted kronecker, any shifted kronecker, two kroneckers, shifted grid, product, low rank + diagonal,
        low rank + line, low rank + kronecker, rank one, low ranks + diagonal, shifted low rank, terms + diagonal, block diagonal,
        block triangle, 2 x 2 block, 3 x 3 block, sparse, transpose, adjoint, conjugate, inverse, Q A Q^H, Q D Q^H + c I,
        V D V^-1 + c I""",
    co.eig: """diagonal, scaled identity, triangular, permutation, circulant, convolution, projection, householder, unitary, fft,
        low rank, shifted low rank, kronecker, kronecker sum, block diagonal, scaled, shifted, square, inverse, transpose, adjoint,
        Q A Q^H, shifted kronecker, shifted grid, line""",
    co.svd: f"{PARTS}, stiefel, adjoint, Q A Q^H, inverse",
    co.pinv: f"{PARTS}, stiefel, inverse",
    co.norm: PARTS,
    co.diag: """diagonal, triangular, permutation, circulant, toeplitz, sparse, sum, kronecker, kronecker sum, block diagonal,
        2 x 2 block, low rank, product, product with a diagonal, hadamard, kernel, batch sum, sliced, inverse of a line,
        inverse of low rank + diagonal, inverse of a kronecker, inverse of blocks""",
    co.trace: "kronecker, kronecker sum, sum, low rank, projection, block diagonal, transpose",
    co.slogdet: """diagonal, triangular, kronecker, low rank + diagonal, low rank + line, low rank + kronecker, product, 2 x 2 block,
        3 x 3 block, block triangle, permutation, projection, tridiagonal, banded, shifted kronecker, any shifted kronecker,
        kronecker sum, any kronecker sum, two kroneckers, shifted grid, circulant, convolution, block diagonal, sparse,
        terms + diagonal, shifted projection, inverse, transpose, Q A Q^H, Q D Q^H + c I, V D V^-1 + c I, fft, householder""",
    co.logdet: "unitary, Q A Q^H",
    co.exp: f"{KNOWN_FUNCTIONS}, projection, kronecker sum, any kronecker sum, low rank, Q A Q^H, shifted",
    co.log: f"{KNOWN_FUNCTIONS}, positive kronecker",
    co.sqrt: f"{KNOWN_FUNCTIONS}, positive kronecker, projection",
    co.isqrt: f"{KNOWN_FUNCTIONS}, positive kronecker",
    co.power: f"{KNOWN_FUNCTIONS}, positive kronecker, projection",
    co.apply: f"{KNOWN_FUNCTIONS}, projection",
    co.cholesky: "identity, diagonal, positive kronecker, positive blocks, line, scaled",
    co.lu: "identity, diagonal, kronecker, block diagonal, tridiagonal, scaled, banded, permutation, triangular",
    co.qr: "diagonal, kronecker, block diagonal, tridiagonal, scaled, banded, permutation, unitary, Q A, low rank",
    co.nullspace: """diagonal, block diagonal, stack, kronecker, rectangular kronecker, low rank, projection, circulant, Q A, scaled,
        transpose""",
}  # fmt: skip


@pytest.mark.parametrize("function", CELLS, ids=lambda function: function.name)
def test_a_rule_fires(function):
    arguments = {co.power: (2.5,)}.get(function, ())
    for name in map(" ".join, map(str.split, CELLS[function].split(","))):
        A = OPERATORS[name]
        assert not function.find(A).is_base, f"{function.name} of {name}"
        plan = (
            co.explain(function, np.cos, A)
            if function is co.apply
            else co.explain(function, A, *arguments)
        )
        assert plan.rule == function.find(A).name


@pytest.mark.parametrize(
    "function", [co.lstsq, co.rank, co.cond], ids=lambda function: function.name
)
def test_what_has_no_rule_of_its_own_follows_from_others(function):
    for name in PARTS.split(", "):
        plan = co.explain(function, OPERATORS[name])
        rules = [
            node.rule
            for node in plan.walk()
            if node.rule.startswith(("svd_", "pinv_", "rank_", "cond_"))
        ]
        assert rules, f"{function.name} of {name}"


def test_a_unitary_matrix_is_inverted_by_its_adjoint():
    assert co.explain(co.inv, UNITARY).rules == ["adjoint"]


def test_large_toeplitz_determinants_have_a_rule():
    assert co.explain(co.slogdet, co.Toeplitz(np.r_[4.0, np.ones(599) / 600])).rules == [
        "slogdet_toeplitz"
    ]


def test_a_plan_says_what_other_rules_would_cost():
    reasons = dict(co.explain(co.inv, OPERATORS["low rank + diagonal"]).rejected)
    assert "flop" in reasons["kailath"] and "does not hold" in reasons["woodbury_with_zeros"]


@pytest.mark.parametrize("function", [co.eig, co.svd], ids=lambda function: function.name)
def test_more_pairs_than_there_are_is_an_error(function):
    for name in (
        "diagonal",
        "kronecker",
        "low rank",
        "circulant",
        "block diagonal",
        "unitary",
        "shifted",
        "inverse",
        "transpose",
    ):
        with pytest.raises(ValueError, match="k is"):
            function(OPERATORS[name], k=OPERATORS[name].shape[-1] + 1)
