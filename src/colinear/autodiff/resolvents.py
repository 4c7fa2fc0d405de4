"""Derivatives of (a C + b I)^-1 and of its determinant, where C is A_1 ⊗ A_2 ⊗ ... or A_1 ⊕ A_2 ⊕ ..., with any factors.

In eigenvectors of all factors but A_i, C falls apart into blocks: at the place t of the other eigenvalues
    a C + b I  is  s_t A_i + r_t I,     s_t = a, r_t = a (λ + μ + ...) + b  for sums,     s_t = a λ μ ..., r_t = b  for products.
So, with the resolvents R_t = (s_t A_i + r_t I)^-1 and t running over all such places,
    d log det(a C + b I)   has the part   Σ_t s_t tr(R_t dA_i),
    d (a C + b I)^-1       has the part  -Σ_t s_t R_t dA_i R_t ⊗ v_t w_t^H,     v_t and w_t the eigenvectors of the others.
The first needs no eigenvectors, and neither needs those of A_i: both are right where A_i is defective or nearly so.

Second derivatives differentiate the eigenpairs of the others; a warning is given where their eigenvectors are almost parallel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ..backends import Array
from ..operators.factors import slogdet_of_diagonal
from .kronecker import LARGEST, Grid, _beside, turned
from .spectral import eig_known

DIGITS = 0.25  # the power of eps to which eigenvectors may be dependent, lest their derivatives lose half of the digits


def slogdet(
    xp: Any, grid: Grid, values: Sequence[Array], pairs: Sequence[tuple[Array, Array] | None], a: Array, b: Array
) -> tuple[Array, Array]:
    """The sign and the logarithm of |det(a C + b I)|, complex where eigenvalues are.

    Parameters
    ----------
    grid : Grid
        Whether C is a sum; its f is not used.
    values : sequence of arrays
        The eigenvalues of each factor, (*batch, n_i), all complex or all real.
    pairs : sequence
        For a factor that is differentiated by its resolvents: the matrix, and its eigenvectors as they belong to the values, both held
        fixed. None for one whose eigenvalues have derivatives of their own, such as those of a diagonal matrix.
    """
    count = len(values)
    by_matrix = [i for i, pair in enumerate(pairs) if pair is not None]
    values = [xp.stop_gradient(v) if i in by_matrix else v for i, v in enumerate(values)]
    matrices = [pair for pair in pairs if pair is not None]

    def eigenvalues(values: Sequence[Array], a: Array, b: Array) -> Array:
        return _beside(a, count) * grid.combined(values) + _beside(b, count)

    def of(*arrays: Array) -> tuple[Array, Array]:
        return slogdet_of_diagonal(xp, _flat(xp, eigenvalues(arrays[:count], *arrays[count : count + 2]), count))

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        (values, a, b), (dvalues, da, db) = ((x[:count], x[count], x[count + 1]) for x in (primals, tangents))
        A, V = (primals[count + 2 :: 2], primals[count + 3 :: 2])
        values = list(values)
        for i, M, X in zip(by_matrix, A, V, strict=True):
            values[i] = eig_known(xp, M, values[i], X)[0]
        z, dz = xp.jvp(lambda x: eigenvalues(*x), (tuple(values), a, b), (tuple(dvalues), da, db))
        change = xp.sum(_flat(xp, dz / z, count), axis=-1)
        for i, M, dM in zip(by_matrix, A, tangents[count + 2 :: 2], strict=True):
            total: Any = 0
            for s, R in _resolvents(xp, grid, values, i, M, a, b):
                total = total + xp.sum(s[..., None, None] * R, axis=-3)  # Σ_t s_t R_t
            change = change + xp.sum(xp.matrix_transpose(total) * dM, axis=(-2, -1))  # tr(Σ_t s_t R_t dA_i)
        sign = output[0]
        return sign * 1j * xp.imag(change) if xp.is_complex(sign) else 0 * sign, xp.real(change)

    arrays = (*values, a, b, *(x for pair in matrices for x in (pair[0], xp.stop_gradient(pair[1]))))
    ranks = (*(1,) * count, 0, 0, *(2,) * (2 * len(matrices)))
    sign, logarithm = xp.custom_derivative(of, jvp=tangent, ranks=ranks)(*arrays)
    return sign, logarithm


def inverse_diagonal(
    xp: Any, grid: Grid, matrices: Sequence[Array], values: Sequence[Array], vectors: Sequence[Array], a: Array, b: Array
) -> Array:
    """The diagonal of (a C + b I)^-1, from the factors and their eigenpairs; complex where those are.

    With W = V^-1 it is (V_1 ∘ W_1^T ⊗ V_2 ∘ W_2^T ⊗ ...) z^-1, for the eigenvalues z of a C + b I.
    """
    count = len(values)

    def inverted(values: Sequence[Array], a: Array, b: Array) -> Array:
        return _flat(xp, 1 / (_beside(a, count) * grid.combined(values) + _beside(b, count)), count)[..., None]

    def split(arrays: Sequence[Array]) -> tuple[Sequence[Array], Sequence[Array], Sequence[Array], Array, Array]:
        parts = [arrays[i * count : (i + 1) * count] for i in range(3)]
        return parts[0], parts[1], parts[2], arrays[-2], arrays[-1]

    def weights(V: Array) -> Array:
        I = xp.eye(V.shape[-1], dtype=V.dtype, device=xp.device_of(V))
        return V * xp.lu_solve(*xp.lu_factor(xp.matrix_transpose(V)), xp.broadcast_to(I, V.shape))  # V ∘ V^-T

    def of(*arrays: Array) -> Array:
        _, values, vectors, a, b = split(arrays)
        return turned(xp, [weights(V) for V in vectors], inverted(values, a, b))[..., 0]

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        matrices, values, vectors, a, b = split(primals)
        moved, _, _, da, db = split(tangents)
        found = [eig_known(xp, *triple, DIGITS) for triple in zip(matrices, values, vectors, strict=True)]
        values, known = [v for v, _ in found], [weights(V) for _, V in found]
        slope = xp.jvp(lambda ab: inverted(values, *ab), (a, b), (da, db))[1]
        change = turned(xp, known, slope)
        for i, (M, dM) in enumerate(zip(matrices, moved, strict=True)):
            own = []  # -s_t diag(R_t dA_i R_t)
            for s, R in _resolvents(xp, grid, values, i, M, a, b):
                own.append(-s[..., None] * xp.sum(xp.matmul(R, dM[..., None, :, :]) * xp.matrix_transpose(R), axis=-1))
            sizes = [v.shape[-1] for v in values]
            before, after = math.prod(sizes[:i]), math.prod(sizes[i + 1 :])
            column = xp.concat(own, axis=-2)
            column = xp.reshape(column, (*column.shape[:-2], before, after, sizes[i]))
            column = xp.reshape(xp.matrix_transpose(column), (*column.shape[:-3], math.prod(sizes), 1))
            change = change + turned(xp, [*known[:i], None, *known[i + 1 :]], column)
        return change[..., 0]

    arrays = (*matrices, *(xp.stop_gradient(x) for x in (*values, *vectors)), a, b)
    ranks = (*(2,) * count, *(1,) * count, *(2,) * count, 0, 0)
    result: Array = xp.custom_derivative(of, jvp=tangent, ranks=ranks)(*arrays)
    return result


def _resolvents(
    xp: Any, grid: Grid, values: Sequence[Array], i: int, A: Array, a: Array, b: Array
) -> Iterator[tuple[Array, Array]]:
    """s_t (*batch, t) and R_t (*batch, t, n, n) for all places of the other factors, so many at once as fit."""
    n, others = A.shape[-1], [v for j, v in enumerate(values) if j != i]
    a, b = a[..., None], b[..., None]
    nothing = xp.zeros((1,), dtype=A.dtype, device=xp.device_of(A)) + (0 if grid.is_sum else 1)
    rest = _flat(xp, grid.combined(others), len(others)) if others else nothing
    s, r = (a + 0 * rest, a * rest + b) if grid.is_sum else (a * rest, b + 0 * rest)
    I = xp.eye(n, dtype=A.dtype, device=xp.device_of(A))
    step = max(1, LARGEST // max(1, n * n * math.prod(rest.shape[:-1])))
    for start in range(0, rest.shape[-1], step):
        at = s[..., start : start + step]
        M = at[..., None, None] * A[..., None, :, :] + r[..., start : start + step, None, None] * I
        yield at, xp.lu_solve(*xp.lu_factor(M), xp.broadcast_to(I, M.shape))


def _flat(xp: Any, grid: Array, count: int) -> Array:
    """A grid (*batch, n_1, ..., n_count) as (*batch, n)."""
    return xp.reshape(grid, (*grid.shape[: grid.ndim - count], -1))
