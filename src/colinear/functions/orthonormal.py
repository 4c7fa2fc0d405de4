"""Orthonormal columns as operators: some of them, all of them in another order, and those that are
missing to a basis.

What `svd`, `qr` and `nullspace` return is put together from these, so it keeps the structure of
its parts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import autodiff
from ..backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    inner_products,
    matrix_inverse,
    mesh_module,
)
from ..dispatch import Pattern
from ..operators import (
    Adjoint,
    Identity,
    LinearOperator,
    LowRank,
    Sliced,
    Sum,
    Transpose,
    hstack,
)
from ..operators.context import kind_of
from ..properties import SELF_ADJOINT, STIEFEL, UNITARY, Stiefel
from ..status import is_unseen, take_for_granted
from .common import identity_like, to_computing_dtype, to_result_dtype


def orthonormal(*patterns: Any) -> Pattern:
    """The pattern of operators with orthonormal columns, of any class: more specific than each
    of the patterns that it meets."""
    whole = Stiefel | Stiefel
    for pattern in patterns:
        whole = whole | Stiefel[pattern]
    return whole


def has_orthonormal_columns(A: LinearOperator) -> bool:
    """Whether A^H A = I is known."""
    return bool(A.properties & STIEFEL)


def has_orthonormal_rows(A: LinearOperator) -> bool:
    """Whether A A^H = I is known: A is unitary, or was made as the adjoint or transpose of
    orthonormal columns."""
    inside = getattr(A, "A", None) if type(A) in (Adjoint, Transpose) else None
    made_from = (A.__dict__.get("_adjoint_of"), A.__dict__.get("_transpose_of"), inside)
    return bool(A.properties & UNITARY) or any(
        B is not None and has_orthonormal_columns(B) for B in made_from
    )


def first_columns(A: LinearOperator, k: int) -> LinearOperator:
    """The first k columns; of orthonormal ones they are known to be so."""
    return (
        A if k == A.shape[-1] else Sliced(A, slice(None), range(k))._claim(A.properties & STIEFEL)
    )


def _is_first_of_identity(U: LinearOperator) -> bool:
    """Whether U is the first columns of an identity."""
    return (
        isinstance(U, Sliced)
        and isinstance(U.A, Identity)
        and U.rows == range(U.shape[-2])
        and U.cols == range(U.shape[-1])
    )


def complement(U: LinearOperator) -> LinearOperator:
    """Orthonormal columns that complete those of U (m x r) to a basis: m x (m - r), kept as m x r
    numbers.

    They are the last columns of the block reflector H = I - W (I + U_1^H S)^-1 W^H with W = U + [S;
    0], where U_1 = S |U_1| is the polar decomposition of the first r rows: H U = -[S; 0], and I +
    |U_1| is never ill-conditioned. Any unitary S would do, so it has no derivative.
    """
    m, r = U.shape[-2:]
    if r in (0, m) or _is_first_of_identity(U):
        return Sliced(identity_like(U, m), slice(None), range(r, m))._claim(STIEFEL)
    xp = U.xp
    M = to_computing_dtype(xp, U.to_dense())
    head = M[..., :r, :]
    X, _, Yh = xp.svd(xp.stop_gradient(head))
    S, I = xp.matmul(X, Yh), xp.eye(r, **kind_of(M))
    W = xp.concat([head + S, M[..., r:, :]], axis=-2)
    capacitance = I + inner_products(xp, head, S)
    core = -matrix_inverse(xp, capacitance)
    W, core = to_result_dtype(xp, W, U.dtype), to_result_dtype(xp, core, U.dtype)
    H = Sum(identity_like(U, m), LowRank(W, core=core))._claim(UNITARY | SELF_ADJOINT)
    return Sliced(H, slice(None), range(r, m))._claim(STIEFEL)


def completed(U: LinearOperator, k: int) -> LinearOperator:
    """Orthonormal columns, and as many more of the complement as make k."""
    r = U.shape[-1]
    if k <= r:
        return first_columns(U, k)
    if r == 0 or _is_first_of_identity(U):
        return first_columns(identity_like(U, U.shape[-2]), k)
    return hstack(U, first_columns(complement(U), k - r))._claim(STIEFEL)


# A = Q R for many rows and few columns on a device, where Householder's reflections reach a hundredth
# of the rate of a product: Cholesky's factor of A^H A, and that of Q^H Q once more (Yamamoto et al.
# 2015, "Roundoff error analysis of the CholeskyQR2 algorithm").
#
# With the first factor R_1, Q_1 = A R_1^-1 is as far from orthonormal as u κ(A)^2. Where that is below
# 1, so that Q_1 is well-conditioned, its own factor makes the columns orthonormal to rounding.


FEWEST_NUMBERS = 2**16  # of a matrix on a device, for which a dozen products take less time
TALL = 4  # rows for each column
FAR = 0.5  # |Q_1^H Q_1 - I| up to which all singular values of Q_1 are near to 1


def qr_of_columns(xp: Any, A: Array) -> tuple[Array, Array]:
    """Q and R of A = Q R, in derivatives too: by products where A is tall, on a device, and taken to
    have a condition below u^-1/2, which is asked at the end of the call."""
    return autodiff.qr(xp, A, partial(_factored, xp))


def are_tall_on_device(xp: Any, A: Array) -> bool:
    """Whether A = Q R by products pays, and the call can be run again where A is too
    ill-conditioned for it."""
    (*batch, m, n), size = A.shape, A.dtype.itemsize
    if n == 0 or m < TALL * n or m * n < FEWEST_NUMBERS or batch or size == 2:
        return False
    is_free = is_unseen(A) and not (xp.is_traced(A) or xp.is_compiling())
    return is_free and mesh_module(xp.device_of(A)) is None


def _factored(xp: Any, A: Array) -> tuple[Array, Array]:
    if not are_tall_on_device(xp, A):
        return xp.qr(A)
    R, inverse, _ = _triangle(xp, A)
    Q = xp.matmul(A, inverse)  # Q_1 = A R_1^-1
    # refined once, A - Q_1 R_1 is as small as after substitution, which is slower than products
    Q = Q + xp.matmul(A - xp.matmul(Q, R), inverse)
    again, inverse, gram = _triangle(xp, Q)
    distance = xp.vector_norm(gram - eye_like(xp, gram), axis=(-2, -1))
    if not take_for_granted(_is_near, distance):
        return xp.qr(A)
    return xp.matmul(Q, inverse), xp.matmul(again, R)


def _triangle(xp: Any, A: Array) -> tuple[Array, Array, Array]:
    """R and R^-1 of A^H A = R^H R, and A^H A; NaN where A has no full rank."""
    gram = hermitian(xp, inner_products(xp, A, A))
    L = xp.cholesky_or_nan(gram)
    inverse = xp.solve_triangular(L, eye_like(xp, L))
    return adjoint(xp, L), adjoint(xp, inverse), gram


def _is_near(distance: Any) -> bool:
    """Whether Q_1 is so near to orthonormal; not where it is NaN."""
    return bool(distance < FAR)
