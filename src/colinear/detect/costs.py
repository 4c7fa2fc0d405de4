"""What a structure is worth: the flops of solving with it, by which the search chooses."""

from __future__ import annotations

import math
from typing import Any

from ..functions.cost import dense_work, least_squares_work, sparse_work
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero

OPERAND = 200.0  # for each part of a composition: so much that none is made of what has a few rows only
INDIRECT = 8.0  # flops that wait for memory, in those of a dense factorisation


def cost(A: Any) -> float:
    """The flops of a solve with A, of a least squares problem if it is not square, in those of a dense factorisation."""
    (m, n), size = A.shape, float(max(A.shape))
    if isinstance(A, (Identity, ScaledIdentity, Diagonal, Zero)):
        return size
    if isinstance(A, Permutation):
        return INDIRECT * 2 * size
    if isinstance(A, Tridiagonal):
        return INDIRECT * 8 * n
    if isinstance(A, (Circulant, Convolution)):
        return INDIRECT * 10 * n * math.log2(n + 1)
    if isinstance(A, Triangular):
        return INDIRECT * n * n / 2
    if isinstance(A, LowRank):
        return OPERAND + 4 * size * A.U.shape[-1] ** 2
    if isinstance(A, Scaled):
        return size + cost(A.A)
    if isinstance(A, (Product, BlockDiag)):
        return sum(OPERAND + cost(part) for part in A.operands)
    if isinstance(A, Kronecker):
        return sum(OPERAND + cost(part) for part in A.operands) + INDIRECT * A.flops
    if isinstance(A, KroneckerSum):
        return sum(OPERAND + _spectral(part) for part in A.operands) + 2 * INDIRECT * A.flops
    if isinstance(A, Sum):
        return _cost_of_sum(A)
    if m != n:
        return least_squares_work(A).work
    if isinstance(A, Toeplitz):
        return INDIRECT * 4 * n * n
    if isinstance(A, Banded):
        lower, upper = max(0, -min(A.offsets)), max(0, *A.offsets)
        return min(INDIRECT * 2 * n * (lower + 1) * (lower + upper + 1), _formed(A))
    if isinstance(A, Sparse):
        return min(sparse_work(A).work, _formed(A))
    return _formed(A)


def _cost_of_sum(A: Sum) -> float:
    """Low rank plus diagonal by the matrix inversion lemma, a Kronecker product plus c I by the eigenvectors of its factors."""
    if any(isinstance(part, LowRank) for part in A.operands):
        return OPERAND + sum(map(cost, A.operands))
    products = [part for part in A.operands if isinstance(part, Kronecker)]
    if products:
        return sum(OPERAND + _spectral(part) for part in products[0].operands) + 2 * INDIRECT * A.flops
    return _formed(A)


def _formed(A: LinearOperator) -> float:
    """A dense factorisation, and a solve with its factors."""
    return dense_work(A).work + INDIRECT * 2 * A.shape[-1] ** 2


def _spectral(A: LinearOperator) -> float:
    """The eigenvectors of a term of a Kronecker sum: known, if it is tridiagonal of constant diagonals, or circulant."""
    n = float(A.shape[-1])
    if isinstance(A, (Identity, ScaledIdentity, Diagonal, Circulant)):
        return INDIRECT * 10 * n * math.log2(n + 1)
    if isinstance(A, Tridiagonal):
        return INDIRECT * 10 * n * n
    if isinstance(A, (KroneckerSum, Kronecker)):
        return sum(map(_spectral, A.operands))
    return 25 * n**3
