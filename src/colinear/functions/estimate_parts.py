"""Estimates of parts put together: independent random numbers for each, and the standard error of the whole from theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from ..backends import Array, namespace_of
from ..info import Info, Status, report, total
from ..methods.sampling import part_seeds, quantile, worse
from ..operators.base import LinearOperator
from ..operators.scaled import beside


def _parts(f: Any, parts: Sequence[LinearOperator], method: Any) -> tuple[list[Array], list[Array], list[Info]]:
    """Values, standard errors and what else is known of f of each part."""
    values, errors, infos = [], [], []
    for A, seed in zip(parts, part_seeds(method.seed, len(parts)), strict=True):
        value, info = f(A, method.part(seed, len(parts)), info=True)
        error = info.error
        errors.append(0 * A.xp.abs(value) if error is None else error)  # what is known exactly tells no error
        values.append(value)
        infos.append(info)
    return values, errors, infos


def _tell_whole(xp: Any, method: Any, value: Array, error: Array, infos: list[Info]) -> None:
    """Report the whole; a tolerance is looked at again, since the parts may cancel."""
    status: Any = Status.SUCCESS
    if method.tol is not None:
        size, half = xp.abs(value), quantile(method.confidence, 1e9) * error
        met = xp.sqrt(xp.sum(half**2)) <= method.tol * xp.sqrt(xp.sum(size**2))
        missed = int(Status.MAX_ITERATIONS)
        status = xp.where(met, 0, missed) if xp.is_traced(met) else Status(0 if bool(met) else missed)
    for info in infos:
        status = worse(xp, status, info._status)
    status = Status(status) if isinstance(status, int) else status
    report(Info(status, error=error, matvecs=total(i.matvecs for i in infos), method=method.name, children=tuple(infos)))


def scaled_estimate(f: Any, c: Any, A: LinearOperator, method: Any, event: int) -> Array:
    """c f(A)."""
    value, info = f(A, method, info=True)
    c = beside(c, event)
    size = abs(c) if namespace_of(c) is None else namespace_of(c).abs(c)
    report(info.replace(error=None if info.error is None else size * info.error, function="", rule=""))
    return c * value


def added_estimates(f: Any, parts: Sequence[LinearOperator], method: Any, weights: Sequence[float]) -> Array:
    """Σ_i w_i f(A_i), of variance Σ_i w_i^2 σ_i^2."""
    xp = parts[0].xp
    values, errors, infos = _parts(f, parts, method)
    value = reduce(add, (w * v for w, v in zip(weights, values)))
    error = xp.sqrt(reduce(add, ((w * e) ** 2 for w, e in zip(weights, errors))))
    _tell_whole(xp, method, value, error, infos)
    return value


def multiplied_estimates(f: Any, parts: Sequence[LinearOperator], method: Any, multiply: Callable[[Any, Any], Any]) -> Array:
    """∏_i f(A_i), of variance ∏ (v_i^2 + σ_i^2) - ∏ v_i^2 for independent factors."""
    xp = parts[0].xp
    values, errors, infos = _parts(f, parts, method)
    value = reduce(multiply, values)
    squares = [xp.abs(v) ** 2 for v in values]
    seconds = [s + e**2 for s, e in zip(squares, errors)]
    variance = reduce(multiply, seconds) - reduce(multiply, squares)
    _tell_whole(xp, method, value, xp.sqrt(xp.where(variance > 0, variance, 0)), infos)
    return value


def concatenated(f: Any, parts: Sequence[LinearOperator], method: Any, beside: Callable[..., Array]) -> Array:
    """f(A_1), f(A_2), ... one after the other."""
    xp = parts[0].xp
    values, errors, infos = _parts(f, parts, method)
    value = beside(values)
    _tell_whole(xp, method, value, beside(errors, xp.real_dtype(value.dtype)), infos)
    return value


def powers_of_estimates(
    A: LinearOperator, f: Any, parts: Sequence[LinearOperator], method: Any, powers: Sequence[int]
) -> tuple[Array, Array]:
    """Sign and logarithm of ∏_i det(A_i)^p_i for positive definite parts, whose logarithms are estimated."""
    logarithm = added_estimates(f, parts, method, powers)
    return A.xp.ones(A.batch_shape, dtype=A.dtype, device=A._context.device), logarithm
