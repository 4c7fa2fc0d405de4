"""`demo`, `examples`, `bench`: the scripts of the repository, of its copy inside an installed
package."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from . import answers
from .answers import InputError
from .options import choose

PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Where the scripts are: beside `src` in a checkout, in `_gallery` of an installed package."""
    checkout = PACKAGE.parents[1]
    for parent in (PACKAGE / "_gallery", checkout):
        is_ours = parent is not checkout or (checkout / "pyproject.toml").exists()
        if is_ours and any((parent / name).glob("*.py")):
            return parent / name
    raise InputError(
        f"the {name} are not installed with this copy of colinear; they are in its repository"
    )


def scripts(name: str) -> dict[str, tuple[Path, str]]:
    """The scripts of a folder by name, each with the first line of its docstring; what they
    share is not one."""
    found = {}
    for path in sorted(folder(name).glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        if "__main__" not in text:
            continue
        words = ast.get_docstring(ast.parse(text)) or ""
        found[path.stem] = (path, words.splitlines()[0] if words else "")
    return found


def demo(options: argparse.Namespace) -> int:
    options.name = "demo"
    return examples(options)


def examples(options: argparse.Namespace) -> int:
    """List or run the examples, or as `bench` the benchmarks."""
    kind = "benchmarks" if options.command == "bench" else "examples"
    known = scripts(kind)
    if options.name is None:
        width = max(map(len, known))
        print("\n".join(f"{name:{width}}  {words}" for name, (_, words) in known.items()))
        return answers.SUCCESS
    path, _ = choose(options.command, options.name, known)
    rest = [argument for argument in options.rest if argument != "--"]
    draws = any(word.startswith(("--figure", "--picture")) for word in rest)
    _check_packages(path, always=kind == "examples" or draws)
    if options.small:
        text = path.read_text(encoding="utf-8")
        if "--small" in text or "gallery.options" in text:
            rest = ["--small", *rest]
        elif "--size" in text:
            rest = ["--size", "small", *rest]
    return run(path, rest)


bench = examples


# ------------------------------------------------------------------ what a script imports


def _check_packages(path: Path, always: bool) -> None:
    """Refuse to start a script that would end without its packages, perhaps after minutes of
    work."""
    missing = [root for root in sorted(needed(path, always)) if not _is_installed(root)]
    if missing:
        names = " ".join(
            f"'colinear[{EXTRAS[root]}]'" if root in EXTRAS else root for root in missing
        )
        raise ImportError(
            f"{path.stem} needs {' and '.join(missing)}, not installed here: pip install {names}"
        )


EXTRAS = {
    "matplotlib": "plot",
    "torch": "torch",
    "jax": "jax",
    "sklearn": "sklearn",
    "pyamg": "amg",
    "tqdm": "progress",
}


def needed(path: Path, always: bool, called: str | None = None) -> set[str]:
    """The packages that a script imports, and the modules beside it that it imports, outside of
    every `try`.

    `always`: whether what is imported inside functions counts as well, because the script calls
    them whatever its options are. `called`: the text of the script, where this is a module beside
    it: functions count that it names.
    """
    text = path.read_text(encoding="utf-8")
    tree, found = ast.parse(text), set()
    inner = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and always
    ]
    for scope in (tree, *(f for f in inner if called is None or f.name in called)):
        for module in _imports(scope):
            beside = path.parent.joinpath(*module.split(".")).with_suffix(".py")
            root = module.partition(".")[0]
            if beside.exists():
                found |= needed(beside, always, called or text)
            elif not (path.parent / root).is_dir() and root not in sys.stdlib_module_names:
                found.add(root)
    return found


def _imports(scope: ast.AST) -> Iterator[str]:
    """The modules imported in the body of a module or function: not in a `try`, nor in functions
    inside it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif not isinstance(
            node, (ast.Try, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
        ):
            waiting.extend(ast.iter_child_nodes(node))


def _is_installed(root: str) -> bool:
    try:
        return importlib.util.find_spec(root) is not None
    except (ImportError, ValueError):  # a finder that refuses, a module that was hidden
        return False


# ------------------------------------------------------------------ processes


def run(path: Path, arguments: list[str]) -> int:
    """Run a script in a process of its own, with this very package: 0, or 1 if it failed."""
    source = str(PACKAGE.parent)
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    sys.stdout.flush()
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    passed_on = (answers.SUCCESS, answers.USAGE, answers.INTERRUPTED)
    return done.returncode if done.returncode in passed_on else answers.UNCONVERGED
