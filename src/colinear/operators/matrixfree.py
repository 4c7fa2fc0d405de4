"""Operators known only by what they do: a function that multiplies, or an operator whose
structure is hidden."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import index
from typing import Any

from .. import backends
from ..backends import Array, namespace_of
from ..errors import BackendError, DtypeError, ShapeError
from .base import LinearOperator
from .context import Context, broadcast_batches, context_of, given_context, join_dtypes, spread
from .convert import as_operator
from .tree import Shape, infer_operand, memo, operand_shape, wrapper_images

# Operators known only by what they do: a function that multiplies.


class MatrixFree(LinearOperator, init=False):
    """The operator that multiplies by calling a function.

    Parameters
    ----------
    matmat : callable
        `matmat(X, *parameters)` gives A X. It receives blocks, (*batch, n, k), and must give
        (*batch, m, k); a vector arrives as a block of one column.
    shape : tuple of int
        (*batch, m, n).
    dtype : optional
        Default: that of `like`, of the parameters, or of what it multiplies.
    rmatmat : callable, optional
        `rmatmat(X, *parameters)` gives A^H X. Without it torch and JAX derive the adjoint from
        `matmat` by their linear transpose; NumPy cannot, and says so when the adjoint is needed.
    like : array, operator or framework's name, optional
        Whose framework, dtype and device to take. Without it, the parameters'; without parameters,
        those of what it multiplies.
    matvec, rmatvec : callable, optional
        Instead of `matmat` and `rmatmat`: functions of one vector, (*batch, n), which are called
        for each column of a block. Where it can be written, a function of a block is faster.
    parameters : tuple
        Arrays, operators, or nests of tuples and dicts of them: leaves, so that gradients reach
        them. What the functions close over and torch or JAX differentiates or traces is found and
        put after them; all else is out of reach of `to`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> reverse = co.MatrixFree(lambda X: X[::-1], (3, 3), rmatmat=lambda X: X[::-1])
    >>> reverse @ np.array([1.0, 2.0, 3.0])
    array([3., 2., 1.])
    """

    # Not `matmat`, `rmatmat` and `shape`: those names are SciPy's protocol, which every operator
    # speaks.
    multiply: Callable
    multiply_adjoint: Callable | None
    sizes: Shape
    parameters: Any
    context: Context

    def __new__(
        cls,
        matmat: Callable | None = None,
        shape: Any = None,
        dtype: Any = None,
        rmatmat: Callable | None = None,
        like: Any = None,
        parameters: tuple = (),
        *,
        matvec: Callable | None = None,
        rmatvec: Callable | None = None,
    ) -> MatrixFree:
        matmat = _either("matmat", matmat, "matvec", matvec)
        rmatmat = _either("rmatmat", rmatmat, "rmatvec", rmatvec)
        if matmat is None:
            raise TypeError("MatrixFree: give matmat=, or matvec= if it takes one vector only.")
        for name, given in (
            ("matmat", matmat),
            ("rmatmat", matmat if rmatmat is None else rmatmat),
        ):
            if not callable(given):
                raise TypeError(
                    f"MatrixFree: {name} must be a function of a block of columns, not "
                    f"{type(given).__name__}."
                )
        try:
            sizes = tuple(map(index, shape))
        except TypeError:
            sizes = ()
        if len(sizes) < 2 or min(sizes) < 0:
            raise ShapeError(
                "MatrixFree: shape must be (*batch, m, n), integers that are not negative; it is "
                f"{shape!r}."
            )
        parameters = as_parameters("MatrixFree", parameters)
        self = cls._of(matmat, rmatmat, sizes, parameters, given_context("MatrixFree", like, dtype))
        # parameters of mixed frameworks are refused here, not at the first product
        if self._context.backend is not None:
            return _hoisted(self, self.xp)
        for xp in backends.loaded():
            try:
                self = _hoisted(self, xp)
            except (
                Exception
            ):  # a function for another framework, which cannot be known before it multiplies
                continue
        return self

    @property
    def shape(self) -> Shape:
        return self.sizes

    @memo
    def _context(self) -> Context:
        if not self.parameters:
            return self.context
        backend, dtype, _ = self.context
        held = context_of("MatrixFree", self.leaves())
        if held.backend in (None, backend):
            return self.context
        if backend is not None:
            raise BackendError(
                f"MatrixFree: the parameters are {held.backend}'s and like= is {backend}'s."
            )
        if dtype is None:
            return held
        own = backends.get(held.backend).dtype_from(getattr(dtype, "name", dtype))
        return held._replace(dtype=own)

    def _adjoint(self) -> LinearOperator:
        if self.multiply_adjoint is None:
            return LinearOperator._adjoint(self)
        *batch, m, n = self.sizes
        functions = self.multiply_adjoint, self.multiply
        return MatrixFree._of(*functions, (*batch, n, m), self.parameters, self.context)

    def _matmat(self, X: Array) -> Array:
        return self._call("matmat", self.multiply, X, self.sizes[-2])

    def _rmatmat(self, X: Array) -> Array:
        if self.multiply_adjoint is None and namespace_of(X).name == "numpy":
            raise BackendError(
                "MatrixFree: the adjoint (or transpose) is needed, and NumPy cannot derive it from "
                "matmat. Give rmatmat=, or say SelfAdjoint(A) if A is its own adjoint."
            )
        return LinearOperator._rmatmat(self, X)

    def _call(self, name: str, function: Callable, X: Array, rows: int) -> Array:
        xp = namespace_of(X)
        own = self._context.dtype
        if own is not None and not self.is_complex and xp.is_complex(X):
            return by_real_parts(lambda parts: self._call(name, function, parts, rows), X)
        batch = broadcast_batches(self.sizes[:-2], X.shape[:-2])
        if tuple(X.shape[:-2]) != batch:
            X = spread(X, batch)
        product = function(X, *self.parameters)
        expected = (*batch, rows, X.shape[-1])
        if (
            namespace_of(product) is not xp
            or tuple(product.shape) != expected
            or not xp.is_floating(product)
        ):
            product = _checked(xp, name, product, X, expected)
        if xp.is_complex(product) and not (self.is_complex or xp.is_complex(X)):
            raise DtypeError(
                f"MatrixFree: {name} gave complex numbers, but the operator is real. Give dtype=."
            )
        return product if own is None else xp.astype(product, join_dtypes(xp, X.dtype, own))

    def _expression(self) -> str:
        return f"MatrixFree({function_name(self.multiply)}, {'x'.join(map(str, self.shape))})"


class _EachColumn:
    """A function of blocks that calls one of vectors for each column."""

    def __init__(self, function: Callable):
        self.__name__, self.function = function_name(function), function

    def __call__(self, X: Array, *parameters: Any) -> Array:
        xp, count = namespace_of(X), X.shape[-1]
        columns = X if count else xp.zeros((*X.shape[:-1], 1), dtype=X.dtype)
        images = [self.function(columns[..., i], *parameters) for i in range(max(count, 1))]
        return xp.stack([xp.asarray(image) for image in images], axis=-1)[..., :count]


def _either(block: str, matmat: Any, vector: str, matvec: Any) -> Any:
    """The function of blocks that was given, or made of one of vectors."""
    if matvec is None:
        return matmat
    if matmat is not None:
        raise TypeError(f"MatrixFree: give {block}= or {vector}=, not both.")
    if not callable(matvec):
        raise TypeError(
            f"MatrixFree: {vector} must be a function of a vector, not {type(matvec).__name__}."
        )
    return _EachColumn(matvec)


def _hoisted(A: MatrixFree, xp: Any) -> MatrixFree:
    """A with what its functions close over, as far as the framework follows it, among its
    parameters."""
    if xp.name == "numpy":
        return A
    *batch, m, n = A.sizes
    axes = tuple((0, axis, axis) for axis in range(-len(A.sizes), 0) if axis != -2)

    def examples(rows: int) -> list[tuple]:
        _, dtype, device = A._context
        own = xp.default_float() if dtype is None else xp.dtype_from(getattr(dtype, "name", dtype))
        # it may multiply what is more precise than itself
        dtypes = dict.fromkeys((own, xp.result_type(own, xp.default_float())))
        return [
            (xp.zeros((*batch, rows, 1), dtype=dtype, device=device), *A.parameters)
            for dtype in dtypes
        ]

    forward, hidden = xp.hoist(A.multiply, partial(examples, n), axes)
    back, more = A.multiply_adjoint, ()
    if back is not None:
        back, more = xp.hoist(back, partial(examples, m), axes)
    if not hidden and not more:
        return A
    if back is not None:
        given = len(A.parameters)
        forward = _Taking(forward, given, 0, len(hidden))
        back = _Taking(back, given, len(hidden), len(hidden) + len(more))
    return A._replace(
        multiply=forward, multiply_adjoint=back, parameters=(*A.parameters, *hidden, *more)
    )


class _Taking:
    """A function that takes, of more parameters than are its own, the first ones and a part of
    the others."""

    def __init__(self, function: Callable, given: int, start: int, stop: int):
        self.__name__ = function_name(function)
        self.function, self.given, self.mine = function, given, slice(given + start, given + stop)

    def __call__(self, X: Array, *parameters: Any) -> Array:
        return self.function(X, *parameters[: self.given], *parameters[self.mine])


def _checked(xp: Any, name: str, product: Any, X: Array, expected: Shape) -> Array:
    """The product as an array, or an error that says what is wrong with it."""
    own = namespace_of(product)
    if xp.name == "jax" and own is not None and own.name == "numpy":
        product, own = xp.asarray(product), xp  # JAX takes NumPy's arrays everywhere
    block = f"{xp.name} block of shape {tuple(X.shape)} and dtype {xp.dtype_name(X.dtype)}"
    call = f"MatrixFree: {name} of a {block} must give"
    if own is not xp:
        given = f"an array of {own.name}" if own is not None else f"a {type(product).__name__}"
        raise BackendError(f"{call} an array of {xp.name}, it gave {given}.")
    if tuple(product.shape) != expected:
        raise ShapeError(f"{call} shape {expected}, it gave {tuple(product.shape)}.")
    if not xp.is_floating(product):
        raise DtypeError(f"{call} floating-point numbers, it gave {xp.dtype_name(product.dtype)}.")
    return product


def by_real_parts(multiply: Callable[[Array], Array], X: Array) -> Array:
    """A X for a real A and a complex block X: the real and the imaginary parts are columns of
    one block."""
    xp = namespace_of(X)
    Y, k = multiply(xp.concat([xp.real(X), xp.imag(X)], axis=-1)), X.shape[-1]
    return Y[..., :k] + 1j * Y[..., k:]


def as_parameters(what: str, parameters: Any) -> tuple:
    """The parameters as a tuple; anything else is refused, as it would be unclear whether an
    array is one parameter or many."""
    if not isinstance(parameters, (tuple, list)):
        raise TypeError(
            f"{what}: parameters must be a tuple, not {type(parameters).__name__}. For one: "
            "parameters=(theta,)."
        )
    return tuple(parameters)


def function_name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


# An operator with its structure hidden: what remains is how it multiplies, and what is known of
# it.


class Opaque(LinearOperator, init=False):
    """What `opaque(A)` returns: multiplies as A does; no rule sees inside."""

    A: LinearOperator

    def __new__(cls, A: Any) -> LinearOperator:  # type: ignore[misc]
        return opaque(A)

    shape, _infer = operand_shape, infer_operand

    _transpose, _adjoint, _conj = wrapper_images

    def _matmat(self, X: Array) -> Array:
        return self.A @ X

    def _matvec(self, x: Array) -> Array:
        return self.A @ x

    def _to_dense(self) -> Array:
        return self.A._dense()

    @property
    def _flops(self) -> float:
        return self.A.flops

    def _expression(self) -> str:
        return f"opaque({self.A._expression()})"


def opaque(A: Any) -> Any:
    """Hide the structure of an operator, so that methods run on the whole of it.

    Its annotations stay: `solve(opaque(K), b)` still knows that K is PSD.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.opaque(co.Diagonal([1.0, 2.0])) @ np.ones(2)
    array([1., 2.])
    """
    A = as_operator(A)
    return A if isinstance(A, Opaque) else Opaque._of(A)
