"""What `preconditioner=` takes: an operator that approximates A^-1, an array of its entries, or a factory that makes one from A."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ..backends import program
from ..info import BackendError, DtypeError, MethodError, ShapeError, failed, recording, report
from ..operators.base import LinearOperator
from ..operators.context import broadcast_batches, check_device
from ..operators.convert import as_operator
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..properties import POSITIVE_SEMIDEFINITE


def as_preconditioner(M: Any, A: Any) -> LinearOperator | None:
    """The operator that a method multiplies residuals of A by.

    Parameters
    ----------
    M : operator, array, callable or None
        An approximation of A^-1, or a factory such as `Jacobi()`: any callable that makes one from A. None is passed on.
    A : operator
        The operator of the system; of a least-squares problem with n unknowns, where M is n x n too.

    Returns
    -------
    operator or None
        Of the size, framework, device and precision of A. A factory is given A without its derivatives: what a solve gives does
        not depend on the preconditioner.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> from colinear.preconditioners import as_preconditioner
    >>> A = co.PSD([[4.0, 1.0], [1.0, 2.0]])
    >>> as_preconditioner(co.Jacobi(), A) @ np.ones(2)
    array([0.25, 0.5 ])
    """
    if M is None:
        return None
    A = as_operator(A)
    if callable(M) and not isinstance(M, LinearOperator):
        if isinstance(M, type):
            raise TypeError(f"preconditioner: {M.__name__} is a class; give an instance of it, such as {M.__name__}().")
        name = str(getattr(M, "__name__", type(M).__name__))
        with recording() as reports:  # how it was made is no part of the answer's Info, unless that failed
            M = M(held_fixed(A))
        for info in reports:
            if failed(info._status) is not False:
                report(info)
        if M is None or isinstance(M, (int, float, complex, str)):
            raise TypeError(f"preconditioner: {name} gave {M!r}; expected an operator that approximates the inverse of A.")
    else:
        name = type(M).__name__
    return _checked(as_operator(M), A, name)


def _checked(M: LinearOperator, A: LinearOperator, name: str) -> LinearOperator:
    """M, if it fits A, in A's precision."""
    n = A.shape[-1]  # for least squares, where A has more rows: such that A M is well conditioned
    if M.shape[-2:] != (n, n):
        sizes = f"{M.shape[-2]}x{M.shape[-1]}", f"{A.shape[-2]}x{n}"
        raise ShapeError(
            f"the preconditioner is {sizes[0]} and A is {sizes[1]}; it must be {n}x{n}, to approximate A^-1. "
            "(Where structure splits A, give a factory, or opaque(A).)"
        )
    broadcast_batches(M.batch_shape, A.batch_shape, what="preconditioner")
    if M.is_neutral or A.is_neutral:
        return M
    if M.backend != A.backend:
        advice = f"Convert one: M.to(backend={A.backend!r})."
        raise BackendError(f"preconditioner: {name} is a {M.backend} operator and A a {A.backend} one. {advice}")
    check_device(f"preconditioner {name}", A.device, M.device)
    if M.is_complex and not A.is_complex:
        raise DtypeError(f"preconditioner: {name} is complex and A is real; make A complex, or take a real preconditioner.")
    xp = A.xp
    dtype = A.dtype if M.is_complex else xp.real_dtype(A.dtype)
    return M if M.dtype == dtype else M.to(dtype=dtype)


def held_fixed(A: LinearOperator) -> LinearOperator:
    """A without derivatives of its leaves."""
    return A.detach() if A.xp.is_differentiated(*A.arrays()) else A


class Preconditioner:
    """What the factories share: called with A, they check it and make an operator that approximates A^-1."""

    needs_positive: ClassVar[bool] = False

    def __call__(self, A: Any) -> LinearOperator:
        A, name = as_operator(A), type(self).__name__
        m, n = A.shape[-2:]
        if m != n:
            raise ShapeError(f"{name}: A is {m}x{n}; a preconditioner approximates the inverse of a square operator.")
        if self.needs_positive and not A.properties & POSITIVE_SEMIDEFINITE:
            raise MethodError(f"{name}: for positive semidefinite A alone, and A is not known to be. Say PSD(A) if it is so.")
        return self._make(A) if math.prod(A.shape) else A

    def _make(self, A: Any) -> LinearOperator:
        raise NotImplementedError


def compiled(f: Any, A: LinearOperator, *options: Any) -> Any:
    """f(A, *options); in JAX compiled, once for each structure and shape of A and not for each call."""
    try:
        run = program(A.backend, _of_operator, f, options)
    except TypeError:  # a seed that has no hash, such as a key
        return f(A, *options)
    return run(A)


def _of_operator(xp: Any, f: Any, options: tuple[Any, ...], A: LinearOperator) -> Any:
    return f(A, *options)


def positive_integer(name: str, field: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
        raise ValueError(f"{name}: {field} is {value!r}; it must be an integer, at least {least}.")


def split_shift(A: Any) -> tuple[LinearOperator, LinearOperator | None]:
    """K and D of a sum K + D with a diagonal D, noise or a regularisation; A and None if it is none."""
    if isinstance(A, Scaled):
        K, D = split_shift(A.A)
        return (A, None) if D is None else (Scaled(A.scalar, K), Scaled(A.scalar, D))
    if isinstance(A, Sum):
        diagonal = [isinstance(term, (Diagonal, ScaledIdentity, Identity)) for term in A.operands]
        rest = [term for term, is_diagonal in zip(A.operands, diagonal) if not is_diagonal]
        if any(diagonal) and rest:
            return Sum(*rest), Sum(*(term for term, is_diagonal in zip(A.operands, diagonal) if is_diagonal))
    return A, None
