"""Functions of an operator: exponential, logarithm, roots, powers, and any function of its eigenvalues.

A self-adjoint A is diagonalised, f(A) = Q f(Λ) Q^H, which keeps the structure of Q. Any other A goes through algorithms that
need no basis of eigenvectors (`methods/roots.py`, the backends' `expm`); only `apply`, which knows nothing of its f, uses one.
The rules are in matrix_function_rules.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..dispatch import Cost, Function, function
from ..methods import Auto, Eig, Eigh, Krylov, Method, fitting
from ..operators.base import LinearOperator
from ..operators.identity import Identity, ScaledIdentity
from ..properties import SELF_ADJOINT
from ._arrays import square_size
from .krylov_functions import cost as product_cost
from .krylov_functions import krylov_operator
from .matrix_function_base import (
    FUNCTION,
    by_eigenvectors,
    by_unitary,
    evaluate,
    exponential_of_matrix,
    inverse_root_of_matrix,
    is_left_to_krylov,
    logarithm_of_matrix,
    power_of_matrix,
    root_of_matrix,
)
from .scalar_functions import EXP, ISQRT, LOG, SQRT, as_integer, power_of, scalar_of


def exponential(A: LinearOperator, method: Method | None = None) -> LinearOperator:
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
    return evaluate(A, EXP, method, exponential_of_matrix)


def logarithm(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The principal logarithm: complex where A has negative eigenvalues. Under tracing complex unless A is annotated PSD.

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
    return evaluate(A, LOG, method, logarithm_of_matrix)


def square_root(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The principal square root, X X = A: complex where A has negative eigenvalues. Under tracing complex unless A is annotated
    PSD.

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
    return evaluate(A, SQRT, method, root_of_matrix)


def inverse_square_root(A: LinearOperator, method: Method | None = None) -> LinearOperator:
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
    return evaluate(A, ISQRT, method, inverse_root_of_matrix)


def matrix_power(A: LinearOperator, p: Any, method: Method | None = None) -> LinearOperator:
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
    return evaluate(A, f, method, power_of_matrix(p))


def function_of_eigenvalues(A: LinearOperator, f: Callable[[Array], Array], method: Method | None = None) -> LinearOperator:
    """f(A), for a function f of numbers, through eigenvalues and eigenvectors.

    Parameters
    ----------
    f : callable
        Takes and returns an array of A's framework, entry by entry: `numpy.sin`, `torch.sin`, ...; real input for self-adjoint A,
        complex for others.
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
        return krylov_operator(A, scalar_of(f), chosen)
    if isinstance(chosen, Eigh) or (isinstance(chosen, Auto) and A.properties & SELF_ADJOINT):
        return by_unitary(A, scalar_of(f), chosen)
    return by_eigenvectors(A, f)


def identity_like(A: LinearOperator) -> LinearOperator:
    """I of the size and the batch shape of A."""
    n = A.shape[-1]
    if not A.batch_shape:
        return Identity(n, like=None if A.is_neutral else A)
    return ScaledIdentity(A.xp.ones(A.batch_shape, dtype=A.dtype, device=A._context.device), n)


def stand_in(A: LinearOperator, *arguments: Any) -> LinearOperator:
    square_size("f", A, "a function of a matrix", "")
    return Identity(A.shape[-1], like=None if A.is_neutral else A)


def _choose(general: str) -> Callable[..., tuple[str, Cost, str]]:
    def choose(A: LinearOperator, *arguments: Any) -> tuple[str, Cost, str]:
        chosen = fitting("f(A)", arguments[-1], *FUNCTION)
        if is_left_to_krylov(A, chosen):
            why = "asked for" if isinstance(chosen, Krylov) else "A is too large to be formed"
            return "Krylov", product_cost(A, chosen), f"{why}: products with f(A) by a Krylov method"
        flops = 10.0 * A.shape[-1] * math.prod(A.shape)
        if isinstance(chosen, Eigh) or (isinstance(chosen, Auto) and A.properties & SELF_ADJOINT):
            return "Eigh", Cost(flops, 16.0 * math.prod(A.shape)), "A is known to be self-adjoint: f(A) = Q f(Λ) Q^H"
        if isinstance(chosen, Eig) or general == "Eig":
            return "Eig", Cost(3 * flops, 32.0 * math.prod(A.shape)), "f(A) = V f(Λ) V^-1"
        return general, Cost(3 * flops, 32.0 * math.prod(A.shape)), "A is not known to be self-adjoint"

    return choose


def _define(name: str, base: Callable[..., Any], general: str, operand: int = 0) -> Function:
    return function(name, base=base, operand=operand, stand_in=stand_in, choose=_choose(general))


exp = _define("exp", exponential, "expm")
log = _define("log", logarithm, "logm")
sqrt = _define("sqrt", square_root, "sqrtm")
isqrt = _define("isqrt", inverse_square_root, "sqrtm")
power = _define("power", matrix_power, "power")
apply = _define("apply", function_of_eigenvalues, "Eig", operand=1)
