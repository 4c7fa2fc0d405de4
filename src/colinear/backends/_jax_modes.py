"""JAX's strict modes, in which no dtype is promoted and no rank raised.

They are for the user's own formulas. Ours mix dtypes and ranks on purpose (a real norm by complex numbers, a count by truths), so they run in
JAX's ordinary modes, whatever the user has set: each call from outside passes through `in_ordinary_modes`. That is a call of a function or
of an operator, and one of JAX's for a derivative, a transpose or a program of ours, which may come long after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def is_strict() -> bool:
    """Whether one of JAX's strict modes is on."""
    return jax.config.jax_numpy_dtype_promotion != "standard" or jax.config.jax_numpy_rank_promotion != "allow"


def in_ordinary_modes(f: Callable) -> Callable:
    """`f`, run in JAX's ordinary modes."""

    @functools.wraps(f)
    def relaxed(*arguments: Any, **options: Any) -> Any:
        if not is_strict():
            return f(*arguments, **options)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return f(*arguments, **options)

    return relaxed
