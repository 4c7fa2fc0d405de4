"""Functions of a matrix without structure: through eigenvectors if it is self-adjoint, else by
algorithms that need no basis of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ... import autodiff
from ...backends import Array
from ...dispatch import Choice, Cost
from ...info import Info, report
from ...methods import Auto, Eig, Eigh, Krylov, Method, fitting, roots
from ...operators import Dense, Diagonal, LinearOperator, Product
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status
from ..common import (
    dense,
    host_value,
    identity_like,
    ignore_float_errors,
    is_traced_or_differentiated,
    report_status,
    square_size,
    to_result_dtype,
)
from ..solve.inverse import is_singular
from ..spectrum import eig
from .kronecker import factored, factored_spectrum, has_factored_spectrum
from .krylov import cost as product_cost
from .krylov import krylov_operator, runs_krylov
from .scalars import Scalar, as_integer, of_values

FUNCTION = (Eigh, Eig, Krylov)  # the methods


def evaluate(
    A: LinearOperator,
    f: Scalar,
    method: Method | None,
    name: str,
    general: Callable[[Any, LinearOperator, Array], Array],
) -> Choice:
    """The choice for f(A): through eigenvectors if A is self-adjoint, else `general(xp, A,
    matrix)`, which has this name."""
    square_size(f.name, A, f"{f.name}(A)", "")
    chosen = fitting(f.name, method, *FUNCTION)
    xp = A.xp
    if is_left_to_krylov(A, chosen):
        return by_krylov(A, f, chosen)
    if isinstance(chosen, Eig):
        return by_eigenbasis(A, "Eig", lambda: by_eigenvectors(A, lambda x: f.of(xp, x)))
    if isinstance(chosen, Eigh) or A.properties & SELF_ADJOINT:
        return by_eigenbasis(A, "Eigh", lambda: by_unitary(A, f, chosen))
    M = dense(A)
    if not is_traced_or_differentiated(xp, M) and _is_hermitian(
        xp, M
    ):  # not known, but plain to see
        claimed = Dense(xp.astype(M, A.dtype))._claim(SELF_ADJOINT)
        return by_eigenbasis(A, "Eigh", lambda: by_unitary(claimed, f, chosen))
    cost = Cost(30.0 * A.shape[-1] * math.prod(A.shape), 32.0 * math.prod(A.shape))
    run = lambda: _by_matrix(A, M, general)
    return Choice(run, name, cost, "A is not known to be self-adjoint", partial(identity_like, A))


def _by_matrix(
    A: LinearOperator, M: Array, general: Callable[[Any, LinearOperator, Array], Array]
) -> LinearOperator:
    xp = A.xp
    if 0 in M.shape:
        return Dense(to_result_dtype(xp, M, A.dtype))
    with ignore_float_errors(xp):
        result = general(xp, A, M)
        result = result if is_traced_or_differentiated(xp, M) else real_if_real(xp, A, result)
    return Dense(to_result_dtype(xp, result, A.dtype))


def by_krylov(A: LinearOperator, f: Scalar, method: Any) -> Choice:
    """The choice of products with f(A) by a Krylov method."""
    why = "asked for" if isinstance(method, Krylov) else "A is too large to be formed"
    run = lambda: krylov_operator(A, f, method)
    cost = lambda: product_cost(A, method)
    return Choice(
        run,
        "Krylov",
        cost,
        f"{why}: products with f(A) by a Krylov method",
        partial(identity_like, A),
    )


def by_eigenbasis(A: LinearOperator, name: str, run: Callable[[], LinearOperator]) -> Choice:
    """The choice of eigenvectors: of a self-adjoint A (Eigh), or of any."""
    is_hermitian, size = name == "Eigh", math.prod(A.shape)
    why = (
        "A is known to be self-adjoint: f(A) = Q f(Λ) Q^H" if is_hermitian else "f(A) = V f(Λ) V^-1"
    )
    cost = Cost(
        (10.0 if is_hermitian else 30.0) * A.shape[-1] * size,
        (16.0 if is_hermitian else 32.0) * size,
    )
    return Choice(run, name, cost, why, partial(identity_like, A))


def is_left_to_krylov(A: LinearOperator, method: Method) -> bool:
    """Whether f(A) is left to products: that was asked for, or A is too large to be formed and
    its factors do not tell its spectrum."""
    return runs_krylov(A, method) and not (isinstance(method, Auto) and has_factored_spectrum(A))


def _is_hermitian(xp: Any, M: Array) -> bool:
    return bool(xp.to_numpy(xp.all(M == xp.conj(xp.matrix_transpose(M)))))


def by_unitary(A: LinearOperator, f: Scalar, method: Method) -> LinearOperator:
    """Q f(Λ) Q^H"""
    xp, positive = A.xp, bool(A.properties & POSITIVE_SEMIDEFINITE)
    negligible = A.shape[-1] * xp.eps(A.dtype)
    parts = None if eig.find(A).is_base else factored(A)
    if parts is not None:
        f_values = of_values(xp, f, parts.spectrum(), positive, negligible)
        return parts.function(on_spectrum(xp, f, f_values, positive))._claim(
            _known(xp, f, f_values)
        )
    if has_factored_spectrum(A):
        values, Q = factored_spectrum(A)
    else:
        # whose derivative is that of f(A), not of the pairs
        held = _held(A) if eig.find(A).is_base else A
        values, Q = eig(held, None, "LM", None if isinstance(method, Auto) else method)
    f_values = of_values(xp, f, values, positive, negligible)
    mask = _known(xp, f, f_values)
    if isinstance(Q, Dense) and is_traced_or_differentiated(xp, M := dense(A)) and 0 not in M.shape:
        X = autodiff.spectral_function(
            xp, on_spectrum(xp, f, f_values, positive), M, values, Q.A, True
        )
        return Dense(to_result_dtype(xp, X, A.dtype))._claim(mask)
    return _rebuilt(A, f_values, Q)._claim(mask)


def _known(xp: Any, f: Scalar, values: Array) -> int:
    """What is known of f(A), for self-adjoint A, by the values of f."""
    return (
        0
        if xp.is_complex(values)
        else POSITIVE_SEMIDEFINITE | SELF_ADJOINT
        if f.nonnegative
        else SELF_ADJOINT
    )


def _held(A: LinearOperator) -> LinearOperator:
    """A without derivatives."""
    return A.detach()


def on_spectrum(xp: Any, f: Scalar, values: Array, positive: bool) -> Callable[[Array], Array]:
    """f as it was applied to the eigenvalues: on complex numbers where that gave them, on no
    negative ones where none were promised."""

    is_complex, dtype = xp.is_complex(values), values.dtype

    def g(x: Array) -> Array:
        if f.principal and not xp.is_complex(x):
            x = xp.astype(x, dtype) if is_complex else xp.where(x < 0, 0 * x, x) if positive else x
        return f.of(xp, x)

    return g


def _rebuilt(A: LinearOperator, values: Array, Q: LinearOperator) -> LinearOperator:
    if not isinstance(Q, Dense):
        return Product(Q, Diagonal(values), Q.H)
    xp = A.xp
    with ignore_float_errors(xp):
        return Dense(xp.matmul(Q.A * values[..., None, :], xp.conj(xp.matrix_transpose(Q.A))))


def by_eigenvectors(A: LinearOperator, f: Callable[[Array], Array]) -> LinearOperator:
    """V f(Λ) V^-1; `eig` reports if V is no basis."""
    xp = A.xp
    values, vectors = eig(_held(A), None, "LM", Eig())
    V = vectors.to_dense()
    if 0 in V.shape:
        return Dense(xp.astype(V, A.dtype))
    with ignore_float_errors(xp):
        X = autodiff.spectral_function(xp, f, dense(A), values, V, False)
    return Dense(real_if_real(xp, A, X))


def real_if_real(xp: Any, A: LinearOperator, X: Array) -> Array:
    """The real part of a function of a real matrix whose imaginary part is rounding error, as
    SciPy's."""
    if A.is_complex or not xp.is_complex(X) or xp.is_traced(X):
        return X
    imaginary, size = (host_value(xp, xp.max(xp.abs(part))) for part in (xp.imag(X), X))
    return (
        to_result_dtype(xp, xp.real(X), A.dtype)
        if imaginary <= 1000 * xp.eps(X.dtype) * size
        else X
    )


def _report_residual(
    xp: Any, A: LinearOperator, name: str, residual: Array, singular: Array | None = None
) -> None:
    """Whether a matrix function satisfies its equation to the square root of the accuracy."""
    status = xp.where(
        residual <= math.sqrt(xp.eps(A.dtype)), int(Status.SUCCESS), int(Status.INACCURATE)
    )
    status = xp.where(xp.isfinite(residual), status, int(Status.SINGULAR))
    if singular is not None:
        status = xp.where(singular, int(Status.SINGULAR), status)
    status = xp.where(xp.all(xp.isfinite(dense(A)), axis=(-2, -1)), status, int(Status.NONFINITE))
    visible = host_value(xp, status)
    report(
        Info(
            status if visible is None else Status(int(visible.max(initial=0))),
            residual=residual,
            method=name,
        )
    )


def _relative(xp: Any, difference: Array, M: Array) -> Array:
    size = xp.max(xp.abs(M), axis=(-2, -1))
    return xp.max(xp.abs(difference), axis=(-2, -1)) / xp.where(size == 0, 1, size)


def _on_host(xp: Any, M: Array, name: str, *arguments: Any) -> Array | None:
    """SciPy's function where values can be seen and no derivative is asked for."""
    if is_traced_or_differentiated(xp, M):
        return None
    return xp.asarray(roots.on_host(name, xp.to_numpy(M), *arguments), device=xp.device_of(M))


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
    I = xp.eye(M.shape[-1], dtype=M.dtype, device=xp.device_of(M))
    if X is None:
        Y = autodiff.square_root(xp, _for_roots(xp, M))[1]
    else:
        Y = xp.lu_solve(*xp.lu_factor(X), xp.broadcast_to(xp.astype(I, X.dtype), X.shape))
    _report_residual(
        xp, A, "sqrtm", _relative(xp, xp.matmul(xp.matmul(Y, M), Y) - I, I), is_singular(xp, M)
    )
    return Y


def logarithm_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = _on_host(xp, M, "logm")
    X = autodiff.logarithm(xp, _for_roots(xp, M)) if X is None else X
    _report_residual(xp, A, "logm", _relative(xp, xp.expm(X) - M, M), is_singular(xp, M))
    return X


def exponential_of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
    X = xp.expm(M)
    status = xp.where(
        xp.all(xp.isfinite(X), axis=(-2, -1)), int(Status.SUCCESS), int(Status.NONFINITE)
    )
    report_status(xp, status, method="expm")
    return X


def power_of_matrix(p: Any) -> Callable[[Any, LinearOperator, Array], Array]:
    whole = as_integer(p)

    def of_matrix(xp: Any, A: LinearOperator, M: Array) -> Array:
        if whole is not None:
            X = roots.integer_power(xp, M, whole)
            if whole < 0:
                report_status(
                    xp,
                    xp.where(is_singular(xp, M), int(Status.SINGULAR), int(Status.SUCCESS)),
                    method="LU",
                )
            finite = xp.logical_or(
                xp.all(xp.isfinite(X), axis=(-2, -1)),
                is_singular(xp, M) if whole < 0 else xp.asarray(False),
            )
            report_status(xp, xp.where(finite, int(Status.SUCCESS), int(Status.NONFINITE)))
            return X
        if isinstance(p, complex):
            return xp.expm(p * logarithm_of_matrix(xp, A, M))
        down = math.floor(p)
        part = p - down  # between 0 and 1, where A may be singular; whole powers do the rest
        X, rest = (_on_host(xp, M, "fractional_matrix_power", q) for q in (part, 1 - part))
        if X is None or rest is None:
            L = autodiff.logarithm(xp, _for_roots(xp, M))
            X, rest = xp.expm(part * L), xp.expm((1 - part) * L)
        singular = is_singular(xp, M) if p < 0 else None
        _report_residual(
            xp, A, "fractional power", _relative(xp, xp.matmul(X, rest) - M, M), singular
        )
        return xp.matmul(X, roots.integer_power(xp, M, down)) if down else X

    return of_matrix
