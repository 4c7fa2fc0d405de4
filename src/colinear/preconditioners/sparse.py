"""Preconditioners of sparse matrices: incomplete LU, incomplete Cholesky, algebraic multigrid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import MethodError, ShapeError
from ..factors.host import FixedFactor, MultigridCycle
from ..functions.common import array_like
from ..methods.sparse_direct import IncompleteCholesky, SparseLU, stacked_matrix
from ..operators import Dense, Diagonal, Identity, LinearOperator, Sparse
from ..operators.sparse_algebra import as_sparse
from ..properties import PD, POSITIVE_SEMIDEFINITE, PSD
from .base import Preconditioner, held_fixed, seen

# Incomplete LU factors of a sparse matrix.


# How much less is dropped, and what is added to the diagonal, relative to the largest entry.
ATTEMPTS = ((1.0, 0.0), (1e-2, 0.0), (1e-4, 0.0), (1e-2, 1e-6), (1e-2, 1e-3), (1.0, 1e-1))
LARGEST_GROWTH = 1e4


@dataclass(frozen=True)
class ILU(Preconditioner):
    """(L U)^-1 of incomplete factors of a sparse A, of SuperLU: for systems that are neither
    symmetric nor definite.

    Made and applied on the host, whatever A's framework, and held fixed: derivatives do not go
    through it. Singular and unstable factors are made again with less dropped, then with a little
    added to A's diagonal. For positive definite A take `IC`, which keeps that.

    Parameters
    ----------
    drop_tol : float
        Entries below this, relative to their column, are dropped. 0 drops nothing: with enough fill
        that is the LU factorisation.
    fill : float
        How many times as many entries as A the factors may have. Where this is reached more is
        dropped, and they are far worse: of the Laplacian of a 100 x 100 grid they have 7 times as
        many, and GMRES takes 4 iterations; with fill=5 it takes 71.

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
            raise ValueError(
                f"ILU: drop_tol is {self.drop_tol!r} and fill {self.fill!r}; they must be at "
                "least 0 and 1."
            )

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        S = as_sparse(A)
        size = float(np.abs(seen("ILU", A.xp, S.data)).max(initial=0.0)) or 1.0
        for less, shift in ATTEMPTS:
            shifted = S if shift == 0 else as_sparse(S + shift * size * Identity(A.shape[-1]))
            values, structure = seen("ILU", A.xp, shifted.data), shifted.structure
            way = (self.drop_tol * less, self.fill)
            # In an order of the pattern of A + A^T, where A has that pattern, factors are made in
            # half the time and lose less.
            for symmetric in (True, False) if structure.is_symmetric else (False,):
                try:
                    factors = SparseLU(
                        values,
                        structure.indptr,
                        structure.columns,
                        False,
                        symmetric,
                        incomplete=way,
                    )
                except ArithmeticError:  # singular
                    continue
                if _is_stable(factors, values, structure):
                    return FixedFactor._of(factors, "N", S.shape, A._context)
        raise MethodError(
            "ILU: the incomplete factors are singular or huge, with less dropped and with any "
            "weight on the diagonal. "
            "Scale the rows and columns of A, raise fill=, or use LU()."
        )


def _is_stable(factors: SparseLU, values: Any, structure: Any) -> bool:
    """Whether A M v is of the size of v: factors of tiny pivots are of no use, and far from
    rare."""
    n = structure.shape[-1]
    v = np.random.default_rng(0).standard_normal((*values.shape[:-1], n, 1)).astype(values.dtype)
    with np.errstate(all="ignore"):
        x = factors.solve(v, "N").reshape(-1, 1)
        growth = np.abs(stacked_matrix(values, structure.indptr, structure.columns) @ x).max()
    return bool(growth <= LARGEST_GROWTH * np.abs(v).max())


# Incomplete Cholesky factors of a sparse matrix.


@dataclass(frozen=True)
class IC(Preconditioner):
    """(L L^H)^-1 of an incomplete Cholesky factor of a sparse, positive definite A: for CG and
    MINRES.

    Made and applied on the host, whatever A's framework, and held fixed: derivatives do not go
    through it. A pivot that is not positive makes it start again with more weight on A's diagonal
    (Manteuffel 1980).

    Parameters
    ----------
    drop_tol : float, optional
        Entries below this, relative to their column, are dropped. By default the factor has the
        entries of A, and no others.
    fill : float
        With a `drop_tol`: how many times as many entries as A the factor may have.

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> A = co.PSD(co.Sparse(scipy.sparse.diags_array([[-1.0] * 9, [2.0] * 10, [-1.0] * 9], offsets=[-1, 0, 1])))
    >>> M = co.IC()(A)  # exact for a tridiagonal A
    >>> bool(np.allclose(A @ (M @ np.ones(10)), 1)), M.isa(co.PD)
    (True, True)
    """

    needs_positive: ClassVar[bool] = True

    drop_tol: float | None = None
    fill: float = 20.0

    def __post_init__(self) -> None:
        if not ((self.drop_tol is None or self.drop_tol >= 0) and self.fill >= 1):
            raise ValueError(
                f"IC: drop_tol is {self.drop_tol!r} and fill {self.fill!r}; they must be None or "
                ">= 0, and >= 1."
            )

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        S = as_sparse(A)
        values, structure = seen("IC", A.xp, S.data), S.structure
        try:
            factor = IncompleteCholesky(
                values, structure.indptr, structure.columns, self.drop_tol, self.fill
            )
        except ArithmeticError as error:
            raise MethodError(
                f"IC: A is claimed to be positive definite, and has {error}. Use ILU() for other "
                "matrices."
            ) from error
        return PD(FixedFactor._of(factor, "N", S.shape, A._context))


# Algebraic multigrid: PyAMG makes the hierarchy on the host, our operators run the cycle on any
# framework.


KINDS = ("smoothed_aggregation", "ruge_stuben")


@dataclass(frozen=True)
class AMG(Preconditioner):
    """One V-cycle of algebraic multigrid, for sparse A of elliptic problems: iterations do not grow
    with the size of the grid.

    Needs PyAMG (`pip install 'colinear[amg]'`), which coarsens A on the host; the cycle itself is
    made of sparse operators in A's framework and on its device, smooths by damped Jacobi before and
    after, and is positive definite for positive semidefinite A. It is held fixed: derivatives do
    not go through it. A product costs about four to six products with A.

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
            raise ValueError(
                f"AMG: kind is {self.kind!r}; it must be one of {', '.join(map(repr, KINDS))}."
            )

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        if A.batch_shape:
            raise ShapeError(
                f"AMG: A has batch shape {A.batch_shape}; a hierarchy is of one matrix. Make one "
                "for each: A[0]."
            )
        symmetric = bool(A.properties & POSITIVE_SEMIDEFINITE)
        S = as_sparse(A)
        levels = self._hierarchy(_matrix(S, seen("AMG", A.xp, S.data)), symmetric)

        def put(matrix: Any) -> LinearOperator:
            operator = Sparse(matrix.tocsr()).to(A.backend, A._context.device, A.dtype)
            return PSD(operator) if symmetric and matrix.shape[0] == matrix.shape[1] else operator

        *upper, last = levels
        matrices = [S._claim(A.properties), *(put(level.A) for level in upper[1:])]
        coarsest = np.linalg.pinv(last.A.toarray(), hermitian=symmetric)
        bottom = Dense(array_like(A, coarsest))
        cycle = MultigridCycle._of(
            tuple(matrices[: len(upper)]),
            tuple(self._smoother(level.A, A, symmetric) for level in upper),
            tuple(put(level.P) for level in upper),
            tuple(put(level.P.conj().T if symmetric else level.R) for level in upper),
            PSD(bottom) if symmetric else bottom,
        )
        return PD(cycle) if symmetric else cycle

    def _hierarchy(self, matrix: Any, symmetric: bool) -> Any:
        try:
            import pyamg
        except ImportError as error:
            raise ImportError(
                "AMG needs pyamg, which is not installed: pip install 'colinear[amg]'", name="pyamg"
            ) from error
        state = np.random.get_state()
        np.random.seed(self.seed)  # PyAMG draws from NumPy's global state
        try:
            make, options = pyamg.ruge_stuben_solver, {}
            if self.kind == "smoothed_aggregation":
                make = pyamg.smoothed_aggregation_solver
                options["symmetry"] = "hermitian" if symmetric else "nonsymmetric"
            return make(matrix, max_coarse=self.max_coarse, **options).levels
        finally:
            np.random.set_state(state)

    def _smoother(self, matrix: Any, A: LinearOperator, symmetric: bool) -> LinearOperator:
        """4/3 / ρ(D^-1 A) D^-1: positive definite, and the error is multiplied by at most 1/3 in
        the upper half of the spectrum."""
        d = matrix.diagonal()
        d = np.where(d == 0, np.abs(d).max(initial=0.0) or 1.0, d)
        if symmetric and not (d.real > 0).all():
            raise MethodError(
                f"AMG: A is claimed to be PSD, and a diagonal entry is {d.real.min():.3g}."
            )
        inverse = (1 / d.real if symmetric else 1 / d) * (4 / 3 / self._radius(matrix, d))
        smoother = Diagonal(array_like(A, inverse))
        return PD(smoother) if symmetric else smoother

    def _radius(self, matrix: Any, d: Any) -> float:
        """The spectral radius of D^-1 A: by power iteration, with a margin, and never above the
        norm."""
        x = np.random.default_rng(self.seed).standard_normal(len(d))
        rows = abs(matrix) @ np.ones(len(d)) / np.abs(d)
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
