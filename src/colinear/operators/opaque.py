"""An operator with its structure hidden: what remains is how it multiplies, and what is known of it."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from .base import LinearOperator
from .convert import as_operator


class Opaque(LinearOperator):
    """What `opaque(A)` returns: multiplies as A does; no rule sees inside."""

    A: LinearOperator

    def __new__(cls, A: Any) -> Any:
        return opaque(A)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        return Opaque._of(self.A.T)

    def _adjoint(self) -> LinearOperator:
        return Opaque._of(self.A.H)

    def _conj(self) -> LinearOperator:
        return Opaque._of(self.A.conj())

    def _matmat(self, X: Array) -> Array:
        return self.A @ X

    def _matvec(self, x: Array) -> Array:
        return self.A @ x

    def _to_dense(self) -> Array:
        return self.A._dense()

    @property
    def _flops(self) -> float:
        return self.A.flops

    def _expression(self) -> str:
        return f"opaque({self.A._expression()})"


def opaque(A: Any) -> Any:
    """Hide the structure of an operator, so that methods run on the whole of it.

    Its annotations stay: `solve(opaque(K), b)` still knows that K is PSD.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.opaque(co.Diagonal([1.0, 2.0])) @ np.ones(2)
    array([1., 2.])
    """
    A = as_operator(A)
    return A if isinstance(A, Opaque) else Opaque._of(A)
