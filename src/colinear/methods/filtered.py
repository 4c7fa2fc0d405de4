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
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from .basis import SAFETY, Pairs, count_of, larger, plain
from .lanczos import lanczos
from .vectors import LinearMap

MORE = 3  # pairs beyond the wanted


# of the distances of the last wanted pair and the last one found, by which the polynomial is beside
# the shift
BESIDE = 0.02


GAIN = 60.0  # how much larger than the unwanted the polynomial is to be at the last wanted pair


LARGEST = 3000.0  # and at most at the best one: an outlier must not drown the others


HIGHEST = 500  # degree


FIRST = 3  # bases filled by H itself before there is a polynomial


BASES = 6  # filled with the first polynomial; with each that follows twice as many


class FilteredState(NamedTuple):
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


def filtered(
    xp: Any,
    multiply: LinearMap,
    start: Array,
    noise: Array,
    k: int,
    which: str,
    *,
    shift: float | None,
    m: int,
    tol: float,
    max_iters: int,
    householder: bool = False,
    again: bool = True,
    watch: Callable[[Any], Any] | None = None,
) -> Pairs:
    """The k eigenpairs of self-adjoint A nearest to `shift`, or at the end of the spectrum that
    `which` ("SA", "LA") names.

    The other parameters are those of `lanczos`; an iteration is a product with A, also inside a
    polynomial.
    """
    sign, n = (-1 if which == "LA" else 1), start.shape[-1]
    each = 1 if shift is None else 2  # products with A in one with H
    count = min(n, k + MORE, max(k, m - 2)) if m < n else min(n, k + MORE)
    stopped = False

    def less_shift(X: Array) -> Array:
        return sign * multiply(X) if shift is None else multiply(X) - shift * X

    def stage(s: FilteredState) -> FilteredState:
        low, high, beside = (x[..., None, None] for x in (s.a, s.b, s.beside))
        middle, half = (high + low) / 2, (high - low) / 2

        def times(X: Array) -> Array:
            if shift is None:
                return less_shift(X)
            Y = less_shift(X) - beside * X
            return less_shift(Y) - beside * Y

        def polynomial(X: Array) -> Array:
            one = (middle * X - times(X)) / half

            def following(_: Any, pair: Any) -> Any:
                before, last = pair
                return last, 2 * (middle * last - times(last)) / half - before

            return xp.fori_loop(s.degree - 1, following, (X, one))[1]

        left = larger(xp, m, (max_iters - s.matvecs) // (each * s.degree))  # for one basis at least
        options = {
            "m": m,
            "tol": tol,
            "max_iters": left,
            "patience": s.bases * m,
            "householder": householder,
            "again": again,
            "watch": watch,
            "relative": True,
        }
        found = lanczos(xp, polynomial, s.start, noise, count, "LA", **options)
        nonlocal stopped
        stopped = found.stopped
        return _judged(
            xp,
            less_shift,
            found,
            s,
            k,
            tol,
            sign,
            shift,
            each,
            (max_iters - s.matvecs) // (each * m),
        )

    def going(s: FilteredState) -> Any:
        # for one basis at least
        left = s.matvecs + each * m * s.degree <= max(max_iters, each * m + used)
        return (s.done ^ True) & s.finite & left & (not stopped)

    used = each * (min(n, max(m, 20)) + 1)
    top, size = _top(
        xp,
        lambda X: less_shift(X) if shift is None else less_shift(less_shift(X)),
        start,
        noise,
        used // each - 1,
    )
    zero = 0 * top
    V = xp.zeros((*start.shape[:-1], k, n), dtype=start.dtype, device=xp.device_of(start))
    state = FilteredState(
        start=start,
        a=zero - abs(top),
        b=top,
        beside=zero,
        degree=count_of(xp, 1),
        bases=count_of(xp, FIRST),
        values=xp.real(V[..., 0]),
        vectors=V,
        size=0 * size,
        matvecs=count_of(xp, used),
        done=count_of(xp, False),
        finite=count_of(xp, True),
    )
    if xp.is_functional and watch is None:
        state = xp.while_loop(going, stage, state)
    else:
        while going(state):
            state = stage(state)
    ended = state.size, state.matvecs, state.matvecs, state.done, state.finite, stopped
    return Pairs(state.values, state.vectors, *ended)


def _top(xp: Any, times: LinearMap, start: Array, noise: Array, m: int) -> tuple[Array, Array]:
    """A bound of the largest eigenvalue of H, and the largest product that was seen."""
    best = lanczos(xp, times, start, noise, 1, "LA", m=m, tol=1e-3, max_iters=m, again=False)
    v = best.vectors[..., 0, :]
    residual = xp.vector_norm(times(v[..., None])[..., 0] - best.values * v, axis=-1)
    value = best.values[..., 0]
    top = value + residual + 0.01 * xp.maximum(abs(value), best.size)
    return xp.where(best.size == 0, 1 + 0 * top, top), best.size


def _judged(
    xp: Any,
    less_shift: Any,
    found: Pairs,
    s: FilteredState,
    k: int,
    tol: float,
    sign: int,
    shift: float | None,
    each: int,
    highest: Any,
) -> FilteredState:
    """The pairs of A in the space that was found, by Rayleigh and Ritz, and the next polynomial."""
    X = xp.matrix_transpose(found.vectors)
    X = 1.5 * X - 0.5 * xp.matmul(X, xp.matmul(_adjoint(xp, X), X))  # orthonormal to the last digit
    Z = less_shift(X)
    theta, C = xp.eigh(_symmetric(xp, xp.matmul(_adjoint(xp, X), Z)))
    order = xp.argsort(theta if shift is None else abs(theta), axis=-1, stable=True)
    theta = xp.take_along_axis(theta, order, axis=-1)
    C = xp.take_along_axis(C, xp.broadcast_to(order[..., None, :], C.shape), axis=-1)
    X, Z = xp.matmul(X, C), xp.matmul(Z, C)
    beside, near = s.beside, True
    if shift is None:
        Ritz = theta  # of H
    else:
        # none of the wanted was missed
        near = plain(xp, xp.all(2 * s.beside <= abs(theta[..., -1]) - abs(theta[..., k - 1])))
        distance = xp.sqrt(
            xp.maximum(xp.eigvalsh(_symmetric(xp, xp.matmul(_adjoint(xp, Z), Z))), 0 * theta)
        )
        beside = BESIDE * (distance[..., -1] - distance[..., k - 1])
        Ritz = (distance + beside[..., None]) ** 2
    residual = xp.vector_norm(Z - X * theta[..., None, :], axis=-2)
    norm = xp.sqrt(s.b) if shift is not None else xp.maximum(abs(s.b), xp.max(abs(theta), axis=-1))
    size = xp.maximum(s.size, xp.maximum(xp.max(abs(theta), axis=-1), norm / 1.5))
    right = plain(
        xp, xp.all(residual[..., :k] <= SAFETY * max(tol, 2 * xp.eps(X.dtype)) * size[..., None])
    )
    least = 0 * s.a if shift is not None else Ritz[..., 0]
    below = xp.logical_or(Ritz[..., k - 1] <= s.a + 1e-3 * (s.b - s.a), xp.asarray(s.degree == 1))
    a, b = Ritz[..., -1], xp.where(below, s.b, 1.5 * s.b + 0.1 * abs(s.b))
    a = xp.where(below, xp.minimum(a, b - 1e-3 * abs(b)), s.a)
    last, best = ((a - x) * 2 / xp.where(b > a, b - a, 1) for x in (Ritz[..., k - 1], least))
    # common to all lanes
    degree = _degree(xp, plain(xp, xp.min(last)), plain(xp, xp.max(best)), highest)
    values = sign * theta[..., :k] if shift is None else theta[..., :k] + shift
    finite = found.finite & plain(xp, xp.all(xp.isfinite(theta)))
    return FilteredState(
        start=xp.sum(xp.matrix_transpose(X), axis=-2),
        a=a,
        b=b,
        beside=beside,
        degree=degree,
        bases=2 * s.bases,
        values=values,
        vectors=xp.matrix_transpose(X)[..., :k, :],
        size=size,
        matvecs=s.matvecs + each * s.degree * found.matvecs + k,
        done=found.done & right & near & plain(xp, xp.all(below)),
        finite=finite,
    )


def _degree(xp: Any, last: Any, best: Any, highest: Any) -> Any:
    """Of the polynomial that is GAIN at 1 + `last`, if that is no more than LARGEST at 1 + `best`;
    and low enough for some bases.

    It is x at 1 + f for the degree arcosh(x) / arcosh(1 + f).
    """
    gain, largest = math.acosh(GAIN), math.acosh(LARGEST)
    if xp.is_functional:
        last, best = (xp.maximum(f, 1e-12) for f in (last, best))
        roots = [xp.log(1 + f + xp.sqrt(f * (2 + f))) for f in (last, best)]
        degree = xp.minimum(xp.minimum(gain / roots[0], largest / roots[1]), float(HIGHEST))
        return xp.maximum(xp.minimum(xp.astype(degree, count_of(xp, 1).dtype), highest // BASES), 2)
    if not math.isfinite(last + best):
        return 2
    last, best = (math.acosh(1 + max(f, 1e-12)) for f in (last, best))
    return max(2, min(int(min(gain / last, largest / best, HIGHEST)), int(highest) // BASES))


def _adjoint(xp: Any, X: Array) -> Array:
    return xp.conj(xp.matrix_transpose(X))


def _symmetric(xp: Any, T: Array) -> Array:
    return 0.5 * (T + _adjoint(xp, T))
