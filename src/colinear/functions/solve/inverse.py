"""The inverse, as an operator that keeps its factorisation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from ...dispatch import Choice, function, perform
from ...factors.inverse import Implicit, Inverse
from ...factors.runs import multiplies_by_iteration
from ...info import Info, report
from ...methods import Method
from ...operators import LinearOperator, ScaledIdentity
from ...properties import UNITARY
from ..common import identity_like, report_arrays, square_size
from .auto import attempt, attempts, is_iterative, iterate, iterated, iterates
from .cost import dense_work
from .dense import factorise

LARGEST_DENSE = 5000  # rows of a matrix that is still formed where a rule's own way fails


def inverse(A: LinearOperator, method: Method | None = None) -> Choice:
    """The inverse of a square operator, as an operator that holds its factorisation.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Cholesky, LDL, LU or QR, optional
        Of the dense base case. `Auto` takes Cholesky, LDL or LU by what is known of A, and falls
        back along that list and to QR with column pivoting where one fails.

    Returns
    -------
    LinearOperator
        Multiplying by it solves a system. One factorisation serves all right sides, transposes too.
        Of a singular A the status is SINGULAR, and the operator gives basic solutions of least
        squares.

    Notes
    -----
    The base case costs n^3 / 3 (Cholesky, LDL), 2 n^3 / 3 (LU) or 4 n^3 / 3 (QR) flops, and 2 n^2
    for each product.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> A_inverse @ np.array([2.0, 4.0])
    array([1., 1.])
    """
    square_size("inv", A, "an inverse", "Use pinv(A).")
    like = lambda: Inverse(A, identity_like(A))
    if is_iterative(method):
        return iterate(A, method, lambda: Inverse(A, iterated(A, method)), like)  # type: ignore[arg-type]
    if A.properties & UNITARY:
        return Choice(partial(_adjoint, A), "adjoint", 0.0, "A is unitary: A^-1 = A^H", lambda: A.H)
    if iterates(A, method):
        return attempt(A, dense_work(A), None, lambda: Inverse(A, attempts(A, method)), like)
    return factorise("inv", A, None, method, lambda found: Inverse(A, found.factor), like)


def fits_as_a_whole(A: LinearOperator) -> bool:
    """Whether the matrix is small enough to be formed where a rule's own way fails."""
    return math.prod(A.shape) <= LARGEST_DENSE**2


def no_inverse(A: LinearOperator, info: Info) -> LinearOperator:
    """NaN in place of an inverse that was not found; reports why."""
    report(info)
    return ScaledIdentity(math.nan, A.shape[-1], like=A)


def _adjoint(A: LinearOperator) -> LinearOperator:
    report_arrays(A)
    return A.H  # known, so nothing is computed


inv = function("inv", base=inverse)


def all_square(A: LinearOperator) -> bool:
    """Whether every operand is square."""
    return all(operand.shape[-1] == operand.shape[-2] for operand in A.operands)


def kept(A: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """The inverse, with what was claimed of A: each of the six properties passes to it."""
    return inverse._claim(A._claims) if A._claims else inverse


def by_equation(
    found: Callable[[Any, Any], LinearOperator],
) -> Callable[[Any, Any], LinearOperator]:
    """Decorate `found(A, method)`, an inverse by eigenvectors, to have the derivative of A x = b
    where derivatives are recorded.

    Eigenvectors have no derivative where eigenvalues repeat, and a useless one where they almost
    do, or are almost parallel.
    """

    @wraps(found)
    def inverse_of(A: Any, method: Any) -> Any:
        xp = A.xp
        if xp.is_compiling() or not xp.is_differentiated(*A.arrays()):
            return found(A, method)
        return Choice(lambda: implicit(A, method), like=lambda: found(A, method))

    def implicit(A: Any, method: Any) -> Any:
        inverse = perform(found(A.detach(), method))
        # iterations have that derivative anyway
        if inverse.dtype != A.dtype or multiplies_by_iteration(inverse):
            return found(A, method)
        return Inverse._of(A, Implicit._of(A, inverse, found))

    return inverse_of


inv.implicit = by_equation
