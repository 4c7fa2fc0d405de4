"""The docs are true: every example runs, every table agrees with the code, every link leads somewhere."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown.extensions.toc import slugify

import colinear
from colinear.dispatch.functions import Function
from colinear.operators.base import LinearOperator
from colinear.operators.tree import own_fields

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
MODULES = sorted(module.name for module in pkgutil.walk_packages(colinear.__path__, "colinear."))
if importlib.util.find_spec("sklearn") is None:  # an extra: what needs it is left out
    MODULES = [module for module in MODULES if not module.startswith("colinear.estimators")]
    PAGES.remove(DOCS / "estimators.md")
if importlib.util.find_spec("triton") is None:  # which comes with torch's builds for CUDA
    MODULES.remove("colinear.backends.torch.radial_kernels")


def run(*command: str, cwd: Path = ROOT, seconds: float = 300) -> str:
    """Run a command with the package on its path, in a process of its own, and return what it prints."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "MPLBACKEND": "Agg",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ------------------------------------------------------------------ examples


@pytest.fixture(scope="module")
def failures() -> dict[str, str] | None:
    """What the pages print whose examples fail, each run in a fork of one process; None without forks."""
    if sys.platform != "linux":
        return None
    return json.loads(run("tests/docs/run.py", "--apart", *map(str, PAGES), seconds=1800))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_examples_of_a_page_run(page: Path, failures: dict[str, str] | None) -> None:
    if failures is None:
        run("tests/docs/run.py", str(page))
    else:
        assert str(page) not in failures, failures[str(page)][-6000:]


def test_the_examples_of_the_docstrings_run() -> None:
    run("tests/docs/run.py", "colinear", *MODULES)


def test_the_demo_runs(tmp_path: Path) -> None:
    run("-W", "error", str(ROOT / "examples/demo.py"), "--small", cwd=tmp_path)


def public(kind: type) -> dict[str, object]:
    return {
        key: value for key in colinear.__all__ if isinstance(value := getattr(colinear, key), kind)
    }


OPERATORS = {
    key: cls
    for key, cls in public(type).items()
    if issubclass(cls, LinearOperator) and cls is not LinearOperator
}
FUNCTIONS = public(Function)


@pytest.mark.parametrize("key", [*OPERATORS, *FUNCTIONS, *public(type(lambda: None))])
def test_a_public_operator_or_function_has_an_example(key: str) -> None:
    assert ">>> " in (getattr(colinear, key).__doc__ or ""), (
        f"colinear.{key} has no example in its docstring"
    )


# ------------------------------------------------------------------ tables


def rows(page: str) -> Iterator[dict[str, str]]:
    """The rows of all tables of a page: cells by the heading of their column."""
    heads: list[str] = []
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            heads = []
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not heads:
            heads = cells
        elif not line.startswith("| ---"):
            yield dict(zip(heads, cells, strict=True))


def calls(page: str, heading: str) -> dict[str, dict[str, str]]:
    """The rows of the tables whose first column has this heading and holds calls, by the name that is called."""
    return {row[heading].strip("`").partition("(")[0]: row for row in rows(page) if heading in row}


def signature(named: str, call: object, *left_out: str) -> str:
    """`name(a, b=1)` in backticks: a signature without types."""
    parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
    bare = [p.replace(annotation=p.empty) for p in parameters if p.name not in left_out]
    return f"`{named}{inspect.Signature(bare)}`"


def test_the_table_of_operators_lists_every_operator() -> None:
    assert set(calls("operators.md", "constructor")) == set(OPERATORS) | {"Opaque"}


@pytest.mark.parametrize("key", sorted(OPERATORS))
def test_the_table_of_operators_agrees_with_the_code(key: str) -> None:
    cls, row = OPERATORS[key], calls("operators.md", "constructor")[key]
    assert row["constructor"] == signature(key, cls)
    stored = re.findall(r"\w+", row["stores"])
    assert stored == [field for field in cls._fields if field in stored], (
        "in the order of the fields"
    )
    of_arrays = {
        name
        for name, a in own_fields(cls).items()
        if re.search("Array|Scalar|LinearOperator|Any", a)
    }
    assert of_arrays <= set(stored), "all that may hold arrays"


def test_the_table_of_functions_lists_every_function() -> None:
    assert set(calls("functions.md", "function")) == set(FUNCTIONS)


@pytest.mark.parametrize("key", sorted(FUNCTIONS))
def test_the_table_of_functions_agrees_with_the_code(key: str) -> None:
    # what every function takes is said once, above the tables
    every = (
        "method",
        "info",
        "on_failure",
    )
    assert calls("functions.md", "function")[key]["function"] == signature(
        key, FUNCTIONS[key], *every
    )


def test_the_table_of_methods_agrees_with_the_code() -> None:
    methods = public(type)
    methods = {
        key: cls
        for key, cls in methods.items()
        if getattr(cls, "_is_method", False) and key != "Method"
    }
    written = calls("functions.md", "method")
    assert {key: row["method"] for key, row in written.items()} == {
        key: signature(key, cls) for key, cls in methods.items()
    }


def test_the_table_of_statuses_agrees_with_the_code() -> None:
    heads = ("status", "failure", "meaning", "remedy")
    values = [
        (f"`{s.name}`", "yes" if s.is_failure else "no", s.meaning, s.remedy)
        for s in colinear.Status
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in values)
    written = [row for row in rows("explain.md") if "status" in row]
    assert written == [dict(zip(heads, cells)) for cells in values], (
        f"the table in docs/explain.md should be:\n{table}"
    )


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.md"))
    missing = [
        key
        for key in colinear.__all__
        if not key.startswith("__") and not re.search(rf"\b{key}\b", reference)
    ]
    assert missing == [], "no page of docs/api/ mentions these"


# ------------------------------------------------------------------ links and the site


def headings(text: str) -> set[str]:
    """The anchors that the headings of a page get."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {
        slugify(re.sub(r"[`*]", "", title), "-")
        for title in re.findall(r"^#+ (.+)$", outside, flags=re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name} links to {target}, which does not exist"
        assert not anchor or anchor in headings(file.read_text(encoding="utf-8")), (
            f"{page.name}: no heading for {target}"
        )


def test_a_page_on_the_api_is_in_its_overview() -> None:
    overview = (DOCS / "api.md").read_text(encoding="utf-8")
    assert [
        page.name for page in (DOCS / "api").glob("*.md") if f"(api/{page.name})" not in overview
    ] == []


def test_the_public_names_of_the_modules_outside_the_core_are_in_the_reference() -> None:
    for module in ("gp", "signals", "testing"):
        text = (DOCS / "api" / f"{module}.md").read_text(encoding="utf-8")
        names = importlib.import_module(f"colinear.{module}").__all__
        assert [n for n in names if not re.search(rf"^::: .*\.{n}$", text, re.MULTILINE)] == []


def test_the_site_builds_without_a_warning_and_is_found_by_what_people_search(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mkdocstrings")
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    run("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    titles = " ".join(entry["title"].lower() for entry in index["docs"])
    assert all(word in titles for word in ("install", "slow", "woodbury"))
    assert (tmp_path / "mathjax" / "tex-chtml.js").exists()
    typeset = (tmp_path / "formulas" / "index.html").read_text(encoding="utf-8")
    assert 'class="arithmatex"' in typeset and "../mathjax/tex-chtml.js" in typeset
    hosts = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="https?://', re.IGNORECASE)
    assert [
        str(page)
        for page in tmp_path.rglob("*.html")
        if hosts.search(page.read_text(encoding="utf-8"))
    ] == [], "the site works offline"
