"""The paper's figures run at the tiniest scale, and colinear's answers in them are right. No time is asserted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
STATUSES = {"ok", "miss", "error", "timeout", "declined", "skipped", "absent"}


def python(*command: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which forks: this one may have threads."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "JAX_PLATFORMS": "cpu",
        "MPLBACKEND": "Agg",
    }
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("paper")
    figures = ("structure-b", "structure-c", "sums-b")
    limits = ("--scale", "tiny", "--seconds", "0", "--timeout", "60", "--only", "NumPy,Auto,SciPy")
    done = python(
        "benchmarks/paper.py",
        *figures,
        *limits,
        "--json",
        str(folder / "p.json"),
        "--picture",
        str(folder / "p.png"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "p.png").stat().st_size > 10_000
    return json.loads((folder / "p.json").read_text())


def test_the_file_says_when_where_and_how_the_run_was_made(run: dict[str, Any]) -> None:
    assert run["schema"] == 1 and run["scale"] < 0.01 and "benchmarks/paper.py" in run["command"]
    assert {"processor", "cores", "threads", "python", "versions"} <= run["machine"].keys()
    assert list(run["figures"]) == ["structure-b", "structure-c", "sums-b"]
    for figure in run["figures"].values():
        assert {"title", "paper", "quality", "note", "clock", "x", "y", "results"} <= figure.keys()


def test_every_contestant_has_a_status_and_a_reason_if_it_is_not_right(run: dict[str, Any]) -> None:
    results = [result for figure in run["figures"].values() for result in figure["results"]]
    assert {"colinear", "dense", "iterative"} <= {result["kind"] for result in results}
    for result in results:
        assert result["status"] in STATUSES
        assert result["status"] == "ok" or result["reason"]
        if result["status"] == "ok":
            assert (
                result["seconds"] > 0
                and result["repeats"] >= 1
                and math.isfinite(result["quality"])
            )


def test_the_answers_of_colinear_are_right(run: dict[str, Any]) -> None:
    ours = [
        r
        for figure in run["figures"].values()
        for r in figure["results"]
        if r["kind"] == "colinear"
    ]
    assert len(ours) >= 5
    assert [r for r in ours if r["status"] != "ok"] == []


def test_what_fails_is_named_and_harms_nobody() -> None:
    code = """
import sys, os, time; sys.path.insert(0, "benchmarks")
from paper_figures.harness import Declined, Figure, Limits, race
class Problem:
    size, label, bar = 1, "one", 1e-3
    def judge(self, answer): return {"quality": abs(answer - 1.0)}
figure = Figure("f", "t", "p", "error", lambda scale: [Problem(), Problem()])
figure.runner("right", "colinear")(lambda p: lambda: 1.0)
figure.runner("wrong")(lambda p: lambda: 2.0)
figure.runner("raises")(lambda p: lambda: 1 / 0)
figure.runner("dies")(lambda p: lambda: os._exit(3))
figure.runner("sleeps")(lambda p: lambda: time.sleep(60))
figure.runner("gone", needs=("no_such_module",))(lambda p: lambda: 1.0)
def refuse(p): raise Declined("too large")
figure.runner("refuses")(refuse)
found = [(r["runner"], r["status"]) for r in race(figure, 1.0, Limits(timeout=1.0, seconds=0.0), say=str)]
first = [("right", "ok"), ("wrong", "miss"), ("raises", "error"), ("dies", "error"), ("sleeps", "timeout"), ("refuses", "declined")]
assert found[:7] == [("gone", "absent"), *first], found
assert dict(found[7:]) == dict(first) | dict.fromkeys(["raises", "dies", "sleeps"], "skipped"), found
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
