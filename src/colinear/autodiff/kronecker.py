"""Derivatives of f(a C + b I), where C is A_1 ⊗ A_2 ⊗ ... or A_1 ⊕ A_2 ⊕ ... with self-adjoint factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

from ..backends import Array, adjoint, hermitian, inner_products, zeros_like
from .functions import derive, divided_differences, hoist_number
from .spectral import eigh_known, in_vectors

# Derivatives of f(a C + b I), where C is A_1 ⊗ A_2 ⊗ ... or A_1 ⊕ A_2 ⊕ ... with self-adjoint
# factors, by the eigenpairs of the factors.
#
# With A_i = V_i Λ_i V_i^H and V = V_1 ⊗ V_2 ⊗ ..., f(a C + b I) = V diag(φ) V^H, where φ is f of a
# grid: the products, or sums, of eigenvalues. In this basis a change of one factor is P = V_i^H
# dA_i V_i. It couples places of the grid that differ in coordinate i only, so what Daleckii and
# Krein found (`functions.spectral_function`) needs no more than the divided differences of φ in
# that coordinate, all others held:
#     V^H df V  has the entries  φ[λ_p, λ_q] P_pq,
# which are as smooth where eigenvalues of a factor meet as elsewhere: there they are slopes. No
# derivative of V is needed.
#
# Second derivatives differentiate the eigenpairs, and are NaN with a warning where those of a
# factor repeat (`spectral`).


LARGEST = 2**22  # divided differences that are held at once


class Grid(NamedTuple):
    """The function f, and whether the eigenvalues of the factors are added or multiplied."""

    f: Callable[[Array], Array]
    is_sum: bool

    def combined(self, values: Sequence[Array]) -> Array:
        """The sums or products of eigenvalues, (*batch, n_1, n_2, ...)."""
        m = len(values)
        placed = [
            v[(..., *(None,) * i, slice(None), *(None,) * (m - 1 - i))]
            for i, v in enumerate(values)
        ]
        return reduce(lambda x, y: x + y if self.is_sum else x * y, placed)

    def of(self, values: Sequence[Array], a: Array, b: Array) -> Array:
        """φ"""
        return self.f(_beside(a, len(values)) * self.combined(values) + _beside(b, len(values)))

    def push(self, xp: Any, k: Factors, dk: Factors) -> tuple[Array, Array]:
        """φ, and its derivative along (da, db), as columns."""
        found = xp.jvp(lambda ab: self.of(k.values, *ab), (k.a, k.b), (dk.a, dk.b))
        phi, slope = (column(xp, k, x) for x in found)
        return phi, slope

    def rest(self, xp: Any, values: Sequence[Array], i: int) -> Array:
        """The sums or products of the eigenvalues of all factors but i, (*batch, t)."""
        others = [v for j, v in enumerate(values) if j != i]
        if not others:
            return zeros_like(xp, values[i], (1,)) + (0 if self.is_sum else 1)
        return flat(xp, self.combined(others), len(others))

    def couplings(self, xp: Any, v: Array, rest: Array, a: Array, b: Array) -> Array:
        """φ[λ_p, λ_q] in the coordinate of v, for all places `rest` (*batch, t) of the others:
        (*batch, t, n, n).

        φ is f of a multiple of λ and a constant, so these are the divided differences of f times
        that multiple.
        """
        v, rest, a, b = v[..., None, :], rest[..., None], _beside(a, 2), _beside(b, 2)
        z = a * (v + rest if self.is_sum else v * rest) + b
        multiple = a if self.is_sum else a * rest
        D = divided_differences(xp, self.f, z[..., :, None], z[..., None, :])
        return D * multiple[..., None]


def _beside(c: Array, axes: int) -> Array:
    return c[(..., *(None,) * axes)]


class Factors(NamedTuple):
    """What the functions below take apart: the factors as matrices, their eigenpairs, a and b."""

    matrices: tuple[Array, ...]
    values: tuple[Array, ...]
    vectors: tuple[Array, ...]
    a: Array
    b: Array

    def flat(self) -> tuple[Array, ...]:
        return (*self.matrices, *self.values, *self.vectors, self.a, self.b)

    @staticmethod
    def of(arrays: Sequence[Array]) -> Factors:
        m = (len(arrays) - 2) // 3
        matrices, values, vectors = (tuple(arrays[i * m : (i + 1) * m]) for i in range(3))
        return Factors(matrices, values, vectors, arrays[-2], arrays[-1])

    def ranks(self) -> tuple[int, ...]:
        m = len(self.matrices)
        return (*(2,) * m, *(1,) * m, *(2,) * m, 0, 0)

    @property
    def sizes(self) -> list[int]:
        return [V.shape[-1] for V in self.vectors]

    def differentiable(self, xp: Any, known: Callable[..., Any] = eigh_known) -> Factors:
        """The same with eigenpairs that depend on the matrices."""
        triples = zip(self.matrices, self.values, self.vectors, strict=True)
        values, vectors = zip(*(known(xp, *triple) for triple in triples))
        return self._replace(values=values, vectors=vectors)


def _derived(
    xp: Any,
    grid: Grid,
    factors: Factors,
    others: Sequence[Array],
    of: Callable[..., Array],
    tangent: Callable[..., Array],
) -> Array:
    """`of(grid, factors, others)`, linear in f, with its derivative `tangent(grid, factors, moved
    factors, others, moved others)`."""
    held = factors.flat()
    arrays, count, is_sum = (*held, *others), len(held), grid.is_sum

    def whole(f: Callable, *arrays: Array) -> Array:
        return of(Grid(f, is_sum), Factors.of(arrays[:count]), arrays[count:])

    def push(f: Callable, primals: tuple, tangents: tuple, output: Array) -> Array:
        k, dk = Factors.of(primals[:count]).differentiable(xp), Factors.of(tangents[:count])
        return tangent(Grid(f, is_sum), k, dk, primals[count:], tangents[count:])

    def attach(*arrays: Array) -> tuple:
        return *Factors.of(arrays[:count]).differentiable(xp).flat(), *arrays[count:]

    if not xp.is_differentiated(*arrays):
        return whole(grid.f, *arrays)
    ranks = (*factors.ranks(), *(2,) * len(others))
    g, hidden = hoist_number(xp, grid.f, factors.values[0])
    return derive(xp, g, hidden, whole, push, attach, arrays, ranks)


def product(xp: Any, grid: Grid, factors: Factors, X: Array) -> Array:
    """f(a C + b I) X for X of shape (*batch, n, k)."""

    def of(grid: Grid, k: Factors, others: Sequence[Array]) -> Array:
        inside = turned(xp, [adjoint(xp, V) for V in k.vectors], others[0])
        return turned(xp, k.vectors, column(xp, k, grid.of(k.values, k.a, k.b)) * inside)

    def tangent(
        grid: Grid, k: Factors, dk: Factors, others: Sequence[Array], moved: Sequence[Array]
    ) -> Array:
        back = [adjoint(xp, V) for V in k.vectors]
        phi, slope = grid.push(xp, k, dk)
        inside = turned(xp, back, others[0])
        change = phi * turned(xp, back, moved[0]) + slope * inside
        for i in range(len(back)):
            change = change + _coupled(xp, grid, k, i, dk.matrices[i], xp.matmul, inside)
        return turned(xp, k.vectors, change)

    return _derived(xp, grid, factors, (X,), of, tangent)


def diagonal(
    xp: Any, grid: Grid, factors: Factors, left: Sequence[Array], right: Sequence[Array]
) -> Array:
    """The diagonal of (L_1 ⊗ L_2 ⊗ ...) f(a C + b I) (R_1 ⊗ R_2 ⊗ ...).

    With U = L V and W = V^H R entry x is Σ_p U_xp φ_p W_px, so it is (U_1 ∘ W_1^T ⊗ U_2 ∘ W_2^T ⊗
    ...) φ; the part that a change of one factor has in that of f is Σ_pq U_xp φ[λ_p, λ_q] P_pq W_qx
    in its coordinate.
    """
    m = len(factors.vectors)

    def of(grid: Grid, k: Factors, others: Sequence[Array]) -> Array:
        phi = column(xp, k, grid.of(k.values, k.a, k.b))
        return turned(xp, weights(k, others), phi)[..., 0]

    def tangent(
        grid: Grid, k: Factors, dk: Factors, others: Sequence[Array], moved: Sequence[Array]
    ) -> Array:
        L, R = others[:m], others[m:]
        phi, slope = grid.push(xp, k, dk)
        known = weights(k, others)
        of_others = lambda others: turned(xp, weights(k, others), phi)
        change = turned(xp, known, slope) + xp.jvp(of_others, tuple(others), tuple(moved))[1]
        for i, V in enumerate(k.vectors):
            U = xp.matmul(L[i], V)[..., None, :, :]
            Wt = xp.matrix_transpose(inner_products(xp, V, R[i]))[..., None, :, :]
            ends = lambda G, _, U=U, Wt=Wt: xp.sum(xp.matmul(U, G) * Wt, axis=-1)[..., None]
            own = _coupled(xp, grid, k, i, dk.matrices[i], ends, phi)
            change = change + turned(xp, [*known[:i], None, *known[i + 1 :]], own)
        return change[..., 0]

    def weights(k: Factors, others: Sequence[Array]) -> list[Array]:
        return [
            xp.matmul(B, V) * xp.matrix_transpose(inner_products(xp, V, D))
            for B, V, D in zip(others[:m], k.vectors, others[m:], strict=True)
        ]

    return _derived(xp, grid, factors, (*left, *right), of, tangent)


def turned(xp: Any, matrices: Sequence[Array | None], X: Array) -> Array:
    """(B_1 ⊗ B_2 ⊗ ...) X; None stands for I, which is one at most."""
    columns, known = X.shape[-1], math.prod(B.shape[-1] for B in matrices if B is not None)
    sizes = [X.shape[-2] // known if B is None else B.shape[-1] for B in matrices]
    for i, B in enumerate(matrices):
        if B is not None:
            before, after = math.prod(sizes[:i]), math.prod(sizes[i + 1 :]) * columns
            X = xp.reshape(X, (*X.shape[:-2], before, sizes[i], after))
            X = xp.matmul(B[..., None, :, :], X)
            sizes[i] = B.shape[-2]
            X = xp.reshape(X, (*X.shape[:-3], math.prod(sizes), columns))
    return X


def flat(xp: Any, grid: Array, count: int) -> Array:
    """A grid (*batch, n_1, ..., n_count) as (*batch, n)."""
    return xp.reshape(grid, (*grid.shape[: grid.ndim - count], -1))


def column(xp: Any, k: Factors, grid: Array) -> Array:
    """A grid (*batch, n_1, n_2, ...) as one column (*batch, n, 1)."""
    return flat(xp, grid, len(k.values))[..., None]


def _coupled(
    xp: Any,
    grid: Grid,
    k: Factors,
    i: int,
    dA: Array,
    act: Callable[[Array, Array], Array],
    X: Array,
) -> Array:
    """`act(φ[λ_p, λ_q] P_pq, the part of X there)` along coordinate i, at all places of the
    others, as columns."""
    n, v, rest = k.sizes[i], k.values[i], grid.rest(xp, k.values, i)
    P = in_vectors(xp, k.vectors[i], hermitian(xp, dA), True)[..., None, :, :]
    before, after = math.prod(k.sizes[:i]), math.prod(k.sizes[i + 1 :])
    # X along coordinate i: (*batch, t, n, c)
    X = xp.reshape(X, (*X.shape[:-2], before, n, after, X.shape[-1]))
    X = xp.moveaxis(X, -3, -2)
    X = xp.reshape(X, (*X.shape[:-4], before * after, n, X.shape[-1]))
    if math.prod(rest.shape) * n * n <= LARGEST:
        Y = act(grid.couplings(xp, v, rest, k.a, k.b) * P, X)
    else:  # place by place
        one = lambda rest, X: act(
            grid.couplings(xp, v, rest[..., None], k.a, k.b) * P, X[..., None, :, :]
        )[..., 0, :, :]
        Y = xp.moveaxis(xp.loop_map(one, xp.moveaxis(rest, -1, 0), xp.moveaxis(X, -3, 0)), 0, -3)
    Y = xp.reshape(Y, (*Y.shape[:-3], before, after, *Y.shape[-2:]))
    Y = xp.moveaxis(Y, -2, -3)
    return xp.reshape(Y, (*Y.shape[:-4], -1, Y.shape[-1]))
