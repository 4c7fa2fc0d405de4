"""Determinants of block matrices, by Schur complements. More rules of `slogdet`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from ..backends import Array
from ..dispatch import Choice, rule
from ..info import Info, Status, failed, report
from ..operators.base import LinearOperator
from ..operators.block import Block, hstack, vstack
from ..operators.inverse import Inverse
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.zero import Zero
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ._arrays import seen
from ._elimination import condition, fits_as_a_whole, is_spoilt, settle_determinant, size_of
from ._values import place, report_leaves
from .determinant import multiplied, reciprocal_determinant, sign_and_logarithm, slogdet
from .determinant_rules import Determinant, spread
from .inverse import inv
from .inverse_low_rank import DIAGONAL

MOST_GROWTH = 1e3  # times |A|, up to which |C A^-1 B| does no harm


def diagonal_blocks_are_square(A: Any) -> bool:
    """Whether there are as many rows as columns of blocks, and those on the diagonal are square."""
    size = len(A.blocks)
    return all(len(row) == size for row in A.blocks) and all(
        A.blocks[i][i].shape[-1] == A.blocks[i][i].shape[-2] for i in range(size)
    )


def is_block_triangular(A: Any) -> bool:
    """Whether the blocks on the diagonal are square, and those above it or those below it zero."""
    size = range(len(A.blocks))
    return diagonal_blocks_are_square(A) and any(
        all(isinstance(A.blocks[i][j], Zero) for i in size for j in size if (i < j if above else i > j))
        for above in (True, False)
    )


@rule(slogdet, Block, when=is_block_triangular)
def slogdet_block_triangular(A: Any, method: Any) -> Determinant:
    """det [A B; 0 D] = det A det D"""
    report_leaves(A)  # also of the blocks beside the diagonal
    blocks = [place(row[i], A) for i, row in enumerate(A.blocks)]
    return spread(A, multiplied([slogdet(block, method) for block in blocks], [1] * len(blocks)))


@rule(slogdet, Block, when=diagonal_blocks_are_square)
def slogdet_block(A: Any, method: Any) -> Any:
    """det [A B; C D] = det A det(D - C A^-1 B), the block A being the one that is cheapest to eliminate"""
    return Choice(partial(_by_complement, A, method, True), like=partial(_by_complement, A, method, False))


def _by_complement(A: Any, method: Any, is_judged: bool) -> Any:
    """Eliminate the cheapest block, if `is_judged` the cheapest of those whose elimination keeps the accuracy."""
    size = range(len(A.blocks))
    whole = partial(sign_and_logarithm, A, method)
    best: Any = None
    for k in sorted((k for k in size if not isinstance(A.blocks[k][k], Zero)), key=partial(_elimination_cost, A)):
        corner = place(A.blocks[k][k], A)
        inverse, info = inv(corner, method, info=True)
        if failed(info._status) is True:
            continue  # a singular block does not make the whole singular
        rest = [i for i in size if i != k]
        complement = [[_complement(A, inverse, i, j, k) for j in rest] for i in rest]
        S = complement[0][0] if len(rest) == 1 else Block(complement)
        S = S._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
        spoilt = _spoilt(A, k, inverse, S) if is_judged else None
        best = best or (corner, inverse, info, S, spoilt)
        if spoilt is None or not is_spoilt(A, spoilt):
            best = corner, inverse, info, S, spoilt
            break
    if best is None:
        return whole()
    corner, inverse, info, S, spoilt = best
    if spoilt is not None and is_spoilt(A, spoilt) and fits_as_a_whole(A):
        report(Info(Status.FELL_BACK, method="LU", message="no block on the diagonal is well-conditioned"))
        return whole()
    report(info)
    # A dense block has been factored already.
    first = reciprocal_determinant(A.xp, *slogdet(inverse)) if isinstance(inverse, Inverse) else slogdet(corner, method)
    found = spread(A, multiplied([first, slogdet(S, method)], [1, 1]))
    return found if spoilt is None else settle_determinant(A, found, spoilt, whole)


def _spoilt(A: Any, k: int, inverse: LinearOperator, S: LinearOperator) -> Array:
    """By how much rounding grows where the block k is eliminated.

    Two things spoil S = D - C A^-1 B: the condition of the block A, unless it is diagonal and divided by without an
    error, and cancellation, |C A^-1 B| |S^-1|. The latter is no more than the condition of the whole unless
    |C A^-1 B| is far larger than the whole, as it is for a small block A, however well-conditioned.
    """
    xp, corner = A.xp, place(A.blocks[k][k], A)
    is_exact, spoilt = isinstance(corner, DIAGONAL), condition(corner, inverse)
    rest = [i for i in range(len(A.blocks)) if i != k]
    C, B = (place(part, A) for part in (vstack([A.blocks[i][k] for i in rest]), hstack([A.blocks[k][i] for i in rest])))
    T = Product(C, inverse, B)
    if is_spoilt(A, spoilt):
        if not is_exact:
            return spoilt
    elif not _is_far_larger(T, A):
        return spoilt
    S_inverse, info = inv(S, info=True)
    cancelled = xp.asarray(math.inf) if failed(info._status) is True else condition(T, S_inverse)
    return cancelled if is_exact else xp.maximum(spoilt, cancelled)


def _is_far_larger(T: LinearOperator, A: LinearOperator) -> bool:
    """Whether |T| is seen to be far larger than |A|."""
    sizes = None if 0 in T.shape else seen(A.xp, A.xp.stack([size_of(T), size_of(A)]))
    return sizes is not None and not bool(sizes[0] <= MOST_GROWTH * sizes[1])


def _elimination_cost(A: Any, k: int) -> float:
    corner, rest = A.blocks[k][k], A.shape[-1] - A.blocks[k][k].shape[-1]
    own = float(corner.shape[-1]) ** 3 if inv.find(corner).is_base else 0.0
    return own + rest * corner.flops + float(rest) ** 3


def _complement(A: Any, inverse: LinearOperator, i: int, j: int, k: int) -> LinearOperator:
    """D - C A^-1 B"""
    D, C, B = (place(A.blocks[row][column], A) for row, column in ((i, j), (i, k), (k, j)))
    return D if isinstance(C, Zero) or isinstance(B, Zero) else Sum(D, Scaled(-1.0, Product(C, inverse, B)))
