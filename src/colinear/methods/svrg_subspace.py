"""Outermost eigenvectors of self-adjoint A, a sum of many terms: VR-PCA (Shamir 2016), Oja's
gradient with its variance reduced.

From an anchor W_0 with its product A W_0 an epoch makes one step for each minibatch S of terms,

    W <- orth(W ± η (A_S (W - W_0 C) + A W_0 C)),     C = W_0^H W,     E A_S = A,

up for the largest eigenvalues, down for the smallest. C is the best fit of W by the anchor, so what
the minibatch multiplies vanishes as the run converges. At each anchor the Ritz pairs and their true
residuals are computed from A W, which the next epoch needs anyway: two passes an epoch. Largest
eigenvectors start from those of a few minibatches, whose powers give the step too.

Differs from the paper: C is the least-squares fit and not the nearest rotation, which needs no
decomposition and leaves less to the minibatch; minibatches without replacement; where the sum of
Ritz values and the residual both get worse, a step of ours is halved and the anchor kept. For the
null space of any A the same is done with A^H A.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array, adjoint, hermitian, inner_products, positive_or_one
from .iterate import Products
from .loop import NO_MONITOR, Loop, Monitor
from .svrg import (
    MINIBATCHES,
    POWERS,
    first_rate,
    largest_eigenvalue,
    orthonormal,
    pace,
    powers,
    quiet,
    whole,
)
from .vectors import BREAKDOWN, NONFINITE, RUNNING, SUCCESS, Columns, State, final_code, first_of

WORSE = 1.5  # growth of the residual that counts as harm where the Ritz values have not improved


Settled = Callable[[Array, Array, Array], Array]


class Subspace(NamedTuple):
    """Ritz pairs, ascending, (*batch, k) and (*batch, n, k); residuals |A w - θ w|, an estimate of
    |A|, and how it went."""

    values: Array
    vectors: Array
    residual: Array
    norm: Array
    status: Array  # one number
    epochs: Any
    matvecs: Any


class SubspaceState(State):
    W: Array
    G: Array  # A W
    values: Array
    residual: Array
    norm: Array
    rate: Array
    strikes: Array
    size: Array  # the relative residual, squared
    status: Array
    generator: Any


def svrg_subspace(
    xp: Any,
    products: Products,
    W: Array,
    *,
    largest: bool,
    step: float | None,
    seed: Any,
    settled: Settled,
    max_iters: int,
    watch: Monitor = NO_MONITOR,
) -> Subspace:
    """Orthonormal W with A W = W Θ from a random W (*batch, n, k); `settled(values, residual,
    norm)` says which pairs are good."""
    terms, sign, columns = products.terms, 1 if largest else -1, W.shape[-1]
    generator, start = terms.generators(xp, seed)
    with quiet(xp):
        if largest:  # the powers that find the step have gone a good part of the way
            W, norm = powers(xp, terms.product, terms.sample(xp, start, W), W)
        else:
            norm = largest_eigenvalue(xp, terms.product, terms, W[..., :1], start)

    def anchored(W: Array) -> tuple[Array, Array, Array, Array]:
        """The Ritz vectors of the span, their products with A, values and residuals."""
        W = orthonormal(xp, W)
        Y = products.multiply(W)
        G = Y if not terms.squared else products.adjoint(Y)  # type: ignore[misc]
        # of A^H A from A W: small values are not lost
        H = xp.matmul(adjoint(xp, Y if terms.squared else W), Y)
        values, C = xp.eigh(hermitian(xp, H))
        W, G = xp.matmul(W, C), xp.matmul(G, C)
        return W, G, values, xp.vector_norm(G - W * values[..., None, :], axis=-2)

    def judge(s: SubspaceState) -> Array:
        """Set |A| and the relative residual by the pairs; whether these are settled."""
        s.norm = xp.maximum(s.norm, xp.max(abs(s.values), axis=-1, keepdims=True))
        s.size = (s.residual / positive_or_one(xp, s.norm)) ** 2
        return xp.all(settled(s.values, s.residual, s.norm), axis=-1, keepdims=True)

    def epoch(_: Any, s: SubspaceState) -> SubspaceState:
        s.generator, own = xp.split(s.generator)
        order, ascent = terms.sample(xp, own, s.W), sign * s.rate[..., None, :]

        def one(i: Any, W: Array) -> Array:
            C = inner_products(xp, s.W, W)
            slope = terms.product(order[i], W - xp.matmul(s.W, C)) + xp.matmul(s.G, C)
            return orthonormal(xp, W + ascent * slope)

        with quiet(xp):
            # the first step, at the anchor, needs no product
            first = orthonormal(xp, s.W + ascent * s.G)
            W, G, values, residual = anchored(xp.fori_loop(terms.steps, one, first))
        finite = xp.all(xp.isfinite(values + residual), axis=-1, keepdims=True)
        gain = sign * xp.sum(values - s.values, axis=-1, keepdims=True)
        worst, before = (xp.max(x, axis=-1, keepdims=True) for x in (residual, s.residual))
        helped = finite & ((gain > xp.eps(W.dtype) * s.norm) | (worst <= WORSE * before))
        kept, lost = pace(xp, step, s, finite, helped, True)
        s.values, s.residual = (
            xp.where(kept, values, s.values),
            xp.where(kept, residual, s.residual),
        )
        s.W, s.G = xp.where(kept[..., None], W, s.W), xp.where(kept[..., None], G, s.G)
        s.status = first_of(xp, s.status, judge(s), SUCCESS, lost, BREAKDOWN)
        return s

    W, G, values, residual = anchored(W)
    first = SubspaceState(
        W=W,
        G=G,
        values=values,
        residual=residual,
        norm=norm,
        rate=first_rate(xp, step, norm),
        strikes=xp.where(norm == norm, 0, 0),
        generator=generator,
    )
    status = xp.where(judge(first), SUCCESS, RUNNING)
    finite = xp.all(xp.isfinite(residual), axis=-1, keepdims=True)
    first.status = xp.where(finite, status, NONFINITE)
    loop = Loop(xp, watch, max_iters, xp.ones((), dtype=norm.dtype, device=xp.device_of(norm)))
    run = loop.begin(first.status, first.size**0.5, first)
    run = loop.run(epoch, Columns(xp, W.dtype), run, lambda state: state.W)
    last = run.state
    loop.close(run.iteration, last.size**0.5)
    each = (2 if terms.squared else 1) * columns
    before = MINIBATCHES * POWERS * terms.share * (each if largest else each / columns)
    passes = (1 + run.iteration * (1 + terms.steps * terms.share)) * each + before
    return Subspace(
        values=last.values,
        vectors=last.W,
        residual=last.residual,
        norm=last.norm,
        status=xp.max(final_code(xp, last.status, run.stopped)),
        epochs=run.iteration,
        matvecs=whole(xp, passes),
    )
