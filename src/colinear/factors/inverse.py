"""A^-1 as an operator that keeps its factorisation: what `inv` returns when nothing simpler is
known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..autodiff.implicit import CONJUGATED, TRANSPOSED, LinearMap, equation, of_matrix
from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..operators import Adjoint, Conjugate, Dense, LinearOperator, Transpose
from ..operators.context import broadcast_batches, kind_of, known_in, records_derivatives
from ..operators.printing import bracketed
from ..operators.tree import map_parts, memo, sole_operand
from ..properties import ALL_PROPERTIES


def _of_each(turn: Callable[[LinearOperator], LinearOperator]) -> Any:
    """A method that transposes, say, each operator that a factor holds and keeps the rest."""

    def turned(self: Any) -> LinearOperator:
        parts = (getattr(self, name) for name in self._fields)
        return self._of(*(map_parts(part, turn, lambda leaf: leaf) for part in parts))

    return turned


def in_batch_of(A: LinearOperator, X: Array) -> Array:
    """X with the batch dimensions of a product with A."""
    batch = broadcast_batches(A.shape[:-2], X.shape[:-2])
    return X if batch == X.shape[:-2] else namespace_of(X).broadcast_to(X, (*batch, *X.shape[-2:]))


def shape_of(name: str) -> Any:
    """The property `shape` of a factor that has that of one of its fields."""
    return property(lambda self: tuple(getattr(self, name).shape))


# `shape` and `_context` of the factors that are the inverse of A
inverse_shape: Any = property(lambda self: (*self.A.shape[:-2], *self.A.shape[:-3:-1]))
inverse_context: Any = memo(lambda self: self.A._context)

# `_transpose`, `_adjoint` and `_conj` of the factors that are turned part by part
transpose_parts = _of_each(lambda A: A.T)
adjoint_parts = _of_each(lambda A: A.H)
conjugate_parts = _of_each(lambda A: A.conj())
TURNED = transpose_parts, adjoint_parts, conjugate_parts


class Implicit(LinearOperator):
    """A^-1, or A^+ of a rectangular A, multiplied by as `solver`, which is a constant;
    differentiated by A x = b.

    An inverse by eigenvectors has no derivative of its own where eigenvalues repeat, the derivative
    of a factorisation costs several times the factorisation, and factors on the host have none. The
    solution has one all the same. A is taken as a general matrix: where a factorisation reads one
    triangle only, the gradient is still that of all entries.

    Attributes
    ----------
    find : callable, optional
        `find(A, method)`: the inverse once more, with derivatives of its own.
    """

    A: LinearOperator
    solver: LinearOperator
    find: Callable[[Any, Any], LinearOperator] | None

    shape, _context = inverse_shape, inverse_context
    _transpose, _adjoint, _conj = TURNED

    def _infer(self) -> int:
        return self.A.properties | self.solver.properties

    def _matmat(self, X: Array) -> Array:
        xp, own = namespace_of(X), self.A.arrays()
        if not xp.is_differentiated(X, *own):
            return self.solver._matmat(X)
        dtype = own[0].dtype if isinstance(self.A, Dense) else self.A.dtype
        X = X if X.dtype == dtype else xp.astype(X, xp.result_type(dtype, X.dtype))
        return self._solve(xp, in_batch_of(self.A, X), own)

    def _to_dense(self) -> Array:
        xp, own = self.xp, self.A.arrays()
        if not xp.is_differentiated(*own):
            return self.solver._to_dense()
        *batch, _, n = self.shape
        eye = xp.broadcast_to(xp.eye(n, **kind_of(self.A)), (*batch, n, n))
        held = len(self.solver.arrays())
        first = lambda _, arrays: (
            self.solver.with_arrays(arrays[len(arrays) - held :])._to_dense(),
        )
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
        """Gives the sign and the logarithm of |det A|, if the solver knows them, and how they are
        differentiated is known: by tr(A^-1 dA), for which all of A^-1 is formed."""
        known = known_determinant(self.solver)
        if known is not None and isinstance(self.A, Dense):
            return lambda: _slogdet(self.A._to_dense(), self.solver)
        if known is None or records_derivatives(self.A):
            raise AttributeError("slogdet")  # rules know more of structure
        return known

    @property
    def _flops(self) -> float:
        return self.solver.flops


def known_determinant(factor: Any) -> Callable[[], tuple[Array, Array]] | None:
    """`slogdet` of a factor of A, or of its transpose, adjoint or conjugate; None if it has
    none."""
    if isinstance(factor, Transpose):
        return known_determinant(factor.A)
    if isinstance(factor, Adjoint | Conjugate):
        known = known_determinant(factor.A)
        if known is None:
            return None

        def conjugate() -> tuple[Array, Array]:
            sign, logarithm = known()
            return factor.xp.conj(sign), logarithm

        return conjugate
    return getattr(factor, "slogdet", None)


def _slogdet(A: Array, solver: Any) -> tuple[Array, Array]:
    xp, batch = namespace_of(A), A.ndim - 2

    def value(A: Array, *arrays: Array) -> tuple[Array, Array]:
        return known_determinant(solver.with_arrays(arrays))()  # type: ignore[misc]

    def adjoint_inverse(A: Array, *arrays: Array) -> Array:
        return Implicit._of(Dense._of(A), solver.with_arrays(arrays), None).H._to_dense()

    arrays = solver.arrays()
    ranks = (2, *(x.ndim - batch for x in arrays))
    return differentiate_determinant(xp, value, adjoint_inverse, ranks, A, *arrays)


def differentiate_determinant(
    xp: Any, value: Callable, adjoint_inverse: Callable, ranks: tuple[int, ...], *arrays: Array
) -> tuple[Array, Array]:
    """The sign and log|det A| that `value(*arrays)` finds, of which the first array holds entries
    of A, with the derivative tr(A^-1 dA): `adjoint_inverse(*arrays)` gives A^-H in the same
    places."""
    axes = tuple(range(-ranks[0], 0))

    def push(primals: tuple, tangents: tuple, output: Any) -> tuple[Array, Array]:
        z = xp.sum(xp.conj(adjoint_inverse(*primals)) * tangents[0], axis=axes)  # tr(A^-1 dA)
        sign = output[0]
        return sign * 1j * xp.imag(z) if xp.is_complex(sign) else sign * 0 * z, xp.real(z)

    def pull(primals: tuple, output: Any, cotangents: tuple) -> tuple:
        g = cotangents[1]
        if xp.is_complex(output[0]):
            g = g - 1j * xp.imag(xp.conj(cotangents[0]) * output[0])
        g = xp.reshape(g, (*g.shape, *(1,) * len(axes)))
        return g * adjoint_inverse(*primals), *(None,) * (len(primals) - 1)

    sign, logarithm = xp.custom_derivative(value, push, pull, ranks)(*arrays)
    return sign, logarithm


def differentiable(xp: Any, make: Any, A: Array) -> Any:
    """`make(xp, A)`, a factor and more, with the derivatives of what is computed from the
    factor."""
    if not xp.is_differentiated(A) or xp.is_compiling():
        return make(xp, A)
    factor, *more = make(xp, xp.stop_gradient(A))
    return Implicit._of(Dense._of(A), factor, None), *more


def multiply_on_host(solver: Any, form: str, X: Array, *constants: Array) -> Array:
    """`solver.solve(X, form, *constants)`, for a matrix that only the host can multiply by;
    differentiable in X.

    `form` says what of the solver's matrix it is: itself ("N"), its transpose ("T"), adjoint ("H")
    or conjugate ("C").
    """
    xp = namespace_of(X)

    def multiply(form: str, x: tuple[Array], *constants: Array) -> tuple[Array]:
        def on_host(B: Any, *others: Any) -> Any:
            return solver.solve(B, form, *others).astype(B.dtype)

        return (xp.map_on_host(on_host, *x, *constants),)

    if not xp.is_differentiated(X, *constants):
        return multiply(form, (X,), *constants)[0]
    forward, backward = (
        functools.partial(multiply, each) for each in (form, CONJUGATED[TRANSPOSED[form]])
    )
    ranks = 2, *(1,) * len(constants)
    return xp.linear_rule(
        LinearMap(xp, forward, backward, lambda constants: ranks),
        (X,),
        tuple(map(xp.stop_gradient, constants)),
    )[0]


class Inverse(LinearOperator, init=False):
    """The inverse of A, applied by `factor`, an operator that multiplies by A^-1 (through
    triangular solves, say).

    Users write `inv(A)`, which makes the factorisation; rules may look at `A` and at `factor` again
    (its determinant is known). A product costs one with the factor, 2 n^2 for a dense
    factorisation.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[0.0, 2.0], [1.0, 0.0]]))
    >>> type(A_inverse).__name__, type(A_inverse.factor).__name__
    ('Inverse', 'LUFactor')
    """

    A: LinearOperator
    factor: LinearOperator

    def __new__(cls, A: LinearOperator, factor: LinearOperator) -> Inverse:
        if A.shape[-1] != A.shape[-2] or factor.shape[-2:] != A.shape[-2:]:
            raise ShapeError(
                f"Inverse: A is {A.shape[-2]}x{A.shape[-1]} and its factor "
                f"{factor.shape[-2]}x{factor.shape[-1]}."
            )
        self = cls._of(A, factor)
        self.__dict__.update(known_in(A._context), shape=A.shape)
        return self

    operands = sole_operand
    _inherited = ALL_PROPERTIES  # a PSD operator that has an inverse is PD

    @memo
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    _transpose, _adjoint, _conj = TURNED

    def _matmat(self, X: Array) -> Array:
        Y = self.factor._matmat(X)
        return Y if Y.dtype == X.dtype else self._rounded(Y, X)

    def _matvec(self, x: Array) -> Array:
        y = self.factor._matvec(x)
        return y if y.dtype == x.dtype else self._rounded(y, x)

    def _rounded(self, Y: Array, X: Array) -> Array:
        """Y in the dtype of a product with X: half precision is factored in single."""
        return self.xp.astype(Y, self.xp.result_type(self.A.dtype, X.dtype))

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        return self.factor._residual_bound(X, B)

    @property
    def _flops(self) -> float:
        return self.factor.flops

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}^-1"
