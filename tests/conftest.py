"""What all tests share: one thread for the linear algebra, float64 in JAX, seeds, and the helpers in support/ on the path."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# Before any framework is imported: small matrices are slower on many threads, and test processes would fight for the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["COLINEAR_RATES"] = "builtin"  # so that every machine decides alike
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes longer than running what was compiled.
XLA_FLAGS = "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
# The older code generator takes half the time. Not every release of JAX knows these flags.
QUICKER = " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def takes_flags(flags: str) -> bool:
    """Whether the JAX that is installed starts with these flags: it dies of one it does not know."""
    start = [sys.executable, "-c", "import jax; jax.devices()"]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.run(start, env=environment, capture_output=True).returncode == 0


if "XLA_FLAGS" not in os.environ:  # the processes of xdist inherit it
    os.environ["XLA_FLAGS"] = XLA_FLAGS + QUICKER * takes_flags(XLA_FLAGS + QUICKER)

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for tests/support


def pytest_configure(config: pytest.Config) -> None:
    try:
        from hypothesis import HealthCheck, settings
    except ImportError:
        return
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    settings.register_profile(
        "colinear", deadline=None, derandomize=True, suppress_health_check=slow, print_blob=True
    )
    settings.load_profile("colinear")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Every test starts from the same numbers, whatever ran before it."""
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _torch_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch computes, also of tensors so small that users get NumPy's answer: else no test would see torch's own.
    What is lent is tested in conformance/ and operators/test_lent_by_torch.py, and everywhere with COLINEAR_LENT=1."""
    if not os.environ.get("COLINEAR_LENT"):
        monkeypatch.setattr("colinear.dispatch.calls.LENDERS", frozenset({"jax"}))


@pytest.fixture(autouse=True)
def _small_toeplitz_matrices_by_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules of large Toeplitz matrices are tested with small ones, which users get by the matrix."""
    families = importlib.import_module("colinear.functions.solve.families")
    monkeypatch.setattr(families, "SMALL_TOEPLITZ", 32)


@pytest.fixture(autouse=True, scope="module")
def _memory() -> Iterator[None]:
    """What JAX compiled for one module is of no use to the next, and is gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
