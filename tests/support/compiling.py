"""What lets JAX compile the programs of the tests faster: compiling takes longer than running what was compiled."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]

XLA_FLAGS = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
# The older code generator takes half the time. Not every release of JAX knows these flags.
QUICKER = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
PROGRAMS_OF_A_CONTEXT = 300


def takes_flags(flags: str) -> bool:
    """Whether the JAX that is installed starts with these flags: it dies of one it does not know."""
    start = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.run(start, env=environment, capture_output=True).returncode == 0


def set_flags() -> None:
    """Choose XLA's quickest code generator, for this process and those that it starts."""
    if "XLA_FLAGS" not in os.environ:
        os.environ["XLA_FLAGS"] = XLA_FLAGS + QUICKER * takes_flags(XLA_FLAGS + QUICKER)


def collect_rarely() -> None:
    """Look for garbage less often: importing the frameworks and compiling make many objects that stay."""
    gc.set_threshold(50_000, 50, 100)


def share_contexts() -> None:
    """Let JAX lower some hundred programs in one context of MLIR, if JAX is there.

    It makes a context for each program otherwise, which takes a third of the time that a single
    operation needs. The function is private: where a JAX has none, nothing is changed.
    """
    mlir = sys.modules.get("jax._src.interpreters.mlir")
    make = getattr(mlir, "make_ir_context", None)
    if make is None or make.__name__ == "shared":
        return
    left, context = 0, None

    def shared() -> Any:
        nonlocal left, context
        if threading.current_thread() is not threading.main_thread():
            return make()
        if not left:
            left, context = PROGRAMS_OF_A_CONTEXT, make()
        left -= 1
        return context

    mlir.make_ir_context = shared


def environment_of_devices(count: int) -> dict[str, str]:
    """Return the environment of a process in which JAX makes so many devices of the host, and which
    finds the package and this one."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags.strip(),
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS))),
        "NPROC": "16",  # with fewer threads XLA's collectives may wait for each other for ever
    }
