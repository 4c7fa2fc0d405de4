"""Derivatives of what iterations find: a few eigenpairs or singular triplets, and solutions of
least squares.

Nothing goes through the iterations. The equations that the answers satisfy are differentiated, and
the linear systems that come of it are solved by iteration too, by products with A; where such a
solve fails, a warning says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ..backends import Array, inner_products, namespace_of
from ..info import Info
from ..methods import GMRES, MINRES
from ..methods.iterate import Products, described
from ..methods.loop import NO_MONITOR
from ..methods.sampling import outside
from ..operators import Block, LinearOperator, Zero
from ..operators.autograd_products import directional, pullback
from ..status import deliver
from .implicit import Equation
from .spectral import (
    checked,
    differs,
    exceeds,
    guarded,
    inverse_gaps,
    judge_pairs,
    largest,
    nowhere,
    once,
)

ACCURACY = 0.75  # the power of eps to which the systems of a derivative are solved
LIMIT = 20  # times n: iterations


def _solver(xp: Any, method: Any, multiply: Callable[..., Array]) -> Callable[..., Array]:
    """B and parameters to the solution of `multiply(X, *parameters)` = B, which warns if it is
    none."""

    def solve(B: Array, *parameters: Array) -> Array:
        tol, limit = xp.eps(B.dtype) ** ACCURACY, LIMIT * B.shape[-2]
        products = Products(lambda X: multiply(X, *parameters))
        outcome = method.algorithm(xp, products, B, tol=tol, max_iters=limit)
        info: Info = described(xp, outcome, method, NO_MONITOR, False)
        message = f"This was a solve for a derivative of eigenvectors. {info.message}".rstrip()
        return deliver(info.replace(message=message), "warn", outcome.X)

    return solve


# --------------------------------------------------------------------------------------------------


def pairs(A: LinearOperator, values: Array, V: Array) -> tuple[Array, Array]:
    """k eigenvalues and orthonormal eigenvectors of a self-adjoint operator, as they are, with
    their derivatives.

    As for all of them (`spectral.eigh`), but dV = V K + W with a part W outside the span of V:
        K_ij = v_i^H dA v_j / (λ_j - λ_i),        (A - λ_j) w_j = -(I - V V^H) dA v_j,   V^H W = 0.
    (I - V V^H)(A - λ_j)(I - V V^H) + V V^H is self-adjoint, and regular unless λ_j is an eigenvalue
    whose eigenvectors were not all asked for: MINRES solves with it, for all j at once.
    """
    xp = A.xp

    def multiply(X: Array, *parameters: Array) -> Array:
        *leaves, values, V = parameters
        rest = outside(xp, V, X)
        Y = A.with_arrays(leaves) @ rest - rest * values[..., None, :]
        return outside(xp, V, Y) + (X - rest)

    pair = multiply, _solver(xp, MINRES(), multiply)
    equation = Equation(xp, *pair, pair, len(A.arrays()) + 2)
    judge = functools.partial(judge_pairs, xp, True)

    def tangent(parameters: tuple, E: Array) -> tuple[Array, Array]:
        *_, values, V = parameters
        P = inner_products(xp, V, E)
        inverse, same = inverse_gaps(xp, values)
        W = outside(xp, V, equation(xp.matmul(V, P) - E, parameters))
        parts = xp.real(xp.diagonal(P)), P * inverse, W
        unequal = functools.partial(differs, xp)
        moved, K, W = guarded(xp, once("eig"), parts, P, unequal, judge, same)
        return moved, xp.matmul(V, K) + W

    def cotangent(parameters: tuple, g: Array, G: Array) -> Array:
        *_, values, V = parameters
        inverse, same = inverse_gaps(xp, values)
        S = inner_products(xp, V, G)
        parts = g, S, G - xp.matmul(V, S)
        g, S, W = checked(xp, once("eig")[1], parts, judge, same)
        S = S * inverse + xp.make_diagonal(xp.astype(g, V.dtype))
        W = outside(xp, V, equation(W, parameters))
        return xp.matmul(V, S) - W

    return _attached(A, values, V, tangent, cotangent)


def triplets(A: LinearOperator, U: Array, s: Array, V: Array) -> tuple[Array, Array, Array]:
    """k singular triplets, as they are, with their derivatives: they are eigenpairs of a
    self-adjoint operator,
    [ 0   A] [u]       [u]
    [A^H  0] [v]  =  s [v],    with |u| = |v| = 1.
    """
    xp, (m, n), root = A.xp, A.shape[-2:], math.sqrt(2)
    zeros = [Zero(size, size, like=A) for size in (m, n)]
    s, Z = pairs(Block([[zeros[0], A], [A.H, zeros[1]]]), s, xp.concat([U, V], axis=-2) / root)
    return root * Z[..., :m, :], s, root * Z[..., m:, :]


def _attached(
    A: LinearOperator,
    values: Array,
    V: Array,
    tangent: Callable[..., tuple[Array, Array]],
    cotangent: Callable[..., Array],
) -> Any:
    """Pairs as they are, with the derivatives `tangent(parameters, dA V)`, and the cotangent of A V,
    `cotangent(parameters, g, G)`, where the parameters are the leaves of A, the values and V."""
    xp = A.xp

    def push(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        leaves, V = primals[:-2], output[1]
        E = directional(A.with_arrays(leaves), lambda A: A @ V, tangents[:-2])[1]
        return tangent((*leaves, *output), E)

    def pull(primals: tuple, output: tuple, cotangents: tuple) -> tuple:
        leaves, V = primals[:-2], output[1]
        G = cotangent((*leaves, *output), *cotangents)
        return *pullback(A.with_arrays(leaves), lambda A: A @ V, G), None, None

    same = lambda *given: tuple(x + 0 for x in given[-2:])
    held = map(xp.stop_gradient, (values, V))
    return tuple(xp.custom_derivative(same, jvp=push, vjp=pull)(*A.arrays(), *held))


# --------------------------------------------------------------------------------------------------


def general_pairs(A: LinearOperator, values: Array, V: Array) -> tuple[Array, Array]:
    """k simple eigenvalues and their right eigenvectors of norm 1, as they are, with their
    derivatives.

    A v = λ v and v^H v = 1 give, for each pair, a bordered system that is regular where λ is
    simple:
        [A - λ  -v] [dv]   [-dA v]
        [ v^H    0] [dλ] = [  0  ].
    The last row is the gauge: the norm stays, and the phase turns as little as it can; a function
    that depends on phases has no derivative. The left eigenvectors are not needed: the adjoint of
    this system finds them. GMRES solves for all pairs at once.
    """
    xp, n = A.xp, A.shape[-1]

    def bordered(is_adjoint: bool) -> tuple[Callable[..., Array], Callable[..., Array]]:
        """The product with that system or its adjoint, and the solution."""

        def multiply(X: Array, *parameters: Array) -> Array:
            *leaves, values, V = parameters
            B, x, c = A.with_arrays(leaves), X[..., :n, :], X[..., n:, :]
            last = xp.sum(xp.conj(V) * x, axis=-2, keepdims=True)
            if is_adjoint:
                B, values, c, last = B.H, xp.conj(values), -c, -last
            return xp.concat([B @ x - x * values[..., None, :] - V * c, last], axis=-2)

        return multiply, _solver(xp, GMRES(restart=100), multiply)

    equation = Equation(xp, *bordered(False), bordered(True), len(A.arrays()) + 2)

    def judge(cotangents: tuple) -> Array:
        turn, G = cotangents
        return exceeds(xp, turn[..., None], largest(xp, G, 2), 2)

    def tangent(parameters: tuple, E: Array) -> tuple[Array, Array]:
        X = equation(xp.concat([-E, 0 * E[..., :1, :]], axis=-2), parameters)
        moved, change = X[..., :n, :], X[..., n, :]
        turn = 0 * xp.real(change)  # of the phases, there for its cotangent
        turn, moved = guarded(xp, once("eig"), (turn, moved), E, nowhere(xp), judge)
        return change, moved + 1j * parameters[-1] * turn[..., None, :]

    def cotangent(parameters: tuple, g: Array, G: Array) -> Array:
        turn = xp.imag(xp.vecdot(parameters[-1], G, axis=-2))
        _, G = checked(xp, once("eig")[1], (turn, G), judge)
        R = xp.concat([G, g[..., None, :]], axis=-2)
        return -equation.adjoint()(R, parameters)[..., :n, :]

    return _attached(A, values, V, tangent, cotangent)


# --------------------------------------------------------------------------------------------------


def refused(xp: Any, x: Array, leaves: Any, what: str, instead: str) -> Array:
    """x, which depends on the leaves, but of which no derivative can be taken: an error if one
    is."""
    arrays = tuple(leaf for leaf in leaves if namespace_of(leaf) is xp)
    if not arrays or not xp.is_differentiated(*arrays):
        return x

    def refuse(*_: Any) -> Any:
        raise NotImplementedError(f"{what} has no derivative here. Use {instead}.")

    held = xp.stop_gradient(x)
    return xp.custom_derivative(lambda x, *leaves: x + 0, jvp=refuse, vjp=refuse)(held, *arrays)
