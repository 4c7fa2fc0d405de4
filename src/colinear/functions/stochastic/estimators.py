"""Traces and diagonals estimated from products with random vectors, of a whole or of its parts."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

from ...backends import Array, is_array, namespace_of, program
from ...dispatch import Choice, Cost
from ...errors import ApproximationWarning, MethodError
from ...info import Info, report, total
from ...methods import Hutchinson, HutchPP, XDiag, XNysTrace, XTrace
from ...methods.exchangeable import diagonal_summary, nystrom_summary, range_of, trace_summary
from ...methods.sampling import (
    Mean,
    averaged,
    draw,
    outside,
    part_seeds,
    product,
    quantile,
    range_part,
    samples,
    standard_error,
    worse,
)
from ...operators import LinearOperator
from ...operators.context import kind_of
from ...operators.scaled import beside
from ...properties import POSITIVE_SEMIDEFINITE
from ...status import Status, combine, first_failure, users_level
from ..common import filled, ignore_float_errors, is_half, to_computing_dtype, to_result_dtype
from .terms import count_terms, terms_of

# Estimates of parts put together: independent random numbers for each, and the standard error of
# the whole from theirs.


def _whole(
    f: Any,
    parts: Sequence[LinearOperator],
    method: Any,
    combine_values: Callable[[list[Array]], Array],
    combine_errors: Callable[[list[Array], list[Array]], Array],
) -> Array:
    """f of a whole, `combine_values(values)` of its parts; reports its standard error,
    `combine_errors(values, errors)`.

    A tolerance is looked at again, since the parts may cancel.
    """
    xp, values, errors, infos = parts[0].xp, [], [], []
    for A, seed in zip(parts, part_seeds(method.seed, len(parts)), strict=True):
        value, info = f(A, method.part(seed, len(parts)), info=True)
        values.append(value)
        infos.append(info)
        # what is known exactly tells no error
        errors.append(0 * xp.abs(value) if info.error is None else info.error)
    value, error = combine_values(values), combine_errors(values, errors)
    met: Any = True
    if method.tol is not None:
        size, half = xp.abs(value), quantile(method.confidence, 1e9) * error
        met = xp.sqrt(xp.sum(half**2)) <= method.tol * xp.sqrt(xp.sum(size**2))
    matvecs, statuses = total(i.matvecs for i in infos), [info._status for info in infos]
    report_estimate(xp, method, error, met, matvecs, *statuses, children=tuple(infos))
    return value


def is_stochastic(method: Any) -> bool:
    """Whether a method that estimates is named."""
    return method is not None and method.is_stochastic


def times_scalar(f: Any, c: Any, A: LinearOperator, method: Any, event: int) -> Array:
    """c f(A)."""
    c = beside(c, event)
    if not is_stochastic(method):
        return c * f(A, method)
    value, info = f(A, method, info=True)
    size = abs(c) if namespace_of(c) is None else namespace_of(c).abs(c)
    report(
        info.replace(error=None if info.error is None else size * info.error, function="", rule="")
    )
    return c * value


def added_estimates(
    f: Any, parts: Sequence[LinearOperator], method: Any, weights: Sequence[float]
) -> Array:
    """Σ_i w_i f(A_i) of estimates, of variance Σ_i w_i^2 σ_i^2."""
    return _whole(
        f,
        parts,
        method,
        lambda values: reduce(add, (w * v for w, v in zip(weights, values))),
        lambda _, errors: parts[0].xp.sqrt(
            reduce(add, ((w * e) ** 2 for w, e in zip(weights, errors)))
        ),
    )


def multiplied(
    f: Any, parts: Sequence[LinearOperator], method: Any, multiply: Callable[[Any, Any], Any]
) -> Array:
    """∏_i f(A_i); of estimates of variance ∏ (v_i^2 + σ_i^2) - ∏ v_i^2 for independent factors."""
    if not is_stochastic(method):
        return reduce(multiply, [f(part, method) for part in parts])
    xp = parts[0].xp

    def combine_errors(values: list[Array], errors: list[Array]) -> Array:
        squares = [xp.abs(v) ** 2 for v in values]
        seconds = [s + e**2 for s, e in zip(squares, errors)]
        variance = reduce(multiply, seconds) - reduce(multiply, squares)
        return xp.sqrt(xp.where(variance > 0, variance, 0))

    return _whole(f, parts, method, lambda values: reduce(multiply, values), combine_errors)


def concatenated(
    f: Any, parts: Sequence[LinearOperator], method: Any, beside: Callable[..., Array]
) -> Array:
    """f(A_1), f(A_2), ... one after the other."""
    xp = parts[0].xp

    def combine_errors(values: list[Array], errors: list[Array]) -> Array:
        return beside(errors, xp.real_dtype(xp.result_type(*(value.dtype for value in values))))

    return _whole(f, parts, method, beside, combine_errors)


def powers_of_estimates(
    A: LinearOperator, f: Any, parts: Sequence[LinearOperator], method: Any, powers: Sequence[int]
) -> tuple[Array, Array]:
    """Sign and logarithm of ∏_i det(A_i)^p_i for positive definite parts, whose logarithms are
    estimated."""
    logarithm = added_estimates(f, parts, method, powers)
    return A.xp.ones(A.batch_shape, **kind_of(A)), logarithm


# Traces and diagonals estimated from products with random vectors: how the methods for them are
# run, and what is said of the result.


TRACE = (Hutchinson, HutchPP, XTrace, XNysTrace)  # the methods
DIAGONAL = (Hutchinson, HutchPP, XDiag)
ROOM = 1 << 22  # numbers in a block of random vectors
PRODUCTS_OF_COLUMN = {XNysTrace: 1, XTrace: 2, XDiag: 2, HutchPP: 3}
FIRST = 16  # products of the first try of a method that doubles them
Exact = Callable[[], Array]


def estimated(A: LinearOperator, method: Any, exact: Exact, diagonal: bool) -> Array:
    """The trace (*batch,) or the diagonal (*batch, n) of square A by a stochastic method;
    `exact()` by n products."""
    n = A.shape[-1]
    if isinstance(method, Hutchinson) and method.is_doubly_stochastic:
        terms, size = count_terms(A), method.batch_size or 1
        if size > terms:
            raise ValueError(
                f"Hutchinson: batch_size is {size} and A is a sum of {terms} terms; it must not "
                "exceed them."
            )
    if 0 in A.shape or (method.probes is None and n <= method.most and method.tol is None):
        return _exactly(A, exact, method)
    with ignore_float_errors(A.xp):
        run = _averaged if isinstance(method, Hutchinson) else _doubled
        return run(A, method, exact, diagonal)


def is_traced(A: LinearOperator, seed: Any = 0) -> bool:
    """Whether values of A, or the seed, cannot be seen."""
    return any(A.xp.is_traced(x) for x in (*A.leaves(), seed) if is_array(x))


def _exactly(A: LinearOperator, exact: Exact, method: Any) -> Array:
    """By n products, which is no more than the estimate would take."""
    value = exact()
    message = "exact, by as many products as A has columns"
    error = filled(A, 0.0, *value.shape)
    report(Info(error=error, matvecs=A.shape[-1], method=method.name, message=message))
    return value


def _draw(A: LinearOperator, key: Any, kind: str, k: int) -> Array:
    """k random vectors, (*batch, n, k)."""
    return draw(A.xp, key, kind, (*A.batch_shape, A.shape[-1], k), A.dtype, A._context.device)


# --------------------------------------------------------------------------------------------------


def _averaged(A: LinearOperator, method: Any, exact: Exact, diagonal: bool) -> Array:
    """Hutchinson's mean, with one random vector for A or with one for each term."""
    xp, n, batch, device = A.xp, A.shape[-1], A.batch_shape, A._context.device
    gen, most = xp.generator(method.seed), method.most
    width = max(1, min(most, ROOM // max(1, n * math.prod(batch))))
    if method.tol is not None:
        width = min(width, FIRST)

    def sample(i: Any, k: int) -> tuple[Array, Array, Any]:
        key = xp.fold_in(gen, i)
        if method.is_doubly_stochastic:
            return _summed_terms(A, method, key, k, diagonal)
        Z = _draw(A, key, method.distribution, k)
        Y, good, status = product(xp, A.__matmul__, Z)
        return samples(xp, Z, Y, diagonal), good, status

    work = computing_dtype(A)
    shape = (*batch, n) if diagonal else batch
    nothing = xp.zeros(shape, dtype=work, device=device)
    none = xp.zeros(batch, dtype=xp.real_dtype(work), device=device)
    traced = is_traced(A, method.seed)
    reach = n if method.probes is None and n <= most else math.inf
    found, met = averaged(
        xp,
        sample,
        Mean(none, nothing, xp.abs(nothing), 0, 0, 0),
        most=most,
        width=width,
        event=int(diagonal),
        tol=method.tol,
        confidence=method.confidence,
        reach=reach,
        traced=traced,
    )
    error = standard_error(xp, found.count, found.spread, int(diagonal))
    value = found.mean
    # where the tolerance needs more than n products, n products give all
    if reach < math.inf and method.tol is not None:
        if not traced and not met:
            return _exactly(A, exact, method)
        if traced:
            value = xp.cond(met, lambda v: v, lambda v: xp.astype(exact(), v.dtype), value)
            error, met = xp.where(met, error, 0), True
    value = xp.where((found.count > 0)[..., None] if diagonal else found.count > 0, value, math.nan)
    report_estimate(xp, method, error, met, found.drawn, found.status)
    return to_result_dtype(xp, value, A.dtype)


def _summed_terms(
    A: Any, method: Any, key: Any, k: int, diagonal: bool
) -> tuple[Array, Array, Any]:
    """One sample of the doubly stochastic estimator for each of k probes: Σ_i conj(z_i) * A_i
    z_i, each z_i drawn anew."""
    xp, worst = A.xp, 0
    total: Any = 0
    all_good: Any = True
    for i, terms in enumerate(terms_of(A, method.batch_size or 1, k)):
        Z = terms.draw(A, xp.fold_in(key, i), method.distribution, k)
        Y, good, status = product(xp, terms.operator.__matmul__, Z)
        X = samples(xp, Z, Y, diagonal)
        if terms.axis is not None:
            kept = xp.where(good[..., None, :] if diagonal else good, X, 0)
            X = xp.sum(kept, axis=terms.axis - (2 if diagonal else 1))
            good = xp.all(good, axis=terms.axis - 1)
        all_good = good & all_good
        total = total + beside(terms.factor, 2 if diagonal else 1) * X
        worst = worse(xp, worst, status)
    shape = (*A.batch_shape, *total.shape[-2 if diagonal else -1 :])
    return xp.broadcast_to(total, shape), xp.broadcast_to(all_good, (*A.batch_shape, k)), worst


def _if_good(xp: Any, good: Array, value: Array, diagonal: bool) -> Array:
    """A value that all columns went into: NaN where one of them failed."""
    fine = xp.all(good, axis=-1)
    return xp.where(fine[..., None] if diagonal else fine, value, math.nan)


# --------------------------------------------------------------------------------------------------


def _doubled(A: LinearOperator, method: Any, exact: Exact, diagonal: bool) -> Array:
    """A method whose products depend on each other: with a tolerance it is run again with twice
    as many until that is met."""
    xp, n, tol = A.xp, A.shape[-1], method.tol
    if isinstance(method, XNysTrace) and not A.properties & POSITIVE_SEMIDEFINITE:
        raise MethodError(
            "XNysTrace: for positive semidefinite A alone, and A is not known to be. Say PSD(A), "
            "or use XTrace()."
        )
    counts = [method.most]
    if tol is not None and not is_traced(A, method.seed):
        counts = [c for c in (FIRST * 2**i for i in range(30)) if c < method.most] + counts
    elif tol is not None and method.probes is None:
        raise MethodError(
            f"{method.name}: under jit the number of products must be fixed: give probes, or "
            "use Hutchinson(tol=...)."
        )
    gen, spent = xp.generator(method.seed), 0
    for i, count in enumerate(counts):
        columns = count // PRODUCTS_OF_COLUMN[type(method)]
        if columns >= n or (tol is not None and method.probes is None and count >= n):
            return _exactly(A, exact, method)
        key = xp.fold_in(gen, i)
        value, error, good, status = _one_run(A, method, key, columns, count, diagonal)
        value = _if_good(xp, good, value, diagonal)
        error = xp.where(xp.isfinite(value), error, math.inf)
        spent += count
        met = meets(xp, method, value, error, columns, diagonal)
        if tol is not None and not xp.is_traced(met):
            met = bool(met)
            if met or status:
                break
    report_estimate(xp, method, error, met, spent, status)
    return to_result_dtype(xp, value if not A.is_complex else xp.astype(value, A.dtype), A.dtype)


def meets(
    xp: Any, method: Any, value: Array, error: Array, count: int, diagonal: bool = False
) -> Any:
    """Whether an estimate from so many samples is within the tolerance, if there is one."""
    if method.tol is None:
        return True
    size = xp.abs(value)
    if diagonal:
        error, size = (xp.sqrt(xp.sum(x**2, axis=-1)) for x in (error, size))
    return xp.all(quantile(method.confidence, max(1, count - 1)) * error <= method.tol * size)


def _one_run(
    A: LinearOperator, method: Any, key: Any, columns: int, count: int, diagonal: bool
) -> tuple[Array, Array, Array, Any]:
    """The estimate, its standard error, which products have worked, and the status."""
    xp, side = A.xp, A.H if diagonal else A
    if isinstance(method, HutchPP):
        S = _draw(A, xp.fold_in(key, 0), "rademacher", columns)
        Y, good, status = product(xp, A.__matmul__, S)
        Q = xp.qr(to_computing_dtype(xp, Y))[0]
        # tr(Q^H A Q) or diag(Q Q^H A), and samples of (I - Q Q^H) A; its trace is that of
        # (I - Q Q^H) A (I - Q Q^H), of smaller variance
        inside = _if_good(xp, good, range_part(xp, Q, side.__matmul__, diagonal), diagonal)
        rest = lambda Z: outside(xp, Q, A @ (Z if diagonal else outside(xp, Q, Z)))
        Z = _draw(A, xp.fold_in(key, 1), "rademacher", count - 2 * columns)
        Y, good, worst = product(xp, rest, Z)
        value, error = mean_and_error(xp, samples(xp, Z, Y, diagonal))
        return value + inside, error, good, worse(xp, status, worst)
    W = _draw(A, key, "rademacher" if diagonal else "gaussian", columns)
    Y, good, status = product(xp, A.__matmul__, W)
    W, Y = to_computing_dtype(xp, W), to_computing_dtype(xp, Y)
    if isinstance(method, XNysTrace):
        value, error, positive = program(xp.name, nystrom_summary)(W, Y)
        definite = first_failure(xp, (xp.all(positive), Status.NOT_POSITIVE_DEFINITE))
        return value, error, good, worse(xp, status, definite)
    Q, R, S, lost = program(xp.name, range_of)(Y)
    Z, fine, worst = product(xp, side.__matmul__, Q)
    Z = xp.astype(Z, Q.dtype)
    if diagonal:
        value, error = program(xp.name, diagonal_summary)(lost, W, Q, R, S, Z)
    else:
        value, error = program(xp.name, trace_summary)(lost, W, Y, Q, S, Z)
    return value, error, xp.logical_and(good, fine), worse(xp, status, worst)


def mean_and_error(xp: Any, X: Array) -> tuple[Array, Array]:
    """The mean of estimates along the last axis, and its standard error."""
    mean = xp.mean(X, axis=-1)
    spread = xp.sum(xp.abs(X - mean[..., None]) ** 2, axis=-1)
    return mean, standard_error(xp, X.shape[-1] + 0 * spread, spread)


# --------------------------------------------------------------------------------------------------


def report_estimate(
    xp: Any, method: Any, error: Array, met: Any, matvecs: Any, *statuses: Any, **details: Any
) -> None:
    """Report an estimate: the failures of products, or a tolerance that was missed."""
    missed = first_failure(xp, (met, Status.MAX_ITERATIONS))
    status, name = combine([*statuses, missed]), method.name
    message = missed_tolerance(method) if status is missed is Status.MAX_ITERATIONS else ""
    report(Info(status, error=error, matvecs=matvecs, method=name, message=message, **details))


def missed_tolerance(method: Any) -> str:
    """What is said where a tolerance was missed."""
    return f"the confidence interval did not shrink to the tolerance, tol = {method.tol:g}; raise probes or tol"


def computing_dtype(A: LinearOperator) -> Any:
    """Single precision in place of half, else the dtype of A."""
    return A.xp.float32 if is_half(A.xp, A.dtype) else A.dtype


def announce(function: str, A: LinearOperator, name: str) -> None:
    """Warn that `Auto` estimates, for want of an affordable exact answer."""
    warnings.warn(
        f"{function}: an exact answer for this {A.shape[-2]}x{A.shape[-1]} operator is out of "
        f"reach, so it is an estimate by {name}(): info=True gives its standard error. Name a "
        "method, or use Auto(exact=True), to have it otherwise.",
        ApproximationWarning,
        stacklevel=users_level(),
    )


def estimate(
    function: str,
    A: LinearOperator,
    method: Any,
    is_free: bool,
    run: Callable[[], Any],
    like: Callable[[], Any],
) -> Choice:
    """The choice of an estimate from random vectors: asked for, or (`is_free`) because n
    products would take too long."""

    def announced() -> Any:
        if is_free:
            announce(function, A, method.name)
        return run()

    def cost() -> Cost:
        return Cost(min(n, method.most) * A.flops, 8.0 * min(n * method.most, ROOM))

    n = A.shape[-1]
    why = f"{'n products would take too long' if is_free else 'asked for'}; products with random vectors"
    return Choice(announced, method.name, cost, why, like)
