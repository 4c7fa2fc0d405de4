"""Derivatives of (a C + b I)^-1 and of its determinant, C a Kronecker product or sum of any factors."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..backends import Array, eye_like, matrix_inverse, without_zeros
from . import determinants
from .determinants import slogdet_of_diagonal
from .functions import times_inverse
from .kronecker import LARGEST, Factors, Grid, column, flat, turned
from .spectral import are_parallel, eig_known, in_vectors

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
        Whether C is a sum; its f is the identity.
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

    def of(*arrays: Array) -> tuple[Array, Array]:
        z = grid.of(arrays[:count], *arrays[count : count + 2])
        return slogdet_of_diagonal(xp, flat(xp, z, count))

    def tangent(primals: tuple, tangents: tuple, output: tuple) -> tuple[Array, Array]:
        values, ab = list(primals[:count]), primals[count : count + 2]
        A, V, moved = primals[count + 2 :: 2], primals[count + 3 :: 2], tangents[count + 2 :: 2]
        for i, M, X in zip(by_matrix, A, V, strict=True):
            values[i] = eig_known(xp, M, values[i], X)[0]
        blocks = [_blocks(xp, grid, values, i, M, *ab) for i, M in zip(by_matrix, A)]
        at, way = (tuple(values), *ab), (tuple(tangents[:count]), *tangents[count : count + 2])
        if is_polynomial:
            size = without_zeros(xp, xp.abs(xp.stop_gradient(grid.of(*at))))
            z = lambda x: xp.prod(flat(xp, grid.of(*x) / size, count), axis=-1)
            change = xp.jvp(z, at, way)[1]
            for own, dM in zip(blocks, moved, strict=True):
                change = change + _change_of_product(xp, own, dM, output[1])
            return change, 0 * output[1]
        z, dz = xp.jvp(lambda x: grid.of(*x), at, way)
        change = xp.sum(flat(xp, dz / z, count), axis=-1)
        for i, own, X, dM in zip(by_matrix, blocks, V, moved, strict=True):
            total = _sum_of_resolvents(xp, own, primals[i], X)
            # tr(Σ_t s_t R_t dA_i)
            change = change + xp.sum(xp.matrix_transpose(total) * dM, axis=(-2, -1))
        sign = output[0]
        return sign * 1j * xp.imag(change) if xp.is_complex(sign) else 0 * sign, xp.real(change)

    known = [x for A, V in matrices for x in (A, xp.stop_gradient(V))]
    ranks = (*(1,) * count, 0, 0, *(2,) * len(known))
    rule = xp.custom_derivative(of, jvp=tangent, ranks=ranks)
    sign, logarithm = rule(*values, a, b, *known)
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
    inverse = Grid(lambda z: 1 / z, grid.is_sum)
    values, vectors = (tuple(map(xp.stop_gradient, x)) for x in (values, vectors))
    factors = Factors(tuple(matrices), values, vectors, a, b)

    def weights(V: Array) -> Array:
        return V * xp.matrix_transpose(matrix_inverse(xp, V))  # V ∘ V^-T

    def of(*arrays: Array) -> Array:
        k = Factors.of(arrays)
        z = column(xp, k, inverse.of(k.values, k.a, k.b))
        return turned(xp, [weights(V) for V in k.vectors], z)[..., 0]

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        k, dk = Factors.of(primals), Factors.of(tangents)
        k = k.differentiable(xp, functools.partial(eig_known, guard=DIGITS))
        known, sizes = [weights(V) for V in k.vectors], k.sizes
        change = turned(xp, known, inverse.push(xp, k, dk)[1])
        for i, (M, dM) in enumerate(zip(k.matrices, dk.matrices, strict=True)):
            own = []  # -s_t diag(R_t dA_i R_t)
            for s, R in _blocks(xp, grid, k.values, i, M, k.a, k.b).resolvents(xp):
                moved = xp.matmul(R, dM[..., None, :, :]) * xp.matrix_transpose(R)
                own.append(-s[..., None] * xp.sum(moved, axis=-1))
            before, after = math.prod(sizes[:i]), math.prod(sizes[i + 1 :])
            rows = xp.concat(own, axis=-2)
            rows = xp.reshape(rows, (*rows.shape[:-2], before, after, sizes[i]))
            rows = flat(xp, xp.matrix_transpose(rows), 3)[..., None]
            change = change + turned(xp, [*known[:i], None, *known[i + 1 :]], rows)
        return change[..., 0]

    rule = xp.custom_derivative(of, jvp=tangent, ranks=factors.ranks())
    result: Array = rule(*factors.flat())
    return result


class Blocks(NamedTuple):
    """M_t = s_t A + r_t I for all places t of the eigenvalues of the other factors, s and r of
    shape (*batch, t)."""

    A: Array
    s: Array
    r: Array

    def parts(self, xp: Any) -> Iterator[tuple[Array, Array]]:
        """s_t (*batch, t) and M_t (*batch, t, n, n), so many at once as fit."""
        I, n = eye_like(xp, self.A), self.A.shape[-1]
        step = max(1, LARGEST // max(1, n * n * math.prod(self.s.shape[:-1])))
        for start in range(0, self.s.shape[-1], step):
            s, r = (x[..., start : start + step] for x in (self.s, self.r))
            yield s, s[..., None, None] * self.A[..., None, :, :] + r[..., None, None] * I

    def resolvents(self, xp: Any) -> Iterator[tuple[Array, Array]]:
        """s_t and R_t = M_t^-1, so many at once as fit."""
        for s, M in self.parts(xp):
            yield s, matrix_inverse(xp, M)


def _blocks(
    xp: Any, grid: Grid, values: Sequence[Array], i: int, A: Array, a: Array, b: Array
) -> Blocks:
    """The blocks of factor i, which is A."""
    a, b, rest = a[..., None], b[..., None], grid.rest(xp, values, i)
    if grid.is_sum:
        return Blocks(A, a + 0 * rest, a * rest + b)
    return Blocks(A, a * rest, b + 0 * rest)


def _sum_of_resolvents(xp: Any, blocks: Blocks, values: Array, V: Array) -> Array:
    """Σ_t s_t R_t: one by one, or by the eigenpairs of A where that would take long and they are
    good."""

    def one_by_one() -> Array:
        return sum(xp.sum(s[..., None, None] * R, axis=-3) for s, R in blocks.resolvents(xp))

    def by_vectors() -> Array:
        return _in_eigenvectors(xp, blocks.A, values, V, blocks.s, blocks.r)

    if blocks.s.shape[-1] * V.shape[-1] ** 3 <= CHEAP:
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
        return times_inverse(xp, V * weights[..., None, :], V)

    def tangent(primals: tuple, tangents: tuple, output: Array) -> Array:
        (A, values, V, s, r), (dA, _, _, ds, dr) = primals, tangents
        values, V = eig_known(xp, A, values, V, DIGITS)
        rho = fractions(values, s, r)
        P = in_vectors(xp, V, dA, False)
        D = -xp.matmul(xp.matrix_transpose(rho), s[..., None] ** 2 * rho)
        slope = xp.sum((r * ds - s * dr)[..., None] * rho**2, axis=-2)
        return times_inverse(xp, xp.matmul(V, D * P + xp.make_diagonal(slope)), V)

    return xp.custom_derivative(of, jvp=tangent, ranks=(2, 1, 2, 1, 1))(A, values, V, s, r)


def _change_of_product(xp: Any, blocks: Blocks, dA: Array, l: Array) -> Array:
    """Σ_t ∏_(u≠t) det(M_u) s_t tr(adj(M_t) dA), times e^-l."""
    parts = []
    for s, M in blocks.parts(xp):
        m, own, adjugate = determinants.with_adjugate(xp, M)
        moved = xp.sum(xp.matrix_transpose(adjugate) * dA[..., None, :, :], axis=(-2, -1))
        parts.append((m, own, s * moved))
    m, own, dm = (xp.concat(arrays, axis=-1) for arrays in zip(*parts, strict=True))
    change: Array = xp.jvp(lambda m: xp.prod(m, axis=-1), m, dm)[1]
    return change * xp.exp(xp.sum(own, axis=-1) - l)


def are_harmless(xp: Any, values: Array, V: Array) -> Array:
    """Whether derivatives that go through eigenpairs keep half of their digits: what is lost is
    1 / gap, and twice |V^-1|."""
    left = xp.max(xp.vector_norm(matrix_inverse(xp, V), axis=-1))
    gaps = xp.abs(values[..., :, None] - values[..., None, :])
    gap = xp.min(xp.where(eye_like(xp, gaps) > 0, math.inf, gaps))
    return left**2 * xp.max(xp.abs(values)) * math.sqrt(xp.eps(V.dtype)) < gap
