"""An orthonormal basis of what a matrix maps to (Halko, Martinsson and Tropp 2011), of a given size or to a given accuracy."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array
from ..dispatch import function
from ..functions._arrays import narrow, quiet
from ..info import BackendError, Info, Status, report
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.projection import Projection
from ..properties import STIEFEL
from .shared import PROBES, checked_rank, checked_seed, compiled, single, tell

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
        Instead of a rank, or with it: the error |A - Q Q^H A| / |A| to reach, in the Frobenius norm. Columns are added in blocks until
        fresh random vectors, which become the next block if need be, say that it is met.
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
    One product with A for each column, and 2 `power_iterations` more; O(m rank^2). `info.error` is the error, estimated. Where `tol`
    is missed, because `rank` was reached or rounding is all that is left, the status is INACCURATE or STAGNATION.

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
        raise ValueError(f"range_finder: power_iterations is {power_iterations!r}; it must be an integer that is not negative.")
    xp, K, seed = A.xp, single(A), checked_seed("range_finder", seed)
    most = min(A.shape[-2:]) if rank is None else checked_rank("range_finder", A, rank)
    with quiet(xp):
        if tol is not None:
            width = min(checked_rank("range_finder", A, block, "block") if block == 0 else max(1, int(block)), most)
            return _wrapped(A, _adaptive(K, most, float(tol), power_iterations, width, seed))
        Q = compiled(_fixed, K, most, power_iterations, seed)
        tell(A, Projection(Q) @ K, "RangeFinder", most * (1 + 2 * power_iterations) + PROBES, seed)
    return _wrapped(A, Q)


def _wrapped(A: LinearOperator, Q: Array) -> LinearOperator:
    return Dense(narrow(A.xp, Q, A.dtype))._claim(STIEFEL)


def _fixed(A: LinearOperator, rank: int, powers: int, seed: Any) -> Array:
    xp = A.xp
    test = xp.normal(xp.generator(seed), (A.shape[-1], rank), dtype=A.dtype, device=A._context.device)
    return _powered(A, xp.qr(A @ test)[0], powers)


def _powered(A: LinearOperator, Q: Array, powers: int) -> Array:
    for _ in range(powers):  # orthonormalised at each product, so that small singular values are not lost in rounding
        Q = A.xp.qr(A @ A.xp.qr(A.H @ Q)[0])[0]
    return Q


def _adaptive(A: LinearOperator, most: int, tol: float, powers: int, block: int, seed: Any) -> Array:
    """Blocks of columns until the next block's vectors, which are random and new, say that what is left is small enough."""
    xp, (m, n) = A.xp, A.shape[-2:]
    generator, Q, total, tested, matvecs = xp.generator(seed), None, 0.0, 0, 0
    status = Status.SUCCESS
    while True:
        generator, own = xp.split(generator)
        Y = A @ xp.normal(own, (n, block), dtype=A.dtype, device=A._context.device)
        if xp.is_traced(Y):
            raise BackendError(
                "range_finder: the number of columns depends on values, which cannot be seen under jit or vmap. Give a rank."
            )
        matvecs, tested = matvecs + block, tested + block
        total = total + xp.sum(xp.vector_norm(Y, axis=-2) ** 2, axis=-1)
        R = Y if Q is None else _outside(xp, Q, Y)
        left = xp.sum(xp.vector_norm(R, axis=-2) ** 2, axis=-1) / block  # estimates |A - Q Q^H A|^2
        square = float(xp.max(left / xp.where(total == 0, 1, total / tested)))
        if not math.isfinite(square):
            status = Status.NONFINITE
            break
        if Q is not None and SAFETY * square <= tol**2:
            break
        if Q is not None and square <= (ROUNDING * xp.eps(A.dtype)) ** 2:
            status = Status.STAGNATION
            break
        have = 0 if Q is None else Q.shape[-1]
        if have == most:
            status = Status.SUCCESS if most == min(m, n) else Status.INACCURATE
            break
        new = xp.qr(R[..., : most - have])[0]
        if powers:
            new = _powered(A, new, powers)
            new = new if Q is None else xp.qr(_outside(xp, Q, new))[0]
            matvecs += 2 * powers * new.shape[-1]
        # Once more against all others: what is left of a block may be mostly rounding.
        Q = new if Q is None else xp.concat([Q, xp.qr(_outside(xp, Q, new))[0]], axis=-1)
    report(Info(status, matvecs=matvecs, error=left * 0 + math.sqrt(square), method="RangeFinder"))
    return R[..., :0] if Q is None else Q


def _outside(xp: Any, Q: Array, Y: Array) -> Array:
    """What of Y is orthogonal to Q."""
    for _ in range(2):
        Y = Y - xp.matmul(Q, xp.matmul(xp.conj(xp.matrix_transpose(Q)), Y))
    return Y


range_finder = function("range_finder", base=basis_of_range, rewrites=False)
