"""The diagonal of the inverse of a banded matrix, by two block eliminations: from above and from below."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..operators.banded import Banded
from ..operators.inverse import Inverse
from ._arrays import is_watched, seen
from .diagonal import diag, ones_on_diagonal


def band_is_seen(A: Any) -> bool:
    """Whether one narrow band is inverted, whose values can be seen with no derivative asked."""
    B: Any = A.operands[0]
    narrow = B.shape[-1] == B.shape[-2] and 4 * max(map(abs, B.offsets)) < B.shape[-1]
    exact = B.dtype.itemsize >= 4 and not B.batch_shape
    return narrow and exact and not any(is_watched(B.xp, d) for d in B.diagonals)


@rule(diag, Inverse[Banded], when=band_is_seen, like=ones_on_diagonal)  # type: ignore[misc]
def diag_inverse_banded(A: Any, method: Any) -> Array:
    """diag(B^-1): its blocks are (P_i + Q_i - B_ii)^-1, P and Q the pivots of block elimination from above and from below"""
    B, xp = A.A, A.xp
    found = inverse_diagonal([np.asarray(seen(xp, d)) for d in B.diagonals], B.offsets, B.shape[-1], xp.eps(B.dtype))
    return diag.base(A, method) if found is None else xp.asarray(found, dtype=A.dtype, device=A._context.device)


def inverse_diagonal(diagonals: list[Any], offsets: tuple[int, ...], n: int, eps: float) -> Any:
    """On the host, O(n b^2) for b diagonals on either side; None where elimination without exchanging blocks is not stable."""
    D, L, U = _blocks(diagonals, offsets, n)
    limit = eps**-0.25
    try:
        with np.errstate(all="ignore"):
            P, first = _pivots(D, L, U)
            Q, second = _pivots(D[::-1], U[::-1], L[::-1])
            largest = max(np.abs(P).max(), np.abs(Q).max())
            if not (largest <= limit * np.abs(D).max() and max(first, second) <= limit):
                return None
            inverse = np.linalg.inv(P + Q[::-1] - D)
    except np.linalg.LinAlgError:
        return None
    return np.diagonal(inverse, axis1=-2, axis2=-1).reshape(-1)[:n]


def _blocks(diagonals: list[Any], offsets: tuple[int, ...], n: int) -> tuple[Any, Any, Any]:
    """The blocks on, below and above the diagonal, the last one filled up by the identity."""
    b = max(1, *map(abs, offsets))
    count = -(-n // b)
    whole = np.zeros((3, count, b, b), np.result_type(*diagonals))  # below, on, above
    for d, k in zip(diagonals, offsets, strict=True):
        rows = np.arange(len(d)) + max(0, -k)
        columns = rows + k
        whole[columns // b - rows // b + 1, rows // b, rows % b, columns % b] = d
    for extra in range(n, count * b):
        whole[1, -1, extra % b, extra % b] = 1
    return whole[1], whole[0, 1:], whole[2, :-1]


def _pivots(D: Any, L: Any, U: Any) -> tuple[Any, float]:
    """P_i = D_i - L_i P_i-1^-1 U_i, and the largest multiplier."""
    P, largest = np.array(D), 0.0
    for i in range(1, len(D)):
        multiplier = np.linalg.solve(P[i - 1], U[i - 1])
        largest = max(largest, float(np.abs(multiplier).max()))
        P[i] -= L[i - 1] @ multiplier
    return P, largest
