"""Every method that a problem allows, forced, beside the one that `Auto` takes; and forecasts beside times.

    python benchmarks/auto.py [--only TEXT] [--sizes 0 1 2] [--backend numpy] [--timeout 20] [--predict]

Each cell runs in a process of its own with one thread: the least time of the processor of several runs. A method that fails, warns, or
differs from `Auto` by more than `TOL` is no rival. A line is marked `>` where `Auto` takes over 1.5 times the best, `>>` over 2 times. With
`--predict` the seconds that `explain` forecasts stand beside them, and at the end the median and the 95th percentile of how far they
are off, of what `Auto` does and of all methods: by the rates that `colinear calibrate` left, else by the built-in ones.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import scipy.sparse as sp

import colinear as co
from colinear.functions.solve.families import eliminate_sparse
from colinear.operators.sparse_algebra import as_sparse

TOL = 1e-5  # of answers beside those of Auto, relative to the largest entry
LONG = 0.3  # seconds, from which on a call is made only twice
FORECASTS_WITHIN = 1.5, 4.0  # the bars of the median and of the 95th percentile


@dataclass
class Problem:
    """`make(size)` returns the operator and the other arguments of `ask(A, *arguments, method)`, the function itself if there is no `ask`.
    `methods`: what may be forced, by name; a function of A and the arguments where there is no method of that name."""

    name: str
    sizes: tuple[int, ...]
    make: Callable[[int], tuple[Any, ...]]
    methods: dict[str, Any]
    function: Any = co.solve
    ask: Callable[..., Any] | None = None


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


def definite(n: int) -> Any:
    X = normal(n, n)
    return X @ X.T / n + 1e-3 * np.eye(n)


def grid(m: int, dimensions: int) -> Any:
    T = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
    S = T
    for _ in range(dimensions - 1):
        S = sp.kronsum(S, T)
    return sp.csr_array(S)


def uneven(m: int, dimensions: int) -> Any:
    """A grid that is no sum of lines."""
    D = sp.diags_array(1 + np.random.default_rng(0).random(m**dimensions))
    return sp.csr_array(D @ grid(m, dimensions) @ D)


def points(n: int) -> Any:
    return np.random.default_rng(0).random((n, 2))


def gaussian(X: Any, Y: Any) -> Any:
    return co.backends.namespace_of(X).exp(-8 * ((X[:, None] - Y[None]) ** 2).sum(-1))


def eliminated(A: Any, b: Any) -> Any:
    return eliminate_sparse(A, None) @ b


DIRECT = {"Cholesky": co.Cholesky(), "LDL": co.LDL(), "LU": co.LU(), "QR": co.QR()}
POSITIVE = {"CG": co.CG(), "CG, Jacobi": co.CG(preconditioner=co.Jacobi()), "MINRES": co.MINRES()}
SPARSE = {
    "elimination": eliminated,
    **POSITIVE,
    "CG, IC": co.CG(preconditioner=co.IC()),
    "CG, AMG": co.CG(preconditioner=co.AMG()),
}
LEAST_SQUARES = {"SVD": co.SVD(), "QR": co.QR(), "LSMR": co.LSMR(), "LSQR": co.LSQR()}

PROBLEMS = [
    Problem("dense, PSD", (100, 400, 1500), lambda n: (co.PSD(definite(n)), normal(n)), DIRECT | POSITIVE),
    Problem(
        "dense, general",
        (100, 400, 1500),
        lambda n: (co.Dense(normal(n, n)), normal(n)),
        {"LU": co.LU(), "QR": co.QR(), "GMRES": co.GMRES(), "BiCGSTAB": co.BiCGSTAB()},
    ),
    Problem("Poisson, 2-D", (30, 100, 250), lambda m: (co.PSD(co.Sparse(grid(m, 2))), normal(m**2)), SPARSE),
    Problem("Poisson, 3-D", (10, 20, 32), lambda m: (co.PSD(co.Sparse(grid(m, 3))), normal(m**3)), SPARSE),
    Problem("uneven, 2-D", (30, 100, 250), lambda m: (co.PSD(co.Sparse(uneven(m, 2))), normal(m**2)), SPARSE),
    Problem("uneven, 3-D", (10, 20, 32), lambda m: (co.PSD(co.Sparse(uneven(m, 3))), normal(m**3)), SPARSE),
    Problem(
        "Sparse + Diagonal",
        (30, 100, 250),
        lambda m: (co.Sparse(grid(m, 2)) + co.Diagonal(0.1 + np.abs(normal(m * m))), normal(m * m)),
{"elimination": lambda A, b: eliminated(as_sparse(A), b)} | POSITIVE,
    ),
    Problem(
        "Kernel + c I",
        (300, 1000, 2500),
        lambda n: (co.PSD(co.Kernel(gaussian, points(n))) + 0.1 * co.Identity(n), normal(n)),
        DIRECT | {"CG": co.CG(), "CG, Nyström": co.CG(preconditioner=co.Nystrom(rank=50))},
    ),
    Problem(
        "Kronecker + c I",
        (10, 30, 100),
        lambda m: (co.Kronecker(*2 * [co.PSD(definite(m))]) + 0.1 * co.Identity(m * m), normal(m * m)),
        {"CG": co.CG(), "MINRES": co.MINRES(), "hidden": lambda A, b: co.solve(co.opaque(A), b)},
    ),
    Problem(
        "Toeplitz",
        (100, 1000, 6000),
        lambda n: (co.PSD(co.Toeplitz(np.r_[1.5, 0.5 ** np.arange(1.0, n)])), normal(n)),
        {"CG": co.CG(), "MINRES": co.MINRES(), "matrix": lambda A, b: co.solve(co.PSD(co.Dense(A.to_dense())), b)},
    ),
    Problem(
        "Diagonal + LowRank",
        (200, 2000, 20_000),
        lambda n: (co.PSD(co.Diagonal(1 + np.abs(normal(n)))) + co.LowRank(normal(n, 20)), normal(n)),
        {"CG": co.CG(), "MINRES": co.MINRES(), "hidden": lambda A, b: co.solve(co.opaque(A), b)},
    ),
    Problem("lstsq, dense", (50, 200, 600), lambda n: (co.Dense(normal(4 * n, n) * np.logspace(0, -3, n)), normal(4 * n)), LEAST_SQUARES, co.lstsq),
    Problem(
        "lstsq, sparse",
        (100, 400, 1500),
        lambda n: (co.Sparse(sp.random_array((3 * n, n), density=5 / n, rng=0) + sp.eye_array(3 * n, n)), normal(3 * n)),
        LEAST_SQUARES,
        co.lstsq,
    ),
    Problem(
        "logdet, dense PSD",
        (100, 400, 1500),
        lambda n: (co.PSD(definite(n)),),
        {"Cholesky": co.Cholesky(), "LU": co.LU(), "LDL": co.LDL()},
        co.logdet,
    ),
    Problem(
        "logdet, sparse",
        (30, 60, 100),
        lambda m: (co.PSD(co.Sparse(grid(m, 2))),),
        {"matrix": lambda A: co.logdet(co.PSD(co.Dense(A.to_dense())))},
        co.logdet,
    ),
    Problem(
        "exp(-A) b, sparse",
        (15, 30, 60),
        lambda m: (co.SelfAdjoint(co.Sparse(-grid(m, 2))), normal(m * m)),
        {"Krylov": co.Krylov(), "Eigh": co.Eigh()},
        co.exp,
        lambda A, b, method: co.exp(A, method) @ b,
    ),
    Problem(
        "5 largest, dense",
        (200, 600, 1500),
        lambda n: (co.PSD(definite(n)), 5),
        {"Lanczos": co.Lanczos(), "Eigh": co.Eigh(), "LOBPCG": co.LOBPCG()},
        co.eig,
        lambda A, k, method: co.eig(A, k, "LM", method)[0],
    ),
    Problem(
        "5 smallest, sparse",
        (15, 40, 100),
        lambda m: (co.PSD(co.Sparse(grid(m, 2))), 5),
        {"Lanczos": co.Lanczos(), "Eigh": co.Eigh(), "LOBPCG": co.LOBPCG()},
        co.eig,
        lambda A, k, method: co.eig(A, k, "SM", method)[0],
    ),
]  # fmt: skip


def measure(work: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and the least time of the processor after a first call."""
    answer = work()
    least, spent, count = math.inf, 0.0, 0
    while count < 2 or (count < 7 and least < LONG and spent < 1):
        begin = time.process_time()
        answer = work()
        took = time.process_time() - begin
        least, spent, count = min(least, took), spent + took, count + 1
    return answer, least


def forecast(p: Problem, A: Any, arguments: Any, method: Any) -> float:
    """The seconds that `explain` says."""
    if p.function is co.exp:
        arguments = ()
    elif p.function is co.eig:
        arguments = (*arguments, "SM" if "smallest" in p.name else "LM")
    return co.explain(p.function, A, *arguments, method=method).cost.seconds


def run(p: Problem, size: int, backend: str, way: str) -> dict[str, Any]:
    """The figures of one cell: the way is `Auto` or the name of a method."""
    A, *arguments = p.make(size)
    A = A.to(backend)
    arguments = [A.xp.asarray(x) if isinstance(x, np.ndarray) else x for x in arguments]
    method = p.methods.get(way)
    is_method = method is None or not callable(method)
    if not is_method:
        work = lambda: method(A, *arguments)
    elif p.ask is None:
        work = lambda: p.function(A, *arguments, method=method)
    else:
        work = lambda: p.ask(A, *arguments, method)
    with warnings.catch_warnings():
        warnings.simplefilter("error", co.ConvergenceWarning)
        predicted = forecast(p, A, arguments, method) if is_method else math.nan
        answer, seconds = measure(work)
    return {"seconds": seconds, "predicted": predicted, "answer": A.xp.to_numpy(answer)}


def _send(pipe: Any, *cell: Any) -> None:
    try:
        pipe.send(run(*cell))
    except Exception as error:  # it is said, and the others go on
        pipe.send({"failed": f"{type(error).__name__}: {error}"[:60]})


def cell(p: Problem, size: int, backend: str, way: str, timeout: float) -> dict[str, Any]:
    """The figures of one cell, from a process of its own."""
    here, there = multiprocessing.Pipe(False)
    process = multiprocessing.get_context("fork").Process(
        target=_send, args=(there, p, size, backend, way)
    )
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(timeout) else {"failed": f"> {timeout:.0f} s"}
    except EOFError:
        return {"failed": "died"}
    finally:
        process.kill()
        process.join()


def rivals(
    p: Problem, size: int, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What Auto found, and what each method did that found the same."""
    auto = cell(p, size, options.backend, "Auto", options.timeout)
    yield "Auto", auto
    for way in p.methods:
        limit = options.timeout
        if "seconds" in auto:  # what takes far longer is no rival
            limit = min(limit, 1 + 40 * auto["seconds"])
        found = cell(p, size, options.backend, way, limit)
        if "answer" in found and "answer" in auto:
            apart = np.abs(found["answer"] - auto["answer"]).max(initial=0.0)
            if not apart <= TOL * np.abs(auto["answer"]).max(initial=0.0):
                found = {"failed": "another answer"}
        yield way, found


def quantiles(ratios: list[float]) -> str:
    apart = np.sort([max(r, 1 / r) for r in ratios if r > 0])
    if not len(apart):
        return "none"
    median, most = np.quantile(apart, [0.5, 0.95])
    return f"median {median:.2g}x, 95 % within {most:.2g}x, of {len(apart)} cells"


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="problems whose names contain this")
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[0, 1, 2], help="which of the three"
    )
    parser.add_argument("--backend", default="numpy", choices=["numpy", "torch", "jax"])
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds of a cell")
    parser.add_argument("--predict", action="store_true", help="forecasts beside times")
    options = parser.parse_args(arguments)
    lines: list[dict[str, Any]] = []
    ratios: dict[bool, list[float]] = {True: [], False: []}
    print("| problem | size | Auto, ms | best, ms | ratio | others |")
    print("| --- " * 6 + "|")
    for p in PROBLEMS:
        if options.only.lower() not in p.name.lower():
            continue
        for i in options.sizes:
            ways = dict(rivals(p, p.sizes[i], options))
            times = {way: found["seconds"] for way, found in ways.items() if "seconds" in found}
            best = min(times, key=times.__getitem__, default="none")
            ratio = times.get("Auto", math.nan) / times.get(best, math.nan)
            mark = ">> " if ratio > 2 else "> " if ratio > 1.5 else ""
            said = [
                shown(way, found, options.predict) for way, found in ways.items() if way != "Auto"
            ]
            auto = shown("", ways["Auto"], options.predict)
            least = f"{best} {1e3 * times.get(best, math.nan):.3g}"
            print(
                f"| {p.name} | {p.sizes[i]} | {auto} | {least} | {mark}{ratio:.2g} | {'; '.join(said)} |",
                flush=True,
            )
            for way, found in ways.items():
                if found.get("predicted", 0) > 0:
                    ratios[way == "Auto"].append(found["predicted"] / found["seconds"])
            lines.append({"problem": p.name, "size": p.sizes[i], "ratio": ratio, "ways": ways})
    over = [line for line in lines if line["ratio"] > 1.5]
    print(
        f"\n{len(over)} of {len(lines)} lines over 1.5x, {sum(line['ratio'] > 2 for line in over)} over 2x"
    )
    if options.predict:
        median, most = FORECASTS_WITHIN
        print(f"forecasts of Auto: {quantiles(ratios[True])} (bars {median}x and {most}x)")
        print(f"forecasts of all methods: {quantiles(ratios[True] + ratios[False])}")
    return lines


def shown(way: str, found: dict[str, Any], predict: bool) -> str:
    if "failed" in found:
        return f"{way} {found['failed']}".strip()
    text = f"{way} {1e3 * found['seconds']:.3g}".strip()
    if predict and found["predicted"] > 0:
        text += f" (forecast {1e3 * found['predicted']:.3g})"
    return text


if __name__ == "__main__":
    main()
