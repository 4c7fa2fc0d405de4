"""What `preconditioner=` takes, and the parts of an operator that preconditioners are made of."""

from __future__ import annotations

import math
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np

from ..backends import Array, adjoint, program
from ..dispatch import function, rule
from ..errors import BackendError, DtypeError, MethodError, ShapeError
from ..functions.common import array_like, low_rank_sides, operands_in_context
from ..functions.diagonal import diag
from ..info import recording, report
from ..methods.basis import take_columns
from ..operators import (
    Dense,
    Kernel,
    LinearOperator,
    LowRank,
    Scaled,
    Sparse,
    Sum,
    Zero,
    as_operator,
)
from ..operators.context import broadcast_batches, check_device, kind_of, records_derivatives
from ..operators.sparse import from_coordinates
from ..operators.sparse_algebra import DIAGONAL, multiply_out, times
from ..operators.tree import Index
from ..properties import POSITIVE_SEMIDEFINITE
from ..status import failed

# Parts of an operator that preconditioners are made of: columns, diagonal blocks and the entries
# of sparse matrices.
#
# Each is a function with rules, so that an operator of a user's own joins by adding one.


BLOCK = 1 << 20  # entries that a block of columns may have


# --------------------------------------------------------------------------------------------------


def columns_by_product(A: LinearOperator, i: Array) -> Array:
    """A E for the columns i, an integer array (*batch, k): (*batch, n, k), one product for each."""
    xp = A.xp
    unit = xp.arange(A.shape[-1], device=A._context.device)[:, None] == i[..., None, :]
    return A @ xp.astype(unit, A.dtype)


columns = function("columns", base=columns_by_product, rewrites=False)


@rule(columns, Dense)
def columns_of_dense(A: Any, i: Array) -> Array:
    """A E is read off"""
    xp, batch = A.xp, broadcast_batches(A.batch_shape, i.shape[:-1])
    if not batch:
        return xp.take(A.A, i, axis=-1)
    return take_columns(xp, xp.broadcast_to(A.A, (*batch, *A.shape[-2:])), i)


def is_single(A: LinearOperator) -> bool:
    """Whether A is one matrix, not a batch."""
    return not A.batch_shape


@rule(columns, Kernel, when=is_single)
def columns_of_kernel(A: Any, i: Array) -> Array:
    """K E = k(X, X_i)"""
    xp, (rows, others) = A.xp, A._points()
    others = xp.take(others, xp.reshape(i, (-1,)), axis=0)
    some = A._between(rows, others)
    is_small = some._block_rows == A.shape[-2]
    entries = A._entries(rows, others) if is_small else some._by_blocks(None)
    return xp.moveaxis(xp.reshape(entries, (A.shape[-2], *i.shape)), 0, -2)


def reads_columns(A: Any) -> bool:
    """Whether columns of A are read off, without products."""
    inner = (A.A,) if isinstance(A, Scaled) else A.operands if isinstance(A, Sum) else ()
    return not columns.find(A).is_base and all(map(reads_columns, inner))


@rule(columns, Sum)
def columns_of_sum(A: Any, i: Array) -> Array:
    """(A + B) E = A E + B E"""
    return reduce(add, (columns(term, i) for term in operands_in_context(A)))


@rule(columns, Scaled)
def columns_of_multiple(A: Any, i: Array) -> Array:
    """(c A) E = c (A E)"""
    return times(A.scalar, columns(A.A, i), 2)


# --------------------------------------------------------------------------------------------------


def blocks_by_products(A: LinearOperator, places: Index) -> Array:
    """The principal submatrices of rows and columns `places[k]`, (*batch, count, size, size):
    one product for each column."""
    xp, (count, size) = A.xp, places.host.shape
    if math.prod(A.shape) <= BLOCK:
        return diagonal_blocks(Dense._of(A._dense()), places)
    step = max(1, BLOCK // (A.shape[-2] * size))
    parts = []
    for start in range(0, count, step):
        chosen = places.host[start : start + step]
        within = np.arange(chosen.size).reshape(chosen.shape)
        columns = A[..., chosen.reshape(-1)]._dense()
        parts.append(columns[..., *_beside(A, chosen[:, :, None], within[:, None, :])])
    return xp.concat(parts, axis=-3)


def _beside(A: LinearOperator, *indices: Any) -> list[Array]:
    """Indices in A's framework and on its device."""
    return [Index(x).on(A.xp, A._context.device) for x in indices]


diagonal_blocks = function("diagonal_blocks", base=blocks_by_products, rewrites=False)


@rule(diagonal_blocks, Dense)
def blocks_of_dense(A: Any, places: Index) -> Array:
    """A[p, p] is read off"""
    return A.A[..., *_beside(A, places.host[:, :, None], places.host[:, None, :])]


@rule(diagonal_blocks, Sparse)
def blocks_of_sparse(A: Any, places: Index) -> Array:
    """The entries whose row and column are of one block"""
    xp, (count, size), structure = A.xp, places.host.shape, A.structure
    number = np.full(A.shape[-1], -1)  # of each row, block after block
    number[places.host] = np.arange(count * size).reshape(count, size)
    rows, columns = number[structure.rows], number[structure.columns]
    inside = np.flatnonzero((rows // size == columns // size) & (rows >= 0))
    target, inside = _beside(A, rows[inside] * size + columns[inside] % size, inside)
    empty = xp.zeros((*A.batch_shape, count * size * size), **kind_of(A))
    filled = xp.scatter_add(empty, target, xp.take(A.data, inside, axis=-1), axis=-1)
    return xp.reshape(filled, (*A.batch_shape, count, size, size))


@rule(diagonal_blocks, Kernel, when=is_single)
def blocks_of_kernel(A: Any, places: Index) -> Array:
    """K[p, p] = k(X_p, Y_p)"""
    xp, (rows, columns) = A.xp, A._points()
    chosen = xp.asarray(places.host, device=A._context.device)
    return xp.loop_map(
        lambda p: A._entries(xp.take(rows, p, axis=0), xp.take(columns, p, axis=0)), chosen
    )


@rule(diagonal_blocks, DIAGONAL)
def blocks_of_diagonal(A: Any, places: Index) -> Array:
    """diag(d)[p, p] = diag(d_p)"""
    xp, d = A.xp, diag(A)
    return xp.make_diagonal(d[..., places.on(xp, A._context.device)])


@rule(diagonal_blocks, LowRank)
def blocks_of_low_rank(A: Any, places: Index) -> Array:
    """(U C V^H)[p, p] = U_p C V_p^H"""
    p = places.on(A.xp, A._context.device)
    U, V = (side[..., p, :] for side in low_rank_sides(A))
    return A.xp.matmul(U, adjoint(A.xp, V))


@rule(diagonal_blocks, Sum)
def blocks_of_sum(A: Any, places: Index) -> Array:
    """(A + B)[p, p] = A[p, p] + B[p, p]"""
    return reduce(add, (diagonal_blocks(term, places) for term in operands_in_context(A)))


@rule(diagonal_blocks, Scaled)
def blocks_of_multiple(A: Any, places: Index) -> Array:
    """(c A)[p, p] = c A[p, p]"""
    return times(A.scalar, diagonal_blocks(A.A, places), 3)


# --------------------------------------------------------------------------------------------------


@rule(multiply_out, Dense)
def sparse_of_dense(A: Any, whole: LinearOperator) -> Any:
    """The entries that are not zero in all matrices of the batch"""
    values = seen("ILU, IC or AMG", A.xp, A.A)
    rows, columns = np.nonzero(np.any(np.reshape(values != 0, (-1, *A.shape[-2:])), axis=0))
    structure, _ = from_coordinates(rows, columns, A.shape[-2:])
    return Sparse._of(A.A[..., *_beside(A, structure.rows, structure.columns)], structure)


@rule(multiply_out, Zero)
def sparse_of_zero(A: Any, whole: LinearOperator) -> Any:
    """No entries"""
    none = np.zeros(0, np.intp)
    structure, _ = from_coordinates(none, none, A.shape[-2:])
    return Sparse._of(array_like(whole, np.zeros((*A.batch_shape, 0))), structure)


def seen(name: str, xp: Any, x: Array) -> Any:
    """The values on the host, in at least single precision; an error that says what to do where
    they cannot be seen."""
    if xp.is_traced(x) and xp.peek(x) is None:
        raise BackendError(
            f"{name}: made from values on the host, which cannot be seen under jit or vmap. Make "
            "the preconditioner outside, and "
            "pass the operator in: preconditioner=M."
        )
    values = np.asarray(xp.to_numpy(xp.stop_gradient(x)))
    if not np.isfinite(values).all():
        raise MethodError(f"{name}: A has NaN or infinity among its entries.")
    return values.astype(np.result_type(values, np.float32))


# What `preconditioner=` takes: an operator that approximates A^-1, an array of its entries, or a
# factory that makes one from A.


def as_preconditioner(M: Any, A: Any) -> LinearOperator | None:
    """The operator that a method multiplies residuals of A by.

    Parameters
    ----------
    M : operator, array, callable or None
        An approximation of A^-1, or a factory such as `Jacobi()`: any callable that makes one from
        A. None is passed on.
    A : operator
        The operator of the system; of a least-squares problem with n unknowns, where M is n x n
        too.

    Returns
    -------
    operator or None
        Of the size, framework, device and precision of A. A factory is given A without its
        derivatives: what a solve gives does not depend on the preconditioner.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> from colinear.preconditioners import as_preconditioner
    >>> A = co.PSD([[4.0, 1.0], [1.0, 2.0]])
    >>> as_preconditioner(co.Jacobi(), A) @ np.ones(2)
    array([0.25, 0.5 ])
    """
    if M is None:
        return None
    A = A if isinstance(A, LinearOperator) else as_operator(A)
    name = type(M).__name__
    if callable(M) and not isinstance(M, LinearOperator):
        if isinstance(M, type):
            raise TypeError(
                f"preconditioner: {M.__name__} is a class; give an instance of it, such as "
                f"{M.__name__}()."
            )
        name = str(getattr(M, "__name__", name))
        # how it was made is no part of the answer's Info, unless that failed
        with recording() as reports:
            M = M(held_fixed(A))
        for info in reports:
            if failed(info._status) is not False:
                report(info)
        if M is None or isinstance(M, (int, float, complex, str)):
            raise TypeError(
                f"preconditioner: {name} gave {M!r}; expected an operator that approximates the "
                "inverse of A."
            )
    return _checked(M if isinstance(M, LinearOperator) else as_operator(M), A, name)


def _checked(M: LinearOperator, A: LinearOperator, name: str) -> LinearOperator:
    """M, if it fits A, in A's precision."""
    n = A.shape[-1]  # for least squares, where A has more rows: such that A M is well conditioned
    if M.shape[-2:] != (n, n):
        sizes = f"{M.shape[-2]}x{M.shape[-1]}", f"{A.shape[-2]}x{n}"
        raise ShapeError(
            f"the preconditioner is {sizes[0]} and A is {sizes[1]}; it must be {n}x{n}, to "
            "approximate A^-1. "
            "(Where structure splits A, give a factory, or opaque(A).)"
        )
    broadcast_batches(M.shape[:-2], A.shape[:-2], what="preconditioner")
    (backend, _, device), own = A._context, M._context
    if None in (own.backend, backend):
        return M
    if own.backend != backend:
        advice = f"Convert one: M.to(backend={backend!r})."
        raise BackendError(
            f"preconditioner: {name} is a {own.backend} operator and A a {backend} one. {advice}"
        )
    check_device(f"preconditioner {name}", device, own.device)
    if M.is_complex and not A.is_complex:
        raise DtypeError(
            f"preconditioner: {name} is complex and A is real; make A complex, or take a real "
            "preconditioner."
        )
    dtype = A.dtype if M.is_complex else A.xp.real_dtype(A.dtype)
    return M if M.dtype == dtype else M.to(dtype=dtype)


def held_fixed(A: LinearOperator) -> LinearOperator:
    """A without derivatives of its leaves."""
    return A.detach() if records_derivatives(A) else A


class Preconditioner:
    """What the factories share: called with A, they check it and make an operator that
    approximates A^-1."""

    needs_positive: ClassVar[bool] = False

    def __call__(self, A: Any) -> LinearOperator:
        A, name = A if isinstance(A, LinearOperator) else as_operator(A), type(self).__name__
        m, n = A.shape[-2:]
        if m != n:
            raise ShapeError(
                f"{name}: A is {m}x{n}; a preconditioner approximates the inverse of a square "
                "operator."
            )
        if self.needs_positive and not A.properties & POSITIVE_SEMIDEFINITE:
            raise MethodError(
                f"{name}: for positive semidefinite A alone, and A is not known to be. Say PSD(A) "
                "if it is so."
            )
        return self._make(A) if math.prod(A.shape) else A

    def _make(self, A: Any) -> LinearOperator:
        raise NotImplementedError


def compiled(f: Any, A: LinearOperator, *options: Any) -> Any:
    """f(A, *options); in JAX compiled, once for each structure and shape of A and not for each
    call."""
    try:
        run = program(A.backend, _of_operator, f, options)
    except TypeError:  # a seed that has no hash, such as a key
        return f(A, *options)
    return run(A)


def _of_operator(xp: Any, f: Any, options: tuple[Any, ...], A: LinearOperator) -> Any:
    return f(A, *options)


def check_integer(owner: Any, field: str, least: int = 1) -> None:
    """Raise an error if a field holds no integer, or too small a one."""
    value = getattr(owner, field)
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(
            f"{type(owner).__name__}: {field} is {value!r}; it must be an integer, at least {least}."
        )


def split_shift(A: Any) -> tuple[LinearOperator, LinearOperator | None]:
    """K and D of a sum K + D with a diagonal D, noise or a regularisation; A and None if it is
    none."""
    if isinstance(A, Scaled):
        K, D = split_shift(A.A)
        return (A, None) if D is None else (Scaled(A.scalar, K), Scaled(A.scalar, D))
    if isinstance(A, Sum):
        diagonal = [term for term in A.operands if isinstance(term, DIAGONAL)]
        rest = [term for term in A.operands if not isinstance(term, DIAGONAL)]
        if diagonal and rest:
            return Sum(*rest), Sum(*diagonal)
    return A, None
