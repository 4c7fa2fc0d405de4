"""The rules of `eig` and of `exp`, `log`, `sqrt`, `isqrt`, `power`, `apply`: each against the dense answer, that it fired, that
nothing large is formed, and what happens to bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.status import Status
from colinear.testing import forbid_dense

EAGER = [
    (name, dtype, batch)
    for name in ("numpy", "torch")
    for dtype in ("float32", "float64", "complex64", "complex128")
    for batch in ((), (2,))
]
COMPILED = [("jax", "float32", (2,)), ("jax", "complex128", ())]


class Maker:
    """Random matrices of one framework, dtype and batch shape."""

    def __init__(self, name: str, dtype: str, batch: tuple[int, ...]):
        self.xp, self.batch, self.rng = backends.get(name), batch, np.random.default_rng(1)
        self.dtype = np.dtype(dtype)

    def put(self, x: Any) -> Any:
        x = np.asarray(x)
        return self.xp.asarray(x.astype(self.dtype))

    def normal(self, *shape: int) -> np.ndarray:
        x = self.rng.standard_normal((*self.batch, *shape))
        return x + 1j * self.rng.standard_normal(x.shape) if self.dtype.kind == "c" else x

    def __call__(self, *shape: int) -> Any:
        return self.put(self.normal(*shape))

    def positive(self, n: int) -> Any:
        G = self.normal(n, n)
        return co.PSD(self.put(G @ np.swapaxes(G, -1, -2).conj() / n + np.eye(n)))

    def self_adjoint(self, n: int) -> Any:
        G = self.normal(n, n)
        return co.SelfAdjoint(self.put(G + np.swapaxes(G, -1, -2).conj()))

    def well(self, n: int) -> np.ndarray:
        """A matrix with eigenvalues apart, in the right half plane."""
        return self.normal(n, n) / (4 * n) + np.diag(np.arange(1.0, n + 1))

    def general(self, n: int) -> Any:
        return co.Dense(self.put(self.well(n)))

    def stiefel(self, n: int, r: int) -> np.ndarray:
        return np.linalg.qr(self.normal(n, r))[0]

    def even_column(self, n: int) -> np.ndarray:
        c = self.normal(n)
        return c + np.roll(c[..., ::-1], 1, -1).conj()


def power_of_one(A: Any, p: int) -> Any:
    return co.Product(*[A] * p)


class Plain(co.LinearOperator):
    """An operator that has no transposes of its own, so that they are wrappers."""

    A: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.A.shape)

    def _matmat(self, X: Any) -> Any:
        return self.A @ X

    def _rmatmat(self, X: Any) -> Any:
        return np.swapaxes(self.A, -1, -2).conj() @ X


def plain(A: Any) -> Any:
    return Plain(A.to_dense())


def update(make: Maker) -> Any:
    return co.LowRank(
        make.put(make.normal(7, 2) / 3), make.put(make.normal(7, 2) / 3)
    ) + 4.0 * co.Identity(7)


def similar(make: Maker, n: int, r: int, inner: Any) -> Any:
    Q = co.Stiefel(make.put(make.stiefel(n, r)))
    return Q @ inner @ Q.H


Build = Callable[[Maker], Any]

# The operator, and the first rule of eig that must take it.
SPECTRA: dict[str, tuple[Build, str]] = {
    "identity": (lambda m: co.ScaledIdentity(-2.0, 4, like=m(1)), "eig_identity"),
    "zero": (lambda m: co.Zero(4, 4, like=m(1)), "eig_zero"),
    "diagonal": (lambda m: co.Diagonal(m(5)), "eig_diagonal"),
    "lower triangle": (lambda m: co.Triangular(m.put(m.well(5))), "eig_triangular"),
    "upper triangle": (lambda m: co.Triangular(m.put(m.well(5)), lower=False), "eig_triangular"),
    "permutation": (
        lambda m: co.Permutation([1, 2, 0, 4, 3, 5, 7, 8, 6], like=m(1)),
        "eig_permutation",
    ),
    "circulant": (lambda m: co.Circulant(m(6)), "eig_circulant"),
    "even circulant": (
        lambda m: co.SelfAdjoint(co.Circulant(m.put(m.even_column(6)))),
        "eig_circulant",
    ),
    "convolution": (lambda m: co.Convolution(m(2, 3), (4, 3)), "eig_circulant"),
    "large centered kernel": (
        lambda m: co.Convolution(m(3, 5), (4, 3), centered=True),
        "eig_circulant",
    ),
    "projection": (lambda m: co.Projection(m.put(m.stiefel(6, 2))), "eig_projection"),
    "reflection": (lambda m: co.Householder(m(5)), "eig_householder"),
    "low rank": (lambda m: co.LowRank(m(6, 2)), "eig_low_rank"),
    "indefinite low rank": (lambda m: co.SelfAdjoint(-co.LowRank(m(6, 2))), "eig_low_rank"),
    "low rank, two sides": (lambda m: co.LowRank(m(6, 2), m(6, 2)), "eig_low_rank"),
    "low rank, wide core": (lambda m: co.LowRank(m(6, 2), m(6, 3), m(2, 3)), "eig_low_rank"),
    "low rank + c I": (lambda m: co.LowRank(m(6, 2)) - 0.5 * co.Identity(6), "eig_shifted"),
    "two sides + c I": (
        lambda m: co.LowRank(m(6, 2), m(6, 2)) + 0.5 * co.Identity(6),
        "eig_shifted",
    ),
    "Kronecker": (
        lambda m: co.Kronecker(m.self_adjoint(3), m.positive(2), m.self_adjoint(2)),
        "eig_kronecker",
    ),
    "Kronecker, general": (lambda m: co.Kronecker(m.general(3), m.general(2)), "eig_kronecker"),
    "Kronecker sum": (
        lambda m: co.KroneckerSum(m.self_adjoint(3), m.positive(2), m.self_adjoint(2)),
        "eig_kronecker",
    ),
    "Kronecker sum, general": (
        lambda m: co.KroneckerSum(m.general(3), 0.3 * m.general(2)),
        "eig_kronecker",
    ),
    "Kronecker + c I": (
        lambda m: co.Kronecker(m.self_adjoint(3), m.positive(2)) - 1.5 * co.Identity(6),
        "eig_shifted",
    ),
    "positive + c I": (
        lambda m: co.Kronecker(m.positive(3), m.positive(2)) + 1.5 * co.Identity(6),
        "eig_shifted",
    ),
    "blocks": (lambda m: co.BlockDiag(m.self_adjoint(3), m.positive(2)), "eig_block_diagonal"),
    "blocks, general": (
        lambda m: co.BlockDiag(m.general(3), m.positive(2), co.Identity(2)),
        "eig_block_diagonal",
    ),
    "negative multiple": (lambda m: co.Scaled(-2.0, m.self_adjoint(4)), "eig_scaled"),
    "multiple, general": (lambda m: co.Scaled(-1.5, m.general(4)), "eig_scaled"),
    "shifted, general": (lambda m: m.general(4) - 2.5 * co.Identity(4), "eig_shifted"),
    "square": (lambda m: power_of_one(m.self_adjoint(4), 2), "eig_power"),
    "cube": (lambda m: power_of_one(m.self_adjoint(4), 3), "eig_power"),
    "square, general": (lambda m: power_of_one(m.general(4), 2), "eig_power"),
    "inverse": (lambda m: co.inv(m.positive(4)), "eig_inverse"),
    "inverse, general": (lambda m: co.inv(m.general(4)), "eig_inverse"),
    "similarity": (lambda m: similar(m, 4, 4, m.general(4)), "eig_similarity"),
    "compression": (lambda m: similar(m, 5, 3, m.general(3)), "eig_similarity"),
    "compression, self-adjoint": (lambda m: similar(m, 5, 3, m.self_adjoint(3)), "eig_similarity"),
}


def tolerance(M: np.ndarray) -> float:
    return (
        300 * float(np.finfo(M.dtype).eps) * max(1.0, float(np.linalg.norm(M, axis=(-2, -1)).max()))
    )


def host(x: Any) -> np.ndarray:
    x = x.to_dense() if isinstance(x, co.LinearOperator) else x
    return np.asarray(backends.namespace_of(x).to_numpy(x))


def check_pairs(A: Any, values: Any, V: Any, k: int | None, which: str) -> None:
    """Right pairs, those that were asked for, of the right type and in the right order."""
    M, is_hermitian = host(A), A.isa(co.SelfAdjoint)
    w, X, n = host(values), host(V), M.shape[-1]
    tol, k = tolerance(M), n if k is None else k
    assert w.shape == (*M.shape[:-2], k) and X.shape == (*M.shape[:-1], k)
    assert w.real.dtype == M.real.dtype == X.real.dtype
    np.testing.assert_allclose(M @ X, X * w[..., None, :], atol=tol)
    np.testing.assert_allclose(np.linalg.norm(X, axis=-2), 1, atol=tol)
    key = np.abs if which[1] == "M" else np.real
    reference = np.linalg.eigvalsh(M) if is_hermitian else np.linalg.eigvals(M)
    sign = -1 if which[0] == "L" else 1
    wanted = np.sort(sign * key(reference), axis=-1)[..., :k]
    np.testing.assert_allclose(np.sort(sign * key(w), axis=-1), wanted, atol=10 * tol)
    if is_hermitian:
        assert np.isrealobj(w) and (np.diff(w) >= 0).all() and V.isa(co.Stiefel)
        np.testing.assert_allclose(
            np.swapaxes(X, -1, -2).conj() @ X,
            np.broadcast_to(np.eye(k), (*M.shape[:-2], k, k)),
            atol=tol,
        )
    else:
        assert np.iscomplexobj(w) and (np.diff(sign * key(w)) >= -tol).all()
        assert k == 0 or np.linalg.svd(X, compute_uv=False).min() > 1e-4


@pytest.mark.parametrize("name, dtype, batch", EAGER)
def test_every_rule_of_eig_gives_the_pairs_that_were_asked_for(name, dtype, batch):
    for what, (build, rule) in SPECTRA.items():
        A = build(Maker(name, dtype, batch))
        assert co.explain(co.eig, A).rules[0] == rule, what
        n = A.shape[-1]
        asked = [(None, "LM"), (2, "LM"), (2, "SM"), (2, "LR"), (3, "SR"), (0, "LM"), (n, "SR")]
        for k, which in asked + [(1, "LA"), (2, "SA")] * A.isa(co.SelfAdjoint):
            (values, V), info = co.eig(A, k, which, info=True)
            assert info.status is Status.SUCCESS, (what, k, which, info)
            check_pairs(A, values, V, k, which)


@pytest.mark.parametrize("name, dtype, batch", COMPILED)
def test_eig_under_jit(name, dtype, batch):
    import jax

    batched = ("lower triangle", "reflection", "blocks")
    for what in (
        batched
        if batch
        else ("even circulant", "low rank, two sides", "low rank + c I", "Kronecker")
    ):
        A = SPECTRA[what][0](Maker(name, dtype, batch))
        k, which = (2, "LR") if batch else (None, "LM")
        values, X = jax.jit(
            lambda A: (lambda pair: (pair[0], pair[1].to_dense()))(co.eig(A, k, which))  # noqa: B023
        )(A)
        V = co.Dense(X)
        check_pairs(A, values, co.Stiefel(V) if A.isa(co.SelfAdjoint) else V, k, which)


def test_transposes_have_left_eigenvectors():
    for dtype in ("float64", "complex128"):
        G = plain(Maker("numpy", dtype, ()).general(4))
        for A in (G.H, G.T, co.Adjoint(G), G.conj()):
            for k in (None, 2):
                check_pairs(A, *co.eig(A, k), k, "LM")
        assert co.explain(co.eig, G.H).rules[0] == "eig_adjoint"
    assert co.explain(co.eig, G.conj()).rules[0] == "eig_conjugate"


def test_spectra_are_found_without_building_the_matrix():
    rng, n = np.random.default_rng(0), 400
    P, S = (co.PSD(np.cov(rng.standard_normal((20, 60)))) for _ in range(2))
    general = rng.standard_normal((20, 20))
    operators = [
        co.Kronecker(P, S),
        co.KroneckerSum(P, S),
        co.Kronecker(general, P),
        co.Kronecker(P, S) + 2 * co.Identity(n),
        co.LowRank(rng.standard_normal((n, 3))),
        co.LowRank(rng.standard_normal((n, 3))) + 2 * co.Identity(n),
        co.LowRank(rng.standard_normal((n, 3)), rng.standard_normal((n, 3))),
        co.Projection(np.linalg.qr(rng.standard_normal((n, 3)))[0]),
        co.Householder(rng.standard_normal(n)),
        co.Circulant(rng.standard_normal(n)),
        co.Permutation(rng.permutation(n)),
        co.BlockDiag(*[P] * 20),
    ]
    x = rng.standard_normal(n)
    for A in operators:
        with forbid_dense(30 * n):
            for k, which in ((None, "LM"), (3, "LM"), (3, "SR")):
                values, V = co.eig(A, k, which)
                y = V @ x[: V.shape[-1]].astype(V.dtype)
            co.eigmax(A), co.eigmin(A)
        assert y.shape == (n,)
        np.testing.assert_allclose(
            A @ y, V @ (values * x[:3]), atol=1e-9 * max(1, np.abs(values).max())
        )


def test_few_pairs_of_a_kronecker_product_need_few_of_its_factors():
    rng = np.random.default_rng(0)
    A = co.Kronecker(*(co.PSD(np.diag(np.exp(rng.standard_normal(100)))) for _ in range(3)))
    spectra = [np.diag(factor.to_dense()) for factor in A.operands]
    with forbid_dense(1e5):  # of a million eigenvalues
        for which, of in (("LM", np.max), ("SM", np.min)):
            np.testing.assert_allclose(co.eig(A, 1, which)[0][0], np.prod([of(s) for s in spectra]))
        np.testing.assert_allclose(
            co.eigmax(co.KroneckerSum(*A.operands)), sum(map(np.max, spectra))
        )
        np.testing.assert_allclose(co.eigmax(-A), -np.prod([np.min(s) for s in spectra]))


def test_signs_matter_for_the_largest_products():
    rng = np.random.default_rng(3)
    factors = [rng.standard_normal(9) for _ in range(3)]
    A = co.Kronecker(*(co.SelfAdjoint(np.diag(d)) for d in factors))
    B = co.KroneckerSum(*A.operands)
    for operator, combine in ((A, np.multiply), (B, np.add)):
        everything = np.sort(
            combine.outer(combine.outer(factors[0], factors[1]), factors[2]).ravel()
        )
        np.testing.assert_allclose(co.eig(operator, 4, "LA")[0], everything[-4:])
        np.testing.assert_allclose(co.eig(operator, 4, "SA")[0], everything[:4])
        by_size = everything[np.argsort(-abs(everything))[:4]]
        np.testing.assert_allclose(co.eig(operator, 4, "LM")[0], np.sort(by_size))


# ---------------------------------------------------------------------------------------------------- bad input of eig


def test_defective_triangles_are_flagged_and_simple_eigenvalues_are_not():
    jordan = co.Triangular(np.eye(40) * 2 + np.eye(40, k=1), lower=False)
    (values, V), info = co.eig(jordan, info=True)
    assert info.status is Status.INACCURATE and "defective" in info.message
    assert (values == 2).all() and np.isfinite(V.to_dense()).all()
    T = co.Triangular(np.array([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 5.0]]), lower=False)
    assert co.eig(T, info=True)[1].status is Status.INACCURATE
    assert co.eig(T, 1, info=True)[1].status is Status.SUCCESS
    repeated = co.Triangular(
        np.array([[2.0, 0.0, 1.0], [0.0, 2.0, 1.0], [0.0, 0.0, 5.0]]), lower=False
    )
    (values, V), info = co.eig(repeated, info=True)  # twice the same, yet two eigenvectors
    assert info.status is Status.SUCCESS
    check_pairs(repeated, values, V, None, "LM")
    assert (
        co.eig(co.Triangular(np.array([[1.0, 0.0], [np.nan, 2.0]])), info=True)[1].status
        is Status.NONFINITE
    )


def test_a_nilpotent_low_rank_operator_is_flagged():
    u, v = np.array([[1.0], [0.0], [0.0]]), np.array([[0.0], [1.0], [0.0]])
    (values, _), info = co.eig(co.LowRank(u, v), info=True)
    np.testing.assert_allclose(values, 0, atol=1e-12)
    assert info.status is Status.INACCURATE and "defective" in repr(info)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_low_rank_factors_that_lack_rank_do_not_make_zero_defective(framework):
    xp = backends.get(framework)
    e = np.eye(4)
    for U, V in (
        (0 * e[:, :1], e[:, 1:2]),
        (e[:, :2] * np.array([1.0, 0.0]), e[:, [0, 3]] + e[:, [2, 2]]),
    ):
        A = co.LowRank(xp.asarray(U), xp.asarray(V))
        for B in (A, co.Identity(4) * 2.0 + A):
            (values, vectors), info = co.eig(B, info=True)
            assert info.status is Status.SUCCESS
            check_pairs(B, values, vectors, None, "LM")


def test_the_status_names_the_part_that_failed():
    defective = np.array([[1.0, 1.0], [0.0, 1.0]])
    for A in (
        co.Kronecker(defective, co.PSD(np.eye(2))),
        co.BlockDiag(defective, co.PSD(np.eye(2))),
    ):
        _, info = co.eig(A, info=True)
        assert info.status is Status.INACCURATE
        assert [child.status is Status.INACCURATE for child in info.children] == [True, False]
    singular = co.Inverse(co.PSD(np.diag([1.0, 0.0])), co.Identity(2))
    assert co.eig(singular, info=True)[1].status is Status.SINGULAR


def test_rules_of_eig_refuse_what_makes_no_sense():
    for build, _ in SPECTRA.values():
        A = build(Maker("numpy", "float64", ()))
        with pytest.raises(ValueError, match="eig: k is 99"):
            co.eig(A, 99)
        with pytest.raises(ValueError, match="which is 'XX'"):
            co.eig(A, 1, "XX")
        with pytest.raises(co.MethodError):
            co.eig(A, method=co.LU())
        if not A.isa(co.SelfAdjoint):
            with pytest.raises(ValueError, match="not known to be self-adjoint"):
                co.eig(A, 1, "LA")
    rectangular = co.Kronecker(np.ones((2, 3)), np.ones((3, 2)))
    (values, _), _ = co.eig(rectangular, info=True)
    np.testing.assert_allclose(abs(values).max(), abs(np.linalg.eigvals(np.ones((6, 6)))).max())
    with pytest.raises(co.ShapeError):
        co.eig(co.LowRank(np.ones((3, 1)), np.ones((2, 1))))


def test_a_reflection_by_zero_is_the_identity():
    values, V = co.eig(co.Householder(np.zeros(4)))
    np.testing.assert_allclose(values, 1)
    np.testing.assert_allclose(V.H @ V.to_dense(), np.eye(4), atol=1e-12)


# ---------------------------------------------------------------------------------------------------- functions

# The operator, and the first rule of each function that must take it: (exp, log, sqrt, isqrt, power, apply), None for the base.
FUNCTIONS: dict[str, tuple[Build, str]] = {
    "diagonal": (lambda m: co.Diagonal(m(5)), "diagonal"),
    "identity": (lambda m: co.ScaledIdentity(2.0, 4, like=m(1)), "identity"),
    "zero": (lambda m: co.Zero(4, 4, like=m(1)), "zero"),
    "lower triangle": (lambda m: co.Triangular(m.put(m.well(4))), "triangular"),
    "upper triangle": (lambda m: co.Triangular(m.put(m.well(4)), lower=False), "triangular"),
    "permutation": (lambda m: co.Permutation([1, 2, 0, 4, 5, 3, 6], like=m(1)), "permutation"),
    "involution": (lambda m: co.Permutation([1, 0, 2], like=m(1)), "permutation"),
    "circulant": (lambda m: co.Circulant(m.put(m.normal(6) / 4 + np.eye(6)[0] * 4)), "circulant"),
    "positive circulant": (
        lambda m: co.PSD(co.Circulant(m.put(m.even_column(6) / 4 + np.eye(6)[0] * 4))),
        "circulant",
    ),
    "even circulant": (lambda m: co.Circulant(m.put(m.even_column(6))), "circulant"),
    "convolution": (
        lambda m: co.Convolution(
            m.put(m.normal(2, 3) / 4 + np.eye(6)[0].reshape(2, 3) * 4), (4, 3)
        ),
        "circulant",
    ),
    "projection": (lambda m: co.Projection(m.put(m.stiefel(5, 2))), "projection"),
    "reflection": (lambda m: co.Householder(m(5)), "householder"),
    "low rank + c I": (lambda m: co.LowRank(m(6, 2)) + 0.5 * co.Identity(6), "low_rank"),
    "indefinite": (lambda m: co.LowRank(m(6, 2)) - 0.5 * co.Identity(6), "low_rank"),
    "blocks": (
        lambda m: co.BlockDiag(m.general(3), m.positive(2), co.Identity(2)),
        "block_diagonal",
    ),
    "similarity": (lambda m: similar(m, 4, 4, m.general(4)), "similarity"),
}
CALLS: dict[str, Callable[..., Any]] = {
    "exp": co.exp,
    "log": co.log,
    "sqrt": co.sqrt,
    "isqrt": co.isqrt,
    "power": lambda A, **k: co.power(A, 0.3, **k),
    "cube": lambda A, **k: co.power(A, 3, **k),
    "inverse square": lambda A, **k: co.power(A, -2, **k),
    "apply": lambda A, **k: co.apply(A.xp.sin, A, **k),
}


def dense_like(A: Any) -> Any:
    """The matrix of A in double precision, with what is known of A."""
    M = host(A)
    M = M.astype(np.complex128 if M.dtype.kind == "c" else np.float64)
    D = co.Dense((M + np.swapaxes(M, -1, -2).conj()) / 2 if A.isa(co.SelfAdjoint) else M)
    return co.PSD(D) if A.isa(co.PSD) else co.SelfAdjoint(D) if A.isa(co.SelfAdjoint) else D


def check_function(A: Any, f: Callable[..., Any], what: str) -> None:
    X, info = f(A, info=True)
    expected, reference = f(dense_like(A), info=True)
    # of which rounding makes a regular matrix
    if reference.failed or ("projection" in what and info.status is Status.SINGULAR):
        assert info.status in (reference.status, Status.SINGULAR), (what, info, reference)
        return
    assert not info.failed, (what, info)
    Y, Z = host(X), host(expected)
    assert Y.shape == A.shape and Y.real.dtype == host(A).real.dtype, what
    assert np.iscomplexobj(Y) <= (np.iscomplexobj(Z) or A.is_complex), what
    tol = 3 * tolerance(host(A)) * max(1.0, float(np.abs(Z).max()))
    # the matrix has eps for a zero eigenvalue, and powers enlarge it
    tol = tol**0.25 if "projection" in what else tol
    np.testing.assert_allclose(Y, Z, atol=tol, rtol=tol, err_msg=what)
    if X.isa(co.SelfAdjoint):
        np.testing.assert_allclose(Y, np.swapaxes(Y, -1, -2).conj(), atol=tol, err_msg=what)
    if X.isa(co.PSD):
        assert np.linalg.eigvalsh(Y).min() >= -tol, what


@pytest.mark.parametrize("name, dtype, batch", EAGER)
def test_functions_of_structured_operators_agree_with_the_dense_ones(name, dtype, batch):
    for what, (build, rule) in FUNCTIONS.items():
        A = build(Maker(name, dtype, batch))
        for function in (co.exp, co.log, co.sqrt, co.isqrt):
            assert co.explain(function, A).rules[0] == f"{function.name}_{rule}", what
        assert co.explain(co.power, A, 0.3).rules[0] == f"power_{rule}"
        assert co.explain(co.apply, A.xp.sin, A).rules[0] == f"apply_{rule}"
        for call, f in CALLS.items():
            check_function(A, f, f"{call} of {what}")


# The operator, the call, and the rule.
PARTICULAR: dict[str, tuple[Build, str, str]] = {
    "exp of a Kronecker sum": (
        lambda m: co.KroneckerSum(m.general(3), m.self_adjoint(2)),
        "exp",
        "exp_kronecker_sum",
    ),
    "log of a Kronecker product": (
        lambda m: co.Kronecker(m.positive(3), m.positive(2)),
        "log",
        "log_positive_kronecker",
    ),
    "root of a Kronecker product": (
        lambda m: co.Kronecker(m.positive(3), m.positive(2)),
        "sqrt",
        "sqrt_positive_kronecker",
    ),
    "inverse root": (
        lambda m: co.Kronecker(m.positive(3), m.positive(2)),
        "isqrt",
        "isqrt_positive_kronecker",
    ),
    "power of a Kronecker product": (
        lambda m: co.Kronecker(m.positive(3), m.positive(2)),
        "power",
        "power_positive_kronecker",
    ),
    "cube of a Kronecker product": (
        lambda m: co.Kronecker(m.general(3), m.general(2)),
        "cube",
        "power_kronecker",
    ),
    "power off the branch": (
        lambda m: co.Kronecker(-1 * m.general(3), -1 * m.general(2)),
        "power",
        "power_kronecker",
    ),
    "indefinite factors": (
        lambda m: co.Kronecker(m.self_adjoint(3), m.self_adjoint(2)),
        "power",
        "power_factored_spectrum",
    ),
    "root of a multiple": (lambda m: co.Scaled(3.0, m.general(3)), "sqrt", "sqrt_scaled"),
    "inverse root of a multiple": (lambda m: co.Scaled(3.0, m.general(3)), "isqrt", "isqrt_scaled"),
    "log of a multiple": (lambda m: co.Scaled(3.0, m.general(3)), "log", "log_scaled"),
    "power of a multiple": (lambda m: co.Scaled(3.0, m.general(3)), "power", "power_scaled"),
    "power of a negative multiple": (lambda m: co.Scaled(-3.0, m.general(3)), "power", "power"),
    "cube of a negative multiple": (
        lambda m: co.Scaled(-3.0, m.general(3)),
        "cube",
        "power_scaled",
    ),
    "exp of a scaled Kronecker sum": (
        lambda m: co.Scaled(-0.5, co.KroneckerSum(m.general(3), m.self_adjoint(2))),
        "exp",
        "multiple_of_parts",
    ),
    "exp of a scaled circulant": (
        lambda m: co.Scaled(-0.5, co.Circulant(m(5))),
        "exp",
        "multiple_of_kernel",
    ),
    "log of a scaled circulant": (
        lambda m: co.Scaled(-0.5, co.Circulant(m(5))),
        "log",
        "multiple_of_kernel",
    ),
    "exp of a scaled convolution": (
        lambda m: co.Scaled(-0.5, co.Convolution(m(2, 2), (3, 4))),
        "exp",
        "multiple_of_kernel",
    ),
    "root of a scaled permutation": (
        lambda m: co.Scaled(-0.5, co.Permutation([1, 2, 0, 3], like=m(1))),
        "sqrt",
        "sqrt_scaled_permutation",
    ),
    "exp of scaled blocks": (
        lambda m: co.Scaled(-0.5, co.BlockDiag(m.general(3), m.positive(2))),
        "exp",
        "multiple_of_parts",
    ),
    "root of a shifted circulant": (
        lambda m: co.Circulant(m(5)) + 2.0 * co.Identity(5),
        "sqrt",
        "sum_of_toeplitz",
    ),
    "log of shifted blocks": (
        lambda m: co.BlockDiag(m.general(3), m.positive(2)) + 2.0 * co.Identity(5),
        "log",
        "sum_of_block_diagonals",
    ),
    "exp of two sides": (lambda m: co.LowRank(m(7, 2), m(7, 2)), "exp", "exp_low_rank_update"),
    "cube of two sides": (
        lambda m: co.LowRank(m(7, 2), m(7, 3), m(2, 3)),
        "cube",
        "power_low_rank_update",
    ),
    "inverse square of an update": (lambda m: update(m), "inverse square", "power_low_rank_update"),
    "power of an update": (lambda m: update(m), "power", "power_low_rank_update"),
    "exp of an update": (lambda m: update(m), "exp", "exp_low_rank_update"),
    "log of an update": (lambda m: update(m), "log", "log_low_rank_update"),
    "root of an update": (lambda m: update(m), "sqrt", "sqrt_low_rank_update"),
    "inverse root of an update": (lambda m: update(m), "isqrt", "isqrt_low_rank_update"),
    "exp of a shift": (lambda m: m.general(3) - 2.0 * co.Identity(3), "exp", "exp_shifted"),
    "power of an inverse": (lambda m: co.inv(m.positive(3)), "power", "power_inverse"),
    "power of a general inverse": (lambda m: co.inv(m.general(3)), "power", "power"),
    "square of an inverse": (lambda m: co.inv(m.general(3)), "inverse square", "power_inverse"),
    "root of an inverse": (lambda m: co.inv(m.positive(3)), "sqrt", "sqrt_inverse"),
    "inverse root of an inverse": (lambda m: co.inv(m.positive(3)), "isqrt", "isqrt_inverse"),
    "log of an inverse": (lambda m: co.inv(m.positive(3)), "log", "log_inverse"),
}
ARGUMENTS = {"power": (0.3,), "cube": (3,), "inverse square": (-2,)}


@pytest.mark.parametrize("name, dtype, batch", EAGER)
def test_functions_of_compositions_agree_with_the_dense_ones(name, dtype, batch):
    for what, (build, call, rule) in PARTICULAR.items():
        A = build(Maker(name, dtype, batch))
        function = co.power if call in ARGUMENTS else getattr(co, call)
        if what != "power off the branch":  # there -1 is pulled out of the product, and (-1)^2 = 1
            assert co.explain(function, A, *ARGUMENTS.get(call, ())).rules[0] == rule, what
        check_function(A, CALLS[call], what)


@pytest.mark.parametrize("name, dtype, batch", COMPILED)
def test_functions_under_jit(name, dtype, batch):
    import jax

    for what in (
        ("upper triangle", "reflection")
        if batch
        else ("permutation", "positive circulant", "low rank + c I")
    ):
        A = FUNCTIONS[what][0](Maker(name, dtype, batch))
        f = co.exp if batch else co.sqrt
        Y, Z = host(jax.jit(lambda A: f(A).to_dense())(A)), host(f(dense_like(A)))  # noqa: B023
        np.testing.assert_allclose(
            Y, Z, atol=3 * tolerance(host(A)) * max(1.0, float(np.abs(Z).max())), err_msg=what
        )
        assert np.iscomplexobj(Y) == (
            np.iscomplexobj(host(A)) or (f is co.sqrt and not A.isa(co.PSD))
        )


def test_functions_of_transposes():
    for dtype in ("float64", "complex128"):
        G = plain(Maker("numpy", dtype, ()).general(3))
        for A, rule in ((G.H, "adjoint"), (G.T, "transpose" if A_is_complex(G) else "adjoint")):
            for call, f in CALLS.items():
                check_function(A, f, call)
            has_cut = rule == "adjoint" and A_is_complex(G)  # there log(A^H) is not log(A)^H
            assert co.explain(co.log, A).rules[0] == ("logm" if has_cut else f"log_{rule}")
        check_function(G.conj(), co.exp, "exp")
        check_function(G.conj(), co.log, "log")
        for A in (
            co.Scaled(-0.5j, co.Circulant(np.arange(1.0, 6.0))),
            co.Scaled(2j, co.Permutation([1, 2, 0], like=np.ones(1))),
        ):
            for call, f in CALLS.items():
                check_function(A, f, call)
    # On the cut the branch is above it, for A as for A^H: log(-1) = iπ for both.
    negative = plain(co.Dense(np.array([[-1.0 + 0j, 1.0], [0.0, -2.0]])))
    for f in (co.log, co.sqrt):
        np.testing.assert_allclose(f(negative.H).to_dense(), host(f(host(negative.H))), atol=1e-8)


def A_is_complex(A: Any) -> bool:
    return bool(A.is_complex)


def test_results_keep_their_structure():
    rng = np.random.default_rng(0)
    c = np.eye(6)[0] * 4 + rng.standard_normal(6) / 4
    for f in (co.exp, co.log, co.sqrt, co.isqrt):
        assert isinstance(f(co.Circulant(c)), co.Circulant) and not f(co.Circulant(c)).is_complex
        assert isinstance(f(co.Convolution(c.reshape(2, 3), (4, 3))), co.Convolution)
        assert isinstance(f(co.Triangular(np.eye(3) + np.ones((3, 3)))), co.Triangular)
        assert isinstance(f(co.BlockDiag(co.PSD(np.eye(2)), np.eye(2) + 0.1)), co.BlockDiag)
    Q = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    assert isinstance(co.power(co.Projection(Q), 7), co.Projection) and isinstance(
        co.sqrt(co.Projection(Q)), co.Projection
    )
    assert isinstance(co.sqrt(co.LowRank(Q)), co.LowRank)
    P = co.Permutation([1, 2, 3, 4, 0])
    assert isinstance(co.power(P, 1000003), co.Permutation) and isinstance(
        co.power(P, -2), co.Permutation
    )
    np.testing.assert_array_equal(
        co.power(P, -2).to_dense(), np.linalg.matrix_power(P.to_dense().T, 2)
    )
    assert isinstance(
        co.log(co.Kronecker(co.PSD(np.eye(2) * 2), co.PSD(np.eye(3)))), co.KroneckerSum
    )
    batched = co.Dense(np.ones((2, 3, 3)))
    assert co.power(batched, 0).shape == (2, 3, 3)


def test_functions_are_found_without_building_the_matrix():
    rng, n = np.random.default_rng(0), 400
    P, S = (co.PSD(np.cov(rng.standard_normal((20, 60)))) for _ in range(2))
    operators = [
        co.LowRank(rng.standard_normal((n, 3))) + 2 * co.Identity(n),
        co.Projection(np.linalg.qr(rng.standard_normal((n, 3)))[0]) + 1.0 * co.Identity(n),
        co.Kronecker(P, S),
        co.Kronecker(P, S) + co.Identity(n),
        co.KroneckerSum(P, S),
        co.Circulant(np.eye(n)[0] * 30 + rng.standard_normal(n)),
        co.Permutation(np.roll(np.arange(399), 1).tolist() + [399]),
        co.BlockDiag(*[P] * 20),
    ]
    for A in operators:
        with forbid_dense(30 * n):
            x = rng.standard_normal(n)
            root = co.sqrt(A)
            y = root @ (root @ x)
            co.exp(0.01 * A) @ x
        np.testing.assert_allclose(y, A @ x, atol=1e-8)


# ---------------------------------------------------------------------------------------------------- bad input of the functions


def test_singular_structured_operators_are_flagged():
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((5, 2)))[0]
    singular = [
        co.Projection(Q),
        co.LowRank(Q),
        co.Circulant(np.array([1.0, -1.0, 0.0, 0.0])),
        co.Zero(3, 3),
        co.BlockDiag(co.PSD(np.diag([1.0, 0.0])), co.PSD(np.eye(2))),
        co.Kronecker(co.PSD(np.diag([1.0, 0.0])), co.PSD(np.eye(2))),
        co.Triangular(np.array([[0.0, 0.0], [1.0, 1.0]])),
        co.Scaled(2.0, co.PSD(np.diag([1.0, 0.0]))),
    ]
    for A in singular:
        for f in (co.log, co.isqrt, lambda A, **k: co.power(A, -1, **k)):
            with np.errstate(all="ignore"):
                _, info = f(A, info=True)
            assert info.status is Status.SINGULAR, (A, info)
    _, info = co.sqrt(singular[5], info=True)
    assert info.status is Status.SUCCESS


def test_nan_and_overflow_are_flagged():
    hole = np.array([1.0, np.nan, 2.0, 3.0])
    for A in (
        co.Diagonal(hole),
        co.Circulant(hole),
        co.Householder(hole),
        co.Projection(hole[:, None]),
        co.LowRank(hole[:, None]),
    ):
        for f in (co.eig, *CALLS.values())[
            : 1 if isinstance(A, (co.Householder, co.Projection)) else 4
        ]:
            with np.errstate(all="ignore"):
                assert f(A, info=True)[1].status is Status.NONFINITE, (f, A)
    for A in (co.Diagonal([1.0, 1000.0]), co.Circulant(np.array([1000.0, 0.0, 1.0]))):
        with np.errstate(all="ignore"):
            assert co.exp(A, info=True)[1].status is Status.NONFINITE


def test_a_defective_update_has_the_right_exponential():
    u, v = np.eye(5)[:, :1], np.eye(5)[:, 1:2]  # V^H U = 0
    for c in (0.0, 2.0):
        A = co.LowRank(u, v) + c * co.Identity(5)
        np.testing.assert_allclose(
            co.exp(A).to_dense(), np.exp(c) * (np.eye(5) + u @ v.T), atol=1e-12
        )
    np.testing.assert_allclose(
        co.sqrt(A).to_dense() @ co.sqrt(A).to_dense(), A.to_dense(), atol=1e-12
    )


def test_branches_are_the_principal_ones():
    import scipy.linalg

    rng = np.random.default_rng(0)
    swap = co.Permutation([1, 0], dtype=np.float64)
    np.testing.assert_allclose(
        co.sqrt(swap).to_dense(), scipy.linalg.sqrtm(swap.to_dense()), atol=1e-12
    )
    H = co.Householder(rng.standard_normal(4))
    root = co.sqrt(H).to_dense()
    assert np.iscomplexobj(root)
    np.testing.assert_allclose(root @ root, H.to_dense(), atol=1e-12)
    assert (np.linalg.eigvals(root).real > -1e-9).all()
    # real, even, of negative eigenvalues: log(-1) = +iπ for each of a pair
    C = co.Circulant(np.array([-2.0, 1.0, 0.0, 1.0]))
    np.testing.assert_allclose(
        co.sqrt(C - co.Identity(4)).to_dense(), host(co.sqrt(C.to_dense() - np.eye(4))), atol=1e-9
    )
    # (A ⊗ B)^(1/2) is not A^(1/2) ⊗ B^(1/2) off the positive axis.
    # a turn by 135 degrees
    R = np.array([[0.0, -1.0], [1.0, 0.0]]) * np.sqrt(0.5) + np.eye(2) * -np.sqrt(0.5)
    np.testing.assert_allclose(
        co.sqrt(co.Kronecker(R, R)).to_dense(), scipy.linalg.sqrtm(np.kron(R, R)), atol=1e-8
    )
    np.testing.assert_allclose(
        co.power(co.Kronecker(R, R), 0.5).to_dense(), scipy.linalg.sqrtm(np.kron(R, R)), atol=1e-8
    )


def test_an_extreme_shift_does_not_overflow():
    A = co.Dense(np.array([[-800.0, 1.0], [0.0, -801.0]])) + 800.0 * co.Identity(2)
    np.testing.assert_allclose(co.exp(A).to_dense(), host(co.exp(A.to_dense())))
    assert co.explain(co.exp, A).rules[0] != "exp_shifted"


def test_the_rules_are_not_ambiguous():
    for function in (co.eig, co.exp, co.log, co.sqrt, co.isqrt, co.power, co.apply):
        assert co.check_rules(function) == []


def test_the_largest_eigenvalues_of_an_inverse_that_iterates_are_found_with_it():
    """Not as the smallest of A, from products with A alone: the preconditioner that was given would not be used."""
    rng = np.random.default_rng(0)
    d = np.linspace(1.0, 1e4, 400) + 0.5
    A = co.Diagonal(d) + co.opaque(co.Dense(0.1 * rng.standard_normal((400, 400))))
    A_inverse = co.inv(A, co.GMRES(tol=1e-10, preconditioner=co.Diagonal(1 / d)))
    (values, _), info = co.eig(A_inverse, k=3, method=co.Arnoldi(), info=True)
    expected = 1 / np.sort_complex(np.linalg.eigvals(A.to_dense()))[:3]
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert info.status == Status.SUCCESS and info.matvecs < 100


# ---------------------------------------------------------------------------------------------------- parts and the whole


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_eigenvectors_of_a_kronecker_product_are_judged_together(framework):
    pytest.importorskip(framework)
    put = backends.get(framework).asarray
    J, other = (
        co.Dense(put(np.array([[2.0, 1.0], [1e-14, 2.0]]))),
        co.Dense(put(np.array([[1.0, 2.0], [0.5, 3.0]]))),
    )
    assert co.eig(J, info=True)[1].status is Status.SUCCESS
    few = framework == "jax"  # which compiles every one
    for make in (co.Kronecker, co.KroneckerSum)[: 1 if few else None]:
        for A in (make(J, J), make(J, J) + co.Identity(4), make(J, other))[: 1 if few else None]:
            whole = co.Dense(A.to_dense())
            expected = co.eig(whole, info=True)[1].status
            assert expected is (
                Status.SUCCESS if any(part is other for part in A.operands) else Status.INACCURATE
            )
            assert co.eig(A, info=True)[1].status is expected
            assert co.eig(A, 2, info=True)[1].status is expected
            assert co.apply(lambda z: z * z + 1, A, info=True)[1].status is expected


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_roots_and_logarithms_of_parts_that_are_not_positive_as_was_claimed_are_those_of_the_whole(
    framework,
):
    pytest.importorskip(framework)
    put = backends.get(framework).asarray
    N = co.PSD(put(np.array([[1.0, 2.0], [2.0, 1.0]])))
    for f in (
        co.log,
        co.sqrt,
        co.isqrt,
        lambda A, **k: co.power(A, 0.5, **k),
        lambda A, **k: co.power(A, -1.5, **k),
    ):
        for A in (co.Kronecker(N, N), co.inv(N)):
            found, info = f(A, info=True)
            assert info.status is Status.FELL_BACK
            np.testing.assert_allclose(host(found), host(f(co.Dense(A.to_dense()))), atol=1e-13)


def test_pairs_of_a_self_adjoint_permutation_are_real():
    A = co.SelfAdjoint(co.Permutation([1, 0, 2]))
    values, vectors = co.eig(A)
    V = vectors.to_dense()
    assert V.dtype == np.float64 and np.allclose(values, [-1, 1, 1])
    assert np.allclose(A.to_dense() @ V, V * values)
