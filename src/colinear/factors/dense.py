"""Factorisations as operators: each multiplies by the inverse of the matrix that it factored,
through triangular solves.

They are what `inv` keeps inside an `Inverse`. The transposes of one are the same factors, read the
other way round: `form` says which of A^-1 ("N"), A^-T ("T") and A^-H ("H") it applies. `slogdet()`,
where it is known, is of what it inverts: A, A^T or A^H.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..autodiff.functions import is_polynomial
from ..backends import Array, namespace_of
from ..operators.base import LinearOperator, conjugate_leaves
from ..operators.context import broadcast_batches
from ..properties import POSITIVE_DEFINITE, SELF_ADJOINT

# The form of the adjoint and of the transpose, and whether the leaves must be conjugated for it.
_ADJOINT = {"N": ("H", False), "H": ("N", False), "T": ("N", True)}
_TRANSPOSE = {"N": ("T", False), "T": ("N", False), "H": ("N", True)}
_CONJUGATE = {"N": ("N", True), "T": ("T", True), "H": ("T", False)}


def _reformed(self: Any, table: dict[str, tuple[str, bool]]) -> Any:
    form, conjugated = table[self.form]
    return (conjugate_leaves(self) if conjugated else self)._replace(form=form)


class CholeskyFactor(LinearOperator):
    """A^-1 from A = L L^H."""

    L: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.L.shape)

    def _infer(self) -> int:
        return POSITIVE_DEFINITE

    def _adjoint(self) -> LinearOperator:
        return self

    _conj = _transpose = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).cholesky_solve(self.L, X)

    _rmatmat = _matmat

    def _to_dense(self) -> Array:
        return self.xp.cholesky_inverse(self.L)

    def slogdet(self) -> tuple[Array, Array]:
        xp, d = self.xp, self.xp.real(self.xp.diagonal(self.L))
        return xp.ones(d.shape[:-1], dtype=self.dtype, device=self._context.device), 2 * xp.sum(
            xp.log(d), axis=-1
        )


class LDLFactor(LinearOperator):
    """A^-1 from A = L D L^H, A self-adjoint, as the backend keeps it."""

    factors: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.factors[0].shape)

    def _infer(self) -> int:
        return SELF_ADJOINT

    def _adjoint(self) -> LinearOperator:
        return self

    def _conj(self) -> LinearOperator:
        xp = self.xp
        return self._replace(
            factors=tuple(xp.conj(x) if xp.is_complex(x) else x for x in self.factors)
        )

    _transpose = _conj

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).ldl_solve(self.factors, X)

    _rmatmat = _matmat

    def slogdet(self) -> tuple[Array, Array]:
        sign, logarithm = self.xp.ldl_slogdet(self.factors)
        return self.xp.astype(sign, self.dtype), logarithm


class LUFactor(LinearOperator):
    """A^-1 from A = P L U; L, of unit diagonal, and U are in one array."""

    LU: Array
    pivots: Array
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.LU.shape)

    def _adjoint(self) -> LinearOperator:
        return _reformed(self, _ADJOINT)

    def _transpose(self) -> LinearOperator:
        return _reformed(self, _TRANSPOSE)

    def _conj(self) -> LinearOperator:
        return _reformed(self, _CONJUGATE)

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).lu_solve(
            self.LU, self.pivots, X, transpose=self.form == "T", adjoint=self.form == "H"
        )

    def slogdet(self) -> tuple[Array, Array]:
        xp, d = self.xp, self.xp.diagonal(self.LU)
        parity = xp.astype(xp.lu_permutation(self.pivots, d.shape[-1])[1], self.dtype)
        sign, logarithm = slogdet_of_diagonal(xp, d, parity)
        return xp.conj(sign) if self.form == "H" else sign, logarithm


class CholeskyOrLUFactor(LinearOperator):
    """A^-1 from A = L L^H where `positive` holds, else from A = P L U: of a traced program, which
    computes only one of them.

    `factors` holds L or both factors of LU; a batch has one kind of factors for all.
    """

    factors: Array
    pivots: Array
    positive: Array
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.factors.shape)

    def _adjoint(self) -> LinearOperator:
        return _reformed(self, _ADJOINT)

    def _transpose(self) -> LinearOperator:
        return _reformed(self, _TRANSPOSE)

    def _conj(self) -> LinearOperator:
        return _reformed(self, _CONJUGATE)

    def _either(self, f: Any, *arguments: Array) -> Any:
        """`f(factor, *arguments)` of the factor that there is."""

        def of_cholesky(factors: Array, pivots: Array, *arguments: Array) -> Any:
            factor = CholeskyFactor._of(factors)
            return f(factor.T if self.form == "T" else factor, *arguments)

        def of_lu(factors: Array, pivots: Array, *arguments: Array) -> Any:
            return f(LUFactor._of(factors, pivots, self.form), *arguments)

        return self.xp.cond(
            self.positive, of_cholesky, of_lu, self.factors, self.pivots, *arguments
        )

    def _matmat(self, X: Array) -> Array:
        return self._either(lambda factor, X: factor._matmat(X), X)

    def _to_dense(self) -> Array:
        return self._either(lambda factor: factor._to_dense())

    def slogdet(self) -> tuple[Array, Array]:
        return self._either(lambda factor: factor.slogdet())


class QRFactor(LinearOperator):
    """A^-1 from A P = Q R with column pivoting, `A[:, order] = Q R`; made by `qr_factor`.

    Of a singular A, the columns of Q and the rows of R beyond the rank have been replaced: then it
    gives the basic solution of least squares, with zeros for the columns that depend on others.
    """

    Q: Array
    R: Array
    order: Array
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.Q.shape)

    def _adjoint(self) -> LinearOperator:
        return _reformed(self, _ADJOINT)

    def _transpose(self) -> LinearOperator:
        return _reformed(self, _TRANSPOSE)

    def _conj(self) -> LinearOperator:
        return _reformed(self, _CONJUGATE)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        if self.form == "N":  # P R^-1 Q^H X
            Y = xp.matmul(xp.conj(xp.matrix_transpose(self.Q)), X)
            return _rows(
                xp, xp.solve_triangular(self.R, Y, lower=False), xp.argsort(self.order, axis=-1)
            )
        Y = _rows(xp, X, self.order)
        if self.form == "H":  # Q R^-H P^T X
            return xp.matmul(self.Q, xp.solve_triangular(self.R, Y, lower=False, adjoint=True))
        return xp.matmul(
            xp.conj(self.Q), xp.solve_triangular(self.R, Y, lower=False, transpose=True)
        )


class TriangularFactor(LinearOperator):
    """A^-1 of a triangular A, by substitution. The other triangle of the array is not read."""

    A: Array
    lower: bool
    unit: bool
    form: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.A.shape)

    def _adjoint(self) -> LinearOperator:
        return _reformed(self, _ADJOINT)

    def _transpose(self) -> LinearOperator:
        return _reformed(self, _TRANSPOSE)

    def _conj(self) -> LinearOperator:
        return _reformed(self, _CONJUGATE)

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).solve_triangular(
            self.A,
            X,
            lower=self.lower,
            unit_diagonal=self.unit,
            transpose=self.form == "T",
            adjoint=self.form == "H",
        )

    @property
    def _flops(self) -> float:
        return float(self.shape[-1]) ** 2


def qr_factor(xp: Any, A: Array) -> tuple[QRFactor, Array]:
    """The pivoted QR factorisation of A as an operator, and whether A is singular to working
    accuracy (per matrix)."""
    Q, R, order = xp.qr_pivoted(A)
    n = A.shape[-1]
    size = xp.abs(xp.diagonal(R))
    largest = xp.max(size, axis=-1, keepdims=True) if n else size
    dropped = size <= n * xp.eps(A.dtype) * largest  # false where it is NaN, so that NaN stays
    # Keep the leading block of R; beyond it the identity, whose right sides are zero because Q's
    # columns are.
    kept = xp.astype(xp.logical_not(dropped), A.dtype)
    Q = Q * kept[..., None, :]
    R = R * kept[..., :, None] * kept[..., None, :] + xp.make_diagonal(1 - kept)
    return QRFactor._of(Q, R, order, "N"), xp.any(dropped, axis=-1)


def slogdet_of_diagonal(xp: Any, d: Array, sign: Array | int = 1) -> tuple[Array, Array]:
    """The sign, times `sign`, and the logarithm of the absolute value of the product of d; or
    this product as a polynomial."""
    if (
        xp.name == "numpy" and d.dtype.kind == "f"
    ):  # without derivatives to care for: half as many passes
        if d.size and np.min(d) > 0:
            return np.ones(d.shape[:-1], d.dtype)[()] * sign, np.sum(np.log(d), axis=-1)
        with np.errstate(all="ignore"):
            logarithm = np.sum(np.log(np.abs(d)), axis=-1)
        parity = 1 - 2 * (np.count_nonzero(d < 0, axis=-1) % 2)
        known = np.where(np.isnan(logarithm), np.nan, parity * np.all(d, axis=-1))
        return known.astype(d.dtype)[()] * sign, logarithm
    size = xp.abs(d)
    positive = xp.where(size == 0, 1, size)
    if is_polynomial():
        positive = xp.stop_gradient(positive)
        return xp.prod(d / positive, axis=-1) * sign, xp.sum(xp.log(positive), axis=-1)
    logarithm = xp.sum(
        xp.log(size), axis=-1
    )  # without a derivative at zero: that is NaN, never a number
    return xp.prod(d / positive, axis=-1) * sign, logarithm


def _rows(xp: Any, X: Array, order: Array) -> Array:
    """X[order] for each matrix of a batch."""
    if order.ndim == 1:
        return xp.take(X, order, axis=-2)
    batch = broadcast_batches(X.shape[:-2], order.shape[:-1])
    X = xp.broadcast_to(X, (*batch, *X.shape[-2:]))
    return xp.take_along_axis(X, xp.broadcast_to(order[..., None], X.shape), axis=-2)
