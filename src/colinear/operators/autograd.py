"""Derivatives as operators: Jacobians, Hessians and Gauss-Newton matrices, multiplied by automatic
differentiation, never formed.

The point x may be an array of any shape or a nest of tuples, lists and dicts of arrays (a model's
weights): the operators act on the vector of all its numbers, flattened in the framework's order of
leaves.

One product is made by the framework's transforms: forward mode, reverse mode, or one of the other.
Where f has no forward derivative (recurrent nets and custom functions of torch, `custom_vjp` in
JAX) it is made by reverse mode twice. An iteration linearises f once and multiplies by what it
kept: see `linearised`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array, namespace_of
from ..errors import BackendError, DtypeError, ShapeError
from ..properties import SELF_ADJOINT, SYMMETRIC
from .base import WATCHERS, LinearOperator
from .context import Context, as_array, context_of
from .matrixfree import as_parameters, by_real_parts, function_name
from .tree import arrays_in, map_arrays, memo


class Jacobian(LinearOperator):
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

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Any:
        f, x, parameters, outputs = _evaluated("Jacobian", f, x, parameters)
        outputs = _ravel(namespace_of(arrays_in(x)[0]), outputs)
        xp = namespace_of(outputs)
        if not xp.is_complex(outputs) and any(xp.is_complex(leaf) for leaf in arrays_in(x)):
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
        xp = namespace_of(arrays_in(self.x)[0])
        return (
            context._replace(dtype=xp.complex_dtype(context.dtype))
            if self.complex_outputs
            else context
        )

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        found = xp.linearise(g, point, recorded)
        return (
            None
            if found is None
            else Kept(found[1], _to_complex(xp, self, found[2]), point.dtype, found[0].dtype)
        )

    def _matmat(self, X: Array) -> Array:
        def push(xp: Any) -> tuple:
            g, point = _flat_function(xp, self.f, self.x, self.parameters)
            return _mapped(xp, lambda v: xp.jvp(g, point, v)[1]), point.dtype

        return _multiply(self, X, push, adjoint=False)

    def _rmatmat(self, X: Array) -> Array:
        def pull(xp: Any) -> tuple:
            # back(y) = J^H y
            outputs, back = xp.vjp(*_flat_function(xp, self.f, self.x, self.parameters))
            return _to_complex(xp, self, _mapped(xp, back)), outputs.dtype

        return _multiply(self, X, pull, adjoint=True)

    def _to_dense(self) -> Array:
        m, n = self.shape
        if m >= n:
            return LinearOperator._to_dense(self)
        # one pullback for each output
        rows = self._rmatmat(self.xp.eye(m, dtype=self.dtype, device=self._context.device))
        return self.xp.conj(self.xp.matrix_transpose(rows))

    def _expression(self) -> str:
        return f"Jacobian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class Hessian(LinearOperator):
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

    f: Callable
    x: Any
    parameters: Any

    def __new__(cls, f: Callable, x: Any, parameters: tuple = ()) -> Any:
        f, x, parameters, outputs = _evaluated("Hessian", f, x, parameters)
        outputs = _ravel(namespace_of(arrays_in(x)[0]), outputs)
        xp = namespace_of(outputs)
        if outputs.shape[0] != 1:
            count = outputs.shape[0]
            raise ShapeError(
                f"Hessian: f must give one number, it gave {count}. For a vector of outputs: "
                "Jacobian or GaussNewton."
            )
        if xp.is_complex(outputs) != any(xp.is_complex(leaf) for leaf in arrays_in(x)):
            raise DtypeError(
                "Hessian: f must map real x to a real number, or complex x holomorphically to a "
                "complex one."
            )
        return cls._of(f, x, parameters)

    @property
    def shape(self) -> tuple[int, ...]:
        n = _size(self.x)
        return (n, n)

    def _infer(self) -> int:
        return SYMMETRIC

    def _transpose(self) -> LinearOperator:
        return self

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        g, point = _flat_function(xp, self.f, self.x, self.parameters)
        found = xp.linearise(_recorded_gradient(xp, lambda v: g(v)[0]), point, recorded)
        if found is None:
            return None
        back = found[2]
        # H = H^T: H v = conj(H^H conj(v))
        return Kept(lambda V: xp.conj(back(xp.conj(V))), back, point.dtype, point.dtype)

    def _matmat(self, X: Array) -> Array:
        def push(xp: Any) -> tuple:
            g, point = _flat_function(xp, self.f, self.x, self.parameters)
            gradient = _gradient(xp, lambda v: g(v)[0])
            return _mapped(xp, lambda v: xp.jvp(gradient, point, v)[1]), point.dtype

        return _multiply(self, X, push, adjoint=False)

    def _rmatmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.conj(self._matmat(xp.conj(X)))  # H^H = conj(H), as H is symmetric

    def _expression(self) -> str:
        return f"Hessian({function_name(self.f)}, {'x'.join(map(str, self.shape))})"


class GaussNewton(LinearOperator):
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
    ) -> Any:
        if not callable(loss):
            raise TypeError(
                "GaussNewton: the loss must be a function of f's outputs, not "
                f"{type(loss).__name__}."
            )
        f, x, parameters, outputs = _evaluated("GaussNewton", f, x, parameters)
        xp = namespace_of(arrays_in(x)[0])
        if any(xp.is_complex(leaf) for leaf in arrays_in((x, outputs))):
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

    @property
    def shape(self) -> tuple[int, ...]:
        n = _size(self.x)
        return (n, n)

    def _infer(self) -> int:
        return SELF_ADJOINT

    def _adjoint(self) -> LinearOperator:
        return self

    def _loss_of(self, xp: Any, template: Any) -> Callable:
        """The loss as a function of the vector of all outputs."""
        return lambda y: xp.reshape(self.loss(_unravel(xp, y, template), *self.loss_parameters), ())

    def _linearise(self, xp: Any, recorded: bool) -> Kept | None:
        seen: list = []
        g, point = _flat_function(xp, self.f, self.x, self.parameters, seen)
        found = xp.linearise(g, point, recorded)
        if found is None:
            return None
        outputs, push, pull = found
        # of the loss, symmetric
        H = xp.linearise(_recorded_gradient(xp, self._loss_of(xp, seen[0])), outputs, recorded)[2]

        def product(V: Array) -> Array:
            return pull(H(push(V)))  # J^T (H (J v))

        return Kept(product, product, point.dtype, point.dtype)

    def _matmat(self, X: Array) -> Array:
        def push(xp: Any) -> tuple:
            seen: list = []
            g, point = _flat_function(xp, self.f, self.x, self.parameters, seen)
            outputs, pull = xp.vjp(g, point)
            gradient = _gradient(xp, self._loss_of(xp, seen[0]))

            def column(v: Array) -> Array:
                u = xp.jvp(g, point, v)[1]  # J v
                return pull(xp.jvp(gradient, outputs, u)[1])  # J^T (H u)

            return _mapped(xp, column), point.dtype

        return _multiply(self, X, push, adjoint=False)

    _rmatmat = _matmat

    def _expression(self) -> str:
        return (
            f"GaussNewton({function_name(self.f)}, {function_name(self.loss)}, "
            f"{'x'.join(map(str, self.shape))})"
        )


# ---------------------------------------------------------------------- points and functions as vec


def _evaluated(what: str, f: Callable, x: Any, parameters: Any) -> tuple[Callable, Any, tuple, Any]:
    """The checked arguments, with what f closes over among the parameters, and the outputs of f."""
    if not callable(f):
        raise TypeError(f"{what}: f must be a function, not {type(f).__name__}.")
    first = next(iter(arrays_in(x)), None)
    xp = namespace_of(first)
    if xp is None or xp.name == "numpy":
        raise BackendError(
            f"{what}: x is {'a NumPy array' if xp else f'made of {type(first).__name__}'}, and "
            "only torch and JAX differentiate. "
            "Give x as an array of theirs, or the product itself as MatrixFree(matmat, shape, "
            "rmatmat=...)."
        )
    x, parameters = (
        map_arrays(lambda leaf: as_array(leaf, f"{what}: x"), x),
        as_parameters(what, parameters),
    )
    context_of(what, arrays_in((x, parameters)))  # mixed frameworks and devices are refused here
    f, hidden = xp.hoist(f, lambda: [(x, *parameters)])
    parameters = (*parameters, *hidden)
    outputs = f(x, *parameters)
    for leaf in arrays_in(outputs):
        if namespace_of(leaf) is not xp or not xp.is_floating(leaf):
            given = getattr(leaf, "dtype", type(leaf).__name__)
            raise DtypeError(
                f"{what}: f must give floating-point {xp.name} arrays, it gave {given}."
            )
    return f, x, parameters, outputs


def _size(x: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in arrays_in(x))


def _ravel(xp: Any, tree: Any) -> Array:
    """All numbers of a tree as one vector, in the framework's order of leaves (JAX sorts the
    keys of dicts)."""
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


def _flat_function(
    xp: Any, f: Callable, x: Any, parameters: tuple, seen: list | None = None
) -> tuple[Callable, Array]:
    """f between vectors, and the point as one; `seen` collects the outputs as f gives them."""

    def flat(v: Array) -> Array:
        outputs = f(_unravel(xp, v, x), *parameters)
        if seen is not None:
            seen.append(outputs)
        return _ravel(xp, outputs)

    return flat, _ravel(xp, x)


# ---------------------------------------------------------------------- derivatives


class Kept(NamedTuple):
    """A derivative A kept for many products, with stacks of vectors: V -> V A^T and G -> G
    conj(A), and the dtypes of V and of G."""

    push: Callable
    pull: Callable
    push_dtype: Any
    pull_dtype: Any


def _mapped(xp: Any, f: Callable) -> Callable:
    """A function of vectors over a stack of them. JAX maps over a single one too: only there
    does it say, before a program is compiled, that a function has no forward derivative."""
    return lambda columns: (
        f(columns[0])[None] if columns.shape[0] == 1 and xp.name != "jax" else xp.vmap(f)(columns)
    )


def _to_complex(xp: Any, J: Jacobian, pull: Callable) -> Callable:
    """J^H of complex outputs: the pullback to real x keeps the real part alone."""
    if not J.complex_outputs or any(xp.is_complex(leaf) for leaf in arrays_in(J.x)):
        return pull
    return lambda G: pull(G) + 1j * pull(-1j * G)


def _gradient(xp: Any, g: Callable) -> Callable:
    """The gradient of a scalar function of a vector; the holomorphic one, if complex."""

    def gradient(v: Array) -> Array:
        value, pull = xp.vjp(g, v)
        # pull(1) = J^H 1
        return xp.conj(pull(xp.ones(value.shape, dtype=value.dtype, device=xp.device_of(value))))

    return gradient


def _recorded_gradient(xp: Any, g: Callable) -> Callable:
    """The same by reverse mode on a graph that reverse mode goes through again."""

    def gradient(v: Array) -> Array:
        value, _, pull = xp.linearise(g, v, True)
        return xp.conj(
            pull(xp.ones((1, *value.shape), dtype=value.dtype, device=xp.device_of(value)))[0]
        )

    return gradient


def _multiply(A: Any, X: Array, transform: Callable[[Any], tuple], adjoint: bool) -> Array:
    """A X or A^H X by the framework's transforms; where f has not the derivatives that these need,
    by its graph.

    Two derivatives, one of the other, are half the work by the graph in torch, if nothing is
    recorded.
    """
    xp = namespace_of(X)
    recorded = xp.is_differentiated(X, *A.arrays())

    def by_transforms() -> tuple:
        return transform(xp)

    def by_graph() -> tuple | None:
        kept = None if xp.is_compiling() else A._linearise(xp, recorded)
        if kept is None:
            return None
        return (kept.pull, kept.pull_dtype) if adjoint else (kept.push, kept.push_dtype)

    is_first = xp.name == "torch" and not recorded and not isinstance(A, Jacobian)
    failure: Exception | None = None
    for way in (by_graph, by_transforms) if is_first else (by_transforms, by_graph):
        try:
            found = way()
            if found is not None:
                f, dtype = found
                return _by_columns(A, X, f, dtype, A.shape[-1] if adjoint else A.shape[-2])
        except (RuntimeError, TypeError) as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _by_columns(A: LinearOperator, X: Array, f: Callable, dtype: Any, rows: int) -> Array:
    """`f`, a linear map of stacks of vectors of this dtype, of all the columns of blocks X at
    once."""
    xp = namespace_of(X)
    if xp.is_complex(X) and not xp.is_complex(dtype):
        return by_real_parts(lambda parts: _by_columns(A, parts, f, dtype, rows), X)
    *batch, n, k = X.shape
    result_dtype = xp.result_type(A.dtype, X.dtype)
    columns = xp.astype(xp.reshape(xp.moveaxis(X, -1, -2), (math.prod(batch) * k, n)), dtype)
    if 0 in columns.shape or rows == 0:
        return xp.zeros((*batch, rows, k), dtype=result_dtype, device=xp.device_of(X))
    return xp.astype(xp.moveaxis(xp.reshape(f(columns), (*batch, k, rows)), -1, -2), result_dtype)


# ---------------------------------------------------------------------- linearised once for an iter


class Linearised(LinearOperator):
    """A Jacobian, Hessian or Gauss-Newton matrix whose function was linearised: products evaluate
    it no more.

    It holds what an iteration needs of it, and lives as long: the derivatives of the iteration go
    through A.
    """

    A: LinearOperator
    kept: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _infer(self) -> int:
        return self.A.properties

    def _matmat(self, X: Array) -> Array:
        return _by_columns(self.A, X, self.kept.push, self.kept.push_dtype, self.shape[-2])

    def _rmatmat(self, X: Array) -> Array:
        return _by_columns(self.A, X, self.kept.pull, self.kept.pull_dtype, self.shape[-1])


def linearised(A: Any) -> Any:
    """A with its derivatives of functions linearised, each once, for an iteration that is not
    itself differentiated."""
    if A is None or A.backend == "numpy" or WATCHERS:  # those count the products of A itself
        return A
    return _linearised(A, {})


def _linearised(A: LinearOperator, images: dict[int, Any]) -> Any:
    if id(A) not in images:
        images[id(A)] = _image(A, images)
    return images[id(A)]


def _image(A: LinearOperator, images: dict[int, Any]) -> Any:
    if isinstance(A, (Jacobian, Hessian, GaussNewton)):
        xp = A.xp
        if xp.name == "torch" and xp.is_differentiated(*A.arrays()):
            return A  # products are recorded one by one; JAX sees through them all
        try:
            kept = A._linearise(xp, False)
        except (RuntimeError, TypeError):  # then each product says what f lacks, or does without
            return A
        return A if kept is None else Linearised._of(A, kept)
    changed = {}
    for name in A._dynamic:
        value = getattr(A, name)
        if isinstance(value, LinearOperator):
            new: Any = _linearised(value, images)
        elif type(value) is tuple and value and isinstance(value[0], LinearOperator):
            new = tuple(
                _linearised(part, images) if isinstance(part, LinearOperator) else part
                for part in value
            )
            new = value if all(x is y for x, y in zip(new, value, strict=True)) else new
        else:
            continue
        if new is not value:
            changed[name] = new
    if not changed:
        return A
    copy = A._replace(**changed)
    object.__setattr__(copy, "_claims", A.properties)
    return copy
