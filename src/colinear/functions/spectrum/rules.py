"""The rules of `eig` for families, unitary operators and what commutes with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backends import Array, adjoint, hermitian, inner_products, places_like
from ...dispatch import Choice
from ...factors.inverse import Inverse
from ...info import Info, report
from ...operators import (
    FFT,
    BlockDiag,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    Householder,
    Identity,
    Kronecker,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Projection,
    ScaledIdentity,
    Triangular,
    Zero,
    hstack,
)
from ...operators.context import kind_of
from ...operators.diagonal import scalar_of
from ...operators.scaled import beside
from ...operators.transposed import are_adjoint
from ...operators.tree import Index
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY, Stiefel, Unitary
from ...status import Status, first_failure
from ..common import (
    array_like,
    filled,
    host_value,
    identity_like,
    ignore_float_errors,
    is_square,
    report_finite,
    reports_nonfinite,
    to_computing_dtype,
    to_result_dtype,
    values_are_seen,
)
from ..orthonormal import complement, completed, qr_of_columns
from . import Pairs, eig, eig_rule, known_eig_rule, not_empty, pairs_like, report_pairs
from .order import (
    Asked,
    cycles,
    fourier_basis,
    is_affordable,
    is_periodic,
    padded,
    symbol,
)

# Products V A V^-1 that are seen to be similar to A, by how they were made.


def is_similarity(A: Any) -> bool:
    """Whether the outer factors of a product of three or more are known to be inverse to each
    other."""
    return len(A.operands) > 2 and are_inverse(A.operands[0], A.operands[-1])


def are_inverse(A: Any, B: Any) -> bool:
    """Whether A B = I is known: B was made as the inverse or, for unitary A, the adjoint of A,
    or their parts were."""
    if A.properties & UNITARY and are_adjoint(A, B):
        return True
    if (isinstance(B, Inverse) and B.A is A) or (isinstance(A, Inverse) and A.A is B):
        return True
    alike = isinstance(A, Kronecker | BlockDiag) and type(A) is type(B)
    return (
        alike
        and len(A.operands) == len(B.operands)
        and all(map(are_inverse, A.operands, B.operands))
    )


# Eigenpairs of the discrete Fourier transform.
#
# F^4 = I, so its eigenvalues are 1, -1, i and -i, and P = (I + F / λ + F^2 / λ^2 + F^3 / λ^3) / 4
# projects onto the eigenspace of λ (McClellan and Parks 1972). Projected unit vectors are
# eigenvectors: a few of them are far from parallel, and of all QR with pivoting picks a basis.


FEW = 8  # parts of the size of an eigenspace that is found from as many unit vectors


def _eigenspace(n: int, transform: Any, value: complex, count: int) -> Any:
    """Orthonormal eigenvectors of the unitary `transform` for one of its eigenvalues."""
    from scipy.linalg import qr

    is_few = FEW * count <= n // 4
    # the unit vectors 1, ..., count are neither even nor odd
    E = np.eye(n, count, -1) if is_few else np.eye(n)
    E = E + value**-2 * np.roll(E[::-1], 1, axis=0)  # F^2 is the reversal about 0
    P = (E + value**-1 * transform(E, axis=0, norm="ortho")) / 4
    return qr(P, mode="economic", pivoting=True)[0][:, :count]


# The rules of `eig`: where structure gives the eigenvalues, and eigenvectors as an operator.
#
# Each finds pairs in any order, as few as `k` and `which` allow, and `asked.finish` picks and sorts
# what was asked for. Values are real for a self-adjoint A and complex for any other. Eigenvectors
# of circulants, periodic convolutions and permutations are Fourier's, unitary and complex, also
# where A is real and symmetric: that keeps them O(n log n).


PARALLEL_TO_NULL = (
    "the eigenvalue 0 is defective, or close to it: some eigenvectors are almost parallel"
)


@known_eig_rule(Identity | ScaledIdentity)
@reports_nonfinite
def eig_identity(A: Any, asked: Asked) -> Pairs:
    """c I has the eigenvalue c, and I for eigenvectors"""
    ones, vectors = pairs_like(asked)
    return asked.typed(beside(scalar_of(A)) * ones), vectors


@known_eig_rule(Zero)
def eig_zero(A: Any, asked: Asked) -> Pairs:
    """0 has the eigenvalue 0, and I for eigenvectors"""
    ones, vectors = pairs_like(asked)
    return 0 * ones, vectors


@known_eig_rule(Diagonal)
def eig_diagonal(A: Any, asked: Asked) -> Pairs:
    """diag(d) has the eigenvalues d, and the columns of I for eigenvectors"""
    report_finite(A.xp, A.d)
    return asked.finish(A.d, identity_like(A))


@known_eig_rule(Triangular, when=not_empty, computes=True)
def eig_triangular(A: Any, asked: Asked) -> Pairs:
    """T has the eigenvalues diag(T), and eigenvectors by substitution: (T_11 - t I) x = -T_12"""
    xp, M = A.xp, to_computing_dtype(A.xp, A._dense())
    T = xp.flip(M, axis=(-2, -1)) if A.lower else M
    values = asked.typed(xp.diagonal(T))
    places = asked.order(values)[..., : asked.k]
    values = xp.take_along_axis(values, places, axis=-1)
    # upper triangular again, with the left eigenvectors of T, reversed, for its own
    mirror = xp.flip(xp.matrix_transpose(T), axis=(-2, -1))
    with ignore_float_errors(xp):
        X, x = _triangular_vectors(xp, T, places)
        sensitivity = None
        if not asked.is_hermitian:
            y = _triangular_vectors(xp, mirror, asked.n - 1 - places)[1]
            sensitivity = 1 / (x * y)  # |y| |x| / |y^H x|: x and y share one entry
            X, M = (xp.astype(Z, values.dtype) for Z in (X, M))
        X = xp.flip(X, axis=-2) if A.lower else X
        report_pairs(asked, "substitution", M, values, X, sensitivity)
    return to_result_dtype(xp, values, A.dtype), asked.wrap(X)


def _triangular_vectors(xp: Any, T: Array, places: Array) -> tuple[Array, Array]:
    """Eigenvectors of norm 1 of upper triangular T for the eigenvalues at `places` of its
    diagonal, (T_11 - t I) x = -T_12, and the size of their entries there."""
    Y, c = xp.solve_shifted(T, places, -xp.take_along_axis(T, places[..., None, :], axis=-1))
    here = places_like(xp, T)[:, None] == places[..., None, :]
    X = Y + xp.where(here, c[..., None, :], 0)
    X = X / xp.max(xp.abs(X), axis=-2, keepdims=True)
    X = X / xp.vector_norm(X, axis=-2)[..., None, :]
    return X, xp.abs(xp.take_along_axis(X, places[..., None, :], axis=-2)[..., 0, :])


@known_eig_rule(Projection, when=not_empty)
def eig_projection(A: Any, asked: Asked) -> Pairs:
    """Q Q^H has the eigenvalues 1, for Q, and 0, for its orthogonal complement"""
    n, k, r = asked.n, asked.k, A.Q.shape[-1]
    report_finite(A.xp, A.Q)
    if asked.which[0] == "L" and k <= r:
        return pairs_like(asked)[0], Stiefel(A.Q[..., :k])
    values = padded(A.xp, filled(A, 1.0, *A.batch_shape, r), n)
    return asked.finish(values, completed(Stiefel(A.Q), n))


@known_eig_rule(Householder, when=not_empty)
def eig_householder(A: Any, asked: Asked) -> Pairs:
    """I - 2 v v^H / v^H v has the eigenvalues -1, for v, and 1, for its orthogonal complement"""
    n, xp = asked.n, A.xp
    report_finite(xp, A.v)
    w, squared = A._scaled()
    nothing = xp.all(w == 0, axis=(-2, -1))  # then it is the identity, and any direction will do
    first = xp.eye(n, 1, **kind_of(w))
    Q = xp.where(nothing[..., None, None], first, w / xp.sqrt(squared))
    ones = filled(A, 1.0, *A.batch_shape, n)
    values = xp.where(xp.arange(n, device=A._context.device) > 0, ones, -ones)  # -1, 1, 1, ...
    basis = completed(Stiefel(Q), n)
    return asked.finish(xp.where(nothing[..., None], ones, values), basis)


def rank_is_small(A: Any) -> bool:
    """Whether A is square and its rank below its size."""
    return is_square(A) and 0 < min(ranks(A)) and max(ranks(A)) < A.shape[-1]


def ranks(A: Any) -> tuple[int, int]:
    """The columns of U and of V of a LowRank."""
    return A.U.shape[-1], (A.U if A.V is None else A.V).shape[-1]


@eig_rule(LowRank, when=rank_is_small, hereditary=True)
def eig_low_rank(A: Any, asked: Asked) -> Any:
    """U V^H has the eigenvalues of R V^H Q for U = Q R, with eigenvectors Q z, and 0 for the
    orthogonal complement of V"""
    k, xp = asked.k, A.xp
    Q, small, V = compressed(A)
    small = small._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
    basis = Stiefel(Q)
    # of a self-adjoint A the orthogonal complement of V is that of Q
    if asked.is_hermitian or (k <= small.shape[-1] and asked.zeros_come_last):
        return pairs_of_similar(asked, basis, small)
    values, Z = eig(small, None, "LM", asked.method)
    P = qr_of_columns(xp, V)[0]
    with ignore_float_errors(xp):
        # P^H Q z: of no basis, if eigenvectors Q z nearly lie in the orthogonal complement P of V
        overlaps = xp.svd(inner_products(xp, P, (basis @ Z)._dense()))[1]
    far = xp.min(overlaps, axis=-1) > math.sqrt(xp.eps(A.dtype))
    status = first_failure(xp, (far, Status.INACCURATE))

    def pairs() -> Pairs:
        null = complement(Stiefel(P))
        return asked.finish(padded(xp, values, asked.n), hstack(Product(Dense(Q), Z), null))

    def run() -> Any:
        if status is Status.INACCURATE and is_affordable(A):
            # U may lack rank: then 0 need not be defective
            return eig.base(A, k, asked.which, asked.method)
        if status is not Status.SUCCESS:
            report(Info(status, message=PARALLEL_TO_NULL))
        return pairs()

    return Choice(run, like=pairs)


def pairs_of_similar(asked: Asked, Q: LinearOperator, inner: LinearOperator) -> Pairs:
    """The pairs of Q A Q^H from those of the inner A: vectors Q V, and 0 for the orthogonal
    complement of Q."""
    A, n, r, k = asked.A, asked.n, Q.shape[-1], asked.k
    if r == n or (k <= r and asked.zeros_come_last):
        values, V = eig(inner, k, asked.which, asked.method)
        return A.xp.broadcast_to(asked.typed(values), (*A.batch_shape, k)), Product(Q, V)
    values, V = eig(inner, None, "LM", asked.method)
    basis = Product(completed(Q, n), BlockDiag(V, Identity(n - r)))
    return asked.finish(padded(A.xp, values, n), basis)


def two_factors(A: Any) -> tuple[Array, Array]:
    """U and V of A = U V^H, the core multiplied into the thinner side."""
    xp, U, V = A.xp, A.U, A.U if A.V is None else A.V
    if A.core is None:
        return U, V
    if V.shape[-1] <= U.shape[-1]:
        return xp.matmul(U, A.core), V
    return U, xp.matmul(V, adjoint(xp, A.core))


def compressed(A: Any) -> tuple[Array, LinearOperator, Array]:
    """Q, R V^H Q and V for A = U V^H, U = Q R."""
    xp = A.xp
    U, V = two_factors(A)
    Q, R = qr_of_columns(xp, U)
    small = xp.matmul(R, inner_products(xp, V, Q))
    if A.properties & SELF_ADJOINT:
        small = hermitian(xp, small)
    return Q, Dense(small), V


# The rules of `eig` for unitary operators and for those that commute with them: permutations,
# circulants, transforms.


def cycles_can_be_seen(A: Any) -> bool:
    """Whether it is one permutation, known now."""
    return A.ndim == 2 and order_can_be_seen(A)


def order_can_be_seen(A: Any) -> bool:
    """Whether it is known now which rows are permuted, and there are some."""
    return isinstance(A.perm, Index) and A.shape[-1] > 0


@known_eig_rule(Permutation, when=order_can_be_seen, hereditary=True)
def eig_permutation(A: Any, asked: Asked) -> Pairs:
    """a cycle of length m has the m-th roots of unity for eigenvalues, and Fourier's
    eigenvectors; of a batch, whose cycles differ, as unitary matrices"""
    if A.ndim > 2:
        dense = Dense(A.to_dense())._claim(UNITARY | (A.properties & SELF_ADJOINT))
        return eig(dense, asked.k, asked.which, asked.method)
    xp, is_hermitian = A.xp, asked.is_hermitian
    order, counts = cycles(A.perm.host)
    roots = np.concatenate(
        [np.tile(np.exp(2j * math.pi * np.arange(m) / m), count) for count, m in counts]
    )
    values = xp.asarray(roots, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
    like = None if A.is_neutral else A

    def waves(m: int) -> LinearOperator:
        if is_hermitian and m <= 2:  # those of an exchange of two are real
            half = np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2)
            return Unitary(array_like(A, half)) if m == 2 else identity_like(A, 1)
        return FFT(m, like=like).H

    blocks = [Kronecker(identity_like(A, count), waves(m)) for count, m in counts]
    vectors = Product(Permutation(order, like=like).T, BlockDiag(*blocks))
    if asked.which[1] == "M" and not is_hermitian:
        # All are of magnitude 1, so that is a tie, whatever rounding makes of it.
        asked = asked._replace(which="LR")
    return asked.finish(values, vectors)


def is_seen_and_not_self_adjoint(A: Any) -> bool:
    """Whether the matrix can be seen (and is not better off as a self-adjoint one, nor empty)."""
    return not_empty(A) and not A.properties & SELF_ADJOINT and values_are_seen(A)


@known_eig_rule(Unitary[Dense], when=is_seen_and_not_self_adjoint, computes=True, direct=True)
def eig_unitary(A: Any, asked: Asked) -> Pairs:
    """Schur's form of a unitary matrix is diagonal, Q = Z diag(λ) Z^H: orthonormal eigenvectors
    also of repeated eigenvalues"""
    from scipy.linalg import schur

    xp, M = A.xp, to_computing_dtype(A.xp, A.A)
    host = np.asarray(host_value(xp, M))
    if not np.isfinite(host).all():
        return eig.base(A, asked.k, asked.which, asked.method)
    each = [schur(host[i], output="complex") for i in np.ndindex(host.shape[:-2])]
    place = {"dtype": xp.complex_dtype(M.dtype), "device": A._context.device}
    T, V = (xp.asarray(np.reshape(parts, host.shape), **place) for parts in zip(*each))
    values = xp.diagonal(T)
    report_pairs(asked, "Schur", xp.astype(M, V.dtype), values, V)
    vectors = Unitary(to_result_dtype(xp, V, A.dtype))
    return asked.finish(to_result_dtype(xp, values, A.dtype), vectors)


@known_eig_rule(Circulant, when=not_empty)
@known_eig_rule(Convolution, when=is_periodic)
def eig_circulant(A: Any, asked: Asked) -> Pairs:
    """C = F^H diag(F c) F with the Fourier transform F: unitary, complex eigenvectors also of a
    real symmetric C"""
    values = A.xp.reshape(symbol(A), A.shape[:-1])
    report_finite(A.xp, values)
    return asked.finish(to_result_dtype(A.xp, values, A.dtype), fourier_basis(A))


def is_grid(A: Any) -> bool:
    """Whether the transform has more axes than one."""
    return len(A.grid) > 1


@known_eig_rule(FFT, when=is_grid)
def eig_fft_of_grid(A: Any, asked: Asked) -> Pairs:
    """F over a grid is the Kronecker product of the transforms along its axes"""
    lines = (FFT._of((size,), A.inverse, A.context) for size in A.grid)
    return eig(Kronecker(*lines), asked.k, asked.which, asked.method)


@known_eig_rule(FFT, computes=True)
def eig_fft(A: Any, asked: Asked) -> Pairs:
    """F has the eigenvalues 1, -1, i and -i, and (I + F / λ + F^2 / λ^2 + F^3 / λ^3) / 4 projects
    onto the eigenspace of λ"""
    n, k = asked.n, asked.k
    transform = np.fft.ifft if A.inverse else np.fft.fft
    # how often each eigenvalue of the forward transform occurs
    counts = {1: n // 4 + 1, -1: (n + 2) // 4, -1j: (n + 1) // 4, 1j: max(n - 1, 0) // 4}
    values = np.repeat(list(counts), list(counts.values()))
    values = np.conj(values) if A.inverse else values
    values, V = values[asked.order(asked.typed(values))[:k]], np.empty((n, k), complex)
    for value in np.unique(values):
        at = np.flatnonzero(values == value)
        V[:, at] = _eigenspace(n, transform, complex(value), len(at))
    return asked.typed(array_like(A, values)), Stiefel(array_like(A, V))
