"""Solutions of linear equations, differentiated by the equation and not by how it was solved.

With x = A^-1 b, the equation A x = b gives

    dA x + A dx = db        so      dx = A^-1 (db - dA x):                                one more solve.

For a cotangent g of x, Re <g, dx> = Re <A^-H g, db - dA x>. So, with w = A^-H g,

    the cotangent of b is w, and that of A is -w x^H, that is, w pulled back through -dA x:    one more solve, with A^H.

With x = A^+ b, a solution of least squares, and r = b - A x, the derivative of A^+ where the rank
stays (Golub and Pereyra 1973, `autodiff.pseudoinverse`) gives

    dx = A^+ (db - dA x)  +  A^+ A^+H dA^H r  +  (I - A^+ A) dA^H A^+H x.

For a cotangent g put w = A^+H g, z = A^+ w, q = g - A^H w and u = A^+H x. Then, term by term,

    the cotangent of b is w, and Re <G_A, dA> = Re (-<w, dA x> + <r, dA z> + <u, dA q>):    three solves.

The first of these terms is all there is where A is invertible: then r = 0 and q = 0. Last, with
A^-1 known,

    d log|det A| = Re tr(A^-1 dA),      cotangent g A^-H.

Each derivative is made of solves with the same A, which are differentiated by the same rule: they
hold to any order. How the solves are made (a factorisation, an inverse known by its eigenvectors,
an iteration) is a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..backends import Array, adjoint
from ..operators.autograd_products import pull_floats, push_floats

Product = Callable[..., Any]  # of a block of vectors and constants


@dataclass(frozen=True, eq=False)
class Equation:
    """B -> A^-1 B or A^+ B, linear, with the derivatives above: a rule of `xp.linear_rule`.

    Attributes
    ----------
    multiply : callable
        `multiply(X, *constants)` is A X, of the first `count` constants, along which A is
        differentiated.
    solve : callable
        `solve(B, *constants)` is A^-1 B or A^+ B, of all constants; no derivative goes through it.
    adjoints : tuple
        The same two for A^H.
    first : callable, optional
        `first((B,), constants)` solves the first time, in place of `solve`; gives a tuple of the
        solution and of `aux` arrays that tell how it went.
    batch : int, optional
        How many batch dimensions all constants begin with, where the first is the matrix A itself
        and the solver takes more of them.
    """

    xp: Any
    multiply: Product
    solve: Product
    adjoints: tuple[Product, Product]
    count: int
    least_squares: bool = False
    first: Product | None = None
    aux: int = 0
    batch: int | None = None
    flipped: bool = False  # whether A is the adjoint of what the constants say

    def __call__(self, B: Array, constants: tuple, like: tuple | None = None) -> Array:
        return self.xp.linear_rule(self, (B,), constants, like)[0]

    @property
    def apply(self) -> Product:
        """`apply((B,), constants)` solves."""
        return self.first or (lambda x, constants: (self.solve(x[0], *constants),))

    def again(self) -> Equation:
        return self if self.first is None else replace(self, first=None, aux=0)

    def adjoint(self) -> Equation:
        pair, flipped = (self.multiply, self.solve), not self.flipped
        return replace(
            self.again(),
            multiply=self.adjoints[0],
            solve=self.adjoints[1],
            adjoints=pair,
            flipped=flipped,
        )

    def batching(self, constants: tuple) -> Any:
        """How torch maps over it; see its `linear_rule`. Over B alone it is one more batch
        dimension."""
        if self.batch is None and any(map(self.xp.is_traced, constants)):
            return "through"
        return (2, *(x.ndim - (self.batch or 0) for x in constants))

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        """dX, where X is the output."""
        own, (X,) = constants[: self.count], output
        if not self.least_squares:
            right = -self._moved(lambda *own: self.multiply(X, *own), own, moved)  # -dA x
            return (self.again()(right if dx is None else dx[0] + right, constants, output),)
        R = x[0] - self.multiply(X, *own)
        U = self.adjoint()(X, constants)  # A^+H x

        def products(*own: Array) -> tuple[Array, Array, Array]:
            flipped = self.adjoints[0]
            return self.multiply(X, *own), flipped(R, *own), flipped(U, *own)

        dAX, dAR, dAU = self._moved(products, own, moved)
        # A^+H dA^H r - dA x - A dA^H u
        right = self.adjoint()(dAR, constants, x) - dAX - self.multiply(dAU, *own)
        return (self.again()(right if dx is None else dx[0] + right, constants, output) + dAU,)

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        """The cotangents of the constants for a cotangent g of the output X, where W = `back` is
        that of B."""
        own, (X,), (G,), (W,) = constants[: self.count], output, g, back
        left, right = -W, X
        if self.least_squares:
            R, Q = x[0] - self.multiply(X, *own), G - self.adjoints[0](W, *own)
            U, Z = self.adjoint()(X, constants), self.again()(W, constants)
            left, right = (self.xp.concat(parts, axis=-1) for parts in ([-W, R, U], [X, Z, Q]))
        if self.batch is None:
            found = pull_floats(self.xp, lambda *own: self.multiply(right, *own), own, left)
        else:
            # <l, dA^H r> = <r l^H, dA>
            left, right = (right, left) if self.flipped else (left, right)
            found = (_fitted(self.xp, self.xp.matmul(left, adjoint(self.xp, right)), own[0]),)
        return *found, *(None,) * (len(constants) - self.count)

    def _moved(self, f: Callable[..., Any], own: tuple, moved: tuple) -> Any:
        if self.batch is not None:
            return f(*moved[: self.count])  # linear in A, which is the one constant
        return push_floats(self.xp, f, own, moved[: self.count])[1]


def _fitted(xp: Any, G: Array, like: Array) -> Array:
    """A cotangent summed over the dimensions along which what it belongs to was broadcast, and
    real where that is."""
    if G.shape != like.shape:
        G = xp.sum(G, axis=tuple(range(G.ndim - like.ndim))) if G.ndim > like.ndim else G
        axes = tuple(i for i, size in enumerate(like.shape) if size != G.shape[i])
        G = xp.sum(G, axis=axes, keepdims=True) if axes else G
    return xp.real(G) if xp.is_complex(G) and not xp.is_complex(like) else G


def of_matrix(xp: Any, batch: int, multiply_inverse: Product, **options: Any) -> Equation:
    """The rule of B -> A^-1 B, which `multiply_inverse(B, is_adjoint, *constants)` finds; the
    first constant is the matrix A."""

    def of(flipped: bool) -> tuple[Product, Product]:
        turn = functools.partial(adjoint, xp) if flipped else (lambda A: A)
        return lambda X, A, *_: xp.matmul(turn(A), X), lambda B, A, *held: multiply_inverse(
            B, flipped, *held
        )

    return Equation(xp, *of(False), of(True), 1, batch=batch, **options)


def equation(inverse: Any, run: Callable[[Any, Array], Array], **options: Any) -> Equation:
    """The rule of B -> A^-1 B, which `run(inverse, B)` finds. The constants are the arrays of
    `inverse`, whose first field is A."""
    A = inverse.A

    def of(flipped: bool) -> tuple[Product, Product]:
        turn = (lambda A: A.H) if flipped else (lambda A: A)
        return lambda X, *own: turn(A.with_arrays(own)) @ X, lambda B, *all_: run(
            turn(inverse.with_arrays(all_)), B
        )

    return Equation(A.xp, *of(False), of(True), len(A.arrays()), **options)


# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearMap:
    """x -> M x for a tuple of arrays, by `forward`, and M^H by `backward`, both of x and
    constants that have no derivatives."""

    xp: Any
    forward: Callable[..., tuple]
    backward: Callable[..., tuple]
    batching: Any = lambda constants: "through"  # made of calls of the framework

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return self.forward(x, *constants)

    def again(self) -> LinearMap:
        return self

    def adjoint(self) -> LinearMap:
        return replace(self, forward=self.backward, backward=self.forward)

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        return (
            tuple(0 * y for y in output) if dx is None else self.xp.linear_rule(self, dx, constants)
        )

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        return (None,) * len(constants)


def linear_map(
    xp: Any,
    forward: Callable[..., tuple],
    backward: Callable[..., tuple],
    x: tuple,
    *constants: Any,
) -> tuple:
    """`forward(x, *constants)`, linear in the tuple x, whose pullback is `backward(g,
    *constants)`; the constants are held fixed."""
    return xp.linear_rule(
        LinearMap(xp, forward, backward), x, tuple(map(xp.stop_gradient, constants))
    )


TRANSPOSED = {"N": "T", "T": "N", "H": "C", "C": "H"}
CONJUGATED = {"N": "C", "C": "N", "T": "H", "H": "T"}
