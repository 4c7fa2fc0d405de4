"""Determinants by factorisations on the host, of one matrix given as NumPy arrays: (sign,
log|det|)."""

from __future__ import annotations

from typing import Any

import numpy as np


def of_pivots(pivots: Any, sign: Any = 1) -> tuple[Any, Any]:
    """The sign and the logarithm of the product of pivots, times a sign."""
    if not np.iscomplexobj(pivots) and np.min(pivots) > 0:
        return sign, np.sum(np.log(pivots), dtype=np.float64)
    size = np.abs(pivots)
    with np.errstate(all="ignore"):
        logarithm = np.sum(np.log(size), dtype=np.float64)
        if not size.all():
            return 0 * sign, logarithm
        if np.iscomplexobj(pivots):
            return sign * np.prod(pivots / size), logarithm
        return sign * (1 - 2 * (np.count_nonzero(pivots < 0) % 2)), logarithm


def parity(perm: Any) -> int:
    """The sign of a permutation."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = len(perm)
    cycles = (
        connected_components(csr_array((np.ones(n), perm, np.arange(n + 1)), shape=(n, n)))[0]
        if n
        else 0
    )
    return 1 - 2 * int((n - cycles) % 2)


def _lapack(name: str, *arrays: Any) -> Any:
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs((name,), arrays)[0]


def tridiagonal_slogdet(lower: Any, diag: Any, upper: Any) -> tuple[Any, Any]:
    """By LU with partial pivoting along three diagonals, 10 n flops."""
    if len(diag) < 3:  # LAPACK's wrapper refuses empty diagonals
        minor = diag[0] if len(diag) == 1 else diag[0] * diag[1] - lower[0] * upper[0]
        return of_pivots(np.asarray([minor]))
    dtype = np.result_type(lower, diag, upper, np.float32)
    diag = diag.astype(dtype, copy=False)
    _, pivots, _, _, swaps, _ = _lapack("gttrf", diag)(
        *(x.astype(dtype, copy=False) for x in (lower, diag, upper))
    )
    n = len(diag)
    # row i, counted from 1, was swapped with i or i + 1
    swapped = int(np.sum(swaps, dtype=np.int64)) - n * (n + 1) // 2
    return of_pivots(pivots, 1 - 2 * (swapped % 2))


def tridiagonal_eigenvalues(diag: Any, lower: Any) -> Any:
    """Of a real symmetric tridiagonal matrix: O(n^2)."""
    from scipy.linalg import eigvalsh_tridiagonal

    return eigvalsh_tridiagonal(diag, lower, check_finite=False)


def banded_slogdet(diagonals: Any, offsets: tuple[int, ...], n: int) -> tuple[Any, Any]:
    """By LU with partial pivoting within the band: O(n l (l + u))."""
    below, above = max(0, -min(offsets)), max(0, *offsets)
    ab = np.zeros((2 * below + above + 1, n), np.result_type(np.float32, *diagonals))
    for d, k in zip(diagonals, offsets, strict=True):
        ab[below + above - k, max(k, 0) : max(k, 0) + len(d)] = d
    factors, swaps, _ = _lapack("gbtrf", ab)(ab, below, above)
    return of_pivots(factors[below + above], 1 - 2 * (np.count_nonzero(swaps != np.arange(n)) % 2))


def sparse_slogdet(data: Any, structure: Any, positive: bool) -> tuple[Any, Any]:
    """By SuperLU; of a positive definite matrix with pivots on the diagonal, which keeps the
    factors sparser."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import splu

    wide = data.astype(np.complex128 if data.dtype.kind == "c" else np.float64)
    S = csr_array((wide, structure.columns, structure.indptr), shape=structure.shape).tocsc()
    if not np.isfinite(wide).all():
        return np.nan, np.nan
    if structure.is_triangular:
        return of_pivots(S.diagonal())
    try:
        if positive:
            options = {"SymmetricMode": True}
            factors = splu(S, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
            p = np.cos(np.arange(structure.shape[0]))
            x = factors.solve(p.astype(wide.dtype))
            if not np.linalg.norm(S @ x - p) <= 1e-8 * (
                np.linalg.norm(p) + np.abs(wide).max() * np.linalg.norm(x)
            ):
                factors = splu(S)  # it was not positive definite after all
        else:
            factors = splu(S)
    except RuntimeError:  # exactly singular
        return 0.0, -np.inf
    return of_pivots(factors.U.diagonal(), parity(factors.perm_r) * parity(factors.perm_c))


def toeplitz_slogdet(col: Any, row: Any) -> tuple[Any, Any, bool]:
    """By pivoted elimination of a displacement (Gohberg, Kailath and Olshevsky 1995): O(n^2),
    memory O(n).

    With the shift Z_1 and its negacyclic brother Z_-1, Z_1 T - T Z_-1 = G B has rank 2. For the
    unitary Fourier matrix F and D = diag(exp(iπ j / n)) the matrix C = F T D F^H has entries (F
    G)_k (B D F^H)_l / (s_k - t_l), as has every matrix that is left of it by elimination; rows may
    be swapped. det T = det C / det D, and det D = exp(iπ (n - 1) / 2).

    The third value tells whether the factors stayed of the size that they had, and so the accuracy.
    """
    n = len(col)
    t, real = np.asarray(col, np.complex128), np.isrealobj(col) and np.isrealobj(row)
    upper = np.asarray(row, np.complex128)
    G, B = np.zeros((n, 2), complex), np.zeros((2, n), complex)
    G[0, 0], B[1, -1] = 1, 1
    B[0, :-1] = t[:0:-1] - upper[1:]
    G[1:, 1] = upper[:0:-1] + t[1:]
    G[0, 1] = 2 * t[0]
    G = np.fft.fft(G, axis=0, norm="ortho")
    B = np.fft.ifft(B * np.exp(1j * np.pi * np.arange(n) / n), axis=1, norm="ortho")
    s = np.exp(-2j * np.pi * np.arange(n) / n)
    t = np.exp(-1j * np.pi * (2 * np.arange(n) + 1) / n)
    first, second, left, right = G[:, 0].copy(), G[:, 1].copy(), B[0].copy(), B[1].copy()
    before = np.abs(G).max() * np.abs(B).max()
    pivots, sign, growth = np.zeros(n, complex), 1, 0.0
    for k in range(n):
        column = (first[k:] * left[k] + second[k:] * right[k]) / (s[k:] - t[k])
        place = k + int(np.argmax(np.abs(column)))
        if place != k:
            sign = -sign
            for x in (first, second, s):
                x[k], x[place] = x[place], x[k]
            column[0], column[place - k] = column[place - k], column[0]
        pivots[k] = pivot = column[0]
        if pivot == 0:
            break
        line = (first[k] * left[k:] + second[k] * right[k:]) / (s[k] - t[k:])
        growth = max(growth, (abs(first[k]) + abs(second[k])) * (abs(left[k]) + abs(right[k])))
        multipliers, line = column[1:] / pivot, line[1:] / pivot
        first[k + 1 :] -= multipliers * first[k]
        second[k + 1 :] -= multipliers * second[k]
        left[k + 1 :] -= line * left[k]
        right[k + 1 :] -= line * right[k]
    value, logarithm = of_pivots(pivots, sign)
    value = value * np.exp(-0.5j * np.pi * ((n - 1) % 4))
    return (np.sign(value.real) if real else value), logarithm, bool(growth < 1e6 * before)
