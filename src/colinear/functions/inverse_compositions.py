"""The inverse of compositions from the inverses of their operands."""

from __future__ import annotations

from typing import Any

from ..dispatch import rule
from ..info import combine, failed, part, recording, report
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.dense import Dense
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.structured_factors import (
    StackedBlocks,
)
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..properties import STIEFEL, UNITARY, Unitary
from ._arrays import square_size
from ._values import reciprocal
from .inverse import all_square, inv, kept
from .iterative import tightened


def _parts(what: str, A: LinearOperator, method: Any) -> list[LinearOperator]:
    """The inverses of the operands. Where one fails, the status names it."""
    inverses: list[LinearOperator] = []
    method = tightened(method, A, len(A.operands))
    for i, operand in enumerate(A.operands):
        again = i and operand is A.operands[i - 1]  # the factors of A ⊗ A, say
        inverses.append(inverses[-1] if again else part(f"In {what} {i + 1} of {len(A.operands)}", inv, operand, method))
    return inverses


@rule(inv, Scaled)
def inv_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^-1 = c^-1 A^-1"""
    return Scaled(reciprocal(A.scalar), inv(A.A, method))


@rule(inv, Product, when=all_square)
def inv_product(A: Any, method: Any) -> LinearOperator:
    """(A B)^-1 = B^-1 A^-1, both square"""
    return kept(A, Product(*reversed(_parts("factor", A, method))))


@rule(inv, Kronecker, when=all_square)
def inv_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^-1 = A^-1 ⊗ B^-1, both square"""
    return kept(A, Kronecker(*_parts("factor", A, method)))


def blocks_are_alike(A: LinearOperator) -> bool:
    """Whether the blocks are several matrices of one size and dtype."""
    blocks: Any = A.operands
    if len(blocks) < 3 or not isinstance(blocks[0], Dense) or blocks[0].shape[-1] != blocks[0].shape[-2]:
        return False
    shape, dtype = blocks[0].A.shape, blocks[0].A.dtype
    return all(type(block) is Dense and block.A.shape == shape and block.A.dtype == dtype for block in blocks)


@rule(inv, BlockDiag, when=blocks_are_alike, hereditary=True)
def inv_alike_blocks(A: Any, method: Any) -> LinearOperator:
    """diag(A, B, ...)^-1 = diag(A^-1, B^-1, ...): matrices of one size, factored together"""
    stacked = Dense._of(A.xp.stack([block.A for block in A.operands], axis=-3))
    with recording() as reports:
        together = inv(stacked._claim(A.properties & ~(UNITARY | STIEFEL)), method)
    if failed(combine([info._status for info in reports])) is True:
        return inv_block_diagonal(A, method)  # which names the block
    for info in reports:
        report(info)
    return Inverse._of(A, StackedBlocks._of(together))


@rule(inv, BlockDiag, when=all_square, hereditary=True)
def inv_block_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(A, B)^-1 = diag(A^-1, B^-1), both square"""
    return kept(A, BlockDiag(*_parts("block", A, method)))


@rule(inv, Unitary[Product])
@rule(inv, Unitary[Kronecker])
@rule(inv, Unitary[BlockDiag])
def inv_unitary(A: Any, method: Any) -> LinearOperator:
    """Q^-1 = Q^H"""
    return A.H


@rule(inv, Transpose, hereditary=True)
def inv_transpose(A: Any, method: Any) -> LinearOperator:
    """(A^T)^-1 = (A^-1)^T"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).T


@rule(inv, Adjoint, hereditary=True)
def inv_adjoint(A: Any, method: Any) -> LinearOperator:
    """(A^H)^-1 = (A^-1)^H"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).H


@rule(inv, Conjugate, hereditary=True)
def inv_conjugate(A: Any, method: Any) -> LinearOperator:
    """conj(A)^-1 = conj(A^-1)"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).conj()


@rule(inv, Inverse)
def inv_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^-1 = A"""
    return A.A
