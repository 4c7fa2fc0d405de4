"""Systems with Kronecker sums of self-adjoint operators, Poisson's equation on a grid above all, and with their shifts and powers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..backends import Array
from ..dispatch import rule
from ..info import planning
from ..operators.kronecker import KroneckerSum
from ..operators.product import Product
from ..operators.sine import Sine
from ..operators.sparse_algebra import SHIFT
from ..operators.sum import Sum
from ._residuals import squares
from ._values import extreme_magnitudes
from .eigen import factors_self_adjoint
from .inverse import inv
from .inverse_kronecker import is_a_power_of_self_adjoint
from .inverse_sums import kronecker_of_self_adjoint
from .solve import solve, structured_solve


@rule(solve, KroneckerSum, when=factors_self_adjoint)
@rule(solve, Sum[KroneckerSum, SHIFT], when=kronecker_of_self_adjoint)  # type: ignore[misc]
@rule(solve, Product[KroneckerSum, ...], when=is_a_power_of_self_adjoint)  # type: ignore[misc]
def solve_in_eigenvectors(A: Any, b: Any, method: Any) -> Any:
    """x = Q (Q^H b / λ): if Q is a transform, rounding is at most |b| + |A| |x| times a little, else the residual is looked at"""
    if planning():
        return structured_solve(A, b, method)
    inverse: Any = inv(A, method)
    return structured_solve(A, b, method, inverse, checked=True, is_right=_bound_by_transforms(A, inverse))


def _bound_by_transforms(A: Any, inverse: Any) -> Any:
    if not (isinstance(inverse, Product) and isinstance(inverse.operands[0], Sine)):
        return None
    xp, reciprocals = A.xp, inverse.operands[1].d  # type: ignore[attr-defined]
    smallest = 0.0 if xp.is_traced(reciprocals) else float(xp.min(extreme_magnitudes(xp, reciprocals)[0]))
    return BoundByNorm(xp, 1 / smallest) if smallest > 0 else None


@dataclass(frozen=True)
class BoundByNorm:
    """The proof that rounding cannot have spoilt a residual, for an inverse that is applied by transforms and stable elimination:
    there it is at most 100 eps (|b| + |A| |x|)."""

    xp: Any
    norm: float

    def __call__(self, X: Array, B: Array, tol: float) -> bool:
        xp = self.xp
        x, b = (xp.sqrt(squares(xp, Y)) for Y in (X, B))
        return bool(xp.all((100 * xp.eps(X.dtype) * (b + self.norm * x) <= tol * b) & (b > 1e-100) & xp.isfinite(b)))

    def is_final(self, X: Array, R: Array, B: Array, tol: float) -> bool:
        """Whether |r| <= eps |A| |x|: x solves a system that differs from A by rounding, so refining in this precision gains a factor
        of two or three, which is too little if |r| > 4 tol |b|."""
        xp = self.xp
        x, r, b = (xp.sqrt(squares(xp, Y)) for Y in (X, R, B))
        return bool(xp.all((r <= xp.eps(X.dtype) * self.norm * x) & (r > 4 * tol * b)))
