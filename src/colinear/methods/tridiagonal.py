"""Eigenvalues and eigenvectors of a real symmetric tridiagonal matrix on the host (LAPACK, multiple
relatively robust representations)."""

from __future__ import annotations

from typing import Any

import numpy as np


def all_pairs(diag: Any, beside: Any) -> tuple[Any, Any]:
    """All eigenvalues, ascending, and orthonormal eigenvectors: O(n^2)."""
    return _solved(diag, beside)


def few_pairs(diag: Any, beside: Any, k: int, which: str) -> tuple[Any, Any]:
    """The k eigenvalues that `which` names, ascending, and their eigenvectors: O(n k), for the
    smallest magnitudes O(n^2)."""
    n = len(diag)
    if which in ("LA", "LR"):
        return _solved(diag, beside, n - k, n)
    if which in ("SA", "SR"):
        return _solved(diag, beside, 0, k)
    if which == "LM" and 2 * k < n:  # they are at the ends
        ends = np.concatenate([_values(diag, beside, 0, k), _values(diag, beside, n - k, n)])
        low = int((np.argsort(-np.abs(ends), kind="stable")[:k] < k).sum())
        parts = [
            _solved(diag, beside, *ends)
            for ends in ((0, low), (n - (k - low), n))
            if ends[0] < ends[1]
        ]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts], axis=1)
    order = np.argsort(
        np.abs(_values(diag, beside, 0, n)) * (-1 if which == "LM" else 1), kind="stable"
    )[:k]
    values, vectors = _solved(diag, beside, order.min(), order.max() + 1)
    kept = np.sort(order) - order.min()
    return values[kept], vectors[:, kept]


def _values(diag: Any, beside: Any, first: int, last: int) -> Any:
    from scipy.linalg import eigvalsh_tridiagonal

    if last - first == len(diag):
        return eigvalsh_tridiagonal(diag, beside, check_finite=False)
    return eigvalsh_tridiagonal(
        diag, beside, select="i", select_range=(first, last - 1), check_finite=False
    )


def _solved(diag: Any, beside: Any, first: int = 0, last: int | None = None) -> tuple[Any, Any]:
    from scipy.linalg import eigh, eigh_tridiagonal

    n = len(diag)
    last = n if last is None else last
    if n == 1:
        return np.array(diag, copy=True), np.ones((1, 1), diag.dtype)
    try:
        if last - first == n:
            return eigh_tridiagonal(diag, beside, check_finite=False)
        return eigh_tridiagonal(
            diag, beside, select="i", select_range=(first, last - 1), check_finite=False
        )
    except np.linalg.LinAlgError:  # rare, but stemr can fail
        values, vectors = eigh(np.diag(diag) + np.diag(beside, -1) + np.diag(beside, 1))
        return values[first:last], vectors[:, first:last]
