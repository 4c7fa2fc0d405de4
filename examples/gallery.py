"""What the examples share: their arguments, the real data where it is at hand, checks, and the picture.

An example is a script with a function `main(arguments=None)` that returns what it found as a dictionary of numbers, so that the
tests can look at the same figures that it prints:

    def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
        options = gallery.options(__doc__, arguments)
        ...
        gallery.check("the lowest energy is -1/2", abs(energies[0] + 0.5) < 1e-4)
        with gallery.picture(options) as figure:
            ...
        return {"ground state": energies[0]}
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


def options(description: str | None, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`--small` (a few seconds, for the tests) and `--output` (the picture), as every example has them."""
    script = Path(sys._getframe(1).f_globals["__file__"]).stem
    parser = argparse.ArgumentParser(prog=script, description=(description or "").strip().splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a small problem of the same kind, in a few seconds")
    parser.add_argument("--output", type=Path, default=Path("output") / f"{script}.png", help="where to save the picture")
    return parser.parse_args(arguments)


def data(name: str) -> dict[str, np.ndarray] | None:
    """The arrays of one file of real data, or None where it is not at hand (the caller makes a stand-in and says so).

    The folder is the one that `COLINEAR_DATA` names, else `../shared/data` beside the repository.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("COLINEAR_DATA", beside)) / f"{name}.npz"
    if not path.exists():
        print(f"{name}: the real data is not here (set COLINEAR_DATA to its folder); synthetic rows of the same kind instead.")
        return None
    with np.load(path) as file:
        return dict(file)


def regression(name: str, columns: int, rng: np.random.Generator, rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """The points and targets of a data set, standardised and in random order; synthetic ones, smooth with noise, in its stead."""
    file = data(name)
    if file is None:
        X = rng.standard_normal((rows, columns))
        w, v = rng.standard_normal((2, columns)) / np.sqrt(columns)
        y = X @ w + np.sin(2 * X @ v) + 0.3 * rng.standard_normal(rows)
    else:
        X, y = file["X"].astype(float), file["y"].astype(float)
        known = np.isfinite(y)
        order = rng.permutation(np.flatnonzero(known))
        X, y = X[order], y[order]
    X = X[:, X.std(axis=0) > 0]
    return (X - X.mean(axis=0)) / X.std(axis=0), (y - y.mean()) / y.std()


def timed(work: Callable[[], Any], repeats: int = 3) -> tuple[Any, float]:
    """What `work` returns, and the least of several times in seconds: a first call may have to import something."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        found = work()
        times.append(time.perf_counter() - start)
    return found, min(times)


def check(claim: str, holds: bool) -> None:
    """Print what was checked; end the example with an error if it does not hold."""
    print(f"  {'ok' if holds else 'WRONG'}: {claim}")
    if not holds:
        raise AssertionError(f"the example found otherwise: {claim}")


@contextmanager
def picture(options: argparse.Namespace, *, size: tuple[float, float] = (10.0, 4.0)) -> Iterator[Any]:
    """A matplotlib figure to draw into, saved at the end."""
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
    yield figure
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=100)
    print(f"picture: {options.output}")
