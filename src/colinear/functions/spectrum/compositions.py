"""The rules of `eig` for what is composed: products, sums, blocks, multiples, shifts, powers,
inverses and transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...backends import Array
from ...dispatch import arrange
from ...factors.inverse import Inverse
from ...factors.iterated import Attempts, Iterated
from ...factors.structured import as_blocks
from ...methods import LOBPCG, Arnoldi, Lanczos, PowerIteration
from ...operators import (
    Adjoint,
    BlockDiag,
    Conjugate,
    Dense,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Product,
    Scaled,
    Sum,
    Transpose,
    opaque,
)
from ...operators.context import records_derivatives
from ...operators.diagonal import scalar_of
from ...operators.scaled import beside, peek_scalar
from ...operators.sparse_algebra import SHIFT
from ...operators.transposed import are_adjoint
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY, Stiefel
from ...status import Status
from ..common import (
    dense,
    filled,
    identity_like,
    ignore_float_errors,
    in_context,
    is_square,
    once_each,
    operands_in_context,
    reciprocal_spectrum,
    report_failure,
    report_leaves,
    reports_nonfinite,
    to_computing_dtype,
    to_result_dtype,
)
from ..solve.auto import is_automatic
from ..solve.inverse import all_square, inv
from . import (
    PARALLEL,
    POSITIVE,
    Pairs,
    eig,
    eig_rule,
    factors_self_adjoint,
    has_spectrum_of_factors,
    is_real,
    sensitivity_of,
    spectrum_by_factors,
)
from .order import Asked, by_key, combinations, end_to_end, is_affordable, kronecker, reordered
from .rules import pairs_of_similar


def factors_fit(A: LinearOperator) -> bool:
    """Whether every factor is square, and self-adjoint if A is."""
    return all_square(A) and (not A.properties & SELF_ADJOINT or factors_self_adjoint(A))


@eig_rule(Kronecker | KroneckerSum, when=factors_fit)
def eig_kronecker(A: Any, asked: Asked) -> Pairs:
    """(A ⊗ B) (V ⊗ W) = (V ⊗ W) (Λ ⊗ M) for A V = V Λ, B W = W M; Λ ⊕ M for A ⊕ B

    The largest products are products of the largest: of each factor k pairs are enough where
    `which` is monotone in every one.
    """
    xp, is_sum, which, k = A.xp, isinstance(A, KroneckerSum), asked.which, asked.k
    is_hermitian = asked.is_hermitian
    few = 0 < k < asked.n and not A.batch_shape
    monotone = few and which[1] != "I" and is_sum != (which[1] == "M")

    def pairs_of(factor: LinearOperator) -> Pairs:
        m = factor.shape[-1]
        # all of a small one: they are judged together
        count = min(k, m) if monotone and (is_hermitian or m > ALL_PAIRS) else None
        return eig(factor, count, which if monotone else "LM", asked.method)

    def keep(values: Array) -> Array | None:
        m = values.shape[-1]
        if monotone:
            return by_key(xp, values, which)[:k]
        # then both ends are enough
        if few and is_hermitian and which != "SM" and 2 * k < m:
            order = xp.argsort(values, axis=-1, stable=True)
            return xp.concat([order[:k], order[m - k :]], axis=-1)
        return None

    spectra, bases = zip(*once_each(pairs_of, operands_in_context(A)))
    values, places = combinations(xp, [asked.typed(w) for w in spectra], is_sum, keep)
    vectors = kronecker(bases)
    if not is_hermitian and k:
        _judge_together(A, bases, places, by_key(xp, values, which)[:k] if few else None)
    if values.shape[-1] == vectors.shape[-1]:
        return asked.finish(values, vectors)
    order = asked.order(values)[:k]
    return xp.take(values, order, axis=-1), reordered(vectors, xp.take(places, order, axis=-1), k)


ALL_PAIRS = 256  # rows of a factor of which all pairs cost as much as a few


def _judge_together(
    A: LinearOperator, bases: Sequence[LinearOperator], places: Array, order: Array | None
) -> None:
    """Report if eigenvectors V ⊗ W are almost parallel, which those of V and of W alone need not
    be: how sensitive they are multiplies.

    `places` are those of the pairs in V ⊗ W, of which `order` picks those that are returned.
    """
    xp, skew = A.xp, [V for V in bases if is_square(V) and not V.properties & UNITARY]
    if len(skew) < 2:
        return  # each factor has been judged

    def sensitivity(V: LinearOperator) -> Array:
        if not any(V is other for other in skew):
            return filled(A, 1.0, V.shape[-1])
        return sensitivity_of(xp, xp.stop_gradient(dense(V)))

    with ignore_float_errors(xp):
        found, _ = combinations(xp, once_each(sensitivity, bases), False)
        found = found if order is None else xp.take(found, xp.take(places, order, axis=-1), axis=-1)
        fine = xp.all(found * math.sqrt(xp.eps(A.dtype)) < 1)
    report_failure(xp, (fine, Status.INACCURATE), message=PARALLEL)


@eig_rule(BlockDiag, when=all_square, hereditary=True)
def eig_block_diagonal(A: Any, asked: Asked) -> Pairs:
    """diag(A, B) has the eigenvalues of A and those of B, and eigenvectors diag(V, W)"""
    kept, some = A.properties & (SELF_ADJOINT | POSITIVE), asked.some

    def pairs_of(block: LinearOperator) -> Pairs:
        count = None if some is None else min(some, block.shape[-1])
        return eig(block._claim(kept), count, asked.which, asked.method)

    if (blocks := A.stack()) is not None:
        values, vectors = pairs_of(blocks)
        values = A.xp.reshape(values, (*A.batch_shape, -1))
        return asked.finish(values, as_blocks(vectors, len(A.operands)))
    spectra, bases = zip(*map(pairs_of, operands_in_context(A)))
    return asked.finish(end_to_end(A, spectra), BlockDiag(*bases))


def scalar_keeps_adjoint(A: Any) -> bool:
    """Whether A is square and the operator that is scaled is self-adjoint if A is."""
    return is_square(A) and bool(A.A.properties & SELF_ADJOINT or not A.properties & SELF_ADJOINT)


@eig_rule(Scaled, when=scalar_keeps_adjoint)
@reports_nonfinite
def eig_scaled(A: Any, asked: Asked) -> Pairs:
    """c A has the eigenvalues c λ and the eigenvectors of A"""
    if peek_scalar(A.scalar) == 0 and not records_derivatives(A):
        report_leaves(A)  # A may lack eigenvectors, and 0 does not
        return asked.finish(filled(A, 0.0, *A.shape[:-1]), identity_like(A))
    inner = _scaled_order(A.scalar, asked.which)
    some = None if inner is None else asked.some
    values, vectors = eig(in_context(A.A, A), some, inner or "LM", asked.method)
    return asked.finish(beside(A.scalar) * values, vectors)


OPPOSITE = {"L": "S", "S": "L"}


def _scaled_order(c: Any, which: str) -> str | None:
    """Which eigenvalues of A are those that `which` names of c A; None if that is not to be
    told."""
    value = peek_scalar(c)
    if which[1] == "M":
        return which
    if value is None or not is_real(c):
        return None
    return which if value.real >= 0 or which[1] == "I" else OPPOSITE[which[0]] + which[1]


def shift_keeps_adjoint(A: Any, method: Any = None) -> bool:
    """Whether A is square and the shift real if A is self-adjoint, and no preconditioner is given:
    one for A is none for A - c I, which may have no inverse."""
    if getattr(method, "preconditioner", None) is not None:
        return False
    shift, _ = arrange(A, SHIFT, ...)
    return not A.properties & SELF_ADJOINT or isinstance(shift, Identity) or is_real(shift.c)


@eig_rule(Sum[SHIFT, ...], when=shift_keeps_adjoint)
def eig_shifted(A: Any, asked: Asked) -> Pairs:
    """A + c I has the eigenvalues λ + c and the eigenvectors of A"""
    which, is_hermitian = asked.which, asked.is_hermitian
    c, rest = split_shift(A)
    inner: str | None = which
    if which[1] == "M":
        inner = which[0] + "A" if is_hermitian and A.properties & POSITIVE_SEMIDEFINITE else None
    elif which[1] == "I" and not is_real(c):
        inner = None
    if inner is None and asked.k < asked.n and not is_affordable(A):
        return eig.base(A, asked.k, which, asked.method)  # not all of them, only to pick a few
    values, vectors = eig(rest, None if inner is None else asked.some, inner or "LM", asked.method)
    return asked.finish(values + beside(c), vectors)


def split_shift(A: Any) -> tuple[Any, LinearOperator]:
    """c and A - c I."""
    shift, rest = arrange(A, SHIFT, ...)
    claims = A.properties & SELF_ADJOINT
    return scalar_of(shift), in_context(Sum(*rest), A)._claim(claims)


@eig_rule(Sum, when=has_spectrum_of_factors)
def eig_polynomial_of_factors(A: Any, asked: Asked) -> Pairs:
    """p(A ⊗ I, I ⊗ B) has the eigenvalues p(λ, μ) and the eigenvectors Q ⊗ P of A and B"""
    values, vectors = spectrum_by_factors(A)
    return asked.finish(asked.typed(values), vectors)


def is_a_power(A: Any) -> bool:
    """Whether all factors are one and the same operator, self-adjoint if A is."""
    first = A.operands[0]
    return all(factor is first for factor in A.operands) and (
        not A.properties & SELF_ADJOINT or bool(first.properties & SELF_ADJOINT)
    )


@eig_rule(Product, when=is_a_power)
def eig_power(A: Any, asked: Asked) -> Pairs:
    """A^p has the eigenvalues λ^p and the eigenvectors of A"""
    p, which = len(A.operands), asked.which
    by_size = which[1] == "M" or (asked.is_hermitian and p % 2 == 0)
    some = asked.some if by_size else None
    values, vectors = eig(in_context(A.operands[0], A), some, which[0] + "M", asked.method)
    return asked.finish(values**p, vectors)


def is_a_similarity(A: Any) -> bool:
    """Whether the outer factors are known to be Q and Q^H."""
    return len(A.operands) >= 3 and is_square(A) and are_adjoint(A.operands[0], A.operands[-1])


@eig_rule(Product[Stiefel, ..., LinearOperator], when=is_a_similarity, hereditary=True)
def eig_similarity(A: Any, asked: Asked) -> Pairs:
    """Q A Q^H has the eigenvalues of A and eigenvectors Q V; 0 for the orthogonal complement of
    Q"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    inner = in_context(Product(*A.operands[1:-1]), A)._claim(kept)
    return pairs_of_similar(asked, in_context(A.operands[0], A), inner)


ITERATIVE = (Lanczos, Arnoldi, LOBPCG, PowerIteration)


@eig_rule(Inverse, hereditary=True)
def eig_inverse(A: Any, asked: Asked) -> Pairs:
    """A^-1 has the eigenvalues 1 / λ and the eigenvectors of A"""
    which, k = asked.which, asked.k
    by_size = which[1] == "M" or A.properties & POSITIVE_SEMIDEFINITE
    iterates = isinstance(asked.method, ITERATIVE) or (
        is_automatic(asked.method) and not is_affordable(A.A)
    )
    is_run = isinstance(A.factor, Iterated | Attempts)
    if iterates and by_size and k < asked.n and which[0] == "L" and is_run:
        # inside the spectrum of A, at the end of that of A^-1, which is at hand
        return eig(opaque(A), k, which, asked.method)
    some = asked.some if by_size else None
    values, vectors = eig(known_of(A), some, OPPOSITE[which[0]] + "M", asked.method)
    return asked.finish(reciprocal_spectrum(A.xp, values), vectors)


def known_of(A: Any) -> LinearOperator:
    """The operator that A is the inverse, conjugate or transpose of, self-adjoint if A is."""
    return A.A._claim(A.properties & SELF_ADJOINT)


@eig_rule(Conjugate, hereditary=True)
def eig_conjugate(A: Any, asked: Asked) -> Pairs:
    """conj(A) has the eigenvalues conj(λ) and eigenvectors conj(V)"""
    values, vectors = eig(known_of(A), asked.k, asked.which, asked.method)
    return asked.finish(A.xp.conj(values), vectors.conj())


def all_pairs_are_affordable(A: Any) -> bool:
    """Whether all eigenpairs of the operand of A may be found, which left eigenvectors need."""
    return is_affordable(A.A)


@eig_rule(Adjoint | Transpose, when=all_pairs_are_affordable, hereditary=True)
def eig_adjoint(A: Any, asked: Asked) -> Pairs:
    """A^H has the eigenvalues conj(λ) and eigenvectors V^-H, A^T has λ and V^-T; for unitary V
    these are V and conj(V)"""
    xp = A.xp
    values, vectors = eig(known_of(A), None, "LM", asked.method)
    if not vectors.properties & UNITARY:
        V = to_computing_dtype(xp, inv(vectors).H.to_dense())
        V = V / xp.vector_norm(V, axis=-2)[..., None, :]
        vectors = Dense(to_result_dtype(xp, V, A.dtype))
    pairs = (xp.conj(values), vectors) if isinstance(A, Adjoint) else (values, vectors.conj())
    return asked.finish(*pairs)
