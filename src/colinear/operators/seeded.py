"""An operator that brings the random numbers of its minibatches along: how a key that is traced reaches a compiled method."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from .base import LinearOperator
from .context import Context
from .memo import memo

BITS = 1 << 23  # of a number in single precision


class Seeded(LinearOperator):
    """A, and two uniform numbers that stand for a seed: methods are static, and hold none that is traced. Floats, for derivatives' sake."""

    A: LinearOperator
    numbers: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        return Seeded._of(self.A.T, self.numbers)

    def _adjoint(self) -> LinearOperator:
        return Seeded._of(self.A.H, self.numbers)

    def _conj(self) -> LinearOperator:
        return Seeded._of(self.A.conj(), self.numbers)

    def _matmat(self, X: Array) -> Array:
        return self.A @ X

    @property
    def _flops(self) -> float:
        return self.A.flops

    @property
    def generator(self) -> Any:
        """The source of random numbers."""
        xp = namespace_of(self.numbers)
        first, second = (xp.astype(xp.stop_gradient(self.numbers[i]) * BITS, "int32") for i in (0, 1))
        return xp.fold_in(xp.generator(first), second)


def seeded(A: LinearOperator, seed: Any) -> LinearOperator:
    """A with a seed that is traced; A itself where it is not, and the method can hold it."""
    xp = namespace_of(seed)
    if xp is None or not xp.is_traced(seed):
        return A
    return Seeded._of(A, xp.uniform(xp.generator(seed), (2,), dtype=xp.float32))
