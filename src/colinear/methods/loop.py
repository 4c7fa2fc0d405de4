"""The loop that drives the recurrence of every method, `step(ops, state) -> state`; and the
history, the user's callback and the bar, to which it shows each step.

A state is a `State`, whose fields a step updates; it has at least

    status   RUNNING, or how it ended, for each column
    size     the norm of the residual as the recurrence has it, squared, for each column

and columns whose status is not RUNNING stand still. The loop is Python's in NumPy and torch, and
`lax.while_loop` in JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from ..backends import Array
from ..dispatch import signatures
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
    """Who looks on: whether the history is kept, the user's callback, and the bar. Static and
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
    def is_idle(self) -> bool:
        return not (self.record or self.callback is not None or self.progress)


NO_MONITOR = Monitor()


def recorded(xp: Any, history: Array, iteration: Any, residual: Array) -> Array:
    """The history with one more entry, as far as there is room."""
    last = history.shape[0] - 1
    at = xp.minimum(iteration, last)
    return xp.set_at(history, at, xp.where(iteration <= last, residual, history[at]))


def progress_bar(title: str) -> Callable[[Any, Any], None]:
    """A bar of tqdm's as a function of (iteration, residual); (None, None) closes it."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError(
            "progress=True draws its bar with tqdm, which is not installed: "
            "pip install 'colinear[progress]'",
            name="tqdm",
        ) from error
    bar = tqdm(desc=title, unit="it")

    def move(iteration: Any, residual: Any) -> None:
        if iteration is None:
            bar.close()
            return
        worst = float(residual.max()) if getattr(residual, "shape", ()) else float(residual)
        bar.set_postfix_str(f"residual {worst:.1e}", refresh=False)
        bar.update(int(iteration) - bar.n)  # which tqdm draws ten times a second at most

    return move


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
        while iteration < limit:
            running = state.status == RUNNING
            if not ops.goes_on(running, state, iteration - first):
                break
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
