"""Randomised singular value decomposition (Halko, Martinsson and Tropp 2011).

An orthonormal basis Q of (A A^H)^q A Ω, Ω random and somewhat wider than the rank asked for, then
the small decomposition of Q^H A.

Differs from the paper: the powers are orthonormalised at each product, so that small singular
values are not lost in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..backends import Array, adjoint
from .base import Method, check_integer
from .vectors import LinearMap


@dataclass(frozen=True)
class RandomizedSVD(Method):
    """A low-rank decomposition from random vectors (Halko, Martinsson and Tropp 2011): few passes
    over A, and an approximation.

    `info.residual` says how good it is, |A v - s u| / |A| for each triplet, and `info.error`
    estimates |A - U diag(s) V^H| / |A|.

    Parameters
    ----------
    tol : float, optional
        The residual to reach: the status is INACCURATE where a triplet misses it. Nothing is asked
        for if it is not given.
    oversampling : int
        How many vectors more than the rank are used.
    power_iterations : int
        How often A A^H is applied: more, where the singular values fall slowly.
    seed : int
        Of the random numbers.
    rank : int, optional
        Of `pinv`: how many triplets the pseudoinverse is made of; all if not given. (`svd` has k.)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = np.outer(np.arange(50.0), np.ones(40))
    >>> U, s, V = co.svd(A, 1, co.RandomizedSVD())
    >>> bool(np.allclose(U @ np.diag(s) @ V.H, A))
    True
    """

    tol: float | None = None
    oversampling: int = 10
    power_iterations: int = 2
    seed: int = 0
    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("oversampling", "power_iterations"):
            check_integer(self, name, 0, "an integer that is not negative")
        check_integer(self, "rank", 1, "a positive integer")

    def runs_on(self, A: Any) -> bool:
        return self.rank is not None  # that of the whole says nothing of parts


def randomized_svd(
    xp: Any,
    multiply: LinearMap,
    multiply_adjoint: LinearMap,
    test: Array,
    k: int,
    powers: int,
) -> tuple[Array, Array, Array]:
    """U (*batch, m, k), s and V (*batch, n, k), from a random block `test` (*batch, n, l) with k <=
    l."""
    Q = xp.qr(multiply(test))[0]
    for _ in range(powers):
        Q = xp.qr(multiply(xp.qr(multiply_adjoint(Q))[0]))[0]
    W, s, Ph = xp.svd(multiply_adjoint(Q))  # (Q^H A)^H = W diag(s) P^H
    U = xp.matmul(Q, adjoint(xp, Ph))
    return U[..., :k], s[..., :k], W[..., :k]
