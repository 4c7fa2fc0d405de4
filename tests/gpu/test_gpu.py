"""On a CUDA device: every operator multiplies there, functions stay there, and devices do not mix. Run with `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from support.devices import cuda, is_there, on_device
from support.registry import MAKERS

import colinear as co
from colinear import backends

pytestmark = pytest.mark.gpu


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
            xp.to_numpy(Z),
            np.conj(np.swapaxes(dense, -1, -2)) @ np.ones((A.shape[-2], 1)),
            rtol=1e-10,
            atol=1e-10,
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
        np.testing.assert_allclose(
            xp.to_numpy(x), np.linalg.solve(dense, b), rtol=tol * 10, atol=tol
        )
        logdet = co.logdet(A)
        assert is_there(framework, logdet)
        np.testing.assert_allclose(xp.to_numpy(logdet), np.linalg.slogdet(dense)[1], rtol=tol)
        np.testing.assert_allclose(
            xp.to_numpy(co.svd(A)[1]),
            np.linalg.svd(dense, compute_uv=False),
            rtol=tol,
            atol=tol * 10,
        )
    values, vectors = co.eig(co.PSD(on_device(framework, P)))
    assert is_there(framework, values) and is_there(framework, vectors.to_dense())
    np.testing.assert_allclose(xp.to_numpy(values), np.linalg.eigvalsh(P), rtol=tol, atol=tol * 100)
    np.testing.assert_allclose(
        xp.to_numpy(co.exp(co.Dense(on_device(framework, M / 10))).to_dense()),
        _expm(M / 10),
        rtol=tol,
        atol=tol,
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
        xp.to_numpy(co.solve(A, on_device(framework, b))),
        np.linalg.solve(U @ U.T + np.diag(d), b),
        rtol=1e-9,
    )
    K1, K2 = (M @ M.T + np.eye(n) for n in (6, 7) for M in [rng.normal(size=(n, n))])
    K = co.Kronecker(
        co.PSD(on_device(framework, K1)), co.PSD(on_device(framework, K2))
    ) + 0.5 * co.Identity(42)
    c = rng.normal(size=42)
    np.testing.assert_allclose(
        xp.to_numpy(co.solve(K, on_device(framework, c))),
        np.linalg.solve(np.kron(K1, K2) + 0.5 * np.eye(42), c),
        rtol=1e-8,
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


# ---------------------------------------------------------------------------------------------------- iterative methods


def grid_laplacian(m):
    import scipy.sparse as sp

    line, identity = (
        sp.diags_array([[-1.0] * (m - 1), [2.0] * m, [-1.0] * (m - 1)], offsets=[-1, 0, 1]),
        sp.eye_array(m),
    )
    return sp.csr_array(sp.kron(line, identity) + sp.kron(identity, line))


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("columns", [None, 3])
def test_iterations_stay_on_the_device_and_agree_with_the_host(framework, columns):
    device, xp, S = cuda(framework), backends.get(framework), grid_laplacian(20)
    A = co.PSD(co.Sparse(S)).to(backend=framework, device=device)
    b = np.random.default_rng(0).normal(size=400 if columns is None else (400, columns))
    for method in (
        co.CG(tol=1e-10),
        co.CG(tol=1e-10, preconditioner=co.Jacobi()),
        co.MINRES(tol=1e-10),
        co.GMRES(tol=1e-10),
    ):
        x, info = co.solve(
            co.opaque(A) if method.preconditioner is None else A,
            on_device(framework, b),
            method,
            info=True,
        )
        assert is_there(framework, x)
        assert not info.failed, info
        assert (
            np.linalg.norm(S @ xp.to_numpy(x) - b, axis=0).max()
            <= 1e-9 * np.linalg.norm(b, axis=0).max()
        )
        assert bool(np.all(xp.to_numpy(info.converged)))


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_least_squares_on_the_device(framework):
    device, xp = cuda(framework), backends.get(framework)
    M, b = (
        np.random.default_rng(0).normal(size=(200, 40)),
        np.random.default_rng(1).normal(size=200),
    )
    A = co.opaque(co.Dense(xp.to_device(xp.asarray(M), device)))
    for method in (co.LSQR(tol=1e-11), co.LSMR(tol=1e-11)):
        x, info = co.lstsq(A, on_device(framework, b), method, info=True)
        assert is_there(framework, x)
        assert not info.failed, info
        np.testing.assert_allclose(xp.to_numpy(x), np.linalg.lstsq(M, b)[0], rtol=1e-7, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
@pytest.mark.parametrize("method", [co.CG, co.MINRES, co.GMRES, co.BiCGSTAB, co.LSQR, co.LSMR])
def test_torch_does_not_wait_for_the_device_between_two_looks(method, monkeypatch):
    """Each step between two looks runs under torch's own watch for synchronisation, which raises where there is one."""
    torch = pytest.importorskip("torch")
    from colinear.methods.loop import Loop
    from colinear.methods.vectors import LOOK_EVERY

    d = torch.linspace(1.0, 50.0, 300, device=cuda("torch"), dtype=torch.float64)

    def multiply(X, d):
        return (d if X.ndim == 1 else d[:, None]) * X

    A = co.PSD(co.MatrixFree(multiply, (300, 300), parameters=(d,), rmatmat=multiply))
    b, steps = torch.ones(300, device=d.device, dtype=torch.float64), []
    run = Loop.run

    def watched(self, step, *arguments):
        def quiet_step(ops, state):
            steps.append(1)
            # the first may compile and allocate
            torch.cuda.set_sync_debug_mode("error" if len(steps) > 1 else "default")
            try:
                return step(ops, state)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return run(self, quiet_step, *arguments)

    monkeypatch.setattr(Loop, "run", watched)
    options = {"restart": 300} if method is co.GMRES else {}
    x, info = co.solve(A, b, method(tol=1e-8, max_iters=600, **options), info=True)
    assert not info.failed, info
    assert len(steps) > LOOK_EVERY
    torch.testing.assert_close(d * x, b, rtol=1e-6, atol=1e-6)


def test_torch_asks_the_device_once_in_sixteen_steps(monkeypatch):
    torch = pytest.importorskip("torch")
    from colinear.methods.vectors import LOOK_EVERY

    d = torch.linspace(1.0, 1000.0, 400, device=cuda("torch"), dtype=torch.float64)
    A = co.PSD(co.MatrixFree(lambda X, d: d[:, None] * X, (400, 400), parameters=(d,)))
    asked, plain = [], torch.Tensor.__bool__

    def counted(self):
        asked.append(1)
        return plain(self)

    monkeypatch.setattr(torch.Tensor, "__bool__", counted)
    info = co.solve(
        A, torch.ones(400, device=d.device, dtype=torch.float64), co.CG(tol=1e-10), info=True
    )[1]
    assert not info.failed, info
    assert info.iterations > 4 * LOOK_EVERY
    assert len(asked) <= info.iterations / LOOK_EVERY + 20


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_solves_on_the_device(framework, dtype):
    xp, rng = backends.get(framework), np.random.default_rng(0)
    M = rng.normal(size=(64, 64))
    M = M @ M.T + 64 * np.eye(64)
    A = xp.astype(on_device(framework, M), getattr(xp, dtype))
    b = xp.astype(on_device(framework, np.ones(64)), getattr(xp, dtype))
    x, info = co.solve(co.opaque(co.PSD(A)), b, co.CG(), info=True)
    assert not info.failed, info
    assert x.dtype == b.dtype and is_there(framework, x)
    full = on_device(framework, M)
    x, info = co.solve(
        co.opaque(co.PSD(full)),
        on_device(framework, np.ones(64)),
        co.CG(tol=1e-11, precision=dtype),
        info=True,
    )
    assert not info.failed, info
    assert np.linalg.norm(M @ xp.to_numpy(x) - 1) <= 1e-10 * 8


def test_compiled_programs_warn_on_the_device_without_a_callback():
    import jax

    cuda("jax")
    b = on_device("jax", np.ones(4))
    f = jax.jit(lambda d: co.solve(co.Diagonal(d) + co.Zero(4, 4), b))
    fine, singular = on_device("jax", np.arange(1.0, 5)), on_device("jax", np.arange(4.0))
    runner = f.lower(fine).compile()._executable.unsafe_call
    assert not runner.has_host_callbacks and not runner.has_unordered_effects
    np.testing.assert_allclose(f(fine), 1 / np.arange(1.0, 5))
    with pytest.warns(co.ConvergenceWarning, match="solve: SINGULAR"):
        jax.block_until_ready(f(singular))
