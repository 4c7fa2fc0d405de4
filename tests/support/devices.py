"""The CUDA device of a framework, for the tests that need one."""

from __future__ import annotations

import pytest

from colinear import backends


def cuda(framework):
    """A device of that framework, or skip."""
    if framework == "torch":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch sees no CUDA device")
        return "cuda"
    jax = pytest.importorskip("jax")
    try:
        return jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("JAX sees no GPU")


def on_device(framework, x):
    xp = backends.get(framework)
    return xp.to_device(xp.asarray(x), cuda(framework))


def is_there(framework, x):
    return str(backends.get(framework).device_of(x)).lower().startswith(("cuda", "gpu"))
