"""What a call spends its time on: `Clock`, which runs only while someone has asked (`info=True`,
`profile`).

Time belongs to the outermost part that is under way: the products that a choice of rule makes are of
the choice, and what a backward pass factors is of the derivatives. What is in no part is "other":
the vectors of an iteration, tests of an answer, and Python.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

DISPATCH, FACTORISATION, PRODUCTS = "dispatch", "factorisation", "products"
DERIVATIVES, OTHER = "derivatives", "other"
PARTS = (DISPATCH, FACTORISATION, PRODUCTS, DERIVATIVES, OTHER)
ASIDE = "aside"  # what the one who measures does meanwhile, which no one is told

# The clocks that run in any thread. Nearly always empty, which is all that a product asks.
CLOCKS: list[Clock] = []

Timed = TypeVar("Timed", bound=Callable[..., Any])


class Clock:
    """The seconds that the calls of this thread spend on each part."""

    def __init__(self) -> None:
        self.told: dict[str, float] = {}  # the last that was told, to which derivatives come later
        self.part, self._since = OTHER, time.perf_counter()
        self._seconds = dict.fromkeys((*PARTS, ASIDE), 0.0)

    def turn(self, part: str) -> str:
        """Begin a part; return the one that was under way, to turn back to."""
        now = time.perf_counter()
        self._seconds[self.part] += now - self._since
        self._since, before, self.part = now, self.part, part
        return before

    def run(self, part: str, f: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """`f(*arguments, **options)`, whose time is of this part, unless it is in another one."""
        if self.part is not OTHER:
            return f(*arguments, **options)
        self.turn(part)
        try:
            return f(*arguments, **options)
        finally:
            self.turn(OTHER)

    def read(self) -> dict[str, float]:
        """The seconds of each part so far."""
        self.turn(self.part)
        return {part: self._seconds[part] for part in PARTS}

    def regard_as_dispatch(self, before: float) -> None:
        """Count the seconds of no part since there were `before` as time of choosing."""
        spent = self.read()[OTHER] - before
        self._seconds[OTHER] -= spent
        self._seconds[DISPATCH] += spent

    # A call of a function, which a `profile` records too.

    def begin(self, f: Any, rule: Any, A: Any, arguments: tuple[Any, ...]) -> Any:
        """A call begins; return what `end` is to be given."""
        return self.read()

    def end(self, begun: Any, how: str, result: Any) -> dict[str, float]:
        """A call has ended, by the rule or method `how`; return the seconds of each part."""
        self.told = difference(self.read(), begun)
        return self.told

    def abandon(self, begun: Any) -> None:
        """A call was left by an exception."""


def difference(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """What was spent on each part in between."""
    return {part: after[part] - before[part] for part in PARTS}


class _Running(threading.local):
    clock: Clock | None = None


_running = _Running()
_is_compiling: Callable[[], bool] = lambda: False


def watch_compiler(is_compiling: Callable[[], bool]) -> None:
    """Say when torch traces, in whose programs no clock can be read."""
    global _is_compiling
    _is_compiling = is_compiling


def running() -> Clock | None:
    """The clock of this thread, None where none runs or torch compiles. Ask `CLOCKS` first."""
    return None if _is_compiling() else _running.clock


class ticking:
    """A block in which a clock runs, in place of the one that ran."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def __enter__(self) -> Clock:
        self.outer, _running.clock = _running.clock, self.clock
        CLOCKS.append(self.clock)
        self.clock._since = time.perf_counter()
        return self.clock

    def __exit__(self, *_: Any) -> None:
        self.clock.turn(OTHER)
        CLOCKS.remove(self.clock)
        _running.clock = self.outer


def may_tick() -> bool:
    """Whether a call may have a clock of its own: none runs in this thread, and nothing compiles."""
    return not _is_compiling() and _running.clock is None


def clocked(f: Callable[..., Any], *arguments: Any) -> Any:
    """`f(*arguments)` with a clock of its own."""
    with ticking(Clock()):
        return f(*arguments)


def as_part(part: str, f: Timed) -> Timed:
    """f, whose time is of this part as long as the clock of now runs; f itself if none does."""
    clock = running() if CLOCKS else None
    return f if clock is None else functools.partial(clock.run, part, f)  # type: ignore[return-value]


def differentiated(forward: Clock | None, f: Callable[..., Any], *arguments: Any) -> Any:
    """`f(*arguments)`, which pulls back through what was computed while the clock `forward` ran:
    the Info of that call tells its time too."""
    clock = running() if CLOCKS else None
    if clock is not None:
        return clock.run(DERIVATIVES, f, *arguments)
    if forward is None:
        return f(*arguments)
    start = time.perf_counter()
    try:
        return f(*arguments)
    finally:
        if forward.told:
            forward.told[DERIVATIVES] += time.perf_counter() - start
