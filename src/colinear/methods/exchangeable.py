"""XTrace, XDiag and XNysTrace (Epperly, Tropp and Webber 2024): leave one random vector out in
turn, each estimate unbiased.

With Y = A Ω = Q R, the range of Y without its column i is that of Q (I - s_i s_i^H), where s_i is
orthogonal to the other columns of R: the i-th column of R^-H, normalised. All m estimates then cost
as much as one.

Where Y has lost its rank, Q holds all of the range of A and the answer is that of Q alone.

Differs from the paper in the standard error. The m estimates are positively correlated, so the
paper's, sqrt(Σ_i (t_i - t)^2 / m (m - 1)), is too small, by a factor of 1.1 to 2.8 for common
spectra. The jackknife's, from the same mean without each vector in turn (all of them together cost
no more: leaving two out is a formula in the same small matrices), is too large, as Efron and Stein
(1981) proved, by 1.1 to 4. The geometric mean of the two is right to a factor of 1.4 on all that
was tried, and it is what is reported.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array, adjoint, eye_like, hermitian, inner_products, positive_or_one
from ..properties import POSITIVE_SEMIDEFINITE
from .sampling import SimpleEstimator

LOST = 20.0  # roundings, of the largest, below which a diagonal entry of R is none


class XTrace(SimpleEstimator):
    """XTrace (Epperly, Tropp and Webber 2024), for traces: each random vector serves the range of
    all others. Two products each.

    As good as exact where the eigenvalues of A fall off within probes / 2.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(0.7 ** np.arange(1000.0)))
    >>> value, info = co.trace(A, co.XTrace(probes=100), info=True)
    >>> bool(abs(value - 10 / 3) < 1e-6), bool(info.error < 1e-6)
    (True, True)
    """

    least = 4


class XDiag(SimpleEstimator):
    """XDiag (Epperly, Tropp and Webber 2024), the diagonal as `XTrace` finds the trace. Half of the
    products are with A^H.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> U = np.ones((1000, 2)) * [1.0, 2.0]
    >>> co.diag(co.opaque(co.LowRank(U)), co.XDiag(probes=8))[:3].round(6)
    array([5., 5., 5.])
    """

    least = 4


class XNysTrace(SimpleEstimator):
    """XNysTrace (Epperly, Tropp and Webber 2024), for traces of positive semidefinite A. One
    product for each random vector.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(co.Diagonal(0.7 ** np.arange(1000.0))))
    >>> bool(abs(co.trace(A, co.XNysTrace(probes=60)) - 10 / 3) < 1e-6)
    True
    """

    least = 2
    needs = POSITIVE_SEMIDEFINITE


def range_of(xp: Any, Y: Array) -> tuple[Array, Array, Array, Array]:
    """Q and R of Y, the vectors s_i as columns of S, and whether the rank is lost, (*batch,)."""
    Q, R = xp.qr(Y)
    size = abs(xp.diagonal(R))
    largest = xp.max(size, axis=-1)
    lost = xp.min(size, axis=-1) <= LOST * math.sqrt(Y.shape[-2]) * xp.eps(Y.dtype) * largest
    eye = eye_like(xp, R)
    safe = xp.where(lost[..., None, None], eye, R)
    S = adjoint(xp, xp.solve_triangular(safe, xp.broadcast_to(eye, R.shape), lower=False))
    return Q, R, S / xp.vector_norm(S, axis=-2, keepdims=True), lost


def summary(
    xp: Any, each: Array, without: Array, whole: Array, lost: Any = False
) -> tuple[Array, Array]:
    """The mean of m estimates along the last axis, and its standard error, by their means without
    each of the vectors; `whole`, what the range Q alone gives, where the rank is lost."""
    m = each.shape[-1]
    mean, center = xp.mean(each, axis=-1), xp.mean(without, axis=-1)
    low = xp.sum(abs(each - mean[..., None]) ** 2, axis=-1) / (m * max(1, m - 1))
    high = xp.sum(abs(without - center[..., None]) ** 2, axis=-1) * ((m - 1) / m)
    error = (low * xp.maximum(high, low)) ** 0.25
    return (
        (mean, error) if lost is False else (xp.where(lost, whole, mean), xp.where(lost, 0, error))
    )


def _pairs(xp: Any, G: Array) -> tuple[Array, Array]:
    """For G_ij = s_i^H s_j: 1 / (1 - |G_ij|^2), the part of s_j beside s_i, and zero for i = j; and
    the mask of the others."""
    others = 1 - eye_like(xp, xp.real(G))
    rest = xp.maximum(1 - abs(G) ** 2, xp.eps(G.dtype))
    return others / rest, others


def trace_summary(
    xp: Any, lost: Array, W: Array, Y: Array, Q: Array, S: Array, Z: Array
) -> tuple[Array, Array]:
    """XTrace and its standard error; from Ω = W, Y = A Ω, its range Q, and Z = A Q.

    With t = Q^H ω - s s^H Q^H ω and v = ω - Q t, the part of ω outside: tr H - s^H H s + c v^H A v,
    where c makes v as long as the square root of the dimension that is left, n - m + 1.
    """
    n, m = W.shape[-2:]
    own = lambda X: xp.diagonal(X)[..., :, None]
    H = inner_products(xp, Q, Z)
    P = inner_products(xp, Q, W)
    T = P - S * xp.vecdot(S, P, axis=-2)[..., None, :]
    V = W - xp.matmul(Q, T)
    AV = Y - xp.matmul(Z, T)
    form = xp.vecdot(V, AV, axis=-2)
    length = positive_or_one(xp, xp.real(xp.vecdot(V, V, axis=-2)))
    whole = xp.sum(xp.diagonal(H), axis=-1)
    K = inner_products(xp, S, xp.matmul(H, S))
    each = whole[..., None] - xp.diagonal(K) + form * ((n - m + 1) / length)
    # Without s_j too: e = (s_j - G_ij s_i) / sqrt(1 - |G_ij|^2) joins what is left out, and v_i
    # becomes v_i + Q e c with c = e^H Q^H ω_i.
    G = inner_products(xp, S, S)
    part, others = _pairs(xp, G)
    square = abs(G) ** 2
    Kt, bar = xp.matrix_transpose(K), xp.conj(G)
    inner = (xp.diagonal(K)[..., None, :] - G * Kt - bar * K + square * own(K)) * part  # e^H H e
    D, F = (xp.matrix_transpose(inner_products(xp, S, X)) for X in (P, inner_products(xp, Q, AV)))
    B = xp.matmul(inner_products(xp, V, Z), S)
    c, left = (X - bar * own(X) for X in (D, F))  # times sqrt(part)
    right = B - G * own(B)
    forms = form[..., :, None] + part * (xp.conj(c) * left + right * c) + part * abs(c) ** 2 * inner
    lengths = length[..., :, None] + part * abs(c) ** 2
    pairs = whole[..., None, None] - own(K) - inner + forms * ((n - m + 2) / lengths)
    return summary(xp, each, xp.sum(pairs * others, axis=-2) / max(1, m - 1), whole, lost)


def diagonal_summary(
    xp: Any, lost: Array, W: Array, Q: Array, R: Array, S: Array, Z: Array
) -> tuple[Array, Array]:
    """XDiag and its standard errors; from Ω = W (of entries of modulus 1), A Ω = Q R and
    Z = A^H Q.

    diag(Q Q^H A) - (Q s) * conj(Z s) + conj(ω) * Q s s^H r, since what A ω has outside of the
    others' range is Q s s^H r.
    """
    m = W.shape[-1]
    whole = xp.sum(Q * xp.conj(Z), axis=-1)
    left, right = xp.matmul(Q, S), xp.conj(xp.matmul(Z, S))
    weight = xp.vecdot(S, R, axis=-2)
    W = xp.conj(W) * weight[..., None, :]
    both, outside = left * right, W * left
    each = whole[..., None] - both + outside
    # Without s_j too, summed over i: the terms of (s_j - G_ij s_i) (s_j - G_ij s_i)^H / (1 -
    # |G_ij|^2).
    G = inner_products(xp, S, S)
    part, _ = _pairs(xp, G)
    bar, square = xp.conj(G) * part, abs(G) ** 2 * part
    removed = (
        both * xp.sum(part, axis=-2)[..., None, :]
        - left * xp.matmul(right, bar)
        - right * xp.matmul(left, G * part)
        + xp.matmul(both, xp.astype(square, both.dtype))
    )
    added = xp.matmul(outside, xp.astype(square, both.dtype)) - left * xp.matmul(W, bar)
    total = xp.sum(each, axis=-1)[..., None] - each - removed + added
    return summary(xp, each, total / max(1, m - 1), whole, lost[..., None])


def nystrom_summary(xp: Any, W: Array, Y: Array) -> tuple[Array, Array, Array]:
    """XNysTrace, its standard error, and whether Ω^H A Ω is positive definite; from Ω = W and Y =
    A Ω.

    With a shift of a rounding, H = Ω^H Y and g = diag(H^-1): tr(Y H^-1 Y^H) - |Y H^-1 e_i|^2 / g_i
    + c_i / g_i. c_i makes the part of ω_i outside of the others as long as the square root of the
    dimension that is left.
    """
    n, m = W.shape[-2:]
    size = xp.vector_norm(Y, axis=(-2, -1))
    shift = 10 * xp.eps(Y.dtype) * positive_or_one(xp, size) / math.sqrt(n)
    Y = Y + xp.astype(shift, Y.dtype)[..., None, None] * W
    core = inner_products(xp, W, Y)
    C, positive = xp.cholesky(hermitian(xp, core))
    eye = xp.broadcast_to(eye_like(xp, Y), core.shape)
    inverse = xp.cholesky_solve(C, eye)
    B = adjoint(xp, xp.solve_triangular(C, adjoint(xp, Y), lower=True))  # Y C^-H
    F = xp.matmul(Y, inverse)
    D = inner_products(xp, F, F)
    overlap = xp.cholesky_solve(xp.cholesky(inner_products(xp, W, W))[0], eye)
    g, d, o = (xp.real(xp.diagonal(X)) for X in (inverse, D, overlap))
    whole = xp.sum(abs(B) ** 2, axis=(-2, -1)) - n * shift
    each = whole[..., None] + ((n - m + 1) * o - d) / g
    # Without ω_j too: 2 x 2 blocks of the inverses take the place of their diagonals.
    gi, di, oi = (x[..., :, None] for x in (g, d, o))
    gj, dj, oj = (x[..., None, :] for x in (g, d, o))
    least = xp.eps(Y.dtype)
    block = xp.maximum(gi * gj - abs(inverse) ** 2, least * gi * gj)
    block_o = xp.maximum(oi * oj - abs(overlap) ** 2, least * oi * oj)
    dropped = (gj * di + gi * dj - 2 * xp.real(inverse * xp.matrix_transpose(D))) / block
    pairs = whole[..., None, None] - dropped + (n - m + 2) * (gj / block) * (block_o / oj)
    without = xp.sum(pairs * (1 - eye_like(xp, g)), axis=-2) / max(1, m - 1)
    return *summary(xp, each, without, whole), positive
