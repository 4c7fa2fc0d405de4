"""What shows in entries that repeat along diagonals: circulant and Toeplitz matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.toeplitz import Toeplitz
from .matrix import Found, Matrix, entries_at, norm

SAMPLE = 256  # entries that are looked at before all are
LEAST = 4  # rows from which a diagonal can be said to repeat


def circulant(M: Matrix, tol: float) -> Found | str:
    """A[i, j] depends on i - j mod n alone."""
    n = M.shape[0]
    if not M.is_square or n < LEAST:
        return "not square" if not M.is_square else "too small to matter"
    if tol == 0 and not _may_repeat(M):
        return "the entries of a diagonal differ"
    col = _shared(M, (M.rows - M.columns) % n, np.full(n, n), tol)
    return "the entries of a wrapped diagonal differ" if col is None else Found("circulant", Circulant(col))


def toeplitz(M: Matrix, tol: float) -> Found | str:
    """A[i, j] depends on i - j alone."""
    m, n = M.shape
    if min(m, n) < LEAST:
        return "too small to matter"
    if tol == 0 and not _may_repeat(M):
        return "the entries of a diagonal differ"
    offsets = np.arange(1 - n, m)
    lengths = np.minimum(m, n + offsets) - np.maximum(0, offsets)
    shared = _shared(M, M.rows - M.columns + (n - 1), lengths, tol)
    if shared is None:
        return "the entries of a diagonal differ"
    col, row = shared[n - 1 :], shared[n - 1 :: -1]
    if m == n and np.array_equal(row, col.conj()) and np.isreal(col[0]):
        return Found("Toeplitz", Toeplitz(col))
    return Found("Toeplitz", Toeplitz(col, row))


def _may_repeat(M: Matrix) -> bool:
    """Whether the second row of a dense matrix is the first one, moved: what most matrices fail."""
    return M.dense is None or np.array_equal(M.dense[1, 1:], M.dense[0, :-1])


def block_circulant(M: Matrix, tol: float) -> Found | str:
    """Circulant in blocks and inside of them, as a periodic convolution of two dimensions is."""
    n = M.shape[0]
    if not M.is_square or n < LEAST**2 or not M.nnz:
        return "not square" if not M.is_square else "too small to matter"
    rows, columns, values = M.sample(SAMPLE)
    for p in (k for k in range(2, n // 2 + 1) if n % k == 0):
        if tol == 0:  # what is in row i is in the first row, moved
            first = (columns // p - rows // p) % (n // p) * p + (columns % p - rows % p) % p
            if not np.array_equal(entries_at(M, np.zeros_like(first), first), values):
                continue
        labels = (M.rows // p - M.columns // p) % (n // p) * p + (M.rows % p - M.columns % p) % p
        kernel = _shared(M, labels, np.full(n, n), tol)
        if kernel is not None:
            grid = (n // p, p)
            return Found("periodic convolution", Convolution(kernel.reshape(grid), grid), f"on a grid of {n // p} x {p}")
    return "no way to cut it into blocks gives a periodic convolution"


def _shared(M: Matrix, labels: Any, sizes: Any, tol: float) -> Any:
    """For entries in classes, of so many places each: the value of each class, its mean if they may differ by `tol`, or None."""
    if tol == 0:
        counts = np.bincount(labels, minlength=len(sizes))
        values = np.zeros(len(sizes), M.values.dtype)
        values[labels] = M.values
        full = (counts == 0) | (counts == sizes)
        return values if full.all() and np.array_equal(values[labels], M.values) else None
    sums = np.bincount(labels, M.values.real, len(sizes))
    if M.values.dtype.kind == "c":
        sums = sums + 1j * np.bincount(labels, M.values.imag, len(sizes))
    means = (sums / sizes).astype(M.values.dtype)  # the nearest such matrix
    missing = sizes - np.bincount(labels, minlength=len(sizes))
    apart = np.hypot(norm(M.values - means[labels]), norm(np.sqrt(missing) * np.abs(means)))
    return means if apart <= tol * M.norm else None
