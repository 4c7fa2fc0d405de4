"""Functions of an operator: exponential, logarithm, roots, powers, and any function of its
eigenvalues.

A self-adjoint A is diagonalised, f(A) = Q f(Λ) Q^H, which keeps the structure of Q. Any other A
goes through algorithms that need no basis of eigenvectors (`methods/roots.py`, the backends'
`expm`); only `apply`, which knows nothing of its f, uses one. The rules are in
rules.py and compositions.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, adjoint, eye_like, matrix_inverse, without_zeros
from ...dispatch import Choice, function
from ...factors.dense import probe, probe_of
from ...factors.function import from_eigenpairs
from ...info import Info, report
from ...methods import Auto, Eig, Eigh, Krylov, Method, fitting, roots
from ...operators import Dense, LinearOperator, ScaledIdentity
from ...operators.context import kind_of
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, first_failure, is_unseen
from ..common import (
    MARGIN,
    dense,
    host_value,
    identity_like,
    ignore_float_errors,
    is_traced_or_differentiated,
    report_failure,
    report_finite,
    square_size,
    to_result_dtype,
)
from ..solve.cost import matrix_cost
from ..spectrum import eig
from .krylov import cost as product_cost
from .krylov import krylov_operator
from .spectra import (
    EXP,
    ISQRT,
    LOG,
    SQRT,
    Scalar,
    as_integer,
    as_scalar,
    claims_of,
    factored,
    factored_spectrum,
    has_factored_spectrum,
    is_rounding_error,
    of_values,
    power_of,
    real_if_real,
    runs_krylov,
)


def exponential(A: LinearOperator, method: Method | None = None) -> Choice:
    """The matrix exponential, right for defective A too.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Eigh, Eig or Krylov, optional
        `Auto` multiplies few columns by `Krylov` where A is large, and forms the matrix when it is
        asked for, for many columns, or where `Krylov` fails: it diagonalises a self-adjoint A, and
        uses scaling and squaring for others. The same holds for the other functions of A, where
        these are known to be real.

    Notes
    -----
    About 10 n^3 flops for the matrix if A is self-adjoint, and 20 to 40 n^3 if not; for a column
    some tens of products with A. The matrix is kept once it is formed: for many products one after
    the other ask for `to_dense()` first, or for `Eigh()`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.exp(np.array([[0.0, 1.0], [0.0, 0.0]])).to_dense()
    array([[1., 1.],
           [0., 1.]])
    """
    return evaluate(A, EXP, method)


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
    return evaluate(A, LOG, method)


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
    return evaluate(A, SQRT, method)


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
    return evaluate(A, ISQRT, method)


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
    if as_integer(p) == 0:
        square_size("power", A, "A^p", "")
        return batched_identity(A)
    return evaluate(A, power_of(p), method)


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
    return evaluate(A, as_scalar(f), method)


def batched_identity(A: LinearOperator) -> LinearOperator:
    """I of the size and the batch shape of A."""
    if not A.batch_shape:
        return identity_like(A)
    ones = A.xp.ones(A.batch_shape, **kind_of(A))
    return ScaledIdentity(ones, A.shape[-1])


exp = function("exp", base=exponential)
log = function("log", base=logarithm)
sqrt = function("sqrt", base=square_root)
isqrt = function("isqrt", base=inverse_square_root)
power = function("power", base=matrix_power)
apply = function("apply", base=function_of_eigenvalues, operand=1)


# Functions of a matrix without structure: through eigenvectors if it is self-adjoint, else by
# algorithms that need no basis of them.


FUNCTION = (Eigh, Eig, Krylov)  # the methods
General = Callable[[Any, LinearOperator, Array], Array]


def evaluate(A: LinearOperator, f: Scalar, method: Method | None) -> Choice:
    """The choice for f(A): products by a Krylov method, or the matrix."""
    square_size(f.name, A, f"{f.name}(A)", "")
    chosen = fitting(f.name, method, *FUNCTION)
    why = runs_krylov(A, f, chosen)
    if not why or (isinstance(chosen, Auto) and has_factored_spectrum(A)):
        return by_matrix(A, f, chosen)
    run, like = lambda: krylov_operator(A, f, chosen), partial(identity_like, A)
    why = f"{why}: products with f(A) by a Krylov method"
    return Choice(run, "Krylov", lambda: product_cost(A, chosen), why, like)


def by_matrix(A: LinearOperator, f: Scalar, chosen: Method) -> Choice:
    """The choice for f(A) with a matrix: through eigenvectors if A is self-adjoint, or nothing
    is known of f; else by an algorithm of f's own."""
    name, general = general_of(f)
    if isinstance(chosen, Eigh) or (A.properties & SELF_ADJOINT and not isinstance(chosen, Eig)):
        return _by_eigenbasis(A, True, lambda: by_unitary(A, f, chosen))
    if isinstance(chosen, Eig) or general is None:
        return _by_eigenbasis(A, False, lambda: _by_eigenvectors(A, f))
    # all entries are compared at once where they are there, and on a device, which is waited for once
    is_exact = isinstance(A, Dense) or 0 in A.shape or any(map(is_unseen, A.arrays()))
    if _may_be_self_adjoint(A, is_exact, general is exponential_of_matrix):
        # not known to be self-adjoint, but plain to see
        return _by_eigenbasis(A, True, lambda: _by_symmetry(A, f, chosen, general, is_exact))
    run, why = lambda: _by_general(A, dense(A), general), "A is not known to be self-adjoint"
    return Choice(run, name, matrix_cost(A, 30.0, 32.0), why, partial(identity_like, A))


def _may_be_self_adjoint(A: LinearOperator, is_exact: bool, is_exponential: bool) -> bool:
    """Whether the entries of A are those of its adjoint (`is_exact`), or two products agree with
    that, X^T A X = (X^T A X)^H: no matrix is formed before it is used."""
    xp, x = A.xp, probe_of(A)
    X = None if is_exact else xp.concat([x, xp.flip(x, axis=-2)], axis=-1)
    M = dense(A) if X is None else A @ X
    if is_traced_or_differentiated(xp, M) or (is_exponential and is_unseen(M)):
        return False  # the exponential is as good on a device, where nothing waits for it
    if X is None:
        return bool(xp.to_numpy(xp.all(M == adjoint(xp, M))))
    scale = math.sqrt(xp.eps(A.dtype)) * A.shape[-1] * xp.max(xp.abs(M))
    with ignore_float_errors(xp):
        M = xp.matmul(xp.matrix_transpose(X), M)
        return bool(xp.to_numpy(xp.all(xp.abs(M - adjoint(xp, M)) <= scale)))


def _by_symmetry(
    A: LinearOperator, f: Scalar, chosen: Method, general: General, is_shown: bool
) -> LinearOperator:
    """f of the matrix through its eigenvectors, if its entries are those of its adjoint, as may be
    shown."""
    xp, M = A.xp, dense(A)
    if not (is_shown or xp.to_numpy(xp.all(M == adjoint(xp, M)))):
        return _by_general(A, M, general)
    return by_unitary(Dense(xp.astype(M, A.dtype))._claim(SELF_ADJOINT), f, chosen)


def general_of(f: Scalar) -> tuple[str, General | None]:
    """The algorithm for f of any matrix, and its name; None for f of which nothing is known."""
    if f.name == "power":
        return "power", power_of_matrix(f.exponent)
    return {
        "exp": ("expm", exponential_of_matrix),
        "log": ("logm", logarithm_of_matrix),
        "sqrt": ("sqrtm", root_of_matrix),
        "isqrt": ("sqrtm", inverse_root_of_matrix),
    }.get(f.name, ("Eig", None))


def _by_general(A: LinearOperator, M: Array, general: General) -> LinearOperator:
    xp, X = A.xp, M
    if 0 not in M.shape:
        with ignore_float_errors(xp):
            X = general(xp, A, M)
            # on a device those functions that may be complex have been found, and seen, on the host
            if not is_traced_or_differentiated(xp, M) and not is_unseen(X):
                X = real_if_real(xp, A, X)
    return Dense(to_result_dtype(xp, X, A.dtype))


def _by_eigenbasis(
    A: LinearOperator, is_hermitian: bool, run: Callable[[], LinearOperator]
) -> Choice:
    """The choice of eigenvectors: of a self-adjoint A (Eigh), or of any."""
    like = partial(identity_like, A)
    if is_hermitian:
        why = "A is known to be self-adjoint: f(A) = Q f(Λ) Q^H"
        return Choice(run, "Eigh", matrix_cost(A, 10.0, 16.0, "Eigh"), why, like)
    return Choice(run, "Eig", matrix_cost(A, 30.0, 32.0, "Eig"), "f(A) = V f(Λ) V^-1", like)


def by_unitary(A: LinearOperator, f: Scalar, method: Method) -> LinearOperator:
    """Q f(Λ) Q^H"""
    xp, is_base = A.xp, eig.find(A).is_base
    parts = None if is_base else factored(A)
    if parts is not None:
        f_values = of_values(A, f, parts.spectrum())
        function = parts.function(on_spectrum(A, f, f_values))
        return function._claim(claims_of(xp, f, f_values))
    if has_factored_spectrum(A):
        values, Q = factored_spectrum(A)
    else:
        # whose derivative is that of f(A), not of the pairs
        held = A.detach() if is_base else A
        values, Q = eig(held, None, "LM", None if isinstance(method, Auto) else method)
    f_values = of_values(A, f, values)
    if not isinstance(Q, Dense):
        found = from_eigenpairs(A, f_values, Q)
    elif is_traced_or_differentiated(xp, M := dense(A)) and 0 not in M.shape:
        g = on_spectrum(A, f, f_values)
        X = autodiff.spectral_function(xp, g, M, values, Q.A, True)
        found = Dense(to_result_dtype(xp, X, A.dtype))
    else:
        with ignore_float_errors(xp):
            found = Dense(xp.matmul(Q.A * f_values[..., None, :], adjoint(xp, Q.A)))
    return found._claim(claims_of(xp, f, f_values))


def on_spectrum(A: LinearOperator, f: Scalar, values: Array) -> Callable[[Array], Array]:
    """f as it was applied to the eigenvalues of A: on complex numbers where that gave these values,
    on no negative ones where none were promised."""

    xp, positive = A.xp, A.properties & POSITIVE_SEMIDEFINITE
    is_complex, dtype = xp.is_complex(values), values.dtype

    def g(x: Array) -> Array:
        if f.principal and not xp.is_complex(x):
            if is_complex:
                x = xp.astype(x, dtype)
            elif positive:
                x = xp.where(x < 0, 0 * x, x)
        return f.of(xp, x)

    return g


def _by_eigenvectors(A: LinearOperator, f: Scalar) -> LinearOperator:
    """V f(Λ) V^-1; `eig` reports if V is no basis."""
    xp = A.xp
    values, vectors = eig(A.detach(), None, "LM", Eig())
    V = vectors.to_dense()
    if 0 in V.shape:
        return Dense(xp.astype(V, A.dtype))
    with ignore_float_errors(xp):
        X = autodiff.spectral_function(xp, partial(f.of, xp), dense(A), values, V, False)
    return Dense(real_if_real(xp, A, X))


def _report_residual(
    xp: Any, A: LinearOperator, name: str, residual: Array, singular: Array | None = None
) -> None:
    """Whether a matrix function satisfies its equation to the square root of the accuracy."""
    status = first_failure(
        xp,
        (xp.all(xp.isfinite(dense(A)), axis=(-2, -1)), Status.NONFINITE),
        (True if singular is None else xp.logical_not(singular), Status.SINGULAR),
        (xp.isfinite(residual), Status.SINGULAR),
        (residual <= math.sqrt(xp.eps(A.dtype)), Status.INACCURATE),
    )
    report(Info(status, residual=residual, method=name))


def _relative(xp: Any, difference: Array, M: Array) -> Array:
    change, size = (xp.max(xp.abs(X), axis=(-2, -1)) for X in (difference, M))
    return change / without_zeros(xp, size)


def _on_host(xp: Any, M: Array, name: str, *each: Any) -> Any:
    """SciPy's function where values can be seen and no derivative is asked for; for each of these
    arguments, if there are any."""
    if is_traced_or_differentiated(xp, M):
        return [None] * len(each) if each else None
    host, device = xp.to_numpy(M), xp.device_of(M)

    def found(*arguments: Any) -> Array:
        X = roots.on_host(name, host, *arguments)
        if np.iscomplexobj(X) and not np.iscomplexobj(host) and is_rounding_error(X.imag, X):
            X = X.real  # here a look costs nothing
        return xp.asarray(X, device=device)

    return [found(argument) for argument in each] if each else found()


def _for_roots(xp: Any, M: Array) -> Array:
    """A real matrix is made complex where its principal root may be: under tracing, and with
    eigenvalues on the negative axis."""
    if xp.is_complex(M):
        return M
    if not xp.is_traced(M):
        w = host_value(xp, xp.eigvals(xp.stop_gradient(M)))
        if not ((w.real <= 0) & (abs(w.imag) <= math.sqrt(xp.eps(M.dtype)) * abs(w))).any():
            return M
    return xp.astype(M, xp.complex_dtype(M.dtype))


def root_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "sqrtm")
    X = autodiff.square_root(xp, _for_roots(xp, M))[0] if X is None else X
    _report_residual(xp, A, "sqrtm", _relative(xp, xp.matmul(X, X) - M, M))
    return X


def inverse_root_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "sqrtm")
    I = eye_like(xp, M)
    Y = autodiff.square_root(xp, _for_roots(xp, M))[1] if X is None else matrix_inverse(xp, X)
    residual = _relative(xp, xp.matmul(xp.matmul(Y, M), Y) - I, I)
    _report_residual(xp, A, "sqrtm", residual, is_singular(xp, M))
    return Y


def logarithm_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "logm")
    X = autodiff.logarithm(xp, _for_roots(xp, M)) if X is None else X
    _report_residual(xp, A, "logm", _relative(xp, xp.expm(X) - M, M), is_singular(xp, M))
    return X


def exponential_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = xp.expm(M)
    report_finite(xp, X, method="expm")
    return X


def power_of_matrix(p: Any) -> General:
    whole = as_integer(p)

    def of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
        if whole is not None:
            X = roots.integer_power(xp, M, whole)
            singular = is_singular(xp, M) if whole < 0 else xp.asarray(False)
            report_failure(xp, (xp.logical_not(singular), Status.SINGULAR), method="LU")
            finite = xp.logical_or(xp.all(xp.isfinite(X), axis=(-2, -1)), singular)
            report_failure(xp, (finite, Status.NONFINITE))
            return X
        if isinstance(p, complex):
            return xp.expm(p * logarithm_of_matrix(xp, A, M))
        down = math.floor(p)
        part = p - down  # between 0 and 1, where A may be singular; whole powers do the rest
        X, rest = _on_host(xp, M, "fractional_matrix_power", part, 1 - part)
        if X is None or rest is None:
            L = autodiff.logarithm(xp, _for_roots(xp, M))
            X, rest = xp.expm(part * L), xp.expm((1 - part) * L)
        singular = is_singular(xp, M) if p < 0 else None
        residual = _relative(xp, xp.matmul(X, rest) - M, M)
        _report_residual(xp, A, "fractional power", residual, singular)
        return xp.matmul(X, roots.integer_power(xp, M, down)) if down else X

    return of_matrix


def is_singular(xp: Any, A: Array) -> Array:
    """Whether each matrix is singular to working accuracy: LU's solution for the probe tells."""
    if 0 in A.shape:
        return xp.zeros(A.shape[:-2], dtype=xp.bool, device=xp.device_of(A))
    p = probe(xp, A.shape[-1], A.dtype, xp.device_of(A))
    x = xp.lu_solve(*xp.lu_factor(A), xp.broadcast_to(p, (*A.shape[:-1], 1)))
    largest = xp.max(xp.abs(A), axis=(-2, -1))
    return xp.logical_not(
        MARGIN * A.shape[-1] * xp.eps(A.dtype) * largest * xp.vector_norm(x, axis=(-2, -1))
        < xp.vector_norm(p)
    )
