"""The diagonal and its sum."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import add, mul
from typing import Any

from ...backends import Array
from ...dispatch import Choice, Cost, function, has_needs, rule
from ...methods import SLQ, Hutchinson, Method, XNysTrace, XTrace, fitting
from ...operators import (
    Adjoint,
    BatchSum,
    Block,
    BlockDiag,
    Conjugate,
    Hadamard,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Product,
    Projection,
    Scaled,
    Sliced,
    Sum,
    Transpose,
)
from ...operators.context import kind_of
from ...operators.sliced import pick, same
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ..common import (
    in_context,
    is_square,
    low_rank_sides,
    operands_in_context,
    outer,
    smaller_side,
    square_size,
)
from ..solve.inverse import all_square
from ..spectrum.order import end_to_end
from ..spectrum.rules import is_similarity
from ..stochastic.estimators import (
    DIAGONAL,
    TRACE,
    added_estimates,
    concatenated,
    estimate,
    estimated,
    is_stochastic,
    multiplied,
    times_scalar,
)

AFFORDABLE = 1e12  # flops that `Auto` spends on an exact diagonal


def main_diagonal(A: LinearOperator, method: Method | None = None) -> Choice:
    """The entries on the main diagonal.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    method : Auto, Hutchinson, HutchPP or XDiag, optional
        The last three estimate the diagonal of square A from products with random vectors;
        `info.error` is the standard error of each entry.

    Returns
    -------
    array, (*batch, min(m, n))

    Notes
    -----
    The base case takes n products, in blocks of unit vectors, so that no large matrix is formed.
    `Auto` estimates, with an ApproximationWarning, where these take more than 1e12 flops.

    Examples
    --------
    >>> import colinear as co
    >>> co.diag(co.Kronecker(co.Diagonal([1.0, 2.0]), co.Identity(2)))
    array([1., 1., 2., 2.])
    """
    chosen = fitting("diag", method, *DIAGONAL)
    like = partial(ones_on_diagonal, A)
    if chosen.is_stochastic or is_out_of_reach(A, chosen):
        is_free = not chosen.is_stochastic
        found = Hutchinson(tol=chosen.tol) if is_free else chosen
        square_size("diag", A, f"{found.name}()", "Leave the method out.")
        run = lambda: estimated(A, found, lambda: exact_diagonal(A), True)
        return estimate("diag", A, found, is_free, run, like)
    m, n = A.shape[-2:]
    cost = lambda: Cost(n * A.flops, 8.0 * min(m * n, BLOCK))
    return Choice(lambda: exact_diagonal(A), "products", cost, "n products with unit vectors", like)


def exact_diagonal(A: LinearOperator) -> Array:
    """The diagonal by n products: e_j^T A e_j, for blocks of j if the matrix is large."""
    xp = A.xp
    if math.prod(A.shape) <= BLOCK:
        return xp.diagonal(A._dense())
    rows = xp.arange(A.shape[-2], device=A._context.device)[:, None]
    pick = lambda X, places: xp.sum(xp.where(rows == places, X, 0), axis=-2)
    return by_columns(A, pick, smaller_side(A))


def is_out_of_reach(A: LinearOperator, method: Any) -> bool:
    """Whether n products with square A are more than `Auto` spends."""
    m, n = A.shape[-2:]
    return m == n and not getattr(method, "exact", False) and n * float(A.flops) > AFFORDABLE


def zero_diagonal(A: LinearOperator) -> Array:
    """Zeros of the shape of the diagonal."""
    return A.xp.zeros((*A.batch_shape, smaller_side(A)), **kind_of(A))


def ones_on_diagonal(A: LinearOperator) -> Array:
    """Ones of the shape of the diagonal."""
    return zero_diagonal(A) + 1


diag = function("diag", base=main_diagonal)


def combined(function: Any, A: LinearOperator, method: Any, combine: Any) -> Array:
    """What the function gives of each operand of A, combined two by two."""
    return reduce(combine, [function(operand, method) for operand in operands_in_context(A)])


# --------------------------------------------------------------------------------------------------


@rule(diag, Sum)
def diag_sum(A: Any, method: Any) -> Array:
    """diag(A + B) = diag A + diag B"""
    return combined(diag, A, method, add)


@rule(diag, Scaled, estimates=True)
def diag_scaled(A: Any, method: Any) -> Array:
    """diag(c A) = c diag A"""
    return times_scalar(diag, A.scalar, A.A, method, 1)


@rule(diag, Hadamard)
def diag_hadamard(A: Any, method: Any) -> Array:
    """diag(A * B) = diag A * diag B"""
    return combined(diag, A, method, mul)


def runs_of_terms(A: Any) -> Iterator[LinearOperator]:
    """The terms of a sum over a batch as batched operators: all at once, but few at a time where
    their numbers are not in memory."""
    step = A.terms
    if A._is_out_of_core and len(A.A.batch_shape) == 1:
        step = max(1, BLOCK // max(A.shape[-2:]))
    return (A.A[i : i + step] if step < A.terms else A.A for i in range(0, A.terms or 1, step or 1))


@rule(diag, BatchSum)
def diag_batch_sum(A: Any, method: Any) -> Array:
    """diag(Σ_i A_i) = Σ_i diag A_i"""
    parts = (A.xp.sum(diag(terms, method), axis=A.axis - 1) for terms in runs_of_terms(A))
    return reduce(add, parts)


@rule(diag, Kronecker, when=all_square, estimates=True)
def diag_kronecker(A: Any, method: Any) -> Array:
    """diag(A ⊗ B) = diag A ⊗ diag B, both square"""
    return multiplied(diag, operands_in_context(A), method, partial(outer, mul))


@rule(diag, KroneckerSum)
def diag_kronecker_sum(A: Any, method: Any) -> Array:
    """diag(A ⊕ B) = diag A ⊕ diag B"""
    return combined(diag, A, method, partial(outer, add))


@rule(diag, BlockDiag, when=all_square, estimates=True)
def diag_block_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(A, B)) = (diag A, diag B), both square"""
    if is_stochastic(method):
        return concatenated(diag, operands_in_context(A), method, partial(_beside, A))
    if (blocks := A.stack()) is not None:
        return A.xp.reshape(diag(blocks, method), A.shape[:-1])
    return _beside(A, [diag(block, method) for block in operands_in_context(A)])


@rule(diag, BlockDiag)
def diag_rectangular_block_diagonal(A: Any, method: Any) -> Array:
    """diag of rectangular blocks: the diagonals of the parts of blocks that the diagonal crosses"""
    block = lambda i, j: A.operands[i] if i == j else None
    return _crossed(A, block, A.operands, A.operands, method)


@rule(diag, Block)
def diag_block(A: Any, method: Any) -> Array:
    """diag [A B; C D]: the diagonals of the parts of blocks that the diagonal crosses"""
    block = lambda i, j: A.blocks[i][j]
    return _crossed(A, block, [row[0] for row in A.blocks], A.blocks[0], method)


def _crossed(A: Any, block: Any, rows: Any, columns: Any, method: Any) -> Array:
    """The diagonal of a grid of blocks, `rows` and `columns` being one of each row and column of
    it."""
    top = [0, *accumulate(B.shape[-2] for B in rows)]
    left = [0, *accumulate(B.shape[-1] for B in columns)]
    zeros = zero_diagonal(A)
    parts = [zeros[..., :0]]
    for start, stop in pairwise(sorted({end for end in (*top, *left) if end <= smaller_side(A)})):
        i, j = bisect_right(top, start) - 1, bisect_right(left, start) - 1
        if (B := block(i, j)) is None:
            parts.append(zeros[..., start:stop])
        else:
            lines, places = (range(start - before, stop - before) for before in (top[i], left[j]))
            parts.append(diag(Sliced(in_context(B, A), lines, places), method))
    return _beside(A, parts)


def _beside(A: LinearOperator, parts: list[Array], dtype: Any = None) -> Array:
    return end_to_end(A, [A.xp.astype(part, dtype or A.dtype) for part in parts])


def is_principal(A: LinearOperator) -> bool:
    """Whether the rows that are picked are the columns that are picked."""
    return same(A.rows, A.cols)  # type: ignore[attr-defined]


@rule(diag, Sliced, when=is_principal)
def diag_sliced(A: Any, method: Any) -> Array:
    """diag(A[s, s]) = diag(A)[s]"""
    return pick(diag(A.A, method), A.rows, axis=-1)


@rule(diag, Transpose | Adjoint | Conjugate, estimates=True)
def diag_turned(A: Any, method: Any) -> Array:
    """diag A^T = diag A, and diag A^H = diag conj(A) = conj(diag A)"""
    d = diag(A.A, method)
    return d if isinstance(A, Transpose) else A.xp.conj(d)


# --------------------------------------------------------------------------------------------------


def waist(A: LinearOperator) -> tuple[int, int]:
    """The smallest dimension inside a product, and before which factor it is."""
    return min((factor.shape[-2], i) for i, factor in enumerate(A.operands[1:], 1))


def has_thin_waist(A: LinearOperator) -> bool:
    """Whether a dimension inside the product is smaller than those outside."""
    return waist(A)[0] < smaller_side(A)


def sum_of_diagonal(A: LinearOperator, method: Method | None = None) -> Choice:
    """The trace, the sum of the diagonal of a square operator.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Hutchinson, HutchPP, XTrace, XNysTrace or SLQ, optional
        All but `Auto` estimate it from products with random vectors; `info.error` is the standard
        error. `SLQ` is for f(A), made by `exp(A, Krylov())` and the like, with self-adjoint A.

    Notes
    -----
    n products, where no rule is better. `Auto` estimates, with an ApproximationWarning, where these
    take more than 1e12 flops.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.trace(co.Diagonal([1.0, 2.0])))
    3.0
    """
    square_size("trace", A, "a trace", "diag(A) takes any shape.")
    chosen = fitting("trace", method, *TRACE, SLQ)
    if not chosen.is_stochastic and not (is_out_of_reach(A, chosen) and diag.find(A).is_base):
        return Choice(
            lambda: A.xp.sum(diag(A, method), axis=-1), "sum_of_diagonal", None, "tr A = Σ_i a_ii"
        )
    is_free = not chosen.is_stochastic
    found = _automatic(A, chosen) if is_free else chosen
    like = lambda: A.xp.ones(A.batch_shape, **kind_of(A))
    return estimate("trace", A, found, is_free, lambda: _estimated(A, found), like)


def _estimated(A: LinearOperator, method: Any) -> Array:
    if isinstance(method, SLQ):
        return quadrature.trace_by_quadrature(A, method)
    return estimated(A, method, lambda: A.xp.sum(exact_diagonal(A), axis=-1), False)


def _automatic(A: LinearOperator, method: Any) -> Any:
    """The estimator for what is out of reach; with a tolerance the one that can be told when to
    stop under tracing too."""
    if quadrature.function_inside(A) is not None:
        return SLQ(tol=method.tol)
    if method.tol is not None:
        return Hutchinson(tol=method.tol)
    return XNysTrace(probes=64) if A.properties & POSITIVE_SEMIDEFINITE else XTrace(probes=64)


def _suits(A: LinearOperator, method: Method) -> bool:
    """Whether the estimator is for A: quadrature is also for f(B) of a self-adjoint B."""
    if isinstance(method, SLQ):
        return bool(A.properties & SELF_ADJOINT) or quadrature.function_inside(A) is not None
    return has_needs(A, method)


trace = function("trace", base=sum_of_diagonal, suits=_suits, rewrites=False)


@rule(trace, Kronecker, when=all_square, estimates=True)
def trace_kronecker(A: Any, method: Any) -> Array:
    """tr(A ⊗ B) = tr A tr B, both square"""
    return multiplied(trace, operands_in_context(A), method, mul)


@rule(trace, KroneckerSum)
def trace_kronecker_sum(A: Any, method: Any) -> Array:
    """tr(A ⊕ B) = n tr A + m tr B for A of m x m and B of n x n"""
    n = A.shape[-1]
    if not n:
        return A.xp.sum(zero_diagonal(A), axis=-1)
    weighted = lambda term, method: n // term.shape[-1] * trace(term, method)
    return combined(weighted, A, method, add)


@rule(trace, Sum)
def trace_sum(A: Any, method: Any) -> Array:
    """tr(A + B) = tr A + tr B"""
    return combined(trace, A, method, add)


@rule(trace, Scaled, estimates=True)
def trace_scaled(A: Any, method: Any) -> Array:
    """tr(c A) = c tr A"""
    return times_scalar(trace, A.scalar, A.A, method, 0)


@rule(trace, BlockDiag, when=all_square, estimates=True, hereditary=True)
def trace_block_diagonal(A: Any, method: Any) -> Array:
    """tr diag(A, B) = tr A + tr B, both square"""
    if is_stochastic(method):
        return added_estimates(trace, operands_in_context(A), method, [1] * len(A.operands))
    if (blocks := A.stack()) is not None:
        return A.xp.sum(trace(blocks, method), axis=-1)
    return combined(trace, A, method, add)


@rule(trace, BatchSum)
def trace_batch_sum(A: Any, method: Any) -> Array:
    """tr(Σ_i A_i) = Σ_i tr A_i"""
    return reduce(add, (A.xp.sum(trace(terms, method), axis=A.axis) for terms in runs_of_terms(A)))


@rule(trace, Transpose | Adjoint | Conjugate, estimates=True, hereditary=True)
def trace_turned(A: Any, method: Any) -> Array:
    """tr A^T = tr A, and tr A^H = tr conj(A) = conj(tr A)"""
    total = trace(A.A, method)
    return total if isinstance(A, Transpose) else A.xp.conj(total)


@rule(trace, Projection)
def trace_projection(A: Any, method: Any) -> Array:
    """tr(Q Q^H) = r, for r orthonormal columns"""
    return A.xp.full(A.batch_shape, float(A.Q.shape[-1]), **kind_of(A))


@rule(trace, LowRank, when=is_square)
def trace_low_rank(A: Any, method: Any) -> Array:
    """tr(U C V^H) = Σ_ij conj(V)_ij (U C)_ij"""
    U, V = low_rank_sides(A)
    return A.xp.sum(U * A.xp.conj(V), axis=(-2, -1))


@rule(trace, Product, when=is_similarity)
def trace_similarity(A: Any, method: Any) -> Array:
    """tr(Q A Q^-1) = tr A"""
    return A.xp.broadcast_to(trace(Product(*operands_in_context(A)[1:-1]), method), A.batch_shape)


def is_thinner_rotated(A: LinearOperator) -> bool:
    """Whether a dimension inside the square product is smaller than its size."""
    return is_square(A) and has_thin_waist(A) and len(A.operands) > 2


@rule(trace, Product, when=is_thinner_rotated)
def trace_rotated_product(A: Any, method: Any) -> Array:
    """tr(A B C) = tr(B C A), of the smallest size there is"""
    factors, cut = operands_in_context(A), waist(A)[1]
    return trace(Product(*factors[cut:], *factors[:cut]), method)


# Quadrature asks for diagonals, and is asked for traces.
from ..stochastic import quadrature

# An operator looked at in blocks of its columns, so that its matrix is never there as a whole.


BLOCK = 1 << 20  # entries at a time


def by_columns(
    A: LinearOperator, measure: Callable[[Array, Any], Array], count: int | None = None
) -> Array:
    """`measure(columns, places)`, a number for each column, of the first `count` columns (default:
    all): (*batch, count).

    `columns` is (*batch, m, width), `places` their indices. The last block may reach past the end:
    those columns are zero, and their numbers are dropped.
    """
    xp, (m, n), device = A.xp, A.shape[-2:], A._context.device
    count = n if count is None else count
    width = min(count, max(1, BLOCK // (max(m, n) * max(1, math.prod(A.batch_shape)))))
    blocks = -(-count // width)
    columns, within = (xp.arange(size, device=device) for size in (n, width))

    def numbers(start: Array) -> Array:
        places = start + within
        return measure(A @ xp.astype(columns[:, None] == places, A.dtype), places)

    found = xp.moveaxis(xp.loop_map(numbers, width * xp.arange(blocks, device=device)), 0, -2)
    return xp.reshape(found, (*A.batch_shape, blocks * width))[..., :count]
