"""The sum over a batch dimension of one batched operator: how a sum of a million terms is written without a million objects."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..info import ShapeError
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC
from .base import LinearOperator
from .batching import take_terms
from .convert import as_operator
from .printing import bracketed
from .scaled import Scaled


class BatchSum(LinearOperator):
    """`sum_i A[i]` over the batch dimension `axis` of A.

    Examples
    --------
    A sum of rank-one terms, one for each row of the data, is one object; it multiplies as `X^T (X v)`:

    >>> import colinear as co, numpy as np
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> A = co.BatchSum(co.LowRank(X[:, :, None]))
    >>> bool(np.allclose(A.to_dense(), X.T @ X))
    True
    """

    A: LinearOperator
    axis: int

    def __new__(cls, A: Any, axis: int = 0) -> Any:
        A = as_operator(A)
        batch = len(A.shape) - 2
        if batch == 0:
            raise ShapeError(f"BatchSum: A has shape {A.shape}; it needs a batch dimension to sum over.")
        if not -batch <= axis < batch:
            raise ShapeError(f"BatchSum: axis {axis} is not one of the {batch} batch dimension(s) of A, shape {A.shape}.")
        # Counted from the last batch dimension, so that it stays right when `vmap` adds or hides leading ones.
        return cls._of(A, axis - batch if axis >= 0 else axis)

    @property
    def operands(self) -> tuple[LinearOperator, ...]:
        return (self.A,)

    @property
    def shape(self) -> tuple[int, ...]:
        batch = list(self.A.shape[:-2])
        del batch[self.axis]
        return (*batch, *self.A.shape[-2:])

    @property
    def terms(self) -> int:
        """How many terms the sum has."""
        return self.A.shape[:-2][self.axis]

    def _infer(self) -> int:
        kept = SELF_ADJOINT | SYMMETRIC | POSITIVE_SEMIDEFINITE | (POSITIVE_DEFINITE if self.terms else 0)
        return self.A.properties & kept

    def _transpose(self) -> LinearOperator:
        return BatchSum(self.A.T, self.axis)

    def _adjoint(self) -> LinearOperator:
        return BatchSum(self.A.H, self.axis)

    def _conj(self) -> LinearOperator:
        return BatchSum(self.A.conj(), self.axis)

    def _matmat(self, X: Array) -> Array:
        if len(X.shape) - 2 >= -self.axis:
            X = namespace_of(X).expand_dims(X, axis=self.axis - 2)
        return self.A._summed_matmat(X, self.axis)

    @property
    def _term_count(self) -> int:
        return self.terms

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        xp, after = namespace_of(indices), -self.axis - 1  # batch dimensions behind the one that is summed
        taken = take_terms(self.A, self.axis, indices)
        weights = xp.reshape(weights, (*weights.shape, *(1,) * after))
        return BatchSum._of(Scaled(weights, taken), self.axis)

    def _to_dense(self) -> Array:
        return (
            self.xp.sum(self.A._dense(), axis=self.axis - 2)
            if self.A.shape[-2] * self.terms <= 4096
            else LinearOperator._to_dense(self)
        )

    @property
    def _flops(self) -> float:
        return self.terms * self.A.flops

    def _expression(self) -> str:
        return f"sum of {self.terms} {bracketed(self.A, None)}"
