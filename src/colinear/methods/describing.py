"""An outcome in words: its `Info`, with what went wrong, where, and whose fault it was."""

from __future__ import annotations

from typing import Any

from ..backends import namespace_of
from ..info import Info, Status
from .columns import GIVEN, PRECONDITIONER
from .iteration import Outcome
from .watching import Watch


def described(xp: Any, outcome: Outcome, method: Any, watch: Watch, preconditioned: bool, n: int = 0) -> Info:
    """An outcome as an Info, with a word on what went wrong and when. `n` is the number of unknowns, if it is known."""
    status, residual, history = outcome.status, outcome.residual, outcome.history
    if watch.vector and history is not None:
        history = history[..., 0]
    empty = 0 in status.shape
    if xp.is_traced(status):
        worst: Any = xp.max(status % 10)
        iterations: Any = xp.max(outcome.iterations)
        message = ""
    else:
        codes = xp.to_numpy(status)
        worst = Status(int((codes % 10).max(initial=0)))
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
        converged=status % 10 < int(Status.STOPPED),
        iterations=iterations,
        matvecs=matvecs,
        residual=residual,
        history=history,
        method=method.name,
        message=message,
    )


def _message(codes: Any, iterations: Any, method: Any, preconditioned: bool) -> str:
    worst = codes.flat[(codes % 10).argmax()] if codes.size else 0
    if worst % 10 < int(Status.BREAKDOWN):
        return ""
    step = int(iterations.flat[(codes % 10).argmax()])
    where = f"in iteration {step}"
    what = "the preconditioner" if PRECONDITIONER <= worst < GIVEN else "the operator"
    columns = int((codes == worst).sum())
    of = f" of column {int((codes == worst).argmax())}" if codes.size > 1 and columns == 1 else ""
    if worst >= GIVEN:
        return f"NaN or infinity in the right side or in A x0{of}"
    if worst == int(Status.NONFINITE) and preconditioned and not method.splits_preconditioner:  # it is a part of the product
        what = "the operator or the preconditioner"
    if worst % 10 == int(Status.NONFINITE):
        return f"NaN or infinity from {what} {where}{of}"
    if worst % 10 == int(Status.NOT_POSITIVE_DEFINITE):
        return (
            f"{what} showed a direction p with p^H A p <= 0 {where}{of}"
            if worst < PRECONDITIONER
            else (f"{what} showed a residual r with r^H M r <= 0 {where}{of}")
        )
    if worst % 10 == int(Status.BREAKDOWN) and method.needs_terms:
        return f"it diverged {where}{of}: the step is too large. Leave out `step`, which finds one, or take a larger batch_size"
    if worst % 10 == int(Status.SINGULAR) and method.name == "GMRES":
        return f"{'A M, M being the preconditioner,' if preconditioned else 'A'} is singular on the subspace {where}{of}"
    if worst % 10 == int(Status.SINGULAR):
        return f"A^H r vanished {where}{of} and r did not: the right side is not in the range of A, and x is one of least squares"
    return f"{where}{of}"
