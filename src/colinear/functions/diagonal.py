"""The diagonal and its sum."""

from __future__ import annotations

import math
from bisect import bisect_right
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import add, mul
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import Cost, function, rule
from ..methods import Hutchinson, Method, fitting
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.block import Block, BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.fft import FFT
from ..operators.fields import Index
from ..operators.hadamard import Hadamard
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kernel import Kernel
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.projection import Projection
from ..operators.scaled import Scaled
from ..operators.sliced import Sliced, pick, same
from ..operators.sparse import Sparse
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from ._factorise import square_size
from ._values import place, placed
from .estimate_parts import concatenated, multiplied_estimates, scaled_estimate
from .estimators import DIAGONAL, ROOM, announce, estimated
from .inverse import all_square

AFFORDABLE = 1e12  # flops that `Auto` spends on an exact diagonal
BLOCK = 1 << 20  # entries that the base case holds at a time
POINTS = 32  # of a kernel at a time: it computes all pairs of them, and the diagonal is kept


def main_diagonal(A: LinearOperator, method: Method | None = None) -> Array:
    """The entries on the main diagonal.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    method : Auto, Hutchinson, HutchPP or XDiag, optional
        The last three estimate the diagonal of square A from products with random vectors; `info.error` is the standard error of
        each entry.

    Returns
    -------
    array, (*batch, min(m, n))

    Notes
    -----
    The base case takes n products, in blocks of unit vectors, so that no large matrix is formed. `Auto` estimates, with an
    ApproximationWarning, where these take more than 1e12 flops.

    Examples
    --------
    >>> import colinear as co
    >>> co.diag(co.Kronecker(co.Diagonal([1.0, 2.0]), co.Identity(2)))
    array([1., 1., 2., 2.])
    """
    chosen = fitting("diag", method, *DIAGONAL)
    if chosen.is_stochastic:
        square_size("diag", A, f"{chosen.name}()", "Leave the method out.")
        return estimated(A, chosen, lambda: exact_diagonal(A), True)
    if is_out_of_reach(A, chosen):
        found = Hutchinson(tol=chosen.tol)
        announce("diag", A, found.name)
        return estimated(A, found, lambda: exact_diagonal(A), True)
    return exact_diagonal(A)


def exact_diagonal(A: LinearOperator) -> Array:
    """By n products."""
    if math.prod(A.shape) <= BLOCK:
        return A.xp.diagonal(A.to_dense())
    return _by_unit_vectors(A)


def is_out_of_reach(A: LinearOperator, method: Any) -> bool:
    """Whether n products with square A are more than `Auto` spends."""
    m, n = A.shape[-2:]
    return m == n and not getattr(method, "exact", False) and n * float(A.flops) > AFFORDABLE


def _by_unit_vectors(A: LinearOperator) -> Array:
    """e_j^T A e_j for blocks of j, each of at most `BLOCK` entries."""
    xp, (m, n), device = A.xp, A.shape[-2:], A._context.device
    size = min(m, n)
    width = min(size, max(1, BLOCK // (max(m, n) * max(1, math.prod(A.batch_shape)))))
    blocks = -(-size // width)
    rows, columns, within = (xp.arange(count, device=device) for count in (m, n, width))

    def entries(start: Array) -> Array:
        places = start + within
        products = A @ xp.astype(columns[:, None] == places, A.dtype)
        return xp.sum(xp.where(rows[:, None] == places, products, 0), axis=-2)

    found = xp.moveaxis(xp.loop_map(entries, width * xp.arange(blocks, device=device)), 0, -2)
    return xp.reshape(found, (*A.batch_shape, blocks * width))[..., :size]


def _stand_in(A: LinearOperator) -> Array:
    return A.xp.ones((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


def _choose(A: LinearOperator, method: Method | None) -> tuple[str, Cost, str]:
    chosen, (m, n) = fitting("diag", method, *DIAGONAL), A.shape[-2:]
    if chosen.is_stochastic or is_out_of_reach(A, chosen):
        found = chosen if chosen.is_stochastic else Hutchinson(tol=chosen.tol)
        why = "asked for" if chosen.is_stochastic else "n products would take too long"
        return (
            found.name,
            Cost(min(n, found.most) * A.flops, 8.0 * min(n * found.most, ROOM)),
            f"{why}; products with random vectors",
        )
    return "products", Cost(n * A.flops, 8.0 * min(m * n, BLOCK)), "n products with unit vectors"


diag = function("diag", base=main_diagonal, stand_in=_stand_in, choose=_choose)


# ---------------------------------------------------------------------------------------------------- known diagonals


def _constant(A: LinearOperator, c: Array) -> Array:
    """c, of A's batch shape, for each entry of the diagonal."""
    return c[..., None] * A.xp.ones((min(A.shape[-2:]),), dtype=c.dtype, device=A._context.device)


def zero_diagonal(A: LinearOperator) -> Array:
    return A.xp.zeros((*A.batch_shape, min(A.shape[-2:])), dtype=A.dtype, device=A._context.device)


@rule(diag, Dense)
def diag_dense(A: Any, method: Any) -> Array:
    """diag A is read off"""
    fitting("diag", method)
    return A.xp.diagonal(A.A)


@rule(diag, Diagonal)
def diag_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(d)) = d"""
    return A.d


@rule(diag, Identity | ScaledIdentity)
def diag_identity(A: Any, method: Any) -> Array:
    """diag(c I) = c, n times"""
    c: Any = A.c if isinstance(A, ScaledIdentity) else 1.0
    return (c[..., None] if getattr(c, "ndim", 0) else c) * A.xp.ones((A.shape[-1],), dtype=A.dtype, device=A._context.device)


@rule(diag, Zero)
def diag_zero(A: Any, method: Any) -> Array:
    """diag 0 = 0"""
    return zero_diagonal(A)


@rule(diag, Permutation)
def diag_permutation(A: Any, method: Any) -> Array:
    """diag(P)_i = 1 where perm_i = i, else 0"""
    if isinstance(A.perm, Index):
        return A.xp.asarray(A.perm.host == np.arange(A.shape[-1]), dtype=A.dtype, device=A._context.device)
    return A.xp.astype(A.perm == A.xp.arange(A.shape[-1], device=A._context.device), A.dtype)


@rule(diag, Triangular)
def diag_triangular(A: Any, method: Any) -> Array:
    """diag T is stored, or all ones"""
    return _stand_in(A) if A.unit else A.xp.diagonal(A.A)


@rule(diag, Tridiagonal)
def diag_tridiagonal(A: Any, method: Any) -> Array:
    """diag T is stored"""
    return A.xp.broadcast_to(A.diag, A.shape[:-1])


@rule(diag, Banded)
def diag_banded(A: Any, method: Any) -> Array:
    """diag B is stored, or zero"""
    return zero_diagonal(A) if 0 not in A.offsets else zero_diagonal(A) + A.diagonals[A.offsets.index(0)]


@rule(diag, Circulant | Toeplitz)
def diag_toeplitz(A: Any, method: Any) -> Array:
    """diag T = t_0, n times"""
    return zero_diagonal(A) if 0 in A.shape else zero_diagonal(A) + A.col[..., :1]


@rule(diag, Convolution)
def diag_convolution(A: Any, method: Any) -> Array:
    """diag K: the kernel at its origin, n times"""
    if 0 in A.shape:
        return zero_diagonal(A)
    kernel, origin = A._fitted()
    return _constant(A, kernel[(..., *origin)])


@rule(diag, FFT)
def diag_fft(A: Any, method: Any) -> Array:
    """diag(F)_j = exp(-2πi j^2 / n) / sqrt(n), a Kronecker product over the grid"""
    sign = 1 if A.inverse else -1
    # j^2 mod n in integers, so that the angles are small and exact
    lines = [np.exp(sign * 2j * np.pi * (np.arange(n) ** 2 % n) / n) / math.sqrt(n) for n in A.grid]
    return A.xp.asarray(reduce(np.kron, lines), dtype=A.dtype, device=A._context.device)


@rule(diag, Householder)
def diag_householder(A: Any, method: Any) -> Array:
    """diag(I - 2 v v^H / v^H v)_i = 1 - 2 |v_i|^2 / v^H v"""
    if 0 in A.shape:
        return zero_diagonal(A)
    w, squared = A._scaled()
    return A.xp.astype(1 - 2 * (A.xp.real(A.xp.conj(w) * w) / squared)[..., 0], A.dtype)


@rule(diag, Projection)
def diag_projection(A: Any, method: Any) -> Array:
    """diag(Q Q^H)_i = |Q_i|^2"""
    return A.xp.sum(A.Q * A.xp.conj(A.Q), axis=-1)


@rule(diag, LowRank)
def diag_low_rank(A: Any, method: Any) -> Array:
    """diag(U C V^H)_i = (U C)_i · conj(V_i)"""
    xp, size = A.xp, min(A.shape[-2:])
    U = A.U if A.core is None else xp.matmul(A.U, A.core)
    V = A.U if A.V is None else A.V
    return xp.sum(U[..., :size, :] * xp.conj(V[..., :size, :]), axis=-1)


@rule(diag, Sparse)
def diag_sparse(A: Any, method: Any) -> Array:
    """diag S: the entries stored on it"""
    structure = A.structure
    places = structure.memo.get("diagonal")
    if places is None:
        places = structure.memo["diagonal"] = (structure.rows == structure.columns).nonzero()[0]
    return A.xp.scatter_add(zero_diagonal(A), structure.rows[places], A.xp.take(A.data, places, axis=-1), axis=-1)


@rule(diag, Kernel)
def diag_kernel(A: Any, method: Any) -> Array:
    """diag(K)_i = k(x_i, y_i), in blocks of points"""
    fitting("diag", method)
    xp, batch, size = A.xp, A.batch_shape, min(A.shape[-2:])
    if 0 in (size, *batch):
        return zero_diagonal(A)
    blocks = -(-size // POINTS)
    which = Index(np.minimum(np.arange(blocks * POINTS), size - 1)).on(xp, A._context.device)  # the last point repeats
    tiles = []
    for points in A._points():
        points = xp.broadcast_to(xp.take(points, which, axis=-2), (*batch, blocks * POINTS, points.shape[-1]))
        tiles.append(xp.reshape(points, (math.prod(batch) * blocks, POINTS, points.shape[-1])))
    found = xp.loop_map(lambda x, y: xp.diagonal(A._entries(x, y)), *tiles)
    return xp.reshape(found, (*batch, blocks * POINTS))[..., :size]


# ---------------------------------------------------------------------------------------------------- compositions


@rule(diag, Sum)
def diag_sum(A: Any, method: Any) -> Array:
    """diag(A + B) = diag A + diag B"""
    return reduce(add, (diag(term, method) for term in placed(A)))


@rule(diag, Scaled, estimates=True)
def diag_scaled(A: Any, method: Any) -> Array:
    """diag(c A) = c diag A"""
    if method is not None and method.is_stochastic:
        return scaled_estimate(diag, A.scalar, A.A, method, 1)
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


@rule(diag, Kronecker, when=all_square, estimates=True)
def diag_kronecker(A: Any, method: Any) -> Array:
    """diag(A ⊗ B) = diag A ⊗ diag B, both square"""
    if method is not None and method.is_stochastic:
        return multiplied_estimates(diag, placed(A), method, partial(outer, mul))
    return reduce(partial(outer, mul), (diag(factor, method) for factor in placed(A)))


@rule(diag, KroneckerSum)
def diag_kronecker_sum(A: Any, method: Any) -> Array:
    """diag(A ⊕ B) = diag A ⊕ diag B"""
    return reduce(partial(outer, add), (diag(term, method) for term in placed(A)))


@rule(diag, BlockDiag, when=all_square, estimates=True)
def diag_block_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(A, B)) = (diag A, diag B), both square"""
    if method is not None and method.is_stochastic:
        return concatenated(diag, placed(A), method, partial(_beside, A))
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


def _beside(A: LinearOperator, parts: list[Array], dtype: Any = None) -> Array:
    xp, batch = A.xp, A.batch_shape
    parts = [xp.astype(xp.broadcast_to(part, (*batch, part.shape[-1])), dtype or A.dtype) for part in parts]
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
