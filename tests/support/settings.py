"""Frameworks, dtypes and batch shapes that tests of rules go through, and random arrays of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import colinear as co
from colinear import backends
from colinear.operators.sparse import from_coordinates

SETTINGS = [
    (name, dtype, batch)
    for name in ("numpy", "torch")
    for dtype in ("float32", "float64", "complex64", "complex128")
    for batch in ((), (2,))
] + [("jax", "float32", (2,)), ("jax", "complex128", ())]


class Maker:
    """Random arrays of one framework, dtype and batch shape."""

    def __init__(self, name: str, dtype: str, batch: tuple[int, ...]):
        self.xp, self.batch, self.rng = backends.get(name), batch, np.random.default_rng(0)
        self.dtype = np.dtype(dtype)

    def __call__(self, *shape: int, batched: bool = True) -> Any:
        shape = (*self.batch, *shape) if batched else shape
        x = self.rng.standard_normal(shape)
        if self.dtype.kind == "c":
            x = x + 1j * self.rng.standard_normal(shape)
        return self.xp.asarray(x.astype(self.dtype))

    def stiefel(self, n: int, r: int) -> Any:
        return self.xp.asarray(np.linalg.qr(self.xp.to_numpy(self(n, r)))[0])

    def sparse(self, m: int, n: int) -> co.Sparse:
        dense = self.rng.random((m, n)) < 0.4
        structure, _ = from_coordinates(*dense.nonzero(), (m, n))
        return co.Sparse.from_parts(self(structure.nnz), structure)

    def spd(self, n: int, shift: float = 3.0) -> Any:
        G = self.xp.to_numpy(self(n, n))
        A = G @ np.conj(np.swapaxes(G, -1, -2)) + shift * np.eye(n, dtype=self.dtype)
        return (co.PSD if shift >= 0 else co.SelfAdjoint)(self.xp.asarray(A))


def both(f: Any, make: Callable[[Maker], Any], setting: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """An operator, f of it (jitted in JAX, where compiling operations one by one takes minutes), and its matrix."""
    A = make(Maker(*setting))
    found = A.xp.jit(f)(A) if setting[0] == "jax" else f(A)
    return A, found, make(Maker("numpy", *setting[1:])).to_dense()
