"""Determinants of sums and of block matrices: the lemma for low-rank corrections, shifts, Schur
complements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import add, mul
from typing import Any

import numpy as np

from ...autodiff import resolvents
from ...autodiff.kronecker import Grid
from ...backends import Array, adjoint
from ...dispatch import Choice, arrange, check_part, rule
from ...factors.inverse import Inverse
from ...info import report
from ...methods.structured import tridiagonal_eigenvalues
from ...operators import (
    Block,
    Dense,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sum,
    Triangular,
    Tridiagonal,
    Zero,
    hstack,
    vstack,
)
from ...operators.context import records_derivatives
from ...operators.diagonal import scalar_of
from ...operators.scaled import beside
from ...operators.shown import with_symmetry_of_entries
from ...operators.sparse_algebra import DIAGONAL, SHIFT
from ...properties import POSITIVE_DEFINITE, SELF_ADJOINT, UNITARY
from ...status import Status, failed
from ..common import (
    array_like,
    dense,
    in_context,
    is_square,
    once_each,
    operands_in_context,
    outer,
    passes,
    report_all,
    report_failure,
    report_leaves,
    values_are_seen,
)
from ..diagonal import diag
from ..solve.compositions import (
    cheapest_first,
    eliminate,
    has_a_cheap_pivot,
    pivot_costs,
    without,
)
from ..solve.elimination import (
    condition,
    fits_as_a_whole,
    growth,
    is_spoilt,
    report_fallback,
    settle_determinant,
    size_of,
)
from ..solve.inverse import inv
from ..solve.kronecker import (
    TERM,
    between_inverses,
    factors_are_square,
    factors_fit,
    invert_simpler_term,
)
from ..solve.sums import (
    LOW_RANK,
    SIMILAR,
    capacitance,
    correction_pays,
    factor_divides_shift,
    has_similarity,
    is_zero,
    kronecker_and_shift,
    low_rank_and_rest,
    multiple_and_shift,
)
from ..spectrum import eig, has_spectrum_of_factors, spectrum_by_factors
from ..spectrum.components import diagonals_are_constant
from . import (
    Determinant,
    multiplied,
    one,
    reciprocal_determinant,
    slogdet,
)
from .rules import (
    determinant_lemma,
    diagonal_can_be_divided_by,
    from_sign,
    from_values,
    rows_of,
    spread,
)

# Determinants of sums: the lemma for low-rank corrections, shifts, and sums of Kronecker products.
# More rules of `slogdet`.


def of_whole(A: Any, method: Any) -> Any:
    """The sign and logarithm from the matrix of A, where a rule's own way fails; a named method takes
    it only if A is known to have what it needs."""
    check_part(A, method)
    return slogdet.base(A, method)


@rule(slogdet, Sum[LOW_RANK, ...], when=correction_pays)
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
        report_fallback("the sum without its low-rank terms is singular")
        return of_whole(A, method)
    report(info)
    W = inverse @ low_rank.U  # A^-1 U
    K = capacitance(low_rank, rest, W)
    found = spread(A, multiplied([slogdet(K, method), slogdet(in_context(rest, A), method)]))
    whole = partial(of_whole, A, method)
    return Choice(
        lambda: settle_determinant(A, found, growth(rest, W, low_rank.U), whole), like=lambda: found
    )


@rule(slogdet, Sum[Scaled, SHIFT])
@rule(slogdet, Sum[Scaled[Projection | Product], SHIFT])
def slogdet_shifted_multiple(A: Any, method: Any) -> Determinant:
    """det(a A + c I) = a^n det(A + c a^-1 I), and c^n if a is zero"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    a = multiple.scalar
    if is_zero(multiple):
        return spread(A, slogdet(ScaledIdentity(scalar_of(shift), A.shape[-1], like=A), method))
    if not factor_divides_shift(multiple, shift):
        return slogdet.base(A, method)
    return spread(A, slogdet(Scaled(a, Sum(multiple.A, Scaled(1 / a, shift))), method))


@rule(slogdet, Sum[Projection, SHIFT])
@rule(slogdet, Sum[Scaled[Projection], SHIFT])
def slogdet_shifted_projection(A: Any, method: Any) -> Determinant:
    """det(a Q Q^H + c I) = (a + c)^r c^(n - r) for r columns of Q"""
    a, P, shift = multiple_and_shift(A)
    (n, r), c = P.Q.shape[-2:], scalar_of(shift)
    on, off = (ScaledIdentity(*each, like=A) for each in ((a + c, r), (c, n - r)))
    return spread(A, multiplied([slogdet(on, method), slogdet(off, method)]))


@rule(slogdet, Sum[SIMILAR, SHIFT], when=has_similarity)
def slogdet_shifted_similarity(A: Any, method: Any) -> Determinant:
    """det(V A V^-1 + c I) = det(A + c I): of a known eigendecomposition, A is diagonal"""
    product, shift = arrange(A, Product, SHIFT)
    return spread(A, slogdet(in_context(Sum(Product(*product.operands[1:-1]), shift), A), method))


# --------------------------------------------------------------------------------------------------


# of a factor that is made a matrix for its eigenvalues, though more is known of it
DENSE_ROWS = 256
EXACT = DIAGONAL | Triangular  # whose eigenvalues can be read off, derivatives too


def eigenvalues(A: LinearOperator) -> tuple[Array, tuple[Array, Array] | None]:
    """The eigenvalues, in any order, and where these have no derivative of their own, which a
    defective A's have not, its matrix and eigenvectors.

    They are found from the matrix of an A that is not known to be self-adjoint: structure would give
    eigenvectors too, and judge them. They are not needed, and may not be there.
    """
    xp, hermitian = A.xp, A.properties & SELF_ADJOINT
    if isinstance(A, EXACT):
        return diag(A), None
    is_base = eig.find(A).is_base
    is_matrix = not A.properties & (SELF_ADJOINT | UNITARY) and (
        is_base or A.shape[-1] <= DENSE_ROWS
    )
    if is_matrix and 0 not in A.shape and not xp.is_compiling():
        M = dense(A)
        if xp.is_differentiated(M):
            values, V = xp.eig(xp.stop_gradient(M))
            return values, (M, V)
    if isinstance(A, Tridiagonal):
        if diagonals_are_constant(A):
            return eig(A)[0], None  # in closed form
        if hermitian and not (A.batch_shape or A.is_complex) and values_are_seen(A):
            values = tridiagonal_eigenvalues(*rows_of(A, A.diag, A.lower)[0])
            return array_like(A, values), None
    if not is_matrix and not is_base:
        (values, _), info = eig(A, info=True)
        # else its eigenvectors were found to be dependent, which do not matter
        if hermitian or failed(info._status) is not True:
            report(info)
            return values, None
    M = dense(A)
    if not hermitian or 0 in M.shape:
        return xp.eigvals(M), None
    gap = xp.max(xp.abs(M - adjoint(xp, M)))
    fine = gap <= math.sqrt(xp.eps(M.dtype)) * xp.max(xp.abs(M))
    why = "A is not self-adjoint, as was claimed"
    if not passes(xp, np.all, fine):
        report_failure(xp, (fine, Status.INACCURATE), message=why)
    return xp.eigvalsh(M), None


def by_factors(
    A: LinearOperator, factors: Sequence[LinearOperator], is_sum: bool, a: Any, b: Any
) -> Determinant:
    """det(a C + b I) for C = A_1 ⊗ A_2 ⊗ ..., or ⊕, from the eigenvalues of the factors; one
    that occurs twice is looked at once."""
    xp = A.xp
    values, pairs = map(list, zip(*once_each(eigenvalues, factors), strict=True))
    if pairs.count(None) == len(pairs):
        a, b = beside(a), beside(b)
        return from_values(A, a * reduce(partial(outer, add if is_sum else mul), values) + b)
    dtype = xp.result_type(*(v.dtype for v in values))
    a, b = (xp.astype(xp.asarray(c, device=A._context.device), dtype) for c in (a, b))
    values = [xp.astype(v, dtype) for v in values]
    pairs = [pair and tuple(xp.astype(x, dtype) for x in pair) for pair in pairs]
    return from_sign(A, *resolvents.slogdet(xp, Grid(lambda x: x, is_sum), values, pairs, a, b))


def may_show_symmetry(factor: LinearOperator) -> bool:
    """Whether entries of a factor are looked at to see that it is self-adjoint: three diagonals, which
    a device is asked for in any case; unless derivatives of complex ones are recorded, which need
    not stay self-adjoint."""
    is_tridiagonal = isinstance(factor, Tridiagonal)
    return is_tridiagonal and not (factor.is_complex and records_derivatives(factor))


@rule(slogdet, Sum[Kronecker | KroneckerSum, SHIFT], when=factors_are_square, like=one)
def slogdet_shifted_kronecker(A: Any, method: Any) -> Determinant:
    """det(A ⊗ B + c I) = product of λ μ + c over the eigenvalues λ of A and μ of B,
    diagonalisable or not"""
    kronecker, c = kronecker_and_shift(A)
    is_sum = isinstance(kronecker, KroneckerSum)
    factors = [
        with_symmetry_of_entries(factor) if may_show_symmetry(factor) else factor
        for factor in operands_in_context(kronecker)
    ]
    return by_factors(A, factors, is_sum, 1.0, c)


@rule(slogdet, KroneckerSum, like=one)
def slogdet_kronecker_sum(A: Any, method: Any) -> Determinant:
    """det(A ⊕ B) = product of λ + μ over the eigenvalues λ of A and μ of B, diagonalisable or
    not"""
    return slogdet_shifted_kronecker(A, method)


@rule(slogdet, Sum, when=has_spectrum_of_factors, like=one)
def slogdet_polynomial_of_factors(A: Any, method: Any) -> Determinant:
    """det p(A ⊗ I, I ⊗ B) = product of p(λ, μ) over the eigenvalues λ of A and μ of B"""
    return from_values(A, spectrum_by_factors(A)[0])


@rule(slogdet, Sum[TERM, TERM], when=factors_fit)
def slogdet_two_kroneckers(A: Any, method: Any) -> Any:
    """det(a A ⊗ B + c C ⊗ D) = det(C ⊗ D) ∏ (a λ μ + c) over the eigenvalues λ of C^-1 A and μ
    of D^-1 B"""
    (c, simple), (a, other), found = invert_simpler_term(A, method)
    if any(failed(info._status) is True for _, info in found):
        report_fallback("a factor is singular, so it cannot be divided by")
        return of_whole(A, method)
    report_all([info for _, info in found])
    divisor = partial(slogdet, Kronecker(*simple), method)

    def divide() -> Any:
        quotients = [quotient(B, C, inverse) for B, C, (inverse, _) in zip(other, simple, found)]
        parts = [by_factors(A, quotients, False, a, c), divisor()]
        spoilt = math.prod([condition(C, inverse) for C, (inverse, _) in zip(simple, found)])
        whole = partial(of_whole, A, method)
        return settle_determinant(A, spread(A, multiplied(parts)), spoilt, whole)

    return Choice(divide, like=lambda: spread(A, divisor()))


def quotient(B: LinearOperator, C: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """C^-1 B, or what is similar to it and self-adjoint, where B is self-adjoint and C positive
    definite."""
    if not (B.properties & SELF_ADJOINT and C.properties & POSITIVE_DEFINITE):
        return Dense(inverse @ dense(B))
    xp = C.xp
    L, _ = xp.cholesky(dense(C))
    return Dense(between_inverses(xp, L, dense(B)))._claim(SELF_ADJOINT)


# Determinants of block matrices, by Schur complements. More rules of `slogdet`.


MOST_GROWTH = 1e3  # times |A|, up to which |C A^-1 B| does no harm


def diagonal_blocks_are_square(A: Any) -> bool:
    """Whether there are as many rows as columns of blocks, and those on the diagonal are square."""
    size = len(A.blocks)
    return all(len(row) == size and is_square(row[i]) for i, row in enumerate(A.blocks))


def is_block_triangular(A: Any) -> bool:
    """Whether the blocks on the diagonal are square, and those above it or those below it zero."""
    sides = [
        {isinstance(B, Zero) for i, row in enumerate(grid) for B in row[:i]}
        for grid in (A.blocks, list(zip(*A.blocks)))
    ]
    return diagonal_blocks_are_square(A) and any(False not in zeros for zeros in sides)


@rule(slogdet, Block, when=is_block_triangular)
def slogdet_block_triangular(A: Any, method: Any) -> Determinant:
    """det [A B; 0 D] = det A det D"""
    report_leaves(A)  # also of the blocks beside the diagonal
    blocks = [in_context(row[i], A) for i, row in enumerate(A.blocks)]
    return spread(A, multiplied([slogdet(block, method) for block in blocks]))


def elimination_pays(A: Any) -> bool:
    """Whether the blocks on the diagonal are square, and some block is zero or cheap to invert; of
    nothing but matrices, one matrix is factored, unless it were too large."""
    return diagonal_blocks_are_square(A) and (has_a_cheap_pivot(A) or not fits_as_a_whole(A))


@rule(slogdet, Block, when=elimination_pays)
def slogdet_block(A: Any, method: Any) -> Any:
    """det [A B; C D] = det A det(D - C A^-1 B), the block A being the one that is cheapest to
    eliminate"""
    return Choice(
        partial(_by_complement, A, method, True), like=partial(_by_complement, A, method, False)
    )


def _by_complement(A: Any, method: Any, is_judged: bool) -> Any:
    """Eliminate the cheapest block, if `is_judged` the cheapest of those whose elimination keeps
    the accuracy."""
    whole = partial(of_whole, A, method)
    best: Any = None
    is_good = False
    for k in [i for i, j in cheapest_first(pivot_costs(A.blocks)) if i == j]:
        corner = in_context(A.blocks[k][k], A)
        inverse, info = inv(corner, method, info=True)
        if failed(info._status) is True:
            continue  # a singular block does not make the whole singular
        # of several blocks as matrices, if nothing else is known: the next complement is of these
        S = in_context(eliminate(A, (k, k), inverse, len(A.blocks) > 2)[0], A)
        spoilt = _spoilt(A, k, inverse, S) if is_judged else None
        is_good = spoilt is None or not is_spoilt(A, spoilt)
        if is_good or best is None:
            best = corner, inverse, info, S, spoilt
        if is_good:
            break
    if best is None:
        return whole()
    if not is_good and fits_as_a_whole(A):
        report_fallback("no block on the diagonal is well-conditioned")
        return whole()
    corner, inverse, info, S, spoilt = best
    report(info)
    # A dense block has been factored already.
    first = (
        reciprocal_determinant(A.xp, *slogdet(inverse))
        if isinstance(inverse, Inverse)
        else slogdet(corner, method)
    )
    found = spread(A, multiplied([first, slogdet(S, method)]))
    return found if spoilt is None else settle_determinant(A, found, spoilt, whole)


def _spoilt(A: Any, k: int, inverse: LinearOperator, S: LinearOperator) -> Array:
    """By how much rounding grows where the block k is eliminated.

    Two things spoil S = D - C A^-1 B: the condition of the block A, unless it is diagonal and
    divided by without an error, and cancellation, |C A^-1 B| |S^-1|. The latter is no more than the
    condition of the whole unless
    |C A^-1 B| is far larger than the whole, as it is for a small block A, however well-conditioned.
    """
    xp, corner = A.xp, in_context(A.blocks[k][k], A)
    is_exact, spoilt = isinstance(corner, DIAGONAL), condition(corner, inverse)
    C = in_context(vstack([row[k] for row in without(k, A.blocks)]), A)
    B = in_context(hstack(without(k, A.blocks[k])), A)
    T = Product(C, inverse, B)
    if is_spoilt(A, spoilt):
        if not is_exact:
            return spoilt
    elif not _is_far_larger(T, A):
        return spoilt
    S_inverse, info = inv(S, info=True)
    cancelled = xp.asarray(math.inf) if failed(info._status) is True else condition(T, S_inverse)
    return cancelled if is_exact else xp.maximum(spoilt, cancelled)


def _is_far_larger(T: LinearOperator, A: LinearOperator) -> bool:
    """Whether |T| is seen to be far larger than |A|."""
    if 0 in T.shape:
        return False
    is_small = lambda sizes: sizes[0] <= MOST_GROWTH * sizes[1]
    return passes(A.xp, is_small, A.xp.stack([size_of(T), size_of(A)])) is False
