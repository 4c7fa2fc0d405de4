"""Lanczos on a Chebyshev polynomial of A: for eigenvalues that products with A alone are slow to
find, and no inverse is at hand.

Wanted are the smallest eigenvalues of a self-adjoint H: of H = A, of H = -A, or of H = (A -
shift)^2, which are those of A nearest to the shift. If the unwanted ones lie in [a, b], the
polynomial T_d((a + b - 2 H) / (b - a)) stays within [-1, 1] on them and grows monotonically below
a: its largest eigenvalues are the smallest of H, well apart (Zhou, Saad, Tiago and Chelikowsky
2006; Fang and Saad 2012). Between two polynomials the pairs are taken from A itself, by Rayleigh
and Ritz.

- a comes of the Ritz values of H found so far: at least as many eigenvalues are below each as there
  are Ritz values (Cauchy), so none of the wanted can be cut off.
- b is the largest Ritz value of a few steps and its residual (Zhou and Li 2011). If it was too
  small the polynomial finds the wrong end, which is seen since its pairs are not below a, and b is
  raised.
- (A - shift)^2 does not tell shift + x from shift - x, and a Krylov space would hold one mixture of
  the two. So some more pairs than wanted are looked for, and the polynomial stands beside the shift
  by a part of what they leave between the last wanted pair and the last one found. That is too
  little for a wanted pair to be missed, which is looked at again at the end: eigenvalues no further
  from the shift than the last wanted are nearer to the polynomial's place than the last found.
"""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array, hermitian, inner_products, positive_or_one, zeros_like
from .basis import (
    SAFETY,
    Pairs,
    all_finite,
    count_of,
    every,
    larger,
    pairs_of,
    plain,
    smaller,
    take_columns,
)
from .lanczos import lanczos, ritz_values
from .restarted import Request
from .vectors import LinearMap, State

MORE = 3  # pairs beyond the wanted


# of the distances of the last wanted pair and the last one found, by which the polynomial is beside
# the shift
BESIDE = 0.02


GAIN = 60.0  # how much larger than the unwanted the polynomial is to be at the last wanted pair


LARGEST = 3000.0  # and at most at the best one: an outlier must not drown the others


HIGHEST = 500  # degree


FIRST = 3  # bases filled by H itself before there is a polynomial


BASES = 6  # filled with the first polynomial; with each that follows twice as many


class FilteredState(State):
    """Where a run stands, between two polynomials."""

    start: Array  # (*lanes, n)
    a: Array  # (*lanes,), below which the wanted eigenvalues of H are
    b: Array  # (*lanes,), above which there are none
    beside: Array  # (*lanes,), the place of the polynomial, less the shift
    degree: Any
    bases: Any  # to be filled with it
    values: Array  # (*lanes, k) of A
    vectors: Array  # (*lanes, k, n)
    size: Array  # of A
    matvecs: Any
    done: Any
    finite: Any

    @property
    def iterations(self) -> Any:
        """The products so far, in which a run is counted."""
        return self.matvecs


def filtered(
    xp: Any,
    multiply: LinearMap,
    start: Array,
    noise: Array,
    k: int,
    which: str,
    *,
    shift: float | None,
    **options: Any,
) -> Pairs:
    """The k eigenpairs of self-adjoint A nearest to `shift`, or at the end of the spectrum that
    `which` ("SA", "LA") names.

    The other parameters are those of `lanczos`; an iteration is a product with A, also inside a
    polynomial.
    """
    ask, n = Request(k, which, **options), start.shape[-1]
    m, most, is_end = ask.m, ask.max_iters, shift is None
    sign = -1 if which == "LA" else 1
    each = 1 if is_end else 2  # products with A in one with H
    count = min(n, k + MORE, max(k, m - 2)) if m < n else min(n, k + MORE)
    stopped = False

    def less_shift(X: Array) -> Array:
        return sign * multiply(X) if is_end else multiply(X) - shift * X

    def times(X: Array, beside: Any = 0) -> Array:
        """H X"""
        if is_end:
            return less_shift(X)
        Y = less_shift(X) - beside * X
        return less_shift(Y) - beside * Y

    def stage(s: FilteredState) -> FilteredState:
        low, high, beside = (x[..., None, None] for x in (s.a, s.b, s.beside))
        middle, half = (high + low) / 2, (high - low) / 2

        def scaled(X: Array) -> Array:
            return (middle * X - times(X, beside)) / half

        def polynomial(X: Array) -> Array:
            def following(_: Any, pair: Any) -> Any:
                before, last = pair
                return last, 2 * scaled(last) - before

            return xp.fori_loop(s.degree - 1, following, (X, scaled(X)))[1]

        nonlocal stopped
        # for one basis at least
        left = larger(xp, m, (most - s.matvecs) // (each * s.degree))
        own = {**options, "max_iters": left, "patience": s.bases * m, "relative": True}
        found = lanczos(xp, polynomial, s.start, noise, count, "LA", **own)
        stopped = found.stopped
        # The pairs of A in the space that was found, by Rayleigh and Ritz.
        X = xp.matrix_transpose(found.vectors)
        X = 1.5 * X - 0.5 * xp.matmul(X, inner_products(xp, X, X))  # orthonormal to rounding
        Z = less_shift(X)
        theta, C = xp.eigh(hermitian(xp, inner_products(xp, X, Z)))
        order = xp.argsort(theta if is_end else abs(theta), axis=-1, stable=True)
        theta = xp.take_along_axis(theta, order, axis=-1)
        C = take_columns(xp, C, order)
        X, Z = xp.matmul(X, C), xp.matmul(Z, C)
        largest = xp.max(abs(theta), axis=-1)
        near, Ritz = True, theta  # Ritz values of H
        least, norm = Ritz[..., 0], xp.maximum(abs(s.b), largest)
        if not is_end:
            # none of the wanted was missed
            near = every(xp, 2 * s.beside <= abs(theta[..., -1]) - abs(theta[..., k - 1]))
            squares = xp.eigvalsh(hermitian(xp, inner_products(xp, Z, Z)))
            distance = xp.sqrt(xp.maximum(squares, 0))
            s.beside = BESIDE * (distance[..., -1] - distance[..., k - 1])
            Ritz = (distance + s.beside[..., None]) ** 2
            least, norm = 0 * s.a, xp.sqrt(s.b)
        residual = xp.vector_norm(Z - X * theta[..., None, :], axis=-2)
        s.size = xp.maximum(s.size, xp.maximum(largest, norm / 1.5))
        target = SAFETY * max(ask.tol, 2 * xp.eps(X.dtype)) * s.size[..., None]
        right = every(xp, residual[..., :k] <= target)
        last = Ritz[..., k - 1]
        below = (last <= s.a + 1e-3 * (s.b - s.a)) | (s.degree == 1)
        s.values = sign * theta[..., :k] if is_end else theta[..., :k] + shift
        s.vectors = xp.matrix_transpose(X)[..., :k, :]
        s.done = found.done & right & near & every(xp, below)
        s.finite = found.finite & all_finite(xp, theta)
        # The next polynomial, of a degree that is common to all lanes.
        s.start, s.bases = xp.sum(xp.matrix_transpose(X), axis=-2), 2 * s.bases
        s.b = b = xp.where(below, s.b, 1.5 * s.b + 0.1 * abs(s.b))
        s.a = a = xp.where(below, xp.minimum(Ritz[..., -1], b - 1e-3 * abs(b)), s.a)
        far, farthest = ((a - x) * 2 / positive_or_one(xp, b - a) for x in (last, least))
        highest = (most - s.matvecs) // (each * m)
        s.matvecs = s.matvecs + each * s.degree * found.matvecs + k
        s.degree = _degree(xp, xp.min(far), xp.max(farthest), highest)
        return s

    def going(s: FilteredState) -> Any:
        # for one basis at least
        left = s.matvecs + each * m * s.degree <= max(most, each * m + used)
        return (s.done ^ True) & s.finite & left & (not stopped)

    steps = min(n, max(m, 20))
    used = each * steps
    values, residual, size = ritz_values(xp, times, start, noise, steps)
    top = values[..., 0] + residual[..., 0] + 0.01 * xp.maximum(abs(values[..., 0]), size)
    top = xp.where(size == 0, 1, top)
    V = zeros_like(xp, start, (*start.shape[:-1], k, n))
    state = FilteredState(
        start=start,
        a=-abs(top),
        b=top,
        beside=0 * top,
        degree=count_of(xp, 1),
        bases=count_of(xp, FIRST),
        values=xp.real(V[..., 0]),
        vectors=V,
        size=0 * size,
        matvecs=count_of(xp, used),
        done=count_of(xp, False),
        finite=count_of(xp, True),
    )
    if xp.is_functional and ask.watch is None:
        state = xp.while_loop(going, stage, state)
    else:
        while going(state):
            state = stage(state)
    return pairs_of(state, state.values, state.vectors, stopped)


def _degree(xp: Any, last: Array, best: Array, highest: Any) -> Any:
    """Of the polynomial that is GAIN at 1 + `last`, if that is no more than LARGEST at 1 + `best`;
    and low enough for some bases. Two where these are no numbers.

    It is x at 1 + f for the degree arcosh(x) / arcosh(1 + f).
    """
    # arcosh(1 + f) = log(1 + f + sqrt(f (2 + f)))
    far = (xp.maximum(f, 1e-12) for f in (last, best))
    roots = [xp.log(1 + f + xp.sqrt(f * (2 + f))) for f in far]
    degree = xp.minimum(math.acosh(GAIN) / roots[0], math.acosh(LARGEST) / roots[1])
    degree = xp.where(xp.isfinite(last + best), xp.minimum(degree, HIGHEST), 2)
    degree = plain(xp, xp.astype(degree, xp.asarray(1).dtype))
    return larger(xp, smaller(xp, degree, highest // BASES), 2)
