"""Every figure of the paper, beside dense and iterative methods and the libraries that can do it.

    python benchmarks/paper.py                          # all figures at a tenth of the paper's sizes: about ten minutes
    python benchmarks/paper.py structure-a sums         # some of them, by name or group
    python benchmarks/paper.py --scale 1 --timeout 300  # the paper's sizes
    python benchmarks/paper.py hardware --json hardware.json   # CPU beside CUDA, where there is one
    python benchmarks/paper.py --list

One thread each, the same problem and tolerance; data is converted and programs are compiled before the clock starts; contestants take turns,
each in a process of its own, and the least time counts: of the processor, since the machine may be shared (of the wall in `hardware`).
Every answer is judged: one that misses the tolerance is marked MISS, whatever its time. What is not installed, fails, or takes too
long is named with the reason. The ratio is to the fastest right answer that is not colinear's. Data is read from COLINEAR_DATA or
`../shared/data`; stand-ins are called synthetic or random.
Saves output/paper.json and output/paper.png.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # `hardware` asks for CUDA itself
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import json
import sys
import time
from pathlib import Path

from paper_figures import (
    applications_data,
    applications_operators,
    derivatives,
    diagonals,
    hardware,
    report,
    structure,
    sums,
)
from paper_figures.harness import Limits, race

GROUPS = (
    structure,
    sums,
    hardware,
    applications_data,
    applications_operators,
    diagonals,
    derivatives,
)
FIGURES = {figure.name: figure for group in GROUPS for figure in group.FIGURES}


def scale_of(text: str) -> float:
    return 0.001 if text == "tiny" else float(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "figures",
        nargs="*",
        metavar="FIGURE",
        help="names or beginnings of names; all if none is given",
    )
    parser.add_argument(
        "--scale",
        type=scale_of,
        default=0.1,
        help="of the paper's sizes: tiny, or a number (default 0.1)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=5.0,
        help="seconds for one call of a contestant (default 5)",
    )
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="for the repeats of a contestant (default 0.3)"
    )
    parser.add_argument(
        "--only",
        default="",
        help="contestants whose names contain one of these words, parted by commas",
    )
    parser.add_argument("--json", type=Path, default=Path("output/paper.json"))
    parser.add_argument(
        "--update",
        action="store_true",
        help="keep the other figures of the JSON file, if there is one",
    )
    parser.add_argument("--picture", type=Path, default=Path("output/paper.png"))
    parser.add_argument("--list", action="store_true", help="the figures and who competes")
    options = parser.parse_args(arguments)
    chosen = [
        f
        for name, f in FIGURES.items()
        if not options.figures or any(name.startswith(word) for word in options.figures)
    ]
    if not chosen:
        parser.error(
            f"no figure is called {', '.join(options.figures)}; there are {', '.join(FIGURES)}"
        )
    for figure in chosen:
        figure.runners = [
            runner
            for runner in figure.runners
            if any(word in runner.name for word in options.only.split(","))
        ]
    if options.list:
        for figure in chosen:
            print(
                f"{figure.name}: {figure.title}\n    "
                + "; ".join(runner.name for runner in figure.runners)
            )
        return 0
    run = report.header(
        options.scale,
        options.timeout,
        "python benchmarks/paper.py " + " ".join(arguments or sys.argv[1:]),
    )
    if options.update and options.json.exists():
        before = json.loads(options.json.read_text(encoding="utf-8"))["figures"]
        # a figure that is run keeps its place
        run["figures"] = {name: before[name] for name in FIGURES if name in before}
    start, failed = time.perf_counter(), []
    for figure in chosen:
        print(f"\n{figure.name}: {figure.title}\n  the paper: {figure.paper}", flush=True)
        limits = Limits(timeout=options.timeout, seconds=options.seconds)
        results = []
        try:
            results.extend(race(figure, options.scale, limits, say=lambda text: None))
        except Exception as reason:  # of the problem itself: the other figures are still to come
            failed.append(figure.name)
            print(f"  {figure.name} could not be set up: {type(reason).__name__}: {reason}")
            continue
        print(report.table(figure, results), flush=True)
        run["figures"][figure.name] = report.entry(figure, results)
        run["total_seconds"] = round(time.perf_counter() - start)
        report.save(options.json, run)  # after each, lest a long run be lost
    try:
        report.picture(options.picture, run)
        print(f"\nsaved {options.json} and {options.picture}, after {run['total_seconds']} s")
    except ImportError:
        print(f"\nsaved {options.json}; matplotlib is not installed, so no picture")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
