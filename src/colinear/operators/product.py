"""A_1 A_2 ... A_k of operators whose shapes chain."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Any

from ..backends import Array
from ..errors import ShapeError
from ..properties import (
    POSITIVE_DEFINITE,
    POSITIVE_SEMIDEFINITE,
    SELF_ADJOINT,
    STIEFEL,
    SYMMETRIC,
    UNITARY,
)
from .base import LinearOperator
from .context import common_batch, common_context
from .convert import operator_list
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero
from .kronecker import Kronecker
from .neutral import dense_part
from .printing import bracketed
from .scaled import Scaled, multiply_scalars
from .sum import in_context
from .terms import inner_cut, inner_terms
from .transposed import are_adjoint, are_transposed
from .tree import images, memo, operand_flops, operand_images
from .unitary import Permutation, Sine, bound_by_norm


class Product(LinearOperator):
    """The product of operators: nested products are flattened, scalars pulled out, identities
    dropped, neighbouring diagonals, permutations and fitting Kronecker products merged.

    `B^H M B` is known to be self-adjoint or PSD where M is (`B^H B` is PSD), if B^H was made from B
    as `B.H`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> B = co.Dense(np.ones((3, 2)))
    >>> (B.H @ B).isa(co.PSD)
    True
    """

    operands: tuple[LinearOperator, ...]

    def __new__(cls, *operands: Any) -> Any:
        factors = operator_list("Product", operands)
        for left, right in pairwise(factors):
            if left.shape[-1] != right.shape[-2]:
                raise ShapeError(
                    f"@: operators of {left.shape[-2]}x{left.shape[-1]} and "
                    f"{right.shape[-2]}x{right.shape[-1]} do not chain."
                )
        batch, context = common_batch("@", factors), common_context("@", factors)
        scalar, parts = _open(factors)
        merged = _merge_neighbours(parts)
        if len(merged) == 1:
            # of P^H P, which is one permutation
            claims = _palindrome(parts) if len(parts) > 1 else 0
            whole: Any = merged[0]._claim(claims) if claims else merged[0]
        else:
            whole = cls._of(tuple(merged))
            claims = _palindrome(merged)
            if claims:
                object.__setattr__(whole, "_claims", claims)
        if scalar is not None:
            whole = Scaled(scalar, whole)
            claims = _palindrome(factors)  # rounding may leave conj(c) c an imaginary part
            whole = whole._claim(claims) if claims else whole
        elif len(merged) == len(parts) == len(factors):  # nothing was opened, dropped or merged
            whole.__dict__["_context"] = context
            return whole
        if whole.shape[:-2] == batch and (whole := in_context(whole, context)) is not None:
            return whole
        # a dropped identity or zero gave the product its batch shape or its dtype: keep all
        return cls._of(tuple(factors))

    @memo
    def shape(self) -> tuple[int, ...]:
        return (
            *common_batch("@", self.operands),
            self.operands[0].shape[-2],
            self.operands[-1].shape[-1],
        )

    _inherited = UNITARY | STIEFEL

    _transpose, _adjoint = images(
        lambda self, image: Product(*[image(factor) for factor in reversed(self.operands)])
    )[:2]
    _conj = operand_images[2]

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        if not (isinstance(self.operands[0], Sine) and isinstance(self.operands[1], Diagonal)):
            return None
        # 1 / |A|
        least = float(self.xp.min(self.xp.abs(self.xp.stop_gradient(self.operands[1].d))))
        return bound_by_norm(1 / least, X, B) if least > 0 else None

    def _parts_of_bound(self, X: Array, B: Array) -> tuple[Array, ...] | None:
        """The numbers by which that bound is found: 1 / |A|, |x| and |b|, on a device."""
        if not (isinstance(self.operands[0], Sine) and isinstance(self.operands[1], Diagonal)):
            return None
        xp = self.xp
        d, X, B = (xp.stop_gradient(x) for x in (self.operands[1].d, X, B))
        return xp.min(xp.abs(d)), xp.rough_norm(X, -2), xp.rough_norm(B, -2)

    def _matmat(self, X: Array) -> Array:
        return reduce(lambda Y, factor: factor @ Y, reversed(self.operands), X)

    def _matvec(self, x: Array) -> Array:
        if any(len(factor.shape) > 2 for factor in self.operands):
            # a batched factor turns the vector into a stack of columns
            return self._matmat(x[:, None])[..., 0]
        return self._matmat(x)

    @memo
    def _cut(self) -> Any:
        return inner_cut(self.operands)

    @property
    def _term_count(self) -> int:
        """A B = sum_k a_k b_k, columns times rows: as many as the largest inner dimension."""
        return 1 if self._cut is None else self._cut.terms

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        return inner_terms(self.operands, self._cut, indices, weights)

    @property
    def _has_rows(self) -> bool:
        return self.operands[0]._has_rows

    def _rows(self, indices: Array) -> LinearOperator:
        return Product._of((self.operands[0]._rows(indices), *self.operands[1:]))

    def _to_dense(self) -> Array:
        # From the right, as blocks of columns, or from the left where that side is thinner.
        if self.shape[-2] < self.shape[-1]:
            return self.xp.matrix_transpose(self.T._dense())
        dense = reduce(
            lambda Y, factor: factor @ Y,
            reversed(self.operands[:-1]),
            dense_part(self.operands[-1], self),
        )
        return self.xp.broadcast_to(dense, self.shape)

    _flops = operand_flops

    def _expression(self) -> str:
        text = " @ ".join(bracketed(factor, "") for factor in self.operands[:6])
        return text + (" @ ..." if len(self.operands) > 6 else "")


def _open(factors: list[LinearOperator]) -> tuple[Any, list[LinearOperator]]:
    """The scalar in front, and the factors with nested products and scalars opened."""
    scalar: Any = None
    parts: list[LinearOperator] = []
    stack = list(reversed(factors))
    while stack:
        A = stack.pop()
        if isinstance(A, Scaled) or isinstance(A, ScaledIdentity):
            c = A.scalar if isinstance(A, Scaled) else A.number
            scalar = c if scalar is None else multiply_scalars(scalar, c)
            stack.append(A.A if isinstance(A, Scaled) else Identity(A.shape[-1]))
        elif isinstance(A, Product):
            stack.extend(reversed(A.operands))
        else:
            parts.append(A)
    return scalar, parts


def _merge_neighbours(parts: list[LinearOperator]) -> list[LinearOperator]:
    """Factors merged from left to right; an identity is neutral, a zero absorbs everything."""
    if any(isinstance(A, Zero) for A in parts):
        shape = (parts[0].shape[-2], parts[-1].shape[-1])
        anchor = next((A for A in parts if not A.is_neutral), None)
        return [Zero(*shape, like=anchor)]
    merged: list[LinearOperator] = []
    for A in parts:
        if merged and isinstance(A, Identity):
            continue
        if merged and isinstance(merged[-1], Identity):
            merged[-1] = A
            continue
        pair = _merge_pair(merged[-1], A) if merged else None
        if pair is None:
            merged.append(A)
        else:
            merged[-1] = pair
    return merged


def _merge_pair(A: LinearOperator, B: LinearOperator) -> LinearOperator | None:
    """A B as one simple operator, or None."""
    if type(A) is not type(B):
        return None
    if isinstance(A, Diagonal) and isinstance(B, Diagonal):
        return Diagonal(A.d * B.d)
    if isinstance(A, Permutation) and isinstance(B, Permutation):
        return A.compose(B)
    if isinstance(A, Kronecker) and isinstance(B, Kronecker) and len(A.operands) == len(B.operands):
        if all(a.shape[-1] == b.shape[-2] for a, b in zip(A.operands, B.operands, strict=True)):
            # (A⊗B)(C⊗D) = AC ⊗ BD
            return Kronecker(*(a @ b for a, b in zip(A.operands, B.operands, strict=True)))
    return None


def _palindrome(factors: list[LinearOperator]) -> int:
    """What B^H M B inherits from M (nothing in the middle counts as I)."""
    k = len(factors)
    pairs = [(factors[i], factors[k - 1 - i]) for i in range(k // 2)]
    middle = (
        factors[k // 2].properties
        if k % 2
        else POSITIVE_DEFINITE | POSITIVE_SEMIDEFINITE | SELF_ADJOINT | SYMMETRIC
    )
    mask = 0
    if middle & SELF_ADJOINT and all(are_adjoint(A, B) for A, B in pairs):
        mask |= middle & (SELF_ADJOINT | POSITIVE_SEMIDEFINITE)
    if middle & SYMMETRIC and all(are_transposed(A, B) for A, B in pairs):
        mask |= SYMMETRIC
    return mask
