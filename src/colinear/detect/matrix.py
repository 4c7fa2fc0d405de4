"""The matrix that is searched: its entries on the host, sparse, and dense too where that is what
was given or costs little."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..operators import LinearOperator

SMALL = 2**20  # entries of a sparse matrix that may be written down: 8 MB
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
    def shape(self) -> tuple[int, int]:
        m, n = (self.given if self.dense is None else self.dense).shape
        return int(m), int(n)

    @property
    def dtype(self) -> Any:
        return (self.given if self.dense is None else self.dense).dtype

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
        squares = abs(self.S if self.dense is None else self.dense) / scale
        squares = squares * squares
        of_rows, of_columns = (
            scale * np.sqrt(np.asarray(squares.sum(axis=axis)).ravel()) for axis in (1, 0)
        )
        return of_rows, of_columns

    @cached_property
    def diagonal(self) -> Any:
        return self.S.diagonal() if self.dense is None else np.diagonal(self.dense)

    def sample(self, count: int) -> tuple[Any, Any, Any]:
        """Rows, columns and values of some entries: of those that are not zero, if many are."""
        if not self.is_full:
            some = np.unique(np.linspace(0, self.nnz - 1, count).astype(np.int64))
            return self.rows[some], self.columns[some], self.values[some]
        some = np.random.default_rng(0).integers(0, self.nnz, count)
        rows, columns = some // self.shape[1], some % self.shape[1]
        return rows, columns, self.dense[rows, columns]

    @property
    def rounding(self) -> float:
        """The relative residual that rounding explains."""
        return ROUNDING * self.eps

    @cached_property
    def is_hermitian(self) -> bool:
        return self.is_square and self._equals(lambda A: A.conj().T)

    @cached_property
    def is_symmetric(self) -> bool:
        return self.is_square and self._equals(lambda A: A.T)

    def _equals(self, image: Any) -> bool:
        if self.dense is None:
            return same(self.S, image(self.S))
        return bool(
            np.array_equal(self.dense[0], image(self.dense)[0])
            and np.array_equal(self.dense, image(self.dense))
        )

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
        """Without its smallest entries, as many as the tolerance pays for."""
        if tol == 0 or self.nnz == 0:
            return self
        kept = self.__dict__.setdefault("_dropped", {})  # several finders ask
        if tol not in kept:
            kept[tol] = self._dropped_now(tol)
        return kept[tol]

    def _dropped_now(self, tol: float) -> Matrix:
        weights = self.weights(tol)
        order = np.argsort(weights)
        # the other half is for what is found in the rest
        count = int(np.searchsorted(np.cumsum(weights[order]), tol**2 / 2))
        if count == 0:
            return self
        keep = np.ones(self.nnz, bool)
        keep[order[:count]] = False
        return self.without(keep)

    def part(self, rows: Any, columns: Any) -> Matrix:
        """The submatrix of these rows and columns."""
        if self.dense is not None:
            return Matrix(None, self.dense[np.ix_(rows, columns)], self.eps)
        return Matrix.of(self.S[rows][:, columns], self.eps)


def entries_at(M: Matrix, rows: Any, columns: Any) -> Any:
    """The entries of these pairs of a row and a column."""
    return M.dense[rows, columns] if M.dense is not None else np.asarray(M.S[rows, columns]).ravel()


def same(S: Any, T: Any) -> bool:
    """Whether two sparse matrices have the same entries."""
    difference = S - T
    return not np.any(difference.data)


def norm(values: Any) -> float:
    """The Euclidean norm; scaled, so that no square overflows or vanishes."""
    values = np.asarray(values)
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0 or not np.isfinite(largest):
        return largest
    scaled = (values / largest).astype(np.complex128 if values.dtype.kind == "c" else np.float64)
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
