"""How a computation ended: statuses with their meaning and remedy, and the warning or the error
that a failing one becomes."""

from __future__ import annotations

import enum
import os
import sys
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import backends
from .errors import ConvergenceError, ConvergenceWarning

if TYPE_CHECKING:
    from .info import Info


# How a computation ended: statuses with their meaning and remedy, and the worst of several.


class Status(enum.IntEnum):
    """How a computation ended, ordered by severity, so that the worst of several is their
    maximum."""

    meaning: str
    remedy: str

    def __new__(cls, value: int, meaning: str = "", remedy: str = "") -> Status:
        status = int.__new__(cls, value)
        status._value_, status.meaning, status.remedy = value, meaning, remedy
        return status

    SUCCESS = (0, "the answer is right to the tolerance")
    FELL_BACK = (
        1,
        "the first choice of method failed and another gave the answer",
        "Correct the annotation (`verify` tests it), or name the method.",
    )
    STOPPED = (2, "the callback stopped it", "Return a false value from the callback to go on.")
    STAGNATION = (
        3,
        "the residual stopped falling above the tolerance, as a rule at the accuracy of the dtype",
        "Compute in a wider dtype, ask for a larger tol, or use a preconditioner.",
    )
    MAX_ITERATIONS = (
        4,
        "the iterations ran out before the tolerance was reached",
        "Raise max_iters, use a preconditioner, or use a direct method.",
    )
    INACCURATE = (
        5,
        "the answer is finite but its residual misses the tolerance: the operator is "
        "ill-conditioned",
        "Compute in float64, regularise, or use lstsq or QR().",
    )
    BREAKDOWN = (
        6,
        "the recurrence broke down",
        "Use a method made for this operator: MINRES for indefinite, GMRES for nonsymmetric ones.",
    )
    NOT_POSITIVE_DEFINITE = (
        7,
        "the operator is not positive definite, which the method needs",
        "Remove the annotation, or use LDL(), LU() or MINRES().",
    )
    SINGULAR = (
        8,
        "the operator is singular to working accuracy",
        "Use lstsq or pinv, or regularise it.",
    )
    NONFINITE = (
        9,
        "NaN or infinity in the input or in the result",
        "Look for NaN, infinity or overflow in the operator's data.",
    )

    @property
    def is_failure(self) -> bool:
        """Whether the answer may miss what was asked for, without the user's having wanted that."""
        return self >= FIRST_FAILURE


FIRST_FAILURE = Status.STAGNATION
FAILURES = tuple(Status)[FIRST_FAILURE:]


def is_unseen(x: Any) -> bool:
    """Whether x is an array whose values cannot be seen: under tracing."""
    xp = backends.namespace_of(x)
    return xp is not None and bool(xp.is_traced(x))


def _largest(x: Any) -> Any:
    """The largest of a status, array or number: a `Status` if its value can be seen, else an
    array."""
    if isinstance(x, int):
        return Status(x)
    xp = backends.namespace_of(x)
    if xp is None:  # one of NumPy's numbers
        return Status(int(x))
    if 0 in x.shape:  # of an empty batch nothing can fail
        return Status.SUCCESS
    worst = xp.max(x) if x.shape else x
    return worst if xp.is_traced(worst) else Status(int(worst))


def combine(statuses: Iterable[Any]) -> Any:
    """The worst of several statuses: a `Status`, or an integer array where a value cannot be seen
    (under tracing).

    Examples
    --------
    >>> combine([Status.SUCCESS, Status.SINGULAR, Status.MAX_ITERATIONS]).name
    'SINGULAR'
    """
    worst: Any = Status.SUCCESS
    for status in map(_largest, statuses):
        if isinstance(worst, Status) and isinstance(status, Status):
            worst = max(worst, status)
        else:
            worst = _larger(worst, status)
    return worst


def _larger(a: Any, b: Any) -> Any:
    """The larger of two statuses of which at least one is an array."""
    if isinstance(a, Status):
        a, b = b, a
    xp: Any = backends.namespace_of(a)
    if isinstance(b, Status):
        b = xp.full((), int(b), dtype=a.dtype, device=xp.device_of(a))
    return xp.maximum(a, b)


def first_failure(xp: Any, *conditions: tuple[Any, Status]) -> Any:
    """The status that stands beside the first condition that does not hold, SUCCESS if all hold.

    Of arrays of conditions it is the worst: a `Status`, or a number that is traced.
    """
    status: Any = int(Status.SUCCESS)
    for holds, failure in reversed(conditions):
        if backends.is_array(holds):
            status = xp.where(holds, status, int(failure))
        else:
            status = status if holds else int(failure)
    return combine([status])


def failed(status: Any) -> Any:
    """Whether a status is a failure: a bool, or an array of them where values cannot be seen."""
    return status >= int(FIRST_FAILURE)


def number_text(x: Any) -> str:
    """A number or an array as a short text; of an array the largest, since that is the one to
    worry about."""
    if is_unseen(x):
        return "traced"
    xp = backends.namespace_of(x)
    if xp is not None:
        x = xp.to_numpy(x)
        if x.size == 0:
            return "none"
        x = x.max().item()
    return f"{x:.2g}" if isinstance(x, float) else str(x)


# What becomes of a failure: a warning or an error, which names the part that failed, the status
# and the remedy.


def known_status(xp: Any, status: Any) -> Any:
    """`Status(status)` where its value can be seen, else the traced number."""
    return status if xp.is_functional and xp.is_traced(status) else Status(int(status))


ON_FAILURE = ("warn", "raise", "ignore")


def deliver(info: Info, on_failure: str, result: Any = None) -> Any:
    """Warn of a failure, or raise it, as the user wishes, and return the result. What cannot be
    seen yet (tracing) can only be warned of, later, by a program that computes the result."""
    if on_failure == "ignore":
        return result
    worst = combine([info._status])
    if not isinstance(worst, Status):
        xp = backends.namespace_of(worst)
        assert xp is not None
        start, message = _who(info), _sentence(info)
        texts = [f"{start}: {s.name}: {s.meaning}.{message} {s.remedy}" for s in FAILURES]
        which = xp.where(failed(worst), worst - (int(FIRST_FAILURE) - 1), 0)
        return xp.warn_later(which, *texts, category=ConvergenceWarning, result=result)
    if worst.is_failure:
        message = _explanation(info, worst)
        if on_failure == "raise":
            raise ConvergenceError(message, info)
        warnings.warn(message, ConvergenceWarning, stacklevel=users_level())
    return result


def _who(info: Info) -> str:
    """The public function, and the method that it ran by."""
    by = f" ({info.method})" if info.function and info.method else ""
    return (info.function or info.method or "colinear") + by


def _culprit(info: Info, worst: Status) -> Info:
    """The part that failed, if it was a part."""
    failing = (child for child in info.children if combine([child._status]) is worst)
    deeper = next(failing, None)
    return info if deeper is None else _culprit(deeper, worst)


def _sentence(info: Info) -> str:
    return f" {info.message.rstrip('.')}." if info.message else ""


def _explanation(info: Info, worst: Status) -> str:
    culprit = _culprit(info, worst)
    where = "" if culprit is info else f" in {_who(culprit)}"
    facts = [
        f"{name} {number_text(value)}"
        for name in ("residual", "iterations")
        if (value := getattr(culprit, name)) is not None and not is_unseen(value)
    ]
    details = f" ({', '.join(facts)})" if facts else ""
    return (
        f"{_who(info)}: {worst.name}{where}: {worst.meaning}{details}.{_sentence(culprit)} "
        f"{worst.remedy}"
    )


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def users_level() -> int:
    """The stacklevel of the first frame outside this package: the user's own line."""
    level, frame = 1, sys._getframe(1)  # level 1 is the frame that warns: our caller
    while frame.f_back is not None and frame.f_code.co_filename.startswith(
        (_PACKAGE, "<colinear ")
    ):
        level, frame = level + 1, frame.f_back
    return level
