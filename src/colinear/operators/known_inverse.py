"""A^-1 by an inverse that is at hand, differentiated by the equation A x = b instead of by how it was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array, namespace_of
from .base import LinearOperator
from .context import Context, broadcast_batches
from .fields import rebuilt
from .memo import memo


class KnownInverse(LinearOperator):
    """The inverse of A, multiplied by as `inverse`, which is a constant: dx = A^-1 (db - dA x), of which both are known.

    An inverse by eigenvectors has no derivative of its own where eigenvalues repeat; the solution has one all the same.

    Attributes
    ----------
    find : callable, optional
        `find(A, method)`: the inverse once more, with derivatives of its own.
    """

    A: LinearOperator
    inverse: LinearOperator
    find: Callable[[Any, Any], LinearOperator] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        return KnownInverse._of(self.A.T, self.inverse.T, None)

    def _adjoint(self) -> LinearOperator:
        return KnownInverse._of(self.A.H, self.inverse.H, None)

    def _conj(self) -> LinearOperator:
        return KnownInverse._of(self.A.conj(), self.inverse.conj(), None)

    def _matmat(self, X: Array) -> Array:
        xp, A, known = self.xp, self.A, self.inverse
        own = tuple(leaf for leaf in A.leaves() if namespace_of(leaf) is xp)
        constants = tuple(xp.stop_gradient(leaf) for leaf in known.leaves() if namespace_of(leaf) is xp)
        X = xp.astype(X, xp.result_type(A.dtype, X.dtype))
        X = xp.broadcast_to(X, (*broadcast_batches(A.batch_shape, X.shape[:-2]), *X.shape[-2:]))

        def multiply(X: Array, *leaves: Array) -> Array:
            return rebuilt(A, leaves[: len(own)]) @ X

        def solve(B: Array, *leaves: Array) -> tuple[Array, None]:
            return rebuilt(known, leaves[len(own) :]) @ B, None

        def multiply_transposed(X: Array, *leaves: Array) -> Array:
            return rebuilt(A, leaves[: len(own)]).T @ X

        def solve_transposed(B: Array, *leaves: Array) -> tuple[Array, None]:
            return rebuilt(known, leaves[len(own) :]).T @ B, None

        solution: Array = xp.linear_solve(multiply, solve, (multiply_transposed, solve_transposed), X, (*own, *constants))[0]
        return solution

    @property
    def _flops(self) -> float:
        return self.inverse.flops
