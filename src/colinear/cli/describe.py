"""`info`: what a matrix is, as text with a small picture of where its entries stand, as JSON, or
as a picture in a file."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

import numpy as np

from ..functions.solve.cost import dense_work, sparse_work
from ..operators import Dense, Sparse
from ..properties import PD, PSD
from ..status import Status
from . import answers
from .answers import InputError
from .files import check_folder, split
from .options import operator, under_way

# Where the entries of a matrix stand: in characters, and as a picture in a file.


EXACT = 1500  # rows up to which all singular values are computed
SHADES = " .:+*#"
UNICODE_SHADES = " ·░▒▓█"


def coordinates(matrix: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the entries that are not zero."""
    rows, columns = matrix.nonzero()
    return rows, columns, np.ravel(matrix[rows, columns])


def singular_values(matrix: Any) -> Any:
    dense = matrix if isinstance(matrix, np.ndarray) else matrix.toarray()
    return np.linalg.svd(dense, compute_uv=False)


def binned(matrix: Any, height: int, width: int) -> tuple[Any, Any]:
    """For each cell of a grid over the matrix: the part of its places that is filled, and the
    largest entry in size."""
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
    """Where the entries stand, in characters: the darker, the fuller; anything that is there
    shows."""
    shades = UNICODE_SHADES if _speaks_unicode() else SHADES
    if 0 in matrix.shape:
        return ["(empty)"]
    m, n = matrix.shape
    width = min(width, max(1, round(2.2 * height * n / m)))
    filled, _ = binned(matrix, height, width)
    level = np.ceil(np.sqrt(filled / (filled.max() or 1)) * (len(shades) - 1) - 1e-9).astype(int)
    edge = "+" + "-" * level.shape[1] + "+"
    return [edge, *("|" + "".join(shades[k] for k in row) + "|" for row in level), edge]


def picture(matrix: Any, facts: dict[str, Any], path: str) -> None:
    """Sizes of the entries, and beside them the singular values of a small matrix, the fill of
    the rows of a large one."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "--picture draws with matplotlib, which is not installed: pip install 'colinear[plot]'"
        ) from error
    if 0 in matrix.shape:
        raise InputError(f"{path}: there is nothing to draw of an empty matrix")
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _, sizes = binned(matrix, 600, 600)
    with np.errstate(divide="ignore"):
        image = np.ma.masked_invalid(np.log10(np.where(sizes > 0, sizes, np.nan)))
    m, n = matrix.shape
    shown = left.imshow(
        image,
        extent=(0, n, m, 0),
        interpolation="nearest",
        cmap="viridis",
        aspect="auto" if max(m, n) > 4 * min(m, n) else 1,
    )
    figure.colorbar(shown, ax=left, label="log10 of the largest entry there")
    left.set_title(f"{m} x {n}, {facts['nonzeros']} entries: {facts.get('structure', 'as it is')}")
    if max(m, n) <= EXACT:
        values = singular_values(matrix)
        right.semilogy(1 + np.arange(len(values)), np.where(values > 0, values, np.nan), ".")
        right.set(title="singular values", xlabel="number")
    else:
        per_row = np.bincount(coordinates(matrix)[0], minlength=m)
        right.plot(per_row, lw=0.5)
        right.set(title="entries in each row", xlabel="row")
    figure.savefig(path, dpi=110)


def check_picture(path: str) -> None:
    check_folder(path)
    if os.path.splitext(path)[1].lower() not in (".png", ".pdf", ".svg", ".jpg", ".jpeg"):
        raise InputError(f"{path}: a picture is a .png, .svg, .pdf or .jpg file")


def _speaks_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "") == "utf8"


# `info`: what a matrix is, as text with a small picture of where its entries stand, as JSON, or as
# a picture in a file.


LONGEST_S = 1.0  # seconds of a factorisation that is made for the sake of its estimate


def info(options: argparse.Namespace) -> int:
    if options.picture is not None:
        check_picture(options.picture)
    matrix, A, facts = operator(options)
    facts |= {
        "bytes": 0 if options.file == "-" else os.path.getsize(split(options.file)[0]),
        "dtype": str(matrix.dtype),
        **entries(matrix),
    }
    if matrix.shape[0] == matrix.shape[1]:
        facts |= symmetry(matrix, A)
    if options.condition is not False:
        with under_way(options, "estimating the condition"):
            found = condition(matrix, A, options.condition)
        facts["condition"], facts["condition_by"] = found
    lines = as_text(facts)
    if options.spy:
        lines += ["", *spy(matrix)]
    if options.picture is not None:
        picture(matrix, facts, options.picture)
        facts["picture"] = options.picture
        lines.append(f"picture: {options.picture}")
    return answers.finish(options, facts, lines, Status.SUCCESS)


def entries(matrix: Any) -> dict[str, Any]:
    """How many there are, where they stand, and how large they are."""
    m, n = matrix.shape
    rows, columns, values = coordinates(matrix)
    if len(values) == 0:
        norms = dict.fromkeys(("frobenius", "one", "infinity", "largest_entry"), 0.0)
        return {"nonzeros": 0, "density": 0.0, "norms": norms}
    sizes, per_row = np.abs(values), np.bincount(rows, minlength=m)
    return {
        "nonzeros": len(values),
        "density": len(values) / (m * n),
        "sparse_file": not isinstance(matrix, np.ndarray),
        "per_row": {
            "least": int(per_row.min()),
            "mean": float(per_row.mean()),
            "most": int(per_row.max()),
        },
        "empty_rows": int(np.count_nonzero(per_row == 0)),
        "empty_columns": int(np.count_nonzero(np.bincount(columns, minlength=n) == 0)),
        "bandwidth": {
            "lower": int(max(0, (rows - columns).max())),
            "upper": int(max(0, (columns - rows).max())),
        },
        "norms": {
            "frobenius": float(np.linalg.norm(values)),
            "one": float(np.bincount(columns, sizes, n).max()),
            "infinity": float(np.bincount(rows, sizes, m).max()),
            "largest_entry": float(sizes.max()),
            "smallest_entry": float(sizes.min()),
        },
    }


def symmetry(matrix: Any, A: Any) -> dict[str, Any]:
    """Of a square matrix: what its transpose has in common with it, its diagonal, and what was
    proven of it."""
    from scipy.sparse import csr_array

    rows, columns, values = coordinates(matrix)
    S = csr_array((values, (rows, columns)), shape=matrix.shape)
    norm = float(np.linalg.norm(values)) or 1.0
    pattern = csr_array((np.ones(S.nnz, np.int8), S.indices, S.indptr), shape=S.shape)
    d = S.diagonal()
    beside = np.asarray(abs(S).sum(axis=1)).ravel() - np.abs(d)
    asymmetry = float(np.linalg.norm((S - S.conj().T).data)) / norm
    kind = "none" if np.any((S - S.T).data) else "symmetric"
    return {
        "pattern_symmetric": not np.any((pattern - pattern.T).data),
        "asymmetry": asymmetry,
        "symmetry": kind if asymmetry else "self-adjoint",
        "diagonal": {
            "zeros": int(np.count_nonzero(d == 0)),
            "dominant_rows": int(np.count_nonzero(np.abs(d) >= beside)),
        },
        "definite": "no: not self-adjoint" if asymmetry else definiteness(A, d.real),
    }


def definiteness(A: Any, d: Any) -> str:
    """What is known of a self-adjoint matrix, from its diagonal and from what was proven of A."""
    if np.any(d < 0):
        sign = "negative" if np.all(d < 0) else "not positive"
        return f"no: {sign} entries on the diagonal"
    if A.isa(PD):
        return "positive definite (proven)"
    return "positive semidefinite (proven)" if A.isa(PSD) else "not proven"


def condition(matrix: Any, A: Any, insists: bool | None) -> tuple[float | None, str]:
    """An estimate, and how it was made; None where it would cost too much and nobody insists."""
    import colinear as co

    m, n = matrix.shape
    if 0 in matrix.shape:
        return None, "empty"
    if max(m, n) <= EXACT:
        values = singular_values(matrix)
        ratio = float(values[0] / values[-1]) if values[-1] > 0 else np.inf
        return ratio, "2-norm, from all singular values"
    if m != n:
        return None, "not estimated: not square, and large"
    work = sparse_work(A) if isinstance(A, Sparse) else dense_work(A)
    if not insists and isinstance(A, Sparse | Dense) and work.seconds > LONGEST_S:
        return (
            None,
            f"not estimated: a factorisation would take {work.flops:.1e} flops (--condition does "
            "it)",
        )
    from scipy.sparse.linalg import onenormest

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            inverse, report = co.inv(A, info=True)
            if report.status is Status.SINGULAR:
                return np.inf, "singular to working accuracy"
            estimate = onenormest(inverse.to_scipy())
        except (co.ColinearError, ArithmeticError, MemoryError, ValueError) as error:
            return None, f"not estimated: {str(error).splitlines()[0]}"
    found = float(abs(matrix).sum(axis=0).max() * estimate)
    return found, "1-norm, estimated (a lower bound, as a rule within a factor of 3)"


def as_text(facts: dict[str, Any]) -> list[str]:
    """The facts as lines."""
    m, n = facts["shape"]
    lines = [
        facts["file"],
        f"  size          {m} x {n}, {facts['dtype']}, {facts['bytes']} bytes in the file",
        f"  entries       {facts['nonzeros']} not zero, {100 * facts['density']:.3g}% of all",
    ]
    if facts["nonzeros"]:
        rows, band, norms = facts["per_row"], facts["bandwidth"], facts["norms"]
        lines.append(
            f"  in a row      {rows['least']} to {rows['most']}, {rows['mean']:.1f} on average"
        )
        if facts["empty_rows"] or facts["empty_columns"]:
            lines.append(
                f"  empty         {facts['empty_rows']} rows, {facts['empty_columns']} columns"
            )
        lines += [
            f"  bandwidth     {band['lower']} below the diagonal, {band['upper']} above",
            f"  entries from  {norms['smallest_entry']:.3g} to {norms['largest_entry']:.3g} in size",
            f"  norms         {norms['frobenius']:.6g} Frobenius, {norms['one']:.6g} (1), "
            f"{norms['infinity']:.6g} (infinity)",
        ]
    if "symmetry" in facts:
        shown, d = facts["symmetry"], facts["diagonal"]
        if shown == "none":
            shown = f"none: |A - A^H| / |A| = {facts['asymmetry']:.2g}"
        same = "symmetric" if facts["pattern_symmetric"] else "not symmetric"
        lines += [
            f"  symmetry      {shown}; pattern {same}",
            f"  definite      {facts['definite']}",
            f"  diagonal      {d['zeros']} zeros; at least the sum of the rest in "
            f"{d['dominant_rows']} rows",
        ]
    if "structure" in facts:
        lines.append(f"  structure     {facts['structure']}: {facts['operator']}")
    if "condition" in facts:
        value, how = facts["condition"], facts["condition_by"]
        lines.append(f"  condition     {how if value is None else f'{value:.3g} ({how})'}")
    return lines
