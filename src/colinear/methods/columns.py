"""Arithmetic of blocks, (*batch, n, k), column by column, and what becomes of a column."""

from __future__ import annotations

from typing import Any

from ..backends import Array

RUNNING = -1
RESTART = -2  # a breakdown from which a new cycle may recover
# Statuses are `Status` values; by ten more, the preconditioner's fault and not the operator's; by twenty, that of b or x0.
PRECONDITIONER = 10
GIVEN = 20


def inner(xp: Any, U: Array, V: Array) -> Array:
    """u^H v for each pair of columns, (*batch, k). (torch's vecdot conjugates the first one too.)"""
    return xp.vecdot(U, V, axis=-2)


def squared(xp: Any, U: Array) -> Array:
    """|u|^2 for each column."""
    return xp.real(inner(xp, U, U))


def column_norms(xp: Any, X: Array) -> Array:
    """|x| for each column."""
    return xp.vector_norm(X, axis=-2)


def divide(xp: Any, a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return xp.where(b == 0, 0, a / xp.where(b == 0, 1, b))


def first_of(xp: Any, old: Array, *cases: tuple[Array, int]) -> Array:
    """The status of the columns after a step: of those that run, the first case that holds."""
    new = old
    for holds, status in reversed(cases):
        new = xp.where(holds, int(status), new)
    return xp.where(old == RUNNING, new, old)


def is_plain(xp: Any, *arrays: Array) -> bool:
    """Whether arrays may be written over: nobody traces them, and the framework allows it."""
    return xp.name != "jax" and not any(xp.is_traced(x) for x in arrays)


def is_one_vector(xp: Any, R: Array) -> bool:
    """Whether a block (*batch, n, k) is a single column that may be written over."""
    return len(R.shape) == 2 and R.shape[-1] == 1 and is_plain(xp, R)


def is_recorded(x: Array) -> bool:
    """Whether torch records the derivatives of an array, as of a product with a function that holds parameters: then nothing that it comes to
    may be written over."""
    return bool(getattr(x, "requires_grad", False))
