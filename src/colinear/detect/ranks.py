"""Low rank, and low rank plus a diagonal.

Both are ruled out cheaply where they are absent: the rank of a submatrix (for low rank plus diagonal, of one without diagonal entries)
is at most that of the whole. What remains is found by a random sketch of the range (Halko, Martinsson and Tropp 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..operators.identity import ScaledIdentity
from ..operators.lowrank import LowRank
from ..properties import SelfAdjoint
from .matrix import Found, Matrix, constant, norm

LEAST = 12  # rows from which it can pay
MOST = 512  # the largest rank that is looked for
SPARE = 8  # columns of a sketch beyond the rank
ROUNDS = 60  # of the alternating iteration
SEED = 0


def low_rank(M: Matrix, tol: float) -> Found | str:
    """A = U V^H with a quarter as many columns as A, or fewer; U U^H, or U C U^H with diagonal C, if A is self-adjoint."""
    if M.dense is None or min(M.shape) < LEAST:
        return "not looked for in a large sparse matrix" if M.dense is None else "too small to matter"
    most = min(min(M.shape) // 4, MOST)
    limit = max(tol, M.rounding) * M.norm
    random = np.random.default_rng(SEED)
    chosen = [np.sort(random.permutation(size)[: most + SPARE]) for size in M.shape]
    if M.is_square:
        chosen[1] = chosen[0]  # with its diagonal: low rank plus diagonal is ruled out here
    least = _rank(M.dense[np.ix_(*chosen)], limit)
    if least > most:
        return f"its rank is {least} or more, too large to pay"
    Q = _range(M.dense, least, most, limit, tol > 0, random)
    if Q is None:
        return f"its rank is more than {most}, too large to pay"
    operator = _factored(M.dense, Q, limit, M.is_hermitian)
    return Found("low rank", operator, f"rank {operator.U.shape[-1]}")


def low_rank_plus_diagonal(M: Matrix, tol: float) -> Found | str:
    """A = L + D: L is known beside the diagonal, and what it is on the diagonal follows from its rank.

    If I and J are disjoint sets of rows and columns with rank A[I, J] = rank L, then L[i, i] = A[i, J] A[I, J]^+ A[I, i] for every i
    in neither; a second pair of sets serves those that are. A few alternating projections take the rounding out.
    """
    A, n = M.dense, M.shape[0]
    if A is None or not M.is_square or n < 2 * LEAST:
        return (
            "not looked for in a large sparse matrix" if A is None else "not square" if not M.is_square else "too small to matter"
        )
    most = min(n // 5, MOST)
    limit = max(tol, M.rounding) * M.norm
    random = np.random.default_rng(SEED)
    order = random.permutation(n)
    left, right = order[: n // 2], order[n // 2 :]
    least = _rank(A[np.ix_(left[: most + SPARE], right[: most + SPARE])], limit)
    if least > most:
        return f"the rank beside its diagonal is {least} or more, too large to pay"
    diagonal = _completed(A, left, right, most, limit, random)
    if diagonal is None:
        return f"the rank beside its diagonal is more than {most}, or not to be seen in two separate parts"
    return _alternated(M, np.diagonal(A) - diagonal[0], diagonal[1], most, limit, tol > 0, random)


def _rank(block: Any, limit: float) -> int:
    """The least rank of what is within `limit` of the block, in the Frobenius norm."""
    if block.shape[0] == block.shape[1]:
        try:
            inverse = np.linalg.inv(block)
        except np.linalg.LinAlgError:
            inverse = None
        # Every singular value is 1 / |A^-1| or more; a fifth of the work of finding them all.
        if inverse is not None and 1 / norm(inverse) > 2 * limit:
            return len(block)
    values = np.linalg.svd(block, compute_uv=False)
    tails = np.sqrt(np.cumsum(np.square(values[::-1], dtype=np.float64))[::-1])
    return int(np.count_nonzero(tails > limit))


def _range(A: Any, least: int, most: int, limit: float, is_noisy: bool, random: Any) -> Any:
    """An orthonormal basis Q with |A - Q Q^H A| <= limit of at most `most` + SPARE columns, or None."""
    width = min(least + SPARE, min(A.shape))
    while True:
        Y = A @ random.standard_normal((A.shape[1], width)).astype(A.real.dtype)
        if is_noisy:  # what is small beside the range is damped
            Y = A @ (A.conj().T @ np.linalg.qr(Y)[0])
        Q = np.linalg.qr(Y)[0]
        if norm(A - Q @ (Q.conj().T @ A)) <= limit:
            return Q
        if width >= min(most + SPARE, min(A.shape)):
            return None
        width = min(2 * width, most + SPARE)


def _factored(A: Any, Q: Any, limit: float, hermitian: bool) -> Any:
    """Q Q^H A as U V^H, U U^H or U C U^H, of the least rank that stays within the limit."""
    if hermitian:
        core = Q.conj().T @ A @ Q
        values, vectors = np.linalg.eigh((core + core.conj().T) / 2)
        order = np.argsort(-np.abs(values))
        values, vectors = values[order], vectors[:, order]
        used = norm(A - Q @ core @ Q.conj().T)
        rank = max(1, _kept(np.abs(values), limit, used))
        U, values = Q @ vectors[:, :rank], values[:rank]
        if np.all(values > 0):
            return LowRank((U * np.sqrt(values)).astype(A.dtype))
        return SelfAdjoint(LowRank(U.astype(A.dtype), core=np.diag(values).astype(A.dtype)))
    rest = Q.conj().T @ A
    W, values, Vh = np.linalg.svd(rest, full_matrices=False)
    rank = max(1, _kept(values, limit, norm(A - Q @ rest)))
    return LowRank(((Q @ W[:, :rank]) * values[:rank]).astype(A.dtype), Vh[:rank].conj().T.astype(A.dtype))


def _kept(values: Any, limit: float, used: float) -> int:
    """How many singular values to keep, if so much of the limit is used up."""
    tails = np.sqrt(np.cumsum(np.square(values[::-1], dtype=np.float64))[::-1] + used**2)
    return int(np.count_nonzero(tails > limit * 0.99))


def _completed(A: Any, left: Any, right: Any, most: int, limit: float, random: Any) -> tuple[Any, int] | None:
    """The diagonal of L, and its rank."""
    first = _cross(A, left, right, most, limit, random)
    if first is None:
        return None
    second = _cross(A, np.setdiff1d(left, first[0]), np.setdiff1d(right, first[1]), most, limit, random)
    if second is None:
        return None
    diagonal, other = (_interpolated(A, rows, columns, limit) for rows, columns in (first, second))
    used = np.concatenate(first)
    diagonal[used] = other[used]
    return diagonal, len(first[0])


def _cross(A: Any, left: Any, right: Any, most: int, limit: float, random: Any) -> tuple[Any, Any] | None:
    """As many rows of `left` and columns of `right` as the rank of A[left, right], by pivoting in a sketch."""
    from scipy.linalg import qr

    block = A[np.ix_(left, right)]
    width = min(most + SPARE, *block.shape)
    if width == 0:
        return None
    sketch = random.standard_normal((width, len(left))).astype(A.real.dtype) @ block
    _, R, columns = qr(sketch, mode="economic", pivoting=True)
    sizes = np.abs(np.diagonal(R)) / np.sqrt(width)
    rank = int(np.count_nonzero(sizes > limit))
    if not 0 < rank <= most:
        return None
    columns = columns[:rank]
    _, _, rows = qr(block[:, columns].conj().T, mode="economic", pivoting=True)
    return left[rows[:rank]], right[columns]


def _interpolated(A: Any, rows: Any, columns: Any, limit: float) -> Any:
    """A[i, J] A[I, J]^+ A[I, i] for every i."""
    center = A[np.ix_(rows, columns)]
    weights = np.linalg.lstsq(center, A[rows], rcond=float(np.finfo(A.real.dtype).eps) * len(rows))[0]
    return np.einsum("ij,ji->i", A[:, columns], weights)


def _alternated(M: Matrix, d: Any, rank: int, most: int, limit: float, is_noisy: bool, random: Any) -> Found | str:
    """D = diag(A - L) and L = the nearest of this rank to A - D, in turns, until they fit."""
    A, (n, _) = M.dense, M.shape
    if M.is_hermitian:
        d = d.real.astype(d.dtype)
    rank = min(rank + max(SPARE, rank // 4), most)  # a spectrum without a gap has some more in the whole than in a part
    Q = np.linalg.qr((A - np.diag(d)) @ random.standard_normal((n, rank)).astype(A.real.dtype))[0]
    last = np.inf
    for _ in range(ROUNDS):
        L = A - np.diag(d)
        Q = np.linalg.qr(L @ (L.conj().T @ Q))[0]
        rest = Q.conj().T @ L
        R = L - Q @ rest
        beside = norm(R - np.diag(np.diagonal(R)))
        d = d + np.diagonal(R)
        if beside <= limit / 2 or not beside <= 0.95 * last:
            break
        last = beside
    if not beside <= limit:
        return f"rank {rank} and a diagonal leave a residual of {beside / M.norm:.1e}"
    if M.is_hermitian:
        d = d.real.astype(A.dtype)
    L = A - np.diag(d)
    low: Any = _factored(L, np.linalg.qr(L @ Q)[0], 0.8 * limit, M.is_hermitian)
    c = constant(d, limit / 2 / max(norm(d), 1e-300))
    D: LinearOperator = Diagonal(d) if c is None else ScaledIdentity(np.asarray(c, d.dtype), n)
    kind = "a diagonal" if c is None else "a multiple of the identity"
    return Found("low rank plus diagonal", low + D, f"rank {low.U.shape[-1]} and {kind}")
