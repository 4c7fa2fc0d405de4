"""Derivatives of f(A) B where it is found from Krylov spaces: by more of them, with respect to B
and to every leaf θ of A = A(θ).

    y = f(A) b,     dy = f(A) db + L(A, dA) b,     L the derivative of f at A (`methods/krylov_derivatives.py`)

Backwards, for a cotangent g of y: f(A)^H g for b, and for A the matrix U X V^H with Re <U X V^H,
dA> = Re <g, L(A, dA) b>, which the leaves see as the pullback of U X through θ -> A(θ) V. Both
bases are kept while this is computed, m vectors each: memory does not grow beyond that, but it is
not that of one vector.

All these maps come from one number, linear in each of its slots,

    Re <left, f(A) right>,      Re <left, L(A, dA) right>,      Re <left, L'(A, dA, dA') right>:

put something into all slots but one, and the coefficients of that one are the answer. So each is
linear in every slot (`xp.linear_rule`); its adjoint asks for the slot that was given and is given
the one that was asked for; its derivative along a slot that is held is the same number with that
slot given, and along θ it is the next number, with one more slot for dθ.

In the slot `right` the answer is f(A)^H left = conj(f(A^T) conj(left)), and so for L, as A -> A^T on
leaves. The third number is the second one of [A dA; 0 A] (`Dual`), in which L(A, dA) B is the upper
half of f of (0, B). A fourth, for third derivatives with respect to θ, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain, islice
from operator import add
from typing import Any

from ..backends import Array, namespace_of, zeros_like
from ..operators import LinearOperator
from ..operators.autograd_products import directional
from ..operators.context import Context
from ..operators.tree import memo


class Dual(LinearOperator):
    """[A dA; 0 A], of which the products need the derivative of A(θ) along `moved`; or its
    adjoint."""

    A: LinearOperator
    moved: tuple[Array, ...]
    flipped: bool

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, m, n = self.A.shape
        return (*batch, 2 * m, 2 * n)

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _adjoint(self) -> LinearOperator:
        return self._replace(flipped=not self.flipped)

    def _transpose(self) -> LinearOperator:
        return self._adjoint().conj()

    def _matmat(self, X: Array) -> Array:
        n, xp = self.A.shape[-1], namespace_of(X)
        upper, lower = X[..., :n, :], X[..., n:, :]
        if self.flipped:
            straight, turned = directional(self.A, lambda A: A.H @ upper, self.moved)
            return xp.concat([straight, turned + self.A.H @ lower], axis=-2)
        straight, turned = directional(self.A, lambda A: A @ lower, self.moved)
        return xp.concat([self.A @ upper + turned, straight], axis=-2)


# --------------------------------------------------------------------------------------------------


SIDES = ("left", "right")
MOVES = ("dθ", "dθ'")


@dataclass(frozen=True, eq=False)
class Form:
    """The answer in the slot `asked`, linear in what is put into the slot `given`. The constants are
    all leaves of A and what the other slots hold, in the order of the slots.

    `runs` computes it: `runs.times(A, X)`, `runs.along(A, moved, X)`, `runs.back(A, X, G)`. With
    `is_known` the answer is known already: it is the last constant.
    """

    runs: Any
    A: LinearOperator
    is_known: bool = False
    given: str = "right"
    asked: str = "left"
    slots: tuple[str, ...] = SIDES

    def apply(self, x: tuple, constants: tuple) -> tuple:
        if self.is_known:
            return (constants[-1] + 0,)
        leaves, held = self.contents(x, constants)
        A, xp, n = self.A.with_arrays(leaves), self.A.xp, self.A.shape[-1]
        sides = {slot: held[slot][0] for slot in SIDES if slot in held}
        moves = [held[slot] for slot in MOVES if slot in held]
        if is_second := len(self.slots) == 4:
            way, *moves = moves
            A = Dual._of(A, way, False)
            still = tuple(zeros_like(xp, leaf, leaf.shape) for leaf in way)
            moves = [(*moved, *still) for moved in moves]
            sides = {
                slot: xp.concat([X, 0 * X] if slot == "left" else [0 * X, X], axis=-2)
                for slot, X in sides.items()
            }
        if self.asked in MOVES:
            found = self.runs.back(A, sides["right"], sides["left"])
            return tuple(found[: len(way)] if is_second else found)
        run = self.runs.along if moves else self.runs.times
        if self.asked == "left":
            Y = run(A, *moves, sides["right"])
            return (Y[..., :n, :] if is_second else Y,)
        Y = xp.conj(run(A, *moves, xp.conj(sides["left"]), transposed=True))
        return (Y[..., n:, :] if is_second else Y,)

    def contents(self, x: Any, constants: tuple) -> tuple[tuple, dict[str, tuple]]:
        """The leaves of A, and what is in each slot but the one that is asked for."""
        leaves = self.A.arrays()
        moving = sum(map(self.A.xp.is_floating, leaves))
        held, rest = {self.given: x}, iter(constants[len(leaves) :])
        for slot in self.slots:
            if slot not in (self.given, self.asked):
                held[slot] = tuple(islice(rest, 1 if slot in SIDES else moving))
        return tuple(constants[: len(leaves)]), held

    def between(self, given: str, asked: str, x: tuple, leaves: tuple, held: dict) -> tuple:
        """What x, in the slot `given`, is in the slot `asked`, where the others hold what they do."""
        slots = (*self.slots, *({given, asked} - {*self.slots}))
        form = replace(self, is_known=False, given=given, asked=asked, slots=slots)
        others = chain(*(held[slot] for slot in slots if slot not in (given, asked)))
        return self.A.xp.linear_rule(form, x, (*leaves, *others))

    def next_slot(self) -> str:
        if len(self.slots) == 4:
            raise NotImplementedError(
                f"{self.runs.name}: products by Krylov() have first and second derivatives, no "
                "third ones. Use Eigh(), or a smaller A."
            )
        return MOVES[len(self.slots) - 2]

    def again(self) -> Form:
        return replace(self, is_known=False)

    def adjoint(self) -> Form:
        return replace(self, is_known=False, given=self.asked, asked=self.given)

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        """The change of the answer with the leaves, with x, and with what is held."""
        (leaves, held), (dleaves, along) = self.contents(x, constants), self.contents(dx, moved)
        pairs = zip(dleaves, leaves, strict=True)
        along[self.next_slot()] = tuple(d for d, leaf in pairs if self.A.xp.is_floating(leaf))
        changes = [
            self.between(slot, self.asked, d, leaves, held)
            for slot, d in along.items()
            if d is not None
        ]
        return tuple(reduce(add, each) for each in zip(*changes, strict=True))

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        leaves, held = self.contents(x, constants)
        pulled = iter(self.between(self.asked, self.next_slot(), g, leaves, held))
        found = [next(pulled) if self.A.xp.is_floating(leaf) else None for leaf in leaves]
        for slot in self.slots:
            if slot not in (self.given, self.asked):
                found.extend(self.between(self.asked, slot, g, leaves, held))
        return *found, *(None,) * (len(constants) - len(found))


def krylov_product(runs: Any, A: LinearOperator, X: Array, Y: Array | None) -> Array:
    """Y = f(A) X, as it is, with its derivatives; computed here if it is not given."""
    xp, leaves = A.xp, A.arrays()
    if Y is None:
        return xp.linear_rule(Form(runs, A), (X,), leaves)[0]
    if not xp.is_differentiated(X, *leaves):
        return Y
    return xp.linear_rule(Form(runs, A, is_known=True), (X,), (*leaves, xp.stop_gradient(Y)))[0]
