"""A = Q R of tridiagonal and banded matrices: R has a band again, and Q is a chain of small unitary matrices. Linear time and memory."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import Cost, rule
from ..operators.banded import Banded, natural_length
from ..operators.base import LinearOperator
from ..operators.fourier import pad_end
from ..operators.tridiagonal import Tridiagonal
from ..operators.unitary_chain import UnitaryChain
from ._arrays import identity_like, narrow, wide
from ._values import report_finite
from .factorisations import qr, qr_like

ROWS = 24  # that a matrix of the chain adds: as many as keep the loop short and its matrices cheap


def widths(A: Any) -> tuple[int, int]:
    """How many diagonals there are below and above the main one."""
    return (1, 1) if isinstance(A, Tridiagonal) else (max(0, -min(A.offsets)), max(0, *A.offsets))


def band_is_narrow(A: Any) -> bool:
    """Whether R has fewer diagonals than half of the columns."""
    return 2 * sum(widths(A)) < min(A.shape[-2:])


def rows_each(A: Any) -> int:
    """How many rows each matrix of the chain adds."""
    return max(1, widths(A)[0], min(ROWS, A.shape[-1] // 4))


def chain_cost(A: Any) -> Cost:
    """Of the factors of all windows."""
    (lower, upper), size = widths(A), rows_each(A)
    count = -(-min(A.shape[-2:]) // size)
    return Cost(count * (size + lower) ** 2 * (4.0 * (size + lower) + 2 * upper), 8.0 * count * (size + lower) ** 2)


@rule(qr, Tridiagonal | Banded, when=band_is_narrow, cost=chain_cost, like=qr_like)
def qr_banded(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """B = (Q_1 Q_2 ...) R, where Q_i triangulates the next few columns, which are zero below the rows that it acts on; R has as
    many diagonals above the main one as B has on both sides of it"""
    (lower, upper), (m, n) = widths(A), A.shape[-2:]
    if lower == 0 and m == n:
        return identity_like(A, n), A
    xp, k, size = A.xp, min(m, n), rows_each(A)
    count, width = -(-k // size), lower + upper
    by_rows = _by_rows(A, count * size + lower)

    def step(carry: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
        # What is left of the rows before, and the next rows; the columns start where the rows before are not yet triangular.
        window = xp.concat([pad_end(xp, carry, (width + size,), (-1,)), _skewed(xp, rows)], axis=-2)
        Q, _ = xp.qr(window[..., : size + lower])  # square, so that it has a derivative
        done = xp.matmul(xp.conj(xp.matrix_transpose(Q)), window)
        return done[..., size:, size:], (Q, _straightened(xp, done[..., :size, :], width + 1))

    first = _skewed(xp, by_rows[..., :lower, :])[..., lower:]
    rows = xp.reshape(by_rows[..., lower:, :], (*A.batch_shape, count, size, width + 1))
    blocks, R = xp.scan(step, first, xp.moveaxis(rows, -3, 0))
    blocks, R = xp.moveaxis(blocks, 0, -3), xp.reshape(xp.moveaxis(R, 0, -3), (*A.batch_shape, -1, width + 1))
    report_finite(xp, R, method="QR")
    diagonals = [narrow(xp, R[..., : natural_length(j, k, n), j], A.dtype) for j in range(width + 1)]
    return UnitaryChain._of(narrow(xp, blocks, A.dtype), lower, m, k), Banded(diagonals, range(width + 1), (k, n))


def _by_rows(A: Any, rows: int) -> Array:
    """B[i, j] = A[i, i + j - l]: the band by rows, (*batch, rows, l + u + 1). Past the end the diagonal is 1, so that no window is
    singular for that."""
    xp, (lower, upper), (m, n) = A.xp, widths(A), A.shape[-2:]
    diagonals = (A.lower, A.diag, A.upper) if isinstance(A, Tridiagonal) else A.diagonals
    by_offset = dict(zip((-1, 0, 1) if isinstance(A, Tridiagonal) else A.offsets, diagonals))
    end = max(rows, m)

    def constant(value: float, count: int) -> Array:
        return wide(xp, xp.full((*A.batch_shape, count), value, dtype=A.dtype, device=A._context.device))

    def column(k: int) -> Array:
        d = by_offset.get(k)
        if d is None:
            d = constant(0.0, natural_length(k, m, n))
        d = wide(xp, xp.astype(xp.broadcast_to(d, (*A.batch_shape, d.shape[-1])), A.dtype))
        before = max(0, -k)
        after = constant(0.0 if k else 1.0, end - before - d.shape[-1])
        return xp.concat([constant(0.0, before), d, after], axis=-1)[..., :rows]

    return xp.stack([column(k) for k in range(-lower, upper + 1)], axis=-1)


def _skewed(xp: Any, rows: Array) -> Array:
    """Each row moved one place further to the right than the one before it: (..., s, w) -> (..., s, s + w - 1), by strides alone."""
    s, w = rows.shape[-2:]
    flat = xp.reshape(pad_end(xp, rows, (s + w,), (-1,)), (*rows.shape[:-2], s * (s + w)))
    return xp.reshape(flat[..., : s * (s + w - 1)], (*rows.shape[:-2], s, s + w - 1))


def _straightened(xp: Any, rows: Array, width: int) -> Array:
    """The contrary: (..., s, s + w - 1) -> (..., s, w), the first w numbers of each row from the main diagonal on."""
    s, w = rows.shape[-2:]
    flat = pad_end(xp, xp.reshape(rows, (*rows.shape[:-2], s * w)), (s * (w + 1),), (-1,))
    return xp.reshape(flat, (*rows.shape[:-2], s, w + 1))[..., :width]
