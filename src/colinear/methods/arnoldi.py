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

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from ..backends import Array, inner_products, places_like, without_zeros
from .base import Spectral
from .basis import Pairs, extend, normalised, pairs_of, pick, plain, put
from .restarted import KrylovState, Restarted

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

    shift_type = Number


class ArnoldiRun(Restarted):
    """A run of Arnoldi, for one operator: a complex shift needs a complex `start`, since the two
    values of a conjugate pair are at different distances from it."""

    departure = DEPARTURE

    def initial(self) -> KrylovState:
        s = super().initial()
        values, Y = (self.xp.astype(x, self.xp.complex_dtype(s.V.dtype)) for x in (s.values, s.Y))
        return s._replace(values=values, Y=Y, P=Y)

    def step(self, s: KrylovState) -> KrylovState:
        """A v_j = sum_i H_ij v_i + beta v_j+1, by Gram and Schmidt, twice where the first pass
        cancels."""
        xp, j = self.xp, s.j
        w = self.multiply(s.V[..., j, :][..., None])[..., 0]
        random = self.random(self.noise, s)
        h, beta, v, U, size = extend(xp, s.V, s.U, w, j + 1, s.size, random, is_far=True)
        H = put(xp, s.H, (..., slice(h.shape[-1]), j), h)
        return self.add(s, v, beta, size, U, H)

    def solve(self, H: Array) -> tuple[Array, Array]:
        """H Y = Y diag(values)"""
        values, Y = self.small.eig(H)
        length = self.small.vector_norm(Y, axis=-2, keepdims=True)
        return values, Y / without_zeros(self.small, length)

    def count_kept(self, s: KrylovState) -> Any:
        xp, m, p = self.small, self.ask.m, super().count_kept(s)
        if xp.is_complex(s.H):
            return p
        # not between the two of a pair, which are neighbours
        last, following = s.values[p - 1], s.values[pick(xp, p < m, p, m - 1)]
        mirrored = abs(following - xp.conj(last)) <= 1e-6 * abs(last)
        turning = (xp.imag(s.values) != 0) & (places_like(xp, s.values) < p)
        is_cut = (xp.imag(last) != 0) & mirrored & (p < m) & (xp.sum(turning) % 2 == 1)
        return p + plain(xp, pick(xp, plain(xp, is_cut), 1, 0))

    def restart(self, s: KrylovState) -> KrylovState:
        # A basis that is not full is the last one.
        return self.xp.cond(s.j >= self.ask.m, super().restart, lambda s: s, s)

    def subspace(self, s: KrylovState, p: Any) -> tuple[Array, Array, Array]:
        """H Q = Q S"""
        xp, H = self.small, s.H[:-1]
        if not xp.is_functional:
            order = lambda values: xp.to_numpy(self.score(xp.asarray(values)))
            Q = ordered_schur(xp.to_numpy(H), order, p)
            Q = xp.asarray(Q, dtype=H.dtype, device=xp.device_of(H))
        elif xp.is_complex(H):
            Q = xp.qr(s.Y)[0]
        else:
            Q = xp.qr(xp.where(xp.imag(s.values) >= 0, xp.real(s.Y), xp.imag(s.Y)))[0]
        return Q, inner_products(xp, Q, xp.matmul(H, Q)), Q[-1]


def arnoldi(xp: Any, *parameters: Any, **options: Any) -> Pairs:
    """The k eigenpairs of A that `which` names; see `Restarted` for the parameters."""
    run = ArnoldiRun(xp, *parameters, **options)
    s, stopped = run.run()
    s = run.placed(run.project(s))  # in what the last restart kept
    Y, k = s.Y[..., : run.ask.k], run.ask.k
    vectors = xp.matmul(xp.matrix_transpose(Y), xp.astype(s.V[:-1], Y.dtype))
    return pairs_of(s, s.values[..., :k], normalised(xp, vectors)[0], stopped)


def ordered_schur(H: np.ndarray, order: Callable[[np.ndarray], np.ndarray], p: int) -> np.ndarray:
    """The Schur vectors of H, those of its best p eigenvalues first."""
    from scipy.linalg import lapack, schur

    # of NaN, which are met later on a device, there is no form
    if p >= len(H) or not np.isfinite(H).all():
        return np.eye(len(H), dtype=H.dtype)
    T, Z = schur(H, check_finite=False)  # complex if H is
    is_complex = np.iscomplexobj(T)
    (trsen,) = lapack.get_lapack_funcs(("trsen",), (T,))
    values = np.diag(T) if is_complex else _block_values(T)
    rank = np.argsort(order(values.astype(complex)), kind="stable")
    select = np.zeros(len(H), np.int32)
    select[rank[:p]] = 1
    if not is_complex:  # both of a pair
        pair = np.flatnonzero(np.diag(T, -1))
        both = select[pair] | select[pair + 1]
        select[pair], select[pair + 1] = both, both
    room = {} if is_complex else {"liwork": 1}
    found = trsen(select, T, Z, job="N", lwork=max(1, len(H)), **room)
    return found[1] if found[-1] == 0 else Z


def _block_values(T: np.ndarray) -> np.ndarray:
    """The eigenvalues of a real Schur form, in the order of its blocks."""
    values = np.diag(T).astype(complex)
    for i in np.flatnonzero(np.diag(T, -1)):
        values[i], values[i + 1] = np.linalg.eigvals(T[i : i + 2, i : i + 2])
    return values
