"""The rules at scale, each beside the formula that an expert writes by hand in NumPy and SciPy for that one problem.

    python benchmarks/rules.py               # prints the table; --json FILE saves it, --only NAME picks lines, --size small is quick

Both contestants in the same run, interleaved, one thread; medians. `ok` where colinear takes at most 1.15 times as long. The answers are
compared first. Building the operators is part of neither time: their arrays are the inputs of both.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import scipy.linalg

import colinear as co

BAR = 1.15


class Case(NamedTuple):
    name: str
    ours: Callable[[], Any]
    by_hand: Callable[[], Any]
    tol: float = 1e-8


def spd(rng: np.random.Generator, n: int) -> np.ndarray:
    G = rng.standard_normal((n, n))
    return G @ G.T / n + np.eye(n)


def poisson(n: int) -> co.Tridiagonal:
    """The second difference with zeros at both ends."""
    return co.PSD(co.Tridiagonal(-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)))


def cases(small: bool) -> Iterator[Case]:
    rng = np.random.default_rng(0)

    n = 40 if small else 200
    factors = [spd(rng, n) for _ in range(3)]
    K, b = co.Kronecker(*(co.PSD(A) for A in factors)), rng.standard_normal(n**3)

    def kronecker_by_hand() -> Any:
        x = b.reshape(n, n, n)
        for A in factors:  # solve along the first axis, and rotate it to the end
            L = scipy.linalg.cho_factor(A, lower=True, check_finite=False)
            x = scipy.linalg.cho_solve(L, x.reshape(n, -1), check_finite=False).T.reshape(n, n, n)
        return x.reshape(-1)

    yield Case(f"Kronecker of three {n}x{n}, solve", lambda: co.solve(K, b), kronecker_by_hand)

    n, r = (5_000, 20) if small else (200_000, 100)
    d, U, b = rng.uniform(1, 2, n), rng.standard_normal((n, r)) / np.sqrt(n), rng.standard_normal(n)
    A = co.Diagonal(d) + co.LowRank(U)
    A = co.PSD(A)

    def woodbury_by_hand() -> Any:
        W = U / d[:, None]
        L = scipy.linalg.cho_factor(np.eye(r) + U.T @ W, check_finite=False)
        return b / d - W @ scipy.linalg.cho_solve(L, W.T @ b, check_finite=False)

    def lemma_by_hand() -> Any:
        L = np.linalg.cholesky(np.eye(r) + U.T @ (U / d[:, None]))
        return 2 * np.log(np.diag(L)).sum() + np.log(d).sum()

    yield Case(f"LowRank {r} + Diagonal, N = {n}, solve", lambda: co.solve(A, b), woodbury_by_hand)
    yield Case(f"LowRank {r} + Diagonal, N = {n}, logdet", lambda: co.logdet(A), lemma_by_hand)

    m = 100 if small else 1000
    line = poisson(m)
    grid, f = co.KroneckerSum(line, line), rng.standard_normal(m * m)
    eigenvalues = 2 - 2 * np.cos(np.pi * np.arange(1, m + 1) / (m + 1))

    def poisson_by_eigenvectors() -> Any:
        values, Q = scipy.linalg.eigh_tridiagonal(np.full(m, 2.0), -np.ones(m - 1))
        F = Q.T @ f.reshape(m, m) @ Q
        return (Q @ (F / np.add.outer(values, values)) @ Q.T).reshape(-1)

    def poisson_by_sines() -> Any:
        F = scipy.fft.dstn(f.reshape(m, m), type=1, norm="ortho")
        return scipy.fft.dstn(
            F / np.add.outer(eigenvalues, eigenvalues), type=1, norm="ortho"
        ).reshape(-1)

    yield Case(
        f"Poisson on {m}x{m}, solve (bar: eigenvectors)",
        lambda: co.solve(grid, f),
        poisson_by_eigenvectors,
        1e-6,
    )
    yield Case(
        f"Poisson on {m}x{m}, solve (bar: sine transforms)",
        lambda: co.solve(grid, f),
        poisson_by_sines,
        1e-6,
    )
    yield Case(
        f"Poisson on {m}x{m}, logdet",
        lambda: co.logdet(grid),
        lambda: np.log(
            np.add.outer(*[scipy.linalg.eigvalsh_tridiagonal(np.full(m, 2.0), -np.ones(m - 1))] * 2)
        ).sum(),
    )

    twice = co.Product(grid, grid)  # Δ Δ u = f

    def twice_by_sines() -> Any:
        F = scipy.fft.dstn(f.reshape(m, m), type=1, norm="ortho")
        return scipy.fft.dstn(
            F / np.add.outer(eigenvalues, eigenvalues) ** 2, type=1, norm="ortho"
        ).reshape(-1)

    yield Case(
        f"Bi-Poisson on {m}x{m}, solve (bar: sine transforms)",
        lambda: co.solve(twice, f),
        twice_by_sines,
        1e-4,
    )

    count, size = (100, 10) if small else (1000, 50)
    blocks = [spd(rng, size) for _ in range(count)]
    D, b = co.BlockDiag(*(co.PSD(B) for B in blocks)), rng.standard_normal(count * size)

    def blocks_by_hand() -> Any:
        parts = zip(blocks, b.reshape(count, size))
        return np.concatenate(
            [
                scipy.linalg.cho_solve(
                    scipy.linalg.cho_factor(B, check_finite=False), x, check_finite=False
                )
                for B, x in parts
            ]
        )

    yield Case(
        f"BlockDiag of {count} blocks {size}x{size}, solve", lambda: co.solve(D, b), blocks_by_hand
    )

    n = 2**14 if small else 2**20
    col, b = np.r_[4.0, rng.standard_normal(n - 1) / n], rng.standard_normal(n)
    C = co.Circulant(col)
    yield Case(
        f"Circulant, N = {n}, solve",
        lambda: co.solve(C, b),
        lambda: np.fft.irfft(np.fft.rfft(b) / np.fft.rfft(col), n),
    )
    yield Case(
        f"Circulant, N = {n}, logdet",
        lambda: co.logdet(C),
        lambda: np.log(np.abs(np.fft.fft(col))).sum(),
    )

    n = 20_000 if small else 1_000_000
    lower, diag, upper, b = (
        rng.standard_normal(n - 1),
        rng.standard_normal(n) + 4,
        rng.standard_normal(n - 1),
        rng.standard_normal(n),
    )
    T = co.Tridiagonal(lower, diag, upper)
    gtsv, gttrf = (scipy.linalg.get_lapack_funcs((name,), (diag,))[0] for name in ("gtsv", "gttrf"))
    yield Case(
        f"Tridiagonal, N = {n}, solve",
        lambda: co.solve(T, b),
        lambda: gtsv(lower, diag, upper, b)[3],
    )
    yield Case(
        f"Tridiagonal, N = {n}, logdet",
        lambda: co.logdet(T),
        lambda: np.log(np.abs(gttrf(lower, diag, upper)[1])).sum(),
    )

    below = rng.standard_normal(n - 1)
    shifted = diag + 8
    P = co.PSD(co.Tridiagonal(below, shifted, below))
    (pttrf,) = scipy.linalg.get_lapack_funcs(("pttrf",), (diag,))

    def two_diagonals_by_hand() -> Any:
        d, e, _ = pttrf(shifted, below)
        root = np.sqrt(d)
        return root, e * root[:-1]

    yield Case(
        f"Tridiagonal, N = {n}, cholesky",
        lambda: co.cholesky(P).diagonals[1],
        lambda: two_diagonals_by_hand()[1],
    )

    m, n = (2_000, 20) if small else (100_000, 100)
    T, f = rng.standard_normal((m, n)), rng.standard_normal(m)
    yield Case(
        f"Least squares, {m} x {n}", lambda: co.lstsq(T, f), lambda: np.linalg.lstsq(T, f)[0]
    )

    alike = co.BlockDiag(*(rng.standard_normal((size, size)) for _ in range(count)))
    stacked = np.stack([block.A for block in alike.operands])
    yield Case(
        f"BlockDiag of {count} blocks {size}x{size}, svd",
        lambda: co.svd(alike)[1],
        lambda: -np.sort(-np.linalg.svd(stacked)[1].ravel()),
    )

    n, k = (2_000, 50) if small else (100_000, 200)
    d, B, E, f = (
        rng.uniform(1, 2, n),
        rng.standard_normal((n, k)) / np.sqrt(n),
        spd(rng, k),
        rng.standard_normal(n + k),
    )
    corner = co.Block([[co.Diagonal(d), co.Dense(B)], [co.Dense(B.T), co.Dense(E)]])

    def schur_by_hand() -> Any:
        W = B / d[:, None]
        y = np.linalg.solve(E - B.T @ W, f[n:] - W.T @ f[:n])
        return np.r_[f[:n] / d - W @ y, y]

    yield Case(
        f"Block with a diagonal corner, {n} + {k}, solve",
        lambda: co.solve(corner, f),
        schur_by_hand,
    )
    yield Case(
        f"Block with a diagonal corner, {n} + {k}, logdet",
        lambda: co.logdet(corner),
        lambda: np.log(d).sum() + np.linalg.slogdet(E - B.T @ (B / d[:, None]))[1],
    )

    shapes = (20, 30) if small else (300, 400)
    P, Q = (spd(rng, n) for n in shapes)
    shifted = co.Kronecker(co.PSD(P), co.PSD(Q)) + 0.1 * co.Identity(P.shape[0] * Q.shape[0])
    yield Case(
        f"Kronecker {shapes[0]} x {shapes[1]} + c I, logdet",
        lambda: co.logdet(shifted),
        lambda: np.log(
            reduce(np.multiply.outer, (np.linalg.eigvalsh(P), np.linalg.eigvalsh(Q))) + 0.1
        ).sum(),
    )

    n = 500 if small else 4000
    decay = 0.9 ** np.arange(n) + np.eye(1, n)[0]
    Z = co.Toeplitz(decay)
    yield Case(
        f"Toeplitz, N = {n}, logdet (bar: LU)",
        lambda: co.logdet(Z),
        lambda: np.linalg.slogdet(scipy.linalg.toeplitz(decay))[1],
    )

    n = 2_000 if small else 20_000
    col, b = 0.9 ** np.arange(n) + np.eye(1, n)[0], rng.standard_normal(n)
    levinson = co.Toeplitz(col)
    yield Case(
        f"Toeplitz, N = {n}, solve (bar: Levinson)",
        lambda: co.solve(levinson, b),
        lambda: scipy.linalg.solve_toeplitz(col, b, check_finite=False),
    )

    n = 5_000 if small else 100_000
    slow, side = 1 / (1.0 + np.arange(n)) ** 1.5, rng.standard_normal(n)
    large = co.Toeplitz(slow)
    yield Case(
        f"Toeplitz, N = {n}, solve (bar: PCG with transforms)",
        lambda: co.solve(large, side),
        lambda: toeplitz_pcg(slow, side),
        1e-7,
    )


def toeplitz_pcg(col: np.ndarray, b: np.ndarray, tol: float = 1e-10) -> np.ndarray:
    """Conjugate gradients with T. Chan's circulant preconditioner, all products by Fourier transforms."""
    n, k = len(b), np.arange(len(b))
    length = scipy.fft.next_fast_len(2 * n - 1, real=True)
    symbol = scipy.fft.rfft(np.concatenate([col, np.zeros(length - 2 * n + 1), col[:0:-1]]))
    circulant = scipy.fft.rfft(((n - k) * col + k * np.concatenate([[0.0], col[:0:-1]])) / n)
    x, r = np.zeros(n), b.copy()
    z = scipy.fft.irfft(scipy.fft.rfft(r) / circulant, n)
    p, rz, size = z.copy(), r @ z, np.linalg.norm(b)
    while np.linalg.norm(r) > tol * size:
        q = scipy.fft.irfft(symbol * scipy.fft.rfft(p, length), length)[:n]
        step = rz / (p @ q)
        x += step * p
        r -= step * q
        z = scipy.fft.irfft(scipy.fft.rfft(r) / circulant, n)
        rz, before = r @ z, rz
        p = z + (rz / before) * p
    return x


def measured(case: Case, seconds: float) -> dict[str, Any]:
    """The medians of both, taken in turns for about so many seconds, at least thrice."""
    ours, theirs = np.asarray(case.ours()), np.asarray(case.by_hand())
    error = float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-300))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for work, taken in zip((case.ours, case.by_hand), times):
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    mine, bar = map(statistics.median, times)
    right = error <= case.tol
    return {
        "case": case.name,
        "ms": 1e3 * mine,
        "bar_ms": 1e3 * bar,
        "ratio": mine / bar,
        "error": error,
        "ok": right and mine <= BAR * bar,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--json", help="save the table to this file")
    parser.add_argument("--only", default="", help="only the lines whose name contains this")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each line")
    options = parser.parse_args()
    table = []
    print(f"{'':56s} {'colinear':>10s} {'by hand':>10s} {'ratio':>6s}  {'difference':>10s}")
    for case in cases(options.size == "small"):
        if options.only.lower() not in case.name.lower():
            continue
        row = measured(case, options.seconds)
        table.append(row)
        verdict = "ok" if row["ok"] else "SLOW" if row["error"] <= case.tol else "WRONG"
        print(
            f"{case.name:56s} {row['ms']:8.2f}ms {row['bar_ms']:8.2f}ms {row['ratio']:6.2f}  {row['error']:10.1e}  {verdict}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    sys.exit(any(row["error"] > 1e-6 for row in table))


if __name__ == "__main__":
    main()
