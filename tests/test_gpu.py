"""On a CUDA device: every operator multiplies there, functions stay there, and devices do not mix. Run with `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from registry import MAKERS

import colinear as co
from colinear import backends

pytestmark = pytest.mark.gpu


def cuda(framework):
    """A device of that framework, or skip."""
    if framework == "torch":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device")
        return "cuda"
    jax = pytest.importorskip("jax")
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU")


def on_device(framework, x):
    xp = backends.get(framework)
    return xp.to_device(xp.asarray(x), cuda(framework))


def is_there(framework, x):
    return str(backends.get(framework).device_of(x)).lower().startswith(("cuda", "gpu"))


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_operator_multiplies_on_the_device(name, framework):
    device, xp = cuda(framework), backends.get(framework)
    for batch in ((), (2,)):
        made = MAKERS[name](xp, "float64", batch, np.random.default_rng(0))
        if made is None:
            continue
        A, dense = made
        A = A.to(device=device)
        X = np.random.default_rng(1).normal(size=(A.shape[-1], 2))
        Y = A @ on_device(framework, X)
        assert is_there(framework, Y)
        np.testing.assert_allclose(xp.to_numpy(Y), dense @ X, rtol=1e-10, atol=1e-10)
        Z = A.H @ on_device(framework, np.ones((A.shape[-2], 1)))
        np.testing.assert_allclose(
            xp.to_numpy(Z), np.conj(np.swapaxes(dense, -1, -2)) @ np.ones((A.shape[-2], 1)), rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_functions_stay_on_the_device(framework, dtype):
    xp, rng = backends.get(framework), np.random.default_rng(0)
    M = (rng.normal(size=(6, 6)) + 6 * np.eye(6)).astype(dtype)
    P = (M @ M.conj().T).astype(dtype)
    b = rng.normal(size=6).astype(dtype)
    tol = 1e3 * float(np.finfo(dtype).eps)
    for A, dense in ((co.Dense(on_device(framework, M)), M), (co.PSD(on_device(framework, P)), P)):
        x = co.solve(A, on_device(framework, b))
        assert is_there(framework, x)
        np.testing.assert_allclose(xp.to_numpy(x), np.linalg.solve(dense, b), rtol=tol * 10, atol=tol)
        logdet = co.logdet(A)
        assert is_there(framework, logdet)
        np.testing.assert_allclose(xp.to_numpy(logdet), np.linalg.slogdet(dense)[1], rtol=tol)
        np.testing.assert_allclose(xp.to_numpy(co.svd(A)[1]), np.linalg.svd(dense, compute_uv=False), rtol=tol, atol=tol * 10)
    values, vectors = co.eig(co.PSD(on_device(framework, P)))
    assert is_there(framework, values) and is_there(framework, vectors.to_dense())
    np.testing.assert_allclose(xp.to_numpy(values), np.linalg.eigvalsh(P), rtol=tol, atol=tol * 100)
    np.testing.assert_allclose(
        xp.to_numpy(co.exp(co.Dense(on_device(framework, M / 10))).to_dense()), _expm(M / 10), rtol=tol, atol=tol
    )


def _expm(M):
    import scipy.linalg

    return scipy.linalg.expm(M)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_structured_solves_on_the_device(framework):
    xp, rng = backends.get(framework), np.random.default_rng(0)
    U, d, b = rng.normal(size=(50, 3)), rng.uniform(1, 2, 50), rng.normal(size=50)
    A = co.LowRank(on_device(framework, U)) + co.Diagonal(on_device(framework, d))
    assert "woodbury" in co.explain(co.solve, A).rules
    np.testing.assert_allclose(
        xp.to_numpy(co.solve(A, on_device(framework, b))), np.linalg.solve(U @ U.T + np.diag(d), b), rtol=1e-9
    )
    K1, K2 = (M @ M.T + np.eye(n) for n in (6, 7) for M in [rng.normal(size=(n, n))])
    K = co.Kronecker(co.PSD(on_device(framework, K1)), co.PSD(on_device(framework, K2))) + 0.5 * co.Identity(42)
    c = rng.normal(size=42)
    np.testing.assert_allclose(
        xp.to_numpy(co.solve(K, on_device(framework, c))), np.linalg.solve(np.kron(K1, K2) + 0.5 * np.eye(42), c), rtol=1e-8
    )


def test_devices_do_not_mix():
    torch = pytest.importorskip("torch")
    device = cuda("torch")
    A = co.Dense(torch.eye(3, device=device))
    with pytest.raises(co.DeviceError, match=r"cuda.*cpu|cpu.*cuda"):
        A + co.Dense(torch.eye(3))
    with pytest.raises(co.DeviceError, match=r"cuda.*cpu|cpu.*cuda"):
        A @ torch.ones(3)
    assert (A + 2 * co.Identity(3)).to_dense().device.type == "cuda"
