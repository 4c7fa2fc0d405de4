"""Functions with what they close over as arguments; for `torch.compile`, one repair of Dynamo
and one opaque operator."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import importlib.util
import operator
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from .arrays import is_floating

# Functions of torch with what they close over as arguments.
#
# Autograd reaches a tensor that a function closes over only through the operations of the function
# itself. Where a result has derivatives by a rule of its own (a solve, a spectrum), the rule must
# know the tensor. So a function is called once while all calls of torch are watched: tensors with
# derivatives that were not made there are what it closes over. Later calls run with others in
# their place.


MOST_OBJECTS = 300  # that are looked at before a function is called to see what it does

_PLAIN = (
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    slice,
    range,
    np.generic,
    np.ndarray,
    torch.dtype,
    torch.device,
)
_LIBRARIES = frozenset(
    "torch numpy scipy colinear builtins math cmath functools operator itertools typing".split()
)


def hoist(
    f: Callable, examples: Callable[[], Sequence[tuple]], axes: Any = ()
) -> tuple[Callable, tuple]:
    """A function g and tensors h with `g(*arguments, *h) = f(*arguments)`: h are those f closes
    over that have derivatives.

    Parameters
    ----------
    f : callable
        Where it closes over none of them, it is g itself, and h is empty. It is not called if that
        can be seen from it.
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
        fixed = hoisted(
            *pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (*arguments, *hidden))
        )
    if any(x.requires_grad for x in _tensors(fixed)):
        raise TypeError(
            f"{hoisted.__name__} closes over a tensor that requires gradients and hands it to "
            "what torch calls without saying so "
            "(a custom autograd.Function, say). Pass that tensor as parameters=(...), or close "
            "over its detach()."
        )
    return hoisted, hidden


class Hoisted:
    """A function of its arguments and of the tensors that it closed over, which others stand in
    for when it is called."""

    def __init__(self, f: Callable, hidden: tuple):
        self.__name__ = getattr(f, "__name__", type(f).__name__)
        self.f, self.hidden = f, hidden

    def __call__(self, *arguments: Any) -> Any:
        split = len(arguments) - len(self.hidden)
        others = zip(self.hidden, arguments[split:], strict=True)
        changed = {id(mine): other for mine, other in others if mine is not other}
        with _Substitution(changed) if changed else contextlib.nullcontext():
            return self.f(*arguments[:split])

    def __repr__(self) -> str:
        return f"<{self.__name__} of its arguments and {len(self.hidden)} tensors it closed over>"


class _Recorder(TorchFunctionMode):
    """Collects the tensors with derivatives that torch is called with, but for those that were
    given or made since."""

    def __init__(self, given: Any):
        super().__init__()
        self.known = {id(x): x for x in _tensors(given)}  # kept, lest another has its id
        self.hidden: dict[int, Any] = {}

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
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

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map(lambda x: self.others.get(id(x), x), (args, kwargs or {}))
        return function(*args, **kwargs)


def _has_derivatives(x: torch.Tensor) -> bool:
    """Whether autograd, forward mode or a transform of torch.func follows a tensor."""
    if x.requires_grad or _functorch.is_functorch_wrapped_tensor(x):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors in a tree, operators included."""
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _is_free(f: Any) -> bool:
    """Whether it can be seen that a function reaches no tensor with derivatives; False where
    that is not clear."""
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
    for kind, parts in _PARTS.items():
        if isinstance(value, kind):
            return parts(value)
    return tuple(value.leaves()) if hasattr(type(value), "_matmat") else None


_PARTS: dict[Any, Callable[[Any], Sequence[Any] | None]] = {
    torch.Tensor: lambda x: None if _has_derivatives(x) else (),
    tuple | list | set | frozenset: tuple,
    dict: lambda x: tuple(x.values()),
    functools.partial: lambda f: (f.func, f.args, f.keywords),
    types.FunctionType: lambda f: _inside_function(f),
    types.MethodType: lambda f: (f.__self__, f.__func__),
    types.BuiltinFunctionType | types.MethodWrapperType: lambda f: (
        () if isinstance(f.__self__, types.ModuleType) else (f.__self__,)
    ),
    types.ModuleType | type: lambda x: () if _is_of_library(x) else None,
    np.ufunc: lambda f: (),
}


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
    return set(code.co_names).union(
        *(_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    )


def _is_of_library(value: Any) -> bool:
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    return str(name).partition(".")[0] in _LIBRARIES


# One repair of `torch.compile`, without which it would multiply from the wrong side.
#
# While compiling, torch (2.13) hands `A @ x`, for an A that is no tensor, to `__torch_function__`
# as `Tensor.matmul(x, A)`: it swaps the two sides and then calls the reversed method, but its
# table of reversed methods leaves `@` out (`rskips` in `torch/_dynamo/variables/builtin.py`). That
# is the same call as for `x @ A`, so nobody could tell them apart afterwards. We add the missing
# entry, `Tensor.__rmatmul__`, as soon as that module is imported; importing it ourselves would
# cost a second or more.


_MODULE = "torch._dynamo.variables.builtin"


class _Watcher(importlib.abc.MetaPathFinder):
    """Waits for the import of one module and repairs it."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_repair(module: Any) -> None:
                execute(module)
                _repair()

            spec.loader.exec_module = execute_and_repair  # type: ignore[method-assign]
        return spec


def _table() -> dict[Any, Any]:
    """The compiler's reversed methods; nothing where it is not imported, or has no such table."""
    return getattr(sys.modules.get(_MODULE), "BUILTIN_TO_TENSOR_RFN_MAP", {})


def _repair() -> None:
    _table().setdefault(operator.matmul, torch.Tensor.__rmatmul__)


def sides_are_known() -> bool:
    """Whether the compiler tells `A @ x` from `x @ A`: its table has the entry."""
    return operator.matmul in _table()


sides_are_known._dynamo_marked_constant = True  # type: ignore[attr-defined]  # traced code calls it once

if _MODULE in sys.modules:
    _repair()
else:
    sys.meta_path.insert(0, _Watcher())


# One operator of torch, `colinear::call`, for what `torch.compile` must not trace: a loop whose
# length depends on values.
#
# The compiler sees a single node, which runs Python when the program runs. What it runs, and how
# that is differentiated, is a `Call` in a table; the node holds its number.


class Call(NamedTuple):
    """What the operator does.

    Attributes
    ----------
    run : callable
        `run(arrays)`, a list of new arrays.
    like : callable
        `like(arrays)`, arrays without values of the shapes and dtypes of those that `run` gives.
    attach : callable
        `attach(arrays, first)`, the first array that `run` gave, with its derivatives with respect
        to `arrays`; the others have none.
    """

    run: Callable[[Sequence[Any]], list[Any]]
    like: Callable[[Sequence[Any]], list[Any]]
    attach: Callable[[Sequence[Any], Any], Any]


CALLS: list[Call] = []


def add_call(run: Callable, like: Callable, attach: Callable) -> int:
    """The number by which `call_opaquely` knows these functions; see `Call`."""
    CALLS.append(Call(run, like, attach))
    return len(CALLS) - 1


def call_opaquely(number: int, arrays: Sequence[Any]) -> list[Any]:
    """What the call of this number makes of the arrays, as one node of a compiled program."""
    return list(torch.ops.colinear.call(list(arrays), number))


@torch.library.custom_op(
    "colinear::call", mutates_args=(), schema="(Tensor[] arrays, int number) -> Tensor[]"
)
def _call(arrays: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    with torch.no_grad():
        return CALLS[number].run(arrays)


@_call.register_fake
def _(arrays: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    return CALLS[number].like(arrays)


@torch.library.custom_op(
    "colinear::pull",
    mutates_args=(),
    schema="(Tensor[] arrays, Tensor first, Tensor cotangent, int number) -> Tensor[]",
)
def _pull(
    arrays: Sequence[torch.Tensor], first: torch.Tensor, cotangent: torch.Tensor, number: int
) -> list[torch.Tensor]:
    def pull() -> list[torch.Tensor]:
        held = [x.detach().requires_grad_(is_floating(x)) for x in arrays]
        moving = [x for x in held if x.requires_grad]
        with torch.enable_grad():
            result = CALLS[number].attach(held, first.detach())
            found = iter(torch.autograd.grad(result, moving, cotangent, materialize_grads=True))
        return [next(found).clone() if x.requires_grad else torch.zeros_like(x) for x in held]

    # Inside an operator nothing is recorded in its own thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(pull).result()


@_pull.register_fake
def _(
    arrays: Sequence[torch.Tensor], first: torch.Tensor, cotangent: torch.Tensor, number: int
) -> list[torch.Tensor]:
    return [torch.empty_like(x) for x in arrays]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    arrays, ctx.number = inputs
    ctx.save_for_backward(*arrays, output[0])


def _back(ctx: Any, cotangents: Any) -> tuple[Any, None]:
    *arrays, first = ctx.saved_tensors
    parts = torch.ops.colinear.pull(arrays, first, cotangents[0], ctx.number)
    return [part if is_floating(x) else None for x, part in zip(arrays, parts, strict=True)], None


_call.register_autograd(_back, setup_context=_keep)


def opaque(like: Callable) -> Callable[[Callable], Callable]:
    """Make of a function `f(*arrays) -> array or tuple`, with derivatives of its own, one node of a
    compiled program; `like(*arrays)` has the shapes and dtypes of its answers."""

    def decorate(f: Callable) -> Callable:
        def as_list(found: Any) -> list[Any]:
            return list(found) if isinstance(found, tuple) else [found]

        number = add_call(
            lambda arrays: as_list(f(*arrays)),
            lambda arrays: as_list(like(*arrays)),
            lambda arrays, first: as_list(f(*arrays))[0],
        )

        @functools.wraps(f)
        def wrapped(*arrays: Any) -> Any:
            if not torch.compiler.is_compiling():
                return f(*arrays)
            found = call_opaquely(number, arrays)
            return found[0] if len(found) == 1 else tuple(found)

        return wrapped

    return decorate
