"""A[rows, columns]: a submatrix of any operator, by embedding. P_rows A P_cols^T, where P picks
entries of a vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array, adjoint, namespace_of
from ..errors import BackendError
from ..properties import POSITIVE_DEFINITE, STIEFEL, UNITARY
from ..status import is_unseen
from .base import LinearOperator
from .context import kind_of
from .convert import as_operator
from .dense import Dense
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero
from .lowrank import LowRank
from .printing import bracketed
from .scaled import Scaled
from .tree import (
    Index,
    images,
    index_or_array,
    on_host,
    operand_flops,
    placed,
    sole_operand,
    wrapper_images,
)

# range | Index | traced array: a range of positive step, integers (repeats allowed), or integers
# that can't be seen
Selection = Any


class Sliced(LinearOperator, init=False):
    """The submatrix of A of some rows and columns; what `A[rows, cols]` gives where no simpler
    operator is known.

    A product costs one product with A. Dense, diagonal, low-rank and scaled operators are sliced
    themselves instead, and a slice of a slice is one slice.

    Parameters
    ----------
    A : LinearOperator
    rows, cols : slice, range, or one-dimensional integers or booleans
        Which rows and columns, in this order; integers may repeat.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Tridiagonal(-np.ones(3), 2 * np.ones(4), -np.ones(3))
    >>> A[1:3, [0, 2]].to_dense()
    array([[-1., -1.],
           [ 0.,  2.]])
    """

    A: LinearOperator
    rows: Index | range
    cols: Index | range

    def __new__(cls, A: Any, rows: Any, cols: Any) -> LinearOperator:  # type: ignore[misc]
        A = as_operator(A)
        m, n = A.shape[-2:]
        rows, cols = selection(rows, m, axis=-2), selection(cols, n, axis=-1)
        if is_all(rows, m) and is_all(cols, n):
            return A
        if isinstance(A, Sliced):
            return Sliced(A.A, _compose(A.rows, rows), _compose(A.cols, cols))
        simplify = _SIMPLIFICATIONS.get(type(A))
        simpler = None if simplify is None else simplify(A, rows, cols)
        return cls._of(A, rows, cols) if simpler is None else simpler._claim(_kept(A, rows, cols))

    operands = sole_operand

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.A.shape[:-2], len(self.rows), len(self.cols))

    def _infer(self) -> int:
        return _kept(self.A, self.rows, self.cols)

    _transpose, _adjoint = images(
        lambda self, image: Sliced._of(image(self.A), self.cols, self.rows)
    )[:2]
    _conj = wrapper_images[2]

    def _matmat(self, X: Array) -> Array:
        return pick(self.A @ embed(X, self.cols, self.A.shape[-1]), self.rows)

    def _to_dense(self) -> Array:
        m, n = self.shape[-2:]
        if m < n:  # fewer products with the adjoint, where there is one
            try:
                rows = self.H @ self.xp.eye(m, **kind_of(self))
                return self.xp.broadcast_to(adjoint(self.xp, rows), self.shape)
            except BackendError:
                pass
        return LinearOperator._to_dense(self)

    _flops = operand_flops

    def _expression(self) -> str:
        return (
            f"{bracketed(self.A, None)}[{_text(self.rows, self.A.shape[-2])}, "
            f"{_text(self.cols, self.A.shape[-1])}]"
        )


# ---------------------------------------------------------------------- selections


def selection(key: Any, size: int, axis: int) -> Selection:
    """Rows or columns as they are stored: checked, without negative numbers, ranges where
    possible."""
    if isinstance(key, slice):
        key = range(*key.indices(size))
    if isinstance(key, range):
        # torch has no slices of negative step, so those are integers
        if key.step > 0 and (not key or (key[0] >= 0 and key[-1] < size)):
            return key
        key = Index(key)
    if isinstance(key, Index):
        key = key.host
    xp = namespace_of(key)
    if is_unseen(key) and (xp.is_traced(key) or key.dtype != xp.bool):
        # its values are not to be seen: out of range is as the framework has it
        return xp.where(key < 0, key + size, key)
    host = on_host(key)
    if host.ndim != 1:
        raise IndexError(
            f"rows and columns are one-dimensional; got an index of shape {host.shape} for axis "
            f"{axis}."
        )
    if host.dtype == bool:
        if host.shape[0] != size:
            raise IndexError(
                f"a boolean index of {host.shape[0]} entries does not fit axis {axis} of size "
                f"{size}."
            )
        host = np.nonzero(host)[0]
    if host.size == 0:
        return range(0)
    if host.dtype.kind not in "iu":
        raise IndexError(f"indices must be integers or booleans, not {host.dtype}.")
    check_range(host, size, axis)
    return index_or_array(np.where(host < 0, host + size, host), "index")


def check_range(host: Any, size: int, axis: int) -> None:
    """NumPy's IndexError for what is out of range."""
    host = np.ravel(host)
    wrong = host[(host < -size) | (host >= size)]
    if len(wrong):
        raise IndexError(
            f"index {int(wrong[0])} is out of bounds for axis {axis} with size {size}."
        )


def is_all(key: Selection, size: int) -> bool:
    """Whether nothing is left out: a range is of positive step and inside."""
    return isinstance(key, range) and len(key) == size


def same(rows: Selection, cols: Selection) -> bool:
    """Whether the submatrix is known to be a principal one."""
    return rows is cols or (
        type(rows) is type(cols) and isinstance(rows, (range, Index)) and rows == cols
    )


def distinct(key: Selection) -> bool:
    """Whether no entry is known to repeat."""
    return isinstance(key, range) or (
        isinstance(key, Index) and len(np.unique(key.host)) == len(key.host)
    )


def _compose(outer: Selection, inner: Selection) -> Selection:
    """The selection that picks `inner` of what `outer` picked."""
    if isinstance(outer, range) and isinstance(inner, range):
        return outer[inner.start : inner.stop : inner.step]
    outer, inner = (Index(key) if isinstance(key, range) else key for key in (outer, inner))
    if isinstance(outer, Index) and isinstance(inner, Index):
        return Index(outer.host[inner.host])
    xp = namespace_of(outer if isinstance(inner, Index) else inner)  # traced
    outer, inner = (key.on(xp) if isinstance(key, Index) else key for key in (outer, inner))
    return xp.take(outer, inner)


def _text(key: Selection, size: int) -> str:
    if is_all(key, size):
        return ":"
    if isinstance(key, range):
        return f"{key.start}:{key.stop}" + (f":{key.step}" if key.step != 1 else "")
    return f"{len(key)} of {size}"


# ---------------------------------------------------------------------- P x and P^T x


def _slice(key: range) -> slice:
    return slice(key.start, max(key.stop, 0), key.step)


def pick(x: Array, key: Selection, axis: int = -2) -> Array:
    """The selected entries along an axis."""
    if isinstance(key, range):
        if is_all(key, x.shape[axis]):
            return x
        return x[(..., _slice(key), *(slice(None),) * (-axis - 1))]
    xp = namespace_of(x)
    return xp.take(x, placed(key, xp, x), axis=axis)


def embed(X: Array, key: Selection, size: int) -> Array:
    """The block of `size` rows that has X in the selected rows (repeats add up) and zeros
    elsewhere."""
    if is_all(key, size):
        return X
    xp = namespace_of(X)
    zeros = xp.zeros((*X.shape[:-2], size, X.shape[-1]), **kind_of(X))
    if isinstance(key, range):
        return xp.set_at(zeros, (..., _slice(key), slice(None)), X)
    return xp.scatter_add(zeros, placed(key, xp, X), X, axis=-2)


# ---------------------------------------------------------------------- what a slice keeps, and fam


def _kept(A: LinearOperator, rows: Selection, cols: Selection) -> int:
    """A principal submatrix keeps everything but orthonormality; columns without repeats keep
    that."""
    mask = 0
    if same(rows, cols):
        lost = STIEFEL | UNITARY if distinct(rows) else STIEFEL | UNITARY | POSITIVE_DEFINITE
        mask |= A.properties & ~lost
    if is_all(rows, A.shape[-2]) and distinct(cols):
        mask |= A.properties & STIEFEL
    return mask


def _slice_lowrank(A: Any, rows: Selection, cols: Selection) -> LinearOperator:
    is_mirrored = A.V is None and same(rows, cols)
    return LowRank(pick(A.U, rows), None if is_mirrored else pick(A._right, cols), A.core)


def _principal(slice_it: Callable[[Any, Selection], LinearOperator]) -> Any:
    """Of a principal submatrix without repeats."""
    return lambda A, rows, cols: slice_it(A, rows) if same(rows, cols) and distinct(rows) else None


# The families whose slices are of the same family, exactly and without a product.
_SIMPLIFICATIONS: dict[type, Any] = {
    Dense: lambda A, rows, cols: Dense(pick(pick(A.A, rows), cols, axis=-1)),
    Diagonal: _principal(lambda A, key: Diagonal(pick(A.d, key, axis=-1))),
    Identity: _principal(lambda A, key: Identity._of(len(key), A.context)),
    ScaledIdentity: _principal(lambda A, key: ScaledIdentity._of(A.c, len(key), A.context)),
    Zero: lambda A, rows, cols: A._replace(m=len(rows), n=len(cols)),
    Scaled: lambda A, rows, cols: Scaled(A.scalar, Sliced(A.A, rows, cols)),
    LowRank: _slice_lowrank,
}
