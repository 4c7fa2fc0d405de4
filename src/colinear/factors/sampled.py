"""The terms of an operator as a stochastic method draws from them, and the random numbers that
draw them."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..errors import MethodError
from ..methods.svrg import Terms
from ..operators import LinearOperator, Product
from ..operators.context import Context
from ..operators.terms import NOT_A_SUM, minibatch, term_count
from ..operators.tree import memo
from ..properties import POSITIVE_SEMIDEFINITE

# The terms of an operator as a stochastic method draws from them.


def sampled_terms(A: LinearOperator, method: Any, squared: bool | None = None) -> Terms:
    """The terms that a stochastic method draws from: those of positive A, else (or if so
    `squared`) those of A^H A, which are its rows where A is no sum."""
    generator = None
    if isinstance(A, Seeded):
        generator, A = A.generator, A.A
    A = A.to(dtype=A.xp.float32) if getattr(A.dtype, "itemsize", 0) == 2 else A
    count = term_count(A)
    squared = not A.properties & POSITIVE_SEMIDEFINITE if squared is None else squared
    if count < 2 and squared and A._has_rows:
        whole: LinearOperator = Product(A.H, A)
        count, product = term_count(whole), lambda indices, X: minibatch(whole, indices) @ X
    elif count < 2:
        raise MethodError(
            f"{method.name}: {A!r} {NOT_A_SUM}; or use CG(), which needs products with A alone."
        )
    elif squared:
        whole = A

        def product(indices: Array, X: Array) -> Array:
            some = minibatch(A, indices)
            return some.H @ (some @ X)
    else:
        whole, product = A, lambda indices, X: minibatch(A, indices) @ X
    size = method.batch_of(count)
    if size > count:
        raise ValueError(
            f"{method.name}: batch_size is {size}, and the sum has {count} terms. Use at most "
            f"{count}, or None for the default."
        )
    first = A.xp.arange(size, device=A._context.device)
    share = min(1.0, minibatch(whole, first).flops / max(whole.flops, 1.0))
    return Terms(count, product, share, size, squared, generator)


# An operator that brings the random numbers of its minibatches along: how a key that is traced
# reaches a compiled method.


BITS = 1 << 23  # of a number in single precision


class Seeded(LinearOperator):
    """A, and two uniform numbers that stand for a seed: methods are static, and hold none that
    is traced. Floats, for derivatives' sake."""

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
        first, second = (
            xp.astype(xp.stop_gradient(self.numbers[i]) * BITS, "int32") for i in (0, 1)
        )
        return xp.fold_in(xp.generator(first), second)


def seeded(A: LinearOperator, seed: Any) -> LinearOperator:
    """A with a seed that is traced; A itself where it is not, and the method can hold it."""
    xp = namespace_of(seed)
    if xp is None or not xp.is_traced(seed):
        return A
    return Seeded._of(A, xp.uniform(xp.generator(seed), (2,), dtype=xp.float32))
