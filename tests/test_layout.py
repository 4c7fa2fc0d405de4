"""The shape of the source: arrows between packages, imports inside functions, sizes, and what three calls take."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "colinear"
LONGEST_FILE = 500  # lines
LARGEST_FOLDER = 40  # files
FILES = 211
DEFERRED = 15
FRAMEWORK_TESTS = 63

# A package may import those named beside it, and itself.
BASE = {"errors", "info", "status", "properties", "dispatch", "backends"}
ARROWS = {
    "errors": set(),
    "status": {"errors", "backends"},
    "info": {"errors", "status", "backends", "plotting"},
    "properties": {"errors", "backends", "dispatch", "operators"},
    "dispatch": BASE | {"explain"},
    "backends": {"errors", "operators"},  # operators: for `torch.nn.Module`s of them
    "operators": BASE | {"functions"},  # functions: for `A ** 2`
    "methods": BASE,
    "autodiff": BASE | {"operators", "methods"},
    "factors": BASE | {"operators", "methods", "autodiff"},
    "preconditioners": BASE | {"operators", "factors", "functions", "methods", "autodiff"},
    "functions": BASE
    | {"operators", "factors", "methods", "autodiff", "preconditioners", "explain"},
}


def packages_imported(path: Path) -> set[str]:
    """Return the packages and modules of the first level that a file imports."""
    inside = path.relative_to(SOURCE).parts[:-1]
    found = set()
    for node in _walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            start = inside[: len(inside) - (node.level - 1)]
            target = (*start, *(node.module or "").split(".")) if node.module else start
            found |= {target[0]} if target else {alias.name for alias in node.names}
    return found


def _walk(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node, without what only the type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _walk(node)


@pytest.mark.parametrize("package", ARROWS)
def test_arrows_between_packages_point_one_way(package: str) -> None:
    files = (
        [SOURCE / f"{package}.py"]
        if (SOURCE / f"{package}.py").exists()
        else sorted((SOURCE / package).rglob("*.py"))
    )
    wrong = {
        f"{path.relative_to(SOURCE).as_posix()} imports {name}"
        for path in files
        for name in packages_imported(path) - ARROWS[package] - {package}
    }
    assert not wrong


def test_files_are_short_and_folders_small() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    long = {
        path.relative_to(SOURCE).as_posix(): n
        for path in files
        if (n := len(path.read_text().splitlines())) > LONGEST_FILE
    }
    folders = {path.parent for path in files}
    crowded = {folder.name for folder in folders if len(list(folder.glob("*.py"))) > LARGEST_FOLDER}
    assert not long
    assert not crowded
    assert len(files) <= FILES


@pytest.fixture(scope="module")
def weight():  # type: ignore[no-untyped-def]
    """The counters of benchmarks/weight.py."""
    spec = importlib.util.spec_from_file_location("weight", REPOSITORY / "benchmarks" / "weight.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules["weight"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_few_imports_are_deferred_and_few_lines_ask_for_the_framework(weight) -> None:  # type: ignore[no-untyped-def]
    assert len(weight.deferred_imports()) <= DEFERRED, weight.deferred_imports()
    assert weight.tests_of_framework() <= FRAMEWORK_TESTS


def test_a_solve_by_woodbury_takes_few_frames(weight) -> None:  # type: ignore[no-untyped-def]
    frames = weight.woodbury()
    assert frames.count <= 250
    assert frames.files <= 27  # to reach: 22


def test_a_determinant_of_a_shifted_kronecker_product_takes_few_frames(weight) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("torch")
    assert weight.shifted_kronecker().count <= 361  # to reach: 220


def test_compiled_conjugate_gradients_take_few_frames_and_are_traced_once(weight) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("jax")
    found = weight.compiled_cg()
    assert found.frames <= 1100  # to reach: 450; the first call of a process resolves its rules too
    assert found.to_step <= 26  # to reach: 15
    assert (found.traces, found.gradient_traces) == (1, 2)
