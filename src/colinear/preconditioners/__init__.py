"""Preconditioners: approximations of A^-1, made from A by a small object and returned as an
ordinary operator.

    M = Jacobi()(A)                  an operator
    solve(A, b, CG(preconditioner=Jacobi()))     made when it is needed

Any operator, array or function of A that approximates A^-1 is one too.
"""

from __future__ import annotations

from .base import as_preconditioner
from .general import BlockJacobi, Chebyshev, Jacobi
from .low_rank import Nystrom, PivotedCholesky, RPCholesky
from .sparse import AMG, IC, ILU

__all__ = [
    "Jacobi",
    "BlockJacobi",
    "ILU",
    "IC",
    "PivotedCholesky",
    "RPCholesky",
    "Nystrom",
    "Chebyshev",
    "AMG",
    "as_preconditioner",
]
