"""Inverses from values that the host can see: of Toeplitz matrices by fast transforms, of sparse ones by sparse elimination.

Under tracing values cannot be seen, and the matrix is formed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import get
from ..dispatch import Cost, perform, rule
from ..info import Info, Status, recording, report
from ..methods.sparse_direct import SparseLU
from ..methods.toeplitz import columns_of_inverse
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.host_factors import SparseFactor, gohberg_semencul
from ..operators.identity import ScaledIdentity
from ..operators.implicit import Implicit
from ..operators.inverse import Inverse
from ..operators.sparse import Sparse
from ..operators.toeplitz import Toeplitz
from ._arrays import identity_like, seen, wide
from ._residuals import probe
from ._values import report_status
from .automatic import attempts, cost_of_iteration, examined, is_automatic, looks_definite
from .cost import prefers_iteration, sparse_work
from .inverse import LARGEST_DENSE, inv, inverse
from .inverse_families import inv_banded, report_growth
from .iterative import is_iterative

SMALL_TOEPLITZ = 32  # rows below which nothing is faster than the matrix
NARROW_BAND = 32  # diagonals up to which elimination beats the Fourier transform


def is_large_and_seen(A: Any) -> bool:
    """Whether A is square, too large to be formed lightly, and its values can be seen on the host."""
    m, n = A.shape[-2:]
    return m == n > SMALL_TOEPLITZ and 0 not in A.shape and not A.xp.is_traced(A._diagonals())


@rule(inv, Toeplitz, when=is_large_and_seen, like=identity_like, direct=True)
def inv_toeplitz(A: Any, method: Any) -> LinearOperator:
    """T^-1 from its first and last columns (Gohberg and Semencul), by fast Fourier transforms; along the band if that is narrow"""
    xp, n = A.xp, A.shape[-1]
    values = np.asarray(seen(xp, wide(xp, A._diagonals())))
    values = values.astype(np.result_type(values, np.float64))
    used = used_diagonals(values)
    if is_narrow_band(used, n):
        offsets = tuple(range(n - 1 - used[-1], n - used[0]))
        held = xp.stop_gradient(A._diagonals())
        lines = tuple(xp.broadcast_to(held[..., n - 1 - k, None], (*A.batch_shape, n - abs(k))) for k in offsets)
        solver = inv_banded(Banded._of(lines, offsets, n, n), method).factor  # type: ignore[attr-defined]
        return Inverse(A, Implicit._of(A, solver, None))
    if not np.isfinite(values).all():
        report(Info(Status.NONFINITE))
        return ScaledIdentity(math.nan, n, like=A)
    found = [columns_of_inverse(each[n - 1 :], each[n - 1 :: -1]) for each in values.reshape(-1, 2 * n - 1)]
    residual = max(each[2] for each in found)
    x, y = (np.reshape([each[i] for each in found], (*A.batch_shape, n)) for i in (0, 1))
    largest = np.abs(x).max(axis=-1)
    if not residual < 1e-6 or bool((np.abs(x[..., 0]) <= 1e-8 * largest).any()):  # x_0 = 0 if the minor of size n - 1 is singular
        if math.prod(A.shape) <= LARGEST_DENSE**2:
            return perform(inverse(A, method))
        report(Info(Status.INACCURATE, message="the first column of the inverse was not found to the accuracy needed"))
    dtype = xp.result_type(wide(xp, A.col[..., :1]).dtype)
    solver = gohberg_semencul(xp, *(xp.asarray(z, dtype=dtype, device=A._context.device) for z in (x, y)))
    with recording() as reports:
        growth = seen(xp, report_growth(A, solver, (A._diagonals(),)))
    if not (growth < 100 * math.sqrt(xp.eps(dtype))).all() and math.prod(A.shape) <= LARGEST_DENSE**2:
        # The formula loses as many digits as the condition has; a factorisation keeps the residual small.
        return perform(inverse(A, method))
    for info in reports:
        report(info)
    return Inverse(A, Implicit._of(A, solver, None))


def used_diagonals(values: Any) -> Any:
    """Which of the diagonals, from the last to the first, are not zero in all matrices of a batch."""
    return np.flatnonzero(np.any(values.reshape(-1, values.shape[-1]) != 0, axis=0))


def is_narrow_band(used: Any, n: int) -> bool:
    """Whether they are so few, around the main one, that elimination along them is faster than Fourier transforms."""
    return bool(len(used)) and bool(used[-1] - used[0] <= NARROW_BAND and used[0] < n <= used[-1] + 1)


LARGEST_TRACED = 2048  # rows of a traced Toeplitz matrix that is still formed


def is_large_and_traced(A: Any) -> bool:
    """Whether A is square, too large to be formed, and its values will be seen only when JAX runs the program."""
    m, n = A.shape[-2:]
    return m == n > LARGEST_TRACED and A.xp.name == "jax" and A.xp.is_traced(A._diagonals())


@rule(inv, Toeplitz, when=is_large_and_traced, direct=True)
def inv_traced_toeplitz(A: Any, method: Any) -> LinearOperator:
    """T^-1 from its first and last columns (Gohberg and Semencul), which the host finds when the program runs"""
    xp, n = A.xp, A.shape[-1]
    diagonals = xp.stop_gradient(A._diagonals())[..., None]
    both = xp.map_on_host(_both_columns, diagonals)[..., 0]
    x, y = both[..., :n], xp.concat([both[..., n:], both[..., :1]], axis=-1)
    solver = gohberg_semencul(xp, x, y)
    report_growth(A, solver, (diagonals,))
    first = xp.astype(xp.arange(n, device=A._context.device) == 0, A.dtype)
    residual = xp.vector_norm(first - (A @ x[..., None])[..., 0], axis=-1)
    accurate = residual < math.sqrt(xp.eps(A.dtype))
    report_status(xp, xp.where(accurate, int(Status.SUCCESS), int(Status.INACCURATE)))
    return Inverse(A, Implicit._of(A, solver, None))


def _both_columns(diagonals: Any) -> Any:
    """T^-1 e_1 and T^-1 e_n end to end, but the last entry of the latter, which is the first of the former."""
    n = (diagonals.shape[-2] + 1) // 2
    wide_values = diagonals.astype(np.result_type(diagonals, np.float64)).reshape(-1, 2 * n - 1)
    found = [columns_of_inverse(each[n - 1 :], each[n - 1 :: -1]) for each in wide_values]
    return np.reshape([np.concatenate([x, y[:-1]]) for x, y, _ in found], diagonals.shape).astype(diagonals.dtype)


def is_sparse_and_seen(A: Any) -> bool:
    """Whether A is square, mostly zeros, and its values can be seen on the host."""
    m, n = A.shape[-2:]
    return m == n and n > 0 and 4 * A.nnz <= n * n and 0 not in A.shape and not A.xp.is_traced(A.data)


def fills_in(A: Any, method: Any = None) -> bool:
    """Whether sparse elimination is out of reach, or dearer by far than an iteration, since the factors fill in."""
    return is_automatic(method) and is_sparse_and_seen(A) and prefers_iteration(examined(A), sparse_work(A))


@rule(inv, Sparse, when=fills_in, cost=lambda A: cost_of_iteration(examined(A)), like=identity_like, direct=True)
def inv_filling_sparse(A: Any, method: Any) -> LinearOperator:
    """S^-1 b by an iteration: the factors would fill in"""
    return Inverse(A, attempts(examined(A), method))


def stays_sparse(A: Any, method: Any = None) -> bool:
    """Whether A is square, mostly zeros, seen on the host, and sparse elimination is not dearer by far than an iteration."""
    return not is_iterative(method) and is_sparse_and_seen(A) and not fills_in(A, method)


@rule(inv, Sparse, when=stays_sparse, cost=lambda A: Cost(*sparse_work(A)[::2]), like=identity_like, direct=True)
def inv_sparse(A: Any, method: Any) -> LinearOperator:
    """S^-1 b by sparse elimination, the rows and columns in an order that keeps the factors sparse"""
    xp, structure = A.xp, A.structure
    values = np.asarray(seen(xp, wide(xp, A.data)))
    if not np.isfinite(values).all():
        report(Info(Status.NONFINITE, method="SuperLU"))
        return ScaledIdentity(math.nan, A.shape[-1], like=A)
    definite = looks_definite(A)
    for symmetric in (True, False) if definite or structure.is_symmetric else (False,):
        ways = definite and symmetric, symmetric
        try:
            factor = SparseFactor._of(
                xp.stop_gradient(A.data), structure, SparseLU(values, structure.indptr, structure.columns, *ways), "N"
            )
        except ArithmeticError:
            continue
        if not symmetric or _reproduces(values, factor, structure):
            report_growth(A, factor, (A.data,))
            return Inverse(A, Implicit._of(A, factor, None))
    if math.prod(A.shape) <= LARGEST_DENSE**2:
        return perform(inverse(A, method))  # which shows the rank
    report(Info(Status.SINGULAR, method="SuperLU", message="a pivot is exactly zero"))
    return ScaledIdentity(math.nan, A.shape[-1], like=A)


def _reproduces(values: Any, factor: Any, structure: Any) -> bool:
    """Whether elimination without pivoting was stable, as it is for a positive definite matrix, tried on one vector."""
    numpy = get("numpy")
    p = np.broadcast_to(probe(numpy, structure.shape[0], values.dtype, None), (*values.shape[:-1], structure.shape[0], 1))
    x = factor.lu.solve(np.asarray(p, values.dtype), "N")
    residual = p - numpy.sparse_matmul(values, structure, x)
    return bool(np.linalg.norm(residual) <= math.sqrt(numpy.eps(values.dtype)) * np.linalg.norm(p))
