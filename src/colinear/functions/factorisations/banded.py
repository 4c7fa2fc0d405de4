"""A = P L U, L L^H and Q R of banded and sparse matrices, within their bands and fill."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...backends import Array, inner_products
from ...dispatch import Cost, rule
from ...factors.dense import UnitaryChain
from ...factors.structured import lapack_band
from ...info import Info, report
from ...methods.sparse_direct import factors_in_order, stays_sparse
from ...operators import Banded, LinearOperator, Permutation, ScaledIdentity, Sparse, Tridiagonal
from ...operators.banded import band_widths, natural_length, pad_end
from ...operators.context import kind_of
from ...operators.rewrites import is_scattered
from ...operators.sparse import from_coordinates
from ...status import Status
from ..common import (
    array_like,
    host_array,
    identity_like,
    is_square,
    is_traced_or_differentiated,
    report_finite,
    reports_nonfinite,
    smaller_side,
    to_computing_dtype,
    to_result_dtype,
    values_are_seen,
)
from . import cholesky, lu, lu_factors, lu_like, qr, qr_like
from .rules import report_positive

# A = P L U of banded matrices, within the band, and of sparse ones, both on the host; A = L L^H of
# sparse ones.


Factors = tuple[LinearOperator, LinearOperator, LinearOperator]


def band_is_seen(A: Any) -> bool:
    """Whether it is square and of a narrow band, whose values can be seen with no derivative
    asked."""
    if isinstance(A, Banded) and is_scattered(A):
        return False
    narrow = is_square(A) and 2 * (max(band_widths(A)) + 1) < A.shape[-1]
    return narrow and 0 not in A.batch_shape and values_are_seen(A)


@rule(lu, Tridiagonal | Banded, when=band_is_seen, like=lu_like)
def lu_banded(A: Any, method: Any) -> Factors:
    """B = P L U, where U has as many diagonals more as B has below, and L as many entries in a
    column: sparse if rows were swapped"""
    from scipy.linalg import get_lapack_funcs

    xp, n, batch = A.xp, A.shape[-1], A.batch_shape
    below, above = band_widths(A)
    # each diagonal by itself: what is computed from them inside a traced program is traced
    bands = lapack_band(A._map(partial(host_array, xp)), below, below + above)
    factor = get_lapack_funcs("gbtrf", (bands,))  # U above and the multipliers below, row exchanges
    each = [factor(bands[at], below, above)[:2] for at in np.ndindex(batch)]
    packed, swaps = (np.stack(parts).reshape(*batch, *parts[0].shape) for parts in zip(*each))
    report_finite(xp, xp.asarray(packed), method="LU")
    put = partial(array_like, A)
    main = packed.shape[-2] - 1 - below
    U = Banded([put(packed[..., main - k, k:]) for k in range(main + 1)], range(main + 1), (n, n))
    rows = [packed[..., main + i, : n - i] for i in range(1, below + 1)]
    rows = [np.ones_like(packed[..., main, :]), *rows]
    if (swaps == np.arange(n)).all():
        return identity_like(A), Banded(list(map(put, rows)), range(0, -below - 1, -1), (n, n)), U
    order, L = _reordered(A, swaps, np.concatenate(rows, axis=-1), below)
    return Permutation(order, like=A).T, L, U


def _reordered(A: Any, swaps: Any, entries: Any, below: int) -> tuple[Any, LinearOperator]:
    """The order of the rows after all exchanges, and L with its rows in that order: sparse, all of
    a batch in one pattern. `entries`: its diagonals, from the main one down, end to end.

    The multipliers of a column belong to the rows that were below it when it was eliminated.
    """
    batch, n = A.batch_shape, A.shape[-1]
    columns = np.concatenate([np.arange(n - i) for i in range(below + 1)])
    orders, parts = [], []
    for at in np.ndindex(batch):
        rows = np.arange(n).tolist()
        owner = np.zeros((below + 1, n), np.int64)
        for j, swap in enumerate(swaps[at].tolist()):
            rows[j], rows[swap] = rows[swap], rows[j]
            met = rows[j : j + 1 + below]
            owner[: len(met), j] = met
        place = np.argsort(rows)
        lines = np.concatenate([place[owner[i, : n - i]] for i in range(below + 1)])
        orders.append(rows)
        parts.append((lines, columns, entries[at]))
    return np.reshape(orders, (*batch, n)), _stacked(A, parts)


# --------------------------------------------------------------------------------------------------

SMALL_SPARSE_ROWS = 500  # below which the dense factorisation is as fast
LARGEST_SPARSE_FACTOR = 20_000_000  # entries


def is_sparse_and_seen(A: Any, definite: bool) -> bool:
    """Whether A is square, its values can be seen with no derivative asked, and the factors stay
    sparse in its order."""
    (m, n), memo = A.shape[-2:], A.structure.memo
    is_sparse = m == n >= SMALL_SPARSE_ROWS and 4 * A.nnz <= n * n and 0 not in A.shape
    if not is_sparse or is_traced_or_differentiated(A.xp, A.data):
        return False
    key = ("stays sparse", definite)
    if key not in memo:
        memo[key] = stays_sparse(A.structure, definite, min(LARGEST_SPARSE_FACTOR, n * n / 8))
    return bool(memo[key])


def stays_sparse_with_pivots(A: Any) -> bool:
    """Whether the factors of A = P L U stay sparse, whatever the pivots, and values can be seen."""
    return is_sparse_and_seen(A, definite=False)


@rule(lu, Sparse, when=stays_sparse_with_pivots, like=lu_like)
def lu_sparse(A: Any, method: Any) -> Any:
    """S = P L U by sparse elimination, the columns in their order"""
    values = _rows_on_host(A)
    if not np.isfinite(values).all():
        report(Info(Status.NONFINITE, method="LU"))
        I = identity_like(A)
        return I, I, ScaledIdentity(np.nan, A.shape[-1], like=A)
    try:
        each = [factors_in_order(data, A.structure, False) for data in values]
    except ArithmeticError:  # exactly singular
        return lu_factors(A, method)
    lower, upper, orders = zip(*each)
    L, U = (_stacked(A, [(X.row, X.col, X.data) for X in side]) for side in (lower, upper))
    report_finite(A.xp, U.data, method="LU")
    return Permutation(np.reshape(orders, A.shape[:-1]), like=A).T, L, U


def stays_sparse_without_pivots(A: Any) -> bool:
    """Whether the factor of A = L L^H stays sparse, and values can be seen."""
    return is_sparse_and_seen(A, definite=True)


@rule(cholesky, Sparse, when=stays_sparse_without_pivots, like=identity_like)
@reports_nonfinite
def cholesky_sparse(A: Any, method: Any) -> LinearOperator:
    """S = L L^H by sparse elimination, rows and columns in their order"""
    each = [_lower_factor(data, A.structure) for data in _rows_on_host(A)]
    fine = np.reshape([bool(np.isfinite(values).all()) for *_, values in each], A.batch_shape)
    report_positive(A.xp, A.xp.asarray(fine, device=A._context.device))
    return _stacked(A, each)


def _lower_factor(data: Any, structure: Any) -> tuple[Any, Any, Any]:
    """Rows, columns and values of L with A = L L^H; NaN where A is not positive definite."""
    from scipy.sparse import csr_array

    n, limit = structure.shape[0], np.finfo(data.dtype).eps ** 0.5
    S = csr_array((data, structure.columns, structure.indptr), shape=structure.shape)
    mirror = S.conj().T
    try:
        if not (abs(S - mirror) - limit * (abs(S) + abs(mirror))).max() <= 0:  # also of NaN
            raise ArithmeticError
        L, U, order = factors_in_order(data, structure, True)
        pivots = U.diagonal()  # A = L D L^H
        if not (np.array_equal(order, np.arange(n)) and np.all(pivots.real > 0)):
            raise ArithmeticError
    except ArithmeticError:
        return np.arange(n), np.arange(n), np.full(n, np.nan, data.dtype)
    return L.row, L.col, L.data * np.sqrt(pivots.real)[L.col]


def _rows_on_host(A: Any) -> Any:
    """The values of each matrix of a batch."""
    return host_array(A.xp, A.data).reshape(-1, A.nnz)


def _stacked(A: Any, entries: list[tuple[Any, Any, Any]]) -> Any:
    """Matrices given by rows, columns and values as the batch of A, all in one pattern."""
    rows, columns = (np.concatenate([entry[i] for entry in entries]) for i in (0, 1))
    structure, places = from_coordinates(rows, columns, A.shape[-2:])
    starts = np.cumsum([0, *(len(values) for *_, values in entries)])
    places = np.arange(len(rows)) if places is None else places
    data = np.zeros((len(entries), structure.nnz), entries[0][2].dtype)
    for row, (*_, values), start in zip(data, entries, starts):
        row[places[start : start + len(values)]] = values
    return Sparse.from_parts(array_like(A, data.reshape(*A.batch_shape, -1)), structure)


# A = Q R of tridiagonal and banded matrices: R has a band again, and Q is a chain of small unitary
# matrices. Linear time and memory.


ROWS = 24  # that a matrix of the chain adds: as many as keep the loop short and its matrices cheap


def band_is_narrow(A: Any) -> bool:
    """Whether R has fewer diagonals than half of the columns."""
    return 2 * sum(band_widths(A)) < smaller_side(A)


def rows_each(A: Any) -> int:
    """How many rows each matrix of the chain adds."""
    return max(1, band_widths(A)[0], min(ROWS, A.shape[-1] // 4))


def chain_cost(A: Any) -> Cost:
    """Of the factors of all windows."""
    (lower, upper), size = band_widths(A), rows_each(A)
    entries = -(-smaller_side(A) // size) * (size + lower) ** 2
    return Cost(entries * (4.0 * (size + lower) + 2 * upper), 8.0 * entries)


@rule(qr, Tridiagonal | Banded, when=band_is_narrow, cost=chain_cost, like=qr_like)
def qr_banded(A: Any, method: Any) -> tuple[LinearOperator, LinearOperator]:
    """B = (Q_1 Q_2 ...) R, where Q_i triangulates the next few columns, which are zero below the
    rows that it acts on; R has as many diagonals above the main one as B has on both sides of it"""
    (lower, upper), (m, n) = band_widths(A), A.shape[-2:]
    if lower == 0 and m == n:
        return identity_like(A, n), A
    xp, k, size = A.xp, min(m, n), rows_each(A)
    count, width = -(-k // size), lower + upper
    by_rows = _by_rows(A, count * size + lower)

    def step(carry: Array, rows: Array) -> tuple[Array, tuple[Array, Array]]:
        # What is left of the rows before, and the next rows; the columns start where the rows
        # before are not yet triangular.
        window = xp.concat([pad_end(xp, carry, (width + size,), (-1,)), _skewed(xp, rows)], axis=-2)
        Q, _ = xp.qr(window[..., : size + lower])  # square, so that it has a derivative
        done = inner_products(xp, Q, window)
        return done[..., size:, size:], (Q, _straightened(xp, done[..., :size, :], width + 1))

    first = _skewed(xp, by_rows[..., :lower, :])[..., lower:]
    rows = xp.reshape(by_rows[..., lower:, :], (*A.batch_shape, count, size, width + 1))
    blocks, R = (xp.moveaxis(x, 0, -3) for x in xp.scan(step, first, xp.moveaxis(rows, -3, 0)))
    R = xp.reshape(R, (*A.batch_shape, count * size, width + 1))
    report_finite(xp, R, method="QR")
    blocks, R = (to_result_dtype(xp, x, A.dtype) for x in (blocks, R))
    diagonals = [R[..., : natural_length(j, k, n), j] for j in range(width + 1)]
    Q = UnitaryChain._of(blocks, lower, m, k)
    return Q, Banded(diagonals, range(width + 1), (k, n))


def _by_rows(A: Any, rows: int) -> Array:
    """B[i, j] = A[i, i + j - l]: the band by rows, (*batch, rows, l + u + 1). Past the end the
    diagonal is 1, so that no window is singular for that."""
    xp, (lower, upper), (m, n) = A.xp, band_widths(A), A.shape[-2:]
    band = xp.matrix_transpose(lapack_band(A._transpose(), upper, lower))
    band = pad_end(xp, to_computing_dtype(xp, band), (max(rows, m),), (-2,))[..., :rows, :]
    past = np.outer(np.arange(rows) >= min(m, n), np.arange(lower + upper + 1) == lower)
    return band + xp.asarray(past, **kind_of(band))


def _skewed(xp: Any, rows: Array) -> Array:
    """Each row moved one place further to the right than the one before it: (..., s, w) -> (...,
    s, s + w - 1), by strides alone."""
    s, w = rows.shape[-2:]
    flat = xp.reshape(pad_end(xp, rows, (s + w,), (-1,)), (*rows.shape[:-2], s * (s + w)))
    return xp.reshape(flat[..., : s * (s + w - 1)], (*rows.shape[:-2], s, s + w - 1))


def _straightened(xp: Any, rows: Array, width: int) -> Array:
    """The contrary: (..., s, s + w - 1) -> (..., s, w), the first w numbers of each row from the
    main diagonal on."""
    s, w = rows.shape[-2:]
    flat = pad_end(xp, xp.reshape(rows, (*rows.shape[:-2], s * w)), (s * (w + 1),), (-1,))
    return xp.reshape(flat, (*rows.shape[:-2], s, w + 1))[..., :width]
