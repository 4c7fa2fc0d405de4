"""Derivatives in JAX: Jacobian products, functions with derivatives of their own, and linear
maps with rules for their transposes and for what they depend on."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .arrays import is_complex
from .control import in_ordinary_modes

# derivatives
# --------------------------------------------------------------------------------------------------


def jvp(f: Callable, x: Any, v: Any) -> tuple[Any, Any]:
    """`f(x)` and its derivative along `v`; x and v may be trees."""
    return jax.jvp(f, (x,), (v,))


def vjp(f: Callable, x: Any) -> tuple[Any, Callable]:
    """`f(x)` and its pullback g -> J^H g. (JAX's own gives J^T g, its convention for complex
    numbers.)"""
    y, pull = jax.vjp(f, x)
    return y, lambda g: _conjugate(pull(_conjugate(g))[0])


def _conjugate(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.conj() if is_complex(x) else x, tree)


def linearise(f: Callable, x: Any, recorded: builtins.bool = False) -> Any:
    """`f(x)` for a vector x, and its derivative J kept for many products: `push`, V -> V J^T,
    and `pull`, G -> G conj(J), for stacks of vectors, (k, n) and (k, m). A function that has a
    pullback alone (`custom_vjp`) is pushed by the pullback of that."""
    try:
        y, push = jax.linearize(f, x)
        # a pullback alone is missed only when it is pushed through
        jax.eval_shape(jax.vmap(push), x[None])
        transposed = jax.linear_transpose(push, x)
        pull = lambda g: transposed(g)[0]
    except TypeError:
        y, back = jax.vjp(f, x)
        pull = lambda g: back(g)[0]
        push = lambda v: jax.vjp(pull, jnp.zeros_like(y))[1](v)[0]
    return y, jax.vmap(push), lambda G: _conjugate(jax.vmap(pull)(_conjugate(G)))


def linear_transpose(f: Callable, x_like: Any) -> Callable:
    """For linear f(x) = M x, the map y -> M^T y (without conjugation)."""
    transpose = jax.linear_transpose(f, x_like)
    return lambda y: transpose(y)[0]


vmap, checkpoint, stop_gradient = jax.vmap, jax.checkpoint, jax.lax.stop_gradient


def custom_derivative(
    f: Callable,
    jvp: Callable,
    vjp: Callable | None = None,
    ranks: tuple[int, ...] | None = None,
) -> Callable:
    """Give `f(*arrays) -> array or tuple` its own derivatives.

    Parameters
    ----------
    jvp : callable
        `jvp(primals, tangents, output) -> tangent of the output`, linear in the tangents and made
        of what JAX can transpose: it then serves both modes.
    vjp, ranks
        As in torch, which needs them for reverse mode and for vmap.
    """
    forward = jax.custom_jvp(f)

    @forward.defjvp
    @in_ordinary_modes
    def push(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
        primals = tuple(map(jnp.asarray, primals))  # numbers of Python's are among them
        output = forward(*primals)
        is_still = lambda t: getattr(t, "dtype", None) == jax.dtypes.float0
        moved = (
            jnp.zeros_like(x) if is_still(t) else jnp.asarray(t)
            for x, t in zip(primals, tangents, strict=True)
        )
        return output, jvp(primals, tuple(moved), output)

    return forward


linear = Primitive("colinear_linear_rule")
linear.multiple_results = True


def linear_rule(rule: Any, x: tuple, constants: tuple = (), like: tuple | None = None) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x, whose
    derivatives are those of the rule.

    Parameters
    ----------
    rule : object
        With the methods `apply(x, constants)`; `adjoint()`, a rule for cotangents, with the same
        constants; `tangent(x, constants, dx, moved, output)`, the change of the answer with x
        (None: it stays) and with the constants; and `cotangent(x, constants, g, output, back)`,
        which pulls g back to the constants, None for those that do not move, where `back` is what g
        is for x. The last two are made of what can be differentiated. `again()` is the rule for
        another x, where `apply` gives an answer that is known, or `aux`, which is optional: how many
        of the last arrays of the answer are not part of it and have no derivative.
    like : tuple, optional
        Arrays of the shapes and dtypes of the answer. Then `apply` is not traced to find them out.
    """
    arrays = [jnp.asarray(array) for array in (*x, *constants)]
    return tuple(
        linear.bind(*arrays, rule=rule, count=len(x), program=Program(rule, len(x), arrays, like))
    )


class Program:
    """What a rule does with arrays of these shapes. It is traced once, when that is needed."""

    def __init__(self, rule: Any, count: int, arrays: list, like: tuple | None):
        # A number of the user's is weakly typed, and stays so: a float64 of it would make float64
        # of all that it meets.
        given = [
            jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)
            for array in arrays
        ]
        trace = functools.partial(
            jax.make_jaxpr(rule.apply), tuple(given[:count]), tuple(given[count:])
        )
        self.closed = functools.cache(trace)
        self.like = None if like is None else [jax.core.ShapedArray(x.shape, x.dtype) for x in like]

    @property
    def jaxpr(self) -> Any:
        """The program as JAX writes it, for those who read what is inside of another."""
        return self.closed().jaxpr

    @in_ordinary_modes
    def run(self, *arrays: Any) -> list:
        closed = self.closed()
        found = jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *arrays)
        if self.like is None:
            return found
        return [x.astype(out.dtype) for x, out in zip(found, self.like, strict=True)]

    def __repr__(self) -> str:
        return "..."


def _shapes(*arrays: Any, rule: Any, count: int, program: Program) -> tuple[list, Any]:
    if program.like is not None:
        return program.like, set()  # warnings are tied to what is computed
    closed = program.closed()
    return closed.out_avals, closed.effects


@in_ordinary_modes
def _apply(*arrays: Any, rule: Any, count: int, program: Program) -> list:
    # among what JAX keeps for a transpose are numbers of Python's
    arrays = tuple(map(jnp.asarray, arrays))
    found = rule.apply(tuple(arrays[:count]), tuple(arrays[count:]))
    return [jnp.asarray(x) for x in found if x is not None]


@in_ordinary_modes
def _jvp(primals: Any, tangents: Any, *, rule: Any, count: int, program: Program) -> Any:
    primals = [jnp.asarray(x) for x in primals]
    out = linear.bind(*primals, rule=rule, count=count, program=program)
    filled = [
        jnp.zeros_like(x) if type(t) is ad.Zero else t
        for x, t in zip(primals, tangents, strict=True)
    ]
    x, constants, dx, moved = (
        tuple(part) for each in (primals, filled) for part in (each[:count], each[count:])
    )
    is_zero = [type(t) is ad.Zero for t in tangents]
    split = len(out) - _aux(rule)
    known = tuple(out[:split])
    if all(is_zero[count:]):
        found = linear_rule(rule.again(), dx, constants, known)
    else:
        found = rule.tangent(x, constants, None if all(is_zero[:count]) else dx, moved, known)
    return out, [*found, *map(_no_tangent, out[split:])]


def _no_tangent(x: Any) -> Any:
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jax.dtypes.float0
    return ad.Zero(jax.core.ShapedArray(x.shape, dtype))


def _aux(rule: Any) -> int:
    return getattr(rule, "aux", 0)


@in_ordinary_modes
def _transpose(cotangents: Any, *arrays: Any, rule: Any, count: int, program: Program) -> Any:
    x, constants = arrays[:count], arrays[count:]
    cotangents = cotangents[: len(cotangents) - _aux(rule)]
    given = tuple(jnp.conj(ad.instantiate_zeros(g)) for g in cotangents)
    pulled = linear_rule(rule.adjoint(), given, constants)
    back = [
        _fitted(jnp.conj(g), a.aval.dtype) if ad.is_undefined_primal(a) else None
        for a, g in zip(x, pulled, strict=True)
    ]
    return [*back, *(None,) * len(constants)]


def _fitted(g: Any, dtype: Any) -> Any:
    """A cotangent of the dtype of what it belongs to: the adjoint of real numbers being taken
    for complex ones is the real part."""
    return (g if is_complex(dtype) else jnp.real(g)).astype(dtype)


@in_ordinary_modes
def _batch(arrays: Any, axes: Any, *, rule: Any, count: int, program: Program) -> Any:
    given = list(zip(arrays, axes, strict=True))
    size = next(a.shape[axis] for a, axis in given if axis is not None)
    x = tuple(batching.bdim_at_front(a, axis, size) for a, axis in given[:count])
    constants = tuple(a if axis is None else jnp.moveaxis(a, axis, 0) for a, axis in given[count:])
    mapped = tuple(None if axis is None else 0 for axis in axes[count:])
    out = linear_rule(Mapped(rule, mapped, program.run), x, constants)
    return out, [0] * len(out)


@dataclass(frozen=True)
class Mapped:
    """A rule under vmap: over all of x, and over those constants whose axis is not None. `run`
    is its program, if it has one."""

    rule: Any
    axes: tuple[int | None, ...]
    run: Callable[..., Any] | None = None

    def apply(self, x: tuple, constants: tuple) -> tuple:
        if self.run is None:
            return jax.vmap(self.rule.apply, (0, self.axes))(x, constants)
        return tuple(jax.vmap(self.run, (*(0,) * len(x), *self.axes))(*x, *constants))

    @property
    def aux(self) -> int:
        return _aux(self.rule)

    def again(self) -> Mapped:
        rule = self.rule.again()
        return self if rule is self.rule else Mapped(rule, self.axes)

    def adjoint(self) -> Mapped:
        return Mapped(self.rule.adjoint(), self.axes)

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        axes = (0, self.axes, None if dx is None else 0, self.axes, 0)
        return jax.vmap(self.rule.tangent, axes)(x, constants, dx, moved, output)


linear.def_impl(_apply)
linear.def_effectful_abstract_eval(_shapes)
mlir.register_lowering(
    linear,
    mlir.lower_fun(lambda *arrays, program, **_: program.run(*arrays), multiple_results=True),
)
ad.primitive_jvps[linear] = _jvp
ad.primitive_transposes[linear] = _transpose
batching.primitive_batchers[linear] = _batch
