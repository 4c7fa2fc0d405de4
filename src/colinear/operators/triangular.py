"""A triangular matrix, read from one half of a stored one."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..info import DtypeError
from .base import LinearOperator, conjugate_leaves
from .context import as_array


class Triangular(LinearOperator):
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
        if isinstance(A, LinearOperator):
            raise DtypeError(f"Triangular: expected an array, got the operator {type(A).__name__}. Use A.to_dense().")
        return cls._of(as_array(A, "Triangular", min_ndim=2), bool(lower), bool(unit))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.A.shape)

    def _transpose(self) -> LinearOperator:
        return Triangular._of(self.xp.matrix_transpose(self.A), not self.lower, self.unit)

    _conj = conjugate_leaves

    @property
    def _matrix(self) -> Array:
        """The triangle with zeros beside it.

        NumPy's mask costs several products, so there it is kept. In torch and JAX it is cheap, and a kept one could hold a graph,
        or a tracer that outlives its trace.
        """
        kept = self.__dict__.get("_kept")
        if kept is not None:
            return kept
        xp = self.xp
        half = xp.tril if self.lower else xp.triu
        if self.unit:
            ones = xp.eye(*self.A.shape[-2:], dtype=self.A.dtype, device=xp.device_of(self.A))
            matrix = half(self.A, -1 if self.lower else 1) + ones
        else:
            matrix = half(self.A)
        if xp.name == "numpy":
            self.__dict__["_kept"] = matrix
        return matrix

    def _matmat(self, X: Array) -> Array:
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
        return f"Triangular({shape}, {'lower' if self.lower else 'upper'}{', unit' if self.unit else ''})"
