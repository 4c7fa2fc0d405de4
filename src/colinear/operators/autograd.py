"""Derivatives as operators: Jacobians, Hessians and Gauss-Newton matrices, multiplied by automatic differentiation, never formed.

The point x may be an array of any shape or a nest of tuples, lists and dicts of arrays (a model's weights): the operators act on
the vector of all its numbers, flattened in the framework's order of leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array, namespace_of
from ..info import BackendError, DtypeError, ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC
from .base import LinearOperator
from .context import Context, as_array, context_of
from .fields import arrays_in, map_arrays
from .matrixfree import as_parameters, function_name
from .memo import memo


class Jacobian(LinearOperator):
    """The Jacobian of f at x: a product is a forward derivative, one with the adjoint a reverse one, a few evaluations of f each.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives an array of any shape, or a nest of arrays. A function of complex x must be holomorphic.
    x : torch or JAX array, or a nest of them
    parameters : tuple
        Arrays, operators, or nests of them: leaves, so that gradients reach them, as they reach x.

    Notes
    -----
    f is called once at construction, for the size of its answer. Batches are for `vmap`: all of x is one point.

    Examples
    --------
    >>> import colinear as co, torch
    >>> J = co.Jacobian(torch.sin, torch.zeros(3))
    >>> J @ torch.ones(3)
    tensor([1., 1., 1.])
    """

    f: Callable
    x: Any
    parameters: Any
    rows: int
    complex_outputs: bool

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Any:
        x, parameters, outputs = _evaluated("Jacobian", f, x, parameters)
        xp = namespace_of(outputs)
        if not xp.is_complex(outputs) and any(xp.is_complex(leaf) for leaf in arrays_in(x)):
            raise DtypeError(
                "Jacobian: f maps complex x to real numbers, so it is not holomorphic. Write it as one of the real parts."
            )
        return cls._of(f, x, parameters, int(outputs.shape[0]), bool(xp.is_complex(outputs)))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, _size(self.x))

    @memo
    def _context(self) -> Context:
        context = context_of("Jacobian", self.leaves())
        xp = namespace_of(next(arrays_in(self.x)))
        return context._replace(dtype=xp.complex_dtype(context.dtype)) if self.complex_outputs else context

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        return _by_columns(self, X, lambda v: xp.jvp(g, point, v)[1], point.dtype, self.rows)

    def _rmatmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        outputs, pull = xp.vjp(g, point)  # pull(y) = J^H y
        if self.complex_outputs and not xp.is_complex(point):  # the pullback to real x keeps the real part alone
            return _by_columns(self, X, lambda y: pull(y) + 1j * pull(-1j * y), outputs.dtype, self.shape[-1])
        return _by_columns(self, X, pull, outputs.dtype, self.shape[-1])

    def _expression(self) -> str:
        return f"Jacobian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class Hessian(LinearOperator):
    """The matrix of second derivatives of a scalar function f at x: a product is the forward derivative of a gradient.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives one number. A function of complex x must be holomorphic; its Hessian is then complex symmetric.
    x : torch or JAX array, or a nest of them
    parameters : tuple
        Arrays, operators, or nests of them: leaves, so that gradients reach them, as they reach x.

    Notes
    -----
    f is called once at construction, to check its answer. A Hessian is symmetric; of a convex f say `PSD(Hessian(f, x))`.

    Examples
    --------
    >>> import colinear as co, torch
    >>> H = co.Hessian(lambda x: (x**3).sum(), torch.ones(2))
    >>> H @ torch.tensor([1.0, 2.0])
    tensor([ 6., 12.])
    """

    f: Callable
    x: Any
    parameters: Any

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Any:
        x, parameters, outputs = _evaluated("Hessian", f, x, parameters)
        xp = namespace_of(outputs)
        if outputs.shape[0] != 1:
            count = outputs.shape[0]
            raise ShapeError(
                f"Hessian: f must give one number, it gave {count}. For a vector of outputs: Jacobian or GaussNewton."
            )
        if xp.is_complex(outputs) != any(xp.is_complex(leaf) for leaf in arrays_in(x)):
            raise DtypeError("Hessian: f must map real x to a real number, or complex x holomorphically to a complex one.")
        return cls._of(f, x, parameters)

    @property
    def shape(self) -> tuple[int, ...]:
        n = _size(self.x)
        return (n, n)

    def _infer(self) -> int:
        return SYMMETRIC

    def _transpose(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        gradient = _gradient(xp, lambda v: g(v)[0])
        return _by_columns(self, X, lambda v: xp.jvp(gradient, point, v)[1], point.dtype, self.shape[-1])

    def _rmatmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.conj(self._matmat(xp.conj(X)))  # H^H = conj(H), as H is symmetric

    def _expression(self) -> str:
        return f"Hessian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class GaussNewton(LinearOperator):
    """The Gauss-Newton matrix `J^T H J` of `loss(f(x))`: J the Jacobian of f at x, H the Hessian of the loss at f(x).

    It is self-adjoint, and positive semidefinite where the loss is convex in the outputs, as most are: then say
    `PSD(GaussNewton(...))`. For a loss that is a negative log-likelihood of an exponential family it is the Fisher information.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives the outputs: a real array, or a nest of them.
    loss : callable
        `loss(outputs)` gives one number.
    x : torch or JAX array, or a nest of them; real
    parameters : tuple
        Of f: arrays, operators, or nests of them. Leaves, so that gradients reach them, as they reach x.

    Notes
    -----
    f and the loss are called once at construction, to check their answers.

    Examples
    --------
    >>> import colinear as co, torch
    >>> G = co.GaussNewton(lambda x: x**2, lambda y: (y**2).sum() / 2, torch.ones(2))
    >>> G @ torch.tensor([1.0, 2.0])
    tensor([4., 8.])
    """

    f: Callable
    loss: Callable
    x: Any
    parameters: Any

    def __new__(cls, f: Callable, loss: Callable, x: Any, parameters: tuple = ()) -> Any:
        if not callable(loss):
            raise TypeError(f"GaussNewton: the loss must be a function of f's outputs, not {type(loss).__name__}.")
        x, parameters, outputs = _evaluated("GaussNewton", f, x, parameters)
        xp = namespace_of(outputs)
        if xp.is_complex(outputs) or any(xp.is_complex(leaf) for leaf in arrays_in(x)):
            raise DtypeError("GaussNewton: x and the outputs of f must be real. Write f as a function of and to real parts.")
        value = loss(f(x, *parameters))
        if math.prod(getattr(value, "shape", ())) != 1:
            raise ShapeError(f"GaussNewton: the loss must give one number, it gave shape {tuple(value.shape)}.")
        return cls._of(f, loss, x, parameters)

    @property
    def shape(self) -> tuple[int, ...]:
        n = _size(self.x)
        return (n, n)

    def _infer(self) -> int:
        return SELF_ADJOINT

    def _adjoint(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        template = self.f(self.x, *self.parameters)
        outputs, pull = xp.vjp(g, point)
        gradient = _gradient(xp, lambda y: xp.reshape(self.loss(_unravel(xp, y, template)), ()))

        def column(v: Array) -> Array:
            u = xp.jvp(g, point, v)[1]  # J v
            return pull(xp.jvp(gradient, outputs, u)[1])  # J^T (H u)

        return _by_columns(self, X, column, point.dtype, self.shape[-1])

    _rmatmat = _matmat

    def _expression(self) -> str:
        return f"GaussNewton({function_name(self.f)}, {function_name(self.loss)}, {'x'.join(map(str, self.shape))})"


# ---------------------------------------------------------------------- points and functions as vectors


def _evaluated(what: str, f: Callable, x: Any, parameters: Any) -> tuple[Any, tuple, Array]:
    """The checked arguments, and f's outputs as a vector."""
    if not callable(f):
        raise TypeError(f"{what}: f must be a function, not {type(f).__name__}.")
    first = next(arrays_in(x), None)
    xp = namespace_of(first)
    if xp is None or xp.name == "numpy":
        raise BackendError(
            f"{what}: x is {'a NumPy array' if xp else f'made of {type(first).__name__}'}, and only torch and JAX differentiate. "
            "Give x as an array of theirs, or the product itself as MatrixFree(matmat, shape, rmatmat=...)."
        )
    x, parameters = map_arrays(lambda leaf: as_array(leaf, f"{what}: x"), x), as_parameters(what, parameters)
    context_of(what, arrays_in((x, parameters)))  # mixed frameworks and devices are refused here
    outputs = f(x, *parameters)
    for leaf in arrays_in(outputs):
        if namespace_of(leaf) is not xp or not xp.is_floating(leaf):
            given = getattr(leaf, "dtype", type(leaf).__name__)
            raise DtypeError(f"{what}: f must give floating-point {xp.name} arrays, it gave {given}.")
    return x, parameters, _ravel(xp, outputs)


def _size(x: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in arrays_in(x))


def _ravel(xp: Any, tree: Any) -> Array:
    """All numbers of a tree as one vector, in the framework's order of leaves (JAX sorts the keys of dicts)."""
    pieces: list[Array] = []
    xp.tree_map(lambda leaf: pieces.append(xp.reshape(leaf, (-1,))), tree)
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces)


def _unravel(xp: Any, vector: Array, like: Any) -> Any:
    """The tree of these numbers with the structure, shapes and dtypes of `like`."""
    start = 0

    def piece(leaf: Array) -> Array:
        nonlocal start
        stop = start + math.prod(leaf.shape)
        part, start = xp.reshape(vector[start:stop], leaf.shape), stop
        return part if part.dtype == leaf.dtype else xp.astype(part, leaf.dtype)

    return xp.tree_map(piece, like)


def _flat_function(xp: Any, f: Callable, x: Any, parameters: tuple) -> tuple[Callable, Array]:
    """f between vectors, and the point as one."""
    return lambda v: _ravel(xp, f(_unravel(xp, v, x), *parameters)), _ravel(xp, x)


# ---------------------------------------------------------------------- derivatives


def _gradient(xp: Any, g: Callable) -> Callable:
    """The gradient of a scalar function of a vector; the holomorphic one, if complex."""

    def gradient(v: Array) -> Array:
        value, pull = xp.vjp(g, v)
        return xp.conj(pull(xp.ones(value.shape, dtype=value.dtype, device=xp.device_of(value))))  # pull(1) = J^H 1

    return gradient


def _by_columns(A: LinearOperator, X: Array, f: Callable, dtype: Any, rows: int) -> Array:
    """`f`, a linear map of vectors of this dtype, over the columns of blocks X, all at once by vmap."""
    xp = namespace_of(X)
    if xp.is_complex(X) and not xp.is_complex(dtype):
        return _by_columns(A, xp.real(X), f, dtype, rows) + 1j * _by_columns(A, xp.imag(X), f, dtype, rows)
    *batch, n, k = X.shape
    result_dtype = xp.result_type(A.dtype, X.dtype)
    columns = xp.astype(xp.reshape(xp.moveaxis(X, -1, -2), (math.prod(batch) * k, n)), dtype)
    if 0 in columns.shape or rows == 0:
        return xp.zeros((*batch, rows, k), dtype=result_dtype, device=xp.device_of(X))
    results = f(columns[0])[None] if columns.shape[0] == 1 else xp.vmap(f)(columns)
    return xp.astype(xp.moveaxis(xp.reshape(results, (*batch, k, rows)), -1, -2), result_dtype)
