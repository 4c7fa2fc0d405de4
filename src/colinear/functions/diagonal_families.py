"""Diagonals that are stored or known: more rules of `diag`."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..methods import fitting
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.fft import FFT
from ..operators.fields import Index
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity, scalar_of
from ..operators.kernel import Kernel
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.projection import Projection
from ..operators.scaled import beside
from ..operators.sparse import Sparse
from ..operators.toeplitz import Toeplitz
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from .diagonal import diag, ones_on_diagonal, zero_diagonal

POINTS = 32  # of a kernel at a time: it computes all pairs of them, and the diagonal is kept


def _constant(A: LinearOperator, c: Array) -> Array:
    """c, of A's batch shape, for each entry of the diagonal."""
    return c[..., None] * A.xp.ones((min(A.shape[-2:]),), dtype=c.dtype, device=A._context.device)


@rule(diag, Dense)
def diag_dense(A: Any, method: Any) -> Array:
    """diag A is read off"""
    fitting("diag", method)
    return A.xp.diagonal(A.A)


@rule(diag, Diagonal)
def diag_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(d)) = d"""
    return A.d


@rule(diag, Identity | ScaledIdentity)
def diag_identity(A: Any, method: Any) -> Array:
    """diag(c I) = c, n times"""
    c = scalar_of(A)
    return beside(c) * A.xp.ones((A.shape[-1],), dtype=A.dtype, device=A._context.device)


@rule(diag, Zero)
def diag_zero(A: Any, method: Any) -> Array:
    """diag 0 = 0"""
    return zero_diagonal(A)


@rule(diag, Permutation)
def diag_permutation(A: Any, method: Any) -> Array:
    """diag(P)_i = 1 where perm_i = i, else 0"""
    if isinstance(A.perm, Index):
        return A.xp.asarray(A.perm.host == np.arange(A.shape[-1]), dtype=A.dtype, device=A._context.device)
    return A.xp.astype(A.perm == A.xp.arange(A.shape[-1], device=A._context.device), A.dtype)


@rule(diag, Triangular)
def diag_triangular(A: Any, method: Any) -> Array:
    """diag T is stored, or all ones"""
    return ones_on_diagonal(A) if A.unit else A.xp.diagonal(A.A)


@rule(diag, Tridiagonal)
def diag_tridiagonal(A: Any, method: Any) -> Array:
    """diag T is stored"""
    return A.xp.broadcast_to(A.diag, A.shape[:-1])


@rule(diag, Banded)
def diag_banded(A: Any, method: Any) -> Array:
    """diag B is stored, or zero"""
    return zero_diagonal(A) if 0 not in A.offsets else zero_diagonal(A) + A.diagonals[A.offsets.index(0)]


@rule(diag, Circulant | Toeplitz)
def diag_toeplitz(A: Any, method: Any) -> Array:
    """diag T = t_0, n times"""
    return zero_diagonal(A) if 0 in A.shape else zero_diagonal(A) + A.col[..., :1]


@rule(diag, Convolution)
def diag_convolution(A: Any, method: Any) -> Array:
    """diag K: the kernel at its origin, n times"""
    if 0 in A.shape:
        return zero_diagonal(A)
    kernel, origin = A._fitted()
    return _constant(A, kernel[(..., *origin)])


@rule(diag, FFT)
def diag_fft(A: Any, method: Any) -> Array:
    """diag(F)_j = exp(-2πi j^2 / n) / sqrt(n), a Kronecker product over the grid"""
    sign = 1 if A.inverse else -1
    # j^2 mod n in integers, so that the angles are small and exact
    lines = [np.exp(sign * 2j * np.pi * (np.arange(n) ** 2 % n) / n) / math.sqrt(n) for n in A.grid]
    return A.xp.asarray(reduce(np.kron, lines), dtype=A.dtype, device=A._context.device)


@rule(diag, Householder)
def diag_householder(A: Any, method: Any) -> Array:
    """diag(I - 2 v v^H / v^H v)_i = 1 - 2 |v_i|^2 / v^H v"""
    if 0 in A.shape:
        return zero_diagonal(A)
    w, squared = A._scaled()
    return A.xp.astype(1 - 2 * (A.xp.real(A.xp.conj(w) * w) / squared)[..., 0], A.dtype)


@rule(diag, Projection)
def diag_projection(A: Any, method: Any) -> Array:
    """diag(Q Q^H)_i = |Q_i|^2"""
    return A.xp.sum(A.Q * A.xp.conj(A.Q), axis=-1)


@rule(diag, LowRank)
def diag_low_rank(A: Any, method: Any) -> Array:
    """diag(U C V^H)_i = (U C)_i · conj(V_i)"""
    xp, size = A.xp, min(A.shape[-2:])
    U = A.U if A.core is None else xp.matmul(A.U, A.core)
    V = A.U if A.V is None else A.V
    return xp.sum(U[..., :size, :] * xp.conj(V[..., :size, :]), axis=-1)


@rule(diag, Sparse)
def diag_sparse(A: Any, method: Any) -> Array:
    """diag S: the entries stored on it"""
    structure = A.structure
    places = structure.memo.get("diagonal")
    if places is None:
        places = structure.memo["diagonal"] = (structure.rows == structure.columns).nonzero()[0]
    return A.xp.scatter_add(zero_diagonal(A), structure.rows[places], A.xp.take(A.data, places, axis=-1), axis=-1)


@rule(diag, Kernel)
def diag_kernel(A: Any, method: Any) -> Array:
    """diag(K)_i = k(x_i, y_i), in blocks of points"""
    fitting("diag", method)
    xp, batch, size = A.xp, A.batch_shape, min(A.shape[-2:])
    if 0 in (size, *batch):
        return zero_diagonal(A)
    blocks = -(-size // POINTS)
    which = Index(np.minimum(np.arange(blocks * POINTS), size - 1)).on(xp, A._context.device)  # the last point repeats
    tiles, point_batch = [], A._point_batch
    for points in A._points():
        points = xp.broadcast_to(xp.take(points, which, axis=-2), (*point_batch, blocks * POINTS, points.shape[-1]))
        tiles.append(xp.reshape(points, (math.prod(point_batch) * blocks, POINTS, points.shape[-1])))
    found = xp.loop_map(lambda x, y: xp.diagonal(A._entries(x, y)), *tiles)  # (tiles, *parameter_batch, points)
    return xp.reshape(xp.moveaxis(found, 0, -2), (*batch, blocks * POINTS))[..., :size]
