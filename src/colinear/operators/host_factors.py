"""Inverses from factors that were made on the host: sparse elimination, and Toeplitz matrices by the columns of their inverse.

The factors are held fixed, so derivatives go through the matrix (`refined`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from .base import LinearOperator
from .context import Context, broadcast_batches, context_of
from .fourier import fourier_flops, good_length, pad_end
from .memo import memo


class SparseFactor(LinearOperator):
    """A^-1 of a sparse A, from factors on the host (`methods/sparse_direct.py`).

    `data` and `structure` are of the matrix that is inverted, through which derivatives go; `form` says what of the factored one
    it is: itself ("N"), its transpose ("T"), adjoint ("H") or conjugate ("C").
    """

    data: Array
    structure: Any
    lu: Any
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[:-1], *self.structure.shape)

    def _transpose(self) -> LinearOperator:
        flipped = self.structure.transposed
        data = self.xp.take(self.data, flipped.order, axis=-1)
        return SparseFactor._of(data, flipped, self.lu, _TRANSPOSED[self.form])

    def _conj(self) -> LinearOperator:
        return self._replace(data=self.xp.conj(self.data), form=_CONJUGATED[self.form])

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = xp.astype(X, xp.result_type(X.dtype, self.data.dtype))
        batch = broadcast_batches(self.shape[:-2], X.shape[:-2])
        X = xp.broadcast_to(X, (*batch, *X.shape[-2:]))
        return refined(self._solve, self._multiply, X, xp.is_differentiated(self.data))

    def _multiply(self, X: Array) -> Array:
        return self.xp.sparse_matmul(self.data, self.structure, X)

    def _solve(self, X: Array) -> Array:
        forms = (self.form, _TRANSPOSED[self.form])
        solve, transposed = (lambda B, form=form: self.lu.solve(B, form) for form in forms)
        return namespace_of(X).solve_on_host(self._multiply, solve, transposed, X)

    @property
    def _flops(self) -> float:
        return 2.0 * self.lu.factors.nnz / max(1, int(np.prod(self.shape[:-2])))


_TRANSPOSED = {"N": "T", "T": "N", "H": "C", "C": "H"}
_CONJUGATED = {"N": "C", "C": "N", "T": "H", "H": "T"}


def refined(solve: Any, multiply: Any, B: Array, differentiated: bool) -> Array:
    """A^-1 B by `solve`, differentiable in what `multiply` depends on.

    X <- X + solve(B - A X) changes nothing but rounding. Its derivative, with `solve` held fixed, is A^-1 (dB - dA X): the right
    one; after two steps the second derivative is right too.
    """
    X = solve(B)
    for _ in range(2 if differentiated else 0):
        X = X + solve(B - multiply(X))
    return X


class ImplicitFactor(LinearOperator):
    """A^-1 applied by `solver`, which is held fixed: derivatives go through A instead (see `refined`)."""

    A: LinearOperator
    solver: LinearOperator

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _transpose(self) -> LinearOperator:
        return ImplicitFactor._of(self.A.T, self.solver.T)

    def _adjoint(self) -> LinearOperator:
        return ImplicitFactor._of(self.A.H, self.solver.H)

    def _conj(self) -> LinearOperator:
        return ImplicitFactor._of(self.A.conj(), self.solver.conj())

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        differentiated = any(xp.is_differentiated(leaf) for leaf in self.A.leaves())
        return refined(self.solver._matmat, self.A._matmat, X, differentiated)

    @property
    def _flops(self) -> float:
        return self.solver.flops


class GohbergSemenculFactor(LinearOperator):
    """T^-1 of a Toeplitz T from its first column x and its last column y, by six Fourier transforms of twice the size.

    x_0 T^-1 = L(x) U(y_n-1, ..., y_0) - L(0, y_0, ..., y_n-2) U(0, x_n-1, ..., x_1), with L(c) the lower triangular Toeplitz
    matrix of first column c and U(r) the upper one of first row r. `symbols` are the transforms of these four; made by
    `gohberg_semencul`.
    """

    x: Array
    y: Array
    symbols: tuple[Array, ...]
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape, self.x.shape[-1])

    @memo
    def _context(self) -> Context:
        return context_of("GohbergSemenculFactor", (self.x,))

    def _transpose(self) -> LinearOperator:
        return gohberg_semencul(self.xp, self.xp.flip(self.y, axis=-1), self.xp.flip(self.x, axis=-1))

    def _conj(self) -> LinearOperator:
        return gohberg_semencul(self.xp, self.xp.conj(self.x), self.xp.conj(self.y))

    def _matmat(self, X: Array) -> Array:
        xp, (n, k) = namespace_of(X), X.shape[-2:]
        if self.real and xp.is_complex(X):
            Y = self._matmat(xp.concat([xp.real(X), xp.imag(X)], axis=-1))
            return Y[..., :k] + 1j * Y[..., k:]
        if k == 0:
            return X + xp.zeros((*self.shape[:-2], n, k), dtype=self.dtype, device=xp.device_of(X))
        length = good_length(2 * n - 1)

        def forward(x: Array) -> Array:
            x = pad_end(xp, x, (length,), (-2,))
            return xp.rfftn(x, axes=(-2,)) if self.real else xp.fftn(x, axes=(-2,))

        def back(x: Array) -> Array:
            return (xp.irfftn(x, (length,), axes=(-2,)) if self.real else xp.ifftn(x, axes=(-2,)))[..., :n, :]

        Lx, Uy, Ly, Ux = (symbol[..., None] for symbol in self.symbols)
        transformed = forward(X)
        return xp.astype(
            back(Lx * forward(back(Uy * transformed)) - Ly * forward(back(Ux * transformed))), xp.result_type(self.dtype, X.dtype)
        )

    @property
    def _flops(self) -> float:
        return 6 * fourier_flops((good_length(2 * self.x.shape[-1] - 1),), self.real)


def gohberg_semencul(xp: Any, x: Array, y: Array) -> GohbergSemenculFactor:
    """The inverse of the Toeplitz matrix whose inverse has the first column x and the last column y."""
    n, real = x.shape[-1], not xp.is_complex(x)
    length = good_length(2 * n - 1)
    zero = xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, device=xp.device_of(x))
    scaled = x / x[..., :1], y / x[..., :1]

    def lower(c: Array) -> Array:
        c = pad_end(xp, c, (length,), (-1,))
        return xp.rfftn(c, axes=(-1,)) if real else xp.fftn(c, axes=(-1,))

    def upper(r: Array) -> Array:  # the transpose of a lower triangle: its frequencies mirrored
        return xp.conj(lower(xp.conj(r)))

    shifted = [xp.concat([zero, part], axis=-1) for part in (scaled[1][..., :-1], xp.flip(x[..., 1:], axis=-1))]
    symbols = lower(scaled[0]), upper(xp.flip(y, axis=-1)), lower(shifted[0]), upper(shifted[1])
    return GohbergSemenculFactor._of(x, y, symbols, real)
