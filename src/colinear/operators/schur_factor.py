"""The inverse of A ⊕ B ⊕ ... ⊕ c I from the Schur forms of the terms, in every framework: for terms without good eigenvectors."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array, namespace_of
from .base import LinearOperator, conjugate_leaves


class SchurFactor(LinearOperator):
    """(A ⊕ B ⊕ ...)^-1 for A = Q T Q^H and so on: the sum of the triangles T is solved row by row, the last one at once.

    Attributes
    ----------
    bases, triangles : tuple of arrays
        Q and upper triangular T of every term, complex. They are held fixed: derivatives do not go through them.
    form : str
        "N" for the inverse and "H" for its adjoint.
    real : bool
        Whether all terms are.
    """

    bases: tuple[Array, ...]
    triangles: tuple[Array, ...]
    form: str
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        n = math.prod([T.shape[-1] for T in self.triangles])
        return (n, n)

    def _adjoint(self) -> LinearOperator:
        return self._replace(form="H" if self.form == "N" else "N")

    def _conj(self) -> LinearOperator:
        return self if self.real else conjugate_leaves(self)

    def _transpose(self) -> LinearOperator:
        return self._adjoint()._conj()

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        Y = self._changed(xp, xp.astype(X, xp.result_type(X.dtype, self.triangles[0].dtype)), to_schur=True)
        Y = self._changed(xp, self._solved(xp, 0, 0.0, Y), to_schur=False)
        return xp.astype(xp.real(Y), X.dtype) if self.real and not xp.is_complex(X) else Y

    def _changed(self, xp: Any, X: Array, to_schur: bool) -> Array:
        """Q^H ⊗ P^H ⊗ ... or Q ⊗ P ⊗ ... times X: each factor multiplies the leading axis, which is then moved to the end."""
        batch, k, Y = X.shape[:-2], X.shape[-1], X
        for Q in self.bases:
            Q = xp.conj(xp.matrix_transpose(Q)) if to_schur else Q
            Y = xp.matmul(Q, xp.reshape(Y, (*batch, Q.shape[-1], self.shape[-1] * k // Q.shape[-1])))
            Y = xp.matrix_transpose(Y)
        return xp.matrix_transpose(xp.reshape(Y, (*batch, k, self.shape[-1])))

    def _solved(self, xp: Any, level: int, shift: Any, C: Array) -> Array:
        """(T_level ⊕ ... ⊕ T_last + shift I)^-1 C, or its adjoint's, from the last row up, or from the first one down."""
        T, adjoint = self.triangles[level], self.form == "H"
        n = T.shape[-1]
        if level == len(self.triangles) - 1:
            M = T + shift * xp.eye(n, dtype=T.dtype, device=xp.device_of(T))
            return xp.solve_triangular(xp.broadcast_to(M, (*C.shape[:-2], n, n)), C, lower=False, adjoint=adjoint)
        rows = xp.reshape(C, (*C.shape[:-2], n, C.shape[-2] // n, C.shape[-1]))
        found: dict[int, Array] = {}
        for i in range(n) if adjoint else reversed(range(n)):
            row = rows[..., i, :, :]
            for j, Y in found.items():
                row = row - (xp.conj(T[j, i]) if adjoint else T[i, j]) * Y
            found[i] = self._solved(xp, level + 1, shift + T[i, i], row)
        return xp.reshape(xp.stack([found[i] for i in range(n)], axis=-3), C.shape)

    @property
    def _flops(self) -> float:
        return 10.0 * self.shape[-1] * sum(T.shape[-1] for T in self.triangles)
