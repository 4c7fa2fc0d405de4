"""Determinants of sums: the lemma for low-rank corrections, shifts, and sums of Kronecker products. More rules of `slogdet`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import add, mul
from typing import Any

from ..autodiff import resolvents
from ..autodiff.kronecker import Grid
from ..backends import Array
from ..dispatch import Choice, arrange, rule
from ..info import Info, Status, failed, report
from ..methods.determinants import tridiagonal_eigenvalues
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.identity import ScaledIdentity, scalar_of
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.rewrites import kronecker_terms
from ..operators.scaled import Scaled, beside
from ..operators.sparse_algebra import DIAGONAL, SHIFT
from ..operators.sum import Sum
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_DEFINITE, SELF_ADJOINT, UNITARY
from ._arrays import dense, outer, values_are_seen
from ._elimination import condition, growth, settle_determinant
from ._values import place, placed, report_status
from .determinant import multiplied, one, slogdet
from .determinant_compositions import determinant_lemma, diagonal_can_be_divided_by
from .determinant_rules import Determinant, from_sign, from_values, rows_of, spread
from .diagonal import diag
from .eigen import eig
from .eigen_tridiagonal import diagonals_are_constant
from .inverse import inv
from .inverse_kronecker import TERM, factors_are_square, factors_fit
from .inverse_low_rank import LOW_RANK, capacitance, correction_pays, low_rank_and_rest
from .inverse_sums import SIMILAR, factor_divides_shift, has_similarity, is_zero


@rule(slogdet, Sum[LOW_RANK, ...], when=correction_pays)  # type: ignore[misc]
def determinant_lemma_of_sum(A: Any, method: Any) -> Any:
    """det(A + U C V^H) = det A det(I + C V^H A^-1 U)"""
    low_rank, rest = low_rank_and_rest(A)
    if isinstance(rest, DIAGONAL):
        merged_terms = Sum(low_rank, rest)._claim(A.properties)
        if not diagonal_can_be_divided_by(merged_terms):
            return slogdet.base(A, method)
        return spread(A, determinant_lemma(merged_terms, method))
    inverse, info = inv(rest, method, info=True)
    if failed(info._status) is True:
        report(Info(Status.FELL_BACK, method="LU", message="the sum without its low-rank terms is singular"))
        return slogdet.base(A, method)
    report(info)
    W = inverse @ low_rank.U  # A^-1 U
    K = capacitance(A, low_rank, rest, W)
    found = spread(A, multiplied([slogdet(K, method), slogdet(place(rest, A), method)], [1, 1]))
    whole = partial(slogdet.base, A, method)
    return Choice(lambda: settle_determinant(A, found, growth(rest, W, low_rank.U), whole), like=lambda: found)


@rule(slogdet, Sum[Scaled, SHIFT])  # type: ignore[misc]
@rule(slogdet, Sum[Scaled[Projection | Product], SHIFT])  # type: ignore[misc]
def slogdet_shifted_multiple(A: Any, method: Any) -> Determinant:
    """det(a A + c I) = a^n det(A + c a^-1 I), and c^n if a is zero"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    a = multiple.scalar
    if is_zero(multiple):
        return spread(A, slogdet(ScaledIdentity(scalar_of(shift), A.shape[-1], like=A), method))
    if not factor_divides_shift(multiple, shift):
        return slogdet.base(A, method)
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


DENSE_ROWS = 256  # of a factor that is made a matrix for its eigenvalues, though more is known of it
EXACT = DIAGONAL | Triangular  # whose eigenvalues can be read off, derivatives too


def is_made_a_matrix(A: LinearOperator) -> bool:
    """Whether the eigenvalues are found from the matrix of A, which is not known to be self-adjoint.

    Structure would give eigenvectors too, and judge them. They are not needed, and may not be there.
    """
    if isinstance(A, EXACT) or A.properties & (SELF_ADJOINT | UNITARY):
        return False
    return eig.find(A).is_base or A.shape[-1] <= DENSE_ROWS


def eigenvalues(A: LinearOperator) -> Array:
    """The eigenvalues, in any order: without eigenvectors where they would have to be computed."""
    xp, hermitian = A.xp, A.properties & SELF_ADJOINT
    if isinstance(A, EXACT):
        return diag(A)
    if isinstance(A, Tridiagonal) and diagonals_are_constant(A):
        return eig(A)[0]  # in closed form
    if isinstance(A, Tridiagonal) and hermitian and not A.batch_shape and not A.is_complex and values_are_seen(A):
        return xp.asarray(tridiagonal_eigenvalues(*rows_of(A, A.diag, A.lower)[0]), dtype=A.dtype, device=A._context.device)
    if not is_made_a_matrix(A) and not eig.find(A).is_base:
        (values, _), info = eig(A, info=True)
        if hermitian or failed(info._status) is not True:  # else its eigenvectors were found to be dependent, which do not matter
            report(info)
            return values
    M = dense(A)
    if not hermitian or 0 in M.shape:
        return xp.eigvals(M)
    gap = xp.max(xp.abs(M - xp.conj(xp.matrix_transpose(M))))
    fine = gap <= math.sqrt(xp.eps(M.dtype)) * xp.max(xp.abs(M))
    report_status(xp, xp.where(fine, 0, int(Status.INACCURATE)), message="A is not self-adjoint, as was claimed")
    return xp.eigvalsh(M)


def by_factors(A: LinearOperator, factors: Sequence[LinearOperator], is_sum: bool, a: Any, b: Any) -> Determinant:
    """det(a C + b I) for C = A_1 ⊗ A_2 ⊗ ..., or ⊕, from the eigenvalues of the factors; one that occurs twice is looked at once."""
    xp = A.xp
    found = {id(factor): eigenvalues_and_matrix(factor) for factor in factors}
    values = [found[id(factor)][0] for factor in factors]
    pairs = [found[id(factor)][1] for factor in factors]
    if pairs.count(None) == len(pairs):
        a, b = beside(a), beside(b)
        return from_values(A, a * reduce(partial(outer, add if is_sum else mul), values) + b)
    dtype = xp.result_type(*(v.dtype for v in values))
    a, b = (xp.astype(xp.asarray(c, device=A._context.device), dtype) for c in (a, b))
    values = [xp.astype(v, dtype) for v in values]
    pairs = [None if pair is None else (xp.astype(pair[0], dtype), xp.astype(pair[1], dtype)) for pair in pairs]
    return from_sign(A, *resolvents.slogdet(xp, Grid(lambda x: x, is_sum), values, pairs, a, b))


def eigenvalues_and_matrix(A: LinearOperator) -> tuple[Array, tuple[Array, Array] | None]:
    """The eigenvalues, and where these have no derivative of their own, which a defective A's have not, its matrix and eigenvectors."""
    xp = A.xp
    if xp.is_compiling() or not is_made_a_matrix(A) or 0 in A.shape:
        return eigenvalues(A), None
    M = dense(A)
    if not xp.is_differentiated(M):
        return eigenvalues(A), None
    values, V = xp.eig(xp.stop_gradient(M))
    return values, (M, V)


@rule(slogdet, KroneckerSum, like=one)
def slogdet_kronecker_sum(A: Any, method: Any) -> Determinant:
    """det(A ⊕ B) = product of λ + μ over the eigenvalues λ of A and μ of B, diagonalisable or not"""
    return by_factors(A, placed(A), True, 1.0, 0.0)


@rule(slogdet, Sum[Kronecker | KroneckerSum, SHIFT], when=factors_are_square, like=one)  # type: ignore[misc]
def slogdet_shifted_kronecker(A: Any, method: Any) -> Determinant:
    """det(A ⊗ B + c I) = product of λ μ + c over the eigenvalues λ of A and μ of B, diagonalisable or not"""
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, SHIFT)
    return by_factors(A, placed(kronecker), isinstance(kronecker, KroneckerSum), 1.0, scalar_of(shift))


@rule(slogdet, Sum[TERM, TERM], when=factors_fit)  # type: ignore[misc]
def slogdet_two_kroneckers(A: Any, method: Any) -> Any:
    """det(a A ⊗ B + c C ⊗ D) = det(C ⊗ D) ∏ (a λ μ + c) over the eigenvalues λ of C^-1 A and μ of D^-1 B"""
    (c, left), (a, right) = sorted(
        kronecker_terms(A), key=lambda term: sum(not isinstance(factor, DIAGONAL) for factor in term[1])
    )
    simple, other = ([place(factor, A) for factor in factors] for factors in (left, right))
    found = [inv(factor, method, info=True) for factor in simple]
    if any(failed(info._status) is True for _, info in found):
        report(Info(Status.FELL_BACK, method="LU", message="a factor is singular, so it cannot be divided by"))
        return slogdet.base(A, method)
    for _, info in found:
        report(info)
    divided = partial(slogdet, place(Kronecker(*simple), A), method)
    return Choice(lambda: _divided(A, method, (a, c), simple, other, found, divided()), like=lambda: spread(A, divided()))


def _divided(A: Any, method: Any, scalars: Any, simple: Any, other: Any, found: Any, divisor: Determinant) -> Any:
    """The determinant of a A ⊗ B + c C ⊗ D from that of C ⊗ D, which is `divisor`."""
    a, c = scalars
    quotients = [quotient(B, C, inverse) for B, C, (inverse, _) in zip(other, simple, found)]
    parts = [by_factors(A, quotients, False, a, c), divisor]
    spoilt = math.prod([condition(C, inverse) for C, (inverse, _) in zip(simple, found)])
    whole = partial(slogdet.base, A, method)
    return settle_determinant(A, spread(A, multiplied(parts, [1, 1])), spoilt, whole)


def quotient(B: LinearOperator, C: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """C^-1 B, or what is similar to it and self-adjoint, where B is self-adjoint and C positive definite."""
    if not (B.properties & SELF_ADJOINT and C.properties & POSITIVE_DEFINITE):
        return Dense(inverse @ dense(B))
    xp = C.xp
    L, _ = xp.cholesky(dense(C))
    half = xp.solve_triangular(L, dense(B))
    middle = xp.solve_triangular(L, xp.conj(xp.matrix_transpose(half)))  # L^-1 B L^-H
    return Dense(middle)._claim(SELF_ADJOINT)
