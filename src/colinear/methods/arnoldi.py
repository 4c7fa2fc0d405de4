"""Arnoldi with Krylov-Schur restart (Stewart 2001) for some eigenpairs of any square A.

A cycle fills the basis to m vectors, A V = V H + beta v e_m^H, and finds the subspace of H that
belongs to the wanted Ritz values: an orthonormal Q with H Q = Q S. In the basis V Q, followed by v,
H is S with one full row below, and the recurrence goes on from there.

Differs from the paper:
- Q is the leading part of an ordered Schur form where the host sees the numbers, and in a traced
  program the orthonormalised wanted eigenvectors of H, which is as good unless H is close to
  defective.
- A real A keeps a real basis: the two vectors of a complex pair are kept or dropped together.
- beta = 0 is an invariant subspace, no failure: a random direction follows, coupled to nothing.
- When all k pairs have converged the run looks again from a random direction, as Lanczos does:
  repeated eigenvalues that are not defective have more than the one vector that a Krylov space
  holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..backends import Array
from .base import Spectral
from .basis import (
    SAFETY,
    SMALL,
    Pairs,
    count_kept,
    counts,
    direction,
    fill,
    fresh,
    judge,
    may_be_set,
    norm,
    orthogonalise,
    pairs_of,
    pick,
    plain,
    put,
    reflectors,
    rotate,
    rows,
    run_cycles,
    smaller,
    wanted,
    with_random_row,
)
from .vectors import LinearMap

# A Ritz value is within |residual| of an eigenvalue if A is normal; this many times that is allowed
# for what is not.
DEPARTURE = 10


@dataclass(frozen=True)
class Arnoldi(Spectral):
    """Arnoldi with Krylov-Schur restart (Stewart 2001), for some eigenpairs of any square A.

    The elements of a batch are run one after the other. An iteration is a step: one product with A,
    or with its inverse, and one more vector in the basis.

    Parameters
    ----------
    basis : int, optional
        How many vectors the basis holds; default 2 k + 14. More take fewer products, and more
        memory.
    orthogonalisation : {"gram-schmidt", "householder"}
        How the basis is kept orthogonal. Reflections take twice the memory.
    repeated : bool
        Whether to look, once k pairs have converged, for further members of repeated eigenvalues.
    shift : float or complex, optional
        Find the pairs nearest to it, through (A - shift I)^-1; `which` must be "SM". The matrix of
        A is formed for it where no structure helps, if it is not too large and A is not known by
        its products alone.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Triangular(np.diag(np.arange(500.0)) + np.eye(500, k=1), lower=False))
    >>> values, vectors = co.eig(A, 2, "LM", co.Arnoldi())
    >>> values.round(6)
    array([499.+0.j, 498.+0.j])
    """

    basis: int | None = None
    orthogonalisation: str = "gram-schmidt"
    repeated: bool = True
    shift: complex | None = None

    shift_type: ClassVar[Any] = Number


class ArnoldiState(NamedTuple):
    """Where a run stands. No batches: `arnoldi` runs one operator."""

    V: Array  # (m + 1, n), the basis
    U: Array | None  # its reflectors
    H: Array  # (m, m), A in the basis
    beta: Array  # of the last step
    size: Array  # of A as seen so far
    j: Any  # rows of V that are complete, less one
    values: Array  # (m,), Ritz values, the wanted first
    Y: Array  # (m, m), their vectors in the basis
    residual: Array  # (m,), estimated
    found: Array  # (k,), the values when the run began to look again
    looked: Any
    again: Any
    matvecs: Any
    cycles: Any
    draws: Any
    done: Any
    finite: Any

    @property
    def iterations(self) -> Any:
        """The steps so far: each makes one product."""
        return self.matvecs


def arnoldi(
    xp: Any,
    multiply: LinearMap,
    start: Array,
    noise: Array,
    k: int,
    which: str,
    *,
    m: int,
    tol: float,
    max_iters: int,
    shift: complex = 0.0,
    householder: bool = False,
    again: bool = True,
    relative: bool = False,
    watch: Callable[[ArnoldiState], Any] | None = None,
) -> Pairs:
    """The k eigenpairs of A that `which` names; the parameters are those of `lanczos`, without
    lanes.

    A complex shift needs a complex `start`: the two values of a conjugate pair are at different
    distances from it.
    """
    is_whole = m >= start.shape[-1]

    def order(values: Array) -> Array:
        return wanted(xp, values, which, shift)

    def cycle(s: ArnoldiState) -> ArnoldiState:
        stop = smaller(xp, m, s.j + max_iters - s.matvecs)
        s = fill(xp, lambda s: _step(xp, multiply, noise, s, m), s, stop)
        if not xp.is_functional and not plain(xp, xp.isfinite(s.size)):
            return s._replace(cycles=s.cycles + 1, finite=False)
        return xp.cond(s.j >= m, finished, lambda s: s._replace(cycles=s.cycles + 1), s)

    def finished(s: ArnoldiState) -> ArnoldiState:
        """The state after a cycle whose basis is full."""
        s = _projected(xp, s, order, m)
        eps = xp.eps(start.dtype)
        against = xp.maximum(xp.abs(s.values), eps ** (2 / 3) * s.size) if relative else s.size
        close = s.residual <= SAFETY * max(tol, 2 * eps) * against
        converged = plain(xp, xp.all(close[:k]))
        s = s._replace(done=converged) if is_whole or not again else judged(s, converged, close)
        return _restarted(xp, noise, s, order, k, m)

    def judged(s: ArnoldiState, converged: Any, close: Array) -> ArnoldiState:
        score = order(s.values)
        far = score[k] - score[k - 1] > DEPARTURE * s.residual[k]
        same = xp.abs(score[:k] - order(s.found)) <= tol * s.size
        return judge(xp, s, converged, xp.logical_or(close[k], far), same, s.values[:k])

    def going(s: ArnoldiState) -> Any:
        left = (s.matvecs < max_iters) & (not is_whole or s.cycles == 0)
        return (s.done ^ True) & s.finite & left

    s, stopped = run_cycles(xp, going, cycle, _initial(xp, start, k, m, householder), watch)
    return _extracted(xp, s, order, k, m, stopped)


def _extracted(xp: Any, s: ArnoldiState, order: Any, k: int, m: int, stopped: bool) -> Pairs:
    """The best k eigenpairs of what the last restart kept, as vectors."""
    inside = xp.arange(m, device=xp.device_of(s.H)) < s.j
    none = xp.zeros(s.H.shape, dtype=s.H.dtype, device=xp.device_of(s.H))
    S = xp.where(inside[:, None] & inside[None, :] & xp.isfinite(s.H), s.H, none)
    # which is no eigenvalue of A
    far = xp.where(xp.isfinite(s.size), 3 * s.size + 1, 1 + 0 * xp.real(none[0, 0]))
    S = S + xp.make_diagonal(xp.astype(xp.where(inside, 0 * far, far), S.dtype))
    values, Y = xp.eig(S)
    Y = _unit(xp, Y)
    outside = xp.vector_norm(xp.where(inside[:, None], 0 * Y, Y), axis=-2) > 0.5
    places = xp.argsort(xp.where(outside, math.inf, order(values)), axis=-1, stable=True)[:k]
    vectors = xp.matmul(
        xp.matrix_transpose(xp.take(Y, places, axis=-1)), xp.astype(s.V[:m], Y.dtype)
    )
    length = xp.vector_norm(vectors, axis=-1)
    vectors = vectors / xp.where(length == 0, 1, length)[:, None]
    return pairs_of(s, xp.take(values, places, axis=-1), vectors, stopped)


def _unit(xp: Any, Y: Array) -> Array:
    length = xp.vector_norm(Y, axis=-2)
    return Y / xp.where(length == 0, 1, length)[..., None, :]


# ----------------------------------------------------------------------------- the parts of a cycle


def _initial(xp: Any, start: Array, k: int, m: int, householder: bool) -> ArnoldiState:
    n, device, dtype = start.shape[-1], xp.device_of(start), start.dtype
    V = xp.zeros((m + 1, n), dtype=dtype, device=device)
    V = put(xp, V, (0, slice(None)), start / xp.vector_norm(start))
    H = xp.zeros((m, m), dtype=dtype, device=device)
    Y = xp.astype(H, xp.complex_dtype(dtype))
    residual = xp.zeros((m,), dtype=xp.real_dtype(dtype), device=device)
    return ArnoldiState(
        V=V,
        U=reflectors(xp, V, 1) if householder else None,
        H=H,
        beta=residual[0] * 0,
        size=residual[0] * 0,
        values=Y[0],
        Y=Y,
        residual=residual,
        found=Y[0, :k],
        **counts(xp),
    )


def _step(xp: Any, multiply: LinearMap, noise: Array, s: ArnoldiState, m: int) -> ArnoldiState:
    """One more vector: A v_j = sum_i H_ij v_i + beta v_j+1, by Gram and Schmidt, twice where the
    first pass cancels."""
    V, H, j = s.V, s.H, s.j
    w = multiply(V[j][:, None])[:, 0]
    before = norm(xp, w)
    size = xp.maximum(s.size, before)
    w, h = orthogonalise(xp, rows(xp, V, 0, j + 1), w)
    if (
        s.U is not None
        or xp.is_functional
        or xp.peek(w) is None
        or not float(norm(xp, w)) > 0.7 * float(before)
    ):
        w, more = orthogonalise(xp, rows(xp, V, 0, j + 1), w)
        h = h + more
    beta = norm(xp, w)
    small = beta <= SMALL * xp.eps(w.dtype) * size
    if may_be_set(xp, small):
        random = xp.astype(fresh(xp, noise, s.draws + j), w.dtype)
        w = xp.where(small, orthogonalise(xp, rows(xp, V, 0, j + 1), random)[0], w)
    if s.U is None:
        if may_be_set(xp, small):
            w = xp.where(small, orthogonalise(xp, rows(xp, V, 0, j + 1), w)[0], w)
        length = norm(xp, w)
        v, U = w / xp.where(length == 0, 1, length), None
    else:
        v, _, U = direction(xp, V, s.U, w, j + 1)
    beta = xp.where(small, 0 * beta, beta)
    V = put(xp, V, (j + 1, slice(None)), v)
    if xp.is_functional:
        # dropped where it is outside
        H = xp.set_at(xp.set_at(H, (slice(None), j), h[:m]), (j + 1, j), xp.astype(beta, H.dtype))
    else:
        H[: j + 1, j] = h
        if j + 1 < m:
            H[j + 1, j] = beta
    return s._replace(V=V, U=U, H=H, beta=beta, size=size, j=j + 1, matvecs=s.matvecs + 1)


def _projected(xp: Any, s: ArnoldiState, order: Any, m: int) -> ArnoldiState:
    """H Y = Y diag(values), and |A V y - theta V y| = beta |y_m|."""
    values, Y = xp.eig(s.H)
    Y = _unit(xp, Y)
    places = xp.argsort(order(values), axis=-1, stable=True)
    values, Y = xp.take(values, places, axis=-1), xp.take(Y, places, axis=-1)
    finite = plain(xp, xp.isfinite(s.size))
    return s._replace(
        values=values, Y=Y, residual=s.beta * xp.abs(Y[m - 1]), cycles=s.cycles + 1, finite=finite
    )


def _restarted(xp: Any, noise: Array, s: ArnoldiState, order: Any, k: int, m: int) -> ArnoldiState:
    """The subspace of the best p Ritz values, and behind it the last vector of the basis, or a
    random one to look again."""
    p = count_kept(xp, s, k, m)
    if not xp.is_complex(s.V):  # not between the two of a pair, which are neighbours
        last, following = s.values[p - 1], s.values[pick(xp, p < m, p, m - 1)]
        pair = (
            (xp.imag(last) != 0)
            & (xp.abs(following - xp.conj(last)) <= 1e-6 * xp.abs(last))
            & (p < m)
        )
        odd = (
            xp.sum(
                xp.where(xp.arange(m, device=xp.device_of(s.V)) < p, xp.imag(s.values) != 0, False)
            )
            % 2
            == 1
        )
        p = p + plain(xp, pick(xp, plain(xp, pair & odd), 1, 0))
    Q, S = _subspace(xp, s, order, p, m)
    V = rotate(xp, s.V, Q, p)
    inside = xp.arange(m, device=xp.device_of(V)) < p
    H = xp.where(inside[:, None] & inside[None, :], S, 0 * S)
    row = s.beta * Q[m - 1]
    row = xp.where(inside, pick(xp, s.again, 0 * row, row), 0 * row)
    if xp.is_functional or p < m:
        H = put(xp, H, (p, slice(None)), row)
    V = with_random_row(xp, V, noise, s, p)
    U = s.U if s.U is None else reflectors(xp, V, p + 1)
    return s._replace(V=V, U=U, H=H, j=p, draws=s.draws + m)


def _subspace(xp: Any, s: ArnoldiState, order: Any, p: Any, m: int) -> tuple[Array, Array]:
    """Orthonormal Q, of which the first p columns span what belongs to the best p Ritz values, and
    S = Q^H H Q."""
    if not xp.is_functional:
        H, threshold = xp.to_numpy(s.H), xp.to_numpy(order(s.values))
        Q = ordered_schur(H, lambda values: xp.to_numpy(order(xp.asarray(values))), threshold, p)
        Q = xp.asarray(Q, dtype=s.H.dtype, device=xp.device_of(s.H))
    else:
        Y = (
            s.Y
            if xp.is_complex(s.V)
            else xp.where(xp.imag(s.values) >= 0, xp.real(s.Y), xp.imag(s.Y))
        )
        Q = xp.qr(Y)[0]
    return Q, xp.matmul(xp.conj(xp.matrix_transpose(Q)), xp.matmul(s.H, Q))


def ordered_schur(
    H: np.ndarray, order: Callable[[np.ndarray], np.ndarray], scores: np.ndarray, p: int
) -> np.ndarray:
    """The Schur vectors of H, those of its best p eigenvalues first; `scores` are those of all,
    rising."""
    from scipy.linalg import lapack, schur

    if p >= len(H):
        return np.eye(len(H), dtype=H.dtype)
    T, Z = schur(H, output="complex" if np.iscomplexobj(H) else "real", check_finite=False)
    (trsen,) = lapack.get_lapack_funcs(("trsen",), (T,))
    values = np.diag(T) if np.iscomplexobj(T) else _block_values(T)
    rank = np.argsort(order(values.astype(complex)), kind="stable")
    select = np.zeros(len(H), np.int32)
    select[rank[:p]] = 1
    if not np.iscomplexobj(T):  # both of a pair
        pair = np.flatnonzero(np.diag(T, -1))
        both = select[pair] | select[pair + 1]
        select[pair], select[pair + 1] = both, both
    room = {} if np.iscomplexobj(T) else {"liwork": 1}
    found = trsen(select, T, Z, job="N", lwork=max(1, len(H)), **room)
    return found[1] if found[-1] == 0 else Z


def _block_values(T: np.ndarray) -> np.ndarray:
    """The eigenvalues of a real Schur form, in the order of its blocks."""
    values = np.diag(T).astype(complex)
    for i in np.flatnonzero(np.diag(T, -1)):
        values[i], values[i + 1] = np.linalg.eigvals(T[i : i + 2, i : i + 2])
    return values
