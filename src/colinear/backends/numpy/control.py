"""Loops, trees and host calls in NumPy; derivatives, which NumPy does not have, raise."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from ...errors import BackendError
from ..shared import fori_loop, jit, loop_map, scan

# control
# --------------------------------------------------------------------------------------------------


def while_loop(cond: Callable, body: Callable, state: Any) -> Any:
    """Iterate `state = body(state)` while `cond(state)`."""
    while cond(state):
        state = body(state)
    return state


def cond(predicate: Any, if_true: Callable, if_false: Callable, *arguments: Any) -> Any:
    """`if_true(*arguments)` or `if_false(*arguments)`."""
    return if_true(*arguments) if predicate else if_false(*arguments)


def call_host(f: Callable, *values: Any) -> Any:
    """`f(*values)`, true or false; in a compiled program a call from it, when it runs."""
    return np.asarray(builtins.bool(f(*values)))


# derivatives
# --------------------------------------------------------------------------------------------------


def _refuse(what: str) -> Callable[..., NoReturn]:
    """A function that says that NumPy has no derivatives."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise BackendError(
            f"{what}: NumPy has no automatic differentiation. Use torch or JAX arrays "
            "(A.to(backend='torch'))."
        )

    return refuse


jvp, vjp, linearise, linear_transpose = map(
    _refuse, ("jvp", "vjp", "linearise", "linear_transpose")
)


def custom_derivative(f: Callable, *rules: Any, **named: Any) -> Callable:
    """`f` with its own derivatives: in NumPy, `f`."""
    return f


def stop_gradient(x: Any) -> Any:
    return x


def checkpoint(f: Callable) -> Callable:
    """`f`, of which derivatives compute the intermediate values again instead of keeping them."""
    return f


def hoist(f: Callable, examples: Any, axes: Any = ()) -> tuple[Callable, tuple]:
    """`f` itself, and no arrays that it closes over: NumPy has no derivatives to reach them."""
    return f, ()


def vmap(f: Callable, in_axes: Any = 0) -> Callable:
    """`f` over a leading axis of its arguments (those whose axis is not None), by a Python loop."""

    def mapped(*arguments: Any) -> Any:
        axes = in_axes if isinstance(in_axes, tuple | list) else (in_axes,) * len(arguments)
        moved = [
            x if axis is None else np.moveaxis(x, axis, 0)
            for x, axis in zip(arguments, axes, strict=True)
        ]
        size = next(len(x) for x, axis in zip(moved, axes, strict=True) if axis is not None)
        results = [
            f(*(x if a is None else x[i] for x, a in zip(moved, axes, strict=True)))
            for i in range(size)
        ]
        return tree_map(lambda *found: np.stack(found), *results)

    return mapped


# trees, warnings
# --------------------------------------------------------------------------------------------------

_nodes: dict[type, tuple[Callable, Callable]] = {}


def register_pytree(cls: type, flatten: Callable, unflatten: Callable) -> None:
    """Make `cls` a tree: `flatten(x) -> (children, static)`, `unflatten(static, children) -> x`."""
    _nodes[cls] = flatten, unflatten


def tree_map(f: Callable, tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of one tree, or of several of the same structure. None is an empty
    tree."""
    kind = type(tree)
    if tree is None:
        return None
    if kind in _nodes:
        flatten, unflatten = _nodes[kind]
        children, static = flatten(tree)
        return unflatten(
            static, tree_map(f, tuple(children), *(tuple(flatten(other)[0]) for other in rest))
        )
    if isinstance(tree, dict):
        return kind((key, tree_map(f, tree[key], *(other[key] for other in rest))) for key in tree)
    if isinstance(tree, tuple | list):
        mapped = (tree_map(f, *parts) for parts in zip(tree, *rest, strict=True))
        return kind(*mapped) if hasattr(tree, "_fields") else kind(mapped)
    return f(tree, *rest)


def warn_later(
    which: Any, *messages: str, category: type[Warning] = UserWarning, result: Any = None
) -> Any:
    """Warn by messages[k - 1] where k > 0 is the largest of `which`, numbers or truths; under jit,
    when it is known. Return the result."""
    if which := int(np.max(which, initial=0)):
        warnings.warn(messages[which - 1], category, stacklevel=3)
    return result


def synchronize(x: Any) -> Any:
    """`x`, once it has been computed."""
    return x


def linear_rule(rule: Any, x: tuple, constants: tuple = (), like: tuple | None = None) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x; derivatives
    are for other frameworks."""
    return tuple(rule.apply(x, constants))


def map_on_host(f: Callable, X: Any) -> Any:
    """`f(X)` of NumPy arrays, of the shape and dtype of X, with any leading dimensions; it has
    no derivatives."""
    return f(X)
