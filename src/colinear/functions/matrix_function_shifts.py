"""The rules of matrix functions for multiples and shifts, c A and A + c I."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import namespace_of
from ..dispatch import arrange, rule
from ..info import Status
from ..operators.base import LinearOperator
from ..operators.identity import ScaledIdentity, scalar_of
from ..operators.permutation import Permutation
from ..operators.scaled import Scaled
from ..operators.sparse_algebra import SHIFT
from ..operators.sum import Sum
from ._arrays import square_size
from ._values import place, reciprocal, report_status, reports_nonfinite
from .eigen_compositions import split_shift
from .eigen_unitary import cycles_can_be_seen
from .matrix_function_rules import of_permutation
from .matrix_function_shared import ALL, Call, rules
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


@rules(ALL, Scaled[Permutation])  # type: ignore[misc]
def of_scaled_permutation(A: Any, call: Call) -> LinearOperator:
    """f(c P) = R^T diag(f(c C), ...) R: along each of its cycles a permutation is a circulant C"""
    if not cycles_can_be_seen(A.A) or getattr(A.scalar, "ndim", 0) > 0:
        return call.base(A)
    return of_permutation(place(A.A, A), Call(call.f, lambda C: call.again(Scaled(A.scalar, C)), call.base))


def shift_is_moderate(A: Any) -> bool:
    """Whether e^c is far from overflow and underflow (taken for granted where c cannot be seen)."""
    shift, _ = arrange(A, SHIFT, ...)
    c = scalar_of(shift)
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is None or bool(np.all(np.abs(np.real(values)) <= _moderate(A)))


def _moderate(A: LinearOperator) -> float:
    return -2.0 * math.log(A.xp.eps(A.dtype))  # 72 in double, 32 in single precision


@rule(exp, Sum[SHIFT, ...], when=shift_is_moderate)  # type: ignore[misc]
def exp_shifted(A: Any, method: Any) -> LinearOperator:
    """exp(A + c I) = e^c exp(A)"""
    xp = A.xp
    c, rest = split_shift(A)
    c = xp.asarray(c, dtype=None if namespace_of(c) is not None else A.dtype, device=A._context.device)
    fine = xp.all(xp.abs(xp.real(c)) <= _moderate(A))
    report_status(xp, xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)), message="e^c overflows or vanishes")
    return Scaled(xp.exp(c), exp(rest, method))
