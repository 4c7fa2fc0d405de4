"""Products with sparse matrices, and solves of tridiagonal and banded ones, in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .arrays import _half

# sparse and scattered
# ----------------------------------------------------------------------------------------------


@_half
def sparse_matmul(data: Any, structure: Any, X: Any) -> np.ndarray:
    """Multiply by the sparse matrix of these entries: data (*batch, nnz), X (*batch, n, k) ->
    (*batch, m, k)."""
    m, n = structure.shape
    # a vector too, which SciPy multiplies faster than a block of one
    if data.ndim == 1 and X.ndim <= 2:
        return _csr(data, structure) @ X
    if data.ndim == 1:  # one matrix, many right sides: they are columns of one
        columns = np.moveaxis(X, -2, 0)
        product = _csr(data, structure) @ columns.reshape(n, math.prod(columns.shape[1:]))
        return np.moveaxis(product.reshape(m, *columns.shape[1:]), 0, -2)
    batch = np.broadcast_shapes(data.shape[:-1], X.shape[:-2])
    out = np.empty((*batch, m, X.shape[-1]), np.result_type(data, X))
    data, X = (
        np.broadcast_to(data, (*batch, data.shape[-1])),
        np.broadcast_to(X, (*batch, *X.shape[-2:])),
    )
    for index in np.ndindex(batch):
        out[index] = _csr(data[index], structure) @ X[index]
    return out


def _csr(data: Any, structure: Any) -> Any:
    """A SciPy matrix of these entries. Its constructor checks the indices, at 30 us: a copy of
    one that passed does not."""
    if "scipy" not in structure.memo:
        import scipy.sparse

        indices = structure.columns, structure.indptr
        structure.memo["scipy"] = scipy.sparse.csr_array(
            (np.zeros(len(indices[0])), *indices), shape=structure.shape
        )
    template = structure.memo["scipy"]
    matrix = object.__new__(type(template))
    matrix.__dict__.update(template.__dict__, data=data)
    return matrix


def sparse_array(data: Any, structure: Any) -> Any:
    """The matrix in the framework's own format: SciPy's CSR."""
    if data.ndim > 1:
        from colinear.info import BackendError

        raise BackendError(
            f"SciPy has no batches of sparse matrices; this one has batch shape {data.shape[:-1]}."
        )
    return _csr(data, structure).copy()  # the indices that we keep are read-only
