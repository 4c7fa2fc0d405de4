"""The rules of `eig` for what is composed: products, sums, blocks, multiples, shifts, powers,
inverses and transposes."""

from __future__ import annotations

import math
from typing import Any

from ...backends import Array
from ...dispatch import arrange, rule
from ...factors.inverse import Inverse
from ...factors.iterated import Attempts, Iterated
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
from ...operators.diagonal import scalar_of
from ...operators.scaled import beside, peek_scalar
from ...operators.sparse_algebra import SHIFT
from ...operators.transposed import are_adjoint
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY, Stiefel
from ...status import Status
from ..common import (
    dense,
    identity_like,
    ignore_float_errors,
    in_context,
    once_each,
    operands_in_context,
    reciprocal_spectrum,
    report_leaves,
    report_status,
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
    asked,
    eig,
    factors_self_adjoint,
    filled,
    finish,
    is_real,
    sensitivity_of,
    typed,
    with_zeros,
)
from .order import by_key, columns, combinations, completed, is_affordable, kronecker, selection


def factors_fit(A: LinearOperator) -> bool:
    """Whether every factor is square, and self-adjoint if A is."""
    return all_square(A) and (not A.properties & SELF_ADJOINT or factors_self_adjoint(A))


@rule(eig, Kronecker | KroneckerSum, when=factors_fit)
def eig_kronecker(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """(A ⊗ B) (V ⊗ W) = (V ⊗ W) (Λ ⊗ M) for A V = V Λ, B W = W M; Λ ⊕ M for A ⊕ B

    The largest products are products of the largest: of each factor k pairs are enough where
    `which` is monotone in every one.
    """
    n, k, is_hermitian = asked(A, k, which, method)
    xp, is_sum = A.xp, isinstance(A, KroneckerSum)
    monotone = which[1] != "I" and is_sum != (which[1] == "M")
    few = 0 < k < n and not A.batch_shape
    factors = operands_in_context(A)
    if few and monotone:

        def count(m: int) -> int | None:
            return min(k, m) if is_hermitian or m > ALL_PAIRS else None  # all are judged together

        pairs = once_each(
            lambda factor: eig(factor, count(factor.shape[-1]), which, method), factors
        )
    else:
        pairs = once_each(lambda factor: eig(factor, None, "LM", method), factors)

    def keep(values: Array) -> Array | None:
        m = values.shape[-1]
        if not few:
            return None
        if monotone:
            return selection(xp, values, min(k, m), which, False)
        # then both ends are enough
        if is_hermitian and (which[1] != "M" or which[0] == "L") and 2 * k < m:
            order = xp.argsort(values, axis=-1, stable=True)
            return xp.concat([order[:k], order[m - k :]], axis=-1)
        return None

    spectra = [typed(xp, values, is_hermitian) for values, _ in pairs]
    values, places = combinations(xp, spectra, is_sum, keep)
    bases = [vectors for _, vectors in pairs]
    vectors = kronecker(bases)
    if not is_hermitian and k:
        _judge_together(A, bases, places, by_key(xp, values, which)[:k] if few else None)
    if values.shape[-1] == vectors.shape[-1]:
        return finish(A, values, vectors, k, which, is_hermitian)
    order = by_key(xp, values, which)[:k]
    order = (
        xp.take(order, xp.argsort(xp.take(values, order, axis=-1), stable=True), axis=-1)
        if is_hermitian
        else order
    )
    return xp.take(values, order, axis=-1), columns(vectors, xp.take(places, order, axis=-1), k)


ALL_PAIRS = 256  # rows of a factor of which all pairs cost as much as a few


def _judge_together(
    A: LinearOperator, bases: list[LinearOperator], places: Array, order: Array | None
) -> None:
    """Report if eigenvectors V ⊗ W are almost parallel, which those of V and of W alone need not
    be: how sensitive they are multiplies.

    `places` are those of the pairs in V ⊗ W, of which `order` picks those that are returned.
    """
    xp, skew = A.xp, [V for V in bases if V.shape[-1] == V.shape[-2] and not V.properties & UNITARY]
    if len(skew) < 2:
        return  # each factor has been judged

    def sensitivity(V: LinearOperator) -> Array:
        if not any(V is other for other in skew):
            return xp.ones((V.shape[-1],), dtype=xp.real_dtype(A.dtype), device=A._context.device)
        return sensitivity_of(xp, xp.stop_gradient(dense(V)))

    with ignore_float_errors(xp):
        found, _ = combinations(xp, once_each(sensitivity, bases), False, lambda values: None)
        found = found if order is None else xp.take(found, xp.take(places, order, axis=-1), axis=-1)
        fine = xp.all(found * math.sqrt(xp.eps(A.dtype)) < 1)
    report_status(xp, xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)), message=PARALLEL)


@rule(eig, BlockDiag, when=all_square, hereditary=True)
def eig_block_diagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """diag(A, B) has the eigenvalues of A and those of B, and eigenvectors diag(V, W)"""
    n, k, is_hermitian = asked(A, k, which, method)
    xp, kept = A.xp, A.properties & (SELF_ADJOINT | POSITIVE)
    blocks = [block._claim(kept) for block in operands_in_context(A)]
    pairs = [
        eig(block, None if k == n else min(k, block.shape[-1]), which, method) for block in blocks
    ]
    parts = [typed(xp, values, is_hermitian) for values, _ in pairs]
    values = xp.concat(
        [xp.broadcast_to(part, (*A.batch_shape, part.shape[-1])) for part in parts], axis=-1
    )
    return finish(A, values, BlockDiag(*(vectors for _, vectors in pairs)), k, which, is_hermitian)


def scalar_keeps_adjoint(A: Any) -> bool:
    """Whether A is square and the operator that is scaled is self-adjoint if A is."""
    return A.shape[-1] == A.shape[-2] and bool(
        A.A.properties & SELF_ADJOINT or not A.properties & SELF_ADJOINT
    )


@rule(eig, Scaled, when=scalar_keeps_adjoint)
@reports_nonfinite
def eig_scaled(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """c A has the eigenvalues c λ and the eigenvectors of A"""
    n, k, is_hermitian = asked(A, k, which, method)
    if peek_scalar(A.scalar) == 0 and not A.xp.is_differentiated(*A.arrays()):
        report_leaves(A)  # A may lack eigenvectors, and 0 does not
        return finish(
            A, filled(A, 0.0, n, A.batch_shape), identity_like(A, n), k, which, is_hermitian
        )
    inner = which if which[1] == "M" else _scaled_order(A.scalar, which)
    values, vectors = eig(
        in_context(A.A, A), None if inner is None or k == n else k, inner or "LM", method
    )
    return finish(A, beside(A.scalar) * values, vectors, k, which, is_hermitian)


def _scaled_order(c: Any, which: str) -> str | None:
    """Which eigenvalues of A are those that `which` names of c A; None if that is not to be
    told."""
    value = peek_scalar(c)
    if value is None or not is_real(c):
        return None
    return (
        which if value.real >= 0 or which[1] == "I" else {"L": "S", "S": "L"}[which[0]] + which[1]
    )


def shift_keeps_adjoint(A: Any) -> bool:
    """Whether A is square and the shift real if A is self-adjoint."""
    shift, _ = arrange(A, SHIFT, ...)
    return not A.properties & SELF_ADJOINT or isinstance(shift, Identity) or is_real(shift.c)


@rule(eig, Sum[SHIFT, ...], when=shift_keeps_adjoint)  # type: ignore[misc]
def eig_shifted(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A + c I has the eigenvalues λ + c and the eigenvectors of A"""
    n, k, is_hermitian = asked(A, k, which, method)
    c, rest = split_shift(A)
    inner: str | None = which
    if which[1] == "M":
        inner = which[0] + "A" if is_hermitian and A.properties & POSITIVE_SEMIDEFINITE else None
    elif which[1] == "I" and not is_real(c):
        inner = None
    if inner is None and k < n and not is_affordable(A):  # not all of them, only to pick a few
        return eig.base(A, k, which, method)
    values, vectors = eig(rest, None if inner is None or k == n else k, inner or "LM", method)
    return finish(A, values + beside(c), vectors, k, which, is_hermitian)


def split_shift(A: Any) -> tuple[Any, LinearOperator]:
    """c and A - c I."""
    shift, rest = arrange(A, SHIFT, ...)
    claims = A.properties & SELF_ADJOINT
    return scalar_of(shift), in_context(Sum(*rest), A)._claim(claims)


def is_a_power(A: Any) -> bool:
    """Whether all factors are one and the same operator, self-adjoint if A is."""
    first = A.operands[0]
    return all(factor is first for factor in A.operands) and (
        not A.properties & SELF_ADJOINT or bool(first.properties & SELF_ADJOINT)
    )


@rule(eig, Product, when=is_a_power)
def eig_power(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^p has the eigenvalues λ^p and the eigenvectors of A"""
    n, k, is_hermitian = asked(A, k, which, method)
    p = len(A.operands)
    by_size = which[1] == "M" or (is_hermitian and p % 2 == 0)
    values, vectors = eig(
        in_context(A.operands[0], A), k if by_size and k < n else None, which[0] + "M", method
    )
    return finish(A, values**p, vectors, k, which, is_hermitian)


def is_a_similarity(A: Any) -> bool:
    """Whether the outer factors are known to be Q and Q^H."""
    return (
        len(A.operands) >= 3
        and A.shape[-1] == A.shape[-2]
        and are_adjoint(A.operands[0], A.operands[-1])
    )


@rule(eig, Product[Stiefel, ..., LinearOperator], when=is_a_similarity, hereditary=True)  # type: ignore[misc]
def eig_similarity(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Q A Q^H has the eigenvalues of A and eigenvectors Q V; 0 for the orthogonal complement of
    Q"""
    n, k, is_hermitian = asked(A, k, which, method)
    Q, inner = (
        in_context(A.operands[0], A),
        in_context(Product(*A.operands[1:-1]), A)._claim(A.properties & (SELF_ADJOINT | POSITIVE)),
    )
    r = Q.shape[-1]
    if r == n or (
        k <= r and which[0] == "L" and (which[1] == "M" or A.properties & POSITIVE_SEMIDEFINITE)
    ):
        values, V = eig(inner, k, which, method)
        return A.xp.broadcast_to(typed(A.xp, values, is_hermitian), (*A.batch_shape, k)), Product(
            Q, V
        )
    values, V = eig(inner, None, "LM", method)
    values = with_zeros(A.xp, values, n - r)
    return finish(
        A,
        values,
        Product(completed(Q.to_dense(), A.xp), BlockDiag(V, Identity(n - r))),
        k,
        which,
        is_hermitian,
    )


ITERATIVE = (Lanczos, Arnoldi, LOBPCG, PowerIteration)


@rule(eig, Inverse, hereditary=True)
def eig_inverse(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^-1 has the eigenvalues 1 / λ and the eigenvectors of A"""
    n, k, is_hermitian = asked(A, k, which, method)
    by_size = which[1] == "M" or A.properties & POSITIVE_SEMIDEFINITE
    iterates = isinstance(method, ITERATIVE) or (is_automatic(method) and not is_affordable(A.A))
    if (
        iterates
        and by_size
        and k < n
        and which[0] == "L"
        and isinstance(A.factor, Iterated | Attempts)
    ):
        # inside the spectrum of A, at the end of that of A^-1, which is at hand
        return eig(opaque(A), k, which, method)
    inner = {"L": "S", "S": "L"}[which[0]] + "M"
    values, vectors = eig(
        A.A._claim(A.properties & SELF_ADJOINT), k if by_size and k < n else None, inner, method
    )
    return finish(A, reciprocal_spectrum(A.xp, values), vectors, k, which, is_hermitian)


@rule(eig, Conjugate, hereditary=True)
def eig_conjugate(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """conj(A) has the eigenvalues conj(λ) and eigenvectors conj(V)"""
    _, k, is_hermitian = asked(A, k, which, method)
    values, vectors = eig(A.A._claim(A.properties & SELF_ADJOINT), k, which, method)
    return finish(A, A.xp.conj(values), vectors.conj(), k, which, is_hermitian)


@rule(eig, Adjoint | Transpose, hereditary=True)
def eig_adjoint(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^H has the eigenvalues conj(λ) and eigenvectors V^-H, A^T has λ and V^-T; for unitary V
    these are V and conj(V)"""
    _, k, is_hermitian = asked(A, k, which, method)
    xp, is_adjoint = A.xp, isinstance(A, Adjoint)
    values, vectors = eig(A.A._claim(A.properties & SELF_ADJOINT), None, "LM", method)
    if vectors.properties & UNITARY:
        left = vectors
    else:
        V = to_computing_dtype(xp, inv(vectors).H.to_dense())
        left = Dense(to_result_dtype(xp, V / xp.vector_norm(V, axis=-2)[..., None, :], A.dtype))
    return finish(
        A,
        xp.conj(values) if is_adjoint else values,
        left if is_adjoint else left.conj(),
        k,
        which,
        is_hermitian,
    )
