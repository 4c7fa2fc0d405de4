"""Derivatives of traces by stochastic quadrature: d tr f(A) = tr(f'(A) dA), from the random vectors that gave the trace.

With E[z z^H] = I the mean of Re (f'(A) z)^H dA z is unbiased, and f'(A) z ≈ |z| V f'(T) e_1 is a combination of the vectors of the Lanczos
run from z, whose T is known from the value. No basis is kept: the run is made once more and its vectors are added up as they come.
"""

from __future__ import annotations

import math
from typing import Any

from .. import autodiff
from ..backends import Array, is_array
from ..info import DerivativeWarning, Status, recording, report
from ..methods import SLQ
from ..operators.base import LinearOperator
from ..operators.fields import directional, pullback
from .scalar_functions import Scalar

LOOSE = "trace: SLQ's run is too short for this derivative: f'(A) z has not converged. Raise max_iters."


def slope_of(f: Scalar) -> Any:
    """f' as a function `(xp, x)` of real numbers, by the framework's own derivative."""

    def slope(xp: Any, x: Array) -> Array:
        ones = xp.ones(tuple(x.shape), dtype=x.dtype, device=xp.device_of(x))
        return xp.jvp(lambda y: f.of(xp, y), x, ones)[1]

    return slope


def differentiable_trace(A: LinearOperator, method: SLQ, mean: Any) -> Array:
    """tr f(A) with its derivatives.

    `mean(A)` computes the trace and reports on it; it returns the trace, the random vectors Z, Y = f'(A) Z (*batch, n, k), and how
    small the last coefficients of f'(A) z are, relative to all of them.
    """
    xp = A.xp
    leaves, told = A.arrays(), []

    def value(*arrays: Array) -> tuple[Array, ...]:
        with recording() as reports:  # what is traced inside comes out as a value, or not at all
            found, Z, Y, tail = mean(A.with_arrays(arrays))
        info = reports[-1]
        told.append(info.replace(status=0, converged=True, error=None))
        status = info._status if is_array(info._status) else xp.asarray(int(info._status), device=A._context.device)
        return found, Z, Y, tail, info.error, xp.astype(status, info.error.dtype)

    def held(primals: Any, output: Any) -> tuple[Array, Array]:
        """Z and f'(A) Z, of which derivatives of second order are refused."""
        _, Z, Y, tail, *_ = (xp.stop_gradient(x) for x in output)
        xp.warn_later(xp.any(tail > math.sqrt(xp.eps(Z.dtype))), LOOSE, category=DerivativeWarning)
        return Z, autodiff.refused(xp, Y, primals, "trace: the first derivative by SLQ", "Eigh(), or logdet(A, SLQ())")

    def jvp(primals: Any, tangents: Any, output: Any) -> Any:
        Z, Y = held(primals, output)
        moved = directional(A.with_arrays(primals), lambda A: A @ Z, tangents)[1]
        slope = xp.mean(xp.real(xp.vecdot(Y, moved, axis=-2)), axis=-1)
        return xp.astype(slope, output[0].dtype), *(0 * x for x in output[1:])

    def vjp(primals: Any, output: Any, cotangents: Any) -> Any:
        Z, Y = held(primals, output)
        share = xp.astype(xp.real(cotangents[0]) / Z.shape[-1], Y.dtype)[..., None, None]
        return pullback(A.with_arrays(primals), lambda A: A @ Z, share * Y)

    found, _, _, _, error, status = xp.custom_derivative(value, jvp=jvp, vjp=vjp)(*leaves)
    worst: Any = xp.astype(status, xp.asarray(0).dtype) if xp.is_traced(status) else Status(int(status))
    report(told[-1].replace(status=worst, converged=worst < int(Status.STOPPED), error=xp.stop_gradient(error)))
    return found
