"""Orthonormal columns as operators: some of them, all of them in another order, and those that are
missing to a basis.

What `svd`, `qr` and `nullspace` return is put together from these, so it keeps the structure of
its parts.
"""

from __future__ import annotations

from typing import Any

from ..backends import inner_products, matrix_inverse
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
