"""The gallery shows every example, as it is, each on a page of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import gallery_pages  # noqa: E402

SCRIPTS = sorted({path.stem for path in (ROOT / "examples").glob("*.py")} - {"gallery"})


def test_the_gallery_lists_every_example() -> None:
    listed = [name for names in gallery_pages.examples().values() for name in names]
    assert sorted(listed) == SCRIPTS
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert all(f"(gallery/{name}.md)" in text for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_page_of_the_gallery_has_formulas_how_to_run_it_and_the_script(name: str) -> None:
    text = (ROOT / "docs" / "gallery" / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {gallery_pages.title(name)}\n")
    assert "\n$$\n" in text, f"docs/gallery_formulas.py has no formula of {name}"
    assert f"colinear examples {name}\n" in text
    assert f'--8<-- "examples/{name}.py"' in text and f'--8<-- "docs/figures/{name}.txt"' in text


def test_a_formula_that_the_docstring_does_not_have_is_an_error() -> None:
    with pytest.raises(SystemExit, match="bi_poisson has 2 formulas in its docstring and 1 in"):
        gallery_pages.typeset("bi_poisson", "a\n\n    x = y\n\nb\n\n    y = x")


def test_several_formulas_stand_one_below_the_other() -> None:
    assert gallery_pages.displayed("a") == "$$\na\n$$"
    assert r"a, \\[0.3em] b" in gallery_pages.displayed(r"a, \qquad b")


def test_the_gallery_is_up_to_date_and_its_pictures_are_small() -> None:
    assert gallery_pages.wrong() == []
