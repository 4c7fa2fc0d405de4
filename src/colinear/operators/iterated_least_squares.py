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
        straight, turned = plus((tangents[1],), tuple(leaves)), plus.change(B, X, tuple(leaves), tangents[2:])
        return straight[0] + turned

    def cotangent(primals: tuple, X: Array, G: Array) -> tuple:
        _, B, *leaves = primals
        w = plus.adjoint()((G,), tuple(leaves))[0]
        return None, w, *plus.pulled(B, X, tuple(leaves), G, w)

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

    def tangent(self, x: tuple, leaves: tuple, moved: tuple) -> tuple:
        return (self.change(x[0], self(x, leaves)[0], leaves, moved),)

    def cotangent(self, x: tuple, leaves: tuple, g: tuple) -> tuple:
        return self.pulled(x[0], self(x, leaves)[0], leaves, g[0], self.adjoint()(g, leaves)[0])

    def change(self, B: Array, X: Array, leaves: tuple, moved: Any) -> Array:
        """That of X = A^+ B with the leaves: three runs, of which two for every direction."""
        xp, A, moving = self.xp, self.at(leaves).A, self._moving(leaves)
        r, u = B - A @ X, self.adjoint()((X,), leaves)[0]

        def products(some: Any) -> tuple[Array, Array, Array]:
            A = self.at(_moved(leaves, moving, some)).A
            return A @ X, A.H @ r, A.H @ u

        at, along = tuple(leaves[i] for i in moving), tuple(moved[i] for i in moving)
        dAX, dAr, dAu = xp.jvp(products, at, along)[1]
        return self((self.adjoint()((dAr,), leaves)[0] - dAX - A @ dAu,), leaves)[0] + dAu

    def pulled(self, B: Array, X: Array, leaves: tuple, G: Array, w: Array) -> tuple:
        """What G, a cotangent of X, with w = A^+H G, is for the leaves."""
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
