"""Writes docs/gallery.md, the examples with what they print and draw, from the scripts themselves.

python docs/gallery_pages.py                  # runs every example at its full size, keeps picture and output, writes the page
python docs/gallery_pages.py demo bi_poisson  # runs these alone
python docs/gallery_pages.py --missing        # runs those that have no picture yet
python docs/gallery_pages.py --page           # runs none, writes the page
python docs/gallery_pages.py --check          # fails if the page is not up to date, or a picture is missing or too large

Pictures and outputs are in docs/figures/: small files that are committed, so that the site is built without running anything.
Sources and outputs are included when the site is built, so the page itself changes only with the docstrings.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gallery.md"
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

Problems of data, physics and learning, among them every experiment of the CoLA paper: each a short script to read and to change.
`python examples/NAME.py` runs one and saves its picture; `--small` takes seconds. Each says which rule or
method was chosen, and checks what it found against theory or a dense computation. The real data sets are found by `COLINEAR_DATA`; without
them, rows of the same kind are made up.
"""


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
    return name.replace("_", " ").capitalize()


def described(name: str) -> tuple[str, str]:
    """The first paragraph of the docstring, and the rest."""
    docstring = (
        ast.get_docstring(ast.parse((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")))
        or ""
    )
    first, _, rest = docstring.partition("\n\n")
    return " ".join(first.split()), rest


def section(name: str) -> str:
    first, rest = described(name)
    return f"""### {title(name)}

**{first}**

![{title(name)}](figures/{name}.png)

{rest}

??? example "What it prints"

    ```text
    --8<-- "docs/figures/{name}.txt"
    ```

??? abstract "examples/{name}.py"

    ``` {{ .python }}
    --8<-- "examples/{name}.py"
    ```
"""


def page() -> str:
    groups = examples()
    lines = [HEAD]
    for group, names in groups.items():
        firsts = [described(name)[0].replace("|", "\\|") for name in names]
        cards = [
            f"- [![](figures/{name}.png)](#{name.replace('_', '-')})\n\n"
            f"    **[{title(name)}](#{name.replace('_', '-')})**\n\n    {first}\n"
            for name, first in zip(names, firsts, strict=True)
        ]
        # a list in a grid: mkdocs-material draws it as cards
        lines += [
            f'**{group}**\n\n<div class="grid cards thumbnails" markdown>\n',
            *cards,
            "</div>\n",
        ]
    for group, names in groups.items():
        lines += [f"## {group}\n", *map(section, names)]
    return "\n".join(lines)


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
    found = []
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
        found.append("docs/gallery.md is not up to date: run python docs/gallery_pages.py --page")
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
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
