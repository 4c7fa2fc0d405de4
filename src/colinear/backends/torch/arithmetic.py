"""Elementwise arithmetic, reductions, shapes, products and Fourier transforms in torch."""

from __future__ import annotations

import builtins
import functools
import math
from typing import Any

import numpy as np
import torch
from torch._C import _functorch

from ..numpy import arrays as of_arrays
from ..shared import add_product as add_matmul
from ..shared import common, diagonal, fft, half, ifft
from ..shared import pad as pad_by_parts
from .arrays import (
    asarray,
    bfloat16,
    complex_dtype,
    device_of,
    float16,
    full,
    is_on_device,
    peek,
    real_dtype,
)
from .derivatives import is_differentiated
from .mesh import is_spread, sum_once

# names that mean here what they mean to all
# isort: off
from torch import (
    abs, all, angle, any, argmax, argsort, broadcast_to, concat, conj, cos, cumsum, exp, isnan, log,
    logical_and, logical_not, logical_or, mean, prod, real, reciprocal, reshape, sin, sqrt, squeeze,
    stack, sum, tril, triu, where,
)  # fmt: skip
# isort: on

# elementwise, reductions, shapes
# -----------------------------------------------------------------------------------

# torch's functions take NumPy's names for `dim` and `keepdim` too.
max, min, sign = torch.amax, torch.amin, torch.sgn  # torch.sign refuses complex numbers
moveaxis, expand_dims, make_diagonal = torch.movedim, torch.unsqueeze, torch.diag_embed


def isfinite(x: Any) -> torch.Tensor:
    # which looks at the imaginary part: see `imag`
    if not x.is_floating_point():
        return torch.isfinite(x.resolve_conj() if x.is_complex() else x)
    x = x.detach()
    return x - x == 0  # two operations, of which torch.isfinite takes four


def imag(x: Any) -> torch.Tensor:
    # torch refuses real tensors, and has no rule for vmap of the view that the imaginary part of a
    # conjugate is
    return x.resolve_conj().imag if x.is_complex() else torch.zeros_like(x)


def maximum(x: Any, y: Any) -> torch.Tensor:
    return torch.maximum(*_tensors(x, y))


def minimum(x: Any, y: Any) -> torch.Tensor:
    return torch.minimum(*_tensors(x, y))


def _tensors(x: Any, y: Any) -> tuple[Any, Any]:
    """Scalars become tensors, which torch's binary functions demand."""
    if not isinstance(x, torch.Tensor):
        x = _beside(x, torch.result_type(y, x), device_of(y))
    if not isinstance(y, torch.Tensor):
        y = _beside(y, torch.result_type(x, y), device_of(x))
    return x, y


def _beside(x: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """A number as a tensor; on a device it is filled there, which waits for nothing."""
    if isinstance(x, int | float | complex):
        return full((), x, dtype=dtype, device=device)
    return asarray(x, dtype, device)


def sort(x: Any, axis: int = -1) -> torch.Tensor:
    return torch.sort(x, dim=axis).values


def flip(x: Any, axis: Any) -> torch.Tensor:
    return torch.flip(x, (axis,) if isinstance(axis, int) else axis)


def roll(x: Any, shift: Any, axis: Any = None) -> torch.Tensor:
    return torch.roll(x, shift, axis)


def pad(x: Any, before: int, after: int, axis: int) -> torch.Tensor:
    """x with zeros on both sides along an axis."""
    if not (before or after):
        return x
    if is_spread(x):
        return pad_by_parts(x, before, after, axis)
    # a fill and a copy, where parts that are joined take a launch for each and a slower one
    sides = (0, 0) * (-1 - axis if axis < 0 else x.ndim - 1 - axis)
    return torch.nn.functional.pad(x, (*sides, before, after))


def _index(indices: Any, x: torch.Tensor) -> torch.Tensor:
    return asarray(indices, torch.int64, device_of(x))


def take(x: Any, indices: Any, axis: int = 0) -> torch.Tensor:
    return x[(slice(None),) * (axis % x.ndim) + (_index(indices, x),)]


def take_along_axis(x: Any, indices: Any, axis: int = -1) -> torch.Tensor:
    return torch.take_along_dim(x, _index(indices, x), axis)


def matrix_transpose(x: Any) -> torch.Tensor:
    return x.mT


def matmul(x: Any, y: Any) -> torch.Tensor:
    """The matrix product; torch's own refuses operands of two dtypes."""
    if x.dtype != y.dtype:
        x, y = common(x, y)
    if x.ndim == 1 < y.ndim and is_spread(x):  # torch (2.13) loses the shape of DTensor's x @ Y
        return torch.matmul(x[None], y)[..., 0, :]
    return torch.matmul(x, y)


def add_product(B: Any, X: Any, Y: Any, c: int = 1) -> torch.Tensor:
    """B + c X Y for c = 1 or -1, by one launch where torch can; one matrix is stored by columns."""
    is_plain = X.ndim == Y.ndim and B.dtype == X.dtype == Y.dtype and type(X) is torch.Tensor
    if is_plain and X.ndim == 2 and B.ndim == 2:
        return torch.addmm(B.mT, Y.mT, X.mT, alpha=c).mT
    if is_plain and X.ndim == 3 and X.shape[0] == Y.shape[0]:
        return torch.baddbmm(B, X, Y, alpha=c)
    return add_matmul(B, X, Y, c)


def einsum(formula: str, *arrays: Any) -> torch.Tensor:
    return torch.einsum(formula, *common(*arrays))


def vecdot(x: Any, y: Any, axis: int = -1) -> torch.Tensor:
    """The inner products sum(conj(x) * y) along an axis."""
    if x.ndim == 1 == y.ndim and is_on_device(x) and x.dtype is y.dtype in _OF_BLAS:
        if not (is_spread(x) or is_spread(y)):
            return torch.vdot(x, y)  # one launch, and no array of products
    return torch.sum(x.conj() * y, axis)


_OF_BLAS = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def axpy(a: Any, x: Any, y: Any) -> Any:
    """y + a x for vectors, written over y (which must be contiguous) where the framework can."""
    return y.addcmul_(x, a) if isinstance(a, torch.Tensor) else y.add_(x, alpha=a)


def three_term(W: Any, a: Any, U: Any, b: Any, V: Any) -> Any:
    """W - U diag(a) - V diag(b) for blocks of columns, (..., n, k) and (..., k), written over V
    where the framework can."""
    return torch.addcmul(W, V, b[..., None, :], value=-1, out=V).addcmul_(
        U, a[..., None, :], value=-1
    )


def _lent(*tensors: Any) -> list[Any] | None:
    """Tensors as arrays of NumPy on the same memory; None where one cannot be lent, or derivatives
    are recorded."""
    if is_differentiated(*tensors) or builtins.any(x.dtype in (float16, bfloat16) for x in tensors):
        return None
    arrays = [peek(x) for x in tensors]
    return None if builtins.any(x is None for x in arrays) else arrays


def column_dot(X: Any, Y: Any) -> torch.Tensor:
    """x^H y for each pair of columns, (..., k)."""
    lent = _lent(X, Y)
    if lent is None:
        return torch.linalg.vecdot(X, Y, dim=-2)
    # torch makes an array of all products first; NumPy sees the same memory, and sums as it goes: a
    # fourth of the time, or less.
    return torch.from_numpy(np.asarray(of_arrays.column_dot(*lent)))


def inner_products(X: Any, Y: Any, weights: Any = None) -> torch.Tensor:
    """X^H Y or, with weights w (..., n), X^H diag(w) Y; no array of the size of Y is made where the
    framework can do without."""
    if weights is None and is_tall(X, Y):
        return in_parts(X, Y)
    if weights is None and X is not Y:
        return matmul(X.mH, Y)
    # BLAS, as NumPy calls it, knows that X^H X is symmetric: half of the time
    lent = _lent(X, *([] if X is Y else [Y]), *([] if weights is None else [weights]))
    if lent is None:
        return matmul(X.mH, Y if weights is None else weights[..., None] * Y)
    x, y = lent[0], lent[0 if X is Y else 1]
    product = of_arrays.inner_products(x, y, None if weights is None else lent[-1])
    return torch.from_numpy(np.asarray(product))


TALL, NARROW = 2**19, 64  # rows and columns of blocks whose products cuBLAS is slow to sum
PARTS = 1024  # that are summed side by side: on an H200 in half of the time


def is_tall(X: Any, Y: Any) -> bool:
    """Whether X^H Y on a device is a sum of many more terms than it has entries."""
    if X.ndim != 2 or Y.ndim != 2 or X.shape[0] < TALL or not is_on_device(X):
        return False
    is_plain = type(X) is torch.Tensor is type(Y) and X.dtype is Y.dtype in _OF_BLAS
    return (
        is_plain
        and X.stride(1) == Y.stride(1) == 1
        and builtins.min(X.shape[1], Y.shape[1]) > 1  # one column is summed as quickly
        and builtins.max(X.shape[1], Y.shape[1]) <= NARROW
    )


def in_parts(X: Any, Y: Any) -> torch.Tensor:
    """X^H Y, summed by parts of the rows."""
    size = X.shape[0] // PARTS
    x, y = (Z[: PARTS * size].unflatten(0, (PARTS, size)) for Z in (X, Y))
    total = torch.matmul(x.mH, y).sum(0)
    rest = slice(PARTS * size, None)
    return torch.addmm(total, X[rest].mH, Y[rest]) if X.shape[0] % PARTS else total


def xpby(x: Any, b: Any, y: Any) -> Any:
    """x + b y for vectors, written over y where the framework can."""
    if isinstance(b, torch.Tensor):  # whose value nothing waits for
        return torch.addcmul(x, y, b, out=y)
    return torch.add(x, y, alpha=b, out=y)


def dot_real(x: Any, y: Any) -> Any:
    """The real part of x^H y for vectors: a number of Python's where values can be seen."""
    found = torch.vdot(x, y).real if x.is_complex() else torch.dot(x, y)
    return found if is_on_device(x) else found.item()


def rough_norm(x: Any, axis: Any, order: float = 2) -> torch.Tensor:
    """|x| along axes, by squares which may vanish or overflow."""
    return torch.linalg.vector_norm(x, order, axis)


def vector_norm(x: Any, axis: Any = None, keepdims: builtins.bool = False) -> torch.Tensor:
    """|x|. Where its square would vanish or overflow it is taken of x divided by its largest entry."""
    norm = torch.linalg.vector_norm
    limits = torch.finfo(x.dtype)
    low, high = math.sqrt(limits.tiny / limits.eps), math.sqrt(limits.max * limits.eps)
    if not x.numel() or not is_on_device(x):
        size = norm(x, dim=axis, keepdim=keepdims)
        seen = peek(size) if x.numel() else None
        if not x.numel() or (seen is not None and low < seen.min() and seen.max() < math.inf):
            return size
    # the same scale as `extreme_scale` gives, or nearly so, by four launches: 1 of what is ordinary
    largest = norm(x.detach(), math.inf, dim=axis, keepdim=True)
    scale = (largest / largest.clamp(low, high)).clamp(limits.tiny, limits.max)
    found = scale * norm(x / scale, dim=axis, keepdim=True)
    return found if keepdims else found.squeeze() if axis is None else found.squeeze(axis)


def _unless_empty(transform: Any) -> Any:
    """A Fourier transform of torch; of arrays without entries, which MKL refuses, the part of that
    of others which is without entries too."""

    def transformed(x: Any, *shape: Any, axes: Any = None) -> torch.Tensor:
        if x.numel():
            return transform(x, *shape, dim=axes)
        ones = x.new_ones([builtins.max(size, 1) for size in x.shape])
        kept = tuple(slice(None) if size else slice(0) for size in x.shape)
        return transform(ones, *shape, dim=axes)[kept]

    return half(transformed)


# `rfftn` is that of real numbers: the first half of the last axis, which determines the rest.
# `irfftn(x, shape, axes=axes)` are the real numbers of this shape of which x is the transform.
fftn, ifftn, rfftn, irfftn = (
    _unless_empty(getattr(torch.fft, name)) for name in "fftn ifftn rfftn irfftn".split()
)


# scattered
# --------------------------------------------------------------------------------------------------


def scatter_add(x: Any, index: Any, values: Any, axis: int = 0) -> torch.Tensor:
    """Add `values[..., i, ...]` to `x[..., index[i], ...]`; indices that repeat add up."""
    (x, values), index, shape = common(x, values), _index(index, x), list(x.shape)
    shape[axis] = len(index)
    return x.index_add(axis, index % builtins.max(x.shape[axis], 1), values.expand(shape))


def set_at(x: Any, key: Any, values: Any) -> torch.Tensor:
    """A copy of `x` in which `x[key]` is `values`."""
    key = tuple(_key(part, x) for part in key) if isinstance(key, tuple) else _key(key, x)
    if _functorch.peek_interpreter_stack() is None:
        out = x.clone()
        out[key] = values
        return out
    # vmap cannot write batched values into a tensor that is not: find the places, and let
    # index_copy make a new one.
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)[key]
    values = torch.as_tensor(values, dtype=x.dtype, device=x.device).expand(places.shape)
    return x.reshape(-1).index_copy(0, places.reshape(-1), values.reshape(-1)).reshape(x.shape)


def _key(part: Any, x: torch.Tensor) -> Any:
    return asarray(part, device=device_of(x)) if isinstance(part, (np.ndarray, list)) else part
