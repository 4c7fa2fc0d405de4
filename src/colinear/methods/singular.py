"""The largest singular triplets: by bidiagonalisation, or from random vectors.

Golub-Kahan-Lanczos bidiagonalisation with thick restart (Baglama and Reichel 2005):
Two bases, A V = U B and A^H U = V B^H + beta v e_m^H. The singular triplets of the small B, B = P
diag(s) Q^H, give those of A; a restart keeps the best p of them and v: in that basis B is diagonal
with one full column behind it.

Differs from the paper: both bases are orthogonalised in full; zero on the bidiagonal is an
invariant subspace, no failure, and a random direction follows; when k triplets have converged the
run looks again from a random direction, since a Krylov space holds one vector of each singular
space. Batches advance, and restart, together.

Randomised singular value decomposition (Halko, Martinsson and Tropp 2011): an orthonormal basis Q of
(A A^H)^q A Ω, Ω random and somewhat wider than the rank asked for, then the small decomposition of
Q^H A. Differs from the paper: the powers are orthonormalised at each product, so that small singular
values are not lost in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backends import Array, adjoint, zeros_like
from .base import SHOWN, Method, Spectral, check_integer
from .basis import expand, extend, norm, put, put_row, rotate
from .restarted import KrylovState, Restarted
from .vectors import LinearMap


@dataclass(frozen=True)
class GolubKahan(Spectral):
    """Golub-Kahan-Lanczos bidiagonalisation with thick restart, for the largest singular triplets
    of any A.

    An iteration is a step: one product with A, one with A^H, and one more vector in each of the two
    bases.

    Parameters
    ----------
    basis : int, optional
        How many vectors each of the two bases holds; default 2 k + 14.
    repeated : bool
        Whether to look, once k triplets have converged, for further members of repeated singular
        values.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> U, s, V = co.svd(co.opaque(co.Diagonal(np.arange(1000.0))), 2, co.GolubKahan())
    >>> s.round(6)
    array([999., 998.])
    """

    basis: int | None = None
    repeated: bool = True


class GolubKahanRun(Restarted):
    """A run of Golub-Kahan; H is B^H, and `U` the left basis, whose last row is not used."""

    def __init__(
        self, xp: Any, multiply: Any, adjoint: Any, left: Array, *rest: Any, **options: Any
    ):
        super().__init__(xp, multiply, *rest, **options)
        self.adjoint, self.left = adjoint, left

    def initial(self) -> KrylovState:
        s = super().initial()
        U = zeros_like(self.xp, s.V, (*s.V.shape[:-1], self.left.shape[-1]))
        return s._replace(U=U)

    def step(self, s: KrylovState) -> KrylovState:
        """A v_j = sum_i B_ij u_i + alpha u_j, then A^H u_j = alpha v_j + beta v_j+1."""
        xp, V, U, H, j = self.xp, s.V, s.U, s.H, s.j
        v = V[..., j, :]
        w = self.multiply(v[..., None])[..., 0]
        size = xp.maximum(s.size, norm(xp, w))
        known = self.ask.m if xp.is_functional else j
        w = w - expand(xp, xp.conj(H[..., j, :known]), U[..., :known, :])
        left, right = self.random(self.left, s), self.random(self.noise, s)
        _, alpha, u, *_ = extend(xp, U, None, w, j, size, left)
        z = self.adjoint(u[..., None])[..., 0]
        size = xp.maximum(size, norm(xp, z))
        z = z - alpha[..., None] * v  # z = A^H u_j - α v_j
        _, beta, z, *_ = extend(xp, V, None, z, j + 1, size, right)
        H = put(xp, H, (..., j, j), xp.astype(alpha, H.dtype))
        return self.add(s, z, beta, size, put_row(xp, U, j, u), H)

    def lengths(self, H: Array) -> tuple[Array, ...]:
        return self.small.diagonal(H), *super().lengths(H)

    def solve(self, H: Array) -> tuple[Array, ...]:
        """B^H = Q diag(s) P^H"""
        Q, values, Ph = self.small.svd(H)
        return values, Q, adjoint(self.small, Ph)

    def restart(self, s: KrylovState) -> KrylovState:
        following = super().restart(s)
        return following._replace(U=rotate(self.xp, s.U, self.beside(s.P), following.j, s.j))


class Triplets(NamedTuple):
    """Singular triplets by rows, and how the run ended."""

    U: Array
    s: Array
    V: Array
    matvecs: Any
    iterations: Any  # in the unit of `max_iters`
    done: Any
    finite: Any
    stopped: bool = False


def golub_kahan(
    xp: Any,
    multiply: LinearMap,
    multiply_adjoint: LinearMap,
    start: Array,
    noise: tuple[Array, Array],
    k: int,
    **options: Any,
) -> Triplets:
    """The k largest singular triplets; `options` are those of `Request`.

    `start` is (*lanes, n), `noise` random numbers of the sizes of right and left vectors; the size
    of the bases is at most that of the smaller dimension. A step makes one product with A and one
    with A^H.

    A wide A is run as A^H: when the basis of the smaller space is complete nothing is left over,
    and m steps find all triplets. From the larger space one more vector would be needed.
    """
    right, left = noise
    if right.shape[-1] > left.shape[-1]:
        first = multiply(start[..., None])[..., 0]
        first = xp.where(xp.any(first != 0, axis=-1, keepdims=True), first, left)
        found = golub_kahan(xp, multiply_adjoint, multiply, first, (left, right), k, **options)
        return found._replace(U=found.V, V=found.U, matvecs=found.matvecs + 1)
    run = GolubKahanRun(xp, multiply, multiply_adjoint, left, start, right, k, "LA", **options)
    s, stopped = run.run()
    s = run.placed(s)
    U, V = (xp.copy(basis[..., :k, :]) for basis in (s.U, s.V))  # so that the bases can go
    ended = 2 * s.iterations, s.iterations, s.done, s.finite, stopped
    return Triplets(U, s.values[..., :k], V, *ended)


# -------------------------------------------------------------------------------- from random vectors


@dataclass(frozen=True)
class RandomizedSVD(Method):
    """A low-rank decomposition from random vectors (Halko, Martinsson and Tropp 2011): few passes
    over A, and an approximation.

    `info.residual` says how good it is, |A v - s u| / |A| for each triplet, and `info.error`
    estimates |A - U diag(s) V^H| / |A|.

    Parameters
    ----------
    tol : float, optional
        The residual to reach: the status is INACCURATE where a triplet misses it. Nothing is asked
        for if it is not given.
    oversampling : int
        How many vectors more than the rank are used.
    power_iterations : int
        How often A A^H is applied: more, where the singular values fall slowly.
    seed : int
        Of the random numbers.
    rank : int, optional
        Of `pinv`: how many triplets the pseudoinverse is made of; all if not given. (`svd` has k.)
    progress : bool
        Whether to show on standard error what is under way, from the third second on.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = np.outer(np.arange(50.0), np.ones(40))
    >>> U, s, V = co.svd(A, 1, co.RandomizedSVD())
    >>> bool(np.allclose(U @ np.diag(s) @ V.H, A))
    True
    """

    tol: float | None = None
    oversampling: int = 10
    power_iterations: int = 2
    seed: int = 0
    rank: int | None = None
    progress: bool = SHOWN

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("oversampling", "power_iterations"):
            check_integer(self, name, 0, "an integer that is not negative")
        check_integer(self, "rank", 1, "a positive integer")

    def runs_on(self, A: Any) -> bool:
        return self.rank is not None  # that of the whole says nothing of parts


def randomized_svd(
    xp: Any,
    multiply: LinearMap,
    multiply_adjoint: LinearMap,
    test: Array,
    k: int,
    powers: int,
) -> tuple[Array, Array, Array]:
    """U (*batch, m, k), s and V (*batch, n, k), from a random block `test` (*batch, n, l) with k <=
    l."""
    Q = xp.qr(multiply(test))[0]
    for _ in range(powers):
        Q = xp.qr(multiply(xp.qr(multiply_adjoint(Q))[0]))[0]
    W, s, Ph = xp.svd(multiply_adjoint(Q))  # (Q^H A)^H = W diag(s) P^H
    U = xp.matmul(Q, adjoint(xp, Ph))
    return U[..., :k], s[..., :k], W[..., :k]
