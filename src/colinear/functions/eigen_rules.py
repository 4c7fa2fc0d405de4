"""The rules of `eig`: where structure gives the eigenvalues, and eigenvectors as an operator.

Each finds pairs in any order, as few as `k` and `which` allow, and `ordered` picks and sorts what was asked for. Values are real
for a self-adjoint A and complex for any other. Eigenvectors of circulants, periodic convolutions and permutations are Fourier's,
unitary and complex, also where A is real and symmetric: that keeps them O(n log n).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import arrange, rule
from ..info import Status
from ..methods import Eig, Eigh, fitting
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag, hstack
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.fft import FFT
from ..operators.fields import Index
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled, peek_scalar
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose, are_adjoint
from ..operators.triangular import Triangular
from ..operators.zero import Zero
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY, Stiefel
from ._factorise import narrow, quiet, wide
from ._spectral import (
    by_key,
    columns,
    combinations,
    completed,
    cycles,
    grid_of,
    ordered,
    reversed_transpose,
    selection,
    symbol,
    triangular_vectors,
)
from ._values import once_each, place, placed, reciprocal_spectrum, report_finite, report_status
from .eigen import check_algebraic, checked, eig, factors_self_adjoint, is_hermitian_by, report_pairs
from .inverse import all_square, inv

Pairs = tuple[Array, LinearOperator]
POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


# ---------------------------------------------------------------------------------------------------- what the rules share


def _asked(A: LinearOperator, k: Any, which: str, method: Any, known: bool = False) -> tuple[int, int, bool]:
    """The size, how many pairs, and whether they are those of a self-adjoint operator; or an error.

    `known`: whether the spectrum is known, so that `Eigh()` cannot make it real.
    """
    n, k = checked(A, k, which)
    chosen = fitting("eig", method, Eigh, Eig)
    is_hermitian = bool(A.properties & SELF_ADJOINT and not isinstance(chosen, Eig)) if known else is_hermitian_by(A, chosen)
    check_algebraic(which, is_hermitian)
    return n, k, is_hermitian


def _finish(A: LinearOperator, values: Array, vectors: LinearOperator, k: int, which: str, is_hermitian: bool) -> Pairs:
    """The pairs that were asked for, out of these."""
    xp = A.xp
    values = xp.broadcast_to(_typed(xp, values, is_hermitian), (*A.batch_shape, values.shape[-1]))
    return ordered(xp, values, vectors, k, which, is_hermitian)


def _typed(xp: Any, values: Array, is_hermitian: bool) -> Array:
    """Real eigenvalues for self-adjoint operators, complex ones for others."""
    return xp.real(values) if is_hermitian else xp.astype(values, xp.complex_dtype(values.dtype))


def _with_zeros(xp: Any, values: Array, count: int) -> Array:
    return xp.concat([values, xp.zeros((*values.shape[:-1], count), dtype=values.dtype, device=xp.device_of(values))], axis=-1)


def _identity(A: LinearOperator, n: int) -> LinearOperator:
    return Identity(n, like=None if A.is_neutral else A)


def _filled(A: LinearOperator, c: float, count: int, batch: tuple[int, ...] = ()) -> Array:
    return A.xp.full((*batch, count), c, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def _batched(c: Any) -> Any:
    """A scalar of an operator, as it multiplies rows of values."""
    return c[..., None] if getattr(c, "ndim", 0) else c


def _is_real(c: Any) -> bool:
    """Whether a scalar is real, by its type or, where it can be seen, by its value."""
    xp = namespace_of(c)
    if xp is None or not xp.is_complex(c):
        return not isinstance(c, complex) or c.imag == 0
    values = xp.peek(c)
    return values is not None and bool((np.imag(values) == 0).all())


def not_empty(A: LinearOperator) -> bool:
    """Whether A has rows."""
    return 0 not in A.shape


# ---------------------------------------------------------------------------------------------------- known spectra


@rule(eig, Identity | ScaledIdentity)
def eig_identity(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """c I has the eigenvalue c, and I for eigenvectors"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    c: Any = A.c if isinstance(A, ScaledIdentity) else 1.0
    I = _identity(A, n)
    return _typed(A.xp, _batched(c) * _filled(A, 1.0, k), is_hermitian), I if k == n else I[:, :k]._claim(STIEFEL)


@rule(eig, Zero)
def eig_zero(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """0 has the eigenvalue 0, and I for eigenvectors"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    I = _identity(A, n)
    return _typed(A.xp, _filled(A, 0.0, k, A.batch_shape), is_hermitian), I if k == n else I[:, :k]._claim(STIEFEL)


@rule(eig, Diagonal)
def eig_diagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """diag(d) has the eigenvalues d, and the columns of I for eigenvectors"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    report_finite(A.xp, A.d)
    return _finish(A, A.d, _identity(A, n), k, which, is_hermitian)


@rule(eig, Triangular, when=not_empty)
def eig_triangular(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """T has the eigenvalues diag(T), and eigenvectors by substitution: (T_11 - t I) x = -T_12"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    xp, M = A.xp, wide(A.xp, A.to_dense())
    T = xp.flip(M, axis=(-2, -1)) if A.lower else M
    t = xp.diagonal(T)
    places = by_key(xp, _typed(xp, t, is_hermitian), which)[..., :k]
    if is_hermitian:
        rising = xp.argsort(xp.take_along_axis(xp.real(t), places, axis=-1), axis=-1, stable=True)
        places = xp.take_along_axis(places, rising, axis=-1)
    with quiet(xp):
        X, Y = triangular_vectors(xp, T, places), triangular_vectors(xp, reversed_transpose(xp, T), n - 1 - places)
        X, x = _normalised(xp, X, places)
        y = _normalised(xp, Y, n - 1 - places)[1]
        sensitivity = 1 / (x * y)  # |y| |x| / |y^H x|: x and y share one entry
    X = xp.flip(X, axis=-2) if A.lower else X
    values = _typed(xp, xp.take_along_axis(t, places, axis=-1), is_hermitian)
    if not is_hermitian:
        X, M = (xp.astype(Z, values.dtype) for Z in (X, M))
    with quiet(xp):
        chosen = fitting("eig", method, Eigh, Eig)
        report_pairs(xp, M, values, X, None if is_hermitian else sensitivity, chosen, "substitution", A)
    return narrow(xp, values, A.dtype), Dense(narrow(xp, X, A.dtype))._claim(STIEFEL if is_hermitian else 0)


def _normalised(xp: Any, X: Array, places: Array) -> tuple[Array, Array]:
    """Columns of norm 1, and the size of their entry at `places`."""
    X = X / xp.max(xp.abs(X), axis=-2, keepdims=True)
    X = X / xp.vector_norm(X, axis=-2)[..., None, :]
    return X, xp.abs(xp.take_along_axis(X, places[..., None, :], axis=-2)[..., 0, :])


def cycles_can_be_seen(A: Any) -> bool:
    """Whether it is one permutation, known now."""
    return isinstance(A.perm, Index) and A.ndim == 2 and A.shape[-1] > 0


@rule(eig, Permutation, when=cycles_can_be_seen)
def eig_permutation(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """a cycle of length m has the m-th roots of unity for eigenvalues, and Fourier's eigenvectors"""
    _, k, is_hermitian = _asked(A, k, which, method, known=True)
    xp = A.xp
    order, counts = cycles(A.perm.host)
    roots = np.concatenate([np.tile(np.exp(2j * math.pi * np.arange(m) / m), count) for count, m in counts])
    values = xp.asarray(roots, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
    like = None if A.is_neutral else A
    blocks = [Kronecker(Identity(count, like=like), FFT(m, like=like).H) for count, m in counts]
    vectors = Product(Permutation(order, like=like).T, BlockDiag(*blocks))
    # All are of magnitude 1, so that is a tie, whatever rounding makes of it.
    return _finish(A, values, vectors, k, "LR" if which[1] == "M" and not is_hermitian else which, is_hermitian)


def is_periodic(A: Any) -> bool:
    """Whether the boundary is periodic (and the grid not empty)."""
    return A.boundary == "wrap" and not_empty(A)


@rule(eig, Circulant, when=not_empty)
@rule(eig, Convolution, when=is_periodic)
def eig_circulant(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """C = F^H diag(F c) F with the Fourier transform F: unitary, complex eigenvectors also of a real symmetric C"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    values = A.xp.reshape(symbol(A), (*A.batch_shape, n))
    report_finite(A.xp, values)
    return _finish(A, narrow(A.xp, values, A.dtype), FFT(grid_of(A), like=A).H, k, which, is_hermitian)


@rule(eig, Projection, when=not_empty)
def eig_projection(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Q Q^H has the eigenvalues 1, for Q, and 0, for its orthogonal complement"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    r, batch = A.Q.shape[-1], A.batch_shape
    report_finite(A.xp, A.Q)
    if which[0] == "L" and k <= r:
        return _typed(A.xp, _filled(A, 1.0, k, batch), is_hermitian), Dense(A.Q[..., :k])._claim(STIEFEL)
    values = A.xp.concat([_filled(A, 1.0, r, batch), _filled(A, 0.0, n - r, batch)], axis=-1)
    return _finish(A, values, completed(A.Q, A.xp), k, which, is_hermitian)


@rule(eig, Householder, when=not_empty)
def eig_householder(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """I - 2 v v^H / v^H v has the eigenvalues -1, for v, and 1, for its orthogonal complement"""
    n, k, is_hermitian = _asked(A, k, which, method, known=True)
    xp = A.xp
    report_finite(xp, A.v)
    w, squared = A._scaled()
    nothing = xp.all(w == 0, axis=(-2, -1))  # then it is the identity, and any direction will do
    first = xp.eye(n, 1, dtype=w.dtype, device=xp.device_of(w))
    Q = xp.where(nothing[..., None, None], first, w / xp.sqrt(squared))
    one, ones = _filled(A, 1.0, 1, A.batch_shape), _filled(A, 1.0, n - 1, A.batch_shape)
    values = xp.concat([xp.where(nothing[..., None], one, -one), ones], axis=-1)
    return _finish(A, values, completed(Q, xp), k, which, is_hermitian)


def rank_is_small(A: Any) -> bool:
    """Whether A is square and its rank below its size."""
    return A.shape[-1] == A.shape[-2] and 0 < min(_ranks(A)) and max(_ranks(A)) < A.shape[-1]


def _ranks(A: Any) -> tuple[int, int]:
    return A.U.shape[-1], (A.U if A.V is None else A.V).shape[-1]


@rule(eig, LowRank, when=rank_is_small)
def eig_low_rank(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """U V^H has the eigenvalues of R V^H Q for U = Q R, with eigenvectors Q z, and 0 for the orthogonal complement of V"""
    n, k, is_hermitian = _asked(A, k, which, method)
    xp = A.xp
    Q, small, V = compressed(A)
    small = small._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
    r = small.shape[-1]
    positive = A.properties & POSITIVE_SEMIDEFINITE
    if k <= r and which[0] == "L" and (which[1] == "M" or positive):  # zeros are not among them
        values, Z = eig(small, k, which, method)
        return _typed(xp, values, is_hermitian), Product(Dense(Q)._claim(STIEFEL), Z)
    values, Z = eig(small, None, "LM", method)
    values = _with_zeros(xp, values, n - r)
    if is_hermitian:  # the orthogonal complement of V is that of Q
        return _finish(A, values, Product(completed(Q, xp), BlockDiag(Z, Identity(n - r))), k, which, True)
    P = xp.qr(V)[0]
    _report_basis(A, xp.matmul(xp.conj(xp.matrix_transpose(P)), (Dense(Q) @ Z).to_dense()))
    null = columns(completed(P, xp), xp.arange(r, n, device=A._context.device), n - r)
    return _finish(A, values, hstack(Product(Dense(Q), Z), null), k, which, False)


def two_factors(A: Any) -> tuple[Array, Array]:
    """U and V of A = U V^H, the core multiplied into the thinner side."""
    xp, U, V = A.xp, A.U, A.U if A.V is None else A.V
    if A.core is None:
        return U, V
    if V.shape[-1] <= U.shape[-1]:
        return xp.matmul(U, A.core), V
    return U, xp.matmul(V, xp.conj(xp.matrix_transpose(A.core)))


def compressed(A: Any) -> tuple[Array, LinearOperator, Array]:
    """Q, R V^H Q and V for A = U V^H, U = Q R."""
    xp = A.xp
    U, V = two_factors(A)
    Q, R = xp.qr(U)
    small = xp.matmul(R, xp.matmul(xp.conj(xp.matrix_transpose(V)), Q))
    if A.properties & SELF_ADJOINT:
        small = 0.5 * (small + xp.conj(xp.matrix_transpose(small)))
    return Q, Dense(small), V


def _report_basis(A: Any, overlap: Array) -> None:
    """Flag eigenvectors Q z that nearly lie in the orthogonal complement P of V, from P^H Q z: then they are no basis with it."""
    xp = A.xp
    with quiet(xp):
        smallest = xp.min(xp.svd(overlap)[1], axis=-1)
    fine = smallest > math.sqrt(xp.eps(A.dtype))
    message = "the eigenvalue 0 is defective, or close to it: some eigenvectors are almost parallel"
    report_status(xp, xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)), message=message)


# ---------------------------------------------------------------------------------------------------- compositions


def factors_fit(A: LinearOperator) -> bool:
    """Whether every factor is square, and self-adjoint if A is."""
    return all_square(A) and (not A.properties & SELF_ADJOINT or factors_self_adjoint(A))


@rule(eig, Kronecker | KroneckerSum, when=factors_fit)
def eig_kronecker(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """(A ⊗ B) (V ⊗ W) = (V ⊗ W) (Λ ⊗ M) for A V = V Λ, B W = W M; Λ ⊕ M for A ⊕ B

    The largest products are products of the largest: of each factor k pairs are enough where `which` is monotone in every one.
    """
    n, k, is_hermitian = _asked(A, k, which, method)
    xp, is_sum = A.xp, isinstance(A, KroneckerSum)
    monotone = is_sum != (which[1] == "M")
    few = 0 < k < n and not A.batch_shape
    factors = placed(A)
    if few and monotone:
        pairs = once_each(lambda factor: eig(factor, min(k, factor.shape[-1]), which, method), factors)
    else:
        pairs = once_each(lambda factor: eig(factor, None, "LM", method), factors)

    def keep(values: Array) -> Array | None:
        m = values.shape[-1]
        if not few:
            return None
        if monotone:
            return selection(xp, values, min(k, m), which, False)
        if is_hermitian and (which[1] != "M" or which[0] == "L") and 2 * k < m:  # then both ends are enough
            order = xp.argsort(values, axis=-1, stable=True)
            return xp.concat([order[:k], order[m - k :]], axis=-1)
        return None

    spectra = [_typed(xp, values, is_hermitian) for values, _ in pairs]
    values, places = combinations(xp, spectra, is_sum, keep)
    vectors = Kronecker(*(vectors for _, vectors in pairs))
    if values.shape[-1] == vectors.shape[-1]:
        return _finish(A, values, vectors, k, which, is_hermitian)
    order = by_key(xp, values, which)[:k]
    order = xp.take(order, xp.argsort(xp.take(values, order, axis=-1), stable=True), axis=-1) if is_hermitian else order
    return xp.take(values, order, axis=-1), columns(vectors, xp.take(places, order, axis=-1), k)


@rule(eig, BlockDiag, when=all_square)
def eig_block_diagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """diag(A, B) has the eigenvalues of A and those of B, and eigenvectors diag(V, W)"""
    n, k, is_hermitian = _asked(A, k, which, method)
    xp, kept = A.xp, A.properties & (SELF_ADJOINT | POSITIVE)
    blocks = [block._claim(kept) for block in placed(A)]
    pairs = [eig(block, None if k == n else min(k, block.shape[-1]), which, method) for block in blocks]
    parts = [_typed(xp, values, is_hermitian) for values, _ in pairs]
    values = xp.concat([xp.broadcast_to(part, (*A.batch_shape, part.shape[-1])) for part in parts], axis=-1)
    return _finish(A, values, BlockDiag(*(vectors for _, vectors in pairs)), k, which, is_hermitian)


def scalar_keeps_adjoint(A: Any) -> bool:
    """Whether A is square and the operator that is scaled is self-adjoint if A is."""
    return A.shape[-1] == A.shape[-2] and bool(A.A.properties & SELF_ADJOINT or not A.properties & SELF_ADJOINT)


@rule(eig, Scaled, when=scalar_keeps_adjoint)
def eig_scaled(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """c A has the eigenvalues c λ and the eigenvectors of A"""
    n, k, is_hermitian = _asked(A, k, which, method)
    inner = which if which[1] == "M" else _scaled_order(A.scalar, which)
    values, vectors = eig(place(A.A, A), None if inner is None or k == n else k, inner or "LM", method)
    return _finish(A, _batched(A.scalar) * values, vectors, k, which, is_hermitian)


def _scaled_order(c: Any, which: str) -> str | None:
    """Which eigenvalues of A are those that `which` names of c A; None if that is not to be told."""
    value = peek_scalar(c)
    if value is None or not _is_real(c):
        return None
    return which if value.real >= 0 else {"L": "S", "S": "L"}[which[0]] + which[1]


def shift_keeps_adjoint(A: Any) -> bool:
    """Whether A is square and the shift real if A is self-adjoint."""
    shift, _ = arrange(A, ScaledIdentity | Identity, ...)
    return not A.properties & SELF_ADJOINT or isinstance(shift, Identity) or _is_real(shift.c)


@rule(eig, Sum[ScaledIdentity | Identity, ...], when=shift_keeps_adjoint)  # type: ignore[misc]
def eig_shifted(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A + c I has the eigenvalues λ + c and the eigenvectors of A"""
    n, k, is_hermitian = _asked(A, k, which, method)
    c, rest = split_shift(A)
    inner = which if which[1] != "M" else which[0] + "A" if is_hermitian and A.properties & POSITIVE_SEMIDEFINITE else None
    values, vectors = eig(rest, None if inner is None or k == n else k, inner or "LM", method)
    return _finish(A, values + _batched(c), vectors, k, which, is_hermitian)


def split_shift(A: Any) -> tuple[Any, LinearOperator]:
    """c and A - c I."""
    shift, rest = arrange(A, ScaledIdentity | Identity, ...)
    claims = A.properties & SELF_ADJOINT
    return shift.c if isinstance(shift, ScaledIdentity) else 1.0, place(Sum(*rest), A)._claim(claims)


def is_a_power(A: Any) -> bool:
    """Whether all factors are one and the same operator, self-adjoint if A is."""
    first = A.operands[0]
    return all(factor is first for factor in A.operands) and (
        not A.properties & SELF_ADJOINT or bool(first.properties & SELF_ADJOINT)
    )


@rule(eig, Product, when=is_a_power)
def eig_power(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^p has the eigenvalues λ^p and the eigenvectors of A"""
    n, k, is_hermitian = _asked(A, k, which, method)
    p = len(A.operands)
    by_size = which[1] == "M" or (is_hermitian and p % 2 == 0)
    values, vectors = eig(place(A.operands[0], A), k if by_size and k < n else None, which[0] + "M", method)
    return _finish(A, values**p, vectors, k, which, is_hermitian)


def is_a_similarity(A: Any) -> bool:
    """Whether the outer factors are known to be Q and Q^H."""
    return len(A.operands) >= 3 and A.shape[-1] == A.shape[-2] and are_adjoint(A.operands[0], A.operands[-1])


@rule(eig, Product[Stiefel, ..., LinearOperator], when=is_a_similarity)  # type: ignore[misc]
def eig_similarity(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Q A Q^H has the eigenvalues of A and eigenvectors Q V; 0 for the orthogonal complement of Q"""
    n, k, is_hermitian = _asked(A, k, which, method)
    Q, inner = place(A.operands[0], A), place(Product(*A.operands[1:-1]), A)._claim(A.properties & (SELF_ADJOINT | POSITIVE))
    r = Q.shape[-1]
    if r == n or (k <= r and which[0] == "L" and (which[1] == "M" or A.properties & POSITIVE_SEMIDEFINITE)):
        values, V = eig(inner, k, which, method)
        return A.xp.broadcast_to(_typed(A.xp, values, is_hermitian), (*A.batch_shape, k)), Product(Q, V)
    values, V = eig(inner, None, "LM", method)
    values = _with_zeros(A.xp, values, n - r)
    return _finish(A, values, Product(completed(Q.to_dense(), A.xp), BlockDiag(V, Identity(n - r))), k, which, is_hermitian)


@rule(eig, Inverse)
def eig_inverse(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^-1 has the eigenvalues 1 / λ and the eigenvectors of A"""
    n, k, is_hermitian = _asked(A, k, which, method)
    by_size = which[1] == "M" or A.properties & POSITIVE_SEMIDEFINITE
    inner = {"L": "S", "S": "L"}[which[0]] + "M"
    values, vectors = eig(A.A._claim(A.properties & SELF_ADJOINT), k if by_size and k < n else None, inner, method)
    return _finish(A, reciprocal_spectrum(A.xp, values), vectors, k, which, is_hermitian)


@rule(eig, Conjugate)
def eig_conjugate(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """conj(A) has the eigenvalues conj(λ) and eigenvectors conj(V)"""
    _, k, is_hermitian = _asked(A, k, which, method)
    values, vectors = eig(A.A._claim(A.properties & SELF_ADJOINT), k, which, method)
    return _finish(A, A.xp.conj(values), vectors.conj(), k, which, is_hermitian)


@rule(eig, Adjoint | Transpose)
def eig_adjoint(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """A^H has the eigenvalues conj(λ) and eigenvectors V^-H, A^T has λ and V^-T; for unitary V these are V and conj(V)"""
    _, k, is_hermitian = _asked(A, k, which, method)
    xp, is_adjoint = A.xp, isinstance(A, Adjoint)
    values, vectors = eig(A.A._claim(A.properties & SELF_ADJOINT), None, "LM", method)
    if vectors.properties & UNITARY:
        left = vectors
    else:
        V = wide(xp, inv(vectors).H.to_dense())
        left = Dense(narrow(xp, V / xp.vector_norm(V, axis=-2)[..., None, :], A.dtype))
    return _finish(A, xp.conj(values) if is_adjoint else values, left if is_adjoint else left.conj(), k, which, is_hermitian)
