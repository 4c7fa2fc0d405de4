"""The inverse of compositions from the inverses of their operands, and of grids of operators by
block elimination."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...dispatch import rule
from ...factors.function import RealPart
from ...factors.inverse import Inverse
from ...factors.structured import StackedBlocks
from ...info import labelled, recording, report
from ...operators import (
    Adjoint,
    Block,
    BlockDiag,
    Conjugate,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Permutation,
    Product,
    Scaled,
    Sum,
    Transpose,
    Zero,
    hstack,
    vstack,
)
from ...operators.block import MANY_BLOCKS
from ...operators.neutral import dense_part
from ...operators.sparse_algebra import DIAGONAL
from ...operators.transposed import are_adjoint
from ...properties import (
    POSITIVE_DEFINITE,
    POSITIVE_SEMIDEFINITE,
    SELF_ADJOINT,
    SYMMETRIC,
    Unitary,
)
from ...status import failed
from ..common import (
    have_failed,
    in_context,
    is_positive,
    is_square,
    reciprocal,
    report_all,
    report_leaves,
    seen_value,
)
from .auto import with_tolerance_for_parts
from .elimination import condition, judged
from .inverse import all_square, check_square, fits_as_a_whole, inv, kept, no_inverse
from .sums import scaled_factor

# The inverse of compositions from the inverses of their operands.


def _parts(what: str, A: LinearOperator, method: Any) -> list[LinearOperator]:
    """The inverses of the operands. Where one fails, the status names it."""
    operands = A.operands
    method = with_tolerance_for_parts(method, A, len(operands))
    found: list[LinearOperator] = []
    for i, operand in enumerate(operands):
        if i and operand is operands[i - 1]:  # as the factors of A ⊗ A
            found.append(found[-1])
        else:
            found.append(labelled(f"In {what} {i + 1} of {len(operands)}", inv, operand, method))
    return found


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


def blocks_are_alike(A: Any) -> bool:
    """Whether the blocks are several square matrices, or triangles, of one size and dtype."""
    m, n = A.operands[0].shape[-2:]
    return m == n and A.has_alike_blocks()


@rule(inv, BlockDiag, when=blocks_are_alike, hereditary=True)
def inv_alike_blocks(A: Any, method: Any) -> LinearOperator:
    """diag(A, B, ...)^-1 = diag(A^-1, B^-1, ...): matrices of one size, factored together"""
    with recording() as reports:
        together = inv(A.stack(), method)
    if have_failed(reports):
        return inv_block_diagonal(A, method)  # which names the block
    report_all(reports)
    return Inverse._of(A, StackedBlocks._of(together))


@rule(inv, BlockDiag, when=all_square, hereditary=True)
def inv_block_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(A, B)^-1 = diag(A^-1, B^-1), both square"""
    return kept(A, BlockDiag(*_parts("block", A, method)))


@rule(inv, Unitary[Product])
@rule(inv, Unitary[Kronecker])
@rule(inv, Unitary[BlockDiag])
@rule(inv, Unitary[Product[KroneckerSum, ...]])
def inv_unitary(A: Any, method: Any) -> LinearOperator:
    """Q^-1 = Q^H"""
    return A.H


@rule(inv, RealPart)
def inv_real_part(A: Any, method: Any) -> LinearOperator:
    """A^-1 of a real A that is held as complex factors: Re (V diag(1/φ) V^H)"""
    return RealPart._of(inv(A.A, method))


@rule(inv, Transpose | Adjoint | Conjugate, hereditary=True)
def inv_turned(A: Any, method: Any) -> LinearOperator:
    """(A^T)^-1 = (A^-1)^T, (A^H)^-1 = (A^-1)^H and conj(A)^-1 = conj(A^-1)"""
    check_square(A)
    return type(A)(inv(A.A, method))


@rule(inv, Inverse)
def inv_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^-1 = A"""
    return A.A


# Inverses of grids of operators: elimination of the block that is cheapest to invert, and the
# Schur complement of it.
#
# With the pivot first, after moving its row and its column,
#
# [A B]^-1 [I -A^-1 B] [I ] [I ] [A^-1 ] [C D] = [ I ] [ S^-1] [-C I] [ I], S = D - C A^-1 B.
#
# S is a grid again, of one row and one column less, and zero blocks of it stay zero: an arrow, a
# band or a triangle of blocks is eliminated without filling up.


MOST_PIVOTS = 4  # blocks that are tried before the matrix is formed
SMALL_GRID = 200  # rows up to which only one block is tried
SMALL_BLOCK_ROWS = 32  # on average, up to which many blocks are factored sooner as one matrix
DEARER = 4  # times the cost of the cheapest block, for one that is better conditioned


def has_a_cheap_pivot(A: Any) -> bool:
    """Whether A is square, and some block is zero or has a rule of its own to be inverted by; not
    where the blocks are many and so small that one matrix is factored sooner."""
    if not is_square(A) or not 1 < len(A.blocks) == len(A.blocks[0]):
        return False
    are_small = len(A.blocks) >= MANY_BLOCKS and A.shape[-1] <= SMALL_BLOCK_ROWS * len(A.blocks)
    if are_small and fits_as_a_whole(A):
        return False
    blocks = A.operands
    candidates = [block for block in blocks if is_square(block) and not isinstance(block, Zero)]
    zeros = any(isinstance(block, Zero) for block in blocks)
    return bool(candidates) and (zeros or any(not inv.find(block).is_base for block in candidates))


def cheapest_first(costs: dict[tuple[int, int], float]) -> list[tuple[int, int]]:
    """The places of the blocks that may be inverted, those off the diagonal last: they cost
    symmetry."""
    return sorted(costs, key=lambda place: (place[0] != place[1], costs[place]))


def pivot_costs(grid: Any) -> dict[tuple[int, int], float]:
    """The flops of eliminating each block that may be inverted: of inverting it, of the products
    C A^-1 B, and of factoring what they fill."""
    # once for each line, not for each block of it: there are m^2 blocks
    beside, above = [_line(row, -1) for row in grid], [_line(column, -2) for column in zip(*grid)]
    found = {}
    for i, row in enumerate(grid):
        for j, A in enumerate(row):
            if not is_square(A) or isinstance(A, Zero):
                continue
            n = float(A.shape[-1])
            (right, columns, _, level), (left, rows, work, upright) = beside[i], above[j]
            if level and upright:
                found[i, j] = n * left * right
                continue
            factor, apply = (n**3, 2 * n * n) if inv.find(A).is_base else (n, A.flops)
            # both lines count A itself
            columns, rows, work = columns - n, rows - n, work - A.flops
            products = columns * (apply + work) if left > 1 else 0.0
            found[i, j] = factor + products + (rows**3 if columns else 0.0)
    return found


def _line(blocks: Any, axis: int) -> tuple[int, float, float, bool]:
    """Of a row or column of blocks: how many are not zero, their size along it, their flops, and
    whether all are diagonal."""
    some = [block for block in blocks if not isinstance(block, Zero)]
    size, work = sum(block.shape[axis] for block in some), sum(block.flops for block in some)
    return len(some), float(size), work, all(isinstance(block, DIAGONAL) for block in some)


def without(k: int, items: Any) -> list[Any]:
    """All items but the one at k."""
    return [*items[:k], *items[k + 1 :]]


def eliminate(
    A: Any, at: tuple[int, int], pivot_inverse: LinearOperator, is_formed: bool = True
) -> tuple[LinearOperator, list[LinearOperator]]:
    """The Schur complement D - C A^-1 B of the block at a place whose inverse is known, and A^-1 B,
    block by block. `is_formed`: products that do not merge are formed as matrices."""
    grid, (i, j) = A.blocks, at
    pivot = grid[i][j]
    above, before = [row[j] for row in without(i, grid)], without(j, grid[i])
    others = [without(j, row) for row in without(i, grid)]
    kept = A.properties if i == j else 0
    positive = bool(kept & SELF_ADJOINT and pivot.properties & POSITIVE_SEMIDEFINITE)
    is_gram = len(before) == len(above) == 1 and _are_mirrored(before[0], above[0])
    if is_gram and isinstance(pivot, Diagonal) and is_positive(pivot):
        S, root = scaled_factor(dense_part(before[0], A), pivot_inverse)  # B^H A^-1 B = S^H S
        right, products = [Product(root, S)], [[Dense._of(A.xp.inner_products(S.A, S.A))]]
    else:
        right = [multiply_blocks(pivot_inverse, B, A, is_formed) for B in before]
        products = [[multiply_blocks(C, W, A, is_formed) for W in right] for C in above]
    differences = [
        [subtract_blocks(D, T, A, positive and k == m) for m, (D, T) in enumerate(zip(*pair))]
        for k, pair in enumerate(zip(others, products))
    ]
    inherited = SELF_ADJOINT | SYMMETRIC | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE
    return Block(differences)._claim(kept & inherited), right


def _are_mirrored(B: Any, C: Any) -> bool:
    """Whether C = B^H is known of two matrices: by how they were made, or because NumPy's arrays
    lie at one place."""
    is_pair = isinstance(B, Dense) and isinstance(C, Dense)
    if not is_pair or B.shape != C.shape[:-2] + C.shape[:-3:-1]:
        return False
    if are_adjoint(B, C):
        return True
    if not B.backend == C.backend == "numpy" or B.is_complex or B.dtype != C.dtype:
        return False
    M, N = B.A, np.matrix_transpose(C.A)
    return M.strides == N.strides and M.__array_interface__["data"] == N.__array_interface__["data"]


def multiply_blocks(
    A: LinearOperator, B: LinearOperator, whole: LinearOperator, is_formed: bool
) -> LinearOperator:
    """A B: as one operator where they merge (two diagonals, say), else as a matrix if `is_formed`."""
    if isinstance(A, Zero) or isinstance(B, Zero):  # also beside a batch: nothing fills in
        return Zero(A.shape[-2], B.shape[-1])
    product = Product(A, B)
    simple = product.A if isinstance(product, Scaled) else product
    if is_formed and isinstance(simple, Product):
        return Dense(A @ dense_part(B, whole))
    return product


def subtract_blocks(
    D: LinearOperator, T: LinearOperator, whole: LinearOperator, positive: bool
) -> LinearOperator:
    """D - T, a matrix if T is one. `positive`: T is known to be semidefinite."""
    if isinstance(T, Zero):
        return D
    T = T._claim(POSITIVE_SEMIDEFINITE) if positive else T
    if isinstance(D, Zero):
        return Scaled(-1.0, T)
    return Dense(dense_part(D, whole) - T.A) if isinstance(T, Dense) else Sum(D, Scaled(-1.0, T))


def _moved(sizes: list[int], first: int) -> Any:
    """The order of rows that puts a block first."""
    blocks = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return np.concatenate([blocks.pop(first), *blocks])


@rule(inv, Block, when=has_a_cheap_pivot)
@judged
def inv_block(A: Any, method: Any) -> LinearOperator:
    """[A B; C D]^-1 from A^-1 and S^-1, with the Schur complement S = D - C A^-1 B of the
    cheapest block A"""
    report_leaves(A)  # also of the blocks that are multiplied by only
    at, pivot_inverse, info = _pivot(A, method)
    if failed(info.status) is True:
        return no_inverse(A, info)
    report(info)
    schur, right = eliminate(A, at, pivot_inverse)
    schur_inverse = labelled("In the Schur complement of a block", inv, schur, method)
    return _assemble(A, at, pivot_inverse, right, schur_inverse)._claim(A.properties)


def _pivot(A: Any, method: Any) -> tuple[tuple[int, int], LinearOperator, Any]:
    """The place of the cheapest block that is well-conditioned, if there is one, its inverse,
    and the Info of that."""
    found: Any = None
    costs = pivot_costs(A.blocks)
    places = cheapest_first(costs)[:MOST_PIVOTS]
    most = DEARER * costs[places[0]]
    for i, j in places:
        if found is not None and costs[i, j] > most:
            continue
        block = in_context(A.blocks[i][j], A)
        block_inverse, info = inv(block, method, info=True)
        if failed(info.status) is True:
            last = (i, j), block_inverse, info.replace(message="no block could be inverted")
            continue
        candidate = (i, j), block_inverse, info
        # the whole costs little, if it comes to that
        if isinstance(block_inverse, Identity) or A.shape[-1] <= SMALL_GRID:
            return candidate
        estimate = seen_value(A.xp, condition(block, block_inverse))
        if estimate is None or estimate <= 1 / math.sqrt(A.xp.eps(A.dtype)):
            return candidate
        found = found or candidate
    return found or last


def _assemble(
    A: Any,
    at: tuple[int, int],
    pivot_inverse: LinearOperator,
    right: list[LinearOperator],
    schur_inverse: LinearOperator,
) -> LinearOperator:
    """The inverse of a grid from that of a block, A^-1 B, and the inverse of its Schur complement."""
    grid, (i, j) = A.blocks, at
    left = [row[j] for row in without(i, grid)]
    I, J = (Identity(X.shape[-1]) for X in (pivot_inverse, schur_inverse))
    factors = [BlockDiag(I, schur_inverse), BlockDiag(pivot_inverse, J)]
    if not all(isinstance(C, Zero) for C in left):
        factors.insert(1, Block([[I, None], [Scaled(-1.0, vstack(left)), J]]))
    if not all(isinstance(W, Zero) for W in right):
        factors.insert(0, Block([[I, Scaled(-1.0, hstack(right))], [None, J]]))
    if i > 0:
        factors.append(Permutation(_moved([row[0].shape[-2] for row in grid], i)))
    if j > 0:
        factors.insert(0, Permutation(_moved([block.shape[-1] for block in grid[0]], j)).T)
    return Product(*factors)
