"""Run the examples of pages and modules: `python tests/docs/run.py docs/quickstart.md colinear.operators.dense`.

A page is one session: its ``python`` blocks run in order and share their names, its ``pycon`` blocks are doctests. All that is
given runs in one process: give one at a time where rules or operators that it defines would be in the way of another.
"""

from __future__ import annotations

import doctest
import importlib
import re
import sys
import textwrap
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


def blocks(text: str) -> Iterator[tuple[str, int, str]]:
    """The language of each block of Python of a page, the number of the line before its code, and its code."""
    for match in FENCE.finditer(text):
        if match["language"] in ("python", "pycon"):
            yield (
                match["language"],
                text.count("\n", 0, match.start("code")),
                textwrap.dedent(match["code"]),
            )


def run_page(path: Path) -> int:
    """Run a page; the number of examples that failed."""
    page = types.ModuleType(f"page_{path.stem}")
    sys.modules[page.__name__] = page  # classes that the page defines can then be pickled
    failures = 0
    for language, line, code in blocks(path.read_text(encoding="utf-8")):
        if language == "pycon":
            test = doctest.DocTestParser().get_doctest(code, vars(page), path.name, str(path), line)
            failures += doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False).failed
            vars(page).update(test.globs)
        else:
            exec(compile("\n" * line + code, str(path), "exec"), vars(page))
    return failures


def run_module(name: str) -> int:
    """Run the doctests of a module; the number of examples that failed."""
    return doctest.testmod(importlib.import_module(name), optionflags=FLAGS).failed


def main() -> None:
    warnings.simplefilter("error")
    # torch 2.13 uses what it deprecates itself when forward derivatives are first asked for.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)
    sys.exit(
        sum(
            run_page(Path(target)) if target.endswith(".md") else run_module(target)
            for target in sys.argv[1:]
        )
        > 0
    )


if __name__ == "__main__":
    main()
