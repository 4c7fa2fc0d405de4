"""Which arrays of an operator are cut over the devices of a mesh, by family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import function, rule
from ..operators import (
    FFT,
    Banded,
    BatchSum,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    GaussNewton,
    Hessian,
    Jacobian,
    Kernel,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    MatrixFree,
    Product,
    Sparse,
    Toeplitz,
)
from ..operators.batch import map_batch
from ..operators.context import Context
from ..operators.divided import can_transform
from ..operators.transposed import are_adjoint, are_transposed
from ..operators.tree import map_parts
from .row_sparse import RowSparse, rows_of


def everything_whole(A: LinearOperator, place: Any) -> LinearOperator:
    """A with its arrays where `place` says: the operators that it is made of by their own rules,
    and its own arrays whole on every device.

    A rule for a family returns A with each array passed through `place.rows(x)` (a matrix cut by
    rows), `place.cut(x, dimension)` (cut along a dimension, -1 for the last) or `place.whole(x)`.
    The same rule gathers: then all of these give the whole array.

    Examples
    --------
    >>> from colinear import rule
    >>> from colinear.distributed import placement
    >>> @rule(placement, MyOperator)  # doctest: +SKIP
    ... def place_mine(A, place):
    ...     return A._replace(U=place.rows(A.U))
    """
    changes = {name: _parts_at(getattr(A, name), place, place.whole) for name in A._dynamic}
    for name in A._fields:
        if isinstance(context := getattr(A, name), Context):
            changes[name] = _context_at(context, place)
    return A._replace(**changes)


placement = function("placement", base=everything_whole, rewrites=False)
placement.lends = False  # NumPy has no meshes


@rule(placement, Dense)
def place_dense(A: Any, place: Any) -> Any:
    """A by rows: A x gathers x"""
    return A._replace(A=place.rows(A.A))


@rule(placement, Diagonal)
def place_diagonal(A: Any, place: Any) -> Any:
    """diag(d) by entries: nothing is sent"""
    return A._replace(d=place.cut(A.d, -1))


@rule(placement, LowRank)
def place_low_rank(A: Any, place: Any) -> Any:
    """U C V^H by the rows of U and V: a sum of as many numbers as columns"""
    U = place.rows(A.U)
    V = U if A.V is A.U else None if A.V is None else place.rows(A.V)
    core = A.core if namespace_of(A.core) is None else place.whole(A.core)
    return A._replace(U=U, V=V, core=core)


@rule(placement, Kernel)
def place_kernel(A: Any, place: Any) -> Any:
    """k(X, Y) by rows: each device gathers points and vector, and computes its rows"""
    spread = None if A._point_batch else place.spread(*A.shape[-2:])
    if spread is None:
        return everything_whole(A, place)._replace(spread=None)
    Y = None if A.Y is None else place.rows(A.Y)
    parameters = _whole(A.parameters, place)
    return A._replace(X=place.rows(A.X), Y=Y, parameters=parameters, spread=spread)


@rule(placement, Kronecker | KroneckerSum)
def place_kronecker(A: Any, place: Any) -> Any:
    """(A ⊗ B) x and (A ⊕ B) x by the rows of A, with B whole"""
    first, *others = A.operands
    return A._replace(operands=(placement(first, place), *_whole(others, place)))


@rule(placement, BatchSum)
def place_batch_sum(A: Any, place: Any) -> Any:
    """sum_i A[i] by its terms: one sum over the devices"""

    def put(x: Array, dimension: int | None) -> Array:
        return place.whole(x) if dimension is None else place.cut(x, dimension)

    by_terms = map_batch(A.A, A.axis, put)
    return A._replace(A=placement(A.A, place) if by_terms is None else by_terms)


@rule(placement, Product)
def place_product(A: Any, place: Any) -> Any:
    """A B by their own rules; B^H B with B cut once, by its rows: one sum of as many numbers as
    columns"""
    first, *inside, last = A.operands
    for is_image, image in ((are_adjoint, "H"), (are_transposed, "T")):
        if is_image(first, last):
            last = placement(last, place)
            inside = [placement(factor, place) for factor in inside]
            return A._replace(operands=(getattr(last, image), *inside, last))
    return everything_whole(A, place)


@rule(placement, MatrixFree)
def place_matrix_free(A: Any, place: Any) -> Any:
    """The parameters cut along their first dimension, if it is that of the data"""
    context = A.context._replace(device=None)  # that of the parameters
    return A._replace(parameters=_data_cut(A.parameters, place), context=context)


@rule(placement, Jacobian | Hessian)
def place_derivative(A: Any, place: Any) -> Any:
    """The parameters of f cut along their first dimension, if it is that of the data"""
    return A._replace(x=_whole(A.x, place), parameters=_data_cut(A.parameters, place))


@rule(placement, GaussNewton)
def place_gauss_newton(A: Any, place: Any) -> Any:
    """The parameters of f and of the loss cut along their first dimension, if it is that of the
    data"""
    both = _data_cut((A.parameters, A.loss_parameters), place)
    return A._replace(x=_whole(A.x, place), parameters=both[0], loss_parameters=both[1])


@rule(placement, Toeplitz | Circulant)
def place_toeplitz(A: Any, place: Any) -> Any:
    """By rows: two exchanges of the frequencies of x"""
    is_square = len(A.shape) == 2 and A.shape[0] == A.shape[1]
    spread = place.spread(A.shape[0]) if is_square else None
    if spread is None:
        return everything_whole(A, place)._replace(spread=None)
    return A._map(lambda x: place.cut(x, -1))._replace(spread=spread)


@rule(placement, Convolution)
def place_convolution(A: Any, place: Any) -> Any:
    """By the rows of the grid: halos of x where the kernel is no larger than what a device has,
    else two exchanges of the frequencies of x"""
    spread = None if len(A.shape) > 2 else place.spread(A.grid[0])
    return everything_whole(A, place)._replace(spread=spread)


@rule(placement, FFT)
def place_transform(A: Any, place: Any) -> Any:
    """By the rows of the grid: two exchanges of all, three if it is a line"""
    spread = place.spread(A.grid[0])
    is_possible = spread is not None and can_transform(A.grid, place.parts)
    return everything_whole(A, place)._replace(spread=spread if is_possible else None)


@rule(placement, Sparse | Banded)
def place_sparse(A: Any, place: Any) -> Any:
    """By blocks of rows: where its entries stand on few diagonals, neighbours exchange halos of x;
    elsewhere x is gathered"""
    is_square = len(A.shape) == 2 and A.shape[0] == A.shape[1]
    spread = place.spread(A.shape[0]) if is_square else None
    by_rows = None if spread is None else rows_of(A, place.parts)
    if by_rows is None:
        return everything_whole(A, place)
    return by_rows.placed(place, spread)._claim(A.properties)


@rule(placement, RowSparse)
def place_row_sparse(A: Any, place: Any) -> Any:
    """As the sparse matrix that it is, whose halos depend on the number of devices"""
    spread = place.spread(A.shape[0])
    if spread is None or spread != A.spread:
        whole = A._replace(data=place.whole(A.data)).as_sparse()
        return placement(whole._claim(A.properties), place)
    return A.placed(place, spread)


# Parts of operators


def _parts_at(parts: Any, place: Any, put: Callable[[Array], Array]) -> Any:
    """Arrays and operators in a nest where `put` puts them, and by their own rules."""
    own = lambda x: x if namespace_of(x) is None else put(x)
    return map_parts(parts, lambda B: placement(B, place), own)


def _whole(parts: Any, place: Any) -> Any:
    """Arrays and operators in a nest, whole on every device."""
    return _parts_at(parts, place.undivided, place.whole)


def _context_at(context: Context, place: Any) -> Context:
    """The context of an operator that may hold no arrays, in its new place."""
    return context if context.device is None else context._replace(device=place.device)


def _data_cut(parameters: Any, place: Any) -> Any:
    """Parameters of a function, of which those with the longest first dimension are cut along it:
    the rows of the data."""
    lengths: list[int] = []

    def note(x: Array) -> Array:
        if namespace_of(x) is not None and x.ndim:
            lengths.append(x.shape[0])
        return x

    map_parts(parameters, lambda B: B, note)
    longest = max(lengths, default=0)

    def put(x: Array) -> Array:
        is_data = x.ndim and x.shape[0] == longest
        return place.cut(x, -x.ndim) if is_data else place.whole(x)

    return _parts_at(parameters, place, put)
