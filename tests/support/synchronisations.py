"""Counts how often the host waits for a device: on one, and on CPU tensors that are taken to be on one."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import colinear as co

WAITING = {  # the operations of torch that copy a value to the host, or whose shape depends on values
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::masked_select",
}


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """CPU tensors are taken to be on a device, by the one question that the backend asks."""
    from colinear.backends.torch import arrays

    hosts, arrays.HOSTS = arrays.HOSTS, frozenset()
    try:
        yield
    finally:
        arrays.HOSTS = hosts


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The looks at values of CPU tensors inside, with the lines of this package that take them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from colinear.backends.torch import arrays

    looks: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f._schema.name in WAITING:
                looks.append(f"{f._schema.name} at {_where()}")
            return f(*args, **(kwargs or {}))

    plain = arrays.to_numpy

    def to_numpy(x: Any) -> Any:
        looks.append(f"to_numpy at {_where()}")
        return plain(x)

    ours = [m for name, m in list(sys.modules.items()) if name.startswith("colinear.backends")]
    holders = [m for m in ours if getattr(m, "to_numpy", None) is plain]
    for module in holders:
        module.to_numpy = to_numpy  # type: ignore[attr-defined]
    try:
        with Count():
            yield looks
    finally:
        for module in holders:
            module.to_numpy = plain  # type: ignore[attr-defined]


@contextlib.contextmanager
def counted_on_device() -> Iterator[list[str]]:
    """The waits for a CUDA device inside, as torch itself warns of them."""
    import torch

    torch.cuda.synchronize()
    looks: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield looks
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        if "synchronizing CUDA operation" in str(each.message):
            looks.append(f"{each.filename}:{each.lineno}")
        elif "Synchronization debug mode" not in str(each.message):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _where() -> str:
    """The innermost lines of this package, outside its backends."""
    frame: Any = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < 3:
        name = frame.f_code.co_filename.replace("\\", "/")
        if "src/colinear/" in name and "/backends/" not in name:
            lines.append(f"{name.rpartition('src/colinear/')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


def _ones(A: Any, axis: int) -> Any:
    return A.xp.ones((A.shape[axis], 2), dtype=A.dtype, device=A._context.device)


# Each function of the registry, called as a user calls it.
CALLS: dict[str, Any] = {
    name: getattr(co, name)
    for name in (
        "inv slogdet logdet det diag trace pinv eig eigmax eigmin svd norm cond rank exp log sqrt "
        "isqrt cholesky lu qr nullspace"
    ).split()
} | {
    "solve": lambda A: co.solve(A, _ones(A, -2)),
    "solve_and_logdet": lambda A: co.solve_and_logdet(A, _ones(A, -2)),
    "lstsq": lambda A: co.lstsq(A, _ones(A, -2)),
    "power": lambda A: co.power(A, 0.5),
    "apply": lambda A: co.apply(A.xp.cos, A),
}

LOOKS: dict[tuple[str, str], int] = {}


def allowed(name: str, maker: str) -> int:
    """How many looks a call may take: one, but for the exceptions."""
    return LOOKS.get((name, maker), 1)
