"""Direct methods on the host for matrices of few numbers, given as NumPy arrays: eigenpairs of
tridiagonal matrices, inverses of Toeplitz matrices, and determinants of both, of bands and of
sparse matrices.

A tridiagonal matrix is symmetric and real (LAPACK, multiple relatively robust representations). The
inverse of a Toeplitz matrix is given by its first and its last column (Gohberg and Semencul 1972):
small ones by Levinson's recursion, O(n^2); large ones by Krylov methods on products by fast Fourier
transforms, preconditioned with the circulant matrix nearest to T in the Frobenius norm (T. Chan
1988): O(n log n) where few iterations do. Where they fail to converge, Levinson's recursion again:
it needs O(n) memory only. All in double precision. Determinants are (sign, log|det|).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .sparse_direct import HostFactor, SparseLU, stacked_matrix

LEVINSON = 1024  # rows up to which the recursion is the faster one
MOST_ITERATIONS = 400
TOLERANCE = 1e-13  # of the residual: what is left is removed by the refinement of the solutions
BLOCK_COLUMNS = 128  # of an inverse, found together
PROBE = 1e-8  # residual of a vector, relative, from which factors are not those of the matrix


# -------------------------------------------------------------------------------------- tridiagonal


def few_pairs(diag: Any, beside: Any, k: int, which: str) -> tuple[Any, Any]:
    """The k eigenvalues that `which` names, ascending, and their eigenvectors: O(n k), for the
    smallest magnitudes O(n^2)."""
    n = len(diag)
    if which in ("LA", "LR"):
        return all_pairs(diag, beside, n - k, n)
    if which in ("SA", "SR"):
        return all_pairs(diag, beside, 0, k)
    if which == "LM" and 2 * k < n:
        ends = ((0, k), (n - k, n))
        values = np.concatenate([tridiagonal_eigenvalues(diag, beside, *end) for end in ends])
    else:
        values = tridiagonal_eigenvalues(diag, beside)
    # The smallest magnitudes are neighbours, from a first place on; the largest stand before and
    # behind the others.
    size, count = np.abs(values), k if which == "SM" else len(values) - k
    first = int(np.argmin(np.maximum(size[: len(size) - count + 1], size[count - 1 :])))
    if which == "SM":
        return all_pairs(diag, beside, first, first + k)
    ends = ((0, first), (n - k + first, n))
    parts = [all_pairs(diag, beside, *end) for end in ends if end[0] < end[1]]
    found, vectors = zip(*parts)
    return np.concatenate(found), np.concatenate(vectors, axis=1)


def tridiagonal_eigenvalues(diag: Any, beside: Any, first: int = 0, last: Any = None) -> Any:
    """Eigenvalues, ascending, from one place to another: all of them O(n^2)."""
    from scipy.linalg import eigvalsh_tridiagonal

    return eigvalsh_tridiagonal(diag, beside, **_places(len(diag), first, last), check_finite=False)


def _places(n: int, first: int, last: int | None) -> dict[str, Any]:
    """What LAPACK is told of the places of the wanted eigenvalues."""
    last = n if last is None else last
    return {} if last - first == n else {"select": "i", "select_range": (first, last - 1)}


def all_pairs(diag: Any, beside: Any, first: int = 0, last: int | None = None) -> tuple[Any, Any]:
    """Eigenvalues, ascending, and orthonormal eigenvectors, from one place to another: all of them
    O(n^2)."""
    from scipy.linalg import eigh, eigh_tridiagonal

    if len(diag) == 1:
        return np.array(diag, copy=True), np.ones((1, 1), diag.dtype)
    places = _places(len(diag), first, last)
    try:
        return eigh_tridiagonal(diag, beside, **places, check_finite=False)
    except np.linalg.LinAlgError:  # rare, but stemr can fail
        values, vectors = eigh(np.diag(diag) + np.diag(beside, -1) + np.diag(beside, 1))
        return values[first:last], vectors[:, first:last]


# ----------------------------------------------------------------------------------------- Toeplitz


def columns_of_inverse(col: Any, row: Any) -> tuple[Any, Any, float]:
    """T^-1 e_1, T^-1 e_n and the larger of their residuals, for the T with this first column and
    row; NaN where all failed."""
    x, first = _first_column(col, row)
    if _is_hermitian(col, row):
        return x, np.conj(x[::-1]), first
    # T^-1 e_n = J T^-T e_1, since J T J = T^T for the exchange J.
    y, last = _first_column(np.append(col[:1], row[1:]), np.append(row[:1], col[1:]))
    return x, y[::-1], max(first, last)


def solve_by_iterations(
    col: Any, row: Any, b: Any, goal: float, most: float, dtype: Any
) -> tuple[Any, float] | None:
    """T^-1 b for one vector, rounded to this dtype, and its relative residual then; None if that is
    more than `most`."""
    size = np.linalg.norm(b)
    if size == 0 or not np.isfinite(size):
        return None
    x = _krylov(col, row, b, goal)
    if x is None:
        return None
    x = x.astype(dtype, copy=False)
    residual = float(np.linalg.norm(b - _multiplication(col, row)(x)) / size)
    return (x, residual) if residual <= most else None


def _is_hermitian(col: Any, row: Any) -> bool:
    return bool(np.array_equal(row[1:], np.conj(col[1:])) and np.imag(col[0]) == 0)


def _first_column(col: Any, row: Any) -> tuple[Any, float]:
    n, multiply = len(col), _multiplication(col, row)
    e = np.zeros(n, col.dtype)
    e[0] = 1
    attempts = [_levinson] if n <= LEVINSON else [_krylov, _levinson]
    best, least = np.full(n, np.nan, col.dtype), np.inf
    for attempt in attempts:
        x = attempt(col, row, e)
        residual = np.linalg.norm(e - multiply(x)) if x is not None else np.inf
        if residual < least:
            best, least = x, float(residual)
        if least < np.sqrt(TOLERANCE):
            break
    return best, least


def _levinson(col: Any, row: Any, e: Any) -> Any:
    from scipy.linalg import LinAlgError, solve_toeplitz

    try:
        with np.errstate(all="ignore"):
            x = solve_toeplitz((col, row), e)
    except (LinAlgError, ValueError):  # a leading minor is singular, though T may not be; or NaN
        return None
    return x if np.isfinite(x).all() else None


def _krylov(col: Any, row: Any, e: Any, tol: float = TOLERANCE) -> Any:
    from scipy.sparse.linalg import LinearOperator, cg, gmres

    n, hermitian = len(col), _is_hermitian(col, row)
    A = LinearOperator((n, n), matvec=_multiplication(col, row), dtype=col.dtype)
    M = LinearOperator((n, n), matvec=_circulant_inverse(col, row, hermitian), dtype=col.dtype)
    with np.errstate(all="ignore"):
        if hermitian:
            x, _ = cg(A, e, rtol=tol, maxiter=MOST_ITERATIONS, M=M)
        else:
            x, _ = gmres(A, e, rtol=tol, restart=50, maxiter=MOST_ITERATIONS // 50, M=M)
    return x if np.isfinite(x).all() else None


def _multiplication(col: Any, row: Any) -> Any:
    """x -> T x."""
    from scipy import fft

    n, is_real = len(col), not np.iscomplexobj(col)
    length = fft.next_fast_len(2 * n - 1, real=is_real)
    circulant = np.concatenate([col, np.zeros(length - 2 * n + 1, col.dtype), row[:0:-1]])
    symbol = _symbol(circulant)
    if is_real and _is_hermitian(col, row):
        symbol = symbol.real  # but for rounding, and quicker to multiply by
    times = _filter(symbol, length, is_real)
    return lambda x: times(x)[:n]


def _symbol(c: Any) -> Any:
    """The eigenvalues of a circulant matrix with this first column; of a real one half of them."""
    from scipy import fft

    return fft.fft(c) if np.iscomplexobj(c) else fft.rfft(c)


def _filter(symbol: Any, length: int, is_real: bool) -> Any:
    """x -> F^-1 (symbol * F x), padded to this length, in place as far as that goes."""
    from scipy import fft

    forward, back = (fft.rfft, fft.irfft) if is_real else (fft.fft, fft.ifft)

    def times(x: Any) -> Any:
        transform = forward(x, length)
        transform *= symbol
        return back(transform, length, overwrite_x=True)

    return times


def _circulant_inverse(col: Any, row: Any, positive: bool) -> Any:
    """x -> C^-1 x with c_k = ((n - k) t_k + k t_{k-n}) / n; eigenvalues near zero are moved away
    from it."""
    n = len(col)
    k = np.arange(n)
    symbol = _symbol(((n - k) * col + k * np.concatenate([col[:1], row[:0:-1]])) / n)
    size = np.abs(symbol)
    least = 1e-13 * size.max()
    inverse = 1 / (np.maximum(size, least) if positive else np.where(size > least, symbol, least))
    return _filter(inverse, n, not np.iscomplexobj(col))


# ------------------------------------------------------------------------------------ determinants


def of_pivots(pivots: Any, sign: Any = 1) -> tuple[Any, Any]:
    """The sign and the logarithm of the product of pivots, along the last axis, times a sign."""
    is_real = not np.iscomplexobj(pivots)
    if is_real and np.min(pivots) > 0:
        return sign, np.sum(np.log(pivots), axis=-1, dtype=np.float64)
    size = np.abs(pivots)
    with np.errstate(all="ignore"):
        logarithm = np.sum(np.log(size), axis=-1, dtype=np.float64)
        phase = _parity(pivots < 0) if is_real else np.prod(pivots / size, axis=-1)
        return np.where(size.all(axis=-1), sign * phase, 0), logarithm


def _parity(flags: Any) -> Any:
    """1 or -1: whether an even or an odd number of flags is set, along the last axis."""
    return 1 - 2 * (np.count_nonzero(flags, axis=-1) % 2)


def parity(perm: Any) -> int:
    """The sign of a permutation."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n = len(perm)
    if not n:
        return 1
    graph = csr_array((np.ones(n), perm, np.arange(n + 1)), shape=(n, n))
    return 1 - 2 * int((n - connected_components(graph)[0]) % 2)


def _lapack(name: str, *arrays: Any) -> Any:
    from scipy.linalg import get_lapack_funcs

    return get_lapack_funcs((name,), arrays)[0]


# A batch of these is one long matrix, whose parts are not coupled: LAPACK is called once.


def tridiagonal_slogdet(lower: Any, diag: Any, upper: Any) -> tuple[Any, Any]:
    """By LU with partial pivoting along three diagonals of (count, n) matrices, 10 n flops each; in
    double precision, since what a pivot is off by counts n times."""
    bands = (lower, diag, upper)
    if diag.size < 3:  # LAPACK's wrapper refuses empty diagonals
        return banded_slogdet(bands, (-1, 0, 1), diag.shape[-1])
    dtype = np.result_type(*bands, np.float64)

    def joined(x: Any) -> Any:
        if len(diag) == 1:
            return x[0].astype(dtype, copy=False)
        long = np.zeros(diag.shape, dtype)
        long[:, : x.shape[-1]] = x
        return long.reshape(-1)[: None if x is diag else -1]

    _, pivots, _, _, swaps, _ = _lapack("gttrf", np.empty(0, dtype))(*map(joined, bands))
    # row i, counted from 1, was swapped with i or i + 1
    exchanged = swaps != np.arange(1, swaps.size + 1)
    return of_pivots(pivots.reshape(diag.shape), _parity(exchanged.reshape(diag.shape)))


def banded_slogdet(diagonals: Any, offsets: tuple[int, ...], n: int) -> tuple[Any, Any]:
    """By LU with partial pivoting within the band, diagonals of (count, length): O(n l (l + u))
    each, in double precision."""
    count, below, above = len(diagonals[0]), max(0, -min(offsets)), max(0, *offsets)
    ab = np.zeros((2 * below + above + 1, count, n), np.result_type(np.float64, *diagonals))
    for d, k in zip(diagonals, offsets, strict=True):
        ab[below + above - k, :, max(k, 0) : max(k, 0) + d.shape[-1]] = d
    factors, swaps, _ = _lapack("gbtrf", ab)(ab.reshape(len(ab), -1), below, above)
    exchanged = (swaps != np.arange(swaps.size)).reshape(count, n)
    return of_pivots(factors[below + above].reshape(count, n), _parity(exchanged))


def sparse_slogdet(data: Any, structure: Any, positive: bool) -> tuple[Any, Any]:
    """By SuperLU; of a positive definite matrix with pivots on the diagonal, which keeps the
    factors sparser."""
    if not np.isfinite(data).all():
        return np.nan, np.nan
    if structure.is_triangular:
        S = stacked_matrix(data, structure.indptr, structure.columns)
        return of_pivots(S.diagonal())
    lu = sparse_factors(data, structure, positive)
    if lu is None:
        return 0.0, -np.inf
    factors = lu.factors
    return of_pivots(factors.U.diagonal(), parity(factors.perm_r) * parity(factors.perm_c))


def sparse_inverse_entries(data: Any, structure: Any, positive: bool) -> Any:
    """(A^-1)_ji for each entry a_ij of a sparse matrix, by solves with blocks of columns; NaN if A
    is singular."""
    found = np.full(structure.nnz, np.nan, np.result_type(data, np.float64))
    lu = sparse_factors(data, structure, positive) if np.isfinite(data).all() else None
    if lu is None:
        return found
    n, starts = structure.shape[0], structure.indptr
    for first in range(0, n, BLOCK_COLUMNS):
        last = min(first + BLOCK_COLUMNS, n)
        block = np.zeros((n, last - first), found.dtype)
        block[np.arange(first, last), np.arange(last - first)] = 1
        entries = slice(starts[first], starts[last])
        rows, columns = structure.rows[entries], structure.columns[entries]
        found[entries] = lu.solve_columns(block, "N")[columns, rows - first]
    return found


def solve_sparse(X: Any, form: str, data: Any, structure: Any, positive: bool) -> Any:
    """A^-1 X, or what `form` says, for X (*batch, n, k) and the values of A, (*batch, nnz), that come
    with each call, as from a program; NaN where A is singular.

    The factors of the last matrix stay with its pattern: a program that asks twice makes them once.
    """
    batch, place = data.shape[:-1], ("latest", positive)
    if batch:
        batch = np.broadcast_shapes(batch, X.shape[:-2])
        values = np.broadcast_to(data, (*batch, data.shape[-1])).reshape(-1, data.shape[-1])
        blocks = np.broadcast_to(X, (*batch, *X.shape[-2:])).reshape(-1, *X.shape[-2:])
        solved = [
            solve_sparse(*each, structure, positive)
            for each in zip(blocks, [form] * len(blocks), values, strict=True)
        ]
        return np.reshape(solved, (*batch, *X.shape[-2:]))
    known, lu = structure.memo.get(place, (None, None))
    if known is None or not np.array_equal(known, data):
        is_symmetric = positive or structure.is_symmetric
        lu = None
        if np.isfinite(data).all():
            lu = sparse_factors(data, structure, positive, is_symmetric)
        structure.memo[place] = data.copy(), lu
    return np.full_like(X, np.nan) if lu is None else lu.solve(X, form)


def sparse_factors(
    data: Any, structure: Any, positive: bool, symmetric: bool = False
) -> SparseLU | None:
    """The factors in double precision; None if the matrix is singular.

    With a symmetric pattern pivots may stay on the diagonal, and do unless a probe shows that they
    should not.
    """
    wide = data.astype(np.result_type(data, np.float64))
    try:
        lu = SparseLU(wide, structure.indptr, structure.columns, positive, symmetric)
    except ArithmeticError:  # exactly singular
        return sparse_factors(data, structure, False) if symmetric else None
    if positive or symmetric:
        S = stacked_matrix(wide, structure.indptr, structure.columns)
        p = np.cos(np.arange(structure.shape[0]))
        x = lu.factors.solve(p.astype(wide.dtype))
        size = np.linalg.norm(p) + np.abs(wide).max() * np.linalg.norm(x)
        if not np.linalg.norm(S @ x - p) <= PROBE * size:
            return sparse_factors(data, structure, False)  # not positive definite after all
    return lu


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
    G, B = np.zeros((2, n), complex), np.zeros((2, n), complex)  # G^T and B
    G[0, 0], B[1, -1] = 1, 1
    B[0, :-1] = t[:0:-1] - upper[1:]
    G[1, 1:] = upper[:0:-1] + t[1:]
    G[1, 0] = 2 * t[0]
    G = np.fft.fft(G, axis=1, norm="ortho")
    B = np.fft.ifft(B * np.exp(1j * np.pi * np.arange(n) / n), axis=1, norm="ortho")
    s = np.exp(-2j * np.pi * np.arange(n) / n)
    t = np.exp(-1j * np.pi * (2 * np.arange(n) + 1) / n)
    before = np.abs(G).max() * np.abs(B).max()
    pivots, sign, growth = np.zeros(n, complex), 1, 0.0
    # No `@` inside: BLAS would start its threads for each of 2 n products of two numbers with two rows.
    for k in range(n):
        column = (B[0, k] * G[0, k:] + B[1, k] * G[1, k:]) / (s[k:] - t[k])
        place = k + int(np.argmax(np.abs(column)))
        if place != k:
            sign = -sign
            swapped, back = [k, place], [place, k]
            G[:, swapped], s[swapped] = G[:, back], s[back]
            column[0], column[place - k] = column[place - k], column[0]
        pivots[k] = pivot = column[0]
        if pivot == 0:
            break
        line = (G[0, k] * B[0, k:] + G[1, k] * B[1, k:]) / (s[k] - t[k:])
        growth = max(growth, np.abs(G[:, k]).sum() * np.abs(B[:, k]).sum())
        G[:, k + 1 :] -= column[1:] / pivot * G[:, k, None]
        B[:, k + 1 :] -= line[1:] / pivot * B[:, k, None]
    value, logarithm = of_pivots(pivots, sign)
    value = value * np.exp(-0.5j * np.pi * ((n - 1) % 4))
    return (np.sign(value.real) if real else value), logarithm, bool(growth < 1e6 * before)


# ------------------------------------------------------------------------------------------ banded


class BandedLU(HostFactor):
    """The factorisation of a banded matrix, or of a batch of them, with pivoting (LAPACK's).

    Parameters
    ----------
    data : array, (*batch, (l + u + 1) n)
        The band as LAPACK stores it, `ab[u + i - j, j] = A[i, j]`, row after row, with zeros in
        what is outside of A.
    n, l, u : int
        The size, and how many diagonals are below and above the main one.

    Raises
    ------
    ArithmeticError
        If a matrix is exactly singular.
    """

    def __init__(self, data: Any, n: int, l: int, u: int):
        data = np.asarray(data)
        self.arguments = (data, n, l, u)
        # A batch is one long matrix, whose parts are not coupled.
        ab = np.moveaxis(data.reshape(-1, l + u + 1, n), 0, 1)
        work = np.zeros((2 * l + u + 1, ab.shape[1] * n), data.dtype, order="F")
        work[l:] = ab.reshape(l + u + 1, -1)
        self.factors, self.swaps, failure = _lapack("gbtrf", work)(work, l, u, overwrite_ab=1)
        if failure:
            raise ArithmeticError("a pivot is exactly zero")

    @property
    def flops(self) -> float:
        _, n, l, u = self.arguments
        return 2.0 * n * (2 * l + u + 1)

    def solve_columns(self, B: Any, form: str) -> Any:
        _, _, l, u = self.arguments
        trans = "NTH".index(form)
        return _lapack("gbtrs", B)(self.factors, l, u, B, self.swaps, trans=trans)[0]

    def pivots(self) -> tuple[Any, list[Any]]:
        """The pivots of each matrix of a batch, (*batch, n), the first of them with the sign of all
        exchanges of rows."""
        data, n, l, u = self.arguments
        shape = (*data.shape[:-1], n)
        pivots = np.reshape(self.factors[l + u].copy(), shape)
        exchanged = np.reshape(self.swaps != np.arange(self.swaps.size), shape)
        pivots[..., 0] *= _parity(exchanged)
        return pivots, []
