"""Solves whose residual is bounded by that of their parts, so that it need not be looked at with a product by the whole.

With u the unit roundoff, γ_n = n u / (1 - n u) bounds the relative error of inner products of length n (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapter 3). Where a bound misses the tolerance, or the residual itself is asked for
(`info=True`), or values cannot be seen, the solve takes the way of `solve.py`.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array, is_array
from ..dispatch import arrange, rule
from ..info import combine, failed, planning, recording, report
from ..methods import Auto
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.dense import Dense
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker
from ..operators.lowrank import LowRank
from ..operators.sparse_algebra import DIAGONAL, diagonal_of
from ..operators.sum import Sum
from ..operators.tridiagonal import Tridiagonal
from ..properties import STIEFEL, UNITARY
from ._arrays import is_detailed, is_half, is_watched, quiet
from ._factorise import solution
from ._residuals import are_small, squares
from ._values import in_groups
from .inverse import all_square, inv
from .inverse_compositions import blocks_are_alike
from .inverse_families import tridiagonal_factor
from .inverse_low_rank import rank_is_low, right_factor
from .iterative import is_iterative
from .solve import right_side, solve, solve_by_inverse, structured_solve

TINY = 32  # rows of a product of matrices that is formed: the work is less than that of looking at its factors
SMALL = 10_000  # numbers in U from which the work outweighs what operators cost
WORTH_A_BOUND = 10_000  # entries of a right side from which a bound costs less than it saves


def _is_plain(A: LinearOperator, b: Any, method: Any) -> bool:
    """Whether only the answer is asked for, not by an iteration, and its values can be seen."""
    if planning() or is_detailed() or is_iterative(method) or isinstance(b, LinearOperator) or A.is_neutral:
        return False
    seen = A.xp.name == "numpy" or not any(is_watched(A.xp, x) for x in (b, *A.leaves()) if is_array(x))
    return seen and not is_half(A.xp, A.dtype)


# ---------------------------------------------------------------------------------------------------- Kronecker products
#
# Let W_i be the computed inverse of A_i, E_i = I - A_i W_i, and x the product (W_1 ⊗ ... ⊗ W_d) b computed one factor after
# another: y_0 = b, y_i = W_i y_{i-1} + δ_i along axis i, x = y_d, where |δ_i| <= γ_{n_i} |W_i| |y_{i-1}|. Then
#
#     b - (A_1 ⊗ ... ⊗ A_d) x = (I - (I - E_1) ⊗ ... ⊗ (I - E_d)) b - sum_i (A_1 ⊗ ... ⊗ A_i ⊗ (I - E_{i+1}) ⊗ ...) δ_i,
#
# in norm at most  prod_i (1 + e_i) (prod_i (1 + e_i) - 1 + sum_i γ_{n_i} κ_1 ... κ_i) |b|  with e_i >= |E_i| and
# κ_i >= |A_i| | |W_i| |, to first order in u. All norms here are |M|_2 <= (|M|_1 |M|_inf)^1/2, and E_i is itself computed
# with an error of at most γ_{n_i + 1} κ_i. The bound is doubled for terms of higher order.


def _bound(xp: Any, factors: Any, inverses: list[Array]) -> float:
    """A bound of the relative residual of solving with a Kronecker product by these inverses of its factors."""
    product, rounding, condition = 1.0, 0.0, 1.0
    for A, W in zip(factors, inverses):
        n, same = W.shape[-1], xp.eye(W.shape[-1], dtype=A.dtype, device=A._context.device)
        gamma = (n + 1) * xp.eps(A.dtype) * (2 if A.is_complex else 0.5)
        kappa = _norm(xp, A.A) * _norm(xp, W)
        product *= 1 + _norm(xp, same - xp.matmul(A.A, W)) + gamma * kappa
        condition *= kappa
        rounding += gamma * condition
    return 2 * product * (product - 1 + rounding)


def _norm(xp: Any, A: Array) -> float:
    """(|A|_1 |A|_inf)^1/2, of the largest of a batch: a bound of the 2-norms of A and of |A|."""
    size = xp.abs(A)
    return math.sqrt(float(xp.max(xp.sum(size, axis=-1))) * float(xp.max(xp.sum(size, axis=-2))))


def factors_are_matrices(A: LinearOperator) -> bool:
    """Whether the factors are square matrices."""
    return all(isinstance(factor, Dense) for factor in A.operands) and all_square(A)


@rule(solve, Kronecker, when=factors_are_matrices)
def solve_kronecker(A: Any, b: Any, method: Any) -> Any:
    """x = (A^-1 ⊗ B^-1) b; for many right sides by A^-1 and B^-1 as matrices, whose own residuals bound that of the whole"""
    b = right_side("solve", A, b, A.shape[-1])
    if A.shape[-1] <= TINY and (method is None or isinstance(method, Auto)) and not A.batch_shape and _is_plain(A, b, method):
        with recording() as reports:
            x = solve_by_inverse(Dense._of(A.to_dense())._claim(A.properties), b, method)
        if not reports:
            return x  # else the factors are looked at one by one
    columns = 0 if isinstance(b, LinearOperator) else math.prod(b.shape)
    # A matrix A^-1 and its residual cost 4 n^3, and save a product and half of a solve: 4 n for each entry of b.
    pays = columns >= WORTH_A_BOUND and all(4 * factor.shape[-1] ** 2 <= columns for factor in A.operands)
    if not pays or not _is_plain(A, b, method) or any(factor.dtype != A.dtype for factor in A.operands):
        return solve_by_inverse(A, b, method)
    xp, inverse = A.xp, inv(A, method)
    if not isinstance(inverse, Kronecker):  # the method was not for the factors
        return structured_solve(A, b, method, inverse, checked=True)
    with quiet(xp):
        explicit = {id(W): W.to_dense() for W in inverse.operands}
        matrices = [explicit[id(W)] for W in inverse.operands]
        tol = (method or Auto()).tolerance(xp, xp.result_type(A.dtype, b.dtype))
        if not _bound(xp, A.operands, matrices) <= tol or not bool(xp.all(xp.isfinite(b))):
            return structured_solve(A, b, method, inverse, checked=True)
    return Kronecker(*map(Dense._of, matrices)) @ b


# ---------------------------------------------------------------------------------------------------- blocks along a diagonal


@rule(solve, BlockDiag, when=blocks_are_alike)
def solve_alike_blocks(A: Any, b: Any, method: Any) -> Any:
    """x_i = A_i^-1 b_i, many at once; |r_i| <= tol |b_i| for each block, so |r| <= tol |b|"""
    b = right_side("solve", A, b, A.shape[-1])
    if not _is_plain(A, b, method) or 0 in A.shape or 0 in b.shape:
        return solve_by_inverse(A, b, method)
    xp, blocks, n = A.xp, A.operands, A.operands[0].shape[-1]
    B = b[:, None] if b.ndim == 1 else b
    B = xp.reshape(B, (*B.shape[:-2], len(blocks), n, B.shape[-1]))
    parts, start = [], 0
    with recording() as reports:
        for group in in_groups(xp, blocks):
            stacked = Dense._of(xp.stack([block.A for block in group], axis=-3))._claim(A.properties & ~(UNITARY | STIEFEL))
            parts.append(solution("solve", stacked, B[..., start : start + len(group), :, :], method).X)
            start += len(group)
    if failed(combine([info._status for info in reports])) is True:
        return solve_by_inverse(A, b, method)  # which looks at the whole, and names the block
    for info in reports:
        report(info)
    X = xp.concat(parts, axis=-3)
    X = xp.reshape(X, (*X.shape[:-3], A.shape[-1], X.shape[-1]))
    return X[..., 0] if b.ndim == 1 else X


# ---------------------------------------------------------------------------------------------------- small corrections


@rule(solve, Sum[LowRank, DIAGONAL], when=rank_is_low)  # type: ignore[misc]
def solve_corrected_diagonal(A: Any, b: Any, method: Any) -> Any:
    """x = D^-1 (b - U y) for (I + C V^H D^-1 U) y = C V^H D^-1 b: small systems without operators on the way"""
    b = right_side("solve", A, b, A.shape[-1])
    low_rank, D = arrange(A, LowRank, DIAGONAL)
    if (
        A.batch_shape
        or math.prod(low_rank.U.shape) > SMALL
        or not _is_plain(A, b, method)
        or not (method is None or isinstance(method, Auto))
    ):
        return solve_by_inverse(A, b, method)
    xp, d, B = A.xp, diagonal_of(D, A)[:, None], b[:, None] if b.ndim == 1 else b
    U, right = low_rank.U, right_factor(low_rank).A  # type: ignore[attr-defined]  # C V^H
    with recording() as reports, quiet(xp):
        W = U / d
        inner = xp.matmul(right, W)
        K = Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=A._context.device))
        y = solution("solve", K, xp.matmul(right, B / d), None).X
        X = B / d - xp.matmul(W, y)
        R = B - d * X - xp.matmul(U, xp.matmul(right, X))
        if reports or not are_small(xp, R, B, (method or Auto()).tolerance(xp, X.dtype)):
            X = None
    if X is None:
        return solve_by_inverse(A, b, method)  # which refines, and says what is wrong
    return X[..., 0] if b.ndim == 1 else X


# ---------------------------------------------------------------------------------------------------- three diagonals
#
# Elimination with row exchanges of a tridiagonal A: each row that occurs on the way has at most three entries, sums of two of
# those of A nearby, and is an equation that x satisfies, so its right side is no larger than those entries times those of x
# that they meet. A step rounds a few such numbers, and what it commits reaches the equations of A with multipliers of size 1 at
# most, two of them. Summed over the steps, to first order in u and for a small c, with l, d and u the diagonals,
#
#     |b - A x|_2 <= |b - A x|_1 <= c u (|l| + |d| + |u|)^T |x| <= c u (|l|_2 + |d|_2 + |u|_2) |x|_2.
#
# Counting operations gives c < 100 in real numbers, a few times that in complex ones; it is taken as 1000.


@rule(solve, Tridiagonal, direct=True)
def solve_tridiagonal(A: Any, b: Any, method: Any) -> Any:
    """x by elimination along three diagonals: stable, so |r| <= c u (|l| + |d| + |u|) |x|"""

    def is_right(X: Array, B: Array, tol: float) -> bool:
        xp, diagonals = A.xp, (A.lower, A.diag, A.upper)
        x, b = squares(xp, X), squares(xp, B[..., : -(-B.shape[-2] // 16), :])  # a part of |b| is a lower bound that costs less
        a = 3 * sum(squares(xp, d, axis=-1)[..., None] for d in diagonals)  # (|l| + |d| + |u|)^2 is no larger
        if not all(bool(xp.all((s > 1e-30) & (s < 1e30))) for s in (a, x, b)):
            return False  # zeros, NaN, or so large or small that squares might mislead
        return bool(xp.all((500 * xp.eps(X.dtype)) ** 2 * a * x <= tol**2 * b))

    bound = is_right if A.shape[-1] >= WORTH_A_BOUND else None
    return structured_solve(A, b, method, Inverse(A, tridiagonal_factor(A)), is_right=bound)
