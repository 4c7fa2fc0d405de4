"""For `mkdocs build`: puts MathJax beside the pages, so that formulas are typeset without a host elsewhere.

The files come from a package of Python, `sphinx-mathjax-offline`, of which nothing but these files is used. So the build needs no
network, the site works offline, and no copy of MathJax is kept in this repository.
"""

from __future__ import annotations

import logging
import shutil
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

PACKAGE = "sphinx-mathjax-offline"
NEEDED = ("tex-chtml.js", "output/chtml/fonts/woff-v2")  # one program, and the fonts that it loads


def on_post_build(config: Any) -> None:
    """Copy MathJax into the site, at the place that `extra_javascript` in mkdocs.yml names."""
    try:
        found = distribution(PACKAGE).locate_file(f"{PACKAGE}/static/mathjax")
    except PackageNotFoundError:
        logging.getLogger("mkdocs.hooks.mathjax").warning(
            "formulas will not be typeset: %s is not installed. Run pip install '.[docs]'.", PACKAGE
        )
        return
    source, target = Path(str(found)), Path(config["site_dir"]) / "mathjax"
    for name in NEEDED:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / name, target / name)
