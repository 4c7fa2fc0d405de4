"""Loops, trees, host calls and compilation in torch."""

from __future__ import annotations

import builtins
import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext as outside_trace
from typing import Any

import torch.utils._pytree as pytree
import torch.utils.checkpoint
from torch._C import _functorch

from .. import shared
from ..shared import fori_loop, loop_map
from ..shared import itself as jit  # compiled only where that is how a framework is used
from .arrays import _is_fake, asarray, is_traced, to_numpy
from .derivatives import recorded_vjp
from .programs import sides_are_known

# control
# --------------------------------------------------------------------------------------------------


def while_loop(cond: Callable, body: Callable, state: Any) -> Any:
    """Iterate `state = body(state)` while `cond(state)`; under vmap until no element goes on,
    those done standing still."""
    while True:
        going = cond(state)
        if not isinstance(going, torch.Tensor) or not _functorch.is_functorch_wrapped_tensor(going):
            if not going:
                return state
            state = body(state)
        else:
            if not _innermost(going).any():
                return state
            state = tree_map(functools.partial(_select, going), body(state), state)


def scan(step: Callable, state: Any, *arrays: Any, reverse: Any = False) -> Any:
    """`state, result = step(state, *elements)` over the elements along the first axis, first or
    last first; the results, stacked.

    On the host, from a GPU too, where each step would wait for its launches.
    """
    device = arrays[0].device
    state, *arrays = tree_map(lambda x: x.cpu(), (state, *arrays))
    found = shared.scan(step, state, *arrays, reverse=reverse)
    return tree_map(lambda x: x.to(device, non_blocking=True), found)


def _innermost(x: Any) -> Any:
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return x


def _select(going: Any, new: Any, old: Any) -> Any:
    return torch.where(going, new, old) if isinstance(new, torch.Tensor) else new


def cond(predicate: Any, if_true: Callable, if_false: Callable, *arguments: Any) -> Any:
    """`if_true(*arguments)` or `if_false(*arguments)`; under vmap both, and of each element the
    one that holds."""
    if is_traced(predicate) and not torch.compiler.is_compiling():
        return tree_map(
            functools.partial(_select, predicate), if_true(*arguments), if_false(*arguments)
        )
    return if_true(*arguments) if predicate else if_false(*arguments)


def call_host(f: Callable, *values: Any) -> Any:
    """`f(*values)`, true or false; in a compiled program a call from it, when it runs."""
    return torch.tensor(
        builtins.bool(f(*(_innermost(x) if isinstance(x, torch.Tensor) else x for x in values)))
    )


# derivatives
# --------------------------------------------------------------------------------------------------


def jvp(f: Callable, x: Any, v: Any) -> tuple[Any, Any]:
    """`f(x)` and its derivative along `v`; x and v may be trees."""
    return torch.func.jvp(f, (tree_map(_unshared, x),), (tree_map(_unshared, v),))


def _unshared(x: Any) -> Any:
    """`x` with memory of its own: forward mode refuses what was broadcast, and fails for some
    views of complex numbers."""
    if not isinstance(x, torch.Tensor):
        return x
    is_shared = builtins.any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape))
    if is_shared or x._is_view() or x.is_conj():
        return x.clone(memory_format=torch.contiguous_format)
    return x


def vjp(f: Callable, x: Any) -> tuple[Any, Callable]:
    """`f(x)` and its pullback g -> J^H g (torch's convention for complex numbers)."""
    if not torch.is_grad_enabled() and (found := recorded_vjp(f, x)) is not None:
        return found  # in a backward pass, say: 300 us less than by torch.func
    try:
        y, pull = torch.func.vjp(f, x)
    except (
        RuntimeError
    ):  # of functions that torch.func does not take, as many custom ones are, autograd knows more
        found = recorded_vjp(f, x)
        if found is None:
            raise
        return found
    return y, lambda g: pull(g)[0]


def linear_transpose(f: Callable, x_like: Any) -> Callable:
    """For linear f(x) = M x, the map y -> M^T y (without conjugation)."""
    zero = tree_map(torch.zeros_like, x_like)
    pull = vjp(f, zero)[1]
    return lambda y: tree_map(torch.conj, pull(tree_map(torch.conj, y)))


def vmap(f: Callable) -> Callable:
    """`f` over the leading axis of its arguments."""
    return torch.func.vmap(f, randomness="same")


stop_gradient = torch.Tensor.detach


def checkpoint(f: Callable) -> Callable:
    """`f`, of which derivatives compute the intermediate values again instead of keeping them.

    Only under autograd: torch.func's transforms refuse the hooks on which torch's checkpoints are
    built.
    """

    def checkpointed(*arguments: Any) -> Any:
        if (
            not torch.is_grad_enabled()
            or torch.compiler.is_compiling()
            or _functorch.peek_interpreter_stack() is not None
            # the same in a backward pass inside such a transform, which torch takes off its stack
            or not torch._C._autograd._saved_tensors_hooks_is_enabled()
        ):
            return f(*arguments)
        return torch.utils.checkpoint.checkpoint(
            f, *arguments, use_reentrant=False, preserve_rng_state=False
        )

    return checkpointed


# trees, warnings
# --------------------------------------------------------------------------------------------------


def register_pytree(cls: type, flatten: Callable, unflatten: Callable) -> None:
    """Make `cls` a tree: `flatten(x) -> (children, static)`, `unflatten(static, children) -> x`."""
    pytree.register_pytree_node(
        cls, flatten, lambda children, static: unflatten(static, tuple(children))
    )


def tree_map(f: Callable, tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of one tree, or of several of the same structure. None is an empty
    tree."""
    return pytree.tree_map(lambda x, *others: None if x is None else f(x, *others), tree, *rest)


def warn_later(
    which: Any, *messages: str, category: type[Warning] = UserWarning, result: Any = None
) -> Any:
    """Warn by messages[k - 1] where k > 0 is the largest of `which`, numbers or truths. Silent
    under torch.compile. Return the result."""
    if torch.compiler.is_compiling():
        return result
    if isinstance(which, torch.Tensor):
        which = _innermost(which)
        if which.is_meta or _is_fake(which) or not which.numel():
            return result
        which = which.max().item()
    if which := int(which):
        warnings.warn(messages[which - 1], category, stacklevel=3)
    return result


def synchronize(x: Any) -> Any:
    """`x`, once it has been computed."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return x


def break_graph(why: str) -> None:
    """Leave the graph that torch.compile makes; an error if it must be a whole one."""
    torch._dynamo.graph_break(msg=why)


def tells_sides() -> builtins.bool:
    """Whether `A @ x` and `x @ A` reach `__torch_function__` as two different calls: always, but
    in a compiler not repaired."""
    return not torch.compiler.is_compiling() or sides_are_known()


def map_on_host(f: Callable, X: Any, *others: Any) -> Any:
    """`f(X)`, or `f(X, *others)`, of NumPy arrays, of the shape and dtype of X, with any leading
    dimensions; it has no derivatives."""
    return asarray(f(to_numpy(X), *map(to_numpy, others)), device=X.device)
