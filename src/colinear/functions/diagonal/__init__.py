"""The diagonal and its sum."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import add, mul
from typing import Any

from ...backends import Array
from ...dispatch import Choice, Cost, function, rule
from ...methods import Hutchinson, Method, fitting
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
    Scaled,
    Sliced,
    Sum,
    Transpose,
)
from ...operators.scaled import beside
from ...operators.sliced import pick, same
from ..common import BLOCK, by_columns, in_context, operands_in_context, outer, square_size
from ..solve.inverse import all_square
from ..stochastic.estimators import (
    DIAGONAL,
    concatenated,
    estimate,
    estimated,
    multiplied_estimates,
    scaled_estimate,
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
        return estimate(
            "diag",
            A,
            found,
            is_free,
            lambda: estimated(A, found, lambda: exact_diagonal(A), True),
            like,
        )
    m, n = A.shape[-2:]
    cost = lambda: Cost(n * A.flops, 8.0 * min(m * n, BLOCK))
    return Choice(lambda: exact_diagonal(A), "products", cost, "n products with unit vectors", like)


def exact_diagonal(A: LinearOperator) -> Array:
    """By n products."""
    if math.prod(A.shape) <= BLOCK:
        return A.xp.diagonal(A._dense())
    return _by_unit_vectors(A)


def is_out_of_reach(A: LinearOperator, method: Any) -> bool:
    """Whether n products with square A are more than `Auto` spends."""
    m, n = A.shape[-2:]
    return m == n and not getattr(method, "exact", False) and n * float(A.flops) > AFFORDABLE


def _by_unit_vectors(A: LinearOperator) -> Array:
    """e_j^T A e_j for blocks of j."""
    xp = A.xp
    rows = xp.arange(A.shape[-2], device=A._context.device)[:, None]
    return by_columns(
        A, lambda X, places: xp.sum(xp.where(rows == places, X, 0), axis=-2), min(A.shape[-2:])
    )


def ones_on_diagonal(A: LinearOperator) -> Array:
    return A.xp.ones((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


diag = function("diag", base=main_diagonal)


def zero_diagonal(A: LinearOperator) -> Array:
    return A.xp.zeros((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


# --------------------------------------------------------------------------------------------------


@rule(diag, Sum)
def diag_sum(A: Any, method: Any) -> Array:
    """diag(A + B) = diag A + diag B"""
    return reduce(add, (diag(term, method) for term in operands_in_context(A)))


@rule(diag, Scaled, estimates=True)
def diag_scaled(A: Any, method: Any) -> Array:
    """diag(c A) = c diag A"""
    if method is not None and method.is_stochastic:
        return scaled_estimate(diag, A.scalar, A.A, method, 1)
    return beside(A.scalar) * diag(A.A, method)


@rule(diag, Hadamard)
def diag_hadamard(A: Any, method: Any) -> Array:
    """diag(A * B) = diag A * diag B"""
    return reduce(mul, (diag(factor, method) for factor in operands_in_context(A)))


@rule(diag, BatchSum)
def diag_batch_sum(A: Any, method: Any) -> Array:
    """diag(Σ_i A_i) = Σ_i diag A_i"""
    return A.xp.sum(diag(A.A, method), axis=A.axis - 1)


@rule(diag, Kronecker, when=all_square, estimates=True)
def diag_kronecker(A: Any, method: Any) -> Array:
    """diag(A ⊗ B) = diag A ⊗ diag B, both square"""
    if method is not None and method.is_stochastic:
        return multiplied_estimates(diag, operands_in_context(A), method, partial(outer, mul))
    return reduce(partial(outer, mul), (diag(factor, method) for factor in operands_in_context(A)))


@rule(diag, KroneckerSum)
def diag_kronecker_sum(A: Any, method: Any) -> Array:
    """diag(A ⊕ B) = diag A ⊕ diag B"""
    return reduce(partial(outer, add), (diag(term, method) for term in operands_in_context(A)))


@rule(diag, BlockDiag, when=all_square, estimates=True)
def diag_block_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(A, B)) = (diag A, diag B), both square"""
    if method is not None and method.is_stochastic:
        return concatenated(diag, operands_in_context(A), method, partial(_beside, A))
    return _beside(A, [diag(block, method) for block in operands_in_context(A)])


@rule(diag, BlockDiag)
def diag_rectangular_block_diagonal(A: Any, method: Any) -> Array:
    """diag of rectangular blocks: the diagonals of the parts of blocks that the diagonal crosses"""
    return _crossed(
        A, lambda i, j: A.operands[i] if i == j else None, A.operands, A.operands, method
    )


@rule(diag, Block)
def diag_block(A: Any, method: Any) -> Array:
    """diag [A B; C D]: the diagonals of the parts of blocks that the diagonal crosses"""
    return _crossed(
        A, lambda i, j: A.blocks[i][j], [row[0] for row in A.blocks], A.blocks[0], method
    )


def _crossed(A: Any, block: Any, rows: Any, columns: Any, method: Any) -> Array:
    """The diagonal of a grid of blocks, `rows` and `columns` being one of each row and column of
    it."""
    top = [0, *accumulate(B.shape[-2] for B in rows)]
    left = [0, *accumulate(B.shape[-1] for B in columns)]
    parts = [zero_diagonal(A)[..., :0]]
    for start, stop in pairwise(sorted({end for end in (*top, *left) if end <= min(A.shape[-2:])})):
        i, j = bisect_right(top, start) - 1, bisect_right(left, start) - 1
        B = block(i, j)
        if B is None:
            parts.append(zero_diagonal(A)[..., start:stop])
        else:
            lines, places = (range(start - before, stop - before) for before in (top[i], left[j]))
            parts.append(diag(Sliced(in_context(B, A), lines, places), method))
    return _beside(A, parts)


def _beside(A: LinearOperator, parts: list[Array], dtype: Any = None) -> Array:
    xp, batch = A.xp, A.batch_shape
    parts = [
        xp.astype(xp.broadcast_to(part, (*batch, part.shape[-1])), dtype or A.dtype)
        for part in parts
    ]
    return xp.concat(parts, axis=-1)


def is_principal(A: LinearOperator) -> bool:
    """Whether the rows that are picked are the columns that are picked."""
    return same(A.rows, A.cols)  # type: ignore[attr-defined]


@rule(diag, Sliced, when=is_principal)
def diag_sliced(A: Any, method: Any) -> Array:
    """diag(A[s, s]) = diag(A)[s]"""
    return pick(diag(A.A, method), A.rows, axis=-1)


@rule(diag, Transpose, estimates=True)
def diag_transpose(A: Any, method: Any) -> Array:
    """diag A^T = diag A"""
    return diag(A.A, method)


@rule(diag, Adjoint | Conjugate, estimates=True)
def diag_conjugate(A: Any, method: Any) -> Array:
    """diag A^H = diag conj(A) = conj(diag A)"""
    return A.xp.conj(diag(A.A, method))
