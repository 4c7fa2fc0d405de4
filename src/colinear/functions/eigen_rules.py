"""The rules of `eig`: where structure gives the eigenvalues, and eigenvectors as an operator.

Each finds pairs in any order, as few as `k` and `which` allow, and `ordered` picks and sorts what was asked for. Values are real
for a self-adjoint A and complex for any other. Eigenvectors of circulants, periodic convolutions and permutations are Fourier's,
unitary and complex, also where A is real and symmetric: that keeps them O(n log n).
"""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff
from ..backends import Array
from ..dispatch import rule
from ..info import Status, planning
from ..methods import EIGEN, fitting
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag, hstack
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity, scalar_of
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import beside
from ..operators.triangular import Triangular
from ..operators.zero import Zero
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL
from ._arrays import identity_like, narrow, quiet, seen, wide
from ._spectral import (
    by_key,
    columns,
    completed,
    reversed_transpose,
    triangular_vectors,
)
from ._values import report_finite, report_status, reports_nonfinite
from .eigen import eig, report_pairs
from .eigen_choice import is_affordable
from .eigen_shared import (
    Pairs,
    asked,
    filled,
    finish,
    not_empty,
    typed,
    with_zeros,
)

PARALLEL_TO_NULL = "the eigenvalue 0 is defective, or close to it: some eigenvectors are almost parallel"


@rule(eig, Identity | ScaledIdentity)
@reports_nonfinite
def eig_identity(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """c I has the eigenvalue c, and I for eigenvectors"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    c = scalar_of(A)
    I = identity_like(A, n)
    return typed(A.xp, beside(c) * filled(A, 1.0, k), is_hermitian), I if k == n else I[:, :k]._claim(STIEFEL)


@rule(eig, Zero)
def eig_zero(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """0 has the eigenvalue 0, and I for eigenvectors"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    I = identity_like(A, n)
    return typed(A.xp, filled(A, 0.0, k, A.batch_shape), is_hermitian), I if k == n else I[:, :k]._claim(STIEFEL)


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
    xp, M = A.xp, wide(A.xp, A._dense())
    T = xp.flip(M, axis=(-2, -1)) if A.lower else M
    t = xp.diagonal(T)
    places = by_key(xp, typed(xp, t, is_hermitian), which)[..., :k]
    if is_hermitian:
        rising = xp.argsort(xp.take_along_axis(xp.real(t), places, axis=-1), axis=-1, stable=True)
        places = xp.take_along_axis(places, rising, axis=-1)
    with quiet(xp):
        X, Y = triangular_vectors(xp, T, places), triangular_vectors(xp, reversed_transpose(xp, T), n - 1 - places)
        X, x = _normalised(xp, X, places)
        y = _normalised(xp, Y, n - 1 - places)[1]
        sensitivity = 1 / (x * y)  # |y| |x| / |y^H x|: x and y share one entry
    X = xp.flip(X, axis=-2) if A.lower else X
    values = typed(xp, xp.take_along_axis(t, places, axis=-1), is_hermitian)
    if not is_hermitian:
        X, M = (xp.astype(Z, values.dtype) for Z in (X, M))
    with quiet(xp):
        chosen = fitting("eig", method, *EIGEN)
        report_pairs(xp, M, values, X, None if is_hermitian else sensitivity, chosen, "substitution", A)
    return narrow(xp, values, A.dtype), Dense(narrow(xp, X, A.dtype))._claim(STIEFEL if is_hermitian else 0)


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
        return typed(A.xp, filled(A, 1.0, k, batch), is_hermitian), Dense(A.Q[..., :k])._claim(STIEFEL)
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
def eig_low_rank(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """U V^H has the eigenvalues of R V^H Q for U = Q R, with eigenvectors Q z, and 0 for the orthogonal complement of V"""
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
        return finish(A, values, Product(completed(Q, xp), BlockDiag(Z, Identity(n - r))), k, which, True)
    P = autodiff.qr(xp, V)[0]
    status = _status_of_basis(A, xp.matmul(xp.conj(xp.matrix_transpose(P)), (Dense(Q) @ Z)._dense()))
    known = seen(xp, status)
    if not planning() and known is not None and known.any() and is_affordable(A):  # U may lack rank: then 0 need not be defective
        return eig.base(A, k, which, method)
    report_status(xp, status, message=PARALLEL_TO_NULL)
    null = columns(completed(P, xp), xp.arange(r, n, device=A._context.device), n - r)
    return finish(A, values, hstack(Product(Dense(Q), Z), null), k, which, False)


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
    """Whether no eigenvectors Q z nearly lie in the orthogonal complement P of V, from P^H Q z: else they are no basis with it."""
    xp = A.xp
    with quiet(xp):
        smallest = xp.min(xp.svd(overlap)[1], axis=-1)
    fine = smallest > math.sqrt(xp.eps(A.dtype))
    return xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE))
