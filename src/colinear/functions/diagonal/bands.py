"""The diagonal of the inverse of a tridiagonal or banded matrix, by eliminations from both ends."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ...backends import Array, get, positive_or_one
from ...dispatch import rule
from ...factors.inverse import Inverse
from ...operators import Banded
from ...operators.context import kind_of
from ..common import (
    array_like,
    host_value,
    ignore_float_errors,
    is_square,
    is_traced_or_differentiated,
    report_values,
    to_computing_dtype,
    values_are_seen,
)
from . import diag, ones_on_diagonal

# The leading minors of tridiagonal matrices, by products of 2 x 2 matrices in log2(n) steps: for
# programs that are traced.


def leading_minors(xp: Any, d: Array, squares: Array) -> tuple[Array, Array]:
    """The leading minors of a tridiagonal matrix, θ_i = d_i θ_(i-1) - s_(i-1) θ_(i-2) with s =
    lower * upper, as pairs (θ_i, θ_(i-1)), each up to a factor of its own.

    All at once, by log2(n) doublings of the 2 x 2 matrices of the recurrence. Products are scaled
    by their largest entry, so nothing overflows, and a minor that is zero, where elimination would
    break down, is no obstacle."""
    n, M = d.shape[-1], _recurrence(xp, d, squares)
    step = 1
    while step < n:
        product, _ = _scaled(xp, _times([x[..., step:] for x in M], [x[..., :-step] for x in M]))
        M = tuple(xp.concat([x[..., :step], y], axis=-1) for x, y in zip(M, product, strict=True))
        step *= 2
    return M[0], M[2]  # started from [1; 0]


def last_minor(xp: Any, d: Array, squares: Array) -> tuple[Array, Array]:
    """The last of those minors alone: a number and the logarithm of what it is to be multiplied
    by. In log2(n) steps, by pairs."""
    M = _recurrence(xp, d, squares)
    one, zero = M[2][..., :1], M[3][..., :1]
    logarithm = xp.real(M[3][..., 0])
    while M[0].shape[-1] > 1:
        if M[0].shape[-1] % 2:  # and the identity
            M = tuple(xp.concat(pair, axis=-1) for pair in zip(M, (one, zero, zero, one)))
        M, size = _scaled(xp, _times([x[..., 1::2] for x in M], [x[..., ::2] for x in M]))
        logarithm = logarithm + xp.sum(xp.log(size), axis=-1)
    return M[0][..., 0], logarithm


def _recurrence(xp: Any, d: Array, squares: Array) -> tuple[Array, ...]:
    """The matrices M_i of [θ_i; θ_(i-1)] = M_i [θ_(i-1); θ_(i-2)], by their four entries."""
    d, squares = _of_one_dtype(xp, d, squares)
    like = kind_of(d)
    below = [xp.zeros((*d.shape[:-1], 1), **like), squares]
    ones, zeros = (make(d.shape, **like) for make in (xp.ones, xp.zeros))
    return d, -xp.concat(below, axis=-1)[..., : d.shape[-1]], ones, zeros


def _of_one_dtype(xp: Any, d: Array, squares: Array) -> tuple[Array, Array]:
    """The main diagonal and the products of the entries beside it, in one dtype: they may be
    complex, and the diagonal real. Their batch shape is that of the diagonal."""
    dtype = xp.result_type(d.dtype, squares.dtype)
    squares = xp.broadcast_to(squares, (*d.shape[:-1], squares.shape[-1]))
    return xp.astype(d, dtype), xp.astype(squares, dtype)


def _times(A: Any, B: Any) -> Any:
    """The product of 2 x 2 matrices given by their four entries, by rows."""
    a, b, c, d = A
    e, f, g, h = B
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _scaled(xp: Any, M: Any) -> Any:
    """2 x 2 matrices divided by the sizes of their largest entries, and these."""
    size = xp.stop_gradient(reduce(xp.maximum, map(xp.abs, M)))
    size = positive_or_one(xp, size)
    return tuple(x / size for x in M), size


# The diagonal of the inverse of a tridiagonal matrix T, by pivots from both ends.
#
# (T^-1)_ii = 1 / (p_i + q_i - t_ii) p_i = t_ii - s_(i-1) / p_(i-1) the pivots of elimination from
# above q_i = t_ii - s_i / q_(i+1) those from below, with s_i = t_(i,i+1) t_(i+1,i)
#
# Each recurrence is exact for numbers s that differ by a few roundings, however small a pivot is,
# so the error is what the condition number allows. The doublings above have no such
# bound: at n = 20,000 they lose two digits more. They serve torch where values cannot be seen or a
# pivot is nearly zero.


SAFE_PIVOT = 1e-4  # of such a matrix: above it the pivots have derivatives


def tridiagonal_inverse_diagonal(xp: Any, lower: Array, d: Array, upper: Array) -> Array:
    """Compute diag(T^-1); the main diagonal d has the batch shape of the whole."""
    if not d.shape[-1]:
        return d
    d = to_computing_dtype(xp, d)
    sizes = [xp.max(xp.abs(x), axis=-1) for x in (lower, d, upper) if x.shape[-1]]
    scale = xp.stop_gradient(reduce(xp.maximum, sizes))
    scale = xp.where((scale > 0) & xp.isfinite(scale), scale, 1)[..., None]
    d, s = d / scale, (lower / scale) * (upper / scale)  # so that s does not over- or underflow
    d, s = _of_one_dtype(xp, d, s)
    if not is_traced_or_differentiated(xp, d, s):
        pivots = xp.asarray(sum(_on_host(xp, d, s)), **kind_of(d))
        numerator, denominator = 1, pivots - d
    elif xp.name == "jax":
        numerator, denominator = _quotient(d, *_scan(xp, d, s), *_scan(xp, d, s, reverse=True))
    else:
        numerator, denominator = _differentiable_quotient(xp, d, s)
    report_values(xp, denominator)
    with ignore_float_errors(xp):
        return numerator / denominator / scale


def _quotient(d: Array, a: Array, b: Array, e: Array, f: Array) -> tuple[Array, Array]:
    """1 / (p + q - d) for p = a / b and q = e / f, as numerator and denominator: b and f may be
    zero."""
    return b * f, a * f + e * b - d * b * f


# ------------------------------------------------------------------------------------ on the host


def _on_host(xp: Any, d: Array, s: Array) -> tuple[Any, Any]:
    """The pivots p and q in double precision."""
    d, s = (np.asarray(host_value(xp, x)) for x in (d, s))
    d = d.astype(np.result_type(d, s, np.float64))
    pivots = get("numpy").tridiagonal_pivots
    return pivots(d, s), pivots(d[..., ::-1], s[..., ::-1])[..., ::-1]


# ------------------------------------------------------------------------------------ traced and di


def _scan(xp: Any, d: Array, s: Array, reverse: bool = False) -> tuple[Array, Array]:
    """Numerators and denominators of the pivots: leading minors (θ_i, θ_(i-1)), up to a factor
    of each pair."""
    like = kind_of(d)
    nothing, one = (xp.full((*d.shape[:-1], 1), float(x), **like) for x in (0, 1))
    before = xp.concat([s, nothing] if reverse else [nothing, s], axis=-1)[..., : d.shape[-1]]

    def step(minors: Any, x: Array, y: Array) -> Any:
        a, b = x * minors[0] - y * minors[1], minors[0]  # θ_i = d_i θ_(i-1) - s_(i-1) θ_(i-2)
        size = xp.stop_gradient(xp.maximum(xp.abs(a), xp.abs(b)))
        size = positive_or_one(xp, size)
        return (a / size, b / size), (a / size, b / size)

    rows = (xp.moveaxis(x, -1, 0) for x in (d, before))
    a, b = xp.scan(step, (one[..., 0], nothing[..., 0]), *rows, reverse=reverse)
    return xp.moveaxis(a, 0, -1), xp.moveaxis(b, 0, -1)


def _differentiable_quotient(xp: Any, d: Array, s: Array) -> tuple[Any, Array]:
    """The same in torch, where a loop over the rows would be slow: pivots from the host, and
    their derivatives."""
    flip = lambda x: xp.flip(x, axis=-1)
    p = None
    if not (xp.is_traced(d) or xp.is_traced(s)):
        known = _on_host(xp, xp.stop_gradient(d), xp.stop_gradient(s))
        p, q = (xp.asarray(x, **kind_of(d)) for x in known)
        if min(float(np.abs(x).min(initial=1)) for x in known) > SAFE_PIVOT:
            pivots = xp.tridiagonal_pivots
            return 1, pivots(d, s) + flip(pivots(flip(d), flip(s))) - d
    from_below = map(flip, leading_minors(xp, flip(d), flip(s)))
    numerator, denominator = _quotient(d, *leading_minors(xp, d, s), *from_below)
    if p is not None:  # the derivatives are those of the minors, the value is that of the pivots
        numerator = numerator + xp.stop_gradient(denominator / (p + q - d) - numerator)
    return numerator, denominator


# The diagonal of the inverse of a banded matrix, by two block eliminations: from above and from
# below.


def band_is_seen(A: Any) -> bool:
    """Whether one narrow band is inverted, whose values can be seen with no derivative asked."""
    B: Any = A.operands[0]
    narrow = is_square(B) and 4 * max(map(abs, B.offsets)) < B.shape[-1]
    exact = B.dtype.itemsize >= 4 and not B.batch_shape
    return narrow and exact and values_are_seen(B)


@rule(diag, Inverse[Banded], when=band_is_seen, like=ones_on_diagonal)
def diag_inverse_banded(A: Any, method: Any) -> Array:
    """diag(B^-1): its blocks are (P_i + Q_i - B_ii)^-1, P and Q the pivots of block elimination
    from above and from below"""
    B, xp = A.A, A.xp
    diagonals = [np.asarray(host_value(xp, d)) for d in B.diagonals]
    found = inverse_diagonal(diagonals, B.offsets, B.shape[-1], xp.eps(B.dtype))
    return diag.base(A, method) if found is None else array_like(A, found)


def inverse_diagonal(diagonals: list[Any], offsets: tuple[int, ...], n: int, eps: float) -> Any:
    """On the host, O(n b^2) for b diagonals on either side; None where elimination without
    exchanging blocks is not stable."""
    D, L, U = _blocks(diagonals, offsets, n)
    limit = eps**-0.25
    try:
        with np.errstate(all="ignore"):
            P, first = _block_pivots(D, L, U)
            Q, second = _block_pivots(D[::-1], U[::-1], L[::-1])
            largest = max(np.abs(P).max(), np.abs(Q).max())
            if not (largest <= limit * np.abs(D).max() and max(first, second) <= limit):
                return None
            inverse = np.linalg.inv(P + Q[::-1] - D)
    except np.linalg.LinAlgError:
        return None
    return np.diagonal(inverse, axis1=-2, axis2=-1).reshape(-1)[:n]


def _blocks(diagonals: list[Any], offsets: tuple[int, ...], n: int) -> tuple[Any, Any, Any]:
    """The blocks on, below and above the diagonal, the last one filled up by the identity."""
    b = max(1, *map(abs, offsets))
    count = -(-n // b)
    whole = np.zeros((3, count, b, b), np.result_type(*diagonals))  # below, on, above
    for d, k in zip(diagonals, offsets, strict=True):
        rows = np.arange(len(d)) + max(0, -k)
        columns = rows + k
        whole[columns // b - rows // b + 1, rows // b, rows % b, columns % b] = d
    for extra in range(n, count * b):
        whole[1, -1, extra % b, extra % b] = 1
    return whole[1], whole[0, 1:], whole[2, :-1]


def _block_pivots(D: Any, L: Any, U: Any) -> tuple[Any, float]:
    """P_i = D_i - L_i P_i-1^-1 U_i, and the largest multiplier."""
    P, largest = np.array(D), 0.0
    for i in range(1, len(D)):
        multiplier = np.linalg.solve(P[i - 1], U[i - 1])
        largest = max(largest, float(np.abs(multiplier).max()))
        P[i] -= L[i - 1] @ multiplier
    return P, largest
