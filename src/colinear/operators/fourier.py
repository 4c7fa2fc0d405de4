"""Convolution by fast Fourier transforms: what Toeplitz, Circulant and Convolution share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..backends import Array


def good_length(n: int) -> int:
    """The least length >= n with no prime factor above 5: fast in pocketfft, MKL, cuFFT and XLA alike.

    SciPy has it, but its import takes longer than all of our operators, and torch.compile cannot look into it.
    """
    best = 1 << max(n - 1, 0).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << max(-(-n // odd) - 1, 0).bit_length())  # 5^a 3^b, and the twos that are missing
            odd *= 3
        fives *= 5
    return best


def circular_convolution(xp: Any, kernel: Array, X: Array, lengths: Sequence[int]) -> Array:
    """The circular convolution of columns of grids with a kernel, both padded with zeros to `lengths`.

    kernel : (*batch, *sizes), X : (*batch, *grid, k) -> (*batch, *lengths, k). Real input takes real transforms, half the work,
    and gives real output of the promoted dtype.
    """
    dtype = xp.result_type(kernel.dtype, X.dtype)
    axes = tuple(range(-1 - len(lengths), -1))
    kernel, X = (pad_end(xp, array, lengths, axes) for array in (kernel[..., None], X))
    if xp.is_complex(dtype):
        product = xp.ifftn(xp.fftn(kernel, axes=axes) * xp.fftn(X, axes=axes), axes=axes)
    else:
        product = xp.irfftn(xp.rfftn(kernel, axes=axes) * xp.rfftn(X, axes=axes), tuple(lengths), axes=axes)
    return xp.astype(product, dtype)


def pad_end(xp: Any, x: Array, lengths: Sequence[int], axes: Sequence[int]) -> Array:
    """`x` with zeros after its end along each axis, up to the lengths."""
    for axis, length in zip(axes, lengths, strict=True):
        missing = length - x.shape[axis]
        if missing:
            shape = list(x.shape)
            shape[axis] = missing
            x = xp.concat([x, xp.zeros(shape, dtype=x.dtype, device=xp.device_of(x))], axis=axis)
    return x


def fourier_flops(lengths: Sequence[int], real: bool) -> float:
    """Of one transform, by the usual count 5 n log2(n) for complex numbers and half of it for real ones."""
    n = math.prod(lengths)
    return (2.5 if real else 5.0) * n * math.log2(max(n, 2))


def convolution_flops(lengths: Sequence[int], real: bool) -> float:
    """Of one circular convolution: the transforms of kernel, vector and product, and the product."""
    return 3 * fourier_flops(lengths, real) + (3.0 if real else 6.0) * math.prod(lengths)
