"""Recordings of torch's operations, as a CUDA device would keep them, where there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map


class Tape(TorchDispatchMode):
    """The operations of torch inside, to be made again of other numbers as a CUDA graph does: by the
    memory that they were recorded with. What was there before must still be there then, and `lasting`
    tensors are read and written where they lie."""

    def __init__(self, own: list[Any], lasting: Sequence[Any] = ()):
        super().__init__()
        self.own, self.operations, self.outside = own, [], []
        self._lasting = [x.untyped_storage().data_ptr() for x in lasting]
        self._made = dict(zip(map(id, own), range(len(own))))
        self._kept = list(own)  # so that no other tensor has its id; of a graph, in its own memory

    def _place(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in self._made:
            self.outside.append((StorageWeakRef(x.untyped_storage()), len(self._kept)))
            is_lasting = x.untyped_storage().data_ptr() in self._lasting
            self._keep(x if is_lasting else x.clone())
            return Place(len(self._kept) - 1)
        return Place(self._made[id(x)])

    def _keep(self, x: torch.Tensor) -> None:
        self._made[id(x)] = len(self._kept)
        self._kept.append(x)

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(self._place, (args, kwargs or {}))
        result = f(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and id(x) not in self._made:
                self._keep(x)
        self.operations.append((f, given, tree_map(self._place, result)))
        return result

    def play(self, results: list[Any]) -> list[Any]:
        """The operations once more, and what became of these tensors."""
        assert not any(ref.expired() for ref, _ in self.outside), "it reads memory that was freed"
        now = dict(enumerate(self.own)) | {i: self._kept[i] for _, i in self.outside}
        for f, given, places in self.operations:
            args, kwargs = tree_map(lambda x: now[x.i] if isinstance(x, Place) else x, given)
            found = f(*args, **kwargs)
            for place, x in zip(tree_leaves(places), tree_leaves(found), strict=True):
                if isinstance(place, Place):
                    now[place.i] = x
        return [now[self._made[id(x)]] for x in results]


@dataclass(frozen=True)
class Place:
    """Of a tensor on a tape. (No tuple, which torch's trees would open.)"""

    i: int
