"""The transposes and the matrix itself, as functions."""

from __future__ import annotations

from ..backends import Array
from ..dispatch import function
from ..methods import Method
from ..operators import LinearOperator

# The transposes and the matrix itself, as functions. They have nothing to choose, so any method
# will do.


def transposed(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The transpose, `A.T`.

    Examples
    --------
    >>> import colinear as co
    >>> co.transpose([[1.0, 2.0]]).shape
    (2, 1)
    """
    return A.T


def adjoint_of(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The conjugate transpose, `A.H`.

    Examples
    --------
    >>> import colinear as co
    >>> co.adjoint([[1j, 2.0]]).to_dense()
    array([[0.-1.j],
           [2.-0.j]])
    """
    return A.H


def conjugate(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The complex conjugate, `A.conj()`.

    Examples
    --------
    >>> import colinear as co
    >>> co.conj([[1j]]).to_dense()
    array([[0.-1.j]])
    """
    return A.conj()


def matrix(A: LinearOperator, method: Method | None = None) -> Array:
    """The matrix, `A.to_dense()`.

    Examples
    --------
    >>> import colinear as co
    >>> co.to_dense(co.Identity(2))
    array([[1., 0.],
           [0., 1.]])
    """
    return A.to_dense()


transpose = function("transpose", base=transposed, rewrites=False)
adjoint = function("adjoint", base=adjoint_of, rewrites=False)
conj = function("conj", base=conjugate, rewrites=False)
to_dense = function("to_dense", base=matrix, rewrites=False)
