"""Approximate inverses as operators: by factors on the host, by a polynomial, by a cycle over grids. Made by `preconditioners/`."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, SYMMETRIC
from .base import LinearOperator
from .context import Context, broadcast_batches
from .implicit import CONJUGATED, TRANSPOSED, multiply_on_host
from .memo import memo


class FixedFactor(LinearOperator):
    """A matrix that only the host can multiply by, with `solver.solve(X, form)`: incomplete triangular factors, say.

    `form` says what of the solver's matrix it is: see `multiply_on_host`. It has no leaves: derivatives reach what it multiplies, and
    not what it was made from.
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
        X = xp.astype(xp.broadcast_to(X, (*batch, *X.shape[-2:])), xp.result_type(dtype, xp.float32))  # not half precision
        return xp.astype(multiply_on_host(self.solver, self.form, X), dtype)

    @property
    def _flops(self) -> float:
        return float(self.solver.flops)


class ChebyshevFactor(LinearOperator):
    """p(A), the polynomial of the given degree for which |1 - λ p(λ)| is smallest on [low, high]: `degree` products with A.

    By the three-term recurrence of Golub and Varga (1961): 1 - λ p(λ) = T(s(λ)) / T(s(0)), s mapping [low, high] to [1, -1].
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
        low, high = (bound[..., None, None] if bound.ndim else bound for bound in (self.low, self.high))
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
    """One V-cycle: on each level smooth, correct by the next coarser one, smooth again; the coarsest is solved.

    Level l has the matrix `matrices[l]`, the smoother `smoothers[l]` (an approximate inverse), the way up from the coarser one
    `prolongations[l]` and the way down to it `restrictions[l]`.
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
            tuple(map(f, part)) for part in (self.matrices, self.smoothers, self.prolongations, self.restrictions)
        )
        return MultigridCycle._of(matrices, smoothers, down if swap else up, up if swap else down, f(self.coarsest))

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
        X = X + self.prolongations[level]._matmat(self._cycle(level + 1, self.restrictions[level]._matmat(B - A(X))))
        return X + S(B - A(X))

    @property
    def _flops(self) -> float:
        levels = zip(self.matrices, self.smoothers, self.prolongations, self.restrictions)
        return sum(2 * A.flops + 2 * S.flops + P.flops + R.flops for A, S, P, R in levels) + self.coarsest.flops
