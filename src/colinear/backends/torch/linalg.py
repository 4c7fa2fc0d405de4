"""Linear algebra for the torch backend: factors and triangular solves of `torch.linalg`, LAPACK
where torch has nothing.

`torch.linalg.solve`, `det` and `slogdet` are never called: their second derivatives, forward over
forward, are wrong in torch 2.13 (a term of the product rule is lost); those of the factorisations
are right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .. import shared
from .. import torch as xp
from ..numpy import control as _recurrences
from ..numpy import linalg as _numpy_linalg
from ..shared import (
    cholesky_solve,
    common,
    corner,
    eigen_solve,
    half,
    ldl_slogdet,
    lu_parity,
    of_finite,
    pivot_order,
)
from .arrays import asarray, is_on_device
from .derivatives import custom_derivative, is_differentiated
from .looks import fetch
from .programs import opaque

Array = Any


# Cholesky, LU, LDL
# -------------------------------------------------------------------------------------------------


@half
def cholesky(A: Array) -> tuple[Array, Array]:
    """Factor Hermitian A = L L^H. Returns L and ok; L is NaN where A is not positive definite."""
    L, failure = torch.linalg.cholesky_ex(A)
    # NaN and infinity stay in a sum; to ask each of them takes four more operations
    ok = (failure == 0) & (torch.diagonal(L, 0, -2, -1).real.sum(-1) < torch.inf)
    return torch.where(ok[..., None, None], L, torch.nan), ok


@half
def cholesky_or_nan(A: Array) -> Array:
    """L of Hermitian A = L L^H, NaN where A is not positive definite: what A is not asked for takes
    some launches less."""
    L, failure = torch.linalg.cholesky_ex(A)
    fill = L.masked_fill if is_differentiated(A) else L.masked_fill_
    return fill(failure[..., None, None] != 0, torch.nan)


def _cholesky_inverse_now(L: Array) -> Array:
    if is_on_device(L):
        return torch.cholesky_inverse(L)
    # 1.5 times as fast as torch's
    return torch.from_numpy(_numpy_linalg.cholesky_inverse(L.numpy(force=True)))


# A^-1 as a matrix from `cholesky(A)`: fewer flops than triangular solves for the identity
cholesky_inverse = half(
    custom_derivative(_cholesky_inverse_now, shared.cholesky_inverse_tangent, ranks=(2,))
)


@half
def lu_factor(A: Array) -> tuple[Array, Array]:
    """Factor A = P L U with partial pivoting. Returns L and U in one array, and the row swaps
    (from 0) as in LAPACK."""
    LU, pivots, _ = torch.linalg.lu_factor_ex(A)
    swaps = pivots - 1
    if not torch.compiler.is_compiling():
        swaps._of_lapack = pivots  # which saves an operation in each solve
    return LU, swaps


@half
def lu_solve(LU: Array, pivots: Array, B: Array, adjoint: bool = False) -> Array:
    """Solve A X = B or A^H X = B from `lu_factor(A)`; B is (*batch, n, k)."""
    LU, B = common(LU, B)
    given = getattr(pivots, "_of_lapack", None)
    pivots = (pivots + 1).to(torch.int32) if given is None else given
    return torch.linalg.lu_solve(LU, pivots, B, adjoint=adjoint)


def lu_permutation(pivots: Array, n: int) -> Array:
    """Turn row swaps into a permutation, A[perm] = L U."""
    if n == 0:
        return pivots.to(torch.int64)
    blank = torch.zeros((), device=pivots.device).expand(*pivots.shape[:-1], n, pivots.shape[-1])
    P, _, _ = torch.lu_unpack(blank, (pivots + 1).to(torch.int32), unpack_data=False)
    return P.argmax(-2)


has_ldl = True


@half
def ldl_factor(A: Array) -> tuple[Array, ...]:
    """Factor Hermitian A, definite or not, stably; what it returns is for `ldl_solve` and
    `ldl_slogdet`.

    LAPACK's L D L^H on the CPU; on a GPU, where torch has none for Hermitian matrices,
    eigenvectors. Constant for derivatives.
    """
    A = A.detach()
    if is_on_device(A):
        return tuple(torch.linalg.eigh(A))[::-1]
    return tuple(torch.linalg.ldl_factor_ex(A, hermitian=A.is_complex())[:2])


@half
def ldl_solve(packed: Array, pivots: Array, B: Array) -> Array:
    """Solve A X = B from `ldl_factor(A)`; B is (*batch, n, k)."""
    packed, B = common(packed, B)
    if pivots.is_floating_point():
        return eigen_solve(packed, pivots, B)
    return _packed_solve(packed, pivots, B)


def _packed_solve_now(packed: Array, pivots: Array, B: Array) -> Array:
    batch = torch.broadcast_shapes(packed.shape[:-2], B.shape[:-2])
    packed, B = packed.expand(*batch, *packed.shape[-2:]), B.expand(*batch, *B.shape[-2:])
    return torch.linalg.ldl_solve(
        packed, pivots.expand(packed.shape[:-1]), B, hermitian=packed.is_complex()
    )


# With the factors held constant; torch's own ldl_solve has no rule for vmap.
_packed_solve: Any = custom_derivative(
    _packed_solve_now,
    jvp=lambda primals, tangents, X: _packed_solve(*primals[:2], tangents[2]),
    vjp=lambda primals, X, G: (
        None,
        None,
        _sum_to(_packed_solve(*primals[:2], G), primals[2].shape),
    ),  # A = A^H
    ranks=(2, 1, 2),
)


def _sum_to(G: Array, shape: Any) -> Array:
    """Undo broadcasting: sum a cotangent to the shape of what it belongs to."""
    return G if G.shape == shape else G.sum_to_size(shape)


# orthogonal and spectral
# -------------------------------------------------------------------------------------------


@half
def qr(A: Array) -> tuple[Array, Array]:
    """Factor A = Q R, reduced."""
    return tuple(torch.linalg.qr(A))


@half
def qr_triangle(A: Array) -> Array:
    """R of A = Q R, without Q; torch has no derivative of it."""
    return torch.linalg.qr(A, "r")[1]


# numbers of a matrix on a device from which the steps of `pivot_order` take less time than LAPACK's
# on the host (a step is ten launches, whatever the size)
LARGE_PIVOTED = 2**19


@half
def qr_pivoted(A: Array) -> tuple[Array, Array, Array]:
    """Factor A[:, perm] = Q R (reduced), |diag R| falling: the rank shows.

    torch has none: the order comes from LAPACK on the host, of a large matrix on a device from
    `pivot_order`.
    """
    is_large = is_on_device(A) and A.shape[-2] * A.shape[-1] > LARGE_PIVOTED
    perm = pivot_order(xp, A.detach()) if is_large else _host_order(A.detach())
    Q, R = torch.linalg.qr(torch.take_along_dim(A, perm[..., None, :], -1))
    return Q, R, perm


# as NumPy's: of Hermitian A, eigenvalues ascending; of any square A, all complex
eigh, eigvalsh, eig, eigvals = (
    half(of_finite(getattr(torch.linalg, name))) for name in "eigh eigvalsh eig eigvals".split()
)

# The derivative L(A, .) of the exponential at A is that at A^H for cotangents. torch's own finds it
# from [A E; 0 A] too, but leaves E as it is, and loses A beside an E of 1e16 |A|.
expm: Callable = half(
    of_finite(
        custom_derivative(
            lambda A: torch.linalg.matrix_exp(A),  # a frame of this file: its waits are torch's own
            lambda primals, tangents, X: corner(expm, primals[0], tangents[0], primals[0]),
            lambda primals, X, G: (corner(expm, primals[0].mH, G, primals[0].mH),),
            (2,),
        )
    )
)


@half
@of_finite
def svd(A: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Factor A = U diag(s) V^H. Returns U, s, V^H."""
    return torch.linalg.svd(A, full_matrices=full_matrices)


# triangular and banded solves
# --------------------------------------------------------------------------------------


@half
def solve_triangular(
    A: Array,
    B: Array,
    lower: bool = True,
    unit_diagonal: bool = False,
    adjoint: bool = False,
) -> Array:
    """Solve A X = B or A^H X = B for triangular A; B is (*batch, n, k). The other
    triangle is not read."""
    A, B = common(A, B)
    if adjoint:
        A, lower = A.mH, not lower
    return torch.linalg.solve_triangular(A, B, upper=not lower, unitriangular=unit_diagonal)


# torch has no tridiagonal or banded solver, and elimination in Python costs 20 us a row: LAPACK on
# the host, from a GPU too. The derivatives of X = A^-1 B are solves with A and A^H, so they hold to
# any order:   dX = A^-1 (dB - dA X)         cotangents: G_B = A^-H G,  G_A = -G_B X^H on the
# diagonals.


def _on_host(solve: Any, *arrays: Array) -> Any:
    """`solve(*arrays)` of NumPy's arrays, an array or a tuple of them, beside the last."""
    device = arrays[-1].device
    if is_on_device(arrays[-1]):  # by one copy
        host = fetch(arrays)
    else:
        host = [x.numpy(force=True) for x in arrays]
    return shared._map(lambda x: asarray(np.ascontiguousarray(x), device=device), solve(*host))


def _by_host(
    solve: Callable,
    like: Callable,
    ranks: tuple[int, ...],
    jvp: Callable,
    vjp: Callable | None = None,
) -> Callable:
    """`solve` of NumPy's arrays as a function of tensors with these derivatives, one node of a
    compiled program; see `opaque` and `custom_derivative`."""
    return opaque(like)(
        custom_derivative(lambda *arrays: _on_host(solve, *arrays), jvp, vjp, ranks)
    )


_host_order = _by_host(
    lambda A: _numpy_linalg.qr_pivoted(A)[2],
    lambda A: A.new_empty((*A.shape[:-2], A.shape[-1]), dtype=torch.int64),
    (2,),
    lambda primals, tangents, order: torch.zeros_like(order),
)


def _banded_solver(widths: tuple[int, int]) -> Callable:
    """`solve_banded` of arrays alone."""

    def jvp(primals: tuple, tangents: tuple, X: Array) -> Array:
        dA_X = shared.banded_matmul(xp, tangents[0], widths, X)
        return solve_banded(primals[0], widths, tangents[1] - dA_X)

    def vjp(primals: tuple, X: Array, G: Array) -> tuple:
        W = solve_banded(shared.transposed(xp, primals[0].conj(), widths), widths[::-1], G)
        outer = shared.outer_in_band(xp, -W, X.conj(), widths)
        return _sum_to(outer, primals[0].shape), _sum_to(W, primals[1].shape)

    def now(ab: Array, B: Array) -> Array:
        return _on_host(lambda ab, B: _numpy_linalg.solve_banded(ab, widths, B), ab, B)

    return custom_derivative(now, jvp, vjp, (2, 2))


@half
def solve_banded(ab: Array, widths: tuple[int, int], B: Array) -> Array:
    """Solve a banded system, with pivoting: ab[..., u + i - j, j] = A[..., i, j], ab (*batch,
    l+u+1, n), B (*batch, n, k)."""
    return _banded_solver(widths)(*common(ab, B))


@opaque(lambda ab, B: torch.empty_like(ab[..., 0, :, None] * B))
def _solve_three_diagonals(ab: Array, B: Array) -> Array:
    return solve_banded(ab, (1, 1), B)


@half
def solve_tridiagonal(lower: Array, diag: Array, upper: Array, B: Array) -> Array:
    """Solve a tridiagonal system, with pivoting: diagonals (*batch, n-1), (*batch, n), (*batch,
    n-1), B (*batch, n, k)."""
    arrays = lower, diag, upper, B = common(lower, diag, upper, B)
    if not (torch.compiler.is_compiling() or is_differentiated(*arrays)):
        return _on_host(_numpy_linalg.solve_tridiagonal, *arrays)
    pad = torch.nn.functional.pad
    band = torch.broadcast_tensors(pad(upper, (1, 0)), diag, pad(lower, (0, 1)))
    return _solve_three_diagonals(torch.stack(band, -2), B)


# recurrences, on the host too
# --------------------------------------------------------------------------------------------------


def _pivots_jvp(primals: tuple, tangents: tuple, p: Array) -> Array:
    # p_i + s_(i-1) / p_(i-1) = d_i:  dp_i - (s / p^2)_(i-1) dp_(i-1) = dd_i - (ds / p)_(i-1)
    (_, s), (dd, ds), before = primals, tangents, p[..., :-1]
    right = dd - torch.cat([torch.zeros_like(dd[..., :1]), ds / before], -1)
    below = -s / before**2
    return solve_tridiagonal(below, torch.ones_like(p), 0 * below, right[..., None])[..., 0]


_tridiagonal_pivots = _by_host(
    _recurrences.tridiagonal_pivots, lambda d, s: torch.empty_like(d), (1, 1), _pivots_jvp
)


@half
def tridiagonal_pivots(d: Array, s: Array) -> Array:
    """The pivots p_i = d_i - s_(i-1) / p_(i-1) of elimination without exchanges, d (*batch, n) and
    s = lower * upper (*batch, n-1). A zero is divided by as if it were a very small number."""
    d, s = common(d, s)
    batch = torch.broadcast_shapes(d.shape[:-1], s.shape[:-1])
    return _tridiagonal_pivots(d.expand(*batch, -1), s.expand(*batch, -1))


def solve_triangular_sum(triangles: tuple[Array, ...], B: Array, adjoint: bool = False) -> Array:
    """Solve (T_1 ⊕ T_2 ⊕ ...) X = B, or with its adjoint, for complex upper triangles T, which are
    constants; B is (*batch, n_1 n_2 ..., k)."""

    def now(B: Array) -> Array:
        solve = lambda *host: _recurrences.solve_triangular_sum(host[:-1], host[-1], adjoint)
        return _on_host(solve, *triangles, B)

    return custom_derivative(
        now,
        lambda primals, tangents, X: solve_triangular_sum(triangles, tangents[0], adjoint),
        lambda primals, X, G: (solve_triangular_sum(triangles, G, not adjoint),),
        (2,),
    )(B.to(torch.promote_types(B.dtype, triangles[0].dtype)))


def _shifted_solver(adjoint: bool) -> Any:
    """`solve_shifted` of arrays alone."""

    def again(T: Array, places: Array, R: Array, other: bool) -> Array:
        Y, c = _solve_shifted[other](T, places, R)
        return Y / c[..., None, :]

    def here(T: Array, places: Array) -> Array:
        rows = torch.arange(T.shape[-1], device=T.device)[:, None]
        return (rows == places[..., None, :]).to(T.dtype)

    def jvp(primals: tuple, tangents: tuple, output: tuple) -> tuple:
        # (T_11 - t I) dY = c dR - (dT_11 - dt I) Y
        (T, places, _), (dT, _, dR), (Y, c) = primals, tangents, output
        dT = dT.mH.tril() if adjoint else dT.triu()
        dt = dT.diagonal(0, -2, -1)[..., None, :] @ here(T, places)
        right = c[..., None, :] * dR - (dT @ Y - Y * dt)
        return again(T, places, right, adjoint), torch.zeros_like(c)

    def vjp(primals: tuple, output: tuple, cotangents: tuple) -> tuple:
        (T, places, R), (Y, c) = primals, output
        W = again(T, places, cotangents[0], not adjoint)
        dt = (here(T, places) @ (W * Y.conj()).sum(-2)[..., None])[..., 0]
        G = torch.diag_embed(dt) - W @ Y.mH
        G = (G.mH if adjoint else G).triu()
        return _sum_to(G, T.shape), None, _sum_to(c[..., None, :] * W, R.shape)

    def like(T: Array, places: Array, R: Array) -> tuple[Array, Array]:
        Y = torch.empty_like(T[..., 0, :, None] * places[..., None, :] * R)
        return Y, Y.abs().sum(-2)

    solve = functools.partial(_recurrences.solve_shifted, adjoint=adjoint)
    return _by_host(solve, like, (2, 1, 2), jvp, vjp)


_solve_shifted = {adjoint: _shifted_solver(adjoint) for adjoint in (False, True)}


def solve_shifted(T: Array, places: Array, R: Array) -> tuple[Array, Array]:
    """Solve (T_11 - t I) Y = c R for upper triangular T, where t is the entry of its diagonal at
    `places`, one for each column, and T_11 what is above and before it; Y has zeros from there
    on. Returns Y and c, which keeps Y from overflowing: a constant."""
    T, R = common(T, R)
    return _solve_shifted[False](T, places, R)


linear_recurrence = shared.double_recurrence
