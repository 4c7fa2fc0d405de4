"""Stochastic variance-reduced gradients (Johnson and Zhang 2013) for A x = b, where A is a sum of many terms.

From an anchor x_0 with its true residual r_0 = b - A x_0, an epoch makes one cheap step for each minibatch S of terms,

    d <- d - η M (A_S d - r_0),      x = x_0 + d,     E A_S = A,

with η ≈ 1 / max λ(M A_S). Where x_0 solves the system the steps are zero, not merely zero on average: so it converges linearly, by about
1 - η λ_min a step, and at n / b steps a pass it is far ahead of a method of full products as long as 1 / η is not much larger than
λ_max(M A), that is, where minibatches resemble the whole. As A_S x - A_S x_0 is one product, an epoch costs two passes through the terms.

A that is not positive semidefinite goes through A^H A x = A^H b. The rows of A are then the terms; or, where A itself is the sum, A_S^H A_S d
stands for A^H A d: that is biased, but the anchor's residual is not, so the bias only damps the correction of an epoch (as a proximal point
method does), and the answer is right.

Differs from the reference: minibatches without replacement in each epoch; the first step of an epoch needs no product; blocks of right
sides, each judged on its own at each anchor. Of positive A the energy must fall from anchor to anchor, which follows from the residuals
alone: with d^H A d = d^H (r_0 - r_1) it falls by d^H (r_0 + r_1) / 2. Where it does not, a step of ours is halved and the anchor
kept; a step of the user's is followed, and divergence reported.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from .iteration import Outcome, Products, multiplied
from .loop import Loop, Run
from .vectors import (
    BREAKDOWN,
    INDEFINITE,
    NONFINITE,
    RUNNING,
    STAGNATION,
    SUCCESS,
    Columns,
    State,
    column_norms,
    final_code,
    first_of,
)
from .watching import NOBODY, Watch

MINIBATCHES, POWERS = 4, 8  # looked at for the step, and products with each
HALVINGS = 40  # of our own step after which nothing will help
STRIKES = 5  # anchors in a row at which a step of the user's did harm: it diverges
GROWTH = 1e4  # of the residual beyond the smallest one, after which a run has diverged
FLOOR = 1e4  # times eps: where a residual that no longer falls is as small as the dtype allows


class Terms(NamedTuple):
    """A sum that minibatches are drawn from. `squared`: they are those of A^H A."""

    number: int
    product: Callable[[Array, Array], Array]  # (indices, X) -> an estimate of A X, or of A^H A X
    share: float  # of a pass, that the product with one minibatch costs
    batch_size: int
    squared: bool
    generator: Any = None  # of the minibatches, if the terms bring one

    @property
    def steps(self) -> int:
        """How many minibatches a pass has."""
        return max(1, self.number // self.batch_size)


class SVRGState(State):
    X: Array  # the anchor
    R: Array  # its true residual
    V: Array  # the velocity, of momentum
    best: Array  # the anchor of the smallest residual
    least: Array  # that residual's norm
    rate: Array  # the step
    strikes: Array
    size: Array  # |r|^2
    status: Array
    generator: Any


def svrg(
    xp: Any,
    products: Products,
    B: Array,
    *,
    step: float | None,
    momentum: float,
    averaging: bool,
    seed: Any,
    tol: float,
    max_iters: int,
    X0: Array | None = None,
    watch: Watch = NOBODY,
) -> Outcome:
    """Solve A X = B; `products.terms` are the terms of A, and `max_iters` counts epochs."""
    terms, multiply, squared = products.terms, products.multiply, products.terms.squared
    norms = column_norms(xp, B)
    scale = xp.where(norms > 0, norms, 1)
    B = B / scale[..., None, :]
    X = (
        0 * B
        if products.columns == B.shape[-2]
        else xp.zeros((*B.shape[:-2], products.columns, B.shape[-1]), dtype=B.dtype)
    )
    R, used = B, 0.0
    if X0 is not None:
        X = xp.where(
            (norms > 0)[..., None, :], xp.broadcast_to(X0 / scale[..., None, :], X.shape), X
        )
        R, used = B - multiply(X), 1.0
    size, ops = column_norms(xp, R), Columns(xp, B.dtype)
    zero = xp.where(norms == norms, 0, 0)
    status = xp.where(size <= tol, SUCCESS, xp.where(xp.isfinite(size), RUNNING, NONFINITE)) + zero
    generator, start = xp.split(xp.generator(seed) if terms.generator is None else terms.generator)
    sample = minibatches(xp, terms, xp.device_of(B))
    uphill = gradient_of(products)

    if step is None and 0 not in B.shape:
        with quiet(xp):
            largest = largest_eigenvalue(
                xp, lambda i, V: uphill(terms.product(i, V), False), sample, X[..., :1], start
            )
        rate = xp.where(largest > 0, 1 / xp.where(largest > 0, largest, 1), 1) + 0 * size
        used += MINIBATCHES * POWERS * terms.share * (2 if squared else 1)
    else:
        rate = (step or 1.0) + 0 * size

    def epoch(ops: Any, s: SVRGState) -> SVRGState:
        generator, own = xp.split(s.generator)
        with quiet(xp):
            D, V = displacement(xp, terms, uphill, sample(own), s, momentum, averaging)
            X = s.X + D
            R = B - multiply(X)
            size = column_norms(xp, R)
            s.generator = generator
            return judged(s, D, V, X, R, size)

    def judged(s: SVRGState, D: Array, V: Array, X: Array, R: Array, size: Array) -> SVRGState:
        going = s.status == RUNNING
        if squared:
            gain, curved = s.size - size**2, size == size
        else:
            gain, curved = ops.dot(D, s.R + R), ops.dot(D, s.R - R) >= 0
        finite = xp.isfinite(size) & xp.isfinite(gain)
        harmed = xp.logical_not(finite & (gain > 0))
        kept = finite if step is not None else xp.logical_not(harmed)  # whether the anchor moves
        strikes = xp.where(harmed, s.strikes + 1, s.strikes if step is None else 0)
        solved = kept & (size <= tol)
        grown = size > GROWTH * s.least
        hopeless = (strikes >= (HALVINGS if step is None else STRIKES)) | (grown & kept)
        if step is not None:
            hopeless = hopeless | xp.logical_not(finite)
        at_floor = s.least <= FLOOR * xp.eps(B.dtype)
        status = first_of(
            xp,
            s.status,
            (solved, SUCCESS),
            (xp.logical_not(curved) & grown & finite, INDEFINITE),
            (hopeless & at_floor, STAGNATION),
            (hopeless, BREAKDOWN),
        )
        move = (kept & going)[..., None, :]
        better = kept & going & (size < s.least)
        return SVRGState(
            X=xp.where(move, X, s.X),
            R=xp.where(move, R, s.R),
            V=xp.where(move, V, 0),
            best=xp.where(better[..., None, :], X, s.best),
            least=xp.where(better, size, s.least),
            rate=xp.where(harmed & going, s.rate / 2, s.rate) if step is None else s.rate,
            strikes=strikes,
            size=xp.where(kept & going, size**2, s.size),
            status=status,
            generator=s.generator,
        )

    loop = Loop(xp, watch, max_iters, scale[..., None, :])
    history = loop.begin_history(size, X)
    first = SVRGState(
        X=X,
        R=R,
        V=0 * X,
        best=X,
        least=size,
        rate=rate,
        strikes=zero,
        size=size**2,
        status=status,
        generator=generator,
    )
    if 0 in B.shape:
        run = Run(first, zero, 0, history, False)
    else:
        run = loop.run(epoch, ops, first, lambda state: state.best, history=history)
    last = run.state
    loop.close(run.iteration, last.least)
    each = (1 + terms.steps * terms.share) * (2 if squared else 1)  # passes of an epoch
    return Outcome(
        X=multiplied(xp, last.best, scale[..., None, :]),
        status=final_code(xp, last.status, run.stopped),
        iterations=run.each,
        matvecs=whole(xp, used + run.iteration * each) * B.shape[-1],
        residual=last.least,
        history=loop.history(size, run.history),
    )


def displacement(
    xp: Any, terms: Terms, uphill: Any, order: Array, s: SVRGState, momentum: float, averaging: bool
) -> tuple[Array, Array]:
    """How far an epoch goes from its anchor, and its last velocity."""
    rate = s.rate[..., None, :]
    G = uphill(s.R, True)  # M r_0; the first step, at d = 0, needs no product
    V = momentum * s.V - G
    D = -rate * V

    def step(i: Any, state: Any) -> Any:
        D, V, total = state
        V = momentum * V + (uphill(terms.product(order[i], D), False) - G)
        D = D - rate * V
        return D, V, total + D if averaging else total

    D, V, total = xp.fori_loop(terms.steps, step, (D, V, D))
    return total / (terms.steps + 1) if averaging else D, V


def gradient_of(products: Products) -> Callable[[Array, bool], Array]:
    """M r of a residual r, or M M^H A^H r; of what minibatches have multiplied already (`is_residual` false) without A^H."""
    M, M_adjoint, adjoint = products.precondition, products.precondition_adjoint, products.adjoint
    squared = products.terms.squared

    def uphill(R: Array, is_residual: bool) -> Array:
        if squared and is_residual:
            R = adjoint(R)  # type: ignore[misc]
        if squared and M_adjoint is not None:
            R = M_adjoint(R)
        return R if M is None else M(R)

    return uphill


# ---------------------------------------------------------------------------------------------------- shared with svrg_subspace.py


def minibatches(xp: Any, terms: Terms, device: Any) -> Callable[[Any], Array]:
    """A function of a generator that gives the minibatches of an epoch, (steps, batch_size): no term twice."""

    def sample(generator: Any) -> Array:
        order = xp.argsort(
            xp.uniform(generator, (terms.number,), dtype=xp.float32, device=device), axis=-1
        )
        return xp.reshape(order[: terms.steps * terms.batch_size], (terms.steps, terms.batch_size))

    return sample


def largest_eigenvalue(xp: Any, product: Any, sample: Any, like: Array, generator: Any) -> Array:
    """About the largest eigenvalue of any minibatch, by a few powers of a few of them, (*batch, 1)."""
    a, b = xp.split(generator)
    V = xp.normal(b, like.shape, dtype=like.dtype, device=xp.device_of(like))
    return powers(xp, product, sample(a), V)[1]


def powers(xp: Any, product: Any, order: Array, V: Array) -> tuple[Array, Array]:
    """V after a few powers with each of a few minibatches, orthonormal, and about the largest eigenvalue of any of these, (*batch, 1)."""

    def power(i: Any, state: Any) -> Any:
        V, largest = state
        W = product(order[(i // POWERS) % order.shape[0]], V)
        # Of the first powers with a minibatch the growth says little.
        growth = (i % POWERS >= POWERS // 2) * xp.max(
            xp.vector_norm(W, axis=-2), axis=-1, keepdims=True
        )
        return orthonormal(xp, W), xp.maximum(largest, growth)

    V = orthonormal(xp, V)
    return xp.fori_loop(MINIBATCHES * POWERS, power, (V, 0 * xp.vector_norm(V[..., :1], axis=-2)))


def orthonormal(xp: Any, W: Array) -> Array:
    """An orthonormal basis of the columns."""
    if W.shape[-1] > 1:
        return xp.qr(W)[0]
    size = xp.vector_norm(W, axis=-2, keepdims=True)
    return W / xp.where(size > 0, size, 1)


def whole(xp: Any, count: Any) -> Any:
    """A number of passes, rounded up."""
    if isinstance(count, (int, float)):
        return math.ceil(count - 1e-9)
    return xp.astype(-((-count + 1e-6) // 1), "int32")


def quiet(xp: Any) -> Any:
    """NumPy's warnings silenced where a run may diverge: that becomes a status."""
    return np.errstate(all="ignore") if xp.name == "numpy" else contextlib.nullcontext()
