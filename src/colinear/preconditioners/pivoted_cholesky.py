"""Partial Cholesky factorisation with pivoting (Harbrecht, Peters and Schneider 2012), as in Gardner et al. (2018)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from ..backends import Array
from ..functions.diagonal import diag
from ..functions.inverse import inv
from ..info import recording
from ..operators.base import LinearOperator
from ..operators.identity import ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.sum import Sum
from ..properties import PD
from .entries import column
from .interface import Preconditioner, compiled, positive_integer, split_shift


@dataclass(frozen=True)
class PivotedCholesky(Preconditioner):
    """(L L^H + D)^-1, with L the first `rank` columns of a Cholesky factor of K, each for the largest diagonal entry that remains.

    Of A = K + D with a diagonal D (noise) K is factored and D kept as it is; of any other A all is factored, and D is the mean of
    the diagonal that remains. The diagonal and `rank` columns of K are read, so a kernel matrix is never formed: O(n rank^2) and
    n rank evaluations. What it gives is the `Inverse` of a structured operator: its `logdet` is exact and cheap.

    Parameters
    ----------
    rank : int
        Columns, at most n.
    shift : float, optional
        c, to have D = c I instead.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.LowRank(np.arange(1.0, 9.0).reshape(8, 1)) + 0.1 * co.Identity(8)
    >>> M = co.PivotedCholesky(rank=2)(co.opaque(A.operands[0]) + A.operands[1])
    >>> bool(np.allclose(A @ (M @ np.ones(8)), 1))
    True
    """

    needs_positive: ClassVar[bool] = True

    rank: int
    shift: float | None = None

    def __post_init__(self) -> None:
        positive_integer("PivotedCholesky", "rank", self.rank)
        if self.shift is not None and not self.shift > 0:
            raise ValueError(f"PivotedCholesky: shift is {self.shift!r}; it must be positive.")

    def _make(self, A: Any) -> LinearOperator:
        xp, n = A.xp, A.shape[-1]
        K, D = split_shift(A)
        L, remaining, _ = compiled(partial_factor, K, min(self.rank, n))
        if self.shift is not None:
            D = ScaledIdentity(float(self.shift), n, like=A)
        elif D is None:
            total = xp.sum(xp.real(diag(K)), axis=-1)
            # Woodbury's formula cancels where L L^H is large beside D, so D is not left to rounding.
            c = xp.maximum(xp.sum(remaining, axis=-1), total * xp.eps(A.dtype) ** 0.5) / max(n, 1)
            D = PD(ScaledIdentity(xp.astype(xp.where(c > 0, c, 1), A.dtype), n))
        P = PD(Sum(LowRank(L), D))
        return Inverse(P, inv(P, on_failure="ignore"))  # an approximation: the method that uses it is judged, not this


def partial_factor(K: LinearOperator, rank: int, draws: Array | None = None) -> tuple[Array, Array, Array]:
    """L, (*batch, n, rank), with K ≈ L L^H, the diagonal of K - L L^H, and the smallest number that was met there, before it was cut at zero.

    The next pivot is the largest entry of the diagonal that remains; or, with numbers `draws` in [0, 1), (*batch, rank), one of a
    probability proportional to its entry.
    """
    xp, device = K.xp, K._context.device
    d = xp.real(diag(K))
    numbers = xp.arange(K.shape[-1], device=device)
    least = K.shape[-1] * xp.eps(d.dtype) * xp.max(d, axis=-1, keepdims=True)  # what remains of a matrix of lower rank: nothing
    columns = xp.zeros((*d.shape[:-1], rank, d.shape[-1]), dtype=K.dtype, device=device)

    def step(i: Any, state: Any) -> Any:
        columns, d, lowest = state
        pivot = xp.argmax(d, axis=-1) if draws is None else drawn(xp, d, draws[..., i])
        here = xp.broadcast_to(pivot[..., None, None], (*columns.shape[:-1], 1))
        known = xp.matmul(xp.matrix_transpose(columns), xp.conj(xp.take_along_axis(columns, here, -1)))[..., 0]  # L L^H e_p
        top = xp.take_along_axis(d, pivot[..., None], -1)
        is_left = top > least
        with recording() if xp.name == "jax" else contextlib.nullcontext():  # what a loop's body hears means nothing outside it
            entries = column(K, pivot)
        new = xp.where(is_left, (entries - known) / xp.sqrt(xp.where(is_left, top, 1)), 0)
        d = xp.where(numbers == pivot[..., None], 0, d - xp.abs(new) ** 2)
        lowest = xp.minimum(lowest, xp.min(d, axis=-1))
        return xp.set_at(columns, (..., i, slice(None)), new), xp.maximum(d, 0 * d), lowest

    columns, d, lowest = xp.fori_loop(rank, step, (columns, xp.maximum(d, 0 * d), xp.min(d, axis=-1)))
    return xp.matrix_transpose(columns), d, lowest


def drawn(xp: Any, weights: Array, u: Array) -> Array:
    """The position that the number u in [0, 1) gives, where each has a probability proportional to its weight."""
    upto = xp.cumsum(weights, axis=-1)
    before = xp.sum(upto <= u[..., None] * upto[..., -1:], axis=-1)
    return xp.minimum(before, weights.shape[-1] - 1)
