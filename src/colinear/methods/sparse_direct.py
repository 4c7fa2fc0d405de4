"""Sparse factorisations on the host, complete and incomplete.

Elimination, A = P_r^T L U P_c^T, is SuperLU's (Demmel, Eisenstat, Gilbert, Li and Liu 1999). A batch
of matrices of one pattern is factored at once, as the blocks of one block-diagonal matrix.

Incomplete Cholesky, A ≈ L L^H for positive definite A: without fill (IC(0)) the factor has the
pattern of A's lower triangle, and L L^H equals A there (Meijerink and van der Vorst 1977). With a
threshold it is made of the lower factor and the pivots of SuperLU's incomplete LU (Li and Shao
2011), A ≈ L D L^H. A pivot that is not positive makes both start again with more weight on the
diagonal (Manteuffel 1980). Columns of the factor that do not depend on each other are computed at
once: one pass of array operations for each level of the graph of dependences (a tridiagonal matrix
has n levels, a grid as many as its diagonals).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from ..backends import factorising

LEAST_PIVOT = 1e-6  # of a matrix with a unit diagonal
SHIFTS = (0.0, 1e-3, 1e-2, 0.05, 0.2, 1.0, 5.0)  # of incomplete factors, one after the other
# Elimination of a triangular matrix in the given order changes nothing, and fills in nothing, if no
# columns are made alike (relax) to go together.
IN_ORDER = {"permc_spec": "NATURAL", "diag_pivot_thresh": 0.0, "relax": 1}
CHUNK = 1 << 22  # pairs of entries looked at together


class HostFactor:
    """Factors that the host holds: static in a program, and equal if made of equal `arguments`, so
    that a compiled program serves all that are. Made again when unpickled."""

    arguments: tuple[Any, ...]  # the values of the matrices first
    solve_columns: Any  # the solution for columns of the stacked matrices, in a form

    def solve(self, X: Any, form: str) -> Any:
        """A^-1 X ("N"), A^-T X ("T"), A^-H X ("H") or conj(A)^-1 X ("C") for X of shape (...,
        *batch, n, k)."""
        if form == "C":
            return np.conj(self.solve(np.conj(X), "N"))
        *inner, _ = self.arguments[0].shape
        dtype = self.arguments[0].dtype
        if np.iscomplexobj(X) and dtype.kind != "c":
            return self.solve(X.real, form) + 1j * self.solve(X.imag, form)
        batch = np.broadcast_shapes(X.shape[:-2], tuple(inner))
        result, (n, k) = np.result_type(X, dtype), X.shape[-2:]
        # Outer batch dimensions share the factors, so they are columns like all others.
        outer = math.prod(batch[: len(batch) - len(inner)])
        stacked = np.broadcast_to(X, (*batch, n, k)).reshape(outer, math.prod(inner), n, k)
        columns = np.moveaxis(stacked, 0, 2).reshape(stacked.shape[1] * n, -1)
        if columns.size:
            columns = self.solve_columns(np.ascontiguousarray(columns, dtype), form)
        solved = np.moveaxis(columns.reshape(stacked.shape[1], n, outer, k), 2, 0)
        return np.ascontiguousarray(solved.reshape(*batch, n, k), result)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        return all(
            np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
            for x, y in zip(self.arguments, other.arguments)
        )

    def __hash__(self) -> int:
        found = self.__dict__.get("_hash")
        if found is None:
            parts = (x.tobytes() if isinstance(x, np.ndarray) else x for x in self.arguments)
            found = self.__dict__["_hash"] = hash((type(self), *parts))
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.arguments


class SparseLU(HostFactor):
    """The factorisation of a sparse matrix, or of a batch of them.

    Parameters
    ----------
    data : array, (*batch, nnz)
    indptr, columns : arrays
        Compressed rows.
    definite : bool
        Whether the matrices are positive definite: then the order is that of the symmetric pattern,
        and pivots stay on the diagonal.
    symmetric : bool
        Whether the pattern is symmetric: then the order is that of the pattern, and pivots leave
        the diagonal only where it is a tenth of the largest. Half the fill or less, on the grids
        and graphs where such matrices come from.
    incomplete : (float, float), optional
        A threshold, relative, below which entries are dropped, and how many times as many entries
        as A the factors may have (Li and Shao 2011). Without it, all are kept.
    order : array, optional
        In which the columns are eliminated: the `order` of the factors of one such matrix serves
        all that have its pattern. To find one takes a tenth to a half of the time.

    Raises
    ------
    ArithmeticError
        If a matrix is exactly singular.
    """

    @factorising
    def __init__(
        self,
        data: Any,
        indptr: Any,
        columns: Any,
        definite: bool,
        symmetric: bool = False,
        incomplete: tuple[float, float] | None = None,
        order: Any = None,
    ):
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import spilu, splu

        data = np.asarray(data)
        self.arguments = (data, indptr, columns, definite, symmetric, incomplete)
        matrix = csc_array(stacked_matrix(data, indptr, columns))
        self._columns, self._rows = order, order if definite or symmetric else None
        options: dict[str, Any] = {}
        is_exact = is_triangular(indptr, columns)
        if is_exact:
            options = dict(IN_ORDER)
        elif definite or symmetric:
            options = {
                "permc_spec": "MMD_AT_PLUS_A",
                "diag_pivot_thresh": 0.0 if definite else 0.1,
                "options": {"SymmetricMode": True},
            }
        if order is not None:
            matrix = matrix[:, order] if self._rows is None else matrix[:, order][order]
            options["permc_spec"] = "NATURAL"
        try:
            if incomplete is None or is_exact:
                self.factors = splu(matrix, **options)
            else:
                drop_tol, fill = incomplete
                self.factors = spilu(matrix, drop_tol=drop_tol, fill_factor=fill, **options)
        except RuntimeError as error:
            raise ArithmeticError(str(error)) from error

    @property
    def flops(self) -> float:
        return 2.0 * self.factors.nnz

    @property
    def order(self) -> Any:
        """The order of the columns: `order[k]` was eliminated k-th."""
        found = np.argsort(self.factors.perm_c)
        return found if self._columns is None else self._columns[found]

    def solve_columns(self, B: Any, form: str) -> Any:
        if self._columns is None:
            return self.factors.solve(B, trans=form)
        before, after = self._rows, self._columns  # A[before][:, after] was factored
        if form != "N":
            before, after = after, before
        Y = self.factors.solve(B if before is None else B[before], trans=form)
        if after is None:
            return Y
        X = np.empty_like(Y)
        X[after] = Y
        return X

    def pivots(self) -> tuple[Any, list[Any]]:
        """The pivots of each matrix of a batch, (*batch, n), and the orders of its rows and of its
        columns in which they were found, (*batch, n) each."""
        (*batch, _), n = self.arguments[0].shape, len(self.arguments[1]) - 1
        orders = [np.argsort(self.factors.perm_r), self.order]
        orders[0] = orders[0] if self._rows is None else self._rows[orders[0]]
        # one matrix after the other: elimination of all of them mixes them
        sorted_ = np.argsort(orders[1] // n, kind="stable")
        pivots, *orders = (
            np.reshape(x[sorted_], (*batch, n))
            for x in (self.factors.U.diagonal(), *(x % n for x in orders))
        )
        return pivots, orders


def is_triangular(indptr: Any, columns: Any) -> bool:
    """Whether nothing stands above the diagonal, or nothing below it."""
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return bool(np.all(columns <= rows) or np.all(columns >= rows))


def stacked_matrix(data: Any, indptr: Any, columns: Any) -> Any:
    """The matrices of a batch, (*batch, nnz), as the blocks of one block-diagonal SciPy matrix."""
    from scipy.sparse import csr_array

    n, nnz, count = len(indptr) - 1, len(columns), math.prod(data.shape[:-1])
    block = np.arange(count)[:, None]
    starts = np.append(np.asarray(indptr[:-1]) + nnz * block, count * nnz)
    places = np.reshape(np.asarray(columns) + n * block, -1)
    return csr_array((data.reshape(-1), places, starts), shape=(count * n, count * n))


# --------------------------------------------------------------------------------------------------


def stays_sparse(structure: Any, definite: bool, most: float) -> bool:
    """Whether elimination with the columns in their order fills in at most so many entries.

    Without pivots the factors have the pattern of L for A + A^T; with them, whatever they are, that
    of L for A^T A.
    """
    from scipy.sparse import csr_array

    counts = np.diff(structure.indptr).astype(float)
    if not structure.nnz or (not definite and float(counts @ counts) > most):
        return False
    ones = np.ones(structure.nnz, np.int8)
    A = csr_array((ones, structure.columns, structure.indptr), shape=structure.shape)
    graph = csr_array(A + A.T if definite else A.T.astype(np.int32) @ A)
    graph.sort_indices()
    first = np.minimum(
        graph.indices[np.minimum(graph.indptr[:-1], graph.nnz - 1)], np.arange(len(counts))
    )
    # nothing fills in outside the envelope
    if float((np.arange(len(counts)) - first).sum()) <= most:
        return True
    # the columns of L of the children of each node of the elimination tree
    below: list[list[Any]] = [[] for _ in counts]
    total = 0
    for j, children in enumerate(below):
        own = graph.indices[graph.indptr[j] : graph.indptr[j + 1]]
        column = np.unique(np.concatenate([own, *children])) if children else own
        column = column[column > j]
        total += len(column)
        if total + len(column) * (len(column) - 1) / 2 > most:  # they are all connected now
            return False
        if len(column):
            below[column[0]].append(column)
        children.clear()
    return True


def factors_in_order(data: Any, structure: Any, definite: bool) -> tuple[Any, Any, Any]:
    """L, U (SciPy's, by coordinates) and the order of rows with A[order] = L U, the columns in
    their order.

    SuperLU renumbers the columns by a postorder of their elimination tree. That changes no pivot
    and no entry, so the factors are those of the given order, renumbered: here they are put back.
    """
    from scipy.sparse import coo_array, csc_array
    from scipy.sparse.linalg import splu

    matrix = csc_array(stacked_matrix(data, structure.indptr, structure.columns))
    try:
        found = factorising(splu)(
            matrix,
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0 if definite else 1.0,
            options={"SymmetricMode": definite},
        )
    except RuntimeError as error:
        raise ArithmeticError(str(error)) from error
    back = np.argsort(found.perm_c)
    L, U = (
        coo_array((X.data, (back[X.row], back[X.col])), shape=X.shape)
        for X in map(coo_array, (found.L, found.U))
    )
    if np.any(L.col > L.row) or np.any(U.col < U.row):
        raise ArithmeticError("the columns were not eliminated in their order")
    return L, U, np.argsort(back[found.perm_r])


# ------------------------------------------------------------------------------ incomplete Cholesky


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

    @factorising
    def __init__(self, data: Any, indptr: Any, columns: Any, drop_tol: float | None, fill: float):
        from scipy.sparse import csc_array, diags_array
        from scipy.sparse.linalg import splu

        data = np.asarray(data)
        self.arguments = (data, indptr, columns, drop_tol, fill)
        wide = np.result_type(data, np.float64)
        A = csc_array(stacked_matrix(data.astype(wide), indptr, columns))
        scale = A.diagonal().real
        if not (scale > 0).all():
            raise ArithmeticError(f"a diagonal entry that is not positive, {scale.min():.3g}")
        root = np.sqrt(scale)
        unit = csc_array(diags_array(1 / root) @ A @ diags_array(1 / root))
        factor = _without_fill(unit) if drop_tol is None else _by_threshold(unit, drop_tol, fill)
        found = next((f for f in map(factor, SHIFTS) if f is not None), None)
        if found is None:
            raise ArithmeticError("pivots that are not positive, with any weight on the diagonal")
        L, self.order = found
        L = csc_array(diags_array(root[self.order]) @ L)
        # Triangular already: SuperLU's solves are compiled.
        L = csc_array(L, dtype=data.dtype)
        self.factor = splu(L, **IN_ORDER, options={"Equil": False})
        self.flops = 4.0 * L.nnz

    def solve_columns(self, B: Any, form: str) -> Any:
        """(L L^H)^-1 B, or its conjugate for the form "T"."""
        if form == "T":
            return np.conj(self.solve_columns(np.conj(B), "N"))
        X = np.empty_like(B)
        Y = self.factor.solve(np.ascontiguousarray(B[self.order]))
        X[self.order] = self.factor.solve(Y, trans="H")
        return X


def _by_threshold(A: Any, drop_tol: float, fill: float) -> Any:
    """shift -> the factor of A + shift I and the order of its rows, None if a pivot is not
    positive."""
    from scipy.sparse import csc_array, diags_array, eye_array
    from scipy.sparse.linalg import spilu

    def factor(shift: float) -> Any:
        try:
            ilu = spilu(
                csc_array(A + shift * eye_array(A.shape[0])),
                drop_tol,
                fill,
                # SuperLU's minimum degree of A + A^T takes minutes where rows have a dozen far
                # entries; this order takes none.
                permc_spec="COLAMD",
                diag_pivot_thresh=0.0,
                options={"SymmetricMode": True},
            )
        except RuntimeError:  # an exactly zero pivot
            return None
        pivots = ilu.U.diagonal().real
        if not np.array_equal(ilu.perm_r, ilu.perm_c) or not (pivots > LEAST_PIVOT).all():
            return None
        return ilu.L @ diags_array(np.sqrt(pivots)), np.argsort(ilu.perm_r)

    return factor


def _without_fill(A: Any) -> Any:
    """shift -> the factor of A + shift I on A's own pattern and order, None if a pivot is not
    positive.

    l_ij = (a_ij - sum_k l_ik conj(l_jk)) / l_jj, k < j, for all columns of a level at once.
    """
    from scipy.sparse import csc_array, tril

    lower = csc_array(tril(A))
    lower.sort_indices()
    starts, rows = (x.astype(np.int64) for x in (lower.indptr, lower.indices))
    n, first = lower.shape[0], starts[:-1]  # of each column: its diagonal
    columns = np.repeat(np.arange(n), np.diff(starts))
    level = _levels(lower)[columns]
    # entries, column after column within a level
    order, place = np.argsort(level, kind="stable"), np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows))
    # which entries of L are multiplied for which
    products = place[_products(n, starts, rows, columns)]
    left, right, target = products[:, np.argsort(products[2], kind="stable")]
    # for each entry, the diagonal of its column
    diagonal = place[first][columns][order]
    entries = np.searchsorted(level[order], np.arange(level.max(initial=-1) + 2))
    spans = [*pairwise(zip(entries.tolist(), np.searchsorted(target, entries).tolist()))]

    def factor(shift: float) -> Any:
        values = lower.data.copy()
        values[first] += shift
        L = values[order]
        for (lo, start), (hi, end) in spans:
            if end > start:
                terms = L[left[start:end]] * L[right[start:end]].conj()
                where = target[start:end] - lo
                L[lo:hi] -= np.bincount(where, terms.real, hi - lo)
                if np.iscomplexobj(L):
                    L[lo:hi] -= 1j * np.bincount(where, terms.imag, hi - lo)
            pivots = L[diagonal[lo:hi]].real
            if not pivots.min() > LEAST_PIVOT:
                return None
            L[lo:hi] /= np.sqrt(pivots)
        values[order] = L
        return csc_array((values, lower.indices, lower.indptr), lower.shape), slice(None)

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
    cuts = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum() + CHUNK, CHUNK))
    for start, end in zip(cuts, [*cuts[1:], len(second)]):
        each, much = second[start:end], counts[start:end]
        right = np.repeat(each, much)
        left = right + np.arange(len(right)) - np.repeat(np.cumsum(much) - much, much)
        wanted = rows[right] * n + rows[left]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        there = keys[place] == wanted
        found.append(np.stack([left[there], right[there], place[there]]))
    return np.concatenate(found, axis=1)
