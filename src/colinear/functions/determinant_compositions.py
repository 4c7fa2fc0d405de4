"""Determinants of compositions from those of their operands: more rules of `slogdet`."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..backends import Array
from ..dispatch import arrange, rule
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.identity import Identity
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ._arrays import narrow, quiet, square_size
from ._elimination import report_weak_entries, strengthened, weak_entries
from ._values import once_each, place, placed, reports_nonfinite
from .determinant import NEED, logdet, multiplied, one, reciprocal_determinant, slogdet, slogdet_of_power
from .estimate_parts import powers_of_estimates
from .inverse import all_square, inv
from .inverse_low_rank import DIAGONAL, capacitance, rank_of, shift_is_zero


@rule(slogdet, Scaled, estimates=True)
@reports_nonfinite
def slogdet_scaled(A: Any, method: Any) -> tuple[Array, Array]:
    """det(c A) = c^n det A"""
    square_size("slogdet", A, NEED, "Its singular values are svd(A)[1].")
    power, whole = slogdet_of_power(A, A.scalar), slogdet(A.A, method)
    return power[0] * whole[0], power[1] + whole[1]


@rule(slogdet, Product, when=all_square)
def slogdet_product(A: Any, method: Any) -> tuple[Array, Array]:
    """det(A B) = det A det B, both square"""
    return multiplied([slogdet(factor, method) for factor in placed(A)], [1] * len(A.operands))


@rule(slogdet, BlockDiag, when=all_square, estimates=True, hereditary=True)
def slogdet_block_diagonal(A: Any, method: Any) -> tuple[Array, Array]:
    """det diag(A, B) = det A det B, both square"""
    if method is not None and method.is_stochastic:
        return powers_of_estimates(A, logdet, placed(A), method, [1] * len(A.operands))
    return multiplied([slogdet(block, method) for block in placed(A)], [1] * len(A.operands))


@rule(slogdet, Kronecker, when=all_square, estimates=True)
def slogdet_kronecker(A: Any, method: Any) -> tuple[Array, Array]:
    """det(A ⊗ B) = det(A)^n det(B)^m for A of m x m and B of n x n"""
    n = A.shape[-1]
    if not n:
        return one(A)
    if method is not None and method.is_stochastic:
        return powers_of_estimates(A, logdet, placed(A), method, [n // factor.shape[-1] for factor in A.operands])
    parts = once_each(lambda factor: slogdet(factor, method), placed(A))
    return multiplied(parts, [n // factor.shape[-1] for factor in A.operands])


@rule(slogdet, Transpose, estimates=True, hereditary=True)
def slogdet_transpose(A: Any, method: Any) -> tuple[Array, Array]:
    """det A^T = det A"""
    return slogdet(A.A, method)


@rule(slogdet, Adjoint | Conjugate, estimates=True, hereditary=True)
def slogdet_conjugate(A: Any, method: Any) -> tuple[Array, Array]:
    """det A^H = det conj(A) = conj(det A)"""
    sign, logarithm = slogdet(A.A, method)
    return A.xp.conj(sign), logarithm


@rule(slogdet, Inverse, hereditary=True)
def slogdet_inverse(A: Any, method: Any) -> tuple[Array, Array]:
    """det A^-1 = 1 / det A, from the factorisation that is there"""
    known = partial(one, A) if isinstance(A.factor, Identity) else getattr(A.factor, "slogdet", None)
    with quiet(A.xp):
        sign, logarithm = slogdet(A.A, method) if known is None else known()
        return reciprocal_determinant(A.xp, narrow(A.xp, sign, A.dtype), narrow(A.xp, logarithm, A.dtype))


def diagonal_can_be_divided_by(A: LinearOperator) -> bool:
    """Whether the entries of D too small to be divided by, and the rank, are together below the size.

    Where the rank alone is not, all of D may be small although A is well-conditioned, and the lemma saves nothing.
    """
    low_rank, D = arrange(A, LowRank, DIAGONAL)
    rank = rank_of(low_rank)
    return rank < A.shape[-1] and not shift_is_zero(D) and rank + len(weak_entries(low_rank, D)) < A.shape[-1]


@rule(slogdet, Sum[LowRank, DIAGONAL], when=diagonal_can_be_divided_by)  # type: ignore[misc]
def determinant_lemma(A: Any, method: Any) -> tuple[Array, Array]:
    """det(D + U C V^H) = det D det(I + C V^H D^-1 U), after an exchange of entries of D that are nearly zero"""
    low_rank, D = arrange(A, LowRank, DIAGONAL)
    if len(weak := weak_entries(low_rank, D)):
        low_rank, D = strengthened(low_rank, D, weak)
    report_weak_entries(low_rank, D)
    K = capacitance(A, low_rank, D, inv(D, method) @ low_rank.U)
    return multiplied([slogdet(K, method), slogdet(place(D, A), method)], [1, 1])
