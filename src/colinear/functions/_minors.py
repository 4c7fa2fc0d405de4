"""The leading minors of tridiagonal matrices, by products of 2 x 2 matrices in log2(n) steps: for programs that are traced."""

from __future__ import annotations

from functools import reduce
from typing import Any

from ..backends import Array


def leading_minors(xp: Any, d: Array, squares: Array) -> tuple[Array, Array]:
    """The leading minors of a tridiagonal matrix, θ_i = d_i θ_(i-1) - s_(i-1) θ_(i-2) with s = lower * upper, as pairs
    (θ_i, θ_(i-1)), each up to a factor of its own.

    All at once, by log2(n) doublings of the 2 x 2 matrices of the recurrence. Products are scaled by their largest entry, so
    nothing overflows, and a minor that is zero, where elimination would break down, is no obstacle."""
    n, like = d.shape[-1], {"dtype": d.dtype, "device": xp.device_of(d)}
    below = xp.concat([xp.zeros((*d.shape[:-1], 1), **like), _wide(xp, squares, d)], axis=-1)
    M: Any = (d, -below[..., :n], xp.ones(d.shape, **like), xp.zeros(d.shape, **like))  # [θ_i; θ_(i-1)] = M_i [θ_(i-1); θ_(i-2)]
    step = 1
    while step < n:
        product = _scaled(xp, _times([x[..., step:] for x in M], [x[..., :-step] for x in M]))
        M = tuple(xp.concat([x[..., :step], y], axis=-1) for x, y in zip(M, product, strict=True))
        step *= 2
    return M[0], M[2]  # started from [1; 0]


def last_minor(xp: Any, d: Array, squares: Array) -> tuple[Array, Array]:
    """The last of those minors alone: a number and the logarithm of what it is to be multiplied by. In log2(n) steps, by pairs."""
    like = {"dtype": d.dtype, "device": xp.device_of(d)}
    below = xp.concat([xp.zeros((*d.shape[:-1], 1), **like), _wide(xp, squares, d)], axis=-1)
    M: Any = (d, -below[..., : d.shape[-1]], xp.ones(d.shape, **like), xp.zeros(d.shape, **like))
    logarithm = xp.zeros(d.shape[:-1], dtype=xp.real_dtype(d.dtype), device=xp.device_of(d))
    while M[0].shape[-1] > 1:
        if M[0].shape[-1] % 2:
            M = tuple(xp.concat([x, xp.full((*d.shape[:-1], 1), float(i in (0, 3)), **like)], axis=-1) for i, x in enumerate(M))
        M = _times([x[..., 1::2] for x in M], [x[..., ::2] for x in M])
        size = xp.stop_gradient(reduce(xp.maximum, map(xp.abs, M)))
        size = xp.where(size > 0, size, 1)
        M, logarithm = tuple(x / size for x in M), logarithm + xp.sum(xp.log(size), axis=-1)
    return M[0][..., 0], logarithm


def _wide(xp: Any, x: Array, like: Array) -> Array:
    return xp.astype(xp.broadcast_to(x, (*like.shape[:-1], x.shape[-1])), like.dtype)


def _times(A: Any, B: Any) -> Any:
    """The product of 2 x 2 matrices given by their four entries, by rows."""
    a, b, c, d = A
    e, f, g, h = B
    return a * e + b * g, a * f + b * h, c * e + d * g, c * f + d * h


def _scaled(xp: Any, M: Any) -> Any:
    size = xp.stop_gradient(reduce(xp.maximum, map(xp.abs, M)))
    size = xp.where(size > 0, size, 1)
    return tuple(x / size for x in M)
