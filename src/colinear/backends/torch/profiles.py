"""Profiles of kernels, functions φ(q, *shape) of squared distances made of torch's elementwise
functions, as functions of Triton: traced, differentiated, and written out as source."""

from __future__ import annotations

import functools
import importlib
import linecache
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from .programs import _inside_function

TRACED = (2, 3)  # the shape of the distances that a profile is traced with


class Profiles(NamedTuple):
    """φ, dφ/dq and the derivatives by its parameters, as functions of Triton."""

    value: Any
    slope: Any
    by_shape: tuple[Any, ...]


def translated(profile: Callable, dtype: Any, count: int) -> Profiles | None:
    """The programs of a profile with so many parameters; None where one of its functions is not
    elementwise, or is unknown here."""
    sources = _sources(profile, _numbers_in(profile), dtype, count)
    if sources is None:
        return None
    value, slope, *by_shape = map(compiled, sources)
    return Profiles(value, slope, tuple(by_shape))


def _numbers_in(profile: Any) -> tuple:
    """The numbers that a function reads from outside: with others it is traced again."""
    if not hasattr(profile, "__code__"):
        return ()
    return tuple(x for x in _inside_function(profile) or () if isinstance(x, bool | int | float))


@functools.lru_cache(maxsize=256)
def _sources(profile: Callable, numbers: tuple, dtype: Any, count: int) -> list[str] | None:
    arguments = [torch.ones(TRACED, dtype=dtype) for _ in range(count + 1)]

    def slope(place: int) -> Callable:
        def of(*arguments: Any) -> Any:
            def one(x: Any) -> Any:
                return profile(*arguments[:place], x, *arguments[place + 1 :])

            value, pull = torch.func.vjp(one, arguments[place])
            return pull(torch.ones_like(value))[0]

        return of

    try:
        with torch.enable_grad():
            functions = [profile, *map(slope, range(count + 1))]
            return [source(make_fx(f)(*arguments), count) for f in functions]
    except Exception:  # a function that cannot be traced, or not be written: blocks can do it
        return None


class Untranslatable(Exception):
    """What a profile does that a program of Triton cannot."""


def source(graph: Any, count: int) -> str:
    """The traced graph as source of a function of Triton."""
    lines = [f"    a{i} = tl.load(parameters + {i})" for i in range(count)]
    names: dict[Any, str] = {}
    varying = set()  # what depends on q: anything else is one number for a whole tile
    placeholders = iter(["q", *(f"a{i}" for i in range(count))])
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            names[node] = next(placeholders)
            varying |= {node} if names[node] == "q" else set()
        elif node.op == "output":
            (result,) = node.args
            result = result[0] if isinstance(result, tuple | list) else result
            if not isinstance(result, torch.fx.Node) or result.meta["val"].shape != TRACED:
                raise Untranslatable("the answer is not of the shape of the distances")
            spread = "" if result in varying else " + tl.zeros_like(q)"
            lines.append(f"    return {names[result]}{spread}")
        elif node.op == "call_function":
            names[node] = f"t{len(names)}"
            varying |= {node} if varying & set(node.all_input_nodes) else set()
            lines.append(f"    {names[node]} = {_expression(node, names)}")
        else:
            raise Untranslatable(f"{node.op} {node.target}")
    return "\n".join(["@triton.jit", "def profile(q, parameters):", *lines, ""])


def _expression(node: Any, names: dict[Any, str]) -> str:
    found = node.meta.get("val")
    if not isinstance(found, torch.Tensor) or found.shape not in (TRACED, ()):
        raise Untranslatable(f"{node.target} gives no number for each distance")
    name = node.target._schema.name.removeprefix("aten::")
    if name in WITHOUT_EFFECT:
        return _operand(node.args[0], names)
    if name in CONSTANTS:
        return CONSTANTS[name](node.args)
    rule = FORMULAS[name]
    named = {key: value for key, value in node.kwargs.items() if key == "alpha" and value != 1}
    if named or any(value is not None for key, value in node.kwargs.items() if key != "alpha"):
        raise Untranslatable(f"{name} with {node.kwargs}")
    if name == "pow":
        return _power(node.args, names)
    return rule.format(*(_operand(x, names) for x in node.args))


def _operand(x: Any, names: dict[Any, str]) -> str:
    if isinstance(x, torch.fx.Node):
        return names[x]
    if isinstance(x, bool):
        return str(x)
    if isinstance(x, int | float) and math.isfinite(x):
        return f"({float(x)!r})"
    if isinstance(x, float):
        return f'(float("{x}"))'
    raise Untranslatable(f"the operand {x!r}")


def _power(args: tuple, names: dict[Any, str]) -> str:
    base, exponent = args
    x = _operand(base, names)
    if isinstance(exponent, int | float) and float(exponent).is_integer() and 0 < exponent <= 8:
        return " * ".join([x] * int(exponent))
    if exponent in (0.5, -0.5, -1):
        return {0.5: f"tl.sqrt({x})", -0.5: f"1.0 / tl.sqrt({x})", -1: f"1.0 / {x}"}[exponent]
    if isinstance(exponent, int | float) and exponent == 0:
        return "(1.0)"
    if not isinstance(base, torch.fx.Node):
        return f"tl.exp({_operand(exponent, names)} * ({math.log(base)!r}))"
    return f"libdevice.pow({x}, {_operand(exponent, names)} + 0.0 * {x})"


WITHOUT_EFFECT = "alias clone detach expand lift_fresh_copy view".split()
CONSTANTS: dict[str, Callable[[tuple], str]] = {
    "zeros_like": lambda args: "(0.0)",
    "ones_like": lambda args: "(1.0)",
    "zeros": lambda args: "(0.0)",
    "ones": lambda args: "(1.0)",
    "full": lambda args: f"({float(args[1])!r})",
    "full_like": lambda args: f"({float(args[1])!r})",
    "scalar_tensor": lambda args: f"({float(args[0])!r})",
}
FORMULAS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1.0 / {0}",
    "square": "{0} * {0}",
    "pow": "",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "1.0 / tl.sqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "erf": "tl.erf({0})",
    "abs": "tl.abs({0})",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))",
    "sigmoid_backward": "{0} * {1} * (1.0 - {1})",
    "tanh": "libdevice.tanh({0})",
    "tanh_backward": "{0} * (1.0 - {1} * {1})",
    "log1p": "libdevice.log1p({0})",
    "expm1": "libdevice.expm1({0})",
    "sgn": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0))",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "where": "tl.where({0}, {1}, {2})",
    "masked_fill": "tl.where({1}, {2}, {0})",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_not": "({0} == 0)",
}


@functools.lru_cache(maxsize=256)
def compiled(text: str) -> Any:
    """The function of Triton with this source, which Triton reads again: it lies where tracebacks
    look for source too."""
    name = f"<colinear profile {abs(hash(text)):x}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    modules = {"tl": "triton.language", "libdevice": "triton.language.extra.libdevice"}
    inside: dict[str, Any] = {
        short: importlib.import_module(long) for short, long in modules.items()
    }
    inside |= {"triton": importlib.import_module("triton"), "__name__": "colinear.profile"}
    exec(compile(text, name, "exec"), inside)
    return inside["profile"]
