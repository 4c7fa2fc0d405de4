"""Eigenpairs of tridiagonal matrices, and of sparse ones whose graph falls apart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array
from ...dispatch import Choice
from ...info import Info, report
from ...methods import Eig, Eigh
from ...methods.structured import all_pairs, few_pairs
from ...operators import Dense, Diagonal, LinearOperator, Product, Sine, Sparse, Tridiagonal
from ...operators.sparse import SparseStructure
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY
from ...status import combine
from ..common import host_value, ignore_float_errors, values_are_seen
from . import Pairs, eig, eig_rule, judge_pairs, pairs_like
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
        and len(parts(A.structure)) > 1
    )


def parts(structure: SparseStructure) -> list[Part]:
    """The components, found once."""
    if "components" not in structure.memo:
        structure.memo["components"] = _parts(structure)
    return structure.memo["components"]


def _parts(structure: SparseStructure) -> list[Part]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = csr_array(
        (np.ones(structure.nnz, np.int8), structure.columns, structure.indptr),
        shape=structure.shape,
    )
    count, label = connected_components(graph, directed=False)
    sizes = np.bincount(label, minlength=count)
    if count == 1 or sizes.min() > TINY:
        rows, entries = np.arange(structure.shape[0])[None], np.arange(structure.nnz)
        return [Part(rows, entries, None, structure)]
    large = np.flatnonzero(sizes > TINY)
    label[np.isin(label, large)] = large[0] if len(large) else 0
    sizes = np.bincount(label, minlength=count)
    order = np.argsort(label, kind="stable")  # rows by component
    starts = np.concatenate([[0], np.cumsum(sizes)])
    inside = np.empty(len(label), np.int64)  # the number of a row in its component
    inside[order] = np.arange(len(label)) - np.repeat(starts[:-1], sizes)
    of_entry = label[structure.rows]
    found = []
    for size in np.unique(sizes[sizes > 0]):
        group = np.flatnonzero(sizes == size)
        rows = np.stack([order[starts[c] : starts[c + 1]] for c in group])
        number = np.full(count, -1)
        number[group] = np.arange(len(group))
        entries = np.flatnonzero(number[of_entry] >= 0)
        i, j = inside[structure.rows[entries]], inside[structure.columns[entries]]
        if size > TINY:
            indptr = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=size))])
            kept = SparseStructure(indptr, j, (int(size), int(size)))
            found.append(Part(rows, entries, None, kept))
        else:
            places = (number[of_entry[entries]] * size + i) * size + j
            found.append(Part(rows, entries, places, None))
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
    A: Any = asked.A
    xp, infos = A.xp, []
    found: list[Any] = []
    joined = lambda arrays: xp.concat([xp.reshape(x, (-1,)) for x in arrays], axis=0)
    for pairs, info in pairs_and_infos:
        found.append(pairs)
        infos.append(info)
        values = joined([values for values, _ in found])
        if asked.which[0] == "S" and _has_enough_zeros(asked, values):
            break
    order = asked.order(values)[: asked.k]
    residual = xp.take(joined([info.residual for info in infos]), order, axis=0)
    iterations, matvecs = (
        sum(getattr(info, name) or 0 for info in infos) for name in ("iterations", "matvecs")
    )
    right = residual <= asked.chosen.tolerance(xp, A.dtype)
    status = combine([info._status for info in infos])
    report(Info(status, right, iterations, matvecs, residual, children=tuple(infos)))
    return xp.take(values, order, axis=0), _vectors(asked, found, host_value(xp, order))


def _has_enough_zeros(asked: Asked, values: Array) -> bool:
    """Whether k eigenvalues have been found to be zero, and A is positive semidefinite: no other
    is smaller."""
    A: Any = asked.A
    if not A.properties & POSITIVE_SEMIDEFINITE:
        return False
    xp = A.xp
    zeros = xp.abs(values) <= ZERO * xp.eps(A.dtype) * xp.max(xp.abs(A.data))
    count = host_value(xp, xp.sum(zeros))
    return count is not None and int(count) >= asked.k


def _block(A: Any, part: Part) -> LinearOperator:
    """The matrix of a component, or the stack of those of one size."""
    xp = A.xp
    data = xp.take(A.data, part.entries, axis=-1)
    if part.structure is not None:
        return Sparse._of(data, part.structure)
    count, size = part.rows.shape
    empty = xp.zeros((count * size * size,), dtype=A.dtype, device=A._context.device)
    return Dense(xp.reshape(xp.scatter_add(empty, part.places, data), (count, size, size)))


def _vectors(asked: Asked, found: list[Any], order: np.ndarray) -> LinearOperator:
    """The eigenvectors at these places of all that were found, each in the rows of its
    component."""
    A: Any = asked.A
    xp, dtype = A.xp, found[0][1].dtype
    V = xp.zeros((asked.n, len(order)), dtype=dtype, device=A._context.device)
    first = 0
    for part, (values, vectors) in zip(parts(A.structure), found):
        count, each = part.rows.shape[0], values.shape[-1]
        mine = np.flatnonzero((order >= first) & (order < first + count * each))
        if len(mine):
            component, column = np.divmod(order[mine] - first, each)
            block = xp.reshape(vectors.to_dense(), (count, part.rows.shape[1], each))
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
    constant, (lower, diag, upper) = _beginnings(A)
    if not constant:
        return False
    if A.shape[-1] == 1:
        return bool(
            np.isfinite(diag).all() and (not A.properties & SELF_ADJOINT or (diag.imag == 0).all())
        )
    if not np.isfinite(lower + diag + upper).all() or (lower * upper == 0).any():
        return False
    if A.properties & SELF_ADJOINT:
        return bool((lower == upper.conj()).all() and (diag.imag == 0).all())
    with np.errstate(all="ignore"):
        condition = 0.5 * (A.shape[-1] - 1) * np.abs(np.log(np.abs(lower / upper)))
    return bool((condition < _most(A)).all())


def _beginnings(A: Any) -> tuple[bool, list[Any]]:
    """Whether the three diagonals are constant, and their first entries; from a device by one
    copy, which the operator keeps."""
    kept = A.__dict__.get("_beginnings_on_host")
    if kept is not None:
        return kept
    xp, diagonals = A.xp, (A.lower, A.diag, A.upper)
    # JAX traces what is computed inside a program, even of arrays that can be seen
    values = [xp.peek(d) for d in diagonals]
    if any(d is None for d in values):
        same = [xp.all(d == d[..., :1]) for d in diagonals]
        values = xp.fetch([*same, *(d[..., :1] for d in diagonals)])
        kept = all(map(bool, values[:3])), [_wide(A, d) for d in values[3:]]
        A.__dict__["_beginnings_on_host"] = kept
        return kept
    are_constant = all(bool(np.all(d == d[..., :1])) for d in values)
    return are_constant, [_wide(A, d[..., :1]) for d in values]


def _most(A: Any) -> float:
    """The logarithm of the condition number up to which D is used: eps^(-1/4)."""
    return -0.25 * math.log(A.xp.eps(A.dtype))


def _wide(A: Any, d: Any) -> Any:
    """Entries of a diagonal of A on the host, in double precision."""
    d = np.asarray(d).astype(np.complex128 if A.is_complex else np.float64)
    return np.broadcast_to(d, (*A.batch_shape, d.shape[-1]))


def _on_host(A: Any) -> list[Any]:
    """The three diagonals in double precision; the operator keeps those of a device."""
    values = [A.xp.peek(d) for d in (A.lower, A.diag, A.upper)]
    if all(d is not None for d in values):
        return [_wide(A, d) for d in values]
    if (kept := A.__dict__.get("_diagonals_on_host")) is None:
        kept = [_wide(A, d) for d in A.xp.fetch([A.lower, A.diag, A.upper])]
        A.__dict__["_diagonals_on_host"] = kept
    return kept


def _put(A: Any, x: Any) -> Array:
    """Numbers of the host in A's framework and precision, real or complex as they are."""
    xp = A.xp
    real = xp.real_dtype(A.dtype)
    return xp.asarray(
        x, dtype=xp.complex_dtype(A.dtype) if np.iscomplexobj(x) else real, device=A._context.device
    )


@eig_rule(Tridiagonal, when=diagonals_are_constant, known=True)
def eig_sines(A: Any, asked: Asked) -> Pairs:
    """tridiag(c, a, b) has the eigenvalues a + 2 (b c)^1/2 cos(π j / (n + 1)) and eigenvectors D
    S: sines S, D_i = (c / b)^(i/2)"""
    n = asked.n
    _, (lower, a, upper) = _beginnings(A)
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


def _symmetrised(lower: Any, upper: Any, A: Any) -> tuple[Any, Any]:
    """s and r with s r = lower and s / r = upper; a real s is not positive."""
    if A.properties & SELF_ADJOINT:
        s = -np.abs(lower)
    else:
        product = lower * upper
        s = -np.sqrt(
            product
            if (product.imag == 0).all() and (product.real >= 0).all()
            else product.astype(complex)
        )
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
        return Product(Diagonal(_put(A, powers)), S)._claim(UNITARY)
    grown = size ** np.arange(n)
    # |D s_k|^2 = sum_j D_j^2 (1 - cos(2 π j k / (n + 1))) / (n + 1): a Fourier transform
    squares = np.concatenate([np.zeros((*grown.shape[:-1], 1)), grown**2], axis=-1)
    sums = np.fft.fft(squares).real
    norms = np.sqrt((sums[..., :1] - sums[..., 1:]) / (n + 1))
    return Product(Diagonal(_put(A, powers * grown)), S, Diagonal(_put(A, 1 / norms)))


# --------------------------------------------------------------------------------------------------


def is_symmetrisable(A: Any) -> bool:
    """Whether its values are seen, and it is self-adjoint or similar to a symmetric matrix by a
    well-conditioned D."""
    if 0 in A.shape or not values_are_seen(A):
        return False
    lower, diag, upper = _on_host(A)
    finite = all(np.isfinite(d).all() for d in (lower, diag, upper))
    if not finite or A.properties & SELF_ADJOINT:
        return finite
    if A.is_complex or not ((lower * upper > 0) | ((lower == 0) & (upper == 0))).all():
        return False
    with np.errstate(all="ignore"):
        logarithms = np.cumsum(
            np.where(lower == 0, 0, 0.5 * np.log(lower / np.where(upper == 0, 1, upper))), axis=-1
        )
    return bool(
        (
            np.max(logarithms, axis=-1, initial=0) - np.min(logarithms, axis=-1, initial=0)
            < _most(A)
        ).all()
    )


@eig_rule(Tridiagonal, when=is_symmetrisable, known=True, direct=True)
def eig_tridiagonal(A: Any, asked: Asked) -> Pairs:
    """T = D S D^-1 with S real, symmetric and tridiagonal has the eigenvalues of S and
    eigenvectors D V; D is unitary for self-adjoint T"""
    n, k, is_hermitian, which = asked.n, asked.k, asked.is_hermitian, asked.which
    lower, diag, upper = _on_host(A)
    s, r = _symmetrised(lower, upper, A)
    D = np.concatenate([np.ones((*A.batch_shape, 1)), np.cumprod(r, axis=-1)], axis=-1)
    few = is_hermitian and 0 < k < n
    if A.properties & POSITIVE_SEMIDEFINITE:
        which = {"LM": "LA", "SM": "SA"}.get(which, which)
    count = k if few else n
    values, V = np.empty((*A.batch_shape, count)), np.empty((*A.batch_shape, n, count))
    for i in np.ndindex(A.batch_shape):
        d = diag[i].real
        values[i], V[i] = few_pairs(d, s[i], k, which) if few else all_pairs(d, s[i])
    vectors = D[..., None] * V
    if not is_hermitian:
        vectors = vectors / np.linalg.vector_norm(vectors, axis=-2, keepdims=True)
    found, Q = _put(A, values), Dense(_put(A, vectors))
    _report(asked, found, Q.A)
    if not is_hermitian:
        return asked.finish(found, Q)
    Q = Q._claim(STIEFEL)
    return (found, Q) if few or k == n else asked.finish(found, Q)


def _report(asked: Asked, values: Array, V: Array) -> None:
    A: Any = asked.A
    xp = A.xp
    with ignore_float_errors(xp):
        size = xp.sqrt(sum(xp.sum(xp.abs(d) ** 2, axis=-1) for d in (A.lower, A.diag, A.upper)))
        finite = xp.all(xp.isfinite(A.diag), axis=-1)[..., None]
        R = A @ V - V * values[..., None, :]
        judge_pairs(asked, "tridiagonal", R, size[..., None], finite)
