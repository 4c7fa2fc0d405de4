"""Golub-Kahan-Lanczos bidiagonalisation with thick restart (Baglama and Reichel 2005), for the
largest singular triplets.

Two bases, A V = U B and A^H U = V B^H + beta v e_m^H. The singular triplets of the small B, B = P
diag(s) Q^H, give those of A; a restart keeps the best p of them and v: in that basis B is diagonal
with one full column behind it.

Differs from the paper: both bases are orthogonalised in full; zero on the bidiagonal is an
invariant subspace, no failure, and a random direction follows; when k triplets have converged the
run looks again from a random direction, since a Krylov space holds one vector of each singular
space. Batches advance, and restart, together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..backends import Array
from .base import Spectral
from .basis import (
    SAFETY,
    SMALL,
    count_kept,
    counts,
    direction,
    expand,
    fill,
    fresh,
    judge,
    may_be_set,
    norm,
    pick,
    plain,
    put,
    rotate,
    run_cycles,
    smaller,
    with_random_row,
)
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


class GolubKahanState(NamedTuple):
    """Where a run stands."""

    V: Array  # (*lanes, m + 1, n), the right basis
    U: Array  # (*lanes, m + 1, rows), the left one; its last row is not used
    B: Array  # (*lanes, m, m)
    beta: Array
    size: Array
    j: Any
    s: Array  # (*lanes, m), singular values of B
    P: Array
    Q: Array
    residual: Array
    converged: Array
    found: Array
    looked: Any
    again: Any
    matvecs: Any
    cycles: Any
    draws: Any
    done: Any
    finite: Any

    @property
    def iterations(self) -> Any:
        """The steps so far: each makes one product with A and one with A^H."""
        return self.matvecs // 2


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
    *,
    m: int,
    tol: float,
    max_iters: int,
    again: bool = True,
    watch: Callable[[GolubKahanState], Any] | None = None,
) -> Triplets:
    """The k largest singular triplets.

    `start` is (*lanes, n), `noise` random numbers of the sizes of right and left vectors; `m` is
    the size of the bases, and at most that of the smaller dimension. A step, of which there are at
    most `max_iters`, makes one product with A and one with A^H.

    A wide A is run as A^H: when the basis of the smaller space is complete nothing is left over,
    and m steps find all triplets. From the larger space one more vector would be needed.
    """
    if start.shape[-1] > noise[1].shape[-1]:
        first = multiply(start[..., None])[..., 0]
        first = xp.where(xp.any(first != 0, axis=-1, keepdims=True), first, noise[1])
        options: dict[str, Any] = {
            "m": m,
            "tol": tol,
            "max_iters": max_iters,
            "again": again,
            "watch": watch,
        }
        found = golub_kahan(
            xp, multiply_adjoint, multiply, first, (noise[1], noise[0]), k, **options
        )
        return found._replace(U=found.V, V=found.U, matvecs=found.matvecs + 1)
    is_whole = m >= start.shape[-1]

    def cycle(s: GolubKahanState) -> GolubKahanState:
        stop = smaller(xp, m, s.j + max_iters - s.iterations)
        s = fill(xp, lambda s: _step(xp, multiply, multiply_adjoint, noise, s, m), s, stop)
        s = _projected(xp, s, m, tol)
        converged = plain(xp, xp.all(s.converged[..., :k])) & (s.j >= m)
        s = s._replace(done=converged) if is_whole or not again else judged(s, converged)
        return _restarted(xp, noise[0], s, k, m)

    def judged(s: GolubKahanState, converged: Any) -> GolubKahanState:
        far = s.s[..., k - 1] - s.s[..., k] > s.residual[..., k]
        same = xp.abs(s.s[..., :k] - s.found) <= tol * s.size[..., None]
        is_none = xp.logical_or(s.converged[..., k], far)
        return judge(xp, s, converged, is_none, same, s.s[..., :k])

    def going(s: GolubKahanState) -> Any:
        left = (s.iterations < max_iters) & (not is_whole or s.cycles == 0)
        return (s.done ^ True) & s.finite & left

    s, stopped = run_cycles(xp, going, cycle, _initial(xp, start, noise[1].shape[-1], k, m), watch)
    U, V = (xp.copy(basis[..., :k, :]) for basis in (s.U, s.V))  # so that the bases can go
    return Triplets(
        U=U,
        s=s.s[..., :k],
        V=V,
        matvecs=s.matvecs,
        iterations=s.iterations,
        done=s.done,
        finite=s.finite,
        stopped=stopped,
    )


def _initial(xp: Any, start: Array, rows: int, k: int, m: int) -> GolubKahanState:
    lanes, n, device = start.shape[:-1], start.shape[-1], xp.device_of(start)
    V = xp.zeros((*lanes, m + 1, n), dtype=start.dtype, device=device)
    V = put(xp, V, (..., 0, slice(None)), start / norm(xp, start)[..., None])
    U = xp.zeros((*lanes, m + 1, rows), dtype=start.dtype, device=device)
    B = xp.zeros((*lanes, m, m), dtype=start.dtype, device=device)
    zero = 0 * norm(xp, start)
    s = xp.zeros((*lanes, m), dtype=zero.dtype, device=device)
    return GolubKahanState(
        V=V,
        U=U,
        B=B,
        beta=zero,
        size=zero,
        s=s,
        P=B,
        Q=B,
        residual=s,
        converged=s > 0,
        found=s[..., :k],
        **counts(xp),
    )


def _step(
    xp: Any,
    multiply: Any,
    multiply_adjoint: Any,
    noise: tuple[Array, Array],
    s: GolubKahanState,
    m: int,
) -> GolubKahanState:
    """A v_j = sum_i B_ij u_i + alpha u_j, then A^H u_j = alpha v_j + beta v_j+1."""
    V, U, B, j = s.V, s.U, s.B, s.j
    v = V[..., j, :]
    w = multiply(v[..., None])[..., 0]
    size = xp.maximum(s.size, norm(xp, w))
    if xp.is_functional:
        w = w - expand(xp, B[..., :, j], U[..., :m, :])
    elif j > 0:
        w = w - expand(xp, B[..., :j, j], U[..., :j, :])
    w, alpha = _next(xp, U, w, size, noise[1], s.draws + j, j)
    U = put(xp, U, (..., j, slice(None)), w)
    B = put(xp, B, (..., j, j), xp.astype(alpha, B.dtype))
    z = multiply_adjoint(w[..., None])[..., 0]
    size = xp.maximum(size, norm(xp, z))
    z, beta = _next(xp, V, z - alpha[..., None] * v, size, noise[0], s.draws + j, j + 1)
    V = put(xp, V, (..., j + 1, slice(None)), z)
    if xp.is_functional or j + 1 < m:  # JAX drops what is put outside
        B = put(xp, B, (..., j, j + 1), xp.astype(beta, B.dtype))
    return s._replace(V=V, U=U, B=B, beta=beta, size=size, j=j + 1, matvecs=s.matvecs + 2)


def _next(
    xp: Any, W: Array, w: Array, size: Array, noise: Array, draw: Any, j: Any
) -> tuple[Array, Array]:
    """w orthogonal to the first j rows of W and normalised, and its norm; where that is zero w is
    random."""
    small = norm(xp, w) <= SMALL * xp.eps(w.dtype) * size
    if may_be_set(xp, small):
        w = xp.where(small[..., None], fresh(xp, noise, draw), w)
    w, length, _ = direction(xp, W, None, w, j)
    return w, xp.where(small, 0 * length, length)


def _projected(xp: Any, s: GolubKahanState, m: int, tol: float) -> GolubKahanState:
    """B = P diag(s) Q^H, and |A^H u - s v| = beta |P_m|."""
    inside = xp.arange(m, device=xp.device_of(s.B)) < s.j
    P, values, Qh = xp.svd(xp.where(inside, s.B, 0 * s.B))
    residual = s.beta[..., None] * xp.abs(P[..., s.j - 1, :])
    size = xp.maximum(s.size, values[..., 0])
    converged = residual <= SAFETY * max(tol, 2 * xp.eps(s.V.dtype)) * size[..., None]
    finite = plain(xp, xp.all(xp.isfinite(s.size)))
    Q = xp.conj(xp.matrix_transpose(Qh))
    return s._replace(
        s=values,
        P=P,
        Q=Q,
        residual=residual,
        converged=converged,
        size=size,
        cycles=s.cycles + 1,
        finite=finite,
    )


def _restarted(xp: Any, noise: Array, s: GolubKahanState, k: int, m: int) -> GolubKahanState:
    """The best p triplets, and behind them the last right vector, or a random one to look again."""
    p = count_kept(xp, s, k, m)
    V, U = rotate(xp, s.V, s.Q, p, s.j), rotate(xp, s.U, s.P, p, s.j)
    kept = xp.arange(m, device=xp.device_of(V)) < p
    B = xp.make_diagonal(xp.astype(xp.where(kept, s.s, 0 * s.s), V.dtype))
    column = xp.conj(s.beta[..., None] * s.P[..., s.j - 1, :])  # u_i^H A v = conj(v^H A^H u_i)
    if xp.is_functional or p < m:
        B = put(
            xp,
            B,
            (..., slice(None), p),
            xp.where(kept, pick(xp, s.again, 0 * column, column), 0 * column),
        )
    V = with_random_row(xp, V, noise, s, p)
    return s._replace(V=V, U=U, B=B, j=p, draws=s.draws + m)
