"""Triton kernels of products with K[i, j] = φ(|x_i - y_j|^2), of which no entry is written to memory.

A program of the device has a tile of rows and goes along a part of the columns. Distances are
|x|^2 + |y|^2 - 2 x·y, whose last term is a product of matrices. Where that may cancel, a tile with
neighbours is computed again by differences; of a smooth kernel it may do so far from the origin
alone, so points are sorted by their distance from it. Products are those of single precision: three
of TF32 each, never one.

φ is a function of Triton that `radial.py` has written.

Sums over columns are compensated (Kahan 1965): in single precision their error does not grow with n.

Points are given with their coordinates in rows, (d, m) and (d, n), so that loads are of neighbours.
Places of a tile beyond the last point are those of the last one, where φ is as good as anywhere.
Only `radial.py` imports this file, where Triton is installed.
"""

# mypy: ignore-errors
# (functions of Triton's language, whose arguments have no types of Python)

from __future__ import annotations

import triton
import triton.language as tl

from .. import radial

CLOSE = tl.constexpr(radial.CLOSE)


@triton.jit
def _by_differences(X, Y, i, j, m, n, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """|x_i - y_j|^2 of a tile, coordinate by coordinate."""
    q = tl.zeros((ROWS, COLUMNS), dtype=X.dtype.element_ty)
    for d in tl.range(D):
        x = tl.load(X + d * m + tl.minimum(i, m - 1)[:, None])
        e = x - tl.load(Y + d * n + j[None, :])
        q += e * e
    return q


@triton.jit
def _squared_distances(
    X, Y, x, xx, YY, i, j, m, n,
    D: tl.constexpr, BY_PRODUCT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """|x_i - y_j|^2 of a tile: |x|^2 + |y|^2 - 2 x·y, unless that cancels for one of the pairs."""
    if not BY_PRODUCT:
        q = _by_differences(X, Y, i, j, m, n, D, ROWS, COLUMNS)
    else:
        c = tl.arange(0, x.shape[1])
        y = tl.load(Y + c[:, None] * n + j[None, :], mask=(c < D)[:, None], other=0.0)
        size = xx + tl.load(YY + j)[None, :]
        q = size - 2 * tl.dot(x, y, input_precision="tf32x3")
        if tl.min(tl.min(q - CLOSE * size, axis=1), axis=0) < 0:
            q = _by_differences(X, Y, i, j, m, n, D, ROWS, COLUMNS)
    return q


@triton.jit
def _added(total, lost, part):
    """total + part, and what rounding has lost of it so far."""
    part = part - lost
    new = total + part
    return new, (new - total) - part


@triton.jit
def _matmul(A, B, PRECISION: tl.constexpr):
    """A B in single or double precision; in half where that was asked for."""
    if PRECISION == "half":
        return tl.dot(A.to(tl.bfloat16), B.to(tl.bfloat16))
    else:
        return tl.dot(A, B, input_precision=PRECISION, out_dtype=A.dtype)


@triton.jit
def _rows(X, XX, i, m, D: tl.constexpr, D_PADDED: tl.constexpr):
    """The points of the rows of a tile, and their squares."""
    place, c = tl.minimum(i, m - 1)[:, None], tl.arange(0, D_PADDED)[None, :]
    return tl.load(X + c * m + place, mask=c < D, other=0.0), tl.load(XX + place)


@triton.jit
def _matmul_in_parts(A, B_high, B_low, PRECISION: tl.constexpr):
    """A B, where B is given as B_high + B_low, parts that TF32 holds."""
    if PRECISION == "half":
        return tl.dot(A.to(tl.bfloat16), B_high.to(tl.bfloat16))
    elif PRECISION == "ieee":
        return tl.dot(A, B_high, input_precision=PRECISION, out_dtype=A.dtype)
    else:
        high = (A.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
        found = tl.dot(A - high, B_high, input_precision="tf32")
        found = tl.dot(high, B_low, found, input_precision="tf32")
        return tl.dot(high, B_high, found, input_precision="tf32")


@triton.jit
def _swept(
    total, lost, X, Y, YY, V, parameters, X_parts, Y_parts, V_parts, i, xx, start, stop, m, n,
    PROFILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, WIDTH: tl.constexpr,
    BY_PRODUCT: tl.constexpr, GUARDED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """total + Σ_j φ(|x_i - y_j|^2) V[j] over the columns from `start` to `stop`, and what rounding
    has lost of it. GUARDED: differences that cancel are computed again."""
    c, k = tl.arange(0, D_PADDED), tl.arange(0, WIDTH)
    if BY_PRODUCT:
        here = tl.minimum(i, m - 1)[:, None] * D_PADDED + c[None, :]
        x_high = tl.load(X_parts + here)
        x_low = tl.load(X_parts + m * D_PADDED + here)
    if WIDTH == 1:
        part = tl.zeros((ROWS, COLUMNS), dtype=X.dtype.element_ty)
    for tile in range(start, stop, COLUMNS):
        j = tile + tl.arange(0, COLUMNS)
        there = tl.minimum(j, n - 1)
        if BY_PRODUCT:
            place = there[None, :] * D_PADDED + c[:, None]
            y_high = tl.load(Y_parts + place)
            y_low = tl.load(Y_parts + n * D_PADDED + place)
            q = tl.dot(x_low, y_high, input_precision="tf32")
            q = tl.dot(x_high, y_low, q, input_precision="tf32")
            q = tl.dot(x_high, y_high, q, input_precision="tf32")
            size = xx + tl.load(YY + there)[None, :]
            q = size - 2 * q
            q = tl.where(q < 0, 0.0, q)  # the maximum would make 0 of NaN
            if GUARDED:
                if tl.min(tl.min(q - CLOSE * size, axis=1), axis=0) < 0:
                    q = _by_differences(X, Y, i, there, m, n, D, ROWS, COLUMNS)
        else:
            q = _by_differences(X, Y, i, there, m, n, D, ROWS, COLUMNS)
        entries = PROFILE(q, parameters)
        if WIDTH == 1:
            v = tl.load(V + there, mask=j < stop, other=0.0)[None, :]
            part += entries * v
            if (tile - start) % (16 * COLUMNS) == 15 * COLUMNS:
                total, lost = _added(total, lost, tl.sum(part, axis=1))
                part = tl.zeros((ROWS, COLUMNS), dtype=X.dtype.element_ty)
        else:
            places = k[None, :] * n + there[:, None]
            inside = (j < stop)[:, None]
            v_high = tl.load(V_parts + places, mask=inside, other=0.0)
            v_low = tl.load(V_parts + WIDTH * n + places, mask=inside, other=0.0)
            found = _matmul_in_parts(entries, v_high, v_low, PRECISION)
            total, lost = _added(total, lost, found)
    if WIDTH == 1:
        total, lost = _added(total, lost, tl.sum(part, axis=1))
    return total, lost


@triton.jit
def product(
    X, Y, XX, YY, V, parameters, safe, X_parts, Y_parts, V_parts, out, m, n, width, share,
    PROFILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, WIDTH: tl.constexpr,
    BY_PRODUCT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    GUARDED_COLUMNS: tl.constexpr,
):  # fmt: skip
    """out[p] = Σ_j φ(|x_i - y_j|^2) V[j] over the p-th `share` of the columns j.

    `X_parts` (2, m, D_PADDED), `Y_parts` (2, n, D_PADDED) and `V_parts` (2, WIDTH, n) are split into
    parts that TF32 holds. Of each tile of rows the first `safe` columns are so near to the origin
    that no difference cancels.
    """
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(1) * share
    stop = tl.minimum(start + share, n)
    middle, xx = stop, 0.0
    if BY_PRODUCT:
        middle = tl.minimum(tl.load(safe + tl.program_id(0)), stop)
        middle = start + tl.maximum(middle - start, 0) // COLUMNS * COLUMNS
        xx = tl.load(XX + tl.minimum(i, m - 1))[:, None]
    if WIDTH == 1:
        total = tl.zeros((ROWS,), dtype=X.dtype.element_ty)
    else:
        total = tl.zeros((ROWS, WIDTH), dtype=X.dtype.element_ty)
    lost = tl.zeros_like(total)
    total, lost = _swept(
        total, lost, X, Y, YY, V, parameters, X_parts, Y_parts, V_parts, i, xx, start, middle, m, n,
        PROFILE, D, D_PADDED, WIDTH, BY_PRODUCT, False, PRECISION, ROWS, COLUMNS,
    )  # fmt: skip
    if BY_PRODUCT:
        total, lost = _swept(
            total, lost, X, Y, YY, V, parameters, X_parts, Y_parts, V_parts, i, xx, middle, stop, m, n,
            PROFILE, D, D_PADDED, WIDTH, BY_PRODUCT, True, PRECISION, ROWS, GUARDED_COLUMNS,
        )  # fmt: skip
    out += tl.program_id(1).to(tl.int64) * m * width
    if WIDTH == 1:
        tl.store(out + i, total, mask=i < m)
    else:
        k = tl.arange(0, WIDTH)
        places = i[:, None].to(tl.int64) * width + k[None, :]
        tl.store(out + places, total, mask=(i < m)[:, None] & (k < width)[None, :])


@triton.jit
def slopes(
    X, Y, XX, YY, W, V, parameters, sums, moments, m, n, width, share,
    PROFILE: tl.constexpr, D: tl.constexpr, D_PADDED: tl.constexpr, WIDTH: tl.constexpr,
    BY_PRODUCT: tl.constexpr, PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    HAS_MOMENTS: tl.constexpr,
):  # fmt: skip
    """Σ_j S_ij and Σ_j S_ij y_j over a share of the columns, S = (W V^T) ∘ φ(|x_i - y_j|^2).

    W (m, width), V (n, width); sums (m,) and moments (m, d).
    """
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    x, xx = _rows(X, XX, i, m, D, D_PADDED)
    start = tl.program_id(1) * share
    stop = tl.minimum(start + share, n)
    sums += tl.program_id(1).to(tl.int64) * m
    moments += tl.program_id(1).to(tl.int64) * m * D
    k = tl.arange(0, WIDTH)
    c = tl.arange(0, D_PADDED)
    is_there = (i < m)[:, None] & (k < width)[None, :]
    w = tl.load(W + i[:, None].to(tl.int64) * width + k[None, :], mask=is_there, other=0.0)
    total = tl.zeros((ROWS,), dtype=X.dtype.element_ty)
    lost = tl.zeros((ROWS,), dtype=X.dtype.element_ty)
    moved = tl.zeros((ROWS, D_PADDED), dtype=X.dtype.element_ty)
    missed = tl.zeros((ROWS, D_PADDED), dtype=X.dtype.element_ty)
    for tile in range(start, stop, COLUMNS):
        j = tile + tl.arange(0, COLUMNS)
        nearest = tl.minimum(j, n - 1)
        q = _squared_distances(X, Y, x, xx, YY, i, nearest, m, n, D, BY_PRODUCT, ROWS, COLUMNS)
        inside = (k < width)[:, None] & (j < stop)[None, :]
        v = tl.load(V + j[None, :].to(tl.int64) * width + k[:, None], mask=inside, other=0.0)
        S = _matmul(w, v, PRECISION) * PROFILE(q, parameters)
        total, lost = _added(total, lost, tl.sum(S, axis=1))
        if HAS_MOMENTS:
            known = (j < stop)[:, None] & (c < D)[None, :]
            y = tl.load(Y + c[None, :] * n + j[:, None], mask=known, other=0.0)
            moved, missed = _added(moved, missed, _matmul(S, y, PRECISION))
    tl.store(sums + i, total, mask=i < m)
    if HAS_MOMENTS:
        places = i[:, None].to(tl.int64) * D + c[None, :]
        tl.store(moments + places, moved, mask=(i < m)[:, None] & (c < D)[None, :])
