"""Solves whose residual is bounded by that of their parts, and families solved by iterations at
once."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...backends import Array, is_array
from ...dispatch import perform, rule
from ...factors.structured import LineFactor
from ...info import Info, is_detailed, recording, report
from ...methods import CG, GMRES, Auto, Iterative
from ...methods.structured import LEVINSON, solve_by_iterations
from ...operators import (
    BlockDiag,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    ScaledIdentity,
    Sum,
    Toeplitz,
    Tridiagonal,
    simplify,
)
from ...operators.context import kind_of
from ...operators.rewrites import LARGE_GRID
from ...operators.shown import with_symmetry_of_entries
from ...operators.sparse_algebra import DIAGONAL, diagonal_of
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY
from ...status import failed, is_unseen
from ..common import (
    FEW,
    MARGIN,
    UNCHANGED,
    are_plain,
    have_failed,
    host_value,
    ignore_float_errors,
    in_groups,
    is_half,
    is_traced_or_differentiated,
    is_vector,
    once_each,
    quotient_is_finite_later,
    reciprocal,
    report_all,
    values_are_seen,
)
from ..spectrum import eig
from ..spectrum.components import diagonals_are_constant
from . import System, apply_inverse, right_side, solve, solve_by_inverse
from .auto import leave_to_residual, limits
from .compositions import blocks_are_alike
from .families import is_narrow_band, used_diagonals
from .inverse import all_square, are_small, inv, solution
from .near import fast_form
from .sums import (
    capacitance,
    capacitance_of_diagonal,
    low_rank_and_diagonal,
    rank_is_low,
    right_products,
)

# Solves whose residual is bounded by that of their parts, so that it need not be looked at with a
# product by the whole.
#
# With u the unit roundoff, γ_n = n u / (1 - n u) bounds the relative error of inner products of
# length n (Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 3). Where a bound
# misses the tolerance, or the residual itself is asked for (`info=True`), or values cannot be
# seen, the solve takes the way of `solve.py`.


# rows of a product of matrices that is formed: the work is less than that of looking at its factors
TINY = 32
FREE = (Auto, type(None))  # methods that leave the choice to us
WORTH_A_BOUND = 10_000  # entries of a right side from which a bound costs less than it saves


def checked(A: Any, b: Any) -> Any:
    """The right side, which has the shape of the solution."""
    return right_side("solve", A, b)


def is_plain(A: LinearOperator, b: Any, method: Any) -> bool:
    """Whether only the answer for arrays is asked for, not by an iteration, and its values can
    be seen."""
    if isinstance(method, Iterative) or isinstance(b, LinearOperator) or A.is_neutral:
        return False
    is_seen = not (is_array(b) and is_traced_or_differentiated(A.xp, b)) and values_are_seen(A)
    return is_seen and not is_half(A.xp, A.dtype)


# --------------------------------------------------------------------------------------------------
#
# Let W_i be the computed inverse of A_i, E_i = I - A_i W_i, and x the product (W_1 ⊗ ... ⊗ W_d) b
# computed one factor after another: y_0 = b, y_i = W_i y_{i-1} + δ_i along axis i, x = y_d, where
# |δ_i| <= γ_{n_i} |W_i| |y_{i-1}|. Then
#
#     b - (A_1 ⊗ ... ⊗ A_d) x = (I - (I - E_1) ⊗ ... ⊗ (I - E_d)) b - sum_i (A_1 ⊗ ... ⊗ A_i ⊗ (I - E_{i+1}) ⊗ ...) δ_i,
#
# in norm at most  prod_i (1 + e_i) (prod_i (1 + e_i) - 1 + sum_i γ_{n_i} κ_1 ... κ_i) |b|  with e_i
# >= |E_i| and κ_i >= |A_i| | |W_i| |, to first order in u. All norms here are |M|_2 <= (|M|_1
# |M|_inf)^1/2, and E_i is itself computed with an error of at most γ_{n_i + 1} κ_i. The bound is
# doubled for terms of higher order.


def _bound(xp: Any, factors: Any, inverses: list[Array]) -> float:
    """A bound of the relative residual of solving with a Kronecker product by these inverses of
    its factors."""
    product, rounding, condition = 1.0, 0.0, 1.0
    for A, W in zip(factors, inverses):
        n = W.shape[-1]
        gamma = (n + 1) * xp.eps(A.dtype) * (2 if A.is_complex else 0.5)
        kappa = _norm(xp, A.A) * _norm(xp, W)
        product *= 1 + _norm(xp, xp.eye(n, **kind_of(A)) - xp.matmul(A.A, W)) + gamma * kappa
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


def is_tiny(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether the product of the factors is so small that it is formed."""
    return (
        isinstance(method, FREE)
        and A.shape[-1] <= TINY
        and not A.batch_shape
        and factors_are_matrices(A)
        and is_plain(A, b, method)
    )


@rule(solve, Kronecker, when=is_tiny, like=checked)
def solve_tiny_kronecker(A: Any, b: Any, method: Any) -> Any:
    """x by the matrix A ⊗ B, which costs less than to look at its factors"""
    if is_detailed():
        return solve_by_inverse(A, b, method)
    whole = Dense._of(A.to_dense())._claim(A.properties)
    with recording() as reports:
        x = perform(solve_by_inverse(whole, checked(A, b), method))
    return x if not reports else solve_by_inverse(A, b, method)


def inverses_pay(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether there are so many right sides that the inverses of the factors, as matrices, are
    cheaper than solves with them."""
    columns = math.prod(getattr(b, "shape", ()))
    # A matrix A^-1 and its residual cost 4 n^3, and save a product and half of a solve: 4 n for
    # each entry of b.
    if columns < WORTH_A_BOUND or not factors_are_matrices(A) or not is_plain(A, b, method):
        return False
    return all(
        4 * factor.shape[-1] ** 2 <= columns and factor.dtype == A.dtype for factor in A.operands
    )


def like_product(A: Any, b: Any, method: Any = None) -> Any:
    """The right side, which has the shape of the solution, after a look at the inverse."""
    inv(A, method)
    return checked(A, b)


@rule(solve, Kronecker, when=inverses_pay, like=like_product)
def solve_kronecker(A: Any, b: Any, method: Any) -> Any:
    """x = (A^-1 ⊗ B^-1) b by A^-1 and B^-1 as matrices, whose own residuals bound that of the
    whole"""
    if is_detailed():
        return solve_by_inverse(A, b, method)
    xp, inverse, s = A.xp, inv(A, method), System.of(A, checked(A, b), method)
    with ignore_float_errors(xp):
        # else the method was not for the factors
        if isinstance(inverse, Kronecker) and not is_unseen(s.b) and xp.all(xp.isfinite(s.b)):
            matrices = once_each(LinearOperator.to_dense, inverse.operands)
            if _bound(xp, A.operands, matrices) <= s.tol:
                return Kronecker(*map(Dense._of, matrices)) @ s.b
        return apply_inverse(s, inverse)


# --------------------------------------------------------------------------------------------------


def blocks_are_alike_and_plain(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether the blocks are matrices of one size, and only the answer is asked for."""
    return (
        blocks_are_alike(A)
        and isinstance(A.operands[0], Dense)
        and 0 not in A.shape
        and 0 not in getattr(b, "shape", ())
        and is_plain(A, b, method)
    )


@rule(solve, BlockDiag, when=blocks_are_alike_and_plain, like=checked)
def solve_alike_blocks(A: Any, b: Any, method: Any) -> Any:
    """x_i = A_i^-1 b_i, many at once; |r_i| <= tol |b_i| for each block, so |r| <= tol |b|"""
    if is_detailed():
        return solve_by_inverse(A, b, method)
    xp, blocks, s = A.xp, A.operands, System.of(A, checked(A, b))
    B = xp.reshape(s.B, (*s.B.shape[:-2], len(blocks), -1, s.B.shape[-1]))
    parts, start = [], 0
    with recording() as reports:
        for group in in_groups(xp, blocks):
            stacked = Dense._of(xp.stack([block.A for block in group], axis=-3))._claim(
                A.properties & ~(UNITARY | STIEFEL)
            )
            parts.append(solution(stacked, B[..., start : start + len(group), :, :], method).X)
            start += len(group)
    if have_failed(reports):
        return solve_by_inverse(A, b, method)  # which looks at the whole, and names the block
    report_all(reports)
    X = xp.concat(parts, axis=-3)
    return s.answer(xp.reshape(X, (*X.shape[:-3], A.shape[-1], X.shape[-1])))


# --------------------------------------------------------------------------------------------------


def is_plain_correction(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether D + U C V^H of low rank is given, and only the answer is asked for."""
    return isinstance(method, FREE) and is_plain(A, b, method) and rank_is_low(A)


@rule(solve, Sum[LowRank, DIAGONAL], when=is_plain_correction, like=checked, name="woodbury")
def solve_corrected_diagonal(A: Any, b: Any, method: Any) -> Any:
    """x = D^-1 (b - U y) for (I + C V^H D^-1 U) y = C V^H D^-1 b"""
    if is_detailed():
        return solve_by_inverse(A, b, method)
    xp, (low_rank, D), s = A.xp, low_rank_and_diagonal(A), System.of(A, checked(A, b), method)
    d, B, U = diagonal_of(D, A)[..., None], s.B, low_rank.U
    is_far = xp.is_on_device(B)  # where D^-1 U is made either way
    left = leave_to_residual() if is_far else UNCHANGED
    with recording() as reports, left, ignore_float_errors(xp):
        S, scaled = U / d if is_far else None, B / d
        K: LinearOperator = (
            capacitance_of_diagonal(low_rank, D, 1 / d[..., 0])
            if S is None
            else capacitance(low_rank, D, S)
        )
        Y = solution(K, right_products(low_rank, scaled), None).X
        X = scaled - xp.matmul(U, Y) / d if S is None else xp.add_product(scaled, S, Y, -1)
        R = xp.add_product(B - d * X, U, right_products(low_rank, X), -1)
        is_right = not reports and are_small(xp, R, B, s.tol)
    # the other way says what is wrong
    return s.answer(X) if is_right else solve_by_inverse(A, b, method)


# Solves of families whose answer needs no look at the whole residual, or one that is cheap.


@rule(solve, Diagonal | Identity | ScaledIdentity | Permutation)
def solve_by_entries(A: Any, b: Any, method: Any) -> Any:
    """x_i = b_i / d_i: each entry is right to rounding, so there is no residual to look at"""
    if is_detailed() and not isinstance(b, LinearOperator):
        return solve_by_inverse(A, b, method)  # someone wants to see it all the same
    b = right_side("solve", A, b)
    if not isinstance(A, Diagonal) or isinstance(b, LinearOperator):
        return inv(A, method) @ b
    d = A.d if b.ndim == 1 else A.d[..., None]
    if math.prod(d.shape) <= FEW and are_plain(A.xp.peek(d)):
        return b / d
    if A.xp.is_on_device(d) and A.xp.is_floating(b):
        x = b / d
        if quotient_is_finite_later(A.xp, d, x):
            return x
    return reciprocal(d) * b


# Systems on a grid whose operator is a Kronecker sum of two tridiagonal ones: one is diagonalised,
# along the other one eliminates.


def lines_are_constant(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether all factors are one Kronecker sum of two real positive tridiagonals, the last one
    of constant diagonals, in NumPy."""
    grid: Any = A.operands[0] if isinstance(A, Product) else A
    is_real = not (grid.batch_shape or grid.is_complex or 0 in A.shape)
    if not is_real or A.xp.hides_values or not is_plain(A, b, method):
        return False
    first, last = grid.operands
    positive = first.properties & last.properties & POSITIVE_SEMIDEFINITE
    same = isinstance(A, KroneckerSum) or all(factor is grid for factor in A.operands)
    return (
        bool(positive)
        and same
        and diagonals_are_constant(last)
        and bool((first.lower == first.upper).all())
    )


GRID: Any = KroneckerSum[Tridiagonal, Tridiagonal]


@rule(solve, GRID, when=lines_are_constant, like=checked)
@rule(solve, Product[GRID, ...], when=lines_are_constant, like=checked)
def solve_by_lines(A: Any, b: Any, method: Any) -> Any:
    """(A ⊕ B) x = b is (A + λ I) y = c for each eigenvalue λ of B, after a sine transform along
    B: elimination in all at once"""
    factors: Any = A.operands if isinstance(A, Product) else (A,)
    power, (first, last) = len(factors), factors[0].operands
    values = eig(last)[0].astype(A.dtype)
    norm = float(
        np.max(np.abs(first.diag)) + 2 * np.max(np.abs(first.lower), initial=0) + values[-1]
    )  # at least |A|
    with np.errstate(all="ignore"):
        # A + λ I = L D L^T for each λ of B: the multipliers of L and the pivots D, by rows
        shifted, squares = first.diag + values[:, None], first.lower**2
        pivots = np.ascontiguousarray(A.xp.tridiagonal_pivots(shifted, squares).T)
        multipliers = first.lower[:, None] / pivots[:-1]
        safe = (
            values[0] > MARGIN * np.finfo(values.dtype).eps * norm
            and pivots.min() > 0
            and np.isfinite(norm)
        )
        if not safe:  # nearly singular, or not positive
            return solve_by_inverse(A, b, method)
        inverse = LineFactor._of(multipliers, pivots, power, norm**power)
        return apply_inverse(System.of(A, checked(A, b), method), inverse)


# Large Toeplitz systems with few right sides: iterations at once, instead of the inverse, which
# takes two of them to find.


# than the tolerance: a step or two more, since the circulant preconditioner makes the convergence
# superlinear
BETTER = 1e-3


def is_large(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether it is one square matrix of more rows than Levinson's recursion is good for, with one
    right side and no derivatives.

    All values can be seen, and no band is so narrow that elimination is faster.
    """
    m, n = A.shape[-2:]
    if A.batch_shape or not m == n > LEVINSON or not isinstance(method, FREE):
        return False
    if A.spread is not None:  # the host would have to gather it
        return False
    is_one = b is None or is_vector(b) or tuple(getattr(b, "shape", ()))[1:] == (1,)
    if not is_one or not is_plain(A, b, method):
        return False
    values = np.asarray(host_value(A.xp, A._diagonals()))
    return bool(values[0] or values[-1]) or not is_narrow_band(used_diagonals(values), n)


@rule(solve, Toeplitz, when=is_large, like=checked, direct=True)
def solve_toeplitz(A: Any, b: Any, method: Any) -> Any:
    """x by iterations with fast Fourier transforms, preconditioned by the nearest circulant"""
    xp, n, s = A.xp, A.shape[-1], System.of(A, checked(A, b), method)
    values, side = (np.ravel(host_value(xp, x)) for x in (A._diagonals(), s.b))
    exact = np.result_type(values, side, np.float64)
    columns = values[n - 1 :], values[n - 1 :: -1], side
    col, row, side = (x.astype(exact, copy=False) for x in columns)
    goal, dtype = max(BETTER * s.tol, 1e-13), xp.dtype_name(s.dtype)
    found = solve_by_iterations(col, row, side, goal, s.tol, dtype)
    if found is None:  # they do not converge
        return solve_by_inverse(A, b, method)
    if is_detailed():
        report(Info(residual=xp.asarray(found[1]), method="FFT"))
    x = xp.asarray(found[0], dtype=s.dtype, device=A._context.device)
    return xp.reshape(x, s.b.shape)


# Convolutions of large grids with zeros around them, and Toeplitz matrices whose products a mesh
# divides: Krylov methods, preconditioned by the periodic convolution nearest to them.


def is_large_on_mesh(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether the rows of a Toeplitz matrix are divided over a mesh, many, and a solution is wanted
    by any method."""
    if isinstance(b, LinearOperator) or not isinstance(method, FREE):
        return False
    return A.spread is not None and A.shape[-1] > LARGE_GRID


def is_large_with_zeros_around(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether the grid has more than one dimension, many points, and zeros around it, and a
    solution is wanted by any method."""
    if isinstance(b, LinearOperator) or not isinstance(method, FREE):
        return False
    return A.boundary == "zero" and len(A.grid) > 1 and math.prod(A.grid) > LARGE_GRID


@rule(solve, Toeplitz, when=is_large_on_mesh, like=checked, direct=True, name="solve_on_mesh")
@rule(solve, Convolution, when=is_large_with_zeros_around, like=checked, direct=True)
def solve_convolution_with_zeros(A: Any, b: Any, method: Any) -> Any:
    """x by CG or GMRES, preconditioned by the nearest periodic convolution, k_j ∏ (1 - |j_d| /
    n_d), which transforms invert"""
    periodic, info = inv(fast_form(A), info=True)
    preconditioner = None if failed(info._status) is True else periodic
    is_self_adjoint = with_symmetry_of_entries(A).properties & SELF_ADJOINT
    for kind in (CG, GMRES) if is_self_adjoint else (GMRES,):
        x, info = solve(A, b, kind(preconditioner=preconditioner, **limits(method)), info=True)
        if failed(info._status) is not True:  # it has converged, or its values cannot be seen
            report(info)
            return x
    return solve_by_inverse(simplify(A), b, method)
