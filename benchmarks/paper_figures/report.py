"""What a run leaves behind: a table, a JSON file, a picture."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import math
import os
import platform
import textwrap
from pathlib import Path
from typing import Any

PEERS = "numpy scipy scikit-learn pyamg torch jax gpytorch linear_operator lineax matfree pylops cola-ml".split()


def machine() -> dict[str, Any]:
    """What the run was made on: the processor, the cores, the versions."""
    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo") as file:
            processor = next(
                (line.split(":")[1].strip() for line in file if line.startswith("model name")),
                processor,
            )
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
    keys = ("title", "paper", "quality", "note", "clock", "x", "y", "x_label", "memory", "by")
    return {key: getattr(figure, key) for key in keys} | {
        "results": [rounded(result) for result in results]
    }


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
    if "note" in result:
        parts.append(f" {result['note']}")
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

COLOURS = {"dense": "#777777", "by hand": "#000000", "iterative": "#3b6fb6"}
REDS = ("#b2182b", "#ff6b4a", "#7a0019", "#f4a582", "#e31a8c")  # colinear's
OTHERS = ("#1b9e77", "#e6ab02", "#7570b3", "#66a61e", "#a6761d", "#17becf", "#8c564b", "#9467bd")
UNITS = {"seconds": "seconds", "peak_bytes": "peak memory, bytes", "passes": "passes"}


def panel(axis: Any, name: str, figure: dict[str, Any], y: str | None = None) -> None:
    """One figure of a run (as it is in the JSON): what is right has a full line, what misses a cross."""
    from matplotlib.ticker import NullFormatter

    x, y = figure["x"], y or figure["y"]
    results = [
        r
        for r in figure["results"]
        if isinstance(r.get(x), int | float) and isinstance(r.get(y), int | float)
    ]
    axis.set_title(textwrap.fill(f"{name}: {figure['title']}", 62), fontsize=8)
    axis.grid(alpha=0.3)
    if x == "size" and len({r[x] for r in results}) == 1:
        bars(axis, results, y)
        return
    used = {"colinear": 0, "peer": 0}
    for i, runner in enumerate(dict.fromkeys(r["runner"] for r in results)):
        mine = sorted((r for r in results if r["runner"] == runner), key=lambda r: r[x])
        kind = mine[0]["kind"]
        colour = (
            COLOURS.get(kind)
            or (REDS if kind == "colinear" else OTHERS)[
                used[kind] % (5 if kind == "colinear" else 8)
            ]
        )
        used[kind] = used.get(kind, 0) + 1
        style = "-" if kind == "colinear" else "--" if kind in COLOURS else ":"
        shown = [
            max(r[y], 1e-17) if y == "quality" else max(r[y], 1) if y == "peak_bytes" else r[y]
            for r in mine
        ]
        width = 1.8 if kind == "colinear" else 1.1
        axis.plot(
            [r[x] for r in mine],
            shown,
            style,
            color=colour,
            marker="osD^v<>PXph*"[i % 12],
            ms=4,
            lw=width,
            label=runner,
        )
        missed = [(r[x], v) for r, v in zip(mine, shown) if r["status"] == "miss"]
        if missed:
            axis.plot(*zip(*missed), "x", color=colour, ms=9, mew=2)
    axis.set(
        xscale="log", yscale="log", xlabel=figure["x_label"], ylabel=UNITS.get(y, figure["quality"])
    )
    if x == "size":
        at = sorted({r[x] for r in results})
        axis.set_xticks(at, [f"{v:g}" for v in at])
        axis.xaxis.set_minor_formatter(NullFormatter())
    axis.legend(
        fontsize=5.5, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False
    )


def bars(axis: Any, results: list[dict[str, Any]], y: str) -> None:
    """A figure of one problem: the fastest at the top, hatched if its answer misses."""
    results = sorted(results, key=lambda r: -r[y])
    colours = [
        REDS[0] if r["kind"] == "colinear" else COLOURS.get(r["kind"], OTHERS[0]) for r in results
    ]
    drawn = axis.barh([r["runner"] for r in results], [r[y] for r in results], color=colours)
    for bar, result in zip(drawn, results):
        if result["status"] == "miss":
            bar.set(hatch="xxx", edgecolor="white")
    axis.set(xscale="log", xlabel=UNITS.get(y, ""))
    axis.tick_params(axis="y", labelsize=6)


def picture(path: Path, run: dict[str, Any]) -> None:
    """All figures on one sheet; a cross marks an answer that misses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image  # which matplotlib needs

    panels = [(name, figure, None) for name, figure in run["figures"].items()]
    panels += [
        (name, figure, "peak_bytes") for name, figure in run["figures"].items() if figure["memory"]
    ]
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    sheet, axes = pyplot.subplots(
        rows, columns, figsize=(5.2 * columns, 4.2 * rows), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (name, figure, y) in zip(axes.flat, panels):
        panel(axis, name, figure, y)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.savefig(path, dpi=100)
    pyplot.close(sheet)
    with Image.open(path) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)  # a third of the size
