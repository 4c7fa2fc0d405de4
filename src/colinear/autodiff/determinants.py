"""The determinant of a matrix with the derivatives of the polynomial that it is, at singular matrices too.

    d det A = tr(adj(A) dA),    adj(A) = det(A) A^-1

The right side has no meaning at a singular A, but adj(A) has. With A = U S V^H, S = diag(s) and F = U^H dA V,

    adj(A)   = det(U V^H) V diag(∏_(k≠i) s_k) U^H
    d adj(A) = det(U V^H) V G U^H,    G_ii = Σ_(j≠i) P_ij F_jj,    G_ij = -P_ij F_ij,    P_ij = ∏_(k≠i,j) s_k.

At a regular A all derivatives are right. At a singular one the first two are, and the third too if its
singular values are distinct; if they are not, it is NaN.
"""

from __future__ import annotations

from typing import Any

from ..backends import Array, adjoint


def det(xp: Any, A: Array) -> Array:
    """The determinants of matrices, (*batch, n, n), by LU."""
    if not xp.is_differentiated(A) or xp.is_compiling() or not A.shape[-1]:
        return _product_of_pivots(xp, A)

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        return xp.sum(xp.matrix_transpose(_adjugate(xp, primals[0])) * tangents[0], axis=(-2, -1))

    def cotangent(primals: tuple, output: Array, g: Array) -> tuple:
        return (g[..., None, None] * adjoint(xp, _adjugate(xp, primals[0])),)

    found: Array = xp.custom_derivative(lambda A: _product_of_pivots(xp, A), tangent, cotangent, (2,))(A)
    return found


def _product_of_pivots(xp: Any, A: Array) -> Array:
    """det A = ± ∏ u_ii for A = P L U"""
    factors, pivots = xp.lu_factor(A)
    parity = xp.astype(xp.lu_permutation(pivots, A.shape[-1])[1], A.dtype)
    product: Array = xp.prod(xp.diagonal(factors), axis=-1) * parity
    return product


def _adjugate(xp: Any, A: Array) -> Array:
    """adj(A), from A^-1 where the determinant is not zero, else from singular values."""
    determinant = det(xp, A)
    is_zero = xp.stop_gradient(determinant) == 0
    mask = is_zero[..., None, None]
    I = xp.eye(A.shape[-1], dtype=A.dtype, device=xp.device_of(A))

    def of_regular(A: Array, determinant: Array) -> Array:
        regular = xp.where(mask, I, A)
        inverse = xp.lu_solve(*xp.lu_factor(regular), xp.broadcast_to(I, A.shape))
        return determinant[..., None, None] * inverse  # det(A) A^-1

    def of_any(A: Array, determinant: Array) -> Array:
        return xp.where(mask, _adjugate_of_singular(xp, A), of_regular(A, determinant))

    return xp.cond(xp.any(is_zero), of_any, of_regular, A, determinant)


def _adjugate_of_singular(xp: Any, A: Array) -> Array:
    def of(A: Array) -> Array:
        c, U, s, V = _singular_vectors(xp, A)
        return _between(xp, c, V, xp.make_diagonal(xp.astype(_products_of_others(xp, s), A.dtype)), U)

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        c, U, s, V = _singular_vectors(xp, primals[0])
        return _between(xp, c, V, _change(xp, s, _middle(xp, U, tangents[0], V)), U)

    def cotangent(primals: tuple, output: Array, g: Array) -> tuple:
        c, U, s, V = _singular_vectors(xp, primals[0])
        G = _change(xp, s, _middle(xp, V, g, U))
        return (_between(xp, xp.conj(c), U, G, V),)

    found: Array = xp.custom_derivative(of, tangent, cotangent, (2,))(A)
    return found


def _singular_vectors(xp: Any, A: Array) -> tuple[Array, Array, Array, Array]:
    """det(U V^H), U, s and V."""
    U, s, Vh = xp.svd(A)
    return det(xp, xp.matmul(U, Vh)), U, s, adjoint(xp, Vh)


def _change(xp: Any, s: Array, F: Array) -> Array:
    """G, the change of the adjugate of diag(s) by F. P is symmetric and real, so this map is its own adjoint."""
    P = _products_of_other_pairs(xp, s)
    d = xp.diagonal(F)
    own = xp.sum(xp.astype(P, F.dtype) * d[..., None, :], axis=-1)  # Σ_j P_ij F_jj
    return xp.make_diagonal(own) - P * F  # P_ii = 0


def _products_of_others(xp: Any, s: Array) -> Array:
    """∏_(k≠i) s_k for each i, without a division."""
    return xp.prod(_without(xp, s), axis=-1)


def _products_of_other_pairs(xp: Any, s: Array) -> Array:
    """∏_(k≠i,j) s_k for each i and j, zero for i = j. Holds n^3 numbers, but only second derivatives need it."""
    others = _without(xp, s)[..., :, None, :]  # (i, 1, k)
    n = s.shape[-1]
    I = xp.eye(n, dtype=s.dtype, device=xp.device_of(s))
    pairs = xp.prod(xp.where(I > 0, xp.ones((), dtype=s.dtype, device=xp.device_of(s)), others), axis=-1)
    return pairs * (1 - I)


def _without(xp: Any, s: Array) -> Array:
    """A matrix with s in each row, but for ones on the diagonal."""
    I = xp.eye(s.shape[-1], dtype=s.dtype, device=xp.device_of(s))
    return xp.where(I > 0, I, s[..., None, :])


def _between(xp: Any, c: Array, U: Array, G: Array, V: Array) -> Array:
    """c U G V^H"""
    return c[..., None, None] * xp.matmul(U, xp.matmul(G, adjoint(xp, V)))


def _middle(xp: Any, U: Array, F: Array, V: Array) -> Array:
    """U^H F V"""
    return xp.matmul(adjoint(xp, U), xp.matmul(F, V))
