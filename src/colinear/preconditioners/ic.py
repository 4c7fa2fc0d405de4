"""Incomplete Cholesky factors of a sparse matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..info import MethodError
from ..methods.incomplete_cholesky import IncompleteCholesky
from ..operators.base import LinearOperator
from ..operators.preconditioner_factors import FixedFactor
from ..operators.sparse_algebra import as_sparse
from ..properties import PD
from .entries import seen
from .interface import Preconditioner, held_fixed


@dataclass(frozen=True)
class IC(Preconditioner):
    """(L L^H)^-1 of an incomplete Cholesky factor of a sparse, positive definite A: for CG and MINRES.

    Made and applied on the host, whatever A's framework, and held fixed: derivatives do not go through it. A pivot that is not
    positive makes it start again with more weight on A's diagonal (Manteuffel 1980).

    Parameters
    ----------
    drop_tol : float, optional
        Entries below this, relative to their column, are dropped. By default the factor has the entries of A, and no others.
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
            raise ValueError(f"IC: drop_tol is {self.drop_tol!r} and fill {self.fill!r}; they must be None or >= 0, and >= 1.")

    def _make(self, A: Any) -> LinearOperator:
        A = held_fixed(A)
        S = as_sparse(A)
        values, structure = seen("IC", A.xp, S.data), S.structure
        try:
            factor = IncompleteCholesky(values, structure.indptr, structure.columns, self.drop_tol, self.fill)
        except ArithmeticError as error:
            raise MethodError(
                f"IC: A is claimed to be positive definite, and has {error}. Use ILU() for other matrices."
            ) from error
        return PD(FixedFactor._of(factor, "N", S.shape, A._context))
