"""The package says what it is: its long description, its addresses and its extras."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> dict:
    """What hatch_build.py defines, with a stand-in for hatchling, which only a build needs."""
    interface = types.ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = type("MetadataHookInterface", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    return runpy.run_path(str(ROOT / "hatch_build.py"))


def test_without_an_address_relative_links_become_text(hook: dict) -> None:
    text = "[here](docs/a.md#b), [there](https://example.org), [below](#c)"
    given = hook["without_relative_links"]
    assert given(text, None) == "here, [there](https://example.org), [below](#c)"


def test_with_an_address_relative_links_become_absolute(hook: dict) -> None:
    given = hook["without_relative_links"]("[here](docs/a.md#b)", "https://example.org/x/")
    assert given == "[here](https://example.org/x/blob/main/docs/a.md#b)"


def test_the_long_description_leads_nowhere_that_does_not_exist(hook: dict) -> None:
    readme = hook["Readme"]()
    readme.root = str(ROOT)
    metadata: dict = {"urls": PROJECT["urls"]}
    readme.update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    text = metadata["readme"]["text"]
    assert text.startswith("# colinear\n")
    assert not re.findall(r"\]\((?!https?://|#)[^)]*\)", text)


def test_all_brings_every_extra_of_a_user() -> None:
    extras = PROJECT["optional-dependencies"]
    # PETSc is left out: pip builds it from source, with MPI
    of_users = set(extras) - {"all", "demo", "test", "docs", "bench", "petsc"}
    (everything,) = extras["all"]
    assert set(re.findall(r"[\w-]+", everything.partition("[")[2])) == of_users


@pytest.mark.parametrize(
    "name",
    ["LICENSE", "CITATION.cff", "SECURITY.md", "SUPPORT.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"],
)
def test_what_a_public_project_has_is_there(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8").strip()


def test_the_citation_and_the_changelog_have_the_version() -> None:
    version = PROJECT["version"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in citation and "arXiv:2309.03060" in citation
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
