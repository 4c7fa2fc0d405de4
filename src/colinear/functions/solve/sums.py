"""Inverses of sums: shifts, sums of Kronecker products, and low-rank corrections (Woodbury,
Kailath, Sherman and Morrison)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backends import Array, namespace_of
from ...dispatch import arrange, rule
from ...factors.function import from_eigenpairs
from ...factors.inverse import Inverse
from ...info import Info, labelled, planning, report
from ...operators import (
    Adjoint,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sum,
)
from ...operators.batch import broadcast_batch
from ...operators.diagonal import scalar_of
from ...operators.neutral import dense_part
from ...operators.rewrites import DEFINITE
from ...operators.scaled import known_of_scalar
from ...operators.sparse_algebra import DIAGONAL, SHIFT, diagonal_of, is_sparse
from ...operators.transposed import are_adjoint
from ...properties import POSITIVE_SEMIDEFINITE, UNITARY
from ...status import Status, failed, is_unseen
from ..common import has_no_zero, is_positive, reciprocal, reciprocal_spectrum, seen_numbers
from ..matrix_functions.spectra import differentiable_inverse
from ..spectrum import has_common_factors, spectrum_by_factors
from ..spectrum.components import has_positive_spectrum
from ..spectrum.rules import is_similarity
from .elimination import dense_fallback, judged, strengthened, weak_entries
from .inverse import by_equation, inv, inverse, no_inverse

# Inverses of low-rank corrections: Woodbury, Kailath, Sherman and Morrison.


def rank_of(A: Any) -> int:
    """The rank that the factors of an operator show, its size if they show none."""
    if isinstance(A, Product):
        if A._is_out_of_core and not all(isinstance(factor, Dense) for factor in A.operands):
            return A.shape[-1]  # whose factors are not read as a whole
        return min(factor.shape[-1] for factor in A.operands[:-1])
    if isinstance(A, Scaled):
        return rank_of(A.A)
    if isinstance(A, LowRank):
        return A.U.shape[-1]
    return (A.Q if isinstance(A, Projection) else A).shape[-1]


def as_low_rank(A: Any) -> Any:
    """An operator whose factors show a low rank, as `U C V^H`."""
    if isinstance(A, Scaled):
        return Scaled(A.scalar, as_low_rank(A.A))
    if isinstance(A, Projection):
        return LowRank._of(A.Q, None, None)
    if isinstance(A, Product):
        widths = [factor.shape[-1] for factor in A.operands[:-1]]
        cut = widths.index(min(widths)) + 1
        left, right = Product(*A.operands[:cut]), Product(*A.operands[cut:])
        V = None if are_adjoint(left, right) else dense_part(right.H, A)
        return LowRank._of(dense_part(left, A), V, None)
    return A


def is_narrow(A: LinearOperator) -> bool:
    """Whether the rank is at most half of the size: where a correction costs less than a
    factorisation."""
    return 2 * rank_of(A) <= A.shape[-1]


def low_rank_and_rest(A: Any) -> tuple[LowRank, LinearOperator]:
    """The terms of low rank as one, and the sum of the others."""
    narrow, rest = _narrow_and_others(A)
    low_rank = Sum(*map(as_low_rank, narrow))
    assert isinstance(low_rank, LowRank)
    return low_rank, Sum(*rest)


def _narrow_and_others(A: Any) -> tuple[list[Any], list[Any]]:
    """The terms of low rank, and the others."""
    narrow = [term for term in A.operands if is_narrow(term)]
    return narrow, [term for term in A.operands if not is_narrow(term)]


def correction_pays(A: Any) -> bool:
    """Whether some terms are of low rank, together at most half of the size, and a rule inverts
    the others; not in a sparse sum."""
    if is_sparse(A):
        return False
    narrow, rest = _narrow_and_others(A)
    pays = bool(narrow and rest) and 2 * sum(map(rank_of, narrow)) <= A.shape[-1]
    return pays and not inv.find(Sum(*rest)).is_base


def low_rank_and_diagonal(A: Any) -> tuple[Any, Any]:
    """The two terms of D + U C V^H."""
    first, second = A.operands
    return (first, second) if isinstance(first, LowRank) else (second, first)


def rank_is_low(A: LinearOperator) -> bool:
    """Whether the rank is at most half of the size, and the diagonal term, if it is c I, is not
    zero."""
    low_rank, D = low_rank_and_diagonal(A)
    return is_narrow(low_rank) and not shift_is_zero(D)


def shift_is_zero(D: Any) -> bool:
    """Whether D is c I, and c seen to be zero."""
    return isinstance(D, ScaledIdentity) and not has_no_zero(D.c)


def rank_is_low_and_diagonal_strong(A: LinearOperator) -> bool:
    """Whether the rank is at most half of n, and no entry of D too small to be divided by (none
    is where values cannot be seen)."""
    return rank_is_low(A) and not len(weak_entries(*low_rank_and_diagonal(A)))


def both_terms_are_positive(A: LinearOperator) -> bool:
    """Whether the sum is D + U U^H with D seen to be positive, so that nothing cancels in I +
    U^H D^-1 U."""
    low_rank, D = low_rank_and_diagonal(A)
    is_seen = not (isinstance(D, Diagonal) and is_unseen(D.d))
    return is_gram(low_rank) and is_seen and is_positive(D)


@rule(inv, Sum[LowRank, DIAGONAL], when=rank_is_low_and_diagonal_strong)
@judged(is_final=True, unless=both_terms_are_positive)
def woodbury(A: Any, method: Any) -> LinearOperator:
    """(D + U C V^H)^-1 = D^-1 - D^-1 U (I + C V^H D^-1 U)^-1 C V^H D^-1"""
    return _corrected_diagonal(A, method)


def _corrected_diagonal(A: Any, method: Any) -> LinearOperator:
    """(D + U C V^H)^-1 by Woodbury's formula, after an exchange of the weak entries of D."""
    low_rank, D = strengthened(*low_rank_and_diagonal(A))
    D_inverse = labelled("In the diagonal term", inv, D, method)
    K = capacitance_of_diagonal(low_rank, D, diagonal_of(D_inverse, low_rank))
    K_inverse = labelled(CAPACITANCE, inv, K, method)
    inner = Product(Dense._of(low_rank.U), K_inverse, *right_factors(low_rank))
    return Sum(D_inverse, Scaled(-1.0, Product(D_inverse, inner, D_inverse)))._claim(A.properties)


def _corrected_inverse(
    A: Any, low_rank: Any, rest: LinearOperator, rest_inverse: LinearOperator, method: Any
) -> LinearOperator:
    """(I - A^-1 U (I + C V^H A^-1 U)^-1 C V^H) A^-1, for the inverse of A, which is `rest`."""
    U = rest_inverse @ low_rank.U  # A^-1 U
    K_inverse = labelled(CAPACITANCE, inv, capacitance(low_rank, rest, U), method)
    correction = Scaled(-1.0, Product(Dense._of(U), K_inverse, *right_factors(low_rank)))
    return Product(Sum(Identity(A.shape[-1]), correction), rest_inverse)._claim(A.properties)


NO_CORRECTION = (
    "the sum without its low-rank terms is singular, so they cannot be a correction of it"
)
CAPACITANCE = "In the capacitance I + C V^H A^-1 U of Woodbury's formula, singular where the sum is"


def has_few_weak_entries(A: LinearOperator) -> bool:
    """Whether D has entries too small to be divided by, so few that they and the low rank
    together are at most half of the size."""
    low_rank, D = low_rank_and_diagonal(A)
    weak = weak_entries(low_rank, D)
    return bool(len(weak)) and 2 * (rank_of(low_rank) + len(weak)) <= A.shape[-1]


@rule(inv, Sum[LowRank, Diagonal], when=has_few_weak_entries)
@judged(is_final=True)
def woodbury_with_zeros(A: Any, method: Any) -> LinearOperator:
    """D + U C V^H = D' + U C V^H - E S E^H, where D' is D with larger numbers for those near
    zero: two low-rank terms, which merge"""
    return _corrected_diagonal(A, method)


LOW_RANK: Any = LowRank | Projection | Product | Scaled[Projection | Product]


def is_corrected_diagonal(A: LinearOperator) -> bool:
    """Whether the terms that are not of low rank are one diagonal."""
    _, rest = _narrow_and_others(A)
    return len(rest) == 1 and isinstance(rest[0], DIAGONAL)


@rule(inv, Sum[LOW_RANK, ...], when=correction_pays)
@judged(unless=is_corrected_diagonal)
def kailath(A: Any, method: Any) -> LinearOperator:
    """(A + U C V^H)^-1 = (I - A^-1 U (I + C V^H A^-1 U)^-1 C V^H) A^-1"""
    low_rank, rest = low_rank_and_rest(A)
    if isinstance(rest, DIAGONAL):
        exchanged = rank_of(low_rank) + len(weak_entries(low_rank, rest))
        if shift_is_zero(rest) or 2 * exchanged > A.shape[-1]:
            told = [Info(Status.SINGULAR, message=NO_CORRECTION)]
            return dense_fallback(A, method, told, NO_CORRECTION)
        # half of the work for U U^H
        return woodbury(Sum(low_rank, rest)._claim(A.properties), method)
    rest_inverse, info = inv(rest, method, info=True)
    if failed(info.status) is True:
        # then the whole is inverted, if it can be
        return no_inverse(A, info.replace(message=NO_CORRECTION))
    report(info)
    return _corrected_inverse(A, low_rank, rest, rest_inverse, method)


def corrected_parts(X: Any) -> tuple[LinearOperator, LinearOperator] | None:
    """A^-1 and K^-1 of an inverse that `woodbury` or `kailath` has made of them, the determinant of
    which is det A^-1 det K^-1; None of any other."""
    if not isinstance(X, Product):
        return _corrected(X)
    first, *others = X.operands
    *before, last = X.operands  # where the correction stands in a transpose
    for correction, rest in ((first, others), (last, before)):
        found = _corrected(correction)
        if found is not None and isinstance(found[0], Identity):
            return Product(*rest), found[1]
    return None


def _corrected(X: Any) -> tuple[LinearOperator, LinearOperator] | None:
    """D and K^-1 of D - L K^-1 R, as `_corrected_diagonal` and `kailath` write it."""
    if not isinstance(X, Sum) or len(X.operands) != 2:
        return None
    D, term = sorted(X.operands, key=lambda term: not isinstance(term, DIAGONAL))
    product = term.A if isinstance(term, Scaled) else term
    if not isinstance(D, DIAGONAL) or not isinstance(product, Product):
        return None
    inverses = [factor for factor in product.operands if isinstance(factor, Inverse)]
    return (D, inverses[0]) if len(inverses) == 1 else None


def right_factors(low_rank: Any) -> list[LinearOperator]:
    """The factors of C V^H; V itself is kept, since XLA copies what is stored transposed."""
    core = [] if low_rank.core is None else [Dense._of(low_rank.core)]
    return [*core, Adjoint._of(Dense._of(low_rank._right))]


def right_products(low_rank: Any, X: Array, weights: Array | None = None) -> Array:
    """C V^H X, or C V^H diag(weights) X"""
    inner = low_rank.xp.inner_products(low_rank._right, X, weights)
    return inner if low_rank.core is None else low_rank.xp.matmul(low_rank.core, inner)


def is_gram(low_rank: Any) -> bool:
    """Whether the low-rank term is U U^H."""
    return low_rank.V is None and low_rank.core is None


def capacitance(low_rank: Any, rest: LinearOperator, U: Any) -> LinearOperator:
    """I + C V^H A^-1 U, from U = A^-1 U: of the size of the rank; positive definite for U U^H
    and positive A."""
    is_positive = is_gram(low_rank) and rest.properties & POSITIVE_SEMIDEFINITE
    return _plus_identity(right_products(low_rank, U), bool(is_positive))


def capacitance_of_diagonal(low_rank: Any, D: Any, reciprocals: Array) -> Dense:
    """I + C V^H D^-1 U, from the entries of D^-1: positive definite for U U^H and positive D."""
    if planning():  # of some rows, which show the same symmetry
        rows = np.arange(min(low_rank.shape[-2], 2 * rank_of(low_rank)))
        V = None if low_rank.V is None else low_rank.V[..., rows, :]
        low_rank = LowRank._of(low_rank.U[..., rows, :], V, low_rank.core)
        reciprocals = reciprocals[..., rows]
    positive = is_gram(low_rank) and (D.properties & POSITIVE_SEMIDEFINITE or is_positive(D))
    return _plus_identity(right_products(low_rank, low_rank.U, reciprocals), bool(positive))


def _plus_identity(inner: Array, is_positive: bool) -> Dense:
    xp = namespace_of(inner)
    K = Dense(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))
    return K._claim(POSITIVE_SEMIDEFINITE) if is_positive else K


def scaled_factor(U: Array, D_inverse: Any) -> tuple[Any, LinearOperator]:
    """S = D^-1/2 U and D^-1/2, for positive D: with S^H S, which BLAS knows to be symmetric,
    half of the work is saved."""
    root = D_inverse
    if isinstance(D_inverse, Diagonal):
        root = Diagonal._of(D_inverse.xp.sqrt(D_inverse.d))
    elif isinstance(D_inverse, ScaledIdentity):
        root = D_inverse._replace(
            c=math.sqrt(c) if namespace_of(c := D_inverse.c) is None else D_inverse.xp.sqrt(c)
        )
    return Dense._of(root @ U), root


# Inverses of other sums: shifts, and sums of Kronecker products.


# --------------------------------------------------------------------------------------------------


@rule(inv, Sum[Projection, SHIFT])
@rule(inv, Sum[Scaled[Projection], SHIFT])
def inv_shifted_projection(A: Any, method: Any) -> LinearOperator:
    """(a Q Q^H + c I)^-1 = c^-1 (I - a (a + c)^-1 Q Q^H)"""
    a, P, shift = multiple_and_shift(A)
    c = scalar_of(shift)
    if P.Q.shape[-1] == P.shape[-1]:  # nothing is off the range of Q: a + c alone is divided by
        return _inverse_of_shift(A, a + c, method)._claim(A.properties)
    inner = a * labelled("On the range of Q", reciprocal, a + c)
    return Sum(
        inv(shift, method), Scaled(-inner * labelled("Off the range of Q", reciprocal, c), P)
    )._claim(A.properties)


def multiple_and_shift(A: Any) -> tuple[Any, Any, Any]:
    """a, X and c I of a X + c I."""
    term, shift = arrange(A, LinearOperator, SHIFT)
    return (term.scalar, term.A, shift) if isinstance(term, Scaled) else (1.0, term, shift)


def _inverse_of_shift(A: Any, c: Any, method: Any) -> LinearOperator:
    """(c I)^-1 for an A that is c I."""
    return inv(broadcast_batch(ScaledIdentity(c, A.shape[-1], like=A), A.batch_shape), method)


def factor_divides_shift(multiple: Any, shift: Any) -> bool:
    """Whether 1 / a and c / a are finite for a A + c I (taken for granted where values cannot be
    seen)."""
    a, c = multiple.scalar, scalar_of(shift)
    if isinstance(a, float) and isinstance(c, float) and abs(a) > 1e-150 and abs(c) < 1e150:
        return True
    a, c = seen_numbers(a), seen_numbers(c)
    if a is None or c is None:
        return True
    with np.errstate(all="ignore"):
        return bool(np.all(np.isfinite(1 / a) & np.isfinite(c / a)))


def is_zero(multiple: Any) -> bool:
    """Whether the factor of a A is seen to be zero, in all matrices of a batch, and has no
    derivative."""
    a = multiple.scalar
    xp = namespace_of(a)
    if xp is not None and xp.is_differentiated(a):
        return False
    value = seen_numbers(a)
    return value is not None and bool(np.all(value == 0))


@rule(inv, Sum[Scaled, SHIFT])
@rule(inv, Sum[Scaled[Projection | Product], SHIFT])  # and then by `kailath`
def inv_shifted_multiple(A: Any, method: Any) -> Any:
    """(a A + c I)^-1 = a^-1 (A + c a^-1 I)^-1, and c^-1 I if a is zero"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    if is_zero(multiple):
        return _inverse_of_shift(A, scalar_of(shift), method)
    if not factor_divides_shift(multiple, shift):
        return inverse(A, method)
    a = labelled("In the factor of a term", reciprocal, multiple.scalar)
    # What was said of the whole holds for its multiple by a^-1, if a is known to be positive: by
    # its value, or (under tracing) by what is known of a A and of A.
    is_positive = multiple.properties & multiple.A.properties & POSITIVE_SEMIDEFINITE
    known = A.properties & (DEFINITE if is_positive else known_of_scalar(multiple.scalar))
    return Scaled(a, inv(Sum(multiple.A, Scaled(a, shift))._claim(known), method))._claim(
        A.properties
    )


SIMILAR = Product[LinearOperator, ..., LinearOperator]  # type: ignore[type-arg, misc]


def has_similarity(A: Any) -> bool:
    """Whether a term is V A V^-1, by how it was made."""
    return any(isinstance(term, Product) and is_similarity(term) for term in A.operands)


@rule(inv, Sum[SIMILAR, SHIFT], when=has_similarity)
def inv_shifted_similarity(A: Any, method: Any) -> LinearOperator:
    """(V A V^-1 + c I)^-1 = V (A + c I)^-1 V^-1: of a known eigendecomposition, A is diagonal"""
    product, shift = arrange(A, Product, SHIFT)
    V, *middle, W = product.operands
    inner = Sum(Product(*middle), shift)
    inner = inner._claim(A.properties) if V.properties & UNITARY else inner
    return Product(V, labelled("In the middle of the similarity", inv, inner, method), W)._claim(
        A.properties
    )


# --------------------------------------------------------------------------------------------------


def kronecker_of_self_adjoint(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are self-adjoint."""
    return has_common_factors(kronecker_and_shift(A)[0])


@rule(inv, Sum[Kronecker | KroneckerSum, SHIFT], when=kronecker_of_self_adjoint)
def inv_shifted_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + c I)^-1 = (Q ⊗ P) (Λ ⊗ M + c)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    known = differentiable_inverse(A)
    return inv_polynomial_of_factors(A, method) if known is None else known


@rule(inv, KroneckerSum, when=has_common_factors)
def inv_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """(A ⊕ B)^-1 = (Q ⊗ P) (Λ ⊕ M)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    return inv_shifted_kronecker(A, method)


@rule(inv, Sum, when=has_common_factors)
@by_equation
def inv_polynomial_of_factors(A: Any, method: Any) -> LinearOperator:
    """p(A ⊗ I, I ⊗ B)^-1 = (Q ⊗ P) p(Λ, M)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    if not has_common_factors(A):  # any longer, in a derivative that hides that arrays are the same
        return inv(A, method)
    values, vectors = spectrum_by_factors(A)
    known = has_positive_spectrum(A)  # none is zero to working accuracy, however small
    reciprocals = A.xp.reciprocal(values) if known else reciprocal_spectrum(A.xp, values)
    return from_eigenpairs(A, reciprocals, vectors)._claim(A.properties)


def kronecker_and_shift(A: LinearOperator) -> tuple[Any, Any]:
    """The Kronecker product or sum, and c of the c I that stands beside it, 0 if none does."""
    if not isinstance(A, Sum):
        return A, 0.0
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, SHIFT)
    return kronecker, scalar_of(shift)
