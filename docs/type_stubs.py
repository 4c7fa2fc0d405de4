"""The types of the public functions, for type checkers and editors: writes `functions/_types.pyi`.

    python docs/type_stubs.py            # writes the file; a test compares it with what this would write

A function is an object that is made at run time, so a checker sees no parameters. Here each gets a class
whose `__call__` has them: their names, defaults and annotations are those of the function itself; what it
returns stands in the table below, since a base case returns its `Choice`.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import colinear as co
import colinear.functions

TARGET = Path(colinear.functions.__file__).with_name("_types.pyi")

OPERATOR, ARRAY = "LinearOperator", "Array"
PAIR = f"tuple[{ARRAY}, {OPERATOR}]"
RESULTS: dict[str, str] = {
    **dict.fromkeys(
        "inv pinv nullspace exp log sqrt isqrt power apply cholesky transpose adjoint conj "
        "nystrom rp_cholesky range_finder".split(),
        OPERATOR,
    ),
    **dict.fromkeys("diag trace det logdet norm cond rank to_dense eigmax eigmin".split(), ARRAY),
    "factorize": "Factorized",
    "eig": PAIR,
    "slogdet": f"tuple[{ARRAY}, {ARRAY}]",
    "svd": f"tuple[{OPERATOR}, {ARRAY}, {OPERATOR}]",
    "lu": f"tuple[{OPERATOR}, {OPERATOR}, {OPERATOR}]",
    "qr": f"tuple[{OPERATOR}, {OPERATOR}]",
    "interpolative": f"tuple[{OPERATOR}, {ARRAY}]",
    "cur": f"tuple[{OPERATOR}, {ARRAY}, {ARRAY}]",
}
# What depends on the right side: an operator gives an operator, an array one of its framework. (NumPy's know
# their dtype, which the answer need not have.)
RIGHT_SIDES = {
    "LinearOperator": OPERATOR,
    "NumPyArray": "NumPyArray",
    "ArrayT": "ArrayT",
    "Other": ARRAY,
}
BY_RIGHT_SIDE = {"solve": "{}", "lstsq": "{}", "solve_and_logdet": f"tuple[{{}}, {ARRAY}]"}

TYPES = {
    "A": "Matrix",
    "method": "Method | None",
    "which": "Which",
    "p": "complex | Array",
    "ord": "Order",
    "f": "Callable[[Array], Array]",
    "on_failure": "OnFailure",
}
OWN_TYPES = {("cond", "p"): "Order"}

HEADER = '''\
"""Written by docs/type_stubs.py; do not edit.

Not in `__init__.pyi`: mypy, once it reads its cache, takes `colinear.functions.solve` for the folder of
that name.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

import numpy as np

from ..backends import Array
from ..dispatch import Function
from ..info import Info
from ..methods import Method
from ..operators import LinearOperator
from ..operators.protocols import ArrayT
from .factorisations.kept import Factorized

class HasShape(Protocol):
    """Arrays, sparse matrices and operators of all libraries."""

    @property
    def shape(self) -> Any: ...

Rows = Sequence[Sequence[complex]]
Matrix = LinearOperator | HasShape | Rows | Sequence[Rows]
Other = HasShape | Sequence[complex] | Rows
NumPyArray = np.ndarray[Any, Any]
Which = Literal["LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI", "BE"]
Order = complex | Literal["fro", "nuc"]
OnFailure = Literal["warn", "raise", "ignore"]
'''


def functions() -> dict[str, co.Function]:
    """Return the public functions by their names, `simplify` apart, which belongs to the operators."""
    return {
        name: f
        for name in co.__all__
        if isinstance(f := getattr(co, name), co.Function) and name != "simplify"
    }


def parameter(f: co.Function, p: inspect.Parameter) -> str:
    """Write a parameter with its type and default."""
    annotation = OWN_TYPES.get((f.name, p.name)) or TYPES.get(p.name) or str(p.annotation)
    default = "" if p.default is p.empty else f" = {p.default!r}".replace("'", '"')
    return f"{p.name}: {annotation}{default}"


def overloads(f: co.Function) -> list[str]:
    """Write `__call__` once for each kind of result: of the right side, with an Info and without."""
    parameters = list(inspect.signature(f).parameters.values())
    ordinary = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "info"]
    pattern = BY_RIGHT_SIDE.get(f.name)
    sides = RIGHT_SIDES if pattern else {"": RESULTS[f.name]}
    kinds = [
        (side, info, answer.format(pattern.format(result) if pattern else result))
        for side, result in sides.items()
        for info, answer in (("Literal[False] = False", "{}"), ("Literal[True]", "tuple[{}, Info]"))
    ]
    kinds.append((list(sides)[-1], "bool", "Any"))
    lines = []
    for i, (side, info, answer) in enumerate(kinds):
        header = ["self"]
        header += [f"b: {side}" if p.name == "b" else parameter(f, p) for p in ordinary]
        header += ["*", f"info: {info}", *(parameter(f, p) for p in keywords)]
        body = " ..." if i else f"\n        {docstring(f)}"
        lines += ["    @overload", f"    def __call__({', '.join(header)}) -> {answer}:{body}"]
    return lines


def docstring(f: co.Function) -> str:
    """Write the first sentence of what `help` shows."""
    return '"""' + " ".join((f.__doc__ or "").partition("\n\n")[0].split()) + '"""'


def written() -> str:
    """Write the whole file."""
    parts = [HEADER]
    for name, f in functions().items():
        parts += [f"class _{name}(Function):", *overloads(f), ""]
    parts += [f"{name}: _{name}" for name in functions()]
    names = ", ".join(f'"{name}"' for name in colinear.functions.__all__)
    return "\n".join([*parts, "", f"__all__ = [{names}]", ""])


if __name__ == "__main__":
    TARGET.write_text(written())
