"""Inverses, exact and approximate, from factors that were made on the host; and the polynomials
and cycles of preconditioners."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..autodiff.implicit import CONJUGATED, TRANSPOSED
from ..backends import Array, namespace_of, zeros_like
from ..methods.structured import (
    BLOCK_COLUMNS,
    of_pivots,
    parity,
    solve_sparse,
    sparse_inverse_entries,
    sparse_slogdet,
)
from ..operators import Diagonal, LinearOperator, Product, Scaled, Sparse, Sum
from ..operators.banded import pad_end
from ..operators.context import Context, broadcast_batches, kind_of
from ..operators.tree import Index
from ..operators.unitary import good_length
from ..properties import SELF_ADJOINT, SYMMETRIC
from .inverse import (
    TURNED,
    Implicit,
    conjugate_parts,
    differentiate_determinant,
    in_batch_of,
    multiply_on_host,
    transpose_parts,
)
from .structured import FourierFactor

# Inverses from factors that were made on the host: sparse elimination, and Toeplitz matrices by
# the columns of their inverse.
#
# The factors are constants; derivatives are those of `Implicit`.


def _in_form(forms: dict[str, str]) -> Callable[[Any], LinearOperator]:
    return lambda factor: factor._replace(form=forms[factor.form])


TURNED_FORMS = _in_form(TRANSPOSED), _in_form(CONJUGATED)  # of what has a `form`


class FixedFactor(LinearOperator):
    """A matrix that only the host can multiply by, with `solver.solve(X, form)`: the inverse of a
    sparse matrix by elimination (`methods/sparse_direct.py`), or by incomplete factors.

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

    _transpose, _conj = TURNED_FORMS

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        dtype = xp.result_type(X.dtype, self.dtype)
        # not half precision
        X = xp.astype(in_batch_of(self, X), xp.result_type(dtype, xp.float32))
        return xp.astype(multiply_on_host(self.solver, self.form, X), dtype)

    @property
    def slogdet(self) -> Callable[[], tuple[Array, Array]]:
        """Gives the sign and the logarithm of |det A|, if the solver has the pivots of A."""
        pivots = self.solver.pivots
        return lambda: _determinant(self, *pivots())

    @property
    def _flops(self) -> float:
        return float(self.solver.flops)


def _determinant(factor: FixedFactor, pivots: Any, orders: list[Any]) -> tuple[Array, Array]:
    """± ∏ u_ii of each matrix of a batch, the sign that of the permutations of rows and columns."""
    batch, xp, device = pivots.shape[:-1], factor.xp, factor._context.device
    found = np.empty((2, *batch), np.result_type(pivots, np.float64))
    for i in np.ndindex(batch):
        sign = math.prod([parity(order[i]) for order in orders])
        found[:, *i] = of_pivots(pivots[i], sign)
    sign, logarithm = found.conj() if factor.form in ("H", "C") else found
    return (
        xp.asarray(sign, dtype=factor.dtype, device=device),
        xp.asarray(logarithm.real, dtype=xp.real_dtype(factor.dtype), device=device),
    )


def slogdet_on_host(A: Any, positive: bool) -> tuple[Array, Array]:
    """The sign and the logarithm of |det A| of a sparse A, found on the host also from within a
    program, with derivatives of any order."""
    xp, structure = A.xp, A.structure

    def each_on_host(f: Callable, X: Array, data: Array) -> Array:
        def on_host(X: Any, data: Any) -> Any:
            rows = [f(row, structure, positive) for row in data.reshape(-1, structure.nnz)]
            return np.reshape(rows, X.shape).astype(X.dtype)

        return xp.map_on_host(on_host, X, data)

    def value(data: Array) -> tuple[Array, Array]:
        pairs = each_on_host(sparse_slogdet, zeros_like(xp, data, (*data.shape[:-1], 2)), data)
        return pairs[..., 0], xp.real(pairs[..., 1])

    def entries(data: Array) -> Array:
        return each_on_host(sparse_inverse_entries, data, data)

    def change(primals: tuple, tangents: tuple, output: Any) -> Array:
        """-(A^-1 dA A^-1)_ji, the change of (A^-1)_ji, for each entry a_ij."""
        S, dS = (Sparse.from_parts(x, structure) for x in (*primals, *tangents))
        Z = Implicit._of(S, SparseInverse._of(S.data, SparseSolver(structure, positive), "N"), None)
        n, starts, found = A.shape[-1], structure.indptr, []
        for first in range(0, n, BLOCK_COLUMNS):
            last = min(first + BLOCK_COLUMNS, n)
            block = xp.asarray(np.eye(n, last - first, -first), **kind_of(S))
            block = xp.broadcast_to(block, (*S.batch_shape, *block.shape))
            entries = slice(starts[first], starts[last])
            places = (
                Index(each).on(xp, xp.device_of(S.data))
                for each in (structure.columns[entries], structure.rows[entries] - first)
            )
            found.append((Z @ (dS @ (Z @ block)))[(..., *places)])
        return -xp.concat(found, axis=-1)

    def adjoint_inverse(data: Array) -> Array:
        return xp.conj(xp.custom_derivative(entries, change, ranks=(1,))(data))

    return differentiate_determinant(xp, value, adjoint_inverse, (1,), A.data)


class SparseSolver(NamedTuple):
    """Solves with the sparse matrices of one pattern, on the host. For a singular one, or where a
    value is not finite, it gives NaN; or X itself, if it preconditions and need not be `exact`."""

    structure: Any
    positive: bool
    exact: bool = True

    def solve(self, X: Any, form: str, data: Any) -> Any:
        """A^-1 X, or what `form` says, for the values of A."""
        found = solve_sparse(X, form, data, self.structure, self.positive)
        if self.exact:
            return found
        return np.where(np.isfinite(found).all(axis=(-2, -1), keepdims=True), found, X)


class SparseInverse(LinearOperator):
    """The inverse of a sparse matrix whose values only a running program knows: the host factors
    it when it is multiplied by."""

    data: Array
    solver: SparseSolver
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.data.shape[:-1], *self.solver.structure.shape)

    _transpose, _conj = TURNED_FORMS

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = xp.astype(in_batch_of(self, X), xp.result_type(X.dtype, self.dtype))
        return multiply_on_host(self.solver, self.form, X, self.data)


def gohberg_semencul(xp: Any, x: Array, y: Array) -> LinearOperator:
    """T^-1 of the Toeplitz matrix T whose inverse has the first column x and the last column y, by
    Fourier transforms of twice the size.

    x_0 T^-1 = L(x) U(y_n-1, ..., y_0) - L(0, y_0, ..., y_n-2) U(0, x_n-1, ..., x_1), with L(c) the
    lower triangular Toeplitz matrix of first column c and U(r) the upper one of first row r.
    """
    n, real = x.shape[-1], not xp.is_complex(x)
    length = good_length(2 * n - 1)
    zeros = zeros_like(xp, x, x.shape)
    first_rows = Diagonal(pad_end(xp, zeros + 1, (length,), (-1,)))

    def lower(c: Array) -> LinearOperator:  # as the corner of a circulant matrix
        symbol = (xp.rfftn if real else xp.fftn)(pad_end(xp, c, (length,), (-1,)), axes=(-1,))
        return FourierFactor._of(symbol, (length,), real)

    def product(c: Array, r: Array) -> LinearOperator:  # L(c) U(r)
        return Product(lower(c), first_rows, lower(r).T)

    shifted_x, shifted_y = (
        xp.concat([zeros[..., :1], part], axis=-1)
        for part in (xp.flip(x[..., 1:], axis=-1), y[..., :-1])
    )
    whole = Sum(
        product(x / x[..., :1], xp.flip(y, axis=-1)),
        Scaled(-1.0, product(shifted_y / x[..., :1], shifted_x)),
    )
    return whole[..., :n, :n]


# Approximate inverses as operators: by a polynomial, by a cycle over grids. Made by `preconditioners/`.


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

    _transpose, _adjoint, _conj = TURNED

    def _matmat(self, B: Array) -> Array:
        xp = namespace_of(B)
        low, high = (
            bound[..., None, None] if bound.ndim else bound for bound in (self.low, self.high)
        )
        center = (high + low) / 2
        radius = xp.maximum((high - low) / 2, center * xp.eps(self.low.dtype) ** 0.5)
        slope = center / radius
        rho = 1 / slope
        X = step = B / center
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

    _conj = conjugate_parts

    def _transpose(self) -> LinearOperator:
        swapped = self._replace(prolongations=self.restrictions, restrictions=self.prolongations)
        return transpose_parts(swapped)

    def _matmat(self, B: Array) -> Array:
        return self._cycle(0, B)

    def _cycle(self, level: int, B: Array) -> Array:
        if level == len(self.matrices):
            return self.coarsest._matmat(B)
        A, S = self.matrices[level]._matmat, self.smoothers[level]._matmat
        X = S(B)
        coarse = self._cycle(level + 1, self.restrictions[level]._matmat(B - A(X)))
        X = X + self.prolongations[level]._matmat(coarse)
        return X + S(B - A(X))

    @property
    def _flops(self) -> float:
        levels = zip(self.matrices, self.smoothers, self.prolongations, self.restrictions)
        return (
            sum(2 * A.flops + 2 * S.flops + P.flops + R.flops for A, S, P, R in levels)
            + self.coarsest.flops
        )
