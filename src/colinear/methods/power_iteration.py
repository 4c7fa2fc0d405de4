"""Power iteration (von Mises 1929): the eigenvalue of largest magnitude, where it stands alone.

Differs from the textbook: it stops on the true residual of the Rayleigh quotient. Two eigenvalues of the same magnitude, such as the
pair of a real matrix with a complex one, never converge, and the status says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from .krylov import count_of, norm, plain
from .lanczos import SAFETY, Pairs


class State(NamedTuple):
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
    multiply: Callable[[Array], Array],
    start: Array,
    *,
    tol: float,
    max_iters: int,
    watch: Callable[[State], Any] | None = None,
) -> Pairs:
    """The eigenpair of largest magnitude, from `start` (*batch, n)."""
    stopped = False

    def step(s: State) -> State:
        w = multiply(s.V[..., 0, :][..., None])[..., 0]
        value = xp.vecdot(s.V[..., 0, :], w)[..., None]
        residual = norm(xp, w - value * s.V[..., 0, :])[..., None]
        length = norm(xp, w)
        size = xp.maximum(s.size, length)
        done = plain(xp, xp.all(residual <= SAFETY * max(tol, 2 * xp.eps(w.dtype)) * size[..., None]))
        # The vector that was judged is kept when it is good enough.
        following = w / xp.where(length == 0, 1, length)[..., None]
        V = s.V if done is True else xp.where(done, s.V, following[..., None, :]) if xp.name == "jax" else following[..., None, :]
        return State(V, value, residual, size, s.matvecs + 1, done, plain(xp, xp.all(xp.isfinite(size))))

    def going(s: State) -> Any:
        return (s.done ^ True) & s.finite & (s.matvecs < max_iters) & (not stopped)

    v = start / norm(xp, start)[..., None]
    zero = 0 * norm(xp, start)
    value = xp.astype(zero, v.dtype)[..., None]
    state = State(v[..., None, :], value, zero[..., None], zero, *(count_of(xp, c) for c in (0, False, True)))
    if watch is None:
        state = xp.while_loop(going, step, state)
    else:
        one = xp.jit(step)
        while going(state):
            state = one(state)
            stopped = bool(watch(state))
    return Pairs(state.values, state.V, state.size, state.matvecs, state.iterations, state.done, state.finite, stopped)
