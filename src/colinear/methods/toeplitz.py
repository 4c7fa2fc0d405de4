"""The first and the last column of the inverse of a Toeplitz matrix, which give all of it (Gohberg
and Semencul 1972).

Small ones by Levinson's recursion, O(n^2); large ones by Krylov methods on products by fast Fourier
transforms, preconditioned with the circulant matrix nearest to T in the Frobenius norm (T. Chan
1988): O(n log n) where few iterations do. Where they fail to converge, Levinson's recursion again:
it needs O(n) memory only. All on the host, in double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LEVINSON = 1024  # rows up to which the recursion is the faster one


MOST_ITERATIONS = 400


TOLERANCE = 1e-13  # of the residual: what is left is removed by the refinement of the solutions


def columns_of_inverse(col: Any, row: Any) -> tuple[Any, Any, float]:
    """T^-1 e_1, T^-1 e_n and the larger of their residuals, for the T with this first column and
    row; NaN where all failed."""
    hermitian = _is_hermitian(col, row)
    x, first = _first_column(col, row, hermitian)
    if hermitian:
        return x, np.conj(x[::-1]), first
    # T^-1 e_n = J T^-T e_1, since J T J = T^T for the exchange J.
    y, last = _first_column(
        np.concatenate([col[:1], row[1:]]), np.concatenate([row[:1], col[1:]]), False
    )
    return x, y[::-1], max(first, last)


def solve_by_iterations(
    col: Any, row: Any, b: Any, goal: float, most: float, dtype: Any
) -> tuple[Any, float] | None:
    """T^-1 b for one vector, rounded to this dtype, and its relative residual then; None if that is
    more than `most`."""
    size = np.linalg.norm(b)
    if size == 0 or not np.isfinite(size):
        return None
    hermitian = _is_hermitian(col, row)
    multiply = _multiplication(col, row, hermitian)
    x = _krylov(col, row, b, multiply, hermitian, goal)
    if x is None:
        return None
    x = x.astype(dtype, copy=False)
    residual = float(np.linalg.norm(b - multiply(x)) / size)
    return (x, residual) if residual <= most else None


def _is_hermitian(col: Any, row: Any) -> bool:
    return bool(np.array_equal(row[1:], np.conj(col[1:])) and np.imag(col[0]) == 0)


def _first_column(col: Any, row: Any, hermitian: bool) -> tuple[Any, float]:
    n = len(col)
    multiply = _multiplication(col, row, hermitian)
    e = np.zeros(n, col.dtype)
    e[0] = 1
    attempts = [_levinson] if n <= LEVINSON else [_krylov, _levinson]
    best, least = np.full(n, np.nan, col.dtype), np.inf
    for attempt in attempts:
        x = attempt(col, row, e, multiply, hermitian)
        residual = np.linalg.norm(e - multiply(x)) if x is not None else np.inf
        if residual < least:
            best, least = x, float(residual)
        if least < np.sqrt(TOLERANCE):
            break
    return best, least


def _levinson(col: Any, row: Any, e: Any, multiply: Any, hermitian: bool) -> Any:
    from scipy.linalg import LinAlgError, solve_toeplitz

    try:
        with np.errstate(all="ignore"):
            x = solve_toeplitz((col, row), e)
    except (LinAlgError, ValueError):  # a leading minor is singular, though T may not be; or NaN
        return None
    return x if np.isfinite(x).all() else None


def _krylov(
    col: Any, row: Any, e: Any, multiply: Any, hermitian: bool, tol: float = TOLERANCE
) -> Any:
    from scipy.sparse.linalg import LinearOperator, cg, gmres

    n = len(col)
    A = LinearOperator((n, n), matvec=multiply, dtype=col.dtype)
    M = LinearOperator((n, n), matvec=_circulant_inverse(col, row, hermitian), dtype=col.dtype)
    with np.errstate(all="ignore"):
        if hermitian:
            x, _ = cg(A, e, rtol=tol, maxiter=MOST_ITERATIONS, M=M)
        else:
            x, _ = gmres(A, e, rtol=tol, restart=50, maxiter=MOST_ITERATIONS // 50, M=M)
    return x if np.isfinite(x).all() else None


def _multiplication(col: Any, row: Any, hermitian: bool) -> Any:
    """x -> T x."""
    from scipy import fft

    n = len(col)
    length = fft.next_fast_len(2 * n - 1, real=not np.iscomplexobj(col))
    circulant = np.concatenate([col, np.zeros(length - 2 * n + 1, col.dtype), row[:0:-1]])
    if np.iscomplexobj(col):
        symbol = fft.fft(circulant)
        return lambda x: fft.ifft(symbol * fft.fft(x, length))[:n]
    symbol = fft.rfft(circulant)
    if hermitian:
        symbol = symbol.real  # but for rounding, and quicker to multiply by
    return lambda x: _filtered(x, symbol, length)[:n]


def _filtered(x: Any, symbol: Any, length: int) -> Any:
    """F^-1 (symbol * F x) of a real x, padded to this length, in place as far as that goes."""
    from scipy import fft

    transform = fft.rfft(x, length)
    transform *= symbol
    return fft.irfft(transform, length, overwrite_x=True)


def _circulant_inverse(col: Any, row: Any, positive: bool) -> Any:
    """x -> C^-1 x with c_k = ((n - k) t_k + k t_{k-n}) / n; eigenvalues near zero are moved away
    from it."""
    from scipy import fft

    n = len(col)
    k = np.arange(n)
    c = ((n - k) * col + k * np.concatenate([col[:1], row[:0:-1]])) / n
    real = not np.iscomplexobj(col)
    symbol = fft.rfft(c) if real else fft.fft(c)
    size = np.abs(symbol)
    least = 1e-13 * size.max()
    inverse = 1 / (np.maximum(size, least) if positive else np.where(size > least, symbol, least))
    if real:
        return lambda x: _filtered(x, inverse, n)
    return lambda x: fft.ifft(fft.fft(x) * inverse)
