"""Writes docs/rules.md, the table of all rules, from the rules that are registered: so it is true by construction.

python docs/rules_table.py            # writes it
python docs/rules_table.py --check    # fails if it is not up to date
"""

from __future__ import annotations

import sys
from pathlib import Path

import colinear
from colinear.dispatch.functions import Function
from colinear.dispatch.resolution import Rule, guard_name
from colinear.operators.base import LinearOperator

PAGE = Path(__file__).parent / "rules.md"

# The paper's Table 1: "x" has a rule, "o" follows from others.
PAPER_COLUMNS = "Diagonal Triangular Permutation Convolution Sparse Projection Sum Product Kronecker BlockDiag Block".split()
PAPER = {
    "inv": "xxxx..xxxxx",
    "eig": "xx.x.xx.xx.",
    "diag": "xxxxx.x..xx",
    "trace": "oooooxo.xoo",
    "exp": "o..o.o...o.",
    "slogdet": "ooxo.ooxoo.",
}

HEAD = """---
hide: [toc]
---

# Rules

<!-- Written by docs/rules_table.py from the registered rules: do not edit. -->

Which function knows a fast algorithm for which operator. A number counts the rules and leads to them. `solve` multiplies by `inv`;
`logdet` and `det` are read off `slogdet`, and the trace, where it has no rule of its own, off the diagonal. Rules apply at every
level of a tree, so a composition is as fast as its parts. `explain(function, A)` prints which are taken for A, their costs, and
why others are not.

Beside the number stands what Table 1 of the paper has there: \u25cf a rule, \u25cb a consequence of other rules.
"""


def functions() -> list[Function]:
    """The functions that have rules, in the order in which the package lists them."""
    found = (getattr(colinear, name) for name in colinear.__all__)
    return [f for f in found if isinstance(f, Function) and f.rules]


def operators() -> list[str]:
    found = ((name, getattr(colinear, name)) for name in colinear.__all__)
    return [
        n
        for n, x in found
        if isinstance(x, type) and issubclass(x, LinearOperator) and x is not LinearOperator
    ]


def by_operator(f: Function) -> dict[str, list[Rule]]:
    """The rules of a function by the operators that their patterns begin with, each rule once for an operator."""
    found: dict[str, list[Rule]] = {}
    for rule in f.rules:
        for part in rule.alternatives():
            rules = found.setdefault(
                "any operator" if part.pattern.cls is None else part.pattern.cls.__name__, []
            )
            if rule not in rules:
                rules.append(rule)
    return found


def cell(f: Function, operator: str, rules: list[Rule]) -> str:
    column = PAPER_COLUMNS.index(operator) if operator in PAPER_COLUMNS else None
    mark = PAPER[f.name][column] if f.name in PAPER and column is not None else "."
    link = (
        f"[{len({rule.name for rule in rules})}](#{f.name}-of-{operator.lower().replace(' ', '-')})"
        if rules
        else ""
    )
    return " ".join(filter(None, (link, {"x": "\u25cf", "o": "\u25cb", ".": ""}[mark])))


def text(rule: Rule) -> str:
    guard = f", when `{guard_name(rule)}`" if rule.when else ""
    return f"- **{rule.name}**, for `{rule.pattern!r}`{guard}: {rule.identity}"


def page() -> str:
    columns = [(f, by_operator(f)) for f in functions()]
    named = operators()
    others = sorted(
        {name for _, rules in columns for name in rules} - set(named) - {"any operator"}
    )
    rows = [*(name for name in named if any(name in rules for _, rules in columns)), *others]
    rows += ["any operator"] if any("any operator" in rules for _, rules in columns) else []
    lines = [
        HEAD,
        "",
        f"| | {' | '.join(f'`{f.name}`' for f, _ in columns)} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in rows:
        title = name if name == "any operator" else f"`{name}`"
        lines.append(
            f"| {title} | {' | '.join(cell(f, name, rules.get(name, [])) for f, rules in columns)} |"
        )
    for f, rules in columns:
        lines += ["", f"## {f.name}"]
        for name in rows:
            if name in rules:
                lines += ["", f"#### {f.name} of {name}", "", *map(text, rules[name])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/rules.md is not up to date: run python docs/rules_table.py")
