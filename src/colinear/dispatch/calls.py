"""How a call enters the library: its parameters, the frameworks' ordinary modes, and frames
enough for a deep tree."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from .. import backends
from . import signatures

# Modes that a user has set in a framework and that do not hold for our own formulas: JAX's strict
# ones (`backends/jax/closures.py`).


_is_strict: Callable[[], bool] | None = None  # JAX's, as soon as JAX is used
_in_ordinary_modes: Callable[[Callable], Callable] | None = None


def _watch(xp: Any) -> None:
    global _is_strict, _in_ordinary_modes
    if xp.name == "jax":
        _is_strict, _in_ordinary_modes = xp.is_strict, xp.in_ordinary_modes


backends.on_load(_watch)


def are_strict() -> bool:
    """Whether our formulas must not run in the modes that are set. (torch.compile, which would
    trace the question, has none.)"""
    if _is_strict is None or (signatures.is_compiling is not None and signatures.is_compiling()):
        return False
    return _is_strict()


def ordinary(f: Callable, *arguments: Any) -> Any:
    """`f(*arguments)` in the framework's ordinary modes."""
    assert _in_ordinary_modes is not None
    return _in_ordinary_modes(f)(*arguments)


def entry(f: Callable) -> Callable:
    """`f`, where users enter: it runs in the ordinary modes."""

    @functools.wraps(f)
    def entered(*arguments: Any) -> Any:
        return ordinary(f, *arguments) if _is_strict is not None and are_strict() else f(*arguments)

    return entered


# Trees so deep that a walk over them needs more frames than Python allows at first.
#
# Every walk goes from a node to its children by a call, so a tree of some 200 levels meets
# Python's limit of 1000 frames. The entrances of the walks catch that and go on with a larger
# limit.


MOST_FRAMES = 20_000  # some 3000 levels; Python's frames do not lie on the stack of C


class TooDeepError(RecursionError):
    """A tree that is too deep even for `MOST_FRAMES`, or that has no end."""


def retry_deeper(walk: Callable[..., Any], *arguments: Any) -> Any:
    """Return `walk(*arguments)`, which has raised a RecursionError, with more frames allowed.

    Called where that error was caught. Half of the old limit must be free there, so that the limit
    can be restored at the end: else the error goes on to an entrance nearer to the root.
    """
    limit = sys.getrecursionlimit()
    if isinstance(sys.exception(), TooDeepError) or (
        limit < MOST_FRAMES and _has_frames(limit // 2)
    ):
        raise
    if limit >= MOST_FRAMES:
        raise TooDeepError(
            f"the operator is nested too deeply for {limit} frames. Compose it of sums and "
            "products of many operands, "
            f"which are flat, or raise sys.setrecursionlimit."
        ) from None
    sys.setrecursionlimit(MOST_FRAMES)
    try:
        return walk(*arguments)
    finally:
        sys.setrecursionlimit(limit)


def _has_frames(count: int) -> bool:
    try:
        sys._getframe(count)
    except ValueError:
        return False
    return True


# The parameters of functions, rules and guards: how calls are written out, and which arguments a
# guard takes.


def positional(base: Callable[..., Any]) -> Callable[..., Any]:
    """The base case as rules are called, with every argument in its place, also those that it
    takes by keyword only."""
    parameters = inspect.signature(base).parameters.values()
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if not keywords:
        return base

    @functools.wraps(base)
    def call(*arguments: Any) -> Any:
        split = len(arguments) - len(keywords)
        return base(*arguments[:split], **dict(zip(keywords, arguments[split:])))

    return call


def compile_call(
    name: str, parameters: list[inspect.Parameter], public: list[inspect.Parameter]
) -> Any:
    """`__call__` with the function's own parameters, written out and compiled once.

    Python then sorts the arguments, and complains of them, as fast and as clearly as for any
    function.
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


def check_parameters(
    name: str, parameters: tuple[str, ...], implementation: Callable[..., Any]
) -> None:
    """Raise an error if a rule cannot be called with the parameters of its function."""
    try:
        inspect.signature(implementation).bind(*parameters)
    except TypeError as error:
        wanted, rule = ", ".join(parameters), getattr(implementation, "__name__", implementation)
        raise TypeError(
            f"{name}: a rule is called as rule({wanted}), which {rule} does not take: {error}."
        ) from None
    except ValueError:
        pass  # a built-in without a signature


def shared_arguments(
    f: Callable[..., Any] | None, parameters: tuple[str, ...]
) -> tuple[tuple[str, int], ...]:
    """The arguments after the operator that f takes too, by their names: each name, and its
    place in the tuple of arguments."""
    if f is None:
        return ()
    try:
        names = list(inspect.signature(f).parameters)[1:]
    except ValueError:  # a built-in without a signature
        return ()
    return tuple((name, i) for i, name in enumerate(parameters[1:]) if name in names)
