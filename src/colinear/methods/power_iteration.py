"""Power iteration (von Mises 1929): the eigenvalue of largest magnitude, where it stands alone.

Differs from the textbook: it stops on the true residual of the Rayleigh quotient. Two eigenvalues
of the same magnitude, such as the pair of a real matrix with a complex one, never converge, and the
status says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array
from .base import Spectral
from .basis import (
    SAFETY,
    Pairs,
    all_finite,
    count_of,
    every,
    norm,
    normalised,
    pairs_of,
    pick,
    run_cycles,
)  # fmt: skip
from .vectors import LinearMap, State


class PowerIteration(Spectral):
    """Power iteration: the one eigenvalue of largest magnitude. Simple, and slow where the next one
    is near.

    An iteration is one product with A.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.array([1.0, 2.0, 4.0])))
    >>> values, vectors = co.eig(A, 1, "LM", co.PowerIteration())
    >>> values.round(6)
    array([4.])
    """

    def size(self, n: int, k: int) -> int:
        """How many vectors are iterated."""
        return 1

    @property
    def advice(self) -> str:
        return "use Lanczos() or Arnoldi(), which need fewer iterations"

    def limit(self, n: int, basis: int) -> int:
        return super().limit(n, 50)


class PowerState(State):
    """Where a run stands, (*batch, n); `V` is the vector as a basis of one."""

    V: Array
    values: Array
    residual: Array
    size: Array
    matvecs: Any
    done: Any
    finite: Any

    @property
    def iterations(self) -> Any:
        """The steps so far: each makes one product."""
        return self.matvecs


def power_iteration(
    xp: Any,
    multiply: LinearMap,
    start: Array,
    *,
    tol: float,
    max_iters: int,
    watch: Callable[[PowerState], Any] | None = None,
) -> Pairs:
    """The eigenpair of largest magnitude, from `start` (*batch, n)."""

    def step(s: PowerState) -> PowerState:
        v = s.V[..., 0, :]
        w = multiply(v[..., None])[..., 0]
        s.values = xp.vecdot(v, w)[..., None]
        s.residual = norm(xp, w - s.values * v)[..., None]
        following, length = normalised(xp, w)
        s.size = xp.maximum(s.size, length)
        target = SAFETY * max(tol, 2 * xp.eps(w.dtype)) * s.size[..., None]
        s.done, s.finite = every(xp, s.residual <= target), all_finite(xp, s.size)
        # The vector that was judged is kept when it is good enough.
        s.V = pick(xp, s.done, s.V, following[..., None, :])
        s.matvecs = s.matvecs + 1
        return s

    def going(s: PowerState) -> Any:
        return (s.done ^ True) & s.finite & (s.matvecs < max_iters)

    length = norm(xp, start)
    v, zero = start / length[..., None], 0 * length
    state = PowerState(
        V=v[..., None, :],
        values=xp.astype(zero, v.dtype)[..., None],
        residual=zero[..., None],
        size=zero,
        matvecs=count_of(xp, 0),
        done=count_of(xp, False),
        finite=count_of(xp, True),
    )
    state, stopped = run_cycles(xp, going, step, state, watch)
    return pairs_of(state, state.values, state.V, stopped)
