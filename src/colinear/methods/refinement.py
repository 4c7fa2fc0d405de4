"""Iterative refinement (Wilkinson 1963; Carson and Higham 2018): the work in low precision, the residual in full.

r = b - A x  in full precision,    d ≈ A^-1 r  in low precision,    x <- x + d
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array
from .iteration import CycleEnd, CycleStart, Outcome, solve_in_cycles
from .loop import Loop
from .vectors import BREAKDOWN, RUNNING, status_of


def refined(
    xp: Any,
    multiply: Callable[[Array], Array],
    correct: Callable[[Array, float, int], Outcome],
    B: Array,
    X0: Array | None = None,
    *,
    dtype: Any,
    max_iters: int,
    **options: Any,
) -> Outcome:
    """Solve A X = B by corrections found in the precision of `dtype`.

    `correct(R, tol, max_iters)` solves for a correction, in low precision and to a relative accuracy that it can give.
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
        # The correction need not be converged: it is the residual in full precision, looked at next, that counts.
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
