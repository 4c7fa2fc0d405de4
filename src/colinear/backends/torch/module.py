"""An operator as a module of torch: its leaves are parameters that optimisers train, devices
move and checkpoints keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...operators import LinearOperator, as_operator
from .arrays import is_floating


class OperatorModule(torch.nn.Module):
    """A module whose parameters are the leaves of an operator.

    Parameters
    ----------
    operator : operator or tensor
        Its floating leaves become parameters, in a copy unless they are `nn.Parameter`s already; a
        tensor that occurs twice becomes one parameter. Integers become buffers, and Python's
        numbers stay what they are.
    frozen : iterable of str
        Leaves that are not trained: they become buffers. Given by name, or by the last part of it:
        `frozen=["X"]` for the points of a `Kernel`.

    Notes
    -----
    A parameter is named by its way through the tree, joined by underscores: `operands_0_d` is the
    diagonal of the first term of a sum. `named_parameters()` lists them. Wherever an operator is
    needed write `module.operator`, which is built anew from the parameters, without copies; so
    gradients reach them, and `torch.nn.utils.parametrize` can keep one positive. Calling the module
    multiplies.

    Examples
    --------
    >>> import colinear as co, torch
    >>> model = co.OperatorModule(co.Diagonal(torch.ones(3)) + co.LowRank(torch.ones(3, 1)))
    >>> [name for name, _ in model.named_parameters()]
    ['operands_0_d', 'operands_1_U']
    >>> co.logdet(model.operator).backward()
    >>> model.operands_0_d.grad
    tensor([0.7500, 0.7500, 0.7500])
    """

    def __init__(self, operator: Any, frozen: Iterable[str] = ()):
        super().__init__()
        operator = as_operator(operator)
        if operator.backend != "torch" or not operator.arrays():
            raise TypeError(
                f"OperatorModule: the operator is of {operator.backend} and holds no tensors; "
                "move it with A.to(backend='torch')."
            )
        frozen = {frozen} if isinstance(frozen, str) else set(frozen)
        leaves = [("_".join(parts), parts[-1], leaf) for parts, leaf in _named_arrays(operator)]
        known = {name for *names, _ in leaves for name in names}
        if unknown := frozen - known:
            raise ValueError(
                f"OperatorModule: no leaf is called {sorted(unknown)}; there are {sorted(known)}."
            )
        names: dict[int, str] = {}
        for name, short, leaf in leaves:
            if id(leaf) not in names:
                names[id(leaf)] = free = self._free(name)
                if {name, short} & frozen or not is_floating(leaf):
                    self.register_buffer(free, leaf.detach().clone())
                else:
                    is_own = isinstance(leaf, torch.nn.Parameter)
                    own = leaf if is_own else torch.nn.Parameter(leaf.detach().clone())
                    self.register_parameter(free, own)
        self._names = [names[id(leaf)] for *_, leaf in leaves]
        # The tree alone, without memory for its leaves.
        self._tree = operator.with_arrays(
            [torch.empty_like(leaf, device="meta") for *_, leaf in leaves]
        )

    def _free(self, name: str) -> str:
        return name if not hasattr(self, name) else self._free(f"{name}_")

    @property
    def operator(self) -> LinearOperator:
        """The operator of the parameters as they are now."""
        return self._tree.with_arrays([getattr(self, name) for name in self._names])

    def forward(self, X: Any) -> Any:
        """The product of the operator with X."""
        return self.operator @ X

    def extra_repr(self) -> str:
        return self._tree._expression()


def _named_arrays(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The arrays of a tree with the fields, places and keys that lead to them, in the order of
    `LinearOperator.arrays`."""
    if isinstance(value, LinearOperator):
        items: Any = [(name, getattr(value, name)) for name in value._dynamic]
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple | list):
        items = enumerate(value)
    else:
        if isinstance(value, torch.Tensor):
            yield path, value
        return
    for name, item in items:
        yield from _named_arrays(item, (*path, str(name)))
