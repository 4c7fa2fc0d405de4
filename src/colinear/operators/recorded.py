"""Calls that a device replays: of a small problem most of the time is Python's, which launches one
operation after the other.

On a device a call looks at no value before its end (`..status`). So what it launches follows from
the structure of its operator, from shapes and dtypes; and once it is recorded, other numbers may be
written over the copies that the recording was made of, and all is launched at once. What a call
tests at its end is tested of a replayed one too: where a test fails, Python makes the call, as if
there were no recording. So it is with the few values that some calls do look at, the diagonals of a
tridiagonal matrix say: a recording is good for calls that would see the same, which the device
tests beside the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..backends import Array, namespace_of
from ..clock import CLOCKS
from ..dispatch import signatures
from ..dispatch.calls import NotLent
from ..dispatch.signatures import signature
from ..errors import ColinearError
from ..info import Info, state
from ..status import FIRST_FAILURE, ON_FAILURE, Status, Test, deliver
from .base import LinearOperator
from .context import Context
from .neutral import KINSHIP, by_numpy, is_plain
from .tree import KINDS, TEST_HOOKS, Index, map_parts

RECORD_AFTER = 16  # calls of one kind: a recording takes as long as some ten of them
LARGEST_CALL = 2**27  # bytes of arrays, which are copied in each call
MOST_HELD = 2**28  # bytes of copies that recordings may hold together
MOST_KINDS = 4096  # of calls that are remembered
LONGEST_INDEX = 4096  # integers of a structure that are compared in each call
MOST_LOST = 3  # replays that fail one after the other
AGREEMENT = 1e-3  # of a replayed result and of Python's, which sum in another order

STATIC = (bool, int, float, complex, str, type(None), type(...), Context)


def computed_elsewhere(
    f: Any, A: LinearOperator, arguments: tuple[Any, ...], info: bool, on_failure: str
) -> Any:
    """A call of a user by NumPy, which is quicker in the memory of the host, or by a recording on a
    device; `NotImplemented` where neither can be."""
    if A._is_elementwise and not A.xp.is_functional:  # an operation or two are done as soon
        return NotImplemented
    recorder = A.xp.recorder(A._context)
    if recorder is not None:
        return replayed(recorder, f, A, arguments, info, on_failure)
    return by_numpy(f._call, A, arguments, info, on_failure)


def replayed(
    recorder: Any,
    f: Any,
    A: LinearOperator,
    arguments: tuple[Any, ...],
    info: bool = False,
    on_failure: str = "warn",
) -> Any:
    """The result of a call whose kind has been recorded, or is now, since there were calls enough
    of it; `NotImplemented` of any other."""
    is_watched = bool(CLOCKS or TEST_HOOKS or state.display is not None)
    is_inside = state.current is not None or state.is_careful
    if info or is_inside or is_watched or on_failure not in ON_FAILURE:
        return NotImplemented
    try:
        call = _Call(recorder, f, A, arguments)
        known = _kinds.get(call.key, 0)
    except (_Unfit, TypeError, RecursionError):  # TypeError: what has no hash
        return NotImplemented
    if isinstance(known, _Recording):
        found = known.replay(call, on_failure)
        known.lost = known.lost + 1 if found is NotImplemented else 0
        if known.lost > MOST_LOST:
            _remember(call.key, None)
        return found
    if known is None:
        return NotImplemented
    if known < RECORD_AFTER:
        _remember(call.key, known + 1)
        return NotImplemented
    _remember(call.key, None)  # until it is known better
    try:
        result, recording = _recorded(call, on_failure)
    except (_Unfit, NotLent, ColinearError, RuntimeError):  # RuntimeError: of a full memory, say
        return NotImplemented
    _remember(call.key, recording)
    return result


_kinds: dict[Any, _Recording | int | None] = {}  # calls seen, the recording, or None: it cannot be


def _remember(key: Any, what: _Recording | int | None) -> None:
    if len(_kinds) >= MOST_KINDS:
        _kinds.clear()
    _kinds[key] = what
    if isinstance(what, _Recording):
        held = [(each, r) for each, r in list(_kinds.items()) if isinstance(r, _Recording)]
        excess = sum(r.size for _, r in held) - MOST_HELD
        for old, r in held[:-1]:
            if excess > 0:
                excess -= r.size
                _kinds[old] = None  # another loop needs the memory


class _Unfit(Exception):
    """Leaves a call that cannot be recorded."""


class _Call:
    """A call, as the arrays that may have other numbers the next time and the key of all else."""

    def __init__(self, recorder: Any, f: Any, A: LinearOperator, arguments: tuple[Any, ...]):
        self.recorder, self.f, self.A, self.arguments, self.xp = recorder, f, A, arguments, A.xp
        self.arrays: list[Array] = []
        self.given: tuple[Any, ...] = ()  # with the arrays of the last run
        self._places: dict[int, int] = {}
        self._parts: list[Any] = [
            *(f, signature(A), state.waiting is not None, signatures.rules_added),
            *(threading.get_ident(), recorder.settings()),
        ]
        self._add(A)
        for x in arguments:
            self._add(x)
        self.key = tuple(self._parts)

    def _add(self, x: Any) -> None:
        """Write an argument, an operator or one of its fields into the key."""
        parts, kind = self._parts, type(x)
        if kind in STATIC:
            parts.append((kind, repr(x) if kind in (float, complex) else x))
        elif kind is tuple or kind is list:
            parts.append((kind, len(x)))
            for each in x:
                self._add(each)
        elif isinstance(x, LinearOperator):
            if not (x._is_own and x._may_be_lent) or any(name in x.__dict__ for name in KINSHIP):
                raise _Unfit
            parts.append((kind, x._claims))
            for name in x._fields:
                self._add(getattr(x, name))
        elif namespace_of(x) is self.xp:
            self._add_array(x)
        elif kind is Index and len(x) <= LONGEST_INDEX:
            parts.append(x)
        elif getattr(kind, "_is_method", False) and is_plain(x):
            parts.append(x)
        else:
            raise _Unfit

    def _add_array(self, x: Array) -> None:
        place = self._places.get(id(x))
        if place is None:
            place = self._places[id(x)] = len(self.arrays)
            self.arrays.append(x)
        layout = self.recorder.layout(x)
        if layout is None:
            raise _Unfit
        self._parts.append((place, layout))

    def run(self, arrays: Sequence[Array]) -> tuple[Any, list[Test]]:
        """The result of the call with these arrays in place of its own, and what is to be tested of
        it; no code of the user's may run meanwhile."""
        image = lambda x: arrays[self._places[id(x)]] if id(x) in self._places else x
        kept = (*KINDS, "properties", "_signature")
        A, *others = self.given = tuple(
            map_parts(x, lambda B: B._map(image, kept), image) for x in (self.A, *self.arguments)
        )
        state.is_lent = True
        try:
            found = self.f.run_unsettled(A, tuple(others))
        finally:
            state.is_lent = False
        if found is None:
            raise _Unfit
        return found


@dataclass
class _Recording:
    """What a call launches, to be launched again of other numbers."""

    launch: Callable[[Sequence[Array]], list[Array]]
    shape: Any  # of the result: None for an array, else the class of a tuple
    judge: Callable[[Any], Status] | None  # of what it has tested, in one array
    size: int  # bytes of its copies
    read: Any  # what holds the arrays that it reads beside its copies
    lost: int = 0  # replays that failed since one did not

    def replay(self, call: _Call, on_failure: str) -> Any:
        """The result of a call; `NotImplemented` where a test of it fails."""
        results = self.launch(call.arrays)
        tested = results.pop() if self.judge is not None else None
        result = results[0] if self.shape is None else _tuple_of(self.shape, results)
        if self.judge is None:
            return result
        test = Test((tested,), self.judge, Status.INACCURATE)
        if state.waiting is not None:
            state.unasked.append(test)
            return deliver(Info(Status.SUCCESS, function=call.f.name), on_failure, result)
        (values,) = call.xp.fetch(test.arrays)
        return result if self.judge(values) < FIRST_FAILURE else NotImplemented


def _tuple_of(kind: type, parts: list[Any]) -> Any:
    return kind(*parts) if hasattr(kind, "_fields") else kind(parts)


def _recorded(call: _Call, on_failure: str) -> tuple[Any, _Recording | None]:
    """The result of a call and, if that can be made, its recording, which was seen to agree."""
    xp, size = call.xp, sum(x.nbytes for x in call.arrays)
    if not call.arrays or size > LARGEST_CALL:
        return NotImplemented, None
    copies = [xp.copy(x) for x in call.arrays]  # so that nothing that A remembers is left out
    looks = call.recorder.looks()
    with xp.watch_operations(copies[0]) as watch, looks.first():
        expected, _ = call.run(copies)
    parts, shape = _taken_apart(xp, expected)
    if watch is None or not watch.is_fit:
        return NotImplemented, None
    judges: list[Any] = []

    def run(*arrays: Array) -> list[Array]:
        with looks.second():
            result, tests = call.run(arrays)
        results, again = _taken_apart(xp, result)
        # in a block nobody makes the call again where it would have seen something else
        if again is not shape or (looks.are_same and state.waiting is not None):
            raise _Unfit
        tests += [Test((is_same,), bool, Status.INACCURATE) for is_same in looks.are_same]
        if not tests:
            return [*arrays, *results]
        tested, unpack = call.recorder.pack([x for test in tests for x in test.arrays])
        bare = [test._replace(arrays=(None,) * len(test.arrays)) for test in tests]
        judges.append(_joined(bare, unpack))
        return [*arrays, *results, tested]

    made = xp.record(run, call.arrays)
    if made is None:
        return NotImplemented, None
    _, launch = made
    read = looks, call.given  # whose structures may hold arrays on the device
    recording = _Recording(launch, shape, judges[-1] if judges else None, size, read)
    found = recording.replay(call, on_failure)
    if found is NotImplemented:
        return NotImplemented, None
    again, _ = _taken_apart(xp, found)
    if not all(_agree(xp, x, y) for x, y in zip(again, parts, strict=True)):
        return NotImplemented, None
    return found, recording


def _joined(tests: list[Test], unpack: Callable[[Any], list[Any]]) -> Callable[[Any], Status]:
    """The worst status by several tests, whose values stand in one array."""

    def judge(values: Any) -> Status:
        each = iter(unpack(values))
        return max(test.status(each) for test in tests)

    return judge


def _taken_apart(xp: Any, result: Any) -> tuple[list[Array], Any]:
    """The arrays of a result, and the class that holds them, None for one array."""
    parts = list(result) if isinstance(result, tuple) else [result]
    if not all(namespace_of(x) is xp for x in parts):
        raise _Unfit
    return parts, type(result) if isinstance(result, tuple) else None


def _agree(xp: Any, x: Array, y: Array) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    size, error = xp.fetch([xp.vector_norm(z) for z in (y, x - y)])
    return bool(error <= AGREEMENT * size)
