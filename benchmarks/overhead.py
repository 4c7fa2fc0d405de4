"""What the abstraction costs: construction, small products, dispatch and import, beside SciPy's `aslinearoperator`;
small problems, built and solved, beside the formula written out; and a loop in which only values change, with
`factorize` and `update`, built and solved anew, and written by hand.

    python benchmarks/overhead.py            # prints the tables; --json FILE saves them
    python benchmarks/overhead.py --only small    # or rows, or loops: one of the three

Each line is the best median of several repeats, both contestants in the same run, one thread. Small problems
are timed by the clock of the processor, in turns with the formula, in NumPy, torch and compiled JAX.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse
import scipy.sparse.linalg

import colinear as co


def microseconds(
    work: Callable[[], object],
    seconds: float = 0.2,
    clock: Callable[[], float] = time.process_time,
) -> float:
    """The best median time of one call, in microseconds: of the processor, unless told otherwise."""
    timer = timeit.Timer(work, timer=clock)
    number, taken = timer.autorange()
    number = max(1, int(number * seconds / max(taken, 1e-9) / 7))
    rounds = [[t / number * 1e6 for t in timer.repeat(7, number)] for _ in range(3)]
    return min(statistics.median(times) for times in rounds)


def in_turns(*works: Callable[[], object], rounds: int = 15, seconds: float = 0.01) -> list[float]:
    """The median processor time of one call of each, in microseconds, taken in turns: what else the
    machine does slows all of them."""

    def clock(work: Callable[[], object], number: int) -> float:
        start = time.process_time()
        for _ in range(number):
            work()
        return (time.process_time() - start) / number * 1e6

    numbers = []
    for work in works:
        work()
        numbers.append(max(1, int(seconds * 1e6 / max(clock(work, 20), 0.1))))
    times = [[clock(*each) for each in zip(works, numbers)] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def small_problems(
    xp: Any, solve: Callable, put: Callable
) -> Iterator[tuple[str, Any, Any, tuple]]:
    """Yield what is computed, by colinear and by hand, and of which arrays."""
    rng = np.random.default_rng(0)
    for n in (10, 100, 1000):
        d, b = put(rng.uniform(1, 2, n)), put(rng.normal(size=n))
        yield f"Diagonal {n}", lambda d, b: co.solve(co.Diagonal(d), b), lambda d, b: b / d, (d, b)
        U, eye = put(rng.normal(size=(n, 3))), put(np.eye(3))

        def woodbury(d: Any, U: Any, b: Any, eye: Any) -> Any:
            x, W = b / d, U / d[:, None]
            return x - W @ solve(eye + U.T @ W, U.T @ x)

        def ours(d: Any, U: Any, b: Any, eye: Any) -> Any:
            return co.solve(co.Diagonal(d) + co.LowRank(U), b)

        yield f"Woodbury {n}, 3", ours, woodbury, (d, U, b, eye)
    for n in (3, 10, 100):
        A, b = put(rng.normal(size=(n, n)) + 3 * n**0.5 * np.eye(n)), put(rng.normal(size=n))
        yield f"dense {n}", lambda A, b: co.solve(A, b), solve, (A, b)
    for n in (10, 32):
        P, Q = (put(rng.normal(size=(n, n)) + 3 * n**0.5 * np.eye(n)) for _ in range(2))
        b = put(rng.normal(size=n * n))

        def by_factors(P: Any, Q: Any, b: Any, n: int = n) -> Any:
            return solve(Q, solve(P, b.reshape(n, n)).T).T.reshape(-1)

        def kronecker(P: Any, Q: Any, b: Any) -> Any:
            return co.solve(co.Kronecker(P, Q), b)

        yield f"Kronecker {n} ⊗ {n}", kronecker, by_factors, (P, Q, b)
    A, d, x = put(rng.normal(size=(10, 10))), put(rng.normal(size=10)), put(rng.normal(size=10))

    def product(A: Any, d: Any, x: Any) -> Any:
        return (2 * co.Dense(A) + co.Diagonal(d)) @ x

    yield "(2 A + D) x, 10", product, lambda A, d, x: 2 * (A @ x) + d * x, (A, d, x)


# us that a problem may take in NumPy, built and solved; in torch twice as long, in compiled JAX twice
# as long as the formula
LIMITS = {"Diagonal 10": 6, "Kronecker 10 ⊗ 10": 100, "dense 3": 15, "(2 A + D) x, 10": 20}


def small_rows() -> Iterator[dict[str, object]]:
    """Small problems in each framework that there is, beside the formula."""

    def line(name: str, ours: float, by_hand: float, limit: float | None, figure: str) -> dict:
        met = limit is None or ours <= limit
        return {"what": name, "ours": ours, "bar": by_hand, "bar is": "by hand"} | {
            "scipy": None,
            "figure": figure,
            "met": met,
        }

    for name, ours, by_hand, arrays in small_problems(np, np.linalg.solve, np.asarray):
        times = in_turns(partial(ours, *arrays), partial(by_hand, *arrays))
        limit = LIMITS.get(name)
        yield line(f"numpy {name}", *times, limit, f"<= {limit} us" if limit else "")
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(1)
        for name, ours, by_hand, arrays in small_problems(torch, torch.linalg.solve, torch.asarray):
            times = in_turns(partial(ours, *arrays), partial(by_hand, *arrays))
            limit = 2 * LIMITS[name] if name in LIMITS else None
            yield line(f"torch {name}", *times, limit, f"<= {limit} us" if limit else "")
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return
    jax.config.update("jax_enable_x64", True)
    cases = list(small_problems(jnp, jnp.linalg.solve, jnp.asarray))
    rng = np.random.default_rng(1)
    for n in (10, 100, 1000):
        G, b = rng.normal(size=(n, n)), jnp.asarray(rng.normal(size=n))
        A = jnp.asarray(G @ G.T / n + np.eye(n))

        def by_jax(A: Any, b: Any) -> Any:
            return jax.scipy.sparse.linalg.cg(lambda v: A @ v, b, tol=1.5e-8)[0]

        cases.append((f"CG {n}", lambda A, b: co.solve(co.PSD(A), b, co.CG()), by_jax, (A, b)))
    for name, ours, by_hand, arrays in cases:
        programs = [jax.jit(f) for f in (ours, by_hand)]
        # with the answer waited for, by the clock on the wall: others compute it
        runs = [partial(lambda f, a: jax.block_until_ready(f(*a)), f, arrays) for f in programs]
        times = [min(microseconds(run, 0.1, time.perf_counter) for _ in range(2)) for run in runs]
        yield line(f"jit {name}", *times, 2 * times[1], "2 x by hand")


def import_seconds(package: str) -> float:
    """Best of five imports in fresh interpreters, the interpreter's own start taken off."""

    with tempfile.TemporaryDirectory() as cache:  # compiled once, as after an installation
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}

        def best(code: str) -> float:
            run = [sys.executable, "-c", code]
            return min(
                timeit.repeat(
                    lambda: subprocess.run(run, check=True, env=environment), number=1, repeat=7
                )
            )

        return best(f"import {package}") - best("pass")


def constructors(array: np.ndarray, d: np.ndarray) -> dict[str, Callable[[], object]]:
    """Every family of base operators, of small arrays that are there already."""
    n, beside, U = len(d), d[1:], array[:, :2]
    perm, shape = np.arange(n)[::-1].copy(), (n, n)
    Q = np.linalg.qr(array)[0][:, :2]
    S = scipy.sparse.csr_array(array)
    return {
        "Dense": lambda: co.Dense(array),
        "Diagonal": lambda: co.Diagonal(d),
        "Identity": lambda: co.Identity(n),
        "ScaledIdentity": lambda: co.ScaledIdentity(2.0, n),
        "Zero": lambda: co.Zero(n, n),
        "Triangular": lambda: co.Triangular(array),
        "Tridiagonal": lambda: co.Tridiagonal(beside, d, beside),
        "Banded": lambda: co.Banded((beside, d, beside), (-1, 0, 1)),
        "Permutation": lambda: co.Permutation(perm),
        "Toeplitz": lambda: co.Toeplitz(d),
        "Circulant": lambda: co.Circulant(d),
        "Convolution": lambda: co.Convolution(d, (n,)),
        "FFT": lambda: co.FFT((n,)),
        "LowRank": lambda: co.LowRank(U),
        "Householder": lambda: co.Householder(d),
        "Projection": lambda: co.Projection(Q),
        "Sparse": lambda: co.Sparse(S),
        "MatrixFree": lambda: co.MatrixFree(np.negative, shape),
    }


def rows() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    n = 8
    array, x, d = rng.normal(size=(n, n)), rng.normal(size=n), rng.uniform(1, 2, n)
    dense, diagonal = co.Dense(array), co.Diagonal(d)
    other = co.Dense(rng.normal(size=(n, n)))
    theirs = scipy.sparse.linalg.aslinearoperator(array)
    theirs_too = scipy.sparse.linalg.aslinearoperator(other.A)
    table: list[dict[str, object]] = []

    def row(
        what: str,
        ours: float,
        bar: float | None,
        bar_name: str,
        scipy_time: float | None,
        limit: str,
        met: bool,
    ) -> None:
        table.append(
            {
                "what": what,
                "ours": ours,
                "bar": bar,
                "bar is": bar_name,
                "scipy": scipy_time,
                "figure": limit,
                "met": met,
            }
        )

    by_scipy = microseconds(lambda: scipy.sparse.linalg.aslinearoperator(array))
    for name, construct in constructors(array, d).items():
        ours = microseconds(construct, 0.1)
        row(f"construct {name}", ours, None, "", by_scipy, "<= 5 us", ours <= 5)
    ours = microseconds(lambda: dense + diagonal)
    row("A + B", ours, None, "", microseconds(lambda: theirs + theirs_too), "<= 10 us", ours <= 10)
    ours, bar = microseconds(lambda: dense @ x), microseconds(lambda: array @ x)
    row(
        "Dense @ x",
        ours,
        bar,
        "array @ x",
        microseconds(lambda: theirs @ x),
        "bar + 2 us",
        ours <= bar + 2,
    )
    ours, bar = microseconds(lambda: diagonal @ x), microseconds(lambda: d * x)
    row("Diagonal @ x", ours, bar, "d * x", None, "bar + 2 us", ours <= bar + 2)

    probe = co.function("probe", base=lambda A, method=None: A)

    def bare(A: object, method: object) -> object:
        return A

    product = co.Kronecker(dense, diagonal)
    probe(product)
    ours, bar = microseconds(lambda: probe(product)), microseconds(lambda: bare(product, None))
    row("warm dispatch", ours, bar, "the rule itself", None, "bar + 1 us", ours <= bar + 1)

    # Structures that dispatch has not seen: X ⊗ Y + Z for all families X, Y and Z of a list, to a function that has the rules of `inv`.
    fresh = co.function("fresh", base=lambda A, method=None: A)
    for known in co.inv.rules:
        co.rule(fresh, known.pattern, name=known.name, cost=known.cost or (lambda A: 0.0))(
            lambda A, method: A
        )
    small = [
        dense,
        diagonal,
        co.Toeplitz(d),
        co.Circulant(d),
        co.PSD(array @ array.T),
        co.Identity(n),
    ]
    large = [
        co.Dense(np.ones((n * n, n * n))),
        co.Toeplitz(np.ones(n * n)),
        co.LowRank(np.ones((n * n, 1))),
    ]
    structures = [
        co.Kronecker(X, Y) + Z for X in small for Y in small for Z in large if X is not small[-1]
    ]
    times = [timeit.timeit(lambda A=A: fresh(A), number=1) * 1e6 for A in structures]  # type: ignore[misc]
    ours = statistics.median(times)
    row("new structure", ours, None, "", None, "<= 30 us", ours <= 30)

    P, Q = rng.normal(size=(1000, 1000)), rng.normal(size=(1000, 1000))
    kron, v = co.Kronecker(P, Q), rng.normal(size=1_000_000)
    ours, bar = (
        microseconds(lambda: kron @ v, 2.0),
        microseconds(lambda: P @ v.reshape(1000, 1000) @ Q.T, 2.0),
    )
    row(
        "Kronecker @ x, 1000 ⊗ 1000",
        ours,
        bar,
        "two products",
        None,
        "1.1 x bar",
        ours <= 1.1 * bar,
    )

    ours, bar = import_seconds("colinear") * 1e6, import_seconds("numpy") * 1e6
    row(
        "import colinear",
        ours,
        bar,
        "import numpy",
        import_seconds("scipy.sparse.linalg") * 1e6,
        "< 0.3 s",
        ours < 0.3e6,
    )
    return table


# --------------------------------------------------------------------------------------------------


STEPS = 100  # of a loop
RIGHT_SIDES = 4  # in each step, one after the other, where more is asked than one solution


class Loop(NamedTuple):
    """A structure whose values change: `build(*arrays)`, and by hand `factor(*arrays)`, which gives the solution for a right side as a
    function, and the logarithm of the determinant as another."""

    name: str
    arrays: tuple[Any, ...]
    build: Callable[..., Any]
    factor: Callable[..., tuple[Callable[[Any], Any], Callable[[], Any]]]


def loops() -> Iterator[Loop]:
    rng = np.random.default_rng(0)
    linalg = scipy.linalg

    def cholesky(M: Any) -> Any:
        L = linalg.cho_factor(M, lower=True, check_finite=False)
        return (
            lambda b: linalg.cho_solve(L, b, check_finite=False),
            lambda: 2 * np.log(np.diagonal(L[0])).sum(),
        )

    for n in (10, 200):
        G = rng.normal(size=(n, n))
        yield Loop(f"PSD, n = {n}", (G @ G.T + n * np.eye(n),), lambda M: co.PSD(M), cholesky)

    def woodbury(U: Any, d: Any) -> Any:
        S = U / d[:, None]
        solve, logarithm = cholesky(np.eye(U.shape[1]) + U.T @ S)
        return (
            lambda b: b / d - S @ solve(S.T @ b),
            lambda: np.log(d).sum() + logarithm(),
        )

    for n, r in ((100, 4), (5000, 10)):
        arrays = rng.normal(size=(n, r)), rng.uniform(1, 2, n)
        yield Loop(
            f"Woodbury, n = {n}, r = {r}",
            arrays,
            lambda U, d: co.LowRank(U) + co.Diagonal(d),
            woodbury,
        )

    def kronecker(A: Any, B: Any) -> Any:
        left, right = (linalg.lu_factor(M, check_finite=False) for M in (A, B))
        m, n = len(A), len(B)

        def solve(b: Any) -> Any:
            X = linalg.lu_solve(left, b.reshape(m, n), check_finite=False)
            return linalg.lu_solve(right, X.T, check_finite=False).T.reshape(-1)

        logs = [np.log(np.abs(np.diagonal(each[0]))).sum() for each in (left, right)]
        return solve, lambda: n * logs[0] + m * logs[1]

    A, B = (rng.normal(size=(10, 10)) + 5 * np.eye(10) for _ in range(2))
    yield Loop("Kronecker, 10 ⊗ 10", (A, B), co.Kronecker, kronecker)

    m = 60
    T = scipy.sparse.diags_array(
        [-np.ones(m - 1), 2 * np.ones(m), -np.ones(m - 1)], offsets=(-1, 0, 1)
    )
    eye = scipy.sparse.eye_array(m)
    grid = scipy.sparse.csr_array(
        scipy.sparse.kron(T, eye) + scipy.sparse.kron(eye, T) + 0.1 * scipy.sparse.eye_array(m * m)
    )
    whole = co.PSD(co.Sparse(grid))

    def sparse(data: Any) -> Any:
        S = scipy.sparse.csc_array((data, grid.indices, grid.indptr), shape=grid.shape)  # symmetric
        lu = scipy.sparse.linalg.splu(
            S, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
        return lu.solve, lambda: np.log(np.abs(lu.U.diagonal())).sum()

    def as_sparse(data: Any) -> Any:
        matrix = scipy.sparse.csr_array((data, grid.indices, grid.indptr), shape=grid.shape)
        return co.PSD(co.Sparse(matrix))

    yield Loop(f"sparse, {m} x {m} grid", whole.arrays(), as_sparse, sparse)

    n, w = 2000, 5
    offsets = tuple(range(-w, w + 1))
    diagonals = tuple(rng.normal(size=n - abs(k)) + 4 * w * (k == 0) for k in offsets)

    def banded(*diagonals: Any) -> Any:
        ab = np.zeros((3 * w + 1, n))
        for k, d in zip(offsets, diagonals):
            ab[2 * w - k, max(k, 0) : max(k, 0) + len(d)] = d
        lu, pivots, _ = linalg.lapack.dgbtrf(ab, w, w)
        return (
            lambda b: linalg.lapack.dgbtrs(lu, w, w, b, pivots)[0],
            lambda: np.log(np.abs(lu[2 * w])).sum(),
        )

    yield Loop(
        f"banded, n = {n}, {2 * w + 1} diagonals",
        diagonals,
        lambda *d: co.Banded(d, offsets),
        banded,
    )


def seconds_of_loop(step: Callable[[int], object]) -> float:
    """The best processor time of a loop of three, by the step."""
    times = []
    for _ in range(3):
        start = time.process_time()
        for k in range(STEPS):
            step(k)
        times.append((time.process_time() - start) / STEPS)
    return min(times)


def loop_rows() -> list[dict[str, object]]:
    """What a step takes, in microseconds: of one solution, and of several with a determinant."""
    table: list[dict[str, object]] = []
    for loop in loops():
        A = loop.build(*loop.arrays)
        F, b = co.factorize(A), np.cos(np.arange(A.shape[-1]))

        def leaves(k: int, loop: Loop = loop) -> list[Any]:
            return [x * (1 + k / STEPS) for x in loop.arrays]

        def by_hand(k: int, count: int, loop: Loop = loop, b: Any = b) -> None:
            solve, logarithm = loop.factor(*leaves(k))
            for _ in range(count):
                solve(b)
            if count > 1:
                logarithm()

        def anew(k: int, count: int, loop: Loop = loop, b: Any = b) -> None:
            arrays = leaves(k)
            for _ in range(count):
                co.solve(loop.build(*arrays), b)
            if count > 1:
                co.logdet(loop.build(*arrays))

        def kept(k: int, count: int, F: Any = F, b: Any = b) -> None:
            G = F.update(leaves(k))
            for _ in range(count):
                G.solve(b)
            if count > 1:
                G.logdet()

        for count in (1, RIGHT_SIDES):
            asked = "solve" if count == 1 else f"{count} solves, logdet"
            hand, built, updated = (
                1e6 * seconds_of_loop(functools.partial(step, count=count))  # type: ignore[call-arg]
                for step in (by_hand, anew, kept)
            )
            table.append(
                {"what": f"{loop.name}: {asked}", "update": updated, "anew": built, "hand": hand}
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="What the abstraction costs.")
    parser.add_argument("--json", help="save the tables here")
    parser.add_argument(
        "--only", choices=["rows", "small", "loops"], help="one of the tables alone"
    )
    arguments = parser.parse_args()
    wanted = [arguments.only] if arguments.only else ["rows", "small", "loops"]
    table = [*(rows() if "rows" in wanted else []), *(small_rows() if "small" in wanted else [])]
    if table:
        print_rows(table)
    looped = loop_rows() if "loops" in wanted else []
    if looped:
        print(
            f"\na loop in which only values change, microseconds of processor time a step of {STEPS}"
        )
        print(f"{'':48}{'update':>10}{'anew':>10}{'by hand':>10}")
    for line in looped:
        print(f"{line['what']:48}{line['update']:10.0f}{line['anew']:10.0f}{line['hand']:10.0f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([*table, *looped], file, indent=1)


def print_rows(table: list[dict[str, object]]) -> None:
    print(f"{'':28}{'colinear':>12}{'bar':>12}{'SciPy':>12}   {'figure':12}met")
    for line in table:
        bar, scipy_time = (
            f"{line[key]:.2f}" if line[key] is not None else "-" for key in ("bar", "scipy")
        )
        print(
            f"{line['what']:28}{line['ours']:12.2f}{bar:>12}{scipy_time:>12}   {line['figure']:12}{'yes' if line['met'] else 'NO'}"
        )
    print("times in microseconds")


if __name__ == "__main__":
    main()
