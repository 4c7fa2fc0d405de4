"""The trace."""

from __future__ import annotations

from functools import reduce
from operator import add, mul
from typing import Any

from ...backends import Array
from ...dispatch import Choice, function, has_needs, rule
from ...factors.inverse import Inverse
from ...methods import SLQ, Hutchinson, Method, XNysTrace, XTrace, fitting
from ...operators import (
    Adjoint,
    BatchSum,
    BlockDiag,
    Conjugate,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Product,
    Projection,
    Scaled,
    Sum,
    Transpose,
)
from ...operators.transposed import are_adjoint
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY
from ..common import is_square, operands_in_context, square_size
from ..solve.inverse import all_square
from ..stochastic.estimators import (
    TRACE,
    added_estimates,
    estimate,
    estimated,
    multiplied_estimates,
    scaled_estimate,
)
from ..stochastic.quadrature import function_inside, trace_by_quadrature
from . import diag, exact_diagonal, is_out_of_reach, zero_diagonal
from .rules import has_thin_waist, waist


def sum_of_diagonal(A: LinearOperator, method: Method | None = None) -> Choice:
    """The trace, the sum of the diagonal of a square operator.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Hutchinson, HutchPP, XTrace, XNysTrace or SLQ, optional
        All but `Auto` estimate it from products with random vectors; `info.error` is the standard
        error. `SLQ` is for f(A), made by `exp(A, Krylov())` and the like, with self-adjoint A.

    Notes
    -----
    n products, where no rule is better. `Auto` estimates, with an ApproximationWarning, where these
    take more than 1e12 flops.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.trace(co.Diagonal([1.0, 2.0])))
    3.0
    """
    square_size("trace", A, "a trace", "diag(A) takes any shape.")
    chosen = fitting("trace", method, *TRACE, SLQ)
    if not chosen.is_stochastic and not (is_out_of_reach(A, chosen) and diag.find(A).is_base):
        return Choice(
            lambda: A.xp.sum(diag(A, method), axis=-1), "sum_of_diagonal", None, "tr A = Σ_i a_ii"
        )
    is_free = not chosen.is_stochastic
    found = _automatic(A, chosen) if is_free else chosen
    return estimate("trace", A, found, is_free, lambda: _estimated(A, found), lambda: _ones(A))


def _estimated(A: LinearOperator, method: Any) -> Array:
    if isinstance(method, SLQ):
        return trace_by_quadrature(A, method)
    return estimated(A, method, lambda: A.xp.sum(exact_diagonal(A), axis=-1), False)


def _automatic(A: LinearOperator, method: Any) -> Any:
    """The estimator for what is out of reach; with a tolerance the one that can be told when to
    stop under tracing too."""
    if function_inside(A) is not None:
        return SLQ(tol=method.tol)
    if method.tol is not None:
        return Hutchinson(tol=method.tol)
    return XNysTrace(probes=64) if A.properties & POSITIVE_SEMIDEFINITE else XTrace(probes=64)


def _ones(A: LinearOperator) -> Array:
    return A.xp.ones(A.batch_shape, dtype=A.dtype, device=A._context.device)


def _suits(A: LinearOperator, method: Method) -> bool:
    """Whether the estimator is for A: quadrature is also for f(B) of a self-adjoint B."""
    if isinstance(method, SLQ):
        return bool(A.properties & SELF_ADJOINT) or function_inside(A) is not None
    return has_needs(A, method)


trace = function("trace", base=sum_of_diagonal, suits=_suits, rewrites=False)


@rule(trace, Kronecker, when=all_square, estimates=True)
def trace_kronecker(A: Any, method: Any) -> Array:
    """tr(A ⊗ B) = tr A tr B, both square"""
    if method is not None and method.is_stochastic:
        return multiplied_estimates(trace, operands_in_context(A), method, mul)
    return reduce(mul, (trace(factor, method) for factor in operands_in_context(A)))


@rule(trace, KroneckerSum)
def trace_kronecker_sum(A: Any, method: Any) -> Array:
    """tr(A ⊕ B) = n tr A + m tr B for A of m x m and B of n x n"""
    if not A.shape[-1]:
        return A.xp.sum(zero_diagonal(A), axis=-1)
    return reduce(
        add,
        (A.shape[-1] // term.shape[-1] * trace(term, method) for term in operands_in_context(A)),
    )


@rule(trace, Sum)
def trace_sum(A: Any, method: Any) -> Array:
    """tr(A + B) = tr A + tr B"""
    return reduce(add, (trace(term, method) for term in operands_in_context(A)))


@rule(trace, Scaled, estimates=True)
def trace_scaled(A: Any, method: Any) -> Array:
    """tr(c A) = c tr A"""
    if method is not None and method.is_stochastic:
        return scaled_estimate(trace, A.scalar, A.A, method, 0)
    return A.scalar * trace(A.A, method)


@rule(trace, BlockDiag, when=all_square, estimates=True, hereditary=True)
def trace_block_diagonal(A: Any, method: Any) -> Array:
    """tr diag(A, B) = tr A + tr B, both square"""
    if method is not None and method.is_stochastic:
        return added_estimates(trace, operands_in_context(A), method, [1] * len(A.operands))
    return reduce(add, (trace(block, method) for block in operands_in_context(A)))


@rule(trace, BatchSum)
def trace_batch_sum(A: Any, method: Any) -> Array:
    """tr(Σ_i A_i) = Σ_i tr A_i"""
    return A.xp.sum(trace(A.A, method), axis=A.axis)


@rule(trace, Transpose, estimates=True, hereditary=True)
def trace_transpose(A: Any, method: Any) -> Array:
    """tr A^T = tr A"""
    return trace(A.A, method)


@rule(trace, Adjoint | Conjugate, estimates=True, hereditary=True)
def trace_conjugate(A: Any, method: Any) -> Array:
    """tr A^H = tr conj(A) = conj(tr A)"""
    return A.xp.conj(trace(A.A, method))


@rule(trace, Projection)
def trace_projection(A: Any, method: Any) -> Array:
    """tr(Q Q^H) = r, for r orthonormal columns"""
    return A.xp.full(A.batch_shape, float(A.Q.shape[-1]), dtype=A.dtype, device=A._context.device)


@rule(trace, LowRank, when=is_square)
def trace_low_rank(A: Any, method: Any) -> Array:
    """tr(U C V^H) = Σ_ij conj(V)_ij (U C)_ij"""
    U = A.U if A.core is None else A.xp.matmul(A.U, A.core)
    return A.xp.sum(U * A.xp.conj(A.U if A.V is None else A.V), axis=(-2, -1))


def is_similarity(A: LinearOperator) -> bool:
    """Whether the last factor is the inverse of the first: its adjoint, if it is unitary, or
    made by `inv`."""
    first, last = A.operands[0], A.operands[-1]
    if len(A.operands) < 3:
        return False
    unitary = first.properties & UNITARY and are_adjoint(first, last)
    return bool(unitary) or (isinstance(last, Inverse) and last.A is first)


@rule(trace, Product, when=is_similarity)
def trace_similarity(A: Any, method: Any) -> Array:
    """tr(Q A Q^-1) = tr A"""
    return A.xp.broadcast_to(trace(Product(*operands_in_context(A)[1:-1]), method), A.batch_shape)


def is_thinner_rotated(A: LinearOperator) -> bool:
    """Whether a dimension inside the square product is smaller than its size."""
    return is_square(A) and has_thin_waist(A) and len(A.operands) > 2


@rule(trace, Product, when=is_thinner_rotated)
def trace_rotated_product(A: Any, method: Any) -> Array:
    """tr(A B C) = tr(B C A), of the smallest size there is"""
    cut = waist(A)[1]
    return trace(Product(*operands_in_context(A)[cut:], *operands_in_context(A)[:cut]), method)
