"""Inverses of sums of Kronecker products whose factors are not all self-adjoint, or of two such
products."""

from __future__ import annotations

import math
from functools import partial, reduce
from operator import add, mul
from typing import Any

import numpy as np

from ...backends import Array, adjoint, hermitian, matrix_inverse, namespace_of
from ...dispatch import Choice, rule
from ...factors.function import from_eigenpairs
from ...factors.inverse import Inverse
from ...factors.structured import SchurFactor, SpectralFactor
from ...info import Info, report
from ...operators import (
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Product,
    Scaled,
    Sum,
)
from ...operators.context import kind_of
from ...operators.kronecker import kronecker_terms
from ...operators.neutral import dense_part
from ...operators.rewrites import are_beside_identities, share_factors
from ...operators.scaled import beside, multiply_scalars
from ...operators.sparse_algebra import DIAGONAL, SHIFT, diagonal_of
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, failed
from ..common import (
    host_value,
    identity_like,
    ignore_float_errors,
    in_context,
    is_positive,
    operands_in_context,
    outer,
    reciprocal,
    reciprocal_spectrum,
    report_failure,
    seen_value,
    to_computing_dtype,
    values_are_seen,
)
from ..spectrum import eig, has_common_factors, spectrum_by_factors
from .elimination import dense_fallback, judged
from .inverse import all_square, by_equation, inv, no_inverse
from .sums import kronecker_and_shift, kronecker_of_self_adjoint

# --------------------------------------------------------------------------------------------------


def factors_are_square(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are square."""
    return all(map(all_square, A.operands))


def factors_are_general(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are square, and not all self-adjoint."""
    return factors_are_square(A) and not kronecker_of_self_adjoint(A)


@rule(inv, Sum[Kronecker | KroneckerSum, SHIFT], when=factors_are_general)
@by_equation
def inv_shifted_kronecker_by_eigenvectors(A: Any, method: Any) -> Any:
    """(A ⊗ B + c I)^-1 = (V ⊗ W) (Λ ⊗ M + c)^-1 (V ⊗ W)^-1 for A = V Λ V^-1, B = W M W^-1"""
    kronecker, c = kronecker_and_shift(A)

    factors = operands_in_context(kronecker)

    def like() -> LinearOperator:
        for factor in factors:
            eig(factor, info=True)
        return identity_like(A)

    bases = lambda: list(map(_basis, factors))
    return Choice(lambda: _in_eigenvectors(A, kronecker, c, method, bases()), like=like)


@rule(inv, KroneckerSum)
def inv_kronecker_sum_by_eigenvectors(A: Any, method: Any) -> Any:
    """(A ⊕ B)^-1 = (V ⊗ W) (Λ ⊕ M)^-1 (V ⊗ W)^-1 for A = V Λ V^-1, B = W M W^-1; by Schur forms
    if these are ill-conditioned"""
    return inv_shifted_kronecker_by_eigenvectors(A, method)


def is_a_power_of_self_adjoint(A: Any) -> bool:
    """Whether all factors are one and the same Kronecker sum of self-adjoint terms."""
    first = A.operands[0]
    return all(factor is first for factor in A.operands) and has_common_factors(first)


@rule(inv, Product[KroneckerSum, ...], when=is_a_power_of_self_adjoint)
@by_equation
def inv_kronecker_sum_power(A: Any, method: Any) -> LinearOperator:
    """((A ⊕ B)^p)^-1 = (Q ⊗ P) (Λ ⊕ M)^-p (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    values, vectors = spectrum_by_factors(A.operands[0])
    reciprocals = reciprocal_spectrum(A.xp, values) ** len(A.operands)
    return from_eigenpairs(A, reciprocals, vectors)._claim(A.properties)


def _basis(factor: Any) -> tuple[Array, Array, Array]:
    """Eigenvalues, eigenvectors V and V^-1 of a factor; they are judged by the condition of all
    factors together. In a program, which sees at its end only if a matrix is symmetric, a
    symmetric one takes the shorter way."""
    xp = factor.xp

    def general(values: Array, V: Array) -> tuple[Array, Array, Array]:
        with ignore_float_errors(xp):
            return values, V, matrix_inverse(xp, V)

    if not (xp.is_functional and isinstance(factor, Dense) and xp.is_traced(factor.A)):
        values, vectors = eig(factor, info=True)[0]
        return general(values, vectors.to_dense())
    M = xp.stop_gradient(to_computing_dtype(xp, factor.A))

    def symmetric() -> tuple[Array, Array, Array]:
        values, Q = (xp.astype(x, xp.complex_dtype(M.dtype)) for x in xp.eigh(M))
        return values, Q, adjoint(xp, Q)

    return xp.cond(xp.all(M == adjoint(xp, M)), symmetric, lambda: general(*xp.eig(M)))


def _in_eigenvectors(
    A: Any, kronecker: Any, c: Any, method: Any, bases: list[Any]
) -> LinearOperator:
    xp = A.xp
    with ignore_float_errors(xp):
        size = partial(xp.vector_norm, axis=(-2, -1))
        condition = math.prod([size(V) * size(W) for _, V, W in bases])
    fine = condition < 1 / math.sqrt(xp.eps(A.dtype))
    visible = seen_value(xp, fine)
    if visible is not None and not visible.all():
        return _by_schur_forms(A, kronecker, c, method)
    report_failure(xp, (fine, Status.INACCURATE))
    is_sum = isinstance(kronecker, KroneckerSum)

    values = reduce(
        partial(outer, add if is_sum else mul), [values for values, _, _ in bases]
    ) + beside(c)
    V, W = (Kronecker(*(Dense._of(basis[i]) for basis in bases)) for i in (1, 2))
    return Inverse(A, SpectralFactor._of(V, reciprocal_spectrum(xp, values), W, not A.is_complex))


def _by_schur_forms(A: Any, kronecker: Any, c: Any, method: Any) -> LinearOperator:
    """Where there is no good basis of eigenvectors: substitution in the Schur forms; as a
    matrix where derivatives are recorded, of a batch and of a product."""
    xp, terms = A.xp, kronecker.operands
    one_sum = isinstance(kronecker, KroneckerSum) and not A.batch_shape and A.dtype.itemsize >= 4
    if not one_sum or not values_are_seen(A):
        why = "the eigenvectors of the factors are ill-conditioned"
        return dense_fallback(A, method, [Info(Status.INACCURATE, message=why)], why)
    from scipy.linalg import schur

    first, *others = (np.asarray(host_value(xp, dense_part(factor, A))) for factor in terms)
    first = first + np.asarray(c if namespace_of(c) is None else host_value(xp, c)) * np.eye(
        len(first)
    )
    if not all(np.isfinite(M).all() for M in (first, *others)):
        return no_inverse(A, Info(Status.NONFINITE))
    triangles, bases = zip(*(schur(M, output="complex") for M in (first, *others)))
    put = lambda x: xp.asarray(x, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
    reciprocal_spectrum(xp, put(reduce(np.add.outer, [np.diag(T) for T in triangles]).reshape(-1)))
    return Inverse(
        A, SchurFactor._of(tuple(map(put, bases)), tuple(map(put, triangles)), not A.is_complex)
    )


# --------------------------------------------------------------------------------------------------

TERM: Any = Kronecker | Scaled[Kronecker]


def factors_fit(A: Any) -> bool:
    """Whether the factors are square and face each other in pairs of equal size, and the sum is
    neither one product nor a Kronecker sum nor diagonal in eigenvectors of common factors."""
    (_, first), (_, second) = kronecker_terms(A)
    sizes = [[factor.shape[-2:] for factor in factors] for factors in (first, second)]
    if sizes[0] != sizes[1] or any(m != n for m, n in sizes[0]):
        return False
    return not (share_factors(A) or are_beside_identities(A) or has_common_factors(A))


def _definiteness(A: Any) -> int:
    """How well an operator serves as the B of a pencil (A, B): 0 best, 4 not at all."""
    if isinstance(A, Identity):
        return 0
    if isinstance(A, DIAGONAL) and is_positive(A):
        return 1
    if A.properties & POSITIVE_DEFINITE:
        return 2
    return 3 if A.properties & POSITIVE_SEMIDEFINITE else 4


def pairs_are_definite(A: Any) -> bool:
    """Whether factors face each other in pairs of self-adjoint ones, one of each pair positive."""
    if not factors_fit(A):
        return False
    pairs = list(zip(*(factors for _, factors in kronecker_terms(A))))
    return all(
        B.properties & C.properties & SELF_ADJOINT and min(map(_definiteness, (B, C))) < 4
        for B, C in pairs
    )


@rule(inv, Sum[TERM, TERM], when=pairs_are_definite)
@by_equation
@judged
def inv_two_kroneckers(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + C ⊗ D)^-1 = (T ⊗ S) (Λ ⊗ M + 1)^-1 (T ⊗ S)^H for T^H A T = Λ, T^H C T = I and S^H
    B S = M, S^H D S = I"""
    xp, ((a, first), (c, second)) = A.xp, kronecker_terms(A)
    pencils = [pencil(B, C, A) for B, C in zip(first, second)]

    beta, gamma = (reduce(partial(outer, mul), [p[i] for p in pencils]) for i in (0, 1))
    values = beside(a) * beta + beside(c) * gamma
    T = Kronecker(*(p[2] for p in pencils))
    return Product(T, Diagonal(reciprocal_spectrum(xp, values)), T.H)._claim(A.properties)


def pencil(
    B: LinearOperator, C: LinearOperator, whole: LinearOperator
) -> tuple[Array, Array, LinearOperator]:
    """β, γ and T with T^H B T = diag(β) and T^H C T = diag(γ), for self-adjoint B and C of which
    one is positive."""
    xp = whole.xp
    if isinstance(B, DIAGONAL) and isinstance(C, DIAGONAL):
        beta, gamma = (xp.real(diagonal_of(D, in_context(D, whole))) for D in (B, C))
        return beta, gamma, Identity(B.shape[-1], like=whole)
    if _definiteness(B) < _definiteness(C):
        gamma, beta, T = pencil(C, B, whole)
        return beta, gamma, T
    L, ok = xp.cholesky(dense_part(C, whole))
    report_failure(xp, (ok, Status.NOT_POSITIVE_DEFINITE), message=f"In {C._expression()}")
    middle = between_inverses(xp, L, dense_part(B, whole))
    values, Q = xp.eigh(hermitian(xp, middle))
    ones = xp.ones(values.shape, **kind_of(values))
    return values, ones, Dense(xp.solve_triangular(L, Q, adjoint=True))


def between_inverses(xp: Any, L: Array, B: Array) -> Array:
    """L^-1 B L^-H for a self-adjoint B"""
    return xp.solve_triangular(L, adjoint(xp, xp.solve_triangular(L, B)))


def invert_simpler_term(A: Any, method: Any) -> tuple[Any, Any, list[Any]]:
    """c and the factors of the term that is simpler to invert, a and those of the other one, and
    the inverse and its Info of each of the former."""
    terms = sorted(
        kronecker_terms(A),
        key=lambda term: sum(not isinstance(factor, DIAGONAL) for factor in term[1]),
    )
    simple, other = ((c, [in_context(factor, A) for factor in factors]) for c, factors in terms)
    return simple, other, [inv(factor, method, info=True) for factor in simple[1]]


@rule(inv, Sum[TERM, TERM], when=factors_fit)
@by_equation
@judged
def inv_kronecker_pencil(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + C ⊗ D)^-1 = (C^-1 A ⊗ D^-1 B + I)^-1 (C ⊗ D)^-1"""
    (c, _), (a, other), found = invert_simpler_term(A, method)
    for _, info in found:
        if failed(info.status) is True:
            why = "a factor is singular, so the other product cannot be divided by its product"
            return no_inverse(A, info.replace(message=why))
        report(info)
    quotient = Kronecker(
        *(Dense(inverse @ dense_part(B, A)) for (inverse, _), B in zip(found, other))
    )
    unit = reciprocal(c)
    shifted = Sum(Scaled(multiply_scalars(a, unit), quotient), Identity(A.shape[-1]))
    return Product(
        inv(shifted, method), Scaled(unit, Kronecker(*(inverse for inverse, _ in found)))
    )
