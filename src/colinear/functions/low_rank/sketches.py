"""A basis of what a matrix maps to, and approximations from its own rows and columns, found in a
random sketch."""

from __future__ import annotations

import math
from typing import Any

from ...backends import Array, adjoint, inner_products
from ...dispatch import function
from ...errors import BackendError
from ...info import Info, report
from ...operators import LinearOperator, LowRank, Projection
from ...operators.context import kind_of
from ...properties import Stiefel
from ...status import Status
from ..common import ignore_float_errors, smaller_side, to_result_dtype
from ..spectrum.order import take_columns
from . import PROBES, checked, checked_rank, compiled, tell

# An orthonormal basis of what a matrix maps to (Halko, Martinsson and Tropp 2011), of a given size
# or to a given accuracy.


SAFETY = 2.0  # on the square of the error, which ten vectors estimate
ROUNDING = 100  # times eps, from which nothing is left to be found


def basis_of_range(
    A: LinearOperator,
    rank: int | None = None,
    tol: float | None = None,
    power_iterations: int = 0,
    block: int = 10,
    seed: Any = 0,
) -> LinearOperator:
    """Orthonormal columns Q with A ≈ Q Q^H A, from products of A with random vectors.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rank : int, optional
        How many columns; with `tol`, at most how many.
    tol : float, optional
        Instead of a rank, or with it: the error |A - Q Q^H A| / |A| to reach, in the Frobenius
        norm. Columns are added in blocks until fresh random vectors, which become the next block if
        need be, say that it is met.
    power_iterations : int
        How often A A^H is applied to each block: for singular values that fall slowly.
    block : int
        How many columns are added at a time, where `tol` is given.
    seed : int, JAX key, or NumPy or torch generator
        Of the random vectors.

    Returns
    -------
    LinearOperator, (*batch, m, rank)
        Stiefel. `Projection(Q) @ A`, or `LowRank(Q, A.H @ Q)`, is the approximation.

    Notes
    -----
    One product with A for each column, and 2 `power_iterations` more; O(m rank^2). `info.error` is
    the error, estimated. Where `tol` is missed, because `rank` was reached or rounding is all that
    is left, the status is INACCURATE or STAGNATION.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = 0.5 ** np.abs(np.subtract.outer(np.arange(60.0), np.arange(40.0))) @ np.diag(0.5 ** np.arange(40.0))
    >>> Q = co.range_finder(A, tol=1e-4, block=5)
    >>> bool(np.linalg.norm(A - Q @ (Q.H @ A)) < 1e-4 * np.linalg.norm(A)), Q.shape[1] < 40
    (True, True)
    """
    if rank is None and tol is None:
        raise ValueError("range_finder: give a rank, or the tol to reach.")
    if tol is not None and not tol > 0:
        raise ValueError(f"range_finder: tol is {tol!r}; it must be positive.")
    if not isinstance(power_iterations, int) or power_iterations < 0:
        raise ValueError(
            f"range_finder: power_iterations is {power_iterations!r}; it must be an integer that "
            "is not negative."
        )
    given = smaller_side(A) if rank is None else rank
    xp, K, most, seed = checked("range_finder", A, given, seed)
    with ignore_float_errors(xp):
        if tol is not None:
            if block == 0:
                checked_rank("range_finder", A, block, "block")  # an error
            width = min(max(1, int(block)), most)
            Q = _adaptive(K, most, tol, power_iterations, width, seed)
        else:
            Q = compiled(_fixed, (K,), most, power_iterations, seed)
            matvecs = most * (1 + 2 * power_iterations) + PROBES
            tell(A, Projection(Q) @ K, "RangeFinder", matvecs, seed)
    return Stiefel(to_result_dtype(xp, Q, A.dtype))


def _fixed(A: LinearOperator, rank: int, powers: int, seed: Any) -> Array:
    xp = A.xp
    test = xp.normal(xp.generator(seed), (A.shape[-1], rank), **kind_of(A))
    return _powered(A, xp.qr(A @ test)[0], powers)


def _powered(A: LinearOperator, Q: Array, powers: int) -> Array:
    # orthonormalised at each product, so that small singular values are not lost in rounding
    for _ in range(powers):
        Q = A.xp.qr(A @ A.xp.qr(A.H @ Q)[0])[0]
    return Q


def _adaptive(
    A: LinearOperator, most: int, tol: float, powers: int, block: int, seed: Any
) -> Array:
    """Blocks of columns until the next block's vectors, which are random and new, say that what
    is left is small enough."""
    xp, (m, n) = A.xp, A.shape[-2:]
    generator, total, tested, matvecs = xp.generator(seed), 0.0, 0, 0
    Q, status = xp.zeros((*A.shape[:-1], 0), **kind_of(A)), Status.SUCCESS
    while True:
        generator, own = xp.split(generator)
        Y = A @ xp.normal(own, (n, block), **kind_of(A))
        if xp.is_traced(Y):
            raise BackendError(
                "range_finder: the number of columns depends on values, which cannot be seen "
                "under jit or vmap. Give a rank."
            )
        matvecs, tested = matvecs + block, tested + block
        R, have = _outside(xp, Q, Y), Q.shape[-1]
        whole, left = (xp.vector_norm(X, axis=(-2, -1)) ** 2 for X in (Y, R))
        total, left = total + whole, left / block  # which estimates |A - Q Q^H A|^2
        square = float(xp.max(left / xp.where(total == 0, 1, total / tested)))
        if not math.isfinite(square):
            status = Status.NONFINITE
            break
        if have and SAFETY * square <= tol**2:
            break
        if have and square <= (ROUNDING * xp.eps(A.dtype)) ** 2:
            status = Status.STAGNATION
            break
        if have == most:
            status = Status.SUCCESS if most == min(m, n) else Status.INACCURATE
            break
        new = xp.qr(R[..., : most - have])[0]
        if powers:
            new = xp.qr(_outside(xp, Q, _powered(A, new, powers)))[0]
            matvecs += 2 * powers * new.shape[-1]
        # Once more against all others: what is left of a block may be mostly rounding.
        Q = xp.concat([Q, xp.qr(_outside(xp, Q, new))[0]], axis=-1)
    report(Info(status, matvecs=matvecs, error=left * 0 + math.sqrt(square), method="RangeFinder"))
    return Q


def _outside(xp: Any, Q: Array, Y: Array) -> Array:
    """What of Y is orthogonal to Q."""
    for _ in range(2):
        Y = Y - xp.matmul(Q, inner_products(xp, Q, Y))
    return Y


range_finder = function("range_finder", base=basis_of_range, rewrites=False)


# Approximations from a matrix's own rows and columns, found by pivoting in a random sketch
# (Voronin and Martinsson 2017).
#
# The columns that QR with pivoting takes first of Ω^H A are good ones of A itself, and cost n log
# n or so to find.


OVERSAMPLING = 10  # rows of the sketch beyond the rank


def interpolation(A: LinearOperator, rank: int, seed: Any = 0) -> tuple[LinearOperator, Array]:
    """An interpolative decomposition A ≈ A[:, columns] Z: the other columns are combinations of a
    few.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rank : int
        How many columns.
    seed : int, JAX key, or NumPy or torch generator
        Of the sketch.

    Returns
    -------
    approximation : LowRank, (*batch, m, n)
        U V^H, with U = A[:, columns] and V^H = Z, which is I in those columns.
    columns : array of integers, (*batch, rank)

    Notes
    -----
    `rank + 10` products with A^H, the columns, and O(n rank^2). `info.error` estimates |A - A[:,
    columns] Z| / |A| in the Frobenius norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = 1 / (1 + np.arange(60.0)[:, None] + np.arange(40.0))
    >>> A_low, columns = co.interpolative(A, rank=8)
    >>> bool(np.allclose(A_low.to_dense(), A, atol=1e-4)), len(columns)
    (True, 8)
    """
    xp, K, rank, seed = checked("interpolative", A, rank, seed)
    with ignore_float_errors(xp):
        U, V, columns = compiled(_interpolation, (K,), rank, seed)
        found = LowRank(*(to_result_dtype(xp, x, A.dtype) for x in (U, V)))
        tell(A, found, "Interpolative", 2 * rank + OVERSAMPLING, seed)
    return found, columns


def skeleton(A: LinearOperator, rank: int, seed: Any = 0) -> tuple[LinearOperator, Array, Array]:
    """A CUR decomposition A ≈ C M R, with a few columns C and rows R of A itself, and the best M
    for them.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rank : int
        How many rows, and columns.
    seed : int, JAX key, or NumPy or torch generator
        Of the sketches.

    Returns
    -------
    approximation : LowRank, (*batch, m, n)
        U = C, core = C^+ A R^+, V = R^H.
    rows, columns : arrays of integers, (*batch, rank)

    Notes
    -----
    2 `rank` + 10 products with A and with A^H, and O((m + n) rank^2). `info.error` estimates |A - C
    M R| / |A| in the Frobenius norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = 1 / (1 + np.arange(60.0)[:, None] + np.arange(40.0))
    >>> (A_low, rows, columns), info = co.cur(A, rank=8, info=True)
    >>> bool(np.allclose(A_low.to_dense(), A, atol=1e-4)), bool(info.error < 1e-4)
    (True, True)
    """
    xp, K, rank, seed = checked("cur", A, rank, seed)
    with ignore_float_errors(xp):
        C, V, core, rows, columns = compiled(_skeleton, (K,), rank, seed)
        found = LowRank(*(to_result_dtype(xp, x, A.dtype) for x in (C, V, core)))
        tell(A, found, "CUR", 5 * rank + 2 * OVERSAMPLING, seed)
    return found, rows, columns


def _interpolation(A: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array, Array]:
    columns, Z = _chosen(A, rank, A.xp.generator(seed))
    return columns_of(A, columns), adjoint(A.xp, Z), columns


def _skeleton(A: LinearOperator, rank: int, seed: Any) -> tuple[Array, ...]:
    xp = A.xp
    a, b = xp.split(xp.generator(seed))
    (columns, _), (rows, _) = _chosen(A, rank, a), _chosen(A.H, rank, b)
    C, V = columns_of(A, columns), columns_of(A.H, rows)  # V = R^H
    (Uc, inverse_c), (Uv, inverse_v) = _orthonormal_and_rest(xp, C), _orthonormal_and_rest(xp, V)
    inner = inner_products(xp, Uc, A @ Uv)
    core = xp.matmul(xp.matmul(inverse_c, inner), adjoint(xp, inverse_v))  # C^+ A R^+
    return C, V, core, rows, columns


def _chosen(A: LinearOperator, rank: int, generator: Any) -> tuple[Array, Array]:
    """Columns of A, and Z with A ≈ A[:, columns] Z."""
    xp, (m, n) = A.xp, A.shape[-2:]
    width = min(m, rank + OVERSAMPLING)
    test = xp.normal(generator, (m, width), **kind_of(A))
    _, R, order = xp.qr_pivoted(adjoint(xp, A.H @ test))
    d = xp.abs(xp.diagonal(R)[..., :rank])
    # beyond the rank of A: they take no part
    dead = d <= max(m, n) * xp.eps(A.dtype) * xp.max(d, axis=-1, keepdims=True)
    same = xp.eye(rank, **kind_of(A))
    head = xp.where(dead[..., None], same, R[..., :rank, :rank])
    tail = xp.where(dead[..., None], 0, R[..., :rank, rank:])
    others = xp.solve_triangular(head, tail, lower=False)
    Z = xp.concat([xp.broadcast_to(same, (*others.shape[:-1], rank)), others], axis=-1)
    return order[..., :rank], take_columns(xp, Z, xp.argsort(order, axis=-1))


def columns_of(A: LinearOperator, columns: Array) -> Array:
    """A[:, columns]: read off where that is known to be possible, by products otherwise."""
    xp = A.xp
    if not A.batch_shape and A.T._has_rows:
        return xp.matrix_transpose(A.T._rows(columns).to_dense())
    numbers = xp.arange(A.shape[-1], device=A._context.device)
    return A @ xp.astype(numbers[:, None] == columns[..., None, :], A.dtype)


def _orthonormal_and_rest(xp: Any, C: Array) -> tuple[Array, Array]:
    """U and M with C^+ = M U^H, U orthonormal."""
    U, s, Vh = xp.svd(C)
    small = s <= max(C.shape[-2:]) * xp.eps(C.dtype) * xp.max(s, axis=-1, keepdims=True)
    inverse = xp.where(small, 0, 1 / xp.where(small, 1, s))
    return U, adjoint(xp, Vh) * inverse[..., None, :]


interpolative = function("interpolative", base=interpolation, rewrites=False)
cur = function("cur", base=skeleton, rewrites=False)
