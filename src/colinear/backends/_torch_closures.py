"""Functions of torch with what they close over as arguments.

Autograd reaches a tensor that a function closes over only through the operations of the function itself. Where a result has derivatives
by a rule of its own (a solve, a spectrum), the rule must know the tensor. So a function is called once while all calls of torch are
watched: tensors with derivatives that were not made there are what it closes over. Later calls run with others in their place.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

MOST_OBJECTS = 300  # that are looked at before a function is called to see what it does

_PLAIN = (int, float, complex, str, bytes, type(None), type(...), slice, range, np.generic, np.ndarray, torch.dtype, torch.device)
_LIBRARIES = {"torch", "numpy", "scipy", "colinear", "builtins", "math", "cmath", "functools", "operator", "itertools", "typing"}


def hoist(f: Callable, examples: Callable[[], Sequence[tuple]], axes: Any = ()) -> tuple[Callable, tuple]:
    """A function g and tensors h with `g(*arguments, *h) = f(*arguments)`: h are those f closes over that have derivatives.

    Parameters
    ----------
    f : callable
        Where it closes over none of them, it is g itself, and h is empty. It is not called if that can be seen from it.
    examples : callable
        Gives tuples of arguments; f is called with the first, and what it raises is raised here.
    axes
        Not needed: f takes arguments of any shape.
    """
    if torch.compiler.is_compiling() or _is_free(f):
        return f, ()
    arguments = examples()[0]
    with torch.enable_grad(), _Recorder(arguments) as recorder:
        f(*arguments)
    hidden = tuple(recorder.hidden.values())
    if not hidden:
        return f, ()
    hoisted = Hoisted(f, hidden)
    with torch.enable_grad():
        fixed = hoisted(*_map(torch.Tensor.detach, arguments), *(x.detach() for x in hidden))
    if any(x.requires_grad for x in _tensors(fixed)):
        raise TypeError(
            f"{hoisted.__name__} closes over a tensor that requires gradients and hands it to what torch calls without saying so "
            "(a custom autograd.Function, say). Pass that tensor as parameters=(...), or close over its detach()."
        )
    return hoisted, hidden


class Hoisted:
    """A function of its arguments and of the tensors that it closed over, which others stand in for when it is called."""

    def __init__(self, f: Callable, hidden: tuple):
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self.f, self.hidden = f, hidden

    def __call__(self, *arguments: Any) -> Any:
        split = len(arguments) - len(self.hidden)
        given = arguments[split:]
        if all(mine is other for mine, other in zip(self.hidden, given, strict=True)):
            return self.f(*arguments[:split])
        with _Substitution(dict(zip(map(id, self.hidden), given, strict=True))):
            return self.f(*arguments[:split])

    def __repr__(self) -> str:
        return f"<{self.__name__} of its arguments and {len(self.hidden)} tensors it closed over>"


class _Recorder(TorchFunctionMode):
    """Collects the tensors with derivatives that torch is called with, but for those that were given or made since."""

    def __init__(self, given: Any):
        super().__init__()
        self.known = {id(x): x for x in _tensors(given)}  # kept, lest another has its id
        self.hidden: dict[int, Any] = {}

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for x in _tensors((args, kwargs)):
            if id(x) not in self.known and _has_derivatives(x):
                self.hidden[id(x)] = x
        found = function(*args, **(kwargs or {}))
        for x in _tensors(found):
            if id(x) not in self.hidden:
                self.known[id(x)] = x
        return found


class _Substitution(TorchFunctionMode):
    """Hands torch other tensors in place of some, which are known by their ids."""

    def __init__(self, others: dict[int, Any]):
        super().__init__()
        self.others = others

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = _map(lambda x: self.others.get(id(x), x), (args, kwargs or {}))
        return function(*args, **kwargs)


def _has_derivatives(x: torch.Tensor) -> bool:
    """Whether autograd, forward mode or a transform of torch.func follows a tensor."""
    if x.requires_grad or _functorch.is_functorch_wrapped_tensor(x):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif hasattr(type(value), "_matmat"):
        yield from _tensors(list(value.leaves()))


def _map(f: Callable, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return f(value)
    if type(value) in (tuple, list):
        return type(value)(_map(f, item) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(f, item) for item in value))
    if type(value) is dict:
        return {key: _map(f, item) for key, item in value.items()}
    return value._map(lambda x: _map(f, x)) if hasattr(type(value), "_matmat") else value


def _is_free(f: Any) -> bool:
    """Whether it can be seen that a function reaches no tensor with derivatives; False where that is not clear."""
    waiting, seen = [f], set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        inside = _inside(value)
        if inside is None or len(seen) > MOST_OBJECTS:
            return False
        waiting.extend(inside)
    return True


def _inside(value: Any) -> Sequence[Any] | None:
    """What a value is made of, or None where that is not known."""
    if isinstance(value, torch.Tensor):
        return None if _has_derivatives(value) else ()
    if isinstance(value, (tuple, list, set, frozenset)):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(value.values())
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.FunctionType):
        return _inside_function(value)
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
        return () if isinstance(value.__self__, types.ModuleType | None) else (value.__self__,)
    if isinstance(value, (types.ModuleType, type)):
        return () if _is_of_library(value) else None
    if hasattr(type(value), "_matmat"):
        return tuple(value.leaves())
    return () if isinstance(value, (np.ufunc, torch.Size)) else None


def _inside_function(f: types.FunctionType) -> Sequence[Any]:
    inside = [f.__defaults__, f.__kwdefaults__]
    for cell in f.__closure__ or ():
        try:
            inside.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    if not _is_of_library(f):
        inside += [f.__globals__[name] for name in _names(f.__code__) if name in f.__globals__]
    return inside


def _names(code: types.CodeType) -> set[str]:
    """The names of globals (and attributes) in a function and those defined in it."""
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _is_of_library(value: Any) -> bool:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(name).partition(".")[0] in _LIBRARIES
