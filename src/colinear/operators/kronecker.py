"""A ⊗ B ⊗ ... and A ⊕ B ⊕ ... = A ⊗ I + I ⊗ B: multiplied factor by factor, never formed."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..properties import ALL_PROPERTIES
from .banded import Tridiagonal, multiply_both_ways
from .base import LinearOperator
from .context import common_batch, common_context, known_in
from .convert import flattened, operator_list
from .diagonal import Identity, Zero
from .neutral import dense_part
from .printing import bracketed
from .scaled import Scaled, pull_scalars, unscaled
from .tree import Shape, infer_sum, known_of_sum, memo, operand_images, shared


class Kronecker(LinearOperator, init=False):
    """The Kronecker product of operators, `numpy.kron` of their matrices.

    A product with a vector costs one product with each factor, for blocks of the remaining sizes:
    for two n x n factors 4 n^3 operations instead of 2 n^4. Nested products are flattened and
    scalars pulled out.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Kronecker(np.eye(2), [[1.0, 2.0], [3.0, 4.0]])
    >>> A @ np.arange(4.0)
    array([ 2.,  4.,  8., 18.])
    """

    operands: tuple[LinearOperator, ...]

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        given = operator_list("Kronecker", operands)
        scalar, parts = pull_scalars(given)
        factors = flattened(Kronecker, parts)
        rows = columns = 1
        for A in parts:
            rows, columns = rows * A.shape[-2], columns * A.shape[-1]
        batch = common_batch("Kronecker", factors)
        context = common_context("Kronecker", factors)
        kinds = set(map(type, factors))
        if len(factors) == 1:
            whole: Any = factors[0]
        elif context.backend is None and kinds == {Identity}:
            whole = Identity(rows)
        elif Zero in kinds and not batch:
            whole = Zero(rows, columns, like=next((A for A in factors if not A.is_neutral), None))
        else:
            whole = cls._of(tuple(factors))
            whole.__dict__.update(known_in(context), shape=(*batch, rows, columns))
        whole = whole if scalar is None else Scaled(scalar, whole)
        # what was claimed of a nested product
        return whole if len(factors) == len(given) else whole._claim(shared(given))

    @memo
    def shape(self) -> Shape:
        return (*common_batch("", self.operands), *_sizes(self.operands))

    _inherited = ALL_PROPERTIES  # each holds if every factor has it

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        # The axes of X are (n_1, ..., n_d, k). Each factor multiplies the leading axis, which is
        # then rotated to the end, so every product is one large matrix product; after d rotations
        # the axes are (k, m_1, ..., m_d).
        xp, k = namespace_of(X), X.shape[-1]
        # (A ⊗ B) vec(X) = vec(A X B^T): no axis need be moved
        if k == 1 and len(self.operands) == 2 and len(self.shape) == 2:
            first, last = self.operands
            grid = X.reshape((*X.shape[:-2], first.shape[-1], last.shape[-1]))
            return last._right_matmat(first @ grid).reshape((*X.shape[:-2], self.shape[-2], 1))
        Y = X
        for A in self.operands:
            Y = xp.matrix_transpose(A @ rows_first(xp, Y, A.shape[-1]))
        Y = xp.reshape(Y, (*Y.shape[:-2], k, self.shape[-2]))
        return xp.matrix_transpose(Y)

    def _to_dense(self) -> Array:
        def kron(P: Array, Q: Array) -> Array:
            blocks = P[..., :, None, :, None] * Q[..., None, :, None, :]
            return self.xp.reshape(
                blocks, (*blocks.shape[:-4], P.shape[-2] * Q.shape[-2], P.shape[-1] * Q.shape[-1])
            )

        return reduce(kron, (dense_part(A, self) for A in self.operands))

    @property
    def _flops(self) -> float:
        total, size = 0.0, math.prod(A.shape[-1] for A in self.operands)
        for A in self.operands:
            rest = size / max(A.shape[-1], 1)
            total += rest * A.flops
            size = int(rest * A.shape[-2])
        return total

    def _expression(self) -> str:
        return " ⊗ ".join(bracketed(A, "⊗") for A in self.operands)


class KroneckerSum(LinearOperator, init=False):
    """The Kronecker sum `A ⊗ I + I ⊗ B` (and so on for more) of square operators: Laplacians on
    grids, for example.

    Examples
    --------
    >>> import colinear as co
    >>> co.KroneckerSum(co.Diagonal([1.0, 2.0]), co.Diagonal([10.0, 20.0])).to_dense().diagonal()
    array([11., 21., 12., 22.])
    """

    operands: tuple[LinearOperator, ...]

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        given = operator_list("KroneckerSum", operands)
        for A in given:
            if A.shape[-1] != A.shape[-2]:
                raise ShapeError(
                    f"KroneckerSum: a term is {A.shape[-2]}x{A.shape[-1]}; all must be square."
                )
        terms = flattened(KroneckerSum, given)
        common_batch("KroneckerSum", terms)
        common_context("KroneckerSum", terms)
        if len(terms) == len(given) == 1:
            return terms[0]
        whole = cls._of(tuple(terms))
        # what was claimed of a nested sum
        return whole if len(terms) == len(given) else whole._claim(known_of_sum(given))

    @memo
    def shape(self) -> Shape:
        return (*common_batch("", self.operands), *_sizes(self.operands))

    _infer = infer_sum

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        # As for Kronecker, but the operand and the running total are rotated side by side.
        xp, k = namespace_of(X), X.shape[-1]
        # vec(A X + X B^T): no axis need be moved
        if k == 1 and len(self.operands) == 2 and len(self.shape) == 2:
            first, last = self.operands
            grid = xp.reshape(X, (*X.shape[:-2], first.shape[-1], last.shape[-1]))
            if (
                xp.name == "numpy"
                and isinstance(first, Tridiagonal)
                and isinstance(last, Tridiagonal)
            ):
                both = multiply_both_ways(first, last, grid)
            else:
                both = first @ grid + last._right_matmat(grid)
            return xp.reshape(both, (*X.shape[:-2], self.shape[-2], 1))
        Y: Array = X
        total: Array = None
        for A in self.operands:
            Y = rows_first(xp, Y, A.shape[-1])
            total = A @ Y if total is None else rows_first(xp, total, A.shape[-1]) + A @ Y
            Y, total = xp.matrix_transpose(Y), xp.matrix_transpose(total)
        total = xp.reshape(total, (*total.shape[:-2], k, self.shape[-1]))
        return xp.matrix_transpose(total)

    @property
    def _flops(self) -> float:
        n = self.shape[-1]
        return sum(n / max(A.shape[-1], 1) * A.flops + n for A in self.operands)

    def _expression(self) -> str:
        return " ⊕ ".join(bracketed(A, "⊕") for A in self.operands)


def _sizes(operands: Any) -> Shape:
    """How many rows and columns their Kronecker product has."""
    return math.prod([A.shape[-2] for A in operands]), math.prod([A.shape[-1] for A in operands])


def rows_first(xp: Any, Y: Array, n: int) -> Array:
    """(*batch, a, b) -> (*batch, n, a b / n), in row-major order. The width is computed: -1 is
    refused for empty arrays."""
    width = Y.shape[-2] * Y.shape[-1] // n if n else 0
    return xp.reshape(Y, (*Y.shape[:-2], n, width))


# What the terms of a sum of Kronecker products have in common.


def are_same(A: LinearOperator, B: LinearOperator) -> bool:
    """Whether A = B is known, because they are one operator or hold the same arrays (never by
    comparing numbers)."""
    if A is B:
        return True
    if type(A) is not type(B) or A.operands or A.shape != B.shape:
        return False
    is_alike = A._flatten()[1][:2] == B._flatten()[1][:2]
    return is_alike and all(x is y for x, y in zip(A.leaves(), B.leaves(), strict=True))


def kronecker_terms(A: Any) -> list[tuple[Any, tuple[LinearOperator, ...]]]:
    """The scalar and the factors of each term that is a multiple of a Kronecker product."""
    return [
        (1.0 if c is None else c, B.operands)
        for c, B in map(unscaled, A.operands)
        if isinstance(B, Kronecker)
    ]


def differing_factors(A: Any) -> list[int] | None:
    """The places where the factors of the terms are not the same; None where the terms do not
    fit."""
    terms = [factors for _, factors in kronecker_terms(A)]
    sizes = [[factor.shape for factor in factors] for factors in terms]
    if len(terms) < len(A.operands) or any(each != sizes[0] for each in sizes):
        return None
    return [
        i
        for i, (first, *rest) in enumerate(zip(*terms))
        if not all(are_same(first, other) for other in rest)
    ]
