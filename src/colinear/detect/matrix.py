"""The matrix that is searched: its entries on the host, sparse, and dense too where that is what was given or costs little."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..operators.base import LinearOperator

SMALL = 2**20  # entries of a sparse matrix that may be written down: 8 MB
ROUNDING = 64.0  # what is exact but for rounding is so to this many eps of the norm


@dataclass(frozen=True)
class Found:
    """A structure: its name, its operator, what of it is worth telling, and the structures of its parts."""

    name: str
    operator: LinearOperator
    detail: str = ""
    parts: tuple[Found, ...] = ()
    tried: tuple[str, ...] = ()
    residual: float = 0.0


@dataclass(frozen=True)
class Matrix:
    """Compressed rows without stored zeros, the dense array or None, and the rounding unit of the dtype that was given."""

    S: Any
    dense: Any
    eps: float

    @classmethod
    def of(cls, values: Any, eps: float) -> Matrix:
        """From an array or a SciPy sparse matrix."""
        from scipy.sparse import csr_array, issparse

        S = csr_array(values)
        if issparse(values):
            if not S.has_canonical_format or not np.all(S.data):
                S = csr_array((S.data.copy(), S.indices.copy(), S.indptr.copy()), shape=S.shape)  # the given one stays as it is
                S.sum_duplicates()
                S.eliminate_zeros()
            dense = S.toarray() if S.shape[0] * S.shape[1] <= SMALL else None
            return cls(S, dense, eps)
        return cls(S, values, eps)

    @property
    def shape(self) -> tuple[int, int]:
        m, n = self.S.shape
        return int(m), int(n)

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

    @property
    def nnz(self) -> int:
        return len(self.S.data)

    @property
    def density(self) -> float:
        return self.nnz / max(1, self.shape[0] * self.shape[1])

    @cached_property
    def norm(self) -> float:
        return norm(self.values)

    @property
    def rounding(self) -> float:
        """The relative residual that rounding explains."""
        return ROUNDING * self.eps

    @cached_property
    def is_hermitian(self) -> bool:
        return self.is_square and same(self.S, self.S.conj().T)

    @cached_property
    def is_symmetric(self) -> bool:
        return self.is_square and same(self.S, self.S.T)

    def weights(self, tol: float) -> Any:
        """What it costs to leave each entry out: more than everything if all are to be kept, else its part of the squared norm."""
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
        weights = self.weights(tol)
        order = np.argsort(weights)
        count = int(np.searchsorted(np.cumsum(weights[order]), tol**2 / 2))  # the other half is for what is found in the rest
        if count == 0:
            return self
        keep = np.ones(self.nnz, bool)
        keep[order[:count]] = False
        return self.without(keep)

    def part(self, rows: Any, columns: Any) -> Matrix:
        """The submatrix of these rows and columns."""
        S = self.S[rows][:, columns]
        dense = None if self.dense is None else self.dense[np.ix_(rows, columns)]
        if dense is None and S.shape[0] * S.shape[1] <= SMALL:
            dense = S.toarray()
        return Matrix(S, dense, self.eps)


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
