"""The trace."""

from __future__ import annotations

from functools import reduce
from operator import add, mul
from typing import Any

from ..backends import Array
from ..dispatch import function, rule
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.block import BlockDiag
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose, are_adjoint
from ..properties import UNITARY
from ._arrays import square_size
from ._values import placed
from .diagonal import diag, zero_diagonal
from .diagonal_rules import has_thin_waist, waist
from .inverse import all_square


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
    return reduce(mul, (trace(factor, method) for factor in placed(A)))


@rule(trace, KroneckerSum)
def trace_kronecker_sum(A: Any, method: Any) -> Array:
    """tr(A ⊕ B) = n tr A + m tr B for A of m x m and B of n x n"""
    if not A.shape[-1]:
        return A.xp.sum(zero_diagonal(A), axis=-1)
    return reduce(add, (A.shape[-1] // term.shape[-1] * trace(term, method) for term in placed(A)))


@rule(trace, Sum)
def trace_sum(A: Any, method: Any) -> Array:
    """tr(A + B) = tr A + tr B"""
    return reduce(add, (trace(term, method) for term in placed(A)))


@rule(trace, Scaled)
def trace_scaled(A: Any, method: Any) -> Array:
    """tr(c A) = c tr A"""
    return A.scalar * trace(A.A, method)


@rule(trace, BlockDiag, when=all_square)
def trace_block_diagonal(A: Any, method: Any) -> Array:
    """tr diag(A, B) = tr A + tr B, both square"""
    return reduce(add, (trace(block, method) for block in placed(A)))


@rule(trace, BatchSum)
def trace_batch_sum(A: Any, method: Any) -> Array:
    """tr(Σ_i A_i) = Σ_i tr A_i"""
    return A.xp.sum(trace(A.A, method), axis=A.axis)


@rule(trace, Transpose)
def trace_transpose(A: Any, method: Any) -> Array:
    """tr A^T = tr A"""
    return trace(A.A, method)


@rule(trace, Adjoint | Conjugate)
def trace_conjugate(A: Any, method: Any) -> Array:
    """tr A^H = tr conj(A) = conj(tr A)"""
    return A.xp.conj(trace(A.A, method))


@rule(trace, Projection)
def trace_projection(A: Any, method: Any) -> Array:
    """tr(Q Q^H) = r, for r orthonormal columns"""
    return A.xp.full(A.batch_shape, float(A.Q.shape[-1]), dtype=A.dtype, device=A._context.device)


def is_square(A: LinearOperator) -> bool:
    """Whether it is square."""
    return A.shape[-1] == A.shape[-2]


@rule(trace, LowRank, when=is_square)
def trace_low_rank(A: Any, method: Any) -> Array:
    """tr(U C V^H) = Σ_ij conj(V)_ij (U C)_ij"""
    U = A.U if A.core is None else A.xp.matmul(A.U, A.core)
    return A.xp.sum(U * A.xp.conj(A.U if A.V is None else A.V), axis=(-2, -1))


def is_similarity(A: LinearOperator) -> bool:
    """Whether the last factor is the inverse of the first: its adjoint, if it is unitary, or made by `inv`."""
    first, last = A.operands[0], A.operands[-1]
    if len(A.operands) < 3:
        return False
    unitary = first.properties & UNITARY and are_adjoint(first, last)
    return bool(unitary) or (isinstance(last, Inverse) and last.A is first)


@rule(trace, Product, when=is_similarity)
def trace_similarity(A: Any, method: Any) -> Array:
    """tr(Q A Q^-1) = tr A"""
    return trace(Product(*placed(A)[1:-1]), method)


def is_thinner_rotated(A: LinearOperator) -> bool:
    """Whether a dimension inside the square product is smaller than its size."""
    return is_square(A) and has_thin_waist(A) and len(A.operands) > 2


@rule(trace, Product, when=is_thinner_rotated)
def trace_rotated_product(A: Any, method: Any) -> Array:
    """tr(A B C) = tr(B C A), of the smallest size there is"""
    cut = waist(A)[1]
    return trace(Product(*placed(A)[cut:], *placed(A)[:cut]), method)
