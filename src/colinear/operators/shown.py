"""What the values of an operator show, though nothing was claimed: symmetry and sign of entries,
few diagonals, a Kronecker sum of lines. It is looked at only where a decision depends on it, and
remembered for one call."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..backends import Array, adjoint, program
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ..status import state
from .autograd import make_ready
from .banded import Banded, Tridiagonal
from .base import LinearOperator
from .block import BlockDiag
from .context import kind_of
from .convolution import Convolution
from .dense import Dense
from .diagonal import Diagonal
from .kronecker import Kronecker, KroneckerSum
from .scaled import Scaled
from .sparse import Sparse, SparseStructure
from .sum import Sum
from .toeplitz import Circulant, Toeplitz
from .tree import once_in_call

# Symmetry and the sign of entries.

STORED: Any = Dense | Sparse | Banded | Tridiagonal | Diagonal | Toeplitz | Circulant | Convolution
# whose properties are those of their operands, as far as they follow from them
INHERITING: Any = Sum | Scaled | Kronecker | KroneckerSum | BlockDiag


def with_symmetry_of_entries(A: LinearOperator) -> Any:
    """A with the properties that its entries show: self-adjoint where they equal those of A^H, and
    then positive where the diagonal outweighs the rest of each row (Gershgorin).

    They are read once in a call, since arrays may be changed between two calls, and where that is
    free: never under tracing, and on a device only whether a sparse matrix is symmetric, and the
    three diagonals that every formula for them reads; and what `look_at_matrices` has seen.
    """
    if A.is_neutral or A.xp.is_compiling() or A.shape[-1] != A.shape[-2] or 0 in A.shape:
        return A
    if A._context.backend == "numpy" and A._is_out_of_core:  # to read it is not free
        return A
    found = once_in_call(A, "_shown", lambda: _shown_beyond(A))
    return A if found is None else found


def _shown_beyond(A: LinearOperator) -> Any:
    """A with what its entries show; None, not a reference to itself that holds memory, if that is
    no more."""
    found = _shown_by_operands(A) if isinstance(A, INHERITING) else _shown_by_entries(A)
    return None if found is A else found


def look_at_matrices(operators: Sequence[Any]) -> None:
    """See which of these stored matrices equal their adjoints, those of a device by one wait for
    all, so that `with_symmetry_of_entries` knows for the rest of the call. In a block `deferred`
    nothing waits for a device."""
    unseen = [A for A in operators if _is_matrix_elsewhere(A)]
    if not unseen or state.waiting is not None:
        return
    unseen = list({id(A): A for A in unseen}.values())
    xp = unseen[0].xp
    held = [xp.stop_gradient(A.A) for A in unseen]
    found = xp.fetch([xp.all(M == adjoint(xp, M)) for M in held])
    for A, is_symmetric in zip(unseen, found):
        A.__dict__["_looked_at"] = state.call, True
        A.__dict__["_shown"] = state.call, A._claim(SELF_ADJOINT) if is_symmetric else None


def _is_matrix_elsewhere(A: Any) -> bool:
    """Whether A is a square matrix on a device, of which nothing is known or was looked at."""
    if not isinstance(A, Dense) or A.shape[-1] != A.shape[-2] or 0 in A.shape:
        return False
    xp = A.xp
    if A.properties & SELF_ADJOINT or xp.is_compiling() or xp.is_traced(A.A):
        return False
    return xp.is_on_device(A.A) and not once_in_call(A, "_looked_at", lambda: False)


def _shown_by_operands(A: Any) -> Any:
    inner = tuple(map(with_symmetry_of_entries, A.operands))
    if all(B is C for B, C in zip(inner, A.operands)):
        return A
    if isinstance(A, Scaled):  # which knows the sign of its factor where it is made
        return Scaled(A.scalar, *inner)._claim(A._claims)
    return A._replace(operands=inner)


def _shown_by_entries(A: Any) -> Any:
    if not isinstance(A, STORED) or A.properties & POSITIVE_SEMIDEFINITE:
        return A
    xp, values = A.xp, [A.xp.peek(x) for x in A.arrays()]
    is_unseen = any(x is None for x in values)
    if is_unseen and isinstance(A, Tridiagonal) and not any(map(xp.is_traced, A.arrays())):
        values, is_unseen = diagonals_on_host(A), False
    if is_unseen:
        is_waited_for = isinstance(A, Sparse) and not A.properties & SELF_ADJOINT
        if not is_waited_for or xp.is_traced(A.data) or not A.structure.is_symmetric:
            return A
        flipped = xp.take(A.data, A.structure.transposed.order, axis=-1)
        same = xp.all(flipped == xp.conj(A.data))
        return A._claim(SELF_ADJOINT) if bool(xp.to_numpy(same)) else A
    found = _claimed_by_entries(A, A.with_arrays(values))
    if "_diagonals_on_host" in A.__dict__:  # which are those of what was found, too
        found.__dict__["_diagonals_on_host"] = A.__dict__["_diagonals_on_host"]
    return found


def _claimed_by_entries(A: Any, host: Any) -> Any:
    """A with the properties that its entries show, of which `host` has copies in NumPy."""
    if not A.properties & SELF_ADJOINT and not _equals_adjoint(host):
        return A
    diagonal = None if isinstance(A, Dense | Convolution) else _stored_diagonal(host)
    if diagonal is None:
        return A._claim(SELF_ADJOINT)
    with np.errstate(all="ignore"):
        rows = (host._map(np.abs) @ np.ones(A.shape[-1], np.abs(diagonal).dtype)).real
        slack = 2 * np.real(diagonal) - rows  # a_ii - Σ_(j≠i) |a_ij|
    if not np.all(slack >= 0):
        return A._claim(SELF_ADJOINT)
    # rounding of the sums is no reason to call a singular matrix definite
    is_definite = np.all(slack > 1e3 * np.finfo(slack.dtype).eps * rows)
    return A._claim(POSITIVE_DEFINITE if is_definite else POSITIVE_SEMIDEFINITE)


def diagonals_on_host(A: Any) -> list[Any]:
    """The three diagonals as they are; those of a device are copied once in a call."""
    xp, diagonals = A.xp, (A.lower, A.diag, A.upper)
    # JAX traces what is computed inside a program, even of arrays that can be seen
    values = [xp.peek(d) for d in diagonals]
    if any(d is None for d in values):
        values = once_in_call(A, "_diagonals_on_host", lambda: xp.fetch(diagonals))
    return values


def _equals_adjoint(A: Any) -> bool:
    """Whether the entries of a NumPy matrix are seen to be those of its adjoint."""
    if isinstance(A, Sparse):
        return A.structure.is_symmetric and np.array_equal(
            A.data[..., A.structure.transposed.order], A.data.conj()
        )
    B: Any = A.H
    if isinstance(A, Banded):
        own, other = (dict(zip(C.offsets, C.diagonals)) for C in (A, B))
        return own.keys() == other.keys() and all(np.array_equal(own[k], other[k]) for k in own)
    if type(A) is not type(B) or A._flatten()[1][:2] != B._flatten()[1][:2]:
        return False
    return all(map(np.array_equal, A.arrays(), B.arrays()))


def _stored_diagonal(A: Any) -> Any:
    """The diagonal of a matrix that stores it, None where it has none."""
    if isinstance(A, Diagonal):
        return A.d
    if isinstance(A, Toeplitz | Circulant):
        return A.col[..., :1]
    if isinstance(A, Sparse):
        on = A.structure.rows == A.structure.columns
        return A.data[..., on] if on.sum() == A.shape[-1] else None
    return dict(zip(A.offsets, A.diagonals)).get(0)


# What products show: a matrix with few diagonals, as the derivatives of discretised equations are.

FEWEST_ROWS_ASSEMBLED = 1000
MOST_DIAGONALS = 64  # of a matrix that is assembled
UNIT_COLUMNS = 8  # multiplied to find the diagonals
BLOCK = 16  # columns that a program of JAX multiplies together
ROUNDS = 3  # of finding diagonals, those after the first from the rows in which some were missing
MOST_SEEDED = 3e7  # numbers of the block by which the entries are found
ROUNDINGS = 1000  # by which products with random vectors may differ from those of A


def assembled(A: LinearOperator) -> Sparse | None:
    """The sparse matrix that has the products of A, from few of them; None if it was not found.

    Unit vectors show which diagonals there are. Those of one residue modulo p, columns that no row
    meets twice, are then multiplied as one vector: p products give all entries (Curtis, Powell and
    Reid 1974). Products with random vectors must agree; in rows where they do not, products with
    A^H show what is missing. It is made once in a call, of an A whose values can be seen.
    """
    m, n = A.shape[-2:]
    if A.batch_shape or A.is_neutral or A.xp.is_compiling() or min(m, n) < FEWEST_ROWS_ASSEMBLED:
        return None
    return once_in_call(A, "_assembled", lambda: _assemble_if_seen(A))


def _assemble_if_seen(A: LinearOperator) -> Sparse | None:
    B, xp = A.detach(), A.xp
    is_hidden = any(map(xp.is_traced, (*B.arrays(), xp.zeros((1,)))))
    if is_hidden or A.dtype.itemsize <= 2 or A.shape[-1] * UNIT_COLUMNS > MOST_SEEDED:
        return None
    try:
        with np.errstate(all="ignore"):
            return _assemble(B if xp.is_functional else make_ready(B))
    except (RuntimeError, TypeError):  # of a function that takes no blocks
        return None


def _assemble(A: LinearOperator) -> Sparse | None:
    """The matrix of A by products with vectors, and A^H by some more; None if it was not found."""
    found = _find_diagonals(A)
    if found is None:
        return None
    S = found[1]
    return Sparse._of(A.xp.asarray(S.data, **kind_of(A)), S.structure)


def _find_diagonals(A: LinearOperator) -> tuple[set[int], Sparse] | None:
    """The k of all entries (i, i - k) of A, and its matrix on the host."""
    (m, n), random = A.shape[-2:], np.random.default_rng(0)
    W = random.standard_normal((n, 2))
    chosen = random.permutation(n)[:UNIT_COLUMNS]
    found = _multiply(A, np.concatenate([W, np.arange(n)[:, None] == chosen], axis=-1))
    rows, at = np.nonzero(found[:, 2:])
    offsets = set((rows - chosen[at]).tolist())
    for _ in range(ROUNDS):
        S = _with_diagonals(A, offsets) if len(offsets) <= MOST_DIAGONALS else None
        if S is None:
            return None
        error = np.max(abs(found[:, :2] - S @ W), axis=-1)
        bound = ROUNDINGS * A.xp.eps(A.dtype) * np.max(S._map(abs) @ abs(W))
        wrong = np.flatnonzero(~(error <= bound))
        if not len(wrong):
            return offsets, S
        if A.backend == "numpy" and getattr(A, "multiply_adjoint", True) is None:
            return None
        chosen = random.choice(wrong, min(UNIT_COLUMNS, len(wrong)), replace=False)
        columns, at = np.nonzero(_multiply(A.H, np.arange(m)[:, None] == chosen))
        offsets.update((chosen[at] - columns).tolist())
    return None


def _multiply(A: LinearOperator, X: Any) -> Any:
    """A X of an array on the host; in JAX in blocks of one width, so that one program is enough."""
    xp, k, run = A.xp, X.shape[-1], program(A.xp.name, _product)
    width = BLOCK if xp.is_functional else k
    X = np.pad(X, ((0, 0), (0, -k % width)))
    blocks = [xp.asarray(X[:, i : i + width], **kind_of(A)) for i in range(0, k, width)]
    return np.concatenate([xp.to_numpy(run(A, block)) for block in blocks], axis=-1)[:, :k]


def _product(xp: Any, A: LinearOperator, X: Array) -> Array:
    return (make_ready(A) if xp.is_functional else A) @ X


def _with_diagonals(A: LinearOperator, offsets: set[int]) -> Sparse | None:
    """The matrix of A, on the host, if it has entries (i, i - k) for these k alone."""
    p = _residues(offsets, A.shape[-1])
    if p is None:
        return None
    places = structure_of_diagonals(tuple(sorted(offsets)), *A.shape[-2:])
    Y = _multiply(A, _seeds(A.shape[-1], p))
    values = Y[places.rows, places.columns % p]
    is_entry = values != 0
    starts = np.concatenate([[0], np.cumsum(is_entry)])[places.indptr]
    structure = SparseStructure(starts, places.columns[is_entry], places.shape)
    return Sparse._of(values[is_entry], structure)


def _residues(offsets: Collection[int], n: int) -> int | None:
    """The least p modulo which these numbers differ: columns j and j + p are not met by one row."""
    sizes = range(max(1, len(offsets)), 4 * MOST_DIAGONALS)
    p = next((p for p in sizes if len({k % p for k in offsets}) == len(offsets)), None)
    return None if p is None or n * p > MOST_SEEDED else p


def _seeds(n: int, p: int) -> Any:
    """The sums of the unit vectors of each residue modulo p, as columns."""
    return np.arange(n)[:, None] % p == np.arange(p)


@functools.lru_cache(maxsize=4)
def structure_of_diagonals(offsets: tuple[int, ...], m: int, n: int) -> SparseStructure:
    """All (i, i - k) inside an m x n matrix. What is known of it, an order to eliminate in, serves
    all that have it."""
    j = np.arange(m)[:, None] - np.array(offsets[::-1], dtype=np.int64)  # ascending in a row
    is_inside = (j >= 0) & (j < n)
    starts = np.concatenate([[0], np.cumsum(is_inside.sum(axis=1))])
    return SparseStructure(starts, j[is_inside], (m, n))


# The same in a program, which knows no values when it is made.


def diagonals_in_program(A: LinearOperator) -> tuple[int, ...] | None:
    """The k of the entries (i, i - k) that A should have when a program runs; None if they are not
    few, or if A can be seen now.

    They are those of the same function at other points: numbers that are drawn stand for what is
    not known yet. A function that branches may have others where the program takes it.
    """
    is_small = min(A.shape[-2:]) < FEWEST_ROWS_ASSEMBLED
    if A.batch_shape or A.is_neutral or not A.xp.is_functional or is_small:
        return None
    return once_in_call(A, "_diagonals_in_program", lambda: _diagonals_elsewhere(A.detach()))


def _diagonals_elsewhere(A: LinearOperator) -> tuple[int, ...] | None:
    xp, arrays = A.xp, A.arrays()
    is_hidden = any(map(xp.is_traced, arrays))
    if not is_hidden or A.dtype.itemsize <= 2 or A.shape[-1] * UNIT_COLUMNS > MOST_SEEDED:
        return None
    # positive, since logarithms and roots have them; then of both signs, since there may be branches
    offsets = _diagonals_at(A, _stand_ins(xp, arrays, 0.5))
    if offsets is None:
        return None
    offsets |= _diagonals_at(A, _stand_ins(xp, arrays, -1.5)) or set()
    is_few = len(offsets) <= MOST_DIAGONALS and _residues(offsets, A.shape[-1]) is not None
    return tuple(sorted(offsets)) if is_few else None


def _diagonals_at(A: LinearOperator, arrays: list[Array]) -> set[int] | None:
    """The k of all entries (i, i - k) of A with these arrays; None if they are not few."""
    try:
        with A.xp.outside_trace(), np.errstate(all="ignore"):
            found = _find_diagonals(A.with_arrays(arrays))
    except Exception:  # whatever the function does not do there: nobody asked it to
        return None
    return None if found is None else found[0]


def with_diagonals_in_program(A: LinearOperator, offsets: tuple[int, ...]) -> Sparse:
    """The matrix of A, filled in by products when the program runs, if it has these diagonals
    alone; else one that is near to it."""
    xp, p = A.xp, _residues(offsets, A.shape[-1]) or 1
    structure = structure_of_diagonals(offsets, *A.shape[-2:])
    Y = make_ready(A.detach()) @ xp.asarray(_seeds(A.shape[-1], p), **kind_of(A))
    return Sparse._of(Y[structure.rows, structure.columns % p], structure)


def _stand_ins(xp: Any, arrays: Any, least: float) -> list[Any]:
    """Numbers between `least` and 3/2 in place of what is traced."""
    random = np.random.default_rng(0)
    return [
        xp.asarray(random.uniform(least, 1.5, x.shape), dtype=x.dtype) if xp.is_traced(x) else x
        for x in arrays
    ]


# What a sparse matrix shows: a Kronecker sum of lines, as the Laplacian of a box is.

SMALL_GRID = 400  # points up to which elimination is as fast as transforms


def as_sum_of_lines(A: Any) -> Any:
    """T_1 ⊕ ... ⊕ T_d where the entries of a sparse matrix show that it is such a sum, positive
    definite, of symmetric lines; None where they do not. Most others are told by their first row.

    The diagonal may differ by rounding. A grid whose rows are weakly dominant, and one strictly, is
    definite (Taussky 1949). Lines that are long beside the others are left to elimination.
    """
    return once_in_call(A, "_lines", lambda: _sum_of_lines(A))


def _sum_of_lines(A: Any) -> Any:
    xp, structure, n = A.xp, A.structure, A.shape[-1]
    is_real = not A.is_complex and A.dtype.itemsize > 2
    if A.shape[-2] != n or n <= SMALL_GRID or A.batch_shape or not is_real:
        return None
    found = structure.memo.get("grid", ())
    if found == ():
        found = structure.memo["grid"] = _grid(structure)
    values = None if found is None else xp.peek(xp.stop_gradient(A.data))
    if values is None:
        return None
    sizes, diagonal, places = found
    d, slack = values[diagonal].reshape(sizes), values[diagonal].reshape(sizes).copy()
    lines, total, corner = [], -(len(sizes) - 1) * d.flat[0], (0,) * len(sizes)
    for axis, (forward, backward) in enumerate(places):
        along = lambda x, axis=axis: x.reshape([-1 if k == axis else 1 for k in range(d.ndim)])
        couplings = values[forward].reshape([m - (k == axis) for k, m in enumerate(sizes)])
        line = couplings[(*corner[:axis], slice(None), *corner[axis + 1 :])]
        is_symmetric = np.array_equal(values[forward], values[backward])
        if not (is_symmetric and (line != 0).all() and (couplings == along(line)).all()):
            return None
        own = d[(*corner[:axis], slice(None), *corner[axis + 1 :])]
        total = total + along(own)
        slack -= along(np.append(np.abs(line), 0) + np.append(0, np.abs(line)))
        lines.append((line, own - (d.flat[0] if axis else 0)))
    eps, largest = np.finfo(d.dtype).eps, np.abs(d).max()
    if np.abs(d - total).max() > 4 * eps * largest or slack.min() < 0:
        return None
    if slack.max() <= 1e3 * eps * largest:  # perhaps singular
        return None
    put = lambda x: xp.asarray(np.array(x), device=A._context.device)
    terms = (Tridiagonal._of(put(line), put(own), put(line)) for line, own in lines)
    return KroneckerSum(*terms)._claim(POSITIVE_DEFINITE)


def _grid(structure: Any) -> Any:
    """The sizes of a grid, slowest first, whose points are coupled to their neighbours and to no
    others, the places of the diagonal, and those of the couplings along each axis, forward and
    back; None where the pattern is no such grid, or one far longer in one direction."""
    n, nnz = structure.shape[0], structure.nnz
    strides = [*structure.columns[: structure.indptr[1]].tolist(), n]
    if strides[:2] != [0, 1] or len(strides) < 4 or any(b % a for a, b in pairwise(strides[1:])):
        return None
    sizes = [b // a for a, b in pairwise(strides[1:])][::-1]
    if nnz != n + 2 * sum(n - n // size for size in sizes) or max(sizes) ** 2 > 4 * n:
        return None
    apart = structure.columns - structure.rows
    points, places = np.arange(n).reshape(sizes), []
    for axis, stride in enumerate(strides[-2:0:-1]):
        pair = [np.flatnonzero(apart == sign * stride) for sign in (1, -1)]
        inner = np.take(points, range(sizes[axis] - 1), axis).reshape(-1)
        rows = [structure.rows[place] for place in pair]
        if not (np.array_equal(rows[0], inner) and np.array_equal(rows[1], inner + stride)):
            return None
        places.append(pair)
    diagonal = np.flatnonzero(apart == 0)
    return (sizes, diagonal, places) if len(diagonal) == n else None
