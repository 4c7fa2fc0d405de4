"""Operators made of blocks: a grid of them, a diagonal of them, and stacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import accumulate
from operator import add
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..properties import ALL_PROPERTIES, SELF_ADJOINT, STIEFEL, SYMMETRIC, UNITARY
from .banded import Banded, Tridiagonal, block_diagonal, scatter_dense
from .base import LinearOperator
from .context import common_batch, common_context, concat_batches, has_traced, spread
from .convert import as_operators, flattened, operator_list
from .dense import Dense, Triangular
from .diagonal import Diagonal, Identity, Zero
from .neutral import dense_part
from .sparse import Sparse
from .toeplitz import Circulant, Toeplitz
from .transposed import are_adjoint, are_transposed
from .tree import Shape, images, memo, operand_flops, operand_images, shared

# up to which a copy of a block, or of the places of its entries, costs less than a call for each
SMALL_BLOCK_ENTRIES = 2**12
MANY_BLOCKS = 8  # from which that is so
# the same where a program is traced: each call of it takes its compiler 20 to 90 ms
TRACED_BLOCK_ENTRIES = 2**16
LARGE_BLOCK_ROWS = 512  # from which torch's batched factorisations on CUDA are loops


class BlockDiag(LinearOperator, init=False):
    """Operators along the diagonal, zeros elsewhere. The blocks need not be square.

    Examples
    --------
    >>> import colinear as co
    >>> co.BlockDiag([[1.0, 2.0]], [[3.0]]).to_dense()
    array([[1., 2., 0.],
           [0., 0., 3.]])
    """

    operands: tuple[LinearOperator, ...]

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        given = operator_list("BlockDiag", operands)
        blocks = flattened(BlockDiag, given)
        batch = common_batch("BlockDiag", blocks)
        context = common_context("BlockDiag", blocks)
        if len(blocks) == 1:
            return blocks[0]
        if context.backend is None and all(isinstance(A, Identity) for A in blocks):
            return Identity(sum(A.shape[-1] for A in blocks))
        if all(isinstance(A, Diagonal) for A in blocks):
            parts = [spread(A.d, batch, 1) for A in blocks]
            return Diagonal(blocks[0].xp.concat(parts, axis=-1))
        whole = cls._of(tuple(blocks))
        # what was claimed of nested blocks
        return whole if len(blocks) == len(given) else whole._claim(shared(given))

    @memo
    def shape(self) -> Shape:
        return (
            *common_batch("", self.operands),
            sum(A.shape[-2] for A in self.operands),
            sum(A.shape[-1] for A in self.operands),
        )

    _inherited = ALL_PROPERTIES

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        blocks = None if len(self.operands) < MANY_BLOCKS else self._stack_for(X)
        if blocks is not None:  # the products of all blocks at once
            count, m, n = blocks.shape[-3:]
            Y = blocks._matmat(xp.reshape(X, (*X.shape[:-2], count, n, X.shape[-1])))
            return xp.reshape(Y, (*Y.shape[:-3], count * m, X.shape[-1]))
        parts = split_rows(X, [A.shape[-1] for A in self.operands])
        products = [A @ part for A, part in zip(self.operands, parts)]
        return concat_batches(xp, products, axis=-2)

    def _stack_for(self, X: Array) -> LinearOperator | None:
        """The blocks as one operator where one product of them all costs less than one of each."""
        is_traced = self.xp.is_traced(X) or has_traced(self.operands[0])
        entries = TRACED_BLOCK_ENTRIES if is_traced else SMALL_BLOCK_ENTRIES
        if not are_many_and_small(self.operands, entries):
            return None
        stack = self.stack()
        return stack_alike(self.operands) if stack is None and is_traced else stack

    def _to_dense(self) -> Array:
        if not are_many_and_small(self.operands):
            blocks = [dense_part(A, self) for A in self.operands]
            return self.xp.broadcast_to(block_diagonal(self.xp, blocks), self.shape)
        starts = [
            accumulate(sizes, initial=0) for sizes in zip(*(A.shape[-2:] for A in self.operands))
        ]
        return scatter_blocks(self, list(zip(self.operands, *starts)), self.stack())

    def has_alike_blocks(self) -> bool:
        """Whether the blocks are several matrices, or triangles, of one size and dtype, which are
        treated together. Large ones on a device are not: there libraries factor a batch of them one
        by one, and each alone as what it is, by Cholesky if it is positive."""
        first: Any = self.operands[0]
        if len(self.operands) < 3 or type(first) not in (Dense, Triangular):
            return False
        if min(first.shape[-2:]) >= LARGE_BLOCK_ROWS and self.xp.is_on_device(first.A):
            return False

        def kind(B: Any) -> tuple:
            return B.A.shape, B.A.dtype, *[getattr(B, name) for name in B._fields[1:]]

        like = kind(first)
        return all(type(B) is type(first) and kind(B) == like for B in self.operands)

    def stack(self) -> LinearOperator | None:
        """The blocks as one operator (*batch, count, m, n) if they are alike, else None."""
        blocks: Any = self.operands
        if not self.has_alike_blocks():
            return None
        A = self.xp.stack([block.A for block in blocks], axis=-3)
        sides = [getattr(blocks[0], name) for name in blocks[0]._fields[1:]]
        return type(blocks[0])._of(A, *sides)._claim(self.properties & ~(UNITARY | STIEFEL))

    _flops = operand_flops

    def _expression(self) -> str:
        shown = [A._expression() for A in self.operands[:4]]
        more = f", ... {len(self.operands)} blocks" if len(self.operands) > 4 else ""
        return f"BlockDiag({', '.join(shown)}{more})"


class Block(LinearOperator, init=False):
    """A grid of operators, `Block([[A, B], [C, D]])`; None stands for a zero block.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> saddle = co.Block([[co.PSD(np.eye(2)), np.ones((2, 1))], [np.ones((1, 2)), None]])
    >>> saddle.shape
    (3, 3)
    """

    blocks: tuple[tuple[LinearOperator, ...], ...]

    def __new__(cls, blocks: Any) -> LinearOperator:  # type: ignore[misc]
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
    def shape(self) -> Shape:
        return (
            *common_batch("", self.operands),
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
            products = [A @ part for A, part in zip(row, parts) if not isinstance(A, Zero)]
            rows.append(reduce(add, products) if products else row[0] @ parts[0])
        return concat_batches(namespace_of(X), rows, axis=-2)

    def _to_dense(self) -> Array:
        """Its rows of blocks joined; or, where there are zeros among small ones, the others put
        into it by one scatter."""
        xp = self.xp
        below = list(accumulate((row[0].shape[-2] for row in self.blocks), initial=0))
        beside = list(accumulate((A.shape[-1] for A in self.blocks[0]), initial=0))
        found = [
            (A, i, j)
            for i, row in zip(below, self.blocks)
            for j, A in zip(beside, row)
            if not isinstance(A, Zero)
        ]
        if 0 < len(found) < len(self.operands) and are_many_and_small([A for A, _, _ in found]):
            return scatter_blocks(self, found)
        rows = [concat_batches(xp, [dense_part(A, self) for A in row], -1) for row in self.blocks]
        return xp.broadcast_to(concat_batches(xp, rows, axis=-2), self.shape)

    @property
    def _flops(self) -> float:
        return sum(A.flops + A.shape[-2] for A in self.operands)

    @property
    def _dense_flops(self) -> float:
        return sum(A.dense_flops for A in self.operands) + math.prod(self.shape)

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
    return [X[..., end - size : end, :] for end, size in zip(ends, sizes)]


def are_many_and_small(
    blocks: Sequence[LinearOperator], entries: int = SMALL_BLOCK_ENTRIES
) -> bool:
    """Whether there are many blocks, of few entries each on average."""
    if len(blocks) < MANY_BLOCKS:
        return False
    return sum(A.shape[-2] * A.shape[-1] for A in blocks) <= entries * len(blocks)


STACKED = (Dense, Triangular, Toeplitz, Circulant, Tridiagonal, Banded, Sparse)


def stack_alike(operators: Sequence[LinearOperator]) -> LinearOperator | None:
    """Operators as one with a batch dimension, if nothing but the values of their arrays differs;
    else None."""
    first = operators[0]
    if len(operators) < 3 or type(first) not in STACKED or first.batch_shape:
        return None

    def kind(A: LinearOperator) -> tuple:
        return type(A), A._flatten()[1], [(x.shape, x.dtype) for x in A.arrays()]

    like = kind(first)
    if any(kind(A) != like for A in operators[1:]):
        return None
    columns = zip(*(A.arrays() for A in operators), strict=True)
    stacked: LinearOperator = first.with_arrays([first.xp.stack(x, axis=0) for x in columns])
    return stacked


def scatter_blocks(
    whole: LinearOperator, found: list[tuple[Any, int, int]], stack: LinearOperator | None = None
) -> Array:
    """The matrix with these blocks, whose first entries are at these rows and columns, and zeros
    elsewhere. Blocks that are alike may be given as one operator as well."""
    xp, batch, n = whole.xp, whole.batch_shape, whole.shape[-1]
    places, values = [], []
    for A, i, j in found:
        height, width = A.shape[-2:]
        places.append((np.arange(i, i + height)[:, None] * n + np.arange(j, j + width)).reshape(-1))
        if stack is None:
            flat = xp.reshape(dense_part(A, whole), (*A.batch_shape, height * width))
            values.append(spread(flat, batch, 1))
    together = np.concatenate(places)
    if stack is None:
        entries = xp.astype(xp.concat(values, axis=-1), whole.dtype)
    else:
        entries = xp.reshape(stack.to_dense(), (*batch, len(together)))
    return scatter_dense(whole, entries, together)


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
    heights, widths = _sizes("row", given, -2), _sizes("column", zip(*given), -1)
    anchor = next((A for row in given for A in row if A is not None and not A.is_neutral), None)
    return [
        [Zero(heights[i], widths[j], like=anchor) if A is None else A for j, A in enumerate(row)]
        for i, row in enumerate(given)
    ]


def _sizes(what: str, lines: Iterable[Any], axis: int) -> list[int]:
    """The common size of the blocks of each row, or column."""
    found = []
    for i, line in enumerate(lines):
        sizes = [A.shape[axis] for A in line if A is not None]
        if len(set(sizes)) != 1:
            reason = (
                f"blocks of different sizes {sizes}"
                if sizes
                else "nothing but None, so its size is unknown"
            )
            raise ShapeError(f"Block: {what} {i} has {reason}.")
        found.append(sizes[0])
    return found


def _mirrored(grid: list[list[LinearOperator]]) -> int:
    """Self-adjoint or symmetric, if each block is the adjoint or transpose of its mirror image
    (or both are zero)."""
    k = len(grid)
    if any(len(row) != k for row in grid):
        return 0
    pairs = [(grid[i][j], grid[j][i]) for i in range(k) for j in range(i + 1)]
    pairs = [(A, B) for A, B in pairs if not (isinstance(A, Zero) and isinstance(B, Zero))]
    mask = 0
    for known, are_images in ((SELF_ADJOINT, are_adjoint), (SYMMETRIC, are_transposed)):
        if all(are_images(A, B) for A, B in pairs):
            mask |= known
    return mask
