"""Determinants that are known, or read off a diagonal: more rules of `slogdet`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..methods.determinants import parity
from ..operators.diagonal import Diagonal
from ..operators.factors import LUFactor, slogdet_of_diagonal
from ..operators.fields import Index
from ..operators.identity import Identity, ScaledIdentity
from ..operators.permutation import Permutation
from ..operators.triangular import Triangular
from ._arrays import square_size
from .determinant import NEED, one, report_logarithm, slogdet, slogdet_of_power


@rule(slogdet, Identity)
def slogdet_identity(A: Any, method: Any) -> tuple[Array, Array]:
    """det I = 1"""
    return one(A)


@rule(slogdet, ScaledIdentity)
def slogdet_scaled_identity(A: Any, method: Any) -> tuple[Array, Array]:
    """det(c I) = c^n"""
    sign, logarithm = slogdet_of_power(A, A.c)
    report_logarithm(A.xp, logarithm)
    return sign, logarithm


@rule(slogdet, Diagonal)
def slogdet_diagonal(A: Any, method: Any) -> tuple[Array, Array]:
    """det diag(d) = ∏ d_i"""
    sign, logarithm = slogdet_of_diagonal(A.xp, A.d)
    report_logarithm(A.xp, logarithm)
    return sign, logarithm


@rule(slogdet, Triangular)
def slogdet_triangular(A: Any, method: Any) -> tuple[Array, Array]:
    """det T = ∏ t_ii"""
    square_size("slogdet", A, NEED, "Its singular values are svd(A)[1].")
    if A.unit:
        return one(A)
    sign, logarithm = slogdet_of_diagonal(A.xp, A.xp.diagonal(A.A))
    report_logarithm(A.xp, logarithm)
    return sign, logarithm


@rule(slogdet, Permutation)
def slogdet_permutation(A: Any, method: Any) -> tuple[Array, Array]:
    """det P = (-1)^(n - cycles)"""
    positive, zero = one(A)
    if isinstance(A.perm, Index):
        parities = [parity(p) for p in A.perm.host.reshape(math.prod(A.batch_shape), A.shape[-1])]
        sign = A.xp.asarray(np.reshape(np.asarray(parities), A.batch_shape), dtype=A.dtype, device=A._context.device)
    else:  # traced, so its cycles cannot be counted: its matrix is factored
        sign, _ = LUFactor._of(*A.xp.lu_factor(A.to_dense()), "N").slogdet()
    return positive * sign, zero
