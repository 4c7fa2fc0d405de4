"""What type checkers and `help` see: signatures, results by their types, and mistakes that must be found."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import colinear as co

REPOSITORY = Path(__file__).parent.parent
# Stands for Tensor and jax.Array: the real ones would cost a checker a minute.
PREAMBLE = """\
from typing import Any, assert_type
import numpy as np
import colinear as co

class Tensor:
    shape: tuple[int, ...]
    mT: Any
    itemsize: int

class Shift(co.LinearOperator):
    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.n)

    def _matmat(self, X: Any) -> Any:
        return X

M, b, t = np.eye(3), np.ones(3), Tensor()
A = co.Kronecker(M, co.Diagonal([1.0, 2.0]))
"""

RIGHT = """\
assert_type(A, co.LinearOperator)
assert_type(co.Dense(M), co.Dense)
assert_type(co.PSD(co.Dense(M)), co.Dense)
assert_type(co.PSD(M), co.LinearOperator)
assert_type(2 * A + co.PSD(M) @ A.T - A / 3, co.LinearOperator)
assert_type(A.T.H.conj().to("torch").double().detach(), Any)
assert_type(A @ t, Tensor)
assert_type(A.solve(t), Tensor)
assert_type(A @ b, np.ndarray[Any, Any])
assert_type(co.solve(A, t), Tensor)
assert_type(co.solve(M, t, co.CG(tol=1e-8), info=True), tuple[Tensor, co.Info])
assert_type(co.solve(A, b), np.ndarray[Any, Any])
assert_type(co.solve(A, A), co.LinearOperator)
assert_type(co.inv(A, info=True), tuple[co.LinearOperator, co.Info])
assert_type(co.svd(A, 1), tuple[co.LinearOperator, Any, co.LinearOperator])
assert_type(Shift(3).n, int)
assert_type(co.explain(co.solve, A), co.Plan)
co.solve([[2.0, 1.0], [1.0, 2.0]], [1.0, 2.0], on_failure="raise")
co.eig(A, 1, "LA", co.Lanczos())
co.norm(A, 2), co.norm(A, "fro"), co.cond(A, 1), co.power(A, 0.5), co.apply(np.exp, A)

@co.rule(co.inv, co.Sum[Shift, co.Diagonal | co.Identity])
def inv_shift(A: Any, method: Any) -> Any:
    return A
"""

WRONG = """\
co.solve(A, b, metod=co.CG())
co.solve(A, b, method="cg")
co.solve(A)
co.solve("A", b)
co.solve(A, b, on_failure="rise")
co.solve(A, b, info=True).status
co.logdet(A, b)
co.eig(A, 1, "largest")
co.CG(tolerance=1e-3)
A.to_dens()
A.shape = (3, 3)
co.Identity("3")
Shift()
Shift("3")
co.Diagonal([1.0], [2.0])
co.inv(A).nosuch
"""


EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))


def run(checker: str, paths: list[Path], folder: Path) -> list[tuple[Path, int, str]]:
    """Return what the checker finds wrong in the files: path, number of the line, complaint."""
    command = [sys.executable, "-m", checker]
    options: dict[str, Any] = {"capture_output": True, "text": True, "cwd": REPOSITORY}
    if checker == "mypy":  # the settings of `make lint`, whose cache it reads
        environment = {**os.environ, "MYPYPATH": str(REPOSITORY / "src")}
        command += ["--no-error-summary", "--no-warn-unused-configs", "--allow-untyped-defs"]
        said = subprocess.run([*command, *map(str, paths)], env=environment, **options).stdout
        lines = [line.split(":", 2) for line in said.splitlines() if ": error:" in line]
        return [(REPOSITORY / path, int(line), text) for path, line, text in lines]
    settings = folder / "pyrightconfig.json"
    places = {
        "extraPaths": [str(REPOSITORY / name) for name in ("src", "examples")],
        "include": [str(path) for path in paths],
    }
    # What SciPy's source seems to say of its types is often wrong; and scripts bind names in loops.
    rules = {"useLibraryCodeForTypes": False, "reportPossiblyUnboundVariable": False}
    settings.write_text(json.dumps({"typeCheckingMode": "standard", **rules, **places}))
    command += ["--outputjson", "-p", str(settings), "--pythonpath", sys.executable]
    found = json.loads(subprocess.run(command, **options).stdout)["generalDiagnostics"]
    return [
        (Path(each["file"]), each["range"]["start"]["line"] + 1, each["message"])
        for each in found
        if each["severity"] == "error"
    ]


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_checkers_find_the_mistakes_and_nothing_else(checker: str, tmp_path: Path) -> None:
    """In the examples (those with torch apart, of which a checker would have to read all) and in
    two lists of lines, right and wrong."""
    pytest.importorskip(checker)
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(PREAMBLE + RIGHT)
    wrong.write_text(PREAMBLE + WRONG)
    examples = [path for path in EXAMPLES if "torch" not in path.read_text()]
    found = run(checker, [right, wrong, *examples], tmp_path)
    assert not [each for each in found if each[0].name != "wrong.py"]
    lines = wrong.read_text().splitlines()
    assert {lines[number - 1] for _, number, _ in found} == set(WRONG.splitlines())


def test_the_stub_is_what_the_functions_say_of_themselves() -> None:
    """`python docs/type_stubs.py` writes it anew."""
    spec = importlib.util.spec_from_file_location(
        "type_stubs", REPOSITORY / "docs" / "type_stubs.py"
    )
    assert spec is not None and spec.loader is not None
    stubs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stubs)
    assert stubs.TARGET.read_text() == stubs.written()


def test_help_shows_a_function() -> None:
    text = pydoc.plain(pydoc.render_doc(co.solve))
    assert "solve(A: 'LinearOperator', b: 'Any', method: 'Method | None' = None, *, " in text
    assert "Solve A x = b." in text and "Method resolution order" not in text
    assert inspect.isroutine(co.logdet)
    assert str(inspect.signature(co.inv)).endswith(
        "info: 'bool' = False, on_failure: 'str' = 'warn')"
    )


def test_a_function_in_a_class_is_not_bound() -> None:
    class Holder:
        solve = co.solve

    assert Holder().solve is Holder.solve is co.solve
