"""A = Q R of tridiagonal and banded matrices: by windows along the band, in linear memory, in every framework."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.functions.factorisations.banded import ROWS
from colinear.status import Status
from colinear.testing import check_operator, forbid_dense

SETTINGS = [
    ("numpy", "float64", ()),
    ("numpy", "complex64", (2,)),
    ("numpy", "float32", (2,)),
    ("numpy", "complex128", ()),
]
SETTINGS += [("torch", "float64", (2,)), ("torch", "complex128", ()), ("jax", "complex64", (2,))]
BANDS = [
    (9, 9, (-1, 0, 1)),
    (50, 50, (-3, 0, 2)),
    (33, 33, (-2, -1)),
    (60, 50, (-2, 0, 1)),
    (50, 60, (-1, 0, 3)),
    (40, 50, (0, 1)),
]


def random_band(backend, dtype, batch, m, n, offsets):
    xp, rng = backends.get(backend), np.random.default_rng(m + n)

    def diagonal(k):
        x = rng.standard_normal((*batch, min(m, n - k) if k >= 0 else min(m + k, n)))
        return xp.asarray(
            (x + 1j * rng.standard_normal(x.shape) if dtype[0] == "c" else x).astype(dtype)
        )

    return co.Banded([diagonal(k) for k in offsets], offsets, (m, n))


def close(got, wanted, tol):
    np.testing.assert_allclose(np.broadcast_to(got, wanted.shape), wanted, atol=tol)


@pytest.mark.parametrize("backend,dtype,batch", SETTINGS)
def test_q_is_orthonormal_and_r_keeps_a_band(backend, dtype, batch):
    xp, tol = backends.get(backend), 500 * float(np.finfo(dtype).eps)
    bands = [random_band(backend, dtype, batch, *band) for band in BANDS]
    for A in bands:
        assert co.explain(co.qr, A).rules == ["qr_banded"]
    factor = xp.jit(lambda bands: [co.qr(A) for A in bands])  # in JAX one program, traced
    for A, (Q, R) in zip(bands, factor(bands), strict=True):
        m, n = A.shape[-2:]
        k, width = min(m, n), sum((max(0, -min(A.offsets)), max(0, *A.offsets)))
        assert (
            Q.isa(co.Stiefel)
            and Q.isa(co.Unitary) == (m == k)
            and isinstance(R, co.Banded)
            and max(R.offsets) == width
        )
        q, r, whole = (xp.to_numpy(B.to_dense()) for B in (Q, R, A))
        assert q.dtype == r.dtype == whole.dtype
        close(q @ r, whole, tol)
        close(np.conj(np.swapaxes(q, -1, -2)) @ q, np.broadcast_to(np.eye(k), (*batch, k, k)), tol)
        if backend == "numpy":
            check_operator(Q)


def test_tridiagonal_and_its_compositions():
    rng = np.random.default_rng(0)
    T = co.Tridiagonal(rng.standard_normal(11), rng.standard_normal(12), rng.standard_normal(11))
    for A in (T, 2.0 * T, co.Kronecker(T, T), co.BlockDiag(T, np.eye(2))):
        assert "qr_banded" in co.explain(co.qr, A).rules
        Q, R = co.qr(A)
        close(Q.to_dense() @ R.to_dense(), A.to_dense(), 1e-12)


def test_a_singular_band_is_factored_too():
    A = co.Banded([np.r_[1.0, 0.0, 0.0, np.ones(17)], np.r_[0.0, 0.0, np.ones(17)]], [0, -1])
    Q, R = co.qr(A)
    close(Q.to_dense() @ R.to_dense(), A.to_dense(), 1e-14)
    close(Q.to_dense().T @ Q.to_dense(), np.eye(20), 1e-14)


def test_a_long_band_takes_linear_memory():
    rng, n = np.random.default_rng(1), 20_000
    A = co.Banded([rng.standard_normal(n - abs(k)) for k in (-2, 0, 1)], (-2, 0, 1))
    with forbid_dense(n + ROWS):  # the last window of the chain goes beyond the end
        Q, R = co.qr(A)
        x = rng.standard_normal(n)
        close(Q @ (R @ x), A @ x, 1e-11)
        close(Q.H @ (Q @ x), x, 1e-12)
    assert sum(leaf.size for leaf in Q.leaves()) < 40 * n


def test_nonfinite_numbers_are_reported():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        _, info = co.qr(co.Tridiagonal(np.ones(19), np.full(20, np.nan), np.ones(19)), info=True)
    assert info.status is Status.NONFINITE


def test_torch_differentiates_the_triangle():
    torch = pytest.importorskip("torch")
    d = torch.linspace(4.0, 6.0, 12, dtype=torch.float64, requires_grad=True)
    e = torch.ones(11, dtype=torch.float64)
    # the logarithm of the determinant
    torch.log(torch.abs(co.diag(co.qr(co.Tridiagonal(e, d, e))[1]))).sum().backward()
    inverse = np.linalg.inv(co.Tridiagonal(e, d.detach(), e).to_dense().numpy())
    close(d.grad.numpy(), np.diagonal(inverse), 1e-10)
