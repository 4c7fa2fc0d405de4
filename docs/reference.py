"""For `mkdocs build`: three things that mkdocstrings, which reads the source and runs nothing, cannot see by itself.

The functions of colinear are objects, `solve = function("solve", base=...)`: each is shown as the function that it is, with its
signature and docstring. Operators have their constructor in `__new__`: it is shown as the signature of the class. And what has `@memo`
above it is an attribute, not a function to call.
"""

from __future__ import annotations

import inspect
from typing import Any

import griffe

import colinear
from colinear.dispatch.functions import Function

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


def described(f: Function) -> griffe.Function:
    """A function as the parser would have read it, had it been written with `def`."""
    parameters = [
        griffe.Parameter(
            p.name, kind=KINDS[p.kind], default=None if p.default is p.empty else repr(p.default)
        )
        for p in inspect.signature(f).parameters.values()
    ]
    function = griffe.Function(f.name, parameters=griffe.Parameters(*parameters))
    function.docstring = griffe.Docstring(inspect.cleandoc(f.__doc__ or ""), parent=function)
    return function


def is_memo(member: griffe.Function) -> bool:
    """Whether it is a property that is computed once: `@memo` above it."""
    return any(str(decorator.value).endswith("memo") for decorator in member.decorators)


class Colinear(griffe.Extension):
    """Makes functions of `Function` objects, constructors of `__new__`, and properties of memos."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Function) and is_memo(member):
                attribute = griffe.Attribute(name, docstring=member.docstring)
                attribute.labels.add("property")
                cls.set_member(name, attribute)
        made_by = cls.members.get("__new__")
        if isinstance(made_by, griffe.Function) and "__init__" not in cls.members:
            own = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
            parameters = griffe.Parameters(own, *list(made_by.parameters)[1:])
            cls.set_member("__init__", griffe.Function("__init__", parameters=parameters))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for name in colinear.__all__ if pkg.path == "colinear" else ():
            if isinstance(f := getattr(colinear, name), Function):
                pkg.set_member(name, described(f))
