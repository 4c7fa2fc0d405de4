"""Approximations from a matrix's own rows and columns, found by pivoting in a random sketch (Voronin and Martinsson 2017).

The columns that QR with pivoting takes first of Ω^H A are good ones of A itself, and cost n log n or so to find.
"""

from __future__ import annotations

from typing import Any

from ..backends import Array, adjoint
from ..dispatch import function
from ..functions._arrays import narrow, quiet
from ..operators.base import LinearOperator
from ..operators.lowrank import LowRank
from .shared import checked_rank, checked_seed, compiled, single, tell

OVERSAMPLING = 10  # rows of the sketch beyond the rank


def interpolation(A: LinearOperator, rank: int, seed: Any = 0) -> tuple[LinearOperator, Array]:
    """An interpolative decomposition A ≈ A[:, columns] Z: the other columns are combinations of a few.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rank : int
        How many columns.
    seed : int, JAX key, or NumPy or torch generator
        Of the sketch.

    Returns
    -------
    approximation : LowRank, (*batch, m, n)
        U V^H, with U = A[:, columns] and V^H = Z, which is I in those columns.
    columns : array of integers, (*batch, rank)

    Notes
    -----
    `rank + 10` products with A^H, the columns, and O(n rank^2). `info.error` estimates |A - A[:, columns] Z| / |A| in the Frobenius
    norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = 1 / (1 + np.arange(60.0)[:, None] + np.arange(40.0))
    >>> A_low, columns = co.interpolative(A, rank=8)
    >>> bool(np.allclose(A_low.to_dense(), A, atol=1e-4)), len(columns)
    (True, 8)
    """
    xp, rank, K, seed = A.xp, checked_rank("interpolative", A, rank), single(A), checked_seed("interpolative", seed)
    with quiet(xp):
        U, V, columns = compiled(_interpolation, K, rank, seed)
        found = LowRank(narrow(xp, U, A.dtype), narrow(xp, V, A.dtype))
        tell(A, found, "Interpolative", 2 * rank + OVERSAMPLING, seed)
    return found, columns


def skeleton(A: LinearOperator, rank: int, seed: Any = 0) -> tuple[LinearOperator, Array, Array]:
    """A CUR decomposition A ≈ C M R, with a few columns C and rows R of A itself, and the best M for them.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rank : int
        How many rows, and columns.
    seed : int, JAX key, or NumPy or torch generator
        Of the sketches.

    Returns
    -------
    approximation : LowRank, (*batch, m, n)
        U = C, core = C^+ A R^+, V = R^H.
    rows, columns : arrays of integers, (*batch, rank)

    Notes
    -----
    2 `rank` + 10 products with A and with A^H, and O((m + n) rank^2). `info.error` estimates |A - C M R| / |A| in the Frobenius norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = 1 / (1 + np.arange(60.0)[:, None] + np.arange(40.0))
    >>> (A_low, rows, columns), info = co.cur(A, rank=8, info=True)
    >>> bool(np.allclose(A_low.to_dense(), A, atol=1e-4)), bool(info.error < 1e-4)
    (True, True)
    """
    xp, rank, K, seed = A.xp, checked_rank("cur", A, rank), single(A), checked_seed("cur", seed)
    with quiet(xp):
        C, V, core, rows, columns = compiled(_skeleton, K, rank, seed)
        found = LowRank(*(narrow(xp, x, A.dtype) for x in (C, V, core)))
        tell(A, found, "CUR", 5 * rank + 2 * OVERSAMPLING, seed)
    return found, rows, columns


def _interpolation(A: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array, Array]:
    columns, Z = _chosen(A, rank, A.xp.generator(seed))
    return columns_of(A, columns), adjoint(A.xp, Z), columns


def _skeleton(A: LinearOperator, rank: int, seed: Any) -> tuple[Array, ...]:
    xp = A.xp
    a, b = xp.split(xp.generator(seed))
    (columns, _), (rows, _) = _chosen(A, rank, a), _chosen(A.H, rank, b)
    C, V = columns_of(A, columns), columns_of(A.H, rows)  # V = R^H
    (Uc, inverse_c), (Uv, inverse_v) = _orthonormal_and_rest(xp, C), _orthonormal_and_rest(xp, V)
    inner = xp.matmul(adjoint(xp, Uc), A @ Uv)
    return C, V, xp.matmul(xp.matmul(inverse_c, inner), adjoint(xp, inverse_v)), rows, columns  # the core is C^+ A R^+


def _chosen(A: LinearOperator, rank: int, generator: Any) -> tuple[Array, Array]:
    """Columns of A, and Z with A ≈ A[:, columns] Z."""
    xp, (m, n) = A.xp, A.shape[-2:]
    width = min(m, rank + OVERSAMPLING)
    test = xp.normal(generator, (m, width), dtype=A.dtype, device=A._context.device)
    _, R, order = xp.qr_pivoted(adjoint(xp, A.H @ test))
    d = xp.abs(xp.diagonal(R)[..., :rank])
    dead = d <= max(m, n) * xp.eps(A.dtype) * xp.max(d, axis=-1, keepdims=True)  # beyond the rank of A: they take no part
    same = xp.eye(rank, dtype=A.dtype, device=A._context.device)
    head = xp.where(dead[..., None], same, R[..., :rank, :rank])
    tail = xp.where(dead[..., None], 0, R[..., :rank, rank:])
    others = xp.solve_triangular(head, tail, lower=False)
    Z = xp.concat([xp.broadcast_to(same, (*others.shape[:-1], rank)), others], axis=-1)
    back = xp.argsort(order, axis=-1)
    Z = xp.take_along_axis(Z, xp.broadcast_to(back[..., None, :], Z.shape), -1)
    return order[..., :rank], Z


def columns_of(A: LinearOperator, columns: Array) -> Array:
    """A[:, columns]: read off where that is known to be possible, by products otherwise."""
    xp = A.xp
    if not A.batch_shape and A.T._has_rows:
        return xp.matrix_transpose(A.T._rows(columns).to_dense())
    numbers = xp.arange(A.shape[-1], device=A._context.device)
    return A @ xp.astype(numbers[:, None] == columns[..., None, :], A.dtype)


def _orthonormal_and_rest(xp: Any, C: Array) -> tuple[Array, Array]:
    """U and M with C^+ = M U^H, U orthonormal."""
    U, s, Vh = xp.svd(C)
    small = s <= max(C.shape[-2:]) * xp.eps(C.dtype) * xp.max(s, axis=-1, keepdims=True)
    inverse = xp.where(small, 0, 1 / xp.where(small, 1, s))
    return U, adjoint(xp, Vh) * inverse[..., None, :]


interpolative = function("interpolative", base=interpolation, rewrites=False)
cur = function("cur", base=skeleton, rewrites=False)
