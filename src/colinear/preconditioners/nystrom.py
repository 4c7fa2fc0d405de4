"""Randomised Nyström approximation and preconditioner (Frangella, Tropp and Udell 2023), in the stable form of Tropp et al. (2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..backends import Array, namespace_of
from ..functions.inverse import inv
from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.sum import Sum
from ..properties import PD
from .interface import Preconditioner, compiled, positive_integer, split_shift


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    """U (Λ + c)^-1 U^H + (λ_r + c)^-1 (I - U U^H), for A = K + c I with K ≈ U Λ U^H of rank r, from r products with K.

    For kernel matrices and others with eigenvalues that fall off fast; needs products with A alone. c is read off a sum with a
    multiple of I, and 0 otherwise; of K + D with a diagonal D it gives (U Λ U^H + D)^-1. O(n rank^2). Its `logdet` is exact and
    cheap.

    Parameters
    ----------
    rank : int
        r, at most n.
    seed : int
        Of the random block that K is multiplied by.
    shift : float, optional
        c, if A does not show it or another is wanted.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.LowRank(np.arange(1.0, 9.0).reshape(8, 1))) + 0.1 * co.Identity(8)
    >>> M = co.Nystrom(rank=3)(co.PSD(A))
    >>> bool(np.allclose(A @ (M @ np.ones(8)), 1))
    True
    """

    needs_positive: ClassVar[bool] = True

    rank: int
    seed: Any = 0
    shift: float | None = None

    def __post_init__(self) -> None:
        positive_integer("Nystrom", "rank", self.rank)
        if self.shift is not None and not self.shift >= 0:
            raise ValueError(f"Nystrom: shift is {self.shift!r}; it must not be negative.")

    def _make(self, A: Any) -> LinearOperator:
        xp, n = A.xp, A.shape[-1]
        K, D = split_shift(A)
        U, values = compiled(approximation, K, min(self.rank, n), self.seed)
        if isinstance(D, Diagonal) and self.shift is None:
            P = PD(Sum(LowRank(U * xp.sqrt(values)[..., None, :]), D))
            return Inverse(P, inv(P, on_failure="ignore"))
        given: Any = self.shift if self.shift is not None else 0.0 if D is None else _multiple(D)
        # Without a shift the last eigenvalue found may be rounding: what lies below that is not told from it.
        rounding = xp.eps(values.dtype) * math.sqrt(n) * xp.max(values, axis=-1)
        given = given if namespace_of(given) is None else xp.real(given)
        c = xp.maximum(given + xp.zeros(values.shape[:-1], dtype=values.dtype, device=A._context.device), rounding)
        c = xp.where(c > 0, c, 1)
        last = values[..., -1] + c  # outside the range of U
        P = PD(Sum(LowRank(U * xp.sqrt(values - values[..., -1:])[..., None, :]), _shift(A, last)))
        core = xp.make_diagonal(1 / (values + c[..., None]) - 1 / last[..., None])
        return Inverse(P, PD(Sum(LowRank(U, core=xp.astype(core, A.dtype)), _shift(A, 1 / last))))


def _multiple(D: Any) -> Any:
    return 1.0 if isinstance(D, Identity) else D.c if isinstance(D, ScaledIdentity) else D.scalar


def _shift(A: LinearOperator, c: Array) -> LinearOperator:
    return PD(ScaledIdentity(A.xp.astype(c, A.dtype), A.shape[-1]))


def approximation(K: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array]:
    """U, (*batch, n, rank), orthonormal, and falling values with K ≈ U diag(values) U^H."""
    xp, n, device = K.xp, K.shape[-1], K._context.device
    Q = xp.qr(xp.normal(xp.generator(seed), (n, rank), dtype=K.dtype, device=device))[0]
    Y = K @ Q
    # A little more than rounding on the diagonal makes Q^H K Q positive definite; it is taken off the values again.
    size = xp.stop_gradient(xp.vector_norm(Y, axis=(-2, -1)))
    little = xp.where(size > 0, size, 1) * (math.sqrt(n) * xp.eps(K.dtype))
    Y = Y + xp.astype(little, K.dtype)[..., None, None] * Q
    core = xp.matmul(xp.conj(xp.matrix_transpose(Q)), Y)
    C = xp.cholesky((core + xp.conj(xp.matrix_transpose(core))) / 2)[0]
    B = xp.conj(xp.matrix_transpose(xp.solve_triangular(C, xp.conj(xp.matrix_transpose(Y)), lower=True)))  # Y C^-H
    U, s, _ = xp.svd(B)
    return U, xp.maximum(s**2 - little[..., None], 0)
