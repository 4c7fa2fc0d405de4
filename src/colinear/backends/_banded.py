"""Products with tridiagonal and banded matrices: what the derivatives of their solves need.

A banded matrix is stored as in LAPACK, `ab[..., u + i - j, j] = A[..., i, j]`, with l diagonals below the main one and u above.
"""

from __future__ import annotations

from typing import Any


def _zeros(xp: Any, X: Any, rows: int) -> Any:
    return xp.zeros((*X.shape[:-2], rows, X.shape[-1]), dtype=X.dtype, device=xp.device_of(X))


def shift(xp: Any, X: Any, by: int) -> Any:
    """Move the rows of (..., n, k) down by `by` (up if negative); zeros come in."""
    n = X.shape[-2]
    zeros = _zeros(xp, X, min(abs(by), n))
    if by == 0 or n == 0:
        return X
    if abs(by) >= n:
        return zeros
    return xp.concat([zeros, X[..., :-by, :]] if by > 0 else [X[..., -by:, :], zeros], axis=-2)


def tridiagonal_matmul(xp: Any, lower: Any, diag: Any, upper: Any, X: Any) -> Any:
    """A X for the tridiagonal A with these diagonals of length n-1, n, n-1."""
    if X.shape[-2] == 0:
        return diag[..., None] * X
    below, above = lower[..., None] * X[..., :-1, :], upper[..., None] * X[..., 1:, :]
    below = xp.concat([_zeros(xp, below, 1), below], axis=-2)
    return below + diag[..., None] * X + xp.concat([above, _zeros(xp, above, 1)], axis=-2)


def banded_matmul(xp: Any, ab: Any, widths: tuple[int, int], X: Any) -> Any:
    """A X. Column j of diagonal r contributes ab[r, j] X[j] to row j + r - u."""
    l, u = widths
    terms = [shift(xp, ab[..., r, :, None] * X, r - u) for r in range(l + u + 1)]
    return sum(terms[1:], terms[0])


def transposed(xp: Any, ab: Any, widths: tuple[int, int]) -> Any:
    """A^T in the same storage, with widths (u, l): row r of it is row l + u - r, moved by l - r."""
    l, u = widths
    rows = [shift(xp, ab[..., l + u - r, :, None], l - r)[..., 0] for r in range(l + u + 1)]
    return xp.stack(rows, axis=-2)


def outer_in_band(xp: Any, Y: Any, X: Any, widths: tuple[int, int]) -> Any:
    """The part of Y X^T inside the band: entry (u + i - j, j) is sum_k Y[i, k] X[j, k]."""
    l, u = widths
    return xp.stack([xp.sum(shift(xp, Y, u - r) * X, axis=-1) for r in range(l + u + 1)], axis=-2)
