"""What a matrix is beside its structure: self-adjoint, orthonormal, positive definite. Nothing is
claimed that was not shown.

Definiteness is shown by a Cholesky factorisation of A - c I, with c a bound of what rounding can do
(Rump 2006): where it runs to its end, every eigenvalue of A itself is positive. Cheaper and as
good: a diagonal that dominates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operators import LinearOperator
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC
from .matrix import SMALL, Matrix

LARGEST_DENSE = 6000  # rows of a dense matrix that is factored to see whether it is definite
WORK = 5e9  # flops of a banded factorisation for the same


def claims(A: LinearOperator, M: Matrix, apart: float = 0.0) -> int:
    """The properties of A, whose entries are M but for a relative `apart`, as a mask: what it
    knows itself, and what they show."""
    mask = A.properties
    if M.is_hermitian:
        mask |= SELF_ADJOINT
        if not mask & POSITIVE_DEFINITE:
            mask |= definiteness(M, apart * M.norm)
    elif M.is_symmetric:
        mask |= SYMMETRIC
    return mask


def definiteness(M: Matrix, margin: float = 0.0) -> int:
    """POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE or 0, as far as it can be shown, for self-adjoint
    M and what is within `margin` of it."""
    d = M.diagonal.real.astype(np.float64)
    if len(d) == 0 or d.min() < 0:
        return 0
    found = _dominance(M, d - margin)
    if found & POSITIVE_DEFINITE or d.min() == 0:
        return found
    n = M.shape[0]
    width = n - 1 if M.is_full else int(np.max(np.abs(M.columns - M.rows), initial=0))
    if M.dense is not None and n <= LARGEST_DENSE and not (n > 256 and width < n // 8):
        shown = _factors(_shifted(M.dense, _shift(n, n, d) + margin))
    else:
        order = None if n * width**2 <= WORK else _narrow_order(M)
        S = M.S if order is None else M.S[order][:, order].tocsr()
        shown = _factors_in_band(S, d if order is None else d[order], margin)
    return POSITIVE_DEFINITE if shown else found


def is_orthonormal(M: Matrix) -> bool:
    """Whether the columns are orthonormal, to rounding."""
    A = M.dense
    if A is None or A.shape[0] < A.shape[1] or M.density < 0.25:
        return False
    limit = M.rounding
    norms = np.linalg.norm(A, axis=0)
    if not np.all(np.abs(norms - 1) <= limit):
        return False
    return bool(np.max(np.abs(A.conj().T @ A - np.eye(A.shape[1]))) <= limit)


def _dominance(M: Matrix, d: Any) -> int:
    """Gershgorin: every eigenvalue is at least the least of what the diagonal has more than all
    that stands beside it."""
    sums = np.asarray(
        abs(M.S if M.dense is None else M.dense).sum(axis=1, dtype=np.float64)
    ).ravel() - np.abs(d)
    counts = M.shape[1] if M.dense is not None else np.diff(M.S.indptr)
    spare = 4 * counts * np.finfo(np.float64).eps
    if np.all(d - sums > spare * (d + sums)):
        return POSITIVE_DEFINITE
    if np.all(d >= sums) and _adds_exactly(M):
        return POSITIVE_SEMIDEFINITE
    return 0


def _adds_exactly(M: Matrix) -> bool:
    """Whether sums of entries up to the largest are exact: all are multiples of one power of
    two, and small ones."""
    if M.dtype.kind == "c":
        return False
    largest = float(np.max(np.abs(M.stored)))
    unit = 2.0 ** (np.frexp(largest)[1] + 2 - 53)
    return bool(unit > 0 and np.all(np.remainder(M.stored.astype(np.float64), unit) == 0))


def _shift(n: int, width: int, d: Any) -> float:
    """A bound of the backward error of the factorisation of a matrix of so many diagonals:
    gamma_{w+2} times |R^T| |R|."""
    steps = 2.0 * (width + 2) * np.finfo(np.float64).eps
    return float(steps * min(np.sum(d), (2 * width + 1) * np.max(d)))


def _shifted(A: Any, shift: float) -> Any:
    wide = A.astype(np.complex128 if A.dtype.kind == "c" else np.float64)
    wide[np.diag_indices(len(wide))] -= shift
    return wide


def _factors(A: Any) -> bool:
    try:
        np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        return False
    return True


def _narrow_order(M: Matrix) -> Any:
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    return reverse_cuthill_mckee(M.S, symmetric_mode=True)


def _factors_in_band(S: Any, d: Any, margin: float) -> bool:
    """Whether the Cholesky factorisation within the band runs to its end; False, too, if that
    costs too much to try."""
    from scipy.linalg import cholesky_banded

    coordinates = S.tocoo()
    below = coordinates.row >= coordinates.col
    rows, columns, values = coordinates.row[below], coordinates.col[below], coordinates.data[below]
    n, width = S.shape[0], int(np.max(rows - columns, initial=0))
    if n * float(width) ** 2 > WORK or n * float(width + 1) > 32 * SMALL:
        return False
    band = np.zeros((width + 1, n), np.complex128 if values.dtype.kind == "c" else np.float64)
    band[rows - columns, columns] = values
    band[0] -= _shift(n, width, d) + margin
    try:
        cholesky_banded(band, lower=True, overwrite_ab=True, check_finite=False)
    except np.linalg.LinAlgError:
        return False
    return True
