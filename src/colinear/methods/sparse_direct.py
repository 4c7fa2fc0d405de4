"""Sparse elimination, A = P_r^T L U P_c^T, by SuperLU (Demmel, Eisenstat, Gilbert, Li and Liu 1999) on the host.

A batch of matrices of one pattern is factored at once, as the blocks of one block-diagonal matrix.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DTYPES = ("float32", "float64", "complex64", "complex128")


class SparseLU:
    """The factorisation of a sparse matrix, or of a batch of them: static, compared by identity, made again when unpickled.

    Parameters
    ----------
    data : array, (*batch, nnz)
    indptr, columns : arrays
        Compressed rows.
    definite : bool
        Whether the matrices are positive definite: then the order is that of the symmetric pattern, and pivots stay on the diagonal.

    Raises
    ------
    ArithmeticError
        If a matrix is exactly singular.
    """

    def __init__(self, data: Any, indptr: Any, columns: Any, definite: bool):
        from scipy.sparse import csc_array, csr_array
        from scipy.sparse.linalg import splu

        data = np.asarray(data)
        self.arguments = (data, indptr, columns, definite)
        self.batch, n = data.shape[:-1], len(indptr) - 1
        count = math.prod(self.batch)
        starts = np.concatenate([np.asarray(indptr[:-1]) + k * len(columns) for k in range(count)] + [[count * len(columns)]])
        places = np.concatenate([np.asarray(columns) + k * n for k in range(count)]) if count else np.zeros(0, int)
        matrix = csc_array(csr_array((data.reshape(-1), places, starts), shape=(count * n, count * n)))
        options = (
            {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0, "options": {"SymmetricMode": True}} if definite else {}
        )
        try:
            self.factors = splu(matrix, **options)
        except RuntimeError as error:
            raise ArithmeticError(str(error)) from error

    def solve(self, X: Any, form: str) -> Any:
        """A^-1 X ("N"), A^-T X ("T"), A^-H X ("H") or conj(A)^-1 X ("C") for X of shape (..., *batch, n, k)."""
        if form == "C":
            return np.conj(self.solve(np.conj(X), "N"))
        dtype = np.result_type(X, self.arguments[0])
        if np.iscomplexobj(X) and not np.iscomplexobj(self.arguments[0]):
            return self.solve(X.real, form) + 1j * self.solve(X.imag, form)
        batch = np.broadcast_shapes(X.shape[:-2], self.batch)
        X = np.broadcast_to(X, (*batch, *X.shape[-2:]))
        outer, (n, k) = batch[: len(batch) - len(self.batch)], X.shape[-2:]
        # Outer batch dimensions share the factors, so they are columns like all others.
        stacked = X.reshape(math.prod(outer), math.prod(self.batch), n, k)
        columns = np.moveaxis(stacked, 0, 2).reshape(stacked.shape[1] * n, -1)
        if columns.size:
            columns = self.factors.solve(np.ascontiguousarray(columns, self.arguments[0].dtype), trans=form)
        solved = np.moveaxis(columns.reshape(stacked.shape[1], n, stacked.shape[0], k), 2, 0)
        return np.ascontiguousarray(solved.reshape(*batch, n, k), dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return SparseLU, self.arguments
