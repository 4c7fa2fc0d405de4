"""What a computation says of itself: statuses with their remedies, `Info`, the errors and the warnings.

A method never raises and never prints: it hands its `Info` to `report`. The outermost call of a function collects what was
reported inside it, by nested calls and by solves applied lazily, and settles it once: as the `Info` that the user asked for, as a
warning, or as a `ConvergenceError`.
"""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from . import backends
from .trees import draw

# ---------------------------------------------------------------------------------------------------- errors and warnings


class ColinearError(Exception):
    """The root of all errors of this library."""


class ShapeError(ColinearError, ValueError):
    """Shapes that do not fit, or that a function has no meaning for."""


class DtypeError(ColinearError, TypeError):
    """A dtype that cannot be computed with."""


class BackendError(ColinearError, TypeError):
    """Arrays of two frameworks at once, or something that a framework cannot do."""


class DeviceError(ColinearError, ValueError):
    """Arrays on two devices at once, or a device that is not there."""


class AnnotationError(ColinearError, ValueError):
    """A claim that the data contradicts."""


class AmbiguityError(ColinearError, TypeError):
    """Two rules apply and neither is more specific."""


class MethodError(ColinearError, TypeError):
    """Something given as a method that is not one."""


class ConvergenceError(ColinearError, RuntimeError):
    """A failing status under `on_failure="raise"`; `error.info` is the `Info`."""

    def __init__(self, message: str, info: Info | None = None):
        super().__init__(message)
        self.info = info

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.info)


class ColinearWarning(UserWarning):
    """The root of all warnings of this library."""


class ConvergenceWarning(ColinearWarning):
    """An answer that is not what was asked for: the message names the status and the remedy."""


class ApproximationWarning(ColinearWarning):
    """A stochastic answer where an exact one was out of reach."""


class DerivativeWarning(ColinearWarning):
    """A derivative of something that has none here: what depends on the choice of a basis where eigenvalues repeat, say."""


class FallbackWarning(ColinearWarning):
    """Another algorithm than the one that was asked for gave the answer."""


# ---------------------------------------------------------------------------------------------------- statuses


class Status(enum.IntEnum):
    """How a computation ended, ordered by severity, so that the worst of several is their maximum."""

    SUCCESS = 0
    FELL_BACK = 1
    STOPPED = 2
    STAGNATION = 3
    MAX_ITERATIONS = 4
    INACCURATE = 5
    BREAKDOWN = 6
    NOT_POSITIVE_DEFINITE = 7
    SINGULAR = 8
    NONFINITE = 9

    @property
    def is_failure(self) -> bool:
        """Whether the answer may miss what was asked for, without the user's having wanted that."""
        return self >= FIRST_FAILURE

    @property
    def meaning(self) -> str:
        return _TEXTS[self][0]

    @property
    def remedy(self) -> str:
        return _TEXTS[self][1]


FIRST_FAILURE = Status.STAGNATION

_TEXTS = {
    Status.SUCCESS: ("the answer is right to the tolerance", ""),
    Status.FELL_BACK: (
        "the first choice of factorisation failed and another gave the answer",
        "Correct the annotation (`verify` tests it), or name the method.",
    ),
    Status.STOPPED: ("the callback stopped it", "Return a false value from the callback to go on."),
    Status.STAGNATION: (
        "the residual stopped falling at the accuracy of the dtype",
        "Compute in a wider dtype, ask for a larger tol, or use a preconditioner.",
    ),
    Status.MAX_ITERATIONS: (
        "the iterations ran out before the tolerance was reached",
        "Raise max_iters, use a preconditioner, or use a direct method.",
    ),
    Status.INACCURATE: (
        "the answer is finite but its residual misses the tolerance: the operator is ill-conditioned",
        "Compute in float64, regularise, or use lstsq or QR().",
    ),
    Status.BREAKDOWN: (
        "the recurrence broke down",
        "Use a method made for this operator: MINRES for indefinite, GMRES for nonsymmetric ones.",
    ),
    Status.NOT_POSITIVE_DEFINITE: (
        "the operator is not positive definite, which the method needs",
        "Remove the annotation, or use LDL(), LU() or MINRES().",
    ),
    Status.SINGULAR: ("the operator is singular to working accuracy", "Use lstsq or pinv, or regularise it."),
    Status.NONFINITE: (
        "NaN or infinity in the input or in the result",
        "Look for NaN, infinity or overflow in the operator's data.",
    ),
}


def _is_traced(x: Any) -> bool:
    xp = backends.namespace_of(x)
    return xp is not None and bool(xp.is_traced(x))


def _largest(x: Any) -> Any:
    """The largest of a status, array or number: a `Status` if its value can be seen, else an array."""
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
    """The worst of several statuses: a `Status`, or an integer array where a value cannot be seen (under tracing).

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


def failed(status: Any) -> Any:
    """Whether a status is a failure: a bool, or an array of them where values cannot be seen."""
    return status >= int(FIRST_FAILURE)


# ---------------------------------------------------------------------------------------------------- Info


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Info:
    """What is known of an answer; immutable, and a pytree, so that it passes through jit and vmap.

    Attributes
    ----------
    status : Status
        The worst of this computation and its parts; under tracing an integer array.
    converged : bool or array of bool
        Per column where there are several right sides.
    iterations, matvecs : int
        Of iterative methods, with those of the parts.
    residual : float or array
        Relative, true (recomputed at the end), per column.
    error : float or array
        An estimate of the error, from stochastic methods.
    history : array
        The residual by iteration, where the method keeps it.
    method, function, rule : str
        What computed it.
    message : str
        More, in words.
    children : tuple of Info
        Of the parts that a rule split the problem into.
    """

    _status: Any
    converged: Any
    iterations: Any
    matvecs: Any
    residual: Any
    error: Any
    history: Any
    method: str
    function: str
    rule: str
    message: str
    children: tuple[Info, ...]

    def __init__(
        self,
        status: Any = Status.SUCCESS,
        converged: Any = None,
        iterations: Any = None,
        matvecs: Any = None,
        residual: Any = None,
        error: Any = None,
        history: Any = None,
        *,
        method: str = "",
        function: str = "",
        rule: str = "",
        message: str = "",
        children: tuple[Info, ...] = (),
    ):
        if converged is None:
            converged = status < int(Status.STOPPED)
        values = (status, converged, iterations, matvecs, residual, error, history, method, function, rule, message, children)
        for name, value in zip(_FIELDS, values):
            object.__setattr__(self, name, value)

    @property
    def status(self) -> Any:
        status = self._status
        if type(status) is Status:
            return status
        if isinstance(status, int) or (getattr(status, "shape", None) == () and not _is_traced(status)):
            return Status(int(status))
        return status

    @property
    def failed(self) -> Any:
        """Whether the status is a failure."""
        return failed(self.status)

    def replace(self, **changes: Any) -> Info:
        """A copy with some fields changed."""
        return _make([changes.get(name.lstrip("_"), getattr(self, name)) for name in _FIELDS])

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, ([getattr(self, name) for name in _FIELDS],)

    def __repr__(self) -> str:
        return draw(self, _line, lambda info: info.children)


_LEAVES = ("_status", "converged", "iterations", "matvecs", "residual", "error", "history")
_STATIC = ("method", "function", "rule", "message")
_FIELDS = (*_LEAVES, *_STATIC, "children")


def _make(values: Iterable[Any]) -> Info:
    info = object.__new__(Info)
    for name, value in zip(_FIELDS, values):
        object.__setattr__(info, name, value)
    return info


def _flatten(info: Info) -> tuple[tuple[Any, ...], Any]:
    """The leaves that are there (torch's pytrees would count None as one) and the names to put them back by."""
    present = tuple(name for name in _LEAVES if getattr(info, name) is not None)
    # An IntEnum is no array type to JAX; a plain int is.
    leaves = tuple(int(v) if isinstance(v, Status) else v for v in (getattr(info, name) for name in present))
    return (*leaves, *info.children), (present, tuple(getattr(info, name) for name in _STATIC))


def _unflatten(structure: Any, leaves: Any) -> Info:
    present, static = structure
    leaves = tuple(leaves)
    values = dict(zip(present, leaves))
    return _make([*(values.get(name) for name in _LEAVES), *static, leaves[len(present) :]])


backends.on_load(lambda xp: xp.register_pytree(Info, _flatten, _unflatten))


def _number(x: Any) -> str:
    """A number or an array as a short text; of an array the largest, since that is the one to worry about."""
    if _is_traced(x):
        return "traced"
    xp = backends.namespace_of(x)
    if xp is not None:
        x = xp.to_numpy(x)
        if x.size == 0:
            return "none"
        x = x.max().item()
    return f"{x:.2g}" if isinstance(x, float) else str(x)


def _line(info: Info) -> str:
    name = ": ".join(part for part in (info.function, info.rule) if part) or "Info"
    if info.method:
        name += f" by {info.method}"
    status = combine([info._status])
    parts = [f"{name}  {status.name if isinstance(status, Status) else 'traced'}"]
    for field in ("residual", "error", "iterations", "matvecs"):
        if (value := getattr(info, field)) is not None:
            parts.append(f"{field} {_number(value)}")
    if info.message:
        parts.append(info.message)
    return "  ".join(parts)


# ---------------------------------------------------------------------------------------------------- recording


class _State(threading.local):
    """What the calls of this thread know of the call around them; a thread-local, because Dynamo traces no context variables.

    `current` is None outside all calls, a list of the reports so far inside one, a `Detailed` list where nested calls are to make
    an Info each (someone asked for info=True), or explain's planner.
    """

    def __init__(self) -> None:
        self.current: Any = None


state = _State()


class Detailed:
    """Reports of which the nested calls matter too."""

    __slots__ = ("reports",)

    def __init__(self) -> None:
        self.reports: list[Info] = []

    def append(self, info: Info) -> None:
        self.reports.append(info)


def planning() -> bool:
    """Whether `explain` is at work, so that only the nested calls of a function matter and no result does."""
    return state.current is not None and not isinstance(state.current, (list, Detailed))


def report(info: Info) -> None:
    """Hand in the `Info` of a method: to the call of a function that is under way, else as a warning if it is a failure."""
    current = state.current
    if current is not None:
        current.append(info)
    else:
        settle(info, "warn")


@contextlib.contextmanager
def recording() -> Iterator[list[Info]]:
    """Collect the reports made inside, instead of passing them on.

    For code that runs others' operators where their reports must not leave: the body of a traced loop (whose tracers mean nothing
    outside it), or an attempt whose failure is expected.
    """
    outer = state.current
    reports: list[Info] = []
    if not planning():  # a planner goes on planning, and takes no reports
        state.current = reports
    try:
        yield reports
    finally:
        state.current = outer


def part(label: str, f: Any, *arguments: Any) -> Any:
    """`f(*arguments)` for one part of a composition: a failure that is reported inside names the part."""
    outer = state.current
    if outer is None or planning():
        return f(*arguments)
    state.current = inner = type(outer)()
    try:
        return f(*arguments)
    finally:
        state.current = outer
        for info in inner if isinstance(inner, list) else inner.reports:
            outer.append(info if failed(info._status) is False else info.replace(message=f"{label}; {info.message}".rstrip("; ")))


def gather(reports: list[Info], function: str, rule: str) -> Info:
    """One `Info` for a call, from what was reported inside it.

    A single report by the rule or the base case itself describes the whole: its residual is the whole's. Everything else is a
    part. Counts are of everything, the status is the worst.
    """
    own = [info for info in reports if not info.function]
    whole = own[0] if len(own) == 1 else None
    parts = tuple(info for info in reports if info is not whole)
    only = whole or (parts[0] if len(parts) == 1 else None)  # what a rule passes on to one part keeps that part's figures
    return Info(
        status=combine(info._status for info in reports),
        converged=only.converged if only else _all(info.converged for info in reports),
        iterations=total(info.iterations for info in reports),
        matvecs=total(info.matvecs for info in reports),
        residual=only.residual if only else None,
        error=only.error if only else None,
        history=only.history if only else None,
        method=whole.method if whole else "",
        message=whole.message if whole else "",
        function=function,
        rule=rule,
        children=(*whole.children, *parts) if whole else parts,
    )


def total(counts: Iterable[Any]) -> Any:
    total: Any = None
    for count in counts:
        if count is not None:
            total = count if total is None else total + count
    return total


def _all(flags: Iterable[Any]) -> Any:
    result: Any = True
    for flag in flags:
        xp = backends.namespace_of(flag)
        flag = flag if xp is None else xp.all(flag)
        result = flag if result is True else result & flag
    return result


# ---------------------------------------------------------------------------------------------------- what becomes of failures

ON_FAILURE = ("warn", "raise", "ignore")


def settle(info: Info, on_failure: str) -> None:
    """Warn of a failure, or raise it, as the user wishes. What cannot be seen yet (tracing) can only be warned of, later."""
    if on_failure == "ignore":
        return
    worst = combine([info._status])
    if not isinstance(worst, Status):
        xp = backends.namespace_of(worst)
        assert xp is not None
        more = f". {info.message.rstrip('.')}" if info.message else "; the Info that info=True adds holds its status"
        message = f"{_who(info)} failed{more}."
        xp.warn_later(failed(worst), message, category=ConvergenceWarning)
    elif worst.is_failure:
        message = _explanation(info, worst)
        if on_failure == "raise":
            raise ConvergenceError(message, info)
        warnings.warn(message, ConvergenceWarning, stacklevel=_users_level())


def _who(info: Info) -> str:
    names = ", ".join(dict.fromkeys(name for name in (info.rule, info.method) if name))
    return f"{info.function} ({names})" if info.function and names else info.function or names or "colinear"


def _explanation(info: Info, worst: Status) -> str:
    culprit = info
    while True:  # the part that failed, if it was a part
        deeper = next((child for child in culprit.children if combine([child._status]) == worst), None)
        if deeper is None:
            break
        culprit = deeper
    where = "" if culprit is info else f" in {_who(culprit)}"
    facts = [
        f"{name} {_number(value)}"
        for name in ("residual", "iterations")
        if (value := getattr(culprit, name)) is not None and not _is_traced(value)
    ]
    details = f" ({', '.join(facts)})" if facts else ""
    message = f" {culprit.message.rstrip('.')}." if culprit.message else ""
    return f"{_who(info)}: {worst.name}{where}: {worst.meaning}{details}.{message} {worst.remedy}"


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _users_level() -> int:
    """The stacklevel of the first frame outside this package: the user's own line."""
    level, frame = 1, sys._getframe(1)  # level 1 is the frame that warns: our caller
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, "<colinear ")):
        level, frame = level + 1, frame.f_back
    return level
