"""The rules of `cholesky`, `lu` and `qr`: factors that keep the structure of the operator."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backends import Array, adjoint, get, namespace_of
from ...dispatch import rule
from ...factors.structured import as_blocks, lapack_band
from ...operators import (
    Banded,
    Block,
    BlockDiag,
    Conjugate,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Scaled,
    ScaledIdentity,
    Triangular,
    Tridiagonal,
    Zero,
)
from ...operators.batch import broadcast_batch
from ...operators.rewrites import is_scattered
from ...operators.scaled import peek_scalar
from ...properties import POSITIVE_SEMIDEFINITE, Stiefel, Unitary
from ...status import Status
from ..common import (
    array_like,
    has_no_zero,
    identity_like,
    ignore_float_errors,
    is_square,
    operands_in_context,
    report_failure,
    report_finite,
    report_values,
    reports_nonfinite,
    seen_numbers,
    smaller_side,
    values_are_seen,
)
from ..orthonormal import completed, has_orthonormal_columns, orthonormal, qr_of_columns
from ..singular.rules import phase
from ..solve.inverse import all_square
from . import cholesky, lu, qr

# The rules of `lu` and `qr`: factors that keep the structure of the operator.


Factors = tuple[LinearOperator, ...]


def _by_operands(A: Any, factorise: Any, method: Any) -> Factors:
    """The factors of a Kronecker product or of blocks: of each operand, put together as they are."""
    if isinstance(A, BlockDiag) and (blocks := A.stack()) is not None:
        return tuple([as_blocks(X, len(A.operands)) for X in factorise(blocks, method)])
    each = zip(*(factorise(operand, method) for operand in operands_in_context(A)))
    return tuple([type(A)(*factors) for factors in each])


# --------------------------------------------------------------------------------------------------


@rule(lu, Identity | Diagonal | ScaledIdentity)
@reports_nonfinite
def lu_diagonal(A: Any, method: Any) -> Factors:
    """D = I I D"""
    I = identity_like(A)
    return I, I, A


@rule(lu, Permutation)
def lu_permutation(A: Any, method: Any) -> Factors:
    """P = P I I"""
    I = broadcast_batch(identity_like(A), A.batch_shape)
    return A, I, I


def triangle_needs_no_pivots(A: LinearOperator) -> bool:
    """Whether a triangle is upper, has ones on its diagonal, or has no zero there."""
    T: Any = A
    return is_square(T) and (not T.lower or T.unit or has_no_zero(T.xp.diagonal(T.A)))


@rule(lu, Triangular, when=triangle_needs_no_pivots)
@reports_nonfinite
def lu_triangular(A: Any, method: Any) -> Factors:
    """U = I I U, and L = I (L D^-1) D for the diagonal D of L"""
    I = identity_like(A)
    if not A.lower:
        return I, I, A
    if A.unit:
        return I, A, I
    d = A.xp.diagonal(A.A)
    report_values(A.xp, d)  # where no zero was only taken for granted
    with ignore_float_errors(A.xp):
        return I, Triangular(A.A / d[..., None, :], lower=True, unit=True), Diagonal(d)


@rule(lu, Scaled)
@reports_nonfinite
def lu_scaled(A: Any, method: Any) -> Factors:
    """c A = P L (c U) for A = P L U"""
    P, L, U = lu(operands_in_context(A)[0], method)
    return P, L, Scaled(A.scalar, U)


@rule(lu, Conjugate)
def lu_conjugate(A: Any, method: Any) -> Factors:
    """conj(A) = P conj(L) conj(U) for A = P L U"""
    P, L, U = lu(A.A, method)
    return P, L.conj(), U.conj()


@rule(lu, Kronecker | BlockDiag, when=all_square)
def lu_by_operands(A: Any, method: Any) -> Factors:
    """A ⊗ B = (P ⊗ Q) (L ⊗ M) (U ⊗ V) for A = P L U, B = Q M V; the same for diag(A, B)"""
    return _by_operands(A, lu, method)


# --------------------------------------------------------------------------------------------------


@rule(
    qr,
    orthonormal(
        Diagonal | ScaledIdentity | Triangular | LowRank | Tridiagonal | Banded,
        Scaled | Conjugate | Kronecker | BlockDiag | Product,
    ),
)
@reports_nonfinite
def qr_orthonormal(A: Any, method: Any) -> Factors:
    """Q = Q I"""
    return A, broadcast_batch(identity_like(A), A.batch_shape)


@rule(qr, Diagonal)
def qr_diagonal(A: Any, method: Any) -> Factors:
    """diag(d) = diag(d / |d|) diag(|d|)"""
    report_finite(A.xp, A.d, method="QR")
    return Unitary(Diagonal(phase(A.d))), Diagonal(A.xp.astype(A.xp.abs(A.d), A.dtype))


def is_upper_triangle(A: LinearOperator) -> bool:
    """Whether A is square, and an upper triangle if it is one."""
    return is_square(A) and not getattr(A, "lower", False)


@rule(qr, ScaledIdentity | Triangular, when=is_upper_triangle)
@reports_nonfinite
def qr_triangular(A: Any, method: Any) -> Factors:
    """R = I R"""
    return broadcast_batch(identity_like(A), A.batch_shape), A


@rule(qr, Scaled)
@reports_nonfinite
def qr_scaled(A: Any, method: Any) -> Factors:
    """c A = Q (c R) for A = Q R"""
    Q, R = qr(operands_in_context(A)[0], method)
    return broadcast_batch(Q, A.batch_shape), Scaled(A.scalar, R)


@rule(qr, Conjugate)
def qr_conjugate(A: Any, method: Any) -> Factors:
    """conj(A) = conj(Q) conj(R) for A = Q R"""
    Q, R = qr(A.A, method)
    return Q.conj(), R.conj()


def all_tall_or_all_wide(A: LinearOperator) -> bool:
    """Whether no operand has more rows than columns, or none has fewer."""
    shapes = [operand.shape[-2:] for operand in A.operands]
    return all(m >= n for m, n in shapes) or all(m <= n for m, n in shapes)


@rule(qr, Kronecker | BlockDiag, when=all_tall_or_all_wide)
def qr_by_operands(A: Any, method: Any) -> Factors:
    """A ⊗ B = (Q ⊗ P) (R ⊗ S) for A = Q R, B = P S, both tall or both wide; the same for
    diag(A, B)"""
    return _by_operands(A, qr, method)


def left_factor_is_unitary_or_tall(A: LinearOperator) -> bool:
    """Whether the first factor has orthonormal columns, and what remains as many in its basis as
    A."""
    Q = A.operands[0]
    return has_orthonormal_columns(Q) and smaller_side(A) == min(Q.shape[-1], A.shape[-1])


@rule(qr, Product, when=left_factor_is_unitary_or_tall)
def qr_orthonormal_times(A: Any, method: Any) -> Factors:
    """Q A = (Q P) R for A = P R and Q^H Q = I"""
    Q, *rest = operands_in_context(A)
    P, R = qr(Product(*rest), method)
    return Stiefel(Product(Q, P)), broadcast_batch(R, A.batch_shape)


@rule(qr, LowRank)
def qr_low_rank(A: Any, method: Any) -> Factors:
    """U C V^H = (Q P) [R; 0] for U = Q S and S C V^H = P R, which has as many rows as the rank"""
    xp, k = A.xp, smaller_side(A)
    Q, S = qr_of_columns(xp, A.U)
    inner = S if A.core is None else xp.matmul(S, A.core)
    right = xp.matmul(inner, adjoint(xp, A.U if A.V is None else A.V))
    P, R = qr(Dense(right), method)
    basis = Stiefel(xp.matmul(Q, P.to_dense()))
    if missing := k - basis.shape[-1]:
        return completed(basis, k), Block([[R], [Zero(missing, A.shape[-1], like=A)]])
    return basis, R


# The rules of `cholesky`: factors that keep the structure of the operator.


def report_positive(xp: Any, fine: Array, **details: Any) -> None:
    """Report NOT_POSITIVE_DEFINITE where it is not fine."""
    report_failure(xp, (fine, Status.NOT_POSITIVE_DEFINITE), method="Cholesky", **details)


# --------------------------------------------------------------------------------------------------


@rule(cholesky, Identity)
def cholesky_identity(A: Any, method: Any) -> LinearOperator:
    """I = I I^H"""
    return A


@rule(cholesky, ScaledIdentity)
@reports_nonfinite
def cholesky_scaled_identity(A: Any, method: Any) -> LinearOperator:
    """c I = (√c I) (√c I)^H"""
    return A._replace(c=_positive_root(A.c))


@rule(cholesky, Diagonal)
@reports_nonfinite
def cholesky_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(d) = diag(√d) diag(√d)"""
    return Diagonal(_positive_root(A.d))


def _positive_root(c: Any) -> Any:
    """√c of what must be positive: NaN and a status where it is not."""
    xp = namespace_of(c)
    if xp is None:  # a number
        return _positive_root(np.asarray(c)).real.item()
    positive = (xp.real(c) > 0) & (xp.imag(c) == 0)
    report_positive(xp, xp.all(positive, axis=-1) if c.ndim else positive)
    with ignore_float_errors(xp):
        root = xp.where(positive, xp.sqrt(xp.real(c)), math.nan)
    return xp.asarray(xp.astype(root, c.dtype) if xp.is_complex(c) else root)


def scalar_is_positive(A: LinearOperator) -> bool:
    """Whether the scalar is positive (taken for granted of a real one that cannot be seen)."""
    c: Any = A.scalar  # type: ignore[attr-defined]
    values = seen_numbers(c)
    if values is None:
        return not A.xp.is_complex(c)
    return bool(((values.imag == 0) & (values.real > 0)).all())


@rule(cholesky, Scaled, when=scalar_is_positive)
def cholesky_scaled(A: Any, method: Any) -> LinearOperator:
    """c A = (√c L) (√c L)^H for A = L L^H and c > 0"""
    return Scaled(_positive_root(A.scalar), cholesky(operands_in_context(A)[0], method))


@rule(cholesky, Conjugate)
def cholesky_conjugate(A: Any, method: Any) -> LinearOperator:
    """conj(A) = conj(L) conj(L)^H for A = L L^H"""
    return cholesky(A.A, method).conj()


@rule(cholesky, BlockDiag, when=all_square)
def cholesky_block_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(A, B) = diag(L, M) diag(L, M)^H for A = L L^H, B = M M^H"""
    return _by_operands(A, lambda block, method: (cholesky(block, method),), method)[0]


@rule(cholesky, Kronecker, when=all_square)
def cholesky_kronecker(A: Any, method: Any) -> LinearOperator:
    """A ⊗ B = (L ⊗ M) (L ⊗ M)^H for A = L L^H, B = M M^H; or for -A and -B, both negative"""
    return Kronecker(*(cholesky(factor, method) for factor in _of_one_sign(operands_in_context(A))))


def _of_one_sign(factors: tuple[LinearOperator, ...]) -> tuple[LinearOperator, ...]:
    """Factors that are definite only up to numbers whose product is 1, such as two negative
    ones, made positive if seen to be so."""
    known = all(factor.properties & POSITIVE_SEMIDEFINITE for factor in factors)
    if known or any(factor.batch_shape or 0 in factor.shape for factor in factors):
        return factors
    values = [peek_scalar(phase(factor[0, 0])) for factor in factors]
    if None in values or set(values) == {1} or abs(np.prod(values) - 1) > 1e-6:
        return factors
    return tuple(Scaled(value.conjugate(), factor) for value, factor in zip(values, factors))


@rule(cholesky, Tridiagonal)
@reports_nonfinite
def cholesky_tridiagonal(A: Any, method: Any) -> LinearOperator:
    """T = L L^H with two diagonals in L: δ_i+1 = a_i+1 - |b_i|^2 / δ_i, l_ii = √δ_i, l_i+1,i =
    b_i / √δ_i"""
    xp = A.xp
    if not A.shape[-1]:
        return identity_like(A, 0)
    with ignore_float_errors(xp):
        if xp.name == "numpy" and not A.batch_shape and (L := _by_host(A)) is not None:
            return L
        pivots = _pivots(xp, xp.real(A.diag), xp.abs(A.lower) if A.is_complex else A.lower)
        fine = xp.all(pivots > 0, axis=-1) & _is_mirrored(xp, A.lower, A.upper)
        if A.is_complex:
            fine = fine & _is_mirrored(xp, A.diag, A.diag)
        d = xp.sqrt(xp.where(fine[..., None], pivots, math.nan))
        report_positive(xp, fine)
        return Banded._of((xp.astype(d, A.dtype), A.lower / d[..., :-1]), (0, -1), *A.shape[-2:])


def _by_host(A: Any) -> LinearOperator | None:
    """L by LAPACK's pttrf, which gives L D L^H with a unit diagonal in L; None where all is not
    plainly well."""
    from scipy.linalg import get_lapack_funcs

    diag = np.real(A.diag)
    is_mirrored = A.lower is A.upper or np.array_equal(A.lower, np.conj(A.upper))
    is_real = not A.is_complex or np.array_equal(diag, A.diag)
    if A.shape[-1] < 2 or A.dtype.itemsize < 4 or not is_mirrored or not is_real:
        return None
    d, multipliers, failure = get_lapack_funcs("pttrf", (diag, A.lower))(diag, A.lower)
    if failure or not np.all(d > 0):
        return None
    np.sqrt(d, out=d)
    multipliers *= d[:-1]
    return Banded._of((d.astype(A.dtype, copy=False), multipliers), (0, -1), *A.shape[-2:])


def _is_mirrored(xp: Any, below: Array, above: Array) -> Array:
    """Whether a diagonal is the conjugate of its mirror image, to the accuracy of the dtype."""
    limit = xp.eps(below.dtype) ** 0.5 * (xp.abs(below) + xp.abs(above))
    return xp.all(xp.abs(above - xp.conj(below)) <= limit, axis=-1)


def _pivots(xp: Any, a: Array, b: Array) -> Array:
    """δ_i+1 = a_i+1 - b_i^2 / δ_i, in parts of the largest entry, lest squares overflow."""
    scale = xp.stop_gradient(xp.max(xp.abs(a), axis=-1, keepdims=True))
    scale = xp.where((scale > 0) & xp.isfinite(scale), scale, 1)
    return scale * xp.tridiagonal_pivots(a / scale, (b / scale) ** 2)


def band_is_on_the_host(A: LinearOperator) -> bool:
    """Whether A is square and its values can be seen by LAPACK, with no derivative asked."""
    return (
        A.shape[-1] == A.shape[-2] != 0
        and not is_scattered(A)
        and values_are_seen(A)
        and all(A.xp.peek(d) is not None for d in A.arrays())
    )


@rule(cholesky, Banded, when=band_is_on_the_host)
def cholesky_banded(A: Any, method: Any) -> LinearOperator:
    """A = L L^H, where L has the band of A: n b^2 flops for b diagonals below the main one"""
    from scipy.linalg import LinAlgError, cholesky_banded

    xp, n, width = A.xp, A.shape[-1], max(map(abs, A.offsets))
    host = A._map(xp.to_numpy)
    band, mirror = (lapack_band(B, width, 0) for B in (host, host._transpose()._conj()))
    fine = np.array(np.all(_is_mirrored(get("numpy"), band, np.conj(mirror)), axis=-1))
    for at in np.ndindex(A.batch_shape):
        try:
            band[at] = cholesky_banded(band[at], lower=True) if fine[at] else np.nan
        except LinAlgError:
            fine[at], band[at] = False, np.nan
    report_positive(xp, xp.asarray(fine, device=A._context.device))
    factor = [array_like(A, band[..., k, : n - k]) for k in range(width + 1)]
    return Banded(factor, range(0, -width - 1, -1), (n, n))
