"""Operators made of blocks: a grid of them, a diagonal of them, and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..properties import ALL_PROPERTIES, SELF_ADJOINT, STIEFEL, SYMMETRIC, UNITARY
from .banded import scatter_dense
from .base import LinearOperator
from .context import common_batch, common_context, concat_batches
from .convert import as_operators, operator_list
from .dense import Dense, Triangular
from .diagonal import Diagonal, Identity, Zero
from .neutral import dense_part
from .transposed import are_adjoint, are_transposed
from .tree import (
    images,
    memo,
    operand_flops,
    operand_images,
    shared,
)

# up to which a copy of a block, or of the places of its entries, costs less than a call for each
SMALL_BLOCK_ENTRIES = 2**12
MANY_BLOCKS = 8  # from which that is so


class BlockDiag(LinearOperator):
    """Operators along the diagonal, zeros elsewhere. The blocks need not be square.

    Examples
    --------
    >>> import colinear as co
    >>> co.BlockDiag([[1.0, 2.0]], [[3.0]]).to_dense()
    array([[1., 2., 0.],
           [0., 0., 3.]])
    """

    operands: tuple[LinearOperator, ...]

    def __new__(cls, *operands: Any) -> Any:
        blocks: list[LinearOperator] = []
        given = operator_list("BlockDiag", operands)
        for A in given:
            blocks.extend(A.operands if isinstance(A, BlockDiag) else (A,))
        batch = common_batch("BlockDiag", blocks)
        context = common_context("BlockDiag", blocks)
        if len(blocks) == 1:
            return blocks[0]
        if context.backend is None and all(isinstance(A, Identity) for A in blocks):
            return Identity(sum(A.shape[-1] for A in blocks))
        if all(isinstance(A, Diagonal) for A in blocks):
            xp = blocks[0].xp
            parts = [xp.broadcast_to(A.d, (*batch, A.shape[-1])) for A in blocks]  # type: ignore[attr-defined]
            return Diagonal(xp.concat(parts, axis=-1))
        whole = cls._of(tuple(blocks))
        # what was claimed of nested blocks
        return whole if len(blocks) == len(given) else whole._claim(shared(given))

    @memo
    def shape(self) -> tuple[int, ...]:
        batch = common_batch("", self.operands)
        return (
            *batch,
            sum(A.shape[-2] for A in self.operands),
            sum(A.shape[-1] for A in self.operands),
        )

    _inherited = ALL_PROPERTIES

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        blocks = self.stack() if _are_many_and_small(self.operands) else None
        if blocks is not None:  # the products of all blocks at once
            count, m, n = blocks.shape[-3:]
            Y = blocks._matmat(xp.reshape(X, (*X.shape[:-2], count, n, X.shape[-1])))
            return xp.reshape(Y, (*Y.shape[:-3], count * m, X.shape[-1]))
        parts = split_rows(X, [A.shape[-1] for A in self.operands])
        products = [A @ part for A, part in zip(self.operands, parts, strict=True)]
        return concat_batches(xp, products, axis=-2)

    def _to_dense(self) -> Array:
        if not _are_many_and_small(self.operands):
            numbered = list(enumerate(self.operands))
            grid = [
                [A if i == j else Zero(A.shape[-2], B.shape[-1], like=self) for j, B in numbered]
                for i, A in numbered
            ]
            return dense_grid(self, grid)
        blocks = self.stack()
        if blocks is None:
            sizes = zip(*[A.shape[-2:] for A in self.operands])
            starts = [list(accumulate(each, initial=0))[:-1] for each in sizes]
            return scatter_blocks(self, [dense_part(A, self) for A in self.operands], *starts)
        count, m, n = blocks.shape[-3:]
        rows, columns = (np.arange(count * size).reshape(count, size) for size in (m, n))
        places = rows[:, :, None] * self.shape[-1] + columns[:, None, :]
        values = self.xp.reshape(blocks.to_dense(), (*self.batch_shape, count * m * n))
        return scatter_dense(self, values, places.reshape(-1))

    def has_alike_blocks(self) -> bool:
        """Whether the blocks are several matrices, or triangles, of one size and dtype."""
        first: Any = self.operands[0]
        if len(self.operands) < 3 or type(first) not in (Dense, Triangular):
            return False

        def kind(B: Any) -> tuple:
            sides = (B.lower, B.unit) if type(B) is Triangular else ()
            return B.A.shape, B.A.dtype, sides

        like = kind(first)
        return all(type(B) is type(first) and kind(B) == like for B in self.operands)

    def stack(self) -> LinearOperator | None:
        """The blocks as one operator (*batch, count, m, n) if they are alike, else None."""
        blocks: Any = self.operands
        if not self.has_alike_blocks():
            return None
        A = self.xp.stack([block.A for block in blocks], axis=-3)
        known = self.properties & ~(UNITARY | STIEFEL)
        if isinstance(blocks[0], Dense):
            return Dense._of(A)._claim(known)
        return Triangular._of(A, blocks[0].lower, blocks[0].unit)._claim(known)

    _flops = operand_flops

    def _expression(self) -> str:
        shown = [A._expression() for A in self.operands[:4]]
        more = f", ... {len(self.operands)} blocks" if len(self.operands) > 4 else ""
        return f"BlockDiag({', '.join(shown)}{more})"


class Block(LinearOperator):
    """A grid of operators, `Block([[A, B], [C, D]])`; None stands for a zero block.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> saddle = co.Block([[co.PSD(np.eye(2)), np.ones((2, 1))], [np.ones((1, 2)), None]])
    >>> saddle.shape
    (3, 3)
    """

    blocks: tuple[tuple[LinearOperator, ...], ...]

    def __new__(cls, blocks: Any) -> Any:
        grid = _checked_grid(blocks)
        everything = [A for row in grid for A in row]
        common_batch("Block", everything)
        common_context("Block", everything)
        if len(everything) == 1:
            return everything[0]
        if len(grid) == len(grid[0]) and all(
            isinstance(A, Zero) for i, row in enumerate(grid) for j, A in enumerate(row) if i != j
        ):
            return BlockDiag(*(row[i] for i, row in enumerate(grid)))
        return cls._of(tuple(tuple(row) for row in grid))._claim(_mirrored(grid))

    @property
    def operands(self) -> tuple[LinearOperator, ...]:
        return tuple(A for row in self.blocks for A in row)

    @memo
    def shape(self) -> tuple[int, ...]:
        batch = common_batch("", self.operands)
        return (
            *batch,
            sum(row[0].shape[-2] for row in self.blocks),
            sum(A.shape[-1] for A in self.blocks[0]),
        )

    _transpose, _adjoint = images(
        lambda self, image: Block([[image(A) for A in column] for column in zip(*self.blocks)])
    )[:2]

    def _conj(self) -> LinearOperator:
        return Block([[A.conj() for A in row] for row in self.blocks])

    def _matmat(self, X: Array) -> Array:
        parts = split_rows(X, [A.shape[-1] for A in self.blocks[0]])
        rows = []
        for row in self.blocks:
            products = [
                A @ part for A, part in zip(row, parts, strict=True) if not isinstance(A, Zero)
            ]
            rows.append(
                reduce(lambda total, Y: total + Y, products) if products else row[0] @ parts[0]
            )
        return concat_batches(namespace_of(X), rows, axis=-2)

    def _to_dense(self) -> Array:
        return dense_grid(self, self.blocks)

    @property
    def _flops(self) -> float:
        return sum(A.flops + A.shape[-2] for A in self.operands)

    def _expression(self) -> str:
        return f"Block([{', '.join('[' + ', '.join(A._expression() for A in row) + ']' for row in self.blocks)}])"


def hstack(*operators: Any) -> LinearOperator:
    """Operators side by side, `[A B ...]`, given one by one or as one list. A product costs one
    with each.

    Examples
    --------
    >>> import colinear as co
    >>> co.hstack(co.Identity(2), co.Diagonal([3.0, 4.0])).to_dense()
    array([[1., 0., 3., 0.],
           [0., 1., 0., 4.]])
    """
    return Block([operator_list("hstack", operators)])


def vstack(*operators: Any) -> LinearOperator:
    """Operators one above the other, given one by one or as one list. A product costs one with
    each.

    Examples
    --------
    >>> import colinear as co
    >>> co.vstack([co.Identity(2), [[3.0, 4.0]]]).to_dense()
    array([[1., 0.],
           [0., 1.],
           [3., 4.]])
    """
    return Block([[A] for A in operator_list("vstack", operators)])


# ---------------------------------------------------------------------- parts


def split_rows(X: Array, sizes: Sequence[int]) -> list[Array]:
    """X cut along its rows into pieces of these sizes (views where the framework has them)."""
    ends = list(accumulate(sizes))
    return [X[..., end - size : end, :] for end, size in zip(ends, sizes, strict=True)]


def dense_grid(whole: LinearOperator, grid: Any) -> Array:
    """The matrix of a grid of operators: its rows of blocks joined; or, where there are zeros among
    small ones, the others put into it by one scatter."""
    xp = whole.xp
    below = list(accumulate((row[0].shape[-2] for row in grid), initial=0))
    beside = list(accumulate((A.shape[-1] for A in grid[0]), initial=0))
    found = [
        (A, i, j)
        for i, row in zip(below, grid)
        for j, A in zip(beside, row)
        if not isinstance(A, Zero)
    ]
    if 0 < len(found) < len(grid) * len(grid[0]) and _are_many_and_small([A for A, _, _ in found]):
        return scatter_blocks(
            whole,
            [dense_part(A, whole) for A, _, _ in found],
            [i for _, i, _ in found],
            [j for _, _, j in found],
        )
    rows = [concat_batches(xp, [dense_part(A, whole) for A in row], axis=-1) for row in grid]
    return xp.broadcast_to(concat_batches(xp, rows, axis=-2), whole.shape)


def _are_many_and_small(blocks: Sequence[LinearOperator]) -> bool:
    """Whether there are many blocks, of few entries each on average."""
    if len(blocks) < MANY_BLOCKS:
        return False
    return sum(A.shape[-2] * A.shape[-1] for A in blocks) <= SMALL_BLOCK_ENTRIES * len(blocks)


def scatter_blocks(
    whole: LinearOperator, blocks: list[Array], rows: list[int], columns: list[int]
) -> Array:
    """The matrix with these blocks, whose first entries are at these rows and columns, and zeros
    elsewhere."""
    xp, n = whole.xp, whole.shape[-1]
    places, values = [], []
    for A, i, j in zip(blocks, rows, columns, strict=True):
        height, width = A.shape[-2:]
        places.append((np.arange(i, i + height)[:, None] * n + np.arange(j, j + width)).reshape(-1))
        flat = xp.reshape(A, (*A.shape[:-2], height * width))
        values.append(xp.broadcast_to(flat, (*whole.batch_shape, height * width)))
    together = xp.astype(xp.concat(values, axis=-1), whole.dtype)
    return scatter_dense(whole, together, np.concatenate(places))


def _checked_grid(blocks: Any) -> list[list[LinearOperator]]:
    """A full grid of operators whose sizes fit, None replaced by zeros."""
    if not blocks or not all(isinstance(row, (list, tuple)) and row for row in blocks):
        raise ShapeError(
            "Block: expected a non-empty list of non-empty rows of operators, [[A, B], [C, D]]."
        )
    if len({len(row) for row in blocks}) > 1:
        raise ShapeError(
            f"Block: the rows have {[len(row) for row in blocks]} blocks; all need the same number."
        )
    operators = iter(as_operators(A for row in blocks for A in row if A is not None))
    given = [[None if A is None else next(operators) for A in row] for row in blocks]
    heights = [
        _size("row", i, [A.shape[-2] for A in row if A is not None]) for i, row in enumerate(given)
    ]
    widths = [
        _size("column", j, [A.shape[-1] for A in column if A is not None])
        for j, column in enumerate(zip(*given, strict=True))
    ]
    anchor = next((A for row in given for A in row if A is not None and not A.is_neutral), None)
    return [
        [Zero(heights[i], widths[j], like=anchor) if A is None else A for j, A in enumerate(row)]
        for i, row in enumerate(given)
    ]


def _size(what: str, i: int, sizes: list[int]) -> int:
    if len(set(sizes)) != 1:
        reason = (
            f"blocks of different sizes {sizes}"
            if sizes
            else "nothing but None, so its size is unknown"
        )
        raise ShapeError(f"Block: {what} {i} has {reason}.")
    return sizes[0]


def _mirrored(grid: list[list[LinearOperator]]) -> int:
    """Self-adjoint or symmetric, if each block is the adjoint or transpose of its mirror image
    (or both are zero)."""
    k = len(grid)
    if any(len(row) != k for row in grid):
        return 0
    pairs = [(grid[i][j], grid[j][i]) for i in range(k) for j in range(i + 1)]
    both_zero = [isinstance(A, Zero) and isinstance(B, Zero) for A, B in pairs]
    mask = 0
    for known, are_images in ((SELF_ADJOINT, are_adjoint), (SYMMETRIC, are_transposed)):
        if all(z or are_images(A, B) for z, (A, B) in zip(both_zero, pairs, strict=True)):
            mask |= known
    return mask
