"""Derivatives of f(A) B where it is found from Krylov spaces: by more of them, with respect to B
and to every leaf θ of A = A(θ).

    y = f(A) b,     dy = f(A) db + L(A, dA) b,     L the derivative of f at A (`methods/krylov_derivatives.py`)

Backwards, for a cotangent g of y: f(A)^H g for b, and for A the matrix U X V^H with Re <U X V^H,
dA> = Re <g, L(A, dA) b>, which the leaves see as the pullback of U X through θ -> A(θ) V. Both
bases are kept while this is computed, m vectors each: memory does not grow beyond that, but it is
not that of one vector.

All these maps are bilinear, so they come as linear maps (`xp.linear_rule`) in each of their
arguments, which are each other's adjoints and each other's derivatives:

    times     B -> f(A) B                        along     dθ -> L(A, dA) B            moved     B -> L(A, dA) B
    back      G -> the cotangent of θ            second    dθ' -> the derivative of L(A, dA) B along dθ'
    pulled    G -> the gradient of Re <G, L(A, dA) B>    curved    dθ -> the same, linear in dθ

`flipped` ones are those of f(A)^H: f(A)^H G = conj(f(A^T) conj(G)), and as A -> A^T on leaves L(A,
dA)^H G = conj(L(A^T, dA^T) conj(G)). Second derivatives are first ones of [A dA; 0 A] (`Dual`), in
which L(A, dA) B is the upper half of f of (0, B). Third ones are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends import Array, namespace_of
from ..operators import LinearOperator
from ..operators.context import Context
from ..operators.tree import directional, memo


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


@dataclass(frozen=True, eq=False)
class Rule:
    """One of the maps above; the constants begin with all leaves of A.

    `runs` computes them: `runs.times(A, X)`, `runs.along(A, moved, X)`, `runs.back(A, X, G)`.
    """

    runs: Any
    A: LinearOperator
    flipped: bool = False

    def __call__(self, x: tuple, constants: tuple) -> tuple:
        return self.A.xp.linear_rule(self, x, constants)

    def of(self, kind: Any, flip: bool = False) -> Any:
        return kind(self.runs, self.A, self.flipped ^ flip)

    def parts(self, constants: tuple) -> tuple[LinearOperator, tuple, tuple]:
        """A, its leaves, and what else is constant."""
        count = len(self.A.arrays())
        return (
            self.A.with_arrays(constants[:count]),
            tuple(constants[:count]),
            tuple(constants[count:]),
        )

    def moves(self, leaves: tuple, moved: tuple) -> tuple:
        return tuple(
            x for x, leaf in zip(moved, leaves, strict=True) if self.A.xp.is_floating(leaf)
        )

    def spread(self, leaves: tuple, cotangents: tuple) -> tuple:
        """Cotangents of the leaves that move, None for the others."""
        given = iter(cotangents)
        return tuple(next(given) if self.A.xp.is_floating(leaf) else None for leaf in leaves)

    def turned(self, f: Callable[..., Array], A: LinearOperator, *arrays: Any) -> Array:
        """f, or for f(A)^H the same of A^T, conjugated."""
        if not self.flipped:
            return f(A, *arrays)
        xp = self.A.xp
        return xp.conj(f(A, *arrays[:-1], xp.conj(arrays[-1]), transposed=True))

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        """The change of the answer with x, and with the constants."""
        turned = self.change(x, constants, moved)
        if dx is None:
            return turned
        straight = self.of(type(self))(dx, constants)
        return tuple(a + b for a, b in zip(straight, turned, strict=True))

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        return self.pull(x, constants, g)

    def change(self, x: tuple, constants: tuple, moved: tuple) -> tuple:
        raise NotImplementedError(
            f"{self.runs.name}: products by Krylov() have first and second derivatives, no third "
            "ones. Use Eigh(), or a smaller A."
        )

    pull = change


@dataclass(frozen=True, eq=False)
class Times(Rule):
    """B -> f(A) B, with the leaves; and with the answer, if it is known already."""

    is_known: bool = False

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, known = self.parts(constants)
        return (known[0] + 0,) if self.is_known else (self.turned(self.runs.times, A, x[0]),)

    def adjoint(self) -> Rule:
        return self.of(Times, flip=True)

    def change(self, x: tuple, constants: tuple, moved: tuple) -> tuple:
        _, leaves, _ = self.parts(constants)
        return self.of(Along)(self.moves(leaves, moved[: len(leaves)]), (*leaves, x[0]))

    def pull(self, x: tuple, constants: tuple, g: tuple) -> tuple:
        _, leaves, known = self.parts(constants)
        back = self.of(Back)(g, (*leaves, x[0]))
        return *self.spread(leaves, back), *(None for _ in known)


class Along(Rule):
    """dθ -> L(A, dA) B, with the leaves and B."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, (X,) = self.parts(constants)
        return (self.turned(self.runs.along, A, x, X),)

    def adjoint(self) -> Rule:
        return self.of(Back)

    def change(self, x: tuple, constants: tuple, moved: tuple) -> tuple:
        (_, leaves, (X,)), count = self.parts(constants), len(constants) - 1
        (straight,) = self.of(Moved)((moved[count],), (*leaves, *x))
        (turned,) = self.of(Second)(self.moves(leaves, moved[:count]), (*leaves, X, *x))
        return (straight + turned,)

    def pull(self, x: tuple, constants: tuple, g: tuple) -> tuple:
        _, leaves, (X,) = self.parts(constants)
        back = self.of(Pulled)(g, (*leaves, X, *x))
        return *self.spread(leaves, back), *self.of(Moved, flip=True)(g, (*leaves, *x))


class Moved(Rule):
    """B -> L(A, dA) B, with the leaves and dθ."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, way = self.parts(constants)
        return (self.turned(self.runs.along, A, way, x[0]),)

    def adjoint(self) -> Rule:
        return self.of(Moved, flip=True)


class Back(Rule):
    """G -> the cotangent of the leaves that move, with the leaves and B."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, (X,) = self.parts(constants)
        pair = (x[0], X) if self.flipped else (X, x[0])  # <G, L^H X> = <X, L G>
        return tuple(self.runs.back(A, *pair))

    def adjoint(self) -> Rule:
        return self.of(Along)

    def change(self, x: tuple, constants: tuple, moved: tuple) -> tuple:
        (_, leaves, (X,)), count = self.parts(constants), len(constants) - 1
        straight = self.of(Back, flip=True)((moved[count],), (*leaves, x[0]))
        turned = self.of(Curved)(self.moves(leaves, moved[:count]), (*leaves, X, x[0]))
        return tuple(a + b for a, b in zip(straight, turned, strict=True))

    def pull(self, x: tuple, constants: tuple, g: tuple) -> tuple:
        _, leaves, (X,) = self.parts(constants)
        curved = self.of(Curved)(g, (*leaves, X, x[0]))
        return *self.spread(leaves, curved), *self.of(Along, flip=True)(g, (*leaves, x[0]))


class Second(Rule):
    """dθ' -> the derivative of L(A, dA) B along dθ', with the leaves, B and dθ."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, (X, *way) = self.parts(constants)
        xp, n = self.A.xp, A.shape[-1]
        still = tuple(
            xp.zeros(leaf.shape, dtype=leaf.dtype, device=xp.device_of(leaf)) for leaf in x
        )

        def of_dual(A: LinearOperator, X: Array, transposed: bool = False) -> Array:
            zero = 0 * X  # of the transpose the halves change places
            Y = self.runs.along(
                Dual._of(A, tuple(way), False),
                (*x, *still),
                xp.concat([X, zero] if transposed else [zero, X], axis=-2),
                transposed=transposed,
            )
            return Y[..., n:, :] if transposed else Y[..., :n, :]

        return (self.turned(of_dual, A, X),)

    def adjoint(self) -> Rule:
        return self.of(Pulled)


def _gradient(rule: Rule, A: LinearOperator, way: tuple, X: Array, G: Array) -> tuple:
    """That of Re <G, L(A, dA) X> with respect to the leaves."""
    xp = rule.A.xp
    X, G = (G, X) if rule.flipped else (X, G)
    cotangents = rule.runs.back(
        Dual._of(A, tuple(way), False),
        xp.concat([0 * X, X], axis=-2),
        xp.concat([G, 0 * G], axis=-2),
    )
    return tuple(cotangents[: len(way)])


class Pulled(Rule):
    """G -> the gradient of Re <G, L(A, dA) B>, with the leaves, B and dθ."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, (X, *way) = self.parts(constants)
        return _gradient(self, A, tuple(way), X, x[0])

    def adjoint(self) -> Rule:
        return self.of(Second)


class Curved(Rule):
    """dθ -> the gradient of Re <G, L(A, dA) B>, with the leaves, B and G."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        A, _, (X, G) = self.parts(constants)
        return _gradient(self, A, x, X, G)

    def adjoint(self) -> Rule:
        return self


# --------------------------------------------------------------------------------------------------


def krylov_product(runs: Any, A: LinearOperator, X: Array, Y: Array | None) -> Array:
    """Y = f(A) X, as it is, with its derivatives; computed here if it is not given."""
    leaves = A.arrays()
    if Y is None:
        return Times(runs, A)((X,), leaves)[0]
    if not A.xp.is_differentiated(X, *leaves):
        return Y
    return Times(runs, A, is_known=True)((X,), (*leaves, A.xp.stop_gradient(Y)))[0]
