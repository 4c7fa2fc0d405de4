"""XTrace, XDiag and XNysTrace (Epperly, Tropp and Webber 2024): leave one random vector out in turn, each estimate unbiased.

With Y = A Ω = Q R, the range of Y without its column i is that of Q (I - s_i s_i^H), where s_i is orthogonal to the other columns of R:
the i-th column of R^-H, normalised. All m estimates then cost as much as one.

Where Y has lost its rank, Q holds all of the range of A and the answer is that of Q alone.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array

LOST = 20.0  # roundings, of the largest, below which a diagonal entry of R is none


def _adjoint(xp: Any, X: Array) -> Array:
    return xp.conj(xp.matrix_transpose(X))


def range_of(xp: Any, Y: Array) -> tuple[Array, Array, Array, Array]:
    """Q and R of Y, the vectors s_i as columns of S, and whether the rank is lost, (*batch,)."""
    Q, R = xp.qr(Y)
    size = xp.abs(xp.diagonal(R))
    largest = xp.max(size, axis=-1)
    lost = xp.min(size, axis=-1) <= LOST * math.sqrt(Y.shape[-2]) * xp.eps(Y.dtype) * largest
    eye = xp.eye(R.shape[-1], dtype=R.dtype, device=xp.device_of(R))
    safe = xp.where(lost[..., None, None], eye, R)
    S = _adjoint(xp, xp.solve_triangular(safe, xp.broadcast_to(eye, R.shape), lower=False))
    return Q, R, S / xp.vector_norm(S, axis=-2, keepdims=True), lost


def trace_estimates(xp: Any, W: Array, Y: Array, Q: Array, R: Array, S: Array, Z: Array) -> tuple[Array, Array]:
    """The m estimates of XTrace, (*batch, m), and tr(Q^H A Q); from Ω = W, Y = A Ω = Q R and Z = A Q.

    With t = Q^H ω - s s^H Q^H ω and v = ω - Q t, the part of ω outside: tr H - s^H H s + c v^H A v, where c makes v as long as the
    square root of the dimension that is left, n - m + 1.
    """
    n, m = W.shape[-2:]
    H = xp.matmul(_adjoint(xp, Q), Z)
    P = xp.matmul(_adjoint(xp, Q), W)
    T = P - S * xp.vecdot(S, P, axis=-2)[..., None, :]
    V = W - xp.matmul(Q, T)
    form = xp.vecdot(V, Y - xp.matmul(Z, T), axis=-2)
    length = xp.real(xp.vecdot(V, V, axis=-2))
    whole = xp.sum(xp.diagonal(H), axis=-1)
    inside = whole[..., None] - xp.vecdot(S, xp.matmul(H, S), axis=-2)
    return inside + form * ((n - m + 1) / xp.where(length > 0, length, 1)), whole


def diagonal_estimates(xp: Any, W: Array, Q: Array, R: Array, S: Array, Z: Array) -> tuple[Array, Array]:
    """The m estimates of XDiag, (*batch, n, m), and diag(Q Q^H A); from Ω = W (of entries of modulus 1), A Ω = Q R and Z = A^H Q.

    diag(Q Q^H A) - (Q s) * conj(Z s) + conj(ω) * Q s s^H r, since what A ω has outside of the others' range is Q s s^H r.
    """
    whole = xp.sum(Q * xp.conj(Z), axis=-1)
    left, right = xp.matmul(Q, S), xp.matmul(Z, S)
    weights = xp.vecdot(S, R, axis=-2)[..., None, :]
    return whole[..., None] - left * xp.conj(right) + xp.conj(W) * left * weights, whole


def nystrom_estimates(xp: Any, W: Array, Y: Array) -> tuple[Array, Array]:
    """The m estimates of XNysTrace, (*batch, m), and whether Ω^H A Ω is positive definite; from Ω = W and Y = A Ω.

    With a shift of a rounding, H = Ω^H Y and g = diag(H^-1): tr(Y H^-1 Y^H) - |Y H^-1 e_i|^2 / g_i + c_i / g_i. c_i makes the part of ω_i
    outside of the others as long as the square root of the dimension that is left.
    """
    n, m = W.shape[-2:]
    shift = xp.eps(Y.dtype) * xp.vector_norm(Y, axis=(-2, -1)) / math.sqrt(n) * 10
    Y = Y + xp.astype(shift, Y.dtype)[..., None, None] * W
    core = xp.matmul(_adjoint(xp, W), Y)
    C, positive = xp.cholesky((core + _adjoint(xp, core)) / 2)
    eye = xp.broadcast_to(xp.eye(m, dtype=Y.dtype, device=xp.device_of(Y)), core.shape)
    inverse = xp.cholesky_solve(C, eye)
    B = _adjoint(xp, xp.solve_triangular(C, _adjoint(xp, Y), lower=True))  # Y C^-H
    g = xp.real(xp.diagonal(inverse))
    dropped = xp.real(xp.sum(xp.abs(xp.matmul(Y, inverse)) ** 2, axis=-2))
    overlap = xp.matmul(_adjoint(xp, W), W)
    alone = xp.real(xp.diagonal(xp.cholesky_solve(xp.cholesky(overlap)[0], eye)))
    whole = xp.sum(xp.abs(B) ** 2, axis=(-2, -1)) - n * shift
    return whole[..., None] + ((n - m + 1) * alone - dropped) / g, positive
