"""What all tests share: one thread for the linear algebra, float64 in JAX, seeds, and the helpers in support/ on the path."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before any framework is imported: small matrices are slower on many threads, and test processes would fight for the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ["COLINEAR_RATES"] = "builtin"  # so that every machine decides alike
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).parent))  # for tests/support

from support.compiling import collect_rarely, set_flags, share_contexts

set_flags()  # the processes of xdist inherit them
collect_rarely()  # from here on: what the tests import stays

import numpy as np
import pytest

MOST_MEMORY = 4e9  # bytes of a process, from which what JAX has compiled is dropped


def pytest_collection_finish() -> None:
    """The objects of modules are never collected."""
    gc.freeze()


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
def _compiled_quickly() -> None:
    """JAX shares what it can between its programs, from the first test on that finds it imported."""
    share_contexts()


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
    """What JAX compiled for one module is kept for the next, until it is gigabytes."""
    yield
    if "jax" in sys.modules and resident_bytes() > MOST_MEMORY:
        sys.modules["jax"].clear_caches()


def resident_bytes() -> float:
    """The memory of this process; infinite where Linux does not tell it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("inf")
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
