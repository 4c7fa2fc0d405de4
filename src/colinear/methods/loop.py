"""The loop that drives the recurrence of every method, `step(state) -> state`.

A state is a NamedTuple with at least

    iteration   the number of steps so far, one number
    status      RUNNING, or how it ended, for each column, (*batch, k)
    size        the norm of the residual as the recurrence has it, squared, for each column

and columns whose status is not RUNNING stand still. The loop is Python's in NumPy and torch, and `lax.while_loop` in JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import signatures
from ..backends import Array
from .columns import RUNNING
from .watching import LONGEST_HISTORY, HostBar, Progress, Watch, asked_of, progress_bar, recorded

LOOK_EVERY = 16  # steps after which a device is asked whether it is done: each question waits for it
SHOW_EVERY = 10  # steps, in a compiled program: each is a call of the host


class Loop:
    """Makes the steps of a solve, and lets those look on who want to. One for all cycles of a solve.

    Attributes
    ----------
    limit : int
        The most steps of all cycles together.
    scale : array
        What X must be multiplied by for the user's eyes.
    """

    def __init__(self, xp: Any, watch: Watch, limit: int, scale: Array):
        self.xp, self.watch, self.limit, self.scale = xp, watch, limit, scale
        self.seen: list[Any] = []  # residuals, in NumPy and torch; under tracing they are in an array that the loop carries
        self._bar: Any = None  # a function of (iteration, residual), or what a compiled program calls
        self._every = 1

    def is_traced(self, x: Array) -> bool:
        """Whether the loop is part of a traced program."""
        return not is_compiling() and (self.xp.name == "jax" or bool(self.xp.is_traced(x)))

    def run(
        self, step: Callable[[Any], Any], state: Any, history: Any, solution: Callable[[Any], Array], limit: Any = None
    ) -> tuple[Any, Any, Any]:
        """`state = step(state)` while a column runs and the state counts fewer than `limit` steps.

        Returns the last state, the history, and whether the callback stopped it.
        """
        xp, limit = self.xp, self.limit if limit is None else limit
        if is_compiling():  # no value can be looked at: all steps are made
            for _ in range(limit - state.iteration):
                state = step(state)
            return state, history, False
        if self.is_traced(state.status):
            return self._run_traced(step, state, history, solution, limit)
        # A device is asked only now and then whether it is done. Steps too many do nothing, since columns that are done stand still.
        every = self._every = LOOK_EVERY if xp.peek(state.status) is None else 1
        first = state.iteration
        while state.iteration < limit and ((state.iteration - first) % every or bool(xp.any(state.status == RUNNING))):
            state = step(state)
            if not self.watch.is_idle and self.shows(state.iteration, state.size, state, solution):
                return state, history, True
        return state, history, False

    def shows(self, iteration: int, size: Any, state: Any, solution: Callable[[Any], Array]) -> bool:
        """Show one step to all who look on; true if the callback wants to stop. The size is a number where there is one column."""
        residual, watch = size**0.5, self.watch
        if watch.record and len(self.seen) <= LONGEST_HISTORY:
            self.seen.append(residual)
        if watch.progress and iteration % self._every == 0:
            self._bar = self._bar or progress_bar(watch.title)
            self._bar(iteration, residual)
        if watch.callback is None or iteration == 0:
            return False
        if isinstance(residual, float):  # torch would make it one of its default dtype
            residual = self.xp.asarray([residual], dtype=self.xp.real_dtype(self.scale.dtype))
        return bool(watch.callback(Progress(iteration, residual, lambda: watch.shaped(solution(state) * self.scale))))

    def _run_traced(self, step: Any, state: Any, history: Any, solution: Any, limit: Any) -> tuple[Any, Any, Any]:
        xp, watch = self.xp, self.watch
        if watch.progress and self._bar is None:
            self._bar = HostBar(xp, watch.title)
        stopped = xp.any(state.status != state.status)

        def going(carry: Any) -> Any:
            state, _, stopped = carry
            return xp.any(state.status == RUNNING) & (state.iteration < limit) & xp.logical_not(stopped)

        def body(carry: Any) -> Any:
            state, history, stopped = carry
            state = step(state)
            residual = state.size**0.5
            if history is not None:
                history = recorded(xp, history, state.iteration, residual)
            if watch.progress:
                now = state.iteration % SHOW_EVERY == 0
                xp.cond(now, self._bar.move, lambda *_: now & False, state.iteration, xp.max(residual))
            if watch.callback is not None:
                x = watch.shaped(solution(state) * self.scale)
                stopped = xp.call_host(asked_of(watch.callback), state.iteration, residual, x)
            return state, history, stopped

        return xp.while_loop(going, body, (state, history, stopped))

    def history(self, shape: tuple[int, ...]) -> Any:
        """What was recorded in NumPy and torch, (iterations + 1, *shape)."""
        if not self.seen:
            return None
        xp, like = self.xp, self.scale
        if isinstance(self.seen[-1], float):  # of one column, on the host
            numbers = [float(residual) if isinstance(residual, float) else float(residual[0]) for residual in self.seen]
            return xp.reshape(xp.asarray(numbers, dtype=xp.real_dtype(like.dtype), device=xp.device_of(like)), (-1, *shape))
        return xp.stack([xp.reshape(xp.asarray(residual), shape) for residual in self.seen])

    def close(self, iteration: Any, residual: Array) -> None:
        """Take leave of the bar, which shows where the solve has come to."""
        if isinstance(self._bar, HostBar):
            self._bar.close(iteration, self.xp.max(residual))
        elif self._bar is not None:
            self._bar(iteration, residual)
            self._bar(None, None)


def is_compiling() -> bool:
    """Whether torch.compile is at work."""
    return signatures.is_compiling is not None and bool(signatures.is_compiling())
