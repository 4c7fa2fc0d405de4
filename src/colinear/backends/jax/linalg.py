"""Linear algebra for the JAX backend: `jax.lax.linalg`, with batch dimensions that broadcast."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import adjoint as _adjoint
from .. import hermitian, shared
from .. import jax as xp
from ..numpy import control as _recurrences
from ..numpy import linalg as _numpy_linalg
from ..shared import (
    by_columns,
    cholesky_or_nan,
    cholesky_solve,
    common,
    eigen_solve,
    extreme_scale,
    half,
    ldl_slogdet,
    lu_parity,
    lu_substitute,
    of_finite,
)
from .arrays import complex_dtype, is_differentiated
from .control import map_on_host
from .derivatives import custom_derivative
from .mesh import is_spread, mesh_of

Array = Any

LARGE = 256  # rows from which the time that a call to the host takes is small beside what it saves


def _spread(ranks: tuple[int, ...], *arrays: Array) -> list[Array]:
    """Broadcast the leading dimensions of arrays of these ranks."""
    cuts = [x.ndim - rank for x, rank in zip(arrays, ranks, strict=True)]
    batch = jnp.broadcast_shapes(*(x.shape[:cut] for x, cut in zip(arrays, cuts)))
    return [jnp.broadcast_to(x, (*batch, *x.shape[cut:])) for x, cut in zip(arrays, cuts)]


# Cholesky, LU, LDL
# -------------------------------------------------------------------------------------------------


def _cholesky_tangent(primals: tuple, tangents: tuple, L: Array) -> Array:
    # L^-1 dA L^-H, of which dL = L tril(., half of the diagonal)
    M = solve_triangular(L, hermitian(xp, tangents[0]))
    M = _adjoint(xp, solve_triangular(L, _adjoint(xp, M)))
    return L @ (jnp.tril(M, -1) + jnp.eye(M.shape[-1], dtype=M.dtype) * M / 2)


# JAX's own takes the mean of A and its adjoint first, so that the gradient is symmetric; that takes
# longer than the factorisation.
_cholesky = custom_derivative(
    functools.partial(jax.lax.linalg.cholesky, symmetrize_input=False), _cholesky_tangent
)


@half
def cholesky(A: Array) -> tuple[Array, Array]:
    """Factor Hermitian A = L L^H. Returns L and ok; L is NaN where A is not positive definite."""
    L = _cholesky(A)
    ok = jnp.isfinite(jnp.diagonal(L, 0, -2, -1)).all(-1)
    return jnp.where(ok[..., None, None], L, jnp.nan), ok


def _cholesky_inverse(L: Array) -> Array:
    """A^-1 as a matrix from `cholesky(A)`. JAX has no routine for it: of large matrices on the
    CPU, where triangular solves take three times as long as LAPACK's, a call to the host."""

    def by_triangles(L: Array) -> Array:
        T = solve_triangular(L, jnp.eye(L.shape[-1], dtype=L.dtype))
        return _adjoint(xp, T) @ T

    if L.shape[-1] < LARGE or mesh_of(L) is not None:  # no callbacks from several devices
        return by_triangles(L)
    on_host = functools.partial(map_on_host, _numpy_linalg.cholesky_inverse)
    return jax.lax.platform_dependent(L, cpu=on_host, default=by_triangles)


cholesky_inverse = half(custom_derivative(_cholesky_inverse, shared.cholesky_inverse_tangent))


@half
def lu_factor(A: Array) -> tuple[Array, Array]:
    """Factor A = P L U with partial pivoting. Returns L and U in one array, and the row swaps
    (from 0) as in LAPACK."""
    LU, pivots, _ = jax.lax.linalg.lu(A)
    return LU, pivots


lu_solve = half(lu_substitute)


lu_permutation = jax.lax.linalg.lu_pivots_to_permutation


has_ldl = False


@half
def ldl_factor(A: Array) -> tuple[Array, ...]:
    """Factor Hermitian A, definite or not, stably; what it returns is for `ldl_solve` and
    `ldl_slogdet`.

    JAX has no L D L^H: eigenvectors and eigenvalues serve, at about ten times the flops. Constant
    for derivatives.
    """
    values, vectors = eigh(jax.lax.stop_gradient(A))
    return vectors, values


ldl_solve = half(eigen_solve)


# orthogonal and spectral
# -------------------------------------------------------------------------------------------


@half
def qr(A: Array) -> tuple[Array, Array]:
    """Factor A = Q R, reduced."""
    return tuple(jnp.linalg.qr(A))


@half
def qr_triangle(A: Array) -> Array:
    """R of A = Q R, without Q."""
    return jnp.linalg.qr(A, "r")


@half
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
eigh, eigvalsh = (half(of_finite(f)) for f in (jnp.linalg.eigh, jnp.linalg.eigvalsh))


@half
@of_finite
def eig(A: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of any square A, always complex."""
    scale, scaled = _divide_by_scale(A)
    values, vectors = jnp.linalg.eig(scaled)
    return values * scale, vectors


@half
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


@half
@of_finite
def svd(A: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:
    """Factor A = U diag(s) V^H. Returns U, s, V^H."""
    return jnp.linalg.svd(A, full_matrices)


@half
def expm(A: Array) -> Array:
    """The matrix exponential. JAX gives NaN beyond `max_squarings`: 32 of them reach norms of
    1e10."""
    return jax.scipy.linalg.expm(A, max_squarings=32) if A.size else A


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
    solve = functools.partial(
        jax.lax.linalg.triangular_solve,
        left_side=True,
        lower=lower,
        transpose_a=adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit_diagonal,
    )
    if A.ndim == 2 and B.ndim > 2:
        return by_columns(functools.partial(solve, A), B)
    return solve(*_spread((2, 2), A, B))


@half
def solve_tridiagonal(lower: Array, diag: Array, upper: Array, B: Array) -> Array:
    """Solve a tridiagonal system: diagonals (*batch, n-1), (*batch, n), (*batch, n-1), B (*batch,
    n, k).

    LAPACK's gtsv on the CPU and cuSPARSE's on the GPU, both with pivoting (tested: a diagonal of
    1e-9).
    """
    lower, diag, upper, B = common(lower, diag, upper, B)
    if diag.shape[-1] == 0:
        return _spread((1, 2), diag, B)[1]
    none = [(0, 0)]
    below = jnp.pad(lower, none * (lower.ndim - 1) + [(1, 0)])
    above = jnp.pad(upper, none * (upper.ndim - 1) + [(0, 1)])
    return jax.lax.linalg.tridiagonal_solve(*_spread((1, 1, 1, 2), below, diag, above, B))


@half
def solve_banded(ab: Array, widths: tuple[int, int], B: Array) -> Array:
    """Solve a banded system, with pivoting: ab[..., u + i - j, j] = A[..., i, j], ab (*batch,
    l+u+1, n), B (*batch, n, k).

    JAX has no banded solver, and elimination by lax.scan is a hundred times slower than LAPACK's: a
    callback to the host, which JAX differentiates as what it is, a linear solve
    (`custom_linear_solve`).
    """
    ab, B = _spread((2, 2), *common(ab, B))

    def solver(ab: Array, widths: tuple[int, int]) -> Any:
        on_host = lambda B, ab: _numpy_linalg.solve_banded(ab, widths, B)
        return lambda _, B: map_on_host(on_host, B, ab)

    solve = solver(ab, widths)
    if not is_differentiated(ab, B):
        return solve(None, B)
    return jax.lax.custom_linear_solve(
        lambda X: shared.banded_matmul(xp, ab, widths, X),
        B,
        solve=solve,
        transpose_solve=solver(shared.transposed(xp, ab, widths), widths[::-1]),
    )


# recurrences
# --------------------------------------------------------------------------------------------------


def _with_values(function: Callable) -> Callable[[Callable], Callable]:
    """Compute on the host, by NumPy's function, where values can be seen: a scan is compiled for
    each shape, and on a GPU it launches every step."""

    def decorate(scanned: Callable) -> Callable:
        @functools.wraps(scanned)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            arrays = jax.tree.leaves(arguments)
            if any(isinstance(x, jax.core.Tracer) or is_spread(x) for x in arrays):
                return scanned(*arguments, **options)
            found = function(*jax.tree.map(np.asarray, arguments), **options)
            return jax.device_put(found, xp.device_of(arrays[0]))

        return wrapped

    return decorate


@half
@_with_values(_recurrences.tridiagonal_pivots)
def tridiagonal_pivots(d: Array, s: Array) -> Array:
    """The pivots p_i = d_i - s_(i-1) / p_(i-1) of elimination without exchanges, d (*batch, n) and
    s = lower * upper (*batch, n-1). A zero is divided by as if it were a very small number."""
    d, s = _spread((1, 1), *common(d, s))
    tiny = float(jnp.finfo(d.dtype).tiny)

    def step(p: Array, x: Array, y: Array) -> tuple[Array, Array]:
        p = x - y / jnp.where(p == 0, tiny, p)
        return p, p

    before = jnp.concatenate([jnp.zeros_like(d[..., :1]), s], -1)[..., : d.shape[-1]]
    ones = jnp.ones(d.shape[:-1], d.dtype)
    return jnp.moveaxis(
        xp.scan(step, ones, jnp.moveaxis(d, -1, 0), jnp.moveaxis(before, -1, 0)), 0, -1
    )


@_with_values(_recurrences.solve_triangular_sum)
def solve_triangular_sum(triangles: tuple[Array, ...], B: Array, adjoint: bool = False) -> Array:
    """Solve (T_1 ⊕ T_2 ⊕ ...) X = B, or with its adjoint, for complex upper triangles T; B is
    (*batch, n_1 n_2 ..., k). Row after row (Bartels and Stewart 1972), the last triangle at once."""

    def solve(level: int, shift: Any, C: Array) -> Array:
        T, n = triangles[level], triangles[level].shape[-1]
        if level == len(triangles) - 1:
            M = T + shift * jnp.eye(n, dtype=T.dtype)
            return solve_triangular(M, C, lower=False, adjoint=adjoint)
        off_diagonal = _adjoint(xp, jnp.triu(T, 1)) if adjoint else jnp.triu(T, 1)

        def step(rows: Array, i: Array) -> tuple[Array, Array]:
            Y = solve(level + 1, shift + T[i, i], rows[..., i, :, :])
            # C_j - t_ji Y_i
            return rows - off_diagonal[:, i, None, None] * Y[..., None, :, :], Y

        rows = C.reshape(*C.shape[:-2], n, C.shape[-2] // n, C.shape[-1])
        found = xp.scan(step, rows, jnp.arange(n), reverse=not adjoint)
        return jnp.moveaxis(found, 0, -3).reshape(C.shape)

    return solve(0, 0.0, B.astype(jnp.result_type(B, *triangles)))


@_with_values(_recurrences.solve_shifted)
def solve_shifted(T: Array, places: Array, R: Array) -> tuple[Array, Array]:
    """Solve (T_11 - t I) Y = c R for upper triangular T, where t is the entry of its diagonal at
    `places`, one for each column, and T_11 what is above and before it; Y has zeros from there
    on. Returns Y and c.

    As LAPACK's trevc: a gap that is too small to divide by is taken to be eps |T|, and columns that
    grow are scaled down.
    """
    (T, R), n = common(T, R), T.shape[-1]
    T, places, R = _spread((2, 1, 2), T, places, R)
    strict, t = jnp.triu(T, 1), jnp.diagonal(T, 0, -2, -1)
    values, eps = jnp.take_along_axis(t, places, -1), float(jnp.finfo(T.dtype).eps)
    least = eps * jnp.max(jnp.abs(jnp.triu(T)), (-2, -1))[..., None] + float(
        np.finfo(np.float32).tiny
    )

    def step(m: Any, state: tuple) -> tuple:
        i, (Y, c) = n - 1 - m, state
        y = c * R[..., i, :] - (strict[..., i, None, :] @ Y)[..., 0, :]
        gap = t[..., i, None] - values
        y = jnp.where(places > i, y / jnp.where(jnp.abs(gap) < least, -least, gap), 0)
        size = jnp.where(jnp.abs(y) > eps**-2, jnp.abs(y), 1)
        return Y.at[..., i, :].set(y) / size[..., None, :], c / size

    start = jnp.zeros_like(R), jnp.ones(R.shape[:-2] + R.shape[-1:], jnp.finfo(R.dtype).dtype)
    return xp.fori_loop(n, step, start)


linear_recurrence = shared.scan_recurrence


# Fourier transforms
# -------------------------------------------------------------------------------------------------


def _by_rows(x: Any) -> jax.Array:
    """x, stored row after row, as XLA's transforms on the CPU take and give arrays: where what
    follows wants it otherwise, XLA passes that on to them and fails (jaxlib 0.10)."""
    return jax.lax.optimization_barrier(x.reshape(-1)).reshape(x.shape) if x.ndim > 1 else x


def _fft(x: Any, axis: int) -> jax.Array:
    """The transform of the rows of a matrix. Of an array of three dimensions, in double precision,
    that is cut along the axis, XLA divides the work, and mixes precisions (jaxlib 0.10)."""
    rows = jnp.moveaxis(x, axis, -1)
    y = jnp.fft.fft(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape)
    return jnp.moveaxis(y, -1, axis)


def _each_axis(transform: Callable, x: Any, axes: Any = None) -> jax.Array:
    """One axis after another: XLA has transforms of at most three."""
    x = x.astype(complex_dtype(x.dtype))
    for axis in range(x.ndim) if axes is None else axes:
        x = _by_rows(transform(x, axis=axis)) if x.size else x
    return x


fftn, ifftn = (half(functools.partial(_each_axis, f)) for f in (_fft, jnp.fft.ifft))


@half
def rfftn(x: Any, axes: Any) -> jax.Array:
    """The transform of real numbers: the first half of the last axis, which determines the rest."""
    return _each_axis(_fft, _by_rows(jnp.fft.rfft(x, axis=axes[-1])), axes[:-1])


@half
def irfftn(x: Any, shape: Any, axes: Any) -> jax.Array:
    """The real numbers of this shape (along the axes) of which `x` is the transform."""
    for length, axis in zip(shape[:-1], axes[:-1], strict=True):
        x = _by_rows(jnp.fft.ifft(x, length, axis))
    return _by_rows(jnp.fft.irfft(x, shape[-1], axes[-1]))
