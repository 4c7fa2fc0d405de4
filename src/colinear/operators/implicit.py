"""Solutions of linear equations, differentiated by the equation and not by how it was solved.

With x = A^-1 b, the equation A x = b gives

    dA x + A dx = db        so      dx = A^-1 (db - dA x):                                one more solve.

For a cotangent g of x, Re <g, dx> = Re <A^-H g, db - dA x>. So, with w = A^-H g,

    the cotangent of b is w, and that of A is -w x^H, that is, w pulled back through -dA x:    one more solve, with A^H.

With x = A^+ b, a solution of least squares, and r = b - A x, the derivative of A^+ where the rank stays (Golub and Pereyra 1973,
`autodiff.pseudoinverse`) gives

    dx = A^+ (db - dA x)  +  A^+ A^+H dA^H r  +  (I - A^+ A) dA^H A^+H x.

For a cotangent g put w = A^+H g, z = A^+ w, q = g - A^H w and u = A^+H x. Then, term by term,

    the cotangent of b is w, and Re <G_A, dA> = Re (-<w, dA x> + <r, dA z> + <u, dA q>):       three solves in either mode.

The first of these terms is all there is where A is invertible: then r = 0 and q = 0. Last, with A^-1 known,

    d log|det A| = Re tr(A^-1 dA),      cotangent g A^-H.

Each derivative is made of solves with the same A, which are differentiated by the same rule: they hold to any order. How the solves are
made (a factorisation, an inverse known by its eigenvectors, an iteration) is a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..backends import Array, adjoint, namespace_of
from .base import LinearOperator
from .context import Context, broadcast_batches
from .dense import Dense
from .fields import pull_floats, push_floats
from .memo import memo

Product = Callable[..., Any]  # of a block of vectors and constants


@dataclass(frozen=True, eq=False)
class Equation:
    """B -> A^-1 B or A^+ B, linear, with the derivatives above: a rule of `xp.linear_rule`.

    Attributes
    ----------
    multiply : callable
        `multiply(X, *constants)` is A X, of the first `count` constants, along which A is differentiated.
    solve : callable
        `solve(B, *constants)` is A^-1 B or A^+ B, of all constants; no derivative goes through it.
    adjoints : tuple
        The same two for A^H.
    first : callable, optional
        Solves the first time, in place of `solve`; gives a tuple of the solution and of `aux` arrays that tell how it went.
    batch : int, optional
        How many batch dimensions all constants begin with, where the first is the matrix A itself and the solver takes more of them.
    warns : bool
        Whether `solve` may warn.
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
    warns: bool = False
    flipped: bool = False  # whether A is the adjoint of what the constants say

    def __call__(self, B: Array, constants: tuple, like: tuple | None = None) -> Array:
        return self.xp.linear_rule(self, (B,), constants, like)[0]

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return (self.solve(x[0], *constants),) if self.first is None else self.first(x[0], *constants)

    def again(self) -> Equation:
        return replace(self, first=None, aux=0)

    def adjoint(self) -> Equation:
        pair, flipped = (self.multiply, self.solve), not self.flipped
        return replace(self.again(), multiply=self.adjoints[0], solve=self.adjoints[1], adjoints=pair, flipped=flipped)

    def batching(self, constants: tuple) -> Any:
        """How torch maps over it; see its `linear_rule`. Over B alone it is one more batch dimension."""
        if self.batch is None and any(map(self.xp.is_traced, constants)):
            return "through"
        return (2, *(x.ndim - (self.batch or 0) for x in constants))

    def tangent(self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
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
        right = self.adjoint()(dAR, constants, x) - dAX - self.multiply(dAU, *own)  # A^+H dA^H r - dA x - A dA^H u
        return (self.again()(right if dx is None else dx[0] + right, constants, output) + dAU,)

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        """The cotangents of the constants for a cotangent g of the output X, where W = `back` is that of B."""
        own, (X,), (G,), (W,) = constants[: self.count], output, g, back
        left, right = -W, X
        if self.least_squares:
            R, Q = x[0] - self.multiply(X, *own), G - self.adjoints[0](W, *own)
            U, Z = self.adjoint()(X, constants), self.again()(W, constants)
            left, right = (self.xp.concat(parts, axis=-1) for parts in ([-W, R, U], [X, Z, Q]))
        if self.batch is None:
            found = pull_floats(self.xp, lambda *own: self.multiply(right, *own), own, left)
        else:
            left, right = (right, left) if self.flipped else (left, right)  # <l, dA^H r> = <r l^H, dA>
            found = (_fitted(self.xp, self.xp.matmul(left, adjoint(self.xp, right)), own[0]),)
        return *found, *(None,) * (len(constants) - self.count)

    def _moved(self, f: Callable[..., Any], own: tuple, moved: tuple) -> Any:
        if self.batch is not None:
            return f(*moved[: self.count])  # linear in A, which is the one constant
        return push_floats(self.xp, f, own, moved[: self.count])[1]


def _fitted(xp: Any, G: Array, like: Array) -> Array:
    """A cotangent summed over the dimensions along which what it belongs to was broadcast, and real where that is."""
    if G.shape != like.shape:
        G = xp.sum(G, axis=tuple(range(G.ndim - like.ndim))) if G.ndim > like.ndim else G
        axes = tuple(i for i, size in enumerate(like.shape) if size != G.shape[i])
        G = xp.sum(G, axis=axes, keepdims=True) if axes else G
    return xp.real(G) if xp.is_complex(G) and not xp.is_complex(like) else G


def of_matrix(xp: Any, batch: int, multiply_inverse: Product, **options: Any) -> Equation:
    """The rule of B -> A^-1 B, which `multiply_inverse(B, is_adjoint, *constants)` finds; the first constant is the matrix A."""

    def of(flipped: bool) -> tuple[Product, Product]:
        turn = functools.partial(adjoint, xp) if flipped else (lambda A: A)
        return lambda X, A, *_: xp.matmul(turn(A), X), lambda B, A, *held: multiply_inverse(B, flipped, *held)

    return Equation(xp, *of(False), of(True), 1, batch=batch, **options)


def equation(inverse: Any, run: Callable[[Any, Array], Array], **options: Any) -> Equation:
    """The rule of B -> A^-1 B, which `run(inverse, B)` finds. The constants are the arrays of `inverse`, whose first field is A."""
    A = inverse.A

    def of(flipped: bool) -> tuple[Product, Product]:
        turn = (lambda A: A.H) if flipped else (lambda A: A)
        return lambda X, *own: turn(A.with_arrays(own)) @ X, lambda B, *all_: run(turn(inverse.with_arrays(all_)), B)

    return Equation(inverse.xp, *of(False), of(True), len(A.arrays()), **options)


class Implicit(LinearOperator):
    """A^-1, or A^+ of a rectangular A, multiplied by as `solver`, which is a constant; differentiated by A x = b.

    An inverse by eigenvectors has no derivative of its own where eigenvalues repeat, the derivative of a factorisation costs several
    times the factorisation, and factors on the host have none. The solution has one all the same. A is taken as a general matrix:
    where a factorisation reads one triangle only, the gradient is still that of all entries.

    Attributes
    ----------
    find : callable, optional
        `find(A, method)`: the inverse once more, with derivatives of its own.
    """

    A: LinearOperator
    solver: LinearOperator
    find: Callable[[Any, Any], LinearOperator] | None

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, m, n = self.A.shape
        return (*batch, n, m)

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _infer(self) -> int:
        return self.A.properties | self.solver.properties

    def _transpose(self) -> LinearOperator:
        return Implicit._of(self.A.T, self.solver.T, None)

    def _adjoint(self) -> LinearOperator:
        return Implicit._of(self.A.H, self.solver.H, None)

    def _conj(self) -> LinearOperator:
        return Implicit._of(self.A.conj(), self.solver.conj(), None)

    def _matmat(self, X: Array) -> Array:
        xp, own = namespace_of(X), self.A.arrays()
        if not xp.is_differentiated(X, *own):
            return self.solver._matmat(X)
        batch = broadcast_batches(self.A.shape[:-2], X.shape[:-2])
        dtype = own[0].dtype if isinstance(self.A, Dense) else self.A.dtype
        X = X if X.dtype == dtype else xp.astype(X, xp.result_type(dtype, X.dtype))
        X = X if batch == X.shape[:-2] else xp.broadcast_to(X, (*batch, *X.shape[-2:]))
        return self._solve(xp, X, own)

    def _to_dense(self) -> Array:
        xp, own = self.xp, self.A.arrays()
        if not xp.is_differentiated(*own):
            return self.solver._to_dense()
        *batch, _, n = self.shape
        eye = xp.broadcast_to(xp.eye(n, dtype=self.A.dtype, device=self._context.device), (*batch, n, n))
        held = len(self.solver.arrays())
        first = lambda _, *arrays: (self.solver.with_arrays(arrays[len(arrays) - held :])._to_dense(),)  # noqa: E731
        return self._solve(xp, eye, own, first=first)

    def _solve(self, xp: Any, X: Array, own: tuple[Array, ...], **options: Any) -> Array:
        options["least_squares"] = self.shape[-1] != self.shape[-2]
        held = self.solver.arrays()
        if not isinstance(self.A, Dense):
            rule = equation(self, lambda inverse, B: inverse.solver._matmat(B), **options)
            return rule(X, (*own, *map(xp.stop_gradient, held)))

        def solve(B: Array, is_adjoint: bool, *arrays: Array) -> Array:
            solver = self.solver.with_arrays(arrays)
            return (solver.H if is_adjoint else solver)._matmat(B)

        return of_matrix(xp, len(self.shape) - 2, solve, **options)(X, (*own, *held))

    @property
    def slogdet(self) -> Callable[[], tuple[Array, Array]]:
        """Gives the sign and the logarithm of |det A|, if the solver knows them."""
        self.solver.slogdet  # type: ignore[attr-defined] # noqa: B018
        return lambda: _slogdet(self.A._to_dense(), self.solver)

    @property
    def _flops(self) -> float:
        return self.solver.flops


def _slogdet(A: Array, solver: Any) -> tuple[Array, Array]:
    xp, batch = namespace_of(A), A.ndim - 2

    def value(A: Array, *arrays: Array) -> tuple[Array, Array]:
        return solver.with_arrays(arrays).slogdet()

    def adjoint_inverse(A: Array, *arrays: Array) -> Array:
        return Implicit._of(Dense._of(A), solver.with_arrays(arrays), None).H._to_dense()

    def push(primals: tuple, tangents: tuple, output: Any) -> tuple[Array, Array]:
        z = xp.sum(xp.conj(adjoint_inverse(*primals)) * tangents[0], axis=(-2, -1))  # tr(A^-1 dA)
        sign = output[0]
        return sign * 1j * xp.imag(z) if xp.is_complex(sign) else sign * 0 * z, xp.real(z)

    def pull(primals: tuple, output: Any, cotangents: tuple) -> tuple:
        g = cotangents[1]
        if xp.is_complex(output[0]):
            g = g - 1j * xp.imag(xp.conj(cotangents[0]) * output[0])
        return g[..., None, None] * adjoint_inverse(*primals), *(None,) * (len(primals) - 1)

    arrays = solver.arrays()
    ranks = (2, *(x.ndim - batch for x in arrays))
    sign, logarithm = xp.custom_derivative(value, push, pull, ranks)(A, *arrays)
    return sign, logarithm


def differentiable(xp: Any, make: Any, A: Array) -> Any:
    """`make(xp, A)`, a factor and more, with the derivatives of what is computed from the factor."""
    if not xp.is_differentiated(A) or xp.is_compiling():
        return make(xp, A)
    factor, *more = make(xp, xp.stop_gradient(A))
    return Implicit._of(Dense._of(A), factor, None), *more


# ---------------------------------------------------------------------------------------------------- linear maps


@dataclass(frozen=True)
class LinearMap:
    """x -> M x for a tuple of arrays, by `forward`, and M^H by `backward`, both of x and constants that have no derivatives."""

    xp: Any
    forward: Callable[..., tuple]
    backward: Callable[..., tuple]
    batching: Any = lambda constants: "through"  # made of calls of the framework

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return self.forward(x, *constants)

    def adjoint(self) -> LinearMap:
        return replace(self, forward=self.backward, backward=self.forward)

    def tangent(self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple) -> tuple:
        return tuple(0 * y for y in output) if dx is None else self.xp.linear_rule(self, dx, constants)

    def cotangent(self, x: tuple, constants: tuple, g: tuple, output: tuple, back: tuple) -> tuple:
        return (None,) * len(constants)


def linear_map(xp: Any, forward: Callable[..., tuple], backward: Callable[..., tuple], x: tuple, *constants: Any) -> tuple:
    """`forward(x, *constants)`, linear in the tuple x, whose pullback is `backward(g, *constants)`; the constants are held fixed."""
    return xp.linear_rule(LinearMap(xp, forward, backward), x, tuple(map(xp.stop_gradient, constants)))


def multiply_on_host(solver: Any, form: str, X: Array) -> Array:
    """`solver.solve(X, form)`, for a matrix that only the host can multiply by; differentiable in X.

    `form` says what of the solver's matrix it is: itself ("N"), its transpose ("T"), adjoint ("H") or conjugate ("C").
    """
    xp = namespace_of(X)
    forward, backward = (
        lambda x, form=form: (xp.map_on_host(lambda B: solver.solve(B, form).astype(B.dtype), x[0]),)
        for form in (form, CONJUGATED[TRANSPOSED[form]])
    )
    return xp.linear_rule(LinearMap(xp, forward, backward, lambda constants: (2,)), (X,))[0]


TRANSPOSED = {"N": "T", "T": "N", "H": "C", "C": "H"}
CONJUGATED = {"N": "C", "C": "N", "T": "H", "H": "T"}
