"""Iterations on a GPU: what a step of CG costs beyond the memory that it must move, and eigenvalues beside CuPy.

    python benchmarks/gpu.py                 # prints the table; --json FILE saves it

The five-point Laplacian of a square grid in single precision. A step of CG reads and writes 10 vectors and, by a stencil, 2 more:
that many bytes at the speed of a copy are the floor. `by hand` is the same recurrence written out in the framework.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

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


def eigen_rows(rows: list[dict[str, Any]], n: int) -> None:
    import torch

    S = laplacian_rows(n)
    A = co.opaque(co.PSD(co.Sparse(S).to(backend="torch", device=torch.device("cuda"))))
    values: dict[str, Any] = {}

    def ours() -> Any:
        values["ours"] = co.eig(A, 8, "LA", co.Lanczos(tol=1e-4), on_failure="ignore")[0]

    def wait(_: Any) -> None:
        torch.cuda.synchronize()

    mine, peer = seconds(ours, wait, 3), None
    try:
        import cupy
        import cupyx.scipy.sparse
        import cupyx.scipy.sparse.linalg as theirs

        G = cupyx.scipy.sparse.csr_matrix(scipy.sparse.csr_matrix(S))

        def by_cupy() -> None:
            values["peer"] = theirs.eigsh(G, 8, which="LA", tol=1e-4)[0]
            cupy.cuda.Device().synchronize()

        peer = seconds(by_cupy, lambda _: None, 3)
        print(
            "largest eigenvalues:",
            np.sort(values["ours"].cpu().numpy())[-2:],
            np.sort(cupy.asnumpy(values["peer"]))[-2:],
        )
    except ImportError:
        pass
    add(rows, "torch, 8 largest eigenpairs (bar: CuPy eigsh)", mine, peer, None)


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
    parser.add_argument("--eigen", action="store_true", help="eigenvalues too, which takes minutes")
    arguments = parser.parse_args()
    if not has_cuda():
        print("no CUDA device that torch can use: nothing to measure")
        return
    rows: list[dict[str, Any]] = []
    print(f"{'microseconds':52}{'colinear':>12}{'bar':>12}{'floor':>12}   ratio")
    torch_rows(rows, arguments.grid, arguments.steps)
    jax_rows(rows, arguments.grid, arguments.steps)
    if arguments.eigen:
        eigen_rows(rows, arguments.grid)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
