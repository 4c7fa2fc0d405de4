"""Methods that a user names: whether a rule may hand them to the parts it makes, and what is
said of names that are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import MethodError
from ..info import state
from .resolution import Rule

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
    if not rule.estimates and getattr(method, "is_stochastic", False):
        return f"it has no standard error, which {name} gives"
    uses = getattr(method, "runs_on", None)  # of a method that makes use of the structure itself
    return f"{name} takes A as a whole" if uses is not None and uses(A) else ""


def not_a_method(name: str, method: Any) -> MethodError:
    """The error for a method that is a class, a string or anything else that is no method
    object."""
    names = list(_method_names())
    given = (
        method.__name__ if isinstance(method, type) else method if isinstance(method, str) else None
    )
    close = next((n for n in names if isinstance(given, str) and n.lower() == given.lower()), None)
    if close is None and isinstance(method, type) and getattr(method, "_is_method", False):
        close = method.__name__
    advice = (
        f" Write {close}()."
        if close
        else f" Use one of {', '.join(n + '()' for n in names)}."
        if names
        else ""
    )
    what = f"the class {given}" if isinstance(method, type) else repr(method)
    return MethodError(
        f"{name}: method must be None or a method object such as Auto(), not {what}.{advice}"
    )


def not_an_argument(name: str, unknown: dict[str, Any], has_method: bool) -> TypeError:
    """The error for a keyword that the function does not have; where it is an option of methods,
    that is said."""
    option, value = next(iter(unknown.items()))
    text = f"{name}() got an unexpected keyword argument {option!r}."
    owners = _method_options(option) if has_method else ()
    if not owners:
        return TypeError(text)
    others = f" (so have {', '.join(owners[1:4])})" if len(owners) > 1 else ""
    shown = repr(value) if isinstance(value, (int, float, str)) else "..."
    return TypeError(
        f"{text} It is an option of methods: write method={owners[0]}({option}={shown}){others}."
    )
