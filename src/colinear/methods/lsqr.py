"""Least squares by bidiagonalisation, for any m x n A: LSQR (Paige and Saunders 1982), LSMR (Fong
and Saunders 2011), and CGLS (Hestenes and Stiefel 1952, section 10).

    β_k+1 u_k+1 = A v_k - α_k u_k,      α_k+1 v_k+1 = A^H u_k+1 - β_k+1 v_k

The bidiagonalisation is that of Golub and Kahan (1965).

LSQR is in exact arithmetic conjugate gradients on A^H A x = A^H b, without its squared condition in
the answer: |r| falls from step to step. LSMR is MINRES on these: |A^H r| falls, so that it may be
stopped early with more confidence. CGLS has the iterates of LSQR (Björck, Elfving and Strakoš 1998)
and is written with the residual r = b - A x: A^H A is nowhere multiplied by x, and its
preconditioner M ≈ (A^H A)^-1 is positive definite. Those of the others stand on the right, |b - A M
y|, x = M y. Started from zero and not preconditioned they give the solution of smallest norm.

Differs from the references: blocks of right sides, each column stopped on its own; damping as rows
below A; the true residual, and the true A^H r, decide (`solve_in_cycles`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..backends import Array, zeros_like
from .base import Iterative
from .cg import CG
from .iterate import CycleStart, Outcome, Recurrence, ResidualState
from .vectors import NONFINITE, PRECONDITIONER, RUNNING, SUCCESS, column_norms, divide

INFINITY = float("inf")


# ------------------------------------------------------------------------------- bidiagonalisation


def begin_bidiagonal(ops: Any, s: CycleStart, kind: Any) -> tuple[Any, Any]:
    """The state of this kind before the first step, and the first β."""
    beta, u = ops.unit(ops.own(s.R))  # β u = r
    alpha, v = ops.unit(ops.copy(ops.adjoint(u)))  # α v = A^H u
    status = ops.first(ops.codes(s.status), ops.infinite(alpha), NONFINITE, alpha == 0, SUCCESS)
    norm = ops.larger(alpha, ops.number(s.norm))
    numbers = {"alpha": alpha, "squares": norm * norm, "size": beta * beta, "status": status}
    return kind(x=ops.own(s.X), u=u, v=v, **numbers), beta


def bidiagonalise(ops: Any, s: Any) -> Any:
    """Advance u, v and α; the next β."""
    beta, s.u = ops.unit(ops.xpby(ops.multiply(s.v), -s.alpha, s.u))  # β u = A v - α u
    s.alpha, s.v = ops.unit(ops.xpby(ops.adjoint(s.u), -beta, s.v))  # α v = A^H u - β v
    s.status = ops.first(s.status, ops.infinite(s.alpha + beta), NONFINITE)
    return beta


def judge(ops: Any, s: Any, on: Any, beta: Any, left: Any, slope: Any) -> None:
    """Set the size and the status by β, |r| and |A^H r|."""
    s.squares = s.squares + ops.where(on, s.alpha * s.alpha + beta * beta, 0.0)
    s.size = ops.where(on, left * left, s.size)
    small = (left <= ops.tol) | (slope <= ops.tol * ops.root(s.squares) * left)
    s.status = ops.first(s.status, small | (s.alpha == 0) | (beta == 0), SUCCESS)


class LeastSquaresState(ResidualState):
    squares: Any  # |A|^2, by Frobenius; of CGLS with a preconditioner from below

    @property
    def norm(self) -> Any:
        return self.squares**0.5


class LSQRState(LeastSquaresState):
    u: Array
    v: Array
    w: Array  # the direction of search
    alpha: Any
    rho: Any  # what the rotation has left on the diagonal
    phi: Any  # |r|


def begin_lsqr(ops: Any, s: CycleStart) -> LSQRState:
    """The state before the first step."""
    state, beta = begin_bidiagonal(ops, s, LSQRState)
    state.w, state.rho, state.phi = ops.copy(state.v), state.alpha, beta
    return state


def step_lsqr(ops: Any, s: LSQRState) -> LSQRState:
    """One iteration: one more row and column of the bidiagonal matrix, and a rotation."""
    beta = bidiagonalise(ops, s)
    if ops.ended(s.status):
        return s
    on = s.status == RUNNING
    c, sine, rho = ops.rotation(s.rho, beta)
    s.x = ops.axpy(ops.ratio(c * s.phi, rho), s.w, s.x, on)  # x = x + (φ c / ρ) w
    s.w = ops.xpby(s.v, -ops.ratio(sine * s.alpha, rho), s.w)  # w = v - (s α / ρ) w
    s.phi = sine * s.phi
    s.rho = -c * s.alpha
    judge(ops, s, on, beta, s.phi, abs(s.rho) * s.phi)  # |A^H r| = |c| α |r|
    return s


class LSMRState(LeastSquaresState):
    u: Array
    v: Array
    d: Array  # the vectors h and h̄ of the paper
    d_bar: Array
    alpha: Any
    alpha_bar: Any
    rho: Any
    rho_bar: Any
    c_bar: Any
    s_bar: Any
    zeta: Any
    zeta_bar: Any  # |A^H r|, with its sign
    beta_dot: Any  # β̇ and β̈: of these and of τ the norm of r is made
    beta_double: Any
    rho_dot: Any
    theta: Any
    tau: Any


def begin_lsmr(ops: Any, s: CycleStart) -> LSMRState:
    """The state before the first step."""
    state, beta = begin_bidiagonal(ops, s, LSMRState)
    state.d, state.d_bar = ops.copy(state.v), 0 * state.v
    state.alpha_bar, state.beta_double, state.zeta_bar = state.alpha, beta, state.alpha * beta
    state.rho = state.rho_bar = state.c_bar = state.rho_dot = ops.constant(1.0, beta)
    state.s_bar = state.zeta = state.beta_dot = state.theta = state.tau = ops.constant(0.0, beta)
    return state


def step_lsmr(ops: Any, s: LSMRState) -> LSMRState:
    """One iteration: one more row and column of the bidiagonal matrix, and two rotations."""
    beta = bidiagonalise(ops, s)
    if ops.ended(s.status):
        return s
    on = s.status == RUNNING
    ratio, rotation = ops.ratio, ops.rotation
    before, zeta_old = s.rho * s.rho_bar, s.zeta
    c, sine, rho = rotation(s.alpha_bar, beta)  # the first makes the bidiagonal matrix triangular
    theta_new = sine * s.alpha
    theta_bar = s.s_bar * rho
    s.c_bar, s.s_bar, rho_bar = rotation(s.c_bar * rho, theta_new)  # the second its square
    s.alpha_bar, s.rho, s.rho_bar = c * s.alpha, rho, rho_bar
    s.zeta, s.zeta_bar = s.c_bar * s.zeta_bar, -s.s_bar * s.zeta_bar
    s.d_bar = ops.xpby(s.d, -ratio(theta_bar * rho, before), s.d_bar)  # h̄ = h - (θ̄ ρ / ρ' ρ̄') h̄
    s.x = ops.axpy(ratio(s.zeta, rho * rho_bar), s.d_bar, s.x, on)  # x = x + (ζ / ρ ρ̄) h̄
    s.d = ops.xpby(s.v, -ratio(theta_new, rho), s.d)  # h = v - (θ / ρ) h
    # |r|, section 5.1
    c_tilde, s_tilde, rho_tilde = rotation(s.rho_dot, theta_bar)
    s.tau = ratio(zeta_old - s.theta * s.tau, rho_tilde)
    s.theta, s.rho_dot = s_tilde * rho_bar, c_tilde * rho_bar
    s.beta_dot = -s_tilde * s.beta_dot + c_tilde * c * s.beta_double
    s.beta_double = -sine * s.beta_double
    tau_dot = ratio(s.zeta - s.theta * s.tau, s.rho_dot)
    left = ops.hypot(s.beta_dot - tau_dot, s.beta_double)
    judge(ops, s, on, beta, left, abs(s.zeta_bar))
    return s


# ------------------------------------------------------------------------------- normal equations


class CGLSState(LeastSquaresState):
    p: Array  # the direction of search
    rho: Any  # s^H M s of the step before, s = A^H r
    curve: Any  # 1 / α of the step before


def begin_cgls(ops: Any, s: CycleStart) -> CGLSState:
    """The state before the first step: as if the direction before it were zero, s^H M s
    infinite."""
    x, zero, norm = ops.own(s.X), 0 * ops.number(s.size), ops.number(s.norm)
    numbers = {"rho": INFINITY + zero, "curve": zero, "squares": norm * norm}
    return CGLSState.start(ops, s, x, p=0 * x, **numbers)


def step_cgls(ops: Any, s: CGLSState) -> CGLSState:
    """One iteration."""
    limit, ran = ops.tol * ops.tol, s.status == RUNNING
    z = a = ops.adjoint(s.r)  # a = A^H r
    rho = slope = ops.dot(a, a)  # |A^H r|^2, at most |A|^2 |r|^2
    squares = ops.larger(s.squares, ops.ratio(slope, s.size))
    small = slope <= limit * squares * s.size
    s.status = ops.first(s.status, ops.infinite(slope), NONFINITE, small, SUCCESS)
    if ops.precondition is not None:
        z = ops.precondition(a)  # z = M a
        rho = ops.dot(a, z)  # ρ = a^H M a
        s.status = ops.positive(s.status, rho, PRECONDITIONER)
    beta = ops.where(s.status == RUNNING, ops.ratio(rho, s.rho), 0.0)
    s.p = p = ops.xpby(z, beta, s.p)  # p = z + (ρ / ρ') p
    s.rho = rho
    q = ops.multiply(p)  # q = A p
    curvature = ops.dot(q, q)  # |A p|^2 = p^H A^H A p
    s.status = ops.first(s.status, ops.infinite(curvature), NONFINITE, curvature == 0, SUCCESS)
    on = s.status == RUNNING
    curve = ops.ratio(curvature, rho)  # 1 / α
    if ops.precondition is None:  # 1/α + β/α' is on the diagonal of B^H B for the B of LSQR
        squares = ops.where(on, s.squares + curve + beta * s.curve, squares)
    else:
        lower = ops.ratio(curvature, ops.dot(p, p))
        squares = ops.where(on, ops.larger(squares, lower), squares)
    s.curve = curve
    s.squares = ops.where(ran, squares, s.squares)
    alpha = ops.ratio(rho, curvature)
    s.x = ops.axpy(alpha, p, s.x, on)  # x = x + α p
    s.r = r = ops.axpy(-alpha, q, s.r, on)  # r = r - α q
    s.size = ops.where(ran, ops.dot(r, r), s.size)
    s.status = ops.first(s.status, s.size <= limit, SUCCESS)
    return s


@dataclass(frozen=True)
class LeastSquares(Iterative):
    """What the iterations for least squares share. Not to be used itself."""

    damping: float = 0.0

    needs_adjoint = True
    least_squares = True
    vectors = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping >= 0:
            raise ValueError(f"{self.name}: damping is {self.damping!r}; it must not be negative.")
        if self.precision is not None:
            raise ValueError(
                f"{self.name}: least squares have no low precision to refine from. "
                "Leave out precision."
            )

    def algorithm(
        self, xp: Any, products: Any, B: Array, X0: Array | None = None, **options: Any
    ) -> Outcome:
        """Minimise |B - A X|^2 + |damping X|^2 by the cycles of the recurrence.

        Parameters
        ----------
        products
            With A and A^H; and M and M^H, if |B - A M Y| is to be minimised, and X = M Y.
        **options
            `tol`: a cycle ends when |r| <= tol |b| or |A^H r| <= tol |A| |r|; `max_iters`; `watch`;
            `consistent`: whether only |r| <= tol |b| is success.
        """
        of_X, of_R = products.multiply, products.adjoint
        # of A^H A it is applied by the recurrence: it does not stand on the right of A
        M_adjoint = None if self.squares_operator else products.precondition_adjoint
        M, guess, damping = products.precondition, X0, self.damping
        multiply, adjoint = of_X, of_R
        if M_adjoint is not None:
            multiply, adjoint = lambda Y: of_X(M(Y)), lambda R: M_adjoint(of_R(R))
            if X0 is not None:  # the guess is subtracted: M is not inverted
                B, X0 = B - of_X(X0), None
        if damping:  # a block more of rows: damping I below A
            above, above_adjoint, m = multiply, adjoint, B.shape[-2]
            rest = zeros_like(xp, B, (*B.shape[:-2], products.columns, B.shape[-1]))
            B = xp.concat([B, rest], axis=-2)
            multiply = lambda X: xp.concat([above(X), damping * X], axis=max(-2, -X.ndim))

            def adjoint(R: Array) -> Array:
                top, bottom = (R[:m], R[m:]) if R.ndim == 1 else (R[..., :m, :], R[..., m:, :])
                return above_adjoint(top) + damping * bottom

        def optimality(R: Array, size: Array, norm: Array) -> Array:
            slope = column_norms(xp, adjoint(R))
            # |A^H r| <= |A| |r|: an estimate of |A| that says otherwise has lost its squares to
            # underflow, or to overflow.
            largest = xp.where(xp.isfinite(norm), norm * size, 0)
            return divide(xp, slope, xp.maximum(slope, largest))

        products = products._replace(multiply=multiply, adjoint=adjoint)
        options = {"consistent": False, **options, "optimality": optimality}
        outcome = super().algorithm(xp, products, B, X0=X0, **options)
        if M_adjoint is None:
            return outcome
        X = M(outcome.X)
        return outcome._replace(X=X if guess is None else X + guess)


class LSQR(LeastSquares):
    """Least squares by bidiagonalisation, for any A. A product with A and one with A^H an
    iteration; preconditioned on the right.

    Parameters
    ----------
    damping : float
        Minimise |b - A x|^2 + |damping x|^2.

    Notes
    -----
    It ends when |r| <= tol |b| or |A^H r| <= tol |A| |r|. The preconditioner is n x n, such that A
    M is well conditioned.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), co.LSQR()).round(6)
    array([2.])
    """

    recurrence = Recurrence(begin_lsqr, step_lsqr, products=2, at_first=2)


class LSMR(LeastSquares):
    """Least squares by bidiagonalisation, for any A, such that |A^H r| falls; otherwise as `LSQR`.

    Parameters
    ----------
    damping : float
        Minimise |b - A x|^2 + |damping x|^2.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), co.LSMR()).round(6)
    array([2.])
    """

    recurrence = Recurrence(begin_lsmr, step_lsmr, products=2, at_first=2)
    vectors = 9


class NormalCG(LeastSquares):
    """`CG` as `lstsq` and `pinv` run it, on the normal equations. Not to be used itself."""

    recurrence = Recurrence(begin_cgls, step_cgls, products=2)
    splits_preconditioner = True
    squares_operator = True
    vectors = 10

    @property
    def name(self) -> str:
        return CG.__name__


def for_least_squares(method: Any) -> Any:
    """The method as `lstsq` and `pinv` run it: CG on the normal equations, any other as it is."""
    return (
        NormalCG(**{f.name: getattr(method, f.name) for f in fields(Iterative)})
        if isinstance(method, CG)
        else method
    )
