"""The LU factors of tridiagonal and banded matrices: within the band, by LAPACK on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.permutation import Permutation
from ..operators.sparse import Sparse
from ..operators.tridiagonal import Tridiagonal
from ._columns import identity_like
from ._factorise import is_half, is_watched, seen
from ._values import report_finite
from .factorisations import lu

Factors = tuple[LinearOperator, LinearOperator, LinearOperator]


def band_is_seen(A: Any) -> bool:
    """Whether it is one square matrix of a narrow band, whose values can be seen with no derivative asked."""
    offsets = A.offsets if isinstance(A, Banded) else (-1, 0, 1)
    narrow = A.shape[-1] == A.shape[-2] and 2 * (max(map(abs, offsets)) + 1) < A.shape[-1]
    return narrow and not A.batch_shape and not any(is_watched(A.xp, leaf) for leaf in A.leaves())


@rule(lu, Tridiagonal | Banded, when=band_is_seen)
def lu_banded(A: Any, method: Any) -> Factors:
    """B = P L U, where U has as many diagonals more as B has below, and L as many entries in a column: sparse if rows were swapped"""
    xp, n = A.xp, A.shape[-1]
    diagonals, offsets = (A.diagonals, A.offsets) if isinstance(A, Banded) else ((A.lower, A.diag, A.upper), (-1, 0, 1))
    packed, swaps, below = _factored([_on_host(xp, d) for d in diagonals], offsets, n)
    report_finite(xp, xp.asarray(packed), method="LU")

    def put(x: Any) -> Array:
        return xp.asarray(x, dtype=A.dtype, device=A._context.device)

    main = packed.shape[0] - 1 - below
    U = Banded([put(packed[main - k, k:]) for k in range(main + 1)], range(main + 1), (n, n))
    if (swaps == np.arange(n)).all():
        rows = [np.ones(n, packed.dtype), *(packed[main + i, : n - i] for i in range(1, below + 1))]
        return identity_like(A, n), Banded([put(row) for row in rows], [-i for i in range(below + 1)], (n, n)), U
    order, rows, columns = _followed(swaps, below, n)
    entries = np.concatenate([packed[main + i, : n - i] for i in range(1, below + 1)])
    L = _sparse(
        np.concatenate([np.arange(n), rows]), np.concatenate([np.arange(n), columns]), np.concatenate([np.ones(n), entries]), n
    )
    return Permutation(order, like=A).T, L.to(backend=A.backend, device=A._context.device, dtype=A.dtype), U


def _on_host(xp: Any, d: Array) -> Any:
    return np.asarray(seen(xp, xp.astype(d, xp.float32) if is_half(xp, d.dtype) else d))


def _factored(diagonals: list[Any], offsets: tuple[int, ...], n: int) -> tuple[Any, Any, int]:
    """LAPACK's gbtrf: U above and the multipliers below, row exchanges, and how many diagonals are below the main one."""
    from scipy.linalg import get_lapack_funcs

    below, above = max(0, -min(offsets)), max(0, *offsets)
    band = np.zeros((2 * below + above + 1, n), np.result_type(np.float32, *diagonals), order="F")
    for d, k in zip(diagonals, offsets, strict=True):
        band[below + above - k, max(k, 0) : max(k, 0) + len(d)] = d
    packed, swaps, _ = get_lapack_funcs("gbtrf", (band,))(band, below, above)
    return packed, swaps, below


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


def _sparse(rows: Any, columns: Any, values: Any, n: int) -> LinearOperator:
    from scipy.sparse import coo_array

    matrix = coo_array((values, (rows, columns)), shape=(n, n)).tocsr()
    matrix.eliminate_zeros()
    return Sparse(matrix)
