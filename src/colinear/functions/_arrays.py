"""Arrays as the functions see them: as matrices, in which precision, and whether their values can be looked at."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..info import ShapeError, TooLargeError
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.identity import Identity

LARGEST = 8 * 2**30  # bytes of a matrix that is formed because a function needs it and nobody asked


def identity_like(A: LinearOperator, n: int | None = None) -> LinearOperator:
    """I of n dimensions, or as many as A has columns, in A's framework, dtype and device."""
    return Identity(A.shape[-1] if n is None else n, like=None if A.is_neutral else A)


def ones_beside(A: LinearOperator) -> Array:
    """A right side of ones: what `explain` takes where none is given."""
    return A.xp.ones((A.shape[-2],), dtype=A.dtype, device=A._context.device)


def square_size(function: str, A: LinearOperator, need: str, instead: str) -> int:
    """The size of a square operator, or an error that says what else to use."""
    m, n = A.shape[-2:]
    if m != n:
        raise ShapeError(f"{function}: A is {m}x{n}; {need} needs a square operator. {instead}".rstrip())
    return n


def is_half(xp: Any, dtype: Any) -> bool:
    """Whether a dtype is of half precision. By size: NumPy has no bfloat16, and takes None for float64 in comparisons."""
    return getattr(dtype, "itemsize", 0) == 2


def wide(xp: Any, x: Array) -> Array:
    """Half precision in single precision, in which all linear algebra is done; anything else as it is."""
    return xp.astype(x, xp.float32) if is_half(xp, x.dtype) else x


def dense(A: LinearOperator) -> Array:
    """The matrix to compute with; traced, if what is computed from it will be. One that is not there is formed up to `LARGEST`."""
    size = math.prod(A.shape) * max(4, getattr(A.dtype, "itemsize", 8))
    if size > LARGEST and not isinstance(A, Dense):
        m, n = A.shape[-2:]
        raise TooLargeError(
            f"A is {m}x{n}, and no rule or iteration computes this of it: its matrix would have to be formed, which takes "
            f"{size / 2**30:.1f} GiB. Ask for less (k= in eig and svd, solve instead of inv), name an iterative method, show its "
            f"structure, or form it yourself: Dense(A.to_dense())."
        )
    return A.xp.staged(wide(A.xp, A._dense()))


def narrow(xp: Any, x: Array, dtype: Any) -> Array:
    """A result in the precision of `dtype`, real or complex as it is. There is no half-precision complex: that stays single."""
    if not is_half(xp, dtype) or xp.is_complex(x) or not xp.is_floating(x):
        return x
    return xp.astype(x, dtype)


def outer(combine: Any, v: Array, w: Array) -> Array:
    """combine(v_i, w_j) for all pairs, i slow and j fast."""
    grid = combine(v[..., :, None], w[..., None, :])
    return namespace_of(grid).reshape(grid, (*grid.shape[:-2], grid.shape[-2] * grid.shape[-1]))


def is_square(A: LinearOperator) -> bool:
    """Whether A has as many rows as columns."""
    return A.shape[-1] == A.shape[-2]


def is_vector(b: Any, *others: Any) -> bool:
    """Whether a right side is one vector, given as an array or as a list."""
    return getattr(b, "ndim", None) == 1 or (isinstance(b, (list, tuple)) and np.ndim(b) == 1)


def is_watched(xp: Any, x: Array) -> bool:
    """Whether values are traced or derivatives are recorded."""
    return xp.is_traced(x) or xp.is_differentiated(x)


def values_are_seen(A: LinearOperator) -> bool:
    """Whether its numbers can be seen, and no derivatives are recorded."""
    return not any(is_watched(A.xp, leaf) for leaf in A.arrays())


def seen(xp: Any, x: Array) -> Any:
    """The values on the host, None under tracing."""
    values = xp.peek(x)
    return values if values is not None or xp.is_traced(x) else xp.to_numpy(x)


def quiet(xp: Any) -> Any:
    """NumPy's own warnings silenced where infinities and NaN are expected and turned into a status."""
    return np.errstate(all="ignore") if xp.name == "numpy" else contextlib.nullcontext()
