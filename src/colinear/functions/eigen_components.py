"""Eigenpairs of a sparse matrix whose graph falls apart: those of its components, each found alone.

A graph of many components is where iterations fail without a word: the Laplacian has the eigenvalue 0 once for each of them, and a
Krylov space holds one vector of each eigenspace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from ..dispatch import Choice, rule
from ..info import Info, combine, report
from ..methods import EIGEN, Auto, Eig, Eigh, fitting
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.sparse import Sparse
from ..operators.sparsity import SparseStructure
from ..properties import POSITIVE_SEMIDEFINITE, STIEFEL, UNITARY
from ._arrays import narrow, seen
from ._spectral import by_key
from .eigen import check_algebraic, checked, eig, is_hermitian_by, pairs_like

SMALLEST = 400  # rows below which the whole matrix is as fast
ZERO = 10  # roundings up to which an eigenvalue is zero
TINY = 64  # rows up to which components are solved apart, those of one size together


class Part(NamedTuple):
    """Components of one size, or all that are not tiny as one: the rows of each, (count, size); where their entries stand in the
    data, and in their matrices."""

    rows: np.ndarray
    entries: np.ndarray
    places: np.ndarray
    structure: SparseStructure | None  # if it stays sparse


def falls_apart(A: Any) -> bool:
    """Whether A is square and large, its graph has several components, and its values can be seen."""
    m, n = A.shape[-2:]
    return m == n >= SMALLEST and A.data.ndim == 1 and not A.xp.is_differentiated(A.data) and len(parts(A.structure)) > 1


def parts(structure: SparseStructure) -> list[Part]:
    """The components, found once."""
    if "components" not in structure.memo:
        structure.memo["components"] = _parts(structure)
    return structure.memo["components"]


def _parts(structure: SparseStructure) -> list[Part]:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = csr_array((np.ones(structure.nnz, np.int8), structure.columns, structure.indptr), shape=structure.shape)
    count, label = connected_components(graph, directed=False)
    sizes = np.bincount(label, minlength=count)
    if count == 1 or sizes.min() > TINY:
        return [Part(np.arange(structure.shape[0])[None], np.arange(structure.nnz), np.zeros(0, int), structure)]
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
            found.append(Part(rows, entries, np.zeros(0, int), SparseStructure(indptr, j, (int(size), int(size)))))
        else:
            found.append(Part(rows, entries, (number[of_entry[entries]] * size + i) * size + j, None))
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
    order = xp.take(order, xp.argsort(xp.take(values, order, axis=0), axis=-1, stable=True), axis=0) if is_hermitian else order
    values, residual = (xp.take(x, order, axis=0) for x in (values, residual))
    counts = ([getattr(info, name) or 0 for info in infos] for name in ("iterations", "matvecs"))
    iterations, matvecs = map(sum, counts)
    status = combine([info._status for info in infos])
    report(Info(status, residual <= _tolerance(A, method), iterations, matvecs, residual, children=tuple(infos)))
    return values, _vectors(A, found, seen(xp, order), is_hermitian)


def _is_unbeatable(A: Any, k: int, found: list[Any]) -> bool:
    """Whether k eigenvalues have been found to be zero, and A is positive semidefinite: no other is smaller."""
    if not A.properties & POSITIVE_SEMIDEFINITE:
        return False
    xp = A.xp
    values = xp.concat([xp.reshape(values, (-1,)) for values, _ in found], axis=0)
    zeros = seen(xp, xp.sum(xp.abs(values) <= ZERO * xp.eps(A.dtype) * xp.max(xp.abs(A.data))))
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
    """The eigenvectors at these places of all that were found, each in the rows of its component."""
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
    operator = Dense(narrow(xp, V, A.dtype))
    return operator._claim(STIEFEL) if is_hermitian else operator
