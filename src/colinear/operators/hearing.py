"""Iterations that multiply with operators whose products are iterations themselves: is the answer judged by products that failed?

What such products report comes from the body of a loop and means nothing outside of it, so the loop drops it. Yet the residual of the
answer is computed by them. So when the loop has ended, one more product, with the answer, is listened to: where that fails, so does
the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import Array
from ..info import Info, Status, failed, recording
from ..status import combine
from .base import LinearOperator


def multiplies_by_iteration(A: LinearOperator) -> bool:
    """Whether a product with A may be a run of a method, which may fail."""
    waiting: list[Any] = [A]
    while waiting:
        node = waiting.pop()
        if isinstance(node, LinearOperator):
            if node._product_is_a_run:
                return True
            waiting.extend(getattr(node, name) for name in node._dynamic)
        elif isinstance(node, tuple):
            waiting.extend(node)
    return False


def _is_failure(status: Any) -> bool:
    """Whether it is seen to be one: in JAX the statuses of a loop are tracers of it."""
    return isinstance(status, Status) and status.is_failure


def heard(info: Info, A: LinearOperator, X: Array, dropped: Sequence[Info] = ()) -> Info:
    """The info of an answer X, judged by products with A; `dropped` are the reports of the loop that found it.

    Costs one product where A multiplies by iterations, or where a report of the loop was a failure (a preconditioner's does no harm).
    """
    if not multiplies_by_iteration(A) and not any(_is_failure(each._status) for each in dropped):
        return info
    with recording() as reports:
        A @ X
    told = [each for each in reports if failed(each._status) is not False]
    if not told:
        return info
    worst = combine(each._status for each in told)
    name = worst.name if isinstance(worst, Status) else "its status"
    message = f"a product with A, which is {told[0].method or 'a function'} itself, failed ({name}). {info.message}".rstrip()
    converged = info.converged & (worst < int(Status.STOPPED))
    return info.replace(status=combine([info._status, worst]), converged=converged, message=message)
