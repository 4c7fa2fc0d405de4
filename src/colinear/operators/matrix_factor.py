"""A^-1 and det A from a factorisation that derivatives do not go through.

The derivative of a factorisation costs several times the factorisation; those of what is computed with it cost less:

    X = A^-1 B          dX = A^-1 (dB - dA X)         cotangents: W = A^-H G for B, -W X^H for A
    T = A^-1            dT = -T dA T                  cotangent: -T^H G T^H
    log|det A|          Re tr(A^-1 dA)                cotangent: g A^-H

so the factors are constants, and what depends on A is A alone. Each derivative is again one of these three functions, so they hold to
any order. A is taken as a general matrix: where a factorisation reads one triangle only, the gradient is still that of all entries.
"""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from .base import LinearOperator
from .context import broadcast_batches


class MatrixFactor(LinearOperator):
    """A^-1 by `factor`, an operator made from the matrix A and held fixed; derivatives are those of A^-1 and of det A."""

    A: Array
    factor: LinearOperator

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factor.shape

    def _infer(self) -> int:
        return self.factor.properties

    def _adjoint(self) -> LinearOperator:
        return MatrixFactor._of(_adjoint(self.A), self.factor.H)

    def _transpose(self) -> LinearOperator:
        return MatrixFactor._of(self.xp.matrix_transpose(self.A), self.factor.T)

    def _conj(self) -> LinearOperator:
        return MatrixFactor._of(self.xp.conj(self.A), self.factor.conj())

    def _matmat(self, X: Array) -> Array:
        return _solve(self.A, self.factor, X)

    def _to_dense(self) -> Array:
        return _invert(self.A, self.factor)

    def slogdet(self) -> tuple[Array, Array]:
        return _slogdet(self.A, self.factor)

    @property
    def _flops(self) -> float:
        return self.factor.flops


def differentiable(xp: Any, make: Any, A: Array) -> Any:
    """`make(xp, A)`, a factor and more, with the derivatives of what is computed from the factor."""
    if not xp.is_differentiated(A) or xp.is_compiling():
        return make(xp, A)
    factor, *more = make(xp, xp.stop_gradient(A))
    return MatrixFactor._of(A, factor), *more


def _solve(A: Array, factor: LinearOperator, X: Array) -> Array:
    xp = namespace_of(X)
    if xp.name == "jax":
        # A custom_jvp function of a tangent forgets its rule where JAX transposes it, and so the second derivative; this does not.
        X = xp.astype(X, xp.result_type(A.dtype, X.dtype))
        X = xp.broadcast_to(X, (*broadcast_batches(A.shape[:-2], X.shape[:-2]), *X.shape[-2:]))
        products = (lambda X, A: xp.matmul(A, X)), (lambda X, A: xp.matmul(xp.matrix_transpose(A), X))
        solvers = (lambda B, A: (factor._matmat(B), None)), (lambda B, A: (factor.T._matmat(B), None))
        return xp.linear_solve(products[0], solvers[0], (products[1], solvers[1]), X, (A,))[0]

    def now(A: Array, X: Array, *leaves: Array) -> Array:
        return _with_leaves(factor, leaves)._matmat(X)

    def push(primals: tuple, tangents: tuple, Y: Array) -> Array:
        A, _, *leaves = primals
        dA, dX, *_ = tangents
        return _solve(A, _with_leaves(factor, leaves), dX - xp.matmul(dA, Y))

    def pull(primals: tuple, Y: Array, G: Array) -> tuple:
        A, X, *leaves = primals
        W = _solve(_adjoint(A), _with_leaves(factor, leaves).H, G)
        return _fitted(-xp.matmul(W, _adjoint(Y)), A), _fitted(W, X), *(None,) * len(leaves)

    return _custom(now, push, pull, factor, (2, 2))(A, X, *factor.leaves())


def _invert(A: Array, factor: LinearOperator) -> Array:
    xp = namespace_of(A)

    def now(A: Array, *leaves: Array) -> Array:
        return _with_leaves(factor, leaves)._to_dense()

    def push(primals: tuple, tangents: tuple, T: Array) -> Array:
        return -xp.matmul(T, xp.matmul(tangents[0], T))

    def pull(primals: tuple, T: Array, G: Array) -> tuple:
        T = _adjoint(T)
        return -xp.matmul(T, xp.matmul(G, T)), *(None,) * (len(primals) - 1)

    return _custom(now, push, pull, factor, (2,))(A, *factor.leaves())


def _slogdet(A: Array, factor: LinearOperator) -> tuple[Array, Array]:
    xp = namespace_of(A)

    def now(A: Array, *leaves: Array) -> tuple[Array, Array]:
        return _with_leaves(factor, leaves).slogdet()  # type: ignore[attr-defined]

    def adjoint_inverse(primals: tuple) -> Array:
        return _invert(_adjoint(primals[0]), _with_leaves(factor, primals[1:]).H)

    def push(primals: tuple, tangents: tuple, output: Any) -> tuple[Array, Array]:
        z = xp.sum(xp.conj(adjoint_inverse(primals)) * tangents[0], axis=(-2, -1))  # tr(A^-1 dA)
        sign = output[0]
        return sign * 1j * xp.imag(z) if xp.is_complex(sign) else sign * 0 * z, xp.real(z)

    def pull(primals: tuple, output: Any, cotangents: tuple) -> tuple:
        g = cotangents[1]
        if xp.is_complex(output[0]):
            g = g - 1j * xp.imag(xp.conj(cotangents[0]) * output[0])
        return g[..., None, None] * adjoint_inverse(primals), *(None,) * (len(primals) - 1)

    sign, logarithm = _custom(now, push, pull, factor, (2,))(A, *factor.leaves())
    return sign, logarithm


def _custom(now: Any, push: Any, pull: Any, factor: LinearOperator, ranks: tuple[int, ...]) -> Any:
    batch = len(factor.shape) - 2
    return factor.xp.custom_derivative(now, push, pull, (*ranks, *(leaf.ndim - batch for leaf in factor.leaves())))


def _with_leaves(factor: LinearOperator, leaves: Any) -> LinearOperator:
    given = iter(leaves)
    return factor._map(lambda _: next(given))


def _adjoint(X: Array) -> Array:
    xp = namespace_of(X)
    return xp.conj(xp.matrix_transpose(X))


def _fitted(G: Array, like: Array) -> Array:
    """A cotangent summed over the dimensions along which what it belongs to was broadcast, and real where that is."""
    xp = namespace_of(G)
    if G.shape != like.shape:
        G = xp.sum(G, axis=tuple(range(G.ndim - like.ndim))) if G.ndim > like.ndim else G
        axes = tuple(i for i, size in enumerate(like.shape) if size != G.shape[i])
        G = xp.sum(G, axis=axes, keepdims=True) if axes else G
    return xp.real(G) if xp.is_complex(G) and not xp.is_complex(like) else G
