"""Modes that a user has set in a framework and that do not hold for our own formulas: JAX's strict ones (`backends/_jax_modes.py`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from . import backends, signatures

_is_strict: Callable[[], bool] | None = None  # JAX's, as soon as JAX is used
_in_ordinary_modes: Callable[[Callable], Callable] | None = None


def _watch(xp: Any) -> None:
    global _is_strict, _in_ordinary_modes
    if xp.name == "jax":
        _is_strict, _in_ordinary_modes = xp.is_strict, xp.in_ordinary_modes


backends.on_load(_watch)


def are_strict() -> bool:
    """Whether our formulas must not run in the modes that are set. (torch.compile, which would trace the question, has none.)"""
    if _is_strict is None or (signatures.is_compiling is not None and signatures.is_compiling()):
        return False
    return _is_strict()


def ordinary(f: Callable, *arguments: Any) -> Any:
    """`f(*arguments)` in the framework's ordinary modes."""
    assert _in_ordinary_modes is not None
    return _in_ordinary_modes(f)(*arguments)


def entry(f: Callable) -> Callable:
    """`f`, where users enter: it runs in the ordinary modes."""

    @functools.wraps(f)
    def entered(*arguments: Any) -> Any:
        return ordinary(f, *arguments) if _is_strict is not None and are_strict() else f(*arguments)

    return entered
