"""The order of the columns in a QR factorisation with column pivoting, for frameworks that lack it."""

from __future__ import annotations

from typing import Any


def pivot_order(xp: Any, A: Any) -> Any:
    """The greedy order: at each step the column with the largest part outside the span of those taken.

    By modified Gram-Schmidt on a copy, which orders well even where it would not orthogonalise well; the factors
    themselves then come from the framework's QR of `A[:, order]`. Batched, without branches on values. O(m n min(m, n)).
    """
    n = A.shape[-1]
    index = xp.arange(n, device=xp.device_of(A))
    taken = index < 0  # none
    order = []
    for _ in range(min(A.shape[-2:])):
        norms = xp.where(taken, -1.0, xp.vector_norm(A, axis=-2))
        best = xp.argmax(norms, axis=-1, keepdims=True)
        q = xp.take_along_axis(A, xp.expand_dims(best, -2), axis=-1)
        norm = xp.vector_norm(q, axis=-2, keepdims=True)
        q = q / xp.where(norm > 0, norm, 1.0)
        A = A - q @ (xp.matrix_transpose(xp.conj(q)) @ A)
        taken = xp.logical_or(taken, index == best)
        order.append(best)
    if not order:
        return xp.broadcast_to(index, (*A.shape[:-2], n))
    # The columns that remain when the rows are used up follow in their order: a stable sort by the step at which each was taken.
    steps = xp.concat(order, axis=-1)
    step_of = xp.where(
        xp.expand_dims(steps, -1) == index, xp.expand_dims(xp.arange(len(order), device=xp.device_of(A)) - n, -1), 0
    )
    return xp.argsort(xp.min(step_of, axis=-2) * n + index, axis=-1)
