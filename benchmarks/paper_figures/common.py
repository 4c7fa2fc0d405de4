"""What several figures share: conversions, products that are counted, the data of the paper."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from problems import DATA

import colinear as co

TORCH, JAX = ("torch", "colinear.backends.torch"), ("jax", "colinear.backends.jax")


def as_numpy(x: Any) -> Any:
    """An answer of any library as a NumPy array."""
    if isinstance(x, co.LinearOperator):
        x = x.to_dense()
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    return np.asarray(x)


def relative(x: Any, y: Any) -> float:
    return float(np.linalg.norm(as_numpy(x) - y) / np.linalg.norm(y))


def one_thread() -> Any:
    """torch with one thread, as all others have."""
    import torch

    torch.set_num_threads(1)
    return torch


def compiled(f: Callable, *arguments: Any) -> Callable[[], Any]:
    """The work of a JAX program, finished when it returns."""
    import jax

    program = jax.jit(f)
    return lambda: jax.block_until_ready(program(*arguments))


def cola_sparse(S: Any) -> Any:
    """A matrix for cola-ml, in torch. Its `Sparse` sorts by rows with a sort that is not stable, which moves entries: mended here."""
    import cola
    import scipy.sparse as sp
    import torch

    rows = sp.csr_array(S)
    rows.sort_indices()
    triplets = sp.coo_array(rows)
    A = cola.ops.Sparse(
        *(torch.tensor(x) for x in (triplets.data, triplets.row, triplets.col)), S.shape
    )
    A.A = torch.sparse_csr_tensor(
        *(torch.tensor(x) for x in (rows.indptr, rows.indices, rows.data)), size=S.shape
    )
    return A


class Counted:
    """A product that counts the vectors it is asked for."""

    def __init__(self, multiply: Callable[[Any], Any]):
        self.multiply, self.count = multiply, 0

    def __call__(self, x: Any) -> Any:
        self.count += 1 if x.ndim == 1 else x.shape[-1]
        return self.multiply(x)


class Answer:
    """A value with the passes over the data that it took, where they can be counted."""

    def __init__(self, value: Any, passes: float | None = None):
        self.value, self.counted = value, {"passes": float(passes)} if passes else {}


# ---------------------------------------------------------------------------------------------------- data


def standardised(X: Any) -> Any:
    """Columns of mean zero and variance one; constant ones are dropped."""
    X = np.asarray(X, float)
    spread = X.std(0)
    keep = spread > 1e-12 * spread.max()
    return np.ascontiguousarray((X[:, keep] - X[:, keep].mean(0)) / spread[keep])


def rows_of(name: str, n: int) -> tuple[Any, Any, str]:
    """n rows and targets of Song or Buzz, standardised, and what they are: real where there are as many, else synthetic around those."""
    path, columns = DATA / f"{name}_subset.npz", {"song": 90, "buzz": 77}[name]
    rng = np.random.default_rng(0)
    if not path.exists():
        X = rng.standard_normal((n, columns)) * np.arange(1, columns + 1.0) ** -0.75
        X = X @ np.linalg.qr(rng.standard_normal((columns, columns)))[0]
        return (
            standardised(X),
            X @ rng.standard_normal(columns) + rng.standard_normal(n),
            "random rows",
        )
    with np.load(path) as file:
        keep = file["source"] < 3 if "source" in file else slice(None)
        X = file["X"][keep]
        y = file["y"][keep] if "y" in file else X[:, -7:].mean(1)
    if n <= len(X):
        return standardised(X[:n]), (y[:n] - y[:n].mean()) / y[:n].std(), "real rows"
    if (DATA / "synth.py").exists():
        spec = importlib.util.spec_from_file_location("synth", DATA / "synth.py")
        assert spec is not None and spec.loader is not None
        synth = importlib.util.module_from_spec(spec)
        writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder is read only
        spec.loader.exec_module(synth)
        sys.dont_write_bytecode = writes
        X, y = getattr(synth, name)(n)
    else:
        chosen = rng.integers(len(X), size=n)
        X, y = X[chosen] + 0.1 * X.std(0) * rng.standard_normal((n, columns)), y[chosen]
    return (
        standardised(X),
        ((y - y.mean()) / y.std()).astype(float),
        "synthetic rows, calibrated on a real subset",
    )


def points(name: str, n: int) -> tuple[Any, Any, str]:
    """n points and targets of Elevators or Kin40K, standardised, and what they are."""
    path, columns = DATA / f"{name}.npz", {"elevators": 18, "kin40k": 8}[name]
    if path.exists():
        with np.load(path) as file:
            X, y, kind = standardised(file["X"])[:n], file["y"][:n].astype(float), "real"
    else:
        X, kind = np.random.default_rng(0).standard_normal((n, columns)), "random"
        y = np.sin(X.sum(1)) + 0.1 * X[:, 0]
    return X, (y - y.mean()) / y.std(), kind
