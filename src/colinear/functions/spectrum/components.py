"""Eigenpairs of tridiagonal matrices, and of sparse ones whose graph falls apart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array
from ...dispatch import Choice
from ...info import Info, report, worst_status
from ...methods import Eig, Eigh
from ...methods.structured import all_pairs, few_pairs
from ...operators import (
    Dense,
    Diagonal,
    KroneckerSum,
    LinearOperator,
    Product,
    Sine,
    Sparse,
    Tridiagonal,
)
from ...operators.context import kind_of
from ...operators.shown import diagonals_on_host
from ...operators.sparse import SparseStructure
from ...operators.tree import once_in_call
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY, Unitary
from ..common import host_value, ignore_float_errors, values_are_seen
from . import Pairs, eig, eig_rule, judge_pairs, known_eig_rule, pairs_like
from .order import Asked

# Eigenpairs of a sparse matrix whose graph falls apart: those of its components, each found alone.
#
# A graph of many components is where iterations fail without a word: the Laplacian has the
# eigenvalue 0 once for each of them, and a Krylov space holds one vector of each eigenspace.


SMALLEST = 400  # rows below which the whole matrix is as fast
ZERO = 10  # roundings up to which an eigenvalue is zero
TINY = 64  # rows up to which components are solved apart, those of one size together


class Part(NamedTuple):
    """Components of one size, or all that are not tiny as one: the rows of each, (count, size);
    where their entries stand in the data, and in their matrices."""

    rows: np.ndarray
    entries: np.ndarray
    places: np.ndarray | None
    structure: SparseStructure | None  # if it stays sparse


def falls_apart(A: Any) -> bool:
    """Whether A is square and large, its graph has several components, and its values can be
    seen."""
    m, n = A.shape[-2:]
    return (
        m == n >= SMALLEST
        and A.data.ndim == 1
        and not A.xp.is_differentiated(A.data)
        and bool(parts(A.structure))
    )


def parts(structure: SparseStructure) -> list[Part]:
    """The components, found once; nothing where they are of one kind, or one."""
    if "components" in structure.memo:
        return structure.memo["components"]
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    # entries stand for themselves; from 1 on, for zeros might go
    numbers = csr_array(
        (np.arange(structure.nnz) + 1, structure.columns, structure.indptr), shape=structure.shape
    )
    label = connected_components(numbers, directed=False)[1]
    sizes = np.minimum(np.bincount(label)[label], TINY + 1)  # of the component of each row
    order = np.argsort(label, kind="stable")  # rows by component
    found: list[Part] = []
    kinds = np.unique(sizes)
    for size in kinds if len(kinds) > 1 else ():
        rows = order[sizes[order] == size]
        block = numbers[rows][:, rows]
        block.sort_indices()
        if size > TINY:
            kept = SparseStructure(block.indptr, block.indices, block.shape)
            found.append(Part(rows[None], block.data - 1, None, kept))
        else:
            block = block.tocoo()  # zero outside of the matrices along its diagonal
            places = block.row * size + block.col % size
            found.append(Part(rows.reshape(-1, size), block.data - 1, places, None))
    structure.memo["components"] = found
    return found


@eig_rule(Sparse, when=falls_apart, hereditary=True)
def eig_components(A: Any, asked: Asked) -> Any:
    """A graph that falls apart: the eigenpairs of its components, with zeros elsewhere"""

    def each_part() -> Iterator[Any]:
        dense = Eigh() if asked.is_hermitian else Eig()
        for part in parts(A.structure):
            block = _block(A, part)._claim(A.properties & ~(STIEFEL | UNITARY))
            method = dense if part.structure is None else asked.method
            yield eig(block, min(asked.k, block.shape[-1]), asked.which, method, info=True)

    def like() -> Any:
        deque(each_part(), maxlen=0)
        return pairs_like(asked)

    return Choice(lambda: _together(asked, each_part()), like=like)


def _together(asked: Asked, pairs_and_infos: Iterator[Any]) -> Pairs:
    """The k eigenpairs of the whole from those of its components."""
    A, xp = asked.A, asked.A.xp
    found: list[Any] = []
    infos: list[Info] = []
    joined = lambda arrays: xp.concat([xp.reshape(x, (-1,)) for x in arrays], axis=0)
    for pairs, info in pairs_and_infos:
        found.append(pairs)
        infos.append(info)
        values = joined([values for values, _ in found])
        if asked.which[0] == "S" and A.properties & POSITIVE_SEMIDEFINITE:
            zeros = xp.abs(values) <= ZERO * xp.eps(A.dtype) * xp.max(xp.abs(A.data))
            count = host_value(xp, xp.sum(zeros))
            if count is not None and count >= asked.k:  # no other eigenvalue is smaller
                break
    order = asked.order(values)[: asked.k]
    residual = joined([info.residual for info in infos])[order]
    iterations = sum(info.iterations or 0 for info in infos)
    matvecs = sum(info.matvecs or 0 for info in infos)
    right = residual <= asked.chosen.tolerance(xp, A.dtype)
    status = worst_status(infos)
    report(Info(status, right, iterations, matvecs, residual, children=tuple(infos)))
    return values[order], _vectors(asked, found, host_value(xp, order))


def _block(A: Any, part: Part) -> LinearOperator:
    """The matrix of a component, or the stack of those of one size."""
    xp = A.xp
    data = xp.take(A.data, part.entries, axis=-1)
    if part.structure is not None:
        return Sparse._of(data, part.structure)
    count, size = part.rows.shape
    empty = xp.zeros((count * size * size,), **kind_of(A))
    return Dense(xp.reshape(xp.scatter_add(empty, part.places, data), (count, size, size)))


def _vectors(asked: Asked, found: list[Any], order: np.ndarray) -> LinearOperator:
    """The eigenvectors at these places of all that were found, each in the rows of its
    component."""
    A, xp = asked.A, asked.A.xp
    V = xp.zeros((asked.n, len(order)), dtype=found[0][1].dtype, device=A._context.device)
    first = 0
    for part, (values, vectors) in zip(parts(A.structure), found):
        count, each = part.rows.shape[0], values.shape[-1]
        mine = np.flatnonzero((order >= first) & (order < first + count * each))
        if len(mine):
            component, column = np.divmod(order[mine] - first, each)
            block = xp.reshape(vectors.to_dense(), (count, -1, each))
            taken = block[component, :, column]  # (len(mine), size)
            V = xp.set_at(V, (part.rows[component], mine[:, None]), taken)
        first += count * each
    return asked.wrap(V)


# Eigenvalues of tridiagonal matrices: in closed form where the diagonals are constant, else in
# O(n^2) on the host.
#
# Both are similar, by a diagonal matrix D, to a real symmetric one: if D is ill-conditioned, so
# are the eigenvectors, and the base case takes over. It also does so under tracing, where values
# cannot be seen, and where derivatives are recorded.


# --------------------------------------------------------------------------------------------------


def diagonals_are_constant(A: Any) -> bool:
    """Whether the diagonals are seen to be constant, and similar to those of a symmetric matrix
    by a well-conditioned D."""
    if 0 in A.shape or not values_are_seen(A):
        return False
    return bool(once_in_call(A, "_is_constant", lambda: _are_constant(A)))


def _are_constant(A: Any) -> bool:
    if any(np.any(d != d[..., :1]) for d in diagonals_on_host(A)):
        return False
    lower, diag, upper = first = _entries(A, 1)
    total = np.concatenate(first, axis=-1).sum(axis=-1)  # which shows NaN and infinity
    if not np.isfinite(total).all() or (lower * upper == 0).any():
        return False
    if A.properties & SELF_ADJOINT:
        return bool((lower == upper.conj()).all() and (diag.imag == 0).all())
    return _is_well_conditioned(A, (A.shape[-1] - 1) * _logarithm(lower, upper))


def _logarithm(lower: Any, upper: Any) -> Any:
    """log(D_(i+1) / D_i), where both are zero or neither is."""
    with np.errstate(all="ignore"):
        return np.where(lower == 0, 0, 0.5 * np.log(np.abs(lower / np.where(upper == 0, 1, upper))))


def _is_well_conditioned(A: Any, logarithms: Any) -> bool:
    """Whether D, from these logarithms of its entries, has a condition number below eps^(-1/4)."""
    widths = np.max(logarithms, axis=-1, initial=0) - np.min(logarithms, axis=-1, initial=0)
    return bool((widths < -0.25 * math.log(A.xp.eps(A.dtype))).all())


def _entries(A: Any, count: int | None = None) -> list[Any]:
    """The first entries of each diagonal, or all, on the host and in double precision."""
    dtype = np.complex128 if A.is_complex else np.float64
    wide = [np.asarray(d)[..., :count].astype(dtype) for d in diagonals_on_host(A)]
    return [np.broadcast_to(d, (*A.batch_shape, d.shape[-1])) for d in wide]


def _put(A: Any, x: Any) -> Array:
    """Numbers of the host in A's framework and precision, real or complex as they are."""
    xp = A.xp
    dtype = (xp.complex_dtype if np.iscomplexobj(x) else xp.real_dtype)(A.dtype)
    return xp.asarray(x, dtype=dtype, device=A._context.device)


@known_eig_rule(Tridiagonal, when=diagonals_are_constant)
def eig_sines(A: Any, asked: Asked) -> Pairs:
    """tridiag(c, a, b) has the eigenvalues a + 2 (b c)^1/2 cos(π j / (n + 1)) and eigenvectors D
    S: sines S, D_i = (c / b)^(i/2)"""
    n = asked.n
    lower, a, upper = _entries(A, 1)
    s, r = _symmetrised(lower, upper, A) if n > 1 else (0 * a, np.ones_like(a))
    half = np.pi * np.arange(1, n + 1) / (2 * n + 2)
    # a + 2 s cos(2 x) about that of its ends that is the smaller, so that it is found without
    # cancellation.
    low, high = a + 2 * s, a - 2 * s
    values = np.where(
        np.abs(low) <= np.abs(high),
        low - 4 * s * np.sin(half) ** 2,
        high + 4 * s * np.cos(half) ** 2,
    )
    vectors = _scaled_sines(A, r, n)
    if asked.is_hermitian and asked.k == n:  # s < 0, so they ascend
        return _put(A, values.real), vectors
    return asked.finish(_put(A, values), vectors)


def has_positive_spectrum(A: Any) -> bool:
    """Whether each eigenvalue that `spectrum_by_factors` finds of A is positive and has small
    relative errors, however small it is: of a Kronecker sum of lines that `eig_sines` knows, none
    of which has a negative eigenvalue."""

    def is_positive(X: Any) -> bool:
        if not isinstance(X, Tridiagonal) or X.shape[-1] < 2 or not diagonals_are_constant(X):
            return False
        lower, diag, upper = _entries(X, 1)
        return bool((diag.real >= np.abs(lower) + np.abs(upper)).all())

    return isinstance(A, KroneckerSum) and all(map(is_positive, A.operands))


def _symmetrised(lower: Any, upper: Any, A: Any) -> tuple[Any, Any]:
    """s and r with s r = lower and s / r = upper; a real s is not positive."""
    if A.properties & SELF_ADJOINT:
        s = -np.abs(lower)
    else:
        s = -np.emath.sqrt(lower * upper)
    return s, np.where(s == 0, 1, lower / np.where(s == 0, 1, s))


def _scaled_sines(A: Any, r: Any, n: int) -> LinearOperator:
    """diag(r^i) S with columns of norm 1."""
    S: LinearOperator = Sine(n, like=A)
    if (r == 1).all():
        return S
    size = np.abs(r)
    powers = (
        np.exp(1j * np.angle(r) * np.arange(n))
        if np.iscomplexobj(r)
        else np.sign(r) ** np.arange(n)
    )
    if (np.abs(size - 1) <= 4 * np.finfo(float).eps).all():
        return Unitary(Product(Diagonal(_put(A, powers)), S))
    grown = size ** np.arange(n)
    # |D s_k|^2 = sum_j D_j^2 (1 - cos(2 π j k / (n + 1))) / (n + 1): a Fourier transform
    sums = np.fft.fft(np.insert(grown**2, 0, 0, axis=-1)).real
    norms = np.sqrt((sums[..., :1] - sums[..., 1:]) / (n + 1))
    return Product(Diagonal(_put(A, powers * grown)), S, Diagonal(_put(A, 1 / norms)))


# --------------------------------------------------------------------------------------------------


def is_symmetrisable(A: Any) -> bool:
    """Whether its values are seen, and it is self-adjoint or similar to a symmetric matrix by a
    well-conditioned D."""
    if 0 in A.shape or not values_are_seen(A):
        return False
    lower, diag, upper = _entries(A)
    finite = all(np.isfinite(d).all() for d in (lower, diag, upper))
    if not finite or A.properties & SELF_ADJOINT:
        return finite
    if A.is_complex or not ((lower * upper > 0) | ((lower == 0) & (upper == 0))).all():
        return False
    return _is_well_conditioned(A, np.cumsum(_logarithm(lower, upper), axis=-1))


@known_eig_rule(Tridiagonal, when=is_symmetrisable, computes=True, direct=True)
def eig_tridiagonal(A: Any, asked: Asked) -> Pairs:
    """T = D S D^-1 with S real, symmetric and tridiagonal has the eigenvalues of S and
    eigenvectors D V; D is unitary for self-adjoint T"""
    xp, k, is_hermitian, which = A.xp, asked.k, asked.is_hermitian, asked.which
    lower, diag, upper = _entries(A)
    s, r = _symmetrised(lower, upper, A)
    D = np.cumprod(np.insert(r, 0, 1, axis=-1), axis=-1)
    if A.properties & POSITIVE_SEMIDEFINITE:
        which = {"LM": "LA", "SM": "SA"}.get(which, which)
    # magnitudes that tie are ordered by sign where T is not known to be self-adjoint
    few = k if is_hermitian else 2 * k
    is_few = 0 < few < asked.n and which in ("LM", "SM", "LA", "SA", "LR", "SR")
    pairs = partial(few_pairs, k=few, which=which) if is_few else all_pairs
    each = [pairs(diag[i].real, s[i]) for i in np.ndindex(A.batch_shape)]
    values, V = (np.reshape(parts, (*A.batch_shape, *parts[0].shape)) for parts in zip(*each))
    V = D[..., None] * V
    if not is_hermitian:
        V = V / np.linalg.vector_norm(V, axis=-2, keepdims=True)
    values, V = _put(A, values), _put(A, V)
    with ignore_float_errors(xp):
        size = xp.sqrt(sum(xp.sum(xp.abs(d) ** 2, axis=-1) for d in (A.lower, A.diag, A.upper)))
        finite = xp.all(xp.isfinite(A.diag), axis=-1)[..., None]
        judge_pairs(asked, "tridiagonal", A @ V - V * values[..., None, :], size[..., None], finite)
    vectors = asked.wrap(V)
    return (values, vectors) if is_hermitian and k else asked.finish(values, vectors)
