"""The entrywise product of operators."""

from __future__ import annotations

from functools import reduce
from typing import Any, ClassVar

from ..backends import Array, namespace_of
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC, shared
from .base import LinearOperator
from .context import common_context
from .convert import operator_list
from .diagonal import Diagonal
from .neutral import dense_part
from .printing import bracketed
from .scaled import Scaled, multiply_scalars
from .sum import fitting_terms
from .tree import adjoint_operands, conjugate_operands, memo, transpose_operands

_BLOCK_ENTRIES = 1 << 20  # how many entries of each factor are held at a time


class Hadamard(LinearOperator):
    """The entrywise product `A * B`, `numpy.multiply` of the matrices. It multiplies in blocks of
    rows and is never formed whole.

    Cost: the rows of each factor, obtained through its transpose, for every product. The Schur
    product theorem makes it PSD where the factors are.

    Examples
    --------
    >>> import colinear as co
    >>> A = co.Toeplitz([1.0, 2.0]) * co.Dense([[1.0, 10.0], [100.0, 1000.0]])
    >>> A.to_dense()
    array([[   1.,   20.],
           [ 200., 1000.]])
    """

    operands: tuple[LinearOperator, ...]
    _commutative: ClassVar[bool] = True

    def __new__(cls, *operands: Any) -> Any:
        scalar: Any = None
        factors: list[LinearOperator] = []
        for A in operator_list("Hadamard", operands):
            if isinstance(A, Scaled):
                scalar = A.scalar if scalar is None else multiply_scalars(scalar, A.scalar)
                A = A.A
            factors.extend(A.operands if isinstance(A, Hadamard) else (A,))
        fitting_terms("*", factors)
        common_context("*", factors)
        if all(isinstance(A, Diagonal) for A in factors):
            whole: Any = Diagonal(reduce(lambda d, A: d * A.d, factors[1:], factors[0].d))  # type: ignore[attr-defined]
        else:
            whole = factors[0] if len(factors) == 1 else cls._of(tuple(factors))
        return whole if scalar is None else Scaled(scalar, whole)

    @memo
    def shape(self) -> tuple[int, ...]:
        return (*fitting_terms("*", self.operands), *self.operands[0].shape[-2:])

    def _infer(self) -> int:
        mask = shared(self.operands)
        return mask & (SELF_ADJOINT | SYMMETRIC | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE)

    _transpose, _adjoint, _conj = transpose_operands, adjoint_operands, conjugate_operands

    def _matmat(self, X: Array) -> Array:
        xp, (m, n) = namespace_of(X), self.shape[-2:]
        height = max(1, min(m, _BLOCK_ENTRIES // max(n, 1)))
        transposes = [A.T for A in self.operands]
        blocks = []
        for start in range(0, m, height):
            stop = min(start + height, m)
            # Columns start..stop of the identity pick these rows: A[rows] = (A^T E)^T.
            device = xp.device_of(X)
            dtype = X.dtype if self.is_neutral else self.dtype
            E = xp.astype(
                xp.arange(m, device=device)[:, None] == xp.arange(start, stop, device=device), dtype
            )
            rows = reduce(lambda P, B: P * (B @ E), transposes[1:], transposes[0] @ E)
            blocks.append(xp.matmul(xp.matrix_transpose(rows), X))
        return xp.concat(blocks, axis=-2) if blocks else self.operands[0] @ X

    def _to_dense(self) -> Array:
        dense = reduce(
            lambda P, A: P * dense_part(A, self),
            self.operands[1:],
            dense_part(self.operands[0], self),
        )
        return self.xp.broadcast_to(dense, self.shape)

    @property
    def _flops(self) -> float:
        return (
            self.shape[-2] * sum(A.flops for A in self.operands)
            + 2.0 * self.shape[-2] * self.shape[-1]
        )

    def _expression(self) -> str:
        return " * ".join(bracketed(A, "*") for A in self.operands)
