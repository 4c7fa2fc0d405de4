"""The race of all methods against `Auto` runs, on two tiny cells. No time is asserted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_cells_are_raced_and_forecast() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLINEAR_RATES": "builtin"}
    arguments = ("--only", "logdet", "--sizes", "0", "--predict", "--timeout", "60")
    done = subprocess.run(
        [sys.executable, "benchmarks/auto.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("| logdet")]
    assert len(lines) == 2 and all("forecast" in line for line in lines), done.stdout
    assert "Cholesky" in lines[0] and "matrix" in lines[1]
    assert "of 2 lines over 1.5x" in done.stdout and "forecasts of Auto: median" in done.stdout
