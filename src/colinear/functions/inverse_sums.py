"""Inverses of sums: shifts, and sums of Kronecker products. Low-rank corrections are in inverse_low_rank.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import arrange, rule
from ..info import part
from ..operators.base import LinearOperator
from ..operators.batching import broadcast_batch
from ..operators.diagonal import Diagonal
from ..operators.identity import ScaledIdentity, scalar_of
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.rewrites import DEFINITE
from ..operators.scaled import Scaled, beside, kept_by_scalar
from ..operators.sparse_algebra import SHIFT
from ..operators.sum import Sum
from ..properties import POSITIVE_SEMIDEFINITE, UNITARY
from ._arrays import seen
from ._similarity import is_similarity
from ._values import reciprocal, reciprocal_spectrum
from .eigen import factors_self_adjoint, spectrum_by_factors
from .inverse import by_equation, inv, inverse
from .kronecker_functions import differentiable_inverse

# ---------------------------------------------------------------------------------------------------- shifts


@rule(inv, Sum[Projection, SHIFT])  # type: ignore[misc]
@rule(inv, Sum[Scaled[Projection], SHIFT])  # type: ignore[misc]
def inv_shifted_projection(A: Any, method: Any) -> LinearOperator:
    """(a Q Q^H + c I)^-1 = c^-1 (I - a (a + c)^-1 Q Q^H)"""
    projection, shift = arrange(A, Projection | Scaled[Projection], SHIFT)  # type: ignore[misc]
    a, P = (projection.scalar, projection.A) if isinstance(projection, Scaled) else (1.0, projection)
    Q: Any = P.Q  # type: ignore[union-attr]
    c = scalar_of(shift)
    if Q.shape[-1] == P.shape[-1]:  # nothing is off the range of Q: a + c alone is divided by
        return inv(broadcast_batch(ScaledIdentity(a + c, A.shape[-1], like=A), A.batch_shape), method)._claim(A.properties)
    inner = a * part("On the range of Q", reciprocal, a + c)
    return Sum(inv(shift, method), Scaled(-inner * part("Off the range of Q", reciprocal, c), P))._claim(A.properties)


def factor_divides_shift(multiple: Any, shift: Any) -> bool:
    """Whether 1 / a and c / a are finite for a A + c I (taken for granted where values cannot be seen)."""
    a, c = multiple.scalar, scalar_of(shift)
    if isinstance(a, float) and isinstance(c, float) and abs(a) > 1e-150 and abs(c) < 1e150:
        return True
    values = [_seen_number(x) for x in (a, c)]
    if any(value is None for value in values):
        return True
    with np.errstate(all="ignore"):
        return bool(np.all(np.isfinite(1 / values[0])) and np.all(np.isfinite(values[1] / values[0])))


def is_zero(multiple: Any) -> bool:
    """Whether the factor of a A is seen to be zero, in all matrices of a batch, and has no derivative."""
    a = multiple.scalar
    xp = namespace_of(a)
    if xp is not None and xp.is_differentiated(a):
        return False
    value = _seen_number(a)
    return value is not None and bool(np.all(value == 0))


def _seen_number(x: Any) -> Any:
    """A number, or an array of them, as NumPy's; None where values cannot be seen."""
    xp = namespace_of(x)
    value = x if xp is None else seen(xp, x)
    return None if value is None else np.asarray(value)


@rule(inv, Sum[Scaled, SHIFT])  # type: ignore[misc]
@rule(inv, Sum[Scaled[Projection | Product], SHIFT])  # type: ignore[misc]  # and then by `kailath`
def inv_shifted_multiple(A: Any, method: Any) -> Any:
    """(a A + c I)^-1 = a^-1 (A + c a^-1 I)^-1, and c^-1 I if a is zero"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    if is_zero(multiple):
        return inv(broadcast_batch(ScaledIdentity(scalar_of(shift), A.shape[-1], like=A), A.batch_shape), method)
    if not factor_divides_shift(multiple, shift):
        return inverse(A, method)
    a = part("In the factor of a term", reciprocal, multiple.scalar)
    # What was said of the whole holds for its multiple by a^-1, if a is known to be positive: by its value, or (under tracing) by
    # what is known of a A and of A.
    is_positive = multiple.properties & multiple.A.properties & POSITIVE_SEMIDEFINITE
    known = A.properties & DEFINITE if is_positive else kept_by_scalar(A.properties, multiple.scalar)
    return Scaled(a, inv(Sum(multiple.A, Scaled(a, shift))._claim(known), method))._claim(A.properties)


SIMILAR = Product[LinearOperator, ..., LinearOperator]  # type: ignore[type-arg, misc]


def has_similarity(A: Any) -> bool:
    """Whether a term is V A V^-1, by how it was made."""
    return any(isinstance(term, Product) and is_similarity(term) for term in A.operands)


@rule(inv, Sum[SIMILAR, SHIFT], when=has_similarity)  # type: ignore[misc]
def inv_shifted_similarity(A: Any, method: Any) -> LinearOperator:
    """(V A V^-1 + c I)^-1 = V (A + c I)^-1 V^-1: of a known eigendecomposition, A is diagonal"""
    product, shift = arrange(A, Product, SHIFT)
    V, *middle, W = product.operands
    inner = Sum(Product(*middle), shift)
    inner = inner._claim(A.properties) if V.properties & UNITARY else inner
    return Product(V, part("In the middle of the similarity", inv, inner, method), W)._claim(A.properties)


# ---------------------------------------------------------------------------------------------------- sums of Kronecker products


def kronecker_of_self_adjoint(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are self-adjoint."""
    return all(factors_self_adjoint(term) for term in A.operands if isinstance(term, (Kronecker, KroneckerSum)))


@rule(inv, Sum[Kronecker | KroneckerSum, SHIFT], when=kronecker_of_self_adjoint)  # type: ignore[misc]
def inv_shifted_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + c I)^-1 = (Q ⊗ P) (Λ ⊗ M + c)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    known = differentiable_inverse(A)
    return _by_spectrum(A, method) if known is None else known


@rule(inv, KroneckerSum, when=factors_self_adjoint)
def inv_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """(A ⊕ B)^-1 = (Q ⊗ P) (Λ ⊕ M)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    return inv_shifted_kronecker(A, method)


@by_equation
def _by_spectrum(A: Any, method: Any) -> LinearOperator:
    values, vectors = shifted_spectrum(A)
    return Product(vectors, Diagonal(reciprocal_spectrum(A.xp, values)), vectors.H)._claim(A.properties)


def shifted_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator]:
    """Eigenvalues and eigenvectors of a Kronecker product or sum, plus c I perhaps."""
    if not isinstance(A, Sum):
        return spectrum_by_factors(A)
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, SHIFT)
    values, vectors = spectrum_by_factors(kronecker)
    return values + beside(scalar_of(shift)), vectors
