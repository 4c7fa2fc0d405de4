"""What shows in where the entries stand and repeat: diagonals, bands, triangles, permutations,
Toeplitz matrices, blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..operators import (
    Banded,
    BlockDiag,
    Circulant,
    Convolution,
    Diagonal,
    Identity,
    Kronecker,
    Permutation,
    ScaledIdentity,
    Sparse,
    Toeplitz,
    Triangular,
    Tridiagonal,
    Zero,
)
from .matrix import Found, Matrix, Search, compose, constant, norm, shape_text

# What shows in where the entries stand: nothing, diagonals, bands, triangles, permutations.


FEW = 200  # rows up to which a triangle is kept dense, however empty


def zero(M: Matrix, tol: float) -> Found | str:
    """No entry at all."""
    if M.nnz:
        return f"{M.nnz} entries are not zero"
    return Found("zero", Zero(*M.shape, like=M.like))


def diagonal(M: Matrix, tol: float) -> Found | str:
    """Entries on the diagonal alone; c I if they are all c."""
    beside = M.rows != M.columns
    if M.weights(tol)[beside].sum() > tol**2:
        return f"{np.count_nonzero(beside)} entries beside it"
    d = M.S.diagonal()
    c = constant(d, tol / 2)
    if c is None:
        return Found("diagonal", Diagonal(d))
    if c == 1:
        return Found("identity", Identity(len(d), like=d))
    return Found("scaled identity", ScaledIdentity(np.asarray(c, d.dtype), len(d)))


def permutation(M: Matrix, tol: float) -> Found | str:
    """One entry in each row and column: P, c P, or diag(d) P."""
    M = M.dropped(tol)
    n = M.shape[0]
    if M.nnz != n or not np.all(np.diff(M.S.indptr) == 1) or len(np.unique(M.columns)) != n:
        return "not one entry in each row and column"
    P = Permutation(M.columns, like=M.like)
    c = constant(M.values, tol / 2)
    if c is None:
        return Found("scaled permutation", Diagonal(M.values) @ P)
    return Found("permutation", P) if c == 1 else Found("multiple of a permutation", c * P)


def tridiagonal(M: Matrix, tol: float) -> Found | str:
    """Entries on the diagonal and beside it."""
    far = np.abs(M.columns - M.rows) > 1
    if M.weights(tol)[far].sum() > tol**2:
        return f"{np.count_nonzero(far)} entries further from the diagonal"
    return Found("tridiagonal", Tridiagonal(*(M.S.diagonal(k) for k in (-1, 0, 1))))


def banded(M: Matrix, tol: float) -> Found | str:
    """Few diagonals: taken from the main one outwards until the rest is what the tolerance
    allows."""
    m, n = M.shape
    weights = np.bincount(M.columns - M.rows + (m - 1), M.weights(tol), m + n - 1)
    offsets = np.flatnonzero(weights) - (m - 1)
    outwards = offsets[np.argsort(-np.abs(offsets), kind="stable")]
    spent = np.cumsum(weights[outwards + (m - 1)])
    kept = np.sort(outwards[np.searchsorted(spent, tol**2, side="right") :])
    if not len(kept):
        return "nothing would be left"
    stored = int(np.sum(np.minimum(m, n - kept) - np.maximum(0, -kept)))
    if stored > min(2 * M.nnz, m * n // 2):
        return (
            f"its {len(kept)} diagonals, from {kept[0]} to {kept[-1]}, hold {stored} places "
            f"for {M.nnz} entries"
        )
    detail, kept = f"{len(kept)} diagonals from {kept[0]} to {kept[-1]}", kept.tolist()
    return Found("banded", Banded([M.S.diagonal(k) for k in kept], kept, (m, n)), detail)


def triangular(M: Matrix, tol: float) -> Found | str:
    """Nothing above, or nothing below the diagonal."""
    above, below = M.columns > M.rows, M.columns < M.rows
    for name, others in (("lower triangular", above), ("upper triangular", below)):
        if M.weights(tol)[others].sum() <= tol**2:
            return _triangle(M.without(~others) if others.any() else M, name)
    return f"{np.count_nonzero(above)} entries above the diagonal, {np.count_nonzero(below)} below"


def permuted_triangular(M: Matrix, tol: float) -> Found | str:
    """A = P^T L Q with triangular L, if there is one with a diagonal without zeros.

    A row with one entry left comes next, and takes its column away from the others: a topological
    order, in time O(nnz). Whichever of several such rows comes first, none of them stands in
    another's way, so the order is found if there is one.
    """
    M = M.dropped(tol)
    n = M.shape[0]
    counts = np.diff(M.S.indptr)
    if not np.any(counts == 1) or not np.any(np.bincount(M.columns, minlength=n) == 1):
        return "no row, or no column, has a single entry to begin with"
    rows, columns = _order(M, counts)
    if len(rows) < n:
        return f"no row with a single entry is left after {len(rows)} of {n}"
    inner = _triangle(M.part(rows, columns), "lower triangular")
    if isinstance(inner, str):
        return inner
    P, Q = (Permutation(order, like=M.like) for order in (rows, columns))
    alike = "columns alike" if np.array_equal(rows, columns) else "of columns"
    detail = f"a permutation of rows and {alike}"
    return Found("permuted triangular", P.T @ inner.operator @ Q, detail, (inner,))


def _order(M: Matrix, counts: Any) -> tuple[Any, Any]:
    """Rows with one entry left, with the column of that entry, in the order in which they come
    to be so."""
    by_column = M.S.tocsc()
    starts, rows_of = by_column.indptr.tolist(), by_column.indices.tolist()
    sums = np.zeros(M.shape[0], np.int64)
    np.add.at(sums, M.rows, M.columns)
    # of the columns that each row has left: their number and their sum, which of one is the column
    left, sum_left = counts.tolist(), sums.tolist()
    rows, columns = [], []
    ready = np.flatnonzero(counts == 1).tolist()
    for row in ready:  # which grows
        if left[row] != 1:
            continue
        column = sum_left[row]
        rows.append(row)
        columns.append(column)
        for other in rows_of[starts[column] : starts[column + 1]]:
            left[other] -= 1
            sum_left[other] -= column
            if left[other] == 1:
                ready.append(other)
    return np.array(rows, np.int64), np.array(columns, np.int64)


def _triangle(M: Matrix, name: str) -> Found | str:
    """Dense, or sparse if it is too large to be written down or has few entries: both are solved
    by substitution."""
    if M.dense is None or (M.shape[0] > FEW and M.density < 0.1):
        return Found(name, Sparse(M.S))
    return Found(name, Triangular(M.dense, lower=name.startswith("lower")))


# What shows in entries that repeat along diagonals: circulant and Toeplitz matrices.


SAMPLE = 256  # entries that are looked at before all are


def circulant(M: Matrix, tol: float) -> Found | str:
    """A[i, j] depends on i - j mod n alone."""
    n = M.shape[0]
    if tol == 0 and not _may_repeat(M):
        return "the entries of a diagonal differ"
    col = _shared(M, (M.rows - M.columns) % n, np.full(n, n), tol)
    if col is None:
        return "the entries of a wrapped diagonal differ"
    return Found("circulant", Circulant(col))


def toeplitz(M: Matrix, tol: float) -> Found | str:
    """A[i, j] depends on i - j alone."""
    m, n = M.shape
    if tol == 0 and not _may_repeat(M):
        return "the entries of a diagonal differ"
    offsets = np.arange(1 - n, m)
    lengths = np.minimum(m, n + offsets) - np.maximum(0, offsets)
    shared = _shared(M, M.rows - M.columns + (n - 1), lengths, tol)
    if shared is None:
        return "the entries of a diagonal differ"
    col, row = shared[n - 1 :], shared[n - 1 :: -1]
    if m == n and np.array_equal(row, col.conj()) and np.isreal(col[0]):
        return Found("Toeplitz", Toeplitz(col))
    return Found("Toeplitz", Toeplitz(col, row))


def _may_repeat(M: Matrix) -> bool:
    """Whether the second row of a dense matrix is the first one, moved: what most matrices fail."""
    return M.dense is None or np.array_equal(M.dense[1, 1:], M.dense[0, :-1])


def block_circulant(M: Matrix, tol: float) -> Found | str:
    """Circulant in blocks and inside of them, as a periodic convolution of two dimensions is."""
    n = M.shape[0]
    rows, columns, values = M.sample(SAMPLE)

    def moved(i: Any, j: Any) -> Any:
        """The number of i - j on the periodic grid."""
        return (i // p - j // p) % (n // p) * p + (i % p - j % p) % p

    for p in (k for k in range(2, n // 2 + 1) if n % k == 0):
        if tol == 0:  # what is in row i is in the first row, moved
            first = moved(columns, rows)
            if not np.array_equal(M.at(np.zeros_like(first), first), values):
                continue
        kernel = _shared(M, moved(M.rows, M.columns), np.full(n, n), tol)
        if kernel is not None:
            operator = Convolution(kernel.reshape(-1, p), (n // p, p))
            return Found("periodic convolution", operator, f"on a grid of {n // p} x {p}")
    return "no way to cut it into blocks gives a periodic convolution"


def _shared(M: Matrix, labels: Any, sizes: Any, tol: float) -> Any:
    """For entries in classes, of so many places each: the value of each class, its mean if they
    may differ by `tol`, or None."""
    if tol == 0:
        counts = np.bincount(labels, minlength=len(sizes))
        values = np.zeros(len(sizes), M.values.dtype)
        values[labels] = M.values
        full = (counts == 0) | (counts == sizes)
        return values if full.all() and np.array_equal(values[labels], M.values) else None
    sums = np.bincount(labels, M.values.real, len(sizes))
    if M.values.dtype.kind == "c":
        sums = sums + 1j * np.bincount(labels, M.values.imag, len(sizes))
    means = (sums / sizes).astype(M.values.dtype)  # the nearest such matrix
    missing = sizes - np.bincount(labels, minlength=len(sizes))
    apart = np.hypot(norm(M.values - means[labels]), norm(np.sqrt(missing) * np.abs(means)))
    return means if apart <= tol * M.norm else None


# What falls apart: block diagonal matrices, in whatever order their rows and columns come.


MOST_BLOCKS = 256  # that differ: each is searched, and multiplied on its own


def components(M: Matrix, tol: float, search: Search) -> Found | str:
    """A = P^T blockdiag(B_1, ..., B_k) Q by the connected components of its graph, each block
    searched in its turn.

    Rows and columns are permuted alike where the graph of a square matrix falls apart; else on
    their own, where the graph that joins rows with columns does. Blocks that are all the same are I
    ⊗ B.
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
    of: Callable[..., Any] = BlockDiag
    if block is not None:
        blocks, of = [block], lambda part: Kronecker(Identity(len(sizes)), part)
        detail = f"{len(sizes)} equal blocks of {shape_text(sizes[0])}"
    else:
        ends = np.cumsum(sizes, axis=0)[:-1]
        pairs = zip(np.split(rows, ends[:, 0]), np.split(columns, ends[:, 1]))
        blocks = [M.part(*pair) for pair in pairs]
        largest = max(sizes, key=lambda size: size[0] * size[1])
        detail = f"{len(sizes)} blocks, the largest of {shape_text(largest)}"
    found = compose("block diagonal", (search(each, tol / 2) for each in blocks), of, detail)
    if all(np.all(order[1:] > order[:-1]) for order in (rows, columns)):
        return found
    P, Q = (Permutation(order, like=M.like) for order in (rows, columns))
    return replace(
        found,
        name="permuted block diagonal",
        operator=P.T @ found.operator @ (P if alike else Q),
        detail=f"{detail}, after a permutation of rows and columns{' alike' if alike else ''}",
    )


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
    count, labels = connected_components(
        block_array([[None, pattern], [pattern.T, None]]), directed=False
    )
    return (labels[:m], labels[m:]) if count > 1 else None


def _arranged(of_rows: Any, of_columns: Any) -> tuple[Any, Any, list[tuple[int, int]]]:
    """The order of rows and of columns by components, and their sizes; single entries, and rows and
    columns of zeros, last and together.

    Together they are one diagonal block, or one of zeros.
    """
    count = 1 + max(of_rows.max(initial=0), of_columns.max(initial=0))
    heights, widths = (np.bincount(each, minlength=count) for each in (of_rows, of_columns))
    is_empty = (heights == 0) | (widths == 0)
    is_single = (heights == 1) & (widths == 1)
    if is_single.sum() == count:  # nothing but a permutation of a diagonal: found before
        is_single[:] = False
    group = np.where(is_empty, 2, np.where(is_single, 1, 0))
    first = np.full(count, len(of_rows))
    np.minimum.at(first, of_rows, np.arange(len(of_rows)))
    order = np.lexsort((first, group))
    place = np.argsort(order)
    rows, columns = (np.argsort(place[each], kind="stable") for each in (of_rows, of_columns))
    large = order[group[order] == 0]
    sizes = list(zip(heights[large].tolist(), widths[large].tolist()))
    for kind in (1, 2):
        size = (int(heights[group == kind].sum()), int(widths[group == kind].sum()))
        if any(size):
            sizes.append(size)
    return rows, columns, sizes


def _repeated(M: Matrix, rows: Any, columns: Any, sizes: list[tuple[int, int]]) -> Matrix | None:
    """The block, if there are several and they are all the same."""
    count, (height, width) = len(sizes), sizes[0]
    if count < 2 or M.nnz % count or len(set(sizes)) > 1 or not height * width:
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
