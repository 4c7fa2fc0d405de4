"""One operator of torch, `colinear::call`, for what `torch.compile` must not trace: a loop whose length depends on values.

The compiler sees a single node, which runs Python when the program runs. What it runs, and how that is differentiated, is a `Call` in a
table; the node holds its number.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Call(NamedTuple):
    """What the operator does.

    Attributes
    ----------
    run : callable
        `run(arrays)`, a list of new arrays.
    like : callable
        `like(arrays)`, arrays without values of the shapes and dtypes of those that `run` gives.
    attach : callable
        `attach(arrays, first)`, the first array that `run` gave, with its derivatives with respect to `arrays`; the others have none.
    """

    run: Callable[[Sequence[Any]], list[Any]]
    like: Callable[[Sequence[Any]], list[Any]]
    attach: Callable[[Sequence[Any], Any], Any]


CALLS: list[Call] = []


def call_opaquely(number: int, arrays: Sequence[Any]) -> list[Any]:
    """What the call of this number makes of the arrays, as one node of a compiled program."""
    return list(torch.ops.colinear.call(list(arrays), number))


@torch.library.custom_op("colinear::call", mutates_args=(), schema="(Tensor[] arrays, int number) -> Tensor[]")
def _call(arrays: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    with torch.no_grad():
        return CALLS[number].run(arrays)


@_call.register_fake
def _(arrays: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    return CALLS[number].like(arrays)


@torch.library.custom_op(
    "colinear::pull", mutates_args=(), schema="(Tensor[] arrays, Tensor first, Tensor cotangent, int number) -> Tensor[]"
)
def _pull(arrays: Sequence[torch.Tensor], first: torch.Tensor, cotangent: torch.Tensor, number: int) -> list[torch.Tensor]:
    moving = [i for i, x in enumerate(arrays) if x.is_floating_point() or x.is_complex()]

    def pull() -> Sequence[Any]:
        held = [x.detach() for x in arrays]
        for i in moving:
            held[i].requires_grad_()
        with torch.enable_grad():
            result = CALLS[number].attach(held, first.detach())
            return torch.autograd.grad(result, [held[i] for i in moving], cotangent, allow_unused=True)

    # Inside an operator nothing is recorded in its own thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        found = dict(zip(moving, thread.submit(pull).result(), strict=True))
    parts = [found.get(i) for i in range(len(arrays))]
    return [torch.zeros_like(x) if part is None else part.clone() for x, part in zip(arrays, parts, strict=True)]


@_pull.register_fake
def _(arrays: Sequence[torch.Tensor], first: torch.Tensor, cotangent: torch.Tensor, number: int) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in arrays]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    arrays, ctx.number = inputs
    ctx.save_for_backward(*arrays, output[0])


def _back(ctx: Any, cotangents: Any) -> tuple[Any, None]:
    *arrays, first = ctx.saved_tensors
    parts = torch.ops.colinear.pull(arrays, first, cotangents[0], ctx.number)
    return [part if x.is_floating_point() or x.is_complex() else None for x, part in zip(arrays, parts, strict=True)], None


_call.register_autograd(_back, setup_context=_keep)
