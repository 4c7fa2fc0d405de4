"""Algebraic multigrid: PyAMG makes the hierarchy on the host, our operators run the cycle on any framework."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..info import MethodError, ShapeError
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.preconditioner_factors import MultigridCycle
from ..operators.sparse import Sparse
from ..operators.sparse_algebra import as_sparse
from ..properties import PD, POSITIVE_SEMIDEFINITE, PSD
from .entries import seen
from .interface import Preconditioner, held_fixed

KINDS = ("smoothed_aggregation", "ruge_stuben")


@dataclass(frozen=True)
class AMG(Preconditioner):
    """One V-cycle of algebraic multigrid, for sparse A of elliptic problems: iterations do not grow with the size of the grid.

    Needs PyAMG (`pip install 'colinear[amg]'`), which coarsens A on the host; the cycle itself is made of sparse operators in A's
    framework and on its device, smooths by damped Jacobi before and after, and is positive definite for positive semidefinite A.
    It is held fixed: derivatives do not go through it. A product costs about four to six products with A.

    Parameters
    ----------
    kind : "smoothed_aggregation" or "ruge_stuben"
        How to coarsen (Vanek, Mandel and Brezina 1996; Ruge and Stuben 1987).
    max_coarse : int
        Rows below which a level is solved, by a dense inverse.
    seed : int
        Of the random vectors in the estimates of spectral radii.

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> line = scipy.sparse.diags_array([[-1.0] * 499, [2.0] * 500, [-1.0] * 499], offsets=[-1, 0, 1])
    >>> M = co.AMG()(co.PSD(co.Sparse(line)))  # doctest: +SKIP
    """

    kind: str = "smoothed_aggregation"
    max_coarse: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"AMG: kind is {self.kind!r}; it must be one of {', '.join(map(repr, KINDS))}.")

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        if A.batch_shape:
            raise ShapeError(f"AMG: A has batch shape {A.batch_shape}; a hierarchy is of one matrix. Make one for each: A[0].")
        symmetric = bool(A.properties & POSITIVE_SEMIDEFINITE)
        S = as_sparse(A)
        levels = self._hierarchy(_matrix(S, seen("AMG", A.xp, S.data)), symmetric)

        def put(matrix: Any) -> LinearOperator:
            operator = Sparse(matrix.tocsr()).to(A.backend, A._context.device, A.dtype)
            return PSD(operator) if symmetric and matrix.shape[0] == matrix.shape[1] else operator

        matrices = [S._claim(A.properties), *(put(level.A) for level in levels[1:-1])] if len(levels) > 1 else []
        ways = [(put(level.P), put(level.P.conj().T if symmetric else level.R)) for level in levels[:-1]]
        ways_up, ways_down = zip(*ways) if ways else ((), ())
        smoothers = [self._smoother(level.A, A, symmetric) for level in levels[:-1]]
        coarsest = np.linalg.pinv(levels[-1].A.toarray(), hermitian=symmetric)
        bottom = Dense(A.xp.asarray(coarsest, dtype=A.dtype, device=A._context.device))
        cycle = MultigridCycle._of(tuple(matrices), tuple(smoothers), ways_up, ways_down, PSD(bottom) if symmetric else bottom)
        return PD(cycle) if symmetric else cycle

    def _hierarchy(self, matrix: Any, symmetric: bool) -> Any:
        try:
            import pyamg
        except ImportError as error:
            raise ImportError("AMG needs pyamg, which is not installed: pip install 'colinear[amg]'", name="pyamg") from error
        state = np.random.get_state()
        np.random.seed(self.seed)  # PyAMG draws from NumPy's global state
        try:
            if self.kind == "ruge_stuben":
                return pyamg.ruge_stuben_solver(matrix, max_coarse=self.max_coarse).levels
            symmetry = "hermitian" if symmetric else "nonsymmetric"
            return pyamg.smoothed_aggregation_solver(matrix, symmetry=symmetry, max_coarse=self.max_coarse).levels
        finally:
            np.random.set_state(state)

    def _smoother(self, matrix: Any, A: LinearOperator, symmetric: bool) -> LinearOperator:
        """4/3 / ρ(D^-1 A) D^-1: positive definite, and the error is multiplied by at most 1/3 in the upper half of the spectrum."""
        d = matrix.diagonal()
        d = np.where(d == 0, np.abs(d).max(initial=0.0) or 1.0, d)
        if symmetric and not (d.real > 0).all():
            raise MethodError(f"AMG: A is claimed to be PSD, and a diagonal entry is {d.real.min():.3g}.")
        inverse = (1 / d.real if symmetric else 1 / d) * (4 / 3 / self._radius(matrix, d))
        smoother = Diagonal(A.xp.asarray(inverse, dtype=A.dtype, device=A._context.device))
        return PD(smoother) if symmetric else smoother

    def _radius(self, matrix: Any, d: Any) -> float:
        """The spectral radius of D^-1 A: by power iteration, with a margin, and never above the norm."""
        x = np.random.default_rng(self.seed).standard_normal(len(d))
        rows = abs(matrix) @ np.ones(len(d)) / np.abs(d)
        size = 0.0
        for _ in range(20):
            x = (matrix @ x) / d
            size = float(np.linalg.norm(x))
            if not size > 0 or not math.isfinite(size):
                break
            x = x / size
        return min(1.1 * size, float(rows.max(initial=0.0))) or 1.0


def _matrix(S: Any, values: Any) -> Any:
    """The matrix as SciPy's, in double precision."""
    from scipy.sparse import csr_matrix  # PyAMG asks for the matrix interface

    wide = values.astype(np.result_type(values, np.float64))
    return csr_matrix((wide, S.structure.columns.copy(), S.structure.indptr.copy()), shape=S.shape)
