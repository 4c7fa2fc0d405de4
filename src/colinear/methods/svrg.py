"""Stochastic gradients for sums with their variance reduced: solutions (SVRG) and outermost
eigenvectors (VR-PCA)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array, adjoint, hermitian, inner_products, positive_or_one
from .base import Iterative, check_integer
from .iterate import Outcome, Products, Solve
from .loop import NO_MONITOR, Loop, Monitor
from .sampling import check_seed, static_seed
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

STEPS = 64  # minibatches of a pass, if the user does not say how large they are
EPOCHS = 500
MINIBATCHES, POWERS = 4, 8  # looked at for the step, and products with each
HALVINGS = 40  # of our own step after which nothing will help
STRIKES = 5  # anchors in a row at which a step of the user's did harm: it diverges
GROWTH = 1e4  # of the residual beyond the smallest one, after which a run has diverged
FLOOR = 1e4  # times eps: where a residual that no longer falls is as small as the dtype allows


@dataclass(frozen=True)
class SVRG(Iterative):
    """Stochastic variance-reduced gradients, for A that is a sum of many terms: `BatchSum`, `Sum`,
    or a product such as X^H X.

    For `solve` and `inv`, `lstsq` (by the rows of A), `nullspace`, and the outermost eigenvectors
    of self-adjoint A (`eig(A, k, "LA")` or `"SA"`, by VR-PCA). Steps with minibatches of the terms,
    and an exact residual at each anchor: two passes make an epoch.

    Parameters
    ----------
    batch_size : int, optional
        How many terms make a minibatch; default 1/64 of them.
    step : float, optional
        The step size; by default the inverse of the largest eigenvalue of a few minibatches, found
        by a few power iterations, and halved whenever an epoch does harm.
    momentum : float
        How much of the last step is made again, at least 0 and below 1; for linear systems.
    averaging : bool
        Whether the next anchor is the mean of an epoch's iterates instead of the last one; for
        linear systems.
    seed : int, JAX key, or NumPy or torch generator
        Of the minibatches. One integer gives one answer; a generator moves on.
    tol, preconditioner, x0, callback, progress
        As for `CG`; the preconditioner is for linear systems.
    max_iters : int, optional
        The most epochs; default 500.

    Notes
    -----
    An epoch converges by 1 - step λ_min for each minibatch. It pays where terms are many and alike,
    an approximate answer is enough and no preconditioner makes CG quick. `info.matvecs` counts
    passes: all terms once, for one vector. A that is not known to be positive semidefinite is
    solved through A^H A, at four passes an epoch. A step that diverges ends as BREAKDOWN.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> X = co.Dense(np.random.default_rng(0).standard_normal((10000, 5)))
    >>> A = X.H @ X / 10000 + 0.1 * co.Identity(5)
    >>> x, info = co.solve(A, np.ones(5), co.SVRG(batch_size=100), info=True)
    >>> bool(np.linalg.norm(A @ x - 1) < 1e-6), info.iterations < 30
    (True, True)
    """

    batch_size: int | None = None
    step: float | None = None
    momentum: float = 0.0
    averaging: bool = False
    seed: Any = 0

    needs_terms = True
    vectors = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "batch_size", 1, "a positive integer, or None")
        if self.step is not None and not 0 < self.step < float("inf"):
            raise ValueError(
                f"SVRG: step is {self.step!r}; "
                "it must be a positive number, or None to have one found."
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"SVRG: momentum is {self.momentum!r}; it must be at least 0 and below 1."
            )
        check_seed("SVRG", self.seed)
        if self.precision is not None:
            raise ValueError(
                "SVRG: it has no low precision to refine from. Use CG, MINRES, GMRES or BiCGSTAB."
            )

    def runs_on(self, A: Any) -> bool:
        return bool(A._term_count > 1)

    def without_arrays(self) -> Any:
        return replace(super().without_arrays(), seed=static_seed(self.seed))

    def batch_of(self, count: int) -> int:
        """The size of minibatches of so many terms."""
        return max(1, count // STEPS) if self.batch_size is None else int(self.batch_size)

    def iterations(self, m: int, n: int) -> int:
        return EPOCHS if self.max_iters is None else self.max_iters

    def typical(self, m: int, n: int) -> int:
        return min(2 * self.iterations(m, n), 60)

    def algorithm(
        self, xp: Any, products: Products, B: Array, X0: Array | None = None, **options: Any
    ) -> Outcome:
        """Solve A X = B; `products.terms` are the terms of A, and `max_iters` counts epochs."""
        terms, squared, step = products.terms, products.terms.squared, self.step
        solve = Solve(xp, products, B, **options)
        at_first = solve.begin(X0)
        B, size, used = solve.B, at_first.residual, float(at_first.products)
        generator, start = terms.generators(xp, self.seed)
        uphill, largest = gradient_of(products), 1 + 0 * size
        if step is None and 0 not in B.shape:
            gradient = lambda i, V: uphill(terms.product(i, V), False)
            with quiet(xp):
                largest = largest_eigenvalue(xp, gradient, terms, at_first.X[..., :1], start)
            used += MINIBATCHES * POWERS * terms.share * (2 if squared else 1)

        def epoch(ops: Any, s: SVRGState) -> SVRGState:
            s.generator, own = xp.split(s.generator)
            with quiet(xp):
                D, V = displacement(xp, terms, uphill, terms.sample(xp, own, B), s, self)
                X = s.X + D
                R = B - products.multiply(X)
                size, going = column_norms(xp, R), s.status == RUNNING
                if squared:
                    gain, curved = s.size - size**2, size == size
                else:
                    gain, curved = ops.dot(D, s.R + R), ops.dot(D, s.R - R) >= 0
                finite = xp.isfinite(size) & xp.isfinite(gain)
                kept, lost = pace(xp, step, s, finite, finite & (gain > 0), going)
                grown = size > GROWTH * s.least
                hopeless, at_floor = lost | (grown & kept), s.least <= FLOOR * xp.eps(B.dtype)
                bent = ~curved & grown & finite
                reached = kept & (size <= solve.tol)
                failures = hopeless & at_floor, STAGNATION, hopeless, BREAKDOWN
                s.status = first_of(xp, s.status, reached, SUCCESS, bent, INDEFINITE, *failures)
                kept = kept & going
                move, better = kept[..., None, :], kept & (size < s.least)
                s.X, s.R = xp.where(move, X, s.X), xp.where(move, R, s.R)
                s.V = xp.where(move, V, 0)
                s.best = xp.where(better[..., None, :], X, s.best)
                s.least = xp.where(better, size, s.least)
                s.size = xp.where(kept, size**2, s.size)
                return s

        state = SVRGState(
            X=at_first.X,
            R=at_first.R,
            V=0 * at_first.X,
            best=at_first.X,
            least=size,
            rate=first_rate(xp, step, largest) + 0 * size,
            strikes=0 * at_first.status,
            size=size**2,
            status=at_first.status,
            generator=generator,
        )
        run = at_first.run._replace(state=state)
        if 0 not in B.shape:
            run = solve.loop.run(epoch, Columns(xp, B.dtype), run, lambda state: state.best)
        last = run.state
        each = (1 + terms.steps * terms.share) * (2 if squared else 1)  # passes of an epoch
        found = {"size": last.least, "residual": last.least, "status": last.status}
        passes = whole(xp, used + run.iteration * each)
        return solve.outcome(at_first._replace(X=last.best, run=run, products=passes, **found))


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

    def sample(self, xp: Any, generator: Any, like: Array) -> Array:
        """The minibatches of an epoch, (steps, batch_size), on the device of an array: no term
        twice."""
        device, count = xp.device_of(like), self.steps * self.batch_size
        numbers = xp.uniform(generator, (self.number,), dtype=xp.float32, device=device)
        order = xp.argsort(numbers, axis=-1)
        return xp.reshape(order[:count], (self.steps, self.batch_size))

    def generators(self, xp: Any, seed: Any) -> Any:
        """Those of the minibatches, and of the start."""
        return xp.split(xp.generator(seed) if self.generator is None else self.generator)


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


def displacement(
    xp: Any, terms: Terms, uphill: Any, order: Array, s: SVRGState, method: SVRG
) -> tuple[Array, Array]:
    """How far an epoch goes from its anchor, and its last velocity."""
    rate, momentum, averaging = s.rate[..., None, :], method.momentum, method.averaging
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
    """M r of a residual r, or M M^H A^H r; of what minibatches have multiplied already
    (`is_residual` false) without A^H."""
    M, M_adjoint, adjoint = products.precondition, products.precondition_adjoint, products.adjoint
    squared = products.terms.squared

    def uphill(R: Array, is_residual: bool) -> Array:
        if squared and is_residual:
            R = adjoint(R)  # type: ignore[misc]
        if squared and M_adjoint is not None:
            R = M_adjoint(R)
        return R if M is None else M(R)

    return uphill


# ------------------------------------------------------------------------------- shared by both


def first_rate(xp: Any, step: float | None, largest: Array) -> Array:
    """The step to begin with: the user's, or the inverse of the largest eigenvalue."""
    if step is not None:
        return step + 0 * largest
    return xp.where(largest > 0, 1 / positive_or_one(xp, largest), 1)


def pace(
    xp: Any, step: float | None, s: Any, finite: Array, helped: Array, going: Any
) -> tuple[Array, Array]:
    """Whether the anchor moves, and whether all is lost, by whether an epoch has helped. Of those
    that go on how often it did not is counted, and the step, if it is ours, is halved then."""
    harmed = ~helped
    strikes = xp.where(harmed, s.strikes + 1, s.strikes if step is None else 0)
    s.strikes = strikes
    if step is not None:
        return finite, (strikes >= STRIKES) | ~finite
    s.rate = xp.where(harmed & going, s.rate / 2, s.rate)
    return helped, strikes >= HALVINGS


def largest_eigenvalue(xp: Any, product: Any, terms: Terms, like: Array, generator: Any) -> Array:
    """About the largest eigenvalue of any minibatch, by a few powers of a few of them, (*batch,
    1)."""
    a, b = xp.split(generator)
    V = xp.normal(b, like.shape, dtype=like.dtype, device=xp.device_of(like))
    return powers(xp, product, terms.sample(xp, a, like), V)[1]


def powers(xp: Any, product: Any, order: Array, V: Array) -> tuple[Array, Array]:
    """V after a few powers with each of a few minibatches, orthonormal, and about the largest
    eigenvalue of any of these, (*batch, 1)."""

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
    return W / positive_or_one(xp, size)


def whole(xp: Any, count: Any) -> Any:
    """A number of passes, rounded up."""
    if isinstance(count, (int, float)):
        return math.ceil(count - 1e-9)
    return xp.astype(-((-count + 1e-6) // 1), "int32")


def quiet(xp: Any) -> Any:
    """NumPy's warnings silenced where a run may diverge: that becomes a status."""
    return np.errstate(all="ignore") if xp.name == "numpy" else contextlib.nullcontext()


# --------------------------------------------------------------------------------------------------

# Outermost eigenvectors of self-adjoint A, a sum of many terms: VR-PCA (Shamir 2016), Oja's
# gradient with its variance reduced.
#
# From an anchor W_0 with its product A W_0 an epoch makes one step for each minibatch S of terms,
#
#     W <- orth(W ± η (A_S (W - W_0 C) + A W_0 C)),     C = W_0^H W,     E A_S = A,
#
# up for the largest eigenvalues, down for the smallest. C is the best fit of W by the anchor, so what
# the minibatch multiplies vanishes as the run converges. At each anchor the Ritz pairs and their true
# residuals are computed from A W, which the next epoch needs anyway: two passes an epoch. Largest
# eigenvectors start from those of a few minibatches, whose powers give the step too.
#
# Differs from the paper: C is the least-squares fit and not the nearest rotation, which needs no
# decomposition and leaves less to the minibatch; minibatches without replacement; where the sum of
# Ritz values and the residual both get worse, a step of ours is halved and the anchor kept. For the
# null space of any A the same is done with A^H A.

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
