"""The null space, and its rules: orthonormal bases that keep the structure of the parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, adjoint, namespace_of
from ...dispatch import Choice, Cost, function, rule
from ...errors import BackendError, ShapeError
from ...info import Info, report
from ...methods import SVD, SVRG, Method, fitting
from ...operators import (
    Adjoint,
    Block,
    BlockDiag,
    Circulant,
    Conjugate,
    Convolution,
    Diagonal,
    Identity,
    Kronecker,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    Transpose,
    Zero,
    hstack,
)
from ...operators.context import kind_of
from ...operators.sparse_algebra import SHIFT
from ...operators.tree import Index
from ...properties import POSITIVE_DEFINITE, STIEFEL, Stiefel
from ...status import Status
from ..common import (
    array_like,
    dense,
    host_value,
    identity_like,
    in_context,
    is_square,
    is_traced_or_differentiated,
    largest_rank,
    once_each,
    operands_in_context,
    reports_nonfinite,
    smaller_side,
    to_result_dtype,
)
from ..orthonormal import (
    complement,
    first_columns,
    has_orthonormal_columns,
    has_orthonormal_rows,
    orthonormal,
)
from ..singular import cutoff, norm, relative_cutoff, svd
from ..singular.rules import COMPOSED, SIMPLE
from ..solve.cost import lapack_cost
from ..spectrum.order import grid_of, is_periodic, reordered, symbol
from ..spectrum.shift_invert import sampled_nullspace
from . import checked_rtol


def orthonormal_nullspace(
    A: LinearOperator, rtol: float | None = None, method: Method | None = None
) -> Any:
    """An orthonormal basis of the vectors x with A x = 0.

    Parameters
    ----------
    A : operator or array, (*batch, m, n)
    rtol : float, optional
        Singular values up to `rtol` times the largest count as zero; default max(m, n) eps.
    method : Auto, SVD or SVRG, optional
        `SVRG` finds it by products with minibatches of a sum, or of the rows of A; what it cannot
        tell from zero by its `tol` counts as zero.

    Returns
    -------
    LinearOperator, (*batch, n, nullity)
        Of orthonormal columns; their number depends on values, so it cannot be traced, and must be
        the same throughout a batch.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.nullspace(np.array([[1.0, 1.0]])).shape
    (2, 1)
    """
    fitting("nullspace", method, SVD, SVRG)
    checked_rtol("nullspace", rtol)
    if 0 in A.shape[-2:]:
        return identity_like(A)
    (m, n), batch = A.shape[-2:], math.prod(A.batch_shape)
    like = lambda: identity_like(A)[:, : max(n - m, 0)]  # it has as many columns at least
    if isinstance(method, SVRG):
        cost = Cost(method.typical(m, n) * A.flops, 8.0 * n * method.vectors)
        return Choice(lambda: sampled_nullspace(A, rtol, method), "SVRG", cost, "asked for", like)
    cost = lapack_cost(A, 20.0 * batch * m * n * n, 8.0 * batch * n * n, "SVD")
    why = "the right singular vectors of the negligible singular values"
    return Choice(lambda: null_vectors(A, lambda s: cutoff(A, s, rtol)), "SVD", cost, why, like)


def null_vectors(A: LinearOperator, limit: Callable[[Array], Array]) -> LinearOperator:
    """Right singular vectors of the singular values up to `limit(s)`, and those that have none."""
    xp, M = A.xp, dense(A)
    held = xp.stop_gradient(M)
    refuse_traced(xp, held)
    U, s, Vh = xp.svd(held, full_matrices=True)
    found = xp.fetch([xp.sum(s > limit(s), axis=-1), xp.all(xp.isfinite(s), axis=-1)])
    ranks, finite = map(np.asarray, found)
    if not finite.all():
        report(Info(Status.NONFINITE, method="SVD"))
    # of NaN there is no rank: it takes that of the others
    rank = same_throughout(A, ranks[finite] if finite.any() else ranks)
    rows, V = adjoint(xp, Vh[..., :rank, :]), adjoint(xp, Vh[..., rank:, :])
    report(Info(method="SVD"))
    if xp.is_differentiated(M) and 0 not in V.shape:
        inverse = xp.matmul(rows / s[..., None, :rank], adjoint(xp, U[..., :rank]))
        V = autodiff.nullspace(xp, M, V, inverse)
    return Stiefel(to_result_dtype(xp, V, A.dtype))


def visible(xp: Any, x: Array) -> Array:
    """The values that decide on the size of the answer, or an error if they cannot be seen."""
    x = xp.stop_gradient(x)  # in JAX, what is only differentiated can be seen then
    refuse_traced(xp, x)
    return host_value(xp, x)


def refuse_traced(xp: Any, x: Array) -> None:
    """An error if the values that decide on the size of the answer cannot be seen."""
    if xp.is_traced(x):
        raise BackendError(
            "nullspace: the number of columns depends on values, which cannot be seen under jit, "
            "vmap or compilation. Call it outside, or use svd(A) and keep all columns."
        )


def same_throughout(A: LinearOperator, ranks: Any) -> int:
    """The rank that all matrices of a batch share, or an error."""
    n = A.shape[-1]
    if ranks.size and ranks.min() != ranks.max():
        raise ShapeError(
            f"nullspace: the null spaces of this batch have dimensions from {n - ranks.max()} to "
            f"{n - ranks.min()}, "
            f"which no single operator holds. Call it for each matrix: nullspace(A[i])."
        )
    return int(ranks.max(initial=0))


def _rank(A: LinearOperator, s: Array, rtol: Any) -> int:
    """The number of singular values that are not negligible, the same throughout a batch."""
    kept = s > cutoff(A, s, checked_rtol("nullspace", rtol))
    return same_throughout(A, visible(A.xp, kept).sum(-1))


nullspace = function("nullspace", base=orthonormal_nullspace)


# Vectors that permutations leave as they are: the null space of P - I, and of several of these
# under each other.
#
# P x = x says that x is constant along each cycle of P; the same for several permutations, that it
# is constant along each orbit of the group that they generate. Orbits are the connected components
# of a graph with an edge from i to p(i) for each of them, so they take time in proportion to n,
# where an SVD would take n³. Kronecker products of permutations are permutations: the layers of a
# network that is equivariant to permutations of nodes (Maron et al., Invariant and equivariant
# graph networks, 2019) are these.


MOVED: Any = Sum[Permutation | Kronecker, SHIFT]


def moved(A: LinearOperator) -> np.ndarray | None:
    """p with (A x)[i] = x[p[i]] - x[i], if A is one permutation less the identity, known now."""
    if not isinstance(A, Sum) or len(A.operands) != 2 or len(A.shape) != 2 or not A.shape[-1]:
        return None
    P, shift = sorted(A.operands, key=lambda term: isinstance(term, ScaledIdentity))
    c = shift.c if isinstance(shift, ScaledIdentity) else None
    if not isinstance(c, int | float | complex) or c != -1:
        return None
    p = np.zeros(1, np.int64)
    for factor in P.operands if isinstance(P, Kronecker) else (P,):
        if isinstance(factor, Permutation) and isinstance(factor.perm, Index):
            q = factor.perm.host
        elif isinstance(factor, Identity):
            q = np.arange(factor.shape[-1])
        else:
            return None
        p = (p[:, None] * q.size + q).reshape(-1)
    return p


def leaves_orbits(A: Any) -> bool:
    """Whether it is a permutation less the identity, or several under each other."""
    rows = A.blocks if isinstance(A, Block) else ((A,),)
    return all(len(row) == 1 and moved(row[0]) is not None for row in rows)


@rule(nullspace, MOVED, when=leaves_orbits)
@rule(nullspace, Block, when=leaves_orbits)
def nullspace_orbits(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """P x = x for permutations P: x is constant along the orbits of the group that they generate"""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    parts, n = A.operands if isinstance(A, Block) else (A,), A.shape[-1]
    # The smallest singular value that is not zero is more than this part of the largest: that of a
    # path through all places.
    if checked_rtol("nullspace", rtol) is not None and rtol > 1 / (2 * n * math.sqrt(len(parts))):
        return nullspace.base(A, rtol, method)
    ends = np.concatenate([moved(part) for part in parts])
    starts = np.tile(np.arange(n), len(parts))
    graph = coo_array((np.ones(ends.size, np.int8), (starts, ends)), shape=(n, n))
    count, orbit = connected_components(graph, directed=False)
    weights = 1 / np.sqrt(np.bincount(orbit))
    basis = Sparse(coo_array((weights[orbit], (np.arange(n), orbit)), shape=(n, count)).tocsr())
    return Stiefel(basis if A.is_neutral else basis.to(backend=A.backend, **kind_of(A)))


# The rules of `nullspace`: orthonormal bases that keep the structure of the parts.
#
# The null space of constraints that are stacked, as of equivariant layers, is an intersection;
# that of a Kronecker product is made of the null spaces and the row spaces of its factors.


def nothing(A: LinearOperator) -> LinearOperator:
    """The basis without vectors."""
    return first_columns(identity_like(A), 0)


# --------------------------------------------------------------------------------------------------


@rule(nullspace, orthonormal(COMPOSED | Block, SIMPLE, MOVED))
@reports_nonfinite
def nullspace_orthonormal(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(Q) = {0} where Q^H Q = I"""
    checked_rtol("nullspace", rtol)
    return nothing(A)


@rule(nullspace, Zero)
def nullspace_zero(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(0) is everything"""
    checked_rtol("nullspace", rtol)
    return identity_like(A)


@rule(nullspace, Diagonal)
@reports_nonfinite
def nullspace_diagonal(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(diag(d)): the columns of I where d is zero"""
    size = A.xp.abs(A.d)
    nullity = A.shape[-1] - _rank(A, size, rtol)
    return reordered(identity_like(A), A.xp.argsort(size, axis=-1, stable=True), nullity)


@rule(nullspace, Projection)
@reports_nonfinite
def nullspace_projection(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(Q Q^H): what completes Q to a basis"""
    checked_rtol("nullspace", rtol)
    return complement(Stiefel(A.Q))


@rule(nullspace, LowRank)
def nullspace_low_rank(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(U C V^H): what completes the right singular vectors to a basis"""
    _, s, V = svd(A, largest_rank(A), method)
    return complement(first_columns(V, _rank(A, s, rtol)))


def zeros_can_be_seen(A: Any) -> bool:
    """Whether it is one periodic operator, whose values can be seen."""
    return not A.batch_shape and is_periodic(A) and not is_traced_or_differentiated(A.xp, symbol(A))


@rule(nullspace, Circulant | Convolution, when=zeros_can_be_seen)
def nullspace_circulant(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(F^H diag(c) F): the columns of F^H where c is zero, in pairs of cosines and sines for
    a real operator"""
    xp, n, grid = A.xp, A.shape[-1], grid_of(A)
    size = xp.reshape(xp.abs(symbol(A)), (n,))
    kept = visible(xp, size > cutoff(A, size, checked_rtol("nullspace", rtol)))
    if not np.isfinite(visible(xp, size)).all():
        return nullspace.base(A, rtol, method)
    own = np.flatnonzero(~kept)
    waves = np.stack(np.unravel_index(own, grid))  # their frequencies, one for each axis
    places = np.stack(np.unravel_index(np.arange(n), grid))
    angles = 2 * np.pi * sum(np.outer(p, w) % m / m for p, w, m in zip(places, waves, grid))
    V = np.exp(1j * angles) / np.sqrt(n)
    if not A.is_complex:  # of w and -w, one gives its cosine and the other its sine
        opposite = np.ravel_multi_index([-w % m for w, m in zip(waves, grid)], grid)
        V = np.where(own == opposite, V.real, np.sqrt(2) * np.where(own < opposite, V.real, V.imag))
    return Stiefel(array_like(A, V))


# --------------------------------------------------------------------------------------------------


def scalars_are_alike(A: LinearOperator) -> bool:
    """Whether the scalar can be seen, and is zero throughout a batch or nowhere."""
    c = _scalars(A)
    return c is not None and len(set((c != 0).reshape(-1).tolist())) == 1


def _scalars(A: Any) -> Any:
    """The scalar, or those of a batch, on the host; None where they cannot be seen."""
    c: Any = A.c if isinstance(A, ScaledIdentity) else A.scalar
    xp = namespace_of(c)
    return np.asarray(c) if xp is None else host_value(xp, c)


@rule(nullspace, ScaledIdentity | Scaled, when=scalars_are_alike)
@reports_nonfinite
def nullspace_scaled(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(c A) = null(A), or everything if c = 0"""
    checked_rtol("nullspace", rtol)
    if not _scalars(A).any():
        return identity_like(A)
    if isinstance(A, ScaledIdentity):
        return nothing(A)
    return nullspace(operands_in_context(A)[0], rtol, method)


@rule(nullspace, Conjugate)
def nullspace_conjugate(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(conj(A)) = conj(null(A))"""
    return nullspace(A.A, rtol, method).conj()


@rule(nullspace, Adjoint | Transpose)
def nullspace_adjoint(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(A^H): what completes the left singular vectors of A to a basis; its conjugate for A^T"""
    U, s, _ = svd(A.A, smaller_side(A), method)
    rank = _rank(A, s, rtol)
    found = complement(first_columns(U, rank)) if rank else identity_like(A)
    return found if isinstance(A, Adjoint) else found.conj()


def left_factor_is_injective(A: LinearOperator) -> bool:
    """Whether the first factor is known to have full column rank."""
    return bool(A.operands[0].properties & (STIEFEL | POSITIVE_DEFINITE))


@rule(nullspace, Product, when=left_factor_is_injective)
def nullspace_of_injective_times(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(A B) = null(B) if A has full column rank"""
    return nullspace(Product(*operands_in_context(A)[1:]), rtol, method)


def right_factor_is_unitary(A: LinearOperator) -> bool:
    """Whether the last factor is known to be unitary."""
    last = A.operands[-1]
    return has_orthonormal_columns(last) and has_orthonormal_rows(last)


@rule(nullspace, Product, when=right_factor_is_unitary)
def nullspace_of_times_unitary(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(A Q) = Q^H null(A) for unitary Q"""
    *rest, Q = operands_in_context(A)
    return Stiefel(Product(Q.H, nullspace(Product(*rest), rtol, method)))


@rule(nullspace, Kronecker)
def nullspace_kronecker(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """null(A ⊗ B) = [null(A) ⊗ I, row(A) ⊗ null(B)], each to its own rounding"""
    first, *others = operands_in_context(A)
    rest = Kronecker(*others)
    N, M = nullspace(first, rtol, method), nullspace(rest, rtol, method)
    if not N.shape[-1]:  # the rows of A span everything
        return Stiefel(Kronecker(identity_like(A, first.shape[-1]), M))
    everything = Stiefel(Kronecker(N, identity_like(A, rest.shape[-1])))
    if not M.shape[-1] or is_square(N):
        return everything
    return Stiefel(hstack(everything, Kronecker(complement(N), M)))


def _relative_to(A: LinearOperator, sizes: list[float], i: int, rtol: Any) -> float | None:
    """`rtol` for part i, so that negligible is what is so beside the largest part."""
    is_plain = 0 < sizes[i] <= max(sizes) < math.inf
    return relative_cutoff(A, rtol) * max(sizes) / sizes[i] if is_plain else None


def _sizes(A: LinearOperator, rtol: Any) -> list[float]:
    """The norms of the parts: largest singular values if `rtol` is given; of roundings no one
    counts the factor sqrt(n)."""
    order = "fro" if rtol is None else 2

    def size(part: LinearOperator) -> float:
        return float(visible(A.xp, A.xp.asarray(norm(in_context(part, A), order))).max(initial=0))

    return once_each(size, A.operands)


@rule(nullspace, BlockDiag)
def nullspace_block_diagonal(A: Any, rtol: Any, method: Any) -> Any:
    """null(diag(A, B)) = diag(null(A), null(B))"""
    checked_rtol("nullspace", rtol)
    found = partial(_nullspaces, A, rtol, method)
    return Choice(lambda: found(_sizes(A, rtol)), like=lambda: found([1.0] * len(A.operands)))


def _nullspaces(A: Any, rtol: Any, method: Any, sizes: list[float]) -> LinearOperator:
    """The null spaces of blocks of these sizes."""
    limits = {id(block): _relative_to(A, sizes, i, rtol) for i, block in enumerate(A.operands)}

    def null_of(block: LinearOperator) -> LinearOperator:
        limit = limits[id(block)]
        if limit is not None and limit >= 1:
            # all of the block is negligible beside the largest
            return identity_like(A, block.shape[-1])
        return nullspace(in_context(block, A), limit, method)

    return Stiefel(BlockDiag(*once_each(null_of, A.operands)))


def is_a_stack(A: Any) -> bool:
    """Whether the blocks stand in one column, and none is empty (nor each a permutation less the
    identity, of which more is known)."""
    one_column = all(len(row) == 1 for row in A.blocks)
    has_empty = any(0 in B.shape[-2:] for B in A.operands)
    return one_column and not has_empty and not leaves_orbits(A)


@rule(nullspace, Block, when=is_a_stack)
def nullspace_stack(A: Any, rtol: Any, method: Any) -> Any:
    """null([A; B]) = N null(B N) for N = null(A), the intersection of both"""
    checked_rtol("nullspace", rtol)

    of_images = lambda M, limit: null_vectors(M, lambda s: limit + 0 * s)
    like = lambda M, limit: nullspace(M, rtol, method)
    ones, found = [1.0] * len(A.operands), partial(_intersection, A, rtol, method)
    return Choice(lambda: found(_sizes(A, rtol), of_images), like=lambda: found(ones, like))


def _intersection(
    A: Any, rtol: Any, method: Any, sizes: list[float], of_images: Callable[..., LinearOperator]
) -> LinearOperator:
    """The intersection of the null spaces of blocks of these sizes; `of_images(B N, limit)` is
    the null space of B N."""
    limit = max(sizes) * relative_cutoff(A, rtol)
    first, *rest = operands_in_context(A)

    def restrict(N: LinearOperator, B: LinearOperator) -> LinearOperator:
        if not N.shape[-1]:
            return N
        return Stiefel(Product(N, of_images(Product(B, N), limit)))

    return reduce(restrict, rest, nullspace(first, _relative_to(A, sizes, 0, rtol), method))
