"""Nyström approximation from a random block (Tropp, Yurtsever, Udell and Cevher 2017): the algorithm is the preconditioner's."""

from __future__ import annotations

from typing import Any

from ..dispatch import function
from ..functions._arrays import narrow, quiet
from ..operators.base import LinearOperator
from ..operators.lowrank import LowRank
from ..preconditioners.nystrom import approximation
from .shared import checked_rank, checked_seed, compiled, needs_positive, single, tell

OVERSAMPLING = 10  # columns of Ω beyond the rank: the last ones of a block are found poorly


def randomized_nystrom(A: LinearOperator, rank: int, seed: Any = 0) -> LinearOperator:
    """A low-rank approximation from below of a positive semidefinite operator, A Ω (Ω^H A Ω)^+ (A Ω)^H with a random Ω.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        Known to be positive semidefinite.
    rank : int
        At least 1 and at most n.
    seed : int, JAX key, or NumPy or torch generator
        Of Ω.

    Returns
    -------
    LowRank, (*batch, n, n)
        U U^H, positive semidefinite, where A - U U^H is so too but for rounding.

    Notes
    -----
    `rank + 10` products, of one block, of which the best `rank` dimensions are kept, and O(n rank^2). With `info=True`, `info.error`
    estimates |A - U U^H| / |A| in the Frobenius norm, by ten products more. As a preconditioner: `Nystrom(rank)`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> K = co.PSD(np.exp(-((x[:, None] - x) ** 2)))
    >>> K_low, info = co.nystrom(K, rank=12, info=True)
    >>> bool(info.error < 1e-6)
    True
    >>> x = co.solve(K_low + 0.1 * co.Identity(200), np.ones(200))  # by Woodbury's formula
    """
    needs_positive("nystrom", A)
    rank, xp, K, seed = checked_rank("nystrom", A, rank), A.xp, single(A), checked_seed("nystrom", seed)
    width = min(A.shape[-1], rank + OVERSAMPLING)
    with quiet(xp):
        U, values = compiled(approximation, K, width, seed)
        found = LowRank(narrow(xp, (U * xp.sqrt(values)[..., None, :])[..., :rank], A.dtype))
        # Cholesky of Ω^H A Ω fails for an A that is not positive semidefinite; NaN in A itself is told from that by the error.
        tell(A, found, "Nystrom", width, seed, indefinite=xp.logical_not(xp.all(xp.isfinite(U), axis=(-2, -1))))
    return found


nystrom = function("nystrom", base=randomized_nystrom, rewrites=False)
