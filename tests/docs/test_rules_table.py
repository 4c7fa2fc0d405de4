"""The table of rules is that of the registered rules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(*command: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where no test has added rules."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_table_of_rules_is_up_to_date() -> None:
    done = python("docs/rules_table.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_cell_of_the_papers_table_has_a_rule_or_follows_from_one() -> None:
    code = """
import sys; sys.path.insert(0, "docs")
from rules_table import PAPER, PAPER_COLUMNS, by_operator
import colinear as co
for name, marks in PAPER.items():
    ours = by_operator(getattr(co, name))
    for operator, mark in zip(PAPER_COLUMNS, marks, strict=True):
        follows = name == "trace" and operator in by_operator(co.diag)  # the sum of the diagonal
        assert mark == "." or operator in ours or follows, (name, operator)
    """
    done = python("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
