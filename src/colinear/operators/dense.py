"""A matrix that is stored."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..info import DtypeError
from .base import LinearOperator, conjugate_leaves
from .context import as_array
from .memo import memo


class Dense(LinearOperator):
    """The operator of a matrix, or of a stack of matrices.

    A product costs 2 m n flops. The array is kept as it is, not copied.

    Parameters
    ----------
    A : array of shape (*batch, m, n)
        Integers are promoted to the framework's default float.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Dense([[1, 2], [3, 4]])
    >>> A @ np.array([1.0, 1.0])
    array([3., 7.])
    """

    A: Array

    def __new__(cls, A: Any) -> Dense:
        if isinstance(A, LinearOperator):
            raise DtypeError(f"Dense: expected an array, got the operator {type(A).__name__}. Use Dense(A.to_dense()).")
        return cls._of(as_array(A, "Dense", min_ndim=2))

    @memo
    def shape(self) -> tuple[int, ...]:
        return tuple(self.A.shape)

    def _transpose(self) -> LinearOperator:
        return Dense._of(self.xp.matrix_transpose(self.A))

    def _adjoint(self) -> LinearOperator:
        return Dense._of(self.xp.conj(self.xp.matrix_transpose(self.A)))

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return self.xp.matmul(self.A, X)

    _matvec = _matmat  # matmul's rule for a 1-D right side is ours

    def _rows(self, indices: Array) -> LinearOperator:
        return Dense._of(self.A[..., indices, :])  # NumPy's take would copy all of a transposed matrix first

    def _right_matmat(self, X: Array) -> Array:
        return self.xp.matmul(X, self.xp.matrix_transpose(self.A))  # in the order that is needed next, so nothing is copied

    def _to_dense(self) -> Array:
        return self.A
