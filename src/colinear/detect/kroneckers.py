"""Kronecker products and sums: blocks that are multiples of one block, or differ from it by multiples of the identity.

A = B ⊗ C exactly if its blocks, laid out as the rows of a matrix, are of rank one (Van Loan and Pitsianis 1993). A rank of one shows in
one row and one column of that matrix, those of the largest entry: B and C are read off there, and keep what zeros and equal entries A
has. With a tolerance, a few steps of the power method go on from there to the nearest B ⊗ C.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker, KroneckerSum
from .matrix import Found, Matrix, entries_at, norm

SAMPLE = 256  # entries that are looked at before all are
LARGE_SAMPLE = 4096  # among which a large one is found that is nowhere near a diagonal
STEPS = 4  # of the power method: what is near rank one needs no more
MOST_PAIRS = 400  # of factors' shapes that are tried


def kronecker(M: Matrix, tol: float, search: Callable[[Matrix, float], Found]) -> Found | str:
    """A = B ⊗ C, the first of the smallest size; C may be such a product itself."""
    if M.nnz == 0 or (M.dense is None and tol > 0):
        return "not looked for approximately in a large sparse matrix" if M.nnz else "zero"
    place, pivot = _largest(M)
    pairs = list(_shapes(*M.shape))
    some = M.sample(SAMPLE)
    for inner in pairs[:MOST_PAIRS]:
        if not (_passes(M, place, pivot, inner, some) if tol == 0 else _may_pass(M, inner, tol)):
            continue
        factors = _factors(M, place, pivot, inner, tol)
        if factors is None:
            continue
        apart, B, C = factors
        rest = max(0.0, tol - apart) / 3
        parts = tuple(search(factor, rest) for factor in (B, C))
        detail = f"{_size(B)} ⊗ {_size(C)}"
        return Found("Kronecker product", _product([part.operator for part in parts]), detail, parts)
    return f"none of {len(pairs)} ways to cut it into blocks gives multiples of one block"


def kronecker_plus_identity(M: Matrix, tol: float, search: Callable[[Matrix, float], Found]) -> Found | str:
    """A = B ⊗ C + c I: the covariance of a process on a grid that is seen with noise.

    Where a pivot is neither on the diagonal of its block nor in a block of the diagonal, the row and the column that B and C are read
    off hold no entry of the diagonal of A.
    """
    n = M.shape[0]
    if not M.is_square or M.dense is None or n < 9:
        return (
            "not square"
            if not M.is_square
            else "not looked for in a large sparse matrix"
            if M.dense is None
            else "too small to matter"
        )
    found = M.sample(LARGE_SAMPLE)
    rows, columns, values = some = tuple(part[found[0] != found[1]] for part in found)
    for inner in _shapes(n, n):
        p = inner[0]
        free = (rows // p != columns // p) & (rows % p != columns % p)
        if not free.any():
            continue
        best = int(np.argmax(np.where(free, np.abs(values), -1)))
        place, pivot = (int(rows[best]), int(columns[best])), values[best]
        if tol == 0 and not _passes(M, place, pivot, inner, some):
            continue
        (r, c), A = place, M.dense
        top, left = r // p * p, c // p * p
        B, C = _scaled(A[r % p :: p, c % p :: p], A[top : top + p, left : left + p], pivot)
        rest = A - np.kron(B, C)
        shift = np.diagonal(rest).mean().astype(A.dtype)
        if not norm(rest - shift * np.eye(n, dtype=A.dtype)) <= max(tol, M.rounding) * M.norm:
            continue
        parts = tuple(search(Matrix.of(factor, M.eps), tol / 4) for factor in (B, C))
        whole = _product([part.operator for part in parts]) + ScaledIdentity(shift, n)
        return Found("Kronecker product plus identity", whole, f"{n // p}x{n // p} ⊗ {p}x{p} + {shift:.3g} I", parts)
    return "no way to cut it into blocks gives one"


def _product(parts: list[Any]) -> Any:
    """The Kronecker product of the parts, and of theirs, with identities side by side as one."""
    factors: list[Any] = []
    for part in (factor for A in parts for factor in (A.operands if isinstance(A, Kronecker) else (A,))):
        if factors and isinstance(part, Identity) and isinstance(factors[-1], Identity):
            part = Identity(part.shape[-1] * factors.pop().shape[-1], like=part)
        factors.append(part)
    return Kronecker(*factors)


def _largest(M: Matrix) -> tuple[tuple[int, int], Any]:
    """The place and the value of the entry of largest size."""
    if M.dense is not None:
        row, column = np.unravel_index(int(np.argmax(np.abs(M.dense))), M.shape)
        return (int(row), int(column)), M.dense[row, column]
    k = int(np.argmax(np.abs(M.values)))
    return (int(M.rows[k]), int(M.columns[k])), M.values[k]


def _shapes(m: int, n: int) -> Iterator[tuple[int, int]]:
    """The shapes that C can have, the largest first; square, if A is."""
    divisors = [[k for k in range(size, 0, -1) if size % k == 0] for size in (m, n)]
    if m == n:
        yield from ((k, k) for k in divisors[0] if 1 < k < n)
        return
    both = [(p, q) for p in divisors[0] for q in divisors[1] if 1 < p * q < m * n]
    # A factor of one row or one column is what every matrix of one row or column has.
    yield from (pair for pair in sorted(both, key=lambda pair: -pair[0] * pair[1]) if pair not in ((1, n), (m, 1)))


def _passes(M: Matrix, place: tuple[int, int], pivot: Any, inner: tuple[int, int], some: Any) -> bool:
    """Whether A[i, j] A[pivot] = B[i, j] C[i, j] holds for some of its entries: most cuts fail here, at next to no cost."""
    p, q = inner
    (rows, columns, wanted), (r, c) = some, place
    B = entries_at(M, rows // p * p + r % p, columns // q * q + c % q)
    C = entries_at(M, r // p * p + rows % p, c // q * q + columns % q)
    return bool(np.all(np.abs(B * (C / pivot) - wanted) <= M.rounding * np.abs(wanted)))


def _may_pass(M: Matrix, inner: tuple[int, int], tol: float) -> bool:
    """Whether a part of the matrix of blocks is near enough to rank one; if it is not, neither is the whole."""
    (m, n), (p, q), random = M.shape, inner, np.random.default_rng(0)
    some = [
        np.sort(random.permutation(size)[:SAMPLE])[axis] for size, axis in ((m * n // (p * q), np.s_[:, None]), (p * q, np.s_[:]))
    ]
    block, inside = some
    part = M.dense[block // (n // q) * p + inside // q, block % (n // q) * q + inside % q]
    return bool(norm(np.linalg.svd(part, compute_uv=False)[1:]) <= tol * M.norm)


def _factors(
    M: Matrix, place: tuple[int, int], pivot: Any, inner: tuple[int, int], tol: float
) -> tuple[float, Matrix, Matrix] | None:
    (p, q), (r, c) = inner, place
    top, left = r // p * p, c // q * q
    if M.dense is None:
        B, C = _scaled(M.S[r % p :: p, c % q :: q], M.S[top : top + p, left : left + q], pivot)
        if B.nnz * C.nnz != M.nnz:
            return None
        return 0.0, Matrix.of(B, M.eps), Matrix.of(C, M.eps)  # the search compares the product with A
    (m, n), A = M.shape, M.dense
    R = A.reshape(m // p, p, n // q, q).transpose(0, 2, 1, 3).reshape(-1, p * q)  # a row for each block
    b, c = _scaled(A[r % p :: p, c % q :: q].ravel(), A[top : top + p, left : left + q].ravel(), pivot)
    apart = norm(R - np.multiply.outer(b, c)) / M.norm
    if not apart <= M.rounding and tol > 0:
        for _ in range(STEPS):  # the leading singular pair of R
            b = R @ c.conj() / np.vdot(c, c)
            c = (b.conj() @ R) / np.vdot(b, b)
        apart = norm(R - np.multiply.outer(b, c)) / M.norm
    if not apart <= max(tol, M.rounding):
        return None
    B, C = b.reshape(m // p, n // q), c.reshape(p, q)
    return apart, Matrix.of(B.astype(A.dtype), M.eps), Matrix.of(C.astype(A.dtype), M.eps)


def _scaled(B: Any, C: Any, pivot: Any) -> tuple[Any, Any]:
    """B ⊗ C / pivot, with the division where it disturbs nothing: in a factor whose entries are 0 or the pivot, if one is so."""
    entries = B if isinstance(B, np.ndarray) else B.data
    is_pattern = bool(np.all((entries == pivot) | (entries == 0)))
    return (B / pivot, C) if is_pattern else (B, C / pivot)


def kronecker_sum(M: Matrix, tol: float, search: Callable[[Matrix, float], Found]) -> Found | str:
    """A = B ⊗ I + I ⊗ C, as discretised sums of derivatives in each direction are: C may be such a sum itself."""
    M, n = M.dropped(tol), M.shape[0]
    if not M.is_square:
        return "not square"
    if M.density > 0.5 and n > 4:
        return "too full: in blocks beside the diagonal there is more than their diagonals"
    sizes = [k for k in range(n // 2, 1, -1) if n % k == 0]
    beside = M.rows != M.columns
    weights = M.weights(tol)[beside]
    rows, columns = M.rows[beside], M.columns[beside]
    if len(rows) == 0:
        return "diagonal"
    some = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(np.int64)) if tol == 0 else slice(None)
    for p in sizes:
        if not _is_cross(rows[some], columns[some], weights[some], p, tol) or not _is_cross(rows, columns, weights, p, tol):
            continue
        B, C = _terms(M, p)
        if not B.nnz or not C.nnz or not _agrees(M, B, C, p, tol):
            continue
        parts = tuple(search(Matrix.of(term, M.eps), tol / 4) for term in (B, C))
        return Found("Kronecker sum", KroneckerSum(*(part.operator for part in parts)), f"{n // p} ⊕ {p}", parts)
    return f"none of {len(sizes)} ways to cut it into blocks gives one"


def _is_cross(rows: Any, columns: Any, weights: Any, p: int, tol: float) -> bool:
    """Whether every entry is in a diagonal block, or on the diagonal of another one."""
    outside = (rows // p != columns // p) & (rows % p != columns % p)
    return bool(weights[outside].sum() <= tol**2)


def _terms(M: Matrix, p: int) -> tuple[Any, Any]:
    """B and C, from the first entries of all blocks and from the first block.

    A constant may be moved from the diagonal of one to that of the other. It is shared out in proportion to what stands beside the
    diagonals, so that both are diagonally dominant if A is.
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
    terms = tuple(csr_array(T + diags_array(e, format="csr")) for T, e in ((B, of_B), (C, of_C)))
    return terms[0], terms[1]


def _agrees(M: Matrix, B: Any, C: Any, p: int, tol: float) -> bool:
    """Whether B ⊗ I + I ⊗ C is A, before its parts are searched."""
    from scipy.sparse import eye_array, kron

    dtype = M.dtype
    whole = kron(B, eye_array(p, dtype=dtype), "csr") + kron(eye_array(M.shape[0] // p, dtype=dtype), C, "csr")
    return norm((whole - M.S).data) <= max(tol, M.rounding) * M.norm


def _size(M: Matrix) -> str:
    return "x".join(map(str, M.shape))
