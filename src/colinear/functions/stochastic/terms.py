"""All terms of a sum, some at a time, in groups that share a random vector: what the doubly
stochastic estimators multiply.

What the terms are, and how some of them are taken, is for the families to say
(`operators/terms.py`); here they are put into groups, and the groups side by side, as a batch of
operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, adjoint, zeros_like
from ...errors import MethodError
from ...methods.sampling import draw
from ...operators import BatchSum, LinearOperator, LowRank, Product, Sum
from ...operators.terms import InnerTerms, added_parts, some_terms, term_count
from ...operators.tree import Index
from ..common import low_rank_sides, operands_in_context

ROOM = 1 << 21  # numbers in the random vectors of the terms that are taken together


class Terms(NamedTuple):
    """Some of the terms: one operator, or a batch of them along the batch dimension `axis`, whose
    random vectors are to be drawn.

    `share`, if given, says which vector each of the batch takes; `factor` is what the samples are
    to be multiplied by.
    """

    operator: LinearOperator
    axis: int | None = None
    share: Any = None
    factor: Any = 1

    def draw(self, A: LinearOperator, key: Any, kind: str, width: int) -> Array:
        """Random vectors for each term, (*batch, n, width); those of one group are the same."""
        B, device = self.operator, A._context.device
        shape = [*B.batch_shape, B.shape[-1], width]
        if self.axis is None or self.share is None:
            return draw(A.xp, key, kind, tuple(shape), A.dtype, device)
        place = self.axis - 2
        shape[place] = int(self.share[-1]) + 1
        Z = draw(A.xp, key, kind, tuple(shape), A.dtype, device)
        return A.xp.take(Z, Index(self.share).on(A.xp, device), axis=place)


def count_terms(A: LinearOperator) -> int:
    """How many terms a sum has, those that minibatches hold as a whole among them; an error if
    it is no sum."""
    count = sum(_count(part) for _, part in added_parts(A))
    if count < 2 and not isinstance(A, (Sum, BatchSum, Product, LowRank)):
        raise MethodError(
            "Hutchinson: random vectors for each term need a sum (Sum, BatchSum, LowRank or a "
            f"product), and A is {type(A).__name__}. Leave out per_term and batch_size."
        )
    return count


def _count(A: LinearOperator) -> int:
    if isinstance(A, Sum):
        return len(A.operands)
    if isinstance(A, LowRank):
        return A.U.shape[-1]
    count = term_count(A)
    return A.operands[0].shape[-1] if isinstance(A, Product) and count == 1 else count


def terms_of(A: Any, size: int, width: int) -> Iterator[Terms]:
    """All terms, those that share a random vector (`size` neighbours) never apart; as many at a
    time as there is room for."""
    for factor, part in added_parts(A):
        for terms in _terms_of_part(part, size, width):
            yield terms._replace(factor=factor)


def _terms_of_part(A: Any, size: int, width: int) -> Iterator[Terms]:
    n = A.shape[-1] * max(1, math.prod(A.batch_shape)) * width
    groups, count = max(1, ROOM // max(1, n)), _count(A)
    if isinstance(A, Sum):
        operands = operands_in_context(A)
        for start in range(0, count, size):
            yield Terms(reduce(add, operands[start : start + size]))
    elif isinstance(A, BatchSum):
        step = max(size, groups // size * size)
        for start in range(0, count, step):
            stop = min(count, start + step)
            share = None if size == 1 else np.arange(stop - start) // size
            yield Terms(_elements(A, start, stop), A.axis, share)
    elif isinstance(A, (LowRank, Product)):
        for start in range(0, count, groups * size):
            sides = _factors(A, start, min(count, start + groups * size))
            U, V = (_grouped(A.xp, X, size) for X in sides)
            yield Terms(LowRank._of(U, V, None), -1)
    elif count > 1:  # a sum of a user's own
        for start in range(0, count, size):
            yield Terms(some_terms(A, start, min(count, start + size)))
    else:
        yield Terms(A)


def _elements(A: BatchSum, start: int, stop: int) -> LinearOperator:
    """The terms from `start` to `stop`, side by side: a slice, which every family allows, and of
    arrays is no copy."""
    if stop - start == A.terms:
        return A.A
    batch = [slice(None)] * len(A.A.batch_shape)
    batch[A.axis] = slice(start, stop)
    return A.A[(*batch, slice(None), slice(None))]


def _factors(A: Any, start: int, stop: int) -> tuple[Array, Array]:
    """U and V, (*batch, n, stop - start), of the terms from `start` to `stop` of A = U V^H."""
    xp = A.xp
    if isinstance(A, LowRank):
        U, V = low_rank_sides(A)
        return U[..., start:stop], V[..., start:stop]
    # rows cannot be taken by index: columns and rows of the outer factors, by products
    if term_count(A) == 1:
        left, *rest = operands_in_context(A)
        right = rest[0] if len(rest) == 1 else Product(*rest)
        return left[..., start:stop]._dense(), adjoint(xp, right[..., start:stop, :]._dense())
    some = some_terms(A, start, stop)
    assert isinstance(some, InnerTerms)
    V = adjoint(xp, some.right._dense())
    U = V if some.left is None else adjoint(xp, some.left._dense())
    return U * some.weights[..., None, :], V


def _grouped(xp: Any, U: Array, size: int) -> Array:
    """Columns (*batch, n, k) in groups, (*batch, groups, n, size), the last filled up with
    zeros."""
    *batch, n, k = U.shape
    if missing := -k % size:
        U = xp.concat([U, zeros_like(xp, U, (*batch, n, missing))], axis=-1)
    return xp.moveaxis(xp.reshape(U, (*batch, n, -1, size)), -2, -3)
