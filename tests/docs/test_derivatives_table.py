"""The table of derivatives is that of the cases that are tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_derivatives_is_up_to_date() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "docs/derivatives_table.py", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_names_the_frameworks_of_each_function_and_mode() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    from derivatives_table import page

    text = "before\n<!-- Written by docs/derivatives_table.py -->\nold\n<!-- end -->\nafter\n"
    new = page(
        text,
        [("solve", "reverse", "torch"), ("solve", "reverse", "JAX"), ("eig", "forward", "JAX")],
    )
    assert "| `solve` | torch, JAX | |" in new and "| `eig` | | JAX |" in new
    assert "old" not in new and new.startswith("before\n") and new.endswith("after\n")
    assert page(new, [("eig", "forward", "JAX")]).count("| `eig`") == 1
