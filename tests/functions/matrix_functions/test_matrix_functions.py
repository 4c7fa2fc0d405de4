"""`exp`, `log`, `sqrt`, `isqrt`, `power`, `apply`: against SciPy, for defective, singular, negative and complex matrices."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from support.frameworks import close, eager, host, normal, spd

from colinear import backends
from colinear.errors import ConvergenceWarning, MethodError, ShapeError
from colinear.functions import apply, exp, isqrt, log, power, sqrt
from colinear.methods import LU, Eig, Eigh, roots
from colinear.operators import Dense, Diagonal, Identity, Kronecker, ScaledIdentity
from colinear.properties import PD, PSD, SelfAdjoint
from colinear.status import Status

JORDAN = np.array([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 2.0]])
ROTATION = np.array([[0.0, -1.0], [1.0, 0.0]])
NEGATIVE = np.array([[-1.0, 1.0], [0.0, -1.0]])


def general_matrices(rng):
    yield normal(rng, (4, 4)) / 4 + 2 * np.eye(4)
    yield normal(rng, (4, 4), np.complex128)
    yield JORDAN
    yield JORDAN.astype(np.complex128)
    yield ROTATION
    yield NEGATIVE
    yield np.diag([1.0, -2.0]) + np.triu(np.ones((2, 2)), 1)


def test_functions_of_general_matrices_agree_with_scipy(rng):
    for A in general_matrices(rng):
        for xp in eager():
            a = xp.asarray(A)
            for f, expected in (
                (exp, scipy.linalg.expm(A)),
                (log, scipy.linalg.logm(A)),
                (sqrt, scipy.linalg.sqrtm(A)),
                (isqrt, np.linalg.inv(scipy.linalg.sqrtm(A))),
            ):
                result, info = f(a, info=True)
                close(result, expected)
                assert not info.failed, (f, info)
                assert xp.is_complex(result.dtype) == np.iscomplexobj(expected)
            for p in (2, -3, 0.3, -1.7, 2.5):
                expected = scipy.linalg.fractional_matrix_power(A, p)
                result, info = power(a, p, info=True)
                close(result, expected, 1e-8)
                assert not info.failed


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_functions_of_self_adjoint_matrices(rng, dtype):
    positive = spd(rng, 2, 4, dtype=dtype)
    indefinite = positive - 3 * np.eye(4)
    for xp in eager():
        A, B = PSD(xp.asarray(positive)), SelfAdjoint(xp.asarray(indefinite))
        for M, operator in ((positive, A), (indefinite, B)):
            w, Q = np.linalg.eigh(M)
            # principal: log(-1) = iπ, whatever rounding does to the 0
            for f, g in ((exp, np.exp), (log, np.log), (sqrt, np.sqrt)):
                close(f(operator), Q * g(w + 0j)[:, None] @ Q.conj().swapaxes(-1, -2), 1e-8)
        close(isqrt(A) @ isqrt(A) @ xp.asarray(positive), np.broadcast_to(np.eye(4), (2, 4, 4)))
        close(power(A, -2), np.linalg.inv(positive @ positive))
        assert (
            exp(B).isa(PSD) and sqrt(A).isa(PSD) and isqrt(A).isa(PSD) and log(A).isa(SelfAdjoint)
        )
        assert not sqrt(B).isa(SelfAdjoint)


def test_symmetric_matrices_need_no_annotation_to_have_a_root(rng):
    singular = np.diag([4.0, 0.0, 1.0])
    for xp in eager():
        result, info = sqrt(xp.asarray(singular), info=True)
        close(result, np.sqrt(singular))
        assert info.status is Status.SUCCESS
        close(power(xp.asarray(singular), 0.5), np.sqrt(singular))


def test_rank_deficient_covariances_have_real_roots(rng):
    G = normal(rng, (6, 3))
    for xp in eager():
        A = G @ G.T
        root = sqrt(PSD(xp.asarray(A)))
        assert not root.is_complex
        close(root @ root, A)


def test_singular_and_nonfinite_input_is_flagged():
    nilpotent = np.array([[0.0, 1.0], [0.0, 0.0]])
    for xp in eager():
        close(exp(xp.asarray(nilpotent)), np.array([[1.0, 1.0], [0.0, 1.0]]))
        _, info = sqrt(xp.asarray(nilpotent), info=True)
        assert info.status is Status.SINGULAR
        for f in (log, isqrt, lambda A, **k: power(A, -1, **k), lambda A, **k: power(A, -0.5, **k)):
            for A in (nilpotent, np.triu(np.ones((3, 3)), 0) * [1, 1, 0], np.diag([1.0, 0.0])):
                _, info = f(xp.asarray(A), info=True)
                assert info.status is Status.SINGULAR, (f, A, info)
            for A in (Diagonal(xp.asarray([1.0, 0.0])), PSD(xp.asarray(np.diag([1.0, 0.0])))):
                _, info = f(A, info=True)
                assert info.status is Status.SINGULAR
        with pytest.warns(ConvergenceWarning, match="SINGULAR"):
            log(xp.asarray(nilpotent))
        for f in (
            exp,
            log,
            sqrt,
            isqrt,
            lambda A, **k: power(A, 2, **k),
            lambda A, **k: power(A, 0.3, **k),
        ):
            _, info = f(xp.asarray([[1.0, np.nan], [0.0, 1.0]]), info=True)
            assert info.status is Status.NONFINITE, (f, info)


def test_apply_takes_any_function_and_flags_defective_matrices(rng):
    A = normal(rng, (4, 4))
    for xp in eager():
        result = apply(xp.sin, xp.asarray(A))
        close(result, scipy.linalg.sinm(A), 1e-8)
        assert not result.is_complex
        close(apply(lambda x: x**2, PSD(xp.asarray(A @ A.T))), A @ A.T @ A @ A.T)
        _, info = apply(xp.exp, xp.asarray(JORDAN), info=True)
        assert info.status is Status.INACCURATE
        close(exp(xp.asarray(A), Eig()), scipy.linalg.expm(A), 1e-8)
        close(exp(xp.asarray(A @ A.T / 9), Eigh()), scipy.linalg.expm(A @ A.T / 9), 1e-8)
    with pytest.raises(TypeError, match=r"Write apply\(f, A\)"):
        apply(A, A)


def test_structured_functions_stay_structured(rng):
    P, Q = spd(rng, 3), spd(rng, 2)
    for xp in eager():
        d = xp.asarray(np.array([1.0, 4.0]))
        for f, g in (
            (exp, np.exp),
            (log, np.log),
            (sqrt, np.sqrt),
            (isqrt, lambda x: 1 / np.sqrt(x)),
        ):
            result = f(Diagonal(d))
            assert isinstance(result, Diagonal)
            close(result.d, g(host(d)))
            result = f(ScaledIdentity(3.0, 4, like=d))
            assert isinstance(result, ScaledIdentity)
            close(result, g(3.0) * np.eye(4))
        close(sqrt(Diagonal(xp.asarray([-1.0, 4.0]))), np.diag([1j, 2]))
        close(power(Diagonal(d), 3), np.diag([1.0, 64.0]))
        close(power(Identity(2, like=d), 0.5), np.eye(2))
        close(apply(lambda x: x + 1, Diagonal(d)), np.diag([2.0, 5.0]))
        K = Kronecker(PSD(xp.asarray(P)), PSD(xp.asarray(Q)))
        from colinear.testing import forbid_dense

        with forbid_dense(9):
            root = sqrt(K)
            root @ xp.ones((6,), dtype=xp.float64)
        close(root, scipy.linalg.sqrtm(np.kron(P, Q)))


def test_precision_and_sizes(rng):
    for xp in eager():
        a = xp.asarray(spd(rng, 3), dtype=xp.float32)
        for f in (exp, log, sqrt, isqrt):
            assert f(a).dtype == xp.float32 and f(PSD(a)).dtype == xp.float32
            assert f(xp.astype(a, xp.float16)).dtype == xp.float16
            assert f(xp.zeros((0, 0))).shape == (0, 0)
        assert sqrt(xp.asarray([[-1.0, 1.0], [0.0, 2.0]], dtype=xp.float32)).dtype == xp.complex64
        close(power(a, 0), np.eye(3))
    with pytest.raises(ShapeError, match="sqrt: A is 2x3"):
        sqrt(np.ones((2, 3)))
    with pytest.raises(MethodError):
        exp(np.eye(2), LU())
    for p in ("half", None, np.nan):
        with pytest.raises(ValueError, match="power: the exponent is"):
            power(np.eye(2), p)


def test_the_iterations_that_tracing_uses_are_right_for_every_kind_of_matrix(rng):
    for name in ("numpy", "torch"):
        xp = backends.get(name)
        for A in general_matrices(rng):
            a = xp.asarray(A.astype(np.complex128))
            X, Y = roots.square_root(xp, a)
            expected = scipy.linalg.sqrtm(A)
            close(X, expected.astype(np.complex128), 1e-7)
            close(Y, np.linalg.inv(expected).astype(np.complex128), 1e-7)
            close(roots.logarithm(xp, a), scipy.linalg.logm(A).astype(np.complex128), 1e-7)


def test_a_false_psd_claim_gives_the_principal_answer_and_says_so():
    A = np.diag([1.0, -4.0])
    for xp in eager():
        result, info = sqrt(PSD(xp.asarray(A)), info=True)
        close(result, np.diag([1, 2j]))
        assert info.status is Status.FELL_BACK
    assert PD(np.eye(2)).isa(PSD) and isinstance(sqrt(Dense(np.eye(2))), Dense)
