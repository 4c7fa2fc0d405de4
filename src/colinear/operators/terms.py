"""Sums by their terms: how many there are, and minibatches of them by index, for methods that look
at a few at a time.

A family offers its terms by two methods of `LinearOperator`, and a factor its rows by a third; an
operator of a user's own joins by defining them:

    _term_count                       how many terms A is a sum of; 1 if it is no sum
    _some_terms(indices, weights)     sum_k weights[k] A_indices[k], plus all of what is not sampled, as an operator
    _rows(indices)                    the rows of A of these indices, as an operator: X^H X is then a sum over them

Indices may be traced, so that the loop of a method compiles into one program; there are never
objects for single terms.
"""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..errors import MethodError
from .base import LinearOperator
from .context import common_batch, zero_product
from .tree import Shape

NOT_A_SUM = (
    "is not a sum of terms. Write it as one: BatchSum(terms), A + B + ..., or X.H @ X (a sum over "
    "the rows of X), scaled or shifted as you like"
)


def term_count(A: LinearOperator) -> int:
    """How many terms A is a sum of; 1 if it is no sum."""
    return A._term_count


def minibatch(A: LinearOperator, indices: Any) -> LinearOperator:
    """An unbiased estimate of a sum of n terms, from b of them: (n / b) sum_k A_indices[k], for
    indices drawn uniformly.

    What the sum holds besides its terms, such as c I, is in it whole.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> from colinear.operators.terms import minibatch
    >>> X = co.Dense(np.arange(8.0).reshape(4, 2))
    >>> A = X.H @ X + co.Identity(2)
    >>> halves = [minibatch(A, np.array(pair)).to_dense() for pair in ([0, 1], [2, 3])]
    >>> bool(np.allclose(sum(halves) / 2, A.to_dense()))
    True
    """
    n = term_count(A)
    if n < 2:
        raise MethodError(f"minibatch: {A!r} {NOT_A_SUM}.")
    xp = A.xp if namespace_of(indices) is None else namespace_of(indices)
    indices = xp.asarray(indices)
    weights = xp.full(
        indices.shape,
        n / indices.shape[0],
        dtype=xp.real_dtype(A.dtype),
        device=xp.device_of(indices),
    )
    return A._some_terms(indices, weights)


def some_terms(A: LinearOperator, start: int, stop: int) -> LinearOperator:
    """The terms from `start` to `stop` of a sum that holds nothing besides its terms, as one
    operator."""
    xp, device = A.xp, A._context.device
    weights = xp.ones((stop - start,), dtype=xp.real_dtype(A.dtype), device=device)
    return A._some_terms(start + xp.arange(stop - start, device=device), weights)


def added_parts(A: LinearOperator) -> list[tuple[Any, LinearOperator]]:
    """What A adds up, as numbers c and operators B of A = sum of c B: each B a sum over one set of
    terms, or a term itself.

    A sum of single operators is one B, whose terms are its operands.
    """
    if isinstance(A, scaled.Scaled):
        return [(A.scalar * c, B) for c, B in added_parts(A.A)]
    if not isinstance(A, sums.Sum) or all(B._term_count == 1 for B in A.operands):
        return [(1, A)]
    place = {"backend": A.backend, "device": A._context.device, "dtype": A.dtype}
    return [part for B in A.operands for part in added_parts(B.to(**place) if B.is_neutral else B)]


# --------------------------------------------------------------------------------------------------


class InnerTerms(LinearOperator):
    """sum_k w_k l_k^H r_k of rows l_k of `left` and r_k of `right`; those of `right` twice where
    `left` is None."""

    left: LinearOperator | None
    right: LinearOperator
    weights: Array

    @property
    def operands(self) -> tuple[LinearOperator, ...]:
        return (self.right,) if self.left is None else (self.left, self.right)

    @property
    def shape(self) -> Shape:
        return (*self.right.shape[:-2], self._left.shape[-1], self.right.shape[-1])

    @property
    def _left(self) -> LinearOperator:
        return self.right if self.left is None else self.left

    def _adjoint(self) -> LinearOperator:
        weights = namespace_of(self.weights).conj(self.weights)
        left, right = (None, self.right) if self.left is None else (self.right, self.left)
        return InnerTerms._of(left, right, weights)

    def _matmat(self, X: Array) -> Array:
        return self._left.H @ (self.weights[..., None] * (self.right @ X))

    @property
    def _flops(self) -> float:
        return self.right.flops + self._left.flops


class ListedTerms(LinearOperator):
    """sum_j w_j A_j of a list of operators, those of weight zero left out: not multiplied, even
    where weights are traced."""

    weights: Array
    flops_of_some: float  # of those that a minibatch meets, on average
    operands: tuple[LinearOperator, ...]

    @property
    def shape(self) -> Shape:
        return (*common_batch("", self.operands), *self.operands[0].shape[-2:])

    def _adjoint(self) -> LinearOperator:
        weights = namespace_of(self.weights).conj(self.weights)
        return ListedTerms._of(weights, self.flops_of_some, tuple(A.H for A in self.operands))

    def _matmat(self, X: Array) -> Array:
        xp, total = namespace_of(X), zero_product(self, X)
        for A, weight in zip(self.operands, self.weights):

            def met(weight: Array, total: Array, X: Array, A: LinearOperator = A) -> Array:
                return total + xp.astype(weight * (A @ X), total.dtype)

            total = xp.cond(weight != 0, met, lambda weight, total, X: total, weight, total, X)
        return total

    @property
    def _flops(self) -> float:
        return self.flops_of_some


# These are what terms are made of.
from . import scaled
from . import sum as sums
