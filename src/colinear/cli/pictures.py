"""Where the entries of a matrix stand: in characters, and as a picture in a file."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from .codes import InputError

EXACT = 1500  # rows up to which all singular values are computed
SHADES = " .:+*#"
UNICODE_SHADES = " ·░▒▓█"


def coordinates(matrix: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the entries that are not zero."""
    if isinstance(matrix, np.ndarray):
        rows, columns = np.nonzero(matrix)
        return rows, columns, matrix[rows, columns]
    found = matrix.tocoo()
    there = found.data != 0
    return found.row[there], found.col[there], found.data[there]


def binned(matrix: Any, height: int, width: int) -> tuple[Any, Any]:
    """For each cell of a grid over the matrix: the part of its places that is filled, and the largest entry in size."""
    m, n = matrix.shape
    height, width = max(1, min(height, m)), max(1, min(width, n))
    rows, columns, values = coordinates(matrix)
    cells = (rows.astype(np.int64) * height // m) * width + columns.astype(np.int64) * width // n
    counts = np.bincount(cells, minlength=height * width).reshape(height, width)
    sizes = np.zeros(height * width)
    np.maximum.at(sizes, cells, np.abs(values))
    tall = np.diff(-(-np.arange(height + 1) * m // height))
    wide = np.diff(-(-np.arange(width + 1) * n // width))
    return counts / np.outer(tall, wide), sizes.reshape(height, width)


def spy(matrix: Any, height: int = 20, width: int = 48) -> list[str]:
    """Where the entries stand, in characters: the darker, the fuller; anything that is there shows."""
    shades = UNICODE_SHADES if _speaks_unicode() else SHADES
    if 0 in matrix.shape:
        return ["(empty)"]
    m, n = matrix.shape
    width = min(width, max(1, round(2.2 * height * n / m)), n)
    height = min(height, m)
    filled, _ = binned(matrix, height, width)
    level = np.ceil(np.sqrt(filled / (filled.max() or 1)) * (len(shades) - 1) - 1e-9).astype(int)
    edge = "+" + "-" * level.shape[1] + "+"
    return [edge, *("|" + "".join(shades[k] for k in row) + "|" for row in level), edge]


def picture(matrix: Any, facts: dict[str, Any], path: str) -> None:
    """Sizes of the entries, and beside them the singular values of a small matrix, the fill of the rows of a large one."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("--picture draws with matplotlib, which is not installed: pip install 'colinear[plot]'") from error
    if 0 in matrix.shape:
        raise InputError(f"{path}: there is nothing to draw of an empty matrix")
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _, sizes = binned(matrix, 600, 600)
    with np.errstate(divide="ignore"):
        image = np.ma.masked_invalid(np.log10(np.where(sizes > 0, sizes, np.nan)))
    m, n = matrix.shape
    shown = left.imshow(
        image, extent=(0, n, m, 0), interpolation="nearest", cmap="viridis", aspect="auto" if max(m, n) > 4 * min(m, n) else 1
    )
    figure.colorbar(shown, ax=left, label="log10 of the largest entry there")
    left.set_title(f"{m} x {n}, {facts['nonzeros']} entries: {facts.get('structure', 'as it is')}")
    if max(m, n) <= EXACT:
        values = np.linalg.svd(matrix if isinstance(matrix, np.ndarray) else matrix.toarray(), compute_uv=False)
        right.semilogy(1 + np.arange(len(values)), np.where(values > 0, values, np.nan), ".")
        right.set(title="singular values", xlabel="number")
    else:
        per_row = np.bincount(coordinates(matrix)[0], minlength=m)
        right.plot(per_row, lw=0.5)
        right.set(title="entries in each row", xlabel="row")
    figure.savefig(path, dpi=110)


def check_picture(path: str) -> None:
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise InputError(f"{path}: there is no folder {folder}")
    if os.path.splitext(path)[1].lower() not in (".png", ".pdf", ".svg", ".jpg", ".jpeg"):
        raise InputError(f"{path}: a picture is a .png, .svg, .pdf or .jpg file")


def _speaks_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"
