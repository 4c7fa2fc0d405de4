"""How a computation ended: statuses with their meaning and remedy, and the warning or the error
that a failing one becomes."""

from __future__ import annotations

import enum
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import backends
from .errors import ConvergenceError, ConvergenceWarning

if TYPE_CHECKING:
    from .info import Info, Scope


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


# Who may look at a value.
#
# A look at an array on a device waits for all that the device has still to do. So a call looks once,
# at its end, at all statuses together, and goes until then the way that it goes under tracing; quick
# tests of an answer, which most answers pass, are taken to be passed and are asked then too
# (`take_for_granted`). If one of them fails, the call is run again as on the host (`is_careful`):
# with its looks at values, its refinements and other methods.


class _State(threading.local):
    """What this thread is doing; a thread-local, because Dynamo traces no context variables.

    Attributes
    ----------
    current : Scope or None
        The innermost call of a function, None outside all calls.
    split : type or None
        Of the named method whose operator a rule is splitting, so that parts must be known to have
        what the method needs.
    is_choosing : bool
        Whether the rule of a call is looked for, which is not yet under way.
    is_careful : bool
        Whether a call is run again, with looks at values on a device.
    unasked : list of Test
        Those that the call under way has taken to be passed.
    waiting : list or None
        What the calls in a block `deferred` have still to tell.
    left_out : list or None
        The operators whose inverses are left to the residual of a solve to judge; None where rules
        judge.
    is_lent : bool
        Whether NumPy computes with arrays lent by JAX.
    call : object or None
        Stands for the outermost call, for which what is seen of values may be remembered; None
        until something is.
    display : Display or None
        Shows what is under way; None where nobody has asked to see it.
    """

    def __init__(self) -> None:
        self.current: Scope | None = None
        self.split: Any = None
        self.left_out: list[Any] | None = None
        self.is_lent = False
        self.call: Any = None
        self.display: Any = None
        self.is_choosing = self.is_careful = False
        self.unasked: list[Test] = []
        self.waiting: list[Told] | None = None


state = _State()


def is_unseen(x: Any) -> bool:
    """Whether the values of x are not to be looked at: x is traced, or on a device while a call is
    under way, whose status is read at its end."""
    if type(x) is np.ndarray:
        return False
    xp = backends.namespace_of(x)
    if xp is None or xp.is_traced(x):
        return xp is not None
    return bool(xp.is_on_device(x)) and (
        _is_settled_later()
        or ((state.is_choosing or state.waiting is not None) and not state.is_careful)
    )


def _is_settled_later() -> bool:
    """Whether a call is under way that reads at its end what is put off until then."""
    current = state.current
    return current is not None and current.is_settled and not state.is_careful


def may_read(x: Any) -> bool:
    """Whether an array that a call returned may be read: it is not traced, and no call that is
    under way would wait for it."""
    xp = backends.namespace_of(x)
    return xp is None or not (xp.is_traced(x) or (_is_settled_later() and bool(xp.is_on_device(x))))


class Test(NamedTuple):
    """A test of values on a device that is asked later, all in one copy to the host."""

    arrays: tuple[Any, ...]  # or norms of them
    judge: Callable[..., Any]  # whether it is passed, or the status, of the values as NumPy arrays
    failure: Status

    def with_norms(self) -> Test:
        """The same test, which holds no array whose norm is all that it looks at."""
        norm = lambda x: _namespace(x).rough_norm(*x) if type(x) is backends.Norm else x
        return self._replace(arrays=tuple(map(norm, self.arrays)))

    def status(self, values: Iterator[Any]) -> Status:
        """The status by the next of these values."""
        found = self.judge(*itertools.islice(values, len(self.arrays)))
        if isinstance(found, Status):
            return found
        return Status.SUCCESS if found else self.failure


class Pending(NamedTuple):
    """The status of a call in a block `deferred`: the worst of a status and of these tests."""

    status: Any
    tests: list[Test]

    def read(self) -> Status:
        """The status, for which the device is waited for."""
        return max([combine([self.status]), *ask(self.tests)])


def take_for_granted(
    judge: Callable[..., Any], *arrays: Any, failure: Status | None = None
) -> bool:
    """Whether a test of the values of arrays on a device is taken to be passed: it is asked at the
    end of the call, which is run again with all looks if it is not.

    In a block `deferred`, where nothing is run again, only the test of an answer is: one that says
    which `failure` it shows. None is under tracing, nor where the call is careful.
    """
    if (failure is None and state.waiting is not None) or not all(map(is_put_off, arrays)):
        return False
    put_off(Test(arrays, judge, failure or Status.INACCURATE))
    return True


def is_put_off(x: Any) -> bool:
    """Whether tests of x wait for the end of the call that is under way: x is not traced."""
    x = x.array if type(x) is backends.Norm else x
    xp = backends.namespace_of(x)
    return _is_settled_later() and (xp is None or not xp.is_traced(x))


def put_off(test: Test) -> None:
    """Ask a test at the end of the call under way; where `explain` plans there is nothing to test."""
    if state.current.planner is None:  # type: ignore[union-attr]
        state.unasked.append(test)


def is_finite(x: Any) -> bool:
    """Whether a number is finite: a test for `take_for_granted`."""
    return bool(np.isfinite(x))


def overlook(statuses: Iterable[Any]) -> None:
    """Take for granted that no status is a failure that its reader does not pass on."""
    for status in statuses:
        if not isinstance(status, int) and is_unseen(status):
            take_for_granted(_worst, status)


def _worst(statuses: Any) -> Status:
    return Status(int(statuses.max(initial=0)))


@np.errstate(all="ignore")
def ask(tests: list[Test]) -> list[Status]:
    """The statuses by several tests, whose arrays are copied to the host at once."""
    if not tests:
        return []
    arrays = [x for test in tests for x in test.arrays]
    values = iter(_namespace(arrays[0]).fetch(arrays))
    return [test.status(values) for test in tests]


def settle(reports: list[Info]) -> bool:
    """Read at once the statuses of a call and the tests that it has taken to be passed; false if
    one of them failed that was not known: then the call is to be run again, carefully."""
    unasked, state.unasked = state.unasked, []
    unread = list(unread_statuses(reports))
    if not unread and not unasked:
        return True
    found = ask([*(test for _, test in unread), *unasked])
    for (info, _), status in zip(unread, found):
        info.complete(status)
    if unread:  # on the host they would not have been made
        reports[:] = [info.without_empty_parts() for info in reports if not info.is_empty]
    return max(found) < FIRST_FAILURE


def unread_statuses(infos: Iterable[Info]) -> Iterator[tuple[Info, Test]]:
    """The computations and their parts whose statuses are still on a device, and what reads
    them."""
    for info in infos:
        status = info._status
        if not isinstance(status, int | Pending):
            xp = _namespace(status)
            if not xp.is_traced(status):
                seen = xp.peek(status)
                if seen is None:
                    yield info, Test((status,), _worst, Status.INACCURATE)
                else:
                    object.__setattr__(info, "_status", _worst(np.asarray(seen)))
        if info.children:
            yield from unread_statuses(info.children)


def _namespace(x: Any) -> Any:
    """The backend of a status that is no integer, or of what a test looks at."""
    x = x.array if type(x) is backends.Norm else x
    return backends.namespace_of(x) or backends.get("numpy")


def _largest(x: Any) -> Any:
    """The largest of a status, array or number: a `Status` if it can be seen at no cost."""
    if isinstance(x, int):
        return Status(x)
    if isinstance(x, Pending):
        return x.read()
    xp = backends.namespace_of(x)
    if xp is None:  # one of NumPy's numbers
        return Status(int(x))
    if 0 in x.shape:  # of an empty batch nothing can fail
        return Status.SUCCESS
    worst = xp.max(x) if x.shape else x
    seen = xp.peek(worst)
    return worst if seen is None else Status(int(seen))


def combine(statuses: Iterable[Any]) -> Any:
    """The worst of several statuses: a `Status`, or an integer array where a value is not to be
    seen (under tracing; on a device, before the end of a call).

    Examples
    --------
    >>> combine([Status.SUCCESS, Status.SINGULAR, Status.MAX_ITERATIONS]).name
    'SINGULAR'
    """
    known, worst = Status.SUCCESS, None
    for status in map(_largest, statuses):
        if isinstance(status, Status):
            known = max(known, status)
        else:
            worst = status if worst is None else _larger(worst, status)
    if worst is None:
        return known
    if known is not Status.SUCCESS:
        worst = _larger(worst, known)
    return worst if is_unseen(worst) else Status(int(worst))


def _larger(a: Any, b: Any) -> Any:
    """The larger of two statuses of which the first is an array."""
    xp: Any = backends.namespace_of(a)
    return xp.where(a >= int(b), a, int(b)) if isinstance(b, Status) else xp.maximum(a, b)


def read_status(info: Info) -> Any:
    """The worst of a computation that has ended: a `Status`, for which a device is waited for, or
    an array that is traced."""
    worst = _largest(info._status)
    return Status(int(worst)) if not isinstance(worst, Status) and may_read(worst) else worst


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
    """Whether a status is a failure: a bool; where values cannot be seen an array of them, or None
    where a device has still to compute it."""
    if isinstance(status, Pending):
        return None
    if not isinstance(status, int):
        is_traced = _namespace(status).is_traced(status)
        if not is_traced and is_unseen(status):
            return None
    return status >= int(FIRST_FAILURE)


def number_text(x: Any) -> str:
    """A number or an array as a short text; of an array the largest, since that is the one to
    worry about."""
    if not may_read(x):
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
    seen yet can only be warned of later: under tracing by a program that computes the result,
    inside another call by that one, in a block `deferred` at its end."""
    if state.unasked and state.current is None:  # at the end of a call in a block
        tell_later(info, on_failure)
        return result
    if on_failure == "ignore":
        return result
    worst = info._status
    xp: Any = None if isinstance(worst, int) else backends.namespace_of(worst)
    is_traced = xp is not None and xp.is_traced(worst)
    worst = worst if is_traced else combine([worst])
    if not isinstance(worst, Status):
        if is_traced:
            start, message = _who(info), _sentence(info)
            texts = [f"{start}: {s.name}: {s.meaning}.{message} {s.remedy}" for s in FAILURES]
            which = xp.where(worst >= int(FIRST_FAILURE), worst - (int(FIRST_FAILURE) - 1), 0)
            return xp.warn_later(which, *texts, category=ConvergenceWarning, result=result)
        if state.current is not None:
            state.current.reports.append(info)
        else:
            tell_later(info, on_failure)
    elif worst.is_failure:
        if state.waiting is not None and state.current is None:
            tell_later(info, on_failure)
            return result
        message = explanation(info, worst)
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
    failing = (child for child in info.children if read_status(child) is worst)
    deeper = next(failing, None)
    return info if deeper is None else _culprit(deeper, worst)


def _sentence(info: Info) -> str:
    return f" {info.message.rstrip('.')}." if info.message else ""


def explanation(info: Info, worst: Status) -> str:
    """What is told of a failure: the function, the part that failed, the status and the remedy."""
    culprit = _culprit(info, worst)
    where = "" if culprit is info else f" in {_who(culprit)}"
    facts = [
        f"{name} {number_text(value)}"
        for name in ("residual", "iterations")
        if (value := getattr(culprit, name)) is not None and may_read(value)
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


# Calls whose failures are told at the end of a block.


class Told(NamedTuple):
    """A call in a block `deferred`: what is known of it, and the user's line."""

    info: Info
    on_failure: str
    file: str
    line: int
    variables: dict[str, Any]  # of the user's module, in which Python remembers what it warned of


def tell_later(info: Info, on_failure: str) -> None:
    """Complete this at the end of the block `deferred`, and tell of it if it is a failure."""
    assert state.waiting is not None
    if state.unasked:
        tests = [test.with_norms() for test in state.unasked]
        object.__setattr__(info, "_status", Pending(info._status, tests))
        state.unasked = []
    frame = sys._getframe(users_level() - 1)
    state.waiting.append(
        Told(info, on_failure, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    )
