"""Derivatives of functions of a matrix, of the pseudoinverse, and of the determinant as the
polynomial that it is."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backends import Array, adjoint
from ..errors import DerivativeWarning
from ..methods import roots
from .implicit import Equation, of_matrix
from .linear_in_function import derive
from .spectral import (
    attached,
    close,
    eig_known,
    eigh_known,
    exceeds,
    guarded,
    hermitian,
    largest,
    off_diagonal,
    once,
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
    if not xp.is_differentiated(A) or xp.is_compiling() or not A.shape[-1]:
        return _product_of_pivots(xp, A)
    value = _product_of_pivots(xp, xp.stop_gradient(A))
    return _attached(
        xp, A, value, xp.zeros(value.shape, dtype=xp.real_dtype(A.dtype), device=xp.device_of(A))
    )


def polynomial(xp: Any, A: Array, sign: Array, logarithm: Array) -> tuple[Array, Array]:
    """m and l of det A, from its sign and the logarithm of its absolute value, which are
    constants."""
    n = A.shape[-1]
    if not n:
        return sign, logarithm
    held = xp.stop_gradient(A)
    size = xp.max(xp.abs(held), axis=(-2, -1))
    size = xp.where(size > 0, size, 1)
    logarithm = xp.where(logarithm == -math.inf, n * xp.log(size), logarithm)
    return _attached(xp, A, sign, logarithm), logarithm


def with_adjugate(xp: Any, A: Array) -> tuple[Array, Array, Array]:
    """m, l and adj(A) e^-l, by LU."""
    d, parity = _pivots(xp, xp.stop_gradient(A))
    size = xp.abs(d)
    sign = xp.prod(d / xp.where(size == 0, 1, size), axis=-1) * parity
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


def _product_of_pivots(xp: Any, A: Array) -> Array:
    """det A = ± ∏ u_ii for A = P L U"""
    d, parity = _pivots(xp, A)
    product: Array = xp.prod(d, axis=-1) * parity
    return product


def _pivots(xp: Any, A: Array) -> tuple[Array, Array]:
    """The diagonal of U and the sign of P, A = P L U."""
    factors, pivots = xp.lu_factor(A)
    return xp.diagonal(factors), xp.astype(xp.lu_permutation(pivots, A.shape[-1])[1], A.dtype)


def _adjugate(xp: Any, A: Array, m: Array, l: Array) -> Array:
    """adj(A) e^-l, from A^-1 where the determinant is not zero, else from singular values."""
    is_zero = xp.stop_gradient(m) == 0
    m = _attached(xp, A, m, l)
    mask = is_zero[..., None, None]
    I = xp.eye(A.shape[-1], dtype=A.dtype, device=xp.device_of(A))

    def of_regular(A: Array, m: Array) -> Array:
        regular = xp.where(mask, I, A)
        inverse = xp.lu_solve(*xp.lu_factor(regular), xp.broadcast_to(I, A.shape))
        return m[..., None, None] * inverse  # det(A) A^-1

    def of_any(A: Array, m: Array) -> Array:
        c = xp.exp(l / A.shape[-1])[..., None, None]  # adj(A) = c^(n-1) adj(A / c)
        return xp.where(mask, _adjugate_of_singular(xp, A / c) / c, of_regular(A, m))

    return xp.cond(xp.any(is_zero), of_any, of_regular, A, m)


def _adjugate_of_singular(xp: Any, A: Array) -> Array:
    def of(A: Array) -> Array:
        c, U, s, V = _singular_vectors(xp, A)
        return _between(
            xp, c, V, xp.make_diagonal(xp.astype(_products_of_others(xp, s), A.dtype)), U
        )

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
    """G, the change of the adjugate of diag(s) by F. P is symmetric and real, so this map is its
    own adjoint."""
    P = _products_of_other_pairs(xp, s)
    d = xp.diagonal(F)
    own = xp.sum(xp.astype(P, F.dtype) * d[..., None, :], axis=-1)  # Σ_j P_ij F_jj
    return xp.make_diagonal(own) - P * F  # P_ii = 0


def _products_of_others(xp: Any, s: Array) -> Array:
    """∏_(k≠i) s_k for each i, without a division."""
    return xp.prod(_without(xp, s), axis=-1)


def _products_of_other_pairs(xp: Any, s: Array) -> Array:
    """∏_(k≠i,j) s_k for each i and j, zero for i = j. Holds n^3 numbers, but only second
    derivatives need it."""
    others = _without(xp, s)[..., :, None, :]  # (i, 1, k)
    n = s.shape[-1]
    I = xp.eye(n, dtype=s.dtype, device=xp.device_of(s))
    pairs = xp.prod(
        xp.where(I > 0, xp.ones((), dtype=s.dtype, device=xp.device_of(s)), others), axis=-1
    )
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


# Derivatives of functions of a matrix, and of the pseudoinverse.


FEW = (
    2**14
    # numbers of which several times as many are held at once: one operation instead of many, which
    # JAX compiles sooner
)
FINE, COARSE = (np.polynomial.legendre.leggauss(n) for n in (5, 3))


# --------------------------------------------------------------------------------------------------


def spectral_function(
    xp: Any, f: Callable[[Array], Array], A: Array, values: Array, V: Array, is_hermitian: bool
) -> Array:
    """f(A) = V f(Λ) V^-1, from the eigenpairs; f maps arrays entry by entry.

    The derivative needs no derivative of V (Daleckii and Krein 1965; Higham, Functions of Matrices,
    theorem 3.11): for f(x) = x^p
        V^-1 d(A^p) V = Σ_q Λ^q P Λ^(p-1-q),   P = V^-1 dA V,   of which entry (i, j) is P_ij (λ_i^p
        - λ_j^p) / (λ_i - λ_j),
    so for all f that are limits of polynomials on the spectrum, with the divided differences D_ij =
    f[λ_i, λ_j],
        df(A) = V (D ∘ P) V^-1,
    which is as smooth where eigenvalues meet as elsewhere: there D_ij = f'(λ_i).

    Its own derivative along H, Q = V^-1 H V, has the entries Σ_k f[λ_i, λ_k, λ_j] (P_ik Q_kj + Q_ik
    P_kj). Differentiating D and V gives all of it but for those entries of Q between different
    vectors of one eigenvalue, which the derivatives of eigenvalues do not know. With M = V^-1 A V,
    V held, which is Λ but has the derivative Q, they come from
        W ∘ (M P) + W^T ∘ (P M),    W_ij = f[λ_i, λ_i, λ_j],    M taken there only: zero, but for its derivative.
    """

    def of(f: Callable, A: Array, values: Array, V: Array) -> Array:
        scaled = V * f(values)[..., None, :]
        if is_hermitian:
            return xp.matmul(scaled, adjoint(xp, V))
        return _times_inverse(xp, scaled, V)

    def tangent(f: Callable, primals: tuple, tangents: tuple, output: Array) -> Array:
        A, values, V = primals
        values, V = (eigh_known if is_hermitian else eig_known)(xp, A, values, V, False)
        D, (M, W) = (
            divided_differences(xp, f, values[..., :, None], values[..., None, :]),
            inside(f, A, *primals[1:]),
        )
        if is_hermitian:
            Vh, dA = adjoint(xp, V), hermitian(xp, tangents[0])
            P = xp.matmul(Vh, xp.matmul(dA, V))
            T = D * P + W * xp.matmul(M, P) + xp.matrix_transpose(W) * xp.matmul(P, M)
            return xp.matmul(V, xp.matmul(T, Vh))
        P = xp.lu_solve(*xp.lu_factor(V), xp.matmul(xp.astype(tangents[0], V.dtype), V))
        T = D * P + W * xp.matmul(M, P) + xp.matrix_transpose(W) * xp.matmul(P, M)
        return _times_inverse(xp, xp.matmul(V, T), V)

    def inside(f: Callable, A: Array, values: Array, V: Array) -> tuple[Array, Array]:
        """M and W, for what is between different vectors of one eigenvalue."""
        M = (
            xp.matmul(adjoint(xp, V), xp.matmul(A, V))
            if is_hermitian
            else xp.lu_solve(*xp.lu_factor(V), xp.matmul(A + 0 * V, V))
        )
        M = xp.where(off_diagonal(xp, close(xp, values)), M, 0 * M)
        a, b = (
            values[..., :, None] + 0 * values[..., None, :],
            values[..., None, :] + 0 * values[..., :, None],
        )
        slope = xp.jvp(
            lambda a: divided_differences(xp, f, a, b),
            a,
            xp.ones(a.shape, dtype=a.dtype, device=xp.device_of(a)),
        )[1]
        return M - xp.stop_gradient(M), xp.stop_gradient(slope)

    held = xp.stop_gradient(values), xp.stop_gradient(V)
    if not xp.is_differentiated(A):
        return of(f, A, *held)
    if not is_hermitian:
        xp.warn_later(_are_almost_parallel(xp, held[1]), PARALLEL, category=DerivativeWarning)

    def attach(A: Array, values: Array, V: Array) -> tuple:
        return A, *(eigh_known if is_hermitian else eig_known)(xp, A, values, V)

    return derive(xp, f, of, tangent, attach, (A, *held), (2, 1, 2), held[0])


PARALLEL = (
    "apply: A is nearly defective, so that its eigenvectors are almost parallel. The derivative "
    "of f(A) is found by them and has lost "
    "most of its digits. Use exp, log, sqrt or power, which need no eigenvectors, or Krylov()."
)


def _are_almost_parallel(xp: Any, V: Array) -> Array:
    """Whether rounding errors eps κ(V)^2 of the derivative exceed the fourth root of eps."""
    if 0 in V.shape:
        return xp.zeros(V.shape[:-2], dtype=xp.bool, device=xp.device_of(V))
    eye = xp.eye(V.shape[-1], dtype=V.dtype, device=xp.device_of(V))
    inverse = xp.lu_solve(*xp.lu_factor(V), xp.broadcast_to(eye, V.shape))
    condition = (
        xp.vector_norm(V, axis=(-2, -1)) * xp.vector_norm(inverse, axis=(-2, -1)) / V.shape[-1]
    )
    return xp.logical_not(condition <= xp.eps(V.dtype) ** -0.375)


def spectral_difference(
    xp: Any, f: Callable[[Array], Array], M: Array, c: Array, values: Array, Z: Array
) -> Array:
    """h(M) for a self-adjoint M = Z Λ Z^H and h(x) = f[c + x, c] = (f(c + x) - f(c)) / x, with c of
    shape (*batch,).

    It is what f(c I + U U^H) = f(c) I + U h(U^H U) U^H needs, and as smooth as f' also where U^H U
    is singular, or zero. The derivative along dM is that of `spectral_function`, with the divided
    differences of h, and along dc it is ∂h/∂c on the spectrum.
    """

    def h(f: Callable, x: Array, c: Array) -> Array:
        c = c[(..., *(None,) * (x.ndim - c.ndim))]
        return divided_differences(xp, f, c + x, c + 0 * x)

    def of(f: Callable, M: Array, c: Array, values: Array, Z: Array) -> Array:
        return xp.matmul(Z * h(f, values, c)[..., None, :], adjoint(xp, Z))

    def tangent(f: Callable, primals: tuple, tangents: tuple, output: Array) -> Array:
        (M, c, values, Z), (dM, dc, *_) = primals, tangents
        values, Z = eigh_known(xp, M, values, Z)
        P = xp.matmul(adjoint(xp, Z), xp.matmul(hermitian(xp, dM), Z))
        D = divided_differences(
            xp, lambda x: h(f, x, c), values[..., :, None], values[..., None, :]
        )
        slope = xp.jvp(lambda c: h(f, values, c), c, dc)[1]
        return xp.matmul(Z, xp.matmul(D * P + xp.make_diagonal(slope), adjoint(xp, Z)))

    held = xp.stop_gradient(values), xp.stop_gradient(Z)

    def attach(M: Array, c: Array, values: Array, Z: Array) -> tuple:
        return M, c, *eigh_known(xp, M, values, Z)

    return derive(xp, f, of, tangent, attach, (M, c, *held), (2, 0, 1, 2), held[0])


def _times_inverse(xp: Any, X: Array, V: Array) -> Array:
    """X V^-1, from V^T (X V^-1)^T = X^T."""
    return xp.matrix_transpose(
        xp.lu_solve(*xp.lu_factor(V), xp.matrix_transpose(X), transpose=True)
    )


def divided_differences(xp: Any, f: Callable[[Array], Array], a: Array, b: Array) -> Array:
    """f[a, b] = (f(a) - f(b)) / (a - b), or the mean of f' between them, whichever is the more
    accurate.

    The quotient is wrong by eps (|f| + |x f'|) / |a - b|, for f is rounded, and so is what is
    inside of it, which shows where f is zero. The mean, by Gauss's quadrature, is right to rounding
    where f is smooth at that scale; the difference to a coarser rule bounds its error from above,
    by far.
    """
    p, q = xp.stop_gradient(a), xp.stop_gradient(b)
    fp, fq = f(p + 0 * q), f(q + 0 * p)
    gap = xp.abs(p - q)
    slope, coarse = (_mean_slope(xp, f, p, q, rule) for rule in (FINE, COARSE))
    rounding = xp.eps(a.dtype) * (xp.abs(fp) + xp.abs(fq) + xp.abs(slope) * (xp.abs(p) + xp.abs(q)))
    doubt = xp.abs(slope - coarse)
    near = xp.logical_or(doubt * gap <= rounding, gap == 0)
    # Neither way is to see arguments that are the other's, for the sake of what is differentiated
    # again.
    one = xp.ones((), dtype=a.dtype, device=xp.device_of(a))
    quotient = (f(a + 0 * b) - f(b + 0 * a)) / xp.where(near, one, a - b)
    mean = _mean_slope(xp, f, a, xp.where(near, b, a), FINE)
    return xp.where(near, mean, quotient)


def _mean_slope(xp: Any, f: Callable[[Array], Array], a: Array, b: Array, rule: Any) -> Array:
    """The mean of f' between a and b, by the nodes and weights of a rule: at all nodes at once,
    where there are few numbers."""

    def slope(at: Array) -> Array:
        return xp.jvp(f, at, xp.ones(at.shape, dtype=at.dtype, device=xp.device_of(at)))[1]

    nodes, weights = (rule[0] + 1) / 2, rule[1] / 2
    step = b - a
    if math.prod(step.shape) <= FEW:
        nodes, weights = (
            xp.asarray(x, dtype=xp.real_dtype(step.dtype), device=xp.device_of(step))
            for x in (nodes, weights)
        )
        return xp.sum(weights * slope(a[..., None] + nodes * step[..., None]), axis=-1)
    return sum(
        float(weight) * slope(a + float(node) * step)
        for node, weight in zip(nodes, weights, strict=True)
    )


# --------------------------------------------------------------------------------------------------


def square_root(xp: Any, A: Array) -> tuple[Array, Array]:
    """A^(1/2) and A^(-1/2), principal, of a matrix that need not be diagonalisable.

    X X = A gives X dX + dX X = dA, a Sylvester equation; its solution stands in the root of a block
    triangle,
        [A dA]^(1/2)   [X dX]
        [0  A]       = [0  X],
    which is how it is solved (Higham, theorem 3.6). Y = X^-1 gives dY = -Y dX Y.
    """
    if not xp.is_differentiated(A):
        return roots.square_root(xp, A)

    def solve(R: Array, X: Array, A: Array) -> Array:
        return _corner(xp, lambda B: roots.square_root(xp, B)[0], A, R)

    equation = _equation(xp, lambda E, X, A: xp.matmul(X, E) + xp.matmul(E, X), solve)

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        (A,), (X, Y) = primals, output
        dX = equation(tangents[0], (X, A))
        return dX, -xp.matmul(Y, xp.matmul(dX, Y))

    def cotangent(primals: tuple, output: tuple, cotangents: tuple) -> tuple[Array]:
        (X, Y), (G, H) = output, cotangents
        Yh = adjoint(xp, Y)
        return (equation.adjoint()(G - xp.matmul(Yh, xp.matmul(H, Yh)), (X, primals[0])),)

    return xp.custom_derivative(lambda A: roots.square_root(xp, A), jvp=tangent, vjp=cotangent)(A)


def logarithm(xp: Any, A: Array) -> Array:
    """The principal logarithm of a matrix that need not be diagonalisable.

    e^X = A gives L(X, dX) = dA, with L the derivative of the exponential: a linear equation for dX,
    whose solution is in the corner of the logarithm of [A dA; 0 A].
    """
    if not xp.is_differentiated(A):
        return roots.logarithm(xp, A)

    def solve(R: Array, X: Array, A: Array) -> Array:
        return _corner(xp, lambda B: roots.logarithm(xp, B), A, R)

    equation = _equation(xp, lambda E, X, A: xp.jvp(xp.expm, X, E)[1], solve)

    def tangent(primals: tuple, tangents: tuple, X: Array) -> Array:
        return equation(tangents[0], (X, primals[0]))

    def cotangent(primals: tuple, X: Array, G: Array) -> tuple[Array]:
        return (equation.adjoint()(G, (X, primals[0])),)

    return xp.custom_derivative(lambda A: roots.logarithm(xp, A), jvp=tangent, vjp=cotangent)(A)


def _equation(xp: Any, multiply: Callable[..., Array], solve: Callable[..., Array]) -> Equation:
    """That of a map M of matrices, X and A being constants, with M^H E = (M E^H)^H: the
    derivative of a function of a matrix."""

    def flipped(f: Callable[..., Array]) -> Callable[..., Array]:
        return lambda E, *constants: adjoint(xp, f(adjoint(xp, E), *constants))

    return Equation(xp, multiply, solve, (flipped(multiply), flipped(solve)), 2)


def _corner(xp: Any, f: Callable[[Array], Array], A: Array, E: Array) -> Array:
    """The upper right block of f([A E; 0 A]), the derivative of f at A along E. E is scaled,
    lest it steer the iteration."""
    n = A.shape[-1]
    size = xp.max(xp.abs(E), axis=(-2, -1), keepdims=True)
    scale = xp.where(size > 0, size, 1) / xp.max(xp.abs(A), axis=(-2, -1), keepdims=True)
    A = xp.broadcast_to(A, E.shape)
    upper, lower = xp.concat([A, E / scale], axis=-1), xp.concat([0 * A, A], axis=-1)
    return scale * f(xp.concat([upper, lower], axis=-2))[..., :n, n:]


# --------------------------------------------------------------------------------------------------


def pseudoinverse(xp: Any, A: Array, X: Array) -> Array:
    """X = A^+, as it is, with its derivative where the rank stays (Golub and Pereyra 1973).

    A X A = A and X A X = X, with A X and X A self-adjoint, give
        dX = -X dA X  +  X X^H dA^H (I - A X)  +  (I - X A) dA^H X^H X:
    the first term is that of an inverse; the second turns the range of A, and is zero for full row
    rank; the third turns its rows' span, and is zero for full column rank. Where the rank changes
    A^+ jumps, and there is no derivative. This is `Equation` for A^+ I.
    """
    held, m = xp.stop_gradient(X), A.shape[-2]
    if not xp.is_differentiated(A):
        return held
    options: dict[str, Any] = {"least_squares": True, "first": lambda B, A, X: (X + 0,)}
    times = lambda B, is_adjoint, X: xp.matmul(adjoint(xp, X) if is_adjoint else X, B)
    eye = xp.broadcast_to(xp.eye(m, dtype=A.dtype, device=xp.device_of(A)), (*A.shape[:-1], m))
    return of_matrix(xp, A.ndim - 2, times, **options)(eye, (A, held))


def nullspace(xp: Any, A: Array, N: Array, X: Array) -> Array:
    """An orthonormal basis N of the null space of A, given X = A^+; the rank is taken to stay.

    A N = 0 gives A dN = -dA N. The part of dN outside the null space is -A^+ dA N; the part inside
    is a change of basis, taken as zero: a function that depends on it has no derivative.
    """

    def judge(cotangents: tuple) -> Array:
        S, G = cotangents
        size = xp.maximum(largest(xp, S, 2), largest(xp, G, 2))
        return exceeds(xp, S - adjoint(xp, S), size, 2)

    def nowhere(P: Array) -> Array:
        return xp.zeros(P.shape[:-2], dtype=xp.bool, device=xp.device_of(P))

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        A, _, X = primals
        N, X = output[0], pseudoinverse(xp, A, X)
        moved = -xp.matmul(X, xp.matmul(tangents[0], N))
        K = 0 * xp.matmul(adjoint(xp, N), moved)  # the change of basis, there for its cotangent
        K, moved = guarded(xp, once("nullspace"), (K, moved), moved, nowhere, judge)
        return xp.matmul(N, K) + moved, 0 * X

    return attached(xp, A, (N, X), tangent, (2, 2))[0]
