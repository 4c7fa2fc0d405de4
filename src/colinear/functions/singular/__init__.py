"""Singular values, and what is read off them: rank, condition number and norms."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, adjoint, without_zeros
from ...dispatch import Choice, Cost, function, perform
from ...errors import ShapeError
from ...info import Info, report
from ...methods import SINGULAR, SVD, Auto, Method, fitting
from ...operators import Dense, LinearOperator, Product, opaque
from ...operators.batch import broadcast_batch
from ...operators.streamed import Streamed, is_triangle_small, row_blocks
from ...properties import Stiefel
from ...status import Status, first_failure
from ..common import (
    MARGIN,
    dense,
    filled,
    host_value,
    identity_like,
    ignore_float_errors,
    is_square,
    report_finite,
    smaller_side,
    square_size,
    to_computing_dtype,
    to_result_dtype,
    values_are_seen,
)
from ..diagonal import BLOCK, by_columns
from ..orthonormal import first_columns
from ..solve.cost import is_too_large, lapack_cost
from ..solve.inverse import column_norms, inv
from ..spectrum.order import checked_count, is_affordable
from ..spectrum.outside import triplets_of_algorithm
from .iterate import (
    Triplets,
    automatic,
    by_rows,
    dense_cost,
    expected_cost,
    gram_pays,
    gram_values,
    iterative_triplets,
    wrap,
)

# Matrix norms.


ORDERS = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


def checked_order(function: str, order: Any) -> Any:
    """A norm's name, or an error that lists them."""
    if isinstance(order, bool) or order not in ORDERS:
        raise ValueError(
            f"{function}: {order!r} names no matrix norm; use one of "
            f"{', '.join(map(repr, ORDERS))}."
        )
    return order


def matrix_norm(A: LinearOperator, ord: Any = "fro", method: Method | None = None) -> Any:
    """A norm of the matrix, as `numpy.linalg.norm`.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    ord : {"fro", "nuc", 2, -2, 1, -1, inf, -inf}
        Frobenius, nuclear, largest and smallest singular value, largest and smallest column sum (1,
        -1) and row sum (inf, -inf).
    method : optional
        As for `svd`, for the norms that need singular values.

    Notes
    -----
    m n flops, or those of `svd` for "nuc", 2 and -2. Of large operators no matrix is formed:
    entries are looked at in blocks of columns, the largest singular value is found by iteration,
    and the smallest as that of the inverse.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> float(co.norm(np.array([[3.0, 0.0], [4.0, 0.0]])))
    5.0
    """
    order = checked_order("norm", ord)
    if order in ("nuc", 2, -2):
        return _spectral_norm(A, order, method)
    size, columns = math.prod(A.shape), 0 if isinstance(A, Dense) else A.shape[-1]
    cost = lambda: Cost(2.0 * size + columns * A.flops, 8.0 * min(size, BLOCK))
    like = lambda: filled(A, 1.0, *A.batch_shape)
    return Choice(lambda: _norm_of_matrix(A, order), cost=cost, like=like)


def _norm_of_matrix(A: LinearOperator, order: Any) -> Array:
    """The norms that entries give."""
    xp = A.xp
    if math.prod(A.shape) > BLOCK and not isinstance(A, Dense | Streamed):
        result = _norm_by_blocks(A, order)
    elif A._is_out_of_core:
        result = _norm_by_rows(A, order)
    else:
        M = dense(A)
        with ignore_float_errors(xp):
            if 0 in M.shape[-2:]:
                result = xp.sum(xp.abs(M), axis=(-2, -1))
            elif order == "fro":
                result = frobenius(xp, M)
            else:
                sums = xp.sum(xp.abs(M), axis=-2 if abs(order) == 1 else -1)
                result = extreme(xp, sums, order)
    result = to_result_dtype(xp, result, A.dtype)
    report_finite(xp, result)
    return result


def _spectral_norm(A: LinearOperator, order: Any, method: Method | None) -> Array:
    """The sum, the largest or the smallest of the singular values."""
    if order != "nuc" and smaller_side(A) and is_too_large(A):
        if order == 2:
            return svd(A, 1, method)[1][..., 0]
        if is_square(A):
            return smallest_singular_value(A)
    s = svd(A, None, method)[1]
    if order == "nuc" or not s.shape[-1]:
        return A.xp.sum(s, axis=-1)
    return s[..., 0 if order == 2 else -1]


def _norm_by_blocks(A: LinearOperator, order: Any) -> Array:
    """From blocks of columns of at most `BLOCK` entries."""
    xp = A.xp
    if order in (math.inf, -math.inf):
        return _norm_by_blocks(A.T, 1 if order > 0 else -1)
    is_frobenius = order == "fro"
    measure = column_norms if is_frobenius else lambda xp, X: xp.sum(xp.abs(X), axis=-2)
    with ignore_float_errors(xp):
        sizes = by_columns(A, lambda X, _: measure(xp, to_computing_dtype(xp, X)))
        return frobenius(xp, sizes[..., None]) if is_frobenius else extreme(xp, sizes, order)


def _norm_by_rows(A: LinearOperator, order: Any) -> Array:
    """From the rows of a matrix that is not in memory, some at a time."""
    batch, (m, n) = A.batch_shape, A.shape[-2:]
    is_column = order in (1, -1)
    sums = np.zeros((*batch, n if is_column else m), A.xp.real_dtype(A.dtype))
    for places, block in row_blocks(A):
        *outer, rows, columns = places
        if order == "fro":
            part, at = column_norms(A.xp, np.swapaxes(block, -1, -2)), rows
            sums[(*outer, at)] = np.hypot(sums[(*outer, at)], part)
            continue
        at = columns if is_column else rows
        sums[(*outer, at)] += np.sum(np.abs(block), axis=-2 if is_column else -1)
    with ignore_float_errors(A.xp):
        return frobenius(A.xp, sums[..., None]) if order == "fro" else extreme(A.xp, sums, order)


def extreme(xp: Any, sizes: Array, order: float) -> Array:
    """The largest of the sizes along the last axis, or the smallest for a negative order."""
    return (xp.max if order > 0 else xp.min)(sizes, axis=-1)


def frobenius(xp: Any, M: Array) -> Array:
    """The root of the sum of squares, which neither overflow nor vanish."""
    size = xp.vector_norm(to_computing_dtype(xp, M), axis=(-2, -1))
    return xp.astype(size, xp.real_dtype(M.dtype))


def root(xp: Any, squares: Array) -> Array:
    """The root of a sum of squares, whose derivative at zero is taken to be zero, as that of the
    norm of a vector."""
    is_zero = squares == 0
    return xp.where(is_zero, 0, xp.sqrt(xp.where(is_zero, 1, squares)))


norm = function("norm", base=matrix_norm)


# Singular values, and what is read off them: rank and condition number.


def singular_triplets(
    A: LinearOperator, k: int | None = None, method: Method | None = None
) -> Choice:
    """The singular value decomposition A = U diag(s) V^H, all of it or the k largest singular
    values.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    k : int, optional
        How many; min(m, n) if not given.
    method : Auto, SVD, GolubKahan or RandomizedSVD, optional

    Returns
    -------
    U : LinearOperator, (*batch, m, k)
    s : array, (*batch, k)
        Falling.
    V : LinearOperator, (*batch, n, k)
        Itself, not its adjoint. U and V have orthonormal columns.

    Notes
    -----
    About 20 m n min(m, n) flops. `info.residual` is |A v - s u| / |A| for each triplet. Few triplets
    of a tall stored matrix, or of one less another of low rank (a centred one), come of the
    eigenvectors of A^H A where its values can be seen, or a program of JAX can decide, and the
    singular values asked for are above about 1e-3 of the largest; smaller ones of the decomposition
    itself.

    Of a structured A the factors U and V are structured too: permuted Kronecker products, diagonals
    of blocks, and so on. Where the rank is known to be smaller than min(m, n), as of a LowRank,
    there are min(m, n) values all the same, zeros at the end; the columns that belong to them are
    an operator that holds no more numbers than A. Give `k` to have none of them. The singular
    vectors of a Circulant or a periodic Convolution are complex, a Fourier basis.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> U, s, V = co.svd(np.array([[3.0, 0.0], [0.0, -4.0]]))
    >>> s
    array([4., 3.])
    """
    k = count_triplets(A, k)
    chosen = fitting("svd", method, *SINGULAR)
    if not isinstance(chosen, Auto) or 0 in (k, *A.shape) or not gram_pays(A, k):
        return _without_gram(A, k, chosen)
    run = lambda: _by_gram(A, k, chosen)
    why = "few triplets of a tall matrix: eigenvectors of A^H A, if they are accurate enough"
    m, n, batch = max(A.shape[-2:]), smaller_side(A), math.prod(A.batch_shape)
    cost = lapack_cost(A, 2.0 * batch * m * n * (n + 3 * k), 8.0 * batch * (n * n + m * k))
    return Choice(run, "Gram", cost, why, partial(triplets_like, A, k))


def _without_gram(A: LinearOperator, k: int, chosen: Any) -> Choice:
    """The choice between an iteration and the matrix."""
    if k and isinstance(chosen, Auto) and is_triangle_small(A):
        why = "A is tall and not in memory: R of A = Q R by blocks of rows, and its triplets"
        run = lambda: by_rows(A, k, chosen) or perform(_by_iteration_or_matrix(A, k, chosen))
        return Choice(run, "QR", None, why, partial(triplets_like, A, k))
    return _by_iteration_or_matrix(A, k, chosen)


def _by_iteration_or_matrix(A: LinearOperator, k: int, chosen: Any) -> Choice:
    like, is_free, iteration = partial(triplets_like, A, k), isinstance(chosen, Auto), None
    if 0 not in (k, *A.shape):
        iteration = automatic(A, k, chosen) if is_free else chosen
    run = lambda: _dense_triplets(A, k, chosen)
    if iteration is not None and not isinstance(iteration, SVD):
        otherwise = run if is_free and is_affordable(A) else None
        why = "a few singular values of a large operator" if is_free else "asked for"
        iterate = lambda: iterative_triplets(A, k, iteration, otherwise)
        cost = lambda: expected_cost(A, k, iteration)
        return Choice(iterate, iteration.name, cost, why, like)
    why = "nothing more is known of A" if is_free else "asked for"
    return Choice(run, "SVD", dense_cost(A), why, like)


def _dense_triplets(A: LinearOperator, k: int, chosen: Method) -> Triplets:
    """The triplets from the matrix; reports how well A v = s u."""
    xp, M = A.xp, dense(A)
    if 0 in M.shape:
        s = filled(A, 0.0, *A.batch_shape, k)
        return wrap(A, M[..., :k], s, adjoint(xp, M)[..., :k])
    return _report_triplets(A, chosen, "SVD", *_decomposed(xp, M, k))


def _decomposed(xp: Any, M: Array, k: int) -> tuple[Array, ...]:
    """U, s and V of k triplets of a matrix, their residuals |M v - s u| / |M|, and whether it is
    finite."""
    U, s, Vh = autodiff.svd(xp, M)
    found = U[..., :k], s[..., :k], adjoint(xp, Vh)[..., :k]
    M, U, s, V = map(xp.stop_gradient, (M, *found))
    with ignore_float_errors(xp):
        size = xp.vector_norm(M, axis=(-2, -1))[..., None]
        residual = column_norms(xp, xp.matmul(M, V) - U * s[..., None, :])
        residual = residual / without_zeros(xp, size)
        finite = xp.all(xp.isfinite(M), axis=(-2, -1))[..., None]
    return *found, residual, finite


def _report_triplets(
    A: LinearOperator, chosen: Method, name: str, U: Array, s: Array, V: Array, *judged: Array
) -> Triplets:
    """The triplets as they are returned, with a report of residuals and whether A is finite."""
    xp, (residual, finite) = A.xp, judged
    right = residual <= chosen.tolerance(xp, A.dtype)
    status = first_failure(xp, (finite, Status.NONFINITE), (right, Status.INACCURATE))
    report(Info(status, residual=residual, method=name))
    return wrap(A, U, s, V)


def _by_gram(A: LinearOperator, k: int, chosen: Method) -> Triplets:
    """A^H A = V diag(s^2) V^H and U = A (V diag(1/s)), which stays that product outside of a
    program; from the matrix where that turns out not to be accurate enough."""
    xp = A.xp
    if A.shape[-2] < A.shape[-1]:
        return _by_gram(A.H, k, chosen)[::-1]
    s, V, residual, fine = gram_values(A, k, chosen)
    if values_are_seen(A):
        if not host_value(xp, xp.all(fine)):
            return perform(_without_gram(A, k, chosen))
        report(Info(residual=residual, method="Gram"))
        return Stiefel(Product(A, Dense(V / s[..., None, :]))), s, Stiefel(V)

    def by_gram() -> tuple[Array, ...]:
        return A @ (V / s[..., None, :]), s, V, residual, fine[..., None]

    found = xp.cond(xp.all(fine), by_gram, lambda: _decomposed(xp, A._dense(), k))
    return _report_triplets(A, chosen, "Gram", *found)


def count_triplets(A: LinearOperator, k: Any) -> int:
    """How many triplets to find, or an error."""
    m, n = A.shape[-2:]
    most = min(m, n)
    bounds = f"an operator of {m}x{n} has {most} singular values."
    return most if k is None else checked_count("svd", k, 0, most, bounds)


def triplets_like(A: LinearOperator, count: int) -> Triplets:
    sides = (first_columns(identity_like(A, size), count) for size in A.shape[-2:])
    U, V = (broadcast_batch(Q, A.batch_shape) for Q in sides)
    return U, filled(A, 1.0, *A.batch_shape, count), V


def triplets_by_method(algorithm: Any, A: LinearOperator, k: int | None, method: Method) -> Choice:
    """The triplets that the own algorithm of a method from outside finds, judged by A itself."""
    count = count_triplets(A, k)
    run = lambda: wrap(A, *triplets_of_algorithm(A, count, method, algorithm))
    return Choice(run, method.name, None, "asked for", partial(triplets_like, A, count))


svd = function("svd", base=singular_triplets, by_method=triplets_by_method)


def numerical_rank(
    A: LinearOperator, tol: float | None = None, method: Method | None = None
) -> Array:
    """The number of singular values that are not negligible.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    tol : float, optional
        Singular values up to it count as zero, as in `numpy.linalg.matrix_rank`; default max(m, n)
        eps times the largest.
    method : optional
        As for `svd`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> int(co.rank(np.ones((3, 2))))
    1
    """
    check_tolerance(tol)
    s, xp = svd(A, None, method)[1], A.xp
    # torch would take a whole number for a constant, and say nothing
    if getattr(s, "requires_grad", False):
        raise NotImplementedError(
            "rank: a whole number has no derivative. Call it on an operator whose leaves are "
            "detached."
        )
    count = xp.sum(s > (cutoff(A, s) if tol is None else tol), axis=-1)
    return autodiff.refused(
        xp, count, (s,), "rank: a whole number", "stop_gradient on the operator, or svd(A)"
    )


def check_tolerance(tol: float | None) -> None:
    """Raise an error if a tolerance is negative."""
    if tol is not None and not tol >= 0:
        raise ValueError(f"rank: tol is {tol!r}; it must not be negative.")


rank = function("rank", base=numerical_rank, rewrites=False)


def cutoff(A: LinearOperator, sizes: Array, rtol: float | None = None) -> Array:
    """The size up to which singular values are rounding errors: `rtol` (default max(m, n) eps)
    times the largest."""
    largest = A.xp.max(sizes, axis=-1, keepdims=True) if sizes.shape[-1] else sizes
    return largest * relative_cutoff(A, rtol)


def relative_cutoff(A: LinearOperator, rtol: float | None) -> float:
    """The part of the largest singular value up to which others count as zero."""
    return max(A.shape[-2:]) * A.xp.eps(A.dtype) if rtol is None else rtol


def condition_number(A: LinearOperator, p: Any = 2, method: Method | None = None) -> Array:
    """The condition number |A| |A^-1| in the norm `p`; infinite for a singular operator.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
        Square, unless p is 2 or -2.
    p : {2, -2, "fro", "nuc", 1, -1, inf, -inf}
        As in `numpy.linalg.cond`.
    method : optional
        As for `svd` if p is 2 or -2, else as for `inv`.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.cond(co.Diagonal([4.0, 2.0])))
    2.0
    """
    order, xp = checked_order("cond", 2 if p is None else p), A.xp
    if not smaller_side(A):
        raise ShapeError(
            f"cond: A is {A.shape[-2]}x{A.shape[-1]}; an empty operator has no condition number."
        )
    if order in (2, -2):
        if is_square(A) and is_too_large(A):
            s = xp.stack([svd(A, 1, method)[1][..., 0], smallest_singular_value(A)], axis=-1)
        else:
            s = svd(A, None, method)[1]
        ends = s[..., 0], s[..., -1]
        large, small = ends if order == 2 else ends[::-1]
        with ignore_float_errors(xp):
            ratio = xp.abs(large / small)  # LAPACK may give the singular value -0.0
        # Zero by zero is a singular matrix too; NaN comes from NaN alone.
        return xp.where(xp.isnan(ratio) & ~xp.isnan(large), math.inf, ratio)
    square_size("cond", A, f"the condition number in the norm {p!r}", "Use p=2.")
    inverse, info = inv(A, method, info=True)
    singular = info.status == int(Status.SINGULAR)
    if not isinstance(info.status, Status):
        report(Info(xp.where(singular, int(Status.SUCCESS), info.status)))
    elif info.failed and not singular:  # else the number is infinite, which is no failure
        report(info)
    with ignore_float_errors(xp):
        product = norm(A, order) * norm(inverse, order, on_failure="ignore")
        result = xp.where(xp.asarray(singular, device=xp.device_of(product)), math.inf, product)
    report_finite(xp, norm(A, "fro"))
    return result


def smallest_singular_value(A: LinearOperator) -> Array:
    """Of a square operator that is too large to form: 1 / |A^-1|, and 0 for a singular one.

    A^-1 may be solves by iteration, of which nothing is heard inside of another one: so the pair is
    judged by A itself.
    """
    xp, (inverse, info) = A.xp, inv(A, info=True)
    if info.status is Status.SINGULAR:
        return filled(A, 0.0, *A.batch_shape)
    U, s, V = svd(opaque(inverse), 1)  # opaque: the rule for an inverse would ask for all of A's
    with ignore_float_errors(xp):
        # A u = v / s
        residual = column_norms(xp, (A @ U.to_dense()) * s[..., None, :] - V.to_dense())
        right = residual <= MARGIN * Auto().tolerance(xp, A.dtype)
    report(Info(first_failure(xp, (right, Status.INACCURATE)), residual=residual))
    singular = xp.asarray(info.status == int(Status.SINGULAR), device=A._context.device)
    return xp.where(singular, 0, 1 / s[..., 0])


cond = function("cond", base=condition_number, forwards=True, rewrites=False)
