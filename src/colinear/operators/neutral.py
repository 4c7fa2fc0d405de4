"""Operators that have no framework yet, such as a function of a permutation.

A function of an operator that holds no floats is computed in NumPy. What it returns is neutral all
the same: it takes framework, dtype and device from what it meets. Until then its leaves are
NumPy's, and a product moves them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from . import convert
from .base import LinearOperator
from .context import Context, join_dtypes


def release(A: LinearOperator, arguments: tuple[Any, ...], result: Any) -> Any:
    """The result of a function of a neutral A, neutral where no other argument tells a
    framework."""
    if any(isinstance(x, LinearOperator) or namespace_of(x) for x in arguments):
        return result
    if isinstance(result, tuple) and type(result) is tuple:
        return tuple([release(A, (), part) for part in result])
    return released(result, A._context.dtype) if isinstance(result, LinearOperator) else result


def released(B: LinearOperator, dtype: Any) -> LinearOperator:
    """An operator of NumPy's arrays that takes framework, dtype (unless that is told) and device
    from what it meets, as do its parts."""
    if "_is_released" in B.__dict__ or all(namespace_of(leaf) is None for leaf in B.leaves()):
        return B
    is_complex = B.is_complex
    told = (
        dtype
        if isinstance(dtype, np.dtype) and (dtype.kind == "c" or not is_complex)
        else complex
        if is_complex
        else None
    )
    copy = B._replace(
        **{
            name: _released_field(getattr(B, name), name in B._scalars, dtype)
            for name in B._dynamic
        }
    )
    if any(namespace_of(leaf) is not None for leaf in copy.leaves()):
        copy.__dict__.update(_context=Context(None, told), _is_released=True)
    return copy


def _released_field(value: Any, is_scalar: bool, dtype: Any) -> Any:
    if isinstance(value, LinearOperator):
        return released(value, dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(_released_field(item, is_scalar, dtype) for item in value)
    return (
        value.item() if is_scalar and isinstance(value, np.ndarray) and value.ndim == 0 else value
    )


def placed_beside(A: LinearOperator, x: Array) -> LinearOperator:
    """Such an operator in the framework and precision of an array, and on its device."""
    xp = namespace_of(x)
    dtype = xp.real_dtype(x.dtype)
    if A._context.dtype is not None:
        dtype = join_dtypes(xp, dtype, A._context.dtype)
    return convert.move_beside(A, xp, xp.device_of(x), dtype)


def dense_part(A: LinearOperator, whole: LinearOperator) -> Array:
    """The matrix of an operand; a neutral one takes framework, dtype and device from what it is
    part of."""
    if A.is_neutral and not whole.is_neutral:
        A = A.to(whole.backend, whole._context.device, whole.dtype)
    elif A.is_neutral and A._context.dtype != whole._context.dtype:
        A = A.to(dtype=whole.dtype)
    return A._dense()


def carry(A: LinearOperator, image: LinearOperator) -> LinearOperator:
    """Claims of A passed to its transpose, adjoint or conjugate: all survive, but Stiefel only
    where the shape stays."""
    if A._claims and image.shape[-2:] == A.shape[-2:]:
        image = image._claim(A._claims)
    return released(image, A._context.dtype) if "_is_released" in A.__dict__ else image
