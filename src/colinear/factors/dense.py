"""Factorisations as operators, which multiply by the inverse of what they factored; Q of a banded A = Q R."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..autodiff.determinants import slogdet_of_diagonal
from ..backends import Array, Norm, adjoint, inner_products, namespace_of
from ..backends.numpy.linalg import are_below
from ..backends.shared import permute_rows
from ..operators import LinearOperator
from ..operators.banded import pad_end
from ..operators.tree import conjugate_leaves
from ..properties import POSITIVE_DEFINITE, SELF_ADJOINT, STIEFEL, UNITARY
from ..status import Status, is_unseen, state, take_for_granted
from .inverse import in_batch_of, shape_of


class CholeskyFactor(LinearOperator):
    """A^-1 from A = L L^H."""

    L: Array

    shape = shape_of("L")

    _implied = POSITIVE_DEFINITE
    _conj = _transpose = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).cholesky_solve(self.L, X)

    _rmatmat = _matmat

    def _to_dense(self) -> Array:
        return self.xp.cholesky_inverse(self.L)

    def slogdet(self) -> tuple[Array, Array]:
        xp = self.xp
        ones = xp.ones(self.shape[:-2], dtype=self.dtype, device=self._context.device)
        return ones, 2 * xp.sum(xp.log(xp.real(xp.diagonal(self.L))), axis=-1)


class LDLFactor(LinearOperator):
    """A^-1 from A = L D L^H, A self-adjoint, as the backend keeps it."""

    factors: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.factors[0].shape)

    _implied = SELF_ADJOINT

    def _fits(self, xp: Any) -> bool:
        """Whether a backend can solve with these factors: JAX has eigenvectors instead of LAPACK's
        L D L^H."""
        return xp.has_ldl or self.xp.is_floating(self.factors[1])

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).ldl_solve(*self.factors, X)

    _rmatmat = _matmat

    def slogdet(self) -> tuple[Array, Array]:
        sign, logarithm = self.xp.ldl_slogdet(self.factors)
        return self.xp.astype(sign, self.dtype), logarithm


class LUFactor(LinearOperator):
    """A^-1 from A = P L U; L, of unit diagonal, and U are in one array."""

    LU: Array
    pivots: Array

    shape = shape_of("LU")

    def _matmat(self, X: Array) -> Array:
        return namespace_of(X).lu_solve(self.LU, self.pivots, X)

    def _rmatmat(self, X: Array) -> Array:
        return namespace_of(X).lu_solve(self.LU, self.pivots, X, adjoint=True)

    def slogdet(self) -> tuple[Array, Array]:
        xp, d = self.xp, self.xp.diagonal(self.LU)
        parity = xp.astype(xp.lu_parity(self.pivots), self.dtype)
        return slogdet_of_diagonal(xp, d, parity)


class CholeskyOrLUFactor(LinearOperator):
    """A^-1 from A = L L^H where `positive` holds, else from A = P L U: of a traced program, which
    computes only one of them.

    `factors` holds L or both factors of LU; a batch has one kind of factors for all.
    """

    factors: Array
    pivots: Array
    positive: Array

    shape = shape_of("factors")

    def _either(self, method: str, *arguments: Array) -> Any:
        """What a method of the factor that there is gives."""
        return self.xp.cond(
            self.positive,
            lambda F, _, *rest: getattr(CholeskyFactor._of(F), method)(*rest),
            lambda F, pivots, *rest: getattr(LUFactor._of(F, pivots), method)(*rest),
            *(self.factors, self.pivots, *arguments),
        )

    def _matmat(self, X: Array) -> Array:
        return self._either("_matmat", X)

    def _rmatmat(self, X: Array) -> Array:
        return self._either("_rmatmat", X)

    def _to_dense(self) -> Array:
        return self._either("_to_dense")

    def slogdet(self) -> tuple[Array, Array]:
        return self._either("slogdet")


class QRFactor(LinearOperator):
    """A^-1 from A P = Q R with column pivoting, `A[:, order] = Q R`; made by `qr_factor`.

    Of a singular A, the columns of Q and the rows of R beyond the rank have been replaced: then it
    gives the basic solution of least squares, with zeros for the columns that depend on others.
    """

    Q: Array
    R: Array
    order: Array

    shape = shape_of("Q")

    def _matmat(self, X: Array) -> Array:
        """P R^-1 Q^H X"""
        xp = namespace_of(X)
        Y = xp.solve_triangular(self.R, inner_products(xp, self.Q, X), lower=False)
        return permute_rows(Y, xp.argsort(self.order, axis=-1))

    def _rmatmat(self, X: Array) -> Array:
        """Q R^-H P^T X"""
        xp = namespace_of(X)
        Y = xp.solve_triangular(self.R, permute_rows(X, self.order), lower=False, adjoint=True)
        return xp.matmul(self.Q, Y)


class TriangularFactor(LinearOperator):
    """A^-1 of a triangular A, by substitution. The other triangle of the array is not read."""

    A: Array
    lower: bool
    unit: bool

    shape = shape_of("A")

    def _matmat(self, X: Array) -> Array:
        return self._substitute(X, adjoint=False)

    def _rmatmat(self, X: Array) -> Array:
        return self._substitute(X, adjoint=True)

    def _substitute(self, X: Array, adjoint: bool) -> Array:
        return namespace_of(X).solve_triangular(
            self.A, X, lower=self.lower, unit_diagonal=self.unit, adjoint=adjoint
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
    return QRFactor._of(Q, R, order), xp.any(dropped, axis=-1)


# How factorisations are made, and which broke down; None where that shows as NaN.


def is_of(xp: Any, name: str, factor: Any, A: Array) -> Array | None:
    """Whether factors found from the lower triangle are those of A; None if all of A was read, or
    if that is asked later."""
    if name == "Cholesky" and is_unseen(A) and not xp.is_traced(A):
        p, L = probe(xp, A.shape[-1], A.dtype, xp.device_of(A)), factor.L
        R = xp.add_product(xp.matmul(A, p), L, xp.matmul(adjoint(xp, L), p), -1)
        test = functools.partial(is_small_beside, math.sqrt(xp.eps(A.dtype)))
        norms = (rough_norms(xp, x, -2, -1) for x in (R, A))
        if take_for_granted(test, *norms, failure=Status.NOT_POSITIVE_DEFINITE):
            return None
    if name == "Cholesky":
        return reproduces(xp, A, times_adjoint(xp, factor.L))
    if name == "LDL":  # it is stable, so that the matrix that it factored is the one that it read
        return reproduces(xp, A, mirrored(xp, A))
    return None


def cholesky_or_lu(xp: Any, A: Array) -> tuple[LinearOperator, Array | None]:
    """Cholesky, with LU in its place inside a traced program where it fails or does not give A."""
    L, ok = xp.cholesky(A)
    ok = xp.logical_and(ok, reproduces(xp, A, times_adjoint(xp, L)))
    unmoved = xp.arange(A.shape[-1], dtype="int32", device=xp.device_of(A))
    if xp.name == "jax":  # one of the two is run
        kept = lambda L, A: (L, xp.broadcast_to(unmoved, A.shape[:-1]))
        positive = xp.all(ok)
        # Under vmap both are run, and LU must wait for Cholesky: on two cores XLA waits for ever
        # where two stacks of matrices are factored at once (jaxlib 0.10).
        nothing = xp.astype(xp.minimum(xp.astype(positive, "int32"), 0), A.dtype)
        either = xp.cond(positive, kept, lambda L, A: xp.lu_factor(A + nothing), L, A)
        return CholeskyOrLUFactor._of(*either, positive), None
    # Both are run, and Cholesky's factors written as LU's, `L D^-1/2` and `D^1/2 L^H`.
    d = xp.diagonal(L)
    LU = xp.tril(L / d[..., None, :], -1) + xp.triu(d[..., :, None] * adjoint(xp, L))
    other, swaps = xp.lu_factor(A)
    return LUFactor._of(
        xp.where(ok[..., None, None], LU, other), xp.where(ok[..., None], unmoved, swaps)
    ), None


MAKE: dict[str, Callable[[Any, Array], tuple[LinearOperator, Array | None]]] = {
    "Cholesky": lambda xp, A: (CholeskyFactor._of(xp.cholesky_or_nan(A)), None),
    "LDL": lambda xp, A: (LDLFactor._of(xp.ldl_factor(A)), None),
    "LU": lambda xp, A: (LUFactor._of(*xp.lu_factor(A)), None),
    "QR": qr_factor,
}


# Orthonormal columns as a chain of small unitary matrices, each acting on the last rows of the one
# before: Q of a banded A = Q R.


class UnitaryChain(LinearOperator):
    """The first n columns of Q_1 Q_2 ... Q_c, where Q_i acts on w rows from row (i - 1)(w -
    overlap) on, cut to m rows.

    A product costs 2 c w^2 flops for each column, one matrix of the chain after the other.

    Attributes
    ----------
    blocks : array, (*batch, c, w, w)
    overlap : int
        How many rows neighbours share.
    m, n : int
        The size. Rows past the chain are zero.
    """

    blocks: Array
    overlap: int
    m: int
    n: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.blocks.shape[:-3], self.m, self.n)

    def _infer(self) -> int:
        return UNITARY if self.m == self.n else STIEFEL

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        """Q_1 (Q_2 (... (Q_c X))): what Q_i leaves in its first rows goes to the one before it."""
        return self._chained(X, self.blocks, self.m, upwards=True)

    def _rmatmat(self, X: Array) -> Array:
        """Q_c^H (... (Q_1^H X)): what Q_i^H leaves in its last rows goes to the next."""
        return self._chained(X, adjoint(self.xp, self.blocks), self.n, upwards=False)

    def _chained(self, X: Array, blocks: Array, size: int, upwards: bool) -> Array:
        """The recurrence over the chain, from its end if it goes upwards, cut to `size` rows.

        Q_i takes [carry; rows] to [done; carry of the next]; upwards it is the other way round.
        What is carried is c_i = E_i c_(i-1) + f_i, with a part E_i of the unitary Q_i, so nothing
        grows; with all of it known the rest is one product for the whole chain.
        """
        xp, k, lapping = namespace_of(X), X.shape[-1], self.overlap
        count, each = blocks.shape[-3], blocks.shape[-1] - lapping
        X = in_batch_of(self, xp.astype(X, xp.result_type(X.dtype, blocks.dtype)))
        X = _cut(xp, X, count * each + lapping)
        if upwards:  # seen from the end, it goes downwards
            X, blocks = xp.flip(X, axis=-2), xp.flip(blocks, axis=(-3, -2, -1))
        start, rows = X[..., :lapping, :], X[..., lapping:, :]
        rows = xp.reshape(rows, (*rows.shape[:-2], count, each, k))
        E, F = blocks[..., each:, :lapping], blocks[..., each:, lapping:]
        # from c_0, which is the start
        E = xp.concat([0 * E[..., :1, :, :], E], axis=-3)
        f = xp.concat([start[..., None, :, :], xp.matmul(F, rows)], axis=-3)
        carried = xp.linear_recurrence(E, f)
        before = carried[..., :-1, :, :]
        done = xp.matmul(blocks[..., :each, :], xp.concat([before, rows], axis=-2))
        done = xp.reshape(done, (*done.shape[:-3], count * each, k))
        Y = xp.concat([done, carried[..., -1, :, :]], axis=-2)
        return _cut(xp, xp.flip(Y, axis=-2) if upwards else Y, size)

    @property
    def _flops(self) -> float:
        count, width = self.blocks.shape[-3:-1]
        return 2.0 * count * width**2


def _cut(xp: Any, X: Array, rows: int) -> Array:
    """X with as many rows: the first, or with zeros behind them."""
    return X[..., :rows, :] if rows <= X.shape[-2] else pad_end(xp, X, (rows,), (-2,))


# What a factorisation is judged by: a probe, and norms.


SMALL_PROBE = 64  # rows up to which it is made once for all
MOST_KEPT = 1024  # rows of a probe that is kept on a device
MOST_PROBES = 64
_probes: dict[Any, Array] = {}


def probe(xp: Any, n: int, dtype: Any, device: Any) -> Array:
    """A column without symmetry or structure that a matrix might share."""
    if xp.name == "numpy" and n <= SMALL_PROBE:
        return _small_probe(n, dtype)
    key = xp.name, n, dtype, device
    if key in _probes:
        return _probes[key]
    if xp.is_functional and n <= SMALL_PROBE:  # a constant of compiled programs
        p = xp.asarray(_small_probe(n, dtype), device=device)
    else:
        p = xp.cos(xp.arange(n, dtype=xp.real_dtype(dtype), device=device))[:, None]
        p = p if p.dtype == dtype else xp.astype(p, dtype)
    # not in torch's inference mode, whose tensors are of no use outside of it
    if n <= MOST_KEPT and xp.is_on_device(p) and not getattr(p, "is_inference", bool)():
        if len(_probes) >= MOST_PROBES:
            _probes.clear()
        _probes[key] = p
    return p


def probe_norm(n: int) -> float:
    """|p|: the squares of cosines add up to n / 2 + sin(n) cos(n - 1) / (2 sin(1))"""
    return math.sqrt(n / 2 + math.sin(n) * math.cos(n - 1) / (2 * math.sin(1)))


def probe_of(A: LinearOperator) -> Array:
    """A probe to multiply A by."""
    return probe(A.xp, A.shape[-1], A.dtype, A._context.device)


@functools.cache
def _small_probe(n: int, dtype: Any) -> Array:
    p = np.cos(np.arange(n))[:, None].astype(dtype)
    p.flags.writeable = False
    return p


def squares(xp: Any, X: Array, axis: int = -2) -> Array:
    """The sums of squares |x|^2 along an axis."""
    return xp.vecdot(X, X, axis=axis).real


def rough_norms(xp: Any, X: Array, *axes: int) -> Norm:
    """The norms along these axes, of columns if there are none, for a test: by squares which may
    overflow or vanish."""
    return Norm(xp.stop_gradient(X), axes or (-2,))


def column_norms(xp: Any, X: Array) -> Array:
    """The norm of each column."""
    return xp.vector_norm(X, axis=-2)


def reproduces(xp: Any, A: Array, again: Callable[[Array], Array]) -> Array:
    """Whether a factorisation that read the lower triangle alone is one of A.

    The product by the factors, `again(p)`, is compared with A p for a probe p.
    """
    p = probe(xp, A.shape[-1], A.dtype, xp.device_of(A))
    size = xp.max(xp.abs(A), axis=(-2, -1)) * A.shape[-1]
    error = xp.max(xp.abs(xp.matmul(A, p) - again(p)), axis=(-2, -1))
    return error <= math.sqrt(xp.eps(A.dtype)) * size


def is_small_beside(tol: float, error: Any, size: Any) -> bool:
    """Whether a norm is small beside another, whose square has not overflowed or vanished."""
    return bool(((error <= tol * size) & (1e-15 < size) & (size < np.inf)).all())


def times_adjoint(xp: Any, L: Array) -> Callable[[Array], Array]:
    """p -> L L^H p"""
    return lambda p: xp.matmul(L, inner_products(xp, L, p))


def mirrored(xp: Any, A: Array) -> Callable[[Array], Array]:
    """p -> H p for the Hermitian H whose lower triangle is that of A."""
    strict = xp.tril(A, -1)
    d = xp.astype(xp.real(xp.diagonal(A)), A.dtype)[..., None]
    return lambda p: xp.matmul(strict, p) + d * p + inner_products(xp, strict, p)


FEW = 4  # columns, which are looked at one by one


def are_small(xp: Any, R: Array, B: Array, tol: float) -> bool:
    """Whether |r| <= tol |b| for each column, for sure: false too where squares might overflow
    or vanish, or there are NaN. On a device it is taken for granted."""
    if xp.is_on_device(R) and is_unseen(R):
        norms = rough_norms(xp, R), *sizes_of_columns(xp, B)
        return take_for_granted(
            functools.partial(status_of_norms, tol), *norms, failure=Status.INACCURATE
        )
    is_one = R.ndim == B.ndim == 2 and B.shape[-1] <= FEW
    if is_one and not xp.hides_values and B.dtype is R.dtype:
        return are_below(R, B, tol)
    r, b = squares(xp, R), tol**2 * squares(xp, B)
    return bool(xp.all((r <= b) & (b > 1e-30) & (b < 1e30)))


def sizes_of_columns(xp: Any, B: Array) -> tuple[Any, ...]:
    """The norms of right sides; in a block `deferred`, where nothing is asked again, also their
    largest entries, by which zero is told from numbers whose squares vanish."""
    B = xp.stop_gradient(B)
    norms = rough_norms(xp, B)
    return (norms, xp.max(xp.abs(B), axis=-2)) if state.waiting is not None else (norms,)


def status_of_norms(tol: float, r: Any, b: Any, largest: Any = None) -> Status:
    """SUCCESS where |r| <= tol |b| for each column, for norms whose squares have not overflowed or
    vanished; `largest`: the largest entries of the right sides.

    A right side of zero counts as one of size 1. NaN that are not in b come from dividing by zero.
    """
    most = tol * b
    fine = (r <= most) & (1e-15 < most) & (most < 1e15)
    if largest is not None:
        fine = fine | ((largest == 0) & (r <= tol))
    if fine.all():
        return Status.SUCCESS
    if not np.isfinite(b).all():
        return Status.NONFINITE
    return Status.INACCURATE if np.isfinite(r).all() else Status.SINGULAR


def status_by_norms(limit: float, eps: float, tol: float, broken: Status, *norms: Any) -> Status:
    """The judgement of a solution of A X = B by |A|_F, which is between the largest entry of A and n
    times that, and by the norms of the columns of X, R and B, the last of which is the probe."""
    size, x, r, b, *largest = norms
    status = status_of_growth(limit, broken, x[..., -1], size)
    if status is not Status.SUCCESS:
        return status
    if not np.all(r[..., -1] <= math.sqrt(eps) * (size * x[..., -1] + b[..., -1])):
        return Status.INACCURATE
    return status_of_norms(tol, r[..., :-1], b[..., :-1], *(y[..., :-1] for y in largest))


def status_of_growth(limit: float, broken: Status, x: Any, size: Any) -> Status:
    """Whether |x| for A x = p, and |A|_F, are those of a matrix that is not singular to working
    accuracy."""
    if ((limit * size * x < 1) & (size > 1e-15)).all():
        return Status.SUCCESS
    if not np.isfinite(size).all():
        return Status.NONFINITE
    return Status.SINGULAR if np.isfinite(x).all() else broken
