"""Products with sparse matrices in JAX, as a primitive of its own: bilinear in the entries and in
the right side.

XLA's sums over segments are loops that write for each entry. Here rows of about equal length form a
slab, padded to one width, and the sum over a width that is known is written out: one fused loop
over the rows, without writes in between. In a compiled loop on a CPU (Trefethen_20000, 5e5 entries)
it takes 0.7 times as long as SciPy's product, sums over segments 1.2 to 3 times; with 8 columns 1
and 8 times. Rows longer than `WIDTH` are cut, and the sums of their pieces are added by slabs
again. As a primitive it has a transpose of the same kind (A^T by the slabs of A^T) instead of the
scattered additions that JAX would derive.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..shared import diagonals_matmul, half, lay_out

WIDTH = 32  # entries of a row that one slab takes
SMALL = 1 << 14  # entries up to which compiling slabs takes longer than they save

product = Primitive("colinear_sparse_matmul")


@half
def sparse_matmul(data: Any, structure: Any, X: Any) -> jax.Array:
    """Multiply by the sparse matrix of these entries: data (*batch, nnz), X (*batch, n, k) ->
    (*batch, m, k); batch shapes broadcast."""
    dtype = jnp.result_type(data, X)
    rank = max(data.ndim - 1, X.ndim - 2)
    data = jnp.reshape(data, (1,) * (rank - data.ndim + 1) + data.shape).astype(dtype)
    X = jnp.reshape(X, (1,) * (rank - X.ndim + 2) + X.shape).astype(dtype)
    return product.bind(data, X, *_indices(structure), structure=structure)


def sparse_array(data: Any, structure: Any) -> Any:
    """The matrix in the framework's own format: JAX's BCOO."""
    from jax.experimental.sparse import BCOO

    batch, indices = data.shape[:-1], np.stack([structure.rows, structure.columns], axis=-1)
    indices = jnp.broadcast_to(jnp.asarray(indices), (*batch, *indices.shape))
    return BCOO(
        (data, indices), shape=(*batch, *structure.shape), indices_sorted=True, unique_indices=True
    )


def fuses_diagonals(x: Any) -> bool:
    """Whether products by diagonals with vectors like x are one pass over memory here."""
    return jax.default_backend() != "cpu"


def sparse_diagonals(data: Any, structure: Any) -> tuple[jax.Array, ...]:
    """The entries of a sparse matrix of few diagonals as `diagonals_matmul` takes them."""
    offsets, places, bits = structure.diagonals
    if "jax diagonals" not in structure.memo:
        with jax.ensure_compile_time_eval():
            structure.memo["jax diagonals"] = jax.device_put(places)
    values = jnp.zeros(len(offsets) * structure.shape[0], data.dtype)
    values = values.at[structure.memo["jax diagonals"]].set(
        data, unique_indices=True, mode="promise_in_bounds"
    )
    return lay_out(values.reshape(len(offsets), -1), bits)


def _bind(data: Any, X: Any, structure: Any) -> Any:
    return product.bind(data, X, *_indices(structure), structure=structure)


# --------------------------------------------------------------------------------------------------


def _indices(structure: Any) -> tuple[Any, ...]:
    """The layout's arrays on JAX's side: arguments of the primitive, so that they are not
    written into programs as literals."""
    found = structure.memo.get("jax")
    if found is None:
        # concrete arrays even inside a trace, so that they can be kept (by jnp.asarray they would
        # be traced in a linear_transpose)
        with jax.ensure_compile_time_eval():
            found = tuple(map(jax.device_put, _layout(structure)))
        structure.memo["jax"] = found
    return found


def _layout(structure: Any) -> list[Any]:
    """Rows and columns of the entries if they are few. Else for each level its slabs, (pieces,
    width), of places in what is summed (the first level has columns of X before them), an empty
    array, and in the end which sum is which row."""
    if structure.nnz <= SMALL:
        return [structure.rows, structure.columns]
    arrays: list[Any] = []
    starts, total, columns = structure.indptr.astype(np.int64), structure.nnz, structure.columns
    while True:
        counts = np.diff(starts)
        pieces = -(-counts // WIDTH)
        owner = np.repeat(np.arange(len(counts)), pieces)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = starts[owner] + number * WIDTH
        length = np.minimum(counts[owner] - number * WIDTH, WIDTH)
        slab = np.ceil(np.log2(np.maximum(length, 4))).astype(int)  # widths up to 4, 8, 16, 32
        order = np.argsort(slab, kind="stable")
        for kind in np.unique(slab):
            chosen = order[slab[order] == kind]
            within = np.arange(length[chosen].max())
            begin, size = first[chosen, None], length[chosen, None]
            places = np.minimum(begin + within, begin + size - 1)
            if columns is not None:
                # beyond the end the last one again, times zero: no NaN that was not there
                arrays.append(columns[places])
            arrays.append(np.where(within < size, places, total).astype(np.int32))
        where = np.argsort(order)  # of each piece
        arrays.append(np.zeros(0, np.int32))
        if (pieces <= 1).all():
            rows = np.full(len(counts), len(owner))
            rows[owner] = where
            return [*arrays, rows.astype(np.int32)]
        # The pieces of a row are the entries of the next level, in the order in which this one
        # leaves them.
        starts, total, columns = np.concatenate([[0], np.cumsum(pieces)]), len(owner), None
        arrays.append(where.astype(np.int32))


# --------------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="structure")
def _multiplied(data: Any, X: Any, *indices: Any, structure: Any) -> Any:
    m = structure.shape[0]
    if X.ndim == 2 and X.shape[1] == 1:  # without the axis of length one
        return _by_rows(data, X[:, 0], indices, m)[:, None]
    # Rows first: (n, *batch, k).
    return jnp.moveaxis(
        _by_rows(jnp.moveaxis(data, -1, 0)[..., None], jnp.moveaxis(X, -2, 0), indices, m), 0, -2
    )


def _by_rows(data: Any, X: Any, indices: tuple[Any, ...], m: int) -> Any:
    """sum_j data[j] * X[column of j] for the entries j of each row; both with the entries, or
    rows of X, along their first axis."""
    if len(indices) == 2:
        rows, columns = indices
        return jax.ops.segment_sum(data * X[columns], rows, m, indices_are_sorted=True)
    *levels, last = indices
    values, is_first, sums = _with_zero(data), True, []
    waiting = list(levels)
    while waiting:
        part = waiting.pop(0)
        if part.size:
            places = waiting.pop(0) if is_first else part
            # at once: its rows are neighbours in memory, and a loop around us may keep it
            slab = _at(values, places)
            terms = (
                slab[:, j] * _at(X, part[:, j]) if is_first else slab[:, j]
                for j in range(part.shape[1])
            )
            sums.append(functools.reduce(jnp.add, terms))
            continue
        values, sums = jnp.concatenate(sums), []
        if waiting:
            values, is_first = _at(values, waiting.pop(0)), False
        values = _with_zero(values)
    return _at(values, last)


def _with_zero(x: Any) -> Any:
    return jnp.concatenate([x, jnp.zeros((1, *x.shape[1:]), x.dtype)])


def _at(x: Any, places: Any) -> Any:
    return x.at[places].get(mode="promise_in_bounds")


# --------------------------------------------------------------------------------------------------


product.def_impl(_multiplied)


@product.def_abstract_eval
def _shape(data: Any, X: Any, *indices: Any, structure: Any) -> Any:
    batch = np.broadcast_shapes(data.shape[:-1], X.shape[:-2])
    return jax.core.ShapedArray((*batch, structure.shape[0], X.shape[-1]), X.dtype)


mlir.register_lowering(product, mlir.lower_fun(_multiplied, multiple_results=False))


def _derivative(primals: Any, tangents: Any, *, structure: Any) -> Any:
    data, X = primals[:2]
    moved = [None if isinstance(t, ad.Zero) else t for t in tangents[:2]]
    parts = [] if moved[0] is None else [_bind(moved[0], X, structure)]
    parts += [] if moved[1] is None else [_bind(data, moved[1], structure)]
    value = _bind(data, X, structure)
    return value, functools.reduce(jnp.add, parts) if parts else ad.Zero.from_primal_value(value)


ad.primitive_jvps[product] = _derivative


def _transposed(cotangent: Any, data: Any, X: Any, *indices: Any, structure: Any) -> Any:
    """Of A X: A^T G for X, sum_k G[row, k] X[column, k] for the entries."""
    others = (None,) * len(indices)
    if isinstance(cotangent, ad.Zero):
        return (None, None, *others)
    if ad.is_undefined_primal(X):
        flipped = structure.transposed
        found = _bind(jnp.take(data, flipped.order, axis=-1), cotangent, flipped)
        return (None, _summed_to(found, X.aval.shape), *others)
    rows, columns = jnp.asarray(structure.rows), jnp.asarray(structure.columns)
    found = jnp.sum(jnp.take(cotangent, rows, axis=-2) * jnp.take(X, columns, axis=-2), axis=-1)
    return (_summed_to(found, data.aval.shape), None, *others)


ad.primitive_transposes[product] = _transposed


def _summed_to(x: Any, shape: tuple[int, ...]) -> Any:
    """x summed over the axes along which an array of this shape was broadcast."""
    axes = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape)) if have != want)
    return jnp.sum(x, axis=axes, keepdims=True) if axes else x


def _batched(arguments: Any, axes: Any, *, structure: Any) -> Any:
    data, X = (
        x[None] if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arguments[:2], axes[:2])
    )
    return _bind(data, X, structure), 0


batching.primitive_batchers[product] = _batched
