"""The meaning of `+ - * / @ **` between operators, arrays, scalars and SciPy objects, and of `A[key]`.
The simplifications are in the constructors."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import ShapeError
from .base import LinearOperator
from .batch import take_batch
from .context import NUMBERS, kind_of
from .convert import as_operator, as_operators
from .diagonal import Diagonal, Identity
from .product import Product
from .scaled import Scaled
from .sliced import Sliced, check_range, pick, selection
from .sum import Hadamard, Sum
from .tree import Index, on_host


def is_scalar(x: Any) -> bool:
    """A Python or NumPy number, a 0-dimensional array, or a batch of 1x1 matrices."""
    if isinstance(x, NUMBERS):
        return True
    return namespace_of(x) is not None and (x.ndim == 0 or (x.ndim >= 2 and x.shape[-2:] == (1, 1)))


def add(A: Any, B: Any) -> LinearOperator:
    """A + B. Adding a number is refused, except the 0 from which `sum` starts."""
    if isinstance(A, LinearOperator) and isinstance(B, LinearOperator):
        return Sum(A, B)
    for one, other in ((A, B), (B, A)):
        if isinstance(one, NUMBERS) or getattr(one, "ndim", None) == 0:
            if isinstance(one, numbers.Number) and one == 0:
                return as_operator(other)
            raise TypeError(
                f"+: an operator and the number {one!r}. Write A + c * "
                f"Identity({other.shape[-1]}) for a shift."
            )
    return Sum(A, B)


def subtract(A: Any, B: Any) -> LinearOperator:
    """A - B."""
    if isinstance(B, LinearOperator):
        return add(A, -B)
    if isinstance(B, numbers.Number) or getattr(B, "ndim", None) == 0:
        return add(A, B)  # refused there, or zero
    A, B = as_operators((A, B))
    return Sum(A, -B)


def star(A: LinearOperator, B: Any) -> Any:
    """What `A * B` is: A x for a vector x, as in SciPy and PyLops; else `times`."""
    return A @ B if getattr(B, "ndim", 2) == 1 else times(A, B)


def times(A: LinearOperator, B: Any) -> LinearOperator:
    """c A for a scalar c; the entrywise (Hadamard) product with anything else, as NumPy's `*`."""
    if is_scalar(B):
        if getattr(B, "ndim", 0) == 0:
            return Scaled(B, A)
        if A.shape[-2:] != (1, 1):
            return Scaled(B[..., 0, 0], A)
    if getattr(B, "ndim", 2) == 1:
        raise ShapeError(
            "*: a vector times an operator scales columns in NumPy, torch and JAX, and is x^T A to "
            "others. Write A @ Diagonal(x) to scale columns, Diagonal(x) @ A to scale rows, A @ x for "
            "the product."
        )
    return Hadamard(A, B)


def add_diagonal(A: LinearOperator, d: Any) -> LinearOperator:
    """A + diag(d); d may be a number, or one entry, for all of the diagonal."""
    n = A.shape[-1]
    if is_scalar(d):
        return A + d * Identity(n)
    if not hasattr(d, "shape"):  # a list
        d = A.xp.asarray(d, **kind_of(A))
    if d.shape[-1:] == (1,) and n != 1:
        d = namespace_of(d).broadcast_to(d, (*d.shape[:-1], n))
    return A + Diagonal(d)


def divide(A: LinearOperator, c: Any) -> LinearOperator:
    """A / c for a scalar c."""
    if not is_scalar(c):
        raise TypeError(
            "/: an operator can be divided by a number only. Use solve(B, A) or A @ inv(B) for a "
            "quotient of operators."
        )
    return A * (1 / c)


def raise_to(A: LinearOperator, exponent: Any) -> LinearOperator:
    """A^p: a product for small natural numbers p, the function `power` for all others."""
    if A.shape[-1] != A.shape[-2]:
        raise ShapeError(
            f"**: A is {A.shape[-2]}x{A.shape[-1]}; only a square operator has powers."
        )
    if isinstance(exponent, (int, np.integer)) and 0 <= exponent <= 16:
        if exponent == 0:
            return Identity(A.shape[-1], like=None if A.is_neutral else A)
        return A if exponent == 1 else Product(*[A] * int(exponent))
    # the one place where an operator asks for a function: `**` is its name
    from ..functions import (
        power,
    )

    return power(A, exponent)


# `A[key]`: NumPy's meaning, with submatrices kept as operators.
#
# The key is read as NumPy reads the key of an array of A's shape: `...` stands for full slices,
# missing keys are full slices, the first axes are the batch. Batch keys are applied first, then the
# last two:
#
# | rows, columns | gives |
# | --- | --- |
# | two integers | a number (one per batch element) |
# | an integer and a slice or an array | a vector: `A[i]`, `A[:, j]`, `A[i, [1, 2]]` |
# | slices, or a slice and an array of integers or booleans | an operator |
# | two arrays, integer or boolean | the entries of these pairs, as an array of their broadcast shape |
# | `np.ix_(rows, columns)` | an operator |
#
# One difference from NumPy: index arrays in the batch and in the matrix at once are refused (NumPy
# would pair them up).


PAIRS_BLOCK = 1 << 22  # entries of a block of unit vectors when pairs are read off


def getitem(A: LinearOperator, key: Any) -> Any:
    """The entry, row, column, submatrix, pairs of entries or batch element that `key` names."""
    keys = _expand(A, key if isinstance(key, tuple) else (key,))
    batch_keys, (rows, cols) = keys[:-2], keys[-2:]
    if any(not isinstance(part, slice) or part != slice(None) for part in batch_keys):
        if any(map(_is_array, batch_keys)) and any(map(_is_array, (rows, cols))):
            raise IndexError(
                "index arrays in the batch and in the matrix at once; index in two steps: "
                "A[batch][..., rows, cols]."
            )
        A = take_batch(A, batch_keys)
    return _submatrix(A, rows, cols)


# ------------------------------------------------------------------ reading the key


def _expand(A: LinearOperator, keys: tuple[Any, ...]) -> tuple[Any, ...]:
    """One key for each axis: `...` and what is missing are full slices, a boolean matrix is the
    pairs where it is true."""
    for part in keys:
        if part is None:
            raise IndexError("an operator has no new axes: np.newaxis (None) is not a key of it.")
        if isinstance(part, (bool, np.bool_)):
            raise IndexError("a single boolean is not a key of an operator.")
    keys = tuple(pair for part in keys for pair in _opened(part, len(keys), A))
    dots = [i for i, part in enumerate(keys) if part is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can have only one ellipsis ('...').")
    missing = A.ndim - (len(keys) - len(dots))
    if missing < 0:
        raise IndexError(
            f"too many indices: the operator has {A.ndim} dimensions, but {len(keys) - len(dots)} "
            "were indexed."
        )
    at = dots[0] if dots else len(keys)
    return keys[:at] + (slice(None),) * missing + keys[at + len(dots) :]


def _opened(part: Any, total: int, A: LinearOperator) -> tuple[Any, ...]:
    """A boolean array of several dimensions indexes as many axes: the positions where it is
    true."""
    if part is Ellipsis or not _is_array(part) or np.ndim(part) < 2 or not _is_boolean(part):
        return (part,)
    mask = on_host(part)
    if mask.shape != A.shape or total != 1:
        raise IndexError(
            f"a boolean index of shape {mask.shape} does not fit an operator of shape {A.shape}."
        )
    if A.ndim > 2:
        raise IndexError(
            "a boolean index over batch and matrix at once; index in two steps: A[batch][..., "
            "mask]."
        )
    return np.nonzero(mask)


def _is_boolean(part: Any) -> bool:
    dtype = getattr(part, "dtype", None)
    return str(dtype) in ("bool", "torch.bool") or (
        dtype is None and np.asarray(part).dtype == bool
    )


def _is_array(part: Any) -> bool:
    # torch.compile knows no dimensions of slices
    return not isinstance(part, (slice, Index)) and np.ndim(part) > 0


def _integer(part: Any, size: int, axis: int) -> Any:
    """A single index, or None if `part` is not one. A traced one is returned as it is, counted
    from the front."""
    if isinstance(part, (slice, Index)) or _is_array(part):
        return None
    xp = namespace_of(part)
    if xp is not None and xp.is_traced(part):
        return xp.where(part < 0, part + size, part)
    try:
        i = operator.index(part)
    except TypeError:
        raise IndexError(
            "indices are integers, slices, arrays of integers or booleans; not "
            f"{type(part).__name__}."
        ) from None
    check_range(i, size, axis)
    return i + size if i < 0 else i


# ------------------------------------------------------------------ the last two axes


def _submatrix(A: LinearOperator, rows: Any, cols: Any) -> Any:
    m, n = A.shape[-2:]
    i, j = _integer(rows, m, -2), _integer(cols, n, -1)
    if i is not None and j is not None:
        column = _column(A, j)
        if not isinstance(i, int):
            return A.xp.take(column, i, axis=-1)
        # NumPy gives a number for the first, an array for the second
        return column[i] if column.ndim == 1 else column[..., i]
    if i is not None:
        return pick(_column(A.T, i), selection(cols, n, -1), axis=-1)
    if j is not None:
        return pick(_column(A, j), selection(rows, m, -2), axis=-1)
    if _is_array(rows) and _is_array(cols):
        if not np.shape(rows)[1:] == np.shape(cols)[:-1] == (1,):
            return _pairs(A, rows, cols)
        # an open mesh, as `np.ix_` makes it
        rows, cols = (
            (np.asarray(part) if namespace_of(part) is None else part).reshape(-1)
            for part in (rows, cols)
        )
    return Sliced(A, rows, cols)


def _column(A: LinearOperator, j: Any) -> Array:
    """A e_j."""
    xp, n = A.xp, A.shape[-1]
    if isinstance(j, int):
        unit = xp.set_at(xp.zeros((n,), **kind_of(A)), j, 1)
    else:
        unit = xp.astype(xp.arange(n, device=A._context.device) == j, A.dtype)
    return A @ unit


def _pairs(A: LinearOperator, rows: Any, cols: Any) -> Array:
    """The entries A[rows[k], cols[k]], with one product per column that occurs (or per row,
    where fewer rows occur)."""
    m, n = A.shape[-2:]
    rows, cols = np.broadcast_arrays(_positions(rows, m, -2), _positions(cols, n, -1))
    shape, rows, cols = rows.shape, rows.ravel(), cols.ravel()
    if len(np.unique(rows)) < len(np.unique(cols)):
        A, rows, cols = A.T, cols, rows
    xp, batch = A.xp, A.batch_shape
    wanted, which = np.unique(cols, return_inverse=True)
    step = max(1, PAIRS_BLOCK // max(1, A.shape[-1] * math.prod(batch)))
    order, parts = [], []
    for start in range(0, len(wanted), step):
        inside = np.flatnonzero(which // step == start // step)
        columns = Sliced(A, slice(None), wanted[start : start + step])._dense()
        m, width = columns.shape[-2:]
        flat = xp.reshape(columns, (*batch, m * width))
        parts.append(xp.take(flat, rows[inside] * width + which[inside] - start, axis=-1))
        order.append(inside)
    if not parts:
        return xp.zeros((*batch, *shape), **kind_of(A))
    # back to the order asked
    entries = xp.take(xp.concat(parts, axis=-1), np.argsort(np.concatenate(order)), axis=-1)
    return xp.reshape(entries, (*batch, *shape))


def _positions(part: Any, size: int, axis: int) -> Any:
    """Integers of any shape, counted from the front; booleans as the positions where they are
    true."""
    if np.ndim(part) == 1:
        chosen = selection(part, size, axis)
        return chosen.host if isinstance(chosen, Index) else np.asarray(chosen, dtype=np.int64)
    host = on_host(part)
    if host.dtype.kind not in "iu" and host.size:
        raise IndexError(f"indices must be integers, not {host.dtype}.")
    check_range(host, size, axis)
    return np.where(host < 0, host + size, host).astype(np.int64)
