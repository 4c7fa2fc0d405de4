"""Orthonormal columns as operators: some of them, all of them in another order, and those that are missing to a basis.

What `svd`, `qr` and `nullspace` return is put together from these, so it keeps the structure of its parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..operators.base import LinearOperator
from ..operators.block import hstack
from ..operators.context import given_context
from ..operators.fields import index_or_array
from ..operators.identity import Identity
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.sliced import Sliced
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Transpose
from ..patterns import Pattern
from ..properties import SELF_ADJOINT, STIEFEL, UNITARY, Stiefel
from ._arrays import identity_like, narrow, seen, wide


def orthonormal(*patterns: Any) -> Pattern:
    """The pattern of operators with orthonormal columns, of any class: more specific than each of the patterns that it meets."""
    whole = Stiefel | Stiefel
    for pattern in patterns:
        whole = whole | Stiefel[pattern]
    return whole


def has_orthonormal_columns(A: LinearOperator) -> bool:
    """Whether A^H A = I is known."""
    return bool(A.properties & STIEFEL)


def has_orthonormal_rows(A: LinearOperator) -> bool:
    """Whether A A^H = I is known: A is unitary, or was made as the adjoint or transpose of orthonormal columns."""
    made_from = (A.__dict__.get("_adjoint_of"), A.__dict__.get("_transpose_of"), A.A if type(A) in (Adjoint, Transpose) else None)  # type: ignore[attr-defined]
    return bool(A.properties & UNITARY) or any(B is not None and has_orthonormal_columns(B) for B in made_from)


def first_columns(A: LinearOperator, k: int) -> LinearOperator:
    """The first k columns; of orthonormal ones they are known to be so."""
    return A if k == A.shape[-1] else Sliced(A, slice(None), range(k))._claim(A.properties & STIEFEL)


def reordered(Q: LinearOperator, order: Array, k: int, places: Any = None) -> LinearOperator:
    """Columns of Q: first those numbered `places[order]` (`order`, if no places are given), then the others, k in all.

    Where the order can be seen and is the same for a whole batch they are picked; otherwise all are permuted and k are kept.
    """
    xp, n = namespace_of(order), Q.shape[-1]
    rest = np.arange(0) if places is None else np.setdiff1d(np.arange(n), places)
    visible = seen(xp, order)
    if visible is None:
        chosen = order if places is None else xp.take(xp.asarray(places, device=xp.device_of(order)), order, axis=0)
        others = xp.broadcast_to(xp.asarray(rest, device=xp.device_of(order)), (*order.shape[:-1], len(rest)))
        perm = xp.concat([chosen, others], axis=-1)
    else:
        chosen = np.asarray(visible) if places is None else places[np.asarray(visible)]
        perm = np.concatenate([chosen, np.broadcast_to(rest, (*chosen.shape[:-1], len(rest)))], axis=-1)
        if (perm[..., :k] == np.arange(k)).all():
            return first_columns(Q, k)
        if k < n and perm.ndim == 1:
            return Sliced(Q, slice(None), perm[:k])._claim(Q.properties & STIEFEL)
    P = Permutation._of(index_or_array(perm, "columns"), given_context("columns", None if Q.is_neutral else Q, None))
    return first_columns(Product(Q, P.T)._claim(Q.properties & STIEFEL), k)


def _is_first_of_identity(U: LinearOperator) -> bool:
    """Whether U is the first columns of an identity."""
    return isinstance(U, Sliced) and isinstance(U.A, Identity) and U.rows == range(U.shape[-2]) and U.cols == range(U.shape[-1])


def complement(U: LinearOperator) -> LinearOperator:
    """Orthonormal columns that complete those of U (m x r) to a basis: m x (m - r), kept as m x r numbers.

    They are the last columns of the block reflector H = I - W (I + |U_1|)^-1 W^H with W = U + [S; 0], where U_1 = S |U_1| is the
    polar decomposition of the first r rows: H U = -[S; 0], and I + |U_1| is never ill-conditioned.
    """
    m, r = U.shape[-2:]
    if r in (0, m) or _is_first_of_identity(U):
        return Sliced(identity_like(U, m), slice(None), range(r, m))._claim(STIEFEL)
    xp = U.xp
    M = wide(xp, U.to_dense())
    X, s, Yh = xp.svd(M[..., :r, :])
    W = xp.concat([M[..., :r, :] + xp.matmul(X, Yh), M[..., r:, :]], axis=-2)
    core = -xp.matmul(xp.conj(xp.matrix_transpose(Yh)) / (1 + s)[..., None, :], Yh)
    W, core = narrow(xp, W, U.dtype), narrow(xp, core, U.dtype)
    H = Sum(identity_like(U, m), LowRank(W, core=core))._claim(UNITARY | SELF_ADJOINT)
    return Sliced(H, slice(None), range(r, m))._claim(STIEFEL)


def completed(U: LinearOperator, k: int) -> LinearOperator:
    """Orthonormal columns, and as many more of the complement as make k."""
    r = U.shape[-1]
    if k <= r:
        return first_columns(U, k)
    if r == 0 or _is_first_of_identity(U):
        return first_columns(identity_like(U, U.shape[-2]), k)
    return hstack(U, first_columns(complement(U), k - r))._claim(STIEFEL)
