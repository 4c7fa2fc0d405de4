"""What the host sees of values on a device, and what it has seen of a call that is recorded."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._C import _functorch
from torch.utils._python_dispatch import _disable_current_modes

from .. import Norm
from .arrays import HOST_DTYPES, _values, as_new, to_numpy, under_way
from .mesh import gather_whole


def fetch(arrays: Any) -> list[np.ndarray]:
    """The values of several tensors on the host, or of their norms, copied at once from one
    device."""
    if under_way.looks is not None:
        return under_way.looks.fetch(arrays)
    is_plain = _functorch.peek_interpreter_stack() is None
    with contextlib.nullcontext() if is_plain else torch._C._DisableFuncTorch():
        joined, unpack = pack(arrays)
        if joined.ndim == 0 and joined.dtype in HOST_DTYPES:
            return unpack(np.asarray(joined.item()))
        return unpack(to_numpy(joined))


def pack(arrays: Any) -> tuple[torch.Tensor, Callable[[np.ndarray], list[np.ndarray]]]:
    """Several tensors, or their norms, in one; and the function that takes its values on the host
    apart again."""
    parts, sizes = _parts(arrays)
    if len(parts) == 1 == len(arrays):
        return parts[0], lambda values: [values.reshape(sizes[0])]
    dtypes = [None if type(x) is Norm else x.dtype for x in arrays]
    is_flat = len({(x.ndim, x.dtype) for x in parts}) == 1 and parts[0].ndim == 0
    joined = torch.stack(parts) if is_flat else torch.cat([x.reshape(-1) for x in parts])

    def unpack(joined: np.ndarray) -> list[np.ndarray]:
        values, end = [], 0
        for dtype, size in zip(dtypes, sizes):
            start, end = end, end + math.prod(size)
            part = joined[start:end]
            if dtype is None or not dtype.is_complex:
                part = part.real
            if dtype in HOST_DTYPES:  # its own again
                part = part.astype(HOST_DTYPES[dtype], copy=False)
            values.append(part.reshape(size))
        return values

    return joined, unpack


FEW_COLUMNS = 4  # whose norms are found one by one, with others


def _parts(arrays: Any) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Tensors and, in place of norms that are asked for, the norms, in one piece or several, and the
    sizes of each. Norms of whole tensors, and of columns that are stored as such, are found by one
    launch for each dtype."""
    parts: list[Any] = []
    sizes: list[tuple[int, ...]] = []
    joined: dict[torch.dtype, list[int]] = {}
    for x in arrays:
        if type(x) is not Norm:
            y = gather_whole(_values(x))
            parts.append(y.detach() if y.requires_grad else y)
            sizes.append(tuple(x.shape))
            continue
        y = _values(x.array)
        n, columns = y.ndim, y.shape[1] if y.ndim == 2 and x.axis == (-2,) else 0
        if x.order == 2 and type(y) is torch.Tensor and not y.is_complex():
            if len(x.axis) == n or columns == 1:
                joined.setdefault(y.dtype, []).append(len(parts))
                parts.append(y)
                sizes.append((columns,) if columns else ())
                continue
            if columns and columns <= FEW_COLUMNS and y.stride(0) == 1:
                joined.setdefault(y.dtype, []).extend(range(len(parts), len(parts) + columns))
                parts.extend(y.unbind(1))
                sizes.append((columns,))
                continue
        parts.append(gather_whole(torch.linalg.vector_norm(y, x.order, x.axis)))
        sizes.append(tuple(parts[-1].shape))
    for places in joined.values():
        for i, norm in zip(places, torch._foreach_norm([parts[i] for i in places])):
            parts[i] = norm
    return parts, sizes


MOST_SEEN = 2**16  # numbers that a recording tests to be the same
MOST_LOOKS = 8  # of a call: what looks more often iterates, and looks at other values the next time


class Looks:
    """What a call sees of values on the way, and sends to the device, while it is recorded.

    The first run takes note of both. The second one, which is recorded, is given the same; what it
    would have seen stays on the device, and `are_same` says whether that is what was seen. What was
    sent is read whenever the recording is replayed, which therefore holds this object.
    """

    def __init__(self) -> None:
        self.are_same: list[torch.Tensor] = []
        self._seen: list[tuple[torch.Tensor, np.ndarray]] = []
        self._sent: dict[Any, torch.Tensor] = {}
        self._is_second = False

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        under_way.looks = self
        try:
            yield
        finally:
            under_way.looks = None

    @contextlib.contextmanager
    def second(self) -> Iterator[None]:
        self._is_second = True
        with self.first():
            yield

    def fetch(self, arrays: Any) -> list[np.ndarray]:
        """The values of several tensors on the host: in the second run those of the first."""
        joined, unpack = pack(arrays)
        if not self._is_second:
            if joined.numel() > MOST_SEEN or len(self._seen) == MOST_LOOKS:
                raise RuntimeError("a call that looks at many values, or often, is not recorded")
            with _disable_current_modes():
                self._seen.append((joined.clone(), to_numpy(joined).copy()))
            return unpack(self._seen[-1][1].copy())  # which may be written to
        if len(self.are_same) == len(self._seen):
            raise RuntimeError("the second run of a call has looked at more than the first")
        before, values = self._seen[len(self.are_same)]
        self.are_same.append(torch.all(joined == before))
        return unpack(values.copy())

    def send(self, x: Any, dtype: Any, device: Any) -> torch.Tensor:
        """A tensor with these values of the host, which were there before the second run."""
        values = np.asarray(x)
        key = type(x), values.dtype, values.shape, values.tobytes(), dtype, device
        if key not in self._sent:
            if self._is_second:
                raise RuntimeError("the second run of a call sends what the first has not")
            with _disable_current_modes():
                self._sent[key] = as_new(x, dtype, device)
        return self._sent[key].clone()  # which may be written to
