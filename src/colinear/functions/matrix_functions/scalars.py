"""Functions of numbers, as matrices take them: their branches, poles and signs, and their values
on a spectrum."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ... import autodiff
from ...autodiff.functions import hoist_number
from ...backends import Array
from ...info import Info, report
from ...properties import SELF_ADJOINT
from ...status import Status
from ..common import host_value, ignore_float_errors, report_status


@dataclass(frozen=True)
class Scalar:
    """A function of numbers, and what is needed to apply it to matrices.

    Attributes
    ----------
    name : str
    of : callable
        `of(xp, x)`, entry by entry.
    principal : bool
        Whether it is complex for negative numbers.
    pole : bool
        Whether it is infinite at zero.
    nonnegative : bool
        Whether its real values are never negative.
    mirrored : bool
        Whether f(conj(x)) = conj(f(x)) everywhere, also on a cut: then it is real for real
        matrices.
    exponent : number, optional
        Of a power.
    """

    name: str
    of: Callable[[Any, Array], Array]
    principal: bool = True
    pole: bool = False
    nonnegative: bool = False
    mirrored: bool = False
    exponent: Any = None


EXP = Scalar("exp", lambda xp, x: xp.exp(x), principal=False, nonnegative=True, mirrored=True)
LOG = Scalar("log", lambda xp, x: xp.log(x), pole=True)
SQRT = Scalar("sqrt", lambda xp, x: xp.sqrt(x), nonnegative=True)
ISQRT = Scalar("isqrt", lambda xp, x: 1 / xp.sqrt(x), pole=True, nonnegative=True)


def power_of(p: Any) -> Scalar:
    whole = as_integer(p)
    if whole is not None:
        even = whole % 2 == 0
        return Scalar(
            "power",
            lambda xp, x: x**whole,
            principal=False,
            pole=whole < 0,
            nonnegative=even,
            mirrored=True,
            exponent=whole,
        )
    return Scalar(
        "power",
        lambda xp, x: x**p,
        pole=p.real <= 0,
        nonnegative=not isinstance(p, complex),
        exponent=p,
    )


def as_scalar(f: Callable[[Array], Array]) -> Scalar:
    """A user's function of an array."""
    return Scalar("apply", lambda xp, x: f(x), principal=False)


def closed_over(f: Scalar, A: Any) -> tuple:
    """The arrays that f closes over and the framework follows: those of a user's function."""
    if f.name != "apply" or A.xp.name == "numpy":
        return ()
    xp = A.xp
    dtype = xp.real_dtype(A.dtype) if A.properties & SELF_ADJOINT else xp.complex_dtype(A.dtype)
    return hoist_number(xp, partial(f.of, xp), xp.ones((), dtype=dtype, device=A._context.device))[
        1
    ]


def refuse_derivative(A: Any, hidden: tuple, method: str) -> Array:
    """Zero, to be added to what depends on the arrays that f closes over: a derivative by these
    is an error, not zero."""
    xp = A.xp
    zero = xp.zeros((), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    what = f"apply: f(A) by {method}, as a function of what f closes over,"
    instead = "Eigh() or Eig(), or let f close over detach() or stop_gradient() of it"
    return autodiff.refused(xp, zero, hidden, what, instead)


def as_integer(p: Any) -> int | None:
    is_number = isinstance(p, numbers.Number)
    if not is_number or p != p:
        raise ValueError(f"power: the exponent is {p!r}; it must be a number.")
    return int(p.real) if not isinstance(p, complex) and float(p).is_integer() else None


# --------------------------------------------------------------------------------------------------


def of_values(xp: Any, f: Scalar, x: Array, positive: bool, negligible: float = 0.0) -> Array:
    """f of real or complex numbers, complex where the principal branch is; reports poles, overflow
    and broken promises.

    `positive`: whether they are promised not to be negative. Then those that are, by no more than
    `negligible` of the largest, are rounding errors of zero.
    """
    with ignore_float_errors(xp):
        if f.principal and not xp.is_complex(x):
            x = _principal_input(xp, f, x, positive, negligible)
        y = f.of(xp, x)
        if 0 not in x.shape:
            status = xp.where(xp.all(xp.isfinite(y)), int(Status.SUCCESS), int(Status.NONFINITE))
            if f.pole:
                size = xp.abs(x)
                # zero, or not to be told from it
                zero = xp.any(size <= negligible * xp.max(size, axis=-1, keepdims=True))
                status = xp.where(zero, int(Status.SINGULAR), status)
            report_status(xp, xp.where(xp.all(xp.isfinite(x)), status, int(Status.NONFINITE)))
        return y


def _principal_input(xp: Any, f: Scalar, x: Array, positive: bool, negligible: float) -> Array:
    """Real numbers as f takes them: complex where one of them is negative, or could be."""
    if positive and x.shape[-1]:
        floor = -negligible * xp.max(xp.abs(x), axis=-1, keepdims=True)
        x = xp.where(xp.logical_and(x < 0, x >= floor), 0 * x, x)
    negative = host_value(xp, x < 0)
    if negative is None:
        if positive:
            report_status(
                xp, xp.where(xp.any(x < 0), int(Status.NOT_POSITIVE_DEFINITE), int(Status.SUCCESS))
            )
            return x
        return xp.astype(x, xp.complex_dtype(x.dtype))
    if not negative.any():
        return x
    if positive:
        report(
            Info(
                Status.FELL_BACK,
                message=f"A has negative eigenvalues, though it was said to have none: {f.name} "
                "is complex",
            )
        )
    return xp.astype(x, xp.complex_dtype(x.dtype))
