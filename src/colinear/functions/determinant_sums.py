"""Determinants of sums: the lemma for low-rank corrections, shifts, and sums of Kronecker products. More rules of `slogdet`."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add, mul
from typing import Any

from ..backends import Array
from ..dispatch import arrange, rule
from ..info import Info, Status, failed, planning, report
from ..methods.determinants import tridiagonal_eigenvalues
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.identity import ScaledIdentity
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.rewrites import DIAGONAL, SHIFT, scalar_of
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_DEFINITE, SELF_ADJOINT
from ._arrays import dense
from ._values import has_no_zero, place, placed, report_status
from .determinant import multiplied, one, sign_and_logarithm, slogdet
from .determinant_rules import Determinant, from_values, rows_of, spread, values_are_seen
from .diagonal import outer
from .eigen import eig
from .eigen_tridiagonal import diagonals_are_constant
from .inverse import inv
from .inverse_kronecker import TERM, factors_are_square, factors_fit
from .inverse_kronecker import _terms as terms_of
from .inverse_low_rank import capacitance, correction_pays, low_rank_and_rest
from .inverse_sums import SIMILAR, has_similarity

LOW_RANK: Any = LowRank | Projection | BatchSum[LowRank] | Scaled[Projection | BatchSum[LowRank] | Product] | Product  # type: ignore[misc]


@rule(slogdet, Sum[LOW_RANK, ...], when=correction_pays)  # type: ignore[misc]
def determinant_lemma_of_sum(A: Any, method: Any) -> Determinant:
    """det(A + U C V^H) = det A det(I + C V^H A^-1 U)"""
    low_rank, rest = low_rank_and_rest(A)
    inverse, info = inv(rest, method, info=True)
    if failed(info._status) is True:
        report(Info(Status.FELL_BACK, method="LU", message="the sum without its low-rank terms is singular"))
        return sign_and_logarithm(A, method)
    report(info)
    K = capacitance(A, low_rank, rest, inverse @ low_rank.U)
    return spread(A, multiplied([slogdet(K, method), slogdet(place(rest, A), method)], [1, 1]))


@rule(slogdet, Sum[Scaled, SHIFT])  # type: ignore[misc]
@rule(slogdet, Sum[Scaled[Projection | BatchSum[LowRank] | Product], SHIFT])  # type: ignore[misc]
def slogdet_shifted_multiple(A: Any, method: Any) -> Determinant:
    """det(a A + c I) = a^n det(A + c a^-1 I)"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    a = multiple.scalar
    if not (has_no_zero(a) if hasattr(a, "ndim") else a != 0):
        return sign_and_logarithm(A, method)
    return spread(A, slogdet(Scaled(a, Sum(multiple.A, Scaled(1 / a, shift))), method))


@rule(slogdet, Sum[Projection, SHIFT])  # type: ignore[misc]
@rule(slogdet, Sum[Scaled[Projection], SHIFT])  # type: ignore[misc]
def slogdet_shifted_projection(A: Any, method: Any) -> Determinant:
    """det(a Q Q^H + c I) = (a + c)^r c^(n - r) for r columns of Q"""
    projection, shift = arrange(A, Projection | Scaled[Projection], SHIFT)  # type: ignore[misc]
    P: Any
    a, P = (projection.scalar, projection.A) if isinstance(projection, Scaled) else (1.0, projection)
    n, r = P.Q.shape[-2:]
    parts = [
        slogdet(ScaledIdentity(c, size, like=A), method) for c, size in ((a + scalar_of(shift), r), (scalar_of(shift), n - r))
    ]
    return spread(A, multiplied(parts, [1, 1]))


@rule(slogdet, Sum[SIMILAR, SHIFT], when=has_similarity)  # type: ignore[misc]
def slogdet_shifted_similarity(A: Any, method: Any) -> Determinant:
    """det(V A V^-1 + c I) = det(A + c I): of a known eigendecomposition, A is diagonal"""
    product, shift = arrange(A, Product, SHIFT)
    return spread(A, slogdet(place(Sum(Product(*product.operands[1:-1]), shift), A), method))


# ---------------------------------------------------------------------------------------------------- sums of Kronecker products


def eigenvalues(A: LinearOperator) -> Array:
    """The eigenvalues, in any order: without eigenvectors where they would have to be computed."""
    xp, hermitian = A.xp, A.properties & SELF_ADJOINT
    if isinstance(A, Tridiagonal) and diagonals_are_constant(A):
        return eig(A)[0]  # in closed form
    if isinstance(A, Tridiagonal) and hermitian and not A.batch_shape and not A.is_complex and values_are_seen(A):
        return xp.asarray(tridiagonal_eigenvalues(*rows_of(A, A.diag, A.lower)[0]), dtype=A.dtype, device=A._context.device)
    if not eig.find(A).is_base:
        return eig(A)[0]
    M = dense(A)
    if not hermitian or 0 in M.shape:
        return xp.eigvals(M)
    gap = xp.max(xp.abs(M - xp.conj(xp.matrix_transpose(M))))
    fine = gap <= math.sqrt(xp.eps(M.dtype)) * xp.max(xp.abs(M))
    report_status(xp, xp.where(fine, 0, int(Status.INACCURATE)), message="A is not self-adjoint, as was claimed")
    return xp.eigvalsh(M)


def spectrum(A: LinearOperator) -> Array:
    """The eigenvalues of a Kronecker product or sum; a factor that occurs twice is looked at once."""
    factors = placed(A)
    known = {key: eigenvalues(factor) for key, factor in {id(factor): factor for factor in factors}.items()}
    return reduce(partial(outer, add if isinstance(A, KroneckerSum) else mul), [known[id(factor)] for factor in factors])


@rule(slogdet, KroneckerSum)
def slogdet_kronecker_sum(A: Any, method: Any) -> Determinant:
    """det(A ⊕ B) = product of λ + μ over the eigenvalues λ of A and μ of B, diagonalisable or not"""
    return one(A) if planning() else from_values(A, spectrum(A))


@rule(slogdet, Sum[Kronecker | KroneckerSum, SHIFT], when=factors_are_square)  # type: ignore[misc]
def slogdet_shifted_kronecker(A: Any, method: Any) -> Determinant:
    """det(A ⊗ B + c I) = product of λ μ + c over the eigenvalues λ of A and μ of B, diagonalisable or not"""
    if planning():
        return one(A)
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, SHIFT)
    c = scalar_of(shift)
    return from_values(A, spectrum(kronecker) + (c[..., None] if getattr(c, "ndim", 0) else c))


@rule(slogdet, Sum[TERM, TERM], when=factors_fit)  # type: ignore[misc]
def slogdet_two_kroneckers(A: Any, method: Any) -> Determinant:
    """det(a A ⊗ B + c C ⊗ D) = det(C ⊗ D) ∏ (a λ μ + c) over the eigenvalues λ of C^-1 A and μ of D^-1 B"""
    (c, left), (a, right) = sorted(terms_of(A), key=lambda term: sum(not isinstance(factor, DIAGONAL) for factor in term[1]))
    simple, other = ([place(factor, A) for factor in factors] for factors in (left, right))
    found = [inv(factor, method, info=True) for factor in simple]
    if any(failed(info._status) is True for _, info in found):
        report(Info(Status.FELL_BACK, method="LU", message="a factor is singular, so it cannot be divided by"))
        return sign_and_logarithm(A, method)
    for _, info in found:
        report(info)
    spectra = [quotient_spectrum(B, C, inverse) for B, C, (inverse, _) in zip(other, simple, found)]
    a, c = (x[..., None] if getattr(x, "ndim", 0) else x for x in (a, c))
    values = one(A)[0][..., None] if planning() else a * reduce(partial(outer, mul), spectra) + c
    return spread(A, multiplied([from_values(A, values), slogdet(place(Kronecker(*simple), A), method)], [1, 1]))


def quotient_spectrum(B: LinearOperator, C: LinearOperator, inverse: LinearOperator) -> Array:
    """The eigenvalues of C^-1 B; real by construction where B is self-adjoint and C positive definite."""
    if planning():
        return C.xp.ones((1,))
    if B.properties & SELF_ADJOINT and C.properties & POSITIVE_DEFINITE:
        L, _ = C.xp.cholesky(dense(C))
        half = C.xp.solve_triangular(L, dense(B))
        middle = C.xp.solve_triangular(L, C.xp.conj(C.xp.matrix_transpose(half)))  # L^-1 B L^-H
        return C.xp.eigvalsh(middle)
    return C.xp.eigvals(inverse @ dense(B))
