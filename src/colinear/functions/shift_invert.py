"""Inverses for eigenvalues: where structure makes (A - shift I)^-1 cheap, the pairs nearest to the shift are its extreme ones."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..info import Status
from ..methods.arnoldi import arnoldi
from ..operators.autograd import GaussNewton, Hessian, Jacobian
from ..operators.base import LinearOperator
from ..operators.context import split_number
from ..operators.dense import Dense
from ..operators.identity import ScaledIdentity
from ..operators.matrixfree import MatrixFree
from ..operators.opaque import Opaque
from ..operators.rewrites import simplify
from ..operators.sparse import Sparse
from ..properties import POSITIVE_SEMIDEFINITE
from ._arrays import quiet, seen
from .inverse import LARGEST_DENSE, inv
from .inverse_on_host import fills_in

FILL = 40_000_000  # entries of triangular factors that are affordable
FUNCTIONS = (GaussNewton, Hessian, Jacobian, MatrixFree, Opaque)  # operators of which nothing but products is known
LARGE = 1000  # rows from which a factorisation pays for the outermost eigenvalues
EDGE = (
    0.05,
    0.5,
)  # of the width of the outermost Ritz values, by which the shift is beyond them: first, and if that was not enough


class Shifted(NamedTuple):
    """(A - shift I)^-1, and whether it failed: an array where that cannot be seen yet, and else False."""

    inverse: LinearOperator
    shift: complex
    failed: Any = False


def inverse_at(A: LinearOperator, shift: complex, form: bool) -> Shifted | None:
    """The inverse of A less a shift, where A is a stored matrix or structure makes it cheap; None where neither is so.

    `form` says whether the matrix of another A may be formed for it. At an eigenvalue, where there is no inverse, the one beside it
    is taken: the pairs nearest to the shift are nearest to that too, but for ties.
    """
    if not is_cheap(shifted(A, shift)):
        if not form or A.shape[-1] > LARGEST_DENSE or is_known_by_products(A):
            return None
        A = Dense(A.to_dense())._claim(A.properties)
    found = _inverse(shifted(A, shift), shift)
    if found is not None or (step := _small_shift(A)) == 0:
        return found
    return _inverse(shifted(A, shift + step), shift + step)


def is_known_by_products(A: LinearOperator) -> bool:
    """Whether a part of A is a function, or hidden by `opaque`."""
    return isinstance(A, FUNCTIONS) or any(map(is_known_by_products, getattr(A, "operands", ())))


def cheap_inverse(A: LinearOperator) -> Shifted | None:
    """The inverse of A where structure makes it cheap; None where nothing does.

    Of a singular A it is the inverse at a small shift, below the spectrum if A is positive.
    """
    if isinstance(A, Sparse) and A.properties & POSITIVE_SEMIDEFINITE and fills_in(A):
        return None  # the inverse would be an iteration, which fails where A is singular; products with A find its lower end
    if not is_cheap(A):
        return None
    found = _inverse(A, 0.0)
    if found is not None or (shift := _small_shift(A)) == 0:
        return found
    return _inverse(shifted(A, shift), shift)


def _small_shift(A: LinearOperator) -> float:
    """A negative number that is small beside A; zero where A cannot be seen."""
    xp = A.xp
    p = xp.ones((A.shape[-1], 1), dtype=A.dtype, device=A._context.device)
    size = seen(xp, xp.max(xp.abs(A @ p)))
    return -math.sqrt(xp.eps(A.dtype)) * float(size) if size is not None and np.isfinite(size) else 0.0


class Edge(NamedTuple):
    """The outermost eigenvalue on one side of the spectrum, and how far the k wanted reach from there; negative on the right side."""

    outer: float
    width: float

    def shift(self, far: bool) -> float:
        """A number beyond the edge."""
        return self.outer - EDGE[far] * self.width

    def is_beyond(self, values: Any, shift: float) -> bool:
        """Whether one of the values is beyond the shift."""
        return bool(((np.real(values) - shift) * self.width < 0).any())


def edge_of(A: LinearOperator, k: int, which: str, method: Any) -> Edge | None:
    """Where the outermost eigenvalues of a large sparse matrix are, by a short run.

    Only if they are real, as far as that run can see: of complex ones those nearest to a shift need not be the outermost.
    """
    xp, n = A.xp, A.shape[-1]
    if n < LARGE or A.batch_shape or not isinstance(A, Sparse) or xp.is_traced(A.data) or not is_cheap(A):
        return None
    generators = xp.split(xp.generator(method.seed))
    start, noise = (xp.normal(g, (n,), dtype=A.dtype, device=A._context.device) for g in generators)
    m = method.size(n, k)
    with quiet(xp):
        edge = arnoldi(xp, A.__matmul__, start, noise, k, which, m=m, tol=1e-3, max_iters=3 * m, again=False)
    values, size = seen(xp, edge.values), seen(xp, edge.size)
    width = float(np.ptp(values.real))
    if not np.isfinite(values).all() or np.abs(values.imag).max() > 1e-2 * width or width <= 1e-6 * float(size):
        return None
    return Edge(float(values.real.min()), width) if which == "SR" else Edge(float(values.real.max()), -width)


def beyond(A: LinearOperator, edge: Edge, far: bool) -> Shifted | None:
    """The inverse at a shift beyond the edge: the eigenvalues nearest to it are the outermost. The nearer the shift, the faster."""
    shift, B = edge.shift(far), shifted(A, edge.shift(far))
    return _inverse(B, shift) if is_cheap(B) else None


def shifted(A: LinearOperator, shift: complex) -> LinearOperator:
    """A - shift I, in the precision of A."""
    if not shift:
        return A
    B = A + ScaledIdentity(-split_number(shift, "shift")[0], A.shape[-1])
    return Dense(B._dense())._claim(B.properties) if isinstance(A, Dense) else B


def _inverse(A: LinearOperator, shift: complex) -> Shifted | None:
    with quiet(A.xp):
        inverse, info = inv(A, info=True)
    if not isinstance(info.status, Status):  # under tracing
        return Shifted(inverse, shift, info.failed)
    return None if info.failed or info.status == Status.FELL_BACK else Shifted(inverse, shift)


def is_cheap(A: LinearOperator) -> bool:
    """Whether the inverse of A comes of structure, or of few enough numbers."""
    rule = inv.find(A)
    if rule.is_base:
        return isinstance(A, Dense)
    if rule.rewritten_by is not None:
        A = simplify(A)
    if isinstance(A, Sparse):
        return envelope(A) <= FILL
    plan = inv.explain(A)
    dense = any(step.rule in ("Cholesky", "LDL", "LU", "QR") for step in plan.walk())
    return not dense or A.shape[-1] <= LARGEST_DENSE


def envelope(A: Any) -> float:
    """How many entries lie inside the envelope of a sparse matrix, rows and columns in the order of Cuthill and McKee: the factors
    have no more there, and in the order that is used mostly fewer."""
    memo = A.structure.memo
    if "envelope" not in memo:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import reverse_cuthill_mckee

        structure = A.structure
        n = structure.shape[0]
        graph = csr_array((np.ones(structure.nnz, np.int8), structure.columns, structure.indptr), shape=structure.shape)
        order = reverse_cuthill_mckee(graph + graph.T, symmetric_mode=True)
        place = np.empty(n, np.int64)
        place[order] = np.arange(n)
        rows, columns = place[structure.rows], place[structure.columns]
        first = np.arange(n)
        np.minimum.at(first, np.maximum(rows, columns), np.minimum(rows, columns))
        memo["envelope"] = float(2 * (np.arange(n) - first).sum() + n)
    return memo["envelope"]
