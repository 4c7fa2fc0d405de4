"""For the build of the package: its long description is README.md, with links that work outside of a checkout.

A relative link leads nowhere on the page of a package index. If `[project.urls]` in pyproject.toml
has a `Source`, the links become absolute below it. As long as it has none, the text of a link is
kept, and the link is dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?!https?://|#)(?P<target>[^)\s]+)\)")


def without_relative_links(text: str, source: str | None) -> str:
    """The text with absolute links below the address of the sources, or without links where that is not known."""
    if source is None:
        return RELATIVE_LINK.sub(lambda link: link["text"], text)
    base = source.rstrip("/") + "/blob/main/"
    return RELATIVE_LINK.sub(lambda link: f"[{link['text']}]({base}{link['target']})", text)


class Readme(MetadataHookInterface):
    """Gives the project its `readme`, which pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": without_relative_links(text, source),
        }
