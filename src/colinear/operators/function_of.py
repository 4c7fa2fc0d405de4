"""f(A) known by its products alone: what `exp(A)` and others return for an A that is too large to be formed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from ..backends import Array
from .base import LinearOperator
from .context import Context
from .memo import memo


class FunctionOf(LinearOperator):
    """A function of A, applied to vectors by `evaluate(A, X)`, which gives f(A) X.

    Users write `exp(A)`, `sqrt(A, Krylov())` and so on.

    Parameters
    ----------
    A : LinearOperator
    evaluate : callable
        Static: no arrays inside.
    name : str
        Of the function.
    complex : bool
        Whether products of real vectors may be complex.
    mirrored : bool
        Whether f(A)^H = f(A^H).
    """

    A: LinearOperator
    evaluate: Callable[[LinearOperator, Array], Array]
    name: str
    complex: bool
    mirrored: bool

    _product_is_a_run: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    @memo
    def _context(self) -> Context:
        own = self.A._context
        return Context(own.backend, self.A.xp.complex_dtype(self.A.dtype) if self.complex else self.A.dtype, own.device)

    def _adjoint(self) -> LinearOperator:
        return self._replace(A=self.A.H) if self.mirrored else LinearOperator._adjoint(self)

    def _transpose(self) -> LinearOperator:
        return self._replace(A=self.A.T)

    def _matmat(self, X: Array) -> Array:
        return self.evaluate(self.A, X)

    @property
    def _flops(self) -> float:
        return 40.0 * (self.A.flops + 40.0 * self.A.shape[-1])

    def _expression(self) -> str:
        return f"{self.name}({self.A._expression()})"
