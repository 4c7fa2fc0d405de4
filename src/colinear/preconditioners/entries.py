"""Parts of an operator that preconditioners are made of: columns, diagonal blocks and the entries of sparse matrices.

Each is a function with rules, so that an operator of a user's own joins by adding one.
"""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import function, rule
from ..functions._values import placed
from ..functions.diagonal import diag
from ..info import BackendError, MethodError
from ..operators.base import LinearOperator
from ..operators.context import broadcast_batches
from ..operators.dense import Dense
from ..operators.fields import Index
from ..operators.kernel import Kernel
from ..operators.lowrank import LowRank
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sparse_algebra import DIAGONAL, multiply_out, times
from ..operators.sparsity import from_coordinates
from ..operators.sum import Sum
from ..operators.zero import Zero

BLOCK = 1 << 20  # entries that a block of columns may have


# ---------------------------------------------------------------------------------------------------- columns


def one_column(A: LinearOperator, i: Array) -> Array:
    """A e_i, where i is an integer array: one for each matrix of a batch. One product."""
    xp = A.xp
    unit = xp.arange(A.shape[-1], device=A._context.device) == i[..., None]
    return (A @ xp.astype(unit, A.dtype)[..., None])[..., 0]


column = function("column", base=one_column, rewrites=False)


@rule(column, Dense)
def column_dense(A: Any, i: Array) -> Array:
    """A e_i is read off"""
    xp, batch = A.xp, broadcast_batches(A.batch_shape, i.shape)
    if not batch:
        return xp.take(A.A, i, axis=-1)
    place = xp.broadcast_to(i[..., None, None], (*batch, A.shape[-2], 1))
    return xp.take_along_axis(xp.broadcast_to(A.A, (*batch, *A.shape[-2:])), place, -1)[..., 0]


def is_single(A: LinearOperator) -> bool:
    """Whether A is one matrix, not a batch."""
    return not A.batch_shape


@rule(column, Kernel, when=is_single)
def column_kernel(A: Any, i: Array) -> Array:
    """K e_i = k(X, x_i)"""
    xp, (rows, columns) = A.xp, A._points()
    entries = A._entries(rows, xp.take(columns, xp.reshape(i, (-1,)), axis=0))
    return xp.reshape(xp.matrix_transpose(entries), (*i.shape, A.shape[-2]))


@rule(column, Sum)
def column_sum(A: Any, i: Array) -> Array:
    """(A + B) e_i = A e_i + B e_i"""
    return reduce(add, (column(term, i) for term in placed(A)))


@rule(column, Scaled)
def column_scaled(A: Any, i: Array) -> Array:
    """(c A) e_i = c (A e_i)"""
    return times(A.scalar, column(A.A, i), 1)


# ---------------------------------------------------------------------------------------------------- diagonal blocks


def blocks_by_products(A: LinearOperator, places: Index) -> Array:
    """The principal submatrices of rows and columns `places[k]`, (*batch, count, size, size): one product for each column."""
    xp, (count, size) = A.xp, places.host.shape
    if math.prod(A.shape) <= BLOCK:
        return diagonal_blocks(Dense._of(A._dense()), places)
    step = max(1, BLOCK // (A.shape[-2] * size))
    within = np.arange(min(step, count) * size).reshape(-1, size)
    parts = []
    for start in range(0, count, step):
        chosen = places.host[start : start + step]
        columns = A[..., chosen.reshape(-1)]._dense()
        rows, numbers = (Index(x).on(xp, A._context.device) for x in (chosen[:, :, None], within[: len(chosen), None, :]))
        parts.append(columns[..., rows, numbers])
    return xp.concat(parts, axis=-3)


diagonal_blocks = function("diagonal_blocks", base=blocks_by_products, rewrites=False)


@rule(diagonal_blocks, Dense)
def blocks_of_dense(A: Any, places: Index) -> Array:
    """A[p, p] is read off"""
    rows, columns = (Index(x).on(A.xp, A._context.device) for x in (places.host[:, :, None], places.host[:, None, :]))
    return A.A[..., rows, columns]


@rule(diagonal_blocks, Sparse)
def blocks_of_sparse(A: Any, places: Index) -> Array:
    """The entries whose row and column are of one block"""
    xp, (count, size), structure = A.xp, places.host.shape, A.structure
    block, within = np.full(A.shape[-1], -1), np.zeros(A.shape[-1], np.int64)
    block[places.host], within[places.host] = np.arange(count)[:, None], np.arange(size)
    rows, columns = structure.rows, structure.columns
    inside = np.flatnonzero((block[rows] == block[columns]) & (block[rows] >= 0))
    rows, columns = rows[inside], columns[inside]
    target = Index((block[rows] * size + within[rows]) * size + within[columns]).on(xp, A._context.device)
    empty = xp.zeros((*A.batch_shape, count * size * size), dtype=A.dtype, device=A._context.device)
    values = xp.take(A.data, Index(inside).on(xp, A._context.device), axis=-1)
    return xp.reshape(xp.scatter_add(empty, target, values, axis=-1), (*A.batch_shape, count, size, size))


@rule(diagonal_blocks, Kernel, when=is_single)
def blocks_of_kernel(A: Any, places: Index) -> Array:
    """K[p, p] = k(X_p, Y_p)"""
    xp, (rows, columns) = A.xp, A._points()
    chosen = xp.asarray(places.host, device=A._context.device)
    return xp.loop_map(lambda p: A._entries(xp.take(rows, p, axis=0), xp.take(columns, p, axis=0)), chosen)


@rule(diagonal_blocks, DIAGONAL)
def blocks_of_diagonal(A: Any, places: Index) -> Array:
    """diag(d)[p, p] = diag(d_p)"""
    xp, d = A.xp, diag(A)
    return xp.make_diagonal(d[..., places.on(xp, A._context.device)])


@rule(diagonal_blocks, LowRank)
def blocks_of_low_rank(A: Any, places: Index) -> Array:
    """(U C V^H)[p, p] = U_p C V_p^H"""
    xp, p = A.xp, places.on(A.xp, A._context.device)
    U, V = A.U[..., p, :], (A.U if A.V is None else A.V)[..., p, :]
    U = U if A.core is None else xp.matmul(U, A.core[..., None, :, :])
    return xp.matmul(U, xp.conj(xp.matrix_transpose(V)))


@rule(diagonal_blocks, Sum)
def blocks_of_sum(A: Any, places: Index) -> Array:
    """(A + B)[p, p] = A[p, p] + B[p, p]"""
    return reduce(add, (diagonal_blocks(term, places) for term in placed(A)))


@rule(diagonal_blocks, Scaled)
def blocks_of_multiple(A: Any, places: Index) -> Array:
    """(c A)[p, p] = c A[p, p]"""
    return times(A.scalar, diagonal_blocks(A.A, places), 3)


# ---------------------------------------------------------------------------------------------------- sparse matrices


@rule(multiply_out, Dense)
def sparse_of_dense(A: Any, whole: LinearOperator) -> Any:
    """The entries that are not zero in all matrices of the batch"""
    xp = A.xp
    values = seen("ILU, IC or AMG", xp, A.A)
    rows, columns = np.nonzero(np.any(np.reshape(values != 0, (-1, *A.shape[-2:])), axis=0))
    structure, _ = from_coordinates(rows, columns, A.shape[-2:])
    r, c = (Index(x).on(xp, A._context.device) for x in (structure.rows, structure.columns))
    return Sparse._of(A.A[..., r, c], structure)


@rule(multiply_out, Zero)
def sparse_of_zero(A: Any, whole: LinearOperator) -> Any:
    """No entries"""
    structure, _ = from_coordinates([], [], A.shape[-2:])
    return Sparse._of(whole.xp.zeros((*A.batch_shape, 0), dtype=whole.dtype, device=whole._context.device), structure)


def seen(name: str, xp: Any, x: Array) -> Any:
    """The values on the host, in at least single precision; an error that says what to do where they cannot be seen."""
    if xp.is_traced(x) and xp.peek(x) is None:
        raise BackendError(
            f"{name}: made from values on the host, which cannot be seen under jit or vmap. Make the preconditioner outside, and "
            "pass the operator in: preconditioner=M."
        )
    values = np.asarray(xp.to_numpy(xp.stop_gradient(x)))
    if not np.isfinite(values).all():
        raise MethodError(f"{name}: A has NaN or infinity among its entries.")
    return values.astype(np.result_type(values, np.float32))
