"""The rules of matrix functions for blocks, similarities, Kronecker products, transposes and inverses."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..dispatch import rule
from ..info import planning
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..properties import POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT, Unitary
from ._arrays import square_size
from ._values import place, placed
from .eigen_compositions import is_a_similarity
from .inverse import all_square
from .matrix_function_shared import ALL, POSITIVE, Call, of_positive_parts, rules
from .matrix_functions import (
    exp,
    isqrt,
    log,
    power,
    sqrt,
    stand_in,
)
from .scalar_functions import as_integer


@rules(ALL, BlockDiag, when=all_square)
def of_block_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B)) = diag(f(A), f(B)), both square"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    return BlockDiag(*(call.again(block._claim(kept)) for block in placed(A)))


@rules(ALL, Product[Unitary, ..., LinearOperator], when=is_a_similarity)  # type: ignore[misc]
def of_similarity(A: Any, call: Call) -> LinearOperator:
    """f(Q A Q^H) = Q f(A) Q^H for unitary Q"""
    inner = place(Product(*A.operands[1:-1]), A)._claim(A.properties & (SELF_ADJOINT | POSITIVE))
    return Product(A.operands[0], call.again(inner), A.operands[-1])


@rule(exp, KroneckerSum)
def exp_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """exp(A ⊕ B) = exp(A) ⊗ exp(B)"""
    return Kronecker(*(exp(term, method) for term in placed(A)))


def factors_positive(A: LinearOperator) -> bool:
    """Whether every factor is positive semidefinite, so that no product leaves the principal branch."""
    return all(factor.properties & POSITIVE_SEMIDEFINITE for factor in A.operands)


@rules((sqrt, isqrt, power), Kronecker, when=factors_positive)
def of_positive_kronecker(A: Any, call: Call) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p, both positive semidefinite"""
    return of_positive_parts(A, call.base, lambda: Kronecker(*(call.again(factor) for factor in placed(A))))


@rule(power, Kronecker, when=all_square)
def power_kronecker(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p for whole p"""
    if as_integer(p) is None:
        return stand_in(A) if planning() else power.base(A, p, method)
    return Kronecker(*(power(factor, p, method) for factor in placed(A)))


@rule(log, Kronecker, when=factors_positive)
def log_kronecker(A: Any, method: Any) -> LinearOperator:
    """log(A ⊗ B) = log(A) ⊕ log(B), both positive definite"""
    base = partial(log.base, method=method)
    return of_positive_parts(A, base, lambda: KroneckerSum(*(log(factor, method) for factor in placed(A))))


@rules(ALL, Transpose)
def of_transpose(A: Any, call: Call) -> LinearOperator:
    """f(A^T) = f(A)^T"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).T


@rules(ALL, Adjoint)
def of_adjoint(A: Any, call: Call) -> LinearOperator:
    """f(A^H) = f(A)^H if f has no cut or A is real"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    if not A.is_complex:
        return call.again(A.A).T
    return call.again(A.A).H if call.f.mirrored else call.base(A)


@rules((exp, power), Conjugate)
def of_conjugate(A: Any, call: Call) -> LinearOperator:
    """f(conj(A)) = conj(f(A)) if f has no cut"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).conj() if call.f.mirrored else call.base(A)


@rule(power, Inverse)
def power_inverse(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A^-1)^p = A^-p for positive A or whole p"""
    positive = A.properties & POSITIVE
    if not positive and as_integer(p) is None:
        return stand_in(A) if planning() else power.base(A, p, method)
    base = partial(power.base, p=p, method=method)
    return of_positive_parts(A, base, lambda: power(A.A._claim(positive), -p, method))


@rule(sqrt, PSD[Inverse])
def sqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(1/2) = A^(-1/2) for positive A"""
    return of_positive_parts(A, partial(sqrt.base, method=method), lambda: isqrt(A.A._claim(A.properties & POSITIVE), method))


@rule(isqrt, PSD[Inverse])
def isqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(-1/2) = A^(1/2) for positive A"""
    return of_positive_parts(A, partial(isqrt.base, method=method), lambda: sqrt(A.A._claim(A.properties & POSITIVE), method))


@rule(log, PSD[Inverse])
def log_inverse(A: Any, method: Any) -> LinearOperator:
    """log(A^-1) = -log(A) for positive A"""
    base = partial(log.base, method=method)
    return of_positive_parts(A, base, lambda: Scaled(-1.0, log(A.A._claim(A.properties & POSITIVE), method)))
