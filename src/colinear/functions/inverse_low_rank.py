"""Inverses of low-rank corrections: Woodbury, Kailath, Sherman and Morrison."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import arrange, rule
from ..info import Info, Status, failed, part, report
from ..operators.base import LinearOperator, dense_part
from ..operators.batch_sum import BatchSum
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.rewrites import DIAGONAL, simplify
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.transposed import are_adjoint
from ..properties import POSITIVE_SEMIDEFINITE
from ._values import has_no_zero, is_positive
from .inverse import LARGEST_DENSE, inv, inverse


def rank_of(A: Any) -> int:
    """The rank that the factors of an operator show, its size if they show none."""
    if isinstance(A, Product):
        return min(factor.shape[-1] for factor in A.operands[:-1])
    if isinstance(A, BatchSum):
        return A.terms * rank_of(A.A)
    if isinstance(A, Scaled):
        return rank_of(A.A)
    factor = getattr(A, "U", getattr(A, "Q", None)) if isinstance(A, (LowRank, Projection)) else None
    return A.shape[-1] if factor is None else factor.shape[-1]


def as_low_rank(A: Any) -> LowRank:
    """An operator whose factors show a low rank, as `U C V^H`."""
    if isinstance(A, Scaled):
        return Scaled(A.scalar, as_low_rank(A.A))
    if isinstance(A, Projection):
        return LowRank._of(A.Q, None, None)
    if isinstance(A, BatchSum):
        return _side_by_side(A, as_low_rank(A.A))
    if isinstance(A, Product):
        widths = [factor.shape[-1] for factor in A.operands[:-1]]
        cut = widths.index(min(widths)) + 1
        left, right = Product(*A.operands[:cut]), Product(*A.operands[cut:])
        V = None if are_adjoint(left, right) else dense_part(right.H, A)
        return LowRank._of(dense_part(left, A), V, None)
    return A


def _side_by_side(A: Any, terms: LowRank) -> LowRank:
    """sum_i U_i C_i V_i^H as one low-rank matrix of all factors side by side."""
    xp, axis, count = A.xp, A.axis, A.terms
    U = terms.U if terms.core is None else xp.matmul(terms.U, terms.core)
    V = None if terms.V is None and terms.core is None else (terms.U if terms.V is None else terms.V)

    def beside(factor: Array) -> Array:  # (*batch, m, r) -> (*rest, m, count * r)
        factor = xp.moveaxis(xp.broadcast_to(factor, (*A.A.batch_shape, *factor.shape[-2:])), axis - 2, -2)
        return xp.reshape(factor, (*factor.shape[:-2], count * factor.shape[-1]))

    return LowRank._of(beside(U), None if V is None else beside(V), None)


def is_narrow(A: LinearOperator) -> bool:
    """Whether the rank is at most half of the size: where a correction costs less than a factorisation."""
    return 2 * rank_of(A) <= A.shape[-1]


def low_rank_and_rest(A: Any) -> tuple[LowRank, LinearOperator]:
    """The terms of low rank as one, and the sum of the others."""
    narrow = [term for term in A.operands if is_narrow(term)]
    rest = [term for term in A.operands if not is_narrow(term)]
    low_rank = Sum(*map(as_low_rank, narrow))
    assert isinstance(low_rank, LowRank)
    return low_rank, Sum(*rest)


def correction_pays(A: Any) -> bool:
    """Whether some terms are of low rank, together at most half of the size, and a rule inverts the others; not in a sparse sum."""
    if not simplify.find(A).is_base:
        return False
    ranks = [rank_of(term) for term in A.operands if is_narrow(term)]
    rest = [term for term in A.operands if not is_narrow(term)]
    return bool(ranks and rest) and 2 * sum(ranks) <= A.shape[-1] and not inv.find(Sum(*rest)).is_base


def diagonal_is_invertible(A: LinearOperator) -> bool:
    """Whether the diagonal term has no zero (taken for granted where values cannot be seen)."""
    return all(has_no_zero(term.d) for term in A.operands if isinstance(term, Diagonal))


def diagonal_is_invertible_and_rank_low(A: LinearOperator) -> bool:
    """Whether the diagonal term has no zero (taken for granted where values cannot be seen) and the rank is at most half of n."""
    shifts = [term.c for term in A.operands if isinstance(term, ScaledIdentity)]
    invertible = diagonal_is_invertible(A) and all(c != 0 if namespace_of(c) is None else has_no_zero(c) for c in shifts)
    return invertible and all(is_narrow(term) for term in A.operands if isinstance(term, LowRank))


@rule(inv, Sum[LowRank, DIAGONAL], when=diagonal_is_invertible_and_rank_low)  # type: ignore[misc]
def woodbury(A: Any, method: Any) -> LinearOperator:
    """(D + U C V^H)^-1 = D^-1 - D^-1 U (I + C V^H D^-1 U)^-1 C V^H D^-1"""
    low_rank, D = arrange(A, LowRank, DIAGONAL)
    D_inverse = part("In the diagonal term", inv, D, method)
    if low_rank.V is None and low_rank.core is None and is_positive(D):
        S, root = scaled_factor(low_rank.U, D_inverse)
        K_inverse = part(CAPACITANCE, inv, capacitance_of(S), method)
        return Sum(D_inverse, Scaled(-1.0, Product(root, S, K_inverse, S.H, root)))._claim(A.properties)
    U, right = D_inverse @ low_rank.U, right_factor(low_rank)  # D^-1 U and C V^H
    K_inverse = part(CAPACITANCE, inv, capacitance(A, low_rank, D, U), method)
    return Sum(D_inverse, Scaled(-1.0, Product(Dense._of(U), K_inverse, right, D_inverse)))._claim(A.properties)


CAPACITANCE = "In the capacitance I + C V^H A^-1 U of Woodbury's formula, singular where the sum is"


def few_zeros(A: LinearOperator) -> bool:
    """Whether the diagonal has zeros, so few that they and the low rank together are at most half of the size."""
    D = next(term for term in A.operands if isinstance(term, Diagonal))
    if has_no_zero(D.d):
        return False
    zeros, rank = _zeros(D), sum(rank_of(term) for term in A.operands if term is not D)
    return 2 * (rank + len(zeros)) <= A.shape[-1]


def _zeros(D: Any) -> Any:
    """Where the diagonal is zero, in any matrix of a batch; None if values cannot be seen."""
    values = D.xp.peek(D.d)
    return None if values is None else np.flatnonzero(np.any(np.reshape(np.asarray(values) == 0, (-1, D.shape[-1])), axis=0))


@rule(inv, Sum[LowRank, Diagonal], when=few_zeros)  # type: ignore[misc]
def woodbury_with_zeros(A: Any, method: Any) -> LinearOperator:
    """D + U C V^H = D' + U C V^H - E S E^H, where D' is D with its zeros replaced: two low-rank terms, which merge"""
    low_rank, D = arrange(A, LowRank, Diagonal)
    xp, zeros = A.xp, _zeros(D)
    is_zero = np.zeros(A.shape[-1], bool)
    is_zero[zeros] = True
    size = xp.max(xp.abs(D.d), axis=-1, keepdims=True)
    shift = xp.astype(xp.where(size > 0, size, 1), A.dtype)
    filled = xp.where(xp.asarray(is_zero, device=A._context.device), shift, D.d)
    E = np.zeros((A.shape[-1], len(zeros)))
    E[zeros, np.arange(len(zeros))] = 1
    back = xp.make_diagonal(xp.take(D.d - filled, xp.asarray(zeros, device=A._context.device), axis=-1))
    moved = LowRank(xp.asarray(E, dtype=A.dtype, device=A._context.device), None, back)
    return inv(Sum(Diagonal(filled), low_rank, moved), method)._claim(A.properties)


LOW_RANK: Any = LowRank | Projection | Product | BatchSum[LowRank]  # type: ignore[misc]
LOW_RANK = LOW_RANK | Scaled[Projection | Product | BatchSum[LowRank]]  # type: ignore[misc]


@rule(inv, Sum[LOW_RANK, ...], when=correction_pays)  # type: ignore[misc]
def kailath(A: Any, method: Any) -> LinearOperator:
    """(A + U C V^H)^-1 = (I - A^-1 U (I + C V^H A^-1 U)^-1 C V^H) A^-1"""
    low_rank, rest = low_rank_and_rest(A)
    if isinstance(rest, Diagonal | ScaledIdentity) and not any(isinstance(term, LowRank) for term in A.operands):
        return inv(Sum(low_rank, rest), method)._claim(A.properties)  # by Woodbury's formula: half of the work for U U^H
    rest_inverse, info = inv(rest, method, info=True)
    if failed(info.status) is True:
        return as_a_whole(A, method, info, "the sum without its low-rank terms is singular, so they cannot be a correction of it")
    report(info)
    U = rest_inverse @ low_rank.U
    right = right_factor(low_rank)
    K_inverse = part(CAPACITANCE, inv, capacitance(A, low_rank, rest, U), method)
    I = Identity(A.shape[-1])
    return Product(Sum(I, Scaled(-1.0, Product(Dense._of(U), K_inverse, right))), rest_inverse)._claim(A.properties)


def as_a_whole(A: LinearOperator, method: Any, info: Any, why: str) -> LinearOperator:
    """The inverse from the matrix, where a rule's own way failed and the matrix is small enough; else that way's status."""
    if math.prod(A.shape) <= LARGEST_DENSE**2:
        report(Info(Status.FELL_BACK, message=why))
        return inverse(A, method)
    report(info.replace(message=why))
    return ScaledIdentity(math.nan, A.shape[-1], like=A)


def right_factor(low_rank: Any) -> LinearOperator:
    """C V^H"""
    xp, V = low_rank.xp, low_rank.U if low_rank.V is None else low_rank.V
    adjoint = Dense._of(V).H
    return adjoint if low_rank.core is None else Dense._of(xp.matmul(low_rank.core, adjoint.A))


def capacitance(A: Any, low_rank: Any, rest: LinearOperator, U: Any) -> LinearOperator:
    """I + C V^H A^-1 U, from U = A^-1 U: of the size of the rank; positive definite for U U^H and positive A."""
    xp, right = A.xp, right_factor(low_rank)
    inner = right @ U
    K = Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))
    positive = low_rank.V is None and low_rank.core is None and rest.properties & POSITIVE_SEMIDEFINITE
    return K._claim(POSITIVE_SEMIDEFINITE) if positive else K


def scaled_factor(U: Array, D_inverse: Any) -> tuple[Any, LinearOperator]:
    """S = D^-1/2 U and D^-1/2, for positive D: with S^H S, which BLAS knows to be symmetric, half of the work is saved."""
    root = D_inverse
    if isinstance(D_inverse, Diagonal):
        root = Diagonal._of(D_inverse.xp.sqrt(D_inverse.d))
    elif isinstance(D_inverse, ScaledIdentity):
        root = D_inverse._replace(c=math.sqrt(c) if namespace_of(c := D_inverse.c) is None else D_inverse.xp.sqrt(c))
    return Dense._of(root @ U), root


def capacitance_of(S: Any) -> LinearOperator:
    """I + S^H S, positive definite"""
    xp, inner = S.xp, gram(S.A)
    return Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))._claim(POSITIVE_SEMIDEFINITE)


def gram(S: Array) -> Array:
    """S^H S"""
    xp = namespace_of(S)
    return xp.matmul(xp.conj(xp.matrix_transpose(S)), S)


def terms_are_few(A: Any) -> bool:
    """Whether the ranks of the terms together are below the size."""
    return A.shape[-1] == A.shape[-2] and rank_of(A) < A.shape[-1]


@rule(inv, BatchSum[LowRank], when=terms_are_few)  # type: ignore[misc]
def inv_few_terms(A: Any, method: Any) -> LinearOperator:
    """A sum of low-rank terms is of low rank"""
    return inv(as_low_rank(A), method)
