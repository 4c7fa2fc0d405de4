"""How a call enters the library: its parameters, the methods that users name, the frameworks'
ordinary modes, and frames enough for a deep tree."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from .. import backends
from ..backends import modes
from ..errors import ConvergenceError, ConvergenceWarning, MethodError
from ..info import Info, state
from ..status import Pending, Status, Test, Told, ask, explanation, read_status, unread_statuses
from . import signatures
from .resolution import Rule

# Modes of a framework that calls need or must leave: JAX's strict ones and meshes with explicit axes
# (`backends/jax/control.py`), and meshes of torch (`backends/torch/mesh.py`).


def are_strict(A: Any = None) -> bool:
    """Whether our formulas must not run in the modes that are set, or that an operator or array
    brings along. (torch.compile, which would trace the question, has none.)"""
    if not modes or (signatures.is_compiling is not None and signatures.is_compiling()):
        return False
    for each in modes:
        if each.is_strict(A):
            return True
    return False


def ordinary(f: Callable, *arguments: Any) -> Any:
    """`f(*arguments)` in the ordinary modes, and in that of the mesh of the first argument."""
    return next(each for each in modes if each.is_strict(*arguments[:1])).enter(f, *arguments)


LENDERS = frozenset({"jax", "torch"})  # the frameworks whose arrays NumPy may compute with


def may_lend() -> bool:
    """Whether a user calls, or `explain` for one, so that arrays may be lent to NumPy."""
    if signatures.is_compiling is not None and signatures.is_compiling():
        return False
    outer = state.current
    return outer is None or (outer.planner is not None and not outer.planner.has_begun)


class NotLent(Exception):
    """Leaves a computation by NumPy of arrays that cannot be lent to it."""


def is_own(x: Any) -> bool:
    """Whether a class or function is ours."""
    return (getattr(x, "__module__", None) or "").partition(".")[0] == __name__.partition(".")[0]


def for_own_arrays(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule of a user, who has written it for the arrays that the operator was made of."""

    @functools.wraps(rule)
    def run(*arguments: Any) -> Any:
        if state.is_lent:
            raise NotLent
        return rule(*arguments)

    return run


Entered = TypeVar("Entered", bound=Callable)


def entry(f: Entered) -> Entered:
    """`f`, where users enter: it runs in the ordinary modes."""

    @functools.wraps(f)
    def entered(*arguments: Any) -> Any:
        return ordinary(f, *arguments) if modes and are_strict(*arguments[:1]) else f(*arguments)

    return cast(Entered, entered)


# Trees so deep that a walk over them needs more frames than Python allows at first.
#
# Every walk goes from a node to its children by a call, so a tree of some 200 levels meets
# Python's limit of 1000 frames. The entrances of the walks catch that and go on with a larger
# limit.


MOST_FRAMES = 10_000  # some 2000 levels, whose products take 3 of the 8 MB of the stack of C


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
    source = (
        f"def __call__({', '.join(header)}):\n"
        f"    if _excess or _unknown:\n"
        f"        raise _misuse(_self, {len(ordinary)}, _excess, _unknown)\n"
        f"    return _self._call({parameters[0].name}, ({others}), info, on_failure)\n"
    )
    scope: dict[str, Any] = {**defaults, "_misuse": misuse}
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


# Methods that a user names: whether a rule may hand them to the parts it makes, and what is said of
# names that are none.


_method_names: Callable[[], Sequence[str]] = tuple
_method_options: Callable[[str], Sequence[str]] = lambda name: ()


def set_method_names(
    names: Callable[[], Sequence[str]], options: Callable[[str], Sequence[str]] = lambda name: ()
) -> None:
    """Say which methods there are, and which of them have an option of some name, for messages
    that list them."""
    global _method_names, _method_options
    _method_names, _method_options = names, options


class NotForPart(Exception):
    """Leaves a rule that hands a named method to a part not known to have what it needs."""


def unfit(method: Any, A: Any) -> NotForPart:
    """The exception for a part that is not known to have what the method needs."""
    name = type(A).__name__
    return NotForPart(
        f"{method.name} needs parts that are known to be {method.needed}, and {name} is not"
    )


# The functions whose question is answered by the algorithm for another one.
ANSWERED_BY = {"solve": "inv", "lstsq": "pinv", "eigmax": "eig", "eigmin": "eig"}


def algorithm_of(method: Any, function: str) -> Callable[..., Any] | None:
    """The algorithm of its own that a method from outside has for this function; None if it has
    none."""
    return getattr(method, ANSWERED_BY.get(function, function), None)


def has_needs(A: Any, method: Any) -> bool:
    """Whether A is known to have the properties that the method needs."""
    return not method.needs & ~A.properties


def check_part(A: Any, method: Any) -> None:
    """Leave the rule at work if A is a part that is not known to have what the named method needs.

    It is for rules which take the method for the word of the user that A has it.
    """
    if method is not None and state.split is type(method) and not has_needs(A, method):
        raise unfit(method, A)


def why_whole(rule: Rule, method: Any, A: Any) -> str:
    """The reason why a named method takes A itself, not the parts that the rule makes; or empty."""
    if rule.is_base:
        return ""
    name = type(method).__name__
    if rule.direct and getattr(method, "is_iterative", False):
        return f"{name} was asked for, which only multiplies by A"
    if rule.direct and algorithm_of(method, rule.function) is not None:
        return f"{name} was asked for, which is an algorithm of its own"
    if not rule.estimates and getattr(method, "is_stochastic", False):
        return f"it has no standard error, which {name} gives"
    uses = getattr(method, "runs_on", None)  # of a method that makes use of the structure itself
    return f"{name} takes A as a whole" if uses is not None and uses(A) else ""


def not_a_method(name: str, method: Any) -> MethodError:
    """The error for a method that is a class, a string or anything else that is no method
    object."""
    what, given = repr(method), method
    names = list(_method_names())
    if isinstance(method, type):
        given = method.__name__
        what = f"the class {given}"
        if getattr(method, "_is_method", False):
            names.append(given)
    advice = f" Use one of {', '.join(n + '()' for n in names)}." if names else ""
    for close in names:
        if isinstance(given, str) and close.lower() == given.lower():
            advice = f" Write {close}()."
    return MethodError(
        f"{name}: method must be None or a method object such as Auto(), not {what}.{advice}"
    )


def misuse(f: Any, most: int, excess: tuple[Any, ...], unknown: dict[str, Any]) -> TypeError:
    """The error for too many arguments, or for a keyword that the function does not have; where it
    is an option of methods, that is said."""
    if excess:
        given = most + len(excess)
        return TypeError(f"{f.name}() takes {most} positional arguments, {given} were given")
    option, value = next(iter(unknown.items()))
    text = f"{f.name}() got an unexpected keyword argument {option!r}."
    owners = _method_options(option) if "method" in f.parameters else ()
    if not owners:
        close = difflib.get_close_matches(option, (*f.parameters, "info", "on_failure"))
        return TypeError(f"{text} Did you mean {close[0]!r}?" if close else text)
    others = f" (so have {', '.join(owners[1:4])})" if len(owners) > 1 else ""
    shown = repr(value) if isinstance(value, (int, float, str)) else "..."
    return TypeError(
        f"{text} It is an option of methods: write method={owners[0]}({option}={shown}){others}."
    )


# Blocks in which calls tell of their failures at the end.


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """A block in which no call reads its status: all are read at its end, at once.

    To read a status on a device waits for the device, which has then nothing to do until the next
    call. In the block calls return without waiting. At its end their failures are told as they are
    elsewhere: by warnings that point at the lines of the calls, and, if one of them was called with
    `on_failure="raise"`, by a `ConvergenceError`: of the first such call, with the others as notes.

    Yields
    ------
    None

    Notes
    -----
    On a device an answer in the block is that of the first choice of method: if it fails, the
    status says so, but there is no second attempt, because nothing waits for the failure. So an
    answer in the block can be a failure that outside is mended. On the host calls do the same as
    elsewhere, and tell it later.

    An `info` can be looked at inside the block, which waits for that one call. A block inside
    another hands its failures to that one. Every thread has its own blocks. If an exception leaves
    the block, failures are warned of, or noted in the exception where warnings are errors.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Diagonal(np.array([1.0, 2.0]))
    >>> with co.deferred():
    ...     x = [co.solve(A, np.array([i, 2.0 * i])) for i in range(1, 4)]
    >>> x[2]
    array([3., 3.])
    """
    if state.waiting is not None:
        yield
        return
    waiting: list[Told] = []
    state.waiting = waiting
    try:
        yield
    except BaseException as error:
        state.waiting = None
        # the statuses may be lost with the device
        with contextlib.suppress(Exception):
            _tell_all(waiting, error)
        raise
    finally:
        state.waiting = None
    _tell_all(waiting)


def _tell_all(waiting: list[Told], error: BaseException | None = None) -> None:
    """Read the statuses of all calls at once, and warn of the failures; raise the first that is to
    be raised, with the others as notes. Where the block was left by an error nothing is raised,
    and what was to be is noted in that error."""
    _read_statuses([told.info for told in waiting])
    first = error
    for told in waiting:
        worst = read_status(told.info)
        if told.on_failure == "ignore" or not worst.is_failure:
            continue
        message = explanation(told.info, worst)
        if told.on_failure == "raise":
            if first is None:
                first = ConvergenceError(message, told.info)
            else:
                first.add_note(message)
            continue
        try:
            warnings.warn_explicit(
                message,
                ConvergenceWarning,
                told.file,
                told.line,
                module=told.variables.get("__name__"),
                registry=told.variables.setdefault("__warningregistry__", {}),
            )
        except ConvergenceWarning:
            if error is None:
                raise
            error.add_note(message)
    if error is None and first is not None:
        raise first


def _read_statuses(infos: list[Info]) -> None:
    """Complete the statuses of these computations and of their parts, by one copy from each
    device."""
    unread: list[tuple[Info, Test]] = []
    for info in infos:
        if isinstance(info._status, Pending):
            unread += [(info, test) for test in info._status.tests]
            object.__setattr__(info, "_status", info._status.status)
    groups: dict[str, list[tuple[Info, Test]]] = {}
    for info, test in (*unread, *unread_statuses(infos)):
        xp: Any = backends.namespace_of(test.arrays[0])
        device = f"{xp.name} {xp.device_of(test.arrays[0])}"
        groups.setdefault(device, []).append((info, test))
    for group in groups.values():
        for (info, _), status in zip(group, ask([test for _, test in group])):
            known = info._status if isinstance(info._status, int) else Status.SUCCESS
            object.__setattr__(info, "_status", max(Status(known), status))
