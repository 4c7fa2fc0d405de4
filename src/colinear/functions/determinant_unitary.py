"""Determinants of unitary operators and of what is similar to a simpler operator."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import rule
from ..operators.base import LinearOperator
from ..operators.product import Product
from ..properties import UNITARY, Unitary
from ._similarity import is_similarity
from ._values import place, placed, reports_nonfinite
from .determinant import logdet, slogdet
from .determinant_rules import Determinant, spread
from .inverse import all_square


@rule(slogdet, Product[LinearOperator, ..., LinearOperator], when=is_similarity)  # type: ignore[misc]
def slogdet_similarity(A: Any, method: Any) -> Determinant:
    """det(V A V^-1) = det A, for unitary V and V^-1 = V^H too"""
    return spread(A, slogdet(place(Product(*A.operands[1:-1]), A), method))


@rule(logdet, Unitary)
@reports_nonfinite
def logdet_unitary(A: Any, method: Any) -> Array:
    """log |det Q| = 0"""
    return A.xp.zeros(A.batch_shape, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def has_unitary_factor(A: LinearOperator) -> bool:
    """Whether the factors are square, and some of them unitary."""
    return all_square(A) and any(factor.properties & UNITARY for factor in A.operands)


@rule(logdet, Product, when=has_unitary_factor)
def logdet_of_rest(A: Any, method: Any) -> Array:
    """log |det(Q A)| = log |det A| for unitary Q"""
    if is_similarity(A):
        return slogdet_similarity(A, method)[1]
    rest = [factor for factor in placed(A) if not factor.properties & UNITARY]
    total = logdet(Product(*rest), method) if rest else logdet_unitary(A, method)
    return spread(A, (A.xp.ones(()), total))[1]


@rule(logdet, Unitary[Product])
def logdet_unitary_product(A: Any, method: Any) -> Array:
    """log |det Q| = 0"""
    return logdet_unitary(A, method)
