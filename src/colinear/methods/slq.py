"""Lanczos runs for quadrature, many at once, without a basis: v_1^H f(A) v_1 needs the coefficients alone.

    β_{j+1} u_{j+1} = A p_j - α_j u_j - β_j u_{j-1},   p_j = M u_j,   α_j = p_j^H A p_j,   β_{j+1} = the M-norm of the right side

With M = P^-1 this is Lanczos on P^-1/2 A P^-1/2, started from P^-1/2 r, which needs P^1/2 nowhere. Rounding makes the vectors lose their
orthogonality and repeats eigenvalues of T; the quadrature is none the worse for it (Knizhnerman 1996), so nothing is orthogonalised.

β = 0 is an invariant subspace: that run is exact, and stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..backends import Array
from .krylov import put
from .probes import heard, no_failure

SMALL = 20  # roundings, of the size of A, up to which a remainder counts as zero


class Runs(NamedTuple):
    """Where the runs stand; columns are runs, (*batch, n, k)."""

    U: Array
    before: Array  # u_{j-1}
    P: Array | None  # M u; None without a preconditioner: a loop would copy what it carries twice
    beta: Array  # (*batch, k)
    size: Array  # the largest of the coefficients so far
    alive: Array  # whether a run goes on
    status: Any  # the worst that A, if it is applied by a method, has said of its products


def start(xp: Any, R: Array, precondition: Callable[[Array], Array] | None) -> tuple[Runs, Array]:
    """Runs from the columns r of R, and r^H M r."""
    P = R if precondition is None else precondition(R)
    length = xp.real(xp.vecdot(R, P, axis=-2))
    scale = xp.astype(1 / xp.sqrt(xp.where(length > 0, length, 1)), R.dtype)[..., None, :]
    zero = 0 * length
    U = R * scale
    return Runs(
        U=U,
        before=0 * U,
        P=None if precondition is None else P * scale,
        beta=zero,
        size=zero,
        alive=length > 0,
        status=no_failure(xp),
    ), length


def advance(
    xp: Any,
    multiply: Callable[[Array], Array],
    precondition: Callable[[Array], Array] | None,
    runs: Runs,
    steps: int,
) -> tuple[Runs, Array, Array]:
    """So many steps more: the runs, and the coefficients α and β, (steps, *batch, k), of each. Those of a run that has ended are zero."""
    shape = (steps, *runs.beta.shape)
    empty = xp.zeros(shape, dtype=runs.beta.dtype, device=xp.device_of(runs.beta))

    def body(i: Any, found: Any) -> Any:
        s, alphas, betas = found
        s, alpha = step(xp, multiply, precondition, s)
        return s, put(xp, alphas, i, alpha), put(xp, betas, i, s.beta)

    return xp.fori_loop(steps, body, (runs, empty, xp.copy(empty)))


def combined(xp: Any, multiply: Callable[[Array], Array], R: Array, weights: Array) -> Array:
    """Σ_j w_j u_j for the vectors of the runs from R, made once more, and weights (steps, *batch, k), f(T) e_1: that is f(A) R."""
    runs, length = start(xp, R, None)

    def body(i: Any, found: Any) -> Any:
        s, total = found
        total = total + _as(xp, weights[i], R)[..., None, :] * s.U
        return step(xp, multiply, None, s)[0], total

    (last, total) = xp.fori_loop(weights.shape[0] - 1, body, (runs, 0 * R))
    total = total + _as(xp, weights[-1], R)[..., None, :] * last.U  # which needs no further product
    return total * _as(xp, xp.sqrt(length), R)[..., None, :]


def step(xp: Any, multiply: Any, precondition: Any, s: Runs) -> tuple[Runs, Array]:
    """One step of all runs, and their α. The vectors before the last are written over, where the framework can."""
    P = s.U if s.P is None else s.P
    W, status = heard(xp, multiply, P, s.status)
    alpha = xp.real(xp.column_dot(P, W))
    if xp.is_traced(W):  # torch.func.vmap writes nothing in place
        W = W - s.U * _as(xp, alpha, W)[..., None, :] - s.before * _as(xp, s.beta, W)[..., None, :]
    else:
        W = xp.three_term(W, _as(xp, alpha, W), s.U, _as(xp, s.beta, W), s.before)
    V = W if precondition is None else precondition(W)
    square = xp.real(xp.column_dot(W, V))
    beta = xp.sqrt(xp.where(square > 0, square, 0 * square))
    size = xp.maximum(s.size, xp.abs(alpha) + beta)
    # Not finite stays so: the run goes on, and is seen.
    alive = xp.logical_and(s.alive, xp.logical_not(beta <= SMALL * xp.eps(W.dtype) * size))
    alpha = xp.where(s.alive, alpha, 0 * alpha)
    beta = xp.where(alive, beta, 0 * beta)
    scale = _as(xp, xp.where(alive, 1 / xp.where(alive, beta, 1), 0), W)[..., None, :]
    U = times(xp, W, scale)
    return Runs(
        U=U,
        before=s.U,
        P=None if precondition is None else V * scale,
        beta=beta,
        size=size,
        alive=alive,
        status=status,
    ), alpha


def times(xp: Any, W: Array, scale: Array) -> Array:
    """W scale, in place where that can be."""
    if xp.name == "jax" or xp.is_traced(W):
        return W * scale
    W *= scale
    return W


def _as(xp: Any, x: Array, like: Array) -> Array:
    return xp.astype(x, like.dtype)
