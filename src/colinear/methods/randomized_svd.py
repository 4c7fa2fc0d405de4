"""Randomised singular value decomposition (Halko, Martinsson and Tropp 2011).

An orthonormal basis Q of (A A^H)^q A Ω, Ω random and somewhat wider than the rank asked for, then the small decomposition of Q^H A.

Differs from the paper: the powers are orthonormalised at each product, so that small singular values are not lost in rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array


def randomized_svd(
    xp: Any,
    multiply: Callable[[Array], Array],
    multiply_adjoint: Callable[[Array], Array],
    test: Array,
    k: int,
    powers: int,
) -> tuple[Array, Array, Array]:
    """U (*batch, m, k), s and V (*batch, n, k), from a random block `test` (*batch, n, l) with k <= l."""
    Q = xp.qr(multiply(test))[0]
    for _ in range(powers):
        Q = xp.qr(multiply(xp.qr(multiply_adjoint(Q))[0]))[0]
    W, s, Ph = xp.svd(multiply_adjoint(Q))  # (Q^H A)^H = W diag(s) P^H
    U = xp.matmul(Q, xp.conj(xp.matrix_transpose(Ph)))
    return U[..., :k], s[..., :k], W[..., :k]
