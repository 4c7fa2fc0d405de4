"""The tables of docs/performance.md of what benchmarks/gpu.py and gpu_kernels.py measured on a GPU, kept in benchmarks/gpu.json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def seconds(x: float | None) -> str:
    if x is None:
        return ""
    return f"{1e6 * x:.0f} µs" if x < 1e-3 else f"{1e3 * x:.3g} ms" if x < 1 else f"{x:.3g} s"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    head = ["", f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return head + [f"| {' | '.join(cells)} |" for cells in rows]


def beside(rows: list[dict[str, Any]], bar: str) -> list[str]:
    """Calls beside what is written by hand."""
    lines = (
        (r["what"], seconds(r["ours"]), seconds(r["bar"]), f"{r['ours'] / r['bar']:.2f}")
        for r in rows
    )
    return table(("", "colinear", bar, "ratio"), lines)


def steps(rows: list[dict[str, Any]]) -> list[str]:
    """Steps of iterations, beside what is named."""
    lines = (
        (
            r["what"],
            seconds(r["ours"]),
            r["beside"],
            seconds(r["bar"]),
            "" if r["bar"] is None else f"{r['ours'] / r['bar']:.2f}",
        )
        for r in rows
    )
    return table(("", "colinear", "beside", "its time", "ratio"), lines)


def kernels(rows: list[dict[str, Any]]) -> list[str]:
    lines = (
        (
            f"{r['framework']}, {r['what']}",
            f"{r['n']:,}".replace(",", " "),
            str(r["d"]),
            str(r["columns"]),
            seconds(r["ours"]),
            seconds(r["hand"]),
            f"{r['error']:.1e}",
        )
        for r in rows
    )
    return table(("", "n", "coordinates", "columns", "colinear", "by blocks", "error"), lines)


def likelihoods(rows: list[dict[str, Any]]) -> list[str]:
    number = lambda x: "" if x is None else f"{x:.5f}"
    lines = (
        (
            f"{r['n']:,} x {r['d']}".replace(",", " "),
            r["kind"],
            r["method"],
            seconds(r["seconds"]),
            number(r["loss"]),
            number(r["exact"]),
            number(r["error"]),
            "" if r["steps"] is None else str(r["steps"]),
            f"{r['peak']:.1f} GiB",
        )
        for r in rows
    )
    columns = ("size", "rows", "method", "time", "loss", "exact", "standard error", "steps of CG", "memory")  # fmt: skip
    return table(columns, lines)


def training(rows: list[dict[str, Any]]) -> str:
    """A picture of the exact loss against time, of each contestant."""
    width, height, left, bottom = 520, 260, 52, 220
    points = [point for row in rows for point in row["trace"]]
    longest, low, high = max(t for t, _ in points), min(v for _, v in points), max(v for _, v in points)  # fmt: skip
    x = lambda t: left + (width - left - 100) * t / longest
    y = lambda v: bottom - (bottom - 20) * (v - low) / (high - low)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#808080">',
        f'<path d="M{left} 12V{bottom}H{width - 90}" fill="none" stroke="#808080"/>',
        f'<text x="{width - 90}" y="{bottom + 26}" text-anchor="end">seconds</text>',
        f'<text x="{left + 6}" y="16">loss for each observation</text>',
    ]
    for t in range(int(longest) + 1):
        lines.append(f'<text x="{x(t):.1f}" y="{bottom + 14}" text-anchor="middle">{t}</text>')
    for v in (low, high):
        lines.append(f'<text x="{left - 5}" y="{y(v) + 4:.1f}" text-anchor="end">{v:.2f}</text>')
    for row, colour in zip(rows, ("#2e7d32", "#c62828")):
        path = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in row["trace"])
        t, v = row["trace"][-1]
        lines += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            f'<text x="{x(t) + 6:.1f}" y="{y(v) - 4:.1f}" fill="{colour}">{escape(row["what"])}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])


def tables(run: dict[str, Any]) -> list[str]:
    """The part of the page."""
    commands = ", ".join(f"`{command}`" for command in run["commands"])
    return [
        "",
        "## Measured: calls, iterations and Gaussian processes on a GPU",
        "",
        f"{run['date']}, {run['machine']}; times are of the wall. {commands}.",
        "",
        "### Calls on a GPU",
        "",
        "Small and structured solves in torch, built and solved in every call, which ends with a status that was tested. By hand is the formula written out, with",
        "no test. After sixteen calls of one kind they are [replayed](explain.md#on-a-gpu).",
        *beside(run["calls"], "by hand"),
        "",
        "### Steps of iterations on a GPU",
        "",
        "The five-point Laplacian of a 2000 x 2000 grid in single precision: 500 steps, of LOBPCG 50. The memory that a step of CG must move takes 55 µs, one of",
        "MINRES 100, one of Lanczos 280. Steps in torch are replayed, but for the first and for those of LOBPCG, which waits for the host twice in each.",
        *steps(run["steps"]),
        "",
        "### Products with kernels on a GPU",
        "",
        "The Gaussian kernel with a length for all coordinates, single precision. No entry is written; “by blocks” are ten lines of the framework. Errors are beside",
        "double precision in torch, beside the blocks in JAX.",
        *kernels(run["kernels"]),
        "",
        "### Likelihoods of Gaussian processes on a GPU",
        "",
        "The marginal likelihood and its gradient by length, variance and noise (0.1), for each observation, in single precision. The exact loss is Cholesky's in",
        "double precision. More rows than a data set has are a smoothed bootstrap of them.",
        *likelihoods(run["gp"]),
        "",
        "### Training a Gaussian process on a GPU",
        "",
        "Thirty steps of Adam on 14 000 rows of Elevators (2026-11-19): the exact loss against time, by `SLQ(20, preconditioner=RPCholesky(1000))` and by GPyTorch with 20",
        "probes and a preconditioner of rank 100.",
        "",
        "![Loss against time](figures/gp_training.svg)",
    ]
