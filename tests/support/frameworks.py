"""The three frameworks, for tests that loop over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from colinear import backends
from colinear.dispatch import calls
from colinear.operators import LinearOperator, neutral

NAMES = ("numpy", "torch", "jax")


def arrays(*names: str) -> list[Any]:
    """The backend modules: all three, or these."""
    return [backends.get(name) for name in names or NAMES]


def eager() -> list[Any]:
    """Those without a compiler. JAX compiles each operation for each shape, so long loops there are left to
    `test_under_tracing.py`."""
    return arrays("numpy", "torch")


@contextmanager
def by_jax_itself() -> Iterator[None]:
    """Nothing is lent to NumPy: as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neutral, "may_lend", lambda: False)
        yield


@contextmanager
def lent_by_torch() -> Iterator[None]:
    """NumPy computes with small tensors: as users get it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "LENDERS", frozenset({"jax", "torch"}))
        yield


def host(x: Any) -> np.ndarray:
    """A result as a NumPy array, whatever it is."""
    x = x.to_dense() if isinstance(x, LinearOperator) else x
    xp = backends.namespace_of(x)
    return np.asarray(x) if xp is None else xp.to_numpy(x)


def close(x: Any, y: Any, tol: float = 1e-9) -> None:
    """Equal to a tolerance relative to the largest entry."""
    x, y = host(x), host(y)
    assert x.shape == y.shape, (x.shape, y.shape)
    np.testing.assert_allclose(
        x, y, rtol=tol, atol=tol * max(1.0, float(np.abs(y).max(initial=0.0)))
    )


def spd(rng: np.random.Generator, *shape: int, dtype: Any = np.float64) -> np.ndarray:
    """A positive definite matrix with eigenvalues between 1 and about 10."""
    n = shape[-1]
    G = normal(rng, (*shape, n), dtype)
    return G @ np.conj(np.swapaxes(G, -1, -2)) / n + np.eye(n, dtype=dtype)


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
    G = rng.standard_normal(shape)
    return (
        (G + 1j * rng.standard_normal(shape)).astype(dtype)
        if np.dtype(dtype).kind == "c"
        else G.astype(dtype)
    )
