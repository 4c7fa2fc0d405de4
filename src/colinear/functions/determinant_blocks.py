"""Determinants of block matrices, by Schur complements. More rules of `slogdet`."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..dispatch import rule
from ..info import failed, report
from ..operators.base import LinearOperator
from ..operators.block import Block
from ..operators.inverse import Inverse
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.zero import Zero
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ._values import place, report_leaves
from .determinant import multiplied, sign_and_logarithm, slogdet
from .determinant_rules import Determinant, spread
from .inverse import inv


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
def slogdet_block(A: Any, method: Any) -> Determinant:
    """det [A B; C D] = det A det(D - C A^-1 B), the block A being the one that is cheapest to eliminate"""
    size = range(len(A.blocks))
    for k in sorted((k for k in size if not isinstance(A.blocks[k][k], Zero)), key=partial(_elimination_cost, A)):
        corner = place(A.blocks[k][k], A)
        inverse, info = inv(corner, method, info=True)
        if failed(info._status) is True:
            continue  # a singular block does not make the whole singular
        report(info)
        rest = [i for i in size if i != k]
        complement = [[_complement(A, inverse, i, j, k) for j in rest] for i in rest]
        S = complement[0][0] if len(rest) == 1 else Block(complement)
        S = S._claim(A.properties & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE))
        # A dense block has been factored already.
        first = _reciprocal(A, slogdet(inverse)) if isinstance(inverse, Inverse) else slogdet(corner, method)
        return spread(A, multiplied([first, slogdet(S, method)], [1, 1]))
    return sign_and_logarithm(A, method)


def _elimination_cost(A: Any, k: int) -> float:
    corner, rest = A.blocks[k][k], A.shape[-1] - A.blocks[k][k].shape[-1]
    own = float(corner.shape[-1]) ** 3 if inv.find(corner).is_base else 0.0
    return own + rest * corner.flops + float(rest) ** 3


def _complement(A: Any, inverse: LinearOperator, i: int, j: int, k: int) -> LinearOperator:
    """D - C A^-1 B"""
    D, C, B = (place(A.blocks[row][column], A) for row, column in ((i, j), (i, k), (k, j)))
    return D if isinstance(C, Zero) or isinstance(B, Zero) else Sum(D, Scaled(-1.0, Product(C, inverse, B)))


def _reciprocal(A: LinearOperator, determinant: Determinant) -> Determinant:
    return A.xp.conj(determinant[0]), -determinant[1]
