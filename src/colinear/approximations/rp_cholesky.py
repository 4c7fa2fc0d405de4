"""Randomly pivoted partial Cholesky factorisation (Chen, Epperly, Tropp and Webber 2024): the recurrence is `PivotedCholesky`'s."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import function
from ..functions._arrays import narrow, quiet
from ..functions.diagonal import diag
from ..operators.base import LinearOperator
from ..operators.lowrank import LowRank
from ..preconditioners.pivoted_cholesky import partial_factor
from .shared import ROUNDING, checked_rank, checked_seed, compiled, needs_positive, single, tell


def random_pivots(A: LinearOperator, rank: int, seed: Any = 0) -> LinearOperator:
    """A low-rank approximation L L^H of a positive semidefinite operator from its diagonal and `rank` of its columns, drawn at random.

    Each column is drawn with a probability proportional to the diagonal that remains: columns that tell much are likely, and, unlike
    those of the largest entry, outliers are not all that is seen.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        Known to be positive semidefinite.
    rank : int
        At least 1 and at most n.
    seed : int, JAX key, or NumPy or torch generator
        Of the pivots.

    Returns
    -------
    LowRank, (*batch, n, n)
        L L^H, which agrees with A in the rows and columns of the pivots; A - L L^H is positive semidefinite but for rounding.

    Notes
    -----
    n (rank + 1) entries and O(n rank^2): a kernel matrix is never formed. With `info=True`, `info.error` is
    trace(A - L L^H) / trace(A), which is known and not an estimate. The error is near that of the best approximation, on average.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> x = np.linspace(0, 1, 500)[:, None]
    >>> K = co.PSD(co.Kernel(lambda x, y: np.exp(-((x - y.T) ** 2)), x))
    >>> K_low, info = co.rp_cholesky(K, rank=12, info=True)
    >>> bool(info.error < 1e-6)
    True
    """
    needs_positive("rp_cholesky", A)
    rank, xp, K, seed = checked_rank("rp_cholesky", A, rank), A.xp, single(A), checked_seed("rp_cholesky", seed)
    with quiet(xp):
        L, remaining, lowest = compiled(_factor, K, rank, seed)
        d = xp.real(diag(K))
        total, scale = xp.sum(d, axis=-1), xp.max(xp.abs(d), axis=-1)
        error = xp.sum(remaining, axis=-1) / xp.where(total == 0, 1, total)
        found = LowRank(narrow(xp, L, A.dtype))
        rounding = ROUNDING * A.shape[-1] * xp.eps(K.dtype)
        tell(A, found, "RPCholesky", rank, seed, error, lowest < -rounding * scale)
    return found


def _factor(K: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array, Array]:
    xp = K.xp
    draws = xp.uniform(xp.generator(seed), (*K.batch_shape, rank), dtype=xp.real_dtype(K.dtype), device=K._context.device)
    return partial_factor(K, rank, draws)


rp_cholesky = function("rp_cholesky", base=random_pivots, rewrites=False)
