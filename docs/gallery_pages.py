"""Writes docs/gallery.md and a page for each example, docs/gallery/NAME.md, from the scripts themselves.

python docs/gallery_pages.py                  # runs every example at its full size, keeps picture and output, writes the pages
python docs/gallery_pages.py demo bi_poisson  # runs these alone
python docs/gallery_pages.py --missing        # runs those that have no picture yet
python docs/gallery_pages.py --page           # runs none, writes the pages
python docs/gallery_pages.py --check          # fails if a page is not up to date, or a picture is missing or too large

Pictures and outputs are in docs/figures/: small files that are committed, so that the site is built without running anything.
Sources and outputs are included when the site is built, so the pages themselves change only with the docstrings. A formula is plain
text in a docstring; docs/gallery_formulas.py has it once more in LaTeX, for the page.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gallery_formulas import FORMULAS

ROOT = Path(__file__).resolve().parents[1]
PAGE, PAGES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery"
FIGURES = ROOT / "docs" / "figures"
LARGEST = 60_000  # bytes of a picture

# What belongs together, in the order in which it is shown. An example that is not here comes at the end.
GROUPS = {
    "First programs": "first_physics first_statistics first_torch first_jax first_signals",
    "Data": "demo principal_components ridge_regression gaussian_process multitask_process random_features spectral_clustering",
    "Physics": "hydrogen_atom minimal_surface bi_poisson neural_pde",
    "Signals": "total_variation",
    "Networks": "equivariant_layers second_order hessian_spectrum",
}

HEAD = """---
hide: [toc]
---

# Gallery

<!-- Written by docs/gallery_pages.py from the docstrings of examples/*.py: do not edit. -->

These are problems of data, physics and learning. Every experiment of the CoLA paper is among them. Each page has a short script to read
and to change, what it prints and what it draws.

Run one with `colinear examples NAME` after an installation, or with `python examples/NAME.py` in a checkout. `--small` makes it quick.
Each script says which rule or method was chosen, and checks what it found against theory or a dense computation. It looks for the real
data sets in the folder that `COLINEAR_DATA` names; without them it makes up rows of the same kind, and says so.
"""

TITLES = {
    "first_jax": "First program in JAX",
    "first_physics": "First program in physics",
    "first_signals": "First program in signals",
    "first_statistics": "First program in statistics",
    "first_torch": "First program in torch",
    "bi_poisson": "Bi-Poisson",
    "demo": "A million pixels",
    "neural_pde": "Neural PDE",
}


def examples() -> dict[str, list[str]]:
    """The names of all examples, by group."""
    there = sorted(
        path.stem for path in (ROOT / "examples").glob("[a-z]*.py") if path.stem != "gallery"
    )
    groups = {
        title: [name for name in names.split() if name in there] for title, names in GROUPS.items()
    }
    groups["More"] = [name for name in there if not any(name in names for names in groups.values())]
    return {title: names for title, names in groups.items() if names}


def title(name: str) -> str:
    return TITLES.get(name, name.replace("_", " ").capitalize())


def described(name: str) -> tuple[str, str]:
    """The first paragraph of the docstring, and the rest."""
    docstring = (
        ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")))
        or ""
    )
    first, _, rest = docstring.partition("\n\n")
    return " ".join(first.split()), rest


def displayed(formula: str) -> str:
    """A formula on a line of its own; several, apart by \\qquad, one below the other, since a phone is narrow."""
    if r"\qquad" in formula:
        lines = formula.replace(r" \qquad ", r" \\[0.3em] ")
        formula = f"\\begin{{gathered}}\n{lines}\n\\end{{gathered}}"
    return f"$$\n{formula}\n$$"


def typeset(name: str, text: str) -> str:
    """The text of a docstring with its indented formulas in LaTeX, and without its last lines, on how to run it."""
    paragraphs = [part for part in text.split("\n\n") if "python examples/" not in part]
    formulas = [displayed(formula) for formula in FORMULAS.get(name, [])]
    places = [i for i, part in enumerate(paragraphs) if part.startswith("    ")]
    if not places:  # the formulas are within its sentences
        return "\n\n".join([*formulas, *paragraphs])
    if len(places) != len(formulas):
        sys.exit(
            f"{name} has {len(places)} formulas in its docstring and {len(formulas)} in docs/gallery_formulas.py"
        )
    for place, formula in zip(places, formulas, strict=True):
        paragraphs[place] = formula
    return "\n\n".join(paragraphs)


def page(name: str) -> str:
    """The page of one example."""
    first, rest = described(name)
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    extras = [extra for extra in ("torch", "jax") if f"import {extra}\n" in source]
    wanted = ",".join([*extras, "plot"])
    return f"""# {title(name)}

<!-- Written by docs/gallery_pages.py from examples/{name}.py: do not edit. -->

**{first}**

![{title(name)}](../figures/{name}.png)

{typeset(name, rest)}

## Run it

```console
$ pip install 'colinear[{wanted}]'
$ colinear examples {name}
```

In a checkout, `python examples/{name}.py` does the same. `--small` makes it quick.

## What it prints

```text
--8<-- "docs/figures/{name}.txt"
```

## The script

``` {{ .python title="examples/{name}.py" }}
--8<-- "examples/{name}.py"
```

[Back to the gallery](../gallery.md)
"""


def overview() -> str:
    """The page with a thumbnail of each example."""
    lines = [HEAD]
    for group, names in examples().items():
        firsts = [described(name)[0].replace("|", "\\|") for name in names]
        cards = [
            f"- [![](figures/{name}.png)](gallery/{name}.md)\n\n"
            f"    **[{title(name)}](gallery/{name}.md)**\n\n    {first}\n"
            for name, first in zip(names, firsts, strict=True)
        ]
        # a list in a grid: mkdocs-material draws it as cards
        lines += [
            f'## {group}\n\n<div class="grid cards thumbnails" markdown>\n',
            *cards,
            "</div>\n",
        ]
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """All pages, by where they are kept."""
    names = [name for group in examples().values() for name in group]
    return {PAGE: overview()} | {PAGES / f"{name}.md": page(name) for name in names}


def run(name: str) -> None:
    """Run an example, keep what it prints and its picture."""
    print(f"{name} ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / f"{name}.png"
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "MPLBACKEND": "Agg"}
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--output", str(picture)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        FIGURES.mkdir(exist_ok=True)
        lines = [
            line.rstrip() for line in done.stdout.splitlines() if not line.startswith("picture: ")
        ]
        (FIGURES / f"{name}.txt").write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
        save_small(picture, FIGURES / f"{name}.png")


def save_small(picture: Path, place: Path) -> None:
    """The picture in 256 colours, and smaller where that is not enough."""
    from PIL import Image

    image = Image.open(picture).convert("RGB")
    for scale in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5):
        size = (round(scale * image.width), round(scale * image.height))
        reduced = image.resize(size, Image.Resampling.LANCZOS) if scale < 1 else image
        # Colours that cover the range: those of a thin line must not be lost to the many shades of an image.
        reduced.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            place, optimize=True
        )
        if place.stat().st_size <= LARGEST:
            return


def wrong() -> list[str]:
    """What is not as it should be."""
    found = [
        f"{path.relative_to(ROOT)} is not up to date: run python docs/gallery_pages.py --page"
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    found += [
        f"{path.relative_to(ROOT)} has no example: delete it"
        for path in PAGES.glob("*.md")
        if path not in pages()
    ]
    for name in (name for names in examples().values() for name in names):
        picture, output = (FIGURES / f"{name}.{kind}" for kind in ("png", "txt"))
        if not picture.exists() or not output.exists():
            found.append(
                f"{name} has no picture or output in docs/figures: run python docs/gallery_pages.py {name}"
            )
        elif picture.stat().st_size > LARGEST:
            found.append(f"docs/figures/{name}.png is larger than {LARGEST:,} bytes")
    return found


def main(arguments: list[str]) -> None:
    if "--check" in arguments:
        sys.exit("\n".join(wrong()) or 0)
    everything = [name for names in examples().values() for name in names]
    if "--missing" in arguments:
        arguments = [
            name
            for name in everything
            if not all((FIGURES / f"{name}.{kind}").exists() for kind in ("png", "txt"))
        ]
    elif "--page" in arguments:
        arguments = []
    elif not arguments:
        arguments = everything
    if unknown := set(arguments) - set(everything):
        sys.exit(
            f"no such example: {', '.join(sorted(unknown))}. There are: {', '.join(everything)}."
        )
    for name in arguments:
        run(name)
    PAGES.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
