"""Large Toeplitz systems with few right sides: iterations at once, instead of the inverse, which takes two of them to find."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch import rule
from ..info import Info, planning, report
from ..methods import Auto
from ..methods.toeplitz import LEVINSON, solve_by_iterations
from ..operators.base import LinearOperator
from ..operators.toeplitz import Toeplitz
from ._arrays import is_detailed, is_half, is_watched, seen, values_are_seen, wide
from .inverse_on_host import is_large_and_seen, is_narrow_band, used_diagonals
from .solve import right_side, solve, solve_by_inverse

BETTER = 1e-3  # than the tolerance: a step or two more, since the circulant preconditioner makes the convergence superlinear


def is_large(A: Any) -> bool:
    """Whether it is one square matrix of more rows than Levinson's recursion is good for, whose values can be seen."""
    return not A.batch_shape and A.shape[-1] > LEVINSON and is_large_and_seen(A)


@rule(solve, Toeplitz, when=is_large, direct=True)
def solve_toeplitz(A: Any, b: Any, method: Any) -> Any:
    """x by iterations with fast Fourier transforms, preconditioned by the nearest circulant; by T^-1 for a matrix of right sides"""
    found = None if planning() or not (method is None or isinstance(method, Auto)) else _iterated(A, b, method)
    return solve_by_inverse(A, b, method) if found is None else found


def _iterated(A: Any, b: Any, method: Any) -> Any:
    """None where it takes the inverse."""
    b = right_side("solve", A, b, A.shape[-1])
    if (
        isinstance(b, LinearOperator)
        or b.ndim > 2
        or b.shape[1:] not in ((), (1,))
        or is_watched(A.xp, b)
        or is_half(A.xp, A.dtype)
    ):
        return None
    xp, n = A.xp, A.shape[-1]
    if not values_are_seen(A):
        return None
    values = np.asarray(seen(xp, wide(xp, A._diagonals())))
    if not (values[0] or values[-1]) and is_narrow_band(used_diagonals(values), n):
        return None
    dtype = xp.result_type(A.dtype, b.dtype)
    tol = (method or Auto()).tolerance(xp, dtype)
    side = np.asarray(seen(xp, wide(xp, b))).reshape(-1)
    exact = np.result_type(values, side, np.float64)
    col, row, side = (x.astype(exact, copy=False) for x in (values[n - 1 :], values[n - 1 :: -1], side))
    found = solve_by_iterations(col, row, side, max(BETTER * tol, 1e-13), tol, xp.dtype_name(dtype))
    if found is None:
        return None
    if is_detailed():
        report(Info(residual=xp.asarray(found[1]), method="FFT"))
    return xp.reshape(xp.asarray(found[0], dtype=dtype, device=A._context.device), b.shape)
