"""What tells a good answer from a bad one: norms of columns, and a probe whose solution grows as the inverse does."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array

MARGIN = 10  # by which a condition number must stay below what the dtype can tell from infinity
FEW = 4  # columns, which are looked at one by one


def probe(xp: Any, n: int, dtype: Any, device: Any) -> Array:
    """A column without symmetry or structure that a matrix might share."""
    if xp.name == "numpy" and n <= 64:
        return _small_probe(n, xp.real_dtype(dtype))
    return xp.cos(xp.arange(n, dtype=xp.real_dtype(dtype), device=device))[:, None]


@functools.cache
def _small_probe(n: int, dtype: Any) -> Array:
    p = np.cos(np.arange(n, dtype=dtype))[:, None]
    p.flags.writeable = False
    return p


def squares(xp: Any, X: Array, axis: int = -2) -> Array:
    """The sums of squares |x|^2 along an axis."""
    return xp.real(xp.vecdot(X, X, axis=axis))


def are_small(xp: Any, R: Array, B: Array, tol: float) -> bool:
    """Whether |r| <= tol |b| for each column, for sure: false too where squares might overflow or vanish, or there are NaN."""
    r, b = squares(xp, R), squares(xp, B)
    if xp.name == "numpy" and r.size <= FEW:  # Python's numbers are quicker than NumPy's arrays of few
        return all(x <= tol**2 * y and 1e-30 < tol**2 * y < 1e30 for x, y in zip(r.ravel().tolist(), b.ravel().tolist()))
    b = tol**2 * b
    return bool(xp.all((r <= b) & (b > 1e-30) & (b < 1e30)))


def column_norms(xp: Any, X: Array) -> Array:
    """The norm of each column."""
    return xp.vector_norm(X, axis=-2)


def is_singular(xp: Any, A: Array) -> Array:
    """Whether each matrix is singular to working accuracy: LU's solution for the probe tells."""
    if 0 in A.shape:
        return xp.zeros(A.shape[:-2], dtype=xp.bool, device=xp.device_of(A))
    p = probe(xp, A.shape[-1], A.dtype, xp.device_of(A))
    x = xp.lu_solve(*xp.lu_factor(A), xp.broadcast_to(p, (*A.shape[:-1], 1)))
    largest = xp.max(xp.abs(A), axis=(-2, -1))
    return xp.logical_not(MARGIN * A.shape[-1] * xp.eps(A.dtype) * largest * xp.vector_norm(x, axis=(-2, -1)) < xp.vector_norm(p))


# ---------------------------------------------------------------------------------------------------- one triangle only


def reproduces(xp: Any, A: Array, again: Callable[[Array], Array]) -> Array:
    """Whether a factorisation that read the lower triangle alone is one of A.

    The product by the factors, `again(p)`, is compared with A p for a probe p.
    """
    p = probe(xp, A.shape[-1], A.dtype, xp.device_of(A))
    p = p if p.dtype == A.dtype else xp.astype(p, A.dtype)
    size = xp.max(xp.abs(A), axis=(-2, -1)) * A.shape[-1]
    error = xp.max(xp.abs(xp.matmul(A, p) - again(p)), axis=(-2, -1))
    return error <= math.sqrt(xp.eps(A.dtype)) * size


def times_adjoint(xp: Any, L: Array) -> Callable[[Array], Array]:
    """p -> L L^H p"""
    return lambda p: xp.matmul(L, xp.matmul(xp.conj(xp.matrix_transpose(L)), p))


def mirrored(xp: Any, A: Array) -> Callable[[Array], Array]:
    """p -> H p for the Hermitian H whose lower triangle is that of A."""
    strict = xp.tril(A, -1)
    d = xp.astype(xp.real(xp.diagonal(A)), A.dtype)[..., None]
    return lambda p: xp.matmul(strict, p) + d * p + xp.matmul(xp.conj(xp.matrix_transpose(strict)), p)
