"""Sums over the processes of torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed

from ...errors import BackendError
from ..processes import OverProcesses
from .derivatives import is_differentiated


def process_group(what: str, group: Any) -> Any:
    """A process group, or None for all processes; `group` may be a mesh of one axis."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise BackendError(
            f"{what}: torch.distributed has no processes yet. Call "
            "torch.distributed.init_process_group first, in each of them."
        )
    group = group.get_group() if hasattr(group, "get_group") else group
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        raise BackendError(
            f"{what}: group is a {type(group).__name__}; expected a process group of torch, a mesh "
            "of one axis, or None for all processes."
        )
    return group


def from_processes(value: Any, group: Any) -> list[Any]:
    """What each process of the group gives, anything that can be pickled."""
    found = [None] * distributed.get_world_size(group)
    with torch._C._DisableFuncTorch():  # whose transforms would hide the bytes that are sent
        distributed.all_gather_object(found, value, group)
    return found


def _add(x: torch.Tensor, group: Any) -> torch.Tensor:
    total = x.clone(memory_format=torch.contiguous_format).resolve_conj()
    distributed.all_reduce(total, group=group)
    return total


def all_reduce(x: torch.Tensor, group: Any) -> Any:
    """The sum over the processes of what each of them has, in each of them."""
    return OverProcesses(_add, group, True)(x)


def for_processes(x: torch.Tensor, group: Any, A: Any) -> Any:
    """x, which is the same in every process, for each to compute with what A has there."""
    return OverProcesses(_add, group, False)(x) if is_differentiated(x) else x
