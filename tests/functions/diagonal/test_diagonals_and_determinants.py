"""`diag`, `trace`, `det`, `slogdet`, `logdet`, and the transposes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from support.frameworks import arrays, close, eager, host, normal, spd

from colinear.errors import ConvergenceWarning, MethodError, ShapeError
from colinear.functions import (
    adjoint,
    conj,
    det,
    diag,
    inv,
    logdet,
    slogdet,
    to_dense,
    trace,
    transpose,
)
from colinear.methods import LDL, LU, QR, Cholesky
from colinear.operators import (
    BlockDiag,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    LowRank,
    Permutation,
    ScaledIdentity,
    Sparse,
    Triangular,
    opaque,
)
from colinear.properties import PSD, SelfAdjoint
from colinear.status import Status


def matrices(rng):
    yield normal(rng, (4, 4))
    yield -spd(rng, 3)
    yield normal(rng, (4, 4), np.complex128)
    yield np.ones((2, 2))  # singular: an exact zero pivot
    yield np.zeros((3, 3))
    yield normal(rng, (2, 3, 4, 4))
    yield np.zeros((0, 0))
    yield np.zeros((2, 0, 0))


def test_determinants_agree_with_numpy(rng):
    for A in matrices(rng):
        sign, logarithm = np.linalg.slogdet(A)
        for xp in arrays() if A.shape == (4, 4) else eager():
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = slogdet(xp.asarray(A))
                close(found[0], sign)
                close(found[1], logarithm)
                close(logdet(xp.asarray(A)), logarithm)
                close(det(xp.asarray(A)), np.linalg.det(A))
                close(det(opaque(xp.asarray(A))), np.linalg.det(A))
            assert not xp.is_complex(found[1])


def test_positive_definite_determinants_by_cholesky_and_its_fallback(rng):
    for dtype in (np.float64, np.complex128):
        A = spd(rng, 2, 4, dtype=dtype)
        indefinite = A - 2 * np.eye(4)
        for xp in eager():
            sign, logarithm = slogdet(PSD(xp.asarray(A)))
            close(sign, np.ones(2))
            close(logarithm, np.linalg.slogdet(A)[1])
            for lie in (indefinite, A + np.triu(np.ones((4, 4)), 1)):
                (sign, logarithm), info = slogdet(PSD(xp.asarray(lie)), info=True)
                assert info.status is Status.FELL_BACK
                close(logarithm, np.linalg.slogdet(lie)[1])
            sign = slogdet(SelfAdjoint(xp.asarray(indefinite)))[0]
            close(sign, np.linalg.slogdet(indefinite)[0])
            for method in (LDL(), LU()):
                close(slogdet(xp.asarray(indefinite), method)[1], np.linalg.slogdet(indefinite)[1])
            _, info = logdet(xp.asarray(indefinite), Cholesky(), info=True)
            assert info.status is Status.NOT_POSITIVE_DEFINITE


def test_determinants_of_small_integers_are_exact():
    for xp in eager():
        assert float(det(xp.asarray(2 * np.eye(3)))) == 8
        assert float(det(ScaledIdentity(2.0, 4, like=xp.zeros((1,))))) == 16
        assert float(det(Diagonal(xp.asarray([2.0, 3.0, -1.0])))) == -6


def test_nan_is_reported(rng):
    for xp in eager():
        A = xp.asarray([[1.0, 2.0], [np.nan, 4.0]])
        for f in (logdet, det, slogdet):
            for annotate in (lambda A: A, PSD):
                _, info = f(annotate(A), info=True)
                assert info.status is Status.NONFINITE, (f, info)
        with pytest.warns(ConvergenceWarning, match="NONFINITE"):
            logdet(A)
        _, info = logdet(Diagonal(xp.asarray([1.0, np.nan])), info=True)
        assert info.status is Status.NONFINITE


def test_determinants_of_structured_operators(rng):
    A, B = normal(rng, (3, 3)), normal(rng, (2, 2))
    for xp in eager():
        a, b = xp.asarray(A), xp.asarray(B)
        d = xp.asarray(np.array([1.0, -2.0, 3.0]))
        operators = [
            ScaledIdentity(-2.0, 3, like=a),
            -3.0 * Dense(a),
            Kronecker(a, b),
            BlockDiag(a, b),
            Dense(a) @ Triangular(a),
            Permutation([1, 0, 2], like=a),
            Permutation([[1, 0, 2], [1, 2, 0]], like=a),
            Permutation([3, 0, 1, 2], like=a),
            Triangular(a, unit=True),
            inv(a),
            inv(PSD(xp.asarray(spd(rng, 3)))),
            inv(a, QR()),
            opaque(a).T,
            LowRank(xp.asarray(A[:, :1]), xp.asarray(A[:, 1:2])) + Diagonal(d),
            LowRank(xp.asarray(A[:, :1])) - Identity(3),
            Diagonal(xp.asarray(np.array([1.0, 0.0]))),
            ScaledIdentity(0.0, 3, like=a),
            Identity(0),
            ScaledIdentity(3.0, 0, like=a),
        ]
        for operator in operators:
            expected = np.linalg.slogdet(host(operator))
            found = slogdet(operator)
            close(found[0], expected[0])
            close(found[1], expected[1])
            close(det(operator), np.linalg.det(host(operator)))
    complex_one = inv(normal(rng, (3, 3), np.complex128))
    for operator in (complex_one, complex_one.H, complex_one.T, complex_one.conj()):
        close(slogdet(operator)[0], np.linalg.slogdet(host(operator))[0])


def test_diagonals_and_traces(rng):
    square, wide = normal(rng, (3, 3), np.complex128), normal(rng, (2, 3))
    for xp in eager():
        a, w = xp.asarray(square), xp.asarray(wide)
        U, V = (
            xp.asarray(normal(rng, (4, 2), np.complex128)),
            xp.asarray(normal(rng, (3, 2), np.complex128)),
        )
        sparse = Sparse(scipy.sparse.random_array((4, 3), density=0.5, rng=rng))
        operators = [
            Dense(a),
            Dense(w),
            Dense(xp.asarray(normal(rng, (2, 3, 4)))),
            Diagonal(a),
            ScaledIdentity(2.0, 3, like=a),
            Triangular(a),
            Triangular(a, unit=True),
            LowRank(U, V),
            LowRank(V, core=xp.asarray(normal(rng, (2, 2), np.complex128))),
            Dense(a) + Diagonal(a[0]),
            2.0 * Dense(a),
            Kronecker(a, w @ w.T),
            Kronecker(w, w),
            BlockDiag(a, xp.asarray(normal(rng, (2, 2)))),
            BlockDiag(w, w),
            opaque(a).H,
            opaque(a).conj(),
            *([sparse] if xp.name == "numpy" else []),
        ]
        for operator in operators:
            M = host(operator)
            close(diag(operator), np.diagonal(M, 0, -2, -1))
            if M.shape[-1] == M.shape[-2]:
                close(trace(operator), np.trace(M, 0, -2, -1))
    with pytest.raises(
        ShapeError,
        match=r"trace: A is 2x3; a trace needs a square operator. diag\(A\) takes any shape.",
    ):
        trace(wide)
    with pytest.raises(
        MethodError, match=r"diag: LU\(\) does not apply here. Use one of Auto\(\)."
    ):
        diag(wide, LU())
    with pytest.raises(ShapeError, match="logdet: A is 2x3; a determinant needs a square operator"):
        logdet(wide)
    for f in (det, slogdet):
        with pytest.raises(ShapeError):
            f(wide)


def test_transposes_as_functions(rng):
    A = normal(rng, (2, 3), np.complex128)
    for xp in eager():
        a = xp.asarray(A)
        close(transpose(a), A.T)
        close(adjoint(a), A.conj().T)
        close(conj(a), A.conj())
        close(to_dense(Dense(a)), A)
