"""What the abstraction costs: construction, small products, dispatch and import, beside SciPy's `aslinearoperator`.

    python benchmarks/overhead.py            # prints the table; --json FILE saves it

Each line is the best median of several repeats, both contestants in the same run, one thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable

import numpy as np
import scipy.sparse
import scipy.sparse.linalg

import colinear as co


def microseconds(work: Callable[[], object], seconds: float = 0.2) -> float:
    """The best median time of one call, in microseconds."""
    timer = timeit.Timer(work)
    number, taken = timer.autorange()
    number = max(1, int(number * seconds / max(taken, 1e-9) / 7))
    rounds = [[t / number * 1e6 for t in timer.repeat(7, number)] for _ in range(3)]
    return min(statistics.median(times) for times in rounds)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="What the abstraction costs.")
    parser.add_argument("--json", help="save the table here")
    arguments = parser.parse_args()
    table = rows()
    print(f"{'':28}{'colinear':>12}{'bar':>12}{'SciPy':>12}   {'figure':12}met")
    for line in table:
        bar, scipy_time = (
            f"{line[key]:.2f}" if line[key] is not None else "-" for key in ("bar", "scipy")
        )
        print(
            f"{line['what']:28}{line['ours']:12.2f}{bar:>12}{scipy_time:>12}   {line['figure']:12}{'yes' if line['met'] else 'NO'}"
        )
    print("times in microseconds")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
