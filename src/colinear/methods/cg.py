"""Conjugate gradients (Hestenes and Stiefel 1952) for positive definite A, with a positive definite
preconditioner M ≈ A^-1.

The preconditioner is applied as if split, M = E E^H: the iterates are those of CG on E^H A E, which
needs E nowhere. The residual that is looked at is b - A x itself, not the preconditioned one.

Differs from the reference: blocks of right sides, each column stopped on its own; p^H A p <= 0 and
r^H M r <= 0 are noticed, since they show that A or M is not positive definite; the true residual
decides (`solve_in_cycles`). Vectors: x, r, p, A p, M r and b.
"""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..properties import POSITIVE_SEMIDEFINITE
from .base import Iterative
from .iterate import CycleStart, Recurrence, ResidualState
from .vectors import OPERATOR, PRECONDITIONER, RUNNING

INFINITY = float("inf")


class CGState(ResidualState):
    p: Array
    rho: Any  # r^H M r of the step before
    alpha: Any  # the step length


def begin(ops: Any, s: CycleStart) -> CGState:
    """The state before the first step: as if r^H M r had been infinite before it, so that nothing
    of p remains."""
    size = ops.number(s.size)
    rho = ops.constant(INFINITY, size)
    return CGState.start(ops, s, ops.over(s.X), p=ops.own(s.R), rho=rho, alpha=size)


def step(ops: Any, s: Any) -> Any:
    """One iteration.

    It begins with the new direction, so that a compiler may write each vector over the old one:
    were p made at the end, while A p and x still need the one before, it would be copied in every
    step.
    """
    if ops.precondition is None:
        z, rho = s.r, s.size  # ρ = r^H r
    else:
        z = ops.precondition(s.r)  # z = M r
        rho = ops.dot(s.r, z)  # ρ = r^H M r
        s.status = ops.positive(s.status, rho, PRECONDITIONER)
        if ops.ended(s.status):
            return s
    s.p = p = ops.xpby(z, ops.ratio(rho, s.rho), s.p)  # p = z + (ρ / ρ') p
    s.rho = rho
    q = ops.multiply(p)  # q = A p
    curvature = ops.dot(p, q)  # p^H A p
    s.status = ops.positive(s.status, curvature, OPERATOR)
    on = s.status == RUNNING
    s.alpha = alpha = ops.ratio(rho, curvature)  # α = ρ / p^H A p
    # x = x + α p, r = r - α q, |r|^2
    s.x, s.r, s.size = ops.descend(alpha, p, q, s.x, s.r, on)
    s.status = ops.reached(s.status, s.size)
    return s


class CG(Iterative):
    """Conjugate gradients, for positive definite A. One product an iteration, six vectors;
    preconditioned as if split.

    The preconditioner must be positive definite too. Where A or M shows that it is not, the status
    is NOT_POSITIVE_DEFINITE. `lstsq` and `pinv` take any A: they run it on the normal equations A^H
    A x = A^H b, written with the residual b - A x (CGLS), and judge it as `LSQR`. A preconditioner
    is then one of A^H A.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(np.array([[4.0, 1.0], [1.0, 3.0]])))
    >>> x, info = co.solve(A, np.array([1.0, 2.0]), co.CG(tol=1e-12), info=True)
    >>> info.iterations, bool(info.converged.all())
    (2, True)
    """

    needs = POSITIVE_SEMIDEFINITE
    splits_preconditioner = True
    recurrence = Recurrence(begin, step, on_device=True)
