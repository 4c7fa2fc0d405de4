"""The rules of `diag`: diagonals that are stored or known, of products without the product, and
of inverses."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ...autodiff import resolvents
from ...autodiff.kronecker import Grid
from ...backends import Array, adjoint, places_like
from ...dispatch import arrange, perform, rule
from ...factors.function import RealPart
from ...factors.inverse import Implicit, Inverse
from ...factors.structured import SpectralFactor
from ...methods import fitting
from ...operators import (
    FFT,
    Banded,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    Householder,
    Identity,
    Kernel,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Projection,
    ScaledIdentity,
    Sparse,
    Sum,
    Toeplitz,
    Triangular,
    Tridiagonal,
    Zero,
    simplify,
)
from ...operators.diagonal import scalar_of
from ...operators.neutral import dense_part
from ...operators.scaled import beside
from ...operators.sparse_algebra import SHIFT
from ...operators.streamed import Streamed
from ...operators.tree import Index
from ..common import (
    array_like,
    host_value,
    low_rank_sides,
    operands_in_context,
    real_or_complex,
    reciprocal,
    smaller_side,
)
from . import diag, exact_diagonal, has_thin_waist, ones_on_diagonal, waist, zero_diagonal
from .bands import tridiagonal_inverse_diagonal

# Diagonals that are stored or known: more rules of `diag`.


POINTS = 32  # of a kernel at a time: it computes all pairs of them, and the diagonal is kept


@rule(diag, Dense)
def diag_dense(A: Any, method: Any) -> Array:
    """diag A is read off"""
    fitting("diag", method)
    return A.xp.diagonal(A.A)


@rule(diag, Diagonal)
def diag_diagonal(A: Any, method: Any) -> Array:
    """diag(diag(d)) = d"""
    return A.d


@rule(diag, Identity | ScaledIdentity)
def diag_identity(A: Any, method: Any) -> Array:
    """diag(c I) = c, n times"""
    return beside(scalar_of(A)) * ones_on_diagonal(A)


@rule(diag, Zero)
def diag_zero(A: Any, method: Any) -> Array:
    """diag 0 = 0"""
    return zero_diagonal(A)


@rule(diag, Permutation)
def diag_permutation(A: Any, method: Any) -> Array:
    """diag(P)_i = 1 where perm_i = i, else 0"""
    if isinstance(A.perm, Index):
        return array_like(A, A.perm.host == np.arange(A.shape[-1]))
    return A.xp.astype(A.perm == places_like(A.xp, A.perm), A.dtype)


@rule(diag, Triangular)
def diag_triangular(A: Any, method: Any) -> Array:
    """diag T is stored, or all ones"""
    return ones_on_diagonal(A) if A.unit else A.xp.diagonal(A.A)


@rule(diag, Tridiagonal)
def diag_tridiagonal(A: Any, method: Any) -> Array:
    """diag T is stored"""
    return A.xp.broadcast_to(A.diag, A.shape[:-1])


@rule(diag, Banded)
def diag_banded(A: Any, method: Any) -> Array:
    """diag B is stored, or zero"""
    main = [d for d, offset in zip(A.diagonals, A.offsets) if offset == 0]
    return sum(main, start=zero_diagonal(A))


@rule(diag, Circulant | Toeplitz)
def diag_toeplitz(A: Any, method: Any) -> Array:
    """diag T = t_0, n times"""
    return zero_diagonal(A) + A.col[..., :1]


@rule(diag, Convolution)
def diag_convolution(A: Any, method: Any) -> Array:
    """diag K: the kernel at its origin, n times"""
    if 0 in A.shape:
        return zero_diagonal(A)
    kernel, origin = A._fitted()
    return zero_diagonal(A) + kernel[(..., *origin)][..., None]


@rule(diag, FFT)
def diag_fft(A: Any, method: Any) -> Array:
    """diag(F)_j = exp(-2πi j^2 / n) / sqrt(n), a Kronecker product over the grid"""
    sign = 1 if A.inverse else -1
    # j^2 mod n in integers, so that the angles are small and exact
    lines = [np.exp(sign * 2j * np.pi * (np.arange(n) ** 2 % n) / n) / math.sqrt(n) for n in A.grid]
    return array_like(A, reduce(np.kron, lines))


@rule(diag, Householder)
def diag_householder(A: Any, method: Any) -> Array:
    """diag(I - 2 v v^H / v^H v)_i = 1 - 2 |v_i|^2 / v^H v"""
    if 0 in A.shape:
        return zero_diagonal(A)
    w, squared = A._scaled()
    return A.xp.astype(1 - 2 * (A.xp.real(A.xp.conj(w) * w) / squared)[..., 0], A.dtype)


@rule(diag, Projection)
def diag_projection(A: Any, method: Any) -> Array:
    """diag(Q Q^H)_i = |Q_i|^2"""
    return A.xp.sum(A.Q * A.xp.conj(A.Q), axis=-1)


@rule(diag, LowRank)
def diag_low_rank(A: Any, method: Any) -> Array:
    """diag(U C V^H)_i = (U C)_i · conj(V_i)"""
    xp, size, (U, V) = A.xp, smaller_side(A), low_rank_sides(A)
    return xp.vecdot(V[..., :size, :], U[..., :size, :], axis=-1)


@rule(diag, Sparse)
def diag_sparse(A: Any, method: Any) -> Array:
    """diag S: the entries stored on it"""
    structure = A.structure
    places = structure.memo.get("diagonal")
    if places is None:
        places = structure.memo["diagonal"] = (structure.rows == structure.columns).nonzero()[0]
    key = places
    if not A.xp.is_functional:  # JAX indexes with NumPy's; others keep them where the entries are
        if (index := structure.memo.get("places of diagonal")) is None:
            index = structure.memo["places of diagonal"] = Index(places)
        key = index.on(A.xp, A._context.device)
    found = A.xp.take(A.data, key, axis=-1)
    if len(places) == smaller_side(A):
        return found
    return A.xp.scatter_add(zero_diagonal(A), structure.rows[places], found, axis=-1)


@rule(diag, Kernel)
def diag_kernel(A: Any, method: Any) -> Array:
    """diag(K)_i = k(x_i, y_i), in blocks of points; v φ(0) where k is one of the distance"""
    fitting("diag", method)
    xp, batch, size = A.xp, A.batch_shape, smaller_side(A)
    if 0 in (size, *batch):
        return zero_diagonal(A)
    radial = getattr(A.k, "radial", None)
    if radial is not None and A.Y is None and not batch:
        found = xp.astype(radial.diagonal(A.X, *A.parameters), A.dtype)
        return xp.reshape(found, (size,))
    if A._is_tiled:
        rows, columns = A._points()
        runs = (slice(i, min(i + POINTS, size)) for i in range(0, size, POINTS))
        return xp.concat([xp.diagonal(A._entries(rows[run], columns[run])) for run in runs])
    count = -(-size // POINTS) * POINTS
    which = Index(np.minimum(np.arange(count), size - 1))  # the last point repeats
    tiles = []
    for points in A._points():
        points = xp.take(points, which.on(xp, A._context.device), axis=-2)
        points = xp.broadcast_to(points, (*A._point_batch, *points.shape[-2:]))
        tiles.append(xp.reshape(points, (-1, POINTS, points.shape[-1])))
    # (tiles, *parameter_batch, points)
    found = xp.loop_map(lambda x, y: xp.diagonal(A._entries(x, y)), *tiles)
    return xp.reshape(xp.moveaxis(found, 0, -2), (*batch, count))[..., :size]


# Diagonals of products, without the product, and of inverses, where the structure gives them: more
# rules of `diag`.


# --------------------------------------------------------------------------------------------------


def is_thin_and_filled(A: LinearOperator) -> bool:
    """Whether a dimension inside the product is smaller than those outside, and it is not
    sparse."""
    return has_thin_waist(A) and simplify.find(A).is_base and not A._is_out_of_core


@rule(diag, Product, when=is_thin_and_filled)
def diag_thin_product(A: Any, method: Any) -> Array:
    """diag(A B)_i = Σ_j A_ij B_ji, the product cut where it is thinnest"""
    fitting("diag", method)
    xp, factors, size, cut = A.xp, operands_in_context(A), smaller_side(A), waist(A)[1]
    L, R = (Product(*part)._dense() for part in (factors[:cut], factors[cut:]))
    return xp.sum(L[..., :size, :] * xp.matrix_transpose(R[..., :, :size]), axis=-1)


@rule(diag, Product[Dense, Dense])
def diag_dense_product(A: Any, method: Any) -> Array:
    """diag(A B)_i = Σ_j A_ij B_ji"""
    fitting("diag", method)
    xp, size = A.xp, smaller_side(A)
    L, R = A.operands[0].A[..., :size, :], A.operands[1].A[..., :, :size]
    # as columns, in which those of A^H A lie in memory
    if xp.is_functional:  # einsum would be many small products
        return xp.sum(xp.matrix_transpose(L) * R, axis=-2)
    return xp.column_dot(adjoint(xp, L), R)


@rule(diag, Product[Sparse, Sparse])
def diag_sparse_product(A: Any, method: Any) -> Array:
    """diag(S T)_i = Σ_j S_ij T_ji, over the places that S and T^T share"""
    S, T = A.operands[0], A.operands[1].T
    keys: Any = [
        B.structure.rows.astype(np.int64) * B.shape[-1] + B.structure.columns for B in (S, T)
    ]
    _, first, second = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    keep = S.structure.rows[first] < smaller_side(A)
    first, second = first[keep], second[keep]
    products = A.xp.take(S.data, first, axis=-1) * A.xp.take(T.data, second, axis=-1)
    return A.xp.scatter_add(zero_diagonal(A), S.structure.rows[first], products, axis=-1)


@rule(diag, Product[Sparse, Dense])
def diag_sparse_dense_product(A: Any, method: Any) -> Array:
    """diag(S B)_i = Σ_j S_ij B_ji, over the places of S"""
    S, B = A.operands
    places = np.flatnonzero(S.structure.rows < smaller_side(A))
    rows, columns = (
        Index(x[places]).on(A.xp, A._context.device)
        for x in (S.structure.rows, S.structure.columns)
    )
    products = A.xp.take(S.data, places, axis=-1) * B.A[..., columns, rows]
    return A.xp.scatter_add(zero_diagonal(A), S.structure.rows[places], products, axis=-1)


@rule(diag, Product[Dense, Sparse])
def diag_dense_sparse_product(A: Any, method: Any) -> Array:
    """diag(B S) = diag(S^T B^T)"""
    return diag(Product(A.operands[1].T, A.operands[0].T), method)


@rule(diag, Product[Diagonal, ...], cost=smaller_side)
def diag_of_scaled_rows(A: Any, method: Any) -> Array:
    """diag(diag(d) A) = d * diag A"""
    D, *rest = operands_in_context(A)
    return D.d[..., : smaller_side(A)] * diag(Product(*rest), method)  # type: ignore[attr-defined]


@rule(diag, Product[..., Diagonal], cost=smaller_side)
def diag_of_scaled_columns(A: Any, method: Any) -> Array:
    """diag(A diag(d)) = diag A * d"""
    *rest, D = operands_in_context(A)
    return diag(Product(*rest), method) * D.d[..., : smaller_side(A)]  # type: ignore[attr-defined]


@rule(diag, Product[..., LowRank, ...], cost=lambda A: 2 * smaller_side(A))
def diag_product_with_low_rank(A: Any, method: Any) -> Array:
    """diag(A U C V^H B) = diag((A U C) (V^H B))"""
    before, low_rank, after = arrange(A, ..., LowRank, ...)
    U, V = map(Dense, low_rank_sides(low_rank))
    return diag(Product(*before, U, V.H, *after), method)


@rule(diag, Product[Dense, Diagonal, Dense])
def diag_of_diagonalised(A: Any, method: Any) -> Array:
    """diag(A diag(d) B) = (A * B^T) d"""
    L, D, R = A.operands
    size = smaller_side(A)
    return A.xp.einsum("...ij,...j,...ji->...i", L.A[..., :size, :], D.d, R.A[..., :, :size])


def factors_pair_up(A: LinearOperator) -> bool:
    """Whether the factors of the first and of the last Kronecker product have transposed shapes,
    one by one."""
    first, last = (A.operands[i].operands for i in (0, -1))
    return [P.shape[-2:] for P in first] == [Q.shape[-2:][::-1] for Q in last]


@rule(diag, Product[Kronecker, Diagonal, Kronecker], when=factors_pair_up)
def diag_of_diagonalised_kronecker(A: Any, method: Any) -> Array:
    """diag((A ⊗ B) diag(d) (C ⊗ D)) = (A * C^T ⊗ B * D^T) d"""
    L, D, R = A.operands
    pairs = zip(operands_in_context(L), operands_in_context(R), strict=True)
    entries = Kronecker(*(P._dense() * A.xp.matrix_transpose(Q._dense()) for P, Q in pairs))
    return (entries @ D.d[..., None])[..., 0]


# --------------------------------------------------------------------------------------------------


@rule(diag, Inverse[Triangular])
def diag_inverse_triangular(A: Any, method: Any) -> Array:
    """diag(T^-1) = 1 / diag T"""
    return reciprocal(diag(A.A, method))


@rule(diag, Inverse[Tridiagonal])
def diag_inverse_tridiagonal(A: Any, method: Any) -> Array:
    """diag(T^-1)_i = 1 / (p_i + q_i - t_ii), p and q the pivots of elimination from above and
    from below"""
    T = A.A
    found = tridiagonal_inverse_diagonal(A.xp, T.lower, zero_diagonal(T) + T.diag, T.upper)
    return A.xp.astype(found, A.dtype)


def wraps_around(A: LinearOperator) -> bool:
    """Whether the operator that is inverted commutes with shifts of a periodic grid."""
    return getattr(A.operands[0], "boundary", "wrap") == "wrap"


@rule(diag, Inverse[Circulant | Convolution], when=wraps_around)
def diag_inverse_circulant(A: Any, method: Any) -> Array:
    """diag(C^-1) = (C^-1 e_1)_1, n times: C^-1 is circulant too"""
    first = array_like(A, np.eye(1, A.shape[-1])[0])
    return zero_diagonal(A) + (A @ first)[..., :1]


def factor_is_spectral(A: LinearOperator) -> bool:
    """Whether the inverse is kept as eigenvectors and eigenvalues."""
    return isinstance(A.factor, SpectralFactor)  # type: ignore[attr-defined]


@rule(diag, Inverse, when=factor_is_spectral)
def diag_spectral_inverse(A: Any, method: Any) -> Array:
    """diag(V diag(1/λ) V^-1) = (V * V^-T) (1/λ)"""
    factor = A.factor
    found = diag(Product(factor.V, Diagonal(factor.d), factor.W), method)
    return real_or_complex(found, A.dtype)


@rule(diag, RealPart)
def diag_real_part(A: Any, method: Any) -> Array:
    """diag(A) of a real A that is held as complex factors"""
    return A.xp.real(diag(A.A, method))


# flops that n products may take where derivatives are recorded: they are right for every kind of
# factor
PRODUCTS = 1e8


def factor_is_known(A: LinearOperator) -> bool:
    """Whether products are differentiated by the equation that they solve, and how they are made
    is known."""
    return isinstance(A.factor, Implicit) and A.factor.find is not None  # type: ignore[attr-defined]


@rule(diag, Inverse, when=factor_is_known)
def diag_known_inverse(A: Any, method: Any) -> Array:
    """diag((V ⊗ W) diag(1/z) (V ⊗ W)^-1) = (V * V^-T ⊗ W * W^-T) (1/z), with the derivative of
    the inverse"""
    known = A.factor
    if A.shape[-1] * A.flops <= PRODUCTS:
        return exact_diagonal(A)
    found = _diagonal_by_resolvents(A, getattr(known.solver, "factor", None))
    return diag(perform(known.find(known.A, None)), method) if found is None else found


def _diagonal_by_resolvents(A: Any, spectral: Any) -> Array | None:
    """diag(A^-1) for A = C or C + c I, C a Kronecker product or sum; None where eigenvectors are
    not kept, or are seen to serve as well, in less time."""
    if not isinstance(spectral, SpectralFactor):
        return None
    xp, whole = A.xp, A.A
    kronecker, c = whole, 0.0
    if isinstance(whole, Sum):
        kronecker, shift = arrange(whole, Kronecker | KroneckerSum, SHIFT)
        c = scalar_of(shift)
    typed = lambda x: xp.astype(x, spectral.d.dtype)
    V, W = ([typed(X.to_dense()) for X in side.operands] for side in (spectral.V, spectral.W))
    matrices = [typed(dense_part(factor, whole)) for factor in kronecker.operands]
    images = [xp.matmul(xp.stop_gradient(M), X) for M, X in zip(matrices, V)]
    # diag(V^-1 A V)
    values = [xp.sum(Y * xp.matrix_transpose(Z), axis=-1) for Y, Z in zip(W, images)]
    harmless = [host_value(xp, resolvents.are_harmless(xp, v, X)) for v, X in zip(values, V)]
    if all(known is not None and bool(known) for known in harmless):
        return None
    a, b = (typed(xp.asarray(x, device=A._context.device)) for x in (1.0, c))
    grid = Grid(lambda x: x, isinstance(kronecker, KroneckerSum))
    found = resolvents.inverse_diagonal(xp, grid, matrices, values, V, a, b)
    return xp.broadcast_to(real_or_complex(found, A.dtype), A.shape[:-1])


@rule(diag, Streamed, direct=True)
def diag_streamed(A: Any, method: Any) -> Array:
    """The diagonal of the chunks that it meets"""
    fitting("diag", method)
    return A.main_diagonal()
