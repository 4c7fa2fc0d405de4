"""Systems with Kronecker sums of self-adjoint operators, Poisson's equation on a grid above all, and with their shifts and powers."""

from __future__ import annotations

from typing import Any

from ..dispatch import rule
from ..info import planning
from ..operators.kronecker import KroneckerSum
from ..operators.product import Product
from ..operators.sine import Sine
from ..operators.sum import Sum
from ._values import extreme_magnitudes
from .eigen import factors_self_adjoint
from .inverse import inv
from .inverse_kronecker import is_a_power_of_self_adjoint
from .inverse_sums import SHIFT, kronecker_of_self_adjoint
from .solve import _solve, solve


@rule(solve, KroneckerSum, when=factors_self_adjoint)
@rule(solve, Sum[KroneckerSum, SHIFT], when=kronecker_of_self_adjoint)  # type: ignore[misc]
@rule(solve, Product[KroneckerSum, ...], when=is_a_power_of_self_adjoint)  # type: ignore[misc]
def solve_in_eigenvectors(A: Any, b: Any, method: Any) -> Any:
    """x = Q (Q^H b / λ): if Q is a transform, rounding is at most |b| + |A| |x| times a little, else the residual is looked at"""
    if planning():
        return _solve(A, b, method)
    inverse: Any = inv(A, method)
    norm = None
    if isinstance(inverse, Product) and isinstance(inverse.operands[0], Sine):
        reciprocals: Any = inverse.operands[1]
        smallest = 0.0 if A.xp.is_traced(reciprocals.d) else float(A.xp.min(extreme_magnitudes(A.xp, reciprocals.d)[0]))
        norm = 1 / smallest if smallest > 0 else None  # |A|
    return _solve(A, b, method, inverse, checked=True, norm=norm)
