"""Linear algebra for the JAX backend: `jax.lax.linalg`, with batch dimensions that broadcast."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import adjoint as _adjoint
from .. import jax as xp
from .. import shared as _banded
from ..numpy import linalg as _numpy_linalg
from ..shared import (
    cholesky_solve,
    eigen_solve,
    extreme_scale,
    ldl_slogdet,
    lu_substitute,
    of_finite,
)
from .arrays import _half
from .closures import in_ordinary_modes

Array = Any

LARGE = 256  # rows from which the time that a call to the host takes is small beside what it saves


def _common(*arrays: Array) -> list[Array]:
    dtype = jnp.result_type(*arrays)
    return [jnp.asarray(x, dtype) for x in arrays]


def _spread(*arrays: tuple[Array, int]) -> list[Array]:
    """Broadcast the leading dimensions of arrays of these ranks."""
    batch = jnp.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in arrays))
    return [jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - rank :])) for x, rank in arrays]


# Cholesky, LU, LDL
# -------------------------------------------------------------------------------------------------


@jax.custom_jvp
def _cholesky(A: Array) -> Array:
    """JAX's own takes the mean of A and its adjoint first, so that the gradient is symmetric;
    that takes longer than the factorisation."""
    return jax.lax.linalg.cholesky(A, symmetrize_input=False)


@_cholesky.defjvp
@in_ordinary_modes
def _cholesky_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    L, dA = _cholesky(*primals), tangents[0]
    # L^-1 dA L^-H, of which dL = L tril(., half of the diagonal)
    M = solve_triangular(L, (dA + _adjoint(xp, dA)) / 2)
    M = _adjoint(xp, solve_triangular(L, _adjoint(xp, M)))
    return L, L @ (jnp.tril(M, -1) + jnp.eye(M.shape[-1], dtype=M.dtype) * M / 2)


@_half
def cholesky(A: Array) -> tuple[Array, Array]:
    """Factor Hermitian A = L L^H. Returns L and ok; L is NaN where A is not positive definite."""
    L = _cholesky(A)
    ok = jnp.isfinite(jnp.diagonal(L, 0, -2, -1)).all(-1)
    return jnp.where(ok[..., None, None], L, jnp.nan), ok


@jax.custom_jvp
def _cholesky_inverse(L: Array) -> Array:
    def on_host(L: Array) -> Array:
        shape = jax.ShapeDtypeStruct(L.shape, L.dtype)
        return jax.pure_callback(
            lambda L: _numpy_linalg.cholesky_inverse(np.asarray(L)),
            shape,
            L,
            vmap_method="broadcast_all",
        )

    def by_triangles(L: Array) -> Array:
        T = solve_triangular(L, jnp.eye(L.shape[-1], dtype=L.dtype))
        return _adjoint(xp, T) @ T

    if L.shape[-1] < LARGE:
        return by_triangles(L)
    return jax.lax.platform_dependent(L, cpu=on_host, default=by_triangles)


@_cholesky_inverse.defjvp
@in_ordinary_modes
def _cholesky_inverse_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    T, M = _cholesky_inverse(*primals), tangents[0] @ _adjoint(xp, primals[0])
    return T, -T @ (M + _adjoint(xp, M)) @ T  # -T dA T with A = L L^H


@_half
def cholesky_inverse(L: Array) -> Array:
    """A^-1 as a matrix from `cholesky(A)`. JAX has no routine for it: of large matrices on the
    CPU, where triangular solves take three times as long as LAPACK's, a call to the host."""
    return _cholesky_inverse(L)


@_half
def lu_factor(A: Array) -> tuple[Array, Array]:
    """Factor A = P L U with partial pivoting. Returns L and U in one array, and the row swaps
    (from 0) as in LAPACK."""
    LU, pivots, _ = jax.lax.linalg.lu(A)
    return LU, pivots


lu_solve = _half(lu_substitute)


def lu_permutation(pivots: Array, n: int) -> tuple[Array, Array]:
    """Turn row swaps into a permutation, A[perm] = L U, and its sign."""
    swaps = jnp.count_nonzero(pivots != jnp.arange(pivots.shape[-1]), axis=-1)
    return jax.lax.linalg.lu_pivots_to_permutation(pivots, n), 1 - 2 * (swaps % 2)


@_half
def ldl_factor(A: Array) -> tuple[Array, ...]:
    """Factor Hermitian A, definite or not, stably; what it returns is for `ldl_solve` and
    `ldl_slogdet`.

    JAX has no L D L^H: eigenvectors and eigenvalues serve, at about ten times the flops. Constant
    for derivatives.
    """
    values, vectors = eigh(jax.lax.stop_gradient(A))
    return vectors, values


_eigen_solve = _half(eigen_solve)


def ldl_solve(factors: tuple[Array, ...], B: Array) -> Array:
    """Solve A X = B from `ldl_factor(A)`; B is (*batch, n, k)."""
    return _eigen_solve(*factors, B)


# orthogonal and spectral
# -------------------------------------------------------------------------------------------


@_half
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """Factor A = Q R; mode "reduced" or "complete"."""
    return tuple(jnp.linalg.qr(A, mode))


@_half
def qr_triangle(A: Array) -> Array:
    """R of A = Q R, without Q."""
    return jnp.linalg.qr(A, "r")


@_half
def qr_pivoted(A: Array) -> tuple[Array, Array, Array]:
    """Factor A[:, perm] = Q R (reduced), |diag R| falling: the rank shows. JAX's own has no
    derivative: it gives the order."""
    if 0 in A.shape[-2:]:  # JAX gives zeros for the order
        perm = jnp.broadcast_to(jnp.arange(A.shape[-1]), (*A.shape[:-2], A.shape[-1]))
    else:
        *_, perm = jax.scipy.linalg.qr(jax.lax.stop_gradient(A), mode="economic", pivoting=True)
    Q, R = jnp.linalg.qr(jnp.take_along_axis(A, perm[..., None, :], -1))
    return Q, R, perm


# as NumPy's: of Hermitian A, eigenvalues ascending
eigh, eigvalsh = (_half(of_finite(f)) for f in (jnp.linalg.eigh, jnp.linalg.eigvalsh))


@_half
@of_finite
def eig(A: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of any square A, always complex."""
    scale, scaled = _divide_by_scale(A)
    values, vectors = jnp.linalg.eig(scaled)
    return values * scale, vectors


@_half
@of_finite
def eigvals(A: Array) -> Array:
    """Eigenvalues of any square A, always complex."""
    scale, scaled = _divide_by_scale(A)
    return jnp.linalg.eigvals(scaled) * scale


def _divide_by_scale(A: Array) -> tuple[Array, Array]:
    """The scale of a very small or large A, and A divided by it: LAPACK scales such an A, and JAX
    (0.10) loses that scale, so that its eigenvalues are off by it."""
    if not A.size:
        return jnp.ones(1, A.dtype), A
    scale = extreme_scale(A, (-2, -1), jnp.finfo(A.dtype)).astype(A.dtype)
    return scale[..., 0], A / scale


@_half
@of_finite
def svd(A: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Factor A = U diag(s) V^H. Returns U, s, V^H."""
    return jnp.linalg.svd(A, full_matrices)


@_half
def expm(A: Array) -> Array:
    """The matrix exponential. JAX gives NaN beyond `max_squarings`: 32 of them reach norms of
    1e10."""
    return jax.scipy.linalg.expm(A, max_squarings=32) if A.size else A


# triangular and banded solves
# --------------------------------------------------------------------------------------


@_half
def solve_triangular(
    A: Array,
    B: Array,
    lower: bool = True,
    unit_diagonal: bool = False,
    transpose: bool = False,
    adjoint: bool = False,
) -> Array:
    """Solve A X = B, A^T X = B or A^H X = B for triangular A; B is (*batch, n, k). The other
    triangle is not read."""
    A, B = _common(A, B)
    solve = functools.partial(
        jax.lax.linalg.triangular_solve,
        left_side=True,
        lower=lower,
        transpose_a=transpose or adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit_diagonal,
    )
    if A.ndim == 2 and B.ndim > 2:  # one matrix, many right sides: they are columns of one
        columns = jnp.moveaxis(B, -2, 0)
        X = solve(A, columns.reshape(len(A), math.prod(columns.shape[1:])))
        return jnp.moveaxis(X.reshape(columns.shape), 0, -2)
    return solve(*_spread((A, 2), (B, 2)))


@_half
def solve_tridiagonal(lower: Array, diag: Array, upper: Array, B: Array) -> Array:
    """Solve a tridiagonal system: diagonals (*batch, n-1), (*batch, n), (*batch, n-1), B (*batch,
    n, k).

    LAPACK's gtsv on the CPU and cuSPARSE's on the GPU, both with pivoting (tested: a diagonal of
    1e-9).
    """
    lower, diag, upper, B = _common(lower, diag, upper, B)
    if diag.shape[-1] == 0:
        return _spread((diag, 1), (B, 2))[1]
    none = [(0, 0)]
    below = jnp.pad(lower, none * (lower.ndim - 1) + [(1, 0)])
    above = jnp.pad(upper, none * (upper.ndim - 1) + [(0, 1)])
    return jax.lax.linalg.tridiagonal_solve(*_spread((below, 1), (diag, 1), (above, 1), (B, 2)))


@_half
def solve_banded(ab: Array, widths: tuple[int, int], B: Array) -> Array:
    """Solve a banded system, with pivoting: ab[..., u + i - j, j] = A[..., i, j], ab (*batch,
    l+u+1, n), B (*batch, n, k).

    JAX has no banded solver, and elimination by lax.scan is a hundred times slower than LAPACK's: a
    callback to the host, which JAX differentiates as what it is, a linear solve
    (`custom_linear_solve`).
    """
    ab, B = _spread(*zip(_common(ab, B), (2, 2), strict=True))
    if not any(isinstance(x, jax.core.Tracer) for x in (ab, B)):  # a callback is traced each time
        found = _numpy_linalg.solve_banded(np.asarray(ab), widths, np.asarray(B))
        return jax.device_put(found, B.sharding)

    def solver(ab: Array, widths: tuple[int, int]) -> Any:
        def on_host(ab: Any, B: Any) -> np.ndarray:
            ab, B = np.asarray(ab), np.asarray(B)
            return np.ascontiguousarray(_numpy_linalg.solve_banded(ab, widths, B))

        def solve(_: Any, B: Array) -> Array:
            shape = jax.ShapeDtypeStruct(B.shape, B.dtype)
            return jax.pure_callback(on_host, shape, ab, B, vmap_method="broadcast_all")

        return solve

    return jax.lax.custom_linear_solve(
        lambda X: _banded.banded_matmul(xp, ab, widths, X),
        B,
        solve=solver(ab, widths),
        transpose_solve=solver(_banded.transposed(xp, ab, widths), widths[::-1]),
    )
