"""Inverses, exact and approximate, from factors that were made on the host; and the polynomials
and cycles of preconditioners."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.implicit import CONJUGATED, TRANSPOSED
from ..backends import Array, namespace_of
from ..operators import LinearOperator
from ..operators.context import Context, broadcast_batches, context_of
from ..operators.tree import memo
from ..operators.unitary import fourier_flops, good_length, pad_end
from ..properties import SELF_ADJOINT, SYMMETRIC
from .inverse import multiply_on_host

# Inverses from factors that were made on the host: sparse elimination, and Toeplitz matrices by
# the columns of their inverse.
#
# The factors are constants; derivatives are those of `Implicit`.


class SparseFactor(LinearOperator):
    """A^-1 of a sparse A, from factors on the host (`methods/sparse_direct.py`).

    `data` and `structure` are of the matrix that is inverted; `form` says what of the factored one
    it is: see `multiply_on_host`.
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
        return SparseFactor._of(data, flipped, self.lu, TRANSPOSED[self.form])

    def _conj(self) -> LinearOperator:
        return self._replace(data=self.xp.conj(self.data), form=CONJUGATED[self.form])

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = xp.astype(X, xp.result_type(X.dtype, self.data.dtype))
        batch = broadcast_batches(self.shape[:-2], X.shape[:-2])
        return multiply_on_host(self.lu, self.form, xp.broadcast_to(X, (*batch, *X.shape[-2:])))

    @property
    def _flops(self) -> float:
        return 2.0 * self.lu.factors.nnz / max(1, int(np.prod(self.shape[:-2])))


class GohbergSemenculFactor(LinearOperator):
    """T^-1 of a Toeplitz T from its first column x and its last column y, by six Fourier transforms
    of twice the size.

    x_0 T^-1 = L(x) U(y_n-1, ..., y_0) - L(0, y_0, ..., y_n-2) U(0, x_n-1, ..., x_1), with L(c) the
    lower triangular Toeplitz matrix of first column c and U(r) the upper one of first row r.
    `symbols` are the transforms of these four; made by `gohberg_semencul`.
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
        return gohberg_semencul(
            self.xp, self.xp.flip(self.y, axis=-1), self.xp.flip(self.x, axis=-1)
        )

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
            return (xp.irfftn(x, (length,), axes=(-2,)) if self.real else xp.ifftn(x, axes=(-2,)))[
                ..., :n, :
            ]

        Lx, Uy, Ly, Ux = (symbol[..., None] for symbol in self.symbols)
        transformed = forward(X)
        return xp.astype(
            back(Lx * forward(back(Uy * transformed)) - Ly * forward(back(Ux * transformed))),
            xp.result_type(self.dtype, X.dtype),
        )

    @property
    def _flops(self) -> float:
        return 6 * fourier_flops((good_length(2 * self.x.shape[-1] - 1),), self.real)


def gohberg_semencul(xp: Any, x: Array, y: Array) -> GohbergSemenculFactor:
    """The inverse of the Toeplitz matrix whose inverse has the first column x and the last
    column y."""
    n, real = x.shape[-1], not xp.is_complex(x)
    length = good_length(2 * n - 1)
    zero = xp.zeros((*x.shape[:-1], 1), dtype=x.dtype, device=xp.device_of(x))
    scaled = x / x[..., :1], y / x[..., :1]

    def lower(c: Array) -> Array:
        c = pad_end(xp, c, (length,), (-1,))
        return xp.rfftn(c, axes=(-1,)) if real else xp.fftn(c, axes=(-1,))

    def upper(r: Array) -> Array:  # the transpose of a lower triangle: its frequencies mirrored
        return xp.conj(lower(xp.conj(r)))

    shifted = [
        xp.concat([zero, part], axis=-1)
        for part in (scaled[1][..., :-1], xp.flip(x[..., 1:], axis=-1))
    ]
    symbols = lower(scaled[0]), upper(xp.flip(y, axis=-1)), lower(shifted[0]), upper(shifted[1])
    return GohbergSemenculFactor._of(x, y, symbols, real)


# Approximate inverses as operators: by factors on the host, by a polynomial, by a cycle over
# grids. Made by `preconditioners/`.


class FixedFactor(LinearOperator):
    """A matrix that only the host can multiply by, with `solver.solve(X, form)`: incomplete
    triangular factors, say.

    `form` says what of the solver's matrix it is: see `multiply_on_host`. It has no leaves:
    derivatives reach what it multiplies, and not what it was made from.
    """

    solver: Any
    form: str
    sizes: tuple[int, ...]
    context: Context

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    @memo
    def _context(self) -> Context:
        return self.context

    def _transpose(self) -> LinearOperator:
        return self._replace(form=TRANSPOSED[self.form])

    def _conj(self) -> LinearOperator:
        return self._replace(form=CONJUGATED[self.form])

    def _adjoint(self) -> LinearOperator:
        return self._transpose()._conj()

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        dtype = xp.result_type(X.dtype, self.dtype)
        batch = broadcast_batches(self.sizes[:-2], X.shape[:-2])
        X = xp.astype(
            xp.broadcast_to(X, (*batch, *X.shape[-2:])), xp.result_type(dtype, xp.float32)
        )  # not half precision
        return xp.astype(multiply_on_host(self.solver, self.form, X), dtype)

    @property
    def _flops(self) -> float:
        return float(self.solver.flops)


class ChebyshevFactor(LinearOperator):
    """p(A), the polynomial of the given degree for which |1 - λ p(λ)| is smallest on [low, high]:
    `degree` products with A.

    By the three-term recurrence of Golub and Varga (1961): 1 - λ p(λ) = T(s(λ)) / T(s(0)), s
    mapping [low, high] to [1, -1].
    """

    A: LinearOperator
    low: Array
    high: Array
    degree: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*broadcast_batches(self.A.shape[:-2], self.low.shape), *self.A.shape[-2:])

    def _infer(self) -> int:
        return self.A.properties & (SELF_ADJOINT | SYMMETRIC)

    def _transpose(self) -> LinearOperator:
        return self._replace(A=self.A.T)

    def _adjoint(self) -> LinearOperator:
        return self._replace(A=self.A.H)

    def _conj(self) -> LinearOperator:
        return self._replace(A=self.A.conj())

    def _matmat(self, B: Array) -> Array:
        xp = namespace_of(B)
        low, high = (
            bound[..., None, None] if bound.ndim else bound for bound in (self.low, self.high)
        )
        center = (high + low) / 2
        radius = xp.maximum((high - low) / 2, center * xp.eps(self.low.dtype) ** 0.5)
        slope = center / radius
        rho = 1 / slope
        step = B / center
        X = step
        for _ in range(self.degree):
            rho_next = 1 / (2 * slope - rho)
            step = (rho_next * rho) * step + (2 * rho_next / radius) * (B - self.A @ X)
            X, rho = X + step, rho_next
        return xp.astype(X, xp.result_type(self.dtype, B.dtype))

    @property
    def _flops(self) -> float:
        return self.degree * (self.A.flops + 6.0 * self.shape[-1]) + self.shape[-1]


class MultigridCycle(LinearOperator):
    """One V-cycle: on each level smooth, correct by the next coarser one, smooth again; the
    coarsest is solved.

    Level l has the matrix `matrices[l]`, the smoother `smoothers[l]` (an approximate inverse), the
    way up from the coarser one `prolongations[l]` and the way down to it `restrictions[l]`.
    """

    matrices: tuple[LinearOperator, ...]
    smoothers: tuple[LinearOperator, ...]
    prolongations: tuple[LinearOperator, ...]
    restrictions: tuple[LinearOperator, ...]
    coarsest: LinearOperator

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrices[0].shape if self.matrices else self.coarsest.shape

    def _mapped(self, f: Any, swap: bool) -> LinearOperator:
        matrices, smoothers, up, down = (
            tuple(map(f, part))
            for part in (self.matrices, self.smoothers, self.prolongations, self.restrictions)
        )
        return MultigridCycle._of(
            matrices, smoothers, down if swap else up, up if swap else down, f(self.coarsest)
        )

    def _transpose(self) -> LinearOperator:
        return self._mapped(lambda A: A.T, swap=True)

    def _adjoint(self) -> LinearOperator:
        return self._mapped(lambda A: A.H, swap=True)

    def _conj(self) -> LinearOperator:
        return self._mapped(lambda A: A.conj(), swap=False)

    def _matmat(self, B: Array) -> Array:
        return self._cycle(0, B)

    def _cycle(self, level: int, B: Array) -> Array:
        if level == len(self.matrices):
            return self.coarsest._matmat(B)
        A, S = self.matrices[level]._matmat, self.smoothers[level]._matmat
        X = S(B)
        X = X + self.prolongations[level]._matmat(
            self._cycle(level + 1, self.restrictions[level]._matmat(B - A(X)))
        )
        return X + S(B - A(X))

    @property
    def _flops(self) -> float:
        levels = zip(self.matrices, self.smoothers, self.prolongations, self.restrictions)
        return (
            sum(2 * A.flops + 2 * S.flops + P.flops + R.flops for A, S, P, R in levels)
            + self.coarsest.flops
        )
