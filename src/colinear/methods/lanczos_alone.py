"""The steps of Lanczos for one vector whose numbers can be seen: in numbers of Python's, in place, and orthogonalised when due.

The recurrence alone loses orthogonality, as Ritz vectors converge. How much is lost is known without looking: the inner products
omega_j = V^H v_j obey the recurrence themselves (Simon 1984),

    beta_j omega_j+1 = T omega_j - alpha_j omega_j - beta_j-1 omega_j-1 + rounding,

so a pass over the basis, which is most of the time of a step where products are cheap, is made only when one of them has grown to
eps^(3/4), or to a small part of the tolerance; and then for two vectors in turn, or the one before would spoil the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array
from .krylov import SMALL, expand, fresh, orthogonalise

SLACK = 0.75  # power of eps up to which the basis may lose orthogonality between two passes
SHARE = 1e-3  # of the tolerance up to which it may, since what a pass takes away is an error of the recurrence


def grown(xp: Any, multiply: Callable[[Array], Array], noise: Array, s: Any, stop: Any, m: int, tol: float) -> Any:
    """The state of `lanczos` with the basis filled to `stop`, or as far as numbers are finite."""
    V, T, j, due = s.V, s.T, s.j, s.due
    size, beta, eps, dot, axpy = float(s.size), float(s.beta), xp.eps(V.dtype), xp.dot_real, xp.axpy
    drift, allowed = Drift(xp.to_numpy(T), eps), min(eps**SLACK, SHARE * tol)
    while j < stop and math.isfinite(size):
        v = V[j]
        w = multiply(v[:, None])[:, 0]
        length = math.sqrt(dot(w, w))
        size = size if length <= size else length  # NaN is larger
        if j == s.kept:  # the arrow has neighbours everywhere, what follows it only the one before
            w = w - expand(xp, xp.conj(T[j, :j]), V[:j]) if j else xp.copy(w)
        else:
            w = w - beta * V[j - 1]
        alpha = dot(v, w)
        w = axpy(-alpha, v, w)
        length = math.sqrt(dot(w, w))
        small = length <= SMALL * eps * size
        # A run that looks again has dropped the residuals of what it keeps, of which the recurrence knows nothing.
        if due > 0 or s.looked or small or not drift.after(j, alpha, beta, length, size) < allowed:
            w = orthogonalise(xp, V[: j + 1], fresh(xp, noise, s.draws + j) if small else w)[0]
            length = math.sqrt(dot(w, w))
            drift.clear()
            due = due - 1 if due else 1
        V[j + 1] = w * (1 / length if length else 0.0)
        beta = 0.0 if small else length
        T[j, j] = alpha
        if j + 1 < m:
            T[j + 1, j] = beta
        drift.step(j, alpha, beta)
        j += 1
    beta, size = (xp.asarray(x, dtype=s.size.dtype, device=xp.device_of(V)) for x in (beta, size))
    # What is known of the inner products is not kept between two calls: the first two vectors of the next are orthogonalised.
    return s._replace(V=V, T=T, beta=beta, size=size, due=2, j=j, matvecs=s.matvecs + j - s.j)


class Drift:
    """Estimates of the inner products of the last two vectors with those before, along the recurrence."""

    def __init__(self, T: np.ndarray, eps: float):
        self.T = np.tril(T) + np.tril(T, -1).conj().T
        self.eps = eps
        m = len(T)
        self.before, self.last, self.following = (np.full(m + 1, eps, T.dtype) for _ in range(3))

    def after(self, j: int, alpha: float, beta: float, length: float, size: float) -> float:
        """The largest inner product of the vector after v_j, of this norm before it is normalised, with the others."""
        self.last[j] = 1
        if j:
            self.before[j - 1] = 1
        found = self.T[:j, :j] @ self.last[:j] - alpha * self.last[:j] - beta * self.before[:j]
        if j:
            found[j - 1] += self.T[j, j - 1]
        found /= length
        rounding = 2 * self.eps * size / length
        self.following[:j] = found + np.where(found.real < 0, -rounding, rounding)
        self.following[j] = rounding
        return float(np.abs(self.following[: j + 1]).max())

    def clear(self) -> None:
        """The vector was orthogonalised."""
        self.following[:] = self.eps

    def step(self, j: int, alpha: float, beta: float) -> None:
        self.before, self.last, self.following = self.last, self.following, self.before
        self.T[j, j] = alpha
        if j + 1 < len(self.T):
            self.T[j + 1, j] = self.T[j, j + 1] = beta
