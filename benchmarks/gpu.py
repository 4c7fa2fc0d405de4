"""On a GPU: small and structured solves beside the formula by hand, what a step of an iteration costs beyond the memory
that it must move, and one of Lanczos beside CuPy.

    python benchmarks/gpu.py                 # prints the table; --json FILE saves it; --calls: the solves alone

The five-point Laplacian of a square grid in single precision. A step of CG reads and writes 10 vectors and, by a stencil, 2 more:
that many bytes at the speed of a copy are the floor. `by hand` is the same recurrence written out in the framework.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import gpu_sweep
import numpy as np
import scipy.sparse

import colinear as co

GRID, STEPS = 2000, 500


def laplacian_rows(n: int) -> scipy.sparse.csr_array:
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    one = scipy.sparse.eye_array(n)
    return scipy.sparse.csr_array(
        scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line), dtype=np.float32
    )


def stencil(xp: Any, n: int) -> Callable[[Any], Any]:
    def multiply(X: Any) -> Any:
        x = X.reshape(n, n)
        y = 4 * x
        if xp.name == "jax":
            y = (
                y.at[1:]
                .add(-x[:-1])
                .at[:-1]
                .add(-x[1:])
                .at[:, 1:]
                .add(-x[:, :-1])
                .at[:, :-1]
                .add(-x[:, 1:])
            )
        else:
            y[1:] -= x[:-1]
            y[:-1] -= x[1:]
            y[:, 1:] -= x[:, :-1]
            y[:, :-1] -= x[:, 1:]
        return y.reshape(X.shape)

    return multiply


def seconds(work: Callable[[], Any], wait: Callable[[Any], None], repeats: int = 5) -> float:
    wait(work())  # compiled, and the memory taken
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        wait(work())
        times.append(time.perf_counter() - start)
    return min(times)


def call_rows(rows: list[dict[str, Any]], scale: int = 1) -> None:
    """Solves in torch, built and called anew each time, beside the formula written out; a call waits for its status,
    so by hand too the device is waited for."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    g = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.randn(*shape, generator=g, device=device)

    def positive(*shape: int) -> Any:
        return torch.rand(*shape, generator=g, device=device) + 1

    def well(n: int) -> Any:
        return normal(n, n) / n**0.5 + 2 * torch.eye(n, device=device)

    def spd(*shape: int) -> Any:
        M = normal(*shape)
        return M @ M.mT / shape[-1] + torch.eye(shape[-1], device=device)

    def wait(_: Any) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def row(what: str, ours: Callable[[], Any], hand: Callable[[], Any], repeats: int = 50) -> None:
        error = float((ours() - hand()).abs().max() / hand().abs().max())
        assert error < 1e-2, (what, error)
        add(rows, what, seconds(ours, wait, repeats), seconds(hand, wait, repeats), None)
        with co.deferred():  # the calls alone; the end of the block waits
            put_off = seconds(ours, wait, repeats)
        add(rows, f"{what}, deferred", put_off, rows[-1]["bar"], None)

    d, b = positive(100), normal(100)
    row("torch, Diagonal n = 100", lambda: co.solve(co.Diagonal(d), b), lambda: b / d)

    def kronecker_by_hand(A: Any, B: Any, b: Any) -> Any:
        X = torch.linalg.solve(A, b.reshape(A.shape[-1], B.shape[-1]))
        return torch.linalg.solve(B, X.mT).mT.reshape(-1)

    A, B = well(10), well(10)
    row(
        "torch, Kronecker 10 x 10",
        lambda: co.solve(co.Kronecker(A, B), b),
        lambda: kronecker_by_hand(A, B, b),
    )

    def woodbury_by_hand(U: Any, d: Any, b: Any) -> Any:
        scaled, y = U / d[..., None], b / d[..., None]
        K = torch.eye(U.shape[-1], device=device) + U.mT @ scaled
        return y - scaled @ torch.linalg.solve(K, U.mT @ y)

    U, e, c = normal(5000 // scale, 10), positive(5000 // scale), normal(5000 // scale)
    row(
        "torch, Woodbury n = 5000, r = 10",
        lambda: co.solve(co.LowRank(U) + co.Diagonal(e), c),
        lambda: woodbury_by_hand(U, e, c[:, None])[:, 0],
    )
    Us, ds, bs = (
        normal(1000 // scale, 2000 // scale, 10),
        positive(1000 // scale, 2000 // scale),
        normal(1000 // scale, 2000 // scale, 1),
    )
    row(
        "torch, 1000 x Woodbury (2000, r = 10)",
        lambda: co.solve(co.LowRank(Us) + co.Diagonal(ds), bs),
        lambda: woodbury_by_hand(Us, ds, bs),
    )
    P, Pb = spd(10_000 // scale, 32, 32), normal(10_000 // scale, 32, 1)
    row(
        "torch, 10 000 x PSD 32 x 32",
        lambda: co.solve(co.PSD(P), Pb),
        lambda: torch.cholesky_solve(Pb, torch.linalg.cholesky(P)),
    )
    n = 2000 // scale
    k = torch.arange(1, n + 1, device=device, dtype=torch.float64) * torch.pi / (n + 1)

    def sine(X: Any) -> Any:
        """The sine transform along the last axis, by a transform of twice the length."""
        zero = torch.zeros(*X.shape[:-1], 1, device=device, dtype=X.dtype)
        wide = torch.cat([zero, X, zero, -X.flip(-1)], -1)
        return -torch.fft.rfft(wide).imag[..., 1 : n + 1] / (2 * (n + 1)) ** 0.5

    for dtype in (torch.float64, torch.float32):  # the condition is 1.6e6
        ones, f = torch.ones(n, device=device, dtype=dtype), normal(n * n).to(dtype)
        # without cancellation, which single precision does not forgive
        values = 4 * torch.sin(k / 2) ** 2
        grid = (values[:, None] + values).to(dtype)

        def poisson_by_hand(f: Any = f, grid: Any = grid) -> Any:
            X = sine(sine(f.reshape(n, n)).mT) / grid
            return sine(sine(X).mT).reshape(-1)

        T = co.Tridiagonal(-ones[1:], 2 * ones, -ones[1:])
        for name, A in (("", T), (", PD claimed", co.PD(T))):
            row(
                f"torch, Poisson {n} x {n}, {str(dtype)[6:]}{name}",
                lambda A=A, f=f: co.solve(co.KroneckerSum(A, A), f),  # type: ignore[misc]
                poisson_by_hand,
                30,
            )
    C, D = (well(2000 // scale) for _ in range(2))
    F = normal((2000 // scale) ** 2)
    row(
        "torch, Kronecker of two 2000",
        lambda: co.solve(co.Kronecker(C, D), F),
        lambda: kronecker_by_hand(C, D, F),
        10,
    )


def torch_rows(rows: list[dict[str, Any]], n: int, steps: int) -> None:
    import torch

    device = torch.device("cuda")
    xp = co.backends.get("torch")

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    b = torch.randn(n * n, device=device)
    multiply = stencil(xp, n)

    def by_hand() -> Any:
        x, r = torch.zeros_like(b), b.clone()
        p, rho = r.clone(), torch.dot(r, r)
        for _ in range(steps):
            q = multiply(p)
            alpha = rho / torch.dot(p, q)
            x += alpha * p
            r -= alpha * q
            rho, before = torch.dot(r, r), rho
            p = r + (rho / before) * p
        return x

    method = co.CG(tol=1e-30, max_iters=steps)
    free = co.PSD(co.MatrixFree(multiply, (n * n, n * n), rmatmat=multiply, like=b))
    held = co.opaque(co.PSD(co.Sparse(laplacian_rows(n)).to(backend="torch", device=device)))
    copied = torch.empty_like(b)
    copy = seconds(lambda: [copied.copy_(b) for _ in range(100)], wait) / 100
    hand = seconds(by_hand, wait) / steps

    def ours(A: Any) -> float:
        return seconds(lambda: co.solve(A, b, method, on_failure="ignore"), wait) / steps

    add(rows, "torch, CG step, stencil", ours(free), hand, 6 * copy)
    add(rows, "torch, CG step, Sparse", ours(held), hand, 6 * copy)


def jax_rows(rows: list[dict[str, Any]], n: int, steps: int) -> None:
    import jax
    import jax.numpy as jnp

    xp = co.backends.get("jax")
    b = jax.random.normal(jax.random.key(0), (n * n,), dtype=jnp.float32)
    multiply = stencil(xp, n)

    def wait(x: Any) -> None:
        jax.block_until_ready(x)

    theirs = jax.jit(
        lambda b: jax.scipy.sparse.linalg.cg(multiply, b, tol=0.0, atol=0.0, maxiter=steps)[0]
    )
    hand = seconds(lambda: theirs(b), wait) / steps
    method = co.CG(tol=1e-30, max_iters=steps)
    free = co.PSD(co.MatrixFree(multiply, (n * n, n * n), rmatmat=multiply, like=b))
    held = co.opaque(co.PSD(co.Sparse(laplacian_rows(n)).to(backend="jax")))
    for name, A in (("stencil", free), ("Sparse", held)):
        ours = seconds(lambda A=A: co.solve(A, b, method, on_failure="ignore"), wait) / steps  # type: ignore[misc]
        add(rows, f"JAX, CG step, {name} (bar: jax.scipy cg)", ours, hand, None)


def spectral_rows(rows: list[dict[str, Any]], n: int, steps: int) -> None:
    """Steps of MINRES, and of Lanczos and LOBPCG for 8 pairs, the former beside CuPy's with a basis as large."""
    import torch

    k, basis = 8, 40
    S = laplacian_rows(n)
    A = co.opaque(co.PSD(co.Sparse(S).to(backend="torch", device=torch.device("cuda"))))
    b = torch.randn(n * n, device="cuda")
    copied = torch.empty_like(b)

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    copy = seconds(lambda: [copied.copy_(b) for _ in range(100)], wait) / 100

    def per_step(call: Callable[[], Any]) -> float:
        made = int(call()[1].iterations)
        return seconds(call, wait, 3) / made

    def eig(method: Any) -> Callable[[], Any]:
        return lambda: co.eig(A, k, "LA", method, info=True, on_failure="ignore")

    solve = lambda: co.solve(
        A, b, co.MINRES(tol=1e-30, max_iters=steps), info=True, on_failure="ignore"
    )
    # 22 vectors are read or written
    add(rows, "torch, MINRES step, Sparse", per_step(solve), None, 11 * copy)
    peer = None
    try:
        import cupy
        import cupyx.scipy.sparse
        import cupyx.scipy.sparse.linalg as theirs

        G = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(S))

        def by_cupy() -> None:
            theirs.eigsh(G, k, which="LA", ncv=basis, maxiter=steps, tol=1e-9)
            cupy.cuda.Device().synchronize()

        peer = seconds(by_cupy, lambda _: None, 3) / steps
    except ImportError:
        pass
    # the basis, of 27 rows on average, is read twice, and ten vectors are
    ours = per_step(eig(co.Lanczos(tol=1e-9, basis=basis, max_iters=steps)))
    add(rows, "torch, Lanczos step, 8 pairs (bar: CuPy eigsh)", ours, peer, 32 * copy)
    ours = per_step(eig(co.LOBPCG(tol=1e-9, max_iters=steps // 10)))
    add(rows, "torch, LOBPCG step, 8 pairs", ours, None, None)


def add(
    rows: list[dict[str, Any]], what: str, ours: float, bar: float | None, floor: float | None
) -> None:
    rows.append({"what": what, "ours": ours, "bar": bar, "floor": floor})
    texts = (f"{t * 1e6:12.0f}" if t is not None else f"{'-':>12}" for t in (ours, bar, floor))
    print(f"{what:52}{''.join(texts)}   {'-' if bar is None else f'{ours / bar:.2f}'}", flush=True)


def has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def main() -> None:
    parser = argparse.ArgumentParser(description="Iterations on a GPU.")
    parser.add_argument("--json", help="save the table here")
    parser.add_argument("--grid", type=int, default=GRID)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--calls", action="store_true", help="the solves alone")
    parser.add_argument("--sweep", action="store_true", help="the rules of the registry instead")
    arguments = parser.parse_args()
    if not has_cuda():
        print("no CUDA device that torch can use: nothing to measure")
        return
    if arguments.sweep:
        save(gpu_sweep.sweep(), arguments.json)
        return
    rows: list[dict[str, Any]] = []
    print(f"{'microseconds':52}{'colinear':>12}{'bar':>12}{'floor':>12}   ratio")
    call_rows(rows)
    if not arguments.calls:
        torch_rows(rows, arguments.grid, arguments.steps)
        spectral_rows(rows, arguments.grid, arguments.steps)
        jax_rows(rows, arguments.grid, arguments.steps)
    save(rows, arguments.json)


def save(rows: list[dict[str, Any]], path: str | None) -> None:
    if path:
        with open(path, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
