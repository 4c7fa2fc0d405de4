"""Eigenvalues and eigenvectors: all of them, some of them, the largest, the smallest."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import partial
from operator import index
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, namespace_of
from ...dispatch import Choice, Cost, check_part, function
from ...info import Info, report
from ...methods import EIGEN, SVRG, Arnoldi, Auto, Lanczos, Method, Spectral, fitting
from ...operators import Dense, KroneckerSum, LinearOperator
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL
from ...status import Status
from ..common import (
    dense,
    host_value,
    identity_like,
    ignore_float_errors,
    once_each,
    operands_in_context,
    square_size,
    to_result_dtype,
)
from .iterate import iterative_pairs
from .order import automatic, combinations, is_affordable, kronecker, ordered, selection
from .order import cost as expected_cost

# What the rules of `eig` share: what was asked for, and the pairs as they are returned.


Pairs = tuple[Array, LinearOperator]
POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


def asked(
    A: LinearOperator, k: Any, which: str, method: Any, known: bool = False
) -> tuple[int, int, bool]:
    """The size, how many pairs, and whether they are those of a self-adjoint operator; or an error.

    `known`: whether the spectrum is known, so that `Eigh()` cannot make it real.
    """
    n, k = checked(A, k, which)
    chosen = fitting("eig", method, *EIGEN)
    is_hermitian = bool(A.properties & SELF_ADJOINT) if known else is_hermitian_by(A, chosen)
    check_algebraic(which, is_hermitian)
    return n, k, is_hermitian


def finish(
    A: LinearOperator,
    values: Array,
    vectors: LinearOperator,
    k: int,
    which: str,
    is_hermitian: bool,
) -> Pairs:
    """The pairs that were asked for, out of these."""
    xp = A.xp
    values = xp.broadcast_to(typed(xp, values, is_hermitian), (*A.batch_shape, values.shape[-1]))
    return ordered(xp, values, vectors, k, which, is_hermitian)


def typed(xp: Any, values: Array, is_hermitian: bool) -> Array:
    """Real eigenvalues for self-adjoint operators, complex ones for others."""
    return xp.real(values) if is_hermitian else xp.astype(values, xp.complex_dtype(values.dtype))


def with_zeros(xp: Any, values: Array, count: int) -> Array:
    return xp.concat(
        [
            values,
            xp.zeros((*values.shape[:-1], count), dtype=values.dtype, device=xp.device_of(values)),
        ],
        axis=-1,
    )


def filled(A: LinearOperator, c: float, count: int, batch: tuple[int, ...] = ()) -> Array:
    return A.xp.full((*batch, count), c, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def is_real(c: Any) -> bool:
    """Whether a scalar is real, by its type or, where it can be seen, by its value."""
    xp = namespace_of(c)
    if xp is None or not xp.is_complex(c):
        return not isinstance(c, complex) or c.imag == 0
    values = xp.peek(c)
    return values is not None and bool((np.imag(values) == 0).all())


def not_empty(A: LinearOperator) -> bool:
    """Whether A has rows."""
    return 0 not in A.shape


WHICH = ("LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI")
NEED = ("eigenvalues", "Use svd(A).")
PARALLEL = "A is defective, or close to it: some eigenvectors are almost parallel"


def eigenpairs(
    A: LinearOperator, k: int | None = None, which: str = "LM", method: Method | None = None
) -> Choice:
    """Eigenvalues and right eigenvectors, A V = V diag(values).

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    k : int, optional
        How many; all n if not given.
    which : {"LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI"}
        Which, and in which order: largest or smallest magnitude, algebraic value (self-adjoint A
        only), real part, or magnitude of the imaginary part (not for self-adjoint A).
    method : Auto, Eigh, Eig, Lanczos, Arnoldi, LOBPCG or PowerIteration, optional
        `Auto` iterates for few pairs of large operators: Lanczos if A is self-adjoint, else
        Arnoldi; and forms the matrix otherwise. With an A that is known to be self-adjoint, `Eig`
        does as `Eigh`, and `Arnoldi` as `Lanczos`.

    Returns
    -------
    values : array, (*batch, k)
        Of a self-adjoint A real, and ascending whatever `which` is. Otherwise complex, in the order
        of `which`; where that ties, to rounding, the larger real part comes first, then the larger
        imaginary part.
    vectors : LinearOperator, (*batch, n, k)
        Columns of norm 1, orthonormal for self-adjoint A.

    Notes
    -----
    About 9 n^3 flops for self-adjoint A, 25 n^3 for others; by iteration some hundred products with
    A, as a rule, and 3 k + 20 vectors. Pairs nearest to zero ("SM", and "SA" of positive A), or to
    the `shift` of a method, are found through the inverse where structure makes that cheap; else,
    of a self-adjoint A, by polynomials of it, and of another A only from its matrix.

    `info.residual` is |A v - λ v| / |A| for each pair. A defective A has too few eigenvectors, so
    some are found almost parallel, with eigenvalues right to a root of the accuracy only: then the
    status is INACCURATE. Structured operators cost what their parts do, and k pairs of a Kronecker
    product need k of each factor; circulants, periodic convolutions and permutations have Fourier's
    eigenvectors, which are complex also where A is symmetric. Tridiagonal ones cost O(n^2), and n
    log n, by sine transforms, where their diagonals are constant.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> values, vectors = co.eig(co.SelfAdjoint(np.array([[2.0, 1.0], [1.0, 2.0]])))
    >>> values.round(12)
    array([1., 3.])
    """
    n, k = checked(A, k, which)
    chosen: Any = fitting("eig", method, *EIGEN)
    is_hermitian = is_hermitian_by(A, chosen)
    chosen = _fitted(chosen, is_hermitian)
    check_algebraic(which, is_hermitian)
    like, is_free, iteration = partial(pairs_like, A, k), isinstance(chosen, Auto), None
    if 0 not in (k, *A.shape):
        iteration = automatic(A, k, which, chosen, is_hermitian) if is_free else chosen
        iteration = iteration if isinstance(iteration, (Spectral, SVRG)) else None
    run = lambda: _dense_pairs(A, n, k, which, chosen, is_hermitian)
    if iteration is not None:
        otherwise = run if is_free and is_affordable(A) else None
        why = "a few eigenvalues of a large operator" if is_free else "asked for"
        iterate = lambda: iterative_pairs(A, k, which, iteration, is_hermitian, otherwise)
        return Choice(iterate, iteration.name, lambda: expected_cost(A, k, iteration), why, like)
    cost = lambda: Cost(
        (9.0 if is_hermitian else 25.0) * n * math.prod(A.shape), 16.0 * math.prod(A.shape)
    )
    why = f"A is {'' if is_hermitian else 'not '}known to be self-adjoint"
    return Choice(run, "Eigh" if is_hermitian else "Eig", cost, why, like)


def _dense_pairs(
    A: LinearOperator, n: int, k: int, which: str, chosen: Method, is_hermitian: bool
) -> tuple[Array, LinearOperator]:
    xp, M = A.xp, dense(A)
    if 0 in M.shape:
        dtype = A.dtype if is_hermitian else xp.complex_dtype(A.dtype)
        zeros = xp.zeros((*A.batch_shape, n, k), dtype=dtype, device=A._context.device)
        return xp.zeros(
            (*A.batch_shape, k),
            dtype=xp.real_dtype(dtype) if is_hermitian else dtype,
            device=A._context.device,
        ), Dense(zeros)
    values, V = (autodiff.eigh if is_hermitian else autodiff.eig)(xp, M)
    order = selection(xp, xp.stop_gradient(values), k, which, is_hermitian)
    with ignore_float_errors(xp):
        sensitivity = None if is_hermitian else sensitivity_of(xp, xp.stop_gradient(V))
    if order is not None:
        values, V = xp.take_along_axis(values, order, axis=-1), _columns(xp, V, order)
        sensitivity = (
            None if sensitivity is None else xp.take_along_axis(sensitivity, order, axis=-1)
        )
    with ignore_float_errors(xp):
        held, at, along = (xp.stop_gradient(x) for x in (M, values, V))
        report_pairs(xp, held, at, along, sensitivity, chosen, "Eigh" if is_hermitian else "Eig", A)
    vectors = Dense(to_result_dtype(xp, V, A.dtype))
    return to_result_dtype(xp, values, A.dtype), vectors._claim(
        STIEFEL
    ) if is_hermitian else vectors


def is_hermitian_by(A: LinearOperator, method: Method) -> bool:
    """Whether the eigenvalues are those of a self-adjoint operator: by what is known of A, or by
    what the method is for."""
    check_part(A, method)
    if isinstance(method, Arnoldi) and complex(method.shift or 0).imag:
        return False  # nearest to a number that no inverse of a self-adjoint operator belongs to
    return bool(A.properties & SELF_ADJOINT or method.needs & SELF_ADJOINT)


def _fitted(method: Method, is_hermitian: bool) -> Method:
    """The method that gives real pairs of a self-adjoint A: Arnoldi with such an A is Lanczos."""
    if is_hermitian and isinstance(method, Arnoldi):
        return Lanczos(**{f.name: getattr(method, f.name) for f in fields(method)})
    return method


def checked(A: LinearOperator, k: Any, which: Any) -> tuple[int, int]:
    """The size and how many to find, or an error."""
    n = square_size("eig", A, *NEED)
    if which not in WHICH:
        raise ValueError(
            f"eig: which is {which!r}; it must be one of {', '.join(map(repr, WHICH))}."
        )
    if k is None:
        return n, n
    try:
        count = index(k)
    except TypeError:
        raise ValueError(f"eig: k is {k!r}; it must be a whole number.") from None
    if not 0 <= count <= n:
        raise ValueError(f"eig: k is {count}; an operator of {n}x{n} has {n} eigenvalues.")
    return n, count


def check_algebraic(which: str, is_hermitian: bool) -> None:
    if which in ("LA", "SA") and not is_hermitian:
        raise ValueError(
            f"eig: which={which!r} orders real eigenvalues, and A is not known to be self-adjoint. "
            f"Annotate it, SelfAdjoint(A), or use which={which[0] + 'R'!r}."
        )
    if which in ("LI", "SI") and is_hermitian:
        raise ValueError(
            f"eig: which={which!r} orders by imaginary parts, and a self-adjoint A has real "
            "eigenvalues. "
            f"Use one of 'LM', 'SM', 'LA', 'SA'."
        )


def _columns(xp: Any, V: Array, order: Array) -> Array:
    return xp.take_along_axis(
        V, xp.broadcast_to(order[..., None, :], (*V.shape[:-1], order.shape[-1])), axis=-1
    )


def sensitivity_of(xp: Any, V: Array) -> Array:
    """How much each eigenvalue moves with A: |y| |x| / |y^H x|, from the rows y^H of V^-1 (Golub
    and Van Loan, 7.2.2)."""
    same = xp.eye(V.shape[-1], dtype=V.dtype, device=xp.device_of(V))
    return xp.vector_norm(xp.lu_solve(*xp.lu_factor(V), xp.broadcast_to(same, V.shape)), axis=-1)


def report_pairs(
    xp: Any,
    M: Array,
    values: Array,
    V: Array,
    sensitivity: Any,
    method: Method,
    name: str,
    A: LinearOperator,
) -> None:
    """How well A v = λ v, and whether the eigenvectors are a basis."""
    size = xp.vector_norm(M, axis=(-2, -1))[..., None]
    finite = xp.all(xp.isfinite(M), axis=(-2, -1))[..., None]
    judge_pairs(
        xp, xp.matmul(M, V) - V * values[..., None, :], size, finite, sensitivity, method, name, A
    )


def judge_pairs(
    xp: Any,
    R: Array,
    size: Array,
    finite: Array,
    sensitivity: Any,
    method: Method,
    name: str,
    A: LinearOperator,
) -> None:
    """Report on eigenpairs by their residuals R = A V - V Λ, the norm of A and how sensitive
    they are."""
    residual = xp.vector_norm(R, axis=-2) / xp.where(size == 0, 1, size)
    tol = method.tolerance(xp, A.dtype)
    right, message = residual <= tol, ""
    if sensitivity is not None:
        basis = sensitivity * math.sqrt(xp.eps(R.dtype)) < 1
        right = xp.logical_and(right, basis)
        visible = host_value(xp, basis)
        if visible is not None and not visible.all():
            message = PARALLEL
    elif (visible := host_value(xp, right)) is not None and not visible.all():
        message = f"A is not {'unitary' if name == 'Schur' else 'self-adjoint'}, as was claimed"
    status = xp.where(right, int(Status.SUCCESS), int(Status.INACCURATE))
    status = xp.where(finite, status, int(Status.NONFINITE))
    if (visible := host_value(xp, status)) is not None:
        status = Status(int(visible.max(initial=0)))
        message = "" if status is Status.NONFINITE else message
    report(Info(status, residual=residual, method=name, message=message))


def pairs_like(A: LinearOperator, k: int) -> tuple[Array, LinearOperator]:
    """Ones and columns of the identity: of the shapes of k eigenvalues and eigenvectors."""
    n, I = A.shape[-1], identity_like(A)
    return A.xp.ones(
        (*A.batch_shape, k), dtype=A.dtype, device=A._context.device
    ), I if k == n else I[:, :k]._claim(STIEFEL)


eig = function("eig", base=eigenpairs)


# --------------------------------------------------------------------------------------------------


def factors_self_adjoint(A: LinearOperator) -> bool:
    """Whether every factor is self-adjoint."""
    return all(factor.properties & SELF_ADJOINT for factor in A.operands)


def spectrum_by_factors(A: Any) -> tuple[Array, LinearOperator]:
    """Eigenvalues and eigenvectors of a Kronecker product or sum of self-adjoint factors, in the
    order that the factors give them."""
    pairs = once_each(eig, operands_in_context(A))
    values, _ = combinations(
        A.xp, [values for values, _ in pairs], isinstance(A, KroneckerSum), lambda values: None
    )
    return values, kronecker([vectors for _, vectors in pairs])


# --------------------------------------------------------------------------------------------------


def _extreme(
    A: LinearOperator, vector: bool, method: Method | None, largest: bool, name: str
) -> Any:
    n = square_size(name, A, *NEED)
    if n == 0:
        raise ValueError(f"{name}: A is 0x0 and has no eigenvalues.")
    letter = "A" if is_hermitian_by(A, fitting(name, method, *EIGEN)) else "M"
    values, vectors = eig(A, 1, ("L" if largest else "S") + letter, method)
    return (values[..., 0], vectors.to_dense()[..., 0]) if vector else values[..., 0]


def largest_eigenvalue(
    A: LinearOperator, vector: bool = False, method: Method | None = None
) -> Any:
    """The largest eigenvalue: algebraically if A is self-adjoint, else by magnitude.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    vector : bool
        Whether to return the pair (value, vector).
    method : optional
        As for `eig`.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.eigmax(co.Diagonal([1.0, -3.0])))
    1.0
    """
    return _extreme(A, vector, method, True, "eigmax")


def smallest_eigenvalue(
    A: LinearOperator, vector: bool = False, method: Method | None = None
) -> Any:
    """The smallest eigenvalue: algebraically if A is self-adjoint, else by magnitude.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    vector : bool
        Whether to return the pair (value, vector).
    method : optional
        As for `eig`.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.eigmin(co.Diagonal([1.0, -3.0])))
    -3.0
    """
    return _extreme(A, vector, method, False, "eigmin")


def _of_one_pair(*arguments: Any) -> bool:
    return True


eigmax = function(
    "eigmax", base=largest_eigenvalue, forwards=True, rewrites=False, one_column=_of_one_pair
)
eigmin = function(
    "eigmin", base=smallest_eigenvalue, forwards=True, rewrites=False, one_column=_of_one_pair
)
