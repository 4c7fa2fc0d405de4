"""An operator looked at in blocks of its columns, so that its matrix is never there as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..operators.base import LinearOperator

BLOCK = 1 << 20  # entries at a time


def by_columns(A: LinearOperator, measure: Callable[[Array, Any], Array], count: int | None = None) -> Array:
    """`measure(columns, places)`, a number for each column, of the first `count` columns (default: all): (*batch, count).

    `columns` is (*batch, m, width), `places` their indices. The last block may reach past the end: those columns are zero, and their
    numbers are dropped.
    """
    xp, (m, n), device = A.xp, A.shape[-2:], A._context.device
    count = n if count is None else count
    width = min(count, max(1, BLOCK // (max(m, n) * max(1, math.prod(A.batch_shape)))))
    blocks = -(-count // width)
    columns, within = (xp.arange(size, device=device) for size in (n, width))

    def numbers(start: Array) -> Array:
        places = start + within
        return measure(A @ xp.astype(columns[:, None] == places, A.dtype), places)

    found = xp.moveaxis(xp.loop_map(numbers, width * xp.arange(blocks, device=device)), 0, -2)
    return xp.reshape(found, (*A.batch_shape, blocks * width))[..., :count]
