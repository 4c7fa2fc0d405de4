"""The terms of a sum, some at a time: `Sum`, `BatchSum`, and what is a sum over an inner dimension, U V^H = Σ_k u_k v_k^H."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from ..info import MethodError
from ..operators.base import LinearOperator
from ..operators.batch_sum import BatchSum
from ..operators.fields import Index
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.sum import Sum
from ..operators.transposed import are_adjoint
from ._values import placed

ROOM = 1 << 21  # numbers in the random vectors of the terms that are taken together


class Terms(NamedTuple):
    """Some of the terms: one operator, or a batch of them along the batch dimension `axis`, whose random vectors are to be drawn.

    `share`, if given, says which vector each of the batch takes.
    """

    operator: LinearOperator
    axis: int | None = None
    share: Any = None


def count_terms(A: LinearOperator) -> int:
    """How many terms a sum has; an error if it is none."""
    if isinstance(A, Sum):
        return len(A.operands)
    if isinstance(A, BatchSum):
        return A.terms
    if isinstance(A, Product):
        return A.operands[0].shape[-1]
    if isinstance(A, LowRank):
        return A.U.shape[-1]
    raise MethodError(
        f"Hutchinson: random vectors for each term need a sum (Sum, BatchSum, LowRank or a product), and A is {type(A).__name__}. "
        "Leave out per_term and batch_size."
    )


def terms_of(A: Any, size: int, width: int) -> Iterator[Terms]:
    """All terms, those that share a random vector (`size` neighbours) never apart; as many at a time as there is room for."""
    n = A.shape[-1] * max(1, math.prod(A.batch_shape)) * width
    together = max(1, ROOM // max(1, n))  # groups
    if isinstance(A, Sum):
        operands = placed(A)
        for start in range(0, len(operands), size):
            yield Terms(reduce(add, operands[start : start + size]))
    elif isinstance(A, BatchSum):
        step = max(size, ROOM // max(1, n) // size * size)
        for start in range(0, A.terms, step):
            stop = min(A.terms, start + step)
            yield Terms(_some(A, start, stop), A.axis, None if size == 1 else np.arange(stop - start) // size)
    else:
        columns = count_terms(A)
        for start in range(0, columns, together * size):
            stop = min(columns, start + together * size)
            U, V = _factors(A, start, stop)
            U, V = (None if X is None else _grouped(A.xp, X, size) for X in (U, V))
            yield Terms(LowRank._of(U, V, None), -1)


def _some(A: Any, start: int, stop: int) -> LinearOperator:
    if start == 0 and stop == A.terms:
        return A.A
    batch = [slice(None)] * len(A.A.batch_shape)
    batch[A.axis] = slice(start, stop)
    return A.A[(*batch, slice(None), slice(None))]


def _factors(A: Any, start: int, stop: int) -> tuple[Array, Array | None]:
    """U and V, (*batch, n, stop - start), for the columns from `start` to `stop` of A = U V^H; V is None where it is U."""
    xp = A.xp
    if isinstance(A, LowRank):
        U = A.U if A.core is None else xp.matmul(A.U, A.core)
        V = None if A.core is None and A.V is None else A.U if A.V is None else A.V
        return U[..., start:stop], None if V is None else V[..., start:stop]
    left, *rest = placed(A)
    right = rest[0] if len(rest) == 1 else Product(*rest)
    rows = right[..., start:stop, :].to_dense()
    V = xp.conj(xp.matrix_transpose(rows))
    if are_adjoint(left, right):
        return V, None
    return left[..., start:stop].to_dense(), V


def _grouped(xp: Any, U: Array, size: int) -> Array:
    """Columns (*batch, n, k) in groups, (*batch, groups, n, size), the last filled up with zeros."""
    *batch, n, k = U.shape
    missing = -k % size
    if missing:
        U = xp.concat([U, xp.zeros((*batch, n, missing), dtype=U.dtype, device=xp.device_of(U))], axis=-1)
    return xp.moveaxis(xp.reshape(U, (*batch, n, (k + missing) // size, size)), -2, -3)


def shared_out(A: LinearOperator, terms: Terms, Z: Array) -> Array:
    """The random vectors of groups, one for each term."""
    if terms.share is None or terms.axis is None:
        return Z
    return A.xp.take(Z, Index(terms.share).on(A.xp, A._context.device), axis=terms.axis - 2)


def probe_shape(terms: Terms, width: int) -> tuple[int, ...]:
    """Of the random vectors that these terms need."""
    batch = list(terms.operator.batch_shape)
    if terms.axis is not None and terms.share is not None:
        batch[terms.axis] = int(terms.share[-1]) + 1
    return (*batch, terms.operator.shape[-1], width)
