"""The rules of `slogdet`, and `logdet` and `det` that are read off it: each against NumPy, that it fired, and at size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from support.settings import SETTINGS, Maker, both

import colinear as co
from colinear import backends
from colinear.functions.determinant import sums
from colinear.functions.solve.compositions import cheapest_first, has_a_cheap_pivot, pivot_costs
from colinear.methods import structured
from colinear.methods.structured import toeplitz_slogdet
from colinear.status import Status
from colinear.testing import forbid_dense

I = co.Identity


def herm(r: Maker, n: int) -> Any:
    return r.spd(n, -4.0)


def positive(r: Maker, n: int) -> Any:
    return co.PSD(co.Diagonal(r.xp.asarray((np.abs(r.xp.to_numpy(r(n))) + 1).astype(r.dtype))))


RULES: dict[str, Callable[[Maker], Any]] = {
    "slogdet_zero": lambda r: co.Zero(3, 3, like=r(1)),
    "slogdet_projection": lambda r: co.Projection(r.stiefel(4, 2)),
    "slogdet_householder": lambda r: co.Householder(r(4)),
    "slogdet_fft": lambda r: co.FFT((3, 4), like=r(1)),
    "slogdet_of_low_rank": lambda r: co.LowRank(r(4, 2), r(4, 2)),
    "sum_of_low_ranks": lambda r: co.BatchSum(co.LowRank(r(3, 4, 1)), -1),
    "slogdet_circulant": lambda r: co.Circulant(r(5)),
    "slogdet_convolution": lambda r: co.Convolution(r(3, 2), (3, 4), centered=True),
    "matrix_of_line": lambda r: co.Convolution(r(3), 9, boundary="zero", centered=True),
    "slogdet_tridiagonal": lambda r: co.Tridiagonal(r(4), r(5), r(4)),
    "slogdet_banded": lambda r: co.Banded([r(20), r(19), r(18)], [0, -1, 2], (20, 20)),
    "slogdet_sparse": lambda r: r.sparse(9, 9) + co.Diagonal(r(9)),
    "slogdet_block_triangular": lambda r: co.Block([[r(2, 2), None], [r(3, 2), co.Toeplitz(r(3), r(3))]]),
    "slogdet_block": lambda r: co.Block(
        [[r(2, 2), r(2, 4), r(2, 1)], [r(4, 2), co.Diagonal(r(4)), None], [r(1, 2), r(1, 4), r(1, 1)]]
    ),
    "determinant_lemma": lambda r: co.Diagonal(r(6)) + co.LowRank(r(6, 2), r(6, 2)),
    "determinant_lemma_of_sum": lambda r: co.Tridiagonal(r(5), r(6) + 6, r(5)) + co.LowRank(r(6, 2), r(6, 2)),
    "sum_of_toeplitz": lambda r: co.Circulant(r(5)) + 2.0 * I(5),
    "slogdet_shifted_multiple": lambda r: -2.0 * co.Kronecker(r(2, 2), r(3, 3)) + 3.0 * I(6),
    "slogdet_shifted_projection": lambda r: 2.0 * co.Projection(r.stiefel(4, 2)) - 3.0 * I(4),
    "slogdet_shifted_similarity": lambda r: (Q := co.Unitary(r.stiefel(3, 3))) @ co.Diagonal(r(3)) @ Q.H + 2.0 * I(3),
    "slogdet_kronecker_sum": lambda r: co.KroneckerSum(co.Dense(r(2, 2)), r(3, 3), co.Diagonal(r(2))),
    "slogdet_shifted_kronecker": lambda r: co.Kronecker(r(2, 2), r(3, 3)) - 0.5 * I(6),
    "slogdet_two_kroneckers": lambda r: co.Kronecker(herm(r, 2), r(3, 3)) - 2.0 * co.Kronecker(positive(r, 2), co.Diagonal(r(3))),
}  # fmt: skip


def agree(A: Any, found: Any, dense: Any) -> None:
    """Sign, logarithm and dtypes as NumPy has them for the matrix in double precision."""
    xp, (sign, logarithm) = A.xp, found
    expected = np.linalg.slogdet(np.asarray(dense, np.complex128 if A.is_complex else np.float64))
    assert tuple(sign.shape) == tuple(logarithm.shape) == A.batch_shape
    assert sign.dtype == A.dtype and logarithm.dtype == xp.real_dtype(A.dtype)
    sign, logarithm = (np.asarray(xp.to_numpy(xp.asarray(x))) for x in (sign, logarithm))
    # singular, but for rounding in NumPy
    if isinstance(A, (co.LowRank, co.BatchSum, co.Projection)):
        assert np.all(sign == 0) and np.all(logarithm == -np.inf)
        return
    tol = 3000 * xp.eps(A.dtype)
    np.testing.assert_allclose(sign, expected[0], atol=tol)
    np.testing.assert_allclose(logarithm, expected[1], atol=tol, rtol=tol)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_determinant_is_that_of_the_matrix(rule, name):
    for setting in (s for s in SETTINGS if s[0] == name):
        A, found, dense = both(co.slogdet, RULES[rule], setting)
        agree(A, found, dense)
        if name != "jax":
            assert rule in co.explain(co.slogdet, A).rules


def test_host_factorisations_take_arrays_of_jax():
    r = Maker("jax", "float32", (2,))
    for A in (co.Tridiagonal(r(4), r(5), r(4)), co.Banded([r(20), r(19)], [0, -1]), r.sparse(5, 5)):
        agree(A, co.slogdet(A), A.to(backend="numpy").to_dense())


def test_kronecker_sums_of_self_adjoint_factors_have_real_determinants():
    for setting in (s for s in SETTINGS if s[0] != "jax"):
        r = Maker(*setting)
        T = co.SelfAdjoint(
            co.Tridiagonal(e := r.xp.asarray(np.ones(2)), 3 * r.xp.asarray(np.ones(3)), e)
        )
        for A in (
            co.KroneckerSum(herm(r, 2), herm(r, 3)),
            co.Kronecker(herm(r, 2), herm(r, 3)) + 0.5 * I(6),
            co.KroneckerSum(T, T),
        ):
            agree(A, co.slogdet(A), A.xp.to_numpy(A.to_dense()))
    _, info = co.slogdet(
        co.KroneckerSum(co.SelfAdjoint(np.triu(np.ones((2, 2)))), np.eye(2)), info=True
    )
    assert info.status is Status.INACCURATE  # a false claim


def test_rules_are_unambiguous():
    assert co.check_rules(co.slogdet) == co.check_rules(co.logdet) == co.check_rules(co.det) == []


# ---------------------------------------------------------------------------------------------------- signs


def test_fourier_determinants_of_all_residues():
    for n in range(1, 13):
        for F in (co.FFT(n), co.FFT(n).H, co.FFT((n, 3))):
            np.testing.assert_allclose(
                co.slogdet(F)[0], np.linalg.slogdet(F.to_dense())[0], atol=1e-12
            )


def test_circulant_signs_are_exact(rng):
    for n in (1, 2, 3, 4, 101, 102):
        for _ in range(4):
            A = co.Circulant(rng.standard_normal(n))
            assert co.slogdet(A)[0] == np.linalg.slogdet(A.to_dense())[0]


def test_pivoted_eliminations_keep_the_sign(rng):
    for n in (1, 2, 3, 4, 7, 30):
        lower, upper = rng.standard_normal((2, max(n - 1, 0)))
        T = co.Tridiagonal(lower, np.zeros(n) if n % 2 == 0 else rng.standard_normal(n) / 10, upper)
        B = co.Banded(
            [rng.standard_normal(n + 2), *rng.standard_normal((2, n))], [0, 2, -2], (n + 2, n + 2)
        )
        S = co.Sparse(scipy.sparse.csr_array(B.to_dense()[rng.permutation(n + 2)]))
        for A in (T, B, S):
            sign, logarithm = np.linalg.slogdet(A.to_dense())
            found = co.slogdet(A)
            assert found[0] == sign
            np.testing.assert_allclose(found[1], logarithm, rtol=1e-10, atol=1e-10)


def test_singular_ones_give_zero_and_minus_infinity():
    ones = np.ones(3)
    singular = [
        co.Tridiagonal(ones[:2], np.array([1.0, 2.0, 1.0]), ones[:2]),
        co.Tridiagonal(ones[:1], ones[:2], ones[:1]),
        co.Banded([ones, 0 * ones[:2]], [0, 1], (3, 3)) - I(3),
        co.Sparse(scipy.sparse.csr_array(np.diag([1.0, 0.0, 2.0]))),
        co.Circulant(ones),
        co.Block([[np.ones((2, 2)), np.ones((2, 1))], [np.ones((1, 2)), None]]),
        co.Dense(np.ones((3, 2))) @ co.Dense(np.ones((2, 3))),
    ]
    for A in singular:
        sign, logarithm = co.slogdet(A)
        assert sign == 0 and logarithm == -np.inf, A
        assert co.det(A) == 0
    assert co.slogdet(co.Zero(0, 0)) == (1, 0)


def test_singular_corners_and_rests_do_not_spoil_the_whole(rng):
    saddle = co.Block(
        [[np.zeros((2, 2)), rng.standard_normal((2, 2))], [rng.standard_normal((2, 2)), None]]
    )
    rest = co.Tridiagonal(np.ones(5), np.r_[1.0, 2, 2, 2, 2, 1], np.ones(5)) + co.LowRank(
        rng.standard_normal((6, 1))
    )
    for A in (saddle, rest, co.Diagonal([0.0, 1, 2, 3]) + co.LowRank(rng.standard_normal((4, 1)))):
        (sign, logarithm), info = co.slogdet(A, info=True)
        expected = np.linalg.slogdet(A.to_dense())
        assert sign == expected[0] and not info.status.is_failure
        np.testing.assert_allclose(logarithm, expected[1], rtol=1e-8)


# ---------------------------------------------------------------------------------------------------- Toeplitz


def test_toeplitz_elimination_agrees_with_lu(rng):
    for n in (1, 2, 5, 40, 600):
        for dtype in (float, complex):
            col, row = Maker("numpy", np.dtype(dtype).name, ())(2, n)
            row[0] = col[0]
            sign, logarithm, reliable = toeplitz_slogdet(col, row)
            expected = np.linalg.slogdet(scipy.linalg.toeplitz(col, row))
            np.testing.assert_allclose(sign, expected[0], atol=1e-8)
            np.testing.assert_allclose(logarithm, expected[1], atol=1e-8 * n)
            assert reliable


def test_large_toeplitz_is_eliminated_without_its_matrix(rng):
    n = 1200
    decay = 0.7 ** np.arange(n)  # the inverse is tridiagonal: det = (1 - 0.49)^(n - 1)
    for name in ("numpy", "torch"):
        A = co.Toeplitz(backends.get(name).asarray(decay))
        with forbid_dense(limit=10 * n):
            sign, logarithm = co.slogdet(A)
        assert float(sign) == 1
        np.testing.assert_allclose(float(logarithm), (n - 1) * np.log(0.51), rtol=1e-11)
    assert co.explain(co.slogdet, A).rules == ["slogdet_toeplitz"]


# ---------------------------------------------------------------------------------------------------- at size


def test_large_determinants_form_no_matrix():
    n = 3000
    r = Maker("numpy", "float64", ())
    T = co.Tridiagonal(-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1))
    L = scipy.sparse.diags_array(
        [-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], offsets=[-1, 0, 1]
    )
    exact = np.log(n + 1.0)
    corner = co.Block([[co.Diagonal(np.full(n, 2.0)), r(n, 3)], [r(3, n), np.eye(3)]])
    cases = [
        (T, exact),
        (co.Banded([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], [-1, 0, 1]), exact),
        (co.Sparse(L), exact),
        (co.PSD(co.Sparse(L)), exact),
        (co.Convolution(np.array([-1.0, 2.0, -1.0]), n, boundary="zero", centered=True), exact),
        (
            T + co.LowRank(u := r(n, 2)),
            exact + np.linalg.slogdet(np.eye(2) + u.T @ co.solve(T, u))[1],
        ),
        (co.BlockDiag(T, T), 2 * exact),
        (co.Block([[T, co.Diagonal(r(n))], [None, T]]), 2 * exact),
        (
            corner,
            n * np.log(2)
            + np.linalg.slogdet(np.eye(3) - corner.blocks[1][0].A @ corner.blocks[0][1].A / 2)[1],
        ),
    ]
    for A, expected in cases:
        with forbid_dense(limit=10 * n):
            np.testing.assert_allclose(co.logdet(A), expected, rtol=1e-9)


def test_positive_sparse_claims_are_checked(rng):
    indefinite = scipy.sparse.csr_array(np.kron(np.eye(20), [[1e-30, 1.0], [1.0, 1e-30]]))
    sign, logarithm = co.slogdet(co.PSD(co.Sparse(indefinite)))
    assert sign == 1 and abs(logarithm) < 1e-12  # (-1)^20


# ---------------------------------------------------------------------------------------------------- transformations


def test_tridiagonal_determinant_under_jit_and_derivatives():
    import jax
    import torch

    r = Maker("jax", "float64", ())
    T = co.Tridiagonal(r(6), r(7), r(6))
    sign, logarithm = jax.jit(co.slogdet)(T)
    expected = np.linalg.slogdet(np.asarray(T.to_dense()))
    assert float(sign) == expected[0]
    np.testing.assert_allclose(logarithm, expected[1], rtol=1e-10)
    d = torch.tensor(np.asarray(T.diag))
    lower, upper = (torch.tensor(np.asarray(x)) for x in (T.lower, T.upper))
    gradient = torch.func.grad(lambda d: co.logdet(co.Tridiagonal(lower, d, upper)))(d)
    np.testing.assert_allclose(
        gradient, np.diag(np.linalg.inv(np.asarray(T.to_dense()))), rtol=1e-9
    )
    long = co.Tridiagonal(
        *(
            backends.get("jax").asarray(x)
            for x in (-np.ones(999), np.full(1000, 2.0), -np.ones(999))
        )
    )
    np.testing.assert_allclose(jax.jit(co.logdet)(long), np.log(1001.0), rtol=1e-9)


def test_structured_determinants_under_jit():
    import jax

    r = Maker("jax", "float64", ())
    operators = [
        co.Block([[co.Diagonal(r(3)), r(3, 2)], [r(2, 3), r(2, 2)]]),
        co.Tridiagonal(r(5), r(6) + 4, r(5)) + co.LowRank(r(6, 1)),
        co.Banded([r(5), r(6), r(4)], [1, 0, -2], (6, 6)),
        co.KroneckerSum(co.Dense(r(2, 2)), r(2, 2)),
    ]
    found = jax.jit(lambda operators: [co.slogdet(A) for A in operators])(operators)
    for A, (sign, logarithm) in zip(operators, found, strict=True):
        expected = np.linalg.slogdet(np.asarray(A.to_dense()))
        np.testing.assert_allclose([sign, logarithm], expected, rtol=1e-9)


def test_bad_input_is_refused(rng):
    low_rank, wide = (
        co.LowRank(np.ones((3, 1)), np.ones((2, 1))),
        co.hstack(np.ones((2, 2)), np.ones((2, 1))),
    )
    wide = [co.Toeplitz(np.ones(3), np.ones(2)), low_rank, co.Zero(3, 2), wide]
    for A in [
        *wide,
        co.Sparse(scipy.sparse.csr_array(np.ones((3, 2)))),
        co.Banded([np.ones(2)], [0], (2, 3)),
    ]:
        for f in (co.slogdet, co.logdet, co.det):
            with pytest.raises(co.ShapeError, match="needs a square operator"):
                f(A)
    for A in (co.Tridiagonal([1.0], [np.nan, 1.0], [1.0]), co.Circulant([np.nan, 1.0])):
        _, info = co.slogdet(A, info=True)
        assert info.status is Status.NONFINITE


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_eigenvalues_of_defective_factors_are_not_judged_by_eigenvectors_that_are_not_needed(
    framework,
):
    pytest.importorskip(framework)
    put = backends.get(framework).asarray
    D, T = (
        co.Dense(put(np.array([[1.0, 0.3], [0.2, 2.0]]))),
        co.Triangular(put(np.array([[2.0, 0.0], [1.0, 2.0]]))),
    )
    nilpotent = co.LowRank(
        put(np.array([[1.0], [0.0], [0.0]])), put(np.array([[0.0], [1.0], [0.0]]))
    )
    few = framework == "jax"  # which compiles every one
    for factor in (T, T + co.Identity(2), co.inv(T), nilpotent, co.Kronecker(T, T), T @ T)[
        : 1 if few else None
    ]:
        n = 2 * factor.shape[-1]
        weights = co.Diagonal(put(np.arange(1.0, n / 2 + 1)))
        operators = [
            co.Kronecker(D, factor) + co.Identity(n),
            co.KroneckerSum(D, factor),
            co.Kronecker(D, factor) + co.Kronecker(D, weights),
        ]
        for A in operators[: 1 if few else None]:
            found, info = co.logdet(A, info=True)
            assert info.status is Status.SUCCESS
            assert float(found) == pytest.approx(
                np.linalg.slogdet(np.asarray(A.to_dense()))[1], rel=1e-12, abs=1e-12
            )


def test_a_wrong_claim_of_a_kronecker_factor_is_still_reported():
    wrong = co.SelfAdjoint(np.array([[2.0, 1.0], [0.0, 2.0]]))
    assert co.logdet(co.KroneckerSum(wrong, np.eye(2)), info=True)[1].failed


def test_zero_times_a_complex_matrix_has_determinant_zero_without_a_warning():
    A = co.Scaled(0.0, co.Dense(np.array([[0.1 - 0.5j, 1j], [0.6, 0.1]])))
    sign, logarithm = co.slogdet(A)
    assert sign == 0 and logarithm == -np.inf and co.det(A) == 0


def test_a_factor_that_occurs_twice_is_looked_at_once(rng, monkeypatch):
    looked_at = []

    def eigenvalues(A):
        looked_at.append(A)
        return found(A)

    found = sums.eigenvalues
    monkeypatch.setattr(sums, "eigenvalues", eigenvalues)
    G = rng.normal(size=(3, 3))
    K, D = co.PSD(G @ G.T), co.Dense(G)
    A = co.Kronecker(K, D, K) + 0.5 * co.Identity(27)
    expected = np.linalg.slogdet(A.to_dense())
    assert np.allclose(co.slogdet(A), expected)
    assert len(looked_at) == 2


def test_a_grid_of_many_dense_blocks_is_eliminated_without_nesting(monkeypatch):
    rng, k, products, multiply = np.random.default_rng(0), 8, [], co.Dense._matmat
    dense = 0.1 * rng.standard_normal((6 * k, 6 * k)) + 3 * np.eye(6 * k)
    cut = [slice(6 * i, 6 * i + 6) for i in range(k)]
    A = co.Block([[co.Dense(dense[i, j]) for j in cut] for i in cut])
    monkeypatch.setattr(co.Dense, "_matmat", lambda A, X: products.append(A) or multiply(A, X))
    sign, logarithm = co.slogdet(A)
    assert len(products) < 2 * k**3  # it was 3^k
    np.testing.assert_allclose((sign, logarithm), np.linalg.slogdet(dense), rtol=1e-12)


# ---------------------------------------------------------------------------------------------------- growth


def grid(r: Maker, m: int, k: int, band: int) -> Any:
    """m x m matrices of k x k, those further than `band` from the diagonal zero."""
    pairs = [[abs(i - j) for j in range(m)] for i in range(m)]
    return co.Block([[r(k, k) if far <= band else None for far in row] for row in pairs])


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_many_small_blocks_are_factored_as_one_matrix(name):
    for setting in (s for s in SETTINGS if s[0] == name):
        for m, k, band in ((3, 2, 3), (12, 2, 12), (12, 2, 1)):
            A, found, dense = both(co.slogdet, lambda r, g=(m, k, band): grid(r, *g), setting)
            agree(A, found, dense)
            assert co.explain(co.slogdet, A).rules == ["LU"]
            assert co.explain(co.inv, A).rules == ["LU"]


def test_choosing_a_block_looks_at_each_block_a_few_times(monkeypatch):
    r = Maker("numpy", "float64", ())
    asked, find = [], type(co.inv).find
    monkeypatch.setattr(
        type(co.inv), "find", lambda f, B, *more: asked.append(B) or find(f, B, *more)
    )
    for m in (8, 16):
        A = grid(r, m, 40, 1)  # large enough for elimination, which zeros make cheap
        asked.clear()
        assert has_a_cheap_pivot(A) and len(cheapest_first(pivot_costs(A.blocks))) == 3 * m - 2
        assert len(asked) <= 2 * m * m
    agree(A, co.slogdet(A), A.to_dense())
    assert "slogdet_block" in co.explain(co.slogdet, A).rules


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_bands_of_a_batch_are_eliminated_by_one_call(name, monkeypatch):
    calls, lapack = [], structured._lapack
    monkeypatch.setattr(structured, "_lapack", lambda *a: calls.append(a) or lapack(*a))
    for setting in (s for s in SETTINGS if s[0] == name):
        r = Maker(setting[0], setting[1], (3, 4))
        for A in (
            co.Tridiagonal(r(5), r(6) / 4, r(5)),
            co.Tridiagonal(r(1), r(2), r(1)),
            co.Tridiagonal(r(0), r(1), r(0)),
            co.Banded([r(20), r(19), r(18)], [0, -1, 2], (20, 20)),
        ):
            calls.clear()
            found = co.slogdet(A)
            assert len(calls) == 1
            agree(A, found, A.xp.to_numpy(A.to_dense()))


def test_one_matrix_of_a_batch_does_not_spoil_the_others(rng):
    lower, upper, d = *rng.normal(size=(2, 5, 6)), rng.normal(size=(5, 7))
    d[1], lower[1], d[3, 6], d[4, 0] = 0.0, 0.0, np.nan, np.inf
    for A in (co.Tridiagonal(lower, d, upper), co.Banded([lower, d, upper], [-1, 0, 1])):
        (sign, logarithm), info = co.slogdet(A, info=True)
        assert info.status is Status.NONFINITE and sign[1] == 0 and logarithm[1] == -np.inf
        for i in (0, 2):
            expected = np.linalg.slogdet(A.to_dense()[i])
            np.testing.assert_allclose((sign[i], logarithm[i]), expected, rtol=1e-12)


def _grid(dtype: Any, is_positive: bool) -> tuple[Any, Any]:
    """Values and pattern of a sparse matrix of 225 rows."""
    line = scipy.sparse.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(15, 15))
    eye = scipy.sparse.eye_array(15)
    S = co.Sparse(
        scipy.sparse.csr_array(scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line))
    )
    noise = np.random.default_rng(0).standard_normal((2, S.nnz))
    data = S.data if is_positive else S.data + noise[0]
    return (data + 1j * noise[1] * (not is_positive) if dtype is complex else data).astype(
        dtype
    ), S.structure


@pytest.mark.parametrize("dtype", (float, complex))
@pytest.mark.parametrize("is_positive", (True, False))
def test_gradient_of_a_sparse_logdet_forms_no_matrix_in_torch(dtype, is_positive):
    torch = pytest.importorskip("torch")
    data, structure = _grid(dtype, is_positive)
    rows, columns = (torch.tensor(x.astype(int)) for x in (structure.rows, structure.columns))

    def ours(data: Any) -> Any:
        A = co.Sparse.from_parts(data, structure)
        return co.logdet(co.PD(A) if is_positive else A)

    def dense(data: Any) -> Any:
        return torch.linalg.slogdet(
            torch.zeros(225, 225, dtype=data.dtype).index_put((rows, columns), data)
        )[1]

    def derivatives(loss: Any) -> tuple[Any, Any]:
        x = torch.tensor(data, requires_grad=True)
        first = torch.autograd.grad(loss(x), x, create_graph=True)[0]
        weights = torch.linspace(-1, 1, len(x), dtype=torch.float64)
        return first.detach(), torch.autograd.grad((first * weights).real.sum(), x)[0]

    x = torch.tensor(data, requires_grad=True)
    assert "slogdet_sparse" in co.explain(co.logdet, co.Sparse.from_parts(x, structure)).rules
    with forbid_dense(225 * 225 - 1):
        found = derivatives(ours)
    for a, b in zip(found, derivatives(dense), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)
    if dtype is float:
        two = torch.stack([x.detach(), 2 * x.detach()])
        torch.testing.assert_close(
            torch.func.vmap(torch.func.grad(ours))(two),
            torch.func.vmap(torch.func.grad(dense))(two),
        )


@pytest.mark.parametrize("dtype", (float, complex))
@pytest.mark.parametrize("is_positive", (True, False))
def test_gradient_of_a_sparse_logdet_forms_no_matrix_in_jax(dtype, is_positive):
    jax = pytest.importorskip("jax")
    data, structure = _grid(dtype, is_positive)
    data = jax.numpy.asarray(data)
    tol = 1e-8 if data.dtype.itemsize >= 8 * (1 + (dtype is complex)) else 2e-3

    def ours(data: Any) -> Any:
        A = co.Sparse.from_parts(data, structure)
        return co.logdet(co.PD(A) if is_positive else A)

    def dense(data: Any) -> Any:
        M = jax.numpy.zeros((225, 225), data.dtype).at[structure.rows, structure.columns].set(data)
        return jax.numpy.linalg.slogdet(M)[1]

    with forbid_dense(225 * 225 - 1):
        value, gradient = jax.jit(jax.value_and_grad(ours))(data)
        each = jax.vmap(jax.grad(ours))(jax.numpy.stack([data, 2 * data]))
        _, second = jax.jvp(jax.grad(ours), (data,), (data,))
    for a, b in (
        (value, dense(data)),
        (gradient, jax.grad(dense)(data)),
        (each[1], gradient / 2),
        (second, -gradient),  # the gradient is homogeneous of degree -1
    ):
        np.testing.assert_allclose(a, b, rtol=tol, atol=tol)


def test_gradient_of_a_singular_sparse_logdet_is_no_number():
    torch = pytest.importorskip("torch")
    data, structure = _grid(float, True)
    x = torch.tensor(np.where(structure.rows == 7, 0, data), requires_grad=True)
    with pytest.warns(co.DerivativeWarning):
        value = co.logdet(co.Sparse.from_parts(x, structure))
    assert float(value.detach()) == -np.inf
    assert torch.autograd.grad(value, x)[0].isnan().all()


def test_a_named_method_is_not_used_on_a_part_that_a_formula_leaves_whole():
    """The sum without its low-rank term is singular, so the lemma gives way to the matrix: LDL, for the
    Gram matrix, was run on its factor, which is not self-adjoint."""
    rng = np.random.default_rng(0)
    U, V = rng.standard_normal((2, 4, 2))
    corner = co.Householder(np.array([1.0, 2.0]))
    rest = co.BlockDiag(corner, co.Zero(2, 2))
    B = rest + co.LowRank(U, V)
    for A in (co.Product(B.H, B), co.Product(B, B.H)):
        value, info = co.det(A, co.LDL(), info=True)
        assert not info.failed
        np.testing.assert_allclose(value, np.linalg.det(A.to_dense()), rtol=1e-9)
        assert co.explain(co.det, A, method=co.LDL()).rules[-1] == "LDL"


def test_tridiagonals_with_a_real_diagonal_and_complex_neighbours_in_programs() -> None:
    rng = np.random.default_rng(0)
    lower, upper = rng.normal(size=(2, 5)) + 1j * rng.normal(size=(2, 5))
    d = rng.normal(size=6)
    T = np.diag(lower, -1) + np.diag(d) + np.diag(upper, 1)
    expected, inverse = np.linalg.slogdet(T)[1], np.diag(np.linalg.inv(T))
    torch = pytest.importorskip("torch")
    x = torch.tensor(d, requires_grad=True)
    A = co.Tridiagonal(torch.as_tensor(lower), x, torch.as_tensor(upper))
    value = co.slogdet(A)[1]
    np.testing.assert_allclose(value.item(), expected)
    np.testing.assert_allclose(torch.autograd.grad(value, x)[0], inverse.real)
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        B = co.Tridiagonal(*map(jax.numpy.asarray, (lower, d, upper)))
        found = jax.jit(lambda B: (co.slogdet(B)[1], co.diag(co.inv(B))))(B)
    np.testing.assert_allclose(found[0], expected)
    np.testing.assert_allclose(found[1], inverse)
