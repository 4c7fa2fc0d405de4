"""The loop that drives the recurrence of every method, `step(ops, state) -> state`; the history,
the user's callback and the display of what is under way, to which it shows each step.

A state is a `State`, whose fields a step updates; it has at least

    status   RUNNING, or how it ended, for each column
    size     the norm of the residual as the recurrence has it, squared, for each column

and columns whose status is not RUNNING stand still. The loop is Python's in NumPy and torch, and
`lax.while_loop` in JAX.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..backends import Array
from ..dispatch import signatures
from ..status import state as thread
from .replay import Replay
from .vectors import RUNNING

LONGEST_HISTORY = 10_000
SHOW_EVERY = 10  # steps, in a compiled program: each is a call of the host


@dataclass(frozen=True)
class Progress:
    """What a callback is given: the iteration, the relative residual of each column, and `x`,
    computed when it is asked for."""

    iteration: int
    residual: Any
    _x: Callable[[], Any]

    @property
    def x(self) -> Any:
        return self._x()


class Monitor(NamedTuple):
    """Who looks on: whether the history is kept, the user's callback, and the display. Static and
    hashable."""

    record: bool = False
    callback: Callable[[Progress], Any] | None = None
    progress: bool = False
    title: str = ""
    vector: bool = False  # whether the right side was one

    def shaped(self, X: Array) -> Array:
        """A block as the user's right side was."""
        return X[..., 0] if self.vector else X

    @property
    def is_sparing(self) -> bool:
        """Whether nobody looks on, or only now and then, at residuals: as rarely as a device is
        looked at anyway."""
        is_rare = self.callback is None or getattr(self.callback, "is_sparing", False)
        return is_rare and not self.progress

    @property
    def is_idle(self) -> bool:
        return not (self.record or self.callback is not None or self.progress)


NO_MONITOR = Monitor()


def recorded(xp: Any, history: Array, iteration: Any, residual: Array) -> Array:
    """The history with one more entry, as far as there is room."""
    last = history.shape[0] - 1
    at = xp.minimum(iteration, last)
    return xp.set_at(history, at, xp.where(iteration <= last, residual, history[at]))


class HostBar:
    """A bar that a compiled program moves and closes by calls of the host; it is drawn anew each
    time the program runs."""

    def __init__(self, xp: Any, title: str):
        self.xp, self.title = xp, title
        self._bar: Any = None

    def move(self, iteration: Any, residual: Any) -> Any:
        return self.xp.call_host(self._draw, iteration, residual)

    def close(self, iteration: Any, residual: Any) -> Any:
        return self.xp.call_host(partial(self._draw, is_last=True), iteration, residual)

    def _draw(self, iteration: Any, residual: Any, is_last: bool = False) -> bool:
        self._bar = self._bar or progress_bar(self.title)
        self._bar(int(iteration), residual)
        if is_last:
            self._bar = self._bar(None, None)
        return False


def ask(callback: Any, iteration: Any, residual: Any, x: Any) -> bool:
    """Whether the user's callback wants to stop; a compiled program calls this."""
    return bool(callback(Progress(int(iteration), residual, lambda: x)))


class Run(NamedTuple):
    """A recurrence on its way: its state, the steps made, what was recorded, whether it was
    stopped. The next cycle goes on from there with a new state."""

    state: Any
    each: Any  # steps of each column
    iteration: Any  # steps of all together
    history: Any
    stopped: Any  # by the callback; None where there is none


class Loop:
    """Makes the steps of a solve, and shows them to the history, the callback and the bar. One for
    all cycles of a solve.

    Attributes
    ----------
    limit : int
        The most steps of all cycles together.
    scale : array
        What X must be multiplied by before the user sees it.
    """

    def __init__(self, xp: Any, watch: Monitor, limit: int, scale: Array):
        self.xp, self.watch, self.limit, self.scale = xp, watch, limit, scale
        self.seen: list[Any] = []  # residuals in NumPy and torch; under tracing an array holds them
        self._bar: Any = None  # a function of (iteration, residual), or what a program calls
        self._every = 1  # steps between two looks at the bar
        self._replay: Any = None  # kept until the device is done with it

    def begin(self, status: Array, size: Array, state: Any = None) -> Run:
        """Where a run stands before its first step; `size`, the first residual, is recorded."""
        xp, history, none = self.xp, None, 0 * status
        if self.watch.record and not is_compiling():
            if xp.is_functional or xp.is_traced(size):
                shape = min(LONGEST_HISTORY, self.limit) + 1, *size.shape
                empty = xp.full(shape, float("nan"), dtype=size.dtype)
                history = recorded(xp, empty, 0, size)
            else:
                self.seen.append(size)
        stopped = None if self.watch.callback is None else xp.any(none != none)
        return Run(state, none, 0, history, stopped)

    def run(
        self,
        step: Callable[[Any, Any], Any],
        ops: Any,
        run: Run,
        solution: Callable[[Any], Array],
        limit: Any = None,
    ) -> Run:
        """Make steps while a column runs and fewer than `limit` are counted."""
        xp, watch, limit = self.xp, self.watch, self.limit if limit is None else limit
        state, each, iteration, history, stopped = run
        if is_compiling():  # no value can be looked at: all steps are made
            for _ in range(limit - iteration):
                each = each + (state.status == RUNNING)
                state = step(ops, state)
            return Run(state, each, limit, history, stopped)
        if xp.is_functional or xp.is_traced(state.status):
            if watch.progress and self._bar is None:
                self._bar = HostBar(xp, watch.title)

            def going(run: Run) -> Any:
                runs = xp.any(run.state.status == RUNNING) & (run.iteration < limit)
                return runs if run.stopped is None else runs & ~run.stopped

            def advance(run: Run) -> Run:
                iteration, each = run.iteration + 1, run.each
                # one vector runs in every step
                each = each + (run.state.status == RUNNING) if each.shape else iteration
                state = step(ops, copy(run.state))
                run = Run(state, each, iteration, run.history, run.stopped)
                return run if watch.is_idle else self._show_traced(run, solution)

            return xp.while_loop(going, advance, run)
        first, watched, self._every = iteration, not watch.is_idle, ops.every
        made = 0 * state.status  # of one column a number, which is quicker than an array
        replay = None
        if ops.waits and watch.is_sparing:
            replay = self._replay = Replay(xp, step, ops)
        while iteration < limit:
            running = state.status == RUNNING
            if not ops.goes_on(running, state, iteration - first):
                break
            if replay is not None:
                done = iteration - first
                state, made, sizes = replay.advance(state, made, done, limit - iteration)
                iteration += len(sizes)
                if watch.record and len(self.seen) <= LONGEST_HISTORY:
                    self.seen += [size**0.5 for size in sizes]
                if watch.callback is not None and ops.looks_after(iteration - first):
                    progress = Progress(iteration, state.size**0.5, lambda: None)
                    if stopped := bool(watch.callback(progress)):
                        break
                continue
            state = step(ops, state)
            made = made + running
            iteration += 1
            if watched and self._shows(iteration, state, solution):
                stopped = True
                break
        return Run(state, each + made, iteration, history, stopped)

    def _shows(self, iteration: int, state: Any, solution: Callable[[Any], Array]) -> bool:
        """Show one step; true if the callback wants to stop. Of one column the size is a number."""
        residual, watch = state.size**0.5, self.watch
        if watch.record and len(self.seen) <= LONGEST_HISTORY:
            self.seen.append(residual)
        if watch.progress and iteration % self._every == 0:
            self._bar = self._bar or progress_bar(watch.title)
            self._bar(iteration, residual)
        if watch.callback is None:
            return False
        if isinstance(residual, float):  # torch would make it one of its default dtype
            residual = self.xp.asarray([residual], dtype=self.xp.real_dtype(self.scale.dtype))
        x = lambda: watch.shaped(solution(state) * self.scale)
        return bool(watch.callback(Progress(iteration, residual, x)))

    def _show_traced(self, run: Run, solution: Callable[[Any], Array]) -> Run:
        """Show one step from inside a program."""
        xp, watch, history, stopped = self.xp, self.watch, run.history, run.stopped
        residual = run.state.size**0.5
        if history is not None:
            history = recorded(xp, history, run.iteration, residual)
        if watch.progress:
            now = run.iteration % SHOW_EVERY == 0
            xp.cond(now, self._bar.move, lambda *_: now & False, run.iteration, xp.max(residual))
        if watch.callback is not None:
            x = watch.shaped(solution(run.state) * self.scale)
            stopped = xp.call_host(partial(ask, watch.callback), run.iteration, residual, x)
        return run._replace(history=history, stopped=stopped)

    def history(self, size: Array, traced: Any) -> Any:
        """What was recorded, (iterations + 1, *batch, k); `traced` is what the loop has carried."""
        if not self.seen:
            return traced
        xp, dtype, device = self.xp, size.dtype, self.xp.device_of(size)
        if isinstance(self.seen[-1], float):  # of one column, on the host
            seen = [r if isinstance(r, float) else float(r[0]) for r in self.seen]
            return xp.reshape(xp.asarray(seen, dtype=dtype, device=device), (-1, *size.shape))
        return xp.stack([xp.reshape(xp.asarray(residual), size.shape) for residual in self.seen])

    def close(self, iteration: Any, residual: Array) -> None:
        """Close the bar, which then shows how far the solve has come."""
        if isinstance(self._bar, HostBar):
            self._bar.close(iteration, self.xp.max(residual))
        elif self._bar is not None:
            self._bar(iteration, residual)
            self._bar(None, None)


def is_compiling() -> bool:
    """Whether torch.compile is at work."""
    return signatures.is_compiling is not None and bool(signatures.is_compiling())


# What is under way, as one line on standard error: asked for by `progress=True` of a method, or by
# the command line.
#
# It names the calls in a block `watching`, outermost first, how far the innermost is, and the
# seconds so far. Loops move it on. A thread writes it too, since a factorisation cannot say how far
# it is. Calls are named only where an `Info` is made of each: where nothing is shown, nothing is
# paid.


SECONDS_UNSEEN = 2.0  # in which nothing is shown
SECONDS_ON_TERMINAL, SECONDS_ELSEWHERE = 1.0, 10.0  # between two texts; elsewhere all of them stay
clock = time.monotonic
_displays: list[Display] = []  # of all threads


class Display:
    """The line of text on what is under way."""

    def __init__(self) -> None:
        self._titles: list[str] = []  # of calls under way; the first stays when it has ended
        self._depth = 0
        self._how_far: Callable[[], str] = str
        self._start = clock()
        self._due = self._start + SECONDS_UNSEEN
        self._write: Callable[[str | None], Any] | None = None
        self._lock, self._has_ended = threading.Lock(), threading.Event()

    def enter(self, title: str) -> int:
        """Begin a call inside the one under way; `leave` takes what is returned."""
        depth, self._how_far = self._depth, str
        self._titles[depth:], self._depth = [title], depth + 1
        return depth

    def leave(self, depth: int) -> None:
        """End a call, and all inside it."""
        self._depth, self._how_far = depth, str
        del self._titles[max(depth, 1) :]

    def rename(self, title: str) -> None:
        """Give the innermost call another title, when more is known of it."""
        self._titles[-1] = title
        self.show()

    def move(self, how_far: Callable[[], str]) -> None:
        """Say how far the innermost call is, by a function that is called when it is shown."""
        self._how_far = how_far
        self.show()

    def show(self) -> None:
        """Write the line, if it is time to."""
        if clock() >= self._due and sys.stderr is not None:
            with self._lock, contextlib.suppress(OSError):
                self._draw()

    def keep_showing(self) -> None:
        """Write the line now and then until it has ended."""
        while not self._has_ended.wait(SECONDS_ON_TERMINAL):
            self.show()

    def end(self) -> None:
        """Write the line for the last time, if it was ever seen."""
        self._has_ended.set()
        with self._lock, contextlib.suppress(OSError):
            if self._write is not None:
                self._draw()
                self._write(None)
            self._due = float("inf")

    def _draw(self) -> None:
        now, is_terminal, how_far = clock(), sys.stderr.isatty(), self._how_far()
        parts = [*self._titles, how_far] if how_far else self._titles
        text = f"{' > '.join(parts)}, {now - self._start:.0f} s"
        width = shutil.get_terminal_size().columns - 1
        if is_terminal and len(text) > width > 10:  # the end says most
            text = f"{text[: width // 3]}...{text[width // 3 + 3 - width :]}"
        self._write = self._write or _writer(text, is_terminal)
        self._write(text)
        self._due = now + (SECONDS_ON_TERMINAL if is_terminal else SECONDS_ELSEWHERE)


def _writer(first: str, is_terminal: bool) -> Callable[[str | None], Any]:
    """What writes a text, this one first, over the one before, or below it; None ends the line."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        before, after, last = ("\r\033[K", "", "\n") if is_terminal else ("", "\n", "")

        def write(text: str | None) -> None:
            sys.stderr.write(last if text is None else before + text + after)
            sys.stderr.flush()

        return write
    bar = tqdm(desc=first, bar_format="{desc}")
    return lambda text: bar.close() if text is None else bar.set_description_str(text)


@contextlib.contextmanager
def watching(title: str = "") -> Iterator[None]:
    """Show what is under way in this block, under this title if it has one, unless a block around
    it does."""
    if thread.display is not None:
        yield
        return
    display = thread.display = Display()
    if title:
        display.enter(title)
    _displays.append(display)
    ticker = threading.Thread(target=display.keep_showing, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        thread.display = None
        _displays.remove(display)
        display.end()
        ticker.join()


def show(how_far: Callable[[], str]) -> None:
    """Say how far the call under way is, if someone has asked to see it."""
    if thread.display is not None:
        thread.display.move(how_far)


def progress_bar(title: str) -> Callable[[Any, Any], None]:
    """What shows the iteration and the residual of a loop; (None, None) ends it. A program that
    JAX runs in a thread of its own joins the display that is there; a loop outside of all calls
    has one of its own."""
    around = thread.display or (_displays[-1] if _displays else None)
    display = around or Display()

    def move(iteration: Any, residual: Any) -> None:
        if iteration is not None:
            display.move(partial(_iteration_text, title, int(iteration), residual))
        elif around is None:
            display.end()

    return move


def _iteration_text(title: str, iteration: int, residual: Any) -> str:
    worst = float(residual.max()) if getattr(residual, "shape", ()) else float(residual)
    return f"{title}: iteration {iteration}, residual {worst:.1e}"
