"""Sums over processes, and their derivatives.

Processes compute one number together, each of them all of it: what is summed is the same in each
afterwards. Then the sum y = Σ_p x_p takes a cotangent g to each x_p as it is, and what takes one x
to all processes, x_p = x, takes the cotangents to their sum. Each of the two is the adjoint of the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import namespace_of

Array = Any


@dataclass(frozen=True)
class OverProcesses:
    """The linear map Σ_p x_p, or x_p = x, as `linear_rule` takes it; `add(x, group)` makes the
    sum."""

    add: Callable[[Array, Any], Array]
    group: Any
    sums: bool

    def __call__(self, x: Array) -> Array:
        return namespace_of(x).linear_rule(self, (x,))[0]

    def apply(self, x: tuple, constants: tuple) -> tuple:
        # a copy: torch takes no answer that is an argument
        return (self.add(x[0], self.group) if self.sums else namespace_of(x[0]).copy(x[0]),)

    def adjoint(self) -> OverProcesses:
        return OverProcesses(self.add, self.group, not self.sums)

    def again(self) -> OverProcesses:
        return self

    def tangent(self, x: Any, constants: Any, dx: tuple, moved: Any, output: Any) -> tuple:
        return (self(dx[0]),)

    def cotangent(self, x: Any, constants: Any, g: Any, output: Any, back: Any) -> tuple:
        return ()

    def batching(self, constants: tuple) -> tuple[int, ...]:
        return (0,)
