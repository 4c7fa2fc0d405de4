"""Diagonals of products, without the product, and of inverses, where the structure gives them: more rules of `diag`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff import resolvents
from ..autodiff.kronecker import Grid
from ..backends import Array
from ..dispatch import arrange, rule
from ..methods import fitting
from ..operators.base import LinearOperator, dense_part
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.fields import Index
from ..operators.identity import scalar_of
from ..operators.implicit import Implicit
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.rewrites import simplify
from ..operators.sparse import Sparse
from ..operators.sparse_algebra import SHIFT
from ..operators.structured_factors import SpectralFactor
from ..operators.sum import Sum
from ..operators.triangular import Triangular
from ..operators.tridiagonal import Tridiagonal
from ._arrays import seen
from ._pivots import inverse_diagonal
from ._values import placed, reciprocal
from .diagonal import diag, exact_diagonal, zero_diagonal

# ---------------------------------------------------------------------------------------------------- products


def waist(A: LinearOperator) -> tuple[int, int]:
    """The smallest dimension inside a product, and before which factor it is."""
    return min((factor.shape[-2], i) for i, factor in enumerate(A.operands[1:], 1))


def has_thin_waist(A: LinearOperator) -> bool:
    """Whether a dimension inside the product is smaller than those outside."""
    return waist(A)[0] < min(A.shape[-2:])


def is_thin_and_filled(A: LinearOperator) -> bool:
    """Whether a dimension inside the product is smaller than those outside, and it is not sparse."""
    return has_thin_waist(A) and simplify.find(A).is_base


@rule(diag, Product, when=is_thin_and_filled)
def diag_thin_product(A: Any, method: Any) -> Array:
    """diag(A B)_i = Σ_j A_ij B_ji, the product cut where it is thinnest"""
    fitting("diag", method)
    xp, factors, size, cut = A.xp, placed(A), min(A.shape[-2:]), waist(A)[1]
    L, R = (Product(*part)._dense() for part in (factors[:cut], factors[cut:]))
    return xp.sum(L[..., :size, :] * xp.matrix_transpose(R[..., :, :size]), axis=-1)


@rule(diag, Product[Dense, Dense])  # type: ignore[misc]
def diag_dense_product(A: Any, method: Any) -> Array:
    """diag(A B)_i = Σ_j A_ij B_ji"""
    fitting("diag", method)
    size = min(A.shape[-2:])
    return A.xp.einsum("...ij,...ji->...i", A.operands[0].A[..., :size, :], A.operands[1].A[..., :, :size])


@rule(diag, Product[Sparse, Sparse])  # type: ignore[misc]
def diag_sparse_product(A: Any, method: Any) -> Array:
    """diag(S T)_i = Σ_j S_ij T_ji, over the places that S and T^T share"""
    S, T = A.operands[0], A.operands[1].T
    keys: Any = [B.structure.rows.astype(np.int64) * B.shape[-1] + B.structure.columns for B in (S, T)]
    _, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    keep = S.structure.rows[first] < min(A.shape[-2:])
    first, second = first[keep], second[keep]
    products = A.xp.take(S.data, first, axis=-1) * A.xp.take(T.data, second, axis=-1)
    return A.xp.scatter_add(zero_diagonal(A), S.structure.rows[first], products, axis=-1)


@rule(diag, Product[Sparse, Dense])  # type: ignore[misc]
def diag_sparse_dense_product(A: Any, method: Any) -> Array:
    """diag(S B)_i = Σ_j S_ij B_ji, over the places of S"""
    S, B = A.operands
    places = np.flatnonzero(S.structure.rows < min(A.shape[-2:]))
    rows, columns = (Index(x[places]).on(A.xp, A._context.device) for x in (S.structure.rows, S.structure.columns))
    products = A.xp.take(S.data, places, axis=-1) * B.A[..., columns, rows]
    return A.xp.scatter_add(zero_diagonal(A), S.structure.rows[places], products, axis=-1)


@rule(diag, Product[Dense, Sparse])  # type: ignore[misc]
def diag_dense_sparse_product(A: Any, method: Any) -> Array:
    """diag(B S) = diag(S^T B^T)"""
    return diag(Product(A.operands[1].T, A.operands[0].T), method)


@rule(diag, Product[Diagonal, ...], cost=lambda A: min(A.shape[-2:]))  # type: ignore[misc]
def diag_of_scaled_rows(A: Any, method: Any) -> Array:
    """diag(diag(d) A) = d * diag A"""
    size = min(A.shape[-2:])
    return A.operands[0].d[..., :size] * diag(Product(*placed(A)[1:]), method)


@rule(diag, Product[..., Diagonal], cost=lambda A: min(A.shape[-2:]))  # type: ignore[misc]
def diag_of_scaled_columns(A: Any, method: Any) -> Array:
    """diag(A diag(d)) = diag A * d"""
    size = min(A.shape[-2:])
    return diag(Product(*placed(A)[:-1]), method) * A.operands[-1].d[..., :size]


@rule(diag, Product[..., LowRank, ...], cost=lambda A: 2 * min(A.shape[-2:]))  # type: ignore[misc]
def diag_product_with_low_rank(A: Any, method: Any) -> Array:
    """diag(A U C V^H B) = diag((A U C) (V^H B))"""
    before, low_rank, after = arrange(A, ..., LowRank, ...)
    U = low_rank.U if low_rank.core is None else A.xp.matmul(low_rank.U, low_rank.core)
    V = Dense(low_rank.U if low_rank.V is None else low_rank.V)
    return diag(Product(*before, Dense(U), V.H, *after), method)


@rule(diag, Product[Dense, Diagonal, Dense])  # type: ignore[misc]
def diag_of_diagonalised(A: Any, method: Any) -> Array:
    """diag(A diag(d) B) = (A * B^T) d"""
    L, D, R = A.operands
    size = min(A.shape[-2:])
    return A.xp.einsum("...ij,...j,...ji->...i", L.A[..., :size, :], D.d, R.A[..., :, :size])


def factors_pair_up(A: LinearOperator) -> bool:
    """Whether the factors of the first and of the last Kronecker product have transposed shapes, one by one."""
    first, last = (A.operands[i].operands for i in (0, -1))
    return [P.shape[-2:] for P in first] == [Q.shape[-2:][::-1] for Q in last]


@rule(diag, Product[Kronecker, Diagonal, Kronecker], when=factors_pair_up)  # type: ignore[misc]
def diag_of_diagonalised_kronecker(A: Any, method: Any) -> Array:
    """diag((A ⊗ B) diag(d) (C ⊗ D)) = (A * C^T ⊗ B * D^T) d"""
    L, D, R = A.operands
    pairs = zip(placed(L), placed(R), strict=True)
    entries = Kronecker(*(P._dense() * A.xp.matrix_transpose(Q._dense()) for P, Q in pairs))
    return (entries @ D.d[..., None])[..., 0]


# ---------------------------------------------------------------------------------------------------- inverses


@rule(diag, Inverse[Triangular])  # type: ignore[misc]
def diag_inverse_triangular(A: Any, method: Any) -> Array:
    """diag(T^-1) = 1 / diag T"""
    return reciprocal(diag(A.A, method))


@rule(diag, Inverse[Tridiagonal])  # type: ignore[misc]
def diag_inverse_tridiagonal(A: Any, method: Any) -> Array:
    """diag(T^-1)_i = 1 / (p_i + q_i - t_ii), p and q the pivots of elimination from above and from below"""
    T = A.A
    found = inverse_diagonal(A.xp, T.lower, zero_diagonal(T) + T.diag, T.upper)
    return A.xp.astype(found, A.dtype)


def wraps_around(A: LinearOperator) -> bool:
    """Whether the operator that is inverted commutes with shifts of a periodic grid."""
    return getattr(A.operands[0], "boundary", "wrap") == "wrap"


@rule(diag, Inverse[Circulant | Convolution], when=wraps_around)  # type: ignore[misc]
def diag_inverse_circulant(A: Any, method: Any) -> Array:
    """diag(C^-1) = (C^-1 e_1)_1, n times: C^-1 is circulant too"""
    first = A.xp.astype(A.xp.arange(A.shape[-1], device=A._context.device) == 0, A.dtype)
    return zero_diagonal(A) + (A @ first)[..., :1]


def factor_is_spectral(A: LinearOperator) -> bool:
    """Whether the inverse is kept as eigenvectors and eigenvalues."""
    return isinstance(A.factor, SpectralFactor)  # type: ignore[attr-defined]


@rule(diag, Inverse, when=factor_is_spectral)
def diag_spectral_inverse(A: Any, method: Any) -> Array:
    """diag(V diag(1/λ) V^-1) = (V * V^-T) (1/λ)"""
    factor = A.factor
    found = diag(Product(factor.V, Diagonal(factor.d), factor.W), method)
    return A.xp.astype(A.xp.real(found) if factor.real else found, A.dtype)


PRODUCTS = 1e8  # flops that n products may take where derivatives are recorded: they are right for every kind of factor


def factor_is_known(A: LinearOperator) -> bool:
    """Whether products are differentiated by the equation that they solve, and how they are made is known."""
    return isinstance(A.factor, Implicit) and A.factor.find is not None  # type: ignore[attr-defined]


@rule(diag, Inverse, when=factor_is_known)
def diag_known_inverse(A: Any, method: Any) -> Array:
    """diag((V ⊗ W) diag(1/z) (V ⊗ W)^-1) = (V * V^-T ⊗ W * W^-T) (1/z), with the derivative of the inverse"""
    known = A.factor
    if A.shape[-1] * A.flops <= PRODUCTS:
        return exact_diagonal(A)
    spectral = known.solver.factor if isinstance(known.solver, Inverse) else None
    found = _diagonal_by_resolvents(A, spectral) if isinstance(spectral, SpectralFactor) else None
    if found is not None:
        return found
    return diag(known.find(known.A, None), method)


def _diagonal_by_resolvents(A: Any, spectral: SpectralFactor) -> Array | None:
    """diag(A^-1) for A = C or C + c I, C a Kronecker product or sum; None where eigenvectors are seen to serve as well, in less time."""
    xp, whole = A.xp, A.A
    kronecker, c = whole, 0.0
    if isinstance(whole, Sum):
        kronecker, shift = arrange(whole, Kronecker | KroneckerSum, SHIFT)
        c = scalar_of(shift)
    dtype = spectral.d.dtype
    V, W = ([xp.astype(factor.to_dense(), dtype) for factor in side.operands] for side in (spectral.V, spectral.W))
    matrices = [xp.astype(dense_part(factor, whole), dtype) for factor in kronecker.operands]
    held = [xp.stop_gradient(M) for M in matrices]
    values = [xp.sum(Y * xp.matrix_transpose(xp.matmul(M, X)), axis=-1) for Y, M, X in zip(W, held, V)]  # diag(V^-1 A V)
    harmless = [seen(xp, resolvents.are_harmless(xp, v, X)) for v, X in zip(values, V)]
    if all(known is not None and bool(known) for known in harmless):
        return None
    a, b = (xp.astype(xp.asarray(x, device=A._context.device), dtype) for x in (1.0, c))
    grid = Grid(lambda x: x, isinstance(kronecker, KroneckerSum))
    found = resolvents.inverse_diagonal(xp, grid, matrices, values, V, a, b)
    return xp.broadcast_to(xp.astype(found if A.is_complex else xp.real(found), A.dtype), A.shape[:-1])
