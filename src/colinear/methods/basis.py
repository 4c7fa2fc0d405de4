"""What the Krylov methods share: bases held by rows, projections onto them, restarts and
reflectors.

A basis is an array V of shape (*lanes, rows, n), one vector to a row, so that a vector is
contiguous and a projection is one product of a matrix and a vector. `lanes` are independent runs
that advance together: the elements of a batch, or the right sides of f(A) B. NumPy and torch write
into V in place; JAX cannot, and there rows not yet reached are zero, so that products with all of V
stand for products with its first rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array, mesh_module, places_like, without_zeros, zeros_like

SAFETY = 0.5  # of the tolerance at which estimates stop the run, so that the true residuals meet it


SMALL = 20  # roundings, of the size of A, up to which a residual counts as zero
MANY = 5000  # random vectors that no run needs
KEPT = 0.7  # part of a vector that one pass of Gram and Schmidt must leave to need no second one
# columns of a basis that are rotated at a time: they stay in the cache of a host, and no second
# basis is needed
CHUNK = 4096
CHUNK_ON_DEVICE = 1 << 18
FEWEST_TO_DIVIDE = 32  # rows from which a program takes fewer of them where these are enough


def put(xp: Any, X: Array, key: Any, value: Array) -> Array:
    """X with X[key] = value: in place where the framework allows it."""
    if xp.is_functional or xp.is_traced(value):
        return xp.set_at(X, key, value)
    X[key] = value
    return X


def put_row(xp: Any, X: Array, j: Any, value: Array) -> Array:
    """X with this row j: in place where the framework allows it."""
    return put(xp, X, (..., j, slice(None)), value)


def take_columns(xp: Any, X: Array, order: Array) -> Array:
    """The columns of X in this order, (*batch, k)."""
    places = xp.broadcast_to(order[..., None, :], (*X.shape[:-1], order.shape[-1]))
    return xp.take_along_axis(X, places, axis=-1)


def plain(xp: Any, x: Any) -> Any:
    """A truth or count as Python's; in JAX the array that it is."""
    return x if xp.is_functional or not hasattr(x, "item") else x.item()


def every(xp: Any, flags: Array) -> Any:
    """Whether all flags are set, as `plain`."""
    return plain(xp, xp.all(flags))


def all_finite(xp: Any, x: Array) -> Any:
    """Whether all numbers are finite, as `plain`."""
    return every(xp, xp.isfinite(x))


def pick(xp: Any, flag: Any, a: Any, b: Any) -> Any:
    """`a` if a truth holds, else `b`."""
    if xp.is_functional:
        return xp.where(flag, a, b)
    return a if flag else b


def may_be_set(xp: Any, flags: Any) -> bool:
    """Whether one of some flags may be set: where they cannot be seen, or not for free, it may. On
    a mesh a look costs less than what devices send to each other."""
    if xp.is_functional or xp.is_traced(flags):
        return True
    return waits_for_looks(xp, flags) or bool(xp.any(flags))


def waits_for_looks(xp: Any, x: Array) -> bool:
    """Whether a look at x waits for a device."""
    if xp.is_functional or xp.is_traced(x) or xp.peek(x) is not None:
        return False
    return mesh_module(xp.device_of(x)) is None


def smaller(xp: Any, a: Any, b: Any) -> Any:
    """The smaller of two counts."""
    return xp.minimum(a, b) if xp.is_functional else min(a, b)


def larger(xp: Any, a: Any, b: Any) -> Any:
    """The larger of two counts."""
    return xp.maximum(a, b) if xp.is_functional else max(a, b)


def count_of(xp: Any, value: Any) -> Any:
    """A count or truth to begin with."""
    return xp.asarray(value) if xp.is_functional else value


def rows(xp: Any, V: Array, count: Any) -> Array:
    """The first rows of V, so many; all of them in JAX, where the others are zero or their
    coefficients are."""
    return V if xp.is_functional else V[..., :count, :]


def by_size(xp: Any, count: Any, most: int, f: Callable[[int], Any]) -> Any:
    """f(size) for a size of at least `count`; in JAX, where sizes are known beforehand, two fifths
    of `most` if that is enough, else all of it. What f returns has the same shape for both."""
    if not xp.is_functional:
        return f(count)
    if most < FEWEST_TO_DIVIDE:
        return f(most)
    part = 2 * most // 5
    return xp.cond(count <= part, lambda: f(part), lambda: f(most))


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


def normalised(xp: Any, w: Array) -> tuple[Array, Array]:
    """w / |w|, which is zero where w is, and |w|."""
    size = norm(xp, w)
    return w / without_zeros(xp, size)[..., None], size


def within(xp: Any, H: Array, inside: Array, filling: Array) -> Array:
    """H in the rows and columns that are `inside`; elsewhere zero, but on the diagonal
    `filling`."""
    both = inside[..., :, None] & inside[..., None, :]
    return xp.where(both, H, 0) + xp.make_diagonal(xp.where(inside, 0, filling))


def orthogonalise(xp: Any, V: Array, w: Array, h: Array | None = None) -> tuple[Array, Array]:
    """w less its components h along the rows of V, and these: one pass of Gram and Schmidt."""
    h = project(xp, V, w) if h is None else h
    rest = expand(xp, -h, V)
    rest += w  # in place but in JAX: vectors may be what fills the memory
    return rest, h


def orthogonalise_to_first(
    xp: Any, V: Array, count: Any, w: Array, passes: int = 1
) -> tuple[Array, ...]:
    """w less its components along the first rows of V, so many, these, |w|^2, and the square of
    what the last pass left; in JAX the components along the other rows too, which are zero.

    The last square is |w|^2 - |h|^2 (Pythagoras), without another sum over the devices of a mesh. It
    is 0 where a pass took away so much that this may be rounding: see `length_of`.

    On a device that is waited for it is None, and so is |w|^2: a sum is cheaper than the launches
    that would do without it.
    """
    if waits_for_looks(xp, w):
        h = 0
        for _ in range(passes):
            w, more = orthogonalise(xp, V[..., :count, :], w)
            h = h + more
        return w, h, None, None

    def products(V: Array, w: Array) -> tuple[Array, Array]:
        return project(xp, V, w), xp.real(xp.vecdot(w, w))

    def along(size: int) -> tuple[Array, ...]:
        first = V[..., :size, :]
        h, before = xp.sum_once(products, -1, first, w)
        rest, more = orthogonalise(xp, first, w, h)
        square = before
        for _ in range(passes - 1):
            more, square = xp.sum_once(products, -1, first, rest)
            rest, h = orthogonalise(xp, first, rest, more)[0], h + more
        left = square - xp.real(xp.vecdot(more, more))
        left = xp.where(left <= KEPT**2 * square, 0, left)
        return rest, widen(xp, h, V.shape[-2]) if xp.is_functional else h, before, left

    return by_size(xp, count, V.shape[-2], along)


def norm_of(xp: Any, w: Array, square: Array | None) -> Array:
    """|w|, by its square if that is known."""
    return norm(xp, w) if square is None else xp.sqrt(square)


def length_of(xp: Any, w: Array, square: Array | None) -> Array:
    """|w|, by its square where that is known: where it is not 0."""
    if square is None:
        return norm(xp, w)
    is_unknown = square == 0

    def measured(size: Array) -> Array:
        return xp.where(is_unknown, norm(xp, w), size)

    return where_any(xp, is_unknown, measured, xp.sqrt(square))


def where_any(xp: Any, flags: Array, f: Callable[[Array], Array], x: Array) -> Array:
    """f(x) where one of some flags may be set, else x."""
    if xp.is_functional:
        return xp.cond(xp.any(flags), f, lambda x: x, x)
    return f(x) if may_be_set(xp, flags) else x


def widen(xp: Any, c: Array, width: int) -> Array:
    """Coefficients followed by zeros, if they are fewer than this."""
    if c.shape[-1] == width:
        return c
    return xp.concat([c, zeros_like(xp, c, (*c.shape[:-1], width - c.shape[-1]))], axis=-1)


def rotate(xp: Any, V: Array, Y: Array, count: Any, last: Any) -> Array:
    """The rows Y_1^T V, ..., Y_count^T V for columns of Y, made of the first `last` rows of V: the
    basis of a restart."""
    m, turned = V.shape[-2] - 1, xp.matrix_transpose(Y)
    if xp.is_functional:
        turned = xp.where(xp.arange(m)[:, None] < count, turned, 0)
        turned = xp.concat([turned, 0 * turned[..., :1, :]], axis=-2)
        return xp.matmul(turned, V[..., :m, :])
    turned, step = turned[..., :count, :last], CHUNK_ON_DEVICE if xp.is_on_device(V) else CHUNK
    for start in range(0, V.shape[-1], step):
        part = V[..., start : start + step]
        part[..., :count, :] = xp.matmul(turned, part[..., :last, :])
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


def direction(xp: Any, V: Array, U: Array | None, w: Array, j: Any) -> tuple[Array, Array | None]:
    """The part of w orthogonal to the rows of V before place j, normalised, and the reflectors with
    one more.

    Without reflectors by a pass of Gram and Schmidt, which is the second one if w is almost
    orthogonal already.
    """
    if U is None:
        return normalised(xp, orthogonalise(xp, rows(xp, V, j), w)[0])[0], None
    u, head = reflector(xp, reflect(xp, U, w, j), j)
    U = put_row(xp, U, j, u)
    e = xp.astype(places_like(xp, w) == j, w.dtype)
    return reflect(xp, U, head[..., None] * e, j + 1, backwards=True), U


def extend(
    xp: Any,
    V: Array,
    U: Array | None,
    w: Array,
    j: Any,
    size: Array,
    random: Callable[[], Array] | None,
    is_far: bool = False,
) -> tuple[Array, Array, Array, Array | None, Array]:
    """The next vector of a basis from w, of which an A of at least this size made it: its
    coefficients along the first j rows of V, the norm of what is left, that normalised, the
    reflectors with one more, and the size of A as known now.

    Where no more than rounding is left, an invariant subspace was met: the norm is zero and the
    vector made of `random()`; without that nobody looks, and the norm may be rounding. `is_far`: w
    is not almost orthogonal to the basis already, so that a second pass may be needed; its own norm
    is then a size of A.
    """
    passes = 2 if is_far and (xp.is_functional or waits_for_looks(xp, w) or U is not None) else 1
    own = w
    w, h, before, square = orthogonalise_to_first(xp, V, j, w, passes)
    if is_far:
        size = xp.maximum(size, norm_of(xp, own, before))
        if passes == 1 and may_be_set(xp, square == 0):
            w, more, _, square = orthogonalise_to_first(xp, V, j, w)
            h = h + more
    length = length_of(xp, w, square)
    if random is None and U is None:
        return h, length, w / length[..., None], None, size
    is_small = length <= SMALL * xp.eps(w.dtype) * size

    def renewed(w: Array) -> Array:
        v = xp.astype(random(), w.dtype)  # type: ignore[misc]
        for _ in range(2):
            v = direction(xp, V, None, v, j)[0]
        return xp.where(is_small[..., None], v, w)

    if random is not None:
        w = where_any(xp, is_small, renewed, w)
    if U is None:
        # the norm again would be another sum over the devices of a mesh; what is new has norm 1
        v = w / xp.where(is_small, 1, length)[..., None]
    else:
        v, U = direction(xp, V, U, w, j)
    return h, xp.where(is_small, 0, length), v, U, size


# --------------------------------------------------------------------------------- runs and pairs


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
    part = {"M": abs, "I": lambda values: abs(xp.imag(values))}.get(which[1], xp.real)
    return -part(values) if which[0] == "L" else part(values)


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
        return (s.j < stop) & (all_finite(xp, s.size) if look else True)

    return xp.while_loop(going, step, state)


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


def reflector(xp: Any, y: Array, j: Any) -> tuple[Array, Array]:
    """The unit vector u, zero before place j, whose reflection takes the trailing part x of y to a
    multiple of e_j; and the phase of that multiple.

    u = x + e^(i arg x_j) |x| e_j, normalised: the phase avoids cancellation. Zero if x is zero.
    """
    places = places_like(xp, y)
    x, e = xp.where(places >= j, y, 0), xp.astype(places == j, y.dtype)
    head = xp.sum(x * e, axis=-1)
    size = abs(head)
    phase = xp.where(size == 0, 1, head / without_zeros(xp, size))
    u = x + (phase * norm(xp, x))[..., None] * e
    return normalised(xp, u)[0], -phase


def reflectors(xp: Any, V: Array, count: Any) -> Array:
    """The reflectors of the first `count` rows of V, which are orthonormal."""
    U = zeros_like(xp, V, V.shape)

    def body(i: Any, U: Array) -> Array:
        return put_row(xp, U, i, reflector(xp, reflect(xp, U, V[..., i, :], i), i)[0])

    return xp.fori_loop(V.shape[-2] if xp.is_functional else count, body, U)
