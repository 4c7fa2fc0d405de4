"""Cyclic reduction (Hockney 1965) of tridiagonal systems: every other row is eliminated at once, so
that a device takes log2(n) levels of a dozen launches where elimination row by row takes n.

It is elimination without exchanges in another order, so as stable as that is of a diagonally dominant
matrix, whose pivots are none the smaller for it. There, with ratio r of the sum of a row's other
entries to its diagonal, that of the rows left is at most r^2: once it is below rounding, they are
diagonal, and the levels end.

Differs from the paper: for any diagonally dominant matrix and any n, in normalised rows,

    x_i = d_i + a_i x_(i-1) + c_i x_(i+1),

of which a and c are the first two rows of one array Z, and the columns of d the others.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array


def dominance(xp: Any, lower: Array, diag: Array, upper: Array) -> tuple[Array, Array]:
    """The largest ratio of the sum of the other entries to the diagonal one, of all rows and of all
    columns; NaN or infinity where a diagonal entry is zero."""
    l, d, u = map(xp.abs, (lower, diag, upper))
    before, after = (lambda x: xp.pad(x, 1, 0, -1)), (lambda x: xp.pad(x, 0, 1, -1))
    return xp.max((before(l) + after(u)) / d), xp.max((before(u) + after(l)) / d)


def levels_of(n: int, ratio: float, eps: float) -> int:
    """After how many levels the rows left are diagonal to rounding, or one is left."""
    most = n.bit_length() - 1
    if ratio >= 1:
        return most
    if ratio < eps:
        return 0
    return min(most, math.ceil(math.log2(max(math.log(eps / 8) / math.log(ratio), 1))))


def solve(xp: Any, lower: Array, diag: Array, upper: Array, B: Array, levels: int) -> Array:
    """X of T X = B for diagonals (*batch, n - 1), (*batch, n), (*batch, n - 1) and B (*batch, n,
    k)."""
    Z, eliminated, sizes = _normalised(xp, lower, diag, upper, B), [], []
    for _ in range(levels):
        sizes.append(Z.shape[-1])
        rows, Z, _ = _halved(xp, Z)
        eliminated.append(rows)
    X = Z[..., 2:, :]
    for rows, n in zip(reversed(eliminated), reversed(sizes)):
        near = xp.pad(X, 1, 1, -1)
        before, after = near[..., :-1], near[..., 1:]
        own = rows[..., 2:, :] + rows[..., :1, :] * before + rows[..., 1:2, :] * after
        both = xp.stack([own, after], axis=-1)
        X = xp.reshape(both, (*both.shape[:-2], 2 * both.shape[-2]))[..., :n]
    return xp.matrix_transpose(X)


def pivots(xp: Any, lower: Array, diag: Array, upper: Array, levels: int) -> Array:
    """The numbers whose product is det T, along the last axis."""
    Z, found = _normalised(xp, lower, diag, upper, None), [diag]
    for _ in range(levels):
        _, Z, pivot = _halved(xp, Z)
        found.append(pivot[..., 0, :])
    return xp.concat(found, axis=-1)


def _normalised(xp: Any, lower: Array, diag: Array, upper: Array, B: Array | None) -> Array:
    """Z of these rows, divided by their diagonal entries."""
    rows = [-xp.pad(lower, 1, 0, -1)[..., None, :], -xp.pad(upper, 0, 1, -1)[..., None, :]]
    rows += [] if B is None else [xp.matrix_transpose(B)]
    return xp.concat(rows, axis=-2) / diag[..., None, :]


def _halved(xp: Any, Z: Array) -> tuple[Array, Array, Array]:
    """The rows 0, 2, ..., the other rows without these unknowns, and the pivots of the latter.

    With the rows before and behind, row i becomes (1 - a_i c_(i-1) - c_i a_(i+1)) x_i =
    (d_i + a_i d_(i-1) + c_i d_(i+1)) + a_i a_(i-1) x_(i-2) + c_i c_(i+1) x_(i+2).
    """
    if Z.shape[-1] % 2 == 0:
        Z = xp.pad(Z, 0, 1, -1)
    eliminated, kept = Z[..., ::2], Z[..., 1::2]
    first = kept[..., :1, :] * eliminated[..., :-1]
    second = kept[..., 1:2, :] * eliminated[..., 1:]
    pivot = 1 - first[..., 1:2, :] - second[..., :1, :]
    right = kept[..., 2:, :] + first[..., 2:, :] + second[..., 2:, :]
    rows = xp.concat([first[..., :1, :], second[..., 1:2, :], right], axis=-2)
    return eliminated, rows / pivot, pivot
