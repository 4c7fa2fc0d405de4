"""The rules of `svd`, `rank` and `cond`: families, and compositions from the decompositions of
their operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from operator import mul
from typing import Any

import numpy as np

from ...backends import Array, adjoint, eye_like, namespace_of, positive_or_one
from ...dispatch import rule
from ...factors.function import KroneckerFunction
from ...factors.inverse import Inverse
from ...info import is_detailed
from ...operators import (
    Adjoint,
    BlockDiag,
    Circulant,
    Conjugate,
    Convolution,
    Dense,
    Diagonal,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sum,
    Toeplitz,
    Transpose,
    Tridiagonal,
    Zero,
    hstack,
)
from ...operators.batch import broadcast_batch
from ...operators.scaled import beside
from ...properties import SelfAdjoint, Stiefel, Unitary
from ..common import (
    filled,
    identity_like,
    ignore_float_errors,
    in_groups,
    operands_in_context,
    outer,
    reciprocal,
    reports_nonfinite,
    smaller_side,
    to_result_dtype,
)
from ..orthonormal import (
    complement,
    completed,
    first_columns,
    has_orthonormal_columns,
    has_orthonormal_rows,
    orthonormal,
    qr_of_columns,
)
from ..solve.inverse import all_square
from ..spectrum import eig
from ..spectrum.order import end_to_end, fourier_basis, is_periodic, padded, reordered, symbol
from . import Triplets, check_tolerance, cond, count_triplets, rank, svd, triplets_like

# The rules of `svd`, `rank` and `cond`.
#
# `svd` promises min(m, n) singular values (or k), so where the parts give fewer (a low rank, a
# tall factor beside a wide one) zeros are added, and the columns of U and V are completed to
# orthonormal ones by `complement`, which keeps no more numbers than the parts have.


DIAGONALISED = SelfAdjoint[KroneckerSum | Sum | Toeplitz | Tridiagonal | Convolution]
COMPOSED = Kronecker | BlockDiag | Product | Scaled | Transpose | Adjoint | Conjugate | Inverse
SIMPLE = Diagonal | ScaledIdentity | Circulant | Convolution | LowRank | Zero | Projection


# --------------------------------------------------------------------------------------------------


def sorted_triplets(
    left: LinearOperator, s: Array, right: LinearOperator, k: int, places: Any = (None, None)
) -> Triplets:
    """Triplets in any order as `svd` returns them; `places`: of their columns in `left` and in
    `right`."""
    xp = namespace_of(s)
    order = xp.argsort(-s, axis=-1, stable=True)
    U, V = (reordered(Q, order, k, where) for Q, where in zip((left, right), places))
    return U, padded(xp, xp.take_along_axis(s, order, axis=-1), k), V


def phase(x: Any) -> Any:
    """x / |x|, and 1 where x is zero."""
    xp = namespace_of(x)
    if xp is None:
        return x / abs(x) if x else 1.0
    size = xp.abs(x)
    with ignore_float_errors(xp):  # infinity by infinity
        return xp.asarray(xp.where(size > 0, x / positive_or_one(xp, size), 1))


def _with_phases(U: LinearOperator, d: Array) -> LinearOperator:
    """U diag(d), |d| = 1"""
    return Stiefel(Product(U, Unitary(Diagonal(d))))


# --------------------------------------------------------------------------------------------------


@rule(svd, orthonormal(COMPOSED, SIMPLE, DIAGONALISED, KroneckerFunction))
@reports_nonfinite
def svd_orthonormal(A: Any, k: Any, method: Any) -> Triplets:
    """Q = Q I I^H: every singular value is 1"""
    k = count_triplets(A, k)
    I = broadcast_batch(identity_like(A), A.batch_shape)
    return first_columns(A, k), filled(A, 1.0, *A.batch_shape, k), first_columns(I, k)


@rule(svd, Zero)
def svd_zero(A: Any, k: Any, method: Any) -> Triplets:
    """0 = I 0 I^H"""
    U, ones, V = triplets_like(A, count_triplets(A, k))
    return U, 0 * ones, V


@rule(svd, ScaledIdentity)
@reports_nonfinite
def svd_scaled_identity(A: Any, k: Any, method: Any) -> Triplets:
    """c I = (c / |c|) |c| I^H"""
    k = count_triplets(A, k)
    I = first_columns(identity_like(A), k)
    s = beside(abs(A.c)) * filled(A, 1.0, k)
    return Stiefel(Scaled(phase(A.c), I)), s, broadcast_batch(I, A.batch_shape)


@rule(svd, Diagonal)
@reports_nonfinite
def svd_diagonal(A: Any, k: Any, method: Any) -> Triplets:
    """diag(d) = diag(d / |d|) diag(|d|) I^H, sorted"""
    phases = Unitary(Diagonal(phase(A.d)))
    return sorted_triplets(phases, A.xp.abs(A.d), identity_like(A), count_triplets(A, k))


@rule(svd, Circulant | Convolution, when=is_periodic)
@reports_nonfinite
def svd_circulant(A: Any, k: Any, method: Any) -> Triplets:
    """C = F^H diag(λ) F: U and V are Fourier bases, complex even where C is real"""
    values = A.xp.reshape(symbol(A), A.shape[:-1])
    F = fourier_basis(A)
    s = to_result_dtype(A.xp, A.xp.abs(values), A.dtype)
    return sorted_triplets(_with_phases(F, phase(values)), s, F, count_triplets(A, k))


@rule(svd, Projection)
@reports_nonfinite
def svd_projection(A: Any, k: Any, method: Any) -> Triplets:
    """Q Q^H = Q I Q^H: r singular values are 1, the others 0"""
    k, xp, Q = count_triplets(A, k), A.xp, Stiefel(A.Q)
    U = completed(Q, k)
    return U, padded(xp, filled(A, 1.0, *A.batch_shape, Q.shape[-1]), k), U


@rule(svd, LowRank)
def svd_low_rank(A: Any, k: Any, method: Any) -> Triplets:
    """U C V^H = (Q X) Σ (P Y)^H for U = Q R, V = P S, and R C S^H = X Σ Y^H, which is as small
    as the rank"""
    Q, core, P = compressed(A)
    k, xp = count_triplets(A, k), A.xp
    X, s, Y = svd(Dense(core), min(k, *core.shape[-2:]), method)
    U, V = (Stiefel(xp.matmul(B, Z.to_dense())) for B, Z in ((Q, X), (P, Y)))
    return completed(U, k), padded(xp, s, k), completed(V, k)


def compressed(A: Any) -> tuple[Array, Array, Array]:
    """Q, R C S^H and P of U C V^H with U = Q R and V = P S: the same singular values in a core
    of the size of the rank."""
    xp = A.xp
    Q, R = _orthonormal_columns(xp, A.U)
    P, S = (Q, R) if A.V is None else _orthonormal_columns(xp, A.V)
    inner = R if A.core is None else xp.matmul(R, A.core)
    return Q, xp.matmul(inner, adjoint(xp, S)), P


def _orthonormal_columns(xp: Any, U: Array) -> tuple[Array, Array]:
    """Q and R with U = Q R. Of a U that is not tall Q is I, which has derivatives also where the
    triangle would be singular."""
    m, n = U.shape[-2:]
    if m > n:
        return qr_of_columns(xp, U)
    return xp.broadcast_to(eye_like(xp, U[..., :m]), (*U.shape[:-2], m, m)), U


def eigenvectors_are_structured(A: LinearOperator) -> bool:
    """Whether `eig` has a rule for A."""
    return not eig.find(A).is_base


@rule(svd, DIAGONALISED, when=eigenvectors_are_structured)
def svd_self_adjoint(A: Any, k: Any, method: Any) -> Triplets:
    """A = (Q sign(Λ)) |Λ| Q^H for A = Q Λ Q^H"""
    k = count_triplets(A, k)
    values, Q = eig(A, max(k, 1), "LM")
    phases = A.xp.astype(phase(values), A.dtype)
    return sorted_triplets(_with_phases(Q, phases), A.xp.abs(values), Q, k)


# The rules of `svd`, `rank` and `cond` for compositions, from the decompositions of their
# operands.


@rule(svd, Scaled)
@reports_nonfinite
def svd_scaled(A: Any, k: Any, method: Any) -> Triplets:
    """c A = (c / |c| U) (|c| Σ) V^H"""
    U, s, V = svd(operands_in_context(A)[0], count_triplets(A, k), method)
    s = A.xp.astype(beside(abs(A.scalar)) * s, A.xp.real_dtype(A.dtype))
    return Stiefel(Scaled(phase(A.scalar), U)), s, broadcast_batch(V, A.batch_shape)


@rule(svd, Adjoint | Transpose | Conjugate)
def svd_turned(A: Any, k: Any, method: Any) -> Triplets:
    """A^H = V Σ U^H for A = U Σ V^H, and conj(A) = conj(U) Σ conj(V)^H; both for A^T"""
    U, s, V = svd(A.A, k, method)
    U, V = (U, V) if isinstance(A, Conjugate) else (V, U)
    return (U, s, V) if isinstance(A, Adjoint) else (U.conj(), s, V.conj())


def left_factor_is_orthonormal(A: LinearOperator) -> bool:
    """Whether the first factor is known to have orthonormal columns."""
    return has_orthonormal_columns(A.operands[0])


def right_factor_is_orthonormal(A: LinearOperator) -> bool:
    """Whether the last factor is known to have orthonormal rows."""
    return has_orthonormal_rows(A.operands[-1])


@rule(svd, Product, when=left_factor_is_orthonormal)
def svd_orthonormal_times(A: Any, k: Any, method: Any) -> Triplets:
    """Q A = (Q U) Σ V^H for A = U Σ V^H and Q^H Q = I"""
    k, (Q, *rest) = count_triplets(A, k), operands_in_context(A)
    U, s, V = svd(B := Product(*rest), min(k, *B.shape[-2:]), method)
    QU = Stiefel(Product(Q, U))
    if k > U.shape[-1]:  # then U is square, and what completes Q completes Q U
        QU = Stiefel(hstack(QU, first_columns(complement(Q), k - U.shape[-1])))
    s = A.xp.broadcast_to(padded(A.xp, s, k), (*A.batch_shape, k))
    return QU, s, broadcast_batch(completed(V, k), A.batch_shape)


@rule(svd, Product, when=right_factor_is_orthonormal)
def svd_times_orthonormal(A: Any, k: Any, method: Any) -> Triplets:
    """A Q^H = U Σ (Q V)^H for A = U Σ V^H and Q^H Q = I"""
    *rest, Q = operands_in_context(A)
    flipped = Product._of((Stiefel(Q.H), Product(*rest).H))
    V, s, U = svd_orthonormal_times(flipped, k, method)
    return U, s, V


@rule(svd, Kronecker)
def svd_kronecker(A: Any, k: Any, method: Any) -> Triplets:
    """A ⊗ B = (U ⊗ W) (Σ ⊗ T) (V ⊗ Z)^H for A = U Σ V^H, B = W T Z^H, sorted"""
    k, factors = count_triplets(A, k), operands_in_context(A)
    lesser = [smaller_side(factor) for factor in factors]
    parts = [svd(factor, min(k, r), method) for factor, r in zip(factors, lesser)]
    s = reduce(partial(outer, mul), (s for _, s, _ in parts))

    def leading(sides: list[LinearOperator]) -> np.ndarray:
        """The columns of the product that come from the first columns of each factor."""
        sizes = [Q.shape[-1] for Q in sides]
        whole = np.arange(math.prod(sizes)).reshape(sizes)
        return whole[tuple(map(slice, lesser))].reshape(-1)

    return _composed(Kronecker, parts, s, k, leading)


def _composed(
    whole: Any, parts: list[Triplets], s: Array, k: int, leading: Callable[[Any], np.ndarray]
) -> Triplets:
    """The triplets of a composition from those of its parts, with the values s.

    Where k is more than they are, bases of the parts are completed, and `leading(sides)` are the
    columns of the whole that belong to s.
    """
    sides: Any = [U for U, _, _ in parts], [V for _, _, V in parts]
    places: Any = (None, None)
    if k > s.shape[-1]:
        sides = [[completed(Q, Q.shape[-2]) for Q in side] for side in sides]
        places = [leading(side) for side in sides]
    left, right = (whole(*side) for side in sides)
    return sorted_triplets(left, s, right, k, places)


def each_svd(blocks: tuple[LinearOperator, ...], k: int, method: Any) -> list[Triplets]:
    """The k largest triplets of each block; of many dense ones of a size, by one batched
    decomposition."""
    first: Any = blocks[0]
    kinds = {(type(block), block.shape, block.properties) for block in blocks}
    is_one_matrix = isinstance(first, Dense) and not first.batch_shape
    if len(kinds) > 1 or len(blocks) < 4 or not is_one_matrix or has_orthonormal_columns(first):
        return [svd(block, min(k, *block.shape[-2:]), method) for block in blocks]
    found: list[Triplets] = []
    groups: Any = [blocks] if is_detailed() else in_groups(first.xp, blocks)
    for group in groups:
        stack = Dense(first.xp.stack([block.A for block in group], axis=0))
        U, s, V = svd(stack, min(k, *stack.shape[-2:]), method)
        bases: Any = (Stiefel(Dense._of(P.to_dense())) for P in (U, V))
        left, right = ([Q._replace(A=M) for M in Q.A] for Q in bases)
        found.extend(zip(left, s, right))
    return found


@rule(svd, BlockDiag)
def svd_block_diagonal(A: Any, k: Any, method: Any) -> Triplets:
    """diag(A, B) = diag(U, W) diag(Σ, T) diag(V, Z)^H for A = U Σ V^H, B = W T Z^H, sorted"""
    k, blocks = count_triplets(A, k), operands_in_context(A)
    lesser = [smaller_side(block) for block in blocks]
    parts = each_svd(blocks, k, method)
    s = end_to_end(A, [s for _, s, _ in parts])

    def leading(sides: list[LinearOperator]) -> np.ndarray:
        """The first columns of each block."""
        starts = np.cumsum([0, *(Q.shape[-1] for Q in sides)])
        return np.concatenate([start + np.arange(r) for start, r in zip(starts, lesser)])

    return _composed(BlockDiag, parts, s, k, leading)


@rule(svd, Inverse)
def svd_inverse(A: Any, k: Any, method: Any) -> Triplets:
    """A^-1 = V Σ^-1 U^H for A = U Σ V^H, in reverse"""
    U, s, V = svd(A.A, None, method)
    return sorted_triplets(V, reciprocal(s), U, count_triplets(A, k))


# --------------------------------------------------------------------------------------------------


@rule(rank, Kronecker)
def rank_kronecker(A: Any, tol: Any, method: Any) -> Array:
    """rank(A ⊗ B) = rank(A) rank(B), each to its own rounding; with `tol`, by all products of
    singular values"""
    check_tolerance(tol)
    if tol is not None:
        return rank.base(A, tol, method)
    return math.prod(rank(factor, None, method) for factor in operands_in_context(A))


# --------------------------------------------------------------------------------------------------


@rule(cond, Kronecker, when=all_square)
def cond_kronecker(A: Any, p: Any, method: Any) -> Array:
    """cond(A ⊗ B) = cond(A) cond(B), in every norm"""
    if p == -2:  # 0 for singular operators and infinite for zero ones, whose product says nothing
        return cond.base(A, p, method)
    return reduce(mul, (cond(factor, p, method) for factor in operands_in_context(A)))
