"""Functions of an operator: exponential, logarithm, roots, powers, and any function of its eigenvalues.

A self-adjoint A is diagonalised, f(A) = Q f(Λ) Q^H, which keeps the structure of Q. Any other A goes through algorithms that
need no basis of eigenvectors (`methods/roots.py`, the backends' `expm`); only `apply`, which knows nothing of its f, uses one.
The rules are in matrix_function_rules.py.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends import Array
from ..dispatch import Cost, Function, function
from ..info import Info, Status, report
from ..methods import Auto, Eig, Eigh, Method, fitting, roots
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.product import Product
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ._factorise import dense, is_singular, is_watched, narrow, quiet, seen, square_size
from ._values import report_status
from .eigen import eig


@dataclass(frozen=True)
class Scalar:
    """A function of numbers, and what is needed to apply it to matrices.

    Attributes
    ----------
    name : str
    of : callable
        `of(xp, x)`, entry by entry.
    principal : bool
        Whether it is complex for negative numbers.
    pole : bool
        Whether it is infinite at zero.
    nonnegative : bool
        Whether its real values are never negative.
    mirrored : bool
        Whether f(conj(x)) = conj(f(x)) everywhere, also on a cut: then it is real for real matrices.
    """

    name: str
    of: Callable[[Any, Array], Array]
    principal: bool = True
    pole: bool = False
    nonnegative: bool = False
    mirrored: bool = False


EXP = Scalar("exp", lambda xp, x: xp.exp(x), principal=False, nonnegative=True, mirrored=True)
LOG = Scalar("log", lambda xp, x: xp.log(x), pole=True)
SQRT = Scalar("sqrt", lambda xp, x: xp.sqrt(x), nonnegative=True)
ISQRT = Scalar("isqrt", lambda xp, x: 1 / xp.sqrt(x), pole=True, nonnegative=True)


def power_of(p: Any) -> Scalar:
    whole = as_integer(p)
    if whole is not None:
        even = whole % 2 == 0
        return Scalar("power", lambda xp, x: x**whole, principal=False, pole=whole < 0, nonnegative=even, mirrored=True)
    return Scalar("power", lambda xp, x: x**p, pole=p.real <= 0, nonnegative=not isinstance(p, complex))


def scalar_of(f: Callable[[Array], Array]) -> Scalar:
    """A user's function of an array."""
    return Scalar("apply", lambda xp, x: f(x), principal=False)


def as_integer(p: Any) -> int | None:
    is_number = isinstance(p, numbers.Number)
    if not is_number or p != p:
        raise ValueError(f"power: the exponent is {p!r}; it must be a number.")
    return int(p.real) if not isinstance(p, complex) and float(p).is_integer() else None


# ---------------------------------------------------------------------------------------------------- entry by entry


def of_values(xp: Any, f: Scalar, x: Array, positive: bool, negligible: float = 0.0) -> Array:
    """f of real or complex numbers, complex where the principal branch is; reports poles, overflow and broken promises.

    `positive`: whether they are promised not to be negative. Then those that are, by no more than `negligible` of the largest,
    are rounding errors of zero.
    """
    with quiet(xp):
        if f.principal and not xp.is_complex(x):
            x = _principal_input(xp, f, x, positive, negligible)
        y = f.of(xp, x)
        if 0 not in x.shape:
            status = xp.where(xp.all(xp.isfinite(y)), int(Status.SUCCESS), int(Status.NONFINITE))
            if f.pole:
                size = xp.abs(x)
                zero = xp.any(size <= negligible * xp.max(size, axis=-1, keepdims=True))  # zero, or not to be told from it
                status = xp.where(zero, int(Status.SINGULAR), status)
            report_status(xp, xp.where(xp.all(xp.isfinite(x)), status, int(Status.NONFINITE)))
        return y


def _principal_input(xp: Any, f: Scalar, x: Array, positive: bool, negligible: float) -> Array:
    """Real numbers as f takes them: complex where one of them is negative, or could be."""
    if positive and x.shape[-1]:
        floor = -negligible * xp.max(xp.abs(x), axis=-1, keepdims=True)
        x = xp.where(xp.logical_and(x < 0, x >= floor), 0 * x, x)
    negative = seen(xp, x < 0)
    if negative is None:
        if positive:
            report_status(xp, xp.where(xp.any(x < 0), int(Status.NOT_POSITIVE_DEFINITE), int(Status.SUCCESS)))
            return x
        return xp.astype(x, xp.complex_dtype(x.dtype))
    if not negative.any():
        return x
    if positive:
        report(
            Info(Status.FELL_BACK, message=f"A has negative eigenvalues, though it was said to have none: {f.name} is complex")
        )
    return xp.astype(x, xp.complex_dtype(x.dtype))


# ---------------------------------------------------------------------------------------------------- the base case


def _evaluate(
    A: LinearOperator, f: Scalar, method: Method | None, general: Callable[[Any, LinearOperator, Array], Array]
) -> LinearOperator:
    """f(A): through eigenvectors if A is self-adjoint, else `general(xp, A, matrix)`."""
    square_size(f.name, A, f"{f.name}(A)", "")
    chosen = fitting(f.name, method, Eigh, Eig)
    xp = A.xp
    if isinstance(chosen, Eig):
        return _by_eigenvectors(A, lambda x: f.of(xp, x))
    if isinstance(chosen, Eigh) or A.properties & SELF_ADJOINT:
        return _by_unitary(A, f, chosen)
    M = dense(A)
    if not is_watched(xp, M) and _is_hermitian(xp, M):  # not known, but plain to see
        return _by_unitary(Dense(xp.astype(M, A.dtype))._claim(SELF_ADJOINT), f, chosen)
    if 0 in M.shape:
        return Dense(narrow(xp, M, A.dtype))
    with quiet(xp):
        result = general(xp, A, M)
        result = result if is_watched(xp, M) else real_if_real(xp, A, result)
    return Dense(narrow(xp, result, A.dtype))


def _is_hermitian(xp: Any, M: Array) -> bool:
    return bool(xp.to_numpy(xp.all(M == xp.conj(xp.matrix_transpose(M)))))


def _by_unitary(A: LinearOperator, f: Scalar, method: Method) -> LinearOperator:
    """Q f(Λ) Q^H"""
    values, Q = eig(A, None, "LM", None if isinstance(method, Auto) else method)
    xp, positive = A.xp, bool(A.properties & POSITIVE_SEMIDEFINITE)
    negligible = A.shape[-1] * xp.eps(A.dtype)
    f_values = of_values(xp, f, values, positive, negligible)
    mask = 0 if xp.is_complex(f_values) else POSITIVE_SEMIDEFINITE | SELF_ADJOINT if f.nonnegative else SELF_ADJOINT
    return _rebuilt(A, f_values, Q)._claim(mask)


def _rebuilt(A: LinearOperator, values: Array, Q: LinearOperator) -> LinearOperator:
    if not isinstance(Q, Dense):
        return Product(Q, Diagonal(values), Q.H)
    xp = A.xp
    with quiet(xp):
        return Dense(xp.matmul(Q.A * values[..., None, :], xp.conj(xp.matrix_transpose(Q.A))))


def _by_eigenvectors(A: LinearOperator, f: Callable[[Array], Array]) -> LinearOperator:
    """V f(Λ) V^-1; `eig` reports if V is no basis."""
    xp = A.xp
    values, vectors = eig(A, None, "LM", Eig())
    V = vectors.to_dense()
    if 0 in V.shape:
        return Dense(xp.astype(V, A.dtype))
    with quiet(xp):
        # X = V f V^-1, from V^T X^T = (V f)^T
        scaled = V * f(values)[..., None, :]
        X = xp.matrix_transpose(xp.lu_solve(*xp.lu_factor(V), xp.matrix_transpose(scaled), transpose=True))
    return Dense(real_if_real(xp, A, X))


def real_if_real(xp: Any, A: LinearOperator, X: Array) -> Array:
    """The real part of a function of a real matrix whose imaginary part is rounding error, as SciPy's."""
    if A.is_complex or not xp.is_complex(X) or xp.is_traced(X):
        return X
    imaginary, size = (seen(xp, xp.max(xp.abs(part))) for part in (xp.imag(X), X))
    return narrow(xp, xp.real(X), A.dtype) if imaginary <= 1000 * xp.eps(X.dtype) * size else X


def _report_residual(xp: Any, A: LinearOperator, name: str, residual: Array, singular: Array | None = None) -> None:
    """Whether a matrix function satisfies its equation to the square root of the accuracy."""
    status = xp.where(residual <= math.sqrt(xp.eps(A.dtype)), int(Status.SUCCESS), int(Status.INACCURATE))
    status = xp.where(xp.isfinite(residual), status, int(Status.SINGULAR))
    if singular is not None:
        status = xp.where(singular, int(Status.SINGULAR), status)
    status = xp.where(xp.all(xp.isfinite(dense(A)), axis=(-2, -1)), status, int(Status.NONFINITE))
    visible = seen(xp, status)
    report(Info(status if visible is None else Status(int(visible.max(initial=0))), residual=residual, method=name))


def _relative(xp: Any, difference: Array, M: Array) -> Array:
    size = xp.max(xp.abs(M), axis=(-2, -1))
    return xp.max(xp.abs(difference), axis=(-2, -1)) / xp.where(size == 0, 1, size)


def _on_host(xp: Any, M: Array, name: str, *arguments: Any) -> Array | None:
    """SciPy's function where values can be seen and no derivative is asked for."""
    if is_watched(xp, M):
        return None
    return xp.asarray(roots.on_host(name, xp.to_numpy(M), *arguments), device=xp.device_of(M))


def _for_roots(xp: Any, M: Array) -> Array:
    """A real matrix is made complex where its principal root may be: under tracing, and with eigenvalues on the negative axis."""
    if xp.is_complex(M):
        return M
    if not xp.is_traced(M):
        w = seen(xp, xp.eigvals(xp.stop_gradient(M)))
        if not ((w.real <= 0) & (abs(w.imag) <= math.sqrt(xp.eps(M.dtype)) * abs(w))).any():
            return M
    return xp.astype(M, xp.complex_dtype(M.dtype))


def _square_root(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "sqrtm")
    X = roots.square_root(xp, _for_roots(xp, M))[0] if X is None else X
    _report_residual(xp, A, "sqrtm", _relative(xp, xp.matmul(X, X) - M, M))
    return X


def _inverse_root(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "sqrtm")
    I = xp.eye(M.shape[-1], dtype=M.dtype, device=xp.device_of(M))
    if X is None:
        Y = roots.square_root(xp, _for_roots(xp, M))[1]
    else:
        Y = xp.lu_solve(*xp.lu_factor(X), xp.broadcast_to(xp.astype(I, X.dtype), X.shape))
    _report_residual(xp, A, "sqrtm", _relative(xp, xp.matmul(xp.matmul(Y, M), Y) - I, I), is_singular(xp, M))
    return Y


def _logarithm(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "logm")
    X = roots.logarithm(xp, _for_roots(xp, M)) if X is None else X
    _report_residual(xp, A, "logm", _relative(xp, xp.expm(X) - M, M), is_singular(xp, M))
    return X


def _exponential(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = xp.expm(M)
    status = xp.where(xp.all(xp.isfinite(X), axis=(-2, -1)), int(Status.SUCCESS), int(Status.NONFINITE))
    report_status(xp, status, method="expm")
    return X


def _power(p: Any) -> Callable[[Any, LinearOperator, Array], Array]:
    whole = as_integer(p)

    def of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
        if whole is not None:
            X = roots.integer_power(xp, M, whole)
            if whole < 0:
                report_status(xp, xp.where(is_singular(xp, M), int(Status.SINGULAR), int(Status.SUCCESS)), method="LU")
            finite = xp.logical_or(xp.all(xp.isfinite(X), axis=(-2, -1)), is_singular(xp, M) if whole < 0 else xp.asarray(False))
            report_status(xp, xp.where(finite, int(Status.SUCCESS), int(Status.NONFINITE)))
            return X
        if isinstance(p, complex):
            return xp.expm(p * _logarithm(xp, A, M))
        down = math.floor(p)
        part = p - down  # between 0 and 1, where A may be singular; whole powers do the rest
        X, rest = (_on_host(xp, M, "fractional_matrix_power", q) for q in (part, 1 - part))
        if X is None or rest is None:
            L = roots.logarithm(xp, _for_roots(xp, M))
            X, rest = xp.expm(part * L), xp.expm((1 - part) * L)
        singular = is_singular(xp, M) if p < 0 else None
        _report_residual(xp, A, "fractional power", _relative(xp, xp.matmul(X, rest) - M, M), singular)
        return xp.matmul(X, roots.integer_power(xp, M, down)) if down else X

    return of_matrix


# ---------------------------------------------------------------------------------------------------- the functions


def exponential(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The matrix exponential, right for defective A too.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Eigh or Eig, optional
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
    return _evaluate(A, EXP, method, _exponential)


def logarithm(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The principal logarithm: complex where A has negative eigenvalues. Under tracing complex unless A is annotated PSD.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular one has none: status SINGULAR.
    method : Auto, Eigh or Eig, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.log(np.array([[1.0, 1.0], [0.0, 1.0]])).to_dense().round(12) + 0.0
    array([[0., 1.],
           [0., 0.]])
    """
    return _evaluate(A, LOG, method, _logarithm)


def square_root(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The principal square root, X X = A: complex where A has negative eigenvalues. Under tracing complex unless A is annotated
    PSD.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular defective one has none that is found: status SINGULAR.
    method : Auto, Eigh or Eig, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.sqrt(co.PSD(np.array([[5.0, 4.0], [4.0, 5.0]]))).to_dense().round(12)
    array([[2., 1.],
           [1., 2.]])
    """
    return _evaluate(A, SQRT, method, _square_root)


def inverse_square_root(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The principal inverse square root A^(-1/2), which whitens a covariance.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        A singular one has none: status SINGULAR.
    method : Auto, Eigh or Eig, optional

    Examples
    --------
    >>> import colinear as co
    >>> co.isqrt(co.Diagonal([4.0, 16.0])).to_dense()
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    return _evaluate(A, ISQRT, method, _inverse_root)


def matrix_power(A: LinearOperator, p: Any, method: Method | None = None) -> LinearOperator:
    """A^p for any number p: by repeated squaring for whole numbers, the principal power for others.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    p : int, float or complex
    method : Auto, Eigh or Eig, optional

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
    return _evaluate(A, f, method, _power(p))


def function_of_eigenvalues(A: LinearOperator, f: Callable[[Array], Array], method: Method | None = None) -> LinearOperator:
    """f(A), for a function f of numbers, through eigenvalues and eigenvectors.

    Parameters
    ----------
    f : callable
        Takes and returns an array of A's framework, entry by entry: `numpy.sin`, `torch.sin`, ...; real input for self-adjoint A,
        complex for others.
    A : operator or array, (*batch, n, n)
        If it has no basis of eigenvectors the status is INACCURATE.
    method : Auto, Eigh or Eig, optional

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.apply(np.square, co.Diagonal([1.0, 2.0])).to_dense()
    array([[1., 0.],
           [0., 4.]])
    """
    square_size("apply", A, "f(A)", "")
    if not callable(f):
        raise TypeError(f"apply: f is {f!r}; it must be a function of an array. Write apply(f, A).")
    chosen = fitting("apply", method, Eigh, Eig)
    if isinstance(chosen, Eigh) or (isinstance(chosen, Auto) and A.properties & SELF_ADJOINT):
        return _by_unitary(A, scalar_of(f), chosen)
    return _by_eigenvectors(A, f)


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
        chosen = fitting("f(A)", arguments[-1], Eigh, Eig)
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
