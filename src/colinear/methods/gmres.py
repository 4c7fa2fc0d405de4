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

from ..backends import Array, adjoint, inner_products, places_like, without_zeros, zeros_like
from ..status import Status
from .base import Iterative, check_integer
from .basis import length_of, norm_of, orthogonalise_to_first, put_row, smaller
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
)  # fmt: skip

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
        what = f"the basis begins again after {size} vectors"
        if status is Status.STAGNATION:
            what = f"a basis that begins again after {size} vectors no longer reduces the residual"
        return f"{what}: raise restart= (n, here {n}, never begins again)"

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        rows, M = B.shape[max(-2, -B.ndim)], products.precondition
        m = max(1, min(self.basis(rows), options["max_iters"]))

        def product(X: Array) -> Array:
            return products.multiply(X if M is None else M(X))

        def cycle(solve: Solve, s: CycleStart) -> CycleStart:
            def solution(state: GMRESState) -> Array:
                correction = combination(xp, state)
                return s.X + (correction if M is None else M(correction))  # x = x + M V y

            goal = solve.goal(s)
            run = solve.loop.run(
                lambda _, state: step(xp, product, goal, state),
                Columns(xp, B.dtype, waits=xp.peek(s.size) is None),
                s.run._replace(state=begin(xp, m, s)),
                solution,
                smaller(xp, s.run.iteration + m, solve.loop.limit),
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


def begin(xp: Any, m: int, s: CycleStart) -> GMRESState:
    """The state before the first step of a cycle."""
    R = turn(xp, s.R)  # (*batch, k, n)
    *outer, n = R.shape
    first = R / without_zeros(xp, s.size)[..., None]
    H, Q = (
        zeros_like(xp, R, (*outer, k, k)) + xp.eye(k, dtype=R.dtype, device=xp.device_of(R))
        for k in (m, m + 1)
    )
    return GMRESState(
        V=put_row(xp, zeros_like(xp, R, (*outer, m + 1, n)), 0, first),
        H=H,
        Q=Q,
        beta=s.size,
        size=s.size**2,
        status=s.status,
        j=0 * s.run.iteration,
        taken=0 * s.status,
        norm=s.norm,
    )


def step(xp: Any, product: Any, goal: Array, s: GMRESState) -> GMRESState:
    """One more vector of the basis, for all columns that run."""
    V, H, Q, j, eps = s.V, s.H, s.Q, s.j, xp.eps(s.V.dtype)
    # rows that are not yet there are zero
    count = j + 1 if xp.is_functional or is_plain(xp, V) else V.shape[-2]
    Av = turn(xp, product(turn(xp, V[..., j, :])))
    # twice is enough (Kahan; Parlett 1980)
    w, h, square, left = orthogonalise_to_first(xp, V, count, Av, passes=2)
    before, after = norm_of(xp, Av, square), length_of(xp, w, left)
    # what is left is rounding: the subspace is invariant
    after = xp.where(after > 10 * eps * before, after, 0)
    # the new column of the Hessenberg matrix, rotated; then one rotation more
    column = xp.matmul(Q[..., :, : h.shape[-1]], h[..., None])[..., 0]
    a = column[..., j]
    length = xp.sqrt(abs(a) ** 2 + after**2)
    # A vector of the basis that A sends to zero, up to rounding: to go along it would only make x
    # large.
    s.norm = xp.maximum(s.norm, before)
    broken, vanished = ~xp.isfinite(before), length <= ZERO_PIVOT * eps * s.norm
    status = first_of(xp, s.status, broken, NONFINITE, vanished, SINGULAR)
    going = status == RUNNING
    on, pivot = going[..., None], xp.astype(length, a.dtype)[..., None]
    cosine, sine = divide(xp, a[..., None], pivot), divide(xp, after, length)[..., None]
    q, following = Q[..., j, :], Q[..., j + 1, :]
    upper = xp.where(on, xp.conj(cosine) * q + sine * following, q)
    lower = xp.where(on, cosine * following - sine * q, following)
    s.Q = put_row(xp, put_row(xp, Q, j, upper), j + 1, lower)
    m, places = H.shape[-1], places_like(xp, H)
    entries = xp.where(places < j, column[..., :m], xp.where(places == j, pivot, 0))
    s.H = put_row(xp, H, j, xp.where(on, entries, H[..., j, :]))
    s.size = xp.where(going, (s.beta * abs(lower[..., 0])) ** 2, s.size)
    s.status = first_of(xp, status, s.size <= goal, SUCCESS)
    unit = w / without_zeros(xp, after)[..., None]
    s.V = put_row(xp, V, j + 1, xp.where((s.status == RUNNING)[..., None], unit, 0))
    s.j, s.taken = j + 1, s.taken + going
    return s


def combination(xp: Any, s: GMRESState) -> Array:
    """V y with y the solution of H y = β Q e_1, for each column as far as it has come."""
    m = s.H.shape[-1]
    reached = places_like(xp, s.H) < s.taken[..., None]
    right = xp.where(reached, s.beta[..., None] * s.Q[..., :m, 0], 0)[..., None]
    U = xp.matrix_transpose(s.H)
    y = xp.solve_triangular(U, right, lower=False)
    # A y that large is all rounding: H is singular, and the shortest of the y that do as well is
    # taken.
    largest = xp.max(abs(y), axis=(-2, -1)) * s.norm
    absurd = ~(largest * ZERO_PIVOT * xp.eps(y.dtype) <= s.beta)
    # where torch compiles, no value can be looked at
    some = True if is_compiling() else xp.any(absurd & (s.beta > 0))
    shortest = xp.cond(some, lambda U, y: _shortest(xp, U, right), lambda U, y: y, U, y)
    y = xp.where(absurd[..., None, None], shortest, y)
    return turn(xp, xp.matmul(xp.matrix_transpose(s.V[..., :m, :]), y)[..., 0])


def _shortest(xp: Any, U: Array, right: Array) -> Array:
    """The shortest y of those for which |right - U y| is least, U being singular to rounding."""
    W, sigma, V_adjoint = xp.svd(U)
    kept = sigma > ZERO_PIVOT * xp.eps(U.dtype) * sigma[..., :1]
    inverted = xp.where(kept, 1 / xp.where(kept, sigma, 1), 0)
    coefficients = inverted[..., None] * inner_products(xp, W, right)
    return xp.matmul(adjoint(xp, V_adjoint), coefficients)


def turn(xp: Any, X: Array) -> Array:
    """Columns as rows, rows as columns; one vector as it is."""
    return X if X.ndim == 1 else xp.matrix_transpose(X)
