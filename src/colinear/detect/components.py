"""What falls apart: block diagonal matrices, in whatever order their rows and columns come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..operators.block import BlockDiag
from ..operators.identity import Identity
from ..operators.kronecker import Kronecker
from ..operators.permutation import Permutation
from .matrix import Found, Matrix

MOST_BLOCKS = 256  # that differ: each is searched, and multiplied on its own


def components(M: Matrix, tol: float, search: Callable[[Matrix, float], Found]) -> Found | str:
    """A = P^T blockdiag(B_1, ..., B_k) Q by the connected components of its graph, each block searched in its turn.

    Rows and columns are permuted alike where the graph of a square matrix falls apart; else on their own, where the graph that joins
    rows with columns does. Blocks that are all the same are I ⊗ B.
    """
    M = M.dropped(tol)
    labels = _labels(M)
    if labels is None:
        return "its graph is connected"
    rows, columns, sizes = _arranged(*labels)
    alike = M.is_square and np.array_equal(rows, columns)
    block = _repeated(M, rows, columns, sizes)
    if block is None and len(sizes) > MOST_BLOCKS:
        return f"{len(sizes)} components are more than {MOST_BLOCKS}"
    if block is not None:
        part = search(block, tol / 2)
        parts: tuple[Found, ...] = (part,)
        inner = Kronecker(Identity(len(sizes)), part.operator)
        detail = f"{len(sizes)} equal blocks of {_size(*sizes[0])}"
    else:
        parts = tuple(search(each, tol / 2) for each in _blocks(M, rows, columns, sizes))
        inner = BlockDiag(*(part.operator for part in parts))
        largest = max(sizes, key=lambda size: size[0] * size[1])
        detail = f"{len(sizes)} blocks, the largest of {_size(*largest)}"
    if _is_sorted(rows) and _is_sorted(columns):
        return Found("block diagonal", inner, detail, parts)
    P, Q = (Permutation(order, like=M.like) for order in (rows, columns))
    detail += ", after a permutation of rows and columns" + (" alike" if alike else "")
    return Found("permuted block diagonal", P.T @ inner @ (P if alike else Q), detail, parts)


def _labels(M: Matrix) -> tuple[Any, Any] | None:
    """The number of the component of each row and of each column, or None if there is one only."""
    from scipy.sparse import block_array, csr_array
    from scipy.sparse.csgraph import connected_components

    m, n = M.shape
    pattern = csr_array((np.ones(M.nnz, np.int8), M.columns, M.S.indptr), shape=(m, n))
    if M.is_square:
        count, labels = connected_components(pattern, directed=True, connection="weak")
        if count > 1:
            return labels, labels
    count, labels = connected_components(block_array([[None, pattern], [pattern.T, None]]), directed=False)
    return (labels[:m], labels[m:]) if count > 1 else None


def _arranged(of_rows: Any, of_columns: Any) -> tuple[Any, Any, list[tuple[int, int]]]:
    """The order of rows and of columns by components, and their sizes; single entries, and rows and columns of zeros, last and together.

    Together they are one diagonal block, or one of zeros.
    """
    count = 1 + max(of_rows.max(initial=0), of_columns.max(initial=0))
    heights, widths = np.bincount(of_rows, minlength=count), np.bincount(of_columns, minlength=count)
    is_empty = (heights == 0) | (widths == 0)
    is_single = (heights == 1) & (widths == 1)
    if is_single.sum() == count:  # nothing but a permutation of a diagonal: found before
        is_single[:] = False
    group = np.where(is_empty, 2, np.where(is_single, 1, 0))
    first = np.full(count, len(of_rows))
    np.minimum.at(first, of_rows, np.arange(len(of_rows)))
    place = np.empty(count, np.int64)
    place[np.lexsort((first, group))] = np.arange(count)
    rows, columns = np.argsort(place[of_rows], kind="stable"), np.argsort(place[of_columns], kind="stable")
    large = np.flatnonzero(group == 0)
    large = large[np.argsort(place[large])]
    sizes = [(int(heights[k]), int(widths[k])) for k in large]
    for kind in (1, 2):
        height, width = int(heights[group == kind].sum()), int(widths[group == kind].sum())
        if height or width:
            sizes.append((height, width))
    return rows, columns, sizes


def _blocks(M: Matrix, rows: Any, columns: Any, sizes: list[tuple[int, int]]) -> list[Matrix]:
    blocks, top, left = [], 0, 0
    for height, width in sizes:
        blocks.append(M.part(rows[top : top + height], columns[left : left + width]))
        top, left = top + height, left + width
    return blocks


def _repeated(M: Matrix, rows: Any, columns: Any, sizes: list[tuple[int, int]]) -> Matrix | None:
    """The block, if there are several and they are all the same."""
    count, (height, width) = len(sizes), sizes[0]
    if count < 2 or M.nnz % count or any(size != (height, width) for size in sizes) or not height or not width:
        return None
    S = M.S[rows][:, columns]
    S.sort_indices()
    each = M.nnz // count
    lengths = np.diff(S.indptr).reshape(count, height)
    places = S.indices.reshape(count, each) - width * np.arange(count)[:, None]
    values = S.data.reshape(count, each)
    if not all(np.all(x == x[0]) for x in (lengths, places, values)):
        return None
    return M.part(rows[:height], columns[:width])


def _is_sorted(order: Any) -> bool:
    return bool(np.all(order[1:] > order[:-1]))


def _size(m: int, n: int) -> str:
    return f"{m}x{n}"
