"""Derivatives of functions of a matrix, and of the pseudoinverse."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array, adjoint, eye_like, hermitian, inner_products, program
from ..backends.shared import corner
from ..errors import DerivativeWarning, ShapeError
from ..methods import roots
from ..operators.autograd_products import push_floats
from .implicit import Equation, of_matrix
from .spectral import (
    DEPENDENT,
    ROUNDINGS,
    are_parallel,
    attached,
    change,
    close,
    eig_known,
    eigh_known,
    exceeds,
    guarded,
    in_vectors,
    largest,
    nowhere,
    off_diagonal,
    once,
    spoiled,
)

FEW = (
    2**14
    # numbers of which several times as many are held at once: one operation instead of many, which
    # JAX compiles sooner
)
# the power of eps to which eigenvectors may be dependent: then rounding errors eps κ(V)^2 of the
# derivative are below the fourth root of eps
DIGITS = 0.375
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

    values, V = xp.stop_gradient(values), xp.stop_gradient(V)
    if not xp.is_differentiated(A):
        return _over(xp, is_hermitian, V * f(values)[..., None, :], V)
    if not is_hermitian and V.shape[-1]:
        bad = are_parallel(xp, V, DIGITS)
        xp.warn_later(bad, PARALLEL, category=DerivativeWarning)
    g, hidden = hoist_number(xp, f, values)
    return _by_pairs(xp, g, hidden, A, values, V, is_hermitian, True, (2, 1, 2))


def _over(xp: Any, is_hermitian: bool, X: Array, V: Array) -> Array:
    """X V^-1"""
    return xp.matmul(X, adjoint(xp, V)) if is_hermitian else times_inverse(xp, X, V)


def _by_pairs(
    xp: Any,
    g: Callable,
    hidden: tuple,
    A: Array,
    values: Array,
    V: Array,
    is_hermitian: bool,
    has_clusters: bool,
    ranks: tuple,
) -> Array:
    """f(A) for f(x) = g(x, *hidden), with the derivatives above; without `has_clusters` second ones
    are NaN, with a warning, where eigenvalues repeat."""
    known = eigh_known if is_hermitian else eig_known

    def tangent(f: Callable, primals: tuple, tangents: tuple, output: Array) -> Array:
        A, values, V = primals
        dA = xp.astype(tangents[0], V.dtype)
        dA = hermitian(xp, dA) if is_hermitian else dA
        held, options = (values, V), {"guard": False} if has_clusters else {}
        values, V = known(xp, A, values, V, **options)
        D = divided_differences(xp, f, values[..., :, None], values[..., None, :])
        P = in_vectors(xp, V, dA, is_hermitian)
        T = D * P
        if has_clusters:
            M, W = inside(f, A, *held)
            T = T + W * xp.matmul(M, P) + xp.matrix_transpose(W) * xp.matmul(P, M)
        return _over(xp, is_hermitian, xp.matmul(V, T), V)

    def inside(f: Callable, A: Array, values: Array, V: Array) -> tuple[Array, Array]:
        """M and W, for what is between different vectors of one eigenvalue."""
        M = in_vectors(xp, V, xp.astype(A, V.dtype), is_hermitian)
        M = xp.where(off_diagonal(xp, close(xp, values)), M, 0)
        a, b = values[..., :, None], values[..., None, :]
        a, b = a + 0 * b, b + 0 * a
        slope = xp.jvp(lambda a: divided_differences(xp, f, a, b), a, 1 + 0 * a)[1]
        return change(xp, M), xp.stop_gradient(slope)

    def attach(A: Array, values: Array, V: Array) -> tuple:
        return A, *known(xp, A, values, V)

    def of(f: Callable, A: Array, values: Array, V: Array) -> Array:
        return _over(xp, is_hermitian, V * f(values)[..., None, :], V)

    arrays = A, xp.stop_gradient(values), xp.stop_gradient(V)
    return derive(xp, g, hidden, of, tangent, attach, arrays, ranks)


PARALLEL = (
    "apply: A is nearly defective, so that its eigenvectors are almost parallel. The derivative "
    "of f(A) is found by them and has lost "
    "most of its digits. Use exp, log, sqrt or power, which need no eigenvectors, or Krylov()."
)


def spectral_difference(
    xp: Any, f: Callable[[Array], Array], M: Array, c: Array, values: Array, Z: Array
) -> Array:
    """h(M) for a self-adjoint M = Z Λ Z^H and h(x) = f[c + x, c] = (f(c + x) - f(c)) / x, with c of
    shape (*batch,).

    It is what f(c I + U U^H) = f(c) I + U h(U^H U) U^H needs, and as smooth as f' also where U^H U
    is singular, or zero. The derivative along dM is that of `spectral_function`, with the divided
    differences of h, and along dc it is ∂h/∂c on the spectrum.
    """

    g, hidden = hoist_number(xp, f, values)

    def h(x: Array, c: Array, *hidden: Array) -> Array:
        c = c[(..., *(None,) * (x.ndim - c.ndim))]
        return divided_differences(xp, bind(g, hidden), c + x, c + 0 * x)

    return _by_pairs(xp, h, (c, *hidden), M, values, Z, True, False, (2, 1, 2, 0))


def times_inverse(xp: Any, X: Array, V: Array) -> Array:
    """X V^-1, from V^H (X V^-1)^H = X^H."""
    return adjoint(xp, xp.lu_solve(*xp.lu_factor(V), adjoint(xp, X), adjoint=True))


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
    quotient = (f(a + 0 * b) - f(b + 0 * a)) / xp.where(near, 1 + 0 * p, a - b)
    mean = _mean_slope(xp, f, a, xp.where(near, b, a), FINE)
    return xp.where(near, mean, quotient)


def _mean_slope(xp: Any, f: Callable[[Array], Array], a: Array, b: Array, rule: Any) -> Array:
    """The mean of f' between a and b, by the nodes and weights of a rule: at all nodes at once,
    where there are few numbers."""

    def slope(at: Array) -> Array:
        return xp.jvp(f, at, 1 + 0 * at)[1]

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


def derive(
    xp: Any,
    g: Callable,
    hidden: tuple,
    of: Callable,
    tangent: Callable,
    attach: Callable,
    arrays: tuple,
    ranks: tuple,
) -> Array:
    """F = `of(f, *arrays)`, linear in f(z) = g(z, *hidden), with its derivatives, also with respect
    to these hidden arrays.

    For F(f, x) and f(z) = g(z, h), F is linear in f, so that
        dF = (the derivative of F(f, .) along dx) + F(∂g/∂h dh, x),
    of which the second term is differentiated again through the eigenpairs among x.

    Parameters
    ----------
    g, hidden : callable, tuple of arrays
        As `hoist_number` gives them: f maps arrays of numbers entry by entry.
    tangent : callable
        `tangent(f, primals, tangents, F)` is the derivative of F with respect to the arrays.
    attach : callable
        `attach(*arrays)` are the arrays, with eigenpairs that depend on their matrices.
    ranks : tuple of int
        The ranks without batch dimensions of the arrays, and of those hidden ones that have one.
    """
    count = len(arrays)

    def whole(*primals: Array) -> Any:
        return of(bind(g, primals[count:]), *primals[:count])

    def push(primals: tuple, tangents: tuple, output: Array) -> Array:
        x, h = primals[:count], primals[count:]
        moved: Array = tangent(bind(g, h), x, tangents[:count], output)
        if not any(map(xp.is_floating, h)):
            return moved

        def slope(z: Array) -> Any:  # ∂g/∂h dh
            return push_floats(xp, functools.partial(g, z), h, tangents[count:])[1]

        return moved + of(slope, *attach(*x))

    given = *arrays, *hidden
    are_known = len(ranks) == len(given)
    found: Array = xp.custom_derivative(whole, jvp=push, ranks=ranks if are_known else None)(*given)
    return found


def bind(g: Callable, hidden: tuple) -> Callable:
    """The function z -> g(z, *hidden)."""
    return (lambda z: g(z, *hidden)) if hidden else g


def hoist_number(xp: Any, f: Callable, z: Array) -> tuple[Callable, tuple]:
    """g and h with `g(x, *h) = f(x)` for arrays x of the dtype of z: h is what f closes over and
    the framework follows."""
    one = xp.reshape(xp.stop_gradient(z), (-1,))[0]
    g, hidden = xp.hoist(f, lambda: [(one,)])
    shape = tuple(g(one, *hidden).shape) if hidden else ()
    if shape:
        raise ShapeError(
            f"apply: f must map each number to a number, but one number gave the shape {shape}. "
            "For a batch of functions use vmap."
        )
    return g, hidden


# --------------------------------------------------------------------------------------------------


def square_root(xp: Any, A: Array) -> tuple[Array, Array]:
    """A^(1/2) and A^(-1/2), principal, of a matrix that need not be diagonalisable.

    X X = A gives X dX + dX X = dA, a Sylvester equation; its solution stands in the root of a block
    triangle,
        [A dA]^(1/2)   [X dX]
        [0  A]       = [0  X],
    which is how it is solved (Higham, theorem 3.6). Y = X^-1 gives dY = -Y dX Y.
    """
    X, Y = roots.square_root(xp, xp.stop_gradient(A))
    if not xp.is_differentiated(A):
        return X, Y
    X = _inverted(
        xp,
        A,
        X,
        lambda E, X, A: xp.matmul(X, E) + xp.matmul(E, X),
        lambda B: roots.square_root(xp, B)[0],
    )
    return X, pseudoinverse(xp, X, Y, has_inverse=True)


def logarithm(xp: Any, A: Array) -> Array:
    """The principal logarithm of a matrix that need not be diagonalisable.

    e^X = A gives L(X, dX) = dA, with L the derivative of the exponential: a linear equation for dX,
    whose solution is in the corner of the logarithm of [A dA; 0 A].
    """
    X = roots.logarithm(xp, xp.stop_gradient(A))
    if not xp.is_differentiated(A):
        return X
    slope = lambda E, X, A: xp.jvp(xp.expm, X, E)[1]
    return _inverted(xp, A, X, slope, lambda B: roots.logarithm(xp, B))


def _inverted(
    xp: Any, A: Array, X: Array, slope: Callable[..., Array], f: Callable[[Array], Array]
) -> Array:
    """X = f(A), as it is, for the inverse f of a function of a matrix: with the derivative M =
    `slope(., X, A)` of that at X, M dX = dA. M^H E = (M E^H)^H."""

    def flipped(g: Callable[..., Array]) -> Callable[..., Array]:
        return lambda E, *constants: adjoint(xp, g(adjoint(xp, E), *constants))

    def solve(R: Array, X: Array, A: Array) -> Array:
        return corner(f, A, R, A)

    equation = Equation(xp, slope, solve, (flipped(slope), flipped(solve)), 2)

    def tangent(primals: tuple, tangents: tuple, X: Array) -> Array:
        return equation(tangents[0], (X, primals[0]))

    def cotangent(primals: tuple, X: Array, G: Array) -> tuple:
        return equation.adjoint()(G, (X, primals[0])), None

    return xp.custom_derivative(lambda A, X: X + 0, jvp=tangent, vjp=cotangent)(A, X)


# --------------------------------------------------------------------------------------------------


def pseudoinverse(xp: Any, A: Array, X: Array, has_inverse: bool = False) -> Array:
    """X = A^+, as it is, with its derivative where the rank stays (Golub and Pereyra 1973).

    A X A = A and X A X = X, with A X and X A self-adjoint, give
        dX = -X dA X  +  X X^H dA^H (I - A X)  +  (I - X A) dA^H X^H X:
    the first term is that of an inverse; the second turns the range of A, and is zero for full row
    rank; the third turns its rows' span, and is zero for full column rank. Where the rank changes
    A^+ jumps, and there is no derivative. This is `Equation` for A^+ I. Where it is known that A
    has an inverse, the first term is all.
    """
    held, m = xp.stop_gradient(X), A.shape[-2]
    if not xp.is_differentiated(A):
        return held
    first = lambda B, constants: (constants[1] + 0,)
    options: dict[str, Any] = {"least_squares": not has_inverse, "first": first}
    times = lambda B, is_adjoint, X: xp.matmul(adjoint(xp, X) if is_adjoint else X, B)
    eye = xp.broadcast_to(eye_like(xp, held), (*A.shape[:-1], m))
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

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        A, _, X = primals
        N, X = output[0], pseudoinverse(xp, A, X)
        moved = -xp.matmul(X, xp.matmul(tangents[0], N))
        K = 0 * inner_products(xp, N, moved)  # the change of basis, there for its cotangent
        K, moved = guarded(xp, once("nullspace"), (K, moved), moved, nowhere(xp), judge)
        return xp.matmul(N, K) + moved, 0 * X

    return attached(xp, A, (N, X), tangent, (2, 2))[0]


def qr(
    xp: Any, A: Array, factor: Callable[[Array], tuple[Array, Array]] | None = None
) -> tuple[Array, Array]:
    """Q and R of the thin factorisation A = Q R, which `factor` finds, with the gauge of LAPACK: the
    diagonal of R is real.

    Put K = Q^H dQ, which is skew, and C = Q^H dA R^-1:
        dA = dQ R + Q dR  gives  C = K + dR R^-1,
    of which the latter is upper triangular with a real diagonal. So K is C below the diagonal, -C^H
    above it, and i Im C on it;
        dR = (C - K) R,     dQ = Q K + (I - Q Q^H) dA R^-1.
    Where R is singular there is no derivative: NaN and a warning.
    """
    (m, n), factor = A.shape[-2:], factor or xp.qr
    if (
        m < n
        or n == 0
        or getattr(A.dtype, "itemsize", 8) == 2
        or not xp.is_differentiated(A)
        or xp.is_compiling()
    ):
        return factor(A)
    Q, R = attached(xp, A, factor(xp.stop_gradient(A)), program(xp.name, _qr_tangent), (2, 2))
    return Q, R


def _qr_tangent(xp: Any, primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
    (Q, R), dA = output, tangents[0]
    held = xp.stop_gradient(R)
    rounding = ROUNDINGS * Q.shape[-2] * xp.eps(R.dtype)
    singular = xp.any(
        xp.abs(xp.diagonal(held)) <= rounding * xp.vector_norm(held, axis=-2), axis=-1
    )
    (dA,) = spoiled(xp, DEPENDENT, (dA,), singular)
    R = xp.where(singular[..., None, None], eye_like(xp, R), R)
    flip = xp.matrix_transpose
    divided = flip(xp.solve_triangular(flip(R), flip(dA), lower=True))  # dA R^-1
    C = inner_products(xp, Q, divided)
    below = xp.tril(C, -1)
    K = below - adjoint(xp, below)
    if xp.is_complex(C):
        K = K + 1j * xp.make_diagonal(xp.imag(xp.diagonal(C)))
    return xp.matmul(Q, K) + divided - xp.matmul(Q, C), xp.matmul(C - K, R)
