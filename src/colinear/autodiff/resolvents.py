"""Derivatives of (a C + b I)^-1 and of its determinant, C a Kronecker product or sum of any factors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..backends import Array
from . import determinants
from .determinants import slogdet_of_diagonal
from .functions import _times_inverse
from .kronecker import LARGEST, Grid, _beside, turned
from .spectral import are_parallel, eig_known

# Derivatives of (a C + b I)^-1 and of its determinant, where C is A_1 ⊗ A_2 ⊗ ... or A_1 ⊕ A_2 ⊕
# ..., with any factors.
#
# In eigenvectors of all factors but A_i, C falls apart into blocks: at the place t of the other
# eigenvalues
#     a C + b I  is  s_t A_i + r_t I,     s_t = a,  r_t = a (λ + μ + ...) + b    for sums,
#                                         s_t = a λ μ ...,  r_t = b               for products.
# So, with the resolvents R_t = (s_t A_i + r_t I)^-1 and t running over all such places,
#     d log det(a C + b I)   has the part   Σ_t s_t tr(R_t dA_i),
#     d (a C + b I)^-1       has the part  -Σ_t s_t R_t dA_i R_t ⊗ v_t w_t^H,  v_t, w_t eigenvectors.
# The first needs no eigenvectors, and neither needs those of A_i: both are right where A_i is
# defective or nearly so. A resolvent of a singular matrix does not exist, but its determinant does:
# within `determinants.polynomials`,
#     d det(a C + b I)       has the part   Σ_t ∏_(u≠t) det(M_u) s_t tr(adj(M_t) dA_i),     M_t = s_t A_i + r_t I.
#
# Second derivatives differentiate the eigenpairs of the others; a warning is given where their
# eigenvectors are almost parallel.


# numbers in all resolvents of a factor that are computed one by one without a second thought
CHEAP = 2**21
# the power of eps to which eigenvectors may be dependent, lest their derivatives lose half of the
# digits
DIGITS = 0.25


def slogdet(
    xp: Any,
    grid: Grid,
    values: Sequence[Array],
    pairs: Sequence[tuple[Array, Array] | None],
    a: Array,
    b: Array,
) -> tuple[Array, Array]:
    """The sign and the logarithm of |det(a C + b I)|, complex where eigenvalues are; or this
    determinant as a polynomial.

    Parameters
    ----------
    grid : Grid
        Whether C is a sum; its f is not used.
    values : sequence of arrays
        The eigenvalues of each factor, (*batch, n_i), all complex or all real.
    pairs : sequence
        For a factor that is differentiated by its resolvents: the matrix, and its eigenvectors as
        they belong to the values, both held fixed. None for one whose eigenvalues have derivatives
        of their own, such as those of a diagonal matrix.
    """
    count = len(values)
    by_matrix = [i for i, pair in enumerate(pairs) if pair is not None]
    values = [xp.stop_gradient(v) if i in by_matrix else v for i, v in enumerate(values)]
    matrices = [pair for pair in pairs if pair is not None]
    is_polynomial = determinants.is_polynomial()

    def eigenvalues(values: Sequence[Array], a: Array, b: Array) -> Array:
        return _beside(a, count) * grid.combined(values) + _beside(b, count)

    def of(*arrays: Array) -> tuple[Array, Array]:
        return slogdet_of_diagonal(
            xp, _flat(xp, eigenvalues(arrays[:count], *arrays[count : count + 2]), count)
        )

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        values, (a, b) = list(primals[:count]), primals[count : count + 2]
        A, V = primals[count + 2 :: 2], primals[count + 3 :: 2]
        for i, M, X in zip(by_matrix, A, V, strict=True):
            values[i] = eig_known(xp, M, values[i], X)[0]
        moved = (tuple(tangents[:count]), *tangents[count : count + 2])
        if is_polynomial:
            size = xp.abs(xp.stop_gradient(eigenvalues(values, a, b)))
            size = xp.where(size == 0, 1, size)
            z = lambda x: xp.prod(_flat(xp, eigenvalues(*x) / size, count), axis=-1)
            change = xp.jvp(z, (tuple(values), a, b), moved)[1]
            for i, M, dM in zip(by_matrix, A, tangents[count + 2 :: 2], strict=True):
                change = change + _change_of_product(
                    xp, _blocks(xp, grid, values, i, M, a, b), dM, output[1]
                )
            return change, 0 * output[1]
        z, dz = xp.jvp(lambda x: eigenvalues(*x), (tuple(values), a, b), moved)
        change = xp.sum(_flat(xp, dz / z, count), axis=-1)
        for i, M, X, dM in zip(by_matrix, A, V, tangents[count + 2 :: 2], strict=True):
            total = _sum_of_resolvents(xp, grid, values, i, (M, primals[i], X), a, b)
            # tr(Σ_t s_t R_t dA_i)
            change = change + xp.sum(xp.matrix_transpose(total) * dM, axis=(-2, -1))
        sign = output[0]
        return sign * 1j * xp.imag(change) if xp.is_complex(sign) else 0 * sign, xp.real(change)

    arrays = (
        *values,
        a,
        b,
        *(x for pair in matrices for x in (pair[0], xp.stop_gradient(pair[1]))),
    )
    ranks = (*(1,) * count, 0, 0, *(2,) * (2 * len(matrices)))
    sign, logarithm = xp.custom_derivative(of, jvp=tangent, ranks=ranks)(*arrays)
    return sign, logarithm


def inverse_diagonal(
    xp: Any,
    grid: Grid,
    matrices: Sequence[Array],
    values: Sequence[Array],
    vectors: Sequence[Array],
    a: Array,
    b: Array,
) -> Array:
    """The diagonal of (a C + b I)^-1, from the factors and their eigenpairs; complex where those
    are.

    With W = V^-1 it is (V_1 ∘ W_1^T ⊗ V_2 ∘ W_2^T ⊗ ...) z^-1, for the eigenvalues z of a C + b I.
    """
    count = len(values)

    def inverted(values: Sequence[Array], a: Array, b: Array) -> Array:
        return _flat(
            xp, 1 / (_beside(a, count) * grid.combined(values) + _beside(b, count)), count
        )[..., None]

    def split(
        arrays: Sequence[Array],
    ) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array], Array, Array]:
        parts = [arrays[i * count : (i + 1) * count] for i in range(3)]
        return parts[0], parts[1], parts[2], arrays[-2], arrays[-1]

    def weights(V: Array) -> Array:
        I = xp.eye(V.shape[-1], dtype=V.dtype, device=xp.device_of(V))
        # V ∘ V^-T
        return V * xp.lu_solve(*xp.lu_factor(xp.matrix_transpose(V)), xp.broadcast_to(I, V.shape))

    def of(*arrays: Array) -> Array:
        _, values, vectors, a, b = split(arrays)
        return turned(xp, [weights(V) for V in vectors], inverted(values, a, b))[..., 0]

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        matrices, values, vectors, a, b = split(primals)
        moved, _, _, da, db = split(tangents)
        found = [
            eig_known(xp, *triple, DIGITS) for triple in zip(matrices, values, vectors, strict=True)
        ]
        values, known = [v for v, _ in found], [weights(V) for _, V in found]
        slope = xp.jvp(lambda ab: inverted(values, *ab), (a, b), (da, db))[1]
        change = turned(xp, known, slope)
        for i, (M, dM) in enumerate(zip(matrices, moved, strict=True)):
            own = []  # -s_t diag(R_t dA_i R_t)
            for s, R in _resolvents(xp, grid, values, i, M, a, b):
                own.append(
                    -s[..., None]
                    * xp.sum(xp.matmul(R, dM[..., None, :, :]) * xp.matrix_transpose(R), axis=-1)
                )
            sizes = [v.shape[-1] for v in values]
            before, after = math.prod(sizes[:i]), math.prod(sizes[i + 1 :])
            column = xp.concat(own, axis=-2)
            column = xp.reshape(column, (*column.shape[:-2], before, after, sizes[i]))
            column = xp.reshape(
                xp.matrix_transpose(column), (*column.shape[:-3], math.prod(sizes), 1)
            )
            change = change + turned(xp, [*known[:i], None, *known[i + 1 :]], column)
        return change[..., 0]

    arrays = (*matrices, *(xp.stop_gradient(x) for x in (*values, *vectors)), a, b)
    ranks = (*(2,) * count, *(1,) * count, *(2,) * count, 0, 0)
    result: Array = xp.custom_derivative(of, jvp=tangent, ranks=ranks)(*arrays)
    return result


def _sum_of_resolvents(
    xp: Any,
    grid: Grid,
    values: Sequence[Array],
    i: int,
    known: tuple[Array, Array, Array],
    a: Array,
    b: Array,
) -> Array:
    """Σ_t s_t R_t: one by one, or by eigenvectors where that would take long and they are good;
    `known`: A_i, its values and vectors."""
    A, _, V = known

    def one_by_one() -> Array:
        return sum(
            xp.sum(s[..., None, None] * R, axis=-3)
            for s, R in _resolvents(xp, grid, values, i, A, a, b)
        )

    def by_vectors() -> Array:
        return _in_eigenvectors(xp, *known, *_places(xp, grid, values, i, a, b))

    if math.prod(v.shape[-1] for v in values) * A.shape[-1] ** 2 <= CHEAP:
        return one_by_one()
    return xp.cond(xp.any(are_parallel(xp, V, DIGITS)), one_by_one, by_vectors)


def _in_eigenvectors(xp: Any, A: Array, values: Array, V: Array, s: Array, r: Array) -> Array:
    """Σ_t s_t R_t = V diag(Σ_t s_t ρ_t) V^-1 with ρ_t = 1 / (s_t λ + r_t).

    As in `functions.spectral_function` its derivative needs none of V: the divided differences of
    Σ_t s_t / (s_t λ + r_t) are -Σ_t s_t² ρ_tp ρ_tq, and its derivative along (ds, dr) is Σ_t (r_t
    ds_t - s_t dr_t) ρ_t².
    """

    def fractions(values: Array, s: Array, r: Array) -> Array:
        return 1 / (s[..., None] * values[..., None, :] + r[..., None])  # (*batch, t, n)

    def of(A: Array, values: Array, V: Array, s: Array, r: Array) -> Array:
        weights = xp.sum(s[..., None] * fractions(values, s, r), axis=-2)
        return _times_inverse(xp, V * weights[..., None, :], V)

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        (A, values, V, s, r), (dA, _, _, ds, dr) = primals, tangents
        values, V = eig_known(xp, A, values, V, DIGITS)
        rho = fractions(values, s, r)
        P = xp.lu_solve(*xp.lu_factor(V), xp.matmul(dA, V))
        D = -xp.matmul(xp.matrix_transpose(rho), s[..., None] ** 2 * rho)
        slope = xp.sum((r * ds - s * dr)[..., None] * rho**2, axis=-2)
        return _times_inverse(xp, xp.matmul(V, D * P + xp.make_diagonal(slope)), V)

    return xp.custom_derivative(of, jvp=tangent, ranks=(2, 1, 2, 1, 1))(A, values, V, s, r)


def _change_of_product(
    xp: Any, blocks: Iterator[tuple[Array, Array]], dA: Array, l: Array
) -> Array:
    """Σ_t ∏_(u≠t) det(M_u) s_t tr(adj(M_t) dA), times e^-l."""
    parts = []
    for s, M in blocks:
        m, own, adjugate = determinants.with_adjugate(xp, M)
        parts.append(
            (m, own, s * xp.sum(xp.matrix_transpose(adjugate) * dA[..., None, :, :], axis=(-2, -1)))
        )
    m, own, dm = (xp.concat(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    change: Array = xp.jvp(lambda m: xp.prod(m, axis=-1), m, dm)[1]
    return change * xp.exp(xp.sum(own, axis=-1) - l)


def _resolvents(
    xp: Any, grid: Grid, values: Sequence[Array], i: int, A: Array, a: Array, b: Array
) -> Iterator[tuple[Array, Array]]:
    """s_t (*batch, t) and R_t (*batch, t, n, n) for all places of the other factors, so many at
    once as fit."""
    I = xp.eye(A.shape[-1], dtype=A.dtype, device=xp.device_of(A))
    for s, M in _blocks(xp, grid, values, i, A, a, b):
        yield s, xp.lu_solve(*xp.lu_factor(M), xp.broadcast_to(I, M.shape))


def _blocks(
    xp: Any, grid: Grid, values: Sequence[Array], i: int, A: Array, a: Array, b: Array
) -> Iterator[tuple[Array, Array]]:
    """s_t (*batch, t) and M_t = s_t A_i + r_t I (*batch, t, n, n), so many at once as fit."""
    n, (s, r) = A.shape[-1], _places(xp, grid, values, i, a, b)
    I = xp.eye(n, dtype=A.dtype, device=xp.device_of(A))
    step = max(1, LARGEST // max(1, n * n * math.prod(s.shape[:-1])))
    for start in range(0, s.shape[-1], step):
        at = s[..., start : start + step]
        yield (
            at,
            at[..., None, None] * A[..., None, :, :] + r[..., start : start + step, None, None] * I,
        )


def _places(
    xp: Any, grid: Grid, values: Sequence[Array], i: int, a: Array, b: Array
) -> tuple[Array, Array]:
    """s_t and r_t, (*batch, t), for all places of the eigenvalues of the other factors."""
    a, b, others = a[..., None], b[..., None], [v for j, v in enumerate(values) if j != i]
    nothing = xp.zeros((1,), dtype=values[i].dtype, device=xp.device_of(a)) + (
        0 if grid.is_sum else 1
    )
    rest = _flat(xp, grid.combined(others), len(others)) if others else nothing
    return (a + 0 * rest, a * rest + b) if grid.is_sum else (a * rest, b + 0 * rest)


def are_harmless(xp: Any, values: Array, V: Array) -> Array:
    """Whether derivatives that go through eigenpairs keep half of their digits: what is lost is
    1 / gap, and twice |V^-1|."""
    I = xp.eye(V.shape[-1], dtype=V.dtype, device=xp.device_of(V))
    left = xp.max(
        xp.vector_norm(xp.lu_solve(*xp.lu_factor(V), xp.broadcast_to(I, V.shape)), axis=-1)
    )
    gaps = xp.abs(values[..., :, None] - values[..., None, :])
    gap = xp.min(
        xp.where(xp.eye(V.shape[-1], dtype=xp.bool, device=xp.device_of(V)), math.inf, gaps)
    )
    return left**2 * xp.max(xp.abs(values)) * math.sqrt(xp.eps(V.dtype)) < gap


def _flat(xp: Any, grid: Array, count: int) -> Array:
    """A grid (*batch, n_1, ..., n_count) as (*batch, n)."""
    return xp.reshape(grid, (*grid.shape[: grid.ndim - count], -1))
