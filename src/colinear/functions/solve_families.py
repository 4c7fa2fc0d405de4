"""Solves of families whose answer needs no look at the whole residual, or one that is cheap."""

from __future__ import annotations

from typing import Any

from ..dispatch import rule
from ..info import planning
from ..methods import Auto, Method
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.permutation import Permutation
from ..operators.rewrites import is_compact
from ._arrays import is_detailed
from ._values import reciprocal
from .inverse import inv
from .inverse_families import banded_factor, wraps_around
from .solve import right_side, solve, solve_by_inverse, structured_solve


@rule(solve, Diagonal | Identity | ScaledIdentity | Permutation)
def solve_by_entries(A: Any, b: Any, method: Any) -> Any:
    """x_i = b_i / d_i: each entry is right to rounding, so there is no residual to look at"""
    if is_detailed() and not isinstance(b, LinearOperator):
        return solve_by_inverse(A, b, method)  # someone wants to see it all the same
    if planning() or not isinstance(A, Diagonal) or isinstance(b, LinearOperator):
        return inv(A, method) @ right_side("solve", A, b, A.shape[-1])
    b, inverse = right_side("solve", A, b, A.shape[-1]), reciprocal(A.d)
    return inverse * b if b.ndim == 1 else inverse[..., None] * b


@rule(solve, Banded, when=is_compact, direct=True)
def solve_banded(A: Any, b: Any, method: Any) -> Any:
    """x by elimination within the band; the residual shows whether that was stable"""
    return structured_solve(A, b, method, Inverse(A, banded_factor(A)))


@rule(solve, Circulant)
def solve_circulant(A: Any, b: Any, method: Any) -> Any:
    """x = F^-1 (F b / F c): the residual is at most rounding times the condition, which the divisor shows"""
    return _by_transforms(A, b, method)


@rule(solve, Convolution, when=wraps_around)
def solve_convolution(A: Any, b: Any, method: Any) -> Any:
    """x = F^-1 (F b / F k) over the grid: the residual is at most rounding times the condition, which the divisor shows"""
    return _by_transforms(A, b, method)


def _by_transforms(A: Any, b: Any, method: Method | None) -> Any:
    inverse: Any = inv(A, method)
    if planning() or is_detailed() or isinstance(b, LinearOperator) or 0 in A.shape or A.xp.is_traced(inverse.factor.symbol):
        return structured_solve(A, b, method, inverse, checked=True)
    xp, size = A.xp, A.xp.abs(inverse.factor.symbol)
    least, largest = (float(xp.stop_gradient(end(size))) for end in (xp.min, xp.max))
    if not 100 * xp.eps(A.dtype) * largest <= (method or Auto()).tolerance(xp, A.dtype) * least:
        return structured_solve(A, b, method, inverse, checked=True)
    return inverse @ right_side("solve", A, b, A.shape[-1])
