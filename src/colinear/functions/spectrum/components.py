"""Eigenpairs of tridiagonal matrices, and of sparse ones whose graph falls apart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array
from ...dispatch import Choice, rule
from ...info import Info, report
from ...methods import EIGEN, Auto, Eig, Eigh, fitting
from ...methods.structured import all_pairs, few_pairs
from ...operators import Dense, Diagonal, LinearOperator, Product, Sine, Sparse, Tridiagonal
from ...operators.sparse import SparseStructure
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY
from ...status import combine
from ..common import host_value, ignore_float_errors, is_traced_or_differentiated, to_result_dtype
from . import (
    Pairs,
    asked,
    check_algebraic,
    checked,
    eig,
    finish,
    is_hermitian_by,
    judge_pairs,
    pairs_like,
)
from .order import by_key

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
    places: np.ndarray
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
        return [
            Part(
                np.arange(structure.shape[0])[None],
                np.arange(structure.nnz),
                np.zeros(0, int),
                structure,
            )
        ]
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
            found.append(
                Part(
                    rows,
                    entries,
                    np.zeros(0, int),
                    SparseStructure(indptr, j, (int(size), int(size))),
                )
            )
        else:
            found.append(
                Part(rows, entries, (number[of_entry[entries]] * size + i) * size + j, None)
            )
    return found


@rule(eig, Sparse, when=falls_apart, hereditary=True)
def eig_components(A: Any, k: Any, which: str, method: Any) -> Any:
    """A graph that falls apart: the eigenpairs of its components, with zeros elsewhere"""
    _, k = checked(A, k, which)
    is_hermitian = is_hermitian_by(A, fitting("eig", method, *EIGEN))
    check_algebraic(which, is_hermitian)

    def each_part() -> Iterator[Any]:
        for part in parts(A.structure):
            block = _block(A, part)._claim(A.properties & ~(STIEFEL | UNITARY))
            own = method if part.structure is not None else Eigh() if is_hermitian else Eig()
            yield eig(block, min(k, block.shape[-1]), which, own, info=True)

    def like() -> Any:
        deque(each_part(), maxlen=0)
        return pairs_like(A, k)

    return Choice(lambda: _together(A, k, which, method, is_hermitian, each_part()), like=like)


def _together(
    A: Any, k: int, which: str, method: Any, is_hermitian: bool, pairs_and_infos: Iterator[Any]
) -> tuple[Array, LinearOperator]:
    """The k eigenpairs of the whole from those of its components."""
    xp, infos = A.xp, []
    found: list[Any] = []
    for pairs, info in pairs_and_infos:
        found.append(pairs)
        infos.append(info)
        if which[0] == "S" and _is_unbeatable(A, k, found):
            break
    values, residual = (
        xp.concat([xp.reshape(each, (-1,)) for each in arrays], axis=0)
        for arrays in ([values for values, _ in found], [info.residual for info in infos])
    )
    order = by_key(xp, values, which)[:k]
    order = (
        xp.take(order, xp.argsort(xp.take(values, order, axis=0), axis=-1, stable=True), axis=0)
        if is_hermitian
        else order
    )
    values, residual = (xp.take(x, order, axis=0) for x in (values, residual))
    counts = ([getattr(info, name) or 0 for info in infos] for name in ("iterations", "matvecs"))
    iterations, matvecs = map(sum, counts)
    status = combine([info._status for info in infos])
    report(
        Info(
            status,
            residual <= _tolerance(A, method),
            iterations,
            matvecs,
            residual,
            children=tuple(infos),
        )
    )
    return values, _vectors(A, found, host_value(xp, order), is_hermitian)


def _is_unbeatable(A: Any, k: int, found: list[Any]) -> bool:
    """Whether k eigenvalues have been found to be zero, and A is positive semidefinite: no other
    is smaller."""
    if not A.properties & POSITIVE_SEMIDEFINITE:
        return False
    xp = A.xp
    values = xp.concat([xp.reshape(values, (-1,)) for values, _ in found], axis=0)
    zeros = host_value(
        xp, xp.sum(xp.abs(values) <= ZERO * xp.eps(A.dtype) * xp.max(xp.abs(A.data)))
    )
    return zeros is not None and int(zeros) >= k


def _tolerance(A: LinearOperator, method: Any) -> float:
    return (method or Auto()).tolerance(A.xp, A.dtype)


def _block(A: Any, part: Part) -> LinearOperator:
    """The matrix of a component, or the stack of those of one size."""
    xp = A.xp
    data = xp.take(A.data, part.entries, axis=-1)
    if part.structure is not None:
        return Sparse._of(data, part.structure)
    count, size = part.rows.shape
    empty = xp.zeros((count * size * size,), dtype=A.dtype, device=A._context.device)
    return Dense(xp.reshape(xp.scatter_add(empty, part.places, data), (count, size, size)))


def _vectors(A: Any, found: list[Any], order: np.ndarray, is_hermitian: bool) -> LinearOperator:
    """The eigenvectors at these places of all that were found, each in the rows of its
    component."""
    xp, n = A.xp, A.shape[-1]
    dtype = found[0][1].dtype
    V = xp.zeros((n, len(order)), dtype=dtype, device=A._context.device)
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
    operator = Dense(to_result_dtype(xp, V, A.dtype))
    return operator._claim(STIEFEL) if is_hermitian else operator


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
    if 0 in A.shape or not _can_be_seen(A):
        return False
    if not all(_is_constant(A.xp, d) for d in (A.lower, A.diag, A.upper)):
        return False
    lower, diag, upper = _on_host(A, 1)
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


def _is_constant(xp: Any, d: Array) -> bool:
    # JAX traces what is computed inside a program, even of arrays that can be seen
    values = xp.peek(d)
    return (
        bool(xp.all(d == d[..., :1])) if values is None else bool(np.all(values == values[..., :1]))
    )


def _can_be_seen(A: Any) -> bool:
    return not any(is_traced_or_differentiated(A.xp, d) for d in (A.lower, A.diag, A.upper))


def _most(A: Any) -> float:
    """The logarithm of the condition number up to which D is used: eps^(-1/4)."""
    return -0.25 * math.log(A.xp.eps(A.dtype))


def _on_host(A: Any, count: int | None = None) -> tuple[Any, Any, Any]:
    """The three diagonals, or their beginnings, in double precision."""
    wide = np.complex128 if A.is_complex else np.float64

    def beginning(d: Array) -> Any:
        values = A.xp.peek(d)
        # of a GPU no more than is needed
        values = A.xp.to_numpy(d[..., :count]) if values is None else values[..., :count]
        return np.broadcast_to(values.astype(wide), (*A.batch_shape, values.shape[-1]))

    return beginning(A.lower), beginning(A.diag), beginning(A.upper)


def _put(A: Any, x: Any) -> Array:
    """Numbers of the host in A's framework and precision, real or complex as they are."""
    xp = A.xp
    real = xp.real_dtype(A.dtype)
    return xp.asarray(
        x, dtype=xp.complex_dtype(A.dtype) if np.iscomplexobj(x) else real, device=A._context.device
    )


@rule(eig, Tridiagonal, when=diagonals_are_constant)
def eig_sines(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """tridiag(c, a, b) has the eigenvalues a + 2 (b c)^1/2 cos(π j / (n + 1)) and eigenvectors D
    S: sines S, D_i = (c / b)^(i/2)"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    lower, a, upper = _on_host(A, 1)
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
    if is_hermitian and k == n:  # s < 0, so they ascend
        return _put(A, values.real), vectors
    return finish(A, _put(A, values), vectors, k, which, is_hermitian)


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
    if 0 in A.shape or not _can_be_seen(A):
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


@rule(eig, Tridiagonal, when=is_symmetrisable, direct=True)
def eig_tridiagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """T = D S D^-1 with S real, symmetric and tridiagonal has the eigenvalues of S and
    eigenvectors D V; D is unitary for self-adjoint T"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    lower, diag, upper = _on_host(A)
    s, r = _symmetrised(lower, upper, A)
    D = np.concatenate([np.ones((*A.batch_shape, 1)), np.cumprod(r, axis=-1)], axis=-1)
    few = is_hermitian and 0 < k < n
    order = (
        {"LM": "LA", "SM": "SA"}.get(which, which)
        if A.properties & POSITIVE_SEMIDEFINITE
        else which
    )
    count = k if few else n
    values, V = np.empty((*A.batch_shape, count)), np.empty((*A.batch_shape, n, count))
    for i in np.ndindex(A.batch_shape):
        d = diag[i].real
        values[i], V[i] = few_pairs(d, s[i], k, order) if few else all_pairs(d, s[i])
    vectors = D[..., None] * V
    vectors = (
        vectors
        if is_hermitian
        else vectors / np.linalg.vector_norm(vectors, axis=-2, keepdims=True)
    )
    found, Q = _put(A, values), Dense(_put(A, vectors))
    _report(A, found, Q.A, method, is_hermitian)
    Q = Q._claim(STIEFEL) if A.properties & SELF_ADJOINT else Q
    return (
        (found, Q)
        if few or (is_hermitian and k == n)
        else finish(A, found, Q, k, which, is_hermitian)
    )


def _report(A: Any, values: Array, V: Array, method: Any, is_hermitian: bool) -> None:
    xp = A.xp
    with ignore_float_errors(xp):
        size = xp.sqrt(sum(xp.sum(xp.abs(d) ** 2, axis=-1) for d in (A.lower, A.diag, A.upper)))
        finite = xp.all(xp.isfinite(A.diag), axis=-1)[..., None]
        chosen = fitting("eig", method, *EIGEN)
        judge_pairs(
            xp,
            A @ V - V * values[..., None, :],
            size[..., None],
            finite,
            None,
            chosen,
            "tridiagonal",
            A,
        )
