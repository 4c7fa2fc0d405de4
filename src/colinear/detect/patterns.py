"""What shows in where the entries stand: nothing, diagonals, bands, triangles, permutations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operators.banded import Banded
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.permutation import Permutation
from ..operators.sparse import Sparse
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from .matrix import Found, Matrix, constant

FEW = 200  # rows up to which a triangle is kept dense, however empty
MANY = 64  # rows for which NumPy is faster than Python


def zero(M: Matrix, tol: float) -> Found | str:
    """No entry at all."""
    if M.nnz:
        return f"{M.nnz} entries are not zero"
    return Found("zero", Zero(*M.shape, like=M.like))


def diagonal(M: Matrix, tol: float) -> Found | str:
    """Entries on the diagonal alone; c I if they are all c."""
    beside = M.rows != M.columns
    if not M.is_square:
        return "not square"
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
    if not M.is_square or M.nnz != n or not np.all(np.diff(M.S.indptr) == 1) or len(np.unique(M.columns)) != n:
        return "not one entry in each row and column"
    P = Permutation(M.columns, like=M.like)
    c = constant(M.values, tol / 2)
    if c is None:
        return Found("scaled permutation", Diagonal(M.values) @ P)
    return Found("permutation", P) if c == 1 else Found("multiple of a permutation", c * P)


def tridiagonal(M: Matrix, tol: float) -> Found | str:
    """Entries on the diagonal and beside it."""
    if not M.is_square or M.shape[0] < 4:
        return "not square" if not M.is_square else "too small to matter"
    far = np.abs(M.columns - M.rows) > 1
    if M.weights(tol)[far].sum() > tol**2:
        return f"{np.count_nonzero(far)} entries further from the diagonal"
    return Found("tridiagonal", Tridiagonal(*(M.S.diagonal(k) for k in (-1, 0, 1))))


def banded(M: Matrix, tol: float) -> Found | str:
    """Few diagonals: taken from the main one outwards until the rest is what the tolerance allows."""
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
        return f"its {len(kept)} diagonals, from {kept[0]} to {kept[-1]}, hold {stored} places for {M.nnz} entries"
    detail, kept = f"{len(kept)} diagonals from {kept[0]} to {kept[-1]}", kept.tolist()
    return Found("banded", Banded([M.S.diagonal(k) for k in kept], kept, (m, n)), detail)


def triangular(M: Matrix, tol: float) -> Found | str:
    """Nothing above, or nothing below the diagonal."""
    if not M.is_square:
        return "not square"
    weights = M.weights(tol)
    above, below = M.columns > M.rows, M.columns < M.rows
    for name, others in (("lower triangular", above), ("upper triangular", below)):
        if weights[others].sum() <= tol**2:
            return _triangle(M.without(~others) if others.any() else M, name)
    return f"{np.count_nonzero(above)} entries above the diagonal, {np.count_nonzero(below)} below"


def permuted_triangular(M: Matrix, tol: float) -> Found | str:
    """A = P^T L Q with triangular L, if there is one with a diagonal without zeros.

    A row with one entry left comes next, and takes its column away from the others: a topological order, in time O(nnz). Whichever
    of several such rows comes first, none of them stands in another's way, so the order is found if there is one.
    """
    M = M.dropped(tol)
    n = M.shape[0]
    if not M.is_square:
        return "not square"
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
    kind = "of rows and columns alike" if np.array_equal(rows, columns) else "of rows and of columns"
    return Found("permuted triangular", P.T @ inner.operator @ Q, f"a permutation {kind}", (inner,))


def _order(M: Matrix, counts: Any) -> tuple[Any, Any]:
    """Rows with one entry left, with the column of that entry, in the order in which they come to be so."""
    by_column = M.S.tocsc()
    left = counts.astype(np.int64)
    sums = np.zeros(M.shape[0], np.int64)  # of the columns that each row has left: of one, it is the column
    np.add.at(sums, M.rows, M.columns)
    rows, columns = [], []
    ready = np.flatnonzero(left == 1)
    while len(ready) >= MANY:  # many at once, while there are many
        taken, first = np.unique(sums[ready], return_index=True)
        rows.append(ready[first])
        columns.append(taken)
        starts, lengths = by_column.indptr[taken], np.diff(by_column.indptr)[taken]
        places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        others = by_column.indices[places]
        np.subtract.at(left, others, 1)
        np.subtract.at(sums, others, np.repeat(taken, lengths))
        others = np.unique(others)
        ready = others[left[others] == 1]
    if len(ready):
        one_by_one = _order_one_by_one(by_column, ready.tolist(), left.tolist(), sums.tolist())
        rows.append(one_by_one[0])
        columns.append(one_by_one[1])
    empty = np.zeros(0, np.int64)
    return np.concatenate([*rows, empty]), np.concatenate([*columns, empty])


def _order_one_by_one(by_column: Any, ready: list[int], left: list[int], sums: list[int]) -> tuple[Any, Any]:
    """The same where there is little to do at a time."""
    starts, rows_of = by_column.indptr.tolist(), by_column.indices.tolist()
    rows, columns = [], []
    for row in ready:  # which grows
        if left[row] != 1:
            continue
        column = sums[row]
        rows.append(row)
        columns.append(column)
        for other in rows_of[starts[column] : starts[column + 1]]:
            left[other] -= 1
            sums[other] -= column
            if left[other] == 1:
                ready.append(other)
    return np.array(rows, np.int64), np.array(columns, np.int64)


def _triangle(M: Matrix, name: str) -> Found | str:
    """Dense, or sparse if it is too large to be written down or has few entries: both are solved by substitution."""
    if M.dense is None or (M.shape[0] > FEW and M.density < 0.1):
        return Found(name, Sparse(M.S))
    return Found(name, Triangular(M.dense, lower=name.startswith("lower")))
