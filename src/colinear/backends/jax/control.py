"""Loops, trees, host calls and compilation in JAX; functions with what they close over as arguments,
and JAX's strict modes switched off for our formulas."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..shared import compiled_entries, descend, record, recorder, watch_operations
from .arrays import is_differentiated
from .mesh import MESHES, has_explicit_axes, is_explicit, mesh_of, whole, with_automatic_axes

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
    results = jax.lax.scan(
        lambda state, elements: step(state, *elements), state, arrays, reverse=reverse
    )[1]
    # Reversed, a barrier turns the symbolic zeros of results that are not used into arrays: JAX's
    # own reverse of a scan gives such zeros a wrong shape, and fails (0.10).
    return jax.tree.map(jax.lax.optimization_barrier, results)


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


# `with outside_trace():` what is computed from values that can be seen is computed at once, also
# while a program is traced.
outside_trace = jax.ensure_compile_time_eval


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
        return np.ascontiguousarray(f(*map(whole, arrays)), X.dtype)

    if not is_differentiated(X, *others):  # at once: a callback is traced for each call
        return jax.device_put(on_host(X, *others), X.sharding)
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return jax.pure_callback(on_host, shape, X, *others, vmap_method="broadcast_all")


# Functions of JAX with what they close over as arguments.
#
# A function that closes over a traced value is no constant: compiled programs that hold it as one
# cannot be built, and derivatives with respect to that value are lost. So it is traced once, and
# its program takes those values as arguments. The program holds none of them.


try:
    # JAX has no public name for it
    from jax._src.core import (
        trace_state_clean as is_nothing_traced,
    )
except ImportError:

    def is_nothing_traced() -> bool:
        return False


# an argument, one of its axes, and the axis of the answer that goes with it; from the last one
Axis = tuple[int, int, int]


def hoist(
    f: Callable, examples: Callable[[], Sequence[tuple]], axes: Sequence[Axis] = ()
) -> tuple[Callable, tuple]:
    """A function g and arrays h with `g(*arguments, *h) = f(*arguments)`: h are the traced arrays
    that f closes over.

    Parameters
    ----------
    f : callable
        Where it closes over nothing that is traced, it is g itself, and h is empty.
    examples : callable
        Gives tuples of arguments, the first array of each of another dtype. f must take the first
        tuple: what it raises is raised here. Further arguments must have their shapes, but for:
    axes : tuple
        Axes of length 1 along which f treats all elements alike, so that others may be longer. More
        leading dimensions of the first argument are such axes too.
    """
    if is_nothing_traced():
        return f, ()
    first, *others = examples()
    programs = [_trace(f, first)]
    for arguments in others:
        try:
            programs.append(_trace(f, arguments))
        except (
            TypeError,
            ValueError,
        ):  # f does not mix these dtypes: it is given the first one instead
            continue
    constants = itertools.chain.from_iterable(program.constants for program in programs)
    hidden = {id(c): c for c in constants if isinstance(c, jax.core.Tracer)}
    if not hidden:
        return f, ()
    places = {key: place for place, key in enumerate(hidden)}
    programs = [program.without(places) for program in programs]
    return Hoisted(f, programs, axes, len(hidden)), tuple(hidden.values())


class _Program(NamedTuple):
    """A traced function: what it computes, from arguments and constants (None for those
    hoisted)."""

    jaxpr: Any
    constants: list
    places: list  # among the hoisted, None for what is not
    arguments: list  # shapes of the arrays, None for what is no array
    structure: Any  # of the answer

    def without(self, places: dict[int, int]) -> _Program:
        kept = [None if id(c) in places else c for c in self.constants]
        return self._replace(constants=kept, places=[places.get(id(c)) for c in self.constants])

    def run(self, arrays: list, hidden: tuple) -> Any:
        # `A.to(dtype=...)` may have changed their dtypes
        constants = [
            c if place is None else jnp.asarray(hidden[place], variable.aval.dtype)
            for c, place, variable in zip(self.constants, self.places, self.jaxpr.constvars)
        ]
        found = jax.core.eval_jaxpr(self.jaxpr, constants, *(x for x in arrays if x is not None))
        return jax.tree.unflatten(self.structure, found)


def _trace(f: Callable, arguments: tuple) -> _Program:
    leaves, structure = jax.tree.flatten(arguments)
    is_array = lambda x: isinstance(x, (jax.Array, jax.core.Tracer, np.ndarray))
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else None for x in leaves]

    def flat(*arrays: Any) -> Any:
        given = iter(arrays)
        every = [x if s is None else next(given) for x, s in zip(leaves, shapes, strict=True)]
        return f(*jax.tree.unflatten(structure, every))

    closed, answer = jax.make_jaxpr(flat, return_shape=True)(*(s for s in shapes if s is not None))
    return _Program(closed.jaxpr, list(closed.consts), [], shapes, jax.tree.structure(answer))


def _parameters_in(jaxpr: Any) -> Any:
    """What a jaxpr holds and its text does not show: functions with their derivatives, of which it
    has the names, and arrays among the operands, of which it has the shapes."""
    operands = itertools.chain(jaxpr.outvars, *(equation.invars for equation in jaxpr.eqns))
    yield from (x.val for x in operands if np.ndim(getattr(x, "val", 0)))
    for equation in jaxpr.eqns:
        for part in jax.tree.leaves(list(equation.params.values())):
            if hasattr(part, "eqns"):
                yield from getattr(part, "consts", ())
                yield from _parameters_in(getattr(part, "jaxpr", part))
            else:
                yield part


def _as_key(part: Any) -> Any:
    return part if isinstance(part, Hashable) else id(part)


class Hoisted:
    """A traced function of its arguments and of what it closed over. It is static, and equal to
    those that JAX writes alike: the steps of a loop that is written out share what is traced and
    compiled for the first."""

    def __init__(self, f: Callable, programs: list[_Program], axes: Sequence[Axis], count: int):
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self.programs, self.axes, self.count = programs, axes, count

    @functools.cached_property
    def _text(self) -> tuple:
        """What is computed, but for the values of constants."""
        return (
            self.axes,
            self.count,
            *(
                (str(p.jaxpr), *p.places, str(p.arguments), p.structure, *map(_as_key, held))
                for p in self.programs
                for held in [_parameters_in(p.jaxpr)]
            ),
        )

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Hoisted) or self._text != other._text:
            return self is other
        own, others = (
            itertools.chain.from_iterable(p.constants for p in each.programs)
            for each in (self, other)
        )
        return all(a is b or np.array_equal(a, b) for a, b in zip(own, others, strict=True))

    def __call__(self, *arguments: Any) -> Any:
        split = len(arguments) - self.count
        leaves, hidden = jax.tree.leaves(arguments[:split]), arguments[split:]
        program = next(
            (p for p in self.programs if p.arguments[0].dtype == leaves[0].dtype),
            self.programs[-1],
        )
        arrays = [
            None if s is None else jnp.asarray(x, s.dtype)
            for x, s in zip(leaves, program.arguments, strict=True)
        ]
        return self._mapped(program, arrays, hidden)

    def _mapped(self, program: _Program, arrays: list, hidden: tuple) -> Any:
        """The program over the axes that are longer than in its example, one after the other."""
        if arrays[0].ndim > program.arguments[0].ndim:
            return jax.vmap(lambda x: self._mapped(program, [x, *arrays[1:]], hidden))(arrays[0])
        longer = (
            axes
            for axes in self.axes
            if arrays[axes[0]].shape[axes[1]] != program.arguments[axes[0]].shape[axes[1]]
        )
        place, axis, axis_of_answer = next(longer, (None, 0, 0))
        if place is None:
            return program.run(arrays, hidden)

        def one(x: Any) -> Any:
            element = [*arrays[:place], jnp.expand_dims(x, axis), *arrays[place + 1 :]]
            return jnp.squeeze(self._mapped(program, element, hidden), axis_of_answer)

        return jax.vmap(one, axis, axis_of_answer)(arrays[place])

    def __repr__(self) -> str:
        return f"<{self.__name__} of its arguments and {self.count} arrays it closed over>"


# JAX's strict modes, in which no dtype is promoted and no rank raised.
#
# They are for the user's own formulas. Ours mix dtypes and ranks on purpose (a real norm by
# complex numbers, a count by truths), so they run in JAX's ordinary modes, whatever the user has
# set: each call from outside passes through `in_ordinary_modes`. That is a call of a function or
# of an operator, and one of JAX's for a derivative, a transpose or a program of ours, which may
# come long after.


def is_strict(A: Any = None) -> bool:
    """Whether one of JAX's strict modes is on, or A lies on a mesh with explicit axes."""
    if hasattr(A, "_context"):
        place = A._context.device
    else:
        place = None if A is None else mesh_of(A)
    return (
        jax.config.jax_numpy_dtype_promotion != "standard"
        or jax.config.jax_numpy_rank_promotion != "allow"
        # of an operator on one device, or none, nothing more is asked
        or (type(place) in MESHES and is_explicit(place))
    )


def in_ordinary_modes(f: Callable) -> Callable:
    """`f`, run in JAX's ordinary modes."""

    @functools.wraps(f)
    def relaxed(*arguments: Any, **options: Any) -> Any:
        if not is_strict():
            return f(*arguments, **options)
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return f(*arguments, **options)

    return relaxed


def enter(f: Callable, A: Any, *arguments: Any) -> Any:
    """`f(A, *arguments)` in JAX's ordinary modes and, where A lies on a mesh with explicit axes,
    with automatic ones."""
    ordinary = in_ordinary_modes(f)
    run = with_automatic_axes if has_explicit_axes(A) else lambda f, *arguments: f(*arguments)
    return run(ordinary, A, *arguments)
