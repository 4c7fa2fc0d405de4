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

HEAD = """# Rules

<!-- Written by docs/rules_table.py from the registered rules: do not edit. -->

A rule is a formula for one function of one kind of operator. The tables show which function has rules for which operator: a number
counts them and leads to them. The rules apply at every level of a tree, so a composition is as fast as its parts.

`solve` multiplies by `inv`. `logdet` and `det` are read off `slogdet`. The trace, where it has no rule of its own, is the sum of the
diagonal. `explain(function, A)` prints which rules are taken for A, what they cost, and why others are not taken.

Beside the number stands what Table 1 of [the paper](paper.md) has there: \u25cf is a rule, \u25cb follows from other rules.
[The main formulas](formulas.md) has those that matter most, typeset.
"""

# The tables: no more columns than a phone shows. A function that is not here goes into the last.
TOPICS = {
    "Linear systems": "solve inv lstsq pinv nullspace",
    "Spectra": "eig svd norm cond rank",
    "Diagonal, trace, determinant": "diag trace det slogdet logdet",
    "Functions of a matrix": "exp log sqrt isqrt power apply",
    "Factorisations and others": "cholesky lu qr simplify",
}


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


def topics() -> dict[str, list[Function]]:
    """The functions that have rules, by the table that shows them."""
    found = {f.name: f for f in functions()}
    named = {
        title: [found.pop(n) for n in names.split() if n in found]
        for title, names in TOPICS.items()
    }
    named[list(named)[-1]] += found.values()
    return named


def table(columns: list[tuple[Function, dict[str, list[Rule]]]], rows: list[str]) -> list[str]:
    """The lines of one table; its headings are upright, which docs/style.css does for the class."""
    lines = [
        '<div class="counts" markdown>',
        "",
        f"| | {' | '.join(f'`{f.name}`' for f, _ in columns)} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in rows:
        cells = [cell(f, name, rules.get(name, [])) for f, rules in columns]
        if any(cells):
            title = name if name == "any operator" else f"`{name}`"
            lines.append(f"| {title} | {' | '.join(cells)} |")
    return [*lines, "", "</div>"]


def page() -> str:
    by_topic = {title: [(f, by_operator(f)) for f in fs] for title, fs in topics().items()}
    named = operators()
    seen = {name for columns in by_topic.values() for _, rules in columns for name in rules}
    others = sorted(seen - set(named) - {"any operator"})
    rows = [*named, *others, "any operator"]
    lines = [HEAD]
    for title, columns in by_topic.items():
        lines += ["", f"## {title}", "", *table(columns, rows)]
    for columns in by_topic.values():
        for f, rules in columns:
            lines += ["", f"## Rules of {f.name}"]
            for name in rows:
                if name in rules:
                    lines += ["", f"#### {f.name} of {name}", "", *map(text, rules[name])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        sys.exit("docs/rules.md is not up to date: run python docs/rules_table.py")
