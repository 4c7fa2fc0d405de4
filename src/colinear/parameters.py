"""The parameters of functions, rules and guards: how calls are written out, and which arguments a guard takes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def positional(base: Callable[..., Any]) -> Callable[..., Any]:
    """The base case as rules are called, with every argument in its place, also those that it takes by keyword only."""
    parameters = inspect.signature(base).parameters.values()
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if not keywords:
        return base

    @functools.wraps(base)
    def call(*arguments: Any) -> Any:
        split = len(arguments) - len(keywords)
        return base(*arguments[:split], **dict(zip(keywords, arguments[split:])))

    return call


def compile_call(name: str, parameters: list[inspect.Parameter], public: list[inspect.Parameter]) -> Any:
    """`__call__` with the function's own parameters, written out and compiled once.

    Python then sorts the arguments, and complains of them, as fast and as clearly as for any function.
    """
    ordinary = [p for p in public if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    keywords = [p for p in public if p.kind is inspect.Parameter.KEYWORD_ONLY]
    defaults = {f"_default_{p.name}": p.default for p in public if p.default is not p.empty}

    def written(p: inspect.Parameter) -> str:
        return p.name if p.default is p.empty else f"{p.name}=_default_{p.name}"

    header = ["_self", *map(written, ordinary), "*_excess", *map(written, keywords), "**_unknown"]
    others = "".join(f"{p.name}, " for p in parameters[1:])
    method = "method" if any(p.name == "method" for p in parameters[1:]) else "None"
    source = (
        f"def __call__({', '.join(header)}):\n"
        f"    if _excess:\n"
        f"        raise _self._too_many({len(ordinary)}, _excess)\n"
        f"    if _unknown:\n"
        f"        raise _self._not_an_argument(_unknown)\n"
        f"    return _self._call({parameters[0].name}, ({others}), {method}, info, on_failure)\n"
    )
    scope: dict[str, Any] = dict(defaults)
    exec(compile(source, f"<colinear {name}>", "exec"), scope)
    call = scope["__call__"]
    call.__qualname__ = name  # the name in Python's own complaints
    return call


def check_parameters(name: str, parameters: tuple[str, ...], implementation: Callable[..., Any]) -> None:
    """Raise an error if a rule cannot be called with the parameters of its function."""
    try:
        inspect.signature(implementation).bind(*parameters)
    except TypeError as error:
        wanted, rule = ", ".join(parameters), getattr(implementation, "__name__", implementation)
        raise TypeError(f"{name}: a rule is called as rule({wanted}), which {rule} does not take: {error}.") from None
    except ValueError:
        pass  # a built-in without a signature


def shared_arguments(f: Callable[..., Any] | None, parameters: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The arguments after the operator that f takes too, by their names: each name, and its place in the tuple of arguments."""
    if f is None:
        return ()
    try:
        names = list(inspect.signature(f).parameters)[1:]
    except ValueError:  # a built-in without a signature
        return ()
    return tuple((name, i) for i, name in enumerate(parameters[1:]) if name in names)
