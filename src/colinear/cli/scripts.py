"""`demo`, `examples`, `bench`: the scripts of the repository, of its copy inside an installed package."""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
from pathlib import Path

from . import codes
from .codes import InputError, UsageError

PACKAGE = Path(__file__).resolve().parents[1]


def folder(name: str) -> Path:
    """Where the scripts are: beside `src` in a checkout, in `_gallery` of an installed package."""
    for place in (PACKAGE / "_gallery" / name, PACKAGE.parents[1] / name):
        if (
            place.is_dir()
            and any(place.glob("*.py"))
            and (place.parent.name == "_gallery" or (place.parent / "pyproject.toml").exists())
        ):
            return place
    raise InputError(f"the {name} are not installed with this copy of colinear; they are in its repository")


def scripts(name: str) -> dict[str, tuple[Path, str]]:
    """The scripts of a folder by name, each with the first line of its docstring; what they share is not one."""
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
    return _list_or_run(options, "examples")


def bench(options: argparse.Namespace) -> int:
    return _list_or_run(options, "benchmarks")


def _list_or_run(options: argparse.Namespace, kind: str) -> int:
    known = scripts(kind)
    if options.name is None:
        width = max(map(len, known))
        print("\n".join(f"{name:{width}}  {words}" for name, (_, words) in known.items()))
        return codes.SUCCESS
    if options.name not in known:
        raise UsageError(f"{options.command} {options.name}: there is none of that name; choose from {', '.join(known)}")
    path, _ = known[options.name]
    rest = [argument for argument in options.rest if argument != "--"]
    return run(path, [*_smallness(path, options.small), *rest])


def _smallness(path: Path, small: bool) -> list[str]:
    if not small:
        return []
    text = path.read_text(encoding="utf-8")
    return ["--small"] if "--small" in text or "gallery.options" in text else ["--size", "small"] if "--size" in text else []


def run(path: Path, arguments: list[str]) -> int:
    """Run a script in a process of its own, with this very package: 0, or 1 if it failed."""
    source = str(PACKAGE.parent)
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    sys.stdout.flush()
    done = subprocess.run([sys.executable, str(path), *arguments], env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)})
    if done.returncode in (codes.USAGE, codes.INTERRUPTED) or done.returncode == 0:
        return done.returncode
    return codes.UNCONVERGED
