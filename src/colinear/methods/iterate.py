"""What all iterations share: cycles, when to stop, and the `Info` at the end.

A method is a `cycle`: from X with the residual R = B - A X it runs its recurrence (`loop`) until it
believes each column to be solved. `solve_in_cycles` computes the true residual after each cycle,
and runs another from there if the recurrence was wrong and a cycle still helps. So a method can
only claim; success is decided by the true residual. `refined` is a method of this kind, whose cycle
solves in low precision (iterative refinement: Wilkinson 1963; Carson and Higham 2018):

    r = b - A x  in full precision,    d ≈ A^-1 r  in low precision,    x <- x + d
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..backends import Array, namespace_of
from ..info import Info
from ..status import Status
from .loop import NO_MONITOR, Loop, Monitor, is_compiling
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
    Device,
    LinearMap,
    Recorded,
    Single,
    State,
    column_norms,
    divide,
    final_code,
    is_plain,
    status_of,
)

SUFFICIENT = 0.5  # by which a cycle must reduce the true residual for another to be worth it
# A block of at least so many numbers is written over: new arrays of its size cost more than the
# work.
LARGE_BLOCK_NUMBERS = 1 << 15
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
    there; the columns of A; and, for methods that draw from a sum, its terms."""

    multiply: LinearMap
    adjoint: LinearMap | None
    precondition: LinearMap | None
    precondition_adjoint: LinearMap | None
    columns: int
    terms: Any = None


class CycleStart(NamedTuple):
    """Where a solve stands between two cycles."""

    X: Array
    R: Array  # the true residual
    size: Array  # its norm
    status: Array
    iterations: Array  # of each column
    iteration: Any  # of all together
    products: Any  # with A
    history: Any
    stopped: Any
    norm: Any = None  # an estimate of |A|, where the method has one
    # what must fall from cycle to cycle: the size of the residual, or how far from optimal it is
    measure: Any = None


class CycleEnd(NamedTuple):
    """How a cycle ended. A column claims SUCCESS, is RUNNING when the cycle was full, or failed."""

    X: Array
    status: Array
    iterations: Array
    iteration: Any
    products: Any  # with A, in this cycle
    history: Any
    stopped: Any
    norm: Any = None


Cycle = Callable[[Loop, CycleStart, float], CycleEnd]


def cycle_of(
    begin: Callable[[Any, CycleStart], Any],
    step: Callable[[Any, Any], Any],
    multiply: LinearMap,
    *,
    adjoint: LinearMap | None = None,
    precondition: LinearMap | None = None,
    products: int = 1,
    at_first: int = 0,
    on_device: bool = False,
) -> Cycle:
    """A cycle of the recurrence that `begin(ops, s)` starts and `step(ops, state)` advances.

    A state is a `State`, with a property or field `norm` where the recurrence estimates |A|. A step
    makes so many `products`, the start `at_first`; `on_device` says that `Device` knows its
    operations.
    """

    def cycle(loop: Loop, s: CycleStart, tol: float) -> CycleEnd:
        for ops in kinds_of_vectors(loop, s, tol, on_device):
            ops.take(multiply, adjoint, precondition)
            try:
                run = loop.run(
                    step,
                    ops,
                    begin(ops, s),
                    solution_of(ops),
                    iteration=s.iteration,
                    history=s.history,
                )
            except Recorded:
                continue
            break
        state, norm = run.state, getattr(run.state, "norm", None)
        return CycleEnd(
            status=ops.array(ops.code(state), s.status),
            X=ops.block(state.x),
            iterations=s.iterations + run.each,
            iteration=run.iteration,
            products=products * (run.iteration - s.iteration) + at_first,
            history=run.history,
            stopped=run.stopped,
            norm=None if norm is None else ops.array(norm, s.norm),
        )

    return cycle


def solution_of(ops: Any) -> Callable[[Any], Array]:
    """The function of a state that gives its solution as a block."""
    return lambda state: ops.block(state.x)


def kinds_of_vectors(loop: Loop, s: CycleStart, tol: float, on_device: bool) -> Iterator[Any]:
    """The operations on vectors that fit, the quickest first."""
    xp, dtype = loop.xp, s.R.dtype
    # A residual that has fallen by eps within one cycle is no longer that of x.
    goal = xp.maximum(tol**2 + 0 * s.size, (xp.eps(dtype) * s.size) ** 2)
    is_unseen = xp.peek(s.size) is None
    if s.R.ndim == 2 and s.R.shape[-1] == 1 and is_plain(xp, s.R):
        if not is_unseen:
            yield Single(xp, dtype, tol=tol, goal=goal)
        elif on_device and loop.watch.callback is None and not loop.watch.progress:
            yield Device(xp, dtype, tol=tol, goal=goal)
    if is_plain(xp, s.R) and math.prod(s.R.shape) >= LARGE_BLOCK_NUMBERS:
        yield Columns(xp, dtype, tol=tol, goal=goal, waits=is_unseen, in_place=True)
    yield Columns(xp, dtype, tol=tol, goal=goal, waits=is_unseen)


class ResidualState(State):
    x: Array
    r: Array  # b - A x
    size: Any  # |r|^2
    status: Any


def solve_by_steps(
    xp: Any, step: Callable[[Any, Any], Any], products: Products, B: Array, **options: Any
) -> Outcome:
    """Solve A X = B by steps that change x and its residual r; stop where r is small enough."""

    def begin(ops: Any, s: CycleStart) -> ResidualState:
        size = ops.number(s.size)
        return ResidualState(
            x=ops.over(s.X), r=ops.own(s.R), size=size * size, status=ops.codes(s.status)
        )

    def checked(ops: Any, s: Any) -> Any:
        s = step(ops, s)
        s.size = ops.dot(s.r, s.r)
        s.status = ops.reached(s.status, s.size)
        return s

    cycle = cycle_of(begin, checked, products.multiply, precondition=products.precondition)
    return solve_in_cycles(xp, cycle, products.multiply, B, **options)


def solve_in_cycles(
    xp: Any,
    cycle: Cycle,
    multiply: LinearMap,
    B: Array,
    X0: Array | None = None,
    *,
    tol: float,
    max_iters: int,
    watch: Monitor = NO_MONITOR,
    columns: int | None = None,
    optimality: Callable[[Array, Array, Any], Array] | None = None,
    consistent: bool = True,
) -> Outcome:
    """Solve A X = B by cycles of a method, each from the true residual that the one before has
    left.

    The system is divided by |b| first, so that squared norms neither overflow nor vanish: `tol` is
    then the norm of the residual to reach.

    For least squares, `optimality(X, R, |A|)` is |A^H r| / (|A| |r|) for each column. Where this is
    at most `tol` nothing is left to gain: that is success, or, where a solution was expected to
    exist (`consistent`), SINGULAR.
    """
    norms = column_norms(xp, B)
    scale = xp.where(norms > 0, norms, 1)
    B = B / scale[..., None, :]
    zero = xp.where(norms == norms, 0, 0)
    X = xp.zeros(
        (*B.shape[:-2], B.shape[-2] if columns is None else columns, B.shape[-1]),
        dtype=B.dtype,
        device=xp.device_of(B),
    )
    if X0 is None:
        R, size, products = B, norms / scale, 0
    else:  # of a zero right side the answer is known, whatever the guess
        X = xp.where(
            (norms > 0)[..., None, :], xp.broadcast_to(X0 / scale[..., None, :], X.shape), X
        )
        R, products = B - multiply(X), 1
        size = column_norms(xp, R)
    status = judged(xp, size, tol, zero + RUNNING)
    status = xp.where(status == NONFINITE, GIVEN_NONFINITE, status)
    loop = Loop(xp, watch, max_iters, scale[..., None, :])
    traced = xp.is_functional or xp.is_traced(size)
    history = loop.begin_history(size, X)
    stopped = xp.any(zero != zero) if traced else False
    start = CycleStart(
        X=X,
        R=R,
        size=size,
        status=status,
        iterations=zero,
        iteration=0,
        products=products,
        history=history,
        stopped=stopped,
        norm=0 * size,
        measure=size if optimality is None else 0 * size + 1,
    )

    def going(s: CycleStart) -> Any:
        return xp.any(s.status == RUNNING) & (s.iteration < max_iters) & (s.stopped ^ True)

    def body(s: CycleStart) -> CycleStart:
        ended = cycle(loop, s, tol)
        R = B - multiply(ended.X)
        size = column_norms(xp, R)
        claimed, full, again = (ended.status == code for code in (SUCCESS, RUNNING, RESTART))
        measure = (
            size if optimality is None else xp.minimum(size, optimality(ended.X, R, ended.norm))
        )
        # Where a cycle claimed success, or was full, and the residual is as large as before, there
        # is nothing left to gain.
        stuck = (measure > xp.where(claimed, SUFFICIENT, 1 - 1e-3) * s.measure) | (
            measure <= FLOOR * xp.eps(B.dtype)
        )
        status = xp.where(claimed | full, xp.where(stuck, STAGNATION, RUNNING), ended.status)
        status = xp.where(again, xp.where(size < 0.9 * s.size, RUNNING, BREAKDOWN), status)
        status = xp.where(full & ((ended.iteration >= max_iters) | ended.stopped), RUNNING, status)
        if optimality is not None:
            status = xp.where(measure <= tol, SINGULAR if consistent else SUCCESS, status)
        status = xp.where(s.status == RUNNING, judged(xp, size, tol, status), s.status)
        X, products = ended.X, s.products + ended.products + 1
        # a cycle that did harm is undone, where it has not written over the X before it
        if X is not s.X:
            better = ((size <= s.size) | (s.status != RUNNING))[..., None, :]
            X, R, size = (
                xp.where(better, X, s.X),
                xp.where(better, R, s.R),
                xp.where(better[..., 0, :], size, s.size),
            )
        return CycleStart(
            X=X,
            R=R,
            size=size,
            status=status,
            iterations=ended.iterations,
            iteration=ended.iteration,
            products=products,
            history=ended.history,
            stopped=ended.stopped,
            norm=s.norm if ended.norm is None else ended.norm,
            measure=measure,
        )

    if 0 in B.shape:
        last = start
    elif is_compiling():  # all iterations are made, whatever comes of them
        last = body(start)
        while isinstance(last.iteration, int) and last.iteration < max_iters:
            last = body(last)
    elif traced:
        last = xp.while_loop(going, body, start)
    else:
        last = start
        while bool(going(last)):
            last = body(last)
    loop.close(last.iteration, last.size)
    return Outcome(
        X=multiplied(xp, last.X, scale[..., None, :]),
        status=final_code(xp, last.status, last.stopped),
        iterations=last.iterations,
        matvecs=last.products * B.shape[-1],
        residual=last.size,
        history=loop.history(size, last.history),
    )


def without_unknowns(xp: Any, columns: int, B: Array, watch: Monitor) -> Outcome:
    """The outcome of every method for an A without rows or columns: nothing is left to gain."""
    norms = column_norms(xp, B)
    X = xp.zeros((*B.shape[:-2], columns, B.shape[-1]), dtype=B.dtype, device=xp.device_of(B))
    status = xp.where(xp.isfinite(norms), SUCCESS, GIVEN_NONFINITE)
    residual = divide(xp, norms, norms)
    return Outcome(
        X,
        status,
        xp.where(norms == norms, 0, 0),
        0,
        residual,
        residual[None] if watch.record else None,
    )


def judged(xp: Any, size: Array, tol: float, otherwise: Array) -> Array:
    """SUCCESS where the true residual is small enough, NONFINITE where it is no number, else what
    the cycle said."""
    status = xp.where(size <= tol, SUCCESS, otherwise)
    known = (otherwise >= 0) & (status_of(otherwise) == NONFINITE)
    broken = xp.logical_not(xp.isfinite(size)) & xp.logical_not(known)
    return xp.where(broken, NONFINITE, status)


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
    if watch.vector and history is not None:
        history = history[..., 0]
    empty = 0 in status.shape
    if xp.is_traced(status):
        worst: Any = xp.max(status_of(status))
        iterations: Any = xp.max(outcome.iterations)
        message = ""
    else:
        codes = xp.to_numpy(status)
        worst = Status(int(status_of(codes).max(initial=0)))
        iterations = 0 if empty else int(xp.max(outcome.iterations))
        message = _message(codes, xp.to_numpy(outcome.iterations), method, preconditioned)
        if not message and worst.is_failure and n:
            message = method.advice(worst, float(xp.max(residual)), xp.eps(residual.dtype), n)
        if history is not None:
            history = history[: iterations + 1]
    matvecs = outcome.matvecs
    matvecs = matvecs if namespace_of(matvecs) is None or xp.is_traced(matvecs) else int(matvecs)
    return Info(
        worst,
        converged=status_of(status) < int(Status.STOPPED),
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
    by_preconditioner = code in PRECONDITIONER
    what = "the preconditioner" if by_preconditioner else "the operator"
    if status < Status.BREAKDOWN:
        return ""
    if code == GIVEN_NONFINITE:
        return f"NaN or infinity in the right side or in A x0{of}"
    if code == NONFINITE and preconditioned and not method.splits_preconditioner:
        what = "the operator or the preconditioner"  # which is a part of the product
    if status is Status.NONFINITE:
        return f"NaN or infinity from {what} {where}"
    if status is Status.NOT_POSITIVE_DEFINITE:
        shown = (
            "a residual r with r^H M r <= 0"
            if by_preconditioner
            else "a direction p with p^H A p <= 0"
        )
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
    multiply: LinearMap,
    correct: Callable[[Array, float, int], Outcome],
    B: Array,
    X0: Array | None = None,
    *,
    dtype: Any,
    max_iters: int,
    **options: Any,
) -> Outcome:
    """Solve A X = B by corrections found in the precision of `dtype`.

    `correct(R, tol, max_iters)` solves for a correction, in low precision and to a relative
    accuracy that it can give.
    """
    attainable = xp.eps(dtype) ** 0.5

    def cycle(loop: Loop, s: CycleStart, tol: float) -> CycleEnd:
        # |r| has size 1 in low precision: small residuals of large systems must not vanish there.
        size = xp.where(s.size > 0, s.size, 1)[..., None, :]
        running = (s.status == RUNNING)[..., None, :]
        low = correct(xp.astype(xp.where(running, s.R / size, 0), dtype), attainable, max_iters)
        D = xp.astype(low.X, B.dtype) * size
        X = s.X + xp.where(running & xp.isfinite(D), D, 0)
        made = xp.max(low.iterations)
        # The correction need not be converged: it is the residual in full precision, looked at
        # next, that counts.
        return CycleEnd(
            X=X,
            status=xp.where(status_of(low.status) >= BREAKDOWN, low.status, 0),
            iterations=s.iterations + low.iterations,
            iteration=s.iteration + made,
            products=low.matvecs // B.shape[-1],
            history=s.history,
            stopped=s.stopped,
        )

    return solve_in_cycles(xp, cycle, multiply, B, X0, max_iters=max_iters, **options)
