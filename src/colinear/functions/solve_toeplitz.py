"""Large Toeplitz systems with few right sides: iterations at once, instead of the inverse, which takes two of them to find."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import is_array
from ..dispatch import Choice, rule
from ..info import Info, is_detailed, report
from ..methods import Auto
from ..methods.toeplitz import LEVINSON, solve_by_iterations
from ..operators.base import LinearOperator
from ..operators.toeplitz import Toeplitz
from ._arrays import is_half, is_vector, is_watched, seen, values_are_seen, wide
from .inverse_on_host import is_large_and_seen, is_narrow_band, used_diagonals
from .solve import right_side, solve, solve_by_inverse

BETTER = 1e-3  # than the tolerance: a step or two more, since the circulant preconditioner makes the convergence superlinear


def is_large(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether it is one square matrix of more rows than Levinson's recursion is good for, with one right side and no derivatives.

    All values can be seen, and no band is so narrow that elimination is faster.
    """
    if A.batch_shape or A.shape[-1] <= LEVINSON or not (method is None or isinstance(method, Auto)):
        return False
    is_one = b is None or is_vector(b) or tuple(getattr(b, "shape", ()))[1:] == (1,)
    if not is_one or isinstance(b, LinearOperator) or is_half(A.xp, A.dtype) or (is_array(b) and is_watched(A.xp, b)):
        return False
    if not is_large_and_seen(A) or not values_are_seen(A):
        return False
    values = np.asarray(seen(A.xp, A._diagonals()))
    return bool(values[0] or values[-1]) or not is_narrow_band(used_diagonals(values), A.shape[-1])


@rule(solve, Toeplitz, when=is_large, direct=True)
def solve_toeplitz(A: Any, b: Any, method: Any) -> Any:
    """x by iterations with fast Fourier transforms, preconditioned by the nearest circulant"""
    b = right_side("solve", A, b, A.shape[-1])

    def run() -> Any:
        found = _iterated(A, b, method)
        return solve_by_inverse(A, b, method) if found is None else found

    return Choice(run, like=lambda: b)


def _iterated(A: Any, b: Any, method: Any) -> Any:
    """The solution, or None where the iterations do not converge."""
    xp, n = A.xp, A.shape[-1]
    values = np.asarray(seen(xp, wide(xp, A._diagonals())))
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
