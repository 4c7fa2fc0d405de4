"""`eig`, `eigmax`, `eigmin`, `svd`, `rank`, `cond`, `norm`, `pinv`, `lstsq`, `nullspace`."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from support.frameworks import arrays, close, eager, host, normal, spd

from colinear import backends
from colinear.errors import ConvergenceWarning, MethodError, ShapeError
from colinear.functions import cond, eig, eigmax, eigmin, lstsq, norm, nullspace, pinv, rank, svd
from colinear.methods import LU, QR, SVD, Eig, Eigh
from colinear.operators import (
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    Scaled,
    ScaledIdentity,
)
from colinear.properties import PSD, SelfAdjoint, Stiefel
from colinear.status import Status


def test_self_adjoint_pairs_are_real_ascending_and_orthonormal(rng):
    for dtype in (np.float64, np.complex128):
        A = spd(rng, 2, 5, dtype=dtype) - 3 * np.eye(5)
        expected = np.linalg.eigvalsh(A)
        for xp in arrays():
            values, V = eig(SelfAdjoint(xp.asarray(A)))
            assert not xp.is_complex(values) and V.isa(Stiefel)
            close(values, expected)
            close(A @ host(V), host(V) * expected[:, None, :])
            for which, places in (("LA", [3, 4]), ("SA", [0, 1]), ("LR", [3, 4]), ("SR", [0, 1])):
                values, V = eig(SelfAdjoint(xp.asarray(A)), 2, which)
                close(values, expected[:, places])
                close(A @ host(V), host(V) * host(values)[:, None, :])
            for which, sign in (("LM", -1), ("SM", 1)):
                values = host(eig(SelfAdjoint(xp.asarray(A)), 2, which)[0])
                close(
                    values, np.stack([np.sort(w[np.argsort(sign * abs(w))[:2]]) for w in expected])
                )


def test_other_pairs_are_complex_in_the_order_that_which_names(rng):
    A = normal(rng, (6, 6))
    keys = {"LM": lambda w: -abs(w), "SM": abs, "LR": lambda w: -w.real, "SR": lambda w: w.real}
    for xp in eager():
        for which, key in keys.items():
            for k in (6, 3):
                values, V = eig(xp.asarray(A), k, which)
                w = host(values)
                assert w.dtype == np.complex128 and w.shape == (k,)
                assert (np.diff(key(w)) >= -1e-12).all()
                close(A @ host(V), host(V) * w, 1e-8)
        w = host(eig(xp.asarray(np.array([[0.0, -1.0], [1.0, 0.0]])))[0])
        close(w, np.array([1j, -1j]))  # a tie: the larger imaginary part first
        info = eig(xp.asarray(A), info=True)[1]
        assert (
            info.status is Status.SUCCESS
            and host(info.residual).shape == (6,)
            and host(info.residual).max() < 1e-12
        )


def test_defective_matrices_have_right_values_and_are_flagged():
    A = np.array([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 5.0]])
    for xp in arrays():
        (values, _), info = eig(xp.asarray(A), info=True)
        close(values, np.array([5, 2, 2]) + 0j, 1e-7)
        assert info.status is Status.INACCURATE and "defective" in info.message
        with pytest.warns(ConvergenceWarning, match="defective"):
            eig(xp.asarray(A))
        _, info = eig(xp.asarray(A), 1, info=True)
        assert info.status is Status.SUCCESS  # the eigenvalue 5 is simple
        assert abs(complex(eigmax(xp.asarray(A))) - 5) < 1e-12


def test_false_claims_and_nonfinite_input_are_flagged():
    for xp in eager():
        _, info = eig(SelfAdjoint(xp.asarray(np.triu(np.ones((3, 3))))), info=True)
        assert info.status is Status.INACCURATE and "not self-adjoint" in info.message
        for f in (eig, svd, norm, pinv, cond, nullspace):
            for annotate in (lambda A: A, SelfAdjoint):
                _, info = f(annotate(xp.asarray([[1.0, np.nan], [np.nan, 1.0]])), info=True)
                assert info.status is Status.NONFINITE, (f, info)


def test_eig_refuses_what_makes_no_sense():
    for k in (4, -1, 1.5, "two"):
        with pytest.raises(ValueError, match="eig: k is"):
            eig(np.eye(3), k)
    with pytest.raises(ValueError, match="which is 'XX'; it must be one of"):
        eig(np.eye(3), which="XX")
    with pytest.raises(ValueError, match=r"SelfAdjoint\(A\), or use which='LR'"):
        eig(np.eye(3), 1, "LA")
    with pytest.raises(ShapeError, match="eig: A is 2x3; eigenvalues needs a square operator"):
        eig(np.ones((2, 3)))
    with pytest.raises(
        MethodError,
        match=r"eig: LU\(\) does not apply here. Use one of Auto\(\), Eigh\(\), Eig\(\).",
    ):
        eig(np.eye(3), method=LU())
    with pytest.raises(ValueError, match="0x0"):
        eigmax(np.zeros((0, 0)))
    assert host(eig(np.eye(3), 0)[0]).shape == (0,)
    values, V = eig(np.zeros((2, 0, 0)))
    assert values.shape == (2, 0) and V.shape == (2, 0, 0)


def test_named_methods_of_eig(rng):
    A = spd(rng, 4)
    close(eig(A, method=Eigh())[0], np.linalg.eigvalsh(A))
    close(eig(A, method=Eig())[0], np.linalg.eigvalsh(A)[::-1] + 0j)
    close(eig(SelfAdjoint(A), method=Eig())[0], np.linalg.eigvalsh(A))


def test_extreme_eigenvalues(rng):
    A, B = spd(rng, 2, 4) - 4 * np.eye(4), normal(rng, (4, 4))
    for xp in eager():
        values = np.linalg.eigvalsh(A)
        close(eigmax(SelfAdjoint(xp.asarray(A))), values[:, -1])
        close(eigmin(SelfAdjoint(xp.asarray(A))), values[:, 0])
        w = np.linalg.eigvals(B)
        close(abs(host(eigmax(xp.asarray(B)))), abs(w).max())
        close(abs(host(eigmin(xp.asarray(B)))), abs(w).min())
        value, vector = eigmax(xp.asarray(B), vector=True)
        close(B @ host(vector), host(value) * host(vector))


def test_spectra_of_structured_operators_keep_their_structure(rng):
    from colinear.testing import forbid_dense

    P, Q = spd(rng, 3), spd(rng, 4)
    for xp in eager():
        A, B = PSD(xp.asarray(P)), PSD(xp.asarray(Q))
        d = xp.asarray(normal(rng, (2, 5)))
        operators = [
            Kronecker(A, B),
            KroneckerSum(A, B),
            Diagonal(d),
            Diagonal(xp.asarray(normal(rng, (5,), np.complex128))),
            ScaledIdentity(-2.0, 4, like=d),
            Identity(3, like=d),
        ]
        for operator in operators:
            M = host(operator)
            for k, which in ((None, "LM"), (2, "LM"), (2, "SM"), (3, "SR")):
                (values, V), info = eig(operator, k, which, info=True)
                assert info.status is Status.SUCCESS
                close(M @ host(V), host(V) * host(values)[..., None, :])
                reference = host(
                    eig(
                        SelfAdjoint(xp.asarray(M)) if operator.isa(SelfAdjoint) else xp.asarray(M),
                        k,
                        which,
                    )[0]
                )
                close(values, reference.astype(host(values).dtype))
    with forbid_dense(100):
        values, V = eig(Kronecker(PSD(spd(rng, 10)), PSD(spd(rng, 10))))
        V @ normal(rng, (100,))


# ---------------------------------------------------------------------------------------------------- singular values


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4), (2, 5, 3), (0, 3), (3, 0), (0, 4, 2)])
def test_svd_reassembles_the_matrix(rng, shape):
    for dtype in (np.float64, np.complex128):
        A = normal(rng, shape, dtype)
        for xp in eager():
            U, s, V = svd(xp.asarray(A))
            close(host(U) * host(s)[..., None, :] @ np.swapaxes(host(V), -1, -2).conj(), A)
            close(s, np.linalg.svd(A, compute_uv=False))
            if min(shape) > 1:
                assert U.isa(Stiefel) and V.isa(Stiefel)
                close(svd(xp.asarray(A), 2)[1], host(s)[..., :2])
    with pytest.raises(ValueError, match="svd: k is 9"):
        svd(A, 9)


def test_rank_condition_and_norms_agree_with_numpy(rng):
    A = normal(rng, (5, 4))
    low = normal(rng, (5, 2)) @ normal(rng, (2, 4))
    square = normal(rng, (4, 4))
    orders = ("fro", "nuc", 2, -2, 1, -1, np.inf, -np.inf)
    for xp in eager():
        assert int(rank(xp.asarray(low))) == 2 and int(rank(xp.zeros((3, 4)))) == 0
        assert host(rank(xp.asarray(np.stack([low, A])))).tolist() == [2, 4]
        assert int(rank(xp.asarray(np.diag([1.0, 1e-3])), tol=1e-2)) == 1
        close(cond(xp.asarray(A)), np.linalg.cond(A))
        for order in orders:
            close(norm(xp.asarray(A), order), np.linalg.norm(A, order))
            close(cond(xp.asarray(square), order), np.linalg.cond(square, order))
            assert host(cond(xp.asarray(np.ones((3, 3))), order)) > 1e15 or order == -2
        assert np.isinf(host(cond(xp.zeros((2, 2)))))
        close(norm(xp.asarray(np.stack([A, low]))), [np.linalg.norm(A), np.linalg.norm(low)])
        close(norm(xp.asarray(np.full((2, 2), 1e200))), 2e200)
        assert float(norm(xp.zeros((0, 3)))) == 0 == float(norm(xp.zeros((3, 0)), 2))
    for bad in (3, "spectral", None, True):
        with pytest.raises(ValueError, match="names no matrix norm; use one of 'fro', 'nuc', 2"):
            norm(A, bad)
    with pytest.raises(ShapeError, match="empty"):
        cond(np.zeros((0, 0)))
    with pytest.raises(ShapeError, match="Use p=2"):
        cond(A, 1)
    with pytest.raises(ValueError, match="tol"):
        rank(A, tol=-1)


# ---------------------------------------------------------------------------------------------------- least squares


@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (2, 6, 3)])
def test_least_squares_and_pseudoinverse_agree_with_numpy(rng, shape):
    for dtype in (np.float64, np.complex128):
        full = normal(rng, shape, dtype)
        deficient = normal(rng, (*shape[:-1], 2), dtype) @ normal(
            rng, (*shape[:-2], 2, shape[-1]), dtype
        )
        for xp in eager():
            for A in (full, deficient):
                expected = np.linalg.pinv(A)
                close(pinv(xp.asarray(A)), expected)
                close(pinv(xp.asarray(A)).H, np.swapaxes(expected, -1, -2).conj())
                for b in (normal(rng, (shape[-2],), dtype), normal(rng, (shape[-2], 2), dtype)):
                    x, info = lstsq(xp.asarray(A), xp.asarray(b), info=True)
                    close(x, expected @ b)
                    assert not info.failed
                    if A.ndim == 2 and b.ndim == 1:
                        close(info.residual, np.linalg.norm(b - A @ host(x)) / np.linalg.norm(b))
            b = normal(rng, (shape[-2], 2), dtype)
            close(lstsq(xp.asarray(full), xp.asarray(b), QR()), np.linalg.pinv(full) @ b)
            close(lstsq(xp.asarray(full), Dense(xp.asarray(b))), np.linalg.pinv(full) @ b)
            _, info = lstsq(xp.asarray(deficient), xp.asarray(b), QR(), info=True)
            assert info.status is Status.SINGULAR


def test_the_rank_is_told_and_odd_input_refused(rng):
    _, info = lstsq(np.ones((4, 3)), np.ones(4), info=True)
    assert "the rank is 1 of 3" in repr(info)
    close(pinv(Diagonal([2.0, 0.0])), np.diag([0.5, 0.0]))
    close(pinv(np.zeros((2, 3))), np.zeros((3, 2)))
    close(pinv(np.diag([1.0, 1e-4]), rtol=1e-3), np.diag([1.0, 0.0]))
    close(pinv(np.zeros((0, 3))), np.zeros((3, 0)))
    close(lstsq(np.zeros((3, 0)), np.ones(3)), np.zeros(0))
    close(lstsq(scipy.sparse.csr_array(np.eye(3)), np.ones(3)), np.ones(3))
    with pytest.raises(ShapeError, match="lstsq: A is 4x3, so b needs 4 rows"):
        lstsq(np.ones((4, 3)), np.ones(3))
    with pytest.raises(MethodError):
        lstsq(np.ones((4, 3)), np.ones(4), LU())
    with pytest.raises(ValueError, match="rtol"):
        pinv(np.eye(2), -1.0)


def test_nullspace_is_orthonormal_and_complete(rng):
    for dtype in (np.float64, np.complex128):
        A = normal(rng, (2, 4, 2), dtype) @ normal(rng, (2, 2, 5), dtype)
        for xp in eager():
            N = nullspace(xp.asarray(A))
            assert N.shape == (2, 5, 3) and N.isa(Stiefel)
            close(A @ host(N), np.zeros((2, 4, 3)))
            close(
                np.swapaxes(host(N), -1, -2).conj() @ host(N), np.broadcast_to(np.eye(3), (2, 3, 3))
            )
            assert nullspace(xp.asarray(np.eye(3))).shape == (3, 0)
            assert nullspace(xp.zeros((2, 3))).shape == (3, 3) == nullspace(xp.zeros((0, 3))).shape
    with pytest.raises(ShapeError, match=r"dimensions from 0 to 1.*nullspace\(A\[i\]\)"):
        nullspace(np.stack([np.eye(2), np.diag([1.0, 0.0])]))
    with pytest.raises(MethodError):
        nullspace(np.eye(2), method=QR())
    assert nullspace(np.diag([1.0, 1e-5]), rtol=1e-3, method=SVD()).shape == (2, 1)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_zero_times_a_defective_matrix_has_all_eigenvectors(framework):
    xp = backends.get(framework)
    A = Scaled(0.0, Dense(xp.asarray(np.array([[0.0, 1.0], [0.0, 0.0]]))))
    values, vectors = eig(A)  # without a warning
    np.testing.assert_array_equal(xp.to_numpy(values), np.zeros(2))
    assert np.linalg.matrix_rank(xp.to_numpy(vectors.to_dense())) == 2
    with pytest.warns(ConvergenceWarning, match="NONFINITE"):
        eig(Scaled(0.0, Dense(xp.asarray(np.array([[0.0, np.inf], [0.0, 0.0]])))))
