"""Derivatives as operators: Jacobians, Hessians and Gauss-Newton matrices, multiplied by automatic
differentiation, never formed.

The point x may be an array of any shape or a nest of tuples, lists and dicts of arrays (a model's
weights): the operators act on the vector of all its numbers, flattened in the framework's order of
leaves.

One product is made by the framework's transforms: forward mode, reverse mode, or one of the other.
Where f has no forward derivative (recurrent nets and custom functions of torch, `custom_vjp` in
JAX) it is made by reverse mode twice. An iteration linearises f once and multiplies by what it
kept: see `make_ready`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array, adjoint
from ..errors import DtypeError, ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC
from .autograd_products import (
    Kept,
    _by_columns,
    _evaluated,
    _flat_function,
    _gradient,
    _mapped,
    _multiply,
    _ravel,
    _recorded_gradient,
    _size,
    _to_complex,
    _unravel,
)
from .base import LinearOperator
from .context import Context, context_of, is_complex_number, kind_of, told_by_number
from .matrixfree import as_parameters, function_name
from .tree import TEST_HOOKS, arrays_in, infer_operand, map_parts, memo, operand_shape

# of second derivatives: as many rows and columns as x has numbers
square_shape: Any = property(lambda self: (_size(self.x),) * 2)


def _linearise_once(self: Any, is_planned: bool) -> LinearOperator:
    """A derivative of a function, with the function linearised."""
    xp = self.xp
    if is_planned or (xp.name == "torch" and xp.is_differentiated(*self.arrays())):
        return self  # torch records products one by one; JAX sees through them all
    try:
        kept = self._linearise(xp, False)
    except (RuntimeError, TypeError):  # then each product says what f lacks, or does without
        return self
    return self if kept is None else Linearised._of(self, kept)


class Jacobian(LinearOperator, init=False):
    """The Jacobian of f at x: a product is a forward derivative, one with the adjoint a reverse
    one, a few evaluations of f each.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives an array of any shape, or a nest of arrays. A function of complex
        x must be holomorphic.
    x : torch or JAX array, or a nest of them
    parameters : tuple
        Arrays, operators, or nests of them: leaves, so that gradients reach them, as they reach x.

    Notes
    -----
    f is called once at construction, for the size of its answer. Batches are for `vmap`: all of x
    is one point. What f closes over and torch or JAX differentiates or traces is found then, and
    put after the parameters.

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

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Jacobian:
        f, x, parameters, outputs, xp = _evaluated("Jacobian", f, x, parameters)
        outputs = _ravel(xp, outputs)
        if not xp.is_complex(outputs) and any(map(is_complex_number, arrays_in(x))):
            raise DtypeError(
                "Jacobian: f maps complex x to real numbers, so it is not holomorphic. Write it "
                "as one of the real parts."
            )
        return cls._of(f, x, parameters, int(outputs.shape[0]), bool(xp.is_complex(outputs)))

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, _size(self.x))

    @memo
    def _context(self) -> Context:
        context = context_of("Jacobian", self.leaves())
        return told_by_number(context, complex if self.complex_outputs else None)

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        g, point = _flat_function(xp, self)
        found = xp.linearise(g, point, recorded)
        if found is None:
            return None
        outputs, push, pull = found
        return Kept(push, _to_complex(self, pull), point.dtype, outputs.dtype)

    def _push(self, xp: Any) -> tuple:
        g, point = _flat_function(xp, self)
        return _mapped(xp, lambda v: xp.jvp(g, point, v)[1]), point.dtype

    def _pull(self, xp: Any) -> tuple:
        # back(y) = J^H y
        outputs, back = xp.vjp(*_flat_function(xp, self))
        return _to_complex(self, _mapped(xp, back)), outputs.dtype

    _matmat, _prepare = _multiply, _linearise_once

    def _rmatmat(self, X: Array) -> Array:
        return _multiply(self, X, is_adjoint=True)

    def _to_dense(self) -> Array:
        m, n = self.shape
        if m >= n:
            return LinearOperator._to_dense(self)
        # one pullback for each output
        return adjoint(self.xp, self._rmatmat(self.xp.eye(m, **kind_of(self))))

    def _expression(self) -> str:
        return f"Jacobian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class Hessian(LinearOperator, init=False):
    """The matrix of second derivatives of a scalar function f at x: a product is the forward
    derivative of a gradient.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives one number. A function of complex x must be holomorphic; its
        Hessian is then complex symmetric.
    x : torch or JAX array, or a nest of them
    parameters : tuple
        Arrays, operators, or nests of them: leaves, so that gradients reach them, as they reach x.

    Notes
    -----
    f is called once at construction, to check its answer; what it closes over and torch or JAX
    differentiates or traces is found then, and put after the parameters. A Hessian is symmetric; of
    a convex f say `PSD(Hessian(f, x))`.

    Examples
    --------
    >>> import colinear as co, torch
    >>> H = co.Hessian(lambda x: (x**3).sum(), torch.ones(2))
    >>> H @ torch.tensor([1.0, 2.0])
    tensor([ 6., 12.])
    """

    _implied = SYMMETRIC
    f: Callable
    x: Any
    parameters: Any

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Hessian:
        f, x, parameters, outputs, xp = _evaluated("Hessian", f, x, parameters)
        outputs = _ravel(xp, outputs)
        if outputs.shape[0] != 1:
            count = outputs.shape[0]
            raise ShapeError(
                f"Hessian: f must give one number, it gave {count}. For a vector of outputs: "
                "Jacobian or GaussNewton."
            )
        if xp.is_complex(outputs) != any(map(is_complex_number, arrays_in(x))):
            raise DtypeError(
                "Hessian: f must map real x to a real number, or complex x holomorphically to a "
                "complex one."
            )
        return cls._of(f, x, parameters)

    shape = square_shape

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        g, point = _flat_function(xp, self)
        found = xp.linearise(_recorded_gradient(xp, lambda v: g(v)[0]), point, recorded)
        if found is None:
            return None
        back = found[2]
        # H = H^T: H v = conj(H^H conj(v))
        return Kept(lambda V: xp.conj(back(xp.conj(V))), back, point.dtype, point.dtype)

    def _push(self, xp: Any) -> tuple:
        g, point = _flat_function(xp, self)
        gradient = _gradient(xp, lambda v: g(v)[0])
        return _mapped(xp, lambda v: xp.jvp(gradient, point, v)[1]), point.dtype

    _matmat, _prepare = _multiply, _linearise_once

    def _expression(self) -> str:
        return f"Hessian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class GaussNewton(LinearOperator, init=False):
    """The Gauss-Newton matrix `J^T H J` of `loss(f(x))`: J the Jacobian of f at x, H the Hessian of
    the loss at f(x).

    It is self-adjoint, and positive semidefinite where the loss is convex in the outputs, as most
    are: then say `PSD(GaussNewton(...))`. For a loss that is a negative log-likelihood of an
    exponential family it is the Fisher information.

    Parameters
    ----------
    f : callable
        `f(x, *parameters)` gives the outputs: a real array, or a nest of them.
    loss : callable
        `loss(outputs, *loss_parameters)` gives one number.
    x : torch or JAX array, or a nest of them; real
    parameters : tuple
        Of f: arrays, operators, or nests of them. Leaves, so that gradients reach them, as they
        reach x.
    loss_parameters : tuple
        Of the loss, alike: the targets, say.

    Notes
    -----
    f and the loss are called once at construction, to check their answers. What they close over and
    torch or JAX differentiates or traces is found then, and put after their parameters.

    Examples
    --------
    >>> import colinear as co, torch
    >>> G = co.GaussNewton(lambda x: x**2, lambda y: (y**2).sum() / 2, torch.ones(2))
    >>> G @ torch.tensor([1.0, 2.0])
    tensor([4., 8.])
    """

    _implied = SELF_ADJOINT
    f: Callable
    loss: Callable
    x: Any
    parameters: Any
    loss_parameters: Any

    def __new__(
        cls,
        f: Callable,
        loss: Callable,
        x: Any,
        parameters: tuple = (),
        loss_parameters: tuple = (),
    ) -> GaussNewton:
        if not callable(loss):
            raise TypeError(
                "GaussNewton: the loss must be a function of f's outputs, not "
                f"{type(loss).__name__}."
            )
        f, x, parameters, outputs, xp = _evaluated("GaussNewton", f, x, parameters)
        if any(map(is_complex_number, arrays_in((x, outputs)))):
            raise DtypeError(
                "GaussNewton: x and the outputs of f must be real. Write f as a function of and "
                "to real parts."
            )
        loss_parameters = as_parameters("GaussNewton", loss_parameters)
        context_of("GaussNewton", arrays_in((x, parameters, loss_parameters)))
        loss, hidden = xp.hoist(loss, lambda: [(outputs, *loss_parameters)])
        loss_parameters = (*loss_parameters, *hidden)
        value = loss(outputs, *loss_parameters)
        if math.prod(getattr(value, "shape", ())) != 1:
            raise ShapeError(
                f"GaussNewton: the loss must give one number, it gave shape {tuple(value.shape)}."
            )
        return cls._of(f, loss, x, parameters, loss_parameters)

    shape = square_shape

    def _loss_of(self, xp: Any, template: Any) -> Callable:
        """The loss as a function of the vector of all outputs."""
        return lambda y: xp.reshape(self.loss(_unravel(xp, y, template), *self.loss_parameters), ())

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        seen: list = []
        g, point = _flat_function(xp, self, seen)
        found = xp.linearise(g, point, recorded)
        if found is None:
            return None
        outputs, push, pull = found
        # of the loss, symmetric
        H = xp.linearise(_recorded_gradient(xp, self._loss_of(xp, seen[0])), outputs, recorded)[2]

        def product(V: Array) -> Array:
            return pull(H(push(V)))  # J^T (H (J v))

        return Kept(product, product, point.dtype, point.dtype)

    def _push(self, xp: Any) -> tuple:
        seen: list = []
        g, point = _flat_function(xp, self, seen)
        outputs, pull = xp.vjp(g, point)
        gradient = _gradient(xp, self._loss_of(xp, seen[0]))

        def column(v: Array) -> Array:
            u = xp.jvp(g, point, v)[1]  # J v
            return pull(xp.jvp(gradient, outputs, u)[1])  # J^T (H u)

        return _mapped(xp, column), point.dtype

    _matmat, _prepare = _multiply, _linearise_once

    def _expression(self) -> str:
        return (
            f"GaussNewton({function_name(self.f)}, {function_name(self.loss)}, "
            f"{'x'.join(map(str, self.shape))})"
        )


# ---------------------------------------------------------------------- linearised once for an iter


class Linearised(LinearOperator):
    """A Jacobian, Hessian or Gauss-Newton matrix whose function was linearised: products evaluate
    it no more.

    It holds what an iteration needs of it, and lives as long: the derivatives of the iteration go
    through A.
    """

    A: LinearOperator
    kept: Any

    shape, _infer = operand_shape, infer_operand

    def _matmat(self, X: Array) -> Array:
        return _by_columns(self.A, X, self.kept.push, self.kept.push_dtype, self.shape[-2])

    def _rmatmat(self, X: Array) -> Array:
        return _by_columns(self.A, X, self.kept.pull, self.kept.pull_dtype, self.shape[-1])


# ------------------------------------------------------------------------ made ready for an iteration


def make_ready(A: Any, is_planned: bool = False) -> Any:
    """A made ready for many products, in an iteration that is not itself differentiated: functions
    are linearised once, kernels that fit into memory are stored. If it is only `is_planned`, what
    costs as much."""
    # TEST_HOOKS count the products of A itself
    if A is None or A._context.backend is None or TEST_HOOKS:
        return A
    return _make_ready(A, is_planned, {})


def _make_ready(A: LinearOperator, is_planned: bool, images: dict[int, Any]) -> Any:
    if id(A) not in images:
        prepare = getattr(A, "_prepare", None)
        images[id(A)] = prepare(is_planned) if prepare else _of_parts(A, is_planned, images)
    return images[id(A)]


def _of_parts(A: LinearOperator, is_planned: bool, images: dict[int, Any]) -> Any:
    is_new = []

    def image(part: LinearOperator) -> Any:
        new = _make_ready(part, is_planned, images)
        is_new.append(new is not part)
        return new

    changes = {}
    for name in A._dynamic:
        value = getattr(A, name)
        if isinstance(value, (LinearOperator, tuple, list, dict)):
            changes[name] = map_parts(value, image, lambda leaf: leaf)
    return A._replace(**changes)._claim(A.properties) if any(is_new) else A
