"""What a factorisation and an iteration would cost: the numbers by which `Auto` decides between them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...operators import Dense, LinearOperator, Sparse
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT

# What a factorisation and an iteration would cost: the numbers by which `Auto` decides between
# them.
#
# Work is counted in flops of a dense factorisation, the fastest there are. Others count more:
# those of a product with a vector wait for memory, those of sparse elimination for the next index,
# and each step of an iteration has its share of Python.
#
# dense     what it takes to form the matrix (n products, unless it is there, or its entries are
# known: `dense_flops`), and n^3 / 3 (self-adjoint) or 2 n^3 /
# 3 sparse    from the envelope of the pattern in the order of Cuthill and McKee: with its mean
# width w, about 4 w^2 log2 n entries
#           and 10 w^3 flops in an order of nested dissection (George 1973; for a square grid exact up to a constant)
# iterated  so many products
#
# `solve` does not guess how many iterations it will take: it tries as many as a part of the work
# of a factorisation pays for, if those are enough to be worth it, and factors if they were not
# enough. `inv`, which has no right side to try, guesses: 20 + 10 sqrt(n) products as for a two-
# dimensional grid, twice that for indefinite A, four times for any other. What does not fit into
# memory is never formed.


MEMORY = 2.0**30  # bytes that a matrix made for the sake of a factorisation may take
PRODUCT = 8.0  # flops of a product with a vector, in those of a dense factorisation
SPARSE = 4.0  # flops of sparse elimination
ENTRY = 2000.0  # of its factors: what it takes to order, find and store one
STEP = 6e5  # of Python, in a step of an iteration: 30 us
SHARE = 4.0  # the part of the work of a factorisation that a try may cost


class Work(NamedTuple):
    """What something costs: `flops` of its own, `work` in flops of a dense factorisation, bytes
    of `memory`."""

    flops: float
    work: float
    memory: float


def dense_work(A: LinearOperator) -> Work:
    """The work of forming the matrix and factoring it."""
    n, ratio = float(A.shape[-1]), 1 / 3 if A.properties & SELF_ADJOINT else 2 / 3
    return _formed_and_factored(A, ratio * n**3, 1)


def least_squares_work(A: LinearOperator) -> Work:
    """The work of forming the matrix, of any shape, and finding A = Q R and the singular values
    of R."""
    m, n, least = *A.shape[-2:], float(min(A.shape[-2:]))
    return _formed_and_factored(A, 2.0 * m * n * least + 12.0 * least**3, 2)


def _formed_and_factored(A: LinearOperator, flops: float, copies: int) -> Work:
    """The work of forming the matrix, and so many flops for each of a batch."""
    formed = A.dense_flops
    factored = math.prod(A.batch_shape) * flops
    memory = float(copies * itemsize(A)) * math.prod(A.shape)
    return Work(formed + factored, PRODUCT / 2 * formed + factored, memory)


def sparse_work(A: Sparse) -> Work:
    """The work of sparse elimination, in an order that keeps the factors sparse."""
    entries, flops = estimated_fill(A.structure)
    count = math.prod(A.batch_shape)
    return Work(
        count * flops,
        count * (SPARSE * flops + ENTRY * entries),
        count * entries * (itemsize(A) + 4.0),
    )


def iterated_work(A: LinearOperator, columns: int = 1, products: float | None = None) -> Work:
    """The work of an iteration for so many right sides, of as many products as are usual where nothing is
    known of the spectrum."""
    n = max(A.shape[-2:])
    if products is None:
        products = min(n, 20 + 10 * math.sqrt(n)) * _hardness(A)
    flops = products * columns * (float(A.flops) + 10.0 * n)
    vectors = 10 if A.properties & SELF_ADJOINT else 34
    memory = float(itemsize(A)) * vectors * columns * n * math.prod(A.batch_shape)
    own = 10.0 * n * products * columns  # of the vectors, which are nearer than A
    return Work(flops, PRODUCT * (flops - own / 2) + STEP * products, memory)


def itemsize(A: LinearOperator) -> int:
    """Bytes of a number that is computed with: half precision is factored, and summed, in
    single."""
    return max(4, getattr(A.dtype, "itemsize", 8))


def _hardness(A: LinearOperator) -> int:
    return 1 if A.properties & POSITIVE_SEMIDEFINITE else 2 if A.properties & SELF_ADJOINT else 4


def estimated_fill(structure: Any) -> tuple[float, float]:
    """The entries of the factors of a square sparse matrix, and the flops of finding them: an
    estimate, in linear time."""
    found = structure.memo.get("fill")
    if found is None and structure.is_triangular:  # substitution: nothing fills in
        return float(structure.nnz + structure.shape[0]), 2.0 * structure.nnz
    if found is None:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        n, nnz = structure.shape[0], structure.nnz
        pattern = csr_array(
            (np.ones(nnz, np.int8), structure.columns, structure.indptr), shape=structure.shape
        )
        place = np.empty(n, np.int64)
        place[reverse_cuthill_mckee(pattern, symmetric_mode=False)] = np.arange(n)
        filled = np.flatnonzero(np.diff(structure.indptr))
        there = place[structure.columns]
        starts = structure.indptr[filled]
        width = np.maximum(place[filled] - np.minimum.reduceat(there, starts), 0).astype(float)
        w = float(width.sum()) / n
        entries = 2 * nnz + min(2 * float(width.sum()), 4 * w * w * math.log2(n + 1))
        found = structure.memo["fill"] = entries, min(float((width**2).sum()), 10 * w**3) + entries
    return found


def prefers_iteration(A: LinearOperator, direct: Work, columns: int = 1) -> bool:
    """Whether an iteration is expected to be cheaper than a factorisation, or all that memory
    allows."""
    if 0 in A.shape or isinstance(A, Dense):
        return False
    return direct.memory > MEMORY or SHARE * iterated_work(A, columns).work < direct.work


def affordable_products(
    A: LinearOperator, direct: Work, columns: int = 1, least: int | None = None
) -> int | None:
    """How many products to try before a factorisation: None for no limit, 0 if fewer than the
    `least` that are worth it."""
    if 0 in A.shape or isinstance(A, Dense):
        return 0
    if direct.memory > MEMORY:
        return None
    paid = int(direct.work / SHARE / iterated_work(A, columns, 1).work)
    return paid if paid >= (least or (30, 60, 200)[_hardness(A) // 2]) else 0


def is_too_large(A: LinearOperator) -> bool:
    """Whether forming the matrix takes more memory than there should be."""
    return not isinstance(A, Dense) and dense_work(A).memory > MEMORY
