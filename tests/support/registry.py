"""What the conformance suite runs over: makers of operators, frameworks, dtypes, batch shapes, and the exceptions with their reasons.

A maker is `maker(xp, dtype, batch, rng) -> (operator, its matrix in double precision)`, or None where it has no meaning. To have a new
operator tested against every function on every framework, add a maker to one of the lists in `tests/operators/makers_*.py`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from colinear import backends
from support.composed_operators import COMPOSED
from support.formula_operators import FORMULAS
from support.frameworks import by_jax_itself, lent_by_torch
from support.stored_operators import STORED

MAKERS: dict[str, Any] = {**STORED, **FORMULAS, **COMPOSED}

BACKENDS = [name for name in ("numpy", "torch", "jax") if importlib.util.find_spec(name)]

BATCHES: tuple[tuple[int, ...], ...] = ((), (2,))
FULL = tuple(
    (dtype, batch)
    for dtype in ("float32", "float64", "complex64", "complex128")
    for batch in BATCHES
)
# In JAX each new shape and dtype is compiled, which is what the suite's time goes to. So each operator is tested there in one of these
# pairs, by turns: between them single and double, real and complex, plain and batched, and over all operators every one of the eight.
# Functions of the first of a pair are computed as users get them, by NumPy where it can (operators/neutral.py), of the second by JAX
# itself. COLINEAR_FULL=1 leaves nothing out.
PAIRS = (
    (("complex128", ()), ("float32", (2,))),
    (("complex64", (2,)), ("float64", ())),
    (("float32", ()), ("complex128", (2,))),
    (("float64", (2,)), ("complex64", ())),
)
FULLY = bool(os.environ.get("COLINEAR_FULL"))


def kinds(backend: str, maker: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The dtypes and batch shapes in which an operator is tested."""
    if backend != "jax" or FULLY:
        return FULL
    return PAIRS[list(MAKERS).index(maker) % len(PAIRS)]


def ways(backend: str, maker: str, dtype: str, batch: tuple[int, ...]) -> tuple[Any, ...]:
    """The contexts in which a function of such an operator is tested: as users get it, by the framework itself, or both."""
    if backend == "numpy":
        return (nullcontext,)
    if backend == "torch":
        is_lent = (list(MAKERS).index(maker) + FULL.index((dtype, batch)) // 2) % 2
        return (nullcontext, lent_by_torch) if FULLY else ((nullcontext, lent_by_torch)[is_lent],)
    if FULLY:
        return (nullcontext, by_jax_itself)
    first = (dtype, batch) == kinds(backend, maker)[0]
    return (nullcontext,) if first else (by_jax_itself,)


COMBINATIONS = [(maker, backend) for maker in MAKERS for backend in BACKENDS]

HALF = {"numpy": ("float16",), "torch": ("float16", "bfloat16"), "jax": ("bfloat16",)}

# (what, maker or "*", backend or "*", dtype or "*") -> the reason why it is left out. Each is a fact of a framework, not a bug of ours.
EXCEPTIONS: dict[tuple[str, str, str, str], str] = {}


def exception(what: str, maker: str, backend: str, dtype: str) -> str | None:
    """The reason why a combination is left out, or None."""
    for key, reason in EXCEPTIONS.items():
        if all(
            pattern in ("*", value)
            for pattern, value in zip(key, (what, maker, backend, dtype), strict=True)
        ):
            return reason
    return None


class Case(NamedTuple):
    operator: Any
    dense: np.ndarray
    dtype: str
    batch: tuple[int, ...]

    def __repr__(self) -> str:
        return f"{self.operator!r} ({self.dtype}, batch {self.batch})"

    @property
    def is_square(self) -> bool:
        return self.dense.shape[-1] == self.dense.shape[-2]

    @property
    def eps(self) -> float:
        return float(self.operator.xp.eps(self.operator.dtype))

    @property
    def singular_values(self) -> np.ndarray:
        return np.linalg.svd(self.dense, compute_uv=False)

    @property
    def rank(self) -> np.ndarray:
        s = self.singular_values
        return np.sum(
            s
            > s.max(axis=-1, initial=0.0, keepdims=True)
            * max(self.dense.shape[-2:])
            * self.eps
            * 10,
            axis=-1,
        )

    @property
    def is_regular(self) -> bool:
        """Square, and far from singular."""
        return self.is_square and bool(np.all(self.rank == self.dense.shape[-1]))

    @property
    def condition(self) -> float:
        """The largest ratio of singular values that are not zero."""
        s = self.singular_values
        s = np.where(np.arange(s.shape[-1]) < self.rank[..., None], s, np.nan)
        with np.errstate(all="ignore"):
            ratio = (
                np.nanmax(s / np.min(np.where(np.isnan(s), np.inf, s), axis=-1, keepdims=True))
                if s.size and self.rank.any()
                else 1.0
            )
        return float(ratio)


def cases(name: str, backend: str, what: str, chosen: Any = None) -> Iterator[Case]:
    """The operators that a maker makes in one framework; the same numbers whatever the framework."""
    xp = backends.get(backend)
    for dtype, batch in kinds(backend, name) if chosen is None else chosen:
        if exception(what, name, backend, dtype):
            continue
        made = MAKERS[name](xp, dtype, batch, np.random.default_rng(0))
        if made is not None:
            yield Case(*made, dtype, batch)
