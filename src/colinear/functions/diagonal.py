"""The diagonal and its sum."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

from ..backends import Array
from ..dispatch import Cost, function, rule
from ..methods import Method, fitting
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker
from ..operators.lowrank import LowRank
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..operators.triangular import Triangular
from ._factorise import square_size
from ._values import placed
from .inverse import all_square


def main_diagonal(A: LinearOperator, method: Method | None = None) -> Array:
    """The entries on the main diagonal.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    method : Auto, optional

    Returns
    -------
    array, (*batch, min(m, n))

    Notes
    -----
    The base case forms the matrix: n products.

    Examples
    --------
    >>> import colinear as co
    >>> co.diag(co.Kronecker(co.Diagonal([1.0, 2.0]), co.Identity(2)))
    array([1., 1., 2., 2.])
    """
    fitting("diag", method)
    return A.xp.diagonal(A.to_dense())


def _stand_in(A: LinearOperator) -> Array:
    return A.xp.ones((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


def _choose(A: LinearOperator, method: Method | None) -> tuple[str, Cost, str]:
    fitting("diag", method)
    m, n = A.shape[-2:]
    return "dense", Cost(n * A.flops, 8.0 * m * n), "the matrix is formed, and its diagonal read"


diag = function("diag", base=main_diagonal, stand_in=_stand_in, choose=_choose)


@rule(diag, Diagonal)
def diag_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(d)) = d"""
    return A.d


@rule(diag, Identity | ScaledIdentity)
def diag_identity(A: Any, method: Any) -> Array:
    """diag(c I) = c, n times"""
    c: Any = A.c if isinstance(A, ScaledIdentity) else 1.0
    return (c[..., None] if getattr(c, "ndim", 0) else c) * A.xp.ones((A.shape[-1],), dtype=A.dtype, device=A._context.device)


@rule(diag, Triangular)
def diag_triangular(A: Any, method: Any) -> Array:
    """diag T is stored, or all ones"""
    return _stand_in(A) if A.unit else A.xp.diagonal(A.A)


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
    xp, structure = A.xp, A.structure
    places = (structure.rows == structure.columns).nonzero()[0]
    zeros = xp.zeros((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)
    return xp.scatter_add(zeros, structure.rows[places], xp.take(A.data, places, axis=-1), axis=-1)


@rule(diag, Sum)
def diag_sum(A: Any, method: Any) -> Array:
    """diag(A + B) = diag A + diag B"""
    return reduce(add, (diag(term, method) for term in placed(A)))


@rule(diag, Scaled)
def diag_scaled(A: Any, method: Any) -> Array:
    """diag(c A) = c diag A"""
    return (A.scalar[..., None] if getattr(A.scalar, "ndim", 0) else A.scalar) * diag(A.A, method)


@rule(diag, Kronecker, when=all_square)
def diag_kronecker(A: Any, method: Any) -> Array:
    """diag(A ⊗ B) = diag A ⊗ diag B, both square"""

    def outer(v: Array, w: Array) -> Array:
        grid = v[..., :, None] * w[..., None, :]
        return A.xp.reshape(grid, (*grid.shape[:-2], grid.shape[-2] * grid.shape[-1]))

    return reduce(outer, (diag(factor, method) for factor in placed(A)))


@rule(diag, BlockDiag, when=all_square)
def diag_block_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(A, B)) = (diag A, diag B), both square"""
    xp, batch = A.xp, A.batch_shape
    parts = [diag(block, method) for block in placed(A)]
    return xp.concat([xp.astype(xp.broadcast_to(part, (*batch, part.shape[-1])), A.dtype) for part in parts], axis=-1)


@rule(diag, Transpose)
def diag_transpose(A: Any, method: Any) -> Array:
    """diag A^T = diag A"""
    return diag(A.A, method)


@rule(diag, Adjoint | Conjugate)
def diag_conjugate(A: Any, method: Any) -> Array:
    """diag A^H = diag conj(A) = conj(diag A)"""
    return A.xp.conj(diag(A.A, method))


# ---------------------------------------------------------------------------------------------------- trace


def sum_of_diagonal(A: LinearOperator, method: Method | None = None) -> Array:
    """The trace, the sum of the diagonal of a square operator.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, optional

    Examples
    --------
    >>> import colinear as co
    >>> float(co.trace(co.Diagonal([1.0, 2.0])))
    3.0
    """
    square_size("trace", A, "a trace", "diag(A) takes any shape.")
    return A.xp.sum(diag(A, method), axis=-1)


trace = function("trace", base=sum_of_diagonal)


@rule(trace, Kronecker, when=all_square)
def trace_kronecker(A: Any, method: Any) -> Array:
    """tr(A ⊗ B) = tr A tr B, both square"""
    return reduce(lambda s, t: s * t, (trace(factor, method) for factor in placed(A)))


@rule(trace, Sum)
def trace_sum(A: Any, method: Any) -> Array:
    """tr(A + B) = tr A + tr B"""
    return reduce(add, (trace(term, method) for term in placed(A)))
