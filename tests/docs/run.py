"""Run the examples of pages and modules: `python tests/docs/run.py docs/quickstart.md colinear.operators.dense`.

A page is one session: its ``python`` blocks run in order and share their names, its ``pycon`` blocks are doctests. With `--apart`
each runs in a process of its own, so that no rule or operator of one is in the way of another.
"""

from __future__ import annotations

import doctest
import gc
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import textwrap
import traceback
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.compiling import collect_rarely, share_contexts

SECONDS = 300  # that one page or module may take

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


def warnings_are_errors() -> None:
    """Let this process raise what is warned of."""
    warnings.simplefilter("error")
    # torch 2.13 uses what it deprecates itself when forward derivatives are first asked for.
    warnings.filterwarnings("ignore", "`torch.jit.script", DeprecationWarning)


def run(targets: list[str]) -> int:
    """Run pages and modules, with warnings as errors; the number of examples that failed."""
    warnings_are_errors()
    return sum(
        run_page(Path(target)) if target.endswith(".md") else run_module(target)
        for target in targets
    )


def run_apart(targets: list[str]) -> dict[str, str]:
    """Run each page or module in a fork of this process, which imports the package and the frameworks once; what
    those print that fail."""
    frameworks = [name for name in ("torch", "jax") if importlib.util.find_spec(name)]
    for framework in frameworks:
        importlib.import_module(framework)
    share_contexts()
    warnings_are_errors()  # as where a page imports the package
    for framework in frameworks:
        importlib.import_module(f"colinear.backends.{framework}")
    gc.freeze()  # a fork that looked through what it shares with this process would copy it
    # This process has imported JAX and computed nothing, so it has no threads yet.
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
    failed = {}
    for target in targets:
        with tempfile.TemporaryFile("w+") as printed:
            sys.stdout.flush()
            child = os.fork()
            if not child:
                run_child(target, printed.fileno())
            if os.waitpid(child, 0)[1]:
                printed.seek(0)
                failed[target] = printed.read()
    return failed


def run_child(target: str, output: int) -> NoReturn:
    """Run one page or module and leave the process."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.alarm(SECONDS)
    code = 1
    try:
        code = int(run([target]) > 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    collect_rarely()
    targets = sys.argv[1:]
    if targets[0] == "--apart":
        json.dump(run_apart(targets[1:]), sys.stdout)
    else:
        sys.exit(run(targets) > 0)


if __name__ == "__main__":
    main()
