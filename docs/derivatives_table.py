"""Writes the table in docs/derivatives.md, functions x modes x frameworks, from the cases that tests/autodiff runs: so it is true.

python docs/derivatives_table.py            # writes it
python docs/derivatives_table.py --check    # fails if it is not up to date

The cases are the module tests/support/derivative_cases.py: `CASES`, by name, each with the frameworks
it is for (`only`) and the modes that are refused (`without`); `MODES` of each framework; `REFUSALS`,
by pairs of a name and a framework, or "*" for all; and `APART`, what has tests of its own, by name and
framework the modes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "derivatives.md"
CASES = ROOT / "tests" / "support" / "derivative_cases.py"
FIRST, LAST = "<!-- Written by docs/derivatives_table.py", "<!-- end -->"


def covered() -> list[tuple[str, str, str]]:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]
    specification = importlib.util.spec_from_file_location("autodiff_cases", CASES)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    spelt = {"torch": "torch", "jax": "JAX"}
    cases = [
        (name, mode, spelt[framework])
        for name, case in module.CASES.items()
        for framework, modes in module.MODES.items()
        for mode in modes
        if (not case.only or framework in case.only) and mode not in case.without
        and not {(name, framework), (name, "*")} & set(module.REFUSALS)
    ]  # fmt: skip
    apart = module.APART.items()
    return cases + [
        (name, mode, spelt[kind])
        for name, modes in apart
        for kind, some in modes.items()
        for mode in some
    ]


def table(triples: Iterable[tuple[str, str, str]]) -> str:
    triples = list(triples)
    functions, modes = (list(dict.fromkeys(triple[i] for triple in triples)) for i in (0, 1))
    found = set(triples)
    lines = [f"| function | {' | '.join(modes)} |", "| --- |" + " --- |" * len(modes)]
    for function in functions:
        cells = (
            ", ".join(name for name in ("torch", "JAX") if (function, mode, name) in found)
            for mode in modes
        )
        lines.append(f"| `{function}` | {' | '.join(cells)} |")
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def page(text: str, triples: Iterable[tuple[str, str, str]]) -> str:
    """The page with the table between its two marks."""
    start = text.index("\n", text.index(FIRST)) + 1
    return text[:start] + "\n" + table(triples) + "\n\n" + text[text.index(LAST, start) :]


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    after = page(before, covered())
    if "--check" not in sys.argv:
        PAGE.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit("docs/derivatives.md is not up to date: run python docs/derivatives_table.py")
