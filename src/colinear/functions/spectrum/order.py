"""What the rules for eigenvalues share: what was asked for and in which order, eigenvectors of
triangles, completed bases; and when `Auto` iterates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise
from operator import add, index, mul
from typing import Any, NamedTuple

import numpy as np

from ... import autodiff
from ...backends import Array, get, namespace_of, places_like, program, zeros_like
from ...dispatch import Cost
from ...methods import LOBPCG, SVRG, Arnoldi, Lanczos, Method
from ...operators import (
    FFT,
    Circulant,
    Dense,
    Kronecker,
    LinearOperator,
    Permutation,
    Product,
    Sine,
    Sliced,
)
from ...operators.batch import broadcast_batch
from ...operators.context import broadcast_batches, given_context, records_derivatives
from ...operators.convolution import periodic_column, transform_on_grid
from ...operators.divided import can_transform, is_divided, parts_of
from ...operators.tree import index_or_array
from ...properties import POSITIVE_SEMIDEFINITE, STIEFEL, Stiefel
from ..common import (
    ignore_float_errors,
    is_stored,
    outer,
    seen_value,
    to_result_dtype,
    values_are_seen,
)
from ..orthonormal import first_columns
from ..solve.cost import largest_dense, matrix_cost, products_cost
from .shift_invert import is_cheap, suits_jacobi

Pairs = tuple[Array, LinearOperator]


def checked_count(
    function: str, count: Any, least: int, most: int, bounds: str, name: str = "k"
) -> int:
    """A whole number from `least` to `most`, or an error that says what it must be."""
    try:
        found = index(count)
    except TypeError:
        raise ValueError(f"{function}: {name} is {count!r}; it must be a whole number.") from None
    if not least <= found <= most:
        raise ValueError(f"{function}: {name} is {found}; {bounds}")
    return found


class Asked(NamedTuple):
    """What a call of `eig` asks for: which pairs of A, how many, and whether they are those of a
    self-adjoint operator. `method` is as it was given, `chosen` the object that it stands for."""

    A: Any
    k: int
    which: str
    is_hermitian: bool
    method: Method | None
    chosen: Any

    @property
    def n(self) -> int:
        """The size of A."""
        return self.A.shape[-1]

    @property
    def some(self) -> int | None:
        """How many pairs, None for all."""
        return None if self.k == self.n else self.k

    @property
    def zeros_come_last(self) -> bool:
        """Whether eigenvalues that are zero are the last to be asked for."""
        is_positive = self.A.properties & POSITIVE_SEMIDEFINITE
        return self.which[0] == "L" and bool(self.which[1] == "M" or is_positive)

    def typed(self, values: Array) -> Array:
        """Real eigenvalues for self-adjoint operators, complex ones for others."""
        xp = namespace_of(values)
        if self.is_hermitian:
            return xp.real(values)
        return xp.astype(values, xp.complex_dtype(values.dtype))

    def order(self, values: Array) -> Array:
        """The places of all values, first those of the k that are asked for, as `eig` returns
        them: ascending if they are real."""
        xp, k = namespace_of(values), self.k
        if self.is_hermitian and k == values.shape[-1]:
            return xp.argsort(values, axis=-1, stable=True)
        order = by_key(xp, values, self.which)
        if not self.is_hermitian:
            return order
        pick = partial(xp.take_along_axis, axis=-1)
        rising = xp.argsort(pick(values, order[..., :k]), axis=-1, stable=True)
        return xp.concat([pick(order, rising), order[..., k:]], axis=-1)

    def finish(self, values: Array, vectors: LinearOperator) -> Pairs:
        """The pairs that were asked for, out of these, which may be in any order."""
        xp, values = self.A.xp, self.typed(values)
        values = xp.broadcast_to(values, (*self.A.batch_shape, values.shape[-1]))
        order = self.order(values)
        found = xp.take_along_axis(values, order[..., : self.k], axis=-1)
        return found, reordered(vectors, order, self.k)

    def attached(self, values: Array, V: Array) -> Pairs:
        """Pairs that were found by products, with their derivatives, as they are returned."""
        A, pairs = self.A, autodiff.pairs if self.is_hermitian else autodiff.general_pairs
        if records_derivatives(A):
            values, V = pairs(A, values, V)
        return to_result_dtype(A.xp, values, A.dtype), self.wrap(V)

    def wrap(self, V: Array) -> LinearOperator:
        """Columns that were computed, as the eigenvectors that are returned."""
        vectors = Dense(to_result_dtype(self.A.xp, V, self.A.dtype))
        return Stiefel(vectors) if self.is_hermitian else vectors


# --------------------------------------------------------------------------------------------------


def by_key(xp: Any, values: Array, which: str) -> Array:
    """The places of all values as `which` orders them; where it ties, the larger real part, then
    the larger imaginary part.

    Numbers that differ by rounding tie too: conjugate pairs and the spectra of unitary operators
    would otherwise come in an order that is an accident of the library that found them.
    """
    seen = xp.peek(values)
    if seen is None:  # one program, where every operation would be one
        return program(xp.name, _by_key, which)(values)
    # on the host, where no operation need be compiled
    return xp.asarray(_by_key(get("numpy"), which, seen), device=xp.device_of(values))


def _by_key(xp: Any, which: str, values: Array) -> Array:
    pick = partial(xp.take_along_axis, axis=-1)
    sort = partial(xp.argsort, axis=-1, stable=True)
    first = size = xp.abs(values)
    if which[1] == "I":
        first = xp.abs(xp.imag(values))
    elif which[1] != "M":
        first = xp.real(values)
    keys = [-first if which[0] == "L" else first]
    keys += [-xp.real(values)] if which[1] in "MI" else []
    keys += [-xp.imag(values)] if xp.is_complex(values) else []
    order, group = sort(keys[0]), None
    with ignore_float_errors(xp):
        for before, key in pairwise(keys):
            group = _groups(xp, pick(before, order), pick(size, order), group)
            if group is None:
                break
            step = sort(pick(key, order))
            step = pick(step, sort(pick(group, step)))
            order = pick(order, step)  # the groups keep their places, so `group` needs no sorting
    return order


def _groups(xp: Any, key: Array, size: Array, within: Array | None) -> Array | None:
    """Numbers of the groups of neighbours that tie: ascending keys (of values of these sizes, in
    each group of `within`) whose gaps are rounding. A chain of such gaps that is long in all is
    no tie. None if nothing is seen to tie."""
    n = key.shape[-1]
    rounding = min(16 * math.sqrt(n), 512) * xp.eps(key.dtype)
    gap = key[..., 1:] - key[..., :-1]
    joined = (gap <= rounding * xp.maximum(size[..., 1:], size[..., :-1])) & xp.isfinite(gap)
    if within is not None:
        joined = joined & (within[..., 1:] == within[..., :-1])
    if xp.name == "numpy" and not joined.any():
        return None
    device, pick = xp.device_of(key), partial(xp.take_along_axis, axis=-1)
    edge = xp.ones(key[..., :1].shape, dtype=xp.bool, device=device)
    edges = xp.concat([edge, ~joined, edge], axis=-1)  # before each number, and behind the last
    begins = edges[..., :-1]
    number = xp.cumsum(xp.where(begins, 1, 0), axis=-1)
    bounds = xp.sort(xp.where(edges, xp.arange(n + 1, device=device), n), axis=-1)
    first, last = pick(bounds, number - 1), pick(bounds, number) - 1
    spread = pick(key, last) - pick(key, first)
    largest = xp.maximum(pick(size, first), pick(size, last))
    return xp.cumsum(xp.where(begins | (spread > 4 * rounding * largest), 1, 0), axis=-1)


def end_to_end(A: LinearOperator, parts: Sequence[Array]) -> Array:
    """Numbers of the parts of A as one array, each with the batch shape of the whole."""
    xp, batch = A.xp, A.batch_shape
    return xp.concat([xp.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], axis=-1)


def padded(xp: Any, values: Array, count: int) -> Array:
    """The first `count` of these numbers, zeros where there are fewer."""
    missing = count - values.shape[-1]
    if missing <= 0:
        return values[..., :count]
    zeros = zeros_like(xp, values, (*values.shape[:-1], missing))
    return xp.concat([values, zeros], axis=-1)


def combinations(
    xp: Any,
    spectra: list[Array],
    is_sum: bool,
    keep: Callable[[Array], Array | None] = lambda values: None,
) -> tuple[Array, Array]:
    """All sums or products of one value of each spectrum, or those that `keep` picks on the way,
    and their places."""
    numbers = [places_like(xp, w) for w in spectra]
    values, places = spectra[0], numbers[0]
    for w, own in zip(spectra[1:], numbers[1:]):
        values = outer(add if is_sum else mul, values, w)
        places = outer(add, w.shape[-1] * places, own)
        if (kept := keep(values)) is not None:
            values, places = (xp.take(x, kept, axis=-1) for x in (values, places))
    return values, places


def kronecker(factors: Sequence[Any]) -> LinearOperator:
    """The Kronecker product; of sine transforms that of the grid, which moves no axes."""
    if all(isinstance(factor, Sine) for factor in factors):
        return Sine._of(sum((factor.grid for factor in factors), ()), factors[0].context)
    return Kronecker(*factors)


# --------------------------------------------------------------------------------------------------


def cycles(perm: np.ndarray) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The places of a permutation along its cycles, i, perm[i], perm[perm[i]], ..., the shorter
    cycles first, and the pairs (how many cycles, of what length)."""
    following, found = dict(enumerate(perm.tolist())), []
    for place in range(len(perm)):
        cycle = []
        while place in following:
            cycle.append(place)
            place = following.pop(place)
        found.append(cycle)
    found = sorted(filter(None, found), key=len)
    order = np.fromiter(chain.from_iterable(found), np.int64)
    return order, [(count, length) for length, count in Counter(map(len, found)).items()]


# --------------------------------------------------------------------------------------------------


def is_periodic(A: LinearOperator) -> bool:
    """Whether the circulant or convolution wraps around, on a grid that is not empty."""
    return 0 not in A.shape and getattr(A, "boundary", "wrap") == "wrap"


def grid_of(A: Any) -> tuple[int, ...]:
    """The sizes of the grid on which a Circulant or Convolution acts."""
    return (A.shape[-1],) if isinstance(A, Circulant) else A.grid


def fourier_basis(A: Any) -> Any:
    """The eigenvectors of a Circulant or a periodic Convolution; divided as A is."""
    grid = grid_of(A)
    is_shared = is_divided(A, A.xp) and can_transform(grid, parts_of(A.spread))
    return FFT(grid, like=A).H._replace(spread=A.spread if is_shared else None)


def symbol(A: Any) -> Array:
    """The eigenvalues of a Circulant or a periodic Convolution at the frequencies of the transform,
    (*batch, *grid).

    Of a real A those of opposite frequencies are conjugate, and here exactly so.
    """
    xp, (column, grid) = A.xp, periodic_column(A)
    axes = tuple(range(-len(grid), 0))
    values = transform_on_grid(A, column, grid)
    return values if A.is_complex else 0.5 * (values + xp.conj(mirrored(xp, values, axes)))


def mirrored(xp: Any, x: Array, axes: tuple[int, ...]) -> Array:
    """x at the opposite frequencies, x[-k]."""
    return xp.roll(xp.flip(x, axis=axes), (1,) * len(axes), axis=axes)


# When `Auto` finds eigenpairs by iteration, by which method, and what that is expected to cost.


SMALLEST = 400  # rows from which iterating may pay
# rows up to which derivatives are wanted more than speed: the dense way has all of them
DIFFERENTIABLE = 1500
STEPS = 8  # bases that a run is expected to fill, for the choice
PENALTY = 1.5  # on the expected cost of a run: it is a guess, and the dense way is certain
INSIDE = 20  # products to a row that pairs inside the spectrum are expected to take


def is_affordable(A: LinearOperator) -> bool:
    """Whether the matrix may be formed: it is stored, or small."""
    return is_stored(A) or math.prod(A.shape[-2:]) <= largest_dense(A) ** 2


def automatic(asked: Asked) -> Method | None:
    """The method that `Auto` iterates by; None for the dense way, which is for small matrices
    and for most of the spectrum."""
    A, k, is_hermitian, auto = asked.A, asked.k, asked.is_hermitian, asked.chosen
    n, affordable = asked.n, is_affordable(A)
    chosen: Any = (Lanczos if is_hermitian else Arnoldi)(tol=auto.tol, max_iters=auto.max_iters)
    if k == 0 or n < SMALLEST or (5 * k > n and affordable):
        return None
    if asked.which in ("SM", "SA", "SR") and 5 * k <= n and suits_jacobi(A):
        from ...preconditioners import Jacobi  # made of functions, so it comes after them

        return LOBPCG(tol=auto.tol, max_iters=auto.max_iters, preconditioner=Jacobi())
    if affordable and n <= DIFFERENTIABLE and not values_are_seen(A):
        return None
    if not affordable:
        return None if 2 * k > n else chosen  # more than half of them need the matrix
    expected = expected_cost(A, k, chosen)
    if asked.which in ("SM", "SI") and not (A.properties & POSITIVE_SEMIDEFINITE or is_cheap(A)):
        if not is_hermitian:  # from products alone they are not found
            return None
        expected = products_cost(A, INSIDE * n * math.prod(A.batch_shape), 8.0 * n, 0.0)
    return chosen if PENALTY * expected.seconds < dense_cost(A, is_hermitian).seconds else None


def dense_cost(A: LinearOperator, is_hermitian: bool) -> Cost:
    """What the eigenpairs of the matrix cost, with the matrix itself."""
    flops, name = (9.0, "Eigh") if is_hermitian else (25.0, "Eig")
    return matrix_cost(A, flops, 16.0, name)


def expected_cost(A: LinearOperator, k: int, method: Any) -> Cost:
    """What a run is expected to cost; its memory is sure."""
    n, batch = A.shape[-1], math.prod(A.batch_shape)
    if isinstance(method, SVRG):
        products = batch * k * method.typical(n, n)
        return products_cost(A, products, 0.0, 8.0 * batch * n * 5 * k)
    m = method.size(n, k)
    steps = STEPS * m
    return products_cost(A, batch * steps, 8.0 * m * n, 8.0 * batch * n * (m + k + 3))


# --------------------------------------------------------------------------------------------------


def reordered(Q: LinearOperator, order: Array, k: int, places: Any = None) -> LinearOperator:
    """Columns of Q: first those numbered `places[order]` (`order`, if no places are given), then
    the others, k in all.

    Where the order can be seen and is the same for a whole batch they are picked; otherwise all are
    permuted and k are kept.
    """
    xp, n, kept = namespace_of(order), Q.shape[-1], Q.properties & STIEFEL
    if places is None and isinstance(Q, Dense):
        return Dense(take_columns(xp, Q.A, order[..., :k]))._claim(kept)
    perm = seen_value(xp, order)
    perm = order if perm is None else np.asarray(perm)
    if places is not None:
        xp, rest = namespace_of(perm), np.setdiff1d(np.arange(n), places)
        places, rest = (xp.asarray(x, device=xp.device_of(perm)) for x in (places, rest))
        others = xp.broadcast_to(rest, (*perm.shape[:-1], rest.shape[0]))
        perm = xp.concat([places[perm], others], axis=-1)
    if isinstance(perm, np.ndarray) and (perm[..., :k] == np.arange(k)).all():
        return broadcast_batch(
            first_columns(Q, k), broadcast_batches(Q.batch_shape, perm.shape[:-1])
        )
    if k < n and perm.ndim == 1:
        return Sliced(Q, slice(None), perm[:k])._claim(kept)
    P = Permutation._of(
        index_or_array(perm, "columns"), given_context("columns", None if Q.is_neutral else Q, None)
    )
    return first_columns(Product(Q, P.T)._claim(kept), k)


def take_columns(xp: Any, V: Array, order: Array) -> Array:
    """The columns V[..., order], of each element of a batch its own."""
    batch = broadcast_batches(V.shape[:-2], order.shape[:-1])
    V = xp.broadcast_to(V, (*batch, *V.shape[-2:]))
    places = xp.broadcast_to(order[..., None, :], (*V.shape[:-1], order.shape[-1]))
    return xp.take_along_axis(V, places, axis=-1)
