"""A matrix that is stored, and a triangle of one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, adjoint, inner_products, mesh_module
from ..errors import DtypeError
from .base import LinearOperator
from .context import as_array, kind_of, of_array
from .streamed import BLOCK_BYTES, is_lazy, multiply_by_blocks, streamed
from .transposed import Adjoint, Conjugate, Transpose
from .tree import Shape, conjugate_leaves, memo

# A matrix that is stored.


class Dense(LinearOperator, init=False):
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
        if hasattr(A, "chunks") and is_lazy(A):
            return streamed(A, "Dense")  # type: ignore[return-value]
        return of_array(cls, "A", A := as_array(A, "Dense", min_ndim=2), tuple(A.shape))

    @memo
    def shape(self) -> Shape:
        return tuple(self.A.shape)

    def _transpose(self) -> LinearOperator:
        if self._is_cut:
            return Transpose._of(self)
        return Dense._of(self.xp.matrix_transpose(self.A))

    def _adjoint(self) -> LinearOperator:
        if self._is_cut or self._is_copied_by_conjugation:
            return Adjoint._of(self)
        return Dense._of(adjoint(self.xp, self.A))

    @property
    def _is_cut(self) -> bool:
        """Whether a transpose would be another array, which takes as much memory of every device
        of a mesh: in JAX it would, and A^T B is as quick."""
        return self.xp.is_functional and mesh_module(self._context.device) is not None

    @property
    def _is_copied_by_conjugation(self) -> bool:
        """Whether the conjugate would be a copy of a file."""
        return self.is_complex and self._is_out_of_core

    def _conj(self) -> LinearOperator:
        return Conjugate._of(self) if self._is_copied_by_conjugation else conjugate_leaves(self)

    def _matmat(self, X: Array) -> Array:
        if self.xp.is_functional and (X.ndim == 1 or X.shape[-1] == 1):
            transposed = self.__dict__.get("_transpose_of")
            if isinstance(transposed, Dense):  # x^T A^T: XLA would copy A to multiply one vector
                xp, A = self.xp, transposed.A
                if X.ndim == 1:
                    return xp.matmul(X, A)
                return xp.matrix_transpose(xp.matmul(xp.matrix_transpose(X), A))
        return multiply_by_blocks(self.A, X) if self._is_long else self.xp.matmul(self.A, X)

    @memo
    def _is_long(self) -> bool:
        """Whether it is an array of NumPy so large that BLAS must not be given a copy."""
        return isinstance(self.A, np.ndarray) and self.A.nbytes > BLOCK_BYTES

    def _summed_matmat(self, X: Array, axis: int) -> Array:
        if not self._is_long or self.A.ndim != 3 or X.ndim != 2:
            return LinearOperator._summed_matmat(self, X, axis)
        step = max(1, BLOCK_BYTES * len(self.A) // self.A.nbytes)
        blocks = (self.A[i : i + step] for i in range(0, len(self.A), step))
        total: Any = 0
        for block in blocks:
            total = total + np.matmul(block, X).sum(0)
        return total

    _matvec = _matmat  # matmul's rule for a 1-D right side is ours

    def _rmatmat(self, X: Array) -> Array:
        return inner_products(self.xp, self.A, X)

    def _rows(self, indices: Array) -> LinearOperator:
        # NumPy's take would copy all of a transposed matrix first
        return Dense._of(self.A[..., indices, :])

    def _right_matmat(self, X: Array) -> Array:
        xp = self.xp
        if xp.is_functional:  # XLA copies transposes: those of X wait for it, that of A is one more
            # of the first kernels, of which more than nine are run in other threads
            return xp.matrix_transpose(xp.matmul(self.A, xp.matrix_transpose(X)))
        # in the order that is needed next, so nothing is copied
        return xp.matmul(X, xp.matrix_transpose(self.A))

    def _to_dense(self) -> Array:
        return self.A

    _dense_flops = 0.0


# A triangular matrix, read from one half of a stored one.


class Triangular(LinearOperator, init=False):
    """The lower or upper triangle of a matrix. The other half is never read, whatever it holds.

    A product costs n^2 flops, a solve as many.

    Parameters
    ----------
    A : array of shape (*batch, m, n)
        Usually square; a trapezium (of a rectangular LU or QR) multiplies too.
    lower : bool
        Which triangle.
    unit : bool
        Whether the diagonal is taken to be all ones, whatever A holds there.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Triangular(np.full((2, 2), 3.0), unit=True).to_dense()
    array([[1., 0.],
           [3., 1.]])
    """

    A: Array
    lower: bool
    unit: bool

    def __new__(cls, A: Any, lower: bool = True, unit: bool = False) -> Triangular:
        for name, value in (("lower", lower), ("unit", unit)):
            if not isinstance(value, (bool, int)) or value not in (0, 1):
                raise DtypeError(f"Triangular: {name}={value!r}; expected True or False.")
        return cls._of(as_array(A, "Triangular", min_ndim=2), bool(lower), bool(unit))

    @memo
    def shape(self) -> Shape:
        return tuple(self.A.shape)

    def _transpose(self) -> LinearOperator:
        return Triangular._of(self.xp.matrix_transpose(self.A), not self.lower, self.unit)

    _conj = conjugate_leaves

    @property
    def _matrix(self) -> Array:
        """The triangle with zeros beside it. Not kept: an array that is changed in place changes
        the operator."""
        xp = self.xp
        half = xp.tril if self.lower else xp.triu
        if not self.unit:
            return half(self.A)
        ones = xp.eye(*self.A.shape[-2:], **kind_of(self.A))
        return half(self.A, -1 if self.lower else 1) + ones

    def _matmat(self, X: Array) -> Array:
        A: Any = self.A
        if (
            type(X) is np.ndarray
            and X.dtype == A.dtype
            and X.dtype.char in _BLAS
            and X.ndim <= A.ndim == 2
            and A.shape[0] == A.shape[1] > 0
            and A.flags.forc
        ):
            # masking would take several times as long as the product
            return _multiply(A, X, self.lower, self.unit)
        return self.xp.matmul(self._matrix, X)

    _matvec = _matmat

    def _to_dense(self) -> Array:
        return self._matrix

    @property
    def _flops(self) -> float:
        m, n = self.shape[-2:]
        return m * n

    def _expression(self) -> str:
        shape = "x".join(map(str, self.shape))
        return (
            f"Triangular({shape}, "
            f"{'lower' if self.lower else 'upper'}{', unit' if self.unit else ''})"
        )


_BLAS = {"f": "s", "d": "d", "F": "c", "D": "z"}  # by NumPy's letter for the dtype


def _multiply(A: Any, X: Any, lower: bool, unit: bool) -> Any:
    """T X in NumPy, by BLAS, which reads one half of A only. BLAS stores by columns: to it an
    array stored by rows is A^T."""
    from scipy.linalg import blas

    by_rows, letter = bool(A.flags.c_contiguous), _BLAS[A.dtype.char]
    stored, low = (A.T, not lower) if by_rows else (A, lower)
    if X.ndim == 1:
        return getattr(blas, letter + "trmv")(stored, X, lower=low, trans=by_rows, diag=unit)
    if not X.shape[1]:
        return np.zeros(X.shape, X.dtype)
    # T X = (X^T T^T)^T
    return getattr(blas, letter + "trmm")(
        1.0, stored, X.T, side=1, lower=low, trans_a=not by_rows, diag=unit
    ).T
