"""The rules of `lu` and `qr`: factors that keep the structure of the operator."""

from __future__ import annotations

from typing import Any

from .. import autodiff
from ..dispatch import rule
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.batching import broadcast_batch
from ..operators.block import Block, BlockDiag
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.transposed import Conjugate
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from ..properties import STIEFEL, UNITARY
from ._arrays import identity_like
from ._columns import completed, has_orthonormal_columns, orthonormal
from ._values import has_no_zero, placed, report_finite, reports_nonfinite
from .factorisations import lu, qr
from .inverse import all_square
from .singular_rules import phase

Factors = tuple[LinearOperator, LinearOperator, LinearOperator]


# ---------------------------------------------------------------------------------------------------- lu


@rule(lu, Identity | Diagonal | ScaledIdentity)
@reports_nonfinite
def lu_diagonal(A: Any, method: Any) -> Factors:
    """D = I I D"""
    I = identity_like(A, A.shape[-1])
    return I, I, A


@rule(lu, Permutation)
def lu_permutation(A: Any, method: Any) -> Factors:
    """P = P I I"""
    I = broadcast_batch(identity_like(A, A.shape[-1]), A.batch_shape)
    return A, I, I


def triangle_needs_no_pivots(A: LinearOperator) -> bool:
    """Whether a triangle is upper, has ones on its diagonal, or has no zero there."""
    T: Any = A
    return T.shape[-1] == T.shape[-2] and (not T.lower or T.unit or has_no_zero(T.xp.diagonal(T.A)))


@rule(lu, Triangular, when=triangle_needs_no_pivots)
@reports_nonfinite
def lu_triangular(A: Any, method: Any) -> Factors:
    """U = I I U, and L = I (L D^-1) D for the diagonal D of L"""
    I = identity_like(A, A.shape[-1])
    if not A.lower or A.unit:
        return (I, I, A) if not A.lower else (I, A, I)
    d = A.xp.diagonal(A.A)
    return I, Triangular(A.A / d[..., None, :], lower=True, unit=True), Diagonal(d)


@rule(lu, Scaled)
@reports_nonfinite
def lu_scaled(A: Any, method: Any) -> Factors:
    """c A = P L (c U) for A = P L U"""
    P, L, U = lu(placed(A)[0], method)
    return P, L, Scaled(A.scalar, U)


@rule(lu, Conjugate)
def lu_conjugate(A: Any, method: Any) -> Factors:
    """conj(A) = P conj(L) conj(U) for A = P L U"""
    P, L, U = lu(A.A, method)
    return P, L.conj(), U.conj()


@rule(lu, Kronecker, when=all_square)
def lu_kronecker(A: Any, method: Any) -> Factors:
    """A ⊗ B = (P ⊗ Q) (L ⊗ M) (U ⊗ V) for A = P L U, B = Q M V"""
    P, L, U = (Kronecker(*factors) for factors in zip(*(lu(factor, method) for factor in placed(A))))
    return P, L, U


@rule(lu, BlockDiag, when=all_square)
def lu_block_diagonal(A: Any, method: Any) -> Factors:
    """diag(A, B) = diag(P, Q) diag(L, M) diag(U, V) for A = P L U, B = Q M V"""
    P, L, U = (BlockDiag(*factors) for factors in zip(*(lu(block, method) for block in placed(A))))
    return P, L, U


# ---------------------------------------------------------------------------------------------------- qr


@rule(
    qr,
    orthonormal(
        Diagonal | ScaledIdentity | Triangular | LowRank | Tridiagonal | Banded,
        Scaled | Conjugate | Kronecker | BlockDiag | Product,
    ),
)
@reports_nonfinite
def qr_orthonormal(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """Q = Q I"""
    return A, broadcast_batch(identity_like(A, A.shape[-1]), A.batch_shape)


@rule(qr, Diagonal)
def qr_diagonal(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """diag(d) = diag(d / |d|) diag(|d|)"""
    report_finite(A.xp, A.d, method="QR")
    return Diagonal(phase(A.d))._claim(UNITARY), Diagonal(A.xp.astype(A.xp.abs(A.d), A.dtype))


@rule(qr, ScaledIdentity)
@reports_nonfinite
def qr_scaled_identity(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """c I = I (c I)"""
    return broadcast_batch(identity_like(A, A.shape[-1]), A.batch_shape), A


def is_upper_triangle(A: LinearOperator) -> bool:
    """Whether a triangle is square and upper."""
    return A.shape[-1] == A.shape[-2] and not A.lower  # type: ignore[attr-defined]


@rule(qr, Triangular, when=is_upper_triangle)
@reports_nonfinite
def qr_triangular(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """R = I R"""
    return identity_like(A, A.shape[-1]), A


@rule(qr, Scaled)
@reports_nonfinite
def qr_scaled(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """c A = Q (c R) for A = Q R"""
    Q, R = qr(placed(A)[0], method)
    return broadcast_batch(Q, A.batch_shape), Scaled(A.scalar, R)


@rule(qr, Conjugate)
def qr_conjugate(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """conj(A) = conj(Q) conj(R) for A = Q R"""
    Q, R = qr(A.A, method)
    return Q.conj(), R.conj()


def all_tall_or_all_wide(A: LinearOperator) -> bool:
    """Whether no operand has more rows than columns, or none has fewer."""
    shapes = [operand.shape[-2:] for operand in A.operands]
    return all(m >= n for m, n in shapes) or all(m <= n for m, n in shapes)


@rule(qr, Kronecker, when=all_tall_or_all_wide)
def qr_kronecker(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """A ⊗ B = (Q ⊗ P) (R ⊗ S) for A = Q R, B = P S, both tall or both wide"""
    Q, R = (Kronecker(*factors) for factors in zip(*(qr(factor, method) for factor in placed(A))))
    return Q, R


@rule(qr, BlockDiag, when=all_tall_or_all_wide)
def qr_block_diagonal(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """diag(A, B) = diag(Q, P) diag(R, S) for A = Q R, B = P S, both tall or both wide"""
    Q, R = (BlockDiag(*factors) for factors in zip(*(qr(block, method) for block in placed(A))))
    return Q, R


def left_factor_is_unitary_or_tall(A: LinearOperator) -> bool:
    """Whether the first factor has orthonormal columns, and what remains as many in its basis as A."""
    Q = A.operands[0]
    return has_orthonormal_columns(Q) and min(A.shape[-2:]) == min(Q.shape[-1], A.shape[-1])


@rule(qr, Product, when=left_factor_is_unitary_or_tall)
def qr_orthonormal_times(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """Q A = (Q P) R for A = P R and Q^H Q = I"""
    Q, *rest = placed(A)
    P, R = qr(Product(*rest), method)
    return Product(Q, P)._claim(STIEFEL), broadcast_batch(R, A.batch_shape)


@rule(qr, LowRank)
def qr_low_rank(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """U C V^H = (Q P) [R; 0] for U = Q S and S C V^H = P R, which has as many rows as the rank"""
    xp, k = A.xp, min(A.shape[-2:])
    Q, S = autodiff.qr(xp, A.U)
    inner = S if A.core is None else xp.matmul(S, A.core)
    right = xp.matmul(inner, xp.conj(xp.matrix_transpose(A.U if A.V is None else A.V)))
    P, R = qr(Dense(right), method)
    basis = Dense(xp.matmul(Q, P.to_dense()))._claim(STIEFEL)
    if basis.shape[-1] == k:
        return basis, R
    return completed(basis, k), Block([[R], [Zero(k - basis.shape[-1], A.shape[-1], like=A)]])
