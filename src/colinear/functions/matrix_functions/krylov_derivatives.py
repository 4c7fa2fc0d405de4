"""What the derivatives of f(A) B by `Krylov()` are computed by: runs on columns in groups, f of
the small matrices, and how it went."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...autodiff.functions import divided_differences, times_inverse
from ...backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    inner_products,
    without_zeros,
)
from ...backends.shared import corner
from ...methods import Krylov, roots
from ...methods.krylov_derivatives import adjoint_factors, tangent_times
from ...operators import LinearOperator
from ...operators.autograd_products import directional
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, first_failure
from ..common import ignore_float_errors, is_half


def part_of(A: LinearOperator, parts: int) -> LinearOperator:
    """A / parts."""
    return A if parts == 1 else (1 / parts) * A


def along_program(
    xp: Any,
    runs: Any,
    parts: int,
    m: int,
    transposed: bool,
    A: LinearOperator,
    moved: tuple,
    X: Array,
) -> Any:
    side = lambda A: part_of(A.T if transposed else A, parts)
    (start,), noise, (size,), tol = starts_of(xp, runs.method, X)
    multiply = by_rows(xp, side(A).__matmul__)
    move = by_rows(xp, lambda X: directional(A, lambda A: side(A) @ X, moved)[1])
    small = _corner(xp, runs.f, A, False)
    with ignore_float_errors(xp):
        found = tangent_times(xp, multiply, move, start, size, noise, small, m=m, tol=tol)
    return xp.matrix_transpose(found.X), found.error, found.steps, _status(xp, found)


def back_program(
    xp: Any, runs: Any, parts: int, m: int, A: LinearOperator, X: Array, G: Array
) -> Any:
    A = part_of(A, parts)
    (start, cotangent), noise, (size, other), tol = starts_of(xp, runs.method, X, G)
    multiply, back = by_rows(xp, A.__matmul__), by_rows(xp, A.H.__matmul__)
    given: Any = start, cotangent, size * other, noise, _corner(xp, runs.f, A, True)
    with ignore_float_errors(xp):
        found = adjoint_factors(xp, multiply, back, *given, m=m, tol=tol)
    columns = [
        xp.matrix_transpose(xp.reshape(F, (*F.shape[:-3], -1, F.shape[-1])))
        for F in (found.W, found.V)
    ]
    return *columns, found.error, found.steps, _status(xp, found)


def starts_of(
    xp: Any, method: Krylov, *columns: Array
) -> tuple[list[Array], Array, list[Array], float]:
    """Columns as rows, random ones for those that are zero; random numbers; the norms of the
    columns; the tolerance."""
    work = xp.float32 if is_half(xp, columns[0].dtype) else columns[0].dtype
    given = [xp.astype(xp.matrix_transpose(X), work) for X in columns]
    shape, device = given[0].shape, xp.device_of(given[0])
    noise = xp.normal(xp.generator(method.seed), shape, dtype=work, device=device)
    sizes = [xp.vector_norm(B, axis=-1) for B in given]
    starts = [xp.where((size > 0)[..., None], B, noise) for B, size in zip(given, sizes)]
    return starts, noise, sizes, max(method.tolerance(xp, columns[0].dtype), 4 * xp.eps(work))


def by_rows(xp: Any, multiply: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Products with all columns at once, which the run holds by rows, (*batch, columns, n)."""
    return lambda X: xp.matrix_transpose(multiply(xp.matrix_transpose(X)))


def _status(xp: Any, found: Any) -> Any:
    return first_failure(xp, (found.finite, Status.NONFINITE), (found.done, Status.MAX_ITERATIONS))


# --------------------------------------------------------------------------------------------------


def perturbed(xp: Any, H: Array) -> Array:
    """H moved by a few roundings."""
    j = xp.arange(H.shape[-1], dtype=xp.real_dtype(H.dtype), device=xp.device_of(H))
    pattern = xp.cos(1 + j[:, None] + 3 * j * j)
    size = xp.max(xp.abs(H), axis=(-2, -1), keepdims=True)
    return H + xp.astype(4 * xp.eps(H.dtype) * size * pattern, H.dtype)


def relative_change(xp: Any, X: Array, Y: Array, axes: int) -> Array:
    """|X - Y| / |X| along the last axes."""
    change, size = (xp.vector_norm(Z, axis=tuple(range(-axes, 0))) for Z in (X - Y, X))
    return change / without_zeros(xp, size)


def ritz_values(
    xp: Any, f: Any, positive: bool, floor: int, *spectra: Array
) -> tuple[list[Array], Array]:
    """Ritz values as f takes them; with a common s taken out of an exponential, e^x = e^(x - s)
    e^s. Positive ones are at least so many roundings of the largest."""
    values, scale = list(spectra), 0 * xp.real(spectra[0][..., 0])
    if f.name == "exp":
        scale = functools.reduce(xp.maximum, (xp.max(xp.real(x), axis=-1) for x in values))
        values = [x - scale[..., None] for x in values]
    if f.principal and positive:  # what is negative is rounding
        sizes = (xp.max(xp.abs(x), axis=-1, keepdims=True) for x in values)
        least = floor * xp.eps(values[0].dtype) * functools.reduce(xp.maximum, sizes)
        values = [xp.maximum(x, least) for x in values]
    elif f.principal:
        values = [xp.astype(x, xp.complex_dtype(x.dtype)) for x in values]
    return values, scale


def _corner(
    xp: Any, f: Any, A: LinearOperator, conjugated: bool
) -> Callable[..., tuple[Array, Array, Array]]:
    """The corner of f([S C; 0 T]), as X e^s, with what it is wrong by at least; if `conjugated`,
    of conj(f(conj(.)))."""
    of = functools.partial(_of_any, xp, f)
    if A.properties & SELF_ADJOINT:
        positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
        of = functools.partial(_of_hermitian, xp, f, positive)
    if not conjugated:
        return of

    def flipped(*blocks: Array) -> tuple[Array, Array, Array]:
        X, scale, doubt = of(*(xp.conj(block) for block in blocks))
        return xp.conj(X), scale, doubt

    return flipped


def _of_hermitian(
    xp: Any, f: Any, positive: bool, S: Array, C: Array, T: Array
) -> tuple[Array, Array, Array]:
    """Q (D ∘ Q^H C P) P^H for S = Q Λ Q^H and T = P M P^H, with the divided differences D_ij =
    f[λ_i, μ_j]."""
    (left, Q), (right, P) = (xp.eigh(hermitian(xp, B)) for B in (S, T))
    (left, right), scale = ritz_values(xp, f, positive, 1, left, right)
    D = divided_differences(xp, lambda x: f.of(xp, x), left[..., :, None], right[..., None, :])
    inside = D * inner_products(xp, Q, xp.matmul(C, P))
    Q, P = (xp.astype(x, xp.result_type(x.dtype, inside.dtype)) for x in (Q, P))
    return xp.matmul(Q, xp.matmul(inside, adjoint(xp, P))), scale, 0 * scale


def _of_any(xp: Any, f: Any, S: Array, C: Array, T: Array) -> tuple[Array, Array, Array]:
    """By the algorithms that need no eigenvectors; for functions of which nothing is known, by
    divided differences, and what the eigenvectors are worth shows when S and T are moved by a
    few roundings."""
    scale = 0 * xp.real(S[..., 0, 0])
    if f.principal or f.name == "apply":
        S, C, T = (xp.astype(B, xp.complex_dtype(B.dtype)) for B in (S, C, T))
    if f.name == "apply":
        X = _by_eigenvectors(xp, f, S, C, T)
        moved = _by_eigenvectors(xp, f, perturbed(xp, S), C, perturbed(xp, T))
        return X, scale, relative_change(xp, X, moved, 2)
    if f.name == "exp":
        scale = xp.maximum(*(xp.max(xp.real(xp.eigvals(B)), axis=-1) for B in (S, T)))
        shift = xp.astype(scale, S.dtype)[..., None, None] * eye_like(xp, S)
        S, T = S - shift, T - shift
    return corner(functools.partial(_of_matrix, xp, f), S, C, T), scale, 0 * scale


def _by_eigenvectors(xp: Any, f: Any, S: Array, C: Array, T: Array) -> Array:
    (left, Q), (right, P) = xp.eig(S), xp.eig(T)
    D = divided_differences(xp, lambda x: f.of(xp, x), left[..., :, None], right[..., None, :])
    inside = D * xp.lu_solve(*xp.lu_factor(Q), xp.matmul(C, P))
    return times_inverse(xp, xp.matmul(Q, inside), P)


def _of_matrix(xp: Any, f: Any, M: Array) -> Array:
    if f.name == "exp":
        return xp.expm(M)
    if f.name in ("sqrt", "isqrt"):
        return roots.square_root(xp, M)[0 if f.name == "sqrt" else 1]
    if f.name == "log":
        return roots.logarithm(xp, M)
    if isinstance(f.exponent, int):
        return roots.integer_power(xp, M, f.exponent)
    return xp.expm(f.exponent * roots.logarithm(xp, M))
