"""What a run leaves behind: a table, a JSON file, a picture."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
from pathlib import Path
from typing import Any

PEERS = "numpy scipy scikit-learn pyamg torch jax gpytorch linear_operator lineax matfree pylops cola-ml".split()


def machine() -> dict[str, Any]:
    """What the run was made on: the processor, the cores, the versions."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            processor = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), processor)
    except OSError:
        pass
    versions = {}
    for name in PEERS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "threads": 1,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": versions,
    }


def header(scale: float, timeout: float, command: str) -> dict[str, Any]:
    date = datetime.date.today().isoformat()
    return {
        "schema": 1,
        "date": date,
        "scale": scale,
        "timeout": timeout,
        "command": command,
        "machine": machine(),
        "figures": {},
    }


def entry(figure: Any, results: list[dict[str, Any]]) -> dict[str, Any]:
    keys = ("title", "paper", "quality", "note", "clock", "x", "y", "x_label", "memory")
    return {key: getattr(figure, key) for key in keys} | {"results": [rounded(result) for result in results]}


def rounded(result: dict[str, Any]) -> dict[str, Any]:
    """Four digits; what JSON cannot say (inf, nan) as text."""

    def one(x: Any) -> Any:
        if isinstance(x, float):
            return float(f"{x:.4g}") if math.isfinite(x) else str(x)
        return x

    return {key: one(value) for key, value in result.items()}


def seconds(x: float | None) -> str:
    if x is None:
        return ""
    return f"{1e6 * x:.0f} us" if x < 1e-3 else f"{1e3 * x:.3g} ms" if x < 1 else f"{x:.3g} s"


def line(result: dict[str, Any], wide: int) -> str:
    ratio = result.get("ratio")
    quality = result.get("quality")
    parts = [
        f"    {result['runner']:{wide}s}",
        f"{seconds(result.get('seconds')):>9s}",
        f"{f'{ratio:.2f}x' if ratio is not None else '':>9s}",
        f"{f'{quality:.1e}' if quality is not None else '':>9s}",
    ]
    if "passes" in result:
        parts.append(f"{result['passes']:7.1f} passes")
    if result.get("peak_bytes") is not None:
        parts.append(f"{result['peak_bytes'] / 2**20:8.1f} MB")
    if result["status"] != "ok":
        parts.append(f" {result['status'].upper()}: {result.get('reason', '')}")
    return " ".join(parts).rstrip()


def table(figure: Any, results: list[dict[str, Any]]) -> str:
    """By size, the fastest first. The ratio is to the fastest right answer that is not colinear's."""
    wide = max(len(runner.name) for runner in figure.runners)
    lines = [f"    {'':{wide}s} {'time':>9s} {'ratio':>9s}  {figure.quality}"]
    lines += [line(result, wide) for result in results if result["status"] == "absent"]
    present = [result for result in results if result["status"] != "absent"]
    for label in dict.fromkeys(result["label"] for result in present):
        lines.append(f"  {label}")
        these = [result for result in present if result["label"] == label]
        these.sort(key=lambda r: (r["status"] not in ("ok", "miss"), r.get("seconds") or math.inf))
        lines += [line(result, wide) for result in these]
    return "\n".join(lines)


def save(path: Path, run: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(run, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- the picture

COLOURS = {"colinear": "#c1272d", "dense": "#555555", "by hand": "#000000", "iterative": "#3b6fb6"}


def panel(axis: Any, name: str, figure: dict[str, Any], y: str | None = None) -> None:
    """One figure of a run (as it is in the JSON): what is right has a full line, what misses a cross."""
    x, y = figure["x"], y or figure["y"]
    results = [r for r in figure["results"] if isinstance(r.get(x), int | float) and isinstance(r.get(y), int | float)]
    markers, others = "osD^v<>PXph*", iter(f"C{i % 10}" for i in (2, 1, 4, 5, 6, 7, 8, 9, 0, 3) * 3)
    for i, runner in enumerate(dict.fromkeys(r["runner"] for r in results)):
        mine = sorted((r for r in results if r["runner"] == runner), key=lambda r: r[x])
        kind = mine[0]["kind"]
        colour = COLOURS.get(kind) or next(others)
        style = "-" if kind == "colinear" else "--" if kind in COLOURS else ":"
        shown = [max(r[y], 1e-17) if y == "quality" else r[y] for r in mine]
        axis.plot([r[x] for r in mine], shown, style, color=colour, marker=markers[i % 12], ms=4, lw=1.3, label=runner)
        wrong = [(r[x], v) for r, v in zip(mine, shown) if r["status"] == "miss"]
        if wrong:
            axis.plot(*zip(*wrong), "x", color=colour, ms=9, mew=2)
    units = {"seconds": "seconds", "quality": figure["quality"], "peak_bytes": "peak bytes", "passes": "passes"}
    axis.set(xscale="log", yscale="log", xlabel=figure["x_label"], ylabel=units[y])
    axis.set_title(f"{name}: {figure['title']}", fontsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=5, ncols=2)


def picture(path: Path, run: dict[str, Any]) -> None:
    """All figures on one sheet; a cross marks an answer that misses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(name, figure, None) for name, figure in run["figures"].items()]
    panels += [(name, figure, "peak_bytes") for name, figure in run["figures"].items() if figure["memory"]]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    sheet, axes = pyplot.subplots(rows, columns, figsize=(5.2 * columns, 3.9 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (name, figure, y) in zip(axes.flat, panels):
        panel(axis, name, figure, y)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.savefig(path, dpi=100)
    pyplot.close(sheet)
