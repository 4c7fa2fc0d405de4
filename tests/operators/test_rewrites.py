"""`simplify`: the same operator in a family that knows more, and that every function asks for it before its base case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear import backends
from colinear.operators.sparse import from_coordinates
from colinear.testing import forbid_dense

I = co.Identity


class Maker:
    """Random operators of one framework, dtype and batch shape."""

    def __init__(self, name: str = "numpy", dtype: Any = np.float64, batch: tuple[int, ...] = ()):
        pytest.importorskip(name)
        self.xp, self.dtype, self.batch, self.rng = (
            backends.get(name),
            np.dtype(dtype),
            batch,
            np.random.default_rng(0),
        )

    def __call__(self, *shape: int) -> Any:
        x = self.rng.standard_normal((*self.batch, *shape))
        x = x + 1j * self.rng.standard_normal(x.shape) if self.dtype.kind == "c" else x
        return self.xp.asarray(x.astype(self.dtype))

    def sparse(self, m: int, n: int, count: int = 2) -> Any:
        places = np.unique(self.rng.integers(0, m * n, count * m))
        structure, _ = from_coordinates(places // n, places % n, (m, n))
        return co.Sparse.from_parts(self(structure.nnz), structure)

    def tridiagonal(self, n: int) -> Any:
        return co.Tridiagonal(self(n - 1), self(n), self(n - 1))

    def banded(self, m: int, n: int, *offsets: int) -> Any:
        return co.Banded(
            [self(min(m, n - k) if k >= 0 else min(m + k, n)) for k in offsets], offsets, (m, n)
        )


CASES: dict[str, tuple[Any, type]] = {
    "sparse and sparse": (lambda r: r.sparse(30, 20) + r.sparse(30, 20), co.Sparse),
    "multiples": (lambda r: 2 * r.sparse(20, 20) - 0.5 * r.tridiagonal(20) + 3 * I(20), co.Sparse),
    "sparse and diagonal": (lambda r: r.sparse(20, 20) + co.Diagonal(r(20)), co.Sparse),
    "five sparse": (
        lambda r: sum((r.sparse(20, 20) for _ in range(4)), r.sparse(20, 20)),
        co.Sparse,
    ),
    "bands": (
        lambda r: r.tridiagonal(12) + 0.1 * r.banded(12, 12, 2, -1, 0) + 3 * I(12),
        co.Banded,
    ),
    "band and diagonal": (lambda r: r.banded(12, 12, 2, -1) + co.Diagonal(r(12)), co.Banded),
    "tridiagonal and diagonal": (lambda r: r.tridiagonal(12) + co.Diagonal(r(12)), co.Tridiagonal),
    "tridiagonals": (lambda r: r.tridiagonal(12) + 2 * r.tridiagonal(12), co.Tridiagonal),
    "product of bands": (
        lambda r: r.tridiagonal(40) @ r.banded(40, 30, -3, 0, 2) @ r.banded(30, 40, 1),
        co.Banded,
    ),
    "product that is diagonal": (lambda r: r.banded(20, 20, 3) @ r.banded(20, 20, -3), co.Diagonal),
    "product that is zero": (lambda r: r.banded(30, 30, 20) @ r.banded(30, 30, 20), co.Diagonal),
    "product of sparse": (lambda r: r.sparse(60, 40) @ r.sparse(40, 50), co.Sparse),
    "product with bands": (
        lambda r: r.sparse(40, 40) @ co.Diagonal(r(40)) @ r.tridiagonal(40),
        co.Sparse,
    ),
    "permuted": (lambda r: co.Permutation(np.roll(np.arange(30), 7)) @ r.sparse(30, 40), co.Sparse),
    "products in a sum": (
        lambda r: 2 * (r.sparse(50, 40).T @ r.sparse(50, 40)) + r.tridiagonal(40) + I(40),
        co.Sparse,
    ),
    "sum in a product": (
        lambda r: (r.tridiagonal(80) + r.banded(80, 80, 2)) @ r.tridiagonal(80),
        co.Banded,
    ),
    "toeplitz": (lambda r: co.Toeplitz(r(9), r(9)) + 0.5 * co.Toeplitz(r(9)), co.Toeplitz),
    "toeplitz and circulant": (lambda r: co.Toeplitz(r(9), r(9)) - co.Circulant(r(9)), co.Toeplitz),
    "circulants": (lambda r: co.Circulant(r(9)) + 2 * co.Circulant(r(9)), co.Circulant),
    "circulant and shift": (lambda r: co.Circulant(r(9)) + 2 * I(9), co.Circulant),
    "convolution and shift": (
        lambda r: co.Convolution(r(2, 2), (2, 3), centered=True) + I(6),
        co.Convolution,
    ),
    "gram of a circulant": (lambda r: (C := co.Circulant(r(9))).H @ C + 0.1 * I(9), co.Circulant),
    "product of circulants": (lambda r: co.Circulant(r(8)) @ co.Circulant(r(8)), co.Circulant),
    "circulant and convolution": (
        lambda r: co.Circulant(r(8)) - 2 * co.Convolution(r(3), 8, centered=True),
        co.Circulant,
    ),
    "gram of a convolution": (
        lambda r: (C := co.Convolution(r(3, 2), (4, 5), centered=True)).T @ C + 2 * I(20),
        co.Convolution,
    ),
    "polynomial of convolutions": (
        lambda r: (
            (co.Convolution(r(3, 2), (4, 5)) + I(20)) @ co.Convolution(r(6, 7), (4, 5))
            + 2 * co.Convolution(r(1, 2), (4, 5), centered=True)
        ),
        co.Convolution,
    ),
    "beside identities": (
        lambda r: 2 * co.Kronecker(r(3, 3), I(4)) - co.Kronecker(I(3), r.tridiagonal(4)),
        co.KroneckerSum,
    ),
    "three places": (
        lambda r: (
            co.Kronecker(r(2, 2), I(3), I(2))
            + co.Kronecker(I(2), r(3, 3), I(2))
            + co.Kronecker(r(2, 2), I(3), I(2))
            + co.Kronecker(I(2), I(3), r(2, 2))
        ),
        co.KroneckerSum,
    ),
    "beside identities, and a diagonal": (
        lambda r: co.Kronecker(r(3, 3), I(4)) + co.Kronecker(I(3), r(4, 4)) + co.Diagonal(r(12)),
        co.Sum,
    ),
    "blocks": (
        lambda r: co.BlockDiag(r(2, 2), r(3, 3)) + co.BlockDiag(r(2, 2), r(3, 3)),
        co.BlockDiag,
    ),
    "blocks and diagonal": (
        lambda r: co.BlockDiag(r(2, 2), r.tridiagonal(3)) + co.Diagonal(r(5)),
        co.BlockDiag,
    ),
}
SETTINGS = [
    ("numpy", "float32", (2,)),
    ("numpy", "complex128", ()),
    ("torch", "complex64", (2,)),
    ("torch", "float64", ()),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("name", "dtype", "batch"), SETTINGS)
def test_a_rewritten_operator_is_the_same_operator(case, name, dtype, batch):
    make, family = CASES[case]
    A = make(Maker(name, dtype, batch))
    B = co.simplify(A)
    assert type(B) is family, B
    assert (B.shape, B.dtype, B.backend) == (A.shape, A.dtype, A.backend)
    tol = 1e4 * A.xp.eps(A.dtype)
    np.testing.assert_allclose(
        A.xp.to_numpy(B.to_dense()), A.xp.to_numpy(A.to_dense()), atol=tol, rtol=tol
    )


def test_what_fills_in_or_is_not_sparse_stays_as_it_is(rng):
    S = Maker().sparse(60, 40)
    full = co.Sparse(sp.csr_array(np.vstack([np.ones((1, 40)), np.eye(40)])))  # S^T S would be full
    for A in (
        S @ co.Dense(np.ones((40, 3))),
        S + co.LowRank(np.ones((60, 1)), np.ones((40, 1))),
        full.T @ full,
        S,
    ):
        assert co.simplify(A) is A
    assert co.simplify(co.Permutation([1, 0, 2]) + 2 * I(3)).is_neutral


def test_properties_are_kept():
    r = Maker()
    S, T = r.sparse(60, 40), r.tridiagonal(40)
    for A in (
        S.T @ S,
        2 * (S.T @ S) + I(40),
        co.PD(T) + co.PD(T),
        co.Unitary(T @ T),
        co.SelfAdjoint(T + T),
    ):
        assert co.simplify(A).properties == A.properties != 0


def test_a_pattern_is_known_under_tracing_and_derivatives_flow():
    jax = pytest.importorskip("jax")
    r = Maker("jax")
    S, T = r.sparse(60, 50), r.tridiagonal(50)

    def f(data, diag, c):
        A = co.Sparse._of(data, S.structure)
        B = co.simplify(A.T @ A + c * co.Tridiagonal(T.lower, diag, T.upper) + I(50))
        assert isinstance(B, co.Sparse)
        return (B.data**2).sum()

    def g(data, diag, c):
        A = co.Sparse._of(data, S.structure)
        return (
            (A.T @ A + c * co.Tridiagonal(T.lower, diag, T.upper) + I(50)).to_dense() ** 2
        ).sum()

    found, wanted = (jax.jit(jax.grad(h, (0, 1, 2)))(S.data, T.diag, 0.3) for h in (f, g))
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


def test_derivatives_flow_through_functions_of_sums_in_torch():
    torch = pytest.importorskip("torch")
    r = Maker("torch")
    S, d = r.sparse(60, 60), r(60)
    data = S.data.clone().requires_grad_()
    d.requires_grad_()

    def both(values):
        A = co.Sparse._of(values, S.structure)
        return A + A.T, A.T @ A + co.Diagonal(d**2 + 1)

    for i in (0, 1):
        A = both(data)[i] + 40 * I(60)
        x = (
            co.logdet(A)
            + co.solve(A, torch.ones(60, dtype=torch.float64)).sum()
            + co.diag(A).sum()
            + co.norm(A)
        )
        M = A.to_dense()
        wanted = (
            torch.linalg.slogdet(M)[1]
            + torch.linalg.solve(M, torch.ones(60, dtype=torch.float64)).sum()
        )
        wanted = wanted + torch.trace(M) + torch.linalg.norm(M)
        torch.testing.assert_close(x, wanted)
        inputs = [data, d][: i + 1]
        grads = [torch.autograd.grad(y, inputs, retain_graph=True) for y in (x, wanted)]
        for g, h in zip(*grads, strict=True):
            torch.testing.assert_close(g, h)


# ---------------------------------------------------------------------------------------------------- functions of large ones

N = 20_000
LIMIT = 10**6


def laplacian(n: int = N) -> Any:
    return co.Tridiagonal(np.full(n - 1, -1.0), np.full(n, 2.0), np.full(n - 1, -1.0))


def scattered(rng: np.random.Generator) -> Any:
    return co.Sparse(
        (sp.random_array((N, N), density=1e-5, format="csr", rng=rng) + 4 * sp.eye_array(N)).tocsr()
    )


def test_products_of_bands_are_never_dense(rng):
    T, D = laplacian(), Maker().banded(N - 2, N, 0, 1, 2)
    A = I(N) + 1e3 * (D.T @ D)
    with forbid_dense(LIMIT):
        x, info = co.solve(A, np.ones(N), info=True)
        assert not info.failed
        np.testing.assert_allclose(
            co.diag(T.T @ T), np.where((np.arange(N) == 0) | (np.arange(N) == N - 1), 5.0, 6.0)
        )
        np.testing.assert_allclose(co.trace(D.T @ D), co.norm(D) ** 2)
        np.testing.assert_allclose(co.norm(T @ T, 1), 16.0)
        np.testing.assert_allclose(co.norm(T @ T, np.inf), 16.0)
        np.testing.assert_allclose(co.norm(T @ T), np.sqrt(70 * N - 58))
        np.testing.assert_allclose(
            co.logdet(T @ T + I(N)), 2 * np.sum(np.log(np.abs(roots_of_square()))), rtol=1e-8
        )
        L = co.cholesky(co.PD(T + T))
        np.testing.assert_allclose(
            np.sum(2 * np.log(np.abs(co.diag(L)))), np.log(N + 1) + N * np.log(2)
        )
    np.testing.assert_allclose(A @ x, np.ones(N), atol=1e-7)


def roots_of_square() -> np.ndarray:
    """The values λ + i for the eigenvalues λ of the Laplacian: |λ + i|^2 = λ^2 + 1."""
    return 2 - 2 * np.cos(np.pi * np.arange(1, N + 1) / (N + 1)) + 1j


def test_sums_and_products_of_sparse_matrices_are_never_dense(rng):
    S = scattered(rng)
    A, G = S + S.T, S.T @ S
    with forbid_dense(LIMIT):
        whole = co.Sparse(sp.csr_array(S.S + S.S.T))
        np.testing.assert_allclose(co.logdet(A), co.logdet(whole))
        np.testing.assert_allclose(co.logdet(G), 2 * co.logdet(S))
        np.testing.assert_allclose(co.norm(A), co.norm(whole))
        np.testing.assert_allclose(
            co.diag(co.Tridiagonal(S.data[: N - 1], S.data[:N], S.data[: N - 1]) @ S).shape, (N,)
        )
        few = co.eig(co.SelfAdjoint(A), 2, "SM")[0]
        np.testing.assert_allclose(few, co.eig(co.SelfAdjoint(whole), 2, "SM")[0])
        np.testing.assert_allclose(co.svd(A, 1)[1], co.svd(whole, 1)[1])
        b = rng.standard_normal(N)
        np.testing.assert_allclose(S.T @ (S @ co.solve(S.T @ S, b)), b, atol=1e-6)
        tall = co.Sparse(sp.vstack([S.S, S.S], format="csr"))
        np.testing.assert_allclose(G @ co.solve(tall.T @ tall, 2 * b), b, atol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_functions_of_gram_products_of_convolutions_go_by_transforms(name):
    r = Maker(name)
    C = co.Convolution(r(5, 5), (32, 40), centered=True)
    n = 32 * 40
    A, b = C.T @ C + 0.5 * I(n), r(n)
    assert co.simplify(A).isa(co.PD) and not co.simplify(A).is_complex
    values = np.abs(np.fft.fft2(np.asarray(C.kernel), (32, 40))) ** 2 + 0.5
    with forbid_dense(10**5):
        assert co.explain(co.solve, A, b).rules[-1] == "inv_convolution"
        x, info = co.solve(A, b, info=True)
        assert not info.failed and info.matvecs in (None, 0, 1)
        np.testing.assert_allclose(np.asarray(A @ x), np.asarray(b), atol=1e-10)
        np.testing.assert_allclose(float(co.logdet(A)), np.log(values).sum())
        np.testing.assert_allclose(np.asarray(co.diag(A)), np.full(n, values.mean()))
        np.testing.assert_allclose(np.sort(np.asarray(co.eig(A)[0])), np.sort(values.ravel()))
        half = co.sqrt(A) @ b
        np.testing.assert_allclose(np.asarray(co.sqrt(A) @ half), np.asarray(A @ b), atol=1e-9)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_kronecker_sum_spelled_by_products_is_no_pencil(name):
    r = Maker(name)
    A, B = r(30, 30) + 9 * r.xp.eye(30), r(20, 20) + 9 * r.xp.eye(20)
    for c in (0.0, 2.0):
        K = 2 * co.Kronecker(A, I(20)) + co.Kronecker(I(30), B) + c * I(600)
        for f in (co.inv, co.slogdet):
            rules = co.explain(f, K).rules
            assert rules[0] == "sum_beside_identities" and "pencil" not in str(rules)
        with forbid_dense(10**5):
            x = co.solve(K, r(600))
        np.testing.assert_allclose(
            float(co.logdet(K)), np.linalg.slogdet(np.asarray(K.to_dense()))[1], rtol=1e-10
        )
        assert not co.solve(K, r(600), info=True)[1].failed and x.shape == (600,)


def test_a_sum_of_toeplitz_matrices_has_the_functions_of_one(rng):
    T = co.Toeplitz(np.r_[8.0, rng.standard_normal(600) / 20])
    A = T + 0.5 * co.Toeplitz(rng.standard_normal(601) / 20)
    assert "slogdet_toeplitz" in co.explain(co.logdet, A).rules
    np.testing.assert_allclose(co.logdet(A), np.linalg.slogdet(A.to_dense())[1])


# ---------------------------------------------------------------------------------------------------- the mechanism


def test_the_plan_shows_the_rewriting_and_what_follows():
    S = Maker().sparse(60, 60)
    plan = co.explain(co.slogdet, S + S.T)
    assert plan.rules == ["sum_of_sparse", "slogdet_sparse"]
    assert "A + B is sparse as A and B are" in str(plan)
    _, info = co.slogdet(S + S.T + 9 * I(60), info=True)
    assert info.rule == "sum_of_sparse"


def test_a_rule_of_the_function_comes_first():
    S = Maker().sparse(60, 60) + 9 * I(60)
    assert co.inv.find(S @ S).name == "inv_product"
    assert co.solve.find(S @ S).is_base
    assert co.diag.find(S + S.T).name == "diag_sum"


def test_a_method_that_iterates_is_given_the_operator_as_it_is():
    S = Maker().sparse(200, 200)
    A = co.PD(S.T @ S + 100 * I(200))
    products = []

    class Count:
        def multiplied(self, B, columns):
            products.append(B)

        def materialised(self, B):
            raise AssertionError

    from colinear.operators import tree

    tree.TEST_HOOKS.append(Count())
    try:
        co.solve(A, np.ones(200), co.CG())
    finally:
        tree.TEST_HOOKS.pop()
    assert any(B is A or isinstance(B, co.Sum) for B in products)


def test_a_users_function_and_family_take_part():
    class Doubled(co.LinearOperator):
        operands: tuple[co.LinearOperator, ...]

        @property
        def shape(self):
            return self.operands[0].shape

        def _matmat(self, X):
            return 2 * (self.operands[0] @ X)

    @co.rule(co.simplify, Doubled)
    def doubled(A):
        """2 A is a multiple of A"""
        return 2 * A.operands[0]

    entries = co.function("entries", base=lambda A: None)

    @co.rule(entries, co.Sparse)
    def entries_sparse(A):
        """Those that are stored"""
        return A.nnz

    D = Doubled((co.Diagonal(np.arange(1.0, 4.0)),))
    np.testing.assert_allclose(co.det(D), 48.0)
    assert co.explain(co.slogdet, D).rules[0] == "doubled"
    S = Maker().sparse(20, 20)
    assert entries(S + S) == S.nnz
    assert entries(co.Dense(np.eye(2))) is None


def test_the_spectrum_of_a_gram_product_of_circulants_takes_one_transform(monkeypatch) -> None:
    make = Maker()
    xp, taken = make.xp, []
    forward = xp.rfftn
    monkeypatch.setattr(xp, "rfftn", lambda *x, **axes: taken.append(1) or forward(*x, **axes))
    column, b = np.r_[4.0, make(11) / 10], make(12)
    C = co.Circulant(column)
    A = C.T @ C + 0.1 * I(12)
    x = co.solve(A, b)
    assert len(taken) == 2  # of the column of C and of b
    assert np.allclose(A.to_dense() @ x, b)
    C = co.simplify(A)
    C.col[:] = 0  # what a call has found is forgotten with it
    C.col[0] = 2
    assert np.allclose(C @ b, 2 * b) and np.allclose(co.solve(C, b), b / 2)


def test_sine_transforms_of_slow_lengths_are_those_of_scipy() -> None:
    import scipy.fft

    X = Maker()(66, 7, 2)  # 67 is a prime
    assert np.allclose(
        (co.Sine((66, 7)) @ X.reshape(-1, 2)).reshape(X.shape),
        scipy.fft.dstn(X, type=1, norm="ortho", axes=(0, 1)),
    )


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
def test_sine_transforms_in_every_framework(framework: str, dtype: str) -> None:
    import scipy.fft

    pytest.importorskip(framework)
    xp = backends.get(framework)
    X = Maker()(3, 9, 14, 2)  # of lines of 9 and 14 numbers: an odd and an even number of them
    if dtype == "complex128":
        X = X + 1j * Maker()(3, 9, 14, 2)[::-1]
    given = xp.asarray(X.astype(dtype))
    found = co.Sine((9, 14)) @ xp.reshape(given, (3, -1, 2))
    assert found.dtype == given.dtype
    np.testing.assert_allclose(
        xp.to_numpy(found).reshape(X.shape),
        scipy.fft.dstn(X, type=1, norm="ortho", axes=(1, 2)),
        atol=20 * xp.eps(xp.real_dtype(given.dtype)),
    )


def test_gradients_of_sine_transforms() -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: co.Sine((3, 4), like=x) @ x, (x,))
    in_parts = torch.func.vmap(lambda x: co.Sine((3, 4)) @ x, in_dims=1, out_dims=1)(x)
    torch.testing.assert_close(in_parts, co.Sine((3, 4)) @ x)
