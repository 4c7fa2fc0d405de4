"""What the Krylov methods share: bases held by rows, projections onto them, restarts and
reflectors.

A basis is an array V of shape (*lanes, rows, n), one vector to a row, so that a vector is
contiguous and a projection is one product of a matrix and a vector. `lanes` are independent runs
that advance together: the elements of a batch, or the right sides of f(A) B. NumPy and torch write
into V in place; JAX cannot, and there rows not yet reached are zero, so that products with all of V
stand for products with its first rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ..backends import Array

SAFETY = 0.5  # of the tolerance at which estimates stop the run, so that the true residuals meet it


SMALL = 20  # roundings, of the size of A, up to which a residual counts as zero


MANY = 5000  # random vectors that no run needs


# columns of a basis that are rotated at a time: they stay in the cache, and no second basis is
# needed
CHUNK = 4096


def put(xp: Any, X: Array, key: Any, value: Array) -> Array:
    """X with X[key] = value: in place where the framework allows it."""
    if xp.is_functional or xp.is_traced(value):
        return xp.set_at(X, key, value)
    X[key] = value
    return X


def plain(xp: Any, x: Any) -> Any:
    """A truth or count as Python's; in JAX the array that it is."""
    return x if xp.is_functional or not hasattr(x, "item") else x.item()


def pick(xp: Any, flag: Any, a: Any, b: Any) -> Any:
    """`a` if a truth holds, else `b`."""
    if xp.is_functional:
        return xp.where(flag, a, b)
    return a if flag else b


def may_be_set(xp: Any, flags: Any) -> bool:
    """Whether one of some flags may be set: where they cannot be seen, or not for free, it may."""
    return xp.is_functional or xp.peek(flags) is None or bool(xp.any(flags))


def smaller(xp: Any, a: Any, b: Any) -> Any:
    """The smaller of two counts."""
    return xp.minimum(a, b) if xp.is_functional else min(a, b)


def larger(xp: Any, a: Any, b: Any) -> Any:
    """The larger of two counts."""
    return xp.maximum(a, b) if xp.is_functional else max(a, b)


def count_of(xp: Any, value: Any) -> Any:
    """A count or truth to begin with."""
    return xp.asarray(value) if xp.is_functional else value


def rows(xp: Any, V: Array, start: Any, stop: Any) -> Array:
    """The rows of V from `start` to `stop`; all of them in JAX, where the others are zero or their
    coefficients are."""
    return V if xp.is_functional else V[..., start:stop, :]


def project(xp: Any, V: Array, w: Array) -> Array:
    """The coefficients conj(V) w of w along the rows of V."""
    if w.ndim == 1:
        return xp.conj(xp.matmul(V, xp.conj(w)))  # conj(V) would copy the basis
    return xp.conj(xp.matmul(V, xp.conj(w)[..., None]))[..., 0]


def norm(xp: Any, w: Array) -> Array:
    """The norm of each vector: as NumPy's, without its preparations."""
    return xp.sqrt(xp.real(xp.vecdot(w, w)))


def expand(xp: Any, h: Array, V: Array) -> Array:
    """The vector sum_i h_i V_i."""
    return xp.matmul(h, V) if h.ndim == 1 else xp.matmul(h[..., None, :], V)[..., 0, :]


def orthogonalise(xp: Any, V: Array, w: Array) -> tuple[Array, Array]:
    """w less its components along the rows of V, and these: one pass of Gram and Schmidt."""
    h = project(xp, V, w)
    return w - expand(xp, h, V), h


def rotate(xp: Any, V: Array, Y: Array, count: Any, last: Any = None) -> Array:
    """The rows Y_1^T V, ..., Y_count^T V for columns of Y, then row `last` (default: the last) of
    V: the basis of a restart."""
    m = V.shape[-2] - 1
    last = m if last is None else last
    turned = xp.matrix_transpose(Y)
    if xp.is_functional:
        turned = xp.where(xp.arange(m)[:, None] < count, turned, 0 * turned)
        turned = xp.concat([turned, xp.zeros((*turned.shape[:-2], 1, m), dtype=Y.dtype)], axis=-2)
        return xp.set_at(
            xp.matmul(turned, V[..., :m, :]), (..., count, slice(None)), V[..., last, :]
        )
    turned = turned[..., :count, :last]
    for start in range(0, V.shape[-1], CHUNK):
        part = V[..., start : start + CHUNK]
        part[..., :count, :] = xp.matmul(turned, part[..., :last, :])
    V[..., count, :] = V[..., last, :]
    return V


def fresh(xp: Any, noise: Array, i: Any) -> Array:
    """The i-th of many random vectors made from one, cheaper than drawing them: its entries in
    turn, and each round weighted anew."""
    n = noise.shape[-1]
    turned = xp.roll(noise, i, axis=-1)
    if n >= MANY or (not xp.is_functional and i < n):
        return turned
    ramp = (xp.arange(n, dtype=xp.real_dtype(noise.dtype), device=xp.device_of(noise)) + 0.5) / n
    return turned * ramp ** (i // n)


def direction(
    xp: Any, V: Array, U: Array | None, w: Array, j: Any
) -> tuple[Array, Array, Array | None]:
    """The part of w orthogonal to the rows of V before place j: normalised, its norm, and the
    reflectors with one more.

    Without reflectors by a pass of Gram and Schmidt, which is the second one if w is almost
    orthogonal already.
    """
    if U is None:
        w = orthogonalise(xp, rows(xp, V, 0, j), w)[0]
        size = norm(xp, w)
        return w / xp.where(size == 0, 1, size)[..., None], size, None
    y = reflect(xp, U, w, j)
    u, head, size = reflector(xp, y, j)
    U = put(xp, U, (..., j, slice(None)), u)
    e = xp.astype(xp.arange(w.shape[-1], device=xp.device_of(w)) == j, w.dtype)
    return reflect(xp, U, head[..., None] * e, j + 1, backwards=True), size, U


# ------------------------------------------------------------------------------ restarted methods
# The states of Lanczos, Arnoldi and Golub-Kahan are NamedTuples with at least
#     V, size, j              the basis, the size of A as seen so far, the rows that are complete
#     residual                estimated, of each Ritz pair, the wanted first
#     found, looked, again    values and products when the run began to look again; whether it does
#     matvecs, cycles, draws  products, cycles, and random directions so far
#     done, finite


class Pairs(NamedTuple):
    """Eigenpairs by rows: values (*lanes, k), vectors (*lanes, k, n), how the run ended."""

    values: Array
    vectors: Array
    size: Array
    matvecs: Any
    iterations: Any  # in the unit of `max_iters`
    done: Any
    finite: Any
    stopped: bool = False


def pairs_of(s: Any, values: Array, vectors: Array, stopped: bool) -> Pairs:
    """The pairs that a run has found, and how its last state says that it ended."""
    return Pairs(
        values=values,
        vectors=vectors,
        size=s.size,
        matvecs=s.matvecs,
        iterations=s.iterations,
        done=s.done,
        finite=s.finite,
        stopped=stopped,
    )


def wanted(xp: Any, values: Array, which: str, shift: complex = 0.0) -> Array:
    """A score of each value, the smaller the better; "SM" and "LM" go by the distance from the
    shift."""
    values = values - shift if shift else values
    values = (
        xp.abs(values)
        if which[1] == "M"
        else xp.abs(xp.imag(values))
        if which[1] == "I"
        else xp.real(values)
    )
    return -values if which[0] == "L" else values


def counts(xp: Any) -> dict[str, Any]:
    """The counts and truths with which a state begins."""
    zero = dict.fromkeys(("j", "looked", "matvecs", "cycles", "draws"), 0)
    begun = {**zero, "again": False, "done": False, "finite": True}
    return {name: count_of(xp, value) for name, value in begun.items()}


def run_cycles(xp: Any, going: Any, cycle: Any, state: Any, watch: Any) -> tuple[Any, bool]:
    """The state after the last cycle, and whether `watch`, called after each, has stopped the
    run."""
    if watch is None:
        return xp.while_loop(going, cycle, state), False
    one = xp.jit(cycle)
    while going(state):
        state = one(state)
        if watch(state):
            return state, True
    return state, False


def fill(xp: Any, step: Any, state: Any, stop: Any) -> Any:
    """The state with the basis filled to `stop`, or as far as numbers are finite."""
    look = xp.is_functional or xp.peek(state.size) is not None  # looking would wait for a GPU

    def going(s: Any) -> Any:
        return (s.j < stop) & (plain(xp, xp.all(xp.isfinite(s.size))) if look else True)

    return xp.while_loop(going, step, state)


def judge(xp: Any, s: Any, converged: Any, is_none: Any, same: Any, values: Array) -> Any:
    """Whether the wanted pairs are known to be the best; if they have but converged, begin to look
    again.

    `is_none`: the next pair is surely none of the wanted. `same`: the values are those when the
    look began.
    """
    is_none, same = plain(xp, xp.all(is_none)), plain(xp, xp.all(same))
    looking, tired = s.looked > 0, s.matvecs >= 2 * s.looked
    again = converged & ((looking ^ True) | ((same ^ True) & is_none))
    return s._replace(
        done=converged & looking & same & (is_none | tired),
        again=again,
        found=pick(xp, again, values, s.found),
        looked=pick(xp, again, s.matvecs, s.looked),
    )


def count_kept(xp: Any, s: Any, k: int, m: int) -> Any:
    """How many vectors a restart keeps: the wanted ones, and more the closer these are."""
    near = xp.sum(s.residual[..., :k] <= math.sqrt(xp.eps(s.V.dtype)) * s.size[..., None], axis=-1)
    more = max(0, min((m - k) // 4, m - 2 - k))
    p = plain(xp, xp.minimum(k + more + xp.min(near) // 2, max(k, m - 2)))
    return pick(xp, s.again | s.done, k, p)


def with_random_row(xp: Any, V: Array, noise: Array, s: Any, p: Any) -> Array:
    """V with a random direction in row p, if the run is to look again."""
    if not xp.is_functional and not s.again:
        return V
    # Twice is enough. Nested, so that no vector of the two is kept.
    once = lambda w: direction(xp, V, None, w, p)[0]
    random = once(once(xp.astype(fresh(xp, noise, s.draws), V.dtype)))
    return put(xp, V, (..., p, slice(None)), pick(xp, s.again, random, V[..., p, :]))


# --------------------------------------------------------------------------------------- reflectors


def reflect(xp: Any, U: Array, w: Array, count: Any, backwards: bool = False) -> Array:
    """The reflections I - 2 u u^H of the first `count` rows u of U applied to w, one after the
    other."""
    if xp.is_functional:
        count = U.shape[-2]  # rows not yet reached are zero, and their reflections the identity

    def body(i: Any, w: Array) -> Array:
        u = U[..., count - 1 - i if backwards else i, :]
        return w - 2 * xp.vecdot(u, w)[..., None] * u

    return xp.fori_loop(count, body, w)


def reflector(xp: Any, y: Array, j: Any) -> tuple[Array, Array, Array]:
    """The unit vector u, zero before place j, whose reflection takes the trailing part x of y to a
    multiple of e_j; the phase of that multiple, and the norm of x.

    u = x + e^(i arg x_j) |x| e_j, normalised: the phase avoids cancellation. Zero if x is zero.
    """
    places = xp.arange(y.shape[-1], device=xp.device_of(y))
    x, e = xp.where(places >= j, y, 0 * y), xp.astype(places == j, y.dtype)
    head, length = xp.sum(x * e, axis=-1), norm(xp, x)
    size = xp.abs(head)
    phase = xp.where(size == 0, 1 + 0 * head, head / xp.where(size == 0, 1, size))
    u = x + (phase * length)[..., None] * e
    scale = norm(xp, u)
    return u / xp.where(scale == 0, 1, scale)[..., None], -phase, length


def reflectors(xp: Any, V: Array, count: Any) -> Array:
    """The reflectors of the first `count` rows of V, which are orthonormal."""
    U = xp.zeros(V.shape, dtype=V.dtype, device=xp.device_of(V))

    def body(i: Any, U: Array) -> Array:
        return put(
            xp, U, (..., i, slice(None)), reflector(xp, reflect(xp, U, V[..., i, :], i), i)[0]
        )

    return xp.fori_loop(V.shape[-2] if xp.is_functional else count, body, U)
