"""The gallery shows every example, as it is."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import gallery_pages  # noqa: E402


def test_the_gallery_lists_every_example() -> None:
    listed = [name for names in gallery_pages.examples().values() for name in names]
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"gallery"}
    assert sorted(listed) == sorted(scripts)
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert all(f"### {gallery_pages.title(name)}\n" in text for name in scripts)


def test_the_gallery_is_up_to_date_and_its_pictures_are_small() -> None:
    assert gallery_pages.wrong() == []
