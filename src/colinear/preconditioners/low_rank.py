"""Preconditioners from low-rank approximations: randomised Nyström, partial Cholesky with
pivoting."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from ..backends import Array, adjoint, hermitian, inner_products, namespace_of, positive_or_one
from ..factors.inverse import Inverse
from ..functions.diagonal import diag
from ..functions.solve.inverse import inv
from ..info import recording
from ..operators import Diagonal, Identity, LinearOperator, LowRank, ScaledIdentity, Sum
from ..properties import PD
from .base import Preconditioner, check_integer, column, compiled, split_shift

# Randomised Nyström approximation and preconditioner (Frangella, Tropp and Udell 2023), in the
# stable form of Tropp et al. (2017).


@dataclass(frozen=True)
class Nystrom(Preconditioner):
    """U (Λ + c)^-1 U^H + (λ_r + c)^-1 (I - U U^H), for A = K + c I with K ≈ U Λ U^H of rank r, from
    r products with K.

    For kernel matrices and others with eigenvalues that fall off fast; needs products with A alone.
    c is read off a sum with a multiple of I, and 0 otherwise; of K + D with a diagonal D it gives
    (U Λ U^H + D)^-1. O(n rank^2). Its `logdet` is exact and cheap.

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
        check_integer(self, "rank")
        if self.shift is not None and not self.shift >= 0:
            raise ValueError(f"Nystrom: shift is {self.shift!r}; it must not be negative.")

    def _make(self, A: Any) -> LinearOperator:
        xp, n = A.xp, A.shape[-1]
        K, D = split_shift(A)
        U, values = compiled(approximation, K, min(self.rank, n), self.seed)
        if isinstance(D, Diagonal) and self.shift is None:
            return _inverse_of_sum(U * xp.sqrt(values)[..., None, :], D)
        given: Any = self.shift if self.shift is not None else 0.0 if D is None else _multiple(D)
        # Without a shift the last eigenvalue found may be rounding: what lies below that is not
        # told from it.
        rounding = xp.eps(values.dtype) * math.sqrt(n) * xp.max(values, axis=-1)
        given = given if namespace_of(given) is None else xp.real(given)
        c = positive_or_one(xp, xp.maximum(given + 0 * rounding, rounding))
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
    # A little more than rounding on the diagonal makes Q^H K Q positive definite; it is taken off
    # the values again.
    size = xp.stop_gradient(xp.vector_norm(Y, axis=(-2, -1)))
    little = positive_or_one(xp, size) * (math.sqrt(n) * xp.eps(K.dtype))
    Y = Y + xp.astype(little, K.dtype)[..., None, None] * Q
    C = xp.cholesky(hermitian(xp, inner_products(xp, Q, Y)))[0]
    B = adjoint(xp, xp.solve_triangular(C, adjoint(xp, Y), lower=True))  # Y C^-H
    U, s, _ = xp.svd(B)
    return U, xp.maximum(s**2 - little[..., None], 0)


# Partial Cholesky factorisation with pivoting (Harbrecht, Peters and Schneider 2012), as in
# Gardner et al. (2018).


@dataclass(frozen=True)
class PivotedCholesky(Preconditioner):
    """(L L^H + D)^-1, with L the first `rank` columns of a Cholesky factor of K, each for the
    largest diagonal entry that remains.

    Of A = K + D with a diagonal D (noise) K is factored and D kept as it is; of any other A all is
    factored, and D is the mean of the diagonal that remains. The diagonal and `rank` columns of K
    are read, so a kernel matrix is never formed: O(n rank^2) and n rank evaluations. What it gives
    is the `Inverse` of a structured operator: its `logdet` is exact and cheap.

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
        check_integer(self, "rank")
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
            # Woodbury's formula cancels where L L^H is large beside D, so D is not left to
            # rounding.
            c = xp.maximum(xp.sum(remaining, axis=-1), total * xp.eps(A.dtype) ** 0.5) / n
            D = _shift(A, positive_or_one(xp, c))
        return _inverse_of_sum(L, D)


def _inverse_of_sum(U: Array, D: LinearOperator) -> LinearOperator:
    """(U U^H + D)^-1. It is an approximation: the method that uses it is judged, not this."""
    P = PD(Sum(LowRank(U), D))
    return Inverse(P, inv(P, on_failure="ignore"))


def partial_factor(
    K: LinearOperator, rank: int, draws: Array | None = None
) -> tuple[Array, Array, Array]:
    """L, (*batch, n, rank), with K ≈ L L^H, the diagonal of K - L L^H, and the smallest number that
    was met there, before it was cut at zero.

    The next pivot is the largest entry of the diagonal that remains; or, with numbers `draws` in
    [0, 1), (*batch, rank), one of a probability proportional to its entry.
    """
    xp, device = K.xp, K._context.device
    d = xp.real(diag(K))
    numbers = xp.arange(K.shape[-1], device=device)
    # what remains of a matrix of lower rank: nothing
    least = K.shape[-1] * xp.eps(d.dtype) * xp.max(d, axis=-1, keepdims=True)
    columns = xp.zeros((*d.shape[:-1], rank, d.shape[-1]), dtype=K.dtype, device=device)

    def step(i: Any, state: Any) -> Any:
        columns, d, lowest = state
        pivot = xp.argmax(d, axis=-1) if draws is None else drawn(xp, d, draws[..., i])
        here = xp.broadcast_to(pivot[..., None, None], (*columns.shape[:-1], 1))
        known = xp.matmul(
            xp.matrix_transpose(columns), xp.conj(xp.take_along_axis(columns, here, -1))
        )[..., 0]  # L L^H e_p
        top = xp.take_along_axis(d, pivot[..., None], -1)
        is_left = top > least
        # what a loop's body hears means nothing outside it
        with recording() if xp.name == "jax" else contextlib.nullcontext():
            entries = column(K, pivot)
        new = xp.where(is_left, (entries - known) / xp.sqrt(xp.where(is_left, top, 1)), 0)
        d = xp.where(numbers == pivot[..., None], 0, d - xp.abs(new) ** 2)
        lowest = xp.minimum(lowest, xp.min(d, axis=-1))
        return xp.set_at(columns, (..., i, slice(None)), new), xp.maximum(d, 0 * d), lowest

    columns, d, lowest = xp.fori_loop(
        rank, step, (columns, xp.maximum(d, 0 * d), xp.min(d, axis=-1))
    )
    return xp.matrix_transpose(columns), d, lowest


def drawn(xp: Any, weights: Array, u: Array) -> Array:
    """The position that the number u in [0, 1) gives, where each has a probability proportional
    to its weight."""
    upto = xp.cumsum(weights, axis=-1)
    before = xp.sum(upto <= u[..., None] * upto[..., -1:], axis=-1)
    return xp.minimum(before, weights.shape[-1] - 1)
