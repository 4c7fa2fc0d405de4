"""A = P L U of tridiagonal and banded matrices: within the band, by LAPACK on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.permutation import Permutation
from ..operators.sparse import Sparse
from ..operators.sparsity import from_coordinates
from ..operators.tridiagonal import Tridiagonal
from ._arrays import is_half, is_watched, seen
from ._columns import identity_like
from ._values import report_finite
from .factorisations import lu, lu_like

Factors = tuple[LinearOperator, LinearOperator, LinearOperator]


def band_is_seen(A: Any) -> bool:
    """Whether it is square and of a narrow band, whose values can be seen with no derivative asked."""
    offsets = A.offsets if isinstance(A, Banded) else (-1, 0, 1)
    narrow = A.shape[-1] == A.shape[-2] and 2 * (max(map(abs, offsets)) + 1) < A.shape[-1]
    return narrow and 0 not in A.batch_shape and not any(is_watched(A.xp, leaf) for leaf in A.leaves())


@rule(lu, Tridiagonal | Banded, when=band_is_seen, like=lu_like)
def lu_banded(A: Any, method: Any) -> Factors:
    """B = P L U, where U has as many diagonals more as B has below, and L as many entries in a column: sparse if rows were swapped"""
    xp, n, batch = A.xp, A.shape[-1], A.batch_shape
    diagonals, offsets = (A.diagonals, A.offsets) if isinstance(A, Banded) else ((A.lower, A.diag, A.upper), (-1, 0, 1))
    seen_diagonals = [np.broadcast_to(_on_host(xp, d), (*batch, d.shape[-1])) for d in diagonals]
    each = [_factored([d[at] for d in seen_diagonals], offsets, n) for at in np.ndindex(batch)]
    below = max(0, -min(offsets))
    packed, swaps = (np.stack(parts).reshape(*batch, *parts[0].shape) for parts in zip(*each))
    report_finite(xp, xp.asarray(packed), method="LU")

    def put(x: Any) -> Array:
        return xp.asarray(x, dtype=A.dtype, device=A._context.device)

    main = packed.shape[-2] - 1 - below
    U = Banded([put(packed[..., main - k, k:]) for k in range(main + 1)], range(main + 1), (n, n))
    multipliers = [packed[..., main + i, : n - i] for i in range(1, below + 1)]
    if (swaps == np.arange(n)).all():
        rows = [np.ones((*batch, n), packed.dtype), *multipliers]
        return identity_like(A, n), Banded([put(row) for row in rows], [-i for i in range(below + 1)], (n, n)), U
    order, L = _reordered(swaps, np.concatenate(multipliers, axis=-1), below, n)
    return Permutation(order, like=A).T, L.to(backend=A.backend, device=A._context.device, dtype=A.dtype), U


def _on_host(xp: Any, d: Array) -> Any:
    return np.asarray(seen(xp, xp.astype(d, xp.float32) if is_half(xp, d.dtype) else d))


def _factored(diagonals: list[Any], offsets: tuple[int, ...], n: int) -> tuple[Any, Any]:
    """LAPACK's gbtrf: U above and the multipliers below, and the row exchanges."""
    from scipy.linalg import get_lapack_funcs

    below, above = max(0, -min(offsets)), max(0, *offsets)
    band = np.zeros((2 * below + above + 1, n), np.result_type(np.float32, *diagonals), order="F")
    for d, k in zip(diagonals, offsets, strict=True):
        band[below + above - k, max(k, 0) : max(k, 0) + len(d)] = d
    packed, swaps, _ = get_lapack_funcs("gbtrf", (band,))(band, below, above)
    return packed, swaps


def _followed(swaps: Any, below: int, n: int) -> tuple[Any, Any, Any]:
    """The order of the rows after all exchanges, and where the multipliers of each diagonal are then: those of a column belong to
    the rows that were below it when it was eliminated."""
    rows = np.arange(n).tolist()
    owner = np.zeros((below, n), np.int64)
    for j, swap in enumerate(swaps.tolist()):
        rows[j], rows[swap] = rows[swap], rows[j]
        beneath = rows[j + 1 : j + 1 + below]
        owner[: len(beneath), j] = beneath
    order = np.asarray(rows)
    place = np.argsort(order)
    return (
        order,
        np.concatenate([place[owner[i - 1, : n - i]] for i in range(1, below + 1)]),
        np.concatenate([np.arange(n - i) for i in range(1, below + 1)]),
    )


def _reordered(swaps: Any, multipliers: Any, below: int, n: int) -> tuple[Any, LinearOperator]:
    """The order of the rows, and L with its rows in that order: sparse, all of a batch in one pattern."""
    batch = swaps.shape[:-1]
    followed = [_followed(swaps[at], below, n) for at in np.ndindex(batch)]
    diagonal, count = np.arange(n), multipliers.shape[-1]
    places = [(np.concatenate([diagonal, rows]), np.concatenate([diagonal, columns])) for _, rows, columns in followed]
    rows, columns = (np.concatenate(parts) for parts in zip(*places))
    structure, order = from_coordinates(rows, columns, (n, n))
    at = (np.arange(len(rows)) if order is None else order).reshape(len(followed), n + count)
    data = np.zeros((len(followed), structure.nnz), multipliers.dtype)
    entries = multipliers.reshape(len(followed), count)
    np.put_along_axis(data, at, np.concatenate([np.ones((len(followed), n), data.dtype), entries], axis=-1), axis=-1)
    L = Sparse.from_parts(data.reshape(*batch, -1), structure)
    return np.stack([order for order, *_ in followed]).reshape(*batch, n), L
