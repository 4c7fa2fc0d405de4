"""Batches of operators: the sum over a batch dimension, and the elements of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import MethodError, ShapeError
from ..properties import ALL_PROPERTIES, POSITIVE_DEFINITE
from .base import LinearOperator
from .context import broadcast_batches, kind_of, spread
from .convert import as_operator
from .diagonal import Identity, ScaledIdentity
from .printing import bracketed
from .scaled import Scaled
from .sliced import check_range
from .tree import (
    Index,
    Shape,
    inside_out,
    known_of_sum,
    map_parts,
    on_host,
    sole_operand,
    wrapper_images,
)

# The sum over a batch dimension of one batched operator: how a sum of a million terms is written
# without a million objects.


class BatchSum(LinearOperator, init=False):
    """`sum_i A[i]` over the batch dimension `axis` of A.

    Examples
    --------
    A sum of rank-one terms, one for each row of the data, is one object; it multiplies as `X^T (X
    v)`:

    >>> import colinear as co, numpy as np
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> A = co.BatchSum(co.LowRank(X[:, :, None]))
    >>> bool(np.allclose(A.to_dense(), X.T @ X))
    True
    """

    A: LinearOperator
    axis: int

    def __new__(cls, A: Any, axis: int = 0) -> LinearOperator:  # type: ignore[misc]
        A = as_operator(A)
        batch = len(A.shape) - 2
        if batch == 0:
            raise ShapeError(
                f"BatchSum: A has shape {A.shape}; it needs a batch dimension to sum over."
            )
        if not -batch <= axis < batch:
            raise ShapeError(
                f"BatchSum: axis {axis} is not one of the {batch} batch dimension(s) of A, shape "
                f"{A.shape}."
            )
        # Counted from the last batch dimension, so that it stays right when `vmap` adds or hides
        # leading ones.
        return cls._of(A, axis - batch if axis >= 0 else axis)

    operands = sole_operand

    @property
    def shape(self) -> Shape:
        batch = list(self.A.shape[:-2])
        del batch[self.axis]
        return (*batch, *self.A.shape[-2:])

    @property
    def terms(self) -> int:
        """How many terms the sum has."""
        return self.A.shape[:-2][self.axis]

    def _infer(self) -> int:
        known = known_of_sum((self.A,))
        return known if self.terms else known & ~POSITIVE_DEFINITE

    _transpose, _adjoint, _conj = wrapper_images

    def _matmat(self, X: Array) -> Array:
        if len(X.shape) - 2 >= -self.axis:
            X = namespace_of(X).expand_dims(X, axis=self.axis - 2)
        return self.A._summed_matmat(X, self.axis)

    _term_count = terms

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        after = -self.axis - 1  # batch dimensions behind the one that is summed
        weights = weights[(..., *(None,) * after)]
        return BatchSum._of(Scaled(weights, take_terms(self.A, self.axis, indices)), self.axis)

    def _to_dense(self) -> Array:
        if self.A.shape[-2] * self.terms > 4096:
            return LinearOperator._to_dense(self)
        return self.xp.sum(self.A._dense(), axis=self.axis - 2)

    @property
    def _flops(self) -> float:
        return self.terms * self.A.flops

    def _expression(self) -> str:
        return f"sum of {self.terms} {bracketed(self.A, None)}"


# Elements of a batch: `A[0]` of a batched operator is the operator of that batch element, of the
# same family.
#
# A family's leaves carry the batch in front of their own dimensions (a `Diagonal`'s `d` has one of
# its own, a `Dense`'s `A` two), so the key of the batch is the key of each leaf. Operands that
# broadcast (fewer batch dimensions, or sizes of one) get the key that fits them.


# How many dimensions of their own the leaves of a family have.
# Composed families, whose batch is the broadcast of their operands' and nothing else, have none.
_COMPOSED = (
    "Sum",
    "Product",
    "Scaled",
    "Kronecker",
    "KroneckerSum",
    "BlockDiag",
    "Block",
    "Transpose",
    "Adjoint",
    "Conjugate",
    "Sliced",
    "Hadamard",
)
_DIMENSIONS = dict.fromkeys(_COMPOSED, 0) | {
    "Dense": 2,
    "Diagonal": 1,
    "ScaledIdentity": 0,
    "Triangular": 2,
    "Tridiagonal": 1,
    "Toeplitz": 1,
    "Circulant": 1,
    "Sparse": 1,
    "LowRank": 2,
    "Householder": 1,
    "Projection": 2,
}


def take_batch(A: LinearOperator, keys: tuple[Any, ...]) -> LinearOperator:
    """The batch elements that the keys (one for each batch axis) name."""
    batch = A.batch_shape
    keys = tuple(_checked(key, size, axis) for axis, (key, size) in enumerate(zip(keys, batch)))
    elements = np.arange(math.prod(batch)).reshape(batch)[keys]
    taken = _take(A, batch, keys)
    if taken is not None and taken.batch_shape == elements.shape:
        return taken
    return BatchElements._of(A, Index(elements))


def broadcast_batch(A: LinearOperator, batch: Shape) -> LinearOperator:
    """A with this batch shape, to which its own broadcasts."""
    if A.batch_shape == batch:
        return A
    xp, own = A.xp, _DIMENSIONS.get(type(A).__name__)
    if isinstance(A, Identity):
        return ScaledIdentity(xp.ones(batch, **kind_of(A)), A.n)._claim(A.properties)
    if A.operands or own is None:
        one = xp.ones(batch, dtype=xp.real_dtype(A.dtype), device=A._context.device)
        return Scaled(one, A)._claim(A.properties)
    return A._map(lambda x: spread(x, batch, own) if namespace_of(x) is xp else x)


def take_terms(A: LinearOperator, axis: int, indices: Array) -> LinearOperator:
    """The elements of these indices, which may be traced, along the batch dimension `axis`
    (negative, from the last one)."""
    before = len(A.batch_shape) + axis
    keys = (slice(None),) * before + (indices,) + (slice(None),) * (-axis - 1)
    taken = _take(A, A.batch_shape, keys)
    if taken is None:
        raise MethodError(
            f"BatchSum: terms cannot be taken out of {A!r}. Make it of Dense, LowRank, Diagonal, "
            "Sparse and the like, or define "
            "`_term_count` and `_some_terms` for an operator of your own."
        )
    return taken


def map_batch(A: Any, axis: int, f: Any) -> Any:
    """A with each leaf x as `f(x, dimension)`: which of its dimensions, from the last one, is the
    batch dimension `axis` (negative, too); None for leaves that every element shares. None where a
    family is not known to allow it."""
    inside = list(inside_out(A))
    if any(type(B).__name__ not in _DIMENSIONS for B in inside if B.batch_shape):
        return None
    size = A.batch_shape[axis]

    def mapped(B: Any) -> Any:
        own = _DIMENSIONS.get(type(B).__name__, 0) if B.batch_shape else math.inf

        def leaf(x: Any) -> Any:
            if namespace_of(x) is None:
                return x
            dimension = axis - own
            is_cut = x.ndim >= -dimension and x.shape[int(dimension)] == size
            return f(x, int(dimension) if is_cut else None)

        return B._replace(
            **{name: map_parts(getattr(B, name), mapped, leaf) for name in B._dynamic}
        )

    return mapped(A)


def _checked(key: Any, size: int, axis: int) -> Any:
    """A key of one batch axis for host arrays, in range."""
    if isinstance(key, slice):
        return key
    host = on_host(key)
    if host.dtype.kind not in "iub":
        raise IndexError(
            f"indices are integers, slices, arrays of integers or booleans; not {host.dtype}."
        )
    if host.dtype == bool and host.shape != (size,):
        raise IndexError(
            f"a boolean index of shape {host.shape} does not fit batch axis {axis} of size {size}."
        )
    if host.dtype != bool:
        check_range(host, size, axis)
    return int(host) if host.ndim == 0 else host


def _take(A: LinearOperator, batch: Shape, keys: tuple[Any, ...]) -> LinearOperator | None:
    """The batch elements of A, which broadcasts to `batch`; None where a family is not known to
    allow it."""
    inside = [B for B in inside_out(A) if B.batch_shape]
    if any(type(B).__name__ not in _DIMENSIONS for B in inside):
        return None
    return _taken(A, batch, keys)


def _taken(A: Any, batch: Shape, keys: tuple[Any, ...]) -> Any:
    if not A.batch_shape:
        return A
    own = _DIMENSIONS[type(A).__name__]

    def leaf(x: Any) -> Any:
        xp = namespace_of(x)
        have = () if xp is None else tuple(x.shape[: x.ndim - own])
        if not have:
            return x
        x = x if have == batch else spread(x, batch, own)
        # NumPy's numbers are no arrays
        return xp.asarray(x[tuple(_placed(key, xp, xp.device_of(x)) for key in keys)])

    changes = {
        name: map_parts(getattr(A, name), lambda B: _taken(B, batch, keys), leaf)
        for name in A._dynamic
    }
    return A._replace(**changes)


def _placed(key: Any, xp: Any, device: Any) -> Any:
    if isinstance(key, slice) and (key.step or 1) < 0:
        raise IndexError("batch axes take slices of positive step.")
    if isinstance(key, (slice, int)) or namespace_of(key) is xp or key.dtype == bool:
        return key
    return Index(key).on(xp, device)


class BatchElements(LinearOperator):
    """Some elements of a batched operator, of any family: multiplies the whole batch and keeps
    what was asked."""

    A: LinearOperator
    elements: Index  # positions in the flat batch, in the shape of the new batch

    operands = sole_operand

    @property
    def shape(self) -> Shape:
        return (*self.elements.host.shape, *self.A.shape[-2:])

    _inherited = ALL_PROPERTIES

    _transpose, _adjoint, _conj = wrapper_images

    def _matmat(self, X: Array) -> Array:
        # each block of X to the element that it belongs to, the product, and back
        xp, block, whole = namespace_of(X), X.shape[-2:], self.A.batch_shape
        batch = broadcast_batches(X.shape[:-2], self.batch_shape, what="@")
        # those of the batch dimensions that are this operator's
        own = batch[len(batch) - len(self.batch_shape) :]
        extra = batch[: len(batch) - len(own)]
        blocks = xp.reshape(spread(X, batch), (*extra, math.prod(own), *block))
        elements = np.broadcast_to(self.elements.host, own).ravel()
        products, layers = [], _without_repeats(elements)
        for layer in layers:
            where, mine = elements[layer], xp.take(blocks, layer, axis=-3)
            full = xp.zeros((*extra, math.prod(whole), *block), **kind_of(X))
            full = xp.scatter_add(full, where, mine, axis=-3)
            product = self.A @ xp.reshape(full, (*extra, *whole, *block))
            product = xp.reshape(product, (*extra, math.prod(whole), *product.shape[-2:]))
            products.append(xp.take(product, where, axis=-3))
        back = np.argsort(np.concatenate(layers))
        product = xp.take(xp.concat(products, axis=-3), back, axis=-3)
        return xp.reshape(product, (*batch, *product.shape[-2:]))

    @property
    def _flops(self) -> float:
        return self.A.flops * math.prod(self.A.batch_shape)

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}[batch of {self.elements.host.size}]"


def _without_repeats(elements: Any) -> list[Any]:
    """Positions in groups, none of which holds an element twice: the first occurrences, the
    second ones, ..."""
    layers: list[dict[int, int]] = [{}]
    for position, element in enumerate(elements.tolist()):
        layer = next((layer for layer in layers if element not in layer), None)
        if layer is None:
            layers.append(layer := {})
        layer[element] = position
    return [np.asarray(list(layer.values()), dtype=np.int64) for layer in layers]
