"""A_1 A_2 ... A_k of operators whose shapes chain."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

from ..backends import Array, Norm, inner_products
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
from .dense import Dense
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero
from .kronecker import Kronecker
from .neutral import dense_part
from .printing import bracketed
from .scaled import Scaled, multiply_scalars
from .sum import in_context
from .terms import InnerTerms
from .transposed import are_adjoint, are_transposed
from .tree import images, memo, operand_flops, operand_images
from .unitary import Permutation, Sine, bound_by_norm


class Cut(NamedTuple):
    """Where a product L D R is cut to be a sum over the rows of R. Structure alone, no arrays:
    it is remembered across traces."""

    position: int  # of the first factor of R
    terms: int
    same: bool  # whether L is R^H


class Product(LinearOperator, init=False):
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

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        factors = operator_list("Product", operands)
        if len(factors) == 1:
            return factors[0]
        for left, right in pairwise(factors):
            if left.shape[-1] != right.shape[-2]:
                raise ShapeError(
                    f"@: operators of {left.shape[-2]}x{left.shape[-1]} and "
                    f"{right.shape[-2]}x{right.shape[-1]} do not chain."
                )
        batch, context = common_batch("@", factors), common_context("@", factors)
        if len(factors) == 2 and type(factors[0]) is Product and _only_follows(*factors):
            # so that A_1 A_2 ... A_m does not open each product before
            whole: Any = cls._of((*factors[0].operands, factors[1]))
            shape = (*batch, factors[0].shape[-2], factors[1].shape[-1])
            whole.__dict__.update(_context=context, shape=shape)
            return whole
        scalar, parts = _open(factors)
        merged = _merge_neighbours(parts)
        if len(merged) == 1:
            # of P^H P, which is one permutation
            whole = merged[0]._claim(_palindrome(parts) if len(parts) > 1 else 0)
        else:
            whole = cls._of(tuple(merged))
            if claims := _palindrome(merged):
                whole.__dict__["_claims"] = claims
        if scalar is not None:
            # rounding may leave conj(c) c an imaginary part
            whole = Scaled(scalar, whole)._claim(_palindrome(factors))
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

    @property
    def _reciprocals(self) -> Array | None:
        """The reciprocal eigenvalues of the A whose inverse this is, by sine transforms; None of
        other products."""
        if not (isinstance(self.operands[0], Sine) and isinstance(self.operands[1], Diagonal)):
            return None
        return self.xp.stop_gradient(self.operands[1].d)

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        d = self._reciprocals
        least = 0.0 if d is None else float(self.xp.min(self.xp.abs(d)))
        return bound_by_norm(1 / least, X, B) if least > 0 else None

    def _parts_of_bound(self, X: Array, B: Array) -> tuple[Any, ...] | None:
        """The numbers by which that bound is found: 1 / |A|, |x| and |b|, on a device."""
        d = self._reciprocals
        if d is None:
            return None
        norms = (Norm(self.xp.stop_gradient(x), (-2,)) for x in (X, B))
        return (Norm(d, tuple(range(d.ndim)), -math.inf), *norms)

    def _matmat(self, X: Array) -> Array:
        return reduce(lambda Y, factor: factor @ Y, reversed(self.operands), X)

    def _matvec(self, x: Array) -> Array:
        # a batched factor turns the vector into a stack of columns
        is_batched = any(len(factor.shape) > 2 for factor in self.operands)
        return LinearOperator._matvec(self, x) if is_batched else self._matmat(x)

    @memo
    def _cut(self) -> Any:
        """The product cut at its largest inner dimension, where only a diagonal may stand between;
        None where rows cannot be taken."""
        factors = self.operands
        inner = [A.shape[-1] for A in factors[:-1]]
        n = max(inner)
        i, j = inner.index(n), len(inner) - inner[::-1].index(n)
        middle = factors[i + 1 : j]
        if n < 2 or i > 0 or len(middle) > 1 or not all(isinstance(D, Diagonal) for D in middle):
            return None
        same = len(factors) == j + 1 and are_adjoint(factors[0], factors[j])
        has_rows = factors[j]._has_rows and (same or factors[0].H._has_rows)
        return Cut(j, n, same) if has_rows else None

    @property
    def _term_count(self) -> int:
        """A B = sum_k a_k b_k, columns times rows: as many as the largest inner dimension."""
        return 1 if self._cut is None else self._cut.terms

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        factors, (position, _, same) = self.operands, self._cut
        if position == 2:
            weights = weights * self.xp.take(factors[1].d, indices, axis=-1)  # type: ignore[attr-defined]
        right = factors[position]._rows(indices)
        if len(factors) > position + 1:
            right = Product(right, *factors[position + 1 :])
        return InnerTerms._of(None if same else factors[0].H._rows(indices), right, weights)

    @property
    def _has_rows(self) -> bool:
        return self.operands[0]._has_rows

    def _rows(self, indices: Array) -> LinearOperator:
        return Product._of((self.operands[0]._rows(indices), *self.operands[1:]))

    def _to_dense(self) -> Array:
        # From the right, as blocks of columns, or from the left where that side is thinner.
        if self.shape[-2] < self.shape[-1]:
            return self.xp.matrix_transpose(self.T._dense())
        *others, last = self.operands
        if len(others) == 1 and isinstance(last, Dense) and are_adjoint(others[0], last):
            return inner_products(self.xp, last.A, last.A)
        dense = reduce(lambda Y, factor: factor @ Y, reversed(others), dense_part(last, self))
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
        if isinstance(A, (Scaled, ScaledIdentity)):
            c, B = (A.scalar, A.A) if isinstance(A, Scaled) else (A.number, Identity(A.n))
            scalar = c if scalar is None else multiply_scalars(scalar, c)
            stack.append(B)
        elif isinstance(A, Product):
            stack.extend(reversed(A.operands))
        else:
            parts.append(A)
    return scalar, parts


def _merge_neighbours(parts: list[LinearOperator]) -> list[LinearOperator]:
    """Factors merged from left to right; an identity is neutral, a zero absorbs everything."""
    if any(isinstance(A, Zero) for A in parts):
        anchor = next((A for A in parts if not A.is_neutral), None)
        return [Zero(parts[0].shape[-2], parts[-1].shape[-1], like=anchor)]
    merged = parts[:1]
    for A in parts[1:]:
        if isinstance(A, Identity):
            continue
        pair = A if isinstance(merged[-1], Identity) else _merge_pair(merged[-1], A)
        if pair is None:
            merged.append(A)
        else:
            merged[-1] = pair
    return merged


def _only_follows(left: Any, factor: Any) -> bool:
    """Whether a factor neither merges with the last one of a product nor mirrors its first."""
    if isinstance(factor, (Scaled, ScaledIdentity, Product, Identity, Zero)):
        return False
    first, last = left.operands[0], left.operands[-1]
    is_mirrored = are_adjoint(first, factor) or are_transposed(first, factor)
    return not is_mirrored and _merge_pair(last, factor) is None


def _merge_pair(A: Any, B: Any) -> LinearOperator | None:
    """A B as one simple operator, or None."""
    if type(A) is not type(B):
        return None
    if isinstance(A, Diagonal):
        return Diagonal(A.d * B.d)._claim(_palindrome([A, B]))  # conj(d) d is not negative
    if isinstance(A, Permutation):
        return A.compose(B)
    if isinstance(A, Kronecker) and len(A.operands) == len(B.operands):
        pairs = list(zip(A.operands, B.operands))
        if all(a.shape[-1] == b.shape[-2] for a, b in pairs):
            return Kronecker(*(a @ b for a, b in pairs))  # (A⊗B)(C⊗D) = AC ⊗ BD
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
