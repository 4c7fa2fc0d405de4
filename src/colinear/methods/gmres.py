"""Generalised minimal residuals (Saad and Schultz 1986), restarted, for any square A, with a
preconditioner M ≈ A^-1 on the right.

Since A M y = b is what is solved, with x = M y, the residual that it minimises is b - A x itself.

Differs from the reference: Gram-Schmidt twice, so that the basis is orthogonal to rounding; the
rotations that make the Hessenberg matrix triangular are kept as their product Q, (m + 1) x (m + 1),
so that a step is two small products instead of a loop over them; blocks of right sides, each column
with its own basis; the true residual decides (`solve_in_cycles`). An invariant subspace is success,
if A is not singular on it. Vectors: the basis, x, r and b. `max_iters` counts products with A.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..backends import Array
from ..status import Status
from .base import Iterative, check_integer
from .iterate import CycleStart, Outcome, Products, Solve, solve_in_cycles
from .loop import is_compiling
from .vectors import (
    NONFINITE,
    RUNNING,
    SINGULAR,
    SUCCESS,
    Columns,
    State,
    divide,
    first_of,
    is_plain,
)

ZERO_PIVOT = 1000  # times eps: a pivot so small beside |A| is zero


DEFAULT_RESTART = 30


UNRESTARTED_ROWS = 200  # rows up to which GMRES keeps all vectors


ACCURATE = 1000  # roundings up to which a relative residual is at the accuracy of the dtype


@dataclass(frozen=True)
class GMRES(Iterative):
    """Generalised minimal residuals, for any square A. One product an iteration; preconditioned on
    the right.

    Parameters
    ----------
    restart : int, optional
        The most vectors of the basis, after which it begins again; default 30, and as many as there
        are up to a size of 200. `max_iters` counts products, not restarts.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[0.0, 2.0], [-1.0, 1.0]]), np.array([2.0, 0.0]), co.GMRES()).round(6)
    array([1., 1.])
    """

    restart: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "restart", 1, "a positive integer")

    def basis(self, n: int) -> int:
        """The most vectors of the basis."""
        return min(n, self.restart or (n if n <= UNRESTARTED_ROWS else DEFAULT_RESTART))

    def working_vectors(self, n: int) -> int:
        return self.basis(n) + 8

    def advice(self, status: Status, residual: float, eps: float, n: int) -> str:
        """The restart, if the run was restarted and did not end at the accuracy of the dtype."""
        size = self.basis(n)
        if size == n or status > Status.MAX_ITERATIONS or residual <= ACCURATE * eps:
            return ""
        what = (
            "a basis that begins again" if status is Status.STAGNATION else "the basis begins again"
        )
        end = " no longer reduces the residual" if status is Status.STAGNATION else ""
        return f"{what} after {size} vectors{end}: raise restart= (n, here {n}, never begins again)"

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        rows, M = B.shape[max(-2, -B.ndim)], products.precondition
        m = max(1, min(self.basis(rows), options["max_iters"]))

        def product(X: Array) -> Array:
            return products.multiply(X if M is None else M(X))

        def cycle(solve: Solve, s: CycleStart) -> CycleStart:
            goal, full, limit = solve.goal(s), s.run.iteration + m, solve.loop.limit

            def solution(state: GMRESState) -> Array:
                correction = combination(xp, state)
                return s.X + (correction if M is None else M(correction))  # x = x + M V y

            run = solve.loop.run(
                lambda _, state: step(xp, product, goal, state),
                Columns(xp, B.dtype, waits=xp.peek(s.size) is None),
                s.run._replace(state=initial(xp, m, s)),
                solution,
                min(full, limit) if isinstance(full, int) else xp.minimum(full, limit),
            )
            X, status, norm = solution(run.state), run.state.status, run.state.norm
            run = run._replace(state=None)  # the basis is free again
            made = run.iteration - s.run.iteration
            return solve.judge(s, run, X=X, status=status, products=made, norm=norm)

        return solve_in_cycles(xp, cycle, products, B, **options)


class GMRESState(State):
    V: Array  # (*batch, k, m + 1, n): the basis of each column, by rows
    # (*batch, k, m, m): Q times the Hessenberg matrix, triangular; by columns (H[..., j, :] is the
    # j-th one)
    H: Array
    Q: Array  # (*batch, k, m + 1, m + 1): the product of the rotations
    beta: Array  # |r| at the start
    size: Array
    status: Array
    j: Any  # steps in this cycle
    taken: Array  # of these, by each column
    norm: Array  # the largest |A v| so far, for |A|


def initial(xp: Any, m: int, s: CycleStart) -> GMRESState:
    R = turn(xp, s.R)  # (*batch, k, n)
    *outer, n = R.shape
    device = xp.device_of(R)
    V = xp.zeros((*outer, m + 1, n), dtype=R.dtype, device=device)
    if not is_plain(xp, R):  # it must vary with R where that is mapped over
        V = V + 0 * R[..., None, :1]
    V = written(xp, V, (..., 0, slice(None)), R * divide(xp, 1 + 0 * s.size, s.size)[..., None])
    H = xp.zeros((*outer, m, m), dtype=R.dtype, device=device) + xp.eye(
        m, dtype=R.dtype, device=device
    )
    Q = xp.zeros((*outer, m + 1, m + 1), dtype=R.dtype, device=device) + xp.eye(
        m + 1, dtype=R.dtype, device=device
    )
    zero = 0 * R[..., :1, None]
    return GMRESState(
        V=V,
        H=H + zero,
        Q=Q + zero,
        beta=s.size,
        size=s.size**2,
        status=s.status,
        j=0 * s.run.iteration,
        taken=0 * s.status,
        norm=s.norm,
    )


def step(xp: Any, product: Any, goal: Array, s: GMRESState) -> GMRESState:
    """One more vector of the basis, for all columns that run."""
    V, j = s.V, s.j
    plain = is_plain(xp, V)
    known = V[..., : j + 1, :] if plain else V  # rows that are not yet there are zero
    # (*batch, k, n, 1)
    W = turn(xp, product(turn(xp, V[..., j, :])))[..., None]
    before = norm(xp, W)
    h = 0
    for _ in range(2):  # twice is enough (Kahan; Parlett 1980)
        projected = xp.matmul(xp.conj(known), W)
        W = W - xp.matmul(xp.matrix_transpose(known), projected)
        h = h + projected
    after = norm(xp, W)
    # what is left is rounding: the subspace is invariant
    after = xp.where(after > 10 * xp.eps(V.dtype) * before, after, 0)
    status = first_of(xp, s.status, (xp.logical_not(xp.isfinite(before)), NONFINITE))
    # the new column of the Hessenberg matrix, rotated; then one rotation more
    Q, size_known = s.Q, known.shape[-2]
    column = xp.matmul(Q[..., :, :size_known], h)[..., 0]
    a = column[..., j]
    length = xp.sqrt(xp.abs(a) ** 2 + after**2)
    # A vector of the basis that A sends to zero, up to rounding: to go along it would only make x
    # large.
    largest = xp.maximum(s.norm, before)
    status = first_of(xp, status, (length <= ZERO_PIVOT * xp.eps(V.dtype) * largest, SINGULAR))
    going = status == RUNNING
    cosine, sine = (
        divide(xp, a, xp.astype(length, a.dtype))[..., None],
        divide(xp, after, length)[..., None],
    )
    upper = xp.conj(cosine) * Q[..., j, :] + sine * Q[..., j + 1, :]
    lower = -sine * Q[..., j, :] + cosine * Q[..., j + 1, :]
    Q = written(xp, Q, (..., j, slice(None)), xp.where(going[..., None], upper, Q[..., j, :]))
    Q = written(
        xp, Q, (..., j + 1, slice(None)), xp.where(going[..., None], lower, Q[..., j + 1, :])
    )
    m = s.H.shape[-1]
    places = xp.arange(m, device=xp.device_of(V))
    entries = xp.where(
        places < j, column[..., :m], xp.where(places == j, xp.astype(length, a.dtype)[..., None], 0)
    )
    H = written(xp, s.H, (..., j, slice(None)), xp.where(going[..., None], entries, s.H[..., j, :]))
    size = xp.where(going, (s.beta * xp.abs(Q[..., j + 1, 0])) ** 2, s.size)
    status = first_of(xp, status, (size <= goal, SUCCESS))
    kept = (status == RUNNING)[..., None]
    unit = W[..., 0] * divide(xp, 1 + 0 * after, after)[..., None]
    V = written(xp, V, (..., j + 1, slice(None)), xp.where(kept, unit, 0))
    return GMRESState(
        V=V,
        H=H,
        Q=Q,
        beta=s.beta,
        size=size,
        status=status,
        j=j + 1,
        taken=s.taken + going,
        norm=largest,
    )


def combination(xp: Any, s: GMRESState) -> Array:
    """V y with y the solution of H y = β Q e_1, for each column as far as it has come."""
    m = s.H.shape[-1]
    reached = xp.arange(m, device=xp.device_of(s.V)) < s.taken[..., None]
    right = xp.where(reached, s.beta[..., None] * s.Q[..., :m, 0], 0)
    U = xp.matrix_transpose(s.H)
    y = xp.solve_triangular(U, right[..., None], lower=False)
    # A y that large is all rounding: H is singular, and the shortest of the y that do as well is
    # taken.
    absurd = xp.logical_not(
        xp.max(xp.abs(y), axis=(-2, -1)) * s.norm * ZERO_PIVOT * xp.eps(y.dtype) <= s.beta
    )
    some = xp.any(absurd & (s.beta > 0))
    if is_compiling():  # no value can be looked at
        return _of_basis(xp, s, xp.where(absurd[..., None, None], _shortest(xp, U, right), y))
    if is_plain(xp, y) and not bool(some):
        return _of_basis(xp, s, y)
    shortest = xp.cond(some, lambda U, y: _shortest(xp, U, right), lambda U, y: y, U, y)
    return _of_basis(xp, s, xp.where(absurd[..., None, None], shortest, y))


def _shortest(xp: Any, U: Array, right: Array) -> Array:
    W, sigma, V_adjoint = xp.svd(U)
    kept = sigma > ZERO_PIVOT * xp.eps(U.dtype) * sigma[..., :1]
    inverted = xp.where(kept, 1 / xp.where(kept, sigma, 1), 0)
    coefficients = inverted[..., None] * xp.matmul(
        xp.conj(xp.matrix_transpose(W)), right[..., None]
    )
    return xp.matmul(xp.conj(xp.matrix_transpose(V_adjoint)), coefficients)


def _of_basis(xp: Any, s: GMRESState, y: Array) -> Array:
    m = s.H.shape[-1]
    return turn(xp, xp.matmul(xp.matrix_transpose(s.V[..., :m, :]), y)[..., 0])


def turn(xp: Any, X: Array) -> Array:
    """Columns as rows, rows as columns; one vector as it is."""
    return X if X.ndim == 1 else xp.matrix_transpose(X)


def written(xp: Any, X: Array, key: Any, values: Array) -> Array:
    """X with other values at some places, written over X if that may be."""
    if not is_plain(xp, X, values):
        return xp.set_at(X, key, values)
    X[key] = values
    return X


def norm(xp: Any, W: Array) -> Array:
    """|w| for each column of blocks (*batch, k, n, 1)."""
    return xp.sqrt(xp.real(xp.vecdot(W, W, axis=-2)))[..., 0]
