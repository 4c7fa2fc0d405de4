"""What all tests share: one thread for the linear algebra, float64 in JAX, seeds, and the helpers in support/ on the path."""

from __future__ import annotations

import importlib.util
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Before any framework is imported: small matrices are slower on many threads, and test processes would fight for the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes longer than running what was compiled. XLA dies of a flag that it does not know.
XLA_FLAGS = (
    "--xla_cpu_multi_thread_eigen=false",
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",  # the older code generator takes half the time
    "--xla_cpu_parallel_codegen_split_count=1",
)


def known_to_xla(flags: tuple[str, ...]) -> str:
    """Return the flags whose names stand in the library that is installed."""
    spec = importlib.util.find_spec("jaxlib")
    if spec is None or spec.origin is None:
        return ""
    library = max(Path(spec.origin).parent.glob("*.so"), key=lambda path: path.stat().st_size)
    with library.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as text:
        name = lambda flag: flag.removeprefix("--").partition("=")[0].encode()
        return " ".join(flag for flag in flags if text.find(name(flag)) >= 0)


os.environ.setdefault("XLA_FLAGS", known_to_xla(XLA_FLAGS))

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


@pytest.fixture(autouse=True, scope="module")
def _memory() -> Iterator[None]:
    """What JAX compiled for one module is of no use to the next, and is gigabytes."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
