"""What a factorisation and an iteration would cost: the numbers by which `Auto` decides between them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...dispatch import Cost
from ...operators import (
    Circulant,
    Convolution,
    Dense,
    Kernel,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Sparse,
    Toeplitz,
)
from ...operators.autograd import make_ready
from ...operators.tree import inside_out
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...rates import LONG_CALL_S, calibrate_once, memory_to_form, rates_of, rows_in_memory
from ..common import is_square, is_stored, itemsize

# What a factorisation and an iteration would cost: the numbers by which `Auto` decides between
# them, in seconds, which the rates of this machine (`rates.py`) make of unlike kinds of work.
#
# dense     what it takes to form the matrix (n products, unless it is there, or its entries are
#           known: `dense_flops`), and n^3 / 3 (self-adjoint) or 2 n^3 / 3 flops
# sparse    from the envelope of the pattern in the order of Cuthill and McKee: with its mean
#           width w, about 4 w^2 log2 n entries and 10 w^3 flops in an order of nested dissection
#           (George 1973; for a square grid exact up to a constant)
# iterated  so many products, vectors and steps
#
# `solve` does not guess how many iterations it will take: it tries as many as a part of the time
# of a factorisation pays for, if those are enough to be worth it, and factors if they were not
# enough. `inv`, which has no right side to try, guesses: 20 + 10 sqrt(n) products as for a two-
# dimensional grid, twice that for indefinite A, four times for any other. What does not fit into
# memory is never formed.


SHARE = 4.0  # the part of the time of a factorisation that a try may cost
SHARE_OF_MEMORY_ROWS = 1 / 64  # that a matrix may take where a rule's own way fails


def largest_dense(A: LinearOperator) -> float:
    """The rows of a matrix that is still formed where a rule's own way fails."""
    return rows_in_memory(A, SHARE_OF_MEMORY_ROWS, 5000.0)


# How fast algorithms of LAPACK are beside Cholesky's, by the flops that are counted for them.
PACE = {"QR": 0.3, "Eigh": 1.6, "Eig": 0.7, "SVD": 2.0}


def lapack_cost(A: LinearOperator, flops: float, memory: float, name: str = "") -> Cost:
    """The cost of an algorithm on the matrix of A, which is formed in blocks of columns if it is not
    there: these are twice as quick as single ones."""
    formed = A.dense_flops
    seconds = rates_of(A).factor(flops, min(A.shape[-2:])) / PACE.get(name, 1.0)
    seconds += formed / (2 * product_rate(A)) if formed else 0.0
    return Cost(formed + flops, memory, seconds)


def matrix_cost(A: LinearOperator, flops: float, bytes_held: float, name: str = "") -> Cost:
    """The cost of an algorithm on the matrix that takes so many flops for each entry and each
    column (or row, if these are fewer), and so many bytes for each entry."""
    size = math.prod(A.shape)
    return lapack_cost(A, flops * min(A.shape[-2:]) * size, bytes_held * size, name)


PART_OF_CALL = (
    1 / 8
)  # of the time of a call, that each operand takes in a product beside its arithmetic


def products_cost(
    A: LinearOperator, products: float, flops: float, memory: float, columns: int = 1
) -> Cost:
    """The cost of so many products with a block of columns, each with so many flops of vectors
    beside it, in as many steps; and of storing the kernels first."""
    rates, parts = rates_of(A), sum(1 for _ in inside_out(A))
    ready = make_ready(A, is_planned=True)
    first = Cost(0.0, memory, 0.0)
    if ready is not A:
        first += Cost(A.flops, float(ready.nbytes), A.flops / product_rate(A))
    step = columns * (ready.flops / product_rate(ready) + flops / rates.vector) + rates.step
    step += (parts - 1) * PART_OF_CALL * rates.call
    return first + Cost(products * columns * (ready.flops + flops), 0.0, products * step)


KERNEL_SLOWNESS = 20.0  # of the flops that are counted for a kernel, beside sums of vectors
FUSED_SPEED = 10.0  # of these, where no entry is written, beside a factorisation


def product_rate(A: LinearOperator) -> float:
    """Flops a second of a product of A with a vector, by what A is made of."""
    rates, parts = rates_of(A), list(inside_out(A))
    is_kronecker = any(isinstance(part, Kronecker | KroneckerSum) for part in parts)
    flops = seconds = 0.0
    for part in parts:
        if part.operands:
            continue
        rate = rates.product
        if isinstance(part, Sparse):
            rate = rates.sparse
        elif isinstance(part, Circulant | Convolution | Toeplitz):
            rate = rates.fourier
        elif isinstance(part, Kernel):
            is_fused = part._fused() is not None
            rate = rates.dense * FUSED_SPEED if is_fused else rates.vector / KERNEL_SLOWNESS
        elif is_kronecker and isinstance(part, Dense):  # which multiplies matrices
            rate = max(rate, part.flops / rates.factor(part.flops, part.shape[-1]))
        flops, seconds = flops + part.flops, seconds + part.flops / rate
    return flops / seconds if seconds else rates.product


def dense_work(A: LinearOperator) -> Cost:
    """The cost of forming the matrix and factoring it."""
    n, ratio = float(A.shape[-1]), 1 / 3 if A.properties & SELF_ADJOINT else 2 / 3
    return _formed_and_factored(A, ratio * n**3, 1)


def least_squares_work(A: LinearOperator) -> Cost:
    """The cost of forming the matrix, of any shape, and finding A = Q R and the singular values
    of R."""
    m, n, least = *A.shape[-2:], float(min(A.shape[-2:]))
    return _formed_and_factored(A, 2.0 * m * n * least + 12.0 * least**3, 2)


def _formed_and_factored(A: LinearOperator, flops: float, copies: int) -> Cost:
    """The cost of so many flops for each matrix of a batch, and of so many copies."""
    memory = float(copies * itemsize(A)) * math.prod(A.shape)
    return lapack_cost(A, math.prod(A.batch_shape) * flops, memory)


ELIMINATION_CALLS = 20.0  # that take as long as what elimination takes of the smallest matrix


def sparse_work(A: Sparse) -> Cost:
    """The cost of sparse elimination, in an order that keeps the factors sparse."""
    entries, flops = estimated_fill(A.structure)
    count, rates = math.prod(A.batch_shape), rates_of(A)
    each = flops / rates.elimination + entries * rates.entry + ELIMINATION_CALLS * rates.call
    return Cost(count * flops, count * entries * (itemsize(A) + 4.0), count * each)


def iterated_work(A: LinearOperator, columns: int = 1, products: float | None = None) -> Cost:
    """The cost of an iteration for so many right sides, of as many products as are usual where nothing is
    known of the spectrum."""
    n = max(A.shape[-2:])
    if products is None:
        products = _guess(A)
    vectors = 10 if A.properties & SELF_ADJOINT else 34
    memory = float(itemsize(A)) * vectors * columns * n * math.prod(A.batch_shape)
    return products_cost(A, products, 10.0 * n, memory, columns)


def usual_products(A: LinearOperator, guess: float) -> float:
    """How many products an iteration is expected to take, for forecasts: of a sparse matrix by its
    pattern and its entries, of any other the guess."""
    if not isinstance(A, Sparse) or not is_square(A) or 0 in (A.nnz, *A.shape):
        return guess
    estimated_fill(A.structure)
    # CG needs 2.2 steps for each level of a grid, of whatever dimension, as measured
    levels = A.structure.memo.get("levels", 0.0)
    found = 20 + 2.2 * levels
    data = A.xp.peek(A.data)
    if data is not None and data.ndim == 1:
        S = A.structure
        size, is_diagonal = np.abs(data), S.rows == S.columns
        rows = np.bincount(S.rows, size, S.shape[0])
        own = np.bincount(S.rows[is_diagonal], size[is_diagonal], S.shape[0])
        least = float((2 * own - rows).min())  # Gershgorin: no eigenvalue is smaller
        if least > 0:  # and CG takes sqrt(κ) / 2 log(2 / tol) steps at most
            found = min(found, 10 * math.sqrt(float(rows.max()) / least))
    return min(found * _hardness(A), float(A.shape[-1]))


def expected_work(
    A: LinearOperator, direct: Callable[[], Cost], most: int | None, guess: float | None = None
) -> Cost:
    """The cost of an iteration for one right side, of `guess` products if nothing is known, or of one
    of `most` products and the factorisation that follows where these are not enough: a forecast,
    which decides nothing."""
    factored = direct()
    guess = _guess(A) if guess is None else guess
    iterated = iterated_work(A, 1, usual_products(A, guess))
    if most is None or iterated.seconds <= factored.seconds:
        return iterated
    return iterated_work(A, 1, most) + factored


def _guess(A: LinearOperator) -> float:
    """How many products an iteration takes where nothing is known of the spectrum."""
    n = max(A.shape[-2:])
    return min(n, 20 + 10 * math.sqrt(n)) * _hardness(A)


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
        structure.memo["levels"] = n / max(w, 1.0)  # of the pattern as a graph, from end to end
        entries = 2 * nnz + min(2 * float(width.sum()), 4 * w * w * math.log2(n + 1))
        found = structure.memo["fill"] = entries, min(float((width**2).sum()), 10 * w**3) + entries
    return found


def compare(A: LinearOperator, direct: Callable[[], Cost], columns: int = 1) -> tuple[Cost, Cost]:
    """The costs of a factorisation and of an iteration; where both are long, by rates that are
    measured first, if they were not."""
    costs = direct(), iterated_work(A, columns)
    if min(cost.seconds for cost in costs) > LONG_CALL_S and calibrate_once(A):
        return direct(), iterated_work(A, columns)
    return costs


def prefers_iteration(A: LinearOperator, direct: Callable[[], Cost], columns: int = 1) -> bool:
    """Whether an iteration is expected to be cheaper than a factorisation, or all that memory
    allows."""
    if 0 in A.shape or is_stored(A):
        return False
    factored, iterated = compare(A, direct, columns)
    return factored.memory > memory_to_form(A) or SHARE * iterated.seconds < factored.seconds


def affordable_products(
    A: LinearOperator, direct: Callable[[], Cost], columns: int = 1, least: int | None = None
) -> int | None:
    """How many products to try before a factorisation: None for no limit, 0 if fewer than the
    `least` that are worth it."""
    if 0 in A.shape or is_stored(A):
        return 0
    factored = compare(A, direct, columns)[0]
    if factored.memory > memory_to_form(A):
        return None
    paid = int(factored.seconds / SHARE / iterated_work(A, columns, 1).seconds)
    return paid if paid >= (least or (30, 60, 200)[_hardness(A) // 2]) else 0


def is_too_large(A: LinearOperator) -> bool:
    """Whether forming the matrix takes more memory than there should be."""
    return not is_stored(A) and dense_work(A).memory > memory_to_form(A)


def why_first(A: LinearOperator, name: str) -> str:
    """The reason why `Auto` takes this factorisation first."""
    if name == "Cholesky" and not A.properties & POSITIVE_SEMIDEFINITE:
        return "A is positive semidefinite if no number on the device is negative, which Cholesky shows"
    known = "positive semidefinite" if name == "Cholesky" else "self-adjoint"
    if name == "LU" and not A.properties & SELF_ADJOINT:
        return "nothing is known of A"
    return f"A is known to be {known}"
