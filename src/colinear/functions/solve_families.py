"""Solves of families whose answer needs no look at the whole residual, or one that is cheap."""

from __future__ import annotations

from typing import Any

from ..dispatch import rule
from ..info import is_detailed
from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.permutation import Permutation
from ._values import reciprocal
from .inverse import inv
from .solve import right_side, solve, solve_by_inverse


@rule(solve, Diagonal | Identity | ScaledIdentity | Permutation)
def solve_by_entries(A: Any, b: Any, method: Any) -> Any:
    """x_i = b_i / d_i: each entry is right to rounding, so there is no residual to look at"""
    if is_detailed() and not isinstance(b, LinearOperator):
        return solve_by_inverse(A, b, method)  # someone wants to see it all the same
    if not isinstance(A, Diagonal) or isinstance(b, LinearOperator):
        return inv(A, method) @ right_side("solve", A, b, A.shape[-1])
    b, inverse = right_side("solve", A, b, A.shape[-1]), reciprocal(A.d)
    return inverse * b if b.ndim == 1 else inverse[..., None] * b
