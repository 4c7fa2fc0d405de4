"""Steps of a recurrence that a device replays: of short steps most of the time is Python's, which
launches them one operation after the other.

A recurrence that has run for a while is recorded, some steps of it, and replayed from there from one
look at the device to the next; looks become rarer as it goes on. A recording is trusted only where
its steps come to what the same steps came to when Python made them. (What a product does beside its
launches, such as counting its calls, is not repeated.)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np

from .vectors import LOOK_EVERY, RUNNING

RECORD_AFTER = LOOK_EVERY  # steps: a recording takes as long as some twenty of them
RECORDED = LOOK_EVERY // 2  # steps: a recurrence whose vectors change places copies them at the end
COMPARED = 4  # steps
RAREST = 4  # times `LOOK_EVERY` steps between two looks, and at most a fourth of those made
AGREEMENT = 1e-2  # of |r|^2 from step to step, which sums in another order change a little


class Replay:
    """Makes steps one by one, and at last many at once."""

    def __init__(self, xp: Any, step: Callable[[Any, Any], Any], ops: Any):
        self.xp, self.step, self.ops = xp, step, ops
        self._is_fit: Any = (
            None  # whether all operations of a step can be recorded, once it is known
        )
        self._replay: Any = None
        self._state: Any = None  # whose arrays the recording writes over

    def advance(self, state: Any, made: Any, done: int, room: int) -> tuple[Any, Any, Any]:
        """The state after one step or several, at most `room`; of each column how many were made,
        and |r|^2 after each step. `done` steps were made before."""
        if room < LOOK_EVERY or done < RECORD_AFTER or not self.ops.looks_after(done):
            return self._advance_once(state, made, is_watched=done == RECORD_AFTER - 1)
        if self._replay is not None:
            looks = min(RAREST, room // LOOK_EVERY, max(1, done // (4 * LOOK_EVERY)))
            return self._replayed(made, looks * LOOK_EVERY)
        if not self._is_fit:
            return self._advance_once(state, made)
        self._is_fit = False  # there is one recording
        return self._recorded(state, made)

    def _advance_once(self, state: Any, made: Any, is_watched: bool = False) -> Any:
        made = made + (state.status == RUNNING)
        if is_watched:
            with self.xp.watch_operations(state.size) as watch:
                state = self.step(self.ops, state)
            self._is_fit = watch is not None and watch.is_fit
        else:
            state = self.step(self.ops, state)
        return state, made, [state.size]

    def _advance(self, state: Any, made: Any, count: int) -> Any:
        sizes = []
        for _ in range(count):
            state, made, size = self._advance_once(state, made)
            sizes += size
        return state, made, sizes

    def _recorded(self, state: Any, made: Any) -> Any:
        """Record the steps, make them, replay the recording, and compare."""
        xp, ops = self.xp, self.ops
        names, arrays, others = _split(xp, state, ops, made)

        def steps(*arrays: Any) -> list[Any]:
            start, begun = _joined(state, ops, names, arrays, made)
            end, counted, sizes = self._advance(start, begun, RECORDED)
            ends, found, others_at_end = _split(xp, end, ops, counted)
            if ends != names or others_at_end != others:
                raise RuntimeError("a step changes what is no array")
            return [*found, xp.stack(sizes)]

        recording = xp.record(steps, arrays)
        _joined(state, ops, names, arrays, made)  # what the recording has put into `ops`
        if recording is None:
            return self._advance(state, made, COMPARED)
        own, replay = recording
        begun = made
        state, made, sizes = self._advance(state, made, COMPARED)
        found, expected = replay()[0], xp.stack(sizes)
        if not bool(xp.all(xp.abs(found[:COMPARED] - expected) <= AGREEMENT * expected)):
            return state, made, sizes
        self._replay = replay
        self._state, made = _joined(state, ops, names, own, begun)
        state, made, sizes = self._replayed(made, LOOK_EVERY - RECORDED)
        return state, _plus(xp, made, RECORDED), xp.concat([found, sizes], axis=0)

    def _replayed(self, made: Any, count: int) -> Any:
        """So many steps, by the recording."""
        sizes = [self._replay()[0] for _ in range(count // RECORDED)]
        return self._state, _plus(self.xp, made, count), self.xp.concat(sizes, axis=0)


def _plus(xp: Any, made: Any, count: int) -> Any:
    """The steps of columns after so many that were replayed: an array is changed by the replay."""
    return made if isinstance(made, xp.array_types) else made + count


def _split(xp: Any, state: Any, ops: Any, made: Any) -> tuple[list[Any], list[Any], dict]:
    """The names and the arrays of a state, what `ops` carries and how many steps were made among
    them; and what is no array."""
    every = vars(state) | {("ops", key): value for key, value in ops.carried.items()}
    if isinstance(made, xp.array_types):
        every["made"] = made
    names = [name for name, value in every.items() if isinstance(value, xp.array_types)]
    others = {name: value for name, value in every.items() if name not in names}
    return names, [every[name] for name in names], others


def _joined(state: Any, ops: Any, names: list[Any], arrays: Any, made: Any) -> tuple[Any, Any]:
    """A state like another one with these arrays, and how many steps were made."""
    state = copy(state)
    for name, value in zip(names, arrays, strict=True):
        if name == "made":
            made = value
        elif isinstance(name, tuple):
            ops.carried[name[1]] = value
        else:
            setattr(state, name, value)
    return state, made


WATCHED, RECORDED_AT = 1, 2  # times that the same rows are filled
MOST_RECORDED = 4  # fills of a run: each keeps the memory that its steps need


class Fills:
    """Fills the rows of a basis on a device, and replays what it has filled before.

    A run fills the same rows from cycle to cycle, with other vectors. The vectors lie where they
    lay; the small arrays that steps read and change come from the host, and go back there. A
    recording is trusted only where it comes to what the steps came to when Python made them.
    """

    def __init__(self, xp: Any, device: Any):
        self.xp, self.device = xp, device
        self._times: dict[Any, int] = {}
        self._recordings: dict[Any, Any] = {}
        self._is_fit: Any = None  # as in `Replay`

    def __call__(
        self, key: Any, steps: Callable[..., list[Any]], small: list[np.ndarray]
    ) -> list[np.ndarray]:
        """What `steps` make of the small arrays. Steps of one key are the same; those of None may
        differ."""
        xp = self.xp
        if key in self._recordings:
            own, replay = self._recordings[key]
            replay(self.placed(small))
            return xp.fetch(own)
        times = self._times[key] = self._times.get(key, 0) + 1
        given = self.placed(small)
        if times == WATCHED and self._is_fit is None and key is not None:
            with xp.watch_operations(given[0]) as watch:
                results = steps(*given)
            self._is_fit = watch is not None and watch.is_fit
        else:
            results = steps(*given)
        found = xp.fetch(results)
        is_due = times == RECORDED_AT and key is not None
        if not (is_due and self._is_fit and len(self._recordings) < MOST_RECORDED):
            return found
        recording = xp.record(steps, self.placed(small))
        self._is_fit = recording is not None
        if recording is None:
            return found
        own, replay = recording
        replay(self.placed(small))
        if all(map(_agree, xp.fetch(own), found)):
            self._recordings[key] = recording
            return found
        self._is_fit = False
        self._recordings.clear()
        return xp.fetch(steps(*self.placed(small)))

    def placed(self, small: list[np.ndarray]) -> list[Any]:
        """The small arrays, copied to the device."""
        return [self.xp.copy(self.xp.asarray(x, device=self.device)) for x in small]


def _agree(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether finite arrays are the same but for sums in another order."""
    largest, error = (np.abs(x).max(initial=0) for x in (expected, found - expected))
    return bool(error <= AGREEMENT * largest < np.inf)
