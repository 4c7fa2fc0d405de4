"""Loops, trees, host calls and compilation in JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .arrays import is_differentiated

# control
# --------------------------------------------------------------------------------------------------


# `while_loop(cond, body, state)` iterates `state = body(state)` while `cond(state)`. Forward
# derivatives only: JAX cannot reverse it.
while_loop = jax.lax.while_loop


def fori_loop(n: int, body: Callable, state: Any) -> Any:
    """Iterate `state = body(i, state)` for i in range(n)."""
    return jax.lax.fori_loop(0, n, body, state)


def scan(step: Callable, state: Any, *arrays: Any, reverse: Any = False) -> Any:
    """`state, result = step(state, *elements)` over the elements along the first axis, first or
    last first; the results, stacked."""
    return jax.lax.scan(
        lambda state, elements: step(state, *elements), state, arrays, reverse=reverse
    )[1]


def cond(predicate: Any, if_true: Callable, if_false: Callable, *arguments: Any) -> Any:
    """`if_true(*arguments)` or `if_false(*arguments)`."""
    if not isinstance(predicate, jax.core.Tracer):
        return if_true(*arguments) if predicate else if_false(*arguments)
    return jax.lax.cond(predicate, if_true, if_false, *arguments)


def call_host(f: Callable, *values: Any) -> jax.Array:
    """`f(*values)`, true or false; in a compiled program a call from it, when it runs."""
    from jax.experimental import io_callback

    return io_callback(
        lambda *values: np.asarray(f(*values)), jax.ShapeDtypeStruct((), np.bool_), *values
    )


def loop_map(f: Callable, *arrays: Any) -> jax.Array:
    """`f` of the elements along the first axis, one after the other, stacked."""
    return jax.lax.map(lambda elements: f(*elements), arrays)


# trees
# --------------------------------------------------------------------------------------------------


register_pytree, tree_map = jax.tree_util.register_pytree_node, jax.tree.map
jit, synchronize = jax.jit, jax.block_until_ready


def map_on_host(f: Callable, X: Any, *others: Any) -> Any:
    """`f(X)`, or `f(X, *others)`, of NumPy arrays, of the shape and dtype of X, with any leading
    dimensions; it has no derivatives."""

    def on_host(*arrays: Any) -> np.ndarray:
        return np.ascontiguousarray(f(*map(np.asarray, arrays)), X.dtype)

    if not is_differentiated(X, *others):  # at once: a callback is traced for each call
        return jax.device_put(on_host(X, *others), X.sharding)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return jax.pure_callback(on_host, shape, X, *others, vmap_method="broadcast_all")
