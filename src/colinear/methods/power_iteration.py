"""Power iteration (von Mises 1929): the eigenvalue of largest magnitude, where it stands alone.

Differs from the textbook: it stops on the true residual of the Rayleigh quotient. Two eigenvalues
of the same magnitude, such as the pair of a real matrix with a complex one, never converge, and the
status says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
from .vectors import LinearMap


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


class PowerState(NamedTuple):
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
        value = xp.vecdot(v, w)[..., None]
        residual = norm(xp, w - value * v)[..., None]
        following, length = normalised(xp, w)
        size = xp.maximum(s.size, length)
        target = SAFETY * max(tol, 2 * xp.eps(w.dtype)) * size[..., None]
        done = every(xp, residual <= target)
        # The vector that was judged is kept when it is good enough.
        V = pick(xp, done, s.V, following[..., None, :])
        return PowerState(
            V=V,
            values=value,
            residual=residual,
            size=size,
            matvecs=s.matvecs + 1,
            done=done,
            finite=all_finite(xp, size),
        )

    def going(s: PowerState) -> Any:
        return (s.done ^ True) & s.finite & (s.matvecs < max_iters)

    length = norm(xp, start)
    v, zero = start / length[..., None], 0 * length
    value = xp.astype(zero, v.dtype)[..., None]
    state = PowerState(
        v[..., None, :], value, zero[..., None], zero, *(count_of(xp, c) for c in (0, False, True))
    )
    state, stopped = run_cycles(xp, going, step, state, watch)
    return pairs_of(state, state.values, state.V, stopped)
