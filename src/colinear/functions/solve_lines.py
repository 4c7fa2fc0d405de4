"""Systems on a grid whose operator is a Kronecker sum of two tridiagonal ones: one is diagonalised, along the other one eliminates."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dispatch import Choice, rule
from ..operators.base import LinearOperator
from ..operators.kronecker import KroneckerSum
from ..operators.line_factor import LineFactor
from ..operators.product import Product
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_SEMIDEFINITE
from ._residuals import MARGIN
from .eigen import eig
from .eigen_tridiagonal import diagonals_are_constant
from .iterative import is_iterative
from .solve import System, apply_inverse, right_side, solve, solve_by_inverse


def lines_are_constant(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether all factors are one Kronecker sum of two real positive tridiagonals, the last one of constant diagonals, in NumPy."""
    grid: Any = A.operands[0] if isinstance(A, Product) else A
    if (
        is_iterative(method)
        or isinstance(b, LinearOperator)
        or A.xp.name != "numpy"
        or grid.batch_shape
        or grid.is_complex
        or A.dtype.itemsize < 4
        or 0 in A.shape
    ):
        return False
    first, last = grid.operands
    positive = first.properties & last.properties & POSITIVE_SEMIDEFINITE
    same = isinstance(A, KroneckerSum) or all(factor is grid for factor in A.operands)
    return bool(positive) and same and diagonals_are_constant(last) and bool((first.lower == first.upper).all())


@rule(solve, KroneckerSum[Tridiagonal, Tridiagonal], when=lines_are_constant)  # type: ignore[misc]
@rule(solve, Product[KroneckerSum[Tridiagonal, Tridiagonal], ...], when=lines_are_constant)  # type: ignore[misc]
def solve_by_lines(A: Any, b: Any, method: Any) -> Any:
    """(A ⊕ B) x = b is (A + λ I) y = c for each eigenvalue λ of B, after a sine transform along B: elimination in all at once"""
    b = right_side("solve", A, b, A.shape[-1])
    return Choice(lambda: _by_lines(A, b, method), like=lambda: b)


def _by_lines(A: Any, b: Any, method: Any) -> Any:
    grid: Any = A.operands[0] if isinstance(A, Product) else A
    power = len(A.operands) if isinstance(A, Product) else 1
    first, last = grid.operands
    values = eig(last)[0].astype(A.dtype)
    norm = float(np.max(np.abs(first.diag)) + 2 * np.max(np.abs(first.lower), initial=0) + values[-1])  # at least |A|
    with np.errstate(all="ignore"):
        multipliers, pivots = _factored(first, values)
        safe = values[0] > MARGIN * np.finfo(values.dtype).eps * norm and pivots.min() > 0 and np.isfinite(norm)
    if not safe:  # nearly singular, or not positive
        return solve_by_inverse(A, b, method)
    s = System.of(A, b)
    with np.errstate(all="ignore"):
        return s.answer(apply_inverse(A, LineFactor._of(multipliers, pivots, power, norm**power), method, s))


def _factored(T: Any, values: Any) -> tuple[Any, Any]:
    """T + λ I = L D L^T for each λ: the multipliers of L and the pivots D, by rows."""
    m = T.shape[-1]
    pivots = T.diag[:, None] + values
    multipliers = np.empty((m - 1, len(values)), pivots.dtype)
    product = np.empty_like(values)
    for i in range(m - 1):
        np.divide(T.lower[i], pivots[i], out=multipliers[i])
        np.multiply(multipliers[i], T.lower[i], out=product)
        pivots[i + 1] -= product
    return multipliers, pivots
