"""Preconditioners: approximations of A^-1, made from A by a small object and returned as an ordinary operator.

    M = Jacobi()(A)                  an operator
    solve(A, b, CG(preconditioner=Jacobi()))     made when it is needed

Any operator, array or function of A that approximates A^-1 is one too.
"""

from .amg import AMG
from .block_jacobi import BlockJacobi
from .chebyshev import Chebyshev
from .ic import IC
from .ilu import ILU
from .interface import as_preconditioner
from .jacobi import Jacobi
from .nystrom import Nystrom
from .pivoted_cholesky import PivotedCholesky

__all__ = ["Jacobi", "BlockJacobi", "ILU", "IC", "PivotedCholesky", "Nystrom", "Chebyshev", "AMG", "as_preconditioner"]
