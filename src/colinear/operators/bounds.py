"""Bounds of the residual |b - A x| / |b| of a stable way to find x = A^-1 b, which cost less than a
product with A.

With u the unit roundoff and a small c, to first order in u (Higham, Accuracy and Stability of
Numerical Algorithms, 2002):

Transforms, and elimination without growth: |b - A x| <= c u (|b| + |A| |x|), with c = 200.

Elimination with row exchanges of a tridiagonal A: each row that occurs on the way has at most three
entries, sums of two of those of A nearby, and is an equation that x satisfies, so its right side is
no larger than those entries times those of x that they meet. A step rounds a few such numbers, and
what it commits reaches the equations of A with multipliers of size 1 at most, two of them. Summed
over the steps, with l, d and u the diagonals,

    |b - A x|_2 <= |b - A x|_1 <= c u (|l| + |d| + |u|)^T |x| <= c u (|l|_2 + |d|_2 + |u|_2) |x|_2.

Counting operations gives c < 100 in real numbers, a few times that in complex ones; it is taken as
1000.
"""

from __future__ import annotations

from ..backends import Array, namespace_of

LARGE = 10_000  # rows from which a bound costs less than the product that it saves


def bound_by_norm(norm: float, X: Array, B: Array) -> float | None:
    """The bound for transforms and elimination without growth, from |A|; None where b is zero or
    not finite."""
    xp = namespace_of(X)
    x, b = (xp.sqrt(xp.real(xp.vecdot(Y, Y, axis=-2))) for Y in (X, B))
    if not bool(xp.all((b > 1e-100) & xp.isfinite(b))):
        return None
    return float(100 * xp.eps(X.dtype) * xp.max(1 + norm * x / b))


def bound_of_tridiagonal(diagonals: tuple[Array, ...], X: Array, B: Array) -> float | None:
    """The bound for elimination along three diagonals; None where squares might mislead, or
    where A is small."""
    xp = namespace_of(X)
    if X.shape[-2] < LARGE:
        return None
    # of which the norm is a lower bound of |b| that costs less
    part = B[..., : -(-B.shape[-2] // 16), :]
    x, b = (xp.real(xp.vecdot(Y, Y, axis=-2)) for Y in (X, part))
    # (|l| + |d| + |u|)^2 is no larger
    a = 3 * sum(xp.real(xp.vecdot(d, d, axis=-1))[..., None] for d in diagonals)
    if not all(bool(xp.all((s > 1e-30) & (s < 1e30))) for s in (a, x, b)):
        return None
    return float(500 * xp.eps(X.dtype) * xp.sqrt(xp.max(a * x / b)))
