"""Inverses of structured matrices, and orthonormal columns of banded ones, as operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array, adjoint, inner_products, namespace_of
from ..backends import shared as _banded
from ..backends.shared import by_columns
from ..info import planning
from ..methods import cyclic_reduction
from ..operators import (
    BlockDiag,
    Dense,
    Identity,
    Kronecker,
    LinearOperator,
    Permutation,
    Triangular,
)
from ..operators.banded import bound_of_tridiagonal, natural_length
from ..operators.context import (
    Context,
    broadcast_batches,
    context_of,
    has_traced,
    kind_of,
    records_derivatives,
)
from ..operators.matrixfree import by_real_parts
from ..operators.tree import Index, conjugate_leaves, memo, once_in_call
from ..operators.unitary import bound_by_norm, fourier_flops, sine_transform
from ..status import is_unseen
from .inverse import TURNED

# Inverses of structured matrices as operators: by Fourier transforms, along bands, and in bases of
# eigenvectors.
#
# They are what `inv` keeps inside an `Inverse`, as the dense ones of dense.py.


class FourierFactor(LinearOperator):
    """F^-1 diag(symbol) F over a grid: what multiplies each frequency by a number, such as the
    inverse of a circulant matrix.

    Of a real operator (`real`) the symbol is that of the real transform: half of the last
    dimension.
    """

    symbol: Array
    grid: tuple[int, ...]
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        n = math.prod(self.grid)
        return (*self.symbol.shape[: -len(self.grid)], n, n)

    @memo
    def _context(self) -> Context:
        own = context_of("FourierFactor", (self.symbol,))
        return own._replace(dtype=self.xp.real_dtype(own.dtype)) if self.real else own

    @memo
    def xp(self) -> Any:
        return namespace_of(self.symbol)

    def _adjoint(self) -> LinearOperator:
        return self._replace(symbol=self.xp.conj(self.symbol))

    def _conj(self) -> LinearOperator:
        # frequency k of the conjugate is the conjugate of frequency -k
        axes = tuple(range(-len(self.grid), 0))
        mirrored = self.xp.roll(self.xp.flip(self.symbol, axis=axes), (1,) * len(axes), axis=axes)
        return self._replace(symbol=self.xp.conj(mirrored))

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        n, k = X.shape[-2:]
        if self.real and xp.is_complex(X):  # two real transforms cost as much as a complex one
            return by_real_parts(self._matmat, X)
        if n == 0 or k == 0:
            return X + xp.zeros((*self.shape[:-2], n, k), dtype=self.dtype, device=xp.device_of(X))
        dtype = xp.result_type(self.dtype, X.dtype)
        x = xp.reshape(X, (*X.shape[:-2], *self.grid, k))
        axes = tuple(range(-1 - len(self.grid), -1))
        if self.real:
            y = xp.irfftn(self.symbol[..., None] * xp.rfftn(x, axes=axes), self.grid, axes=axes)
        else:
            y = xp.ifftn(self.symbol[..., None] * xp.fftn(x, axes=axes), axes=axes)
        return xp.astype(xp.reshape(y, (*y.shape[: -1 - len(self.grid)], n, k)), dtype)

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        xp, size = self.xp, self.xp.abs(self.xp.stop_gradient(self.symbol))
        least = float(xp.min(size))
        # rounding times the condition
        return 100 * xp.eps(X.dtype) * float(xp.max(size)) / least if least > 0 else None

    @property
    def _flops(self) -> float:
        return 2 * fourier_flops(self.grid, self.real)


class TridiagonalFactor(LinearOperator):
    """A^-1 of a tridiagonal A, by elimination with pivoting: O(n) for each right side.

    `levels`: of the cyclic reduction that takes its place on a device; None elsewhere.
    """

    lower: Array
    diag: Array
    upper: Array
    levels: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        batch = broadcast_batches(*(d.shape[:-1] for d in (self.lower, self.diag, self.upper)))
        return (*batch, *self.diag.shape[-1:] * 2)

    def _transpose(self) -> LinearOperator:
        return TridiagonalFactor._of(self.upper, self.diag, self.lower, self.levels)

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        xp, rows, levels = namespace_of(X), (self.lower, self.diag, self.upper), self.levels
        if levels is None or xp.is_traced(X) or xp.is_differentiated(X, *rows):
            return xp.solve_tridiagonal(*rows, X)
        return by_columns(lambda X: cyclic_reduction.solve(xp, *rows, X, levels), X)

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        return bound_of_tridiagonal((self.lower, self.diag, self.upper), X, B)

    @property
    def _flops(self) -> float:
        return 10.0 * self.diag.shape[-1]


FEWEST_ROWS = 2**15  # on a device, for which a few hundred launches take less time than the host
ROUNDINGS = 4  # by which a row counts as dominated by its diagonal entry all the same


def tridiagonal_factor(A: Any) -> LinearOperator:
    """A^-1 of a tridiagonal A."""
    return TridiagonalFactor._of(*A.diagonals, levels_on_device(A))


def levels_on_device(A: Any) -> int | None:
    """The levels of the cyclic reduction that solves with a tridiagonal A on a device, in double
    precision, which right sides may have. None where the host eliminates: not unless each row, or
    each column, is seen to be dominated by its diagonal entry, so that no exchanges are needed."""
    xp, n = A.xp, A.shape[-1]
    if n < FEWEST_ROWS or A.batch_shape or xp.is_functional or planning() or A.dtype.itemsize == 2:
        return None
    if not is_unseen(A.diag) or has_traced(A) or records_derivatives(A):
        return None
    ratios = once_in_call(
        A, "_dominance", lambda: xp.fetch(cyclic_reduction.dominance(xp, *A.diagonals))
    )
    most = 1 + ROUNDINGS * xp.eps(A.dtype)
    ratio = min((float(x) for x in ratios if x <= most), default=None)
    return None if ratio is None else cyclic_reduction.levels_of(n, ratio, xp.eps(xp.float64))


class BandedFactor(LinearOperator):
    """A^-1 of a banded A, by elimination with pivoting: O(n l (l + u)) for each block of right
    sides.

    `ab` is A as LAPACK stores it, with l diagonals below the main one and u above: see
    `lapack_band`.
    """

    ab: Array
    widths: tuple[int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        n = self.ab.shape[-1]
        return (*self.ab.shape[:-2], n, n)

    def _transpose(self) -> LinearOperator:
        return BandedFactor._of(
            _banded.transposed(self.xp, self.ab, self.widths), self.widths[::-1]
        )

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).solve_banded(self.ab, self.widths, X)

    @property
    def _flops(self) -> float:
        lower, upper = self.widths
        return 2.0 * self.ab.shape[-1] * (lower + 1) * (lower + upper + 1)


def lapack_band(A: Any, lower: int, upper: int) -> Array:
    """The band of a `Banded` as LAPACK stores it, with so many diagonals below and above the main
    one: `ab[..., upper + i - j, j] = A[..., i, j]`."""
    xp, (m, n) = A.xp, A.shape[-2:]
    by_offset = dict(zip(A.offsets, A.diagonals))

    def row(k: int) -> Array:
        d = by_offset.get(k, xp.zeros((natural_length(k, m, n),), **kind_of(A)))
        d = xp.astype(xp.broadcast_to(d, (*A.batch_shape, d.shape[-1])), A.dtype)
        before = min(max(k, 0), n)
        return xp.pad(d, before, n - before - d.shape[-1], axis=-1)

    return xp.stack([row(k) for k in range(upper, -lower - 1, -1)], axis=-2)


class SpectralFactor(LinearOperator):
    """V diag(d) W, a function of a matrix in a basis of eigenvectors, W = V^-1; the real part of
    it if the matrix is real."""

    V: LinearOperator
    d: Array
    W: LinearOperator
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (
            *broadcast_batches(self.V.shape[:-2], self.d.shape[:-1], self.W.shape[:-2]),
            *self.V.shape[-2:],
        )

    def _adjoint(self) -> LinearOperator:
        return SpectralFactor._of(self.W.H, self.xp.conj(self.d), self.V.H, self.real)

    def _conj(self) -> LinearOperator:
        if self.real:
            return self
        return SpectralFactor._of(self.V.conj(), self.xp.conj(self.d), self.W.conj(), False)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        Y = self.V @ (self.d[..., None] * (self.W @ X))
        return xp.real(Y) if self.real and not xp.is_complex(X) else Y

    @property
    def _flops(self) -> float:
        return self.V.flops + self.W.flops + self.d.shape[-1]


class StackedBlocks(LinearOperator):
    """diag(A_1, ..., A_k) of the k matrices along the last batch dimension of one operator: all
    are multiplied at once."""

    A: LinearOperator

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, count, m, n = self.A.shape
        return (*batch, count * m, count * n)

    _transpose, _adjoint, _conj = TURNED

    def _matmat(self, X: Array) -> Array:
        xp, (count, m, n) = namespace_of(X), self.A.shape[-3:]
        Y = self.A @ xp.reshape(X, (*X.shape[:-2], count, n, X.shape[-1]))
        return xp.reshape(Y, (*Y.shape[:-3], count * m, X.shape[-1]))

    @property
    def _flops(self) -> float:
        return self.A.shape[-3] * self.A.flops


def as_blocks(B: LinearOperator, count: int) -> LinearOperator:
    """diag(B_1, ..., B_k) of the k matrices along the last batch dimension of one operator; of one
    that has no such dimension, as the identity may, k times that."""
    if isinstance(B, Identity):
        return Identity(count * B.shape[-1], like=B)
    if B.ndim == 2:
        return Kronecker(Identity(count, like=B), B)
    if isinstance(B, Permutation):
        is_index = isinstance(B.perm, Index)
        given = B.perm.host if is_index else B.perm
        xp = namespace_of(given)
        starts = xp.asarray(B.shape[-1] * np.arange(count)[:, None], device=xp.device_of(given))
        flat = xp.reshape(given + starts, (*B.shape[:-3], -1))
        return Permutation._of(Index(flat) if is_index else flat, B.context)
    if isinstance(B, Dense | Triangular):  # views, where there are such
        return BlockDiag(*(B.with_arrays((A,)) for A in B.xp.moveaxis(B.A, -3, 0)))
    return BlockDiag(*(B[..., i, :, :] for i in range(count)))


# The inverse of a power of A ⊕ B for tridiagonal A, B of constant diagonals: transforms along the
# lines of B, elimination across.
#
# Half of the transforms that diagonalising both would take (Hockney 1965). In NumPy only, whose
# loops run over rows.


class LineFactor(LinearOperator):
    """(S^-1 L^-H D^-1 L^-1 S)^power, where L D L^H factors A + λ I for every eigenvalue λ of B at
    once.

    Attributes
    ----------
    multipliers : array, (m - 1, n)
        The diagonal below the main one of L.
    pivots : array, (m, n)
    power : int
    norm : float
        At least that of (A ⊕ B)^power.
    """

    multipliers: Array
    pivots: Array
    power: int
    norm: float

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        return bound_by_norm(self.norm, X, B)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.pivots.size,) * 2

    def _matmat(self, X: Array) -> Array:
        m, n = self.pivots.shape
        batch, k = X.shape[:-2], X.shape[-1]
        grid = np.reshape(X, (*batch, m, n, k)).astype(np.result_type(X, self.pivots), copy=False)
        Y = sine_transform(grid, (-2,))
        for _ in range(self.power):
            self._eliminate(Y)
        return np.reshape(sine_transform(Y, (-2,), overwrite=True), X.shape)

    _rmatmat = _matmat  # it is real and symmetric

    def _transpose(self) -> LinearOperator:
        return self

    def _eliminate(self, Y: Array) -> None:
        """In place."""
        rows, multipliers = np.moveaxis(Y, -3, 0), self.multipliers[..., None]
        product = np.empty(rows.shape[1:], Y.dtype)
        for i, multiplier in enumerate(multipliers):  # L^-1
            rows[i + 1] -= np.multiply(multiplier, rows[i], out=product)
        Y /= self.pivots[..., None]
        for i in reversed(range(len(multipliers))):  # L^-H
            rows[i] -= np.multiply(multipliers[i], rows[i + 1], out=product)

    @property
    def _flops(self) -> float:
        return 60.0 * self.shape[-1]


# The inverse of A ⊕ B ⊕ ... ⊕ c I from the Schur forms of the terms, in every framework: for terms
# without good eigenvectors.


class SchurFactor(LinearOperator):
    """(A ⊕ B ⊕ ...)^-1 for A = Q T Q^H and so on, by substitution in the sum of the triangles T.

    Attributes
    ----------
    bases, triangles : tuple of arrays
        Q and upper triangular T of every term, complex. They are held fixed: derivatives do not go
        through them.
    real : bool
        Whether all terms are.
    """

    bases: tuple[Array, ...]
    triangles: tuple[Array, ...]
    real: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return (math.prod([T.shape[-1] for T in self.triangles]),) * 2

    def _matmat(self, X: Array) -> Array:
        return self._apply(X, is_adjoint=False)

    def _rmatmat(self, X: Array) -> Array:
        return self._apply(X, is_adjoint=True)

    def _apply(self, X: Array, is_adjoint: bool) -> Array:
        xp = namespace_of(X)
        dtype = xp.result_type(X.dtype, self.triangles[0].dtype)
        Y = self._changed(xp, xp.astype(X, dtype), to_schur=True)
        Y = xp.solve_triangular_sum(self.triangles, Y, adjoint=is_adjoint)
        Y = self._changed(xp, Y, to_schur=False)
        return xp.astype(xp.real(Y), X.dtype) if self.real and not xp.is_complex(X) else Y

    def _changed(self, xp: Any, X: Array, to_schur: bool) -> Array:
        """Q^H ⊗ P^H ⊗ ... or Q ⊗ P ⊗ ... times X: each factor multiplies the leading axis, which
        is then moved to the end."""
        batch, k, Y = X.shape[:-2], X.shape[-1], X
        for Q in self.bases:
            Q = adjoint(xp, Q) if to_schur else Q
            Y = xp.matmul(
                Q, xp.reshape(Y, (*batch, Q.shape[-1], self.shape[-1] * k // Q.shape[-1]))
            )
            Y = xp.matrix_transpose(Y)
        return xp.matrix_transpose(xp.reshape(Y, (*batch, k, self.shape[-1])))

    @property
    def _flops(self) -> float:
        return 10.0 * self.shape[-1] * sum(T.shape[-1] for T in self.triangles)


# The inverse of a diagonal and a low-rank matrix together, both positive.


class CorrectedDiagonal(LinearOperator):
    """diag(d) - W W^H = A^-1, with real d, and log det A.

    Where A is nearly singular beside its largest eigenvalue λ, d x and W W^H x agree in all digits
    that single precision has, and their difference is rounding: x^H A^-1 x may come out negative.
    For Q = D^1/2 W, D = diag(d)^-1, and Z^H Z = I - Q^H Q, if it is given,

        I - Q Q^H = (I - Q Q^H)^2 + Q Z^H Z Q^H:

    two positive terms, neither of which loses the digits of the other.
    """

    d: Array
    W: Array
    logarithm: Array
    Z: Array | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.W.shape[:-1], self.W.shape[-2])

    _conj = _transpose = conjugate_leaves

    def _adjoint(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        xp, d = namespace_of(X), self.d[..., None]
        c = inner_products(xp, self.W, X)  # W^H x
        Y = d * X - xp.matmul(self.W, c)
        if self.Z is None:
            return Y
        rest = inner_products(xp, self.Z, xp.matmul(self.Z, c)) - inner_products(xp, self.W, Y / d)
        return Y + xp.matmul(self.W, rest)  # y + W (Z^H Z W^H x - W^H D y)

    def slogdet(self) -> tuple[Array, Array]:
        return self.xp.ones(self.shape[:-2], **kind_of(self)), self.logarithm

    @property
    def _flops(self) -> float:
        n, rank = self.W.shape[-2:]
        once = 4.0 * n * rank + 2 * n
        return math.prod(self.shape[:-2]) * (once if self.Z is None else 2 * once + 4 * rank**2)
