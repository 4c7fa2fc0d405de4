"""An outcome in words: its `Info`, with what went wrong, where, and whose fault it was."""

from __future__ import annotations

from typing import Any

from ..backends import namespace_of
from ..info import Info, Status
from .iteration import Outcome
from .vectors import GIVEN_NONFINITE, NONFINITE, PRECONDITIONER, status_of
from .watching import Watch


def described(
    xp: Any, outcome: Outcome, method: Any, watch: Watch, preconditioned: bool, n: int = 0
) -> Info:
    """An outcome as an Info, with a word on what went wrong and when. `n` is the number of unknowns, if it is known."""
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
