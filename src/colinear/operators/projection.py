"""Orthogonal projections, Q Q^H."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..info import ShapeError
from ..properties import POSITIVE_SEMIDEFINITE
from .base import LinearOperator, conjugate_leaves
from .context import as_array


class Projection(LinearOperator):
    """The orthogonal projection `Q Q^H` onto the range of Q, whose columns must be orthonormal. A product costs O(n r).

    That `Q^H Q = I` is taken at your word: it is what makes this a projection (its own square, eigenvalues 0 and 1), and rules
    use it. For any other basis B take `Q, R = qr(B)` first. `Q Q^H` for a general Q is `LowRank(Q)`.

    Parameters
    ----------
    Q : array, (*batch, n, r), r <= n

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Projection(np.array([[1.0], [0.0]])) @ np.array([2.0, 3.0])
    array([2., 0.])
    """

    Q: Array

    def __new__(cls, Q: Any) -> Any:
        Q = as_array(Q, "Projection: Q", min_ndim=2)
        n, r = Q.shape[-2:]
        if r > n:
            raise ShapeError(f"Projection: Q is {n}x{r}; orthonormal columns need at least as many rows as columns.")
        return cls._of(Q)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.Q.shape[:-1], self.Q.shape[-2])

    def _infer(self) -> int:
        return POSITIVE_SEMIDEFINITE

    _conj = conjugate_leaves

    def _transpose(self) -> LinearOperator:
        return self.conj()

    def _adjoint(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.matmul(self.Q, xp.matmul(xp.conj(xp.matrix_transpose(self.Q)), X))

    def _to_dense(self) -> Array:
        return self.xp.matmul(self.Q, self.xp.conj(self.xp.matrix_transpose(self.Q)))

    @property
    def _flops(self) -> float:
        return 4.0 * self.Q.shape[-2] * self.Q.shape[-1]

    def _expression(self) -> str:
        return f"Projection({'x'.join(map(str, self.shape))}, rank {self.Q.shape[-1]})"
