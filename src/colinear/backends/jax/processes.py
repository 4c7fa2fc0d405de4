"""Sums over the devices along an axis of `shard_map` or `pmap`."""

from __future__ import annotations

from typing import Any

import jax

from ...errors import BackendError
from ..processes import OverProcesses


def process_group(what: str, group: Any) -> Any:
    """The name of an axis, or a tuple of names."""
    names = (group,) if isinstance(group, str) else group
    if not (isinstance(names, tuple) and names and all(isinstance(x, str) for x in names)):
        raise BackendError(
            f"{what}: group is {group!r}; expected the name of an axis of jax.shard_map or jax.pmap, "
            "or several names in a tuple."
        )
    return group


def from_processes(value: Any, group: Any) -> list[Any]:
    """What each device gives: JAX runs one program on all, so that is the same."""
    return [value]


def _add(x: jax.Array, group: Any) -> jax.Array:
    return jax.lax.psum(x, group)


def _is_typed(x: Any) -> bool:
    """Whether the type of an array says that it differs from device to device. Then JAX knows what
    the derivative of a sum over devices is; where it does not keep track, it takes each of them to
    have a number of its own."""
    kind = jax.typeof(x) if hasattr(jax, "typeof") else None
    axes = getattr(kind, "manual_axis_type", None)  # since JAX 0.10; `vma` before
    return bool(getattr(kind, "vma", None) if axes is None else axes.varying)


def all_reduce(x: jax.Array, group: Any) -> jax.Array:
    """The sum over the devices of what each of them has, on each of them."""
    return _add(x, group) if _is_typed(x) else OverProcesses(_add, group, True)(x)


def for_processes(x: jax.Array, group: Any, A: Any) -> jax.Array:
    """x, which is the same on every device, for each to compute with what A has there."""
    if any(_is_typed(leaf) for leaf in A.arrays()):
        return x
    return OverProcesses(_add, group, False)(x)
