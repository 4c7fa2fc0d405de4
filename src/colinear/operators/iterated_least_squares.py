"""Derivatives of x = A^+ b where A^+ is applied by an iteration (LSQR, LSMR): by more runs of it, not through its steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends import Array, namespace_of
from .fields import rebuilt

Run = Callable[[Any, Array], Array]  # of an `Iterated` and a right side


def attached(xp: Any, inverse: Any, B: Array, X: Array, run: Run) -> Array:
    """X = A^+ B, as it is, with its derivative where the rank of A stays.

    With r = b - A x, the derivative of the pseudoinverse (`autodiff.pseudoinverse`) applied to b is
        dx = A^+ (db - dA x)  +  A^+ A^+H dA^H r  +  (I - A^+ A) dA^H A^+H x.
    For a cotangent g of x, put w = A^+H g, z = A^+ w, q = g - A^H w and u = A^+H x; then, term by term,
        G_b = w,     <G_A, dA> = -<w, dA x> + <r, dA z> + <u, dA q>.
    Three runs in either mode.
    """
    leaves = tuple(leaf for leaf in inverse.leaves() if namespace_of(leaf) is xp)
    if not xp.is_differentiated(B, *leaves):
        return X

    plus = Plus(xp, inverse, run)

    def tangent(primals: tuple, tangents: tuple, X: Array) -> Array:
        _, B, *leaves = primals
        (moved,) = plus.tangent((B,), tuple(leaves), (tangents[1],), tuple(tangents[2:]), (X,))
        return moved

    def cotangent(primals: tuple, X: Array, G: Array) -> tuple:
        _, B, *leaves = primals
        w = plus.adjoint()((G,), tuple(leaves))[0]
        return None, w, *plus.cotangent((B,), tuple(leaves), (G,), (X,), (w,))

    held = xp.stop_gradient(X)
    return xp.custom_derivative(lambda X, B, *leaves: X + 0, jvp=tangent, vjp=cotangent)(held, B, *leaves)


@dataclass(frozen=True, eq=False)
class Plus:
    """B -> A^+ B, or A^+H B if flipped, linear, with all its derivatives: a rule of `xp.linear_rule`. The constants are the leaves."""

    xp: Any
    inverse: Any
    run: Run
    flipped: bool = False

    def __call__(self, x: tuple, leaves: tuple) -> tuple:
        found: tuple = self.xp.linear_rule(self, x, leaves)
        return found

    def at(self, leaves: Any) -> Any:
        inverse = rebuilt(self.inverse, leaves)
        return inverse.H if self.flipped else inverse

    def apply(self, x: tuple, leaves: tuple) -> tuple:
        return (self.run(self.at(leaves), x[0]),)

    def adjoint(self) -> Plus:
        return Plus(self.xp, self.inverse, self.run, not self.flipped)

    def tangent(self, x: tuple, leaves: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
        """Three runs, of which one does not depend on the direction."""
        (B,), (X,) = x, output
        xp, A, moving = self.xp, self.at(leaves).A, self._moving(leaves)
        r, u = B - A @ X, self.adjoint()((X,), leaves)[0]

        def products(some: Any) -> tuple[Array, Array, Array]:
            A = self.at(_moved(leaves, moving, some)).A
            return A @ X, A.H @ r, A.H @ u

        at, along = tuple(leaves[i] for i in moving), tuple(moved[i] for i in moving)
        dAX, dAr, dAu = xp.jvp(products, at, along)[1]
        right = self.adjoint()((dAr,), leaves)[0] - dAX - A @ dAu
        return (self((right if dx is None else right + dx[0],), leaves)[0] + dAu,)

    def cotangent(self, x: tuple, leaves: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        (B,), (G,), (X,), (w,) = x, g, output, back
        xp, A, moving = self.xp, self.at(leaves).A, self._moving(leaves)
        r, u, z, q = B - A @ X, self.adjoint()((X,), leaves)[0], self((w,), leaves)[0], G - A.H @ w

        def products(some: Any) -> Array:
            return self.at(_moved(leaves, moving, some)).A @ xp.concat([X, z, q], axis=-1)

        found: list[Any] = [None] * len(leaves)
        pulled = xp.vjp(products, tuple(leaves[i] for i in moving))[1](xp.concat([-w, r, u], axis=-1))
        for i, part in zip(moving, pulled, strict=True):
            found[i] = part
        return tuple(found)

    def _moving(self, leaves: Any) -> list[int]:
        return [i for i, leaf in enumerate(leaves) if self.xp.is_floating(leaf)]


def _moved(leaves: Any, moving: list[int], some: Any) -> list[Array]:
    every = list(leaves)
    for i, leaf in zip(moving, some, strict=True):
        every[i] = leaf
    return every
