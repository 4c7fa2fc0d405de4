"""Scripts that run as several processes of torch.distributed, on this machine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SECONDS = 600  # after which the processes are ended
SOURCE = Path(__file__).parents[2] / "src"


def run_processes(script: Path, *arguments: str, count: int = 2) -> Any:
    """Return what the first of `count` processes of a script prints as JSON. Each finds its rank,
    their number and the file by which they meet in its environment."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "WORLD_SIZE": str(count),
            "COLINEAR_MEETING": f"file://{folder}/store",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-W", "error::UserWarning", str(script), *arguments]
        started = [
            subprocess.Popen(
                command,
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(count)
        ]
        try:
            said = [process.communicate(timeout=SECONDS) for process in started]
        finally:
            for process in started:  # one that waits for another which has failed
                process.kill()
    codes = [process.returncode for process in started]
    assert codes == [0] * count, "\n".join(error[-3000:] for _, error in said)
    return json.loads(said[0][0])
