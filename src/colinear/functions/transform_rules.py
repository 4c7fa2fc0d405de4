"""Rules for the sine transform and for what it diagonalises: entries and determinants in closed form."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..operators.diagonal import Diagonal
from ..operators.product import Product
from ..operators.sine import Sine
from .determinant import one, slogdet
from .determinant_rules import Determinant
from .diagonal import diag


@rule(diag, Sine)
def diag_sine(A: Any, method: Any) -> Array:
    """diag(S)_j = (2 / (n + 1))^1/2 sin(π j^2 / (n + 1)), a Kronecker product over the grid"""
    # j^2 mod 2 (n + 1) in integers, so that the angles are small and exact
    lines = [np.sin(np.pi * (np.arange(1, n + 1) ** 2 % (2 * n + 2)) / (n + 1)) * math.sqrt(2 / (n + 1)) for n in A.grid]
    return A.xp.asarray(reduce(np.kron, lines), dtype=A.dtype, device=A._context.device)


@rule(slogdet, Sine)
def slogdet_sine(A: Any, method: Any) -> Determinant:
    """det S = (-1)^((n - t) / 2): its eigenvalues are 1 and -1, and its trace t is the product of n_i mod 2 over the grid"""
    trace = math.prod(size % 2 for size in A.grid)
    sign, logarithm = one(A)
    return sign * (-1) ** ((A.shape[-1] - trace) // 2), logarithm


@rule(diag, Product[Sine, Diagonal, Sine])  # type: ignore[misc]
def diag_of_sines(A: Any, method: Any) -> Array:
    """diag(S diag(d) S)_j = Σ_k d_k (1 - cos(2π j k / (n + 1))) / (n + 1), a Fourier transform along each axis of the grid"""
    S, D, R = A.operands
    if S.grid != R.grid or 0 in A.shape:
        return diag.base(A, method)
    xp, batch = A.xp, A.batch_shape
    values = xp.reshape(xp.astype(D.d, A.dtype), (*batch, *S.grid))
    for axis in range(-len(S.grid), 0):
        line = xp.moveaxis(values, axis, -1)
        zero = xp.zeros((*line.shape[:-1], 1), dtype=line.dtype, device=xp.device_of(line))
        padded = xp.concat([zero, line], axis=-1)
        cosines = 0.5 * (xp.fft(padded) + xp.ifft(padded) * padded.shape[-1])  # exactly real for real d but for rounding
        cosines = cosines if xp.is_complex(line) else xp.astype(xp.real(cosines), line.dtype)
        values = xp.moveaxis((cosines[..., :1] - cosines[..., 1:]) / padded.shape[-1], -1, axis)
    return xp.reshape(values, (*batch, A.shape[-1]))
