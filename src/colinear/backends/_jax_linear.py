"""Linear maps with rules of their own in JAX: for their transposes, and for derivatives with respect to what they depend on.

JAX transposes what is inside a `custom_jvp` function and there forgets its rule; `custom_linear_solve` can be told its transpose, but not
the derivative of it. So this is a primitive: M(c) x for arrays x, linear, and constants c, with

    tangent     M(c) dx where the constants stay, else rule.tangent(x, c, dx, dc, M(c) x)
    transpose   that of rule.adjoint, conjugated before and after: JAX transposes without conjugation
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from colinear.backends._jax_modes import in_ordinary_modes

linear = Primitive("colinear_linear_rule")
linear.multiple_results = True


def linear_rule(rule: Any, x: tuple, constants: tuple = ()) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x, whose derivatives are those of the rule.

    Parameters
    ----------
    rule : object
        With the methods `apply(x, constants)`; `adjoint()`, a rule for cotangents, with the same constants; `tangent(x, constants, dx,
        moved, output)`, the change of the answer with x (None: it stays) and with the constants; and `cotangent(x, constants, g,
        output, back)`, which pulls g back to the constants, None for those that do not move, where `back` is what g is for x. The
        last two are made of what can be differentiated. Optional are `aux`, how many of the last arrays of the answer are not part of
        it and have no derivative, and then `again()`, the rule without them.
    """
    return tuple(_bind((*x, *constants), rule, len(x)))


def _bind(arrays: Any, rule: Any, count: int) -> list:
    """The primitive applied. `program` is what it does, for those who read the programs of JAX, and for the shapes."""
    arrays = [jnp.asarray(array) for array in arrays]
    # A number of the user's is weakly typed, and stays so: a float64 of it would make float64 of all that it meets.
    given = [jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type) for array in arrays]
    program = jax.make_jaxpr(lambda *arrays: _apply(*arrays, rule=rule, count=count))(*given).jaxpr
    found: list = linear.bind(*arrays, rule=rule, count=count, program=program)
    return found


@in_ordinary_modes
def _apply(*arrays: Any, rule: Any, count: int, program: Any = None) -> list:
    arrays = tuple(map(jnp.asarray, arrays))  # among what JAX keeps for a transpose are numbers of Python's
    return list(rule.apply(tuple(arrays[:count]), tuple(arrays[count:])))


def _shapes(*avals: Any, rule: Any, count: int, program: Any) -> Any:
    return [out.aval for out in program.outvars], program.effects


@in_ordinary_modes
def _jvp(primals: Any, tangents: Any, *, rule: Any, count: int, program: Any) -> Any:
    primals = [jnp.asarray(x) for x in primals]
    out = linear.bind(*primals, rule=rule, count=count, program=program)
    filled = [jnp.zeros_like(x) if type(t) is ad.Zero else t for x, t in zip(primals, tangents, strict=True)]
    straight = any(type(t) is not ad.Zero for t in tangents[:count])
    aux = _aux(rule)
    if any(type(t) is not ad.Zero for t in tangents[count:]):
        dx, known = tuple(filled[:count]) if straight else None, tuple(out[: len(out) - aux])
        moved = list(rule.tangent(tuple(primals[:count]), tuple(primals[count:]), dx, tuple(filled[count:]), known))
    else:
        moved = _bind((*filled[:count], *primals[count:]), rule.again() if aux else rule, count)
    return out, [*moved, *map(_no_tangent, out[len(out) - aux :])]


def _no_tangent(x: Any) -> Any:
    dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.inexact) else jax.dtypes.float0
    return ad.Zero(jax.core.ShapedArray(x.shape, dtype))


def _aux(rule: Any) -> int:
    return getattr(rule, "aux", 0)


@in_ordinary_modes
def _transpose(cotangents: Any, *arrays: Any, rule: Any, count: int, program: Any) -> Any:
    x, constants = arrays[:count], arrays[count:]
    cotangents = cotangents[: len(cotangents) - _aux(rule)]
    given = [jnp.zeros(g.aval.shape, g.aval.dtype) if type(g) is ad.Zero else jnp.conj(g) for g in cotangents]
    pulled = _bind((*given, *constants), rule.adjoint(), len(given))
    back = [jnp.conj(g) if ad.is_undefined_primal(a) else None for a, g in zip(x, pulled, strict=True)]
    return [*back, *(None,) * len(constants)]


@in_ordinary_modes
def _batch(arrays: Any, axes: Any, *, rule: Any, count: int, program: Any) -> Any:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    moved = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    mapped = tuple(None if axis is None else 0 for axis in axes)
    x = [a if axis == 0 else jnp.broadcast_to(a, (size, *a.shape)) for a, axis in zip(moved[:count], mapped, strict=False)]
    out = _bind((*x, *moved[count:]), Mapped(rule, mapped[count:]), count)
    return out, [0] * len(out)


@dataclass(frozen=True)
class Mapped:
    """A rule under vmap: over all of x, and over those constants whose axis is not None."""

    rule: Any
    axes: tuple[int | None, ...]

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return jax.vmap(self.rule.apply, ((0,) * len(x), self.axes))(x, constants)

    @property
    def aux(self) -> int:
        return _aux(self.rule)

    def again(self) -> Mapped:
        return Mapped(self.rule.again(), self.axes)

    def adjoint(self) -> Mapped:
        return Mapped(self.rule.adjoint(), self.axes)

    def tangent(self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
        axes = (0,) * len(x), self.axes, None if dx is None else (0,) * len(x), self.axes, (0,) * len(output)
        return jax.vmap(self.rule.tangent, axes)(x, constants, dx, moved, output)


linear.def_impl(_apply)
linear.def_effectful_abstract_eval(_shapes)
mlir.register_lowering(linear, mlir.lower_fun(_apply, multiple_results=True))
ad.primitive_jvps[linear] = _jvp
ad.primitive_transposes[linear] = _transpose
batching.primitive_batchers[linear] = _batch
