"""The diagonal and its sum."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import add, mul
from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import Cost, function, rule
from ..methods import Method, fitting
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.block import Block, BlockDiag
from ..operators.hadamard import Hadamard
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.scaled import Scaled
from ..operators.sliced import Sliced, pick, same
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ._blocks import BLOCK, by_columns
from ._values import place, placed
from .inverse import all_square


def main_diagonal(A: LinearOperator, method: Method | None = None) -> Array:
    """The entries on the main diagonal.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    method : Auto, optional

    Returns
    -------
    array, (*batch, min(m, n))

    Notes
    -----
    The base case takes n products, in blocks of unit vectors, so that no large matrix is formed.

    Examples
    --------
    >>> import colinear as co
    >>> co.diag(co.Kronecker(co.Diagonal([1.0, 2.0]), co.Identity(2)))
    array([1., 1., 2., 2.])
    """
    fitting("diag", method)
    if math.prod(A.shape) <= BLOCK:
        return A.xp.diagonal(A.to_dense())
    return _by_unit_vectors(A)


def _by_unit_vectors(A: LinearOperator) -> Array:
    """e_j^T A e_j for blocks of j."""
    xp = A.xp
    rows = xp.arange(A.shape[-2], device=A._context.device)[:, None]
    return by_columns(A, lambda X, places: xp.sum(xp.where(rows == places, X, 0), axis=-2), min(A.shape[-2:]))


def ones_on_diagonal(A: LinearOperator) -> Array:
    return A.xp.ones((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


def _choose(A: LinearOperator, method: Method | None) -> tuple[str, Cost, str]:
    fitting("diag", method)
    m, n = A.shape[-2:]
    return "products", Cost(n * A.flops, 8.0 * min(m * n, BLOCK)), "n products with unit vectors"


diag = function("diag", base=main_diagonal, stand_in=ones_on_diagonal, choose=_choose)


def zero_diagonal(A: LinearOperator) -> Array:
    return A.xp.zeros((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


# ---------------------------------------------------------------------------------------------------- compositions


@rule(diag, Sum)
def diag_sum(A: Any, method: Any) -> Array:
    """diag(A + B) = diag A + diag B"""
    return reduce(add, (diag(term, method) for term in placed(A)))


@rule(diag, Scaled)
def diag_scaled(A: Any, method: Any) -> Array:
    """diag(c A) = c diag A"""
    return (A.scalar[..., None] if getattr(A.scalar, "ndim", 0) else A.scalar) * diag(A.A, method)


@rule(diag, Hadamard)
def diag_hadamard(A: Any, method: Any) -> Array:
    """diag(A * B) = diag A * diag B"""
    return reduce(mul, (diag(factor, method) for factor in placed(A)))


@rule(diag, BatchSum)
def diag_batch_sum(A: Any, method: Any) -> Array:
    """diag(Σ_i A_i) = Σ_i diag A_i"""
    return A.xp.sum(diag(A.A, method), axis=A.axis - 1)


def outer(combine: Any, v: Array, w: Array) -> Array:
    """combine(v_i, w_j) for all pairs, i slow and j fast."""
    grid = combine(v[..., :, None], w[..., None, :])
    return namespace_of(grid).reshape(grid, (*grid.shape[:-2], grid.shape[-2] * grid.shape[-1]))


@rule(diag, Kronecker, when=all_square)
def diag_kronecker(A: Any, method: Any) -> Array:
    """diag(A ⊗ B) = diag A ⊗ diag B, both square"""
    return reduce(partial(outer, mul), (diag(factor, method) for factor in placed(A)))


@rule(diag, KroneckerSum)
def diag_kronecker_sum(A: Any, method: Any) -> Array:
    """diag(A ⊕ B) = diag A ⊕ diag B"""
    return reduce(partial(outer, add), (diag(term, method) for term in placed(A)))


@rule(diag, BlockDiag, when=all_square)
def diag_block_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(A, B)) = (diag A, diag B), both square"""
    return _beside(A, [diag(block, method) for block in placed(A)])


@rule(diag, BlockDiag)
def diag_rectangular_block_diagonal(A: Any, method: Any) -> Array:
    """diag of rectangular blocks: the diagonals of the parts of blocks that the diagonal crosses"""
    return _crossed(A, lambda i, j: A.operands[i] if i == j else None, A.operands, A.operands, method)


@rule(diag, Block)
def diag_block(A: Any, method: Any) -> Array:
    """diag [A B; C D]: the diagonals of the parts of blocks that the diagonal crosses"""
    return _crossed(A, lambda i, j: A.blocks[i][j], [row[0] for row in A.blocks], A.blocks[0], method)


def _crossed(A: Any, block: Any, rows: Any, columns: Any, method: Any) -> Array:
    """The diagonal of a grid of blocks, `rows` and `columns` being one of each row and column of it."""
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
            parts.append(diag(Sliced(place(B, A), lines, places), method))
    return _beside(A, parts)


def _beside(A: LinearOperator, parts: list[Array]) -> Array:
    xp, batch = A.xp, A.batch_shape
    return xp.concat([xp.astype(xp.broadcast_to(part, (*batch, part.shape[-1])), A.dtype) for part in parts], axis=-1)


def is_principal(A: LinearOperator) -> bool:
    """Whether the rows that are picked are the columns that are picked."""
    return same(A.rows, A.cols)  # type: ignore[attr-defined]


@rule(diag, Sliced, when=is_principal)
def diag_sliced(A: Any, method: Any) -> Array:
    """diag(A[s, s]) = diag(A)[s]"""
    return pick(diag(A.A, method), A.rows, axis=-1)


@rule(diag, Transpose)
def diag_transpose(A: Any, method: Any) -> Array:
    """diag A^T = diag A"""
    return diag(A.A, method)


@rule(diag, Adjoint | Conjugate)
def diag_conjugate(A: Any, method: Any) -> Array:
    """diag A^H = diag conj(A) = conj(diag A)"""
    return A.xp.conj(diag(A.A, method))
