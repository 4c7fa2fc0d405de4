"""Inverses of sums: low-rank corrections (Woodbury, Kailath, Sherman and Morrison), shifts, and sums of Kronecker products."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import arrange, rule
from ..info import Info, Status, failed, part, report
from ..operators.banded import Banded
from ..operators.base import LinearOperator, dense_part
from ..operators.batch_sum import BatchSum
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled
from ..operators.sparse import Sparse
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.transposed import are_adjoint
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY
from ._similarity import is_similarity
from ._values import has_no_zero, is_positive, reciprocal, reciprocal_spectrum
from .eigen import factors_self_adjoint, spectrum_by_factors
from .inverse import LARGEST_DENSE, inv, inverse

DIAGONAL = Diagonal | ScaledIdentity | Identity
SHIFT = ScaledIdentity | Identity

# ---------------------------------------------------------------------------------------------------- low rank


def rank_of(A: Any) -> int:
    """The rank that the factors of an operator show, its size if they show none."""
    if isinstance(A, Product):
        return min(factor.shape[-1] for factor in A.operands[:-1])
    if isinstance(A, BatchSum):
        return A.terms * rank_of(A.A)
    if isinstance(A, Scaled):
        return rank_of(A.A)
    factor = getattr(A, "U", getattr(A, "Q", None)) if isinstance(A, (LowRank, Projection)) else None
    return A.shape[-1] if factor is None else factor.shape[-1]


def as_low_rank(A: Any) -> LowRank:
    """An operator whose factors show a low rank, as `U C V^H`."""
    if isinstance(A, Scaled):
        return Scaled(A.scalar, as_low_rank(A.A))
    if isinstance(A, Projection):
        return LowRank._of(A.Q, None, None)
    if isinstance(A, BatchSum):
        return _side_by_side(A, as_low_rank(A.A))
    if isinstance(A, Product):
        widths = [factor.shape[-1] for factor in A.operands[:-1]]
        cut = widths.index(min(widths)) + 1
        left, right = Product(*A.operands[:cut]), Product(*A.operands[cut:])
        V = None if are_adjoint(left, right) else dense_part(right.H, A)
        return LowRank._of(dense_part(left, A), V, None)
    return A


def _side_by_side(A: Any, terms: LowRank) -> LowRank:
    """sum_i U_i C_i V_i^H as one low-rank matrix of all factors side by side."""
    xp, axis, count = A.xp, A.axis, A.terms
    U = terms.U if terms.core is None else xp.matmul(terms.U, terms.core)
    V = None if terms.V is None and terms.core is None else (terms.U if terms.V is None else terms.V)

    def beside(factor: Array) -> Array:  # (*batch, m, r) -> (*rest, m, count * r)
        factor = xp.moveaxis(xp.broadcast_to(factor, (*A.A.batch_shape, *factor.shape[-2:])), axis - 2, -2)
        return xp.reshape(factor, (*factor.shape[:-2], count * factor.shape[-1]))

    return LowRank._of(beside(U), None if V is None else beside(V), None)


def is_narrow(A: LinearOperator) -> bool:
    """Whether the rank is at most half of the size: where a correction costs less than a factorisation."""
    return 2 * rank_of(A) <= A.shape[-1]


def low_rank_and_rest(A: Any) -> tuple[LowRank, LinearOperator]:
    """The terms of low rank as one, and the sum of the others."""
    narrow = [term for term in A.operands if is_narrow(term)]
    rest = [term for term in A.operands if not is_narrow(term)]
    low_rank = Sum(*map(as_low_rank, narrow))
    assert isinstance(low_rank, LowRank)
    return low_rank, Sum(*rest)


def correction_pays(A: Any) -> bool:
    """Whether some terms are of low rank, together at most half of the size, and a rule inverts the others."""
    ranks = [rank_of(term) for term in A.operands if is_narrow(term)]
    rest = [term for term in A.operands if not is_narrow(term)]
    return bool(ranks and rest) and 2 * sum(ranks) <= A.shape[-1] and not inv.find(Sum(*rest)).is_base


def diagonal_is_invertible(A: LinearOperator) -> bool:
    """Whether the diagonal term has no zero (taken for granted where values cannot be seen)."""
    return all(has_no_zero(term.d) for term in A.operands if isinstance(term, Diagonal))


def diagonal_is_invertible_and_rank_low(A: LinearOperator) -> bool:
    """Whether the diagonal term has no zero (taken for granted where values cannot be seen) and the rank is at most half of n."""
    shifts = [term.c for term in A.operands if isinstance(term, ScaledIdentity)]
    invertible = diagonal_is_invertible(A) and all(c != 0 if namespace_of(c) is None else has_no_zero(c) for c in shifts)
    return invertible and all(is_narrow(term) for term in A.operands if isinstance(term, LowRank))


@rule(inv, Sum[LowRank, DIAGONAL], when=diagonal_is_invertible_and_rank_low)  # type: ignore[misc]
def woodbury(A: Any, method: Any) -> LinearOperator:
    """(D + U C V^H)^-1 = D^-1 - D^-1 U (I + C V^H D^-1 U)^-1 C V^H D^-1"""
    low_rank, D = arrange(A, LowRank, DIAGONAL)
    D_inverse = part("In the diagonal term", inv, D, method)
    if low_rank.V is None and low_rank.core is None and is_positive(D):
        S, root = scaled_factor(low_rank.U, D_inverse)
        K_inverse = part(CAPACITANCE, inv, capacitance_of(S), method)
        return Sum(D_inverse, Scaled(-1.0, Product(root, S, K_inverse, S.H, root)))._claim(A.properties)
    U, right = D_inverse @ low_rank.U, _right_factor(low_rank)  # D^-1 U and C V^H
    K_inverse = part(CAPACITANCE, inv, capacitance(A, low_rank, D, U), method)
    return Sum(D_inverse, Scaled(-1.0, Product(Dense._of(U), K_inverse, right, D_inverse)))._claim(A.properties)


CAPACITANCE = "In the capacitance I + C V^H A^-1 U of Woodbury's formula, singular where the sum is"


def few_zeros(A: LinearOperator) -> bool:
    """Whether the diagonal has zeros, so few that they and the low rank together are at most half of the size."""
    D = next(term for term in A.operands if isinstance(term, Diagonal))
    if has_no_zero(D.d):
        return False
    zeros, rank = _zeros(D), sum(rank_of(term) for term in A.operands if term is not D)
    return 2 * (rank + len(zeros)) <= A.shape[-1]


def _zeros(D: Any) -> Any:
    """Where the diagonal is zero, in any matrix of a batch; None if values cannot be seen."""
    values = D.xp.peek(D.d)
    return None if values is None else np.flatnonzero(np.any(np.reshape(np.asarray(values) == 0, (-1, D.shape[-1])), axis=0))


@rule(inv, Sum[LowRank, Diagonal], when=few_zeros)  # type: ignore[misc]
def woodbury_with_zeros(A: Any, method: Any) -> LinearOperator:
    """D + U C V^H = D' + U C V^H - E S E^H, where D' is D with its zeros replaced: two low-rank terms, which merge"""
    low_rank, D = arrange(A, LowRank, Diagonal)
    xp, zeros = A.xp, _zeros(D)
    is_zero = np.zeros(A.shape[-1], bool)
    is_zero[zeros] = True
    size = xp.max(xp.abs(D.d), axis=-1, keepdims=True)
    shift = xp.astype(xp.where(size > 0, size, 1), A.dtype)
    filled = xp.where(xp.asarray(is_zero, device=A._context.device), shift, D.d)
    E = np.zeros((A.shape[-1], len(zeros)))
    E[zeros, np.arange(len(zeros))] = 1
    back = xp.make_diagonal(xp.take(D.d - filled, xp.asarray(zeros, device=A._context.device), axis=-1))
    moved = LowRank(xp.asarray(E, dtype=A.dtype, device=A._context.device), None, back)
    return inv(Sum(Diagonal(filled), low_rank, moved), method)._claim(A.properties)


LOW_RANK: Any = LowRank | Projection | Product | BatchSum[LowRank]  # type: ignore[misc]
LOW_RANK = LOW_RANK | Scaled[Projection | Product | BatchSum[LowRank]]  # type: ignore[misc]


@rule(inv, Sum[LOW_RANK, ...], when=correction_pays)  # type: ignore[misc]
def kailath(A: Any, method: Any) -> LinearOperator:
    """(A + U C V^H)^-1 = (I - A^-1 U (I + C V^H A^-1 U)^-1 C V^H) A^-1"""
    low_rank, rest = low_rank_and_rest(A)
    rest_inverse, info = inv(rest, method, info=True)
    if failed(info.status) is True:
        return as_a_whole(A, method, info, "the sum without its low-rank terms is singular, so they cannot be a correction of it")
    report(info)
    U = rest_inverse @ low_rank.U
    right = _right_factor(low_rank)
    K_inverse = part(CAPACITANCE, inv, capacitance(A, low_rank, rest, U), method)
    I = Identity(A.shape[-1])
    return Product(Sum(I, Scaled(-1.0, Product(Dense._of(U), K_inverse, right))), rest_inverse)._claim(A.properties)


def as_a_whole(A: LinearOperator, method: Any, info: Any, why: str) -> LinearOperator:
    """The inverse from the matrix, where a rule's own way failed and the matrix is small enough; else that way's status."""
    if math.prod(A.shape) <= LARGEST_DENSE**2:
        report(Info(Status.FELL_BACK, message=why))
        return inverse(A, method)
    report(info.replace(message=why))
    return ScaledIdentity(math.nan, A.shape[-1], like=A)


def _right_factor(low_rank: Any) -> LinearOperator:
    """C V^H"""
    xp, V = low_rank.xp, low_rank.U if low_rank.V is None else low_rank.V
    adjoint = Dense._of(V).H
    return adjoint if low_rank.core is None else Dense._of(xp.matmul(low_rank.core, adjoint.A))


def capacitance(A: Any, low_rank: Any, rest: LinearOperator, U: Any) -> LinearOperator:
    """I + C V^H A^-1 U, from U = A^-1 U: of the size of the rank; positive definite for U U^H and positive A."""
    xp, right = A.xp, _right_factor(low_rank)
    inner = right @ U
    K = Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))
    positive = low_rank.V is None and low_rank.core is None and rest.properties & POSITIVE_SEMIDEFINITE
    return K._claim(POSITIVE_SEMIDEFINITE) if positive else K


def scaled_factor(U: Array, D_inverse: Any) -> tuple[Any, LinearOperator]:
    """S = D^-1/2 U and D^-1/2, for positive D: with S^H S, which BLAS knows to be symmetric, half of the work is saved."""
    root = D_inverse
    if isinstance(D_inverse, Diagonal):
        root = Diagonal._of(D_inverse.xp.sqrt(D_inverse.d))
    elif isinstance(D_inverse, ScaledIdentity):
        root = D_inverse._replace(c=math.sqrt(c) if namespace_of(c := D_inverse.c) is None else D_inverse.xp.sqrt(c))
    return Dense._of(root @ U), root


def capacitance_of(S: Any) -> LinearOperator:
    """I + S^H S, positive definite"""
    xp, inner = S.xp, gram(S.A)
    return Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))._claim(POSITIVE_SEMIDEFINITE)


def gram(S: Array) -> Array:
    """S^H S"""
    xp = namespace_of(S)
    return xp.matmul(xp.conj(xp.matrix_transpose(S)), S)


def terms_are_few(A: Any) -> bool:
    """Whether the ranks of the terms together are below the size."""
    return A.shape[-1] == A.shape[-2] and rank_of(A) < A.shape[-1]


@rule(inv, BatchSum[LowRank], when=terms_are_few)  # type: ignore[misc]
def inv_few_terms(A: Any, method: Any) -> LinearOperator:
    """A sum of low-rank terms is of low rank"""
    return inv(as_low_rank(A), method)


@rule(inv, Sum[Projection, SHIFT])  # type: ignore[misc]
@rule(inv, Sum[Scaled[Projection], SHIFT])  # type: ignore[misc]
def inv_shifted_projection(A: Any, method: Any) -> LinearOperator:
    """(a Q Q^H + c I)^-1 = c^-1 (I - a (a + c)^-1 Q Q^H)"""
    projection, shift = arrange(A, Projection | Scaled[Projection], SHIFT)  # type: ignore[misc]
    a, P = (projection.scalar, projection.A) if isinstance(projection, Scaled) else (1.0, projection)
    c = _scalar(shift)
    inner = a * part("On the range of Q", reciprocal, a + c)
    return Sum(inv(shift, method), Scaled(-inner * part("Off the range of Q", reciprocal, c), P))._claim(A.properties)


def _scalar(shift: Any) -> Any:
    """c of c I"""
    return shift.c if isinstance(shift, ScaledIdentity) else 1.0


# ---------------------------------------------------------------------------------------------------- shifts


@rule(inv, Sum[Scaled, SHIFT])  # type: ignore[misc]
@rule(inv, Sum[Scaled[Projection | BatchSum[LowRank] | Product], SHIFT])  # type: ignore[misc]  # and then by `kailath`
def inv_shifted_multiple(A: Any, method: Any) -> LinearOperator:
    """(a A + c I)^-1 = a^-1 (A + c a^-1 I)^-1"""
    multiple, shift = arrange(A, Scaled, SHIFT)
    a = part("In the factor of a term", reciprocal, multiple.scalar)
    return Scaled(a, inv(Sum(multiple.A, Scaled(a, shift)), method))._claim(A.properties)


TAKES_SHIFT = Circulant | Convolution | Toeplitz
TAKES_DIAGONAL = Tridiagonal | Banded | Sparse | BlockDiag


def is_square(A: LinearOperator) -> bool:
    """Whether the terms that a diagonal can be added to are square."""
    return all(all(block.shape[-1] == block.shape[-2] for block in term.operands) for term in A.operands)


@rule(inv, Sum[TAKES_SHIFT, SHIFT] | Sum[TAKES_DIAGONAL, DIAGONAL], when=is_square)  # type: ignore[misc]
def inv_merged(A: Any, method: Any) -> LinearOperator:
    """(A + D)^-1, where A + D is of A's own kind: banded, sparse, circulant, ..."""
    return inv(merged(A)._claim(A.properties), method)


def merged(A: Any) -> LinearOperator:
    """A + D as one operator of the kind of A."""
    whole, D = arrange(A, TAKES_SHIFT | TAKES_DIAGONAL, DIAGONAL)
    return _ADD[type(whole)](whole, _scalar(D) if isinstance(whole, TAKES_SHIFT) else diagonal_of(D, A), A)


def diagonal_of(D: Any, A: LinearOperator) -> Array:
    """The diagonal of D, a multiple of I perhaps, as an array of A's framework."""
    if isinstance(D, Diagonal):
        return D.d
    xp, c = A.xp, _scalar(D)
    ones = xp.ones((A.shape[-1],), dtype=A.dtype, device=A._context.device)
    return ones * (c[..., None] if getattr(c, "ndim", 0) else c)


def _at_start(xp: Any, x: Array, c: Any, dimensions: int) -> Array:
    """x with c added to its entry 0 (in each of the last dimensions)."""
    place = np.zeros(x.shape[-dimensions:])
    place[(0,) * dimensions] = 1
    c = c[(..., *(None,) * dimensions)] if getattr(c, "ndim", 0) else c
    return x + c * xp.asarray(place, dtype=xp.real_dtype(x.dtype), device=xp.device_of(x))


def _add_to_convolution(C: Any, c: Any, A: LinearOperator) -> LinearOperator:
    xp = A.xp
    place = np.zeros(C.kernel.shape[-len(C.grid) :])
    place[C.origin] = 1
    c = c[(..., *(None,) * len(C.grid))] if getattr(c, "ndim", 0) else c
    delta = xp.asarray(place, dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return Convolution._of(C.kernel + c * delta, C.grid, C.boundary, C.origin)


def _add_to_toeplitz(T: Any, c: Any, A: LinearOperator) -> LinearOperator:
    row = A.xp.conj(T.col) if T.row is None and not A.properties & SELF_ADJOINT else T.row
    return Toeplitz._of(_at_start(A.xp, T.col, c, 1), row)


def _add_to_banded(B: Any, d: Array, A: LinearOperator) -> LinearOperator:
    at = B.offsets.index(0) if 0 in B.offsets else None
    if at is None:
        return Banded._of((*B.diagonals, A.xp.astype(d, A.dtype)), (*B.offsets, 0), B.m, B.n)
    return Banded._of((*B.diagonals[:at], B.diagonals[at] + d, *B.diagonals[at + 1 :]), B.offsets, B.m, B.n)


def _add_to_sparse(S: Any, d: Array, A: LinearOperator) -> LinearOperator:
    xp, n, structure = A.xp, A.shape[-1], S.structure
    from ..operators.sparsity import from_coordinates

    rows, columns = (np.concatenate([indices, np.arange(n)]) for indices in (structure.rows, structure.columns))
    joined, places = from_coordinates(rows, columns, (n, n))
    values = xp.concat([xp.broadcast_to(x, (*A.batch_shape, x.shape[-1])) for x in (S.data, d)], axis=-1)
    if places is None:
        return Sparse._of(values, joined)
    zeros = xp.zeros((*A.batch_shape, joined.nnz), dtype=values.dtype, device=A._context.device)
    return Sparse._of(xp.scatter_add(zeros, places, values, axis=-1), joined)


def _add_to_blocks(B: Any, d: Array, A: LinearOperator) -> LinearOperator:
    blocks, start = [], 0
    for block in B.operands:
        stop = start + block.shape[-1]
        blocks.append(Sum(block, Diagonal(d[..., start:stop])))
        start = stop
    return BlockDiag(*blocks)


_ADD: dict[type, Any] = {
    Circulant: lambda C, c, A: Circulant._of(_at_start(A.xp, C.col, c, 1)),
    Convolution: _add_to_convolution,
    Toeplitz: _add_to_toeplitz,
    Tridiagonal: lambda T, d, A: Tridiagonal._of(T.lower, T.diag + d, T.upper),
    Banded: _add_to_banded,
    Sparse: _add_to_sparse,
    BlockDiag: _add_to_blocks,
}


SIMILAR = Product[LinearOperator, ..., LinearOperator]  # type: ignore[type-arg, misc]


def has_similarity(A: Any) -> bool:
    """Whether a term is V A V^-1, by how it was made."""
    return any(isinstance(term, Product) and is_similarity(term) for term in A.operands)


@rule(inv, Sum[SIMILAR, SHIFT], when=has_similarity)  # type: ignore[misc]
def inv_shifted_similarity(A: Any, method: Any) -> LinearOperator:
    """(V A V^-1 + c I)^-1 = V (A + c I)^-1 V^-1: of a known eigendecomposition, A is diagonal"""
    product, shift = arrange(A, Product, SHIFT)
    V, *middle, W = product.operands
    inner = Sum(Product(*middle), shift)
    inner = inner._claim(A.properties) if V.properties & UNITARY else inner
    return Product(V, part("In the middle of the similarity", inv, inner, method), W)._claim(A.properties)


# ---------------------------------------------------------------------------------------------------- sums of Kronecker products


def kronecker_of_self_adjoint(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are self-adjoint."""
    return all(factors_self_adjoint(term) for term in A.operands if isinstance(term, (Kronecker, KroneckerSum)))


@rule(inv, Sum[Kronecker | KroneckerSum, ScaledIdentity | Identity], when=kronecker_of_self_adjoint)  # type: ignore[misc]
def inv_shifted_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + c I)^-1 = (Q ⊗ P) (Λ ⊗ M + c)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    values, vectors = shifted_spectrum(A)
    return Product(vectors, Diagonal(reciprocal_spectrum(A.xp, values)), vectors.H)._claim(A.properties)


def shifted_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator]:
    """Eigenvalues and eigenvectors of a Kronecker product or sum plus c I."""
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, ScaledIdentity | Identity)
    values, vectors = spectrum_by_factors(kronecker)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    return values + (c[..., None] if getattr(c, "ndim", 0) else c), vectors


@rule(inv, KroneckerSum, when=factors_self_adjoint)
def inv_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """(A ⊕ B)^-1 = (Q ⊗ P) (Λ ⊕ M)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    values, vectors = spectrum_by_factors(A)
    return Product(vectors, Diagonal(reciprocal_spectrum(A.xp, values)), vectors.H)._claim(A.properties)
