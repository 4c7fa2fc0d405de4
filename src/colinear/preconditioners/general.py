"""Preconditioners of any operator: the inverse of its diagonal or of the blocks on it, polynomials in
it (Chebyshev's), and low-rank approximations (randomised Nyström, partial Cholesky with pivoting).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    inner_products,
    namespace_of,
    positive_or_one,
)
from ..factors.host import ChebyshevFactor
from ..factors.inverse import Inverse
from ..factors.structured import StackedBlocks
from ..functions.common import filled, ignore_float_errors
from ..functions.diagonal import diag
from ..functions.solve.inverse import inv
from ..info import recording
from ..methods.lanczos import ritz_values
from ..operators import (
    BlockDiag,
    Dense,
    Diagonal,
    Identity,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    ScaledIdentity,
    Sum,
)
from ..operators.context import kind_of
from ..operators.tree import Index
from ..properties import PD, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .base import (
    Preconditioner,
    check_integer,
    column,
    compiled,
    diagonal_blocks,
    held_fixed,
    split_shift,
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


# Randomised Nyström approximation and preconditioner (Frangella, Tropp and Udell 2023), in the
# stable form of Tropp et al. (2017).


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    """U (Λ + c)^-1 U^H + (λ_r + c)^-1 (I - U U^H), for A = K + c I with K ≈ U Λ U^H of rank r, from
    r products with K.

    For kernel matrices and others with eigenvalues that fall off fast; needs products with A alone.
    c is read off a sum with a multiple of I, and 0 otherwise; of K + D with a diagonal D it gives
    (U Λ U^H + D)^-1. O(n rank^2). Its `logdet` is exact and cheap.

    Parameters
    ----------
    rank : int
        r, at most n.
    seed : int
        Of the random block that K is multiplied by.
    shift : float, optional
        c, if A does not show it or another is wanted.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.LowRank(np.arange(1.0, 9.0).reshape(8, 1))) + 0.1 * co.Identity(8)
    >>> M = co.Nystrom(rank=3)(co.PSD(A))
    >>> bool(np.allclose(A @ (M @ np.ones(8)), 1))
    True
    """

    needs_positive: ClassVar[bool] = True

    rank: int
    seed: Any = 0
    shift: float | None = None

    def __post_init__(self) -> None:
        check_integer(self, "rank")
        if self.shift is not None and not self.shift >= 0:
            raise ValueError(f"Nystrom: shift is {self.shift!r}; it must not be negative.")

    def _make(self, A: Any) -> LinearOperator:
        xp, n = A.xp, A.shape[-1]
        K, D = split_shift(A)
        U, values = compiled(approximation, K, min(self.rank, n), self.seed)
        if isinstance(D, Diagonal) and self.shift is None:
            return _inverse_of_sum(U * xp.sqrt(values)[..., None, :], D)
        given: Any = self.shift if self.shift is not None else 0.0 if D is None else _multiple(D)
        # Without a shift the last eigenvalue found may be rounding: what lies below that is not
        # told from it.
        rounding = xp.eps(values.dtype) * math.sqrt(n) * xp.max(values, axis=-1)
        given = given if namespace_of(given) is None else xp.real(given)
        c = positive_or_one(xp, xp.maximum(given + 0 * rounding, rounding))
        last = values[..., -1] + c  # outside the range of U
        P = PD(Sum(LowRank(U * xp.sqrt(values - values[..., -1:])[..., None, :]), _shift(A, last)))
        core = xp.make_diagonal(1 / (values + c[..., None]) - 1 / last[..., None])
        return Inverse(P, PD(Sum(LowRank(U, core=xp.astype(core, A.dtype)), _shift(A, 1 / last))))


def _multiple(D: Any) -> Any:
    return 1.0 if isinstance(D, Identity) else D.c if isinstance(D, ScaledIdentity) else D.scalar


def _shift(A: LinearOperator, c: Array) -> LinearOperator:
    return PD(ScaledIdentity(A.xp.astype(c, A.dtype), A.shape[-1]))


def approximation(K: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array]:
    """U, (*batch, n, rank), orthonormal, and falling values with K ≈ U diag(values) U^H."""
    xp, n, device = K.xp, K.shape[-1], K._context.device
    Q = xp.qr(xp.normal(xp.generator(seed), (n, rank), dtype=K.dtype, device=device))[0]
    Y = K @ Q
    # A little more than rounding on the diagonal makes Q^H K Q positive definite; it is taken off
    # the values again.
    size = xp.stop_gradient(xp.vector_norm(Y, axis=(-2, -1)))
    little = positive_or_one(xp, size) * (math.sqrt(n) * xp.eps(K.dtype))
    Y = Y + xp.astype(little, K.dtype)[..., None, None] * Q
    C = xp.cholesky(hermitian(xp, inner_products(xp, Q, Y)))[0]
    B = adjoint(xp, xp.solve_triangular(C, adjoint(xp, Y), lower=True))  # Y C^-H
    # U and s^2 of B = U s V^H, by B^H B: rounding is that of the largest s^2, which `little` is
    # above; and an n x r decomposition would take longer than all the rest
    squares, V = xp.eigh(hermitian(xp, inner_products(xp, B, B)))
    squares, V = xp.flip(squares, axis=-1), xp.flip(V, axis=-1)
    U = xp.qr(xp.matmul(B, V))[0]
    return U, xp.maximum(squares - little[..., None], 0)


# Partial Cholesky factorisation with pivoting (Harbrecht, Peters and Schneider 2012), as in
# Gardner et al. (2018).


@dataclass(frozen=True)
class PivotedCholesky(Preconditioner):
    """(L L^H + D)^-1, with L the first `rank` columns of a Cholesky factor of K, each for the
    largest diagonal entry that remains.

    Of A = K + D with a diagonal D (noise) K is factored and D kept as it is; of any other A all is
    factored, and D is the mean of the diagonal that remains. The diagonal and `rank` columns of K
    are read, so a kernel matrix is never formed: O(n rank^2) and n rank evaluations. What it gives
    is the `Inverse` of a structured operator: its `logdet` is exact and cheap.

    Parameters
    ----------
    rank : int
        Columns, at most n.
    shift : float, optional
        c, to have D = c I instead.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.LowRank(np.arange(1.0, 9.0).reshape(8, 1)) + 0.1 * co.Identity(8)
    >>> M = co.PivotedCholesky(rank=2)(co.opaque(A.operands[0]) + A.operands[1])
    >>> bool(np.allclose(A @ (M @ np.ones(8)), 1))
    True
    """

    needs_positive: ClassVar[bool] = True

    rank: int
    shift: float | None = None

    def __post_init__(self) -> None:
        check_integer(self, "rank")
        if self.shift is not None and not self.shift > 0:
            raise ValueError(f"PivotedCholesky: shift is {self.shift!r}; it must be positive.")

    def _make(self, A: Any) -> LinearOperator:
        xp, n = A.xp, A.shape[-1]
        K, D = split_shift(A)
        L, remaining, _ = compiled(partial_factor, K, min(self.rank, n))
        if self.shift is not None:
            D = ScaledIdentity(float(self.shift), n, like=A)
        elif D is None:
            total = xp.sum(xp.real(diag(K)), axis=-1)
            # Woodbury's formula cancels where L L^H is large beside D, so D is not left to
            # rounding.
            c = xp.maximum(xp.sum(remaining, axis=-1), total * xp.eps(A.dtype) ** 0.5) / n
            D = _shift(A, positive_or_one(xp, c))
        return _inverse_of_sum(L, D)


def _inverse_of_sum(U: Array, D: LinearOperator) -> LinearOperator:
    """(U U^H + D)^-1. It is an approximation: the method that uses it is judged, not this."""
    P = PD(Sum(LowRank(U), D))
    return Inverse(P, inv(P, on_failure="ignore"))


def partial_factor(
    K: LinearOperator, rank: int, draws: Array | None = None
) -> tuple[Array, Array, Array]:
    """L, (*batch, n, rank), with K ≈ L L^H, the diagonal of K - L L^H, and the smallest number that
    was met there, before it was cut at zero.

    The next pivot is the largest entry of the diagonal that remains; or, with numbers `draws` in
    [0, 1), (*batch, rank), one of a probability proportional to its entry.
    """
    xp, device = K.xp, K._context.device
    d = xp.real(diag(K))
    numbers = xp.arange(K.shape[-1], device=device)
    # what remains of a matrix of lower rank: nothing
    least = K.shape[-1] * xp.eps(d.dtype) * xp.max(d, axis=-1, keepdims=True)
    columns = xp.zeros((*d.shape[:-1], rank, d.shape[-1]), dtype=K.dtype, device=device)

    def step(i: Any, state: Any) -> Any:
        columns, d, lowest = state
        pivot = xp.argmax(d, axis=-1) if draws is None else drawn(xp, d, draws[..., i])
        here = xp.broadcast_to(pivot[..., None, None], (*columns.shape[:-1], 1))
        known = xp.matmul(
            xp.matrix_transpose(columns), xp.conj(xp.take_along_axis(columns, here, -1))
        )[..., 0]  # L L^H e_p
        top = xp.take_along_axis(d, pivot[..., None], -1)
        is_left = top > least
        # what a loop's body hears means nothing outside it
        with recording() if xp.name == "jax" else contextlib.nullcontext():
            entries = column(K, pivot)
        new = xp.where(is_left, (entries - known) / xp.sqrt(xp.where(is_left, top, 1)), 0)
        d = xp.where(numbers == pivot[..., None], 0, d - xp.abs(new) ** 2)
        lowest = xp.minimum(lowest, xp.min(d, axis=-1))
        return xp.set_at(columns, (..., i, slice(None)), new), xp.maximum(d, 0 * d), lowest

    columns, d, lowest = xp.fori_loop(
        rank, step, (columns, xp.maximum(d, 0 * d), xp.min(d, axis=-1))
    )
    return xp.matrix_transpose(columns), d, lowest


def drawn(xp: Any, weights: Array, u: Array) -> Array:
    """The position that the number u in [0, 1) gives, where each has a probability proportional
    to its weight."""
    upto = xp.cumsum(weights, axis=-1)
    before = xp.sum(upto <= u[..., None] * upto[..., -1:], axis=-1)
    return xp.minimum(before, weights.shape[-1] - 1)
