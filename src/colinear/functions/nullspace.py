"""The null space."""

from __future__ import annotations

import math
from typing import Any

from ..dispatch import Cost, function
from ..info import BackendError, Info, ShapeError, Status, report
from ..methods import SVD, Method, fitting
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.identity import Identity
from ..properties import STIEFEL
from ._factorise import dense, narrow, seen
from .singular import cutoff


def orthonormal_nullspace(A: LinearOperator, rtol: float | None = None, method: Method | None = None) -> LinearOperator:
    """An orthonormal basis of the vectors x with A x = 0.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rtol : float, optional
        Singular values up to `rtol` times the largest count as zero; default max(m, n) eps.
    method : Auto or SVD, optional

    Returns
    -------
    LinearOperator, (*batch, n, nullity)
        Of orthonormal columns; their number depends on values, so it cannot be traced, and must be the same throughout a batch.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.nullspace(np.array([[1.0, 1.0]])).shape
    (2, 1)
    """
    fitting("nullspace", method, SVD)
    if rtol is not None and not rtol >= 0:
        raise ValueError(f"nullspace: rtol is {rtol!r}; it must not be negative.")
    xp, M = A.xp, dense(A)
    if xp.is_traced(M):
        raise BackendError(
            "nullspace: the number of columns depends on values, which cannot be seen under jit, vmap or compilation. "
            "Call it outside, or use svd(A) and keep all columns."
        )
    m, n = A.shape[-2:]
    if not n or not m:
        return Identity(n, like=None if A.is_neutral else A)
    _, s, Vh = xp.svd(M, full_matrices=True)
    ranks = seen(xp, xp.sum(s > cutoff(xp, s, A, rtol), axis=-1))
    if not seen(xp, s).size:
        ranks = ranks.reshape(-1)[:0]
    elif not math.isfinite(seen(xp, s).sum()):
        report(Info(Status.NONFINITE, method="SVD"))
    if ranks.size and ranks.min() != ranks.max():
        raise ShapeError(
            f"nullspace: the null spaces of this batch have dimensions from {n - ranks.max()} to {n - ranks.min()}, "
            f"which no single operator holds. Call it for each matrix: nullspace(A[i])."
        )
    rank = int(ranks.max(initial=0))
    V = xp.conj(xp.matrix_transpose(Vh))[..., rank:]
    report(Info(method="SVD"))
    return Dense(narrow(xp, V, A.dtype))._claim(STIEFEL)


def _stand_in(A: LinearOperator, rtol: Any) -> LinearOperator:
    return Identity(A.shape[-1], like=None if A.is_neutral else A)[:, : max(A.shape[-1] - A.shape[-2], 0)]


def _choose(A: LinearOperator, rtol: Any, method: Method | None) -> tuple[str, Cost, str]:
    fitting("nullspace", method, SVD)
    (m, n), batch = A.shape[-2:], math.prod(A.batch_shape)
    return (
        "SVD",
        Cost(20.0 * batch * m * n * n, 8.0 * batch * n * n),
        "the right singular vectors of the negligible singular values",
    )


nullspace = function("nullspace", base=orthonormal_nullspace, stand_in=_stand_in, choose=_choose)
