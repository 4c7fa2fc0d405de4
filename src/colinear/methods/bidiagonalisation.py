"""What LSQR and LSMR share: the bidiagonalisation (Golub and Kahan 1965), and the shell of least squares around `solve_in_cycles`.

β_k+1 u_k+1 = A v_k - α_k u_k,      α_k+1 v_k+1 = A^H u_k+1 - β_k+1 v_k
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array
from .iteration import Cycle, Outcome, Watch, column_norms, divide, solve_in_cycles, squared


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


def least_squares(
    xp: Any,
    make_cycle: Callable[[Any, Any], Cycle],
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
    """Minimise |B - A X|^2 + |damping X|^2, by the cycles of a method.

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
        multiply = lambda X: xp.concat([plain(X), damping * X], axis=-2)  # noqa: E731
        adjoint = lambda X: plain_adjoint(X[..., :m, :]) + damping * X[..., m:, :]  # noqa: E731
    start = X0
    if precondition is not None and X0 is not None:  # the guess is subtracted: M is not inverted
        B, X0 = B - multiply_guess(xp, inside, X0, B, m), None

    def optimality(X: Array, R: Array, norm: Array) -> Array:
        return divide(xp, column_norms(xp, adjoint(R)), norm * column_norms(xp, R))

    outcome = solve_in_cycles(
        xp,
        make_cycle(multiply, adjoint),
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
