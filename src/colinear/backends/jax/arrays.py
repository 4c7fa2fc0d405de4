"""Dtypes, arrays in and out, arithmetic, reductions, products, Fourier transforms and random
numbers in JAX."""

from __future__ import annotations

import builtins
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from .. import Norm
from ..shared import (
    LENT_DTYPES,
    add_product,
    diagonal,
    extreme_scale,
    fft,
    half,
    ifft,
    itself,
    pad,
    sum_once,
)
from ..shared import never as is_compiling
from .mesh import MESHES, is_explicit, is_spread, layout_on, mesh_of, move_to, place_of, whole

# names that mean here what they mean to all
# isort: off
from jax.numpy import (
    abs, all, angle, any, argmax, argsort, broadcast_to, concat, conj, cos, cumsum,
    exp, expand_dims, flip, imag, isfinite, isnan, log, logical_and, logical_not, logical_or,
    matrix_transpose, max, maximum, mean, min, minimum, moveaxis, prod, real,
    reciprocal, reshape, result_type, roll, sign, sin, sort, sqrt, squeeze, stack, sum,
    take_along_axis, tril, triu, where,
)  # fmt: skip
# isort: on

name = "jax"
is_functional = True  # whether arrays are never written over, and loops are compiled
hides_values = True  # whether values may be traced, or their derivatives recorded
array_types = (jax.Array, jax.core.Tracer)  # issubclass(Tracer, jax.Array) is False

# dtypes
# --------------------------------------------------------------------------------------------------

bool, float16, bfloat16, float32, float64, complex64, complex128 = map(
    jnp.dtype, "bool float16 bfloat16 float32 float64 complex64 complex128".split()
)


def dtype_from(dtype: Any) -> Any:
    """The dtype called `dtype` ("float32"), or `dtype` itself; 32-bit for 64-bit ones where JAX
    has these switched off."""
    return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))


def dtype_name(dtype: Any) -> str:
    return jnp.dtype(dtype).name


def is_complex(x: Any) -> builtins.bool:
    """Whether an array or dtype is complex."""
    dtype = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
    return jnp.issubdtype(dtype, jnp.complexfloating)


def is_floating(x: Any) -> builtins.bool:
    """Whether an array or dtype is real or complex floating, not integer or boolean."""
    dtype = x.dtype if hasattr(x, "dtype") else jnp.result_type(x)
    return jnp.issubdtype(dtype, jnp.inexact)


def real_dtype(dtype: Any) -> Any:
    return jnp.finfo(dtype).dtype


def complex_dtype(dtype: Any) -> Any:
    return jnp.promote_types(dtype, jnp.complex64)


def eps(dtype: Any) -> float:
    """The distance from 1 to the next number."""
    return float(jnp.finfo(dtype).eps)


def default_float() -> Any:
    return dtype_from(jnp.float64)


# arrays
# --------------------------------------------------------------------------------------------------


def asarray(x: Any, dtype: Any = None, device: Any = None) -> jax.Array:
    # an explicit float64 warns where 64 bits are switched off
    dtype = None if dtype is None else dtype_from(dtype)
    device = layout_on(device) if type(device) in MESHES else device
    if isinstance(x, np.ndarray):  # jnp.asarray would compile a program for its shape
        with jax.ensure_compile_time_eval():  # a constant, whose values rules can see
            return jax.device_put(np.array(x, dtype), device)
    return jnp.asarray(x, dtype, device=device)


def adopt(x: np.ndarray, device: Any) -> jax.Array:
    """NumPy's array as JAX's, with its memory: no one else may write to it."""
    return jax.device_put(np.asarray(x), layout_on(device))


def astype(x: Any, dtype: Any) -> jax.Array:
    if x.dtype == dtype and not getattr(x, "weak_type", False):
        return x
    dtype = dtype_from(dtype)
    if is_complex(x) and not is_complex(dtype):
        raise TypeError(f"astype: {x.dtype} would lose its imaginary part in {dtype}: xp.real")
    return x.astype(dtype)


def _placed(create: Callable) -> Callable:
    """A function that makes arrays, of a dtype or its name, on a device or on a mesh."""

    @functools.wraps(create)
    def placed(*values: Any, dtype: Any = None, device: Any = None) -> jax.Array:
        device = layout_on(device) if type(device) in MESHES else device
        return create(*values, dtype=None if dtype is None else dtype_from(dtype), device=device)

    return placed


zeros, ones, full, arange = (
    _placed(create) for create in (jnp.zeros, jnp.ones, jnp.full, jnp.arange)
)

SMALL_CONSTANT = 32  # rows of an identity that a program holds instead of computing it


def eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None) -> jax.Array:
    make = jnp.eye if n > SMALL_CONSTANT else np.eye
    dtype = default_float() if dtype is None else dtype_from(dtype)
    device = layout_on(device) if type(device) in MESHES else device
    return jnp.asarray(make(n, m, dtype=dtype), device=device)


def device_of(x: Any) -> Any:
    """The device of an array, or the mesh over which it is spread; None under tracing, where JAX
    decides, but for a mesh with explicit axes, which is part of the type."""
    if isinstance(x, jax.core.Tracer):
        mesh = getattr(getattr(x.aval, "sharding", None), "mesh", None)
        return mesh if mesh is not None and mesh.axis_names and is_explicit(mesh) else None
    device = getattr(x, "device", None)
    return place_of(device) if isinstance(device, jax.sharding.Sharding) else device


def device_memory(device: Any, free: Any = False) -> float:
    """Bytes of the memory of a device, or of each device of a mesh, or of what is free of it;
    infinity where that is not known."""
    device = device.local_devices[0] if type(device) is Mesh else device
    stats = device.memory_stats() or {}
    return float(stats.get("bytes_limit", "inf")) - (stats.get("bytes_in_use", 0) if free else 0)


def device_name(device: Any) -> str:
    """What a device is called, empty where that is not known."""
    return str(getattr(device, "device_kind", ""))


def to_device(x: Any, device: Any) -> jax.Array:
    if device is None:
        return x
    if isinstance(device, str):  # "cpu", "gpu", "gpu:1"
        kind, _, number = device.partition(":")
        device = jax.devices(kind)[int(number or 0)]
    return move_to(x, device) if type(device) in MESHES else jax.device_put(x, device)


def to_numpy(x: Any) -> np.ndarray:
    return np.asarray(
        whole(x), np.float32 if x.dtype == bfloat16 else None
    )  # NumPy has no bfloat16


HOST_DTYPES = frozenset(map(np.dtype, LENT_DTYPES))


def may_lend(context: Any) -> builtins.bool:
    """Whether NumPy may compute for JAX: what is traced is on no device yet, and what is spread
    over a mesh stays there."""
    return context.device is not None and type(context.device) not in MESHES


def lend(x: Any, dtype: Any, device: Any) -> np.ndarray | None:
    """x as NumPy computes with it where it lies; None if its values are not known, or not in the
    memory of this process, or on another device than this one, or of a dtype for which NumPy has
    no fast arithmetic."""
    if (
        isinstance(x, jax.core.Tracer)
        or x.dtype not in HOST_DTYPES
        or getattr(x.device, "platform", None) != "cpu"
        or (device is not None and x.device != device)
    ):
        return None
    return np.asarray(x)


host_dtype = itself  # JAX has NumPy's dtypes


def usual_device() -> Any:
    """The device where JAX puts new arrays."""
    return jax.config.jax_default_device or jax.devices()[0]


copy = jnp.array


def own(x: Any, lenders: Any) -> jax.Array:
    """`x` itself: JAX's arrays cannot be written to."""
    return x


HOSTS = frozenset({"cpu"})  # the platforms of which a look at values waits for nothing


def is_on_device(x: Any) -> builtins.bool:
    """Whether x is on a device, for which a look at its values must wait, or on several."""
    if isinstance(x, jax.core.Tracer):
        return False
    return is_spread(x) or next(iter(x.devices())).platform not in HOSTS


def fetch(arrays: Any) -> list[np.ndarray]:
    """The values of several arrays on the host, or of their norms, all of which are on their way
    before one is waited for."""
    arrays = [rough_norm(*x) if type(x) is Norm else x for x in arrays]
    return [whole(x) for x in arrays] if is_spread(arrays[0]) else jax.device_get(arrays)


def peek(x: Any) -> Any:
    """The value as a NumPy array if it can be seen now without cost (not traced, not on a GPU),
    else None."""
    if not isinstance(x, array_types):
        return x
    return None if isinstance(x, jax.core.Tracer) or is_on_device(x) else np.asarray(x)


def is_traced(x: Any) -> builtins.bool:
    """Whether values cannot be seen: under jit, grad, vmap."""
    return isinstance(x, jax.core.Tracer)


def staged(x: Any) -> jax.Array:
    """`x`, but a traced copy inside a program that closes over it: JAX traces what is computed
    there, even from values that can be seen, and who asks `is_traced` of a copy knows it."""
    if isinstance(x, jax.core.Tracer) or not isinstance(
        jax.lax.neg(np.float32(0)), jax.core.Tracer
    ):
        return x
    return jnp.copy(x)


def is_differentiated(*arrays: Any) -> builtins.bool:
    """Whether derivatives of what is computed from these may be recorded."""
    for x in arrays:
        if isinstance(x, jax.core.Tracer):
            return True
    return False


# arithmetic and products
# --------------------------------------------------------------------------------------------------


def take(x: Any, indices: Any, axis: int = 0) -> jax.Array:
    return jnp.take(x, jnp.asarray(indices), axis=axis)  # jnp.take refuses lists


def make_diagonal(d: Any) -> jax.Array:
    """The diagonal matrices, (..., n) -> (..., n, n)."""
    n = d.shape[-1]
    return jnp.where(jnp.eye(n, dtype=bool), d[..., None], jnp.zeros((), d.dtype))


# XLA multiplies float32 in TensorFloat-32 (ten bits) on GPUs unless told otherwise, which no
# tolerance of ours survives.
matmul = functools.partial(jnp.matmul, precision="highest")
einsum = functools.partial(jnp.einsum, precision="highest")


def vecdot(x: Any, y: Any, axis: int = -1) -> jax.Array:
    """The inner products sum(conj(x) * y) along an axis."""
    if x.shape == y.shape and x.ndim and 0 < x.size == x.shape[axis] and x.dtype.itemsize > 2:
        # Of two vectors, a dot: XLA does not vectorise its sums on a CPU, which made a step of CG
        # half as slow again.
        return jnp.vdot(x, y, precision="highest").reshape((1,) * (x.ndim - 1))
    return jnp.sum(jnp.conj(x) * y, axis=axis)


@functools.partial(jax.jit, static_argnums=(1, 2))
def rough_norm(x: Any, axis: Any, order: float = 2) -> jax.Array:
    """|x| along axes, by squares which may vanish or overflow."""
    if order != 2:
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(x), axis=axis)
    return jnp.sqrt(jnp.sum(jnp.real(x * jnp.conj(x)), axis=axis))


@functools.partial(jax.jit, static_argnames=("axis", "keepdims"), inline=True)
def vector_norm(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> jax.Array:
    """|x|, of x divided by its largest entry, since its square may vanish or overflow.

    Its derivative at x = 0 is zero, as in torch; JAX's own is NaN there. JAX's own (0.4.35), along
    two axes, is the largest singular value. One program, of whose dozen operations each would be
    compiled for each shape.
    """
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis=axis, keepdims=True, initial=0)
    scale = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)
    parts = x / scale.astype(x.dtype)
    if isinstance(axis, int) and 0 < x.size == x.shape[axis]:  # one dot, not a tree of sums
        square = jnp.real(vecdot(parts, parts, axis)).reshape(scale.shape)
    else:
        square = jnp.sum(jnp.real(parts * jnp.conj(parts)), axis=axis, keepdims=True)
    is_zero = largest == 0
    norm = scale * jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, square)))
    return norm if keepdims else jnp.squeeze(norm, axis)


# scattered
# --------------------------------------------------------------------------------------------------


def scatter_add(x: Any, index: Any, values: Any, axis: int = 0) -> jax.Array:
    """Add `values[..., i, ...]` to `x[..., index[i], ...]`; indices that repeat add up."""
    x = x.astype(jnp.result_type(x, values))
    return x.at[(slice(None),) * (axis % x.ndim) + (jnp.asarray(index),)].add(values)


def set_at(x: Any, key: Any, values: Any) -> jax.Array:
    """A copy of `x` in which `x[key]` is `values`."""
    return x.at[key].set(values)


# random
# --------------------------------------------------------------------------------------------------


def generator(seed: Any) -> Any:
    """A key from an integer, a key, or a NumPy or torch generator. A key used twice gives the
    same numbers: split it."""
    if isinstance(seed, array_types) and (
        seed.ndim > 0 or jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
    ):
        return seed
    if not isinstance(seed, int | np.integer | jax.Array | jax.core.Tracer):
        from colinear.backends import numpy

        seed = int(numpy.generator(seed).integers(2**31))
    return jax.random.key(seed)


split = jax.random.split  # independent keys, two or as many as are asked for
fold_in = jax.random.fold_in  # the source of the i-th block of numbers: a key of its own


def _drawn(draw: Callable) -> Callable:
    """`draw(gen, shape, dtype)` of any shape and dtype, on a device."""

    @functools.wraps(draw)
    def drawn(gen: Any, shape: Any, dtype: Any = jnp.float64, device: Any = None) -> jax.Array:
        return to_device(draw(gen, tuple(shape), dtype_from(dtype)), device)

    return drawn


normal = _drawn(jax.random.normal)  # standard; complex numbers have E|z|^2 = 1


@functools.partial(jax.jit, static_argnums=(1, 2))
def _signs(gen: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Signs from single bits: a tenth of the time of JAX's, which draws 32 for each."""
    size = math.prod(shape)
    words = jax.random.bits(gen, (-(-size // 32),), "uint32")
    bits = (words[:, None] >> jnp.arange(32, dtype="uint32")) & 1
    return (1 - 2 * bits.reshape(-1)[:size].astype(dtype)).reshape(shape)


@_drawn
def rademacher(gen: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Signs, +1 or -1; if complex, 1, i, -1 or -i."""
    if not is_complex(dtype):
        return _signs(gen, shape, dtype)
    values = jnp.array([1, 1j, -1, -1j], dtype)
    return values[jax.random.randint(gen, shape, 0, len(values))]


@_drawn
def uniform(gen: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Uniform numbers in [0, 1), or in the unit square if complex."""
    if is_complex(dtype):
        return jax.lax.complex(*jax.random.uniform(gen, (2, *shape), real_dtype(dtype)))
    return jax.random.uniform(gen, shape, dtype)


def axpy(a: Any, x: Any, y: Any) -> jax.Array:
    """y + a x for vectors, written over y where the framework can."""
    return y + a * x


def xpby(x: Any, b: Any, y: Any) -> jax.Array:
    """x + b y for vectors, written over y where the framework can."""
    return x + b * y


def three_term(W: Any, a: Any, U: Any, b: Any, V: Any) -> Any:
    """W - U diag(a) - V diag(b) for blocks of columns, (..., n, k) and (..., k), written over V
    where the framework can."""
    return W - U * a[..., None, :] - V * b[..., None, :]


def column_dot(X: Any, Y: Any) -> jax.Array:
    """x^H y for each pair of columns, (..., k)."""
    # a fourth less time than a sum of products, on a processor
    return jnp.einsum("...ik,...ik->...k", jnp.conj(X), Y)


def inner_products(X: Any, Y: Any, weights: Any = None) -> jax.Array:
    """X^H Y or, with weights w (..., n), X^H diag(w) Y; no array of the size of Y is made where the
    framework can do without."""
    if weights is not None:
        if X.ndim == Y.ndim == 2 and weights.ndim == 1 and Y.size >= LARGE_PRODUCT:
            return _weighted_products(X, Y, weights)
        Y = weights[..., None] * Y
    if Y.shape[-1] == 1:  # XLA copies the transpose of a matrix that multiplies one vector
        return _adjoint(matmul(_adjoint(Y), X))
    return matmul(_adjoint(X), Y)


def _adjoint(X: Any) -> jax.Array:
    return jnp.conj(jnp.swapaxes(X, -1, -2))


LARGE_PRODUCT = 1 << 20  # entries from which on rows are weighted in blocks, which stay in a cache
BLOCK_ROWS = 1 << 10


@jax.custom_jvp
def _weighted_products(X: Any, Y: Any, w: Any) -> jax.Array:
    """X^H diag(w) Y by blocks of rows."""
    whole = Y.shape[0] // BLOCK_ROWS
    rest = slice(whole * BLOCK_ROWS, None)
    product = lambda X, Y, w: matmul(_adjoint(X), w[:, None] * Y)

    def step(i: Any, total: Any) -> Any:
        rows = [jax.lax.dynamic_slice_in_dim(Z, i * BLOCK_ROWS, BLOCK_ROWS) for Z in (X, Y, w)]
        return total + product(*rows)

    return jax.lax.fori_loop(0, whole, step, product(X[rest], Y[rest], w[rest]))


@_weighted_products.defjvp
def _weighted_products_jvp(primals: Any, tangents: Any) -> Any:
    (X, Y, w), (dX, dY, dw) = primals, tangents
    change = matmul(_adjoint(dX), w[:, None] * Y)
    change = change + matmul(_adjoint(X), dw[:, None] * Y + w[:, None] * dY)
    return _weighted_products(X, Y, w), change


def dot_real(x: Any, y: Any) -> jax.Array:
    """The real part of x^H y for vectors: a number of Python's where values can be seen."""
    return jnp.vdot(x, y).real
