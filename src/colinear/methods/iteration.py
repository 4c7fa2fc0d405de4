"""What all iterations share: the loop, who looks on, when to stop, and what is said at the end.

A method is a `cycle`: from X with the residual R = B - A X it runs its recurrence, `step(state) -> state`, until it believes each
column to be solved. `solve_in_cycles` computes the true residual after each cycle, and runs another from there if the recurrence was
wrong and a cycle still helps. So a method can only claim; success is decided by the true residual.

A state is a NamedTuple with at least

    iteration   the number of steps so far, one number
    status      RUNNING, or how it ended, for each column, (*batch, k)
    size        the norm of the residual as the recurrence has it, squared, for each column

and columns whose status is not RUNNING stand still. The loop is Python's in NumPy and torch, and `lax.while_loop` in JAX.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import signatures
from ..backends import Array
from ..info import Status

RUNNING = -1
RESTART = -2  # a breakdown from which a new cycle may recover
# Statuses are `Status` values; by ten more, the preconditioner's fault and not the operator's.
PRECONDITIONER = 10
LOOK_EVERY = 16  # steps after which a device is asked whether it is done: each question waits for it
SHOW_EVERY = 10  # steps, in a compiled program: each is a call of the host
LONGEST_HISTORY = 10_000
SUFFICIENT = 0.5  # by which a cycle must reduce the true residual for another to be worth it
FLOOR = 4  # times eps: a relative residual that no further cycle improves


class Outcome(NamedTuple):
    """An answer and how it was found, columns apart: arrays of shape (*batch, k), but `matvecs` and the first axis of `history`."""

    X: Array
    status: Array
    iterations: Array
    matvecs: Any
    residual: Array  # true and relative
    history: Array | None  # by iteration, from the first residual on, as the recurrence has it; NaN where nothing was recorded


class Products(NamedTuple):
    """What a method may multiply by: A, A^H, M and M^H, each None where it is not needed or not there; the columns of A; and, for
    methods that draw from a sum, its terms."""

    multiply: Callable[[Array], Array]
    adjoint: Callable[[Array], Array] | None
    precondition: Callable[[Array], Array] | None
    precondition_adjoint: Callable[[Array], Array] | None
    columns: int
    terms: Any = None


@dataclass(frozen=True)
class Progress:
    """What a callback is given: the iteration, the relative residual of each column, and `x`, computed when it is asked for."""

    iteration: int
    residual: Any
    _x: Callable[[], Any]

    @property
    def x(self) -> Any:
        return self._x()


class Watch(NamedTuple):
    """Who looks on: whether the history is kept, the user's callback, and the bar. Static and hashable."""

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


NOBODY = Watch()


# ---------------------------------------------------------------------------------------------------- arithmetic


def inner(xp: Any, U: Array, V: Array) -> Array:
    """u^H v for each pair of columns, (*batch, k). (torch's vecdot conjugates the first one too.)"""
    return xp.vecdot(U, V, axis=-2)


def squared(xp: Any, U: Array) -> Array:
    """|u|^2 for each column."""
    return xp.real(inner(xp, U, U))


def column_norms(xp: Any, X: Array) -> Array:
    """|x| for each column, by parts of its largest entry, so that squares neither overflow nor vanish."""
    if 0 in X.shape:
        return xp.zeros((*X.shape[:-2], X.shape[-1]), dtype=xp.real_dtype(X.dtype), device=xp.device_of(X))
    largest = xp.max(xp.abs(X), axis=-2, keepdims=True)
    scale = xp.where(largest > 0, largest, 1)
    return scale[..., 0, :] * xp.vector_norm(X / scale, axis=-2)


def divide(xp: Any, a: Array, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    return xp.where(b == 0, 0, a / xp.where(b == 0, 1, b))


def first_of(xp: Any, old: Array, *cases: tuple[Array, int]) -> Array:
    """The status of the columns after a step: of those that run, the first case that holds."""
    new = old
    for holds, status in reversed(cases):
        new = xp.where(holds, int(status), new)
    return xp.where(old == RUNNING, new, old)


def is_plain(xp: Any, *arrays: Array) -> bool:
    """Whether arrays may be written over: nobody traces them, and the framework allows it."""
    return xp.name != "jax" and not any(xp.is_traced(x) for x in arrays)


# ---------------------------------------------------------------------------------------------------- the loop


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
        self._bar: Any = None

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
        every = LOOK_EVERY if xp.peek(state.status) is None else 1
        first = state.iteration
        while state.iteration < limit and ((state.iteration - first) % every or bool(xp.any(state.status == RUNNING))):
            state = step(state)
            if not self.watch.is_idle and self.shows(state.iteration, state.size, state, solution):
                return state, history, True
        return state, history, False

    def shows(self, iteration: int, size: Any, state: Any, solution: Callable[[Any], Array]) -> bool:
        """Show one step to all who look on; true if the callback wants to stop."""
        residual, watch = size**0.5, self.watch
        if watch.record and len(self.seen) <= LONGEST_HISTORY:
            self.seen.append(residual)
        if watch.progress:
            self._bar = self._bar or progress_bar(watch.title)
            self._bar(iteration, residual)
        if watch.callback is None or iteration == 0:
            return False
        return bool(watch.callback(Progress(iteration, residual, lambda: watch.shaped(solution(state) * self.scale))))

    def _run_traced(self, step: Any, state: Any, history: Any, solution: Any, limit: Any) -> tuple[Any, Any, Any]:
        xp, watch = self.xp, self.watch
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
                xp.cond(now, _shown_by(xp, watch.title), lambda *_: now & False, state.iteration, xp.max(residual))
            if watch.callback is not None:
                x = watch.shaped(solution(state) * self.scale)
                stopped = xp.call_host(_asked_of(watch.callback), state.iteration, residual, x)
            return state, history, stopped

        return xp.while_loop(going, body, (state, history, stopped))

    def history(self, shape: tuple[int, ...]) -> Any:
        """What was recorded in NumPy and torch, (iterations + 1, *shape)."""
        seen = [self.xp.reshape(self.xp.asarray(residual), shape) for residual in self.seen]
        return self.xp.stack(seen) if seen else None

    def close(self) -> None:
        if self._bar is not None:
            self._bar(None, None)


def is_compiling() -> bool:
    """Whether torch.compile is at work."""
    return signatures.is_compiling is not None and bool(signatures.is_compiling())


def recorded(xp: Any, history: Array, iteration: Any, residual: Array) -> Array:
    """The history with one more entry, as far as there is room."""
    last = history.shape[0] - 1
    at = xp.minimum(iteration, last)
    return xp.set_at(history, at, xp.where(iteration <= last, residual, history[at]))


def progress_bar(title: str) -> Callable[[Any, Any], None]:
    """A bar of tqdm's as a function of (iteration, residual); (None, None) closes it."""
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError(
            "progress=True draws its bar with tqdm, which is not installed: pip install tqdm", name="tqdm"
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


def _shown_by(xp: Any, title: str) -> Callable[..., bool]:
    """What a compiled program calls to move its bar: made at the first step, left standing at the last."""
    bars: list[Any] = []

    def show(iteration: Any, residual: Any) -> bool:
        if not bars or int(iteration) <= SHOW_EVERY:
            bars[:] = [progress_bar(title)]
        bars[0](int(iteration), residual)
        return False

    return lambda *values: xp.call_host(show, *values)


def _asked_of(callback: Any) -> Callable[..., bool]:
    def ask(iteration: Any, residual: Any, x: Any) -> bool:
        return bool(callback(Progress(int(iteration), residual, lambda: x)))

    return ask


# ---------------------------------------------------------------------------------------------------- cycles and the truth


class Cycles(NamedTuple):
    """Where a solve stands between two cycles."""

    X: Array
    R: Array  # the true residual
    size: Array  # its norm
    status: Array
    iterations: Array  # of each column
    iteration: Any  # of all together
    products: Any  # with A
    history: Any
    stopped: Any
    norm: Any = None  # an estimate of |A|, where the method has one
    measure: Any = None  # what must fall from cycle to cycle: the size of the residual, or how far from optimal it is


class Ended(NamedTuple):
    """How a cycle ended. A column claims SUCCESS, is RUNNING when the cycle was full, or failed."""

    X: Array
    status: Array
    iterations: Array
    iteration: Any
    products: Any  # with A, in this cycle
    history: Any
    stopped: Any
    norm: Any = None


Cycle = Callable[[Loop, Cycles, float], Ended]


def solve_in_cycles(
    xp: Any,
    cycle: Cycle,
    multiply: Callable[[Array], Array],
    B: Array,
    X0: Array | None = None,
    *,
    tol: float,
    max_iters: int,
    watch: Watch = NOBODY,
    columns: int | None = None,
    optimality: Callable[[Array, Array, Any], Array] | None = None,
    consistent: bool = True,
) -> Outcome:
    """Solve A X = B by cycles of a method, each from the true residual that the one before has left.

    The system is divided by |b| first, so that squared norms neither overflow nor vanish: `tol` is then the norm of the residual
    to reach.

    For least squares, `optimality(X, R, |A|)` is |A^H r| / (|A| |r|) for each column. Where this is at most `tol` nothing is left to
    gain: that is success, or, where a solution was expected to exist (`consistent`), SINGULAR.
    """
    norms = column_norms(xp, B)
    scale = xp.where(norms > 0, norms, 1)
    B = B / scale[..., None, :]
    zero = xp.where(norms == norms, 0, 0)
    X = xp.zeros((*B.shape[:-2], columns or B.shape[-2], B.shape[-1]), dtype=B.dtype, device=xp.device_of(B))
    if X0 is None:
        R, size, products = B, norms / scale, 0
    else:  # of a zero right side the answer is known, whatever the guess
        X = xp.where((norms > 0)[..., None, :], xp.broadcast_to(X0 / scale[..., None, :], X.shape), X)
        R, products = B - multiply(X), 1
        size = column_norms(xp, R)
    status = judged(xp, size, tol, zero + RUNNING)
    loop = Loop(xp, watch, max_iters, scale[..., None, :])
    traced = xp.name == "jax" or xp.is_traced(size)
    history = None
    if watch.record and not is_compiling():
        if traced:
            history = xp.full((min(LONGEST_HISTORY, max_iters) + 1, *size.shape), float("nan"), dtype=size.dtype)
            history = recorded(xp, history, 0, size)
        else:
            loop.shows(0, size**2, None, lambda state: X)
    stopped = xp.any(zero != zero) if traced else False
    start = Cycles(
        X, R, size, status, zero, 0, products, history, stopped, 0 * size, size if optimality is None else 0 * size + 1
    )

    def going(s: Cycles) -> Any:
        return xp.any(s.status == RUNNING) & (s.iteration < max_iters) & (s.stopped == False)  # noqa: E712  (or an array)

    def body(s: Cycles) -> Cycles:
        ended = cycle(loop, s, tol)
        R = B - multiply(ended.X)
        size = column_norms(xp, R)
        claimed, full, again = (ended.status == code for code in (int(Status.SUCCESS), RUNNING, RESTART))
        measure = size if optimality is None else xp.minimum(size, optimality(ended.X, R, ended.norm))
        # Where a cycle claimed success, or was full, and the residual is as large as before, there is nothing left to gain.
        stuck = (measure > xp.where(claimed, SUFFICIENT, 1 - 1e-3) * s.measure) | (measure <= FLOOR * xp.eps(B.dtype))
        status = xp.where(claimed | full, xp.where(stuck, int(Status.STAGNATION), RUNNING), ended.status)
        status = xp.where(again, xp.where(size < 0.9 * s.size, RUNNING, int(Status.BREAKDOWN)), status)
        status = xp.where(full & ((ended.iteration >= max_iters) | ended.stopped), RUNNING, status)
        if optimality is not None:
            status = xp.where(measure <= tol, int(Status.SINGULAR if consistent else Status.SUCCESS), status)
        status = xp.where(s.status == RUNNING, judged(xp, size, tol, status), s.status)
        X, products = ended.X, s.products + ended.products + 1
        if X is not s.X:  # a cycle that did harm is undone, where it has not written over the X before it
            better = ((size <= s.size) | (s.status != RUNNING))[..., None, :]
            X, R, size = xp.where(better, X, s.X), xp.where(better, R, s.R), xp.where(better[..., 0, :], size, s.size)
        norm = s.norm if ended.norm is None else ended.norm
        counted = ended.iterations, ended.iteration, products
        return Cycles(X, R, size, status, *counted, ended.history, ended.stopped, norm, measure)

    if 0 in B.shape:
        last = start
    elif is_compiling():
        last = body(start)
    elif traced:
        last = xp.while_loop(going, body, start)
    else:
        last = start
        while bool(going(last)):
            last = body(last)
    loop.close()
    status = xp.where(last.status == RUNNING, int(Status.MAX_ITERATIONS), last.status)
    status = xp.where((last.status == RUNNING) & last.stopped, int(Status.STOPPED), status)
    history = last.history if traced else loop.history(tuple(size.shape))
    X = multiplied(xp, last.X, scale[..., None, :])
    return Outcome(X, status, last.iterations, last.products * B.shape[-1], last.size, history)


def judged(xp: Any, size: Array, tol: float, otherwise: Array) -> Array:
    """SUCCESS where the true residual is small enough, NONFINITE where it is no number, else what the cycle said."""
    status = xp.where(size <= tol, int(Status.SUCCESS), otherwise)
    broken = xp.logical_not(xp.isfinite(size)) & (otherwise % 10 != int(Status.NONFINITE))
    return xp.where(broken, int(Status.NONFINITE), status)


def multiplied(xp: Any, X: Array, factor: Array) -> Array:
    """X times a factor, written over X if that may be."""
    if is_plain(xp, X, factor):
        X *= factor
        return X
    return X * factor
