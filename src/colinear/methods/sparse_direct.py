"""Sparse elimination, A = P_r^T L U P_c^T, by SuperLU (Demmel, Eisenstat, Gilbert, Li and Liu 1999)
on the host.

A batch of matrices of one pattern is factored at once, as the blocks of one block-diagonal matrix.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")


class HostFactor:
    """Factors that the host holds: static in a program, and equal if made of equal `arguments`, so
    that a compiled program serves all that are. Made again when unpickled."""

    arguments: tuple[Any, ...]

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

    Raises
    ------
    ArithmeticError
        If a matrix is exactly singular.
    """

    def __init__(
        self,
        data: Any,
        indptr: Any,
        columns: Any,
        definite: bool,
        symmetric: bool = False,
        incomplete: tuple[float, float] | None = None,
    ):
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import spilu, splu

        data = np.asarray(data)
        self.arguments = (data, indptr, columns, definite, symmetric, incomplete)
        self.batch = data.shape[:-1]
        matrix = csc_array(stacked_matrix(data, indptr, columns))
        options: dict[str, Any] = {}
        if definite or symmetric:
            threshold = 0.0 if definite else 0.1
            options = {
                "permc_spec": "MMD_AT_PLUS_A",
                "diag_pivot_thresh": threshold,
                "options": {"SymmetricMode": True},
            }
        try:
            if is_triangular(indptr, columns):
                self.factors = Substitution(matrix, lower=bool(np.all(columns <= rows_of(indptr))))
            elif incomplete is None:
                self.factors = splu(matrix, **options)
            else:
                self.factors = spilu(
                    matrix, drop_tol=incomplete[0], fill_factor=incomplete[1], **options
                )
        except RuntimeError as error:
            raise ArithmeticError(str(error)) from error

    @property
    def flops(self) -> float:
        return 2.0 * self.factors.nnz

    def solve(self, X: Any, form: str) -> Any:
        """A^-1 X ("N"), A^-T X ("T"), A^-H X ("H") or conj(A)^-1 X ("C") for X of shape (...,
        *batch, n, k)."""
        if form == "C":
            return np.conj(self.solve(np.conj(X), "N"))
        return solved_columns(
            lambda B: self.factors.solve(B, trans=form), X, self.batch, self.arguments[0].dtype
        )


class Substitution:
    """The factors of a triangular matrix: itself. SuperLU, which orders columns by its own lights,
    would fill them in."""

    def __init__(self, matrix: Any, lower: bool):
        if np.any(matrix.diagonal() == 0):
            raise RuntimeError("a triangular matrix with a zero on its diagonal is singular")
        from scipy.sparse import csr_array

        # rows: what every version of SciPy takes
        self.matrix, self.lower, self.nnz = (
            csr_array(matrix),
            lower,
            matrix.nnz,
        )

    def solve(self, B: Any, trans: str = "N") -> Any:
        """A^-1 B, A^-T B or A^-H B, as SuperLU's factors have it."""
        from scipy.sparse import csr_array
        from scipy.sparse.linalg import spsolve_triangular

        if trans == "N":
            return spsolve_triangular(self.matrix, B, lower=self.lower)
        A = csr_array(self.matrix.T if trans == "T" else self.matrix.conj().T)
        return spsolve_triangular(A, B, lower=not self.lower)


def rows_of(indptr: Any) -> Any:
    """The row of each entry."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def is_triangular(indptr: Any, columns: Any) -> bool:
    """Whether nothing stands above the diagonal, or nothing below it."""
    rows = rows_of(indptr)
    return bool(np.all(columns <= rows) or np.all(columns >= rows))


def stacked_matrix(data: Any, indptr: Any, columns: Any) -> Any:
    """The matrices of a batch, (*batch, nnz), as the blocks of one block-diagonal SciPy matrix."""
    from scipy.sparse import csr_array

    n, count = len(indptr) - 1, math.prod(data.shape[:-1])
    if count == 1:
        return csr_array((data.reshape(-1), columns, indptr), shape=(n, n))
    starts = np.concatenate(
        [np.asarray(indptr[:-1]) + k * len(columns) for k in range(count)]
        + [[count * len(columns)]]
    )
    places = (
        np.concatenate([np.asarray(columns) + k * n for k in range(count)])
        if count
        else np.zeros(0, int)
    )
    return csr_array((data.reshape(-1), places, starts), shape=(count * n, count * n))


def solved_columns(solve: Any, X: Any, inner: tuple[int, ...], dtype: Any) -> Any:
    """`solve` of columns of the stacked matrices, for X of shape (..., *inner, n, k) and matrices
    of this dtype."""
    if np.iscomplexobj(X) and np.dtype(dtype).kind != "c":
        return solved_columns(solve, X.real, inner, dtype) + 1j * solved_columns(
            solve, X.imag, inner, dtype
        )
    batch = np.broadcast_shapes(X.shape[:-2], inner)
    result = np.result_type(X, dtype)
    X = np.broadcast_to(X, (*batch, *X.shape[-2:]))
    outer, (n, k) = batch[: len(batch) - len(inner)], X.shape[-2:]
    # Outer batch dimensions share the factors, so they are columns like all others.
    stacked = X.reshape(math.prod(outer), math.prod(inner), n, k)
    columns = np.moveaxis(stacked, 0, 2).reshape(stacked.shape[1] * n, -1)
    if columns.size:
        columns = solve(np.ascontiguousarray(columns, dtype))
    solved = np.moveaxis(columns.reshape(stacked.shape[1], n, stacked.shape[0], k), 2, 0)
    return np.ascontiguousarray(solved.reshape(*batch, n, k), result)


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
    A = csr_array(
        (np.ones(structure.nnz, np.int8), structure.columns, structure.indptr),
        shape=structure.shape,
    )
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
    from scipy.sparse import coo_array, csc_array, csr_array
    from scipy.sparse.linalg import splu

    matrix = csc_array(
        csr_array((data, structure.columns, structure.indptr), shape=structure.shape)
    )
    options = {"SymmetricMode": True} if definite else {}
    try:
        found = splu(
            matrix,
            permc_spec="NATURAL",
            diag_pivot_thresh=0.0 if definite else 1.0,
            options=options,
        )
    except RuntimeError as error:
        raise ArithmeticError(str(error)) from error
    back = np.argsort(found.perm_c)
    L, U = (coo_array(factor) for factor in (found.L, found.U))
    L, U = (coo_array((X.data, (back[X.row], back[X.col])), shape=X.shape) for X in (L, U))
    if np.any(L.col > L.row) or np.any(U.col < U.row):
        raise ArithmeticError("the columns were not eliminated in their order")
    return L, U, np.argsort(back[found.perm_r])
