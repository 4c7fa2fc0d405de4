"""SVRG beside power iteration, Lanczos and CG in passes over the data, on sums of many terms: the paper's figure, and what else there is.

    python benchmarks/stochastic_sums.py [--only NAME] [--rows N] [--figure sums.png]

A pass is a product of all terms with one vector; an epoch of SVRG is two. Data is looked for in the folder that COLINEAR_DATA names, else
in `../shared/data` beside the repository; what is not there is replaced by random rows of the same shape, and the table says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from problems import DATA

import colinear as co


def standardised(X: Any) -> Any:
    X = np.asarray(X, float)
    X = X - X.mean(0)
    return X / np.where(X.std(0) > 0, X.std(0), 1)


def data(name: str, shape: tuple[int, int]) -> tuple[Any, Any, str]:
    """Standardised rows and targets, and what they are."""
    path = DATA / f"{name}.npz"
    rng = np.random.default_rng(0)
    if not path.exists():
        return (
            rng.standard_normal(shape) * np.arange(1, shape[1] + 1.0) ** -0.75,
            rng.standard_normal(shape[0]),
            "random",
        )
    with np.load(path) as file:
        y = file["y"] if "y" in file else rng.standard_normal(len(file["X"]))
        return standardised(file["X"]), np.nan_to_num((y - np.nanmean(y)) / np.nanstd(y)), "real"


def more_rows(X: Any, n: int) -> Any:
    """A smoothed bootstrap: n rows around those of X, of the same mean and covariance. Synthetic."""
    rng, h = np.random.default_rng(1), 0.25
    root = np.linalg.svd(X, full_matrices=False)
    L = (root[1] / np.sqrt(len(X)))[:, None] * root[2]
    return (
        np.sqrt(1 - h * h) * X[rng.integers(len(X), size=n)]
        + h * rng.standard_normal((n, len(L))) @ L
    )


def features(X: Any, count: int, length: float) -> Any:
    """Random Fourier features of the squared-exponential kernel, K ≈ Φ Φ^T."""
    rng = np.random.default_rng(2)
    W, phase = rng.standard_normal((X.shape[1], count)) / length, rng.uniform(0, 2 * np.pi, count)
    return np.sqrt(2 / count) * np.cos(X @ W + phase)


def network_jacobian(samples: int, width: int) -> Any:
    """The Jacobian of u(x; θ), tanh network of two hidden layers on the unit square, at random points: rows of Neural-IVP's M(θ)."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, (samples, 2))
    W1, b1 = rng.standard_normal((2, width)) * 2, rng.standard_normal(width)
    W2, b2 = rng.standard_normal((width, width)) / np.sqrt(width), rng.standard_normal(width)
    w3 = rng.standard_normal(width) / np.sqrt(width)
    h1 = np.tanh(x @ W1 + b1)
    h2 = np.tanh(h1 @ W2 + b2)
    d2 = (1 - h2**2) * w3
    d1 = (1 - h1**2) * (d2 @ W2.T)
    blocks = [
        x[:, :, None] * d1[:, None],
        d1,
        h1[:, :, None] * d2[:, None],
        d2,
        h2,
        np.ones((samples, 1)),
    ]
    return np.concatenate([block.reshape(samples, -1) for block in blocks], axis=1)


# ---------------------------------------------------------------------------------------------------- problems


def principal_components(
    X: Any, tols: tuple[float, ...], batch: int, k: int = 1
) -> list[tuple[Any, ...]]:
    n = len(X)
    rows = co.Dense(X)
    A = rows.H @ rows / n
    methods: dict[str, Callable[[float], Any]] = {
        "SVRG": lambda tol: co.SVRG(tol=tol, batch_size=batch),
        "power iteration": lambda tol: co.PowerIteration(tol=tol),
        "Lanczos": lambda tol: co.Lanczos(tol=tol),
    }
    if k > 1:
        del methods["power iteration"]
    return [
        (tol, name, *run(lambda m: co.eig(A, k, "LM", m, info=True)[1], make(tol), k))
        for tol in tols
        for name, make in methods.items()
    ]


def systems(
    A: Any, b: Any, tols: tuple[float, ...], batch: int, M: Any = None, most: int = 60
) -> list[tuple[Any, ...]]:
    methods: dict[str, Callable[[float], Any]] = {
        "SVRG": lambda tol: (
            A,
            co.SVRG(tol=tol, batch_size=batch, preconditioner=M, max_iters=most),
        ),
        "CG": lambda tol: (co.opaque(A), co.CG(tol=tol, preconditioner=M)),
    }
    return [
        (tol, name, *run(lambda pair: co.solve(pair[0], b, pair[1], info=True)[1], make(tol), 1))
        for tol in tols
        for name, make in methods.items()
    ]


def run(solve: Callable[[Any], Any], method: Any, k: int) -> tuple[Any, ...]:
    start = time.perf_counter()
    info = solve(method)
    seconds = time.perf_counter() - start
    return info.status.name, info.matvecs / k, float(np.max(info.residual)), seconds


def buzz(rows: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    X, _, kind = data("buzz_subset", (18_350, 77))
    big = more_rows(X, rows)
    return [
        (
            f"Buzz PCA, {len(X)} x 77 ({kind}), batch 600",
            principal_components(X, (1e-3, 1e-7), 600),
        ),
        (
            f"Buzz PCA, {rows} x 77 (synthetic), batch 10000",
            principal_components(big, (1e-3, 1e-7), 10_000),
        ),
    ]


def near(rows: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    rng = np.random.default_rng(4)
    spectrum = np.r_[1.0, 0.97, np.linspace(0.9, 0.1, 98)] ** 0.5
    X = (rng.standard_normal((rows, 100)) * spectrum) @ np.linalg.qr(
        rng.standard_normal((100, 100))
    )[0]
    return [
        (
            f"PCA of Gaussian rows, {rows} x 100, second eigenvalue 0.97, batch 1000",
            principal_components(X, (1e-3, 1e-7), 1000),
        )
    ]


def elevators(rows: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    X, y, kind = data("elevators", (16_599, 18))
    found = []
    for length in (0.1, 3.0):
        Phi = co.Dense(features(X, 1000, length))
        A = Phi @ Phi.H + 0.1 * co.Identity(len(X))
        title = f"Elevators ({kind}), 1000 random features, length {length}, noise 0.1, batch 100"
        found.append((title, systems(A, y, (1e-8,), 100, most=10)))
    return found


def network_system() -> tuple[Any, Any, Any]:
    """M(θ) + c I, a right side, and the Jacobian that M is made of."""
    J = network_jacobian(50_000, 20)
    operator = co.Dense(J)
    largest = np.linalg.norm(J.T @ J / len(J), 2)
    return (
        operator.H @ operator / len(J) + 1e-4 * largest * co.Identity(J.shape[1]),
        J.T @ np.sin(np.arange(len(J))) / len(J),
        J,
    )


def neural(rows: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    """Samples and minibatches as in the paper, whose preconditioner had 250 of 12 000 dimensions: the first one here is 2 % too."""
    A, b, J = network_system()
    found = []
    for rank in (10, 60, 0):
        title = f"Neural-IVP-like, {J.shape[0]} samples, {J.shape[1]} weights, Nyström of rank {rank}, batch 500"
        found.append(
            (
                title,
                systems(
                    A, b, (1e-2, 1e-4, 1e-6), 500, co.Nystrom(rank)(A) if rank else None, most=30
                ),
            )
        )
    return found


def ridge(rows: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
    rng = np.random.default_rng(5)
    n, d = 50_000, 300
    X = (rng.standard_normal((n, d)) * np.arange(1, d + 1.0) ** -0.6) @ np.linalg.qr(
        rng.standard_normal((d, d))
    )[0]
    b = X.T @ rng.standard_normal(n) / n
    operator = co.Dense(X)
    A = operator.H @ operator / n + 1e-3 * co.Identity(d)
    return [
        (
            f"ridge regression, {n} Gaussian rows x {d}, eigenvalues k^-1.2, batch 50",
            systems(A, b, (1e-2, 1e-6), 50, most=20),
        )
    ]


# ---------------------------------------------------------------------------------------------------- the figure


def curve(solve: Callable[[Any], Any], method: Any, size: float) -> tuple[Any, Any]:
    """Passes and the largest residual after each iteration; power iteration shows |A v - λ v|, not relative to |A|."""
    seen: list[float] = []

    def watch(progress: Any) -> None:
        seen.append(
            float(np.max(progress.residual))
            / (size if isinstance(method, co.PowerIteration) else 1)
        )

    info = solve(dataclasses.replace(method, callback=watch))
    return np.linspace(0, info.matvecs, len(seen) + 1)[1:], seen


def draw(path: str, rows: int) -> None:
    """The residual beside the passes, for the three problems of the paper's figure."""
    import matplotlib.pyplot as plt

    X, _, _ = data("buzz_subset", (18_350, 77))
    E, y, _ = data("elevators", (16_599, 18))
    rows_of, Phi = co.Dense(more_rows(X, rows) / np.sqrt(rows)), co.Dense(features(E, 1000, 0.1))
    A, b, _ = network_system()
    sums = [rows_of.H @ rows_of, Phi @ Phi.H + 0.1 * co.Identity(len(E)), A]
    largest = float(co.eigmax(sums[0]))
    M = co.Nystrom(10)(A)

    def pca(method: Any) -> Any:
        return co.eig(sums[0], 1, "LM", method, info=True)[1]

    def system(A: Any, b: Any) -> Callable[[Any], Any]:
        return lambda method: co.solve(
            A if isinstance(method, co.SVRG) else co.opaque(A), b, method, info=True
        )[1]

    panels: list[tuple[str, Any, list[Any]]] = [
        ("PCA, Buzz (synthetic rows)", pca, [co.SVRG(tol=1e-7, batch_size=10_000), co.PowerIteration(tol=1e-7)]),
        ("random features, Elevators", system(sums[1], y), [co.SVRG(tol=1e-8, batch_size=100, max_iters=10), co.CG(tol=1e-8)]),
        ("Neural-IVP-like", system(sums[2], b), [co.SVRG(tol=1e-6, batch_size=500, preconditioner=M), co.CG(tol=1e-6, preconditioner=M)]),
    ]  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    for axis, (title, solve, methods) in zip(axes, panels):
        for method in methods:
            axis.semilogy(*curve(solve, method, largest), marker=".", label=method.name)
        axis.set(title=title, xlabel="passes", ylabel="relative residual")
        axis.legend()
    figure.savefig(path, dpi=150)


PROBLEMS = {"buzz": buzz, "near": near, "elevators": elevators, "neural": neural, "ridge": ridge}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", choices=PROBLEMS)
    parser.add_argument("--rows", type=int, default=437_437)
    parser.add_argument("--figure", help="draw the paper's figure into this file instead")
    options = parser.parse_args()
    if options.figure:
        draw(options.figure, options.rows)
        return
    print(
        "| problem | tol | method | passes | residual | seconds | status |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    for name, make in PROBLEMS.items():
        if options.only in (None, name):
            for title, results in make(options.rows):
                for tol, method, status, passes, residual, seconds in results:
                    print(
                        f"| {title} | {tol:g} | {method} | {passes:.0f} | {residual:.1e} | {seconds:.2f} | {status} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
