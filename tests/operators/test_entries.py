"""`with_symmetry_of_entries`: what entries show of an operator of which nothing was claimed."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear import backends
from colinear.operators.shown import with_symmetry_of_entries

I = co.Identity
T = co.Tridiagonal(-np.ones(4), 2 * np.ones(5), -np.ones(4))
H = np.array([[1.0, 1j], [-1j, 5.0]])
SHOWN = {
    "line": (T, co.PSD),
    "weak line": (co.Tridiagonal(-np.ones(4), np.ones(5), -np.ones(4)), co.SelfAdjoint),
    "shifted": (T + I(5), co.PD),
    "multiple": (2 * T, co.PSD),
    "grid": (co.KroneckerSum(T, T), co.PSD),
    "grid and diagonal": (co.KroneckerSum(T, T) + co.Diagonal(np.arange(1.0, 26)), co.PD),
    "grid and signs": (co.KroneckerSum(T, T) - co.Diagonal(np.ones(25)), co.SelfAdjoint),
    "product of factors": (co.Kronecker(T, np.eye(3) + 1), co.SelfAdjoint),
    "diagonal": (co.Diagonal(np.ones(3)), co.PD),
    "matrix": (co.Dense(np.eye(3) + 1), co.SelfAdjoint),
    "hermitian": (co.Dense(H), co.SelfAdjoint),
    "sparse": (co.Sparse(sp.csr_array(np.eye(3) * 3 + 1)), co.PD),
    "sparse hermitian": (co.Sparse(sp.csr_array(H)), co.PSD),
    "bands": (co.Banded([np.ones(3), np.full(5, 3.0), np.ones(3)], (2, 0, -2)), co.PD),
    "toeplitz": (co.Toeplitz(np.r_[3.0, 1, 0], np.r_[3.0, 1, 0]), co.PD),
    "circulant": (co.Circulant(np.r_[3.0, 1, 1]), co.PD),
    "convolution": (co.Convolution(np.r_[1.0, 2, 1], 5, centered=True), co.SelfAdjoint),
    "blocks": (co.BlockDiag(T, np.eye(2) + 1), co.SelfAdjoint),
    "batch": (co.Diagonal(np.ones((2, 3))), co.PD),
}
HIDDEN = {
    "skew": co.Tridiagonal(np.ones(4), np.ones(5), 2 * np.ones(4)),
    "complex diagonal": co.Diagonal(np.array([1j, 1.0])),
    "complex symmetric": co.Dense(np.array([[1.0, 1j], [1j, 1.0]])),
    "not finite": co.Dense(np.full((2, 2), np.nan)),
    "one of a batch": co.Dense(np.stack([np.eye(2), np.triu(np.ones((2, 2)))])),
    "not square": co.Dense(np.ones((2, 3))),
}


@pytest.mark.parametrize("case", SHOWN)
def test_entries_show_what_holds_and_are_read_once(case):
    A, annotation = SHOWN[case]
    B = with_symmetry_of_entries(A)
    assert B.isa(annotation) and co.verify(B) is B
    assert not (annotation is co.SelfAdjoint and B.isa(co.PSD))
    assert with_symmetry_of_entries(A) is B  # remembered
    np.testing.assert_array_equal(A.to_dense(), B.to_dense())


@pytest.mark.parametrize("case", HIDDEN)
def test_entries_that_differ_show_nothing(case):
    assert with_symmetry_of_entries(HIDDEN[case]) is HIDDEN[case]


def test_traced_entries_are_not_looked_at():
    jax = pytest.importorskip("jax")

    def f(x):
        A = co.KroneckerSum(co.Dense(x), co.Dense(x))
        assert with_symmetry_of_entries(A) is A
        return x

    jax.jit(f)(np.eye(2))


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_symmetric_factors_of_which_nothing_is_claimed_go_by_their_eigenvectors(name):
    if name == "torch":
        make = pytest.importorskip("torch").tensor
    else:
        make = np.asarray
    M = make(np.eye(6) + np.ones((6, 6)))
    A = co.Kronecker(M, M) + 0.1 * I(36)
    assert co.explain(co.inv, A).rules[:2] == ["inv_shifted_kronecker", "Eigh"]
    K = co.KroneckerSum(M, M)
    assert co.explain(co.inv, K).rules[0] == "inv_kronecker_sum"
    x = co.solve(A, make(np.ones(36)))
    np.testing.assert_allclose(np.asarray(A @ x), np.ones(36))


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_a_matrix_that_is_seen_to_be_symmetric_goes_by_eigh_in_the_order_of_others(dtype, rng):
    M = rng.standard_normal((7, 7)) + (
        1j * rng.standard_normal((7, 7)) if dtype is np.complex128 else 0
    )
    M = (M + M.conj().T).astype(dtype)
    plan = co.explain(co.eig, co.Dense(M))
    assert plan.rules == ["Eigh"] and "entries" in str(plan)
    assert co.explain(co.eig, co.Dense(M), method=co.Eig()).rules == ["Eig"]
    (w, V), (v, _) = co.eig(M), co.eig(M, method=co.Eig())
    assert (w.dtype, V.dtype) == (v.dtype, np.result_type(dtype, np.complex64))
    np.testing.assert_allclose(w, v, atol=1e-5)
    np.testing.assert_allclose(M @ V.to_dense(), V.to_dense() * w, atol=1e-5)


def test_constants_that_are_made_under_jit_are_seen():
    jax = pytest.importorskip("jax")

    def f(b):
        line = T.to(backend="jax")
        K = co.KroneckerSum(line, line)
        A = K @ K + K + I(25)
        assert co.explain(co.inv, A).rules == ["inv_polynomial_of_factors", "eig_sines"]
        return co.solve(A, b)

    K = co.KroneckerSum(T, T).to_dense()
    x = jax.jit(f)(np.ones(25))
    np.testing.assert_allclose((K @ K + K + np.eye(25)) @ x, np.ones(25), atol=1e-4)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_entries_that_change_between_calls_are_read_again(framework: str) -> None:
    xp = backends.get(framework)
    lower, d, upper, M = (
        xp.asarray(x) for x in (np.ones(4), np.full(5, 4.0), np.ones(4), np.eye(5) + 1)
    )
    T, D, b = co.Tridiagonal(lower, d, upper), co.Dense(M), xp.asarray(np.ones(25))
    K = co.KroneckerSum(T, T)
    for _ in range(2):
        dense = xp.to_numpy(K.to_dense())
        np.testing.assert_allclose(dense @ xp.to_numpy(co.solve(K, b)), np.ones(25), rtol=1e-10)
        values = np.linalg.eigvals(xp.to_numpy(M))
        found = xp.to_numpy(co.eig(D)[0])
        np.testing.assert_allclose(np.sort_complex(found), np.sort_complex(values), atol=1e-12)
        upper[:] = 3.0
        M[0, 4] = 9.0
    assert "Eigh" not in co.explain(co.eig, D).rules


def test_diagonals_on_a_device_are_copied_again_in_the_next_call(monkeypatch) -> None:
    """No value of a tensor is free to see here, as of one on a GPU."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(backends.get("torch"), "peek", lambda x: None)
    ones = torch.ones(4, dtype=torch.float64)
    T = co.SelfAdjoint(co.Tridiagonal(ones, torch.full((5,), 4.0, dtype=torch.float64), ones))
    for _ in range(2):
        expected = np.linalg.eigvalsh(T.to_dense().numpy())
        np.testing.assert_allclose(co.eig(T)[0].numpy(), expected, rtol=1e-12)
        T.diag[:] += torch.arange(5)
