"""The methods against SciPy's: Krylov solvers, eigenvalues, memory. One thread, both in the same run, interleaved; medians.

    python benchmarks/methods.py               # prints the table; --json FILE saves it, --only NAME picks lines, --size small is quick

Answers are held to the same accuracy first: a line whose answer misses it is WRONG, whatever its time. `bar` is the ratio (or the
number) that a line may have. Real matrices are read from COLINEAR_DATA or `../shared/data`; without the files, lines that need them
are left out and named. What JAX compiles is compiled before the clock starts.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import functools
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import MinimalSurface, citations, hydrogen, matrix_market, trefethen
from scipy.sparse.csgraph import connected_components

import colinear as co


class Race(NamedTuple):
    """Two ways to one answer. `error` of either answer must be at most `tol`."""

    name: str
    bar: float
    ours: Callable[[], Any]
    theirs: Callable[[], Any]
    error: Callable[[Any], float]
    tol: float


class Count(NamedTuple):
    """A number of ours that must be at most `bar` (times `peer()`, if there is one)."""

    name: str
    bar: float
    ours: Callable[[], float]
    unit: str
    peer: Callable[[], float] | None = None


def there(*names: str) -> bool:
    return all(hasattr(co, name) for name in names)


def residual(S: Any, b: Any) -> Callable[[Any], float]:
    return lambda x: float(np.linalg.norm(b - S @ np.asarray(x)) / np.linalg.norm(b))


def eigen_residual(S: Any, k: int) -> Callable[[Any], float]:
    """The largest |A v - λ v| of the pairs, relative to |A|."""
    size = float(abs(S).sum(axis=1).max())

    def error(pairs: Any) -> float:
        values, vectors = pairs
        V = np.asarray(vectors.to_dense() if isinstance(vectors, co.LinearOperator) else vectors)
        values = np.asarray(values)
        if len(values) != k:
            return math.inf
        return float(np.linalg.norm(S @ V - V * values, axis=0).max() / size)

    return error


def on(framework: str, S: Any, b: Any) -> tuple[Any, Any]:
    A = co.PSD(co.Sparse(S)).to(backend=framework)
    return A, A.xp.asarray(b)


# ---------------------------------------------------------------------------------------------------- the lines


def solves(small: bool) -> Iterator[Any]:
    if not there("CG", "Jacobi"):
        yield "CG"
        return
    S = (
        trefethen(2_000)
        if small
        else (S if (S := matrix_market("Trefethen_20000")) is not None else trefethen())
    )
    n = S.shape[0]
    b = np.random.default_rng(0).standard_normal(n)
    error = residual(S, b)

    def theirs() -> Any:
        return sla.cg(S, b, rtol=1e-11, maxiter=10 * n)[0]

    def with_jacobi() -> Any:
        d = S.diagonal()
        return sla.cg(S, b, rtol=1e-11, M=sp.diags_array(1 / d))[0]

    for framework, bar in (("numpy", 1.0), ("torch", 1.0), ("jax", 3.0)):
        A, right = on(framework, S, b)
        synchronize = A.xp.synchronize

        def plain(A: Any = A, right: Any = right, synchronize: Any = synchronize) -> Any:
            return synchronize(co.solve(A, right, co.CG(tol=1e-11)))

        yield Race(
            f"CG plain, Trefethen {n}, 1e-11, {framework}", bar, plain, theirs, error, 1.1e-11
        )
    A, right = on("numpy", S, b)
    yield Race(
        f"Auto, Trefethen {n} (bar: CG with Jacobi)",
        1.2,
        lambda: co.solve(A, right, co.Auto(tol=1e-11)),
        with_jacobi,
        error,
        1.1e-11,
    )
    named = co.CG(tol=1e-11, preconditioner=co.Jacobi())
    yield Race(
        f"CG with Jacobi, Trefethen {n} (bar: the same)",
        1.2,
        lambda: co.solve(A, right, named),
        with_jacobi,
        error,
        1.1e-11,
    )


def eigenpairs(small: bool) -> Iterator[Any]:
    if not there("Lanczos"):
        yield "Lanczos"
        return
    L = citations()
    if L is None:
        yield "cit-HepPh"
    else:
        yield graph_race("8 smallest of cit-HepPh's Laplacian (bar: eigsh LA of 2I - L)", L)
        count, label = connected_components(L)
        rows = np.flatnonzero(label == np.bincount(label, minlength=count).argmax())
        yield graph_race(
            "8 smallest of its largest component (bar: the same)", sp.csr_array(L[rows][:, rows])
        )
    S = matrix_market("mhd4800b")
    if S is None:
        yield "mhd4800b"
        return
    B = co.PSD(co.Sparse(S))

    def ours() -> Any:
        return co.eig(B, k=8, which="LA", method=co.Lanczos(tol=1e-10))

    def arpack(ncv: int) -> Any:
        return sla.eigsh(
            S,
            8,
            which="LA",
            tol=1e-10,
            ncv=ncv,
            v0=np.random.default_rng(0).standard_normal(S.shape[0]),
        )

    @functools.cache
    def fastest() -> int:
        """The size of the basis that suits ARPACK best, of those with which it finds all members of the repeated eigenvalues."""
        sizes = [
            ncv
            for ncv in (17, 20, 24, 32, 48, 64)
            if np.abs(arpack(ncv)[0] - ours()[0]).max() < 1e-6
        ]
        return min(sizes, key=lambda ncv: _seconds(lambda: arpack(ncv)))

    yield Race(
        "8 largest of mhd4800b (bar: eigsh, its best ncv)",
        1.0,
        ours,
        lambda: arpack(fastest()),
        eigen_residual(S, 8),
        1e-9,
    )


def graph_race(name: str, L: Any) -> Race:
    """The smallest eigenpairs of a normalised Laplacian L, which are the largest of 2 I - L: what suits ARPACK best."""
    flipped, A = sp.csr_array(2 * sp.eye_array(L.shape[0]) - L), co.PSD(co.Sparse(L))

    @functools.cache
    def best() -> int:
        return min(
            (20, 24, 32),
            key=lambda ncv: _seconds(
                lambda: sla.eigsh(flipped, 8, which="LA", tol=1e-8, ncv=ncv), 2
            ),
        )

    def theirs() -> Any:
        values, vectors = sla.eigsh(flipped, 8, which="LA", tol=1e-8, ncv=best())
        return 2 - values[::-1], vectors[:, ::-1]

    def ours() -> Any:
        return co.eig(A, k=8, which="SA", method=co.Lanczos(tol=1e-8))

    return Race(name, 1.0, ours, theirs, eigen_residual(L, 8), 1e-6)


def nonsymmetric(small: bool) -> Iterator[Any]:
    m = 8 if small else 16
    H = hydrogen(m)
    if there("Arnoldi"):
        A = co.Sparse(H)

        @functools.cache
        def best() -> int:
            run = lambda ncv: sla.eigs(H, 5, which="SR", tol=1e-8, maxiter=10_000, ncv=ncv)
            return min((20, 30, 40, 60), key=lambda ncv: _seconds(lambda: run(ncv), 2))

        for label, ncv, bar in (("", lambda: None, 1.0), (", its best ncv", best, 1.1)):
            yield Race(
                f"hydrogen {m}^3, 5 lowest by Arnoldi (bar: eigs SR{label})", bar,
                lambda: co.eig(A, k=5, which="SR", method=co.Arnoldi(tol=1e-8)),
                lambda ncv=ncv: sla.eigs(H, 5, which="SR", tol=1e-8, maxiter=10_000, ncv=ncv()), eigen_residual(H, 5), 1e-6,
            )  # fmt: skip
    else:
        yield "Arnoldi"
    if not there("GMRES"):
        yield "GMRES"
        return
    shifted = sp.csr_array(H + sp.eye_array(H.shape[0]))
    S, b = co.Sparse(shifted), np.random.default_rng(0).standard_normal(H.shape[0])
    yield Race(
        f"hydrogen {m}^3, (H + I) x = b by GMRES(50)", 1.0,
        lambda: co.solve(co.opaque(S), b, co.GMRES(tol=1e-8, restart=50)),
        lambda: sla.gmres(shifted, b, rtol=1e-8, restart=50, maxiter=200)[0], residual(shifted, b), 1.1e-8,
    )  # fmt: skip

    m = 20 if small else 100
    surface = MinimalSurface(m)

    def gmres(J: Any, f: Any) -> Any:
        return sla.gmres(J, f, rtol=5e-3, restart=50, maxiter=200)[0]

    def gmres_ilu(J: Any, f: Any) -> Any:
        M = sla.spilu(J.tocsc(), drop_tol=1e-4, fill_factor=20)
        return sla.gmres(J, f, rtol=5e-3, M=sla.LinearOperator(J.shape, M.solve), restart=50)[0]

    def ours(J: Any, f: Any) -> Any:
        return co.solve(co.opaque(co.Sparse(J)), f, co.GMRES(tol=5e-3, restart=50))

    def ours_ilu(J: Any, f: Any) -> Any:
        return co.solve(co.Sparse(J), f, co.GMRES(tol=5e-3, restart=50, preconditioner=co.ILU()))

    name = f"minimal surface {m}^2, Newton with GMRES(50)"
    for label, mine, bar in (("plain", ours, gmres), ("ILU", ours_ilu, gmres_ilu)):
        yield Race(
            f"{name}, {label}", 1.0, lambda mine=mine: surface.newton(mine), lambda bar=bar: surface.newton(bar),
            lambda answer: answer[1], 1e-8,
        )  # fmt: skip


def overheads(small: bool) -> Iterator[Any]:
    n, few, many = 1000, 100, 500  # what more iterations take: a call's own cost is no part of it
    S = sp.csr_array(
        sp.diags_array([[-1.0] * (n - 1), [2.0] * n, [-1.0] * (n - 1)], offsets=[-1, 0, 1])
    )
    b = np.random.default_rng(0).standard_normal(n)

    def each(run: Callable[[int], Any], product: Callable[[], Any]) -> float:
        times = {count: _seconds(lambda count=count: run(count), 9) for count in (few, many)}  # type: ignore[misc]
        return 1e6 * ((times[many] - times[few]) / (many - few) - _seconds(product, 200))

    peers: dict[str, Callable[[int], Any]] = {
        "CG": lambda count: sla.cg(S, b, rtol=1e-14, maxiter=count),
        "MINRES": lambda count: sla.minres(S, b, rtol=1e-14, maxiter=count),
        "BiCGSTAB": lambda count: sla.bicgstab(S, b, rtol=1e-14, maxiter=count),
        "LSQR": lambda count: sla.lsqr(S, b, atol=0, btol=0, conlim=0, iter_lim=count),
        "LSMR": lambda count: sla.lsmr(S, b, atol=0, btol=0, conlim=0, maxiter=count),
    }
    products = {"CG": 1, "MINRES": 1, "BiCGSTAB": 2, "LSQR": 2, "LSMR": 2}
    for name in filter(there, peers):

        def theirs(name: str = name) -> float:
            return each(peers[name], lambda: [S @ b for _ in range(products[name])])

        for framework in ("numpy", "torch"):
            A, right = on(framework, S, b)
            hidden = co.opaque(A)

            def ours(
                A: Any = hidden, own: Any = A.S, right: Any = right, name: str = name
            ) -> float:
                function = co.lstsq if name in ("LSQR", "LSMR") else co.solve

                def run(count: int) -> Any:
                    return function(
                        A, right, getattr(co, name)(tol=1e-14, max_iters=count), on_failure="ignore"
                    )

                return each(run, lambda: [own @ right for _ in range(products[name])])

            yield Count(
                f"{name} beyond its products, each iteration, {framework}",
                1.0 if name == "CG" else 1.2,
                ours,
                "us",
                theirs,
            )


def memory(small: bool) -> Iterator[Any]:
    n = 100_000 if small else 400_000
    A = co.PSD(co.Tridiagonal(np.full(n - 1, -1.0), np.full(n, 2.0), np.full(n - 1, -1.0)))
    hidden = co.opaque(A)
    b = np.random.default_rng(0).standard_normal(n)

    def solve() -> float:
        return _vectors(
            lambda: co.solve(hidden, b, co.CG(tol=1e-12, max_iters=20), on_failure="ignore"), n
        )

    if there("CG"):
        yield Count("memory of CG, beside A and b", 6, solve, "vectors")
    if there("Lanczos"):
        k = 10

        def eig() -> float:
            return _vectors(
                lambda: co.eig(
                    hidden, k=k, which="LA", method=co.Lanczos(tol=1e-2), on_failure="ignore"
                ),
                n,
            )

        yield Count(f"memory of Lanczos for {k} pairs, beside A", 3 * k + 20, eig, "vectors")


def _vectors(work: Callable[[], Any], n: int) -> float:
    """The most memory at a time, in vectors of n numbers."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / (8 * n)
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------------------------------------------- measuring


def _seconds(work: Callable[[], Any], repeats: int = 5) -> float:
    """The least time of a few."""
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def raced(race: Race, seconds: float) -> dict[str, Any]:
    errors = [race.error(work()) for work in (race.ours, race.theirs)]
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for work, taken in zip((race.ours, race.theirs), times):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    mine, peer = map(statistics.median, times)
    right = errors[0] <= race.tol
    return {
        "case": race.name, "ms": 1e3 * mine, "peer_ms": 1e3 * peer, "ratio": mine / peer, "bar": race.bar,
        "error": errors[0], "peer_error": errors[1], "right": right, "ok": right and mine <= race.bar * peer,
    }  # fmt: skip


def counted(count: Count) -> dict[str, Any]:
    found, peer = count.ours(), None if count.peer is None else count.peer()
    ratio = found if peer is None else found / peer
    return {
        "case": count.name, "found": found, "peer": peer, "unit": count.unit, "ratio": ratio, "bar": count.bar,
        "right": True, "ok": ratio <= count.bar,
    }  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    verdict = "ok" if row["ok"] else "MISSED" if row["right"] else "WRONG"
    if "ms" in row:
        middle = f"{row['ms']:9.2f}ms {row['peer_ms']:9.2f}ms {row['ratio']:6.2f} {row['bar']:5.1f}"
        middle += f"  {row['error']:8.1e} {row['peer_error']:8.1e}"
    else:
        peer = "" if row["peer"] is None else f"{row['peer']:.2f}"
        middle = f"{row['found']:9.2f}   {peer:>9s}   {row['ratio']:6.2f} {row['bar']:5.1f}  {row['unit']:17s}"
    return f"{row['case']:66s} {middle}  {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", help="save the table to this file")
    parser.add_argument("--only", default="", help="only the lines whose name contains this")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each line")
    options = parser.parse_args()
    table = []
    print(
        f"{'':66s} {'colinear':>11s} {'SciPy':>11s} {'ratio':>6s} {'bar':>5s}  {'error':>8s} {'SciPy':>8s}"
    )
    for group in (solves, eigenpairs, nonsymmetric, overheads, memory):
        for line in group(options.size == "small"):
            if isinstance(line, str):
                print(f"{line}: not there, its lines are left out")
            elif options.only.lower() in line.name.lower():
                row = raced(line, options.seconds) if isinstance(line, Race) else counted(line)
                table.append(row)
                print(shown(row), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    sys.exit(any(not row["right"] for row in table))


if __name__ == "__main__":
    main()
