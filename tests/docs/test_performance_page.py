"""The page on performance is that of the run that is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_page_on_performance_is_up_to_date() -> None:
    done = python("docs/performance_page.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_run_that_is_kept_has_every_figure_and_no_machine_paths() -> None:
    text = (ROOT / "benchmarks" / "paper.json").read_text(encoding="utf-8")
    kept = json.loads(text)["figures"]
    listed = python("benchmarks/paper.py", "--list")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    names = {
        line.partition(":")[0] for line in listed.stdout.splitlines() if not line.startswith(" ")
    }
    assert kept.keys() == names
    assert "/tmp/" not in text and "/home/" not in text and "/work/" not in text
