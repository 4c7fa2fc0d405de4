"""Matrix norms."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array
from ..dispatch import function
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ._arrays import dense, narrow, quiet, wide
from ._blocks import BLOCK, by_columns
from ._residuals import column_norms
from ._values import report_finite
from .cost import is_too_large

ORDERS = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


def checked_order(function: str, order: Any) -> Any:
    """A norm's name, or an error that lists them."""
    if isinstance(order, bool) or order not in ORDERS:
        raise ValueError(f"{function}: {order!r} names no matrix norm; use one of {', '.join(map(repr, ORDERS))}.")
    return order


def matrix_norm(A: LinearOperator, ord: Any = "fro", method: Method | None = None) -> Array:
    """A norm of the matrix, as `numpy.linalg.norm`.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    ord : {"fro", "nuc", 2, -2, 1, -1, inf, -inf}
        Frobenius, nuclear, largest and smallest singular value, largest and smallest column sum (1, -1) and row sum (inf, -inf).
    method : optional
        As for `svd`, for the norms that need singular values.

    Notes
    -----
    m n flops, or those of `svd` for "nuc", 2 and -2. Of large operators no matrix is formed: entries are looked at in blocks of
    columns, the largest singular value is found by iteration, and the smallest as that of the inverse.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> float(co.norm(np.array([[3.0, 0.0], [4.0, 0.0]])))
    5.0
    """
    order, xp = checked_order("norm", ord), A.xp
    if order in ("nuc", 2, -2):
        return _spectral_norm(A, order, method)
    if math.prod(A.shape) > BLOCK and not isinstance(A, Dense):
        result = _norm_by_blocks(A, order)
    else:
        M = dense(A)
        with quiet(xp):
            if order == "fro" or 0 in M.shape[-2:]:
                result = xp.sqrt(xp.sum(xp.abs(M) ** 2, axis=(-2, -1))) if 0 in M.shape[-2:] else frobenius(xp, M)
            else:
                sums = xp.sum(xp.abs(M), axis=-2 if abs(order) == 1 else -1)
                result = (xp.max if order > 0 else xp.min)(sums, axis=-1)
    result = narrow(xp, result, A.dtype)
    report_finite(xp, result)
    return result


def _spectral_norm(A: LinearOperator, order: Any, method: Method | None) -> Array:
    """The sum, the largest or the smallest of the singular values."""
    from .singular import smallest_singular_value, svd

    if order != "nuc" and min(A.shape[-2:]) and is_too_large(A):
        if order == 2:
            return svd(A, 1, method)[1][..., 0]
        if A.shape[-2] == A.shape[-1]:
            return smallest_singular_value(A)
    s = svd(A, None, method)[1]
    if order == "nuc" or not s.shape[-1]:
        return A.xp.sum(s, axis=-1)
    return s[..., 0 if order == 2 else -1]


def _norm_by_blocks(A: LinearOperator, order: Any) -> Array:
    """From blocks of columns of at most `BLOCK` entries."""
    xp = A.xp
    if order in (math.inf, -math.inf):
        return _norm_by_blocks(A.T, 1 if order > 0 else -1)
    measure = (lambda X: column_norms(xp, X)) if order == "fro" else (lambda X: xp.sum(xp.abs(X), axis=-2))
    with quiet(xp):
        sizes = by_columns(A, lambda X, _: measure(wide(xp, X)))
        return frobenius(xp, sizes[..., None]) if order == "fro" else (xp.max if order > 0 else xp.min)(sizes, axis=-1)


def frobenius(xp: Any, M: Array) -> Array:
    """By parts of the largest entry, so that squares neither overflow nor vanish."""
    largest = xp.max(xp.abs(xp.stop_gradient(M)), axis=(-2, -1), keepdims=True)
    scale = xp.where(largest > 0, largest, 1)
    return scale[..., 0, 0] * xp.vector_norm(M / scale, axis=(-2, -1))


def root(xp: Any, squares: Array) -> Array:
    """The root of a sum of squares, whose derivative at zero is taken to be zero, as that of the norm of a vector."""
    is_zero = squares == 0
    return xp.where(is_zero, 0, xp.sqrt(xp.where(is_zero, 1, squares)))


norm = function("norm", base=matrix_norm)
