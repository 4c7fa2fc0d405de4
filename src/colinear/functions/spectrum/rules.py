"""The rules of `eig` for families, unitary operators and what commutes with them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array
from ...dispatch import Choice, rule
from ...factors.inverse import Inverse
from ...methods import EIGEN, fitting
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
from ...operators.diagonal import scalar_of
from ...operators.scaled import beside
from ...operators.transposed import are_adjoint
from ...operators.tree import Index
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY, Unitary
from ...status import Status
from ..common import (
    host_value,
    identity_like,
    ignore_float_errors,
    is_traced_or_differentiated,
    report_finite,
    report_status,
    reports_nonfinite,
    to_computing_dtype,
    to_result_dtype,
)
from . import Pairs, asked, eig, filled, finish, not_empty, report_pairs, typed, with_zeros
from .order import (
    by_key,
    columns,
    completed,
    cycles,
    grid_of,
    is_affordable,
    is_periodic,
    reversed_transpose,
    selection,
    symbol,
    triangular_vectors,
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
    both = [isinstance(X, kind) for kind in (Kronecker, BlockDiag) for X in (A, B)]
    alike = (all(both[:2]) or all(both[2:])) and len(A.operands) == len(B.operands)
    return alike and all(are_inverse(a, b) for a, b in zip(A.operands, B.operands))


# A few eigenpairs of the discrete Fourier transform, without its matrix.
#
# F^4 = I, so its eigenvalues are 1, -1, i and -i, and P = (I + F / λ + F^2 / λ^2 + F^3 / λ^3) / 4
# projects onto the eigenspace of λ (McClellan and Parks 1972). Projected unit vectors are
# eigenvectors, far from parallel as long as they are few; QR makes them orthonormal.


FEW = 8  # parts of the size of an eigenspace that is used


def multiplicities(n: int) -> dict[complex, int]:
    """How often each eigenvalue of the forward transform occurs."""
    return {1: n // 4 + 1, -1: (n + 2) // 4, -1j: (n + 1) // 4, 1j: max(n - 1, 0) // 4}


def few_pairs(xp: Any, n: int, inverse: bool, k: int, which: str) -> tuple[Any, Any] | None:
    """k eigenvalues, in order, and orthonormal eigenvectors, on the host; None if that is too
    many for this way."""
    values = np.concatenate(
        [
            np.full(count, np.conj(value) if inverse else value)
            for value, count in multiplicities(n).items()
        ]
    )
    if FEW * k > n // 4:
        return None
    order = selection(xp, xp.asarray(values), k, which, False)
    chosen = values[:k] if order is None else values[xp.to_numpy(order)]
    V = np.empty((n, k), complex)
    for value in np.unique(chosen):
        at = np.flatnonzero(chosen == value)
        V[:, at] = np.linalg.qr(_projected(n, -1 if inverse else 1, complex(value), len(at)))[0]
    return chosen, V


def _projected(n: int, direction: int, value: complex, count: int) -> Any:
    """P times the unit vectors 1, ..., count, which are neither even nor odd."""
    E = np.zeros((n, count))
    E[1 + np.arange(count), np.arange(count)] = 1
    R = np.roll(E[::-1], 1, axis=0)  # F^2, the reversal about 0
    transform = np.fft.fft if direction == 1 else np.fft.ifft
    both = transform(E + value**-2 * R, axis=0, norm="ortho")
    return (E + value**-2 * R + value**-1 * both) / 4


# The rules of `eig`: where structure gives the eigenvalues, and eigenvectors as an operator.
#
# Each finds pairs in any order, as few as `k` and `which` allow, and `ordered` picks and sorts
# what was asked for. Values are real for a self-adjoint A and complex for any other. Eigenvectors
# of circulants, periodic convolutions and permutations are Fourier's, unitary and complex, also
# where A is real and symmetric: that keeps them O(n log n).


PARALLEL_TO_NULL = (
    "the eigenvalue 0 is defective, or close to it: some eigenvectors are almost parallel"
)


@rule(eig, Identity | ScaledIdentity)
@reports_nonfinite
def eig_identity(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """c I has the eigenvalue c, and I for eigenvectors"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    c = scalar_of(A)
    I = identity_like(A, n)
    return typed(A.xp, beside(c) * filled(A, 1.0, k), is_hermitian), I if k == n else I[
        :, :k
    ]._claim(STIEFEL)


@rule(eig, Zero)
def eig_zero(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """0 has the eigenvalue 0, and I for eigenvectors"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    I = identity_like(A, n)
    return typed(A.xp, filled(A, 0.0, k, A.batch_shape), is_hermitian), I if k == n else I[
        :, :k
    ]._claim(STIEFEL)


@rule(eig, Diagonal)
def eig_diagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """diag(d) has the eigenvalues d, and the columns of I for eigenvectors"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    report_finite(A.xp, A.d)
    return finish(A, A.d, identity_like(A, n), k, which, is_hermitian)


@rule(eig, Triangular, when=not_empty)
def eig_triangular(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """T has the eigenvalues diag(T), and eigenvectors by substitution: (T_11 - t I) x = -T_12"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    xp, M = A.xp, to_computing_dtype(A.xp, A._dense())
    T = xp.flip(M, axis=(-2, -1)) if A.lower else M
    t = xp.diagonal(T)
    places = by_key(xp, typed(xp, t, is_hermitian), which)[..., :k]
    if is_hermitian:
        rising = xp.argsort(xp.take_along_axis(xp.real(t), places, axis=-1), axis=-1, stable=True)
        places = xp.take_along_axis(places, rising, axis=-1)
    with ignore_float_errors(xp):
        X, Y = (
            triangular_vectors(xp, T, places),
            triangular_vectors(xp, reversed_transpose(xp, T), n - 1 - places),
        )
        X, x = _normalised(xp, X, places)
        y = _normalised(xp, Y, n - 1 - places)[1]
        sensitivity = 1 / (x * y)  # |y| |x| / |y^H x|: x and y share one entry
    X = xp.flip(X, axis=-2) if A.lower else X
    values = typed(xp, xp.take_along_axis(t, places, axis=-1), is_hermitian)
    if not is_hermitian:
        X, M = (xp.astype(Z, values.dtype) for Z in (X, M))
    with ignore_float_errors(xp):
        chosen = fitting("eig", method, *EIGEN)
        report_pairs(
            xp, M, values, X, None if is_hermitian else sensitivity, chosen, "substitution", A
        )
    return to_result_dtype(xp, values, A.dtype), Dense(to_result_dtype(xp, X, A.dtype))._claim(
        STIEFEL if is_hermitian else 0
    )


def _normalised(xp: Any, X: Array, places: Array) -> tuple[Array, Array]:
    """Columns of norm 1, and the size of their entry at `places`."""
    X = X / xp.max(xp.abs(X), axis=-2, keepdims=True)
    X = X / xp.vector_norm(X, axis=-2)[..., None, :]
    return X, xp.abs(xp.take_along_axis(X, places[..., None, :], axis=-2)[..., 0, :])


@rule(eig, Projection, when=not_empty)
def eig_projection(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Q Q^H has the eigenvalues 1, for Q, and 0, for its orthogonal complement"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    r, batch = A.Q.shape[-1], A.batch_shape
    report_finite(A.xp, A.Q)
    if which[0] == "L" and k <= r:
        return typed(A.xp, filled(A, 1.0, k, batch), is_hermitian), Dense(A.Q[..., :k])._claim(
            STIEFEL
        )
    values = A.xp.concat([filled(A, 1.0, r, batch), filled(A, 0.0, n - r, batch)], axis=-1)
    return finish(A, values, completed(A.Q, A.xp), k, which, is_hermitian)


@rule(eig, Householder, when=not_empty)
def eig_householder(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """I - 2 v v^H / v^H v has the eigenvalues -1, for v, and 1, for its orthogonal complement"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    xp = A.xp
    report_finite(xp, A.v)
    w, squared = A._scaled()
    nothing = xp.all(w == 0, axis=(-2, -1))  # then it is the identity, and any direction will do
    first = xp.eye(n, 1, dtype=w.dtype, device=xp.device_of(w))
    Q = xp.where(nothing[..., None, None], first, w / xp.sqrt(squared))
    one, ones = filled(A, 1.0, 1, A.batch_shape), filled(A, 1.0, n - 1, A.batch_shape)
    values = xp.concat([xp.where(nothing[..., None], one, -one), ones], axis=-1)
    return finish(A, values, completed(Q, xp), k, which, is_hermitian)


def rank_is_small(A: Any) -> bool:
    """Whether A is square and its rank below its size."""
    return A.shape[-1] == A.shape[-2] and 0 < min(_ranks(A)) and max(_ranks(A)) < A.shape[-1]


def _ranks(A: Any) -> tuple[int, int]:
    return A.U.shape[-1], (A.U if A.V is None else A.V).shape[-1]


@rule(eig, LowRank, when=rank_is_small, hereditary=True)
def eig_low_rank(A: Any, k: Any, which: str, method: Any) -> Any:
    """U V^H has the eigenvalues of R V^H Q for U = Q R, with eigenvectors Q z, and 0 for the
    orthogonal complement of V"""
    n, k, is_hermitian = asked(A, k, which, method)
    xp = A.xp
    Q, small, V = compressed(A)
    small = small._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
    r = small.shape[-1]
    positive = A.properties & POSITIVE_SEMIDEFINITE
    if k <= r and which[0] == "L" and (which[1] == "M" or positive):  # zeros are not among them
        values, Z = eig(small, k, which, method)
        return typed(xp, values, is_hermitian), Product(Dense(Q)._claim(STIEFEL), Z)
    values, Z = eig(small, None, "LM", method)
    values = with_zeros(xp, values, n - r)
    if is_hermitian:  # the orthogonal complement of V is that of Q
        return finish(
            A, values, Product(completed(Q, xp), BlockDiag(Z, Identity(n - r))), k, which, True
        )
    P = autodiff.qr(xp, V)[0]
    status = _status_of_basis(
        A, xp.matmul(xp.conj(xp.matrix_transpose(P)), (Dense(Q) @ Z)._dense())
    )

    def pairs() -> Pairs:
        null = columns(completed(P, xp), xp.arange(r, n, device=A._context.device), n - r)
        return finish(A, values, hstack(Product(Dense(Q), Z), null), k, which, False)

    def run() -> Any:
        known = host_value(xp, status)
        if known is not None and known.any() and is_affordable(A):
            return eig.base(A, k, which, method)  # U may lack rank: then 0 need not be defective
        report_status(xp, status, message=PARALLEL_TO_NULL)
        return pairs()

    return Choice(run, like=pairs)


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
    Q, R = autodiff.qr(xp, U)
    small = xp.matmul(R, xp.matmul(xp.conj(xp.matrix_transpose(V)), Q))
    if A.properties & SELF_ADJOINT:
        small = 0.5 * (small + xp.conj(xp.matrix_transpose(small)))
    return Q, Dense(small), V


def _status_of_basis(A: Any, overlap: Array) -> Array:
    """Whether no eigenvectors Q z nearly lie in the orthogonal complement P of V, from P^H Q z:
    else they are no basis with it."""
    xp = A.xp
    with ignore_float_errors(xp):
        smallest = xp.min(xp.svd(overlap)[1], axis=-1)
    fine = smallest > math.sqrt(xp.eps(A.dtype))
    return xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE))


# The rules of `eig` for unitary operators and for those that commute with them: permutations,
# circulants, transforms.


def cycles_can_be_seen(A: Any) -> bool:
    """Whether it is one permutation, known now."""
    return isinstance(A.perm, Index) and A.ndim == 2 and A.shape[-1] > 0


@rule(eig, Permutation, when=cycles_can_be_seen)
def eig_permutation(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """a cycle of length m has the m-th roots of unity for eigenvalues, and Fourier's
    eigenvectors"""
    _, k, is_hermitian = asked(A, k, which, method, known=True)
    xp = A.xp
    order, counts = cycles(A.perm.host)
    roots = np.concatenate(
        [np.tile(np.exp(2j * math.pi * np.arange(m) / m), count) for count, m in counts]
    )
    values = xp.asarray(roots, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
    like = None if A.is_neutral else A

    def waves(m: int) -> LinearOperator:
        if is_hermitian and m == 2:  # those of an exchange of two are real
            half = xp.asarray(
                [[1.0, 1.0], [1.0, -1.0]], dtype=A.dtype, device=A._context.device
            ) / math.sqrt(2)
            return Dense(half)._claim(UNITARY)
        return Identity(1, like=like) if is_hermitian and m == 1 else FFT(m, like=like).H

    blocks = [Kronecker(Identity(count, like=like), waves(m)) for count, m in counts]
    vectors = Product(Permutation(order, like=like).T, BlockDiag(*blocks))
    # All are of magnitude 1, so that is a tie, whatever rounding makes of it.
    return finish(
        A, values, vectors, k, "LR" if which[1] == "M" and not is_hermitian else which, is_hermitian
    )


def permutations_can_be_seen(A: Any) -> bool:
    """Whether they are several permutations, known now."""
    return isinstance(A.perm, Index) and A.ndim > 2 and A.shape[-1] > 0


@rule(eig, Permutation, when=permutations_can_be_seen, hereditary=True)
def eig_permutations(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """a batch of permutations, whose cycles differ: as unitary matrices"""
    dense = Dense(A.to_dense())._claim(UNITARY | (A.properties & SELF_ADJOINT))
    return eig(dense, k, which, method)


def is_seen_and_not_self_adjoint(A: Any) -> bool:
    """Whether the matrix can be seen (and is not better off as a self-adjoint one, nor empty)."""
    return (
        not_empty(A)
        and not A.properties & SELF_ADJOINT
        and not is_traced_or_differentiated(A.xp, A.A)
    )


@rule(eig, Unitary[Dense], when=is_seen_and_not_self_adjoint, direct=True)
def eig_unitary(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Schur's form of a unitary matrix is diagonal, Q = Z diag(λ) Z^H: orthonormal eigenvectors
    also of repeated eigenvalues"""
    from scipy.linalg import schur

    _, k, is_hermitian = asked(A, k, which, method, known=True)
    xp, M = A.xp, to_computing_dtype(A.xp, A.A)
    host = np.asarray(host_value(xp, M))
    if not np.isfinite(host).all():
        return eig.base(A, k, which, method)
    forms = [schur(matrix, output="complex") for matrix in host.reshape(-1, *host.shape[-2:])]
    w, Z = (
        np.reshape(np.stack(parts), (*host.shape[:-2], *parts[0].shape))
        for parts in zip(*((np.diag(T), Z) for T, Z in forms))
    )
    values, V = (
        xp.asarray(x, dtype=xp.complex_dtype(M.dtype), device=A._context.device) for x in (w, Z)
    )
    chosen = fitting("eig", method, *EIGEN)
    report_pairs(xp, xp.astype(M, V.dtype), values, V, None, chosen, "Schur", A)
    return finish(
        A,
        to_result_dtype(xp, values, A.dtype),
        Dense(to_result_dtype(xp, V, A.dtype))._claim(UNITARY),
        k,
        which,
        is_hermitian,
    )


@rule(eig, Circulant, when=not_empty)
@rule(eig, Convolution, when=is_periodic)
def eig_circulant(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """C = F^H diag(F c) F with the Fourier transform F: unitary, complex eigenvectors also of a
    real symmetric C"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    values = A.xp.reshape(symbol(A), (*A.batch_shape, n))
    report_finite(A.xp, values)
    return finish(
        A, to_result_dtype(A.xp, values, A.dtype), FFT(grid_of(A), like=A).H, k, which, is_hermitian
    )


@rule(eig, FFT)
def eig_fft(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """F is C on even vectors and -i S on odd ones, with real symmetric C and S of eigenvalues 1
    and -1; Kronecker over a grid"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    if len(A.grid) > 1:
        lines = (FFT._of((size,), A.inverse, A.context) for size in A.grid)
        return eig(Kronecker(*lines), k, which, method)
    if (few := few_pairs(A.xp, n, A.inverse, k, which)) is not None:
        values, V = (A.xp.asarray(x, dtype=A.dtype, device=A._context.device) for x in few)
        return values, Dense(V)._claim(STIEFEL)
    half = n // 2 + 1
    j = np.arange(n)
    even, odd = np.zeros((n, half)), np.zeros((n, n - half))
    for i in range(half):
        even[[i, -i % n], i] = 1 if i == -i % n else math.sqrt(0.5)
    for i in range(n - half):
        odd[[i + 1, n - i - 1], i] = math.sqrt(0.5), -math.sqrt(0.5)
    angles = 2 * np.pi * (np.outer(j, j) % max(n, 1)) / max(n, 1)
    sign = 1 if A.inverse else -1
    parts = [(even, np.cos(angles), 1), (odd, np.sin(angles), sign * 1j)]
    found = [
        (unit, basis, *np.linalg.eigh(basis.T @ M @ basis / math.sqrt(max(n, 1))))
        for basis, M, unit in parts
    ]
    values = np.concatenate([unit * np.sign(w) for unit, _, w, _ in found])
    V = np.concatenate([basis @ Q for _, basis, _, Q in found], axis=1)
    xp, device = A.xp, A._context.device
    vectors = Dense(xp.asarray(V, dtype=A.dtype, device=device))._claim(UNITARY)
    return finish(
        A, xp.asarray(values, dtype=A.dtype, device=device), vectors, k, which, is_hermitian
    )
