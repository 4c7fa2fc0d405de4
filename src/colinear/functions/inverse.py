"""The inverse, as an operator that keeps its factorisation."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from ..dispatch import function
from ..info import planning
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.hearing import multiplies_by_iteration
from ..operators.identity import Identity
from ..operators.implicit import Implicit
from ..operators.inverse import Inverse
from ..properties import UNITARY
from ._arrays import square_size
from ._factorise import choose as choose_factorisation
from ._factorise import solution
from ._values import report_arrays
from .automatic import attempts, iterates
from .automatic import choose as choose_attempt
from .cost import dense_work
from .iterative import choose as choose_iteration
from .iterative import is_iterative, iterated

LARGEST_DENSE = 5000  # rows of a matrix that is still formed where a rule's own way fails


def inverse(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The inverse of a square operator, as an operator that holds its factorisation.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Cholesky, LDL, LU or QR, optional
        Of the dense base case. `Auto` takes Cholesky, LDL or LU by what is known of A, and falls back along that list and to QR
        with column pivoting where one fails.

    Returns
    -------
    LinearOperator
        Multiplying by it solves a system. One factorisation serves all right sides, transposes too. Of a singular A the status is
        SINGULAR, and the operator gives basic solutions of least squares.

    Notes
    -----
    The base case costs n^3 / 3 (Cholesky, LDL), 2 n^3 / 3 (LU) or 4 n^3 / 3 (QR) flops, and 2 n^2 for each product.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> A_inverse @ np.array([2.0, 4.0])
    array([1., 1.])
    """
    square_size("inv", A, "an inverse", "Use pinv(A).")
    if is_iterative(method):
        return Inverse(A, iterated(A, method))  # type: ignore[arg-type]
    if A.properties & UNITARY:
        report_arrays(A)
        return A.H  # known, so nothing is computed
    if iterates(A, method):
        return Inverse(A, attempts(A, method))
    return Inverse(A, solution("inv", A, None, method).factor)


def _stand_in(A: LinearOperator) -> LinearOperator:
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return Identity(A.shape[-1], like=None if A.is_neutral else A)


def _choose(A: LinearOperator, method: Method | None) -> Any:
    if is_iterative(method):
        return choose_iteration(A, method)  # type: ignore[arg-type]
    if A.properties & UNITARY:
        return "adjoint", 0.0, "A is unitary: A^-1 = A^H"
    return choose_attempt(A, dense_work(A)) if iterates(A, method) else choose_factorisation(A, method)


inv = function("inv", base=inverse, stand_in=_stand_in, choose=_choose)


def all_square(A: LinearOperator) -> bool:
    """Whether every operand is square."""
    return all(operand.shape[-1] == operand.shape[-2] for operand in A.operands)


def kept(A: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """The inverse, with what was claimed of A: each of the six properties passes to it."""
    return inverse._claim(A._claims) if A._claims else inverse


def by_equation(found: Callable[[Any, Any], LinearOperator]) -> Callable[[Any, Any], LinearOperator]:
    """Decorate `found(A, method)`, an inverse by eigenvectors, to have the derivative of A x = b where derivatives are recorded.

    Eigenvectors have no derivative where eigenvalues repeat, and a useless one where they almost do, or are almost parallel.
    """

    @wraps(found)
    def inverse_of(A: Any, method: Any) -> LinearOperator:
        xp = A.xp
        if planning() or xp.is_compiling() or not xp.is_differentiated(*A.arrays()):
            return found(A, method)
        inverse = found(A.detach(), method)
        if inverse.dtype != A.dtype or multiplies_by_iteration(inverse):  # iterations have that derivative anyway
            return found(A, method)
        return Inverse._of(A, Implicit._of(A, inverse, found))

    return inverse_of


inv.implicit = by_equation
