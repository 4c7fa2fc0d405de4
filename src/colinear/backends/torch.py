"""The PyTorch backend. Linear algebra stands in `_torch_linalg.py`, custom derivatives in `_torch_derivatives.py`."""

from __future__ import annotations

import builtins
import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree  # torch has no public name for it
import torch.utils.checkpoint
from torch._C import _functorch  # nor for asking whether a transform of torch.func is at work

from colinear.backends._half import through_single
from colinear.backends._torch_closures import hoist
from colinear.backends._torch_compile import sides_are_known
from colinear.backends._torch_derivatives import custom_derivative, is_differentiated, linear_rule, linearise, recorded_vjp
from colinear.backends._torch_linalg import (
    cholesky,
    cholesky_inverse,
    cholesky_solve,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    expm,
    ldl_factor,
    ldl_slogdet,
    ldl_solve,
    lu_factor,
    lu_permutation,
    lu_solve,
    qr,
    qr_pivoted,
    qr_triangle,
    solve_banded,
    solve_triangular,
    solve_tridiagonal,
    svd,
)
from colinear.backends._torch_opaque import CALLS, Call, call_opaquely
from colinear.backends._torch_sparse import sparse_array, sparse_matmul

name = "torch"
is_functional = False  # whether arrays are never written over, and loops are compiled
array_types = (torch.Tensor,)

# dtypes ------------------------------------------------------------------------------------------------------------

bool = torch.bool
float16, bfloat16, float32, float64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
complex64, complex128 = torch.complex64, torch.complex128


def dtype_from(dtype: Any) -> torch.dtype:
    """The dtype called `dtype` ("float32", or NumPy's), or `dtype` itself."""
    if isinstance(dtype, torch.dtype):
        return dtype
    return getattr(torch, dtype if isinstance(dtype, str) else np.dtype(dtype).name)


def dtype_name(dtype: Any) -> str:
    return str(dtype_from(dtype)).removeprefix("torch.")


def result_type(*values: Any) -> torch.dtype:
    """The dtype of a sum of these tensors, dtypes and scalars; as in torch, those without dimensions count less, numbers least.

    Not `torch.result_type`: that takes two operands, and torch.compile cannot trace what returns a dtype.
    """
    full = flat = number = None
    for value in values:
        if isinstance(value, torch.dtype) or (isinstance(value, torch.Tensor) and value.ndim > 0):
            full = _promote(full, value if isinstance(value, torch.dtype) else value.dtype)
        elif isinstance(value, torch.Tensor):
            flat = _promote(flat, value.dtype)
        elif isinstance(value, builtins.bool | int | float | complex):
            number = _promote(number, _dtype_of_number(value))
        else:
            full = _promote(full, dtype_from(getattr(value, "dtype", value)))
    return _outrank(full, _outrank(flat, number))


def _promote(x: torch.dtype | None, y: torch.dtype) -> torch.dtype:
    return y if x is None or x is y else torch.promote_types(x, y)


def _outrank(higher: torch.dtype | None, lower: torch.dtype | None) -> Any:
    """The lower only matters where it is of a higher kind (integer, real, complex), and then for its kind alone if it can."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return complex_dtype(higher)
    return torch.promote_types(higher, lower) if higher is bool or lower.is_floating_point or lower.is_complex else higher


def _dtype_of_number(x: Any) -> torch.dtype:
    if isinstance(x, builtins.bool):
        return bool
    if isinstance(x, int):
        return torch.int64
    return torch.get_default_dtype() if isinstance(x, float) else complex_dtype(torch.get_default_dtype())


def _dtype(x: Any) -> torch.dtype:
    return x if isinstance(x, torch.dtype) else x.dtype if isinstance(x, torch.Tensor) else result_type(x)


def is_complex(x: Any) -> builtins.bool:
    """Whether a tensor or dtype is complex."""
    return x.dtype.is_complex if isinstance(x, torch.Tensor) else _dtype(x).is_complex


def is_floating(x: Any) -> builtins.bool:
    """Whether a tensor or dtype is real or complex floating, not integer or boolean."""
    dtype = x.dtype if isinstance(x, torch.Tensor) else _dtype(x)
    return dtype.is_floating_point or dtype.is_complex


_REAL_OF = {torch.complex32: float16, complex64: float32, complex128: float64}


def real_dtype(dtype: Any) -> torch.dtype:
    return _REAL_OF.get(dtype_from(dtype), dtype_from(dtype))  # not to_real(): Dynamo (2.13) does not trace it


def complex_dtype(dtype: Any) -> torch.dtype:
    return torch.promote_types(dtype_from(dtype), complex64)  # not to_complex(): complex32 has no linear algebra


def eps(dtype: Any) -> float:
    """The distance from 1 to the next number."""
    return torch.finfo(dtype_from(dtype)).eps


def default_float() -> torch.dtype:
    return torch.get_default_dtype()


# arrays ------------------------------------------------------------------------------------------------------------


def asarray(x: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    dtype = None if dtype is None else dtype_from(dtype)
    if not isinstance(x, torch.Tensor | int | float | complex | list | tuple):
        x = np.asarray(x)
        is_eager = not torch.compiler.is_compiling()  # dynamo knows neither flags nor strides, and needs no copy
        if is_eager and (not x.flags.writeable or builtins.any(stride < 0 for stride in x.strides)):
            x = x.copy()  # torch warns about the one and refuses the other
    return torch.as_tensor(x, dtype=dtype, device=device)


def astype(x: Any, dtype: Any) -> torch.Tensor:
    dtype = dtype_from(dtype)
    if x.is_complex() and not dtype.is_complex:
        x = x.real  # torch warns that it discards the imaginary part
    return x.to(dtype)


def zeros(shape: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype and dtype_from(dtype), device=device)


def ones(shape: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype and dtype_from(dtype), device=device)


def full(shape: Any, value: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    if isinstance(value, torch.Tensor):
        return value.to(dtype=dtype and dtype_from(dtype), device=device).expand(shape).clone()
    return torch.full(shape, value, dtype=dtype and dtype_from(dtype), device=device)


def eye(n: int, m: int | None = None, dtype: Any = None, device: Any = None) -> torch.Tensor:
    return torch.eye(n, n if m is None else m, dtype=dtype and dtype_from(dtype), device=device)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, device: Any = None) -> torch.Tensor:
    start, stop = (0, start) if stop is None else (start, stop)
    return torch.arange(start, stop, step, dtype=dtype and dtype_from(dtype), device=device)


def device_of(x: Any) -> torch.device:
    return x.device


def to_device(x: Any, device: Any) -> torch.Tensor:
    return x if device is None else x.to(device)


def to_numpy(x: Any) -> np.ndarray:
    if _functorch.is_functorch_wrapped_tensor(x):
        x = _values(x)  # inside torch.func.grad or jvp
        assert x is not None, "the values of this tensor cannot be seen here"
    with torch._C._DisableFuncTorch():  # under a transformation the result of any operation would be wrapped again
        x = x.detach()
        return (x.float() if x.dtype == bfloat16 else x).numpy(force=True)  # NumPy has no bfloat16


def copy(x: Any) -> torch.Tensor:
    return x.clone()


def own(x: torch.Tensor, lenders: Any) -> torch.Tensor:
    """`x` as a tensor that can be written to without changing one of the tensors in `lenders`: cloned if need be."""
    tensors = [y for y in lenders if isinstance(y, torch.Tensor)]
    shared = builtins.any(y is x or (_memory(y) is not None and _memory(y) == _memory(x)) for y in tensors)
    return x.clone() if shared else x


def _memory(x: torch.Tensor) -> int | None:
    """Where the numbers of a tensor are stored; None under a transformation, where nothing is written in place."""
    try:
        return None if torch.compiler.is_compiling() else x.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a wrapper of torch.func, a sparse tensor
        return None


def _values(x: Any) -> Any:
    """The tensor inside the wrappers of torch.func.grad and jvp, which have values; None if vmap or a trace hides them."""
    if torch.compiler.is_compiling():
        return None
    while _functorch.is_functorch_wrapped_tensor(x):
        if not _functorch.is_gradtrackingtensor(x):
            return None
        x = _functorch.get_unwrapped(x)
    return None if x.is_meta or _is_fake(x) else x


def _is_fake(x: torch.Tensor) -> builtins.bool:
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        return False
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(x, FakeTensor | FunctionalTensor)


def peek(x: Any) -> Any:
    """The value as a NumPy array if it can be seen now without cost (not traced, not on a GPU), else None."""
    if not isinstance(x, torch.Tensor):
        return x
    x = _values(x)
    return None if x is None or x.device.type != "cpu" or x.layout != torch.strided else to_numpy(x)


def is_traced(x: Any) -> builtins.bool:
    """Whether values cannot be seen: under vmap, fake or meta tensors, and torch.compile."""
    return isinstance(x, torch.Tensor) and _values(x) is None


def staged(x: Any) -> Any:
    """`x` itself: what is computed from values that can be seen can be seen too."""
    return x


def is_compiling() -> builtins.bool:
    """Whether torch.compile traces the program: it takes no functions with derivatives of their own."""
    return torch.compiler.is_compiling()


# elementwise, reductions, shapes -----------------------------------------------------------------------------------

abs, conj, exp, log, sqrt, sin, cos = torch.abs, torch.conj, torch.exp, torch.log, torch.sqrt, torch.sin, torch.cos
sign = torch.sgn  # torch.sign refuses complex numbers
real, angle, isnan, reciprocal = torch.real, torch.angle, torch.isnan, torch.reciprocal
logical_and, logical_or, logical_not = torch.logical_and, torch.logical_or, torch.logical_not
reshape, moveaxis, permute_dims, broadcast_to = torch.reshape, torch.movedim, torch.permute, torch.broadcast_to


def isfinite(x: Any) -> torch.Tensor:
    return torch.isfinite(x.resolve_conj() if x.is_complex() else x)  # which looks at the imaginary part: see `imag`


def imag(x: Any) -> torch.Tensor:
    # torch refuses real tensors, and has no rule for vmap of the view that the imaginary part of a conjugate is
    return x.resolve_conj().imag if x.is_complex() else torch.zeros_like(x)


def where(condition: Any, x: Any, y: Any) -> torch.Tensor:
    return torch.where(condition, x, y)


def maximum(x: Any, y: Any) -> torch.Tensor:
    return torch.maximum(*_tensors(x, y))


def minimum(x: Any, y: Any) -> torch.Tensor:
    return torch.minimum(*_tensors(x, y))


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Scalars become tensors, which torch's binary functions demand."""
    if not isinstance(x, torch.Tensor):
        x = torch.as_tensor(x, dtype=torch.result_type(y, x), device=y.device)
    if not isinstance(y, torch.Tensor):
        y = torch.as_tensor(y, dtype=torch.result_type(x, y), device=x.device)
    return x, y


def sum(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.sum(x, _axes(x, axis), keepdims)


def mean(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.mean(x, _axes(x, axis), keepdims)


def max(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.amax(x, _axes(x, axis), keepdims)


def min(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.amin(x, _axes(x, axis), keepdims)


def any(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.any(x, _axes(x, axis), keepdims)


def all(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.all(x, _axes(x, axis), keepdims)


def count_nonzero(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.sum(x != 0, _axes(x, axis), keepdims)


def prod(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    for one in sorted((a % x.ndim for a in _axes(x, axis)), reverse=True):  # torch takes one axis at a time
        x = torch.prod(x, one, keepdims)
    return x


def _axes(x: Any, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def argmax(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    return torch.argmax(x, axis, keepdims)


def argsort(x: Any, axis: int = -1, stable: builtins.bool = False) -> torch.Tensor:
    return torch.argsort(x, dim=axis, stable=stable)


def sort(x: Any, axis: int = -1) -> torch.Tensor:
    return torch.sort(x, dim=axis).values


def cumsum(x: Any, axis: int = -1) -> torch.Tensor:
    return torch.cumsum(x, axis)


def expand_dims(x: Any, axis: int) -> torch.Tensor:
    return torch.unsqueeze(x, axis)


def squeeze(x: Any, axis: Any) -> torch.Tensor:
    return torch.squeeze(x, axis)


def concat(arrays: Any, axis: int = 0) -> torch.Tensor:
    return torch.cat(tuple(arrays), axis)


def stack(arrays: Any, axis: int = 0) -> torch.Tensor:
    return torch.stack(tuple(arrays), axis)


def flip(x: Any, axis: Any = None) -> torch.Tensor:
    return torch.flip(x, _axes(x, axis))


def roll(x: Any, shift: Any, axis: Any = None) -> torch.Tensor:
    return torch.roll(x, shift, axis)


def _index(indices: Any, x: torch.Tensor) -> torch.Tensor:
    return asarray(indices, torch.int64, x.device)


def take(x: Any, indices: Any, axis: int = 0) -> torch.Tensor:
    return x[(slice(None),) * (axis % x.ndim) + (_index(indices, x),)]


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> torch.Tensor:
    return torch.take_along_dim(x, _index(indices, x), axis)


def tril(x: Any, k: int = 0) -> torch.Tensor:
    return torch.tril(x, k)


def triu(x: Any, k: int = 0) -> torch.Tensor:
    return torch.triu(x, k)


def diagonal(x: Any, offset: int = 0) -> torch.Tensor:
    """The diagonals of the matrices in the last two axes."""
    return torch.diagonal(x, offset, -2, -1)


def make_diagonal(d: Any) -> torch.Tensor:
    """The diagonal matrices, (..., n) -> (..., n, n)."""
    return torch.diag_embed(d)


def matrix_transpose(x: Any) -> torch.Tensor:
    return x.mT


def matmul(x: Any, y: Any) -> torch.Tensor:
    """The matrix product; torch's own refuses operands of two dtypes."""
    if x.dtype != y.dtype:
        dtype = torch.promote_types(x.dtype, y.dtype)
        x, y = x.to(dtype), y.to(dtype)
    return torch.matmul(x, y)


def einsum(formula: str, *arrays: Any) -> torch.Tensor:
    dtype = functools.reduce(torch.promote_types, (x.dtype for x in arrays))
    return torch.einsum(formula, *(x.to(dtype) for x in arrays))


def vecdot(x: Any, y: Any, axis: int = -1) -> torch.Tensor:
    """The inner products sum(conj(x) * y) along an axis."""
    return torch.sum(x.conj() * y, axis)


def axpy(a: Any, x: Any, y: Any) -> Any:
    """y + a x for vectors, written over y (which must be contiguous) where the framework can."""
    return y.addcmul_(x, a) if isinstance(a, torch.Tensor) else y.add_(x, alpha=a)


def three_term(W: Any, a: Any, U: Any, b: Any, V: Any) -> Any:
    """W - U diag(a) - V diag(b) for blocks of columns, (..., n, k) and (..., k), written over V where the framework can."""
    return torch.addcmul(W, V, b[..., None, :], value=-1, out=V).addcmul_(U, a[..., None, :], value=-1)


def column_dot(X: Any, Y: Any) -> torch.Tensor:
    """x^H y for each pair of columns, (..., k)."""
    x, y = (None if is_differentiated(X, Y) or v.dtype in (float16, bfloat16) else peek(v) for v in (X, Y))
    if x is None or y is None:
        return torch.linalg.vecdot(X, Y, dim=-2)
    # torch makes an array of all products first; NumPy sees the same memory, and sums as it goes: a fourth of the time.
    return torch.from_numpy(np.asarray(np.einsum("...ik,...ik->...k", x.conj(), y)))


def xpby(x: Any, b: Any, y: Any) -> Any:
    """x + b y for vectors, written over y where the framework can."""
    return torch.add(x, y, alpha=b, out=y)


def dot_real(x: Any, y: Any) -> Any:
    """The real part of x^H y for vectors: a number of Python's where values can be seen."""
    found = torch.vdot(x, y).real if x.is_complex() else torch.dot(x, y)
    return found.item() if x.is_cpu else found


def vector_norm(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    """|x|. Where its square would vanish or overflow it is taken of x divided by its largest entry."""
    size = torch.linalg.vector_norm(x, dim=axis, keepdim=keepdims)
    if not x.numel():
        return size
    limits = torch.finfo(size.dtype)
    low = math.sqrt(limits.tiny / limits.eps)
    seen = peek(size)
    if seen is not None and low < seen.min() and seen.max() < math.inf:
        return size
    largest = torch.amax(torch.abs(x.detach()), dim=() if axis is None else axis, keepdim=True)
    ordinary = ((largest > low) & (largest < math.sqrt(limits.max * limits.eps))) | (largest == 0) | ~torch.isfinite(largest)
    scale = torch.where(ordinary, torch.ones_like(largest), largest)
    norm = scale * torch.linalg.vector_norm(x / scale, dim=axis, keepdim=True)
    return norm.reshape(size.shape)


_half = through_single(astype, frozenset({float16, bfloat16}), float32)


@_half
def fft(x: Any, axis: int = -1) -> torch.Tensor:
    return torch.fft.fft(x, dim=axis) if x.shape[axis] else x.to(complex_dtype(x.dtype))


@_half
def ifft(x: Any, axis: int = -1) -> torch.Tensor:
    return torch.fft.ifft(x, dim=axis) if x.shape[axis] else x.to(complex_dtype(x.dtype))


@_half
def fftn(x: Any, axes: Any = None) -> torch.Tensor:
    return torch.fft.fftn(x, dim=_axes(x, axes)) if x.numel() else x.to(complex_dtype(x.dtype))


@_half
def ifftn(x: Any, axes: Any = None) -> torch.Tensor:
    return torch.fft.ifftn(x, dim=_axes(x, axes)) if x.numel() else x.to(complex_dtype(x.dtype))


@_half
def rfftn(x: Any, axes: Any) -> torch.Tensor:
    """The transform of real numbers: the first half of the last axis, which determines the rest."""
    axes = _axes(x, axes)
    if not x.numel():  # MKL refuses them
        sizes = [size // 2 + 1 if i == axes[-1] % x.ndim else size for i, size in enumerate(x.shape)]
        return x.new_zeros(sizes, dtype=complex_dtype(x.dtype))
    return torch.fft.rfftn(x, dim=axes)


@_half
def irfftn(x: Any, shape: Any, axes: Any) -> torch.Tensor:
    """The real numbers of this shape (along the axes) of which `x` is the transform."""
    axes = _axes(x, axes)
    if not x.numel():
        sizes = list(x.shape)
        for axis, size in zip(axes, shape):
            sizes[axis] = size
        return x.new_zeros(sizes, dtype=real_dtype(x.dtype))
    return torch.fft.irfftn(x, shape, dim=axes)


# scattered ---------------------------------------------------------------------------------------------------------


def scatter_add(x: Any, index: Any, values: Any, axis: int = 0) -> torch.Tensor:
    """Add `values[..., i, ...]` to `x[..., index[i], ...]`; indices that repeat add up."""
    index, axis = _index(index, x), axis % x.ndim
    dtype = torch.promote_types(x.dtype, values.dtype)
    values = values.to(dtype).expand(*x.shape[:axis], len(index), *x.shape[axis + 1 :])
    return x.to(dtype).index_add(axis, index % builtins.max(x.shape[axis], 1), values)


def set_at(x: Any, key: Any, values: Any) -> torch.Tensor:
    """A copy of `x` in which `x[key]` is `values`."""
    key = tuple(_key(part, x) for part in key) if isinstance(key, tuple) else _key(key, x)
    if _functorch.peek_interpreter_stack() is None:
        out = x.clone()
        out[key] = values
        return out
    # vmap cannot write batched values into a tensor that is not: find the places, and let index_copy make a new one.
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)[key]
    values = torch.as_tensor(values, dtype=x.dtype, device=x.device).expand(places.shape)
    return x.reshape(-1).index_copy(0, places.reshape(-1), values.reshape(-1)).reshape(x.shape)


def _key(part: Any, x: torch.Tensor) -> Any:
    return asarray(part, device=x.device) if isinstance(part, (np.ndarray, list)) else part


# random ------------------------------------------------------------------------------------------------------------


def generator(seed: Any) -> torch.Generator:
    """A source of random numbers from an integer, a torch or NumPy generator, or a JAX key. It draws on the host."""
    if isinstance(seed, torch.Generator):
        return seed
    if not isinstance(seed, int):
        from colinear.backends import numpy

        seed = int(numpy.generator(seed).integers(2**63))
    return torch.Generator().manual_seed(seed % 2**64)


def split(gen: torch.Generator, n: int = 2) -> list[torch.Generator]:
    """`n` independent generators."""
    with torch._C._DisableFuncTorch():
        seeds = torch.randint(2**63 - 1, (n,), generator=gen, device=gen.device).tolist()
    return [generator(seed) for seed in seeds]


def fold_in(gen: torch.Generator, i: Any) -> torch.Generator:
    """The source of the i-th block of numbers. A generator moves on as it is drawn from, so it is that itself."""
    return gen


def _draw(draw: Callable, gen: torch.Generator, shape: Any, dtype: Any, device: Any) -> torch.Tensor:
    # Inside vmap torch refuses random numbers unless told how they vary; ours are the same for every element, as in JAX.
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    with torch._C._DisableFuncTorch():
        return draw(shape, generator=gen, dtype=dtype, device=gen.device).to(device)


def normal(gen: torch.Generator, shape: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """Standard normal numbers; complex ones have E|z|^2 = 1."""
    return _draw(torch.randn, gen, shape, dtype and dtype_from(dtype), device)


def rademacher(gen: torch.Generator, shape: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """Signs, +1 or -1; if complex, 1, i, -1 or -i."""
    dtype = default_float() if dtype is None else dtype_from(dtype)
    if not dtype.is_complex:  # from single bits: a third of the time of integers
        size = math.prod((shape,) if isinstance(shape, int) else shape)
        octets = _draw(functools.partial(torch.randint, 256), gen, (-(-size // 8),), torch.uint8, device)
        bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8, device=octets.device)) & 1
        return (1 - 2 * bits.reshape(-1)[:size].to(dtype)).reshape(shape)
    values = torch.tensor([1, 1j, -1, -1j], dtype=dtype, device=device)
    return values[_draw(functools.partial(torch.randint, len(values)), gen, shape, torch.int64, device)]


def uniform(gen: torch.Generator, shape: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    """Uniform numbers in [0, 1), or in the unit square if complex."""
    return _draw(torch.rand, gen, shape, dtype and dtype_from(dtype), device)


# control -----------------------------------------------------------------------------------------------------------


def while_loop(cond: Callable, body: Callable, state: Any) -> Any:
    """Iterate `state = body(state)` while `cond(state)`; under vmap until no element goes on, those done standing still."""
    while True:
        going = cond(state)
        if not isinstance(going, torch.Tensor) or not _functorch.is_functorch_wrapped_tensor(going):
            if not going:
                return state
            state = body(state)
        else:
            if not _innermost(going).any():
                return state
            state = tree_map(functools.partial(_select, going), body(state), state)


def _innermost(x: Any) -> Any:
    while _functorch.is_functorch_wrapped_tensor(x):
        x = _functorch.get_unwrapped(x)
    return x


def _select(going: Any, new: Any, old: Any) -> Any:
    return torch.where(going, new, old) if isinstance(new, torch.Tensor) else new


def fori_loop(n: int, body: Callable, state: Any) -> Any:
    """Iterate `state = body(i, state)` for i in range(n)."""
    for i in range(n):
        state = body(i, state)
    return state


def scan(step: Callable, state: Any, *arrays: Any, reverse: Any = False) -> Any:
    """`state, result = step(state, *elements)` over the elements along the first axis, first or last first; the results, stacked."""
    places = range(len(arrays[0]))
    results = {}
    for i in reversed(places) if reverse else places:
        state, results[i] = step(state, *[x[i] for x in arrays])
    return tree_map(lambda *found: torch.stack(found), *[results[i] for i in places])


def cond(predicate: Any, if_true: Callable, if_false: Callable, *arguments: Any) -> Any:
    """`if_true(*arguments)` or `if_false(*arguments)`; under vmap both, and of each element the one that holds."""
    if is_traced(predicate) and not torch.compiler.is_compiling():
        return tree_map(functools.partial(_select, predicate), if_true(*arguments), if_false(*arguments))
    return if_true(*arguments) if predicate else if_false(*arguments)


def call_host(f: Callable, *values: Any) -> Any:
    """`f(*values)`, true or false; in a compiled program a call from it, when it runs."""
    return torch.tensor(builtins.bool(f(*(_innermost(x) if isinstance(x, torch.Tensor) else x for x in values))))


def loop_map(f: Callable, *arrays: Any) -> torch.Tensor:
    """`f` of the elements along the first axis, one after the other, stacked."""
    return torch.stack([f(*elements) for elements in zip(*arrays, strict=True)])


# derivatives -------------------------------------------------------------------------------------------------------


def jvp(f: Callable, x: Any, v: Any) -> tuple[Any, Any]:
    """`f(x)` and its derivative along `v`; x and v may be trees."""
    return torch.func.jvp(f, (tree_map(_unshared, x),), (tree_map(_unshared, v),))


def _unshared(x: Any) -> Any:
    """`x` with memory of its own: forward mode refuses what was broadcast, and fails for some views of complex numbers."""
    if not isinstance(x, torch.Tensor):
        return x
    is_shared = builtins.any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape))
    return x.clone(memory_format=torch.contiguous_format) if is_shared or x._is_view() or x.is_conj() else x


def vjp(f: Callable, x: Any) -> tuple[Any, Callable]:
    """`f(x)` and its pullback g -> J^H g (torch's convention for complex numbers)."""
    if not torch.is_grad_enabled() and (found := recorded_vjp(f, x)) is not None:
        return found  # in a backward pass, say: 300 us less than by torch.func
    try:
        y, pull = torch.func.vjp(f, x)
    except RuntimeError:  # of functions that torch.func does not take, as many custom ones are, autograd knows more
        found = recorded_vjp(f, x)
        if found is None:
            raise
        return found
    return y, lambda g: pull(g)[0]


def linear_transpose(f: Callable, x_like: Any) -> Callable:
    """For linear f(x) = M x, the map y -> M^T y (without conjugation)."""
    zero = tree_map(torch.zeros_like, x_like)
    pull = vjp(f, zero)[1]
    return lambda y: tree_map(torch.conj, pull(tree_map(torch.conj, y)))


def vmap(f: Callable, in_axes: Any = 0) -> Callable:
    """`f` over an axis of its arguments (those whose axis is not None)."""
    return torch.func.vmap(f, in_axes, randomness="same")


def stop_gradient(x: Any) -> Any:
    return x.detach()


def checkpoint(f: Callable) -> Callable:
    """`f`, of which derivatives compute the intermediate values again instead of keeping them.

    Only under autograd: torch.func's transforms refuse the hooks on which torch's checkpoints are built.
    """

    def checkpointed(*arguments: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_compiling() or _functorch.peek_interpreter_stack() is not None:
            return f(*arguments)
        return torch.utils.checkpoint.checkpoint(f, *arguments, use_reentrant=False, preserve_rng_state=False)

    return checkpointed


# trees, warnings ---------------------------------------------------------------------------------------------------


def register_pytree(cls: type, flatten: Callable, unflatten: Callable) -> None:
    """Make `cls` a tree: `flatten(x) -> (children, static)`, `unflatten(static, children) -> x`."""

    def flatten_to_list(x: Any) -> tuple[list, Any]:
        children, static = flatten(x)
        return list(children), static

    pytree.register_pytree_node(cls, flatten_to_list, lambda children, static: unflatten(static, tuple(children)))


def tree_map(f: Callable, tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of one tree, or of several of the same structure. None is an empty tree."""
    return pytree.tree_map(lambda x, *others: None if x is None else f(x, *others), tree, *rest)


def jit(f: Any) -> Any:
    """`f` itself: compiled only where that is how the framework is used (JAX)."""
    return f


def warn_later(predicate: Any, message: str, *values: Any, category: type[Warning] = UserWarning) -> None:
    """Warn if `predicate` (a tensor of truths: if any) holds, with `message.format(*values)`. Silent under torch.compile."""
    if torch.compiler.is_compiling():
        return
    predicate, *shown = (_innermost(x) if isinstance(x, torch.Tensor) else x for x in (predicate, *values))
    if isinstance(predicate, torch.Tensor):
        if predicate.is_meta or _is_fake(predicate):
            return
        predicate = predicate.any().item()
    if predicate:
        shown = [to_numpy(x) if isinstance(x, torch.Tensor) else x for x in shown]
        warnings.warn(message.format(*shown) if shown else message, category, stacklevel=3)


def synchronize(x: Any) -> Any:
    """`x`, once it has been computed."""
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return x


def add_call(run: Callable, like: Callable, attach: Callable) -> int:
    """The number by which `call_opaquely` knows these functions; see `_torch_opaque.Call`."""
    CALLS.append(Call(run, like, attach))
    return len(CALLS) - 1


def break_graph(why: str) -> None:
    """Leave the graph that torch.compile makes; an error if it must be a whole one."""
    torch._dynamo.graph_break(msg=why)


def tells_sides() -> builtins.bool:
    """Whether `A @ x` and `x @ A` reach `__torch_function__` as two different calls: always, but in a compiler not repaired."""
    return not torch.compiler.is_compiling() or sides_are_known()


def map_on_host(f: Callable, X: Any) -> Any:
    """`f(X)` of NumPy arrays, of the shape and dtype of X, with any leading dimensions; it has no derivatives."""
    return asarray(f(to_numpy(X)), device=X.device)
