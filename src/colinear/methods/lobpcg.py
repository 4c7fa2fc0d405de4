"""Locally optimal block preconditioned conjugate gradients (Knyazev 2001), for the extreme
eigenpairs of self-adjoint A.

Each step minimises the Rayleigh quotient over span[X, W, P]: the block X, its preconditioned
residuals W, and the directions P of the step before.

Differs from the paper: the basis is kept orthonormal, and P orthogonal to X, as Hetmaniuk and
Lehoucq (2006) and Duersch, Shao, Yang and Gu (2018) found necessary; directions of W that are
rounding errors are dropped (SVQB, Stathopoulos and Wu 2002). W is made orthonormal twice, by its
products with the basis alone: the first are summed together with the norms of the residuals, the
second together with S^H A S, whose small matrices then do what the basis would have to. Locking is
soft: a pair that has converged stays in X and adds no residual. Batches advance together.

Where a look at values waits for a device, the small matrices are on the host: they come there by
one read for each of the two sums, and only coefficients of blocks go back. An eigendecomposition of
such a matrix on the device would launch hundreds of kernels, and wait too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ..backends import Array, eye_like, get, hermitian, inner_products, positive_or_one
from ..properties import SELF_ADJOINT
from .base import Spectral
from .basis import (
    SAFETY,
    Pairs,
    all_finite,
    count_of,
    every,
    fresh,
    pairs_of,
    run_cycles,
    waits_for_looks,
)
from .vectors import LinearMap, State

ROUNDING = 100  # roundings up to which what is left of a unit vector counts as zero
# roundings of the norm of A that a residual has in any case, since A X follows the recurrence
FLOOR = 100
# of the square of a direction, which its part outside span [X, P] must have for one pass to do
LEFT = 1e-2
DISTINCT = 0.1  # of the square of a direction, made orthonormal once, which must be left then
# times the largest |A x| of the block, which none of its values exceeds: where values of directions
# that are not there go
BEYOND = 2.0
MUCH_TALLER = 100  # times as high as wide: random columns are almost orthogonal


@dataclass(frozen=True)
class LOBPCG(Spectral):
    """Locally optimal block preconditioned conjugate gradients (Knyazev 2001), for the ends of the
    spectrum of self-adjoint A.

    An iteration is a step of the whole block: as many products with A as it has vectors.

    Parameters
    ----------
    preconditioner : operator, array or factory, optional
        An approximation of A^-1 (less a shift), positive definite, or a function of A that makes
        one, such as `Jacobi()`.
    block : int, optional
        How many vectors are iterated; default k + 4.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> d = 1.0 + np.arange(1000.0)
    >>> method = co.LOBPCG(preconditioner=co.Diagonal(1 / d))
    >>> values, vectors = co.eig(co.opaque(co.Diagonal(d)), 2, "SA", method)
    >>> values.round(6)
    array([1., 2.])
    """

    preconditioner: Any = field(default=None, compare=False)
    block: int | None = None

    needs = SELF_ADJOINT

    def size(self, n: int, k: int) -> int:
        """How many vectors are iterated."""
        return min(n, k + 4 if self.block is None else max(self.block, k))

    @property
    def advice(self) -> str:
        return "use a preconditioner=, or raise block= or max_iters="

    def limit(self, n: int, basis: int) -> int:
        """The most iterations; by default as many products as the other methods may make."""
        products = super().limit(n, max(basis, 50))
        return -(-products // basis) if self.max_iters is None else products


@dataclass(frozen=True)
class Sides:
    """The frameworks in which a run computes: `xp` with blocks, `small` with small matrices. These
    are two where the small matrices of a device are on the host."""

    xp: Any
    small: Any
    device: Any

    def fetch(self, *arrays: Array) -> Sequence[Array]:
        """Small arrays of `xp`, for `small`; on a device by one read."""
        return arrays if self.small is self.xp else self.xp.fetch(arrays)

    def send(self, *arrays: Array) -> Sequence[Array]:
        """Small arrays of `small`, for `xp`; to a device by one copy."""
        if self.small is self.xp:
            return arrays
        joined = np.concatenate([x.ravel() for x in arrays])
        flat = self.xp.asarray(joined, device=self.device)
        sent, end = [], 0
        for x in arrays:
            start, end = end, end + x.size
            part = flat[start:end].reshape(x.shape)
            sent.append(part if x.dtype == joined.dtype else self.xp.real(part))
        return sent


class LOBPCGState(State):
    """Where a run stands: blocks (*batch, n, b), side by side, and small arrays."""

    Q: Array  # [X, P], orthonormal
    AQ: Array
    has_P: Array  # (*batch, b): which columns of P are not zero
    W: Array  # the next directions
    products: Array  # [Q, W]^H W
    values: Array  # (*batch, b)
    residual: Array
    size: Array
    iterations: Any
    done: Any
    finite: Any

    @property
    def V(self) -> Array:
        """X by rows."""
        return self.Q[..., : self.values.shape[-1]].swapaxes(-1, -2)

    @property
    def matvecs(self) -> Any:
        """The products so far: one for each vector of the block, in each iteration."""
        return self.iterations * self.values.shape[-1]


def lobpcg(
    xp: Any,
    multiply: LinearMap,
    precondition: LinearMap | None,
    start: Array,
    noise: Array,
    k: int,
    largest: bool,
    *,
    block: int,
    tol: float,
    max_iters: int,
    watch: Callable[[LOBPCGState], Any] | None = None,
) -> Pairs:
    """The k smallest (or largest) eigenpairs of self-adjoint A, from `start` (*batch, n) and random
    vectors made of `noise`.

    `block` is how many vectors are iterated, some more than k: the last of them converge late. An
    iteration multiplies A by the block once, and sums numbers over the devices of a mesh twice.
    """
    small = get("numpy") if waits_for_looks(xp, start) else xp
    sides = Sides(xp, small, xp.device_of(start))
    sign = -1 if largest else 1  # small matrices are those of sign * A

    def step(s: LOBPCGState) -> LOBPCGState:
        W = directions(sides, s.Q, s.W, s.products, s.residual > target(s.size))
        S, AS = xp.concat([s.Q, W], axis=-1), xp.concat([s.AQ, multiply(W)], axis=-1)
        of_W, T = sides.fetch(*xp.sum_once(partial(_projected, xp), -2, S, W, AS))
        K, C, D, s.values = _best(small, of_W, sign * T, s.has_P, s.size)
        s.has_P = small.rough_norm(D, -2) > 0.5
        # X = S K C, P = S K D
        return moved(s, S, AS, small.matmul(K, small.concat([C, D], axis=-1)))

    def target(size: Array) -> Array:
        return SAFETY * max(tol, FLOOR * xp.eps(start.dtype)) * size[..., None]

    def moved(s: LOBPCGState, S: Array, AS: Array, Y: Array) -> LOBPCGState:
        """The state after an iteration, by its values and [X, P] = S Y."""
        unit = positive_or_one(small, s.size)[..., None]  # the residuals are in units of |A|
        values = s.values / unit
        Y, scale, shift = sides.send(Y, unit[..., None], sign * values[..., None, :])
        s.Q, s.AQ = xp.matmul(S, Y), xp.matmul(AS, Y)
        s.W = R = s.AQ[..., :block] / scale - s.Q[..., :block] * shift
        if precondition is not None:  # by what is near A^-1, and of the size of 1 / |A|
            s.W = scale * precondition(R)
        others = () if precondition is None else (R,)
        sums = xp.sum_once(partial(_measured, xp), -2, s.Q, s.W, *others)
        of_Q, of_W, *squares = sides.fetch(*sums)
        s.products = small.concat([of_Q, of_W], axis=-2)
        square = squares[0] if squares else small.real(small.diagonal(of_W))
        s.residual = unit * small.sqrt(square)
        # A x = values x + r, and r is orthogonal to x
        s.size = small.maximum(s.size, small.max(unit * small.sqrt(square + values**2), axis=-1))
        s.iterations = s.iterations + 1
        s.done = every(small, s.residual[..., :k] <= target(s.size))
        s.finite = all_finite(small, s.size)
        return s

    def going(s: LOBPCGState) -> Any:
        return (s.done ^ True) & s.finite & (s.iterations < max_iters)

    def seen(s: LOBPCGState) -> LOBPCGState:
        """The state, with the small arrays that others see where its blocks are."""
        values, residual, size = sides.send(s.values, s.residual, s.size)
        return LOBPCGState(**(vars(s) | {"values": values, "residual": residual, "size": size}))

    # infinities and NaN end the run
    with np.errstate(all="ignore") if small is not xp else contextlib.nullcontext():
        X = xp.stack([start, *(fresh(xp, noise, i) for i in range(block - 1))], axis=-1)
        # a device is slow to factor what is so tall
        if small is not xp and X.shape[-2] > MUCH_TALLER * block:
            X = _whitened(sides, _whitened(sides, X))
        else:
            X = xp.qr(X)[0]
        AX = multiply(X)
        T, size = sides.fetch(inner_products(xp, X, AX), xp.vector_norm(AX, axis=-2))
        values, C = small.eigh(hermitian(small, sign * T))
        first = LOBPCGState(
            has_P=values != values,
            values=values,
            size=small.max(size, axis=-1),
            iterations=count_of(xp, 0),
        )
        first = moved(first, X, AX, small.concat([C, 0 * C], axis=-1))
        look = None if watch is None else lambda s: watch(seen(s))
        state, stopped = run_cycles(xp, going, step, first, look)
    state = seen(state)
    return pairs_of(state, sign * state.values[..., :k], state.V[..., :k, :], stopped)


def _measured(xp: Any, Q: Array, W: Array, *R: Array) -> tuple[Array, ...]:
    """Q^H W, W^H W and, if it is given, |r|^2 for each column of R."""
    squares = (xp.rough_norm(X, -2) ** 2 for X in R)
    return inner_products(xp, Q, W), inner_products(xp, W, W), *squares


def _projected(xp: Any, S: Array, W: Array, AS: Array) -> tuple[Array, ...]:
    """S^H W and S^H A S."""
    return inner_products(xp, S, W), inner_products(xp, S, AS)


def directions(sides: Sides, Q: Array, W: Array, products: Array, is_active: Array) -> Array:
    """The active columns of W less their part in span Q, orthonormal up to the rounding of
    [Q, W]^H W, which is given as `products`; zero columns for directions that are rounding errors,
    and in place of columns that are not active."""
    xp, small = sides.xp, sides.small
    count, b = Q.shape[-1], W.shape[-1]
    products = small.where(is_active[..., None, :], products, 0)
    of_Q = products[..., :count, :]
    of_W = small.where(is_active[..., :, None], products[..., count:, :], 0)
    length = small.real(small.diagonal(of_W))
    part = small.real(small.vecdot(of_Q, of_Q, axis=-2))
    power = 2.0**80 if xp.eps(W.dtype) > 1e-10 else 2.0**640  # 5/8 of the range of exponents
    is_usual = (length - part > LEFT * length) & (length > 1 / power) & (length < power)

    def carefully(W: Array, *_: Array) -> tuple[Array, ...]:
        (flags,) = sides.send(is_active[..., None, :])
        W = orthonormal(sides, xp.where(flags, W, 0), Q)
        return W, *sides.fetch(inner_products(xp, Q, W), inner_products(xp, W, W))

    is_hard = small.any(is_active & ~is_usual)
    W, of_Q, of_W = small.cond(is_hard, carefully, lambda *given: given, W, of_Q, of_W)
    T, _ = _whitening(small, _without(small, of_Q, of_W), 10 * b * xp.eps(W.dtype))
    of_Q, T = sides.send(of_Q, small.where(is_active[..., :, None], T, 0))
    return xp.matmul(W - xp.matmul(Q, of_Q), T)  # W = (W - Q Q^H W) T


def _without(xp: Any, of_Q: Array, of_W: Array) -> Array:
    """The products of the columns of W - Q Q^H W with each other, by Q^H W and W^H W (Pythagoras)."""
    return of_W - inner_products(xp, of_Q, of_Q)


def _whitening(xp: Any, G: Array, least: float) -> tuple[Array, Array]:
    """T = G^(-1/2), up to a rotation, and which of its columns are not zero: W T is orthonormal if G
    is W^H W.

    Directions in which G, scaled to a diagonal of ones, is at most `least` of its largest are left
    out (SVQB).
    """
    G = hermitian(xp, G)
    length = xp.sqrt(xp.maximum(xp.real(xp.diagonal(G)), 0))
    scale = 1 / positive_or_one(xp, length)
    values, U = xp.eigh(G * scale[..., :, None] * scale[..., None, :])
    kept = values > least * xp.maximum(values[..., -1:], 1e-30)
    factor = xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, 1)), 0)
    return scale[..., :, None] * U * factor[..., None, :], kept


def _best(
    xp: Any, of_W: Array, T: Array, has_P: Array, size: Array
) -> tuple[Array, Array, Array, Array]:
    """Rayleigh and Ritz in the span of S = [X, P, W], by S^H W and S^H A S: K, which makes S K
    orthonormal; the coefficients C of the vectors of the smallest values in it, and D of the part of
    the step from outside X, orthonormal and orthogonal to these; the values.

    S was orthonormal but for the rounding of its W, so that K is near the identity.
    """
    block = has_P.shape[-1]
    of_Q = of_W[..., : 2 * block, :]
    W, kept = _whitening(xp, _without(xp, of_Q, of_W[..., 2 * block :, :]), DISTINCT)
    unchanged = xp.broadcast_to(eye_like(xp, T)[..., : 2 * block], (*T.shape[:-1], 2 * block))
    last = xp.concat([-xp.matmul(of_Q, W), W], axis=-2)
    K = xp.concat([unchanged, last], axis=-1)
    T = hermitian(xp, inner_products(xp, K, xp.matmul(T, K)))
    there = xp.concat([has_P | True, has_P, kept], axis=-1)
    far = xp.where(there, 0, BEYOND * positive_or_one(xp, size)[..., None])
    values, Y = xp.eigh(T + xp.make_diagonal(xp.astype(far, T.dtype)))
    C = Y[..., :block]
    # in C a direction that is not there is a rounding, which would be made a unit vector
    outside = xp.where(there[..., block:, None], C[..., block:, :], 0)
    D = xp.concat([0 * C[..., :block, :], outside], axis=-2)
    D = orthonormal(Sides(xp, xp, None), D, C)
    return K, C, D, values[..., :block]


def orthonormal(sides: Sides, W: Array, Q: Array) -> Array:
    """An orthonormal basis of W less its part in span Q; zero columns for directions that are
    rounding errors."""
    xp = sides.xp
    W = _scaled(xp, W)
    for _ in range(2):
        W = W - xp.matmul(Q, inner_products(xp, Q, W))
        # What is left of a unit vector in span Q is rounding, and no direction: where Q spans the
        # space nothing else is there.
        is_left = xp.rough_norm(W, -2)[..., None, :] > ROUNDING * xp.eps(W.dtype)
        W = xp.where(is_left, W, 0)
        W = _whitened(sides, W)
    return _whitened(sides, W)


def _scaled(xp: Any, W: Array) -> Array:
    """Columns of norm 1, or zero."""
    length = xp.vector_norm(W, axis=-2, keepdims=True)
    return W / positive_or_one(xp, length)


def _whitened(sides: Sides, W: Array) -> Array:
    """W (W^H W)^(-1/2), the columns scaled first, and directions below rounding left out (SVQB).

    No column is much longer than 1, or so short that its square vanishes. The norms are read from
    W^H W, which is all that is summed over the devices of a mesh.
    """
    xp = sides.xp
    (G,) = sides.fetch(inner_products(xp, W, W))
    (T,) = sides.send(_whitening(sides.small, G, 10 * W.shape[-1] * xp.eps(W.dtype))[0])
    return xp.matmul(W, T)
