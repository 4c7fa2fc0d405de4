"""The rules of matrix functions for blocks, similarities, Kronecker products, transposes and inverses."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..dispatch import Choice, rule
from ..methods import Auto, Eigh, fitting
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.diagonal import Diagonal
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sparse_algebra import SHIFT
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..properties import POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT, Unitary
from ._arrays import identity_like, square_size
from ._values import place, placed
from .eigen_compositions import is_a_similarity
from .inverse import all_square
from .kronecker_functions import general_spectrum, has_factored_spectrum, has_general_factors
from .matrix_function_base import by_unitary, real_if_real
from .matrix_function_shared import ALL, POSITIVE, Call, of_positive_parts, rules
from .matrix_functions import (
    apply,
    exp,
    isqrt,
    log,
    power,
    sqrt,
)
from .scalar_functions import as_integer, of_values, power_of


@rules(ALL, BlockDiag, when=all_square, hereditary=True)
def of_block_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B)) = diag(f(A), f(B)), both square"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    return BlockDiag(*(call.again(block._claim(kept)) for block in placed(A)))


@rules(ALL, Product[Unitary, ..., LinearOperator], when=is_a_similarity, hereditary=True)  # type: ignore[misc]
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


def has_factored_power(A: LinearOperator, p: Any = 1, method: Any = None) -> bool:
    """Whether the factors are square, and p is whole or they have eigenpairs to use."""
    return all_square(A) and (as_integer(p) is not None or is_diagonalised(A, method))


@rule(power, Kronecker, when=has_factored_power)
def power_kronecker(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p for whole p; by the factors' eigenvectors for other p"""
    if as_integer(p) is None:
        return by_unitary(A, power_of(p), fitting("power", method, Eigh))
    return Kronecker(*(power(factor, p, method) for factor in placed(A)))


@rule(log, Kronecker, when=factors_positive)
def log_kronecker(A: Any, method: Any) -> LinearOperator:
    """log(A ⊗ B) = log(A) ⊕ log(B), both positive definite"""
    base = partial(log.base, method=method)
    return of_positive_parts(A, base, lambda: KroneckerSum(*(log(factor, method) for factor in placed(A))))


def is_diagonalised(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs, and no method is named that does not use these."""
    return (method is None or isinstance(method, Auto | Eigh)) and has_factored_spectrum(A)


def has_factored_roots(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs to use, and not roots and logarithms of their own that make up those of A."""
    return is_diagonalised(A, method) and not factors_positive(A)


@rules((exp, apply), Kronecker, when=is_diagonalised)
@rules((log, sqrt, isqrt), Kronecker, when=has_factored_roots)
@rules((log, sqrt, isqrt, power, apply), KroneckerSum, when=is_diagonalised)
@rules((exp, apply), Scaled[Kronecker], when=is_diagonalised)  # type: ignore[misc]
@rules(ALL, Sum[Kronecker, SHIFT], when=is_diagonalised)  # type: ignore[misc]
@rules((log, sqrt, isqrt, power, apply), Sum[KroneckerSum, SHIFT], when=is_diagonalised)  # type: ignore[misc]
def of_factored_spectrum(A: Any, call: Call) -> LinearOperator:
    """f(A ⊗ B) = (V ⊗ W) f(Λ ⊗ M) (V ⊗ W)^H for self-adjoint A = V Λ V^H and B = W M W^H; Λ ⊕ M for A ⊕ B, and so with + c I"""
    return by_unitary(A, call.f, fitting(call.f.name, call.method, Eigh))


@rules((exp, log, sqrt, isqrt, apply), Kronecker, when=has_general_factors)
def of_general_kronecker(A: Any, call: Call) -> Any:
    """f(A ⊗ B) = (V ⊗ W) f(Λ ⊗ M) (V^-1 ⊗ W^-1) for A = V Λ V^-1 and B = W M W^-1, if V and W are well-conditioned"""
    return Choice(lambda: _in_general_spectrum(A, call), like=lambda: identity_like(A))


def _in_general_spectrum(A: Any, call: Call) -> Any:
    found = general_spectrum(A)
    if found is None:
        return call.base(A)
    values, V, inverse = found
    xp = A.xp
    values = xp.astype(values, xp.complex_dtype(values.dtype)) if call.f.name == "apply" else values
    y = of_values(xp, call.f, values, False, A.shape[-1] * xp.eps(A.dtype))
    return Product(V, Diagonal(real_if_real(xp, A, y)), inverse)


@rules(ALL, Transpose, hereditary=True)
def of_transpose(A: Any, call: Call) -> LinearOperator:
    """f(A^T) = f(A)^T"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).T


@rules(ALL, Adjoint, hereditary=True)
def of_adjoint(A: Any, call: Call) -> LinearOperator:
    """f(A^H) = f(A)^H if f has no cut or A is real"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    if not A.is_complex:
        return call.again(A.A).T
    return call.again(A.A).H if call.f.mirrored else call.base(A)


@rules((exp, power), Conjugate, hereditary=True)
def of_conjugate(A: Any, call: Call) -> LinearOperator:
    """f(conj(A)) = conj(f(A)) if f has no cut"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).conj() if call.f.mirrored else call.base(A)


def has_power_of_inverse(A: LinearOperator, p: Any = 1) -> bool:
    """Whether A is positive, or p is whole."""
    return bool(A.properties & POSITIVE) or as_integer(p) is not None


@rule(power, Inverse, when=has_power_of_inverse, hereditary=True)
def power_inverse(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A^-1)^p = A^-p for positive A or whole p"""
    positive = A.properties & POSITIVE
    base = partial(power.base, p=p, method=method)
    return of_positive_parts(A, base, lambda: power(A.A._claim(positive), -p, method))


@rule(sqrt, PSD[Inverse], hereditary=True)
def sqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(1/2) = A^(-1/2) for positive A"""
    return of_positive_parts(A, partial(sqrt.base, method=method), lambda: isqrt(A.A._claim(A.properties & POSITIVE), method))


@rule(isqrt, PSD[Inverse], hereditary=True)
def isqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(-1/2) = A^(1/2) for positive A"""
    return of_positive_parts(A, partial(isqrt.base, method=method), lambda: sqrt(A.A._claim(A.properties & POSITIVE), method))


@rule(log, PSD[Inverse], hereditary=True)
def log_inverse(A: Any, method: Any) -> LinearOperator:
    """log(A^-1) = -log(A) for positive A"""
    base = partial(log.base, method=method)
    return of_positive_parts(A, base, lambda: Scaled(-1.0, log(A.A._claim(A.properties & POSITIVE), method)))
