"""One repair of `torch.compile`, without which it would multiply from the wrong side.

While compiling, torch (2.13) hands `A @ x`, for an A that is no tensor, to `__torch_function__` as `Tensor.matmul(x, A)`: it swaps the two
sides and then calls the reversed method, but its table of reversed methods leaves `@` out (`rskips` in
`torch/_dynamo/variables/builtin.py`). That is the same call as for `x @ A`, so nobody could tell them apart afterwards. We add the missing
entry, `Tensor.__rmatmul__`, as soon as that module is imported; importing it ourselves would cost a second or more.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import operator
import sys
from typing import Any

import torch

_MODULE = "torch._dynamo.variables.builtin"


class _Watcher(importlib.abc.MetaPathFinder):
    """Waits for the import of one module and repairs it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_repair(module: Any) -> None:
                execute(module)
                _repair(module)

            spec.loader.exec_module = execute_and_repair  # type: ignore[method-assign]
        return spec


def _repair(module: Any) -> None:
    table = getattr(module, "BUILTIN_TO_TENSOR_RFN_MAP", None)
    if table is not None:
        table.setdefault(operator.matmul, torch.Tensor.__rmatmul__)


def sides_are_known() -> bool:
    """Whether the compiler tells `A @ x` from `x @ A`: its table has the entry."""
    table = getattr(sys.modules.get(_MODULE), "BUILTIN_TO_TENSOR_RFN_MAP", {})
    return operator.matmul in table


sides_are_known._dynamo_marked_constant = True  # type: ignore[attr-defined]  # traced code calls it once

if _MODULE in sys.modules:
    _repair(sys.modules[_MODULE])
else:
    sys.meta_path.insert(0, _Watcher())
