"""The null space."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from .. import autodiff
from ..backends import Array
from ..dispatch import Choice, Cost, function
from ..info import BackendError, Info, ShapeError, Status, report
from ..methods import SVD, SVRG, Method, fitting
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..properties import STIEFEL
from ._arrays import dense, identity_like, narrow, seen
from .least_squares import checked_rtol
from .sampled_subspaces import sampled_nullspace
from .singular import cutoff


def orthonormal_nullspace(A: LinearOperator, rtol: float | None = None, method: Method | None = None) -> Any:
    """An orthonormal basis of the vectors x with A x = 0.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rtol : float, optional
        Singular values up to `rtol` times the largest count as zero; default max(m, n) eps.
    method : Auto, SVD or SVRG, optional
        `SVRG` finds it by products with minibatches of a sum, or of the rows of A; what it cannot tell from zero by its `tol`
        counts as zero.

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
    fitting("nullspace", method, SVD, SVRG)
    checked_rtol("nullspace", rtol)
    if 0 in A.shape[-2:]:
        return identity_like(A)
    (m, n), batch, like = A.shape[-2:], math.prod(A.batch_shape), partial(null_vectors_like, A)
    if isinstance(method, SVRG):
        cost = Cost(method.typical(m, n) * A.flops, 8.0 * n * method.vectors)
        return Choice(lambda: sampled_nullspace(A, rtol, method), "SVRG", cost, "asked for", like)
    cost, why = (
        Cost(20.0 * batch * m * n * n, 8.0 * batch * n * n),
        "the right singular vectors of the negligible singular values",
    )
    return Choice(lambda: null_vectors(A, lambda s: cutoff(A.xp, s, A, rtol)), "SVD", cost, why, like)


def null_vectors_like(A: LinearOperator) -> LinearOperator:
    """Columns of the identity, as many as the null space has at least."""
    return identity_like(A)[:, : max(A.shape[-1] - A.shape[-2], 0)]


def null_vectors(A: LinearOperator, limit: Callable[[Array], Array]) -> LinearOperator:
    """Right singular vectors of the singular values up to `limit(s)`, and those that have none."""
    xp, M = A.xp, dense(A)
    visible(xp, M)
    U, s, Vh = xp.svd(xp.stop_gradient(M), full_matrices=True)
    ranks, finite = seen(xp, xp.sum(s > limit(s), axis=-1)), seen(xp, xp.all(xp.isfinite(s), axis=-1))
    if not finite.all():
        report(Info(Status.NONFINITE, method="SVD"))
    rank = same_throughout(A, ranks[finite] if finite.any() else ranks)  # of NaN there is no rank: it takes that of the others
    V = xp.conj(xp.matrix_transpose(Vh))
    kept, V = V[..., :rank], V[..., rank:]
    report(Info(method="SVD"))
    if xp.is_differentiated(M) and 0 not in V.shape:
        inverse = xp.matmul(kept / s[..., None, :rank], xp.conj(xp.matrix_transpose(U[..., :rank])))
        V = autodiff.nullspace(xp, M, V, inverse)
    return Dense(narrow(xp, V, A.dtype))._claim(STIEFEL)


def visible(xp: Any, x: Array) -> Array:
    """The values that decide on the size of the answer, or an error if they cannot be seen."""
    x = xp.stop_gradient(x)  # in JAX, what is only differentiated can be seen then
    if xp.is_traced(x):
        raise BackendError(
            "nullspace: the number of columns depends on values, which cannot be seen under jit, vmap or compilation. "
            "Call it outside, or use svd(A) and keep all columns."
        )
    return seen(xp, x)


def same_throughout(A: LinearOperator, ranks: Any) -> int:
    """The rank that all matrices of a batch share, or an error."""
    n = A.shape[-1]
    if ranks.size and ranks.min() != ranks.max():
        raise ShapeError(
            f"nullspace: the null spaces of this batch have dimensions from {n - ranks.max()} to {n - ranks.min()}, "
            f"which no single operator holds. Call it for each matrix: nullspace(A[i])."
        )
    return int(ranks.max(initial=0))


nullspace = function("nullspace", base=orthonormal_nullspace)
