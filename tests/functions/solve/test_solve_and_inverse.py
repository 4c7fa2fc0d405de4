"""`inv` and `solve`: the chain of factorisations, what it reports, and the rules."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.linalg
from support.frameworks import arrays, close, eager, host, normal, spd

from colinear.errors import ConvergenceError, ConvergenceWarning, MethodError, ShapeError
from colinear.factors.inverse import Inverse
from colinear.functions import inv, logdet, slogdet, solve
from colinear.methods import LDL, LU, QR, SVD, Auto, Cholesky
from colinear.operators import (
    BlockDiag,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LowRank,
    Permutation,
    Product,
    Scaled,
    ScaledIdentity,
    Sum,
    Triangular,
    opaque,
)
from colinear.properties import PSD, SelfAdjoint, Unitary
from colinear.status import Status


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_every_class_of_matrix_is_solved_on_every_framework(rng, dtype):
    n, tol = 6, 1e-3 if np.finfo(dtype).eps > 1e-10 else 1e-9
    general, positive = (
        normal(rng, (n, n), dtype) + 4 * np.eye(n, dtype=dtype),
        spd(rng, n, dtype=dtype),
    )
    indefinite = positive - 3 * np.eye(n, dtype=dtype)
    cases = [
        (general, lambda A: A, "LU"),
        (positive, PSD, "Cholesky"),
        (indefinite, SelfAdjoint, "LDL"),
    ]
    for xp in arrays() if dtype is np.float64 else eager():
        for A, annotate, method in cases:
            for b in (
                normal(rng, (n,), dtype),
                normal(rng, (n, 3), dtype),
                normal(rng, (2, n, 3), dtype),
            ):
                x, info = solve(annotate(xp.asarray(A)), xp.asarray(b), info=True)
                expected = (
                    np.linalg.solve(A, b[:, None])[:, 0] if b.ndim == 1 else np.linalg.solve(A, b)
                )
                close(x, expected, tol)
                assert xp.dtype_name(x.dtype) == np.dtype(dtype).name
                assert info.status is Status.SUCCESS and info.method == method
                assert (
                    host(info.residual).shape == expected.shape[:-2] + expected.shape[-1:]
                    if b.ndim > 1
                    else True
                )
                assert host(info.residual).max() < tol


def test_explicit_methods_agree_with_numpy_and_keep_exact_transposes(rng):
    n = 5
    for dtype in (np.float64, np.complex128):
        A = spd(rng, 3, n, dtype=dtype)
        general = normal(rng, (3, n, n), dtype)
        for xp in eager():
            for method, M in ((Cholesky(), A), (LDL(), A), (LU(), general), (QR(), general)):
                inverse = inv(xp.asarray(M), method)
                expected = np.linalg.inv(M)
                close(inverse, expected)
                close(inverse.T, np.swapaxes(expected, -1, -2))
                close(inverse.H, np.swapaxes(expected, -1, -2).conj())
                close(inverse.conj(), expected.conj())
                close(inverse.T.H, expected.conj())
                close(inverse.H.conj().T, expected)
                close(inverse.T.conj(), np.swapaxes(expected, -1, -2).conj())
                b = normal(rng, (n, 2), dtype)
                close(inverse.H @ xp.asarray(b), np.swapaxes(expected, -1, -2).conj() @ b)


def test_a_false_psd_claim_falls_back_and_says_so(rng):
    n = 5
    symmetric = spd(rng, n)
    lies = {
        "indefinite": symmetric - 3 * np.eye(n),
        "not symmetric": symmetric + np.triu(normal(rng, (n, n)), 1),
    }
    b = normal(rng, (n,))
    for xp in eager():
        for A in lies.values():
            x, info = solve(PSD(xp.asarray(A)), xp.asarray(b), info=True)
            close(x, np.linalg.solve(A, b))
            assert info.status is Status.FELL_BACK and "Cholesky failed" in info.message
            inverse, info = inv(PSD(xp.asarray(A)), info=True)
            close(inverse @ xp.asarray(b), np.linalg.solve(A, b))
            assert info.status is Status.FELL_BACK
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                solve(PSD(xp.asarray(A)), xp.asarray(b))


def test_pivot_growth_that_spoils_lu_is_noticed_and_qr_takes_over():
    n = 60  # Wilkinson's matrix: elements grow by 2^(n-1)
    A = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    A[:, -1] = 1
    b = np.random.default_rng(0).standard_normal(n)
    for xp in eager():
        x, info = solve(xp.asarray(A), xp.asarray(b), info=True)
        assert host(info.residual).max() < 1e-8
        assert np.linalg.norm(A @ host(x) - b) < 1e-8 * np.linalg.norm(b)
        inverse, info = inv(xp.asarray(A), info=True)
        assert info.status is Status.FELL_BACK and info.method == "QR"
        close(inverse @ xp.asarray(b), scipy.linalg.lstsq(A, b)[0], 1e-7)


@pytest.mark.parametrize(
    "annotate", [lambda A: A, SelfAdjoint, PSD], ids=["general", "self-adjoint", "PSD"]
)
def test_singular_systems_are_reported_never_silent(annotate):
    nearly = np.outer([1.0, 2, 3], [1.0, 2, 3]) + np.outer([1.0, 0, -1], [1.0, 0, -1])
    b = np.array([1.0, 0.0, 0.0])
    for xp in arrays():
        for A in (np.ones((2, 2)), np.zeros((3, 3)), nearly):
            right_side = xp.asarray(b[: len(A)])
            for right in (right_side, 0 * right_side):
                _, info = solve(annotate(xp.asarray(A)), right, info=True)
                assert info.status is Status.SINGULAR, (xp.name, A, info)
            with pytest.warns(ConvergenceWarning, match="SINGULAR"):
                x = solve(annotate(xp.asarray(A)), right_side)
            assert np.isfinite(host(x)).all()  # the basic solution of pivoted QR
            with pytest.warns(ConvergenceWarning, match="lstsq or pinv"):
                inv(annotate(xp.asarray(A)))
            with pytest.raises(ConvergenceError) as caught:
                solve(annotate(xp.asarray(A)), right_side, on_failure="raise")
            assert caught.value.info.status is Status.SINGULAR


def test_named_methods_are_not_replaced_but_their_failure_is_flagged(rng):
    indefinite = np.diag([1.0, -1.0, 2.0])
    for xp in arrays():
        _, info = solve(xp.asarray(indefinite), xp.ones((3,)), Cholesky(), info=True)
        assert info.status is Status.NOT_POSITIVE_DEFINITE and info.method == "Cholesky"
        _, info = solve(
            xp.asarray(np.triu(np.full((9, 9), 3.0))), xp.ones((9,)), Cholesky(), info=True
        )
        assert info.status is Status.INACCURATE  # Cholesky saw the lower triangle only, 3 I
        _, info = solve(xp.asarray(np.ones((3, 3))), xp.ones((3,)), LU(), info=True)
        assert info.status is Status.SINGULAR


def test_nan_and_infinity_are_reported(rng):
    good = spd(rng, 3)
    for xp in eager():
        for value in (np.nan, np.inf):
            A = good.copy()
            A[1, 1] = value
            for annotate in (PSD, SelfAdjoint, lambda A: A):
                _, info = solve(annotate(xp.asarray(A)), xp.ones((3,)), info=True)
                assert info.status is Status.NONFINITE, (xp.name, info)
            _, info = solve(xp.asarray(good), xp.asarray([1.0, value, 0.0]), info=True)
            assert info.status is Status.NONFINITE
            _, info = solve(Diagonal(xp.asarray([1.0, value])), xp.ones((2,)), info=True)
            assert info.status is Status.NONFINITE
        _, info = inv(Diagonal(xp.asarray([1.0, 0.0])), info=True)
        assert info.status is Status.SINGULAR
        _, info = inv(Triangular(xp.asarray([[1.0, 0.0], [1.0, 0.0]])), info=True)
        assert info.status is Status.SINGULAR


def test_ill_conditioned_systems_are_right_or_flagged(rng):
    A = scipy.linalg.hilbert(10)
    for xp in eager():
        b = A @ np.ones(10)
        x, info = solve(xp.asarray(A), xp.asarray(b), info=True)
        assert info.status is Status.SUCCESS and np.linalg.norm(
            A @ host(x) - b
        ) < 1e-8 * np.linalg.norm(b)
        _, info = solve(
            xp.asarray(scipy.linalg.hilbert(14)), xp.asarray(normal(rng, (14,))), info=True
        )
        assert info.status in (Status.SINGULAR, Status.INACCURATE)


def test_zero_sizes(rng):
    for xp in eager():
        assert host(solve(xp.zeros((0, 0)), xp.zeros((0,)))).shape == (0,)
        assert host(solve(xp.zeros((0, 0)), xp.zeros((0, 3)))).shape == (0, 3)
        assert host(solve(PSD(xp.zeros((2, 0, 0))), xp.zeros((0, 3)))).shape == (2, 0, 3)
        assert host(solve(xp.zeros((0, 2, 2)), xp.zeros((2, 1)))).shape == (0, 2, 1)
        assert host(solve(xp.asarray(np.eye(2)), xp.zeros((2, 0)))).shape == (2, 0)
        assert host(inv(xp.zeros((0, 0)))).shape == (0, 0)
        assert float(logdet(xp.zeros((0, 0)))) == 0.0


def test_half_precision_is_computed_in_single_and_cast_back(rng):
    A, b = spd(rng, 4), normal(rng, (4,))
    for xp in eager():
        for dtype in (xp.float16, xp.bfloat16):
            if dtype is None:
                continue
            M, right = xp.astype(xp.asarray(A), dtype), xp.astype(xp.asarray(b), dtype)
            for annotate in (PSD, lambda M: M, SelfAdjoint):
                x, info = solve(annotate(M), right, info=True)
                assert x.dtype == dtype and not info.failed
                inverse = inv(annotate(M))
                assert inverse.dtype == dtype and (inverse @ right).dtype == dtype
                close(xp.astype(inverse @ right, xp.float32), np.linalg.solve(A, b), 0.1)


def test_right_sides_that_are_operators_sparse_or_lists(rng):
    import scipy.sparse

    A, B = spd(rng, 3), normal(rng, (3, 2))
    close(solve(A, Dense(B)), np.linalg.solve(A, B))
    close(solve(A, scipy.sparse.csr_array(B)), np.linalg.solve(A, B))
    close(solve(A.tolist(), [1, 2, 3]), np.linalg.solve(A, [1, 2, 3]))
    close(solve(scipy.sparse.csr_array(A), np.ones(3)), np.linalg.solve(A, np.ones(3)))


def test_errors_name_what_was_given_and_what_to_do(rng):
    wide = np.ones((3, 4))
    with pytest.raises(
        ShapeError,
        match=r"solve: A is 3x4; a linear system needs a square operator. Use lstsq\(A, b\).",
    ):
        solve(wide, np.ones(3))
    with pytest.raises(
        ShapeError, match=r"inv: A is 3x4; an inverse needs a square operator. Use pinv\(A\)."
    ):
        inv(wide)
    for function in (inv, lambda A: solve(A, np.ones(3))):
        with pytest.raises(ShapeError, match="3x4"):
            function(opaque(wide).T.T)
    with pytest.raises(ShapeError, match="solve: A is 3x3, so b needs 3 rows"):
        solve(np.eye(3), np.ones(4))
    with pytest.raises(ShapeError, match="solve: batch shapes"):
        solve(np.ones((2, 3, 3)), np.ones((5, 3, 1)))
    with pytest.raises(
        MethodError,
        match=r"inv: SVD\(\) does not apply here. Use one of Auto\(\), Cholesky\(\), LDL\(\), LU\(\), QR\(\).",
    ):
        inv(np.eye(3), SVD())
    with pytest.raises(MethodError, match=r"Write Cholesky\(\)."):
        inv(np.eye(3), "cholesky")
    with pytest.raises(MethodError, match=r"Write LU\(\)."):
        inv(np.eye(3), LU)
    with pytest.raises(ValueError, match="tol"):
        Auto(tol=-1.0)
    with pytest.raises(ValueError, match="on_failure"):
        inv(np.eye(3), on_failure="explode")


def test_the_tolerance_asked_is_the_one_judged(rng):
    A, b = scipy.linalg.hilbert(9), normal(rng, (9,))
    _, info = solve(A, b, Auto(tol=1e-1), info=True)
    assert not info.failed
    _, info = solve(A, b, Auto(tol=1e-15), info=True)
    assert info.status is Status.INACCURATE


# ---------------------------------------------------------------------------------------------------- rules


def structured(xp, rng, dtype=np.float64):
    """Invertible operators with a rule, and their matrices."""

    def array(*shape):
        return xp.asarray(normal(rng, shape, dtype))

    A, B = normal(rng, (3, 3), dtype) + 4 * np.eye(3), normal(rng, (2, 2), dtype) + 4 * np.eye(2)
    P, Q = spd(rng, 3, dtype=dtype), spd(rng, 2, dtype=dtype)
    d = normal(rng, (6,), dtype) + 5
    U, V, C = array(6, 2), array(6, 2), array(2, 2)
    unitary = np.linalg.qr(normal(rng, (3, 3), dtype))[0]
    D = Diagonal(xp.asarray(d))
    factors = PSD(xp.asarray(P)), PSD(xp.asarray(Q))
    yield "inv_identity", Identity(6, like=U)
    yield "inv_scaled_identity", ScaledIdentity(2.5, 6, like=U)
    yield "inv_diagonal", D
    yield "inv_permutation", Permutation([2, 0, 1, 3], like=U)
    yield "inv_triangular", Triangular(xp.asarray(A))
    yield "inv_triangular", Triangular(xp.asarray(A), lower=False, unit=True)
    yield "inv_scaled", Scaled(3.0, Dense(xp.asarray(A)))
    yield "inv_product", Product(Dense(xp.asarray(A)), Triangular(xp.asarray(A)))
    yield "inv_kronecker", Kronecker(xp.asarray(A), xp.asarray(B))
    yield "inv_block_diagonal", BlockDiag(xp.asarray(A), xp.asarray(B))
    yield "inv_unitary", Kronecker(Unitary(xp.asarray(unitary)), Unitary(xp.asarray(unitary)))
    yield "adjoint", Unitary(xp.asarray(unitary))
    yield "inv_turned", opaque(xp.asarray(A)).T.T.T
    yield "inv_inverse", inv(xp.asarray(A))
    yield "woodbury", Sum(LowRank(U), Diagonal(xp.abs(xp.asarray(d))))
    yield "woodbury", Sum(D, LowRank(U, V))
    yield "woodbury", Sum(LowRank(U, V, C), D)
    yield "woodbury", Sum(LowRank(U), Identity(6))
    yield "woodbury", Sum(LowRank(U, V), ScaledIdentity(4.0, 6))
    yield "inv_shifted_kronecker", Sum(Kronecker(*factors), ScaledIdentity(0.5, 6))
    yield "inv_shifted_kronecker", Sum(Kronecker(*factors), Identity(6))
    yield "inv_shifted_kronecker", Sum(KroneckerSum(*factors), ScaledIdentity(0.5, 6))
    yield "inv_kronecker_sum", KroneckerSum(*factors)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_rules_give_the_dense_answer(rng, dtype):
    for xp in eager():
        for name, A in structured(xp, rng, dtype):
            M = host(A)
            n = len(M)
            b = normal(rng, (n,), dtype)
            plan = inv.explain(A)
            if name != "inv_turned":
                assert plan.rule == name, (plan.rule, name)
            close(inv(A), np.linalg.inv(M))
            close(inv(A).H, np.linalg.inv(M).conj().T)
            x, info = solve(A, xp.asarray(b), info=True)
            close(x, np.linalg.solve(M, b))
            assert not info.failed and host(info.residual).max() < 1e-9, (name, info)
            sign, logarithm = slogdet(A)
            expected = np.linalg.slogdet(M)
            close(sign, expected[0])
            close(logarithm, expected[1])


def test_kronecker_plus_shift_never_forms_the_product(rng):
    from colinear.testing import forbid_dense

    A, B = spd(rng, 40), spd(rng, 50)
    K = Kronecker(PSD(A), PSD(B)) + 0.1 * Identity(2000)
    b = normal(rng, (2000,))
    with forbid_dense(2500):
        _, info = solve(K, b, info=True)
    assert info.status is Status.SUCCESS and host(info.residual).max() < 1e-10


def test_woodbury_with_a_zero_on_the_diagonal_goes_through_the_dense_base_case(rng):
    A = Diagonal([1.0, 0.0, 2.0]) + LowRank(normal(rng, (3, 1)))
    x, info = solve(A, np.ones(3), info=True)
    close(x, np.linalg.solve(host(A), np.ones(3)))
    assert info.status in (Status.SUCCESS, Status.FELL_BACK)


def test_batches_broadcast(rng):
    A, b = spd(rng, 2, 1, 4), normal(rng, (3, 4, 5))
    for xp in eager():
        close(solve(PSD(xp.asarray(A)), xp.asarray(b)), np.linalg.solve(A, b))
        close(solve(xp.asarray(A), xp.asarray(b)), np.linalg.solve(A, b))
        close(solve(xp.asarray(A), xp.asarray(b[0, :, 0])), np.linalg.solve(A, b[0, :, :1])[..., 0])
        K = Kronecker(xp.asarray(A[:, 0]), xp.asarray(spd(rng, 3)))
        close(inv(K), np.linalg.inv(host(K)))
        W = LowRank(xp.asarray(normal(rng, (2, 4, 2)))) + Diagonal(xp.asarray(1 + rng.random(4)))
        close(inv(W), np.linalg.inv(host(W)))
        close(logdet(W), np.linalg.slogdet(host(W))[1])


def test_inverse_of_inverse_is_the_operator_itself(rng):
    A = Dense(spd(rng, 3))
    assert inv(inv(A)) is A and isinstance(inv(A), Inverse)


def test_one_bad_matrix_of_a_batch_does_not_hide(rng):
    A = np.stack([np.eye(3), np.ones((3, 3))])
    for xp in eager():
        x, info = solve(xp.asarray(A), xp.ones((3, 1), dtype=xp.float64), info=True)
        assert info.status is Status.SINGULAR
        close(host(x)[0], np.ones((3, 1)))
