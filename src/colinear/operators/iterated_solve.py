"""Derivatives of x = A^-1 b where A^-1 is applied by an iteration, in JAX: by more runs of it, each of which says if it failed.

A x = b gives dx = A^-1 (db - dA x), one run; and for a cotangent g of x, w = A^-H g for b and -w x^H for A, one run with A^H.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends import Array, namespace_of
from .fields import rebuilt

Run = Callable[[Any, Array], Array]  # of an `Iterated` and a right side


@dataclass(frozen=True, eq=False)
class Solved:
    """B -> A^-1 B, or A^-H B if flipped, linear, with all its derivatives: a rule of `xp.linear_rule`. The constants are the leaves.

    `run` gives A^-1 B for a derivative, and says if that failed. `first` gives the answer itself, with all that is known of it:
    `aux` more arrays.
    """

    xp: Any
    inverse: Any
    run: Run
    first: Callable[[Any, Array], tuple] | None = None
    aux: int = 0
    flipped: bool = False

    def __call__(self, B: Array) -> tuple:
        leaves = tuple(leaf for leaf in self.inverse.leaves() if namespace_of(leaf) is self.xp)
        found: tuple = self.xp.linear_rule(self, (B,), leaves)
        return found

    def at(self, leaves: Any) -> Any:
        inverse = rebuilt(self.inverse, leaves)
        return inverse.H if self.flipped else inverse

    def apply(self, x: tuple, leaves: tuple) -> tuple:
        return (self.run(self.at(leaves), x[0]),) if self.first is None else self.first(self.at(leaves), x[0])

    def again(self) -> Solved:
        return Solved(self.xp, self.inverse, self.run, flipped=self.flipped)

    def adjoint(self) -> Solved:
        return Solved(self.xp, self.inverse, self.run, flipped=not self.flipped)

    def tangent(self, x: tuple, leaves: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
        xp, (X,) = self.xp, output
        moving = [i for i, leaf in enumerate(leaves) if xp.is_floating(leaf)]

        def product(some: Any) -> Array:
            every = list(leaves)
            for i, leaf in zip(moving, some, strict=True):
                every[i] = leaf
            return self.at(every).A @ X

        right = -xp.jvp(product, tuple(leaves[i] for i in moving), tuple(moved[i] for i in moving))[1] if moving else 0 * X
        found: tuple = xp.linear_rule(self.again(), (right if dx is None else right + dx[0],), leaves)
        return found
