"""Low rank, low rank plus a diagonal, Kronecker products and sums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..operators import (
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    ScaledIdentity,
)
from ..properties import SelfAdjoint
from .matrix import Found, Matrix, Search, compose, constant, kronecker_sum_of, norm, shape_text

# Low rank, and low rank plus a diagonal.
#
# Both are ruled out cheaply where they are absent: the rank of a submatrix (for low rank plus
# diagonal, of one without diagonal entries) is at most that of the whole. What remains is found by
# a random sketch of the range (Halko, Martinsson and Tropp 2011).


MOST = 512  # the largest rank that is looked for
SPARE = 8  # columns of a sketch beyond the rank
ROUNDS = 60  # of the alternating iteration
SEED = 0


def low_rank(M: Matrix, tol: float) -> Found | str:
    """A = U V^H with a quarter as many columns as A, or fewer; U U^H, or U C U^H with diagonal
    C, if A is self-adjoint."""
    most = min(min(M.shape) // 4, MOST)
    limit = M.allowed(tol)
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
    """A = L + D: L is known beside the diagonal, and what it is on the diagonal follows from its
    rank.

    If I and J are disjoint sets of rows and columns with rank A[I, J] = rank L, then L[i, i] = A[i,
    J] A[I, J]^+ A[I, i] for every i in neither; a second pair of sets serves those that are. A few
    alternating projections take the rounding out.
    """
    A, n = M.dense, M.shape[0]
    most = min(n // 5, MOST)
    limit = M.allowed(tol)
    random = np.random.default_rng(SEED)
    order = random.permutation(n)
    left, right = order[: n // 2], order[n // 2 :]
    least = _rank(A[np.ix_(left[: most + SPARE], right[: most + SPARE])], limit)
    if least > most:
        return f"the rank beside its diagonal is {least} or more, too large to pay"
    first = _cross(A, left, right, most, limit, random)
    if first is not None:
        left, right = np.setdiff1d(left, first[0]), np.setdiff1d(right, first[1])
        second = _cross(A, left, right, most, limit, random)
    if first is None or second is None:
        return (
            f"the rank beside its diagonal is more than {most}, or not to be seen in two "
            "separate parts"
        )
    diagonal, other = (_interpolated(A, *pair) for pair in (first, second))
    used = np.concatenate(first)
    diagonal[used] = other[used]
    return _alternated(M, np.diagonal(A) - diagonal, len(first[0]), most, limit, random)


def _rank(block: Any, limit: float) -> int:
    """The least rank of what is within `limit` of the block, in the Frobenius norm."""
    if block.shape[0] == block.shape[1]:
        # Every singular value is 1 / |A^-1| or more; a fifth of the work of finding them all.
        with contextlib.suppress(np.linalg.LinAlgError):
            if 1 / norm(np.linalg.inv(block)) > 2 * limit:
                return len(block)
    return _kept(np.linalg.svd(block, compute_uv=False), limit)


def _range(A: Any, least: int, most: int, limit: float, is_noisy: bool, random: Any) -> Any:
    """An orthonormal basis Q with |A - Q Q^H A| <= limit of at most `most` + SPARE columns, or
    None."""
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
        rank = max(1, _kept(np.abs(values), 0.99 * limit, used))
        U, values = Q @ vectors[:, :rank], values[:rank]
        if np.all(values > 0):
            return LowRank((U * np.sqrt(values)).astype(A.dtype))
        return SelfAdjoint(LowRank(U.astype(A.dtype), core=np.diag(values).astype(A.dtype)))
    rest = Q.conj().T @ A
    W, values, Vh = np.linalg.svd(rest, full_matrices=False)
    rank = max(1, _kept(values, 0.99 * limit, norm(A - Q @ rest)))
    return LowRank(
        ((Q @ W[:, :rank]) * values[:rank]).astype(A.dtype), Vh[:rank].conj().T.astype(A.dtype)
    )


def _kept(values: Any, limit: float, used: float = 0.0) -> int:
    """How many singular values to keep, lest what is left out and what is used up already exceed
    the limit."""
    tails = np.sqrt(np.cumsum(np.square(values[::-1], dtype=np.float64))[::-1] + used**2)
    return int(np.count_nonzero(tails > limit))


def _cross(
    A: Any, left: Any, right: Any, most: int, limit: float, random: Any
) -> tuple[Any, Any] | None:
    """As many rows of `left` and columns of `right` as the rank of A[left, right], by pivoting
    in a sketch."""
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


def _interpolated(A: Any, rows: Any, columns: Any) -> Any:
    """A[i, J] A[I, J]^+ A[I, i] for every i."""
    center = A[np.ix_(rows, columns)]
    rounding = float(np.finfo(A.real.dtype).eps) * len(rows)
    weights = np.linalg.lstsq(center, A[rows], rcond=rounding)[0]
    return np.einsum("ij,ji->i", A[:, columns], weights)


def _alternated(M: Matrix, d: Any, rank: int, most: int, limit: float, random: Any) -> Found | str:
    """D = diag(A - L) and L = the nearest of this rank to A - D, in turns, until they fit."""
    A, (n, _) = M.dense, M.shape
    if M.is_hermitian:
        d = d.real.astype(d.dtype)
    # a spectrum without a gap has some more in the whole than in a part
    rank = min(rank + max(SPARE, rank // 4), most)
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


# Kronecker products and sums: blocks that are multiples of one block, or differ from it by
# multiples of the identity.
#
# A = B ⊗ C exactly if its blocks, laid out as the rows of a matrix, are of rank one (Van Loan and
# Pitsianis 1993). A rank of one shows in one row and one column of that matrix, those of the
# largest entry: B and C are read off there, and keep what zeros and equal entries A has. With a
# tolerance, a few steps of the power method go on from there to the nearest B ⊗ C.


SAMPLE = 256  # entries that are looked at before all are
LARGE_SAMPLE = 4096  # among which a large one is found that is nowhere near a diagonal
STEPS = 4  # of the power method: what is near rank one needs no more
MOST_PAIRS = 400  # of factors' shapes that are tried


def kronecker(M: Matrix, tol: float, search: Search) -> Found | str:
    """A = B ⊗ C, the first of the smallest size; C may be such a product itself."""
    if M.nnz == 0 or (M.dense is None and tol > 0):
        return "not looked for approximately in a large sparse matrix" if M.nnz else "zero"
    place = _largest(M)
    pairs = list(_shapes(*M.shape))
    some = M.sample(SAMPLE)
    for inner in pairs[:MOST_PAIRS]:
        if not (_passes(M, place, inner, some) if tol == 0 else _may_pass(M, inner, tol)):
            continue
        factors = _factors(M, place, inner, tol)
        if factors is not None:
            apart, B, C = factors
            parts = _search_both(M, B, C, max(0.0, tol - apart) / 3, search)
            return compose("Kronecker product", parts, _product, _shapes_text(B, C))
    return f"none of {len(pairs)} ways to cut it into blocks gives multiples of one block"


def kronecker_plus_identity(M: Matrix, tol: float, search: Search) -> Found | str:
    """A = B ⊗ C + c I: the covariance of a process on a grid that is seen with noise.

    Where a pivot is neither on the diagonal of its block nor in a block of the diagonal, the row
    and the column that B and C are read off hold no entry of the diagonal of A.
    """
    n = M.shape[0]
    found = M.sample(LARGE_SAMPLE)
    rows, columns, values = some = tuple(part[found[0] != found[1]] for part in found)
    for inner in _shapes(n, n):
        p = inner[0]
        free = (rows // p != columns // p) & (rows % p != columns % p)
        if not free.any():
            continue
        best = np.argmax(np.where(free, np.abs(values), -1))
        place = (int(rows[best]), int(columns[best]))
        if tol == 0 and not _passes(M, place, inner, some):
            continue
        A, (B, C) = M.dense, _read_off(M.dense, place, inner)
        rest = A - np.kron(B, C)
        shift = np.diagonal(rest).mean().astype(A.dtype)
        if not norm(rest - shift * np.eye(n, dtype=A.dtype)) <= M.allowed(tol):
            continue
        return compose(
            "Kronecker product plus identity",
            _search_both(M, B, C, tol / 4, search),
            lambda *parts, shift=shift: _product(*parts) + ScaledIdentity(shift, n),
            f"{_shapes_text(B, C)} + {shift:.3g} I",
        )
    return "no way to cut it into blocks gives one"


def _search_both(M: Matrix, B: Any, C: Any, tol: float, search: Search) -> Iterator[Found]:
    """What is found in two factors or terms of M."""
    return (search(Matrix.of(each, M.eps), tol) for each in (B, C))


def _shapes_text(B: Any, C: Any) -> str:
    return f"{shape_text(B.shape)} ⊗ {shape_text(C.shape)}"


def _product(*parts: Any) -> Any:
    """The Kronecker product of the parts, and of theirs, with identities side by side as one."""
    factors: list[Any] = []
    for part in (
        factor for A in parts for factor in (A.operands if isinstance(A, Kronecker) else (A,))
    ):
        if factors and isinstance(part, Identity) and isinstance(factors[-1], Identity):
            part = Identity(part.shape[-1] * factors.pop().shape[-1], like=part)
        factors.append(part)
    return Kronecker(*factors)


def _largest(M: Matrix) -> tuple[int, int]:
    """The place of the entry of largest size."""
    k = np.argmax(np.abs(M.stored))
    row, column = divmod(k, M.shape[1]) if M.dense is not None else (M.rows[k], M.columns[k])
    return int(row), int(column)


def _shapes(m: int, n: int) -> Iterator[tuple[int, int]]:
    """The shapes that C can have, the largest first; square, if A is."""
    divisors = [[k for k in range(size, 0, -1) if size % k == 0] for size in (m, n)]
    if m == n:
        yield from ((k, k) for k in divisors[0] if 1 < k < n)
        return
    both = [(p, q) for p in divisors[0] for q in divisors[1] if 1 < p * q < m * n]
    # A factor of one row or one column is what every matrix of one row or column has.
    yield from (
        pair
        for pair in sorted(both, key=lambda pair: -pair[0] * pair[1])
        if pair not in ((1, n), (m, 1))
    )


def _passes(M: Matrix, place: tuple[int, int], inner: tuple[int, int], some: Any) -> bool:
    """Whether A[i, j] A[pivot] = B[i, j] C[i, j] holds for some of its entries: most cuts fail
    here, at next to no cost."""
    p, q = inner
    (rows, columns, wanted), (r, c) = some, place
    B = M.at(rows // p * p + r % p, columns // q * q + c % q)
    C = M.at(r // p * p + rows % p, c // q * q + columns % q)
    product = B * (C / M.matrix[place])
    return bool(np.all(np.abs(product - wanted) <= M.rounding * np.abs(wanted)))


def _may_pass(M: Matrix, inner: tuple[int, int], tol: float) -> bool:
    """Whether a part of the matrix of blocks is near enough to rank one; if it is not, neither
    is the whole."""
    (m, n), (p, q), random = M.shape, inner, np.random.default_rng(0)
    block, inside = (
        np.sort(random.permutation(size)[:SAMPLE]) for size in (m * n // (p * q), p * q)
    )
    block = block[:, None]
    part = M.dense[block // (n // q) * p + inside // q, block % (n // q) * q + inside % q]
    return bool(norm(np.linalg.svd(part, compute_uv=False)[1:]) <= tol * M.norm)


def _factors(
    M: Matrix, place: tuple[int, int], inner: tuple[int, int], tol: float
) -> tuple[float, Any, Any] | None:
    B, C = _read_off(M.matrix, place, inner)
    if M.dense is None:  # the search compares the product with A
        return (0.0, B, C) if B.nnz * C.nnz == M.nnz else None
    (m, n), (p, q), A = M.shape, inner, M.dense
    # a row for each block
    R = A.reshape(m // p, p, n // q, q).transpose(0, 2, 1, 3).reshape(-1, p * q)
    b, c = B.ravel(), C.ravel()
    apart = norm(R - np.multiply.outer(b, c)) / M.norm
    if not apart <= M.rounding and tol > 0:
        for _ in range(STEPS):  # the leading singular pair of R
            b = R @ c.conj() / np.vdot(c, c)
            c = (b.conj() @ R) / np.vdot(b, b)
        apart = norm(R - np.multiply.outer(b, c)) / M.norm
    if not apart <= max(tol, M.rounding):
        return None
    return apart, b.reshape(B.shape).astype(A.dtype), c.reshape(inner).astype(A.dtype)


def _read_off(A: Any, place: tuple[int, int], inner: tuple[int, int]) -> tuple[Any, Any]:
    """B and C of A = B ⊗ C: the entries that stand in each block where the pivot does, and its
    block.

    One is divided by the pivot, where that disturbs nothing: a factor whose entries are 0 or the
    pivot, if one is so.
    """
    (p, q), (r, c), pivot = inner, place, A[place]
    top, left = r // p * p, c // q * q
    B, C = A[r % p :: p, c % q :: q], A[top : top + p, left : left + q]
    entries = B if isinstance(B, np.ndarray) else B.data
    is_pattern = bool(np.all((entries == pivot) | (entries == 0)))
    return (B / pivot, C) if is_pattern else (B, C / pivot)


def kronecker_sum(M: Matrix, tol: float, search: Search) -> Found | str:
    """A = B ⊗ I + I ⊗ C, as discretised sums of derivatives in each direction are: C may be such
    a sum itself."""
    M, n = M.dropped(tol), M.shape[0]
    if M.density > 0.5 and n > 4:
        return "too full: in blocks beside the diagonal there is more than their diagonals"
    sizes = [k for k in range(n // 2, 1, -1) if n % k == 0]
    beside = M.rows != M.columns
    weights = M.weights(tol)[beside]
    rows, columns = M.rows[beside], M.columns[beside]
    if len(rows) == 0:
        return "diagonal"
    everything = (rows, columns, weights)
    chosen = np.linspace(0, len(rows) - 1, SAMPLE).astype(np.int64)
    some = tuple(each[chosen] for each in everything)
    for p in sizes:
        # exact structure shows in a few entries, most often that it is not there
        if tol == 0 and not _is_cross(p, tol, *some):
            continue
        if not _is_cross(p, tol, *everything):
            continue
        B, C = _terms(M, p)
        apart = norm(kronecker_sum_of(B, C) - M.S)  # before its parts are searched
        if not B.nnz or not C.nnz or not apart <= M.allowed(tol):
            continue
        parts = _search_both(M, B, C, tol / 4, search)
        return compose("Kronecker sum", parts, KroneckerSum, f"{n // p} ⊕ {p}")
    return f"none of {len(sizes)} ways to cut it into blocks gives one"


def _is_cross(p: int, tol: float, rows: Any, columns: Any, weights: Any) -> bool:
    """Whether every entry is in a diagonal block, or on the diagonal of another one."""
    outside = (rows // p != columns // p) & (rows % p != columns % p)
    return bool(weights[outside].sum() <= tol**2)


def _terms(M: Matrix, p: int) -> tuple[Any, Any]:
    """B and C, from the first entries of all blocks and from the first block.

    A constant may be moved from the diagonal of one to that of the other. It is shared out in
    proportion to what stands beside the diagonals, so that both are diagonally dominant if A is.
    """
    from scipy.sparse import csr_array, diags_array

    d = M.S.diagonal().reshape(-1, p)
    B, C = M.S[::p, ::p], csr_array(M.S[:p, :p])
    B, C = (T - diags_array(T.diagonal(), format="csr") for T in (B, C))
    besides = [float(np.max(abs(T).sum(axis=1), initial=0.0)) for T in (B, C)]
    share = besides[1] / sum(besides) if sum(besides) else 0.5
    # d[i, k] = b[i] + c[k]
    first = d[0, 0] * d.dtype.type(share)
    of_C = first + (d[0] - d[0, 0])
    of_B = d[:, 0] - of_C[0]
    return csr_array(B + diags_array(of_B)), csr_array(C + diags_array(of_C))
