"""Dtypes, arrays in and out, arithmetic, reductions, products, Fourier transforms and random
numbers in NumPy."""

from __future__ import annotations

import builtins
import functools
import math
import mmap
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import BackendError, DeviceError
from ..shared import (
    _lapack,
    _over_batch,
    add_product,
    by_columns,
    diagonal,
    diagonals_matmul,
    extreme_scale,
    fold_in,
    half,
    itself,
    lay_out,
    never,
    pad,
    sparse_diagonals,
    sum_once,
)

# names that mean here what they mean to all
# isort: off
from numpy import (
    abs, all, angle, any, arange, argmax, argsort, asarray, broadcast_to, concat, cos,
    cumsum, einsum, exp, expand_dims, eye, flip, full, imag, isfinite, isnan, log,
    logical_and, logical_not, logical_or, matmul, max, maximum, mean, min,
    minimum, moveaxis, ones, prod, real, reciprocal, result_type, roll, sign, sin, sort,
    sqrt, squeeze, stack, sum, take, take_along_axis, tril, triu, vecdot, where, zeros,
)  # fmt: skip
# isort: on

name = "numpy"
is_functional = False  # whether arrays are never written over, and loops are compiled
hides_values = False  # whether values may be traced, or their derivatives recorded
array_types = (np.ndarray,)

# dtypes
# --------------------------------------------------------------------------------------------------

bfloat16 = None
bool, float16, float32, float64, complex64, complex128 = map(
    np.dtype, "bool float16 float32 float64 complex64 complex128".split()
)


dtype_from = np.dtype  # the dtype of this name ("float32"), or a dtype itself


def dtype_name(dtype: Any) -> str:
    return np.dtype(dtype).name


def is_complex(x: Any) -> builtins.bool:
    """Whether an array or dtype is complex."""
    return (x.dtype if hasattr(x, "dtype") else np.result_type(x)).kind == "c"


def is_floating(x: Any) -> builtins.bool:
    """Whether an array or dtype is real or complex floating, not integer or boolean; long double
    has no linear algebra."""
    return (x.dtype if hasattr(x, "dtype") else np.result_type(x)).char in "efdFD"


def real_dtype(dtype: Any) -> Any:
    return np.finfo(dtype).dtype


def complex_dtype(dtype: Any) -> Any:
    return np.result_type(dtype, np.complex64)


@functools.cache
def eps(dtype: Any) -> float:
    """The distance from 1 to the next number."""
    return float(np.finfo(dtype).eps)


def default_float() -> Any:
    return float64


# arrays
# --------------------------------------------------------------------------------------------------


def astype(x: Any, dtype: Any) -> Any:
    dtype = np.dtype(dtype)
    if x.dtype.kind == "c" and dtype.kind != "c":
        raise TypeError(f"astype: {x.dtype} would lose its imaginary part in {dtype}: xp.real")
    return x.astype(dtype, copy=False)


def device_of(x: Any) -> str:
    return "cpu"


def device_memory(device: Any, free: Any = False) -> float:
    """Bytes of the memory of a device, or of what is free of it, infinity where that is not
    known."""
    return float("inf")


def device_name(device: Any) -> str:
    """What a device is called, empty where that is not known."""
    return ""


def to_device(x: Any, device: Any) -> Any:
    if device is not None and str(device) != "cpu":
        raise DeviceError(
            f"NumPy arrays live on the cpu, not on {device}. Use A.to(backend='torch' or 'jax', "
            "device=...)."
        )
    return x


to_numpy, copy = np.asarray, np.array


LARGE_BYTES = 2**24  # of a file that is mapped into memory, from which it is not copied unasked


def is_mapped(x: Any) -> builtins.bool:
    """Whether an array of more than `LARGE_BYTES` lies in a file."""
    if not isinstance(x, np.ndarray) or x.nbytes <= LARGE_BYTES:
        return False
    while isinstance(x, np.ndarray):
        if isinstance(x, np.memmap):
            return True
        x = x.base
    return isinstance(x, mmap.mmap) or isinstance(getattr(x, "obj", None), mmap.mmap)


def own(x: Any, lenders: Any) -> np.ndarray:
    """`x` as an array that can be written to without changing one of the arrays in `lenders`:
    copied if need be."""
    if x.flags.writeable and not builtins.any(
        isinstance(y, np.ndarray) and np.may_share_memory(x, y) for y in lenders
    ):
        return x
    return np.array(x)


# Values are on the host, can be seen, and have no derivatives.
peek = staged = itself
fetch = list
is_on_device = is_traced = is_differentiated = is_compiling = fuses_diagonals = never


# arithmetic and products
# --------------------------------------------------------------------------------------------------


matrix_transpose = operator.attrgetter("mT")  # numpy's own goes by three functions


def reshape(x: Any, shape: Any) -> Any:
    return x.reshape(shape)  # as does this one


def conj(x: Any) -> Any:
    return np.conj(x) if np.iscomplexobj(x) else x  # numpy.conj copies real arrays


def make_diagonal(d: Any) -> np.ndarray:
    """The diagonal matrices, (..., n) -> (..., n, n)."""
    n = d.shape[-1]
    out = np.zeros((*d.shape, n), d.dtype)
    out.reshape(*d.shape[:-1], n * n)[..., :: n + 1] = d
    return out


def axpy(a: Any, x: Any, y: Any) -> Any:
    """y + a x for vectors, written over y (which must be contiguous) where the framework can."""
    return _lapack("axpy", y.dtype.char, "blas")(x, y, a=a)


def xpby(x: Any, b: Any, y: Any) -> Any:
    """x + b y for vectors, written over y where the framework can."""
    y *= b
    y += x
    return y


# of a block, which stay in the processor's cache: new arrays of its size cost ten times the
# arithmetic
_ROWS = 1024


def three_term(W: Any, a: Any, U: Any, b: Any, V: Any) -> Any:
    """W - U diag(a) - V diag(b) for blocks of columns, (..., n, k) and (..., k), written over V
    where the framework can."""
    if V.ndim > 2:
        V *= -b[..., None, :]
        V += W
        V -= U * a[..., None, :]
        return V
    scratch = np.empty((builtins.min(_ROWS, len(V)), V.shape[-1]), V.dtype)
    for start in range(0, len(V), _ROWS):
        rows = slice(start, start + _ROWS)
        v = V[rows]
        v *= -b
        v += W[rows]
        v -= np.multiply(U[rows], a, out=scratch[: len(v)])
    return V


def column_dot(X: Any, Y: Any) -> Any:
    """x^H y for each pair of columns, (..., k)."""
    if X.ndim == Y.ndim == 2 and X.flags.f_contiguous:  # columns side by side
        return vecdot(X.T, Y.T)
    return np.einsum("...ik,...ik->...k", conj(X), Y)


def inner_products(X: Any, Y: Any, weights: Any = None) -> Any:
    """X^H Y or, with weights w (..., n), X^H diag(w) Y; no array of the size of Y is made where the
    framework can do without."""
    if weights is not None:
        if X.nbytes > LARGE_BYTES and X.ndim == 2 == Y.ndim and weights.ndim == 1:
            return _inner_products_by_rows(X, Y, weights)
        is_symmetric = X is Y and weights.size and weights.dtype.kind == "f" and weights.min() > 0
        if is_symmetric:  # as BLAS then knows, which saves half of the work
            X = Y = X * np.sqrt(weights)[..., None]
        else:
            Y = Y * weights[..., None]
    if X.nbytes > LARGE_BYTES and X.ndim == 2 == Y.ndim and _is_copied(X, Y):
        return _inner_products_by_rows(X, Y)
    return np.matmul(conj(np.swapaxes(X, -1, -2)), Y)


def _is_copied(X: np.ndarray, Y: np.ndarray) -> builtins.bool:
    """Whether BLAS would be given a copy of X or Y."""
    return X.dtype != Y.dtype or X.dtype.kind == "c" or not (X.flags.forc and Y.flags.forc)


def _inner_products_by_rows(X: np.ndarray, Y: np.ndarray, weights: Any = None) -> np.ndarray:
    """X^H diag(w) Y of matrices so long that nothing of their size is made."""
    dtype = np.result_type(X, Y)
    found = np.zeros((X.shape[-1], Y.shape[-1]), dtype)
    step = builtins.max(1, LARGE_BYTES // (4 * dtype.itemsize * builtins.max(1, X.shape[-1])))
    for i in range(0, len(X), step):
        rows = slice(i, i + step)
        block = Y[rows] if weights is None else Y[rows] * weights[rows, None]
        found += np.matmul(np.conj(X[rows].T).astype(dtype, copy=False), block)
    return found


def dot_real(x: Any, y: Any) -> Any:
    """The real part of x^H y for vectors: a number of Python's where values can be seen."""
    return float(x.dot(y)) if x.dtype.kind == "f" else float(np.vdot(x, y).real)


def rough_norm(x: Any, axis: Any, order: float = 2) -> Any:
    """|x| along axes, by squares which may vanish or overflow."""
    return np.linalg.vector_norm(x, axis=axis, ord=order)


def vector_norm(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> Any:
    """|x|. Where its square would vanish or overflow it is taken of x divided by its largest entry."""
    with np.errstate(over="ignore"):
        size = np.linalg.vector_norm(x, axis=axis, keepdims=keepdims)
    low = _least_norm(size.dtype)
    if 0 in x.shape or (low < size.min() and size.max() < np.inf):
        return size
    scale = extreme_scale(x, axis, np.finfo(size.dtype))
    norm = scale * np.linalg.vector_norm(x / scale, axis=axis, keepdims=True)
    return norm.reshape(size.shape)[()]


@functools.cache
def _least_norm(dtype: Any) -> float:
    """The norm from which squares are exact enough: what they lose below the least number is
    less than eps."""
    return float(np.sqrt(np.finfo(dtype).tiny / np.finfo(dtype).eps, dtype=np.float64))


fft, ifft, fftn, ifftn, rfftn, irfftn = (
    half(getattr(np.fft, transform)) for transform in "fft ifft fftn ifftn rfftn irfftn".split()
)


# sparse and scattered
# ----------------------------------------------------------------------------------------------


@half
def sparse_matmul(data: Any, structure: Any, X: Any) -> np.ndarray:
    """Multiply by the sparse matrix of these entries: data (*batch, nnz), X (*batch, n, k) ->
    (*batch, m, k)."""
    if data.ndim == 1 and X.ndim == 2 and X.flags.f_contiguous and not X.flags.c_contiguous:
        matrix = _csr(data, structure)  # SciPy would copy the columns into rows
        return np.array([matrix @ x for x in X.T]).T
    # a vector too, which SciPy multiplies faster than a block of one
    if data.ndim == 1 and X.ndim <= 2:
        return _csr(data, structure) @ X
    if data.ndim == 1:
        return by_columns(_csr(data, structure).__matmul__, X)
    return _over_batch(1, 2)(lambda data, X: _csr(data, structure) @ X)(data, X)


def _csr(data: Any, structure: Any) -> Any:
    """A SciPy matrix of these entries. Its constructor checks the indices, at 30 us: a copy of
    one that passed does not."""
    if "scipy" not in structure.memo:
        import scipy.sparse

        indices = structure.columns, structure.indptr
        structure.memo["scipy"] = scipy.sparse.csr_array(
            (np.zeros(len(indices[0])), *indices), shape=structure.shape
        )
    template = structure.memo["scipy"]
    matrix = object.__new__(type(template))
    matrix.__dict__.update(template.__dict__, data=data)
    return matrix


def sparse_array(data: Any, structure: Any) -> Any:
    """The matrix in the framework's own format: SciPy's CSR."""
    if data.ndim > 1:
        raise BackendError(
            f"SciPy has no batches of sparse matrices; this one has batch shape {data.shape[:-1]}."
        )
    return _csr(data, structure).copy()  # the indices that we keep are read-only


def scatter_add(x: Any, index: Any, values: Any, axis: int = 0) -> np.ndarray:
    """Add `values[..., i, ...]` to `x[..., index[i], ...]`; indices that repeat add up."""
    out, shape = np.array(x, np.result_type(x, values)), list(x.shape)
    shape[axis] = len(index)
    values = np.broadcast_to(values, shape)
    np.add.at(np.moveaxis(out, axis, 0), index, np.moveaxis(values, axis, 0))
    return out


def set_at(x: Any, key: Any, values: Any) -> np.ndarray:
    """A copy of `x` in which `x[key]` is `values`."""
    out = np.array(x)
    out[key] = values
    return out


# random
# --------------------------------------------------------------------------------------------------


def generator(seed: Any) -> np.random.Generator:
    """A source of random numbers from an integer, a NumPy or torch generator, or a JAX key. A
    generator is drawn from, so it moves on."""
    if isinstance(seed, np.random.RandomState):
        return np.random.Generator(seed._bit_generator)  # the same stream of bits
    if hasattr(seed, "initial_seed"):  # torch.Generator
        import torch

        seed = int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
    elif type(seed).__module__.startswith("jax"):
        import jax

        is_key = jax.dtypes.issubdtype(seed.dtype, jax.dtypes.prng_key)
        seed = np.asarray(jax.random.key_data(seed) if is_key else seed).ravel()
    return np.random.default_rng(seed)


def split(gen: np.random.Generator, n: int = 2) -> list[np.random.Generator]:
    """`n` independent generators."""
    return gen.spawn(n)


def _draw(
    draw: Callable,
    scale: float,
    gen: np.random.Generator,
    shape: Any,
    dtype: Any = float64,
    device: Any = None,
) -> np.ndarray:
    if np.dtype(dtype).kind != "c":
        return np.asarray(draw(gen, shape)).astype(dtype, copy=False)
    return np.asarray(scale * (draw(gen, shape) + 1j * draw(gen, shape))).astype(dtype)


# Standard normal numbers, of which complex ones have E|z|^2 = 1; and uniform numbers in [0, 1), or
# in the unit square if complex.
normal = functools.partial(_draw, np.random.Generator.standard_normal, math.sqrt(0.5))
uniform = functools.partial(_draw, np.random.Generator.random, 1.0)


def rademacher(
    gen: np.random.Generator, shape: Any, dtype: Any = float64, device: Any = None
) -> np.ndarray:
    """Signs, +1 or -1; if complex, 1, i, -1 or -i."""
    if np.dtype(dtype).kind != "c":  # from single bits: a twentieth of the time of integers
        size = math.prod(shape)
        octets = np.frombuffer(gen.bytes(-(-size // 8)), np.uint8)
        signs = np.unpackbits(octets, count=size).astype(dtype)
        signs *= 2
        signs -= 1
        return signs.reshape(shape)
    return np.array([1, 1j, -1, -1j], dtype)[gen.integers(0, 4, shape)]
