"""Incomplete LU factors of a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..info import MethodError
from ..methods.sparse_direct import SparseLU, stacked_matrix
from ..operators.base import LinearOperator
from ..operators.identity import Identity
from ..operators.preconditioner_factors import FixedFactor
from ..operators.sparse_algebra import as_sparse
from .entries import seen
from .interface import Preconditioner, held_fixed

# How much less is dropped, and what is added to the diagonal, relative to the largest entry.
ATTEMPTS = ((1.0, 0.0), (1e-2, 0.0), (1e-4, 0.0), (1e-2, 1e-6), (1e-2, 1e-3), (1.0, 1e-1))
LARGEST_GROWTH = 1e4


@dataclass(frozen=True)
class ILU(Preconditioner):
    """(L U)^-1 of incomplete factors of a sparse A, of SuperLU: for systems that are neither symmetric nor definite.

    Made and applied on the host, whatever A's framework, and held fixed: derivatives do not go through it. Singular and unstable
    factors are made again with less dropped, then with a little added to A's diagonal. For positive definite A take `IC`, which
    keeps that.

    Parameters
    ----------
    drop_tol : float
        Entries below this, relative to their column, are dropped. 0 drops nothing: with enough fill that is the LU factorisation.
    fill : float
        How many times as many entries as A the factors may have. Where this is reached more is dropped, and they are far worse:
        of the Laplacian of a 100 x 100 grid they have 7 times as many, and GMRES takes 4 iterations; with fill=5 it takes 71.

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> A = co.Sparse(scipy.sparse.diags_array([[-2.0] * 9, [5.0] * 10, [-1.0] * 9], offsets=[-1, 0, 1]))
    >>> M = co.ILU()(A)  # without fill nothing is lost here
    >>> bool(np.allclose(A @ (M @ np.ones(10)), 1))
    True
    """

    drop_tol: float = 1e-4
    fill: float = 20.0

    def __post_init__(self) -> None:
        if not (self.drop_tol >= 0 and self.fill >= 1):
            raise ValueError(f"ILU: drop_tol is {self.drop_tol!r} and fill {self.fill!r}; they must be at least 0 and 1.")

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        S = as_sparse(A)
        size = float(np.abs(seen("ILU", A.xp, S.data)).max(initial=0.0)) or 1.0
        for less, shift in ATTEMPTS:
            shifted = S if shift == 0 else as_sparse(S + shift * size * Identity(A.shape[-1]))
            values, structure = seen("ILU", A.xp, shifted.data), shifted.structure
            way = (self.drop_tol * less, self.fill)
            # In an order of the pattern of A + A^T, where A has that pattern, factors are made in half the time and lose less.
            for symmetric in (True, False) if structure.is_symmetric else (False,):
                try:
                    factors = SparseLU(values, structure.indptr, structure.columns, False, symmetric, incomplete=way)
                except ArithmeticError:  # singular
                    continue
                if _is_stable(factors, values, structure):
                    return FixedFactor._of(factors, "N", S.shape, A._context)
        raise MethodError(
            "ILU: the incomplete factors are singular or huge, with less dropped and with any weight on the diagonal. "
            "Scale the rows and columns of A, raise fill=, or use LU()."
        )


def _is_stable(factors: SparseLU, values: Any, structure: Any) -> bool:
    """Whether A M v is of the size of v: factors of tiny pivots are of no use, and far from rare."""
    n = structure.shape[-1]
    v = np.random.default_rng(0).standard_normal((*values.shape[:-1], n, 1)).astype(values.dtype)
    with np.errstate(all="ignore"):
        x = factors.solve(v, "N").reshape(-1, 1)
        growth = np.abs(stacked_matrix(values, structure.indptr, structure.columns) @ x).max()
    return bool(growth <= LARGEST_GROWTH * np.abs(v).max())
