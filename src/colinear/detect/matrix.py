"""The matrix that is searched: its entries on the host, sparse, and dense too where that is what
was given or costs little; and what it is beside its structure.

Nothing is claimed that was not shown. Definiteness is shown by a Cholesky factorisation of A - c I,
with c a bound of what rounding can do (Rump 2006): where it runs to its end, every eigenvalue of A
itself is positive. Cheaper and as good: a diagonal that dominates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..operators import LinearOperator
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC

SMALL = 2**20  # entries of a sparse matrix that may be written down: 8 MB
LARGEST_DENSE = 6000  # rows of a dense matrix that is factored to see whether it is definite
WORK = 5e9  # flops of a banded factorisation for the same
ROUNDING = 64.0  # what is exact but for rounding is so to this many eps of the norm


@dataclass(frozen=True)
class Found:
    """A structure: its name, its operator, what of it is worth telling, and the structures of
    its parts."""

    name: str
    operator: LinearOperator
    detail: str = ""
    parts: tuple[Found, ...] = ()
    tried: tuple[str, ...] = ()
    residual: float = 0.0


def compose(name: str, parts: Iterable[Found], of: Callable[..., Any], detail: str) -> Found:
    """What is made `of` the operators of its parts."""
    parts = tuple(parts)
    return Found(name, of(*(part.operator for part in parts)), detail, parts)


@dataclass(frozen=True)
class Matrix:
    """A sparse matrix without stored zeros, or a dense one, or both; and the rounding unit of
    the dtype that was given."""

    given: Any  # a SciPy matrix, or None: then it is made of the array when it is first asked for
    dense: Any
    eps: float

    @classmethod
    def of(cls, values: Any, eps: float) -> Matrix:
        """From an array or a SciPy sparse matrix."""
        from scipy.sparse import csr_array, issparse

        if not issparse(values):
            return cls(None, values, eps)
        S = csr_array(values)
        if not S.has_canonical_format or not np.all(S.data):
            # the given one stays as it is
            S = csr_array((S.data.copy(), S.indices.copy(), S.indptr.copy()), shape=S.shape)
            S.sum_duplicates()
            S.eliminate_zeros()
        return cls(S, S.toarray() if S.shape[0] * S.shape[1] <= SMALL else None, eps)

    @cached_property
    def S(self) -> Any:
        """Compressed rows."""
        from scipy.sparse import csr_array

        return csr_array(self.dense) if self.given is None else self.given

    @property
    def matrix(self) -> Any:
        """The array, or the sparse matrix where there is none."""
        return self.given if self.dense is None else self.dense

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.matrix.shape
        return int(m), int(n)

    @property
    def dtype(self) -> Any:
        return self.matrix.dtype

    @property
    def like(self) -> Any:
        """An array of this dtype, for operators that hold none."""
        return np.zeros(0, self.dtype)

    @property
    def is_square(self) -> bool:
        return self.shape[0] == self.shape[1]

    @property
    def values(self) -> Any:
        return self.S.data

    @property
    def columns(self) -> Any:
        return self.S.indices

    @cached_property
    def rows(self) -> Any:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.S.indptr))

    @cached_property
    def nnz(self) -> int:
        return int(np.count_nonzero(self.dense)) if self.given is None else len(self.given.data)

    @property
    def density(self) -> float:
        return self.nnz / max(1, self.shape[0] * self.shape[1])

    @property
    def is_full(self) -> bool:
        """Whether no entry is zero."""
        return self.nnz == self.shape[0] * self.shape[1]

    @property
    def stored(self) -> Any:
        """The entries, in no particular order, perhaps with zeros among them."""
        return self.given.data if self.dense is None else self.dense

    @cached_property
    def norm(self) -> float:
        return norm(self.stored)

    @cached_property
    def sizes(self) -> tuple[Any, Any]:
        """The norms of the rows and of the columns."""
        scale = self.norm or 1.0
        sizes = abs(self.matrix) / scale
        sums = ((sizes * sizes).sum(axis=axis) for axis in (1, 0))
        of_rows, of_columns = (scale * np.sqrt(np.ravel(each)) for each in sums)
        return of_rows, of_columns

    def sample(self, count: int) -> tuple[Any, Any, Any]:
        """Rows, columns and values of some entries: of those that are not zero, if many are."""
        if not self.is_full:
            some = np.unique(np.linspace(0, self.nnz - 1, count).astype(np.int64))
            return self.rows[some], self.columns[some], self.values[some]
        some = np.random.default_rng(0).integers(0, self.nnz, count)
        rows, columns = some // self.shape[1], some % self.shape[1]
        return rows, columns, self.at(rows, columns)

    def at(self, rows: Any, columns: Any) -> Any:
        """The entries of these pairs of a row and a column."""
        return np.asarray(self.matrix[rows, columns]).ravel()

    @property
    def rounding(self) -> float:
        """The relative residual that rounding explains."""
        return ROUNDING * self.eps

    def allowed(self, tol: float) -> float:
        """The norm that a residual may have: what was asked for, but at least rounding."""
        return max(tol, self.rounding) * self.norm

    @cached_property
    def is_hermitian(self) -> bool:
        return self.is_square and self._equals(lambda A: A.conj().T)

    @cached_property
    def is_symmetric(self) -> bool:
        return self.is_square and self._equals(lambda A: A.T)

    def _equals(self, image: Any) -> bool:
        A = self.matrix
        if self.dense is None:
            return not np.any((A - image(A)).data)
        return np.array_equal(A[0], image(A)[0]) and np.array_equal(A, image(A))

    def weights(self, tol: float) -> Any:
        """What it costs to leave each entry out: more than everything if all are to be kept,
        else its part of the squared norm."""
        if tol == 0:
            return np.ones(self.nnz)  # counted, not squared: the square of a tiny entry may be zero
        return np.abs(self.values / self.norm) ** 2

    def without(self, keep: Any) -> Matrix:
        """With some entries only."""
        from scipy.sparse import csr_array

        S = csr_array((self.values[keep], (self.rows[keep], self.columns[keep])), shape=self.shape)
        return Matrix(S, None if self.dense is None else S.toarray(), self.eps)

    def dropped(self, tol: float) -> Matrix:
        """The matrix without its smallest entries, as many as the tolerance pays for."""
        if tol == 0:
            return self
        kept = self.__dict__.setdefault("_dropped", {})  # several finders ask
        if tol not in kept:
            weights = self.weights(tol)
            order = np.argsort(weights)
            # the other half is for what is found in the rest
            count = np.searchsorted(np.cumsum(weights[order]), tol**2 / 2)
            keep = np.ones(self.nnz, bool)
            keep[order[:count]] = False
            kept[tol] = self.without(keep) if count else self
        return kept[tol]

    def part(self, rows: Any, columns: Any) -> Matrix:
        """The submatrix of these rows and columns."""
        if self.dense is not None:
            return Matrix(None, self.dense[np.ix_(rows, columns)], self.eps)
        return Matrix.of(self.S[rows][:, columns], self.eps)


Search = Callable[[Matrix, float], Found]


def shape_text(shape: Any) -> str:
    """A shape as text: 3x4."""
    return "x".join(map(str, shape))


def kronecker_sum_of(S: Any, T: Any) -> Any:
    """S ⊗ I + I ⊗ T of SciPy's matrices"""
    from scipy.sparse import csr_array, kronsum

    return csr_array(kronsum(T, S, "csr"))


def norm(values: Any) -> float:
    """The Euclidean norm of an array or a sparse matrix; scaled, so that no square overflows or
    vanishes."""
    values = values if isinstance(values, np.ndarray) else np.asarray(values.data)
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    scaled = (values / largest).astype(np.result_type(values.dtype, np.float64))
    return largest * float(np.linalg.norm(scaled.ravel()))


def constant(values: Any, tol: float) -> Any:
    """The one value that all have, their mean if they may differ by a relative `tol`, or None."""
    if len(values) == 0:
        return None
    if np.all(values == values[0]):
        return values[0]
    if tol == 0:
        return None
    mean = values.mean()
    return mean if norm(values - mean) <= tol * norm(values) else None


# What a matrix is beside its structure.


def claims(A: LinearOperator, M: Matrix, apart: float = 0.0) -> int:
    """The properties of A, whose entries are M but for a relative `apart`, as a mask: what it
    knows itself, and what they show."""
    mask = A.properties
    if M.is_hermitian:
        mask |= SELF_ADJOINT
        if not mask & POSITIVE_DEFINITE:
            mask |= definiteness(M, apart * M.norm)
    elif M.is_symmetric:
        mask |= SYMMETRIC
    return mask


def definiteness(M: Matrix, margin: float = 0.0) -> int:
    """POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE or 0, as far as it can be shown, for self-adjoint
    M and what is within `margin` of it."""
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    d = M.matrix.diagonal().real.astype(np.float64)
    if len(d) == 0 or d.min() < 0:
        return 0
    found = _dominance(M, d - margin)
    if found & POSITIVE_DEFINITE or d.min() == 0:
        return found
    n = M.shape[0]
    width = n - 1 if M.is_full else int(np.max(np.abs(M.columns - M.rows), initial=0))
    if M.dense is not None and n <= LARGEST_DENSE and not (n > 256 and width < n // 8):
        wide = M.dense.astype(np.result_type(M.dtype, np.float64))
        wide[np.diag_indices(n)] -= _shift(n, d) + margin
        shown = _succeeds(np.linalg.cholesky, wide)
    else:
        S = M.S
        if n * width**2 > WORK:  # the order that narrows the band
            order = reverse_cuthill_mckee(S, symmetric_mode=True)
            S, d = S[order][:, order].tocsr(), d[order]
        shown = _factors_in_band(S, d, margin)
    return POSITIVE_DEFINITE if shown else found


def is_orthonormal(M: Matrix) -> bool:
    """Whether the columns are orthonormal, to rounding."""
    A = M.dense
    if A is None or A.shape[0] < A.shape[1] or M.density < 0.25:
        return False
    if not np.all(np.abs(np.linalg.norm(A, axis=0) - 1) <= M.rounding):
        return False
    return bool(np.max(np.abs(A.conj().T @ A - np.eye(A.shape[1]))) <= M.rounding)


def _dominance(M: Matrix, d: Any) -> int:
    """Gershgorin: every eigenvalue is at least the least of what the diagonal has more than all
    that stands beside it."""
    sums = np.asarray(abs(M.matrix).sum(axis=1, dtype=np.float64)).ravel() - np.abs(d)
    counts = M.shape[1] if M.dense is not None else np.diff(M.S.indptr)
    spare = 4 * counts * np.finfo(np.float64).eps
    if np.all(d - sums > spare * (d + sums)):
        return POSITIVE_DEFINITE
    if np.all(d >= sums) and _adds_exactly(M):
        return POSITIVE_SEMIDEFINITE
    return 0


def _adds_exactly(M: Matrix) -> bool:
    """Whether sums of entries up to the largest are exact: all are multiples of one power of
    two, and small ones."""
    if M.dtype.kind == "c":
        return False
    largest = float(np.max(np.abs(M.stored)))
    unit = 2.0 ** (np.frexp(largest)[1] + 2 - 53)
    return bool(unit > 0 and np.all(np.remainder(M.stored.astype(np.float64), unit) == 0))


def _shift(width: int, d: Any) -> float:
    """A bound of the backward error of the factorisation of a matrix of so many diagonals:
    gamma_{w+2} times |R^T| |R|."""
    steps = 2.0 * (width + 2) * np.finfo(np.float64).eps
    return float(steps * min(np.sum(d), (2 * width + 1) * np.max(d)))


def _succeeds(factorise: Any, *arguments: Any, **options: Any) -> bool:
    """Whether a factorisation runs to its end."""
    try:
        factorise(*arguments, **options)
    except np.linalg.LinAlgError:
        return False
    return True


def _factors_in_band(S: Any, d: Any, margin: float) -> bool:
    """Whether the Cholesky factorisation within the band runs to its end; False, too, if that
    costs too much to try."""
    from scipy.linalg import cholesky_banded
    from scipy.sparse import tril

    lower = tril(S, format="coo")
    rows, columns, values = lower.row, lower.col, lower.data
    n, width = S.shape[0], int(np.max(rows - columns, initial=0))
    if n * float(width) ** 2 > WORK or n * float(width + 1) > 32 * SMALL:
        return False
    band = np.zeros((width + 1, n), np.result_type(values.dtype, np.float64))
    band[rows - columns, columns] = values
    band[0] -= _shift(width, d) + margin
    return _succeeds(cholesky_banded, band, lower=True, overwrite_ab=True, check_finite=False)
