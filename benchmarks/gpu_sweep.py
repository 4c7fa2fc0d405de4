"""The rules of the registry on a GPU, at about 10^6 unknowns, beside the least time that their flops and bytes take there.

    python benchmarks/gpu.py --sweep            # prints the table; --json FILE saves it

The flops are those that `explain` counts for the rule that runs, at the rate of a matrix product in single precision; the
bytes are those of the operator's arrays, the right side and the answer, once each, at the speed of a copy; and there is
one launch and one wait in every call. What takes over ten times that has its reason in `REASONS`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

import colinear as co

LIMIT = 10.0  # times the least time
PATIENCE = 12  # seconds for a case
LAUNCH_AND_WAIT = 32e-6  # seconds, on an H200: 11 for a launch, 21 for a wait

# Why a case takes longer than LIMIT times its flops and bytes.
PYTHON = (
    "some twenty to a hundred launches from Python, at 5 to 10 us each; the work itself is shorter"
)
HOST = "runs on the host: LAPACK's elimination in a band is a recurrence, which a device makes one row at a time"
LEVELS = "cyclic reduction: six or seven levels of ten launches there and seven back, after a look at how far the diagonal dominates"
SPECTRUM = "cuSOLVER's eigenvalues and singular values, which reach a few per cent of the rate of a product"
STEPS = "an iteration: its steps are not in the count, which is that of one product"
TRANSFORMS = "each call transforms the operator too, and checks its residual: five transforms in place of two"
BLOCKS = "each block is factored alone, by Cholesky or LU, which are latencies of cuSOLVER at 1024 rows: 0.5 and 2.5 ms"
RESIDUAL = (
    "the count is that of the solve; the residual, which costs as much, and a wait come on top"
)
REASONS: dict[str, str] = {
    **dict.fromkeys(
        ["exp Diagonal", "sqrt Diagonal", "norm Diagonal", "logdet Diagonal + LowRank", "cholesky Kronecker",
         "solve Poisson, nothing claimed", "logdet Poisson, nothing claimed", "solve batch of PSD 64",
         "logdet batch of PSD 64", "svd LowRank", "pinv LowRank", "lstsq Dense",
         "solve Diagonal + LowRank"], PYTHON),
    **dict.fromkeys(["solve Kronecker of PSD", "solve Kronecker, general", "solve Kronecker Diagonal", "solve Dense"], RESIDUAL),
    **dict.fromkeys(
        ["sqrt Kronecker", "solve Kronecker + c I", "logdet Kronecker + c I", "solve KroneckerSum of PSD", "exp KroneckerSum",
         "svd Dense"], SPECTRUM),
    **dict.fromkeys(["solve Tridiagonal", "logdet Tridiagonal"], LEVELS),
    "solve Banded": HOST,
    **dict.fromkeys(
        ["solve Circulant", "logdet Circulant", "sqrt Circulant", "solve Convolution, periodic", "solve Sine"], TRANSFORMS),
    **dict.fromkeys(
        ["solve Toeplitz", "sqrt PSD", "exp Dense", "exp Sparse", "solve Sparse, Poisson", "solve Sparse, uneven",
         "logdet Sparse, SLQ(4)", "4 largest, Sparse, Lanczos"], STEPS),
    **dict.fromkeys(["solve BlockDiag", "logdet BlockDiag"], BLOCKS),
}  # fmt: skip


def cases(torch: Any, device: Any, scale: int) -> dict[str, tuple[Callable[..., Any], Any, Any]]:
    """Name -> function, operator, right side or None."""
    g = torch.Generator(device).manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device)
    positive = lambda *shape: torch.rand(*shape, generator=g, device=device) + 1
    n, m, d = 2**20 // scale**2, 1024 // scale, 4096 // scale

    def well(k: int) -> Any:
        return normal(k, k) / k**0.5 + 2 * torch.eye(k, device=device)

    def spd(k: int) -> Any:
        M = normal(k, k)
        return M @ M.mT / k + torch.eye(k, device=device)

    P, Q = co.PSD(spd(m)), co.PSD(spd(m))
    W, Z = co.Dense(well(m)), co.Dense(well(m))
    # of columns of norm 1: with entries of size 1, D + U U^T has a condition of 10^6, which single
    # precision misses the tolerance for, so that the call was made twice
    U, e, b = normal(n, 32) / n**0.5, positive(n), normal(n)
    ones = torch.ones(n, device=device)
    line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
    one = scipy.sparse.eye_array(m)
    grid = scipy.sparse.csr_array(scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line))
    S = co.PSD(co.Sparse(grid.astype(np.float32)).to(backend="torch", device=device))
    uneven = scipy.sparse.csr_array(
        grid + scipy.sparse.diags_array(np.random.default_rng(0).random(m * m))
    )
    R = co.PD(co.Sparse(uneven.astype(np.float32)).to(backend="torch", device=device))
    D, K = co.Diagonal(e), co.Kronecker(P, Q)
    T = co.Tridiagonal(-ones[1:], 3 * ones, -ones[1:])
    B = co.Banded([ones[2:], -ones[1:], 6 * ones, -ones[1:]], [-2, -1, 0, 1])
    lag = torch.arange(n, device=device)
    C = co.Circulant(torch.exp(-lag.minimum(n - lag) / 3.0))
    F = co.Convolution(
        normal(3, 3) / 20 + torch.nn.functional.pad(torch.ones(1, 1, device=device), (1, 1, 1, 1)),
        (m, m),
        "wrap",
        centered=True,
    )
    L = co.LowRank(U) + D
    X, Y, V = co.Dense(well(d)), co.PSD(spd(d)), normal(d, d // 8)
    c = normal(d)
    G = co.BlockDiag(P, W, Q)
    q = normal(3 * m)
    batch, right = (
        co.PSD(
            co.Dense(
                normal(16384 // scale, 64, 4) @ normal(16384 // scale, 4, 64) * 0
                + torch.eye(64, device=device) * 2
            )
        ),
        normal(16384 // scale, 64, 1),
    )
    t = co.Toeplitz(torch.exp(-lag[: n // 16] / 3.0))
    k1 = co.Tridiagonal(
        -torch.ones(m - 1, device=device),
        2 * torch.ones(m, device=device),
        -torch.ones(m - 1, device=device),
    )
    apply = lambda f: lambda A, b: f(A) @ b
    return {
        "solve Diagonal": (co.solve, D, b),
        "logdet Diagonal": (co.logdet, D, None),
        "exp Diagonal": (apply(co.exp), D, b),
        "sqrt Diagonal": (apply(co.sqrt), D, b),
        "pinv Diagonal": (apply(co.pinv), D, b),
        "trace Diagonal": (co.trace, D, None),
        "norm Diagonal": (co.norm, D, None),
        "solve Kronecker of PSD": (co.solve, K, b[: m * m]),
        "solve Kronecker, general": (co.solve, co.Kronecker(W, Z), b[: m * m]),
        "logdet Kronecker": (co.logdet, K, None),
        "trace Kronecker": (co.trace, K, None),
        "sqrt Kronecker": (apply(co.sqrt), K, b[: m * m]),
        "cholesky Kronecker": (lambda A, b: co.cholesky(A) @ b, K, b[: m * m]),
        "solve Kronecker + c I": (co.solve, K + 0.5 * co.Identity(m * m), b[: m * m]),
        "logdet Kronecker + c I": (co.logdet, K + 0.5 * co.Identity(m * m), None),
        "solve KroneckerSum of PSD": (co.solve, co.KroneckerSum(P, Q), b[: m * m]),
        "exp KroneckerSum": (apply(co.exp), co.KroneckerSum(P, Q), b[: m * m]),
        "solve Poisson, nothing claimed": (co.solve, co.KroneckerSum(k1, k1), b[: m * m]),
        "logdet Poisson, nothing claimed": (co.logdet, co.KroneckerSum(k1, k1), None),
        "solve Kronecker Diagonal": (co.solve, K @ co.Diagonal(e[: m * m]), b[: m * m]),
        "solve Tridiagonal": (co.solve, T, b),
        "logdet Tridiagonal": (co.logdet, T, None),
        "solve Banded": (co.solve, B, b),
        "solve Circulant": (co.solve, C, b),
        "logdet Circulant": (co.logdet, C, None),
        "sqrt Circulant": (apply(co.sqrt), C, b),
        "solve Convolution, periodic": (co.solve, F, b[: m * m]),
        "solve Toeplitz": (co.solve, t, b[: n // 16]),
        "solve Diagonal + LowRank": (co.solve, L, b),
        "logdet Diagonal + LowRank": (co.logdet, L, None),
        "diag Diagonal + LowRank": (co.diag, L, None),
        "trace LowRank": (co.trace, co.LowRank(U), None),
        "svd LowRank": (lambda A: co.svd(A)[1], co.LowRank(U), None),
        "pinv LowRank": (apply(co.pinv), co.LowRank(U), b),
        "solve BlockDiag": (co.solve, G, q),
        "logdet BlockDiag": (co.logdet, G, None),
        "solve batch of PSD 64": (co.solve, batch, right),
        "logdet batch of PSD 64": (co.logdet, batch, None),
        "solve Permutation": (co.solve, co.Permutation(np.random.default_rng(0).permutation(n), like=b), b),
        "solve Sine": (co.solve, co.Sine(n, like=b), b),
        "solve Dense": (co.solve, X, c),
        "solve PSD": (co.solve, Y, c),
        "logdet PSD": (co.logdet, Y, None),
        "lstsq Dense": (co.lstsq, co.Dense(V), c),
        "eig PSD": (lambda A: co.eig(A)[0], Y, None),
        "svd Dense": (lambda A: co.svd(A)[1], co.Dense(V), None),
        "sqrt PSD": (apply(co.sqrt), Y, c),
        "exp Dense": (apply(co.exp), co.Dense(well(d) / 4), c),
        "solve Sparse, Poisson": (co.solve, S, b[: m * m]),
        "solve Sparse, uneven": (co.solve, R, b[: m * m]),
        "diag Sparse": (co.diag, R, None),
        "trace Sparse": (co.trace, R, None),
        "exp Sparse": (apply(co.exp), -1 * R, b[: m * m]),
        "logdet Sparse, SLQ(4)": (lambda A: co.logdet(A, co.SLQ(probes=4)), R, None),
        "4 largest, Sparse, Lanczos": (lambda A: co.eig(A, 4, "LA", co.Lanczos(tol=1e-2))[0], R, None),
    }  # fmt: skip


class TooLong(Exception):
    pass


def _alarm(*_: Any) -> None:
    raise TooLong


def measured(work: Callable[[], Any], wait: Callable[[], None], patience: int) -> float:
    """The least seconds of a few calls after the first; raises TooLong after so many seconds."""
    signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(patience)
    try:
        work()
        wait()
        times: list[float] = []
        while len(times) < 2 or (sum(times) < 0.2 and len(times) < 20):
            start = time.perf_counter()
            work()
            wait()
            times.append(time.perf_counter() - start)
        return min(times)
    finally:
        signal.alarm(0)


def rules_of(plan: Any) -> list[str]:
    return [node.rule for node in plan.walk()] if hasattr(plan, "walk") else list(plan.rules)


def sweep(scale: int = 1) -> list[dict[str, Any]]:
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    M, x = (
        torch.randn(4096 // scale, 4096 // scale, device=device),
        torch.randn(2**24 // scale**2, device=device),
    )
    y, k = torch.empty_like(x), 4096 // scale
    flops_a_second = 2 * k**3 / measured(lambda: M @ M, wait, 30)
    bytes_a_second = 20 * 2 * x.nbytes / measured(lambda: [y.copy_(x) for _ in range(20)], wait, 30)
    print(f"products {flops_a_second / 1e12:.1f} Tflop/s, copies {bytes_a_second / 1e12:.2f} TB/s")
    print(f"{'milliseconds':36}{'colinear':>12}{'least':>12}{'ratio':>8}   rule")
    rows: list[dict[str, Any]] = []
    for name, (f, A, b) in cases(torch, device, scale).items():
        row = {"what": name, "seconds": None, "least": None, "rule": "", "note": ""}
        rows.append(row)
        work = lambda f=f, A=A, b=b: f(A) if b is None else f(A, b)  # type: ignore[misc]
        flops = float(A.flops)
        try:
            function = getattr(co, name.split()[0], None)
            plan = (
                co.explain(function, A)
                if b is None or function is not co.solve
                else co.explain(function, A, b)
            )
            row["rule"], flops = (
                str(plan.rules[-1] if plan.rules else "base"),
                float(plan.cost.flops),
            )
        except Exception:
            pass  # not a call that can be planned: one product is counted
        size = sum(leaf.nbytes for leaf in A.arrays()) + (0 if b is None else 2 * b.nbytes)
        row["least"] = LAUNCH_AND_WAIT + max(flops / flops_a_second, size / bytes_a_second)
        try:
            row["seconds"] = measured(work, wait, PATIENCE)
        except TooLong:
            row["note"] = f"over {PATIENCE} s"
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {str(error)[:60]}"
        ratio = None if row["seconds"] is None else row["seconds"] / row["least"]
        if ratio is None or ratio > LIMIT:
            row["note"] = row["note"] or REASONS.get(name, "NO REASON YET")
        shown = "-" if ratio is None else f"{ratio:.1f}"
        ours = "-" if ratio is None else f"{1e3 * row['seconds']:.3f}"
        print(
            f"{name:36}{ours:>12}{1e3 * row['least']:12.3f}{shown:>8}   {row['rule']}  {row['note']}",
            flush=True,
        )
    return rows
