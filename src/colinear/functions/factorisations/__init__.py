"""Factorisations whose factors are operators: A = L L^H, A = P L U, A = Q R."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...dispatch import Choice, function
from ...factors.dense import reproduces, times_adjoint
from ...methods import LU, QR, Cholesky, Method, fitting
from ...operators import Dense, LinearOperator, Permutation, Triangular
from ...properties import Stiefel
from ...status import Status
from ..common import (
    dense,
    identity_like,
    ignore_float_errors,
    is_square,
    report_failure,
    report_finite,
    square_size,
    to_result_dtype,
)
from ..orthonormal import qr_of_columns
from ..solve.cost import matrix_cost

# --------------------------------------------------------------------------------------------------


def cholesky_factor(A: LinearOperator, method: Method | None = None) -> Choice:
    """The Cholesky factor of a positive definite operator: the lower triangular L with positive
    diagonal and A = L L^H.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        If it is not positive definite, L is NaN and the status NOT_POSITIVE_DEFINITE.
    method : Auto or Cholesky, optional

    Returns
    -------
    Triangular
        Or an operator of A's structure that is lower triangular: a Diagonal, a Kronecker product of
        triangles, two diagonals, a Sparse matrix.

    Notes
    -----
    n^3 / 3 flops. Rows stay in their order, so of a sparse A the factor fills in where that order
    is a bad one: `solve` and `logdet` choose their own.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]])).to_dense()
    array([[2., 0.],
           [1., 2.]])
    """
    square_size("cholesky", A, "a Cholesky factorisation", "Use qr(A).")
    fitting("cholesky", method, Cholesky)
    return _chosen("Cholesky", 1 / 3, A, "A = L L^H", _cholesky, partial(identity_like, A))


def _chosen(
    name: str,
    flops: float,
    A: LinearOperator,
    identity: str,
    run: Callable[[Any], Any],
    like: Callable[[], Any],
) -> Choice:
    """The choice of the one factorisation that there is."""
    cost = matrix_cost(A, flops, 16.0 if name == "QR" else 8.0)
    return Choice(lambda: run(A), name, cost, identity, like)


def _cholesky(A: LinearOperator) -> LinearOperator:
    xp, M = A.xp, dense(A)
    L, ok = xp.cholesky(M)
    if A.shape[-1]:
        with ignore_float_errors(xp):
            ok = ok & reproduces(xp, M, times_adjoint(xp, L))
            finite = xp.all(xp.isfinite(M), axis=(-2, -1)), Status.NONFINITE
        report_failure(xp, finite, (ok, Status.NOT_POSITIVE_DEFINITE), method="Cholesky")
    return Triangular(to_result_dtype(xp, L, A.dtype), lower=True)


cholesky = function(
    "cholesky",
    base=cholesky_factor,
    suits=lambda A, method: True,  # there is one method only: to name it says no more
)


# --------------------------------------------------------------------------------------------------


def lu_factors(A: LinearOperator, method: Method | None = None) -> Choice:
    """The factors of A = P L U: a permutation, a lower triangle of unit diagonal, an upper
    triangle.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
        A singular one is factored too: U has zeros on its diagonal.
    method : Auto or LU, optional

    Returns
    -------
    P : Permutation, (*batch, m, m)
    L : Triangular, (*batch, m, min(m, n))
    U : Triangular, (*batch, min(m, n), n)
        Of a structured A operators of its structure (a Kronecker product of permutations, a
        Diagonal, the identity).

    Notes
    -----
    2 n^3 / 3 flops, with partial pivoting; in structured operators it is the parts that are
    pivoted.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> P, L, U = co.lu(np.array([[1.0, 2.0], [2.0, 0.0]]))
    >>> U.to_dense()
    array([[2., 0.],
           [0., 2.]])
    """
    fitting("lu", method, LU)
    return _chosen("LU", 2 / 3, A, "A = P L U", _lu, partial(lu_like, A))


def _lu(A: LinearOperator) -> tuple[LinearOperator, LinearOperator, LinearOperator]:
    xp, M = A.xp, dense(A)
    m, n = A.shape[-2:]
    packed, pivots = xp.lu_factor(M)
    order = xp.lu_permutation(pivots, m)
    report_finite(xp, packed, method="LU")
    packed, k = to_result_dtype(xp, packed, A.dtype), min(m, n)
    P = Permutation(order, like=Dense(packed)).T  # A[order] = L U
    L = Triangular(packed[..., :k], lower=True, unit=True)
    return P, L, Triangular(packed[..., :k, :], lower=False)


def lu_like(A: LinearOperator) -> tuple[LinearOperator, LinearOperator, LinearOperator]:
    """Identities of the shapes of the factors of A = P L U."""
    return identity_like(A, A.shape[-2]), *qr_like(A)


lu = function("lu", base=lu_factors)


# --------------------------------------------------------------------------------------------------


def qr_factors(A: LinearOperator, method: Method | None = None) -> Choice:
    """The factors of A = Q R: orthonormal columns, and an upper triangle.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    method : Auto or QR, optional

    Returns
    -------
    Q : LinearOperator, (*batch, m, min(m, n))
    R : Triangular, or Dense where A is wide, (*batch, min(m, n), n)
        Of a structured A operators of its structure. The signs (phases) of R's diagonal are
        LAPACK's, as they come; those of a Diagonal are positive.

    Notes
    -----
    About 4 m n^2 flops for m >= n. Of a tridiagonal or banded A, Q is a chain of small unitary
    matrices and R banded: linear in n.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> Q, R = co.qr(np.array([[3.0], [4.0]]))
    >>> float(abs(R.to_dense()[0, 0]).round(12))
    5.0
    """
    fitting("qr", method, QR)
    return _chosen("QR", 4.0, A, "A = Q R", _qr, partial(qr_like, A))


def _qr(A: LinearOperator) -> tuple[LinearOperator, LinearOperator]:
    xp, M = A.xp, dense(A)
    Q, R = qr_of_columns(xp, M)
    report_finite(xp, R, method="QR")
    Q, R = (to_result_dtype(xp, x, A.dtype) for x in (Q, R))
    return Stiefel(Q), Triangular(R, lower=False) if is_square(R) else Dense(R)


def qr_like(A: LinearOperator) -> tuple[LinearOperator, LinearOperator]:
    """Identities of the shapes of the factors of A = Q R."""
    m, n = A.shape[-2:]
    I, J = identity_like(A, m), identity_like(A, n)
    return I if m <= n else I[:, :n], J if n <= m else J[:m]


qr = function("qr", base=qr_factors)
