"""Locally optimal block preconditioned conjugate gradients (Knyazev 2001), for the extreme
eigenpairs of self-adjoint A.

Each step minimises the Rayleigh quotient over span[X, W, P]: the block X, its preconditioned
residuals W, and the directions P of the step before.

Differs from the paper: the basis is kept orthonormal, and P orthogonal to X, as Hetmaniuk and
Lehoucq (2006) and Duersch, Shao, Yang and Gu (2018) found necessary; directions of W that are
rounding errors are dropped (SVQB, Stathopoulos and Wu 2002). Locking is soft: a pair that has
converged stays in X and adds no residual. Batches advance together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..backends import Array, hermitian, inner_products, positive_or_one
from ..properties import SELF_ADJOINT
from .base import Spectral
from .basis import SAFETY, Pairs, all_finite, count_of, every, fresh, pairs_of, run_cycles
from .vectors import LinearMap, State

ROUNDING = 100  # roundings up to which what is left of a unit vector counts as zero
# roundings of the norm of A that a residual has in any case, since A X follows the recurrence
FLOOR = 100
HUGE = 1e3  # times the norm of A: where values of dropped directions go, out of the way


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


class LOBPCGState(State):
    """Where a run stands: blocks (*batch, n, b), each with its product with A."""

    X: Array
    AX: Array
    P: Array
    AP: Array
    values: Array  # (*batch, b)
    residual: Array
    size: Array
    V: Array  # X by rows
    iterations: Any
    done: Any
    finite: Any

    @property
    def matvecs(self) -> Any:
        """The products so far: one for each vector of the block, in each iteration."""
        return self.iterations * self.X.shape[-1]


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
    iteration multiplies A by the block once.
    """
    sign = -1 if largest else 1

    def times(X: Array) -> Array:
        return sign * multiply(X)

    def step(s: LOBPCGState) -> LOBPCGState:
        W = s.AX - s.X * s.values[..., None, :]
        W = xp.where((s.residual <= target(s.size))[..., None, :], 0, W)
        W = W if precondition is None else precondition(W)
        W = orthonormal(xp, W, xp.concat([s.X, s.P], axis=-1))
        S = xp.concat([s.X, W, s.P], axis=-1)
        AS = xp.concat([s.AX, times(W), s.AP], axis=-1)
        C, s.values = _best(xp, S, AS, s.size, block)
        # The part of the step from outside X, orthonormal and orthogonal to the new X.
        D = orthonormal(xp, xp.concat([0 * C[..., :block, :], C[..., block:, :]], axis=-2), C)
        s.X, s.AX, s.P, s.AP = (xp.matmul(B, c) for c in (C, D) for B in (S, AS))
        return judged(s)

    def target(size: Array) -> Array:
        return SAFETY * max(tol, FLOOR * xp.eps(start.dtype)) * size[..., None]

    def judged(s: LOBPCGState) -> LOBPCGState:
        """The state after an iteration, by its blocks and values."""
        s.residual = xp.vector_norm(s.AX - s.X * s.values[..., None, :], axis=-2)
        s.size = xp.maximum(s.size, xp.max(xp.vector_norm(s.AX, axis=-2), axis=-1))
        s.V, s.iterations = xp.matrix_transpose(s.X), s.iterations + 1
        s.done = every(xp, s.residual[..., :k] <= target(s.size))
        s.finite = all_finite(xp, s.size)
        return s

    def going(s: LOBPCGState) -> Any:
        return (s.done ^ True) & s.finite & (s.iterations < max_iters)

    X = xp.qr(xp.stack([start, *(fresh(xp, noise, i) for i in range(block - 1))], axis=-1))[0]
    AX = times(X)
    values, C = xp.eigh(hermitian(xp, inner_products(xp, X, AX)))
    first = LOBPCGState(
        X=xp.matmul(X, C),
        AX=xp.matmul(AX, C),
        P=0 * X,
        AP=0 * X,
        values=values,
        size=0 * values[..., 0],
        iterations=count_of(xp, 0),
    )
    state, stopped = run_cycles(xp, going, step, judged(first), watch)
    return pairs_of(state, sign * state.values[..., :k], state.V[..., :k, :], stopped)


def _best(xp: Any, S: Array, AS: Array, size: Array, block: int) -> tuple[Array, Array]:
    """Rayleigh and Ritz in an orthonormal basis, of which columns that were dropped are zero: the
    smallest values, and their vectors."""
    T = hermitian(xp, inner_products(xp, S, AS))
    there = xp.rough_norm(S, -2) > 0.5
    far = xp.where(there, 0, HUGE * size[..., None] + 1)
    values, C = xp.eigh(T + xp.make_diagonal(xp.astype(far, T.dtype)))
    return C[..., :block], values[..., :block]


def orthonormal(xp: Any, W: Array, Q: Array) -> Array:
    """An orthonormal basis of W less its part in span Q; zero columns for directions that are
    rounding errors."""
    W = _scaled(xp, W)
    for _ in range(2):
        W = W - xp.matmul(Q, inner_products(xp, Q, W))
        # What is left of a unit vector in span Q is rounding, and no direction: where Q spans the
        # space nothing else is there.
        is_left = xp.rough_norm(W, -2)[..., None, :] > ROUNDING * xp.eps(W.dtype)
        W = xp.where(is_left, W, 0)
        W = _whitened(xp, W)
    return _whitened(xp, W)


def _scaled(xp: Any, W: Array) -> Array:
    """Columns of norm 1, or zero."""
    length = xp.vector_norm(W, axis=-2, keepdims=True)
    return W / positive_or_one(xp, length)


def _whitened(xp: Any, W: Array) -> Array:
    """W (W^H W)^(-1/2), the columns scaled first, and directions below rounding left out (SVQB).

    No column is much longer than 1, or so short that its square vanishes. The norms are read from
    W^H W, which is all that is summed over the devices of a mesh.
    """
    G = hermitian(xp, inner_products(xp, W, W))
    scale = 1 / positive_or_one(xp, xp.sqrt(xp.real(xp.diagonal(G))))  # 1 / |w_i|
    values, U = xp.eigh(G * scale[..., :, None] * scale[..., None, :])
    largest = values[..., -1:]
    kept = values > 10 * W.shape[-1] * xp.eps(W.dtype) * xp.maximum(largest, 1e-30)
    factor = xp.where(kept, 1 / xp.sqrt(xp.where(kept, values, 1)), 0)
    return xp.matmul(W, scale[..., :, None] * U * factor[..., None, :])
