"""The rules of matrix functions for multiples and shifts, c A and A + c I."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import namespace_of
from ..dispatch import arrange, rule
from ..info import Status
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import KroneckerSum
from ..operators.permutation import Permutation
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ._arrays import square_size
from ._values import place, placed, reciprocal, report_status, reports_nonfinite
from .eigen_compositions import split_shift
from .eigen_unitary import cycles_can_be_seen
from .inverse import all_square
from .matrix_function_rules import of_permutation
from .matrix_function_shared import ALL, KEPT, Call, beside, rules
from .matrix_functions import (
    exp,
    isqrt,
    log,
    power,
    sqrt,
)
from .scalar_functions import as_integer


def scalar_is_positive(A: Any) -> bool:
    """Whether the scalar is seen to be positive (and A to be square)."""
    return A.shape[-1] == A.shape[-2] and _is_positive(A.scalar)


def _is_positive(c: Any) -> bool:
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is not None and bool(np.all(np.imag(values) == 0) and np.all(np.real(values) > 0))


@rule(sqrt, Scaled, when=scalar_is_positive)
@reports_nonfinite
def sqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(1/2) = c^(1/2) A^(1/2) for c > 0"""
    return Scaled(A.scalar**0.5, sqrt(A.A, method))


@rule(isqrt, Scaled, when=scalar_is_positive)
@reports_nonfinite
def isqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(-1/2) = c^(-1/2) A^(-1/2) for c > 0"""
    return Scaled(A.scalar**-0.5, isqrt(A.A, method))


@rule(log, Scaled, when=scalar_is_positive)
@reports_nonfinite
def log_scaled(A: Any, method: Any) -> LinearOperator:
    """log(c A) = log(c) I + log(A) for c > 0"""
    xp = namespace_of(A.scalar)
    c = math.log(A.scalar.real) if xp is None else xp.asarray(xp.log(A.scalar))
    return Sum(log(place(A.A, A), method), ScaledIdentity(c, A.shape[-1]))


def has_power_of_scalar(A: Any, p: Any = 1) -> bool:
    """Whether the scalar is positive, or p is whole."""
    return as_integer(p) is not None or _is_positive(A.scalar)


@rule(power, Scaled, when=has_power_of_scalar)
@reports_nonfinite
def power_scaled(A: Any, p: Any, method: Any) -> LinearOperator:
    """(c A)^p = c^p A^p for c > 0 or whole p"""
    square_size("power", A, "A^p", "")
    whole = as_integer(p)
    if whole is not None and whole < 0:
        return Scaled(reciprocal(A.scalar) ** -whole, power(A.A, p, method))  # reports a factor of zero
    return Scaled(A.scalar ** (p if whole is None else whole), power(A.A, p, method))


@rules(ALL, Scaled[Circulant])  # type: ignore[misc]
def of_scaled_circulant(A: Any, call: Call) -> LinearOperator:
    """f(c C) = f(C') for the circulant C' = c C"""
    return call.again(Circulant(beside(A.scalar, 1) * A.A.col)._claim(A.properties & KEPT))


@rules(ALL, Scaled[Convolution])  # type: ignore[misc]
def of_scaled_convolution(A: Any, call: Call) -> LinearOperator:
    """f(c C) = f(C') for the convolution C' = c C"""
    kernel = beside(A.scalar, len(A.A.grid)) * A.A.kernel
    return call.again(A.A._replace(kernel=kernel)._claim(A.properties & KEPT))


@rules(ALL, Scaled[Permutation])  # type: ignore[misc]
def of_scaled_permutation(A: Any, call: Call) -> LinearOperator:
    """f(c P) = R^T diag(f(c C), ...) R: along each of its cycles a permutation is a circulant C"""
    if not cycles_can_be_seen(A.A) or getattr(A.scalar, "ndim", 0) > 0:
        return call.base(A)
    return of_permutation(place(A.A, A), Call(call.f, lambda C: call.again(Scaled(A.scalar, C)), call.base))


@rules(ALL, Scaled[BlockDiag])  # type: ignore[misc]
def of_scaled_blocks(A: Any, call: Call) -> LinearOperator:
    """f(c diag(A, B)) = f(diag(c A, c B))"""
    return call.again(BlockDiag(*(Scaled(A.scalar, block) for block in A.A.operands))._claim(A.properties & KEPT))


@rule(exp, Scaled[KroneckerSum])  # type: ignore[misc]
def exp_scaled_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """exp(c (A ⊕ B)) = exp(c A) ⊗ exp(c B)"""
    return exp(KroneckerSum(*(Scaled(A.scalar, term) for term in A.A.operands)), method)


@rules(ALL, Sum[Circulant, ScaledIdentity | Identity])  # type: ignore[misc]
def of_shifted_circulant(A: Any, call: Call) -> LinearOperator:
    """f(C + c I) = f(C') for the circulant C' = C + c I"""
    circulant, shift = arrange(A, Circulant, ScaledIdentity | Identity)
    xp, c = A.xp, shift.c if isinstance(shift, ScaledIdentity) else 1.0
    first = xp.eye(1, A.shape[-1], dtype=circulant.dtype, device=A._context.device)[0]
    return call.again(Circulant(circulant.col + beside(c, 1) * first)._claim(A.properties & KEPT))


@rules(ALL, Sum[BlockDiag, ScaledIdentity | Identity])  # type: ignore[misc]
def of_shifted_blocks(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B) + c I) = f(diag(A + c I, B + c I)), both square"""
    blocks, shift = arrange(A, BlockDiag, ScaledIdentity | Identity)
    if not all_square(blocks):
        return call.base(A)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    shifted = (Sum(block, ScaledIdentity(c, block.shape[-1])) for block in placed(blocks))
    return call.again(BlockDiag(*shifted)._claim(A.properties & KEPT))


def shift_is_moderate(A: Any) -> bool:
    """Whether e^c is far from overflow and underflow (taken for granted where c cannot be seen)."""
    shift, _ = arrange(A, ScaledIdentity | Identity, ...)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is None or bool(np.all(np.abs(np.real(values)) <= _moderate(A)))


def _moderate(A: LinearOperator) -> float:
    return -2.0 * math.log(A.xp.eps(A.dtype))  # 72 in double, 32 in single precision


@rule(exp, Sum[ScaledIdentity | Identity, ...], when=shift_is_moderate)  # type: ignore[misc]
def exp_shifted(A: Any, method: Any) -> LinearOperator:
    """exp(A + c I) = e^c exp(A)"""
    xp = A.xp
    c, rest = split_shift(A)
    c = xp.asarray(c, dtype=None if namespace_of(c) is not None else A.dtype, device=A._context.device)
    fine = xp.all(xp.abs(xp.real(c)) <= _moderate(A))
    report_status(xp, xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)), message="e^c overflows or vanishes")
    return Scaled(xp.exp(c), exp(rest, method))
