"""What all iterations share: cycles, when to stop, and the `Info` at the end.

A method is a `cycle`: from X with the residual R = B - A X it runs its recurrence (`loop`) until it
believes each column to be solved. `solve_in_cycles` computes the true residual after each cycle,
and runs another from there if the recurrence was wrong and a cycle still helps. So a method can
only claim; success is decided by the true residual. `refined` is a method of this kind, whose cycle
solves in low precision (iterative refinement: Wilkinson 1963; Carson and Higham 2018):

    r = b - A x  in full precision,    d ≈ A^-1 r  in low precision,    x <- x + d
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..backends import Array, namespace_of, positive_or_one, zeros_like
from ..info import Info
from ..status import Status
from .device import Device, Vector
from .loop import NO_MONITOR, Loop, Monitor, Run, is_compiling
from .vectors import (
    BREAKDOWN,
    GIVEN_NONFINITE,
    NONFINITE,
    PRECONDITIONER,
    RESTART,
    RUNNING,
    SINGULAR,
    STAGNATION,
    SUCCESS,
    Columns,
    LinearMap,
    Recorded,
    Single,
    State,
    column_norms,
    final_code,
    is_plain,
    status_of,
)

# Factors by which a cycle must reduce the true residual for another to be worth it: one that claimed
# success, one that broke down, one that was full.
SUFFICIENT, RESTARTED, FULL = 0.5, 0.9, 1 - 1e-3
# A block of at least so many numbers is written over: new arrays of its size cost more than the
# work.
LARGE_BLOCK_NUMBERS = 1 << 15
FEW_COLUMNS = 8
FLOOR = 4  # times eps: a relative residual that no further cycle improves


class Outcome(NamedTuple):
    """An answer and how it was found, columns apart: arrays of shape (*batch, k), but `matvecs` and
    the first axis of `history`."""

    X: Array
    status: Array
    iterations: Array
    matvecs: Any
    residual: Array  # true and relative
    # by iteration, from the first residual on, as the recurrence has it; NaN where none was
    # recorded
    history: Array | None


class Products(NamedTuple):
    """What a method may multiply by: A, A^H, M and M^H, each None where it is not needed or not
    there; the columns of A, None where they are as many as its rows; for methods that draw from a
    sum, its terms; and whether the products take vectors (n,) too, not blocks alone."""

    multiply: LinearMap
    adjoint: LinearMap | None = None
    precondition: LinearMap | None = None
    precondition_adjoint: LinearMap | None = None
    columns: int | None = None
    terms: Any = None
    take_vectors: bool = False


class CycleStart(NamedTuple):
    """Where a solve stands between two cycles."""

    X: Array
    R: Array  # the true residual of the last cycle
    size: Array  # its norm
    residual: Array  # the norm of the residual of X, which may be that of a cycle before
    status: Array
    run: Run  # without its state
    products: Any  # with A
    norm: Any  # an estimate of |A|, where the method has one
    measure: Any  # how far from optimal it is, for least squares


class Recurrence(NamedTuple):
    """What a cycle does: `begin(ops, s)` starts a recurrence, `step(ops, state)` advances it.

    A state is a `State`, with a property or field `norm` where the recurrence estimates |A|. A step
    makes so many `products`, the start `at_first`; `on_device` says that `Device` knows its
    operations.
    """

    begin: Callable[[Any, CycleStart], Any]
    step: Callable[[Any, Any], Any]
    products: int = 1
    at_first: int = 0
    on_device: bool = False

    def cycle(self, solve: Solve, s: CycleStart) -> CycleStart:
        """Run the recurrence from s until it believes each column to be solved."""
        for ops in solve.kinds_of_vectors(s, self.on_device):
            ops.take(*solve.products[:3])
            try:
                run = s.run._replace(state=self.begin(ops, s))
                run = solve.loop.run(self.step, ops, run, ops.solution)
            except Recorded:
                continue
            break
        status, norm = ops.array(ops.code(run.state), s.status), getattr(run.state, "norm", None)
        X, run = ops.solution(run.state), run._replace(state=None)  # whose vectors are free again
        return solve.judge(
            s,
            run,
            status=status,
            X=X,
            products=self.products * (run.iteration - s.run.iteration) + self.at_first,
            norm=None if norm is None else ops.array(norm, s.norm),
        )


class Solve:
    """A X = B on its way through cycles of a method, each from the true residual that the one
    before has left. See `solve_in_cycles`."""

    def __init__(
        self,
        xp: Any,
        products: Products,
        B: Array,
        *,
        tol: float,
        max_iters: int,
        watch: Monitor = NO_MONITOR,
        optimality: Callable[[Array, Array, Array], Array] | None = None,
        consistent: bool = True,
    ):
        self.xp, self.products, self.tol = xp, products, tol
        self.optimality, self.consistent = optimality, consistent
        # what makes of numbers factors of vectors
        self.wide = (..., None) if B.ndim == 1 else (..., None, slice(None))
        self.axis, self.eps = max(-2, -B.ndim), xp.eps(B.dtype)
        if xp.is_functional:
            self.B, self.size, self.scale = normalised(xp, B, self.axis, self.wide, self.eps)
        else:
            sizes = column_norms(xp, B)
            scales = positive_or_one(xp, sizes)
            self.size, self.scale = sizes / scales, scales[self.wide]
            self.B = B / self.scale
        self.loop = Loop(xp, watch, max_iters, self.scale)

    def begin(self, X0: Array | None) -> CycleStart:
        """Where the first cycle starts."""
        xp, R, columns = self.xp, self.B, self.products.columns
        size = residual = self.size
        if R.ndim == 1:  # a constant to XLA: the norm is 1 wherever there is something to do
            size = xp.ones((), dtype=size.dtype)
        shape = list(R.shape)
        shape[self.axis] = shape[self.axis] if columns is None else columns
        X = zeros_like(xp, R, tuple(shape))
        if X0 is not None:  # of a zero right side the answer is known, whatever the guess
            X0 = xp.broadcast_to(X0 / self.scale, X.shape)
            X = xp.where((residual > 0)[self.wide], X0, X)
            R = R - self.products.multiply(X)
            size = residual = column_norms(xp, R)
        status = xp.where(residual <= self.tol, SUCCESS, RUNNING)
        status = xp.where(xp.isfinite(residual), status, GIVEN_NONFINITE)
        # without an initial guess no residual is larger than 1
        self.is_reachable = X0 is None and self.tol >= self.eps
        return CycleStart(
            X=X,
            R=R,
            size=size,
            residual=residual,
            status=status,
            run=self.loop.begin(status, residual),
            products=0 if X0 is None else 1,
            norm=0 * size,
            measure=None if self.optimality is None else 0 * size + 1,
        )

    def goes_on(self, s: CycleStart) -> Any:
        """Whether another cycle is to be made."""
        goes_on = self.xp.any(s.status == RUNNING) & (s.run.iteration < self.loop.limit)
        return goes_on if s.run.stopped is None else goes_on & (s.run.stopped ^ True)

    def goal(self, s: CycleStart) -> Any:
        """The squared norm of the residual at which a column is done with a cycle: one that has
        fallen by eps within a cycle is no longer that of x."""
        if self.is_reachable and s.size.ndim == 0:
            return self.tol**2
        return self.xp.maximum((self.eps * s.size) ** 2, self.tol**2)

    def kinds_of_vectors(self, s: CycleStart, on_device: bool) -> Iterator[Any]:
        """Yield the operations on vectors that fit, the quickest first."""
        xp, R, watch, options = self.xp, s.R, self.loop.watch, (self.tol, self.goal(s))
        is_unseen, may_overwrite = xp.peek(s.size) is None, is_plain(xp, R)
        if R.ndim == 2 and R.shape[-1] == 1 and may_overwrite:
            if not is_unseen:
                yield Single(xp, R.dtype, *options)
            elif watch.is_sparing:
                yield (Device if on_device else Vector)(xp, R.dtype, *options)
        if may_overwrite and math.prod(R.shape) >= LARGE_BLOCK_NUMBERS:
            few = R.ndim == 2 and R.shape[-1] <= FEW_COLUMNS
            yield Columns(xp, R.dtype, *options, waits=is_unseen, in_place=True, few=few)
        yield Columns(xp, R.dtype, *options, waits=is_unseen, axis=self.axis)

    def judge(
        self, s: CycleStart, run: Run, *, X: Array, status: Array, products: Any, norm: Any = None
    ) -> CycleStart:
        """Where the next cycle starts, by the true residual of X.

        `status` is what the cycle says of each column: it claims SUCCESS, is RUNNING when the cycle
        was full, wants to RESTART, or failed. `products` were made in it.
        """
        xp, tol = self.xp, self.tol
        R = self.B - self.products.multiply(X)
        # B has norm 1: a residual whose square overflows has failed, one whose square vanishes not
        size = residual = measure = xp.sqrt(xp.real(xp.vecdot(R, R, axis=self.axis)))
        before = s.size
        if self.optimality is not None:
            measure, before = xp.minimum(size, self.optimality(R, size, norm)), s.measure
        full, again = status == RUNNING, status == RESTART
        # Where a cycle did not reduce the residual by so much, there is nothing left to gain.
        enough = xp.where(full, FULL, xp.where(again, RESTARTED, SUFFICIENT))
        goes_on = (measure <= enough * before) & (measure > FLOOR * self.eps)
        spent = run.iteration >= self.loop.limit
        goes_on = goes_on | (full & (spent if run.stopped is None else run.stopped | spent))
        ended = xp.where(again, BREAKDOWN, STAGNATION)
        code = xp.where(status <= SUCCESS, xp.where(goes_on, RUNNING, ended), status)
        if self.optimality is not None:
            code = xp.where(measure <= tol, SINGULAR if self.consistent else SUCCESS, code)
        code = xp.where(size <= tol, SUCCESS, code)
        code = xp.where(xp.isfinite(size), code, xp.maximum(code, NONFINITE))
        if X is not s.X:  # a cycle that did harm is undone, where X was not written over
            better = size <= s.size
            X, residual = xp.where(better[self.wide], X, s.X), xp.where(better, size, s.residual)
            if self.optimality is not None:  # else such a column has ended, and R is not looked at
                R, size = xp.where(better[self.wide], R, s.R), residual
        return CycleStart(
            X=X,
            R=R,
            size=size,
            residual=residual,
            status=xp.where(s.status == RUNNING, code, s.status),
            run=run,
            products=s.products + products + 1,
            norm=s.norm if norm is None else norm,
            measure=None if self.optimality is None else measure,
        )

    def outcome(self, s: CycleStart) -> Outcome:
        """What a solve has come to, in the units of the user's right side."""
        self.loop.close(s.run.iteration, s.residual)
        return Outcome(
            X=multiplied(self.xp, s.X, self.scale),
            status=final_code(self.xp, s.status, s.run.stopped),
            iterations=s.run.each,
            matvecs=s.products * (self.B.shape[-1] if self.B.ndim > 1 else 1),
            residual=s.residual,
            history=self.loop.history(s.size, s.run.history),
        )


def normalised(xp: Any, B: Array, axis: int, wide: Any, eps: float) -> tuple[Array, ...]:
    """b / |b| for each column b; the norm of that, which is 1, or 0, or not finite; and |b|, or 1
    for zero, as a factor of B (`wide`).

    By two inner products, and not by the largest entry: XLA compiles them once for all that a
    recurrence has. The second is of b times a power of two where the squares of the first vanish
    or overflow. (An infinite |b| is infinite in the second result: of b / |b| XLA may say 0.)
    """
    power = 2.0**80 if eps > 1e-10 else 2.0**640  # 5/8 of the range of exponents
    square = xp.real(xp.vecdot(B, B, axis=axis))
    is_small, is_large = square < 1 / power, square == math.inf
    B = B * xp.where(is_small, power, xp.where(is_large, 1 / power, 1.0))[wide]
    size = xp.sqrt(xp.real(xp.vecdot(B, B, axis=axis)))
    divisor = xp.where(size > 0, size, 1.0)
    scale = divisor * xp.where(is_small, 1 / power, xp.where(is_large, power, 1.0))
    size = xp.where((size > 0) & (scale < math.inf), 1.0, size * scale)
    return B / divisor[wide], size, scale[wide]


class ResidualState(State):
    x: Array
    r: Array  # b - A x
    size: Any  # |r|^2
    status: Any

    @classmethod
    def start(cls, ops: Any, s: CycleStart, x: Array, **others: Any) -> Any:
        """The state before the first step of a cycle, of which x is the vector of s.X."""
        size = ops.number(s.size)
        status = ops.codes(s.status)
        return cls(x=x, r=ops.own(s.R), size=size * size, status=status, **others)


def by_steps(step: Callable[[Any, Any], Any]) -> Recurrence:
    """The recurrence whose steps change x and its residual r; it stops where r is small enough."""

    def begin(ops: Any, s: CycleStart) -> ResidualState:
        return ResidualState.start(ops, s, ops.over(s.X))

    def checked(ops: Any, s: Any) -> Any:
        s = step(ops, s)
        s.size = ops.dot(s.r, s.r)
        s.status = ops.reached(s.status, s.size)
        return s

    return Recurrence(begin, checked)


def solve_in_cycles(
    xp: Any,
    cycle: Callable[[Solve, CycleStart], CycleStart],
    products: Products,
    B: Array,
    X0: Array | None = None,
    **options: Any,
) -> Outcome:
    """Solve A X = B by cycles of a method, each from the true residual that the one before has
    left.

    The system is divided by |b| first, so that squared norms neither overflow nor vanish: `tol` is
    then the norm of the residual to reach. Other options are `max_iters` and `watch`.

    For least squares, `optimality(R, |r|, |A|)` is |A^H r| / (|A| |r|) for each column. Where this is
    at most `tol` nothing is left to gain: that is success, or, where a solution was expected to
    exist (`consistent`), SINGULAR.

    B may be one vector: then numbers are scalars. A program that is traced for a block of one
    column computes with it so, which takes half the time to compile.
    """
    is_idle = options.get("watch", NO_MONITOR).is_idle
    is_column = xp.is_functional and is_idle and products.take_vectors and B.shape[1:] == (1,)
    if is_column:
        B, X0 = B[:, 0], None if X0 is None else X0[:, 0]
    solve = Solve(xp, products, B, **options)
    first = last = solve.begin(X0)
    limit = solve.loop.limit
    if 0 in B.shape:
        pass
    elif is_compiling():  # all iterations are made, whatever comes of them
        last = cycle(solve, first)
        while isinstance(last.run.iteration, int) and last.run.iteration < limit:
            last = cycle(solve, last)
    elif xp.is_functional or xp.is_traced(first.size):
        last = xp.while_loop(solve.goes_on, functools.partial(cycle, solve), first)
    else:
        while bool(solve.goes_on(last)):
            last = cycle(solve, last)
    found = solve.outcome(last)
    if not is_column:
        return found
    X, status, iterations, matvecs, residual, _ = found
    return Outcome(X[:, None], status[None], iterations[None], matvecs, residual[None], None)


def without_unknowns(xp: Any, columns: int, B: Array, watch: Monitor) -> Outcome:
    """The outcome of every method for an A without rows or columns: nothing is left to gain."""
    products = Products(lambda X: X, columns=columns)
    solve = Solve(xp, products, B, tol=math.inf, max_iters=0, watch=watch)
    return solve.outcome(solve.begin(None))


def multiplied(xp: Any, X: Array, factor: Array) -> Array:
    """X times a factor, written over X if that may be."""
    if is_plain(xp, X, factor):
        X *= factor
        return X
    return X * factor


def described(
    xp: Any, outcome: Outcome, method: Any, watch: Monitor, preconditioned: bool, n: int = 0
) -> Info:
    """An outcome as an Info, with a word on what went wrong and when. `n` is the number of
    unknowns, if it is known."""
    status, residual, history = outcome.status, outcome.residual, outcome.history
    statuses, matvecs = status_of(status), outcome.matvecs
    if watch.vector and history is not None:
        history = history[..., 0]
    if xp.is_traced(status):
        worst: Any = xp.max(statuses)
        iterations: Any = xp.max(outcome.iterations)
        message = ""
    else:
        codes = xp.to_numpy(status)
        worst = Status(int(xp.to_numpy(statuses).max(initial=0)))
        iterations = 0 if 0 in status.shape else int(xp.max(outcome.iterations))
        if namespace_of(matvecs) is not None and not xp.is_traced(matvecs):
            matvecs = int(matvecs)
        message = _message(codes, xp.to_numpy(outcome.iterations), method, preconditioned)
        if not message and worst.is_failure and n:
            message = method.advice(worst, float(xp.max(residual)), xp.eps(residual.dtype), n)
        if history is not None:
            history = history[: iterations + 1]
    return Info(
        worst,
        converged=statuses < int(Status.STOPPED),
        iterations=iterations,
        matvecs=matvecs,
        residual=residual,
        history=history,
        method=method.name,
        message=message,
    )


def _message(codes: Any, iterations: Any, method: Any, preconditioned: bool) -> str:
    """A sentence on the worst column: what was met, from what, in which iteration."""
    if not codes.size:
        return ""
    worst = status_of(codes).argmax()
    code, status = codes.flat[worst], Status(int(status_of(codes).flat[worst]))
    is_alone = codes.size > 1 and (codes == code).sum() == 1
    of = f" of column {int((codes == code).argmax())}" if is_alone else ""
    where = f"in iteration {int(iterations.flat[worst])}{of}"
    what, shown = "the operator", "a direction p with p^H A p <= 0"
    if code in PRECONDITIONER:
        what, shown = "the preconditioner", "a residual r with r^H M r <= 0"
    if status < Status.BREAKDOWN:
        return ""
    if code == GIVEN_NONFINITE:
        return f"NaN or infinity in the right side or in A x0{of}"
    if code == NONFINITE and preconditioned and not method.splits_preconditioner:
        what = "the operator or the preconditioner"  # which is a part of the product
    if status is Status.NONFINITE:
        return f"NaN or infinity from {what} {where}"
    if status is Status.NOT_POSITIVE_DEFINITE:
        return f"{what} showed {shown} {where}"
    if status is Status.BREAKDOWN and method.needs_terms:
        return (
            f"it diverged {where}: the step is too large. "
            "Leave out `step`, which finds one, or take a larger batch_size"
        )
    if status is Status.SINGULAR and method.name == "GMRES":
        product = "A M, M being the preconditioner," if preconditioned else "A"
        return f"{product} is singular on the subspace {where}"
    if status is Status.SINGULAR:
        return (
            f"A^H r vanished {where} and r did not: "
            "the right side is not in the range of A, and x is one of least squares"
        )
    return where


def refined(
    xp: Any,
    products: Products,
    correct: Callable[..., Outcome],
    B: Array,
    dtype: Any,
    **options: Any,
) -> Outcome:
    """Solve A X = B by corrections found in the precision of `dtype`.

    `correct(R, tol=, max_iters=)` solves for a correction, in low precision and to a relative
    accuracy that it can give.
    """
    limits = {"tol": xp.eps(dtype) ** 0.5, "max_iters": options["max_iters"]}

    def cycle(solve: Solve, s: CycleStart) -> CycleStart:
        # |r| has size 1 in low precision: small residuals of large systems must not vanish there.
        size = positive_or_one(xp, s.size)[solve.wide]
        running = (s.status == RUNNING)[solve.wide]
        low = correct(xp.astype(xp.where(running, s.R / size, 0), dtype), **limits)
        D = xp.astype(low.X, B.dtype) * size
        made, iteration = low.iterations, s.run.iteration + xp.max(low.iterations)
        # The correction need not be converged: it is the residual in full precision, looked at
        # next, that counts.
        return solve.judge(
            s,
            s.run._replace(each=s.run.each + made, iteration=iteration),
            X=s.X + xp.where(running & xp.isfinite(D), D, 0),
            status=xp.where(status_of(low.status) >= BREAKDOWN, low.status, 0),
            products=low.matvecs // (s.R.shape[-1] if s.R.ndim > 1 else 1),
        )

    return solve_in_cycles(xp, cycle, products, B, **options)
