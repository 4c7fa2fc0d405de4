"""Who looks on while a method iterates: the history, the user's callback, and the bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backends import Array

LONGEST_HISTORY = 10_000


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
            "progress=True draws its bar with tqdm, which is not installed: pip install 'colinear[progress]'",
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
    """A bar that a compiled program moves and closes by calls of the host; it is drawn anew each time the program runs."""

    def __init__(self, xp: Any, title: str):
        self.xp, self.title = xp, title
        self._bar: Any = None

    def move(self, iteration: Any, residual: Any) -> Any:
        return self.xp.call_host(self._move, iteration, residual)

    def close(self, iteration: Any, residual: Any) -> Any:
        return self.xp.call_host(self._close, iteration, residual)

    def _move(self, iteration: Any, residual: Any) -> bool:
        self._bar = self._bar or progress_bar(self.title)
        self._bar(int(iteration), residual)
        return False

    def _close(self, iteration: Any, residual: Any) -> bool:
        self._move(iteration, residual)
        self._bar(None, None)
        self._bar = None
        return False


def asked_of(callback: Any) -> Callable[..., bool]:
    """What a compiled program calls to ask the user's callback."""

    def ask(iteration: Any, residual: Any, x: Any) -> bool:
        return bool(callback(Progress(int(iteration), residual, lambda: x)))

    return ask
