"""Preconditioners of any operator: the inverse of its diagonal or of the blocks on it, polynomials in
it (Chebyshev's), and low-rank approximations (randomised Nyström, partial Cholesky with pivoting).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    positive_or_one,
)
from ..factors.host import ChebyshevFactor
from ..factors.structured import StackedBlocks
from ..functions.common import filled, ignore_float_errors
from ..functions.diagonal import diag
from ..functions.solve.inverse import inv
from ..methods.lanczos import ritz_values
from ..operators import (
    BlockDiag,
    Dense,
    Diagonal,
    LinearOperator,
    Permutation,
    Product,
)
from ..operators.context import kind_of
from ..operators.tree import Index
from ..properties import PD, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .base import (
    Preconditioner,
    check_integer,
    compiled,
    diagonal_blocks,
    held_fixed,
)

# Jacobi's preconditioner: the inverse of the diagonal.


@dataclass(frozen=True)
class Jacobi(Preconditioner):
    """diag(A)^-1: makes the rows of a badly scaled A comparable. A product costs n.

    The diagonal is read off where a rule knows it, and costs n products with a matrix-free A. Of a
    self-adjoint A absolute values are taken, so that what it gives is positive definite whatever A
    is. Where the diagonal is zero, the inverse of its largest entry stands.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> M = co.Jacobi()(co.PSD([[4.0, 1.0], [1.0, 2.0]]))
    >>> M @ np.ones(2), M.isa(co.PD)
    (array([0.25, 0.5 ]), True)
    """

    def _make(self, A: Any) -> LinearOperator:
        d = diag(A)
        if not A.properties & SELF_ADJOINT:
            return Diagonal(1 / _without_zeros(A.xp, d))
        return PD(Diagonal(A.xp.astype(1 / _without_zeros(A.xp, A.xp.abs(d)), A.dtype)))


def _without_zeros(xp: Any, d: Array) -> Array:
    """d with the largest absolute value in place of what has no finite reciprocal (1 if that is
    zero too). NaN stays, to be seen."""
    size = xp.abs(d)
    largest = xp.max(size, axis=-1, keepdims=True)
    with ignore_float_errors(xp):
        usable = xp.logical_or(xp.isfinite(1 / size), xp.isnan(size))
    return xp.where(usable, d, xp.astype(positive_or_one(xp, largest), d.dtype))


# The inverse of the diagonal blocks.


@dataclass(frozen=True)
class BlockJacobi(Preconditioner):
    """The inverses of the diagonal blocks of A, all of one size at once. A product costs 2 n times
    the size of a block.

    Blocks are read off dense, sparse, low-rank and kernel matrices and sums of them; of any other A
    they cost n products. Of a self-adjoint A the inverses of |block| are taken, so that what it
    gives is positive definite; to a singular block a little of its norm is added.

    Parameters
    ----------
    block_size : int
        Blocks of so many neighbouring rows, the last one of what remains.
    blocks : sequence of sequences of int
        Instead: the rows of each block, every row in one of them.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.PSD(np.diag([2.0, 2.0, 2.0, 2.0]) + np.eye(4)[::-1])
    >>> M = co.BlockJacobi(blocks=[[0, 3], [1, 2]])(A)
    >>> bool(np.allclose(A @ (M @ np.ones(4)), 1))
    True
    """

    block_size: int | None = None
    blocks: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        if (self.block_size is None) == (self.blocks is None):
            raise TypeError(
                "BlockJacobi: give block_size= (an integer) or blocks= (the rows of each block), "
                "one of the two."
            )
        if self.blocks is None:
            check_integer(self, "block_size")
            return
        blocks = tuple(
            tuple(int(i) for i in np.asarray(block).reshape(-1)) for block in self.blocks
        )
        object.__setattr__(self, "blocks", blocks)

    def _make(self, A: Any) -> LinearOperator:
        stacks = list(self._stacks(A.shape[-1]))
        inverse = BlockDiag(
            *(_stacked(_inverse(A, diagonal_blocks(A, Index(places)))) for places in stacks)
        )
        order = np.concatenate([places.reshape(-1) for places in stacks])
        if not np.array_equal(order, np.arange(len(order))):
            # The blocks are gathered by P, P x = x[order], and put back by P^T.
            inverse = Product(Permutation(np.argsort(order)), inverse, Permutation(order))
        return PD(inverse) if A.properties & SELF_ADJOINT else inverse

    def _stacks(self, n: int) -> Any:
        """The rows of blocks, (count, size), for each size that occurs."""
        if self.block_size is not None:
            size = min(self.block_size, n)
            whole = n // size * size
            yield np.arange(whole).reshape(-1, size)
            if whole < n:
                yield np.arange(whole, n).reshape(1, -1)
            return
        assert self.blocks is not None
        given = [i for block in self.blocks for i in block]
        if sorted(given) != list(range(n)):
            raise ValueError(
                f"BlockJacobi: blocks= must have each of the {n} rows of A in one block; it has "
                f"{len(given)} entries."
            )
        for size in sorted({len(block) for block in self.blocks} - {0}):
            yield np.asarray([block for block in self.blocks if len(block) == size])


def _stacked(blocks: LinearOperator) -> LinearOperator:
    return blocks[..., 0, :, :] if blocks.shape[-3] == 1 else StackedBlocks._of(blocks)


def _inverse(A: LinearOperator, blocks: Array) -> LinearOperator:
    """The inverses of all blocks; of |block| where A is self-adjoint but perhaps not positive."""
    xp, size = A.xp, blocks.shape[-1]
    if A.properties & SELF_ADJOINT and not A.properties & POSITIVE_SEMIDEFINITE:
        values, V = xp.eigh(blocks)
        values = xp.abs(values)
        norm = xp.max(values, axis=-1, keepdims=True)
        values = xp.where(values > _negligible(xp, norm, size), values, positive_or_one(xp, norm))
        return PD(Dense(xp.matmul(V / values[..., None, :], adjoint(xp, V))))
    held = xp.stop_gradient(blocks)  # only to see which are singular
    values = xp.eigvalsh(held) if A.properties & SELF_ADJOINT else xp.svd(held)[1]
    least, norm = xp.min(values, axis=-1), xp.max(xp.abs(values), axis=-1)
    little = positive_or_one(xp, norm) * xp.eps(norm.dtype) ** 0.5
    shift = xp.where(least > _negligible(xp, norm, size), 0, little - xp.minimum(least, 0))
    shift = xp.astype(shift, blocks.dtype)[..., None, None]
    shifted = Dense(blocks + shift * eye_like(xp, blocks))
    # The matrices of the inverses: for blocks as small as these, products are many times as fast as
    # triangular solves.
    if not A.properties & SELF_ADJOINT:
        return Dense(inv(shifted, on_failure="ignore").to_dense())
    return PD(Dense(hermitian(xp, inv(PD(shifted), on_failure="ignore").to_dense())))


def _negligible(xp: Any, norm: Array, size: int) -> Array:
    return norm * (10 * size * xp.eps(norm.dtype))


# Chebyshev's polynomial.


@dataclass(frozen=True)
class Chebyshev(Preconditioner):
    """p(A), the polynomial of a degree that is closest to A^-1 on an interval. A product costs
    `degree` products with A.

    It trades inner products, which wait for all processors or for a GPU, for products with A.
    Positive definite if `high` is at least the largest eigenvalue.

    Parameters
    ----------
    degree : int
        Of the polynomial.
    bounds : (float, float), optional
        Between which the eigenvalues lie. By default estimated from `steps` steps of Lanczos's
        method, the upper one with a margin of a twentieth; they are held fixed: derivatives do not
        go through them.
    steps, seed : int
        Of the estimate, and of its random vector.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.PSD(np.diag([1.0, 2.0, 3.0]))
    >>> M = co.Chebyshev(8, bounds=(1, 3))(A)
    >>> bool(np.abs(A @ (M @ np.ones(3)) - 1).max() < 1e-4)
    True
    """

    needs_positive: ClassVar[bool] = True

    degree: int = 8
    bounds: tuple[float, float] | None = None
    steps: int = 12
    seed: Any = 0

    def __post_init__(self) -> None:
        check_integer(self, "degree", least=0)
        check_integer(self, "steps")
        if self.bounds is not None and not 0 < self.bounds[0] <= self.bounds[1]:
            raise ValueError(f"Chebyshev: bounds is {self.bounds!r}; 0 < low <= high are needed.")

    def _make(self, A: Any) -> LinearOperator:
        if self.bounds is None:
            low, high = compiled(interval, held_fixed(A), min(self.steps, A.shape[-1]), self.seed)
        else:
            low, high = (filled(A, bound) for bound in self.bounds)
        return PD(ChebyshevFactor._of(A, low, high, int(self.degree)))


def interval(A: LinearOperator, steps: int, seed: Any) -> tuple[Array, Array]:
    """The ends of the spectrum, the upper one from above: Ritz values of a few Lanczos steps.

    The upper end is the largest of Ritz value + residual (Zhou, Saad, Tiago and Chelikowsky 2006),
    times 1.05; the lower end the smallest Ritz value, as smaller eigenvalues are few.
    """
    xp, n = A.xp, A.shape[-1]
    q = xp.normal(xp.generator(seed), (n,), **kind_of(A))
    q = xp.broadcast_to(q, (*A.batch_shape, n))
    values, residual, _ = ritz_values(xp, A.__matmul__, q, q, steps)
    high = 1.05 * xp.max(values + residual, axis=-1, keepdims=True)
    high = positive_or_one(xp, high)
    low = xp.min(xp.where(values > n * xp.eps(A.dtype) * high, values, high), axis=-1)
    return low, high[..., 0]
