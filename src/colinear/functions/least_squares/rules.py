"""The rules of `pinv` and `lstsq`.

Where nothing stands here `pinv` goes through the rules of `svd`: A^+ = V Σ^+ U^H. The identities
below hold for every operator that their rules match; (A B)^+ = B^+ A^+ does not in general.
"""

from __future__ import annotations

from typing import Any

from ...backends import Array, inner_products, namespace_of, without_zeros
from ...dispatch import Choice, rule
from ...factors.function import KroneckerFunction
from ...factors.inverse import Inverse
from ...factors.structured import as_blocks
from ...info import Info, report
from ...operators import (
    Adjoint,
    Banded,
    Block,
    BlockDiag,
    Circulant,
    Conjugate,
    Convolution,
    Dense,
    Diagonal,
    Identity,
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
)
from ...operators.convolution import periodic, transform_on_grid
from ...operators.diagonal import scalar_of
from ...properties import POSITIVE_DEFINITE
from ...status import Status, failed, first_failure
from ..common import (
    MARGIN,
    has_no_zero,
    ignore_float_errors,
    largest_rank,
    low_rank_sides,
    operands_in_context,
    passes,
    real_or_complex,
    reports_nonfinite,
    values_are_seen,
)
from ..orthonormal import orthonormal
from ..singular import cutoff, svd
from ..singular.rules import (
    COMPOSED,
    SIMPLE,
    each_svd,
    left_factor_is_orthonormal,
    right_factor_is_orthonormal,
)
from ..solve import System, relative_residual, right_side
from ..solve.elimination import condition
from ..solve.inverse import column_norms, inv
from ..spectrum.order import end_to_end, grid_of, is_periodic, symbol
from . import checked_rtol, inverted, known_pseudoinverse, lstsq, pinv, solution_like

SOLVED = Sum | KroneckerSum | Tridiagonal | Banded | Toeplitz


def negligible(A: LinearOperator, sizes: Array, rtol: Any) -> Array:
    """The size up to which numbers count as zero beside the largest of `sizes`."""
    return cutoff(A, sizes, checked_rtol("pinv", rtol))


@rule(pinv, orthonormal(COMPOSED, SIMPLE, SOLVED, KroneckerFunction) | Zero | Projection)
@reports_nonfinite
def pinv_isometry(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """A^+ = A^H where A^H A is a projection: of orthonormal columns, of projections and of 0"""
    checked_rtol("pinv", rtol)
    return A.H


@rule(pinv, Diagonal)
@reports_nonfinite
def pinv_diagonal(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """diag(d)^+ = diag(1 / d), zero where d is"""
    size = A.xp.abs(A.d)
    return Diagonal(inverted(A.xp, A.d, size > negligible(A, size, rtol)))._claim(A._claims)


@rule(pinv, ScaledIdentity)
@reports_nonfinite
def pinv_scaled_identity(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(c I)^+ = c^-1 I, zero where c is"""
    checked_rtol("pinv", rtol)
    return A._replace(c=_inverted_scalar(A.c))


def _inverted_scalar(c: Any) -> Any:
    xp = namespace_of(c)
    return (1 / c if c else 0 * c) if xp is None else xp.asarray(inverted(xp, c, c != 0))


@rule(pinv, Circulant | Convolution, when=is_periodic)
@reports_nonfinite
def pinv_circulant(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(F^H diag(λ) F)^+ = F^H diag(λ)^+ F"""
    xp, grid = A.xp, grid_of(A)
    values = symbol(A)
    size = xp.abs(values)
    limit = negligible(A, xp.reshape(size, A.shape[:-1]), rtol)
    limit = xp.reshape(limit, (*A.batch_shape, *(1 for _ in grid)))
    column = transform_on_grid(A, inverted(xp, values, size > limit), grid, inverse=True)
    return periodic(A, real_or_complex(column, A.dtype), grid)._claim(A._claims)


@rule(pinv, LowRank, direct=True)
def pinv_low_rank(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(U C V^H)^+ = Y Σ^+ X^H for the singular triplets X, Σ, Y of the QR factors, of the size
    of the rank"""
    X, s, Y = svd(A, largest_rank(A), method)
    D = Diagonal(inverted(A.xp, s, s > negligible(A, s, rtol)))
    return Product(Y, D, X.H)._claim(A._claims)


# --------------------------------------------------------------------------------------------------


def has_own_rounding(A: LinearOperator, rtol: Any = None) -> bool:
    """Whether negligible is what rounding is for each part: no `rtol` is given for the whole."""
    return checked_rtol("pinv", rtol) is None


@rule(pinv, Kronecker, when=has_own_rounding)
def pinv_kronecker(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^+ = A^+ ⊗ B^+, each to its own rounding"""
    return Kronecker(*(pinv(factor, None, method) for factor in A.operands))._claim(A._claims)


@rule(pinv, BlockDiag, direct=True)
def pinv_block_diagonal(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """diag(A, B)^+ = diag(A^+, B^+), where negligible is what is so beside the largest of all"""
    xp, blocks, is_seen = A.xp, operands_in_context(A), values_are_seen(A)
    if is_seen and (stack := A.stack()) is not None:
        (U, s, V), count = svd(stack, None, method), len(blocks)
        s = xp.reshape(s, (*A.batch_shape, -1))
        D = Diagonal(inverted(xp, s, s > negligible(A, s, rtol)))
        return Product(as_blocks(V, count), D, as_blocks(U, count).H)._claim(A._claims)
    triplets = each_svd(blocks, max(A.shape[-2:]), method)
    # in a Fourier basis: each to its own rounding
    if not A.is_complex and any(U.is_complex for U, _, _ in triplets):
        return BlockDiag(*(pinv(block, rtol, method) for block in blocks))._claim(A._claims)
    limit = negligible(A, end_to_end(A, [s for _, s, _ in triplets]), rtol)
    found: Any = [Product(V, Diagonal(inverted(xp, s, s > limit)), U.H) for U, s, V in triplets]
    if not is_seen:
        known = map(known_pseudoinverse, blocks, found)
        found = [X if own is None else own for X, own in zip(found, known)]
    return BlockDiag(*found)._claim(A._claims)


@rule(pinv, Product, when=left_factor_is_orthonormal)
def pinv_orthonormal_times(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(Q A)^+ = A^+ Q^H where Q^H Q = I"""
    Q, *rest = operands_in_context(A)
    return Product(pinv(Product(*rest), rtol, method), Q.H)._claim(A._claims)


@rule(pinv, Product, when=right_factor_is_orthonormal)
def pinv_times_orthonormal(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(A Q^H)^+ = Q A^+ where Q^H Q = I"""
    *rest, Q = operands_in_context(A)
    return Product(Q.H, pinv(Product(*rest), rtol, method))._claim(A._claims)


@rule(pinv, Scaled)
@reports_nonfinite
def pinv_scaled(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(c A)^+ = c^-1 A^+, zero where c is"""
    return Scaled(_inverted_scalar(A.scalar), pinv(A.A, rtol, method))._claim(A._claims)


@rule(pinv, Adjoint | Transpose | Conjugate)
def pinv_turned(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(A^H)^+ = (A^+)^H, (A^T)^+ = (A^+)^T and conj(A)^+ = conj(A^+)"""
    return type(A)(pinv(A.A, rtol, method))


@rule(pinv, Inverse, when=has_own_rounding)
def pinv_inverse(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """(A^-1)^+ = A"""
    return A.A


def has_structured_inverse(A: LinearOperator, rtol: Any = None) -> bool:
    """Whether `inv` has a rule for A, and `svd` has none, and no singular values are to be
    compared."""
    return (
        has_own_rounding(A, rtol)
        and A.shape[-1] == A.shape[-2] != 0
        and not inv.find(A).is_base
        and svd.find(A).is_base
    )


@rule(pinv, SOLVED, when=has_structured_inverse)
def pinv_nonsingular(A: Any, rtol: Any, method: Any) -> Any:
    """A^+ = A^-1 if A turns out to be nonsingular, V Σ^+ U^H otherwise"""
    inverse, info = inv(A, None, info=True)
    return Choice(lambda: _if_nonsingular(A, method, inverse, info), like=lambda: inverse)


def _if_nonsingular(A: Any, method: Any, inverse: LinearOperator, info: Info) -> Any:
    growth = MARGIN * A.shape[-1] * condition(A, inverse)
    growth = A.xp.eps(growth.dtype) * growth
    is_regular = passes(A.xp, lambda growth: growth < 1, growth)
    if is_regular is None:
        is_regular = bool(A.properties & POSITIVE_DEFINITE)
    if is_regular and failed(info._status) is not True:
        report(info.replace(function="", rule=""))
        return inverse
    return pinv.base(A, None, method)


# --------------------------------------------------------------------------------------------------


def is_regularised_stack(A: LinearOperator) -> bool:
    """Whether A stands in one column, one part is diagonal without zeros, and sum of A_i^H A_i
    has a structured inverse."""
    if any(len(row) > 1 for row in A.blocks) or A.shape[-1] == 0 or A.is_neutral:  # type: ignore[attr-defined]
        return False
    return any(map(_is_regular, A.operands)) and not inv.find(gram(A)).is_base


def _is_regular(B: Any) -> bool:
    """Whether B is diagonal, and no zero is seen there."""
    if not isinstance(B, Identity | ScaledIdentity | Diagonal):
        return False
    return has_no_zero(B.d if isinstance(B, Diagonal) else scalar_of(B))


def gram(A: LinearOperator) -> LinearOperator:
    """A^H A of a stack, part by part; of wide and low-rank parts in low-rank form."""
    return Sum(*(_gram_of(B) for B in operands_in_context(A)))


def _gram_of(B: Any) -> LinearOperator:
    if isinstance(B, LowRank):  # V C^H (U^H U) C V^H
        left, V = low_rank_sides(B)
        return LowRank(V, core=inner_products(B.xp, left, left))
    return LowRank(B.H.A) if isinstance(B, Dense) and B.shape[-2] < B.shape[-1] else B.H @ B  # type: ignore[attr-defined]


@rule(lstsq, Block, when=is_regularised_stack, direct=True)
def lstsq_regularised(A: Any, b: Any, method: Any) -> Any:
    """[A; D] x = [b; c]: (A^H A + D^H D) x = A^H b + D^H c by a structured solve, refined once,
    its gradient looked at"""
    b = right_side("lstsq", A, b)
    if isinstance(b, LinearOperator):
        return lstsq.base(A, b, method)
    G = gram(A)._claim(POSITIVE_DEFINITE)
    inverse, info = inv(G, None, info=True)
    return Choice(
        lambda: _by_normal_equations(A, b, method, inverse, info), like=lambda: solution_like(A, b)
    )


def _by_normal_equations(A: Any, b: Any, method: Any, inverse: LinearOperator, info: Info) -> Any:
    xp, s = A.xp, System.of(A, b)
    with ignore_float_errors(xp):
        start = A.H @ s.B
        X = inverse @ start
        X = X + inverse @ (A.H @ (s.B - A @ X))
        R = s.B - A @ X
        gradient = column_norms(xp, start)
        gradient = column_norms(xp, A.H @ R) / without_zeros(xp, gradient)
        status = first_failure(xp, (gradient <= xp.eps(s.dtype) ** 0.5, Status.INACCURATE))
    if isinstance(status, Status) and (status is not Status.SUCCESS or info.failed):
        return lstsq.base(A, b, method)
    report(Info(status, residual=relative_residual(xp, R, s.B), method="normal equations"))
    return s.answer(X)
