"""What it pays to look for structure: `detect` and `solve` beside SciPy's or NumPy's solver, on matrices given by their entries.

    python benchmarks/detect.py              # prints the table; --only NAME picks lines, --size small is quick

One thread, both in the same run, interleaved; the best of a few runs each, in seconds of the processor. `detect` is counted in full: a
second right side would cost `solve` alone.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

import colinear as co


def laplacian(n: int) -> Any:
    return sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr")


def problems(small: bool) -> Iterator[tuple[str, Any]]:
    rng = np.random.default_rng(0)
    n = 60 if small else 300
    yield f"grid of {n} x {n}, sparse", sp.kronsum(laplacian(n), laplacian(n), format="csr")
    n = 10 if small else 30
    yield (
        f"grid of {n} x {n} x {n}, sparse",
        sp.kronsum(sp.kronsum(laplacian(n), laplacian(n)), laplacian(n), format="csr"),
    )
    n = 500 if small else 3000
    lower = sp.tril(sp.random_array((n, n), density=10 / n, rng=1), -1) + sp.diags_array(
        1 + rng.random(n)
    )
    rows, columns = rng.permutation(n), rng.permutation(n)
    yield f"triangular after permutations, {n} rows, sparse", sp.csr_array(lower)[rows][:, columns]
    n = 200 if small else 2000
    U = rng.standard_normal((n, n // 50))
    yield f"rank {n // 50} plus diagonal, {n} rows, dense", U @ U.T + np.diag(1 + rng.random(n))
    n = 15 if small else 45
    factors = [rng.standard_normal((n, n)) + 2 * np.sqrt(n) * np.eye(n) for _ in range(2)]
    yield f"Kronecker of two {n} x {n}, dense", np.kron(*factors)
    n = 200 if small else 2000
    yield f"nothing, {n} rows, dense", rng.standard_normal((n, n)) + np.sqrt(n) * np.eye(n)


def best(runs: int, *calls: Callable[[], Any]) -> list[float]:
    """The least time of the processor of each, the calls taking turns."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for taken, call in zip(times, calls, strict=True):
            start = time.process_time()
            call()
            taken.append(time.process_time() - start)
    return [min(taken) for taken in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="only the lines whose name contains this")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--runs", type=int, default=3, help="of each")
    options = parser.parse_args()
    print(
        f"{'':48s} {'detect':>9s} {'solve':>9s} {'theirs':>9s} {'ratio':>7s}  {'residual':>8s}  found"
    )
    wrong = False
    for name, A in problems(options.size == "small"):
        if options.only.lower() not in name.lower():
            continue
        b = np.random.default_rng(1).standard_normal(A.shape[0])
        found, info = co.detect(A, info=True)
        theirs = (
            (lambda A=A, b=b: sp.linalg.spsolve(A.tocsc(), b))
            if sp.issparse(A)
            else (lambda A=A, b=b: np.linalg.solve(A, b))
        )
        looking, ours, other = best(
            options.runs, lambda A=A: co.detect(A), lambda F=found, b=b: co.solve(F, b), theirs
        )
        residual = float(np.linalg.norm(A @ co.solve(found, b) - b) / np.linalg.norm(b))
        wrong = wrong or residual > 1e-7
        ratio = (looking + ours) / other
        print(
            f"{name:48s} {looking:8.3f}s {ours:8.4f}s {other:8.3f}s {ratio:7.3f}  {residual:8.1e}  {info.rule}",
            flush=True,
        )
    sys.exit(wrong)


if __name__ == "__main__":
    main()
