"""Remove the noise from an image of a million pixels with a Gaussian process, given the structure alone.

The covariance of a Gaussian process on a 1000 x 1000 grid is a Kronecker product, K = K_y ⊗ K_x, and with noise it becomes
K + s² I: a dense system of a million unknowns, 8 TB if it were written down. The image that was most likely there is

    f = K (K + s² I)^-1 y

The same call, `solve(A, b)`, then solves with other structures of up to a million unknowns, each by the formula that fits it.

Run it with `make demo`, or `python examples/demo.py --small`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse.linalg

import colinear as co


def landscape(n: int, rng: np.random.Generator) -> np.ndarray:
    """A smooth surface: a few random waves of falling height."""
    x = np.linspace(0, 1, n)
    surface = np.zeros((n, n))
    for i in range(1, 9):
        for j in range(1, 9):
            phase = rng.uniform(0, 2 * np.pi, 2)
            wave = np.outer(np.cos(np.pi * i * x + phase[0]), np.cos(np.pi * j * x + phase[1]))
            surface += rng.normal() / (i + j) ** 1.5 * wave
    return surface / surface.std()


def covariance(n: int, lengthscale: float) -> np.ndarray:
    """Matérn-3/2 between the points of a line."""
    x = np.linspace(0, 1, n)
    distance = np.sqrt(3) * np.abs(x[:, None] - x) / lengthscale
    return (1 + distance) * np.exp(-distance)


def by_hand(K: np.ndarray, noise: float, y: np.ndarray, seconds: float) -> tuple[int, float, float]:
    """What one would write otherwise: SciPy's CG with a Kronecker product by hand, stopped after some seconds."""
    n = len(K)

    def multiply(v: np.ndarray) -> np.ndarray:
        return (K @ v.reshape(n, n) @ K.T).ravel() + noise * v

    A = scipy.sparse.linalg.LinearOperator((n * n, n * n), matvec=multiply, dtype=np.float64)
    start, iterations, latest = time.perf_counter(), 0, np.zeros_like(y)

    def stop_in_time(x: np.ndarray) -> None:
        nonlocal iterations, latest
        iterations, latest = iterations + 1, x
        if time.perf_counter() - start > seconds:
            raise TimeoutError

    try:
        latest, _ = scipy.sparse.linalg.cg(A, y, rtol=1e-8, callback=stop_in_time)
    except TimeoutError:
        pass
    elapsed = time.perf_counter() - start
    return iterations, elapsed, float(np.linalg.norm(y - multiply(latest)) / np.linalg.norm(y))


def others(n: int, rng: np.random.Generator) -> Iterator[tuple[str, co.LinearOperator]]:
    """Operators of other structures, with about n^2 unknowns each."""
    N, side = n * n, np.arange(9) - 4
    yield "regression: low rank plus diagonal", co.Diagonal(rng.uniform(1, 2, N)) + co.LowRank(rng.normal(size=(N, 20)) / n)

    line = co.PD(co.Tridiagonal(-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)))
    yield "Poisson's equation on a square", co.KroneckerSum(line, line)

    blur = np.exp(-(side[:, None] ** 2 + side**2) / 4)
    blur[4, 4] += 0.2 * blur.sum()
    yield "deblurring: a convolution", co.Convolution(blur, (n, n), boundary="wrap", centered=True)

    lag = np.arange(N // 5)
    yield "a time series: Toeplitz", co.PD(co.Toeplitz(np.exp(-lag / 10) + (lag == 0)))

    k = n // 5
    K = co.PD(co.Dense(covariance(k, lengthscale=0.1) + 0.1 * np.eye(k)))
    B, D = co.LowRank(rng.normal(size=(k * k, 3)), rng.normal(size=(k, 3))), co.Diagonal(rng.uniform(1e5, 2e5, k))
    yield "a multi-physics system: blocks", co.Block([[co.Kronecker(K, K), B], [-B.T, D]])


def tour(n: int, rng: np.random.Generator) -> None:
    print("\nThe same call, other structures")
    print(f"  {'':36s}{'unknowns':>10s}{'as a matrix':>13s}{'seconds':>9s}{'residual':>10s}  by")
    for name, A in others(n, rng):
        b = rng.normal(size=A.shape[0])
        start = time.perf_counter()
        x, info = co.solve(A, b, info=True, on_failure="raise")
        seconds, rules = time.perf_counter() - start, co.explain(co.solve, A, b).rules
        gigabytes = A.shape[0] ** 2 * 8 / 1e9
        print(
            f"  {name:36s}{len(x):10,}{gigabytes:10,.1f} GB{seconds:9.2f}{float(np.max(info.residual)):10.0e}  "
            f"{next((r for r in rules if r.startswith(('inv_', 'wood', 'solve_t'))), rules[0])}"
        )


def picture(path: Path, truth: np.ndarray, noisy: np.ndarray, found: np.ndarray, rows: list[tuple[str, float, float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(16, 4), constrained_layout=True)
    for axis, image, title in zip(
        axes, (noisy, found, truth), ("what was seen", "K (K + s² I)⁻¹ y", "what was there"), strict=False
    ):
        axis.imshow(image, cmap="terrain", vmin=truth.min(), vmax=truth.max())
        axis.set_title(title)
        axis.axis("off")
    names, seconds, residuals = zip(*reversed(rows), strict=True)
    bars = axes[3].barh(names, seconds, color=["tab:orange", "tab:blue"])
    axes[3].bar_label(bars, [f" residual {residual:.0e}" for residual in residuals])
    axes[3].set(xlabel="seconds", title=f"{truth.size:,} unknowns", xlim=(0, 1.6 * max(seconds)))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=1000, help="pixels along each side")
    parser.add_argument("--small", action="store_true", help="60 pixels along each side")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the alternative may run")
    parser.add_argument("--output", type=Path, default=Path("output/demo.png"))
    arguments = parser.parse_args()

    n, noise, rng = 60 if arguments.small else arguments.size, 0.5, np.random.default_rng(0)
    truth = landscape(n, rng)
    noisy = truth + np.sqrt(noise) * rng.normal(size=(n, n))
    y = noisy.ravel()

    K1 = co.PSD(co.Dense(covariance(n, lengthscale=0.2)))
    K = co.Kronecker(K1, K1)
    A = K + noise * co.Identity(n * n)
    print("The operator\n ", A)
    print("\nWhat solve will do\n" + str(co.explain(co.solve, A, y)))

    start = time.perf_counter()
    weights, info = co.solve(A, y, info=True)
    elapsed = time.perf_counter() - start
    found = (K @ weights).reshape(n, n)
    evidence = -0.5 * (y @ weights + co.logdet(A) + y.size * np.log(2 * np.pi))
    residual = float(np.max(info.residual))

    print(f"\ncolinear.solve     {elapsed:8.2f} s   relative residual {residual:.1e}   {co.Status(int(info.status)).name}")
    iterations, seconds, theirs = by_hand(K1.to_dense(), noise, y, arguments.seconds)
    print(f"SciPy's CG by hand {seconds:8.2f} s   relative residual {theirs:.1e}   after {iterations} iterations")
    print(
        f"\nerror of the image: {np.std(noisy - truth):.3f} before, {np.std(found - truth):.3f} after; log-evidence {evidence:,.0f}"
    )

    tour(n, rng)

    picture(arguments.output, truth, noisy, found, [("colinear", elapsed, residual), ("SciPy CG\nby hand", seconds, theirs)])
    print(f"\npicture: {arguments.output}")


if __name__ == "__main__":
    main()
