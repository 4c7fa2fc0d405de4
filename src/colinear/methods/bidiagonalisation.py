"""What LSQR and LSMR share: the bidiagonalisation (Golub and Kahan 1965), and the shell of least squares around `solve_in_cycles`.

β_k+1 u_k+1 = A v_k - α_k u_k,      α_k+1 v_k+1 = A^H u_k+1 - β_k+1 v_k
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from ..backends import Array
from ..info import Status
from .iteration import (
    RUNNING,
    Cycle,
    Cycles,
    Ended,
    Loop,
    Outcome,
    Watch,
    column_norms,
    divide,
    is_one_vector,
    is_recorded,
    solve_in_cycles,
    squared,
)

# What a method makes of one vector's bidiagonalisation: it is sent β and α, has x moved, and yields |r| and |A^H r|. The vector v that it
# was made with is written over between two steps.
Recurrence = Generator[tuple[float, float], tuple[float, float], None]


def unit(xp: Any, X: Array) -> tuple[Array, Array]:
    """|x| and x / |x| for each column; zero stays zero."""
    size = xp.sqrt(squared(xp, X))
    return size, X * divide(xp, 1 + 0 * size, size)[..., None, :]


def bidiagonalise(xp: Any, multiply: Any, adjoint: Any, U: Array, V: Array, alpha: Array) -> tuple[Array, Array, Array, Array]:
    """The next β, u, α, v."""
    beta, U = unit(xp, multiply(V) - alpha[..., None, :] * U)
    alpha, V = unit(xp, adjoint(U) - beta[..., None, :] * V)
    return beta, U, alpha, V


def rotation(xp: Any, a: Array, b: Array) -> tuple[Array, Array, Array]:
    """c, s and r with c a + s b = r, c b = s a."""
    r = xp.sqrt(a**2 + b**2)
    return divide(xp, a, r), divide(xp, b, r), r


def quotient(a: float, b: float) -> float:
    """`divide` for numbers."""
    return a / b if b else 0.0


def rotated(a: float, b: float) -> tuple[float, float, float]:
    """`rotation` for numbers."""
    r = math.hypot(a, b)
    return (a / r, b / r, r) if r else (0.0, 0.0, 0.0)


def one_vector(
    loop: Loop, multiply: Any, adjoint: Any, make_recurrence: Callable[..., Recurrence], s: Cycles, tol: float
) -> Ended | None:
    """A cycle for one right side where arrays can be written over: numbers are Python's, and nothing but the products is allocated.

    A step for blocks costs 80 to 130 us in NumPy beyond its products, one of these 12. X itself is not written over, so that a cycle that
    did harm is undone, as with blocks. None if derivatives of the products are recorded, as of a function that holds parameters: then
    nothing may be written over.
    """
    xp, watched = loop.xp, not loop.watch.is_idle
    xpby, dot = xp.xpby, xp.dot_real

    def scaled(y: Array) -> float:
        """|y|, and y / |y| over y; zero stays zero."""
        size = math.sqrt(dot(y, y))
        y *= quotient(1.0, size)
        return size

    x, u = xp.copy(s.X[:, 0]), xp.copy(s.R[:, 0])
    size = scaled(u)
    v = xp.copy(adjoint(u))
    if is_recorded(v):
        return None
    alpha = scaled(v)
    norm = max(alpha, float(s.norm[0]))
    norm *= norm  # of A, by Frobenius, squared
    recurrence = make_recurrence(xp, x, v, size, alpha)
    next(recurrence)
    iteration, stopped = s.iteration, False
    status = RUNNING if 0 < alpha < math.inf else int(Status.SUCCESS if alpha == 0 else Status.NONFINITE)
    while status == RUNNING and iteration < loop.limit and not stopped:
        xpby(multiply(v), -alpha, u)
        beta = scaled(u)
        xpby(adjoint(u), -beta, v)
        alpha = scaled(v)
        iteration += 1
        if math.isfinite(alpha + beta):
            size, slope = recurrence.send((beta, alpha))
            norm += alpha * alpha + beta * beta
            if size <= tol or slope <= tol * math.sqrt(norm) * size or alpha == 0 or beta == 0:
                status = int(Status.SUCCESS)
        else:
            status = int(Status.NONFINITE)
        stopped = watched and loop.shows(iteration, size * size, x, lambda x: x[:, None])
    made = iteration - s.iteration
    X, norms = x[:, None], 0 * s.size + math.sqrt(norm)
    return Ended(X, 0 * s.status + status, s.iterations + made, iteration, 2 * made + 2, None, stopped, norms)


def least_squares(
    xp: Any,
    make_cycle: Callable[[Any, Any], Cycle],
    make_recurrence: Callable[..., Recurrence],
    multiply: Callable[[Array], Array],
    adjoint: Callable[[Array], Array],
    B: Array,
    *,
    columns: int,
    damping: float,
    consistent: bool,
    tol: float,
    max_iters: int,
    precondition: Any,
    precondition_adjoint: Any,
    X0: Array | None,
    watch: Watch,
) -> Outcome:
    """Minimise |B - A X|^2 + |damping X|^2, by the cycles of a method, or by `one_vector` and its recurrence.

    The preconditioner M is on the right: |B - A M Y| is minimised, and X = M Y. Damping is a block more of rows: damping I below A.
    """
    m = B.shape[-2]
    if precondition is not None:
        inside, inside_adjoint = multiply, adjoint
        multiply = lambda Y: inside(precondition(Y))  # noqa: E731
        adjoint = lambda X: precondition_adjoint(inside_adjoint(X))  # noqa: E731
    if damping:
        plain, plain_adjoint = multiply, adjoint
        rest = xp.zeros((*B.shape[:-2], columns, B.shape[-1]), dtype=B.dtype, device=xp.device_of(B))
        B = xp.concat([B, rest], axis=-2)
        multiply = lambda X: xp.concat([plain(X), damping * X], axis=max(-2, -X.ndim))  # noqa: E731

        def adjoint(X: Array) -> Array:
            above, below = (X[:m], X[m:]) if X.ndim == 1 else (X[..., :m, :], X[..., m:, :])
            return plain_adjoint(above) + damping * below

    start = X0
    if precondition is not None and X0 is not None:  # the guess is subtracted: M is not inverted
        B, X0 = B - multiply_guess(xp, inside, X0, B, m), None

    def optimality(X: Array, R: Array, norm: Array) -> Array:
        slope = column_norms(xp, adjoint(R))
        # |A^H r| <= |A| |r|: an estimate of |A| that says otherwise has lost its squares to underflow, or to overflow.
        size = xp.maximum(slope, xp.where(xp.isfinite(norm), norm * column_norms(xp, R), 0))
        return divide(xp, slope, size)

    of_block = make_cycle(multiply, adjoint)

    def cycle(loop: Loop, s: Cycles, tol: float) -> Ended:
        if is_one_vector(xp, s.R) and xp.peek(s.size) is not None:
            ended = one_vector(loop, multiply, adjoint, make_recurrence, s, tol)
            if ended is not None:
                return ended
        return of_block(loop, s, tol)

    outcome = solve_in_cycles(
        xp,
        cycle,
        multiply,
        B,
        X0,
        tol=tol,
        max_iters=max_iters,
        watch=watch,
        columns=columns,
        optimality=optimality,
        consistent=consistent,
    )
    if precondition is None:
        return outcome
    X = precondition(outcome.X)
    return outcome._replace(X=X if start is None else X + start)


def multiply_guess(xp: Any, multiply: Any, X0: Array, B: Array, m: int) -> Array:
    product = xp.broadcast_to(multiply(X0), (*B.shape[:-2], m, B.shape[-1]))
    rest = xp.zeros((*B.shape[:-2], B.shape[-2] - m, B.shape[-1]), dtype=B.dtype, device=xp.device_of(B))
    return xp.concat([product, rest], axis=-2)
