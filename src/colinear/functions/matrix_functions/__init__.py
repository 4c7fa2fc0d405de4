"""Functions of an operator: exponential, logarithm, roots, powers, and any function of its
eigenvalues.

A self-adjoint A is diagonalised, f(A) = Q f(Λ) Q^H, which keeps the structure of Q. Any other A
goes through algorithms that need no basis of eigenvectors (`methods/roots.py`, the backends'
`expm`); only `apply`, which knows nothing of its f, uses one. The rules are in
matrix_function_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...backends import Array
from ...dispatch import Choice, function
from ...methods import Auto, Eigh, Method, fitting
from ...operators import Identity, LinearOperator, ScaledIdentity
from ...properties import SELF_ADJOINT
from ..common import square_size
from .dense import (
    FUNCTION,
    by_eigenbasis,
    by_eigenvectors,
    by_krylov,
    by_unitary,
    evaluate,
    exponential_of_matrix,
    inverse_root_of_matrix,
    is_left_to_krylov,
    logarithm_of_matrix,
    power_of_matrix,
    root_of_matrix,
)
from .scalars import EXP, ISQRT, LOG, SQRT, as_integer, as_scalar, power_of


def exponential(A: LinearOperator, method: Method | None = None) -> Choice:
    """The matrix exponential, right for defective A too.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Eigh, Eig or Krylov, optional
        `Auto` diagonalises a self-adjoint A, and uses scaling and squaring for others.

    Notes
    -----
    About 10 n^3 flops if A is self-adjoint, and 20 to 40 n^3 if not.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.exp(np.array([[0.0, 1.0], [0.0, 0.0]])).to_dense()
    array([[1., 1.],
           [0., 1.]])
    """
    return evaluate(A, EXP, method, "expm", exponential_of_matrix)


def logarithm(A: LinearOperator, method: Method | None = None) -> Choice:
    """The principal logarithm: complex where A has negative eigenvalues. Under tracing complex
    unless A is annotated PSD.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular one has none: status SINGULAR.
    method : Auto, Eigh, Eig or Krylov, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.log(np.array([[1.0, 1.0], [0.0, 1.0]])).to_dense().round(12) + 0.0
    array([[0., 1.],
           [0., 0.]])
    """
    return evaluate(A, LOG, method, "logm", logarithm_of_matrix)


def square_root(A: LinearOperator, method: Method | None = None) -> Choice:
    """The principal square root, X X = A: complex where A has negative eigenvalues. Under tracing
    complex unless A is annotated PSD.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular defective one has none that is found: status SINGULAR.
    method : Auto, Eigh, Eig or Krylov, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.sqrt(co.PSD(np.array([[5.0, 4.0], [4.0, 5.0]]))).to_dense().round(12)
    array([[2., 1.],
           [1., 2.]])
    """
    return evaluate(A, SQRT, method, "sqrtm", root_of_matrix)


def inverse_square_root(A: LinearOperator, method: Method | None = None) -> Choice:
    """The principal inverse square root A^(-1/2), which whitens a covariance.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular one has none: status SINGULAR.
    method : Auto, Eigh, Eig or Krylov, optional

    Examples
    --------
    >>> import colinear as co
    >>> co.isqrt(co.Diagonal([4.0, 16.0])).to_dense()
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    return evaluate(A, ISQRT, method, "sqrtm", inverse_root_of_matrix)


def matrix_power(A: LinearOperator, p: Any, method: Method | None = None) -> Any:
    """A^p for any number p: by repeated squaring for whole numbers, the principal power for others.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    p : int, float or complex
    method : Auto, Eigh, Eig or Krylov, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.power(np.array([[2.0, 0.0], [0.0, 3.0]]), 2).to_dense().round(12)
    array([[4., 0.],
           [0., 9.]])
    """
    f = power_of(p)
    if as_integer(p) == 0:
        square_size("power", A, "A^p", "")
        return identity_like(A)
    return evaluate(A, f, method, "power", power_of_matrix(p))


def function_of_eigenvalues(
    A: LinearOperator, f: Callable[[Array], Array], method: Method | None = None
) -> Choice:
    """f(A), for a function f of numbers, through eigenvalues and eigenvectors.

    Parameters
    ----------
    f : callable
        Takes and returns an array of A's framework, entry by entry: `numpy.sin`, `torch.sin`, ...;
        real input for self-adjoint A, complex for others.
    A : operator or array, (*batch, n, n)
        If it has no basis of eigenvectors the status is INACCURATE.
    method : Auto, Eigh, Eig or Krylov, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.apply(np.square, co.Diagonal([1.0, 2.0])).to_dense()
    array([[1., 0.],
           [0., 4.]])
    """
    square_size("apply", A, "f(A)", "")
    if not callable(f) or isinstance(f, LinearOperator):
        raise TypeError(f"apply: f is {f!r}; it must be a function of an array. Write apply(f, A).")
    chosen = fitting("apply", method, *FUNCTION)
    if is_left_to_krylov(A, chosen):
        return by_krylov(A, as_scalar(f), chosen)
    if isinstance(chosen, Eigh) or (isinstance(chosen, Auto) and A.properties & SELF_ADJOINT):
        return by_eigenbasis(A, "Eigh", lambda: by_unitary(A, as_scalar(f), chosen))
    return by_eigenbasis(A, "Eig", lambda: by_eigenvectors(A, f))


def identity_like(A: LinearOperator) -> LinearOperator:
    """I of the size and the batch shape of A."""
    n = A.shape[-1]
    if not A.batch_shape:
        return Identity(n, like=None if A.is_neutral else A)
    return ScaledIdentity(A.xp.ones(A.batch_shape, dtype=A.dtype, device=A._context.device), n)


exp = function("exp", base=exponential)
log = function("log", base=logarithm)
sqrt = function("sqrt", base=square_root)
isqrt = function("isqrt", base=inverse_square_root)
power = function("power", base=matrix_power)
apply = function("apply", base=function_of_eigenvalues, operand=1)
