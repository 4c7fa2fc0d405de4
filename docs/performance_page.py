"""Writes docs/performance.md and its picture from what benchmarks/paper.py measured: so the page says what was measured, losses too.

python docs/performance_page.py            # writes both, from benchmarks/paper.json and, of a GPU, benchmarks/paper_gpu.json
python docs/performance_page.py --check    # fails if the page is not up to date

It also writes docs/figures/ratios.svg, the summary as bars, for the home page, and what docs/performance_gpu.py makes of benchmarks/gpu.json.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import performance_gpu
from performance_gpu import seconds

HERE = Path(__file__).parent
PAGE, PICTURE = HERE / "performance.md", HERE / "performance.png"
BARS = HERE / "figures" / "ratios.svg"
GPU, TRAINING = HERE.parent / "benchmarks" / "gpu.json", HERE / "figures" / "gp_training.svg"
RUNS = {
    "the paper's figures": HERE.parent / "benchmarks" / "paper.json",
    "a GPU": HERE.parent / "benchmarks" / "paper_gpu.json",
}

HEAD = """---
hide: [toc]
---

# Performance

<!-- Written by docs/performance_page.py from benchmarks/paper.json: do not edit. -->

This page has every figure of [the paper](paper.md), measured anew. The contestants are dense and iterative methods, what an expert writes by
hand for that one problem, and the libraries that can do it. Each runs on one thread, with the same data and tolerance. Data is converted and
programs are compiled before the clock starts. `colinear` is called as a user calls it: the operator says its structure, and `Auto` chooses. A row
names a method where the paper is about that method.

The **ratio** is the time beside that of the fastest right answer of all others. Below 1, a row of `colinear` is ahead; above 1, it is behind.
**Quality** is the error or residual of the answer. An answer that misses what the others reach is marked *miss*, and has no
ratio. In small problems the overhead of Python decides. The tables show the largest size of each figure, the picture all of them.
"""


def number(x: Any) -> str:
    return "" if x is None else f"{x:.0e}" if isinstance(x, float) and math.isfinite(x) else str(x)


def ratio(x: float | None) -> str:
    if x is None:
        return ""
    text = f"{x:.2g}" if x < 0.1 else f"{x:.2f}" if x < 10 else f"{x:.0f}"
    return f"**{text}**" if x < 1 else text


def largest(figure: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    """The last problem that was run, and what each contestant did there: first the right ones, by time."""
    label = [r["label"] for r in figure["results"] if "label" in r][-1]
    found = [r for r in figure["results"] if r.get("label") == label or r["status"] == "absent"]
    order = {"ok": 0, "miss": 1}
    return label, sorted(
        found, key=lambda r: (order.get(r["status"], 2), r.get("seconds") or math.inf)
    )


def row(result: dict[str, Any], counted: bool, memory: bool) -> str:
    name = f"**{result['runner']}**" if result["kind"] == "colinear" else result["runner"]
    status = (
        ""
        if result["status"] == "ok"
        else f"*{result['status']}*: {result['reason']}".replace("|", "\\|").replace("<", "&lt;")
    )
    cells = [
        name,
        seconds(result.get("seconds")),
        ratio(result.get("ratio")),
        number(result.get("quality")),
    ]
    cells += [f"{result['passes']:.0f}" if "passes" in result else ""] if counted else []
    cells += (
        [f"{result['peak_bytes'] / 2**20:.0f} MB" if result.get("peak_bytes") is not None else ""]
        if memory
        else []
    )
    return f"| {' | '.join([*cells, status])} |"


def section(name: str, figure: dict[str, Any]) -> list[str]:
    label, results = largest(figure)
    counted, memory = any("passes" in r for r in results), figure["memory"]
    columns = [
        "",
        "time",
        "ratio",
        figure["quality"].replace("|", "\\|"),
        *(["passes"] if counted else []),
        *(["memory"] if memory else []),
        "",
    ]
    lines = [
        "",
        f"### {figure['title']}",
        "",
        f"`{name}`. The paper: {figure['paper']}. Here: {label}.",
    ]
    lines += ["", figure["note"]] if figure["note"] else []
    lines += ["", f"| {' | '.join(columns)} |", "|" + " --- |" * len(columns)]
    return lines + [row(result, counted, memory) for result in results]


def best(results: list[dict[str, Any]], kinds: tuple[str, ...], by: str) -> dict[str, Any] | None:
    right = [r for r in results if r["status"] == "ok" and r["kind"] in kinds]
    return min(right, key=lambda r: r[by], default=None)


def summary(run: dict[str, Any]) -> list[str]:
    """One line for each figure: colinear's best beside what is written by hand for that problem, and beside the best of all others."""
    head = "| figure | largest problem here | colinear's best | by hand | ratio | the best other | ratio |"
    lines = ["", head, "|" + " --- |" * 7]
    for figure in run["figures"].values():
        label, results = largest(figure)
        by = figure["by"]
        show = seconds if by == "seconds" else "error {:.1e}".format
        ours = best(results, ("colinear",), by)
        cells = [f"[{figure['title']}](#{anchor(figure['title'])})", label]
        cells.append(
            f"{ours['runner'].removeprefix('colinear, ')}, {show(ours[by])}"
            if ours
            else "none is right"
        )
        for kinds in (("by hand",), ("dense", "iterative", "peer")):
            other = best(results, kinds, by)
            cells += [f"{other['runner']}, {show(other[by])}" if other else ""]
            cells += [ratio(ours[by] / other[by]) if ours and other else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def ratios(run: dict[str, Any]) -> list[tuple[str, float]]:
    """Each figure, and colinear's best beside the best of the methods and libraries of others; the least ratio first."""
    found = []
    for figure in run["figures"].values():
        _, results = largest(figure)
        ours = best(results, ("colinear",), figure["by"])
        other = best(results, ("dense", "iterative", "peer"), figure["by"])
        if ours and other:
            title = figure["title"].removeprefix("Hardware: ")
            found.append((title.partition(":")[0], ours[figure["by"]] / other[figure["by"]]))
    return sorted(found, key=lambda item: item[1])


def bars(run: dict[str, Any]) -> str:
    """A picture of the ratios on a logarithmic scale: to the left of the line colinear is ahead."""
    # height of a row, where 1 is, width of all, and of a factor of 10
    height, line, width, decade = 16, 300, 350, 46
    found = ratios(run)
    rows = []
    for i, (title, r) in enumerate(found):
        y, end = 30 + height * i, line + decade * math.log10(r)
        colour = "#2e7d32" if r < 1 else "#c62828"
        rows += [
            f'<text x="170" y="{y + 12}" text-anchor="end">{escape(shortened(title))}</text>',
            f'<rect x="{min(line, end):.1f}" y="{y + 2}" width="{abs(end - line):.1f}" height="11" fill="{colour}"/>',
            f'<text x="{max(line, end) + 5:.1f}" y="{y + 12}">{ratio(r).strip("*")}</text>',
        ]
    bottom = 30 + height * len(found)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 8}" font-family="sans-serif" font-size="10.5" fill="#808080">',
            f'<text x="{line - 6}" y="18" text-anchor="end">colinear is ahead</text><text x="{line + 6}" y="18">behind</text>',
            f'<line x1="{line}" y1="8" x2="{line}" y2="{bottom}" stroke="#808080"/>',
            *rows,
            "</svg>\n",
        ]
    )


def shortened(title: str, most: int = 31) -> str:
    """A title that fits beside the bars, cut between words."""
    if len(title) <= most:
        return title
    return title[: title.rindex(" ", 0, most)] + " \u2026"


def anchor(title: str) -> str:
    """As Python-Markdown makes it."""
    import re
    import unicodedata

    text = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def origin(run: dict[str, Any]) -> str:
    machine = run["machine"]
    versions = ", ".join(
        f"{name} {version}" for name, version in machine["versions"].items() if version != "absent"
    )
    absent = ", ".join(name for name, version in machine["versions"].items() if version == "absent")
    shared = f", load {machine['load']} when it began" if machine["load"] > 0.5 else ""
    clock = "times are of the processor, the least of several turns (of the wall under \u201cHardware\u201d)"
    return (
        f"{run['date']}, {machine['processor']}, {machine['cores']} cores{shared}, one thread each; {clock}. `{run['command']}`: "
        f"a scale of {run['scale']:g} of the paper's sizes, {run['timeout']:g} seconds for a call. Python {machine['python']}, {versions}."
        + (f" Not installed there: {absent}." if absent else "")
        + (f" It was {run['parts']}." if "parts" in run else "")
    )


def page() -> str:
    lines = [HEAD]
    for title, path in RUNS.items():
        if not path.exists():
            continue
        run = json.loads(path.read_text(encoding="utf-8"))
        if path == RUNS["a GPU"]:  # the same figures once more: their headings are to differ
            for figure in run["figures"].values():
                figure["title"] = figure["title"].replace("Hardware:", "On a GPU:")
        lines += ["", f"## Measured: {title}", "", origin(run), *summary(run)]
        if path == RUNS["the paper's figures"]:
            lines += [
                "",
                f"![All figures, times against sizes]({PICTURE.name})",
                "",
                "A cross marks an answer that misses.",
            ]
        for name, figure in run["figures"].items():
            lines += section(name, figure)
    lines += performance_gpu.tables(json.loads(GPU.read_text(encoding="utf-8")))
    lines += [
        "",
        "## Again",
        "",
        "`make bench` runs every script of `benchmarks/`; `python benchmarks/paper.py --list` shows the figures and who competes.",
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def pictures() -> dict[Path, str]:
    """The pictures that are text."""
    measured = json.loads(GPU.read_text(encoding="utf-8"))["train"]
    kept = json.loads(RUNS["the paper's figures"].read_text(encoding="utf-8"))
    return {BARS: bars(kept), TRAINING: performance_gpu.training(measured)}


def draw() -> None:
    sys.path.insert(0, str(HERE.parent / "benchmarks"))
    from paper_figures import report

    report.picture(PICTURE, json.loads(RUNS["the paper's figures"].read_text(encoding="utf-8")))


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
        for path, text in pictures().items():
            path.write_text(text, encoding="utf-8")
        draw()
    elif any(path.read_text(encoding="utf-8") != text for path, text in pictures().items()):
        sys.exit("docs/figures is not up to date: run python docs/performance_page.py")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/performance.md is not up to date: run python docs/performance_page.py")
