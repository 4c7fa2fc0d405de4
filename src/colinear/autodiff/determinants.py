"""The determinant with the derivatives of the polynomial that it is, at singular matrices too."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backends import (
    Array,
    adjoint,
    eye_like,
    inner_products,
    matrix_inverse,
    positive_or_one,
    without_zeros,
    zeros_like,
)

# The determinant of a matrix with the derivatives of the polynomial that it is, at singular
# matrices too.
#
# d det A = tr(adj(A) dA), adj(A) = det(A) A^-1
#
# The right side has no meaning at a singular A, but adj(A) has. With A = U S V^H, S = diag(s) and
# F = U^H dA V,
#
# adj(A) = det(U V^H) V diag(∏_(k≠i) s_k) U^H d adj(A) = det(U V^H) V G U^H, G_ii = Σ_(j≠i) P_ij
# F_jj, G_ij = -P_ij F_ij, P_ij = ∏_(k≠i,j) s_k.
#
# At a regular A all derivatives are right. At a singular one the first two are, and the third too
# if its singular values are distinct; if they are not, it is NaN.
#
# A determinant that over- or underflows is a pair, det A = m e^l. Within `polynomials` the rules
# of `slogdet` may keep all that depends on A in m, and l a finite constant: m has the derivatives
# of a polynomial, which the logarithm of a singular A lacks. A pair of a sign and log|det A| is
# another such pair, so that both may be multiplied.


class _Mode(threading.local):
    """Whether determinants are kept as polynomials."""

    def __init__(
        self,
    ) -> None:  # an attribute of the class would be shadowed while torch.compile traces
        self.is_on = False


_mode = _Mode()


@contextlib.contextmanager
def polynomials(is_on: bool = True) -> Iterator[None]:
    """Keep determinants as polynomials m e^l, l a constant; or do not."""
    outer, _mode.is_on = _mode.is_on, is_on
    try:
        yield
    finally:
        _mode.is_on = outer


def is_polynomial() -> bool:
    """Whether determinants are kept as polynomials."""
    return _mode.is_on


def det(xp: Any, A: Array) -> Array:
    """The determinants of matrices, (*batch, n, n), by LU."""
    is_known = not xp.is_differentiated(A) or xp.is_compiling() or not A.shape[-1]
    d, parity = _pivots(xp, A if is_known else xp.stop_gradient(A))
    value = xp.prod(d, axis=-1) * parity  # det A = ± ∏ u_ii for A = P L U
    if is_known:
        return value
    return _attached(xp, A, value, zeros_like(xp, xp.real(value), value.shape))


def polynomial(xp: Any, A: Array, sign: Array, logarithm: Array) -> tuple[Array, Array]:
    """m and l of det A, from its sign and the logarithm of its absolute value, which are
    constants."""
    n = A.shape[-1]
    if not n:
        return sign, logarithm
    held = xp.stop_gradient(A)
    size = xp.max(xp.abs(held), axis=(-2, -1))
    size = positive_or_one(xp, size)
    logarithm = xp.where(logarithm == -math.inf, n * xp.log(size), logarithm)
    return _attached(xp, A, sign, logarithm), logarithm


def with_adjugate(xp: Any, A: Array) -> tuple[Array, Array, Array]:
    """m, l and adj(A) e^-l, by LU."""
    d, parity = _pivots(xp, xp.stop_gradient(A))
    size = xp.abs(d)
    sign = xp.prod(d / without_zeros(xp, size), axis=-1) * parity
    m, l = polynomial(xp, A, sign, xp.sum(xp.log(size), axis=-1))
    return m, l, _adjugate(xp, A, sign, l)


def _attached(xp: Any, A: Array, m: Array, l: Array) -> Array:
    """m = det(A) e^-l, which is known, as a function of A."""

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        return xp.sum(xp.matrix_transpose(_adjugate(xp, *primals)) * tangents[0], axis=(-2, -1))

    def cotangent(primals: tuple, output: Array, g: Array) -> tuple:
        return g[..., None, None] * adjoint(xp, _adjugate(xp, *primals)), None, None

    found: Array = xp.custom_derivative(lambda A, m, l: m + 0, tangent, cotangent, (2, 0, 0))(
        A, m, l
    )
    return found


def _pivots(xp: Any, A: Array) -> tuple[Array, Array]:
    """The diagonal of U and the sign of P, A = P L U."""
    factors, pivots = xp.lu_factor(A)
    return xp.diagonal(factors), xp.astype(xp.lu_parity(pivots), A.dtype)


def _adjugate(xp: Any, A: Array, m: Array, l: Array) -> Array:
    """adj(A) e^-l, from A^-1 where the determinant is not zero, else from singular values."""
    is_zero = xp.stop_gradient(m) == 0
    m = _attached(xp, A, m, l)
    mask = is_zero[..., None, None]

    def of_regular(A: Array, m: Array) -> Array:
        regular = xp.where(mask, eye_like(xp, A), A)
        return m[..., None, None] * matrix_inverse(xp, regular)  # det(A) A^-1

    def of_any(A: Array, m: Array) -> Array:
        c = xp.exp(l / A.shape[-1])[..., None, None]  # adj(A) = c^(n-1) adj(A / c)
        return xp.where(mask, _adjugate_of_singular(xp, A / c) / c, of_regular(A, m))

    return xp.cond(xp.any(is_zero), of_any, of_regular, A, m)


def _adjugate_of_singular(xp: Any, A: Array) -> Array:
    def with_core(A: Array, core: Callable[..., Array]) -> Array:
        """det(U V^H) V G U^H, with G = `core(U, s, V)`."""
        U, s, Vh = xp.svd(A)
        V, c = adjoint(xp, Vh), det(xp, xp.matmul(U, Vh))
        G = xp.matmul(core(U, s, V), adjoint(xp, U))
        return c[..., None, None] * xp.matmul(V, G)

    def of(A: Array) -> Array:
        # ∏_(k≠i) s_k, without a division
        products = lambda s: xp.astype(xp.prod(_without(xp, s), axis=-1), A.dtype)
        return with_core(A, lambda U, s, V: xp.make_diagonal(products(s)))

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        inside = lambda U, V: inner_products(xp, U, xp.matmul(tangents[0], V))
        return with_core(primals[0], lambda U, s, V: _change(xp, s, inside(U, V)))

    found: Array = xp.custom_derivative(of, tangent, ranks=(2,))(A)
    return found


def _change(xp: Any, s: Array, F: Array) -> Array:
    """G, the change of the adjugate of diag(s) by F."""
    P = _products_of_other_pairs(xp, s)
    d = xp.diagonal(F)
    own = xp.sum(xp.astype(P, F.dtype) * d[..., None, :], axis=-1)  # Σ_j P_ij F_jj
    return xp.make_diagonal(own) - P * F  # P_ii = 0


def _products_of_other_pairs(xp: Any, s: Array) -> Array:
    """∏_(k≠i,j) s_k for each i and j, zero for i = j. Holds n^3 numbers, but only second
    derivatives need it."""
    others = _without(xp, s)[..., :, None, :]  # (i, 1, k)
    I = eye_like(xp, s)
    return xp.prod(xp.where(I > 0, I, others), axis=-1) * (1 - I)  # I is 1 where it is taken


def _without(xp: Any, s: Array) -> Array:
    """A matrix with s in each row, but for ones on the diagonal."""
    I = eye_like(xp, s)
    return xp.where(I > 0, I, s[..., None, :])


def slogdet_of_diagonal(xp: Any, d: Array, sign: Array | int = 1) -> tuple[Array, Array]:
    """The sign, times `sign`, and the logarithm of the absolute value of the product of d; or
    this product as a polynomial."""
    # without derivatives to care for: half as many passes
    if xp.name == "numpy" and d.dtype.kind == "f":
        if d.size and np.min(d) > 0:
            return np.ones(d.shape[:-1], d.dtype)[()] * sign, np.sum(np.log(d), axis=-1)
        with np.errstate(all="ignore"):
            logarithm = np.sum(np.log(np.abs(d)), axis=-1)
        parity = 1 - 2 * (np.count_nonzero(d < 0, axis=-1) % 2)
        known = np.where(np.isnan(logarithm), np.nan, parity * np.all(d, axis=-1))
        return known.astype(d.dtype)[()] * sign, logarithm
    size = xp.abs(d)
    positive = without_zeros(xp, size)
    if is_polynomial():
        size = positive = xp.stop_gradient(positive)
    # without a derivative at zero: that is NaN, never a number
    phase = xp.prod(d / positive, axis=-1)
    phase = phase if isinstance(sign, int) and sign == 1 else phase * sign
    return phase, xp.sum(xp.log(size), axis=-1)
