"""Inverses of sums of matrices of one kind, sparse, banded, Toeplitz or block diagonal: the sum is of that kind again."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.diagonal import Diagonal
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sparsity import from_coordinates
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.tridiagonal import Tridiagonal
from .inverse import inv
from .inverse_low_rank import DIAGONAL, SHIFT
from .inverse_sums import diagonal_of

S: Any = Tridiagonal | Banded | Sparse
S_: Any = S | Scaled[S]  # type: ignore[misc]
SPARSE_SUM: Any = Sum[Scaled[S], Diagonal] | Sum[S_, S_] | Sum[S_, S_, S_ | DIAGONAL] | Sum[S_, S_, S_, S_ | DIAGONAL]  # type: ignore[misc]


def is_square(A: LinearOperator) -> bool:
    """Whether the sum is square."""
    return A.shape[-1] == A.shape[-2]


@rule(inv, SPARSE_SUM, when=is_square, hereditary=True)
def inv_sum_of_sparse(A: Any, method: Any) -> LinearOperator:
    """(A + B)^-1, where A + B is sparse as A and B are, or of one band if they are"""
    return inv(added(A)._claim(A.properties), method)


def added(A: Any) -> LinearOperator:
    """The sum of sparse and banded matrices as one of them."""
    terms = [(term.scalar, term.A) if isinstance(term, Scaled) else (None, term) for term in A.operands]
    if not any(isinstance(term, Sparse) for _, term in terms):
        by_offset: dict[int, Array] = {}
        for scalar, term in terms:
            for k, d in _diagonals(term, A):
                d = _scaled(scalar, d)
                by_offset[k] = by_offset[k] + d if k in by_offset else d
        return Banded._of(tuple(by_offset.values()), tuple(by_offset), *A.shape[-2:])
    xp, places, values = A.xp, [], []
    for scalar, term in terms:
        if isinstance(term, Sparse):
            places.append((term.structure.rows, term.structure.columns))
            values.append(_scaled(scalar, term.data))
            continue
        for k, d in _diagonals(term, A):
            places.append((max(0, -k) + np.arange(d.shape[-1]), max(0, k) + np.arange(d.shape[-1])))
            values.append(_scaled(scalar, d))
    rows, columns = (np.concatenate([place[i] for place in places]) for i in (0, 1))
    structure, where = from_coordinates(rows, columns, A.shape[-2:])
    data = xp.concat([xp.astype(xp.broadcast_to(x, (*A.batch_shape, x.shape[-1])), A.dtype) for x in values], axis=-1)
    if where is None:
        return Sparse._of(data, structure)
    empty = xp.zeros((*A.batch_shape, structure.nnz), dtype=A.dtype, device=A._context.device)
    return Sparse._of(xp.scatter_add(empty, where, data, axis=-1), structure)


def _diagonals(term: Any, A: LinearOperator) -> list[tuple[int, Array]]:
    """The diagonals of a banded matrix by offset."""
    if isinstance(term, Tridiagonal):
        return [(-1, term.lower), (0, term.diag), (1, term.upper)]
    return list(zip(term.offsets, term.diagonals)) if isinstance(term, Banded) else [(0, diagonal_of(term, A))]


def _scaled(scalar: Any, x: Array) -> Array:
    return x if scalar is None else (scalar[..., None] if getattr(scalar, "ndim", 0) else scalar) * x


# ---------------------------------------------------------------------------------------------------- other kinds

T_: Any = Circulant | Toeplitz | Scaled[Circulant | Toeplitz]  # type: ignore[misc]


@rule(inv, Sum[T_, T_] | Sum[T_, T_, T_ | SHIFT], when=is_square, hereditary=True)  # type: ignore[misc]
def inv_sum_of_toeplitz(A: Any, method: Any) -> LinearOperator:
    """(S + T)^-1, where S + T is a Toeplitz matrix as S and T are, circulant if both are"""
    xp = A.xp
    terms = [(term.scalar, term.A) if isinstance(term, Scaled) else (None, term) for term in A.operands]
    shifts = [term for _, term in terms if isinstance(term, SHIFT)]
    lines = [[_scaled(scalar, x) for x in _column_and_row(term)] for scalar, term in terms if not isinstance(term, SHIFT)]
    column, row = (sum(rest, first) for first, *rest in zip(*lines))
    circulant = all(isinstance(term, (Circulant, *SHIFT.__args__)) for _, term in terms)
    whole = Circulant(column) if circulant else Toeplitz(*(xp.broadcast_to(x, A.shape[:-1]) for x in (column, row)))
    return inv(Sum(whole, *shifts)._claim(A.properties), method)


def _column_and_row(T: Any) -> tuple[Array, Array]:
    xp = T.xp
    if isinstance(T, Circulant):
        return T.col, xp.roll(xp.flip(T.col, axis=-1), 1, axis=-1)
    return T.col, xp.conj(T.col) if T.row is None else T.row


def partitions_agree(A: Any) -> bool:
    """Whether the blocks of the two terms are square and of the same sizes."""
    first, second = ([block.shape[-2:] for block in term.operands] for term in A.operands)
    return first == second and all(m == n for m, n in first)


@rule(inv, Sum[BlockDiag, BlockDiag], when=partitions_agree, hereditary=True)  # type: ignore[misc]
def inv_sum_of_block_diagonals(A: Any, method: Any) -> LinearOperator:
    """(diag(A, B) + diag(C, D))^-1 = diag(A + C, B + D)^-1"""
    first, second = (term.operands for term in A.operands)
    return inv(BlockDiag(*map(Sum, first, second))._claim(A.properties), method)
