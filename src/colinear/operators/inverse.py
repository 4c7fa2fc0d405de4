"""A^-1 as an operator that keeps its factorisation: what `inv` returns when nothing simpler is known."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..info import ShapeError
from .base import LinearOperator
from .memo import memo
from .printing import bracketed


class Inverse(LinearOperator):
    """The inverse of A, applied by `factor`, an operator that multiplies by A^-1 (through triangular solves, say).

    Users write `inv(A)`, which makes the factorisation; rules may look at `A` and at `factor` again (its determinant is known).
    A product costs one with the factor, 2 n^2 for a dense factorisation.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> type(A_inverse).__name__, type(A_inverse.factor).__name__
    ('Inverse', 'LUFactor')
    """

    A: LinearOperator
    factor: LinearOperator

    def __new__(cls, A: LinearOperator, factor: LinearOperator) -> Any:
        if A.shape[-1] != A.shape[-2] or factor.shape[-2:] != A.shape[-2:]:
            raise ShapeError(f"Inverse: A is {A.shape[-2]}x{A.shape[-1]} and its factor {factor.shape[-2]}x{factor.shape[-1]}.")
        return cls._of(A, factor)

    @property
    def operands(self) -> tuple[LinearOperator, ...]:
        return (self.A,)

    @memo
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _infer(self) -> int:
        return self.A.properties  # each of the six passes to the inverse (a PSD operator that has one is PD)

    def _transpose(self) -> LinearOperator:
        return Inverse._of(self.A.T, self.factor.T)

    def _adjoint(self) -> LinearOperator:
        return Inverse._of(self.A.H, self.factor.H)

    def _conj(self) -> LinearOperator:
        return Inverse._of(self.A.conj(), self.factor.conj())

    def _matmat(self, X: Array) -> Array:
        Y = self.factor._matmat(X)
        if Y.dtype == X.dtype:
            return Y
        return self.xp.astype(Y, self.xp.result_type(self.A.dtype, X.dtype))  # half precision is factored in single

    def _matvec(self, x: Array) -> Array:
        y = self.factor._matvec(x)
        if y.dtype == x.dtype:
            return y
        return self.xp.astype(y, self.xp.result_type(self.A.dtype, x.dtype))

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        return self.factor._residual_bound(X, B)

    @property
    def _flops(self) -> float:
        return self.factor.flops

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}^-1"
