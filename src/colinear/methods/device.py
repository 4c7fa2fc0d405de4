"""The operations on one vector that is on a device; see vectors.py."""

from __future__ import annotations

import math
from typing import Any

from ..backends import Array
from .vectors import LOOK_EVERY, NONFINITE, RUNNING, SUCCESS, Columns, Single

TINY = 1e-37  # beside which no number of any precision counts, but zero


class Device(Single):
    """One vector on a device that is waited for; its numbers stay there.

    A few launches a step are all that its numbers may cost. So nothing is masked, and the device is
    asked now and then whether it is done: steps too many make x better still. Zero by zero, which
    comes of an exact answer, is kept at zero by TINY. Of each number that must be positive the
    least is kept; what happened to x after one was not is thrown away.
    """

    waits = True

    def __init__(self, xp: Any, dtype: Any, tol: float = 0.0, goal: Any = None):
        super().__init__(xp, dtype, tol=tol)
        self.goal = goal[0]
        self._code = RUNNING
        self._start: Array | None = None

    def over(self, X: Array) -> Array:
        self._start = X
        return self.own(X)

    def solution(self, state: Any) -> Array:
        is_kept = self._start is None or self._code in (SUCCESS, RUNNING)
        return state.x[:, None] if is_kept else self._start

    def number(self, a: Array) -> Any:
        return a[0]

    def code(self, state: Any) -> Any:
        self._code = self._judge(float(state.size))
        return self._code

    def goes_on(self, running: Any, state: Any, made: int) -> bool:
        return not self.looks_after(made) or self.code(state) == RUNNING

    def looks_after(self, made: int) -> bool:
        return made % LOOK_EVERY == 1

    def _judge(self, size: float) -> int:
        """Why a run has ended; RUNNING if it has not."""
        if size <= float(self.goal):
            return SUCCESS
        least = {blame: float(a) for blame, a in self.carried.items()}
        for (indefinite, _), a in least.items():
            if a <= 0:
                return indefinite
        broken = [blame[1] for blame, a in least.items() if not a < math.inf]
        return broken[-1] if broken else RUNNING if size < math.inf else NONFINITE

    def ratio(self, a: Any, b: Any) -> Any:
        return a / (b + TINY)

    def descend(
        self, a: Any, p: Array, q: Array, x: Array, r: Array, on: Any
    ) -> tuple[Array, Array, Any]:
        found = self.xp.descend(a, p, q, x, r)
        return super().descend(a, p, q, x, r, on) if found is None else found

    def positive(self, code: int, a: Any, blame: tuple[int, int]) -> int:
        before = self.carried.get(blame)
        self.carried[blame] = a if before is None else self.xp.minimum(before, a)
        return code

    def reached(self, code: int, size: Any) -> int:
        return code


class Vector(Columns):
    """One vector on a device, for recurrences that mask what a column that has ended would do: a
    block of one column costs twice as much there."""

    def __init__(self, xp: Any, dtype: Any, tol: float = 0.0, goal: Any = None):
        super().__init__(xp, dtype, tol, goal[0], waits=True, in_place=True, axis=-1)

    def own(self, X: Array) -> Array:
        return self.xp.copy(X[:, 0] if X.ndim == 2 else X)

    over = copy = own

    def solution(self, state: Any) -> Array:
        return state.x[:, None]

    def number(self, a: Array) -> Any:
        return a[0]

    def codes(self, codes: Array) -> Any:
        return codes[0]

    def array(self, a: Any, like: Array) -> Array:
        return self.xp.reshape(a, like.shape)
