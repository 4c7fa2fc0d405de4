"""Products of derivatives: functions of trees of arrays as functions of vectors, and how they are
linearised; functions of the arrays of an operator along a direction, and backwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..backends import Array, namespace_of
from ..errors import BackendError, DtypeError
from .base import LinearOperator
from .context import as_array, context_of, is_complex_number, kind_of
from .matrixfree import as_parameters, by_real_parts
from .tree import Map, arrays_in, map_arrays

# ---------------------------------------------------------------------- points and functions as vec


def _evaluated(what: str, f: Callable, x: Any, parameters: Any) -> tuple:
    """The checked arguments, with what f closes over among the parameters, the outputs of f, and
    their framework."""
    if not callable(f):
        raise TypeError(f"{what}: f must be a function, not {type(f).__name__}.")
    first = next(iter(arrays_in(x)), None)
    xp = namespace_of(first)
    if xp is None or xp.name == "numpy":
        raise BackendError(
            f"{what}: x is {'a NumPy array' if xp else f'made of {type(first).__name__}'}, and "
            "only torch and JAX differentiate. Give x as an array of theirs, or the product itself "
            "as MatrixFree(matmat, shape, rmatmat=...)."
        )
    x = map_arrays(lambda leaf: as_array(leaf, f"{what}: x"), x)
    parameters = as_parameters(what, parameters)
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
    return f, x, parameters, outputs, xp


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


def _flat_function(xp: Any, A: Any, seen: list | None = None) -> tuple[Callable, Array]:
    """f of A between vectors, and the point as one; `seen` collects the outputs as f gives them."""

    def flat(v: Array) -> Array:
        outputs = A.f(_unravel(xp, v, A.x), *A.parameters)
        if seen is not None:
            seen.append(outputs)
        return _ravel(xp, outputs)

    return flat, _ravel(xp, A.x)


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


def _to_complex(J: Any, pull: Callable) -> Callable:
    """J^H of complex outputs: the pullback to real x keeps the real part alone."""
    if not J.complex_outputs or any(map(is_complex_number, arrays_in(J.x))):
        return pull
    return lambda G: pull(G) + 1j * pull(-1j * G)


def _gradient(xp: Any, g: Callable) -> Callable:
    """The gradient of a scalar function of a vector; the holomorphic one, if complex."""

    def gradient(v: Array) -> Array:
        value, pull = xp.vjp(g, v)
        # pull(1) = J^H 1
        return xp.conj(pull(xp.ones(value.shape, **kind_of(value))))

    return gradient


def _recorded_gradient(xp: Any, g: Callable) -> Callable:
    """The same by reverse mode on a graph that reverse mode goes through again."""

    def gradient(v: Array) -> Array:
        value, _, pull = xp.linearise(g, v, True)
        return xp.conj(pull(xp.ones((1, *value.shape), **kind_of(value)))[0])

    return gradient


def _multiply(A: Any, X: Array, is_adjoint: bool = False) -> Array:
    """A X or A^H X by the framework's transforms; where f has not the derivatives that these need,
    by its graph.

    In torch the graph comes first, if nothing is recorded: forward mode takes twice as long, and so
    do two derivatives, one of the other.
    """
    xp = namespace_of(X)
    recorded = xp.is_differentiated(X, *A.arrays())

    def by_transforms() -> tuple:
        return A._pull(xp) if is_adjoint else A._push(xp)

    def by_graph() -> tuple | None:
        kept = None if xp.is_compiling() else A._linearise(xp, recorded)
        if kept is None:
            return None
        return (kept.pull, kept.pull_dtype) if is_adjoint else (kept.push, kept.push_dtype)

    is_graph_first = xp.name == "torch" and not recorded
    failure: Exception | None = None
    for way in (by_graph, by_transforms) if is_graph_first else (by_transforms, by_graph):
        try:
            found = way()
            if found is not None:
                f, dtype = found
                return _by_columns(A, X, f, dtype, A.shape[-1 if is_adjoint else -2])
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


# ---------------------------------------------------------------------- functions of an operator's arrays


def directional(A: Any, f: Map, tangents: Sequence[Any]) -> tuple[Any, Any]:
    """f(A) and its derivative along `tangents` of A's arrays: of all of them, or of those alone
    that are floats."""
    return push_floats(A.xp, lambda *arrays: f(A.with_arrays(arrays)), A.arrays(), tangents)


def pullback(A: Any, f: Map, G: Any) -> tuple[Any, ...]:
    """The cotangents of A's arrays for a cotangent G of f(A); None for integers."""
    return pull_floats(A.xp, lambda *arrays: f(A.with_arrays(arrays)), A.arrays(), G)


def push_floats(
    xp: Any, f: Callable[..., Any], arrays: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Any, Any]:
    """f(*arrays) and its derivative along `tangents`, of all arrays or of the floats among them:
    integers do not move."""
    places, of = _of_floats(xp, f, arrays)
    along = [tangents[i] for i in places] if len(tangents) == len(arrays) else tangents
    return xp.jvp(of, tuple(arrays[i] for i in places), tuple(along))


def pull_floats(xp: Any, f: Callable[..., Any], arrays: Sequence[Any], G: Any) -> tuple[Any, ...]:
    """The cotangents of the arrays for a cotangent G of f(*arrays); None for integers."""
    places, of = _of_floats(xp, f, arrays)
    found = dict(zip(places, xp.vjp(of, tuple(arrays[i] for i in places))[1](G), strict=True))
    return tuple(found.get(i) for i in range(len(arrays)))


def _of_floats(xp: Any, f: Callable[..., Any], arrays: Sequence[Any]) -> tuple[list[int], Map]:
    """The places of the floats among the arrays, and f as a function of these."""
    places = [i for i, x in enumerate(arrays) if xp.is_floating(x)]

    def of(floats: Any) -> Any:
        every = list(arrays)
        for i, x in zip(places, floats, strict=True):
            every[i] = x
        return f(*every)

    return places, of
