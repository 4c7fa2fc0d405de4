"""Linear maps with rules of their own in JAX: for their transposes, and for derivatives with respect to what they depend on.

JAX transposes what is inside a `custom_jvp` function and there forgets its rule; `custom_linear_solve` can be told its transpose, but not
the derivative of it. So this is a primitive: M(c) x for arrays x, linear, and constants c, with

    tangent     M(c) dx where the constants stay, else rule.tangent(x, c, dx, dc, M(c) x)
    transpose   that of rule.adjoint, conjugated before and after: JAX transposes without conjugation
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from colinear.backends._jax_modes import in_ordinary_modes

linear = Primitive("colinear_linear_rule")
linear.multiple_results = True


def linear_rule(rule: Any, x: tuple, constants: tuple = (), like: tuple | None = None) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x, whose derivatives are those of the rule.

    Parameters
    ----------
    rule : object
        With the methods `apply(x, constants)`; `adjoint()`, a rule for cotangents, with the same constants; `tangent(x, constants, dx,
        moved, output)`, the change of the answer with x (None: it stays) and with the constants; and `cotangent(x, constants, g,
        output, back)`, which pulls g back to the constants, None for those that do not move, where `back` is what g is for x. The
        last two are made of what can be differentiated. Optional are `aux`, how many of the last arrays of the answer are not part of
        it and have no derivative, and then `again()`, the rule without them; and `warns`, whether `apply` may warn.
    like : tuple, optional
        Arrays of the shapes and dtypes of the answer. Then `apply` is not traced to find them out.
    """
    arrays = [jnp.asarray(array) for array in (*x, *constants)]
    return tuple(linear.bind(*arrays, rule=rule, count=len(x), program=Program(rule, len(x), arrays, like)))


class Program:
    """What a rule does with arrays of these shapes. It is traced once, when that is needed."""

    def __init__(self, rule: Any, count: int, arrays: list, like: tuple | None):
        # A number of the user's is weakly typed, and stays so: a float64 of it would make float64 of all that it meets.
        given = [jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type) for array in arrays]
        self.apply, self.given = rule.apply, (tuple(given[:count]), tuple(given[count:]))
        self.like = None if like is None else [jax.core.ShapedArray(x.shape, x.dtype) for x in like]
        self.effects = _warning_effects() if getattr(rule, "warns", False) else set()

    @functools.cached_property
    def closed(self) -> Any:
        return jax.make_jaxpr(self.apply)(*self.given)

    @property
    def jaxpr(self) -> Any:
        """The program as JAX writes it, for those who read what is inside of another."""
        return self.closed.jaxpr

    @in_ordinary_modes
    def run(self, *arrays: Any) -> list:
        found = jax.core.eval_jaxpr(self.closed.jaxpr, self.closed.consts, *arrays)
        return found if self.like is None else [x.astype(out.dtype) for x, out in zip(found, self.like, strict=True)]

    def __repr__(self) -> str:
        return "..."


def _shapes(*arrays: Any, rule: Any, count: int, program: Program) -> tuple[list, Any]:
    like = program.like
    return (like, program.effects) if like is not None else (program.closed.out_avals, program.closed.effects)


@functools.cache
def _warning_effects() -> Any:
    return jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects


@in_ordinary_modes
def _apply(*arrays: Any, rule: Any, count: int, program: Program) -> list:
    arrays = tuple(map(jnp.asarray, arrays))  # among what JAX keeps for a transpose are numbers of Python's
    return list(rule.apply(tuple(arrays[:count]), tuple(arrays[count:])))


@in_ordinary_modes
def _jvp(primals: Any, tangents: Any, *, rule: Any, count: int, program: Program) -> Any:
    primals = [jnp.asarray(x) for x in primals]
    out = linear.bind(*primals, rule=rule, count=count, program=program)
    filled = [jnp.zeros_like(x) if type(t) is ad.Zero else t for x, t in zip(primals, tangents, strict=True)]
    x, constants, dx, moved = (tuple(part) for each in (primals, filled) for part in (each[:count], each[count:]))
    aux = _aux(rule)
    known = tuple(out[: len(out) - aux])
    if any(type(t) is not ad.Zero for t in tangents[count:]):
        straight = any(type(t) is not ad.Zero for t in tangents[:count])
        found = rule.tangent(x, constants, dx if straight else None, moved, known)
    else:
        found = linear_rule(rule.again() if aux else rule, dx, constants, known)
    return out, [*found, *map(_no_tangent, out[len(out) - aux :])]


def _no_tangent(x: Any) -> Any:
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jax.dtypes.float0
    return ad.Zero(jax.core.ShapedArray(x.shape, dtype))


def _aux(rule: Any) -> int:
    return getattr(rule, "aux", 0)


@in_ordinary_modes
def _transpose(cotangents: Any, *arrays: Any, rule: Any, count: int, program: Program) -> Any:
    x, constants = arrays[:count], arrays[count:]
    cotangents = cotangents[: len(cotangents) - _aux(rule)]
    given = [jnp.zeros(g.aval.shape, g.aval.dtype) if type(g) is ad.Zero else jnp.conj(g) for g in cotangents]
    pulled = linear_rule(rule.adjoint(), tuple(given), constants)
    back = [_fitted(jnp.conj(g), a.aval.dtype) if ad.is_undefined_primal(a) else None for a, g in zip(x, pulled, strict=True)]
    return [*back, *(None,) * len(constants)]


def _fitted(g: Any, dtype: Any) -> Any:
    """A cotangent of the dtype of what it belongs to: the adjoint of real numbers being taken for complex ones is the real part."""
    is_complex = jnp.issubdtype(g.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return (g.real if is_complex else g).astype(dtype)


@in_ordinary_modes
def _batch(arrays: Any, axes: Any, *, rule: Any, count: int, program: Program) -> Any:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    mapped = tuple(None if axis is None else 0 for axis in axes)
    x = [a if axis == 0 else jnp.broadcast_to(a, (size, *a.shape)) for a, axis in zip(moved[:count], mapped, strict=False)]
    out = linear_rule(Mapped(rule, mapped[count:], program.run), tuple(x), tuple(moved[count:]))
    return out, [0] * len(out)


@dataclass(frozen=True)
class Mapped:
    """A rule under vmap: over all of x, and over those constants whose axis is not None. `run` is its program, if it has one."""

    rule: Any
    axes: tuple[int | None, ...]
    run: Callable[..., Any] | None = None

    def apply(self, x: tuple, constants: tuple) -> tuple:
        axes = (0,) * len(x), self.axes
        if self.run is None:
            return jax.vmap(self.rule.apply, axes)(x, constants)
        return tuple(jax.vmap(self.run, (*axes[0], *axes[1]))(*x, *constants))

    @property
    def aux(self) -> int:
        return _aux(self.rule)

    @property
    def warns(self) -> bool:
        return getattr(self.rule, "warns", False)

    def again(self) -> Mapped:
        return Mapped(self.rule.again(), self.axes)

    def adjoint(self) -> Mapped:
        return Mapped(self.rule.adjoint(), self.axes)

    def tangent(self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
        axes = (0,) * len(x), self.axes, None if dx is None else (0,) * len(x), self.axes, (0,) * len(output)
        return jax.vmap(self.rule.tangent, axes)(x, constants, dx, moved, output)


linear.def_impl(_apply)
linear.def_effectful_abstract_eval(_shapes)
mlir.register_lowering(linear, mlir.lower_fun(lambda *arrays, program, **_: program.run(*arrays), multiple_results=True))
ad.primitive_jvps[linear] = _jvp
ad.primitive_transposes[linear] = _transpose
batching.primitive_batchers[linear] = _batch
