"""Estimates from random vectors: the vectors and their seeds, samples, and means with standard
errors.

For z with E[z z^H] = I: E[z^H A z] = tr A, E[conj(z) * A z] = diag A (Hutchinson 1989; Bekas,
Kokiopoulou and Saad 2007). Samples are drawn in blocks, a fixed number or until a tolerance is met;
the mean and the sum of squares about it are merged block by block (Chan, Golub and LeVeque 1983).
Samples that failed are left out, and counted in the status.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..backends import Array, get, inner_products, namespace_of, positive_or_one, program
from ..info import recording
from ..status import FIRST_FAILURE, Status, combine, failed
from .base import SHOWN, Method, check_choice, check_integer
from .loop import show
from .vectors import LinearMap

SMALL = 2**31  # seeds below this are the same number in every framework
FEWEST = 16  # samples before a standard error is believed


DISTRIBUTIONS = ("rademacher", "gaussian", "sphere")


DEFAULT_PROBES = 32


MOST_PROBES = 10_000  # that a run with a tolerance draws, unless told


class Stochastic(Method):
    """What the estimators share. Not to be used itself.

    Parameters
    ----------
    probes : int, optional
        The products with A to spend; with `tol`, the most of them. Default 32, or with `tol` 10
        000.
    tol : float, optional
        The relative error to reach: random vectors are drawn until the half width of the confidence
        interval is at most `tol` times the estimate (of a diagonal: both in the 2-norm). Where it
        is not reached the status is MAX_ITERATIONS.
    confidence : float
        Of that interval.
    seed : int, JAX key, or NumPy or torch generator
        Of the random numbers. An integer or a key gives the same answer each time; a generator
        moves on.
    progress : bool
        Whether to show on standard error what is under way, from the third second on.
    """

    probes: int | None
    confidence: float
    seed: Any

    is_iterative = True
    is_stochastic = True
    least: ClassVar[int] = 1  # products that it needs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "probes", self.least, f"an integer, at least {self.least}")
        if not 0 < self.confidence < 1:
            raise ValueError(
                f"{self.name}: confidence is {self.confidence!r}; it must lie between 0 and 1."
            )
        check_seed(self.name, self.seed)
        check_choice(self, "distribution", DISTRIBUTIONS)

    @property
    def most(self) -> int:
        """The most products to spend."""
        return self.probes or (DEFAULT_PROBES if self.tol is None else MOST_PROBES)

    def part(self, seed: Any, parts: int) -> Any:
        """The same method for one of several parts, its errors independent of those of the
        others."""
        return replace(
            self,
            seed=seed,  # type: ignore[type-var]
            tol=None if self.tol is None else self.tol / parts**0.5,
        )


@dataclass(frozen=True)
class Hutchinson(Stochastic):
    """The mean of z^H A z (of conj(z) * A z, for the diagonal) over random vectors z (Hutchinson
    1989).

    For real symmetric A the variance of one sample of the trace is 2 (|A|_F^2 - Σ a_ii^2) for
    signs, 2 |A|_F^2 for Gaussian vectors, and 2 n / (n + 2) (|A|_F^2 - tr(A)^2 / n) on the sphere.

    Parameters
    ----------
    probes : int, optional
        How many random vectors; default 32 (for a smaller A the answer is then exact). With `tol`
        the most of them, default 10 000.
    distribution : {"rademacher", "gaussian", "sphere"}
        Signs, normal numbers, or directions of length sqrt(n).
    per_term : bool
        For a sum A = Σ_i A_i: a random vector of its own for each term. That is the doubly
        stochastic estimator of the paper, at the cost of one product with A per probe; its variance
        is the sum of those of the terms, that of Σ z^H A_i z with one z is m times as much for m
        terms alike. `Sum`, `BatchSum`, `LowRank` and products B C (a sum over the columns of B) are
        sums.
    batch_size : int, optional
        As `per_term`, with one random vector for each so many terms: fewer random numbers.
    tol, confidence, seed, progress
        See the other estimators: draw until the confidence interval is that small.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.arange(1000.0)))
    >>> value, info = co.trace(A, co.Hutchinson(probes=10), info=True)
    >>> float(value), float(info.error)  # signs give diagonal matrices exactly
    (499500.0, 0.0)
    """

    probes: int | None = None
    distribution: str = "rademacher"
    per_term: bool = False
    tol: float | None = None
    confidence: float = 0.95
    seed: Any = field(default=0, compare=False)
    batch_size: int | None = None
    progress: bool = SHOWN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "batch_size", 1, "a positive integer")

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether terms of a sum have random vectors of their own."""
        return self.per_term or self.batch_size is not None


@dataclass(frozen=True)
class SimpleEstimator(Stochastic):
    """What the estimators without further options share. Not to be used itself."""

    probes: int | None = None
    tol: float | None = None
    confidence: float = 0.95
    seed: Any = field(default=0, compare=False)
    progress: bool = SHOWN


class HutchPP(SimpleEstimator):
    """Hutch++ (Meyer, Musco, Musco and Woodruff 2021): a third of the products finds a range, whose
    part is exact; Hutchinson does the rest. The error falls as 1 / probes, not as its square root.
    Diagonals need products with A^H too.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.LowRank(np.ones((1000, 1))))
    >>> float(co.trace(A, co.HutchPP(probes=12)).round(6))
    1000.0
    """

    least = 3


def check_seed(name: str, seed: Any) -> None:
    """An error if no random numbers can be drawn from this."""
    if isinstance(seed, (bool, float, str, type(None))):
        raise TypeError(
            f"{name}: seed is {seed!r}; give an integer, a JAX key, or a NumPy or torch "
            "generator. Runs with one integer are the same."
        )
    if isinstance(seed, (int, np.integer)) and seed < 0:
        raise ValueError(f"{name}: seed is {seed}; an integer seed must not be negative.")


def part_seeds(seed: Any, count: int) -> list[Any]:
    """Seeds of independent streams, one for each part of a problem; a generator serves all, as it
    moves on."""
    if isinstance(seed, (int, np.integer)):
        children = np.random.SeedSequence(int(seed)).spawn(count)
        return [int(child.generate_state(1)[0]) % SMALL for child in children]
    xp = namespace_of(seed)
    return (
        [seed] * count if xp is None else [xp.fold_in(xp.generator(seed), i) for i in range(count)]
    )


def drawn_seed(seed: Any) -> Any:
    """An integer in place of a generator, which moves on by it; integers and JAX keys as they
    are."""
    if isinstance(seed, (int, np.integer)):
        return int(seed)
    return _integer(seed) if namespace_of(seed) is None else seed


def _integer(seed: Any) -> int:
    """An integer that a generator or a key gives."""
    return int(get("numpy").generator(seed).integers(SMALL))


def static_seed(seed: Any) -> int:
    """An integer, which a compiled program can be made for, in place of any seed; zero for a key
    that is traced (see `Seeded`)."""
    seed = drawn_seed(seed)
    if isinstance(seed, int):
        return seed
    return 0 if namespace_of(seed).is_traced(seed) else _integer(seed)


class Mean(NamedTuple):
    """What the samples so far say."""

    count: Array  # (*batch,), those that did not fail
    mean: Array  # (*batch, *event)
    spread: Array  # the sum of |x - mean|^2, of the same shape
    status: Any  # the worst so far, a number
    drawn: Any  # all of them
    block: Any


Sample = Callable[[Any, int], tuple[Array, Array, Any]]


def quantile(confidence: float, freedom: Any) -> Any:
    """Student's t: |t| is below this with the given probability (by the expansion of Cornish and
    Fisher)."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def standard_error(xp: Any, count: Array, spread: Array, event: int = 0) -> Array:
    """Of the mean of so many samples, infinite for a single one; `event` dimensions of the spread
    follow those of the count."""
    count = count[(..., *(None,) * event)]
    known = count > 1
    error = xp.sqrt(spread / xp.where(known, count * (count - 1), 1))
    return xp.where(known, error, math.inf)


def ratio_to_goal(xp: Any, s: Mean, tol: float, confidence: float, event: int) -> Array:
    """The half width of the confidence interval over tol times the estimate: at most 1 if the
    tolerance is met."""
    error = standard_error(xp, s.count, s.spread, event)
    size = abs(s.mean)
    if event:
        error, size = (xp.sqrt(xp.sum(x**2, axis=-1)) for x in (error, size))
    half = quantile(confidence, xp.where(s.count > 1, s.count - 1, 1)) * error
    return xp.where(half == 0, 0, half / xp.where(size > 0, tol * size, 1e-300))


def merged(xp: Any, s: Mean, X: Array, good: Array, status: Any, event: int) -> Mean:
    """With a block of samples, X of shape (*batch, *event, width), of which those marked good are
    counted."""
    count, mean, spread = program(xp.name, _numbers, event)(s.count, s.mean, s.spread, X, good)
    return Mean(
        count, mean, spread, worse(xp, s.status, status), s.drawn + X.shape[-1], s.block + 1
    )


def _numbers(
    xp: Any, event: int, count: Array, mean: Array, spread: Array, X: Array, good: Array
) -> tuple[Array, ...]:
    mask, wide = good[(..., *(None,) * event, slice(None))], (..., *(None,) * event)
    new = xp.sum(xp.astype(good, spread.dtype), axis=-1)
    total = count + new
    center = xp.sum(xp.where(mask, X, 0), axis=-1) / positive_or_one(xp, new)[wide]
    inside = xp.sum(xp.where(mask, abs(X - center[..., None]) ** 2, 0), axis=-1)
    step, share = center - mean, (new / positive_or_one(xp, total))[wide]
    return total, mean + step * share, spread + inside + abs(step) ** 2 * count[wide] * share


def worse(xp: Any, a: Any, b: Any) -> Any:
    """The larger of two statuses, numbers or traced."""
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    a, b = (xp.asarray(int(x)) if isinstance(x, int) else x for x in (a, b))
    return xp.maximum(a, b)


def averaged(
    xp: Any,
    sample: Sample,
    first: Mean,
    *,
    most: int,
    width: int,
    event: int,
    tol: float | None,
    confidence: float,
    reach: float,
    traced: bool,
) -> tuple[Mean, Any]:
    """The mean of samples, and whether it meets the tolerance.

    Parameters
    ----------
    sample : callable
        `sample(i, width)`: the i-th block, (*batch, *event, width), which of them worked, and the
        worst status.
    first : Mean
        Of no samples.
    most, width : int
        Samples at most, and in a block.
    event : int
        0 for numbers, 1 for vectors.
    tol : float, optional
        Drawn are `most` if it is None.
    reach : int
        So many products would give the exact answer: a run that is seen to need more ends.
    """
    state = first
    if tol is None:
        for start in range(0, most, width):
            show(partial("{} of {} samples".format, start, most))
            state = merged(xp, state, *sample(state.block, min(width, most - start)), event)
        return state, True
    width = min(width, most)

    def step(s: Mean) -> Mean:
        return merged(xp, s, *sample(s.block, width), event)

    def is_open(s: Mean) -> Any:
        ratio = ratio_to_goal(xp, s, tol, confidence, event)
        is_believed = s.count >= min(FEWEST, most)
        ratio = xp.where(is_believed, ratio, 2)
        return xp.any((ratio > 1) & ~(is_believed & (ratio**2 * s.count > reach)))

    def going(s: Mean) -> Any:
        return is_open(s) & (s.drawn + width <= most)

    if traced:
        begin = first._replace(status=xp.asarray(0), drawn=xp.asarray(0), block=xp.asarray(0))
        state = xp.while_loop(going, step, begin)
    else:
        while going(state):  # at the start it does: nothing is known
            state = step(state)
            show(partial("{} samples, of {} at most".format, state.drawn, most))
    met = xp.all(ratio_to_goal(xp, state, tol, confidence, event) <= 1)
    return state, met if traced else bool(met)


def draw(
    xp: Any, gen: Any, distribution: str, shape: tuple[int, ...], dtype: Any, device: Any
) -> Array:
    """Columns (*batch, n, k): signs, normal numbers, or directions of length sqrt(n).

    Half precision is drawn as single and rounded: signs are exact in it.
    """
    if distribution == "rademacher":
        return xp.rademacher(gen, shape, dtype=dtype, device=device)
    Z = xp.normal(gen, shape, dtype=dtype, device=device)
    if distribution == "gaussian":
        return Z
    return Z * (math.sqrt(shape[-2]) / xp.vector_norm(Z, axis=-2, keepdims=True))


def heard(xp: Any, multiply: LinearMap, X: Array, before: Any) -> tuple[Array, Any]:
    """A X, and the worst failure that A, applied by a method itself, has reported so far: a number,
    zero if there is none.

    For loops, whose body must hear what its products say: outside of it nobody can.
    """
    Y, failures = _recorded(multiply, X)
    worst = combine([info._status for info in failures])
    if isinstance(worst, Status):
        found: Any = int(worst) if worst.is_failure else 0
    else:
        found = xp.where(worst >= int(FIRST_FAILURE), worst, 0)
    if isinstance(found, int) and found == 0:
        return Y, before
    found = worse(xp, before, found)
    return Y, xp.astype(found, before.dtype) if xp.is_functional else found


def _recorded(multiply: LinearMap, X: Array) -> tuple[Array, list[Any]]:
    """A X, and what was reported on the way that is, or may be, a failure."""
    with recording() as reports:
        Y = multiply(X)
    return Y, [info for info in reports if failed(info._status) is not False]


def product(xp: Any, multiply: LinearMap, Z: Array) -> tuple[Array, Array, Any]:
    """A Z, which of the columns worked, (*batch, k), and the worst status.

    A column fails where it is not finite, and where A is applied by a method (the inverse of
    another operator, say) which says so.
    """
    Y, failures = _recorded(multiply, Z)
    good = xp.all(xp.isfinite(Y), axis=-2)
    fine, failure = xp.all(good), int(Status.NONFINITE)
    if xp.is_traced(fine):
        status = xp.where(fine, int(Status.SUCCESS), failure)
    else:
        status = int(Status.SUCCESS) if bool(fine) else failure
    for info in failures:
        worst = combine([info._status])
        status = worse(xp, status, int(worst) if isinstance(worst, int) else worst)
        converged = xp.asarray(info.converged)
        if converged.shape[-1:] in ((), Z.shape[-1:]):
            good = good & converged
    return Y, good, status


def samples(xp: Any, Z: Array, Y: Array, diagonal: bool) -> Array:
    """conj(z) * A z for each column, (*batch, n, k), or its sum z^H A z, (*batch, k); single
    precision at least."""
    if getattr(Y.dtype, "itemsize", 4) == 2:
        Z, Y = xp.astype(Z, xp.float32), xp.astype(Y, xp.float32)
    if diagonal:
        return xp.conj(Z) * Y
    return xp.vecdot(xp.astype(Z, Y.dtype), Y, axis=-2)


def outside(xp: Any, Q: Array, X: Array) -> Array:
    """(I - Q Q^H) X."""
    return X - xp.matmul(Q, inner_products(xp, Q, X))


def range_part(xp: Any, Q: Array, of_range: LinearMap, diagonal: bool) -> Array:
    """tr(Q^H A Q) from `of_range` X -> A X, or diag(Q Q^H A) from X -> A^H X."""
    Y = of_range(Q)
    if diagonal:
        return xp.sum(Q * xp.conj(Y), axis=-1)
    return xp.sum(xp.conj(Q) * Y, axis=(-2, -1))
