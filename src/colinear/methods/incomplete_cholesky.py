"""Incomplete Cholesky factorisation on the host: A ≈ L L^H for sparse, positive definite A.

Without fill (IC(0)) the factor has the pattern of A's lower triangle, and L L^H equals A there
(Meijerink and van der Vorst 1977). With a threshold it is made of the lower factor and the pivots
of SuperLU's incomplete LU (Li and Shao 2011), A ≈ L D L^H. A pivot that is not positive makes both
start again with more weight on the diagonal (Manteuffel 1980).

Columns of the factor that do not depend on each other are computed at once: one pass of array
operations for each level of the graph of dependences (a tridiagonal matrix has n levels, a grid as
many as its diagonals).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from .sparse_direct import HostFactor, solved_columns, stacked_matrix

LEAST_PIVOT = 1e-6  # of a matrix with a unit diagonal


SHIFTS = (0.0, 1e-3, 1e-2, 0.05, 0.2, 1.0, 5.0)


CHUNK = 1 << 22  # pairs of entries looked at together


class IncompleteCholesky(HostFactor):
    """(L L^H)^-1 of the incomplete factors of a sparse matrix, or of a batch of them.

    Parameters
    ----------
    data : array, (*batch, nnz)
    indptr, columns : arrays
        Compressed rows.
    drop_tol, fill : float or None, float
        The threshold below which entries are dropped (None: no fill), and how much more entries
        than A the factor may have.

    Raises
    ------
    ArithmeticError
        If a diagonal entry is not positive, or no shift helps.
    """

    def __init__(self, data: Any, indptr: Any, columns: Any, drop_tol: float | None, fill: float):
        from scipy.sparse import csc_array, diags_array
        from scipy.sparse.linalg import splu

        data = np.asarray(data)
        self.arguments = (data, indptr, columns, drop_tol, fill)
        self.batch, self.dtype = data.shape[:-1], data.dtype
        wide = np.result_type(data, np.float64)
        A = csc_array(stacked_matrix(data.astype(wide), indptr, columns))
        scale = A.diagonal().real
        if not (scale > 0).all():
            raise ArithmeticError(f"a diagonal entry that is not positive, {scale.min():.3g}")
        half = diags_array(np.sqrt(scale))
        unit = csc_array(diags_array(1 / np.sqrt(scale)) @ A @ diags_array(1 / np.sqrt(scale)))
        factor = _without_fill(unit) if drop_tol is None else _by_threshold(unit, drop_tol, fill)
        found = next((f for f in map(factor, SHIFTS) if f is not None), None)
        if found is None:
            raise ArithmeticError("pivots that are not positive, with any weight on the diagonal")
        L, self.order = found
        L = csc_array((half if self.order is None else diags_array(np.sqrt(scale[self.order]))) @ L)
        # Triangular already: elimination in the given order changes nothing, and SuperLU's solves
        # are compiled.
        options = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.0, "options": {"Equil": False}}
        self.factor = splu(csc_array(L, dtype=data.dtype), **options)
        self.flops = 4.0 * L.nnz

    def solve(self, X: Any, form: str) -> Any:
        """(L L^H)^-1 X, or its conjugate for the forms "T" and "C", for X of shape (..., *batch, n,
        k)."""
        if form in "TC" and self.dtype.kind == "c":
            return np.conj(self.solve(np.conj(X), "N"))
        return solved_columns(self._solve, X, self.batch, self.dtype)

    def _solve(self, B: Any) -> Any:
        if self.order is None:
            return self.factor.solve(self.factor.solve(B), trans="H")
        X = np.empty_like(B)
        X[self.order] = self.factor.solve(
            self.factor.solve(np.ascontiguousarray(B[self.order])), trans="H"
        )
        return X


def _by_threshold(A: Any, drop_tol: float, fill: float) -> Any:
    """shift -> the factor of A + shift I and the order of its rows, None if a pivot is not
    positive."""
    from scipy.sparse import csc_array, diags_array, eye_array
    from scipy.sparse.linalg import spilu

    def factor(shift: float) -> Any:
        # SuperLU's minimum degree of A + A^T takes minutes where rows have a dozen far entries;
        # this order takes none.
        options = {
            "permc_spec": "COLAMD",
            "diag_pivot_thresh": 0.0,
            "options": {"SymmetricMode": True},
        }
        try:
            ilu = spilu(
                csc_array(A + shift * eye_array(A.shape[0])),
                drop_tol=drop_tol,
                fill_factor=fill,
                **options,
            )
        except RuntimeError:  # an exactly zero pivot
            return None
        pivots = ilu.U.diagonal().real
        if not np.array_equal(ilu.perm_r, ilu.perm_c) or not (pivots > LEAST_PIVOT).all():
            return None
        return ilu.L @ diags_array(np.sqrt(pivots)), np.argsort(ilu.perm_r)

    return factor


def _without_fill(A: Any) -> Any:
    """shift -> the factor of A + shift I on A's own pattern, None if a pivot is not positive."""
    from scipy.sparse import csc_array, tril

    lower = csc_array(tril(A))
    lower.sort_indices()
    plan = _Plan(lower)

    def factor(shift: float) -> Any:
        values = lower.data.copy()
        values[plan.first] += shift
        values = plan.run(values)
        return (
            None
            if values is None
            else (csc_array((values, lower.indices, lower.indptr), lower.shape), None)
        )

    return factor


class _Plan:
    """Which entries of L are multiplied for which, level by level: l_ij = (a_ij - sum_k l_ik
    conj(l_jk)) / l_jj, k < j."""

    def __init__(self, lower: Any):
        n, starts, rows = (
            lower.shape[0],
            lower.indptr.astype(np.int64),
            lower.indices.astype(np.int64),
        )
        columns = np.repeat(np.arange(n), np.diff(starts))
        level = _levels(lower)
        self.first = starts[:-1]  # of each column: its diagonal
        # entries, column after column within a level
        by_level = np.argsort(level[columns], kind="stable")
        self.order, place = by_level, np.empty(len(rows), np.int64)
        place[by_level] = np.arange(len(rows))
        left, right, target = (place[x] for x in _products(n, starts, rows, columns))
        by_target = np.argsort(target, kind="stable")
        self.left, self.right, self.target = left[by_target], right[by_target], target[by_target]
        count = int(level.max(initial=-1)) + 1
        self.entries = np.searchsorted(level[columns][by_level], np.arange(count + 1))
        self.products = np.searchsorted(self.target, self.entries)
        # for each entry, the diagonal of its column
        self.diagonal = place[self.first][columns][by_level]

    def run(self, values: Any) -> Any:
        L, is_complex = values[self.order], values.dtype.kind == "c"
        left, right, target, diagonal = self.left, self.right, self.target, self.diagonal
        entries, products = self.entries.tolist(), self.products.tolist()
        for lo, hi, first, last in zip(entries, entries[1:], products, products[1:]):
            if last > first:
                terms, where = (
                    L[left[first:last]] * L[right[first:last]].conj(),
                    target[first:last] - lo,
                )
                L[lo:hi] -= np.bincount(where, terms.real, hi - lo)
                if is_complex:
                    L[lo:hi] -= 1j * np.bincount(where, terms.imag, hi - lo)
            pivots = L[diagonal[lo:hi]].real
            if not pivots.min() > LEAST_PIVOT:
                return None
            L[lo:hi] /= np.sqrt(pivots)
        factor = np.empty_like(L)
        factor[self.order] = L
        return factor


def _levels(lower: Any) -> Any:
    """For each column how many others must be done before it, one after the other."""
    by_rows = lower.tocsr()
    starts, columns = by_rows.indptr.tolist(), by_rows.indices.tolist()
    level: list[int] = []
    for start, end in pairwise(starts):  # the last of a row is its diagonal
        level.append(1 + max((level[k] for k in columns[start : end - 1]), default=-1))
    return np.asarray(level, np.int64)


def _products(n: int, starts: Any, rows: Any, columns: Any) -> Any:
    """Entries (i, k) and (j, k) of one column, i >= j > k, with the entry (i, j), where there is
    one."""
    keys = columns * n + rows  # ascending
    second = np.flatnonzero(rows > columns)
    counts = starts[columns[second] + 1] - second
    found: list[Any] = [np.zeros((3, 0), np.int64)]
    cuts = (
        np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum() + CHUNK, CHUNK))
        if len(counts)
        else [0]
    )
    for start, end in zip(cuts, [*cuts[1:], len(second)]):
        each, much = second[start:end], counts[start:end]
        right = np.repeat(each, much)
        left = right + np.arange(len(right)) - np.repeat(np.cumsum(much) - much, much)
        wanted = rows[right] * n + rows[left]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        there = keys[place] == wanted
        found.append(np.stack([left[there], right[there], place[there]]))
    return np.concatenate(found, axis=1)
