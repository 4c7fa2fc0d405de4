"""Preconditioners by low rank for positive semidefinite operators: randomised Nyström, and partial
Cholesky factorisations, with the largest pivots or with random ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ..backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    inner_products,
    positive_or_one,
    program,
)
from ..factors.inverse import Inverse
from ..factors.structured import CorrectedDiagonal
from ..functions.common import ignore_float_errors, in_context
from ..functions.diagonal import diag
from ..info import recording
from ..methods.basis import put, take_columns
from ..operators import Diagonal, LinearOperator, LowRank, ScaledIdentity, Sum
from ..operators.context import kind_of
from ..properties import PD
from ..rates import memory_of_block
from .base import Preconditioner, check_integer, columns, compiled, split_shift

# (U U^H + D)^-1 for a partial Cholesky factor U.
#
# In D^-1 - D^-1 U (I + U^H D^-1 U)^-1 U^H D^-1 the 1 of the capacitance stands beside |U^H D^-1 U| =
# κ, easily 1e6: single precision leaves little of its small eigenvalues, and so of the determinant.
# The capacitance L L^H is therefore formed and factored in double precision, and W = D^-1 U L^-H
# rounded at the end: D^-1 - W W^H is then right to single precision. Where nothing wider is there,
# QR of [D^-1/2 U; I] gives L^H and W without the squares. How a vector is multiplied in single
# precision is told in `CorrectedDiagonal`, which takes Z = L^-H.


FINE = 1e-10  # eps of a precision in which κ itself is no matter


def inverse_of_sum(A: LinearOperator, U: Array, D: LinearOperator) -> LinearOperator:
    """(U U^H + c D)^-1 for A ≈ U U^H + D, with c = 1 unless D is so small beside U U^H that
    rounding would make the inverse indefinite.

    It is an approximation: the method that uses it is judged, not this.
    """
    with ignore_float_errors(A.xp):
        d, *parts = program(A.backend, corrected)(U, in_context(D, A))
        P = PD(Sum(LowRank(U), Diagonal(A.xp.astype(d, A.dtype))))
        return Inverse(P, PD(CorrectedDiagonal._of(1 / d, *parts)))


def corrected(xp: Any, U: Array, D: LinearOperator) -> tuple[Array, Array, Array, Array | None]:
    """d = diag(c D), W with (U U^H + c D)^-1 = diag(d)^-1 - W W^H, log det(U U^H + c D), and in
    single precision Z."""
    eps, work = xp.eps(U.dtype), xp.dtype_from("complex128" if xp.is_complex(U) else "float64")
    is_wider = xp.eps(work) < eps
    step = max(1, int(memory_of_block(D)) // (2 * work.itemsize * U.shape[-1]))

    def scaled(d: Array) -> Iterator[Array]:
        """Blocks of rows of D^-1/2 U, in double precision."""
        for start in range(0, U.shape[-2], step):
            some = slice(start, start + step)
            root = xp.sqrt(xp.astype(d[..., some], xp.real_dtype(work)))[..., None]
            yield xp.astype(U[..., some, :], work) / root

    d = _positive_diagonal(xp, U, D)
    C: Any = 0
    Z: Array | None = None
    for X in scaled(d):
        C = C + inner_products(xp, X, X)  # U^H D^-1 U
    # I - D^1/2 W W^H D^1/2 has the eigenvalue 1 / (1 + κ): the rounding of W, by that of L, must be
    # smaller; with Z that of its square.
    rounding = eps ** (2 / 3) if eps < FINE else 4 * eps**2
    c = xp.maximum(rounding * xp.vector_norm(C, axis=(-2, -1)), 1)
    d = d * xp.astype(c, d.dtype)[..., None]
    if is_wider or eps < FINE:
        L = xp.cholesky(C / xp.astype(c, work)[..., None, None] + eye_like(xp, C))[0]
        W, start = xp.zeros((*d.shape, U.shape[-1]), **kind_of(U)), 0
        set_rows = setter(xp, U, d)
        for X in scaled(d):
            some = slice(start, start + X.shape[-2])
            Q = adjoint(xp, xp.solve_triangular(L, adjoint(xp, X), lower=True))  # D^-1/2 U L^-H
            root = xp.sqrt(xp.astype(d[..., some], work))[..., None]
            W = set_rows(W, (..., some, slice(None)), xp.astype(Q / root, U.dtype))
            start = some.stop
        if eps >= FINE:
            Z = xp.astype(adjoint(xp, xp.solve_triangular(L, eye_like(xp, C), lower=True)), U.dtype)
    else:
        same = xp.broadcast_to(eye_like(xp, U), (*d.shape[:-1], *(U.shape[-1:] * 2)))
        root = xp.astype(xp.sqrt(d), U.dtype)[..., None]
        Q, L = xp.qr(xp.concat([U / root, same], axis=-2))
        W, Z = Q[..., : U.shape[-2], :] / root, Q[..., U.shape[-2] :, :]
    logarithms = xp.log(xp.abs(xp.diagonal(L))), xp.log(xp.astype(d, xp.real_dtype(work)))
    logarithm = 2 * xp.sum(logarithms[0], axis=-1) + xp.sum(logarithms[1], axis=-1)
    return d, W, xp.astype(logarithm, d.dtype), Z


def setter(xp: Any, *arrays: Array) -> Callable[[Array, Any, Array], Array]:
    """A function (X, key, value) that gives X with X[key] = value, which is made of these arrays:
    in place, unless derivatives are recorded or the framework has no such thing."""
    return xp.set_at if xp.is_differentiated(*arrays) else partial(put, xp)


def _positive_diagonal(xp: Any, U: Array, D: LinearOperator) -> Array:
    """The diagonal of D, where it is at least what rounding leaves of that of U U^H."""
    d = xp.real(diag(D)) + 0 * xp.real(U[..., 0])  # of the batch of both
    largest = xp.max(xp.rough_norm(xp.stop_gradient(U), axis=-1), axis=-1, keepdims=True)
    least = 4 * xp.eps(U.dtype) * largest**2
    return xp.maximum(d, xp.where(least > 0, least, xp.where(d > 0, d, 1)))


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
            return inverse_of_sum(A, U * xp.sqrt(values)[..., None, :], D)
        given: Any = self.shift or 0.0
        if self.shift is None and D is not None:
            given = xp.real(diag(in_context(D, A))[..., 0])
        # Without a shift the last eigenvalue found may be rounding: what lies below that is not
        # told from it.
        rounding = xp.eps(values.dtype) * math.sqrt(n) * xp.max(values, axis=-1)
        c = positive_or_one(xp, xp.maximum(given + 0 * rounding, rounding))
        last = values[..., -1] + c  # outside the range of U
        P = PD(Sum(LowRank(U * xp.sqrt(values - values[..., -1:])[..., None, :]), _shift(A, last)))
        core = xp.make_diagonal(1 / (values + c[..., None]) - 1 / last[..., None])
        return Inverse(P, PD(Sum(LowRank(U, core=xp.astype(core, A.dtype)), _shift(A, 1 / last))))


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
    # U and s^2 of B = U s V^H, by B^H B: rounding is that of the largest s^2, which `little` is
    # above; and an n x r decomposition would take longer than all the rest
    squares, V = xp.eigh(hermitian(xp, inner_products(xp, B, B)))
    squares, V = xp.flip(squares, axis=-1), xp.flip(V, axis=-1)
    U = xp.qr(xp.matmul(B, V))[0]
    return U, xp.maximum(squares - little[..., None], 0)


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
        _check_shift(self)

    def _make(self, A: Any) -> LinearOperator:
        K, D = split_shift(A)
        L, remaining, _ = compiled(partial_factor, K, min(self.rank, A.shape[-1]))
        return _with_diagonal(A, K, L, remaining, D, self.shift)


def _check_shift(owner: Any) -> None:
    if owner.shift is not None and not owner.shift > 0:
        name = type(owner).__name__
        raise ValueError(f"{name}: shift is {owner.shift!r}; it must be positive.")


def _with_diagonal(
    A: LinearOperator, K: LinearOperator, L: Array, remaining: Array, D: Any, shift: float | None
) -> LinearOperator:
    """(L L^H + D)^-1 with D = `shift` I; or else the diagonal D of A; or, if it has none, the mean
    of what remains of that of K."""
    xp, n = A.xp, A.shape[-1]
    if shift is not None:
        D = ScaledIdentity(float(shift), n, like=A)
    elif D is None:
        total = xp.sum(xp.real(diag(K)), axis=-1)
        # What L L^H leaves may be rounding, and D is not to be.
        c = xp.maximum(xp.sum(remaining, axis=-1), total * xp.eps(A.dtype) ** 0.5) / n
        D = _shift(A, positive_or_one(xp, c))
    return inverse_of_sum(A, L, D)


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
    lowest, d = xp.min(d, axis=-1), xp.maximum(d, 0 * d)
    numbers = xp.arange(K.shape[-1], device=device)
    # what remains of a matrix of lower rank: nothing
    least = K.shape[-1] * xp.eps(d.dtype) * xp.max(d, axis=-1, keepdims=True)
    rows = xp.zeros((*d.shape[:-1], rank, d.shape[-1]), dtype=K.dtype, device=device)

    def step(i: Any, state: Any) -> Any:
        rows, d, lowest = state
        if draws is None:
            pivot = xp.argmax(d, axis=-1)[..., None]
        else:
            pivot = drawn(xp, d, draws[..., i, None])
        # L L^H e_p
        known = xp.matmul(xp.matrix_transpose(rows), xp.conj(take_columns(xp, rows, pivot)))[..., 0]
        top = xp.take_along_axis(d, pivot, -1)
        is_left = top > least
        # what a loop's body hears means nothing outside it
        with recording() if xp.name == "jax" else contextlib.nullcontext():
            entries = columns(K, pivot)[..., 0]
        # a column of which nothing is left on the diagonal has nothing beside it either
        rest = entries - known
        rest = rest / xp.sqrt(positive_or_one(xp, xp.where(is_left, top, 2 * least)))
        new, is_pivot = xp.where(is_left, rest, 0), numbers == pivot
        below, d = (xp.where(is_pivot, 0, d - xp.abs(x) ** 2) for x in (rest, new))
        lowest = xp.minimum(lowest, xp.min(below, axis=-1))
        return xp.set_at(rows, (..., i, slice(None)), new), xp.maximum(d, 0 * d), lowest

    rows, d, lowest = xp.fori_loop(rank, step, (rows, d, lowest))
    return xp.matrix_transpose(rows), d, lowest


# The same in blocks, with random pivots (Chen, Epperly, Tropp and Webber 2024).


ROUNDS = 8  # of the blocks, if none is given: more take no fewer steps on real data


@dataclass(frozen=True)
class RPCholesky(Preconditioner):
    """(F F^H + D)^-1, with F `rank` columns of a Cholesky factor of K: blocks of them, drawn at
    random with probabilities proportional to the diagonal that remains.

    Of A = K + D with a diagonal D (noise) K is factored and D kept as it is; of any other A all is
    factored, and D is the mean of the diagonal that remains. The diagonal and `rank` columns of K
    are read, a block of them at once: n rank evaluations and O(n rank^2) in a few large products,
    so ranks of thousands are cheap where products with K are dear. What it gives is the `Inverse`
    of a structured operator: its `logdet` is exact and cheap.

    Parameters
    ----------
    rank : int
        Columns, at most n.
    block : int, optional
        Columns of a block, by default an eighth of the rank. Pivots of one block do not know of
        each other: smaller blocks take fewer columns that tell little, and more time.
    shift : float, optional
        c, to have D = c I instead.
    seed : int, JAX key, or NumPy or torch generator
        Of the pivots.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> x = np.linspace(0, 1, 300)[:, None]
    >>> A = co.PSD(co.Kernel(lambda x, y: np.exp(-((x - y.T) ** 2)), x)) + 0.1 * co.Identity(300)
    >>> M = co.RPCholesky(rank=20)(A)
    >>> bool(np.allclose(A @ (M @ np.ones(300)), 1))
    True
    """

    needs_positive: ClassVar[bool] = True

    rank: int
    block: int | None = None
    shift: float | None = None
    seed: Any = 0

    def __post_init__(self) -> None:
        check_integer(self, "rank")
        if self.block is not None:
            check_integer(self, "block")
        _check_shift(self)

    def _make(self, A: Any) -> LinearOperator:
        K, D = split_shift(A)
        rank = min(self.rank, A.shape[-1])
        block = self.block or -(-rank // ROUNDS)
        F, remaining, _ = compiled(factor_by_blocks, K, rank, block, self.seed)
        return _with_diagonal(A, K, F, remaining, D, self.shift)


def factor_by_blocks(
    K: LinearOperator, rank: int, block: int, seed: Any
) -> tuple[Array, Array, Array]:
    """F, (*batch, n, rank), with K ≈ F F^H, the diagonal of K - F F^H, and the smallest number that
    was met there, before it was cut at zero.

    A block of columns C = K[:, S] - F F[S]^H gives C L^-H, where L L^H = C[S] and a little more
    than rounding on its diagonal. A pivot that the others of its block leave nothing of, such as a
    point that repeats, gives zeros.
    """
    xp = K.xp
    d = xp.real(diag(K))
    lowest, d = xp.min(d, axis=-1), xp.maximum(d, 0 * d)
    eps = 4 * xp.eps(d.dtype)
    # what C may be wrong by, as a matrix of random numbers
    least = eps * (8 + 2 * math.sqrt(block)) * xp.max(d, axis=-1, keepdims=True)
    generator, set_rows = xp.generator(seed), setter(xp, *K.arrays())
    rows = xp.zeros(  # F^H
        (*d.shape[:-1], rank, d.shape[-1]), dtype=K.dtype, device=K._context.device
    )
    for start in range(0, rank, block):
        size = min(block, rank - start)
        draws = xp.uniform(
            xp.fold_in(generator, start), (size,), dtype=d.dtype, device=xp.device_of(d)
        )
        # one from each of as many parts of the whole: few are drawn twice
        parts = (xp.arange(size, device=xp.device_of(d)) + draws) / size
        pivots = drawn(xp, xp.where(d > least, d, 0), parts)
        # and what its Cholesky factor may be; later blocks make up for what this takes away
        little = least + (eps * size) * xp.max(d, axis=-1, keepdims=True)
        C = adjoint(xp, columns(K, pivots))  # K[S, :]
        if start:
            known = rows[..., :start, :]
            C = C - xp.matmul(adjoint(xp, take_columns(xp, known, pivots)), known)  # - F[S] F^H
        core = hermitian(xp, take_columns(xp, C, pivots))
        L, ok = xp.cholesky(core + xp.astype(little, K.dtype)[..., None] * eye_like(xp, core))
        L = xp.where(ok[..., None, None], L, eye_like(xp, core))
        new = xp.solve_triangular(L, C, lower=True)  # L^-1 C
        # nor has a positive semidefinite K a block without a Cholesky factor
        below = xp.min(d - xp.sum(xp.abs(new) ** 2, axis=-2), axis=-1)
        below = xp.minimum(below, xp.where(ok, below, -xp.max(d, axis=-1)))
        is_left = (xp.real(xp.diagonal(L)) ** 2 > 2 * little) & ok[..., None]
        new = xp.where(is_left[..., None], new, 0)
        d = d - xp.sum(xp.abs(new) ** 2, axis=-2)
        lowest, d = xp.minimum(lowest, below), xp.maximum(d, 0 * d)
        rows = set_rows(rows, (..., slice(start, start + size), slice(None)), new)
    return adjoint(xp, rows), d, lowest


def drawn(xp: Any, weights: Array, u: Array) -> Array:
    """The positions that numbers u in [0, 1), (*batch, k) or (k,), give where each position has a
    probability proportional to its weight."""
    upto = xp.cumsum(weights, axis=-1)
    before = xp.sum(upto[..., None, :] <= (u * upto[..., -1:])[..., None], axis=-1)
    return xp.minimum(before, weights.shape[-1] - 1)
